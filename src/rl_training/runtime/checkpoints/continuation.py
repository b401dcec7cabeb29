"""Warm start: a run that begins with the networks of another run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.data.replay_files import read_info
from rl_training.experiment.config import Config
from rl_training.runtime.checkpoints.catalogue import find_checkpoint
from rl_training.runtime.checkpoints.checkpoint import fitting_policy, read_checkpoint
from rl_training.runtime.checkpoints.fitting import is_ours, loading
from rl_training.runtime.trees import check_like
from rl_training.types import SpaceInfo, UserError

if TYPE_CHECKING:
    from rl_training.runtime.run import Run

# The scales that the networks were trained with must stay the same.
_SCALES = ("reward_scale", "reward_shift", "reward_clip", "normalize_obs", "obs_clip")


def take_over(run: Run, path: str | Path) -> None:
    """Load the networks, optimisers and scales of the latest checkpoint of a run of the same algorithm."""
    policy = run.algorithm.policy
    try:
        found = find_checkpoint(path)
        checkpoint = read_checkpoint(found)
        _check_origin(checkpoint.meta, run.config, run.info)
        saved = fitting_policy(checkpoint.policy, policy, found)
    except UserError as error:
        raise UserError(f"start_from={str(path)!r}: {error}") from None
    with loading(found, "model.safetensors", "policy"):
        policy.load_policy_state(saved)
    with loading(found, "state.json", "algorithm"):
        if is_ours(run.algorithm):
            check_like(checkpoint.state["algorithm"], run.algorithm.training_state(), "algorithm")
        run.algorithm.load_training_state(checkpoint.state["algorithm"])
    with loading(found, "state.json", "parts.rewards"):
        rewards = run.loop.parts["rewards"]
        check_like(checkpoint.state["parts"]["rewards"], rewards.state_dict(), "rewards")
        rewards.load_state_dict(checkpoint.state["parts"]["rewards"])


def _check_origin(meta: Mapping[str, Any], config: Config, info: SpaceInfo) -> None:
    """Check that it is a run of the same algorithm, with the same networks and scales, on the same spaces."""
    saved, now = meta["config"], config.flat()
    if saved["algo"] != now["algo"]:
        raise UserError(f"is a run of {saved['algo']}, but this run is of {now['algo']}")
    spaces = info.to_dict()
    kept = (*type(config.model).model_fields, *_SCALES)
    for there, here, keys in ((saved, now, kept), (read_info(meta["spaces"]).to_dict(), spaces, spaces)):
        for key in keys:
            if there.get(key) != here[key]:
                raise UserError(f"its {key} is {there.get(key)!r}, but that of this run is {here[key]!r}")
