"""Explicit form of `RSSM` on the flat buffer: states observed, imagined, and the gradients of a sequence.

Only what hangs on the step before goes step by step, in compiled calls. What actions and observations contribute, and
the gradients of all weights, are one product for all steps. States are rows `[..., F]`: `deter`, then the latent as
one-hot rows.
"""

from __future__ import annotations

import numpy as np

from rl_training.models.mlp_engine import Workspace, gradient_of, multiply
from rl_training.models.rssm import RSSM
from rl_training.models.rssm_engine_layers import Norm, OutputLayers, write_linear
from rl_training.models.rssm_layers import UPDATE_BIAS, NormedLinear
from rl_training.ops.kernels import world_states as kernels
from rl_training.ops.kernels import world_steps as steps
from rl_training.ops.kernels.products import pack, panels_for
from rl_training.types import Array

# Imagined rows that are advanced together: what is between their products does not leave the processor's caches.
_NEAR = 96


class Advance:
    """`RSSM.advance` on rows, and its gradient: from states and actions to what is remembered."""

    def __init__(self, rssm: RSSM, *, trained: bool) -> None:
        self.size = size = rssm.size
        self.block = size.deter // size.blocks
        layers, core = [rssm.deter_in, rssm.stoch_in, rssm.action_in], rssm.core
        self.entry = Norm([(layer.linear.bias, layer.norm) for layer in layers], trained=trained)
        self.hidden = Norm([(core.hidden.bias, core.norm)], trained=trained)
        self._entries = [layer.linear.weight.detach().numpy() for layer in layers]
        # What a block sees: itself, then what all blocks see.
        self._mixed = core.hidden.weight.detach().numpy()
        self._gate, self._gate_bias = core.gates.weight.detach().numpy(), core.gates.bias.detach().numpy()
        if trained:
            self._d_entries = [gradient_of(layer.linear.weight) for layer in layers]
            self._d_mixed, self._d_gate = gradient_of(core.hidden.weight), gradient_of(core.gates.weight)
            self._d_gate_bias = gradient_of(core.gates.bias)
        # Of every row: gates, and tanh of the candidate.
        self._kept = Workspace((), [3 * size.deter, size.deter])
        self._packed = [panels_for(*matrix.shape) for matrix in self._matrices()]
        self._packed_actions = panels_for(*self._entries[2].T.shape)
        self._packed_back = [panels_for(*matrix.shape) for matrix in self._matrices_back()] if trained else []

    def begin(self, rows: int) -> None:
        """Make room for so many rows, with the weights of now."""
        self.entry.begin(rows)
        self.hidden.begin(rows)
        self._kept.resize(rows)
        for matrix, panels in zip(self._matrices(), self._packed, strict=True):
            pack(matrix, panels)
        pack(self._entries[2].T, self._packed_actions)

    def begin_backward(self) -> None:
        """Make the weights of now ready for gradients."""
        for matrix, panels in zip(self._matrices_back(), self._packed_back, strict=True):
            pack(matrix, panels)

    def _matrices(self) -> list[Array]:
        """Weights `[inputs, outputs]`: of deter, of stoch, of what all blocks see, of themselves, of gates."""
        deter, block, mixed = self.size.deter, self.block, self._mixed
        shared, own = mixed.reshape(deter, -1)[:, block:], mixed[:, :, :block].swapaxes(1, 2).reshape(deter, block)
        gate = self._gate.swapaxes(1, 2).reshape(deter, 3 * block)
        return [self._entries[0].T, self._entries[1].T, shared.T, own, gate]

    def _matrices_back(self) -> list[Array]:
        """The same `[outputs, inputs]`, blocks below each other."""
        deter, block = self.size.deter, self.block
        mixed = self._mixed.reshape(deter, -1)
        return [*self._entries[:2], mixed[:, block:], mixed[:, :block], self._gate.reshape(3 * deter, block)]

    def enter_actions(self, columns: Array, rows: slice) -> None:
        """Take the actions `[n, action_size]` of some rows, scaled: those that are kept."""
        multiply(columns, self._entries[2].T, self.entry.z[rows, self._columns[2]])

    @property
    def rows(self) -> steps.Arrays:
        """What is kept of all rows, as kernels take it."""
        gates, squashed = self._kept.arrays
        shape = (len(gates), self.size.blocks)
        blocked = gates.reshape(*shape, 3, self.block)
        return self.entry.kept, self.hidden.kept, gates, blocked, squashed.reshape(*shape, self.block)

    @property
    def weights(self) -> steps.Arrays:
        """The weights of `forward`, as kernels take them."""
        return *self._packed, self._gate_bias.reshape(self.size.blocks, 3, self.block)

    @property
    def weights_back(self) -> steps.Arrays:
        """The weights of gradients, as kernels take them."""
        return tuple(self._packed_back)

    def forward(self, before: Array, actions: Array, after: Array) -> None:
        """Write `deter` to the first columns of `after`, from states `before`, both `[n, F]`, and scaled actions.

        There may be more rows than there is room for: nothing is kept of them.
        """
        norms, weights = (self.entry.weights, self.hidden.weights), (*self.weights, self._packed_actions)
        steps.advance_blocks(before, actions, after, self.rows, norms, weights, UPDATE_BIAS)

    def write(self, before: Array, actions: Array) -> None:
        """Write the gradients of all weights; the inputs of all rows were states `[rows, F]` and scaled actions."""
        size, d_entry, d_hidden = self.size, self.entry.d, self.hidden.d
        inputs = [before[:, : size.deter], before[:, size.deter :], actions]
        for x, column, gradient in zip(inputs, self._columns, self._d_entries, strict=True):
            multiply(d_entry[:, column].T, x, gradient)
        multiply(d_hidden.T, self.entry.out, self._d_mixed.reshape(size.deter, -1)[:, self.block :])
        d_blocks = self._blocks(d_hidden).swapaxes(1, 2)
        multiply(d_blocks, self._blocks(before), self._d_mixed[:, :, : self.block])
        d_gates = self._kept.arrays[0]
        d_blocks = d_gates.reshape(len(d_gates), size.blocks, -1).transpose(1, 2, 0)
        multiply(d_blocks, self._blocks(self.hidden.out), self._d_gate)
        np.matmul(np.ones((1, len(d_gates)), np.float32), d_gates, out=self._d_gate_bias[None])
        self.entry.write()
        self.hidden.write()

    @property
    def _columns(self) -> list[slice]:
        """The columns of deter, stoch and action in what all blocks see."""
        hidden = self.size.hidden
        return [slice(k * hidden, (k + 1) * hidden) for k in range(3)]

    def _blocks(self, rows: Array) -> Array:
        """The first columns of rows `[n, ...]` as blocks `[blocks, n, block]`."""
        size = self.size
        blocks: Array = rows[:, : size.deter].reshape(len(rows), size.blocks, self.block).swapaxes(0, 1)
        return blocks


