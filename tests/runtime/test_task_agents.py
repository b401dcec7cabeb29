"""Agents of several tasks in the hands of their users: acting, environments, pictures, presets, other seeds."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from rl_training import ScaleZero, UserError, evaluate_checkpoint, evaluate_policy, load_config, resume_training, train
from rl_training.runtime.verification import verify_preset
from run_helpers import Command, latest, metrics_rows

# The environments end by their own count.
pytestmark = pytest.mark.filterwarnings("ignore:.*shows no time limit")
TASKS: dict[str, Any] = {
    "two": {"env_id": "task_worlds:Match", "num_envs": 2, "score": {"low": 4, "high": 8}},
    "three": {"env_id": "task_worlds:Match", "env_kwargs": {"kinds": 3}, "score": {"low": 8 / 3, "high": 8}},
}
SETTINGS: dict[str, Any] = {
    "tasks": TASKS,
    "num_envs": 1,
    "width": 16,
    "layers": 1,
    "expert_size": 8,
    "experts": 2,
    "hidden_sizes": [8],
    "num_simulations": 4,
    "unroll_steps": 2,
    "batch_size": 4,
    "buffer_size": 200,
    "learning_starts": 12,
    "train_every": 12,
    "updates_per_step": 0.5,
    "eval_episodes": 2,
    "checkpoint_interval": 24,
    "log_interval": 12,
}


def config(**changes: Any) -> dict[str, Any]:
    return {"algo": "scalezero", "total_timesteps": 72, **SETTINGS, **changes}


@pytest.fixture(scope="module")
def agent() -> Iterator[ScaleZero]:
    made = ScaleZero(**SETTINGS).learn(60)
    yield made
    made.close()


def test_a_policy_of_a_task_has_a_state_of_its_own_and_can_be_pickled(agent: ScaleZero) -> None:
    two, three = (agent.policy.for_task(name) for name in TASKS)
    assert (two.info.action_size, three.info.action_size) == (2, 3)
    shown = np.eye(3, dtype=np.float32)
    assert three(shown, deterministic=True).shape == (3,)
    assert two.state is None
    assert three.state["count"].tolist() == [1, 1, 1]
    copied = pickle.loads(pickle.dumps(three))
    assert "for three" in repr(copied)
    for _ in range(3):
        assert copied(shown).tolist() == three(shown).tolist()
    three.reset()
    action, state = agent.predict(shown, deterministic=True, task="three")
    assert action.tolist() == three(shown, deterministic=True).tolist()
    assert state["count"].tolist() == [1, 1, 1]
    with pytest.raises(UserError, match=r"task='thre': must be one of the tasks of the run \(two, three\)"):
        agent.policy.for_task("thre")


def test_a_policy_of_several_tasks_acts_in_none_before_one_is_chosen(agent: ScaleZero) -> None:
    shown = np.eye(2, dtype=np.float32)
    for policy in (agent.policy, pickle.loads(pickle.dumps(agent.policy)), agent.policy.to("cpu")):
        assert "for two+three" in repr(policy)
        for use in (policy, policy.predict, lambda _, policy=policy: policy.info):
            with pytest.raises(UserError, match=r"policy: acts in several tasks \(two, three\); choose one, as in"):
                use(shown)
        assert policy.for_task("two")(shown, deterministic=True).shape == (2,)
        assert policy.state is None


def test_a_wrong_task_or_the_state_of_another_is_one_line(agent: ScaleZero) -> None:
    shown = np.eye(2, dtype=np.float32)
    _, state = agent.predict(np.eye(3, dtype=np.float32)[:2], task="three")
    words = r"^state: (obs must be an array \(2, 3, 2\) of|must be what predict returned)"
    for wrong in (state, {"count": state["count"]}, np.zeros((2, 3))):
        with pytest.raises(UserError, match=words):
            agent.predict(shown, wrong, task="two")
    for task in (0, None, ["two"]):
        with pytest.raises(UserError, match=r"^task=.*: must be one of the tasks of the run \(two, three\)$"):
            agent.predict(shown, task=task)  # type: ignore[arg-type]


def test_environments_of_a_task_are_those_that_it_trains_in(agent: ScaleZero) -> None:
    for task, envs, kinds in (("two", 2, 2), ("three", 1, 3)):
        made = agent.get_env(task)
        assert made.reset(seed=0)[0].shape == (envs, kinds)
        made.close()
    with pytest.raises(UserError, match=r"task=None: must be one of the tasks of the run \(two, three\)"):
        agent.get_env()


def test_what_means_one_environment_is_refused(agent: ScaleZero) -> None:
    with pytest.raises(
        UserError, match="evaluate_policy: means one environment, and this run has the tasks two, three"
    ):
        evaluate_policy(agent)
    with pytest.raises(UserError, match="env='CartPole-v1': means one environment"):
        agent.evaluate(1, env="CartPole-v1")


def test_evaluations_of_all_tasks_are_drawn() -> None:
    tasks = {"pole": "CartPole-v1", "car": {"env_id": "MountainCar-v0", "time_limit": 6}}
    made = ScaleZero(**SETTINGS | {"tasks": tasks})
    drawn, plain = made.evaluate(1, render="rgb_array"), made.evaluate(1)
    made.close()
    assert drawn == plain
    for one in drawn.values():
        (frames,) = one.frames
        assert frames.shape[0] == one.lengths[0] + 1
        assert frames.shape[1:] == (400, 600, 3)


def test_a_preset_of_tasks_claims_their_mean_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    claim = {"return": 0.1, "measure": "last_5_evaluations", "final_return": 0.1, "seeds": [7], "episodes": 2}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(load_config(config(eval_interval=12, expected=claim)).flat()))
    found = verify_preset(str(file))
    (run_dir,) = (tmp_path / "runs").iterdir()
    scores = [row["eval_score_mean"] for row in metrics_rows(run_dir) if "eval_score_mean" in row]
    assert len(scores) == 6
    assert found.returns == {7: pytest.approx(np.mean(scores[1:]))}
    assert found.mean == found.returns[7]
    assert found.final_returns == {7: scores[-1]}


def test_the_command_verifies_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.yaml"
    claim = {"return": -9.0, "seeds": [7], "episodes": 2}
    file.write_text(yaml.safe_dump(load_config(config(expected=claim)).flat()))
    said = Command(monkeypatch, capsys)("verify", file, "--quiet")
    assert said.code == 0, said.err
    assert re.match(r"seed 7: score -?\d\.\d\d in ", said.out)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["tasks.two.score=null", "tasks.three=null"], "tasks.three.env_id=None: {} claims its score with"),
        (["tasks.two.score=null"], "tasks.two.score=None: {} claims its score with tasks.two.score={{'low': 4.0, "),
        (
            ["tasks.two.score.low=-500"],
            "tasks.two.score.low=-500.0: {} claims its score with tasks.two.score.low=4.0, and nothing else compares "
            "with that; `rl-training train` trains with other settings",
        ),
        (["tasks.two.time_limit=4"], "tasks.two.time_limit=4: {} claims its score with tasks.two.time_limit=None"),
        (["tasks.four=CartPole-v1"], "tasks.four.env_id='CartPole-v1': {} claims its score with"),
        (["time_limit=3"], "time_limit=3: {} claims its score with time_limit=None"),
    ],
)
def test_a_claim_about_tasks_is_not_compared_with_other_tasks(
    overrides: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(load_config(config(expected={"return": 0.1, "seeds": [7]})).flat()))
    with pytest.raises(UserError) as caught:
        verify_preset(str(file), overrides)
    assert str(caught.value).startswith(words.format(file))
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [file]


def test_a_run_goes_on_with_another_seed(tmp_path: Path) -> None:
    """Episodes begin anew in every task, with streams of the other seed; what was learned stays."""
    ended = train(config(stages=2, stage_updates=9), run_dir=tmp_path / "run")
    judged = evaluate_checkpoint(tmp_path / "run")
    assert judged == {name: ended[name] for name in judged}
    made = ScaleZero.load(tmp_path / "run", seed=5).learn(24)
    saved = latest(made.save(tmp_path / "saved"))
    made.close()
    assert (saved.meta["step"], saved.meta["resume"]) == (96, "restarted")
    assert saved.state["algorithm"]["n_updates"] == 42


def test_a_task_goes_on_with_more_environments(tmp_path: Path) -> None:
    train(config(), run_dir=tmp_path / "run")
    made = ScaleZero.load(tmp_path / "run", tasks={"two": {"num_envs": 3}, "three": {"num_envs": 1}}).learn(24)
    saved = latest(made.save(tmp_path / "saved"))
    made.close()
    assert (saved.meta["step"], saved.meta["resume"]) == (96, "restarted")
    why = [words.partition("tasks.")[2] for words in saved.meta["why_restarted"]]
    assert set(why) == {"two.num_envs is 3, was 2, so the replay buffer starts empty"}
    with pytest.raises(UserError, match=r"tasks.three.num_envs=4: a resumed run keeps its tasks.three.num_envs \(1\)"):
        resume_training(tmp_path / "run", overrides=["tasks.three.num_envs=4"])


def test_a_run_of_a_later_stage_goes_on_with_more_environments(tmp_path: Path) -> None:
    one = config(stages=2, stage_updates=9, env_id="task_worlds:Match", tasks=None)
    train(one, run_dir=tmp_path / "run")
    made = ScaleZero.load(tmp_path / "run", num_envs=3).learn(48)
    saved = latest(made.save(tmp_path / "saved"))
    made.close()
    assert saved.meta["step"] == 120
    assert int(saved.policy["network.stage_number"]) == 1
    assert saved.state["algorithm"]["n_updates"] > 30  # the replay began empty
