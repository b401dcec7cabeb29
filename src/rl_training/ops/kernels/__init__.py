"""Compiled loops, one file per purpose, all by one shim: no `fastmath`, no `parallel`, so results are reproducible."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])
_STAMP = "rl_training_kernels.sha256"  # beside compiled code: of which sources it was made


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


def pasted(function: F) -> F:
    """`lean` for a large function that one or two kernels call.

    It is compiled as a part of each caller and not by itself, since the time goes into optimising it, once in each.
    """
    return _compiled(function, _nrt=False, inline="always")


def _compiled(function: F, **options: Any) -> F:
    try:
        kernel = numba.njit(cache=True, error_model="numpy", **options)(function)
    except RuntimeError:  # numba found no folder that it may write its cache to
        return numba.njit(error_model="numpy", **options)(function)  # type: ignore[no-any-return]
    forget_other_versions(Path(kernel.stats.cache_path))
    _name_apart(kernel._cache._cache_file)
    return kernel  # type: ignore[no-any-return]


def _name_apart(cache_file: Any) -> None:
    """Give each compiled form a file name that no other process can choose.

    Numba counts: 1, 2, 3. Two processes that compile one kernel for different types at the same time both choose the
    same number, and from then on every process loads the code of one for the types of the other, and fails.
    """
    numbered = cache_file._data_name
    cache_file._data_name = lambda number: f"{numbered(number).removesuffix('.nbc')}.{uuid.uuid4().hex[:12]}.nbc"


@cache
def forget_other_versions(folder: Path) -> None:
    """Delete the compiled code in a folder if it was made of other sources than these.

    Numba compares a kernel with the file that it is in, and with no other one. So it would go on with old code after a
    change of a function that the kernel calls, and end in a traceback where a type has another name.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stamp, now = folder / _STAMP, _digest()
        if stamp.is_file() and stamp.read_text() == now:
            return
        for compiled in (*folder.glob("*.nbi"), *folder.glob("*.nbc")):
            compiled.unlink(missing_ok=True)
        stamp.write_text(now)
    except OSError:  # a folder that may only be read, which numba does not write to either
        pass


@cache
def _digest() -> str:
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
