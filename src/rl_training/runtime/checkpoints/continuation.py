"""A run that starts from where another one had come."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.algorithms.base import Algorithm
from rl_training.experiment.config import Config
from rl_training.runtime.checkpoints.checkpoint import find_checkpoint, fitting_policy, read_checkpoint
from rl_training.types import SpaceInfo, UserError

# What networks were trained under cannot change when they go on.
_SCALES = ("reward_scale", "reward_shift", "reward_clip", "normalize_obs", "obs_clip")


def take_over(algorithm: Algorithm, loop: Any, config: Config, path: str | Path) -> None:
    """Networks, optimisers and scales of the latest checkpoint of a run of the same algorithm."""
    try:
        found = find_checkpoint(path)
        checkpoint = read_checkpoint(found)
        _check_origin(checkpoint.meta, config, loop.collector.info)
        policy = fitting_policy(checkpoint.policy, algorithm, found)
    except UserError as error:
        raise UserError(f"start_from={str(path)!r}: {error}") from None
    algorithm.load_policy_state(policy)
    algorithm.load_training_state(checkpoint.state["algorithm"])
    loop.take_scales(checkpoint.state["parts"]["rewards"])


def _check_origin(meta: Mapping[str, Any], config: Config, info: SpaceInfo) -> None:
    """Whether it is a run of the same algorithm, with the same networks and scales, on the same spaces."""
    saved, now = meta["config"], config.flat()
    if saved["algo"] != now["algo"]:
        raise UserError(f"is a run of {saved['algo']}, and this is one of {now['algo']}")
    spaces = json.loads(json.dumps(info.to_dict()))
    kept = (*type(config.model).model_fields, *_SCALES)
    for there, here, keys in ((saved, now, kept), (meta["spaces"], spaces, spaces)):
        for key in keys:
            if there.get(key) != here[key]:
                raise UserError(f"its {key} is {there.get(key)!r}, and that of this run is {here[key]!r}")
