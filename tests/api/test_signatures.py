"""An editor knows the settings: signatures, documentation and stubs say what the config fields say."""

from __future__ import annotations

import importlib.util
import inspect
import keyword
import pydoc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rl_training
from benchmark_helpers import load
from rl_training import DQN, PPO, SAC, Agent, load_config
from rl_training.api import algorithms
from rl_training.experiment.fields import SUFFIXES, settings_of
from rl_training.experiment.registry import load_spec

stubs = load("stubs")
SOURCE = Path(rl_training.__file__).resolve().parents[1]
AGENTS = [kind for kind in vars(algorithms).values() if inspect.isclass(kind) and getattr(kind, "algo", "")]
EVERY_AGENT = pytest.mark.parametrize("kind", AGENTS, ids=lambda kind: kind.__name__)


@EVERY_AGENT
def test_a_signature_has_every_setting_with_its_default(kind: type[Agent]) -> None:
    parameters = inspect.signature(kind).parameters
    first, *others = parameters.values()
    assert (first.name, first.kind) == ("env", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in others)
    settings = settings_of(load_spec(kind.algo))
    for setting in settings.values():
        if setting.name in ("algo", "env_id", "expected"):
            assert setting.name not in parameters
            continue
        for name in (setting.name, *setting.aliases):
            if not keyword.iskeyword(name):
                assert parameters[name].default == setting.default
                assert all((name + suffix in parameters) == setting.schedulable for suffix in SUFFIXES)


@EVERY_AGENT
def test_the_documentation_explains_every_setting(kind: type[Agent]) -> None:
    words = " ".join(inspect.getdoc(kind).split())
    for setting in settings_of(load_spec(kind.algo)).values():
        if setting.name not in ("algo", "env_id", "expected"):
            assert " ".join(setting.help.split()) in words, setting.name


def test_help_shows_it() -> None:
    shown = pydoc.plain(pydoc.render_doc(PPO))
    assert "learning_rate: float = 0.0003" in shown
    assert "Weight of the entropy bonus. It is at least 0. Also: entropy_coef." in shown
    assert "epsilon*: float = linear from 1 to 0.05 over the first 10% of the run" in inspect.getdoc(DQN)


def test_types_are_those_that_may_be_given() -> None:
    parameters = inspect.signature(SAC).parameters
    shown = {name: stubs.as_code(parameters[name]) for name in ("ent_coef", "hidden_sizes", "model", "env_kwargs")}
    assert shown == {
        "ent_coef": 'ent_coef: float | str = "auto"',
        "hidden_sizes": "hidden_sizes: Sequence[int] | Mapping[str, Sequence[int]] = (256, 256)",
        "model": 'model: str | Callable[..., Any] = "auto"',
        "env_kwargs": "env_kwargs: Mapping[str, Any] = ...",
    }


@EVERY_AGENT
def test_every_default_of_a_signature_may_be_given(kind: type[Agent]) -> None:
    settings = settings_of(load_spec(kind.algo))
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(kind).parameters.items()
        if name in settings and settings[name].default_schedule is None
    }
    given = {"algo": kind.algo, "env_id": "CartPole-v1"}
    assert load_config(given, **defaults).flat() == load_config(given).flat()


def test_a_class_of_ones_own_has_the_signature_of_its_constructor() -> None:
    class Own(PPO):
        def __init__(self, size: int) -> None:
            super().__init__("CartPole-v1", hidden_sizes=[size])

    class Named(PPO):
        """PPO by another name."""

    assert list(inspect.signature(Own).parameters) == ["size"]
    assert inspect.signature(Named) == inspect.signature(PPO)
    assert inspect.getdoc(Named).startswith("PPO by another name.\n\nSettings")
    assert list(inspect.signature(Agent).parameters) == ["env", "misplaced", "settings"]


# Stubs


def test_the_stubs_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert stubs.main(["--check"]) == 0, "run `python benchmarks/stubs.py`"
    assert capsys.readouterr().out == "algorithms.pyi is up to date\n"


def test_stubs_that_are_old_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stubs, "FILE", tmp_path / "algorithms.pyi")
    stubs.FILE.write_text(stubs.write_stubs().replace("learning_rate", "learning_rat"))
    assert stubs.main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().out
    assert stubs.main([]) == 0
    assert stubs.main(["--check"]) == 0


GOOD = """
from rl_training import PPO, SAC, Agent
agent: PPO = PPO("CartPole-v1", learning_rate=1e-3, learning_rate_schedule="linear", clip_range=0.1).learn(10)
SAC("Pendulum-v1", ent_coef="auto", hidden_sizes=[32], env_kwargs={"g": 9.0}, learning_rate_warmup_steps=4)
loaded: PPO = PPO.load("agent", num_envs=2)
action = agent.policy([0.0])
"""
BAD = {
    'PPO("CartPole-v1", learning_rat=1e-3)': 'Unexpected keyword argument "learning_rat" for "PPO"',
    'PPO("CartPole-v1", "MlpPolicy")': 'Too many positional arguments for "PPO"',
    'PPO("CartPole-v1", n_steps="many")': 'Argument "n_steps" to "PPO" has incompatible type "str"; expected "int"',
    'PPO("CartPole-v1", vectorization="both")': 'Argument "vectorization" to "PPO" has incompatible type',
    'PPO("CartPole-v1", buffer_size=100)': 'Unexpected keyword argument "buffer_size" for "PPO"',
}
# Only what says the types of agents is read, so that this takes seconds.
MYPY = """
[mypy]
[mypy-rl_training.*,torch.*,numpy.*,gymnasium.*,pydantic.*]
follow_imports = skip
[mypy-rl_training,rl_training.api,rl_training.api.agent,rl_training.api.algorithms]
follow_imports = silent
"""


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_a_type_checker_knows_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYPYPATH", str(SOURCE))
    (tmp_path / "mypy.ini").write_text(MYPY)
    (tmp_path / "script.py").write_text(GOOD + "".join(f"{line}\n" for line in BAD))
    done: Any = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache", "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    first = GOOD.count("\n") + 1
    for number, words in enumerate(BAD.values(), start=first):
        assert any(line.startswith(f"script.py:{number}:") and words in line for line in errors), done.stdout
    assert all(int(line.split(":")[1]) >= first for line in errors), done.stdout
