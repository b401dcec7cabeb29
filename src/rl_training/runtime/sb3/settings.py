"""From the settings in a model of Stable-Baselines3 to ours; what is no plain value there is named, not decoded."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rl_training.algorithms.layers import ACTIVATION_NAMES, proper_activation
from rl_training.runtime.sb3.files import Model
from rl_training.types import UserError

_NUMBER = r"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?"
_CONSTANT = re.compile(rf"ConstantSchedule\(val=({_NUMBER})\)")
_LINEAR = re.compile(rf"LinearSchedule\(start=({_NUMBER}), end=({_NUMBER}), end_fraction=({_NUMBER})\)")

# What policy_kwargs may have that the weights show, or that is over once a network is initialised.
_SHOWN = {
    *("activation_fn", "net_arch", "n_critics", "n_quantiles", "normalize_images", "use_sde"),
    *("ortho_init", "log_std_init", "optimizer_class", "optimizer_kwargs"),
    *("features_extractor_class", "features_extractor_kwargs", "share_features_extractor"),
}


class Settings(NamedTuple):
    """Settings of ours, and one sentence for each thing that could not be taken over."""

    values: dict[str, Any]
    missing: list[str]


@dataclass(frozen=True)
class Kind:
    """An algorithm there: the settings of the same name and meaning, and what finds the others.

    `constants` are those of its optimiser, by the names there and here.
    """

    algo: str
    same: tuple[str, ...]
    further: tuple[Callable[[Settings, Model, Kind], None], ...]
    activation: str = "relu"
    optimizer: str = "Adam"
    constants: Mapping[str, str] = field(default_factory=dict)
    train_freq: int = 1
    on_policy: bool = False


def kind_of(model: Model) -> Kind:
    """The algorithm that a model was trained by, found by a setting that only it has."""
    data = model.data
    mark = next((mark for mark in _MARKS if mark in data), None)
    algo, other = None if mark is None else _MARKS[mark], _OTHERS.get(_policy_module(model))
    if algo is None or other is not None:
        raise UserError(
            f"{str(model.path)!r}: is {f'a model of {other}' if other else 'not a model that is read'}; those of PPO, "
            "A2C, DQN, SAC, TD3, DDPG and TQC are"
        )
    # DDPG is a TD3 there, without delay and without noise on its targets.
    if mark == "target_policy_noise" and data.get("policy_delay") == 1 and data.get("target_noise_clip") == 0:
        algo = "ddpg"
    return KINDS[algo]


def _policy_module(model: Model) -> str:
    """The module that the class of the policy is in, which the file shows as text."""
    shown = model.data.get("policy_class")
    return str(shown.get("__module__", "")) if isinstance(shown, dict) else ""


def activation_of(model: Model, kind: Kind) -> str:
    """The activation of the hidden layers, which the text of policy_kwargs names if it is not the default there."""
    named = _kwargs(model).get("activation_fn")
    if named is None:
        return kind.activation
    found = re.fullmatch(r"<class 'torch\.nn\.modules\.activation\.(\w+)'>", str(named))
    name = None if found is None else proper_activation(found[1])
    if name not in ACTIVATION_NAMES.values():
        raise UserError(
            f"{str(model.path)!r}: its activation_fn is {str(named)!r:.80}; ours are "
            f"{', '.join(ACTIVATION_NAMES.values())}: give the nearest as activation="
        )
    return str(name)


def scales_images(model: Model) -> bool:
    """Whether the policy divides the numbers of an image by 255 itself."""
    return _kwargs(model).get("normalize_images") is not False


def settings_of(model: Model, kind: Kind) -> Settings:
    """The settings that a file has in plain text."""
    data, found = model.data, Settings({}, [])
    _refuse_other_outputs(model)
    for name in kind.same:
        _take(found, data, name)
    _take(found, data, "n_envs", "num_envs")
    if data.get("seed") is not None:
        _take(found, data, "seed")
    _scheduled(found, data, "learning_rate", "learning_rate", shown="lr_schedule")
    for step in kind.further:
        step(found, model, kind)
    if _policy_module(model) == _MASKABLE:
        found.missing.append("action_masks() of the environment: masks are info['action_mask'] of reset and step here")
    if _kwargs(model).get("share_features_extractor") is True and not kind.on_policy:
        found.missing.append("share_features_extractor: actor and critics have an encoder each; see share_encoder")
    for name in sorted(_kwargs(model).keys() - _SHOWN - {":type:"}):
        found.missing.append(f"policy_kwargs[{name!r:.40}]")
    return found


def _kwargs(model: Model) -> dict[str, Any]:
    kwargs = model.data.get("policy_kwargs")
    return kwargs if isinstance(kwargs, dict) else {}


def _refuse_other_outputs(model: Model) -> None:
    for name in ("squash_output", "use_expln"):
        if _kwargs(model).get(name) not in (None, False):
            raise UserError(f"{str(model.path)!r}: has policy_kwargs[{name!r}], which our policies do not have")


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _take(found: Settings, data: dict[str, Any], theirs: str, ours: str | None = None) -> None:
    """Take a plain value, if the file has one."""
    if theirs not in data:
        return
    if _plain(data[theirs]):
        found.values[ours or theirs] = data[theirs]
    else:
        _not_plain(found, theirs, ours or theirs)


def _not_plain(found: Settings, theirs: str, ours: str) -> None:
    found.missing.append(f"{theirs}: an object in the file, which is not read; give {ours}= if it is not our default")


def _scheduled(found: Settings, data: dict[str, Any], theirs: str, ours: str, shown: str = "") -> None:
    """Take a number or a schedule, where the file shows it as text."""
    value = data.get(theirs)
    if _plain(value):
        if value is not None:
            found.values[ours] = value
        return
    shows = data.get(shown if shown in data else theirs)
    text = str(shows.get("value_schedule")) if isinstance(shows, dict) else ""
    constant, linear = _CONSTANT.fullmatch(text), _LINEAR.fullmatch(text)
    if constant:
        found.values[ours] = float(constant[1])
    elif linear:
        start, end, fraction = map(float, linear.groups())
        found.values[f"{ours}_schedule"] = {"type": "linear", "start": start, "end": end, "fraction": fraction}
    else:
        _not_plain(found, theirs, ours)


def _exploration(found: Settings, model: Model, kind: Kind) -> None:
    """State-dependent exploration, which the weights show; only its frequency is a setting."""
    freq = model.data.get("sde_sample_freq")
    if model.data.get("use_sde") is True:
        found.values["sde_sample_freq"] = freq if type(freq) is int and freq > 0 else None


def _clipping(found: Settings, model: Model, kind: Kind) -> None:
    _scheduled(found, model.data, "clip_range", "clip_coef")
    _scheduled(found, model.data, "clip_range_vf", "clip_range_vf")


def _optimizer(found: Settings, model: Model, kind: Kind) -> None:
    """The constants of the optimiser, if it is the one that the algorithm has here."""
    kwargs = _kwargs(model)
    used = str(kwargs.get("optimizer_class", "Adam")).rstrip("'>").rpartition(".")[2]
    if used != kind.optimizer:
        found.missing.append(f"the optimiser {used}: that of {kind.algo} is {kind.optimizer} here")
        return
    given = kwargs.get("optimizer_kwargs")
    for theirs, ours in kind.constants.items():
        _take(found, given if isinstance(given, dict) else {}, theirs, ours)


def _updates(found: Settings, model: Model, kind: Kind) -> None:
    """How often it learns. In a model `train_freq` is an object: only what its default would be is known."""
    data = model.data
    known = type(data.get("train_freq")) is int and data["train_freq"] > 0
    freq = data["train_freq"] if known else kind.train_freq
    envs, per_phase = data.get("n_envs"), data.get("gradient_steps")
    envs = envs if type(envs) is int and envs > 0 else 1
    found.values["train_every"] = freq * envs
    if type(per_phase) is int and per_phase > 0:
        found.values["updates_per_step"] = per_phase / (freq * envs)
    elif per_phase == -1:
        found.values["updates_per_step"] = 1.0
    if not known:
        found.missing.append(
            f"train_freq: an object in the file, which is not read; taken to be {freq}, the default there: "
            "give train_every= and updates_per_step= if it was not"
        )
    _take(found, data, "n_steps", "n_step")


def _q_learning(found: Settings, model: Model, kind: Kind) -> None:
    data = model.data
    found.values["double_q"] = False
    interval = data.get("target_update_interval")
    if type(interval) is int and interval > 0:  # there in steps, here in updates
        found.values["target_update_interval"] = max(1, round(interval * found.values.get("updates_per_step", 0.25)))
    start, end, fraction = (data.get(f"exploration_{name}") for name in ("initial_eps", "final_eps", "fraction"))
    if all(isinstance(value, int | float) for value in (start, end, fraction)):
        found.values["epsilon"] = end
        found.values["epsilon_schedule"] = {"type": "linear", "start": start, "end": end, "fraction": fraction}


def _noise(found: Settings, model: Model, kind: Kind) -> None:
    """The deviation of Gaussian noise, which the file shows as text if there is some."""
    noise = model.data.get("action_noise")
    if noise is None:
        found.values["noise_std"] = 0.0
        return
    shown = noise if isinstance(noise, dict) else {}
    numbers = set(re.findall(_NUMBER, str(shown.get("_sigma", ""))))
    if "NormalActionNoise" in str(shown.get(":type:")) and len(numbers) == 1:
        found.values["noise_std"] = float(numbers.pop())
    else:
        _not_plain(found, "action_noise", "noise_std")


def _soft(found: Settings, model: Model, kind: Kind) -> None:
    _take(found, model.data, "top_quantiles_to_drop_per_net", "top_quantiles_to_drop")
    if model.data.get("target_update_interval") not in (None, 1):
        found.missing.append("target_update_interval: target networks follow with every update here")


_ADVANTAGES = ("gamma", "gae_lambda", "ent_coef", "vf_coef", "max_grad_norm", "n_steps", "normalize_advantage")
_REPLAY = ("gamma", "tau", "batch_size", "buffer_size", "learning_starts")
_ENTROPY = (*_REPLAY, "ent_coef", "target_entropy")
KINDS = {
    kind.algo: kind
    for kind in (
        Kind(
            "ppo",
            (*_ADVANTAGES, "batch_size", "n_epochs", "target_kl"),
            (_clipping, _exploration, _optimizer),
            activation="tanh",
            constants={"eps": "adam_eps"},
            on_policy=True,
        ),
        Kind(
            "a2c",
            _ADVANTAGES,
            (_exploration, _optimizer),
            activation="tanh",
            optimizer="RMSprop",
            constants={"eps": "rms_eps", "alpha": "rms_alpha"},
            on_policy=True,
        ),
        Kind("dqn", (*_REPLAY, "max_grad_norm"), (_updates, _q_learning), train_freq=4),
        Kind("ddpg", _REPLAY, (_updates, _noise)),
        Kind("td3", (*_REPLAY, "policy_delay", "target_policy_noise", "target_noise_clip"), (_updates, _noise)),
        Kind("sac", _ENTROPY, (_updates, _soft)),
        Kind("tqc", _ENTROPY, (_updates, _soft)),
    )
}
# The algorithms by a setting that only they have; those without a name here are not read.
_MARKS = {
    "cg_max_steps": None,  # TRPO
    "top_quantiles_to_drop_per_net": "tqc",
    "target_policy_noise": "td3",
    "target_entropy": "sac",
    "exploration_fraction": "dqn",
    "clip_range": "ppo",
    "gae_lambda": "a2c",
}
# The module of a policy, where a class that is not read has the settings of one that is.
_OTHERS = {
    "sb3_contrib.qrdqn.policies": "QRDQN",
    "sb3_contrib.crossq.policies": "CrossQ",
    "sb3_contrib.common.recurrent.policies": "RecurrentPPO",
    "sb3_contrib.ars.policies": "ARS",
}
_MASKABLE = "sb3_contrib.common.maskable.policies"
