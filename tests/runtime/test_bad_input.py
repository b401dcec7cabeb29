"""Whatever a user gets wrong is one clear message and exit code 2: no traceback, and no run folder left behind."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training import Callback, UserError, resume_training, train
from rl_training.algorithms.a2c import SPEC as A2C_SPEC
from rl_training.algorithms.ppo import SPEC as PPO_SPEC
from rl_training.experiment import manager
from rl_training.runtime.checkpoints import checkpoint
from rl_training.runtime.checkpoints.catalogue import find_checkpoint, pointed
from rl_training.types import Capabilities
from run_helpers import Command, Pulled, PullPlug, Said, Walk, as_overrides, latest, tiny

DISCRETE_ONLY = replace(
    PPO_SPEC, name="discrete_only", capabilities=Capabilities(observations=("vector",), actions=("discrete",))
)
CONTINUOUS_ONLY = replace(
    A2C_SPEC, name="continuous_only", capabilities=Capabilities(observations=("vector",), actions=("continuous",))
)
NO_SUCH_FAMILY = replace(PPO_SPEC, name="no_such_family", family="on_polcy")
NOT_A_SPEC = 5


class NeedsArgument(Callback):
    """Cannot be made from its name alone."""

    def __init__(self, pace: int) -> None:
        self.pace = pace


class LongWalk(Walk):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length


def long_walks(num_envs: int, length: int) -> Any:
    raise AssertionError("nobody calls it")


class NotACallback:
    """Has no hooks."""


def not_a_network(info: Any, config: Any) -> int:
    return 5


class ThreeNumbers(torch.nn.Module):
    """Gives three numbers, whatever it is asked for."""

    def __init__(self, info: Any, config: Any, outputs: int = 3) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(info.obs_shape[0], outputs)

    def forward(self, obs: Any, action: Any = None) -> Any:
        return self.layer(obs)


class WrongActor(torch.nn.Module):
    def __init__(self, info: Any, config: Any) -> None:
        super().__init__()
        self.actor, self.critic = ThreeNumbers(info, config), ThreeNumbers(info, config)


class OneForBoth(torch.nn.Module):
    def __init__(self, info: Any, config: Any) -> None:
        super().__init__()
        self.actor = self.critic = ThreeNumbers(info, config)


class WrongCritic(torch.nn.Module):
    def __init__(self, info: Any, config: Any) -> None:
        super().__init__()
        self.actor, self.critic = ThreeNumbers(info, config, info.action_size), ThreeNumbers(info, config)


class UnboundedActions(Walk):
    action_space: Any = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)


class TextActions(Walk):
    action_space: Any = gym.spaces.Text(5)


class GraphObservations(Walk):
    observation_space: Any = gym.spaces.Graph(gym.spaces.Box(0, 1, (1,)), None)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """The command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Command(monkeypatch, capsys)


def refused(said: Said, *words: str, lines: int = 1) -> None:
    """One message of so many lines, with these words in it, and exit code 2."""
    assert said.code == 2, said
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert "Traceback" not in said.err
    assert len(said.err.splitlines()) == lines, said.err
    for word in words:
        assert word in said.err, said.err


def trained(command: Command, **changes: Any) -> Said:
    return command("train", "ppo", *as_overrides(tiny(**changes)))


