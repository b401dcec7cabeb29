"""The Ray cluster of this process: one of its own that only this machine can reach, or one that is there already.

Ray connects a process to one cluster at a time, so the runs of a process share it.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from rl_training.runtime.actors.ray_cleanup import Cleanup
from rl_training.runtime.extras import import_extra
from rl_training.types import UserError

_LOG = logging.getLogger("rl_training")

# A node that does not answer three questions, a second each, is taken for dead: in at most 6 s.
HEALTH = {"health_check_period_ms": 1000, "health_check_timeout_ms": 1000, "health_check_failure_threshold": 3}
# Seconds that the head may be silent before the cluster is taken for lost. Ray itself would wait for `_RAYS_PATIENCE`
# and then end this process, with everything that was learned since the last checkpoint.
HEAD_SILENT = 8.0
_RAYS_PATIENCE = 600
_ANSWERS_WITHIN = 3.0  # seconds for a connection to the head
_RAY_SETS = ("PYTHONBREAKPOINT",)  # in the environment of whoever connects
# The names of sockets in Ray's folder may have 107 characters, of which Ray needs about 75.
_LONGEST_FOLDER = 30
_LEAST_STORE = 80 << 20  # bytes; Ray refuses less


@dataclass
class Cluster:
    """The cluster that this process is connected to. `address` is None for one of its own."""

    ray: Any
    address: str | None
    head: tuple[str, int]
    before: dict[str, str | None]  # what the environment had before
    level: int  # of Ray's logger, before
    raylet: int | None = None  # a descriptor of Ray's process on this machine
    cleanup: Cleanup | None = None  # of a cluster of its own
    users: int = 1
    _asked: float = field(default_factory=time.monotonic)
    _heard: float = field(default_factory=time.monotonic)

    @property
    def is_lost(self) -> bool:
        """Whether the head has not answered for some time, or Ray's own process on this machine has ended.

        The head is asked every second at most. Without Ray's process here, whoever touches an object is ended by Ray:
        ask before.
        """
        if self.raylet is not None and select.select([self.raylet], [], [], 0.0)[0]:
            return True
        now = time.monotonic()
        if now - self._asked >= 1.0:
            self._asked = now
            if _answers(self.head):
                self._heard = now
        return now - self._heard >= HEAD_SILENT

    def leave(self) -> None:
        """One user less; the last one ends the cluster of its own, or only the connection."""
        global _joined
        with _lock:
            self.users -= 1
            if self.users or _joined is not self:
                return
            _joined = None
            self.ray.shutdown()
            if self.raylet is not None:
                os.close(self.raylet)
            _tell_ray(self.ray, loopback=False)
            logging.getLogger("ray").setLevel(self.level)
            _restore(self.before)
            _renew_token(self.ray)
            if self.cleanup is not None:
                self.cleanup.leave()


_joined: Cluster | None = None
_lock = threading.RLock()


def join(address: str | None, *, workers: int, store: int) -> Cluster:
    """Connect to a cluster, or start one for so many workers, with so many bytes for objects under way."""
    global _joined
    with _lock:
        ray = _imported(address)
        if _joined is not None and _joined.address == address:
            _joined.users += 1
            return _joined
        if _joined is not None or ray.is_initialized():
            raise UserError(
                f"{_setting(address)}: this process is connected to another Ray cluster; end what uses it first, or "
                "call ray.shutdown()"
            )
        _joined = _own(ray, workers, store) if address is None else _foreign(ray, address)
        return _joined


def _setting(address: str | None) -> str:
    return "actors='ray'" if address is None else f"ray_address={address!r}"


def _imported(address: str | None) -> Any:
    # Ray reads some of its settings when it is imported.
    before = _set({} if address is None else _for_foreign(), {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"})
    try:
        return import_extra("ray", "ray", asked_by="actors='ray'")
    finally:
        _restore(before)


def _own(ray: Any, workers: int, store: int) -> Cluster:
    """A cluster on the loopback interface, with a token of its own, which no file has."""
    before = _set(_common(), {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)})
    level, folder = _quiet(), tempfile.mkdtemp(prefix="rl-ray-", dir=_short_folder())
    try:
        with _loopback(ray), _own_signals(), _silenced(ray):
            _renew_token(ray)
            ray.init(
                address="local",
                # Where they are placed does not depend on it; Ray starts so many processes in advance.
                num_cpus=min(workers, os.cpu_count() or 1),
                object_store_memory=_fitting_store(store),
                include_dashboard=False,
                _temp_dir=folder,
                _system_config=HEALTH,
                **_INIT,
            )
    except BaseException as error:
        _undo(ray, before, level)
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, Exception):
            raise UserError(f"actors='ray': Ray did not start ({_line(error)})") from error
        raise
    return Cluster(ray, None, _head(ray), before, level, _raylet(ray), Cleanup(folder))


def _foreign(ray: Any, address: str) -> Cluster:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in address:
        raise UserError(f"ray_address={address!r}: must be HOST:PORT of the cluster's head, such as 10.0.0.1:6379")
    if not _answers((host, int(port))):
        raise UserError(f"ray_address={address!r}: nothing answers there")
    _check_token(address)
    before, level = _set(_common(), _for_foreign()), _quiet()
    try:
        _renew_token(ray)
        on_this_machine = host in ("localhost", "127.0.0.1", "[::1]")
        with _loopback(ray) if on_this_machine else nullcontext(), _own_signals(), _silenced(ray):
            ray.init(address=address, **_INIT)
    except BaseException as error:
        _undo(ray, before, level)
        if isinstance(error, Exception):
            raise UserError(f"ray_address={address!r}: {_why_refused(error)}") from error
        raise
    return Cluster(ray, address, _head(ray), before, level, _raylet(ray))


def _check_token(address: str) -> None:
    """Ray would end this process if the file that is to have the token has none."""
    file = os.environ.get("RAY_AUTH_TOKEN_PATH")
    if not file or os.environ.get("RAY_AUTH_TOKEN") or _for_foreign()["RAY_AUTH_MODE"] != "token":
        return
    try:
        with open(file, encoding="utf-8") as stream:
            problem = None if stream.read().strip() else "it is empty"
    except OSError as error:
        problem = error.strerror or str(error)
    if problem is not None:
        raise UserError(f"ray_address={address!r}: RAY_AUTH_TOKEN_PATH={file!r} has no token ({problem})")


def _why_refused(error: Exception) -> str:
    words = _line(error)
    causes, cause = words.lower(), error.__cause__ or error.__context__
    while cause is not None:
        causes += str(cause).lower()
        cause = cause.__cause__ or cause.__context__
    if "version mismatch" in causes:
        found = words.removeprefix("Version mismatch: ")
        return f"the cluster has another version of Ray or Python; both must be the same everywhere ({found})"
    if "auth" in causes or "token" in causes:
        return (
            "the cluster does not take this token; RAY_AUTH_TOKEN, or the file ~/.ray/auth_token, must be the same as "
            "on the head"
        )
    if "node_ip_address" in causes or "raylet" in causes or "no node" in causes:
        return f"this machine is no node of the cluster; run `ray start --address=...` here first ({words})"
    return f"the cluster did not let us in; is the token the same, and is this machine a node of it? ({words})"


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


# What every connection has: nothing is shown, and nothing is uploaded.
_INIT: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "_skip_env_hook": True}


def _common() -> dict[str, str]:
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(_RAYS_PATIENCE),
    }


def _for_foreign() -> dict[str, str]:
    """Tokens are used unless the user says otherwise."""
    return {"RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "token")}


def _set(*changes: dict[str, str]) -> dict[str, str | None]:
    """Set variables of the environment; returns what was there."""
    before: dict[str, str | None] = {}
    for name, value in ((name, value) for change in changes for name, value in change.items()):
        before.setdefault(name, os.environ.get(name))
        os.environ[name] = value
    return before | {name: os.environ.get(name) for name in _RAY_SETS}


def _restore(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _undo(ray: Any, before: dict[str, str | None], level: int) -> None:
    with suppress(Exception):
        ray.shutdown()
    logging.getLogger("ray").setLevel(level)
    _restore(before)
    _renew_token(ray)


def _quiet() -> int:
    """Ray's own words are not shown: what matters of them is said by a run. Returns the level of before."""
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    return level


