"""Softmax within groups, and weighted sums of divergences: compiled for float32 on a CPU, by torch everywhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rl_training.ops.fast_path import compiled
from rl_training.ops.kernels import divergences as kernels
from rl_training.types import Array


def group_softmax(x: Tensor, group: int) -> Tensor:
    """Softmax of `[..., D]` within groups of so many columns."""
    if compiled(x):
        return _GroupSoftmax.apply(x, group)  # type: ignore[no-any-return, no-untyped-call]
    return x.reshape(*x.shape[:-1], -1, group).softmax(dim=-1).flatten(-2)


def summed_divergence(logits: Tensor, target: Tensor, weight: Tensor, group: int | None = None) -> Tensor:
    """The sum of `weight` `[...]` times KL(target, softmax of logits), `[..., D]` each.

    With a `group`, columns are groups of distributions, and KL is the mean over them. The gradient is that of logits
    alone. It is that of the cross-entropy, which cannot fall below the target's own entropy.
    """
    group = logits.shape[-1] if group is None else group
    if compiled(logits):
        return _Loss.apply(  # type: ignore[no-any-return, no-untyped-call]
            logits, weight, lambda row, its, d: kernels.divergences(row, _rows(target).numpy(), its, group, d)
        )
    wanted = target.detach().reshape(*logits.shape[:-1], -1, group)
    log_share = logits.reshape(wanted.shape).log_softmax(dim=-1)
    apart = (torch.xlogy(wanted, wanted) - wanted * log_share).sum(dim=-1).mean(dim=-1)
    return (weight.detach() * apart).sum()


def summed_entropy(logits: Tensor, weight: Tensor) -> Tensor:
    """The sum of `weight` `[...]` times the entropy of the softmax of `[..., D]`."""
    if compiled(logits):
        return _Loss.apply(logits, weight, kernels.entropies)  # type: ignore[no-any-return, no-untyped-call]
    log_share = logits.log_softmax(dim=-1)
    return -(weight.detach()[..., None] * log_share.exp() * log_share).sum()


def _rows(x: Tensor) -> Tensor:
    """`[..., D]` as rows of memory, without a gradient."""
    return x.detach().reshape(-1, x.shape[-1]).contiguous()


class _GroupSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: int) -> Tensor:
        rows = _rows(x)
        shares = torch.empty_like(rows)
        kernels.group_softmax(rows.numpy(), group, shares.numpy())
        ctx.save_for_backward(shares)
        ctx.group = group
        return shares.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        (shares,) = ctx.saved_tensors
        d_x = torch.empty_like(shares)
        kernels.group_softmax_backward(shares.numpy(), ctx.group, _rows(slopes[0]).numpy(), d_x.numpy())
        return d_x.view(slopes[0].shape), None


class _Loss(torch.autograd.Function):
    """A sum over rows of logits that a kernel computes together with its gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, weight: Tensor, kernel: Callable[[Array, Array, Array], float]) -> Tensor:
        rows = _rows(logits)
        d_logits = torch.empty_like(rows)
        found = kernel(rows.numpy(), weight.detach().reshape(-1).contiguous().numpy(), d_logits.numpy())
        ctx.save_for_backward(d_logits.view(logits.shape))
        return logits.new_tensor(found)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:
        (d_logits,) = ctx.saved_tensors
        return slopes[0] * d_logits, None, None
