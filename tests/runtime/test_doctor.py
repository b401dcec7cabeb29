"""The doctor: what it says of the machine and of good environments, and that it finds each fault of broken ones."""

from __future__ import annotations

import dataclasses
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from click.testing import CliRunner, Result
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_training import UserError, __version__
from rl_training.cli import cli
from rl_training.runtime import extras
from rl_training.runtime.actors.collector import Collector
from rl_training.runtime.doctor import report
from rl_training.runtime.doctor.env_check import check_environment, complaints_of
from rl_training.runtime.doctor.report import Finding, check_machine
from rl_training.runtime.envs.ids import missing_extra
from rl_training.types import Step
from run_helpers import SavableWalks, UnseededWalk, Walk, limited_walk, savable_walks, walks

STEPS = 360  # of which a third is played at random
ENOUGH = 6_000  # for every check, whatever an environment needs


def findings(env: Any, steps: int = STEPS, **env_kwargs: Any) -> list[Finding]:
    return list(check_environment("under test", env_kwargs, steps=steps, env_factory=env))


def problems(env: Any, steps: int = STEPS, **env_kwargs: Any) -> dict[str, str]:
    """The words of each subject that has a problem."""
    return {found.subject: found.words for found in findings(env, steps, **env_kwargs) if found.level == "PROBLEM"}


def found(env: Any, subject: str, steps: int = STEPS) -> tuple[str, str]:
    """Level and words of the one finding about a subject."""
    (finding,) = [finding for finding in findings(env, steps) if finding.subject == subject]
    return finding.level, finding.words


def limited(make: Any, steps: int = 11) -> Any:
    return lambda **kwargs: gym.wrappers.TimeLimit(make(**kwargs), steps)


# Good environments.


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Taxi-v4"])
def test_environments_of_gymnasium_are_fine(env_id: str) -> None:
    all_of_them = list(check_environment(env_id, {}, steps=ENOUGH))
    assert {found.level for found in all_of_them} == {"ok"}
    subjects = [found.subject for found in all_of_them]
    assert subjects == [
        *("actions", "observation", "truncation", "reward", "speed", "determinism", "reset", "autoreset", "resume")
    ]


def test_a_good_environment_of_ones_own_is_fine() -> None:
    all_of_them = findings(limited_walk)
    assert {found.level for found in all_of_them} == {"ok"}
    words = {found.subject: found.words for found in all_of_them}
    assert words["resume"] == "is exact, by replaying the running episodes"
    assert "a TimeLimit of 11 steps" in words["truncation"]
    assert "equal those of plain loops" in words["autoreset"]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_good_vector_environments_of_ones_own_are_fine(mode: str) -> None:
    def make(num_envs: int) -> SavableWalks:
        return savable_walks(num_envs, mode)

    all_of_them = findings(make, ENOUGH)
    assert {found.level for found in all_of_them if "both flags" not in found.words} == {"ok"}
    words = {found.subject: found.words for found in all_of_them}
    assert words["autoreset"].startswith(AutoresetMode(mode).name)
    assert words["resume"] == "is exact, by its own get_state and set_state"


class ManySpaces(Walk):
    """A Dict of a vector and an image, and two choices of which a mask forbids some."""

    def __init__(self, masked: bool = True) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Dict(
            {"place": Walk.observation_space, "picture": gym.spaces.Box(0, 255, (4, 4, 1), np.uint8)}
        )
        self.action_space = gym.spaces.MultiDiscrete([3, 2])
        self.masked = masked

    def _info(self) -> dict[str, Any]:
        return {"action_mask": (np.array([0, 1, 0]), np.array([1, 1]))} if self.masked else {}

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**options)[0], self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert not self.masked or action[0] == 1, "a forbidden action"
        obs, reward, terminated, truncated, _ = super().step(action[1])
        return obs, reward, terminated, truncated, self._info()

    def observe(self) -> Any:
        return {"place": super().observe(), "picture": np.full((4, 4, 1), 7, np.uint8)}


