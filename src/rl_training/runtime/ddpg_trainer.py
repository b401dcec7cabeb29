"""Train DDPG."""

from rl_training.runtime.train import trainer

train_ddpg = trainer("ddpg")
