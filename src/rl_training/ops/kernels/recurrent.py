"""One step of an LSTM or a GRU and its gradient, without the matrix products; gates are in torch's order."""

from __future__ import annotations

import numpy as np

from rl_training.ops.kernels import jit
from rl_training.ops.kernels.acting import rational_tanh
from rl_training.types import Array

_ONE, _HALF = np.float32(1.0), np.float32(0.5)


@jit
def _logistic(x: Array) -> None:
    """The logistic function, in place on a vector, by a tanh that vectorises."""
    for k in range(x.size):
        x[k] *= _HALF
    rational_tanh(x)
    for k in range(x.size):
        x[k] = _HALF * x[k] + _HALF


@jit
def lstm_forward(gates: Array, recurrent: Array, cell: Array, squashed: Array, hidden: Array) -> None:
    """Turn `gates` `[B, 4H]` (input, forget, new, output) from the inputs' contribution into the gates' values.

    `recurrent` is the previous outputs' contribution; `cell` `[B, H]` is updated, `squashed` is its tanh.
    """
    size = cell.shape[1]
    for b in range(gates.shape[0]):
        row, added = gates[b], recurrent[b]
        for k in range(row.size):
            row[k] += added[k]
        _logistic(row[: 2 * size])
        rational_tanh(row[2 * size : 3 * size])
        _logistic(row[3 * size :])
        for k in range(size):
            cell[b, k] = row[size + k] * cell[b, k] + row[k] * row[2 * size + k]
            squashed[b, k] = cell[b, k]
        rational_tanh(squashed[b])
        for k in range(size):
            hidden[b, k] = row[3 * size + k] * squashed[b, k]


@jit
def lstm_backward(
    gates: Array, cell_before: Array, squashed: Array, d_output: Array, d_hidden: Array, d_cell: Array
) -> None:
    """Turn `gates` into their gradient and `d_cell` into that of the previous cell.

    The gradient of the output is the sum of `d_output`, from the layers above, and `d_hidden`, from the next step.
    """
    size = d_cell.shape[1]
    for b in range(gates.shape[0]):
        row = gates[b]
        for k in range(size):
            entry, kept, new, shown = row[k], row[size + k], row[2 * size + k], row[3 * size + k]
            flat = squashed[b, k]
            pull = d_output[b, k] + d_hidden[b, k]
            d_here = d_cell[b, k] + pull * shown * (_ONE - flat * flat)
            row[k] = d_here * new * entry * (_ONE - entry)
            row[size + k] = d_here * cell_before[b, k] * kept * (_ONE - kept)
            row[2 * size + k] = d_here * entry * (_ONE - new * new)
            row[3 * size + k] = pull * flat * shown * (_ONE - shown)
            d_cell[b, k] = d_here * kept


@jit
def gru_forward(gates: Array, recurrent: Array, bias: Array, inner: Array, hidden: Array) -> None:
    """Turn `gates` `[B, 3H]` (reset, update, new) from the inputs' contribution into values, and update `hidden`.

    `recurrent` and `bias` are the previous outputs' contribution; that to the new gate is kept as `inner`.
    """
    size = hidden.shape[1]
    for b in range(gates.shape[0]):
        row, added = gates[b], recurrent[b]
        for k in range(2 * size):
            row[k] += added[k] + bias[k]
        _logistic(row[: 2 * size])
        for k in range(size):
            inner[b, k] = added[2 * size + k] + bias[2 * size + k]
            row[2 * size + k] += row[k] * inner[b, k]
        rational_tanh(row[2 * size :])
        for k in range(size):
            new = row[2 * size + k]
            hidden[b, k] = new + row[size + k] * (hidden[b, k] - new)


@jit
def gru_backward(
    gates: Array, before: Array, inner: Array, d_output: Array, d_hidden: Array, d_recurrent: Array
) -> None:
    """Turn `gates` into the gradient of the inputs' contribution, and write that of the recurrent one.

    `d_hidden` is the gradient from the next step, and becomes that of the previous output without the gates' part.
    """
    size = d_hidden.shape[1]
    for b in range(gates.shape[0]):
        row, added = gates[b], d_recurrent[b]
        for k in range(size):
            reset, kept, new = row[k], row[size + k], row[2 * size + k]
            pull = d_output[b, k] + d_hidden[b, k]
            d_new = pull * (_ONE - kept) * (_ONE - new * new)
            row[k] = d_new * inner[b, k] * reset * (_ONE - reset)
            row[size + k] = pull * (before[b, k] - new) * kept * (_ONE - kept)
            row[2 * size + k] = d_new
            added[k] = row[k]
            added[size + k] = row[size + k]
            added[2 * size + k] = d_new * reset
            d_hidden[b, k] = pull * kept
