"""Explicit form of `RSSM` on the flat buffer: states observed, imagined, and the gradients of a sequence.

Only what hangs on the step before goes step by step. What actions and observations contribute, and the gradients of all
weights, are one product for all steps. States are rows `[..., F]`: `deter`, then the latent as one-hot rows.
"""

from __future__ import annotations

import numpy as np

from rl_training.models.mlp_engine import Workspace, gradient_of, multiply
from rl_training.models.rssm import RSSM
from rl_training.models.rssm_engine_layers import Norm, OutputLayers, write_linear
from rl_training.models.rssm_layers import UPDATE_BIAS, NormedLinear
from rl_training.ops.kernels import world_states as kernels
from rl_training.types import Array


class Advance:
    """`RSSM.advance` on rows, and its gradient: from states and actions to what is remembered."""

    def __init__(self, rssm: RSSM, *, trained: bool) -> None:
        self.size = size = rssm.size
        self.block = size.deter // size.blocks
        layers = [rssm.deter_in, rssm.stoch_in, rssm.action_in]
        self.entry = Norm([(layer.linear.bias, layer.norm) for layer in layers], trained=trained)
        core = rssm.core
        self.hidden = Norm([(core.hidden.bias, core.norm)], trained=trained)
        self._entries = [layer.linear.weight.detach().numpy() for layer in layers]
        self._mixed, self._gate = core.hidden.weight.detach().numpy(), core.gates.weight.detach().numpy()
        self._gate_bias = core.gates.bias.detach().numpy().reshape(size.blocks, 3, self.block)
        if trained:
            self._d_entries = [gradient_of(layer.linear.weight) for layer in layers]
            self._d_mixed, self._d_gate = gradient_of(core.hidden.weight), gradient_of(core.gates.weight)
            self._d_gate_bias = gradient_of(core.gates.bias)
        # Of every row: gates, and tanh of the candidate. Of the rows of a step: what blocks see of themselves.
        self._kept = Workspace((), [3 * size.deter, size.deter])
        self._own = Workspace((), [size.deter])

    @property
    def columns(self) -> list[slice]:
        """The columns of deter, stoch and action in what all blocks see."""
        hidden = self.size.hidden
        return [slice(k * hidden, (k + 1) * hidden) for k in range(3)]

    def begin(self, rows: int, together: int) -> None:
        """Make room for so many rows, of which so many are computed together, with the weights of now."""
        self.entry.begin(rows)
        self.hidden.begin(rows)
        self._kept.resize(rows)
        self._own.resize(together)

    def enter_actions(self, columns: Array, rows: slice) -> None:
        """Take the actions `[n, action_size]` of some rows, scaled; before `forward`."""
        multiply(columns, self._entries[2].T, self.entry.z[rows, self.columns[2]])

    def forward(self, before: Array, rows: slice, after: Array) -> None:
        """Write `deter` to the first columns of `after`, from states `before`, both `[n, F]`."""
        size, products = self.size, self.entry.z[rows]
        multiply(before[:, : size.deter], self._entries[0].T, products[:, self.columns[0]])
        multiply(before[:, size.deter :], self._entries[1].T, products[:, self.columns[1]])
        seen = self.entry.activate(rows)

        hidden, own = self.hidden.z[rows], self._own.arrays[0]
        multiply(seen, self._shared.T, hidden)
        multiply(self._blocks(before), self._mixed[:, :, : self.block].swapaxes(1, 2), self._blocks(own))
        hidden += own
        x = self.hidden.activate(rows)

        gates, squashed = self._gates(rows)
        multiply(self._blocks(x), self._gate.swapaxes(1, 2), self._gate_blocks(rows))
        kernels.gru_forward(gates, self._gate_bias, UPDATE_BIAS, before, squashed, after)

    def backward(self, before: Array, rows: slice, d_deter: Array, d_before: Array) -> None:
        """Write the gradient of `before` `[n, F]`, given that of what is remembered, which is overwritten."""
        size, columns = self.size, self.columns
        gates, squashed = self._gates(rows)
        kernels.gru_backward(gates, before, squashed, d_deter.reshape(squashed.shape))
        multiply(self._gate_blocks(rows), self._gate, self._blocks(self.hidden.d[rows]))
        d_hidden = self.hidden.backward(rows)

        multiply(d_hidden, self._shared, self.entry.d[rows])
        d_entry, own = self.entry.backward(rows), self._own.arrays[0]
        multiply(d_entry[:, columns[0]], self._entries[0], d_before[:, : size.deter])
        multiply(d_entry[:, columns[1]], self._entries[1], d_before[:, size.deter :])
        multiply(self._blocks(d_hidden), self._mixed[:, :, : self.block], self._blocks(own))
        kernels.add_to_columns(d_before, own, d_deter)

    def write(self, before: Array, actions: Array) -> None:
        """Write the gradients of all weights; the inputs of all rows were states `[rows, F]` and scaled actions."""
        size, rows = self.size, slice(0, len(before))
        d_entry, d_hidden = self.entry.d, self.hidden.d
        inputs = [before[:, : size.deter], before[:, size.deter :], actions]
        for x, column, gradient in zip(inputs, self.columns, self._d_entries, strict=True):
            multiply(d_entry[:, column].T, x, gradient)
        shared = self._d_mixed.reshape(size.deter, -1)[:, self.block :]
        multiply(d_hidden.T, self.entry.out, shared)
        d_blocks = self._blocks(d_hidden).swapaxes(1, 2)
        multiply(d_blocks, self._blocks(before), self._d_mixed[:, :, : self.block])
        d_gates = self._kept.arrays[0]
        multiply(self._gate_blocks(rows).swapaxes(1, 2), self._blocks(self.hidden.out), self._d_gate)
        np.matmul(np.ones((1, len(d_gates)), np.float32), d_gates, out=self._d_gate_bias[None])
        self.entry.write()
        self.hidden.write()

    @property
    def _shared(self) -> Array:
        """What all blocks see, as one matrix `[deter, 3 * hidden]`."""
        return self._mixed.reshape(self.size.deter, -1)[:, self.block :]

    def _blocks(self, rows: Array) -> Array:
        """The first columns of rows `[n, ...]` as blocks `[blocks, n, block]`."""
        size = self.size
        blocks: Array = rows[:, : size.deter].reshape(len(rows), size.blocks, self.block).swapaxes(0, 1)
        return blocks

    def _gates(self, rows: slice) -> tuple[Array, Array]:
        gates, squashed = self._kept.arrays
        lead = (rows.stop - rows.start, self.size.blocks)
        return gates[rows].reshape(*lead, 3, self.block), squashed[rows].reshape(*lead, self.block)

    def _gate_blocks(self, rows: slice) -> Array:
        """The gates of rows as blocks `[blocks, n, 3 * block]`."""
        gates = self._kept.arrays[0][rows]
        blocks: Array = gates.reshape(len(gates), self.size.blocks, 3 * self.block).swapaxes(0, 1)
        return blocks


