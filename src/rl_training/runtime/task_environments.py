"""The environments of a run as they are made, task by task; a run in one environment has one task without a name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from gymnasium.vector import VectorEnv

from rl_training.experiment.config import Config
from rl_training.experiment.settings import TaskConfig
from rl_training.experiment.tasks import task_key
from rl_training.runtime.capabilities import check_capabilities, refuse_for_tasks
from rl_training.runtime.envs.make import EnvFactory, EnvMaker
from rl_training.runtime.evaluate import Evaluator
from rl_training.runtime.memory import check_before_environments, check_memory, check_memory_of_tasks
from rl_training.runtime.opponents import Opposition
from rl_training.runtime.task_evaluation import TaskEvaluator
from rl_training.types import SpaceInfo, UserError


@dataclass(frozen=True)
class TaskEnvironments:
    """The environments of one task: its config as that of a run, its spaces, and where its policies are evaluated."""

    config: Config
    maker: EnvMaker
    envs: VectorEnv[Any, Any, Any]
    info: SpaceInfo
    evaluator: Evaluator


def make_environments(
    config: Config,
    env_factory: EnvFactory | None,
    on_failure: ExitStack,
    asked: Opposition,
    *,
    learns: bool = False,
    spaces_only: bool = False,
) -> dict[str, TaskEnvironments]:
    """The environments of every task. With `spaces_only` there is one of each, and others will make the rest."""
    if env_factory is not None:
        refuse_for_tasks(config, "env_factory")
    made = {}
    for task in config.tasks:
        with in_task(task):
            made[task] = _make(
                config.for_task(task),
                env_factory,
                on_failure,
                asked,
                learns=learns,
                spaces_only=spaces_only,
                of_several=bool(task),
            )
    check_memory_of_tasks([(each.config, each.info, each.maker) for each in made.values()], learns=learns)
    return made


def _make(
    config: Config,
    env_factory: EnvFactory | None,
    on_failure: ExitStack,
    asked: Opposition,
    *,
    learns: bool,
    spaces_only: bool,
    of_several: bool,
) -> TaskEnvironments:
    num_envs = envs_of(config) if learns else 1
    maker = EnvMaker(config.run, config.loop, env_factory)
    check_before_environments(config, env_factory, maker, num_envs, learns=learns)
    envs = maker.vector(1 if spaces_only else num_envs)
    on_failure.callback(envs.close)
    maker.describe(envs)  # spaces that are not supported are said before anything is reset
    envs = maker.masking(envs)
    on_failure.callback(envs.close)
    info = maker.describe(envs)
    check_capabilities(config, info, of_several=of_several)
    check_memory(config, info, maker, num_envs, learns=learns)
    return TaskEnvironments(config, maker, envs, info, Evaluator(maker, info, config.run, asked))


def envs_of(config: Config) -> int:
    """How many environments a task is learned in; a run that collects nothing has one, for its spaces."""
    return config.run.num_envs if config.loop.collects else 1


def evaluator_of(made: Mapping[str, TaskEnvironments], config: Config) -> Evaluator | TaskEvaluator:
    """What evaluates the policies of a run."""
    if config.run.tasks is None:
        return made[""].evaluator
    return TaskEvaluator({task: each.evaluator for task, each in made.items()}, config.run.scores)


@contextmanager
def in_task(task: str) -> Iterator[None]:
    """Let an error name the task that it is about, and its settings by their full names."""
    try:
        yield
    except UserError as error:
        if not task:
            raise
        key = str(error).partition("=")[0].partition(":")[0]
        of_task = key.partition(".")[0] in TaskConfig.model_fields
        raise UserError(task_key(task, str(error)) if of_task else f"tasks.{task}: {error}") from error
