"""Several tasks in one run: a multi-task DQN of user code learns, is evaluated, resumed and stopped by task."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml

from forgery import reseal
from rl_training import Agent, evaluate_checkpoint, resume_training, train, train_seeds
from rl_training.data import ram
from rl_training.experiment.config import load_config
from rl_training.runtime.actors.task_sources import sources_of
from rl_training.runtime.checkpoints.catalogue import find_checkpoint
from rl_training.runtime.checkpoints.spaces import read_spaces, spaces_for, write_spaces
from rl_training.runtime.controls import build_control_callbacks
from rl_training.runtime.datasets import open_dataset
from rl_training.runtime.saved_policy import load_policy
from rl_training.runtime.train import Run, build
from rl_training.testing.contract import CHECKS, check_settings_are_live
from rl_training.types import UserError
from run_helpers import (
    Command,
    cut_and_resume,
    latest,
    metrics_rows,
    own_copy,
    run_differences,
    training_differences,
)
from task_worlds import EXAMPLES, SPEC, TWO, tasks

# The environments end by their own count.
pytestmark = pytest.mark.filterwarnings("ignore:.*shows no time limit")


@pytest.fixture(autouse=True, scope="module")
def _examples_can_be_imported() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that no test changes."""
    folder = tmp_path_factory.mktemp("tasks") / "run"
    train(tasks(eval_interval=150), run_dir=folder)
    return folder


def started(**changes: Any) -> Run:
    run = build(load_config(tasks(**changes)))
    run.start()
    return run


def with_targets(**targets: float) -> dict[str, Any]:
    return {name: TWO[name] | ({"target_return": targets[name]} if name in targets else {}) for name in TWO}


# Learning.


def test_one_network_learns_tasks_of_different_spaces() -> None:
    settings = {"learning_rate": 5e-3, "updates_per_step": 0.5}
    agent = Agent(algo=SPEC, **{key: value for key, value in tasks(**settings).items() if key != "algo"}).learn(1_500)
    found = agent.evaluate(10)
    assert isinstance(found, Mapping)
    assert {task: one.mean for task, one in found.items()} == {"two": 8.0, "three": 80.0}
    assert (found.mean, found.score) == (44.0, 1.0)
    assert repr(found) == f"TaskEvaluations({dict(found)!r}, scores={{'two': 1.0, 'three': 1.0}})"
    assert agent.predict(np.eye(3, dtype=np.float32), deterministic=True, task="three")[0].tolist() == [0, 1, 2]
    assert agent.predict(np.array([0.0, 1.0], np.float32), deterministic=True, task="two")[0] == 1
    with pytest.raises(
        UserError, match=r"task='tow': must be one of the tasks of the run \(two, three\); did you mean 'two'"
    ):
        agent.predict(np.zeros(2, np.float32), task="tow")
    agent.close()


def test_metrics_are_by_task_and_the_clock_is_that_of_all(tmp_path: Path) -> None:
    result = train(tasks(eval_interval=100), run_dir=tmp_path / "run")
    assert result["step"] == result["two/steps"] + result["three/steps"] == 300
    assert (result["two/steps"], result["three/steps"]) == (120, 180)  # two and three environments
    assert result["episodes"] == result["two/episodes"] + result["three/episodes"]
    assert (
        result["episode_return_mean"] == (result["two/episode_return_mean"] + result["three/episode_return_mean"]) / 2
    )
    assert result["eval_return_mean"] == (result["two/eval_return_mean"] + result["three/eval_return_mean"]) / 2
    assert result["two/eval_score"] == (result["two/eval_return_mean"] - 4) / 4
    assert result["eval_score_mean"] == (result["two/eval_score"] + result["three/eval_score"]) / 2
    scores = [row["eval_score_mean"] for row in metrics_rows(tmp_path / "run") if "eval_score_mean" in row]
    assert len(scores) == 3
    assert result["eval_score_best"] == max(scores)
    assert "eval_return_best" not in result
    assert (tmp_path / "run" / "checkpoints" / "best").exists()


