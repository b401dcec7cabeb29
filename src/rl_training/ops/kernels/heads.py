"""Losses with closed-form gradients in two steps: with respect to log-probabilities, entropies and values, and from
there to the network's outputs. Each has its readable torch form in `rl_training.ops`."""

from __future__ import annotations

import math

import numpy as np

from rl_training.ops.distributions import LOG_SQRT_2PI
from rl_training.ops.kernels import jit
from rl_training.ops.kernels.acting import highest
from rl_training.types import Array


@jit
def _log_total(logits: Array) -> float:
    """log(sum(exp(logits)))"""
    shift = highest(logits)
    total = 0.0
    for a in range(logits.size):
        total += math.exp(logits[a] - shift)
    log_total: float = shift + math.log(total)
    return log_total


@jit
def categorical_forward(logits: Array, counts: Array, action: Array, log_prob: Array, entropy: Array) -> None:
    """Turn `logits` `[B, sum(counts)]` of independent choices into log-probabilities, in place.

    `action` is `[B, K]`; its log-probabilities and the entropies, each `[B]`, are written.
    """
    for b in range(logits.shape[0]):
        log_prob[b] = entropy[b] = 0.0
        start = 0
        for k in range(counts.size):
            row = logits[b, start : start + counts[k]]
            shift = _log_total(row)
            for a in range(row.size):
                row[a] -= shift
                entropy[b] -= math.exp(row[a]) * row[a]
            log_prob[b] += row[action[b, k]]
            start += counts[k]


@jit
def categorical_backward(log_probs: Array, counts: Array, action: Array, d_log_prob: Array, d_entropy: float) -> None:
    """Turn the log-probabilities of `categorical_forward` into the gradient of the logits, in place."""
    for b in range(log_probs.shape[0]):
        start = 0
        for k in range(counts.size):
            row = log_probs[b, start : start + counts[k]]
            entropy = 0.0
            for a in range(row.size):
                entropy -= math.exp(row[a]) * row[a]
            for a in range(row.size):
                p = math.exp(row[a])
                chosen = 1.0 if action[b, k] == a else 0.0
                row[a] = d_log_prob[b] * (chosen - p) - d_entropy * p * (row[a] + entropy)
            start += counts[k]


@jit
def categorical_kl(old: Array, new: Array) -> float:
    """The mean KL(old || new) of choices with log-probabilities `[B, sum(counts)]`."""
    total = 0.0
    for b in range(old.shape[0]):
        for a in range(old.shape[1]):
            before = np.float64(old[b, a])
            total += math.exp(before) * (before - new[b, a])
    return total / len(old)


@jit
def categorical_fisher(log_probs: Array, counts: Array, tangent: Array) -> None:
    """Multiply `tangent` `[B, sum(counts)]` by the Fisher information of logits, diag(p) - p p', over B; in place."""
    rows = log_probs.shape[0]
    for b in range(rows):
        start = 0
        for k in range(counts.size):
            row, moved = log_probs[b, start : start + counts[k]], tangent[b, start : start + counts[k]]
            mean = 0.0
            for a in range(row.size):
                mean += math.exp(row[a]) * moved[a]
            for a in range(row.size):
                moved[a] = math.exp(row[a]) * (moved[a] - mean) / rows
            start += counts[k]


@jit
def categorical_clone(logits: Array, counts: Array, old_logits: Array, weight: float) -> float:
    """Turn `logits` into the gradient of `weight` times the mean KL(old || new), in place.

    Returns that KL without the weight.
    """
    rows, total = logits.shape[0], 0.0
    for b in range(rows):
        start = 0
        for k in range(counts.size):
            row, old = logits[b, start : start + counts[k]], old_logits[b, start : start + counts[k]]
            shift, old_shift = _log_total(row), _log_total(old)
            for a in range(row.size):
                log_prob, old_log_prob = row[a] - shift, old[a] - old_shift
                probability = math.exp(old_log_prob)
                total += probability * (old_log_prob - log_prob)
                row[a] = weight * (math.exp(log_prob) - probability) / rows
            start += counts[k]
    kl: float = total / rows
    return kl


@jit
def gaussian_clone(
    mean: Array, log_std: Array, old_mean: Array, old_log_std: Array, weight: float, d_log_std: Array
) -> float:
    """`categorical_clone` for Gaussians: turn `mean` `[B, D]` into its gradient, and write that of `log_std` `[D]`."""
    rows, kl = mean.shape[0], 0.0
    for d in range(mean.shape[1]):
        precision = math.exp(-2.0 * log_std[d])
        wider = np.float64(old_log_std[d]) - log_std[d]
        squares = 0.0
        for b in range(rows):
            shift = np.float64(mean[b, d]) - old_mean[b, d]
            squares += shift * shift * precision
            mean[b, d] = weight * shift * precision / rows
        spread = math.exp(2.0 * wider) + squares / rows
        kl += 0.5 * (spread - 1.0) - wider
        d_log_std[d] = weight * (1.0 - spread)
    return kl


@jit
def gaussian_forward(mean: Array, log_std: Array, action: Array, log_prob: Array, entropy: Array) -> None:
    """Log-probabilities and entropies `[B]` of `action` under means `[B, D]` and log deviations `[D]`.

    The distance of an action from its mean has the precision of `action`: float64 loses no digits where it is small.
    """
    bonus = 0.0
    for d in range(log_std.size):
        bonus += log_std[d] + 0.5 + LOG_SQRT_2PI
    for b in range(mean.shape[0]):
        total = 0.0
        for d in range(mean.shape[1]):
            noise = (action[b, d] - mean[b, d]) * math.exp(-log_std[d])
            total -= 0.5 * noise * noise + log_std[d] + LOG_SQRT_2PI
        log_prob[b] = total
        entropy[b] = bonus


