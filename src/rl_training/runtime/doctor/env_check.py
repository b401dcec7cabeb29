"""Checks of one environment: its spaces, its determinism, its episode ends, its rewards, and whether it resumes."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.algorithms.base import LoopConfig
from rl_training.experiment.settings import RunConfig
from rl_training.runtime.doctor.env_repeat import (
    AnyCopy,
    Plan,
    RandomActions,
    TooFewSteps,
    check_autoreset,
    check_copies,
    check_reset,
    check_resume,
    copy_of,
)
from rl_training.runtime.doctor.report import Finding, Level, one_line
from rl_training.runtime.envs.make import EnvFactory, EnvMaker
from rl_training.runtime.envs.rules import BrokenRule, flag_complaints, observation_complaints, reward_complaints
from rl_training.types import SpaceInfo, UserError

# The length of episodes in checks that need many episode ends.
_SHORT_EPISODE = 40
_LARGE_REWARD = 100.0
_SLOW = 200.0


def check_environment(
    env_id: str, env_kwargs: Mapping[str, Any], *, steps: int = 6_000, env_factory: EnvFactory | None = None
) -> Iterator[Finding]:
    """Yield the findings of all checks, which step environments at most `steps` times altogether.

    A `UserError` in making the environment is raised; all else is a finding.
    """
    settings = RunConfig(env_id=env_id, env_kwargs=dict(env_kwargs))
    maker = EnvMaker(settings, LoopConfig(), env_factory)
    plan = Plan(steps, vectors=maker.makes_vectors)
    limit = LoopConfig(time_limit=max(2, min(_SHORT_EPISODE, plan.autoreset // 2)))
    short = maker if maker.makes_vectors else EnvMaker(settings, limit, env_factory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's own checker would repeat these findings
        try:
            envs = maker.vector(1)
        except UserError:
            raise
        except Exception as error:
            yield Finding("PROBLEM", "make", f"making it raised {one_line(error)}")
            return
        try:
            envs = maker.masking(envs)
            info = maker.describe(envs)
        except BrokenRule as error:
            yield Finding("PROBLEM", "step", str(error))
            return
        except UserError as error:
            yield Finding("PROBLEM", "spaces", str(error))
            return
        except Exception as error:
            yield Finding("PROBLEM", "step", f"reset raised {one_line(error)}")
            return
        finally:
            envs.close()
        short.masked = maker.masked
        yield _check_actions(envs.single_action_space)
        try:
            played = _play(copy_of(maker, info), info, plan.play)
        except Exception as error:
            words = str(error) if isinstance(error, BrokenRule) else f"reset or step raised {_words(error)}"
            yield Finding("PROBLEM", "step", words)
            return
        yield from _check_observations(played)
        yield from _check_episodes(played)
        yield from _check_rewards(played)
        yield _check_speed(played)
        for subject, check in (
            ("determinism", lambda: check_copies(maker, info, plan.copies)),
            ("reset", lambda: check_reset(maker, info, plan.reset)),
            ("autoreset", lambda: check_autoreset(short, info, plan.autoreset)),
            ("resume", lambda: check_resume(short, info, plan.resume)),
        ):
            yield _guarded(subject, check)


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, UserError) else one_line(error)


def _guarded(subject: str, check: Callable[[], tuple[Level, str]]) -> Finding:
    try:
        level, words = check()
    except TooFewSteps as error:
        return Finding("note", subject, str(error))
    except Exception as error:
        return Finding("PROBLEM", subject, f"could not be checked: {_words(error)}")
    return Finding(level, subject, words)


@dataclass
class Played:
    """Measurements of some random steps."""

    steps: int = 0
    seconds: float = 0.0
    time_limit: int | None = None
    complaints: Counter[tuple[Level, str]] = field(default_factory=Counter)
    rewards: list[Any] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    terminated: int = 0
    truncated: int = 0
    both: int = 0
    odd_flags: set[str] = field(default_factory=set)

    def look(self, space: gym.Space[Any], obs: Any) -> None:
        self.complaints.update(complaints_of(space, obs))

    def count(self, length: int, terminated: Any, truncated: Any) -> None:
        """Count the two flags of a step, and an episode of this length if it is over."""
        self.odd_flags.update(flag_complaints(terminated, truncated))
        self.terminated += bool(terminated)
        self.truncated += bool(truncated)
        self.both += bool(terminated) and bool(truncated)
        if terminated or truncated:
            self.lengths.append(length)


def _play(env: AnyCopy, info: SpaceInfo, steps: int) -> Played:
    played, draw = Played(time_limit=env.time_limit), RandomActions(info)
    length, episodes = 0, 0
    try:
        played.look(env.observation_space, env.reset(episodes))
        for _ in range(steps):
            action = draw(1, env.mask)
            started = time.perf_counter()
            obs, reward, terminated, truncated = env.step(action)
            played.seconds += time.perf_counter() - started
            played.steps, length = played.steps + 1, length + 1
            played.look(env.observation_space, obs)
            played.rewards.append(reward)
            played.count(length, terminated, truncated)
            if terminated or truncated:
                length, episodes = 0, episodes + 1
                played.look(env.observation_space, env.reset(episodes))
    finally:
        env.close()
    return played


def complaints_of(space: gym.Space[Any], value: Any) -> Iterator[tuple[Level, str]]:
    """What is wrong with an observation; equal faults have equal messages, so that they can be counted."""
    broken = list(observation_complaints(space, value))
    yield from (("PROBLEM", words) for words in broken) if broken else _remarks(space, value)


def _remarks(space: gym.Space[Any], value: Any, name: str = "") -> Iterator[tuple[Level, str]]:
    """What else there is to say of an observation that has the right form: on its kind and its numbers."""
    if isinstance(space, gym.spaces.Dict):
        for key, part in space.spaces.items():
            yield from _remarks(part, value[key], f"{name}.{key}" if name else key)
    elif isinstance(space, gym.spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _remarks(part, value[index], f"{name}.{index}" if name else str(index))
    elif isinstance(space, gym.spaces.Box):
        yield from _remarks_of_box(space, value, f"observation {name!r}" if name else "an observation")


def _remarks_of_box(space: gym.spaces.Box, value: Any, where: str) -> Iterator[tuple[Level, str]]:
    array = np.asarray(value)
    if not isinstance(value, (np.ndarray, np.generic)):
        yield "note", f"{where} is a {type(value).__name__}, not an array"
    elif array.dtype != space.dtype:
        yield "note", f"{where} has dtype {array.dtype}, its space {space.dtype}; it is converted"
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        yield "PROBLEM", f"{where} holds nan or infinity"
        return
    slack = 1e-5 * np.maximum(1.0, np.abs(np.where(np.isfinite(array), array, 0.0)))
    for side, outside in (("below", array < space.low - slack), ("above", array > space.high + slack)):
        for index in np.argwhere(outside)[:1]:
            place = "" if array.ndim == 0 else f"[{', '.join(map(str, index))}]"
            bound = (space.low if side == "below" else space.high)[tuple(index)]
            yield "PROBLEM", f"{where}{place} was {side} its bound {bound:g}"


def _check_actions(space: gym.Space[Any]) -> Finding:
    if not isinstance(space, gym.spaces.Box):
        return Finding("ok", "actions", str(space))
    uneven = space.low != -space.high
    if not uneven.any():
        high = float(space.high.max())
        return Finding("ok", "actions", f"{space.shape} numbers with finite, symmetric bounds, up to {high:g}")
    example = f"{space.low[uneven][0]:g} to {space.high[uneven][0]:g}"
    words = f"bounds are finite but not symmetric ({example}); a policy's [-1, 1] is scaled to them"
    return Finding("note", "actions", words)


def _check_observations(played: Played) -> Iterator[Finding]:
    for (level, words), count in sorted(played.complaints.items(), key=lambda item: item[0]):
        yield Finding(level, "observation", f"{words} ({count:,} of {_seen(played):,} times)")
    if not played.complaints:
        yield Finding("ok", "observation", f"{_seen(played):,} were in their space, of the right shape and dtype")


def _seen(played: Played) -> int:
    return played.steps + 1 + len(played.lengths)


def _check_episodes(played: Played) -> Iterator[Finding]:
    limit = "no TimeLimit" if played.time_limit is None else f"a TimeLimit of {played.time_limit:,} steps"
    for words in sorted(played.odd_flags):
        yield Finding("PROBLEM", "truncation", words)
    if not played.lengths:
        reachable = played.time_limit is None or played.time_limit <= played.steps
        advice = "set time_limit, or try more --steps" if played.time_limit is None else "its TimeLimit has no effect"
        words = f"no episode ended in {played.steps:,} random steps, with {limit}"
        yield Finding("PROBLEM" if reachable else "note", "truncation", f"{words}; {advice}" if reachable else words)
        return
    words = (
        f"{len(played.lengths):,} episodes of {min(played.lengths):,} to {max(played.lengths):,} steps: "
        f"{played.terminated:,} terminated, {played.truncated:,} truncated; {limit}"
    )
    yield Finding("ok", "truncation", words)
    if played.both:
        yield Finding(
            "note", "truncation", f"both flags were set at {played.both:,} of these ends; terminated has priority"
        )


def _check_rewards(played: Played) -> Iterator[Finding]:
    odd = next((words for reward in played.rewards for words in reward_complaints(reward)), None)
    if odd is not None:
        yield Finding("PROBLEM", "reward", odd.removeprefix("the reward "))
        return
    rewards = np.array(played.rewards, np.float64)
    bad = ~np.isfinite(rewards)
    if bad.any():
        first = int(np.argmax(bad))
        words = f"was {rewards[first]} at step {first + 1:,}, and not finite {int(bad.sum()):,} times"
        yield Finding("PROBLEM", "reward", words)
        return
    low, middle, high, spread = rewards.min(), rewards.mean(), rewards.max(), rewards.std()
    words = f"min {low:.3g}, mean {middle:.3g}, max {high:.3g}, standard deviation {spread:.3g}"
    if max(abs(low), abs(high)) > _LARGE_REWARD:
        yield Finding("note", "reward", f"{words}: large; normalize_reward may help")
    elif low == high == 0.0:
        yield Finding("note", "reward", "was always 0: random actions never get a reward")
    else:
        yield Finding("ok", "reward", words)


def _check_speed(played: Played) -> Finding:
    rate = played.steps / max(played.seconds, 1e-9)
    words = f"{rate:,.0f} steps/s in one environment"
    if rate < _SLOW:
        return Finding("note", "speed", f"{words}: slow; vectorization=async steps several at once")
    return Finding("ok", "speed", words)
