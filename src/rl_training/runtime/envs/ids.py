"""Environments by name: ids of Gymnasium and PettingZoo, with their module or without, and functions of a module."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from rl_training.experiment.references import import_given, is_module_name, is_nameless, is_reference, resolve_maker
from rl_training.experiment.registry import suggest
from rl_training.runtime.envs.atari import is_atari, register_atari
from rl_training.runtime.envs.boards import KNOWN_GAMES, board_maker, game_kinds, is_board
from rl_training.runtime.envs.dmc import is_dmc, register_dmc
from rl_training.runtime.envs.grids import is_grid, register_grids
from rl_training.runtime.extras import extra_behind, missing
from rl_training.types import UserError

# The ids of the time when wrappers skipped the frames.
_OLD_ATARI = re.compile(r"(\w+?)(?:NoFrameskip|Deterministic)-v\d$")

# Whose ids only exist once a package of an extra is imported, and what does that.
_REGISTERED_BY_IMPORT: tuple[tuple[Callable[[str], bool], Callable[[str], Any]], ...] = (
    (is_atari, register_atari),
    (is_dmc, register_dmc),
    (is_grid, register_grids),
)

_MOST_NAMES = 5


def bare_id(env_id: str) -> str:
    """The id without the module that registers it: `Walk-v0` of `my_envs:Walk-v0`."""
    module, colon, name = env_id.partition(":")
    return name if colon and is_module_name(module) else env_id


def is_same_id(env_id: str, other: Any) -> bool:
    """Whether this is another id with the module that registers it, such as `my_envs:Walk-v0` of `Walk-v0`."""
    return ":" in env_id and not is_reference(env_id) and bare_id(env_id) == other


def register(env_id: str | None, packages: Iterable[str]) -> None:
    """Import the modules that register environments: those that are given, and that of an id."""
    for package in packages:
        if package not in sys.modules:
            import_given(package, asked_by=f"env_packages={package!r}")
    if env_id is None or is_reference(env_id) or is_nameless(env_id):
        return
    name = bare_id(env_id)
    if name != env_id:
        import_given(env_id.partition(":")[0], asked_by=f"env_id={env_id!r}")
    for is_of, import_extra in _REGISTERED_BY_IMPORT:
        if is_of(name):
            import_extra(name)


def look_up(env_id: str) -> Callable[..., Any] | EnvSpec:
    """What a name leads to: a function or class that makes environments, or what Gymnasium has registered.

    `module:name` is a function or class of the module if it has one of that name, else an id.
    """
    if is_nameless(env_id):
        raise UserError(
            f"env_id={env_id!r}: was given as an object, which cannot be found by name; pass it again (env=)"
        )
    if is_board(env_id):
        return board_maker(env_id)
    if ":" not in env_id:
        return _registered(env_id)
    module_name, _, name = env_id.partition(":")
    if not is_module_name(module_name):
        raise UserError(f"env_id={env_id!r}: {module_name!r} is no module; give module:Env-v0 or module:function")
    module = import_given(module_name, asked_by=f"env_id={env_id!r}")
    if is_reference(env_id) and _has(module, name):
        return resolve_maker(env_id, key="env_id", makes="an environment", kinds=_kinds())
    if name in gym.registry or _OLD_ATARI.match(name):
        return _registered(name)
    raise UserError(f"env_id={env_id!r}: {_neither(module, module_name, name)}")


def _registered(env_id: str) -> EnvSpec:
    old_name = _OLD_ATARI.match(env_id)
    try:
        spec = gym.spec(env_id)
    except gym.error.Error as error:
        near = suggest(env_id, [*gym.registry, *KNOWN_GAMES])
        words = near if near else f": {' '.join(str(error).split()).rstrip('.')}."
        if old_name is None:
            raise UserError(
                f"env_id={env_id!r}: unknown environment{words} If a module of yours registers it, name that: "
                f"env_packages=[module], or env_id=module:{env_id}"
            ) from None
    except ModuleNotFoundError as error:
        raise UserError(f"env_id={env_id!r}: {missing_extra(str(error))}") from None
    else:
        if old_name is None or not str(spec.entry_point).startswith("ale_py"):
            return spec
    raise UserError(f"env_id={env_id!r}: Atari games come preprocessed as 'ALE/{old_name[1]}-v5'")


def only_registered_here(env_id: str, spec: EnvSpec) -> bool:
    """Whether neither an installed package nor the id itself says who registers an environment."""
    if ":" in env_id or any(is_of(env_id) for is_of, _ in _REGISTERED_BY_IMPORT):
        return False
    entry = spec.entry_point or spec.vector_entry_point
    module = entry.partition(":")[0] if isinstance(entry, str) else str(getattr(entry, "__module__", ""))
    # Gymnasium imports the packages with this entry point by itself.
    plugins = {point.module.partition(".")[0] for point in entry_points(group="gymnasium.envs")}
    return module.partition(".")[0] not in {"gymnasium", "rl_training", *plugins}


def missing_extra(message: str) -> str:
    """A message about a missing package, with the extra that installs it if it is one of ours."""
    extra = extra_behind(message)
    return " ".join(message.split()) if extra is None else missing(extra, message)


def _kinds() -> tuple[type, ...]:
    """What an environment can be."""
    return (gym.Env, VectorEnv, *game_kinds())


def _has(module: Any, path: str) -> bool:
    for name in path.split("."):
        if not hasattr(module, name):
            return False
        module = getattr(module, name)
    return True


def _neither(module: Any, module_name: str, name: str) -> str:
    """That a module has neither an id nor a function of a name, and which come near."""
    root = module_name.partition(".")[0]
    ids = [id for id, spec in gym.registry.items() if str(spec.entry_point).partition(":")[0].split(".")[0] == root]
    makers = [key for key, value in vars(module).items() if _may_make(key, value, root)]
    words = f"{module_name} registers no id {name!r} and has no function of that name"
    near = [f"{module_name}:{found}" for known in (ids, makers) for found in _nearest(name, known)]
    if near:
        return f"{words}; did you mean {' or '.join(map(repr, near))}?"
    shown = [
        f"{what} {', '.join(known[:_MOST_NAMES])}" for what, known in (("ids", ids), ("functions", makers)) if known
    ]
    return f"{words}; it has the {' and the '.join(shown)}" if shown else words


def _nearest(name: str, known: list[str]) -> list[str]:
    """The nearest of some names, whatever their case."""
    folded = {one.lower(): one for one in known}
    return [folded[one] for one in difflib.get_close_matches(name.lower(), list(folded), n=1, cutoff=0.6)]


def _may_make(name: str, value: Any, package: str) -> bool:
    """Whether something in a module could make environments: a function, or a class of them, of its own package."""
    if name.startswith("_") or str(getattr(value, "__module__", "")).partition(".")[0] != package:
        return False
    return issubclass(value, _kinds()) if inspect.isclass(value) else inspect.isfunction(value)
