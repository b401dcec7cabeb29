"""Whole steps of a world model's states, and of their gradients: products and what is between them, in one call.

Arrays of one purpose come as tuples. Rows of all steps are in one array each; those of a step are from `start` to
`stop`. See `rl_training.models.rssm_engine`, where the tuples are made.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_training.ops.kernels import lean, pasted
from rl_training.ops.kernels.normed import norm_silu, norm_silu_backward
from rl_training.ops.kernels.products import product
from rl_training.ops.kernels.world_states import (
    add_columns,
    draw_latents,
    gru_backward,
    gru_forward,
    keep_rows,
    softmax_groups,
    softmax_groups_backward,
)
from rl_training.types import Array

Arrays = tuple[Any, ...]


@pasted
def _normed(start: int, stop: int, kept: Arrays, weights: Arrays) -> None:
    """`norm_silu` of some rows."""
    z, gates, out, inverse = kept
    bias, scale, eps = weights
    norm_silu(z[start:stop], bias, scale, eps, inverse[start:stop], gates[start:stop], out[start:stop])


@pasted
def _normed_backward(start: int, stop: int, kept: Arrays, weights: Arrays, slopes: Arrays) -> None:
    """`norm_silu_backward` of some rows."""
    z, gates, _, inverse = kept
    d, d_bias, d_scale = slopes
    norm_silu_backward(
        z[start:stop], weights[1], inverse[start:stop], gates[start:stop], d[start:stop], d_bias, d_scale
    )


@lean
def advance_forward(
    start: int, stop: int, before: Array, after: Array, rows: Arrays, norms: Arrays, weights: Arrays, shift: float
) -> None:
    """`RSSM.advance`: write `deter` to the first columns of `after`, from states `before`, both `[n, F]`.

    What actions contribute is in the rows already. Weights are panels `[inputs, outputs]`, blocks below each other.
    """
    entry, hidden, gates, blocked_gates, squashed = rows
    from_deter, from_stoch, shared, own, gate, gate_bias = weights
    deter, latent, (_, _, block) = from_deter.shape[1], from_stoch.shape[1], gate_bias.shape
    width = shared.shape[1] // 3
    z, h, g = entry[0][start:stop], hidden[0][start:stop], gates[start:stop]
    product(before, 0, deter, from_deter, 0, z, 0, width, 0)
    product(before, deter, latent, from_stoch, 0, z, width, width, 0)
    _normed(start, stop, entry, norms[0])
    product(entry[2][start:stop], 0, 3 * width, shared, 0, h, 0, deter, 0)
    for k in range(0, deter, block):
        product(before, k, block, own, k, h, k, block, 1)
    _normed(start, stop, hidden, norms[1])
    for k in range(0, deter, block):
        product(hidden[2][start:stop], k, block, gate, k, g, 3 * k, 3 * block, 0)
    gru_forward(blocked_gates[start:stop], gate_bias, shift, before, squashed[start:stop], after)


@lean
def advance_blocks(
    before: Array, actions: Array, after: Array, rows: Arrays, norms: Arrays, weights: Arrays, shift: float
) -> None:
    """`advance_forward` of any number of rows, of which nothing is kept: as many at a time as `rows` has room for.

    The last of the weights are those of the scaled actions `[n, action_size]`.
    """
    z, together, width = rows[0][0], rows[2].shape[0], weights[2].shape[1] // 3
    own, from_action = (weights[0], weights[1], weights[2], weights[3], weights[4], weights[5]), weights[6]
    for start in range(0, before.shape[0], together):
        stop = min(start + together, before.shape[0])
        product(actions[start:stop], 0, actions.shape[1], from_action, 0, z[: stop - start], 2 * width, width, 0)
        advance_forward(0, stop - start, before[start:stop], after[start:stop], rows, norms, own, shift)


@pasted
def _advance_backward(
    start: int,
    stop: int,
    before: Array,
    d_deter: Array,
    blocked_d_deter: Array,
    d_before: Array,
    rows: Arrays,
    norms: Arrays,
    weights: Arrays,
    slopes: Arrays,
) -> None:
    """The gradient of `advance_forward`, from that of what is remembered, which is overwritten, to that of `before`.

    Here weights are panels `[outputs, inputs]`, blocks below each other.
    """
    entry, hidden, gates, blocked_gates, squashed = rows
    from_deter, from_stoch, shared, own, gate = weights
    deter, width, block = d_deter.shape[1], from_deter.shape[1], squashed.shape[2]
    latent = d_before.shape[1] - deter
    d_entry, d_hidden = slopes[0][0][start:stop], slopes[1][0][start:stop]
    gru_backward(blocked_gates[start:stop], before, squashed[start:stop], blocked_d_deter)
    for k in range(0, deter, block):
        product(gates[start:stop], 3 * k, 3 * block, gate, 3 * k, d_hidden, k, block, 0)
    _normed_backward(start, stop, hidden, norms[1], slopes[1])
    product(d_hidden, 0, deter, shared, 0, d_entry, 0, 3 * width, 0)
    _normed_backward(start, stop, entry, norms[0], slopes[0])
    for b in range(d_before.shape[0]):
        for i in range(deter):
            d_before[b, i] = d_deter[b, i]
    product(d_entry, 0, width, from_deter, 0, d_before, 0, deter, 1)
    product(d_entry, width, width, from_stoch, 0, d_before, deter, latent, 0)
    for k in range(0, deter, block):
        product(d_hidden, k, block, own, k, d_before, k, block, 1)


@pasted
def _see(
    start: int,
    stop: int,
    after: Array,
    own: Arrays,
    posterior: Arrays,
    advance: Arrays,
    norms: Arrays,
    weights: Arrays,
    advance_weights: Arrays,
    shift: float,
) -> None:
    """`RSSM.see` but for the draw: write `deter` of some rows to `after` `[n, F]`, and the posterior's softmax."""
    seen, softmax, before = own
    from_deter, to_latent, latent_bias, classes = weights
    deter, width, latent = from_deter.shape[1], to_latent.shape[1], softmax.shape[1]
    # With as many norms as elsewhere it is compiled once.
    own_norms = (norms[0], norms[1])
    advance_forward(start, stop, before[start:stop], after, advance, own_norms, advance_weights, shift)
    z, s = posterior[0][start:stop], softmax[start:stop]
    for b in range(stop - start):
        for i in range(width):
            z[b, i] = seen[start + b, i]
    product(after, 0, deter, from_deter, 0, z, 0, width, 1)
    _normed(start, stop, posterior, norms[2])
    product(posterior[2][start:stop], 0, width, to_latent, 0, s, 0, latent, 0)
    softmax_groups(s, latent_bias, classes)


