"""Environments that break Gymnasium's rules, hang or die: one line that names the environment, and no process left."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_training import UserError, train
from run_helpers import Command, Walk, as_overrides, limited_walk, tiny

LONGER = r"an observation has the shape \(3,\), its space \(2,\)"
FAULTS: dict[str, tuple[Callable[[tuple[Any, ...]], Any], str]] = {
    "four": (lambda came: came[:4], r"step returned 4 values; it must return \(observation, reward, terminated,"),
    "six": (lambda came: (*came, {}), "step returned 6 values"),
    "only_observation": (lambda came: came[0], r"step returned a ndarray of shape \(2,\); it must return"),
    "longer": (
        lambda came: (np.zeros(3, np.float32), *came[1:]),
        LONGER,
    ),
    "deeper": (lambda came: (came[0][None], *came[1:]), r"an observation has the shape \(1, 2\), its space \(2,\)"),
    "complex": (lambda came: (came[0] + 1j, *came[1:]), "an observation has dtype complex64, its space float32"),
    "text": (lambda came: ("here", *came[1:]), r"an observation is a str; it must be an array of shape \(2,\)"),
    "nothing": (lambda came: (None, *came[1:]), "an observation is a NoneType"),
    "ragged": (lambda came: ([[1.0], [1.0, 2.0]], *came[1:]), "an observation is a list"),
    "array_reward": (
        lambda came: (came[0], np.ones(1), *came[2:]),
        r"the reward is a ndarray of shape \(1,\); it must be",
    ),
    "text_reward": (lambda came: (came[0], "1.5", *came[2:]), "the reward is a str; it must be a number"),
    "no_reward": (lambda came: (came[0], None, *came[2:]), "the reward is a NoneType; it must be a number"),
    "number_flag": (lambda came: (*came[:2], 1, *came[3:]), "terminated is a int; it must be a bool"),
    "text_flag": (lambda came: (*came[:3], "no", came[4]), "truncated is a str; it must be a bool"),
    "array_flag": (lambda came: (*came[:2], np.array([False]), *came[3:]), r"terminated is a ndarray of shape \(1,\)"),
    "no_info": (lambda came: (*came[:4], None), "the info of step is a NoneType; it must be a dict"),
    "list_info": (lambda came: (*came[:4], []), "the info of step is a list; it must be a dict"),
}
RESET_FAULTS: dict[str, tuple[Callable[[tuple[Any, ...]], Any], str]] = {
    "reset_only_observation": (
        lambda came: came[0],
        r"reset returned a ndarray of shape \(2,\); it must return \(observation, info\)",
    ),
    "reset_longer": (
        lambda came: (np.zeros(3, np.float32), {}),
        LONGER,
    ),
    "reset_no_info": (lambda came: (came[0], None), "the info of reset is a NoneType; it must be a dict"),
}


class Faulty(Walk):
    """Breaks one rule in the third step, or in the reset after five steps, of the environment that says so."""

    def __init__(self, fault: str, time_limit: int | None = None) -> None:
        super().__init__()
        self.fault, self.steps = fault, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        came = super().reset(seed=seed)
        return RESET_FAULTS[self.fault][0](came) if self.fault in RESET_FAULTS and self.steps > 0 else came

    def step(self, action: Any) -> Any:
        self.steps += 1
        obs, reward, *_ = super().step(action)
        came = obs, reward, self.steps == 5, False, {}
        return FAULTS[self.fault][0](came) if self.fault in FAULTS and self.steps >= 3 else came


def limited_faulty(fault: str) -> gym.Env[Any, Any]:
    """The fault is inside of wrappers that cannot pass it on."""
    return gym.wrappers.TimeLimit(gym.wrappers.OrderEnforcing(Faulty(fault)), 50)


def complaint(run_dir: Path, **settings: Any) -> str:
    with pytest.raises(UserError) as complaint:
        train(tiny(num_envs=2, **settings), run_dir=run_dir)
    assert multiprocessing.active_children() == []
    return str(complaint.value).splitlines()[0]


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("fault", [*FAULTS, *RESET_FAULTS])
def test_a_broken_rule_is_one_line(fault: str, vectorization: str, tmp_path: Path) -> None:
    said = complaint(
        tmp_path / "run", env_id="test_env_rules:Faulty", env_kwargs={"fault": fault}, vectorization=vectorization
    )
    where, words = "reset after 5 steps" if fault in RESET_FAULTS else "step 3", (FAULTS | RESET_FAULTS)[fault][1]
    assert re.match(f"environment 0, {where}: {words}", said), said


@pytest.mark.parametrize("fault", [*FAULTS, *RESET_FAULTS])
@pytest.mark.parametrize("changes", [{}, {"frame_stack": 2}], ids=["limited", "stacked"])
def test_a_rule_that_is_broken_inside_of_wrappers_is_one_line(
    fault: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    said = complaint(
        tmp_path / "run",
        env_id="test_env_rules:limited_faulty",
        env_kwargs={"fault": fault},
        vectorization="sync",
        **changes,
    )
    words = (FAULTS | RESET_FAULTS)[fault][1]
    assert said.startswith("environment 0, ")
    # A stack is what it should be, or fails as a whole.
    assert re.match(f".*: {words}", said) or (changes and "the shape (2, 3)" in said), said


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_the_environment_that_breaks_a_rule_is_named(vectorization: str) -> None:
    from rl_training.runtime.envs.in_turn import InTurn
    from rl_training.runtime.envs.processes import OwnProcesses

    kind: Any = InTurn if vectorization == "sync" else OwnProcesses
    envs = kind(ThirdIsOdd, 4)
    try:
        envs.reset(seed=[5, 6, 7, 8])
        envs.step(np.zeros(4, np.int64))
        with pytest.raises(UserError, match=r"^environment 2, step 2: the reward is a NoneType; it must be a number$"):
            envs.step(np.zeros(4, np.int64))
    finally:
        envs.close()


class ThirdIsOdd(Walk):
    seed = 0
    steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.seed = seed or 0
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        self.steps += 1
        obs, reward, *rest = super().step(action)
        return obs, None if self.seed == 7 and self.steps == 2 else reward, *rest


class InPixels(Walk):
    """A Dict with a part of the wrong shape, or without one."""

    def __init__(self, part: Any = None) -> None:
        super().__init__()
        self.part = part
        image = gym.spaces.Box(0, 255, (4, 4), np.uint8)
        self.observation_space = gym.spaces.Dict({"place": Walk.observation_space, "image": image})

    def observe(self) -> Any:
        parts = {
            "good": np.zeros((4, 4), np.uint8),
            "flat": np.zeros(16, np.uint8),
            "floats": np.zeros((4, 4), np.float32),
        }
        return {"place": super().observe()} | ({"image": parts[self.part]} if self.part in parts else {})


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("flat", r"observation 'image' has the shape \(16,\), its space \(4, 4\)"),
        ("floats", "observation 'image' has dtype float32, its space uint8"),
        ("none", "an observation does not have the entries image, place"),
    ],
)
def test_a_wrong_part_of_a_dict_is_one_line(part: str, words: str, tmp_path: Path) -> None:
    said = complaint(tmp_path / "run", env_id="test_env_rules:InPixels", env_kwargs={"part": part})
    assert re.match(f"environment 0, reset after 0 steps: {words}", said), said


class Choices(gym.Env[Any, Any]):
    observation_space: Any = gym.spaces.Discrete(4)
    action_space: Any = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return 0, {}

    def step(self, action: Any) -> Any:
        return 7, 0.0, False, False, {}


def test_a_choice_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    said = complaint(tmp_path / "run", env_id="test_env_rules:Choices")
    assert said == "environment 0, step 1: an observation is 7: it must be a whole number from 0 to 3"


# Spaces.


class Grows(Walk):
    """Has one more action from the second episode on."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.action_space = gym.spaces.Discrete(2 + (self.place != 0).any())
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        return obs, reward, True, False, {}


