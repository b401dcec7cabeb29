"""Makes environments, describes their spaces, and translates actions at their boundary."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rl_training.algorithms.base import LoopConfig
from rl_training.experiment.references import is_reference, resolve_reference
from rl_training.experiment.registry import suggest
from rl_training.experiment.settings import RunConfig
from rl_training.types import Array, SpaceInfo, UserError

EnvFactory = Callable[..., Any]

# Their Box2D world outlives a reset, so a seed alone does not decide an episode: they are made anew for each.
REBUILT_PER_EPISODE = re.compile(r"(BipedalWalker|CarRacing)")
EXTRAS = {"box2d": "box2d", "mujoco": "mujoco", "matplotlib": "plot"}


class RebuiltPerEpisode(gym.Wrapper[Any, Any, Any, Any]):
    """Makes its environment anew for every episode."""

    def __init__(self, make: Callable[[], gym.Env[Any, Any]]) -> None:
        super().__init__(make())
        self._make = make

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.env.close()
        self.env = self._make()
        return self.env.reset(seed=seed, options=options)


class SavableCartPole(CartPoleVectorEnv):
    """Gymnasium's native CartPole, whose arrays and one shared generator can be saved: it takes no seed per episode."""

    def get_state(self) -> dict[str, Any]:
        return {
            "state": np.array(self.state),
            "steps": self.steps.copy(),
            "prev_done": self.prev_done.copy(),
            "rng": self.np_random.bit_generator.state,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.state, self.steps = state["state"].copy(), state["steps"].copy()
        self.prev_done = state["prev_done"].copy()
        self.np_random.bit_generator.state = state["rng"]


def reset_each(envs: VectorEnv[Any, Any, Any], seeds: Sequence[int], mask: Array | None = None) -> Array:
    """Reset environments with a seed each, or only the masked ones; gives what all of them show."""
    chosen: Any = envs
    obs: Array = chosen.reset(seed=list(seeds), options=None if mask is None else {"reset_mask": mask})[0]
    return obs


NATIVE: dict[str, Callable[..., VectorEnv[Any, Any, Any]]] = {
    "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv": SavableCartPole,
}


class EnvMaker:
    """Makes the environments of a run: for learning (`vector`) and for judging (`judged`)."""

    def __init__(self, settings: RunConfig, loop: LoopConfig, factory: EnvFactory | None = None) -> None:
        self.env_id = env_id = settings.env_id
        self.env_kwargs = dict(settings.env_kwargs)
        self.vectorization = settings.vectorization
        self.loop = loop
        if factory is None and is_reference(env_id):
            factory = resolve_reference(env_id, key="env_id")
            if not callable(factory):
                raise UserError(f"env_id={env_id!r}: must name a function or class that makes an environment")
        self.factory = factory
        # A factory that takes num_envs makes a vector environment of its own, with whichever autoreset mode it has.
        self.makes_vectors = factory is not None and "num_envs" in _parameters(factory)
        self.spec = None if factory is not None else _find_spec(env_id)

    def single(self) -> gym.Env[Any, Any]:
        """One environment, with the wrappers that the config asks for."""
        rebuilt = self.spec is not None and REBUILT_PER_EPISODE.match(self.spec.name)
        env = RebuiltPerEpisode(self._base) if rebuilt else self._base()
        if isinstance(env.observation_space, gym.spaces.Discrete):
            env = gym.wrappers.FlattenObservation(env)
        if self.loop.frame_stack > 1:
            env = gym.wrappers.FrameStackObservation(env, self.loop.frame_stack)
        return env

    def _base(self) -> gym.Env[Any, Any]:
        limit = self.loop.time_limit
        if self.factory is None:
            return gym.make(self.env_id, max_episode_steps=limit, **self.env_kwargs)
        env = self.factory(**self.env_kwargs)
        if not isinstance(env, gym.Env):
            raise UserError(f"env_id={self.env_id!r}: it made a {type(env).__name__}, not a gymnasium.Env")
        return gym.wrappers.TimeLimit(env, limit) if limit is not None else env

    def vector(self, num_envs: int) -> VectorEnv[Any, Any, Any]:
        """The environments that learning steps."""
        return self._friendly(lambda: self._vector(num_envs))

    def judged(self, num_envs: int) -> VectorEnv[Any, Any, Any]:
        """The environments of an evaluation: every episode is seeded by itself."""
        return self._friendly(lambda: self._made_vector(1) if self.makes_vectors else self._sync(num_envs))

    def _vector(self, num_envs: int) -> VectorEnv[Any, Any, Any]:
        if self.makes_vectors:
            return self._made_vector(num_envs)
        mode = self.vectorization
        native = self._native()
        if mode == "native" and native is None:
            raise UserError(f"vectorization='native': {self.env_id} has no native vector environment; use auto or sync")
        if mode in ("auto", "native") and native is not None:
            limit = self.loop.time_limit or (self.spec.max_episode_steps if self.spec else None)
            options = self.env_kwargs | ({} if limit is None else {"max_episode_steps": limit})
            return native(num_envs=num_envs, **(dict(self.spec.kwargs) if self.spec else {}) | options)
        if mode == "async":
            return AsyncVectorEnv([self.single] * num_envs, autoreset_mode=AutoresetMode.DISABLED)
        return self._sync(num_envs)

    def _made_vector(self, num_envs: int) -> VectorEnv[Any, Any, Any]:
        assert self.factory is not None
        if self.loop.time_limit is not None or self.loop.frame_stack > 1:
            raise UserError(f"env_id={self.env_id!r}: a vector environment of yours takes no time_limit or frame_stack")
        envs = self.factory(num_envs=num_envs, **self.env_kwargs)
        if not isinstance(envs, VectorEnv) or not isinstance(envs.metadata.get("autoreset_mode"), AutoresetMode):
            raise UserError(
                f"env_id={self.env_id!r}: with num_envs it must make a gymnasium.vector.VectorEnv whose metadata name "
                f"its autoreset_mode, not a {type(envs).__name__}"
            )
        return envs

    def _native(self) -> Callable[..., VectorEnv[Any, Any, Any]] | None:
        if self.spec is None or self.loop.frame_stack > 1:
            return None
        return NATIVE.get(str(self.spec.vector_entry_point))

    def _sync(self, num_envs: int) -> VectorEnv[Any, Any, Any]:
        return SyncVectorEnv([self.single] * num_envs, copy=False, autoreset_mode=AutoresetMode.DISABLED)

    def _friendly(self, make: Callable[[], VectorEnv[Any, Any, Any]]) -> VectorEnv[Any, Any, Any]:
        try:
            return make()
        except (gym.error.DependencyNotInstalled, ModuleNotFoundError) as error:
            raise UserError(f"env_id={self.env_id!r}: {_missing_extra(str(error))}") from error
        except gym.error.Error as error:
            raise UserError(f"env_id={self.env_id!r}: {' '.join(str(error).split())}") from error
        except TypeError as error:
            if self.env_kwargs and "argument" in str(error):
                raise UserError(f"env_kwargs={self.env_kwargs!r}: {error}") from error
            raise


def _parameters(factory: EnvFactory) -> Mapping[str, Any]:
    try:
        return inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some classes written in C have no signature
        return {}


def _find_spec(env_id: str) -> gym.envs.registration.EnvSpec:
    try:
        return gym.spec(env_id)
    except gym.error.Error as error:
        near = suggest(env_id, gym.registry)
        words = near if near else f": {' '.join(str(error).split())}"
        raise UserError(f"env_id={env_id!r}: unknown environment{words}") from None
    except ModuleNotFoundError as error:
        raise UserError(f"env_id={env_id!r}: {_missing_extra(str(error))}") from None


def _missing_extra(message: str) -> str:
    words = " ".join(message.split())
    for module, extra in EXTRAS.items():
        if module in words.lower():
            return f"needs an extra that is not installed: pip install 'rl-training[{extra}]' ({words})"
    return words


def describe_spaces(observation: gym.Space[Any], action: gym.Space[Any], env_id: str) -> SpaceInfo:
    """The spaces as plain data; what no algorithm here can work with is refused by name."""
    if not isinstance(observation, gym.spaces.Box):
        raise UserError(
            f"env_id={env_id!r}: observations of {type(observation).__name__} are not supported (Box, Discrete)"
        )
    dtype = "uint8" if observation.dtype == np.uint8 else "float32"
    if isinstance(action, gym.spaces.Discrete):
        size, start = int(action.n), int(action.start)
        return SpaceInfo(observation.shape, dtype, "discrete", (), size, action_start=start)
    if isinstance(action, gym.spaces.Box):
        if not (np.isfinite(action.low).all() and np.isfinite(action.high).all()):
            raise UserError(
                f"env_id={env_id!r}: actions are unbounded ({action}); policies act in [-1, 1], which is scaled to the "
                "environment's bounds, so wrap it in gymnasium.wrappers.RescaleAction or give the space bounds"
            )
        low, high = action.low.reshape(-1), action.high.reshape(-1)
        size = len(low)
        return SpaceInfo(
            observation.shape,
            dtype,
            "continuous",
            action.shape,
            size,
            action_low=tuple(map(float, low)),
            action_high=tuple(map(float, high)),
        )
    raise UserError(f"env_id={env_id!r}: actions of {type(action).__name__} are not supported (Box, Discrete)")


class ActionScaler:
    """The one place where a policy's actions become the environment's."""

    def __init__(self, info: SpaceInfo, dtype: Any) -> None:
        self.info = info
        self.dtype = dtype
        self._low = np.asarray(info.action_low, np.float64)
        self._span = np.asarray(info.action_high, np.float64) - self._low

    def __call__(self, action: Array) -> Array:
        """`[B]` indices or `[B, size]` numbers, of which those outside [-1, 1] are clipped."""
        if self.info.action_kind == "discrete":
            return action + self.info.action_start if self.info.action_start else action
        scaled = self._low + (np.clip(action, -1.0, 1.0) + 1.0) * 0.5 * self._span
        return scaled.astype(self.dtype).reshape(len(action), *self.info.action_shape)