# The config


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learnign_rate": 0.1}, ["learnign_rate: unknown key; did you mean 'learning_rate'?"]),
        ({"ent_coef_shedule": "linear"}, ["ent_coef_shedule: unknown key; did you mean 'ent_coef_schedule'?"]),
        ({"algo": "pppo"}, ["algo='pppo': unknown algorithm; did you mean 'ppo'?", "a2c"]),
        ({"env_id": "CartPole-v11"}, ["env_id='CartPole-v11': unknown environment; did you mean 'CartPole-v1'?"]),
        ({"env_id": "Catrpole-v1"}, ["env_id='Catrpole-v1': unknown environment; did you mean"]),
        ({"env_id": "nothing like it"}, ["env_id='nothing like it': unknown environment"]),
        ({"learning_rate": "fast"}, ["learning_rate='fast': must be a number"]),
        ({"num_envs": 2.5}, ["num_envs=2.5: must be a whole number"]),
        ({"num_envs": True}, ["num_envs=True: must be a number"]),
        ({"hidden_sizes": 8}, ["hidden_sizes=8: must be a list"]),
        ({"hidden_sizes": ["wide"]}, ["hidden_sizes.0='wide': must be a whole number"]),
        ({"normalize_obs": "perhaps"}, ["normalize_obs='perhaps': must be true or false"]),
        ({"env_kwargs": [1]}, ["env_kwargs=[1]: must be a mapping"]),
        ({"loggers": [{"x": 1}]}, ["loggers.0="]),
        ({"env_kwargs": {"max_episode_steps": 5}}, ["env_kwargs.max_episode_steps: give it as time_limit"]),
        (
            {"early_stopping": {"metric": "eval_return_men", "patience": 1}, "eval_interval": 16},
            ["early_stopping.metric='eval_return_men': no such metric; did you mean 'eval_return_mean'?"],
        ),
        ({"activation": "tanhh"}, ["activation='tanhh': must be one of tanh, relu", "did you mean 'tanh'?"]),
        ({"gamma": 1.5}, ["gamma=1.5: must be at most 1"]),
        ({"learning_rate": -1}, ["learning_rate=-1: must be at least 0"]),
        ({"total_timesteps": 0}, ["total_timesteps=0: must be at least 1"]),
        ({"max_grad_norm": 0}, ["max_grad_norm=0: must be above 0"]),
        ({"num_envs": 0}, ["num_envs=0: must be at least 1"]),
        ({"keep_checkpoints": 1}, ["keep_checkpoints=1: must be at least 2"]),
        ({"clip_coef_schedule": -0.1}, ["clip_coef_schedule=-0.1: it reaches -0.1, but clip_coef must be at least 0"]),
        ({"gamma_schedule": {"type": "linear", "end": 1.2}}, ["gamma_schedule", "reaches 1.2", "at most 1"]),
        ({"ent_coef": 0.1, "entropy_coef": 0.1}, ["ent_coef and entropy_coef: two names of one setting"]),
        (
            {"clip_coef_schedule": 0.1, "clip_range_schedule": 0.1},
            ["clip_coef", "clip_range", "two names of one setting"],
        ),
        ({"n_steps_schedule": 4}, ["n_steps_schedule: n_steps takes no schedule"]),
        ({"adam_eps_schedule": 1e-3}, ["adam_eps_schedule: adam_eps takes no schedule"]),
        ({"ent_coef_schedule": "quick"}, ["ent_coef_schedule='quick'", "'linear' or 'cosine'"]),
        ({"ent_coef_schedule": {"type": "liner"}}, ["type 'liner' is not known; allowed are constant, linear"]),
        ({"learning_rate_warmup_steps": -4}, ["learning_rate_warmup_steps=-4", "warmup_steps=-4"]),
        ({"device": "quantum"}, ["device='quantum': cannot be used here", "try 'cpu'"]),
        ({"algo_kwargs": {"gama": 0.9}}, ["gama: unknown key; did you mean 'gamma'?"]),
        ({"algo_kwargs": 5}, ["algo_kwargs=5: must be a mapping of settings"]),
        ({"early_stopping": {"patience": 2}}, ["early_stopping", "give eval_interval too"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_config_is_one_line(
    changes: dict[str, Any], words: list[str], command: Command, tmp_path: Path
) -> None:
    refused(trained(command, **changes), *words)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_environment_is_said(command: Command, tmp_path: Path) -> None:
    refused(command("train", "ppo"), "env_id: is missing")
    assert list(tmp_path.iterdir()) == []


def test_all_mistakes_are_reported_at_once(command: Command, tmp_path: Path) -> None:
    said = trained(command, learnign_rate=0.1, gamma=2, num_envs="many", clip_coef_schedule=-1)
    refused(said, "4 mistakes", "learning_rate", "gamma=2", "num_envs='many'", "it reaches -1", lines=5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("ppo/cartpol", ["'ppo/cartpol' is neither a preset, a YAML file nor an algorithm", "'ppo/cartpole'"]),
        ("pp", ["'pp' is neither", "did you mean 'ppo'?"]),
        ("nowhere.yaml", ["nowhere.yaml: there is no such file"]),
        ("list.yaml", ["list.yaml: must hold settings as 'key: value' lines"]),
        ("word.yaml", ["word.yaml: algo: is missing"]),
        ("broken.yaml", ["broken.yaml: cannot be read"]),
        ("twice.yaml", ["twice.yaml: cannot be read", "gamma"]),
        ("binary.yaml", ["binary.yaml: this is not a text file"]),
        ("nameless.yaml", ["nameless.yaml: algo: is missing"]),
        ("folder.yaml", ["folder.yaml"]),
    ],
)
def test_a_wrong_file_is_one_line(target: str, words: list[str], command: Command, tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("- a\n- b\n")
    (tmp_path / "word.yaml").write_text("hello\n")
    (tmp_path / "broken.yaml").write_text("algo: [ppo\nenv_id: x\n")
    (tmp_path / "twice.yaml").write_text("algo: ppo\ngamma: 0.9\ngamma: 0.8\n")
    (tmp_path / "binary.yaml").write_bytes(bytes(range(128, 256)))
    (tmp_path / "nameless.yaml").write_text("env_id: CartPole-v1\n")
    (tmp_path / "folder.yaml").mkdir()
    refused(command("train", target), *words)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("override", ["seed", "=5", "gamma:0.9"])
def test_an_override_without_a_value_is_one_line(override: str, command: Command, tmp_path: Path) -> None:
    refused(command("train", "ppo/cartpole", override), f"{override!r}: overrides are given as key=value")
    refused(command("verify", "ppo/cartpole", override), f"{override!r}: overrides are given as key=value")
    assert list(tmp_path.iterdir()) == []


# Spaces


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"algo": "test_bad_input:DISCRETE_ONLY", "env_id": "Pendulum-v1"},
            [
                "cannot work with the continuous actions of Pendulum-v1, only with discrete ones",
                "recurrent_ppo, impala, appo, ddpg",
            ],
        ),
        (
            {"algo": "test_bad_input:CONTINUOUS_ONLY", "env_id": "CartPole-v1", "batch_size": None, "n_epochs": None},
            [
                "cannot work with the discrete actions of CartPole-v1, only with continuous ones",
                "dqn, muzero, gumbel_muzero, efficientzero, scalezero or dreamer can",
            ],
        ),
        (
            {"env_id": "test_bad_input:UnboundedActions"},
            ["actions are unbounded", "gymnasium.wrappers.TransformAction(env"],
        ),
        ({"env_id": "test_bad_input:TextActions"}, ["actions of Text are not supported"]),
        (
            {"env_id": "test_bad_input:GraphObservations"},
            ["the observation is a Graph, which is not supported", "gymnasium.ObservationWrapper"],
        ),
    ],
)
def test_spaces_that_do_not_fit_are_one_line(
    changes: dict[str, Any], words: list[str], command: Command, tmp_path: Path
) -> None:
    settings = {key: value for key, value in tiny(**changes).items() if value is not None}
    refused(command("train", settings["algo"], *as_overrides(settings)), *words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("algo", "changes", "words"),
    [
        ("redq", {"subset_size": 3}, ["subset_size=3: there are only n_critics=2 to choose from"]),
        ("tqc", {"top_quantiles_to_drop": 4}, ["top_quantiles_to_drop=4: must be below n_quantiles=4"]),
        ("sac", {"ent_coef": -1}, ["ent_coef", "-1 is neither a number of at least 0, nor 'auto'"]),
        ("sac", {"ent_coef": "auto_x"}, ["ent_coef", "'auto_x' is neither"]),
        (
            "sac",
            {"env_id": "CartPole-v1"},
            [
                "cannot work with the discrete actions",
                "dqn, muzero, gumbel_muzero, efficientzero, scalezero or dreamer can",
            ],
        ),
        ("iql", {"env_id": "CartPole-v1"}, ["cannot work with the discrete actions", "continuous ones; bc or cql can"]),
        ("dqn", {"env_id": "Pendulum-v1"}, ["cannot work with the continuous actions", "only with discrete ones"]),
        ("td3", {"tau": 2}, ["tau=2: must be at most 1"]),
        ("dqn", {"model": "test_bad_input:ThreeNumbers"}, ["must return values [B, 2]", "it returned (2, 3)"]),
        ("sac", {"model": "test_bad_input:ThreeNumbers"}, ["must have the modules 'actor' and 'critic'"]),
        ("sac", {"model": "test_bad_input:WrongActor"}, ["actor(obs) must return [B, 2]", "it returned (2, 3)"]),
        ("td3", {"model": "test_bad_input:OneForBoth"}, ["'actor' and 'critic' must not share parameters"]),
        (
            "ddpg",
            {"model": "test_bad_input:WrongCritic"},
            ["critic(obs, action) must return [critics, B, 1]", "(2, 3)"],
        ),
    ],
)
def test_what_only_the_network_or_the_environment_can_tell_is_one_line(
    algo: str, changes: dict[str, Any], words: list[str], command: Command, tmp_path: Path
) -> None:
    settings = tiny(algo=algo, **changes)
    refused(command("train", algo, *as_overrides(settings)), *words)
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_leaves_no_process_behind(tmp_path: Path) -> None:
    import multiprocessing

    before = set(multiprocessing.active_children())
    with pytest.raises(UserError, match="cannot work with the continuous actions"):
        train(tiny(algo="test_bad_input:DISCRETE_ONLY", env_id="Pendulum-v1", vectorization="async", num_envs=2))
    assert set(multiprocessing.active_children()) == before


