"""What is said of a world model's states: rewards, values, continuation, allowed choices, and the policy.

The policy's parameters are those of `ops.distributions.action_distribution`: log-probabilities of the choices, or the
means and log deviations of a Gaussian. So likelihoods and entropies are found there. Actions are made of noise that
the caller draws (`action_noise`): uniform numbers for choices, standard normal ones for continuous actions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.models.rssm_layers import OutputMLP
from rl_training.ops.latents import mixed_log_probs, one_hot, sample_index, straight_through
from rl_training.ops.symexp import SymexpPoints, symexp_loss, symexp_mean
from rl_training.types import Array, SpaceInfo

# The deviations of a continuous policy.
MIN_STD, MAX_STD = 0.1, 1.0
# Added to what the deviation is made of: before learning it is close to the largest.
STD_SHIFT = 2.0
# A policy starts close to uniform.
_POLICY_SCALE = 0.01


class NumberHead(OutputMLP):
    """Numbers as distributions over symexp points; it says 0 before it has learned."""

    def __init__(self, features: int, layers: int, units: int, support: SymexpPoints) -> None:
        super().__init__(features, layers, units, support.bins, scale=0.0)
        self.support = support

    def mean(self, logits: Tensor) -> Tensor:
        """The numbers `[...]` of logits `[..., bins]`."""
        return symexp_mean(logits, self.support)

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """The cross-entropies `[...]` of logits `[..., bins]` with target numbers `[...]`."""
        return symexp_loss(logits, target, self.support)


class GaussianHead(NumberHead):
    """Numbers as the means of Gaussians with a deviation of 1, as in DreamerV2; `logits` `[..., 1]` are the means."""

    def __init__(self, features: int, layers: int, units: int) -> None:
        OutputMLP.__init__(self, features, layers, units, 1, scale=0.0)

    def mean(self, logits: Tensor) -> Tensor:
        """The numbers `[...]` of outputs `[..., 1]`."""
        return logits.squeeze(-1)

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Half the squared errors `[...]`: negative log-likelihoods, but for a constant."""
        return 0.5 * (logits.squeeze(-1) - target.detach()).square()


class ContinueHead(OutputMLP):
    """Whether an episode goes on, as the logit `[...]` of its probability."""

    def __init__(self, features: int, layers: int, units: int) -> None:
        super().__init__(features, layers, units, 1)

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(features).squeeze(-1)

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """The cross-entropies `[...]` with targets in [0, 1]: a discount may be in them."""
        return nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="none")


class LegalHead(OutputMLP):
    """Which choices are allowed, as logits `[..., action_size]`.

    Where an environment has action masks, a dream needs them too: the policy would otherwise learn to take what was
    never allowed, and the model has never seen what follows.
    """

    def __init__(self, features: int, layers: int, units: int, counts: tuple[int, ...]) -> None:
        super().__init__(features, layers, units, sum(counts))
        self.counts = list(counts)

    def loss(self, logits: Tensor, mask: Tensor) -> Tensor:
        """The cross-entropies `[...]` with masks `[..., action_size]`, summed over the choices."""
        target = mask.to(logits.dtype)
        return nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="none").sum(dim=-1)

    def mask(self, logits: Tensor) -> Tensor:
        """The choices that are more likely allowed than not, and of each factor the likeliest in any case."""
        logits = logits.detach()
        best = [
            one_hot(factor.argmax(dim=-1), factor.shape[-1]) for factor in logits.split_with_sizes(self.counts, dim=-1)
        ]
        return (logits > 0.0) | torch.cat(best, dim=-1).bool()


class PolicyHead(OutputMLP):
    """The policy: choices with a uniform share, or a Gaussian whose mean and deviation are bounded."""

    def __init__(self, info: SpaceInfo, features: int, layers: int, units: int, *, unimix: float) -> None:
        outputs = 2 * info.action_size if info.continuous else info.action_size
        super().__init__(features, layers, units, outputs, scale=_POLICY_SCALE)
        self.info = info
        self.unimix = unimix

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """Parameters `[..., P]` of the action distribution; `mask` `[..., action_size]` says which are allowed."""
        out = super().forward(features)
        if self.info.continuous:
            mean, raw = out.chunk(2, dim=-1)
            std = (MAX_STD - MIN_STD) * torch.sigmoid(raw + STD_SHIFT) + MIN_STD
            return torch.cat([mean.tanh(), std.log()], dim=-1)
        counts = list(self.info.action_counts)
        masks = [None] * len(counts) if mask is None else mask.bool().split_with_sizes(counts, dim=-1)
        factors = zip(out.split_with_sizes(counts, dim=-1), masks, strict=True)
        return torch.cat([mixed_log_probs(logits, self.unimix, allowed) for logits, allowed in factors], dim=-1)


def action_columns(info: SpaceInfo, action: Tensor) -> Tensor:
    """Stored actions as a model sees them, `[..., action_size]`: one-hot for each choice, or as they are."""
    if info.continuous:
        return action.float()
    choices = action.unsqueeze(-1) if info.action_kind == "discrete" else action
    return torch.cat([one_hot(choices[..., k], count) for k, count in enumerate(info.action_counts)], dim=-1)


def noise_size(info: SpaceInfo) -> int:
    """How many numbers of noise an action is made of."""
    return info.action_size if info.continuous else len(info.action_counts)


def action_noise(info: SpaceInfo, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Noise for actions of a shape `[...]`, float32 `[..., noise_size]`."""
    shape = (*shape, noise_size(info))
    return rng.standard_normal(shape, dtype=np.float32) if info.continuous else rng.random(shape, dtype=np.float32)


def sample_action(info: SpaceInfo, params: Tensor, noise: Tensor) -> Tensor:
    """Actions, as they are stored, of parameters `[..., P]` and noise `[..., noise_size]`; without a gradient."""
    params = params.detach()
    if info.continuous:
        mean, log_std = params.chunk(2, dim=-1)
        return mean + log_std.exp() * noise
    factors = params.split_with_sizes(list(info.action_counts), dim=-1)
    choices = [sample_index(factor, noise[..., k]) for k, factor in enumerate(factors)]
    return choices[0] if info.action_kind == "discrete" else torch.stack(choices, dim=-1)


def pathwise_columns(info: SpaceInfo, params: Tensor, noise: Tensor) -> Tensor:
    """The same actions as columns `[..., action_size]`, through which a gradient reaches the parameters.

    Straight-through for choices, reparametrised for a Gaussian: for policies that learn through the model.
    """
    if info.continuous:
        mean, log_std = params.chunk(2, dim=-1)
        return mean + log_std.exp() * noise
    return straight_through(action_columns(info, sample_action(info, params, noise)), params)
