"""What policies that search have in common: the rule of a search, how an action follows from it, what is remembered."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from rl_training.algorithms.base import Policy, PolicyContext
from rl_training.algorithms.planning import PlanningConfig
from rl_training.ops.distributions import FORBIDDEN
from rl_training.ops.search import (
    CompiledModel,
    GumbelRule,
    PackedModel,
    Puct,
    Roots,
    Searcher,
    SearchModel,
    SearchResult,
    dirichlet_logits,
    gumbel_action,
    visit_action,
    visit_probabilities,
)
from rl_training.ops.search_tree import SearchTree
from rl_training.types import Act, Array, ArrayKind, Carry, Metrics, Records, SpaceInfo


@dataclass(frozen=True)
class Plan:
    """The result of a search, and the Gumbel noise `[B, A]` that it used, if any."""

    result: SearchResult
    gumbel: Array | None


class Play(ABC):
    """A rule of search, and how an action follows from what it found.

    `values` are the current hyperparameters; a search without a generator has no noise.
    """

    settings: ClassVar[tuple[str, ...]]  # the hyperparameters that it uses

    @abstractmethod
    def rule(self, cfg: Any, values: Mapping[str, float]) -> Puct | GumbelRule:
        """The rule with the current hyperparameters."""

    @abstractmethod
    def disturbed(
        self, roots: Roots, values: Mapping[str, float], temperature: Array, rng: np.random.Generator | None
    ) -> tuple[Roots, Array | None]:
        """The roots with noise on their priors, and Gumbel noise if the rule wants it."""

    @abstractmethod
    def choose(self, plan: Plan, temperature: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """The indices `[B]` of the actions to take, and the entropies `[B]` of the distributions they come from."""

    def value(self, result: SearchResult) -> Array:
        """The values `[B]` of the roots that are remembered: the means over the simulations."""
        return result.value


class PuctPlay(Play):
    """Dirichlet noise on the root's prior; actions in proportion to their visits (Schrittwieser et al. 2020)."""

    settings = ("temperature", "gamma", "dirichlet_alpha", "dirichlet_fraction", "pb_c_init", "pb_c_base")

    def rule(self, cfg: Any, values: Mapping[str, float]) -> Puct:
        return Puct(
            c_init=values["pb_c_init"],
            c_base=values["pb_c_base"],
            normalization=cfg.value_normalization,
            unvisited=cfg.unvisited,
        )

    def disturbed(
        self, roots: Roots, values: Mapping[str, float], temperature: Array, rng: np.random.Generator | None
    ) -> tuple[Roots, Array | None]:
        fraction = values["dirichlet_fraction"]
        if rng is None or fraction == 0.0:
            return roots, None
        logits = dirichlet_logits(roots.logits, roots.mask, values["dirichlet_alpha"], fraction, rng)
        return roots._replace(logits=logits), None

    def choose(self, plan: Plan, temperature: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        shares = visit_probabilities(plan.result.visits, temperature)
        return visit_action(plan.result.visits, temperature, rng.random(len(shares))), entropy(shares)


class GumbelPlay(Play):
    """Gumbel noise decides which actions are considered, and which of the good ones is taken."""

    settings = ("temperature", "gamma", "c_visit", "c_scale")

    def __init__(self, mode: str) -> None:
        self.mode = mode

    def rule(self, cfg: Any, values: Mapping[str, float]) -> GumbelRule:
        considered, rescale = cfg.max_num_considered_actions, cfg.rescale_values
        return GumbelRule(considered, c_visit=values["c_visit"], c_scale=values["c_scale"], rescale=rescale)

    def disturbed(
        self, roots: Roots, values: Mapping[str, float], temperature: Array, rng: np.random.Generator | None
    ) -> tuple[Roots, Array | None]:
        if rng is None:
            return roots, None
        noise = rng.gumbel(size=roots.logits.shape).astype(np.float32)
        return roots, noise * temperature[:, None] if self.mode == "gumbel_scale" else noise

    def choose(self, plan: Plan, temperature: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """The entropy is that of softmax(logits + sigma(q)) at this temperature, over the visited actions.

        Without noise the action is the best of the most visited ones, as in the paper.
        """
        result = plan.result
        if plan.gumbel is None:
            action = gumbel_action(result, np.zeros_like(result.logits), mode="scale")
        else:
            action = gumbel_action(result, plan.gumbel, temperature, "filter" if self.mode == "filter" else "scale")
        heat = np.maximum(temperature, np.float32(1e-6))[:, None]
        seen = np.where(result.visits > 0, result.improved, np.float32(FORBIDDEN))
        powers = np.exp((seen - seen.max(axis=1, keepdims=True)) / heat)
        return action, entropy(powers / powers.sum(axis=1, keepdims=True))

    def value(self, result: SearchResult) -> Array:
        """The values of following the improved policy, over the visited actions.

        The mean over the simulations would not do: sequential halving tries bad actions as often as good ones at
        first, and noise at a high temperature makes all of them bad.
        """
        weight = result.policy * (result.visits > 0)
        total = weight.sum(axis=1)
        mean = (weight * result.q).sum(axis=1) / np.maximum(total, np.float32(1e-30))
        return np.where(total > 0.0, mean, result.value)


class Searched(NamedTuple):
    """A search from one state: what it found, its tree, and the index of the action that follows from it."""

    result: SearchResult
    tree: SearchTree
    chosen: int


@runtime_checkable
class Searching(Protocol):
    """A policy whose searches can be shown. Its config is a `PlanningConfig`."""

    def search_from(self, obs: Array, carry: Carry) -> Searched:
        """The search that decides the greedy action for one observation `[1, ...]`, as `act` makes it."""
        ...


class SearchingPolicy(Policy):
    """Searches before it acts, by the rule of a play. Subclasses say where a search begins, and what the carry is."""

    greedy_uses_values = True

    @property
    @abstractmethod
    def planner(self) -> TreePlanner:
        """What searches."""

    @abstractmethod
    def plan_from(self, obs: Array, carry: Carry, rng: np.random.Generator | None, temperature: Array) -> Plan:
        """Search from observations `[B, ...]`, with noise of a generator or with none."""

    @abstractmethod
    def moves_of(self, carry: Carry) -> Array:
        """How many steps `[B]` each episode has had."""

    @abstractmethod
    def carry_after(self, carry: Carry, obs: Array, action: Array) -> Carry:
        """The carry of the next step."""

    def __init__(self, context: PolicyContext, play: Play, **parts: Any) -> None:
        """`parts` are what the other bases of a policy are built from."""
        self.acting_settings = play.settings  # type: ignore[misc]
        super().__init__(context, **parts)
        assert isinstance(context.config, PlanningConfig)
        self.cfg, self.play = context.config, play

    def rule(self) -> Puct | GumbelRule:
        """The rule of the search with the current hyperparameters."""
        return self.play.rule(self.cfg, self.values)

    def records(self, info: SpaceInfo) -> Records:
        return {"policy": ArrayKind((info.action_size,), "float32"), "search_value": ArrayKind((), "float32")}

    def recorded(self, plan: Plan) -> dict[str, Array]:
        """What is remembered of a search."""
        return {"policy": plan.result.policy, "search_value": self.play.value(plan.result)}

    def act(self, obs: Array, carry: Carry, *, explore: bool, rng: np.random.Generator) -> Act:
        started = time.perf_counter()
        temperature = self.temperature_at(self.moves_of(carry), explore=explore)
        plan = self.plan_from(obs, carry, rng if explore else None, temperature)
        index, spread = self.play.choose(plan, temperature, rng)
        sampled = plan.result.actions
        action = index if sampled is None else sampled[np.arange(len(index)), index]
        metrics = self._metrics(plan, spread, time.perf_counter() - started)
        return Act(action, self.carry_after(carry, obs, action), self.recorded(plan), metrics)

    def act_randomly(self, obs: Array, carry: Carry, *, rng: np.random.Generator) -> Act:
        act = super().act_randomly(obs, carry, rng=rng)
        return replace(act, carry=self.carry_after(carry, obs, act.action))

    def search_from(self, obs: Array, carry: Carry) -> Searched:
        """The search that decides the greedy action for one observation `[1, ...]`."""
        greedy = self.temperature_at(self.moves_of(carry), explore=False)
        plan = self.plan_from(obs, carry, None, greedy)
        index, _ = self.play.choose(plan, greedy, np.random.default_rng(0))  # no choice is left to chance
        return Searched(plan.result, self.planner.searcher.tree(), int(index[0]))

    def temperature_at(self, moves: Array, *, explore: bool) -> Array:
        """The temperature `[B]` of every row: 0 for greedy actions, and late in an episode if that is set."""
        temperature = np.full(len(moves), self.values["temperature"] if explore else 0.0, np.float32)
        if self.cfg.temperature_moves is not None:
            temperature[moves >= self.cfg.temperature_moves] = 0.0
        return temperature

    def _metrics(self, plan: Plan, spread: Array, seconds: float) -> Metrics:
        """Metrics of a search that took so long; `spread` `[B]` are the entropies of the root's choices."""
        result, count = plan.result, len(spread) * self.cfg.num_simulations
        return {
            "root_entropy": float(spread.mean()),
            "target_entropy": float(entropy(result.policy).mean()),
            "search_depth": float(result.depth.mean()),
            "simulations_per_second": count / seconds,
        }


class TreePlanner:
    """Searches by the rule that its policy has now. Subclasses say where a search begins, and in which model."""

    def __init__(self, policy: SearchingPolicy, actions: int, **kinds: int) -> None:
        """`kinds` are those of a `Searcher`, where actions are sampled."""
        self._policy, self._actions, self._kinds = policy, actions, kinds
        self.searcher = self._searcher()

    def _searcher(self) -> Searcher:
        return Searcher(self._policy.rule(), self._policy.cfg.num_simulations, self._actions, **self._kinds)

    def plan(
        self,
        model: SearchModel | PackedModel | CompiledModel,
        roots: Roots,
        rng: np.random.Generator | None,
        temperature: Array | None = None,
        noise: Array | None = None,
    ) -> Plan:
        """Search from roots, with noise of a generator or with none; `noise` is that of sampled actions."""
        policy = self._policy
        temperature = np.ones(len(roots.logits), np.float32) if temperature is None else temperature
        roots, gumbel = policy.play.disturbed(roots, policy.values, temperature, rng)
        if policy.rule() != self.searcher.rule:  # a hyperparameter of the rule is scheduled
            self.searcher = self._searcher()
        return Plan(self.searcher(model, roots, gumbel=gumbel, noise=noise), gumbel)


def entropy(probabilities: Array) -> Array:
    """The entropies `[...]` of distributions `[..., A]`."""
    total: Array = -(probabilities * np.log(np.maximum(probabilities, np.float32(1e-30)))).sum(axis=-1)
    return total
