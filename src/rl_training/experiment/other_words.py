"""What other libraries call our settings: Stable-Baselines3 and its zoo, CleanRL, d3rlpy, RLlib, LightZero and others.

A name of theirs is not taken for ours, since its meaning may differ; the message says ours, or what to do instead.
"""

from __future__ import annotations

from collections.abc import Collection

from rl_training.experiment.registry import suggest

# Ours, in the order of preference, and what others call it. An algorithm has the first that it knows.
_OURS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("learning_rate",): (
        *("lr", "learn_rate", "learningrate", "q_lr", "critic_lr", "critic_learning_rate", "vf_lr", "step_size"),
        *("qf_learning_rate", "initial_lr", "base_lr"),
    ),
    ("actor_learning_rate", "learning_rate"): ("policy_lr", "actor_lr", "pi_lr", "policy_learning_rate"),
    ("total_timesteps",): (
        *("timesteps", "n_timesteps", "num_timesteps", "total_steps", "max_steps", "num_steps_total", "nb_steps"),
        *("total_frames", "num_frames", "max_timesteps", "total_env_steps", "n_training_steps", "num_updates"),
    ),
    ("num_envs",): (
        *("n_envs", "num_env", "num_environments", "nenvs", "n_env", "training_num", "num_envs_per_worker"),
        "collector_env_num",
    ),
    ("n_steps", "n_step"): (
        *("num_steps", "rollout_length", "rollout_steps", "rollout_fragment_length", "unroll_length", "nsteps"),
        *("n_step", "n_steps", "num_steps_per_env", "nstep", "multi_step"),
    ),
    ("n_step",): ("td_steps",),
    ("unroll_steps",): ("num_unroll_steps",),
    ("num_simulations",): ("collect_num_simulations",),
    ("n_epochs",): ("num_epochs", "update_epochs", "noptepochs", "num_sgd_iter", "epochs", "k_epochs", "ppo_epochs"),
    ("batch_size",): ("batch", "minibatch_size", "mini_batch_size", "sgd_minibatch_size", "batchsize", "mb_size"),
    ("clip_coef",): ("clip", "clip_param", "clip_eps", "cliprange", "eps_clip", "clip_epsilon", "clip_ratio"),
    ("clip_range_vf",): ("clip_vloss", "vf_clip_param", "value_clip"),
    ("ent_coef", "entropy_coef"): (
        *("entropy_coeff", "entropy_weight", "entropy_beta", "entropy_cost", "ent_weight"),
        *("policy_entropy_weight", "policy_entropy_loss_weight"),
    ),
    ("rms_alpha", "cql_alpha", "ent_coef"): ("alpha",),
    ("vf_coef", "value_coef"): (
        *("vf_loss_coeff", "value_loss_coef", "vf_coeff", "value_coeff", "critic_coef", "value_loss_weight"),
    ),
    ("reward_coef",): ("reward_loss_weight",),
    ("policy_coef",): ("policy_loss_weight",),
    ("consistency_coef",): ("ssl_loss_weight",),
    ("max_grad_norm",): (
        *("grad_clip", "gradient_clip", "max_gradient_norm", "clip_grad_norm", "grad_norm", "grad_clip_value"),
    ),
    ("gamma",): ("discount", "discount_factor", "discount_rate"),
    ("gae_lambda", "vtrace_lambda", "return_lambda", "awac_lambda"): ("lam", "lambda", "lambda_", "gae_lam", "lmbda"),
    ("normalize_advantage",): ("norm_adv", "normalize_adv", "standardize_advantages"),
    ("normalize_obs",): ("norm_obs", "observation_scaler", "obs_norm", "normalize_observations", "normalize_states"),
    ("normalize_reward",): ("norm_reward", "reward_scaler", "rew_norm", "normalize_rewards"),
    ("obs_clip",): ("clip_obs", "clip_observations"),
    ("reward_scale_clip", "reward_clip"): ("clip_reward", "clip_rewards"),
    ("buffer_size",): ("replay_size", "memory_size", "capacity", "replay_buffer_size", "buffer_capacity", "memory"),
    ("learning_starts",): (
        *("learning_start", "start_steps", "start_timesteps", "initial_random_steps", "random_steps", "warmup"),
        *("update_after", "num_steps_sampled_before_learning_starts", "start_training", "warmup_steps"),
        "train_start_after_envsteps",
    ),
    ("train_every",): ("train_frequency", "training_frequency", "update_every", "update_interval"),
    ("updates_per_step",): ("utd_ratio", "replay_ratio", "training_intensity", "utd", "updates_per_training"),
    ("target_update_interval",): (
        *("target_network_frequency", "target_network_update_freq", "target_update_freq", "target_update_period"),
        *("target_update", "target_update_every", "hard_update_interval"),
    ),
    ("target_tau", "tau"): ("target_update_theta",),
    ("policy_delay",): ("policy_frequency", "policy_freq", "update_actor_interval", "actor_update_interval"),
    ("target_policy_noise",): ("policy_noise", "target_smoothing_sigma", "target_noise"),
    ("target_noise_clip",): ("noise_clip", "target_smoothing_clip"),
    ("noise_std",): ("exploration_noise", "expl_noise", "act_noise", "action_noise_std"),
    ("double_q",): ("double_dqn", "is_double"),
    ("dueling",): ("dueling_dqn", "is_dueling"),
    ("prioritized",): ("prioritized_replay", "per", "use_priority"),
    ("per_alpha",): ("priority_prob_alpha",),
    ("per_beta",): ("priority_prob_beta",),
    ("temperature",): ("fixed_temperature_value",),
    ("dirichlet_alpha",): ("root_dirichlet_alpha",),
    ("dirichlet_fraction",): ("root_noise_weight",),
    ("top_quantiles_to_drop",): ("top_quantiles_to_drop_per_net",),
    ("rms_eps",): ("rms_prop_eps",),
    ("beta",): ("weight_temp",),
    ("cql_alpha",): ("conservative_weight", "min_q_weight"),
    ("cql_samples",): ("n_action_samples", "num_random_actions"),
    ("n_critics",): ("num_critics", "n_qs", "num_q"),
    ("shared_core",): ("shared_lstm",),
    ("hidden_sizes", "units"): (
        *("net_arch", "fcnet_hiddens", "hidden_dim", "hidden_dims", "hidden_units", "layers"),
        *("hidden_layers", "hidden_layer_sizes", "n_hidden"),
    ),
    ("width",): ("embed_dim",),
    ("layers",): ("num_layers",),
    ("heads",): ("num_heads",),
    ("context_length",): ("infer_context_length",),
    ("latent_group",): ("group_size",),
    ("experts",): ("num_experts_of_moe_in_transformer",),
    ("adapter_rank",): ("lora_r",),
    ("adapter_alpha",): ("lora_alpha",),
    ("stages",): ("curriculum_stage_num",),
    ("first_stage_updates",): ("min_stage0_iters",),
    ("stage_updates",): ("max_stage_iters",),
    ("activation",): ("activation_fn", "activation_function", "fcnet_activation", "nonlinearity"),
    ("env_id",): ("env", "env_name", "environment", "gym_id", "environment_name"),
    ("tasks", "env_id"): ("task",),
    ("tasks",): ("env_id_list",),
    ("env_kwargs",): ("env_config", "env_args", "environment_kwargs", "env_params"),
    ("time_limit",): ("max_episode_steps", "max_episode_length", "max_ep_len", "episode_length"),
    ("frame_stack",): ("n_stack", "n_frames", "num_stack", "framestack", "stack_frames"),
    ("eval_interval",): ("eval_freq", "evaluation_interval", "eval_frequency", "eval_every", "test_freq"),
    ("eval_episodes",): (
        *("n_eval_episodes", "num_eval_episodes", "evaluation_duration", "test_num", "eval_eps", "n_evaluator_episode"),
    ),
    ("checkpoint_interval",): ("save_freq", "checkpoint_freq", "save_interval", "checkpoint_frequency", "save_every"),
    ("log_interval",): ("log_freq", "log_every", "logging_interval"),
    ("output_dir",): ("save_path", "log_folder", "log_path", "results_dir", "local_dir", "save_dir", "storage_path"),
    ("num_workers",): ("num_rollout_workers", "num_env_runners", "n_workers", "num_actors"),
    ("seed",): ("random_state", "random_seed", "rng_seed"),
    ("her",): ("replay_buffer_class", "replay_buffer_kwargs", "goal_selection_strategy"),
    ("dataset",): ("dataset_id", "dataset_path", "offline_data", "demos", "buffer_path"),
}

