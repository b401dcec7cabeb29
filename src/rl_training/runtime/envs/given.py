"""The environment that a user names: as an id, as a function that makes it, or as an environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym

from rl_training.experiment.references import name_of
from rl_training.runtime.envs.boards import is_game
from rl_training.runtime.envs.make import EnvFactory
from rl_training.types import UserError

Env = str | Callable[..., Any] | gym.Env[Any, Any]


def parse_env(env: Env) -> tuple[dict[str, Any], EnvFactory | None]:
    """Return the settings that name an environment, and the function that makes it if no name does."""
    if isinstance(env, str):
        return {"env_id": env}, None
    if isinstance(env, gym.Env):
        spec = env.spec
        if spec is None:
            raise UserError(
                f"env={env!r}: pass an id, or a function that makes it: training and evaluation need several "
                "environments"
            )
        registered = gym.registry.get(spec.id)
        lost_limit = spec.max_episode_steps is None and registered is not None and registered.max_episode_steps
        if (
            registered is None or spec.additional_wrappers or lost_limit
        ):  # its id alone would make a different environment
            return {"env_id": f"custom {spec.id}"}, lambda: gym.make(spec)
        own_limit = spec.max_episode_steps != registered.max_episode_steps
        limit = {"time_limit": spec.max_episode_steps} if own_limit else {}
        return {"env_id": spec.id, "env_kwargs": dict(spec.kwargs)} | limit, None
    if is_game(env):
        raise UserError(
            f"env={env!s}: pass its id, such as 'pettingzoo/tictactoe_v3', or a function that makes it: training and "
            "evaluation need several environments"
        )
    if not callable(env):
        raise UserError(f"env={env!r}: must be a Gymnasium id, a function that makes an environment, or an environment")
    return {"env_id": name_of(env)}, env
