"""Phasic policy gradient (Cobbe et al. 2021): PPO, with phases that teach the policy's features to tell values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import AlgorithmSpec, Context, model_setting, setting
from rl_training.algorithms.on_policy import (
    EVERY_SPACE,
    ActorCriticModelConfig,
    Batch,
    OnPolicyLoopConfig,
    check_shapes,
)
from rl_training.algorithms.ppo import PPO, PPOConfig
from rl_training.data.phases import PhaseMemory
from rl_training.data.rollout import Rollout
from rl_training.models.actor_critic_engine import engine_for
from rl_training.models.encoders import encoder_for
from rl_training.models.flat import FlatAdam
from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.models.phasic import AuxiliaryEngine, PhasicActorCritic
from rl_training.ops.kernels import heads
from rl_training.ops.value import value_loss
from rl_training.types import Array, Metrics, SpaceInfo, UserError


class PPGModelConfig(ActorCriticModelConfig):
    """Policy and value apart, and a second value head on the policy."""

    model: str = model_setting(probe="rl_training.testing:LinearPhasicActorCritic")


class PPGConfig(PPOConfig):
    """policy phase: PPO's objective; auxiliary phase: minimise L_aux + beta_clone KL(old, new) + (V - target)^2 / 2"""

    n_epochs: int = setting(1, "Passes over each rollout.", ge=1, probe=3)
    aux_interval: int = setting(
        32, "Rollouts between two auxiliary phases; a run of fewer has none.", ge=1, static=True, probe=1
    )
    n_aux_epochs: int = setting(6, "Passes of an auxiliary phase over the rollouts since the last.", ge=1)
    aux_batch_size: int = setting(256, "Samples in a minibatch of an auxiliary phase.", ge=1, probe=5)
    aux_learning_rate: float = setting(5e-4, "Step size of auxiliary phases.", ge=0.0, report=True)
    beta_clone: float = setting(1.0, "Weight that keeps the policy what it was in auxiliary phases.", ge=0.0)


def ppg_auxiliary_loss(auxiliary: Tensor, value: Tensor, target: Tensor, kl: Tensor, beta_clone: float) -> Tensor:
    """The loss of a minibatch `[B]` of an auxiliary phase (L_joint of section 2, and L_value)."""
    return value_loss(auxiliary, target) + beta_clone * kl.mean() + value_loss(value, target)


def build_network(info: SpaceInfo, model: PPGModelConfig) -> PhasicActorCritic:
    """The default network: MLPs, behind encoders of their own where observations are more than a vector."""
    policy, value = (encoder_for(info, orthogonal=model.ortho_init) for _ in range(2))
    pair = None if policy is None or value is None else (policy, value)
    inputs = math.prod(info.input_shape) if policy is None else policy.features
    heads = MLPActorCritic(inputs, info.action_size, model.shape(), continuous=info.continuous)
    return PhasicActorCritic(heads, pair, orthogonal=model.ortho_init)


