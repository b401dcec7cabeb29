"""Agents in the manner that users of Stable-Baselines3 know: `PPO("CartPole-v1").learn(100_000)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import gymnasium as gym
import numpy as np

from rl_training.experiment.config import Config, load_config
from rl_training.experiment.references import is_reference
from rl_training.ops.observations import pack
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpoint import write_checkpoint
from rl_training.runtime.envs import EnvFactory
from rl_training.runtime.evaluate import Evaluation
from rl_training.runtime.loggers import ProgressDisplay
from rl_training.runtime.rng import seeded
from rl_training.runtime.spaces import ActionScaler
from rl_training.runtime.train import Run, TrainResult, build
from rl_training.runtime.train import run as run_training
from rl_training.runtime.workflows import restore
from rl_training.types import Array, ObsPart, SpaceInfo, UserError

A = TypeVar("A", bound="Agent")
Env = str | Callable[..., Any] | gym.Env[Any, Any]


class Agent:
    """A policy, what it is trained with, and what it has learned so far.

    `env` is a Gymnasium id, a function that makes an environment, or an environment made by `gymnasium.make`. All
    other settings are those of the config (`rl-training describe ppo` lists them). Nothing is written to disk unless
    `output_dir` is given or `save` is called.
    """

    algo: ClassVar[str] = ""

    def __init__(self, env: Env, **settings: Any) -> None:
        env_settings, factory = _understand(env)
        self._writes = "output_dir" in settings
        given = {"algo": self.algo} | env_settings | settings
        self._adopt(build(load_config(given), env_factory=factory))
        self._run.start()
        self._fresh = True

    def _adopt(self, run: Run) -> None:
        self._run = run
        self._fresh = False
        self._result: TrainResult | None = None
        self._scale = ActionScaler(run.info, np.dtype(run.action_dtype))
        self._prediction_rng = np.random.PCG64(seeded(run.config.run.seed, "prediction")).state

    @property
    def config(self) -> Config:
        return self._run.config

    @property
    def num_timesteps(self) -> int:
        """Environment steps learned from so far."""
        return self._run.steps

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the latest step and of the latest evaluation."""
        return self._run.metrics | self._run.eval_metrics

    @property
    def result(self) -> TrainResult | None:
        """What the latest `learn` came to."""
        return self._result

    def learn(
        self: A,
        total_timesteps: int,
        callback: Callback | Sequence[Callback] = (),
        *,
        progress_bar: bool = False,
    ) -> A:
        """Train for this many more steps.

        Schedules run over the first call; a later one goes on with their end values, unless `stretch_schedules` is set.
        """
        run = self._run
        target = run.steps + total_timesteps
        run.config = run.config.replace(total_timesteps=target)
        if self._fresh or run.config.run.stretch_schedules:
            run.schedules.horizon = target
        if self._writes and run.folder is None:
            run.open_folder()
        self._fresh = False
        run.should_stop, run.stop_reason = False, None
        extra = [callback] if isinstance(callback, Callback) else list(callback)
        extra += [ProgressDisplay()] if progress_bar else []
        # Before logging and saving, which come last.
        before, run.callbacks = run.callbacks, [*run.callbacks[:-2], *extra, *run.callbacks[-2:]]
        try:
            self._result = run_training(run)
        finally:
            run.callbacks = before
        return self

    def predict(
        self,
        obs: Array | Mapping[str, Array],
        state: Any = None,
        episode_start: Array | None = None,
        deterministic: bool = False,
        *,
        action_masks: Array | None = None,
    ) -> tuple[Array, Any]:
        """Actions in the environment's own units, for one observation or a batch; and the policy's next state."""
        rows, single = _rows(obs, action_masks, self._run.info)
        stream = self._run.streams["policy"].bit_generator
        training, stream.state = stream.state, self._prediction_rng
        act = self._run.algorithm.act(rows, state, explore=not deterministic)
        self._prediction_rng, stream.state = stream.state, training
        action = self._scale(act.action)
        return (action[0] if single else action), act.carry

    def evaluate(self, num_episodes: int = 100) -> Evaluation:
        """Play episodes with the best known actions, on seeds that are the same in every evaluation."""
        return self._run.evaluate(num_episodes)

    def save(self, path: str | Path) -> Path:
        """Write everything to a folder, from which `load` goes on exactly."""
        path = Path(path)
        if path.exists() and not (path / "meta.json").is_file():
            raise UserError(f"path={str(path)!r}: exists and is not a checkpoint; choose another")
        try:
            return write_checkpoint(path, self._run.snapshot())
        except OSError as error:
            raise UserError(f"cannot write {str(path)!r}: {error.strerror or error}") from error

    @classmethod
    def load(cls: type[A], path: str | Path, env: Env | None = None, **settings: Any) -> A:
        """The agent that was saved at a path, or the latest of a run's folder; it can predict and go on learning."""
        factory = None if env is None else _understand(env)[1]
        if isinstance(env, str):
            settings["env_id"] = env
        run, _ = restore(path, env_factory=factory, **settings)
        if cls.algo and run.config.run.algo != cls.algo:
            run.close()
            raise UserError(f"{str(path)!r}: was trained by {run.config.run.algo}, not by {cls.algo}")
        agent = cls.__new__(cls)
        agent._writes = "output_dir" in settings
        agent._adopt(run)
        agent._fresh = run.steps == 0
        return agent

    def close(self) -> None:
        self._run.close()