def test_without_scores_the_best_goes_by_the_mean_return() -> None:
    run = started(tasks={name: {**task, "score": None} for name, task in TWO.items()})
    run.advance()
    run.callbacks[0].on_end(run)
    assert run.eval_metrics["eval_return_best"] == run.eval_metrics["eval_return_mean"]
    assert not any("score" in name for name in run.eval_metrics)
    run.close()


def test_a_single_environment_is_a_run_of_one_task() -> None:
    alone = {"tasks": None, "env_id": "task_worlds:Match", "num_envs": 2}
    run = started(**alone)
    for _ in range(6):
        run.advance()
    assert not any("/" in name for name in run.metrics)
    assert set(run.streams) == {"env", "policy", "batch"}
    assert set(run.loop.parts) == {"replay", "sampler", "latest"}
    assert run.snapshot().meta["spaces"] == run.info.to_dict()
    assert run.algorithm.policy.task == ""
    run.close()


def test_another_task_moves_no_other() -> None:
    alone, both = started(tasks={"two": TWO["two"]}), started()
    assert set(both.streams) == {"two/env", "two/policy", "three/env", "three/policy", "batch"}
    for run in (alone, both):
        run.advance()  # at random
    mine, its = (sources_of(run.source)["two"] for run in (alone, both))
    rows = min(mine.collector.steps, its.collector.steps) // 2
    seen = [run.loop.memories["two"].replay for run in (alone, both)]  # type: ignore[attr-defined]
    first = [replay.gather(np.arange(rows), n_step=1, gamma=1.0) for replay in seen]
    kept = [(batch.obs.copy(), batch.action.copy()) for batch in first]
    assert rows > 0
    assert all(np.array_equal(left, right) for left, right in zip(*kept, strict=True))
    for run in (alone, both):
        run.close()


@pytest.mark.parametrize("count", [0, 2])
# Its networks take no `model` and no `activation`.
@pytest.mark.parametrize("check", [check for check in CHECKS if check is not check_settings_are_live])
def test_the_example_keeps_the_contract_with_one_task_and_with_two(check: Callable[..., None], count: int) -> None:
    check(SPEC, tasks=count)


# Leaving collection.


def test_a_solved_task_leaves_collection_and_is_still_evaluated() -> None:
    run = started(tasks=with_targets(two=0.0))
    while run.steps < 60:
        run.advance()
    assert run.algorithm.solved == ["two"]
    before = run.metrics["two/steps"]
    run.advance()
    assert run.metrics["two/steps"] == before
    assert run.metrics["three/steps"] == run.steps - before
    assert "two/loss" in run.metrics
    assert "two/eval_return_mean" in run.evaluate(2).metrics()
    run.close()


def test_where_all_are_solved_all_are_gathered_from() -> None:
    run = started(tasks=with_targets(two=0.0, three=0.0))
    while run.steps < 60:
        run.advance()
    assert run.algorithm.active_tasks() == []
    before = run.metrics["two/steps"]
    run.advance()
    assert run.metrics["two/steps"] > before
    run.close()


# Resuming.


@pytest.mark.parametrize(
    "how", [{}, {"num_workers": 2, "tasks": {"two": TWO["two"], "four": TWO["three"] | {"num_envs": 4}}}]
)
def test_a_cut_run_resumes_to_the_bit(how: dict[str, Any], tmp_path: Path) -> None:
    config = tasks(eval_interval=70, normalize_obs=True, epsilon_schedule=0.5) | how
    train(config, run_dir=tmp_path / "whole")
    for after in (50, 130, 220):
        cut_and_resume(config, tmp_path / str(after), after=after)
        assert run_differences(tmp_path / "whole", tmp_path / str(after)) == []
    assert latest(tmp_path / "whole").meta["resume"] == "exact"


