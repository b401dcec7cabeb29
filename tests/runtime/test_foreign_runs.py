"""A run or a checkpoint from somebody else runs none of the code that it names."""

from __future__ import annotations

import ast
import io
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rl_training
from board_games import TINY_GAME
from foreign import Code, forge, forged_copy, own_modules
from rl_training import PPO, UserError, train
from rl_training.runtime.datasets import Behaviour, collect
from run_helpers import Command, Said, as_overrides, tiny

WORLD: dict[str, Any] = {"size": "xxs", "deter": 16, "hidden": 8, "units": 8, "stoch": 4, "classes": 4}
WORLD |= {"blocks": 2, "bins": 15, "batch_size": 2, "batch_length": 4, "learning_starts": 16}
SMALL: dict[str, Any] = {"num_envs": 2, "vectorization": "sync", "eval_episodes": 1, "total_timesteps": 48}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs on environments that nobody has to trust; they are only read."""
    folder = tmp_path_factory.mktemp("foreign")
    train(tiny(total_timesteps=24, eval_episodes=1), run_dir=folder / "ppo")
    train(tiny(algo="bc", total_timesteps=2, eval_episodes=1), run_dir=folder / "bc")
    train(TINY_GAME | {"total_timesteps": 48, "eval_episodes": 1}, run_dir=folder / "game")
    train(tiny(algo="dreamer", **SMALL, **WORLD), run_dir=folder / "dreamer")
    return folder


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Command]:
    """The command in an empty folder, at which nobody types."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with own_modules():
        yield Command(monkeypatch, capsys)


def refused(said: Said, *words: str) -> None:
    assert said.code == 2, said
    assert said.err.startswith("error: "), said
    assert len(said.err.splitlines()) == 1, said.err
    for word in words:
        assert word in said.err, said.err


def load(run: Path) -> None:
    PPO.load(run).close()


def collected(run: Path) -> None:
    collect(None, [Behaviour(run)], steps=4)


# What uses a run's environment and policy.
WAYS: dict[str, tuple[str, list[str]]] = {
    "eval": ("ppo", ["eval", "RUN", "--episodes", "1"]),
    "resume": ("ppo", ["resume", "RUN", "total_timesteps=48"]),
    "collect": ("ppo", ["dataset", "collect", "out.npz", "--from", "RUN", "--steps", "4"]),
    "play": ("game", ["play", "RUN"]),
    "search": ("game", ["plot", "RUN", "--search", "--output", "out.png"]),
    "imagination": ("dreamer", ["plot", "RUN", "--imagination", "--output", "out.png"]),
    "config": ("ppo", ["train", "RUN/config.yaml", "total_timesteps=24"]),
}


def asked(command: Command, way: str, run: Path, *more: str) -> Said:
    return command(*(word.replace("RUN", str(run)) for word in WAYS[way][1]), *more)


