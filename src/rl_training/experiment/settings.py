"""The settings that every run has, whatever its algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_serializer, field_validator, model_validator

from rl_training.algorithms.settings import ConfigPart, setting
from rl_training.experiment.references import is_module_name
from rl_training.experiment.tasks import check_form, check_names


def plain(value: Any, key: str) -> Any:
    """Convert a value, which may be NumPy's, to plain YAML and JSON data; an error names the key of anything else."""
    if hasattr(value, "tolist") and not isinstance(value, type):
        value = value.tolist()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: plain(item, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{key}.{index}") for index, item in enumerate(value)]
    raise ValueError(
        f"{key!r} is a {type(value).__name__}, which cannot be written to a config; only numbers, text, lists and "
        "mappings can (a function that makes the environment may build the rest)"
    )


class EarlyStoppingRule(ConfigPart):
    """When to end a run early; the rule is checked after every evaluation."""

    called: ClassVar[str] = "a rule"
    example: ClassVar[str] = "{metric: eval_return_mean, patience: 5}"

    metric: str = setting("eval_return_mean", "The metric that is watched.")
    mode: Literal["max", "min"] = setting("max", "Whether more or less is better.")
    patience: int | None = setting(None, "Stop at this many evaluations in a row without improvement.", ge=1)
    min_delta: float = setting(0.0, "How much counts as improvement.", ge=0.0, static=True)
    min_steps: int = setting(0, "Never stop before this many steps.", ge=0)
    target_value: float | None = setting(None, "Stop when the metric reaches this.", static=True)
    sustained: int = setting(1, "How many evaluations in a row must reach target_value.", ge=1)

    @model_validator(mode="after")
    def _has_a_rule(self) -> EarlyStoppingRule:
        if self.patience is None and self.target_value is None:
            raise ValueError("needs 'patience' or 'target_value'")
        if self.sustained > 1 and self.target_value is None:
            raise ValueError("'sustained' needs 'target_value'")
        return self


class Expected(ConfigPart):
    """The measured result of a preset; `rl-training verify` measures it again."""

    called: ClassVar[str] = "what is expected"
    example: ClassVar[str] = "{return: 450}"

    return_: float | None = Field(None, alias="return", description="The mean return over the seeds is at least this.")
    long: bool = setting(False, "Too long to have been measured: nothing is claimed.")
    published: str | None = setting(None, "What somebody else reports, and who, where nothing was measured.")
    measure: Literal["final_policy", "last_5_evaluations"] = setting(
        "final_policy",
        "What counts as a seed's return: that of the final policy, or the mean of the last five evaluations.",
    )
    seeds: tuple[int, ...] = setting((101, 102, 103), "Training seeds of the evidence.")
    steps: int = setting(0, "Steps at which it is measured.", ge=0)
    minutes: float = setting(0.0, "Minutes for each seed on one core.", ge=0.0, static=True)
    measured: tuple[float, ...] = setting((), "The return of each seed, when it was measured.")
    final_return: float | None = setting(
        None, "Beside the last five evaluations: the final policy's mean return is at least this.", static=True
    )
    final_measured: tuple[float, ...] = setting((), "The final policy's return of each seed, when it was measured.")
    episodes: int = setting(100, "Episodes in which the final policy is evaluated, with greedy actions.", ge=1)

    @model_validator(mode="after")
    def _claims_a_return_or_nothing(self) -> Expected:
        if self.long and self.return_ is not None:
            raise ValueError("'long' claims nothing, so there can be no 'return'")
        if self.published is not None and not self.long:
            raise ValueError("'published' is for presets that are not measured here; it needs 'long: true'")
        if not self.long and self.return_ is None:
            raise ValueError("needs 'return', or 'long: true' where nothing is claimed")
        if self.final_return is not None and self.measure != "last_5_evaluations":
            raise ValueError(
                "'final_return' needs 'measure: last_5_evaluations'; 'return' is the final policy's already"
            )
        return self


class EnvironmentPart(ConfigPart):
    """How the arguments and packages of an environment are checked, wherever they stand."""

    @field_validator("env_kwargs", mode="after", check_fields=False)
    @classmethod
    def _plain_arguments(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if value is None else {key: plain(argument, key) for key, argument in value.items()}

    @field_validator("env_packages", mode="before", check_fields=False)
    @classmethod
    def _one_package_is_a_list(cls, value: Any) -> Any:
        missing = cls.model_fields["env_packages"].default
        return missing if value is None else [value] if isinstance(value, str) else value

    @field_validator("env_packages", mode="after", check_fields=False)
    @classmethod
    def _packages_are_modules(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in value or ():
            if not is_module_name(name):
                raise ValueError(f"{name!r} is no module; give what you would import, such as my_envs")
        return value


class ScoreRange(ConfigPart):
    """The returns that count as 0 and as 1, such as those of random actions and of a solved task."""

    called: ClassVar[str] = "a score"
    example: ClassVar[str] = "{low: 0, high: 450}"

    low: float = Field(description="The return that counts as 0.")
    high: float = Field(description="The return that counts as 1.")

    @model_validator(mode="after")
    def _is_a_range(self) -> ScoreRange:
        if self.high <= self.low:
            raise ValueError(f"high={self.high:g} must be above low={self.low:g}")
        return self

    def __call__(self, mean: float) -> float:
        """The score of a mean return."""
        return (mean - self.low) / (self.high - self.low)


class TaskConfig(EnvironmentPart):
    """One of several tasks: its environment, and how it is scored. What is not given is that of the run."""

    called: ClassVar[str] = "a task"
    example: ClassVar[str] = "{env_id: CartPole-v1, num_envs: 4}, or an id"

    env_id: str = Field(description="The environment, as `env_id` of a run.")
    env_packages: tuple[str, ...] | None = setting(None, "Modules that are imported before the id is looked up.")
    env_kwargs: dict[str, Any] | None = setting(None, "Arguments of the environment.")
    num_envs: int | None = setting(None, "Environments of this task that are stepped together.", ge=1)
    time_limit: int | None = setting(None, "Truncate episodes after this many steps.", ge=1)
    frame_stack: int | None = setting(None, "How many of the latest observations the policy sees.", ge=1)
    reward_clip: float | None = setting(None, "Clip rewards to +- this for learning.", gt=0.0, static=True)
    score: ScoreRange | None = setting(None, "The returns `low` and `high` that count as a score of 0 and of 1.")
    target_return: float | None = setting(None, "The return at which the task counts as solved.", static=True)

    @field_validator("env_id", mode="after")
    @classmethod
    def _names_an_environment(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("must not be empty")
        return value

    def given(self, *names: str) -> dict[str, Any]:
        """The values of the named settings that this task gives."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class RunConfig(EnvironmentPart):
    """What to run, for how long, and what to write to disk."""

    algo: str = setting("ppo", "A registered algorithm, or `module:SPEC` of your own.")
    env_id: str = Field(
        description="A Gymnasium id, also with its module as `module:Env-v0`; `pettingzoo/GAME`; or `module:function` "
        "that makes an environment."
    )
    env_packages: tuple[str, ...] = setting((), "Modules that are imported before ids are looked up.")
    env_kwargs: dict[str, Any] = setting({}, "Arguments of the environment.")
    tasks: dict[str, TaskConfig] | None = setting(
        None, "Several tasks in place of env_id, by name, each with its env_id; or a list of ids."
    )
    vectorization: Literal["auto", "native", "sync", "async"] = setting(
        "auto", "How environments are stepped together; `auto` is native where that is faster, else sync."
    )
    env_timeout: float | None = setting(
        300.0, "Seconds that an environment in its own process (`async`) has for a step or a reset; null for any.", gt=0
    )
    num_envs: int = setting(8, "Environments that are stepped together; those of all workers.", ge=1)
    actors: Literal["inline", "process", "ray"] = setting(
        "inline", "Where workers gather: in this process, in processes of their own, or on a Ray cluster."
    )
    num_workers: int = setting(1, "Workers that gather; each has num_envs / num_workers environments.", ge=1)
    order: Literal["auto", "fixed", "arrival"] = setting(
        "auto", "Learn from rollouts in a fixed order, which is exact, or as they arrive; `auto`: arrival for ray."
    )
    rollout_deadline: float | None = setting(
        600.0, "Seconds that a worker may take for a rollout before it is replaced; null for any.", gt=0, static=True
    )
    worker_restarts: int = setting(
        10, "How many workers may be lost and replaced before the run is saved and ends.", ge=0
    )
    ray_address: str | None = setting(None, "Address of a Ray cluster for `actors: ray`; a cluster of its own if null.")
    seed: int = setting(0, "Seed of everything random in the run.", ge=0)
    total_timesteps: int = setting(
        100_000, "Environment steps of the run; updates, where it learns offline.", aliases=["total_updates"], ge=1
    )
    eval_interval: int | None = setting(
        None, "Evaluate whenever this many steps have passed; at the end if null.", ge=1
    )
    eval_episodes: int = setting(10, "Episodes of an evaluation, with seeds that never change.", ge=1)
    eval_opponent: str = setting(
        "random",
        "Opponent of evaluations in games for two players: `random`, `perfect` (TicTacToe), or a run or checkpoint.",
    )
    bc_baseline_updates: int = setting(
        5_000,
        "Updates of a behaviour-cloning policy that an offline run is compared with, at most its own; 0 for none.",
        ge=0,
    )
    early_stopping: tuple[EarlyStoppingRule, ...] = setting((), "A rule that ends the run early, or a list of them.")
    checkpoint_interval: int = setting(25_000, "Save whenever this many steps have passed.", ge=1)
    keep_checkpoints: int = setting(3, "How many checkpoints are kept, besides the best and spare ones.", ge=2)
    log_interval: int = setting(1_000, "Write metrics whenever this many steps have passed.", ge=1)
    output_dir: str = setting("runs", "Folder in which the run's folder is made.")
    device: str = setting("auto", "`cpu`, `cuda`, `cuda:1`, or `auto`: a GPU, if there is one, for images.")
    engine: Literal["auto", "autograd"] = setting(
        "auto",
        "`auto` uses the compiled path on a CPU where there is one (MLPs, small world models); "
        "`autograd`: torch alone.",
    )
    threads: int = setting(
        1, "Threads of torch and BLAS. More than one pays for wide networks on a quiet machine.", ge=1
    )
    stretch_schedules: bool = setting(False, "Stretch the schedules of a resumed run over its new number of steps.")
    callbacks: tuple[str, ...] = setting((), "Your own callbacks, each `module:Name`.")
    loggers: tuple[Literal["tensorboard", "wandb"], ...] = setting(
        (), "Where metrics go besides metrics.jsonl: `tensorboard`, `wandb` (extras of these names)."
    )
    tags: tuple[str, ...] = setting((), "Labels of the run.")
    expected: Expected | None = setting(None, "The return that the preset reaches; `rl-training verify` checks it.")

    @property
    def title(self) -> str:
        """What it is trained on, in a word: the environment, or the names of the tasks."""
        return self.env_id if self.tasks is None else "+".join(self.tasks)

    @property
    def scores(self) -> dict[str, ScoreRange]:
        """How tasks are scored, where that is given."""
        return {name: task.score for name, task in (self.tasks or {}).items() if task.score is not None}

    @property
    def unit(self) -> Literal["return", "score"]:
        """What policies are judged by: their mean return, or the mean of scores where every task has one."""
        return "score" if self.tasks and len(self.scores) == len(self.tasks) else "return"

    @property
    def target_returns(self) -> dict[str, float]:
        """The returns at which tasks count as solved, where they are given."""
        tasks = self.tasks or {}
        return {name: task.target_return for name, task in tasks.items() if task.target_return is not None}

    @model_validator(mode="before")
    @classmethod
    def _tasks_have_the_environments(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or values.get("tasks") is None:
            return values
        return {**values, "env_id": values.get("env_id") or ""}

    @field_validator("tasks", mode="before")
    @classmethod
    def _tasks_have_a_form(cls, value: Any) -> Any:
        if value is not None:
            check_form(value)
            check_names(str(name) for name in value)
        return value

    @model_validator(mode="after")
    def _one_environment_or_tasks(self) -> RunConfig:
        if self.tasks is not None and self.env_id:
            raise ValueError(f"env_id={self.env_id!r} and tasks: give one of them")
        return self

    @field_serializer("tasks")
    def _what_tasks_have(self, tasks: dict[str, TaskConfig] | None) -> dict[str, Any] | None:
        if tasks is None:
            return None
        return {name: task.model_dump(mode="json", exclude_none=True) for name, task in tasks.items()}

    @field_validator("early_stopping", mode="before")
    @classmethod
    def _one_rule_is_a_list(cls, value: Any) -> Any:
        return [] if value is None else [value] if isinstance(value, Mapping) else value

    @field_validator("loggers", mode="before")
    @classmethod
    def _one_logger_is_a_list(cls, value: Any) -> Any:
        names = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(names, (list, tuple)):
            return names
        return [name for index, name in enumerate(names) if name not in names[:index]]  # they may be anything yet

    @model_validator(mode="after")
    def _addresses_are_for_ray(self) -> RunConfig:
        if self.ray_address is not None and self.actors != "ray":
            raise ValueError(f"ray_address={self.ray_address!r} is for actors: ray; actors is {self.actors}")
        return self

    @model_validator(mode="after")
    def _stopping_needs_evaluations(self) -> RunConfig:
        if self.early_stopping and self.eval_interval is None:
            raise ValueError("early_stopping is checked after evaluations: give eval_interval too")
        return self
