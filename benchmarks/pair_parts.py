"""What a pair of the learning benchmark is, the tasks, and the settings that pairs share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from libraries import OURS
from trainers import STEPS, UPDATES
from works import MUJOCO

Settings = Mapping[str, Any]
Family = Literal["on_policy", "off_policy", "offline"]
FAMILIES: dict[Family, str] = {
    "on_policy": "On-policy and imitation",
    "off_policy": "Off-policy",
    "offline": "Offline, on the public Pendulum data",
}
BOX2D = {"Box2D": "pip install 'rl-training[box2d]'"}


@dataclass(frozen=True)
class Task:
    """What is learned: an environment, and the returns between which learning takes place."""

    env_id: str  # a Gymnasium id, or `module:function` that makes the environment
    random: float  # the mean return of uniform actions
    threshold: float  # the return of an agent that solves the task
    env_kwargs: Settings = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)  # modules, and what installs them


@dataclass(frozen=True)
class Pair:
    """The same training, done by us and by one peer, and evaluated in the same way.

    `settings` are those of both sides, by our names; `ours` and `theirs` say the rest in each library's own words.
    `learner` is the function of learners.py that builds the peer's side.
    """

    summary: str
    family: Family
    task: Task
    algo: str
    peer: str  # a name of works.PEERS
    learner: str
    total: int  # steps or updates of a run
    every: int  # and between two evaluations
    settings: Settings
    ours: Settings = field(default_factory=dict)
    theirs: Settings = field(default_factory=dict)
    unit: str = STEPS
    dataset: str | None = None  # a file of the public data
    episodes: int = 10
    note: str | None = None  # differences that remain

    @property
    def sides(self) -> tuple[str, str]:
        return OURS, self.peer

    @property
    def our_settings(self) -> dict[str, Any]:
        """Ours, without the vector form of some environments, whose steps at a reset make the cadence uneven."""
        return {"vectorization": "sync", **self.settings, **self.ours}

    def described(self, side: str) -> dict[str, Any]:
        """All that defines a run of one side: results with another description do not belong to this pair."""
        task = {"env_id": self.task.env_id, "env_kwargs": dict(self.task.env_kwargs), "dataset": self.dataset}
        amount = {"total": self.total, "every": self.every, "episodes": self.episodes, "unit": self.unit}
        if side == OURS:
            return {**task, **amount, "algo": self.algo, "settings": self.our_settings}
        return {**task, **amount, "learner": self.learner, "settings": {**self.settings, **self.theirs}}


CARTPOLE = Task("CartPole-v1", random=22.7, threshold=475.0)
NO_VELOCITY = Task(
    "rl_training.runtime.no_velocity:NoVelocity",
    random=22.7,
    threshold=475.0,
    env_kwargs={"env_id": "CartPole-v1"},
)
INVERTED_PENDULUM = Task("InvertedPendulum-v5", random=5.1, threshold=950.0, needs=MUJOCO)
LUNAR_LANDER = Task("LunarLander-v3", random=-200.0, threshold=200.0, needs=BOX2D)
LUNAR_LANDER_CONTINUOUS = Task("LunarLanderContinuous-v3", random=-211.0, threshold=200.0, needs=BOX2D)
MOUNTAIN_CAR = Task("MountainCar-v0", random=-200.0, threshold=-110.0)
PENDULUM = Task("Pendulum-v1", random=-1208.0, threshold=-200.0)
REACHER = Task("Reacher-v5", random=-43.6, threshold=-6.0, needs=MUJOCO)


def on_policy(task: Task, trainer: str, summary: str, total: int, every: int, settings: Settings) -> Pair:
    """A pair with an algorithm of Stable-Baselines3 or of its collection, where settings have the same names."""
    algo, theirs = trainer.split(":")[1].lower(), {"trainer": trainer}
    return Pair(summary, "on_policy", task, algo, library(trainer), "sb3", total, every, settings, theirs=theirs)


def library(trainer: str) -> str:
    """The peer whose class `module:Class` is."""
    module = trainer.split(":")[0]
    return "sb3" if module == "stable_baselines3" else module


def ppo(num_envs: int, n_steps: int, batch_size: int, **changes: Any) -> dict[str, Any]:
    """PPO's settings, all of them said, so that no default of either library matters."""
    common = {
        "num_envs": num_envs,
        "n_steps": n_steps,
        "batch_size": batch_size,
        "n_epochs": 10,
        "hidden_sizes": [64, 64],
        "learning_rate": 3e-4,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "ent_coef": 0.0,
        "vf_coef": 0.5,
        "max_grad_norm": 0.5,
    }
    return common | changes


