"""A worker in a process of Ray's: what the learner calls there, and what is sent back."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from rl_training.data.frames import thinned
from rl_training.data.strips import Layout, StripWriter
from rl_training.runtime.actors.worker import Report, Request, Worker, WorkerPlan
from rl_training.runtime.libraries import Libraries
from rl_training.runtime.rng import seed_global_generators
from rl_training.runtime.spawning import end_with
from rl_training.types import Array, ArrayKind, UserError


class Rollout(NamedTuple):
    """A rollout on its way: the arrays of a strip, as much of them as was written."""

    arrays: dict[str, Array]
    rows: int
    ends: int
    report: Report


class RemotePlan(NamedTuple):
    """What a worker on another machine is made from."""

    worker: WorkerPlan
    layout: Mapping[str, ArrayKind]
    frames: int  # that an observation is a stack of
    version: str  # of this package, where the learner is


class Learner(NamedTuple):
    """The learner's process, and where it finds modules. Ray takes seconds to end the workers of one that is gone."""

    pid: int
    path: Sequence[str]


class RemoteWorker:
    """Makes a worker and lets it answer. Errors are sent back as values: not every one can be pickled."""

    def answer(self, name: str, *arguments: Any) -> tuple[str, Any, str]:
        """The kind of an answer (`answer`, `mistake`, `error`), the answer or words, and the traceback of an error."""
        try:
            return "answer", getattr(self, name)(*arguments), ""
        except UserError as error:
            return "mistake", str(error), traceback.format_exc()
        except Exception as error:
            return "error", f"{type(error).__name__}: {error}", traceback.format_exc()

    def make(self, pickled: bytes, learner: Learner | None) -> None:
        """Make the worker of a plan, for a learner on the same machine if one is given."""
        from ray import cloudpickle

        from rl_training import __version__

        if learner is not None:
            end_with(learner.pid)
            sys.path += [folder for folder in learner.path if folder not in sys.path]
        try:
            plan: RemotePlan = cloudpickle.loads(pickled)
        except ImportError as error:
            raise UserError(
                f"cannot import {error.name or str(error)!r}, which the function of the environment needs; install it "
                "there, or put its folder on PYTHONPATH before `ray start`"
            ) from error
        if plan.version != __version__:
            raise UserError(f"has rl_training {__version__}, the learner has {plan.version}; install the same")
        settings, self._frames = plan.worker.settings, plan.frames
        self._libraries = Libraries(settings["threads"]).__enter__()
        seed_global_generators(settings["seed"])
        # Written again and again: Ray has copied a rollout before the next one is asked for.
        layout = Layout(plan.layout)
        self._arrays = layout.views(bytearray(layout.size))
        self._worker = Worker(plan.worker)

    def gather(self, request: Request, weights: Mapping[str, Array]) -> Rollout:
        writer, began = StripWriter(self._arrays), time.perf_counter()
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in weights.items()}
        report = self._worker.gather(request, tensors, writer)
        rows, ends = writer.written
        arrays = {name: array[:rows] for name, array in self._arrays.items()}
        arrays |= {"last_obs": self._arrays["last_obs"], "ends": self._arrays["ends"][:ends]}
        sent = thinned(arrays) if self._frames > 1 else arrays
        return Rollout(sent, rows, ends, report._replace(seconds=time.perf_counter() - began))

    def call(self, name: str, *arguments: Any) -> Any:
        return getattr(self._worker, name)(*arguments)
