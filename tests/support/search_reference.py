"""One search of one root in the plainest form, and a made-up world to search in.

A node is a dictionary that keeps every return that was seen from it; its value is their mean. Nothing is fast here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from rl_training.ops.search import GumbelRule, Leaves, Puct, Roots
from rl_training.types import Array

Node = dict[str, Any]
NEVER = -3.4e38  # the logit of an action that is not allowed


class World:
    """A table of numbered states. The embedding of a state is its number."""

    def __init__(self, states: int, actions: int, seed: int = 0, *, sharpness: float = 1.0) -> None:
        rng = np.random.default_rng(seed)
        shape = (states, actions)
        self.after = rng.integers(0, states, shape)
        self.reward = rng.normal(size=shape).astype(np.float32)
        self.discount = rng.choice([0.0, 0.9, 0.9, 1.0, -1.0], shape).astype(np.float32)
        self.logits = (sharpness * rng.normal(size=shape)).astype(np.float32)
        self.value = rng.normal(size=states).astype(np.float32)

    def step(self, embedding: Array, action: Array, simulation: int) -> Leaves:
        state = embedding[:, 0].astype(np.int64)
        after = self.after[state, action]
        return Leaves(
            self.reward[state, action],
            self.discount[state, action],
            after[:, None].astype(np.float32),
            self.logits[after],
            self.value[after],
        )

    def roots(self, states: Array, mask: Array | None = None) -> Roots:
        return Roots(states[:, None].astype(np.float32), self.logits[states], self.value[states], mask)


def bandit(q: Array, logits: Array, value: float = 0.0) -> World:
    """One choice that ends the episode: the reward of an action is its q."""
    world = World(2, len(q))
    world.after[:], world.discount[:], world.value[:] = 1, 0.0, value
    world.reward[:], world.logits[:] = q, logits
    return world


class Reference:
    """A search of one state. `margin` is the least difference of scores that decided between two actions."""

    def __init__(
        self,
        world: World,
        rule: Puct | GumbelRule,
        *,
        allowed: Array | None = None,
        gumbel: Array | None = None,
        interior: int | None = None,
    ) -> None:
        actions = world.reward.shape[1]
        self.world, self.rule, self.margin = world, rule, math.inf
        self.allowed = [True] * actions if allowed is None else allowed.tolist()
        self.gumbel = [0.0] * actions if gumbel is None else gumbel.tolist()
        self.interior = actions if interior is None else interior
        self.made: list[Node] = []

    def run(self, state: int, simulations: int) -> Node:
        self.made = [self.root(state)]
        considered = min(getattr(self.rule, "considered", 1), sum(self.allowed))
        wanted = halving(considered, simulations)
        for _ in range(simulations):
            self.simulate(self.made[0], next(wanted))
        return self.made[0]

    def root(self, state: int) -> Node:
        logits = self.world.logits[state].tolist()
        return self.node(state, [x if ok else NEVER for x, ok in zip(logits, self.allowed, strict=True)])

    def node(self, state: int, logits: list[float]) -> Node:
        highest = max(logits)
        weights = [math.exp(x - highest) for x in logits]
        raw = float(self.world.value[state])
        prior = [weight / sum(weights) for weight in weights]
        return {"state": state, "raw": raw, "returns": [raw], "logits": logits, "prior": prior, "children": {}}

    def simulate(self, node: Node, wanted: int | None) -> float:
        """The return of one more visit. `wanted` is the number of visits that sequential halving asks for."""
        action = self.best(self.scores(node, wanted))
        edge = node["state"], action
        reward, discount = float(self.world.reward[edge]), float(self.world.discount[edge])
        if action in node["children"]:
            value = self.simulate(node["children"][action]["node"], None)
        else:
            state = int(self.world.after[edge])
            child = self.node(state, self.world.logits[state, : self.interior].tolist())
            node["children"][action] = {"node": child, "reward": reward, "discount": discount}
            self.made.append(child)
            value = child["raw"]
        node["returns"].append(reward + discount * value)
        return float(node["returns"][-1])

    def best(self, scores: dict[int, float]) -> int:
        ranked = sorted(scores, key=lambda action: -scores[action])
        if len(ranked) > 1:
            self.margin = min(self.margin, scores[ranked[0]] - scores[ranked[1]])
        return ranked[0]

    def scores(self, node: Node, wanted: int | None) -> dict[int, float]:
        """The scores of the actions that may be followed."""
        actions = [a for a in range(len(node["logits"])) if node is not self.made[0] or self.allowed[a]]
        if isinstance(self.rule, Puct):
            return {a: self.puct(node, a) for a in actions}
        improved = self.improved(node)
        if wanted is not None:
            return {a: self.gumbel[a] + improved[a] for a in actions if visits_of(node, a) == wanted}
        highest = max(improved)
        total = sum(math.exp(x - highest) for x in improved)
        behind = 1.0 + sum(visits_of(node, a) for a in actions)
        return {a: math.exp(improved[a] - highest) / total - visits_of(node, a) / behind for a in actions}

    def puct(self, node: Node, action: int) -> float:
        assert isinstance(self.rule, Puct)
        known = [mean(node), *q_of(node).values()]
        low, high, floor = min(known), max(known), 1e-8
        if self.rule.normalization == "tree":
            edges = [q for made in self.made for q in q_of(made).values()] or [0.0]
            low, high, floor = min(edges), max(edges), self.rule.value_floor
        missing = low if self.rule.unvisited == "lowest" else sum(known) / len(known)
        q = (q_of(node).get(action, missing) - low) / max(high - low, floor)
        count = len(node["returns"])
        explore = self.rule.c_init + math.log((count + self.rule.c_base + 1.0) / self.rule.c_base)
        explore *= node["prior"][action] * math.sqrt(count) / (1 + visits_of(node, action))
        return float(min(max(q, 0.0), 1.0) + explore)

    def improved(self, node: Node) -> list[float]:
        """logits + sigma(completed q)."""
        assert isinstance(self.rule, GumbelRule)
        known, prior, mixed = q_of(node), node["prior"], float(node["raw"])
        if known:
            visits = sum(visits_of(node, a) for a in known)
            weighted = sum(prior[a] * known[a] for a in known) / sum(prior[a] for a in known)
            mixed = (mixed + visits * weighted) / (1 + visits)
        completed: list[float] = [known.get(a, mixed) for a in range(len(prior))]
        if self.rule.rescale:
            low, high = min(completed), max(completed)
            completed = [(q - low) / max(high - low, 1e-8) for q in completed]
        most = max((visits_of(node, a) for a in known), default=0)
        scale = (self.rule.c_visit + most) * self.rule.c_scale
        return [x + scale * q for x, q in zip(node["logits"], completed, strict=True)]


def mean(node: Node) -> float:
    return sum(node["returns"]) / len(node["returns"])


def q_of(node: Node) -> dict[int, float]:
    """q of the visited actions."""
    return {a: edge["reward"] + edge["discount"] * mean(edge["node"]) for a, edge in node["children"].items()}


def visits_of(node: Node, action: int) -> int:
    return len(node["children"][action]["node"]["returns"]) if action in node["children"] else 0


def halving(considered: int, simulations: int) -> Iterator[int]:
    """The visits that sequential halving asks for: equally many for all that remain, then for the better half."""
    visits, remaining = 0, max(considered, 1)
    phases = math.ceil(math.log2(remaining)) if remaining > 1 else simulations
    while True:
        for _ in range(max(1, simulations // (phases * remaining))):
            yield from [visits] * remaining
            visits += 1
        remaining = min(remaining, max(2, remaining // 2))