def test_a_limited_algorithm_trains_where_it_can(tmp_path: Path) -> None:
    result = train(tiny(algo="test_bad_input:DISCRETE_ONLY"), run_dir=tmp_path / "run")
    assert result.stop_reason == "completed"


# References


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("env_id", "no_such_module:make", ["env_id='no_such_module:make': there is no module 'no_such_module'"]),
        ("env_id", "run_helpers:no_such_name", ["run_helpers registers no id 'no_such_name' and has no function"]),
        ("env_id", "test_bad_input:NOT_A_SPEC", ["must name a function or class that makes an environment"]),
        ("model", "no_such_module:Net", ["model='no_such_module:Net': there is no module"]),
        ("model", "no colon", ["model='no colon': give it as 'module:name'"]),
        ("model", "run_helpers:Nothing", ["model='run_helpers:Nothing': 'run_helpers' has no 'Nothing'"]),
        ("model", "test_bad_input:not_a_network", ["model='test_bad_input:not_a_network'", "torch.nn.Module"]),
        ("model", "test_bad_input:NOT_A_SPEC", ["model='test_bad_input:NOT_A_SPEC': must name a function or class"]),
        ("model", "test_bad_input:NotACallback", ["is called with (SpaceInfo, ModelConfig)"]),
        ("callbacks", ["no_such_module:Cb"], ["callbacks='no_such_module:Cb': there is no module"]),
        ("callbacks", ["run_helpers"], ["callbacks='run_helpers': give it as 'module:name'"]),
        ("env_id", "test_bad_input:LongWalk", ["env_kwargs={}: test_bad_input:LongWalk cannot be called", "'length'"]),
        ("env_id", "test_bad_input:long_walks", ["env_kwargs={}: test_bad_input:long_walks", "'length'"]),
        ("callbacks", ["test_bad_input:NeedsArgument"], ["is called without arguments", "'pace'"]),
        (
            "callbacks",
            ["test_bad_input:NotACallback"],
            ["a subclass of rl_training.Callback, or an object of one; it is the class NotACall"],
        ),
        ("algo", "no_such_module:SPEC", ["algo='no_such_module:SPEC': there is no module"]),
        ("algo", "test_bad_input:NOT_A_SPEC", ["it is a int, not an AlgorithmSpec"]),
        ("algo", "test_bad_input:NO_SUCH_FAMILY", ["family='on_polcy'; must be one of on_policy, off_policy"]),
        ("algo", "test_bad_input:MISSING", ["'test_bad_input' has no 'MISSING'"]),
        ("env_id", "broken_module:make", ["importing 'broken_module' failed", "ZeroDivisionError"]),
    ],
)
def test_a_wrong_reference_is_one_line(
    key: str, value: Any, words: list[str], command: Command, tmp_path: Path
) -> None:
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    refused(trained(command, **{key: value}), *words)
    assert not (tmp_path / "runs").exists()