def test_a_run_is_exact_across_the_moment_when_a_task_is_solved(tmp_path: Path) -> None:
    config = tasks(tasks=with_targets(two=3.9), checkpoint_interval=50)
    whole = train(config, run_dir=tmp_path / "whole")
    solved = latest(tmp_path / "whole").state["algorithm"]["solved"]
    assert solved == ["two"]
    assert whole["two/steps"] < 120
    for after in (60, 110, 160):
        cut_and_resume(config, tmp_path / str(after), after=after)
        assert run_differences(tmp_path / "whole", tmp_path / str(after)) == []


def test_processes_gather_what_the_learner_itself_would() -> None:
    found = []
    for actors in ("inline", "process"):
        run = started(actors=actors)
        for _ in range(8):
            run.advance()
        assert run.algorithm.n_updates > 0
        found.append(run.snapshot())
        run.close()
    left = training_differences(*found)
    # The streams of the environments and of the policy are those of the workers, and are saved with them.
    assert all(where.startswith(("envs", "rng.streams")) for where in left), left
    inline, apart = found
    assert set(apart.envs) == {"two", "three"}
    for task in TWO:
        assert apart.envs[task]["actor"]["rng"]["env"] == inline.state["rng"]["streams"][f"{task}/env"]
        assert apart.envs[task]["actor"]["actor"]["steps"] == inline.envs[task]["actor"]["steps"]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("tasks.two.num_envs=5", "tasks.two.num_envs=5: a resumed run keeps its tasks.two.num_envs (2)"),
        ("tasks.two.env_kwargs.kinds=4", "tasks.two.env_kwargs={'kinds': 4}: a resumed run keeps"),
        ("tasks.two.time_limit=4", "tasks.two.time_limit=4: a resumed run keeps its tasks.two.time_limit (null)"),
        ("tasks.new=CartPole-v1", "tasks=[two, three, new]: a resumed run keeps its tasks (two, three); start a new"),
        ("tasks.two=null", "tasks=[three]: a resumed run keeps its tasks (two, three); start a new run instead"),
        ("tasks=null", "tasks=null: a resumed run keeps its tasks (two, three); start a new run instead"),
        ("tasks.two.score.high=500", "tasks.two.score.high=500.0: a resumed run keeps its tasks.two.score.high (8.0)"),
        ("tasks.two.score=null", "tasks.two.score=null: a resumed run keeps its tasks.two.score ({'low': 4.0, "),
    ],
)
def test_a_resumed_run_keeps_its_tasks(override: str, words: str, run_dir: Path) -> None:
    with pytest.raises(UserError) as caught:
        resume_training(run_dir, overrides=[override, "total_timesteps=400"])
    assert str(caught.value).startswith(words)


def test_a_task_gets_no_score_when_its_run_is_resumed(tmp_path: Path) -> None:
    """Its best and latest evaluations are returns, which nothing turns into scores."""
    plain = {name: {**task, "score": None} for name, task in TWO.items()}
    run_dir = train(tasks(tmp_path, tasks=plain, total_timesteps=100)).run_dir
    assert run_dir is not None
    words = "tasks.two.score={'low': 0.0, 'high': 8.0}: a resumed run keeps its tasks.two.score (null)"
    with pytest.raises(UserError, match=re.escape(words)):
        resume_training(run_dir, overrides=["tasks.two.score={low: 0, high: 8}", "total_timesteps=200"])


def test_targets_may_change_but_not_the_order(run_dir: Path, tmp_path: Path) -> None:
    turned = load_config(tasks(tasks={name: TWO[name] for name in reversed(TWO)}, total_timesteps=400))
    with pytest.raises(UserError, match=r"tasks=\[three, two\]: a resumed run keeps its tasks \(two, three\)"):
        resume_training(run_dir, config=turned)
    more = ["tasks.two.target_return=7", "total_timesteps=310"]
    assert resume_training(own_copy(run_dir, tmp_path / "run"), overrides=more)["step"] == 310


# Checkpoints, evaluation and pictures.


