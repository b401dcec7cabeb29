"""Whether environments were restored is found out, and not claimed: what a replay or a state lacks is noticed."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_training import resume_training, train
from rl_training.algorithms.base import LoopConfig
from rl_training.experiment.settings import RunConfig
from rl_training.runtime.actors.collector import Collector
from rl_training.runtime.envs import journal
from rl_training.runtime.envs.make import EnvMaker
from rl_training.runtime.train import Run
from run_helpers import (
    Pulled,
    PullPlug,
    Walk,
    cut_and_resume,
    latest,
    limited_walk,
    metadata,
    run_differences,
    tiny,
)


def limited(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    return gym.wrappers.TimeLimit(env, 11)


def normalized_rewards() -> gym.Env[Any, Any]:
    return gym.wrappers.NormalizeReward(limited_walk())


def normalized_observations() -> gym.Env[Any, Any]:
    return gym.wrappers.NormalizeObservation(limited_walk())


class RarelyRewarded(Walk):
    """One episode in ten has rewards: in the others nothing shows what is known of them."""

    rare = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.rare = seed is not None and seed % 10 == 9
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, 3.0 * self.rare, *rest


def rarely_rewarded() -> gym.Env[Any, Any]:
    return gym.wrappers.NormalizeReward(limited(RarelyRewarded()))


class Curriculum(Walk):
    """Rewards grow with the number of episodes, at once or from the fifth episode on."""

    def __init__(self, begins: int = 0) -> None:
        super().__init__()
        self.begins, self.episodes = begins, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.episodes += 1
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, reward + max(0, self.episodes - self.begins), *rest


def curriculum() -> gym.Env[Any, Any]:
    return limited(Curriculum())


def late_curriculum(begins: int = 5) -> gym.Env[Any, Any]:
    return limited(Curriculum(begins))


class HiddenCurriculum(Walk):
    """The same count where nobody can see it: only rewards show it, and only after the first step of an episode."""

    def __init__(self) -> None:
        super().__init__()
        self.counter = itertools.count()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.level = iter([next(self.counter)] * 100)
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, reward + next(self.level), *rest


def hidden_curriculum() -> gym.Env[Any, Any]:
    return limited(HiddenCurriculum())


class Drifting(Walk):
    """A walk in a wind that changes; a state without the wind looks complete."""

    saved: ClassVar[tuple[str, ...]] = ("place",)
    wind = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.wind = 0.0
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        self.wind += 0.01
        self.place = self.place + self.wind
        return super().step(action)

    def get_state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.saved}

    def set_state(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


class PaysLater(Drifting):
    """What the state lacks shows in rewards alone."""

    def step(self, action: Any) -> Any:
        obs, reward, *rest = Walk.step(self, action)
        self.wind += 0.01
        return obs, reward + self.wind, *rest


class Complete(Drifting):
    saved = ("place", "wind")


class CalmUntilReset(Drifting):
    """The wind of an episode follows from its seed, which a resume resets with: nothing is lost."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        shown = super().reset(seed=seed)
        self.gust = float(self.np_random.normal())
        return shown

    def step(self, action: Any) -> Any:
        self.place = self.place + 0.01 * self.gust
        return Walk.step(self, action)


def vector_of(env: Callable[[], gym.Env[Any, Any]], mode: str) -> Callable[[int], SyncVectorEnv]:
    class Vector(SyncVectorEnv):
        """Saves what its environments save, and their generators and time limits."""

        def __init__(self, num_envs: int) -> None:
            super().__init__([lambda: limited(env())] * num_envs, autoreset_mode=AutoresetMode(mode))

        def get_state(self) -> dict[str, Any]:
            return {
                "own": [one.unwrapped.get_state() for one in self.envs],
                "rng": [one.unwrapped.np_random.bit_generator.state for one in self.envs],
                "elapsed": [one._elapsed_steps for one in self.envs],
                "autoreset": self._autoreset_envs,
            }

        def set_state(self, state: Mapping[str, Any]) -> None:
            self._autoreset_envs = state["autoreset"]
            for one, own, rng, elapsed in zip(self.envs, state["own"], state["rng"], state["elapsed"], strict=True):
                one.unwrapped.set_state(own)
                one.unwrapped.np_random.bit_generator.state = rng
                one._elapsed_steps = elapsed

    return lambda num_envs: Vector(num_envs)


def collecting(env: Any, num_envs: int = 2) -> Collector:
    """The environments of a run that was just built."""
    maker = EnvMaker(RunConfig(env_id="under test", vectorization="sync"), LoopConfig(), env)
    envs = maker.masking(maker.vector(num_envs))
    return Collector(envs, maker.describe(envs), np.random.default_rng(0))


