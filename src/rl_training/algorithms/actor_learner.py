"""The shared base of the actor-learner algorithms: they learn from rollouts that older policies have made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

from rl_training.algorithms.base import Context, PolicyContext, model_setting
from rl_training.algorithms.on_policy import OnPolicyAlgorithm, OnPolicyLoopConfig, RolloutConfig
from rl_training.algorithms.parts.actor_critic_policy import ActorCriticModelConfig, ActorCriticPolicy
from rl_training.algorithms.parts.objectives import Batch
from rl_training.algorithms.parts.readers import Judged
from rl_training.algorithms.parts.recurrent_policy import RecurrentPolicy, core_weights
from rl_training.algorithms.settings import setting
from rl_training.data.rollout import Rollout
from rl_training.ops.returns import vtrace
from rl_training.types import Array, SpaceInfo, UserError


class ActorLearnerLoopConfig(OnPolicyLoopConfig):
    """Rollouts that are short, so that the policy that made them is not old when they are learned from."""

    n_steps: int = setting(32, "Steps of each environment between two updates.", ge=1, probe=8)
    lag: int = setting(
        0,
        "How many updates old the policy is that gathers; with 0 workers wait while the learner learns.",
        ge=0,
        probe=1,
    )
    rollouts_per_update: int | None = setting(
        None,
        "Rollouts that an update learns from, each of another worker; if null: 1, or with lag=0 one of every worker.",
        ge=1,
        live_when={"num_workers": 2, "num_envs": 2},
        probe=1,
    )

    @property
    def rounds_ahead(self) -> int:
        return self.lag

    def rollouts_per_round(self, num_workers: int) -> int:
        wanted = self.rollouts_per_update
        if wanted is not None and wanted > num_workers:
            raise UserError(
                f"rollouts_per_update={wanted}: must be at most num_workers={num_workers}; each is of another worker"
            )
        return wanted or (num_workers if self.lag == 0 else 1)


class ActorLearnerModelConfig(ActorCriticModelConfig):
    """The networks of policy and value, behind a recurrent core if there is one."""

    model: str = model_setting(probe="rl_training.testing:LinearActorCritic", live_when={"rnn": "none"})
    use_sde: bool = setting(
        False,
        "State-dependent exploration (gSDE) of continuous actions; not with an rnn.",
        live_when={"actions": "continuous", "rnn": "none"},
    )
    sde_sample_freq: int | None = setting(
        None,
        "Steps between two draws of gSDE's noise; once per rollout if null.",
        ge=1,
        live_when={"use_sde": True, "actions": "continuous", "rnn": "none"},
        probe=1,
    )
    rnn: Literal["none", "lstm", "gru"] = setting("none", "Kind of the recurrent core, if there is one.", probe="gru")
    rnn_hidden_size: int = setting(
        128, "Width of the recurrent core.", aliases=["lstm_hidden_size"], ge=1, live_when={"rnn": "lstm"}, probe=4
    )
    shared_core: bool = setting(
        False,
        "One core for policy and value, which learns from both; one each if false.",
        live_when={"rnn": "lstm"},
    )

    sizes: ClassVar[tuple[str, ...]] = ("hidden_sizes", "rnn_hidden_size")

    def least_weights(self, info: SpaceInfo) -> int:
        if self.rnn == "none" or self.model != "auto":
            return super().least_weights(info)
        return super().least_weights(info) + core_weights(self.rnn, self.rnn_hidden_size)


class ActorLearnerConfig(RolloutConfig):
    """Hyperparameters of an actor-critic that learns from V-trace (Espeholt et al. 2018, section 4)."""

    vf_coef: float = setting(0.5, "Weight of the value loss, the mean squared error.", ge=0.0)
    max_grad_norm: float = setting(0.5, "Gradients are scaled down to this norm.", gt=0.0, probe=1e-3)
    rho_bar: float = setting(
        1.0, "pi / mu counts at most this in the value's errors: what the value is of.", gt=0.0, probe=0.5
    )
    c_bar: float = setting(
        1.0, "pi / mu counts at most this in the trace: how far back errors reach.", ge=0.0, probe=0.5
    )
    vtrace_lambda: float = setting(1.0, "Trace decay of V-trace.", ge=0.0, le=1.0, probe=0.5)


def actor_learner_policy(context: PolicyContext) -> ActorCriticPolicy:
    """The policy that the model settings ask for: with a recurrent core, or without."""
    model: Any = context.model
    if model.rnn == "none":
        return ActorCriticPolicy(context)
    if model.use_sde:
        raise UserError(f"use_sde=True, rnn={model.rnn!r}: state-dependent exploration needs rnn=none")
    return RecurrentPolicy(context)


class ActorLearnerAlgorithm(OnPolicyAlgorithm):
    """Learns from V-trace advantages and targets. Subclasses define the update."""

    cfg: ActorLearnerConfig

    def make_policy(self, context: Context) -> ActorCriticPolicy:
        return actor_learner_policy(context)

    def prepare(self, rollout: Rollout) -> Batch[Array]:
        """V-trace of the rollout's real steps; also updates the running statistics, once.

        Values are those of the learner, and observations have its scale: the rows of a rollout are not scaled yet.
        `Batch.log_prob` is that of the policy that the loss compares the learner with.
        """
        cfg, real, behaviour = self.cfg, rollout.real, rollout.records["log_prob"]
        obs = self.observer.scaled(rollout.obs)
        judged = self.reader.judge(rollout)
        log_prob = self.corrected_log_prob(rollout, judged)
        self.observer.update(rollout.obs[real])
        target, advantage = vtrace(
            log_prob - behaviour,
            self.scaled_reward(rollout),
            judged.value,
            rollout.next_values(judged.value, judged.bootstrap),
            rollout.terminated,
            rollout.truncated,
            gamma=cfg.gamma,
            vtrace_lambda=cfg.vtrace_lambda,
            rho_bar=cfg.rho_bar,
            c_bar=cfg.c_bar,
        )
        self.network.train()
        action = self.policy.to_network(rollout.action)
        columns = (obs, action, self.anchor(behaviour, log_prob), judged.value, advantage, target)
        data = Batch(*(column[real] for column in columns))
        return replace(data, obs=self.reader.arranged(data.obs, rollout))

    def corrected_log_prob(self, rollout: Rollout, judged: Judged) -> Array:
        """Log-probabilities `[T, B]` of the policy that V-trace corrects for: the learner's own."""
        return judged.log_prob

    def anchor(self, behaviour: Array, log_prob: Array) -> Array:
        """Log-probabilities of the policy that the loss compares the learner with: the one that acted."""
        return behaviour
