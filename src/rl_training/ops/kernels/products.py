"""Products of matrices inside of kernels: for steps that hang on each other, with few rows each.

A call of BLAS for every product would take as long as the product itself. As in `dense.py`, the innermost part is
written as vector instructions, so that sums stay in registers. Weights are copied to panels of 16 columns before, since
numbers below each other in a wide matrix are far apart.

Every sum adds its products in the order of the inputs: a row's result does not depend on the other rows, to the bit.
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

_LANES = 8
_VECTORS = 2
PANEL = _VECTORS * _LANES
_FLOATS = ir.VectorType(ir.FloatType(), _LANES)
_FLOAT_BYTES = 4
# Rows that meet all panels before the next ones do: they are still near.
_NEAR = 48


def _number(value: int) -> ir.Constant:
    return ir.Constant(ir.IntType(64), value)


def _vector(builder: Any, pointer: Any, offset: Any) -> Any:
    return builder.bitcast(builder.gep(pointer, [offset]), _FLOATS.as_pointer())


def _repeat(builder: Any, number: Any) -> Any:
    """One number, eight times."""
    nothing, indices = ir.Constant(_FLOATS, ir.Undefined), ir.VectorType(ir.IntType(32), _LANES)
    one = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(indices, None))


def _build(builder: Any, rows: int, x: Any, w: Any, out: Any, apart: list[Any], rest: list[Any]) -> None:
    """The instructions of a tile: pointers to its first numbers, how far rows of x and out are apart, inputs, `add`."""
    (from_row, to_row), (inputs, add) = apart, rest
    fused = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_FLOATS, [_FLOATS] * 3), "llvm.fmuladd.v8f32"
    )
    places = [
        [
            _vector(builder, out, builder.add(builder.mul(to_row, _number(r)), _number(_LANES * v)))
            for v in range(_VECTORS)
        ]
        for r in range(rows)
    ]
    zero, keeps = ir.Constant(_FLOATS, [0.0] * _LANES), builder.icmp_signed("!=", add, _number(0))
    sums = [[cgutils.alloca_once(builder, _FLOATS) for _ in range(_VECTORS)] for _ in range(rows)]
    for r in range(rows):
        for v in range(_VECTORS):
            there = builder.load(places[r][v], align=_FLOAT_BYTES)
            builder.store(builder.select(keeps, there, zero), sums[r][v])
    sources = [builder.gep(x, [builder.mul(from_row, _number(r))]) for r in range(rows)]
    with cgutils.for_range(builder, inputs) as loop:
        start = builder.mul(loop.index, _number(PANEL))
        loaded = [
            builder.load(_vector(builder, w, builder.add(start, _number(_LANES * v))), align=_FLOAT_BYTES)
            for v in range(_VECTORS)
        ]
        for r in range(rows):
            number = _repeat(builder, builder.load(builder.gep(sources[r], [loop.index])))
            for v in range(_VECTORS):
                builder.store(builder.call(fused, [number, loaded[v], builder.load(sums[r][v])]), sums[r][v])
    for r in range(rows):
        for v in range(_VECTORS):
            builder.store(builder.load(sums[r][v]), places[r][v], align=_FLOAT_BYTES)


def _tile(rows: int) -> Any:
    """A function for kernels: the product of so many rows and a panel. Nothing checks that arrays are long enough."""

    @intrinsic  # type: ignore[untyped-decorator]
    def tile(
        _: Any, x: Any, i: Any, j: Any, w: Any, p: Any, k: Any, out: Any, r: Any, c: Any, inputs: Any, add: Any
    ) -> Any:
        whole = types.int64
        signature = types.void(x, whole, whole, w, whole, whole, out, whole, whole, whole, whole)

        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            def array(place: int) -> Any:
                return context.make_array(signature.args[place])(context, builder, given[place])

            def matrix(place: int) -> tuple[Any, Any]:
                """The number of a matrix at a row and a column, and how far rows are apart."""
                made = array(place)
                apart = builder.sdiv(builder.extract_value(made.strides, 0), _number(_FLOAT_BYTES))
                offset = builder.add(builder.mul(given[place + 1], apart), given[place + 2])
                return builder.gep(made.data, [offset]), apart

            (x_at, from_row), (out_at, to_row), packed = matrix(0), matrix(6), array(3)
            row = builder.add(builder.mul(given[4], builder.extract_value(packed.shape, 1)), given[5])
            w_at = builder.gep(packed.data, [builder.mul(row, _number(PANEL))])
            _build(builder, rows, x_at, w_at, out_at, [from_row, to_row], [given[9], given[10]])
            return context.get_dummy_value()

        return signature, generate

    return tile


# Six rows have so many sums that none waits for the one before it; those of more rows would not stay in registers.
_six_rows, _four_rows, _one_row = _tile(6), _tile(4), _tile(1)


def panels_for(inputs: int, outputs: int) -> Array:
    """Room for the panels of a matrix, `[panels, inputs, 16]`."""
    return np.zeros((-(-outputs // PANEL), inputs, PANEL), np.float32)


def pack(weight: Array, panels: Array) -> None:
    """Copy a matrix `[inputs, outputs]` to its panels."""
    inputs, outputs = weight.shape
    whole = outputs // PANEL
    panels[:whole] = weight[:, : whole * PANEL].reshape(inputs, whole, PANEL).swapaxes(0, 1)
    if whole < len(panels):
        panels[whole, :, : outputs - whole * PANEL] = weight[:, whole * PANEL :]


@lean
def product(x: Array, left: int, inputs: int, w: Array, top: int, out: Array, to: int, outputs: int, add: int) -> None:
    """`out[:, to:to + outputs] = x[:, left:left + inputs] @ w[top:top + inputs]`, or `+=`.

    `w` is in panels, and has `outputs` columns. Columns of the others must be next to each other in memory.
    """
    rows, whole, last = x.shape[0], outputs // 16 * 16, w.shape[0] - 1
    for start in range(0, rows, _NEAR):
        stop = min(start + _NEAR, rows)
        sixes = start + (stop - start) // 6 * 6
        fours = sixes + (stop - sixes) // 4 * 4
        for o in range(0, whole, 16):
            for r in range(start, sixes, 6):
                _six_rows(x, r, left, w, o // 16, top, out, r, to + o, inputs, add)
            for r in range(sixes, fours, 4):
                _four_rows(x, r, left, w, o // 16, top, out, r, to + o, inputs, add)
            for r in range(fours, stop):
                _one_row(x, r, left, w, o // 16, top, out, r, to + o, inputs, add)
    # The usual widths have nothing left here.
    for r in range(rows if whole < outputs else 0):
        for o in range(whole, outputs):
            total = out[r, to + o] if add else np.float32(0.0)
            for i in range(inputs):
                total += x[r, left + i] * w[last, top + i, o - whole]
            out[r, to + o] = total
