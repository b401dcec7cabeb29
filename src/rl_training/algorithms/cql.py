"""Conservative Q-learning (Kumar et al. 2020): CQL(H), for continuous and for discrete actions."""

from __future__ import annotations

import math

import numpy as np

from rl_training.algorithms.base import AlgorithmSpec, Context, PolicyContext
from rl_training.algorithms.off_policy import Minibatch, NetworkPolicy, OffPolicyAlgorithm
from rl_training.algorithms.offline import OfflineLoopConfig
from rl_training.algorithms.parts.autograd import DrawnActions
from rl_training.algorithms.parts.discrete_q import DISCRETE_Q, discrete_policy
from rl_training.algorithms.parts.networks import EnsembleModelConfig
from rl_training.algorithms.parts.policies import squashed
from rl_training.algorithms.sac import SAC, LogScalar, SACConfig, Variant, fit_critics, soft_policy
from rl_training.algorithms.settings import setting
from rl_training.models.flat import Learner
from rl_training.types import Array, Capabilities, Metrics, UserError

_CONTINUOUS = {"actions": "continuous"}


class CQLConfig(SACConfig):
    """Critics: the TD error, and cql_alpha (log of the integral of exp Q(s, .) - Q(s, a)). Actor: as in SAC."""

    actor_learning_rate: float = setting(1e-4, "Step size of the actor.", ge=0.0, live_when=_CONTINUOUS)
    cql_alpha: float = setting(5.0, "Weight of the gap against the squared TD error.", ge=0.0, report=True)
    cql_target_gap: float | None = setting(
        None,
        "If given, a factor of cql_alpha is learned that keeps the gap at this value (the Lagrange form).",
        static=True,
        live_when={"cql_alpha": 5.0},
        probe=0.1,
    )
    cql_samples: int = setting(
        10,
        "Sampled actions of each kind per state: uniform, the policy's there, the policy's at the next state.",
        ge=1,
        live_when=_CONTINUOUS,
        probe=2,
    )
    backup_entropy: bool = setting(False, "Include the entropy of the next action in targets.", live_when=_CONTINUOUS)
    epsilon: float = setting(
        0.05,
        "Share of random actions in online training.",
        ge=0.0,
        le=1.0,
        live_when={"actions": "discrete", "online": True},
        probe=0.9,
    )

    @property
    def soft_targets(self) -> bool:
        return self.backup_entropy


class Conservatism:
    """The weight of the gap: cql_alpha, times a learned factor if there is a target for the gap."""

    def __init__(self, context: Context) -> None:
        cfg = context.config
        assert isinstance(cfg, CQLConfig)
        self.learners: dict[str, Learner] = {}
        if cfg.cql_target_gap is not None:
            self._factor = LogScalar(1.0).to(context.device)
            self.learners["cql_factor"] = Learner(self._factor)

    def weight(self, cfg: CQLConfig) -> float:
        return cfg.cql_alpha * (self._factor.value if self.learners else 1.0)

    def adapt(self, cfg: CQLConfig, gap: float) -> None:
        """Raise the weight of the gap while the gap is above its target, and lower it while it is below."""
        if cfg.cql_target_gap is None:
            return
        learner = self.learners["cql_factor"]
        # The gradient of -factor * cql_alpha * (gap - target) with respect to the logarithm of the factor.
        learner.parameters.grad.fill_(self._factor.value * cfg.cql_alpha * (cfg.cql_target_gap - gap))
        learner.descend(cfg.learning_rate)

    def fit(self, agent: SAC, mini: Minibatch, target: Array) -> Metrics:
        """One step of the critics towards their targets that also lowers the values of actions not in the data."""
        cfg = agent.cfg
        assert isinstance(cfg, CQLConfig)
        if cfg.cql_alpha == 0.0:
            return fit_critics(agent, mini, target)
        weight = self.weight(cfg)
        drawn = draw_actions(agent, mini, cfg.cql_samples)
        # Half the weight, since the squared TD error is halved too.
        loss, mean, gap = agent.critics.fit_conservatively(
            mini.obs, mini.action, target, drawn, 0.5 * weight, cfg.learning_rate
        )
        self.adapt(cfg, gap)
        return {"critic_loss": loss, "q_mean": mean, "conservative_gap": gap, "conservative_weight": weight}