def _rows(obs: Array | Mapping[str, Array], masks: Array | None, info: SpaceInfo) -> tuple[Array, bool]:
    """Observations as a policy takes them `[B, ...]`, and whether there was only one."""
    if masks is not None and not info.mask_size:
        raise UserError(
            "action_masks: the agent was trained without masks: its environment gives no info['action_mask']"
        )
    parts = info.parts or (ObsPart("", info.obs_shape, info.obs_dtype),)
    entries = obs if isinstance(obs, Mapping) else {"": _one_hot(obs, info.obs_choices)}
    if entries.keys() != {part.name for part in parts}:
        raise UserError(f"obs: has {', '.join(map(repr, entries))}; must have {', '.join(repr(p.name) for p in parts)}")
    arrays = {part.name: np.asarray(entries[part.name], dtype=part.dtype) for part in parts}
    extra = {arrays[part.name].ndim - len(part.shape) for part in parts}
    for part in parts:
        shape = arrays[part.name].shape
        if shape[len(shape) - len(part.shape) :] != part.shape or extra not in ({0}, {1}):
            raise UserError(f"obs{part.name and '.'}{part.name}: has shape {shape}; must be {part.shape}, or a batch")
    single = extra == {0}
    batch = {name: array[None] if single else array for name, array in arrays.items()}
    if not info.packed:
        return batch[""], single
    count = len(next(iter(batch.values())))
    allowed = [None] * count if masks is None else np.reshape(masks, (count, info.mask_size))
    packed = [
        pack({name: array[i] for name, array in batch.items()}, allowed[i], parts, info.mask_size) for i in range(count)
    ]
    return np.stack(packed), single


def _one_hot(obs: Array, choices: tuple[int, int] | None) -> Array:
    """What the policy sees of the numbers of a Discrete space; anything else passes through."""
    numbers = np.asarray(obs)
    if choices is None or numbers.ndim > 1 or not np.issubdtype(numbers.dtype, np.integer):
        return numbers
    first, count = choices
    if numbers.shape == (count,) and numbers.min() == 0 and numbers.sum() == 1:
        return numbers  # it is one already
    if ((numbers < first) | (numbers >= first + count)).any():
        raise UserError(f"obs={obs!r}: must be from {first} to {first + count - 1}")
    rows: Array = np.eye(count, dtype=np.float32)[numbers - first]
    return rows


def _understand(env: Env) -> tuple[dict[str, Any], EnvFactory | None]:
    """The settings that name an environment, and the function that makes it where no name does."""
    if isinstance(env, str):
        return {"env_id": env}, None
    if isinstance(env, gym.Env):
        spec = env.spec
        if spec is None:
            raise UserError(
                f"env={env!r}: pass an id, or a function that makes it: training needs several of them and evaluation "
                "its own"
            )
        registered = gym.registry.get(spec.id)
        lost_limit = spec.max_episode_steps is None and registered is not None and registered.max_episode_steps
        if registered is None or spec.additional_wrappers or lost_limit:  # its id alone would make another one
            return {"env_id": f"custom {spec.id}"}, lambda: gym.make(spec)
        own_limit = spec.max_episode_steps != registered.max_episode_steps
        limit = {"time_limit": spec.max_episode_steps} if own_limit else {}
        return {"env_id": spec.id, "env_kwargs": dict(spec.kwargs)} | limit, None
    if not callable(env):
        raise UserError(f"env={env!r}: must be a Gymnasium id, a function that makes an environment, or an environment")
    name = f"{getattr(env, '__module__', 'custom')}:{getattr(env, '__qualname__', type(env).__name__)}"
    return {"env_id": name if is_reference(name) else f"custom {name}"}, env


class PPO(Agent):
    """Proximal policy optimisation."""

    algo = "ppo"


class A2C(Agent):
    """Advantage actor-critic."""

    algo = "a2c"
