"""The dataset of the offline works: random transitions of Hopper's shape, in whole episodes."""

from __future__ import annotations

from typing import Any

import numpy as np

EPISODES, LENGTH = 100, 1_000
OBS_SIZE, ACTION_SIZE = 11, 3


def random_transitions(info: Any = None) -> dict[str, Any]:
    """100,000 transitions as flat arrays; a time limit truncates all episodes, none terminates."""
    rng = np.random.default_rng(0)
    path = rng.standard_normal((EPISODES, LENGTH + 1, OBS_SIZE), np.float32)
    timeouts = np.zeros((EPISODES, LENGTH), bool)
    timeouts[:, -1] = True
    count = EPISODES * LENGTH
    return {
        "observations": path[:, :-1].reshape(count, OBS_SIZE),
        "actions": rng.uniform(-1.0, 1.0, (count, ACTION_SIZE)).astype(np.float32),
        "rewards": rng.standard_normal(count, np.float32),
        "next_observations": path[:, 1:].reshape(count, OBS_SIZE),
        "terminals": np.zeros(count, bool),
        "timeouts": timeouts.reshape(count),
    }