def draw_actions(agent: SAC, mini: Minibatch, count: int) -> DrawnActions:
    """Sampled actions for every state: uniform ones, the policy's there, and the policy's at the next state."""
    shape, rng = (len(mini), count, agent.info.action_size), agent.batch_rng
    uniform = rng.uniform(-1.0, 1.0, shape).astype(np.float32)
    density = np.full(shape[:2], -shape[2] * math.log(2.0), np.float32)
    drawn = [(uniform, density)] + [
        _several(agent.actor.outputs(rows), rng.standard_normal(shape, dtype=np.float32))
        for rows in (mini.obs, mini.next_obs)
    ]
    actions, densities = zip(*drawn, strict=True)
    return DrawnActions(np.concatenate(actions, axis=1), np.concatenate(densities, axis=1))


def _several(params: Array, noise: Array) -> tuple[Array, Array]:
    """Actions `[B, S, A]` and their log-densities `[B, S]` of squashed Gaussians, for noise `[B, S, A]`."""
    batch, count, size = noise.shape
    action, log_prob = squashed(np.repeat(params, count, axis=0), noise.reshape(batch * count, size))
    return action.reshape(noise.shape), log_prob.reshape(batch, count)


class DiscreteCQL(OffPolicyAlgorithm):
    """Double Q-learning that also lowers the values of actions that are not in the data."""

    cfg: CQLConfig

    def __init__(self, context: Context) -> None:
        cfg = context.config
        assert isinstance(cfg, CQLConfig)
        if cfg.ent_coef not in ("auto", 0.0):
            raise UserError(f"ent_coef={cfg.ent_coef!r}: has no effect on discrete actions in CQL; leave it out")
        policy = discrete_policy(context)
        q, conservatism = DISCRETE_Q[policy.engine](policy), Conservatism(context)
        super().__init__(context, policy, {"network": q.learner, **conservatism.learners}, {"network": q.follower})
        self.q, self._conservatism = q, conservatism

    def current(self, name: str) -> float:
        return 0.0 if name == "ent_coef" else super().current(name)  # the entropy is not used here

    def learn(self, mini: Minibatch) -> Metrics:
        cfg, q, weight = self.cfg, self.q, self._conservatism.weight(self.cfg)
        target = q.bootstrap(mini, double_q=True)
        outcome = q.differentiate(mini.obs, mini.action, target, np.ones(len(mini), np.float32), 0.5 * weight)
        q.learner.descend(cfg.learning_rate)
        self._conservatism.adapt(cfg, outcome.gap)
        q.follower.follow(cfg.tau)
        return {
            "loss": outcome.loss,
            "q_mean": outcome.value,
            "conservative_gap": outcome.gap,
            "conservative_weight": weight,
        }


def cql_policy(context: PolicyContext) -> NetworkPolicy:
    """Build only the policy, in the form that fits the actions."""
    return soft_policy(context) if context.info.continuous else discrete_policy(context)


def build_cql(context: Context) -> OffPolicyAlgorithm:
    """Build CQL in the form that fits the actions."""
    if not context.info.continuous:
        return DiscreteCQL(context)
    conservatism = Conservatism(context)
    agent = SAC(
        context,
        Variant(
            fit=conservatism.fit,
            actor_learning_rate=lambda cfg: float(cfg.actor_learning_rate),
        ),
    )
    agent.learners |= conservatism.learners
    return agent


SPEC = AlgorithmSpec(
    name="cql",
    family="offline",
    summary="Conservative Q-learning",
    config=CQLConfig,
    loop=OfflineLoopConfig,
    model=EnsembleModelConfig,
    policy=cql_policy,
    build=build_cql,
    capabilities=Capabilities(
        observations=("vector", "image", "dict"), actions=("continuous", "discrete"), offline=True
    ),
)
