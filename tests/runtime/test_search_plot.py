"""The picture of a search: which state, what is drawn of it, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planning import ALGORITHMS
from rl_training import GumbelMuZero, UserError, train
from rl_training.algorithms.parts.planning_policy import PlanningPolicy
from rl_training.ops.search_tree import SearchTree
from rl_training.runtime.evaluate import in_its_own
from rl_training.runtime.saved_policy import load_policy
from rl_training.runtime.search_plot import TreePicture, draw_search, places, plot_search, shown_nodes
from rl_training.runtime.search_view import SearchView, view_search
from run_helpers import Command, tiny
from task_worlds import tasks

matplotlib = pytest.importorskip("matplotlib")

PNG = b"\x89PNG\r\n\x1a\n"
SMALL: dict[str, Any] = {"num_envs": 2, "vectorization": "sync", "eval_episodes": 1, "total_timesteps": 48}
TINY_ENV: dict[str, Any] = SMALL | {"env_id": "rl_training.testing:TinyEnv", "channels": 4, "batch_size": 4}
KINDS: dict[str, dict[str, Any]] = {
    "cartpole": SMALL | {"env_id": "CartPole-v1", "num_simulations": 12},
    "pendulum": SMALL | {"env_id": "Pendulum-v1", "sampled_actions": 6, "num_simulations": 8, "value_limit": 5e3},
    "images": TINY_ENV | {"env_kwargs": {"observations": "image"}},
    "dict": TINY_ENV | {"env_kwargs": {"observations": "dict", "masked": True}},
    "tictactoe": SMALL
    | {"env_id": "pettingzoo/tictactoe_v3", "num_simulations": 20, "value_limit": 2, "reward_limit": 2},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of every kind; they are only read."""
    folder = tmp_path_factory.mktemp("searches")
    for number, (kind, settings) in enumerate(KINDS.items()):
        algo = ALGORITHMS[number % len(ALGORITHMS)] if kind != "tictactoe" else "gumbel_muzero"
        train(tiny(algo=algo, **settings), run_dir=folder / kind)
    train(tiny(total_timesteps=24), run_dir=folder / "ppo")
    return folder


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(monkeypatch, capsys)


def words_of(figure: Any) -> list[str]:
    """All that is written in a figure."""
    figure.draw_without_rendering()
    cells = [cell for panel in figure.axes for table in panel.tables for cell in table.get_celld().values()]
    texts = [*figure.findobj(matplotlib.text.Text), *(cell.get_text() for cell in cells)]
    return [text.get_text() for text in texts if text.get_text()]


# What is searched


@pytest.mark.parametrize("kind", KINDS)
def test_the_search_is_that_of_an_evaluation(kind: str, runs: Path) -> None:
    """The chosen action is the greedy one, its numbers are those of the tree, and targets add up to 1."""
    view = view_search(runs / kind, step=1, seed=4)
    saved = load_policy(runs / kind)
    assert isinstance(saved.policy, PlanningPolicy)
    evaluator = in_its_own(saved.config.run, saved.config.loop, saved.info)
    moment = evaluator.moment(saved.policy, seed=4, steps=1)
    act = saved.policy.act(moment.obs, saved.policy.initial_carry(1), explore=False, rng=np.random.default_rng(1))
    evaluator.close()
    taken = [action for action in view.actions if action.chosen]
    assert taken == [view.chosen]
    if saved.info.continuous:
        found = saved.policy.planner.searcher.tree().vectors
        np.testing.assert_array_equal(view.tree.vectors, found)
        assert (np.abs(found[1:]).max(axis=1) > 0.0).all()
    else:
        assert act.action[0] == view.chosen.index
    assert sum(action.target for action in view.actions) == pytest.approx(1.0, abs=1e-4)
    assert sum(action.visits for action in view.actions) == view.tree.visits[0] - 1 == saved.policy.cfg.num_simulations
    below = {int(view.tree.actions[node]): node for node in np.flatnonzero(view.tree.parents == 0)}
    for action in view.actions:
        assert action.visits == (view.tree.visits[below[action.index]] if action.index in below else 0)


def test_labels_are_the_numbers_of_the_environment(runs: Path) -> None:
    assert {action.label for action in view_search(runs / "cartpole").actions} == {"0", "1"}
    assert {action.label for action in view_search(runs / "images").actions} == {"1", "2", "3"}, "they start at 1"
    torques = [float(action.label) for action in view_search(runs / "pendulum").actions]
    assert len(torques) == 6
    assert all(-2.0 <= torque <= 2.0 for torque in torques)


def test_a_board_is_drawn_with_the_moves_that_are_left(runs: Path) -> None:
    view = view_search(runs / "tictactoe", step=2, seed=6)
    assert isinstance(view.state, str)
    assert (view.state.count("X"), view.state.count("O")) == (2, 2), "an even seed moves first"
    assert view.place == "step 2 of the episode with seed 6, X to move"
    assert {action.label for action in view.actions} == {mark for mark in view.state if mark.isdigit()}
    other = view_search(runs / "tictactoe", step=1, seed=7)
    assert isinstance(other.state, str)
    assert (other.state.count("X"), other.state.count("O")) == (2, 1), "an odd one second"
    assert other.place.endswith(", O to move")


