"""Train GumbelMuZero."""

from rl_training.runtime.train import trainer

train_gumbel_muzero = trainer("gumbel_muzero")
