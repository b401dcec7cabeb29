"""Agents with an interface like that of Stable-Baselines3: `PPO("CartPole-v1").learn(100_000)`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from gymnasium.vector import VectorEnv

from rl_training.api.predictor import Observation, Predictor
from rl_training.api.signatures import documentation_of, signature_of
from rl_training.experiment.config import Config, load_config
from rl_training.experiment.fields import why_without
from rl_training.experiment.registry import load_spec, proper_name
from rl_training.experiment.tasks import one_of
from rl_training.runtime.arguments import AnyCallback, callback_list, whole_number
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.changes import ANEW
from rl_training.runtime.envs.camera import render_mode
from rl_training.runtime.envs.given import Env, parse_env
from rl_training.runtime.evaluations import Evaluation
from rl_training.runtime.loggers import ProgressDisplay
from rl_training.runtime.task_evaluation import TaskEvaluations
from rl_training.runtime.train import Run, TrainResult, build
from rl_training.runtime.train import run as run_training
from rl_training.runtime.workflows import opposition, restore
from rl_training.types import Array, UserError

A = TypeVar("A", bound="Agent")


class _Signature:
    """The signature of a class, made when it is asked for: `inspect` and notebooks do."""

    def __get__(self, instance: Agent | None, kind: type[Agent]) -> inspect.Signature:
        if not kind.algo or kind.__init__ is not Agent.__init__:
            raise AttributeError("__signature__")
        return signature_of(kind.algo)


class _Documentation:
    """The documentation of a class, made when it is asked for: `help` does."""

    def __init__(self, summary: str) -> None:
        self._summary = summary

    def __get__(self, instance: Agent | None, kind: type[Agent]) -> str:
        return documentation_of(kind.algo, self._summary)


class Agent:
    """An algorithm with its policy, its environments and its training state.

    `env` is a Gymnasium id, a function that makes an environment, or an environment. One that cannot be made again, as
    in a wrapper of your own, is trained in as it is (`num_envs=1`); every `learn` begins new episodes in it. `tasks`
    name several environments in its place, for algorithms that learn several tasks. All other settings are those of the
    config (`rl-training describe ppo` lists them). Nothing is written to disk unless `output_dir` is given or `save` is
    called.
    """

    algo: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    __signature__: ClassVar[Any] = _Signature()

    def __init_subclass__(cls) -> None:
        if cls.algo and cls.__doc__ is not None:
            cls.summary = inspect.cleandoc(cls.__doc__)
            cls.__doc__ = _Documentation(cls.summary)  # type: ignore[assignment]

    def __init__(self, env: Env | None = None, *misplaced: Any, **settings: Any) -> None:
        if misplaced:
            name = type(self).__name__
            raise UserError(
                f"{name}({env!r}, {misplaced[0]!r}, ...): takes only the environment by position, and all settings by "
                f"name, as in {name}('CartPole-v1', seed=1); there is no policy argument: use hidden_sizes and model"
            )
        env_settings, factory = ({}, None) if env is None else parse_env(env, f"{type(self).__name__}({{}})")
        self._writes = "output_dir" in settings
        spec = load_spec(proper_name(str(settings.get("algo", self.algo))))
        # An algorithm that gathers nothing has no number of environments.
        fitting = {name: value for name, value in env_settings.items() if why_without(name, spec) is None}
        given = {"algo": self.algo} | fitting | settings
        self._adopt(build(load_config(given), env_factory=factory))
        self._run.start()
        self._fresh = True

    def _adopt(self, run: Run) -> None:
        self._run = run
        self._fresh = False
        self._result: TrainResult | None = None
        self._predictor = Predictor(run.algorithm.policy, run.config, run.action_dtypes, run.libraries)

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
        """The result of the latest `learn`."""
        return self._result

    def learn(
        self: A,
        total_timesteps: int,
        callback: AnyCallback | Sequence[AnyCallback] | None = None,
        *,
        progress_bar: bool = False,
    ) -> A:
        """Train for this many more steps.

        `callback` is an object of a subclass of `Callback`, a function that is called with the run after every step of
        the loop and ends it by returning False, or a list of both.

        Schedules span the first call; later calls keep their end values, unless `stretch_schedules` is set.
        """
        run = self._run
        given = [callback] if isinstance(callback, Callback) or callable(callback) else callback
        extra = callback_list("callback", given) + ([ProgressDisplay()] if progress_bar else [])
        target = run.steps + whole_number("total_timesteps", total_timesteps)
        config = run.config.replace(total_timesteps=target)
        run.archive.lock()
        try:
            run.set_config(config)
            if self._fresh or run.config.run.stretch_schedules:
                run.schedules.horizon = target
            if run.evaluator.maker.lender is not None:  # its owner may have stepped it in the meantime
                with run.libraries:
                    run.source.begin_anew()
            if self._writes and run.folder is None:
                run.archive.open(run)
            self._fresh = False
            run.lift_stop()
            with run.callbacks.joined_by(extra):
                self._result = run_training(run)
        finally:
            run.archive.unlock()
        return self

    @property
    def policy(self) -> Predictor:
        """What acts, by itself: `action = agent.policy(obs)`. It follows the training; it may be pickled or copied.

        If the agent learns several tasks, `agent.policy.for_task(name)` acts in one of them, and nothing in all.
        """
        return self._predictor

    def predict(
        self,
        obs: Observation,
        state: Any = None,
        episode_start: Array | bool | None = None,
        deterministic: bool = False,
        *,
        action_masks: Array | Sequence[Any] | None = None,
        task: str | None = None,
    ) -> tuple[Array, Any]:
        """Return actions in the environment's units, for one observation or a batch, and the policy's next state.

        A recurrent policy needs its state: pass it with the next observation, and mark in `episode_start` the
        observations that are the first of an episode. Without a state, all of them are. An agent that learned several
        tasks needs the name of the `task` that the observations are from.
        """
        predictor = self._predictor.for_task(task)
        return predictor.predict(obs, state, episode_start, deterministic, action_masks=action_masks)

    def get_env(self, task: str | None = None) -> VectorEnv[Any, Any, Any]:
        """Environments like those that it trains in, and as many, for a loop of your own.

        They are new, so that stepping them disturbs no training, unless the agent was given an environment that cannot
        be made again: then it is that one, and the next `learn` begins new episodes in it. Those of an agent that
        learns several tasks are those of `task`.
        """
        name = one_of(self.config.tasks, task)
        return self._run.evaluator.by_task[name].maker.for_user(self.config.for_task(name).run.num_envs)

    def evaluate(
        self,
        num_episodes: int | None = None,
        *,
        episodes: int | None = None,
        deterministic: bool | None = None,
        env: Env | None = None,
        render: bool | str = False,
        opponent: str | Path | None = None,
        openings: int = 0,
        trust: bool = False,
    ) -> Evaluation | TaskEvaluations:
        """Play `episodes` (100) on seeds that are the same in every evaluation, with greedy actions; of every task.

        With `deterministic=False` the policy explores as in training, with random numbers that are the same in every
        evaluation; Dreamer, which is judged by the actions that it samples, does so unless it is `deterministic=True`.
        `env` is another environment with the same spaces; the bounds of its actions may differ. With `render=True`
        episodes are shown one after the other; `render="rgb_array"` keeps their pictures as `frames`.

        In a game for two players the policy changes sides with every game. `opponent` is `random`, `perfect`, or a run
        or checkpoint, instead of the `eval_opponent` of the run; `openings` is how many random moves games begin with.
        `trust` lets in the code that the opponent's checkpoint names, if you did not train it yourself.
        """
        if num_episodes is not None and episodes is not None:
            raise UserError(f"num_episodes={num_episodes!r} and episodes={episodes!r}: two names of one argument")
        key, count = ("num_episodes", num_episodes) if episodes is None else ("episodes", episodes)
        number, mode = whole_number(key, 100 if count is None else count), render_mode(render)
        asked = opposition(opponent, openings, trust=trust)
        return self._run.evaluate(number, deterministic=deterministic, env=env, asked=asked, render=mode)

    def save(self, path: str | Path) -> Path:
        """Write the whole training state to a folder, from which `load` continues exactly."""
        path = Path(path)
        if path.exists() and not (path / "meta.json").is_file():
            raise UserError(f"path={str(path)!r}: exists and is not a checkpoint; choose another")
        try:
            return self._run.archive.export(path, self._run)
        except OSError as error:
            raise UserError(f"cannot write {str(path)!r}: {error.strerror or error}") from error

    @classmethod
    def load(
        cls: type[A],
        path: str | Path,
        env: Env | None = None,
        *,
        trust: bool = False,
        num_envs: int | None = None,
        seed: int | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        device: str | None = None,
        **settings: Any,
    ) -> A:
        """Load the agent saved at a path, or the latest of a run's folder; it can predict and continue training.

        `device` may be any. Training continues exactly, unless `num_envs`, `seed` or `env_kwargs` are others than
        before: then it says so, and goes on with new episodes; with another `num_envs` the replay buffer is empty.
        Those of a task are given as in `tasks={"cartpole": {"num_envs": 5}}`.
        `trust` lets in the code that it names, if you did not save it yourself; so does giving the same names again.
        """
        asked = {"num_envs": num_envs, "seed": seed, "env_kwargs": env_kwargs, "device": device}
        settings |= {key: value for key, value in asked.items() if value is not None}
        named, factory = ({}, None) if env is None else parse_env(env, f"{cls.__name__}.load(path, env={{}})")
        named.pop("vectorization", None)
        kept = named if factory is None else {key: named[key] for key in named.keys() & {"num_envs"}}
        run, _ = restore(path, env_factory=factory, trust=trust, given=[cls.algo], anew=ANEW, **kept | settings)
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
