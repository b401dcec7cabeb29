"""Action distributions as functions of a policy's output `[B, param_size]`.

Sampling is NumPy (it happens while acting, on small arrays, from an explicit stream); likelihoods and entropies are
torch (they are differentiated). A test checks that the log-probabilities of both agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rl_training.types import Array, SpaceInfo

LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
# The logit of a forbidden choice: its probability is exactly 0, and 0 times its logarithm is 0, not NaN.
FORBIDDEN = -1e8
# Log deviations of squashed Gaussians are kept within these.
LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
# Actions are clipped to this before tanh is inverted: at 1 the raw action would be infinite.
_ALMOST_ONE = 1.0 - 1e-6


@dataclass(frozen=True)
class Categorical:
    """Params are the logits of `size` choices.

    Every distribution here has `sample` (actions and their log-probabilities `[B]`), `mode`, `log_prob`, `entropy`, and
    `kl`: KL(old || new) `[B]` of the distribution with `old` params from that with `params`.
    """

    size: int

    @property
    def param_size(self) -> int:
        return self.size

    def factors(self) -> list[tuple[Categorical, slice]]:
        return [(self, slice(0, self.size))]

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        shifted = params.astype(np.float64) - params.max(axis=-1, keepdims=True)
        cumulative = np.exp(shifted).cumsum(axis=-1)
        total = cumulative[:, -1]
        # Kept below the total, so that a choice with probability 0 is never drawn.
        threshold = np.minimum(rng.random(len(params)) * total, np.nextafter(total, 0.0))
        action = (cumulative <= threshold[:, None]).sum(axis=-1)
        log_prob = shifted[np.arange(len(params)), action] - np.log(total)
        return action, log_prob.astype(np.float32)

    def mode(self, params: Array) -> Array:
        mode: Array = params.argmax(axis=-1)
        return mode

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        return params.log_softmax(dim=-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, params: Tensor) -> Tensor:
        log_probs = params.log_softmax(dim=-1)
        return -(log_probs.exp() * log_probs).sum(dim=-1)

    def kl(self, old: Tensor, params: Tensor) -> Tensor:
        # A choice that both forbid has probability 0 and a finite difference of logarithms: it adds 0.
        log_probs = old.log_softmax(dim=-1)
        return (log_probs.exp() * (log_probs - params.log_softmax(dim=-1))).sum(dim=-1)


@dataclass(frozen=True)
class MultiCategorical:
    """Several independent choices; params are the logits of the first, then of the second, and so on."""

    sizes: tuple[int, ...]

    @property
    def param_size(self) -> int:
        return sum(self.sizes)

    def factors(self) -> list[tuple[Categorical, slice]]:
        """The single choices, and where their logits are."""
        ends = np.cumsum(self.sizes).tolist()
        return [(Categorical(size), slice(end - size, end)) for size, end in zip(self.sizes, ends, strict=True)]

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        drawn = [factor.sample(params[:, where], rng) for factor, where in self.factors()]
        return np.stack([action for action, _ in drawn], axis=-1), np.sum([log_prob for _, log_prob in drawn], axis=0)

    def mode(self, params: Array) -> Array:
        return np.stack([factor.mode(params[:, where]) for factor, where in self.factors()], axis=-1)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        factors = enumerate(self.factors())
        terms = [factor.log_prob(params[..., where], action[..., k]) for k, (factor, where) in factors]
        return torch.stack(terms).sum(dim=0)

    def entropy(self, params: Tensor) -> Tensor:
        return torch.stack([factor.entropy(params[..., where]) for factor, where in self.factors()]).sum(dim=0)

    def kl(self, old: Tensor, params: Tensor) -> Tensor:
        terms = [factor.kl(old[..., where], params[..., where]) for factor, where in self.factors()]
        return torch.stack(terms).sum(dim=0)


@dataclass(frozen=True)
class DiagonalGaussian:
    """Params are the means, then the log standard deviations, of `size` independent actions.

    Samples are not squashed: the log-probability is that of the raw sample, and only the copy that is sent to the
    environment is clipped.
    """

    size: int

    @property
    def param_size(self) -> int:
        return 2 * self.size

    def sample(self, params: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        noise = rng.standard_normal((len(params), self.size), dtype=np.float32)
        return self.displaced(params, noise * np.exp(params[:, self.size :]))

    def displaced(self, params: Array, shift: Array) -> tuple[Array, Array]:
        """Actions mean + `shift`, and their log-probabilities."""
        mean, log_std = params[:, : self.size], params[:, self.size :]
        noise = shift * np.exp(-log_std)
        log_prob = -(0.5 * noise * noise + log_std).sum(axis=-1) - self.size * LOG_SQRT_2PI
        return mean + shift, log_prob.astype(np.float32)

    def mode(self, params: Array) -> Array:
        return params[:, : self.size]

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        mean, log_std = params[..., : self.size], params[..., self.size :]
        noise = (action - mean) * torch.exp(-log_std)
        return -(0.5 * noise.square() + log_std).sum(dim=-1) - self.size * LOG_SQRT_2PI

    def entropy(self, params: Tensor) -> Tensor:
        return params[..., self.size :].sum(dim=-1) + self.size * (0.5 + LOG_SQRT_2PI)

    def kl(self, old: Tensor, params: Tensor) -> Tensor:
        (old_mean, old_log_std), (mean, log_std) = old.chunk(2, dim=-1), params.chunk(2, dim=-1)
        spread = (2.0 * (old_log_std - log_std)).exp()
        shift = (old_mean - mean) * torch.exp(-log_std)
        return (log_std - old_log_std + 0.5 * (spread + shift.square() - 1.0)).sum(dim=-1)


def squashed_sample(params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions tanh(mean + std * noise) `[B, A]` and their log-densities `[B]`, from params `[B, 2A]`."""
    mean, log_std = _mean_and_log_std(params)
    raw = mean + log_std.exp() * noise
    return raw.tanh(), (-0.5 * noise.square() - log_std - LOG_SQRT_2PI - _log_slope(raw)).sum(dim=-1)


def before_squashing(action: Tensor) -> Tensor:
    """The inverse tanh of actions in [-1, 1]; the ends of the interval are moved inside by 1e-6."""
    return action.clamp(-_ALMOST_ONE, _ALMOST_ONE).atanh()


def squashed_log_prob(params: Tensor, action: Tensor) -> Tensor:
    """The log-density `[B]` of given actions in [-1, 1]."""
    mean, log_std = _mean_and_log_std(params)
    raw = before_squashing(action)
    noise = (raw - mean) * torch.exp(-log_std)
    return (-0.5 * noise.square() - log_std - LOG_SQRT_2PI - _log_slope(raw)).sum(dim=-1)


def _mean_and_log_std(params: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = params.chunk(2, dim=-1)
    return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)


def _log_slope(raw: Tensor) -> Tensor:
    """log(1 - tanh(raw)^2), in a form that stays exact where tanh is 1."""
    return 2.0 * (math.log(2.0) - raw - torch.nn.functional.softplus(-2.0 * raw))


def gaussian_log_prob(mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
    """The log-density `[B]` of actions `[B, A]` of a Gaussian with log deviations `[A]`."""
    noise = (action - mean) * torch.exp(-log_std)
    return -(0.5 * noise.square() + log_std + LOG_SQRT_2PI).sum(dim=-1)


def action_distribution(info: SpaceInfo) -> Categorical | MultiCategorical | DiagonalGaussian:
    """The distribution that fits an action space."""
    if info.continuous:
        return DiagonalGaussian(info.action_size)
    return Categorical(info.action_size) if info.action_kind == "discrete" else MultiCategorical(info.action_counts)
