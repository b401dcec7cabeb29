"""One's own runs go on without a word, whatever code they name; copies of them, and runs of others, need a word."""

from __future__ import annotations

import json
import logging
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import run_helpers
from foreign import Code, forge, own_modules
from forgery import reseal
from rl_training import PPO, Agent, UserError, evaluate_checkpoint, load_config, resume_training, train
from rl_training.experiment import notes
from rl_training.experiment.notes import recall, remember, state_folder
from rl_training.runtime.checkpoints.catalogue import find_checkpoint
from rl_training.runtime.datasets import Behaviour, collect
from rl_training.runtime.seeds import train_seeds
from run_helpers import Command, Said, as_overrides, limited_walk, metadata, tiny

TINY: dict[str, Any] = {"total_timesteps": 24, "eval_episodes": 1}
FURTHER = "total_timesteps=48"


@pytest.fixture(autouse=True)
def _forgetting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with own_modules():
        yield


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


@pytest.fixture
def code(tmp_path: Path) -> Code:
    """Code of this user, in a folder that is not searched unless it is the current one."""
    return Code(tmp_path / "project", "own_code")


@pytest.fixture
def run(code: Code, tmp_path: Path) -> Path:
    """A run of this user, who was in the folder of the code when it was trained."""
    return trained(code, tmp_path / "run", env_id="own_code:make", callbacks=["own_code:Cb"])


def trained(code: Code, place: Path, **settings: Any) -> Path:
    before, path = os.getcwd(), list(sys.path)
    os.chdir(code.folder)
    try:
        train(tiny(**TINY | settings), run_dir=place)
    finally:
        os.chdir(before)
        sys.path[:] = path
    code.forget()
    return place


def refused(said: Said, *words: str) -> None:
    assert said.code == 2, said
    assert len(said.err.splitlines()) == 1, said.err
    for word in words:
        assert word in said.err, said.err


def noted() -> list[Path]:
    return sorted((state_folder() / "runs").glob("*.json"))


def test_an_own_run_goes_on_without_a_word(code: Code, run: Path, command: Command) -> None:
    assert command("eval", run, "--episodes", "1").code == 0
    assert str(code.file) == sys.modules["own_code"].WHERE
    code.forget()
    assert command("resume", run, FURTHER, "--quiet").code == 0
    code.forget()
    assert command("train", run / "config.yaml", "output_dir=runs", "total_timesteps=24", "--quiet").code == 0
    assert command("dataset", "collect", "out.npz", "--from", run, "--steps", "4").code == 0


def test_every_kind_of_code_is_noted(code: Code, tmp_path: Path) -> None:
    names = {"algo": "own_code:SPEC", "env_id": "own_code:make", "model": "own_code:Net", "callbacks": ["own_code:Cb"]}
    run = trained(code, tmp_path / "whole", **names)
    assert resume_training(run, total_timesteps=48).stop_reason == "completed"
    code.forget()
    learned = trained(code, tmp_path / "bc", algo="bc", dataset="own_code:data", total_timesteps=2)
    assert resume_training(learned, total_timesteps=3).stop_reason == "completed"


