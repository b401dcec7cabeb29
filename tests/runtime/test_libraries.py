"""The libraries that a process has once: a run has its own threads and generators of them, and gives them back."""

from __future__ import annotations

import logging
import random
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from rl_training import PPO, SAC, Callback, UserError, evaluate_checkpoint, resume_training, train, train_seeds
from rl_training.runtime.datasets import Behaviour, collect
from rl_training.runtime.doctor.report import examine
from rl_training.runtime.libraries import Libraries
from rl_training.runtime.saved_policy import load_policy
from rl_training.runtime.train import build
from rl_training.testing import tiny_config
from run_helpers import Walk, differences, latest, tiny, training_differences

SMALL: dict[str, Any] = {"num_envs": 1, "n_steps": 8, "batch_size": 8, "hidden_sizes": [8], "eval_episodes": 1}


def blas_threads() -> list[int]:
    """Of every library of linear algebra that is loaded."""
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def state_of_the_process() -> dict[str, Any]:
    """All that a library shares with whoever called it."""
    kind, keys, *rest = np.random.get_state()
    return {
        "torch threads": torch.get_num_threads(),
        "blas threads": blas_threads(),
        "python": random.getstate(),
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "torch": torch.get_rng_state(),
        "flags": [torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled(), torch.get_default_dtype()],
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "log": [logging.getLogger(name).handlers[:] for name in ("", "rl_training")],
        "log level": logging.getLogger("rl_training").level,
        "warnings": warnings.filters[:],
        "errors": np.geterr(),
        "path": sys.path[:],
    }


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    """What a run changes: two threads of torch, and two of BLAS."""
    with threadpool_limits(2, user_api="blas"):
        torch.set_num_threads(2)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    train(tiny(total_timesteps=48), run_dir=run_dir)
    return run_dir


class Fails(Callback):
    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        raise ZeroDivisionError


class Interrupts(Callback):
    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        signal.raise_signal(signal.SIGINT)


def a_longer_run(finished: Path, folder: Path) -> None:
    resume_training(finished, total_timesteps=latest(finished).meta["step"] + 24)


def an_agent(finished: Path, folder: Path) -> None:
    agent = PPO("CartPole-v1", **SMALL)
    agent.learn(16)
    agent.predict(np.zeros(4, np.float32))
    agent.evaluate(1)
    PPO.load(agent.save(folder / "agent")).close()
    agent.close()


def a_mistake(finished: Path, folder: Path) -> None:
    with pytest.raises(UserError):
        build(tiny_config("sac", env={"actions": "discrete"}))


def ends_by(error: type[BaseException], callback: Callback) -> Callable[[Path, Path], None]:
    def work(finished: Path, folder: Path) -> None:
        with pytest.raises(error):
            train(tiny(), run_dir=folder / "run", callbacks=[callback])

    return work


WORKS: dict[str, Callable[[Path, Path], Any]] = {
    "train": lambda finished, folder: train(tiny(), run_dir=folder / "run"),
    "train, two threads": lambda finished, folder: train(tiny(threads=2), run_dir=folder / "run"),
    "train_seeds": lambda finished, folder: train_seeds(tiny(folder, total_timesteps=24), [1, 2]),
    "resume_training": a_longer_run,
    "evaluate_checkpoint": lambda finished, folder: evaluate_checkpoint(finished, num_episodes=2),
    "evaluate_checkpoint elsewhere": lambda finished, folder: evaluate_checkpoint(
        finished, num_episodes=2, env="CartPole-v1"
    ),
    "load_policy": lambda finished, folder: load_policy(finished),
    "collect": lambda finished, folder: collect(None, [Behaviour(finished), Behaviour()], steps=30),
    "doctor": lambda finished, folder: list(examine("CartPole-v1", steps=50)),
    "an agent": an_agent,
    "a mistake": a_mistake,
    "an error": ends_by(ZeroDivisionError, Fails()),
    "an interruption": ends_by(KeyboardInterrupt, Interrupts()),
}


@pytest.mark.parametrize("name", WORKS)
def test_the_process_has_back_what_it_had(name: str, finished: Path, tmp_path: Path) -> None:
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    before = state_of_the_process()
    WORKS[name](finished, tmp_path)
    after = state_of_the_process()
    assert [key for key in before if differences(before[key], after[key])] == []


class Sees(Callback):
    """The threads in training and in an evaluation."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, ...]] = set()

    def on_step(self, run: Any, metrics: dict[str, float]) -> None:
        self.seen.add((torch.get_num_threads(), *blas_threads()))

    on_eval = on_step


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_run_has_so_many_threads_of_torch_and_one_of_numpy(threads: int, tmp_path: Path) -> None:
    sees = Sees()
    train(tiny(threads=threads, total_timesteps=48, eval_interval=24), run_dir=tmp_path / "run", callbacks=[sees])
    assert sees.seen == {(threads, *[1] * len(blas_threads()))}
    assert latest(tmp_path / "run").meta["threads"] == threads


def test_agents_with_different_threads_take_turns() -> None:
    agents = [SAC("Pendulum-v1", num_envs=1, learning_starts=8, hidden_sizes=[8], threads=n) for n in (1, 3)]
    for _ in range(2):
        for agent, threads in zip(agents, (1, 3), strict=True):
            sees = Sees()
            agent.learn(16, sees)
            assert {seen[0] for seen in sees.seen} == {threads}
            assert torch.get_num_threads() == 2
    for agent in agents:
        agent.close()


def test_predict_has_the_threads_of_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = PPO("CartPole-v1", **SMALL, threads=3)
    policy = agent._run.algorithm.policy
    real, seen = policy.act, []

    def act(*arguments: Any, **options: Any) -> Any:
        seen.append((torch.get_num_threads(), *blas_threads()))
        if len(seen) == 2:
            raise ZeroDivisionError
        return real(*arguments, **options)

    monkeypatch.setattr(policy, "act", act)
    agent.predict(np.zeros(4, np.float32))
    with pytest.raises(ZeroDivisionError):
        agent.predict(np.zeros(4, np.float32))
    assert seen == [(3, *[1] * len(blas_threads()))] * 2
    assert (torch.get_num_threads(), set(blas_threads())) == (2, {2})
    agent.close()


class Dice(Walk):
    """Draws from the global generators."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        noise = random.random() + np.random.random() + float(torch.rand(()))
        return obs, reward + noise, terminated, truncated, info


def test_an_agent_has_global_generators_of_its_own() -> None:
    """Whatever else draws from those of the process: user code, or another agent."""
    alone = PPO(Dice, **SMALL).learn(32)
    first, second = PPO(Dice, **SMALL), PPO(Dice, **SMALL, seed=9)
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    expected = [random.random(), np.random.random(), float(torch.rand(()))]
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    first.learn(16)
    assert expected == [random.random(), np.random.random(), float(torch.rand(()))], "those of the process go on"
    second.learn(16)
    first.evaluate(1)
    first.predict(np.zeros(2, np.float32))
    first.learn(16)
    left, right = (agent._run.snapshot() for agent in (alone, first))
    assert training_differences(left, right) == []
    for agent in (alone, first, second):
        agent.close()


def test_blocks_of_one_run_are_nested_and_remember() -> None:
    libraries = Libraries(1)
    np.random.seed(0)
    with libraries:
        np.random.seed(5)
        with libraries:
            inner = np.random.random()
    outer = np.random.random()
    with libraries:
        following = np.random.random()
    np.random.seed(5)
    assert [inner, following] == [np.random.random(), np.random.random()]
    np.random.seed(0)
    assert outer == np.random.random()
