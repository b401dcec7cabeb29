"""The environment that a user names: as an id, as a function that makes it, or as an environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from rl_training.experiment.references import CUSTOM, name_of
from rl_training.experiment.settings import plain
from rl_training.runtime.envs.boards import is_game
from rl_training.runtime.envs.lent import OneEnvironment, OneVector, can_be_made_again
from rl_training.runtime.envs.make import NATIVE, EnvFactory
from rl_training.types import UserError

Env = str | Callable[..., Any] | gym.Env[Any, Any] | VectorEnv[Any, Any, Any]


def parse_env(env: Env, call: str = "env={}") -> tuple[dict[str, Any], EnvFactory | None]:
    """Return the settings that name an environment, and the function that makes it if no name does.

    `call` is how the user gives it, for messages: as in `PPO({})`.
    """
    if isinstance(env, str):
        return {"env_id": env}, None
    if isinstance(env, gym.Env):
        for name in ("observation_space", "action_space"):
            if not hasattr(env, name):
                raise UserError(f"env={env!r}: has no {name}; pass an id, or a function that makes it")
        return _made_again(env) or ({"env_id": _object_name(env), "num_envs": 1}, OneEnvironment(env, call))
    if isinstance(env, VectorEnv):
        return _vector_made_again(env) or (
            {"env_id": _object_name(env), "num_envs": env.num_envs},
            OneVector(env, call),
        )
    if is_game(env):
        raise UserError(
            f"env={env!s}: pass its id, such as 'pettingzoo/tictactoe_v3', or a function that makes it: training and "
            "evaluation need several environments"
        )
    if not callable(env):
        raise UserError(f"env={env!r}: must be a Gymnasium id, a function that makes an environment, or an environment")
    return {"env_id": name_of(env)}, env


def _object_name(env: Any) -> str:
    return f"{CUSTOM}{type(env).__module__}:{type(env).__qualname__}"


def _made_again(env: gym.Env[Any, Any]) -> tuple[dict[str, Any], EnvFactory | None] | None:
    """How to make more environments like this one, if its spec says all."""
    spec = env.spec
    if spec is None or not can_be_made_again(env):
        return None
    settings = None if spec.additional_wrappers else _settings_of(spec, spec.kwargs)
    if settings is None:  # its id alone would make a different environment
        return {"env_id": f"{CUSTOM}{spec.id}"}, lambda: gym.make(spec)
    return settings, None


def _vector_made_again(env: VectorEnv[Any, Any, Any]) -> tuple[dict[str, Any], EnvFactory | None] | None:
    """The same for what `gymnasium.make_vec` has made of single environments, or of a kind that is known here."""
    spec = env.spec
    if spec is None or env.unwrapped is not env:
        return None
    given = dict(spec.kwargs)
    mode, known = given.pop("vectorization_mode", None), str(spec.vector_entry_point) in NATIVE
    vectorization = "native" if mode == "vector_entry_point" and known else mode
    special = given.keys() & {"vector_kwargs", "wrappers"} or spec.additional_wrappers
    if special or vectorization not in ("sync", "async", "native"):
        return None
    given.pop("num_envs", None)
    if vectorization == "native" and given.get("max_episode_steps") == spec.max_episode_steps:
        given.pop("max_episode_steps", None)
    settings = _settings_of(spec, given)
    return None if settings is None else (settings | {"num_envs": env.num_envs, "vectorization": vectorization}, None)


def _settings_of(spec: EnvSpec, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings from which the same environment is made by its id; None if there are none."""
    registered = gym.registry.get(spec.id)
    if registered is None or (spec.max_episode_steps is None and registered.max_episode_steps):
        return None
    try:
        arguments = {key: plain(value, key) for key, value in given.items()}
    except ValueError:  # a config cannot hold them
        return None
    own_limit = spec.max_episode_steps != registered.max_episode_steps
    limit = {"time_limit": spec.max_episode_steps} if own_limit else {}
    return {"env_id": spec.id, "env_kwargs": arguments} | limit
