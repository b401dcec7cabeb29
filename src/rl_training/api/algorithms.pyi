"""The agents, with their settings. Written by benchmarks/stubs.py from the config fields."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from rl_training.api.agent import Agent as Agent
from rl_training.runtime.envs.given import Env

class PPO(Agent):
    """Proximal policy optimisation.

    Settings, of which those marked with * also take X_schedule and X_warmup_steps:

    learning_rate*: float = 0.0003
        Step size of the optimiser. It is at least 0.
    gamma*: float = 0.99
        Discount factor. It is at least 0 and at most 1.
    ent_coef*: float = 0.0
        Weight of the entropy bonus. It is at least 0. Also: entropy_coef.
    normalize_advantage: bool = True
        Standardise advantages in every minibatch.
    normalize_obs: bool = False
        Scale observations by running mean and deviation.
    obs_clip: float = 10.0
        Scaled observations stay within this. It is above 0.
    normalize_reward: bool = False
        Scale rewards by the running deviation of the discounted return.
    reward_scale_clip: float = 10.0
        Scaled rewards stay within this. It is above 0.
    gae_lambda*: float = 0.95
        Trace decay of the advantage estimate. It is at least 0 and at most 1.
    vf_coef*: float = 0.5
        Weight of the value loss, the mean squared error. It is at least 0.
    max_grad_norm*: float = 0.5
        Gradients are scaled down to this norm. It is above 0.
    batch_size: int = 64
        Samples in a minibatch. It is at least 1.
    n_epochs: int = 10
        Passes over each rollout. It is at least 1.
    clip_coef*: float = 0.2
        The probability ratio is kept within 1 +- this. It is at least 0. Also: clip_range.
    clip_range_vf*: float | None = None
        Values are kept within this of the old ones; not clipped if null. It is above 0.
    target_kl*: float | None = None
        An update ends before the step whose KL exceeds 1.5 times this; never if null. It is above 0.
    adam_eps: float = 1e-05
        Adam's epsilon. It is above 0.
    time_limit: int | None = None
        Truncate episodes after this many steps; the environment's own limit if null. It is at least 1.
    frame_stack: int = 1
        How many of the latest observations the policy sees. It is at least 1.
    reward_clip: float | None = None
        Clip rewards to +- this for learning; reported returns are not clipped. It is above 0.
    n_steps: int = 256
        Steps of each environment between two updates. It is at least 1.
    model: str | Callable[..., Any] = "auto"
        `auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in
        Python also the class or function itself.
    hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64, 64)
        Widths of the hidden layers: a list, or a mapping with one for each of policy, value, encoder.
    activation: str | type = "tanh"
        Activation of hidden layers. MLPs with tanh, relu, silu have a fast path on a CPU; others are computed by
        autograd.
    image_encoder: Literal["nature", "impala"] = "nature"
        Network of images: `nature`, three convolutions (from 36 pixels each way), or `impala`, a residual network
        of 15 (from 8).
    share_encoder: bool = True
        One encoder (of images, Dict observations, or hidden_sizes.encoder) for policy and value, which learns
        from both; one each if false.
    ortho_init: bool = True
        Orthogonal initialisation; torch's default otherwise.
    log_std_init: float | Literal["auto"] = "auto"
        Initial log standard deviation of continuous actions, in the policy's units: its actions are in [-1, 1].
        `auto`: the network computes actions in the environment's units, with a deviation of one unit (at most 1).
    use_sde: bool = False
        State-dependent exploration (gSDE) of continuous actions.
    sde_sample_freq: int | None = None
        Steps between two draws of gSDE's noise; once per rollout if null. It is at least 1.
    env_packages: str | Sequence[str] = ()
        Modules that are imported before ids are looked up.
    env_kwargs: Mapping[str, Any] = {}
        Arguments of the environment.
    vectorization: Literal["auto", "native", "sync", "async"] = "auto"
        How environments are stepped together; `auto` is native where that is faster, else sync.
    env_timeout: float | None = 300.0
        Seconds that an environment in its own process (`async`) has for a step or a reset; null for any. It is
        above 0.
    num_envs: int = 8
        Environments that are stepped together; those of all workers. It is at least 1.
    actors: Literal["inline", "process", "ray"] = "inline"
        Where workers gather: in this process, in processes of their own, or on a Ray cluster.
    num_workers: int = 1
        Workers that gather; each has num_envs / num_workers environments. It is at least 1.
    order: Literal["auto", "fixed", "arrival"] = "auto"
        Learn from rollouts in a fixed order, which is exact, or as they arrive; `auto`: arrival for ray.
    rollout_deadline: float | None = 600.0
        Seconds that a worker may take for a rollout before it is replaced; null for any. It is above 0.
    worker_restarts: int = 10
        How many workers may be lost and replaced before the run is saved and ends. It is at least 0.
    ray_address: str | None = None
        Address of a Ray cluster for `actors: ray`; a cluster of its own if null.
    seed: int = 0
        Seed of everything random in the run. It is at least 0.
    total_timesteps: int = 100000
        Environment steps of the run; updates, where it learns offline. It is at least 1. Also: total_updates.
    eval_interval: int | None = None
        Evaluate whenever this many steps have passed; at the end if null. It is at least 1.
    eval_episodes: int = 10
        Episodes of an evaluation, with seeds that never change. It is at least 1.
    early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
        A rule that ends the run early, or a list of them.
    checkpoint_interval: int = 25000
        Save whenever this many steps have passed. It is at least 1.
    keep_checkpoints: int = 3
        How many checkpoints are kept, besides the best and spare ones. It is at least 2.
    log_interval: int = 1000
        Write metrics whenever this many steps have passed. It is at least 1.
    output_dir: str = "runs"
        Folder in which the run's folder is made.
    device: str = "auto"
        `cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.
    engine: Literal["auto", "autograd"] = "auto"
        `auto` uses the compiled path on a CPU where there is one (MLPs, small world models); `autograd`: torch
        alone.
    threads: int = 1
        Threads of torch and BLAS. More than one pays for wide networks on a quiet machine. It is at least 1.
    stretch_schedules: bool = False
        Stretch the schedules of a resumed run over its new number of steps.
    callbacks: Sequence[str] = ()
        Your own callbacks, each `module:Name`.
    loggers: str | Sequence[str] = ()
        Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names).
    tags: Sequence[str] = ()
        Labels of the run.
    """

    def __init__(
        self,
        env: Env,
        *,
        learning_rate: float = 0.0003,
        learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        learning_rate_warmup_steps: int | None = None,
        gamma: float = 0.99,
        gamma_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gamma_warmup_steps: int | None = None,
        ent_coef: float = 0.0,
        ent_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        ent_coef_warmup_steps: int | None = None,
        entropy_coef: float = 0.0,
        entropy_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        entropy_coef_warmup_steps: int | None = None,
        normalize_advantage: bool = True,
        normalize_obs: bool = False,
        obs_clip: float = 10.0,
        normalize_reward: bool = False,
        reward_scale_clip: float = 10.0,
        gae_lambda: float = 0.95,
        gae_lambda_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gae_lambda_warmup_steps: int | None = None,
        vf_coef: float = 0.5,
        vf_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        vf_coef_warmup_steps: int | None = None,
        max_grad_norm: float = 0.5,
        max_grad_norm_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        max_grad_norm_warmup_steps: int | None = None,
        batch_size: int = 64,
        n_epochs: int = 10,
        clip_coef: float = 0.2,
        clip_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        clip_coef_warmup_steps: int | None = None,
        clip_range: float = 0.2,
        clip_range_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        clip_range_warmup_steps: int | None = None,
        clip_range_vf: float | None = None,
        clip_range_vf_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        clip_range_vf_warmup_steps: int | None = None,
        target_kl: float | None = None,
        target_kl_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        target_kl_warmup_steps: int | None = None,
        adam_eps: float = 1e-05,
        time_limit: int | None = None,
        frame_stack: int = 1,
        reward_clip: float | None = None,
        n_steps: int = 256,
        model: str | Callable[..., Any] = "auto",
        hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64, 64),
        activation: str | type = "tanh",
        image_encoder: Literal["nature", "impala"] = "nature",
        share_encoder: bool = True,
        ortho_init: bool = True,
        log_std_init: float | Literal["auto"] = "auto",
        use_sde: bool = False,
        sde_sample_freq: int | None = None,
        env_packages: str | Sequence[str] = (),
        env_kwargs: Mapping[str, Any] = ...,
        vectorization: Literal["auto", "native", "sync", "async"] = "auto",
        env_timeout: float | None = 300.0,
        num_envs: int = 8,
        actors: Literal["inline", "process", "ray"] = "inline",
        num_workers: int = 1,
        order: Literal["auto", "fixed", "arrival"] = "auto",
        rollout_deadline: float | None = 600.0,
        worker_restarts: int = 10,
        ray_address: str | None = None,
        seed: int = 0,
        total_timesteps: int = 100000,
        total_updates: int = 100000,
        eval_interval: int | None = None,
        eval_episodes: int = 10,
        early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        checkpoint_interval: int = 25000,
        keep_checkpoints: int = 3,
        log_interval: int = 1000,
        output_dir: str = "runs",
        device: str = "auto",
        engine: Literal["auto", "autograd"] = "auto",
        threads: int = 1,
        stretch_schedules: bool = False,
        callbacks: Sequence[str] = (),
        loggers: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        algo_kwargs: Mapping[str, Any] | None = None,
    ) -> None: ...

class A2C(Agent):
    """Advantage actor-critic.

    Settings, of which those marked with * also take X_schedule and X_warmup_steps:

    learning_rate*: float = 0.0007
        Step size of the optimiser. It is at least 0.
    gamma*: float = 0.99
        Discount factor. It is at least 0 and at most 1.
    ent_coef*: float = 0.0
        Weight of the entropy bonus. It is at least 0. Also: entropy_coef.
    normalize_advantage: bool = False
        Standardise advantages in every update.
    normalize_obs: bool = False
        Scale observations by running mean and deviation.
    obs_clip: float = 10.0
        Scaled observations stay within this. It is above 0.
    normalize_reward: bool = False
        Scale rewards by the running deviation of the discounted return.
    reward_scale_clip: float = 10.0
        Scaled rewards stay within this. It is above 0.
    gae_lambda*: float = 1.0
        Trace decay of the advantage estimate. It is at least 0 and at most 1.
    vf_coef*: float = 0.5
        Weight of the value loss, the mean squared error. It is at least 0.
    max_grad_norm*: float = 0.5
        Gradients are scaled down to this norm. It is above 0.
    rms_alpha: float = 0.99
        RMSprop's decay of squared gradients. It is at least 0 and below 1.
    rms_eps: float = 1e-05
        RMSprop's epsilon. It is above 0.
    time_limit: int | None = None
        Truncate episodes after this many steps; the environment's own limit if null. It is at least 1.
    frame_stack: int = 1
        How many of the latest observations the policy sees. It is at least 1.
    reward_clip: float | None = None
        Clip rewards to +- this for learning; reported returns are not clipped. It is above 0.
    n_steps: int = 5
        Steps of each environment between two updates, each of n_steps * num_envs samples. It is at least 1.
    model: str | Callable[..., Any] = "auto"
        `auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in
        Python also the class or function itself.
    hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64, 64)
        Widths of the hidden layers: a list, or a mapping with one for each of policy, value, encoder.
    activation: str | type = "tanh"
        Activation of hidden layers. MLPs with tanh, relu, silu have a fast path on a CPU; others are computed by
        autograd.
    image_encoder: Literal["nature", "impala"] = "nature"
        Network of images: `nature`, three convolutions (from 36 pixels each way), or `impala`, a residual network
        of 15 (from 8).
    share_encoder: bool = True
        One encoder (of images, Dict observations, or hidden_sizes.encoder) for policy and value, which learns
        from both; one each if false.
    ortho_init: bool = True
        Orthogonal initialisation; torch's default otherwise.
    log_std_init: float | Literal["auto"] = "auto"
        Initial log standard deviation of continuous actions, in the policy's units: its actions are in [-1, 1].
        `auto`: the network computes actions in the environment's units, with a deviation of one unit (at most 1).
    use_sde: bool = False
        State-dependent exploration (gSDE) of continuous actions.
    sde_sample_freq: int | None = None
        Steps between two draws of gSDE's noise; once per rollout if null. It is at least 1.
    env_packages: str | Sequence[str] = ()
        Modules that are imported before ids are looked up.
    env_kwargs: Mapping[str, Any] = {}
        Arguments of the environment.
    vectorization: Literal["auto", "native", "sync", "async"] = "auto"
        How environments are stepped together; `auto` is native where that is faster, else sync.
    env_timeout: float | None = 300.0
        Seconds that an environment in its own process (`async`) has for a step or a reset; null for any. It is
        above 0.
    num_envs: int = 8
        Environments that are stepped together; those of all workers. It is at least 1.
    actors: Literal["inline", "process", "ray"] = "inline"
        Where workers gather: in this process, in processes of their own, or on a Ray cluster.
    num_workers: int = 1
        Workers that gather; each has num_envs / num_workers environments. It is at least 1.
    order: Literal["auto", "fixed", "arrival"] = "auto"
        Learn from rollouts in a fixed order, which is exact, or as they arrive; `auto`: arrival for ray.
    rollout_deadline: float | None = 600.0
        Seconds that a worker may take for a rollout before it is replaced; null for any. It is above 0.
    worker_restarts: int = 10
        How many workers may be lost and replaced before the run is saved and ends. It is at least 0.
    ray_address: str | None = None
        Address of a Ray cluster for `actors: ray`; a cluster of its own if null.
    seed: int = 0
        Seed of everything random in the run. It is at least 0.
    total_timesteps: int = 100000
        Environment steps of the run; updates, where it learns offline. It is at least 1. Also: total_updates.
    eval_interval: int | None = None
        Evaluate whenever this many steps have passed; at the end if null. It is at least 1.
    eval_episodes: int = 10
        Episodes of an evaluation, with seeds that never change. It is at least 1.
    early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
        A rule that ends the run early, or a list of them.
    checkpoint_interval: int = 25000
        Save whenever this many steps have passed. It is at least 1.
    keep_checkpoints: int = 3
        How many checkpoints are kept, besides the best and spare ones. It is at least 2.
    log_interval: int = 1000
        Write metrics whenever this many steps have passed. It is at least 1.
    output_dir: str = "runs"
        Folder in which the run's folder is made.
    device: str = "auto"
        `cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.
    engine: Literal["auto", "autograd"] = "auto"
        `auto` uses the compiled path on a CPU where there is one (MLPs, small world models); `autograd`: torch
        alone.
    threads: int = 1
        Threads of torch and BLAS. More than one pays for wide networks on a quiet machine. It is at least 1.
    stretch_schedules: bool = False
        Stretch the schedules of a resumed run over its new number of steps.
    callbacks: Sequence[str] = ()
        Your own callbacks, each `module:Name`.
    loggers: str | Sequence[str] = ()
        Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names).
    tags: Sequence[str] = ()
        Labels of the run.
    """

    def __init__(
        self,
        env: Env,
        *,
        learning_rate: float = 0.0007,
        learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        learning_rate_warmup_steps: int | None = None,
        gamma: float = 0.99,
        gamma_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gamma_warmup_steps: int | None = None,
        ent_coef: float = 0.0,
        ent_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        ent_coef_warmup_steps: int | None = None,
        entropy_coef: float = 0.0,
        entropy_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        entropy_coef_warmup_steps: int | None = None,
        normalize_advantage: bool = False,
        normalize_obs: bool = False,
        obs_clip: float = 10.0,
        normalize_reward: bool = False,
        reward_scale_clip: float = 10.0,
        gae_lambda: float = 1.0,
        gae_lambda_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gae_lambda_warmup_steps: int | None = None,
        vf_coef: float = 0.5,
        vf_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        vf_coef_warmup_steps: int | None = None,
        max_grad_norm: float = 0.5,
        max_grad_norm_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        max_grad_norm_warmup_steps: int | None = None,
        rms_alpha: float = 0.99,
        rms_eps: float = 1e-05,
        time_limit: int | None = None,
        frame_stack: int = 1,
        reward_clip: float | None = None,
        n_steps: int = 5,
        model: str | Callable[..., Any] = "auto",
        hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64, 64),
        activation: str | type = "tanh",
        image_encoder: Literal["nature", "impala"] = "nature",
        share_encoder: bool = True,
        ortho_init: bool = True,
        log_std_init: float | Literal["auto"] = "auto",
        use_sde: bool = False,
        sde_sample_freq: int | None = None,
        env_packages: str | Sequence[str] = (),
        env_kwargs: Mapping[str, Any] = ...,
        vectorization: Literal["auto", "native", "sync", "async"] = "auto",
        env_timeout: float | None = 300.0,
        num_envs: int = 8,
        actors: Literal["inline", "process", "ray"] = "inline",
        num_workers: int = 1,
        order: Literal["auto", "fixed", "arrival"] = "auto",
        rollout_deadline: float | None = 600.0,
        worker_restarts: int = 10,
        ray_address: str | None = None,
        seed: int = 0,
        total_timesteps: int = 100000,
        total_updates: int = 100000,
        eval_interval: int | None = None,
        eval_episodes: int = 10,
        early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        checkpoint_interval: int = 25000,
        keep_checkpoints: int = 3,
        log_interval: int = 1000,
        output_dir: str = "runs",
        device: str = "auto",
        engine: Literal["auto", "autograd"] = "auto",
        threads: int = 1,
        stretch_schedules: bool = False,
        callbacks: Sequence[str] = (),
        loggers: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        algo_kwargs: Mapping[str, Any] | None = None,
    ) -> None: ...

class TRPO(Agent):
    """Trust region policy optimisation.

    Settings, of which those marked with * also take X_schedule and X_warmup_steps:

    learning_rate*: float = 0.001
        Step size of the critic's optimiser. It is at least 0.
    gamma*: float = 0.99
        Discount factor. It is at least 0 and at most 1.
    ent_coef*: float = 0.0
        Weight of the entropy bonus. It is at least 0. Also: entropy_coef.
    normalize_advantage: bool = True
        Standardise the advantages of every rollout.
    normalize_obs: bool = False
        Scale observations by running mean and deviation.
    obs_clip: float = 10.0
        Scaled observations stay within this. It is above 0.
    normalize_reward: bool = False
        Scale rewards by the running deviation of the discounted return.
    reward_scale_clip: float = 10.0
        Scaled rewards stay within this. It is above 0.
    gae_lambda*: float = 0.95
        Trace decay of the advantage estimate. It is at least 0 and at most 1.
    target_kl*: float = 0.01
        Largest mean KL(old || new) of a policy step. It is at least 0.
    cg_max_steps: int = 15
        Steps of conjugate gradients for the natural gradient. It is at least 1.
    cg_damping*: float = 0.1
        Added to the diagonal of the Fisher information. It is at least 0.
    line_search_shrinking_factor*: float = 0.8
        A step that is not accepted is shortened by this factor. It is above 0 and below 1.
    line_search_max_iter: int = 10
        Step lengths to try; if all are rejected, the policy stays. It is at least 1.
    n_critic_updates: int = 10
        Passes of the critic over each rollout. It is at least 1.
    batch_size: int = 128
        Samples in a minibatch of the critic. It is at least 1.
    time_limit: int | None = None
        Truncate episodes after this many steps; the environment's own limit if null. It is at least 1.
    frame_stack: int = 1
        How many of the latest observations the policy sees. It is at least 1.
    reward_clip: float | None = None
        Clip rewards to +- this for learning; reported returns are not clipped. It is above 0.
    n_steps: int = 256
        Steps of each environment between two updates. It is at least 1.
    model: str | Callable[..., Any] = "auto"
        `auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in
        Python also the class or function itself.
    hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64, 64)
        Widths of the hidden layers: a list, or a mapping with one for each of policy, value, encoder.
    activation: str | type = "tanh"
        Activation of hidden layers. MLPs with tanh, relu, silu have a fast path on a CPU; others are computed by
        autograd.
    image_encoder: Literal["nature", "impala"] = "nature"
        Network of images: `nature`, three convolutions (from 36 pixels each way), or `impala`, a residual network
        of 15 (from 8).
    share_encoder: bool = True
        One encoder (of images, Dict observations, or hidden_sizes.encoder) for policy and value, which learns
        from both; one each if false.
    ortho_init: bool = True
        Orthogonal initialisation; torch's default otherwise.
    log_std_init: float | Literal["auto"] = "auto"
        Initial log standard deviation of continuous actions, in the policy's units: its actions are in [-1, 1].
        `auto`: the network computes actions in the environment's units, with a deviation of one unit (at most 1).
    use_sde: bool = False
        State-dependent exploration (gSDE) of continuous actions.
    sde_sample_freq: int | None = None
        Steps between two draws of gSDE's noise; once per rollout if null. It is at least 1.
    env_packages: str | Sequence[str] = ()
        Modules that are imported before ids are looked up.
    env_kwargs: Mapping[str, Any] = {}
        Arguments of the environment.
    vectorization: Literal["auto", "native", "sync", "async"] = "auto"
        How environments are stepped together; `auto` is native where that is faster, else sync.
    env_timeout: float | None = 300.0
        Seconds that an environment in its own process (`async`) has for a step or a reset; null for any. It is
        above 0.
    num_envs: int = 8
        Environments that are stepped together; those of all workers. It is at least 1.
    actors: Literal["inline", "process", "ray"] = "inline"
        Where workers gather: in this process, in processes of their own, or on a Ray cluster.
    num_workers: int = 1
        Workers that gather; each has num_envs / num_workers environments. It is at least 1.
    order: Literal["auto", "fixed", "arrival"] = "auto"
        Learn from rollouts in a fixed order, which is exact, or as they arrive; `auto`: arrival for ray.
    rollout_deadline: float | None = 600.0
        Seconds that a worker may take for a rollout before it is replaced; null for any. It is above 0.
    worker_restarts: int = 10
        How many workers may be lost and replaced before the run is saved and ends. It is at least 0.
    ray_address: str | None = None
        Address of a Ray cluster for `actors: ray`; a cluster of its own if null.
    seed: int = 0
        Seed of everything random in the run. It is at least 0.
    total_timesteps: int = 100000
        Environment steps of the run; updates, where it learns offline. It is at least 1. Also: total_updates.
    eval_interval: int | None = None
        Evaluate whenever this many steps have passed; at the end if null. It is at least 1.
    eval_episodes: int = 10
        Episodes of an evaluation, with seeds that never change. It is at least 1.
    early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
        A rule that ends the run early, or a list of them.
    checkpoint_interval: int = 25000
        Save whenever this many steps have passed. It is at least 1.
    keep_checkpoints: int = 3
        How many checkpoints are kept, besides the best and spare ones. It is at least 2.
    log_interval: int = 1000
        Write metrics whenever this many steps have passed. It is at least 1.
    output_dir: str = "runs"
        Folder in which the run's folder is made.
    device: str = "auto"
        `cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.
    engine: Literal["auto", "autograd"] = "auto"
        `auto` uses the compiled path on a CPU where there is one (MLPs, small world models); `autograd`: torch
        alone.
    threads: int = 1
        Threads of torch and BLAS. More than one pays for wide networks on a quiet machine. It is at least 1.
    stretch_schedules: bool = False
        Stretch the schedules of a resumed run over its new number of steps.
    callbacks: Sequence[str] = ()
        Your own callbacks, each `module:Name`.
    loggers: str | Sequence[str] = ()
        Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names).
    tags: Sequence[str] = ()
        Labels of the run.
    """

    def __init__(
        self,
        env: Env,
        *,
        learning_rate: float = 0.001,
        learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        learning_rate_warmup_steps: int | None = None,
        gamma: float = 0.99,
        gamma_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gamma_warmup_steps: int | None = None,
        ent_coef: float = 0.0,
        ent_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        ent_coef_warmup_steps: int | None = None,
        entropy_coef: float = 0.0,
        entropy_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        entropy_coef_warmup_steps: int | None = None,
        normalize_advantage: bool = True,
        normalize_obs: bool = False,
        obs_clip: float = 10.0,
        normalize_reward: bool = False,
        reward_scale_clip: float = 10.0,
        gae_lambda: float = 0.95,
        gae_lambda_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gae_lambda_warmup_steps: int | None = None,
        target_kl: float = 0.01,
        target_kl_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        target_kl_warmup_steps: int | None = None,
        cg_max_steps: int = 15,
        cg_damping: float = 0.1,
        cg_damping_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        cg_damping_warmup_steps: int | None = None,
        line_search_shrinking_factor: float = 0.8,
        line_search_shrinking_factor_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        line_search_shrinking_factor_warmup_steps: int | None = None,
        line_search_max_iter: int = 10,
        n_critic_updates: int = 10,
        batch_size: int = 128,
        time_limit: int | None = None,
        frame_stack: int = 1,
        reward_clip: float | None = None,
        n_steps: int = 256,
        model: str | Callable[..., Any] = "auto",
        hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64, 64),
        activation: str | type = "tanh",
        image_encoder: Literal["nature", "impala"] = "nature",
        share_encoder: bool = True,
        ortho_init: bool = True,
        log_std_init: float | Literal["auto"] = "auto",
        use_sde: bool = False,
        sde_sample_freq: int | None = None,
        env_packages: str | Sequence[str] = (),
        env_kwargs: Mapping[str, Any] = ...,
        vectorization: Literal["auto", "native", "sync", "async"] = "auto",
        env_timeout: float | None = 300.0,
        num_envs: int = 8,
        actors: Literal["inline", "process", "ray"] = "inline",
        num_workers: int = 1,
        order: Literal["auto", "fixed", "arrival"] = "auto",
        rollout_deadline: float | None = 600.0,
        worker_restarts: int = 10,
        ray_address: str | None = None,
        seed: int = 0,
        total_timesteps: int = 100000,
        total_updates: int = 100000,
        eval_interval: int | None = None,
        eval_episodes: int = 10,
        early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        checkpoint_interval: int = 25000,
        keep_checkpoints: int = 3,
        log_interval: int = 1000,
        output_dir: str = "runs",
        device: str = "auto",
        engine: Literal["auto", "autograd"] = "auto",
        threads: int = 1,
        stretch_schedules: bool = False,
        callbacks: Sequence[str] = (),
        loggers: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        algo_kwargs: Mapping[str, Any] | None = None,
    ) -> None: ...

class PPG(Agent):
    """Phasic policy gradient.

    Settings, of which those marked with * also take X_schedule and X_warmup_steps:

    learning_rate*: float = 0.0003
        Step size of the optimiser. It is at least 0.
    gamma*: float = 0.99
        Discount factor. It is at least 0 and at most 1.
    ent_coef*: float = 0.01
        Weight of the entropy bonus. It is at least 0. Also: entropy_coef.
    normalize_advantage: bool = True
        Standardise advantages in every minibatch.
    normalize_obs: bool = False
        Scale observations by running mean and deviation.
    obs_clip: float = 10.0
        Scaled observations stay within this. It is above 0.
    normalize_reward: bool = False
        Scale rewards by the running deviation of the discounted return.
    reward_scale_clip: float = 10.0
        Scaled rewards stay within this. It is above 0.
    gae_lambda*: float = 0.95
        Trace decay of the advantage estimate. It is at least 0 and at most 1.
    vf_coef*: float = 0.5
        Weight of the value loss, the mean squared error. It is at least 0.
    max_grad_norm*: float = 0.5
        Gradients are scaled down to this norm. It is above 0.
    batch_size: int = 64
        Samples in a minibatch. It is at least 1.
    n_epochs: int = 1
        Passes over each rollout. It is at least 1.
    clip_coef*: float = 0.2
        The probability ratio is kept within 1 +- this. It is at least 0. Also: clip_range.
    clip_range_vf*: float | None = None
        Values are kept within this of the old ones; not clipped if null. It is above 0.
    target_kl*: float | None = None
        An update ends before the step whose KL exceeds 1.5 times this; never if null. It is above 0.
    adam_eps: float = 1e-05
        Adam's epsilon. It is above 0.
    aux_interval: int = 32
        Rollouts between two auxiliary phases; a shorter run has none. It is at least 1.
    n_aux_epochs: int = 6
        Passes of an auxiliary phase over the rollouts since the last. It is at least 1.
    aux_batch_size: int = 256
        Samples in a minibatch of an auxiliary phase. It is at least 1.
    aux_learning_rate*: float = 0.0005
        Step size of auxiliary phases. It is at least 0.
    beta_clone*: float = 1.0
        Weight of the KL from the old policy in auxiliary phases. It is at least 0.
    time_limit: int | None = None
        Truncate episodes after this many steps; the environment's own limit if null. It is at least 1.
    frame_stack: int = 1
        How many of the latest observations the policy sees. It is at least 1.
    reward_clip: float | None = None
        Clip rewards to +- this for learning; reported returns are not clipped. It is above 0.
    n_steps: int = 256
        Steps of each environment between two updates. It is at least 1.
    model: str | Callable[..., Any] = "auto"
        `auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in
        Python also the class or function itself.
    hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64, 64)
        Widths of the hidden layers: a list, or a mapping with one for each of policy, value, encoder.
    activation: str | type = "tanh"
        Activation of hidden layers. MLPs with tanh, relu, silu have a fast path on a CPU; others are computed by
        autograd.
    image_encoder: Literal["nature", "impala"] = "nature"
        Network of images: `nature`, three convolutions (from 36 pixels each way), or `impala`, a residual network
        of 15 (from 8).
    share_encoder: bool = False
        One encoder (of images, Dict observations, or hidden_sizes.encoder) for policy and value; the value trains
        it in auxiliary phases only.
    ortho_init: bool = True
        Orthogonal initialisation; torch's default otherwise.
    log_std_init: float | Literal["auto"] = "auto"
        Initial log standard deviation of continuous actions, in the policy's units: its actions are in [-1, 1].
        `auto`: the network computes actions in the environment's units, with a deviation of one unit (at most 1).
    use_sde: bool = False
        State-dependent exploration (gSDE) of continuous actions.
    sde_sample_freq: int | None = None
        Steps between two draws of gSDE's noise; once per rollout if null. It is at least 1.
    env_packages: str | Sequence[str] = ()
        Modules that are imported before ids are looked up.
    env_kwargs: Mapping[str, Any] = {}
        Arguments of the environment.
    vectorization: Literal["auto", "native", "sync", "async"] = "auto"
        How environments are stepped together; `auto` is native where that is faster, else sync.
    env_timeout: float | None = 300.0
        Seconds that an environment in its own process (`async`) has for a step or a reset; null for any. It is
        above 0.
    num_envs: int = 8
        Environments that are stepped together; those of all workers. It is at least 1.
    actors: Literal["inline", "process", "ray"] = "inline"
        Where workers gather: in this process, in processes of their own, or on a Ray cluster.
    num_workers: int = 1
        Workers that gather; each has num_envs / num_workers environments. It is at least 1.
    order: Literal["auto", "fixed", "arrival"] = "auto"
        Learn from rollouts in a fixed order, which is exact, or as they arrive; `auto`: arrival for ray.
    rollout_deadline: float | None = 600.0
        Seconds that a worker may take for a rollout before it is replaced; null for any. It is above 0.
    worker_restarts: int = 10
        How many workers may be lost and replaced before the run is saved and ends. It is at least 0.
    ray_address: str | None = None
        Address of a Ray cluster for `actors: ray`; a cluster of its own if null.
    seed: int = 0
        Seed of everything random in the run. It is at least 0.
    total_timesteps: int = 100000
        Environment steps of the run; updates, where it learns offline. It is at least 1. Also: total_updates.
    eval_interval: int | None = None
        Evaluate whenever this many steps have passed; at the end if null. It is at least 1.
    eval_episodes: int = 10
        Episodes of an evaluation, with seeds that never change. It is at least 1.
    early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
        A rule that ends the run early, or a list of them.
    checkpoint_interval: int = 25000
        Save whenever this many steps have passed. It is at least 1.
    keep_checkpoints: int = 3
        How many checkpoints are kept, besides the best and spare ones. It is at least 2.
    log_interval: int = 1000
        Write metrics whenever this many steps have passed. It is at least 1.
    output_dir: str = "runs"
        Folder in which the run's folder is made.
    device: str = "auto"
        `cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.
    engine: Literal["auto", "autograd"] = "auto"
        `auto` uses the compiled path on a CPU where there is one (MLPs, small world models); `autograd`: torch
        alone.
    threads: int = 1
        Threads of torch and BLAS. More than one pays for wide networks on a quiet machine. It is at least 1.
    stretch_schedules: bool = False
        Stretch the schedules of a resumed run over its new number of steps.
    callbacks: Sequence[str] = ()
        Your own callbacks, each `module:Name`.
    loggers: str | Sequence[str] = ()
        Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names).
    tags: Sequence[str] = ()
        Labels of the run.
    """

    def __init__(
        self,
        env: Env,
        *,
        learning_rate: float = 0.0003,
        learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        learning_rate_warmup_steps: int | None = None,
        gamma: float = 0.99,
        gamma_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gamma_warmup_steps: int | None = None,
        ent_coef: float = 0.01,
        ent_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        ent_coef_warmup_steps: int | None = None,
        entropy_coef: float = 0.01,
        entropy_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        entropy_coef_warmup_steps: int | None = None,
        normalize_advantage: bool = True,
        normalize_obs: bool = False,
        obs_clip: float = 10.0,
        normalize_reward: bool = False,
        reward_scale_clip: float = 10.0,
        gae_lambda: float = 0.95,
        gae_lambda_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gae_lambda_warmup_steps: int | None = None,
        vf_coef: float = 0.5,
        vf_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        vf_coef_warmup_steps: int | None = None,
        max_grad_norm: float = 0.5,
        max_grad_norm_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        max_grad_norm_warmup_steps: int | None = None,
        batch_size: int = 64,
        n_epochs: int = 1,
        clip_coef: float = 0.2,
        clip_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        clip_coef_warmup_steps: int | None = None,
        clip_range: float = 0.2,
        clip_range_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        clip_range_warmup_steps: int | None = None,
        clip_range_vf: float | None = None,
        clip_range_vf_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        clip_range_vf_warmup_steps: int | None = None,
        target_kl: float | None = None,
        target_kl_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        target_kl_warmup_steps: int | None = None,
        adam_eps: float = 1e-05,
        aux_interval: int = 32,
        n_aux_epochs: int = 6,
        aux_batch_size: int = 256,
        aux_learning_rate: float = 0.0005,
        aux_learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        aux_learning_rate_warmup_steps: int | None = None,
        beta_clone: float = 1.0,
        beta_clone_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        beta_clone_warmup_steps: int | None = None,
        time_limit: int | None = None,
        frame_stack: int = 1,
        reward_clip: float | None = None,
        n_steps: int = 256,
        model: str | Callable[..., Any] = "auto",
        hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64, 64),
        activation: str | type = "tanh",
        image_encoder: Literal["nature", "impala"] = "nature",
        share_encoder: bool = False,
        ortho_init: bool = True,
        log_std_init: float | Literal["auto"] = "auto",
        use_sde: bool = False,
        sde_sample_freq: int | None = None,
        env_packages: str | Sequence[str] = (),
        env_kwargs: Mapping[str, Any] = ...,
        vectorization: Literal["auto", "native", "sync", "async"] = "auto",
        env_timeout: float | None = 300.0,
        num_envs: int = 8,
        actors: Literal["inline", "process", "ray"] = "inline",
        num_workers: int = 1,
        order: Literal["auto", "fixed", "arrival"] = "auto",
        rollout_deadline: float | None = 600.0,
        worker_restarts: int = 10,
        ray_address: str | None = None,
        seed: int = 0,
        total_timesteps: int = 100000,
        total_updates: int = 100000,
        eval_interval: int | None = None,
        eval_episodes: int = 10,
        early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        checkpoint_interval: int = 25000,
        keep_checkpoints: int = 3,
        log_interval: int = 1000,
        output_dir: str = "runs",
        device: str = "auto",
        engine: Literal["auto", "autograd"] = "auto",
        threads: int = 1,
        stretch_schedules: bool = False,
        callbacks: Sequence[str] = (),
        loggers: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        algo_kwargs: Mapping[str, Any] | None = None,
    ) -> None: ...

class RecurrentPPO(Agent):
    """Recurrent proximal policy optimisation: an LSTM or a GRU.

    Settings, of which those marked with * also take X_schedule and X_warmup_steps:

    learning_rate*: float = 0.0003
        Step size of the optimiser. It is at least 0.
    gamma*: float = 0.99
        Discount factor. It is at least 0 and at most 1.
    ent_coef*: float = 0.0
        Weight of the entropy bonus. It is at least 0. Also: entropy_coef.
    normalize_advantage: bool = True
        Standardise advantages in every minibatch.
    normalize_obs: bool = False
        Scale observations by running mean and deviation.
    obs_clip: float = 10.0
        Scaled observations stay within this. It is above 0.
    normalize_reward: bool = False
        Scale rewards by the running deviation of the discounted return.
    reward_scale_clip: float = 10.0
        Scaled rewards stay within this. It is above 0.
    gae_lambda*: float = 0.95
        Trace decay of the advantage estimate. It is at least 0 and at most 1.
    vf_coef*: float = 0.5
        Weight of the value loss, the mean squared error. It is at least 0.
    max_grad_norm*: float = 0.5
        Gradients are scaled down to this norm. It is above 0.
    batch_size: int = 128
        Steps in a minibatch, which consists of whole sequences (at least one). It is at least 1.
    n_epochs: int = 10
        Passes over each rollout. It is at least 1.
    clip_coef*: float = 0.2
        The probability ratio is kept within 1 +- this. It is at least 0. Also: clip_range.
    clip_range_vf*: float | None = None
        Values are kept within this of the old ones; not clipped if null. It is above 0.
    target_kl*: float | None = None
        An update ends before the step whose KL exceeds 1.5 times this; never if null. It is above 0.
    adam_eps: float = 1e-05
        Adam's epsilon. It is above 0.
    sequence_length: int | None = None
        Steps of an environment through which gradients flow; n_steps (the whole rollout) if null or larger. It is
        at least 1.
    time_limit: int | None = None
        Truncate episodes after this many steps; the environment's own limit if null. It is at least 1.
    frame_stack: int = 1
        How many of the latest observations the policy sees. It is at least 1.
    reward_clip: float | None = None
        Clip rewards to +- this for learning; reported returns are not clipped. It is above 0.
    n_steps: int = 128
        Steps of each environment between two updates. It is at least 1.
    model: str | Callable[..., Any] = "auto"
        `auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in
        Python also the class or function itself.
    hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64, 64)
        Widths of the hidden layers: a list, or a mapping with one for each of policy, value, encoder.
    activation: str | type = "tanh"
        Activation of hidden layers. MLPs with tanh, relu, silu have a fast path on a CPU; others are computed by
        autograd.
    image_encoder: Literal["nature", "impala"] = "nature"
        Network of images: `nature`, three convolutions (from 36 pixels each way), or `impala`, a residual network
        of 15 (from 8).
    share_encoder: bool = True
        One encoder (of images, Dict observations, or hidden_sizes.encoder) for policy and value, which learns
        from both; one each if false.
    ortho_init: bool = True
        Orthogonal initialisation; torch's default otherwise.
    log_std_init: float | Literal["auto"] = "auto"
        Initial log standard deviation of continuous actions, in the policy's units: its actions are in [-1, 1].
        `auto`: the network computes actions in the environment's units, with a deviation of one unit (at most 1).
    rnn: Literal["lstm", "gru"] = "lstm"
        Kind of the recurrent core.
    rnn_hidden_size: int = 128
        Width of the recurrent core. It is at least 1. Also: lstm_hidden_size.
    shared_core: bool = False
        One core for policy and value, which learns from both; one each if false.
    env_packages: str | Sequence[str] = ()
        Modules that are imported before ids are looked up.
    env_kwargs: Mapping[str, Any] = {}
        Arguments of the environment.
    vectorization: Literal["auto", "native", "sync", "async"] = "auto"
        How environments are stepped together; `auto` is native where that is faster, else sync.
    env_timeout: float | None = 300.0
        Seconds that an environment in its own process (`async`) has for a step or a reset; null for any. It is
        above 0.
    num_envs: int = 8
        Environments that are stepped together; those of all workers. It is at least 1.
    actors: Literal["inline", "process", "ray"] = "inline"
        Where workers gather: in this process, in processes of their own, or on a Ray cluster.
    num_workers: int = 1
        Workers that gather; each has num_envs / num_workers environments. It is at least 1.
    order: Literal["auto", "fixed", "arrival"] = "auto"
        Learn from rollouts in a fixed order, which is exact, or as they arrive; `auto`: arrival for ray.
    rollout_deadline: float | None = 600.0
        Seconds that a worker may take for a rollout before it is replaced; null for any. It is above 0.
    worker_restarts: int = 10
        How many workers may be lost and replaced before the run is saved and ends. It is at least 0.
    ray_address: str | None = None
        Address of a Ray cluster for `actors: ray`; a cluster of its own if null.
    seed: int = 0
        Seed of everything random in the run. It is at least 0.
    total_timesteps: int = 100000
        Environment steps of the run; updates, where it learns offline. It is at least 1. Also: total_updates.
    eval_interval: int | None = None
        Evaluate whenever this many steps have passed; at the end if null. It is at least 1.
    eval_episodes: int = 10
        Episodes of an evaluation, with seeds that never change. It is at least 1.
    early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
        A rule that ends the run early, or a list of them.
    checkpoint_interval: int = 25000
        Save whenever this many steps have passed. It is at least 1.
    keep_checkpoints: int = 3
        How many checkpoints are kept, besides the best and spare ones. It is at least 2.
    log_interval: int = 1000
        Write metrics whenever this many steps have passed. It is at least 1.
    output_dir: str = "runs"
        Folder in which the run's folder is made.
    device: str = "auto"
        `cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.
    engine: Literal["auto", "autograd"] = "auto"
        `auto` uses the compiled path on a CPU where there is one (MLPs, small world models); `autograd`: torch
        alone.
    threads: int = 1
        Threads of torch and BLAS. More than one pays for wide networks on a quiet machine. It is at least 1.
    stretch_schedules: bool = False
        Stretch the schedules of a resumed run over its new number of steps.
    callbacks: Sequence[str] = ()
        Your own callbacks, each `module:Name`.
    loggers: str | Sequence[str] = ()
        Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names).
    tags: Sequence[str] = ()
        Labels of the run.
    """

    def __init__(
        self,
        env: Env,
        *,
        learning_rate: float = 0.0003,
        learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        learning_rate_warmup_steps: int | None = None,
        gamma: float = 0.99,
        gamma_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gamma_warmup_steps: int | None = None,
        ent_coef: float = 0.0,
        ent_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        ent_coef_warmup_steps: int | None = None,
        entropy_coef: float = 0.0,
        entropy_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        entropy_coef_warmup_steps: int | None = None,
        normalize_advantage: bool = True,
        normalize_obs: bool = False,
        obs_clip: float = 10.0,
        normalize_reward: bool = False,
        reward_scale_clip: float = 10.0,
        gae_lambda: float = 0.95,
        gae_lambda_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gae_lambda_warmup_steps: int | None = None,
        vf_coef: float = 0.5,
        vf_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        vf_coef_warmup_steps: int | None = None,
        max_grad_norm: float = 0.5,
        max_grad_norm_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        max_grad_norm_warmup_steps: int | None = None,
        batch_size: int = 128,
        n_epochs: int = 10,
        clip_coef: float = 0.2,
        clip_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        clip_coef_warmup_steps: int | None = None,
        clip_range: float = 0.2,
        clip_range_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        clip_range_warmup_steps: int | None = None,
        clip_range_vf: float | None = None,
        clip_range_vf_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        clip_range_vf_warmup_steps: int | None = None,
        target_kl: float | None = None,
        target_kl_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        target_kl_warmup_steps: int | None = None,
        adam_eps: float = 1e-05,
        sequence_length: int | None = None,
        time_limit: int | None = None,
        frame_stack: int = 1,
        reward_clip: float | None = None,
        n_steps: int = 128,
        model: str | Callable[..., Any] = "auto",
        hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64, 64),
        activation: str | type = "tanh",
        image_encoder: Literal["nature", "impala"] = "nature",
        share_encoder: bool = True,
        ortho_init: bool = True,
        log_std_init: float | Literal["auto"] = "auto",
        rnn: Literal["lstm", "gru"] = "lstm",
        rnn_hidden_size: int = 128,
        lstm_hidden_size: int = 128,
        shared_core: bool = False,
        env_packages: str | Sequence[str] = (),
        env_kwargs: Mapping[str, Any] = ...,
        vectorization: Literal["auto", "native", "sync", "async"] = "auto",
        env_timeout: float | None = 300.0,
        num_envs: int = 8,
        actors: Literal["inline", "process", "ray"] = "inline",
        num_workers: int = 1,
        order: Literal["auto", "fixed", "arrival"] = "auto",
        rollout_deadline: float | None = 600.0,
        worker_restarts: int = 10,
        ray_address: str | None = None,
        seed: int = 0,
        total_timesteps: int = 100000,
        total_updates: int = 100000,
        eval_interval: int | None = None,
        eval_episodes: int = 10,
        early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        checkpoint_interval: int = 25000,
        keep_checkpoints: int = 3,
        log_interval: int = 1000,
        output_dir: str = "runs",
        device: str = "auto",
        engine: Literal["auto", "autograd"] = "auto",
        threads: int = 1,
        stretch_schedules: bool = False,
        callbacks: Sequence[str] = (),
        loggers: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        algo_kwargs: Mapping[str, Any] | None = None,
    ) -> None: ...

class GAIL(Agent):
    """Generative adversarial imitation learning on PPO.

    Settings, of which those marked with * also take X_schedule and X_warmup_steps:

    learning_rate*: float = 0.0003
        Step size of the optimiser. It is at least 0.
    gamma*: float = 0.99
        Discount factor. It is at least 0 and at most 1.
    ent_coef*: float = 0.0
        Weight of the entropy bonus. It is at least 0. Also: entropy_coef.
    normalize_advantage: bool = True
        Standardise advantages in every minibatch.
    normalize_obs: bool = False
        Scale observations by running mean and deviation.
    obs_clip: float = 10.0
        Scaled observations stay within this. It is above 0.
    normalize_reward: bool = False
        Scale rewards by the running deviation of the discounted return.
    reward_scale_clip: float = 10.0
        Scaled rewards stay within this. It is above 0.
    gae_lambda*: float = 0.95
        Trace decay of the advantage estimate. It is at least 0 and at most 1.
    vf_coef*: float = 0.5
        Weight of the value loss, the mean squared error. It is at least 0.
    max_grad_norm*: float = 0.5
        Gradients are scaled down to this norm. It is above 0.
    batch_size: int = 64
        Samples in a minibatch. It is at least 1.
    n_epochs: int = 10
        Passes over each rollout. It is at least 1.
    clip_coef*: float = 0.2
        The probability ratio is kept within 1 +- this. It is at least 0. Also: clip_range.
    clip_range_vf*: float | None = None
        Values are kept within this of the old ones; not clipped if null. It is above 0.
    target_kl*: float | None = None
        An update ends before the step whose KL exceeds 1.5 times this; never if null. It is above 0.
    adam_eps: float = 1e-05
        Adam's epsilon. It is above 0.
    reward_form: Literal["gail", "log_d", "airl", "fairl"] = "gail"
        Of D: `gail` -log(1 - D), `log_d` log D, `airl` log D - log(1 - D), `fairl` -l e^l of that l.
    absorbing: bool = True
        A terminated episode earns the discriminator's reward of an absorbing state for ever; nothing if false.
    disc_learning_rate*: float = 0.001
        Step size of the discriminator's Adam. It is at least 0.
    disc_updates: int = 8
        Steps of the discriminator between two updates of the policy. It is at least 1.
    disc_batch_size: int = 128
        Demonstrated transitions in such a step, and as many of the policy's. It is at least 1.
    gradient_penalty_coef*: float = 1.0
        Weight of (|dl/dx| - 1)^2 between the policy's and demonstrated transitions. It is at least 0.
    bc_updates: int = 0
        Steps of behaviour cloning (maximum likelihood) before the policy first acts. It is at least 0.
    time_limit: int | None = None
        Truncate episodes after this many steps; the environment's own limit if null. It is at least 1.
    frame_stack: int = 1
        How many of the latest observations the policy sees. It is at least 1.
    reward_clip: float | None = None
        Clip rewards to +- this for learning; reported returns are not clipped. It is above 0.
    n_steps: int = 256
        Steps of each environment between two updates. It is at least 1.
    dataset: str | None = None
        A file (npz, hdf5), a Minari id or folder, a run (its replay), or `module:function` of a SpaceInfo.
    action_units: Literal["auto", "environment", "clipped", "normalized"] = "auto"
        Units of the actions: the environment's (`clipped` to its bounds), or [-1, 1]; `auto` detects them.
    top_return_fraction: float = 1.0
        Learn from this share of the episodes, those with the highest returns. It is above 0 and at most 1.
    done_means: Literal["terminal", "timeout", "auto"] | None = None
        Why episodes ended, for a file that does not say; `auto`: timeout at the time limit, else terminal.
    demonstrations: int | None = None
        Use only this many episodes of the dataset, the first ones; all if null. It is at least 1.
    subsample: int = 1
        Use one of every this many steps of a demonstration. It is at least 1.
    model: str | Callable[..., Any] = "auto"
        `auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in
        Python also the class or function itself.
    hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64, 64)
        Widths of the hidden layers: a list, or a mapping with one for each of policy, value, encoder.
    activation: str | type = "tanh"
        Activation of hidden layers. MLPs with tanh, relu, silu have a fast path on a CPU; others are computed by
        autograd.
    image_encoder: Literal["nature", "impala"] = "nature"
        Network of images: `nature`, three convolutions (from 36 pixels each way), or `impala`, a residual network
        of 15 (from 8).
    share_encoder: bool = True
        One encoder (of images, Dict observations, or hidden_sizes.encoder) for policy and value, which learns
        from both; one each if false.
    ortho_init: bool = True
        Orthogonal initialisation; torch's default otherwise.
    log_std_init: float | Literal["auto"] = "auto"
        Initial log standard deviation of continuous actions, in the policy's units: its actions are in [-1, 1].
        `auto`: the network computes actions in the environment's units, with a deviation of one unit (at most 1).
    use_sde: bool = False
        State-dependent exploration (gSDE) of continuous actions.
    sde_sample_freq: int | None = None
        Steps between two draws of gSDE's noise; once per rollout if null. It is at least 1.
    disc_hidden_sizes: Sequence[int] = (64, 64)
        Widths of the discriminator's hidden layers.
    env_packages: str | Sequence[str] = ()
        Modules that are imported before ids are looked up.
    env_kwargs: Mapping[str, Any] = {}
        Arguments of the environment.
    vectorization: Literal["auto", "native", "sync", "async"] = "auto"
        How environments are stepped together; `auto` is native where that is faster, else sync.
    env_timeout: float | None = 300.0
        Seconds that an environment in its own process (`async`) has for a step or a reset; null for any. It is
        above 0.
    num_envs: int = 8
        Environments that are stepped together; those of all workers. It is at least 1.
    actors: Literal["inline", "process", "ray"] = "inline"
        Where workers gather: in this process, in processes of their own, or on a Ray cluster.
    num_workers: int = 1
        Workers that gather; each has num_envs / num_workers environments. It is at least 1.
    order: Literal["auto", "fixed", "arrival"] = "auto"
        Learn from rollouts in a fixed order, which is exact, or as they arrive; `auto`: arrival for ray.
    rollout_deadline: float | None = 600.0
        Seconds that a worker may take for a rollout before it is replaced; null for any. It is above 0.
    worker_restarts: int = 10
        How many workers may be lost and replaced before the run is saved and ends. It is at least 0.
    ray_address: str | None = None
        Address of a Ray cluster for `actors: ray`; a cluster of its own if null.
    seed: int = 0
        Seed of everything random in the run. It is at least 0.
    total_timesteps: int = 100000
        Environment steps of the run; updates, where it learns offline. It is at least 1. Also: total_updates.
    eval_interval: int | None = None
        Evaluate whenever this many steps have passed; at the end if null. It is at least 1.
    eval_episodes: int = 10
        Episodes of an evaluation, with seeds that never change. It is at least 1.
    bc_baseline_updates: int = 5000
        Updates of a behaviour-cloning policy that an offline run is compared with, at most its own; 0 for none.
        It is at least 0.
    early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
        A rule that ends the run early, or a list of them.
    checkpoint_interval: int = 25000
        Save whenever this many steps have passed. It is at least 1.
    keep_checkpoints: int = 3
        How many checkpoints are kept, besides the best and spare ones. It is at least 2.
    log_interval: int = 1000
        Write metrics whenever this many steps have passed. It is at least 1.
    output_dir: str = "runs"
        Folder in which the run's folder is made.
    device: str = "auto"
        `cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.
    engine: Literal["auto", "autograd"] = "auto"
        `auto` uses the compiled path on a CPU where there is one (MLPs, small world models); `autograd`: torch
        alone.
    threads: int = 1
        Threads of torch and BLAS. More than one pays for wide networks on a quiet machine. It is at least 1.
    stretch_schedules: bool = False
        Stretch the schedules of a resumed run over its new number of steps.
    callbacks: Sequence[str] = ()
        Your own callbacks, each `module:Name`.
    loggers: str | Sequence[str] = ()
        Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names).
    tags: Sequence[str] = ()
        Labels of the run.
    """

    def __init__(
        self,
        env: Env,
        *,
        learning_rate: float = 0.0003,
        learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        learning_rate_warmup_steps: int | None = None,
        gamma: float = 0.99,
        gamma_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gamma_warmup_steps: int | None = None,
        ent_coef: float = 0.0,
        ent_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        ent_coef_warmup_steps: int | None = None,
        entropy_coef: float = 0.0,
        entropy_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        entropy_coef_warmup_steps: int | None = None,
        normalize_advantage: bool = True,
        normalize_obs: bool = False,
        obs_clip: float = 10.0,
        normalize_reward: bool = False,
        reward_scale_clip: float = 10.0,
        gae_lambda: float = 0.95,
        gae_lambda_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gae_lambda_warmup_steps: int | None = None,
        vf_coef: float = 0.5,
        vf_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        vf_coef_warmup_steps: int | None = None,
        max_grad_norm: float = 0.5,
        max_grad_norm_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        max_grad_norm_warmup_steps: int | None = None,
        batch_size: int = 64,
        n_epochs: int = 10,
        clip_coef: float = 0.2,
        clip_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        clip_coef_warmup_steps: int | None = None,
        clip_range: float = 0.2,
        clip_range_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        clip_range_warmup_steps: int | None = None,
        clip_range_vf: float | None = None,
        clip_range_vf_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        clip_range_vf_warmup_steps: int | None = None,
        target_kl: float | None = None,
        target_kl_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        target_kl_warmup_steps: int | None = None,
        adam_eps: float = 1e-05,
        reward_form: Literal["gail", "log_d", "airl", "fairl"] = "gail",
        absorbing: bool = True,
        disc_learning_rate: float = 0.001,
        disc_learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        disc_learning_rate_warmup_steps: int | None = None,
        disc_updates: int = 8,
        disc_batch_size: int = 128,
        gradient_penalty_coef: float = 1.0,
        gradient_penalty_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gradient_penalty_coef_warmup_steps: int | None = None,
        bc_updates: int = 0,
        time_limit: int | None = None,
        frame_stack: int = 1,
        reward_clip: float | None = None,
        n_steps: int = 256,
        dataset: str | None = None,
        action_units: Literal["auto", "environment", "clipped", "normalized"] = "auto",
        top_return_fraction: float = 1.0,
        done_means: Literal["terminal", "timeout", "auto"] | None = None,
        demonstrations: int | None = None,
        subsample: int = 1,
        model: str | Callable[..., Any] = "auto",
        hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64, 64),
        activation: str | type = "tanh",
        image_encoder: Literal["nature", "impala"] = "nature",
        share_encoder: bool = True,
        ortho_init: bool = True,
        log_std_init: float | Literal["auto"] = "auto",
        use_sde: bool = False,
        sde_sample_freq: int | None = None,
        disc_hidden_sizes: Sequence[int] = (64, 64),
        env_packages: str | Sequence[str] = (),
        env_kwargs: Mapping[str, Any] = ...,
        vectorization: Literal["auto", "native", "sync", "async"] = "auto",
        env_timeout: float | None = 300.0,
        num_envs: int = 8,
        actors: Literal["inline", "process", "ray"] = "inline",
        num_workers: int = 1,
        order: Literal["auto", "fixed", "arrival"] = "auto",
        rollout_deadline: float | None = 600.0,
        worker_restarts: int = 10,
        ray_address: str | None = None,
        seed: int = 0,
        total_timesteps: int = 100000,
        total_updates: int = 100000,
        eval_interval: int | None = None,
        eval_episodes: int = 10,
        bc_baseline_updates: int = 5000,
        early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        checkpoint_interval: int = 25000,
        keep_checkpoints: int = 3,
        log_interval: int = 1000,
        output_dir: str = "runs",
        device: str = "auto",
        engine: Literal["auto", "autograd"] = "auto",
        threads: int = 1,
        stretch_schedules: bool = False,
        callbacks: Sequence[str] = (),
        loggers: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        algo_kwargs: Mapping[str, Any] | None = None,
    ) -> None: ...

class IMPALA(Agent):
    """Actor-critic on rollouts of older policies, corrected by V-trace.

    Settings, of which those marked with * also take X_schedule and X_warmup_steps:

    learning_rate*: float = 0.0006
        Step size of the optimiser. It is at least 0.
    gamma*: float = 0.99
        Discount factor. It is at least 0 and at most 1.
    ent_coef*: float = 0.01
        Weight of the entropy bonus. It is at least 0. Also: entropy_coef.
    normalize_advantage: bool = False
        Standardise advantages in every update.
    normalize_obs: bool = False
        Scale observations by running mean and deviation.
    obs_clip: float = 10.0
        Scaled observations stay within this. It is above 0.
    normalize_reward: bool = False
        Scale rewards by the running deviation of the discounted return.
    reward_scale_clip: float = 10.0
        Scaled rewards stay within this. It is above 0.
    vf_coef*: float = 0.5
        Weight of the value loss, the mean squared error. It is at least 0.
    max_grad_norm*: float = 0.5
        Gradients are scaled down to this norm. It is above 0.
    rho_bar*: float = 1.0
        pi / mu counts at most this in the value's errors: what the value is of. It is above 0.
    c_bar*: float = 1.0
        pi / mu counts at most this in the trace: how far back errors reach. It is at least 0.
    vtrace_lambda*: float = 1.0
        Trace decay of V-trace. It is at least 0 and at most 1.
    pg_rho_bar*: float = 1.0
        pi / mu counts at most this in the policy's gradient. It is above 0.
    optimizer_type: Literal["rmsprop", "adam"] = "rmsprop"
        The optimiser. Also: optimizer.
    rms_alpha: float = 0.99
        RMSprop's decay of squared gradients. It is at least 0 and below 1.
    rms_eps: float = 1e-05
        RMSprop's epsilon. The paper's 0.01 is for a loss that is summed over 640 steps; here it is their mean. It
        is above 0.
    adam_eps: float = 1e-05
        Adam's epsilon. It is above 0.
    time_limit: int | None = None
        Truncate episodes after this many steps; the environment's own limit if null. It is at least 1.
    frame_stack: int = 1
        How many of the latest observations the policy sees. It is at least 1.
    reward_clip: float | None = None
        Clip rewards to +- this for learning; reported returns are not clipped. It is above 0.
    n_steps: int = 32
        Steps of each environment between two updates. It is at least 1.
    lag: int = 0
        How many updates old the policy is that gathers; with 0 workers wait while the learner learns. It is at
        least 0.
    rollouts_per_update: int | None = None
        Rollouts that an update learns from, each of another worker; if null: 1, or with lag=0 one of every
        worker. It is at least 1.
    model: str | Callable[..., Any] = "auto"
        `auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in
        Python also the class or function itself.
    hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64, 64)
        Widths of the hidden layers: a list, or a mapping with one for each of policy, value, encoder.
    activation: str | type = "tanh"
        Activation of hidden layers. MLPs with tanh, relu, silu have a fast path on a CPU; others are computed by
        autograd.
    image_encoder: Literal["nature", "impala"] = "nature"
        Network of images: `nature`, three convolutions (from 36 pixels each way), or `impala`, a residual network
        of 15 (from 8).
    share_encoder: bool = True
        One encoder (of images, Dict observations, or hidden_sizes.encoder) for policy and value, which learns
        from both; one each if false.
    ortho_init: bool = True
        Orthogonal initialisation; torch's default otherwise.
    log_std_init: float | Literal["auto"] = "auto"
        Initial log standard deviation of continuous actions, in the policy's units: its actions are in [-1, 1].
        `auto`: the network computes actions in the environment's units, with a deviation of one unit (at most 1).
    use_sde: bool = False
        State-dependent exploration (gSDE) of continuous actions; not with an rnn.
    sde_sample_freq: int | None = None
        Steps between two draws of gSDE's noise; once per rollout if null. It is at least 1.
    rnn: Literal["none", "lstm", "gru"] = "none"
        Kind of the recurrent core, if there is one.
    rnn_hidden_size: int = 128
        Width of the recurrent core. It is at least 1. Also: lstm_hidden_size.
    shared_core: bool = False
        One core for policy and value, which learns from both; one each if false.
    env_packages: str | Sequence[str] = ()
        Modules that are imported before ids are looked up.
    env_kwargs: Mapping[str, Any] = {}
        Arguments of the environment.
    vectorization: Literal["auto", "native", "sync", "async"] = "auto"
        How environments are stepped together; `auto` is native where that is faster, else sync.
    env_timeout: float | None = 300.0
        Seconds that an environment in its own process (`async`) has for a step or a reset; null for any. It is
        above 0.
    num_envs: int = 8
        Environments that are stepped together; those of all workers. It is at least 1.
    actors: Literal["inline", "process", "ray"] = "inline"
        Where workers gather: in this process, in processes of their own, or on a Ray cluster.
    num_workers: int = 1
        Workers that gather; each has num_envs / num_workers environments. It is at least 1.
    order: Literal["auto", "fixed", "arrival"] = "auto"
        Learn from rollouts in a fixed order, which is exact, or as they arrive; `auto`: arrival for ray.
    rollout_deadline: float | None = 600.0
        Seconds that a worker may take for a rollout before it is replaced; null for any. It is above 0.
    worker_restarts: int = 10
        How many workers may be lost and replaced before the run is saved and ends. It is at least 0.
    ray_address: str | None = None
        Address of a Ray cluster for `actors: ray`; a cluster of its own if null.
    seed: int = 0
        Seed of everything random in the run. It is at least 0.
    total_timesteps: int = 100000
        Environment steps of the run; updates, where it learns offline. It is at least 1. Also: total_updates.
    eval_interval: int | None = None
        Evaluate whenever this many steps have passed; at the end if null. It is at least 1.
    eval_episodes: int = 10
        Episodes of an evaluation, with seeds that never change. It is at least 1.
    early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
        A rule that ends the run early, or a list of them.
    checkpoint_interval: int = 25000
        Save whenever this many steps have passed. It is at least 1.
    keep_checkpoints: int = 3
        How many checkpoints are kept, besides the best and spare ones. It is at least 2.
    log_interval: int = 1000
        Write metrics whenever this many steps have passed. It is at least 1.
    output_dir: str = "runs"
        Folder in which the run's folder is made.
    device: str = "auto"
        `cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.
    engine: Literal["auto", "autograd"] = "auto"
        `auto` uses the compiled path on a CPU where there is one (MLPs, small world models); `autograd`: torch
        alone.
    threads: int = 1
        Threads of torch and BLAS. More than one pays for wide networks on a quiet machine. It is at least 1.
    stretch_schedules: bool = False
        Stretch the schedules of a resumed run over its new number of steps.
    callbacks: Sequence[str] = ()
        Your own callbacks, each `module:Name`.
    loggers: str | Sequence[str] = ()
        Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names).
    tags: Sequence[str] = ()
        Labels of the run.
    """

    def __init__(
        self,
        env: Env,
        *,
        learning_rate: float = 0.0006,
        learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        learning_rate_warmup_steps: int | None = None,
        gamma: float = 0.99,
        gamma_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gamma_warmup_steps: int | None = None,
        ent_coef: float = 0.01,
        ent_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        ent_coef_warmup_steps: int | None = None,
        entropy_coef: float = 0.01,
        entropy_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        entropy_coef_warmup_steps: int | None = None,
        normalize_advantage: bool = False,
        normalize_obs: bool = False,
        obs_clip: float = 10.0,
        normalize_reward: bool = False,
        reward_scale_clip: float = 10.0,
        vf_coef: float = 0.5,
        vf_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        vf_coef_warmup_steps: int | None = None,
        max_grad_norm: float = 0.5,
        max_grad_norm_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        max_grad_norm_warmup_steps: int | None = None,
        rho_bar: float = 1.0,
        rho_bar_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        rho_bar_warmup_steps: int | None = None,
        c_bar: float = 1.0,
        c_bar_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        c_bar_warmup_steps: int | None = None,
        vtrace_lambda: float = 1.0,
        vtrace_lambda_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        vtrace_lambda_warmup_steps: int | None = None,
        pg_rho_bar: float = 1.0,
        pg_rho_bar_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        pg_rho_bar_warmup_steps: int | None = None,
        optimizer_type: Literal["rmsprop", "adam"] = "rmsprop",
        optimizer: Literal["rmsprop", "adam"] = "rmsprop",
        rms_alpha: float = 0.99,
        rms_eps: float = 1e-05,
        adam_eps: float = 1e-05,
        time_limit: int | None = None,
        frame_stack: int = 1,
        reward_clip: float | None = None,
        n_steps: int = 32,
        lag: int = 0,
        rollouts_per_update: int | None = None,
        model: str | Callable[..., Any] = "auto",
        hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64, 64),
        activation: str | type = "tanh",
        image_encoder: Literal["nature", "impala"] = "nature",
        share_encoder: bool = True,
        ortho_init: bool = True,
        log_std_init: float | Literal["auto"] = "auto",
        use_sde: bool = False,
        sde_sample_freq: int | None = None,
        rnn: Literal["none", "lstm", "gru"] = "none",
        rnn_hidden_size: int = 128,
        lstm_hidden_size: int = 128,
        shared_core: bool = False,
        env_packages: str | Sequence[str] = (),
        env_kwargs: Mapping[str, Any] = ...,
        vectorization: Literal["auto", "native", "sync", "async"] = "auto",
        env_timeout: float | None = 300.0,
        num_envs: int = 8,
        actors: Literal["inline", "process", "ray"] = "inline",
        num_workers: int = 1,
        order: Literal["auto", "fixed", "arrival"] = "auto",
        rollout_deadline: float | None = 600.0,
        worker_restarts: int = 10,
        ray_address: str | None = None,
        seed: int = 0,
        total_timesteps: int = 100000,
        total_updates: int = 100000,
        eval_interval: int | None = None,
        eval_episodes: int = 10,
        early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        checkpoint_interval: int = 25000,
        keep_checkpoints: int = 3,
        log_interval: int = 1000,
        output_dir: str = "runs",
        device: str = "auto",
        engine: Literal["auto", "autograd"] = "auto",
        threads: int = 1,
        stretch_schedules: bool = False,
        callbacks: Sequence[str] = (),
        loggers: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        algo_kwargs: Mapping[str, Any] | None = None,
    ) -> None: ...

class APPO(Agent):
    """PPO on rollouts of older policies, corrected by V-trace.

    Settings, of which those marked with * also take X_schedule and X_warmup_steps:

    learning_rate*: float = 0.0003
        Step size of the optimiser. It is at least 0.
    gamma*: float = 0.99
        Discount factor. It is at least 0 and at most 1.
    ent_coef*: float = 0.0
        Weight of the entropy bonus. It is at least 0. Also: entropy_coef.
    normalize_advantage: bool = True
        Standardise advantages in every minibatch.
    normalize_obs: bool = False
        Scale observations by running mean and deviation.
    obs_clip: float = 10.0
        Scaled observations stay within this. It is above 0.
    normalize_reward: bool = False
        Scale rewards by the running deviation of the discounted return.
    reward_scale_clip: float = 10.0
        Scaled rewards stay within this. It is above 0.
    vf_coef*: float = 0.5
        Weight of the value loss, the mean squared error. It is at least 0.
    max_grad_norm*: float = 0.5
        Gradients are scaled down to this norm. It is above 0.
    rho_bar*: float = 1.0
        pi / mu counts at most this in the value's errors: what the value is of. It is above 0.
    c_bar*: float = 1.0
        pi / mu counts at most this in the trace: how far back errors reach. It is at least 0.
    vtrace_lambda*: float = 1.0
        Trace decay of V-trace. It is at least 0 and at most 1.
    batch_size: int = 256
        Steps in a minibatch; with an rnn, of whole rollouts of environments (at least one). It is at least 1.
    n_epochs: int = 1
        Passes over each rollout. It is at least 1.
    clip_coef*: float = 0.2
        The probability ratio is kept within 1 +- this. It is at least 0. Also: clip_range.
    kl_coef*: float = 0.0
        Weight of the KL from the policy that the ratio compares with. It is at least 0.
    kl_target*: float | None = None
        kl_coef is multiplied by 1.5 after updates whose KL is above twice this, and by 0.5 below half of it;
        fixed if null. It is above 0.
    target_update_interval: int | None = None
        Updates between two copies of the policy to a target network, to which the ratio and V-trace then refer
        (IMPACT); none if null. It is at least 2.
    target_ratio_bar*: float = 2.0
        mu / pi_target counts at most this in the ratio (IMPACT). It is above 0.
    adam_eps: float = 1e-05
        Adam's epsilon. It is above 0.
    time_limit: int | None = None
        Truncate episodes after this many steps; the environment's own limit if null. It is at least 1.
    frame_stack: int = 1
        How many of the latest observations the policy sees. It is at least 1.
    reward_clip: float | None = None
        Clip rewards to +- this for learning; reported returns are not clipped. It is above 0.
    n_steps: int = 32
        Steps of each environment between two updates. It is at least 1.
    lag: int = 0
        How many updates old the policy is that gathers; with 0 workers wait while the learner learns. It is at
        least 0.
    rollouts_per_update: int | None = None
        Rollouts that an update learns from, each of another worker; if null: 1, or with lag=0 one of every
        worker. It is at least 1.
    model: str | Callable[..., Any] = "auto"
        `auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in
        Python also the class or function itself.
    hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64, 64)
        Widths of the hidden layers: a list, or a mapping with one for each of policy, value, encoder.
    activation: str | type = "tanh"
        Activation of hidden layers. MLPs with tanh, relu, silu have a fast path on a CPU; others are computed by
        autograd.
    image_encoder: Literal["nature", "impala"] = "nature"
        Network of images: `nature`, three convolutions (from 36 pixels each way), or `impala`, a residual network
        of 15 (from 8).
    share_encoder: bool = True
        One encoder (of images, Dict observations, or hidden_sizes.encoder) for policy and value, which learns
        from both; one each if false.
    ortho_init: bool = True
        Orthogonal initialisation; torch's default otherwise.
    log_std_init: float | Literal["auto"] = "auto"
        Initial log standard deviation of continuous actions, in the policy's units: its actions are in [-1, 1].
        `auto`: the network computes actions in the environment's units, with a deviation of one unit (at most 1).
    use_sde: bool = False
        State-dependent exploration (gSDE) of continuous actions; not with an rnn.
    sde_sample_freq: int | None = None
        Steps between two draws of gSDE's noise; once per rollout if null. It is at least 1.
    rnn: Literal["none", "lstm", "gru"] = "none"
        Kind of the recurrent core, if there is one.
    rnn_hidden_size: int = 128
        Width of the recurrent core. It is at least 1. Also: lstm_hidden_size.
    shared_core: bool = False
        One core for policy and value, which learns from both; one each if false.
    env_packages: str | Sequence[str] = ()
        Modules that are imported before ids are looked up.
    env_kwargs: Mapping[str, Any] = {}
        Arguments of the environment.
    vectorization: Literal["auto", "native", "sync", "async"] = "auto"
        How environments are stepped together; `auto` is native where that is faster, else sync.
    env_timeout: float | None = 300.0
        Seconds that an environment in its own process (`async`) has for a step or a reset; null for any. It is
        above 0.
    num_envs: int = 8
        Environments that are stepped together; those of all workers. It is at least 1.
    actors: Literal["inline", "process", "ray"] = "inline"
        Where workers gather: in this process, in processes of their own, or on a Ray cluster.
    num_workers: int = 1
        Workers that gather; each has num_envs / num_workers environments. It is at least 1.
    order: Literal["auto", "fixed", "arrival"] = "auto"
        Learn from rollouts in a fixed order, which is exact, or as they arrive; `auto`: arrival for ray.
    rollout_deadline: float | None = 600.0
        Seconds that a worker may take for a rollout before it is replaced; null for any. It is above 0.
    worker_restarts: int = 10
        How many workers may be lost and replaced before the run is saved and ends. It is at least 0.
    ray_address: str | None = None
        Address of a Ray cluster for `actors: ray`; a cluster of its own if null.
    seed: int = 0
        Seed of everything random in the run. It is at least 0.
    total_timesteps: int = 100000
        Environment steps of the run; updates, where it learns offline. It is at least 1. Also: total_updates.
    eval_interval: int | None = None
        Evaluate whenever this many steps have passed; at the end if null. It is at least 1.
    eval_episodes: int = 10
        Episodes of an evaluation, with seeds that never change. It is at least 1.
    early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
        A rule that ends the run early, or a list of them.
    checkpoint_interval: int = 25000
        Save whenever this many steps have passed. It is at least 1.
    keep_checkpoints: int = 3
        How many checkpoints are kept, besides the best and spare ones. It is at least 2.
    log_interval: int = 1000
        Write metrics whenever this many steps have passed. It is at least 1.
    output_dir: str = "runs"
        Folder in which the run's folder is made.
    device: str = "auto"
        `cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.
    engine: Literal["auto", "autograd"] = "auto"
        `auto` uses the compiled path on a CPU where there is one (MLPs, small world models); `autograd`: torch
        alone.
    threads: int = 1
        Threads of torch and BLAS. More than one pays for wide networks on a quiet machine. It is at least 1.
    stretch_schedules: bool = False
        Stretch the schedules of a resumed run over its new number of steps.
    callbacks: Sequence[str] = ()
        Your own callbacks, each `module:Name`.
    loggers: str | Sequence[str] = ()
        Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names).
    tags: Sequence[str] = ()
        Labels of the run.
    """

    def __init__(
        self,
        env: Env,
        *,
        learning_rate: float = 0.0003,
        learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        learning_rate_warmup_steps: int | None = None,
        gamma: float = 0.99,
        gamma_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gamma_warmup_steps: int | None = None,
        ent_coef: float = 0.0,
        ent_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        ent_coef_warmup_steps: int | None = None,
        entropy_coef: float = 0.0,
        entropy_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        entropy_coef_warmup_steps: int | None = None,
        normalize_advantage: bool = True,
        normalize_obs: bool = False,
        obs_clip: float = 10.0,
        normalize_reward: bool = False,
        reward_scale_clip: float = 10.0,
        vf_coef: float = 0.5,
        vf_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        vf_coef_warmup_steps: int | None = None,
        max_grad_norm: float = 0.5,
        max_grad_norm_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        max_grad_norm_warmup_steps: int | None = None,
        rho_bar: float = 1.0,
        rho_bar_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        rho_bar_warmup_steps: int | None = None,
        c_bar: float = 1.0,
        c_bar_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        c_bar_warmup_steps: int | None = None,
        vtrace_lambda: float = 1.0,
        vtrace_lambda_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        vtrace_lambda_warmup_steps: int | None = None,
        batch_size: int = 256,
        n_epochs: int = 1,
        clip_coef: float = 0.2,
        clip_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        clip_coef_warmup_steps: int | None = None,
        clip_range: float = 0.2,
        clip_range_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        clip_range_warmup_steps: int | None = None,
        kl_coef: float = 0.0,
        kl_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        kl_coef_warmup_steps: int | None = None,
        kl_target: float | None = None,
        kl_target_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        kl_target_warmup_steps: int | None = None,
        target_update_interval: int | None = None,
        target_ratio_bar: float = 2.0,
        target_ratio_bar_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        target_ratio_bar_warmup_steps: int | None = None,
        adam_eps: float = 1e-05,
        time_limit: int | None = None,
        frame_stack: int = 1,
        reward_clip: float | None = None,
        n_steps: int = 32,
        lag: int = 0,
        rollouts_per_update: int | None = None,
        model: str | Callable[..., Any] = "auto",
        hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64, 64),
        activation: str | type = "tanh",
        image_encoder: Literal["nature", "impala"] = "nature",
        share_encoder: bool = True,
        ortho_init: bool = True,
        log_std_init: float | Literal["auto"] = "auto",
        use_sde: bool = False,
        sde_sample_freq: int | None = None,
        rnn: Literal["none", "lstm", "gru"] = "none",
        rnn_hidden_size: int = 128,
        lstm_hidden_size: int = 128,
        shared_core: bool = False,
        env_packages: str | Sequence[str] = (),
        env_kwargs: Mapping[str, Any] = ...,
        vectorization: Literal["auto", "native", "sync", "async"] = "auto",
        env_timeout: float | None = 300.0,
        num_envs: int = 8,
        actors: Literal["inline", "process", "ray"] = "inline",
        num_workers: int = 1,
        order: Literal["auto", "fixed", "arrival"] = "auto",
        rollout_deadline: float | None = 600.0,
        worker_restarts: int = 10,
        ray_address: str | None = None,
        seed: int = 0,
        total_timesteps: int = 100000,
        total_updates: int = 100000,
        eval_interval: int | None = None,
        eval_episodes: int = 10,
        early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        checkpoint_interval: int = 25000,
        keep_checkpoints: int = 3,
        log_interval: int = 1000,
        output_dir: str = "runs",
        device: str = "auto",
        engine: Literal["auto", "autograd"] = "auto",
        threads: int = 1,
        stretch_schedules: bool = False,
        callbacks: Sequence[str] = (),
        loggers: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        algo_kwargs: Mapping[str, Any] | None = None,
    ) -> None: ...

class DQN(Agent):
    """Deep Q-learning: double, dueling, n-step, prioritised.

    Settings, of which those marked with * also take X_schedule and X_warmup_steps:

    learning_rate*: float = 0.0001
        Step size of the optimiser. It is at least 0.
    batch_size: int = 32
        Transitions in a minibatch. It is at least 1.
    normalize_obs: bool | Literal["auto"] = False
        Scale observations by mean and deviation; `auto`: where they are numbers, not images.
    obs_clip: float = 10.0
        Scaled observations stay within this. It is above 0.
    gamma*: float = 0.99
        Discount factor. It is at least 0 and at most 1.
    tau*: float = 1.0
        Share of the online weights in a target network's update. It is at least 0 and at most 1.
    n_step: int = 1
        Rewards in a target before it bootstraps. It is at least 1.
    target_update_interval: int = 2500
        Updates between two updates of the target network. It is at least 1.
    epsilon*: float = linear from 1 to 0.05 over the first 10% of the run
        Share of random actions in training. It is at least 0 and at most 1.
    double_q: bool = True
        The online network chooses the next action, the target network evaluates it.
    prioritized: bool = False
        Draw transitions by their last TD error instead of uniformly.
    per_alpha*: float = 0.6
        Exponent of the priorities; 0 is uniform. It is at least 0 and at most 1.
    per_beta*: float = 0.4
        Exponent of the importance weights; best scheduled up to 1. It is at least 0 and at most 1.
    max_grad_norm*: float = 10.0
        Gradients are scaled down to this norm. It is above 0.
    time_limit: int | None = None
        Truncate episodes after this many steps; the environment's own limit if null. It is at least 1.
    frame_stack: int = 1
        How many of the latest observations the policy sees. It is at least 1.
    reward_clip: float | None = None
        Clip rewards to +- this for learning; reported returns are not clipped. It is above 0.
    buffer_size: int = 1000000
        Capacity of the replay buffer. It is at least 1.
    learning_starts: int = 100
        Steps of random actions before learning starts. It is at least 0.
    train_every: int = 4
        Steps between two phases of learning. It is at least 1. Also: train_freq.
    updates_per_step: float = 0.25
        Gradient updates per step of experience, whatever num_envs is. It is above 0.
    her: bool | str | Mapping[str, Any] | None = None
        Hindsight experience replay in goal environments: true, a strategy (future, final or episode), or
        `{strategy, n_sampled_goal}`.
    model: str | Callable[..., Any] = "auto"
        `auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in
        Python also the class or function itself.
    hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64, 64)
        Widths of the hidden layers.
    activation: str | type = "relu"
        Activation of hidden layers. MLPs with tanh, relu, silu have a fast path on a CPU; others are computed by
        autograd.
    image_encoder: Literal["nature", "impala"] = "nature"
        Network of images: `nature`, three convolutions (from 36 pixels each way), or `impala`, a residual network
        of 15 (from 8).
    dueling: bool = False
        Estimate the state's value and the actions' advantages separately.
    env_packages: str | Sequence[str] = ()
        Modules that are imported before ids are looked up.
    env_kwargs: Mapping[str, Any] = {}
        Arguments of the environment.
    vectorization: Literal["auto", "native", "sync", "async"] = "auto"
        How environments are stepped together; `auto` is native where that is faster, else sync.
    env_timeout: float | None = 300.0
        Seconds that an environment in its own process (`async`) has for a step or a reset; null for any. It is
        above 0.
    num_envs: int = 8
        Environments that are stepped together; those of all workers. It is at least 1.
    actors: Literal["inline", "process", "ray"] = "inline"
        Where workers gather: in this process, in processes of their own, or on a Ray cluster.
    num_workers: int = 1
        Workers that gather; each has num_envs / num_workers environments. It is at least 1.
    order: Literal["auto", "fixed", "arrival"] = "auto"
        Learn from rollouts in a fixed order, which is exact, or as they arrive; `auto`: arrival for ray.
    rollout_deadline: float | None = 600.0
        Seconds that a worker may take for a rollout before it is replaced; null for any. It is above 0.
    worker_restarts: int = 10
        How many workers may be lost and replaced before the run is saved and ends. It is at least 0.
    ray_address: str | None = None
        Address of a Ray cluster for `actors: ray`; a cluster of its own if null.
    seed: int = 0
        Seed of everything random in the run. It is at least 0.
    total_timesteps: int = 100000
        Environment steps of the run; updates, where it learns offline. It is at least 1. Also: total_updates.
    eval_interval: int | None = None
        Evaluate whenever this many steps have passed; at the end if null. It is at least 1.
    eval_episodes: int = 10
        Episodes of an evaluation, with seeds that never change. It is at least 1.
    early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
        A rule that ends the run early, or a list of them.
    checkpoint_interval: int = 25000
        Save whenever this many steps have passed. It is at least 1.
    keep_checkpoints: int = 3
        How many checkpoints are kept, besides the best and spare ones. It is at least 2.
    log_interval: int = 1000
        Write metrics whenever this many steps have passed. It is at least 1.
    output_dir: str = "runs"
        Folder in which the run's folder is made.
    device: str = "auto"
        `cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.
    engine: Literal["auto", "autograd"] = "auto"
        `auto` uses the compiled path on a CPU where there is one (MLPs, small world models); `autograd`: torch
        alone.
    threads: int = 1
        Threads of torch and BLAS. More than one pays for wide networks on a quiet machine. It is at least 1.
    stretch_schedules: bool = False
        Stretch the schedules of a resumed run over its new number of steps.
    callbacks: Sequence[str] = ()
        Your own callbacks, each `module:Name`.
    loggers: str | Sequence[str] = ()
        Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names).
    tags: Sequence[str] = ()
        Labels of the run.
    """

    def __init__(
        self,
        env: Env,
        *,
        learning_rate: float = 0.0001,
        learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        learning_rate_warmup_steps: int | None = None,
        batch_size: int = 32,
        normalize_obs: bool | Literal["auto"] = False,
        obs_clip: float = 10.0,
        gamma: float = 0.99,
        gamma_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gamma_warmup_steps: int | None = None,
        tau: float = 1.0,
        tau_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        tau_warmup_steps: int | None = None,
        n_step: int = 1,
        target_update_interval: int = 2500,
        epsilon: float = 0.05,
        epsilon_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = ...,
        epsilon_warmup_steps: int | None = None,
        double_q: bool = True,
        prioritized: bool = False,
        per_alpha: float = 0.6,
        per_alpha_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        per_alpha_warmup_steps: int | None = None,
        per_beta: float = 0.4,
        per_beta_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        per_beta_warmup_steps: int | None = None,
        max_grad_norm: float = 10.0,
        max_grad_norm_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        max_grad_norm_warmup_steps: int | None = None,
        time_limit: int | None = None,
        frame_stack: int = 1,
        reward_clip: float | None = None,
        buffer_size: int = 1000000,
        learning_starts: int = 100,
        train_every: int = 4,
        train_freq: int = 4,
        updates_per_step: float = 0.25,
        her: bool | str | Mapping[str, Any] | None = None,
        model: str | Callable[..., Any] = "auto",
        hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64, 64),
        activation: str | type = "relu",
        image_encoder: Literal["nature", "impala"] = "nature",
        dueling: bool = False,
        env_packages: str | Sequence[str] = (),
        env_kwargs: Mapping[str, Any] = ...,
        vectorization: Literal["auto", "native", "sync", "async"] = "auto",
        env_timeout: float | None = 300.0,
        num_envs: int = 8,
        actors: Literal["inline", "process", "ray"] = "inline",
        num_workers: int = 1,
        order: Literal["auto", "fixed", "arrival"] = "auto",
        rollout_deadline: float | None = 600.0,
        worker_restarts: int = 10,
        ray_address: str | None = None,
        seed: int = 0,
        total_timesteps: int = 100000,
        total_updates: int = 100000,
        eval_interval: int | None = None,
        eval_episodes: int = 10,
        early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        checkpoint_interval: int = 25000,
        keep_checkpoints: int = 3,
        log_interval: int = 1000,
        output_dir: str = "runs",
        device: str = "auto",
        engine: Literal["auto", "autograd"] = "auto",
        threads: int = 1,
        stretch_schedules: bool = False,
        callbacks: Sequence[str] = (),
        loggers: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        algo_kwargs: Mapping[str, Any] | None = None,
    ) -> None: ...

class DDPG(Agent):
    """Deep deterministic policy gradient.

    Settings, of which those marked with * also take X_schedule and X_warmup_steps:

    learning_rate*: float = 0.001
        Step size of the optimisers. It is at least 0.
    batch_size: int = 256
        Transitions in a minibatch. It is at least 1.
    normalize_obs: bool | Literal["auto"] = False
        Scale observations by mean and deviation; `auto`: where they are numbers, not images.
    obs_clip: float = 10.0
        Scaled observations stay within this. It is above 0.
    gamma*: float = 0.99
        Discount factor. It is at least 0 and at most 1.
    tau*: float = 0.005
        Share of the online weights in a target network's update. It is at least 0 and at most 1.
    n_step: int = 1
        Rewards in a target before it bootstraps. It is at least 1.
    noise_std*: float = 0.1
        Deviation of the noise on actions, which are in [-1, 1]. It is at least 0.
    time_limit: int | None = None
        Truncate episodes after this many steps; the environment's own limit if null. It is at least 1.
    frame_stack: int = 1
        How many of the latest observations the policy sees. It is at least 1.
    reward_clip: float | None = None
        Clip rewards to +- this for learning; reported returns are not clipped. It is above 0.
    buffer_size: int = 1000000
        Capacity of the replay buffer. It is at least 1.
    learning_starts: int = 100
        Steps of random actions before learning starts. It is at least 0.
    train_every: int = 1
        Steps between two phases of learning. It is at least 1. Also: train_freq.
    updates_per_step: float = 1.0
        Gradient updates per step of experience, whatever num_envs is. It is above 0.
    her: bool | str | Mapping[str, Any] | None = None
        Hindsight experience replay in goal environments: true, a strategy (future, final or episode), or
        `{strategy, n_sampled_goal}`.
    model: str | Callable[..., Any] = "auto"
        `auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in
        Python also the class or function itself.
    hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (256, 256)
        Widths of the hidden layers: a list, or a mapping with one for each of policy, critic, encoder.
    activation: str | type = "relu"
        Activation of hidden layers. MLPs with tanh, relu, silu have a fast path on a CPU; others are computed by
        autograd.
    image_encoder: Literal["nature", "impala"] = "nature"
        Network of images: `nature`, three convolutions (from 36 pixels each way), or `impala`, a residual network
        of 15 (from 8).
    n_critics: int = 1
        Number of critics; targets use their least value. It is at least 1.
    share_encoder: bool = False
        One encoder (of images, Dict observations, or hidden_sizes.encoder) for actor and critics. The critics
        train it; the actor, and a value of states, read its features without a gradient.
    env_packages: str | Sequence[str] = ()
        Modules that are imported before ids are looked up.
    env_kwargs: Mapping[str, Any] = {}
        Arguments of the environment.
    vectorization: Literal["auto", "native", "sync", "async"] = "auto"
        How environments are stepped together; `auto` is native where that is faster, else sync.
    env_timeout: float | None = 300.0
        Seconds that an environment in its own process (`async`) has for a step or a reset; null for any. It is
        above 0.
    num_envs: int = 8
        Environments that are stepped together; those of all workers. It is at least 1.
    actors: Literal["inline", "process", "ray"] = "inline"
        Where workers gather: in this process, in processes of their own, or on a Ray cluster.
    num_workers: int = 1
        Workers that gather; each has num_envs / num_workers environments. It is at least 1.
    order: Literal["auto", "fixed", "arrival"] = "auto"
        Learn from rollouts in a fixed order, which is exact, or as they arrive; `auto`: arrival for ray.
    rollout_deadline: float | None = 600.0
        Seconds that a worker may take for a rollout before it is replaced; null for any. It is above 0.
    worker_restarts: int = 10
        How many workers may be lost and replaced before the run is saved and ends. It is at least 0.
    ray_address: str | None = None
        Address of a Ray cluster for `actors: ray`; a cluster of its own if null.
    seed: int = 0
        Seed of everything random in the run. It is at least 0.
    total_timesteps: int = 100000
        Environment steps of the run; updates, where it learns offline. It is at least 1. Also: total_updates.
    eval_interval: int | None = None
        Evaluate whenever this many steps have passed; at the end if null. It is at least 1.
    eval_episodes: int = 10
        Episodes of an evaluation, with seeds that never change. It is at least 1.
    early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
        A rule that ends the run early, or a list of them.
    checkpoint_interval: int = 25000
        Save whenever this many steps have passed. It is at least 1.
    keep_checkpoints: int = 3
        How many checkpoints are kept, besides the best and spare ones. It is at least 2.
    log_interval: int = 1000
        Write metrics whenever this many steps have passed. It is at least 1.
    output_dir: str = "runs"
        Folder in which the run's folder is made.
    device: str = "auto"
        `cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.
    engine: Literal["auto", "autograd"] = "auto"
        `auto` uses the compiled path on a CPU where there is one (MLPs, small world models); `autograd`: torch
        alone.
    threads: int = 1
        Threads of torch and BLAS. More than one pays for wide networks on a quiet machine. It is at least 1.
    stretch_schedules: bool = False
        Stretch the schedules of a resumed run over its new number of steps.
    callbacks: Sequence[str] = ()
        Your own callbacks, each `module:Name`.
    loggers: str | Sequence[str] = ()
        Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names).
    tags: Sequence[str] = ()
        Labels of the run.
    """

    def __init__(
        self,
        env: Env,
        *,
        learning_rate: float = 0.001,
        learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        learning_rate_warmup_steps: int | None = None,
        batch_size: int = 256,
        normalize_obs: bool | Literal["auto"] = False,
        obs_clip: float = 10.0,
        gamma: float = 0.99,
        gamma_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gamma_warmup_steps: int | None = None,
        tau: float = 0.005,
        tau_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        tau_warmup_steps: int | None = None,
        n_step: int = 1,
        noise_std: float = 0.1,
        noise_std_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        noise_std_warmup_steps: int | None = None,
        time_limit: int | None = None,
        frame_stack: int = 1,
        reward_clip: float | None = None,
        buffer_size: int = 1000000,
        learning_starts: int = 100,
        train_every: int = 1,
        train_freq: int = 1,
        updates_per_step: float = 1.0,
        her: bool | str | Mapping[str, Any] | None = None,
        model: str | Callable[..., Any] = "auto",
        hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (256, 256),
        activation: str | type = "relu",
        image_encoder: Literal["nature", "impala"] = "nature",
        n_critics: int = 1,
        share_encoder: bool = False,
        env_packages: str | Sequence[str] = (),
        env_kwargs: Mapping[str, Any] = ...,
        vectorization: Literal["auto", "native", "sync", "async"] = "auto",
        env_timeout: float | None = 300.0,
        num_envs: int = 8,
        actors: Literal["inline", "process", "ray"] = "inline",
        num_workers: int = 1,
        order: Literal["auto", "fixed", "arrival"] = "auto",
        rollout_deadline: float | None = 600.0,
        worker_restarts: int = 10,
        ray_address: str | None = None,
        seed: int = 0,
        total_timesteps: int = 100000,
        total_updates: int = 100000,
        eval_interval: int | None = None,
        eval_episodes: int = 10,
        early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        checkpoint_interval: int = 25000,
        keep_checkpoints: int = 3,
        log_interval: int = 1000,
        output_dir: str = "runs",
        device: str = "auto",
        engine: Literal["auto", "autograd"] = "auto",
        threads: int = 1,
        stretch_schedules: bool = False,
        callbacks: Sequence[str] = (),
        loggers: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        algo_kwargs: Mapping[str, Any] | None = None,
    ) -> None: ...

class TD3(Agent):
    """Twin delayed deep deterministic policy gradient.

    Settings, of which those marked with * also take X_schedule and X_warmup_steps:

    learning_rate*: float = 0.001
        Step size of the optimisers. It is at least 0.
    batch_size: int = 256
        Transitions in a minibatch. It is at least 1.
    normalize_obs: bool | Literal["auto"] = False
        Scale observations by mean and deviation; `auto`: where they are numbers, not images.
    obs_clip: float = 10.0
        Scaled observations stay within this. It is above 0.
    gamma*: float = 0.99
        Discount factor. It is at least 0 and at most 1.
    tau*: float = 0.005
        Share of the online weights in a target network's update. It is at least 0 and at most 1.
    n_step: int = 1
        Rewards in a target before it bootstraps. It is at least 1.
    noise_std*: float = 0.1
        Deviation of the noise on actions, which are in [-1, 1]. It is at least 0.
    policy_delay: int = 2
        Critic updates per update of the actor and the target networks. It is at least 1.
    target_policy_noise*: float = 0.2
        Deviation of the noise on target actions. It is at least 0.
    target_noise_clip*: float = 0.5
        Noise on target actions stays within this. It is at least 0.
    time_limit: int | None = None
        Truncate episodes after this many steps; the environment's own limit if null. It is at least 1.
    frame_stack: int = 1
        How many of the latest observations the policy sees. It is at least 1.
    reward_clip: float | None = None
        Clip rewards to +- this for learning; reported returns are not clipped. It is above 0.
    buffer_size: int = 1000000
        Capacity of the replay buffer. It is at least 1.
    learning_starts: int = 100
        Steps of random actions before learning starts. It is at least 0.
    train_every: int = 1
        Steps between two phases of learning. It is at least 1. Also: train_freq.
    updates_per_step: float = 1.0
        Gradient updates per step of experience, whatever num_envs is. It is above 0.
    her: bool | str | Mapping[str, Any] | None = None
        Hindsight experience replay in goal environments: true, a strategy (future, final or episode), or
        `{strategy, n_sampled_goal}`.
    model: str | Callable[..., Any] = "auto"
        `auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in
        Python also the class or function itself.
    hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (256, 256)
        Widths of the hidden layers: a list, or a mapping with one for each of policy, critic, encoder.
    activation: str | type = "relu"
        Activation of hidden layers. MLPs with tanh, relu, silu have a fast path on a CPU; others are computed by
        autograd.
    image_encoder: Literal["nature", "impala"] = "nature"
        Network of images: `nature`, three convolutions (from 36 pixels each way), or `impala`, a residual network
        of 15 (from 8).
    n_critics: int = 2
        Critics in the ensemble. It is at least 1.
    share_encoder: bool = False
        One encoder (of images, Dict observations, or hidden_sizes.encoder) for actor and critics. The critics
        train it; the actor, and a value of states, read its features without a gradient.
    env_packages: str | Sequence[str] = ()
        Modules that are imported before ids are looked up.
    env_kwargs: Mapping[str, Any] = {}
        Arguments of the environment.
    vectorization: Literal["auto", "native", "sync", "async"] = "auto"
        How environments are stepped together; `auto` is native where that is faster, else sync.
    env_timeout: float | None = 300.0
        Seconds that an environment in its own process (`async`) has for a step or a reset; null for any. It is
        above 0.
    num_envs: int = 8
        Environments that are stepped together; those of all workers. It is at least 1.
    actors: Literal["inline", "process", "ray"] = "inline"
        Where workers gather: in this process, in processes of their own, or on a Ray cluster.
    num_workers: int = 1
        Workers that gather; each has num_envs / num_workers environments. It is at least 1.
    order: Literal["auto", "fixed", "arrival"] = "auto"
        Learn from rollouts in a fixed order, which is exact, or as they arrive; `auto`: arrival for ray.
    rollout_deadline: float | None = 600.0
        Seconds that a worker may take for a rollout before it is replaced; null for any. It is above 0.
    worker_restarts: int = 10
        How many workers may be lost and replaced before the run is saved and ends. It is at least 0.
    ray_address: str | None = None
        Address of a Ray cluster for `actors: ray`; a cluster of its own if null.
    seed: int = 0
        Seed of everything random in the run. It is at least 0.
    total_timesteps: int = 100000
        Environment steps of the run; updates, where it learns offline. It is at least 1. Also: total_updates.
    eval_interval: int | None = None
        Evaluate whenever this many steps have passed; at the end if null. It is at least 1.
    eval_episodes: int = 10
        Episodes of an evaluation, with seeds that never change. It is at least 1.
    early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
        A rule that ends the run early, or a list of them.
    checkpoint_interval: int = 25000
        Save whenever this many steps have passed. It is at least 1.
    keep_checkpoints: int = 3
        How many checkpoints are kept, besides the best and spare ones. It is at least 2.
    log_interval: int = 1000
        Write metrics whenever this many steps have passed. It is at least 1.
    output_dir: str = "runs"
        Folder in which the run's folder is made.
    device: str = "auto"
        `cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.
    engine: Literal["auto", "autograd"] = "auto"
        `auto` uses the compiled path on a CPU where there is one (MLPs, small world models); `autograd`: torch
        alone.
    threads: int = 1
        Threads of torch and BLAS. More than one pays for wide networks on a quiet machine. It is at least 1.
    stretch_schedules: bool = False
        Stretch the schedules of a resumed run over its new number of steps.
    callbacks: Sequence[str] = ()
        Your own callbacks, each `module:Name`.
    loggers: str | Sequence[str] = ()
        Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names).
    tags: Sequence[str] = ()
        Labels of the run.
    """

    def __init__(
        self,
        env: Env,
        *,
        learning_rate: float = 0.001,
        learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        learning_rate_warmup_steps: int | None = None,
        batch_size: int = 256,
        normalize_obs: bool | Literal["auto"] = False,
        obs_clip: float = 10.0,
        gamma: float = 0.99,
        gamma_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gamma_warmup_steps: int | None = None,
        tau: float = 0.005,
        tau_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        tau_warmup_steps: int | None = None,
        n_step: int = 1,
        noise_std: float = 0.1,
        noise_std_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        noise_std_warmup_steps: int | None = None,
        policy_delay: int = 2,
        target_policy_noise: float = 0.2,
        target_policy_noise_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        target_policy_noise_warmup_steps: int | None = None,
        target_noise_clip: float = 0.5,
        target_noise_clip_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        target_noise_clip_warmup_steps: int | None = None,
        time_limit: int | None = None,
        frame_stack: int = 1,
        reward_clip: float | None = None,
        buffer_size: int = 1000000,
        learning_starts: int = 100,
        train_every: int = 1,
        train_freq: int = 1,
        updates_per_step: float = 1.0,
        her: bool | str | Mapping[str, Any] | None = None,
        model: str | Callable[..., Any] = "auto",
        hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (256, 256),
        activation: str | type = "relu",
        image_encoder: Literal["nature", "impala"] = "nature",
        n_critics: int = 2,
        share_encoder: bool = False,
        env_packages: str | Sequence[str] = (),
        env_kwargs: Mapping[str, Any] = ...,
        vectorization: Literal["auto", "native", "sync", "async"] = "auto",
        env_timeout: float | None = 300.0,
        num_envs: int = 8,
        actors: Literal["inline", "process", "ray"] = "inline",
        num_workers: int = 1,
        order: Literal["auto", "fixed", "arrival"] = "auto",
        rollout_deadline: float | None = 600.0,
        worker_restarts: int = 10,
        ray_address: str | None = None,
        seed: int = 0,
        total_timesteps: int = 100000,
        total_updates: int = 100000,
        eval_interval: int | None = None,
        eval_episodes: int = 10,
        early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        checkpoint_interval: int = 25000,
        keep_checkpoints: int = 3,
        log_interval: int = 1000,
        output_dir: str = "runs",
        device: str = "auto",
        engine: Literal["auto", "autograd"] = "auto",
        threads: int = 1,
        stretch_schedules: bool = False,
        callbacks: Sequence[str] = (),
        loggers: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        algo_kwargs: Mapping[str, Any] | None = None,
    ) -> None: ...

class SAC(Agent):
    """Soft actor-critic.

    Settings, of which those marked with * also take X_schedule and X_warmup_steps:

    learning_rate*: float = 0.0003
        Step size of the optimisers. It is at least 0.
    batch_size: int = 256
        Transitions in a minibatch. It is at least 1.
    normalize_obs: bool | Literal["auto"] = False
        Scale observations by mean and deviation; `auto`: where they are numbers, not images.
    obs_clip: float = 10.0
        Scaled observations stay within this. It is above 0.
    gamma*: float = 0.99
        Discount factor. It is at least 0 and at most 1.
    tau*: float = 0.005
        Share of the online weights in a target network's update. It is at least 0 and at most 1.
    n_step: int = 1
        Rewards in a target before it bootstraps. It is at least 1.
    ent_coef*: float | str = "auto"
        Weight of the entropy: a number, `auto` (learned), or `auto_0.1` (learned, starting at 0.1). It is at
        least 0. Also: entropy_coef.
    target_entropy: float | None = None
        The entropy that a learned ent_coef aims at; minus the number of actions if null.
    time_limit: int | None = None
        Truncate episodes after this many steps; the environment's own limit if null. It is at least 1.
    frame_stack: int = 1
        How many of the latest observations the policy sees. It is at least 1.
    reward_clip: float | None = None
        Clip rewards to +- this for learning; reported returns are not clipped. It is above 0.
    buffer_size: int = 1000000
        Capacity of the replay buffer. It is at least 1.
    learning_starts: int = 100
        Steps of random actions before learning starts. It is at least 0.
    train_every: int = 1
        Steps between two phases of learning. It is at least 1. Also: train_freq.
    updates_per_step: float = 1.0
        Gradient updates per step of experience, whatever num_envs is. It is above 0.
    her: bool | str | Mapping[str, Any] | None = None
        Hindsight experience replay in goal environments: true, a strategy (future, final or episode), or
        `{strategy, n_sampled_goal}`.
    model: str | Callable[..., Any] = "auto"
        `auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in
        Python also the class or function itself.
    hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (256, 256)
        Widths of the hidden layers: a list, or a mapping with one for each of policy, critic, encoder.
    activation: str | type = "relu"
        Activation of hidden layers. MLPs with tanh, relu, silu have a fast path on a CPU; others are computed by
        autograd.
    image_encoder: Literal["nature", "impala"] = "nature"
        Network of images: `nature`, three convolutions (from 36 pixels each way), or `impala`, a residual network
        of 15 (from 8).
    n_critics: int = 2
        Critics in the ensemble. It is at least 1.
    share_encoder: bool = False
        One encoder (of images, Dict observations, or hidden_sizes.encoder) for actor and critics. The critics
        train it; the actor, and a value of states, read its features without a gradient.
    env_packages: str | Sequence[str] = ()
        Modules that are imported before ids are looked up.
    env_kwargs: Mapping[str, Any] = {}
        Arguments of the environment.
    vectorization: Literal["auto", "native", "sync", "async"] = "auto"
        How environments are stepped together; `auto` is native where that is faster, else sync.
    env_timeout: float | None = 300.0
        Seconds that an environment in its own process (`async`) has for a step or a reset; null for any. It is
        above 0.
    num_envs: int = 8
        Environments that are stepped together; those of all workers. It is at least 1.
    actors: Literal["inline", "process", "ray"] = "inline"
        Where workers gather: in this process, in processes of their own, or on a Ray cluster.
    num_workers: int = 1
        Workers that gather; each has num_envs / num_workers environments. It is at least 1.
    order: Literal["auto", "fixed", "arrival"] = "auto"
        Learn from rollouts in a fixed order, which is exact, or as they arrive; `auto`: arrival for ray.
    rollout_deadline: float | None = 600.0
        Seconds that a worker may take for a rollout before it is replaced; null for any. It is above 0.
    worker_restarts: int = 10
        How many workers may be lost and replaced before the run is saved and ends. It is at least 0.
    ray_address: str | None = None
        Address of a Ray cluster for `actors: ray`; a cluster of its own if null.
    seed: int = 0
        Seed of everything random in the run. It is at least 0.
    total_timesteps: int = 100000
        Environment steps of the run; updates, where it learns offline. It is at least 1. Also: total_updates.
    eval_interval: int | None = None
        Evaluate whenever this many steps have passed; at the end if null. It is at least 1.
    eval_episodes: int = 10
        Episodes of an evaluation, with seeds that never change. It is at least 1.
    early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
        A rule that ends the run early, or a list of them.
    checkpoint_interval: int = 25000
        Save whenever this many steps have passed. It is at least 1.
    keep_checkpoints: int = 3
        How many checkpoints are kept, besides the best and spare ones. It is at least 2.
    log_interval: int = 1000
        Write metrics whenever this many steps have passed. It is at least 1.
    output_dir: str = "runs"
        Folder in which the run's folder is made.
    device: str = "auto"
        `cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.
    engine: Literal["auto", "autograd"] = "auto"
        `auto` uses the compiled path on a CPU where there is one (MLPs, small world models); `autograd`: torch
        alone.
    threads: int = 1
        Threads of torch and BLAS. More than one pays for wide networks on a quiet machine. It is at least 1.
    stretch_schedules: bool = False
        Stretch the schedules of a resumed run over its new number of steps.
    callbacks: Sequence[str] = ()
        Your own callbacks, each `module:Name`.
    loggers: str | Sequence[str] = ()
        Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names).
    tags: Sequence[str] = ()
        Labels of the run.
    """

    def __init__(
        self,
        env: Env,
        *,
        learning_rate: float = 0.0003,
        learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        learning_rate_warmup_steps: int | None = None,
        batch_size: int = 256,
        normalize_obs: bool | Literal["auto"] = False,
        obs_clip: float = 10.0,
        gamma: float = 0.99,
        gamma_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gamma_warmup_steps: int | None = None,
        tau: float = 0.005,
        tau_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        tau_warmup_steps: int | None = None,
        n_step: int = 1,
        ent_coef: float | str = "auto",
        ent_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        ent_coef_warmup_steps: int | None = None,
        entropy_coef: float | str = "auto",
        entropy_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        entropy_coef_warmup_steps: int | None = None,
        target_entropy: float | None = None,
        time_limit: int | None = None,
        frame_stack: int = 1,
        reward_clip: float | None = None,
        buffer_size: int = 1000000,
        learning_starts: int = 100,
        train_every: int = 1,
        train_freq: int = 1,
        updates_per_step: float = 1.0,
        her: bool | str | Mapping[str, Any] | None = None,
        model: str | Callable[..., Any] = "auto",
        hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (256, 256),
        activation: str | type = "relu",
        image_encoder: Literal["nature", "impala"] = "nature",
        n_critics: int = 2,
        share_encoder: bool = False,
        env_packages: str | Sequence[str] = (),
        env_kwargs: Mapping[str, Any] = ...,
        vectorization: Literal["auto", "native", "sync", "async"] = "auto",
        env_timeout: float | None = 300.0,
        num_envs: int = 8,
        actors: Literal["inline", "process", "ray"] = "inline",
        num_workers: int = 1,
        order: Literal["auto", "fixed", "arrival"] = "auto",
        rollout_deadline: float | None = 600.0,
        worker_restarts: int = 10,
        ray_address: str | None = None,
        seed: int = 0,
        total_timesteps: int = 100000,
        total_updates: int = 100000,
        eval_interval: int | None = None,
        eval_episodes: int = 10,
        early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        checkpoint_interval: int = 25000,
        keep_checkpoints: int = 3,
        log_interval: int = 1000,
        output_dir: str = "runs",
        device: str = "auto",
        engine: Literal["auto", "autograd"] = "auto",
        threads: int = 1,
        stretch_schedules: bool = False,
        callbacks: Sequence[str] = (),
        loggers: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        algo_kwargs: Mapping[str, Any] | None = None,
    ) -> None: ...

class REDQ(Agent):
    """Randomized ensembled double Q-learning.

    Settings, of which those marked with * also take X_schedule and X_warmup_steps:

    learning_rate*: float = 0.0003
        Step size of the optimisers. It is at least 0.
    batch_size: int = 256
        Transitions in a minibatch. It is at least 1.
    normalize_obs: bool | Literal["auto"] = False
        Scale observations by mean and deviation; `auto`: where they are numbers, not images.
    obs_clip: float = 10.0
        Scaled observations stay within this. It is above 0.
    gamma*: float = 0.99
        Discount factor. It is at least 0 and at most 1.
    tau*: float = 0.005
        Share of the online weights in a target network's update. It is at least 0 and at most 1.
    n_step: int = 1
        Rewards in a target before it bootstraps. It is at least 1.
    ent_coef*: float | str = "auto"
        Weight of the entropy: a number, `auto` (learned), or `auto_0.1` (learned, starting at 0.1). It is at
        least 0. Also: entropy_coef.
    target_entropy: float | None = None
        The entropy that a learned ent_coef aims at; minus the number of actions if null.
    subset_size: int = 2
        Critics whose least value is the target; drawn anew for each update. It is at least 1.
    policy_delay: int = 20
        Critic updates per update of the actor. It is at least 1.
    time_limit: int | None = None
        Truncate episodes after this many steps; the environment's own limit if null. It is at least 1.
    frame_stack: int = 1
        How many of the latest observations the policy sees. It is at least 1.
    reward_clip: float | None = None
        Clip rewards to +- this for learning; reported returns are not clipped. It is above 0.
    buffer_size: int = 1000000
        Capacity of the replay buffer. It is at least 1.
    learning_starts: int = 5000
        Steps of random actions before learning starts. It is at least 0.
    train_every: int = 1
        Steps between two phases of learning. It is at least 1. Also: train_freq.
    updates_per_step: float = 20.0
        Gradient updates per step of experience, whatever num_envs is. It is above 0.
    her: bool | str | Mapping[str, Any] | None = None
        Hindsight experience replay in goal environments: true, a strategy (future, final or episode), or
        `{strategy, n_sampled_goal}`.
    model: str | Callable[..., Any] = "auto"
        `auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in
        Python also the class or function itself.
    hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (256, 256)
        Widths of the hidden layers: a list, or a mapping with one for each of policy, critic, encoder.
    activation: str | type = "relu"
        Activation of hidden layers. MLPs with tanh, relu, silu have a fast path on a CPU; others are computed by
        autograd.
    image_encoder: Literal["nature", "impala"] = "nature"
        Network of images: `nature`, three convolutions (from 36 pixels each way), or `impala`, a residual network
        of 15 (from 8).
    n_critics: int = 10
        Critics in the ensemble. It is at least 1.
    share_encoder: bool = False
        One encoder (of images, Dict observations, or hidden_sizes.encoder) for actor and critics. The critics
        train it; the actor, and a value of states, read its features without a gradient.
    env_packages: str | Sequence[str] = ()
        Modules that are imported before ids are looked up.
    env_kwargs: Mapping[str, Any] = {}
        Arguments of the environment.
    vectorization: Literal["auto", "native", "sync", "async"] = "auto"
        How environments are stepped together; `auto` is native where that is faster, else sync.
    env_timeout: float | None = 300.0
        Seconds that an environment in its own process (`async`) has for a step or a reset; null for any. It is
        above 0.
    num_envs: int = 8
        Environments that are stepped together; those of all workers. It is at least 1.
    actors: Literal["inline", "process", "ray"] = "inline"
        Where workers gather: in this process, in processes of their own, or on a Ray cluster.
    num_workers: int = 1
        Workers that gather; each has num_envs / num_workers environments. It is at least 1.
    order: Literal["auto", "fixed", "arrival"] = "auto"
        Learn from rollouts in a fixed order, which is exact, or as they arrive; `auto`: arrival for ray.
    rollout_deadline: float | None = 600.0
        Seconds that a worker may take for a rollout before it is replaced; null for any. It is above 0.
    worker_restarts: int = 10
        How many workers may be lost and replaced before the run is saved and ends. It is at least 0.
    ray_address: str | None = None
        Address of a Ray cluster for `actors: ray`; a cluster of its own if null.
    seed: int = 0
        Seed of everything random in the run. It is at least 0.
    total_timesteps: int = 100000
        Environment steps of the run; updates, where it learns offline. It is at least 1. Also: total_updates.
    eval_interval: int | None = None
        Evaluate whenever this many steps have passed; at the end if null. It is at least 1.
    eval_episodes: int = 10
        Episodes of an evaluation, with seeds that never change. It is at least 1.
    early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
        A rule that ends the run early, or a list of them.
    checkpoint_interval: int = 25000
        Save whenever this many steps have passed. It is at least 1.
    keep_checkpoints: int = 3
        How many checkpoints are kept, besides the best and spare ones. It is at least 2.
    log_interval: int = 1000
        Write metrics whenever this many steps have passed. It is at least 1.
    output_dir: str = "runs"
        Folder in which the run's folder is made.
    device: str = "auto"
        `cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.
    engine: Literal["auto", "autograd"] = "auto"
        `auto` uses the compiled path on a CPU where there is one (MLPs, small world models); `autograd`: torch
        alone.
    threads: int = 1
        Threads of torch and BLAS. More than one pays for wide networks on a quiet machine. It is at least 1.
    stretch_schedules: bool = False
        Stretch the schedules of a resumed run over its new number of steps.
    callbacks: Sequence[str] = ()
        Your own callbacks, each `module:Name`.
    loggers: str | Sequence[str] = ()
        Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names).
    tags: Sequence[str] = ()
        Labels of the run.
    """

    def __init__(
        self,
        env: Env,
        *,
        learning_rate: float = 0.0003,
        learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        learning_rate_warmup_steps: int | None = None,
        batch_size: int = 256,
        normalize_obs: bool | Literal["auto"] = False,
        obs_clip: float = 10.0,
        gamma: float = 0.99,
        gamma_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gamma_warmup_steps: int | None = None,
        tau: float = 0.005,
        tau_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        tau_warmup_steps: int | None = None,
        n_step: int = 1,
        ent_coef: float | str = "auto",
        ent_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        ent_coef_warmup_steps: int | None = None,
        entropy_coef: float | str = "auto",
        entropy_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        entropy_coef_warmup_steps: int | None = None,
        target_entropy: float | None = None,
        subset_size: int = 2,
        policy_delay: int = 20,
        time_limit: int | None = None,
        frame_stack: int = 1,
        reward_clip: float | None = None,
        buffer_size: int = 1000000,
        learning_starts: int = 5000,
        train_every: int = 1,
        train_freq: int = 1,
        updates_per_step: float = 20.0,
        her: bool | str | Mapping[str, Any] | None = None,
        model: str | Callable[..., Any] = "auto",
        hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (256, 256),
        activation: str | type = "relu",
        image_encoder: Literal["nature", "impala"] = "nature",
        n_critics: int = 10,
        share_encoder: bool = False,
        env_packages: str | Sequence[str] = (),
        env_kwargs: Mapping[str, Any] = ...,
        vectorization: Literal["auto", "native", "sync", "async"] = "auto",
        env_timeout: float | None = 300.0,
        num_envs: int = 8,
        actors: Literal["inline", "process", "ray"] = "inline",
        num_workers: int = 1,
        order: Literal["auto", "fixed", "arrival"] = "auto",
        rollout_deadline: float | None = 600.0,
        worker_restarts: int = 10,
        ray_address: str | None = None,
        seed: int = 0,
        total_timesteps: int = 100000,
        total_updates: int = 100000,
        eval_interval: int | None = None,
        eval_episodes: int = 10,
        early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        checkpoint_interval: int = 25000,
        keep_checkpoints: int = 3,
        log_interval: int = 1000,
        output_dir: str = "runs",
        device: str = "auto",
        engine: Literal["auto", "autograd"] = "auto",
        threads: int = 1,
        stretch_schedules: bool = False,
        callbacks: Sequence[str] = (),
        loggers: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        algo_kwargs: Mapping[str, Any] | None = None,
    ) -> None: ...

class TQC(Agent):
    """Truncated quantile critics.

    Settings, of which those marked with * also take X_schedule and X_warmup_steps:

    learning_rate*: float = 0.0003
        Step size of the optimisers. It is at least 0.
    batch_size: int = 256
        Transitions in a minibatch. It is at least 1.
    normalize_obs: bool | Literal["auto"] = False
        Scale observations by mean and deviation; `auto`: where they are numbers, not images.
    obs_clip: float = 10.0
        Scaled observations stay within this. It is above 0.
    gamma*: float = 0.99
        Discount factor. It is at least 0 and at most 1.
    tau*: float = 0.005
        Share of the online weights in a target network's update. It is at least 0 and at most 1.
    n_step: int = 1
        Rewards in a target before it bootstraps. It is at least 1.
    ent_coef*: float | str = "auto"
        Weight of the entropy: a number, `auto` (learned), or `auto_0.1` (learned, starting at 0.1). It is at
        least 0. Also: entropy_coef.
    target_entropy: float | None = None
        The entropy that a learned ent_coef aims at; minus the number of actions if null.
    top_quantiles_to_drop: int = 2
        Highest quantiles that are left out, for each critic. It is at least 0.
    time_limit: int | None = None
        Truncate episodes after this many steps; the environment's own limit if null. It is at least 1.
    frame_stack: int = 1
        How many of the latest observations the policy sees. It is at least 1.
    reward_clip: float | None = None
        Clip rewards to +- this for learning; reported returns are not clipped. It is above 0.
    buffer_size: int = 1000000
        Capacity of the replay buffer. It is at least 1.
    learning_starts: int = 100
        Steps of random actions before learning starts. It is at least 0.
    train_every: int = 1
        Steps between two phases of learning. It is at least 1. Also: train_freq.
    updates_per_step: float = 1.0
        Gradient updates per step of experience, whatever num_envs is. It is above 0.
    her: bool | str | Mapping[str, Any] | None = None
        Hindsight experience replay in goal environments: true, a strategy (future, final or episode), or
        `{strategy, n_sampled_goal}`.
    model: str | Callable[..., Any] = "auto"
        `auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in
        Python also the class or function itself.
    hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (256, 256)
        Widths of the hidden layers: a list, or a mapping with one for each of policy, critic, encoder.
    activation: str | type = "relu"
        Activation of hidden layers. MLPs with tanh, relu, silu have a fast path on a CPU; others are computed by
        autograd.
    image_encoder: Literal["nature", "impala"] = "nature"
        Network of images: `nature`, three convolutions (from 36 pixels each way), or `impala`, a residual network
        of 15 (from 8).
    n_critics: int = 2
        Critics in the ensemble. It is at least 1.
    share_encoder: bool = False
        One encoder (of images, Dict observations, or hidden_sizes.encoder) for actor and critics. The critics
        train it; the actor, and a value of states, read its features without a gradient.
    n_quantiles: int = 25
        Number of quantiles of each critic. It is at least 1.
    env_packages: str | Sequence[str] = ()
        Modules that are imported before ids are looked up.
    env_kwargs: Mapping[str, Any] = {}
        Arguments of the environment.
    vectorization: Literal["auto", "native", "sync", "async"] = "auto"
        How environments are stepped together; `auto` is native where that is faster, else sync.
    env_timeout: float | None = 300.0
        Seconds that an environment in its own process (`async`) has for a step or a reset; null for any. It is
        above 0.
    num_envs: int = 8
        Environments that are stepped together; those of all workers. It is at least 1.
    actors: Literal["inline", "process", "ray"] = "inline"
        Where workers gather: in this process, in processes of their own, or on a Ray cluster.
    num_workers: int = 1
        Workers that gather; each has num_envs / num_workers environments. It is at least 1.
    order: Literal["auto", "fixed", "arrival"] = "auto"
        Learn from rollouts in a fixed order, which is exact, or as they arrive; `auto`: arrival for ray.
    rollout_deadline: float | None = 600.0
        Seconds that a worker may take for a rollout before it is replaced; null for any. It is above 0.
    worker_restarts: int = 10
        How many workers may be lost and replaced before the run is saved and ends. It is at least 0.
    ray_address: str | None = None
        Address of a Ray cluster for `actors: ray`; a cluster of its own if null.
    seed: int = 0
        Seed of everything random in the run. It is at least 0.
    total_timesteps: int = 100000
        Environment steps of the run; updates, where it learns offline. It is at least 1. Also: total_updates.
    eval_interval: int | None = None
        Evaluate whenever this many steps have passed; at the end if null. It is at least 1.
    eval_episodes: int = 10
        Episodes of an evaluation, with seeds that never change. It is at least 1.
    early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
        A rule that ends the run early, or a list of them.
    checkpoint_interval: int = 25000
        Save whenever this many steps have passed. It is at least 1.
    keep_checkpoints: int = 3
        How many checkpoints are kept, besides the best and spare ones. It is at least 2.
    log_interval: int = 1000
        Write metrics whenever this many steps have passed. It is at least 1.
    output_dir: str = "runs"
        Folder in which the run's folder is made.
    device: str = "auto"
        `cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.
    engine: Literal["auto", "autograd"] = "auto"
        `auto` uses the compiled path on a CPU where there is one (MLPs, small world models); `autograd`: torch
        alone.
    threads: int = 1
        Threads of torch and BLAS. More than one pays for wide networks on a quiet machine. It is at least 1.
    stretch_schedules: bool = False
        Stretch the schedules of a resumed run over its new number of steps.
    callbacks: Sequence[str] = ()
        Your own callbacks, each `module:Name`.
    loggers: str | Sequence[str] = ()
        Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names).
    tags: Sequence[str] = ()
        Labels of the run.
    """

    def __init__(
        self,
        env: Env,
        *,
        learning_rate: float = 0.0003,
        learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        learning_rate_warmup_steps: int | None = None,
        batch_size: int = 256,
        normalize_obs: bool | Literal["auto"] = False,
        obs_clip: float = 10.0,
        gamma: float = 0.99,
        gamma_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gamma_warmup_steps: int | None = None,
        tau: float = 0.005,
        tau_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        tau_warmup_steps: int | None = None,
        n_step: int = 1,
        ent_coef: float | str = "auto",
        ent_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        ent_coef_warmup_steps: int | None = None,
        entropy_coef: float | str = "auto",
        entropy_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        entropy_coef_warmup_steps: int | None = None,
        target_entropy: float | None = None,
        top_quantiles_to_drop: int = 2,
        time_limit: int | None = None,
        frame_stack: int = 1,
        reward_clip: float | None = None,
        buffer_size: int = 1000000,
        learning_starts: int = 100,
        train_every: int = 1,
        train_freq: int = 1,
        updates_per_step: float = 1.0,
        her: bool | str | Mapping[str, Any] | None = None,
        model: str | Callable[..., Any] = "auto",
        hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (256, 256),
        activation: str | type = "relu",
        image_encoder: Literal["nature", "impala"] = "nature",
        n_critics: int = 2,
        share_encoder: bool = False,
        n_quantiles: int = 25,
        env_packages: str | Sequence[str] = (),
        env_kwargs: Mapping[str, Any] = ...,
        vectorization: Literal["auto", "native", "sync", "async"] = "auto",
        env_timeout: float | None = 300.0,
        num_envs: int = 8,
        actors: Literal["inline", "process", "ray"] = "inline",
        num_workers: int = 1,
        order: Literal["auto", "fixed", "arrival"] = "auto",
        rollout_deadline: float | None = 600.0,
        worker_restarts: int = 10,
        ray_address: str | None = None,
        seed: int = 0,
        total_timesteps: int = 100000,
        total_updates: int = 100000,
        eval_interval: int | None = None,
        eval_episodes: int = 10,
        early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        checkpoint_interval: int = 25000,
        keep_checkpoints: int = 3,
        log_interval: int = 1000,
        output_dir: str = "runs",
        device: str = "auto",
        engine: Literal["auto", "autograd"] = "auto",
        threads: int = 1,
        stretch_schedules: bool = False,
        callbacks: Sequence[str] = (),
        loggers: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        algo_kwargs: Mapping[str, Any] | None = None,
    ) -> None: ...

class BC(Agent):
    """Behaviour cloning.

    Settings, of which those marked with * also take X_schedule and X_warmup_steps:

    learning_rate*: float = 0.0003
        Step size of the optimisers. It is at least 0.
    batch_size: int = 256
        Transitions in a minibatch. It is at least 1.
    normalize_obs: bool | Literal["auto"] = False
        Scale observations by mean and deviation; `auto`: where they are numbers, not images.
    obs_clip: float = 10.0
        Scaled observations stay within this. It is above 0.
    loss: Literal["mse", "likelihood"] = "mse"
        For continuous actions: squared error, or the likelihood of the data under the policy (`policy_head`).
    time_limit: int | None = None
        Truncate episodes after this many steps; the environment's own limit if null. It is at least 1.
    frame_stack: int = 1
        How many of the latest observations the policy sees. It is at least 1.
    dataset: str | None = None
        A file (npz, hdf5), a Minari id or folder, a run (its replay), or `module:function` of a SpaceInfo.
    action_units: Literal["auto", "environment", "clipped", "normalized"] = "auto"
        Units of the actions: the environment's (`clipped` to its bounds), or [-1, 1]; `auto` detects them.
    top_return_fraction: float = 1.0
        Learn from this share of the episodes, those with the highest returns. It is above 0 and at most 1.
    validation_fraction: float = 0.0
        Share of the episodes that is held out: `validation_loss`. It is at least 0 and below 1.
    model: str | Callable[..., Any] = "auto"
        `auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in
        Python also the class or function itself.
    hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (256, 256)
        Widths of the hidden layers.
    activation: str | type = "relu"
        Activation of hidden layers. MLPs with tanh, relu, silu have a fast path on a CPU; others are computed by
        autograd.
    image_encoder: Literal["nature", "impala"] = "nature"
        Network of images: `nature`, three convolutions (from 36 pixels each way), or `impala`, a residual network
        of 15 (from 8).
    policy_head: Literal["gaussian", "squashed"] = "gaussian"
        For `likelihood`: a Gaussian around tanh of the output, clipped; or a Gaussian squashed by tanh, as in
        SAC.
    env_packages: str | Sequence[str] = ()
        Modules that are imported before ids are looked up.
    env_kwargs: Mapping[str, Any] = {}
        Arguments of the environment.
    vectorization: Literal["auto", "native", "sync", "async"] = "auto"
        How environments are stepped together; `auto` is native where that is faster, else sync.
    env_timeout: float | None = 300.0
        Seconds that an environment in its own process (`async`) has for a step or a reset; null for any. It is
        above 0.
    seed: int = 0
        Seed of everything random in the run. It is at least 0.
    total_timesteps: int = 100000
        Environment steps of the run; updates, where it learns offline. It is at least 1. Also: total_updates.
    eval_interval: int | None = None
        Evaluate whenever this many steps have passed; at the end if null. It is at least 1.
    eval_episodes: int = 10
        Episodes of an evaluation, with seeds that never change. It is at least 1.
    bc_baseline_updates: int = 5000
        Updates of a behaviour-cloning policy that an offline run is compared with, at most its own; 0 for none.
        It is at least 0.
    early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
        A rule that ends the run early, or a list of them.
    checkpoint_interval: int = 25000
        Save whenever this many steps have passed. It is at least 1.
    keep_checkpoints: int = 3
        How many checkpoints are kept, besides the best and spare ones. It is at least 2.
    log_interval: int = 1000
        Write metrics whenever this many steps have passed. It is at least 1.
    output_dir: str = "runs"
        Folder in which the run's folder is made.
    device: str = "auto"
        `cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.
    engine: Literal["auto", "autograd"] = "auto"
        `auto` uses the compiled path on a CPU where there is one (MLPs, small world models); `autograd`: torch
        alone.
    threads: int = 1
        Threads of torch and BLAS. More than one pays for wide networks on a quiet machine. It is at least 1.
    stretch_schedules: bool = False
        Stretch the schedules of a resumed run over its new number of steps.
    callbacks: Sequence[str] = ()
        Your own callbacks, each `module:Name`.
    loggers: str | Sequence[str] = ()
        Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names).
    tags: Sequence[str] = ()
        Labels of the run.
    """

    def __init__(
        self,
        env: Env,
        *,
        learning_rate: float = 0.0003,
        learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        learning_rate_warmup_steps: int | None = None,
        batch_size: int = 256,
        normalize_obs: bool | Literal["auto"] = False,
        obs_clip: float = 10.0,
        loss: Literal["mse", "likelihood"] = "mse",
        time_limit: int | None = None,
        frame_stack: int = 1,
        dataset: str | None = None,
        action_units: Literal["auto", "environment", "clipped", "normalized"] = "auto",
        top_return_fraction: float = 1.0,
        validation_fraction: float = 0.0,
        model: str | Callable[..., Any] = "auto",
        hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (256, 256),
        activation: str | type = "relu",
        image_encoder: Literal["nature", "impala"] = "nature",
        policy_head: Literal["gaussian", "squashed"] = "gaussian",
        env_packages: str | Sequence[str] = (),
        env_kwargs: Mapping[str, Any] = ...,
        vectorization: Literal["auto", "native", "sync", "async"] = "auto",
        env_timeout: float | None = 300.0,
        seed: int = 0,
        total_timesteps: int = 100000,
        total_updates: int = 100000,
        eval_interval: int | None = None,
        eval_episodes: int = 10,
        bc_baseline_updates: int = 5000,
        early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        checkpoint_interval: int = 25000,
        keep_checkpoints: int = 3,
        log_interval: int = 1000,
        output_dir: str = "runs",
        device: str = "auto",
        engine: Literal["auto", "autograd"] = "auto",
        threads: int = 1,
        stretch_schedules: bool = False,
        callbacks: Sequence[str] = (),
        loggers: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        algo_kwargs: Mapping[str, Any] | None = None,
    ) -> None: ...

class AWAC(Agent):
    """Advantage-weighted actor-critic.

    Settings, of which those marked with * also take X_schedule and X_warmup_steps:

    learning_rate*: float = 0.0003
        Step size of the optimisers. It is at least 0.
    batch_size: int = 256
        Transitions in a minibatch. It is at least 1.
    normalize_obs: bool | Literal["auto"] = "auto"
        Scale observations by the dataset's mean and deviation; `auto`: unless they are images.
    obs_clip: float = 10.0
        Scaled observations stay within this. It is above 0.
    gamma*: float = 0.99
        Discount factor. It is at least 0 and at most 1.
    tau*: float = 0.005
        Share of the online weights in a target network's update. It is at least 0 and at most 1.
    n_step: int = 1
        Rewards in a target before it bootstraps. It is at least 1.
    awac_lambda*: float = 0.3333333333333333
        Temperature of the weights: a smaller one favours large advantages more. It is above 0.
    weighting: Literal["clipped", "softmax"] = "clipped"
        Weights are exponentials up to max_weight, or a softmax over the minibatch.
    max_weight*: float = 100.0
        The largest weight, if weights are clipped. It is above 0.
    time_limit: int | None = None
        Truncate episodes after this many steps; the environment's own limit if null. It is at least 1.
    frame_stack: int = 1
        How many of the latest observations the policy sees. It is at least 1.
    reward_clip: float | None = None
        Clip rewards to +- this for learning; reported returns are not clipped. It is above 0.
    buffer_size: int = 1000000
        Capacity of the replay buffer of an online run. It is at least 1.
    learning_starts: int = 100
        Steps that an online run collects before it learns. It is at least 0.
    train_every: int = 1
        Steps between two phases of learning, online. It is at least 1. Also: train_freq.
    updates_per_step: float = 1.0
        Gradient updates per step of experience, online. It is above 0.
    dataset: str | None = None
        A file (npz, hdf5), a Minari id or folder, a run (its replay), or `module:function` of a SpaceInfo.
    action_units: Literal["auto", "environment", "clipped", "normalized"] = "auto"
        Units of the actions: the environment's (`clipped` to its bounds), or [-1, 1]; `auto` detects them.
    top_return_fraction: float = 1.0
        Learn from this share of the episodes, those with the highest returns. It is above 0 and at most 1.
    done_means: Literal["terminal", "timeout", "auto"] | None = None
        Why episodes ended, for a file that does not say; `auto`: timeout at the time limit, else terminal.
    reward_scale: float | Literal["auto", "return_range"] = "auto"
        Factor of the rewards; `auto`: the dataset's discounted returns then have a deviation of 10;
        `return_range`: 1000 / (highest - lowest return in the dataset). It is above 0.
    reward_shift: float = 0.0
        Added to the rewards after scaling.
    online: bool = False
        Collect experience and learn from it too; `start_from` implies it.
    start_from: str | None = None
        A run of the same algorithm: continue online with its networks, optimisers and scales. Also: from.
    offline_fraction: float = 0.5
        Share of the dataset's transitions in a minibatch of an online run. It is at least 0 and at most 1.
    model: str | Callable[..., Any] = "auto"
        `auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in
        Python also the class or function itself.
    hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (256, 256)
        Widths of the hidden layers: a list, or a mapping with one for each of policy, critic, encoder.
    activation: str | type = "relu"
        Activation of hidden layers. MLPs with tanh, relu, silu have a fast path on a CPU; others are computed by
        autograd.
    image_encoder: Literal["nature", "impala"] = "nature"
        Network of images: `nature`, three convolutions (from 36 pixels each way), or `impala`, a residual network
        of 15 (from 8).
    n_critics: int = 2
        Critics in the ensemble. It is at least 1.
    share_encoder: bool = False
        One encoder (of images, Dict observations, or hidden_sizes.encoder) for actor and critics. The critics
        train it; the actor, and a value of states, read its features without a gradient.
    policy_head: Literal["gaussian", "squashed"] = "gaussian"
        A Gaussian around tanh of the network's output, clipped; or a Gaussian squashed by tanh, as in SAC.
    env_packages: str | Sequence[str] = ()
        Modules that are imported before ids are looked up.
    env_kwargs: Mapping[str, Any] = {}
        Arguments of the environment.
    vectorization: Literal["auto", "native", "sync", "async"] = "auto"
        How environments are stepped together; `auto` is native where that is faster, else sync.
    env_timeout: float | None = 300.0
        Seconds that an environment in its own process (`async`) has for a step or a reset; null for any. It is
        above 0.
    num_envs: int = 8
        Environments that are stepped together; those of all workers. It is at least 1.
    actors: Literal["inline", "process", "ray"] = "inline"
        Where workers gather: in this process, in processes of their own, or on a Ray cluster.
    num_workers: int = 1
        Workers that gather; each has num_envs / num_workers environments. It is at least 1.
    order: Literal["auto", "fixed", "arrival"] = "auto"
        Learn from rollouts in a fixed order, which is exact, or as they arrive; `auto`: arrival for ray.
    rollout_deadline: float | None = 600.0
        Seconds that a worker may take for a rollout before it is replaced; null for any. It is above 0.
    worker_restarts: int = 10
        How many workers may be lost and replaced before the run is saved and ends. It is at least 0.
    ray_address: str | None = None
        Address of a Ray cluster for `actors: ray`; a cluster of its own if null.
    seed: int = 0
        Seed of everything random in the run. It is at least 0.
    total_timesteps: int = 100000
        Environment steps of the run; updates, where it learns offline. It is at least 1. Also: total_updates.
    eval_interval: int | None = None
        Evaluate whenever this many steps have passed; at the end if null. It is at least 1.
    eval_episodes: int = 10
        Episodes of an evaluation, with seeds that never change. It is at least 1.
    bc_baseline_updates: int = 5000
        Updates of a behaviour-cloning policy that an offline run is compared with, at most its own; 0 for none.
        It is at least 0.
    early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
        A rule that ends the run early, or a list of them.
    checkpoint_interval: int = 25000
        Save whenever this many steps have passed. It is at least 1.
    keep_checkpoints: int = 3
        How many checkpoints are kept, besides the best and spare ones. It is at least 2.
    log_interval: int = 1000
        Write metrics whenever this many steps have passed. It is at least 1.
    output_dir: str = "runs"
        Folder in which the run's folder is made.
    device: str = "auto"
        `cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.
    engine: Literal["auto", "autograd"] = "auto"
        `auto` uses the compiled path on a CPU where there is one (MLPs, small world models); `autograd`: torch
        alone.
    threads: int = 1
        Threads of torch and BLAS. More than one pays for wide networks on a quiet machine. It is at least 1.
    stretch_schedules: bool = False
        Stretch the schedules of a resumed run over its new number of steps.
    callbacks: Sequence[str] = ()
        Your own callbacks, each `module:Name`.
    loggers: str | Sequence[str] = ()
        Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names).
    tags: Sequence[str] = ()
        Labels of the run.
    """

    def __init__(
        self,
        env: Env,
        *,
        learning_rate: float = 0.0003,
        learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        learning_rate_warmup_steps: int | None = None,
        batch_size: int = 256,
        normalize_obs: bool | Literal["auto"] = "auto",
        obs_clip: float = 10.0,
        gamma: float = 0.99,
        gamma_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gamma_warmup_steps: int | None = None,
        tau: float = 0.005,
        tau_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        tau_warmup_steps: int | None = None,
        n_step: int = 1,
        awac_lambda: float = 0.3333333333333333,
        awac_lambda_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        awac_lambda_warmup_steps: int | None = None,
        weighting: Literal["clipped", "softmax"] = "clipped",
        max_weight: float = 100.0,
        max_weight_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        max_weight_warmup_steps: int | None = None,
        time_limit: int | None = None,
        frame_stack: int = 1,
        reward_clip: float | None = None,
        buffer_size: int = 1000000,
        learning_starts: int = 100,
        train_every: int = 1,
        train_freq: int = 1,
        updates_per_step: float = 1.0,
        dataset: str | None = None,
        action_units: Literal["auto", "environment", "clipped", "normalized"] = "auto",
        top_return_fraction: float = 1.0,
        done_means: Literal["terminal", "timeout", "auto"] | None = None,
        reward_scale: float | Literal["auto", "return_range"] = "auto",
        reward_shift: float = 0.0,
        online: bool = False,
        start_from: str | None = None,
        offline_fraction: float = 0.5,
        model: str | Callable[..., Any] = "auto",
        hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (256, 256),
        activation: str | type = "relu",
        image_encoder: Literal["nature", "impala"] = "nature",
        n_critics: int = 2,
        share_encoder: bool = False,
        policy_head: Literal["gaussian", "squashed"] = "gaussian",
        env_packages: str | Sequence[str] = (),
        env_kwargs: Mapping[str, Any] = ...,
        vectorization: Literal["auto", "native", "sync", "async"] = "auto",
        env_timeout: float | None = 300.0,
        num_envs: int = 8,
        actors: Literal["inline", "process", "ray"] = "inline",
        num_workers: int = 1,
        order: Literal["auto", "fixed", "arrival"] = "auto",
        rollout_deadline: float | None = 600.0,
        worker_restarts: int = 10,
        ray_address: str | None = None,
        seed: int = 0,
        total_timesteps: int = 100000,
        total_updates: int = 100000,
        eval_interval: int | None = None,
        eval_episodes: int = 10,
        bc_baseline_updates: int = 5000,
        early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        checkpoint_interval: int = 25000,
        keep_checkpoints: int = 3,
        log_interval: int = 1000,
        output_dir: str = "runs",
        device: str = "auto",
        engine: Literal["auto", "autograd"] = "auto",
        threads: int = 1,
        stretch_schedules: bool = False,
        callbacks: Sequence[str] = (),
        loggers: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        algo_kwargs: Mapping[str, Any] | None = None,
    ) -> None: ...

class IQL(Agent):
    """Implicit Q-learning.

    Settings, of which those marked with * also take X_schedule and X_warmup_steps:

    learning_rate*: float = 0.0003
        Step size of the optimisers. It is at least 0.
    batch_size: int = 256
        Transitions in a minibatch. It is at least 1.
    normalize_obs: bool | Literal["auto"] = False
        Scale observations by mean and deviation; `auto`: where they are numbers, not images.
    obs_clip: float = 10.0
        Scaled observations stay within this. It is above 0.
    gamma*: float = 0.99
        Discount factor. It is at least 0 and at most 1.
    tau*: float = 0.005
        Share of the online weights in a target network's update. It is at least 0 and at most 1.
    n_step: int = 1
        Rewards in a target before it bootstraps. It is at least 1.
    actor_learning_rate*: float = 0.0003
        Step size of the actor; the paper decays it to 0 (`actor_learning_rate_schedule: cosine`). It is at least
        0.
    expectile*: float = 0.7
        The expectile of V: 0.5 is the mean, towards 1 the best action in the data. It is above 0 and below 1.
    beta*: float = 3.0
        Inverse temperature of the advantage weights. It is at least 0.
    max_weight*: float = 100.0
        The largest weight of an action. It is above 0.
    noise_std*: float = 0.1
        Deviation of the noise on actions that a deterministic policy takes online. It is at least 0.
    time_limit: int | None = None
        Truncate episodes after this many steps; the environment's own limit if null. It is at least 1.
    frame_stack: int = 1
        How many of the latest observations the policy sees. It is at least 1.
    reward_clip: float | None = None
        Clip rewards to +- this for learning; reported returns are not clipped. It is above 0.
    buffer_size: int = 1000000
        Capacity of the replay buffer of an online run. It is at least 1.
    learning_starts: int = 100
        Steps that an online run collects before it learns. It is at least 0.
    train_every: int = 1
        Steps between two phases of learning, online. It is at least 1. Also: train_freq.
    updates_per_step: float = 1.0
        Gradient updates per step of experience, online. It is above 0.
    dataset: str | None = None
        A file (npz, hdf5), a Minari id or folder, a run (its replay), or `module:function` of a SpaceInfo.
    action_units: Literal["auto", "environment", "clipped", "normalized"] = "auto"
        Units of the actions: the environment's (`clipped` to its bounds), or [-1, 1]; `auto` detects them.
    top_return_fraction: float = 1.0
        Learn from this share of the episodes, those with the highest returns. It is above 0 and at most 1.
    done_means: Literal["terminal", "timeout", "auto"] | None = None
        Why episodes ended, for a file that does not say; `auto`: timeout at the time limit, else terminal.
    reward_scale: float | Literal["auto", "return_range"] = "auto"
        Factor of the rewards; `auto`: the dataset's discounted returns then have a deviation of 10;
        `return_range`: 1000 / (highest - lowest return in the dataset). It is above 0.
    reward_shift: float = 0.0
        Added to the rewards after scaling.
    online: bool = False
        Collect experience and learn from it too; `start_from` implies it.
    start_from: str | None = None
        A run of the same algorithm: continue online with its networks, optimisers and scales. Also: from.
    offline_fraction: float = 0.5
        Share of the dataset's transitions in a minibatch of an online run. It is at least 0 and at most 1.
    model: str | Callable[..., Any] = "auto"
        `auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in
        Python also the class or function itself.
    hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (256, 256)
        Widths of the hidden layers: a list, or a mapping with one for each of policy, critic, value, encoder.
    activation: str | type = "relu"
        Activation of hidden layers. MLPs with tanh, relu, silu have a fast path on a CPU; others are computed by
        autograd.
    image_encoder: Literal["nature", "impala"] = "nature"
        Network of images: `nature`, three convolutions (from 36 pixels each way), or `impala`, a residual network
        of 15 (from 8).
    n_critics: int = 2
        Critics in the ensemble. It is at least 1.
    share_encoder: bool = False
        One encoder (of images, Dict observations, or hidden_sizes.encoder) for actor and critics. The critics
        train it; the actor, and a value of states, read its features without a gradient.
    policy_head: Literal["gaussian", "deterministic"] = "gaussian"
        Gaussian, trained by likelihood; or deterministic, trained by squared error.
    env_packages: str | Sequence[str] = ()
        Modules that are imported before ids are looked up.
    env_kwargs: Mapping[str, Any] = {}
        Arguments of the environment.
    vectorization: Literal["auto", "native", "sync", "async"] = "auto"
        How environments are stepped together; `auto` is native where that is faster, else sync.
    env_timeout: float | None = 300.0
        Seconds that an environment in its own process (`async`) has for a step or a reset; null for any. It is
        above 0.
    num_envs: int = 8
        Environments that are stepped together; those of all workers. It is at least 1.
    actors: Literal["inline", "process", "ray"] = "inline"
        Where workers gather: in this process, in processes of their own, or on a Ray cluster.
    num_workers: int = 1
        Workers that gather; each has num_envs / num_workers environments. It is at least 1.
    order: Literal["auto", "fixed", "arrival"] = "auto"
        Learn from rollouts in a fixed order, which is exact, or as they arrive; `auto`: arrival for ray.
    rollout_deadline: float | None = 600.0
        Seconds that a worker may take for a rollout before it is replaced; null for any. It is above 0.
    worker_restarts: int = 10
        How many workers may be lost and replaced before the run is saved and ends. It is at least 0.
    ray_address: str | None = None
        Address of a Ray cluster for `actors: ray`; a cluster of its own if null.
    seed: int = 0
        Seed of everything random in the run. It is at least 0.
    total_timesteps: int = 100000
        Environment steps of the run; updates, where it learns offline. It is at least 1. Also: total_updates.
    eval_interval: int | None = None
        Evaluate whenever this many steps have passed; at the end if null. It is at least 1.
    eval_episodes: int = 10
        Episodes of an evaluation, with seeds that never change. It is at least 1.
    bc_baseline_updates: int = 5000
        Updates of a behaviour-cloning policy that an offline run is compared with, at most its own; 0 for none.
        It is at least 0.
    early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
        A rule that ends the run early, or a list of them.
    checkpoint_interval: int = 25000
        Save whenever this many steps have passed. It is at least 1.
    keep_checkpoints: int = 3
        How many checkpoints are kept, besides the best and spare ones. It is at least 2.
    log_interval: int = 1000
        Write metrics whenever this many steps have passed. It is at least 1.
    output_dir: str = "runs"
        Folder in which the run's folder is made.
    device: str = "auto"
        `cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.
    engine: Literal["auto", "autograd"] = "auto"
        `auto` uses the compiled path on a CPU where there is one (MLPs, small world models); `autograd`: torch
        alone.
    threads: int = 1
        Threads of torch and BLAS. More than one pays for wide networks on a quiet machine. It is at least 1.
    stretch_schedules: bool = False
        Stretch the schedules of a resumed run over its new number of steps.
    callbacks: Sequence[str] = ()
        Your own callbacks, each `module:Name`.
    loggers: str | Sequence[str] = ()
        Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names).
    tags: Sequence[str] = ()
        Labels of the run.
    """

    def __init__(
        self,
        env: Env,
        *,
        learning_rate: float = 0.0003,
        learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        learning_rate_warmup_steps: int | None = None,
        batch_size: int = 256,
        normalize_obs: bool | Literal["auto"] = False,
        obs_clip: float = 10.0,
        gamma: float = 0.99,
        gamma_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gamma_warmup_steps: int | None = None,
        tau: float = 0.005,
        tau_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        tau_warmup_steps: int | None = None,
        n_step: int = 1,
        actor_learning_rate: float = 0.0003,
        actor_learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        actor_learning_rate_warmup_steps: int | None = None,
        expectile: float = 0.7,
        expectile_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        expectile_warmup_steps: int | None = None,
        beta: float = 3.0,
        beta_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        beta_warmup_steps: int | None = None,
        max_weight: float = 100.0,
        max_weight_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        max_weight_warmup_steps: int | None = None,
        noise_std: float = 0.1,
        noise_std_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        noise_std_warmup_steps: int | None = None,
        time_limit: int | None = None,
        frame_stack: int = 1,
        reward_clip: float | None = None,
        buffer_size: int = 1000000,
        learning_starts: int = 100,
        train_every: int = 1,
        train_freq: int = 1,
        updates_per_step: float = 1.0,
        dataset: str | None = None,
        action_units: Literal["auto", "environment", "clipped", "normalized"] = "auto",
        top_return_fraction: float = 1.0,
        done_means: Literal["terminal", "timeout", "auto"] | None = None,
        reward_scale: float | Literal["auto", "return_range"] = "auto",
        reward_shift: float = 0.0,
        online: bool = False,
        start_from: str | None = None,
        offline_fraction: float = 0.5,
        model: str | Callable[..., Any] = "auto",
        hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (256, 256),
        activation: str | type = "relu",
        image_encoder: Literal["nature", "impala"] = "nature",
        n_critics: int = 2,
        share_encoder: bool = False,
        policy_head: Literal["gaussian", "deterministic"] = "gaussian",
        env_packages: str | Sequence[str] = (),
        env_kwargs: Mapping[str, Any] = ...,
        vectorization: Literal["auto", "native", "sync", "async"] = "auto",
        env_timeout: float | None = 300.0,
        num_envs: int = 8,
        actors: Literal["inline", "process", "ray"] = "inline",
        num_workers: int = 1,
        order: Literal["auto", "fixed", "arrival"] = "auto",
        rollout_deadline: float | None = 600.0,
        worker_restarts: int = 10,
        ray_address: str | None = None,
        seed: int = 0,
        total_timesteps: int = 100000,
        total_updates: int = 100000,
        eval_interval: int | None = None,
        eval_episodes: int = 10,
        bc_baseline_updates: int = 5000,
        early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        checkpoint_interval: int = 25000,
        keep_checkpoints: int = 3,
        log_interval: int = 1000,
        output_dir: str = "runs",
        device: str = "auto",
        engine: Literal["auto", "autograd"] = "auto",
        threads: int = 1,
        stretch_schedules: bool = False,
        callbacks: Sequence[str] = (),
        loggers: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        algo_kwargs: Mapping[str, Any] | None = None,
    ) -> None: ...

class CQL(Agent):
    """Conservative Q-learning.

    Settings, of which those marked with * also take X_schedule and X_warmup_steps:

    learning_rate*: float = 0.0003
        Step size of the optimisers. It is at least 0.
    batch_size: int = 256
        Transitions in a minibatch. It is at least 1.
    normalize_obs: bool | Literal["auto"] = False
        Scale observations by mean and deviation; `auto`: where they are numbers, not images.
    obs_clip: float = 10.0
        Scaled observations stay within this. It is above 0.
    gamma*: float = 0.99
        Discount factor. It is at least 0 and at most 1.
    tau*: float = 0.005
        Share of the online weights in a target network's update. It is at least 0 and at most 1.
    n_step: int = 1
        Rewards in a target before it bootstraps. It is at least 1.
    ent_coef*: float | str = "auto"
        Weight of the entropy: a number, `auto` (learned), or `auto_0.1` (learned, starting at 0.1). It is at
        least 0. Also: entropy_coef.
    target_entropy: float | None = None
        The entropy that a learned ent_coef aims at; minus the number of actions if null.
    actor_learning_rate*: float = 0.0001
        Step size of the actor. It is at least 0.
    cql_alpha*: float = 5.0
        Weight of the gap against the squared TD error. It is at least 0.
    cql_target_gap: float | None = None
        If given, a factor of cql_alpha is learned that keeps the gap at this value (the Lagrange form).
    cql_samples: int = 10
        Sampled actions of each kind per state: uniform, the policy's there, the policy's at the next state. It is
        at least 1.
    backup_entropy: bool = False
        Include the entropy of the next action in targets.
    epsilon*: float = 0.05
        Share of random actions in online training. It is at least 0 and at most 1.
    time_limit: int | None = None
        Truncate episodes after this many steps; the environment's own limit if null. It is at least 1.
    frame_stack: int = 1
        How many of the latest observations the policy sees. It is at least 1.
    reward_clip: float | None = None
        Clip rewards to +- this for learning; reported returns are not clipped. It is above 0.
    buffer_size: int = 1000000
        Capacity of the replay buffer of an online run. It is at least 1.
    learning_starts: int = 100
        Steps that an online run collects before it learns. It is at least 0.
    train_every: int = 1
        Steps between two phases of learning, online. It is at least 1. Also: train_freq.
    updates_per_step: float = 1.0
        Gradient updates per step of experience, online. It is above 0.
    dataset: str | None = None
        A file (npz, hdf5), a Minari id or folder, a run (its replay), or `module:function` of a SpaceInfo.
    action_units: Literal["auto", "environment", "clipped", "normalized"] = "auto"
        Units of the actions: the environment's (`clipped` to its bounds), or [-1, 1]; `auto` detects them.
    top_return_fraction: float = 1.0
        Learn from this share of the episodes, those with the highest returns. It is above 0 and at most 1.
    done_means: Literal["terminal", "timeout", "auto"] | None = None
        Why episodes ended, for a file that does not say; `auto`: timeout at the time limit, else terminal.
    reward_scale: float | Literal["auto", "return_range"] = 1.0
        Factor of the rewards; `auto`: the dataset's discounted returns then have a deviation of 10;
        `return_range`: 1000 / (highest - lowest return in the dataset). It is above 0.
    reward_shift: float = 0.0
        Added to the rewards after scaling.
    online: bool = False
        Collect experience and learn from it too; `start_from` implies it.
    start_from: str | None = None
        A run of the same algorithm: continue online with its networks, optimisers and scales. Also: from.
    offline_fraction: float = 0.5
        Share of the dataset's transitions in a minibatch of an online run. It is at least 0 and at most 1.
    model: str | Callable[..., Any] = "auto"
        `auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in
        Python also the class or function itself.
    hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (256, 256)
        Widths of the hidden layers: a list, or a mapping with one for each of policy, critic, encoder.
    activation: str | type = "relu"
        Activation of hidden layers. MLPs with tanh, relu, silu have a fast path on a CPU; others are computed by
        autograd.
    image_encoder: Literal["nature", "impala"] = "nature"
        Network of images: `nature`, three convolutions (from 36 pixels each way), or `impala`, a residual network
        of 15 (from 8).
    n_critics: int = 2
        Critics in the ensemble. It is at least 1.
    share_encoder: bool = False
        One encoder (of images, Dict observations, or hidden_sizes.encoder) for actor and critics. The critics
        train it; the actor, and a value of states, read its features without a gradient.
    env_packages: str | Sequence[str] = ()
        Modules that are imported before ids are looked up.
    env_kwargs: Mapping[str, Any] = {}
        Arguments of the environment.
    vectorization: Literal["auto", "native", "sync", "async"] = "auto"
        How environments are stepped together; `auto` is native where that is faster, else sync.
    env_timeout: float | None = 300.0
        Seconds that an environment in its own process (`async`) has for a step or a reset; null for any. It is
        above 0.
    num_envs: int = 8
        Environments that are stepped together; those of all workers. It is at least 1.
    actors: Literal["inline", "process", "ray"] = "inline"
        Where workers gather: in this process, in processes of their own, or on a Ray cluster.
    num_workers: int = 1
        Workers that gather; each has num_envs / num_workers environments. It is at least 1.
    order: Literal["auto", "fixed", "arrival"] = "auto"
        Learn from rollouts in a fixed order, which is exact, or as they arrive; `auto`: arrival for ray.
    rollout_deadline: float | None = 600.0
        Seconds that a worker may take for a rollout before it is replaced; null for any. It is above 0.
    worker_restarts: int = 10
        How many workers may be lost and replaced before the run is saved and ends. It is at least 0.
    ray_address: str | None = None
        Address of a Ray cluster for `actors: ray`; a cluster of its own if null.
    seed: int = 0
        Seed of everything random in the run. It is at least 0.
    total_timesteps: int = 100000
        Environment steps of the run; updates, where it learns offline. It is at least 1. Also: total_updates.
    eval_interval: int | None = None
        Evaluate whenever this many steps have passed; at the end if null. It is at least 1.
    eval_episodes: int = 10
        Episodes of an evaluation, with seeds that never change. It is at least 1.
    bc_baseline_updates: int = 5000
        Updates of a behaviour-cloning policy that an offline run is compared with, at most its own; 0 for none.
        It is at least 0.
    early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
        A rule that ends the run early, or a list of them.
    checkpoint_interval: int = 25000
        Save whenever this many steps have passed. It is at least 1.
    keep_checkpoints: int = 3
        How many checkpoints are kept, besides the best and spare ones. It is at least 2.
    log_interval: int = 1000
        Write metrics whenever this many steps have passed. It is at least 1.
    output_dir: str = "runs"
        Folder in which the run's folder is made.
    device: str = "auto"
        `cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.
    engine: Literal["auto", "autograd"] = "auto"
        `auto` uses the compiled path on a CPU where there is one (MLPs, small world models); `autograd`: torch
        alone.
    threads: int = 1
        Threads of torch and BLAS. More than one pays for wide networks on a quiet machine. It is at least 1.
    stretch_schedules: bool = False
        Stretch the schedules of a resumed run over its new number of steps.
    callbacks: Sequence[str] = ()
        Your own callbacks, each `module:Name`.
    loggers: str | Sequence[str] = ()
        Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names).
    tags: Sequence[str] = ()
        Labels of the run.
    """

    def __init__(
        self,
        env: Env,
        *,
        learning_rate: float = 0.0003,
        learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        learning_rate_warmup_steps: int | None = None,
        batch_size: int = 256,
        normalize_obs: bool | Literal["auto"] = False,
        obs_clip: float = 10.0,
        gamma: float = 0.99,
        gamma_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gamma_warmup_steps: int | None = None,
        tau: float = 0.005,
        tau_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        tau_warmup_steps: int | None = None,
        n_step: int = 1,
        ent_coef: float | str = "auto",
        ent_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        ent_coef_warmup_steps: int | None = None,
        entropy_coef: float | str = "auto",
        entropy_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        entropy_coef_warmup_steps: int | None = None,
        target_entropy: float | None = None,
        actor_learning_rate: float = 0.0001,
        actor_learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        actor_learning_rate_warmup_steps: int | None = None,
        cql_alpha: float = 5.0,
        cql_alpha_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        cql_alpha_warmup_steps: int | None = None,
        cql_target_gap: float | None = None,
        cql_samples: int = 10,
        backup_entropy: bool = False,
        epsilon: float = 0.05,
        epsilon_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        epsilon_warmup_steps: int | None = None,
        time_limit: int | None = None,
        frame_stack: int = 1,
        reward_clip: float | None = None,
        buffer_size: int = 1000000,
        learning_starts: int = 100,
        train_every: int = 1,
        train_freq: int = 1,
        updates_per_step: float = 1.0,
        dataset: str | None = None,
        action_units: Literal["auto", "environment", "clipped", "normalized"] = "auto",
        top_return_fraction: float = 1.0,
        done_means: Literal["terminal", "timeout", "auto"] | None = None,
        reward_scale: float | Literal["auto", "return_range"] = 1.0,
        reward_shift: float = 0.0,
        online: bool = False,
        start_from: str | None = None,
        offline_fraction: float = 0.5,
        model: str | Callable[..., Any] = "auto",
        hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (256, 256),
        activation: str | type = "relu",
        image_encoder: Literal["nature", "impala"] = "nature",
        n_critics: int = 2,
        share_encoder: bool = False,
        env_packages: str | Sequence[str] = (),
        env_kwargs: Mapping[str, Any] = ...,
        vectorization: Literal["auto", "native", "sync", "async"] = "auto",
        env_timeout: float | None = 300.0,
        num_envs: int = 8,
        actors: Literal["inline", "process", "ray"] = "inline",
        num_workers: int = 1,
        order: Literal["auto", "fixed", "arrival"] = "auto",
        rollout_deadline: float | None = 600.0,
        worker_restarts: int = 10,
        ray_address: str | None = None,
        seed: int = 0,
        total_timesteps: int = 100000,
        total_updates: int = 100000,
        eval_interval: int | None = None,
        eval_episodes: int = 10,
        bc_baseline_updates: int = 5000,
        early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        checkpoint_interval: int = 25000,
        keep_checkpoints: int = 3,
        log_interval: int = 1000,
        output_dir: str = "runs",
        device: str = "auto",
        engine: Literal["auto", "autograd"] = "auto",
        threads: int = 1,
        stretch_schedules: bool = False,
        callbacks: Sequence[str] = (),
        loggers: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        algo_kwargs: Mapping[str, Any] | None = None,
    ) -> None: ...

class TD3BC(Agent):
    """TD3 whose actor stays near the data.

    Settings, of which those marked with * also take X_schedule and X_warmup_steps:

    learning_rate*: float = 0.0003
        Step size of the optimisers. It is at least 0.
    batch_size: int = 256
        Transitions in a minibatch. It is at least 1.
    normalize_obs: bool | Literal["auto"] = "auto"
        Scale observations by the dataset's mean and deviation; `auto`: unless they are images.
    obs_clip: float = 10.0
        Scaled observations stay within this. It is above 0.
    gamma*: float = 0.99
        Discount factor. It is at least 0 and at most 1.
    tau*: float = 0.005
        Share of the online weights in a target network's update. It is at least 0 and at most 1.
    n_step: int = 1
        Rewards in a target before it bootstraps. It is at least 1.
    noise_std*: float = 0.1
        Deviation of the noise on actions in online training. It is at least 0.
    policy_delay: int = 2
        Critic updates per update of the actor and the target networks. It is at least 1.
    target_policy_noise*: float = 0.2
        Deviation of the noise on target actions. It is at least 0.
    target_noise_clip*: float = 0.5
        Noise on target actions stays within this. It is at least 0.
    alpha*: float = 2.5
        Weight of Q-values against staying near the data: 0 is behaviour cloning. It is at least 0.
    time_limit: int | None = None
        Truncate episodes after this many steps; the environment's own limit if null. It is at least 1.
    frame_stack: int = 1
        How many of the latest observations the policy sees. It is at least 1.
    reward_clip: float | None = None
        Clip rewards to +- this for learning; reported returns are not clipped. It is above 0.
    buffer_size: int = 1000000
        Capacity of the replay buffer of an online run. It is at least 1.
    learning_starts: int = 100
        Steps that an online run collects before it learns. It is at least 0.
    train_every: int = 1
        Steps between two phases of learning, online. It is at least 1. Also: train_freq.
    updates_per_step: float = 1.0
        Gradient updates per step of experience, online. It is above 0.
    dataset: str | None = None
        A file (npz, hdf5), a Minari id or folder, a run (its replay), or `module:function` of a SpaceInfo.
    action_units: Literal["auto", "environment", "clipped", "normalized"] = "auto"
        Units of the actions: the environment's (`clipped` to its bounds), or [-1, 1]; `auto` detects them.
    top_return_fraction: float = 1.0
        Learn from this share of the episodes, those with the highest returns. It is above 0 and at most 1.
    done_means: Literal["terminal", "timeout", "auto"] | None = None
        Why episodes ended, for a file that does not say; `auto`: timeout at the time limit, else terminal.
    reward_scale: float | Literal["auto", "return_range"] = 1.0
        Factor of the rewards; `auto`: the dataset's discounted returns then have a deviation of 10;
        `return_range`: 1000 / (highest - lowest return in the dataset). It is above 0.
    reward_shift: float = 0.0
        Added to the rewards after scaling.
    online: bool = False
        Collect experience and learn from it too; `start_from` implies it.
    start_from: str | None = None
        A run of the same algorithm: continue online with its networks, optimisers and scales. Also: from.
    offline_fraction: float = 0.5
        Share of the dataset's transitions in a minibatch of an online run. It is at least 0 and at most 1.
    model: str | Callable[..., Any] = "auto"
        `auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in
        Python also the class or function itself.
    hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (256, 256)
        Widths of the hidden layers: a list, or a mapping with one for each of policy, critic, encoder.
    activation: str | type = "relu"
        Activation of hidden layers. MLPs with tanh, relu, silu have a fast path on a CPU; others are computed by
        autograd.
    image_encoder: Literal["nature", "impala"] = "nature"
        Network of images: `nature`, three convolutions (from 36 pixels each way), or `impala`, a residual network
        of 15 (from 8).
    n_critics: int = 2
        Critics in the ensemble. It is at least 1.
    share_encoder: bool = False
        One encoder (of images, Dict observations, or hidden_sizes.encoder) for actor and critics. The critics
        train it; the actor, and a value of states, read its features without a gradient.
    env_packages: str | Sequence[str] = ()
        Modules that are imported before ids are looked up.
    env_kwargs: Mapping[str, Any] = {}
        Arguments of the environment.
    vectorization: Literal["auto", "native", "sync", "async"] = "auto"
        How environments are stepped together; `auto` is native where that is faster, else sync.
    env_timeout: float | None = 300.0
        Seconds that an environment in its own process (`async`) has for a step or a reset; null for any. It is
        above 0.
    num_envs: int = 8
        Environments that are stepped together; those of all workers. It is at least 1.
    actors: Literal["inline", "process", "ray"] = "inline"
        Where workers gather: in this process, in processes of their own, or on a Ray cluster.
    num_workers: int = 1
        Workers that gather; each has num_envs / num_workers environments. It is at least 1.
    order: Literal["auto", "fixed", "arrival"] = "auto"
        Learn from rollouts in a fixed order, which is exact, or as they arrive; `auto`: arrival for ray.
    rollout_deadline: float | None = 600.0
        Seconds that a worker may take for a rollout before it is replaced; null for any. It is above 0.
    worker_restarts: int = 10
        How many workers may be lost and replaced before the run is saved and ends. It is at least 0.
    ray_address: str | None = None
        Address of a Ray cluster for `actors: ray`; a cluster of its own if null.
    seed: int = 0
        Seed of everything random in the run. It is at least 0.
    total_timesteps: int = 100000
        Environment steps of the run; updates, where it learns offline. It is at least 1. Also: total_updates.
    eval_interval: int | None = None
        Evaluate whenever this many steps have passed; at the end if null. It is at least 1.
    eval_episodes: int = 10
        Episodes of an evaluation, with seeds that never change. It is at least 1.
    bc_baseline_updates: int = 5000
        Updates of a behaviour-cloning policy that an offline run is compared with, at most its own; 0 for none.
        It is at least 0.
    early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
        A rule that ends the run early, or a list of them.
    checkpoint_interval: int = 25000
        Save whenever this many steps have passed. It is at least 1.
    keep_checkpoints: int = 3
        How many checkpoints are kept, besides the best and spare ones. It is at least 2.
    log_interval: int = 1000
        Write metrics whenever this many steps have passed. It is at least 1.
    output_dir: str = "runs"
        Folder in which the run's folder is made.
    device: str = "auto"
        `cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.
    engine: Literal["auto", "autograd"] = "auto"
        `auto` uses the compiled path on a CPU where there is one (MLPs, small world models); `autograd`: torch
        alone.
    threads: int = 1
        Threads of torch and BLAS. More than one pays for wide networks on a quiet machine. It is at least 1.
    stretch_schedules: bool = False
        Stretch the schedules of a resumed run over its new number of steps.
    callbacks: Sequence[str] = ()
        Your own callbacks, each `module:Name`.
    loggers: str | Sequence[str] = ()
        Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names).
    tags: Sequence[str] = ()
        Labels of the run.
    """

    def __init__(
        self,
        env: Env,
        *,
        learning_rate: float = 0.0003,
        learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        learning_rate_warmup_steps: int | None = None,
        batch_size: int = 256,
        normalize_obs: bool | Literal["auto"] = "auto",
        obs_clip: float = 10.0,
        gamma: float = 0.99,
        gamma_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gamma_warmup_steps: int | None = None,
        tau: float = 0.005,
        tau_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        tau_warmup_steps: int | None = None,
        n_step: int = 1,
        noise_std: float = 0.1,
        noise_std_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        noise_std_warmup_steps: int | None = None,
        policy_delay: int = 2,
        target_policy_noise: float = 0.2,
        target_policy_noise_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        target_policy_noise_warmup_steps: int | None = None,
        target_noise_clip: float = 0.5,
        target_noise_clip_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        target_noise_clip_warmup_steps: int | None = None,
        alpha: float = 2.5,
        alpha_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        alpha_warmup_steps: int | None = None,
        time_limit: int | None = None,
        frame_stack: int = 1,
        reward_clip: float | None = None,
        buffer_size: int = 1000000,
        learning_starts: int = 100,
        train_every: int = 1,
        train_freq: int = 1,
        updates_per_step: float = 1.0,
        dataset: str | None = None,
        action_units: Literal["auto", "environment", "clipped", "normalized"] = "auto",
        top_return_fraction: float = 1.0,
        done_means: Literal["terminal", "timeout", "auto"] | None = None,
        reward_scale: float | Literal["auto", "return_range"] = 1.0,
        reward_shift: float = 0.0,
        online: bool = False,
        start_from: str | None = None,
        offline_fraction: float = 0.5,
        model: str | Callable[..., Any] = "auto",
        hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (256, 256),
        activation: str | type = "relu",
        image_encoder: Literal["nature", "impala"] = "nature",
        n_critics: int = 2,
        share_encoder: bool = False,
        env_packages: str | Sequence[str] = (),
        env_kwargs: Mapping[str, Any] = ...,
        vectorization: Literal["auto", "native", "sync", "async"] = "auto",
        env_timeout: float | None = 300.0,
        num_envs: int = 8,
        actors: Literal["inline", "process", "ray"] = "inline",
        num_workers: int = 1,
        order: Literal["auto", "fixed", "arrival"] = "auto",
        rollout_deadline: float | None = 600.0,
        worker_restarts: int = 10,
        ray_address: str | None = None,
        seed: int = 0,
        total_timesteps: int = 100000,
        total_updates: int = 100000,
        eval_interval: int | None = None,
        eval_episodes: int = 10,
        bc_baseline_updates: int = 5000,
        early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        checkpoint_interval: int = 25000,
        keep_checkpoints: int = 3,
        log_interval: int = 1000,
        output_dir: str = "runs",
        device: str = "auto",
        engine: Literal["auto", "autograd"] = "auto",
        threads: int = 1,
        stretch_schedules: bool = False,
        callbacks: Sequence[str] = (),
        loggers: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        algo_kwargs: Mapping[str, Any] | None = None,
    ) -> None: ...

class MuZero(Agent):
    """Tree search in a learned model.

    Settings, of which those marked with * also take X_schedule and X_warmup_steps:

    learning_rate*: float = 0.001
        Step size of the optimiser. It is at least 0.
    batch_size: int = 128
        Windows in a minibatch. It is at least 1.
    normalize_obs: bool | Literal["auto"] = False
        Scale observations by mean and deviation; `auto`: where they are numbers, not images.
    obs_clip: float = 10.0
        Scaled observations stay within this. It is above 0.
    gamma*: float = 0.997
        Discount factor. It is at least 0 and at most 1.
    num_simulations: int = 25
        Simulations of every search. It is at least 1.
    unroll_steps: int = 5
        Steps that the model is unrolled for in an update. It is at least 1.
    n_step: int = 5
        Rewards in a value target before it bootstraps. It is at least 1.
    search_value_age: int | None = None
        Value targets of windows older than this are the values of their (latest) search; null: never. It is at
        least 0.
    value_coef*: float = 0.25
        Weight of the value loss. It is at least 0.
    reward_coef*: float = 1.0
        Weight of the reward loss. It is at least 0.
    policy_coef*: float = 1.0
        Weight of the policy loss. It is at least 0.
    ent_coef*: float = 0.0
        Weight of the policy's entropy. It is at least 0. Also: entropy_coef.
    max_grad_norm*: float = 10.0
        Gradients are scaled down to this norm. It is above 0.
    target_update_interval: int = 100
        Updates between two copies to the target network. It is at least 1.
    temperature_moves: int | None = None
        From this move of an episode on the temperature is 0; null: it is the same for all moves. It is at least
        0.
    prioritized: bool = False
        Draw windows by the error of their first value instead of uniformly.
    per_alpha*: float = 0.6
        Exponent of the priorities; 0 is uniform. It is at least 0 and at most 1.
    per_beta*: float = 0.4
        Exponent of the importance weights. It is at least 0 and at most 1.
    reanalyze_ratio: float = 0.0
        Share of each minibatch whose targets are searched again, with the target network; written back. It is at
        least 0 and at most 1.
    sampled_actions: int = 16
        Sampled actions of a search's root (continuous actions). It is at least 2.
    interior_actions: int = 4
        Sampled actions of the other nodes. It is at least 1.
    wide_share: float = 0.5
        Share of the sampled actions that come from a wider policy. It is at least 0 and at most 1.
    wide_scale: float = 3.0
        How many times wider its deviation is. It is at least 1.
    temperature*: float = linear from 1 to 0.25 over the run
        Root actions are drawn in proportion to visits^(1 / temperature); 0 takes the most visited one. It is at
        least 0.
    dirichlet_alpha*: float = 0.3
        Concentration of the noise on the root's prior. It is above 0.
    dirichlet_fraction*: float = 0.25
        Share of that noise in the root's prior. It is at least 0 and at most 1.
    pb_c_init*: float = 1.25
        Weight of the prior in the search rule. It is at least 0.
    pb_c_base*: float = 19652.0
        How slowly that weight grows with the visits. It is above 0.
    value_normalization: Literal["tree", "node"] = "tree"
        Values are scaled by the extremes of the whole tree, or of a node and its children.
    unvisited: Literal["mean", "lowest"] = "mean"
        The value of a child without visits: the mean of its visited siblings, or the lowest.
    time_limit: int | None = None
        Truncate episodes after this many steps; the environment's own limit if null. It is at least 1.
    frame_stack: int = 1
        How many of the latest observations the policy sees. It is at least 1.
    reward_clip: float | None = None
        Clip rewards to +- this for learning; reported returns are not clipped. It is above 0.
    buffer_size: int = 100000
        Capacity of the replay buffer. It is at least 1.
    learning_starts: int = 1000
        Steps of random actions before learning starts. It is at least 0.
    train_every: int = 8
        Steps between two phases of learning. It is at least 1. Also: train_freq.
    updates_per_step: float = 0.25
        Gradient updates per step of experience, whatever num_envs is. It is above 0.
    model: str | Callable[..., Any] = "auto"
        `auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in
        Python also the class or function itself.
    hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64,)
        Widths of the hidden layers: a list, or a mapping with one for each of representation, dynamics,
        prediction.
    activation: str | type = "relu"
        Activation of hidden layers. MLPs with tanh, relu, silu have a fast path on a CPU; others are computed by
        autograd.
    value_bins: int = 51
        Points of the distribution that a value is. It is at least 2.
    value_limit: float = 500.0
        Largest value, either way, that the value head can represent. It is above 0.
    reward_bins: int = 21
        Points of the distribution that a reward is. It is at least 2.
    reward_limit: float = 20.0
        Largest reward, either way, that the reward head can represent. It is above 0.
    latent_size: int = 64
        Size of the latent state of MLPs. It is at least 1.
    channels: int = 32
        Channels of the residual convolutions on images. It is at least 1.
    blocks: int = 1
        Residual blocks in each part. It is at least 0.
    env_packages: str | Sequence[str] = ()
        Modules that are imported before ids are looked up.
    env_kwargs: Mapping[str, Any] = {}
        Arguments of the environment.
    vectorization: Literal["auto", "native", "sync", "async"] = "auto"
        How environments are stepped together; `auto` is native where that is faster, else sync.
    env_timeout: float | None = 300.0
        Seconds that an environment in its own process (`async`) has for a step or a reset; null for any. It is
        above 0.
    num_envs: int = 8
        Environments that are stepped together; those of all workers. It is at least 1.
    actors: Literal["inline", "process", "ray"] = "inline"
        Where workers gather: in this process, in processes of their own, or on a Ray cluster.
    num_workers: int = 1
        Workers that gather; each has num_envs / num_workers environments. It is at least 1.
    order: Literal["auto", "fixed", "arrival"] = "auto"
        Learn from rollouts in a fixed order, which is exact, or as they arrive; `auto`: arrival for ray.
    rollout_deadline: float | None = 600.0
        Seconds that a worker may take for a rollout before it is replaced; null for any. It is above 0.
    worker_restarts: int = 10
        How many workers may be lost and replaced before the run is saved and ends. It is at least 0.
    ray_address: str | None = None
        Address of a Ray cluster for `actors: ray`; a cluster of its own if null.
    seed: int = 0
        Seed of everything random in the run. It is at least 0.
    total_timesteps: int = 100000
        Environment steps of the run; updates, where it learns offline. It is at least 1. Also: total_updates.
    eval_interval: int | None = None
        Evaluate whenever this many steps have passed; at the end if null. It is at least 1.
    eval_episodes: int = 10
        Episodes of an evaluation, with seeds that never change. It is at least 1.
    eval_opponent: str = "random"
        Opponent of evaluations in games for two players: `random`, `perfect` (TicTacToe), or a run or checkpoint.
    early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
        A rule that ends the run early, or a list of them.
    checkpoint_interval: int = 25000
        Save whenever this many steps have passed. It is at least 1.
    keep_checkpoints: int = 3
        How many checkpoints are kept, besides the best and spare ones. It is at least 2.
    log_interval: int = 1000
        Write metrics whenever this many steps have passed. It is at least 1.
    output_dir: str = "runs"
        Folder in which the run's folder is made.
    device: str = "auto"
        `cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.
    engine: Literal["auto", "autograd"] = "auto"
        `auto` uses the compiled path on a CPU where there is one (MLPs, small world models); `autograd`: torch
        alone.
    threads: int = 1
        Threads of torch and BLAS. More than one pays for wide networks on a quiet machine. It is at least 1.
    stretch_schedules: bool = False
        Stretch the schedules of a resumed run over its new number of steps.
    callbacks: Sequence[str] = ()
        Your own callbacks, each `module:Name`.
    loggers: str | Sequence[str] = ()
        Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names).
    tags: Sequence[str] = ()
        Labels of the run.
    """

    def __init__(
        self,
        env: Env,
        *,
        learning_rate: float = 0.001,
        learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        learning_rate_warmup_steps: int | None = None,
        batch_size: int = 128,
        normalize_obs: bool | Literal["auto"] = False,
        obs_clip: float = 10.0,
        gamma: float = 0.997,
        gamma_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gamma_warmup_steps: int | None = None,
        num_simulations: int = 25,
        unroll_steps: int = 5,
        n_step: int = 5,
        search_value_age: int | None = None,
        value_coef: float = 0.25,
        value_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        value_coef_warmup_steps: int | None = None,
        reward_coef: float = 1.0,
        reward_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        reward_coef_warmup_steps: int | None = None,
        policy_coef: float = 1.0,
        policy_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        policy_coef_warmup_steps: int | None = None,
        ent_coef: float = 0.0,
        ent_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        ent_coef_warmup_steps: int | None = None,
        entropy_coef: float = 0.0,
        entropy_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        entropy_coef_warmup_steps: int | None = None,
        max_grad_norm: float = 10.0,
        max_grad_norm_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        max_grad_norm_warmup_steps: int | None = None,
        target_update_interval: int = 100,
        temperature_moves: int | None = None,
        prioritized: bool = False,
        per_alpha: float = 0.6,
        per_alpha_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        per_alpha_warmup_steps: int | None = None,
        per_beta: float = 0.4,
        per_beta_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        per_beta_warmup_steps: int | None = None,
        reanalyze_ratio: float = 0.0,
        sampled_actions: int = 16,
        interior_actions: int = 4,
        wide_share: float = 0.5,
        wide_scale: float = 3.0,
        temperature: float = 0.25,
        temperature_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = ...,
        temperature_warmup_steps: int | None = None,
        dirichlet_alpha: float = 0.3,
        dirichlet_alpha_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        dirichlet_alpha_warmup_steps: int | None = None,
        dirichlet_fraction: float = 0.25,
        dirichlet_fraction_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        dirichlet_fraction_warmup_steps: int | None = None,
        pb_c_init: float = 1.25,
        pb_c_init_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        pb_c_init_warmup_steps: int | None = None,
        pb_c_base: float = 19652.0,
        pb_c_base_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        pb_c_base_warmup_steps: int | None = None,
        value_normalization: Literal["tree", "node"] = "tree",
        unvisited: Literal["mean", "lowest"] = "mean",
        time_limit: int | None = None,
        frame_stack: int = 1,
        reward_clip: float | None = None,
        buffer_size: int = 100000,
        learning_starts: int = 1000,
        train_every: int = 8,
        train_freq: int = 8,
        updates_per_step: float = 0.25,
        model: str | Callable[..., Any] = "auto",
        hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64,),
        activation: str | type = "relu",
        value_bins: int = 51,
        value_limit: float = 500.0,
        reward_bins: int = 21,
        reward_limit: float = 20.0,
        latent_size: int = 64,
        channels: int = 32,
        blocks: int = 1,
        env_packages: str | Sequence[str] = (),
        env_kwargs: Mapping[str, Any] = ...,
        vectorization: Literal["auto", "native", "sync", "async"] = "auto",
        env_timeout: float | None = 300.0,
        num_envs: int = 8,
        actors: Literal["inline", "process", "ray"] = "inline",
        num_workers: int = 1,
        order: Literal["auto", "fixed", "arrival"] = "auto",
        rollout_deadline: float | None = 600.0,
        worker_restarts: int = 10,
        ray_address: str | None = None,
        seed: int = 0,
        total_timesteps: int = 100000,
        total_updates: int = 100000,
        eval_interval: int | None = None,
        eval_episodes: int = 10,
        eval_opponent: str = "random",
        early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        checkpoint_interval: int = 25000,
        keep_checkpoints: int = 3,
        log_interval: int = 1000,
        output_dir: str = "runs",
        device: str = "auto",
        engine: Literal["auto", "autograd"] = "auto",
        threads: int = 1,
        stretch_schedules: bool = False,
        callbacks: Sequence[str] = (),
        loggers: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        algo_kwargs: Mapping[str, Any] | None = None,
    ) -> None: ...

class GumbelMuZero(Agent):
    """MuZero whose search improves the policy with few simulations.

    Settings, of which those marked with * also take X_schedule and X_warmup_steps:

    learning_rate*: float = 0.001
        Step size of the optimiser. It is at least 0.
    batch_size: int = 128
        Windows in a minibatch. It is at least 1.
    normalize_obs: bool | Literal["auto"] = False
        Scale observations by mean and deviation; `auto`: where they are numbers, not images.
    obs_clip: float = 10.0
        Scaled observations stay within this. It is above 0.
    gamma*: float = 0.997
        Discount factor. It is at least 0 and at most 1.
    num_simulations: int = 16
        Simulations of every search. It is at least 1.
    unroll_steps: int = 5
        Steps that the model is unrolled for in an update. It is at least 1.
    n_step: int = 5
        Rewards in a value target before it bootstraps. It is at least 1.
    search_value_age: int | None = None
        Value targets of windows older than this are the values of their (latest) search; null: never. It is at
        least 0.
    value_coef*: float = 0.25
        Weight of the value loss. It is at least 0.
    reward_coef*: float = 1.0
        Weight of the reward loss. It is at least 0.
    policy_coef*: float = 1.0
        Weight of the policy loss. It is at least 0.
    ent_coef*: float = 0.0
        Weight of the policy's entropy. It is at least 0. Also: entropy_coef.
    max_grad_norm*: float = 10.0
        Gradients are scaled down to this norm. It is above 0.
    target_update_interval: int = 100
        Updates between two copies to the target network. It is at least 1.
    temperature_moves: int | None = None
        From this move of an episode on the temperature is 0; null: it is the same for all moves. It is at least
        0.
    prioritized: bool = False
        Draw windows by the error of their first value instead of uniformly.
    per_alpha*: float = 0.6
        Exponent of the priorities; 0 is uniform. It is at least 0 and at most 1.
    per_beta*: float = 0.4
        Exponent of the importance weights. It is at least 0 and at most 1.
    reanalyze_ratio: float = 0.0
        Share of each minibatch whose targets are searched again, with the target network; written back. It is at
        least 0 and at most 1.
    sampled_actions: int = 16
        Sampled actions of a search's root (continuous actions). It is at least 2.
    interior_actions: int = 4
        Sampled actions of the other nodes. It is at least 1.
    wide_share: float = 0.5
        Share of the sampled actions that come from a wider policy. It is at least 0 and at most 1.
    wide_scale: float = 3.0
        How many times wider its deviation is. It is at least 1.
    max_num_considered_actions: int = 16
        Actions of the root that sequential halving starts with; the most likely ones after noise. It is at least
        1.
    temperature_mode: Literal["filter", "gumbel_scale"] = "filter"
        `filter`: the temperature chooses among actions that are no worse than a draw from the policy;
        `gumbel_scale`: it scales the noise of the whole search.
    c_visit*: float = 50.0
        sigma(q) = (c_visit + most visits) c_scale q. It is at least 0.
    c_scale*: float = 0.1
        Weight of values against logits. It is at least 0.
    rescale_values: bool = True
        Scale the values of a node's actions to [0, 1] before they are weighed.
    temperature*: float = 1.0
        How far the root's action follows the noise; 1 is the paper's action, 0 is greedy. It is at least 0.
    time_limit: int | None = None
        Truncate episodes after this many steps; the environment's own limit if null. It is at least 1.
    frame_stack: int = 1
        How many of the latest observations the policy sees. It is at least 1.
    reward_clip: float | None = None
        Clip rewards to +- this for learning; reported returns are not clipped. It is above 0.
    buffer_size: int = 100000
        Capacity of the replay buffer. It is at least 1.
    learning_starts: int = 1000
        Steps of random actions before learning starts. It is at least 0.
    train_every: int = 8
        Steps between two phases of learning. It is at least 1. Also: train_freq.
    updates_per_step: float = 0.25
        Gradient updates per step of experience, whatever num_envs is. It is above 0.
    model: str | Callable[..., Any] = "auto"
        `auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in
        Python also the class or function itself.
    hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64,)
        Widths of the hidden layers: a list, or a mapping with one for each of representation, dynamics,
        prediction.
    activation: str | type = "relu"
        Activation of hidden layers. MLPs with tanh, relu, silu have a fast path on a CPU; others are computed by
        autograd.
    value_bins: int = 51
        Points of the distribution that a value is. It is at least 2.
    value_limit: float = 500.0
        Largest value, either way, that the value head can represent. It is above 0.
    reward_bins: int = 21
        Points of the distribution that a reward is. It is at least 2.
    reward_limit: float = 20.0
        Largest reward, either way, that the reward head can represent. It is above 0.
    latent_size: int = 64
        Size of the latent state of MLPs. It is at least 1.
    channels: int = 32
        Channels of the residual convolutions on images. It is at least 1.
    blocks: int = 1
        Residual blocks in each part. It is at least 0.
    env_packages: str | Sequence[str] = ()
        Modules that are imported before ids are looked up.
    env_kwargs: Mapping[str, Any] = {}
        Arguments of the environment.
    vectorization: Literal["auto", "native", "sync", "async"] = "auto"
        How environments are stepped together; `auto` is native where that is faster, else sync.
    env_timeout: float | None = 300.0
        Seconds that an environment in its own process (`async`) has for a step or a reset; null for any. It is
        above 0.
    num_envs: int = 8
        Environments that are stepped together; those of all workers. It is at least 1.
    actors: Literal["inline", "process", "ray"] = "inline"
        Where workers gather: in this process, in processes of their own, or on a Ray cluster.
    num_workers: int = 1
        Workers that gather; each has num_envs / num_workers environments. It is at least 1.
    order: Literal["auto", "fixed", "arrival"] = "auto"
        Learn from rollouts in a fixed order, which is exact, or as they arrive; `auto`: arrival for ray.
    rollout_deadline: float | None = 600.0
        Seconds that a worker may take for a rollout before it is replaced; null for any. It is above 0.
    worker_restarts: int = 10
        How many workers may be lost and replaced before the run is saved and ends. It is at least 0.
    ray_address: str | None = None
        Address of a Ray cluster for `actors: ray`; a cluster of its own if null.
    seed: int = 0
        Seed of everything random in the run. It is at least 0.
    total_timesteps: int = 100000
        Environment steps of the run; updates, where it learns offline. It is at least 1. Also: total_updates.
    eval_interval: int | None = None
        Evaluate whenever this many steps have passed; at the end if null. It is at least 1.
    eval_episodes: int = 10
        Episodes of an evaluation, with seeds that never change. It is at least 1.
    eval_opponent: str = "random"
        Opponent of evaluations in games for two players: `random`, `perfect` (TicTacToe), or a run or checkpoint.
    early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
        A rule that ends the run early, or a list of them.
    checkpoint_interval: int = 25000
        Save whenever this many steps have passed. It is at least 1.
    keep_checkpoints: int = 3
        How many checkpoints are kept, besides the best and spare ones. It is at least 2.
    log_interval: int = 1000
        Write metrics whenever this many steps have passed. It is at least 1.
    output_dir: str = "runs"
        Folder in which the run's folder is made.
    device: str = "auto"
        `cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.
    engine: Literal["auto", "autograd"] = "auto"
        `auto` uses the compiled path on a CPU where there is one (MLPs, small world models); `autograd`: torch
        alone.
    threads: int = 1
        Threads of torch and BLAS. More than one pays for wide networks on a quiet machine. It is at least 1.
    stretch_schedules: bool = False
        Stretch the schedules of a resumed run over its new number of steps.
    callbacks: Sequence[str] = ()
        Your own callbacks, each `module:Name`.
    loggers: str | Sequence[str] = ()
        Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names).
    tags: Sequence[str] = ()
        Labels of the run.
    """

    def __init__(
        self,
        env: Env,
        *,
        learning_rate: float = 0.001,
        learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        learning_rate_warmup_steps: int | None = None,
        batch_size: int = 128,
        normalize_obs: bool | Literal["auto"] = False,
        obs_clip: float = 10.0,
        gamma: float = 0.997,
        gamma_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gamma_warmup_steps: int | None = None,
        num_simulations: int = 16,
        unroll_steps: int = 5,
        n_step: int = 5,
        search_value_age: int | None = None,
        value_coef: float = 0.25,
        value_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        value_coef_warmup_steps: int | None = None,
        reward_coef: float = 1.0,
        reward_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        reward_coef_warmup_steps: int | None = None,
        policy_coef: float = 1.0,
        policy_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        policy_coef_warmup_steps: int | None = None,
        ent_coef: float = 0.0,
        ent_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        ent_coef_warmup_steps: int | None = None,
        entropy_coef: float = 0.0,
        entropy_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        entropy_coef_warmup_steps: int | None = None,
        max_grad_norm: float = 10.0,
        max_grad_norm_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        max_grad_norm_warmup_steps: int | None = None,
        target_update_interval: int = 100,
        temperature_moves: int | None = None,
        prioritized: bool = False,
        per_alpha: float = 0.6,
        per_alpha_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        per_alpha_warmup_steps: int | None = None,
        per_beta: float = 0.4,
        per_beta_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        per_beta_warmup_steps: int | None = None,
        reanalyze_ratio: float = 0.0,
        sampled_actions: int = 16,
        interior_actions: int = 4,
        wide_share: float = 0.5,
        wide_scale: float = 3.0,
        max_num_considered_actions: int = 16,
        temperature_mode: Literal["filter", "gumbel_scale"] = "filter",
        c_visit: float = 50.0,
        c_visit_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        c_visit_warmup_steps: int | None = None,
        c_scale: float = 0.1,
        c_scale_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        c_scale_warmup_steps: int | None = None,
        rescale_values: bool = True,
        temperature: float = 1.0,
        temperature_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        temperature_warmup_steps: int | None = None,
        time_limit: int | None = None,
        frame_stack: int = 1,
        reward_clip: float | None = None,
        buffer_size: int = 100000,
        learning_starts: int = 1000,
        train_every: int = 8,
        train_freq: int = 8,
        updates_per_step: float = 0.25,
        model: str | Callable[..., Any] = "auto",
        hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64,),
        activation: str | type = "relu",
        value_bins: int = 51,
        value_limit: float = 500.0,
        reward_bins: int = 21,
        reward_limit: float = 20.0,
        latent_size: int = 64,
        channels: int = 32,
        blocks: int = 1,
        env_packages: str | Sequence[str] = (),
        env_kwargs: Mapping[str, Any] = ...,
        vectorization: Literal["auto", "native", "sync", "async"] = "auto",
        env_timeout: float | None = 300.0,
        num_envs: int = 8,
        actors: Literal["inline", "process", "ray"] = "inline",
        num_workers: int = 1,
        order: Literal["auto", "fixed", "arrival"] = "auto",
        rollout_deadline: float | None = 600.0,
        worker_restarts: int = 10,
        ray_address: str | None = None,
        seed: int = 0,
        total_timesteps: int = 100000,
        total_updates: int = 100000,
        eval_interval: int | None = None,
        eval_episodes: int = 10,
        eval_opponent: str = "random",
        early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        checkpoint_interval: int = 25000,
        keep_checkpoints: int = 3,
        log_interval: int = 1000,
        output_dir: str = "runs",
        device: str = "auto",
        engine: Literal["auto", "autograd"] = "auto",
        threads: int = 1,
        stretch_schedules: bool = False,
        callbacks: Sequence[str] = (),
        loggers: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        algo_kwargs: Mapping[str, Any] | None = None,
    ) -> None: ...

class EfficientZero(Agent):
    """MuZero with consistency, value prefixes and fresher targets.

    Settings, of which those marked with * also take X_schedule and X_warmup_steps:

    learning_rate*: float = 0.001
        Step size of the optimiser. It is at least 0.
    batch_size: int = 128
        Windows in a minibatch. It is at least 1.
    normalize_obs: bool | Literal["auto"] = False
        Scale observations by mean and deviation; `auto`: where they are numbers, not images.
    obs_clip: float = 10.0
        Scaled observations stay within this. It is above 0.
    gamma*: float = 0.997
        Discount factor. It is at least 0 and at most 1.
    num_simulations: int = 25
        Simulations of every search. It is at least 1.
    unroll_steps: int = 5
        Steps that the model is unrolled for in an update. It is at least 1.
    n_step: int = 5
        Rewards in a value target before it bootstraps. It is at least 1.
    search_value_age: int | None = None
        Value targets of windows older than this are the values of their (latest) search; null: never. It is at
        least 0.
    value_coef*: float = 0.25
        Weight of the value loss. It is at least 0.
    reward_coef*: float = 1.0
        Weight of the reward loss. It is at least 0.
    policy_coef*: float = 1.0
        Weight of the policy loss. It is at least 0.
    ent_coef*: float = 0.0
        Weight of the policy's entropy. It is at least 0. Also: entropy_coef.
    max_grad_norm*: float = 10.0
        Gradients are scaled down to this norm. It is above 0.
    target_update_interval: int = 100
        Updates between two copies to the target network. It is at least 1.
    temperature_moves: int | None = None
        From this move of an episode on the temperature is 0; null: it is the same for all moves. It is at least
        0.
    prioritized: bool = False
        Draw windows by the error of their first value instead of uniformly.
    per_alpha*: float = 0.6
        Exponent of the priorities; 0 is uniform. It is at least 0 and at most 1.
    per_beta*: float = 0.4
        Exponent of the importance weights. It is at least 0 and at most 1.
    reanalyze_ratio: float = 0.0
        Share of each minibatch whose targets are searched again, with the target network; written back. It is at
        least 0 and at most 1.
    max_num_considered_actions: int = 16
        Actions of the root that sequential halving starts with; the most likely ones after noise. It is at least
        1.
    temperature_mode: Literal["filter", "gumbel_scale"] = "filter"
        `filter`: the temperature chooses among actions that are no worse than a draw from the policy;
        `gumbel_scale`: it scales the noise of the whole search.
    c_visit*: float = 50.0
        sigma(q) = (c_visit + most visits) c_scale q. It is at least 0.
    c_scale*: float = 0.1
        Weight of values against logits. It is at least 0.
    rescale_values: bool = True
        Scale the values of a node's actions to [0, 1] before they are weighed.
    sampled_actions: int = 16
        Sampled actions of a search's root (continuous actions). It is at least 2.
    interior_actions: int = 4
        Sampled actions of the other nodes. It is at least 1.
    wide_share: float = 0.5
        Share of the sampled actions that come from a wider policy. It is at least 0 and at most 1.
    wide_scale: float = 3.0
        How many times wider its deviation is. It is at least 1.
    temperature*: float = linear from 1 to 0.25 over the run
        Root actions are drawn in proportion to visits^(1 / temperature); 0 takes the most visited one. It is at
        least 0.
    dirichlet_alpha*: float = 0.3
        Concentration of the noise on the root's prior. It is above 0.
    dirichlet_fraction*: float = 0.25
        Share of that noise in the root's prior. It is at least 0 and at most 1.
    pb_c_init*: float = 1.25
        Weight of the prior in the search rule. It is at least 0.
    pb_c_base*: float = 19652.0
        How slowly that weight grows with the visits. It is above 0.
    value_normalization: Literal["tree", "node"] = "tree"
        Values are scaled by the extremes of the whole tree, or of a node and its children.
    unvisited: Literal["mean", "lowest"] = "mean"
        The value of a child without visits: the mean of its visited siblings, or the lowest.
    search: Literal["puct", "gumbel"] = "puct"
        `puct`: the search, its noise and the policy targets of MuZero; `gumbel`: those of Gumbel MuZero.
        `temperature` means what it means there.
    consistency_coef*: float = 2.0
        Weight of the consistency loss. It is at least 0.
    horizon_age: int | None = None
        Value targets use one reward less for every so many steps that a window is old; null: always n_step. It is
        at least 1.
    augment: bool = True
        Move images by a few pixels and change their intensity.
    time_limit: int | None = None
        Truncate episodes after this many steps; the environment's own limit if null. It is at least 1.
    frame_stack: int = 1
        How many of the latest observations the policy sees. It is at least 1.
    reward_clip: float | None = None
        Clip rewards to +- this for learning; reported returns are not clipped. It is above 0.
    buffer_size: int = 100000
        Capacity of the replay buffer. It is at least 1.
    learning_starts: int = 1000
        Steps of random actions before learning starts. It is at least 0.
    train_every: int = 8
        Steps between two phases of learning. It is at least 1. Also: train_freq.
    updates_per_step: float = 0.25
        Gradient updates per step of experience, whatever num_envs is. It is above 0.
    model: str | Callable[..., Any] = "auto"
        `auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in
        Python also the class or function itself.
    hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64,)
        Widths of the hidden layers: a list, or a mapping with one for each of representation, dynamics,
        prediction.
    activation: str | type = "relu"
        Activation of hidden layers. MLPs with tanh, relu, silu have a fast path on a CPU; others are computed by
        autograd.
    value_bins: int = 51
        Points of the distribution that a value is. It is at least 2.
    value_limit: float = 500.0
        Largest value, either way, that the value head can represent. It is above 0.
    reward_bins: int = 21
        Points of the distribution that a reward is. It is at least 2.
    reward_limit: float = 20.0
        Largest reward, either way, that the reward head can represent. It is above 0.
    latent_size: int = 64
        Size of the latent state of MLPs. It is at least 1.
    channels: int = 32
        Channels of the residual convolutions on images. It is at least 1.
    blocks: int = 1
        Residual blocks in each part. It is at least 0.
    value_prefix: bool = True
        Predict sums of rewards with an LSTM instead of single rewards.
    prefix_horizon: int = 5
        Steps after which such a sum starts again. It is at least 1.
    prefix_size: int = 64
        Size of the LSTM. It is at least 1.
    projection_size: int = 64
        Size of the projections that consistency compares. It is at least 1.
    env_packages: str | Sequence[str] = ()
        Modules that are imported before ids are looked up.
    env_kwargs: Mapping[str, Any] = {}
        Arguments of the environment.
    vectorization: Literal["auto", "native", "sync", "async"] = "auto"
        How environments are stepped together; `auto` is native where that is faster, else sync.
    env_timeout: float | None = 300.0
        Seconds that an environment in its own process (`async`) has for a step or a reset; null for any. It is
        above 0.
    num_envs: int = 8
        Environments that are stepped together; those of all workers. It is at least 1.
    actors: Literal["inline", "process", "ray"] = "inline"
        Where workers gather: in this process, in processes of their own, or on a Ray cluster.
    num_workers: int = 1
        Workers that gather; each has num_envs / num_workers environments. It is at least 1.
    order: Literal["auto", "fixed", "arrival"] = "auto"
        Learn from rollouts in a fixed order, which is exact, or as they arrive; `auto`: arrival for ray.
    rollout_deadline: float | None = 600.0
        Seconds that a worker may take for a rollout before it is replaced; null for any. It is above 0.
    worker_restarts: int = 10
        How many workers may be lost and replaced before the run is saved and ends. It is at least 0.
    ray_address: str | None = None
        Address of a Ray cluster for `actors: ray`; a cluster of its own if null.
    seed: int = 0
        Seed of everything random in the run. It is at least 0.
    total_timesteps: int = 100000
        Environment steps of the run; updates, where it learns offline. It is at least 1. Also: total_updates.
    eval_interval: int | None = None
        Evaluate whenever this many steps have passed; at the end if null. It is at least 1.
    eval_episodes: int = 10
        Episodes of an evaluation, with seeds that never change. It is at least 1.
    eval_opponent: str = "random"
        Opponent of evaluations in games for two players: `random`, `perfect` (TicTacToe), or a run or checkpoint.
    early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
        A rule that ends the run early, or a list of them.
    checkpoint_interval: int = 25000
        Save whenever this many steps have passed. It is at least 1.
    keep_checkpoints: int = 3
        How many checkpoints are kept, besides the best and spare ones. It is at least 2.
    log_interval: int = 1000
        Write metrics whenever this many steps have passed. It is at least 1.
    output_dir: str = "runs"
        Folder in which the run's folder is made.
    device: str = "auto"
        `cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.
    engine: Literal["auto", "autograd"] = "auto"
        `auto` uses the compiled path on a CPU where there is one (MLPs, small world models); `autograd`: torch
        alone.
    threads: int = 1
        Threads of torch and BLAS. More than one pays for wide networks on a quiet machine. It is at least 1.
    stretch_schedules: bool = False
        Stretch the schedules of a resumed run over its new number of steps.
    callbacks: Sequence[str] = ()
        Your own callbacks, each `module:Name`.
    loggers: str | Sequence[str] = ()
        Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names).
    tags: Sequence[str] = ()
        Labels of the run.
    """

    def __init__(
        self,
        env: Env,
        *,
        learning_rate: float = 0.001,
        learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        learning_rate_warmup_steps: int | None = None,
        batch_size: int = 128,
        normalize_obs: bool | Literal["auto"] = False,
        obs_clip: float = 10.0,
        gamma: float = 0.997,
        gamma_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gamma_warmup_steps: int | None = None,
        num_simulations: int = 25,
        unroll_steps: int = 5,
        n_step: int = 5,
        search_value_age: int | None = None,
        value_coef: float = 0.25,
        value_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        value_coef_warmup_steps: int | None = None,
        reward_coef: float = 1.0,
        reward_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        reward_coef_warmup_steps: int | None = None,
        policy_coef: float = 1.0,
        policy_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        policy_coef_warmup_steps: int | None = None,
        ent_coef: float = 0.0,
        ent_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        ent_coef_warmup_steps: int | None = None,
        entropy_coef: float = 0.0,
        entropy_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        entropy_coef_warmup_steps: int | None = None,
        max_grad_norm: float = 10.0,
        max_grad_norm_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        max_grad_norm_warmup_steps: int | None = None,
        target_update_interval: int = 100,
        temperature_moves: int | None = None,
        prioritized: bool = False,
        per_alpha: float = 0.6,
        per_alpha_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        per_alpha_warmup_steps: int | None = None,
        per_beta: float = 0.4,
        per_beta_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        per_beta_warmup_steps: int | None = None,
        reanalyze_ratio: float = 0.0,
        max_num_considered_actions: int = 16,
        temperature_mode: Literal["filter", "gumbel_scale"] = "filter",
        c_visit: float = 50.0,
        c_visit_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        c_visit_warmup_steps: int | None = None,
        c_scale: float = 0.1,
        c_scale_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        c_scale_warmup_steps: int | None = None,
        rescale_values: bool = True,
        sampled_actions: int = 16,
        interior_actions: int = 4,
        wide_share: float = 0.5,
        wide_scale: float = 3.0,
        temperature: float = 0.25,
        temperature_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = ...,
        temperature_warmup_steps: int | None = None,
        dirichlet_alpha: float = 0.3,
        dirichlet_alpha_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        dirichlet_alpha_warmup_steps: int | None = None,
        dirichlet_fraction: float = 0.25,
        dirichlet_fraction_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        dirichlet_fraction_warmup_steps: int | None = None,
        pb_c_init: float = 1.25,
        pb_c_init_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        pb_c_init_warmup_steps: int | None = None,
        pb_c_base: float = 19652.0,
        pb_c_base_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        pb_c_base_warmup_steps: int | None = None,
        value_normalization: Literal["tree", "node"] = "tree",
        unvisited: Literal["mean", "lowest"] = "mean",
        search: Literal["puct", "gumbel"] = "puct",
        consistency_coef: float = 2.0,
        consistency_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        consistency_coef_warmup_steps: int | None = None,
        horizon_age: int | None = None,
        augment: bool = True,
        time_limit: int | None = None,
        frame_stack: int = 1,
        reward_clip: float | None = None,
        buffer_size: int = 100000,
        learning_starts: int = 1000,
        train_every: int = 8,
        train_freq: int = 8,
        updates_per_step: float = 0.25,
        model: str | Callable[..., Any] = "auto",
        hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64,),
        activation: str | type = "relu",
        value_bins: int = 51,
        value_limit: float = 500.0,
        reward_bins: int = 21,
        reward_limit: float = 20.0,
        latent_size: int = 64,
        channels: int = 32,
        blocks: int = 1,
        value_prefix: bool = True,
        prefix_horizon: int = 5,
        prefix_size: int = 64,
        projection_size: int = 64,
        env_packages: str | Sequence[str] = (),
        env_kwargs: Mapping[str, Any] = ...,
        vectorization: Literal["auto", "native", "sync", "async"] = "auto",
        env_timeout: float | None = 300.0,
        num_envs: int = 8,
        actors: Literal["inline", "process", "ray"] = "inline",
        num_workers: int = 1,
        order: Literal["auto", "fixed", "arrival"] = "auto",
        rollout_deadline: float | None = 600.0,
        worker_restarts: int = 10,
        ray_address: str | None = None,
        seed: int = 0,
        total_timesteps: int = 100000,
        total_updates: int = 100000,
        eval_interval: int | None = None,
        eval_episodes: int = 10,
        eval_opponent: str = "random",
        early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        checkpoint_interval: int = 25000,
        keep_checkpoints: int = 3,
        log_interval: int = 1000,
        output_dir: str = "runs",
        device: str = "auto",
        engine: Literal["auto", "autograd"] = "auto",
        threads: int = 1,
        stretch_schedules: bool = False,
        callbacks: Sequence[str] = (),
        loggers: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        algo_kwargs: Mapping[str, Any] | None = None,
    ) -> None: ...

class ScaleZero(Agent):
    """One transformer world model that plans in several tasks.

    Settings, of which those marked with * also take X_schedule and X_warmup_steps:

    learning_rate*: float = 0.001
        Step size of the optimiser. It is at least 0.
    batch_size: int = 32
        Windows of each task in a minibatch. It is at least 1.
    normalize_obs: bool | Literal["auto"] = False
        Scale observations by mean and deviation; `auto`: where they are numbers, not images.
    obs_clip: float = 10.0
        Scaled observations stay within this. It is above 0.
    gamma*: float = 0.997
        Discount factor. It is at least 0 and at most 1.
    num_simulations: int = 16
        Simulations of every search. It is at least 1.
    unroll_steps: int = 5
        Steps that the model is unrolled for in an update. It is at least 1.
    n_step: int = 5
        Rewards in a value target before it bootstraps. It is at least 1.
    search_value_age: int | None = None
        Value targets of windows older than this are the values of their (latest) search; null: never. It is at
        least 0.
    value_coef*: float = 1.0
        Weight of the value loss. It is at least 0.
    reward_coef*: float = 1.0
        Weight of the reward loss. It is at least 0.
    policy_coef*: float = 1.0
        Weight of the policy loss. It is at least 0.
    ent_coef*: float = 0.0
        Weight of the policy's entropy. It is at least 0. Also: entropy_coef.
    max_grad_norm*: float = 10.0
        Gradients are scaled down to this norm. It is above 0.
    target_update_interval: int = 1
        Updates between two of the target network. It is at least 1.
    temperature_moves: int | None = None
        From this move of an episode on the temperature is 0; null: it is the same for all moves. It is at least
        0.
    prioritized: bool = False
        Draw windows by the error of their first value instead of uniformly.
    per_alpha*: float = 0.6
        Exponent of the priorities; 0 is uniform. It is at least 0 and at most 1.
    per_beta*: float = 0.4
        Exponent of the importance weights. It is at least 0 and at most 1.
    reanalyze_ratio: float = 0.0
        Share of each minibatch whose targets are searched again, with the target network; written back. It is at
        least 0 and at most 1.
    max_num_considered_actions: int = 16
        Actions of the root that sequential halving starts with; the most likely ones after noise. It is at least
        1.
    temperature_mode: Literal["filter", "gumbel_scale"] = "filter"
        `filter`: the temperature chooses among actions that are no worse than a draw from the policy;
        `gumbel_scale`: it scales the noise of the whole search.
    c_visit*: float = 50.0
        sigma(q) = (c_visit + most visits) c_scale q. It is at least 0.
    c_scale*: float = 0.1
        Weight of values against logits. It is at least 0.
    rescale_values: bool = True
        Scale the values of a node's actions to [0, 1] before they are weighed.
    temperature*: float = 1.0
        How far the root's action follows the noise of a Gumbel search, or the exponent 1 / temperature of visits
        in MuZero's; 0 is greedy. It is at least 0.
    dirichlet_alpha*: float = 0.3
        Concentration of the noise on the root's prior. It is above 0.
    dirichlet_fraction*: float = 0.25
        Share of that noise in the root's prior. It is at least 0 and at most 1.
    pb_c_init*: float = 1.25
        Weight of the prior in the search rule. It is at least 0.
    pb_c_base*: float = 19652.0
        How slowly that weight grows with the visits. It is above 0.
    value_normalization: Literal["tree", "node"] = "tree"
        Values are scaled by the extremes of the whole tree, or of a node and its children.
    unvisited: Literal["mean", "lowest"] = "mean"
        The value of a child without visits: the mean of its visited siblings, or the lowest.
    search: Literal["puct", "gumbel"] = "gumbel"
        `puct`: the search, its noise and the policy targets of MuZero; `gumbel`: those of Gumbel MuZero.
        `temperature` means what it means there.
    latent_coef*: float = 10.0
        Weight of the loss of the next latent. It is at least 0.
    balance_coef*: float = 0.01
        Weight of the loss that spreads tokens over experts. It is at least 0.
    target_tau*: float = 0.05
        Share of the online weights in the target network's update. It is at least 0 and at most 1.
    task_weights: Mapping[str, float] | None = None
        Weights of tasks in the loss, by their names; null, and tasks that are not named: 1.
    stages: int = 1
        Stages of training; each after the first freezes what was trained and trains adapters instead. It is at
        least 1.
    first_stage_updates: int = 0
        Updates that the first stage has at least. It is at least 0.
    stage_updates: int | None = None
        Updates after which a stage ends, whatever is solved; null: it ends when enough tasks are. It is at least
        1.
    solved_episodes: int = 50
        Training episodes in a row whose mean return must reach a task's `target_return`, for it to count as
        solved. It is at least 1 and at most 100.
    time_limit: int | None = None
        Truncate episodes after this many steps; the environment's own limit if null. It is at least 1.
    frame_stack: int = 1
        How many of the latest observations the policy sees. It is at least 1.
    reward_clip: float | None = None
        Clip rewards to +- this for learning; reported returns are not clipped. It is above 0.
    buffer_size: int = 100000
        Capacity of the replay buffer. It is at least 1.
    learning_starts: int = 1000
        Steps of random actions before learning starts. It is at least 0.
    train_every: int = 8
        Steps between two phases of learning. It is at least 1. Also: train_freq.
    updates_per_step: float = 0.25
        Gradient updates per step of experience, whatever num_envs is. It is above 0.
    model: str | Callable[..., Any] = "auto"
        `auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in
        Python also the class or function itself.
    hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64,)
        Widths of the hidden layers: a list, or a mapping with one for each of representation.
    activation: str | type = "silu"
        Activation of hidden layers. MLPs with tanh, relu, silu have a fast path on a CPU; others are computed by
        autograd.
    image_encoder: Literal["nature", "impala"] = "nature"
        Network of images: `nature`, three convolutions (from 36 pixels each way), or `impala`, a residual network
        of 15 (from 8).
    value_bins: int = 51
        Points of the distribution that a value is. It is at least 2.
    value_limit: float = 500.0
        Largest value, either way, that the value head can represent. It is above 0.
    reward_bins: int = 21
        Points of the distribution that a reward is. It is at least 2.
    reward_limit: float = 20.0
        Largest reward, either way, that the reward head can represent. It is above 0.
    width: int = 64
        Size of tokens and latents; a multiple of `heads` and of `latent_group`. It is at least 1.
    layers: int = 2
        Layers of the transformer. It is at least 1.
    heads: int = 2
        Attention heads of a layer. It is at least 1.
    context_length: int = 4
        Steps that a token sees, the present one included; each is two tokens. It is at least 1.
    expert_size: int = 64
        Hidden width of every expert. It is at least 1.
    experts: int = 4
        Experts that the router of a layer chooses from, besides the shared one; 0: a dense layer. It is at least
        0.
    latent_norm: Literal["simnorm", "layer_norm"] = "simnorm"
        Latents are distributions in groups, or normalised to mean 0 and variance 1.
    latent_group: int = 8
        Size of such a group. It is at least 2.
    adapter_rank: int = 8
        Rank of the adapters that a stage adds. It is at least 1.
    adapter_alpha: float = 8.0
        Adapters are multiplied by this over their rank. It is above 0.
    env_packages: str | Sequence[str] = ()
        Modules that are imported before ids are looked up.
    env_kwargs: Mapping[str, Any] = {}
        Arguments of the environment.
    tasks: Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None
        Several tasks in place of env_id, by name, each with its env_id; or a list of ids.
    vectorization: Literal["auto", "native", "sync", "async"] = "auto"
        How environments are stepped together; `auto` is native where that is faster, else sync.
    env_timeout: float | None = 300.0
        Seconds that an environment in its own process (`async`) has for a step or a reset; null for any. It is
        above 0.
    num_envs: int = 8
        Environments that are stepped together; those of all workers. It is at least 1.
    actors: Literal["inline", "process", "ray"] = "inline"
        Where workers gather: in this process, in processes of their own, or on a Ray cluster.
    num_workers: int = 1
        Workers that gather; each has num_envs / num_workers environments. It is at least 1.
    order: Literal["auto", "fixed", "arrival"] = "auto"
        Learn from rollouts in a fixed order, which is exact, or as they arrive; `auto`: arrival for ray.
    rollout_deadline: float | None = 600.0
        Seconds that a worker may take for a rollout before it is replaced; null for any. It is above 0.
    worker_restarts: int = 10
        How many workers may be lost and replaced before the run is saved and ends. It is at least 0.
    ray_address: str | None = None
        Address of a Ray cluster for `actors: ray`; a cluster of its own if null.
    seed: int = 0
        Seed of everything random in the run. It is at least 0.
    total_timesteps: int = 100000
        Environment steps of the run; updates, where it learns offline. It is at least 1. Also: total_updates.
    eval_interval: int | None = None
        Evaluate whenever this many steps have passed; at the end if null. It is at least 1.
    eval_episodes: int = 10
        Episodes of an evaluation, with seeds that never change. It is at least 1.
    early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
        A rule that ends the run early, or a list of them.
    checkpoint_interval: int = 25000
        Save whenever this many steps have passed. It is at least 1.
    keep_checkpoints: int = 3
        How many checkpoints are kept, besides the best and spare ones. It is at least 2.
    log_interval: int = 1000
        Write metrics whenever this many steps have passed. It is at least 1.
    output_dir: str = "runs"
        Folder in which the run's folder is made.
    device: str = "auto"
        `cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.
    engine: Literal["auto", "autograd"] = "auto"
        `auto` uses the compiled path on a CPU where there is one (MLPs, small world models); `autograd`: torch
        alone.
    threads: int = 1
        Threads of torch and BLAS. More than one pays for wide networks on a quiet machine. It is at least 1.
    stretch_schedules: bool = False
        Stretch the schedules of a resumed run over its new number of steps.
    callbacks: Sequence[str] = ()
        Your own callbacks, each `module:Name`.
    loggers: str | Sequence[str] = ()
        Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names).
    tags: Sequence[str] = ()
        Labels of the run.
    """

    def __init__(
        self,
        env: Env | None = None,
        *,
        learning_rate: float = 0.001,
        learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        learning_rate_warmup_steps: int | None = None,
        batch_size: int = 32,
        normalize_obs: bool | Literal["auto"] = False,
        obs_clip: float = 10.0,
        gamma: float = 0.997,
        gamma_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gamma_warmup_steps: int | None = None,
        num_simulations: int = 16,
        unroll_steps: int = 5,
        n_step: int = 5,
        search_value_age: int | None = None,
        value_coef: float = 1.0,
        value_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        value_coef_warmup_steps: int | None = None,
        reward_coef: float = 1.0,
        reward_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        reward_coef_warmup_steps: int | None = None,
        policy_coef: float = 1.0,
        policy_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        policy_coef_warmup_steps: int | None = None,
        ent_coef: float = 0.0,
        ent_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        ent_coef_warmup_steps: int | None = None,
        entropy_coef: float = 0.0,
        entropy_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        entropy_coef_warmup_steps: int | None = None,
        max_grad_norm: float = 10.0,
        max_grad_norm_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        max_grad_norm_warmup_steps: int | None = None,
        target_update_interval: int = 1,
        temperature_moves: int | None = None,
        prioritized: bool = False,
        per_alpha: float = 0.6,
        per_alpha_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        per_alpha_warmup_steps: int | None = None,
        per_beta: float = 0.4,
        per_beta_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        per_beta_warmup_steps: int | None = None,
        reanalyze_ratio: float = 0.0,
        max_num_considered_actions: int = 16,
        temperature_mode: Literal["filter", "gumbel_scale"] = "filter",
        c_visit: float = 50.0,
        c_visit_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        c_visit_warmup_steps: int | None = None,
        c_scale: float = 0.1,
        c_scale_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        c_scale_warmup_steps: int | None = None,
        rescale_values: bool = True,
        temperature: float = 1.0,
        temperature_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        temperature_warmup_steps: int | None = None,
        dirichlet_alpha: float = 0.3,
        dirichlet_alpha_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        dirichlet_alpha_warmup_steps: int | None = None,
        dirichlet_fraction: float = 0.25,
        dirichlet_fraction_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        dirichlet_fraction_warmup_steps: int | None = None,
        pb_c_init: float = 1.25,
        pb_c_init_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        pb_c_init_warmup_steps: int | None = None,
        pb_c_base: float = 19652.0,
        pb_c_base_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        pb_c_base_warmup_steps: int | None = None,
        value_normalization: Literal["tree", "node"] = "tree",
        unvisited: Literal["mean", "lowest"] = "mean",
        search: Literal["puct", "gumbel"] = "gumbel",
        latent_coef: float = 10.0,
        latent_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        latent_coef_warmup_steps: int | None = None,
        balance_coef: float = 0.01,
        balance_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        balance_coef_warmup_steps: int | None = None,
        target_tau: float = 0.05,
        target_tau_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        target_tau_warmup_steps: int | None = None,
        task_weights: Mapping[str, float] | None = None,
        stages: int = 1,
        first_stage_updates: int = 0,
        stage_updates: int | None = None,
        solved_episodes: int = 50,
        time_limit: int | None = None,
        frame_stack: int = 1,
        reward_clip: float | None = None,
        buffer_size: int = 100000,
        learning_starts: int = 1000,
        train_every: int = 8,
        train_freq: int = 8,
        updates_per_step: float = 0.25,
        model: str | Callable[..., Any] = "auto",
        hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (64,),
        activation: str | type = "silu",
        image_encoder: Literal["nature", "impala"] = "nature",
        value_bins: int = 51,
        value_limit: float = 500.0,
        reward_bins: int = 21,
        reward_limit: float = 20.0,
        width: int = 64,
        layers: int = 2,
        heads: int = 2,
        context_length: int = 4,
        expert_size: int = 64,
        experts: int = 4,
        latent_norm: Literal["simnorm", "layer_norm"] = "simnorm",
        latent_group: int = 8,
        adapter_rank: int = 8,
        adapter_alpha: float = 8.0,
        env_packages: str | Sequence[str] = (),
        env_kwargs: Mapping[str, Any] = ...,
        tasks: Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
        vectorization: Literal["auto", "native", "sync", "async"] = "auto",
        env_timeout: float | None = 300.0,
        num_envs: int = 8,
        actors: Literal["inline", "process", "ray"] = "inline",
        num_workers: int = 1,
        order: Literal["auto", "fixed", "arrival"] = "auto",
        rollout_deadline: float | None = 600.0,
        worker_restarts: int = 10,
        ray_address: str | None = None,
        seed: int = 0,
        total_timesteps: int = 100000,
        total_updates: int = 100000,
        eval_interval: int | None = None,
        eval_episodes: int = 10,
        early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        checkpoint_interval: int = 25000,
        keep_checkpoints: int = 3,
        log_interval: int = 1000,
        output_dir: str = "runs",
        device: str = "auto",
        engine: Literal["auto", "autograd"] = "auto",
        threads: int = 1,
        stretch_schedules: bool = False,
        callbacks: Sequence[str] = (),
        loggers: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        algo_kwargs: Mapping[str, Any] | None = None,
    ) -> None: ...

class Dreamer(Agent):
    """A world model, whose dreams a policy learns from.

    Settings, of which those marked with * also take X_schedule and X_warmup_steps:

    learning_rate*: float = 4e-05
        Step size of the optimiser; 4e-4 suits runs of a few thousand updates. It is at least 0.
    batch_size: int = 16
        Windows in a minibatch. It is at least 1.
    normalize_obs: bool | Literal["auto"] = False
        Scale observations by mean and deviation; `auto`: where they are numbers, not images.
    obs_clip: float = 10.0
        Scaled observations stay within this. It is above 0.
    batch_length: int = 64
        Rows of a window that are learned from. It is at least 2.
    imagination_horizon: int = 15
        Steps of a dream. It is at least 1.
    imagination_starts: int | None = None
        States of a minibatch, drawn at random, that dreams start from; null: all of them. It is at least 1.
    gamma*: float = 0.996996996996997
        Discount factor. It is at least 0 and at most 1.
    return_lambda*: float = 0.95
        Weight of later rewards against values in a return. It is at least 0 and at most 1.
    entropy_coef*: float = 0.0003
        Weight of the policy's entropy. It is at least 0. Also: ent_coef.
    actor_gradient: Literal["reinforce", "pathwise"] = "reinforce"
        How a policy learns: by the likelihood of what it did, or through the model (straight-through for
        choices).
    free_nats*: float = 1.0
        Divergences below this have no gradient. It is at least 0.
    dynamics_coef*: float = 1.0
        Weight of the divergence that teaches the prior. It is at least 0.
    representation_coef*: float = 0.1
        Weight of the divergence that teaches the posterior. It is at least 0.
    reconstruction_coef*: float = 1.0
        Weight of the squared errors of observations. It is at least 0.
    reward_coef*: float = 1.0
        Weight of the reward loss. It is at least 0.
    continue_coef*: float = 1.0
        Weight of the losses of continuation and of allowed choices. It is at least 0.
    policy_coef*: float = 1.0
        Weight of the policy loss. It is at least 0.
    value_coef*: float = 1.0
        Weight of the value loss on dreams. It is at least 0.
    replay_value_coef*: float = 0.3
        Weight of the value loss on what was really seen. It is at least 0.
    replay_value_grad: bool = True
        Whether that loss teaches the states of the model too.
    slow_value_coef*: float = 1.0
        Weight of staying close to the slow value, in both value losses. It is at least 0.
    tau*: float = 0.02
        Share of the value's weights in an update of the slow value. It is at least 0 and at most 1.
    max_grad_ratio*: float = 0.3
        The gradient of a tensor is scaled down to this share of its own norm. It is above 0.
    warmup_updates: int = 1000
        Updates over which the learning rate rises from 0. It is at least 0.
    time_limit: int | None = None
        Truncate episodes after this many steps; the environment's own limit if null. It is at least 1.
    frame_stack: int = 1
        How many of the latest observations the policy sees. It is at least 1.
    reward_clip: float | None = None
        Clip rewards to +- this for learning; reported returns are not clipped. It is above 0.
    buffer_size: int = 1000000
        Capacity of the replay buffer, in rows. It is at least 1.
    learning_starts: int = 1024
        Steps of random actions before learning starts. It is at least 0.
    train_every: int = 1
        Steps between two phases of learning. It is at least 1. Also: train_freq.
    updates_per_step: float = 0.25
        Gradient updates per step of experience; times batch_size and batch_length it is the paper's train ratio.
        It is above 0.
    model: str | Callable[..., Any] = "auto"
        `auto` (MLPs, behind convolutions for images), or `module:Name`, called with (SpaceInfo, ModelConfig); in
        Python also the class or function itself.
    size: Literal["xxs", "1m", "12m", "25m", "50m", "100m", "200m"] = "1m"
        How large the networks are; all but xxs are those of the paper's code.
    deter: int | None = None
        Numbers that a state remembers; null: that of `size`. It is at least 1.
    stoch: int | None = None
        Categoricals in a latent; null: that of `size`. It is at least 1.
    classes: int | None = None
        Classes of each categorical; null: that of `size`. It is at least 2 and at most 255.
    hidden: int | None = None
        Width of the layers between states; null: that of `size`. It is at least 1.
    units: int | None = None
        Width of encoders, decoders and heads; null: that of `size`. It is at least 1.
    depth: int | None = None
        Channels of convolutions, times 2 to 4; null: that of `size`. It is at least 2.
    blocks: int | None = None
        Blocks that deter is cut into; null: that of `size`. It is at least 1.
    unimix: float = 0.01
        Share of the uniform distribution in latents and choices. It is at least 0 and below 1.
    number_heads: Literal["symexp", "gaussian"] = "symexp"
        Rewards and values: distributions over symexp points, or means that are learned by squared errors.
    bins: int = 255
        Points of a symexp distribution. It is at least 2.
    env_packages: str | Sequence[str] = ()
        Modules that are imported before ids are looked up.
    env_kwargs: Mapping[str, Any] = {}
        Arguments of the environment.
    vectorization: Literal["auto", "native", "sync", "async"] = "auto"
        How environments are stepped together; `auto` is native where that is faster, else sync.
    env_timeout: float | None = 300.0
        Seconds that an environment in its own process (`async`) has for a step or a reset; null for any. It is
        above 0.
    num_envs: int = 8
        Environments that are stepped together; those of all workers. It is at least 1.
    actors: Literal["inline", "process", "ray"] = "inline"
        Where workers gather: in this process, in processes of their own, or on a Ray cluster.
    num_workers: int = 1
        Workers that gather; each has num_envs / num_workers environments. It is at least 1.
    order: Literal["auto", "fixed", "arrival"] = "auto"
        Learn from rollouts in a fixed order, which is exact, or as they arrive; `auto`: arrival for ray.
    rollout_deadline: float | None = 600.0
        Seconds that a worker may take for a rollout before it is replaced; null for any. It is above 0.
    worker_restarts: int = 10
        How many workers may be lost and replaced before the run is saved and ends. It is at least 0.
    ray_address: str | None = None
        Address of a Ray cluster for `actors: ray`; a cluster of its own if null.
    seed: int = 0
        Seed of everything random in the run. It is at least 0.
    total_timesteps: int = 100000
        Environment steps of the run; updates, where it learns offline. It is at least 1. Also: total_updates.
    eval_interval: int | None = None
        Evaluate whenever this many steps have passed; at the end if null. It is at least 1.
    eval_episodes: int = 10
        Episodes of an evaluation, with seeds that never change. It is at least 1.
    early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
        A rule that ends the run early, or a list of them.
    checkpoint_interval: int = 25000
        Save whenever this many steps have passed. It is at least 1.
    keep_checkpoints: int = 3
        How many checkpoints are kept, besides the best and spare ones. It is at least 2.
    log_interval: int = 1000
        Write metrics whenever this many steps have passed. It is at least 1.
    output_dir: str = "runs"
        Folder in which the run's folder is made.
    device: str = "auto"
        `cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.
    engine: Literal["auto", "autograd"] = "auto"
        `auto` uses the compiled path on a CPU where there is one (MLPs, small world models); `autograd`: torch
        alone.
    threads: int = 1
        Threads of torch and BLAS. More than one pays for wide networks on a quiet machine. It is at least 1.
    stretch_schedules: bool = False
        Stretch the schedules of a resumed run over its new number of steps.
    callbacks: Sequence[str] = ()
        Your own callbacks, each `module:Name`.
    loggers: str | Sequence[str] = ()
        Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names).
    tags: Sequence[str] = ()
        Labels of the run.
    """

    def __init__(
        self,
        env: Env,
        *,
        learning_rate: float = 4e-05,
        learning_rate_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        learning_rate_warmup_steps: int | None = None,
        batch_size: int = 16,
        normalize_obs: bool | Literal["auto"] = False,
        obs_clip: float = 10.0,
        batch_length: int = 64,
        imagination_horizon: int = 15,
        imagination_starts: int | None = None,
        gamma: float = 0.996996996996997,
        gamma_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        gamma_warmup_steps: int | None = None,
        return_lambda: float = 0.95,
        return_lambda_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        return_lambda_warmup_steps: int | None = None,
        entropy_coef: float = 0.0003,
        entropy_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        entropy_coef_warmup_steps: int | None = None,
        ent_coef: float = 0.0003,
        ent_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        ent_coef_warmup_steps: int | None = None,
        actor_gradient: Literal["reinforce", "pathwise"] = "reinforce",
        free_nats: float = 1.0,
        free_nats_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        free_nats_warmup_steps: int | None = None,
        dynamics_coef: float = 1.0,
        dynamics_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        dynamics_coef_warmup_steps: int | None = None,
        representation_coef: float = 0.1,
        representation_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        representation_coef_warmup_steps: int | None = None,
        reconstruction_coef: float = 1.0,
        reconstruction_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        reconstruction_coef_warmup_steps: int | None = None,
        reward_coef: float = 1.0,
        reward_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        reward_coef_warmup_steps: int | None = None,
        continue_coef: float = 1.0,
        continue_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        continue_coef_warmup_steps: int | None = None,
        policy_coef: float = 1.0,
        policy_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        policy_coef_warmup_steps: int | None = None,
        value_coef: float = 1.0,
        value_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        value_coef_warmup_steps: int | None = None,
        replay_value_coef: float = 0.3,
        replay_value_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        replay_value_coef_warmup_steps: int | None = None,
        replay_value_grad: bool = True,
        slow_value_coef: float = 1.0,
        slow_value_coef_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        slow_value_coef_warmup_steps: int | None = None,
        tau: float = 0.02,
        tau_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        tau_warmup_steps: int | None = None,
        max_grad_ratio: float = 0.3,
        max_grad_ratio_schedule: float | str | Mapping[str, Any] | Callable[[float], float] | None = None,
        max_grad_ratio_warmup_steps: int | None = None,
        warmup_updates: int = 1000,
        time_limit: int | None = None,
        frame_stack: int = 1,
        reward_clip: float | None = None,
        buffer_size: int = 1000000,
        learning_starts: int = 1024,
        train_every: int = 1,
        train_freq: int = 1,
        updates_per_step: float = 0.25,
        model: str | Callable[..., Any] = "auto",
        size: Literal["xxs", "1m", "12m", "25m", "50m", "100m", "200m"] = "1m",
        deter: int | None = None,
        stoch: int | None = None,
        classes: int | None = None,
        hidden: int | None = None,
        units: int | None = None,
        depth: int | None = None,
        blocks: int | None = None,
        unimix: float = 0.01,
        number_heads: Literal["symexp", "gaussian"] = "symexp",
        bins: int = 255,
        env_packages: str | Sequence[str] = (),
        env_kwargs: Mapping[str, Any] = ...,
        vectorization: Literal["auto", "native", "sync", "async"] = "auto",
        env_timeout: float | None = 300.0,
        num_envs: int = 8,
        actors: Literal["inline", "process", "ray"] = "inline",
        num_workers: int = 1,
        order: Literal["auto", "fixed", "arrival"] = "auto",
        rollout_deadline: float | None = 600.0,
        worker_restarts: int = 10,
        ray_address: str | None = None,
        seed: int = 0,
        total_timesteps: int = 100000,
        total_updates: int = 100000,
        eval_interval: int | None = None,
        eval_episodes: int = 10,
        early_stopping: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        checkpoint_interval: int = 25000,
        keep_checkpoints: int = 3,
        log_interval: int = 1000,
        output_dir: str = "runs",
        device: str = "auto",
        engine: Literal["auto", "autograd"] = "auto",
        threads: int = 1,
        stretch_schedules: bool = False,
        callbacks: Sequence[str] = (),
        loggers: str | Sequence[str] = (),
        tags: Sequence[str] = (),
        algo_kwargs: Mapping[str, Any] | None = None,
    ) -> None: ...
