"""The examples of user code: each is trained by reference, and all of them together from the command line."""

from __future__ import annotations

import importlib
import json
import os
import re
import runpy
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from gymnasium.utils.env_checker import check_env

from rl_training import PPO, Agent, Callback, evaluate_checkpoint, load_config, resume_training, train, train_ppo
from rl_training.data.datasets.files import read_dataset
from rl_training.data.packaged import DATASET_FOLDER, cartpole_expert, pendulum_medium
from rl_training.experiment.references import resolve_reference
from rl_training.runtime.checkpoints.catalogue import find_checkpoint
from rl_training.runtime.checkpoints.checkpoint import read_checkpoint, read_meta
from rl_training.runtime.train import build
from rl_training.testing import CHECKS

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MODULES = ("custom_env", "custom_model", "custom_callback", "custom_algorithm")
COMMAND = Path(sysconfig.get_path("scripts")) / "rl-training"

QUICK: dict[str, Any] = {"num_envs": 2, "n_steps": 16, "hidden_sizes": [8], "total_timesteps": 128, "eval_episodes": 2}


@pytest.fixture(autouse=True)
def _in_the_examples_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where a user would stand; modules and the search path are put back, and no bytecode is left in the folder."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(EXAMPLES)
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def example(name: str) -> ModuleType:
    resolve_reference(f"{name}:__doc__", key="test")
    return importlib.import_module(name)


def test_environment_is_trained_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []
    corridor = example("custom_env").Corridor
    build = corridor.__init__
    monkeypatch.setattr(corridor, "__init__", lambda env, length: (lengths.append(length), build(env, length))[1])
    config = {"env_id": "custom_env:make_env", "env_kwargs": {"length": 6}} | QUICK
    result = train_ppo(config, run_dir=tmp_path / "run")
    assert set(lengths) == {6}
    assert len(lengths) >= QUICK["num_envs"] + 1  # those that learn, and one that judges
    assert read_meta(result.checkpoint)["spaces"]["obs_shape"] == [2]
    assert result["eval_length_mean"] <= 4 * 6


def test_environment_keeps_gymnasiums_rules() -> None:
    check_env(example("custom_env").make_env(length=6).unwrapped, skip_render_check=True)


def test_environment_is_learned() -> None:
    """A straight walk needs 4 to 7 steps in a corridor of 8."""
    agent = PPO("custom_env:make_env", num_envs=4, n_steps=32, learning_rate=3e-3, n_epochs=5)
    evaluation = agent.learn(4_000).evaluate(20)
    assert max(evaluation.lengths) <= 7
    assert min(evaluation.returns) >= 0.7 - 1e-6


@pytest.mark.parametrize(
    ("env_id", "size", "params"), [("CartPole-v1", 4, 2), ("Acrobot-v1", 6, 3), ("Pendulum-v1", 3, 2)]
)
def test_network_is_trained_by_reference(env_id: str, size: int, params: int, tmp_path: Path) -> None:
    settings = {"algo": "ppo", "env_id": env_id, "model": "custom_model:SharedTorso", "time_limit": 50} | QUICK
    run = build(load_config(settings))
    network = run.algorithm.network
    run.close()
    assert type(network) is example("custom_model").SharedTorso
    policy, value = network(torch.zeros(5, size))
    assert (policy.shape, value.shape) == ((5, params), (5,))
    result = train(settings, run_dir=tmp_path / "run")
    saved = read_checkpoint(result.checkpoint).policy
    assert {name.removeprefix("network.") for name in saved} == network.state_dict().keys()
    assert ("network.log_std.weight" in saved) == (env_id == "Pendulum-v1")
    assert any(not torch.equal(saved[f"network.{name}"], before) for name, before in network.state_dict().items())
    assert evaluate_checkpoint(result.checkpoint, num_episodes=1)["eval_episodes"] == 1.0


