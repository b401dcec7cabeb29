"""Hyperparameters of RL Zoo as a config of ours: its YAML is read as data, and text that looks like Python as text."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rl_training.data.claims import check_plain_file
from rl_training.experiment.config import load_config
from rl_training.experiment.registry import suggest
from rl_training.runtime.sb3.files import Model
from rl_training.runtime.sb3.settings import KINDS, Kind, Settings, activation_of, settings_of
from rl_training.types import UserError

_LONGEST = 1 << 20  # bytes; the files of the zoo have some thousands
_ATARI = re.compile(r"(\w+)NoFrameskip-v4|ALE/(\w+)-v5")
_FLAWS = (OSError, ValueError, RecursionError, yaml.YAMLError)

_REPLAY = {"buffer_size": 1_000_000, "learning_starts": 100, "batch_size": 256, "tau": 0.005, "gamma": 0.99}
_PHASES = {"train_freq": 1, "gradient_steps": 1, "n_steps": 1}
_NOISY = {"learning_rate": 1e-3, **_REPLAY, **_PHASES, "action_noise": None}
_SOFT = {"learning_rate": 3e-4, **_REPLAY, **_PHASES, "ent_coef": "auto", "target_update_interval": 1}
_ADVANTAGES = {"gamma": 0.99, "ent_coef": 0.0, "vf_coef": 0.5, "max_grad_norm": 0.5}
# The arguments of the classes there, and their defaults, which an entry of the zoo leaves out.
DEFAULTS: dict[str, dict[str, Any]] = {
    "ppo": {
        **{"learning_rate": 3e-4, "n_steps": 2048, "batch_size": 64, "n_epochs": 10, "gae_lambda": 0.95},
        **{"clip_range": 0.2, "clip_range_vf": None, "normalize_advantage": True, "target_kl": None, **_ADVANTAGES},
    },
    "a2c": {"learning_rate": 7e-4, "n_steps": 5, "gae_lambda": 1.0, "normalize_advantage": False, **_ADVANTAGES},
    "dqn": {
        **{**_REPLAY, **_PHASES, "learning_rate": 1e-4, "batch_size": 32, "tau": 1.0, "train_freq": 4},
        **{"target_update_interval": 10_000, "max_grad_norm": 10},
        **{"exploration_fraction": 0.1, "exploration_initial_eps": 1.0, "exploration_final_eps": 0.05},
    },
    "ddpg": _NOISY,
    "td3": {**_NOISY, "policy_delay": 2, "target_policy_noise": 0.2, "target_noise_clip": 0.5},
    "sac": _SOFT,
    "tqc": {**_SOFT, "top_quantiles_to_drop_per_net": 2},
}
# The hidden layers there, if net_arch does not say otherwise: behind convolutions, and for vectors.
_HIDDEN = {
    "ppo": ([], [64, 64]),
    "a2c": ([], [64, 64]),
    "dqn": ([], [64, 64]),
    "ddpg": ([256, 256], [400, 300]),
    "td3": ([256, 256], [400, 300]),
}
_SAME = ("frame_stack", "env_kwargs", "seed")
_EXPRESSIONS = ("normalize", "replay_buffer_kwargs")
_POLICIES = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy")


class Converted(NamedTuple):
    """A config, and one sentence for each thing that could not be converted."""

    settings: dict[str, Any]
    missing: list[str]


def convert(file: str | Path, env: str, algo: str | None = None) -> Converted:
    """The entry of an environment in a file of the zoo; the algorithm is the file's name unless it is given."""
    path = Path(file)
    name = (algo or path.stem).lower()
    if name not in KINDS:
        raise UserError(f"{str(path)!r}: its algorithm {name!r} is none of {', '.join(KINDS)}; say it with --algo")
    entry, env_settings = _entry(path, env)
    kind, settings, missing = KINDS[name], Settings({}, []), []
    data = dict(DEFAULTS[name])
    for key, value in entry.items():
        value = _python(value, path, key) if key in _EXPRESSIONS else _number(value)
        if key in data or key in ("use_sde", "sde_sample_freq"):
            data[key] = _schedule(value) if isinstance(value, str) and value.startswith("lin_") else value
        elif key in _HANDLERS:
            _HANDLERS[key](value, settings, data, kind)
        elif key in _SAME:
            settings.values[key] = _python(value, path, key) if isinstance(value, str) else value
        elif key not in ("policy", "policy_kwargs"):
            missing.append(f"{key}: {value!r:.80}")
    kwargs = {"optimizer_class": kind.optimizer, **_policy_kwargs(entry, path)}
    model = Model(path, {**data, "policy_kwargs": kwargs}, {}, {})
    found = settings_of(model, kind)
    values = {"algo": name, "env_id": env, **found.values, **_network(model, kind, str(entry.get("policy")), missing)}
    values |= settings.values | env_settings
    return Converted(_checked(values, path, env), [*settings.missing, *missing, *found.missing])


