"""TensorBoard and W&B: what they are told, how they go on after a crash, and that training does not notice them."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from rl_training import PPO, Callback, UserError, evaluate_checkpoint, load_config, resume_training, train
from rl_training.runtime.loggers import ProgressDisplay
from rl_training.runtime.train import WALL_CLOCK
from run_helpers import Pulled, PullPlug, latest, metadata, metrics_rows, tiny, training_differences


def draw_from_every_generator() -> None:
    random.random()
    np.random.rand()
    torch.rand(())


class FakeSession:
    """One `wandb.init` and what was logged to it; like much software it draws random numbers as it goes."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.exit_code: int | None = None

    def log(self, values: dict[str, float], step: int) -> None:
        draw_from_every_generator()
        self.rows.append((step, values))

    def finish(self, exit_code: int) -> None:
        draw_from_every_generator()
        self.exit_code = exit_code


class FakeWandb:
    """As much of W&B as is used."""

    class Error(Exception):
        pass

    def __init__(self, mode: str = "offline", logged_in: bool = False, fails: str = "") -> None:
        self.mode, self.logged_in, self.fails = mode, logged_in, fails
        self.sessions: list[FakeSession] = []

    def setup(self) -> Any:
        return SimpleNamespace(settings=SimpleNamespace(mode=self.mode))

    def login(self, *, prompt: bool, verify: bool) -> bool:
        assert not prompt, "a run in the background cannot answer"
        return self.logged_in

    def init(self, **options: Any) -> FakeSession:
        if self.fails:
            raise self.Error(self.fails)
        draw_from_every_generator()
        self.sessions.append(FakeSession(options))
        return self.sessions[-1]


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)  # type: ignore[arg-type]
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return fake


