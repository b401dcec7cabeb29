"""Train APPO."""

from rl_training.runtime.train import trainer

train_appo = trainer("appo")