def test_in_a_process_of_its_own(code: Code, run: Path, tmp_path: Path) -> None:
    """A module of the same name in the current folder, which `python -c` searches first, is not taken."""
    (tmp_path / "elsewhere" / "own_code.py").write_text("raise SystemExit('not this one')\n")
    start = [sys.executable, "-c", "from rl_training.cli import main; main()"]
    paths = os.pathsep.join([str(Path(run_helpers.__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*start, "resume", str(run), FURTHER, "--quiet"],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert code.imported


def test_a_run_through_a_link_is_the_same_run(run: Path, command: Command, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run)
    assert command("eval", tmp_path / "link", "--episodes", "1").code == 0


def test_a_copy_or_another_run_at_the_place_has_no_note(
    code: Code, run: Path, command: Command, tmp_path: Path
) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    words = "would import 'own_code'"
    refused(command("eval", copy), f"{str(copy)!r}: its env_id='own_code:make' {words}", "give --env own_code:make")
    refused(command("resume", copy, FURTHER), words, "to allow it, give callbacks=own_code:Cb yourself, or say --trust")
    for run_id in ("0" * 32, None, 5, "../../somewhere"):
        reseal(find_checkpoint(run), run_id=run_id)
        refused(command("eval", run), words)
    assert not code.imported


def test_only_what_was_given_is_noted(code: Code, run: Path, command: Command) -> None:
    forge(run, env_id="own_code:Net")
    refused(command("eval", run), "env_id='own_code:Net' would import")
    forge(run, env_id="own_code:make", model="own_code:make")  # it was given, but as something else
    refused(command("eval", run), "model='own_code:make' would import")
    assert not code.imported


def test_what_is_given_again_passes_and_is_noted_from_then_on(
    code: Code, run: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    monkeypatch.chdir(code.folder)
    refused(command("resume", copy, FURTHER, "env_id=own_code:make"), "callbacks='own_code:Cb'")
    assert not code.imported
    given = ["env_id=own_code:make", "callbacks=[own_code:Cb]"]
    assert command("resume", copy, FURTHER, *given, "--quiet").code == 0
    code.forget()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert command("resume", copy, "total_timesteps=72", "--quiet").code == 0
    assert code.imported
    # The note of the run that was copied is as it was.
    assert command("eval", run, "--episodes", "1").code == 0


def test_the_ways_to_give_it_in_python(code: Code, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = forge(shutil.copytree(run, tmp_path / "copy"), callbacks=[])
    monkeypatch.syspath_prepend(code.folder)
    for use in (PPO.load, resume_training, evaluate_checkpoint):
        with pytest.raises(UserError, match="would import 'own_code'"):
            use(copy)
    assert not code.imported
    PPO.load(copy, env="own_code:make").close()
    PPO.load(copy, env=limited_walk).close()
    PPO.load(copy, trust=True).close()
    assert evaluate_checkpoint(copy, num_episodes=1, env=limited_walk)["step"] == 24.0
    assert evaluate_checkpoint(copy, num_episodes=1, env_factory=limited_walk)["step"] == 24.0
    assert evaluate_checkpoint(copy, num_episodes=1, trust=True)["step"] == 24.0
    assert len(collect("own_code:make", [Behaviour(copy)], steps=4)) == 4
    assert len(collect(None, [Behaviour(copy)], steps=4, trust=True)) == 4
    config = load_config(tiny(**TINY, env_id="own_code:make"), total_timesteps=48)
    assert train(config, resume=copy).stop_reason == "completed"


def test_a_class_of_agents_gives_its_own_algorithm(code: Code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(code.folder)

    class Own(Agent):
        algo = "own_code:SPEC"

    agent = Own("CartPole-v1", num_envs=2, n_steps=8, batch_size=16)
    shutil.copytree(agent.save(tmp_path / "saved"), tmp_path / "copy")
    agent.close()
    with pytest.raises(UserError, match="algo='own_code:SPEC' would import"):
        Agent.load(tmp_path / "copy")
    Own.load(tmp_path / "copy").close()


def test_trust_finds_installed_modules_and_is_noted(
    code: Code, run: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    refused(command("resume", copy, FURTHER, "--trust"), "there is no module 'own_code' (the current folder is not")
    inside = Code(copy, "own_code")
    monkeypatch.syspath_prepend(copy)
    for folder in (code.folder, copy):  # neither is searched, even where Python would
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend("")
        refused(command("resume", copy, FURTHER, "--trust"), "there is no module 'own_code'")
        assert sys.path[:1] == [""]
        assert str(copy) in sys.path
    assert not inside.imported
    monkeypatch.syspath_prepend(code.folder)
    monkeypatch.chdir(tmp_path)
    assert command("resume", copy, FURTHER, "--trust", "--quiet").code == 0
    code.forget()
    assert command("resume", copy, "total_timesteps=72", "--quiet").code == 0


def test_nothing_is_imported_from_the_folder_of_an_own_run(
    run: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the code that was given lay there: others write into a folder that is passed around."""
    (file,) = noted()
    note = json.loads(file.read_text())
    file.write_text(json.dumps(note | {"code": [[key, name, str(run)] for key, name, _ in note["code"]]}))
    inside = Code(run, "own_code")
    refused(command("eval", run), "there is no module 'own_code'")
    monkeypatch.chdir(run)
    monkeypatch.syspath_prepend("")
    given = ["env_id=own_code:make", "callbacks=[own_code:Cb]"]
    refused(command("resume", ".", FURTHER, *given), "there is no module 'own_code'")
    assert not inside.imported


def test_a_package_of_the_current_folder_lends_no_modules(
    code: Code, run: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was imported because somebody gave another module of it."""
    package = Code(Path.cwd() / "own_package", "own_part")
    (package.folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(Path.cwd())
    __import__("own_package")
    forge(run, env_id="own_package.own_part:make")
    refused(command("eval", run, "--trust"), "is in", "which is not searched for it; give it yourself")
    assert not package.imported


def test_saved_agents_are_noted_too(code: Code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(code.folder)
    agent = PPO("own_code:make", num_envs=2, n_steps=8, batch_size=16)
    saved = agent.save(tmp_path / "saved")
    agent.close()
    code.forget()
    PPO.load(saved).close()
    assert str(code.file) == sys.modules["own_code"].WHERE
    with pytest.raises(UserError, match="would import 'own_code'"):
        PPO.load(shutil.copytree(saved, tmp_path / "copy"))


def test_an_agent_with_another_environment_does_not_vouch_for_that_of_the_checkpoint(
    code: Code, run: Path, tmp_path: Path
) -> None:
    copy = forge(shutil.copytree(run, tmp_path / "copy"), callbacks=[])
    agent = PPO.load(copy, env=limited_walk)
    saved = agent.save(tmp_path / "saved")
    agent.close()
    with pytest.raises(UserError, match="would import 'own_code'"):
        PPO.load(saved)
    assert not code.imported


def test_an_environment_given_as_a_function_is_noted_by_its_name(tmp_path: Path) -> None:
    agent = PPO(limited_walk, num_envs=2, n_steps=8, batch_size=16, output_dir=str(tmp_path)).learn(16)
    agent.close()
    assert agent.result is not None
    assert agent.result.run_dir is not None
    PPO.load(agent.result.run_dir).close()


def test_every_seed_has_its_note(code: Code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(code.folder)
    outcome = train_seeds(tiny(tmp_path, **TINY, env_id="own_code:make"), [1, 2])
    for result in outcome.runs.values():
        assert result.run_dir is not None
        assert resume_training(result.run_dir, total_timesteps=48).stop_reason == "completed"


def test_a_config_of_a_run_is_a_file_of_its_folder(
    code: Code, run: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    refused(command("train", copy / "config.yaml"), "would import 'own_code'", "give callbacks=own_code:Cb yourself")
    (copy / "metadata.json").unlink()  # what a folder is does not depend on one file
    shutil.rmtree(copy / "checkpoints")
    refused(command("train", copy / "config.yaml"), "would import 'own_code'")
    monkeypatch.chdir(code.folder)
    given = [*as_overrides(TINY), "output_dir=runs", "env_id=own_code:make", "callbacks=[own_code:Cb]", "--quiet"]
    assert command("train", copy / "config.yaml", *given).code == 0
    code.forget()
    # A file of one's own, wherever it lies, is what its owner gives.
    shutil.copy(copy / "config.yaml", code.folder / "mine.yaml")
    assert command("train", "mine.yaml", *as_overrides(TINY), "output_dir=runs", "--quiet").code == 0
    assert command("train", copy / "config.yaml", *as_overrides(TINY), "--trust", "--quiet").code == 0


def test_presets_and_gymnasium_need_no_note(tmp_path: Path) -> None:
    before = noted()
    env_kwargs = {"env_id": "CartPole-v1"}
    settings = tiny(**TINY, env_id="rl_training.runtime.no_velocity:NoVelocity", env_kwargs=env_kwargs)
    train(settings, run_dir=tmp_path / "run")
    train(tiny(**TINY), run_dir=tmp_path / "plain")
    resume_training(shutil.copytree(tmp_path / "run", tmp_path / "copy"), total_timesteps=48)
    assert noted() == before


# The notes.


def test_a_note_is_of_this_user_alone(run: Path, command: Command, tmp_path: Path) -> None:
    (file,) = noted()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.parent.parent.stat().st_mode) == 0o700
    note = json.loads(file.read_text())
    assert note["id"] == metadata(run)["run_id"]
    project = str(tmp_path / "project")
    assert note["code"] == [["callbacks", "own_code:Cb", project], ["env_id", "own_code:make", project]]
    assert project not in json.dumps(metadata(run)), "nothing of it is in the run"
    for path, mode in ((file, 0o622), (file.parent, 0o777)):  # anybody could have written it
        before = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode)
        refused(command("eval", run), "would import 'own_code'")
        path.chmod(before)
    assert command("eval", run, "--episodes", "1").code == 0


@pytest.mark.parametrize("content", ["", "[]", "{", '{"run": 5}', '{"run": null, "id": null, "code": 3}'])
def test_a_damaged_note_is_none(content: str, run: Path, command: Command) -> None:
    (file,) = noted()
    file.write_text(content)
    refused(command("eval", run), "would import 'own_code'")


def test_training_goes_on_where_nothing_can_be_noted(
    code: Code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, logger="rl_training"):
        run = trained(code, tmp_path / "run", env_id="own_code:make")
        trained(code, tmp_path / "another", env_id="own_code:make")
    assert sum("could not be noted" in record.getMessage() for record in caplog.records) == 1
    with pytest.raises(UserError, match="would import 'own_code'"):
        resume_training(run, total_timesteps=48)


def test_where_the_state_folder_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_folder() == tmp_path / "rl_training"
    for unusable in ("", "relative/folder"):
        monkeypatch.setenv("XDG_STATE_HOME", unusable)
        monkeypatch.setenv("HOME", "/somebody")
        for platform, place in (
            ("linux", "/somebody/.local/state/rl_training"),
            ("darwin", "/somebody/Library/Application Support/rl_training"),
        ):
            monkeypatch.setattr(notes.sys, "platform", platform)
            assert state_folder() == Path(place)
        monkeypatch.setattr(notes.sys, "platform", "win32")
        monkeypatch.setenv("LOCALAPPDATA", "/somebody/local")
        assert state_folder() == Path("/somebody/local/rl_training")


def test_notes_of_runs_that_are_gone_are_swept_once_a_day(tmp_path: Path) -> None:
    there, gone = tmp_path / "there", tmp_path / "gone"
    there.mkdir()
    names = [("env_id", "own_code:make")]
    for place in (there, gone):
        remember(place, "0" * 32, names)
    (state_folder() / "runs" / ".draft-of-the-dead").touch()
    assert len(noted()) == 2, "what is new stays: its run may be about to get its name"
    long_ago = time.time() - 3 * 24 * 3600
    for file in (state_folder() / "runs").iterdir():
        os.utime(file, (long_ago, long_ago))
    remember(there, "1" * 32, names)
    assert len(noted()) == 2
    assert recall(there, "0" * 32) == recall(there, "1" * 32) == {names[0]: None}
    assert recall(gone, "0" * 32) == {}
    assert not (state_folder() / "runs" / ".draft-of-the-dead").exists()
    assert {file.suffix for file in (state_folder() / "runs").iterdir()} == {".json", ""}
