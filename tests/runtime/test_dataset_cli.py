"""The commands of datasets: what they do, what they say, and their exit codes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from offline_data import dones_layout, flat_layout, ladder_episodes, starts_layout, write_file
from rl_training import train
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.runtime.datasets import Behaviour, collect, open_dataset
from run_helpers import Command, Said, tiny

pytest.importorskip("h5py")

ARRAYS = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "starts")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """The command in an empty folder, with a place for Minari's datasets in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))
    return Command(monkeypatch, capsys)


@pytest.fixture(scope="module")
def sac(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended; the = in its name is part of it."""
    run_dir = tmp_path_factory.mktemp("sac") / "rate=0.1"
    train(tiny(algo="sac", total_timesteps=96), run_dir=run_dir)
    return run_dir


def same(left: OfflineDataset, right: OfflineDataset) -> bool:
    return all(getattr(left, name).tobytes() == getattr(right, name).tobytes() for name in ARRAYS)


def refused(said: Said, *words: str) -> None:
    """One line with these words in it, and exit code 2."""
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    for word in words:
        assert word in said.err


# collect


def test_collect_random_actions_as_a_minari_dataset(command: Command, tmp_path: Path) -> None:
    said = command("dataset", "collect", "pendulum/random-v0", "--env", "Pendulum-v1", "--random", "--steps", 230)
    assert said.code == 0, said.err
    found = open_dataset("pendulum/random-v0")
    assert same(found, collect("Pendulum-v1", [Behaviour()], steps=230))
    assert said.out == (
        "transitions  230 in 2 episodes\n"
        f"return       {found.returns.mean():.2f} +- {found.returns.std():.2f}\n"
        f"dataset      {tmp_path}/sets/pendulum/random-v0\n"
    )


def test_collect_is_what_python_does(command: Command, sac: Path) -> None:
    amount = ["--episodes", 6, "--seed", 7, "--deterministic", "--ref-min", "-1000.5", "--ref-max", 0]
    said = command("dataset", "collect", "mixed.npz", "--from", f"{sac}=2", "--random", *amount)
    assert said.code == 0, said.err
    found = open_dataset("mixed.npz")
    assert same(found, collect(None, [Behaviour(sac, 2.0), Behaviour()], episodes=6, seed=7, deterministic=True))
    assert (found.source["env_id"], found.source["action_units"]) == ("Pendulum-v1", "environment")
    assert (found.source["ref_min_score"], found.source["ref_max_score"]) == (-1000.5, 0.0)
    assert found.source["notes"] == (f"collected with seed 7 from {sac}: 4 episodes; random actions: 2 episodes",)


def test_collect_from_a_run_with_a_strange_name_and_from_a_checkpoint(command: Command, sac: Path) -> None:
    for run in (sac, sac / "checkpoints" / "step_96"):
        assert command("dataset", "collect", "x.npz", "--from", run, "--steps", 9).code == 0
        assert same(open_dataset("x.npz"), collect(None, [Behaviour(sac)], steps=9))


def test_collect_passes_arguments_to_the_environment(command: Command) -> None:
    asked = ["--env", "Pendulum-v1", "--env-kwargs", "g=0.0", "--random", "--steps", 20]
    assert command("dataset", "collect", "still.npz", *asked).code == 0
    assert same(open_dataset("still.npz"), collect("Pendulum-v1", [Behaviour()], steps=20, env_kwargs={"g": 0.0}))
    assert not same(open_dataset("still.npz"), collect("Pendulum-v1", [Behaviour()], steps=20))


PENDULUM = ("--env", "Pendulum-v1", "--random", "--steps", "9")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("x.txt", *PENDULUM), "'x.txt': must end with .npz, or be a Minari id such as pendulum/medium-v0"),
        (("no/folder.npz", *PENDULUM), "'no/folder.npz': there is no folder 'no'"),
        (("x.npz", "--env", "Pendulum-v1", "--steps", "9"), "there is no policy to act"),
        (("x.npz", "--random", "--steps", "9"), "env_id: is missing"),
        (("x.npz", *PENDULUM, "--episodes", "2"), "steps=9, episodes=2: give one of them"),
        (("x.npz", "--env", "Pendulum-v1", "--random"), "give one of them"),
        (("x.npz", *PENDULUM, "--from", "run=much"), "--from run=much: 'much' must be a number, the weight of 'run'"),
        (("x.npz", *PENDULUM, "--from", "run=-1"), "run=-1: the weight must be a number above 0"),
        (("x.npz", *PENDULUM, "--from", "run"), "'run': there is no such run or checkpoint"),
        (("x.npz", *PENDULUM, "--env-kwargs", "g"), "'g': overrides are given as key=value"),
        (("x.npz", *PENDULUM, "--env-kwargs", "mass=1"), "env_kwargs={'mass': 1}"),
    ],
)
def test_mistakes_in_collect_are_one_line(
    command: Command, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    refused(command("dataset", "collect", *arguments), words)
    assert list(tmp_path.iterdir()) == []


def test_an_id_that_is_taken_is_refused_before_anybody_acts(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command("dataset", "collect", "random-v0", *PENDULUM).code == 0
    monkeypatch.setattr("rl_training.runtime.datasets.collect", None)
    refused(command("dataset", "collect", "random-v0", *PENDULUM), "'random-v0': already exists")


# inspect


def test_inspect_says_what_is_there(command: Command, tmp_path: Path) -> None:
    file = write_file(tmp_path / "ladder.npz", flat_layout(ladder_episodes()))
    said = command("dataset", "inspect", file, "--strict")
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert lines[0] == "ok       12 transitions in 3 episodes"
    assert lines[-1] == "0 problems"
    assert all(re.match(r"(ok|note|problem) +\S", line) for line in lines[:-1])


def test_inspect_compares_with_an_environment(command: Command, tmp_path: Path) -> None:
    file = write_file(tmp_path / "ladder.npz", flat_layout(ladder_episodes()))
    for options, code in (((), 0), (("--strict",), 1)):
        said = command("dataset", "inspect", file, "--env", "Pendulum-v1", *options)
        assert said.code == code
        (problem,) = [line for line in said.out.splitlines() if line.startswith("problem")]
        assert "observations have shape (2,), those of the environment (3,)" in problem
        assert said.out.endswith("\n1 problem\n")


def test_inspect_knows_the_time_limit_of_the_environment_or_of_the_file(command: Command, tmp_path: Path) -> None:
    """Episodes that are terminal at the limit are suspicious."""
    length = 200
    obs = np.zeros((length + 1, 3), np.float32)
    obs[:, 0] = np.arange(length + 1)
    arrays = {
        "observations": obs[:-1],
        "actions": np.zeros((length, 1), np.float32),
        "rewards": np.zeros(length, np.float32),
        "next_observations": obs[1:],
        "terminals": np.arange(length) == length - 1,
    }
    file, words = write_file(tmp_path / "ends.npz", arrays), "terminal after exactly 200 steps, the time limit"
    assert words not in command("dataset", "inspect", file).out
    assert words in command("dataset", "inspect", file, "--env", "Pendulum-v1").out
    assert command("dataset", "convert", file, "ends-v0", "--env", "Pendulum-v1").code == 0
    assert words in command("dataset", "inspect", "ends-v0").out, "Minari's layout names the environment"


def test_inspect_a_run_reads_its_replay(command: Command, sac: Path) -> None:
    said = command("dataset", "inspect", sac, "--env", "Pendulum-v1")
    assert said.code == 0, said.err
    assert said.out.startswith("ok       96 transitions in ")
    assert "units: normalized" in said.out
    assert "fit the environment" in said.out


def test_ambiguous_ends_need_an_answer(command: Command, tmp_path: Path) -> None:
    file = write_file(tmp_path / "dones.npz", dones_layout(ladder_episodes()))
    refused(command("dataset", "inspect", file), "give done_means")
    assert "3 episodes ended at a terminal" in command("dataset", "inspect", file, "--done-means", "terminal").out
    assert "0 episodes ended at a terminal" in command("dataset", "inspect", file, "--done-means", "timeout").out
    refused(command("dataset", "inspect", file, "--done-means", "auto"), "done_means=auto", "time limit")
    said = command("dataset", "inspect", file, "--done-means", "auto", "--env", "Pendulum-v1")
    assert "3 episodes ended at a terminal" in said.out, "none is as long as Pendulum's 200 steps"
    wrong = command("dataset", "inspect", file, "--done-means", "maybe")
    assert wrong.code == 2
    assert "terminal" in wrong.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nothing.npz",), "'nothing.npz': there is no such file"),
        (("nothing-v0",), "no Minari dataset of this id"),
        ((".",), "is a folder, but no dataset"),
        (("x.npz", "--env-kwargs", "g=1"), "--env-kwargs g=1: needs --env"),
        (("x.npz", "--env", "Pendulun-v1"), "env_id='Pendulun-v1': unknown environment"),
    ],
)
def test_mistakes_in_inspect_are_one_line(command: Command, arguments: tuple[str, ...], words: str) -> None:
    refused(command("dataset", "inspect", *arguments), words)


# convert


def test_convert_there_and_back_changes_nothing(command: Command, tmp_path: Path) -> None:
    assert command("dataset", "collect", "first-v0", *PENDULUM).code == 0
    there = command("dataset", "convert", "first-v0", "there.npz")
    assert there.code == 0, there.err
    assert there.out.endswith("\ndataset      there.npz\n")
    back = command("dataset", "convert", "there.npz", "own/back-v0")
    assert back.code == 0, back.err
    assert back.out.endswith(f"\ndataset      {tmp_path}/sets/own/back-v0\n")
    first = open_dataset("first-v0")
    assert same(first, open_dataset("there.npz"))
    assert same(first, open_dataset("own/back-v0"))


def test_convert_a_replay(command: Command, sac: Path) -> None:
    replay = open_dataset(str(sac))
    assert command("dataset", "convert", sac, "replay.npz").code == 0
    assert same(open_dataset("replay.npz"), replay)
    assert open_dataset("replay.npz").source["action_units"] == "normalized"
    assert command("dataset", "convert", sac, "replay-v0").code == 0
    np.testing.assert_allclose(open_dataset("replay-v0").action, 2 * replay.action, atol=1e-6)
    assert open_dataset("replay-v0").source["time_limit"] == 20, "of the run"


def test_convert_takes_actions_in_the_units_that_they_have(command: Command, tmp_path: Path) -> None:
    rows = 4
    arrays = {
        "observations": np.zeros((rows, 3), np.float32),
        "actions": np.float32([[-0.5], [0.1], [0.7], [3.0]]),
        "rewards": np.zeros(rows, np.float32),
        "next_observations": np.zeros((rows, 3), np.float32),
        "terminals": np.arange(rows) == rows - 1,
        "timeouts": np.zeros(rows, np.bool_),
    }
    write_file(tmp_path / "outside.npz", arrays)
    asked = ["--env", "Pendulum-v1", "--action-units"]
    refused(command("dataset", "convert", "outside.npz", "a-v0", "--env", "Pendulum-v1"), "outside the bounds [-2, 2]")
    assert command("dataset", "convert", "outside.npz", "a-v0", *asked, "clipped").code == 0
    np.testing.assert_allclose(open_dataset("a-v0").action[:, 0], [-0.5, 0.1, 0.7, 2.0], rtol=1e-6)
    write_file(tmp_path / "inside.npz", {**arrays, "actions": arrays["actions"] / 4})
    assert command("dataset", "convert", "inside.npz", "b-v0", *asked, "normalized").code == 0
    np.testing.assert_allclose(open_dataset("b-v0").action[:, 0], [-0.25, 0.05, 0.35, 1.5], rtol=1e-6)
    assert command("dataset", "convert", "inside.npz", "c-v0", *asked, "environment").code == 0
    np.testing.assert_array_equal(open_dataset("c-v0").action, arrays["actions"] / 4)


def test_mistakes_in_convert_are_one_line(command: Command, tmp_path: Path) -> None:
    write_file(tmp_path / "ladder.npz", flat_layout(ladder_episodes()))
    write_file(tmp_path / "starts.npz", starts_layout(ladder_episodes()))
    refused(command("dataset", "convert", "ladder.npz", "x.json"), "'x.json': must end with .npz, or be a Minari id")
    refused(
        command("dataset", "convert", "ladder.npz", "ladder-v0"), "the environment, which is not known here", "--env"
    )
    refused(command("dataset", "convert", "ladder.npz", "ladder-v0", "--env", "Pendulum-v1"), "shape (2,)")
    refused(command("dataset", "convert", "starts.npz", "x.npz"), "give done_means")
    units = command("dataset", "convert", "ladder.npz", "x.npz", "--action-units", "clipped")
    refused(units, "--action-units clipped: is for a Minari dataset; an .npz keeps actions as they are")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ladder.npz", "starts.npz"]


@pytest.mark.parametrize("name", ["inspect", "convert", "collect"])
def test_every_command_explains_itself(command: Command, name: str) -> None:
    assert f" dataset {name} [OPTIONS] " in command("dataset", name, "--help").out
    assert name in command("dataset", "--help").out