def moments(env: Any, at: range, more: int = 30) -> list[bool]:
    """Save at every moment, go on in new environments, and say whether that claims to be exact; if so, it must be."""
    actions = np.random.default_rng(3).integers(0, 2, (at.stop + more, 2))
    straight, saved, steps, claims = collecting(env), {}, [], []
    straight.start()
    for moment, action in enumerate(actions):
        if moment in at:
            saved[moment] = copy.deepcopy((straight.state_dict(), straight.rng.bit_generator.state))
        steps.append(copy.deepcopy(straight.step(action)))
    straight.close()
    for moment, (state, drawn) in saved.items():
        resumed = collecting(env)
        resumed.rng.bit_generator.state = drawn
        resumed.load_state_dict(state)
        claims.append(resumed.exact)
        if resumed.exact:
            for time in range(moment, moment + more):
                found = resumed.step(actions[time])
                for name in ("obs", "reward", "next_obs", "terminated", "truncated"):
                    expected = getattr(steps[time], name)
                    words = f"{name} at step {time}, saved after {moment} steps"
                    np.testing.assert_array_equal(getattr(found, name), expected, err_msg=words)
        resumed.close()
    return claims


# Episodes are at most 11 steps long: at these moments some have just begun, and some are over.
AT = range(0, 45, 3)


@pytest.mark.parametrize(
    "env",
    [
        normalized_rewards,
        normalized_observations,
        rarely_rewarded,
        curriculum,
        late_curriculum,
        hidden_curriculum,
    ],
)
def test_what_earlier_episodes_left_is_noticed_at_every_moment(env: Any) -> None:
    claims = moments(env, AT)
    assert claims[0], "nothing has happened yet"
    assert not any(claims[-3:]), "a third episode has begun in both environments"


def recorded_walk() -> gym.Env[Any, Any]:
    """Its statistics are for people who read them."""
    return gym.wrappers.RecordEpisodeStatistics(limited_walk())


@pytest.mark.parametrize("env", [limited_walk, recorded_walk])
def test_what_a_seed_determines_is_exact_at_every_moment(env: Any) -> None:
    assert all(moments(env, AT))


# An earlier state is taken after every 128 steps; until 256 the first one is that of the start.
AT_WITH_STATES = range(250, 430, 23)


@pytest.mark.parametrize("env", [Drifting, PaysLater])
@pytest.mark.parametrize("how", ["each", "NextStep", "SameStep", "Disabled"])
def test_a_state_that_lacks_something_is_noticed(env: Any, how: str) -> None:
    make = (lambda: limited(env())) if how == "each" else vector_of(env, how)
    claims = moments(make, AT_WITH_STATES, more=12)
    assert claims[0], "a replay from the start of the run needs no state"
    assert sum(claims) < len(claims) / 2, "an earlier state is needed, unless it was taken between two episodes"


@pytest.mark.parametrize("env", [Complete, CalmUntilReset])
@pytest.mark.parametrize("how", ["each", "NextStep", "SameStep", "Disabled"])
def test_a_state_that_lacks_nothing_is_exact_at_every_moment(env: Any, how: str) -> None:
    if env is CalmUntilReset and how in ("NextStep", "SameStep"):
        return  # they draw seeds of their own
    make = (lambda: limited(env())) if how == "each" else vector_of(env, how)
    assert all(moments(make, AT_WITH_STATES, more=12))


def test_what_was_lost_is_said_where_it_matters(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = tiny(env_id="test_env_exactness:normalized_rewards")
    train(config, run_dir=tmp_path / "whole")
    cut_and_resume(config, tmp_path / "cut", after=120)
    assert run_differences(tmp_path / "whole", tmp_path / "cut"), "or else there is nothing to notice"
    meta = latest(tmp_path / "cut").meta
    assert meta["resume"] == "restarted"
    (why,) = meta["why_restarted"]
    assert re.fullmatch(
        "environments 0 to 2: replaying its episode gives other rewards, so the episode starts again", why
    )
    assert latest(tmp_path / "whole").meta["why_restarted"] == []
    said = f"the environments are not restored exactly: {why}"
    assert said in metadata(tmp_path / "cut")["resumed"][0]["changes"]
    assert said in caplog.messages
    result = resume_training(tmp_path / "cut", total_timesteps=288)
    assert result.stop_reason == "completed"


def test_what_is_only_suspected_keeps_the_episode_and_is_named(tmp_path: Path) -> None:
    """A count may be for a log, or decide on rewards: the episode goes on, and nothing is claimed of the rest."""
    config = tiny(
        env_id="test_env_exactness:late_curriculum", env_kwargs={"begins": 50}, n_steps=4, checkpoint_interval=24
    )
    with pytest.raises(Pulled):
        train(config, run_dir=tmp_path / "run", callbacks=[PullPlug(90)])
    before = latest(tmp_path / "run").envs["actor"]
    run, notes = _restored(tmp_path / "run")
    assert run.source.collector.restarts == 0
    assert run.source.collector._lengths.tolist() == before["lengths"].tolist()
    assert not run.source.exact
    assert any("not restored: Curriculum.episodes;" in note for note in notes)
    run.close()


def _restored(run_dir: Path) -> tuple[Run, list[str]]:
    from rl_training.runtime.workflows import restore

    return restore(run_dir)


class Pushy(gym.Env[Any, Any]):
    """Changes the action that it is given."""

    observation_space: Any = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space: Any = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=1)
        return self.place.copy(), {}

    def step(self, action: Any) -> Any:
        action *= 3.0
        self.place += action
        return self.place.copy(), float(self.place[0]), False, False, {}


