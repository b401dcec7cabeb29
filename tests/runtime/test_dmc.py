"""The DeepMind Control Suite: ids, spaces, ends of episodes, exact resume, and versions that do not fit."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.algorithms.base import LoopConfig
from rl_training.experiment.config import load_config
from rl_training.experiment.settings import RunConfig
from rl_training.runtime import extras
from rl_training.runtime.doctor import report
from rl_training.runtime.envs import dmc
from rl_training.runtime.envs.make import EnvMaker
from rl_training.runtime.train import build, train
from rl_training.types import UserError
from run_helpers import cut_and_resume, latest, run_differences, tiny

WALKER = "dm_control/walker-walk-v0"


@pytest.fixture
def suite() -> None:
    pytest.importorskip("dm_control", reason="the extra dmc is not installed")
    pytest.importorskip("shimmy", reason="the extra dmc is not installed")
    problem = extras.clash("dmc")
    if problem is not None:
        pytest.skip(problem)


def made(env_id: str = WALKER, **loop: Any) -> EnvMaker:
    return EnvMaker(RunConfig(env_id=env_id), LoopConfig(**loop))


@pytest.mark.usefixtures("suite")
def test_spaces() -> None:
    maker = made()
    envs = maker.vector(2)
    info = maker.describe(envs)
    assert {part.name: part.shape for part in info.parts} == {"height": (), "orientations": (14,), "velocity": (9,)}
    assert {part.dtype for part in info.parts} == {"float32"}
    assert (info.action_kind, info.action_size) == ("continuous", 6)
    assert (set(info.action_low), set(info.action_high)) == ({-1.0}, {1.0})
    envs.close()


@pytest.mark.usefixtures("suite")
@pytest.mark.parametrize("env_id", ["dm_control/cartpole-swingup-v0", "dm_control/cheetah-run-v0"])
def test_other_tasks_are_made(env_id: str) -> None:
    maker = made(env_id)
    envs = maker.vector(1)
    assert maker.describe(envs).action_kind == "continuous"
    envs.close()


def episode(env: gym.Env[Any, Any], seed: int) -> tuple[list[Any], list[float], bool, bool]:
    obs, _ = env.reset(seed=seed)
    seen, rewards = [obs], []
    rng = np.random.default_rng(seed)
    while True:
        obs, reward, terminated, truncated, _ = env.step(rng.uniform(-1.0, 1.0, env.action_space.shape))
        seen.append(obs)
        rewards.append(float(reward))
        if terminated or truncated:
            return seen, rewards, terminated, truncated


@pytest.mark.usefixtures("suite")
def test_the_time_limit_of_a_task_is_a_truncation() -> None:
    env = made().single()
    _, rewards, terminated, truncated = episode(env, 0)
    assert (len(rewards), terminated, truncated) == (1000, False, True)
    env.close()


@pytest.mark.usefixtures("suite")
def test_a_time_limit_of_ours_is_a_truncation_too() -> None:
    env = made(time_limit=7).single()
    _, rewards, terminated, truncated = episode(env, 0)
    assert (len(rewards), terminated, truncated) == (7, False, True)
    env.close()


@pytest.mark.usefixtures("suite")
def test_a_task_without_a_discount_terminates() -> None:
    env = made().single()
    inner: Any = env.unwrapped
    env.reset(seed=0)
    task = inner._env.task
    task.get_termination = lambda physics: 0.0
    assert env.step(np.zeros(6))[2:4] == (True, False)
    env.close()


@pytest.mark.usefixtures("suite")
def test_seeds_reproduce_episodes() -> None:
    env, other = made(time_limit=20).single(), made(time_limit=20).single()
    first = episode(env, 1)
    for again in (episode(other, 1), (episode(env, 2), episode(env, 1))[1]):
        np.testing.assert_array_equal(first[0], again[0])
        assert first[1] == again[1]
    assert any((a != b).any() for a, b in zip(first[0], episode(env, 2)[0], strict=True))
    env.close()
    other.close()


@pytest.mark.usefixtures("suite")
def test_a_run_trains_and_resumes_to_the_bit(tmp_path: Path) -> None:
    config = tiny(env_id=WALKER, time_limit=25, normalize_obs=True, eval_interval=96, total_timesteps=216)
    train(config, run_dir=tmp_path / "whole")
    cut_and_resume(config, tmp_path / "cut", after=120)
    assert run_differences(tmp_path / "whole", tmp_path / "cut") == []


@pytest.mark.usefixtures("suite")
def test_dreamer_walks_and_resumes_to_the_bit(tmp_path: Path) -> None:
    """2,000 steps of the preset, cut in the middle, with smaller networks and minibatches and fewer updates."""
    small = {"size": "xxs", "deter": 32, "stoch": 4, "batch_size": 2, "batch_length": 16, "imagination_starts": 8}
    steps = {"total_timesteps": 2_000, "updates_per_step": 0.03, "buffer_size": 3_000}
    rhythm = {"checkpoint_interval": 1_500, "log_interval": 400, "eval_interval": None, "eval_episodes": 1}
    config = load_config("dreamer/dmc_walker_walk", **small, **steps, **rhythm, num_envs=4, time_limit=100)
    result = train(config, run_dir=tmp_path / "whole")
    cut_and_resume(config, tmp_path / "cut", after=1_600)
    assert (result["step"], result["n_updates"]) == (2_000.0, 29.0)
    assert run_differences(tmp_path / "whole", tmp_path / "cut") == []
    assert latest(tmp_path / "cut").meta["resume"] == "exact"
    assert latest(tmp_path / "cut").meta["resume"] == "exact"


@pytest.mark.usefixtures("suite")
def test_a_misspelt_id_has_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"unknown environment.*dm_control/walker-walk-v0"):
        made("dm_control/walker-wlk-v0")


def test_a_missing_display_is_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(module: str, extra: str, *, asked_by: str) -> None:
        warnings.warn(f"{module}: no display", UserWarning, stacklevel=1)

    monkeypatch.setattr(dmc, "import_extra", noisy)
    monkeypatch.setattr(dmc, "clash", lambda extra: None)
    dmc.register_dmc(WALKER)  # a warning is an error here


# What is missing, and what does not fit


@pytest.mark.parametrize("absent", ["dm_control", "shimmy"])
def test_a_missing_extra_is_one_line(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if absent == "shimmy":
        pytest.importorskip("dm_control", reason="the extra dmc is not installed")
    monkeypatch.setattr(dmc, "clash", lambda extra: None)
    monkeypatch.setitem(sys.modules, absent, None)  # type: ignore[arg-type]
    with pytest.raises(UserError) as error:
        build(load_config({"algo": "ppo", "env_id": WALKER}))
    assert str(error.value).startswith(
        f"env_id={WALKER!r}: needs an extra that is not installed: pip install 'rl-training[dmc]' ("
    )
    assert absent in str(error.value)
    assert "\n" not in str(error.value)


Installed = Callable[..., None]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Pretend that these versions are installed, and that dm-control asks for some."""
    pytest.importorskip("packaging")

    def pretend(asks: str = "mujoco>=3.17.0", **versions: str) -> None:
        known = {name.replace("_", "-"): version for name, version in versions.items()}

        def version(name: str) -> str:
            if name not in known:
                raise PackageNotFoundError(name)
            return known[name]

        monkeypatch.setattr(extras, "version", version)
        monkeypatch.setattr(extras, "requires", lambda name: ["numpy", asks, 'h5py; extra == "hdf5"'])

    return pretend


