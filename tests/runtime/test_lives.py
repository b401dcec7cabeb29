"""Lives that an environment says are lost: learned from as ends, remembered as ends, and no ends of episodes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.data.replay import FrameReplay
from rl_training.experiment.config import load_config
from rl_training.runtime.datasets import UniformPolicy
from rl_training.runtime.envs.lives import lives_lost
from rl_training.runtime.evaluate import Evaluator
from rl_training.runtime.train import build
from rl_training.testing import TinyEnv
from rl_training.types import Act, Array, UserError


class Counter(gym.Env[Any, Any]):
    """Shows how many steps it has made as an image, in episodes of 11; every fourth step costs a life."""

    observation_space = gym.spaces.Box(0, 255, (36, 36), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, said: Any = True, quiet: bool = False) -> None:
        self._said, self._quiet = said, quiet
        self._time = self._total = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._time, self._total = 0, self._total + 1
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._time, self._total = self._time + 1, self._total + 1
        lost = self._time % 4 == 0
        info = {} if self._quiet and not lost else {"life_lost": self._said if lost else False}
        return self._obs(), 1.0, self._time == 11, False, info

    def _obs(self) -> Array:
        return np.full((36, 36), self._total % 256, np.uint8)


def dqn(**settings: Any) -> dict[str, Any]:
    small = {"buffer_size": 200, "learning_starts": 60, "batch_size": 4, "hidden_sizes": [], "frame_stack": 4}
    return {"algo": "dqn", "env_id": "test_lives:Counter", "num_envs": 2, "train_every": 40, **small, **settings}


@pytest.mark.parametrize("quiet", [False, True])
def test_a_memory_of_single_frames_gives_the_stacks_that_acting_saw(quiet: bool) -> None:
    run = build(load_config(dqn(env_kwargs={"quiet": quiet})))
    run.start()
    seen = []
    act = run.source.collector.step  # type: ignore[attr-defined]

    def watched(action: Array, records: Any) -> Any:
        step = act(action, records)
        seen.append(step)
        return step

    run.source.collector.step = watched  # type: ignore[attr-defined]
    run.advance()
    replay = run.loop.parts["replay"]
    assert isinstance(replay, FrameReplay)
    stored = replay.gather(np.flatnonzero(replay._store["ready"][: len(replay)]), gamma=0.9)
    acted = {
        tuple(obs[:, 0, 0].tolist()): bool(end)
        for step in seen
        for obs, end in zip(step.obs, step.terminated, strict=True)
    }
    assert len(stored.obs) > 10
    for obs, terminated in zip(stored.obs, stored.terminated, strict=True):
        assert acted[tuple(obs[:, 0, 0].tolist())] == bool(terminated)
    ends = [step.terminated[0] for step in seen[:11]]
    assert [t + 1 for t, end in enumerate(ends) if end] == [4, 8, 11]
    assert run.metrics["episode_return_mean"] == run.metrics["episode_length_mean"] == 11.0
    run.close()


@pytest.mark.parametrize("said", ["yes", 2, 0.5])
def test_what_is_neither_true_nor_false_is_refused(said: Any) -> None:
    run = build(load_config(dqn(env_kwargs={"said": said})))
    run.start()
    with pytest.raises(UserError, match=r"^info\['life_lost'\]=.*: must be true or false"):
        run.advance()
    run.close()


def test_without_a_word_on_lives_none_was_lost() -> None:
    assert lives_lost({}, 2) is None
    assert lives_lost({"life_lost": np.array([None, True])}, 2).tolist() == [False, True]  # type: ignore[union-attr]


def test_a_recurrent_policy_is_evaluated_as_it_learned() -> None:
    """It forgets at a lost life in an evaluation too."""
    forgotten: list[Array] = []

    class Watched(UniformPolicy):
        def __init__(self) -> None:
            """It has no settings."""

        def act(self, obs: Array, carry: Any, *, explore: bool, rng: np.random.Generator) -> Act:
            return Act(np.zeros(len(obs), np.int64), carry)

        def begin_episodes(self, carry: Any, mask: Array) -> Any:
            forgotten.append(mask.copy())
            return carry

    run = build(load_config(dqn()))
    evaluate: Evaluator = run.evaluator
    assert evaluate(Watched(), 1).lengths == (11,)
    assert [t + 1 for t, mask in enumerate(forgotten) if mask[0]] == [4, 8, 11]
    run.close()


@pytest.mark.parametrize("limit", [5, 30])
def test_a_time_limit_takes_the_place_of_one_that_a_function_made(limit: int) -> None:
    run = build(load_config(dqn(env_id="test_lives:limited", time_limit=limit)))
    assert run.evaluate(1).lengths == (limit,)
    run.close()


class Endless(TinyEnv):
    def __init__(self) -> None:
        super().__init__(observations="image")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return *super().step(action)[:2], False, False, {}


def limited() -> gym.Env[Any, Any]:
    return gym.wrappers.TimeLimit(Endless(), 10)
