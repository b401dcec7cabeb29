"""Saves the state of a run as a checkpoint, and restores it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl_training.experiment.manager import versions
from rl_training.experiment.notes import known_run_id
from rl_training.runtime.checkpoints.checkpoint import Checkpoint
from rl_training.runtime.checkpoints.chunk_files import load_arrays
from rl_training.runtime.rng import restore_streams, streams_state, untouched
from rl_training.runtime.schedules import restore_hyperparameters, set_by_hand

if TYPE_CHECKING:
    from rl_training.runtime.run import Run


def take_snapshot(run: Run) -> Checkpoint:
    """A checkpoint of a run as it is now."""
    meta = {
        "step": run.steps,
        "run_id": run.archive.run_id,
        "config": run.config.flat(),
        "spaces": run.info.to_dict(),
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
    """Load everything that a checkpoint holds into a run that was just built."""
    state = checkpoint.state
    restore_streams(run.streams, state["rng"])
    with untouched():  # replaying episodes may draw from the global generators
        run.source.load_state_dict(checkpoint.envs)
    run.algorithm.policy.load_policy_state(checkpoint.policy)
    run.algorithm.load_training_state(state["algorithm"])
    load_arrays(run.arrays(), checkpoint.arrays)  # first: the parts may derive the rest from them
    for name, part in run.loop.parts.items():
        part.load_state_dict(state["parts"][name])
    run.callbacks.load_state_dict(state["callbacks"])
    trainer = state["trainer"]
    run.should_stop, run.stop_reason = trainer["should_stop"], trainer["stop_reason"]
    run.due, run.previous_steps = trainer["due"], trainer["previous_steps"]
    run.archive.saved = run.steps, run.due
    if not run.config.run.stretch_schedules:
        run.schedules.horizon = trainer["horizon"]
    run.clock.set(trainer["seconds"])
    run.archive.best_step, run.archive.known_metrics = trainer["best_step"], trainer["metrics_length"]
    run.archive.known_id = known_run_id(checkpoint.meta.get("run_id"))
    run.metrics, run.eval_metrics = dict(trainer["metrics"]), dict(trainer["eval_metrics"])
    restore_hyperparameters(run.config, run.algorithm, trainer["hyperparameters"], checkpoint.meta["config"])
    run.refresh(run.steps)  # `Agent.predict` may act before the next step of the loop does this
