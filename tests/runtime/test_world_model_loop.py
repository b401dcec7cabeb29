"""The loop of Dreamer: what it says before it starts, when it learns, what acting carries and what is remembered."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training import Dreamer, UserError, resume_training, train_dreamer
from rl_training.algorithms.dreamer import Dreamer as Algorithm
from rl_training.data.row_memory import RowMemory
from rl_training.experiment.config import load_config
from rl_training.models.rssm import WorldState
from rl_training.models.rssm_heads import action_columns
from rl_training.ops.latents import index_of, one_hot
from rl_training.runtime.actors.actor import Steps
from rl_training.runtime.loops.world_model import WorldModelLoop
from rl_training.runtime.train import Run, build
from rl_training.testing import TinyEnv
from rl_training.testing.contract import tiny_config
from run_helpers import Pulled, PullPlug, latest, tiny


def started(**settings: Any) -> Run:
    run = build(tiny_config("dreamer", settings.pop("env", None), **settings))
    run.start()
    return run


def test_dreamer_on_pong_trains_and_resumes(tmp_path: Path) -> None:
    """2,000 steps of the preset, cut in the middle, with smaller networks and minibatches and fewer updates."""
    pytest.importorskip("ale_py", reason="the extra atari is not installed")
    small = {"size": "xxs", "depth": 2, "batch_size": 2, "batch_length": 8}
    small |= {"imagination_starts": 8, "imagination_horizon": 5}
    steps = {"total_timesteps": 2_000, "learning_starts": 400, "updates_per_step": 0.01, "buffer_size": 1_500}
    rhythm = {"checkpoint_interval": 1_000, "log_interval": 500, "eval_interval": None, "eval_episodes": 1}
    config = load_config("dreamer/atari_pong", **small, **steps, **rhythm, num_envs=4, time_limit=260)
    with pytest.raises(Pulled):
        train_dreamer(config, run_dir=tmp_path / "run", callbacks=[PullPlug(1_050)])
    assert latest(tmp_path / "run").meta["step"] == 1_000
    result = resume_training(tmp_path / "run")
    assert (result["step"], result["n_updates"]) == (2_000.0, 16.0)
    assert latest(tmp_path / "run").meta["resume"] == "exact"
    assert {"reconstruction_loss", "kl", "return_scale", "eval_return_mean_greedy"} <= set(result)


# What it says


def test_the_train_ratio_is_said_beside_the_updates(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rl_training"):
        build(load_config(tiny(algo="dreamer", updates_per_step=0.5, batch_size=16, batch_length=32))).close()
    assert "updates_per_step=0.5: a train ratio of 256 replayed steps per step" in caplog.messages


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, ["learning_rate=4e-05: is made for long runs, and this one makes 976 updates; try learning_rate=4e-4"]),
        ({"learning_rate": 4e-4}, []),
        ({"updates_per_step": 20.0}, []),
        ({"learning_starts": 9_000}, ["learning_starts=9000: this run ends at step 2000, before its first update"]),
        ({"batch_length": 2_000}, ["learning_starts=4002: this run ends at step 2000, before its first update"]),
    ],
)
def test_a_short_run_with_a_rate_for_long_ones_is_told(settings: dict[str, Any], words: list[str]) -> None:
    rhythm = {"total_timesteps": 2_000, "learning_starts": 48, "train_every": 8, "updates_per_step": 0.5}
    run = build(tiny_config("dreamer", **{"buffer_size": 10_000} | rhythm | settings))
    found = run.loop.warnings(2_000)
    run.close()
    assert len(found) == len(words)
    assert all(line.startswith(start) for line, start in zip(found, words, strict=True))


# When it learns


def test_the_first_update_waits_for_a_whole_window() -> None:
    run = started(learning_starts=0, train_every=2, updates_per_step=0.5, batch_length=5)
    updates = []
    while run.steps < 20:
        run.advance()
        updates.append((run.steps, run.algorithm.n_updates))
    run.close()
    assert updates[:6] == [(2, 0), (4, 0), (6, 0), (8, 0), (10, 0), (12, 0)]
    assert updates[6:] == [(14, 1), (16, 2), (18, 3), (20, 4)]


# What acting carries


def remembered(run: Run) -> tuple[Any, list[np.ndarray]]:
    """The replay of a run that is not full yet, and the slots of each environment, last rows included."""
    loop: Any = run.loop
    replay = loop.memory.replay
    return replay, [np.arange(count) * replay.num_envs + env for env, count in enumerate(replay._ring.counts)]


@pytest.mark.parametrize("randomly", [True, False])
@pytest.mark.parametrize("actions", ["discrete", "multi_discrete", "continuous"])
def test_states_follow_from_what_was_really_done(actions: str, randomly: bool) -> None:
    """Row by row; an episode begins with zeros, in its own environment alone. Nothing is learned meanwhile."""
    starts = {"learning_starts": 10_000 if randomly else 0, "updates_per_step": 1e-6}
    run = started(env={"actions": actions}, num_envs=3, buffer_size=1_000, **starts)
    while run.steps < 90:
        run.advance()
    replay, histories = remembered(run)
    policy: Any = run.algorithm.policy
    rssm = policy.network.world.rssm
    begun = 0
    for slots in histories:
        windows = replay.gather_windows(slots[:1], len(slots), across_episodes=True)
        last = (windows.terminated | windows.truncated)[:, 0]
        for t in range(len(slots)):
            if last[t]:
                continue  # nobody acts there
            state = rssm.initial(1)
            action = torch.zeros(1, policy.info.action_size)
            if not windows.first[t, 0]:
                deter, stoch = (torch.from_numpy(windows.records[k][t - 1].copy()) for k in ("deter", "stoch"))
                state = WorldState(deter, one_hot(stoch, rssm.size.classes))
                action = action_columns(policy.info, torch.from_numpy(windows.action[t - 1].copy()))
            begun += bool(windows.first[t, 0])
            with torch.inference_mode():
                expected = rssm.advance(state, action)
            np.testing.assert_allclose(windows.records["deter"][t], expected.numpy(), rtol=1e-4, atol=1e-5)
    run.close()
    assert begun > 6


def test_begun_episodes_have_no_past_and_the_others_keep_theirs() -> None:
    run = started(num_envs=3)
    policy = run.algorithm.policy
    rows, rng = run.source.gather(1, Steps())[0].obs, np.random.default_rng(0)
    carry = policy.initial_carry(3)
    for _ in range(2):  # before learning, nothing is remembered of a first observation
        carry = policy.act(rows, carry, explore=True, rng=rng).carry
    begun = policy.begin_episodes(carry, np.array([False, True, False]))
    fresh = policy.initial_carry(3)
    run.close()
    for name, column in begun.items():
        np.testing.assert_array_equal(column[1], fresh[name][1])
        np.testing.assert_array_equal(column[[0, 2]], carry[name][[0, 2]])
        assert not np.array_equal(column[0], fresh[name][0])


def test_an_evaluation_does_not_share_its_carry_with_training() -> None:
    run = started()
    run.advance()
    source: Any = run.source
    before = {name: column.copy() for name, column in source.actor.carry.items()}
    run.evaluate(2)
    run.evaluate(2, deterministic=True)
    for name, column in source.actor.carry.items():
        np.testing.assert_array_equal(column, before[name])
    run.close()


# What is remembered


def test_the_states_of_an_update_are_written_back_into_its_rows() -> None:
    run = started(learning_starts=0, imagination_starts=2)
    run.advance()
    learner, loop = run.algorithm, run.loop
    assert hasattr(loop, "memory")
    memory, noted = loop.memory, []
    windows_of, note_of = memory.windows, memory.note

    def windows(*arguments: Any, **options: Any) -> Any:
        drawn = windows_of(*arguments, **options)
        noted.append({"index": drawn.index.copy(), "obs": drawn.obs.copy(), "stoch": drawn.records["stoch"].copy()})
        return drawn

    def note(index: Any, *, columns: Any) -> None:
        noted[-1] |= {"to": index.copy(), "columns": {name: column.copy() for name, column in columns.items()}}
        note_of(index, columns=columns)

    memory.windows, memory.note = windows, note
    learner.update(memory)
    found = noted[-1]
    np.testing.assert_array_equal(found["to"], found["index"][1:])
    slots = memory.replay.slots_of(found["to"].reshape(-1))
    stored = memory.replay._records.columns.views(memory.replay.arrays["records"].data)
    # Of a row in several windows the last one counts.
    latest = {int(slot): k for k, slot in enumerate(slots)}
    for name, column in found["columns"].items():
        rows = column.reshape(slots.size, -1)
        for slot, k in latest.items():
            np.testing.assert_array_equal(stored[name][slot], rows[k])
    run.close()


def test_a_window_s_first_row_is_context_and_actions_come_before_their_rows() -> None:
    run = started(learning_starts=10_000)
    while run.steps < 40:
        run.advance()
    learner, loop = run.algorithm, run.loop
    assert isinstance(loop, WorldModelLoop)
    assert isinstance(loop.memory, RowMemory)
    windows = loop.memory.windows(4, np.random.default_rng(0), length=4, across_episodes=True)
    assert isinstance(learner, Algorithm)
    rows = learner.sequences(windows)
    for t in range(3):
        np.testing.assert_array_equal(rows.previous_action[t], windows.action[t])
        np.testing.assert_array_equal(rows.obs[t], windows.obs[t + 1])
        np.testing.assert_array_equal(rows.reward[t], windows.reward[t + 1])
        np.testing.assert_array_equal(rows.first[t], windows.first[t + 1])
        np.testing.assert_array_equal(rows.terminal[t], windows.terminated[t + 1])
        np.testing.assert_array_equal(rows.last[t], windows.terminated[t + 1] | windows.truncated[t + 1])
    np.testing.assert_array_equal(rows.deter, windows.records["deter"][0])
    np.testing.assert_array_equal(rows.stoch, windows.records["stoch"][0])
    run.close()


def test_dreams_start_from_as_many_different_rows_as_asked() -> None:
    run = started(imagination_starts=5, batch_size=4, batch_length=3)
    learner = run.algorithm
    assert isinstance(learner, Algorithm)
    draws = [learner.draws() for _ in range(3)]
    run.close()
    assert all(len(set(found.starts.tolist())) == 5 and found.starts.max() < 12 for found in draws)
    assert len({tuple(found.starts.tolist()) for found in draws}) > 1
    assert draws[0].prior.shape[:2] == draws[0].action.shape[:2] == (3, 5)


# How it is judged


def test_it_is_judged_by_samples_and_greedy_actions_are_beside_them() -> None:
    run = started()
    sampled, again, greedy = run.evaluate(4), run.evaluate(4), run.evaluate(4, deterministic=True)
    assert sampled == again == run.evaluate(4, deterministic=False)
    assert greedy == run.evaluate(4, deterministic=True)
    assert sampled.returns != greedy.returns
    run.close()


def test_greedy_predictions_repeat_and_sampled_ones_do_not() -> None:
    agent = Dreamer(lambda: TinyEnv("continuous"), **{"size": "xxs", "batch_size": 2, "batch_length": 3})
    obs = np.zeros((1, 3), np.float32)
    greedy = [agent.predict(obs, deterministic=True)[0].tolist() for _ in range(3)]
    sampled = [agent.predict(obs)[0].tolist() for _ in range(3)]
    assert greedy[0] == greedy[1] == greedy[2]
    assert len({str(action) for action in sampled}) == 3
    action, state = agent.predict(obs, deterministic=True)
    assert agent.predict(obs, state, deterministic=True)[0].tolist() != action.tolist()
    anew = agent.predict(obs, state, np.array([True]), deterministic=True)[0]
    assert anew.tolist() == action.tolist()
    for wrong, words in (
        ({}, "must be what predict returned, with deter, stoch, action"),
        (state | {"deter": state["deter"][:, :3]}, r"deter must be an array \(1, 256\) of float32"),
        (state | {"stoch": state["stoch"].astype(np.int64)}, r"stoch must be an array \(1, 16\) of uint8"),
    ):
        with pytest.raises(UserError, match=words):
            agent.predict(obs, wrong)


def test_latents_of_greedy_states_are_the_likeliest() -> None:
    run = started()
    policy: Any = run.algorithm.policy
    rows = run.source.gather(1, Steps())[0].obs
    carry = policy.act(rows, policy.initial_carry(2), explore=False, rng=np.random.default_rng(0)).carry
    world = policy.network.world
    with torch.inference_mode():
        tokens = world.encoder(policy.observer.tensors(rows))
        posterior = world.rssm.posterior(torch.from_numpy(carry["deter"]), tokens)
        likeliest = one_hot(posterior.argmax(dim=-1), policy.size.classes)
    np.testing.assert_array_equal(carry["stoch"], index_of(likeliest).numpy())
    run.close()