_TENSORBOARD = "give loggers=[tensorboard]; its files are in the run's folder, in output_dir"
_WANDB = "give loggers=[wandb]"
_MEMORY = "every algorithm has a memory of its own, whose size is buffer_size or n_steps"
_OPTIMIZER = "the optimiser belongs to the algorithm; `rl-training describe` shows what can be set of it"
_OWN_NETWORK = "give a network of your own as model='module:Name'"
_WRAPPER = "give env_id='module:function', a function that makes the environment with its wrappers"
_DEVICE = "give device=cuda or device=cpu"
# What has no counterpart of the same kind, and what to do instead.
_EXPLAINED = {
    "policy": "the kind of network follows from the spaces; hidden_sizes, activation and model say more",
    "policy_kwargs": (
        "its entries are settings themselves: net_arch is hidden_sizes (pi and vf become {policy: ..., value: ...}), "
        "activation_fn is activation, ortho_init, log_std_init and n_critics keep their names, and a "
        "features_extractor_class is model='module:Name'"
    ),
    "model_config": "its entries are settings: fcnet_hiddens is hidden_sizes, fcnet_activation is activation",
    "verbose": "a class shows nothing unless learn(progress_bar=True) asks; the command shows progress unless --quiet",
    "stats_window_size": "episode_return_mean is always that of the last 100 episodes",
    "_init_setup_model": "networks are always made with the agent",
    "tensorboard_log": _TENSORBOARD,
    "tensorboard": _TENSORBOARD,
    "log_dir": _TENSORBOARD,
    "logdir": _TENSORBOARD,
    "track": _WANDB,
    "use_wandb": _WANDB,
    "wandb": _WANDB,
    "wandb_project": _WANDB,
    "wandb_project_name": _WANDB,
    "wandb_entity": _WANDB,
    "exp_name": "give output_dir, or tags",
    "capture_video": "wrap the environment in Gymnasium's RecordVideo, in a function that makes it",
    "torch_deterministic": "runs are always deterministic on a CPU",
    "framework": "there is PyTorch alone",
    "cuda": _DEVICE,
    "use_gpu": _DEVICE,
    "gpu": _DEVICE,
    "num_gpus": _DEVICE,
    "anneal_lr": "give learning_rate_schedule=linear",
    "action_noise": (
        "give noise_std, the deviation of Gaussian noise on actions in [-1, 1], to ddpg and td3; the policies of sac, "
        "tqc and redq explore by themselves"
    ),
    "rollout_buffer_class": _MEMORY,
    "rollout_buffer_kwargs": _MEMORY,
    "replay_buffer_class": _MEMORY,
    "replay_buffer_kwargs": _MEMORY,
    "use_sde": "its policy explores by its own noise; ppo, a2c, trpo and ppg have use_sde",
    "sde_sample_freq": "its policy explores by its own noise; ppo, a2c, trpo and ppg have use_sde",
    "optimizer_class": _OPTIMIZER,
    "optimizer_kwargs": _OPTIMIZER,
    "optim_factory": _OPTIMIZER,
    "features_extractor_class": _OWN_NETWORK,
    "features_extractor_kwargs": _OWN_NETWORK,
    "encoder_factory": _OWN_NETWORK,
    "q_func_factory": _OWN_NETWORK,
    "custom_model": _OWN_NETWORK,
    "action_scaler": "actions are always in [-1, 1] for the networks",
    "normalize": "give normalize_obs=true and normalize_reward=true",
    "env_wrapper": _WRAPPER,
    "env_wrappers": _WRAPPER,
    "wrapper_class": _WRAPPER,
    "vec_env_cls": "give vectorization=sync or vectorization=async",
    "vec_env_class": "give vectorization=sync or vectorization=async",
    "vec_env_type": "give vectorization=sync or vectorization=async",
    "hyperparams": "settings are given one by one, as key=value",
    "callback": "give it to learn(callback=...), or as callbacks=[module:Name] in a config",
}
# The same, where the algorithm has a certain setting.
_EXPLAINED_BY = {
    "epsilon": dict.fromkeys(
        (
            *("exploration_fraction", "exploration_initial_eps", "exploration_final_eps", "exploration_config"),
            *("start_e", "end_e", "eps_start", "eps_end", "eps_decay"),
            *("epsilon_start", "epsilon_end", "epsilon_decay", "epsilon_greedy"),
        ),
        "here it is one schedule: epsilon_schedule={type: linear, start: 1.0, end: 0.05, fraction: 0.1}",
    ),
    "n_steps": {
        "num_minibatches": "give batch_size, which is n_steps * num_envs / num_minibatches",
        "nminibatches": "give batch_size, which is n_steps * num_envs / nminibatches",
        "train_batch_size": "a rollout has n_steps * num_envs steps, and a minibatch of it batch_size",
        "train_freq": "it learns after every rollout of n_steps in each environment",
    },
    "updates_per_step": {
        "gradient_steps": (
            "give updates_per_step, the updates for each environment step: gradient_steps / "
            "(train_freq * num_envs), and 1 for gradient_steps=-1"
        ),
        "update_per_collect": "give updates_per_step, the updates for each environment step",
    },
    "tau": {
        "polyak": "give tau, which is 1 - polyak",
        "target_update_interval": "target networks follow with every update, by tau",
    },
    "target_entropy": {
        "autotune": "give ent_coef=auto, which is the default",
        "automatic_entropy_tuning": "give ent_coef=auto, which is the default",
        "initial_temperature": "give ent_coef=auto_0.1 to begin with 0.1",
    },
    "rms_alpha": {
        "use_rms_prop": "its optimiser is RMSprop, with rms_alpha and rms_eps",
    },
    "rnn": {
        "n_lstm_layers": "there is one layer, of rnn_hidden_size",
    },
    "shared_core": {
        "enable_critic_lstm": "give shared_core=false for a critic with a memory of its own",
    },
    "num_simulations": {
        "eval_num_simulations": "num_simulations is that of training and of evaluation",
    },
    "temperature": dict.fromkeys(
        ("manual_temperature_decay", "threshold_training_steps_for_final_temperature"),
        "give temperature_schedule, such as {type: linear, start: 1.0, end: 0.25}",
    ),
    "value_limit": dict.fromkeys(
        ("support_scale", "support_size", "value_support_range", "reward_support_range"),
        "give value_limit and reward_limit, the largest value and reward, and the numbers of points, value_bins and "
        "reward_bins",
    ),
    "latent_norm": dict.fromkeys(
        ("predict_latent_loss_type", "final_norm_option_in_encoder", "final_norm_option_in_obs_head"),
        "latent_norm chooses both the norm and the loss: simnorm with its divergence, layer_norm with squared errors",
    ),
    "experts": dict.fromkeys(
        ("num_experts_per_tok", "n_shared_experts"), "every token goes to one of the experts and through one shared one"
    ),
    "adapter_rank": {
        "lora_dropout": "adapters have no dropout",
    },
    "learning_starts": {
        "use_sde_at_warmup": "actions are uniform before learning_starts",
    },
    "buffer_size": {
        "optimize_memory_usage": "frames are always stored once",
    },
    "gae_lambda": {
        "gae": "give gae_lambda",
    },
    "cg_damping": {
        "sub_sampling_factor": "all of a rollout is used",
    },
}
_ALL = {name for ours in _OURS for name in ours} | _EXPLAINED_BY.keys()
_PREFERRED = {theirs: ours for ours, others in _OURS.items() for theirs in others}


