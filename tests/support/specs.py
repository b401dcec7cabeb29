"""Algorithms that are made for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from torch import Tensor

from rl_training.algorithms.a2c import A2C, SPEC, A2CConfig
from rl_training.algorithms.base import PolicyContext
from rl_training.algorithms.on_policy import ActorCriticPolicy
from rl_training.algorithms.parts.recurrent_policy import RecurrentPolicy
from rl_training.algorithms.recurrent_ppo import SPEC as RECURRENT
from rl_training.algorithms.recurrent_ppo import RecurrentPPO
from rl_training.algorithms.settings import setting
from rl_training.models.flat import FlatAdam, FlatParameters
from rl_training.types import Array, ArrayKind, Carry, Records, SpaceInfo


class DecoratedConfig(A2CConfig):
    decoration: float = setting(1.0, "A knob that turns nothing.")


WITH_A_DEAD_SETTING = replace(SPEC, name="decorated", config=DecoratedConfig)


class MisspeltConfig(A2CConfig):
    decoration: float = setting(1.0, "A knob that turns nothing.", live_when={"gae_lamda": 0.5})


WITH_A_MISSPELT_CONDITION = replace(SPEC, name="misspelt", config=MisspeltConfig)


class PolicyWithOptimizer(ActorCriticPolicy):
    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        optimizer = FlatAdam(FlatParameters(self.weights), eps=1e-8)
        self.hidden = [lambda: optimizer]  # deep inside


class PolicyWithUndeclaredDtype(ActorCriticPolicy):
    def records(self, info: SpaceInfo) -> Records:
        return {**super().records(info), "value": ArrayKind((), "float64")}


class PolicyThatForgetsTensors(ActorCriticPolicy):
    def load_policy_state(self, state: Mapping[str, Tensor]) -> None:
        """It stays as it was made."""


class PolicyThatKeepsItsCarry(RecurrentPolicy):
    def begin_episodes(self, carry: Carry, mask: Array) -> Carry:
        return np.where(mask[:, None], np.float32(0.5), carry)


def _with(policy: type[ActorCriticPolicy]) -> type[A2C]:
    return type("A2C", (A2C,), {"policy_type": policy})


WITH_AN_OPTIMIZER = replace(SPEC, policy=PolicyWithOptimizer, build=_with(PolicyWithOptimizer))
WITH_AN_UNDECLARED_DTYPE = replace(SPEC, policy=PolicyWithUndeclaredDtype, build=_with(PolicyWithUndeclaredDtype))
WITH_FORGOTTEN_TENSORS = replace(SPEC, policy=PolicyThatForgetsTensors, build=_with(PolicyThatForgetsTensors))
WITH_A_LASTING_CARRY = replace(
    RECURRENT,
    policy=PolicyThatKeepsItsCarry,
    build=type("RecurrentPPO", (RecurrentPPO,), {"policy_type": PolicyThatKeepsItsCarry}),
)
