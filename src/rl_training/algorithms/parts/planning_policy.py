"""The policies of the planning family: they search in a learned model before every action."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import nn

from rl_training.algorithms.base import PolicyContext
from rl_training.algorithms.off_policy import TrainedPolicy
from rl_training.algorithms.parts.model_inference import Candidates, inference_of, planning_network
from rl_training.algorithms.parts.searching import Plan, Play, SearchingPolicy, TreePlanner
from rl_training.algorithms.planning import SampledActionsConfig
from rl_training.models.muzero import MuZeroNetwork
from rl_training.ops.search import PackedModel
from rl_training.types import Array, ArrayKind, Carry, Records, SpaceInfo

_FIXED_NOISE = 20_260_312  # the seed of the noise that a greedy policy samples its candidates with


class Planner(TreePlanner):
    """Plans with the model of one network: values of observations, and searches that begin there."""

    _policy: PlanningPolicy

    def __init__(self, policy: PlanningPolicy, network: MuZeroNetwork) -> None:
        self._inference = inference_of(network, policy.observer, policy.engine)
        cfg, info = policy.cfg, policy.info
        self._size = info.action_size if info.continuous else 0
        actions = cfg.sampled_actions if info.continuous else info.action_size
        self._interior = min(cfg.interior_actions, actions) if info.continuous else actions
        super().__init__(policy, actions, action_size=self._size, interior=self._interior)

    @property
    def discount(self) -> float:
        """The discount of one step; in a game for two the next value is the other player's."""
        gamma = self._policy.values["gamma"]
        return -gamma if self._policy.info.two_player else gamma

    def values(self, rows: Array) -> Array:
        """The values `[N]` of scaled observations."""
        return self._inference.values(rows)

    def search(self, rows: Array, rng: np.random.Generator | None, temperature: Array | None = None) -> Plan:
        """Search from scaled observations, with noise of a generator or with none."""
        candidates = self._candidates(len(rows), rng)
        roots = self._inference.roots(rows, candidates)._replace(mask=self._policy.observer.mask(rows))
        model = self._inference.model(self.discount, candidates, len(rows))
        noise = candidates.nodes if candidates is not None and isinstance(model, PackedModel) else None
        return self.plan(model, roots, rng, temperature, noise)

    def _candidates(self, count: int, rng: np.random.Generator | None) -> Candidates | None:
        """What the sampled actions of every node are made from.

        Without a generator they are the same everywhere, so that greedy actions depend on the observation alone; the
        first is the policy's mean, so that the noise of the others does not limit how good the best one can be.
        """
        spread = self._policy.spread
        if spread is None:
            return None
        root, nodes = (self._actions, self._size), (self.searcher.simulations + 1, self._interior, self._size)
        if rng is not None:
            drawn = (rng.standard_normal((count, *shape), dtype=np.float32) for shape in (root, nodes))
            return Candidates(spread, *drawn)
        fixed = np.random.Generator(np.random.PCG64(_FIXED_NOISE))
        once = [fixed.standard_normal(shape, dtype=np.float32) for shape in (root, nodes)]
        for noise in once:
            noise[..., 0, :] = 0.0
        return Candidates(spread, *(np.repeat(noise[None], count, axis=0) for noise in once))


class PlanningPolicy(SearchingPolicy, TrainedPolicy):
    """Searches from every observation. The carry counts the moves of an episode."""

    name = "network"
    network: MuZeroNetwork
    cfg: SampledActionsConfig

    def __init__(
        self, context: PolicyContext, play: Play, wrap: Callable[[MuZeroNetwork], MuZeroNetwork] | None = None
    ) -> None:
        """`wrap` adds something to the network, such as a memory of its dynamics."""
        network, engine = planning_network(context, wrap)
        super().__init__(context, play, network=network, engine=engine)
        self.spread = self._spread()
        self._planner = self.planner_of(network)

    def _spread(self) -> Array | None:
        if not self.info.continuous:
            return None
        spread = np.ones(self.cfg.sampled_actions, np.float32)
        wide = round(self.cfg.wide_share * len(spread))
        spread[len(spread) - wide :] = self.cfg.wide_scale
        return spread

    def planner_of(self, network: nn.Module) -> Planner:
        """What plans with another network of the same kind, such as a target network."""
        assert isinstance(network, MuZeroNetwork)
        return Planner(self, network)

    def records(self, info: SpaceInfo) -> Records:
        if not info.continuous:
            return super().records(info)
        actions = self.cfg.sampled_actions
        sampled = {"actions": ArrayKind((actions, info.action_size), "float32")}
        return {**super().records(info), "policy": ArrayKind((actions,), "float32"), **sampled}

    def recorded(self, plan: Plan) -> dict[str, Array]:
        found, actions = super().recorded(plan), plan.result.actions
        return found if actions is None else found | {"actions": actions}

    def initial_carry(self, count: int) -> Carry:
        return np.zeros(count, np.int64)

    def begin_episodes(self, carry: Carry, mask: Array) -> Carry:
        return np.where(mask, 0, carry)

    @property
    def planner(self) -> Planner:
        return self._planner

    def plan_from(self, obs: Array, carry: Carry, rng: np.random.Generator | None, temperature: Array) -> Plan:
        return self._planner.search(self.observer.scaled(obs), rng, temperature)

    def moves_of(self, carry: Carry) -> Array:
        moves: Array = carry
        return moves

    def carry_after(self, carry: Carry, obs: Array, action: Array) -> Carry:
        return carry + 1
