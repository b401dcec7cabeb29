"""Explicit form of `DreamerNetwork` on the flat buffer, for vectors: one update of everything, without autograd.

An update is `observe`, `dream` and `judge`; then whoever knows the losses says what is to be learned, and `learn`
writes the gradients of all parameters. Rows of states `[rows, F]` are those of the sequences first, then those of the
dreams, step after step, so that heads see all of them in one product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from rl_training.models.mlp_engine import Workspace
from rl_training.models.rssm import RSSM
from rl_training.models.rssm_engine import Imagination, Scan
from rl_training.models.rssm_engine_heads import DreamPolicy, Goals, LegalRows, Said, StateHeads
from rl_training.models.rssm_engine_layers import HiddenLayers, OutputLayers
from rl_training.models.rssm_heads import ContinueHead, LegalHead, NumberHead, PolicyHead
from rl_training.models.rssm_layers import BlockGRU, BlockLinear, NormedLinear, NormedMLP, OutputMLP
from rl_training.models.rssm_observations import ObservationDecoder, ObservationEncoder
from rl_training.models.world_model import DreamerNetwork, WorldModel
from rl_training.ops.kernels import world_heads, world_states
from rl_training.types import Array, SpaceInfo


class Shape(NamedTuple):
    """How much there is of everything: rows of a sequence, sequences, steps of a dream, dreams."""

    steps: int
    batch: int
    horizon: int
    starts: int

    @property
    def seen(self) -> int:
        """The rows that were observed."""
        return self.steps * self.batch

    @property
    def learned(self) -> int:
        """The rows from which values may learn: all but the last of the dreams."""
        return self.seen + self.horizon * self.starts

    @property
    def rows(self) -> int:
        return self.learned + self.starts


@dataclass(frozen=True)
class Lesson:
    """What is to be learned from an update's rows; weights are those of single rows in the loss."""

    value: Goals  # `[K, learned]`
    reward: Array  # `[seen]`
    goes_on: Array  # `[seen]`: probabilities
    mask: Array | None  # `[seen, action_size]`: what was allowed, where that is learned
    d_log_prob: Array  # `[horizon * starts]`: the gradient of the log-probabilities of a dream's actions
    d_entropy: Array  # `[horizon * starts]`: that of the entropies
    free_nats: float
    reconstruction_weight: float
    reward_weight: float
    continue_weight: float
    dynamics_weight: float
    representation_weight: float
    through_value: bool  # whether values of observed states teach the states


class Learned(NamedTuple):
    """What a lesson found, without weights: losses and divergences of observed rows, likelihoods of dreams."""

    value: Array  # `[K, learned]`
    reward: Array  # `[seen]`
    goes_on: Array  # `[seen]`
    legal: Array | None  # `[seen]`
    reconstruction: Array  # `[seen]`
    divergence: Array  # `[seen]`
    log_prob: Array  # `[horizon * starts]`
    entropy: Array  # `[horizon * starts]`


