"""A setting may have a default schedule. It applies where a config gives neither the setting, its schedule nor warm-up.

DQN's epsilon has one: from 1 to 0.05 over the first tenth of the run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from rl_training import DQN, resume_training, train
from rl_training.experiment.config import load_config
from rl_training.experiment.fields import json_schema, settings_of
from rl_training.experiment.presets import preset_names
from rl_training.experiment.registry import REGISTRY, load_spec
from run_helpers import Command, cut_and_resume, latest, metrics_rows, run_differences, tiny

PLAIN: dict[str, Any] = {"algo": "dqn", "env_id": "CartPole-v1", "total_timesteps": 1_000}
DEFAULT = {"type": "linear", "start": 1.0, "end": 0.05, "fraction": 0.1}
SMALL: dict[str, Any] = {"hidden_sizes": [8], "num_envs": 1, "learning_starts": 8, "buffer_size": 99, "batch_size": 8}


def epsilon_at(config: Any, step: int) -> float:
    control = config.controls.get("epsilon")
    return float(config.algorithm.epsilon if control is None else control.at(step, config.run.total_timesteps))


def test_it_applies_where_nothing_is_given() -> None:
    config = load_config(PLAIN)
    assert config.scheduling == {"epsilon_schedule": DEFAULT}
    assert [epsilon_at(config, step) for step in (0, 50, 100, 1_000)] == pytest.approx([1.0, 0.525, 0.05, 0.05])


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"epsilon": 0.1}, [0.1, 0.1, 0.1]),
        ({"algo_kwargs": {"epsilon": 0.1}}, [0.1, 0.1, 0.1]),
        ({"epsilon": 0.05}, [0.05, 0.05, 0.05]),
        ({"epsilon": 0.4, "epsilon_schedule": 0.2}, [0.4, 0.3, 0.2]),
        ({"epsilon_schedule": 0.2}, [1.0, 0.6, 0.2]),
        ({"epsilon_schedule": {"end": 0.0, "steps": 500}}, [1.0, 0.0, 0.0]),
        ({"epsilon_schedule": {"type": "linear", "start": 0.5}}, [0.5, 0.25, 0.0]),
        ({"epsilon_schedule": None}, [0.05, 0.05, 0.05]),
        ({"epsilon_warmup_steps": 1_001}, [0.05 / 1_001, 0.05 * 501 / 1_001, 0.05]),
    ],
    ids=str,
)
def test_whatever_is_given_replaces_it_as_a_whole(given: dict[str, Any], values: list[float], tmp_path: Path) -> None:
    """It makes no difference whether it is given in the config, or on top of a resolved one."""
    config = load_config(PLAIN | given)
    assert [epsilon_at(config, step) for step in (0, 500, 1_000)] == pytest.approx(values)
    assert load_config(config.flat()) == config, "a resolved config means the same"
    file = tmp_path / "config.yaml"
    file.write_text(OmegaConf.to_yaml(OmegaConf.create(load_config(PLAIN).flat())))
    assert load_config(file, **given) == config
    assert load_config(PLAIN).replace(**given) == config


def test_a_fixed_value_stays_fixed_through_every_layer() -> None:
    fixed = load_config(PLAIN | {"epsilon": 0.1})
    for config in (
        load_config(fixed.flat(), ["seed=3"]),
        fixed.replace(total_timesteps=50),
        fixed.replace(epsilon=0.2),
    ):
        assert "epsilon" not in config.controls


def test_presets_do_not_depend_on_it() -> None:
    for name in preset_names():
        config = load_config(name)
        for setting in settings_of(config.spec).values():
            if setting.default_schedule is not None:
                assert config.scheduling.get(f"{setting.name}_schedule") != setting.default_schedule, name


@pytest.mark.parametrize("algo", REGISTRY)
def test_default_schedules_are_in_range_and_end_at_the_default(algo: str) -> None:
    """So that a value without its schedule (`epsilon_schedule: null`) is the one that most of the run has."""
    for setting in settings_of(load_spec(algo)).values():
        curve = setting.default_curve
        if curve is not None:
            assert setting.schedulable
            assert curve.end == setting.default
            assert not any(setting.out_of_range(value) for value in curve.extremes())


def test_describe_and_the_schema_show_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said = Command(monkeypatch, capsys)("describe", "dqn")
    (line,) = [line for line in said.out.splitlines() if line.startswith("epsilon ")]
    assert "linear from 1 to 0.05 over the first 10% of the run" in line
    properties = json_schema(load_spec("dqn"))["properties"]
    assert properties["epsilon_schedule"]["default"] == DEFAULT
    assert "default" not in properties["gamma_schedule"]


def test_the_metrics_follow_it_and_a_resumed_run_is_exact(tmp_path: Path) -> None:
    settings = tiny(algo="dqn", total_timesteps=960, checkpoint_interval=48)
    train(settings, run_dir=tmp_path / "straight")
    shown = {row["step"]: row["epsilon"] for row in metrics_rows(tmp_path / "straight")}
    assert shown[24] == pytest.approx(1.0 - 0.95 * 24 / 96)
    assert shown[96] == shown[960] == 0.05
    cut_and_resume(settings, tmp_path / "cut", after=72)
    assert run_differences(tmp_path / "straight", tmp_path / "cut") == []


def test_a_resumed_run_takes_a_fixed_value_instead(tmp_path: Path) -> None:
    train(tiny(algo="dqn", total_timesteps=48), run_dir=tmp_path / "run")
    resume_training(tmp_path / "run", total_timesteps=96, epsilon=0.3)
    assert "epsilon_schedule" not in latest(tmp_path / "run").meta["config"]
    assert [row["epsilon"] for row in metrics_rows(tmp_path / "run")][-1] == 0.3


def test_it_spans_the_first_call_of_learn() -> None:
    agent = DQN("CartPole-v1", **SMALL).learn(200)
    assert agent.metrics["epsilon"] == 0.05
    short = DQN("CartPole-v1", **SMALL).learn(8)
    assert short.metrics["epsilon"] == 0.05, "eight steps are a whole run here"
    agent.close()
    short.close()


def test_an_agent_that_has_not_learned_explores_as_at_the_start_of_its_schedule() -> None:
    obs = np.zeros((200, 4), np.float32)
    agent, fixed = DQN("CartPole-v1", **SMALL), DQN("CartPole-v1", epsilon=0.0, **SMALL)
    assert 60 < int(agent.predict(obs)[0].sum()) < 140, "all actions are random"
    assert len(np.unique(fixed.predict(obs)[0])) == 1
    agent.close()
    fixed.close()