class PPG(PPO):
    """PPO's update on every rollout, and an auxiliary phase on the latest `aux_interval` of them together."""

    cfg: PPGConfig
    phase: PhaseMemory

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._info = context.info
        self.aux_optimizer = FlatAdam(self.parameters, eps=self.cfg.adam_eps)
        self.aux_mlp = AuxiliaryEngine(self.network, self.parameters) if self.mlp is not None else None
        self.n_aux_updates = 0
        self.aux_metrics: Metrics = {}

    def make_network(self, info: SpaceInfo, model: Any) -> nn.Module:
        return build_network(info, model)

    def make_engine(self, info: SpaceInfo) -> Any:
        network = self.network
        plain = type(network) is PhasicActorCritic and not network.encoded
        return engine_for(network.heads, self.parameters, info) if plain else None

    def ordered_parameters(self, context: Context) -> Iterable[nn.Parameter]:
        if context.model_factory is not None:
            self._check_auxiliary(context)
        # Whoever made it: the engine takes a network of this type.
        own = type(self.network) is PhasicActorCritic
        return self.network.engine_parameters() if own else super().ordered_parameters(context)

    def _check_auxiliary(self, context: Context) -> None:
        """A user's network has one more method than PPO's, which is tried on two observations of zeros."""
        size, info = self.distribution.param_size, context.info
        wanted = (
            f"model={context.model.model!r}: needs a method auxiliary(obs) that gives policy parameters [B, {size}], "
            "values [B], and the values [B] of a second head on the policy's features"
        )
        if not callable(getattr(self.network, "auxiliary", None)):
            raise UserError(wanted)
        rows = self.observer.tensors(np.zeros((2, *info.obs_shape), info.obs_dtype))
        try:
            with torch.inference_mode():
                found = self.network.auxiliary(rows)
        except TypeError as error:
            raise UserError(f"{wanted}: {error}") from error
        check_shapes(wanted, found, [(2, size), (2,), (2,)])

    def memories(self, rollout_rows: int) -> Mapping[str, Any]:
        self.phase = PhaseMemory(self._info, rollout_rows * self.cfg.aux_interval)
        return {"phase": self.phase}

    def prepare(self, rollout: Rollout) -> Batch[Array]:
        data = super().prepare(rollout)
        self.phase.add(data.obs, data.target)
        return data

    def update(self, batch: Rollout) -> Metrics:
        metrics = super().update(batch)
        if self.phase.rollouts >= self.cfg.aux_interval:
            self.aux_metrics = self._auxiliary_phase(self.phase.obs, self.phase.target)
            self.phase.clear()
        return metrics | self.aux_metrics

    def _auxiliary_phase(self, obs: Array, target: Array) -> Metrics:
        cfg = self.cfg
        old = self._outputs_in_parts(obs)
        self.network.train()
        rows = []
        for _ in range(cfg.n_aux_epochs):
            order = self.batch_rng.permutation(len(target))
            for start in range(0, len(target), cfg.aux_batch_size):
                picked = order[start : start + cfg.aux_batch_size]
                rows.append(self._auxiliary_gradient(obs[picked], target[picked], old[picked]))
                self.parameters.clip_grad_norm(cfg.max_grad_norm)
                self.aux_optimizer.step(cfg.aux_learning_rate)
                self.n_aux_updates += 1
        self.parameters.zero_grad()  # a policy phase writes none to the auxiliary head
        names = ("auxiliary_value_loss", "clone_kl", "phase_value_loss")
        means = dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True))
        return means | {"n_aux_updates": float(self.n_aux_updates)}

    def _outputs_in_parts(self, obs: Array) -> Array:
        """The parameters `[N, P]` of the policy as it is before the phase."""
        size = self.cfg.aux_batch_size
        self.network.eval()
        with torch.inference_mode():
            parts = [self.network_outputs(obs[start : start + size])[0] for start in range(0, len(obs), size)]
            return torch.cat(parts).cpu().numpy()

    def _auxiliary_gradient(self, obs: Array, target: Array, old: Array) -> tuple[float, ...]:
        """Leave the gradient of a minibatch in the flat buffer; gives its auxiliary loss, KL and value loss."""
        if self.aux_mlp is not None:
            return self._auxiliary_closed_form(self.aux_mlp, obs, target, old)
        params, value, auxiliary = self.network.auxiliary(self.observer.tensors(obs))
        targets = self.observer.tensor(target)
        kl = self.distribution.kl(self.observer.tensor(old), self.allowed(params, obs))
        self.differentiate(ppg_auxiliary_loss(auxiliary, value, targets, kl, self.cfg.beta_clone))
        losses = (value_loss(auxiliary, targets), kl.mean(), value_loss(value, targets))
        return tuple(torch.stack(losses).tolist())

    def _auxiliary_closed_form(
        self, aux_mlp: AuxiliaryEngine, obs: Array, target: Array, old: Array
    ) -> tuple[float, ...]:
        assert self.mlp is not None
        inputs = self.observer.arrays(obs)
        outputs, auxiliary = aux_mlp.forward(inputs)
        auxiliary_error = heads.value_gradient(auxiliary, target, 1.0, auxiliary)
        kl = self.mlp.clone_gradient(outputs, old, self.cfg.beta_clone, self.observer.mask(obs))
        aux_mlp.backward()
        value = self.mlp.values(inputs)
        value_error = heads.value_gradient(value, target, 1.0, value)
        self.mlp.value.backward(value[:, None])
        return auxiliary_error, kl, value_error

    def training_state(self) -> dict[str, Any]:
        return super().training_state() | {
            "aux_optimizer": self.aux_optimizer.state_dict(),
            "n_aux_updates": self.n_aux_updates,
            "aux_metrics": self.aux_metrics,
        }

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        super().load_training_state(state)
        self.aux_optimizer.load_state_dict(state["aux_optimizer"])
        self.n_aux_updates, self.aux_metrics = state["n_aux_updates"], dict(state["aux_metrics"])


SPEC = AlgorithmSpec(
    name="ppg",
    family="on_policy",
    summary="Phasic policy gradient",
    config=PPGConfig,
    loop=OnPolicyLoopConfig,
    model=PPGModelConfig,
    build=PPG,
    capabilities=EVERY_SPACE,
)
