"""Tree search with a learned model, for many roots at once: PUCT (MuZero, EfficientZero) and Gumbel MuZero.

A search runs one simulation after the other: walk down the tree to an edge that has no child, ask the model what is
there, and carry the answer's value back to the root. `Searcher` does so in several ways with equal results. Any
`SearchModel` is called once per simulation for all roots. A `PackedModel`, a small MLP, is searched by one compiled
call, and a `CompiledModel` does the same by itself.

The discount of an edge multiplies the value of the node that it leads to: gamma, 0 after the end of an episode,
negative where the opponent moves next. Values are those of the player who moves.

Sources: MuZero (arXiv:1911.08265), Policy improvement by planning with Gumbel (Danihelka et al. 2022), EfficientZero
(arXiv:2111.00210). Results equal those of mctx, except that ties go to the lowest index.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from rl_training.ops.kernels.fused_search import fused_search
from rl_training.ops.kernels.tree import ALLOWED, GUMBEL, LOWEST, Start, Tree, new_tree, plant
from rl_training.ops.kernels.tree_rules import SMALLEST_RANGE, Rule
from rl_training.ops.kernels.tree_search import Answers, Found, grow, play, select_leaves, summarize
from rl_training.ops.search_packed import Packing
from rl_training.ops.search_tree import SearchTree
from rl_training.ops.two_hot import Support
from rl_training.types import Array


@dataclass(frozen=True)
class Puct:
    """Follow the highest q + prior * sqrt(N) / (1 + n) * (c_init + log((N + c_base + 1) / c_base)).

    N counts the visits of the node, its own evaluation included, and n those of the action. q is brought to the range
    from 0 to 1: by "node", relative to the node's value and its visited actions; by "tree", relative to all edges of
    the tree, where a range below `value_floor` counts as `value_floor`. An unvisited action counts as the "lowest" of
    that range, or as the "mean" of the node's value and its visited actions.
    """

    c_init: float = 1.25
    c_base: float = 19652.0
    normalization: Literal["node", "tree"] = "node"
    unvisited: Literal["lowest", "mean"] = "lowest"
    value_floor: float = 0.01

    def __post_init__(self) -> None:
        if self.normalization not in ("node", "tree") or self.unvisited not in ("lowest", "mean"):
            raise ValueError(f"normalization is 'node' or 'tree' and unvisited is 'lowest' or 'mean', got {self}")


@dataclass(frozen=True)
class GumbelRule:
    """Sequential halving over the `considered` actions with the highest gumbel + logits; below the root, deterministic
    choices whose visits approach softmax(logits + sigma(q)).

    sigma(q) = (c_visit + max n) * c_scale * q. With `rescale`, the q of a node are first brought to the range from 0
    to 1, which makes c_scale independent of the scale of rewards.
    """

    considered: int = 16
    c_visit: float = 50.0
    c_scale: float = 0.1
    rescale: bool = True

    def __post_init__(self) -> None:
        if self.considered < 1:
            raise ValueError(f"considered must be at least 1, got {self.considered}")


class Roots(NamedTuple):
    """Where searches begin. `mask` says which actions are allowed there, `actions` what was sampled, if it was."""

    embedding: Array  # float32 [B, D]
    logits: Array  # float32 [B, A]
    value: Array  # float32 [B]
    mask: Array | None = None  # bool [B, A]
    actions: Array | None = None  # float32 [B, A, d]


class Leaves(NamedTuple):
    """What a model says of one edge of every tree, and of the node that it leads to."""

    reward: Array  # float32 [B]
    discount: Array  # float32 [B]
    embedding: Array  # float32 [B, D]
    # float32 [B, A], or as many as nodes other than the root have; an action with the lowest float32 is not allowed
    logits: Array
    value: Array  # float32 [B]
    actions: Array | None = None  # float32 [B, A, d]


class SearchModel(Protocol):
    """A model that is asked about one edge of every tree at a time."""

    def step(self, embedding: Array, action: Array, simulation: int) -> Leaves:
        """What follows from `action`: indices int64 `[B]`, or vectors float32 `[B, d]` if actions are sampled.

        The arrays are reused by the next simulation. Simulations count from 1, as the nodes that they make.
        """
        ...


class CompiledModel(ABC):
    """A model with a compiled search of its own. It knows the roots that it is asked about."""

    @abstractmethod
    def search(self, tree: Tree, rule: Rule, roots: int) -> None:
        """All simulations of the first `roots` trees, which are planted."""


class PackedModel(NamedTuple):
    """A small MLP model for the compiled search.

    Dynamics: [latent, one-hot action or action vector], hidden layers; from there the next latent, scaled to the range
    from 0 to 1 per row, and the logits of the reward. Prediction: latent, hidden layers; from there the policy and the
    logits of the value.
    """

    weights: Array  # float32 vector: for each layer its weights [in, out] in row order, then its bias [out]
    layers: Array  # int64 [L, 3]: inputs, outputs, offset; dynamics, next, reward, prediction, policy, value
    hidden: tuple[int, int]  # hidden layers of dynamics and prediction
    kind: int  # activation: TANH, RELU or SILU of ops/kernels/acting.py
    latent: int
    # 0: actions are indices. Else their size d; the policy is [mean, log_std], log_std is clipped to [-5, 2], and
    # action j of a node is tanh(mean + spread[j] * exp(log_std) * noise[b, node, j]); its prior is `sample_logits`.
    action_size: int
    reward_support: Support
    value_support: Support
    discount: float  # of every edge; negative for two players
    spread: Array | None = None  # float32 [A]


@dataclass
class SearchResult:
    """What a search found of its roots. Rows without any allowed action are not searched: no visits, a policy of 0."""

    visits: Array  # int32 [B, A]
    q: Array  # float32 [B, A]: reward + discount * value of the child; 0 where unvisited
    value: Array  # float32 [B]: the mean value of the root
    policy: Array  # float32 [B, A]: what to learn; shares of visits, or softmax(improved) for Gumbel; 0 where forbidden
    improved: Array  # float32 [B, A]: logits + sigma(completed q) for Gumbel; the logits for PUCT
    logits: Array  # float32 [B, A] as searched, the lowest float32 where forbidden
    depth: Array  # float32 [B]: the mean depth of the simulations
    actions: Array | None  # float32 [B, A, d]


def fastest(width: int, roots: int) -> Literal["fused", "numpy"]:
    """The faster way to search an MLP: compiled as a whole, or a NumPy model called once per simulation.

    The compiled search wins for every number of roots from 1 to 256 with layers of 64, 128 and 256, and with 512 from 4
    roots on. Beyond, the weights that it copies before a search are too many for a single root, and for many roots
    NumPy's matrix products are as fast. Measured with one thread, hidden layers of `width`, 25 simulations.
    """
    return "fused" if width <= 512 or 4 <= roots <= 32 else "numpy"


def considered_visits(considered: int, simulations: int) -> list[int]:
    """How many visits the root's action must have so far to be chosen, for every simulation.

    Sequential halving: each of about log2(considered) rounds gives the remaining actions equally many visits, then
    keeps the better half, but at least two.
    """
    if considered <= 1:
        return list(range(simulations))
    rounds = math.ceil(math.log2(considered))
    wanted: list[int] = []
    visits, remaining = 0, considered
    while len(wanted) < simulations:
        for _ in range(max(1, int(simulations / (rounds * remaining)))):
            wanted += [visits] * remaining
            visits += 1
        remaining = max(2, remaining // 2)
    return wanted[:simulations]


class Searcher:
    """Searches with one rule and one number of simulations; its memory is kept from one call to the next.

    `actions` are those of a root, `interior` those of other nodes. `action_size` is the size of sampled actions, 0 if
    an action is its index.
    """

    def __init__(
        self,
        rule: Puct | GumbelRule,
        simulations: int,
        actions: int,
        *,
        action_size: int = 0,
        interior: int | None = None,
    ) -> None:
        interior = actions if interior is None else interior
        if simulations < 1 or actions < 1 or not 1 <= interior <= actions:
            raise ValueError(f"got {simulations} simulations, {actions} actions, {interior} in other nodes")
        self.rule, self.simulations, self.actions, self.action_size = rule, simulations, actions, action_size
        self._rule = _rule_numbers(rule, simulations, actions, interior)
        self._tree = new_tree(0, simulations + 1, actions, 0, action_size)
        self._roots = 0
        self._asked = (np.empty((0, 0), np.float32), np.empty(0, np.int64), np.empty((0, action_size), np.float32))
        self._packing = Packing()

    def __call__(
        self,
        model: SearchModel | PackedModel | CompiledModel,
        roots: Roots,
        *,
        gumbel: Array | None = None,
        noise: Array | None = None,
    ) -> SearchResult:
        """Search all roots. `gumbel` `[B, A]` is the noise of Gumbel MuZero's root, none if it is not given.

        `noise` `[B, simulations + 1, interior, d]`, standard normal, draws the actions of a packed model's nodes.
        """
        start = self._plant(roots, gumbel)
        plant(self._tree, start)
        found = _empty(*start.logits.shape)
        if isinstance(model, PackedModel):
            numbers = self._packing(model, noise, (len(start.value), self.simulations + 1, self._rule.interior))
            if (model.latent, model.action_size) != (start.embedding.shape[1], self.action_size):
                raise ValueError(f"the model has latents of {model.latent} and actions of size {model.action_size}")
            if not self.action_size and model.layers[-2, 1] != self.actions:
                raise ValueError(f"the model has {model.layers[-2, 1]} actions, the search {self.actions}")
            fused_search(self._tree, self._rule, numbers, len(start.value))
        elif noise is not None:
            raise ValueError("only a packed model takes noise; others draw their own")
        elif isinstance(model, CompiledModel):
            model.search(self._tree, self._rule, len(start.value))
        else:
            self._simulate(model)
        summarize(self._tree, self._rule, found)
        return SearchResult(**found._asdict(), actions=roots.actions)

    def bytes_needed(self, roots: int, embedding: int) -> int:
        """The RAM that the trees of so many roots take, with embeddings of this size."""
        one = new_tree(1, self.simulations + 1, self.actions, embedding, self.action_size)
        return roots * sum(array.nbytes for array in one)

    def tree(self, root: int = 0) -> SearchTree:
        """The tree of one root of the last search."""
        if not 0 <= root < self._roots:
            raise ValueError(f"the last search had {self._roots} roots, there is no root {root}")
        return SearchTree.of(self._tree, root)

    def _plant(self, roots: Roots, gumbel: Array | None) -> Start:
        """Provide memory for these roots, and set what is chosen from."""
        shape = (len(roots.logits), self.actions)
        if roots.logits.shape != shape or roots.value.shape != shape[:1] or len(roots.embedding) != shape[0]:
            raise ValueError(f"roots must have {self.actions} logits, a value and an embedding each")
        sampled = (*shape, self.action_size)
        if (sampled if roots.actions is None else roots.actions.shape) != sampled or (
            roots.actions is None and self.action_size > 0
        ):
            raise ValueError(f"roots must have sampled actions of shape {sampled}, or none if an action is its index")
        if len(self._tree.spans) < shape[0] or self._tree.embedding.shape[2] != roots.embedding.shape[1]:
            room, size = max(shape[0], len(self._tree.spans)), roots.embedding.shape[1]
            self._tree = new_tree(room, self.simulations + 1, self.actions, size, self.action_size)
        if self._asked[0].shape != roots.embedding.shape:
            self._asked = (
                np.empty(roots.embedding.shape, np.float32),
                np.empty(shape[0], np.int64),
                np.empty((shape[0], self.action_size), np.float32),
            )
        self._roots = shape[0]
        self._tree.roots[: shape[0], ALLOWED] = 1.0 if roots.mask is None else roots.mask
        self._tree.roots[: shape[0], GUMBEL] = 0.0 if gumbel is None else gumbel
        actions = np.empty(sampled, np.float32) if roots.actions is None else _floats(roots.actions)
        return Start(_floats(roots.embedding), _floats(roots.logits), _floats(roots.value), actions)

    def _simulate(self, model: SearchModel) -> None:
        """All simulations, with one call of the model each."""
        embedding, index, vector = self._asked
        empty = np.empty((len(index), self._rule.interior, 0), np.float32)
        for node in range(1, self.simulations + 1):
            select_leaves(self._tree, self._rule, node, embedding, index, vector)
            leaves = model.step(embedding, vector if self.action_size else index, node)
            if leaves.logits.shape[1] < self._rule.interior or leaves.embedding.shape != embedding.shape:
                raise ValueError(
                    f"the model must answer with {self._rule.interior} logits and an embedding of {embedding.shape[1]}"
                )
            answers = Answers(
                _floats(leaves.reward),
                _floats(leaves.discount),
                _floats(leaves.embedding),
                _floats(leaves.logits),
                _floats(leaves.value),
                empty if leaves.actions is None else _floats(leaves.actions),
            )
            grow(self._tree, self._rule, node, answers)


def _floats(x: Array) -> Array:
    """As the kernels read it: float32, contiguous."""
    return np.ascontiguousarray(x, np.float32)


def _empty(roots: int, actions: int) -> Found:
    """Memory for what a search finds."""
    per_edge = np.empty((4, roots, actions), np.float32)
    per_root = np.empty((2, roots), np.float32)
    return Found(np.empty((roots, actions), np.int32), *per_edge, *per_root)


def _rule_numbers(rule: Puct | GumbelRule, simulations: int, actions: int, interior: int) -> Rule:
    """A rule as the kernels read it."""
    gumbel, puct = (rule, Puct()) if isinstance(rule, GumbelRule) else (GumbelRule(), rule)
    table = [considered_visits(m, simulations) for m in range(min(gumbel.considered, actions) + 1)]
    by_tree, by_mean = puct.normalization == "tree", puct.unvisited == "mean"
    floor = puct.value_floor if by_tree else SMALLEST_RANGE
    numbers = (puct.c_init, puct.c_base, floor, by_tree, by_mean, gumbel.c_visit, gumbel.c_scale, gumbel.rescale)
    considered = np.array(table, np.int32)
    return Rule(isinstance(rule, GumbelRule), interior, np.array(numbers, np.float64), considered)


def visit_probabilities(visits: Array, temperature: float | Array) -> Array:
    """N^(1 / temperature), normalised, float64 `[B, A]`; temperature 0 is the most visited action.

    `temperature` is one for all rows, or `[B]`. Rows without visits are 0.
    """
    heat = np.broadcast_to(np.asarray(temperature, np.float64), visits.shape[:1])[:, None]
    most = np.maximum(visits.max(axis=1, keepdims=True), 1)
    with np.errstate(divide="ignore"):
        logs = np.log(visits / most)
    # The most visited action has weight 1 at every temperature above 0.
    weights = np.exp(np.divide(logs, heat, out=np.full(visits.shape, -np.inf), where=heat > 0.0))
    weights[np.arange(len(visits)), visits.argmax(axis=1)] = 1.0
    weights *= visits > 0
    probabilities: Array = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1.0)
    return probabilities


def visit_action(visits: Array, temperature: float | Array, uniform: Array) -> Array:
    """Draw from `visit_probabilities` by inverting the cumulative distribution at `uniform` `[B]`; int64 `[B]`."""
    reached = visit_probabilities(visits, temperature).cumsum(axis=1)
    # Relative to the total, which rounding may have left below 1: an action without visits is never drawn.
    actions: Array = (reached <= uniform[:, None] * reached[:, -1:]).sum(axis=1)
    return np.where(reached[:, -1] > 0.0, np.minimum(actions, visits.shape[1] - 1), 0)


def gumbel_action(
    result: SearchResult,
    gumbel: Array,
    temperature: float | Array = 1.0,
    mode: Literal["filter", "scale"] = "filter",
) -> Array:
    """What Gumbel MuZero plays, int64 `[B]`; `gumbel` is the noise that was searched with.

    At temperature 1, the highest gumbel + logits + sigma(q) of the most visited actions. The mode says how another
    temperature acts. "scale": the caller has searched with gumbel times the temperature, and the rule stays the same.
    "filter": let a be the action with the highest gumbel + logits, which is a sample of the prior. Of the visited
    actions that are no worse than a, play the highest temperature * gumbel + logits + sigma(q). With exact q, this is
    no worse than the prior at any temperature. Actions with a single visit are left out if others have more.
    """
    if mode not in ("filter", "scale"):
        raise ValueError(f"mode is 'filter' or 'scale', got {mode!r}")
    rows = len(result.visits)
    heat, actions = np.full(rows, temperature, np.float64), np.empty(rows, np.int64)
    found = (result.visits, result.q, result.logits, result.improved)
    play(*found, np.ascontiguousarray(gumbel, np.float64), heat, mode == "filter", actions)
    return actions


def dirichlet_logits(
    logits: Array, mask: Array | None, alpha: float, fraction: float, rng: np.random.Generator
) -> Array:
    """log((1 - fraction) softmax(logits) + fraction * noise), float32 `[B, A]`: the prior of a root that explores.

    The noise is Dirichlet(alpha) over the allowed actions. Forbidden actions get the lowest float32.
    """
    allowed = np.ones(logits.shape, np.bool_) if mask is None else mask
    shifted = np.where(allowed, logits, -np.inf).astype(np.float64)
    shifted -= np.maximum(shifted.max(axis=1, keepdims=True), LOWEST)
    prior, noise = np.exp(shifted), rng.standard_gamma(alpha, logits.shape) * allowed
    for shares in (prior, noise):
        # A tiny alpha can leave nothing but zeros, and a row without allowed actions has nothing else.
        shares /= np.maximum(shares.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    with np.errstate(divide="ignore"):
        mixed = np.log((1.0 - fraction) * prior + fraction * noise)
    return np.maximum(mixed, LOWEST).astype(np.float32)
