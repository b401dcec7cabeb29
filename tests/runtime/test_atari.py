"""Atari games: what an agent sees of them, what is refused, and a run that is resumed exactly."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.data.replay import FrameReplay
from rl_training.experiment.config import Config, load_config
from rl_training.runtime.actors.collector import Collector
from rl_training.runtime.checkpoints.checkpoint import read_checkpoint, write_checkpoint
from rl_training.runtime.datasets import Behaviour, collect
from rl_training.runtime.doctor.env_repeat import check_autoreset
from rl_training.runtime.envs.atari import AtariGames
from rl_training.runtime.envs.lives import lives_lost
from rl_training.runtime.envs.make import EnvMaker, reset_each
from rl_training.runtime.train import Run, build
from rl_training.testing import checkpoint_differences
from rl_training.types import Array, UserError

pytest.importorskip("ale_py", reason="the extra atari is not installed")


def pong(**values: Any) -> Config:
    small = {"num_envs": 2, "buffer_size": 64, "learning_starts": 8, "batch_size": 4, "target_update_interval": 2}
    return load_config("dqn/atari_pong", **(small | values))


def maker(env_id: str = "ALE/Pong-v5", **values: Any) -> EnvMaker:
    config = pong(env_id=env_id, **values)
    return EnvMaker(config.run, config.loop)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    words = (
        r"^env_id='ALE/Pong-v5': needs an extra that is not installed: pip install 'rl-training\[atari\]' \(.*ale_py"
    )
    with pytest.raises(UserError, match=words):
        build(pong())


def test_an_action_takes_four_frames_and_shows_one_small_grey_one(capfd: pytest.CaptureFixture[str]) -> None:
    env = maker(frame_stack=1).single()
    obs, info = env.reset(seed=3)
    assert (env.observation_space.shape, env.observation_space.dtype) == ((84, 84), np.uint8)
    assert (obs.shape, obs.dtype, int(obs.max()) > 50) == ((84, 84), np.uint8, True)
    frames = [info["episode_frame_number"]]
    for action in (2, 2, 3):
        frames.append(env.step(action)[-1]["episode_frame_number"])
    assert np.diff(frames).tolist() == [4, 4, 4]
    env.close()
    assert capfd.readouterr() == ("", "")


def test_episodes_begin_with_up_to_30_idle_frames() -> None:
    env = maker().single()
    idle = {env.reset(seed=seed)[1]["episode_frame_number"] for seed in range(6)}
    assert len(idle) > 3
    assert idle <= set(range(1, 31))
    env.close()


def test_the_frames_of_a_stack_are_stored_once() -> None:
    run = build(pong())
    assert run.info.obs_shape == (4, 84, 84)
    assert isinstance(run.loop.parts["replay"], FrameReplay)
    run.close()


def test_time_limit_counts_actions() -> None:
    env = maker(time_limit=5).single()
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(5)] == [False, False, False, False, True]
    env.close()


def until_a_life_is_lost(games: Any) -> tuple[Any, ...]:
    """The step at which the first of two games of Breakout loses a life: to fire, and not to move."""
    _, infos = games.reset(seed=[0, 1])
    lives = infos["lives"][0]
    for _ in range(300):
        step = games.step(np.array([1, 0]))
        if step[-1]["lives"][0] < lives:
            return step  # type: ignore[no-any-return]
    raise AssertionError("no life was lost")


def breakout(**env_kwargs: Any) -> AtariGames:
    return AtariGames("ALE/Breakout-v5", 2, env_kwargs, frame_stack=4)


def test_a_lost_life_is_no_end() -> None:
    games = breakout()
    _, _, terminated, truncated, infos = until_a_life_is_lost(games)
    assert not (terminated | truncated).any()
    assert "life_lost" not in infos
    games.close()


def test_a_lost_life_is_an_end_for_learning_if_asked_for() -> None:
    """The game goes on, but its transition says terminated, the stack begins anew, and the return is the game's."""
    config = pong(env_id="ALE/Breakout-v5", env_kwargs={"terminal_on_life_loss": True, "repeat_action_probability": 0})
    maker = EnvMaker(config.run, config.loop)
    envs = maker.vector(2)
    collector = Collector(envs, maker.describe(envs), np.random.default_rng(0))
    collector.start()
    ends, frames = [], []
    for t in range(300):
        step = collector.step(np.array([1 + t % 3, 0]))
        ends.append(step.terminated.copy())
        frames.append(collector.obs[0])
        if step.terminated[0]:
            break
    assert ends[-1].tolist() == [True, False]
    assert not np.any(ends[:-1])
    newest_alone = [(stack == stack[3]).all() for stack in frames]
    assert newest_alone[-1]
    assert not all(newest_alone)
    assert collector.metrics()["episodes"] == 0.0
    after = collector.step(np.array([1, 0]))
    assert (after.obs[0] == frames[-1]).all()
    assert not after.terminated.any()
    collector.close()


