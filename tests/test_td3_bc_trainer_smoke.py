"""A tiny TD3+BC run from a dataset to a checkpoint, with its schedule at its exact end."""

from __future__ import annotations

from offline_smoke import OfflineSmoke
from rl_training import TD3BC
from rl_training.runtime.td3_bc_trainer import train_td3_bc


class TestTD3BC(OfflineSmoke):
    algo = "td3_bc"
    train = staticmethod(train_td3_bc)
    kind = TD3BC
    coefficient = "alpha"
