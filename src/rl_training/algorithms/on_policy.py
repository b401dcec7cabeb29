"""The shared base of the on-policy actor-critic algorithms: settings, acting, advantages, state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rl_training.algorithms.base import Algorithm, AlgorithmConfig, CollectingLoopConfig, Context
from rl_training.algorithms.parts.actor_critic_policy import ActorCriticModelConfig, ActorCriticPolicy
from rl_training.algorithms.parts.objectives import AutogradForm, Batch, EngineForm, Form, Heads, Objective, Slopes
from rl_training.algorithms.parts.readers import reader_of
from rl_training.algorithms.settings import setting
from rl_training.data.chunks import Part
from rl_training.data.rollout import Rollout
from rl_training.models.flat import FlatAdam, FlatParameters, FlatRMSprop
from rl_training.models.normalizers import RewardNormalizer
from rl_training.ops.returns import gae
from rl_training.types import Array, Capabilities, SpaceInfo

__all__ = [
    "EVERY_SPACE",
    "ActorCriticModelConfig",
    "ActorCriticPolicy",
    "AdvantageConfig",
    "Batch",
    "Heads",
    "Objective",
    "OnPolicyAlgorithm",
    "OnPolicyConfig",
    "OnPolicyLoopConfig",
    "RolloutConfig",
    "Slopes",
]

# The spaces that the policies of this family support.
EVERY_SPACE = Capabilities(
    observations=("vector", "image", "dict"), actions=("discrete", "multi_discrete", "multi_binary", "continuous")
)


class OnPolicyLoopConfig(CollectingLoopConfig):
    """One rollout of `n_steps * num_envs` steps, then one update."""

    n_steps: int = setting(256, "Steps of each environment between two updates.", ge=1, probe=8)

    sizes: ClassVar[tuple[str, ...]] = ("frame_stack", "n_steps")

    @property
    def steps_at_once(self) -> int:
        return self.n_steps

    @property
    def rollouts_stand_alone(self) -> bool:
        return True

    def least_bytes(self, info: SpaceInfo, num_envs: int) -> int:
        return Rollout.bytes_needed(self.n_steps, num_envs, info)


class RolloutConfig(AlgorithmConfig):
    """Hyperparameters of all algorithms that learn from rollouts, however they estimate advantages."""

    learning_rate: float = setting(3e-4, "Step size of the optimiser.", ge=0.0, report=True)
    gamma: float = setting(0.99, "Discount factor.", ge=0.0, le=1.0, probe=0.5)
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


class AdvantageConfig(RolloutConfig):
    """Hyperparameters of the algorithms that estimate advantages by GAE."""

    gae_lambda: float = setting(0.95, "Trace decay of the advantage estimate.", ge=0.0, le=1.0, probe=0.5)


class OnPolicyConfig(AdvantageConfig):
    """Hyperparameters of an actor-critic that is trained by the gradient of one loss for policy and value."""

    vf_coef: float = setting(0.5, "Weight of the value loss, the mean squared error.", ge=0.0)
    max_grad_norm: float = setting(0.5, "Gradients are scaled down to this norm.", gt=0.0, probe=1e-3)


class OnPolicyAlgorithm(Algorithm):
    """Learns from the advantages of its policy's actions. Subclasses define the update."""

    cfg: RolloutConfig
    policy: ActorCriticPolicy
    policy_type: ClassVar[type[ActorCriticPolicy]] = ActorCriticPolicy
    # The loss of a minibatch, for algorithms that train policy and value by the gradient of one loss.
    objective: ClassVar[Objective | None] = None
    optimizer: FlatAdam | FlatRMSprop

    def __init__(self, context: Context) -> None:
        policy = self.make_policy(context)
        super().__init__(context.config, policy)
        self.network, self.distribution, self.observer = policy.network, policy.distribution, policy.observer
        self.reader = reader_of(policy)
        self.parameters = FlatParameters(policy.weights)
        self.form = self.make_form(context.info)
        self.batch_rng = context.streams["batch"]
        self.reward_normalizer = (
            RewardNormalizer(context.num_envs, self.cfg.reward_scale_clip) if self.cfg.normalize_reward else None
        )

    def make_policy(self, context: Context) -> ActorCriticPolicy:
        return self.policy_type(context)

    def make_form(self, info: SpaceInfo) -> Form:
        """Choose how the objective's gradient is computed: by the engine if it supports the network, else autograd."""
        closed_form = self.objective is not None and self.objective.gradient is not None
        if closed_form and self.policy.engine == "mlp":
            return self.engine_form(info)
        return AutogradForm(self.policy, self.parameters)

    def engine_form(self, info: SpaceInfo) -> EngineForm:
        """The closed form of the default network."""
        return self.reader.engine_form(info)

    def gradient(self, batch: Batch[Array]) -> tuple[float, ...]:
        """Write the gradient of the objective to the flat buffer; returns what the objective reports."""
        assert self.objective is not None
        return self.form.gradient(self.objective, batch, self.cfg)

    def descend(self, max_grad_norm: float) -> float:
        """Take an optimiser step with the gradient in the flat buffer; returns its norm before clipping."""
        norm = self.parameters.clip_grad_norm(max_grad_norm)
        self.optimizer.step(self.cfg.learning_rate)
        self.n_updates += 1
        return norm

    def begin(self) -> None:
        """Called before the first rollout of a run; most algorithms do nothing here."""

    def warnings(self, rollouts: int) -> list[str]:
        """What this many more rollouts are too few for, one sentence each; nothing in most algorithms."""
        return []

    def memories(self, rollout_rows: int) -> Mapping[str, Part]:
        """Buffers that outlive a rollout (of at most `rollout_rows` rows); most algorithms have none."""
        return {}

    def prepare(self, rollout: Rollout) -> Batch[Array]:
        """Advantages and value targets of the rollout's real steps; also updates the running statistics, once."""
        cfg, real = self.cfg, rollout.real
        assert isinstance(cfg, AdvantageConfig)
        obs = self.observer.scaled(rollout.obs)
        value = rollout.records["value"]
        bootstrap = self.bootstrap_values(rollout)
        self.observer.update(rollout.obs[real])
        advantage = gae(
            self.scaled_reward(rollout),
            value,
            rollout.next_values(value, bootstrap),
            rollout.terminated,
            rollout.truncated,
            gamma=cfg.gamma,
            gae_lambda=cfg.gae_lambda,
        )
        self.network.train()
        action = self.policy.to_network(rollout.action)
        columns = (obs, action, rollout.records["log_prob"], value, advantage, advantage + value)
        return Batch(*(column[real] for column in columns))

    def bootstrap_values(self, rollout: Rollout) -> Array:
        """The values of `rollout.bootstrap_obs`, with the statistics that the rollout was collected with."""
        return self.reader.bootstrap_values(rollout)

    def scaled_reward(self, rollout: Rollout) -> Array:
        """The rewards to learn from; if they are scaled, their statistics are updated first."""
        if self.reward_normalizer is None:
            return rollout.reward
        self.reward_normalizer.update(rollout.reward, rollout.done, rollout.real, self.cfg.gamma, rollout.envs)
        return self.reward_normalizer(rollout.reward)

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
