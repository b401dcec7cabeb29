"""The two blocks of a transformer's layer, each with its gradient in closed form: for float32 on a CPU.

A block is x + f(norm(x)). Autograd makes dozens of small operations of one; here they are products of NumPy arrays,
with compiled loops between them. `transformer.py` and `experts.py` have the same by torch, for everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.ops.fast_path import compiled
from rl_training.ops.kernels.attention import attend, attend_backward, gate, gate_backward
from rl_training.ops.kernels.blocks import (
    collect,
    fetch,
    fetch_backward,
    normalize,
    normalize_backward,
    route,
    route_backward,
    send,
    weave,
    weave_backward,
)
from rl_training.types import Array

_EPS = 1e-5  # of torch's layer norm
# From so many multiplications on, torch's product is faster than NumPy's, whose call costs less.
_MANY = 1 << 21


class Norm(NamedTuple):
    """Scale and shift of a layer norm, `[D]` each."""

    scale: Tensor
    shift: Tensor


class Mixture(NamedTuple):
    """Weights of gated experts `[E, D, 2 H]` and `[E, H, D]`, and of the router `[D, E]` that chooses one."""

    router: Tensor
    into: Tensor
    out: Tensor


def attention_block(
    x: Tensor, norm: Norm, into: Tensor, near: Tensor, out: Tensor, absent: Tensor | None = None, every: int = 1
) -> tuple[Tensor, Tensor]:
    """x + window_attention(norm(x) into, near) out, for tokens `[B, T, D]`; and queries, keys and values `[B, T, 3 D]`.

    `near` and `absent` are those of `window_attention`. Only one in `every` tokens asks, from the first on, and is in
    the first result.
    """
    return _AttentionBlock.apply(x, *norm, into, near, out, absent, every)  # type: ignore[no-any-return, no-untyped-call]


def experts_block(
    x: Tensor, norm: Norm, into: Tensor, out: Tensor, mixture: Mixture | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """x + the shared gated expert + the likeliest one of the mixture, weighed by its probability; tokens `[N, D]`.

    All read norm(x); `into` `[D, 2 H]` and `out` `[H, D]` are of the shared expert. Also returns probabilities
    `[N, E]` and choices `[N]`, if there is a mixture.
    """
    return _ExpertsBlock.apply(x, *norm, into, out, *(mixture or ()))  # type: ignore[no-any-return, no-untyped-call]


def woven(latents: Tensor, table: Tensor, actions: Tensor) -> Tensor:
    """Tokens `[B, 2 K + 1, D]`: latents `[B, K + 1, D]` and, between them, rows of a table for actions `[B, K]`."""
    return _Woven.apply(latents, table, actions)  # type: ignore[no-any-return, no-untyped-call]


def unwoven(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens of observations `[K + 1, B, D]` and of actions `[K, B, D]` among `[B, 2 K + 1, D]`."""
    if not compiled(tokens):
        return tokens[:, 0::2].transpose(0, 1), tokens[:, 1::2].transpose(0, 1)
    return _Unwoven.apply(tokens)  # type: ignore[no-any-return, no-untyped-call]


def layer_norm(x: Tensor, norm: Norm) -> Tensor:
    """The layer norm of `[..., D]`."""
    return _LayerNorm.apply(x, *norm)  # type: ignore[no-any-return, no-untyped-call]


def array_of(x: Tensor) -> Array:
    """The numbers of a tensor, without a copy where they are next to each other."""
    return np.ascontiguousarray(x.detach().numpy())


def multiplied(a: Array, b: Array, out: Array | None = None) -> Array:
    """a @ b, on as many threads as torch has."""
    out = np.empty((len(a), b.shape[1]), np.float32) if out is None else out
    if a.size * b.shape[1] < _MANY and torch.get_num_threads() == 1:
        np.matmul(a, b, out=out)
    else:
        torch.mm(torch.from_numpy(a), torch.from_numpy(b), out=torch.from_numpy(out))
    return out