class NoTwoAlike(Walk):
    made: ClassVar[Any] = multiprocessing.Value("i", 0)

    def __init__(self) -> None:
        super().__init__()
        with self.made.get_lock():
            self.made.value += 1
            self.observation_space = gym.spaces.Box(-1.0, 1.0, (2 + self.made.value,), np.float32)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_spaces_that_change_or_differ_are_one_line(vectorization: str, tmp_path: Path) -> None:
    said = complaint(tmp_path / "run", env_id="test_env_rules:Grows", vectorization=vectorization)
    words = (
        r"environment \d, reset after \d steps: its action space is Discrete\(3\); .* must be and stay Discrete\(2\)"
    )
    assert re.match(words, said), said
    said = complaint(tmp_path / "run", env_id="test_env_rules:NoTwoAlike", vectorization=vectorization)
    assert re.match(r"environment \d: its observation space is Box.*; that of all environments must be", said), said


# Errors of the environment's own are not of this kind.


class Breaks(Walk):
    def step(self, action: Any) -> Any:
        raise ZeroDivisionError("an error of its own")


class Unpicklable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__("cannot be sent")


class BreaksOddly(Walk):
    def step(self, action: Any) -> Any:
        raise Unpicklable(1, 2)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_an_error_of_the_environments_own_stays_what_it_is(vectorization: str, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError, match="an error of its own") as error:
        train(tiny(env_id="test_env_rules:Breaks", vectorization=vectorization, num_envs=2), run_dir=tmp_path / "run")
    notes = getattr(error.value, "__notes__", [])
    assert vectorization == "sync" or "line" in notes[0], "where it was raised is said"
    expected = Unpicklable if vectorization == "sync" else RuntimeError
    with pytest.raises(expected, match="cannot be sent"):
        train(tiny(env_id="test_env_rules:BreaksOddly", vectorization=vectorization), run_dir=tmp_path / "other")
    assert multiprocessing.active_children() == []


