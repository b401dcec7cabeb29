"""Train Dreamer."""

from rl_training.runtime.train import trainer

train_dreamer = trainer("dreamer")
