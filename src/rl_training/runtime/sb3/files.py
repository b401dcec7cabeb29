"""The files of Stable-Baselines3: a saved model, and the statistics of VecNormalize. Nothing in them is unpickled."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rl_training.data.claims import Claims, check_plain_file, refuse_damaged
from rl_training.data.pickled import Made, Name, interpret
from rl_training.data.pickled_tensors import array_of, read_tensors
from rl_training.types import Array, UserError

_DATA, _POLICY, _VARIABLES = "data", "policy.pth", "pytorch_variables.pth"
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_LONGEST_PICKLE = 64 << 20  # bytes
_FLAWS = (
    ValueError,
    EOFError,
    OSError,
    OverflowError,  # a whole number that no float reaches
    RuntimeError,  # also NotImplementedError and RecursionError
    zipfile.BadZipFile,
    zlib.error,
)
_NORMALIZER = Name("stable_baselines3.common.vec_env.vec_normalize", "VecNormalize")
_MOMENTS = Name("stable_baselines3.common.running_mean_std", "RunningMeanStd")


class Model(NamedTuple):
    """A saved model: the plain part of its settings, the weights of its policy, and its other tensors."""

    path: Path
    data: dict[str, Any]
    weights: dict[str, Array]
    variables: dict[str, Array]


class Moments(NamedTuple):
    """Running mean and variance, and how many samples they are of."""

    mean: Array
    var: Array
    samples: float


class Statistics(NamedTuple):
    """What VecNormalize keeps: None in place of moments that it does not use; of a Dict those of its entries."""

    obs: Moments | dict[str, Moments] | None
    obs_clip: float
    returns: Moments | None
    reward_clip: float
    epsilon: float


def _file(key: str, path: str | Path) -> Path:
    if not isinstance(path, str | Path):
        raise UserError(f"{key}={path!r:.80}: must be the name of a file")
    return Path(path)


def read_model(path: str | Path) -> Model:
    """Read a model that Stable-Baselines3 saved; the ending .zip may be left out, as there."""
    file = _file("path", path)
    if not file.exists() and file.with_name(f"{file.name}.zip").exists():
        file = file.with_name(f"{file.name}.zip")
    try:
        check_plain_file(file)
        with file.open("rb") as opened, zipfile.ZipFile(opened) as archive:
            contents = _contents(archive, file)
        data = _plain_data(contents[_DATA])
        weights, variables = (read_tensors(contents[name]) for name in (_POLICY, _VARIABLES))
    except _FLAWS as error:
        raise refuse_damaged(file, error) from None
    for name, array in weights.items():
        if not np.isfinite(array).all():
            raise UserError(f"{str(file)!r}: its weights {name!r:.80} have numbers that are not finite")
    return Model(file, data, weights, variables)


def _contents(archive: zipfile.ZipFile, file: Path) -> dict[str, bytes]:
    """The parts of a model that are read, after their sizes have been compared with the file's."""
    place, counts = repr(str(file)), Counter(archive.namelist())
    missing = [name for name in (_DATA, _POLICY) if name not in counts]
    if missing:
        raise UserError(f"{place}: is not a model that Stable-Baselines3 saved: it has no {missing[0]!r}")
    claims, wanted = Claims(file), [name for name in (_DATA, _POLICY, _VARIABLES) if name in counts]
    for name in wanted:
        member = archive.getinfo(name)
        if counts[name] > 1:
            raise UserError(f"{place}: has two parts of the name {name!r}; which of them is meant is not known")
        if member.compress_type not in _METHODS:
            raise UserError(f"{place}: {name!r} is compressed by a method that is not read here, only by deflate")
        claims.add(name, member.file_size)
    claims.check()
    read = {name: archive.read(name) for name in wanted}
    if _VARIABLES not in read:
        raise UserError(f"{place}: was saved by a version of Stable-Baselines3 before 1.0, whose models are not read")
    return read


def _plain_data(content: bytes) -> dict[str, Any]:
    """The settings. An entry that was no plain value has its pickle in `:serialized:`, which is dropped unread."""
    data = json.loads(content)
    if not isinstance(data, dict):
        raise ValueError("its 'data' is no dictionary")
    return {
        key: {name: part for name, part in value.items() if name != ":serialized:"} if _is_object(value) else value
        for key, value in data.items()
    }


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and ":serialized:" in value


def read_statistics(path: str | Path) -> Statistics:
    """Read what `VecNormalize.save` wrote, by a machine that calls nothing."""
    file = _file("vec_normalize", path)
    try:
        check_plain_file(file)
        size = file.stat().st_size
        if size > _LONGEST_PICKLE:
            raise ValueError(f"it has {size} bytes; at most {_LONGEST_PICKLE} are read")
        return _statistics(interpret(file.read_bytes()))
    except _FLAWS as error:
        raise refuse_damaged(file, error) from None


def _statistics(value: Any) -> Statistics:
    state = value.state if isinstance(value, Made) and _is_new(value, _NORMALIZER) else None
    if not isinstance(state, dict):
        raise ValueError("it does not hold a VecNormalize")
    numbers = {}
    for name in ("clip_obs", "clip_reward", "epsilon"):
        numbers[name] = number = float(array_of(state.get(name)).item())
        if not (np.isfinite(number) and number > 0.0):
            raise ValueError(f"its {name} is {number}")
    if any(type(state.get(name)) is not bool for name in ("norm_obs", "norm_reward")):
        raise ValueError("it does not say what it normalizes")
    return Statistics(
        _obs_moments(state.get("obs_rms")) if state["norm_obs"] else None,
        numbers["clip_obs"],
        _moments(state.get("ret_rms"), "ret_rms") if state["norm_reward"] else None,
        numbers["clip_reward"],
        numbers["epsilon"],
    )


def _obs_moments(value: Any) -> Moments | dict[str, Moments]:
    if not isinstance(value, dict):
        return _moments(value, "obs_rms")
    return {str(key): _moments(entry, f"obs_rms[{key!r:.40}]") for key, entry in value.items()}


def _moments(value: Any, name: str) -> Moments:
    if not isinstance(value, Made) or not _is_new(value, _MOMENTS) or not isinstance(value.state, dict):
        raise ValueError(f"its {name} are not those of one array")
    mean, var = (array_of(value.state.get(key)).astype(np.float64) for key in ("mean", "var"))
    count = float(array_of(value.state.get("count")).item())
    if mean.shape != var.shape or not np.isfinite([*mean.ravel(), *var.ravel(), count]).all() or count <= 0.0:
        raise ValueError(f"its {name} are damaged")
    if (var < 0.0).any():
        raise ValueError(f"its {name} have a variance below 0")
    return Moments(mean, var, count)


def _is_new(made: Made, name: Name) -> bool:
    """Whether an object would have been made as a plain instance of a class of this name."""
    return bool(made.by == name and made.arguments == ())
