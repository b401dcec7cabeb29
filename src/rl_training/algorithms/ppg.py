"""Phasic policy gradient (Cobbe et al. 2021): PPO, with phases that distil values into the policy's features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import AlgorithmSpec, Context, LoopConfig, NetworkConfig, PolicyContext, model_setting
from rl_training.algorithms.on_policy import (
    EVERY_SPACE,
    ActorCriticModelConfig,
    ActorCriticPolicy,
    OnPolicyLoopConfig,
)
from rl_training.algorithms.parts.actor_critic_policy import Acting, EngineActing, TorchActing, check_shapes
from rl_training.algorithms.parts.objectives import Batch, EngineForm
from rl_training.algorithms.parts.observer import Observer
from rl_training.algorithms.ppo import PPO, PPOConfig
from rl_training.algorithms.settings import setting
from rl_training.data.chunks import Part
from rl_training.data.phases import PhaseMemory
from rl_training.data.rollout import Rollout
from rl_training.models.actor_critic_engine import ActorCriticEngine, CompiledActing, within_reach
from rl_training.models.flat import FlatAdam, FlatParameters
from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.models.phasic import AuxiliaryEngine, PhasicActorCritic
from rl_training.ops.kernels import heads as kernels
from rl_training.ops.value import value_loss
from rl_training.types import Array, Metrics, SpaceInfo, UserError


class PPGModelConfig(ActorCriticModelConfig):
    """Separate policy and value networks, and an auxiliary value head on the policy."""

    model: str = model_setting(probe="rl_training.testing:LinearPhasicActorCritic")
    share_encoder: bool = setting(
        False,
        "One encoder (of images, Dict observations, or hidden_sizes.encoder) for policy and value; the value trains it "
        "in auxiliary phases only.",
        live_when={"observations": "image"},
    )


class PPGConfig(PPOConfig):
    """policy phase: PPO's objective; auxiliary phase: minimise L_aux + beta_clone KL(old, new) + (V - target)^2 / 2"""

    ent_coef: float = setting(0.01, "Weight of the entropy bonus.", aliases=["entropy_coef"], ge=0.0, report=True)
    n_epochs: int = setting(1, "Passes over each rollout.", ge=1, probe=3)
    aux_interval: int = setting(
        32, "Rollouts between two auxiliary phases; a shorter run has none.", ge=1, static=True, probe=1
    )
    n_aux_epochs: int = setting(6, "Passes of an auxiliary phase over the rollouts since the last.", ge=1)
    aux_batch_size: int = setting(256, "Samples in a minibatch of an auxiliary phase.", ge=1, probe=5)
    aux_learning_rate: float = setting(5e-4, "Step size of auxiliary phases.", ge=0.0, report=True)
    beta_clone: float = setting(1.0, "Weight of the KL from the old policy in auxiliary phases.", ge=0.0)

    sizes: ClassVar[tuple[str, ...]] = ("aux_interval",)

    def least_bytes(self, info: SpaceInfo, model: NetworkConfig, loop: LoopConfig, num_envs: int) -> int:
        assert isinstance(loop, OnPolicyLoopConfig)
        return self.aux_interval * loop.n_steps * num_envs * info.obs_bytes


def ppg_auxiliary_loss(auxiliary: Tensor, value: Tensor, target: Tensor, kl: Tensor, beta_clone: float) -> Tensor:
    """The loss of a minibatch `[B]` of an auxiliary phase (L_joint of section 2, and L_value)."""
    return 0.5 * value_loss(auxiliary, target) + beta_clone * kl.mean() + 0.5 * value_loss(value, target)