def unknown_key(key: str, known: Collection[str]) -> str:
    """The message for a key that is none of these settings: what it is called here, or the nearest one."""
    return f"{key}: unknown key" + (in_our_words(key, known) or _schedule_of(key, known) or suggest(key, known))


def in_our_words(key: str, known: Collection[str] = _ALL) -> str | None:
    """What a name of another library is among these settings of ours, as the end of a sentence; None if unknown."""
    name, colon, value = key.partition(":")
    if colon and name in known:  # one key, as YAML reads {name:value}
        return f"; a space is missing after the colon, as in {name}: {value}"
    ours = our_name(key, known)
    if ours is not None:
        return f"; here it is {ours!r}"
    words = next((more[key] for need, more in _EXPLAINED_BY.items() if need in known and key in more), None)
    words = words or _EXPLAINED.get(key)
    return None if words is None else f"; {words}"


def our_name(key: str, known: Collection[str] = _ALL) -> str | None:
    """The setting of ours that another library calls so, if there is one among these."""
    return next((name for name in _PREFERRED.get(key, ()) if name in known and name != key), None)


def _schedule_of(key: str, known: Collection[str]) -> str | None:
    """The same for the schedule or the warm-up of such a setting."""
    for suffix in ("_schedule", "_warmup_steps"):
        ours = our_name(key.removesuffix(suffix), known) if key.endswith(suffix) else None
        if ours is not None:
            return f"; here it is {ours + suffix!r}"
    return None
