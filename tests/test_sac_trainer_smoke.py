"""A tiny SAC run from config to checkpoint, with its schedules at their exact ends."""

from __future__ import annotations

from off_policy_smoke import SoftSmoke
from rl_training.runtime.sac_trainer import train_sac


class TestSAC(SoftSmoke):
    algo = "sac"
    train = staticmethod(train_sac)
