"""Train EfficientZero."""

from rl_training.runtime.train import trainer

train_efficientzero = trainer("efficientzero")
