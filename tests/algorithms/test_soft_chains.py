"""Chains of the soft actor-critics: a soft return of n steps counts the entropy of every state that it passes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from conformance import CONTINUOUS, ENGINES, AnyNumber, OneState, agent, built, playable, trained, values
from memory_model import KINDS, World
from off_policy_reference import SoftReference, bootstrapped, squashed_sample, tensor, transitions
from rl_training.data.batches import Between, chains_of

GAMMA, ENT_COEF = 0.8, 1.0
EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)


# The chains


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("n_step", [2, 4])
def test_windows_as_chains_are_the_chains_of_the_memory(kind: str, n_step: int) -> None:
    """The same draw of both, and the states inside of each chain: those that single transitions show on the way."""
    world = World(kind, 2, 9)
    for row in (
        ["go", "go"],
        ["go", "terminated"],
        ["truncated", "go"],
        ["go", "go"],
        ["go", "go"],
        ["go", "terminated"],
    ):
        world.play(row)
    memory, names = world.memory, ("obs", "action", "reward", "next_obs", "terminated", "truncated", "discount")
    draw = {"n_step": n_step, "gamma": 0.9}
    drawn = memory.transitions(60, np.random.default_rng(0), **draw)  # type: ignore[arg-type]
    expected = {name: np.array(getattr(drawn, name)) for name in names}
    windows = memory.windows(60, np.random.default_rng(0), length=n_step, across_episodes=False)
    found = chains_of(windows, 0.9)
    for name, column in expected.items():
        np.testing.assert_allclose(getattr(found, name), column, rtol=1e-6, err_msg=name)
    assert found.between is not None
    length = np.rint(np.log(expected["discount"]) / np.log(0.9)).astype(int)
    assert set(length) == set(range(1, n_step + 1))
    for k in range(1, n_step):
        inside = k < length
        np.testing.assert_allclose(found.between.discount[k - 1], np.where(inside, 0.9**k, 0.0), rtol=1e-6)
        np.testing.assert_array_equal(found.between.obs[k - 1][inside], windows.next_obs[k - 1][inside])


# One update


def with_inside(batch: Any, states: int = 2) -> Any:
    """The transitions as chains that pass these states; some end earlier."""
    rng = np.random.default_rng(7)
    obs = rng.standard_normal((states, *batch.obs.shape)).astype(np.float32)
    powers = 0.9 ** np.arange(1, states + 1)[:, None] * (rng.random((states, len(batch))) < 0.7)
    batch.between = Between(obs, powers.astype(np.float32))
    return batch


def soft_goal(reference: SoftReference, step: Any, action: torch.Tensor, entropy_cost: torch.Tensor) -> torch.Tensor:
    """SAC's target, and the entropy of the states inside of the chains."""
    count, rows, _ = step.between.obs.shape
    noise = tensor(reference.rng.standard_normal((count * rows, 2), dtype=np.float32))
    inside = tensor(step.between.obs).reshape(count * rows, -1)
    log_prob = squashed_sample(reference.actor(inside), noise)[1].reshape(count, rows)
    ent_coef = reference.log_ent_coef.exp().item()
    least = reference.slow_critic(tensor(step.next_obs), action).squeeze(-1).amin(dim=0)
    bonus = (tensor(step.between.discount) * -ent_coef * log_prob).sum(dim=0)
    return bootstrapped(step, least - entropy_cost) + bonus


@EACH_ENGINE
@pytest.mark.parametrize("ent_coef", [0.4, "auto"])
def test_an_update_of_chains_equals_a_plain_reference_in_torch(engine: str, ent_coef: Any) -> None:
    learner = agent("sac", CONTINUOUS, engine=engine, ent_coef=ent_coef, learning_rate=1e-2, batch_size=16, tau=0.3)
    reference = SoftReference(learner, soft_goal, lambda found: found.squeeze(-1).amin(dim=0))
    for seed in range(4):
        batch = with_inside(transitions(CONTINUOUS, 16, seed))
        expected, metrics = reference.update(batch), learner.update(batch)
        assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=2e-3, abs=1e-4)


def test_states_inside_of_chains_are_scaled_like_all_others() -> None:
    """Minibatches get their own columns of them."""
    learner = agent("sac", CONTINUOUS, normalize_obs=True, batch_size=4)
    learner.observer.fit(10.0 + transitions(CONTINUOUS, 50, 99).obs)
    batch = with_inside(transitions(CONTINUOUS, 10))
    parts = [mini.between for mini in learner._minibatches(batch)]
    assert [part.discount.shape[1] for part in parts] == [4, 4, 2]
    found = np.concatenate([part.obs for part in parts], axis=1)
    np.testing.assert_array_equal(found, [learner.observer.scaled(rows) for rows in batch.between.obs])
    np.testing.assert_array_equal(np.concatenate([part.discount for part in parts], axis=1), batch.between.discount)


# What is learned


def soft_value() -> float:
    """Of `OneState`, with a policy that is nearly uniform on [-1, 1]: its entropy is log 2."""
    return (1.0 + GAMMA * ENT_COEF * math.log(2.0)) / (1.0 - GAMMA)


@pytest.mark.parametrize("algo", ["sac", "redq", "tqc"])
@pytest.mark.parametrize("n_step", [1, 3, 5])
def test_the_length_of_chains_does_not_change_the_soft_value(algo: str, n_step: int) -> None:
    """Without the entropy inside of chains, those of 5 steps would end near 5.3, and not near 7.8."""
    run = trained(
        algo,
        playable(algo, OneState),
        n_step=n_step,
        gamma=GAMMA,
        ent_coef=ENT_COEF,
        tau=0.1,
        learning_rate=5e-3,
        batch_size=64,
        hidden_sizes=[16],
        num_envs=2,
        time_limit=30,
        total_timesteps=600,
        learning_starts=40,
        train_every=20,
        updates_per_step=1.0,
    )
    assert soft_value() == pytest.approx(7.77, abs=0.01)
    assert values(run, [[1.0]])[0] == pytest.approx(soft_value(), rel=0.06)


@pytest.mark.parametrize("backup", [False, True])
def test_only_targets_with_entropy_ask_for_the_states_inside(backup: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """CQL's targets have no entropy unless `backup_entropy` is set: it draws plain chains then."""
    run = built("cql", lambda: AnyNumber(OneState()), n_step=3, backup_entropy=backup, batch_size=8, time_limit=9)
    memory, asked = run.loop.data.memory, []  # type: ignore[attr-defined]
    for name in ("transitions", "windows"):
        draw = getattr(memory, name)
        monkeypatch.setattr(memory, name, lambda *a, n=name, d=draw, **k: (asked.append(n), d(*a, **k))[1])
    run.advance()
    run.close()
    assert asked == ["windows" if backup else "transitions"]
