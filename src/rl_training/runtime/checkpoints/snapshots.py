"""Saves the state of a run as a checkpoint, and restores it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rl_training.experiment.manager import versions
from rl_training.experiment.notes import known_run_id
from rl_training.experiment.tasks import without_task
from rl_training.runtime.checkpoints.checkpoint import Checkpoint, way_out
from rl_training.runtime.checkpoints.chunk_files import load_arrays
from rl_training.runtime.checkpoints.fitting import is_ours, loading
from rl_training.runtime.checkpoints.spaces import write_spaces
from rl_training.runtime.loops.base import Latest
from rl_training.runtime.rng import restore_streams, streams_state, untouched
from rl_training.runtime.schedules import restore_hyperparameters, set_by_hand
from rl_training.runtime.trees import check_like, refitted
from rl_training.types import Metrics

if TYPE_CHECKING:
    from rl_training.runtime.run import Run


def take_snapshot(run: Run) -> Checkpoint:
    """A checkpoint of a run as it is now."""
    meta = {
        "step": run.steps,
        "run_id": run.archive.run_id,
        "config": run.config.flat(),
        "spaces": write_spaces(run.spaces),
        "versions": versions(),
        "engine": run.algorithm.engine,
        "threads": run.config.run.threads,
        "resume": "exact" if run.source.exact else "restarted",
        "why_restarted": run.source.why_not_exact,
        "eval": run.eval_metrics,
    }
    policy = run.algorithm.policy.policy_state()
    return Checkpoint(meta, policy, training_state(run), run.source.state_dict(), run.arrays())


def training_state(run: Run) -> dict[str, Any]:
    """The state of training without the policy's tensors, the environments and the large arrays."""
    return {
        "algorithm": run.algorithm.training_state(),
        "parts": {name: part.state_dict() for name, part in run.loop.parts.items()},
        "rng": streams_state(run.streams),
        "callbacks": run.callbacks.state_dict(),
        "trainer": {
            "should_stop": run.should_stop,
            "due": run.due,
            "previous_steps": run.previous_steps,
            "stop_reason": run.stop_reason,
            "horizon": run.schedules.horizon,
            "hyperparameters": set_by_hand(run.config, run.algorithm),
            "best_step": run.archive.best_step,
            "metrics": run.metrics,
            "eval_metrics": run.eval_metrics,
            "seconds": run.clock.seconds,
            "metrics_length": run.archive.metrics_length,
        },
    }


def load_snapshot(run: Run, checkpoint: Checkpoint, changed: Mapping[str, str] | None = None) -> None:
    """Load everything that a checkpoint holds into a run that was just built; an error names what does not fit it.

    `changed` are the settings whose change lets episodes begin anew, and how each was changed, in words: with another
    `seed` the random streams begin anew too, and with another `num_envs` what has a place for each environment.
    """
    path, state, changed = checkpoint.path, checkpoint.state, changed or {}
    names = {without_task(key) for key in changed}
    left = _memory_of(run) if "num_envs" in names else set()
    if "num_envs" in names:
        state = _for_other_environments(state, run, left)
    with way_out(path, "resume"):
        with loading(path, "state.json", "state"):
            check_like(state, _known_state(run), "state")
        if "seed" not in names:
            with loading(path, "state.json", "rng"):
                restore_streams(run.streams, state["rng"])
        with loading(path, "envs.json", "state"), untouched():  # replays may draw from the global generators
            if changed:
                emptied = ", so the replay buffer starts empty" if left else ""
                run.source.go_on_anew(checkpoint.envs, ", ".join(changed.values()) + emptied)
            else:
                run.source.load_state_dict(checkpoint.envs)
        with loading(path, "model.safetensors", "policy"):
            run.algorithm.policy.load_policy_state(checkpoint.policy)
        with loading(path, "state.json", "algorithm"):
            run.algorithm.load_training_state(state["algorithm"])
        if not left:
            with loading(path, "meta.json", "arrays"):
                load_arrays(run.arrays(), checkpoint.arrays)  # first: the parts may derive the rest from them
        for name in state["parts"].keys() & run.loop.parts.keys() if left else run.loop.parts.keys():
            part = run.loop.parts[name]
            with loading(path, "state.json", f"parts.{name}"):
                part.load_state_dict(state["parts"][name])
        with loading(path, "state.json", "callbacks"):
            run.callbacks.load_state_dict(state["callbacks"])
        with loading(path, "state.json", "trainer"):
            _load_trainer(run, state["trainer"], checkpoint.meta["config"])
    if left and isinstance(latest := run.loop.parts.get("latest"), Latest):
        latest.memory_since = run.steps
    run.archive.known_id = known_run_id(checkpoint.meta.get("run_id"))


def _memory_of(run: Run) -> set[str]:
    """The parts of a loop that remember steps, environment by environment."""
    remembering = getattr(run.loop, "remembering", ())
    return {name for name, part in run.loop.parts.items() if part.arrays} | set(remembering)


def _for_other_environments(state: Mapping[str, Any], run: Run, left: set[str]) -> dict[str, Any]:
    """A saved state without the parts that are left out, and with new values of what every environment has."""
    parts = {name: part for name, part in state["parts"].items() if name not in left}
    return {**state, "parts": parts, "algorithm": refitted(state["algorithm"], run.algorithm.training_state())}


def _known_state(run: Run) -> dict[str, Any]:
    """The state of a run that was just built, without that of the user's own classes, which may be of any form."""
    state = training_state(run)
    if not is_ours(run.algorithm):
        del state["algorithm"]
    state["parts"] = {name: state["parts"][name] for name, part in run.loop.parts.items() if is_ours(part)}
    ours = {name for name, callback in run.callbacks.named() if is_ours(callback)}
    state["callbacks"] = {name: kept for name, kept in state["callbacks"].items() if name in ours}
    return state


def _load_trainer(run: Run, trainer: Mapping[str, Any], saved_config: Mapping[str, Any]) -> None:
    run.should_stop, run.stop_reason = trainer["should_stop"], trainer["stop_reason"]
    run.due, run.previous_steps = trainer["due"], trainer["previous_steps"]
    run.archive.saved = run.steps, run.due
    if not run.config.run.stretch_schedules:
        run.schedules.horizon = trainer["horizon"]
    run.clock.set(trainer["seconds"])
    run.archive.best_step, run.archive.known_metrics = trainer["best_step"], trainer["metrics_length"]
    run.metrics, run.eval_metrics = _numbers(trainer["metrics"]), _numbers(trainer["eval_metrics"])
    restore_hyperparameters(run.config, run.algorithm, trainer["hyperparameters"], saved_config)
    run.refresh(run.steps)  # `Agent.predict` may act before the next step of the loop does this


def _numbers(metrics: Mapping[str, Any]) -> Metrics:
    for name, value in metrics.items():
        if type(value) not in (int, float):
            raise TypeError(f"the metric {name!r} is {value!r:.60}")
    return dict(metrics)
