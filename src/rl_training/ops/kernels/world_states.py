"""The steps of a world model between their matrix products: gates of the recurrent unit, latents, and their gradients.

States are rows `[B, F]`: `deter` first, then the latent as one-hot rows, classes side by side.
"""

from __future__ import annotations

import numpy as np

from rl_training.ops.kernels import inlined, lean
from rl_training.ops.kernels.vectors import exp32, logistic32, tanh32
from rl_training.types import Array

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@lean
def keep_rows(state: Array, first: Array, out: Array) -> None:
    """Copy rows, or write zeros where `first` `[B]` is set."""
    for b in range(state.shape[0]):
        source, target = state[b], out[b]
        if first[b]:
            for i in range(target.size):
                target[i] = _ZERO
        else:
            for i in range(target.size):
                target[i] = source[i]


@lean
def gru_forward(gates: Array, bias: Array, shift: float, before: Array, squashed: Array, after: Array) -> None:
    """Write the next `deter` to the first columns of `after`, from that in `before`, both `[B, F]`.

    `gates` `[B, blocks, 3, W]` are products; with `bias` `[blocks, 3, W]` they become the reset gate, the candidate and
    the share of the update, whose gate is moved by `shift`. `squashed` `[B, blocks, W]` is tanh of the candidate.
    """
    moved, width = np.float32(shift), gates.shape[3]
    for b in range(gates.shape[0]):
        for k in range(gates.shape[1]):
            reset, candidate, update = gates[b, k, 0], gates[b, k, 1], gates[b, k, 2]
            own, result, tanh = (
                before[b, k * width : (k + 1) * width],
                after[b, k * width : (k + 1) * width],
                squashed[b, k],
            )
            for i in range(width):
                reset[i] = logistic32(reset[i] + bias[k, 0, i])
            for i in range(width):
                candidate[i] += bias[k, 1, i]
            for i in range(width):
                update[i] = logistic32(update[i] + bias[k, 2, i] + moved)
            for i in range(width):
                tanh[i] = tanh32(reset[i] * candidate[i])
            for i in range(width):
                result[i] = update[i] * tanh[i]
            for i in range(width):
                result[i] += (_ONE - update[i]) * own[i]


@lean
def gru_backward(gates: Array, before: Array, squashed: Array, d: Array) -> None:
    """Turn `gates`, as `gru_forward` left them, into the gradient of the products, in place.

    `d` `[B, blocks, W]` is the gradient of the next `deter`, and becomes that of the one before, by way of the share.
    """
    width = gates.shape[3]
    for b in range(gates.shape[0]):
        for k in range(gates.shape[1]):
            reset, candidate, update = gates[b, k, 0], gates[b, k, 1], gates[b, k, 2]
            own, tanh, slope = before[b, k * width : (k + 1) * width], squashed[b, k], d[b, k]
            for i in range(width):
                # What reaches the candidate times the reset gate.
                inner = slope[i] * update[i] * (_ONE - tanh[i] * tanh[i])
                tanh[i] -= own[i]
                own_part = inner * reset[i]
                reset[i] = own_part * candidate[i] * (_ONE - reset[i])
                candidate[i] = own_part
            for i in range(width):
                share = update[i]
                update[i] = slope[i] * tanh[i] * share * (_ONE - share)
                slope[i] *= _ONE - share


@lean
def softmax_groups(x: Array, bias: Array, classes: int) -> None:
    """Add `bias` to rows `[B, S * classes]`, and turn every group of `classes` numbers into probabilities, in place."""
    for b in range(x.shape[0]):
        row = x[b]
        for i in range(row.size):
            row[i] += bias[i]
        for start in range(0, row.size, classes):
            high = row[start]
            for c in range(start + 1, start + classes):
                high = max(high, row[c])
            for c in range(start, start + classes):
                row[c] -= high
        for i in range(row.size):
            row[i] = exp32(row[i])
        for start in range(0, row.size, classes):
            whole = row[start]
            for c in range(start + 1, start + classes):
                whole += row[c]
            share = _ONE / whole
            for c in range(start, start + classes):
                row[c] *= share


@lean
def softmax_groups_backward(probabilities: Array, classes: int, share: float, d: Array) -> None:
    """Turn `d`, the gradient of `share` times the probabilities, into that of `softmax_groups`' logits, in place."""
    part = np.float32(share)
    for b in range(d.shape[0]):
        row, slope = probabilities[b], d[b]
        for i in range(row.size):
            slope[i] *= part * row[i]
        for start in range(0, row.size, classes):
            whole = slope[start]
            for c in range(start + 1, start + classes):
                whole += slope[c]
            for c in range(start, start + classes):
                slope[c] -= row[c] * whole


@inlined
def draw(weights: Array, uniform: float) -> int:
    """Draw one of some weights, at a number in [0, 1) of their cumulative sum; they become a one-hot row, in place."""
    whole = 0.0
    for c in range(weights.size):
        whole += weights[c]
    limit, threshold = np.float32(whole), uniform * np.float32(whole)
    reached, chosen = 0.0, 0
    for c in range(weights.size):
        reached += weights[c]
        here = np.float32(reached)
        # Below the total too: a weight of 0 at the end is never drawn.
        chosen += here <= threshold and here < limit
        weights[c] = _ZERO
    weights[chosen] = _ONE
    return chosen


@lean
def draw_latents(
    probabilities: Array, classes: int, unimix: float, uniform: Array, index: Array, state: Array, first: int
) -> None:
    """Draw a class of every group `[B, S * classes]`, at numbers `uniform` `[B, S]` of the cumulative distribution.

    A share `unimix` of the distributions is uniform. Writes `index` `[B, S]`, and one-hot rows to the columns of
    `state` from `first` on.
    """
    kept, even = np.float32(1.0 - unimix), np.float32(unimix / classes)
    for b in range(probabilities.shape[0]):
        row, out = probabilities[b], state[b, first:]
        for i in range(row.size):
            out[i] = kept * row[i] + even
        for s in range(uniform.shape[1]):
            index[b, s] = draw(out[s * classes : (s + 1) * classes], uniform[b, s])


@lean
def likeliest_latents(probabilities: Array, classes: int, index: Array) -> None:
    """Write the likeliest class of every group `[B, S * classes]` to `index` `[B, S]`."""
    for b in range(index.shape[0]):
        row = probabilities[b]
        for s in range(index.shape[1]):
            best = 0
            for c in range(1, classes):
                if row[s * classes + c] > row[s * classes + best]:
                    best = c
            index[b, s] = best


@lean
def enter_latents(index: Array, classes: int, state: Array, first: int) -> None:
    """Write one-hot rows of `index` `[B, S]` to the columns of `state` from `first` on; `classes` is a row of zeros."""
    for b in range(index.shape[0]):
        out = state[b, first:]
        for i in range(out.size):
            out[i] = _ZERO
        for s in range(index.shape[1]):
            if index[b, s] < classes:
                out[s * classes + index[b, s]] = _ONE


@lean
def add_columns(out: Array, x: Array, y: Array, first: int) -> None:
    """Add the columns of `x` and of `y` from `first` on to `out` `[B, W]`."""
    for b in range(out.shape[0]):
        row, one, other = out[b], x[b, first : first + out.shape[1]], y[b, first : first + out.shape[1]]
        for i in range(row.size):
            row[i] += one[i] + other[i]