def test_diary_is_written_and_survives_a_crash(tmp_path: Path) -> None:
    settings = {"env_id": "CartPole-v1", "callbacks": ["custom_callback:Diary"], "eval_interval": 48} | QUICK
    settings |= {"n_steps": 8, "checkpoint_interval": 32}
    whole = train_ppo(settings, run_dir=tmp_path / "whole")
    diary = (whole.run_dir / "diary.txt").read_text()
    assert [int(step) for step in re.findall(r"^step (\d+): return [\d.]+$", diary, re.MULTILINE)] == [
        row["step"] for row in rows(whole.run_dir) if "eval_return_mean" in row
    ]
    assert diary.count("\n") >= 3

    class Crash(Callback):
        def on_step(self, run: Any, metrics: Any) -> None:
            if run.steps >= 100:
                raise RuntimeError("the machine went down")

    with pytest.raises(RuntimeError, match="went down"):
        train_ppo(settings, run_dir=tmp_path / "killed", callbacks=[Crash()])
    assert not (tmp_path / "killed" / "diary.txt").exists()
    resume_training(tmp_path / "killed")
    assert (tmp_path / "killed" / "diary.txt").read_text() == diary


def test_object_as_callback_stops_the_run(tmp_path: Path) -> None:
    callbacks = ["custom_callback:stop_after_1000_episodes"]
    settings = {"env_id": "custom_env:make_env", "env_kwargs": {"length": 3}, "callbacks": callbacks} | QUICK
    result = train_ppo(settings | {"total_timesteps": 100_000, "n_epochs": 1}, run_dir=tmp_path / "run")
    assert result.stop_reason == "1000 episodes were played"
    assert 1_000 <= result["episodes"] <= 1_000 + QUICK["num_envs"] * QUICK["n_steps"]
    assert result["step"] < 100_000


def test_algorithm_is_trained_by_reference(tmp_path: Path) -> None:
    settings = {"algo": "custom_algorithm:SPEC", "env_id": "CartPole-v1", "regret": 0.8, "regret_schedule": 0.4} | QUICK
    config = load_config(settings)
    assert config.spec is example("custom_algorithm").SPEC
    result = train(config, run_dir=tmp_path / "run")
    assert result["regret"] == pytest.approx(0.4)
    assert result["n_updates"] >= 4
    assert resume_training(result.run_dir, total_timesteps=256)["regret"] == pytest.approx(0.4)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_algorithm_keeps_the_contract(check: Any) -> None:
    check("custom_algorithm:SPEC")


def test_regret_weighs_worse_actions() -> None:
    loss = example("custom_algorithm").plain_pg_policy_loss
    log_prob, advantage = torch.tensor([-1.0, -2.0]), torch.tensor([3.0, -1.0])
    # -((-1)(3) + regret (-2)(-1)) / 2
    assert loss(log_prob, advantage, 1.0).item() == pytest.approx(0.5)
    assert loss(log_prob, advantage, 0.0).item() == pytest.approx(1.5)


def test_yaml_with_everything_from_the_command_line(tmp_path: Path) -> None:
    """The real command, in a process of its own, from the examples folder."""
    before = sorted(EXAMPLES.iterdir())
    done = command("train", "custom.yaml", f"output_dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    (run_dir,) = tmp_path.iterdir()
    assert str(run_dir) in done.stdout
    # The callbacks.
    assert "(1000 episodes were played)" in done.stdout
    assert (run_dir / "diary.txt").read_text().startswith("step 2")
    # The environment, the network and the algorithm.
    (checkpoint,) = (run_dir / "checkpoints").glob((run_dir / "checkpoints" / "latest").read_text().strip())
    meta = read_meta(checkpoint)
    assert (meta["spaces"]["obs_shape"], meta["config"]["env_kwargs"]) == ([2], {"length": 10})
    assert read_checkpoint(checkpoint).policy["network.torso.1.weight"].shape == (32, 2)
    last = rows(run_dir)[-1]
    assert last["regret"] == pytest.approx(1.0 - 0.5 * last["step"] / 16_000)
    # It has learned to walk straight to the door: 5 to 9 steps in a corridor of 10.
    assert last["eval_length_mean"] <= 9
    judged = command("eval", str(run_dir), "--episodes", "3")
    assert (judged.returncode, "over 3 episodes" in judged.stdout) == (0, True), judged.stderr
    assert sorted(EXAMPLES.iterdir()) == before


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *arguments],
        cwd=EXAMPLES,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("name", MODULES)
