"""Train CQL."""

from rl_training.runtime.train import trainer

train_cql = trainer("cql")