class PPGPolicy(ActorCriticPolicy):
    """Separate policy and value networks, and an auxiliary value head on the policy's features."""

    def make_network(self, info: SpaceInfo, model: Any) -> nn.Module:
        """MLPs, each behind its own encoder for images and Dict observations."""
        policy, value, inputs = model.encoders(info)
        pair = None if policy is None else (policy, value)
        mlps = MLPActorCritic(inputs, info.action_size, model.shape(info), continuous=info.continuous)
        return PhasicActorCritic(mlps, pair, orthogonal=model.ortho_init)

    def within_reach(self, info: SpaceInfo) -> bool:
        network = self.network
        return type(network) is PhasicActorCritic and not network.encoded and within_reach(network.heads, info)

    def make_acting(self, info: SpaceInfo, *, compiled: bool) -> Acting:
        if not compiled:
            return TorchActing(self)
        return EngineActing(CompiledActing(self.network.heads, self.weights.data, info), self.observer)

    def ordered_parameters(self, context: PolicyContext) -> Iterable[nn.Parameter]:
        if context.model_factory is not None:
            self._check_auxiliary(context)
        # A user's function may return this type too, and the engine takes it.
        own = type(self.network) is PhasicActorCritic
        return self.network.engine_parameters() if own else super().ordered_parameters(context)

    def _check_auxiliary(self, context: PolicyContext) -> None:
        """Check the `auxiliary` method of a custom network, which PPO does not need, on two observations of zeros."""
        size, info = self.distribution.param_size, context.info
        wanted = (
            f"model={context.model.model!r}: needs a method auxiliary(obs) that returns policy parameters [B, {size}], "
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


class AuxiliaryForm(Protocol):
    """Computes the gradients of an auxiliary phase."""

    def gradient(self, obs: Array, target: Array, old: Array, beta_clone: float) -> tuple[float, ...]:
        """Write the gradient of a minibatch to the flat buffer.

        Returns the mean squared error of the auxiliary head, the KL, and the mean squared error of the value network.
        """


class AutogradAuxiliary:
    """For any network on any device."""

    def __init__(self, policy: ActorCriticPolicy, parameters: FlatParameters) -> None:
        self._policy, self._parameters = policy, parameters

    def gradient(self, obs: Array, target: Array, old: Array, beta_clone: float) -> tuple[float, ...]:
        policy, tensor = self._policy, self._policy.observer.tensor
        params, value, auxiliary = policy.network.auxiliary(policy.observer.tensors(obs))
        targets = tensor(target)
        kl = policy.distribution.kl(tensor(old), policy.allowed(params, obs))
        self._parameters.zero_grad()
        loss = ppg_auxiliary_loss(auxiliary, value, targets, kl, beta_clone)
        loss.backward()  # type: ignore[no-untyped-call]
        losses = (value_loss(auxiliary, targets), kl.mean(), value_loss(value, targets))
        return tuple(torch.stack(losses).tolist())


class EngineAuxiliary:
    """For the default network on a CPU."""

    def __init__(self, observer: Observer, engine: ActorCriticEngine, auxiliary: AuxiliaryEngine) -> None:
        self._observer, self._engine, self._auxiliary = observer, engine, auxiliary

    def gradient(self, obs: Array, target: Array, old: Array, beta_clone: float) -> tuple[float, ...]:
        engine, inputs = self._engine, self._observer.arrays(obs)
        outputs, auxiliary = self._auxiliary.forward(inputs)
        auxiliary_error = kernels.value_gradient(auxiliary, target, 0.5, auxiliary)
        kl = engine.clone_gradient(outputs, old, beta_clone, self._observer.mask(obs))
        self._auxiliary.backward()
        value = engine.values(inputs)
        value_error = kernels.value_gradient(value, target, 0.5, value)
        engine.value.backward(value[:, None])
        return auxiliary_error, kl, value_error


class PPG(PPO):
    """PPO's update on every rollout, and an auxiliary phase on the latest `aux_interval` of them together."""

    cfg: PPGConfig
    policy_type = PPGPolicy
    phase: PhaseMemory

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._info = context.info
        self.aux_optimizer = FlatAdam(self.parameters, eps=self.cfg.adam_eps)
        self.auxiliary: AuxiliaryForm = AutogradAuxiliary(self.policy, self.parameters)
        if isinstance(self.form, EngineForm):
            heads = AuxiliaryEngine(self.network, self.parameters)
            self.auxiliary = EngineAuxiliary(self.observer, self.form.engine, heads)
        self.n_aux_updates = 0
        self.aux_metrics: Metrics = {}

    def engine_form(self, info: SpaceInfo) -> EngineForm:
        return EngineForm(self.policy, ActorCriticEngine(self.network.heads, info))

    def memories(self, rollout_rows: int) -> Mapping[str, Part]:
        self._rollout_rows = rollout_rows
        self.phase = PhaseMemory(self._info, rollout_rows * self.cfg.aux_interval)
        return {"phase": self.phase}

    def warnings(self, rollouts: int) -> list[str]:
        every, seen = self.cfg.aux_interval, self.phase.rollouts
        if self.n_aux_updates > 0 or seen + rollouts >= every:
            return []
        return [
            f"aux_interval={every}: this run has {seen + rollouts} rollouts of {self._rollout_rows} steps, so it ends "
            "before its first auxiliary phase and is only PPO; give more total_timesteps, or a lower aux_interval"
        ]

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
                rows.append(self.auxiliary.gradient(obs[picked], target[picked], old[picked], cfg.beta_clone))
                self.parameters.clip_grad_norm(cfg.max_grad_norm)
                self.aux_optimizer.step(cfg.aux_learning_rate)
                self.n_aux_updates += 1
        self.parameters.zero_grad()  # the policy phase does not overwrite the auxiliary head's gradient
        names = ("auxiliary_value_loss", "clone_kl", "phase_value_loss")
        means = dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True))
        return means | {"n_aux_updates": float(self.n_aux_updates)}

    def _outputs_in_parts(self, obs: Array) -> Array:
        """The policy parameters `[N, P]` before the phase, computed batch by batch."""
        size = self.cfg.aux_batch_size
        self.network.eval()
        with torch.inference_mode():
            parts = [self.policy.network_outputs(obs[start : start + size])[0] for start in range(0, len(obs), size)]
            return torch.cat(parts).cpu().numpy()

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
    policy=PPGPolicy,
    build=PPG,
    capabilities=EVERY_SPACE,
)
