"""What the tests of runs share: tiny settings, a deep comparison of two runs, and environments made for one purpose.

Started as a program it trains or resumes in a process of its own: `python run_helpers.py JOB.json`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_training.cli import main
from rl_training.experiment.fields import settings_of
from rl_training.experiment.manager import RunFolder
from rl_training.experiment.notes import recall, remember
from rl_training.experiment.registry import REGISTRY, load_spec
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoints.catalogue import find_checkpoint
from rl_training.runtime.checkpoints.checkpoint import Checkpoint, read_checkpoint
from rl_training.runtime.clock import by_wall_clock

TESTS = Path(__file__).resolve().parent

# 24 environment steps between two phases of learning; or an update each, of a dataset that fits any environment. An
# algorithm takes what it knows.
TINY: dict[str, Any] = {
    "algo": "ppo",
    "env_id": "CartPole-v1",
    "num_envs": 3,
    "hidden_sizes": [8],
    "total_timesteps": 240,
    "eval_episodes": 2,
    "checkpoint_interval": 96,
    "log_interval": 24,
    "batch_size": 12,
    "n_steps": 8,
    "n_epochs": 2,
    "buffer_size": 150,
    "learning_starts": 48,
    "train_every": 24,
    "updates_per_step": 0.25,
    "target_update_interval": 5,
    "policy_delay": 2,
    "n_critics": 2,
    "n_quantiles": 4,
    "cql_samples": 2,
    "num_simulations": 4,
    "unroll_steps": 2,
    "latent_size": 8,
    "prefix_size": 8,
    "projection_size": 8,
    "size": "xxs",
    "batch_length": 4,
    "imagination_horizon": 3,
    "dataset": "made_up_data:noise",
    "bc_baseline_updates": 1,
}
# Pendulum takes real numbers, and its episodes are long.
TINY_CONTINUOUS: dict[str, Any] = {"env_id": "Pendulum-v1", "time_limit": 20}

# Everything that remembers something between two steps.
EVERYTHING_ACTIVE: dict[str, Any] = {
    "normalize_obs": True,
    "normalize_reward": True,
    "learning_rate": 3e-3,
    "learning_rate_schedule": "cosine",
    "ent_coef": 0.02,
    "ent_coef_schedule": "linear",
    "vf_coef_warmup_steps": 100,
    "eval_interval": 60,
    "early_stopping": [{"patience": 50}, {"target_value": 1e9, "sustained": 2}],
}


def tiny(folder: Path | None = None, **changes: Any) -> dict[str, Any]:
    """Settings of a run that takes a fraction of a second; an algorithm of one's own has those of PPO."""
    algo = changes.get("algo", TINY["algo"])
    spec = load_spec(algo if algo in REGISTRY else TINY["algo"])
    base = TINY if "discrete" in spec.capabilities.actions else TINY | TINY_CONTINUOUS
    settings = {key: value for key, value in base.items() if key in settings_of(spec)} | changes
    return settings if folder is None else settings | {"output_dir": str(folder)}


def pace(algo: str) -> int:
    """By how much the clock of a tiny run moves at once: 24 steps of synchronous environments, or one update."""
    return 24 if load_spec(algo).loop().collects else 1


def differences(left: Any, right: Any, where: str = "") -> list[str]:
    """Where two nested values differ, to the bit; wall-clock entries are passed over."""
    if type(left) is not type(right):
        return [f"{where}: {type(left).__name__} and {type(right).__name__}"]
    if isinstance(left, torch.Tensor):
        equal = left.dtype == right.dtype and left.shape == right.shape and _bits(left) == _bits(right)
        return [] if equal else [f"{where}: tensors differ"]
    if isinstance(left, Mapping):
        if left.keys() != right.keys():
            return [f"{where}: keys {sorted(map(str, left.keys() ^ right.keys()))} are in one only"]
        kept = [key for key in left if not by_wall_clock(str(key))]
        return [found for key in kept for found in differences(left[key], right[key], f"{where}.{key}")]
    if isinstance(left, (list, tuple)):
        if len(left) != len(right):
            return [f"{where}: {len(left)} and {len(right)} items"]
        pairs = enumerate(zip(left, right, strict=True))
        return [found for index, (a, b) in pairs for found in differences(a, b, f"{where}[{index}]")]
    same = left == right or (left != left and right != right)
    return [] if same else [f"{where}: {left!r} and {right!r}"]


def _bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().cpu().contiguous().numpy().tobytes())