def _entry(path: Path, env: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The entry of an environment, and what is set for it besides: games have one entry for all, and other ids here."""
    place = repr(str(path))
    try:
        check_plain_file(path)
        if path.stat().st_size > _LONGEST:
            raise ValueError(f"it has more than {_LONGEST} bytes")
        content = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{place}: there is no such file") from None
    except _FLAWS as error:
        raise UserError(f"{place}: cannot be read as YAML: {' '.join(str(error).split()):.200}") from None
    if not isinstance(content, dict):
        raise UserError(f"{place}: must hold an entry for each environment, as the files of RL Zoo do")
    game = _ATARI.fullmatch(env)
    found = content.get(env, content.get("atari") if game else None)
    if not isinstance(found, dict):
        known = [str(key) for key in content]
        raise UserError(f"{place}: has no entry for {env!r}{suggest(env, known)}")
    if game is None:
        return found, {}
    sure = {"repeat_action_probability": 0.0, "terminal_on_life_loss": True}
    return found, {"env_id": f"ALE/{game[1] or game[2]}-v5", "env_kwargs": sure, "reward_clip": 1}


def _checked(values: dict[str, Any], path: Path, env: str) -> dict[str, Any]:
    """The settings that are not our defaults anyway, if they make a config."""
    kept = ("algo", "env_id")
    try:
        load_config(values)
        ours = load_config({key: values[key] for key in kept}).flat()
    except UserError as error:
        raise UserError(f"{str(path)!r}: {env}: {error}") from None
    own = {key for key, value in values.items() if key in kept or ours.get(key, ...) != value}
    own |= {key.removesuffix("_schedule") for key in own} & values.keys()  # a schedule keeps its number beside it
    return {key: value for key, value in values.items() if key in own}


def _number(value: Any) -> Any:
    """A number that YAML has taken for text, such as 1e-3."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _schedule(value: str) -> Any:
    """`lin_0.1` falls from 0.1 to 0 over the run; as the settings of a model show such a schedule."""
    start = _number(value.removeprefix("lin_"))
    if not isinstance(start, float):
        return value
    return {"value_schedule": f"LinearSchedule(start={start}, end=0.0, end_fraction=1.0)"}


def _python(text: Any, path: Path, key: str) -> Any:
    """The data that a Python expression such as `dict(net_arch=[64])` describes. It is parsed, never evaluated."""
    if not isinstance(text, str):
        return text
    try:
        return _data_of(ast.parse(text.strip(), mode="eval").body)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise UserError(f"{str(path)!r}: {key}={text!r:.80}: is no plain data") from None


def _data_of(node: ast.expr) -> Any:
    """Data out of a syntax tree; a class of torch is its name."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.List | ast.Tuple):
        return [_data_of(item) for item in node.elts]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _data_of(node.operand)
        if isinstance(number, int | float):
            return -number
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        return {str(key.value): _data_of(item) for key, item in zip(node.keys, node.values, strict=True)}  # type: ignore[union-attr]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args:
        return {str(word.arg): _data_of(word.value) for word in node.keywords}
    if isinstance(node, ast.Attribute | ast.Name):
        return f"<class 'torch.nn.modules.activation.{ast.unparse(node).rpartition('.')[2]}'>"
    raise ValueError("no plain data")


def _policy_kwargs(entry: Mapping[str, Any], path: Path) -> dict[str, Any]:
    kwargs = _python(entry.get("policy_kwargs") or {}, path, "policy_kwargs")
    if not isinstance(kwargs, dict):
        raise UserError(f"{str(path)!r}: policy_kwargs={kwargs!r:.80}: must be a dictionary")
    return kwargs


def _network(model: Model, kind: Kind, policy: str, missing: list[str]) -> dict[str, Any]:
    """The sizes and the activation of the networks."""
    kwargs: dict[str, Any] = model.data["policy_kwargs"]
    if policy not in _POLICIES:
        missing.append(f"policy: {policy!r:.80}; MLPs are used, behind convolutions for images")
    images, vectors = _HIDDEN.get(kind.algo, ([256, 256], [256, 256]))
    arch = kwargs.get("net_arch", vectors if policy == "MlpPolicy" else images)
    if isinstance(arch, list) and len(arch) == 1 and isinstance(arch[0], dict):  # as it was before version 1.8
        arch = arch[0]
    if isinstance(arch, dict):
        own, critic = arch.get("pi"), arch.get("vf", arch.get("qf"))
        arch = own if own == critic else {"policy": own, "value": critic}
    network = {"hidden_sizes": arch, "activation": activation_of(model, kind)}
    network |= {key: kwargs[key] for key in ("ortho_init", "log_std_init", "n_critics", "n_quantiles") if key in kwargs}
    if "log_std_init" in kwargs:
        missing.append("log_std_init: taken over in units of [-1, 1], where it is in the environment's units there")
    if model.data.get("use_sde") and kind.on_policy:
        network["use_sde"] = True
    elif model.data.get("use_sde"):
        missing.append("use_sde: only ppo and a2c have it here")
    return network


def _timesteps(value: Any, settings: Settings, data: dict[str, Any], kind: Kind) -> None:
    settings.values["total_timesteps"] = int(value) if isinstance(value, int | float) else value


def _envs(value: Any, settings: Settings, data: dict[str, Any], kind: Kind) -> None:
    data["n_envs"] = value


def _normalize(value: Any, settings: Settings, data: dict[str, Any], kind: Kind) -> None:
    """`true`, or the arguments of VecNormalize."""
    given = {} if value is True else value
    if not isinstance(given, dict):
        return
    if given.get("norm_obs", True):
        settings.values["normalize_obs"] = True
        settings.values["obs_clip"] = given.get("clip_obs", 10.0)
    if given.get("norm_reward", True) and kind.on_policy:
        settings.values["normalize_reward"] = True
        settings.values["reward_scale_clip"] = given.get("clip_reward", 10.0)
    elif given.get("norm_reward", True):
        settings.missing.append(f"normalize: {kind.algo} learns from rewards as they are here")


def _wrapper(value: Any, settings: Settings, data: dict[str, Any], kind: Kind) -> None:
    """The wrapper of Atari games is built in; any other one belongs into a function of the user's own."""
    for wrapper in value if isinstance(value, list) else [value]:
        if not str(wrapper).endswith("AtariWrapper"):
            settings.missing.append(
                f"env_wrapper: {wrapper!r:.80}; wrap the environment in a function of yours, env_id: module:function"
            )


def _noise(value: Any, settings: Settings, data: dict[str, Any], kind: Kind) -> None:
    if value != "normal":
        settings.missing.append(f"noise_type: {value!r:.80}; noise is normal here")


def _noise_std(value: Any, settings: Settings, data: dict[str, Any], kind: Kind) -> None:
    data["action_noise"] = {":type:": "NormalActionNoise", "_sigma": f"[{value}]"}
    if "action_noise" not in DEFAULTS[kind.algo]:
        settings.missing.append(f"noise_std: {kind.algo} explores by its own policy")


def _optimizer(value: Any, settings: Settings, data: dict[str, Any], kind: Kind) -> None:
    if value is not True:
        settings.missing.append(f"use_rms_prop: {kind.algo} has {kind.optimizer} here")


def _rms(value: Any, settings: Settings, data: dict[str, Any], kind: Kind) -> None:
    settings.values["rms_eps"] = value


def _replay_class(value: Any, settings: Settings, data: dict[str, Any], kind: Kind) -> None:
    """The replay buffer is ours; hindsight is a setting of it."""
    if str(value).endswith("HerReplayBuffer"):
        settings.values.setdefault("her", {"strategy": "future", "n_sampled_goal": 4})
    else:
        settings.missing.append(f"replay_buffer_class: {value!r:.80}")


def _replay_kwargs(value: Any, settings: Settings, data: dict[str, Any], kind: Kind) -> None:
    given = dict(value) if isinstance(value, dict) else {}
    ours = {"goal_selection_strategy": "strategy", "n_sampled_goal": "n_sampled_goal"}
    her = {name: given.pop(theirs) for theirs, name in ours.items() if theirs in given}
    if her:
        settings.values["her"] = {"strategy": "future", "n_sampled_goal": 4} | her
    # Both are about how transitions were kept in earlier versions.
    rest = {name: item for name, item in given.items() if name not in ("online_sampling", "max_episode_length")}
    if rest:
        settings.missing.append(f"replay_buffer_kwargs: {rest!r:.80}")


_HANDLERS: dict[str, Callable[[Any, Settings, dict[str, Any], Kind], None]] = {
    "n_timesteps": _timesteps,
    "n_envs": _envs,
    "normalize": _normalize,
    "env_wrapper": _wrapper,
    "noise_type": _noise,
    "noise_std": _noise_std,
    "use_rms_prop": _optimizer,
    "rms_prop_eps": _rms,
    "replay_buffer_class": _replay_class,
    "replay_buffer_kwargs": _replay_kwargs,
}
