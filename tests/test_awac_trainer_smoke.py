"""A tiny AWAC run from a dataset to a checkpoint, with its schedule at its exact end."""

from __future__ import annotations

from offline_reference import AWAC_METRICS
from offline_smoke import OfflineSmoke
from rl_training import AWAC
from rl_training.runtime.awac_trainer import train_awac


class TestAWAC(OfflineSmoke):
    algo = "awac"
    train = staticmethod(train_awac)
    kind = AWAC
    coefficient = "awac_lambda"
    reports = {*AWAC_METRICS, "bc_return_mean"}