def test_arguments_that_the_environment_does_not_take(command: Command, tmp_path: Path) -> None:
    for changes in ({"vectorization": "native"}, {"vectorization": "sync"}, {"env_id": "Pendulum-v1"}):
        said = trained(command, env_kwargs={"gravityy": 3}, **changes)
        refused(said, "env_kwargs={'gravityy': 3}", "gravityy")
    assert list(tmp_path.iterdir()) == []


def test_an_argument_that_a_registered_environment_needs(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = gym.envs.registration.EnvSpec("LongWalk-v0", entry_point="test_bad_input:LongWalk")
    monkeypatch.setitem(gym.registry, "LongWalk-v0", spec)
    refused(trained(command, env_id="LongWalk-v0"), "env_kwargs={}: ", "'length'")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_named(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: Any, **keywords: Any) -> Any:
        raise gym.error.DependencyNotInstalled("Box2D is not installed, you can install it by run `pip install swig`")

    monkeypatch.setattr(gym, "make", missing)
    refused(
        trained(command, env_id="LunarLander-v3"),
        "env_id='LunarLander-v3': needs an extra that is not installed: pip install 'rl-training[box2d]'",
    )
    assert list(tmp_path.iterdir()) == []


def test_a_missing_module_of_an_extra_is_named(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*arguments: Any, **keywords: Any) -> Any:
        raise ModuleNotFoundError("No module named 'mujoco'", name="mujoco")

    monkeypatch.setattr(gym, "make", missing)
    refused(trained(command, env_id="Hopper-v5"), "pip install 'rl-training[mujoco]'")
    assert list(tmp_path.iterdir()) == []


# Checkpoints


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    train(tiny(total_timesteps=48), run_dir=run_dir)
    return run_dir


@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "state.json", "state.safetensors", "envs.json", "envs.safetensors", "meta.json"],
)
@pytest.mark.parametrize("work", ["resume", "eval"])
def test_a_truncated_checkpoint_is_one_line(
    work: str, name: str, command: Command, tmp_path: Path, finished: Path
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    file = find_checkpoint(run) / name
    file.write_bytes(file.read_bytes()[:100])
    said = command(work, run, "total_timesteps=480") if work == "resume" else command(work, run, "--episodes", 1)
    if work == "eval" and name.startswith(("state", "envs")):
        assert said.code == 0, "what acting does not need is not read"
    else:
        refused(said, file.parent.name, "damaged")


def test_a_foreign_or_missing_checkpoint_is_one_line(command: Command, tmp_path: Path, finished: Path) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "weights.bin").write_bytes(b"123")
    (tmp_path / "sb3").mkdir()
    (tmp_path / "sb3" / "meta.json").write_text('{"algorithm": "PPO"}')
    for work in ("resume", "eval"):
        refused(command(work, "nowhere"), "'nowhere': there is no such run or checkpoint")
        refused(command(work, "foreign"), "'foreign': holds no latest checkpoint of rl_training")
        refused(command(work, "foreign/weights.bin"), "there is no such run or checkpoint")
        refused(command(work, "sb3"), "'sb3/meta.json': is missing, damaged or foreign (it has no 'format')")
        refused(command(work, finished, "--checkpoint", "step_5"), "has no checkpoint 'step_5'; it has latest, best")


