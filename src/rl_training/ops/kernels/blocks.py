"""What a block of a transformer does besides products: layer norms, and tokens that are sent to experts and back."""

from __future__ import annotations

import math

import numpy as np

from rl_training.ops.kernels import lean
from rl_training.ops.kernels.vectors import dot, exp32, logistic32, total
from rl_training.types import Array

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@lean
def normalize(x: Array, scale: Array, shift: Array, eps: float, standard: Array, inverse: Array, out: Array) -> None:
    """Layer norm of the rows of `x` `[N, D]`: scale * standard + shift, to `out`.

    `standard` are the rows with mean 0 and variance 1, and `inverse` `[N]` is what they were multiplied by for that:
    the gradient needs both.
    """
    width, small = np.float32(x.shape[1]), np.float32(eps)
    for n in range(x.shape[0]):
        row, even, result = x[n], standard[n], out[n]
        mean = total(row) / width
        for i in range(row.size):
            even[i] = row[i] - mean
        share = _ONE / np.float32(math.sqrt(dot(even, even) / width + small))
        inverse[n] = share
        for i in range(row.size):
            even[i] *= share
        for i in range(row.size):
            result[i] = even[i] * scale[i] + shift[i]


@lean
def normalize_backward(
    standard: Array, inverse: Array, scale: Array, d: Array, passed: Array, d_scale: Array, d_shift: Array, d_x: Array
) -> None:
    """The gradient of `normalize`: `d` is that of its results, and is changed; `d_x` becomes that of `x`, + `passed`.

    The gradients of scale and shift are added to `d_scale` and `d_shift`.
    """
    width = np.float32(standard.shape[1])
    for n in range(standard.shape[0]):
        even, slope, found, more = standard[n], d[n], d_x[n], passed[n]
        for i in range(even.size):
            d_shift[i] += slope[i]
        for i in range(even.size):
            d_scale[i] += slope[i] * even[i]
        for i in range(even.size):
            slope[i] *= scale[i]
        mean, along, share = total(slope) / width, dot(slope, even) / width, inverse[n]
        for i in range(even.size):
            found[i] = share * (slope[i] - mean - even[i] * along) + more[i]


@lean
def route(logits: Array, probability: Array, choice: Array, place: Array, ends: Array) -> None:
    """The likeliest expert of every token, from logits `[N, E]`, and its place when tokens are sorted by expert.

    Tokens of one expert stay in their order. `ends` `[E]` is where the tokens of each expert end.
    """
    count, experts = logits.shape
    for e in range(experts):
        ends[e] = 0
    for n in range(count):
        row, share = logits[n], probability[n]
        best = 0
        for e in range(experts):
            best = e if row[e] > row[best] else best
        high, added = row[best], _ZERO
        for e in range(experts):
            share[e] = exp32(row[e] - high)
            added += share[e]
        for e in range(experts):
            share[e] /= added
        choice[n] = best
        place[n] = ends[best]
        ends[best] += 1
    for e in range(1, experts):
        ends[e] += ends[e - 1]
    for n in range(count):
        place[n] += ends[choice[n] - 1] if choice[n] else 0


@lean
def route_backward(probability: Array, choice: Array, d_chosen: Array, d_probability: Array, d_logits: Array) -> None:
    """The gradient of logits, from those of all probabilities `[N, E]` and of the likeliest ones `[N]` besides."""
    for n in range(probability.shape[0]):
        share, slope, found = probability[n], d_probability[n], d_logits[n]
        mean = share[choice[n]] * d_chosen[n]
        for e in range(share.size):
            mean += share[e] * slope[e]
        for e in range(share.size):
            found[e] = share[e] * (slope[e] - mean)
        found[choice[n]] += share[choice[n]] * d_chosen[n]


@lean
def send(rows: Array, place: Array, out: Array) -> None:
    """Put every row of `[N, D]` to its place."""
    for n in range(rows.shape[0]):
        row, to = rows[n], out[place[n]]
        for i in range(row.size):
            to[i] = row[i]


@lean
def fetch(x: Array, shared: Array, done: Array, place: Array, probability: Array, choice: Array, out: Array) -> None:
    """x + shared + probability of the choice * what its expert has done at its place, row by row of `[N, D]`."""
    for n in range(x.shape[0]):
        row, common, own, result, weight = x[n], shared[n], done[place[n]], out[n], probability[n, choice[n]]
        for i in range(row.size):
            result[i] = row[i] + common[i] + weight * own[i]


@lean
def fetch_backward(
    d: Array, done: Array, place: Array, probability: Array, choice: Array, d_done: Array, d_chosen: Array
) -> None:
    """The gradient of `fetch` for what experts have done, and for the probabilities `[N]` of the choices."""
    for n in range(d.shape[0]):
        slope, found, weight = d[n], d_done[place[n]], probability[n, choice[n]]
        d_chosen[n] = dot(slope, done[place[n]])
        for i in range(slope.size):
            found[i] = weight * slope[i]


@lean
def collect(rows: Array, place: Array, out: Array) -> None:
    """Add to every row of `out` `[N, D]` the row at its place."""
    for n in range(out.shape[0]):
        row, to = rows[place[n]], out[n]
        for i in range(row.size):
            to[i] += row[i]


@lean
def weave(latents: Array, table: Array, actions: Array, tokens: Array) -> None:
    """Tokens `[B, 2 K + 1, D]` of latents `[B, K + 1, D]` and, between them, rows of a table for actions `[B, K]`."""
    for b in range(latents.shape[0]):
        for k in range(latents.shape[1]):
            row, to = latents[b, k], tokens[b, 2 * k]
            for i in range(row.size):
                to[i] = row[i]
        for k in range(actions.shape[1]):
            row, to = table[actions[b, k]], tokens[b, 2 * k + 1]
            for i in range(row.size):
                to[i] = row[i]


@lean
def weave_backward(d: Array, actions: Array, d_latents: Array, d_table: Array) -> None:
    """The gradient of `weave`; that of the table is added to `d_table`."""
    for b in range(d_latents.shape[0]):
        for k in range(d_latents.shape[1]):
            row, to = d[b, 2 * k], d_latents[b, k]
            for i in range(row.size):
                to[i] = row[i]
        for k in range(actions.shape[1]):
            row, to = d[b, 2 * k + 1], d_table[actions[b, k]]
            for i in range(row.size):
                to[i] += row[i]


@lean
def add_and_open(x: Array, bias: Array, gates: Array) -> None:
    """Turn rows of `x` `[N, H]` into silu(x + bias); `gates` become the logistic function of its inputs."""
    for n in range(x.shape[0]):
        row, opened = x[n], gates[n]
        for i in range(row.size):
            row[i] += bias[i]
        for i in range(row.size):
            opened[i] = logistic32(row[i])
        for i in range(row.size):
            row[i] *= opened[i]
