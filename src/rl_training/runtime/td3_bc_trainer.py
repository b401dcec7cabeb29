"""Train TD3+BC."""

from rl_training.runtime.train import trainer

train_td3_bc = trainer("td3_bc")