@jit
def gaussian_backward(
    mean: Array, log_std: Array, action: Array, d_log_prob: Array, d_entropy: float, d_log_std: Array
) -> None:
    """Turn `mean` into its gradient in place, and write that of `log_std` `[D]`."""
    for d in range(mean.shape[1]):
        inverse = math.exp(-log_std[d])
        total = 0.0
        for b in range(mean.shape[0]):
            noise = (action[b, d] - mean[b, d]) * inverse
            mean[b, d] = d_log_prob[b] * noise * inverse
            total += d_log_prob[b] * (noise * noise - 1.0) + d_entropy
        d_log_std[d] = total


@jit
def gaussian_kl(old_mean: Array, old_log_std: Array, mean: Array, log_std: Array) -> float:
    """The mean KL(old || new) of Gaussians with means `[B, D]` and log deviations `[D]`."""
    total = 0.0
    for d in range(mean.shape[1]):
        wider = np.float64(old_log_std[d]) - log_std[d]
        inverse = math.exp(-log_std[d])
        shifts = 0.0
        for b in range(mean.shape[0]):
            shift = (np.float64(old_mean[b, d]) - mean[b, d]) * inverse
            shifts += shift * shift
        total += 0.5 * (math.exp(2.0 * wider) - 1.0 + shifts / mean.shape[0]) - wider
    return total


@jit
def ppo_policy_gradient(
    log_prob: Array, old_log_prob: Array, advantage: Array, clip: float, d_log_prob: Array
) -> tuple[float, float, float]:
    """The clipped surrogate's gradient; returns its loss, the approximate KL and the share of clipped samples."""
    count = log_prob.size
    loss = kl = clipped = 0.0
    for b in range(count):
        log_ratio = np.float64(log_prob[b]) - old_log_prob[b]
        ratio = math.exp(log_ratio)
        kept = min(max(ratio, 1.0 - clip), 1.0 + clip)
        plain, bounded = ratio * advantage[b], kept * advantage[b]
        loss -= min(plain, bounded)
        kl += ratio - 1.0 - log_ratio
        if abs(ratio - 1.0) > clip:
            clipped += 1.0
        # If the bounded term is the smaller one, the ratio is outside the interval and has no gradient.
        d_log_prob[b] = -plain / count if plain <= bounded else 0.0
    return loss / count, kl / count, clipped / count


@jit
def surrogate(log_prob: Array, old_log_prob: Array, advantage: Array) -> float:
    """The loss of the unclipped surrogate: the importance-weighted advantages of the old policy's actions."""
    loss = 0.0
    for b in range(log_prob.size):
        loss -= math.exp(np.float64(log_prob[b]) - old_log_prob[b]) * advantage[b]
    return loss / log_prob.size


@jit
def plain_policy_gradient(log_prob: Array, advantage: Array, d_log_prob: Array) -> float:
    """The likelihood-ratio gradient; returns its loss."""
    loss = 0.0
    for b in range(log_prob.size):
        loss -= log_prob[b] * advantage[b]
        d_log_prob[b] = -advantage[b] / log_prob.size
    return loss / log_prob.size


@jit
def weighted_policy_gradient(
    log_prob: Array, old_log_prob: Array, advantage: Array, largest: float, d_log_prob: Array
) -> tuple[float, float, float]:
    """The likelihood-ratio gradient of samples of an old policy, with weights min(largest, new / old).

    Returns its loss, the approximate KL(old || new), and the mean weight. No gradient flows through the weights.
    """
    count = log_prob.size
    loss = kl = total = 0.0
    for b in range(count):
        log_ratio = np.float64(log_prob[b]) - old_log_prob[b]
        ratio = math.exp(log_ratio)
        weight = min(largest, ratio)
        loss -= weight * advantage[b] * log_prob[b]
        kl += ratio - 1.0 - log_ratio
        total += weight
        d_log_prob[b] = -weight * advantage[b] / count
    return loss / count, kl / count, total / count


@jit
def value_gradient(value: Array, target: Array, weight: float, d_value: Array) -> float:
    """The gradient of `weight` times the mean squared error; returns the loss without the weight."""
    loss = 0.0
    for b in range(value.size):
        error = np.float64(value[b]) - target[b]
        loss += error * error
        d_value[b] = 2.0 * weight * error / value.size
    return loss / value.size


@jit
def clipped_value_gradient(
    value: Array, old_value: Array, target: Array, clip: float, weight: float, d_value: Array
) -> float:
    """`value_gradient` for the larger of the plain error and that of the value clipped within `clip` of the old one."""
    loss = 0.0
    for b in range(value.size):
        error = np.float64(value[b]) - target[b]
        moved = np.float64(value[b]) - old_value[b]
        kept = old_value[b] + min(max(moved, -clip), clip) - target[b]
        if error * error >= kept * kept:
            loss += error * error
            d_value[b] = 2.0 * weight * error / value.size
        else:
            loss += kept * kept
            d_value[b] = 2.0 * weight * kept / value.size if abs(moved) <= clip else 0.0
    return loss / value.size


@jit
def standardize_kernel(advantage: Array, out: Array) -> None:
    """Scale to zero mean and unit deviation; a single sample is not changed."""
    count = advantage.size
    if count == 1:
        out[0] = advantage[0]
        return
    mean = 0.0
    for b in range(count):
        mean += advantage[b]
    mean /= count
    squares = 0.0
    for b in range(count):
        squares += (advantage[b] - mean) * (advantage[b] - mean)
    scale = 1.0 / (math.sqrt(squares / (count - 1)) + 1e-8)
    for b in range(count):
        out[b] = (advantage[b] - mean) * scale
