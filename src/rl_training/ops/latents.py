"""Categorical latents and policies with a share of the uniform distribution in them, as functions.

Everything here has classes on the last axis. Samples are made of uniform numbers in [0, 1) that the caller draws, by
the inverse of the cumulative distribution: one number for each categorical, and the same sample for the same number
in every form of the model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.ops.distributions import FORBIDDEN


def mixed_log_probs(logits: Tensor, unimix: float, mask: Tensor | None = None) -> Tensor:
    """log((1 - unimix) softmax(logits) + unimix / classes), `[..., classes]`.

    No class is ever impossible then, so that divergences stay finite (Hafner et al. 2025). A `mask` says which classes
    are allowed: the uniform share is theirs alone, and the others have the logarithm `FORBIDDEN`.
    """
    if mask is not None:
        logits = logits.masked_fill(~mask, FORBIDDEN)
    if unimix == 0.0:
        return logits.log_softmax(dim=-1)
    if mask is None:
        return ((1.0 - unimix) * logits.softmax(dim=-1) + unimix / logits.shape[-1]).log()
    share = unimix / mask.sum(dim=-1, keepdim=True).clamp(min=1)
    mixed = (1.0 - unimix) * logits.softmax(dim=-1) + share
    # Forbidden classes are set after the logarithm: that of 0 has an infinite slope, which times 0 is no number.
    return mixed.log().masked_fill(~mask, FORBIDDEN)


def sample_index(log_probs: Tensor, uniform: Tensor) -> Tensor:
    """Indices `[...]` of samples from `[..., classes]`, made of uniform numbers `[...]` in [0, 1)."""
    cumulative = log_probs.detach().exp().cumsum(dim=-1)
    total = cumulative[..., -1]
    # Kept below the total, so that a class with probability 0 is never drawn.
    threshold = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    index = (cumulative <= threshold.unsqueeze(-1)).sum(dim=-1)
    # Where everything is forbidden the total is 0.
    return index.clamp(max=log_probs.shape[-1] - 1)


def one_hot(index: Tensor, classes: int) -> Tensor:
    """Indices `[...]` as float32 rows `[..., classes]`; the index `classes` is a row of zeros.

    A state that has not begun has no latent: its rows are zeros. So indices, in one byte each, say everything.
    """
    return torch.nn.functional.one_hot(index.long(), classes + 1)[..., :classes].float()


def index_of(rows: Tensor) -> Tensor:
    """The inverse of `one_hot`: uint8 indices `[...]`, which is `classes` for a row of zeros."""
    classes = rows.shape[-1]
    if classes > 255:
        raise ValueError(f"{classes} classes: an index of one byte knows 255")
    nothing = rows.detach().amax(dim=-1) == 0.0
    return rows.detach().argmax(dim=-1).masked_fill(nothing, classes).to(torch.uint8)


def straight_through(rows: Tensor, log_probs: Tensor) -> Tensor:
    """One-hot rows, with the gradient of the probabilities: rows + (p - stop(p)), to the bit equal to the rows."""
    probabilities = log_probs.exp()
    return rows + (probabilities - probabilities.detach())


def categorical_entropy(log_probs: Tensor) -> Tensor:
    """The entropies `[...]` of `[..., classes]`."""
    return -(log_probs.exp() * log_probs).sum(dim=-1)


def categorical_kl(log_probs: Tensor, other: Tensor) -> Tensor:
    """KL(p || q) `[...]`, all categoricals of a latent `[..., stoch, classes]` taken together."""
    return (log_probs.exp() * (log_probs - other)).sum(dim=(-2, -1))


def kl_losses(posterior: Tensor, prior: Tensor, free_nats: float) -> tuple[Tensor, Tensor, Tensor]:
    """The dynamics loss, the representation loss and the divergence, `[...]` each, of `[..., stoch, classes]`.

    The dynamics loss, KL(stop(posterior) || prior), teaches the prior alone; the representation loss,
    KL(posterior || stop(prior)), the posterior alone. Both are the divergence at least `free_nats`, below which they
    have no gradient. The bound is on the sum over the categoricals of a latent (Hafner et al. 2025).
    """
    dynamics = categorical_kl(posterior.detach(), prior)
    representation = categorical_kl(posterior, prior.detach())
    return dynamics.clamp(min=free_nats), representation.clamp(min=free_nats), dynamics.detach()
