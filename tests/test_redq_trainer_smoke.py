"""A tiny REDQ run from config to checkpoint, with its schedules at their exact ends."""

from __future__ import annotations

from off_policy_smoke import SoftSmoke
from rl_training.runtime.redq_trainer import train_redq


class TestREDQ(SoftSmoke):
    algo = "redq"
    train = staticmethod(train_redq)
    settings = {"updates_per_step": 2.0}
    n_updates = 144.0