def test_a_checkpoint_has_the_spaces_of_every_task(run_dir: Path) -> None:
    meta = latest(run_dir).meta
    found = read_spaces(meta["spaces"])
    assert {task: info.action_size for task, info in found.items()} == {"two": 2, "three": 3}
    assert read_spaces(write_spaces(found)).keys() == found.keys()
    other = load_config(tasks(tasks={"two": TWO["two"], "four": TWO["three"]}))
    with pytest.raises(
        UserError, match="'x': has the spaces of the tasks 'three', 'two'; its config has 'four', 'two'"
    ):
        spaces_for(other, meta, Path("x"))
    for wrong in ({"tasks": {}}, {"tasks": 3}, {"tasks": {"a": {}}}, {"tasks": {"a": 3}}, {}, 3):
        with pytest.raises(ValueError, match="the spaces"):
            read_spaces(wrong)


@pytest.mark.parametrize("forged", [3, ["two", "three"], {"two": 3}, {}])
def test_a_forged_list_of_tasks_is_one_line(forged: Any, run_dir: Path, tmp_path: Path) -> None:
    copy = own_copy(run_dir, tmp_path / "copy")
    reseal(find_checkpoint(copy), config=latest(copy).meta["config"] | {"tasks": forged})
    for go_on in (evaluate_checkpoint, resume_training, lambda path: train(tasks(total_timesteps=310), resume=path)):
        with pytest.raises(UserError) as caught:
            go_on(copy)
        assert "\n" not in str(caught.value)


def test_a_saved_policy_acts_in_the_task_that_is_named(run_dir: Path) -> None:
    saved = load_policy(run_dir, task="three")
    assert (saved.policy.task, saved.info.action_size, saved.config.run.env_kwargs["kinds"]) == ("three", 3, 3)
    with pytest.raises(UserError, match=r"task=None: must be one of the tasks of the run \(two, three\)"):
        load_policy(run_dir)


def test_evaluation_is_by_task(run_dir: Path) -> None:
    found = evaluate_checkpoint(run_dir, num_episodes=2)
    kept = latest(run_dir).meta["eval"]
    assert found == {"step": 300.0} | {name: value for name, value in kept.items() if name in found}
    assert {"two/eval_return_mean", "three/eval_score", "eval_score_mean"} <= found.keys()
    with pytest.raises(
        UserError, match="env='CartPole-v1': means one environment, and this run has the tasks two, three"
    ):
        evaluate_checkpoint(run_dir, env="CartPole-v1")
    with pytest.raises(UserError, match="has the replays of several tasks"):
        open_dataset(str(run_dir))


def test_the_command_speaks_of_every_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command(monkeypatch, capsys)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "both.yaml"
    file.write_text(f"algo: {SPEC}\ntasks: [task_worlds:Match]\nlearning_starts: 8\nlog_interval: 8\n")
    size = ["total_timesteps=24", "num_envs=2", "eval_episodes=2", "hidden_sizes=[4]", "batch_size=4"]
    more = [
        "tasks.other.env_id=task_worlds:Match",
        "tasks.other.env_kwargs.kinds=4",
        "tasks.match.score={low: 0, high: 8}",
    ]
    said = command("train", file, *size, *more, "output_dir=out")
    assert said.code == 0, said.err
    assert [line.split()[-1] for line in said.out.splitlines() if line.startswith("return")] == ["match", "other"]
    assert "evaluation return" in said.err
    (run,) = (tmp_path / "out").iterdir()
    assert "match-other" in run.name
    judged = command("eval", run, "--episodes", 3)
    first, second, mean = judged.out.splitlines()
    assert first.startswith("match  return ")
    assert second.startswith("other  return ")
    assert mean.startswith("mean return over 2 tasks ")
    assert command("plot", run).code == 0
    assert (run / "plot.png").stat().st_size > 0
    assert "tasks" in command("describe", SPEC).out


