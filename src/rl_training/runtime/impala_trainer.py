"""Train IMPALA."""

from rl_training.runtime.train import trainer

train_impala = trainer("impala")