@pytest.mark.parametrize("masked", [True, False])
def test_many_spaces_and_masks_are_looked_at(masked: bool) -> None:
    all_of_them = findings(limited(ManySpaces), masked=masked)
    assert {found.level for found in all_of_them if found.subject != "truncation"} == {"ok"}
    assert len(all_of_them) >= 9


# Broken environments, each in one way.


class WithObservation(Walk):
    """A walk that shows something else after a few steps."""

    space: ClassVar[Any] = gym.spaces.Box(-100.0, 100.0, (2,), np.float32)

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = self.space
        self.shown = 0

    def wrong(self) -> Any:
        raise NotImplementedError

    def observe(self) -> Any:
        self.shown += 1
        return super().observe() if self.shown < 5 else self.wrong()


def showing(value: Any, space: Any = WithObservation.space) -> Any:
    class Wrong(WithObservation):
        def wrong(self) -> Any:
            return value

    Wrong.space = space
    return limited(Wrong)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (np.array([0.0, 100.5], np.float32), r"an observation\[1\] was above its bound 100"),
        (np.array([-101.0, 0.0], np.float32), r"an observation\[0\] was below its bound -100"),
        (np.array([np.nan, 0.0], np.float32), "holds nan or infinity"),
    ],
)
def test_observations_outside_their_space_are_found(value: Any, complaint: str) -> None:
    wrong = [f for f in findings(showing(value)) if f.subject == "observation"]
    assert [finding.level for finding in wrong] == ["PROBLEM"]
    assert re.search(complaint, wrong[0].words)
    wrong_ones, all_of_them = re.findall(r"\((\d+) of (\d+) times\)", wrong[0].words)[0]
    assert int(all_of_them) > STEPS // 3
    assert int(wrong_ones) == int(all_of_them) - 4, "the first four were right"


BOX = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
BYTES = gym.spaces.Box(0, 255, (2,), np.uint8)


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (BOX, np.zeros(2, np.float32), []),
        (BOX, np.array([0.0, 1.0 + 1e-7], np.float32), []),
        (BOX, np.zeros(2), [("note", "an observation has dtype float64, its space float32; it is converted")]),
        (BOX, [0.0, 0.0], [("note", "an observation is a list, not an array")]),
        (BOX, np.zeros(3, np.float32), [("PROBLEM", "an observation has the shape (3,), its space (2,)")]),
        (BYTES, np.zeros(2), [("PROBLEM", "an observation has dtype float64, its space uint8")]),
        (
            gym.spaces.Dict({"a": BOX, "b": BOX}),
            {"a": np.zeros(2, np.float32)},
            [("PROBLEM", "an observation does not have the entries a, b")],
        ),
        (
            gym.spaces.Dict({"a": gym.spaces.Dict({"b": BOX})}),
            {"a": {"b": np.full(2, 2.0, np.float32)}},
            [("PROBLEM", "observation 'a.b'[0] was above its bound 1")],
        ),
        (gym.spaces.Discrete(3), 3, [("PROBLEM", "an observation is not in its space Discrete(3)")]),
    ],
)
def test_what_is_said_of_an_observation(space: Any, value: Any, expected: list[tuple[str, str]]) -> None:
    assert list(complaints_of(space, value)) == expected


def test_a_wrong_shape_is_found_in_a_run() -> None:
    assert "observation" in problems(showing(np.zeros((2, 1), np.float32)))


class WithReward(Walk):
    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, self.reward(), *rest

    def reward(self) -> Any:
        raise NotImplementedError


def paying(value: Any) -> Any:
    class Paying(WithReward):
        def reward(self) -> Any:
            return value

    return limited(Paying)