def test_values_of_a_game_are_those_of_the_player_at_the_root(runs: Path) -> None:
    view = view_search(runs / "tictactoe")
    sides = np.where(view.tree.depth % 2 == 0, 1.0, -1.0)
    np.testing.assert_allclose(view.values, view.tree.values * sides)
    assert (view_search(runs / "cartpole").values >= 0.0).all() or view.two_player


def test_images_and_numbers_show_the_state(runs: Path) -> None:
    picture = view_search(runs / "images").state
    assert isinstance(picture, np.ndarray)
    assert (picture.shape, picture.max()) == ((36, 36), 255)
    assert isinstance(view_search(runs / "dict").state, np.ndarray)
    numbers = view_search(runs / "cartpole").state
    assert isinstance(numbers, str)
    assert len(numbers.split()) == 4


def test_masked_actions_are_not_among_those_of_the_root(runs: Path) -> None:
    counts = {len(view_search(runs / "dict", seed=seed).actions) for seed in range(6)}
    assert counts <= {1, 2, 3}
    assert len(counts) > 1


def test_scheduled_settings_of_the_search_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    """An evaluation searches with what the last step had, not with what the run began with."""
    settings = KINDS["cartpole"] | {"c_scale": 0.1, "c_scale_schedule": 2.0, "gamma_schedule": 0.5}
    result = train(tiny(algo="gumbel_muzero", **settings), run_dir=tmp_path / "run")
    assert load_policy(tmp_path / "run").policy.values == {
        "temperature": 1.0,
        "gamma": result["gamma"],
        "c_visit": 50.0,
        "c_scale": result["c_scale"],
    }
    assert (result["gamma"], result["c_scale"]) == (0.5, 2.0)


# What is drawn


def tree_of(parents: list[int], visits: list[int]) -> SearchTree:
    """A tree whose children are numbered by their order."""
    count = len(parents)
    depth, actions = np.zeros(count, np.int32), np.full(count, -1, np.int32)
    for node in range(1, count):
        depth[node] = depth[parents[node]] + 1
        actions[node] = sum(parents[older] == parents[node] for older in range(1, node))
    zeros = np.zeros(count)
    return SearchTree(
        parents=np.array(parents, np.int32),
        actions=actions,
        depth=depth,
        visits=np.array(visits, np.int32),
        values=zeros,
        raw_values=zeros,
        rewards=zeros,
        discounts=zeros + 0.9,
        priors=np.ones(count, np.float32),
        child_priors=np.ones((count, 3), np.float32),
        vectors=np.zeros((count, 0), np.float32),
    )


def test_leaves_stand_side_by_side_below_their_parents() -> None:
    tree = tree_of([-1, 0, 0, 1, 1, 2], [6, 3, 2, 1, 1, 1])
    where = places(tree, range(6))
    assert where == {3: (0.0, -2.0), 4: (1.0, -2.0), 1: (0.5, -1.0), 5: (2.0, -2.0), 2: (2.0, -1.0), 0: (1.25, 0.0)}


def test_of_a_large_tree_the_most_visited_part_near_the_root_is_drawn(runs: Path) -> None:
    chain = tree_of([-1, *range(11)], list(range(12, 0, -1)))
    assert shown_nodes(chain) == list(range(9)), "eight steps deep"
    wide = tree_of([-1, *[0] * 60], [61, *[1] * 60])
    assert len(shown_nodes(wide)) == 50
    view = view_search(runs / "cartpole", simulations=150)
    picture = TreePicture(view)
    assert 0 in picture.nodes
    assert all(int(view.tree.parents[node]) in picture.nodes for node in picture.nodes[1:])
    least = min(view.tree.visits[node] for node in picture.nodes)
    near = np.flatnonzero(view.tree.depth <= 8)
    assert least >= max([0, *(view.tree.visits[node] for node in near if node not in picture.nodes)])
    words = words_of(draw_search(view))
    assert any(f"{len(picture.nodes)} of 151 states drawn" in word for word in words)
    assert "..." in words


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_is_drawn(kind: str, runs: Path) -> None:
    view = view_search(runs / kind)
    figure = draw_search(view)
    words = words_of(figure)
    assert f"{view.algo} on {view.env_id}, {view.place}" in words
    assert {"action", "prior", "visits", "value", "policy target"} <= set(words)
    for action in view.actions:
        assert words.count(action.label) >= 1
    if isinstance(view.state, str):
        assert view.state in words
    else:
        assert any(panel.images for panel in figure.axes)
    (label,) = [word for word in words if word.startswith("value of a state")]
    assert label.endswith("top") == view.two_player


def test_the_chosen_action_is_marked_and_sizes_follow_visits(runs: Path) -> None:
    view = view_search(runs / "cartpole")
    panel = draw_search(view).axes[0]
    (states,) = panel.collections
    picture = TreePicture(view)
    order = np.argsort(view.tree.visits[picture.nodes], kind="stable")
    assert (np.diff(states.get_sizes()[order]) >= 0.0).all()
    marked = [node for node in picture.nodes[1:] if picture._marked(node)]
    assert len(marked) == 1
    assert view.tree.actions[marked[0]] == view.chosen.index
    lines = {line.get_color(): line.get_linewidth() for line in panel.get_lines()}
    assert set(lines) == {"#D55E00", "0.6"}
    np.testing.assert_allclose(states.get_array(), view.values[picture.nodes])


