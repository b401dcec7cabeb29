"""Algorithms that are made for tests."""

from __future__ import annotations

from dataclasses import replace

from rl_training.algorithms.a2c import SPEC, A2CConfig
from rl_training.algorithms.base import setting


class DecoratedConfig(A2CConfig):
    decoration: float = setting(1.0, "A knob that turns nothing.")


WITH_A_DEAD_SETTING = replace(SPEC, name="decorated", config=DecoratedConfig)
