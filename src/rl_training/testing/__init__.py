"""Tests for algorithms: the contract, and the tiny environment, networks and datasets that it uses.

`check_algorithm("ppo")`, or `check_algorithm("my_package:SPEC")`, runs every check of the contract.
"""

from rl_training.testing.compare import checkpoint_differences, differences
from rl_training.testing.contract import (
    CHECKS,
    check_algorithm,
    check_deterministic,
    check_evaluation_is_invisible,
    check_policy_stands_alone,
    check_resumes,
    check_settings_are_live,
    check_trains,
    tiny_config,
)
from rl_training.testing.tiny import (
    LinearActorCritic,
    LinearCritics,
    LinearDeterministicActorCritic,
    LinearEncoder,
    LinearImplicitModel,
    LinearMuZero,
    LinearPhasicActorCritic,
    LinearPolicy,
    LinearQNetwork,
    LinearRecurrentActorCritic,
    LinearSeparateActorCritic,
    LinearSoftActorCritic,
    SmallDreamer,
    TinyEnv,
    TinyGoalEnv,
    another_tiny_dataset,
    tiny_dataset,
)

__all__ = [
    "CHECKS",
    "LinearActorCritic",
    "LinearCritics",
    "LinearDeterministicActorCritic",
    "LinearEncoder",
    "LinearImplicitModel",
    "LinearMuZero",
    "LinearPhasicActorCritic",
    "LinearPolicy",
    "LinearQNetwork",
    "LinearRecurrentActorCritic",
    "LinearSeparateActorCritic",
    "LinearSoftActorCritic",
    "SmallDreamer",
    "TinyEnv",
    "TinyGoalEnv",
    "another_tiny_dataset",
    "check_algorithm",
    "check_deterministic",
    "check_evaluation_is_invisible",
    "check_policy_stands_alone",
    "check_resumes",
    "check_settings_are_live",
    "check_trains",
    "checkpoint_differences",
    "differences",
    "tiny_config",
    "tiny_dataset",
]