def test_an_unreadable_checkpoint_is_one_line(
    command: Command, tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder without the right to read, simulated where the test may read everything."""
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    real = os.open

    def guarded(path: Any, *arguments: Any, **keywords: Any) -> int:
        if Path(path).name == "meta.json":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *arguments, **keywords)

    monkeypatch.setattr(os, "open", guarded)
    for work in ("resume", "eval"):
        refused(command(work, run), "Permission denied")


def test_a_checkpoint_of_another_format_is_one_line(command: Command, tmp_path: Path, finished: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    file = find_checkpoint(run) / "meta.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 99}))
    for work in ("resume", "eval"):
        refused(command(work, run), "has format 99; this version of rl_training reads 3")


# The disk


def read_only(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """As if nothing could be made in a folder."""
    real_mkdir, real_open = os.mkdir, os.open

    def is_inside(path: Any) -> bool:
        return str(os.path.abspath(os.fspath(path))).startswith(str(folder))

    def mkdir(path: Any, *arguments: Any, **keywords: Any) -> None:
        if is_inside(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        real_mkdir(path, *arguments, **keywords)

    def open_(path: Any, flags: int, *arguments: Any, **keywords: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and is_inside(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real_open(path, flags, *arguments, **keywords)

    monkeypatch.setattr(os, "mkdir", mkdir)
    monkeypatch.setattr(os, "open", open_)


def test_a_read_only_output_folder_is_one_line(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "locked").mkdir()
    with monkeypatch.context() as patch:
        read_only(patch, tmp_path / "locked")
        refused(trained(command, output_dir="locked"), "cannot write the run to 'locked/ppo__CartPole-v1", "denied")
        refused(trained(command, output_dir="locked/deeper"), "cannot write the run to 'locked/deeper/ppo__", "denied")
    assert list(tmp_path.rglob("*")) == [tmp_path / "locked"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere; the simulation above stands in")
def test_a_really_read_only_output_folder_is_one_line(command: Command, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    refused(trained(command, output_dir="locked"), "cannot write the run to 'locked/ppo__CartPole-v1", "denied")


def test_a_file_where_a_folder_should_be_is_one_line(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    refused(trained(command, output_dir="file"), "cannot write the run to 'file/ppo__CartPole-v1")
    assert (tmp_path / "file").read_text() == "mine"


def test_resuming_in_a_read_only_run_is_one_line(
    command: Command, tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))

    def denied(path: Path, text: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(manager, "write_atomically", denied)
        refused(command("resume", run, "total_timesteps=96"), "cannot write to", str(run), "Permission denied")
    assert resume_training(run, total_timesteps=96).stop_reason == "completed"


class FullDisk:
    """After some bytes, nothing more fits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
        self.left = calls
        real = os.fsync

        def fsync(descriptor: int) -> None:
            self.left -= 1
            if self.left < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("calls", [20, 24, 29, 41])
def test_a_full_disk_keeps_and_names_the_last_good_checkpoint(
    calls: int, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        FullDisk(patch, calls)
        said = trained(command, checkpoint_interval=24, keep_checkpoints=20, eval_interval=24)
    (run,) = (tmp_path / "runs").iterdir()
    kept = find_checkpoint(run)
    assert said.code == 2
    assert "No space left on device" in said.err
    assert said.err.splitlines()[-1] == f"The last good checkpoint is {kept.relative_to(tmp_path)}"
    assert "Traceback" not in said.err
    assert list(run.glob("checkpoints/.draft-*")) == [], "what could not be finished does not fill the disk"
    assert latest(run).meta["step"] == int(kept.name.removeprefix("step_"))
    assert command("resume", run).code == 0


def test_a_full_disk_at_the_start_leaves_nothing(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for calls in range(16):
        with monkeypatch.context() as patch:
            FullDisk(patch, calls)
            refused(trained(command), "cannot write", "No space left on device")
        assert [path for path in tmp_path.rglob("*") if path != tmp_path / "runs"] == []


def test_a_full_disk_when_metrics_are_logged(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = manager.RunFolder.append_metrics
    rows: list[Any] = []

    def append(self: Any, row: Any) -> None:
        rows.append(row)
        if len(rows) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, row)

    with monkeypatch.context() as patch:
        patch.setattr(manager.RunFolder, "append_metrics", append)
        said = trained(command, checkpoint_interval=48)
    assert said.code == 2
    assert re.match(r"error: cannot write to 'runs/.*metrics\.jsonl': No space left on device\n", said.err)
    assert "The last good checkpoint is runs/" in said.err
    (run,) = (tmp_path / "runs").iterdir()
    assert command("resume", run).code == 0


def test_saving_an_agent_to_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rl_training import PPO

    agent = PPO("CartPole-v1", num_envs=2, n_steps=8, hidden_sizes=[8])
    agent.save(tmp_path / "agent")
    with monkeypatch.context() as patch:
        FullDisk(patch, 2)
        with pytest.raises(UserError, match=r"cannot write .*agent.*: No space left on device"):
            agent.save(tmp_path / "agent")
    agent.close()
    PPO.load(tmp_path / "agent").close()
    assert [path.name for path in tmp_path.iterdir()] == ["agent"]


def test_a_real_limit_on_the_size_of_files(tmp_path: Path) -> None:
    """The kernel refuses to write more than so many bytes: writing a checkpoint fails in the middle."""
    program = (
        "import resource, sys\n"
        "from rl_training import Callback\n"
        "class Limits(Callback):\n"
        "    def on_step(self, run, metrics):\n"
        "        if run.steps > 100:\n"
        "            resource.setrlimit(resource.RLIMIT_FSIZE, (2_500, 2_500))\n"
        "from rl_training.cli import main\n"
        "from rl_training.runtime import loggers\n"
        "loggers.ProgressDisplay = Limits\n"
        "main()\n"
    )
    settings = tiny(tmp_path / "runs", checkpoint_interval=48, log_interval=100_000)
    done = subprocess.run(
        [sys.executable, "-c", program, "train", "ppo", *as_overrides(settings)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "cannot write the checkpoint" in done.stderr
    assert "File too large" in done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    kept = find_checkpoint(run)
    assert f"The last good checkpoint is {kept}" in done.stderr
    assert 0 < latest(run).meta["step"] <= 120
    assert resume_training(run).stop_reason == "completed"


def test_the_message_of_a_failed_write_names_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(checkpoint: Any) -> Any:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with pytest.raises(Pulled):
        train(tiny(vectorization="sync"), run_dir=tmp_path / "run", callbacks=[PullPlug(100)])
    monkeypatch.setattr(checkpoint, "_contents", fails)
    with pytest.raises(UserError) as complaint:
        resume_training(tmp_path / "run")
    first, second = str(complaint.value).splitlines()
    assert first == f"cannot write the checkpoint {str(tmp_path / 'run' / 'checkpoints' / 'step_192')!r}: " + (
        "Disk quota exceeded"
    )
    assert second == f"The last good checkpoint is {tmp_path / 'run' / 'checkpoints' / 'step_96'}"
    assert pointed(tmp_path / "run" / "checkpoints", "latest") is not None


# Numbers that are none


class Poisoned(Walk):
    """Shows NaN after some steps."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.time = where, 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        obs, reward, terminated, truncated, info = super().step(action)
        if self.time > 40 and self.where == "observation":
            obs = np.full_like(obs, np.nan)
        if self.time > 40 and self.where == "reward":
            reward = float("nan")
        return obs, reward, terminated, truncated, info


@pytest.mark.parametrize("where", ["reward", "observation"])
def test_nan_stops_with_the_step_and_the_name(where: str, command: Command, tmp_path: Path) -> None:
    said = trained(
        command,
        env_id="test_bad_input:Poisoned",
        env_kwargs={"where": where},
        checkpoint_interval=24,
        total_timesteps=960,
    )
    (run,) = (tmp_path / "runs").iterdir()
    kept = find_checkpoint(run)
    assert said.code == 2
    warning, first, second = said.err.splitlines()
    assert "shows no time limit" in warning
    assert first == (
        f"error: the {where} of environment 0 is nan at step 123; it must be finite (nothing was learned from it)"
    )
    assert second == f"The last good checkpoint is {kept.relative_to(tmp_path)}"
    assert latest(run).meta["step"] == 120
    assert command("eval", run, "--episodes", 1).code == 0


# In a process of its own


def test_the_installed_command_says_it_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from rl_training.cli import main; main()", "train", "ppo", "env_id=CartPol-v1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "error: env_id='CartPol-v1': unknown environment; did you mean 'CartPole-v1'? If a module of yours registers "
        "it, name that: env_packages=[module], or env_id=module:CartPol-v1\n"
    )
    assert list(tmp_path.iterdir()) == []