def test_rewards_that_are_no_numbers_are_found() -> None:
    assert problems(paying(float("nan")))["reward"] == "was nan at step 1, and not finite 120 times"
    assert "not finite" in problems(paying(float("-inf")))["reward"]
    assert problems(paying(np.ones(1)))["reward"] == "is a ndarray of shape (1,); it must be a number"
    assert problems(paying(None))["reward"] == "is a NoneType; it must be a number"


def test_the_scale_of_rewards_is_said() -> None:
    assert found(limited_walk, "reward")[0] == "ok"
    level, words = found(paying(-2500.0), "reward")
    assert (level, words) == (
        "note",
        "min -2.5e+03, mean -2.5e+03, max -2.5e+03, standard deviation 0: large; normalize_reward may help",
    )
    assert found(paying(0), "reward")[0] == "note"


class Endless(Walk):
    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = super().step(action)
        return obs, reward, False, False, info


class Deaf(gym.Wrapper[Any, Any, Any, Any]):
    """Passes no end of an episode on."""

    def step(self, action: Any) -> Any:
        obs, reward, _, _, info = self.env.step(action)
        return obs, reward, False, False, info


def test_episodes_that_never_end_are_found() -> None:
    assert "no episode ended in 120 random steps, with no TimeLimit" in problems(Endless)["truncation"]
    assert found(limited(Endless, 500), "truncation")[0] == "note", "it would end, but later"
    assert found(limited(Endless, 100), "truncation")[0] == "ok"
    wrong = problems(lambda: Deaf(gym.wrappers.TimeLimit(Endless(), 20)))
    assert "its TimeLimit has no effect" in wrong["truncation"]


class Flags(Endless):
    """Ends after seven steps with these flags."""

    def __init__(self, terminated: Any, truncated: Any) -> None:
        super().__init__()
        self.flags, self.time = (terminated, truncated), 0

    def reset(self, **options: Any) -> Any:
        self.time = 0
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        self.time += 1
        return obs, reward, *(self.flags if self.time == 7 else (False, False)), {}


def test_flags_are_looked_at() -> None:
    assert found(lambda: Flags(True, False), "truncation") == (
        "ok",
        "17 episodes of 7 to 7 steps: 17 terminated, 0 truncated; no TimeLimit",
    )
    assert "0 terminated, 17 truncated" in found(lambda: Flags(False, np.True_), "truncation")[1]
    both = [f for f in findings(lambda: Flags(True, True)) if f.subject == "truncation"]
    assert [(f.level, f.words) for f in both][1] == (
        "note",
        "both flags were set at 17 of these ends; terminated has priority",
    )
    assert problems(lambda: Flags(1, False))["truncation"] == "terminated is a int; it must be a bool"


def test_an_unseeded_environment_is_found_and_is_not_resumed_exactly() -> None:
    found_here = {f.subject: f for f in findings(limited(UnseededWalk))}
    assert found_here["determinism"].level == "PROBLEM"
    assert "two copies show different observations after reset(seed=1)" in found_here["determinism"].words
    assert found_here["reset"].level == "PROBLEM"
    assert "differs in the first observation" in found_here["reset"].words
    assert found_here["autoreset"].level == "PROBLEM"
    assert found_here["resume"].level == "note"
    assert "is not exact" in found_here["resume"].words


class SharedNoise(Walk):
    """All copies draw from one generator; a reset starts it again."""

    noise_source: ClassVar[np.random.Generator] = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        shown = super().reset(seed=seed)
        type(self).noise_source = np.random.default_rng(seed)
        return shown

    def step(self, action: Any) -> Any:
        self.place = self.place + type(self).noise_source.normal(0.0, 0.05, 2)
        return super().step(action)


def test_copies_that_share_what_they_should_not_are_found() -> None:
    wrong = problems(limited(SharedNoise))
    assert "differ in observation at step 1" in wrong["determinism"]
    assert "differs from a plain loop" in wrong["autoreset"]
    assert "reset" not in wrong, "one copy alone repeats"


