"""A policy that follows the states of a world model, and acts on them."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import PolicyContext
from rl_training.algorithms.off_policy import Engine, TrainedPolicy
from rl_training.algorithms.parts.carries import like_a_fresh_one
from rl_training.algorithms.parts.dreams_engine import EngineFollowing, dreamer_form
from rl_training.algorithms.parts.observer import Observer
from rl_training.algorithms.world import WorldModelConfig
from rl_training.models.rssm import WorldState
from rl_training.models.rssm_heads import action_columns, action_noise, sample_action
from rl_training.models.world_model import DreamerNetwork
from rl_training.ops.distributions import action_distribution
from rl_training.ops.exploration import uniform_actions
from rl_training.ops.latents import index_of, one_hot
from rl_training.ops.symexp import SymexpPoints
from rl_training.types import Act, Array, ArrayKind, Carry, Records, SpaceInfo, UserError


class Following(Protocol):
    """What acting computes, without a gradient."""

    def __call__(
        self, rows: Array, deter: Array, stoch: Array, action: Array, uniform: Array | None
    ) -> tuple[Array, Array, Array]:
        """The state after (scaled) observations `[B, ...]`, and the policy's parameters `[B, P]` there.

        The state before is `deter` `[B, deter]`, `stoch` `[B, stoch]` (indices) and the action's columns `[B, A]`. The
        latent is drawn with `uniform` `[B, stoch]`; without it, it is the likeliest.
        """


class TorchFollowing:
    """Any network on any device."""

    def __init__(self, network: DreamerNetwork, observer: Observer) -> None:
        self._network, self._observer = network, observer

    def __call__(
        self, rows: Array, deter: Array, stoch: Array, action: Array, uniform: Array | None
    ) -> tuple[Array, Array, Array]:
        network, tensor = self._network.eval(), self._observer.tensor
        rssm, mask = network.world.rssm, self._observer.mask(rows)
        with torch.inference_mode():
            before = WorldState(tensor(deter), one_hot(tensor(stoch), rssm.size.classes))
            after = rssm.advance(before, tensor(action))
            posterior = rssm.posterior(after, network.world.encoder(self._observer.tensors(rows)))
            if uniform is None:
                latent = one_hot(posterior.argmax(dim=-1), rssm.size.classes)
            else:
                latent = rssm.draw(posterior, tensor(uniform))
            params: Tensor = network.policy(WorldState(after, latent).features, None if mask is None else tensor(mask))
            return after.cpu().numpy(), index_of(latent).cpu().numpy(), params.cpu().numpy()


class DreamerPolicy(TrainedPolicy):
    """The carry is the state before an observation and the action that led to it: zeros at the start of an episode.

    Every step records the state in which it acted. Greedy actions are the likeliest ones, in the likeliest states.
    """

    name: ClassVar[str] = "network"
    judged_by_samples: ClassVar[bool] = True
    network: DreamerNetwork

    def __init__(self, context: PolicyContext) -> None:
        network = dreamer_network(context).to(context.device)
        engine: Engine = dreamer_form(network, context.config) if context.engine == "auto" else "autograd"
        super().__init__(context, network, engine)
        self.size = network.world.rssm.size
        self.distribution = action_distribution(context.info)
        # The engine reads the weights where they are now, in the flat buffer.
        following = EngineFollowing if engine == "mlp" else TorchFollowing
        self.follow: Following = following(network, self.observer)

    def records(self, info: SpaceInfo) -> Records:
        return {"deter": ArrayKind((self.size.deter,), "float32"), "stoch": ArrayKind((self.size.stoch,), "uint8")}

    def initial_carry(self, count: int) -> Carry:
        return {
            "deter": np.zeros((count, self.size.deter), np.float32),
            "stoch": np.full((count, self.size.stoch), self.size.classes, np.uint8),
            "action": np.zeros((count, self.info.action_size), np.float32),
        }

    def begin_episodes(self, carry: Carry, mask: Array) -> Carry:
        carry, fresh = self._checked(carry, len(mask)), self.initial_carry(len(mask))
        return {name: np.where(mask[:, None], fresh[name], carry[name]) for name in fresh}

    def act(self, obs: Array, carry: Carry, *, explore: bool, rng: np.random.Generator) -> Act:
        state, params = self._seen(obs, carry, rng if explore else None)
        if not explore:
            return self._done(state, self.distribution.mode(params))
        noise = action_noise(self.info, (len(obs),), rng)
        return self._done(state, sample_action(self.info, torch.from_numpy(params), torch.from_numpy(noise)).numpy())

    def act_randomly(self, obs: Array, carry: Carry, *, rng: np.random.Generator) -> Act:
        # What is really done goes into the carry, not what the policy would have done.
        state, _ = self._seen(obs, carry, rng)
        return self._done(state, uniform_actions(self.info, obs, rng))

    def _seen(self, obs: Array, carry: Carry, rng: np.random.Generator | None) -> tuple[dict[str, Array], Array]:
        """The states after observations, and the policy's parameters there."""
        uniform = None if rng is None else rng.random((len(obs), self.size.stoch), dtype=np.float32)
        before = self._checked(carry, len(obs))
        deter, stoch, params = self.follow(self.observer.scaled(obs), **before, uniform=uniform)
        return {"deter": deter, "stoch": stoch}, params

    def _done(self, state: dict[str, Array], action: Array) -> Act:
        columns = action_columns(self.info, torch.from_numpy(action)).numpy()
        return Act(action, state | {"action": columns}, state)

    def _checked(self, carry: Any, count: int) -> dict[str, Array]:
        """The carry, which a caller may have passed in another form."""
        return like_a_fresh_one(carry, self.initial_carry(count))


def dreamer_network(context: PolicyContext) -> DreamerNetwork:
    """The default networks, or custom ones, which must be of the same class."""
    model, info = context.model, context.info
    assert isinstance(model, WorldModelConfig)
    if context.model_factory is not None:
        custom = context.model_factory(info, model)
        if not isinstance(custom, DreamerNetwork):
            raise UserError(f"model={model.model!r}: must be a rl_training.models.world_model.DreamerNetwork")
        if custom.world.info != info:
            raise UserError(f"model={model.model!r}: is made for other spaces than those of the environment")
        return custom
    size = model.world_size
    if size.deter % size.blocks:
        raise UserError(f"deter={size.deter}: must be a multiple of blocks={size.blocks}")
    support = SymexpPoints(model.bins) if model.number_heads == "symexp" else None
    return DreamerNetwork(info, size, support=support, unimix=model.unimix)