def test_commands_that_mean_one_environment_say_what_they_need(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command(monkeypatch, capsys)
    played = command("play", run_dir)
    assert "learned the tasks two, three, which nobody can play; what can be played is a game for two" in played.err
    assert "muzero" in played.err
    drawn = command("plot", run_dir, "--search")
    assert drawn.err.startswith("error: --task: give one of two, three, the tasks of ")


def test_a_picture_has_a_panel_for_every_task(run_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from rl_training.runtime.plots import draw, group_runs, plot_runs, read_run

    drawn = plot_runs([run_dir], output=tmp_path / "plot.png").groups
    figure = draw(drawn, ["two/eval_return_mean", "three/eval_return_mean"])
    assert [panel.get_title() for panel in figure.axes] == [
        "two. Evaluation: greedy actions",
        "three. Evaluation: greedy actions",
    ]
    assert figure.get_suptitle() == f"{SPEC} on two, three"
    assert len(group_runs([read_run(run_dir)])) == 1


def test_an_agent_is_saved_and_loaded_with_its_tasks(run_dir: Path, tmp_path: Path) -> None:
    agent = Agent.load(run_dir)
    again = Agent.load(agent.save(tmp_path / "saved"), trust=True)
    assert again.evaluate(2) == agent.evaluate(2)
    found = [one.learn(20).evaluate(2).metrics() for one in (agent, again)]
    assert found[0] == found[1]
    for one in (agent, again):
        one.close()


def test_several_seeds_of_several_tasks(tmp_path: Path) -> None:
    result = train_seeds(tasks(tmp_path / "out", total_timesteps=60), [1, 2])
    assert sorted(result.runs) == [1, 2]
    assert all("three/eval_return_mean" in one for one in result.runs.values())
    summary = json.loads(result.summary_file.read_text())
    assert summary["metric"] == "eval_score_mean"
    scores = [one["eval_score_mean"] for one in result.runs.values()]
    assert [run["score"] for run in summary["runs"]] == list(result.values.values()) == scores
    assert [run["return"] for run in summary["runs"]] == [one["eval_return_mean"] for one in result.runs.values()]
    assert summary["mean"] == result.mean.value == pytest.approx(sum(scores) / 2)


def test_the_command_reports_the_scores_of_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(load_config(tasks(total_timesteps=60)).flat()))
    said = Command(monkeypatch, capsys)("train", file, "--seeds", "1,2", "--quiet")
    assert said.code == 0, said.err
    (summary,) = tmp_path.glob("runs/*/summary.json")
    found = json.loads(summary.read_text())
    for run in found["runs"]:
        assert f"seed {run['seed']}: score {run['score']:.3f} at step 60 in " in said.out
    low, high = found["confidence"]["mean"]
    assert f"mean     score {found['mean']:.3f}  (95% confidence interval {low:.3f} to {high:.3f})" in said.out
    assert f"IQM      score {found['iqm']:.3f}  (" in said.out


# Stopping early.


def stopped(metric: str, target: float, folder: Path) -> Any:
    rule = {"metric": metric, "target_value": target}
    return train(tasks(eval_interval=50, early_stopping=rule), run_dir=folder)


@pytest.mark.parametrize(
    "metric", ["three/eval_return_mean", "eval_score_mean", "two/episode_return_mean", "eval_return_mean"]
)
def test_a_run_stops_by_the_metric_of_a_task_or_the_mean(metric: str, tmp_path: Path) -> None:
    result = stopped(metric, -1.0, tmp_path / "run")
    assert result.stop_reason.startswith(f"early_stopping: {metric} reached")
    assert result["step"] == 50


@pytest.mark.parametrize(
    "metric",
    ["tow/eval_return_mean", "two/eval_return_maen", "eval_return_std", "two/episode_return_maen", "two/loss2"],
)
def test_unknown_metrics_are_said(metric: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"early_stopping.metric='{metric}': no such metric"):
        stopped(metric, 1e9, tmp_path / "run")


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("three/eval_score", "needs a score: give tasks.three.score, as in {low: 0, high: 450}"),
        ("eval_score_mean", "needs a score: give tasks.three.score, as in"),
        ("two/eval_scor", "no such metric; did you mean 'two/eval_score'? (known: "),
        ("two/eval_succes_rate", "two/eval_success_rate)"),
    ],
)
def test_a_metric_of_scores_needs_them(metric: str, words: str) -> None:
    named = {"two": TWO["two"], "three": {"env_id": "task_worlds:Match"}}
    rule = {"metric": metric, "patience": 3}
    with pytest.raises(UserError) as caught:
        build_control_callbacks(load_config(tasks(tasks=named, eval_interval=50, early_stopping=rule)))
    assert words in str(caught.value)


