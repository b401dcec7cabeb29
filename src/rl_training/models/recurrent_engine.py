"""Explicit forward and backward of `RecurrentActorCritic` on the flat buffer: the fast path on a CPU.

What does not depend on the step before is one matrix product for all steps: the inputs' contribution to the gates, and
the gradients of all weights. Each step is then one product and one compiled call, for all parts side by side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from torch import Tensor, nn

from rl_training.models.actor_critic_engine import ActorCriticEngine, CompiledActing, within_reach
from rl_training.models.mlp_engine import Workspace, gradient_of, multiply
from rl_training.models.recurrent import RecurrentActorCritic
from rl_training.ops.kernels import recurrent as kernels
from rl_training.types import Array, SpaceInfo


class CoreEngine(ABC):
    """An LSTM or a GRU on packed steps: see `rl_training.models.recurrent`.

    `backward` takes the gradient of the latest `forward`'s outputs, and overwrites the gradients of the weights; then
    `input_gradient` has something to say.
    """

    def __init__(self, core: nn.LSTM | nn.GRU | nn.LSTMCell, kept: int, running: int, *, trained: bool) -> None:
        layer = "" if isinstance(core, nn.LSTMCell) else "_l0"
        weights = [getattr(core, name + layer) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        self.from_inputs, self.from_outputs, self.input_bias, self.output_bias = (w.detach().numpy() for w in weights)
        self._gradients = [gradient_of(weight) for weight in weights] if trained else []
        self.width = size = core.hidden_size
        gates = len(self.input_bias)
        self._transposed = np.empty((size, gates), np.float32)
        # For every step: gates, output, previous output, and `kept` arrays of the kind of core.
        self._steps = Workspace((), [gates, size, size] + [size] * kept)
        # For every part: recurrent contribution to the gates, gradient of the output, output, and `running` arrays.
        self._parts = Workspace((), [gates, size, size] + [size] * running)
        self._x = self._sizes = np.zeros(0, np.int64)
        self._empty = 0  # how many of the first rows have previous outputs that are known to be 0

    def forward(self, x: Array, sizes: Array, state: Array, *, fresh: bool = False) -> tuple[Array, Array]:
        """The outputs of all steps `[N, H]`, and the state of every part after its last one.

        That all parts are `fresh`, with a state of 0, saves products.
        """
        self._x, self._sizes = x, sizes
        self._empty = len(state) if fresh else 0
        self._steps.resize(len(x))
        self._parts.resize(len(state))
        gates, outputs, before = self._steps.arrays[:3]
        recurrent, _, hidden = self._parts.arrays[:3]
        multiply(x, self.from_inputs.T, gates)
        gates += self.known_bias()
        self.start(state)
        weights = self.from_outputs.T
        if len(sizes) > 1:  # a product of a few rows is much faster with weights in this order
            np.copyto(self._transposed, weights)
            weights = self._transposed
        for rows, count in self._spans():
            before[rows] = hidden[:count]
            if rows.stop > self._empty:
                multiply(hidden[:count], weights, recurrent[:count])
            else:
                recurrent[:count] = 0.0
            self.step(rows, count)
            outputs[rows] = hidden[:count]
        return outputs, self.state()

    def backward(self, d_outputs: Array) -> None:
        self.start_back()
        for rows, count in reversed(self._spans()):
            self.step_back(rows, count, d_outputs[rows])
        d_from_inputs, d_from_outputs, d_input_bias, d_output_bias = self._gradients
        d_inputs, d_recurrent = self.gate_gradients()
        ones = np.ones((1, len(self._x)), np.float32)
        multiply(d_inputs.T, self._x, d_from_inputs)
        multiply(d_recurrent[self._empty :].T, self._steps.arrays[2][self._empty :], d_from_outputs)
        np.matmul(ones, d_inputs, out=d_input_bias[None])
        np.matmul(ones, d_recurrent, out=d_output_bias[None])

    def input_gradient(self, d_x: Array) -> None:
        """Write the gradient of the inputs `[N, in]`."""
        multiply(self.gate_gradients()[0], self.from_inputs, d_x)

    def _spans(self) -> list[tuple[slice, int]]:
        """The rows of every step, and how many they are."""
        ends = np.cumsum(self._sizes).tolist()
        return [(slice(end - count, end), count) for end, count in zip(ends, self._sizes.tolist(), strict=True)]

    @abstractmethod
    def known_bias(self) -> Array:
        """The bias that is added to the gates of all steps at once."""

    @abstractmethod
    def start(self, state: Array) -> None:
        """Set the state of every part."""

    @abstractmethod
    def state(self) -> Array:
        """The current state of every part."""

    @abstractmethod
    def step(self, rows: slice, count: int) -> None:
        """Advance the first `count` parts by a step."""

    @abstractmethod
    def start_back(self) -> None:
        """Set the gradients that flow back from later steps to 0."""

    @abstractmethod
    def step_back(self, rows: slice, count: int, d_output: Array) -> None:
        """Overwrite the gates of a step with their gradients, and store the gradient of the previous outputs."""

    @abstractmethod
    def gate_gradients(self) -> tuple[Array, Array]:
        """The gradients of the inputs' and of the recurrent contribution to the gates, `[N, gates]` each."""


