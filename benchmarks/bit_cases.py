"""The cases that bits.py compares: every algorithm on three environments with both engines, and every variant of it.

A case is small (narrow networks, small batches) but makes several updates. This file loads no library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from bit_variants import VARIANTS, Settings, Worlds

Kind = Literal["train", "tiny", "resume", "start_from", "preset"]

ENGINES = ("auto", "autograd")
PRESET = "preset"  # the first part of a preset's case name
ON_POLICY = ("ppo", "a2c", "trpo", "ppg", "recurrent_ppo", "impala", "appo")
CONTINUOUS = ("ddpg", "td3", "sac", "redq", "tqc")
OFFLINE = ("bc", "awac", "iql", "cql", "td3_bc")
PLANNING = ("muzero", "gumbel_muzero", "efficientzero")


@dataclass(frozen=True)
class Case:
    """One training: its settings, and how many loop steps it makes."""

    name: str
    settings: Settings
    steps: int  # for `resume` and `start_from`: steps of the clock, before and after
    kind: Kind = "train"
    env: Settings = field(default_factory=dict)  # the arguments of TinyEnv, for the kind `tiny`


# Defaults that have changed: a case has the old ones, so that it computes the same with an older package.
_OLD_DEFAULTS: Mapping[str, Settings] = {"dqn": {"epsilon": 0.1}, "ppg": {"ent_coef": 0.0}}

# What an algorithm is given on a real environment; it learns several times within _STEPS loop steps.
_ROLLOUT = {"n_steps": 24, "num_envs": 2, "hidden_sizes": [16, 16]}
_MINIBATCHES = _ROLLOUT | {"batch_size": 16, "n_epochs": 2}
_REPLAY = {
    "num_envs": 2,
    "hidden_sizes": [16, 16],
    "batch_size": 16,
    "buffer_size": 90,  # is overwritten
    "learning_starts": 20,
    "train_every": 4,
    "updates_per_step": 0.5,
}
_DATASET = {"hidden_sizes": [16, 16], "batch_size": 16}
_PLANS = _REPLAY | {
    "hidden_sizes": [16],
    "latent_size": 8,
    "num_simulations": 6,
    "unroll_steps": 3,
    "n_step": 3,
    "sampled_actions": 5,
    "interior_actions": 3,
    "target_update_interval": 5,
}
_WORLDS = _PLANS | {"width": 16, "expert_size": 8, "experts": 2, "context_length": 3, "target_update_interval": 1}
for _other in ("latent_size", "sampled_actions", "interior_actions"):
    del _WORLDS[_other]
_DREAMS = _REPLAY | {
    "size": "xxs",
    "batch_size": 4,
    "batch_length": 6,
    "imagination_horizon": 4,
    "imagination_starts": 8,
    "warmup_updates": 3,
}
del _DREAMS["hidden_sizes"]
SETTINGS: Mapping[str, Settings] = {
    "ppo": _MINIBATCHES,
    "a2c": _ROLLOUT | {"n_steps": 5},
    "trpo": _ROLLOUT | {"batch_size": 16, "n_critic_updates": 2},
    "ppg": _MINIBATCHES | _OLD_DEFAULTS["ppg"] | {"aux_interval": 2, "n_aux_epochs": 2, "aux_batch_size": 32},
    "recurrent_ppo": _MINIBATCHES | {"rnn_hidden_size": 8},
    "gail": _MINIBATCHES | {"disc_updates": 2, "disc_batch_size": 16, "disc_hidden_sizes": [16]},
    "impala": _ROLLOUT | {"n_steps": 8},
    "appo": _MINIBATCHES,
    "dqn": _REPLAY | _OLD_DEFAULTS["dqn"] | {"target_update_interval": 5},
    "ddpg": _REPLAY,
    "td3": _REPLAY,
    "sac": _REPLAY,
    "redq": _REPLAY | {"n_critics": 4, "subset_size": 2, "policy_delay": 3},
    "tqc": _REPLAY | {"n_quantiles": 5, "top_quantiles_to_drop": 1},
    "bc": _DATASET,
    "awac": _DATASET,
    "iql": _DATASET,
    "cql": _DATASET | {"cql_samples": 3},
    "td3_bc": _DATASET,
    "muzero": _PLANS,
    "gumbel_muzero": _PLANS,
    "efficientzero": _PLANS | {"prefix_size": 8, "projection_size": 8},
    "scalezero": _WORLDS,
    "dreamer": _DREAMS,
}
_STEPS = (
    {"a2c": 10}
    | dict.fromkeys(("dqn", *CONTINUOUS, *PLANNING, "scalezero", "dreamer"), 30)
    | dict.fromkeys(OFFLINE, 12)
)
_DEFAULT_STEPS = 4

# Time limits make episodes end within the few steps, and evaluations short.
CARTPOLE = {"env_id": "CartPole-v1"}
PENDULUM = {"env_id": "Pendulum-v1", "time_limit": 20}
LANDER = {"env_id": "LunarLander-v3", "time_limit": 60}
FLYING_LANDER = LANDER | {"env_kwargs": {"continuous": True}}
ACROBOT = {"env_id": "Acrobot-v1", "time_limit": 50}
REACHER = {"env_id": "Reacher-v5", "time_limit": 25}
TICTACTOE = {"env_id": "pettingzoo/tictactoe_v3"}
# The files that bits.py makes, in the folder in which a case runs.
LANDER_FILE, CARTPOLE_FILE = "lunarlander.npz", "cartpole.npz"
_PACKAGED = "rl_training.data.packaged:"


def _worlds(algo: str) -> Worlds:
    """The environments of an algorithm, besides TinyEnv, with the settings that they need."""
    if algo in ON_POLICY:
        return {"cartpole": CARTPOLE | {"num_envs": 8}, "pendulum": PENDULUM, "lunarlander": LANDER}
    if algo == "gail":
        demonstrated = {"dataset": f"{_PACKAGED}cartpole_expert", "demonstrations": 4}
        return {"cartpole": CARTPOLE | demonstrated, "pendulum": PENDULUM | {"dataset": f"{_PACKAGED}pendulum_expert"}}
    if algo in ("dqn", "scalezero"):
        return {"cartpole": CARTPOLE, "acrobot": ACROBOT, "lunarlander": LANDER}
    if algo == "dreamer":
        return {"cartpole": CARTPOLE, "lunarlander": LANDER, "pendulum": PENDULUM}
    if algo in PLANNING:
        return {"cartpole": CARTPOLE, "lunarlander": LANDER, "pendulum": PENDULUM, "tictactoe": TICTACTOE}
    if algo in CONTINUOUS:
        return {"pendulum": PENDULUM, "lunarlander": FLYING_LANDER, "reacher": REACHER}
    made = {"lunarlander": FLYING_LANDER | {"dataset": LANDER_FILE}}
    discrete = {"cartpole": CARTPOLE | {"dataset": CARTPOLE_FILE}} if algo in ("bc", "cql") else {}
    return {"pendulum": PENDULUM | {"dataset": f"{_PACKAGED}pendulum_medium"}, **made, **discrete}


# The kinds of spaces of TinyEnv.
_IMAGES: Worlds = {"image": {"observations": "image"}, "dict": {"observations": "dict"}}
_MASKED: Worlds = {
    f"masked_{actions}": {"actions": actions, "masked": True}
    for actions in ("discrete", "multi_discrete", "multi_binary")
}
_EVERY_ACTION: Worlds = {
    actions: {"actions": actions} for actions in ("discrete", "multi_discrete", "multi_binary", "continuous")
}
_MASKED_DISCRETE = {"masked_discrete": _MASKED["masked_discrete"]}


def _spaces(algo: str) -> Worlds:
    if algo in (*ON_POLICY, "gail", "dreamer"):
        return {**_EVERY_ACTION, **_MASKED, **_IMAGES}
    if algo in ("dqn", "scalezero"):
        return {"discrete": {}, **_MASKED_DISCRETE, **_IMAGES}
    if algo in PLANNING:
        return {"discrete": {}, "continuous": {"actions": "continuous"}, **_MASKED_DISCRETE, **_IMAGES}
    if algo in ("bc", "cql"):
        discrete = {"discrete": _EVERY_ACTION["discrete"], **_MASKED_DISCRETE}
        return {"continuous": {"actions": "continuous"}, **discrete, **_IMAGES}
    return {"continuous": {}, **_IMAGES}


# With these settings, and with images, both engines are the same.
_AUTOGRAD_ONLY = {"model", "use_sde"}
_TINY_STEPS = {"a2c": 5} | dict.fromkeys(OFFLINE, 8)
# Images, and other ways to step environments.
_SINGLES: Mapping[str, tuple[str, Settings, Settings]] = {
    "ppo/stacked_images": ("ppo", {"observations": "image"}, {"frame_stack": 2}),
    "dqn/stacked_images": ("dqn", {"observations": "image"}, {"frame_stack": 2, "buffer_size": 20, "n_step": 2}),
    "sac/stacked_images": ("sac", {"observations": "image"}, {"frame_stack": 2, "buffer_size": 20}),
    "dqn/masked_images": ("dqn", {"observations": "image", "masked": True}, {"prioritized": True}),
    "ppo/async": ("ppo", {}, {"vectorization": "async"}),
    "recurrent_ppo/masked_dict": ("recurrent_ppo", {"observations": "dict", "masked": True}, {}),
    "appo/masked_dict": ("appo", {"observations": "dict", "masked": True}, {"rnn": "gru", "rnn_hidden_size": 8}),
    "efficientzero/stacked_images": ("efficientzero", {"observations": "image"}, {"frame_stack": 2}),
}
_TINY_ENV = {"env_id": "rl_training.testing:TinyEnv"}
_TINY_DATA = {"dataset": "rl_training.testing:tiny_dataset", "done_means": "terminal"}
_TINY_CONTINUOUS = _TINY_ENV | {"env_kwargs": {"actions": "continuous"}}
_RESUMED: Mapping[str, tuple[str, int, Settings]] = {
    "ppo/cartpole": ("ppo", 400, CARTPOLE),
    "ppo/sync_cartpole": ("ppo", 150, CARTPOLE | {"vectorization": "sync", "normalize_obs": True}),
    "ppg/tiny": ("ppg", 150, _TINY_ENV),
    "recurrent_ppo/cartpole": ("recurrent_ppo", 150, CARTPOLE),
    "impala/cartpole": ("impala", 150, CARTPOLE | {"rnn": "lstm", "rnn_hidden_size": 8}),
    "appo/cartpole": ("appo", 150, CARTPOLE | {"target_update_interval": 3, "kl_coef": 0.2, "kl_target": 0.01}),
    "gail/tiny": ("gail", 100, _TINY_ENV | _TINY_DATA),
    "dqn/cartpole": ("dqn", 60, CARTPOLE | {"prioritized": True, "n_step": 3}),
    "sac/pendulum": ("sac", 60, PENDULUM),
    "td3/tiny": ("td3", 60, _TINY_CONTINUOUS | {"learning_rate_schedule": "linear"}),
    "bc/tiny": ("bc", 8, _TINY_CONTINUOUS | {"dataset": _TINY_DATA["dataset"]}),
    "iql/tiny": ("iql", 8, _TINY_CONTINUOUS | _TINY_DATA),
    "awac/online": ("awac", 60, _TINY_CONTINUOUS | _TINY_DATA | _REPLAY | {"online": True}),
    "gumbel_muzero/cartpole": ("gumbel_muzero", 60, CARTPOLE | {"prioritized": True, "reanalyze_ratio": 0.5}),
    "scalezero/cartpole": ("scalezero", 60, CARTPOLE | {"stages": 3, "stage_updates": 9}),
}
_STARTED_FROM: Mapping[str, tuple[str, Settings]] = {
    algo: (algo, _TINY_CONTINUOUS | _TINY_DATA | _REPLAY | {"reward_scale": 0.5}) for algo in ("iql", "td3_bc")
}


def _tiny(name: str, algo: str, env: Settings, settings: Settings) -> Case:
    actions = {"actions": settings["actions"]} if "actions" in settings else {}
    given = _OLD_DEFAULTS.get(algo, {}) | {key: value for key, value in settings.items() if key != "actions"}
    sde = {"actions": "continuous"} if "use_sde" in settings else {}
    steps = 3 if settings.get("online") else _TINY_STEPS.get(algo, _DEFAULT_STEPS)
    return Case(name, {"algo": algo, **given}, steps, "tiny", {**env, **actions, **sde})


def _made_cases() -> Iterator[Case]:
    for algo, settings in SETTINGS.items():
        for engine in ENGINES:
            given = {"algo": algo, "engine": engine, **settings}
            for world, env in _worlds(algo).items():
                yield Case(f"{algo}/{world}/{engine}", given | env, _STEPS.get(algo, _DEFAULT_STEPS))
            for kind, env in _spaces(algo).items():
                if engine == "auto" or "observations" not in env:
                    yield _tiny(f"{algo}/tiny_{kind}/{engine}", algo, env, {"engine": engine})
            for variant, changes in VARIANTS[algo].items():
                if engine == "auto" or not changes.keys() & _AUTOGRAD_ONLY:
                    yield _tiny(f"{algo}/{variant}/{engine}", algo, {}, changes | {"engine": engine})
    for name, (algo, env, changes) in _SINGLES.items():
        yield _tiny(name, algo, env, changes)
    for name, (algo, steps, changes) in _RESUMED.items():
        yield Case(f"resume/{name}", {"algo": algo, **SETTINGS[algo], **changes}, steps, "resume")
    for name, (algo, changes) in _STARTED_FROM.items():
        yield Case(f"start_from/{name}", {"algo": algo, **SETTINGS[algo], **changes}, 8, "start_from")


CASES: Mapping[str, Case] = {case.name: case for case in _made_cases()}


def preset_case(preset: str) -> Case:
    """The case of a preset: until its first evaluation, or until the limit of CPU time."""
    return Case(f"{PRESET}/{preset}", {"preset": preset}, 0, "preset")


def find_case(name: str) -> Case:
    """The case of this name, a preset's included."""
    first, _, rest = name.partition("/")
    return preset_case(rest) if first == PRESET else CASES[name]


def chosen(names: list[str], wanted: list[str] | None) -> list[str]:
    """The names that match patterns: in full, by their beginning (`ppo`, `ppo/sde`), or with wildcards."""
    if wanted is None:
        return names
    return [name for name in names if any(fnmatchcase(name, word) or name.startswith(f"{word}/") for word in wanted)]
