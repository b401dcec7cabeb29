"""Checks that an environment repeats itself: in a copy, after a reset, in a vector, after a resume."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import count
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from rl_training.ops.observations import Unpacker
from rl_training.runtime.actors.collector import Collector
from rl_training.runtime.doctor.report import Level
from rl_training.runtime.envs.journal import Journal
from rl_training.runtime.envs.lives import life_lost
from rl_training.runtime.envs.make import EnvMaker, reset_each
from rl_training.runtime.envs.observations import CodedObservation
from rl_training.runtime.envs.own_states import ANCHOR_EVERY, Forgetful, keep_state_of
from rl_training.runtime.envs.rules import called
from rl_training.runtime.envs.spaces import ActionScaler, PackedObservation
from rl_training.types import Array, SpaceInfo, Step

Verdict = tuple[Level, str]

_NUM_ENVS = 3
_FEWEST = 4  # steps of a check that says anything
_MOST_RESUMED = 60
_PARTS = ("observation", "reward", "terminated", "truncated")


class TooFewSteps(Exception):
    """A check that was left out, since there were too few steps for it."""

    def __init__(self, needed: int) -> None:
        super().__init__(f"is left out: there are too few steps for it; try --steps {needed}")


class Plan:
    """How many steps each check may take, so that all of them together step environments at most `total` times.

    What is counted is every step of every copy: those of a comparison, of a vector, and those that a resume replays.
    """

    def __init__(self, total: int, *, vectors: bool) -> None:
        self.play = max(1, total // 3)
        self.copies = min(200, total // 30)
        self.reset = min(20, total // 60)
        # Three copies in a vector; beside them three in plain loops and three in its native vector, if it has one.
        each = _NUM_ENVS if vectors else 3 * _NUM_ENVS
        self.autoreset = min(200, total // 30)
        spent = self.play + 2 * self.copies + 2 * self.reset + each * self.autoreset
        self.resume = (total - spent) // _NUM_ENVS


def _check_enough(steps: int, share: int) -> None:
    """Raise if a check has too few steps to say anything; `share` is which part of all steps it has."""
    if steps < _FEWEST:
        raise TooFewSteps(_FEWEST * share)


class RandomActions:
    """Random actions in a policy's format, within action masks."""

    def __init__(self, info: SpaceInfo, seed: int = 0) -> None:
        self._info = info
        self._rng = np.random.default_rng(seed)

    def __call__(self, count: int, masks: Array | None = None) -> Array:
        """Actions `[count, ...]`, allowed by masks `[count, choices]` if given."""
        if self._info.continuous:
            return self._rng.uniform(-1.0, 1.0, (count, self._info.action_size)).astype(np.float32)
        scores = self._rng.random((count, sum(self._info.action_counts)))
        if masks is not None:
            scores[~masks] = -1.0
        factors = np.split(scores, np.cumsum(self._info.action_counts)[:-1], axis=1)
        chosen = np.stack([factor.argmax(axis=1) for factor in factors], axis=-1)
        return chosen[:, 0] if self._info.action_kind == "discrete" else chosen


class Copy:
    """One environment with its own observations, which takes actions in a policy's format."""

    def __init__(self, env: gym.Env[Any, Any], info: SpaceInfo) -> None:
        while isinstance(env, (PackedObservation, CodedObservation)):
            env = env.env
        self.env = env
        self.observation_space: gym.Space[Any] = self.env.observation_space
        self.mask: Array | None = None
        self._masked = info.mask_size > 0
        self._scale = ActionScaler(info, self.env.action_space.dtype)

    def reset(self, seed: int) -> Any:
        obs, infos = called(self.env, "reset", lambda env: env.reset(seed=seed))
        self._look(infos)
        return obs

    def step(self, action: Array) -> tuple[Any, Any, Any, Any]:
        sent = self._scale(action)[0]
        obs, reward, terminated, truncated, infos = called(self.env, "step", lambda env: env.step(sent))
        self._look(infos)
        return obs, reward, terminated, truncated

    def _look(self, infos: Mapping[str, Any]) -> None:
        given: Any = infos.get("action_mask") if self._masked else None
        parts = given if isinstance(given, (tuple, list)) else [given]
        flat = None if given is None else np.concatenate([np.ravel(part) for part in parts]).astype(np.bool_)
        self.mask = None if flat is None or not flat.any() else flat[None]

    @property
    def time_limit(self) -> int | None:
        env: Any = self.env
        while isinstance(env, gym.Wrapper):
            if isinstance(env, gym.wrappers.TimeLimit):
                return int(env._max_episode_steps)
            env = env.env
        return None

    def close(self) -> None:
        self.env.close()


