"""Train REDQ."""

from rl_training.runtime.train import trainer

train_redq = trainer("redq")