def test_lives_are_counted_anew_in_every_game() -> None:
    """The last one ends with the game, which is no lost life any more; in the next game they count again."""
    games = breakout(terminal_on_life_loss=True)
    games.reset(seed=[0, 1])
    lost, over, stacks = [], False, []
    while not over:
        obs, _, terminated, _, infos = games.step(np.array([1 + len(lost) % 3, 0]))
        lost.append(bool(infos["life_lost"][0]))
        stacks.append(obs[0])
        over = bool(terminated[0])
        assert len(lost) < 2_000
    assert (sum(lost), lost[-1]) == (4, False)
    assert (stacks[-1][:3] == stacks[-2][1:]).all()
    games.reset(seed=[2, 3], options={"reset_mask": np.array([True, False])})
    assert any(games.step(np.array([1, 0]))[-1]["life_lost"][0] for _ in range(300))
    games.close()


def walks(actions: list[int], seeds: list[int], **env_kwargs: Any) -> Array:
    """What two games of Breakout show `[2, T, ...]` that take the same actions."""
    games = breakout(noop_max=0, **env_kwargs)
    games.reset(seed=seeds)
    shown = [games.step(np.full(2, action))[0] for action in actions]
    games.close()
    return np.stack(shown, axis=1)


def test_actions_stick_as_often_as_the_environment_says() -> None:
    actions = [1, *[2, 3, 3, 2, 2] * 8]
    plain = walks(actions, [0, 1], repeat_action_probability=0.0)
    assert (plain[0] == plain[1]).all()
    sticky = walks(actions, [0, 1])  # a quarter, says the id
    assert (sticky[0] != sticky[1]).any()
    idle = walks([0] * len(actions), [0, 1], repeat_action_probability=0.0)
    stuck = walks(actions, [0, 1], repeat_action_probability=1.0)  # nothing but the action before the first
    assert (stuck == idle).all()
    assert (plain != idle).any()


def test_a_stack_begins_with_its_first_frame_alone() -> None:
    games = breakout()
    obs, _ = games.reset(seed=[3, 4])
    assert all((obs[:, k] == obs[:, 3]).all() for k in range(3))
    first = obs[:, 3].copy()
    obs = games.step(np.array([2, 3]))[0]
    assert (obs[:, :3] == first[:, None]).all()
    assert (obs[:, 3] != first).any()
    games.close()


def test_only_the_masked_games_begin_anew_from_the_seeds_at_their_places() -> None:
    games, other = breakout(), breakout()
    games.reset(seed=[3, 4])
    obs = games.step(np.array([2, 3]))[0]
    again, _ = games.reset(seed=[7, 9], options={"reset_mask": np.array([False, True])})
    fresh, _ = other.reset(seed=[0, 9])
    assert (again[0] == obs[0]).all()
    assert (again[1] == fresh[1]).all()
    for both in (games, other):
        both.close()


