"""A packed model made ready for the compiled search: its layout checked, its scratch memory kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rl_training.ops.kernels.dense import FEWEST, LANES, pack
from rl_training.ops.kernels.exponentials import FEW
from rl_training.ops.kernels.fused_search import BLOCK, BUFFERS, Model
from rl_training.ops.sampled_policy import sample_logits
from rl_training.types import Array

if TYPE_CHECKING:
    from rl_training.ops.search import PackedModel


class _Space(NamedTuple):
    """The memory that models of one layout need."""

    weights: Array
    moves: Array
    plan: Array
    points: Array
    rows: Array
    bits: Array


class Packing:
    """Turns packed models into what the kernel reads; models of one layout share their scratch memory."""

    def __init__(self) -> None:
        self._layout: tuple[object, ...] = ()
        self._space: _Space | None = None
        self._searched = np.zeros(BLOCK, np.int64)

    def __call__(self, model: PackedModel, noise: Array | None, draws: tuple[int, int, int]) -> Model:
        """`draws` is the shape of the nodes' noise without its last axis: roots, nodes, actions."""
        supports = (model.reward_support, model.value_support)
        layout = (model.layers.tobytes(), model.weights.size, model.hidden, model.latent, model.action_size, supports)
        if self._space is None or layout != self._layout:
            _check(model)
            self._layout, self._space = layout, _space(model)
        weights, moves, plan, points, rows, bits = self._space
        pack(model.weights, moves, weights)
        spread, draw = _spread(model, draws[2]), _noise(model, noise, draws)
        return Model(
            weights=weights,
            plan=plan,
            dynamics=model.hidden[0],
            kind=model.kind,
            latent=model.latent,
            points=points,
            rewards=model.reward_support.bins,
            discount=float(model.discount),
            spread=spread,
            noise=draw,
            prior=sample_logits(spread, draw) if model.action_size else _NO_PRIOR,
            rows=rows,
            bits=bits,
            searched=self._searched,
        )


_NO_SPREAD = np.zeros(0, np.float32)
_NO_NOISE = np.zeros((0, 0, 0, 0), np.float32)
_NO_PRIOR = np.zeros((0, 0, 0), np.float32)


def _spread(model: PackedModel, actions: int) -> Array:
    if model.action_size == 0:
        return _NO_SPREAD
    if model.spread is None or model.spread.size < actions:
        raise ValueError(f"a model that samples its actions needs a spread of each of {actions} actions")
    return np.ascontiguousarray(model.spread[:actions], np.float32)


def _noise(model: PackedModel, noise: Array | None, draws: tuple[int, int, int]) -> Array:
    if model.action_size == 0:
        if noise is not None:
            raise ValueError("noise is for models that sample their actions")
        return _NO_NOISE
    wanted = (*draws, model.action_size)
    if noise is None or any(have < need for have, need in zip(noise.shape, wanted, strict=True)):
        raise ValueError(f"noise must have at least the shape {wanted}, got {None if noise is None else noise.shape}")
    return np.ascontiguousarray(noise[:, :, : draws[2]], np.float32)


def _check(model: PackedModel) -> None:
    """Complain of layers that do not fit each other: the kernel would read past the end of the weights."""
    layers, (dynamics, prediction) = model.layers, model.hidden
    if layers.shape != (dynamics + prediction + 4, 3) or layers.dtype != np.int64 or layers.strides != (24, 8):
        raise ValueError(f"{dynamics} + {prediction} hidden layers need int64 layers [{dynamics + prediction + 4}, 3]")
    if model.weights.dtype != np.float32 or model.weights.ndim != 1 or not model.weights.flags.c_contiguous:
        raise ValueError("weights must be a contiguous float32 vector")
    policy = int(layers[-2, 1])
    actions = model.action_size or policy
    inputs = model.latent + actions
    wanted = []
    for _ in range(dynamics):
        wanted.append(inputs)
        inputs = int(layers[len(wanted) - 1, 1])
    wanted += [inputs, inputs]
    inputs = model.latent
    for _ in range(prediction):
        wanted.append(inputs)
        inputs = int(layers[len(wanted) - 1, 1])
    wanted += [inputs, inputs]
    ends = layers[:, 2] + (layers[:, 0] + 1) * layers[:, 1]
    outputs = (layers[dynamics, 1], layers[dynamics + 1, 1], layers[-1, 1])
    bins = (model.latent, model.reward_support.bins, model.value_support.bins)
    if layers[:, 0].tolist() != wanted or outputs != bins or (model.action_size and policy != 2 * model.action_size):
        raise ValueError(f"the layers do not fit each other: {layers[:, :2].tolist()}")
    if layers.min() < 0 or ends.max() > model.weights.size:
        raise ValueError("the layers reach past the end of the weights")


def _space(model: PackedModel) -> _Space:
    """The plan, the copies that it needs, and the scratch memory of a layout."""
    layers = model.layers.tolist()
    plan: list[tuple[int, ...]] = []
    moves: list[tuple[int, ...]] = []
    end = index = 0
    while index < len(layers):
        rows, outputs, offset = layers[index]
        joined = [(outputs, offset)]
        if index == model.hidden[0]:
            joined.append((layers[index + 1][1], layers[index + 1][2]))
        elif index == len(layers) - 2:
            # The kernel reads the value first.
            joined.insert(0, (layers[index + 1][1], layers[index + 1][2]))
        panels = max(-(-sum(columns for columns, _ in joined) // LANES), FEWEST)
        # The rows of actions, which only the first matrix has, are not multiplied but added.
        inputs = rows if index else model.latent
        size, added = (inputs + 1) * LANES, end + panels * (inputs + 1) * LANES
        plan.append((inputs, panels, end, added, 0))
        column = 0
        for columns, source in joined:
            after = source + inputs * columns
            moves.append((source, inputs, columns, end, column, LANES, size))
            moves.append((after, rows - inputs, columns, added, column, LANES * panels, 0))
            moves.append((after + (rows - inputs) * columns, 1, columns, end + inputs * LANES, column, LANES, size))
            column += columns
        end = added + (rows - inputs) * panels * LANES
        index += len(joined)
    plan[0] = (*plan[0][:-1], model.action_size or 1)
    points = np.concatenate([model.reward_support.points, model.value_support.points])
    width = max(model.latent, points.size, FEW, *(line[1] * LANES for line in plan))
    rows_memory = aligned(BUFFERS * BLOCK * width).reshape(BUFFERS, BLOCK * width)
    table, copies = np.array(plan, np.int64), np.array(moves, np.int64)
    return _Space(aligned(end), copies, table, points, rows_memory, rows_memory.view(np.int32))


def aligned(size: int) -> Array:
    """A float32 vector of zeros that begins at a multiple of 64 bytes: others are read at up to half the speed."""
    memory = np.zeros(size + 16, np.float32)
    start = -memory.ctypes.data % 64 // 4
    return memory[start : start + size]
