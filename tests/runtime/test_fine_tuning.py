"""Going on online: what a run brings from another one, what minibatches are mixed of, and an exact resume."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch

from conformance import built
from rl_training import resume_training, train
from rl_training.experiment.config import ConfigError, load_config
from rl_training.experiment.registry import REGISTRY
from rl_training.runtime.loops.fine_tuning import FreshAndOld
from rl_training.runtime.loops.off_policy import OffPolicyLoop
from rl_training.testing import TinyEnv, differences, tiny_dataset
from rl_training.types import SpaceInfo, UserError
from run_helpers import cut_and_resume, latest, metrics_rows, run_differences, tiny

FINE_TUNED = [name for name, entry in REGISTRY.items() if entry.family == "offline" and name != "bc"]
EACH = pytest.mark.parametrize("algo", FINE_TUNED)


def settings(algo: str, **changes: Any) -> dict[str, Any]:
    """A tiny run on the dataset of `TinyEnv`."""
    return tiny(
        algo=algo,
        **{
            "env_id": "rl_training.testing:TinyEnv",
            "env_kwargs": {"actions": "continuous"},
            "time_limit": None,
            "dataset": "rl_training.testing:tiny_dataset",
            "done_means": "terminal",
            "total_timesteps": 60,
            "batch_size": 10,
            "vectorization": "sync",
            **changes,
        },
    )


# Of the runs that others start from, and so of these too.
SCALES = {"reward_scale": "return_range", "reward_shift": 0.5, "reward_clip": 0.6, "normalize_obs": True}


def online(algo: str, origin: Any = None, **changes: Any) -> dict[str, Any]:
    """A tiny run that gathers 96 steps, and learns from the 13th on."""
    rhythm = {"total_timesteps": 96, "learning_starts": 12, "train_every": 12, "updates_per_step": 0.5, "num_envs": 2}
    source = {"online": True} if origin is None else {"start_from": str(origin), **SCALES}
    return settings(algo, **rhythm | {"checkpoint_interval": 36} | source | changes)


def started(config: dict[str, Any]) -> Any:
    config = dict(config)
    return built(config.pop("algo"), None, **config)


@pytest.fixture(scope="module")
def origins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An offline run of each algorithm, whose rewards have the scale of its returns and a shift."""
    places = {algo: tmp_path_factory.mktemp(algo) / "offline" for algo in FINE_TUNED}
    for algo, place in places.items():
        train(settings(algo, **SCALES, learning_rate=1e-2), run_dir=place)
    return places


# What is brought along


@EACH
def test_networks_targets_optimisers_and_scales_are_those_of_the_other_run(algo: str, origins: dict[str, Path]) -> None:
    """Even where the dataset of this run is another, with scales of its own."""
    run = started(online(algo, origins[algo], normalize_obs=True, dataset="rl_training.testing:another_tiny_dataset"))
    run.close()
    there = latest(origins[algo])
    assert differences(run.algorithm.policy.policy_state(), there.policy) == []
    assert differences(run.algorithm.training_state(), there.state["algorithm"]) == []
    assert {"obs_normalizer.mean", "obs_normalizer.var"} <= there.policy.keys()
    assert there.state["algorithm"]["followers"]["critic"]
    assert float(there.state["algorithm"]["learners"]["critic"]["optimizer"]["count"]) == 60.0
    factor = there.state["parts"]["rewards"]["factor"]
    assert factor not in (0.0, 1.0)
    assert (run.loop.parts["rewards"].factor, run.loop.parts["rewards"].shift) == (factor, 0.5)
    assert run.steps == 0, "the clock counts this run's own steps"


@EACH
def test_it_learns_on_from_there(algo: str, origins: dict[str, Path], tmp_path: Path) -> None:
    result = train(online(algo, origins[algo], normalize_obs=True), run_dir=tmp_path / "run")
    assert (result["step"], result["replay_size"]) == (96.0, 96.0)
    assert result["n_updates"] == 60.0 + 42.0
    there, here = latest(origins[algo]), latest(tmp_path / "run")
    moved = [name for name, tensor in here.policy.items() if not torch.equal(tensor, there.policy[name])]
    assert moved, "the policy learned"
    assert not [name for name in moved if name.startswith("normalize_obs")], "the scale of observations did not"
    assert "episode_return_mean" in metrics_rows(tmp_path / "run")[-1]


