"""What a process has once and a run borrows: the threads of torch and BLAS, and the global random generators."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from threadpoolctl import ThreadpoolController

from rl_training.runtime.rng import global_state, restore_global_state


class _Pool(NamedTuple):
    """Reads and sets the number of threads of a BLAS library."""

    get: Callable[[], int]
    set: Callable[[int], Any]


@lru_cache(maxsize=1)
def _pools(modules: int) -> tuple[_Pool, ...]:
    """The BLAS libraries that are loaded when this many modules are; a search takes a millisecond."""
    return tuple(_pool(library) for library in ThreadpoolController().select(user_api="blas").lib_controllers)


def _pool(library: Any) -> _Pool:
    # A call of threadpoolctl takes a microsecond, one of OpenBLAS a fifth of that: `predict` makes three.
    if library.internal_api == "openblas" and library.threading_layer == "pthreads":
        for name in library.check_symbols:
            if hasattr(library.dynlib, name):
                return _Pool(getattr(library.dynlib, name), getattr(library.dynlib, name.replace("_get_", "_set_")))
    return _Pool(library.get_num_threads, library.set_num_threads)


class Threads:
    """Within the block torch has this many threads, and BLAS one; afterwards both have as many as before.

    NumPy's own threads slow it down, so only torch uses several.
    """

    __slots__ = ("_blas", "_threads", "_torch")

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def __enter__(self) -> None:
        self._torch = torch.get_num_threads()
        if self._torch != self._threads:
            torch.set_num_threads(self._threads)
        self._blas = []
        for pool in _pools(len(sys.modules)):
            number = pool.get()
            if number != 1:
                pool.set(1)
                self._blas.append((pool, number))

    def __exit__(self, *_: object) -> None:
        if torch.get_num_threads() != self._torch:
            torch.set_num_threads(self._torch)
        for pool, number in self._blas:
            pool.set(number)


class Libraries:
    """Within the block the process works for a run: with its threads, and with global generators of its own.

    At the end the process has back what it had, and the generators are kept for the next block. Blocks of one run may
    be nested.
    """

    def __init__(self, threads: int) -> None:
        self._lent = Threads(threads)
        self._depth = 0
        self._own: dict[str, Any] | None = None
        self._others: dict[str, Any] = {}

    def __enter__(self) -> Libraries:
        self._depth += 1
        if self._depth == 1:
            self._lent.__enter__()
            self._others = global_state()
            if self._own is not None:
                restore_global_state(self._own)
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._own = global_state()
            restore_global_state(self._others)
            self._lent.__exit__()
