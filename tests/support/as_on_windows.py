"""Makes this process lack what Windows lacks, as far as files, signals and processes go; then runs what it is told.

`python as_on_windows.py JOB.json`, where the job has settings, a folder, and whether to resume. What can be imitated on
another system: modules, functions and signals that are not there, folders that cannot be opened, links that cannot be
made, names that are not allowed, and that nothing open can be moved.
"""

from __future__ import annotations

import builtins
import errno
import json
import multiprocessing.reduction
import os
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Other packages are installed for the system that this is, and decide by its name what they do.
import gymnasium  # noqa: F401
import numba  # noqa: F401
import omegaconf  # noqa: F401
import rich.console  # noqa: F401
import safetensors.torch  # noqa: F401
import threadpoolctl
import torch  # noqa: F401
from gymnasium.vector import AsyncVectorEnv  # noqa: F401

MISSING_MODULES = ("fcntl", "grp", "pwd", "resource", "termios")
MISSING_IN_OS = (
    *("fork", "forkpty", "getuid", "geteuid", "getgid", "killpg", "setsid", "sysconf", "sched_getaffinity"),
    *("memfd_create", "pidfd_open", "statvfs", "mkfifo", "fchmod"),
    *("O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY"),
)
MISSING_SIGNALS = ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGSTOP", "SIGCHLD", "pthread_sigmask")
_FORBIDDEN = set('<>:"|?*')


def _check_name(path: Any) -> None:
    if isinstance(path, (str, os.PathLike)) and _FORBIDDEN & set(Path(os.fspath(path)).name):
        raise OSError(errno.EINVAL, "the name is not allowed", str(path))


def _open_below(path: Any) -> list[str]:
    """The files of this process that are open in a folder, or the file itself."""
    place, found = os.path.realpath(path), []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            file = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue
        if file == place or file.startswith(place + os.sep):
            found.append(file)
    return found


def imitate() -> None:
    """From here on this process is as on Windows, for what is not imported yet."""
    os_open, os_fsync, os_rename, os_replace, os_mkdir = os.open, os.fsync, os.rename, os.replace, os.mkdir
    plain_open = builtins.open

    def opened(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        _check_name(path)
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "a folder cannot be opened", str(path))
        return os_open(path, flags, *rest, **named)

    def flushed(descriptor: int) -> None:
        with plain_open(f"/proc/self/fdinfo/{descriptor}") as file:
            flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags:"))
        if flags & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "only what is open for writing can be flushed")
        os_fsync(descriptor)

    def moved(source: Any, target: Any, **named: Any) -> None:
        _check_name(target)
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "exists already", str(target))
        if _open_below(source):
            raise PermissionError(errno.EACCES, f"is in use: {_open_below(source)}", str(source))
        os_rename(source, target, **named)

    def replaced(source: Any, target: Any, **named: Any) -> None:
        if _open_below(source) or _open_below(target):
            raise PermissionError(errno.EACCES, "is in use", str(target))
        os_replace(source, target, **named)

    def made(path: Any, *rest: Any, **named: Any) -> None:
        _check_name(path)
        os_mkdir(path, *rest, **named)

    def unlinked(*paths: Any, **named: Any) -> None:
        raise OSError(errno.EPERM, "links are not supported")

    os.open, os.fsync, os.rename, os.replace, os.mkdir = opened, flushed, moved, replaced, made  # type: ignore[assignment]
    os.link = os.symlink = unlinked
    shutil._use_fd_functions = False  # type: ignore[attr-defined]  # it would open folders
    for name in MISSING_MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for module, names in ((os, MISSING_IN_OS), (signal, MISSING_SIGNALS), (multiprocessing.reduction, ("DupFd",))):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    # It looks for the libraries of this process, which are those of the real system.
    threadpoolctl.sys = SimpleNamespace(**vars(sys))
    sys.platform = "win32"


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    imitate()
    from rl_training import UserError, evaluate_checkpoint, load_config, resume_training, train
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.train import Run

    class Stop(Callback):
        """Ends the process as a loss of power would, right after a checkpoint."""

        def on_checkpoint(self, run: Run, path: Path) -> None:
            if run.steps >= job["stop"]:
                os._exit(7)

    assert os.name == "posix"
    run_dir = Path(job["run_dir"])
    if job["refused"]:
        try:
            train(job["settings"], run_dir=run_dir)
        except UserError as error:
            print(error)
        return
    if job["resume"]:
        resume_training(run_dir)
        metrics = evaluate_checkpoint(run_dir, num_episodes=1)
        assert metrics["eval_episodes"] == 1.0
        assert load_config(run_dir / "config.yaml").flat() == load_config(job["settings"]).flat()
    else:
        run_dir.mkdir()  # an empty folder takes the run, as elsewhere
        train(job["settings"], run_dir=run_dir, callbacks=[Stop()] if job["stop"] else [])


if __name__ == "__main__":
    main()
