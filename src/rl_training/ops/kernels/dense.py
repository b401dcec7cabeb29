"""Products of a few rows and a matrix, at nearly the speed of the processor's multipliers.

A compiled loop keeps its sums in memory, and then loads and stores take most of the time. So the innermost part, a
tile, is written as vector instructions: the sums of a few rows and a few panels stay in registers for the whole
product. A panel is eight columns of a matrix, row after row: its weights, then its biases.

Every sum adds its products in the order of the inputs, whatever the tile: a row's result does not depend on the other
rows, to the bit. A product and a sum are rounded once where the processor can (fused multiply-add), everywhere on one
machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from rl_training.ops.kernels import lean
from rl_training.types import Array

LANES = 8  # columns of a panel
FEWEST = 4  # panels of a matrix: fewer are padded, since tiles reach over so many

_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_FLOAT_BYTES = 4


def _number(value: int) -> ir.Constant:
    return ir.Constant(ir.IntType(64), value)


def _load(builder: Any, pointer: Any) -> Any:
    """Eight numbers."""
    return builder.load(builder.bitcast(pointer, _FLOATS.as_pointer()), align=_FLOAT_BYTES)


def _repeat(builder: Any, number: Any) -> Any:
    """One number, eight times."""
    nothing, indices = ir.Constant(_FLOATS, ir.Undefined), ir.VectorType(ir.IntType(32), LANES)
    one = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(indices, None))


def _build_tile(builder: Any, rows: int, panels: int, x: Any, weights: Any, out: Any, numbers: list[Any]) -> None:
    """The instructions of a tile: pointers to its first numbers, then inputs, and how far rows of x and out are apart.

    For every input: a vector of each panel's weights, times the number that each row has there.
    """
    inputs, from_row, to_row = numbers
    add = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_FLOATS, [_FLOATS] * 3), "llvm.fmuladd.v8f32")
    size = builder.mul(builder.add(inputs, _number(1)), _number(LANES))
    columns = [builder.gep(weights, [builder.mul(size, _number(p))]) for p in range(panels)]
    sources = [builder.gep(x, [builder.mul(from_row, _number(r))]) for r in range(rows)]
    sums = [[cgutils.alloca_once(builder, _FLOATS) for _ in range(panels)] for _ in range(rows)]
    for p in range(panels):
        bias = _load(builder, builder.gep(columns[p], [builder.mul(inputs, _number(LANES))]))
        for r in range(rows):
            builder.store(bias, sums[r][p])
    with cgutils.for_range(builder, inputs) as loop:
        offset = builder.mul(loop.index, _number(LANES))
        vectors = [_load(builder, builder.gep(column, [offset])) for column in columns]
        for r in range(rows):
            number = _repeat(builder, builder.load(builder.gep(sources[r], [loop.index])))
            for p in range(panels):
                builder.store(builder.call(add, [number, vectors[p], builder.load(sums[r][p])]), sums[r][p])
    for r in range(rows):
        for p in range(panels):
            place = builder.gep(out, [builder.add(builder.mul(to_row, _number(r)), _number(LANES * p))])
            place = builder.bitcast(place, _FLOATS.as_pointer())
            builder.store(builder.load(sums[r][p]), place, align=_FLOAT_BYTES)


def _tile(rows: int, panels: int) -> Any:
    """A function for kernels: the product of so many rows and panels. Nothing checks that arrays are long enough."""

    @intrinsic  # type: ignore[untyped-decorator]
    def tile(
        _: Any, x: Any, at: Any, from_row: Any, weights: Any, start: Any, inputs: Any, out: Any, to: Any, to_row: Any
    ) -> Any:
        whole = types.int64
        signature = types.void(x, whole, whole, weights, whole, whole, out, whole, whole)

        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            kinds = signature.args

            def pointer(array: int, offset: int) -> Any:
                data = context.make_array(kinds[array])(context, builder, given[array]).data
                return builder.gep(data, [given[offset]])

            numbers = [given[5], given[2], given[8]]
            _build_tile(builder, rows, panels, pointer(0, 1), pointer(3, 4), pointer(6, 7), numbers)
            return context.get_dummy_value()

        return signature, generate

    return tile


# Eight sums of eight numbers each are enough to keep the multipliers busy. One row alone waits for the weights.
_four_rows, _two_rows, _one_row = _tile(4, 2), _tile(2, 4), _tile(1, 4)


@lean
def dense(weights: Array, start: int, inputs: int, panels: int, x: Array, stride: int, rows: int, out: Array) -> None:
    """`out[rows, 8 * panels] = x[rows, :inputs] @ matrix + bias`, all in vectors.

    Rows of x are `stride` apart. The last tiles of a row may overlap: they write the same numbers twice. Panels are
    the outer loop, so that all rows read a panel while it is near.
    """
    size, width, fours = (inputs + 1) * LANES, panels * LANES, rows // 4 * 4
    for p in range(0, panels, 2) if fours > 0 else range(0):
        first = min(p, panels - 2)
        for row in range(0, fours, 4):
            to = row * width + first * LANES
            _four_rows(x, row * stride, stride, weights, start + first * size, inputs, out, to, width)
    for p in range(0, panels, 4) if rows > fours else range(0):
        first, row = min(p, panels - 4), fours
        if rows - row >= 2:
            to = row * width + first * LANES
            _two_rows(x, row * stride, stride, weights, start + first * size, inputs, out, to, width)
            row += 2
        if row < rows:
            to = row * width + first * LANES
            _one_row(x, row * stride, stride, weights, start + first * size, inputs, out, to, width)


@lean
def pack(weights: Array, moves: Array, packed: Array) -> None:
    """Copy matrices to panels.

    A move is offset, rows and columns of the source, then offset and first column of the target, how many columns its
    panels have, and how far they are apart.
    """
    for m in range(moves.shape[0]):
        source, columns, lanes, apart = np.uint64(moves[m, 0]), moves[m, 2], moves[m, 5], moves[m, 6]
        first = moves[m, 4] % lanes
        start = moves[m, 3] + moves[m, 4] // lanes * apart + first
        for _ in range(moves[m, 1]):
            left, lane, begin = columns, first, start
            while left > 0:
                many, to = np.uint64(min(lanes - lane, left)), np.uint64(begin)
                for o in range(many):
                    packed[to + o] = weights[source + o]
                source += many
                left, begin, lane = left - (lanes - lane), begin + apart - lane, 0
            start += lanes
