"""What the actor-critic algorithms of the on-policy loop share: settings, acting, advantages, state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, AlgorithmConfig, Context, LoopConfig, ModelConfig, setting
from rl_training.data.rollout import Rollout
from rl_training.models.flat import FlatAdam, FlatParameters, FlatRMSprop
from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.models.mlp_engine import engine_for
from rl_training.models.normalizers import ObservationNormalizer, RewardNormalizer
from rl_training.ops.distributions import action_distribution
from rl_training.ops.returns import gae
from rl_training.types import Act, Array, SpaceInfo

S = TypeVar("S", Array, Tensor)
T = TypeVar("T", Array, Tensor)


class OnPolicyLoopConfig(LoopConfig):
    """One rollout of `n_steps * num_envs` steps, then one update."""

    n_steps: int = setting(2048, "Steps of each environment between two updates.", ge=1, probe=8)


class OnPolicyConfig(AlgorithmConfig):
    """Hyperparameters of every on-policy actor-critic."""

    learning_rate: float = setting(3e-4, "Step size of the optimiser.", ge=0.0, report=True)
    gamma: float = setting(0.99, "Discount factor.", ge=0.0, le=1.0, probe=0.5)
    gae_lambda: float = setting(0.95, "Trace decay of the advantage estimate.", ge=0.0, le=1.0, probe=0.5)
    ent_coef: float = setting(0.0, "Weight of the entropy bonus.", aliases=["entropy_coef"], ge=0.0, report=True)
    vf_coef: float = setting(0.5, "Weight of the value loss.", ge=0.0)
    max_grad_norm: float = setting(0.5, "Gradients are scaled down to this norm.", gt=0.0, probe=1e-3)
    normalize_advantage: bool = setting(True, "Standardise advantages in every minibatch.")
    normalize_obs: bool = setting(False, "Scale observations by running mean and deviation.")
    obs_clip: float = setting(
        10.0, "Scaled observations stay within this.", gt=0.0, static=True, live_when={"normalize_obs": True}, probe=0.1
    )
    normalize_reward: bool = setting(False, "Scale rewards by the running deviation of the discounted return.")
    reward_scale_clip: float = setting(
        10.0,
        "Scaled rewards stay within this.",
        gt=0.0,
        static=True,
        live_when={"normalize_reward": True},
        probe=0.1,
    )


@dataclass(frozen=True)
class Batch(Generic[T]):
    """The real steps of a rollout, flattened `[N]`, ready for an update: arrays, or tensors for autograd."""

    obs: T
    action: T
    log_prob: T
    value: T
    advantage: T
    target: T

    def __len__(self) -> int:
        return len(self.advantage)

    def map(self, function: Callable[[T], S]) -> Batch[S]:
        return Batch(*(function(getattr(self, name)) for name in self.__dataclass_fields__))


def build_network(info: SpaceInfo, model: ModelConfig) -> MLPActorCritic:
    """The default network of the family."""
    return MLPActorCritic(
        info,
        hidden_sizes=model.hidden_sizes,
        activation=model.activation,
        orthogonal=model.ortho_init,
        log_std_init=model.log_std_init,
    )


class OnPolicyAlgorithm(Algorithm):
    """A network of policy and value, and the advantages of what it did. Subclasses say how to update it."""

    cfg: OnPolicyConfig
    optimizer: FlatAdam | FlatRMSprop

    def __init__(self, context: Context) -> None:
        super().__init__(context.config)
        self.network = (context.model_factory or build_network)(context.info, context.model).to(context.device)
        self.parameters = FlatParameters(self.network.parameters())
        self.mlp = engine_for(self.network, self.parameters) if context.engine == "auto" else None
        self.distribution = action_distribution(context.info)
        self.device = context.device
        self.policy_rng = context.streams["policy"]
        self.batch_rng = context.streams["batch"]
        self.n_updates = 0
        cfg = self.cfg
        self.obs_normalizer = ObservationNormalizer(context.info.obs_shape, cfg.obs_clip) if cfg.normalize_obs else None
        self.reward_normalizer = (
            RewardNormalizer(context.num_envs, cfg.reward_scale_clip) if cfg.normalize_reward else None
        )

    def act(self, obs: Array, carry: Any = None, *, explore: bool) -> Act:
        obs = self._normalize(obs)
        if not explore:
            return Act(self.distribution.mode(self._forward(obs)[0]), carry)
        if self.mlp is not None:
            action, log_prob, value = self.mlp.sample(obs, self.policy_rng)
        else:
            params, value = self._forward(obs)
            action, log_prob = self.distribution.sample(params, self.policy_rng)
        return Act(action, carry, {"log_prob": log_prob, "value": value})

    def _normalize(self, obs: Array) -> Array:
        return obs if self.obs_normalizer is None else self.obs_normalizer(obs)

    def _forward(self, obs: Array) -> tuple[Array, Array]:
        with torch.inference_mode():
            params, value = self.network(self._tensor(obs))
            return params.cpu().numpy(), value.cpu().numpy()

    def _tensor(self, array: Array) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
        return tensor.float() if tensor.dtype == torch.uint8 else tensor

    def tensors(self, batch: Batch[Array]) -> Batch[Tensor]:
        """For autograd, on the network's device."""
        return batch.map(self._tensor)

    def prepare(self, rollout: Rollout) -> Batch[Array]:
        """Advantages and value targets of the rollout's real steps; the running statistics move here, once."""
        cfg, real = self.cfg, rollout.real
        obs = self._normalize(rollout.obs)
        value = rollout.extras["value"]
        _, bootstrap = self._forward(self._normalize(rollout.bootstrap_obs()))
        if self.obs_normalizer is not None:
            self.obs_normalizer.update(rollout.obs[real])
        reward = rollout.reward
        if self.reward_normalizer is not None:
            self.reward_normalizer.update(reward, rollout.done, real, cfg.gamma)
            reward = self.reward_normalizer(reward)
        advantage = gae(
            reward,
            value,
            rollout.next_values(value, bootstrap),
            rollout.terminated,
            rollout.truncated,
            gamma=cfg.gamma,
            gae_lambda=cfg.gae_lambda,
        )
        columns = (obs, rollout.action, rollout.extras["log_prob"], value, advantage, advantage + value)
        return Batch(*(column[real] for column in columns))

    def differentiate(self, loss: Tensor) -> None:
        """Leave the gradient of a loss in the flat buffer."""
        self.parameters.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]

    def descend(self) -> float:
        """One optimiser step down the gradient in the flat buffer; gives its norm before clipping."""
        norm = self.parameters.clip_grad_norm(self.cfg.max_grad_norm)
        self.optimizer.step(self.cfg.learning_rate)
        self.n_updates += 1
        return norm

    @property
    def engine(self) -> str:
        return "autograd" if self.mlp is None else "mlp"

    def policy_state(self) -> dict[str, Tensor]:
        state = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        if self.obs_normalizer is not None:
            state |= {f"obs_normalizer.{name}": tensor for name, tensor in self.obs_normalizer.state_dict().items()}
        return state

    def load_policy_state(self, state: Mapping[str, Tensor]) -> None:
        self.network.load_state_dict(_under(state, "network."))
        if self.obs_normalizer is not None:
            self.obs_normalizer.load_state_dict(_under(state, "obs_normalizer."))

    def training_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"optimizer": self.optimizer.state_dict(), "n_updates": self.n_updates}
        if self.reward_normalizer is not None:
            state["reward_normalizer"] = self.reward_normalizer.state_dict()
        return state

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.n_updates = state["n_updates"]
        if self.reward_normalizer is not None:
            self.reward_normalizer.load_state_dict(state["reward_normalizer"])


def _under(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
