"""Makes the environments of a run, for training and for evaluation, and describes their spaces."""

from __future__ import annotations

import inspect
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from rl_training.algorithms.base import LoopConfig
from rl_training.experiment.references import leads_back, unfitting_call
from rl_training.experiment.settings import RunConfig
from rl_training.runtime.envs.atari import AtariGames, OneAtariGame, is_atari
from rl_training.runtime.envs.boards import (
    BoardEnv,
    Game,
    Player,
    RandomPlayer,
    SelfPlay,
    Versus,
    is_game,
)
from rl_training.runtime.envs.camera import Camera
from rl_training.runtime.envs.dmc import is_dmc
from rl_training.runtime.envs.grids import is_grid, make_grid
from rl_training.runtime.envs.ids import bare_id, look_up, missing_extra, only_registered_here, register
from rl_training.runtime.envs.in_turn import InTurn
from rl_training.runtime.envs.lent import Lender, OneEnvironment
from rl_training.runtime.envs.limits import limited, shown_limit
from rl_training.runtime.envs.lives import FrameStack
from rl_training.runtime.envs.observations import CodedObservation, leaves_of
from rl_training.runtime.envs.processes import OwnProcesses
from rl_training.runtime.envs.spaces import PackedObservation, describe_spaces, mask_size
from rl_training.types import Array, Coding, SpaceInfo, UserError

EnvFactory = Callable[..., Any]

# Their Box2D world survives a reset, so a seed does not determine an episode: they are rebuilt for each one.
REBUILT_PER_EPISODE = re.compile(r"(BipedalWalker|CarRacing)")


class RebuiltPerEpisode(gym.Wrapper[Any, Any, Any, Any]):
    """Rebuilds its environment for every episode."""

    def __init__(self, make: Callable[[], gym.Env[Any, Any]]) -> None:
        super().__init__(make())
        self._make = make

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.env.close()
        self.env = self._make()
        return self.env.reset(seed=seed, options=options)


class SavableCartPole(CartPoleVectorEnv):
    """Gymnasium's native CartPole with a state that can be saved: it has one generator and no seeds per episode."""

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
    """Reset all environments, or the masked ones, each with its seed; returns the observations of all."""
    chosen: Any = envs
    obs: Array = chosen.reset(seed=list(seeds), options=None if mask is None else {"reset_mask": mask})[0]
    return obs


# A native vector environment has a fixed cost per step: with fewer environments than this, plain ones are faster.
_ENOUGH_FOR_NATIVE = 8

# The bytes of a process of its own, and of one of Gymnasium's smallest environments with its wrappers.
_LEAST_PROCESS, _LEAST_ENVIRONMENT = 4 << 20, 4 << 10

NATIVE: dict[str, Callable[..., VectorEnv[Any, Any, Any]]] = {
    "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv": SavableCartPole,
}