@contextmanager
def _silenced(ray: Any) -> Iterator[None]:
    """Connect without the thread that prints what goes wrong elsewhere in the cluster.

    What Ray's compiled part has to say in the meantime goes to the standard error of the process itself.
    """
    worker = ray._private.worker
    listen = getattr(worker, "listen_error_messages", None)
    worker.listen_error_messages = lambda *_: None
    sys.stderr.flush()
    shown, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(shown, 2)
        os.close(shown)
        os.close(nowhere)
        worker.listen_error_messages = listen


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray replaces the handler of SIGTERM: afterwards the process has its own again."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


@contextmanager
def _loopback(ray: Any) -> Iterator[None]:
    """Connect by the loopback interface: Ray would take an address of this machine that others can reach."""
    before = _set({"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"})
    _tell_ray(ray, loopback=True)
    try:
        yield
    finally:
        _restore(before)
        _tell_ray(ray, loopback=False)


def _tell_ray(ray: Any, *, loopback: bool) -> None:
    """Set what Ray reads from the environment when it is imported: somebody may have imported it before."""
    constants = ray._private.ray_constants
    constants.ENABLE_RAY_CLUSTER = not loopback and not constants.IS_WINDOWS_OR_OSX
    constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False


def _renew_token(ray: Any) -> None:
    """Let Ray read the environment's token and settings again, which it keeps from an earlier connection."""
    with suppress(AttributeError):
        ray._raylet.Config.initialize("")
        ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def _head(ray: Any) -> tuple[str, int]:
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    return host, int(port)


def _raylet(ray: Any) -> int | None:
    """A descriptor that is readable once Ray's process on this machine has ended; None where there are none such."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(ray._private.worker._global_node.raylet_socket_name)
            said = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return os.pidfd_open(struct.unpack("3i", said)[0])
    except (OSError, AttributeError):
        return None


def _answers(head: tuple[str, int]) -> bool:
    try:
        socket.create_connection((head[0].strip("[]"), head[1]), timeout=_ANSWERS_WITHIN).close()
    except OSError:
        return False
    return True


def _short_folder() -> str | None:
    return None if len(tempfile.gettempdir()) <= _LONGEST_FOLDER or not os.path.isdir("/tmp") else "/tmp"


def _fitting_store(store: int) -> int:
    store = max(store, _LEAST_STORE)
    with suppress(OSError):
        free = shutil.disk_usage("/dev/shm").free
        if free < store:
            _LOG.warning(
                f"/dev/shm has {free >> 20} MB free, and rollouts under way may take {store >> 20} MB: Ray keeps them "
                "in files, which is slower"
            )
    return store