class LSTMEngine(CoreEngine):
    """Keeps the previous cell and the tanh of the cell for every step, the cell and its gradient for every part."""

    def __init__(self, core: nn.LSTM | nn.LSTMCell, *, trained: bool) -> None:
        super().__init__(core, kept=2, running=2, trained=trained)

    def known_bias(self) -> Array:
        bias: Array = self.input_bias + self.output_bias
        return bias

    def start(self, state: Array) -> None:
        _, _, hidden, cell, _ = self._parts.arrays
        hidden[:], cell[:] = np.split(state, 2, axis=1)

    def state(self) -> Array:
        _, _, hidden, cell, _ = self._parts.arrays
        return np.concatenate([hidden, cell], axis=1)

    def step(self, rows: slice, count: int) -> None:
        gates, _, _, cell_before, squashed = self._steps.arrays
        recurrent, _, hidden, cell, _ = self._parts.arrays
        cell_before[rows] = cell[:count]
        kernels.lstm_forward(gates[rows], recurrent[:count], cell[:count], squashed[rows], hidden[:count])

    def start_back(self) -> None:
        _, d_hidden, _, _, d_cell = self._parts.arrays
        d_hidden[:] = d_cell[:] = 0.0

    def step_back(self, rows: slice, count: int, d_output: Array) -> None:
        gates, _, _, cell_before, squashed = (array[rows] for array in self._steps.arrays)
        _, d_hidden, _, _, d_cell = (array[:count] for array in self._parts.arrays)
        kernels.lstm_backward(gates, cell_before, squashed, d_output, d_hidden, d_cell)
        if rows.start:  # nothing learns from the gradient of the first state
            multiply(gates, self.from_outputs, d_hidden)

    def gate_gradients(self) -> tuple[Array, Array]:
        gates = self._steps.arrays[0]
        return gates, gates


class GRUEngine(CoreEngine):
    """Keeps the recurrent contribution to the candidate for every step, and the gradients of all contributions."""

    def __init__(self, core: nn.GRU, *, trained: bool) -> None:
        super().__init__(core, kept=1, running=1, trained=trained)
        self._d_recurrent = Workspace((), [len(self.input_bias)])

    def known_bias(self) -> Array:
        bias: Array = self.input_bias
        return bias

    def start(self, state: Array) -> None:
        self._parts.arrays[2][:] = state

    def state(self) -> Array:
        hidden: Array = self._parts.arrays[2].copy()
        return hidden

    def step(self, rows: slice, count: int) -> None:
        gates, _, _, inner = self._steps.arrays
        recurrent, _, hidden, _ = self._parts.arrays
        kernels.gru_forward(gates[rows], recurrent[:count], self.output_bias, inner[rows], hidden[:count])

    def start_back(self) -> None:
        self._parts.arrays[1][:] = 0.0
        self._d_recurrent.resize(len(self._x))

    def step_back(self, rows: slice, count: int, d_output: Array) -> None:
        gates, _, before, inner = (array[rows] for array in self._steps.arrays)
        _, d_hidden, _, pull = (array[:count] for array in self._parts.arrays)
        d_recurrent = self._d_recurrent.arrays[0][rows]
        kernels.gru_backward(gates, before, inner, d_output, d_hidden, d_recurrent)
        multiply(d_recurrent, self.from_outputs, pull)
        d_hidden += pull

    def gate_gradients(self) -> tuple[Array, Array]:
        return self._steps.arrays[0], self._d_recurrent.arrays[0]


