"""Explicit forms of what is said of a world model's states: numbers and continuation, and the policy in its dreams.

Value, reward, continuation and slow value of all states, observed and imagined ones, are computed together: their first
layers are one product.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rl_training.models.mlp_engine import Workspace, multiply
from rl_training.models.rssm_engine_layers import NormedLayers, OutputLayers
from rl_training.models.rssm_heads import MAX_STD, MIN_STD, STD_SHIFT, LegalHead, NumberHead, PolicyHead
from rl_training.models.rssm_layers import NormedLinear
from rl_training.models.world_model import DreamerNetwork
from rl_training.ops.distributions import FORBIDDEN
from rl_training.ops.kernels import world_heads as kernels
from rl_training.ops.symexp import SymexpPoints
from rl_training.types import Array

# Rows of which everything is said before the next ones: long rows of probabilities do not leave the caches meanwhile.
_NEAR = 1024


class Said(NamedTuple):
    """What is said of states, `[rows]` each: values, rewards, probabilities of going on, slow values."""

    value: Array
    reward: Array
    goes_on: Array
    slow: Array


class Goals(NamedTuple):
    """What numbers are to be said of rows, K for each: targets and their weights in the loss, `[K, rows]` each."""

    target: Array
    weight: Array


class StateHeads:
    """The heads of value, reward, continuation and slow value, in this order."""

    def __init__(self, network: DreamerNetwork, slow: NumberHead) -> None:
        heads = [network.value, network.world.reward, network.world.continues, slow]
        firsts = [head.torso[0] for head in heads]
        self._first = NormedLayers([layer for layer in firsts if isinstance(layer, NormedLinear)], trained=True)
        self._heads = [
            OutputLayers(head, trained=head is not slow, skip=1, padded=isinstance(head, NumberHead)) for head in heads
        ]
        self._support = network.value.support
        self._positive = self._support.points[-(self._support.bins // 2) :].copy()
        self._numbers = Workspace((), [1] * len(heads))

    def begin(self, rows: int) -> None:
        """Make room for so many rows, with the weights of now."""
        self._numbers.resize(rows)
        self._first.begin(rows)
        for head in self._heads:
            head.begin(rows)

    def forward(self, states: Array) -> Said:
        """What is said of all states `[rows, F]`, a block of rows after the other."""
        said = [numbers.reshape(-1) for numbers in self._numbers.arrays]
        for start in range(0, len(states), _NEAR):
            rows = slice(start, min(start + _NEAR, len(states)))
            first = self._first.forward(states[rows], rows)
            for k, (head, number) in enumerate(zip(self._heads, said, strict=True)):
                products = head.forward(first, rows, self._columns(k).start)
                if products.shape[1] == 1:
                    np.add(products[:, 0], head.bias, out=number[rows])
                else:
                    kernels.symexp_probabilities(products, head.bias, self._positive, number[rows])
        value, reward, logits, slow = said
        return Said(value, reward, logistic(logits), slow)

    def learn_value(self, goals: Goals) -> Array:
        """Write the gradients of the value behind its first layer; returns the losses `[K, rows]` without weights.

        The goals are those of the first rows; the others are not learned from. After `forward`.
        """
        return self._learn_number(0, slice(0, goals.target.shape[1]), goals)

    def learn_reward(self, goals: Goals) -> Array:
        """The same of the rewards."""
        return self._learn_number(1, slice(0, goals.target.shape[1]), goals)

    def learn_continuation(self, target: Array, weight: float) -> Array:
        """The same of the continuation, whose targets are probabilities `[rows]`; its losses are `[rows]`."""
        rows, left = slice(0, len(target)), self._columns(2).start
        logits = self._numbers.arrays[2][rows, 0]
        d = np.float32(weight) * (logistic(logits) - target)
        self._heads[2].backward(self._first.out[rows], d[:, None], rows, self._first.d[rows], left)
        return cross_entropy(logits, target)

    def backward(self, states: Array, seen: int, learned: int, *, through_value: bool, d_states: Array) -> None:
        """Write the gradients of the first layers, and of the first states that rewards were learned of.

        These are the first `seen` rows; values were learned of the first `learned` rows. With `through_value` values
        teach states too.
        """
        first, width = self._first, self._first.width
        first.backward(slice(0, seen), groups=3)
        first.backward(slice(seen, learned), groups=1)
        model, value = slice(width, 3 * width), slice(0, width)
        multiply(first.d[:learned, value].T, states[:learned], first.d_weight[value])
        multiply(first.d[:seen, model].T, states[:seen], first.d_weight[model])
        first.write()
        groups = slice(0 if through_value else width, 3 * width)
        multiply(first.d[:seen, groups], first.weight[groups], d_states)

    def _columns(self, head: int) -> slice:
        width = self._first.width
        return slice(head * width, (head + 1) * width)

    def _learn_number(self, k: int, rows: slice, goals: Goals) -> Array:
        head, left = self._heads[k], self._columns(k).start
        probabilities, losses = head.products[rows], np.empty_like(goals.target)
        lower, share = symexp_places(goals.target, self._support)
        for target in range(len(losses)):
            kernels.two_hot_losses(probabilities, lower[target], share[target], losses[target])
        kernels.two_hot_slopes(probabilities, lower, share, goals.weight)
        head.backward(self._first.out[rows], probabilities, rows, self._first.d[rows], left)
        return losses


class DreamPolicy:
    """The policy on the states of dreams, a step at a time, and its gradient for all of them."""

    def __init__(self, policy: PolicyHead, *, trained: bool) -> None:
        self.info, self.unimix = policy.info, policy.unimix
        self._layers = OutputLayers(policy, trained=trained)
        self._counts = np.array(self.info.action_counts, np.int64)
        self.action = self.allowed = np.zeros((0, 0))
        self._columns = np.zeros((0, 0), np.float32)

    def begin(self, rows: int, together: int) -> None:
        """Make room for so many rows, of which so many are computed together, with the weights of now."""
        info = self.info
        self._layers.begin(rows)
        self._columns = np.empty((together, info.action_size), np.float32)
        if info.continuous:
            self.action = np.empty((rows, info.action_size), np.float32)
        else:
            self.action = np.empty((rows, len(self._counts)), np.int64)
            self.allowed = np.ones((rows, info.action_size), np.bool_)

    def act(self, states: Array, noise: Array, rows: slice, mask: Array | None = None) -> Array:
        """Actions of some rows, which are kept in `action`, as scaled columns `[n, action_size]` for the model."""
        out, bias, action = self._layers.forward(states, rows), self._layers.bias, self.action[rows]
        if self.info.continuous:
            kernels.act_gaussian(out, bias, STD_SHIFT, MIN_STD, MAX_STD, noise, action, self._columns)
            return self._columns
        if mask is not None:
            self.allowed[rows] = mask
        kernels.choose(out, bias, self._counts, self.unimix, self.allowed[rows], noise, action, self._columns)
        return self._columns

    def params(self, states: Array, mask: Array | None) -> Array:
        """`PolicyHead.forward` of rows `[n, F]`: parameters of the action distribution."""
        rows, size = slice(0, len(states)), self.info.action_size
        self._layers.begin(len(states))
        out, bias = self._layers.forward(states, rows), self._layers.bias
        if self.info.continuous:
            still, action = np.zeros((len(states), size), np.float32), np.empty((len(states), size), np.float32)
            kernels.act_gaussian(out, bias, STD_SHIFT, MIN_STD, MAX_STD, still, action, action)
            np.log(out[:, size:], out=out[:, size:])
        else:
            allowed = np.ones((len(states), size), np.bool_) if mask is None else mask.astype(np.bool_)
            kernels.log_choices(out, bias, self._counts, self.unimix, allowed, FORBIDDEN)
        copied: Array = out.copy()
        return copied

    def learn(self, states: Array, d_log_prob: Array, d_entropy: Array) -> tuple[Array, Array]:
        """Write the gradients; returns the log-probabilities of the actions and the entropies, `[rows]` each."""
        log_prob, entropy = np.empty_like(d_log_prob), np.empty_like(d_log_prob)
        out, slopes = self._layers.products, (d_log_prob, d_entropy, log_prob, entropy)
        if self.info.continuous:
            kernels.gaussian_slopes(out, MIN_STD, MAX_STD, self.action, *slopes)
        else:
            kernels.choices_slopes(out, self._counts, self.unimix, self.allowed, self.action, *slopes)
        self._layers.backward(states, out, slice(0, len(states)), None)
        return log_prob, entropy


class LegalRows:
    """Which choices are allowed in states, as the model learns it."""

    def __init__(self, head: LegalHead, *, trained: bool) -> None:
        self._layers = OutputLayers(head, trained=trained)
        self._ends = np.cumsum(head.counts)[:-1]

    def begin(self, rows: int) -> None:
        """Make room for so many rows, with the weights of now."""
        self._layers.begin(rows)

    def mask(self, states: Array) -> Array:
        """`LegalHead.mask` of states `[rows, F]`."""
        logits = self._layers.forward(states, slice(0, len(states))) + self._layers.bias
        mask: Array = logits > 0.0
        for factor, allowed in zip(
            np.split(logits, self._ends, axis=1), np.split(mask, self._ends, axis=1), strict=True
        ):
            allowed[np.arange(len(states)), factor.argmax(axis=1)] = True
        return mask

    def learn(self, states: Array, mask: Array, weight: float, d_states: Array) -> Array:
        """Write the gradients, also of the states; returns the losses `[rows]` without their weight."""
        rows = slice(0, len(states))
        logits = self._layers.forward(states, rows) + self._layers.bias
        d = np.float32(weight) * (logistic(logits) - mask.astype(np.float32))
        self._layers.backward(states, d, rows, d_states)
        losses: Array = cross_entropy(logits, mask).sum(axis=1)
        return losses


def logistic(x: Array) -> Array:
    """1 / (1 + exp(-x)), without an overflow."""
    half: Array = 0.5 * np.tanh(0.5 * x) + 0.5
    return half


def cross_entropy(logits: Array, target: Array) -> Array:
    """The cross-entropies of the logits of probabilities with targets in [0, 1]."""
    losses: Array = np.maximum(logits, 0.0) - logits * target + np.log1p(np.exp(-np.abs(logits)))
    return losses


def symexp_places(x: Array, support: SymexpPoints) -> tuple[Array, Array]:
    """`rl_training.ops.symexp.symexp_places` of arrays."""
    points = support.points
    x = np.clip(x, points[0], points[-1])
    lower = np.minimum(np.searchsorted(points, x, side="right") - 1, support.bins - 2)
    below = points[lower]
    return lower, (x - below) / (points[lower + 1] - below)
