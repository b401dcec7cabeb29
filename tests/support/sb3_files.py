"""Files as Stable-Baselines3 writes them, made without it: a model of PPO, and the statistics of VecNormalize."""

from __future__ import annotations

import io
import json
import pickle
import sys
import types
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor, nn

DATA: dict[str, Any] = {
    "policy_class": {":type:": "<class 'abc.ABCMeta'>", ":serialized:": "bm90IHJlYWQ="},
    "policy_kwargs": {},
    "num_timesteps": 4096,
    "learning_rate": 0.001,
    "n_envs": 1,
    "n_steps": 24,
    "gamma": 0.98,
    "gae_lambda": 0.9,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
    "batch_size": 12,
    "n_epochs": 2,
    "clip_range": {":type:": "Schedule", ":serialized:": "bm90IHJlYWQ=", "value_schedule": "ConstantSchedule(val=0.3)"},
    "clip_range_vf": None,
    "normalize_advantage": True,
    "target_kl": None,
    "use_sde": False,
    "seed": 7,
}


class Networks(nn.Module):
    """Networks under the names that they have there, for CartPole."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp_extractor = nn.Module()
        for name in ("policy_net", "value_net"):
            layers = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 6), nn.Tanh())
            self.mlp_extractor.add_module(name, layers)
        self.action_net, self.value_net = nn.Linear(6, 2), nn.Linear(6, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        inner = self.mlp_extractor
        return self.action_net(inner.policy_net(obs)), self.value_net(inner.value_net(obs))


def saved(value: Any) -> bytes:
    """What torch writes of a value."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def write_zip(file: Path, members: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file


def write_model(file: Path, data: Mapping[str, Any] = DATA, **members: Any) -> Networks:
    """A model; `members` replace or add parts of the file, by what comes before their ending `.pth`."""
    torch.manual_seed(11)
    networks = Networks()
    parts = {"policy": saved(networks.state_dict()), "pytorch_variables": saved({}), **members}
    named = {f"{name}.pth": content for name, content in parts.items() if content is not None}
    write_zip(file, {"data": json.dumps(data).encode(), **named, "_stable_baselines3_version": b"2.9.2"})
    return networks


def write_statistics(file: Path, **changes: Any) -> dict[str, Any]:
    """The statistics of observations of CartPole; returns what is in them."""
    obs = {"mean": np.array([0.1, -0.2, 0.3, 0.0]), "var": np.array([1.5, 0.5, 2.0, 0.1]), "count": 40.0001}
    returns = {"mean": np.float64(1.0), "var": np.float64(4.0), "count": 40.0001}
    content: dict[str, Any] = {
        "clip_obs": 5.0,
        "clip_reward": 8.0,
        "epsilon": 1e-8,
        "norm_obs": True,
        "norm_reward": True,
    }
    content |= {"obs_rms": obs, "ret_rms": returns} | changes
    file.write_bytes(_pickled(content))
    return content


def _pickled(content: dict[str, Any]) -> bytes:
    """A pickle that names classes of the library, which need not be installed for it."""
    place = "stable_baselines3.common."
    normalizer, moments = type("VecNormalize", (), {}), type("RunningMeanStd", (), {})
    made = normalizer.__new__(normalizer)
    for name, value in content.items():
        if name in ("obs_rms", "ret_rms") and isinstance(value, dict):
            statistics = moments.__new__(moments)
            statistics.__dict__.update(value)
            value = statistics
        made.__dict__[name] = value
    modules = {}
    for kind, module in ((normalizer, "vec_env.vec_normalize"), (moments, "running_mean_std")):
        kind.__module__ = place + module
        modules[place + module] = types.SimpleNamespace(**{kind.__name__: kind})
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)  # type: ignore[arg-type]
    try:
        return pickle.dumps(made, protocol=4)
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def changed_data(change: Callable[[Any, Generator], Any]) -> Callable[[Path, Path, Generator], None]:
    """A damage that changes the settings of a model."""

    def damage(folder: Path, file: Path, rng: Generator) -> None:
        members = _members(file.read_bytes())
        members["data"] = json.dumps(change(json.loads(members["data"]), rng)).encode()
        write_zip(file, members)

    return damage


def changed_program(change: Callable[[bytes, Generator], bytes]) -> Callable[[Path, Path, Generator], None]:
    """A damage that changes the program of a policy's pickle, behind valid checksums."""

    def damage(folder: Path, file: Path, rng: Generator) -> None:
        members = _members(file.read_bytes())
        inner = _members(members["policy.pth"])
        (name,) = (name for name in inner if name.endswith("/data.pkl"))
        inner[name] = change(inner[name], rng)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for part, content in inner.items():
                archive.writestr(part, content)
        members["policy.pth"] = buffer.getvalue()
        write_zip(file, members)

    return damage


def _members(content: bytes) -> OrderedDict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return OrderedDict((name, archive.read(name)) for name in archive.namelist())
