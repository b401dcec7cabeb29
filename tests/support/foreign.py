"""Runs of somebody else: copies whose checkpoints name other code, and modules that say when they are imported."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forgery import reseal
from rl_training.runtime.checkpoints.catalogue import find_checkpoint

# An environment, a network, an algorithm, a callback and a dataset, whichever is asked for.
_MODULE = """
from pathlib import Path

import gymnasium as gym
import run_helpers
import torch
from rl_training.algorithms.ppo import SPEC

Path({mark!r}).touch()
WHERE = __file__


class Net(torch.nn.Module):
    def __init__(self, info, config):
        super().__init__()
        self.layer = torch.nn.Linear(info.obs_shape[0], 3)

    def forward(self, obs):
        out = self.layer(obs)
        return out[:, :2], out[:, 2]


class Cb(run_helpers.Callback):
    pass


def make(noise=0.2):
    return run_helpers.limited_walk(noise)


def data(info):
    import made_up_data

    return made_up_data.noise(info)
"""


class Code:
    """A module of one's own, and whether it was imported."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.file, self.mark = folder / f"{name}.py", folder / f"{name}.imported"
        folder.mkdir(parents=True, exist_ok=True)
        self.file.write_text(_MODULE.format(mark=str(self.mark)))

    @property
    def imported(self) -> bool:
        return self.mark.exists()

    def forget(self) -> None:
        """As if this process had never imported it."""
        sys.modules.pop(self.name, None)
        self.mark.unlink(missing_ok=True)


@contextmanager
def own_modules() -> Iterator[None]:
    """What is imported or searched inside is forgotten afterwards."""
    modules, path = set(sys.modules), list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if name.startswith("own_"):
                del sys.modules[name]


def saved_settings(run: Path) -> dict[str, Any]:
    return dict(json.loads((find_checkpoint(run) / "meta.json").read_text())["config"])


def forge(run: Path, **settings: Any) -> Path:
    """Change settings in the latest checkpoint of a run, and in its config.yaml; None takes one away."""
    config = {key: value for key, value in (saved_settings(run) | settings).items() if settings.get(key, 0) is not None}
    reseal(find_checkpoint(run), config=config)
    if (run / "config.yaml").is_file():
        (run / "config.yaml").write_text(json.dumps(config))
    return run


def forged_copy(run: Path, place: Path, **settings: Any) -> Path:
    """A copy of a run with other settings."""
    return forge(Path(shutil.copytree(run, place)), **settings)
