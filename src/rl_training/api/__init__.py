"""The public names."""

from rl_training.api.algorithms import A2C, PPO, Agent
from rl_training.experiment.config import Config, ConfigError, load_config
from rl_training.runtime.a2c_trainer import train_a2c
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.seeds import SeedsResult, train_seeds
from rl_training.runtime.train import Interrupted, TrainResult, train
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training, verify_preset
from rl_training.types import UserError

__all__ = [
    "A2C",
    "PPO",
    "Agent",
    "Callback",
    "Config",
    "ConfigError",
    "Interrupted",
    "SeedsResult",
    "TrainResult",
    "UserError",
    "evaluate_checkpoint",
    "load_config",
    "resume_training",
    "train",
    "train_a2c",
    "train_ppo",
    "train_seeds",
    "verify_preset",
]
