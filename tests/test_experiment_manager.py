"""The folder of a run: its name, what is in it, and that no run ever writes over another."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

import rl_training
from rl_training import PPO, UserError, load_config, resume_training, train
from rl_training.data.disk import write_atomically
from rl_training.experiment import manager
from rl_training.experiment.manager import RunFolder, run_name, versions
from rl_training.runtime.checkpoints.drafts import create_folder
from rl_training.runtime.train import WALL_CLOCK
from run_helpers import Pulled, PullPlug, differences, metadata, metrics_rows, tiny


def create(path: Path | None, output_dir: Path, name: str, fill: Callable[[RunFolder], None]) -> RunFolder:
    """A new folder that no process holds any more."""
    made, lock = create_folder(path, str(output_dir), name, lambda draft: fill(RunFolder(draft)))
    lock.release()
    return RunFolder(made)


def test_the_name_says_algorithm_environment_seed_and_time() -> None:
    assert re.fullmatch(r"ppo__CartPole-v1__seed3__\d{8}-\d{6}", run_name("ppo", "CartPole-v1", 3))
    assert run_name("td3_bc", "my__Env", 3).startswith("td3_bc__my_Env__seed3__")
    name = run_name("my_pkg:SPEC", "ALE/Pong-v5 ../x", 0)
    assert re.fullmatch(r"my_pkg-SPEC__ALE-Pong-v5-\.\.-x__seed0__\d{8}-\d{6}", name)
    assert not name.startswith(".")


def test_the_name_of_a_folder_is_never_too_long(tmp_path: Path) -> None:
    names = [
        run_name("my_pkg:" + "A" * 300, title, 2**62)
        for title in ("+".join(["task"] * 99), "\N{GREEK SMALL LETTER MU}" * 300)
    ]
    for name in names:
        assert len(name.encode()) < 230  # a draft's name is longer
        assert re.search(rf"__seed{2**62}__\d{{8}}-\d{{6}}$", name)
    assert names[0].split("__")[1] == "-".join(["task"] * 16)
    for _ in range(2):
        made, lock = create_folder(None, str(tmp_path), names[1], lambda draft: None)
        lock.release()
        assert made.is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == [names[1], f"{names[1]}-2"]


def test_what_is_in_the_folder(tmp_path: Path) -> None:
    result = train(tiny(tmp_path, seed=3, tags=["a", "b"], ent_coef_schedule=0.1, ent_coef=0.2))
    assert result.run_dir is not None
    assert result.run_dir.parent == tmp_path
    assert re.fullmatch(r"ppo__CartPole-v1__seed3__\d{8}-\d{6}", result.run_dir.name)
    assert {path.name for path in result.run_dir.iterdir()} == {
        "config.yaml",
        "metadata.json",
        "metrics.jsonl",
        "checkpoints",
        ".lock",
    }
    assert [path for path in tmp_path.iterdir() if path != result.run_dir] == []


def test_the_resolved_config_is_written_and_can_be_read_back(tmp_path: Path) -> None:
    config = tiny(tmp_path, ent_coef_schedule={"type": "cosine", "end": 0.1}, ent_coef=0.2, clip_range=0.3)
    result = train(config)
    assert result.run_dir is not None
    written = OmegaConf.to_container(OmegaConf.load(result.run_dir / "config.yaml"))
    assert isinstance(written, dict)
    assert written["clip_coef"] == 0.3
    assert "clip_range" not in written
    assert written["gamma"] == 0.99, "defaults are written too"
    assert load_config(result.run_dir / "config.yaml") == load_config(config)


def test_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/rl-training", "train", "ppo/cartpole"])
    result = train(tiny(tmp_path))
    assert result.run_dir is not None
    known = metadata(result.run_dir)
    assert known["command"] == ["rl-training", "train", "ppo/cartpole"]
    assert known["versions"] == versions()
    assert known["versions"]["rl_training"] == rl_training.__version__
    assert known["stop_reason"] == "completed"
    assert known["steps"] == result["step"]
    assert differences(known["result"], dict(result)) == []
    assert "git" in known
    assert re.match(r"\d{4}-\d\d-\d\dT", known["started"])


def test_metadata_of_a_run_that_died_says_so_by_its_silence(tmp_path: Path) -> None:
    folder = create(None, tmp_path, "name", lambda folder: folder.update_metadata(result=None))
    folder.update_metadata(steps=5)
    assert metadata(folder.path) == {"result": None, "steps": 5}
    folder.note_resumption(5, ["a"])
    folder.note_resumption(9, [])
    assert [(entry["step"], entry["changes"]) for entry in metadata(folder.path)["resumed"]] == [(5, ["a"]), (9, [])]


def test_a_failed_run_is_recorded_as_failed(tmp_path: Path) -> None:
    with pytest.raises(Pulled):
        train(tiny(), run_dir=tmp_path / "run", callbacks=[PullPlug(100)])
    assert metadata(tmp_path / "run")["stop_reason"] == "failed: Pulled()"
    resume_training(tmp_path / "run")
    assert metadata(tmp_path / "run")["stop_reason"] == "completed"


def test_every_row_of_metrics_is_one_line_of_json(tmp_path: Path) -> None:
    result = train(tiny(vectorization="sync"), run_dir=tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["step"] for row in rows] == list(range(24, 264, 24))
    assert all({"seconds", "steps_per_second"} <= row.keys() for row in rows)
    assert {"ent_coef", "clip_coef", "learning_rate"} <= rows[0].keys()
    kept = {key: value for key, value in result.items() if key not in WALL_CLOCK}
    assert metrics_rows(tmp_path / "run")[-1] == kept


def test_two_runs_of_one_name_get_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager.time, "strftime", lambda form: "20260312-101112")
    results = [train(tiny(tmp_path, total_timesteps=24)) for _ in range(3)]
    names = [result.run_dir.name for result in results if result.run_dir is not None]
    base = "ppo__CartPole-v1__seed0__20260312-101112"
    assert names == [base, f"{base}-2", f"{base}-3"]
    for result in results:
        assert result.run_dir is not None
        assert len(metrics_rows(result.run_dir)) == 1


def test_runs_that_start_at_the_same_moment_never_meet(tmp_path: Path) -> None:
    """Many creators of one name at once, each with its own content: every one gets its own folder."""
    barrier = threading.Barrier(8, timeout=20)
    made: list[Path] = []
    failures: list[BaseException] = []

    def start(number: int) -> None:
        def fill(folder: RunFolder) -> None:
            (folder.path / "number").write_text(str(number))
            barrier.wait()

        try:
            made.append(create(None, tmp_path, "name", fill).path)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=start, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert len(set(made)) == 8
    assert sorted((path / "number").read_text() for path in made) == [str(number) for number in range(8)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["name", *(f"name-{number}" for number in range(2, 9))]


def test_a_run_dir_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("full", "file"):
        with pytest.raises(UserError, match=r"exists already; resume it, or choose another"):
            train(tiny(), run_dir=tmp_path / name)
    assert (tmp_path / "full" / "precious").read_text() == "mine"
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full"]


def test_an_empty_run_dir_is_filled_and_parents_are_made(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert train(tiny(total_timesteps=24), run_dir=tmp_path / "empty").run_dir == tmp_path / "empty"
    assert train(tiny(total_timesteps=24), run_dir=tmp_path / "a" / "b").run_dir == tmp_path / "a" / "b"


def test_a_run_dir_that_fills_while_the_run_is_prepared_is_not_touched(tmp_path: Path) -> None:
    def fill(folder: RunFolder) -> None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "precious").write_text("mine")

    with pytest.raises(UserError, match="exists already"):
        create(tmp_path / "run", tmp_path / "unused", "unused", fill)
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "precious"]


def test_what_fails_while_a_run_is_prepared_leaves_nothing(tmp_path: Path) -> None:
    def fill(folder: RunFolder) -> None:
        (folder.path / "something").write_text("x")
        raise KeyError("a mistake")

    with pytest.raises(KeyError):
        create(None, tmp_path / "runs", "name", fill)
    assert list(tmp_path.rglob("*")) in ([], [tmp_path / "runs"])


def test_files_are_replaced_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    write_atomically(file, "one")

    def fail(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(manager.os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_atomically(file, "two")
    assert file.read_text() == "one"


def test_metrics_are_cut_to_a_length(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.metrics_length() == 0
    folder.cut_metrics(0)
    folder.append_metrics({"step": 1})
    length = folder.metrics_length()
    folder.append_metrics({"step": 2})
    assert folder.metrics_length() == 2 * length
    folder.cut_metrics(length)
    assert metrics_rows(tmp_path) == [{"step": 1}]
    folder.cut_metrics(10 * length)
    assert metrics_rows(tmp_path) == [{"step": 1}]


def test_the_config_in_the_folder_is_that_of_the_latest_learn(tmp_path: Path) -> None:
    agent = PPO("CartPole-v1", **{key: value for key, value in tiny(tmp_path).items() if key not in ("algo", "env_id")})
    agent.learn(24).learn(48)
    agent.close()
    (run_dir,) = tmp_path.iterdir()
    assert load_config(run_dir / "config.yaml").run.total_timesteps == 72