@pytest.mark.parametrize("way", WAYS)
def test_no_command_of_a_checkpoint_runs(way: str, command: Command, runs: Path, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    attack = {"env_id": "os:system", "env_kwargs": {"command": f"touch {proof}"}}
    run = forged_copy(runs / WAYS[way][0], tmp_path / "run", **attack)
    said = asked(command, way, run)
    assert not proof.exists()
    refused(said, "env_id='os:system'", "would import 'os'", "--trust (trust=True in Python)")
    # Nor with trust: it is no environment, and is not called to find out.
    refused(asked(command, way, run, "--trust"), "env_id='os:system'", "system is a part of Python itself")
    assert not proof.exists()


@pytest.mark.parametrize("use", [load, collected], ids=["load", "collect"])
def test_no_command_of_a_checkpoint_runs_in_python(use: Any, command: Command, runs: Path, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    attack = {"env_id": "os:system", "env_kwargs": {"command": f"touch {proof}"}}
    run = forged_copy(runs / "ppo", tmp_path / "run", **attack)
    with pytest.raises(UserError, match="its env_id='os:system' would import 'os'"):
        use(run)
    assert not proof.exists()


NAMES: dict[str, dict[str, Any]] = {
    "algo": {"algo": "own_evil:SPEC"},
    "model": {"model": "own_evil:Net"},
    "nested": {"algo_kwargs": {"model": "own_evil:Net"}, "model": None},
    "env_id": {"env_id": "own_evil:make"},
    "gymnasium": {"env_id": "own_evil:Walk-v0"},
    "gymnasium's argument": {"env_kwargs": {"env_id": "own_evil:Walk-v0"}},
}


@pytest.mark.parametrize("way", ["eval", "resume", "collect", "play", "imagination", "config"])
@pytest.mark.parametrize("name", NAMES)
def test_no_module_of_the_current_folder_is_imported(
    name: str, way: str, command: Command, runs: Path, tmp_path: Path
) -> None:
    evil = Code(Path.cwd(), "own_evil")
    run = forged_copy(runs / WAYS[way][0], tmp_path / "run", **NAMES[name])
    refused(asked(command, way, run), "would import 'own_evil'")
    assert not evil.imported
    # Nor with trust, which the current folder is not searched for, and the run's own never.
    inside = Code(run, "own_evil")
    refused(asked(command, way, run, "--trust"), "there is no module 'own_evil' (the current folder is not searched")
    assert not evil.imported
    assert not inside.imported


@pytest.mark.parametrize("settings", [{"callbacks": ["own_evil:Cb"]}, {"dataset": "own_evil:data"}])
def test_no_callback_and_no_dataset_of_a_checkpoint_runs(
    settings: dict[str, Any], command: Command, runs: Path, tmp_path: Path
) -> None:
    evil = Code(Path.cwd(), "own_evil")
    run = forged_copy(runs / "bc", tmp_path / "run", **settings)
    refused(command("resume", run, "total_timesteps=3"), "would import 'own_evil'")
    # An evaluation needs neither, and asks for nothing.
    assert command("eval", run, "--episodes", "1").code == 0
    assert not evil.imported


def test_the_checkpoint_of_an_opponent_runs_nothing(command: Command, runs: Path, tmp_path: Path) -> None:
    evil = Code(Path.cwd(), "own_evil")
    opponent = forged_copy(runs / "game", tmp_path / "opponent", model="own_evil:Net")
    own = shutil.copytree(runs / "game", tmp_path / "own")
    words = ("opponent", "model='own_evil:Net' would import 'own_evil'")
    refused(command("eval", own, "--episodes", "2", "--opponent", opponent), *words)
    # Nor that of an opponent which a foreign run or its config names.
    forge(own, eval_opponent=str(opponent))
    refused(command("eval", own, "--episodes", "2"), *words)
    refused(command("resume", own, "total_timesteps=96"), *words)
    refused(command("train", "gumbel_muzero", *as_overrides(TINY_GAME), f"eval_opponent={opponent}"), *words)
    assert not evil.imported
    # Its environment is not made, so what it names for that is not asked about.
    forge(opponent, model="auto", env_id="own_evil:make")
    assert command("eval", own, "--episodes", "2").code == 0
    assert not evil.imported


def test_trust_reaches_the_game_and_its_opponent(command: Command, tmp_path: Path) -> None:
    settings = TINY_GAME | {"total_timesteps": 48, "eval_episodes": 2}
    train(settings | {"model": "rl_training.testing:LinearMuZero"}, run_dir=tmp_path / "trained")
    train(settings | {"env_id": "board_games:CountedFromOne"}, run_dir=tmp_path / "counted")
    opponent = shutil.copytree(tmp_path / "trained", tmp_path / "opponent")
    counted = shutil.copytree(tmp_path / "counted", tmp_path / "copy")
    game = ["train", "gumbel_muzero", *as_overrides(settings), f"eval_opponent={opponent}", "--quiet"]
    for words in (
        ["eval", tmp_path / "trained", "--episodes", "2", "--opponent", opponent],
        game,
        ["play", counted],
        ["plot", counted, "--search", "--output", "out.png"],
    ):
        refused(command(*words), "--trust (trust=True in Python)")
        assert command(*words, "--trust").code == 0, words
    # Those that this user trained need no word.
    assert command("eval", opponent.parent / "trained", "--opponent", opponent.parent / "trained").code == 0
    assert command("play", tmp_path / "counted").code == 0


def test_a_run_to_start_from_is_only_read(command: Command, runs: Path, tmp_path: Path) -> None:
    evil = Code(Path.cwd(), "own_evil")
    settings: dict[str, Any] = {"online": True, "offline_fraction": 0.0, "dataset": None, "total_timesteps": 24}
    train(tiny(algo="td3_bc", total_timesteps=2, eval_episodes=1), run_dir=tmp_path / "td3_bc")
    forge(tmp_path / "td3_bc", env_id="own_evil:make", callbacks=["own_evil:Cb"], dataset="own_evil:data")
    config = tiny(algo="td3_bc", eval_episodes=1) | settings | {"start_from": str(tmp_path / "td3_bc")}
    assert train(config, run_dir=tmp_path / "continued").stop_reason == "completed"
    assert not evil.imported


def test_pictures_and_lists_run_nothing(command: Command, runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    evil = Code(Path.cwd(), "own_evil")
    names: dict[str, Any] = {"algo": "own_evil:SPEC", "env_id": "own_evil:make", "callbacks": ["own_evil:Cb"]}
    run = forged_copy(runs / "ppo", tmp_path / "run", **names)
    assert command("plot", run, "--output", "out.png").code == 0
    assert command("list").code == 0
    assert command("dataset", "inspect", forged_copy(runs / "bc", tmp_path / "bc", **names)).code == 2
    assert not evil.imported


def test_an_environment_that_a_dataset_names_is_not_made(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    pytest.importorskip("h5py")
    evil = Code(Path.cwd(), "own_evil")
    data = collect("CartPole-v1", [Behaviour()], steps=20)
    columns = {"observations": data.obs, "actions": data.action, "rewards": data.reward}
    columns |= {"next_observations": data.next_obs, "terminals": data.terminated, "timeouts": data.truncated}
    np.savez("data.npz", **columns, env_id=np.asarray("own_evil:make"))
    refused(
        command("dataset", "convert", "data.npz", "evil/data-v0"), "env_id='own_evil:make' names code", "--env own_"
    )
    assert not evil.imported
    assert command("dataset", "convert", "data.npz", "copy.npz").code == 0
    assert not evil.imported


# The one gate.

# What reads the config of a checkpoint as data, and resolves nothing of it.
READERS = {
    "experiment/config.py:saved_config",
    "runtime/checkpoints/continuation.py:_check_origin",
    "runtime/checkpoints/snapshots.py:load_snapshot",
    "runtime/datasets.py:read_run_replay",
    "runtime/saved_policy.py:tasks_of",
    "runtime/seeds.py:_ended",
    "runtime/seeds.py:_read_summary",
    "runtime/seeds.py:_seed_of",
    "runtime/workflows.py:_is_its_own",
    "runtime/workflows.py:restore",
    "runtime/workflows.py:resume_training",
}


def reads_config(node: ast.AST) -> bool:
    """Whether this is `something["config"]`, or a `.get("config")`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop"):
        key: ast.AST | None = next(iter(node.args), None)
    else:
        key = node.slice if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) else None
    return isinstance(key, ast.Constant) and key.value == "config"


def test_only_the_gate_turns_the_config_of_a_checkpoint_into_a_config() -> None:
    source, found = Path(rl_training.__file__).parent, set()
    for file in source.rglob("*.py"):
        for function in ast.walk(ast.parse(file.read_text())):
            if isinstance(function, ast.FunctionDef) and any(map(reads_config, ast.walk(function))):
                name = f"{file.relative_to(source).as_posix()}:{function.name}"
                found.add(name)
                called = {getattr(node.func, "id", "") for node in ast.walk(function) if isinstance(node, ast.Call)}
                assert not called & {"load_config", "load_spec", "RunConfig", "EnvMaker"}, name
    assert found == READERS, "a new reader must not resolve anything: it goes through saved_config if it does"
