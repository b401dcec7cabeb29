"""The networks of the off-policy and the offline algorithms: the default or custom ones, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.base import PolicyContext, dense_weights, model_setting
from rl_training.algorithms.layers import ACTOR_CRITICS, ENCODER, LayerSizes, NetworkNames, widths_help
from rl_training.algorithms.off_policy import Engine, OffPolicyModelConfig
from rl_training.algorithms.parts.observer import Observer
from rl_training.algorithms.settings import setting
from rl_training.models.ensemble import CriticEnsemble
from rl_training.models.heads import MLPNetwork
from rl_training.models.mlp_ddpg import CriticShape
from rl_training.models.mlp_engine import covered
from rl_training.types import SpaceInfo, UserError


class EnsembleModelConfig(OffPolicyModelConfig):
    """An actor and several critics."""

    model: str = model_setting(probe="rl_training.testing:LinearSoftActorCritic")
    hidden_sizes: LayerSizes = setting((256, 256), widths_help(ACTOR_CRITICS), probe=(8,))
    n_critics: int = setting(2, "Critics in the ensemble.", ge=1, probe=3)
    share_encoder: bool = setting(
        False,
        "One encoder (of images, Dict observations, or hidden_sizes.encoder) for actor and critics. The critics train "
        "it; the actor, and a value of states, read its features without a gradient.",
        live_when={"observations": "image"},
    )

    sizes: ClassVar[tuple[str, ...]] = ("hidden_sizes", "n_critics")
    networks: ClassVar[NetworkNames] = ACTOR_CRITICS
    absent: ClassVar[Mapping[str, str]] = {}

    def least_weights(self, info: SpaceInfo) -> int:
        if self.model != "auto":
            return 0
        return dense_weights(self.sizes_of("critic")) * self.n_critics


@dataclass(frozen=True)
class Networks:
    """An actor, its critics and their number, and the engine that computes all of them."""

    actor: nn.Module
    critic: nn.Module
    n_critics: int
    engine: Engine
    value: nn.Module | None = None

    def share_encoder(self) -> None:
        """Copy the critics' encoder to the networks that read its features and do not train it."""
        for part in (self.actor, self.value):
            if isinstance(part, MLPNetwork) and part.encoder is not None and not part.learns_encoder:
                assert isinstance(self.critic, CriticEnsemble)
                assert self.critic.encoder is not None
                with torch.no_grad():
                    for own, learned in zip(part.encoder.parameters(), self.critic.encoder.parameters(), strict=True):
                        own.copy_(learned)


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
    shape = CriticShape(
        model.sizes_of("policy"),
        model.activation,
        model.n_critics,
        n_quantiles,
        model.image_encoder,
        critic_sizes=model.sizes_of("critic"),
        value_sizes=model.sizes_of("value"),
        encoder_sizes=model.sizes_of(ENCODER),
    )
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
    networks = Networks(actor, critic, values[0], _engine_of(network, context), value)
    if model.share_encoder:
        _check_sharing(context, critic)
        for part in (actor, *(() if value is None else (value,))):
            part.learns_encoder = False
        networks.share_encoder()
    return networks


def _check_sharing(context: PolicyContext, critic: nn.Module) -> None:
    """Raise a UserError unless the critics have an encoder that others can share."""
    if context.model_factory is not None:
        raise UserError(f"share_encoder=True: needs the default network (model=auto), not {context.model.model!r}")
    if critic.encoder is None:
        raise UserError(
            "share_encoder=True: vectors have no encoder to share; give it hidden layers, as in "
            "hidden_sizes.encoder=[256], or leave share_encoder out"
        )


def one_network(context: PolicyContext) -> tuple[int, ...]:
    """The widths of the only network that discrete actions need; raises a UserError about settings for several."""
    model = context.model
    if isinstance(model.hidden_sizes, Mapping):
        given = {name: list(widths) for name, widths in model.hidden_sizes.items()}
        raise UserError(f"hidden_sizes={given}: discrete actions have one network here; give a list")
    if getattr(model, "share_encoder", False):
        raise UserError("share_encoder=True: discrete actions have one network here, which has one encoder")
    widths: tuple[int, ...] = model.hidden_sizes
    return widths


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
