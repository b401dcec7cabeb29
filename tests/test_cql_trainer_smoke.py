"""A tiny CQL run from a dataset to a checkpoint, with its schedule at its exact end."""

from __future__ import annotations

from offline_smoke import OfflineSmoke
from rl_training import CQL
from rl_training.runtime.cql_trainer import train_cql


class TestCQL(OfflineSmoke):
    algo = "cql"
    train = staticmethod(train_cql)
    kind = CQL
    coefficient = "cql_alpha"