# Several tasks


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that searches in two tasks, and one whose policy shows no search."""
    folder = tmp_path_factory.mktemp("planned")
    settings = {key: value for key, value in tasks().items() if key not in ("algo", "updates_per_step")}
    for name in ("SPEC", "SILENT"):
        algo = f"searching_tasks:{name}"
        train(settings | {"algo": algo, "total_timesteps": 20, "num_simulations": 9}, run_dir=folder / name)
    return folder


@pytest.mark.filterwarnings("ignore:.*shows no time limit")
def test_a_search_is_that_of_the_task_that_is_asked_for(planned: Path) -> None:
    """The policy wants action n in step n, so what it carries reaches the search."""
    for task, count, step in (("two", 2, 0), ("two", 2, 1), ("three", 3, 2)):
        view = view_search(planned / "SPEC", task=task, step=step, seed=3)
        assert (view.place, view.env_id) == (f"step {step} of the episode with seed 3 in {task}", "task_worlds:Match")
        assert [action.label for action in view.actions] == [str(number) for number in range(count)], "not all of both"
        assert view.chosen.index == step
        assert isinstance(view.state, str)
        assert len(view.state.split()) == count
    assert view_search(planned / "SPEC", task="three", simulations=30).tree.visits[0] == 31


@pytest.mark.filterwarnings("ignore:.*shows no time limit")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["SPEC"], "--task: give one of two, three, the tasks of SPEC"),
        (
            ["SPEC", "--task", "tow"],
            "task='tow': must be one of the tasks of the run (two, three); did you mean 'two'?",
        ),
        (["SILENT", "--task", "two"], "the policy of searching_tasks:SILENT shows no search; it needs a method"),
    ],
)
def test_mistakes_with_tasks_are_one_line(
    arguments: list[str], words: str, planned: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(planned)
    said = command("plot", *arguments, "--search")
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert words in said.err
    assert not list(planned.rglob("search.png"))


# The command


def test_the_picture_lies_in_the_run_unless_told_otherwise(runs: Path, command: Command, tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs / "cartpole", tmp_path / "run"))
    said = command("plot", run, "--search", "--seed", 3, "--step", 2, "--simulations", 9)
    assert (said.code, said.err) == (0, "")
    assert (run / "search.png").read_bytes().startswith(PNG)
    first, second, third = said.out.splitlines()
    assert first == "state    step 2 of the episode with seed 3"
    assert second.endswith("of 9 simulations)")
    assert third == f"plot     {run / 'search.png'}"
    assert command("plot", run, "--search", "--output", "a.svg", "--checkpoint", "best").code == 0
    assert "<svg" in (tmp_path / "a.svg").read_text()


def test_an_agent_that_was_saved_alone_is_drawn_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    agent = GumbelMuZero("CartPole-v1", **{key: KINDS["cartpole"][key] for key in ("num_envs", "num_simulations")})
    agent.save("mine")
    agent.close()
    path, view = plot_search("mine")
    assert path.resolve() == tmp_path / "search.png"
    assert isinstance(view, SearchView)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ppo", "--search"], "'ppo': ppo does not search; runs of muzero, gumbel_muzero, efficientzero"),
        (["cartpole", "--search", "--step", 100_000], "step=100000: the episode with seed 0 is over after"),
        (["cartpole", "--search", "--output", "x.bmp"], "must end with one of .png, .svg, .pdf"),
        (["cartpole", "ppo", "--search"], "--search: draws one run and takes no --metric; got 2 runs, 0 metrics"),
        (["cartpole", "--search", "--metric", "loss"], "--search: draws one run and takes no --metric; got 1 runs"),
        (["cartpole", "--task", "two"], "--task: is for --search alone"),
        (["cartpole", "--search", "--task", "two"], "task='two': must be one of the tasks of the run (none: it is"),
        (["cartpole", "--step", 3], "--step: is for --search and --imagination alone"),
        (["cartpole", "--checkpoint", "best"], "--checkpoint: is for --search and --imagination alone"),
        (["nowhere", "--search"], "'nowhere': there is no such run or checkpoint"),
        (["cartpole", "--search", "--checkpoint", "step_1"], "has no checkpoint 'step_1'"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[Any], words: str, runs: Path, command: Command, monkeypatch: Any
) -> None:
    monkeypatch.chdir(runs)
    said = command("plot", *arguments)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert words in said.err


def test_wrong_numbers_are_refused(runs: Path, command: Command) -> None:
    for option, value in (("--simulations", 0), ("--step", -1), ("--seed", -2), ("--seed", "x")):
        said = command("plot", runs / "cartpole", "--search", option, value)
        assert said.code == 2
        assert option in said.err


def test_a_missing_matplotlib_is_one_message(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"pip install 'rl-training\[plot\]'"):
        plot_search(runs / "cartpole")