class CopyOfVector:
    """The same for a vector environment of size one, with a seed for every episode."""

    mask: Array | None = None
    time_limit: int | None = None

    def __init__(self, envs: VectorEnv[Any, Any, Any], info: SpaceInfo) -> None:
        self.envs = envs
        self.observation_space: gym.Space[Any] = envs.single_observation_space
        self._scale = ActionScaler(info, envs.single_action_space.dtype)
        self._mode = envs.metadata["autoreset_mode"]

    def reset(self, seed: int) -> Any:
        return np.array(self.envs.reset(seed=seed)[0][0])

    def step(self, action: Array) -> tuple[Any, Any, Any, Any]:
        obs, reward, terminated, truncated, infos = self.envs.step(self._scale(action))
        over = bool(terminated[0] or truncated[0])
        shown = infos.get("final_obs", obs) if over and self._mode == AutoresetMode.SAME_STEP else obs
        return np.array(shown[0]), reward[0], terminated[0], truncated[0]

    def close(self) -> None:
        self.envs.close()


AnyCopy = Copy | CopyOfVector


def copy_of(maker: EnvMaker, info: SpaceInfo) -> AnyCopy:
    """One environment, or a vector of size one if the maker makes only vectors."""
    return CopyOfVector(maker.vector(1), info) if maker.makes_vectors else Copy(maker.single(), info)


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    a, b = np.asarray(left), np.asarray(right)
    numbers = a.dtype.kind == "f" and b.dtype.kind == "f"
    return a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=numbers))


def _first_difference(left: tuple[Any, ...], right: tuple[Any, ...]) -> str | None:
    return next((name for name, a, b in zip(_PARTS, left, right, strict=True) if not _same(a, b)), None)


def check_copies(maker: EnvMaker, info: SpaceInfo, steps: int) -> Verdict:
    """Compare two copies that get the same seeds and actions."""
    _check_enough(steps, 30)
    first, second = copy_of(maker, info), copy_of(maker, info)
    draw, seeds = RandomActions(info), count(1)
    try:
        seed = next(seeds)
        if not _same(copy.deepcopy(first.reset(seed)), second.reset(seed)):
            return "PROBLEM", f"two copies show different observations after reset(seed={seed})"
        for step in range(1, steps + 1):
            action = draw(1, first.mask)
            shown = copy.deepcopy(first.step(action))
            differs = _first_difference(shown, second.step(action))
            if differs is not None:
                return "PROBLEM", f"two copies with the same seeds and actions differ in {differs} at step {step:,}"
            if shown[2] or shown[3]:
                seed = next(seeds)
                if not _same(copy.deepcopy(first.reset(seed)), second.reset(seed)):
                    return "PROBLEM", f"two copies show different observations after reset(seed={seed})"
    finally:
        first.close()
        second.close()
    return "ok", f"two copies with the same seeds and actions were equal for {steps:,} steps"


