"""Searches and updates of ScaleZero: compiled, and by torch alone.

Libraries are imported inside of the functions, so that a process loads one side only.
"""

from __future__ import annotations

from typing import Any

from trainers import Advance, repeating, started


def engine_of(side: str) -> str:
    """The setting of a side: ours, or `autograd`."""
    return "auto" if side == "ours" else "autograd"


def scalezero_run(side: str, **settings: Any) -> Any:
    """A run on CartPole with a small transformer."""
    common: dict[str, Any] = {
        "algo": "scalezero",
        "env_id": "CartPole-v1",
        "num_envs": 8,
        "engine": engine_of(side),
        "learning_starts": 500,
        "train_every": 8,
        "updates_per_step": 0.25,
    }
    return started(**(common | settings))


def scalezero_search(side: str, *, unit: str, threads: int, roots: int, simulations: int) -> Advance:
    """Searches from random states: observations are encoded, what came before is read, and the tree grows.

    All weights are stirred: at first, a model says 0 of all rewards and values.
    """
    import numpy as np
    import torch

    from rl_training.algorithms.parts.world_policy import Moments

    policy = scalezero_run(side, num_envs=roots, num_simulations=simulations, learning_starts=0).algorithm.policy
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in policy.network.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    rng, context = np.random.default_rng(0), policy.network.shape.transformer.context
    obs = rng.standard_normal((roots, context, 4)).astype(np.float32)
    moments = Moments(obs, rng.integers(0, 2, (roots, context - 1)), np.zeros(roots, np.int64))

    def advance(count: int) -> int:
        turns = -(-count // (roots * simulations))
        for _ in range(turns):
            policy.planner.search(moments, rng)
        return turns * roots * simulations

    return advance


def scalezero_updates(side: str, *, unit: str, threads: int) -> Advance:
    """Updates alone, from what was gathered before the first of them."""
    import torch

    run = scalezero_run(side)
    torch.set_num_threads(threads)
    return repeating(lambda: run.algorithm.learn_from(run.loop.memories, 1))
