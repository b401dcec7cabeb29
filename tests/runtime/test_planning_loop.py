"""The loops of algorithms that plan: what they say before they take memory; the preset that nobody has measured."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from rl_training import UserError, train_efficientzero
from rl_training.algorithms.parts.world_policy import Moments
from rl_training.data import replay as replay_module
from rl_training.data.ram import readable
from rl_training.experiment.config import load_config
from rl_training.runtime.loops import memories
from rl_training.runtime.train import build
from rl_training.runtime.workflows import resume_training
from run_helpers import Pulled, PullPlug, latest, metrics_rows, tiny

REANALYSED: dict[str, Any] = {"reanalyze_ratio": 0.5, "num_simulations": 9, "unroll_steps": 3, "vectorization": "sync"}
TASKS: dict[str, Any] = {
    "algo": "scalezero",
    "env_id": None,
    "tasks": {"cartpole": "CartPole-v1", "acrobot": "Acrobot-v1"},
    "width": 16,
    "layers": 2,
    "context_length": 3,
}


def said(caplog: pytest.LogCaptureFixture, **settings: Any) -> list[str]:
    """What is said when a run is built."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "rl_training"):
        build(load_config(tiny(**{"algo": "gumbel_muzero", **settings}))).close()
    return caplog.messages


def test_the_ram_of_replay_and_reanalysis_is_said(caplog: pytest.LogCaptureFixture) -> None:
    run = build(load_config(tiny(algo="gumbel_muzero", **REANALYSED)))
    algorithm: Any = run.algorithm
    states = round(0.5 * algorithm.cfg.batch_size) * 4  # of a window that is unrolled for three steps
    algorithm.teacher.search(np.zeros((states, 4), np.float32), np.random.default_rng(0))
    taken = sum(array.nbytes for array in algorithm.teacher.searcher._tree)
    assert algorithm.reanalysis_bytes() == pytest.approx(taken, rel=0.01)
    run.close()
    first, second = said(caplog, **REANALYSED)
    replay = sum(array.data.nbytes for array in run.loop.memory.replay.arrays.values())
    assert first == f"the replay of 150 transitions takes up to {readable(replay)} of RAM", "records included"
    assert second == f"reanalysis takes up to {readable(algorithm.reanalysis_bytes())} of RAM"
    assert len(said(caplog, **REANALYSED | {"reanalyze_ratio": 0.0})) == 1


@pytest.mark.parametrize("engine", ["auto", "autograd"])
def test_the_ram_of_reanalysis_in_several_tasks_is_that_of_all_of_them(
    engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = build(load_config(tiny(**TASKS, **REANALYSED, engine=engine)))
    algorithm: Any = run.algorithm
    states, taken = round(0.5 * algorithm.cfg.batch_size) * 4, 0
    for task, teacher in algorithm.teachers.items():
        obs = np.zeros((states, 3, *algorithm.tasks[task].obs_shape), np.float32)
        moments = Moments(obs, np.zeros((states, 2), np.int64), np.zeros(states, np.int64))
        teacher.search(moments, np.random.default_rng(0))
        names = ("_cache", "_before") if engine == "auto" else ("_kept", "_seen")
        kept = [getattr(teacher._model, name) for name in names]
        taken += sum(array.nbytes for array in (*teacher.searcher._tree, *kept))
    assert len(algorithm.teachers) == 2
    assert algorithm.reanalysis_bytes() == pytest.approx(taken, rel=0.01)
    run.close()
    *_, last = said(caplog, **TASKS, **REANALYSED, engine=engine)
    assert last == f"reanalysis takes up to {readable(algorithm.reanalysis_bytes())} of RAM"
    without = said(caplog, **TASKS, **REANALYSED | {"reanalyze_ratio": 0.0, "engine": engine})
    assert [words.partition(":")[0] for words in without] == ["task 'cartpole'", "task 'acrobot'"]


@pytest.mark.parametrize("settings", [{"algo": "muzero"}, TASKS], ids=["muzero", "scalezero"])
def test_reanalysis_that_does_not_fit_beside_the_replay_is_refused(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(tiny(**settings, **REANALYSED))
    run = build(config)
    algorithm, loop = cast(Any, run.algorithm), cast(Any, run.loop)
    filled = loop.memories.values() if "tasks" in settings else [loop.memory]
    replay = sum(array.data.nbytes for memory in filled for array in memory.replay.arrays.values())
    run.close()
    for module in (memories, replay_module):
        monkeypatch.setattr(module, "available_memory", lambda: replay + 100)
    with pytest.raises(UserError) as refused:
        build(config)
    assert str(refused.value) == (
        f"reanalyze_ratio=0.5: its searches need {readable(algorithm.reanalysis_bytes())} of RAM beside the replay's "
        f"{readable(replay)}, and {readable(replay + 100)} are available; lower it, batch_size or num_simulations"
    )
    build(config.replace(reanalyze_ratio=0.0)).close()


def test_records_count_in_the_ram_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_module, "available_memory", lambda: 1000)
    with pytest.raises(UserError, match=r"buffer_size=150: needs 9\.\d KiB of RAM, and 1000 bytes are available; at"):
        build(load_config(tiny(algo="muzero", vectorization="sync")))


def test_efficientzero_on_pong_trains_and_resumes(tmp_path: Path) -> None:
    """2,000 steps of the preset, cut in the middle.

    The network, the searches and the minibatches are smaller: with its own the 2,000 steps would take most of an hour
    on two cores. Every part of the algorithm is as in the preset.
    """
    pytest.importorskip("ale_py", reason="the extra atari is not installed")
    small = {"num_simulations": 1, "channels": 4, "blocks": 0, "batch_size": 4, "prefix_size": 8, "projection_size": 8}
    steps = {"total_timesteps": 2_000, "learning_starts": 400, "updates_per_step": 0.02, "buffer_size": 1_500}
    rhythm = {"checkpoint_interval": 1_000, "log_interval": 500, "eval_interval": None, "eval_episodes": 1}
    few = {"num_envs": 4, "time_limit": 260}  # a reset of the emulators takes most of a second
    config = load_config("efficientzero/atari_pong", **small, **steps, **rhythm, **few)
    with pytest.raises(Pulled):
        train_efficientzero(config, run_dir=tmp_path / "run", callbacks=[PullPlug(1_050)])
    assert latest(tmp_path / "run").meta["step"] == 1_000
    result = resume_training(tmp_path / "run")
    assert (result["step"], result["n_updates"]) == (2_000.0, 32.0)
    assert latest(tmp_path / "run").meta["resume"] == "exact"
    assert result["reanalyzed"] == 1.0
    assert {"consistency_loss", "value_error", "temperature"} <= set(result)
    assert [row["step"] for row in metrics_rows(tmp_path / "run")] == [504, 1_000, 1_504, 2_000]