class Scan:
    """`RSSM.observe`, and its gradient: the states of a sequence of observations."""

    def __init__(self, rssm: RSSM) -> None:
        self.size, self.unimix = rssm.size, rssm.unimix
        self.advance = Advance(rssm, trained=True)
        layer, out = rssm.posterior_head.torso[0], rssm.posterior_head.out
        assert isinstance(layer, NormedLinear)
        self._norm = Norm([(layer.linear.bias, layer.norm)], trained=True)
        parameters = (layer.linear.weight, out.weight, out.bias)
        self._weight, self._out, self._out_bias = (weight.detach().numpy() for weight in parameters)
        self._gradients = [gradient_of(weight) for weight in parameters]
        deter, hidden, latent = self.size.deter, self.size.hidden, self.size.stoch * self.size.classes
        self._packed = [panels_for(deter, hidden), panels_for(hidden, latent)]
        self._packed_back = [panels_for(hidden, deter), panels_for(latent, hidden)]
        # Of every row: what the posterior makes of the observation, its softmax, the state before.
        self._kept = Workspace((), [hidden, latent, self.size.features])
        # Of the rows of a step: the gradients of the state before and of what is remembered.
        self._slopes = Workspace((), [self.size.features, deter])
        self._tokens = self._actions = self._states = np.zeros((0, 0), np.float32)
        self._first = np.zeros((0, 0), np.bool_)

    def _begin(self, actions: Array, tokens: Array) -> None:
        """Take the scaled actions and the tokens of all rows, with the weights of now."""
        self._tokens, self._actions, rows, deter = tokens, actions, len(tokens), self.size.deter
        self._kept.resize(rows)
        self._norm.begin(rows)
        self.advance.begin(rows)
        pack(self._weight[:, :deter].T, self._packed[0])
        pack(self._out.T, self._packed[1])
        multiply(tokens, self._weight[:, deter:].T, self._kept.arrays[0])
        self.advance.enter_actions(actions, slice(0, rows))

    def forward(
        self, state: Array, actions: Array, tokens: Array, first: Array, uniform: Array, out: Array, index: Array
    ) -> Array:
        """Follow sequences from states `[B, F]`; returns the posterior's softmax `[T * B, latent]`, before it is mixed.

        `actions` `[T * B, action_size]` are scaled, and zeros where `first` `[T, B]` is set; `tokens` are
        `[T * B, ...]`, `uniform` is `[T, B, stoch]`. States go to `out` `[T * B, F]`, their latents to `index`
        `[T * B, stoch]`.
        """
        self._states, self._first = out, first
        self._begin(actions, tokens)
        steps.scan_forward(
            state,
            first,
            uniform,
            index,
            out,
            self.unimix,
            tuple(self._kept.arrays),
            self._norm.kept,
            self.advance.rows,
            self._norms,
            (*self._packed, self._out_bias, self.size.classes),
            self.advance.weights,
            UPDATE_BIAS,
        )
        return self._kept.arrays[1]

    def backward(self, d_states: Array, d_posterior: Array, d_tokens: Array) -> None:
        """Write the gradients of all weights, and of the tokens.

        `d_states` `[T * B, F]` is the gradient of the states. `d_posterior` `[T * B, latent]` is that of the mixed
        probabilities, but for what comes through the states; it is overwritten.
        """
        batch, size, advance = self._first.shape[1], self.size, self.advance
        self._slopes.resize(batch)
        advance.begin_backward()
        pack(self._weight[:, : size.deter], self._packed_back[0])
        pack(self._out, self._packed_back[1])
        carry, d_deter = self._slopes.arrays
        steps.scan_backward(
            d_states,
            d_posterior,
            self._first,
            self.unimix,
            carry,
            d_deter,
            d_deter.reshape(batch, size.blocks, advance.block),
            tuple(self._kept.arrays),
            self._norm.kept,
            advance.rows,
            self._norms,
            (*self._packed_back, size.classes),
            advance.weights_back,
            (advance.entry.slopes, advance.hidden.slopes, self._norm.slopes),
        )
        self._write(d_posterior, d_tokens)

    @property
    def _norms(self) -> steps.Arrays:
        return self.advance.entry.weights, self.advance.hidden.weights, self._norm.weights

    def _write(self, d_logits: Array, d_tokens: Array) -> None:
        """Write the gradients of all weights, from those of all products."""
        deter, d_hidden = self.size.deter, self._norm.d
        d_weight, d_out, d_out_bias = self._gradients
        write_linear(self._norm.out, d_logits, d_out, d_out_bias)
        multiply(d_hidden.T, self._states[:, :deter], d_weight[:, :deter])
        multiply(d_hidden.T, self._tokens, d_weight[:, deter:])
        multiply(d_hidden, self._weight[:, deter:], d_tokens)
        self._norm.write()
        self.advance.write(self._kept.arrays[2], self._actions)


class Imagination:
    """`RSSM.imagine` on rows, a step at a time; it keeps nothing, since nothing is learned from it."""

    def __init__(self, rssm: RSSM) -> None:
        self.size, self.unimix = rssm.size, rssm.unimix
        self.advance = Advance(rssm, trained=False)
        self._prior = OutputLayers(rssm.prior_head, trained=False)
        self._index = np.zeros((0, 0), np.uint8)

    def begin(self, rows: int) -> None:
        """Make room for so many rows, with the weights of now."""
        self.advance.begin(min(rows, _NEAR))
        self._prior.begin(rows)
        self._index = np.empty((rows, self.size.stoch), np.uint8)

    def step(self, state: Array, action: Array, uniform: Array, after: Array) -> None:
        """Write the states expected after scaled actions to `after` `[rows, F]`."""
        rows, deter, classes = slice(0, len(state)), self.size.deter, self.size.classes
        self.advance.forward(state, action, after)
        softmax = self._prior.forward(after, rows)
        kernels.softmax_groups(softmax, self._prior.bias, classes)
        kernels.draw_latents(softmax, classes, self.unimix, uniform, self._index, after, deter)
