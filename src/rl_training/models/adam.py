"""One step of Adam on a flat tensor: in one operation of torch, which is private, or in plain ones.

`torch._fused_adam_` computes on a CPU since torch 2.4 (on CUDA since 2.0). It may be gone, or want other arguments, in
any later version: it is called here and nowhere else, and where it cannot be called, the plain form serves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

# Weights, gradient, moment, square and count; learning rate, betas and eps. All but the gradient are changed in place.
AdamStep = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, float, tuple[float, float], float], None]


def fused_adam(
    weights: Tensor,
    grad: Tensor,
    moment: Tensor,
    square: Tensor,
    count: Tensor,
    learning_rate: float,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """Adam (Kingma and Ba 2015, Algorithm 1) in one operation; `count` is a scalar of float32."""
    count += 1
    torch._fused_adam_(
        [weights],
        [grad],
        [moment],
        [square],
        [],
        [count],
        lr=learning_rate,
        beta1=betas[0],
        beta2=betas[1],
        weight_decay=0.0,
        eps=eps,
        amsgrad=False,
        maximize=False,
    )


def plain_adam(
    weights: Tensor,
    grad: Tensor,
    moment: Tensor,
    square: Tensor,
    count: Tensor,
    learning_rate: float,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """The same in plain operations; weights differ from those of `fused_adam` by rounding alone."""
    count += 1
    steps, (beta1, beta2) = float(count), betas
    moment.lerp_(grad, 1.0 - beta1)
    square.mul_(beta2).addcmul_(grad, grad, value=1.0 - beta2)
    size = square.sqrt().div_(math.sqrt(1.0 - beta2**steps)).add_(eps)
    weights.addcdiv_(moment, size, value=-learning_rate / (1.0 - beta1**steps))


@cache
def adam_on(device: torch.device) -> AdamStep:
    """The step that serves on a device: the fused one, if a step of one weight shows that it can be called there."""
    weights, grad, moment, square = (torch.zeros(1, device=device) for _ in range(4))
    count = torch.zeros((), dtype=torch.float32, device=device)
    try:
        fused_adam(weights, grad, moment, square, count, 0.0, (0.9, 0.999), 1e-8)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return plain_adam
    return fused_adam