def metrics_rows(run_dir: str | Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl without what the wall clock decides."""
    lines = (Path(run_dir) / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if not by_wall_clock(key)} for line in lines]


def metadata(run_dir: str | Path) -> dict[str, Any]:
    return dict(json.loads((Path(run_dir) / "metadata.json").read_text()))


def latest(run_dir: str | Path, which: str = "latest") -> Checkpoint:
    """A checkpoint of a run's folder, the latest if none is named."""
    return read_checkpoint(find_checkpoint(run_dir, which))


def checkpoint_names(run_dir: str | Path) -> list[str]:
    """The names of the visible checkpoints, by step."""
    found = [path.name for path in (Path(run_dir) / "checkpoints").glob("step_*")]
    return sorted(found, key=lambda name: int(name.removeprefix("step_")))


def run_differences(left: str | Path, right: str | Path) -> list[str]:
    """Where two runs differ: weights, optimiser, generators, environments, memories, callbacks and metrics."""
    a, b = latest(left), latest(right)
    # The length of metrics.jsonl in bytes depends on how many digits the seconds have.
    for checkpoint in (a, b):
        checkpoint.state["trainer"].pop("metrics_length")
    return [
        *differences(a.policy, b.policy, "policy"),
        *differences(a.state, b.state, "state"),
        *differences(a.envs, b.envs, "envs"),
        *differences(memory_contents(a), memory_contents(b), "memory"),
        *differences(a.meta["eval"], b.meta["eval"], "meta.eval"),
        *differences(a.meta["resume"], b.meta["resume"], "meta.resume"),
        *differences(metrics_rows(left), metrics_rows(right), "metrics"),
    ]


def memory_contents(checkpoint: Checkpoint) -> dict[str, list[torch.Tensor]]:
    """A copy of the large arrays that a checkpoint holds, chunk by chunk."""
    return {
        name: [torch.from_numpy(np.array(chunk)) for chunk in array.chunks()]
        for name, array in checkpoint.arrays.items()
    }


def training_differences(left: Checkpoint, right: Checkpoint) -> list[str]:
    """Where two trainings differ, whatever was judged or written about them."""
    return [
        *differences(left.policy, right.policy, "policy"),
        *differences(left.state["algorithm"], right.state["algorithm"], "algorithm"),
        *differences(left.state["rng"], right.state["rng"], "rng"),
        *differences(left.envs, right.envs, "envs"),
        *differences(memory_contents(left), memory_contents(right), "memory"),
    ]


class Pulled(Exception):
    """The plug is pulled: a run ends in the middle, without a goodbye."""


class PullPlug(Callback):
    """Ends the run by an exception at the first step beyond `after`, before anything is logged or saved."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        if run.steps > self.after:
            raise Pulled


def own_copy(run: Path, place: Path) -> Path:
    """A copy of a run that goes on without a word, as if its user had trained it there."""
    run_id = RunFolder(run).run_id
    shutil.copytree(run, place)
    remember(place, run_id, recall(run, run_id))
    return place


def cut_and_resume(
    config: dict[str, Any], run_dir: Path, *, after: int, between: Callable[[], Any] = lambda: None
) -> Any:
    """Train until just beyond `after`, lose the process's memory, and go on from the folder."""
    from rl_training import resume_training, train

    with pytest.raises(Pulled):
        train(config, run_dir=run_dir, callbacks=[PullPlug(after)])
    between()
    return resume_training(run_dir)


class SlowAfter(Callback):
    """Says in a file that a step has been passed, and takes its time from then on, so that a signal arrives."""

    def __init__(self, after: int, file: str) -> None:
        self.after = after
        self.file = Path(file)

    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        if run.steps > self.after:
            self.file.touch()
            time.sleep(0.2)


@contextmanager
def own_process(folder: Path, **job: Any) -> Iterator[subprocess.Popen[str]]:
    """A fresh interpreter that does a job; it is ended with the block. Hash seeds differ between processes."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"job-{time.monotonic_ns()}.json"
    file.write_text(json.dumps(job))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    process = subprocess.Popen(
        [sys.executable, str(TESTS / "run_helpers.py"), str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for(file: Path, process: subprocess.Popen[str], seconds: float = 60.0) -> None:
    """Until a file is there; a process that ends before has failed."""
    deadline = time.monotonic() + seconds
    while not file.exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, f"{file} did not appear"
        time.sleep(0.005)


def do_job(job: dict[str, Any]) -> None:
    """Train or resume as a job says."""
    from rl_training import resume_training, train

    callbacks = [SlowAfter(job["slow_after"], job["signal_file"])] if "slow_after" in job else []
    if "config" in job:
        train(job["config"], run_dir=job["run_dir"], callbacks=callbacks)
    else:
        resume_training(job["run_dir"], callbacks=callbacks)


@dataclass(frozen=True)
class Said:
    """What the command said, and its exit code."""

    code: int
    out: str
    err: str


class Command:
    """The command `rl-training`, called in this process as the console script calls it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        monkeypatch.setattr(sys, "path", list(sys.path))  # references add the current folder to it

    def __call__(self, *arguments: Any) -> Said:
        self._monkeypatch.setattr(sys, "argv", ["rl-training", *map(str, arguments)])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        said = self._capsys.readouterr()
        code = end.value.code
        return Said(code if isinstance(code, int) else 0 if code is None else 1, said.out, said.err)


def as_overrides(settings: Mapping[str, Any]) -> list[str]:
    """Settings as the command takes them."""
    return [f"{key}={json.dumps(value) if not isinstance(value, str) else value}" for key, value in settings.items()]


class Walk(gym.Env[Any, Any]):
    """A random walk: its seed decides every step of the episode; ends beyond +-1 or by a time limit from outside."""

    observation_space: Any = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space: Any = gym.spaces.Discrete(2)

    def __init__(self, noise: float = 0.2) -> None:
        self.noise = noise
        self.place = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.np_random.normal(0.0, 0.1, 2)
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place = self.place + self.np_random.normal(0.1 * (2 * int(action) - 1), self.noise, 2)
        return self.observe(), float(self.place[0]), bool(np.abs(self.place).max() > 1.0), False, {}

    def observe(self) -> Any:
        return self.place.astype(np.float32)


class DiceWalk(Walk):
    """A walk whose rewards are drawn from numpy's global generator, as careless environments do."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward + float(np.random.normal()), terminated, truncated, info


class SavableWalk(Walk):
    """A walk that gives and takes its own state, and whose seed alone would not bring it back."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        return super().reset(seed=None if seed is None else seed + self.resets, options=options)

    def get_state(self) -> dict[str, Any]:
        return {"place": self.place, "rng": self.np_random.bit_generator.state, "resets": self.resets}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.place = state["place"]
        self.np_random.bit_generator.state = state["rng"]
        self.resets = state["resets"]


class UnseededWalk(Walk):
    """A walk that does not listen to its seed, so that an episode cannot be replayed."""

    made = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        type(self).made += 1
        return super().reset(seed=type(self).made, options=options)


class SavableWalks(SyncVectorEnv):
    """A vector environment with a state of its own, in whichever autoreset mode."""

    def get_state(self) -> dict[str, Any]:
        walks = [env.unwrapped for env in self.envs]
        return {
            "walks": [{"place": walk.place, "rng": walk.np_random.bit_generator.state} for walk in walks],
            "autoreset": self._autoreset_envs,
            "limits": [env._elapsed_steps for env in self.envs],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._autoreset_envs = state["autoreset"]
        for env, walk, elapsed in zip(self.envs, state["walks"], state["limits"], strict=True):
            env.unwrapped.place = walk["place"]
            env.unwrapped.np_random.bit_generator.state = walk["rng"]
            env._elapsed_steps = elapsed


def limited_walk(noise: float = 0.2) -> gym.Env[Any, Any]:
    return gym.wrappers.TimeLimit(Walk(noise), 11)


def limited_savable_walk() -> gym.Env[Any, Any]:
    return gym.wrappers.TimeLimit(SavableWalk(), 11)


def savable_walks(num_envs: int, mode: str = "NextStep") -> SavableWalks:
    return SavableWalks([limited_walk] * num_envs, autoreset_mode=AutoresetMode(mode))


def walks(num_envs: int, mode: str = "NextStep") -> SyncVectorEnv:
    """Walks that reset themselves and cannot be asked for their state."""
    return SyncVectorEnv([limited_walk] * num_envs, autoreset_mode=AutoresetMode(mode))


class Recording(Callback):
    """Notes every hook that is called, with the clock."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.evaluations: list[dict[str, float]] = []
        self.checkpoints: list[Path] = []

    def on_start(self, run: Any) -> None:
        self.calls.append(("start", run.steps))

    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        self.calls.append(("step", run.steps))

    def on_eval(self, run: Any, metrics: dict[str, float]) -> None:
        self.calls.append(("eval", run.steps))
        self.evaluations.append(dict(metrics))

    def on_checkpoint(self, run: Any, path: Path) -> None:
        self.calls.append(("checkpoint", run.steps))
        self.checkpoints.append(path)

    def on_end(self, run: Any) -> None:
        self.calls.append(("end", run.steps))

    def at(self, hook: str) -> list[int]:
        return [steps for name, steps in self.calls if name == hook]


if __name__ == "__main__":
    do_job(json.loads(Path(sys.argv[1]).read_text()))
