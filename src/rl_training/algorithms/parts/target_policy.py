"""A target network of policy and value: a policy that stands still between two copies of the learner's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.algorithms.parts.actor_critic_policy import ActorCriticPolicy
from rl_training.algorithms.parts.readers import reader_of
from rl_training.data.rollout import Rollout
from rl_training.types import Array


class TargetPolicy:
    """A copy of the learner's policy, with the scale of observations that it had then."""

    def __init__(self, policy: ActorCriticPolicy, learner: ActorCriticPolicy) -> None:
        """`policy` is another one with the same network; its weights are those of the learner from now on."""
        self.policy = policy
        self._learner = learner
        self._reader = reader_of(policy)
        self.copy()

    def copy(self) -> None:
        """Copy the learner's policy as it is now."""
        self.age = 0  # updates since the copy
        self.policy.load_policy_state(self._learner.policy_state())

    def grow_older(self, interval: int) -> None:
        """Count an update, and copy the learner's policy after every `interval` of them."""
        self.age += 1
        if self.age >= interval:
            self.copy()

    def log_prob(self, rollout: Rollout) -> Array:
        """Log-probabilities `[T, B]` of the actions of a rollout."""
        return self._reader.judge(rollout).log_prob

    def state_dict(self) -> dict[str, Any]:
        return {"policy": self.policy.policy_state(), "age": self.age}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.policy.load_policy_state(state["policy"])
        self.age = state["age"]
