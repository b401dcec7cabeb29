"""What is said of a world model's states, between matrix products: numbers, divergences, policies, and their gradients.

Each has its readable torch form in `ops.symexp`, `ops.latents` and `models.rssm_heads`.
"""

from __future__ import annotations

import math

import numpy as np

from rl_training.ops.distributions import LOG_SQRT_2PI
from rl_training.ops.kernels import lean
from rl_training.ops.kernels.vectors import dot, exp32, largest, logistic32, tanh32, total
from rl_training.ops.kernels.world_states import draw
from rl_training.types import Array

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
# A probability below this counts as this in a logarithm.
_SMALLEST = np.float32(1e-37)


@lean
def symexp_probabilities(logits: Array, bias: Array, points: Array, mean: Array) -> None:
    """Add `bias` to logits `[B, bins]` and turn them into probabilities, in place; write the means `[B]`.

    Rows may have free columns behind the bins, of which there are as many as biases.
    A point and its mirror image are taken together, so that equal logits mean exactly 0: `points` are the positive
    ones, the last of them the largest.
    """
    bins, pairs = bias.size, points.size
    for b in range(logits.shape[0]):
        row = logits[b, :bins]
        for i in range(bins):
            row[i] += bias[i]
        high = largest(row)
        for i in range(bins):
            row[i] = exp32(row[i] - high)
        share = _ONE / total(row)
        for i in range(bins):
            row[i] *= share
        c0 = c1 = c2 = c3 = _ZERO
        upper, whole = row[bins - pairs :], pairs // 4 * 4
        for i in range(0, whole, 4):
            c0 += points[i] * (upper[i] - row[pairs - 1 - i])
            c1 += points[i + 1] * (upper[i + 1] - row[pairs - 2 - i])
            c2 += points[i + 2] * (upper[i + 2] - row[pairs - 3 - i])
            c3 += points[i + 3] * (upper[i + 3] - row[pairs - 4 - i])
        for i in range(whole, pairs):
            c0 += points[i] * (upper[i] - row[pairs - 1 - i])
        mean[b] = (c0 + c1) + (c2 + c3)


@lean
def two_hot_losses(probabilities: Array, lower: Array, share: Array, loss: Array) -> None:
    """The cross-entropies `[B]` of probabilities `[B, bins]` with targets between the points `lower` and the next."""
    for b in range(probabilities.shape[0]):
        below, above = probabilities[b, lower[b]], probabilities[b, lower[b] + 1]
        below, above = math.log(max(below, _SMALLEST)), math.log(max(above, _SMALLEST))
        loss[b] = -((_ONE - share[b]) * below + share[b] * above)


@lean
def two_hot_slopes(probabilities: Array, lower: Array, share: Array, weight: Array) -> None:
    """Turn probabilities `[B, bins]` into the gradient of their logits, in place.

    The loss is the sum of cross-entropies with K targets, `[K, B]` each: between the points `lower` and the next, a
    `share` of it at the next. `weight` is how much each counts.
    """
    targets = lower.shape[0]
    for b in range(probabilities.shape[0]):
        row, all_weights = probabilities[b], _ZERO
        for k in range(targets):
            all_weights += weight[k, b]
        for i in range(row.size):
            row[i] *= all_weights
        for k in range(targets):
            row[lower[k, b]] -= weight[k, b] * (_ONE - share[k, b])
            row[lower[k, b] + 1] -= weight[k, b] * share[k, b]


@lean
def divergences(p: Array, q: Array, log_ratio: Array, free: float, kl: Array, weight_p: float, weight_q: float) -> None:
    """KL(p || q) `[B]` of mixed probabilities `[B, latent]`, and the gradients of its two losses, in place.

    `log_ratio` is log(p / q), and becomes the gradient of `weight_p` times the divergence with respect to p, but for a
    constant, which a softmax does not see; `q` becomes that of `weight_q` times it. Below `free` both are 0.
    """
    for b in range(p.shape[0]):
        above, below, ratio = p[b], q[b], log_ratio[b]
        kl[b] = dot(above, ratio)
        held = kl[b] >= free
        to_p, to_q = np.float32(weight_p if held else 0.0), np.float32(weight_q if held else 0.0)
        for i in range(ratio.size):
            ratio[i] *= to_p
        for i in range(below.size):
            below[i] = -to_q * above[i] / below[i]


@lean
def choose(
    out: Array, bias: Array, counts: Array, unimix: float, allowed: Array, noise: Array, action: Array, columns: Array
) -> None:
    """Turn a policy's outputs `[B, sum(counts)]` into softmax probabilities, in place, and draw all K choices.

    A share `unimix` of the distributions over `allowed` choices is uniform. `noise` `[B, K]` are uniform numbers; write
    `action` `[B, K]`, and one-hot `columns` as wide as the outputs.
    """
    for b in range(out.shape[0]):
        row, start = out[b], 0
        for k in range(counts.size):
            end = start + counts[k]
            even = _soften(row, bias, allowed[b], start, end, unimix)
            for a in range(start, end):
                columns[b, a] = _mixed(row[a], unimix, even, allowed[b, a])
            action[b, k] = draw(columns[b, start:end], noise[b, k])
            start = end


