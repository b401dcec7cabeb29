"""Train PPG."""

from rl_training.runtime.train import trainer

train_ppg = trainer("ppg")