def test_example_runs_as_a_program(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last lines, with a tenth of the steps."""
    learn = Agent.learn
    monkeypatch.setattr(Agent, "learn", lambda self, steps, **rest: learn(self, steps // 10, **rest))
    before = sorted(EXAMPLES.iterdir())
    runpy.run_path(f"{name}.py", run_name="__main__")
    assert re.search(r"return -?\d|step \d", capsys.readouterr().out)
    assert sorted(EXAMPLES.iterdir()) == before


def test_offline_script_learns_compares_and_goes_on_online(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path("awac_pendulum.py")["main"]
    main(["--updates", "10", "--online-steps", "120", "--output-dir", str(tmp_path), "--seed", "3"])
    offline, baselines, online, evaluated, runs = capsys.readouterr().out.splitlines()
    first, second = map(Path, runs.split()[1:])
    assert sorted(tmp_path.iterdir()) == sorted([first, second])
    last = rows(first)[-1]
    assert offline == f"offline    10 updates: return {last['eval_return_mean']:.1f} (completed)"
    returns = f"data {last['dataset_return_mean']:.1f}, behaviour cloning {last['bc_return_mean']:.1f}"
    assert baselines == f"baselines  {returns}"
    assert online == f"online     120 steps: return {rows(second)[-1]['eval_return_mean']:.1f} (completed)"
    assert re.fullmatch(r"evaluated  on 20 episodes: return -\d+\.\d", evaluated)
    meta = read_meta(find_checkpoint(second))
    assert (meta["config"]["start_from"], meta["config"]["seed"]) == (str(first), 3)
    assert rows(second)[-1]["n_updates"] > rows(first)[-1]["n_updates"] == 10, "the updates go on, too"


def test_the_packaged_dataset_is_made_by_its_script(tmp_path: Path) -> None:
    """With little work in it; what random actions reach is then the same as in the packaged one."""
    make = runpy.run_path("make_pendulum_medium.py")["make"]
    made = read_dataset(str(make(tmp_path / "medium.npz", half_trained=60, trained=70, steps=250)))
    packaged = pendulum_medium()
    assert (len(made), made.n_episodes, len(packaged)) == (250, 2, 10_000)
    for fact in ("env_id", "action_units", "ref_min_score"):
        assert made.source[fact] == packaged.source[fact]
    assert packaged.source["ref_min_score"] < packaged.returns.mean() < packaged.source["ref_max_score"]
    assert (DATASET_FOLDER / "pendulum_medium.npz").stat().st_size < 1e6


def test_the_packaged_demonstrations_are_made_by_their_script(tmp_path: Path) -> None:
    """By an agent that has learned next to nothing, and so falls early."""
    script = runpy.run_path("make_expert_demonstrations.py")
    made = read_dataset(str(script["make"]("cartpole_expert", tmp_path, total_timesteps=256)))
    packaged = cartpole_expert()
    assert made.n_episodes == packaged.n_episodes == script["EXPERTS"]["cartpole_expert"][1]
    assert made.returns.mean() < 100.0 < packaged.returns.min()
    for fact in ("env_id", "action_units"):
        assert made.source[fact] == packaged.source[fact]
    assert packaged.source["notes"] == ("an agent of ppo/cartpole after 100,000 steps, with its exploration",)
    assert sorted(script["EXPERTS"]) == sorted(file.stem for file in DATASET_FOLDER.glob("*_expert.npz"))
    assert all(file.stat().st_size < 1e5 for file in DATASET_FOLDER.glob("*_expert.npz"))


def rows(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
