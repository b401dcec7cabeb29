"""The works of algorithms with a model of the environment: planning in it, and dreaming.

This file loads no library: each side does so in its own process.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from dreamers import dreamer_acting, dreamer_updates
from libraries import OURS, Sides, Work
from scalezeros import scalezero_search, scalezero_updates
from searches import Task, mctx_search, our_search
from trainers import SIMULATIONS, UPDATES, our_updates, ours

GUMBEL_MUZERO = "rl_training.algorithms.gumbel_muzero:SPEC"


def search(task: Task) -> Sides:
    """Searches of the same roots in the same model."""
    return {OURS: partial(our_search, task=task), "mctx": partial(mctx_search, task=task)}


def planning(**settings: Any) -> dict[str, Any]:
    """The common settings of the works that train a model for planning."""
    common: dict[str, Any] = {
        "algo": GUMBEL_MUZERO,
        "env_id": "CartPole-v1",
        "num_envs": 8,
        "num_simulations": 16,
        "hidden_sizes": [64],
        "latent_size": 64,
        "unroll_steps": 5,
        "batch_size": 128,
        "learning_starts": 1_000,
        "train_every": 8,
        "updates_per_step": 0.25,
    }
    return common | settings


def dreams(size: str, *peers: str, starts: int | None = None) -> Sides:
    """Updates of Dreamer on the same rows, by us and by some peers."""
    return {side: partial(dreamer_updates, side, size, starts=starts) for side in (OURS, *peers)}


def scalezero(build: Any, **settings: Any) -> Sides:
    """Ours, compiled and by torch alone."""
    return {side: partial(build, side, **settings) for side in (OURS, "autograd")}


ROWS = "16 windows of 64 rows of CartPole's shape, 15 imagined steps"
MODEL = "latents and hidden layers of 64, 21 bins, 2 actions"
TRANSFORMER = "a transformer of 2 layers, 64 wide, with 4 experts of 64"

MODEL_WORKS = {
    "gumbel_search": Work(
        f"Gumbel MuZero's search: 8 roots x 25 simulations, {MODEL}",
        80_000,
        search(Task("gumbel", roots=8, simulations=25)),
        unit=SIMULATIONS,
    ),
    "gumbel_search_large": Work(
        f"Gumbel MuZero's search: 32 roots x 50 simulations, {MODEL}",
        160_000,
        search(Task("gumbel", roots=32, simulations=50)),
        unit=SIMULATIONS,
    ),
    "puct_search": Work(
        f"MuZero's search: 8 roots x 25 simulations, {MODEL}",
        80_000,
        search(Task("puct", roots=8, simulations=25)),
        unit=SIMULATIONS,
    ),
    "muzero_update": Work(
        "Updates of MuZero on CartPole-v1: 5 steps of the model from each of 128 rows, 64 wide",
        200,
        {OURS: partial(our_updates, **planning()), "autograd": partial(our_updates, **planning(engine="autograd"))},
        unit=UPDATES,
    ),
    "gumbel_cartpole": Work(
        "Gumbel MuZero on CartPole-v1: 8 environments, 16 simulations, an update of 128 rows every 4 steps, 64 wide",
        1_600,
        {OURS: partial(ours, **planning())},
    ),
    "dreamer_update": Work(
        f"Updates of Dreamer of the size xxs: {ROWS}, dreams from all of them",
        4,
        dreams("xxs", "sheeprl", "sheeprl_2023", "autograd"),
        unit=UPDATES,
    ),
    "dreamer_update_1m": Work(
        f"Updates of Dreamer of the size 1m: {ROWS}, dreams from all of them",
        4,
        dreams("1m", "sheeprl", "sheeprl_2023", "autograd"),
        unit=UPDATES,
    ),
    "dreamer_update_128": Work(
        f"Updates of Dreamer of the size xxs: {ROWS}, dreams from 128 of them",
        10,
        dreams("xxs", "autograd", starts=128),
        unit=UPDATES,
    ),
    "dreamer_acting": Work(
        "Dreamer of the size xxs acts in 8 environments of CartPole's shape; nothing is learned",
        4_000,
        {side: partial(dreamer_acting, side, "xxs", num_envs=8) for side in (OURS, "autograd")},
    ),
    "scalezero_search": Work(
        f"ScaleZero's search: 8 roots x 25 simulations, {TRANSFORMER}",
        2_000,
        scalezero(scalezero_search, roots=8, simulations=25),
        unit=SIMULATIONS,
    ),
    "scalezero_update": Work(
        f"Updates of ScaleZero on CartPole-v1: 32 windows of 5 steps, {TRANSFORMER}",
        60,
        scalezero(scalezero_updates),
        unit=UPDATES,
    ),
}
