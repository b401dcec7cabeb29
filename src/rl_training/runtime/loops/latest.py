"""What a loop last reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.types import Metrics


class Latest:
    """The metrics of the latest updates, for the steps that make none."""

    def __init__(self) -> None:
        self.metrics: Metrics = {}

    def state_dict(self) -> dict[str, Any]:
        return {"metrics": self.metrics}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.metrics = dict(state["metrics"])