class WorldRows:
    """A world model on sequences: encoder, states, and what teaches these, but for the heads of numbers."""

    def __init__(self, world: WorldModel) -> None:
        encoder, decoder = world.encoder.vector, world.decoder.vector
        assert encoder is not None
        assert decoder is not None
        self.info, self.size, self.unimix = world.info, world.rssm.size, world.rssm.unimix
        self._encoder = HiddenLayers(encoder, trained=True)
        self._decoder = OutputLayers(decoder, trained=True)
        self._prior = OutputLayers(world.rssm.prior_head, trained=True)
        self._scan = Scan(world.rssm)
        latent = self.size.stoch * self.size.classes
        # Gradients of states, in all and by one head; mixed probabilities of posterior and prior.
        self._rows = Workspace((), [self.size.features, self.size.features, latent, latent])
        self._numbers = self._softmax = np.zeros((0, 0), np.float32)

    @property
    def d_states(self) -> Array:
        """Where the gradient of the states goes that other heads find, before `learn`."""
        return self._rows.arrays[0]

    @property
    def spare(self) -> Array:
        """An array like `d_states`."""
        return self._rows.arrays[1]

    def observe(
        self, before: Array, actions: Array, numbers: Array, first: Array, uniform: Array, out: Array, index: Array
    ) -> None:
        """Write the states of sequences to `out`: see `Scan.forward`; `numbers` are those of `joined_numbers`."""
        rows = len(numbers)
        for part in (self._encoder, self._decoder, self._prior):
            part.begin(rows)
        self._rows.resize(rows)
        self._numbers = numbers
        tokens = self._encoder.forward(numbers, slice(0, rows))
        self._softmax = self._scan.forward(before, actions, tokens, first, uniform, out, index)

    def learn(self, states: Array, lesson: Lesson) -> tuple[Array, Array]:
        """Write the gradients of all weights, those of `d_states` included.

        Returns squared errors of what is decoded, and divergences, `[rows]` each.
        """
        errors = self._learn_decoder(states, lesson.reconstruction_weight)
        divergence, d_posterior = self._learn_prior(states, lesson)
        self._scan.backward(self.d_states, d_posterior, self._encoder.d)
        self._encoder.backward(self._numbers, slice(0, len(states)))
        return errors, divergence

    def _learn_decoder(self, states: Array, weight: float) -> Array:
        rows = slice(0, len(states))
        d = self._decoder.forward(states, rows)
        d += self._decoder.bias
        d -= self._numbers
        errors: Array = np.einsum("bi,bi->b", d, d)
        d *= np.float32(2.0 * weight)
        self._decoder.backward(states, d, rows, self.spare)
        self.d_states[...] += self.spare
        return errors

    def _learn_prior(self, states: Array, lesson: Lesson) -> tuple[Array, Array]:
        """The divergences, and the gradient of the posterior's mixed probabilities."""
        rows, deter, classes = slice(0, len(states)), self.size.deter, self.size.classes
        softmax = self._prior.forward(states, rows)
        world_states.softmax_groups(softmax, self._prior.bias, classes)
        posterior, prior = self._rows.arrays[2:]
        for mixed, own in ((posterior, self._softmax), (prior, softmax)):
            np.multiply(own, np.float32(1.0 - self.unimix), out=mixed)
            mixed += np.float32(self.unimix / classes)
        ratio = np.log(posterior) - np.log(prior)
        divergence = np.empty(len(states), np.float32)
        world_heads.divergences(
            posterior,
            prior,
            ratio,
            lesson.free_nats,
            divergence,
            lesson.representation_weight,
            lesson.dynamics_weight,
        )
        world_states.softmax_groups_backward(softmax, classes, 1.0 - self.unimix, prior)
        d_deter = np.empty((len(states), deter), np.float32)
        self._prior.backward(states, prior, rows, d_deter)
        self.d_states[:, :deter] += d_deter
        return divergence, ratio


class DreamerEngine:
    """The update of a `DreamerNetwork` and its slow value, without autograd: see `within_reach`.

    It reads and writes the parameters where they are when it is made, so they must be flat by then. What it returns is
    valid until the next update.
    """

    def __init__(self, network: DreamerNetwork, slow: NumberHead) -> None:
        world = network.world
        self.info, self.size = world.info, world.rssm.size
        self._world = WorldRows(world)
        self._heads = StateHeads(network, slow)
        self._imagination = Imagination(world.rssm)
        self._policy = DreamPolicy(network.policy, trained=True)
        self._legal = None if world.legal is None else LegalRows(world.legal, trained=True)
        self._dreamt_legal = None if world.legal is None else LegalRows(world.legal, trained=False)
        self._states = Workspace((), [self.size.features])
        self.shape = Shape(0, 0, 0, 0)

    @property
    def states(self) -> Array:
        """All states of an update `[rows, F]`."""
        return self._states.arrays[0]

    def observe(
        self,
        deter: Array,
        stoch: Array,
        previous_action: Array,
        numbers: Array,
        first: Array,
        uniform: Array,
        dreams: tuple[int, int],
    ) -> tuple[Array, Array]:
        """`WorldModel.observe`: `deter` `[T, B, deter]` and latents `[T, B, stoch]`, as indices of one byte.

        `deter` and `stoch` `[B, ...]` are before the sequences, `numbers` `[T * B, ...]` are their observations
        (`joined_numbers`), and `dreams` says how many steps of how many dreams will follow.
        """
        steps, batch = first.shape
        self.shape = shape = Shape(steps, batch, *dreams)
        size, seen = self.size, shape.seen
        self._states.resize(shape.rows)
        self._heads.begin(shape.rows)
        before, index = np.empty((shape.batch, size.features), np.float32), np.empty((seen, size.stoch), np.uint8)
        before[:, : size.deter] = deter
        first = np.ascontiguousarray(first, np.bool_)
        world_states.enter_latents(np.ascontiguousarray(stoch), size.classes, before, size.deter)
        actions = action_columns(self.info, previous_action.reshape(seen, *previous_action.shape[2:]))
        actions[first.reshape(-1)] = 0.0
        self._world.observe(before, actions, numbers, first, uniform, self.states[:seen], index)
        lead = first.shape
        return self.states[:seen, : size.deter].reshape(*lead, size.deter), index.reshape(*lead, size.stoch)

    def dream(self, starts: Array, uniform: Array, noise: Array) -> Array:
        """Follow the policy in the model, from the observed rows `starts` `[N]`; returns the actions `[H, N, ...]`."""
        shape, many = self.shape, self.shape.starts
        dreams = self.states[shape.seen :]
        # NumPy writes to `out` directly only in this mode; the starts are within the rows.
        np.take(self.states[: shape.seen], starts, axis=0, out=dreams[:many], mode="clip")
        self._imagination.begin(many)
        self._policy.begin(shape.horizon * many, many)
        if self._dreamt_legal is not None:
            self._dreamt_legal.begin(many)
        for step in range(shape.horizon):
            rows = slice(step * many, (step + 1) * many)
            state, after = dreams[rows], dreams[rows.stop : rows.stop + many]
            mask = None if self._dreamt_legal is None else self._dreamt_legal.mask(state)
            columns = self._policy.act(state, noise[step], rows, mask)
            self._imagination.step(state, columns, uniform[step], after)
        return self._policy.action.reshape(shape.horizon, many, -1)

    def judge(self) -> Said:
        """What is said of all rows, observed and imagined."""
        return self._heads.forward(self.states)

    def learn(self, lesson: Lesson) -> Learned:
        """Write the gradients of all parameters."""
        shape, heads, world = self.shape, self._heads, self._world
        seen = self.states[: shape.seen]
        value = heads.learn_value(lesson.value)
        weights = np.full((1, shape.seen), lesson.reward_weight, np.float32)
        reward = heads.learn_reward(Goals(lesson.reward[None], weights))
        goes_on = heads.learn_continuation(lesson.goes_on, lesson.continue_weight)
        heads.backward(
            self.states, shape.seen, shape.learned, through_value=lesson.through_value, d_states=world.d_states
        )
        legal = None
        if self._legal is not None and lesson.mask is not None:
            self._legal.begin(shape.seen)
            legal = self._legal.learn(seen, lesson.mask, lesson.continue_weight, world.spare)
            world.d_states[...] += world.spare
        dreams = self.states[shape.seen : shape.learned]
        log_prob, entropy = self._policy.learn(dreams, lesson.d_log_prob, lesson.d_entropy)
        reconstruction, divergence = world.learn(seen, lesson)
        return Learned(value, reward[0], goes_on, legal, reconstruction, divergence, log_prob, entropy)


