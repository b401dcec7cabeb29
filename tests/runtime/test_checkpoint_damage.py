"""Damage to the files of a checkpoint is noticed to the last bit, named, and not the end of a run."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forgery import changed_state, reseal
from rl_training import SAC, UserError, evaluate_checkpoint, resume_training, train
from rl_training.runtime.checkpoints.catalogue import find_checkpoint
from rl_training.runtime.checkpoints.checkpoint import read_checkpoint, scrub
from rl_training.runtime.datasets import Behaviour, collect
from run_helpers import Command, checkpoint_names, metadata, tiny


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a replay and three checkpoints."""
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    train(tiny(algo="sac", total_timesteps=96, checkpoint_interval=48), run_dir=run_dir)
    return run_dir


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(monkeypatch, capsys)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


FILES = (
    "meta.json",
    "model.safetensors",
    "state.json",
    "state.safetensors",
    "envs.json",
    "envs.safetensors",
    "replay/replay.rows.0.bin",
)


# Every bit.


def flips(size: int) -> Iterator[int]:
    """The bits at both ends of a file, and some in between."""
    ends = [*range(min(size, 48) * 8), *range(max(0, size - 8) * 8, size * 8)]
    yield from dict.fromkeys([*ends, *np.random.default_rng(0).integers(0, size * 8, 60).tolist()])


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_is_noticed(name: str, run: Path) -> None:
    path = find_checkpoint(run)
    assert set(contents(path)) == set(FILES)
    file = path / name
    whole = file.read_bytes()
    for bit in flips(len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        with pytest.raises(UserError, match=r"damaged|has format"):
            scrub(path)
    file.write_bytes(whole)
    assert set(scrub(path)) == set(FILES) - {"meta.json"}


@pytest.mark.parametrize("name", FILES)
def test_what_is_read_is_checked(name: str, run: Path) -> None:
    """A resumed run reads everything, a policy that is evaluated its weights alone."""
    file = find_checkpoint(run) / name
    changed = bytearray(file.read_bytes())
    changed[-1] ^= 1
    file.write_bytes(changed)
    before = contents(run)
    works: list[Callable[[Path], Any]] = [lambda run: resume_training(run, total_timesteps=120), SAC.load]
    if name in ("meta.json", "model.safetensors"):
        works += [evaluate_checkpoint, lambda run: collect(None, [Behaviour(run)], steps=3)]
    for work in works:
        with pytest.raises(UserError, match=rf"{name}': is missing, damaged or foreign .*step_48"):
            work(run)
    assert contents(run) == before


def test_files_of_two_checkpoints_are_not_taken_for_one(run: Path) -> None:
    newest, older = find_checkpoint(run), run / "checkpoints" / "step_48"
    for name in FILES:
        whole = (newest / name).read_bytes()
        assert whole != (older / name).read_bytes()
        shutil.copy(older / name, newest / name)
        with pytest.raises(UserError, match=r"is missing, damaged or foreign \(.*(checksum|bytes)"):
            scrub(newest)
        (newest / name).write_bytes(whole)


@pytest.mark.parametrize("place", ["notes.txt", "state.pt", "replay/replay.rows.1.bin", "more"])
def test_a_file_too_many_is_noticed(place: str, run: Path) -> None:
    path = find_checkpoint(run)
    (path / ".DS_Store").touch()  # of the system's own
    read_checkpoint(path)
    if place == "more":
        (path / place).mkdir()
    else:
        (path / place).write_bytes(b"1")
    words = (
        "is a folder; only a plain file" if place == "more" else r"is missing, damaged or foreign \(it does not belong"
    )
    with pytest.raises(UserError, match=f"{place}': {words}"):
        read_checkpoint(path)


# Links and pipes.


@pytest.mark.parametrize("name", [*FILES, "replay"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_link_or_a_pipe_is_refused_before_it_is_opened(name: str, kind: str, run: Path, tmp_path: Path) -> None:
    file = find_checkpoint(run) / name
    file.rename(tmp_path / "elsewhere")
    if kind == "link":
        file.symlink_to(tmp_path / "elsewhere")  # the very file: nothing else is wrong with it
    else:
        os.mkfifo(file)
    words = rf"{name}': is {'a symbolic link' if kind == 'link' else 'a special file'}; only a plain"
    for work in [resume_training, *([evaluate_checkpoint] if name in ("meta.json", "model.safetensors") else [])]:
        with pytest.raises(UserError, match=words):
            work(run, which="step_96")


def test_a_checkpoint_that_is_a_link_is_refused_and_a_run_that_is_one_is_not(run: Path, tmp_path: Path) -> None:
    (tmp_path / "run link").symlink_to(run)
    assert evaluate_checkpoint(tmp_path / "run link")["step"] == 96
    path = find_checkpoint(run)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    for work in (resume_training, evaluate_checkpoint, SAC.load):
        with pytest.raises(UserError, match=r"step_96': is a symbolic link; only a plain folder is used here"):
            work(run)


def test_a_description_cannot_name_files_elsewhere(run: Path, tmp_path: Path) -> None:
    path = find_checkpoint(run)
    (path / "replay" / "replay.rows.0.bin").rename(path.parent / "x.0.bin")
    arrays = json.loads((path / "meta.json").read_text())["arrays"]
    reseal(path, arrays={"../../x": arrays["replay.rows"]})
    with pytest.raises(UserError, match=r"its list of files has no 'replay/\.\./\.\./x\.0\.bin'"):
        read_checkpoint(path)


# The way out.


def test_damage_names_the_newest_checkpoint_that_is_whole(run: Path, command: Command) -> None:
    path = find_checkpoint(run)
    (path / "model.safetensors").write_bytes(b"")
    for work, words in (("resume", ("total_timesteps=120", "--quiet")), ("eval", ("--episodes", 1))):
        said = command(work, run, *words)
        assert said.code == 2
        advice = f"step_48 is the newest checkpoint that is whole: rl-training {work} {run} --checkpoint step_48"
        assert said.err.endswith(
            f"model.safetensors': is missing, damaged or foreign (it has 0 bytes instead of "
            f"{(run / 'checkpoints/step_48/model.safetensors').stat().st_size}); {advice}\n"
        )
    # One flipped bit in the replay of the next one: it is passed over.
    chunk = run / "checkpoints" / "step_48" / "replay" / "replay.rows.0.bin"
    content = bytearray(chunk.read_bytes())
    content[7] ^= 4
    chunk.write_bytes(content)
    advice = f"rl-training resume {run} --checkpoint step_0"
    assert command("resume", run).err.endswith(f"; step_0 is the newest checkpoint that is whole: {advice}\n")
    assert command("resume", run, "--checkpoint", "step_0", "--quiet").code == 0
    assert metadata(run)["resumed"][0]["step"] == 0


def test_where_no_checkpoint_is_whole_that_is_said(run: Path) -> None:
    for name in checkpoint_names(run):
        (run / "checkpoints" / name / "state.json").unlink()
    with pytest.raises(UserError, match=r"state\.json.*; no other checkpoint of this run is whole"):
        resume_training(run)


def test_a_checkpoint_outside_of_a_run_has_no_others(run: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copytree(find_checkpoint(run), tmp_path / "alone"))
    (alone / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors': is missing, damaged or foreign \([^;]*\)$"):
        SAC.load(alone)


# What is whole and does not fit.


def test_a_latest_that_names_an_older_checkpoint_is_said(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    (run / "checkpoints" / "latest").write_text("step_48\n")
    assert evaluate_checkpoint(run)["step"] == 48
    assert "latest': names step_48; there is a newer one, step_96" in caplog.text
    resume_training(run, total_timesteps=120)
    assert metadata(run)["resumed"][0]["step"] == 96


def test_a_saved_setting_that_cannot_be_names_the_checkpoint(run: Path) -> None:
    path = find_checkpoint(run)
    config = json.loads((path / "meta.json").read_text())["config"]
    with pytest.raises(UserError, match=r"^config: gamma=5: "):  # one's own mistake
        resume_training(run, total_timesteps=120, gamma=5)
    reseal(path, config=config | {"tau": [1], "gamma": "x"})
    works: list[Callable[[], Any]] = [
        lambda: resume_training(run, total_timesteps=120),
        lambda: evaluate_checkpoint(run),
        lambda: SAC.load(run),
    ]
    for work in works:
        with pytest.raises(UserError, match=r"step_96': is missing, damaged or foreign \(its config: .*tau=") as said:
            work()
        assert "\n" not in str(said.value)


MISFITS: dict[str, tuple[Any, str]] = {
    "returns": (torch.zeros(6, dtype=torch.float64), r"returns is \[6\] torch.float64 instead of \[3\]"),
    "lengths": (torch.zeros(3), r"lengths is \[3\] torch.float32 instead of \[3\] torch.int64"),
    "resetting": (torch.zeros((3, 1), dtype=torch.bool), r"resetting is \[3, 1\]"),
    "raw": (torch.zeros(3, 2), r"observations of \[3, 2\] do not fit \[3, 3\]"),
    "lost": (torch.ones(4, dtype=torch.bool), r"lost is \[4\]"),
    "recent": ([[1.0, None]], "TypeError"),
    "steps": ("96", "steps is a text instead of a whole number"),
    "keeper": ({"seeds": torch.zeros((2, 6), dtype=torch.int64)}, r"seeds is \[2, 6\]"),
}


@pytest.mark.parametrize("key", MISFITS)
def test_environments_that_do_not_fit_are_one_line(key: str, run: Path) -> None:
    value, words = MISFITS[key]
    path = find_checkpoint(run)
    with changed_state(path, "envs") as envs:
        (actor,) = envs.values()
        actor[key] = actor[key] | value if key == "keeper" else value
    before = contents(run)
    for work in (lambda: resume_training(run, total_timesteps=120), lambda: SAC.load(run)):
        with pytest.raises(UserError, match=rf"envs\.json': .* \(its state does not fit: .*{words}"):
            work()
    assert contents(run) == before


@pytest.mark.parametrize("number", [1, 4])
def test_another_number_of_environments_is_one_line(number: int, run: Path) -> None:
    path = find_checkpoint(run)
    config = json.loads((path / "meta.json").read_text())["config"]
    reseal(path, config=config | {"num_envs": number})
    before = contents(run)
    for work in (lambda: resume_training(run, total_timesteps=120), lambda: SAC.load(run)):
        with pytest.raises(UserError, match=r"step_96[^\n]*$") as said:
            work()
        assert "\n" not in str(said.value)
    assert contents(run) == before


def test_an_error_of_a_compiled_library_is_not_taken_for_the_users(run: Path) -> None:
    path = find_checkpoint(run)
    with changed_state(path, "state") as state:
        state["rng"]["numpy"][2] = 2**70
    with pytest.raises(UserError, match=r"state\.json': .*its rng does not fit: OverflowError"):
        SAC.load(run)


def test_a_replay_that_does_not_fit_names_the_checkpoint(run: Path) -> None:
    path = find_checkpoint(run)
    with changed_state(path, "state") as state:
        state["parts"]["replay"]["num_envs"] = 4
    with pytest.raises(UserError, match=r"step_96': the saved replay does not fit: num_envs is 4 there and 3 here"):
        SAC.load(run)


# The command.


def test_check_says_that_a_run_is_whole_and_changes_nothing(run: Path, command: Command) -> None:
    before = {path: os.lstat(path).st_mtime_ns for path in [run, *run.rglob("*")]}
    said = command("check", run)
    assert said.code == 0
    lines = [line.split(maxsplit=1) for line in said.out.splitlines()]
    names = ["step_0", "step_48", "step_96", "latest", "best", "config.yaml", "metadata.json", "metrics.jsonl"]
    assert [name for name, _ in lines] == names
    found = dict(lines)
    assert found["step_0"].startswith("6 files, ")
    assert found["step_96"].startswith("7 files, ")
    assert all(found[name].endswith(": whole") for name in names[:3])
    assert (found["latest"], found["config.yaml"], found["metadata.json"]) == ("step_96", "whole", "whole")
    assert {path: os.lstat(path).st_mtime_ns for path in [run, *run.rglob("*")]} == before
    alone = command("check", run / "checkpoints" / "step_48")
    assert (alone.code, alone.out.split()[0]) == (0, "step_48")


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-3])


@pytest.mark.parametrize(
    ("damage", "place", "words"),
    [
        (cut, "checkpoints/step_48/envs.json", "envs.json': is missing, damaged or foreign (it has "),
        (Path.unlink, "checkpoints/step_0/meta.json", "meta.json': is missing, damaged or foreign (No such file"),
        (cut, "checkpoints/step_96/replay/replay.rows.0.bin", "replay.rows.0.bin': is missing, damaged or foreign ("),
        (lambda file: file.write_text("step_7\n"), "checkpoints/latest", "it names 'step_7', which is no checkpoint"),
        (lambda file: file.write_text("../x\n"), "checkpoints/best", "it names '../x', which is no checkpoint"),
        (lambda file: file.write_bytes(b"\xff\xfe"), "checkpoints/latest", "cannot be read"),
        (Path.unlink, "checkpoints/latest", "No such file"),
        (lambda file: file.write_text("[1"), "config.yaml", "cannot be read"),
        (lambda file: file.write_text("- 1"), "config.yaml", "it holds a list, not a mapping"),
        (lambda file: file.write_bytes(b""), "metadata.json", "cannot be read"),
        (lambda file: file.write_text("[" * 100_000), "metadata.json", "cannot be read"),
        (lambda file: file.write_text('{"step": 1}\n{"step"\n{}\n'), "metrics.jsonl", "line 2: "),
        (lambda file: file.write_text("3\n"), "metrics.jsonl", "line 1: it holds a int, not a mapping"),
    ],
)
def test_check_says_what_is_damaged(
    damage: Callable[[Path], Any], place: str, words: str, run: Path, command: Command
) -> None:
    damage(run / place)
    said = command("check", run)
    assert said.code == 1
    assert said.err == ""
    named = place.removeprefix("checkpoints/").split("/")[0]
    wrong = [line for line in said.out.splitlines() if words in line]
    assert len(wrong) == 1
    assert wrong[0].split()[0] == named
    assert len(said.out.splitlines()) == 8


def test_a_torn_row_and_a_checkpoint_that_a_crash_put_aside_are_not_damage(run: Path, command: Command) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9')
    (run / "checkpoints" / "step_96").rename(run / "checkpoints" / ".replaced-step_96")
    said = command("check", run)
    assert said.code == 0
    assert "step_96        7 files" in said.out
    assert "and the beginning of one that a resumed run writes again" in said.out
    assert resume_training(run, total_timesteps=120).stop_reason == "completed"


def test_check_refuses_what_is_neither_run_nor_checkpoint(tmp_path: Path, command: Command) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        said = command("check", place)
        assert (said.code, said.out) == (2, "")
        assert "there is no such run or checkpoint" in said.err