def test_a_collector_that_took_resets_for_successors_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Collector.step

    def wrong(self: Collector, action: Any) -> Step:
        return dataclasses.replace(right(self, action), next_obs=self.obs)

    monkeypatch.setattr(Collector, "step", wrong)
    assert re.fullmatch(
        r"in a vector of 3 the next_obs differs from a plain loop at step \d+", problems(limited_walk)["autoreset"]
    )


class SeededOnce(Walk):
    """Takes the first seed that it is given, and no other."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        given, self.seeded = None if hasattr(self, "seeded") else seed, True
        return super().reset(seed=given)


def test_a_reset_that_does_not_repeat_is_found() -> None:
    wrong = problems(limited(SeededOnce))
    assert wrong["reset"] == "an episode after reset(seed=7) does not repeat: it differs in the first observation"
    assert "determinism" not in wrong, "two copies that are treated alike are alike"


class WearsOut(Walk):
    """Every step counts more than the one before, over all episodes."""

    def __init__(self) -> None:
        super().__init__()
        self.age = 0

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        self.age += 1
        return obs, reward + self.age, *rest


def test_an_episode_that_repeats_only_at_first_is_found() -> None:
    assert problems(limited(WearsOut))["reset"].endswith("it differs in reward at step 1")


class ForgetsItsWind(Walk):
    """A state that lacks something: what is brought back looks right and goes on differently."""

    wind = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        shown = super().reset(seed=seed, options=options)
        self.wind = float(self.np_random.normal())
        return shown

    def step(self, action: Any) -> Any:
        self.wind += 0.1
        self.place = self.place + 0.1 * self.wind
        return super().step(action)

    def get_state(self) -> dict[str, Any]:
        return {"place": self.place}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.place = state["place"]


def test_a_state_that_lacks_something_is_found() -> None:
    wrong = problems(limited(ForgetsItsWind), ENOUGH)
    assert re.fullmatch(
        r"is not exact: environments? .*: going on from an earlier get_state gives other observations and rewards.*, "
        "so the episode starts again",
        wrong["resume"],
    )


def test_vectors_that_cannot_be_asked_are_said_not_to_resume_exactly() -> None:
    level, words = found(walks, "resume")
    assert level == "note"
    assert "no get_state" in words


class Lying(SyncVectorEnv):
    """Says that it resets itself in another way than it does."""

    def __init__(self, num_envs: int, does: AutoresetMode, says: AutoresetMode) -> None:
        super().__init__([limited_walk] * num_envs, autoreset_mode=does)
        self.metadata = self.metadata | {"autoreset_mode": says}


@pytest.mark.parametrize(
    ("does", "says", "complaint"),
    [
        (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, "is not its reset"),
        (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, "returns no final_obs"),
    ],
)
def test_vectors_that_do_not_reset_as_they_say_are_found(
    does: AutoresetMode, says: AutoresetMode, complaint: str
) -> None:
    def make(num_envs: int) -> Lying:
        return Lying(num_envs, does, says)

    assert complaint in problems(make)["autoreset"]


class ResetsAll(SyncVectorEnv):
    """Takes no notice of a reset_mask."""

    def __init__(self, num_envs: int) -> None:
        super().__init__([limited_walk] * num_envs, autoreset_mode=AutoresetMode.DISABLED)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=seed)


def test_a_reset_mask_that_is_not_kept_is_found() -> None:
    def make(num_envs: int) -> ResetsAll:
        return ResetsAll(num_envs)

    assert "changes the others too" in problems(make)["autoreset"]


class Raises(Walk):
    def __init__(self, where: str) -> None:
        super().__init__()
        if where == "init":
            raise OSError("no port is free")
        self.where = where

    def reset(self, **options: Any) -> Any:
        if self.where == "reset":
            raise KeyError("start")
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        if self.where == "step":
            raise ZeroDivisionError("division by zero")
        return super().step(action)[:4] if self.where == "four" else super().step(action)


@pytest.mark.parametrize(
    ("where", "subject", "complaint"),
    [
        ("init", "make", "making it raised OSError: no port is free"),
        ("reset", "step", "reset raised KeyError: 'start'"),
        ("step", "step", "reset or step raised ZeroDivisionError: division by zero"),
        ("four", "step", "step returned 4 values; it must return (observation, reward, terminated, truncated, info)"),
    ],
)
def test_what_an_environment_raises_is_one_line(where: str, subject: str, complaint: str) -> None:
    wrong = problems(Raises, where=where)
    assert list(wrong) == [subject], "there is nothing more to look at"
    assert complaint in wrong[subject]


class OnlyOne(Walk):
    """There can be no second one while the first is open."""

    taken: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        if type(self).taken:
            raise OSError("the device is busy")
        type(self).taken = True

    def close(self) -> None:
        type(self).taken = False


def test_an_environment_of_which_there_can_be_one_only_is_found() -> None:
    wrong = problems(limited(OnlyOne))
    OnlyOne.taken = False
    assert wrong["determinism"] == "could not be checked: OSError: the device is busy"
    assert "observation" not in wrong


class WithActions(Walk):
    def __init__(self, space: Any) -> None:
        super().__init__()
        self.action_space = space

    def step(self, action: Any) -> Any:
        return super().step(0)


def test_the_bounds_of_actions_are_looked_at() -> None:
    def acting(space: Any) -> Any:
        return limited(lambda: WithActions(space))

    box = gym.spaces.Box
    assert found(acting(box(-2.0, 2.0, (3,))), "actions")[0] == "ok"
    level, words = found(acting(box(np.array([-1.0, 0.0]), np.array([1.0, 5.0]), dtype=np.float64)), "actions")
    assert level == "note"
    assert "not symmetric (0 to 5)" in words
    assert "unbounded" in problems(acting(box(-np.inf, np.inf, (1,))))["spaces"]
    assert "Tuple" in problems(acting(gym.spaces.Tuple([gym.spaces.Discrete(2)])))["spaces"]


class Slow(Walk):
    """Takes its time for the first steps of all, which are the ones that are timed."""

    taken: ClassVar[int] = 0

    def step(self, action: Any) -> Any:
        type(self).taken += 1
        time.sleep(0.006 if type(self).taken <= 10 else 0.0)
        return super().step(action)


def test_a_slow_environment_is_said_to_be() -> None:
    level, words = found(limited(Slow), "speed", steps=10)
    assert level == "note"
    assert 0 < float(words.split()[0].replace(",", "")) < 200


class Counted(Walk):
    """Counts the steps of all copies."""

    taken: ClassVar[int] = 0

    def step(self, action: Any) -> Any:
        type(self).taken += 1
        return super().step(action)


class CountedWithState(Counted):
    def get_state(self) -> dict[str, Any]:
        return {"place": self.place}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.place = state["place"]


@pytest.mark.parametrize("make", [Counted, CountedWithState])
@pytest.mark.parametrize("steps", [1, 10, 60, 150, 1_000, ENOUGH])
def test_all_checks_together_keep_to_their_number_of_steps(make: Any, steps: int) -> None:
    Counted.taken = CountedWithState.taken = 0
    seen = findings(limited(make), steps)
    assert make.taken <= steps
    left_out = {finding.subject: finding.words for finding in seen if "is left out" in finding.words}
    said = "is left out: there are too few steps for it; try --steps"
    assert all(words.startswith(said) for words in left_out.values())
    if steps == ENOUGH:
        assert left_out == {}
        assert make.taken > steps / 2
    if steps == 60:
        assert left_out.keys() == {"determinism", "reset", "autoreset", "resume"}


def test_the_number_of_steps_that_is_named_is_enough() -> None:
    for make in (Counted, CountedWithState):
        words = [finding.words for finding in findings(limited(make), 1) if "left out" in finding.words]
        needed = [int(re.findall(r"--steps (\d+)", said)[0]) for said in words]
        assert len(needed) == 4
        assert not [finding for finding in findings(limited(make), max(needed)) if "left out" in finding.words]


# The machine.


def machine() -> dict[str, Finding]:
    return {found.subject: found for found in check_machine()}


def test_the_machine_is_described() -> None:
    import torch

    seen = machine()
    assert seen["rl_training"].words == __version__
    assert seen["torch"].words == torch.__version__.split("+")[0] or seen["torch"].words == torch.__version__
    assert seen["numpy"].words == np.__version__
    assert seen["python"].words == ".".join(map(str, sys.version_info[:3]))
    assert "torch would use 1" in seen["threads"].words
    assert seen["device"].level == "ok"
    assert all(found.level != "PROBLEM" for found in seen.values())


def test_extras_are_present_or_named_with_their_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "EXTRAS", {"plot": "pytest", "mujoco": "no-such-distribution"})
    seen = machine()
    assert seen["plot"].words.startswith(f"extra is installed (pytest {pytest.__version__}")
    assert (seen["mujoco"].level, seen["mujoco"].words) == (
        "note",
        "extra is not installed: pip install 'rl-training[mujoco]'",
    )


def test_there_is_one_table_of_extras_and_it_is_that_of_the_package() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    section = text.partition("[project.optional-dependencies]\n")[2].partition("\n\n")[0]
    declared = dict(re.findall(r"^(\w+) = \[(.*?)\]$", section, re.MULTILINE | re.DOTALL))
    assert set(extras.EXTRAS) == set(declared) - {"dev"}
    for extra, distribution in extras.EXTRAS.items():
        assert distribution in declared[extra]
        error = ModuleNotFoundError(f"No module named {distribution!r}")
        words = f"needs an extra that is not installed: pip install 'rl-training[{extra}]' ({error})"
        assert missing_extra(str(error)) == words


def test_a_package_that_cannot_be_imported_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)  # type: ignore[arg-type]
    seen = machine()
    assert seen["numba"].level == "PROBLEM"
    assert "cannot be imported: ModuleNotFoundError" in seen["numba"].words
    assert seen["torch"].level == "ok"


def test_a_cache_that_cannot_be_written_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import numba

    assert machine()["numba cache"].level == "ok"

    @numba.njit
    def uncached() -> int:
        return 1

    monkeypatch.setattr("rl_training.ops.kernels.returns.gae_kernel", uncached)
    seen = machine()["numba cache"]
    assert seen.level == "note"
    assert "NUMBA_CACHE_DIR" in seen.words


# The command.


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", *arguments], catch_exceptions=False)


def test_the_command_says_that_all_is_well() -> None:
    result = call("FrozenLake-v1", "is_slippery=false")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert all(line.split()[0] in ("ok", "note") for line in lines)
    assert any(line.split()[:2] == ["ok", "resume"] for line in lines)
    assert call().output.splitlines()[0].split()[:2] == ["ok", "python"]


def test_the_command_fails_where_there_is_a_problem() -> None:
    result = call("test_doctor:Endless", "--steps", "50")
    assert result.exit_code == 1
    assert "PROBLEM  truncation" in result.output
    assert result.output.splitlines()[-1] == "1 problem"


def test_arguments_reach_the_environment() -> None:
    assert "reset or step raised ZeroDivisionError" in call("test_doctor:Raises", "where=step").output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["CartPol-v1"], "unknown environment; did you mean 'CartPole-v"),
        (["test_doctor:Nothing"], "registers no id 'Nothing' and has no function of that name"),
        (["FrozenLake-v1", "slippery=1"], "unexpected keyword argument 'slippery'"),
        (["FrozenLake-v1", "slippery"], "given as key=value"),
    ],
)
def test_a_users_mistake_is_one_message(arguments: list[str], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        call(*arguments)