def joined_numbers(info: SpaceInfo, obs: Array | Mapping[str, Array]) -> Array:
    """The vectors of observations `[rows, ...]` as one row each, on the compressed scale of encoder and decoder."""
    parts = [obs[part.name] if isinstance(obs, Mapping) else obs for part in info.arrays]
    numbers = np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1, dtype=np.float32)
    compressed: Array = np.sign(numbers) * np.log1p(np.abs(numbers))
    return compressed


def action_columns(info: SpaceInfo, action: Array) -> Array:
    """Stored actions `[rows, ...]` as scaled columns `[rows, action_size]`, as a model sees them."""
    if info.continuous:
        scaled: Array = action / np.maximum(1.0, np.abs(action))
        return scaled.astype(np.float32)
    columns = np.zeros((len(action), info.action_size), np.float32)
    starts = np.cumsum([0, *info.action_counts[:-1]])
    columns[np.arange(len(action))[:, None], action.reshape(len(action), -1) + starts] = 1.0
    return columns


# The classes that a network may be made of; lists of modules have nothing to compute.
_KNOWN = {
    DreamerNetwork,
    WorldModel,
    RSSM,
    BlockGRU,
    BlockLinear,
    ObservationEncoder,
    ObservationDecoder,
    NumberHead,
    ContinueHead,
    LegalHead,
    PolicyHead,
    OutputMLP,
    NormedMLP,
    NormedLinear,
    nn.Linear,
    nn.RMSNorm,
    nn.ModuleList,
}


def within_reach(network: nn.Module) -> bool:
    """Whether the engine can compute a network: the default one for vectors, with float32 weights on a CPU."""
    if not isinstance(network, DreamerNetwork) or any(type(part) not in _KNOWN for part in network.modules()):
        return False
    world = network.world
    heads = (network.value, world.reward, world.continues)
    widths = {layer.linear.out_features for head in heads for layer in head.torso if isinstance(layer, NormedLinear)}
    # First layers are one product, and the posterior has a single one.
    fits = len(widths) == 1 and all(len(head.torso) for head in heads) and len(world.rssm.posterior_head.torso) == 1
    floats = all(p.device.type == "cpu" and p.dtype == torch.float32 for p in network.parameters())
    return fits and floats and all(part.kind == "vector" for part in world.info.arrays)
