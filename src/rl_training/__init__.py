"""Reinforcement-learning training: one control surface, proven presets, exact resume, fast on a CPU.

Names are loaded on first use, so that importing the package stays cheap: it loads neither torch nor gymnasium.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rl_training.api import *  # noqa: F403

_EXPORTS = {
    "A2C": "rl_training.api",
    "AWAC": "rl_training.api",
    "Agent": "rl_training.api",
    "BC": "rl_training.api",
    "CQL": "rl_training.api",
    "Callback": "rl_training.api",
    "ConfigError": "rl_training.api",
    "DDPG": "rl_training.api",
    "DQN": "rl_training.api",
    "GAIL": "rl_training.api",
    "IQL": "rl_training.api",
    "Interrupted": "rl_training.api",
    "PPG": "rl_training.api",
    "PPO": "rl_training.api",
    "REDQ": "rl_training.api",
    "RecurrentPPO": "rl_training.api",
    "SAC": "rl_training.api",
    "TD3": "rl_training.api",
    "TD3BC": "rl_training.api",
    "TQC": "rl_training.api",
    "TRPO": "rl_training.api",
    "TrainResult": "rl_training.api",
    "UserError": "rl_training.types",
    "evaluate_checkpoint": "rl_training.api",
    "load_config": "rl_training.api",
    "resume_training": "rl_training.api",
    "train": "rl_training.api",
    "train_a2c": "rl_training.api",
    "train_awac": "rl_training.api",
    "train_bc": "rl_training.api",
    "train_cql": "rl_training.api",
    "train_ddpg": "rl_training.api",
    "train_dqn": "rl_training.api",
    "train_gail": "rl_training.api",
    "train_iql": "rl_training.api",
    "train_ppg": "rl_training.api",
    "train_ppo": "rl_training.api",
    "train_recurrent_ppo": "rl_training.api",
    "train_redq": "rl_training.api",
    "train_sac": "rl_training.api",
    "train_seeds": "rl_training.api",
    "train_td3": "rl_training.api",
    "train_td3_bc": "rl_training.api",
    "train_tqc": "rl_training.api",
    "train_trpo": "rl_training.api",
}

__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'rl_training' has no attribute {name!r}; it has {', '.join(sorted(_EXPORTS))}")


def __dir__() -> list[str]:
    return sorted(__all__)
