"""The policy of ScaleZero: it reads the last steps of an episode again, and searches in a world model from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import PolicyContext
from rl_training.algorithms.off_policy import MinibatchConfig
from rl_training.algorithms.parts.carries import like_a_fresh_one
from rl_training.algorithms.parts.history import History, absent_steps, forget, no_history, remember, with_present
from rl_training.algorithms.parts.observer import Observer, under
from rl_training.algorithms.parts.searching import Plan, Play, SearchingPolicy, TreePlanner
from rl_training.models.scalezero import ScaleZeroNetwork, WorldShape
from rl_training.models.scalezero_engine import CompiledWorldModel
from rl_training.models.scalezero_search import TorchWorldModel, latents_before
from rl_training.ops.fast_path import torch_alone
from rl_training.types import Array, Carry, SpaceInfo, UserError

_NETWORK = "network."


class Moments(NamedTuple):
    """States that searches begin in, each with the steps before it; the first `absent` `[B]` of them are not there."""

    obs: Array  # [B, C, ...] as environments return them, the newest last
    action: Array  # int64 [B, C - 1]
    absent: Array  # int64 [B]


class WorldPlanner(TreePlanner):
    """Plans in one task with the world model of one network."""

    def __init__(self, policy: WorldPolicy, network: ScaleZeroNetwork, task: str) -> None:
        super().__init__(policy, network.tasks[task].action_size)
        make = CompiledWorldModel if policy.engine == "compiled" else TorchWorldModel
        self._model = make(network, task, policy.values["gamma"], policy.cfg.num_simulations)
        self._network, self._task, self._observer = network, task, policy.observers[task]

    def search(self, moments: Moments, rng: np.random.Generator | None, temperature: Array | None = None) -> Plan:
        """Search from these moments, with noise of a generator or with none."""
        count, model, observer = len(moments.obs), self._model, self._observer
        model.discount = self._policy.values["gamma"]
        rows = observer.scaled(moments.obs.reshape(-1, *moments.obs.shape[2:]))
        with torch_alone(self._policy.engine == "autograd"):
            latents = latents_before(self._network, self._task, observer.tensors(rows), count)
            roots = model.roots(latents, moments.action, moments.absent)
            return self.plan(model, roots._replace(mask=observer.mask(moments.obs[:, -1])), rng, temperature)

    def bytes_needed(self, roots: int) -> int:
        """The RAM that searches from so many moments take: their trees, and what the model keeps of tokens."""
        return self.searcher.bytes_needed(roots, 1) + self._model.bytes_needed(roots)


class WorldPolicy(SearchingPolicy):
    """Searches in the task that the policy is a view for. The carry holds the last steps of every episode."""

    def __init__(self, context: PolicyContext, play: Play, shape: WorldShape) -> None:
        super().__init__(context, play)
        cfg = context.config
        assert isinstance(cfg, MinibatchConfig)
        self.observers = {
            task: Observer(info, context.device, normalize=cfg.normalize_obs, clip=cfg.obs_clip)
            for task, info in context.tasks.items()
        }
        self.network = ScaleZeroNetwork(context.tasks, shape, _custom_encoder(context)).to(context.device)
        _check_encoders(self.network, self.observers, context)
        fast = context.engine == "auto" and context.device.type == "cpu"
        self._engine = "compiled" if fast else "autograd"
        self.planners = self.planners_of(self.network)

    @property
    def engine(self) -> str:
        return self._engine

    @property
    def planner(self) -> WorldPlanner:
        """What plans in the task of this view."""
        return self.planners[self.task]

    def planners_of(self, network: ScaleZeroNetwork) -> dict[str, WorldPlanner]:
        """What plans in every task with a network, such as a target network."""
        return {task: WorldPlanner(self, network, task) for task in self.tasks}

    def initial_carry(self, count: int) -> History:
        return no_history(self.info, count, self.network.shape.transformer.context - 1)

    def begin_episodes(self, carry: Carry, mask: Array) -> History:
        return forget(carry, mask)

    def checked_carry(self, carry: Carry, count: int) -> Carry:
        return like_a_fresh_one(carry, self.initial_carry(count))

    def plan_from(self, obs: Array, carry: Carry, rng: np.random.Generator | None, temperature: Array) -> Plan:
        moments = Moments(with_present(carry, obs), carry["action"], absent_steps(carry))
        return self.planner.search(moments, rng, temperature)

    def moves_of(self, carry: Carry) -> Array:
        moves: Array = carry["count"]
        return moves

    def carry_after(self, carry: Carry, obs: Array, action: Array) -> History:
        return remember(carry, obs, action)

    def policy_state(self) -> dict[str, Tensor]:
        state = {_NETWORK + name: tensor for name, tensor in self.network.state_dict().items()}
        for task, observer in self.observers.items():
            state |= {_of_task(task) + name: tensor for name, tensor in observer.state_dict().items()}
        return state

    def load_policy_state(self, state: Mapping[str, Tensor]) -> None:
        self.network.load_state_dict(under(state, _NETWORK))
        for task, observer in self.observers.items():
            observer.load_state_dict(under(state, _of_task(task)))


def _of_task(task: str) -> str:
    return f"tasks.{task}." if task else ""


def _custom_encoder(context: PolicyContext) -> Callable[[SpaceInfo], nn.Module] | None:
    make, model = context.model_factory, context.model
    return None if make is None else lambda info: make(info, model)


def _check_encoders(network: ScaleZeroNetwork, observers: Mapping[str, Observer], context: PolicyContext) -> None:
    """Raise a UserError unless the encoder of every task returns a latent for each of two observations of zeros."""
    width = network.shape.transformer.width
    for encoder, (task, observer) in zip(network.encoders, observers.items(), strict=True):
        info = context.tasks[task]
        with torch.inference_mode():
            found = encoder.eval()(observer.tensors(np.zeros((2, *info.obs_shape), info.obs_dtype)))
        if tuple(found.shape) != (2, width):
            where = f" in task {task}" if task else ""
            raise UserError(
                f"model={context.model.model!r}: an encoder must return latents [B, {width}], as `width` says; for a "
                f"batch of 2{where} it returned {tuple(found.shape)}"
            )