def test_an_environment_that_changes_its_action_is_replayed_with_what_it_was_given(tmp_path: Path) -> None:
    config = tiny(env_id="test_env_exactness:Pushy", time_limit=13)
    train(config, run_dir=tmp_path / "whole")
    cut_and_resume(config, tmp_path / "cut", after=120)
    assert run_differences(tmp_path / "whole", tmp_path / "cut") == []
    assert latest(tmp_path / "cut").meta["resume"] == "exact"


class Strict(Walk):
    """Some actions are forbidden, by a mask that depends on the place; taking one is an error."""

    unseeded: ClassVar[Any] = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, _ = super().reset(seed=seed if self.unseeded is None else int(self.unseeded.integers(1000)))
        return obs, self._info()

    def _info(self) -> dict[str, Any]:
        self.allowed = np.array([self.place[0] > 0.0, self.place[0] < 0.3], np.int8)
        return {"action_mask": self.allowed}

    def step(self, action: Any) -> Any:
        assert self.allowed[action], f"the action {action} is forbidden"
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, self._info()


class StrictAndUnseeded(Strict):
    unseeded = np.random.default_rng()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_no_environment_is_given_an_action_that_was_not_its_own(vectorization: str, tmp_path: Path) -> None:
    config = tiny(env_id="test_env_exactness:Strict", time_limit=9, vectorization=vectorization, checkpoint_interval=24)
    train(config, run_dir=tmp_path / "whole")
    for number, after in enumerate((40, 100, 170)):
        cut_and_resume(config, tmp_path / f"cut{number}", after=after)
        assert run_differences(tmp_path / "whole", tmp_path / f"cut{number}") == []


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_replay_in_which_an_environment_raises_starts_new_episodes(vectorization: str, tmp_path: Path) -> None:
    config = tiny(env_id="test_env_exactness:StrictAndUnseeded", time_limit=9, vectorization=vectorization)
    result = cut_and_resume(config, tmp_path / "run", after=120)
    assert result.stop_reason == "completed"
    meta = latest(tmp_path / "run").meta
    assert meta["resume"] == "restarted"
    for why in meta["why_restarted"]:
        assert re.match(r"environments? [\d, to]+: replaying its episode (raised AssertionError|gives other)", why)


# Episodes without an end.


class Endless(Walk):
    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, False, info


class EndlessWithState(Complete):
    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, False, info


@pytest.fixture
def short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "LONGEST_EPISODE", 50, raising=False)
    monkeypatch.setattr(journal, "_TRIM_EVERY", 16)


@pytest.mark.usefixtures("short_memory")
def test_the_journal_of_an_endless_episode_does_not_grow() -> None:
    collector = collecting(Endless)
    exact, sizes, kept = [], [], []
    collector.start()
    for _ in range(120):
        collector.step(np.zeros(2, np.int64))
        kept.append(len(collector._keeper._actions))
        sizes.append(len(collector.state_dict()["keeper"]["actions"]))
        exact.append(collector.exact)
    collector.close()
    assert exact == [True] * 50 + [False] * 70
    assert max(sizes) == 50
    assert sizes[-1] == 0
    assert max(kept) <= 50 + 16


@pytest.mark.usefixtures("short_memory")
def test_a_run_without_ends_says_that_its_episodes_start_again(tmp_path: Path) -> None:
    config = tiny(env_id="test_env_exactness:Endless", n_steps=16, eval_episodes=1)
    with pytest.raises(Pulled):
        train(config, run_dir=tmp_path / "run", callbacks=[PullPlug(200)])
    meta = latest(tmp_path / "run").meta
    assert meta["resume"] == "restarted"
    assert meta["why_restarted"] == [
        "environments 0 to 2: its episode is longer than 50 steps, of which no more are kept"
    ]
    run, notes = _restored(tmp_path / "run")
    assert run.source.collector.lost.tolist() == [True, True, True]
    assert any("longer than 50 steps" in note for note in notes)
    run.advance()
    run.close()


@pytest.mark.usefixtures("short_memory")
def test_the_episode_before_is_forgotten_first() -> None:
    """Of 40 steps an episode and the half of the next do not fit, and the running one does."""
    assert all(moments(lambda: gym.wrappers.TimeLimit(Endless(), 40), range(35, 130, 9), more=9))


def test_a_state_of_ones_own_bounds_what_is_kept() -> None:
    collector = collecting(EndlessWithState)
    collector.start()
    for _ in range(600):
        collector.step(np.zeros(2, np.int64))
    keeper = collector.state_dict()["keeper"]
    collector.close()
    assert len(keeper["actions"]) <= 256
    assert collector.exact
