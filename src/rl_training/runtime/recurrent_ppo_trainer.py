"""Train RecurrentPPO."""

from rl_training.runtime.train import trainer

train_recurrent_ppo = trainer("recurrent_ppo")