@pytest.mark.parametrize("frame_stack", [1, 4])
def test_one_game_in_a_process_of_its_own_is_the_same_game(frame_stack: int) -> None:
    """`vectorization: async` steps plain environments; stacks begin anew with every life there too."""
    shown: list[Array] = []
    lost: list[Array] = []
    kwargs = {"terminal_on_life_loss": True}
    for vectorization in ("auto", "async"):
        envs = maker("ALE/Breakout-v5", vectorization=vectorization, env_kwargs=kwargs, frame_stack=frame_stack).vector(
            2
        )
        steps = [(reset_each(envs, [3, 4]), {"life_lost": np.zeros(2)})]
        steps += [envs.step(np.array([1 + t % 3, 0]))[::4] for t in range(60)]
        shown.append(np.stack([obs for obs, _ in steps]))
        lost.append(np.stack([lives_lost(infos, 2) for _, infos in steps]))
        envs.close()
    assert lost[0].any()
    assert (lost[0] == lost[1]).all()
    assert (shown[0] == shown[1]).all()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"env_id": "ALE/Pon-v5"}, r"env_id='ALE/Pon-v5': unknown environment; did you mean 'ALE/Pong-v5'\?"),
        ({"env_kwargs": {"frameskip": 2}}, "env_kwargs.frameskip=2: Atari games come preprocessed, and take repeat_"),
        (
            {"env_kwargs": {"obs_type": "ram"}},
            "env_kwargs.obs_type='ram': .* terminal_on_life_loss; .* module:function",
        ),
        ({"env_kwargs": {"repeat_action_probability": "often"}}, "probability='often': must be a number from 0"),
        ({"env_kwargs": {"repeat_action_probability": 3}}, "probability=3: must be a number from 0 to 1"),
        ({"env_kwargs": {"terminal_on_life_loss": "maybe"}}, "terminal_on_life_loss='maybe': must be true or false"),
        ({"env_kwargs": {"noop_max": -5}}, "noop_max=-5: must be a whole number from 0"),
        ({"env_kwargs": {"noop_max": 1.5}}, "noop_max=1.5: must be a whole number"),
        ({"env_kwargs": {"max_num_frames_per_episode": 0}}, "episode=0: must be a whole number from 1"),
        ({"env_id": "PongNoFrameskip-v4"}, "NoFrameskip-v4': Atari games come preprocessed as 'ALE/Pong-v5'"),
        ({"algo": "sac"}, "algo='sac': cannot work with the discrete actions of ALE/Pong-v5, only with continuous"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value),
)
def test_mistakes_are_said(values: dict[str, Any], words: str) -> None:
    base = pong() if "algo" not in values else load_config("sac", env_id="ALE/Pong-v5", num_envs=1)
    with pytest.raises(UserError, match=words):
        build(base.replace(**values))


def test_what_gymnasium_says_of_a_game_is_accepted() -> None:
    """The arguments that an environment made by `gymnasium.make` carries with it."""
    import gymnasium as gym

    maker()  # makes the games known
    kwargs = dict(gym.spec("ALE/Pong-v5").kwargs)
    assert kwargs["frameskip"] == 4
    env = maker(env_kwargs=kwargs).single()
    before = env.reset(seed=0)[1]["episode_frame_number"]
    assert env.step(0)[-1]["episode_frame_number"] == before + 4
    env.close()


def test_a_dataset_is_collected_from_a_game() -> None:
    dataset = collect("ALE/Pong-v5", [Behaviour()], steps=12)
    assert (dataset.obs.shape, dataset.obs.dtype) == ((12, 84, 84), np.uint8)


def test_a_game_that_was_made_to_be_seen_is_accepted() -> None:
    env = maker(env_kwargs={"render_mode": "rgb_array"}, frame_stack=1).single()
    assert env.reset(seed=0)[0].shape == (84, 84)
    env.close()


def test_a_game_keeps_its_promises() -> None:
    """What the doctor says of it, with lives that count as ends."""
    config = pong(env_id="ALE/Breakout-v5", env_kwargs={"terminal_on_life_loss": True}, time_limit=50)
    checked = EnvMaker(config.run, config.loop)
    envs = checked.vector(1)
    info = checked.describe(envs)
    envs.close()
    level, words = check_autoreset(checked, info, 120)
    assert (level, words) == ("ok", "transitions over 6 ends of episodes equal those of plain loops")


def advanced(run: Run, folder: Path, steps: int) -> Any:
    while run.steps < steps:
        run.advance()
    return read_checkpoint(write_checkpoint(folder / f"step_{run.steps}", run.snapshot()))


def test_pong_learns_and_resumes_to_the_bit(tmp_path: Path) -> None:
    straight, resumed = build(pong(time_limit=11)), build(pong(time_limit=11))
    straight.start()
    saved = advanced(straight, tmp_path, 32)
    assert straight.algorithm.n_updates == 6
    assert (straight.metrics["episodes"], saved.meta["resume"]) == (2.0, "exact")
    resumed.load(saved)
    assert resumed.source.exact
    ends = [advanced(run, tmp_path / name, 48) for name, run in (("straight", straight), ("resumed", resumed))]
    assert straight.metrics["n_updates"] == 10.0
    assert checkpoint_differences(*ends) == []
    assert checkpoint_differences(saved, ends[0])
    for run in (straight, resumed):
        run.close()
