"""When a stage of training ends, and what an optimiser keeps of weights that are trained in some stages only."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.scalezero_settings import ScaleZeroConfig
from rl_training.types import UserError


def reaches(target: float | None, returns: Sequence[float], episodes: int) -> bool:
    """Whether the mean return of the last `episodes` episodes is known and reaches a target."""
    return target is not None and len(returns) >= episodes and bool(np.mean(returns[-episodes:]) >= target)


def enough_of(tasks: int, stages_left: int) -> int:
    """How many of a stage's tasks end it when they are solved: they share the stages, this one and those after it."""
    return -(-tasks // stages_left)


def stage_ends(
    cfg: ScaleZeroConfig, trained: Collection[str], solved: Collection[str], stage: int, updates: int
) -> bool:
    """Whether a stage is over that trains these tasks and has had so many updates; the last one goes on."""
    unsolved = [task for task in trained if task not in solved]
    if stage == cfg.stages - 1 or not unsolved:
        return False
    # What never learned would be frozen as it is, for ever.
    if updates == 0 or (stage == 0 and updates < cfg.first_stage_updates):
        return False
    if cfg.stage_updates is not None and updates >= cfg.stage_updates:
        return True
    return len(trained) - len(unsolved) >= enough_of(len(trained), cfg.stages - stage)


def check_stages(cfg: ScaleZeroConfig, tasks: Collection[str], targets: Collection[str]) -> None:
    """Raise a UserError if a stage before the last one could never end; `targets` are the tasks that have one."""
    if cfg.stages == 1 or cfg.stage_updates is not None:
        return
    if cfg.stages > len(tasks):
        raise UserError(
            f"stages={cfg.stages}: must be at most {len(tasks)}, the number of tasks, since a stage ends when tasks "
            "are solved and leave; or give stage_updates"
        )
    left = len(tasks)
    for stage in range(cfg.stages - 1):
        left -= enough_of(left, cfg.stages - stage)
    if (needed := len(tasks) - left) > len(targets):
        have = f"only {', '.join(targets)} has one" if len(targets) == 1 else f"{len(targets) or 'none'} have one"
        raise UserError(
            f"stages={cfg.stages}: stages end when tasks reach their target_return, here {needed} of {len(tasks)} "
            f"before the last stage, and {have}; give more of them one, as in "
            "tasks: {first: {env_id: CartPole-v1, target_return: 450}}, or give stage_updates"
        )


def spread(network: nn.Module, moments: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """An optimiser's numbers of trained weights among those of all weights, of which the others are 0.

    So the form of a checkpoint depends on no stage.
    """
    trained = _which_are_trained(network)
    found = {}
    for name, kept in moments.items():
        found[name] = kept.new_zeros(trained.shape) if kept.ndim else kept
        if kept.ndim:
            found[name][trained] = kept
    return found


def gathered(network: nn.Module, moments: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of trained weights among those of all weights: the inverse of `spread`."""
    trained = _which_are_trained(network)
    # What was read from a checkpoint is on the CPU.
    return {name: kept[trained.to(kept.device)] if kept.ndim else kept for name, kept in moments.items()}


def _which_are_trained(network: nn.Module) -> Tensor:
    """Which of all weights, parameter after parameter, are trained; `[N]`."""
    return torch.cat([torch.full((p.numel(),), p.requires_grad, device=p.device) for p in network.parameters()])
