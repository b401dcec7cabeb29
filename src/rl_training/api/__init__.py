"""The public names."""

from rl_training.api.algorithms import (
    A2C,
    AWAC,
    BC,
    CQL,
    DDPG,
    DQN,
    GAIL,
    IQL,
    PPG,
    PPO,
    REDQ,
    SAC,
    TD3,
    TD3BC,
    TQC,
    TRPO,
    Agent,
    RecurrentPPO,
)
from rl_training.experiment.config import Config, ConfigError, load_config
from rl_training.runtime.a2c_trainer import train_a2c
from rl_training.runtime.awac_trainer import train_awac
from rl_training.runtime.bc_trainer import train_bc
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.cql_trainer import train_cql
from rl_training.runtime.ddpg_trainer import train_ddpg
from rl_training.runtime.dqn_trainer import train_dqn
from rl_training.runtime.gail_trainer import train_gail
from rl_training.runtime.iql_trainer import train_iql
from rl_training.runtime.ppg_trainer import train_ppg
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.recurrent_ppo_trainer import train_recurrent_ppo
from rl_training.runtime.redq_trainer import train_redq
from rl_training.runtime.sac_trainer import train_sac
from rl_training.runtime.seeds import SeedsResult, train_seeds
from rl_training.runtime.td3_bc_trainer import train_td3_bc
from rl_training.runtime.td3_trainer import train_td3
from rl_training.runtime.tqc_trainer import train_tqc
from rl_training.runtime.train import Interrupted, TrainResult, train
from rl_training.runtime.trpo_trainer import train_trpo
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training, verify_preset
from rl_training.types import UserError

__all__ = [
    "A2C",
    "AWAC",
    "BC",
    "CQL",
    "DDPG",
    "DQN",
    "GAIL",
    "IQL",
    "PPG",
    "PPO",
    "REDQ",
    "SAC",
    "TD3",
    "TD3BC",
    "TQC",
    "TRPO",
    "Agent",
    "Callback",
    "Config",
    "ConfigError",
    "Interrupted",
    "RecurrentPPO",
    "SeedsResult",
    "TrainResult",
    "UserError",
    "evaluate_checkpoint",
    "load_config",
    "resume_training",
    "train",
    "train_a2c",
    "train_awac",
    "train_bc",
    "train_cql",
    "train_ddpg",
    "train_dqn",
    "train_gail",
    "train_iql",
    "train_ppg",
    "train_ppo",
    "train_recurrent_ppo",
    "train_redq",
    "train_sac",
    "train_seeds",
    "train_td3",
    "train_td3_bc",
    "train_tqc",
    "train_trpo",
    "verify_preset",
]
