"""One side of bits.py: trains cases with the package that PYTHONPATH names, and records all results.

As a program this file is the child: `python bit_records.py SRC SECONDS`. It reads orders from its standard input and
answers each with a line of JSON: {"case": NAME, "steps": N | null} trains a case; {"presets": true} lists the presets.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

import numpy as np
from bit_cases import Case, find_case
from sides import check_source

if TYPE_CHECKING:
    from rl_training.experiment.config import Config

# Metrics that differ between two equal runs, and the length of a log that holds them.
WALL_CLOCK = ("seconds", "steps_per_second", "simulations_per_second", "metrics_length")
# Beyond these loop steps the metrics are one hash: a preset has thousands of steps.
_LISTED_STEPS = 50
_EVAL_EPISODES, _PRESET_EPISODES = 2, 5
_SHOWN = 40  # the longest text that is written down as it is
_NEEDS = {
    **dict.fromkeys(("LunarLander", "BipedalWalker", "CarRacing"), "Box2D"),
    **dict.fromkeys(("Reacher", "Hopper", "HalfCheetah"), "mujoco"),
    "ALE/": "ale_py",
    "MiniGrid": "minigrid",
    "pettingzoo/": "pettingzoo",
}


@dataclass
class Record:
    """All results of a training, by path: numbers and short texts as they are, the rest as a hash."""

    values: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    clock: int = 0  # of the run, for readers
    rest: Any = field(default_factory=hashlib.sha1)  # of the metrics that are not listed

    def add(self, path: str, value: Any) -> None:
        self.values.update(leaves(value, path))

    def add_metrics(self, metrics: Mapping[str, float]) -> None:
        """The metrics of one more loop step."""
        self.steps += 1
        kept = {name: value for name, value in metrics.items() if name not in WALL_CLOCK}
        if self.steps <= _LISTED_STEPS:
            self.add(f"metrics/{self.steps:03}", kept)
        else:
            self.rest.update(repr(sorted(kept.items())).encode())

    def add_snapshot(self, run: Any, path: str = "") -> None:
        """All that a checkpoint would hold."""
        self.add_checkpoint(run.snapshot(), path)
        self.clock = run.steps

    def add_checkpoint(self, snapshot: Any, path: str) -> None:
        """All that a checkpoint holds, but for the versions of packages and the id of the run, which is drawn."""
        meta = {name: value for name, value in snapshot.meta.items() if name not in ("versions", "run_id")}
        self.add(f"{path}meta", meta)
        for part in ("policy", "state", "envs"):
            self.add(f"{path}{part}", getattr(snapshot, part))
        # Older versions call the large arrays of a snapshot its memory.
        arrays = snapshot.arrays if hasattr(snapshot, "arrays") else snapshot.memory
        for name, array in arrays.items():
            self.add(f"{path}memory/{name}", dict(enumerate(array.chunks())))

    def answer(self) -> dict[str, Any]:
        if self.steps > _LISTED_STEPS:
            self.values["metrics/rest"] = self.rest.hexdigest()
        return {"values": self.values, "steps": self.steps, "clock": self.clock}


def leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """The path and the text or hash of everything in nested data, wall-clock numbers aside."""
    if path.rpartition("/")[2] in WALL_CLOCK:
        return
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        content = np.ascontiguousarray(value)
        yield path, f"{content.dtype}{list(value.shape)} {hashlib.sha1(content.tobytes()).hexdigest()}"
    elif isinstance(value, Mapping):
        if not value:
            yield path, "{}"
        for name, item in value.items():
            yield from leaves(item, f"{path}/{name}")
    elif isinstance(value, (list, tuple)) and not all(map(_plain, value)):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}/{index}")
    else:
        yield path, _text(value, path)


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, np.generic))


def _text(value: Any, path: str) -> str:
    """A number or a text as it is, if it is short; tuples and lists are the same."""
    if isinstance(value, (list, tuple)):
        value = [item.item() if isinstance(item, np.generic) else item for item in value]
    elif isinstance(value, np.generic):
        value = value.item()
    elif not _plain(value):
        raise TypeError(f"{path}: a {type(value).__name__} cannot be written down")
    text = repr(value)
    return text if len(text) <= _SHOWN else hashlib.sha1(text.encode()).hexdigest()


def needed_module(env_id: str) -> str | None:
    """The module of an extra that an environment needs, if it needs one."""
    return next((module for name, module in _NEEDS.items() if name in env_id), None)


def missing_module(env_id: str) -> str | None:
    """The module that an environment needs and that is not installed here, if there is one."""
    needed = needed_module(env_id)
    return needed if needed is not None and find_spec(needed) is None else None


def train(config: Config, steps: int) -> Record:
    """Run `steps` loop steps, an evaluation, and one more loop step."""

    def more(record: Record, run: Any) -> bool:
        return record.steps < steps

    return _trained(config, more, _EVAL_EPISODES)


def train_preset(config: Config, steps: int | None, seconds: float) -> Record:
    """Train until the first evaluation of a preset, or until the CPU time is used up; or `steps` loop steps in all."""
    settings = config.flat()
    first = settings["eval_interval"] or settings["total_timesteps"]
    end = time.process_time() + seconds

    def more(record: Record, run: Any) -> bool:
        if steps is not None:
            return record.steps < steps - 1
        return bool(run.steps < first and time.process_time() < end)

    return _trained(config, more, _PRESET_EPISODES)


def _trained(config: Config, more: Callable[[Record, Any], bool], episodes: int) -> Record:
    from rl_training.runtime.train import build

    record, run = Record(), build(config)
    try:
        run.start()
        while more(record, run):
            run.advance()
            record.add_metrics(run.metrics)
        record.add("evaluation", run.evaluate(episodes).metrics())
        run.advance()  # shows that the evaluation changed nothing
        record.add_metrics(run.metrics)
        record.add_snapshot(run)
    finally:
        run.close()
    return record


def resume(case: Case) -> Record:
    """An agent learns, is saved, loaded, and learns again; callbacks, evaluations and all."""
    from rl_training.api import Callback
    from rl_training.api.algorithms import Agent

    record = Record()

    class Watch(Callback):
        """Records the metrics of every step, and a snapshot at the end of `learn`."""

        def __init__(self, part: str) -> None:
            self._part = part

        def on_step(self, run: Any, metrics: dict[str, float]) -> None:
            record.add_metrics(metrics)

        def on_end(self, run: Any) -> None:
            record.add_snapshot(run, f"{self._part}/")

    agent = Agent(str(case.settings["env_id"]), **case.settings)
    agent.learn(case.steps, Watch("before"))
    agent.save("saved")
    agent.close()
    agent = Agent.load("saved")
    agent.learn(case.steps, Watch("after"))
    record.add("evaluation", agent.evaluate(_EVAL_EPISODES).metrics())
    agent.close()
    return record


def start_from(case: Case) -> Record:
    """An offline run is saved, and another continues online from it."""
    from rl_training.api.algorithms import Agent
    from rl_training.experiment.config import load_config

    agent = Agent(str(case.settings["env_id"]), **case.settings)
    agent.learn(case.steps)
    agent.save("saved")
    agent.close()
    return train(load_config(dict(case.settings), start_from="saved"), case.steps)


def record_of(case: Case, steps: int | None, seconds: float) -> dict[str, Any]:
    """The record of a case; `skipped` or `error` say why there is none."""
    from rl_training.experiment.config import load_config
    from rl_training.testing import tiny_config

    try:
        if case.kind == "tiny":
            settings = dict(case.settings)
            return train(tiny_config(settings.pop("algo"), case.env, **settings), case.steps).answer()
        config = load_config(case.settings["preset"] if case.kind == "preset" else dict(case.settings))
        missing = missing_module(config.flat()["env_id"])
        if missing is not None:
            return {"skipped": f"{missing} is not installed"}
        if case.kind == "preset":
            return train_preset(config, steps, seconds).answer()
        if case.kind == "train":
            return train(config, case.steps).answer()
        return (resume if case.kind == "resume" else start_from)(case).answer()
    except Exception as error:
        place = extract_tb(error.__traceback__)[-1]
        return {"error": f"{type(error).__name__} in {place.filename}, line {place.lineno}: {error}"}


def serve(src: str, seconds: float) -> None:
    """The child: answer every order."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints must not end up among the replies
    check_source(src)
    for line in sys.stdin:
        order = json.loads(line)
        if "presets" in order:
            from rl_training.experiment.presets import preset_names

            print(json.dumps(preset_names()), file=replies, flush=True)
            continue
        shutil.rmtree("saved", ignore_errors=True)
        began = time.process_time()
        answer = record_of(find_case(order["case"]), order["steps"], seconds)
        print(json.dumps(answer | {"cpu": round(time.process_time() - began, 3)}), file=replies, flush=True)


if __name__ == "__main__":
    try:
        serve(sys.argv[1], float(sys.argv[2]))
    except KeyboardInterrupt:  # the terminal tells the parent too
        sys.exit(130)
