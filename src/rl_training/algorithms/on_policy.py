"""What the actor-critic algorithms of the on-policy loop share: settings, acting, advantages, state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Algorithm, AlgorithmConfig, CollectingLoopConfig, Context, ModelConfig, setting
from rl_training.algorithms.parts.observer import Observer, under
from rl_training.data.rollout import Rollout
from rl_training.models.actor_critic_engine import ActorCriticEngine, engine_for
from rl_training.models.encoders import encoder_for
from rl_training.models.flat import FlatAdam, FlatParameters, FlatRMSprop
from rl_training.models.mlp_actor_critic import EncodedActorCritic, MLPActorCritic, Shape
from rl_training.models.normalizers import RewardNormalizer
from rl_training.ops.distributions import FORBIDDEN, DiagonalGaussian, action_distribution
from rl_training.ops.kernels import heads
from rl_training.ops.returns import gae
from rl_training.types import Act, Array, Capabilities, SpaceInfo, UserError

S = TypeVar("S", Array, Tensor)
T = TypeVar("T", Array, Tensor)


# What a policy of this family can work with.
EVERY_SPACE = Capabilities(
    observations=("vector", "image", "dict"), actions=("discrete", "multi_discrete", "multi_binary", "continuous")
)


class PolicyModelConfig(ModelConfig):
    """How networks of policy and value start."""

    ortho_init: bool = setting(True, "Orthogonal initialisation; torch's default otherwise.")
    log_std_init: float = setting(
        0.0, "Initial log standard deviation of continuous actions.", static=True, live_when={"actions": "continuous"}
    )

    def shape(self) -> Shape:
        """How the MLPs of policy and value are made."""
        return Shape(self.hidden_sizes, self.activation, self.ortho_init, self.log_std_init)


class ActorCriticModelConfig(PolicyModelConfig):
    """The networks of policy and value."""

    use_sde: bool = setting(
        False, "State-dependent exploration (gSDE) of continuous actions.", live_when={"actions": "continuous"}
    )
    sde_sample_freq: int | None = setting(
        None,
        "Steps between two draws of gSDE's noise; once per rollout if null.",
        ge=1,
        live_when={"use_sde": True, "actions": "continuous"},
        probe=1,
    )

    def shape(self) -> Shape:
        return replace(super().shape(), state_dependent_noise=self.use_sde)


class OnPolicyLoopConfig(CollectingLoopConfig):
    """One rollout of `n_steps * num_envs` steps, then one update."""

    n_steps: int = setting(256, "Steps of each environment between two updates.", ge=1, probe=8)


class AdvantageConfig(AlgorithmConfig):
    """Hyperparameters of everything that learns from the advantages of rollouts."""

    learning_rate: float = setting(3e-4, "Step size of the optimiser.", ge=0.0, report=True)
    gamma: float = setting(0.99, "Discount factor.", ge=0.0, le=1.0, probe=0.5)
    gae_lambda: float = setting(0.95, "Trace decay of the advantage estimate.", ge=0.0, le=1.0, probe=0.5)
    ent_coef: float = setting(0.0, "Weight of the entropy bonus.", aliases=["entropy_coef"], ge=0.0, report=True)
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


class OnPolicyConfig(AdvantageConfig):
    """Hyperparameters of an actor-critic that is trained by the gradient of one loss for policy and value."""

    vf_coef: float = setting(0.5, "Weight of the value loss.", ge=0.0)
    max_grad_norm: float = setting(0.5, "Gradients are scaled down to this norm.", gt=0.0, probe=1e-3)


@dataclass(frozen=True)
class Batch(Generic[T]):
    """The real steps of a rollout, flattened `[N]`, ready for an update: arrays, or tensors for autograd."""

    obs: Any
    action: T
    log_prob: T
    value: T
    advantage: T
    target: T

    def __len__(self) -> int:
        return len(self.advantage)

    def map(self, function: Callable[[T], S]) -> Batch[S]:
        return Batch(*(function(getattr(self, name)) for name in self.__dataclass_fields__))


def build_network(info: SpaceInfo, model: ActorCriticModelConfig) -> MLPActorCritic | EncodedActorCritic:
    """The default network of the family: MLPs, behind an encoder where observations are more than a vector."""
    shape = model.shape()
    encoder = encoder_for(info, orthogonal=model.ortho_init)
    inputs = encoder.features if encoder is not None else math.prod(info.input_shape)
    network = MLPActorCritic(inputs, info.action_size, shape, continuous=info.continuous)
    return network if encoder is None else EncodedActorCritic(encoder, network)


class StateDependentNoise:
    """gSDE: the noise is a fixed linear function of the policy's features until another one is drawn.

    What was drawn, and how long ago, is the policy's carry: a rollout that starts without one draws anew.
    """

    def __init__(self, network: Any, rng: np.random.Generator, every: int | None) -> None:
        self._network = network
        self._rng = rng
        self._every = every

    def __call__(self, inputs: Any, carry: Any) -> tuple[Array, Array, Array, Any]:
        """Actions, their log-probabilities, values, and the next carry."""
        with torch.inference_mode():
            outputs = (*self._network.features(inputs), self._network.log_std.exp())
            params, value, features, scale = (tensor.cpu().numpy() for tensor in outputs)
        drawn, age = carry if carry is not None else (None, 0)
        if drawn is None or (self._every is not None and age >= self._every):
            drawn, age = self._rng.standard_normal((len(params), *scale.shape), dtype=np.float32), 0
        shift = np.einsum("bf,bfa->ba", features, drawn * scale)
        action, log_prob = DiagonalGaussian(scale.shape[-1]).displaced(params, shift)
        return action, log_prob, value, (drawn, age + 1)


def noise_for(network: nn.Module, context: Context) -> StateDependentNoise | None:
    """The state-dependent noise of a policy, if its config asks for it."""
    model = context.model
    if not (isinstance(model, ActorCriticModelConfig) and model.use_sde):
        return None
    if not context.info.continuous:
        raise UserError(f"use_sde=True: is for continuous actions; these are {context.info.action_kind}")
    if context.model_factory is not None:
        raise UserError(f"use_sde=True: needs the package's own network, not model={model.model!r}")
    return StateDependentNoise(network, context.streams["policy"], model.sde_sample_freq)


def check_shapes(wanted: str, outputs: Any, fitting: Sequence[tuple[int, ...]]) -> None:
    """Refuse what a user's network gave for two observations, unless it is tensors of these shapes."""
    tensors = isinstance(outputs, tuple) and all(isinstance(item, Tensor) for item in outputs)
    shapes = [tuple(item.shape) for item in outputs] if tensors else type(outputs).__name__
    if shapes != fitting:
        raise UserError(f"{wanted}; for a batch of 2 it gave {shapes}")


