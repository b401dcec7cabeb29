"""Dreamer on worlds whose values are known on paper, and a linear world that its dreams must match."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

import dreams
from conformance import CountedSteps, OneState, in_mode, limited, trained, values
from rl_training.algorithms.parts.dreams import SequenceBatch
from rl_training.models.rssm import WorldSize
from rl_training.runtime.train import Run
from rl_training.types import SpaceInfo

GAMMA = 0.8
LEARNS: dict[str, Any] = {
    "gamma": GAMMA,
    "num_envs": 4,
    "total_timesteps": 500,
    "learning_starts": 100,
    "train_every": 4,
    "updates_per_step": 0.75,
    "batch_size": 8,
    "batch_length": 6,
    "imagination_horizon": 4,
    "imagination_starts": 32,
    "learning_rate": 3e-3,
    "learning_rate_schedule": "linear",
    "tau": 0.2,
    "deter": 64,
    "hidden": 32,
    "units": 32,
    "stoch": 8,
    "blocks": 4,
    "bins": 63,
}


def taught(make: Any, **settings: Any) -> Run:
    return trained("dreamer", make, **LEARNS | settings)


def test_a_time_limit_is_not_the_end_of_the_world() -> None:
    """Worth 1 / (1 - gamma) = 5 for ever; a truncation that counted as an end would make it 2.95 at most."""
    run = taught(in_mode(limited(OneState, 4), AutoresetMode.NEXT_STEP))
    assert values(run, np.ones((1, 1)))[0] == pytest.approx(5.0, rel=0.05)


def test_a_termination_is_the_end_of_the_world() -> None:
    """With five steps left and then nothing, the value is the finite sum, in every one of the five states."""
    run = taught(CountedSteps, total_timesteps=700)
    left = np.arange(5, 0, -1)
    found = values(run, np.eye(6)[:5], in_a_row=True)
    np.testing.assert_allclose(found, (1 - GAMMA**left) / (1 - GAMMA), rtol=0.05, atol=0.05)


TURN = 0.9 * np.array([[np.cos(0.5), -np.sin(0.5)], [np.sin(0.5), np.cos(0.5)]], np.float32)
PUSH = np.array([[0.8, 0.0], [0.0, -0.8]], np.float32)


def drift(rng: np.random.Generator, steps: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """A linear world: two numbers `[T, B, 2]` that turn and shrink, pushed by one of two actions `[T, B]` before."""
    action = rng.integers(0, 2, (steps, rows))
    states = [rng.normal(size=(rows, 2)).astype(np.float32)]
    for t in range(1, steps):
        states.append(states[-1] @ TURN.T + PUSH[action[t]])
    return np.stack(states), action


def test_imagined_rollouts_of_a_linear_world_match_it() -> None:
    """Four steps ahead of what was seen, with any actions: far nearer to the truth than its own mean is."""
    info = SpaceInfo((2,), "float32", "discrete", (), 2, (2,), (0,))
    model = dreams.engine_of(dreams.trained(info, fresh=True, size=WorldSize(64, 32, 8, 32, 2, stoch=8, blocks=4)))
    world, size, cfg = model.network.world, model.network.world.rssm.size, dreams.cfg_of(learning_rate=4e-3)
    rng, steps, rows = np.random.default_rng(0), 8, 32
    first, never = np.zeros((steps, rows), np.bool_), np.zeros((steps, rows), np.bool_)
    first[0] = True
    before = np.zeros((rows, size.deter), np.float32), np.full((rows, size.stoch), size.classes, np.uint8)
    for _ in range(300):
        obs, action = drift(rng, steps, rows)
        batch = SequenceBatch(obs, action, obs[..., 0], first, never, never, *before)
        draws = dreams.draws_for(model, seed=int(rng.integers(1 << 30)), steps=steps, rows=rows, horizon=1, starts=[0])
        model.differentiate(batch, draws, cfg)
        model.descend(cfg)
    obs, action = drift(rng, steps, rows)
    shown, done = torch.from_numpy(obs), torch.from_numpy(action)
    noise = torch.from_numpy(rng.random((steps, rows, size.stoch), dtype=np.float32))
    with torch.no_grad():
        state = world.observe(world.rssm.initial(rows), done[:4], shown[:4], torch.from_numpy(first[:4]), noise).last
        imagined, rewards = [], []
        for t in range(4, steps):
            state = world.imagine(state, done[t], noise[t])
            imagined.append(world.decoder.observations(world.decoder(state))[""].numpy())
            rewards.append(world.reward.mean(world.reward(state.features)).numpy())
    truth = obs[4:]
    assert np.square(np.stack(imagined) - truth).mean() < 0.15 * truth.var()
    assert np.square(np.stack(rewards) - truth[..., 0]).mean() < 0.15 * truth[..., 0].var()