def check_reset(maker: EnvMaker, info: SpaceInfo, steps: int) -> Verdict:
    """Compare two episodes of one copy that is reset with the same seed."""
    _check_enough(steps, 60)
    env = copy_of(maker, info)
    try:
        episodes: list[list[Any]] = []
        for _ in range(2):
            draw = RandomActions(info)
            episode: list[Any] = [(copy.deepcopy(env.reset(7)), 0.0, False, False)]
            while len(episode) <= steps and not (episode[-1][2] or episode[-1][3]):
                episode.append(copy.deepcopy(env.step(draw(1, env.mask))))
            episodes.append(episode)
    finally:
        env.close()
    for step, (once, again) in enumerate(zip(*episodes, strict=False)):
        differs = _first_difference(once, again)
        if differs is not None:
            when = "in the first observation" if step == 0 else f"in {differs} at step {step}"
            return "PROBLEM", f"an episode after reset(seed=7) does not repeat: it differs {when}"
    return "ok", "an episode repeats after a reset with the same seed"


class _Seeds(np.random.Generator):
    """A generator that keeps the seeds that a collector drew last."""

    last: Array

    def integers(self, *args: Any, **kwargs: Any) -> Any:
        self.last = super().integers(*args, **kwargs)
        return self.last


def check_autoreset(maker: EnvMaker, info: SpaceInfo, steps: int) -> Verdict:
    """Compare vector environments with plain loops over single ones, through the ends of episodes."""
    _check_enough(steps, 30)
    if maker.makes_vectors:
        return _check_own_vector(maker.vector(_NUM_ENVS), info, steps)
    level, words = _compare_with_plain_loops(maker, info, steps)
    if level == "ok":
        native = maker.vector(_NUM_ENVS)
        if native.metadata["autoreset_mode"] != AutoresetMode.DISABLED:
            level, more = _check_own_vector(native, info, steps)
            return level, f"{words}; its native vector environment: {more}"
        native.close()
    return level, words


def _compare_with_plain_loops(maker: EnvMaker, info: SpaceInfo, steps: int) -> Verdict:
    seeds = _Seeds(np.random.PCG64(0))
    collector = Collector(maker.in_turn(_NUM_ENVS), info, seeds)
    plain = [maker.single() for _ in range(_NUM_ENVS)]
    draw, unpack = RandomActions(info), Unpacker(info)
    scale = ActionScaler(info, collector.envs.single_action_space.dtype)
    ends = 0
    try:
        collector.start()
        shown = [env.reset(seed=int(seed))[0] for env, seed in zip(plain, seeds.last, strict=True)]
        for step in range(1, steps + 1):
            obs = [np.array(row, info.obs_dtype) for row in shown]
            action = draw(_NUM_ENVS, unpack.mask(collector.obs))
            taken = collector.step(action)
            for b, (env, sent) in enumerate(zip(plain, scale(action), strict=True)):
                after, reward, terminated, truncated, facts = env.step(sent)
                ended = terminated or life_lost(facts)
                expected = (obs[b], np.float32(reward), np.array(after, info.obs_dtype), ended, truncated)
                wrong = _wrong_part(taken, b, expected)
                if wrong is not None:
                    return "PROBLEM", f"in a vector of {_NUM_ENVS} the {wrong} differs from a plain loop at step {step}"
                over = bool(terminated or truncated)
                ends += over
                shown[b] = env.reset(seed=int(seeds.last[b]))[0] if over else after
    finally:
        collector.close()
        for env in plain:
            env.close()
    if ends == 0:
        return "note", f"no episode ended in {steps:,} steps, so no reset was checked"
    return "ok", f"transitions over {ends:,} ends of episodes equal those of plain loops"


def _wrong_part(taken: Step, b: int, expected: tuple[Any, ...]) -> str | None:
    names = ("obs", "reward", "next_obs", "terminated", "truncated")
    return next(
        (name for name, value in zip(names, expected, strict=True) if not _same(getattr(taken, name)[b], value)), None
    )


