"""A tiny BC run from a dataset to a checkpoint, with its schedule at its exact end."""

from __future__ import annotations

from offline_smoke import OfflineSmoke
from rl_training import BC
from rl_training.runtime.bc_trainer import train_bc


class TestBC(OfflineSmoke):
    algo = "bc"
    train = staticmethod(train_bc)
    kind = BC
    coefficient = "learning_rate"
    reports = {"loss"}
