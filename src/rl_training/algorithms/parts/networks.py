"""The networks of the off-policy and the offline algorithms: the default or custom ones, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.base import PolicyContext, model_setting, setting
from rl_training.algorithms.off_policy import Engine, OffPolicyModelConfig
from rl_training.algorithms.parts.observer import Observer
from rl_training.models.mlp_ddpg import CriticShape
from rl_training.models.mlp_engine import covered
from rl_training.types import SpaceInfo, UserError


class EnsembleModelConfig(OffPolicyModelConfig):
    """An actor and several critics."""

    model: str = model_setting(probe="rl_training.testing:LinearSoftActorCritic")
    n_critics: int = setting(2, "Critics in the ensemble.", ge=1, probe=3)

    sizes: ClassVar[tuple[str, ...]] = ("hidden_sizes", "n_critics")

    def least_weights(self, info: SpaceInfo) -> int:
        return super().least_weights(info) * self.n_critics


@dataclass(frozen=True)
class Networks:
    """An actor, its critics and their number, and the engine that computes all of them."""

    actor: nn.Module
    critic: nn.Module
    n_critics: int
    engine: Engine
    value: nn.Module | None = None


def build_networks(
    context: PolicyContext,
    default: Callable[[Any, CriticShape], nn.Module],
    *,
    actor_outputs: int,
    n_quantiles: int = 1,
    with_value: bool = False,
) -> Networks:
    """Build the actor, the critics and maybe a value network; outputs are checked on two observations of zeros."""
    model, info = context.model, context.info
    assert isinstance(model, EnsembleModelConfig)
    shape = CriticShape(model.hidden_sizes, model.activation, model.n_critics, n_quantiles, model.image_encoder)
    make = context.model_factory
    network = (default(info, shape) if make is None else make(info, model)).to(context.device)
    names = ("actor", "critic", *(("value",) if with_value else ()))
    parts: dict[str, Any] = {name: getattr(network, name, None) for name in names}
    if not all(isinstance(part, nn.Module) for part in parts.values()):
        listed = " and ".join([", ".join(map(repr, names[:-1])), repr(names[-1])])
        raise UserError(f"model={model.model!r}: must have the modules {listed}")
    _refuse_shared_parameters(model.model, parts)
    actor, critic, value = parts["actor"], parts["critic"], parts.get("value")
    obs = two_observations(context)
    network.eval()
    with torch.inference_mode():
        values = tuple(critic(obs, torch.zeros(2, info.action_size, device=context.device)).shape)
        head = getattr(model, "policy_head", None)
        must = "actor(obs) must return" if head is None else f"with policy_head={head!r}, actor(obs) must return"
        _check_output(model.model, must, actor(obs), actor_outputs)
        if value is not None:
            _check_output(model.model, "value(obs) must return", value(obs), 1)
    if values != (*values[:1], 2, n_quantiles):
        raise UserError(
            f"model={model.model!r}: critic(obs, action) must return [critics, B, {n_quantiles}]; for a batch of 2 it "
            f"returned {values}"
        )
    return Networks(actor, critic, values[0], _engine_of(network, context), value)


def build_network(
    context: PolicyContext, default: Callable[[], nn.Module], outputs: int, *, must: str
) -> tuple[nn.Module, Engine]:
    """Build a single network, and name the engine that computes it; `must` begins the error about its outputs."""
    make = context.model_factory
    network = (default() if make is None else make(context.info, context.model)).to(context.device).eval()
    with torch.inference_mode():
        _check_output(context.model.model, must, network(two_observations(context)), outputs)
    return network, _engine_of(network, context)


def _engine_of(network: nn.Module, context: PolicyContext) -> Engine:
    return "mlp" if context.model_factory is None and context.engine == "auto" and covered(network) else "autograd"


def two_observations(context: PolicyContext) -> Any:
    """Two observations of zeros as a network sees them."""
    observer = Observer(context.info, context.device, normalize=False, clip=1.0)
    return observer.tensors(np.zeros((2, *context.info.obs_shape), context.info.obs_dtype))


def _refuse_shared_parameters(model: str, parts: Mapping[str, Any]) -> None:
    owner: dict[int, str] = {}
    for name, part in parts.items():
        for parameter in part.parameters():
            other = owner.setdefault(id(parameter), name)
            if other != name:
                raise UserError(
                    f"model={model!r}: {other!r} and {name!r} must not share parameters: each has its own optimiser"
                )


def _check_output(model: str, must: str, output: torch.Tensor, size: int) -> None:
    """Raise a UserError unless a custom network returned `size` numbers for each of two observations."""
    if tuple(output.shape) != (2, size):
        raise UserError(f"model={model!r}: {must} [B, {size}]; for a batch of 2 it returned {tuple(output.shape)}")
