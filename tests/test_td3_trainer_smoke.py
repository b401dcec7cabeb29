"""A tiny TD3 run from config to checkpoint, with its schedules at their exact ends."""

from __future__ import annotations

from off_policy_smoke import DeterministicSmoke
from rl_training.runtime.td3_trainer import train_td3


class TestTD3(DeterministicSmoke):
    algo = "td3"
    train = staticmethod(train_td3)
    schedules = {**DeterministicSmoke.schedules, "target_policy_noise": 0.2, "target_policy_noise_schedule": "linear"}
    scheduled = {**DeterministicSmoke.scheduled, "target_policy_noise": [0.15, 0.1, 0.05, 0.0]}
