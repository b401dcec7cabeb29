"""PPO with recurrent policy and value: an LSTM or a GRU, trained on sequences of steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rl_training.algorithms.base import AlgorithmSpec, setting
from rl_training.algorithms.on_policy import EVERY_SPACE, OnPolicyLoopConfig
from rl_training.algorithms.parts.objectives import Batch, EngineForm
from rl_training.algorithms.parts.recurrent_policy import PackedEngineForm, RecurrentModelConfig, RecurrentPolicy
from rl_training.algorithms.ppo import PPO, PPOConfig
from rl_training.data.rollout import Rollout
from rl_training.data.sequence import Packed, Sequences
from rl_training.models.recurrent_engine import RecurrentEngine
from rl_training.types import Array, SpaceInfo


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

    def engine_form(self, info: SpaceInfo) -> EngineForm:
        return PackedEngineForm(self.policy, RecurrentEngine(self.network, info))

    def bootstrap_values(self, rollout: Rollout) -> Array:
        """The values of `bootstrap_obs`; the step before each is computed again, since only its state is recorded."""
        before = rollout.bootstrap_places()
        count = len(before[0])
        rows = self.observer.scaled(np.concatenate([rollout.obs[before], rollout.bootstrap_obs()]))
        _, value, _ = self.policy.acting.run(Packed(rows, np.array([count, count]), rollout.records["state"][before]))
        return value[count:]

    def prepare(self, rollout: Rollout) -> Batch[Array]:
        data = super().prepare(rollout)
        real = rollout.real
        length = min(self.cfg.sequence_length or len(real), len(real))
        return replace(data, obs=Sequences(data.obs, rollout.records["state"][real], real, rollout.starts, length))

    def minibatches(self, data: Batch[Array]) -> Iterator[Batch[Array]]:
        """Minibatches of whole sequences with about `batch_size` steps each."""
        sequences: Sequences = data.obs
        columns = replace(data, obs=sequences.rows)
        count = max(1, self.cfg.batch_size // sequences.length)
        for _ in range(self.cfg.n_epochs):
            order = self.batch_rng.permutation(len(sequences))
            for start in range(0, len(sequences), count):
                picked, sizes = sequences.pack(order[start : start + count])
                mini = columns.map(lambda column: column.take(picked, axis=0))  # noqa: B023
                yield replace(mini, obs=Packed(mini.obs, sizes, sequences.state[picked[: sizes[0]]]))


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