class OnPolicyAlgorithm(Algorithm):
    """A network of policy and value, and the advantages of what it did. Subclasses say how to update it."""

    cfg: AdvantageConfig
    optimizer: FlatAdam | FlatRMSprop

    def __init__(self, context: Context) -> None:
        super().__init__(context.config)
        info, cfg, model = context.info, self.cfg, context.model
        make: Callable[..., Any] = context.model_factory or self.make_network
        self.network = make(info, model).to(context.device)
        self.distribution = action_distribution(info)
        self.observer = Observer(info, context.device, normalize=cfg.normalize_obs, clip=cfg.obs_clip)
        self.policy_rng = context.streams["policy"]
        self.batch_rng = context.streams["batch"]
        if context.model_factory is not None:
            self._check_outputs(context)
        self.parameters = FlatParameters(self.ordered_parameters(context))
        self.mlp = self.make_engine(info) if context.engine == "auto" else None
        self.sde = noise_for(self.network, context)
        self.n_updates = 0
        self.reward_normalizer = (
            RewardNormalizer(context.num_envs, cfg.reward_scale_clip) if cfg.normalize_reward else None
        )

    def make_network(self, info: SpaceInfo, model: Any) -> nn.Module:
        """The default network."""
        return build_network(info, model)

    def make_engine(self, info: SpaceInfo) -> ActorCriticEngine | None:
        """The fast path of the default network, where there is one."""
        return engine_for(self.network, self.parameters, info)

    def _check_outputs(self, context: Context) -> None:
        """Try a user's network on two observations of zeros: what it gives must fit the actions."""
        wanted, fitting = self.wanted_outputs()
        with torch.inference_mode():
            outputs = self.tried(context.info)
        check_shapes(f"model={context.model.model!r}: must give {wanted}", outputs, fitting)

    def wanted_outputs(self) -> tuple[str, list[tuple[int, ...]]]:
        """What a network has to give, in words, and the shapes of that for a batch of 2."""
        size = self.distribution.param_size
        return f"policy parameters [B, {size}] and values [B]", [(2, size), (2,)]

    def tried(self, info: SpaceInfo) -> Any:
        """What the network gives for two observations of zeros."""
        self.network.eval()
        return self.network(self.observer.tensors(np.zeros((2, *info.obs_shape), info.obs_dtype)))

    def ordered_parameters(self, context: Context) -> Iterable[nn.Parameter]:
        """The network's parameters in the order of the flat buffer; those that are trained apart stand together."""
        parameters: Iterable[nn.Parameter] = self.network.parameters()
        return parameters

    def act(self, obs: Array, carry: Any = None, *, explore: bool) -> Act:
        rows = self.observer.scaled(obs)
        if not explore:
            return Act(self.distribution.mode(self._forward(rows)[0]), carry)
        if self.mlp is not None:
            sampled = self.mlp.sample(self.observer.arrays(rows), self.policy_rng, self.observer.mask(rows))
            action, log_prob, value = sampled
        elif self.sde is not None:
            self.network.eval()
            action, log_prob, value, carry = self.sde(self.observer.tensors(rows), carry)
        else:
            params, value = self._forward(rows)
            action, log_prob = self.distribution.sample(params, self.policy_rng)
        return Act(action, carry, {"log_prob": log_prob, "value": value})

    def _forward(self, rows: Array) -> tuple[Array, Array]:
        mask = self.observer.mask(rows)
        if self.mlp is not None:
            return self.mlp.rows(self.observer.arrays(rows), mask)
        # A user's network may hold dropout or batch statistics: acting neither draws from them nor moves them.
        self.network.eval()
        with torch.inference_mode():
            params, value = self.network_outputs(rows)
            return params.cpu().numpy(), value.cpu().numpy()

    def network_outputs(self, rows: Any) -> tuple[Tensor, Tensor]:
        """Policy parameters, with forbidden choices ruled out, and values."""
        params, value = self.network(self.observer.tensors(rows))
        return self.allowed(params, rows), value

    def allowed(self, params: Tensor, rows: Array) -> Tensor:
        """Policy parameters with forbidden choices ruled out."""
        mask = self.observer.mask(rows)
        return params if mask is None else params.masked_fill(~self.observer.tensor(mask), FORBIDDEN)

    def evaluate(self, batch: Batch[Array]) -> tuple[Array, Array, Array]:
        """Log-probabilities and entropies of the actions, and values, each `[N]`, by the engine."""
        assert self.mlp is not None
        return self.mlp.evaluate(self.observer.arrays(batch.obs), batch.action, self.observer.mask(batch.obs))

    def tensors(self, batch: Batch[Array]) -> Batch[Tensor]:
        """For autograd, on the network's device; observations stay where they are, for `network_outputs` to take."""
        moved = batch.map(torch.from_numpy)
        return replace(moved.map(lambda column: column.to(self.observer.device)), obs=moved.obs)

    def standardized(self, advantage: Array) -> Array:
        """Advantages as the loss takes them: of zero mean and unit deviation, if the config says so."""
        if not self.cfg.normalize_advantage:
            return advantage
        scaled = np.empty_like(advantage)
        heads.standardize_kernel(advantage, scaled)
        return scaled

    def memories(self, rollout_rows: int) -> Mapping[str, Any]:
        """Parts of the loop that outlive a rollout of so many rows at most; most algorithms have none."""
        return {}

    def prepare(self, rollout: Rollout) -> Batch[Array]:
        """Advantages and value targets of the rollout's real steps; the running statistics move here, once."""
        cfg, real = self.cfg, rollout.real
        obs = self.observer.scaled(rollout.obs)
        value = rollout.extras["value"]
        bootstrap = self.bootstrap_values(rollout)
        self.observer.update(rollout.obs[real])
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
        self.network.train()
        columns = (obs, rollout.action, rollout.extras["log_prob"], value, advantage, advantage + value)
        return Batch(*(column[real] for column in columns))

    def bootstrap_values(self, rollout: Rollout) -> Array:
        """The values of `rollout.bootstrap_obs`, as the policy that made the rollout sees them."""
        return self._forward(self.observer.scaled(rollout.bootstrap_obs()))[1]

    def differentiate(self, loss: Tensor) -> None:
        """Leave the gradient of a loss in the flat buffer."""
        self.parameters.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]

    def descend(self, max_grad_norm: float) -> float:
        """One optimiser step down the gradient in the flat buffer; gives its norm before clipping."""
        norm = self.parameters.clip_grad_norm(max_grad_norm)
        self.optimizer.step(self.cfg.learning_rate)
        self.n_updates += 1
        return norm

    @property
    def engine(self) -> str:
        return "autograd" if self.mlp is None else "mlp"

    def policy_state(self) -> dict[str, Tensor]:
        network = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        return network | self.observer.state_dict()

    def load_policy_state(self, state: Mapping[str, Tensor]) -> None:
        self.network.load_state_dict(under(state, "network."))
        self.observer.load_state_dict(state)

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
