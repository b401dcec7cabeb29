"""Environments in processes of their own."""

from __future__ import annotations

import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.utils import iterate, write_to_shared_memory

from rl_training.runtime.envs.memories import Memory, memory_of
from rl_training.runtime.envs.rules import BrokenRule, Rules, space_complaints
from rl_training.types import Array, UserError

# How many seconds processes have to close their environments.
_PATIENCE = 5.0
_LONGEST = 2.0**31 - 1  # milliseconds that a process can be waited for


class OwnProcesses(AsyncVectorEnv):
    """Environments in their own processes. Only the main process handles signals: it saves, then ends them.

    A process that does not answer within `timeout` seconds, or is gone, ends the run with a line that names it.
    """

    def __init__(self, make: Callable[[], gym.Env[Any, Any]], num_envs: int, timeout: float | None = None) -> None:
        self._timeout = timeout
        self.processes: list[Any] = []
        self.parent_pipes: list[Any] = []
        make = partial(_make_in_worker, make, os.getpid())
        try:
            super().__init__([make] * num_envs, autoreset_mode=AutoresetMode.DISABLED, worker=_work)  # type: ignore[arg-type]
        except BaseException:
            self.close(terminate=True)
            raise
        # Without `close`, the interpreter would wait at exit for processes that ignore its SIGTERM.
        Finalize(self, _kill, args=(self.processes,), exitpriority=10)

    def _check_spaces(self) -> None:
        """Make the pipes report which process is gone or hangs, then compare the spaces of all environments."""
        pairs = zip(self.parent_pipes, self.processes, strict=True)
        self.parent_pipes = [_Line(pipe, process, n, self._timeout) for n, (pipe, process) in enumerate(pairs)]
        self._ask([("_check_spaces", (self.single_observation_space, self.single_action_space))] * self.num_envs)

    def memories(self) -> list[Memory]:
        """What the objects of each environment hold."""
        return self._ask([("_memory", None)] * self.num_envs)

    def step_some(self, actions: Any, mask: Array) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step the masked environments; the others stay as they are."""
        pairs = zip(mask, iterate(self.action_space, actions), strict=True)
        answers = self._ask([("step", action) if moves else ("_idle", None) for moves, action in pairs])
        _, rewards, terminations, truncations, _ = zip(*answers, strict=True)
        flags = np.array(terminations, np.bool_), np.array(truncations, np.bool_)
        return deepcopy(self.observations), np.array(rewards, np.float64), *flags, {}

    def _ask(self, messages: Sequence[tuple[str, Any]]) -> list[Any]:
        """The answers of all processes; if one is an error, it is raised when all others have been read."""
        for line, message in zip(self.parent_pipes, messages, strict=True):
            line.send(message)
        answers, errors = [], []
        for line in self.parent_pipes:
            try:
                answers.append(line.recv()[0])
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return answers

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Ask every process to end, and kill those that do not."""
        for line in self.parent_pipes:
            if not terminate:
                with suppress(UserError):  # it has ended by itself
                    line.send(("close", None))
        deadline = time.monotonic() + (0.0 if terminate else _PATIENCE)
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        _kill(self.processes)
        for line in self.parent_pipes:
            line.close()


