"""The networks of the continuous actor-critics: made, or the user's own, and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.base import Context, model_setting, setting
from rl_training.algorithms.off_policy import OffPolicyModelConfig
from rl_training.algorithms.parts.observer import Observer
from rl_training.models.mlp_ddpg import CriticShape
from rl_training.models.mlp_engine import covered
from rl_training.types import UserError


class EnsembleModelConfig(OffPolicyModelConfig):
    """An actor and several critics."""

    model: str = model_setting(probe="rl_training.testing:LinearSoftActorCritic")
    n_critics: int = setting(2, "Critics in the ensemble.", ge=1, probe=3)


@dataclass(frozen=True)
class Networks:
    """An actor, its critics and their number; `fast` says that the engine serves both."""

    actor: nn.Module
    critic: nn.Module
    n_critics: int
    fast: bool
    value: nn.Module | None = None


def build_networks(
    context: Context,
    default: Callable[[Any, CriticShape], nn.Module],
    *,
    actor_outputs: int,
    n_quantiles: int = 1,
    with_value: bool = False,
) -> Networks:
    """The default networks or a user's own, tried on two observations of zeros: what they give must fit."""
    model, info = context.model, context.info
    assert isinstance(model, EnsembleModelConfig)
    shape = CriticShape(model.hidden_sizes, model.activation, model.n_critics, n_quantiles)
    make = context.model_factory
    network = (default(info, shape) if make is None else make(info, model)).to(context.device)
    names = ("actor", "critic", *(("value",) if with_value else ()))
    parts: dict[str, Any] = {name: getattr(network, name, None) for name in names}
    if not all(isinstance(part, nn.Module) for part in parts.values()):
        listed = " and ".join([", ".join(map(repr, names[:-1])), repr(names[-1])])
        raise UserError(f"model={model.model!r}: must have the modules {listed}")
    _refuse_shared_parameters(model.model, parts)
    actor, critic, value = parts["actor"], parts["critic"], parts.get("value")
    observer = Observer(info, context.device, normalize=False, clip=1.0)
    obs = observer.tensors(np.zeros((2, *info.obs_shape), info.obs_dtype))
    network.eval()
    with torch.inference_mode():
        values = tuple(critic(obs, torch.zeros(2, info.action_size, device=context.device)).shape)
        check_output(model.model, "actor(obs)", actor(obs), actor_outputs)
        if value is not None:
            check_output(model.model, "value(obs)", value(obs), 1)
    if values != (*values[:1], 2, n_quantiles):
        raise UserError(
            f"model={model.model!r}: critic(obs, action) must give [critics, B, {n_quantiles}]; for a batch of 2 it "
            f"gave {values}"
        )
    fast = make is None and context.engine == "auto" and covered(network)
    return Networks(actor, critic, values[0], fast=fast, value=value)


def _refuse_shared_parameters(model: str, parts: Mapping[str, Any]) -> None:
    owner: dict[int, str] = {}
    for name, part in parts.items():
        for parameter in part.parameters():
            other = owner.setdefault(id(parameter), name)
            if other != name:
                raise UserError(
                    f"model={model!r}: {other!r} and {name!r} must not share parameters: each has its optimiser"
                )


def check_output(model: str, call: str, given: torch.Tensor, outputs: int) -> None:
    """Whether a user's network gives as many numbers as are needed, for the batch of 2 that it was tried on."""
    if tuple(given.shape) != (2, outputs):
        raise UserError(
            f"model={model!r}: {call} must give [B, {outputs}]; for a batch of 2 it gave {tuple(given.shape)}"
        )
