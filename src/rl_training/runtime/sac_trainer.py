"""Train SAC."""

from rl_training.runtime.train import trainer

train_sac = trainer("sac")