class _Standardized(NamedTuple):
    """What the gradient of a layer norm needs: rows of mean 0 and variance 1, and what they were multiplied by."""

    rows: Array  # [N, D]
    inverse: Array  # [N]
    scale: Array  # [D]


def _layer_norm(x: Array, scale: Tensor, shift: Tensor, out: Array) -> _Standardized:
    """Write the layer norm of rows `[N, D]` to `out`."""
    standard = _Standardized(np.empty_like(x), np.empty(len(x), np.float32), array_of(scale))
    normalize(x, standard.scale, array_of(shift), _EPS, standard.rows, standard.inverse, out)
    return standard


def _layer_norm_backward(standard: _Standardized, d: Array, passed: Array) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, scale and shift of x + f(norm(x)); `d` is that of norm(x), `passed` that of the sum."""
    d_x, d_scale, d_shift = np.empty_like(standard.rows), np.zeros_like(standard.scale), np.zeros_like(standard.scale)
    normalize_backward(standard.rows, standard.inverse, standard.scale, d, passed, d_scale, d_shift, d_x)
    return torch.from_numpy(d_x), torch.from_numpy(d_scale), torch.from_numpy(d_shift)


class _Woven(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, latents: Tensor, table: Tensor, actions: Tensor) -> Tensor:
        count, states, width = latents.shape
        ctx.rows, ctx.actions = len(table), np.ascontiguousarray(actions.numpy(), np.int64)
        tokens = np.empty((count, 2 * states - 1, width), np.float32)
        weave(array_of(latents), array_of(table), ctx.actions, tokens)
        return torch.from_numpy(tokens)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, None]:
        count, length, width = slopes[0].shape
        d_latents, d_table = (
            np.empty((count, length // 2 + 1, width), np.float32),
            np.zeros((ctx.rows, width), np.float32),
        )
        weave_backward(array_of(slopes[0]), ctx.actions, d_latents, d_table)
        return torch.from_numpy(d_latents), torch.from_numpy(d_table), None


class _Unwoven(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor) -> tuple[Tensor, Tensor]:
        given = tokens.detach().numpy().swapaxes(0, 1)
        return torch.from_numpy(given[0::2].copy()), torch.from_numpy(given[1::2].copy())

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        states, count, width = slopes[0].shape
        d = np.empty((count, 2 * states - 1, width), np.float32)
        d[:, 0::2], d[:, 1::2] = (slope.numpy().swapaxes(0, 1) for slope in slopes)
        return torch.from_numpy(d)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        rows = array_of(x).reshape(-1, x.shape[-1])
        result = np.empty_like(rows)
        ctx.standard = _layer_norm(rows, scale, shift, result)
        return torch.from_numpy(result).view(x.shape)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        nothing, d = np.zeros_like(ctx.standard.rows), array_of(slopes[0]).reshape(ctx.standard.rows.shape)
        d_x, d_scale, d_shift = _layer_norm_backward(ctx.standard, d.copy(), nothing)
        return d_x.view(slopes[0].shape), d_scale, d_shift


class _Attended(NamedTuple):
    """What the gradient of attention needs, besides its weights."""

    standard: _Standardized
    read: Array  # [N, D]
    product: Array  # [B, T, 3 D]
    shares: Array  # [B, S, H, reach]
    found: Array  # [B, S, D]


class _AttentionBlock(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scale: Tensor,
        shift: Tensor,
        into: Tensor,
        near: Tensor,
        out: Tensor,
        gone: Tensor | None,
        every: int,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        tokens = array_of(x)
        asking = tokens[:, ::every]
        rows = tokens.reshape(-1, x.shape[-1])
        read, found = np.empty_like(rows), np.empty(asking.shape, np.float32)
        standard = _layer_norm(rows, scale, shift, read)
        product = multiplied(read, array_of(into)).reshape(*x.shape[:2], -1)
        absent = np.zeros(len(x), np.int64) if gone is None else np.ascontiguousarray(gone.numpy(), np.int64)
        shares = np.empty((*asking.shape[:2], *near.shape), np.float32)
        attend(product, array_of(near), absent, every, shares, found)
        result = multiplied(found.reshape(-1, x.shape[-1]), array_of(out)).reshape(asking.shape)
        result += asking
        ctx.save_for_backward(into, out)
        ctx.kept, ctx.every = _Attended(standard, read, product, shares, found), every
        return torch.from_numpy(result), torch.from_numpy(product)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        (into, out), (standard, read, product, shares, found) = map(array_of, ctx.saved_tensors), ctx.kept
        _, _, _, learns_into, _, learns_out, _, _ = ctx.needs_input_grad
        width = found.shape[-1]
        d = np.zeros_like(found) if slopes[0] is None else array_of(slopes[0])
        # Keys and values get their gradients from several tokens, and from whoever reads them besides.
        d_product = np.zeros_like(product) if slopes[1] is None else array_of(slopes[1]).copy()
        d_near, d_rows = np.zeros(shares.shape[2:], np.float32), d.reshape(-1, width)
        attend_backward(product, shares, ctx.every, multiplied(d_rows, out.T).reshape(d.shape), d_product, d_near)
        d_read = d_product.reshape(-1, 3 * width)
        passed = d
        if ctx.every > 1:
            passed = np.zeros((*product.shape[:2], width), np.float32)
            passed[:, :: ctx.every] = d
        d_x, d_scale, d_shift = _layer_norm_backward(standard, multiplied(d_read, into.T), passed.reshape(-1, width))
        d_into = torch.from_numpy(multiplied(read.T, d_read)) if learns_into else None
        d_out = torch.from_numpy(multiplied(found.reshape(-1, width).T, d_rows)) if learns_out else None
        d_x = d_x.view(*product.shape[:2], width)
        return d_x, d_scale, d_shift, d_into, torch.from_numpy(d_near), d_out, None, None


class _Sent(NamedTuple):
    """How tokens were sent to experts, for the gradient."""

    place: Array  # [N]: of each token when they are sorted by expert
    probability: Array  # [N, E]
    choice: Array  # [N]
    router: Array  # [D, E]


class _Fed(NamedTuple):
    """What the gradient of experts needs, besides their weights: rows of the shared expert, then of the others."""

    standard: _Standardized
    bounds: list[int]  # where the rows of each expert begin, and where the last ones end
    rows: Array  # [M, D]
    hidden: Array  # [M, 2 H]
    units: Array  # [M, H]
    done: Array  # [M, D]
    sent: _Sent | None


def _sent(read: Array, router: Array) -> tuple[_Sent, list[int]]:
    """Choose an expert for each token; where the tokens of each end, when they are sorted."""
    shape = (len(read), router.shape[1])
    place, choice, ends = (np.empty(size, np.int64) for size in (shape[0], *shape))
    sent = _Sent(place, np.empty(shape, np.float32), choice, router)
    route(multiplied(read, router), sent.probability, choice, place, ends)
    return sent, ends.tolist()


def _products(x: Array, weights: Sequence[Array], bounds: Sequence[int], columns: int) -> Array:
    """Each part of the rows times the weights of its expert."""
    out = np.empty((len(x), columns), np.float32)
    for number, weight in enumerate(weights):
        start, end = bounds[number], bounds[number + 1]
        multiplied(x[start:end], weight, out[start:end])
    return out


def _weight_slopes(x: Array, d: Array, bounds: Sequence[int]) -> list[Tensor]:
    """The gradients of the weights of the shared expert, and of the others together; `d` is that of the products."""
    found = np.empty((len(bounds) - 1, x.shape[1], d.shape[1]), np.float32)
    for number, slope in enumerate(found):
        start, end = bounds[number], bounds[number + 1]
        multiplied(x[start:end].T, d[start:end], slope)
    return [torch.from_numpy(found[0]), torch.from_numpy(found[1:])]


class _ExpertsBlock(torch.autograd.Function):
    """The rows of the shared expert come first, then those of the others, sorted: so one loop serves all of them."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, into: Tensor, out: Tensor, *mixture: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        ctx.set_materialize_grads(False)
        tokens, weights_in, weights_out, sent = array_of(x), [array_of(into)], [array_of(out)], None
        count, width = tokens.shape
        rows, bounds = np.empty((2 * count if mixture else count, width), np.float32), [0, count]
        standard = _layer_norm(tokens, scale, shift, rows[:count])
        if mixture:
            router, expert_in, expert_out = map(array_of, mixture)
            sent, ends = _sent(rows[:count], router)
            bounds += [count + end for end in ends]
            weights_in, weights_out = [*weights_in, *expert_in], [*weights_out, *expert_out]
            send(rows[:count], sent.place, rows[count:])
        hidden = _products(rows, weights_in, bounds, into.shape[1])
        units = np.empty((len(rows), len(weights_out[0])), np.float32)
        gate(hidden, units)
        done = _products(units, weights_out, bounds, width)
        ctx.save_for_backward(into, out, *mixture)
        ctx.kept = _Fed(standard, bounds, rows, hidden, units, done, sent)
        if sent is None:
            return torch.from_numpy(tokens + done), None, None
        result, choice = np.empty_like(tokens), torch.from_numpy(sent.choice)
        fetch(tokens, done[:count], done[count:], *sent[:3], result)
        ctx.mark_non_differentiable(choice)
        return torch.from_numpy(result), torch.from_numpy(sent.probability), choice

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        into, out, *mixture = map(array_of, ctx.saved_tensors)
        standard, bounds, rows, hidden, units, done, sent = ctx.kept
        weights_in, weights_out = [into.T], [out.T]
        d = np.zeros_like(standard.rows) if slopes[0] is None else array_of(slopes[0])
        d_done, d_logits, d_router = d, None, None
        if sent is not None:
            weights_in += [weight.T for weight in mixture[1]]
            weights_out += [weight.T for weight in mixture[2]]
            d_done, d_logits = _fetched_backward(d, slopes[1], done, sent)
        d_units, d_hidden = _products(d_done, weights_out, bounds, units.shape[1]), np.empty_like(hidden)
        gate_backward(hidden, d_units, d_hidden)
        d_rows = _products(d_hidden, weights_in, bounds, rows.shape[1])
        d_read = d_rows[: len(d)]
        if sent is not None and d_logits is not None:
            collect(d_rows[len(d) :], sent.place, d_read)
            d_read += multiplied(d_logits, sent.router.T)
            d_router = torch.from_numpy(multiplied(rows[: len(d)].T, d_logits))
        found = _layer_norm_backward(standard, d_read, d)
        (d_into, d_experts_in), (d_out, d_experts_out) = (
            _weight_slopes(*pair, bounds) for pair in ((rows, d_hidden), (units, d_done))
        )
        return *found, d_into, d_out, *((d_router, d_experts_in, d_experts_out) if mixture else ())


def _fetched_backward(d: Array, d_probability: Tensor | None, done: Array, sent: _Sent) -> tuple[Array, Array]:
    """The gradients of what all experts have done, the shared expert first, and of the logits of the router."""
    count = len(d)
    d_done, d_chosen, d_logits = np.empty_like(done), np.empty(count, np.float32), np.empty_like(sent.probability)
    d_done[:count] = d
    fetch_backward(d, done[count:], *sent[:3], d_done[count:], d_chosen)
    given = np.zeros_like(sent.probability) if d_probability is None else array_of(d_probability)
    route_backward(sent.probability, sent.choice, d_chosen, given, d_logits)
    return d_done, d_logits
