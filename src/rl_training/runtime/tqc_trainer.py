"""Train TQC."""

from rl_training.runtime.train import trainer

train_tqc = trainer("tqc")
