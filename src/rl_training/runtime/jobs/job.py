"""One run as a job that any process can do, packed so that it can be sent to one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from gymnasium.vector.utils import CloudpickleWrapper

from rl_training.experiment.config import Config, load_config
from rl_training.experiment.references import found_in, import_apart
from rl_training.runtime.arguments import AnyCallback
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.envs.make import EnvFactory
from rl_training.runtime.train import AnyConfig, TrainResult, code_of, train
from rl_training.runtime.workflows import resume_training
from rl_training.types import UserError


@dataclass(frozen=True)
class Job:
    """One run: with a config it is trained, in a new folder or in `run_dir`; without one `run_dir` is resumed.

    `cpus` and `gpus` are what it needs of a cluster; `name` is what lines about it begin with.
    """

    name: str
    config: AnyConfig | None = None
    run_dir: Path | None = None
    callbacks: tuple[AnyCallback, ...] = ()
    env_factory: EnvFactory | None = None
    trust: bool = False
    cpus: int = 1
    gpus: int = 0

    def do(self, watching: Sequence[Callback] = ()) -> TrainResult:
        """Train or resume in this process."""
        callbacks = [*self.callbacks, *watching]
        factory, trust = self.env_factory, self.trust
        if self.config is not None:
            return train(self.config, run_dir=self.run_dir, callbacks=callbacks, env_factory=factory, trust=trust)
        if self.run_dir is None:
            raise UserError(f"{self.name}: there is neither a config to train nor a run to resume")
        return resume_training(self.run_dir, callbacks=callbacks, env_factory=factory, trust=trust)

    @property
    def folder(self) -> Path:
        """The folder that the run's own folder is in."""
        if self.run_dir is not None:
            return self.run_dir.parent
        settings = self.config.flat() if isinstance(self.config, Config) else self.config
        return Path(str(settings.get("output_dir", "."))) if isinstance(settings, Mapping) else Path()


class Word(NamedTuple):
    """What the process of a job says: that it is `ready`, what was `told` or `logged`, or how it ended."""

    kind: str
    value: Any = None


# The last word of every job: its result, what signals left of it, a user's mistake, another error, a sudden death.
ENDINGS = ("done", "interrupted", "unbegun", "refused", "failed", "lost")


class Engine(Protocol):
    """Does jobs in other processes, and hears what they say."""

    def start(self, number: int, job: Job) -> None:
        """Begin a job."""

    def wait(self, seconds: float) -> Sequence[tuple[int, Word]]:
        """What jobs have said, after so many seconds at the latest. A job says nothing after its ending."""

    def stop(self) -> None:
        """Let every run save at its next safe point, and end."""

    def close(self) -> None:
        """End what is still running, at once."""


class _Carried(NamedTuple):
    """A job as it crosses, and the folders in which this process has found the code that it names."""

    job: Job
    places: Sequence[tuple[str, str, str | None]]


def packed(job: Job) -> bytes:
    """A job as bytes; raises if something of it cannot leave this process. The script's own functions can."""
    config = None
    if job.config is not None:
        config = job.config if isinstance(job.config, Config) else load_config(job.config, trust=job.trust)
    objects = () if config is None else config.objects.items()
    for key, value in (*(("callbacks", each) for each in job.callbacks), ("env_factory", job.env_factory), *objects):
        try:
            _bytes_of(value)
        except Exception as error:  # whatever the object's own methods raise
            name = getattr(value, "__qualname__", None) or type(value).__qualname__
            why = " ".join(str(error).split())
            raise UserError(
                f"{key}={name}: cannot be sent to another process ({why}); give it by name in the config, or train one "
                "run after the other"
            ) from None
    places = []
    if config is not None:
        places = list(_places(config, job.env_factory))
        job = replace(job, config=config.given())
    return _bytes_of(_Carried(job, places))


def _bytes_of(value: Any) -> bytes:
    """What a pipe would send of a value; functions and classes of a script are sent themselves."""
    return bytes(ForkingPickler.dumps(CloudpickleWrapper(value)))


def _places(config: Config, env_factory: EnvFactory | None) -> Iterator[tuple[str, str, str | None]]:
    """Where the modules are that a config names, as far as they are imported: others are found as they are here."""
    for key, text in code_of(config, env_factory):
        module = text.partition(":")[0]
        if module == "__main__":
            raise UserError(
                f"{key}={text!r}: is in the script itself, which another process does not import; put it into a module "
                "of its own"
            )
        if module in sys.modules:
            yield key, text, found_in(module)


def unpacked(pipe: Connection) -> Job:
    """The packed job that comes through a pipe, with the code that it names."""
    try:
        job, places = pipe.recv().fn
    except (ImportError, AttributeError) as error:
        raise UserError(f"code of the run cannot be imported in its process: {error}") from error
    for key, text, folder in places:
        import_apart(text, key=key, folder=folder, barred=())
    assert isinstance(job, Job)
    return job
