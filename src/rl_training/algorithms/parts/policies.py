"""The policies of the off-policy and the offline algorithms: how a network's outputs become actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import PolicyContext
from rl_training.algorithms.off_policy import Engine, NetworkPolicy
from rl_training.ops.distributions import FORBIDDEN, DiagonalGaussian, action_distribution
from rl_training.ops.exploration import uniform_choices, with_noise
from rl_training.ops.kernels.squashed import squashed_forward
from rl_training.types import Act, Array, Carry

# The range of log deviations that are the same for all observations (Kostrikov et al. 2022).
LOG_STD_RANGE = (-5.0, 2.0)


class SquashedGaussianPolicy(NetworkPolicy):
    """Actions are tanh of Gaussian samples (Haarnoja et al. 2018, appendix C); the network returns the parameters."""

    def act(self, obs: Array, carry: Carry, *, explore: bool, rng: np.random.Generator) -> Act:
        params = self.outputs(self.observer.scaled(obs))
        size = params.shape[1] // 2
        if not explore:
            return Act(np.tanh(params[:, :size]), carry)
        return Act(self.sampled(params, rng.standard_normal((len(params), size), dtype=np.float32)), carry)

    def sampled(self, outputs: Array, noise: Array) -> Array:
        """Actions `[B, A]` from the network's outputs `[B, 2A]` and standard normal noise `[B, A]`."""
        return squashed(outputs, noise)[0]


class DeterministicPolicy(NetworkPolicy):
    """One action for every observation: tanh of the network's output. It does not explore."""

    def act(self, obs: Array, carry: Carry, *, explore: bool, rng: np.random.Generator) -> Act:
        return Act(np.tanh(self.outputs(self.observer.scaled(obs))), carry)


class NoisyPolicy(NetworkPolicy):
    """One action for every observation, with Gaussian noise for exploration."""

    acting_settings = ("noise_std",)

    def __init__(
        self, context: PolicyContext, network: nn.Module, engine: Engine, *, always_draws: bool = False
    ) -> None:
        """`always_draws`: noise is drawn from the generator even if its deviation is 0."""
        super().__init__(context, network, engine)
        self._always_draws = always_draws

    def act(self, obs: Array, carry: Carry, *, explore: bool, rng: np.random.Generator) -> Act:
        action = np.tanh(self.outputs(self.observer.scaled(obs)))
        noise_std = self.values["noise_std"]
        if explore and (noise_std > 0.0 or self._always_draws):
            action = with_noise(action, noise_std, rng)
        return Act(action, carry)


class GaussianNetwork(nn.Module):
    """A network that returns means, and log deviations that are the same for every observation."""

    def __init__(self, network: nn.Module, size: int, log_std: float) -> None:
        super().__init__()
        self.network = network
        self.log_std = nn.Parameter(torch.full((size,), log_std))

    def forward(self, obs: Any) -> Tensor:
        mean: Tensor = self.network(obs)
        return mean


class ClippedGaussianPolicy(NetworkPolicy):
    """Actions are samples of a Gaussian around tanh of the network's output; they are clipped, not squashed."""

    network: GaussianNetwork

    def __init__(self, context: PolicyContext, network: nn.Module, engine: Engine, *, log_std: float = 0.0) -> None:
        """`log_std` is the initial log deviation."""
        gaussian = GaussianNetwork(network, context.info.action_size, log_std).to(context.device)
        super().__init__(context, gaussian, engine, layers=network)

    def act(self, obs: Array, carry: Carry, *, explore: bool, rng: np.random.Generator) -> Act:
        outputs = self.outputs(self.observer.scaled(obs))
        if not explore:
            return Act(np.tanh(outputs), carry)
        return Act(self.sampled(outputs, rng.standard_normal(outputs.shape, dtype=np.float32)), carry)

    def sampled(self, outputs: Array, noise: Array) -> Array:
        """Actions `[B, A]` from the network's outputs `[B, A]` and standard normal noise `[B, A]`."""
        log_std = self.network.log_std.detach().clamp(*LOG_STD_RANGE).cpu().numpy()
        action: Array = np.clip(np.tanh(outputs) + np.exp(log_std) * noise, -1.0, 1.0)
        return action

    def confine(self) -> None:
        with torch.no_grad():  # outside its range a log deviation would get no gradient to return
            self.network.log_std.clamp_(*LOG_STD_RANGE)


class CategoricalPolicy(NetworkPolicy):
    """A categorical policy of one choice, or of several that are independent; the network returns their logits."""

    def __init__(self, context: PolicyContext, network: nn.Module, engine: Engine) -> None:
        super().__init__(context, network, engine)
        choices = action_distribution(context.info)
        assert not isinstance(choices, DiagonalGaussian)
        self.choices = choices

    def act(self, obs: Array, carry: Carry, *, explore: bool, rng: np.random.Generator) -> Act:
        rows = self.observer.scaled(obs)
        logits = allowed(self.outputs(rows), self.observer.mask(rows))
        return Act(self.choices.sample(logits, rng)[0] if explore else self.choices.mode(logits), carry)


class EpsilonGreedyPolicy(NetworkPolicy):
    """The choice with the highest value, or with probability `epsilon` a random one. The network returns the values."""

    name = "network"
    acting_settings = ("epsilon",)

    def act(self, obs: Array, carry: Carry, *, explore: bool, rng: np.random.Generator) -> Act:
        rows = self.observer.scaled(obs)
        mask, epsilon = self.observer.mask(rows), self.values["epsilon"]
        action: Array = allowed(self.outputs(rows), mask).argmax(axis=-1)
        if explore and epsilon > 0.0:
            random = rng.random(len(rows)) < epsilon
            if random.any():
                action[random] = uniform_choices(rng, len(rows), self.info.action_size, mask)[random]
        return Act(action, carry)


def squashed(params: Array, noise: Array) -> tuple[Array, Array]:
    """Actions `[B, A]` and their log-densities `[B]`, from parameters `[B, 2A]` and standard normal noise `[B, A]`."""
    action, log_prob = np.empty_like(noise), np.empty(len(noise), np.float32)
    squashed_forward(params, noise, action, log_prob)
    return action, log_prob


def allowed(values: Array, mask: Array | None) -> Array:
    """Values or logits `[B, A]` with those of forbidden choices set lower than any other."""
    return values if mask is None else np.where(mask, values, np.float32(FORBIDDEN))
