"""The settings in which the cases of bits.py vary each algorithm. This file loads no library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Settings = dict[str, Any]
Worlds = dict[str, Settings]

_CURVE = {"total_timesteps": 100, "learning_rate_warmup_steps": 10}
_ON_POLICY_VARIANTS: Worlds = {
    "frame_stack": {"frame_stack": 3},
    "normalize_obs": {"normalize_obs": True},
    "normalize_reward": {"normalize_reward": True},
    "normalize_both+time_limit": {"normalize_obs": True, "normalize_reward": True, "time_limit": 3},
    "schedule": _CURVE | {"learning_rate_schedule": "linear", "ent_coef": 0.02, "ent_coef_schedule": 0.0},
    "reward_clip": {"reward_clip": 0.3},
    "raw_advantages": {"normalize_advantage": False, "gae_lambda": 0.9, "ortho_init": False, "activation": "relu"},
}
_SDE: Worlds = {"sde": {"use_sde": True}, "sde_sample_freq": {"use_sde": True, "sde_sample_freq": 2}}
# A large step size, so that ratios are clipped and the KL limit stops epochs early.
_FAST = {"learning_rate": 0.02}
_CLIPPING: Worlds = {
    "clip": _FAST,
    "target_kl": _FAST | {"target_kl": 0.01},
    "clip_range_vf": _FAST | {"clip_range_vf": 0.05, "ent_coef": 0.01},
}
_REPLAY_VARIANTS: Worlds = {
    "n_step": {"n_step": 3},
    "frame_stack": {"frame_stack": 3},
    "normalize_obs": {"normalize_obs": True, "buffer_size": 20},
    "schedule": _CURVE | {"learning_rate_schedule": "cosine"},
    "many_updates": {"updates_per_step": 2.0, "train_every": 5},
    "reward_clip": {"reward_clip": 0.3},
}
_ENTROPY: Worlds = {
    "fixed_ent_coef": {"ent_coef": 0.2},
    "ent_coef_from": {"ent_coef": "auto_0.1", "target_entropy": -1.0},
}
_DATASET_VARIANTS: Worlds = {
    "normalize_obs": {"normalize_obs": True, "obs_clip": 1.0},
    "best_episodes": {"top_return_fraction": 0.5},
    "frame_stack": {"frame_stack": 2},
    "schedule": _CURVE | {"total_timesteps": 20, "learning_rate_schedule": "linear"},
}
_TRANSITIONS_VARIANTS: Worlds = _DATASET_VARIANTS | {
    "return_range": {"reward_scale": "return_range", "reward_shift": -0.5},
    "n_step": {"n_step": 3},
    "timeouts": {"done_means": "timeout"},
    "online": {"online": True, "normalize_obs": False},
    "online_scaled": {"online": True, "normalize_obs": True, "reward_scale": 0.1},
    "online_fresh_only": {"online": True, "offline_fraction": 0.0, "normalize_obs": False},
    "online_without_data": {"online": True, "offline_fraction": 0.0, "normalize_obs": False, "dataset": None},
}
_PLANNING_VARIANTS: Worlds = _REPLAY_VARIANTS | {
    "reanalyze": {"reanalyze_ratio": 0.5, "prioritized": True, "buffer_size": 20},
    "reanalyze_continuous": {"actions": "continuous", "reanalyze_ratio": 0.5},
    "temperature": {"total_timesteps": 60, "temperature_schedule": 0.1, "temperature_moves": 3},
}
_CORE = {"rnn": "lstm", "rnn_hidden_size": 8}
_CORRECTED: Worlds = {
    **{name: changes for name, changes in _ON_POLICY_VARIANTS.items() if name != "raw_advantages"},
    **_SDE,
    "lstm": _CORE,
    "gru+shared_core+normalize_obs": _CORE | {"rnn": "gru", "shared_core": True, "normalize_obs": True},
    "correction": {"rho_bar": 0.9, "c_bar": 0.8, "vtrace_lambda": 0.9},
}
_OWN = "rl_training.testing:Linear"
# Settings of each algorithm on TinyEnv; the key `actions` is an argument of the environment.
VARIANTS: Mapping[str, Worlds] = {
    "ppo": {
        **_ON_POLICY_VARIANTS,
        **_SDE,
        **_CLIPPING,
        "clip_schedule": _FAST | {"total_timesteps": 40, "clip_coef_schedule": {"type": "cosine", "end": 0.01}},
        "own_network": {"model": f"{_OWN}ActorCritic"},
    },
    "a2c": {**_ON_POLICY_VARIANTS, **_SDE, "own_network": {"model": f"{_OWN}ActorCritic"}},
    "trpo": {**_ON_POLICY_VARIANTS, **_SDE, "own_network": {"model": f"{_OWN}SeparateActorCritic"}},
    "ppg": {
        **_ON_POLICY_VARIANTS,
        **_SDE,
        **_CLIPPING,
        "aux_phases": {"aux_interval": 1, "n_aux_epochs": 3, "aux_batch_size": 5, "beta_clone": 0.5},
        "own_network": {"model": f"{_OWN}PhasicActorCritic"},
    },
    "recurrent_ppo": {
        **_ON_POLICY_VARIANTS,
        **_CLIPPING,
        "gru": {"rnn": "gru"},
        "shared_core": {"shared_core": True},
        "sequence_length": {"sequence_length": 2},
        "gru+shared_core+sequence_length": {"rnn": "gru", "shared_core": True, "sequence_length": 3},
        "own_network": {"model": f"{_OWN}RecurrentActorCritic"},
    },
    "gail": {
        **_ON_POLICY_VARIANTS,
        **_SDE,
        "bc_updates": {"bc_updates": 3},
        "airl+ends": {"reward_form": "airl", "absorbing": False, "gradient_penalty_coef": 0.0},
        "few_demonstrations": {"demonstrations": 3, "subsample": 2, "reward_form": "fairl"},
        "own_network": {"model": f"{_OWN}ActorCritic"},
    },
    "impala": {
        **_CORRECTED,
        "adam": {"optimizer_type": "adam", "normalize_advantage": True, "pg_rho_bar": 0.9},
        "own_network": {"model": f"{_OWN}ActorCritic"},
    },
    "appo": {
        **_CORRECTED,
        "clip": _FAST,
        "target_network": _FAST | {"target_update_interval": 2},
        "penalty": _FAST | {"kl_coef": 0.2, "kl_target": 0.01, "normalize_advantage": False},
        "gru+target_network": _CORE | {"rnn": "gru", "target_update_interval": 3},
        "own_network": {"model": f"{_OWN}RecurrentActorCritic", **_CORE},
    },
    "dqn": {
        **_REPLAY_VARIANTS,
        "prioritized": {"prioritized": True},
        "dueling": {"dueling": True},
        "prioritized+n_step+dueling": {"prioritized": True, "n_step": 3, "dueling": True, "buffer_size": 20},
        "single_q": {"double_q": False, "tau": 0.5, "target_update_interval": 1},
        "epsilon_schedule": {"total_timesteps": 60, "epsilon": 1.0, "epsilon_schedule": 0.1},
        "own_network": {"model": f"{_OWN}QNetwork"},
    },
    "ddpg": {**_REPLAY_VARIANTS, "own_network": {"model": f"{_OWN}DeterministicActorCritic"}},
    "td3": {
        **_REPLAY_VARIANTS,
        "policy_delay": {"policy_delay": 3, "n_critics": 3},
        "own_network": {"model": f"{_OWN}DeterministicActorCritic"},
    },
    "sac": {
        **_REPLAY_VARIANTS,
        **_ENTROPY,
        "three_critics": {"n_critics": 3},
        "own_network": {"model": f"{_OWN}SoftActorCritic"},
    },
    "redq": {**_REPLAY_VARIANTS, **_ENTROPY, "policy_delay": {"policy_delay": 1, "subset_size": 3}},
    "tqc": {**_REPLAY_VARIANTS, **_ENTROPY, "all_quantiles": {"top_quantiles_to_drop": 0, "n_quantiles": 3}},
    "bc": {
        **_DATASET_VARIANTS,
        "validation": {"validation_fraction": 0.3},
        "likelihood": {"loss": "likelihood"},
        "squashed": {"loss": "likelihood", "policy_head": "squashed"},
        "own_network": {"model": f"{_OWN}Policy"},
    },
    "awac": {
        **_TRANSITIONS_VARIANTS,
        "softmax": {"weighting": "softmax"},
        "squashed": {"policy_head": "squashed"},
        "own_network": {"model": f"{_OWN}DeterministicActorCritic"},
    },
    "iql": {
        **_TRANSITIONS_VARIANTS,
        "deterministic": {"policy_head": "deterministic"},
        "deterministic_online": {"policy_head": "deterministic", "online": True},
        "own_network": {"model": f"{_OWN}ImplicitModel"},
    },
    "cql": {
        **_TRANSITIONS_VARIANTS,
        "target_gap": {"cql_target_gap": 1.0},
        "backup_entropy": {"backup_entropy": True, "ent_coef": 0.2},
        "discrete_target_gap": {"actions": "discrete", "cql_target_gap": 1.0},
        "discrete_online": {"actions": "discrete", "online": True},
        "own_network": {"model": f"{_OWN}SoftActorCritic"},
        "discrete_own_network": {"actions": "discrete", "model": f"{_OWN}QNetwork"},
    },
    "td3_bc": {
        **_TRANSITIONS_VARIANTS,
        "alpha": {"alpha": 1.0, "policy_delay": 1},
        "own_network": {"model": f"{_OWN}DeterministicActorCritic"},
    },
    "muzero": {
        **_PLANNING_VARIANTS,
        "node": {"value_normalization": "node", "unvisited": "lowest", "dirichlet_fraction": 0.0},
        "own_network": {"model": f"{_OWN}MuZero"},
    },
    "gumbel_muzero": {
        **_PLANNING_VARIANTS,
        "gumbel_scale": {"temperature_mode": "gumbel_scale", "temperature": 0.5},
        "few_considered": {"max_num_considered_actions": 2, "rescale_values": False},
        "own_network": {"model": f"{_OWN}MuZero"},
    },
    "efficientzero": {
        **_PLANNING_VARIANTS,
        "without_prefix": {"value_prefix": False},
        "without_consistency": {"consistency_coef": 0.0},
        "old_windows": {"horizon_age": 10, "search_value_age": 20},
    },
    "scalezero": {
        **{name: changes for name, changes in _PLANNING_VARIANTS.items() if "actions" not in changes},
        "puct": {"search": "puct", "dirichlet_fraction": 0.5},
        "dense": {"experts": 0, "layers": 1, "heads": 1, "context_length": 1},
        "layer_norm": {"latent_norm": "layer_norm"},
        "stages": {"stages": 3, "stage_updates": 1},
        "own_network": {"model": f"{_OWN}Encoder"},
    },
    "dreamer": {
        "schedule": _CURVE | {"learning_rate_schedule": "linear", "entropy_coef_schedule": "cosine"},
        "all_starts": {"imagination_starts": None},
        "pathwise": {"actor_gradient": "pathwise"},
        "gaussian": {"number_heads": "gaussian", "free_nats": 0.0},
        "own_network": {"model": "rl_training.testing:SmallDreamer"},
    },
}
