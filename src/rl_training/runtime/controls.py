"""The control surface: the value of a coefficient at a step, and the control callbacks of a config."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rl_training.algorithms.multi_task import full_names
from rl_training.experiment.config import Config, load_config
from rl_training.experiment.registry import REGISTRY, nearest, suggest
from rl_training.experiment.settings import RunConfig, ScoreRange
from rl_training.experiment.tasks import task_key
from rl_training.runtime.callbacks import EVALUATION_METRICS, GREEDY_METRICS, Callback, EarlyStopping, Evaluate
from rl_training.runtime.evaluations import GAME_METRICS, SUCCESS_METRIC
from rl_training.runtime.schedules import ScheduleError, parse_control
from rl_training.runtime.task_evaluation import SCORE, evaluation_metrics
from rl_training.types import UserError

# These repeat the aliases of the algorithms' fields, since a plain mapping may name no algorithm.
_ALIASES = (("ent_coef", "entropy_coef"), ("clip_coef", "clip_range"), ("temperature",))


def resolve_entropy_coefficient(
    config: Config | Mapping[str, Any], *, step: int, coefficient_key: str = "ent_coef", default: float = 0.0
) -> float:
    """The entropy coefficient at a step: `ent_coef` or `entropy_coef`, with its schedule and warm-up."""
    return resolve_value(config, coefficient_key, step=step, default=default)


def resolve_clip_coefficient(config: Config | Mapping[str, Any], *, step: int, default: float = 0.2) -> float:
    """The clipping range at a step: `clip_coef` or `clip_range`, with its schedule and warm-up."""
    return resolve_value(config, "clip_coef", step=step, default=default)


def resolve_temperature(config: Config | Mapping[str, Any], *, step: int, default: float = 1.0) -> float:
    """The search temperature at a step: `temperature`, with its schedule and warm-up."""
    return resolve_value(config, "temperature", step=step, default=default)


def resolve_value(config: Config | Mapping[str, Any], key: str, *, step: int, default: float) -> float:
    """The value of any number at a step, from a config object or a plain mapping, flat or with `algo_kwargs`."""
    flat = _flat(config)
    names = next((group for group in _ALIASES if key in group), (key,))
    given = [name for name in names if any(name + end in flat for end in ("", "_schedule", "_warmup_steps"))]
    if len(given) > 1:
        raise UserError(f"{given[0]} and {given[1]}: two names of one setting; give one of them")
    name = given[0] if given else key
    base = flat.get(name)
    try:
        control = parse_control(
            default if base is None else _number(base), flat.get(name + "_schedule"), flat.get(name + "_warmup_steps")
        )
        horizon = flat.get("total_timesteps")
        value = control.at(step, None if horizon is None else int(_number(horizon)))
    except ScheduleError as error:
        raise UserError(f"{name}: {error}") from None
    if value < 0.0:
        raise UserError(f"{name}: is {value:g} at step {step}; must be at least 0")
    return value


def _flat(config: Config | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(config, Config):
        return config.given()
    nested = config.get("algo_kwargs") or {}
    if not isinstance(nested, Mapping):
        raise UserError(f"algo_kwargs={nested!r}: must be a mapping of settings")
    for key in nested:
        if key in config:
            raise UserError(f"{key}: given both by itself and in algo_kwargs")
    return {**config, **nested}


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ScheduleError(f"{value!r} is not a number")
    return float(value)


def build_control_callbacks(config: Config | Mapping[str, Any]) -> list[Callback]:
    """The evaluation callback, then the early stopping rules that use its metrics."""
    run = config.run if isinstance(config, Config) else _checked(_flat(config))
    for rule in run.early_stopping:
        # Other metrics are the algorithm's, which are known after the first step.
        by_task = full_names(run.tasks or [""], (*GAME_METRICS, SUCCESS_METRIC))
        special, usual = (*by_task, *GREEDY_METRICS), evaluation_metrics(run, EVALUATION_METRICS)
        if rule.metric.rpartition("/")[2].startswith("eval_") and rule.metric not in (*usual, *special):
            unscored = _unscored(run, rule.metric)
            raise UserError(
                f"early_stopping.metric={rule.metric!r}: {unscored or _no_such_metric(rule.metric, usual, special)}"
            )
    rules = [EarlyStopping(rule) for rule in run.early_stopping]
    return [Evaluate(run.eval_interval, run.eval_episodes), *rules]


def _unscored(run: RunConfig, metric: str) -> str | None:
    """The tasks whose scores a metric of scores needs, in a sentence; None if it needs none."""
    tasks = list(run.tasks or {})
    means = (f"{SCORE}_mean", f"{SCORE}_best", f"{SCORE}_last5_mean")
    needed = tasks if metric in means else [task for task in tasks if metric == f"{task}/{SCORE}"]
    missing = [task_key(task, "score") for task in needed if task not in run.scores]
    return f"needs a score: give {', '.join(missing)}, as in {ScoreRange.example}" if missing else None


def _no_such_metric(metric: str, usual: Sequence[str], special: Sequence[str]) -> str:
    """`special` are those that some environments and algorithms have."""
    near = nearest(metric, (*usual, *special))
    known = usual if near is None or near in usual else (*usual, near)
    return f"no such metric{suggest(metric, known)} (known: {', '.join(known)})"


def _checked(flat: Mapping[str, Any]) -> RunConfig:
    """The evaluation and stopping settings of a plain mapping, checked as in any config."""
    given = {key: flat[key] for key in ("eval_interval", "eval_episodes", "early_stopping") if key in flat}
    return load_config({"algo": next(iter(REGISTRY)), "env_id": "", **given}).run  # algo and env_id are not used
