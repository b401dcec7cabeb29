"""The policy of a run or a checkpoint, without what trained it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.algorithms.base import Policy
from rl_training.experiment.config import Config, saved_config
from rl_training.experiment.tasks import names_in, one_of
from rl_training.experiment.trust import EPISODES
from rl_training.runtime.checkpoints.catalogue import find_checkpoint
from rl_training.runtime.checkpoints.checkpoint import (
    Checkpoint,
    fitting_policy,
    read_checkpoint,
    read_meta,
    read_trainer_state,
)
from rl_training.runtime.checkpoints.fitting import loading
from rl_training.runtime.checkpoints.spaces import spaces_for
from rl_training.runtime.schedules import restore_acting_values
from rl_training.runtime.train import policy_for
from rl_training.types import SpaceInfo, UserError


class SavedPolicy(NamedTuple):
    """A policy as it was saved: the checkpoint's path, its config, the spaces that it acts in, and its step."""

    path: Path
    config: Config
    info: SpaceInfo
    step: int
    policy: Policy


def tasks_of(path: str | Path, which: str = "latest") -> list[str]:
    """The names of the tasks of a run or a checkpoint; none in one environment. What it names is not looked at."""
    config = read_meta(find_checkpoint(path, which))["config"]
    return names_in(config) if isinstance(config, Mapping) else []


def load_policy(
    path: str | Path,
    *,
    which: str = "latest",
    trust: bool = False,
    uses: Iterable[str] = EPISODES,
    task: str | None = None,
    **changes: Any,
) -> SavedPolicy:
    """Load the policy of a run or a checkpoint, for greedy actions; `changes` replace settings of its config.

    Of a run with several tasks, `task` says in which the policy is to act.
    `trust` lets in the code that the checkpoint names, where `uses` says that it is needed.
    """
    found = find_checkpoint(path, which)
    checkpoint = read_checkpoint(found, policy_only=True)
    config = saved_config(found, checkpoint.meta, trust=trust, uses=uses, options={}, **changes)
    spaces = spaces_for(config, checkpoint.meta, found)
    policy = policy_for(config, spaces)
    restore_policy(policy, config, checkpoint, found, explore=False)
    try:
        name = one_of(config.tasks, task)
    except UserError as error:
        raise UserError(f"{str(found)!r}: {error}") from None
    step = int(checkpoint.meta["step"])
    return SavedPolicy(found, config.for_task(name), spaces[name], step, policy.for_task(name))


def restore_policy(policy: Policy, config: Config, checkpoint: Checkpoint, path: Path, *, explore: bool) -> None:
    """Bring a policy to the state in which it was saved.

    Its hyperparameters are brought back where they matter: if it is to explore, or if greedy actions depend on them.
    """
    policy.load_policy_state(fitting_policy(checkpoint.policy, policy, path))
    if explore or policy.greedy_uses_values:
        with loading(path, "state.json", "trainer"):
            restore_acting_values(config, policy, read_trainer_state(path), checkpoint.meta["step"])
