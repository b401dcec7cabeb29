"""Train GAIL."""

from rl_training.runtime.train import trainer

train_gail = trainer("gail")
