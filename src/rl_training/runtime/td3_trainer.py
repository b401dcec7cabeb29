"""Train TD3."""

from rl_training.runtime.train import trainer

train_td3 = trainer("td3")
