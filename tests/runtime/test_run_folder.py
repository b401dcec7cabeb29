"""What is wrong with a run's folder is said in a line, harms nothing else, and keeps no run from going on."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from rl_training import PPO, UserError, evaluate_checkpoint, resume_training, train
from rl_training.experiment.config import load_config
from rl_training.experiment.manager import RunFolder
from rl_training.runtime.checkpoints.catalogue import find_checkpoint
from rl_training.runtime.checkpoints.drafts import create_folder, sweep_drafts
from run_helpers import (
    Command,
    Pulled,
    PullPlug,
    Said,
    checkpoint_names,
    latest,
    metadata,
    metrics_rows,
    own_copy,
    run_differences,
    tiny,
)

CONFIG = tiny(vectorization="sync", checkpoint_interval=48, eval_interval=48, keep_checkpoints=3)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never disturbed, and one that ended in the middle; they are only read."""
    folder = tmp_path_factory.mktemp("runs")
    train(CONFIG, run_dir=folder / "whole")
    with pytest.raises(Pulled):
        train(CONFIG, run_dir=folder / "cut", callbacks=[PullPlug(120)])
    return folder


@pytest.fixture
def cut(runs: Path, tmp_path: Path) -> Path:
    """The run that ended in the middle, to be damaged."""
    return own_copy(runs / "cut", tmp_path / "run")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """The command, called in the folder that the run is in."""
    monkeypatch.chdir(tmp_path)
    return Command(monkeypatch, capsys)


