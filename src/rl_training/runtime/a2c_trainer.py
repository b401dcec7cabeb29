"""Train A2C."""

from rl_training.runtime.train import trainer

train_a2c = trainer("a2c")