class Cores:
    """The core of policy and value, or one for each, on packed steps."""

    def __init__(self, network: RecurrentActorCritic, *, trained: bool) -> None:
        self.members = [_core_engine(core, trained=trained) for core in network.cores]
        self.width = self.members[0].width

    def forward(self, obs: Array, sizes: Array, state: Array) -> tuple[list[Array], Array]:
        """The outputs of every core, and the state after the steps."""
        x, states = obs.reshape(len(obs), -1), np.split(state, len(self.members), axis=1)
        runs = [core.forward(x, sizes, part) for core, part in zip(self.members, states, strict=True)]
        return [outputs for outputs, _ in runs], np.concatenate([after for _, after in runs], axis=1)


class RecurrentActing(CompiledActing):
    """Acts with `RecurrentActorCritic`: the MLPs of policy and value, behind their cores."""

    def __init__(self, network: RecurrentActorCritic, flat: Tensor, info: SpaceInfo) -> None:
        super().__init__(network.heads, flat, info)
        self._cores = Cores(network, trained=False)

    def run(self, obs: Array, sizes: Array, state: Array, mask: Array | None) -> tuple[Array, Array, Array]:
        """Policy outputs and values of a few packed steps, and the state after them."""
        features, after = self._cores.forward(obs, sizes, state)
        return *self.heads(features[0], features[-1], mask), after


class RecurrentEngine(ActorCriticEngine):
    """Likelihoods and values of packed steps, and their gradients."""

    def __init__(self, network: RecurrentActorCritic, info: SpaceInfo) -> None:
        super().__init__(network.heads, info)
        self._cores = Cores(network, trained=True)

    def evaluate_steps(
        self, obs: Array, sizes: Array, state: Array, action: Array, mask: Array | None
    ) -> tuple[Array, Array, Array]:
        """Log-probabilities and entropies of actions, and values, of packed steps."""
        features, _ = self._cores.forward(obs, sizes, state)
        return *self.likelihood(features[0], action, mask), self.values(features[-1])

    def backward(self, d_log_prob: Array, d_entropy: float, d_value: Array) -> None:
        super().backward(d_log_prob, d_entropy, d_value)
        # The loss has overwritten the policy's outputs with their gradient.
        d_policy = self.policy.input_gradient(self._params, self._cores.width)
        d_values = self.value.input_gradient(d_value[:, None], self._cores.width)
        if len(self._cores.members) == 1:
            self._cores.members[0].backward(d_policy + d_values)
        else:
            self._cores.members[0].backward(d_policy)
            self._cores.members[1].backward(d_values)


def _core_engine(core: nn.Module, *, trained: bool) -> CoreEngine:
    if isinstance(core, nn.LSTM):
        return LSTMEngine(core, trained=trained)
    assert isinstance(core, nn.GRU)
    return GRUEngine(core, trained=trained)


def recurrent_within_reach(network: nn.Module, info: SpaceInfo) -> bool:
    """Whether the engine can compute a network: the default one for vectors, with float32 weights on a CPU."""
    if type(network) is not RecurrentActorCritic or network.encoder is not None:
        return False
    return within_reach(network.heads, info)