class EnvMaker:
    """Makes the environments of a run: for training (`vector`) and for evaluation (`for_evaluation`).

    Games for two players are trained on by self-play, and evaluated against an opponent. `game_name` is the name of
    the game, once one has been made.
    """

    def __init__(self, settings: RunConfig, loop: LoopConfig, factory: EnvFactory | None = None) -> None:
        self.env_id = env_id = settings.env_id
        self.env_kwargs = dict(settings.env_kwargs)
        self.vectorization = settings.vectorization
        self._env_timeout = settings.env_timeout
        self._threads = settings.threads
        self.loop = loop
        self.masked = False
        self.game_name: str | None = None
        self._shown_limit: Any = None
        self._made: list[weakref.ref[Any]] = []
        self._packed: PackedObservation | None = None
        self._coding: Coding | None = None
        self.env_packages = settings.env_packages
        self.name = bare_id(env_id)
        register(env_id if factory is None else None, self.env_packages)
        found = look_up(env_id) if factory is None else factory
        self.spec = found if isinstance(found, gym.envs.registration.EnvSpec) else None
        self.factory = factory = None if isinstance(found, gym.envs.registration.EnvSpec) else found
        self.lender: Lender | None = factory if isinstance(factory, Lender) else None
        self._camera: Camera | None = None
        # A factory that takes num_envs makes a vector environment, with any autoreset mode.
        self.makes_vectors = factory is not None and "num_envs" in _parameters(factory)
        self._check_arguments()

    @property
    def time_limit(self) -> int | None:
        """After how many steps an episode is truncated, as far as settings and environments say so."""
        registered = None if self.spec is None else self.spec.max_episode_steps
        limit = self.loop.time_limit or registered or self._shown_limit
        return limit if isinstance(limit, int) else None

    @property
    def shows_no_time_limit(self) -> bool:
        """Whether nothing says that episodes end. Games end by their rules; vector environments cannot be asked."""
        if self.makes_vectors or self.game_name is not None or is_atari(self.name) or is_dmc(self.name):
            return False
        return self.time_limit is None and self._shown_limit is None

    def warnings(self) -> list[str]:
        """One sentence if another program would not find the environment by its name."""
        if self.factory is not None and not leads_back(self.env_id):
            return [
                f"env_id={self.env_id!r}: is known to this program alone; only those can resume the run who pass the "
                "environment again (env=, env_factory=); put its function into a module, and its name is enough"
            ]
        if self.spec is None or self.env_packages or not only_registered_here(self.env_id, self.spec):
            return []
        return [
            f"env_id={self.env_id!r}: is registered by this program; so that others find it, as to resume or evaluate "
            f"the run, give the module that registers it: env_packages=[module], or env_id=module:{self.env_id}"
        ]

    def _check_arguments(self) -> None:
        if self.factory is None:
            if "max_episode_steps" in self.env_kwargs:  # an argument of `gymnasium.make`, not of the environment
                raise UserError("env_kwargs.max_episode_steps: give it as time_limit, which works for all environments")
            return
        count = {"num_envs": 1} if self.makes_vectors else {}
        problem = unfitting_call(self.factory, **count, **self.env_kwargs)
        if problem is not None:
            raise UserError(f"env_kwargs={self.env_kwargs!r}: {self.env_id} cannot be called with them: {problem}")

    def single(self, seat: Callable[[Game], BoardEnv] = SelfPlay) -> gym.Env[Any, Any]:
        """One environment, with the wrappers that the config asks for; `seat` makes it from a game for two players."""
        rebuilt = self.spec is not None and REBUILT_PER_EPISODE.match(self.spec.name)
        env = RebuiltPerEpisode(self._base) if rebuilt else self._base(seat)
        self._shown_limit = shown_limit(env)
        if self._camera is not None:
            env = self._camera.on(env)
        space = env.observation_space
        several = isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple))
        if not several:
            (leaf,) = leaves_of(space, self.env_id)
            self._coding = leaf.part.coding
            env = env if isinstance(space, gym.spaces.Box) and self._coding is None else CodedObservation(env, leaf)
        if self.loop.frame_stack > 1:
            if several:
                kind = type(space).__name__
                raise UserError(f"frame_stack={self.loop.frame_stack}: {kind} observations cannot be stacked")
            env = FrameStack(env, self.loop.frame_stack)
        if not (several or self.masked):
            return env
        self._packed = PackedObservation(env, self.env_id, masked=self.masked, coding=self._coding)
        return self._packed

    def _base(self, seat: Callable[[Game], BoardEnv] = SelfPlay) -> gym.Env[Any, Any]:
        limit = self.loop.time_limit
        register(self.env_id if self.factory is None else None, self.env_packages)  # it may be a process of its own
        if self.factory is not None:
            env = self.factory(**self.env_kwargs)
            if is_game(env):
                return seat(self._checked_game(env))
            if not isinstance(env, gym.Env):
                raise UserError(f"env_id={self.env_id!r}: it made a {type(env).__name__}, not a gymnasium.Env")
        elif is_atari(self.name):
            return OneAtariGame(self.name, self.env_kwargs, limit)
        elif is_grid(self.name):
            return make_grid(self.name, self.env_kwargs, limit)
        else:
            return gym.make(self.name, max_episode_steps=limit, **self.env_kwargs)
        return env if limit is None else limited(env, limit)

    def game(self) -> Game:
        """One game for two players, without an environment around it."""
        assert self.factory is not None
        return self._checked_game(self.factory(**self.env_kwargs))

    def _checked_game(self, env: Any) -> Game:
        if self.loop.frame_stack > 1:
            raise UserError(
                f"frame_stack={self.loop.frame_stack}: games for two players are not stacked, since observations "
                "change sides"
            )
        game = Game(env, self.env_id, self.loop.time_limit)
        if self.game_name is None:
            game.rehearse(np.random.default_rng(0))
            self.game_name = game.name
        return game

    def vector(self, num_envs: int) -> VectorEnv[Any, Any, Any]:
        """The environments for training."""
        return self._friendly(lambda: self._vector(num_envs))

    @property
    def one_at_a_time(self) -> bool:
        """Whether evaluations play one episode after the other: there is one environment, or somebody looks at it."""
        shown = self._camera is not None or self.env_kwargs.get("render_mode") == "human"
        return shown or isinstance(self.lender, OneEnvironment)

    def seen_by(self, camera: Camera) -> EnvMaker:
        """The same for environments that are looked at."""
        if self.makes_vectors:
            raise UserError(f"render={camera.mode!r}: {self.env_id} is a vector environment; give env= to look at one")
        maker = copy(self)
        maker._camera = camera
        if self.factory is None or "render_mode" in _parameters(self.factory):
            maker.env_kwargs = self.env_kwargs | {"render_mode": camera.mode}
        return maker

    def for_user(self, num_envs: int) -> VectorEnv[Any, Any, Any]:
        """New environments as users know them, which reset themselves; or the one that was given."""
        if self.lender is not None:
            return self.lender.for_user()
        if self.makes_vectors:
            return self._friendly(lambda: self._made_vector(num_envs))
        one = self.single if self.loop.frame_stack > 1 else self._base
        return self._friendly(lambda: SyncVectorEnv([lambda: one() for _ in range(num_envs)]))

    def least_bytes(self, num_envs: int) -> int:
        """The RAM that so many environments for training take at least, beside their observations."""
        if self.makes_vectors or (self.vectorization != "async" and self._native() is not None):
            return 0  # it is not known, or they are rows of a few arrays
        return num_envs * (_LEAST_PROCESS if self.vectorization == "async" else _LEAST_ENVIRONMENT)

    def masking(self, envs: VectorEnv[Any, Any, Any]) -> VectorEnv[Any, Any, Any]:
        """Return the same environments, or new ones with action masks in their observations if they have masks."""
        if isinstance(envs, CartPoleVectorEnv) or mask_size(envs.single_action_space) == 0:
            return envs
        _, infos = envs.reset(seed=0)
        if "action_mask" not in infos:
            return envs
        if self.makes_vectors:
            raise UserError(f"env_id={self.env_id!r}: masks need a function that makes single environments")
        num_envs, self.masked = envs.num_envs, True
        envs.close()
        return self.vector(num_envs)

    def describe(self, envs: VectorEnv[Any, Any, Any]) -> SpaceInfo:
        """The spaces of the environments that this made."""
        spaces = envs.single_observation_space, envs.single_action_space
        info = describe_spaces(*spaces, self.env_id, self._packed, self._coding)
        return replace(info, two_player=self.game_name is not None)

    def for_evaluation(
        self, num_envs: int, opponent: Callable[[], Player] = RandomPlayer, openings: int = 0
    ) -> VectorEnv[Any, Any, Any]:
        """The environments for evaluation: every episode has its own seed.

        A game for two players is played against an opponent, after `openings` random moves.
        """
        return self.in_turn(num_envs, lambda game: Versus(game, opponent(), openings))

    def in_turn(self, num_envs: int, seat: Callable[[Game], BoardEnv] = SelfPlay) -> VectorEnv[Any, Any, Any]:
        """Environments in this process that are stepped one after the other, with a seed for every episode."""
        return self._friendly(lambda: self._in_turn(num_envs, seat))

    def _in_turn(self, num_envs: int, seat: Callable[[Game], BoardEnv]) -> VectorEnv[Any, Any, Any]:
        if self.makes_vectors:
            return self._made_vector(1)
        return self._games(num_envs) if is_atari(self.name) and self._camera is None else self._sync(num_envs, seat)

    def _vector(self, num_envs: int) -> VectorEnv[Any, Any, Any]:
        if self.makes_vectors:
            return self._made_vector(num_envs)
        mode = self.vectorization
        if self.lender is not None and (num_envs > 1 or mode == "async"):
            raise self.lender.cannot(f"num_envs={num_envs}" if num_envs > 1 else f"vectorization={mode!r}")
        if is_atari(self.name) and mode != "async":
            return self._games(num_envs)
        native = self._native()
        if mode == "native" and native is None:
            raise UserError(f"vectorization='native': {self.env_id} has no native vector environment; use auto or sync")
        if native is not None and (mode == "native" or (mode == "auto" and num_envs >= _ENOUGH_FOR_NATIVE)):
            limit = self.loop.time_limit or (self.spec.max_episode_steps if self.spec else None)
            options = self.env_kwargs | ({} if limit is None else {"max_episode_steps": limit})
            return native(num_envs=num_envs, **(dict(self.spec.kwargs) if self.spec else {}) | options)
        if mode == "async":
            return OwnProcesses(self.single, num_envs, self._env_timeout)
        return self._sync(num_envs)

    def _made_vector(self, num_envs: int) -> VectorEnv[Any, Any, Any]:
        assert self.factory is not None
        if self.loop.time_limit is not None or self.loop.frame_stack > 1:
            raise UserError(f"env_id={self.env_id!r}: your own vector environment takes no time_limit or frame_stack")
        envs = self.factory(num_envs=num_envs, **self.env_kwargs)
        if not isinstance(envs, VectorEnv) or not isinstance(envs.metadata.get("autoreset_mode"), AutoresetMode):
            raise UserError(
                f"env_id={self.env_id!r}: with num_envs it must make a gymnasium.vector.VectorEnv whose metadata name "
                f"its autoreset_mode, not a {type(envs).__name__}"
            )
        return envs

    def _games(self, num_envs: int) -> AtariGames:
        stack, limit = self.loop.frame_stack, self.loop.time_limit
        return AtariGames(
            self.name, num_envs, self.env_kwargs, frame_stack=stack, time_limit=limit, threads=self._threads
        )

    def _native(self) -> Callable[..., VectorEnv[Any, Any, Any]] | None:
        if self.spec is None or self.loop.frame_stack > 1:
            return None
        return NATIVE.get(str(self.spec.vector_entry_point))

    def _sync(self, num_envs: int, seat: Callable[[Game], BoardEnv] = SelfPlay) -> VectorEnv[Any, Any, Any]:
        envs = InTurn(partial(self.single, seat), num_envs)
        if self.lender is not None:
            return envs
        self._made = [made for made in self._made if made() is not None]
        for env in envs.envs:
            inner = _innermost(env)
            if any(made() is inner for made in self._made):
                raise UserError(
                    f"env_id={self.env_id!r}: its function returned the same environment twice; it must make a new one "
                    "at every call, since training and evaluation need several"
                )
            self._made.append(weakref.ref(inner))
        return envs

    def _friendly(self, make: Callable[[], VectorEnv[Any, Any, Any]]) -> VectorEnv[Any, Any, Any]:
        try:
            return make()
        except (gym.error.DependencyNotInstalled, ModuleNotFoundError) as error:
            raise UserError(f"env_id={self.env_id!r}: {missing_extra(str(error))}") from error
        except gym.error.Error as error:
            raise UserError(f"env_id={self.env_id!r}: {' '.join(str(error).split())}") from error
        except TypeError as error:
            if (self.env_kwargs or self.factory is None) and "argument" in str(error):
                raise UserError(f"env_kwargs={self.env_kwargs!r}: {error}") from error
            raise


def _innermost(env: gym.Env[Any, Any]) -> Any:
    """The environment that a function made."""
    inner = env.unwrapped
    return inner.game.env if isinstance(inner, BoardEnv) else inner


def _parameters(factory: EnvFactory) -> Mapping[str, Any]:
    try:
        return inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some classes written in C have no signature
        return {}
