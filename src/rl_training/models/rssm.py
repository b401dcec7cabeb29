"""The recurrent state-space model of DreamerV3 (Hafner et al. 2025): a state that follows actions and observations.

A state has two parts: `deter` `[B, deter]`, what a recurrent unit remembers, and `stoch` `[B, stoch, classes]`, a
latent of `stoch` categoricals as one-hot rows. Before an episode both are zeros. The prior guesses the latent from
`deter` alone; the posterior has seen the observation too. Both are log-probabilities with a uniform share in them.

Sequences are `[T, B, ...]`. Actions enter as columns `[..., action_size]` (`rssm_heads.action_columns`). What is drawn
is made of uniform numbers in [0, 1), `[..., stoch]`, which are arguments: nothing here has a random generator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rl_training.models.rssm_layers import BlockGRU, NormedLinear, OutputMLP
from rl_training.ops.latents import mixed_log_probs, one_hot, sample_index, straight_through

UNIMIX = 0.01


@dataclass(frozen=True)
class WorldSize:
    """How large a world model is: `depth` is the number of channels of images, times 2 to 4."""

    deter: int
    hidden: int
    classes: int
    units: int
    depth: int
    stoch: int = 32
    blocks: int = 8

    @property
    def features(self) -> int:
        """How many numbers a state has."""
        return self.deter + self.stoch * self.classes


# All but the first are those of the paper's code; `xxs` learns on a CPU in minutes.
SIZES = {
    "xxs": WorldSize(256, 64, 8, 64, 4, stoch=16),
    "1m": WorldSize(512, 64, 4, 64, 4),
    "12m": WorldSize(2048, 256, 16, 256, 16),
    "25m": WorldSize(3072, 384, 24, 384, 24),
    "50m": WorldSize(4096, 512, 32, 512, 32),
    "100m": WorldSize(6144, 768, 48, 768, 48),
    "200m": WorldSize(8192, 1024, 64, 1024, 64),
}


class WorldState(NamedTuple):
    """Where the model is: `deter` `[..., deter]` and `stoch` `[..., stoch, classes]`."""

    deter: Tensor
    stoch: Tensor

    @property
    def features(self) -> Tensor:
        """Both as one row `[..., features]`, which is what heads and decoders see."""
        return torch.cat([self.deter, self.stoch.flatten(-2)], dim=-1)

    def detached(self) -> WorldState:
        """The same without a gradient."""
        return WorldState(self.deter.detach(), self.stoch.detach())


class Observed(NamedTuple):
    """What a sequence of observations says: the states `[T, B, ...]`, and the posterior `[T, B, stoch, classes]`."""

    state: WorldState
    posterior: Tensor

    @property
    def last(self) -> WorldState:
        """The state after the last observation `[B, ...]`."""
        return WorldState(self.state.deter[-1], self.state.stoch[-1])


class RSSM(nn.Module):
    """The model of states: a block GRU, a prior and a posterior."""

    def __init__(self, size: WorldSize, action_size: int, tokens: int, *, unimix: float = UNIMIX) -> None:
        super().__init__()
        self.size = size
        self.unimix = unimix
        latent = size.stoch * size.classes
        self.deter_in = NormedLinear(size.deter, size.hidden)
        self.stoch_in = NormedLinear(latent, size.hidden)
        self.action_in = NormedLinear(action_size, size.hidden)
        self.core = BlockGRU(size.deter, 3 * size.hidden, size.blocks)
        self.prior_head = OutputMLP(size.deter, 2, size.hidden, latent)
        self.posterior_head = OutputMLP(size.deter + tokens, 1, size.hidden, latent)

    def initial(self, batch: int) -> WorldState:
        """The state before an episode: zeros."""
        weight = self.deter_in.linear.weight
        deter = torch.zeros(batch, self.size.deter, dtype=weight.dtype, device=weight.device)
        return WorldState(deter, deter.new_zeros(batch, self.size.stoch, self.size.classes))

    def advance(self, state: WorldState, action: Tensor) -> Tensor:
        """What is remembered, `[..., deter]`, after an action `[..., action_size]`."""
        # Actions of a Gaussian may be of any size; the scale is no way for a gradient.
        action = action / action.detach().abs().clamp(min=1.0)
        inputs = [self.deter_in(state.deter), self.stoch_in(state.stoch.flatten(-2)), self.action_in(action)]
        after: Tensor = self.core(state.deter, torch.cat(inputs, dim=-1))
        return after

    def prior(self, deter: Tensor) -> Tensor:
        """Log-probabilities `[..., stoch, classes]` of the latent, given what is remembered."""
        return self._log_probs(self.prior_head(deter))

    def posterior(self, deter: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities `[..., stoch, classes]` of the latent, given an encoded observation `[..., tokens]` too."""
        return self._log_probs(self.posterior_head(torch.cat([deter, tokens], dim=-1)))

    def draw(self, log_probs: Tensor, uniform: Tensor) -> Tensor:
        """A latent `[..., stoch, classes]`, with the gradient of its probabilities, of numbers `[..., stoch]`."""
        rows = one_hot(sample_index(log_probs, uniform), self.size.classes)
        return straight_through(rows, log_probs)

    def see(
        self, state: WorldState, previous_action: Tensor, tokens: Tensor, first: Tensor, uniform: Tensor
    ) -> tuple[WorldState, Tensor]:
        """One step of `observe`: the state after observations `[B, tokens]`, and the posterior."""
        # An episode begins without a past: the last action of the episode before it is none of its own.
        new = first.bool()[:, None]
        before = WorldState(state.deter.masked_fill(new, 0.0), state.stoch.masked_fill(new[..., None], 0.0))
        deter = self.advance(before, previous_action.masked_fill(new, 0.0))
        posterior = self.posterior(deter, tokens)
        return WorldState(deter, self.draw(posterior, uniform)), posterior

    def observe(
        self, state: WorldState, previous_action: Tensor, tokens: Tensor, first: Tensor, uniform: Tensor
    ) -> Observed:
        """Follow a sequence `[T, B, ...]` from the state before it.

        `previous_action[t]` was taken before observation t. Where `first[t]` is set, an episode begins with observation
        t: state and previous action are zeros there, whatever they were.
        """
        deters, stochs, posteriors = [], [], []
        for t in range(len(tokens)):
            state, posterior = self.see(state, previous_action[t], tokens[t], first[t], uniform[t])
            deters.append(state.deter)
            stochs.append(state.stoch)
            posteriors.append(posterior)
        return Observed(WorldState(torch.stack(deters), torch.stack(stochs)), torch.stack(posteriors))

    def imagine(self, state: WorldState, action: Tensor, uniform: Tensor) -> tuple[WorldState, Tensor]:
        """The state that the model expects after an action `[B, action_size]`, and the prior that it is drawn from."""
        deter = self.advance(state, action)
        prior = self.prior(deter)
        return WorldState(deter, self.draw(prior, uniform)), prior

    def _log_probs(self, logits: Tensor) -> Tensor:
        rows = logits.reshape(*logits.shape[:-1], self.size.stoch, self.size.classes)
        return mixed_log_probs(rows, self.unimix)
