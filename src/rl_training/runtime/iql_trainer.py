"""Train IQL."""

from rl_training.runtime.train import trainer

train_iql = trainer("iql")
