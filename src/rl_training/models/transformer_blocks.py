"""The two blocks of a transformer's layer, each with its gradient in closed form: for float32 on a CPU.

A block is x + f(norm(x)). Autograd makes dozens of small operations of one; here they are products, with compiled loops
between them. `transformer.py` and `experts.py` have the same by torch, for everything else.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

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
)
from rl_training.types import Array

_EPS = 1e-5  # of torch's layer norm


def compiled(x: Tensor) -> bool:
    """Whether these blocks can read `x`."""
    return x.device.type == "cpu" and x.dtype == torch.float32


class Norm(NamedTuple):
    """Scale and shift of a layer norm, `[D]` each."""

    scale: Tensor
    shift: Tensor


def attention_block(
    x: Tensor, norm: Norm, into: Tensor, near: Tensor, out: Tensor, absent: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """x + window_attention(norm(x) into, near) out, for tokens `[B, T, D]`; and queries, keys and values `[B, T, 3 D]`.

    `near` and `absent` are those of `window_attention`.
    """
    none = torch.zeros(len(x), dtype=torch.int64) if absent is None else absent
    return _AttentionBlock.apply(x, *norm, into, near, out, none)  # type: ignore[no-any-return, no-untyped-call]


class Mixture(NamedTuple):
    """Weights of gated experts `[E, D, 2 H]` and `[E, H, D]`, and of the router `[D, E]` that chooses one."""

    router: Tensor
    into: Tensor
    out: Tensor


def experts_block(
    x: Tensor, norm: Norm, into: Tensor, out: Tensor, mixture: Mixture | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """x + a gated expert for all + the likeliest one of the mixture, weighed by its probability; tokens `[N, D]`.

    All read norm(x); `into` `[D, 2 H]` and `out` `[H, D]` are of the expert for all. Also returns probabilities
    `[N, E]` and choices `[N]`, if there is a mixture.
    """
    return _ExpertsBlock.apply(x, *norm, into, out, *(mixture or ()))  # type: ignore[no-any-return, no-untyped-call]


def _array(x: Tensor) -> Array:
    array: Array = x.detach().numpy()
    return array


def _normalized(x: Tensor, scale: Tensor, shift: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """Write the layer norm of rows `[N, D]` to `out`; what its gradient needs."""
    flat, inverse = torch.empty_like(x), x.new_empty(len(x))
    normalize(_array(x), _array(scale), _array(shift), _EPS, flat.numpy(), inverse.numpy(), out.numpy())
    return flat, inverse


def _normalized_backward(
    kept: tuple[Tensor, Tensor], scale: Tensor, d: Tensor, passed: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, scale and shift of x + f(norm(x)); `d` is that of norm(x), `passed` that of the sum."""
    flat, inverse = kept
    d_scale, d_shift, d_x = torch.zeros_like(scale), torch.zeros_like(scale), torch.empty_like(flat)
    given = (flat.numpy(), inverse.numpy(), _array(scale), d.numpy(), passed.numpy())
    normalize_backward(*given, d_scale.numpy(), d_shift.numpy(), d_x.numpy())
    return d_x, d_scale, d_shift