def contents(folder: Path) -> dict[str, Any]:
    """All files of a folder with what is in them, and where links lead."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def one_line(said: Said, *words: str) -> None:
    assert said.code == 2, said
    assert said.out == ""
    assert len(said.err.splitlines()) == 1, said.err
    assert said.err.startswith("error: ")
    for word in words:
        assert word in said.err, said.err


# Links.

NAMES = [
    ".lock",
    "config.yaml",
    "metadata.json",
    "metrics.jsonl",
    "checkpoints",
    "tensorboard",
    "wandb",
    "checkpoints/latest",
    "checkpoints/best",
    "checkpoints/step_96",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("gone", [False, True])
def test_a_link_is_refused_by_name_and_what_it_points_to_is_untouched(
    name: str, gone: bool, cut: Path, tmp_path: Path, command: Command
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if (cut / name).exists():
        (cut / name).rename(elsewhere / "target")
    else:
        (elsewhere / "target").mkdir()
    (cut / name).symlink_to(elsewhere / "target")
    if gone:
        (elsewhere / "target").rename(elsewhere / "moved")
    before = contents(tmp_path)
    one_line(command("resume", "run", "--quiet"), f"'run/{name}'", "is a symbolic link")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["metrics.jsonl", ".lock", "checkpoints/latest", "config.yaml"])
def test_what_is_neither_file_nor_folder_is_refused_and_nobody_waits_for_it(
    name: str, cut: Path, command: Command
) -> None:
    (cut / name).unlink()
    os.mkfifo(cut / name)
    one_line(command("resume", "run", "--quiet"), f"'run/{name}'", "is a special file")
    if name == "checkpoints/latest":
        one_line(command("eval", "run"), f"'run/{name}'", "is a special file")
    if name in ("metrics.jsonl", "config.yaml"):
        one_line(command("plot", "run"), f"'run/{name}'", "is a special file")


@pytest.mark.parametrize("name", ["metrics.jsonl", ".lock", "checkpoints/latest", "metadata.json"])
def test_a_folder_in_the_place_of_a_file_is_refused(name: str, cut: Path, command: Command) -> None:
    (cut / name).unlink()
    (cut / name).mkdir()
    before = contents(cut)
    one_line(command("resume", "run", "--quiet"), f"'run/{name}'", "is a folder")
    assert contents(cut) == before


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/latest", "checkpoints/step_96"])
def test_readers_refuse_links_too(name: str, cut: Path, tmp_path: Path, command: Command) -> None:
    (cut / name).rename(tmp_path / "target")
    (cut / name).symlink_to(tmp_path / "target")
    for work in (evaluate_checkpoint, PPO.load):
        with pytest.raises(UserError, match="is a symbolic link"):
            work(cut)
    one_line(command("eval", "run"), f"'run/{name}'", "is a symbolic link")


def test_a_plot_is_not_written_through_a_link(cut: Path, tmp_path: Path, command: Command) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "precious").write_text("mine")
    (cut / "plot.png").symlink_to(tmp_path / "precious")
    one_line(command("plot", "run"), "'run/plot.png'", "is a symbolic link")
    assert (tmp_path / "precious").read_text() == "mine"
    assert command("plot", "run", "--output", "other.png").code == 0


def test_a_run_that_is_reached_through_a_link_is_usable(runs: Path, cut: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(cut)
    (tmp_path / "above").symlink_to(tmp_path)
    evaluate_checkpoint(tmp_path / "link")
    with pytest.raises(Pulled):
        resume_training(tmp_path / "link", callbacks=[PullPlug(144)])
    assert resume_training(tmp_path / "above" / "run").stop_reason == "completed"
    assert run_differences(runs / "whole", cut) == []


@pytest.mark.parametrize("name", ["latest", "best"])
def test_a_pointer_leads_nowhere_but_to_a_checkpoint_of_its_folder(name: str, cut: Path, runs: Path) -> None:
    shutil.copytree(runs / "whole", cut.parent / "other")
    (cut / "checkpoints" / name).write_text("../../other/checkpoints/step_240")
    if name == "latest":
        assert find_checkpoint(cut).name == "step_96"
    else:
        with pytest.raises(UserError, match="holds no best checkpoint"):
            find_checkpoint(cut, "best")
    with pytest.raises(UserError, match="has no checkpoint"):
        find_checkpoint(cut, "../../other/checkpoints/step_240")


def test_a_backup_of_hard_links_stays_as_it_is(cut: Path, tmp_path: Path) -> None:
    shutil.copytree(cut, tmp_path / "backup", copy_function=os.link)
    before = contents(tmp_path / "backup")
    resume_training(cut)
    assert contents(tmp_path / "backup") == before


# Damage.


DAMAGES = {
    "missing": None,
    "empty": b"",
    "binary": b"\xff\xfe\x00\x80",
    "a list": b"[1, 2]\n",
    "a number": b"7\n",
    "nested": b"[" * 100_000,
    "torn": b'{"resumed": [{"st',
}


def damage(file: Path, what: str) -> None:
    content = DAMAGES[what]
    file.unlink() if content is None else file.write_bytes(content)


@pytest.mark.parametrize("what", DAMAGES)
def test_only_a_checkpoint_is_needed_to_resume(what: str, cut: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("metadata.json", "config.yaml", "checkpoints/latest", "checkpoints/best"):
        damage(cut / name, what)
    with pytest.raises(Pulled):
        resume_training(cut, callbacks=[PullPlug(0)])
    words = [record.getMessage() for record in caplog.records]
    metadata_was = "missing" if what == "missing" else "damaged"
    assert f"resumed at step 96: metadata.json was {metadata_was}: it is written anew" in words
    taken = f"{str(cut / 'checkpoints' / 'latest')!r}: names no checkpoint of the run; taking the newest, step_96"
    assert (taken in words) == (what != "missing")
    assert [entry["step"] for entry in metadata(cut)["resumed"]] == [96]
    assert {"command", "versions", "platform"} <= metadata(cut).keys()
    assert load_config(cut / "config.yaml").run.total_timesteps == 240
    assert (cut / "checkpoints" / "latest").read_text() == "step_96\n"
    assert latest(cut, "best").meta["step"] == latest(cut).state["trainer"]["best_step"]


def test_a_run_of_which_only_a_checkpoint_is_left_ends_as_it_should(runs: Path, cut: Path) -> None:
    for path in (*cut.iterdir(), *(cut / "checkpoints").iterdir()):
        if path.name not in ("checkpoints", "step_96"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    resume_training(cut)
    shutil.copy(runs / "whole" / "metrics.jsonl", cut)  # of which rows are lost
    assert run_differences(runs / "whole", cut) == []


def test_resumed_that_is_no_list_is_replaced(cut: Path) -> None:
    (cut / "metadata.json").write_text('{"resumed": 7, "command": ["mine"]}')
    resume_training(cut)
    assert [entry["step"] for entry in metadata(cut)["resumed"]] == [96]
    assert metadata(cut)["command"] == ["mine"]


def test_a_latest_of_a_checkpoint_that_is_gone_is_said(cut: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.rmtree(cut / "checkpoints" / "step_96")
    assert evaluate_checkpoint(cut)["step"] == 48
    assert "names no checkpoint of the run; taking the newest, step_48" in caplog.records[0].getMessage()


def test_a_checkpoint_without_its_description_is_moved_aside(cut: Path, runs: Path) -> None:
    (cut / "checkpoints" / "step_96" / "meta.json").unlink()
    resume_training(cut)
    assert [entry["step"] for entry in metadata(cut)["resumed"]] == [48]
    assert (cut / "checkpoints" / ".superseded-1" / "step_96").is_dir()
    assert run_differences(runs / "whole", cut) == []


@pytest.mark.parametrize(
    ("length", "said"),
    [(None, "metrics.jsonl was missing"), (0, "metrics.jsonl had 0 of the"), (400, "metrics.jsonl had 400 of the")],
)
def test_metrics_that_are_shorter_than_the_checkpoint_knows_are_said(
    length: int | None, said: str, cut: Path, command: Command
) -> None:
    file = cut / "metrics.jsonl"
    whole = file.read_bytes()
    if length is None:
        file.unlink()
    else:
        file.write_bytes(whole[:length])
    told = command("resume", "run")
    assert told.code == 0
    assert [line for line in told.err.splitlines() if "metrics" in line] == [
        line for line in told.err.splitlines() if line.startswith(f"resumed at step 96: {said}")
    ]
    assert len([line for line in told.err.splitlines() if "metrics" in line]) == 1
    kept = whole[: length or 0].count(b"\n")
    steps = [row["step"] for row in metrics_rows(cut)]
    assert steps == [24, 48, 72, 96][:kept] + list(range(120, 264, 24)), "no row is torn"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.yaml", b"", "config.yaml"),
        ("config.yaml", b"\xff\x00", "config.yaml"),
        ("config.yaml", b"- 1\n- 2\n", "config.yaml"),
        ("config.yaml", b"7: 1\n", "config.yaml"),
        ("config.yaml", b"[" * 600, "config.yaml"),
        ("config.yaml", b"a: &a [1]\nb: &b [*a, *a]\nc: [*b, *b]\n", "config.yaml"),
        ("metrics.jsonl", b"[1]\n", "line 1"),
        ("metrics.jsonl", b'{"step": 1.0}\n{"stop": 2.0}\n', "line 2"),
        ("metrics.jsonl", b'{"step": "x"}\n', "line 1"),
        ("metrics.jsonl", b'{"step": 1e999}\n', "line 1"),
        ("metrics.jsonl", b'{"step": 1, "loss": {}}\n', "line 1"),
        ("metrics.jsonl", b'{"step": 1' + b"0" * 400 + b"}\n", "line 1"),
        ("metrics.jsonl", b"\xff\xfe\n", "metrics.jsonl"),
        ("metrics.jsonl", b"[" * 100_000 + b"\n", "line 1"),
        ("metrics.jsonl", b"", "has no metrics yet"),
    ],
)
def test_a_plot_of_what_cannot_be_read_is_one_line(
    name: str, content: bytes, words: str, cut: Path, command: Command
) -> None:
    pytest.importorskip("matplotlib")
    (cut / name).write_bytes(content)
    before = contents(cut)
    one_line(command("plot", "run"), "'run", words)
    assert contents(cut) == before


# What dead processes left behind.


def test_leftovers_in_a_run_are_swept_when_it_goes_on(cut: Path, runs: Path) -> None:
    for name in (
        ".metadata.json.77",
        ".config.yaml.5",
        ".metrics.jsonl.6",
        "checkpoints/.latest.8",
        "checkpoints/.best.9",
    ):
        (cut / name).write_text("half")
    for name in (".draft-step_120-7", ".dropped-step_0"):
        shutil.copytree(cut / "checkpoints" / "step_48", cut / "checkpoints" / name)
    shutil.copytree(cut / "checkpoints" / "step_96", cut / "checkpoints" / ".replaced-step_96")
    mine = [cut / ".config.yaml.mine", cut / ".notes", cut / "checkpoints" / ".keep"]
    for path in mine:
        path.write_text("mine")
    with pytest.raises(Pulled):
        resume_training(cut, callbacks=[PullPlug(0)])
    hidden = {str(path.relative_to(cut)) for path in cut.rglob(".*")}
    assert hidden == {".lock", *(str(path.relative_to(cut)) for path in mine)}
    assert checkpoint_names(cut) == checkpoint_names(runs / "cut")


def test_leftovers_in_a_run_that_has_ended_are_swept_too(tmp_path: Path) -> None:
    """It may have been killed while it wrote its last words."""
    train(tiny(total_timesteps=48), run_dir=tmp_path / "run")
    (tmp_path / "run" / ".metadata.json.77").write_text("half")
    with pytest.raises(UserError, match="this run has ended"):
        resume_training(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").glob(".*")] == [".lock"]


def killed_while_it_makes_a_run(parent: Path, at: Path) -> None:
    def fill(draft: Path) -> None:
        RunFolder(draft).checkpoints.mkdir()
        RunFolder(draft).write_config({"algo": "ppo"})
        at.touch()
        time.sleep(60)

    create_folder(None, str(parent), "name", fill)


def drafts_of(parent: Path) -> list[Path]:
    return [path for path in parent.iterdir() if path.name.startswith(".name.")]


def test_drafts_of_runs_are_swept_once_their_process_is_dead(
    processes: Any, runs: Path, cut: Path, tmp_path: Path
) -> None:
    process = processes.Process(target=killed_while_it_makes_a_run, args=(tmp_path, tmp_path / "at"))
    process.start()
    while not (tmp_path / "at").exists():
        assert process.is_alive()
        time.sleep(0.005)
    foreign = tmp_path / ".other.0123456789ab"
    foreign.mkdir()
    (foreign / "precious").write_text("mine")
    (foreign / ".lock").write_text("mine too")
    (tmp_path / ".link.0123456789ab").symlink_to(foreign)
    train(CONFIG | {"total_timesteps": 24}, run_dir=tmp_path / "new")
    assert len(drafts_of(tmp_path)) == 1, "its process lives"
    process.kill()
    process.join()
    resume_training(cut)
    assert drafts_of(tmp_path) == []
    assert contents(foreign) == {"precious": b"mine", ".lock": b"mine too"}


def test_drafts_that_were_hardly_begun_are_swept(tmp_path: Path) -> None:
    (tmp_path / ".a.0123456789ab").mkdir()
    (tmp_path / ".b.0123456789ab").mkdir()
    (tmp_path / ".b.0123456789ab" / ".lock").touch()
    sweep_drafts(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_draft_that_another_process_swept_too_early_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment between the making of a draft and its lock."""
    real = Path.mkdir
    swept: list[Path] = []

    def mkdir(self: Path, *arguments: Any, **keywords: Any) -> None:
        real(self, *arguments, **keywords)
        if self.name.startswith(".name.") and len(swept) < 2:
            swept.append(self)
            sweep_drafts(tmp_path)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    path, lock = create_folder(None, str(tmp_path), "name", lambda draft: None)
    lock.release()
    assert len(swept) == 2
    assert [path] == list(tmp_path.iterdir())
