"""A tiny DDPG run from config to checkpoint, with its schedules at their exact ends."""

from __future__ import annotations

from off_policy_smoke import DeterministicSmoke
from rl_training.runtime.ddpg_trainer import train_ddpg


class TestDDPG(DeterministicSmoke):
    algo = "ddpg"
    train = staticmethod(train_ddpg)
