"""A tiny IQL run from a dataset to a checkpoint, with its schedule at its exact end."""

from __future__ import annotations

from offline_smoke import OfflineSmoke
from rl_training import IQL
from rl_training.runtime.iql_trainer import train_iql


class TestIQL(OfflineSmoke):
    algo = "iql"
    train = staticmethod(train_iql)
    kind = IQL
    coefficient = "beta"
