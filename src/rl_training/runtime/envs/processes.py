"""Environments in processes of their own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.util import Finalize
from typing import Any

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from rl_training.types import UserError

# How many seconds a process has to close its environment.
_PATIENCE = 5.0


class OwnProcesses(AsyncVectorEnv):
    """Environments in their own processes. Only the main process handles signals: it saves, then ends them."""

    def __init__(self, make: Callable[[], gym.Env[Any, Any]], num_envs: int) -> None:
        make = partial(_make_in_worker, make, os.getpid())
        super().__init__([make] * num_envs, autoreset_mode=AutoresetMode.DISABLED)
        # Without `close`, the interpreter would wait at exit for processes that ignore its SIGTERM.
        Finalize(self, _kill, args=(self.processes,), exitpriority=10)

    def reset_async(self, *arguments: Any, **options: Any) -> None:
        with _reporting_dead_processes():
            super().reset_async(*arguments, **options)

    def reset_wait(self, *arguments: Any, **options: Any) -> Any:
        with _reporting_dead_processes():
            return super().reset_wait(*arguments, **options)

    def step_async(self, actions: Any) -> None:
        with _reporting_dead_processes():
            super().step_async(actions)

    def step_wait(self, *arguments: Any, **options: Any) -> Any:
        with _reporting_dead_processes():
            return super().step_wait(*arguments, **options)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Ask every process to end, and kill those that do not."""
        for pipe in self.parent_pipes:
            if pipe is not None and not terminate:
                with suppress(OSError):  # it has ended by itself
                    pipe.send(("close", None))
        for process in self.processes:
            process.join(0.0 if terminate else _PATIENCE)
        _kill(self.processes)
        for pipe in self.parent_pipes:
            if pipe is not None:
                pipe.close()


@contextmanager
def _reporting_dead_processes() -> Iterator[None]:
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise UserError("an environment's process ended (killed, out of memory, or crashed)") from error


def _kill(processes: Iterable[Any]) -> None:
    for process in processes:
        process.kill()
        process.join()


def _make_in_worker(make: Callable[[], gym.Env[Any, Any]], main_process: int) -> gym.Env[Any, Any]:
    """Make an environment in a process that ignores signals: a group's signals are left to the main process."""
    if os.getpid() != main_process:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    return make()
