"""Checks of the machine and of an environment, as findings of one line each."""

from __future__ import annotations

import importlib
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from rl_training import __version__
from rl_training.runtime.extras import EXTRAS, clash, install_command

Level = Literal["ok", "note", "PROBLEM"]

_NEEDED = ("torch", "numpy", "gymnasium", "numba")


@dataclass(frozen=True)
class Finding:
    """The result of one check: its level, its subject, and one sentence."""

    level: Level
    subject: str
    words: str

    def __str__(self) -> str:
        return f"{self.level:<8} {self.subject:<12} {self.words}"


def check_machine() -> Iterator[Finding]:
    """Versions, extras, threads, device and numba's cache."""
    yield Finding("ok", "python", platform.python_version())
    yield Finding("ok", "rl_training", __version__)
    broken = False
    for package in _NEEDED:
        try:
            importlib.import_module(package)
            yield Finding("ok", package, version(package))
        except Exception as error:
            broken = True
            yield Finding("PROBLEM", package, f"cannot be imported: {one_line(error)}")
    for extra, distribution in EXTRAS.items():
        yield _check_extra(extra, distribution)
    if not broken:
        yield _check_threads()
        yield _check_device()
        yield _check_numba_cache()
        yield _check_fast_path()


def _check_extra(extra: str, distribution: str) -> Finding:
    try:
        words = f"extra is installed ({distribution} {version(distribution)})"
    except PackageNotFoundError:
        return Finding("note", extra, f"extra is not installed: {install_command(extra)}")
    problem = clash(extra)
    return Finding("ok", extra, words) if problem is None else Finding("PROBLEM", extra, problem)


def _check_threads() -> Finding:
    import numpy  # noqa: F401  (loads the BLAS that is reported)
    import torch
    from threadpoolctl import threadpool_info

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    pools = [
        f"{pool['internal_api']} {pool['num_threads']}" for pool in threadpool_info() if pool["user_api"] == "blas"
    ]
    return Finding(
        "ok",
        "threads",
        f"{usable} of {os.cpu_count()} cores are usable; torch would use {torch.get_num_threads()}, BLAS "
        f"{', '.join(pools) or 'is unknown'}; a run uses 1 of each unless `threads` is set",
    )


def _check_device() -> Finding:
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return Finding("ok", "device", f"`auto` is cuda ({', '.join(names)})")
    return Finding("ok", "device", "`auto` is cpu; torch sees no GPU")


def _check_numba_cache() -> Finding:
    from rl_training.ops.kernels.returns import gae_kernel

    folder = _cache_folder(gae_kernel)
    if folder is None:
        return Finding(
            "note",
            "numba cache",
            "no folder is writable, so kernels are compiled in every process; set NUMBA_CACHE_DIR to a writable one",
        )
    return Finding("ok", "numba cache", f"is kept in {folder}")


def _check_fast_path() -> Finding:
    from rl_training.algorithms.layers import FAST

    return Finding(
        "ok",
        "fast path",
        f"MLPs with {', '.join(FAST)} on a CPU are trained without autograd; other activations, and hidden layers that "
        "policy and value share, are trained by it",
    )


def _cache_folder(kernel: Any) -> str | None:
    """The folder in which numba caches a compiled function, if it found a writable one."""
    path: str | None = kernel.stats.cache_path
    return path


def one_line(error: BaseException) -> str:
    """An error as a part of a sentence."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def examine(
    env_id: str | None = None, env_kwargs: Mapping[str, Any] | None = None, *, steps: int = 6_000
) -> Iterator[Finding]:
    """Check the machine, then an environment if one is named, which is stepped at most `steps` times."""
    yield from check_machine()
    if env_id is not None:
        from rl_training.runtime.doctor.env_check import check_environment

        yield from check_environment(env_id, env_kwargs or {}, steps=steps)
