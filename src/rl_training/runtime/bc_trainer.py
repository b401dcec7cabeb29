"""Train BC."""

from rl_training.runtime.train import trainer

train_bc = trainer("bc")
