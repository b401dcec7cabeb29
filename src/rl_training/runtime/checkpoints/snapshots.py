"""Saves the state of a run as a checkpoint, and restores it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rl_training.experiment.manager import versions
from rl_training.experiment.notes import known_run_id
from rl_training.runtime.checkpoints.checkpoint import Checkpoint, way_out
from rl_training.runtime.checkpoints.chunk_files import load_arrays
from rl_training.runtime.checkpoints.fitting import is_ours, loading
from rl_training.runtime.checkpoints.spaces import write_spaces
from rl_training.runtime.rng import restore_streams, streams_state, untouched
from rl_training.runtime.schedules import restore_hyperparameters, set_by_hand
from rl_training.runtime.trees import check_like
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


def load_snapshot(run: Run, checkpoint: Checkpoint) -> None:
    """Load everything that a checkpoint holds into a run that was just built; an error names what does not fit it."""
    path, state = checkpoint.path, checkpoint.state
    with way_out(path, "resume"):
        with loading(path, "state.json", "state"):
            check_like(state, _known_state(run), "state")
        with loading(path, "state.json", "rng"):
            restore_streams(run.streams, state["rng"])
        with loading(path, "envs.json", "state"), untouched():  # replays may draw from the global generators
            run.source.load_state_dict(checkpoint.envs)
        with loading(path, "model.safetensors", "policy"):
            run.algorithm.policy.load_policy_state(checkpoint.policy)
        with loading(path, "state.json", "algorithm"):
            run.algorithm.load_training_state(state["algorithm"])
        with loading(path, "meta.json", "arrays"):
            load_arrays(run.arrays(), checkpoint.arrays)  # first: the parts may derive the rest from them
        for name, part in run.loop.parts.items():
            with loading(path, "state.json", f"parts.{name}"):
                part.load_state_dict(state["parts"][name])
        with loading(path, "state.json", "callbacks"):
            run.callbacks.load_state_dict(state["callbacks"])
        with loading(path, "state.json", "trainer"):
            _load_trainer(run, state["trainer"], checkpoint.meta["config"])
    run.archive.known_id = known_run_id(checkpoint.meta.get("run_id"))


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