# Mistakes.


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algo": "ppo", "tasks": ["CartPole-v1"]}, "config: tasks: ppo has none: it learns in one environment"),
        (
            {"tasks": ["CartPol-v1"]},
            "tasks.cartpol.env_id='CartPol-v1': unknown environment; did you mean 'CartPole-v1'?",
        ),
        (
            {"tasks": {**TWO, "steer": "task_worlds:Steer"}},
            f"tasks.steer: algo='{SPEC}': cannot work with the continuous actions of task_worlds:Steer, only with "
            "discrete ones",
        ),
        (
            {
                "tasks": {
                    **TWO,
                    "image": {"env_id": "rl_training.testing:TinyEnv", "env_kwargs": {"observations": "image"}},
                }
            },
            f"tasks.image: algo='{SPEC}': cannot work with the image observations of rl_training.testing:TinyEnv, only "
            "with vector ones; scalezero can",
        ),
        (
            {"tasks": {"a": {**TWO["two"], "env_kwargs": {"size": 3}}}},
            "tasks.a.env_kwargs={'size': 3}: task_worlds:Match",
        ),
        ({"num_workers": 2}, "tasks.three: num_workers=2: must divide num_envs=3"),
        ({"eval_opponent": "perfect"}, "config: eval_opponent='perfect': multi_task_dqn has none"),
    ],
)
def test_wrong_tasks_are_one_line_and_leave_nothing_behind(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    settings = tasks(tmp_path, **changes)
    if changes.get("algo") == "ppo":
        settings = {key: settings[key] for key in ("algo", "tasks", "output_dir")}
    with pytest.raises(UserError) as caught:
        train(settings)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)
    # An algorithm that can is named only if it learns several tasks.
    assert str(caught.value).partition("only with")[2] in ("", " discrete ones", " vector ones; scalezero can")
    assert list(tmp_path.iterdir()) == []


def test_a_function_of_one_environment_makes_no_tasks(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="env_factory: means one environment, and this run has the tasks two, three"):
        train(tasks(), run_dir=tmp_path / "run", env_factory=lambda: gym.make("CartPole-v1"))


def test_memories_of_all_tasks_must_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    many = {f"task{number}": TWO["two"] for number in range(4)}
    monkeypatch.setattr(ram, "available_memory", lambda: 2 << 20)
    build(load_config(tasks(tasks={"task0": TWO["two"]}, buffer_size=30_000))).close()
    with pytest.raises(UserError, match=r"^buffer_size=30000: needs at least .* at most \d+ fit$"):
        build(load_config(tasks(tasks=many, buffer_size=30_000)))


def test_the_ram_of_every_tasks_replay_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "rl_training"):
        build(load_config(tasks(buffer_size=30_000))).close()
    first, second = (message for message in caplog.messages if "replay" in message)
    assert first.startswith("task 'two': the replay of 30000 transitions takes up to ")
    assert second.startswith("task 'three': the replay of 30000 transitions takes up to ")


# Trust.


def test_code_that_tasks_of_a_strangers_run_name_is_not_imported(run_dir: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run_dir, tmp_path / "copy")
    with pytest.raises(UserError, match="its algo='multi_task_dqn:SPEC' would import"):
        evaluate_checkpoint(copy)
    more = [f"algo={SPEC}", "total_timesteps=310"]
    with pytest.raises(
        UserError, match=r"its tasks.two.env_id='task_worlds:Match' would import 'task_worlds'.*give tasks.two.env_id="
    ):
        resume_training(copy, overrides=more)
    given = ["tasks.two.env_id=task_worlds:Match"]
    assert resume_training(copy, overrides=[*more, *given])["step"] == 310
    assert evaluate_checkpoint(run_dir)["step"] == 300.0  # one's own
