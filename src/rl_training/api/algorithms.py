"""Agents with an interface like that of Stable-Baselines3: `PPO("CartPole-v1").learn(100_000)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from rl_training.api.inputs import check_state, policy_rows, start_mask
from rl_training.experiment.config import Config, load_config
from rl_training.experiment.registry import REGISTRY
from rl_training.experiment.tasks import one_of
from rl_training.runtime.arguments import callback_list, whole_number
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.envs.given import Env, parse_env
from rl_training.runtime.envs.spaces import ActionScaler
from rl_training.runtime.evaluate import Evaluation
from rl_training.runtime.libraries import Threads
from rl_training.runtime.loggers import ProgressDisplay
from rl_training.runtime.rng import seeded, untouched
from rl_training.runtime.task_evaluation import Evaluations
from rl_training.runtime.train import Run, TrainResult, build
from rl_training.runtime.train import run as run_training
from rl_training.runtime.workflows import opposition, restore
from rl_training.types import Array, UserError

A = TypeVar("A", bound="Agent")


class Agent:
    """An algorithm with its policy, its environments and its training state.

    `env` is a Gymnasium id, a function that makes an environment, or an environment made by `gymnasium.make`; `tasks`
    name several environments in its place, for algorithms that learn several tasks. All other settings are those of the
    config (`rl-training describe ppo` lists them). Nothing is written to disk unless `output_dir` is given or `save` is
    called.
    """

    algo: ClassVar[str] = ""

    def __init__(self, env: Env | None = None, *misplaced: Any, **settings: Any) -> None:
        if misplaced:
            name = type(self).__name__
            raise UserError(
                f"{name}({env!r}, {misplaced[0]!r}, ...): takes only the environment by position, and all settings by "
                f"name, as in {name}('CartPole-v1', seed=1); there is no policy argument: use hidden_sizes and model"
            )
        env_settings, factory = ({}, None) if env is None else parse_env(env)
        self._writes = "output_dir" in settings
        given = {"algo": self.algo} | env_settings | settings
        self._adopt(build(load_config(given), env_factory=factory))
        self._run.start()
        self._fresh = True

    def _adopt(self, run: Run) -> None:
        self._run = run
        self._fresh = False
        self._result: TrainResult | None = None
        dtypes = run.action_dtypes
        self._scale = {task: ActionScaler(info, np.dtype(dtypes[task])) for task, info in run.spaces.items()}
        # The package draws from the run's streams only. User code may draw from the global ones, so it is guarded.
        known = run.config.model.model == "auto" and run.config.run.algo in REGISTRY
        threads = run.config.run.threads
        self._acting: Callable[[], AbstractContextManager[None]] = (lambda: Threads(threads)) if known else self._apart
        self._prediction_rng = np.random.Generator(np.random.PCG64(seeded(run.config.run.seed, "prediction")))

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """The run's own libraries, whose generators stay as they are."""
        with self._run.libraries, untouched():
            yield

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
        callback: Callback | Sequence[Callback] | None = None,
        *,
        progress_bar: bool = False,
    ) -> A:
        """Train for this many more steps.

        Schedules span the first call; later calls keep their end values, unless `stretch_schedules` is set.
        """
        run = self._run
        given = [callback] if isinstance(callback, Callback) else callback
        extra = callback_list("callback", given) + ([ProgressDisplay()] if progress_bar else [])
        target = run.steps + whole_number("total_timesteps", total_timesteps)
        config = run.config.replace(total_timesteps=target)
        run.archive.lock()
        try:
            run.set_config(config)
            if self._fresh or run.config.run.stretch_schedules:
                run.schedules.horizon = target
            if self._writes and run.folder is None:
                run.archive.open(run)
            self._fresh = False
            run.lift_stop()
            with run.callbacks.joined_by(extra):
                self._result = run_training(run)
        finally:
            run.archive.unlock()
        return self

    def predict(
        self,
        obs: Array | Mapping[str, Array],
        state: Any = None,
        episode_start: Array | None = None,
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
        name = one_of(self.config.tasks, task)
        policy = self._run.algorithm.policy.for_task(name)
        rows, single = policy_rows(obs, action_masks, policy.info)
        check_state(state, len(rows))
        carry = policy.initial_carry(len(rows)) if state is None else state
        if episode_start is not None:
            carry = policy.begin_episodes(carry, start_mask(episode_start, len(rows)))
        with self._acting():
            act = policy.act(rows, carry, explore=not deterministic, rng=self._prediction_rng)
        action = self._scale[name](act.action)
        return (action[0] if single else action), act.carry

    def evaluate(
        self,
        num_episodes: int = 100,
        *,
        deterministic: bool | None = None,
        env: Env | None = None,
        opponent: str | Path | None = None,
        openings: int = 0,
        trust: bool = False,
    ) -> Evaluation | Evaluations:
        """Play episodes on seeds that are the same in every evaluation, with greedy actions; of every task, if several.

        With `deterministic=False` the policy explores as in training, with random numbers that are the same in every
        evaluation; Dreamer, which is judged by the actions that it samples, does so unless it is `deterministic=True`.
        `env` is another environment with the same spaces; the bounds of its actions may differ.

        In a game for two players the policy changes sides with every game. `opponent` is `random`, `perfect`, or a run
        or checkpoint, instead of the `eval_opponent` of the run; `openings` is how many random moves games begin with.
        `trust` lets in the code that the opponent's checkpoint names, if you did not train it yourself.
        """
        asked = opposition(opponent, openings, trust=trust)
        return self._run.evaluate(num_episodes, deterministic=deterministic, env=env, asked=asked)

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
    def load(cls: type[A], path: str | Path, env: Env | None = None, *, trust: bool = False, **settings: Any) -> A:
        """Load the agent saved at a path, or the latest of a run's folder; it can predict and continue training.

        `trust` lets in the code that it names, if you did not save it yourself; so does giving the same names again.
        """
        factory = None if env is None else parse_env(env)[1]
        if isinstance(env, str):
            settings["env_id"] = env
        run, _ = restore(path, env_factory=factory, trust=trust, given=[cls.algo], **settings)
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


class PPO(Agent):
    """Proximal policy optimisation."""

    algo = "ppo"


class A2C(Agent):
    """Advantage actor-critic."""

    algo = "a2c"


class TRPO(Agent):
    """Trust region policy optimisation."""

    algo = "trpo"


class PPG(Agent):
    """Phasic policy gradient."""

    algo = "ppg"


class RecurrentPPO(Agent):
    """Recurrent proximal policy optimisation: an LSTM or a GRU."""

    algo = "recurrent_ppo"


class GAIL(Agent):
    """Generative adversarial imitation learning on PPO."""

    algo = "gail"


class IMPALA(Agent):
    """Actor-critic on rollouts of older policies, corrected by V-trace."""

    algo = "impala"


class APPO(Agent):
    """PPO on rollouts of older policies, corrected by V-trace."""

    algo = "appo"


class DQN(Agent):
    """Deep Q-learning: double, dueling, n-step, prioritised."""

    algo = "dqn"


class DDPG(Agent):
    """Deep deterministic policy gradient."""

    algo = "ddpg"


class TD3(Agent):
    """Twin delayed deep deterministic policy gradient."""

    algo = "td3"


class SAC(Agent):
    """Soft actor-critic."""

    algo = "sac"


class REDQ(Agent):
    """Randomized ensembled double Q-learning."""

    algo = "redq"


class TQC(Agent):
    """Truncated quantile critics."""

    algo = "tqc"


class BC(Agent):
    """Behaviour cloning."""

    algo = "bc"


class AWAC(Agent):
    """Advantage-weighted actor-critic."""

    algo = "awac"


class IQL(Agent):
    """Implicit Q-learning."""

    algo = "iql"


class CQL(Agent):
    """Conservative Q-learning."""

    algo = "cql"


class TD3BC(Agent):
    """TD3 whose actor stays near the data."""

    algo = "td3_bc"


class MuZero(Agent):
    """Tree search in a learned model."""

    algo = "muzero"


class GumbelMuZero(Agent):
    """MuZero whose search improves the policy with few simulations."""

    algo = "gumbel_muzero"


class EfficientZero(Agent):
    """MuZero with consistency, value prefixes and fresher targets."""

    algo = "efficientzero"


class Dreamer(Agent):
    """A world model, whose dreams a policy learns from."""

    algo = "dreamer"
