"""What a checkpoint holds against what a run needs: a checkpoint that does not fit is one line, not a traceback."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from typing import Any

import rl_training
from rl_training.data.checked_files import DamagedError, damaged
from rl_training.types import UserError

# What code raises that is given data of another form than it wrote.
_MISFITS = (KeyError, TypeError, ValueError, RuntimeError, IndexError, AttributeError, AssertionError, ArithmeticError)
_LIBRARIES = tuple({str(Path(rl_training.__file__).parent), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib"))})


@contextmanager
def loading(path: Path | None, file: str, part: str) -> Iterator[None]:
    """Turn an error about the form of what is loaded into one that names the checkpoint's file and the part of it.

    The user's own code (a callback, a network, an environment) keeps its errors: they may be mistakes in that code.
    Nothing changes for what was never in a file (`path` is None).
    """
    try:
        yield
    except UserError as error:
        if path is None or isinstance(error, DamagedError) or _is_of_the_user(error):
            raise
        raise UserError(f"{str(path)!r}: {error}") from error
    except _MISFITS as error:
        if path is None or _is_of_the_user(error):
            raise
        raise damaged(path / file, f"its {part} does not fit: {type(error).__name__}: {error}") from error


def _is_of_the_user(error: Exception) -> bool:
    """Whether code that is neither this package's nor a library's took part in an error."""
    files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    # Compiled libraries give names such as `numpy/random/mtrand.pyx`, which are no places.
    return any(os.path.isabs(file) and not file.startswith(_LIBRARIES) for file in files)


def is_ours(part: Any) -> bool:
    """Whether something is of this package, so that what it saves is of a known form."""
    return type(part).__module__.partition(".")[0] == rl_training.__name__
