"""Train TRPO."""

from rl_training.runtime.train import trainer

train_trpo = trainer("trpo")
