"""PPO with recurrent policy and value: an LSTM or a GRU, trained on sequences of steps."""

from __future__ import annotations

from dataclasses import replace

from rl_training.algorithms.base import AlgorithmSpec
from rl_training.algorithms.on_policy import EVERY_SPACE, OnPolicyLoopConfig
from rl_training.algorithms.parts.objectives import Batch
from rl_training.algorithms.parts.recurrent_policy import RecurrentModelConfig, RecurrentPolicy
from rl_training.algorithms.ppo import PPO, PPOConfig
from rl_training.algorithms.settings import setting
from rl_training.data.rollout import Rollout
from rl_training.types import Array


class RecurrentPPOLoopConfig(OnPolicyLoopConfig):
    """Rollouts that are long enough for a recurrent network."""

    n_steps: int = setting(128, "Steps of each environment between two updates.", ge=1, probe=8)


class RecurrentPPOConfig(PPOConfig):
    """PPO's objective, with pi(a | all observations of the episode so far)"""

    batch_size: int = setting(
        128, "Steps in a minibatch, which consists of whole sequences (at least one).", ge=1, probe=12
    )
    sequence_length: int | None = setting(
        None,
        "Steps of an environment through which gradients flow; n_steps (the whole rollout) if null or larger.",
        ge=1,
        probe=2,
    )


class RecurrentPPO(PPO):
    """PPO's update on minibatches of sequences; each starts from the recurrent state recorded while acting."""

    cfg: RecurrentPPOConfig
    policy: RecurrentPolicy
    policy_type = RecurrentPolicy

    def prepare(self, rollout: Rollout) -> Batch[Array]:
        data = super().prepare(rollout)
        return replace(data, obs=self.reader.arranged(data.obs, rollout, self.cfg.sequence_length))


SPEC = AlgorithmSpec(
    name="recurrent_ppo",
    family="on_policy",
    summary="PPO with a recurrent policy: LSTM or GRU",
    config=RecurrentPPOConfig,
    loop=RecurrentPPOLoopConfig,
    model=RecurrentModelConfig,
    policy=RecurrentPolicy,
    build=RecurrentPPO,
    capabilities=replace(EVERY_SPACE, recurrent=True),
)
