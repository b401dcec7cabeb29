"""Small world models, and spaces of every kind for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.models.rssm import Observed, WorldSize
from rl_training.models.rssm_heads import action_noise
from rl_training.models.world_model import DreamerNetwork
from rl_training.ops.observations import layout, row_bytes
from rl_training.types import ObsPart, SpaceInfo

# What `followed` gives: sequences `[STEPS, ROWS, ...]`.
STEPS, ROWS = 3, 4
SMALL = WorldSize(deter=24, hidden=8, classes=5, units=12, depth=2, stoch=3, blocks=4)


def space(shape: tuple[int, ...], dtype: str = "float32", *, actions: str = "discrete", **more: Any) -> SpaceInfo:
    if actions == "continuous":
        return SpaceInfo(shape, dtype, "continuous", (2,), 2, (), (), (-1.0, -1.0), (1.0, 1.0), **more)
    if actions == "multi_discrete":
        return SpaceInfo(shape, dtype, "multi_discrete", (2,), 5, (3, 2), (0, 0), **more)
    if actions == "multi_binary":
        return SpaceInfo(shape, dtype, "multi_binary", (2,), 4, (2, 2), (0, 0), **more)
    return SpaceInfo(shape, dtype, "discrete", (), 3, (3,), (0,), **more)


PARTS = layout(
    (
        ObsPart("numbers", (2, 3), "float32"),
        ObsPart("a.view", (32, 16, 1), "uint8"),
        ObsPart("more", (4,), "float32"),
        ObsPart("other view", (16, 16), "uint8"),
    )
)
SPACES = {
    "vector": space((2, 3)),
    "vector, continuous": space((5,), actions="continuous"),
    "vector, multi-discrete": space((5,), actions="multi_discrete"),
    "vector, multi-binary": space((5,), actions="multi_binary"),
    "masked": space((24,), "uint8", parts=(ObsPart("", (5,), "float32"),), mask_size=3),
    "masked, multi-discrete": space(
        (28,), "uint8", actions="multi_discrete", parts=(ObsPart("", (5,), "float32"),), mask_size=5
    ),
    "dict": space((row_bytes(PARTS, 0),), "uint8", parts=PARTS),
    "image": space((64, 64, 3), "uint8"),
    "image, channels first": space((3, 32, 48), "uint8", actions="continuous"),
    "image, stacked": space((4, 32, 16, 3), "uint8"),
    "image, stacked, one channel": space((4, 32, 32), "uint8"),
    "image, one channel": space((16, 80), "uint8"),
}


def observations(info: SpaceInfo, *lead: int, seed: int = 1) -> Any:
    """Random observations `[*lead, ...]` as networks see them."""
    rng = np.random.default_rng(seed)

    def made(part: ObsPart) -> torch.Tensor:
        shape = (*lead, *part.shape)
        if part.kind == "image":
            return torch.from_numpy(rng.integers(0, 256, size=shape).astype(np.uint8))
        return torch.from_numpy(rng.normal(scale=10.0, size=shape).astype(np.float32))

    if info.obs_kind == "dict":
        return {part.name: made(part) for part in info.parts}
    return made(ObsPart("", info.input_shape, info.parts[0].dtype if info.parts else info.obs_dtype))


def actions_for(info: SpaceInfo, *lead: int, seed: int = 2) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    if info.continuous:
        return torch.from_numpy(rng.normal(scale=2.0, size=(*lead, info.action_size)).astype(np.float32))
    drawn = np.stack([rng.integers(count, size=lead) for count in info.action_counts], axis=-1)
    return torch.from_numpy(drawn[..., 0] if info.action_kind == "discrete" else drawn)


def uniforms(*shape: int, seed: int = 3) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def network_for(info: SpaceInfo, size: WorldSize = SMALL, **settings: Any) -> DreamerNetwork:
    torch.manual_seed(0)
    return DreamerNetwork(info, size, **settings)


def followed(network: DreamerNetwork, *, steps: int = STEPS, seed: int = 0) -> Observed:
    world = network.world
    obs = observations(world.info, steps, ROWS, seed=seed)
    first = torch.zeros(steps, ROWS, dtype=torch.bool)
    first[0] = True
    actions = actions_for(world.info, steps, ROWS, seed=seed)
    return world.observe(world.rssm.initial(ROWS), actions, obs, first, uniforms(steps, ROWS, SMALL.stoch, seed=seed))


def noise_for(info: SpaceInfo, *lead: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(action_noise(info, lead, np.random.default_rng(seed)))


def loud(network: DreamerNetwork, loudness: float = 0.3) -> DreamerNetwork:
    """Heads that say nothing have no gradient to pass on."""
    for parameter in network.parameters():
        nn.init.normal_(parameter, 0.0, loudness)
    return network
