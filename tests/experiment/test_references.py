"""Names of code: what they may be is checked before anything is called, whoever gives them."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from rl_training import Callback, UserError, load_config, train
from rl_training.experiment.presets import preset_names
from rl_training.experiment.references import reference_to, resolve_maker
from rl_training.experiment.trust import TRAINING, code_in, names_code
from rl_training.runtime.envs.make import EnvMaker
from run_helpers import Walk, tiny

HERE = "test_references"


def made(noise: float = 0.2) -> Walk:
    return Walk(noise)


def no_words(noise):  # type: ignore[no-untyped-def]
    return Walk(noise)


class Factory:
    @classmethod
    def make(cls, noise: float = 0.2) -> gym.Env[Any, Any]:
        return Walk(noise)

    def __call__(self, noise: float = 0.2) -> Any:
        return Walk(noise)


def says_nothing() -> None:
    raise AssertionError("nobody calls it")


def says_a_mapping() -> dict[str, Any]:
    raise AssertionError("nobody calls it")


partly = functools.partial(made, noise=0.3)
remembered = functools.cache(made)
factory = Factory()
hidden = functools.partial(os.system)
quiet = functools.partial(functools.partial(subprocess.run, check=True), shell=True)
removed = shutil.rmtree
looked_up = os.environ.get


@pytest.mark.parametrize(
    "name", ["made", "no_words", "Walk", "Factory.make", "partly", "remembered", "factory", "gym.Env", "gym.Wrapper"]
)
def test_what_makes_an_environment(name: str) -> None:
    assert callable(resolve_maker(f"{HERE}:{name}", key="env_id", makes="an environment", kinds=(gym.Env,)))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("os.system", "system is a part of Python itself"),
        ("hidden", "system is a part of Python itself"),
        ("subprocess.Popen", "Popen is a part of Python itself"),
        ("quiet", "run is a part of Python itself"),
        ("removed", "is a part of Python itself"),
        ("looked_up", "Mapping.get is a part of Python itself"),
        ("functools.partial", "partial is a part of Python itself"),
        ("Callback", "Callback is no subclass of Env or VectorEnv.*"),
        ("Factory", "Factory is no subclass of Env or VectorEnv.*"),
        ("says_nothing", "it says that it returns None"),
        ("says_a_mapping", r"it says that it returns dict\[str, Any\]"),
        ("HERE", "it is a str"),
    ],
)
def test_what_does_not(name: str, words: str) -> None:
    with pytest.raises(UserError, match=rf"^env_id='{HERE}:{name}': .*({words})$"):
        EnvMaker(load_config(tiny(env_id=f"{HERE}:{name}")).run, load_config("ppo", env_id="none").loop)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"env_id": "os:system", "env_kwargs": {"command": "exit 3"}},
            "^env_id='os:system': must name .* an environment",
        ),
        (
            {"model": "subprocess:run"},
            "^model='subprocess:run': must name .* a network; run is a part of Python itself",
        ),
        ({"callbacks": ["os:getcwd"]}, "^callbacks='os:getcwd': must name a function .*; it is a builtin_function"),
        (
            {"callbacks": [f"{HERE}:says_nothing"]},
            "a function is called with the run alone, after every step: too many",
        ),
        ({"algo": "bc", "dataset": "os:listdir"}, "dataset='os:listdir': must name .*; listdir is a part of Python"),
        ({"algo": "os:name"}, "^algo='os:name': it is a str, not an AlgorithmSpec"),
    ],
)
def test_a_mistake_of_ones_own_is_one_line_too(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words) as mistake:
        train(tiny(**settings), run_dir=tmp_path / "run")
    assert len(str(mistake.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_what_names_code() -> None:
    for key, value in (
        ("env_id", "my_module:make"),
        ("env_id", "my_module:Env-v0"),
        ("env_kwargs.env_id", "my_module:Env-v0"),
        ("env_id", "rl_training.experiment.manager:write_atomically"),
        ("dataset", "my_module:data"),
        ("model", "a.b:C.d"),
    ):
        assert names_code(key, value), (key, value)
    for key, value in (
        ("env_id", "CartPole-v1"),
        ("env_id", "ALE/Pong-v5"),
        ("env_id", "custom my_module:make"),
        ("env_id", "rl_training.runtime.no_velocity:NoVelocity"),
        ("env_kwargs.env_id", None),
        ("algo", "ppo"),
        ("model", "auto"),
        ("dataset", "data.npz"),
        ("dataset", "C:/data/run.npz"),
    ):
        assert not names_code(key, value), (key, value)
    assert names_code("model", "rl_training.runtime.no_velocity:NoVelocity"), "it is free as an environment only"


def test_no_preset_names_code_that_would_have_to_be_trusted() -> None:
    for name in preset_names():
        assert list(code_in(load_config(name), TRAINING)) == [], name


def test_a_name_leads_back_to_what_it_names() -> None:
    assert reference_to(made) == f"{HERE}:made"
    assert reference_to(Callback) == "rl_training.runtime.callbacks:Callback"
    assert reference_to(partly) is reference_to(None) is None
