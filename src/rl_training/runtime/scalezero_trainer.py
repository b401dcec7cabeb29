"""Train ScaleZero."""

from rl_training.runtime.train import trainer

train_scalezero = trainer("scalezero")
