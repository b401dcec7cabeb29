"""Environments by name: ids with the module that registers them, packages that register them, and functions."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from foreign import own_modules
from rl_training import PPO, UserError, evaluate_checkpoint, load_config, train
from rl_training.algorithms.base import LoopConfig
from rl_training.experiment.references import DISTRIBUTIONS
from rl_training.experiment.settings import RunConfig
from rl_training.runtime.datasets import Behaviour, EnvSettings, collect
from rl_training.runtime.envs.ids import bare_id
from rl_training.runtime.envs.make import EnvMaker
from rl_training.runtime.extras import EXTRAS
from run_helpers import Command, Said, as_overrides, latest, tiny, training_differences

MODULE = """
import gymnasium as gym
import run_helpers


class OwnWalk(run_helpers.Walk):
    pass


def make_walk(noise=0.2):
    return gym.wrappers.TimeLimit(OwnWalk(noise), 7)


NUMBER = 5
gym.register(id="OwnWalk-v0", entry_point="own_worlds:OwnWalk", max_episode_steps=7)
gym.register(id="own/Nested-v1", entry_point="own_worlds:make_walk")
"""
WITH_MODULE: dict[str, Any] = {"env_id": "own_worlds:OwnWalk-v0"}
WITH_PACKAGE: dict[str, Any] = {"env_id": "OwnWalk-v0", "env_packages": ["own_worlds"]}
SHORT: dict[str, Any] = {"total_timesteps": 24, "eval_episodes": 1}


def forget() -> None:
    """As if nobody had imported the module."""
    sys.modules.pop("own_worlds", None)
    for known in [key for key, spec in gym.registry.items() if "own_worlds" in str(spec.entry_point)]:
        del gym.registry[known]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder with a module that registers environments, which nobody has imported."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "own_worlds.py").write_text(MODULE)
    monkeypatch.chdir(folder)
    with own_modules():
        yield folder
    forget()


@pytest.fixture
def command(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


def complaint(**settings: Any) -> str:
    with pytest.raises(UserError) as found:
        EnvMaker(RunConfig(**settings), LoopConfig())
    assert "\n" not in str(found.value)
    return str(found.value)


# How they are found


@pytest.mark.parametrize("named", [WITH_MODULE, WITH_PACKAGE], ids=["module", "package"])
def test_both_forms_train_evaluate_resume_and_collect_alike(named: dict[str, Any], here: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(total_timesteps=48, eval_episodes=1), run_dir=tmp_path / "other")
    train(tiny(**named | SHORT), run_dir=run)
    saved = load_config(run / "config.yaml").flat()
    assert {key: saved[key] for key in named} == named
    forget()
    assert evaluate_checkpoint(run, num_episodes=2)["eval_length_mean"] <= 7.0
    forget()
    train(load_config(run / "config.yaml", total_timesteps=48), resume=run)
    forget()
    assert len(collect(None, [Behaviour(run)], steps=8).reward) == 8
    forget()
    loaded = PPO.load(run)
    assert loaded.num_timesteps == 48
    loaded.close()
    forget()
    straight = tmp_path / "straight"
    train(tiny(**named | {"total_timesteps": 48, "eval_episodes": 1}), run_dir=straight)
    assert training_differences(latest(run), latest(straight)) == []


def test_the_two_forms_are_the_same_environment(here: Path, tmp_path: Path) -> None:
    train(tiny(**WITH_MODULE | SHORT), run_dir=tmp_path / "module")
    train(tiny(**WITH_PACKAGE | SHORT), run_dir=tmp_path / "package")
    assert training_differences(latest(tmp_path / "module"), latest(tmp_path / "package")) == []


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_environments_in_processes_of_their_own_find_them(
    start: str, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import multiprocessing

    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(start, force=True)
    try:
        maker = EnvMaker(RunConfig(**WITH_PACKAGE, vectorization="async"), LoopConfig())
        envs = maker.vector(2)
        assert envs.reset(seed=1)[0].shape == (2, 2)
        envs.close()
    finally:
        multiprocessing.set_start_method(before, force=True)


def test_workers_in_processes_of_their_own_find_them(here: Path, tmp_path: Path) -> None:
    settings = tiny(algo="impala", **WITH_PACKAGE | SHORT, actors="process") | {"num_envs": 2, "num_workers": 2}
    result = train(settings, run_dir=tmp_path / "run")
    assert result.stop_reason == "completed"


@pytest.mark.parametrize(
    ("env_id", "bare"),
    [
        ("CartPole-v1", "CartPole-v1"),
        ("my_envs:Walk-v0", "Walk-v0"),
        ("a.b:ns/Walk-v0", "ns/Walk-v0"),
        ("ALE/Pong-v5", "ALE/Pong-v5"),
    ],
)
def test_the_id_without_its_module(env_id: str, bare: str) -> None:
    assert bare_id(env_id) == bare


def test_ids_and_functions_of_one_module_are_told_apart(here: Path) -> None:
    by_id = EnvMaker(RunConfig(**WITH_MODULE), LoopConfig())
    assert (by_id.factory, by_id.time_limit) == (None, 7)
    nested = EnvMaker(RunConfig(env_id="own_worlds:own/Nested-v1"), LoopConfig())
    assert nested.spec is not None
    by_function = EnvMaker(RunConfig(env_id="own_worlds:make_walk", env_kwargs={"noise": 0.1}), LoopConfig())
    assert by_function.spec is None
    by_class = EnvMaker(RunConfig(env_id="own_worlds:OwnWalk"), LoopConfig())
    assert by_class.spec is None
    for maker in (by_id, nested, by_function, by_class):
        maker.vector(2).close()


def test_an_id_of_minigrid_with_its_module_has_our_observations() -> None:
    pytest.importorskip("minigrid", reason="needs the extra minigrid")
    found = []
    for env_id in ("MiniGrid-Empty-5x5-v0", "minigrid:MiniGrid-Empty-5x5-v0"):
        envs = EnvMaker(RunConfig(env_id=env_id), LoopConfig()).vector(1)
        found.append(envs.single_observation_space)
        envs.close()
    assert found[0] == found[1]


def test_an_id_of_gymnasium_robotics_with_its_module() -> None:
    pytest.importorskip("gymnasium_robotics", reason="needs gymnasium-robotics")
    maker = EnvMaker(RunConfig(env_id="gymnasium_robotics:PointMaze_UMaze-v3"), LoopConfig())
    assert maker.spec is not None
    assert maker.spec.id == "PointMaze_UMaze-v3"


# What is said


def test_a_name_that_is_neither_shows_the_nearest_of_both_kinds(here: Path) -> None:
    said = complaint(env_id="own_worlds:OwnWalc-v0")
    assert said == (
        "env_id='own_worlds:OwnWalc-v0': own_worlds registers no id 'OwnWalc-v0' and has no function of that name; did "
        "you mean 'own_worlds:OwnWalk-v0' or 'own_worlds:OwnWalk'?"
    )
    assert complaint(env_id="own_worlds:mak_walk").endswith("did you mean 'own_worlds:make_walk'?")
    assert complaint(env_id="own_worlds:xyz").endswith(
        "it has the ids OwnWalk-v0, own/Nested-v1 and the functions OwnWalk, make_walk"
    )
    assert "must name a function or class that makes an environment; it is a int" in complaint(
        env_id="own_worlds:NUMBER"
    )


def test_a_missing_module_names_what_to_install(here: Path) -> None:
    from rl_training.experiment import references

    for key in ("env_id", "env_packages"):
        settings = {"env_id": "X-v0"} | {key: "own_world:OwnWalk-v0" if key == "env_id" else ["own_world"]}
        said = complaint(**settings)
        assert f"there is no module 'own_world' (looked in {here} too); did you mean 'own_worlds'?" in said
    references.DISTRIBUTIONS["own_arcade"] = "own-arcade"
    try:
        assert complaint(env_id="own_arcade:Game-v0").endswith("; install it: pip install own-arcade")
    finally:
        del references.DISTRIBUTIONS["own_arcade"]


def test_the_extras_that_messages_name_are_there() -> None:
    named = [text.partition("[")[2].rstrip("]'") for text in DISTRIBUTIONS.values() if "[" in text]
    assert set(named) <= set(EXTRAS)


def test_what_is_no_module(here: Path) -> None:
    assert "'a-b' is no module; give module:Env-v0 or module:function" in complaint(env_id="a-b:Walk-v0")
    with pytest.raises(UserError, match="env_packages: 'own-worlds' is no module; give what you would import"):
        load_config({"algo": "ppo", "env_id": "OwnWalk-v0", "env_packages": ["own-worlds"]})
    assert load_config({"algo": "ppo", "env_id": "X-v0", "env_packages": "own_worlds"}).run.env_packages == (
        "own_worlds",
    )


def test_a_module_that_fails_says_why(here: Path) -> None:
    (here / "own_broken.py").write_text("1 / 0\n")
    said = complaint(env_id="CartPole-v1", env_packages=["own_broken"])
    assert said.startswith("env_packages='own_broken': importing 'own_broken' failed: ZeroDivisionError")


# Runs on ids that only a script registered


@pytest.fixture
def scripted(here: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Path:
    """A run on an id that its own program registered, with an argument, and the warning about it."""
    sys.path.append(str(here))
    importlib.import_module("own_worlds")
    train(tiny(env_id="OwnWalk-v0", env_kwargs={"noise": 0.0}, **SHORT), run_dir=tmp_path / "scripted")
    assert "is registered by this program; so that others find it" in caplog.text
    assert "env_packages=[module], or env_id=module:OwnWalk-v0" in caplog.text
    forget()
    sys.path.remove(str(here))
    return tmp_path / "scripted"


@pytest.mark.parametrize("words", [["eval"], ["resume", "total_timesteps=48"]], ids=["eval", "resume"])
def test_a_run_on_an_id_that_only_a_script_registered_says_what_to_give(
    words: list[str], scripted: Path, command: Command
) -> None:
    said = command(words[0], scripted, *words[1:])
    assert said.code == 2
    assert len(said.err.splitlines()) == 1
    assert "env_id='OwnWalk-v0': unknown environment" in said.err
    assert "name that: env_packages=[module], or env_id=module:OwnWalk-v0" in said.err


def test_what_it_says_works(scripted: Path, command: Command, caplog: pytest.LogCaptureFixture) -> None:
    """Arguments of the run stay."""
    judged = command("eval", scripted, "--env", "own_worlds:OwnWalk-v0", "--episodes", "3")
    assert judged.code == 0, judged
    again = evaluate_checkpoint(scripted, num_episodes=3, env="own_worlds:OwnWalk-v0")
    assert f"return {again['eval_return_mean']:.2f}" in judged.out
    forget()
    said = command("resume", scripted, "total_timesteps=48", "env_packages=[own_worlds]", "--quiet")
    assert said.code == 0, said
    forget()
    said = command("resume", scripted, "total_timesteps=72", "env_id=own_worlds:OwnWalk-v0", "--quiet")
    assert said.code == 0, said
    assert command("eval", scripted, "--episodes", "1").code == 0
    said = command("resume", scripted, "total_timesteps=96", "env_id=own_worlds:own/Nested-v1", "--quiet")
    assert "a resumed run keeps its env_id" in said.err


def test_no_warning_where_others_find_it(here: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, named in enumerate((WITH_MODULE, WITH_PACKAGE, {"env_id": "CartPole-v1"})):
        train(tiny(**named | SHORT), run_dir=tmp_path / str(name))
    assert "registered by this program" not in caplog.text


# Runs of somebody else


def copied(named: dict[str, Any], tmp_path: Path) -> Path:
    train(tiny(**named | SHORT), run_dir=tmp_path / "run")
    forget()
    return Path(shutil.copytree(tmp_path / "run", tmp_path / "copy"))


def refused(said: Said, *words: str) -> None:
    assert said.code == 2, said
    for word in words:
        assert word in said.err, said.err
    assert "own_worlds" not in sys.modules


@pytest.mark.parametrize(
    "words",
    [
        ["eval", "RUN"],
        ["resume", "RUN", "total_timesteps=48"],
        ["dataset", "collect", "out.npz", "--from", "RUN", "--steps", "4"],
        ["train", "RUN/config.yaml"],
    ],
    ids=["eval", "resume", "collect", "config"],
)
@pytest.mark.parametrize("named", [WITH_MODULE, WITH_PACKAGE], ids=["module", "package"])
def test_a_run_of_somebody_else_imports_nothing(
    words: list[str], named: dict[str, Any], command: Command, tmp_path: Path
) -> None:
    run = copied(named, tmp_path)
    said = command(*(word.replace("RUN", str(run)) for word in words))
    refused(said, "would import 'own_worlds', and you did not give that", "--trust")


def test_neither_does_it_with_an_environment_of_the_caller(here: Path, tmp_path: Path) -> None:
    run = copied(WITH_PACKAGE, tmp_path)

    def mine() -> gym.Env[Any, Any]:
        from run_helpers import limited_walk

        return limited_walk()

    with pytest.raises(UserError, match="would import 'own_worlds'"):
        PPO.load(run, env=mine)
    with pytest.raises(UserError, match="would import 'own_worlds'"):
        evaluate_checkpoint(run, env_factory=mine, num_episodes=1)
    assert "own_worlds" not in sys.modules
    evaluate_checkpoint(run, env=mine, num_episodes=1)  # another environment needs no packages
    PPO.load(run, env=mine, env_packages=[]).close()
    assert "own_worlds" not in sys.modules


def test_the_caller_gives_it(command: Command, tmp_path: Path) -> None:
    run = copied(WITH_PACKAGE, tmp_path)
    assert command("resume", run, "total_timesteps=48", "env_packages=[own_worlds]", "--quiet").code == 0
    forget()
    run = copied(WITH_PACKAGE, tmp_path / "second")
    assert command("eval", run, "--env", "own_worlds:OwnWalk-v0", "--episodes", "1").code == 0


def test_a_dataset_names_no_packages(here: Path, tmp_path: Path) -> None:
    train(tiny(**WITH_PACKAGE | SHORT), run_dir=tmp_path / "run")
    data = collect(None, [Behaviour(tmp_path / "run")], steps=8)
    with pytest.raises(UserError, match=r"env_packages='own_worlds' names code.*give --env own_worlds:OwnWalk-v0"):
        EnvSettings.of_file(data)


def test_the_doctor_takes_an_id_with_its_module(command: Command) -> None:
    said = command("doctor", "own_worlds:OwnWalk-v0", "--steps", "50")
    assert "determinism" in said.out


def test_overrides_are_as_in_the_documents(command: Command, tmp_path: Path) -> None:
    words = as_overrides(tiny(**SHORT) | WITH_PACKAGE | {"output_dir": str(tmp_path / "runs")})
    assert command("train", "ppo", *(word for word in words if not word.startswith("algo=")), "--quiet").code == 0
