"""What the algorithms of the offline loop share: where their transitions come from, and going on online."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat

from rl_training.algorithms.base import LoopConfig, setting
from rl_training.algorithms.off_policy import OffPolicyLoopConfig


class DatasetConfig(LoopConfig):
    """Updates from a dataset; nothing is gathered. The clock counts updates."""

    dataset: str | None = setting(
        None,
        "A file (npz, hdf5), a Minari id or folder, a run whose replay it is, or `module:function` of a SpaceInfo.",
        probe="rl_training.testing:another_tiny_dataset",
    )
    action_units: Literal["auto", "environment", "clipped", "normalized"] = setting(
        "auto",
        "Units of the actions: the environment's (`clipped` to its bounds), or [-1, 1]; `auto` looks at them.",
        live_when={"actions": "continuous"},
        probe="normalized",
    )
    top_return_fraction: float = setting(
        1.0,
        "Share of the episodes, those of the highest return, to learn from.",
        gt=0.0,
        le=1.0,
        static=True,
        probe=0.5,
    )


class TransitionsConfig(DatasetConfig):
    """For who learns from more than actions: why an episode ended means something."""

    done_means: Literal["terminal", "timeout", "auto"] | None = setting(
        None,
        "What the end of an episode means in a file that does not say: `auto` is a timeout at the time limit.",
        probe="timeout",
    )


class BehaviorLoopConfig(DatasetConfig):
    """Some episodes can be held out, to see how well the policy predicts what it has not learned from."""

    validation_fraction: float = setting(
        0.0, "Share of the episodes that is held out: `validation_loss`.", ge=0.0, lt=1.0, static=True, probe=0.5
    )


class OfflineLoopConfig(TransitionsConfig, OffPolicyLoopConfig):
    """Updates from a dataset; or online, from it and from what is gathered. The clock counts updates, or steps."""

    reward_scale: PositiveFloat | Literal["return_range"] = setting(
        1.0,
        "Factor of the rewards; `return_range` is 1000 / (highest - lowest return in the dataset).",
        static=True,
        probe=3.0,
    )
    reward_shift: float = setting(0.0, "Added to the rewards once they are scaled.", static=True, probe=-1.0)
    online: bool = setting(False, "Gather experience and learn from it too; `start_from` implies it.", probe=True)
    start_from: str | None = setting(
        None,
        "A run of the same algorithm: go on online with its networks, optimisers and scales.",
        aliases=["from"],
        probe="rl_training.testing:a run",
    )
    offline_fraction: float = setting(
        0.5,
        "Share of the dataset's transitions in a minibatch of an online run.",
        ge=0.0,
        le=1.0,
        static=True,
        live_when={"online": True},
        probe=1.0,
    )
    buffer_size: int = setting(
        1_000_000, "Transitions that the replay of an online run holds.", ge=1, live_when={"online": True}, probe=4
    )
    learning_starts: int = setting(
        100, "Steps that an online run gathers before it learns.", ge=0, live_when={"online": True}, probe=9
    )
    train_every: int = setting(
        1,
        "Steps between two phases of learning, online.",
        aliases=["train_freq"],
        ge=1,
        live_when={"online": True},
        probe=7,
    )
    updates_per_step: float = setting(
        1.0,
        "Gradient updates per step of experience, online.",
        gt=0.0,
        static=True,
        live_when={"online": True},
        probe=0.75,
    )

    @property
    def collects(self) -> bool:
        return self.online or self.start_from is not None
