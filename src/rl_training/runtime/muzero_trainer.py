"""Train MuZero."""

from rl_training.runtime.train import trainer

train_muzero = trainer("muzero")
