"""Gymnasium's rules for what `reset` and `step` return: checked at every call, and said in words if one is broken."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.types import UserError

_RETURNS = {
    "reset": ("observation", "info"),
    "step": ("observation", "reward", "terminated", "truncated", "info"),
}
# What is a number or a flag at first glance; anything else is looked at more closely.
_NUMBERS = frozenset({float, int, bool, np.float64, np.float32, np.int64, np.int32, np.bool_})
_FLAGS = frozenset({bool, np.bool_})
# Packages of wrappers that pass on what an environment returned. If they fail, the environment is at fault.
_PASSING_ON = ("gymnasium", "rl_training", "numpy")


class BrokenRule(UserError):
    """An environment returned something that Gymnasium does not allow."""


class Rules:
    """Calls `reset` and `step` of environments with these spaces, and raises where they return something else."""

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        self._spaces = observation_space, action_space
        self._known: dict[int, tuple[Any, Any]] = {}  # the spaces of each environment, which are often other objects
        self._shape = observation_space.shape if isinstance(observation_space, gym.spaces.Box) else None
        self._dtypes = {observation_space.dtype}  # of observations so far, all of which can be converted

    def step(self, env: gym.Env[Any, Any], action: Any, index: int, number: int) -> Any:
        """Step environment `index`, whose step `number` it is."""
        try:
            came: Any = env.step(action)
        except Exception as error:
            raise _at(index, f"step {number}", _misread(error, env, "step", lambda to: to.step(action))) from error
        if type(came) is tuple and len(came) == 5:
            obs, reward, terminated, truncated, info = came
            if (
                type(obs) is np.ndarray
                and obs.shape == self._shape
                and obs.dtype in self._dtypes
                and type(reward) in _NUMBERS
                and type(terminated) in _FLAGS
                and type(truncated) in _FLAGS
                and type(info) is dict
            ):
                return came
        for words in step_complaints(self._spaces[0], came):
            raise _at(index, f"step {number}", words)
        self._dtypes.add(np.asarray(came[0]).dtype)
        return came

    def reset(self, env: gym.Env[Any, Any], index: int, number: int, **arguments: Any) -> Any:
        """Reset environment `index` after `number` steps."""
        when = f"reset after {number} steps"
        try:
            came: Any = env.reset(**arguments)
        except Exception as error:
            raise _at(index, when, _misread(error, env, "reset", lambda to: to.reset(**arguments))) from error
        for words in itertools.chain(reset_complaints(self._spaces[0], came), self._changed_spaces(env, index)):
            raise _at(index, when, words)
        return came

    def _changed_spaces(self, env: gym.Env[Any, Any], index: int) -> Iterator[str]:
        now = env.observation_space, env.action_space
        known = self._known.get(index, (None, None))
        if now[0] is not known[0] or now[1] is not known[1]:  # comparing spaces takes longer than an episode may
            yield from space_complaints(self._spaces, now)
            self._known[index] = now


def _at(index: int, when: str, words: str) -> BrokenRule:
    return BrokenRule(f"environment {index}, {when}: {words}")


def space_complaints(due: tuple[Any, Any], came: tuple[Any, Any]) -> Iterator[str]:
    """How the spaces of an environment differ from those of the first environment when it was made."""
    for kind, first, other in zip(("observation", "action"), due, came, strict=True):
        if first != other:
            yield f"its {kind} space is {other}; that of all environments must be and stay {first}"


def reset_complaints(space: gym.Space[Any], came: Any) -> Iterator[str]:
    """What is wrong with what `reset` returned."""
    yield from form_complaints("reset", came)
    yield from observation_complaints(space, came[0])


def step_complaints(space: gym.Space[Any], came: Any) -> Iterator[str]:
    """What is wrong with what `step` returned."""
    yield from form_complaints("step", came)
    obs, reward, terminated, truncated, _ = came
    yield from observation_complaints(space, obs)
    yield from reward_complaints(reward)
    yield from flag_complaints(terminated, truncated)


def form_complaints(call: str, came: Any) -> Iterator[str]:
    """How the values that `reset` or `step` returned are too few or too many, or have no info at their end.

    The first complaint is the last one that makes sense: nothing else can be said of such values.
    """
    due = _RETURNS[call]
    if not isinstance(came, (tuple, list)) or len(came) != len(due):
        few = f"{len(came)} values" if isinstance(came, (tuple, list)) else _described(came)
        yield f"{call} returned {few}; it must return ({', '.join(due)})"
    if not isinstance(came[-1], dict):
        yield f"the info of {call} is {_described(came[-1])}; it must be a dict"


def vector_complaints(space: gym.Space[Any], num_envs: int, came: Any) -> Iterator[str]:
    """What is wrong with what `step` of a vector environment returned."""
    yield from form_complaints("step", came)
    obs, reward, *flags, _ = came
    rows = gym.spaces.Box(0, 1, (num_envs, *(space.shape or ())), space.dtype)  # type: ignore[arg-type]
    yield from observation_complaints(rows, obs, "of all environments")
    for name, value in zip(("reward", "terminated", "truncated"), (reward, *flags), strict=True):
        array, (kinds, due) = _as_array(value), ("biuf", "numbers") if name == "reward" else ("b", "booleans")
        if array is None or array.shape != (num_envs,) or array.dtype.kind not in kinds:
            yield f"{name} is {_described(value)}; it must be an array of {num_envs} {due}"


def observation_complaints(space: gym.Space[Any], value: Any, name: str = "") -> Iterator[str]:
    """How an observation cannot be one of its space: by its kind, its shape or its dtype, whatever the bounds are."""
    where = f"observation {name!r}" if name else "an observation"
    if isinstance(space, gym.spaces.Dict):
        if not isinstance(value, Mapping) or value.keys() != space.spaces.keys():
            yield f"{where} does not have the entries {', '.join(space.spaces)}"
            return
        for key, part in space.spaces.items():
            yield from observation_complaints(part, value[key], f"{name}.{key}" if name else key)
    elif isinstance(space, gym.spaces.Tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
            yield f"{where} is {_described(value)}; it must be a tuple of {len(space.spaces)}"
            return
        for index, part in enumerate(space.spaces):
            yield from observation_complaints(part, value[index], f"{name}.{index}" if name else str(index))
    elif isinstance(space, (gym.spaces.Box, gym.spaces.MultiBinary)):
        array = _as_array(value)
        if array is None:
            yield f"{where} is a {type(value).__name__}; it must be an array of shape {space.shape}"
        elif not np.can_cast(array.dtype, space.dtype, "same_kind"):
            yield f"{where} has dtype {array.dtype}, its space {space.dtype}"
        elif array.shape != space.shape:
            yield f"{where} has the shape {array.shape}, its space {space.shape}"
    elif not space.contains(value):
        yield f"{where} is not in its space {space}"


def reward_complaints(reward: Any) -> Iterator[str]:
    """Why a reward is no number."""
    if type(reward) in _NUMBERS:
        return
    array = _as_array(reward)
    if array is None or array.shape != () or array.dtype.kind not in "biuf":
        yield f"the reward is {_described(reward)}; it must be a number"


def flag_complaints(terminated: Any, truncated: Any) -> Iterator[str]:
    """Why the end of an episode is not said by two booleans."""
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if type(flag) not in _FLAGS:
            array = _as_array(flag)
            if array is None or array.shape != () or array.dtype != np.bool_:
                yield f"{name} is {_described(flag)}; it must be a bool"


def _as_array(value: Any) -> Any:
    """A value as an array, or None if it is not made of numbers."""
    try:
        array = np.asarray(value)
    except Exception:
        return None
    return array if array.dtype.kind in "biufc" else None


def _described(value: Any) -> str:
    shape = f" of shape {value.shape}" if isinstance(value, np.ndarray) else ""
    return f"a {type(value).__name__}{shape}"


def called(env: Any, name: str, call: Callable[[Any], Any]) -> Any:
    """What a call of `reset` or `step` returns; raises where an environment inside broke a rule."""
    try:
        came = call(env)
    except Exception as error:
        raise BrokenRule(_misread(error, env, name, call)) from error
    for words in form_complaints(name, came):
        raise BrokenRule(words)
    return came


def _misread(error: Exception, env: Any, name: str, call: Callable[[Any], Any]) -> str:
    """What an environment returned that a wrapper around it could not pass on; raises the error if that is not so.

    The environment is called once more to see what it returns, since the run is at its end.
    """
    if isinstance(error, BrokenRule):
        return str(error)
    wrapper = None if isinstance(error, UserError) else _failed_wrapper(error, env)
    if wrapper is None:
        raise error
    inner, complaints = wrapper.env, step_complaints if name == "step" else reset_complaints
    try:
        found = next(complaints(inner.observation_space, call(inner)), None)
    except Exception:
        found = None
    words = " ".join(f"{type(error).__name__}: {error}".split())
    return found or f"{type(wrapper).__name__} cannot pass on what {type(inner).__name__}.{name} returned ({words})"


def _failed_wrapper(error: Exception, env: Any) -> Any:
    """The wrapper in whose own code an error was raised; None if it was raised in code of the user."""
    chain = [env]
    while isinstance(chain[-1], gym.Wrapper):
        chain.append(chain[-1].env)
    trace, failed, package = error.__traceback__, None, ""
    while trace is not None:
        frame = trace.tb_frame
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        failed = next((link for link in chain if link is frame.f_locals.get("self")), failed)
        trace = trace.tb_next
    ours = type(failed).__module__.partition(".")[0] in _PASSING_ON
    return failed if ours and package in _PASSING_ON and isinstance(failed, gym.Wrapper) else None