@lean
def scan_forward(
    state: Array,
    first: Array,
    uniform: Array,
    index: Array,
    out: Array,
    unimix: float,
    own: Arrays,
    posterior: Arrays,
    advance: Arrays,
    norms: Arrays,
    weights: Arrays,
    advance_weights: Arrays,
    shift: float,
) -> None:
    """`RSSM.observe`: write the states of all rows to `out`, their latents to `index`."""
    steps, batch = first.shape
    _, softmax, before = own
    deter, classes = weights[0].shape[1], weights[3]
    for t in range(steps):
        start, stop = t * batch, (t + 1) * batch
        if t == 0:
            keep_rows(state, first[t], before[start:stop])
        else:
            keep_rows(out[start - batch : start], first[t], before[start:stop])
        after = out[start:stop]
        _see(start, stop, after, own, posterior, advance, norms, weights, advance_weights, shift)
        draw_latents(softmax[start:stop], classes, unimix, uniform[t], index[start:stop], after, deter)


@lean
def scan_backward(
    d_states: Array,
    d_posterior: Array,
    first: Array,
    unimix: float,
    carry: Array,
    d_deter: Array,
    blocked_d_deter: Array,
    own: Arrays,
    posterior: Arrays,
    advance: Arrays,
    norms: Arrays,
    weights: Arrays,
    advance_weights: Arrays,
    slopes: Arrays,
) -> None:
    """The gradient of `scan_forward`: that of all products, from those of the states and of the mixed posterior.

    `d_posterior` becomes that of the logits. Weights are panels `[outputs, inputs]`.
    """
    steps, batch = first.shape
    _, softmax, before = own
    from_deter, to_latent, classes = weights
    deter, width, latent = d_deter.shape[1], from_deter.shape[1], to_latent.shape[1]
    for b in range(batch):
        for i in range(carry.shape[1]):
            carry[b, i] = np.float32(0.0)
    for t in range(steps - 1, -1, -1):
        start, stop = t * batch, (t + 1) * batch
        d, d_logits, d_hidden = d_states[start:stop], d_posterior[start:stop], slopes[2][0][start:stop]
        # A latent has the gradient of its probabilities.
        add_columns(d_logits, d, carry, deter)
        softmax_groups_backward(softmax[start:stop], classes, 1.0 - unimix, d_logits)
        product(d_logits, 0, latent, to_latent, 0, d_hidden, 0, width, 0)
        _normed_backward(start, stop, posterior, norms[2], slopes[2])
        product(d_hidden, 0, width, from_deter, 0, d_deter, 0, deter, 0)
        add_columns(d_deter, d, carry, 0)
        _advance_backward(
            start,
            stop,
            before[start:stop],
            d_deter,
            blocked_d_deter,
            carry,
            advance,
            norms,
            advance_weights,
            slopes,
        )
        keep_rows(carry, first[t], carry)
