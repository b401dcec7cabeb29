"""What does not fit into RAM is said before anything of a run is made, and what fits is not refused."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.algorithms.on_policy import OnPolicyLoopConfig
from rl_training.api import PPO
from rl_training.data import ram
from rl_training.experiment.config import load_config
from rl_training.experiment.fields import settings_of
from rl_training.experiment.registry import REGISTRY, load_spec
from rl_training.runtime import memory
from rl_training.runtime.loops import offline
from rl_training.runtime.loops.on_policy import OnPolicyLoop
from rl_training.runtime.train import build, build_policy, train
from rl_training.testing.contract import tiny_config
from rl_training.types import UserError

GIB = 1 << 30


@pytest.fixture
def eight_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ram, "available_memory", lambda: 8 * GIB)


def refused(settings: Mapping[str, Any], tmp_path: Path, **how: Any) -> str:
    """The one line that a run is refused with, soon; no folder is left behind."""
    started = time.process_time()
    with pytest.raises(UserError) as caught:
        train({"env_id": "CartPole-v1", "output_dir": str(tmp_path / "runs"), **settings}, **how)
    assert time.process_time() - started < 5
    assert not (tmp_path / "runs").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


PENDULUM = {"env_id": "Pendulum-v1"}
GROWING = {"algo": "scalezero", "stages": 2, "stage_updates": 5}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"algo": "ppo", "num_envs": 10**7}, "num_envs=10000000: needs at least 74.2 GiB of RAM"),
        ({"algo": "ppo", "num_envs": 10**7, **PENDULUM}, "num_envs=10000000: needs at least 93.2 GiB of RAM"),
        ({"algo": "sac", "num_envs": 10**7, **PENDULUM}, "num_envs=10000000: needs at least 38.7 GiB of RAM"),
        ({"algo": "ppo", "hidden_sizes": [10**6, 10**6]}, "hidden_sizes=[1000000, 1000000]: needs at least 10.9 TiB"),
        ({"algo": "ppo", "n_steps": 10**9}, "n_steps=1000000000: needs at least 231.0 GiB of RAM"),
        ({"algo": "dqn", "buffer_size": 10**12}, "buffer_size=1000000000000: needs at least 43.7 TiB of RAM"),
        ({"algo": "ppo", "frame_stack": 10**9}, "frame_stack=1000000000: needs at least 30.0 TiB of RAM"),
        ({"algo": "sac", "batch_size": 10**8, "buffer_size": 10**8, **PENDULUM}, "batch_size=100000000: needs at"),
        ({"algo": "muzero", "latent_size": 10**9}, "latent_size=1000000000: needs at least 2.9 TiB of RAM"),
        ({"algo": "muzero", "num_simulations": 10**9}, "num_simulations=1000000000: needs at least 1.9 TiB of RAM"),
        ({"algo": "muzero", "unroll_steps": 10**9}, "unroll_steps=1000000000: needs at least 3.7 TiB of RAM"),
        ({"algo": "sac", "n_step": 10**8, **PENDULUM}, "n_step=100000000: needs at least 667.6 GiB of RAM"),
        ({"algo": "muzero", "n_step": 10**8}, "n_step=100000000: needs at least 381.5 GiB of RAM"),
        ({"algo": "efficientzero", "n_step": 10**8}, "n_step=100000000: needs at least 381.5 GiB of RAM"),
        ({"algo": "scalezero", "n_step": 10**8}, "n_step=100000000: needs at least 95.4 GiB of RAM"),
        ({"algo": "scalezero", "context_length": 10**7}, "context_length=10000000: needs at least "),
        (GROWING | {"adapter_rank": 10**6}, "adapter_rank=1000000: needs at least 44.3 GiB of RAM"),
        (GROWING | {"adapter_rank": 10**6, "experts": 0}, "adapter_rank=1000000: needs at least 15.7 GiB of RAM"),
        (GROWING | {"stages": 10**9}, "stages=1000000000: needs at least "),
        ({"algo": "dreamer", "deter": 10**6}, "deter=1000000: needs at least 5.5 TiB of RAM"),
        ({"algo": "dreamer", "batch_size": 10**7}, "batch_size=10000000: needs at least 1.5 TiB of RAM"),
        ({"algo": "recurrent_ppo", "rnn_hidden_size": 10**6}, "rnn_hidden_size=1000000: needs at least 43.7 TiB"),
        ({"algo": "ppg", "aux_interval": 10**9}, "aux_interval=1000000000: needs at least 29.8 TiB of RAM"),
        ({"algo": "redq", "n_critics": 10**7, **PENDULUM}, "n_critics=10000000: needs at least 7.2 TiB of RAM"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("eight_gib")
def test_absurd_sizes_are_one_line(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    message = refused(settings, tmp_path)
    assert message.startswith(words)
    assert ", and 8.0 GiB are available" in message


class Counted(gym.Env[Any, Any]):
    """Counts how many there have been."""

    made = 0
    observation_space = gym.spaces.Box(-1, 1, (1000,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        Counted.made += 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        np.random.rand()  # an environment of somebody who uses the global generator
        return np.zeros(1000, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1000, np.float32), 0.0, True, False, {}


def test_of_many_environments_one_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "made", 0)
    monkeypatch.setattr(ram, "available_memory", lambda: 8 * GIB)
    settings = {"algo": "ppo", "env_id": "counted", "num_envs": 200_000, "n_steps": 16}
    message = refused(settings, tmp_path, env_factory=Counted)
    assert message.startswith("num_envs=200000: needs at least 14.2 GiB of RAM, and 8.0 GiB are available; at most ")
    assert Counted.made == 1


def test_looking_at_one_environment_first_moves_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    for many in (1_000, 2):
        monkeypatch.setattr(memory, "_MANY", many)
        agent = PPO(Counted, num_envs=3, n_steps=2, seed=3, hidden_sizes=[4], eval_episodes=1)
        agent.learn(12)
        ends.append(agent.predict(np.zeros(1000, np.float32)))
        agent.close()
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("settings", "name", "words"),
    [
        ({"algo": "ppo", "hidden_sizes": [10**6, 64, 10**5, 10**6]}, "hidden_sizes", "[1000000, 64, 100000, 1000000]"),
        ({"algo": "ppo", "n_steps": 10**9}, "n_steps", "1000000000"),
        ({"algo": "dqn", "buffer_size": 10**12}, "buffer_size", "1000000000000"),
        ({"algo": "ppo", "num_envs": 900, "n_steps": 10**7}, "n_steps", "10000000"),
    ],
)
@pytest.mark.usefixtures("eight_gib")
def test_the_largest_value_that_fits_fits_and_the_next_does_not(
    tmp_path: Path, settings: dict[str, Any], name: str, words: str
) -> None:
    message = refused(settings, tmp_path)
    assert message.startswith(f"{name}={words}: needs at least ")
    text = message.split("; at most ")[1].removesuffix(" fit")
    most = [int(number) for number in text.strip("[]").split(", ")]
    sizes = most[0] if len(most) == 1 else most
    config = load_config({"env_id": "CartPole-v1", **settings}, **{name: sizes})
    larger = most[0] + 1 if len(most) == 1 else [size + (size == max(most)) for size in most]
    info = build_policy(config.replace(hidden_sizes=[8]))[1].info
    maker = memory.EnvMaker(config.run, config.loop)
    memory.check_memory(config, info, maker, config.run.num_envs, learns=True)
    with pytest.raises(UserError, match=name):
        memory.check_memory(config.replace(**{name: larger}), info, maker, config.run.num_envs, learns=True)


def test_the_parts_of_a_run_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay and networks fit alone, but not together."""
    monkeypatch.setattr(ram, "available_memory", lambda: 100 << 20)
    settings = {"algo": "dqn", "env_id": "CartPole-v1", "num_envs": 1}
    network, replay = {"hidden_sizes": [2200, 2200]}, {"buffer_size": 1_500_000}
    for alone in ({"buffer_size": 1000, **network}, {"hidden_sizes": [8], **replay}):
        build(load_config(settings | alone)).close()
    assert refused(settings | network | replay, tmp_path) == (
        "buffer_size=1500000: needs at least 68.7 MiB of RAM beside 56.0 MiB for the rest, and 100.0 MiB are "
        "available; at most 961688 fit"
    )