def scalars(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    """What a reader of TensorBoard's files sees: (step, value) by name."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


def logged(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    """The same of metrics.jsonl, as numbers of TensorBoard's width; timings are passed over."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in metrics_rows(run_dir):
        step = int(row.pop("step"))
        for name, value in row.items():
            found.setdefault(name, []).append((step, float(np.float32(value))))
    return found


def without_timings(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in WALL_CLOCK}


def test_tensorboard_gets_every_metric_of_every_row(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    result = train(tiny(tmp_path, loggers=["tensorboard"], eval_interval=60))
    found = scalars(result.run_dir)
    assert len(found["policy_loss"]) >= 8
    assert len(found["eval_return_mean"]) >= 3
    assert {"seconds", "steps_per_second"} < set(found)
    assert without_timings(found) == logged(result.run_dir)


def test_tensorboard_goes_on_after_a_crash_without_a_step_twice(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    settings = tiny(tmp_path, loggers=["tensorboard"], env_id="Acrobot-v1", checkpoint_interval=96)
    run_dir = tmp_path / "crashed"
    with pytest.raises(Pulled):
        train(settings, run_dir=run_dir, callbacks=[PullPlug(180)])
    before = [step for step, _ in scalars(run_dir)["policy_loss"]]
    assert before[-1] == 168 > latest(run_dir).meta["step"] == 96, "rows beyond the checkpoint are what is at stake"
    resume_training(run_dir)
    straight = train(settings, run_dir=tmp_path / "straight")
    found = scalars(run_dir)
    steps = [step for step, _ in found["policy_loss"]]
    assert steps == sorted(set(steps))
    assert without_timings(found) == without_timings(scalars(straight.run_dir)) == logged(run_dir)


def test_what_a_checkpoint_counts_as_written_is_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed writes nothing more, so it must have happened when the checkpoint was written."""
    writers = pytest.importorskip("tensorboard.summary.writer.record_writer")
    write, seen = writers.RecordWriter.write, list[int]()

    def write_slowly(self: Any, data: bytes) -> None:
        time.sleep(0.002)  # in a thread of its own, to which the last values of a row are still on their way
        write(self, data)

    monkeypatch.setattr(writers.RecordWriter, "write", write_slowly)

    class Look(Callback):
        def on_checkpoint(self, run: Any, path: Path) -> None:
            if run.steps:
                seen.append(run.steps)
                assert scalars(run.folder.path)["steps_per_second"][-1][0] == run.steps

    train(tiny(tmp_path, loggers=["tensorboard"], env_id="Acrobot-v1"), callbacks=[Look()])
    assert seen == [96, 192, 240]


def test_training_does_not_notice_its_loggers(tmp_path: Path, wandb: FakeWandb) -> None:
    pytest.importorskip("tensorboard")
    watched = train(tiny(tmp_path, loggers=["tensorboard", "wandb"]))
    alone = train(tiny(tmp_path))
    assert wandb.sessions[0].rows
    assert training_differences(latest(watched.run_dir), latest(alone.run_dir)) == []
    assert metrics_rows(watched.run_dir) == metrics_rows(alone.run_dir)


def test_wandb_is_told_what_the_run_is_and_every_row(tmp_path: Path, wandb: FakeWandb) -> None:
    result = train(tiny(tmp_path, loggers=["wandb"], tags=["small", "test"], eval_interval=60))
    (session,) = wandb.sessions
    told = session.options
    assert told["config"] == load_config(result.run_dir / "config.yaml").flat()
    assert told["config"]["n_epochs"] == 2
    assert told["tags"] == ["small", "test"]
    assert told["name"] == result.run_dir.name
    assert told["dir"] == str(result.run_dir)
    assert told["project"] == "rl_training"
    assert session.exit_code == 0
    rows = [{"step": float(step)} | without_timings(values) for step, values in session.rows]
    assert rows == metrics_rows(result.run_dir)
    assert any("eval_return_mean" in row for row in rows)


def test_a_resumed_run_continues_its_wandb_run(tmp_path: Path, wandb: FakeWandb) -> None:
    settings = tiny(tmp_path, loggers=["wandb"])
    with pytest.raises(Pulled):
        train(settings, run_dir=tmp_path / "crashed", callbacks=[PullPlug(150)])
    saved = latest(tmp_path / "crashed").meta["step"]
    resume_training(tmp_path / "crashed")
    train(settings, run_dir=tmp_path / "other")
    first, second, other = wandb.sessions
    assert first.options["id"] == second.options["id"] != other.options["id"]
    assert second.options["resume"] == "allow"
    assert second.options["allow_val_change"] is True
    assert [session.exit_code for session in wandb.sessions] == [1, 0, 0], "a crash is no success"
    assert saved < second.rows[0][0] <= first.rows[-1][0], "it goes on from its checkpoint"


def test_a_run_that_crashed_before_its_first_save_keeps_its_wandb_run(tmp_path: Path, wandb: FakeWandb) -> None:
    with pytest.raises(Pulled):
        train(tiny(tmp_path, loggers=["wandb"]), run_dir=tmp_path / "crashed", callbacks=[PullPlug(0)])
    resume_training(tmp_path / "crashed")
    first, second = wandb.sessions
    assert first.options["id"] == second.options["id"]


def test_the_project_of_wandb_can_be_chosen(tmp_path: Path, wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    train(tiny(tmp_path, loggers=["wandb"], total_timesteps=24))
    assert wandb.sessions[0].options["project"] == "mine"


def test_wandb_without_an_account_is_said_before_anything_is_written(tmp_path: Path, wandb: FakeWandb) -> None:
    wandb.mode = "online"
    with pytest.raises(UserError, match=r"wandb login.*WANDB_MODE=offline"):
        train(tiny(tmp_path, loggers=["wandb"]))
    assert list(tmp_path.iterdir()) == []
    wandb.logged_in = True
    train(tiny(tmp_path, loggers=["wandb"], total_timesteps=24))
    assert len(wandb.sessions) == 1


def test_wandb_that_does_not_start_is_one_message(tmp_path: Path, wandb: FakeWandb) -> None:
    wandb.fails = "tags are too long"
    with pytest.raises(UserError, match="W&B did not start: tags are too long"):
        train(tiny(tmp_path, loggers=["wandb"]), run_dir=tmp_path / "run")
    assert metadata(tmp_path / "run")["stop_reason"] == "failed"


def test_the_real_wandb_writes_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / "wandb-home"))
    settings = tiny(tmp_path, loggers=["wandb"], tags=["small"])
    with pytest.raises(Pulled):
        train(settings, run_dir=tmp_path / "run", callbacks=[PullPlug(150)])
    result = resume_training(tmp_path / "run")
    assert training_differences(latest(result.run_dir), latest(train(tiny(tmp_path)).run_dir)) == []
    run_id = latest(result.run_dir).state["callbacks"]["WeightsAndBiases.0"]["run_id"]
    sessions = list((result.run_dir / "wandb").glob("offline-run-*"))
    assert len(sessions) == 2
    assert all((session / f"run-{run_id}.wandb").stat().st_size > 0 for session in sessions)


@pytest.mark.parametrize(("logger", "module"), [("tensorboard", "tensorboard"), ("wandb", "wandb")])
def test_a_missing_extra_is_said_before_anything_is_written(
    logger: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=rf"loggers='{logger}'.*pip install 'rl-training\[{logger}\]'"):
        train(tiny(tmp_path, loggers=[logger]))
    assert list(tmp_path.iterdir()) == []


def test_judging_a_checkpoint_needs_no_logger(
    tmp_path: Path, wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = train(tiny(tmp_path, loggers=["wandb"], total_timesteps=24))
    monkeypatch.setitem(sys.modules, "wandb", None)  # type: ignore[arg-type]
    assert evaluate_checkpoint(result.run_dir)["eval_return_mean"] == result["eval_return_mean"]


def test_the_names_of_loggers_are_checked() -> None:
    with pytest.raises(UserError, match=r"loggers.*'tensorbord'.*did you mean 'tensorboard'"):
        load_config(tiny(), loggers=["tensorbord"])
    assert load_config(tiny()).run.loggers == ()
    assert load_config(tiny(), ["loggers=tensorboard"]).run.loggers == ("tensorboard",)
    assert load_config(tiny(), ["loggers=[wandb,tensorboard,wandb]"]).run.loggers == ("wandb", "tensorboard")


def test_an_agent_without_a_folder_says_what_its_logger_needs(wandb: FakeWandb) -> None:
    settings = {key: value for key, value in tiny().items() if key not in ("algo", "env_id")}
    agent = PPO("CartPole-v1", **settings, loggers=["wandb"])
    with pytest.raises(UserError, match="give output_dir"):
        agent.learn(24)
    agent.close()


def test_an_agent_opens_its_loggers_for_every_learn(tmp_path: Path, wandb: FakeWandb) -> None:
    settings = {key: value for key, value in tiny(tmp_path).items() if key not in ("algo", "env_id")}
    agent = PPO("CartPole-v1", **settings, loggers=["wandb"])
    agent.learn(48).learn(48)
    agent.close()
    first, second = wandb.sessions
    assert first.options["id"] == second.options["id"]
    assert first.rows[-1][0] < second.rows[0][0]
    assert (first.exit_code, second.exit_code) == (0, 0)


def test_callbacks_see_every_row_and_are_closed_after_an_error() -> None:
    class Watching(Callback):
        def __init__(self) -> None:
            self.rows: list[float] = []
            self.closed = 0

        def on_log(self, run: Any, row: dict[str, float]) -> None:
            self.rows.append(row["step"])

        def close(self) -> None:
            self.closed += 1

    watching = Watching()
    settings = {key: value for key, value in tiny().items() if key not in ("algo", "env_id")}
    agent = PPO("Acrobot-v1", **settings)
    agent.learn(72, watching)
    assert (watching.rows, watching.closed) == ([24.0, 48.0, 72.0], 1)
    with pytest.raises(Pulled):
        agent.learn(72, [watching, PullPlug(90)])
    assert watching.closed == 2
    agent.close()


def test_a_live_display_gives_the_terminal_back_after_an_error(tmp_path: Path) -> None:
    screen = StringIO()
    display = ProgressDisplay(Console(file=screen, force_terminal=True))
    with pytest.raises(Pulled):
        train(tiny(tmp_path), callbacks=[display, PullPlug(48)])
    hidden, shown = screen.getvalue().rfind("\x1b[?25l"), screen.getvalue().rfind("\x1b[?25h")
    assert 0 <= hidden < shown, "the cursor stays hidden"


def test_nothing_is_imported_that_was_not_asked_for() -> None:
    code = (
        "import json, sys\n"
        "import rl_training.cli\n"
        "light = set(sys.modules)\n"
        "import rl_training.runtime.train\n"
        "print(json.dumps([sorted(light), sorted(sys.modules)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    light, driver = map(set, json.loads(done.stdout))
    assert light.isdisjoint({"torch", "gymnasium", "numpy", "matplotlib", "rich", "pydantic"})
    assert driver.isdisjoint({"tensorboard", "torch.utils.tensorboard", "wandb", "matplotlib"})
    assert "torch" in driver
