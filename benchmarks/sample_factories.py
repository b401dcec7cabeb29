"""APPO of Sample Factory, in one process: its own runner, learner and sampler, without what it writes to disk."""

from __future__ import annotations

import tempfile
from typing import Any

from trainers import Advance


def make_cartpole(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> Any:
    """The environment, by the name under which it is registered."""
    import gymnasium as gym

    return gym.make("CartPole-v1")


def sample_factory_appo(*, unit: str, threads: int, num_envs: int, n_steps: int, hidden_sizes: list[int]) -> Advance:
    """One pass over every rollout. Its default advantage is GAE: its V-trace fails where it gathers its statistics."""
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner

    register_env("cartpole", make_cartpole)
    settings = {
        "algo": "APPO",
        "env": "cartpole",
        "train_dir": tempfile.mkdtemp(),
        "device": "cpu",
        "serial_mode": True,
        "async_rl": False,
        "num_workers": 1,
        "num_envs_per_worker": num_envs,
        "worker_num_splits": 1,
        "rollout": n_steps,
        "batch_size": n_steps * num_envs,
        "num_batches_per_epoch": 1,
        "num_epochs": 1,
        "use_rnn": False,
        "recurrence": 1,
        "nonlinearity": "tanh",
        "actor_critic_share_weights": False,
        "normalize_input": False,
        "normalize_returns": False,
        "train_for_env_steps": 10**12,
        "save_every_sec": 10**6,
        "decorrelate_experience_max_seconds": 0,
        "log_to_file": False,
    }
    words = [f"--{key}={value}" for key, value in settings.items()]
    words += ["--encoder_mlp_layers", *map(str, hidden_sizes)]
    _, runner = make_runner(parse_full_cfg(parse_sf_args(words)[0], words))
    runner.init()
    loop = runner.event_loop
    loop.default_timer.start()
    loop.start.emit()

    def advance(count: int) -> int:
        before = sum(runner.env_steps.values())
        while sum(runner.env_steps.values()) - before < count:
            loop.process_events()
        return int(sum(runner.env_steps.values()) - before)

    return advance
