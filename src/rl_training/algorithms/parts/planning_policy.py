"""The policies of the planning family: they search in a learned model before every action."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import nn

from rl_training.algorithms.base import PolicyContext
from rl_training.algorithms.off_policy import TrainedPolicy
from rl_training.algorithms.parts.model_inference import Candidates, inference_of, planning_network
from rl_training.algorithms.parts.searching import Searched
from rl_training.algorithms.planning import PlanningConfig
from rl_training.models.muzero import MuZeroNetwork
from rl_training.ops.distributions import FORBIDDEN
from rl_training.ops.search import (
    GumbelRule,
    PackedModel,
    Puct,
    Roots,
    Searcher,
    SearchResult,
    dirichlet_logits,
    gumbel_action,
    visit_action,
    visit_probabilities,
)
from rl_training.types import Act, Array, ArrayKind, Carry, Records, SpaceInfo

_FIXED_NOISE = 20_260_312  # the seed of the noise that a greedy policy samples its candidates with


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


class Planner:
    """Plans with the model of one network: values of observations, and searches that begin there."""

    def __init__(self, policy: PlanningPolicy, network: MuZeroNetwork) -> None:
        self._policy = policy
        self._inference = inference_of(network, policy.observer, policy.engine)
        cfg, info = policy.cfg, policy.info
        self._size = info.action_size if info.continuous else 0
        self._actions = cfg.sampled_actions if info.continuous else info.action_size
        self._interior = min(cfg.interior_actions, self._actions) if info.continuous else self._actions
        self.searcher = self._searcher(policy.rule())

    def _searcher(self, rule: Puct | GumbelRule) -> Searcher:
        simulations = self._policy.cfg.num_simulations
        return Searcher(rule, simulations, self._actions, action_size=self._size, interior=self._interior)

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
        policy, candidates = self._policy, self._candidates(len(rows), rng)
        roots = self._inference.roots(rows, candidates)._replace(mask=policy.observer.mask(rows))
        temperature = np.ones(len(rows), np.float32) if temperature is None else temperature
        roots, gumbel = policy.play.disturbed(roots, policy.values, temperature, rng)
        if policy.rule() != self.searcher.rule:  # a hyperparameter of the rule is scheduled
            self.searcher = self._searcher(policy.rule())
        model = self._inference.model(self.discount, candidates, len(rows))
        noise = candidates.nodes if candidates is not None and isinstance(model, PackedModel) else None
        return Plan(self.searcher(model, roots, gumbel=gumbel, noise=noise), gumbel)

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


class PlanningPolicy(TrainedPolicy):
    """Searches from every observation. The carry counts the moves of an episode."""

    name = "network"
    greedy_uses_values = True
    network: MuZeroNetwork

    def __init__(
        self, context: PolicyContext, play: Play, wrap: Callable[[MuZeroNetwork], MuZeroNetwork] | None = None
    ) -> None:
        """`wrap` adds something to the network, such as a memory of its dynamics."""
        self.acting_settings = play.settings  # type: ignore[misc]
        network, engine = planning_network(context, wrap)
        super().__init__(context, network, engine)
        assert isinstance(context.config, PlanningConfig)
        self.cfg, self.play = context.config, play
        self.spread = self._spread()
        self.planner = self.planner_of(network)

    def _spread(self) -> Array | None:
        if not self.info.continuous:
            return None
        spread = np.ones(self.cfg.sampled_actions, np.float32)
        wide = round(self.cfg.wide_share * len(spread))
        spread[len(spread) - wide :] = self.cfg.wide_scale
        return spread

    def rule(self) -> Puct | GumbelRule:
        """The rule of the search with the current hyperparameters."""
        return self.play.rule(self.cfg, self.values)

    def planner_of(self, network: nn.Module) -> Planner:
        """What plans with another network of the same kind, such as a target network."""
        assert isinstance(network, MuZeroNetwork)
        return Planner(self, network)

    def records(self, info: SpaceInfo) -> Records:
        actions = self.cfg.sampled_actions if info.continuous else info.action_size
        kinds = {"policy": ArrayKind((actions,), "float32"), "search_value": ArrayKind((), "float32")}
        if info.continuous:
            kinds["actions"] = ArrayKind((actions, info.action_size), "float32")
        return kinds

    def recorded(self, plan: Plan) -> dict[str, Array]:
        """What is remembered of a search."""
        result = plan.result
        found = {"policy": result.policy, "search_value": self.play.value(result)}
        return found if result.actions is None else found | {"actions": result.actions}

    def initial_carry(self, count: int) -> Carry:
        return np.zeros(count, np.int64)

    def begin_episodes(self, carry: Carry, mask: Array) -> Carry:
        return np.where(mask, 0, carry)

    def act(self, obs: Array, carry: Carry, *, explore: bool, rng: np.random.Generator) -> Act:
        started = time.perf_counter()
        temperature = self._temperature(carry, explore=explore)
        plan = self.planner.search(self.observer.scaled(obs), rng if explore else None, temperature)
        index, spread = self.play.choose(plan, temperature, rng)
        result = plan.result
        action = index if result.actions is None else result.actions[np.arange(len(index)), index]
        count = len(obs) * self.cfg.num_simulations
        metrics = {
            "root_entropy": float(spread.mean()),
            "target_entropy": float(entropy(result.policy).mean()),
            "search_depth": float(result.depth.mean()),
            "simulations_per_second": count / (time.perf_counter() - started),
        }
        return Act(action, carry + 1, self.recorded(plan), metrics)

    def search_from(self, obs: Array, carry: Carry) -> Searched:
        greedy = self._temperature(carry, explore=False)
        plan = self.planner.search(self.observer.scaled(obs), None, greedy)
        index, _ = self.play.choose(plan, greedy, np.random.default_rng(0))
        return Searched(plan.result, self.planner.searcher.tree(), int(index[0]))

    def _temperature(self, moves: Array, *, explore: bool) -> Array:
        """The temperature `[B]` of every row: 0 for greedy actions, and late in an episode if that is set."""
        temperature = np.full(len(moves), self.values["temperature"] if explore else 0.0, np.float32)
        if self.cfg.temperature_moves is not None:
            temperature[moves >= self.cfg.temperature_moves] = 0.0
        return temperature


def entropy(probabilities: Array) -> Array:
    """The entropies `[...]` of distributions `[..., A]`."""
    total: Array = -(probabilities * np.log(np.maximum(probabilities, np.float32(1e-30)))).sum(axis=-1)
    return total
