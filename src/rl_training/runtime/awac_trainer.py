"""Train AWAC."""

from rl_training.runtime.train import trainer

train_awac = trainer("awac")
