"""Dreamer's networks with an optimiser, and made-up batches for them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms.dreamer import dreamer_loss
from rl_training.algorithms.parts.dreams import AutogradDreamer, Draws, SequenceBatch, TrainedDreamer
from rl_training.algorithms.parts.dreams_engine import EngineDreamer
from rl_training.algorithms.parts.observer import Observer
from rl_training.algorithms.world import DreamerConfig
from rl_training.models.flat import FlatWeights
from rl_training.models.rssm_heads import action_noise
from rl_training.ops.observations import pack
from rl_training.ops.symexp import SymexpPoints
from rl_training.types import Array, SpaceInfo
from worlds import SPACES, actions_for, loud, network_for, observations

STEPS, ROWS, HORIZON = 4, 3, 5
EVERY_SPACE = pytest.mark.parametrize(
    "name", ["vector", "vector, continuous", "vector, multi-discrete", "masked", "masked, multi-discrete", "dict"]
)


def cfg_of(**settings: Any) -> DreamerConfig:
    return DreamerConfig(**{"learning_rate": 1e-3, "warmup_updates": 1} | settings)


def trained(info: SpaceInfo, *, fresh: bool = False, loudness: float = 0.3, **settings: Any) -> AutogradDreamer:
    """Networks that say something, unless they are `fresh`; the slow value says something else."""
    # The means of loud heads over the usual points would be millions.
    network = network_for(info, **({} if fresh else {"support": SymexpPoints(31, 3.0)}) | settings)
    if not fresh:
        torch.manual_seed(1)
        loud(network, loudness)
    observer = Observer(info, torch.device("cpu"), normalize=False, clip=10.0)
    model = AutogradDreamer(network, FlatWeights(network.parameters()), observer, cfg_of(), dreamer_loss)
    if not fresh:
        model.slow.weights.data.mul_(0.5)
    return model


def engine_of(model: AutogradDreamer) -> EngineDreamer:
    """The same networks in the other form."""
    network = copy.deepcopy(model.network)
    observer = Observer(network.world.info, torch.device("cpu"), normalize=False, clip=10.0)
    engine = EngineDreamer(network, FlatWeights(network.parameters()), observer, cfg_of(), dreamer_loss)
    engine.slow.weights.data.copy_(model.slow.weights.data)
    return engine


def rows_of(info: SpaceInfo, *lead: int, seed: int) -> Array:
    """Observations as they are stored."""
    rng, shown = np.random.default_rng(seed), observations(info, *lead, seed=seed)
    if not info.packed:
        return np.asarray(shown.numpy())
    count = int(np.prod(lead))
    masks = rng.random((count, info.mask_size)) < 0.5
    start = 0
    for choices in info.action_counts if info.mask_size else ():
        masks[np.arange(count), start + rng.integers(choices, size=count)] = True
        start += choices
    named = shown if isinstance(shown, dict) else {"": shown}
    flat = {name: column.numpy().reshape(count, *column.shape[len(lead) :]) for name, column in named.items()}
    rows = []
    for k in range(count):
        obs = {name: column[k] for name, column in flat.items()} if isinstance(shown, dict) else flat[""][k]
        rows.append(pack(obs, masks[k] if info.mask_size else None, info.parts, info.mask_size))
    return np.stack(rows).reshape(*lead, -1)


def sequences_for(model: TrainedDreamer, *, seed: int = 0, steps: int = STEPS, rows: int = ROWS) -> SequenceBatch:
    """Random windows; in the second one an episode is truncated, in the third one ends for good."""
    info, size, rng = model.network.world.info, model.network.world.rssm.size, np.random.default_rng(seed)
    first, last, terminal = (np.zeros((steps, rows), np.bool_) for _ in range(3))
    last[1, 1] = first[2, 1] = True
    last[2, 2] = terminal[2, 2] = first[3, 2] = True
    return SequenceBatch(
        rows_of(info, steps, rows, seed=seed),
        actions_for(info, steps, rows, seed=seed).numpy(),
        rng.normal(size=(steps, rows)).astype(np.float32),
        first,
        last,
        terminal,
        rng.normal(size=(rows, size.deter)).astype(np.float32),
        rng.integers(size.classes + 1, size=(rows, size.stoch)).astype(np.uint8),
    )


def draws_for(
    model: TrainedDreamer,
    *,
    seed: int = 0,
    steps: int = STEPS,
    rows: int = ROWS,
    horizon: int = HORIZON,
    starts: Sequence[int] | None = None,
) -> Draws:
    rng, stoch = np.random.default_rng(seed), model.network.world.rssm.size.stoch
    chosen = np.arange(steps * rows) if starts is None else np.asarray(starts)
    return Draws(
        rng.random((steps, rows, stoch), dtype=np.float32),
        chosen,
        rng.random((horizon, len(chosen), stoch), dtype=np.float32),
        action_noise(model.network.world.info, (horizon, len(chosen)), rng),
    )


__all__ = ["EVERY_SPACE", "SPACES", "cfg_of", "draws_for", "engine_of", "rows_of", "sequences_for", "trained"]