@pytest.mark.parametrize("version", ["4.0.0", "4.1.2", "3.16.0", "4.0.0rc1"])
def test_versions_that_do_not_fit_are_named(version: str, installed: Installed) -> None:
    installed(dm_control="1.0.50", mujoco=version)
    with pytest.raises(UserError) as error:
        build(load_config({"algo": "ppo", "env_id": WALKER}))
    assert str(error.value) == (
        f"env_id={WALKER!r}: dm-control 1.0.50 needs mujoco<4,>=3.17.0, but mujoco {version} is installed: pip install "
        "'rl-training[dmc]'"
    )


@pytest.mark.parametrize(
    "versions",
    [
        {"dm_control": "1.0.50", "mujoco": "3.17.0"},
        {"dm_control": "1.0.50", "mujoco": "3.18.0rc1"},
        {"mujoco": "4.0.0"},
        {},
    ],
)
def test_versions_that_fit_are_no_clash(versions: dict[str, str], installed: Installed) -> None:
    installed(**versions)
    assert extras.clash("dmc") is None


def test_other_extras_have_no_clash(installed: Installed) -> None:
    installed(dm_control="1.0.50", mujoco="4.0.0")
    assert extras.clash("mujoco") is None
    assert extras.clash("dmc") is not None


def test_the_doctor_names_versions_that_do_not_fit(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(dm_control="1.0.50", mujoco="4.0.0")
    monkeypatch.setattr(report, "version", extras.version)
    found = report._check_extra("dmc", "dm-control")
    assert found.level == "PROBLEM"
    assert "dm-control 1.0.50 needs mujoco<4,>=3.17.0, but mujoco 4.0.0 is installed" in found.words
    installed(dm_control="1.0.50", mujoco="3.17.0")
    monkeypatch.setattr(report, "version", extras.version)
    found = report._check_extra("dmc", "dm-control")
    assert (found.level, found.words) == ("ok", "extra is installed (dm-control 1.0.50)")