@lean
def log_choices(out: Array, bias: Array, counts: Array, unimix: float, allowed: Array, forbidden: float) -> None:
    """Turn a policy's outputs `[B, sum(counts)]` into log-probabilities, in place: see `choose`.

    What is not allowed becomes `forbidden`.
    """
    for b in range(out.shape[0]):
        row, start = out[b], 0
        for k in range(counts.size):
            end = start + counts[k]
            even = _soften(row, bias, allowed[b], start, end, unimix)
            for a in range(start, end):
                mixed = max(_mixed(row[a], unimix, even, allowed[b, a]), _SMALLEST)
                row[a] = np.float32(math.log(mixed)) if allowed[b, a] else np.float32(forbidden)
            start = end


@lean
def _soften(row: Array, bias: Array, allowed: Array, start: int, end: int, unimix: float) -> float:
    """Softmax of some outputs over those that are allowed, in place; returns the uniform share of each of these."""
    high, count, whole = np.float32(-np.inf), 0, _ZERO
    for a in range(start, end):
        row[a] += bias[a]
        if allowed[a]:
            count += 1
            high = max(high, row[a])
    for a in range(start, end):
        row[a] = exp32(row[a] - high) if allowed[a] else _ZERO
        whole += row[a]
    for a in range(start, end):
        row[a] /= whole
    even: float = np.float32(unimix / max(count, 1))
    return even


@lean
def _mixed(probability: float, unimix: float, even: float, allowed: bool) -> float:
    mixed: float = np.float32(1.0 - unimix) * probability + even if allowed else _ZERO
    return mixed


@lean
def choices_slopes(
    softmax: Array,
    counts: Array,
    unimix: float,
    allowed: Array,
    action: Array,
    d_log_prob: Array,
    d_entropy: Array,
    log_prob: Array,
    entropy: Array,
) -> None:
    """Turn the probabilities that `choose` left into the gradient of the policy's outputs, in place.

    `d_log_prob` and `d_entropy` `[B]` are the gradients of the log-probabilities of the actions and of the entropies,
    which are written, `[B]` each.
    """
    kept = np.float32(1.0 - unimix)
    for b in range(softmax.shape[0]):
        row, start = softmax[b], 0
        log_prob[b] = entropy[b] = _ZERO
        for k in range(counts.size):
            end, chosen, count = start + counts[k], start + action[b, k], 0
            for a in range(start, end):
                count += allowed[b, a]
            even, mean = np.float32(unimix / max(count, 1)), _ZERO
            for a in range(start, end):
                if allowed[b, a]:
                    p = kept * row[a] + even
                    log_p = math.log(max(p, _SMALLEST))
                    entropy[b] -= p * log_p
                    log_prob[b] += log_p if a == chosen else _ZERO
                    mean += row[a] * _choice_slope(p, log_p, a == chosen, d_log_prob[b], d_entropy[b])
            for a in range(start, end):
                if allowed[b, a]:
                    p = kept * row[a] + even
                    log_p = math.log(max(p, _SMALLEST))
                    slope = _choice_slope(p, log_p, a == chosen, d_log_prob[b], d_entropy[b])
                    row[a] *= kept * (slope - mean)
                else:
                    row[a] = _ZERO
            start = end


@lean
def _choice_slope(p: float, log_p: float, chosen: bool, d_log_prob: float, d_entropy: float) -> float:
    """The gradient of a mixed probability."""
    slope: float = -d_entropy * (np.float32(log_p) + _ONE)
    return slope + d_log_prob / p if chosen else slope


@lean
def act_gaussian(
    out: Array, bias: Array, shift: float, low: float, high: float, noise: Array, action: Array, columns: Array
) -> None:
    """Turn a policy's outputs `[B, 2 * D]` into means and deviations, in place, and write actions `[B, D]` of `noise`.

    A mean is tanh of its output, a deviation is between `low` and `high`, after its output is moved by `shift`.
    `columns` are the actions as a model sees them, in [-1, 1].
    """
    size, least, width = action.shape[1], np.float32(low), np.float32(high - low)
    for b in range(out.shape[0]):
        row = out[b]
        for i in range(size):
            row[i] = tanh32(row[i] + bias[i])
            row[size + i] = width * logistic32(row[size + i] + bias[size + i] + np.float32(shift)) + least
            drawn = row[i] + row[size + i] * noise[b, i]
            action[b, i] = drawn
            columns[b, i] = drawn / max(_ONE, abs(drawn))


@lean
def gaussian_slopes(
    params: Array,
    low: float,
    high: float,
    action: Array,
    d_log_prob: Array,
    d_entropy: Array,
    log_prob: Array,
    entropy: Array,
) -> None:
    """`choices_slopes` for means and deviations that `act_gaussian` left."""
    size, least, width = action.shape[1], np.float32(low), np.float32(high - low)
    for b in range(params.shape[0]):
        row = params[b]
        log_prob[b] = entropy[b] = _ZERO
        for i in range(size):
            mean, std = row[i], row[size + i]
            noise, log_std, open_part = (action[b, i] - mean) / std, math.log(std), (std - least) / width
            log_prob[b] -= 0.5 * noise * noise + log_std + LOG_SQRT_2PI
            entropy[b] += log_std + 0.5 + LOG_SQRT_2PI
            d_log_std = d_log_prob[b] * (noise * noise - _ONE) + d_entropy[b]
            row[i] = d_log_prob[b] * noise / std * (_ONE - mean * mean)
            row[size + i] = d_log_std * width * open_part * (_ONE - open_part) / std
