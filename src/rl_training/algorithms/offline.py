"""The shared settings of the offline algorithms: the dataset, and training that continues online."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat

from rl_training.algorithms.base import LoopConfig
from rl_training.algorithms.off_policy import OffPolicyLoopConfig
from rl_training.algorithms.settings import setting

RewardFactor = PositiveFloat | Literal["auto", "return_range"]
_REWARD_SCALE = (
    "Factor of the rewards; `auto`: the dataset's discounted returns then have a deviation of 10; `return_range`: "
    "1000 / (highest - lowest return in the dataset)."
)


class DatasetConfig(LoopConfig):
    """Updates from a dataset, without new experience. The clock counts updates."""

    dataset: str | None = setting(
        None,
        "A file (npz, hdf5), a Minari id or folder, a run (its replay), or `module:function` of a SpaceInfo.",
        probe="rl_training.testing:another_tiny_dataset",
    )
    action_units: Literal["auto", "environment", "clipped", "normalized"] = setting(
        "auto",
        "Units of the actions: the environment's (`clipped` to its bounds), or [-1, 1]; `auto` detects them.",
        live_when={"actions": "continuous"},
        probe="normalized",
    )
    top_return_fraction: float = setting(
        1.0,
        "Learn from this share of the episodes, those with the highest returns.",
        gt=0.0,
        le=1.0,
        static=True,
        probe=0.5,
    )


class TransitionsConfig(DatasetConfig):
    """A dataset for algorithms that learn values: they must know why an episode ended."""

    done_means: Literal["terminal", "timeout", "auto"] | None = setting(
        None,
        "Why episodes ended, for a file that does not say; `auto`: timeout at the time limit, else terminal.",
        probe="timeout",
    )


class BehaviorLoopConfig(DatasetConfig):
    """A dataset of which some episodes can be held out for validation."""

    validation_fraction: float = setting(
        0.0, "Share of the episodes that is held out: `validation_loss`.", ge=0.0, lt=1.0, static=True, probe=0.5
    )


class OfflineLoopConfig(TransitionsConfig, OffPolicyLoopConfig):
    """Updates from a dataset, or online from it and new experience. The clock counts updates, or online steps."""

    reward_scale: RewardFactor = setting(1.0, _REWARD_SCALE, static=True, probe=3.0)
    reward_shift: float = setting(0.0, "Added to the rewards after scaling.", static=True, probe=-1.0)
    online: bool = setting(False, "Collect experience and learn from it too; `start_from` implies it.", probe=True)
    start_from: str | None = setting(
        None,
        "A run of the same algorithm: continue online with its networks, optimisers and scales.",
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
        1_000_000, "Capacity of the replay buffer of an online run.", ge=1, live_when={"online": True}, probe=4
    )
    learning_starts: int = setting(
        100, "Steps that an online run collects before it learns.", ge=0, live_when={"online": True}, probe=9
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

    @property
    def origin(self) -> str | None:
        return self.start_from


class WeightedLoopConfig(OfflineLoopConfig):
    """The same for weights that are exponentials of advantages: rewards of any scale have to suit the temperature."""

    reward_scale: RewardFactor = setting("auto", _REWARD_SCALE, static=True, probe=3.0)
