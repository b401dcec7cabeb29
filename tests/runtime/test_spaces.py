"""Observations of every kind of space: named parts of numbers, what is said of wrong ones, resume, `predict`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training import PPO, train
from rl_training.algorithms.base import LoopConfig
from rl_training.data.datasets.arrays import fit_dataset
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.data.replay_files import read_info
from rl_training.experiment.registry import REGISTRY
from rl_training.experiment.settings import RunConfig
from rl_training.models.encoders import NatureCNN
from rl_training.models.muzero import ConvMuZero
from rl_training.ops.observations import Unpacker, coded
from rl_training.runtime.doctor.env_check import check_environment
from rl_training.runtime.envs.make import EnvMaker
from rl_training.runtime.envs.memories import memory_of, not_restored
from rl_training.runtime.train import build
from rl_training.types import Choices, ObsPart, Pixels, Text, UserError
from run_helpers import cut_and_resume, run_differences
from space_worlds import OBSERVATIONS, TRAINED, Shown, config, loaded, made, own

# Observations


def test_a_mixed_observation_has_named_parts() -> None:
    info, rows = made("mixed")
    assert info.parts == (
        ObsPart("goal.0", (2,), "float32"),
        ObsPart("goal.1", (9,), "float32", Text(("x", "y", "z"), 3, words=False)),
        ObsPart("where.cell", (5,), "float32", Choices((1, 0), (3, 2), (2,))),
        ObsPart("where.room", (4,), "float32", Choices((9,), (4,), ())),
        ObsPart("view", (7, 7, 3), "uint8"),
    )
    seen, first = Unpacker(info).inputs(rows), own("mixed", 0)
    np.testing.assert_array_equal(seen["goal.0"][0], first["goal"][0])
    np.testing.assert_array_equal(seen["view"][0], first["view"])
    assert seen["where.room"][0].argmax() == first["where"]["room"] - 9
    cell = first["where"]["cell"]
    assert np.flatnonzero(seen["where.cell"][0]).tolist() == [cell[0] - 1, cell[1] + 3]
    spelled = seen["goal.1"][0].reshape(3, 3)
    assert "".join("xyz"[row.argmax()] for row in spelled if row.any()) == first["goal"][1]


def test_numbers_of_choices_and_texts_by_hand() -> None:
    choices = Choices((1, 0), (3, 2), (2,))
    assert coded([[1, 1], [3, 0]], choices).tolist() == [[1, 0, 0, 0, 1], [0, 0, 1, 1, 0]]
    assert coded(np.array(5), Choices((5,), (2,), ())).tolist() == [1, 0]
    letters, words = Text(("a", "b"), 3, words=False), Text(("go", "to"), 2, words=True)
    assert coded("ba", letters).tolist() == [0, 1, 1, 0, 0, 0]
    assert coded(["", "b"], letters).tolist() == [[0] * 6, [0, 1, 0, 0, 0, 0]]
    assert coded("to go", words).tolist() == [0, 1, 1, 0]
    assert coded(np.full((2, 2), 0.5, np.float32), Pixels(1.0)).tolist() == [[127.5] * 2] * 2
    for value, coding, said in (
        (4, Choices((1,), (3,), ()), "a whole number from 1 to 3"),
        (1.5, Choices((1,), (3,), ()), "a whole number from 1 to 3"),
        ([0, 0], choices, r"whole numbers \(2,\) within \(1, 3\), \(0, 1\)"),
        ("abab", letters, "has 4 characters; at most 3 are known"),
        ("ac", letters, "has 'c', which is none of its characters"),
        ("go away", words, "has 'away', which is none of its words"),
        (3, letters, "must be text"),
    ):
        with pytest.raises(ValueError, match=said):
            coded(value, coding)


@pytest.mark.parametrize("shows", TRAINED)
def test_a_run_on_any_observations_trains_and_resumes_to_the_bit(shows: str, tmp_path: Path) -> None:
    settings = config(
        shows,
        total_timesteps=96,
        checkpoint_interval=48,
        n_epochs=1,
        eval_episodes=1,
        normalize_obs=shows not in ("small", "float"),
    )
    train(settings, run_dir=tmp_path / "whole")
    cut_and_resume(settings, tmp_path / "cut", after=48)
    assert run_differences(tmp_path / "whole", tmp_path / "cut") == []


@pytest.mark.parametrize("algo", ["ppg", "recurrent_ppo", "impala", "dqn", "sac", "muzero", "efficientzero", "dreamer"])
def test_every_family_takes_a_mixed_observation_with_a_small_image(algo: str) -> None:
    takes = "discrete" if "discrete" in REGISTRY[algo].capabilities.actions else "continuous"
    run = build(loaded("mixed", takes, algo=algo))
    try:
        run.start()
        while run.loop.steps < 72:
            run.advance()
    finally:
        run.close()


@pytest.mark.parametrize("algo", ["dqn", "muzero", "efficientzero", "dreamer"])
@pytest.mark.parametrize("shows", ["small", "float"])
def test_who_has_an_image_network_takes_small_images_and_those_of_floats(shows: str, algo: str) -> None:
    run = build(loaded(shows, algo=algo))
    try:
        run.start()
        while run.loop.steps < 72:
            run.advance()
    finally:
        run.close()


@pytest.mark.parametrize("shows", ["discrete", *TRAINED])
def test_predict_takes_what_the_environment_shows(shows: str) -> None:
    agent = PPO("space_worlds:Shown", env_kwargs={"shows": shows}, time_limit=6, n_steps=8, seed=3, hidden_sizes=[8])
    _, rows = made(shows)
    policy = agent._run.algorithm.policy  # the rows as training sees them
    expected = policy.act(rows, policy.initial_carry(2), explore=False, rng=np.random.default_rng(0)).action + 2
    assert [int(agent.predict(own(shows, seed), deterministic=True)[0]) for seed in (0, 1)] == expected.tolist()
    batch = batched([own(shows, seed) for seed in (0, 1)], OBSERVATIONS[shows])
    np.testing.assert_array_equal(agent.predict(batch, deterministic=True)[0], expected)


def batched(rows: list[Any], space: spaces.Space[Any]) -> Any:
    """Observations as those of a vector environment: entries are batches."""
    if isinstance(space, spaces.Dict):
        return {key: batched([row[key] for row in rows], part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(batched([row[index] for row in rows], part) for index, part in enumerate(space.spaces))
    return tuple(rows) if isinstance(space, spaces.Text) else np.stack(rows)


def test_predict_says_what_is_wrong_with_an_entry() -> None:
    agent = PPO("space_worlds:Shown", time_limit=6, n_steps=8, hidden_sizes=[8])
    obs = own("mixed", 0)
    for changes, said in (
        ({"where": {"cell": [1, 1]}}, "must have 'goal.0', 'goal.1', 'where.cell', 'where.room', 'view'"),
        ({"where": {"cell": [1, 7], "room": 9}}, r"obs.where.cell=\[1, 7\]: must be whole numbers"),
        ({"goal": (obs["goal"][0], "xa")}, "obs.goal.1='xa': has 'a', which is none of its characters"),
        ({"view": np.zeros((7, 7))}, r"obs.view: has shape \(7, 7\); must be \(7, 7, 3\)"),
        ({"more": 1}, "must have 'goal.0'"),
    ):
        with pytest.raises(UserError, match=said):
            agent.predict(obs | changes)
    with pytest.raises(UserError, match=r"obs: is a ndarray; must have 'goal.0', 'goal.1'"):
        agent.predict(np.zeros(4))


class Wrong(Shown):
    """Shows something else than it says, after a few steps."""

    def __init__(self, **entries: Any) -> None:
        super().__init__("mixed")
        self.entries = entries

    def look(self) -> Any:
        return super().look() | (self.entries if self.steps == 4 else {})


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"where": {"cell": np.array([0, 0]), "room": 9}}, "observation 'where.cell' is .*whole numbers"),
        ({"where": {"cell": np.array([1, 0])}}, "observation 'where' does not have the entries cell, room"),
        ({"goal": (np.zeros(2, np.int8),)}, "observation 'goal' is a tuple; it must be a tuple of 2"),
        ({"goal": (np.zeros(3, np.int8), "x")}, r"observation 'goal.0' has the shape \(3,\), its space \(2,\)"),
        ({"goal": (np.zeros(2, np.int8), "ab")}, "observation 'goal.1' is 'ab': it has 'a', which is none"),
    ],
)
def test_an_entry_that_is_none_of_its_space_ends_the_run_by_name(entries: dict[str, Any], said: str) -> None:
    agent = PPO(lambda: Wrong(**entries), time_limit=6, n_steps=8, num_envs=1, hidden_sizes=[8])
    with pytest.raises(UserError, match=f"environment 0, step 4: {said}"):
        agent.learn(16)


@pytest.mark.parametrize(
    ("shows", "said"),
    [
        (
            "graph",
            "the observation is a Graph, which is not supported .*write a gymnasium.ObservationWrapper",
        ),
        ("unbounded_text", "takes 62,000 numbers one-hot; up to 16,384 are supported: write a gymnasium.ObservationW"),
        ("pair", "two entries of the observation have the name 'a.b'; rename one"),
    ],
)
def test_what_cannot_be_numbers_is_refused_with_what_to_write(shows: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        made(shows)


@pytest.mark.parametrize("shows", ["mixed", "text", "tuple", "float", "discrete"])
def test_doctor_finds_nothing_wrong_with_such_spaces(shows: str) -> None:
    found = list(check_environment("space_worlds:Shown", {"shows": shows}, steps=400))
    assert [finding.words for finding in found if finding.level == "PROBLEM"] == []
    assert {finding.subject: finding.words for finding in found}["resume"].startswith("is exact")


def test_frames_of_coded_observations_are_stacked() -> None:
    info, rows = made("discrete", frame_stack=2)
    assert (info.obs_shape, info.coding) == ((2, 3), Choices((5,), (3,), ()))
    np.testing.assert_array_equal(rows[0, 0], rows[0, 1])
    floats, _ = made("float", frame_stack=2)
    assert (floats.obs_shape, floats.obs_kind) == ((2, 3, 9, 8), "image")
    with pytest.raises(UserError, match="frame_stack=2: Tuple observations cannot be stacked"):
        made("tuple", frame_stack=2)


@pytest.mark.parametrize("shows", ["discrete", *TRAINED])
def test_spaces_go_through_a_checkpoint(shows: str) -> None:
    info, _ = made(shows)
    plain = json.loads(json.dumps(info.to_dict()))
    assert read_info(plain) == info
    for coding in ({"highest": 0.0}, {"firsts": [0], "counts": [2, 3], "shape": [2]}, {"symbols": "ab"}, 3):
        with pytest.raises(ValueError, match="coding of the spaces is"):
            read_info(plain | {"coding": coding})


def test_checkpoints_from_before_codings_are_read() -> None:
    info, _ = made("discrete")
    plain = json.loads(json.dumps(info.to_dict()))
    del plain["coding"]
    assert read_info(plain | {"obs_choices": [5, 3]}) == info
    parts = [{"name": "a", "shape": [2], "dtype": "float32"}]
    assert read_info(plain | {"obs_choices": None, "parts": parts}).parts == (ObsPart("a", (2,), "float32"),)


def test_a_dataset_of_a_discrete_environment_may_have_its_own_observations() -> None:
    info, _ = made("discrete")
    columns = {"action": np.array([2, 3]), "reward": np.zeros(2, np.float32), "starts": np.array([0])}
    flags = {"terminated": np.array([False, True]), "truncated": np.zeros(2, np.bool_)}
    data = OfflineDataset(obs=np.array([5, 7]), next_obs=np.array([7, 6]), **columns, **flags, source={})
    fitted = fit_dataset(data, info)
    assert fitted.obs.tolist() == [[1, 0, 0], [0, 0, 1]]
    assert fitted.next_obs.tolist() == [[0, 0, 1], [0, 1, 0]]
    wrong = OfflineDataset(obs=np.array([5, 8]), next_obs=np.array([7, 6]), **columns, **flags, source={})
    with pytest.raises(UserError, match="an observation must be a whole number from 5 to 7"):
        fit_dataset(wrong, info)


# Images


def test_images_of_floats_are_seen_as_those_of_bytes() -> None:
    info, rows = made("float")
    assert (info.obs_kind, info.obs_dtype, info.coding) == ("image", "float32", Pixels(1.0))
    np.testing.assert_allclose(rows[0], own("float", 0) * 255.0, rtol=1e-6)
    assert Unpacker(info).float_shape is None  # not scaled twice
    network = NatureCNN((3, 9, 8), orthogonal=True)
    pixels = torch.randint(0, 256, (2, 3, 9, 8), dtype=torch.uint8)
    kept = pixels.float()
    assert torch.equal(network(pixels), network(kept))
    assert torch.equal(kept, pixels.float())  # what is stored stays as it is


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1.0, 1.0, (3, 9, 9)),
        spaces.Box(0.0, 2.0, (3, 9, 9)),
        spaces.Box(0.0, 1.0, (9, 9)),
        spaces.Box(0.0, 1.0, (9, 9, 9)),
        spaces.Box(0.0, 1.0, (3, 7, 9)),
        spaces.Box(0, 255, (12, 12, 3), np.int64),
    ],
    ids=str,
)
def test_other_numbers_are_no_images(space: spaces.Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OBSERVATIONS, "these", space)
    info, _ = made("these")
    assert (info.obs_kind, info.coding) == ("vector", None)


def test_the_image_network_of_planning_shrinks_what_is_large_only() -> None:
    info, _ = made("small")
    run = build(loaded("small", algo="muzero", channels=4))
    network = run.algorithm.policy.network  # type: ignore[attr-defined]
    run.close()
    assert isinstance(network, ConvMuZero)
    assert (info.obs_shape, network.latent_shape) == ((5, 4), (4, 3, 4))


# Resume


def test_translators_are_no_memories_and_those_of_old_checkpoints_are_not_missed() -> None:
    maker = EnvMaker(RunConfig(env_id="space_worlds:Shown", env_kwargs={"shows": "mixed"}), LoopConfig())
    now = memory_of(maker.single())
    assert {name.partition(".")[0] for name in now} >= {"Shown"}
    assert not any(name.startswith("PackedObservation") for name in now)
    assert not_restored([now | {"PackedObservation.parts": 1, "FlattenObservation._action_space": 2}], [now]) == {}
    assert not_restored([now | {"Other.count": 1}], [now]).keys() == {0}


def test_the_name_of_a_temporary_file_is_no_memory() -> None:
    def memories(**attributes: Any) -> dict[str, int]:
        env = Shown("discrete")
        vars(env).update(attributes)
        return memory_of(env)

    folder = tempfile.gettempdir()
    assert memories(file=f"{folder}/tmp1a.xml") == memories(file=f"{folder}/tmp2b.xml")
    assert memories(file="tmp1a.xml") != memories(file="tmp2b.xml")