def _check_own_vector(envs: VectorEnv[Any, Any, Any], info: SpaceInfo, steps: int) -> Verdict:
    """Check that a vector environment does what the autoreset mode in its metadata says."""
    mode = envs.metadata["autoreset_mode"]
    draw, scale = RandomActions(info), ActionScaler(info, envs.single_action_space.dtype)
    ends, was_over = 0, np.zeros(envs.num_envs, np.bool_)
    try:
        envs.reset(seed=0)
        for _ in range(steps):
            obs, reward, terminated, truncated, infos = envs.step(scale(draw(envs.num_envs)))
            over = np.asarray(terminated | truncated)
            ends += int(over.sum())
            if mode == AutoresetMode.NEXT_STEP and was_over.any():
                if np.asarray(reward)[was_over].any() or over[was_over].any():
                    return "PROBLEM", "says NEXT_STEP, but the step after the end of an episode is not its reset"
            elif mode == AutoresetMode.SAME_STEP and over.any() and "final_obs" not in infos:
                return "PROBLEM", "says SAME_STEP, but returns no final_obs at the end of an episode"
            elif mode == AutoresetMode.DISABLED and over.any():
                before = np.array(obs)
                after = reset_each(envs, list(range(envs.num_envs)), over)
                if not _same(np.array(after)[~over], before[~over]):
                    return "PROBLEM", "says DISABLED, but a reset with a reset_mask changes the others too"
            was_over = over
    finally:
        envs.close()
    if ends == 0:
        return "note", f"no episode ended in {steps:,} steps, so no reset was checked"
    return "ok", f"{mode.name} was kept over {ends:,} ends of episodes"


def check_resume(maker: EnvMaker, info: SpaceInfo, most: int) -> Verdict:
    """Compare environments that were saved and restored with those that continued, in at most so many steps of each."""
    envs = maker.vector(_NUM_ENVS)
    keeper = keep_state_of(envs)
    if isinstance(keeper, Forgetful):
        envs.close()
        return "note", f"is not exact: {Forgetful.WHY}"
    # Until there are two earlier states, a resume replays from the start and needs none of them.
    lead, replayed = (0, 0) if isinstance(keeper, Journal) else (2 * ANCHOR_EVERY, ANCHOR_EVERY)
    # Before the save, after it, again after a restore, and what a restore replays of those before.
    steps = min(_MOST_RESUMED, (most - lead - replayed) // 4)
    if steps < _FEWEST:
        envs.close()
        raise TooFewSteps(4 * _NUM_ENVS * (lead + replayed + 4 * _FEWEST))
    rng = np.random.default_rng(0)
    straight = Collector(envs, info, rng)
    try:
        straight.start()
        _advance(straight, info, lead + steps)
        saved, drawn = copy.deepcopy(straight.state_dict()), rng.bit_generator.state
        expected = _advance(straight, info, steps)
    finally:
        straight.close()
    rng.bit_generator.state = drawn
    resumed = Collector(maker.vector(_NUM_ENVS), info, rng)
    try:
        resumed.load_state_dict(saved)
        if resumed.why_not_exact:
            # Whoever writes a get_state means it to be complete.
            return "note" if isinstance(keeper, Journal) else "PROBLEM", f"is not exact: {resumed.why_not_exact[0]}"
        found = _advance(resumed, info, steps)
    finally:
        resumed.close()
    for step, (continued, restored) in enumerate(zip(expected, found, strict=True), start=1):
        for name in ("next_obs", "reward", "terminated", "truncated"):
            if not _same(getattr(continued, name), getattr(restored, name)):
                return "PROBLEM", f"looks exact but is not: its {name} differs {step} steps after a restore"
    how = "replaying the running episodes" if isinstance(keeper, Journal) else "its own get_state and set_state"
    return "ok", f"is exact, by {how}"


def _advance(collector: Collector, info: SpaceInfo, steps: int) -> list[Step]:
    draw, unpack = RandomActions(info), Unpacker(info)
    return [copy.deepcopy(collector.step(draw(collector.num_envs, unpack.mask(collector.obs)))) for _ in range(steps)]
