"""The off-policy loop: how many updates there are and when, what is in the replay, and what survives a round trip."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from conformance import (
    CONTINUOUS,
    MODES,
    OFF_POLICY,
    ContinuousBandit,
    Walk,
    agent,
    built,
    in_mode,
    known_settings,
    playable,
    trained,
)
from off_policy_reference import transitions, weights_of
from rl_training.experiment.registry import REGISTRY
from rl_training.runtime.checkpoints.checkpoint import read_checkpoint, write_checkpoint
from rl_training.runtime.train import Run, build
from rl_training.runtime.train import run as run_training
from rl_training.testing import TinyEnv, checkpoint_differences
from rl_training.types import UserError
from run_helpers import training_differences

EACH = pytest.mark.parametrize("algo", OFF_POLICY)
EACH_CONTINUOUS = pytest.mark.parametrize("algo", [algo for algo in OFF_POLICY if algo != "dqn"])
EACH_MODE = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)


def stored(run: Run) -> Any:
    """All transitions of the replay, in the order of its slots."""
    replay: Any = run.loop.memory.replay  # type: ignore[attr-defined]
    return replay.gather(np.arange(len(replay)), gamma=0.9)


# How many updates


def updates_of(algo: str, **settings: Any) -> list[int]:
    """The number of updates with 1 and with 8 environments after 160 steps, counted by the optimiser too."""
    counts = []
    for num_envs in (1, 8):
        run = trained(algo, playable(algo, Walk), num_envs=num_envs, total_timesteps=160, batch_size=4, **settings)
        assert run.steps == 160
        learner: Any = run.algorithm
        optimiser = learner.learners["network" if algo == "dqn" else "critic"].optimizer
        assert run.metrics["n_updates"] == learner.n_updates == float(optimiser.count)
        counts.append(learner.n_updates)
    return counts


@pytest.mark.parametrize("updates_per_step", [0.25, 1.0, 1.5])
@pytest.mark.parametrize("learning_starts", [0, 10, 33])
def test_the_number_of_updates_does_not_depend_on_how_many_environments_share_the_steps(
    updates_per_step: float, learning_starts: int
) -> None:
    expected = int((160 - learning_starts) * updates_per_step)
    settings = {"updates_per_step": updates_per_step, "learning_starts": learning_starts, "train_every": 1}
    assert updates_of("dqn", **settings) == [expected, expected]


@EACH
def test_every_algorithm_makes_as_many_updates_with_8_environments_as_with_1(algo: str) -> None:
    assert updates_of(algo, updates_per_step=0.75, learning_starts=20, train_every=4) == [105, 105]


def test_updates_are_due_by_real_steps_where_resets_take_rows() -> None:
    """In this mode some rows are resets, which the clock does not count: nor do they bring updates."""
    factory = in_mode(Walk, AutoresetMode.NEXT_STEP, numbered=True)
    run = built("dqn", factory, num_envs=3, updates_per_step=0.5, learning_starts=7, train_every=5, batch_size=4)
    for _ in range(20):
        run.advance()
        assert run.metrics["n_updates"] == max(0, run.steps - 7) // 2
    assert run.steps == sum(env.unwrapped.steps_taken for env in run.source.collector.envs.envs)  # type: ignore[attr-defined]
    run.close()


@EACH
def test_phases_of_learning_are_so_many_steps_apart(algo: str) -> None:
    settings = {"train_every": 6, "updates_per_step": 0.5, "learning_starts": 12, "num_envs": 1, "batch_size": 4}
    run = built(algo, playable(algo, Walk), **settings)
    seen = []
    for _ in range(5):
        run.advance()
        seen.append((run.steps, run.metrics["n_updates"], run.metrics["replay_size"]))
    run.close()
    assert seen == [(6, 0, 6), (12, 0, 12), (18, 3, 18), (24, 6, 24), (30, 9, 30)]


def test_many_updates_of_one_phase_are_all_made() -> None:
    """More than are drawn together; some of them with the largest part of a batch."""
    run = built("dqn", Walk, train_every=10, updates_per_step=7.0, learning_starts=0, num_envs=1, batch_size=4)
    run.advance()
    assert run.algorithm.n_updates == 70  # type: ignore[attr-defined]
    run.close()


# Before learning starts


@EACH
def test_nothing_is_learned_and_actions_are_random_before_learning_starts(
    algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    run = built(algo, playable(algo, Walk), learning_starts=32, train_every=8, num_envs=2)
    policy = run.algorithm.policy
    act = policy.act
    monkeypatch.setattr(policy, "act", lambda *given, **named: (asked.append(run.steps), act(*given, **named))[1])
    before = weights_of(run.algorithm)
    for _ in range(4):
        run.advance()
    assert run.steps == 32
    assert asked == [], "the policy was asked"
    assert run.metrics["n_updates"] == 0
    assert not {"loss", "critic_loss"} & run.metrics.keys()
    for name, weights in weights_of(run.algorithm).items():
        assert torch.equal(weights, before[name])
    run.advance()
    assert asked == [32, 34, 36, 38]
    assert run.metrics["n_updates"] == 4
    run.close()


@EACH
def test_the_first_actions_are_uniform(algo: str) -> None:
    run = built(algo, playable(algo, Walk), learning_starts=1000, train_every=1000, num_envs=1)
    run.advance()
    action = stored(run).action
    run.close()
    if action.ndim == 1:
        np.testing.assert_allclose(np.bincount(action) / 1000, [1 / 3] * 3, atol=0.05)
    else:
        shares, _ = np.histogram(action, bins=4, range=(-1.0, 1.0))
        np.testing.assert_allclose(shares / 1000, [0.25] * 4, atol=0.05)


def test_random_actions_keep_to_the_mask() -> None:
    """The environment objects to a forbidden action."""
    run = built("dqn", lambda: TinyEnv(masked=True), learning_starts=300, train_every=300, epsilon=1.0)
    run.advance()
    run.advance()
    assert run.steps == 600
    run.close()


# What is in the replay


@EACH_MODE
@pytest.mark.parametrize("num_envs", [1, 3])
def test_the_replay_holds_true_successors_in_every_mode(mode: AutoresetMode, num_envs: int) -> None:
    """Walks show environment, episode, time and the latest action: each pair can be checked by itself."""
    run = built("dqn", in_mode(Walk, mode, numbered=True), num_envs=num_envs, epsilon=1.0, train_every=50)
    run.advance()
    run.advance()
    batch = stored(run)
    assert len(batch.reward) == run.steps == run.metrics["replay_size"] >= 100
    number, episode, time, _ = batch.obs.T
    np.testing.assert_array_equal(batch.next_obs, np.stack([number, episode, time + 1, batch.action], axis=1))
    np.testing.assert_allclose(batch.reward, 10.0 * episode + time + 1 + 0.1 * batch.action, rtol=1e-6)
    over = time + 1 == 1 + (episode + number) % 4
    np.testing.assert_array_equal(batch.terminated, over & (episode % 2 == 0))
    np.testing.assert_array_equal(batch.truncated, over & (episode % 2 == 1))
    assert batch.truncated.any()
    # No step is missing and none is there twice.
    assert len({tuple(row) for row in batch.obs[:, :3].tolist()}) == run.steps
    run.close()


@EACH_MODE
def test_chains_of_a_run_end_where_its_episodes_do(mode: AutoresetMode) -> None:
    run = built("dqn", in_mode(Walk, mode, numbered=True), num_envs=3, epsilon=1.0, train_every=50)
    run.advance()
    plain = stored(run)
    steps = {
        tuple(plain.obs[i, :3].tolist()): (float(plain.reward[i]), bool(plain.terminated[i] | plain.truncated[i]))
        for i in range(len(plain.reward))
    }
    replay: Any = run.loop.memory.replay  # type: ignore[attr-defined]
    first = plain.obs.copy()
    chained = replay.gather(np.arange(len(replay)), n_step=3, gamma=0.9)
    for i, (number, episode, time, _) in enumerate(first.tolist()):
        total, length, over = 0.0, 0, False
        while length < 3 and not over and (number, episode, time + length) in steps:
            reward, over = steps[number, episode, time + length]
            total, length = total + 0.9**length * reward, length + 1
        assert chained.reward[i] == pytest.approx(total, rel=1e-5)
        assert chained.discount[i] == pytest.approx(0.9**length)
        assert chained.next_obs[i, :3].tolist() == [number, episode, time + length]
        assert (chained.terminated[i] | chained.truncated[i]) == over
    run.close()


@EACH_CONTINUOUS
def test_the_environment_gets_scaled_actions_and_the_replay_keeps_them_as_the_policy_gave_them(algo: str) -> None:
    """Bounds of -2 and 6 lie around 2: an action of 0 has to arrive as 2, and one of 1 as 6."""
    run = built(algo, ContinuousBandit, learning_starts=40, train_every=10, num_envs=2)
    for _ in range(12):
        run.advance()
    action = stored(run).action
    envs = run.source.collector.envs.envs  # type: ignore[attr-defined]
    received = np.stack([env.unwrapped.received for env in envs], axis=1).reshape(-1, 1)
    run.close()
    assert len(action) == 120
    assert np.abs(action).max() <= 1.0
    assert action.min() < -0.8
    assert action.max() > 0.8
    np.testing.assert_allclose(received, -2.0 + 4.0 * (action + 1.0), rtol=1e-5, atol=1e-5)


@EACH_MODE
@EACH
def test_the_scale_of_observations_is_that_of_the_real_steps(algo: str, mode: AutoresetMode) -> None:
    """Rows that a reset produced show the last observation of an episode once more; they do not count."""
    factory = in_mode(lambda number: playable(algo, lambda: Walk(number))(), mode, numbered=True)
    run = built(algo, factory, num_envs=3, normalize_obs=True, train_every=50, learning_starts=1_000)
    run.advance()
    run.advance()
    moments, replay = run.algorithm.observer.normalizer.moments, run.loop.memory.replay  # type: ignore[attr-defined]
    obs = replay.gather(np.concatenate(replay.histories()), gamma=0.9).obs
    run.close()
    assert moments.count == len(obs) == run.steps
    np.testing.assert_allclose(moments.mean, obs.mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(moments.var, obs.var(axis=0), rtol=1e-4, atol=1e-6)


def test_a_buffer_smaller_than_a_minibatch_is_refused() -> None:
    message = "buffer_size=31: must be at least batch_size=32, or a minibatch would hold the same transitions several"
    with pytest.raises(UserError, match=message):
        built("sac", playable("sac", Walk), buffer_size=31, batch_size=32)
    with pytest.raises(UserError, match=message):
        built("iql", playable("iql", Walk), buffer_size=31, batch_size=32, online=True)
    built("sac", playable("sac", Walk), buffer_size=32, batch_size=32).close()
    built("iql", playable("iql", Walk), buffer_size=31, batch_size=32).close()  # it has no buffer


def test_a_full_replay_forgets_the_oldest() -> None:
    run = built("dqn", Walk, buffer_size=20, batch_size=20, num_envs=2, train_every=50)
    run.advance()
    assert run.metrics["replay_size"] == 20
    newest = stored(run).obs[:, 1].min()
    assert newest > 0, "the first episodes are gone"
    run.close()


def test_no_chain_goes_over_a_place_where_a_resume_lost_an_episode(tmp_path: Path) -> None:
    """Walks count their episodes themselves, so that they cannot be brought back: new ones begin at episode 0."""
    straight = built("dqn", Walk, num_envs=2, train_every=8)
    straight.advance()
    assert not (stored(straight).truncated | stored(straight).terminated)[-2:].any(), "in the middle of an episode"
    saved = read_checkpoint(write_checkpoint(tmp_path / "step", straight.snapshot()))
    straight.close()
    resumed = build(straight.config, env_factory=Walk)
    resumed.load(saved)
    resumed.advance()
    replay: Any = resumed.loop.memory.replay  # type: ignore[attr-defined]
    first = replay.gather(np.arange(len(replay)), gamma=0.9).obs.copy()
    chained = replay.gather(np.arange(len(replay)), n_step=4, gamma=0.9)
    length = np.log(chained.discount) / np.log(0.9)
    np.testing.assert_array_equal(chained.next_obs[:, 1], first[:, 1])
    np.testing.assert_allclose(chained.next_obs[:, 2], first[:, 2] + length, atol=1e-3)
    resumed.close()


# Evaluation


def tiny_env(algo: str) -> Any:
    """A factory of environments that a checkpoint brings back to the bit."""
    return lambda: TinyEnv(REGISTRY[algo].capabilities.actions[0])


@EACH
def test_evaluations_leave_training_alone(algo: str) -> None:
    def trained_to_the_end(**settings: Any) -> Any:
        run = built(algo, tiny_env(algo), total_timesteps=48, batch_size=4, **settings)
        run_training(run)
        end = run.snapshot()
        run.close()
        return end

    quiet = trained_to_the_end()
    for judged in ({"eval_interval": 8, "eval_episodes": 2}, {"eval_interval": 30, "eval_episodes": 5}):
        assert training_differences(quiet, trained_to_the_end(**judged)) == []
    assert training_differences(quiet, trained_to_the_end(seed=1))


# Round trips


@EACH
def test_a_run_goes_on_from_its_checkpoint_with_counters_optimisers_and_replay(algo: str, tmp_path: Path) -> None:
    """Cut after an odd number of updates, so that a delayed actor is due in the middle of what follows."""
    settings = {"learning_starts": 4, "train_every": 2, "batch_size": 4, "updates_per_step": 1.5, "policy_delay": 2}
    settings |= {"target_update_interval": 4, "num_envs": 2, "n_step": 2}
    straight = built(algo, tiny_env(algo), **known_settings(algo, settings))
    while straight.steps < 26:
        straight.advance()
    learner: Any = straight.algorithm
    assert learner.n_updates == 33
    saved = read_checkpoint(write_checkpoint(tmp_path / "step", straight.snapshot()))
    resumed = build(straight.config, env_factory=tiny_env(algo))
    resumed.load(saved)
    again: Any = resumed.algorithm
    assert again.n_updates == 33
    for name, one in learner.learners.items():
        other = again.learners[name]
        assert torch.equal(one.optimizer.count, other.optimizer.count)
        assert torch.equal(one.optimizer.moment, other.optimizer.moment)
        assert one.optimizer.moment.abs().max() > 0
    for run in (straight, resumed):
        for _ in range(5):
            run.advance()
    assert checkpoint_differences(straight.snapshot(), resumed.snapshot()) == []
    straight.close()
    resumed.close()


def test_metrics_of_the_latest_updates_are_there_in_steps_that_make_none(tmp_path: Path) -> None:
    """After a resume too; an early stopping that watches a loss would miss it otherwise."""
    settings = {"updates_per_step": 0.1, "learning_starts": 0, "train_every": 2, "num_envs": 2, "batch_size": 4}
    straight = built("dqn", tiny_env("dqn"), **settings)
    while straight.metrics.get("n_updates") != 1.0:
        straight.advance()
        assert ("loss" in straight.metrics) == (straight.metrics["n_updates"] > 0)
    loss = straight.metrics["loss"]
    saved = read_checkpoint(write_checkpoint(tmp_path / "step", straight.snapshot()))
    resumed = build(straight.config, env_factory=tiny_env("dqn"))
    resumed.load(saved)
    for run in (straight, resumed):
        run.advance()
        run.close()
        assert (run.metrics["n_updates"], run.metrics["loss"]) == (1.0, loss)


@pytest.mark.parametrize("algo", ["sac", "redq", "tqc"])
def test_a_learned_coefficient_and_its_optimiser_survive_a_round_trip(algo: str) -> None:
    def fresh() -> Any:
        return agent(algo, info, batch_size=4, learning_rate=0.05, **known_settings(algo, {"policy_delay": 1}))

    info = CONTINUOUS
    straight = fresh()
    for seed in range(3):
        straight.update(transitions(info, 4, seed))
    resumed = fresh()
    resumed.load_state_dict(copy.deepcopy(straight.state_dict()))
    assert straight.current("ent_coef") == resumed.current("ent_coef") != 1.0
    assert torch.equal(resumed.learners["ent_coef"].optimizer.square, straight.learners["ent_coef"].optimizer.square)
    resumed.batch_rng.bit_generator.state = straight.batch_rng.bit_generator.state
    for learner in (straight, resumed):
        learner.update(transitions(info, 4, 9))
    assert straight.current("ent_coef") == resumed.current("ent_coef")
    # Without its moments the next step would have had another length.
    careless = fresh()
    state = copy.deepcopy(straight.state_dict())
    state["training"]["learners"]["ent_coef"]["optimizer"] = fresh().training_state()["learners"]["ent_coef"][
        "optimizer"
    ]
    careless.load_state_dict(state)
    for learner in (straight, careless):
        learner.batch_rng.bit_generator.state = resumed.batch_rng.bit_generator.state
        learner.update(transitions(info, 4, 10))
    assert straight.current("ent_coef") != careless.current("ent_coef")


@pytest.mark.parametrize("algo", ["td3", "redq"])
def test_a_delay_goes_on_where_it_was(algo: str) -> None:
    info = CONTINUOUS
    straight = agent(algo, info, batch_size=4, policy_delay=3)
    for seed in range(2):
        straight.update(transitions(info, 4, seed))
    resumed = agent(algo, info, batch_size=4, policy_delay=3)
    resumed.load_state_dict(copy.deepcopy(straight.state_dict()))
    before = weights_of(resumed)["actor"]
    resumed.update(transitions(info, 4, 2))
    assert not torch.equal(weights_of(resumed)["actor"], before), "the third update is the actor's"
