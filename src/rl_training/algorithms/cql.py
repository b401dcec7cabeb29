"""Conservative Q-learning (Kumar et al. 2020): CQL(H), for continuous and for discrete actions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rl_training.algorithms.base import AlgorithmSpec, Context, setting
from rl_training.algorithms.off_policy import Minibatch, OffPolicyAlgorithm
from rl_training.algorithms.offline import OfflineLoopConfig
from rl_training.algorithms.parts.critics import LEAST, DrawnActions
from rl_training.algorithms.parts.discrete_q import ChoiceValues
from rl_training.algorithms.parts.networks import EnsembleModelConfig
from rl_training.algorithms.parts.soft_actor_critic import LogScalar, SoftActorCritic, SoftConfig, plain_regression
from rl_training.algorithms.sac import sac_goal
from rl_training.models.learner import Learner
from rl_training.types import Act, Array, Capabilities, Metrics, UserError

_CONTINUOUS = {"actions": "continuous"}


class CQLConfig(SoftConfig):
    """Critics: the TD error, and cql_alpha (log of the integral of exp Q(s, .) - Q(s, a)). Actor: as in SAC."""

    actor_learning_rate: float = setting(1e-4, "Step size of the actor.", ge=0.0, live_when=_CONTINUOUS)
    cql_alpha: float = setting(5.0, "Weight of the gap against the squared TD error.", ge=0.0, report=True)
    cql_target_gap: float | None = setting(
        None,
        "If given, a factor of cql_alpha is learned that holds the gap at this (the Lagrange form).",
        static=True,
        live_when={"cql_alpha": 5.0},
        probe=0.1,
    )
    cql_samples: int = setting(
        10,
        "Actions of each kind at a state: uniform, of the policy there, of the policy at the next.",
        ge=1,
        live_when=_CONTINUOUS,
        probe=2,
    )
    backup_entropy: bool = setting(False, "Let targets value the entropy of the next action.", live_when=_CONTINUOUS)
    epsilon: float = setting(
        0.05,
        "Share of random choices that are taken online.",
        ge=0.0,
        le=1.0,
        live_when={"actions": "discrete", "online": True},
        probe=0.9,
    )


class Conservatism:
    """How much the gap weighs: cql_alpha, times a factor that is learned if the gap is to come to a target."""

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
        """Weigh the gap more while it is above its target, and less while it is below."""
        if cfg.cql_target_gap is None:
            return
        learner = self.learners["cql_factor"]
        # The gradient of -factor * cql_alpha * (gap - target), by the logarithm of the factor.
        learner.parameters.grad.fill_(self._factor.value * cfg.cql_alpha * (cfg.cql_target_gap - gap))
        learner.descend(cfg.learning_rate)

    def regress(self, agent: SoftActorCritic, mini: Minibatch, target: Array) -> Metrics:
        """One step of the critics towards their targets that also lowers the values of actions not in the data."""
        cfg = agent.cfg
        assert isinstance(cfg, CQLConfig)
        if cfg.cql_alpha == 0.0:
            return plain_regression(agent, mini, target)
        weight = self.weight(cfg)
        drawn = draw_actions(agent, mini, cfg.cql_samples)
        # Half the weight, since the squared TD error is halved too.
        loss, mean, gap = agent.critics.fit_conservatively(
            mini.obs, mini.action, target, drawn, 0.5 * weight, cfg.learning_rate
        )
        self.adapt(cfg, gap)
        return {"critic_loss": loss, "q_mean": mean, "conservative_gap": gap, "conservative_weight": weight}


def draw_actions(agent: SoftActorCritic, mini: Minibatch, count: int) -> DrawnActions:
    """Actions to judge at every state: uniform ones, the policy's, and those that it would take at the next state."""
    shape, rng = (len(mini), count, agent.info.action_size), agent.batch_rng
    uniform = rng.uniform(-1.0, 1.0, shape).astype(np.float32)
    density = np.full(shape[:2], -shape[2] * math.log(2.0), np.float32)
    drawn = [(uniform, density)] + [
        agent.actor.sample_several(rows, rng.standard_normal(shape, dtype=np.float32))
        for rows in (mini.obs, mini.next_obs)
    ]
    actions, densities = zip(*drawn, strict=True)
    return DrawnActions(np.concatenate(actions, axis=1), np.concatenate(densities, axis=1))


def cql_goal(agent: SoftActorCritic, mini: Minibatch, next_action: Array, entropy_cost: Array) -> Array:
    """SAC's targets, in which the entropy counts only if the config says so."""
    cfg = agent.cfg
    assert isinstance(cfg, CQLConfig)
    return sac_goal(agent, mini, next_action, entropy_cost if cfg.backup_entropy else 0.0 * entropy_cost)


class DiscreteCQL(OffPolicyAlgorithm):
    """Double Q-learning that also lowers the values of choices that the data does not have."""

    cfg: CQLConfig
    policy = "network"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        if self.cfg.ent_coef not in ("auto", 0.0):
            raise UserError(
                f"ent_coef={self.cfg.ent_coef!r}: choices have no entropy that CQL would value; leave it out"
            )
        self.values, self._conservatism = ChoiceValues(context, self.observer, dueling=False), Conservatism(context)
        self.learners = {"network": self.values.learner, **self._conservatism.learners}
        self.followers = {"network": self.values.follower}

    @property
    def engine(self) -> str:
        return "mlp" if self.values.fast else "autograd"

    def current(self, name: str) -> float:
        return 0.0 if name == "ent_coef" else super().current(name)  # no entropy is valued here

    def act(self, obs: Array, carry: Any = None, *, explore: bool) -> Act:
        rows = self.observer.scaled(obs)
        return Act(self.values.decide(rows, self.cfg.epsilon, self.policy_rng if explore else None), carry)

    def learn(self, mini: Minibatch) -> Metrics:
        cfg, values, weight = self.cfg, self.values, self._conservatism.weight(self.cfg)
        target = values.bootstrap(mini, double_q=True)
        outcome = values.differentiate(mini.obs, mini.action, target, np.ones(len(mini), np.float32), 0.5 * weight)
        values.learner.descend(cfg.learning_rate)
        self._conservatism.adapt(cfg, outcome.gap)
        values.follower.follow(cfg.tau)
        return {
            "loss": outcome.loss,
            "q_mean": outcome.value,
            "conservative_gap": outcome.gap,
            "conservative_weight": weight,
        }


def build_cql(context: Context) -> OffPolicyAlgorithm:
    """The form that fits the actions."""
    if not context.info.continuous:
        return DiscreteCQL(context)
    conservatism = Conservatism(context)
    agent = SoftActorCritic(
        context,
        goal=cql_goal,
        reduction=LEAST,
        regress=conservatism.regress,
        actor_rate=lambda cfg: float(cfg.actor_learning_rate),
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
    build=build_cql,
    capabilities=Capabilities(
        observations=("vector", "image", "dict"), actions=("continuous", "discrete"), offline=True
    ),
)
