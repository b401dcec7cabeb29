"""Train DQN."""

from rl_training.runtime.train import trainer

train_dqn = trainer("dqn")
