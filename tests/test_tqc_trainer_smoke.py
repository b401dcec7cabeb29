"""A tiny TQC run from config to checkpoint, with its schedules at their exact ends."""

from __future__ import annotations

from off_policy_smoke import SoftSmoke
from rl_training.runtime.tqc_trainer import train_tqc


class TestTQC(SoftSmoke):
    algo = "tqc"
    train = staticmethod(train_tqc)
