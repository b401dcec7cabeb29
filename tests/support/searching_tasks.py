"""A multi-task algorithm of user code that searches: what it looks for changes with the step of the episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import AlgorithmSpec, Context, ModelConfig, Policy, PolicyContext
from rl_training.algorithms.multi_task import MultiTaskAlgorithm
from rl_training.algorithms.off_policy import OffPolicyLoopConfig
from rl_training.algorithms.parts.searching import Searched
from rl_training.algorithms.planning import PlanningConfig
from rl_training.data.memory import Memory
from rl_training.ops.search import Leaves, Puct, Roots, Searcher
from rl_training.types import Act, Array, Capabilities, Carry, Metrics


class SearchingConfig(PlanningConfig):
    """nothing is minimised"""


class Wanting:
    """A model in which every root wants one action."""

    def __init__(self, wanted: Array, actions: int) -> None:
        self.wanted, self.actions = wanted, actions

    def step(self, embedding: Array, action: Array, simulation: int) -> Leaves:
        count = len(action)
        reward, discount, value = (action == self.wanted).astype(np.float32), np.full(count, 0.9), np.zeros(count)
        return Leaves(reward, discount, embedding, np.zeros((count, self.actions), np.float32), value)


class SilentPolicy(Policy):
    """In step n of an episode it wants action n, counted in a circle. All tasks are searched with all their actions."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        assert isinstance(context.config, PlanningConfig)
        self.weight = torch.zeros(1)
        self.actions = max(info.action_size for info in context.tasks.values())
        self.searcher = Searcher(Puct(), context.config.num_simulations, self.actions)

    def initial_carry(self, count: int) -> Carry:
        return np.zeros(count, np.int64)

    def begin_episodes(self, carry: Carry, mask: Array) -> Carry:
        return np.where(mask, 0, carry)

    def act(self, obs: Array, carry: Carry, *, explore: bool, rng: np.random.Generator) -> Act:
        return Act(self._found(carry).visits.argmax(axis=1), carry + 1)

    def _found(self, carry: Carry) -> Any:
        count, own = len(carry), self.info.action_size
        mask = np.tile(np.arange(self.actions) < own, (count, 1))
        roots = Roots(np.zeros((count, 1)), np.zeros((count, self.actions)), np.zeros(count), mask)
        return self.searcher(Wanting(carry % own, self.actions), roots)

    def policy_state(self) -> dict[str, Tensor]:
        return {"weight": self.weight}

    def load_policy_state(self, state: Mapping[str, Tensor]) -> None:
        self.weight.copy_(state["weight"])


class SearchingPolicy(SilentPolicy):
    """One whose search can be seen."""

    def search_from(self, obs: Array, carry: Carry) -> Searched:
        result = self._found(carry)
        return Searched(result, self.searcher.tree(), int(result.visits[0].argmax()))


class Nothing(MultiTaskAlgorithm):
    """It learns nothing."""

    def learn_from(self, memories: Mapping[str, Memory], updates: int) -> Metrics:
        return {}

    def update(self, batch: Any) -> Metrics:
        return {}

    def training_state(self) -> dict[str, Any]:
        return {}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        pass


def _spec(name: str, policy: type[SilentPolicy]) -> AlgorithmSpec:
    def build(context: Context) -> Nothing:
        return Nothing(context, policy(context))

    able = Capabilities(observations=("vector",), actions=("discrete",), multi_task=True)
    return AlgorithmSpec(
        name=name,
        family="multi_task",
        summary="Searches and learns nothing",
        config=SearchingConfig,
        loop=OffPolicyLoopConfig,
        model=ModelConfig,
        policy=policy,
        build=build,
        capabilities=able,
    )


SPEC = _spec("searching", SearchingPolicy)
SILENT = _spec("silent", SilentPolicy)
