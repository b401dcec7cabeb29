"""Softmax within groups of columns, and losses that compare distributions, with their gradients in the same pass.

A row may be one group, as the logits of a head are, or many small ones, for which torch is at its slowest.
"""

from __future__ import annotations

import math

import numpy as np

from rl_training.ops.kernels import lean
from rl_training.ops.kernels.vectors import dot, exp32, largest, total
from rl_training.types import Array

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@lean
def _below_largest(row: Array, group: int, out: Array) -> None:
    """Every number less the largest one of its group."""
    for start in range(0, row.size, group):
        part, found = row[start : start + group], out[start : start + group]
        high = largest(part)
        for i in range(part.size):
            found[i] = part[i] - high


@lean
def group_softmax(x: Array, group: int, out: Array) -> None:
    """Softmax of the rows of `x` `[N, D]`, within groups of so many columns."""
    for n in range(x.shape[0]):
        share = out[n]
        _below_largest(x[n], group, share)
        for i in range(share.size):
            share[i] = exp32(share[i])
        for start in range(0, share.size, group):
            part = share[start : start + group]
            factor = _ONE / total(part)
            for i in range(part.size):
                part[i] *= factor


@lean
def group_softmax_backward(shares: Array, group: int, d: Array, d_x: Array) -> None:
    """The gradient of `group_softmax`, of which `shares` are the results: `d` is theirs, `d_x` becomes that of `x`."""
    for n in range(shares.shape[0]):
        share, slope, found = shares[n], d[n], d_x[n]
        for i in range(share.size):
            found[i] = share[i] * slope[i]
        for start in range(0, share.size, group):
            part, whole = found[start : start + group], share[start : start + group]
            mean = total(part)
            for i in range(part.size):
                part[i] -= mean * whole[i]


@lean
def divergences(logits: Array, target: Array, weight: Array, group: int, d_logits: Array) -> float:
    """The sum over rows `[N, D]` of `weight` `[N]` times the mean over groups of KL(target, softmax of logits).

    `d_logits` becomes its gradient. It is 0 where the weight is.
    """
    added = 0.0
    for n in range(logits.shape[0]):
        share, wanted = d_logits[n], target[n]
        factor = weight[n] / np.float32(share.size // group)
        if factor == _ZERO:
            for i in range(share.size):
                share[i] = _ZERO
            continue
        _below_largest(logits[n], group, share)
        found = -np.float64(dot(wanted, share))
        for i in range(wanted.size):
            if wanted[i] > _ZERO:
                found += wanted[i] * math.log(wanted[i])
        for i in range(share.size):
            share[i] = exp32(share[i])
        for start in range(0, share.size, group):
            part, goal = share[start : start + group], wanted[start : start + group]
            every, mass = total(part), total(goal)
            found += mass * math.log(every)
            scale = factor * mass / every
            for i in range(part.size):
                part[i] = scale * part[i] - factor * goal[i]
        added += np.float64(factor) * found
    return added


@lean
def entropies(logits: Array, weight: Array, d_logits: Array) -> float:
    """The sum of `weight` `[N]` times the entropies of the softmax of rows; `d_logits` becomes its gradient."""
    added = 0.0
    for n in range(logits.shape[0]):
        row, slope = logits[n], d_logits[n]
        high, every, along = largest(row), _ZERO, _ZERO
        for i in range(row.size):
            slope[i] = exp32(row[i] - high)
        every = total(slope)
        for i in range(row.size):
            slope[i] /= every
        for i in range(row.size):
            along += slope[i] * (row[i] - high)
        # log p is row - high - log(every), and the entropy log(every) - along.
        for i in range(row.size):
            slope[i] *= weight[n] * (along + high - row[i])
        added += np.float64(weight[n]) * (math.log(every) - along)
    return added