A2C: dict[str, Any] = {
    "num_envs": 8,
    "n_steps": 5,
    "hidden_sizes": [64, 64],
    "learning_rate": 7e-4,
    "gamma": 0.99,
    "gae_lambda": 1.0,
    "ent_coef": 0.0,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
}
TRPO: dict[str, Any] = {
    "num_envs": 2,
    "n_steps": 512,
    "batch_size": 128,
    "hidden_sizes": [64, 64],
    "learning_rate": 1e-3,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "target_kl": 0.01,
    "cg_max_steps": 15,
    "cg_damping": 0.1,
    "line_search_shrinking_factor": 0.8,
    "line_search_max_iter": 10,
    "n_critic_updates": 10,
}


def dqn(train_every: int, updates_per_step: float, **changes: Any) -> dict[str, Any]:
    """The settings of the zoo's DQN, with `learning_starts` at the end of a training phase, where both count alike."""
    common = {
        "num_envs": 1,
        "hidden_sizes": [256, 256],
        "train_every": train_every,
        "updates_per_step": updates_per_step,
        "tau": 1.0,
        "max_grad_norm": 10.0,
    }
    return common | changes


def annealed(final: float, steps: int, total: int, copy_updates: int, copy_steps: int) -> dict[str, Any]:
    """Plain DQN on both sides: epsilon falls from 1 in so many steps, and the target network is copied as often.

    We count updates between two copies, Stable-Baselines3 counts environment steps.
    """
    schedule = {"type": "linear", "start": 1.0, "end": final, "steps": steps}
    return {
        "ours": {"double_q": False, "epsilon_schedule": schedule, "target_update_interval": copy_updates},
        "theirs": {
            "trainer": "stable_baselines3:DQN",
            "exploration_initial_eps": 1.0,
            "exploration_final_eps": final,
            "exploration_fraction": steps / total,
            "target_update_interval": copy_steps,
        },
    }


def continuous(**changes: Any) -> dict[str, Any]:
    """The common settings of SAC, TD3, DDPG and TQC: one environment, small networks, an update for every step."""
    common = {
        "num_envs": 1,
        "hidden_sizes": [64, 64],
        "learning_rate": 1e-3,
        "buffer_size": 100_000,
        "learning_starts": 100,
        "batch_size": 64,
        "tau": 0.005,
        "gamma": 0.99,
        "train_every": 1,
        "updates_per_step": 1,
    }
    return common | changes


def off_policy(task: Task, algo: str, trainer: str, summary: str, total: int = 10_000, **changes: Any) -> Pair:
    """A pair with an algorithm of Stable-Baselines3 or of its collection."""
    every = changes.pop("every", total // 20)
    settings = continuous(**changes)
    theirs = {"trainer": trainer}
    return Pair(summary, "off_policy", task, algo, library(trainer), "sb3", total, every, settings, theirs=theirs)


NOISE: dict[str, Any] = {"noise_std": 0.1}
TD3: dict[str, Any] = {**NOISE, "policy_delay": 2, "target_policy_noise": 0.2, "target_noise_clip": 0.5}
SOFT: dict[str, Any] = {"ent_coef": "auto"}
TQC: dict[str, Any] = {**SOFT, "n_critics": 2, "n_quantiles": 25, "top_quantiles_to_drop": 2}
SMALL = "64-64 relu, an update of 64 rows after every step, rate 1e-3"


def offline(
    algo: str,
    summary: str,
    ours: Settings,
    theirs: Settings,
    *,
    updates: int = 4_000,
    data: str = "replay",
    note: str | None = None,
    **changes: Any,
) -> Pair:
    """A pair with d3rlpy on the public data: the whole training history of an agent, or what a half-trained one did."""
    common = {"hidden_sizes": [256, 256], "batch_size": 256, "learning_rate": 3e-4}
    return Pair(
        f"{summary}, {updates:,} updates on the {data} data",
        "offline",
        PENDULUM,
        algo,
        "d3rlpy",
        "d3rlpy",
        updates,
        updates // 20,
        common | changes,
        ours={"bc_baseline_updates": 0, "normalize_obs": False, **ours},
        theirs=theirs,
        unit=UPDATES,
        dataset=f"pendulum/pendulum_{data}.npz",
        note=note,
    )


LARGE = "256-256 relu, 256 rows"
VALUES: dict[str, Any] = {"n_critics": 2, "gamma": 0.99, "tau": 0.005}
