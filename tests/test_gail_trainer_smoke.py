"""A tiny GAIL run from demonstrations to a checkpoint, with its schedules at their exact ends."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training import GAIL, evaluate_checkpoint, load_config, resume_training
from rl_training.data.datasets.files import save_npz, to_arrays
from rl_training.data.packaged import cartpole_expert, pendulum_expert
from rl_training.runtime.gail_trainer import train_gail
from rl_training.runtime.train import TrainResult, build
from rl_training.types import UserError
from run_helpers import cut_and_resume, differences, latest, metrics_rows, run_differences, tiny

EXPERT = "rl_training.data.packaged:cartpole_expert"


def config(**changes: Any) -> dict[str, Any]:
    """Four updates, 24 steps apart."""
    settings = tiny(algo="gail", vectorization="sync", total_timesteps=96, eval_episodes=1, dataset=EXPERT)
    small = {"disc_updates": 2, "disc_batch_size": 16, "disc_hidden_sizes": [8], "demonstrations": 4}
    curves = {"ent_coef": 0.05, "ent_coef_schedule": 0.01, "clip_coef": 0.4, "clip_coef_schedule": "linear"}
    return settings | small | curves | changes


def test_scheduled_coefficients_end_in_the_final_metrics(tmp_path: Path) -> None:
    judge = {"disc_learning_rate": 1e-3, "disc_learning_rate_schedule": 5e-4, "gradient_penalty_coef_schedule": 2.0}
    result = train_gail(config(**judge), run_dir=tmp_path / "run")
    rows = metrics_rows(tmp_path / "run")
    assert [row["step"] for row in rows] == [24, 48, 72, 96]
    assert [row["ent_coef"] for row in rows] == pytest.approx([0.04, 0.03, 0.02, 0.01])
    assert [row["clip_coef"] for row in rows] == pytest.approx([0.3, 0.2, 0.1, 0.0])
    assert (result["ent_coef"], result["clip_coef"]) == (0.01, 0.0)
    assert (result["disc_learning_rate"], result["gradient_penalty_coef"]) == (5e-4, 2.0)
    assert result["learning_rate"] == 3e-4


def test_the_result_is_a_mapping_that_knows_its_run(tmp_path: Path) -> None:
    result = train_gail(config(), run_dir=tmp_path / "run")
    assert isinstance(result, TrainResult)
    assert {"policy_loss", "discriminator_accuracy", "imitation_reward_mean", "absorbing_reward"} <= set(result)
    assert result["dataset_return_mean"] == 500.0, "what was demonstrated stands beside the evaluation"
    assert result["eval_return_mean"] == result["eval_length_mean"], "returns are the environment's"
    assert result["episode_return_mean"] == result["episode_length_mean"]
    assert result.checkpoint == tmp_path / "run" / "checkpoints" / "step_96"
    assert result.stop_reason == "completed"


@pytest.mark.parametrize("engine", ["auto", "autograd"])
def test_a_run_that_was_cut_goes_on_as_if_it_had_not_been(engine: str, tmp_path: Path) -> None:
    active = {"normalize_obs": True, "normalize_reward": True, "bc_updates": 3, "subsample": 7, "eval_interval": 40}
    settings = config(engine=engine, checkpoint_interval=24, **active)
    train_gail(settings, run_dir=tmp_path / "whole")
    resumed = cut_and_resume(settings, tmp_path / "cut", after=50)
    assert resumed["step"] == 96.0
    assert run_differences(tmp_path / "whole", tmp_path / "cut") == []


@pytest.mark.parametrize("after", [-1, 30])
def test_a_warm_start_is_made_once(after: int, tmp_path: Path) -> None:
    """Also by a run that is resumed from where nothing had been done yet."""
    settings = config(bc_updates=5, checkpoint_interval=24)
    whole = train_gail(settings, run_dir=tmp_path / "whole")
    resumed = cut_and_resume(settings, tmp_path / "cut", after=after)
    assert resumed["n_updates"] == whole["n_updates"] == 4 * 2 * 2, "which are PPO's alone"
    assert run_differences(tmp_path / "whole", tmp_path / "cut") == []


def test_a_run_goes_on_with_its_own_demonstrations_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = save_npz(cartpole_expert(), tmp_path / "data.npz")
    train_gail(config(dataset=str(data)), run_dir=tmp_path / "run")
    save_npz(cartpole_expert().episodes(np.arange(1, 5)), data)
    with (
        caplog.at_level(logging.INFO, logger="rl_training"),
        pytest.raises(UserError, match="dataset: is not the one that the run was trained on"),
    ):
        resume_training(tmp_path / "run", total_timesteps=120)
    assert not [line for line in caplog.messages if line.startswith("imitates")], "nothing is, of what was refused"
    save_npz(cartpole_expert(), data)
    assert resume_training(tmp_path / "run", total_timesteps=120)["step"] == 120.0


def test_only_who_learns_from_rewards_needs_them_in_a_dataset(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arrays = to_arrays(cartpole_expert())
    del arrays["rewards"]
    np.savez(tmp_path / "data.npz", **arrays)
    run = {"env_id": "CartPole-v1", "dataset": str(tmp_path / "data.npz")}
    for settings in (config(**run), {"algo": "bc", **run}):
        with caplog.at_level(logging.INFO, logger="rl_training"):
            build(load_config(settings)).close()
        assert "dataset: it has no rewards: they are taken as 0" in caplog.messages
        assert not any("mean return" in message for message in caplog.messages)
        caplog.clear()
    assert "dataset_return_mean" not in train_gail(config(**run), run_dir=tmp_path / "run")
    chosen = {"top_return_fraction": 0.5}
    for settings in (config(**run, **chosen), {"algo": "bc", **run, **chosen}, {"algo": "cql", **run}):
        with pytest.raises(UserError, match="rewards is missing"):
            build(load_config(settings))


def test_its_policy_is_judged_without_demonstrations(tmp_path: Path) -> None:
    data = save_npz(cartpole_expert(), tmp_path / "data.npz")
    result = train_gail(config(dataset=str(data), eval_episodes=3), run_dir=tmp_path / "run")
    data.unlink()
    judged = evaluate_checkpoint(tmp_path / "run")
    assert judged["eval_return_mean"] == result["eval_return_mean"]


def test_its_class_learns_what_its_trainer_does(tmp_path: Path) -> None:
    train_gail(config(), run_dir=tmp_path / "run")
    own = ("algo", "env_id", "total_timesteps")
    agent = GAIL("CartPole-v1", **{name: value for name, value in config().items() if name not in own})
    agent.learn(96)
    saved = agent.save(tmp_path / "agent")
    agent.close()
    assert differences(latest(tmp_path / "run").policy, latest(saved).policy) == []


def test_what_is_imitated_is_said_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    for absorbing, words in ((True, "an end counts as a state"), (False, "rewards above 0 favour long episodes")):
        with caplog.at_level(logging.INFO, logger="rl_training"):
            run = build(load_config(config(subsample=20, absorbing=absorbing)))
            run.start()
            run.advance()
            run.advance()
            run.close()
        said = [line for line in caplog.messages if "demonstrations" in line]
        assert len(said) == 1
        assert said[0].startswith("imitates 100 steps of 4 demonstrations, of which 0 terminate")
        assert words in said[0]
        caplog.clear()


def test_a_warm_start_says_how_likely_the_demonstrations_became(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="rl_training"):
        train_gail(config(bc_updates=40, learning_rate=1e-2), run_dir=tmp_path / "run")
    (said,) = [line for line in caplog.messages if "log-likelihood" in line]
    found = re.search(r"log-likelihood (-\d\.\d+) at the first of 40 steps, (-\d\.\d+) at the last", said)
    assert found is not None
    first, last = map(float, found.groups())
    assert first == pytest.approx(-np.log(2.0), abs=0.01), "of two choices that are equally likely"
    assert last > first + 0.1


def test_a_mistake_is_said_and_leaves_no_run_behind(tmp_path: Path) -> None:
    mistakes = {
        "algo='ppo': this trains gail": {"algo": "ppo", "env_id": "CartPole-v1"},
        "dataset: is missing; give a file": config(dataset=None),
        "'nowhere.npz': there is no such": config(dataset="nowhere.npz"),
        "demonstrations=6: the dataset has 5 episodes": config(demonstrations=6),
        "subsample=501: the longest demonstration has 500 steps": config(subsample=501),
        r"gamma=1\.0: with absorbing=True it must stay below 1": config(gamma=1.0),
        r"gamma=1\.0: with absorbing=True": config(gamma=0.9, gamma_schedule=1.0),
        r"observations have shape \(4,\), those of the environment \(3,\)": config(env_id="Pendulum-v1"),
        r"the action of row \d+ is": config(dataset=str(three_choices(tmp_path.parent))),
    }
    for words, settings in mistakes.items():
        with pytest.raises(UserError, match=words):
            train_gail(settings | {"output_dir": str(tmp_path)})
        assert list(tmp_path.iterdir()) == []


def three_choices(folder: Path) -> Path:
    """Demonstrations of an environment with one more choice."""
    expert = cartpole_expert()
    expert.action[:] = np.arange(len(expert)) % 3
    return save_npz(expert, folder / "three_choices.npz")


def test_a_discount_of_one_is_possible_without_absorbing_states(tmp_path: Path) -> None:
    assert train_gail(config(gamma=1.0, absorbing=False), run_dir=tmp_path / "run")["step"] == 96.0


def test_the_packaged_demonstrations_are_those_of_experts() -> None:
    cartpole, pendulum = cartpole_expert(), pendulum_expert()
    assert (cartpole.n_episodes, cartpole.returns.tolist()) == (5, [500.0] * 5)
    assert (pendulum.n_episodes, len(pendulum)) == (10, 2_000)
    assert pendulum.return_mean > -200.0
    assert cartpole.terminated.sum() == pendulum.terminated.sum() == 0, "time limits ended them"
