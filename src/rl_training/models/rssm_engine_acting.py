"""Acting with a world model without autograd: a step of a few environments in a few dozen small calls.

For one step it would not pay to copy weights, as the scan of a sequence does: products read them where they are.
"""

from __future__ import annotations

import numpy as np

from rl_training.models.mlp_engine import Workspace, multiply
from rl_training.models.rssm import RSSM
from rl_training.models.rssm_engine_heads import DreamPolicy
from rl_training.models.rssm_engine_layers import HiddenLayers, Norm
from rl_training.models.rssm_layers import UPDATE_BIAS, NormedLinear
from rl_training.models.world_model import DreamerNetwork
from rl_training.ops.kernels import world_states as kernels
from rl_training.types import Array


class _Step:
    """`RSSM.advance` and `RSSM.posterior` of a few rows."""

    def __init__(self, rssm: RSSM) -> None:
        layer, core, head = rssm.posterior_head.torso[0], rssm.core, rssm.posterior_head
        assert isinstance(layer, NormedLinear)
        layers = [rssm.deter_in, rssm.stoch_in, rssm.action_in]
        self.size = size = rssm.size
        self._block = size.deter // size.blocks
        self._entry = Norm([(entry.linear.bias, entry.norm) for entry in layers], trained=False)
        self._hidden = Norm([(core.hidden.bias, core.norm)], trained=False)
        self._posterior = Norm([(layer.linear.bias, layer.norm)], trained=False)
        self._entries = [entry.linear.weight.detach().numpy() for entry in layers]
        self._mixed, self._gate = core.hidden.weight.detach().numpy(), core.gates.weight.detach().numpy()
        self._gate_bias = core.gates.bias.detach().numpy().reshape(size.blocks, 3, self._block)
        self._weight = layer.linear.weight.detach().numpy()
        self._out, self._out_bias = head.out.weight.detach().numpy(), head.out.bias.detach().numpy()
        latent = size.stoch * size.classes
        # What blocks see of themselves, gates, tanh of the candidate, what is seen in tokens, softmax.
        self._rows = Workspace((), [size.deter, 3 * size.deter, size.deter, size.hidden, latent])

    def __call__(self, before: Array, action: Array, tokens: Array, after: Array) -> Array:
        """Write `deter` to `after` `[n, F]`, from states and scaled actions before; returns the posterior's softmax."""
        rows, deter, block = slice(0, len(before)), self.size.deter, self._block
        self._rows.resize(rows.stop)
        for norm in (self._entry, self._hidden, self._posterior):
            norm.begin(rows.stop)
        own, gates, squashed, seen, softmax = self._rows.arrays
        width, z, h = self.size.hidden, self._entry.z, self._hidden.z
        for k, x in enumerate((before[:, :deter], before[:, deter:], action)):
            multiply(x, self._entries[k].T, z[:, k * width : (k + 1) * width])
        multiply(self._entry.activate(rows), self._mixed.reshape(deter, -1)[:, block:].T, h)
        multiply(self._blocks(before[:, :deter]), self._mixed[:, :, :block].swapaxes(1, 2), self._blocks(own))
        h += own
        multiply(self._blocks(self._hidden.activate(rows)), self._gate.swapaxes(1, 2), self._blocks(gates))
        shape = (rows.stop, self.size.blocks)
        blocked, squashed = gates.reshape(*shape, 3, block), squashed.reshape(*shape, block)
        kernels.gru_forward(blocked, self._gate_bias, UPDATE_BIAS, before, squashed, after)

        multiply(after[:, :deter], self._weight[:, :deter].T, self._posterior.z)
        multiply(tokens, self._weight[:, deter:].T, seen)
        self._posterior.z[...] += seen
        multiply(self._posterior.activate(rows), self._out.T, softmax)
        kernels.softmax_groups(softmax, self._out_bias, self.size.classes)
        return softmax

    def _blocks(self, rows: Array) -> Array:
        """Rows `[n, ...]` as blocks `[blocks, n, ...]`."""
        blocks: Array = rows.reshape(len(rows), self.size.blocks, -1).swapaxes(0, 1)
        return blocks


class ActingDreamer:
    """Follows environments by the model, and says what the policy does there: see `world_model_engine.within_reach`.

    It reads the parameters where they are when it is made, with their values of now at every step.
    """

    def __init__(self, network: DreamerNetwork) -> None:
        world = network.world
        assert world.encoder.vector is not None
        self.size, self.unimix = world.rssm.size, world.rssm.unimix
        self._encoder = HiddenLayers(world.encoder.vector, trained=False)
        self._step = _Step(world.rssm)
        self._policy = DreamPolicy(network.policy, trained=False)
        # The states before and after a step.
        self._states = Workspace((), [self.size.features, self.size.features])

    def follow(
        self,
        numbers: Array,
        deter: Array,
        stoch: Array,
        columns: Array,
        uniform: Array | None,
        mask: Array | None = None,
    ) -> tuple[Array, Array, Array]:
        """The state after observations: `deter` `[n, deter]` and `stoch` `[n, stoch]`; the policy's parameters there.

        The state before is `deter`, `stoch` (indices of one byte) and the action's columns `[n, action_size]`.
        `numbers` are the observations (`world_model_engine.joined_numbers`). A latent is drawn with `uniform`
        `[n, stoch]`; without it, it is the likeliest. `mask` `[n, action_size]` says which choices are allowed.
        """
        rows, size = len(numbers), self.size
        self._states.resize(rows)
        self._encoder.begin(rows)
        (before, after), index = self._states.arrays, np.empty((rows, size.stoch), np.uint8)
        before[:, : size.deter] = deter
        kernels.enter_latents(stoch, size.classes, before, size.deter)
        tokens = self._encoder.forward(numbers, slice(0, rows))
        scaled = columns / np.maximum(np.abs(columns), np.float32(1.0))
        softmax = self._step(before, scaled, tokens, after)
        if uniform is None:
            kernels.likeliest_latents(softmax, size.classes, index)
            kernels.enter_latents(index, size.classes, after, size.deter)
        else:
            kernels.draw_latents(softmax, size.classes, self.unimix, uniform, index, after, size.deter)
        return after[:, : size.deter].copy(), index, self._policy.params(after, mask)