# Vector environments of one's own.


class OddVector(SyncVectorEnv):
    def __init__(self, num_envs: int, fault: str) -> None:
        super().__init__([limited_walk] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
        self.fault = fault

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, infos = super().step(actions)
        if self.fault == "four":
            return obs, reward, terminated | truncated, infos
        if self.fault == "column":
            return obs, reward[:, None], terminated, truncated, infos
        if self.fault == "numbers":
            return obs, reward, terminated.astype(np.int64), truncated, infos
        return obs[:, :1], reward, terminated, truncated, infos


def odd_vector(num_envs: int, fault: str) -> OddVector:
    return OddVector(num_envs, fault)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("four", "step returned 4 values; it must return"),
        ("column", r"reward is a ndarray of shape \(2, 1\); it must be an array of 2 numbers"),
        ("numbers", r"terminated is a ndarray of shape \(2,\); it must be an array of 2 booleans"),
        ("narrow", r"observation 'of all environments' has the shape \(2, 1\), its space \(2, 2\)"),
    ],
)
def test_a_vector_environment_of_ones_own_is_checked_as_a_whole(fault: str, words: str, tmp_path: Path) -> None:
    said = complaint(tmp_path / "run", env_id="test_env_rules:odd_vector", env_kwargs={"fault": fault})
    assert re.match(f"the vector environment at step 2: {words}", said), said


# Processes that hang or are gone.


class Hangs(Walk):
    """Sleeps, exits or dies where it is told to."""

    def __init__(self, where: str, how: str = "sleep") -> None:
        super().__init__()
        self.where, self.how, self.main = where, how, os.getpid() == MAIN_PROCESS
        self.steps = 0
        self._maybe("init")

    def _maybe(self, where: str) -> None:
        if where != self.where or self.main:
            return
        if self.how == "sleep":
            time.sleep(1000)
        elif self.how == "exit":
            sys.exit(3)
        os.kill(os.getpid(), signal.SIGKILL)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self.steps:
            self._maybe("reset")
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps > 4:
            self._maybe("step")
        return super().step(action)


MAIN_PROCESS = os.getpid()


@pytest.mark.parametrize("where", ["init", "step", "reset"])
def test_a_process_that_hangs_ends_the_run(where: str, tmp_path: Path) -> None:
    started = time.monotonic()
    said = complaint(
        tmp_path / "run",
        env_id="test_env_rules:Hangs",
        env_kwargs={"where": where},
        vectorization="async",
        env_timeout=0.7,
    )
    assert re.match(r"environment \d did not answer within env_timeout=0.7 seconds, so its process was ended; ", said)
    assert time.monotonic() - started < 60


@pytest.mark.parametrize(("how", "words"), [("exit", "with exit code 3"), ("die", "by signal 9")])
@pytest.mark.parametrize("where", ["init", "step"])
def test_a_process_that_is_gone_is_said_at_once(where: str, how: str, words: str, tmp_path: Path) -> None:
    said = complaint(
        tmp_path / "run",
        env_id="test_env_rules:Hangs",
        env_kwargs={"where": where, "how": how},
        vectorization="async",
    )
    assert re.match(rf"environment \d: its process ended {words}; it was killed, ran out of memory, crashed or", said)


def test_the_command_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tiny(tmp_path, env_id="test_env_rules:Hangs", vectorization="async", num_envs=2, env_timeout=0.5)
    said = Command(monkeypatch, capsys)("train", "ppo", *as_overrides(settings), 'env_kwargs={"where": "step"}')
    assert said.code == 2
    lines = [line for line in said.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert "did not answer within env_timeout=0.5 seconds" in lines[0]
    assert "Traceback" not in said.err


def test_a_time_limit_for_processes_is_a_number_above_0_or_none(tmp_path: Path) -> None:
    for value in (0, -1, "soon"):
        with pytest.raises(UserError, match="env_timeout"):
            train(tiny(env_timeout=value), run_dir=tmp_path / "run")
    for value in (None, 1e12):
        result = train(tiny(env_timeout=value, vectorization="async", num_envs=2), run_dir=tmp_path / f"run{value}")
        assert result.stop_reason == "completed"