def test_a_policy_alone_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ram, "available_memory", lambda: 8 << 20)
    config = load_config({"algo": "ppo", "env_id": "CartPole-v1", "hidden_sizes": [1000, 1000]})
    build_policy(config)  # 4 MB: enough to act, and too little to learn
    with pytest.raises(UserError, match=r"hidden_sizes=\[1000, 1000\]: needs at least 11\.\d MiB of RAM"):
        build(config)
    with pytest.raises(UserError, match=r"hidden_sizes=\[3000, 3000\]: needs at least 34\.\d MiB of RAM, and 8\.0 MiB"):
        build_policy(config.replace(hidden_sizes=[3000, 3000]))


def test_nothing_is_refused_where_the_ram_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ram, "available_memory", lambda: None)
    build(tiny_config("ppo")).close()


def test_a_dataset_that_does_not_fit_twice_is_said_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config("iql/pendulum", bc_baseline_updates=0)
    monkeypatch.setattr(offline, "available_memory", lambda: 100_000)
    with pytest.raises(UserError, match=r"^dataset: as a replay of 10000 transitions it needs another 390\.6 KiB of"):
        build(config)


def tensors_in(state: Any) -> Iterator[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from tensors_in(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from tensors_in(value)


WIDE = {
    "hidden_sizes": [96, 128],
    "disc_hidden_sizes": [96, 64],
    "rnn_hidden_size": 64,
    "latent_size": 96,
    "n_critics": 3,
    "n_quantiles": 7,
    "size": "1m",
}


@pytest.mark.parametrize("algo", REGISTRY)
def test_the_estimate_is_a_lower_bound_and_not_far_from_the_truth(algo: str) -> None:
    known = settings_of(load_spec(algo))
    wide = {name: value for name, value in WIDE.items() if name in known}
    config = tiny_config(algo, **wide, buffer_size=1000) if "buffer_size" in known else tiny_config(algo, **wide)
    run = build(config)
    info, num_envs = run.info, config.run.num_envs
    learned = 4 * sum(tensor.numel() for tensor in tensors_in(run.algorithm.state_dict()))
    least = memory._LEARNED_WEIGHT * config.model.least_weights(info)
    assert least <= learned <= 12 * least
    if isinstance(config.loop, OnPolicyLoopConfig):
        assert isinstance(run.loop, OnPolicyLoop)
        rollout = run.loop.rollout
        columns = (rollout.obs, rollout.action, rollout.reward, rollout.terminated, rollout.truncated, rollout.real)
        assert config.loop.least_bytes(info, num_envs) == sum(column.nbytes for column in columns)
    elif config.loop.collects:
        stored = {name: array.data.nbytes for name, array in run.arrays().items() if not name.endswith("records")}
        assert config.loop.least_bytes(info, num_envs) == sum(stored.values())
    else:
        assert config.loop.least_bytes(info, num_envs) == 0
    run.close()


def test_models_of_ones_own_are_not_guessed() -> None:
    config = tiny_config("ppo", model="rl_training.testing:LinearActorCritic", hidden_sizes=[10**6, 10**6])
    build(config).close()


def test_images_have_the_size_of_their_convolutions() -> None:
    config = load_config({"algo": "muzero", "env_id": "CartPole-v1"})
    image = replace(build_policy(config)[1].info, obs_shape=(3, 64, 64), obs_dtype="uint8")
    narrow, wide = (config.replace(channels=channels).model.least_weights(image) for channels in (32, 64))
    assert 3.5 < wide / narrow < 4.5