def test_the_alias_from_implies_online(origins: dict[str, Path]) -> None:
    config = online("iql")
    del config["online"]
    loaded: Any = load_config({**config, "from": str(origins["iql"])})
    assert loaded.loop.start_from == str(origins["iql"])
    assert loaded.loop.collects
    assert not load_config(settings("iql")).loop.collects


def test_a_checkpoint_can_be_named_instead_of_a_run(origins: dict[str, Path]) -> None:
    checkpoint = origins["awac"] / "checkpoints" / "step_0"
    run = started(online("awac", checkpoint, normalize_obs=True))
    run.close()
    assert run.algorithm.n_updates == 0


# Acting


@EACH
def test_the_policy_acts_from_the_first_step_on(
    algo: str, origins: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = started(online(algo, origins[algo], normalize_obs=True))
    run.close()
    asked: list[bool] = []
    policy = type(run.algorithm.policy)
    act = policy.act

    def noted(self: Any, obs: Any, carry: Any, *, explore: bool, rng: Any) -> Any:
        asked.append(explore)
        return act(self, obs, carry, explore=explore, rng=rng)

    monkeypatch.setattr(policy, "act", noted)
    monkeypatch.setattr(policy, "act_randomly", lambda *_, **__: pytest.fail("it acted at random"))
    run = started(online(algo, origins[algo], normalize_obs=True))
    run.advance()
    run.close()
    assert asked == [True] * 6  # twelve steps of two environments
    assert run.algorithm.n_updates == 60, "and does not learn before learning_starts"


# Minibatches


def learned_from(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """A run, and for every update what it was given: observations, rewards and discounts."""
    run = started(config)
    batches: list[Any] = []
    update = run.algorithm.update

    def noted(self: Any, batch: Any) -> Any:
        batches.append((batch.obs.copy(), batch.reward.copy(), batch.terminated.copy()))
        return update(batch)

    monkeypatch.setattr(type(run.algorithm), "update", noted)
    for _ in range(5):
        run.advance()
    run.close()
    return run, batches


def outcomes(rows: Any) -> dict[bytes, tuple[Any, ...]]:
    """What came of each observation, no two of which are the same."""
    columns = zip(rows.obs, rows.reward, rows.terminated, strict=True)
    return {obs.tobytes(): tuple(outcome) for obs, *outcome in columns}


@pytest.mark.parametrize(("fraction", "old"), [(0.0, 0), (0.3, 3), (0.5, 5), (1.0, 10)])
def test_minibatches_are_mixed_as_the_fraction_says(fraction: float, old: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run, batches = learned_from(online("iql", offline_fraction=fraction, reward_scale=1.0), monkeypatch)
    known = outcomes(run.loop.dataset)
    replay = run.loop.memory.second.replay
    fresh = outcomes(replay.gather(np.arange(len(replay)), gamma=0.9))
    seen = set()
    for obs, reward, terminated in batches:
        assert len(obs) == 10
        assert sum(row.tobytes() in known for row in obs) == old
        for row, *outcome in zip(obs, reward, terminated, strict=True):
            assert (known | fresh)[row.tobytes()] == tuple(outcome), "a row stays together"
            seen.add(row.tobytes())
    assert len(batches) == 24
    assert (len(seen - known.keys()) > 20) == (fraction < 1.0)


@EACH
def test_rewards_of_both_sources_are_scaled_alike(
    algo: str, origins: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the other run's scale; of `TinyEnv`, a reward can be told from two observations and the action."""
    own = {"reward_scale": 7.0, "reward_clip": 0.6, "normalize_obs": True}
    for origin, scales in ((None, own), (origins[algo], {})):
        run, batches = learned_from(online(algo, origin, **scales), monkeypatch)
        factor, shift = (7.0, 0.0) if scales else (run.loop.parts["rewards"].factor, 0.5)
        lowest, highest = -0.6 * factor + shift, 0.6 * factor + shift
        fresh, old = run.loop.memory.second.replay, run.loop.memory.first().replay
        for rewards in (
            fresh.gather(np.arange(len(fresh)), gamma=0.9).reward.copy(),
            old.gather(np.arange(50), gamma=0.9).reward,
        ):
            raw = (rewards - shift) / factor
            assert raw.min() == pytest.approx(-0.6, rel=1e-5), "clipped before it is scaled"
            assert raw.max() <= 1e-6, "rewards of TinyEnv are never above 0"
            assert len(np.unique(raw.round(5))) > 10
        seen = np.concatenate([reward for _, reward, _ in batches])
        assert seen.min() == pytest.approx(lowest, rel=1e-4)
        assert seen.max() < highest


def test_the_scale_of_observations_stays_frozen(origins: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever comes in: here observations a hundred times as large."""
    run = started(online("td3_bc", origins["td3_bc"], normalize_obs=True))
    before = run.algorithm.observer.state_dict()
    step = run.source.collector.step

    def stretched(action: Any, records: Any) -> Any:
        given = step(action, records)
        given.obs[:] *= 100.0
        return given

    monkeypatch.setattr(run.source.collector, "step", stretched)
    for _ in range(4):
        run.advance()
    run.close()
    assert differences(run.algorithm.observer.state_dict(), before) == []
    assert np.abs(run.loop.memory.second.replay.gather(np.arange(20), gamma=0.9).obs).max() > 50.0


def test_without_an_origin_the_scale_is_the_datasets() -> None:
    run = started(online("td3_bc"))
    dataset = run.loop.dataset
    run.close()
    np.testing.assert_allclose(run.algorithm.observer.normalizer.moments.mean, dataset.obs.mean(axis=0), rtol=1e-5)


def test_no_dataset_is_needed_to_learn_from_fresh_experience_alone(origins: dict[str, Path], tmp_path: Path) -> None:
    config = online("cql", origins["cql"], normalize_obs=True, offline_fraction=0.0, dataset=None)
    result = train(config, run_dir=tmp_path / "run")
    assert result["n_updates"] == 102.0
    assert latest(tmp_path / "run").state["parts"]["rewards"]["shift"] == 0.5


# Resuming


@EACH
def test_resumes_to_the_bit_without_the_run_that_it_started_from(
    algo: str, origins: dict[str, Path], tmp_path: Path
) -> None:
    origin = tmp_path / "origin"
    shutil.copytree(origins[algo], origin)
    active = {"learning_rate_schedule": "linear", "eval_interval": 40, "eval_episodes": 1, "normalize_obs": True}
    config = online(algo, origin, **active, total_timesteps=144)
    train(config, run_dir=tmp_path / "whole")
    # It is cut, its origin is lost, and it goes on.
    moved = tmp_path / "gone"
    result = cut_and_resume(config, tmp_path / "cut", after=72, between=lambda: shutil.move(origin, moved))
    assert run_differences(tmp_path / "whole", tmp_path / "cut") == []
    assert latest(tmp_path / "cut").meta["resume"] == "exact"
    assert result["n_updates"] == 60.0 + 66.0


def test_a_resumed_run_does_not_start_from_the_other_one_again(origins: dict[str, Path], tmp_path: Path) -> None:
    config = online("iql", origins["iql"], normalize_obs=True)
    train(config, run_dir=tmp_path / "run")
    result = resume_training(tmp_path / "run", total_timesteps=144)
    assert result["n_updates"] == 60.0 + 66.0


def test_a_changed_dataset_is_refused_and_a_moved_one_is_not(origins: dict[str, Path], tmp_path: Path) -> None:
    config = online("iql", origins["iql"], normalize_obs=True)
    train(config, run_dir=tmp_path / "run")
    with pytest.raises(UserError, match="dataset: is not the one that the run was trained on"):
        resume_training(tmp_path / "run", total_timesteps=144, dataset="rl_training.testing:another_tiny_dataset")
    result = resume_training(tmp_path / "run", total_timesteps=144, dataset="test_fine_tuning:the_same_dataset")
    assert result["step"] == 144.0


def the_same_dataset(info: SpaceInfo) -> Any:
    return tiny_dataset(info)


# Mistakes


def complaint_of(config: dict[str, Any], tmp_path: Path) -> str:
    """What training says, which is one line and leaves no run behind."""
    place = tmp_path / "runs"
    with pytest.raises(UserError) as complaint:
        train(config | {"output_dir": str(place)})
    assert not place.exists() or list(place.iterdir()) == []
    message = str(complaint.value)
    assert "\n" not in message
    return message


def test_a_run_of_another_algorithm_is_refused(origins: dict[str, Path], tmp_path: Path) -> None:
    found = complaint_of(online("iql", origins["awac"], normalize_obs=True), tmp_path)
    assert found == f"start_from={str(origins['awac'])!r}: is a run of awac, but this run is of iql"


def test_a_missing_run_is_refused(tmp_path: Path) -> None:
    found = complaint_of(online("iql", tmp_path / "nowhere"), tmp_path)
    assert "nowhere" in found
    assert "start_from" in found


class WiderTinyEnv(TinyEnv):
    """The same with other bounds of the actions."""

    ACTIONS: ClassVar[dict[str, gym.Space[Any]]] = {"continuous": gym.spaces.Box(-3.0, 3.0, (2,), np.float32)}


ALONE = {"dataset": None, "offline_fraction": 0.0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_sizes": [9]}, "its hidden_sizes is [8], but that of this run is [9]"),
        ({"activation": "tanh"}, "its activation is 'relu', but that of this run is 'tanh'"),
        ({"n_critics": 3}, "its n_critics is 2, but that of this run is 3"),
        ({"normalize_obs": False}, "normalize_obs"),
        (
            {"env_id": "Pendulum-v1", "env_kwargs": {}, **ALONE},
            "its action_shape is (2,), but that of this run is (1,)",
        ),
        ({"frame_stack": 2}, "its obs_shape is (3,), but that of this run is (2, 3)"),
        (
            {"env_id": "test_fine_tuning:WiderTinyEnv", **ALONE},
            "its action_low is (-1.0, -1.0), but that of this run is (-3.0, -3.0)",
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("algo", ["iql", "cql"])
def test_a_run_of_other_networks_or_spaces_is_refused(
    algo: str, changes: dict[str, Any], words: str, origins: dict[str, Path], tmp_path: Path
) -> None:
    found = complaint_of(online(algo, origins[algo], **{"normalize_obs": True, **changes}), tmp_path)
    assert found.startswith(f"start_from={str(origins[algo])!r}: ")
    assert words in found


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dataset": None}, "offline_fraction=0.5: needs a dataset; give one, or offline_fraction=0"),
        (
            {"dataset": None, "offline_fraction": 0.0, "reward_scale": "return_range"},
            "reward_scale='return_range': needs a dataset",
        ),
        (
            {"dataset": None, "offline_fraction": 0.0, "normalize_obs": True},
            "normalize_obs=True: needs a dataset; give a dataset, start_from or false",
        ),
    ],
    ids=str,
)
def test_what_has_nowhere_to_come_from_is_said(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    assert words in complaint_of(online("iql", **changes), tmp_path)


def test_behaviour_cloning_does_not_go_on_online() -> None:
    for key in ("online", "start_from"):
        with pytest.raises(ConfigError, match=f"{key}: unknown key"):
            load_config({"algo": "bc", "env_id": "none", key: 1})


def test_the_loop_is_the_fine_tuning_one_only_where_it_is_online() -> None:
    run = started(online("awac"))
    run.close()
    assert isinstance(run.loop, OffPolicyLoop)
    assert isinstance(run.loop.memory, FreshAndOld)
    run = started(settings("awac"))
    run.close()
    assert not isinstance(run.loop, OffPolicyLoop)


@pytest.mark.parametrize(
    "change",
    [{"reward_scale": 7.0}, {"reward_shift": 0.0}, {"reward_clip": 1.0}, {"normalize_obs": False}, {"obs_clip": 3.0}],
    ids=str,
)
def test_other_scales_than_those_of_the_other_run_are_refused(origins: dict[str, Path], change: dict[str, Any]) -> None:
    (key, value) = next(iter(change.items()))
    with pytest.raises(UserError, match=rf"its {key} is .*, but that of this run is {value!r}"):
        started(online("awac", origins["awac"], **change))
