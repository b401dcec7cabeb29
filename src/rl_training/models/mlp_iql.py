"""The networks of implicit Q-learning."""

from __future__ import annotations

from rl_training.models.mlp_ddpg import CriticShape, MLPDDPGModel
from rl_training.types import SpaceInfo


class MLPIQLModel(MLPDDPGModel):
    """The networks of the deterministic actor-critics, and `value(obs)`, which returns `[B, 1]`."""

    def __init__(self, info: SpaceInfo, shape: CriticShape) -> None:
        super().__init__(info, shape)
        self.value = shape.network(info, 1, shape.value_sizes)
