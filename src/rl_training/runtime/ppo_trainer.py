"""Train PPO."""

from rl_training.runtime.train import trainer

train_ppo = trainer("ppo")
