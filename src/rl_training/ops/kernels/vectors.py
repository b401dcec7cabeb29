"""What the innermost loops of kernels are made of, so that these are vectorised: exp and its kin, and sums of vectors.

A compiled loop has no vector `exp` of its own: with `math.exp` in it, it goes number by number. Nor may a compiler add
numbers in another order than it was told: here sums are kept in vectors, 16 chains side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from rl_training.ops.kernels import inlined
from rl_training.types import Array

_ONE, _HALF = np.float32(1.0), np.float32(0.5)
# Adding this to a small number rounds it to an integer, which is then in the lowest bits.
_ROUNDING = np.float32(12582912.0)
_FLOAT = ir.FloatType()
_LANES, _CHAINS = 8, 2
_STRIDE = _LANES * _CHAINS
_FLOATS = ir.VectorType(_FLOAT, _LANES)
_FLOAT_BYTES = 4
# Builds the instructions that take new vectors, or a number, into a chain.
_Step = Callable[[Any, Any, list[Any]], Any]


@intrinsic  # type: ignore[untyped-decorator]
def _power_of_two(_: Any, rounded: Any) -> Any:
    """2^n of an integer n to which `_ROUNDING` was added: n is moved into the exponent bits."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        whole = ir.IntType(32)
        moved = builder.shl(builder.bitcast(given[0], whole), ir.Constant(whole, 23))
        return builder.bitcast(builder.add(moved, ir.Constant(whole, 127 << 23)), _FLOAT)

    return types.float32(types.float32), generate


@intrinsic  # type: ignore[untyped-decorator]
def fused(_: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z of float32, rounded once where the processor can."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kind = ir.FunctionType(_FLOAT, [_FLOAT] * 3)
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.fmuladd.f32"), given)

    return types.float32(types.float32, types.float32, types.float32), generate


@inlined
def exp32(x: float) -> float:
    """exp of a float32, within 2e-7 relative from -87 to 88; beyond these it stays what it is there.

    x = n ln 2 + r: a polynomial gives exp(r) - 1. Comparisons with nan are false, so nan stays nan.
    """
    x = np.float32(-87.0) if x < np.float32(-87.0) else x
    x = np.float32(88.0) if x > np.float32(88.0) else x
    rounded = fused(x, np.float32(1.44269504), _ROUNDING)
    n = rounded - _ROUNDING
    # The first part of ln 2 has 12 bits, so its product with n is exact.
    r = fused(n, np.float32(-3.194618329871446e-05), fused(n, np.float32(-0.693115234375), x))
    p = fused(np.float32(0.001393368816934526), r, np.float32(0.008363205008208752))
    p = fused(fused(p, r, np.float32(0.041666463017463684)), r, np.float32(0.16666576266288757))
    p = fused(fused(p, r, _HALF), r * r, r)
    power: float = fused(p, _power_of_two(rounded), _power_of_two(rounded))
    return power


@inlined
def logistic32(x: float) -> float:
    """1 / (1 + exp(-x)) of a float32."""
    share: float = _ONE / (_ONE + exp32(-x))
    return share


@inlined
def tanh32(x: float) -> float:
    """tanh of a float32, within 2e-7."""
    squashed: float = _ONE - np.float32(2.0) / (exp32(np.float32(2.0) * x) + _ONE)
    return squashed


def _add_products(builder: Any, chain: Any, loaded: list[Any]) -> Any:
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.fmuladd.v8f32"), [*loaded, chain])


def _add(builder: Any, one: Any, other: list[Any]) -> Any:
    return builder.fadd(one, other[0])


def _higher(builder: Any, one: Any, other: list[Any]) -> Any:
    return builder.select(builder.fcmp_ordered(">", one, other[0]), one, other[0])


def _chains(builder: Any, arrays: list[Any], many: Any, first: float, step: _Step) -> list[Any]:
    """Take `many` times 16 numbers of the arrays into two vectors, that start with eight times `first`."""
    chains = [cgutils.alloca_once_value(builder, ir.Constant(_FLOATS, [first] * _LANES)) for _ in range(_CHAINS)]
    with cgutils.for_range(builder, many) as loop:
        start = builder.mul(loop.index, ir.Constant(loop.index.type, _STRIDE))
        for k, chain in enumerate(chains):
            place = builder.add(start, ir.Constant(start.type, _LANES * k))
            pointers = [builder.bitcast(builder.gep(data, [place]), _FLOATS.as_pointer()) for data in arrays]
            loaded = [builder.load(pointer, align=_FLOAT_BYTES) for pointer in pointers]
            builder.store(step(builder, builder.load(chain), loaded), chain)
    return [builder.load(chain) for chain in chains]


def _joined(builder: Any, chains: list[Any], join: _Step) -> Any:
    """One number of two vectors, by halves."""
    vector = join(builder, chains[0], [chains[1]])
    numbers = [builder.extract_element(vector, ir.Constant(ir.IntType(32), k)) for k in range(_LANES)]
    while len(numbers) > 1:
        half = len(numbers) // 2
        numbers = [join(builder, a, [b]) for a, b in zip(numbers[:half], numbers[half:], strict=True)]
    return numbers[0]


def _generator(first: float, step: _Step, join: _Step) -> Any:
    """What builds the instructions of a function of arrays and of how many times 16 numbers are taken of each."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kinds, values = signature.args[:-1], given[:-1]
        arrays = [context.make_array(kind)(context, builder, v).data for kind, v in zip(kinds, values, strict=True)]
        return _joined(builder, _chains(builder, arrays, given[-1], first, step), join)

    return generate


@intrinsic  # type: ignore[untyped-decorator]
def _dot(_: Any, x: Any, y: Any, many: Any) -> Any:
    return types.float32(x, y, types.int64), _generator(0.0, _add_products, _add)


@intrinsic  # type: ignore[untyped-decorator]
def _total(_: Any, x: Any, many: Any) -> Any:
    return types.float32(x, types.int64), _generator(0.0, _add, _add)


@intrinsic  # type: ignore[untyped-decorator]
def _largest(_: Any, x: Any, many: Any) -> Any:
    return types.float32(x, types.int64), _generator(float("-inf"), _higher, _higher)


@inlined
def dot(x: Array, y: Array) -> float:
    """The sum of products of two vectors of float32."""
    many = x.size // _STRIDE
    added: float = _dot(x, y, many)
    for i in range(many * _STRIDE, x.size):
        added += x[i] * y[i]
    return added


@inlined
def total(x: Array) -> float:
    """The sum of a vector of float32."""
    many = x.size // _STRIDE
    added: float = _total(x, many)
    for i in range(many * _STRIDE, x.size):
        added += x[i]
    return added


@inlined
def largest(x: Array) -> float:
    """The largest number of a vector of float32."""
    many = x.size // _STRIDE
    high: float = _largest(x, many)
    for i in range(many * _STRIDE, x.size):
        high = max(high, x[i])
    return high
