"""Compiled loops, one file per purpose, all by one shim: no `fastmath`, no `parallel`, so results are reproducible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile on first call, cached on disk where some folder is writable.

    A division by zero is inf or nan, as in NumPy: a check at every division would keep loops from being vectorised.
    """
    return _compiled(function)


def lean(function: F) -> F:
    """`jit` for a function that makes no array, and may be called very often: it does not count references to arrays.

    Views are fine. A function that would have to allocate memory does not compile.
    """
    return _compiled(function, _nrt=False)


def inlined(function: F) -> F:
    """`lean` for a small function that kernels call in their innermost loops.

    It becomes a part of each caller: an array is a dozen numbers, which a call would copy each time.
    """
    return _compiled(function, _nrt=False, forceinline=True)


def _compiled(function: F, **options: bool) -> F:
    try:
        return numba.njit(cache=True, error_model="numpy", **options)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # numba found no folder that it may write its cache to
        return numba.njit(error_model="numpy", **options)(function)  # type: ignore[no-any-return]
