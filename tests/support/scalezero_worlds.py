"""Small world models of several tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.scalezero_settings import ScaleZeroModelConfig
from rl_training.models.scalezero import ScaleZeroNetwork
from rl_training.models.scalezero_search import latents_before
from rl_training.types import Array, SpaceInfo


def vector_task(size: int, actions: int) -> SpaceInfo:
    return SpaceInfo((size,), "float32", "discrete", (), actions, (actions,), (0,))


TASKS = {"small": vector_task(3, 2), "large": vector_task(5, 4)}
SMALL: dict[str, Any] = {
    "width": 16,
    "latent_group": 4,
    "expert_size": 12,
    "experts": 3,
    "hidden_sizes": (8,),
    "context_length": 3,
    "value_bins": 11,
    "reward_bins": 7,
    "value_limit": 20.0,
    "reward_limit": 5.0,
    "adapter_rank": 2,
}


def world(tasks: Mapping[str, SpaceInfo] = TASKS, seed: int = 0, stages: int = 1, **settings: Any) -> ScaleZeroNetwork:
    """A world model whose weights are all different from 0, with room for so many stages."""
    torch.manual_seed(seed)
    network = ScaleZeroNetwork(tasks, ScaleZeroModelConfig(**(SMALL | settings)).shape(stages))
    stir(network)
    return network


def stir(network: torch.nn.Module, scale: float = 0.3) -> None:
    """Add noise to all weights that are trained."""
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.add_(scale * torch.randn_like(parameter))


def before_roots(network: ScaleZeroNetwork, task: str, count: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """Latents `[B, C, D]`, actions `[B, C - 1]` and how many steps of each row are not there."""
    rng, steps = np.random.default_rng(seed), network.shape.transformer.context
    info = network.tasks[task]
    obs = torch.from_numpy(rng.standard_normal((count * steps, *info.obs_shape), dtype=np.float32))
    latents = latents_before(network, task, obs, count)
    return latents, rng.integers(0, info.action_size, (count, steps - 1)), rng.integers(0, steps, count)
