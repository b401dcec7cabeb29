"""The works: what is trained, in which unit it is counted, and how each side does it.

A side is a function that builds everything and gives `advance(count) -> done`: it trains for at least `count` units and
says how many it did. Training is all it does: no evaluation, no checkpoints, no files. Libraries are imported inside of
it, so that a process loads one side only. A new work is one entry of WORKS, a new peer one of PEERS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

Advance = Callable[[int], int]

OURS = "ours"
# The module and the package of every library that we are compared with.
PEERS = {"sb3": ("stable_baselines3", "stable-baselines3")}


@dataclass(frozen=True)
class Work:
    """The same training, done by us and by some peers."""

    summary: str
    slice_size: int  # units between two looks at the clock; some seconds of the slowest side
    sides: Mapping[str, Callable[[], Advance]]  # "ours" and names of PEERS
    unit: str = "environment steps"
    needs: Mapping[str, str] = field(default_factory=dict)  # modules that every side needs, and what installs them

    @property
    def peers(self) -> list[str]:
        return [name for name in self.sides if name != OURS]


def ours(algo: str, env_id: str, num_envs: int, hidden_sizes: list[int], **settings: Any) -> Advance:
    """The training loop of a run without the callbacks that judge, log and save."""
    from rl_training.experiment.config import load_config
    from rl_training.runtime.train import build

    common = {"algo": algo, "env_id": env_id, "num_envs": num_envs, "hidden_sizes": hidden_sizes}
    run = build(load_config(common | {"activation": "tanh", "device": "cpu", "threads": 1} | settings))
    run.start()

    def advance(count: int) -> int:
        before = run.steps
        while run.steps - before < count:
            run.advance()
        return run.steps - before

    return advance


def sb3_on_policy(algo: str, env_id: str, num_envs: int, hidden_sizes: list[int], **settings: Any) -> Advance:
    """PPO or A2C of Stable-Baselines3, whose default activation is tanh, on its own vector environment."""
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env

    model = getattr(stable_baselines3, algo.upper())(
        "MlpPolicy",
        make_vec_env(env_id, n_envs=num_envs, seed=0),
        policy_kwargs={"net_arch": hidden_sizes},
        device="cpu",
        seed=0,
        **settings,
    )

    def advance(count: int) -> int:
        before = model.num_timesteps
        model.learn(count, reset_num_timesteps=False)
        return int(model.num_timesteps - before)

    return advance


def on_policy(**settings: Any) -> dict[str, Callable[[], Advance]]:
    """Both sides with the same settings: their names are the same in both libraries, and so are the other defaults."""
    return {OURS: partial(ours, **settings), "sb3": partial(sb3_on_policy, **settings)}


WORKS = {
    "ppo_cartpole": Work(
        "PPO on CartPole-v1: 8 environments x 128 steps, 4 epochs of 4 minibatches, 64-64 tanh",
        32_768,
        on_policy(
            algo="ppo",
            env_id="CartPole-v1",
            num_envs=8,
            hidden_sizes=[64, 64],
            n_steps=128,
            n_epochs=4,
            batch_size=256,
        ),
    ),
    "a2c_cartpole": Work(
        "A2C on CartPole-v1: 8 environments x 5 steps, 64-64 tanh",
        24_000,
        on_policy(algo="a2c", env_id="CartPole-v1", num_envs=8, hidden_sizes=[64, 64], n_steps=5),
    ),
    "ppo_halfcheetah": Work(
        "PPO on HalfCheetah-v5: 4 environments x 512 steps, 10 epochs in minibatches of 64, 64-64 tanh",
        12_288,
        on_policy(
            algo="ppo",
            env_id="HalfCheetah-v5",
            num_envs=4,
            hidden_sizes=[64, 64],
            n_steps=512,
            n_epochs=10,
            batch_size=64,
        ),
        needs={"mujoco": "pip install 'rl-training[mujoco]'"},
    ),
}
