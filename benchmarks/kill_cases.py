"""The runs that kills.py kills: every algorithm, on environments of every kind. This file loads no library.

A run takes a second or two. It saves a dozen times and evaluates a few times, and what can be remembered between two
steps is there somewhere: normalisers, schedules, early stopping, replay, masks, carries, images, several processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bit_cases import ACROBOT, CARTPOLE, OFFLINE, PENDULUM, REACHER, SETTINGS, TICTACTOE
from bit_variants import Settings

PACKAGED = "rl_training.data.packaged:"
KEPT = 3  # checkpoints of a run, besides the best one
SPARE = 2  # more at the most, of a run with a replay


@dataclass(frozen=True)
class Case:
    """One run; `before` is another that it starts from."""

    name: str
    settings: Settings
    before: Settings | None = None

    @property
    def worlds(self) -> str:
        """The names of its environments are in this text."""
        return str(self.settings.get("env_id", self.settings.get("tasks")))


_FEW_EVALUATIONS = {"num_envs": 1, "eval_interval": 20, "eval_episodes": 1}  # of environments that are slow
MOUNTAIN_CAR = {"env_id": "MountainCarContinuous-v0", "time_limit": 40}
BIPEDAL_WALKER = {"env_id": "BipedalWalker-v3", "time_limit": 30}
CAR_RACING = {"env_id": "CarRacing-v3", "time_limit": 6} | _FEW_EVALUATIONS
FROZEN_LAKE = {"env_id": "FrozenLake-v1", "time_limit": 20}
TAXI = {"env_id": "Taxi-v4", "time_limit": 25}  # its actions are masked
MINIGRID = {"env_id": "MiniGrid-Empty-5x5-v0", "time_limit": 20}
DICT = {"env_id": "rl_training.testing:TinyEnv", "env_kwargs": {"observations": "dict"}}
PONG = {"env_id": "ALE/Pong-v5", "time_limit": 12, "frame_stack": 2} | _FEW_EVALUATIONS
ASYNC = {"vectorization": "async"}
_DATA = {"dataset": f"{PACKAGED}pendulum_medium"}
_ONLINE = {key: SETTINGS["sac"][key] for key in ("num_envs", "buffer_size", "learning_starts", "train_every")}

# What is remembered between two steps, where an algorithm has it.
_RULES = {"early_stopping": [{"patience": 50}, {"target_value": 1e9, "sustained": 2}]}
_NORMALIZED = {"normalize_obs": True, "normalize_reward": True}
_CURVES = {"learning_rate_schedule": "cosine", "ent_coef": 0.02, "ent_coef_schedule": "linear"}
_FEW_IMAGES = {"hidden_sizes": [8], "batch_size": 6, "n_epochs": 1, "n_steps": 6}
# The first task is solved at once, and leaves with the end of the first stage, in the middle of the run.
_TWO_TASKS = {"tasks": {"cartpole": CARTPOLE | {"target_return": 5.0}, "acrobot": ACROBOT | {"num_envs": 1}}}
_STAGES = {"stages": 2, "first_stage_updates": 65, "solved_episodes": 2, "prioritized": True, "reanalyze_ratio": 0.25}
_RARE_UPDATES = {"batch_size": 4, "learning_starts": 6, "train_every": 6, "updates_per_step": 0.25}

# By environment and algorithm: the steps of the run, its environment, and its settings besides those of SETTINGS.
_ROWS: Mapping[str, tuple[int, Settings, Settings]] = {
    "acrobot/ppo": (1200, ACROBOT, _NORMALIZED | _CURVES | _RULES),
    "acrobot/dqn": (600, ACROBOT, {"prioritized": True, "n_step": 3, "epsilon": 1.0, "epsilon_schedule": 0.1}),
    "mountain_car/trpo": (1200, MOUNTAIN_CAR, _NORMALIZED | _RULES),
    "mountain_car/sac": (600, MOUNTAIN_CAR, {"normalize_obs": True, "learning_rate_schedule": "linear"}),
    "reacher/td3": (600, REACHER, {"n_step": 3, "learning_rate_warmup_steps": 200}),
    "reacher/tqc": (600, REACHER, _RULES),
    "bipedal_walker/a2c": (600, BIPEDAL_WALKER, {"use_sde": True} | _CURVES),
    "bipedal_walker/ddpg": (400, BIPEDAL_WALKER, {"normalize_obs": True}),
    "car_racing/ppo": (36, CAR_RACING, _FEW_IMAGES | {"learning_rate_schedule": "linear"}),
    "car_racing/dqn": (36, CAR_RACING | {"env_kwargs": {"continuous": False}}, _RARE_UPDATES | {"hidden_sizes": [8]}),
    "frozen_lake/a2c": (800, FROZEN_LAKE, _CURVES | _RULES),
    "frozen_lake/dqn": (600, FROZEN_LAKE, {"dueling": True}),
    "taxi/ppg": (1200, TAXI, _CURVES),
    "taxi/gumbel_muzero": (300, TAXI, {"prioritized": True, "reanalyze_ratio": 0.5}),
    "minigrid/recurrent_ppo": (800, MINIGRID, {"normalize_reward": True}),
    "minigrid/dreamer": (120, MINIGRID, {"learning_rate_schedule": "linear"}),
    "dict/ppo": (400, DICT, {"normalize_reward": True, "n_epochs": 1, "n_steps": 12}),
    "dict/redq": (120, DICT | {"env_kwargs": {"observations": "dict", "actions": "continuous"}}, {"batch_size": 8}),
    "async/ppo": (1000, CARTPOLE | ASYNC, _NORMALIZED | _CURVES),
    "async/sac": (400, PENDULUM | ASYNC, {"n_step": 2}),
    "pong/ppo": (36, PONG, _FEW_IMAGES | {"reward_clip": 1.0}),
    "pong/dqn": (36, PONG, _RARE_UPDATES | {"hidden_sizes": [8], "buffer_size": 40}),
    "fine_tuning/awac": (300, PENDULUM | _DATA, _ONLINE | {"online": True, "normalize_obs": True}),
    "cartpole/gail": (800, CARTPOLE | {"dataset": f"{PACKAGED}cartpole_expert", "demonstrations": 4}, _CURVES),
    "cartpole/impala": (800, CARTPOLE, _NORMALIZED | _CURVES | {"rnn": "lstm", "rnn_hidden_size": 8}),
    "cartpole/appo": (800, CARTPOLE, _CURVES | {"target_update_interval": 3, "kl_coef": 0.2, "kl_target": 0.01}),
    "cartpole/muzero": (300, CARTPOLE, {"temperature_schedule": 0.1}),
    "cartpole/a2c": (3200, CARTPOLE | {"num_envs": 8}, {"normalize_obs": True}),  # in native form
    "cartpole/scalezero": (
        240,
        CARTPOLE,
        {"stages": 11, "stage_updates": 10},
    ),  # always shortly before or after a new stage
    "two_tasks/scalezero": (300, _TWO_TASKS, _STAGES | {"normalize_obs": True, "temperature_schedule": 0.1}),
    "tictactoe/efficientzero": (200, TICTACTOE, {}),
    "pendulum/bc": (120, PENDULUM | _DATA, {"validation_fraction": 0.2, "normalize_obs": True}),
    "pendulum/cql": (120, PENDULUM | _DATA, {"learning_rate_schedule": "linear"}),
    "pendulum/td3_bc": (120, PENDULUM | _DATA, {"normalize_obs": True}),
    "pendulum/awac": (120, PENDULUM | _DATA, {"learning_rate_warmup_steps": 40}),
}


def _rhythm(steps: int) -> Settings:
    """How often a run saves, evaluates and logs; the intervals do not divide each other."""
    return {
        "total_timesteps": steps,
        "checkpoint_interval": max(steps // 12, 1),
        "eval_interval": max(2 * steps // 7, 1),
        "log_interval": max(steps // 20, 1),
        "eval_episodes": 2,
        "keep_checkpoints": KEPT,
    }


def _case(name: str, steps: int, world: Settings, changes: Settings) -> Case:
    algo = name.rpartition("/")[2]
    baseline = {"bc_baseline_updates": 5} if algo in OFFLINE else {}
    return Case(name, {"algo": algo, **SETTINGS[algo], **_rhythm(steps), **baseline, **world, **changes})


def _made_cases() -> Iterator[Case]:
    for name, row in _ROWS.items():
        yield _case(name, *row)
    offline = _case("pendulum/iql", 120, PENDULUM | _DATA, {"reward_scale": "return_range"})
    yield offline
    fine_tuned = _case("fine_tuning/iql", 300, PENDULUM | _DATA, _ONLINE | {"reward_scale": "return_range"})
    yield Case(fine_tuned.name, fine_tuned.settings, before=offline.settings)


CASES: Mapping[str, Case] = {case.name: case for case in _made_cases()}