class _Line:
    """The main process's end of the pipe to an environment's process: raises if there is no answer, or a bad one."""

    def __init__(self, pipe: Connection, process: Any, index: int, timeout: float | None) -> None:
        self._pipe, self._process, self._index, self._timeout = pipe, process, index, timeout
        self._milliseconds = min(1000 * (timeout or 0.0), _LONGEST)
        self._poll: Callable[[float], Any] = lambda milliseconds: pipe.poll(milliseconds / 1000)
        if hasattr(select, "poll"):  # a tenth of the time of `Connection.poll`, at every step
            poller = select.poll()
            poller.register(pipe.fileno(), select.POLLIN)
            self._poll = poller.poll

    def send(self, message: Any) -> None:
        try:
            self._pipe.send(message)
        except (ConnectionError, OSError) as error:
            raise self._gone() from error

    def recv(self) -> tuple[Any, bool]:
        """The answer, and that it is one."""
        if self._timeout is not None and not self._poll(self._milliseconds):
            self._process.kill()
            raise UserError(
                f"environment {self._index} did not answer within env_timeout={self._timeout:g} seconds, so its "
                "process was ended; set a larger env_timeout if it only takes long"
            )
        try:
            answer, trace = self._pipe.recv()
        except (EOFError, ConnectionError) as error:
            raise self._gone() from error
        if trace is None:
            return answer, True
        if not isinstance(answer, UserError):
            answer.add_note(f"In the process of environment {self._index}:\n{trace}")
        raise answer

    def close(self) -> None:
        self._pipe.close()

    def _gone(self) -> UserError:
        self._process.join(_PATIENCE)  # its exit code is known a moment after its pipe is closed
        code = self._process.exitcode or 0
        how = f" by signal {-code}" if code < 0 else f" with exit code {code}" if code else ""
        return UserError(
            f"environment {self._index}: its process ended{how}; it was killed, ran out of memory, crashed or exited"
        )


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


def _work(
    index: int,
    make: Callable[[], gym.Env[Any, Any]],
    pipe: Connection,
    parent_pipe: Connection,
    shared_memory: Any,
    error_queue: Any,
    mode: AutoresetMode,
    semaphore: Any,
) -> None:
    """Answer the main process until it closes the environment or is gone.

    An answer is a value and None, or an error and its traceback.
    """
    parent_pipe.close()
    try:
        env = make()
    except Exception as error:
        _send_error(pipe, error)
        return
    serve = _Server(env, index, shared_memory)
    try:
        while (asked := _received(pipe)) is not None:
            try:
                pipe.send((serve(*asked), None))
            except Exception as error:
                _send_error(pipe, error)
    finally:
        env.close()


def _send_error(pipe: Connection, error: Exception) -> None:
    with suppress(OSError):  # the main process is gone
        pipe.send((_sendable(error), traceback.format_exc()))


def _received(pipe: Connection) -> tuple[str, Any] | None:
    """The next command and its data; None for the last one, and if the main process is gone."""
    try:
        command, data = pipe.recv()
    except (EOFError, OSError):
        return None
    return None if command == "close" else (command, data)


class _Server:
    """Carries out the commands of Gymnasium's asynchronous vector environment on one environment."""

    def __init__(self, env: gym.Env[Any, Any], index: int, shared_memory: Any) -> None:
        self._env, self._index, self._shared_memory = env, index, shared_memory
        self._space = env.observation_space
        self._rules = Rules(env.observation_space, env.action_space)
        self._steps = 0

    def __call__(self, command: str, data: Any) -> Any:
        return getattr(self, command.replace("-", "_").removeprefix("_"))(data)

    def step(self, action: Any) -> Any:
        self._steps += 1
        obs, *rest = self._rules.step(self._env, action, self._index, self._steps)
        write_to_shared_memory(self._space, self._index, obs, self._shared_memory)
        return None, *rest

    def reset(self, arguments: dict[str, Any]) -> Any:
        obs, info = self._rules.reset(self._env, self._index, self._steps, **arguments)
        write_to_shared_memory(self._space, self._index, obs, self._shared_memory)
        return None, info

    def idle(self, _: None) -> Any:
        return None, 0.0, False, False, {}

    def reset_noop(self, _: None) -> Any:
        return None, {}

    def check_spaces(self, due: tuple[Any, Any]) -> None:
        for words in space_complaints(due, (self._env.observation_space, self._env.action_space)):
            raise BrokenRule(f"environment {self._index}: {words}")

    def memory(self, _: None) -> Memory:
        return memory_of(self._env)

    def call(self, data: tuple[str, Any, Any]) -> Any:
        name, arguments, options = data
        found: Any = self._env.get_wrapper_attr(name)
        return found(*arguments, **options) if callable(found) else found

    def setattr(self, data: tuple[str, Any]) -> None:
        self._env.set_wrapper_attr(*data)


def _sendable(error: Exception) -> Exception:
    """An error that can be sent to another process."""
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
