"""Environments that a user has made and gives as they are: there is one of each, and it stays the user's."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from rl_training.experiment.references import reference_to
from rl_training.types import UserError


class Lent(gym.Wrapper[Any, Any, Any, Any]):
    """Closing it gives the environment back, and leaves it open."""

    def __init__(self, env: gym.Env[Any, Any], give_back: Callable[[], None]) -> None:
        super().__init__(env)
        self._give_back = give_back

    def close(self) -> None:
        self._give_back()


class LentVector(VectorWrapper):
    """The same for a vector environment."""

    def __init__(self, env: VectorEnv[Any, Any, Any], give_back: Callable[[], None]) -> None:
        super().__init__(env)
        self._give_back = give_back

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.env, name)  # such as get_state

    def close(self, **_: Any) -> None:
        self._give_back()


class Lender(ABC):
    """Lends an environment to one at a time: to training, as long as an agent is open, or to an evaluation.

    `call` is how the user gives it, with a place for the environment, as in `PPO({})`.
    """

    def __init__(self, env: Any, call: str) -> None:
        self.env = env
        self.is_out = False
        self._call = call

    @abstractmethod
    def __call__(self, *_: Any, **__: Any) -> Any:
        """The environment, if it is there."""

    @abstractmethod
    def for_user(self) -> VectorEnv[Any, Any, Any]:
        """The environment itself, as a vector environment."""

    def is_of(self, env: Any) -> bool:
        """Whether somebody else's environment is this one, or around it."""
        return isinstance(env, (gym.Env, VectorEnv)) and env.unwrapped is self.env.unwrapped

    @property
    def name(self) -> str:
        return type(self.env).__name__

    @property
    def better(self) -> str:
        """What would be better, in words."""
        return f"give a function that makes it: {self._call.format(_as_function(self.env))}"

    @property
    def can_be_evaluated(self) -> bool:
        """Whether there is an environment for an evaluation now."""
        return not self.is_out

    def cannot(self, what: str) -> UserError:
        return UserError(f"{what}: copies of the given {self.name} cannot be made; {self.better}")

    def _give_back(self) -> None:
        self.is_out = False


class OneEnvironment(Lender):
    """Makes environments, of which there is one."""

    def __call__(self) -> gym.Env[Any, Any]:
        if self.is_out:
            raise self.cannot("env: training uses it, and an evaluation needs another (env=)")
        self.is_out = True
        return Lent(self.env, self._give_back)

    def for_user(self) -> VectorEnv[Any, Any, Any]:
        return SyncVectorEnv([lambda: Lent(self.env, lambda: None)])


class OneVector(Lender):
    """Makes a vector environment, of which there is one. It may say how to make one with a single environment."""

    def __call__(self, num_envs: int) -> VectorEnv[Any, Any, Any]:
        there: int = self.env.num_envs
        if num_envs == there and not self.is_out:
            self.is_out = True
            return LentVector(self.env, self._give_back)
        if num_envs == 1 and self._alone is not None:
            return self._alone()
        if num_envs == 1:
            raise self.cannot("env: an evaluation needs an environment of its own (env=)")
        raise self.cannot(f"num_envs={num_envs}: the given vector environment has {there}")

    def for_user(self) -> VectorEnv[Any, Any, Any]:
        return self.env  # type: ignore[no-any-return]

    @property
    def _alone(self) -> Callable[[], VectorEnv[Any, Any, Any]] | None:
        env = self.env
        if isinstance(env, (SyncVectorEnv, AsyncVectorEnv)):  # they know the functions that made their environments
            return lambda: SyncVectorEnv([self._first], autoreset_mode=AutoresetMode.DISABLED)
        if env.spec is not None and not isinstance(env, VectorWrapper):
            return lambda: gym.make_vec(env.spec, num_envs=1)
        return None

    def _first(self) -> gym.Env[Any, Any]:
        made: gym.Env[Any, Any] = self.env.env_fns[0]()
        if any(made.unwrapped is used.unwrapped for used in getattr(self.env, "envs", ())):
            raise self.cannot("env: its functions return the same environment again")
        return made

    @property
    def can_be_evaluated(self) -> bool:
        return self._alone is not None or (self.env.num_envs == 1 and not self.is_out)


def can_be_made_again(env: gym.Env[Any, Any]) -> bool:
    """Whether `gymnasium.make` makes another one from its spec: all wrappers have recorded their arguments."""
    if env.spec is None:
        return False
    return all(
        isinstance(wrapper, RecordConstructorArgs)
        and reference_to(type(wrapper)) == f"{type(wrapper).__module__}:{type(wrapper).__name__}"
        for wrapper in _own_wrappers(env)
    )


def _own_wrappers(env: Any) -> Iterator[gym.Wrapper[Any, Any, Any, Any]]:
    """The wrappers around what `gymnasium.make` returned, from the outside."""
    while isinstance(env, gym.Wrapper) and (env.spec is None or env.spec.additional_wrappers):
        yield env
        env = env.env


def _as_function(env: Any) -> str:
    """A function that makes such an environment, as code; of several environments, each."""
    if isinstance(env, SyncVectorEnv):
        return f"lambda: {_as_code(env.envs[0])}"
    if not isinstance(env, VectorEnv):
        return f"lambda: {_as_code(env)}"
    if env.spec is None:
        return f"lambda num_envs: {type(env).__name__}(...)"
    return f"lambda: gym.make({env.spec.id!r})"


def _as_code(env: Any) -> str:
    """How an environment may have been made: what its wrappers and its class are called with is not known."""
    own = list(_own_wrappers(env))
    inner = own[-1].env if own else env
    code = f"{type(inner).__name__}({_more(type(inner), 1)})" if inner.spec is None else f"gym.make({inner.spec.id!r})"
    for wrapper in reversed(own):
        more = _more(type(wrapper), 2)
        code = f"{type(wrapper).__name__}({code}{more and ', '}{more})"
    return code


def _more(kind: type, known: int) -> str:
    """Three dots if a class is called with more than is known; its `__init__` has this many parameters without."""
    try:
        parameters = inspect.signature(kind.__init__).parameters.values()  # type: ignore[misc]
    except (TypeError, ValueError):
        return "..."
    named = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    return "..." if len(named) > known else ""