class _AttentionBlock(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, into: Tensor, near: Tensor, out: Tensor, absent: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        count, length, width = x.shape
        rows = x.contiguous().view(-1, width)
        read = torch.empty_like(rows)
        flat, inverse = _normalized(rows, scale, shift, read)
        product = torch.mm(read, into)
        shares, found = x.new_empty(count, length, *near.shape), torch.empty_like(rows)
        attend(
            product.view(count, length, -1).numpy(),
            _array(near.contiguous()),
            np.ascontiguousarray(absent.numpy(), np.int64),
            shares.numpy(),
            found.view(count, length, width).numpy(),
        )
        ctx.save_for_backward(scale, into, near, out, flat, inverse, read, product, shares, found)
        return torch.addmm(rows, found, out).view_as(x), product.view(count, length, -1)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        scale, into, near, out, flat, inverse, read, product, shares, found = ctx.saved_tensors
        _, _, _, learns_into, _, learns_out, _ = ctx.needs_input_grad
        count, length = shares.shape[:2]
        width = flat.shape[1]
        passed = torch.zeros_like(flat) if slopes[0] is None else slopes[0].contiguous().view(-1, width)
        # Keys and values get their gradients from several tokens.
        d_product = torch.zeros_like(product) if slopes[1] is None else slopes[1].clone().view(-1, 3 * width)
        d_near = torch.zeros_like(near)
        three = (part.view(count, length, -1).numpy() for part in (torch.mm(passed, out.T), d_product))
        d_found, d_all = three
        attend_backward(product.view(count, length, -1).numpy(), shares.numpy(), d_found, d_all, d_near.numpy())
        d_read = torch.mm(d_product, into.T)
        d_x, d_scale, d_shift = _normalized_backward((flat, inverse), scale, d_read, passed)
        d_into = torch.mm(read.T, d_product) if learns_into else None
        d_out = torch.mm(found.T, passed) if learns_out else None
        return d_x.view(count, length, width), d_scale, d_shift, d_into, d_near, d_out, None


class _Sent(NamedTuple):
    """How tokens were sent to experts, for the gradient."""

    probability: Tensor  # [N, E]
    choice: Tensor  # [N]
    place: Tensor  # [N]: of each token when they are sorted by expert
    ends: Tensor  # [E]: where the tokens of each expert end


def _sent(logits: Tensor) -> _Sent:
    count, experts = logits.shape
    numbers = [torch.empty(size, dtype=torch.int64) for size in (count, count, experts)]
    sent = _Sent(torch.empty_like(logits), *numbers)
    route(logits.numpy(), *(part.numpy() for part in sent))
    return sent


def _sizes(count: int, ends: Tensor) -> list[int]:
    """How many rows the expert for all reads, and then each of the others."""
    return [count, *np.diff(ends.numpy(), prepend=0).tolist()]


def _products(x: Tensor, weights: list[Tensor], sizes: list[int], outputs: int) -> Tensor:
    """Each part of the rows times the weights of its expert."""
    out = x.new_empty(len(x), outputs)
    for part, weight, result in zip(x.split(sizes), weights, out.split(sizes), strict=True):
        torch.mm(part, weight, out=result)
    return out


def _weight_slopes(x: Tensor, d: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
    """The gradients of the weights of the expert for all, and of the others together; `d` is that of the products."""
    first = torch.mm(x[: sizes[0]].T, d[: sizes[0]])
    others = x.new_empty(len(sizes) - 1, *first.shape)
    parts = zip(x.split(sizes)[1:], d.split(sizes)[1:], others, strict=True)
    for part, slope, result in parts:
        torch.mm(part.T, slope, out=result)
    return first, others


class _ExpertsBlock(torch.autograd.Function):
    """The rows of the expert for all come first, then those of the others, sorted: so one loop serves all of them."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, into: Tensor, out: Tensor, *mixture: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        ctx.set_materialize_grads(False)
        x = x.contiguous()
        count, width = x.shape
        rows = x.new_empty(2 * count if mixture else count, width)
        flat, inverse = _normalized(x, scale, shift, rows[:count])
        sent, sizes = None, [count]
        weights_in, weights_out = [into], [out]
        if mixture:
            router, expert_in, expert_out = mixture
            sent = _sent(torch.mm(rows[:count], router))
            sizes = _sizes(count, sent.ends)
            weights_in, weights_out = [into, *expert_in.unbind()], [out, *expert_out.unbind()]
            send(rows[:count].numpy(), sent.place.numpy(), rows[count:].numpy())
        hidden = _products(rows, weights_in, sizes, into.shape[1])
        units = x.new_empty(len(rows), len(out))
        gate(hidden.numpy(), units.numpy())
        done = _products(units, weights_out, sizes, width)
        ctx.save_for_backward(scale, into, out, *mixture, flat, inverse, rows, hidden, units, done, *(sent or ()))
        if sent is None:
            return x + done, None, None
        ctx.mark_non_differentiable(sent.choice)
        result, taken = torch.empty_like(x), (sent.place, sent.probability, sent.choice)
        fetch(_array(x), done[:count].numpy(), done[count:].numpy(), *(part.numpy() for part in taken), result.numpy())
        return result, sent.probability, sent.choice

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        (scale, into, out), kept = ctx.saved_tensors[:3], ctx.saved_tensors[3:]
        mixture, kept = (kept[:3], kept[3:]) if len(kept) > 6 else ((), kept)
        (flat, inverse, rows, hidden, units, done), sent = kept[:6], kept[6:]
        count, width = flat.shape
        d = torch.zeros_like(flat) if slopes[0] is None else slopes[0].contiguous()
        sizes, d_done, d_logits = [count], d, None
        weights_in, weights_out = [into.T], [out.T]
        if mixture:
            sizes = _sizes(count, sent[3])
            weights_in, weights_out = [into.T, *mixture[1].mT.unbind()], [out.T, *mixture[2].mT.unbind()]
            d_done, d_logits = _fetched_backward(d, slopes[1], done[count:], _Sent(*sent))
        d_units, d_hidden = _products(d_done, weights_out, sizes, len(out)), torch.empty_like(hidden)
        gate_backward(hidden.numpy(), d_units.numpy(), d_hidden.numpy())
        d_rows = _products(d_hidden, weights_in, sizes, width)
        d_router = None
        if d_logits is not None:
            d_rows[:count].addmm_(d_logits, mixture[0].T)
            collect(d_rows[count:].numpy(), sent[2].numpy(), d_rows[:count].numpy())
            d_router = torch.mm(rows[:count].T, d_logits)
        d_x, d_scale, d_shift = _normalized_backward((flat, inverse), scale, d_rows[:count], d)
        d_into, d_experts_in = _weight_slopes(rows, d_hidden, sizes)
        d_out, d_experts_out = _weight_slopes(units, d_done, sizes)
        more = (d_router, d_experts_in, d_experts_out) if mixture else ()
        return d_x, d_scale, d_shift, d_into, d_out, *more


def _fetched_backward(d: Tensor, d_probability: Tensor | None, done: Tensor, sent: _Sent) -> tuple[Tensor, Tensor]:
    """The gradients of what all experts have done, the expert for all first, and of the logits of the router."""
    d_done = torch.cat([d, torch.empty_like(done)])
    d_chosen, d_logits = d.new_empty(len(d)), torch.empty_like(sent.probability)
    taken = [part.numpy() for part in (sent.place, sent.probability, sent.choice)]
    fetch_backward(d.numpy(), done.numpy(), *taken, d_done[len(d) :].numpy(), d_chosen.numpy())
    given = torch.zeros_like(sent.probability) if d_probability is None else d_probability.contiguous()
    route_backward(sent.probability.numpy(), sent.choice.numpy(), d_chosen.numpy(), given.numpy(), d_logits.numpy())
    return d_done, d_logits