class Scan:
    """`RSSM.observe`, and its gradient: the states of a sequence of observations."""

    def __init__(self, rssm: RSSM, *, trained: bool) -> None:
        self.size, self.unimix = rssm.size, rssm.unimix
        self.advance = Advance(rssm, trained=trained)
        layer, out = rssm.posterior_head.torso[0], rssm.posterior_head.out
        assert isinstance(layer, NormedLinear)
        self._norm = Norm([(layer.linear.bias, layer.norm)], trained=trained)
        weights = (layer.linear.weight, out.weight, out.bias)
        self._weight, self._out, self._out_bias = (weight.detach().numpy() for weight in weights)
        self._gradients = [gradient_of(weight) for weight in weights] if trained else []
        deter, latent = self.size.deter, self.size.stoch * self.size.classes
        # Of every row: what the posterior makes of the observation, its probabilities, the state before.
        self._kept = Workspace((), [self.size.hidden, latent, self.size.features])
        # Of the rows of a step: the gradients of the state before and of what is remembered.
        self._slopes = Workspace((), [self.size.features, deter])
        self._tokens = self._actions = self._states = np.zeros((0, 0), np.float32)
        self._first = np.zeros((0, 0), np.bool_)

    def forward(
        self, state: Array, actions: Array, tokens: Array, first: Array, uniform: Array, out: Array, index: Array
    ) -> Array:
        """Follow sequences from states `[B, F]`; returns the posterior's softmax `[T * B, latent]`, before it is mixed.

        `actions` `[T * B, action_size]` are scaled, and zeros where `first` `[T, B]` is set; `tokens` are
        `[T * B, ...]`, `uniform` is `[T, B, stoch]`. States go to `out` `[T * B, F]`, their latents to `index`
        `[T * B, stoch]`.
        """
        steps, batch = first.shape
        self._states, self._first = out, first
        self.begin(actions, tokens, batch)
        _, softmax, before = self._kept.arrays
        for t in range(steps):
            rows = slice(t * batch, (t + 1) * batch)
            kernels.keep_rows(state, first[t], before[rows])
            state = out[rows]
            self.step(rows, state)
            self.draw(rows, uniform[t], index[rows], state)
        return softmax

    def begin(self, actions: Array, tokens: Array, together: int) -> None:
        """Take the actions and the tokens of all rows, of which so many are computed together."""
        self._tokens, self._actions, many = tokens, actions, len(tokens)
        self._kept.resize(many)
        self._norm.begin(many)
        self.advance.begin(many, together)
        multiply(tokens, self._weight[:, self.size.deter :].T, self._kept.arrays[0])
        self.advance.enter_actions(actions, slice(0, many))

    @property
    def before(self) -> Array:
        """The states before all rows `[rows, F]`; they are to be written before a `step`."""
        return self._kept.arrays[2]

    def step(self, rows: slice, after: Array) -> Array:
        """Write what is remembered after a step to `after` `[n, F]`; returns the posterior's softmax there."""
        seen, softmax, before = (array[rows] for array in self._kept.arrays)
        self.advance.forward(before, rows, after)
        products, deter = self._norm.z[rows], self.size.deter
        multiply(after[:, :deter], self._weight[:, :deter].T, products)
        products += seen
        multiply(self._norm.activate(rows), self._out.T, softmax)
        kernels.softmax_groups(softmax, self._out_bias, self.size.classes)
        return softmax

    def draw(self, rows: slice, uniform: Array, index: Array, state: Array) -> None:
        """Draw latents from the posterior of some rows, into `index` `[n, stoch]` and the states `[n, F]`."""
        softmax = self._kept.arrays[1][rows]
        kernels.draw_latents(softmax, self.size.classes, self.unimix, uniform, index, state, self.size.deter)

    def backward(self, d_states: Array, d_posterior: Array, d_tokens: Array) -> None:
        """Write the gradients of all weights, and of the tokens.

        `d_states` `[T * B, F]` is the gradient of the states. `d_posterior` `[T * B, latent]` is that of the mixed
        probabilities, but for what comes through the states; it is overwritten.
        """
        steps, batch = self._first.shape
        self._slopes.resize(batch)
        carry, d_deter = self._slopes.arrays
        _, softmax, before = self._kept.arrays
        deter, classes = self.size.deter, self.size.classes
        carry[...] = 0.0
        for t in range(steps - 1, -1, -1):
            rows = slice(t * batch, (t + 1) * batch)
            d, d_logits = d_states[rows], d_posterior[rows]
            # A latent has the gradient of its probabilities.
            kernels.add_columns(d_logits, d, carry, deter)
            kernels.softmax_groups_backward(softmax[rows], classes, 1.0 - self.unimix, d_logits)
            multiply(d_logits, self._out, self._norm.d[rows])
            multiply(self._norm.backward(rows), self._weight[:, :deter], d_deter)
            kernels.add_columns(d_deter, d, carry, 0)
            self.advance.backward(before[rows], rows, d_deter, carry)
            kernels.keep_rows(carry, self._first[t], carry)
        self._write(d_posterior, d_tokens)

    def _write(self, d_logits: Array, d_tokens: Array) -> None:
        """Write the gradients of all weights, from those of all results."""
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
        self.advance.begin(rows, rows)
        self._prior.begin(rows)
        self._index = np.empty((rows, self.size.stoch), np.uint8)

    def step(self, state: Array, action: Array, uniform: Array, after: Array) -> None:
        """Write the states expected after scaled actions to `after` `[rows, F]`."""
        rows, deter, classes = slice(0, len(state)), self.size.deter, self.size.classes
        self.advance.enter_actions(action, rows)
        self.advance.forward(state, rows, after)
        softmax = self._prior.forward(after[:, :deter], rows)
        kernels.softmax_groups(softmax, self._prior.bias, classes)
        kernels.draw_latents(softmax, classes, self.unimix, uniform, self._index, after, deter)
