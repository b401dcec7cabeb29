"""The offline loop: which transitions it learns from, in which units and scales, and that it resumes to the bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from conformance import built
from rl_training import resume_training, train
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.experiment.config import load_config
from rl_training.experiment.registry import REGISTRY
from rl_training.runtime.loops.offline import OfflineLoop, _build_offline_dataset
from rl_training.testing import tiny_dataset
from rl_training.types import SpaceInfo, UserError
from run_helpers import Recording, cut_and_resume, latest, metrics_rows, run_differences, tiny

OFFLINE = [name for name, entry in REGISTRY.items() if entry.family == "offline"]
WITH_REWARDS = [name for name in OFFLINE if name != "bc"]
TINY_DATA: dict[str, Any] = {"dataset": "rl_training.testing:tiny_dataset"}


def settings(algo: str, **changes: Any) -> dict[str, Any]:
    """A tiny run on the dataset of `TinyEnv`."""
    known = {} if algo == "bc" else {"done_means": "terminal"}
    place = {"env_id": "rl_training.testing:TinyEnv", "env_kwargs": {"actions": "continuous"}}
    return tiny(algo=algo, **place | {"time_limit": None} | TINY_DATA | known | changes)


def started(algo: str, **changes: Any) -> Any:
    config = settings(algo, **changes)
    return built(config.pop("algo"), None, **config)


def loop_of(algo: str, **changes: Any) -> OfflineLoop:
    run = started(algo, **changes)
    run.close()
    loop = run.loop
    assert isinstance(loop, OfflineLoop)
    return loop


# The same problem in other units


class Reach(gym.Env[np.ndarray, np.ndarray]):
    """One step: the closer the action is to a place that the observation names, the better. It notes what it gets."""

    received: list[np.ndarray]

    def __init__(self, low: list[float], high: list[float]) -> None:
        self.observation_space = gym.spaces.Box(-10.0, 10.0, (3,), np.float32)
        self.action_space = gym.spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
        self.received = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.normal(size=3).astype(np.float32), {}

    def step(self, action: np.ndarray) -> Any:
        self.received.append(np.array(action))
        return np.zeros(3, np.float32), 0.0, True, False, {}


def reach_dataset(info: SpaceInfo) -> dict[str, np.ndarray]:
    """The same actions whatever the bounds are, in the units of the environment; they cover its whole range."""
    rng = np.random.default_rng(0)
    shown = rng.standard_normal((201, 3)).astype(np.float32)
    obs, next_obs = shown[:-1], shown[1:]
    own = rng.uniform(-1.0, 1.0, (200, 2))
    own[:2] = [[-1.0, -1.0], [1.0, 1.0]]
    low, high = np.array(info.action_low), np.array(info.action_high)
    reward = -np.square(own - np.tanh(obs[:, :2])).sum(axis=1)
    return {
        "observations": obs,
        "actions": (low + (own + 1.0) / 2.0 * (high - low)).astype(np.float32),
        "rewards": reward.astype(np.float32),
        "next_observations": next_obs,
        "terminals": np.arange(200) % 4 == 3,
        "timeouts": np.arange(200) % 8 == 5,
    }


BOUNDS = [([-1.0, -1.0], [1.0, 1.0]), ([-2.0, -2.0], [2.0, 2.0]), ([-0.4, -0.4], [0.4, 0.4]), ([-1.0, 2.0], [5.0, 3.0])]


@pytest.mark.parametrize("action_units", ["environment", "auto"])
@pytest.mark.parametrize("algo", OFFLINE)
def test_the_same_problem_in_other_bounds_gives_the_same_policy(algo: str, action_units: str) -> None:
    taken = []
    for low, high in BOUNDS:
        judged: list[Reach] = []

        def make(low: list[float] = low, high: list[float] = high, judged: list[Reach] = judged) -> Reach:
            judged.append(Reach(low, high))
            return judged[-1]

        run = built(
            algo,
            make,
            dataset="test_offline_loop:reach_dataset",
            action_units=action_units,
            batch_size=64,
            learning_rate=1e-2,
            **({"actor_learning_rate": 1e-2} if algo in ("iql", "cql") else {}),
        )
        for _ in range(30):
            run.advance()
        run.evaluate(20)
        run.close()
        received = np.array([action for env in judged for action in env.received])
        assert len(received) >= 20
        assert (received >= low).all()
        assert (received <= high).all()
        taken.append(2.0 * (received - low) / (np.array(high) - low) - 1.0)
    assert np.std(taken[0], axis=0).min() > 0.01, "it has learned something"
    for other in taken[1:]:
        np.testing.assert_allclose(other, taken[0], atol=5e-3)


# Resuming


RESUMED: list[dict[str, Any]] = [
    {"algo": "bc", "validation_fraction": 0.3, "top_return_fraction": 0.6},
    {"algo": "bc", "loss": "likelihood", "engine": "autograd"},
    {"algo": "awac", "n_step": 2, "awac_lambda_schedule": 1.0, "reward_scale": "return_range"},
    {"algo": "iql", "actor_learning_rate_schedule": "cosine", "expectile_schedule": 0.9, "beta_warmup_steps": 90},
    {"algo": "cql", "cql_target_gap": 0.5, "cql_samples": 2, "cql_alpha_schedule": 1.0},
    {"algo": "cql", "env_kwargs": {"actions": "discrete"}, "ent_coef": 0.0},
    {"algo": "td3_bc", "policy_delay": 3, "alpha_schedule": 0.5, "reward_shift": -1.0},
]


@pytest.mark.parametrize("changes", RESUMED, ids=lambda changes: "-".join(map(str, changes.values())))
def test_resumes_to_the_bit_in_process(changes: dict[str, Any], tmp_path: Path) -> None:
    active = {"learning_rate": 3e-3, "learning_rate_schedule": "cosine", "eval_interval": 40, "normalize_obs": True}
    rhythm = {"total_timesteps": 120, "eval_episodes": 1, "checkpoint_interval": 48, "log_interval": 12}
    config = settings(**active | rhythm | {"early_stopping": {"patience": 50}} | changes)
    train(config, run_dir=tmp_path / "whole")
    cut_and_resume(config, tmp_path / "cut", after=60)
    assert run_differences(tmp_path / "whole", tmp_path / "cut") == []
    end = latest(tmp_path / "cut")
    assert (end.meta["resume"], end.meta["step"], end.state["algorithm"]["n_updates"]) == ("exact", 120, 120)
    rates = [row["learning_rate"] for row in metrics_rows(tmp_path / "cut")]
    assert len(set(rates)) == len(rates) >= 10


def test_two_seeds_are_not_equal(tmp_path: Path) -> None:
    for seed in (0, 1):
        train(settings("bc", seed=seed), run_dir=tmp_path / str(seed))
    assert run_differences(tmp_path / "0", tmp_path / "1")


# Whether the data is still the same


def file_of(tmp_path: Path, **changes: Any) -> str:
    """The tiny dataset as a file, with some of its columns changed."""
    info = SpaceInfo((3,), "float32", "continuous", (2,), 2, (), (), (-1.0, -1.0), (2.0, 2.0))
    path = tmp_path / f"data-{len(list(tmp_path.iterdir()))}.npz"
    np.savez(path, **tiny_dataset(info) | changes)
    return str(path)


def test_a_dataset_that_has_moved_is_accepted(tmp_path: Path) -> None:
    config = settings("iql", dataset=file_of(tmp_path), total_timesteps=100)
    train(config, run_dir=tmp_path / "run")
    moved = shutil.move(config["dataset"], tmp_path / "elsewhere.npz")
    with pytest.raises(UserError, match=r"data-0\.npz"):
        resume_training(tmp_path / "run", total_timesteps=150)
    result = resume_training(tmp_path / "run", total_timesteps=150, dataset=str(moved))
    assert result["n_updates"] == 150.0


def test_a_dataset_that_has_changed_is_refused(tmp_path: Path) -> None:
    config = settings("iql", dataset=file_of(tmp_path), total_timesteps=20)
    train(config, run_dir=tmp_path / "run")
    arrays = dict(np.load(config["dataset"]))
    others = [{name: arrays[name] * np.float32(0.5)} for name in ("actions", "rewards")]
    others.append({"observations": np.concatenate([arrays["observations"][:1] + 1.0, arrays["observations"][1:]])})
    others.append({"dones": np.logical_xor(arrays["dones"], np.arange(len(arrays["dones"])) == 2)})
    others.append({name: array[:-20] for name, array in arrays.items()})
    for changed in others:
        with pytest.raises(UserError, match="dataset: is not the one that the run was trained on") as complaint:
            resume_training(tmp_path / "run", total_timesteps=50, dataset=file_of(tmp_path, **changed))
        assert "\n" not in str(complaint.value)


# Which transitions, and how often


@pytest.mark.parametrize("algo", OFFLINE)
def test_the_clock_counts_updates(algo: str, tmp_path: Path) -> None:
    envs = {} if algo == "bc" else {"num_envs": 7}  # which have no part in it
    config = settings(algo, **envs, eval_interval=10, eval_episodes=1, log_interval=6)
    del config["total_timesteps"]
    seen = Recording()
    result = train(config | {"total_updates": 24}, run_dir=tmp_path / "run", callbacks=[seen])
    assert (result["step"], result["n_updates"]) == (24.0, 24.0)
    assert seen.at("step") == list(range(1, 25))
    assert seen.at("eval") == [10, 20, 24]
    assert [row["step"] for row in metrics_rows(tmp_path / "run")] == [6, 10, 12, 18, 20, 24]


def drawn_rows(algo: str, monkeypatch: pytest.MonkeyPatch, updates: int, **changes: Any) -> Any:
    """A run, and what its updates were given."""
    run = started(algo, batch_size=50, **changes)
    batches: list[Any] = []
    learn = run.algorithm.update
    copied = ("obs", "action", "reward", "terminated")

    def noted(batch: Any) -> Any:
        batches.append({name: np.array(getattr(batch, name)) for name in copied})
        return learn(batch)

    monkeypatch.setattr(type(run.algorithm), "update", lambda self, batch: noted(batch))
    for _ in range(updates):
        run.advance()
    run.close()
    return run.loop, {name: np.concatenate([batch[name] for batch in batches]) for name in copied}


@pytest.mark.parametrize("algo", ["bc", "iql"])
def test_minibatches_are_drawn_evenly_from_all_rows(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = {} if algo == "bc" else {"reward_scale": 1.0}
    loop, rows = drawn_rows(algo, monkeypatch, 100, **raw)
    dataset = loop.dataset
    where = {row.tobytes(): number for number, row in enumerate(dataset.obs)}
    index = np.array([where[row.tobytes()] for row in rows["obs"]])
    for name in ("action", "reward", "terminated"):
        np.testing.assert_array_equal(rows[name], getattr(dataset, name)[index], err_msg=name)
    counts = np.bincount(index, minlength=len(dataset))
    expected = 5000 / len(dataset)
    assert counts.min() > 0
    assert np.square(counts - expected).sum() / expected < 1.5 * len(dataset), "as even as chance has it"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"reward_scale": 1.0}, lambda reward, returns: reward),
        ({"reward_scale": 3.0, "reward_shift": -1.0}, lambda reward, returns: 3.0 * reward - 1.0),
        (
            {"reward_scale": 3.0, "reward_shift": 0.5, "reward_clip": 0.4},
            lambda reward, returns: 3.0 * reward.clip(-0.4, 0.4) + 0.5,
        ),
        ({"reward_scale": "return_range"}, lambda reward, returns: 1000.0 * reward / np.ptp(returns)),
    ],
    ids=["raw", "scaled and shifted", "clipped first", "by the range of returns"],
)
@pytest.mark.parametrize("algo", WITH_REWARDS)
def test_rewards_are_clipped_then_scaled_then_shifted(algo: str, changes: dict[str, Any], expected: Any) -> None:
    loop = loop_of(algo, **changes)
    rows = loop.data.memory.replay.gather(np.arange(len(loop.dataset)), gamma=0.9)
    np.testing.assert_allclose(rows.reward, expected(loop.dataset.reward, loop.dataset.returns), rtol=1e-5)
    np.testing.assert_array_equal(rows.terminated, loop.dataset.terminated)
    np.testing.assert_array_equal(rows.truncated, loop.dataset.truncated)


def discounted_returns(dataset: Any, gamma: float, clip: float = np.inf) -> np.ndarray:
    """The discounted sum of the rewards so far, at every step of every episode."""
    found: list[float] = []
    for row, reward in enumerate(dataset.reward.clip(-clip, clip)):
        found.append(float(reward) + (0.0 if row in dataset.starts else gamma * found[-1]))
    return np.array(found)


@pytest.mark.parametrize("changes", [{}, {"gamma": 0.8, "reward_clip": 0.4, "reward_shift": -1.0}], ids=str)
@pytest.mark.parametrize("algo", WITH_REWARDS)
def test_rewards_suit_the_temperature_by_default_where_there_is_one(algo: str, changes: dict[str, Any]) -> None:
    """Of rewards on any scale, discounted returns get a deviation of 10; other algorithms do not need that."""
    default = load_config({"algo": algo, "env_id": "none"}).flat()["reward_scale"]
    assert default == ("auto" if algo in ("awac", "iql") else 1.0)
    loop = loop_of(algo, reward_scale=default, **changes)
    rows = loop.data.memory.replay.gather(np.arange(len(loop.dataset)), gamma=0.9)
    clip, shift = changes.get("reward_clip", np.inf), changes.get("reward_shift", 0.0)
    factor = 1.0
    if algo in ("awac", "iql"):
        factor = 10.0 / discounted_returns(loop.dataset, changes.get("gamma", 0.99), clip).std()
        assert not 0.5 < factor < 2.0
    np.testing.assert_allclose(rows.reward, factor * loop.dataset.reward.clip(-clip, clip) + shift, rtol=1e-4)


def no_rewards(info: SpaceInfo) -> dict[str, np.ndarray]:
    data = tiny_dataset(info)
    return data | {"rewards": np.zeros_like(data["rewards"])}


def test_rewards_that_are_always_zero_stay_as_they_are() -> None:
    loop = loop_of("iql", dataset="test_offline_loop:no_rewards", reward_scale="auto")
    assert loop.rewards.factor == 1.0


def test_chains_of_steps_do_not_leave_their_episode() -> None:
    loop = loop_of("iql", n_step=3, reward_scale=1.0)
    dataset = loop.dataset
    ends = np.append(dataset.starts[1:], len(dataset))
    rows = loop.data.memory.replay.gather(np.arange(len(dataset)), n_step=3, gamma=0.5)
    for row in range(len(dataset)):
        end = ends[np.searchsorted(ends, row, side="right")]
        steps = min(3, end - row)
        expected = sum(0.5**k * dataset.reward[row + k] for k in range(steps))
        assert rows.reward[row] == pytest.approx(expected, rel=1e-5)
        assert rows.discount[row] == pytest.approx(0.5**steps)
        np.testing.assert_array_equal(rows.next_obs[row], dataset.next_obs[row + steps - 1])


# The best episodes, and those that are held out


def unequal_dataset(info: SpaceInfo) -> OfflineDataset:
    """Ten episodes that tell their number; discounted at 0.9, the order of their returns would be another.

    Episodes 0 to 4 pay 3 at once; 5 to 9 pay up to 9 at the end of 30 steps.
    """
    lengths = [3] * 5 + [30] * 5
    starts = np.cumsum([0, *lengths[:-1]])
    reward = np.zeros(sum(lengths), np.float32)
    reward[starts[:5]] = 3.0
    reward[starts[5:] + 29] = np.arange(5, 10)
    numbers = np.repeat(np.arange(10), lengths).astype(np.float32)
    obs = np.stack([numbers, numbers**2, np.ones_like(numbers)], axis=1)
    ends = np.zeros(len(reward), bool)
    ends[[*(starts[1:] - 1), -1]] = True
    action = np.tile(np.float32([0.1, -0.2]), (len(reward), 1)) * (numbers[:, None] / 10 - 0.5)
    action = np.ascontiguousarray(action, np.float32)
    source = {"action_units": "normalized"}
    return OfflineDataset(obs, action, reward, obs.copy(), ends, np.zeros_like(ends), starts, source)


def numbers_of(dataset: Any) -> set[int]:
    return set(dataset.obs[:, 0].astype(int))


UNEQUAL = {"dataset": "test_offline_loop:unequal_dataset"}


@pytest.mark.parametrize(
    ("fraction", "kept"), [(0.1, {9}), (0.5, {5, 6, 7, 8, 9}), (0.04, {9}), (0.7, {0, 1, 5, 6, 7, 8, 9})]
)
@pytest.mark.parametrize("algo", ["bc", "iql"])
def test_the_best_episodes_are_those_of_the_highest_undiscounted_return(
    algo: str, fraction: float, kept: set[int]
) -> None:
    loop = loop_of(algo, **UNEQUAL, top_return_fraction=fraction)
    assert numbers_of(loop.dataset) == kept
    assert numbers_of(loop.data.memory.replay.gather(np.arange(len(loop.dataset)), gamma=0.9)) == kept


def test_whole_episodes_are_held_out_and_nothing_is_learned_from_them(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, rows = drawn_rows("bc", monkeypatch, 60, **UNEQUAL, validation_fraction=0.3, normalize_obs=True)
    held_out, learned = numbers_of(loop.held_out), set(rows["obs"][:, 0].astype(int))
    assert len(held_out) == 3
    assert held_out | learned == set(range(10))
    assert not held_out & learned
    dataset = loop.dataset
    for number in held_out:
        assert (loop.held_out.obs[:, 0] == number).sum() == (dataset.obs[:, 0] == number).sum()
    # Observations are scaled by what is learned from alone.
    mean = np.concatenate([dataset.obs[dataset.obs[:, 0] == number] for number in learned]).mean(axis=0)
    np.testing.assert_allclose(loop.algorithm.observer.normalizer.moments.mean, mean, rtol=1e-6)


def test_another_seed_holds_out_other_episodes() -> None:
    found = {
        frozenset(numbers_of(loop_of("bc", **UNEQUAL, validation_fraction=0.3, seed=seed).held_out))
        for seed in range(6)
    }
    assert len(found) > 2


@pytest.mark.parametrize("loss", ["mse", "likelihood"])
def test_the_validation_loss_is_that_of_the_rows_that_are_held_out(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.runtime.loops.offline._VALIDATION_ROWS", 7)
    run = started("bc", loss=loss, validation_fraction=0.4, **UNEQUAL)
    losses = []
    for _ in range(101):
        run.advance()
        losses.append(run.metrics["validation_loss"])
        if run.steps == 100:
            held_out = run.loop.held_out
            expected = run.algorithm.validation_loss(held_out.obs, held_out.action)
    run.close()
    assert losses[99] == pytest.approx(expected, rel=1e-5)
    assert losses[0] != losses[99]
    assert len(set(losses[:99])) == 1, "it is computed now and then"


def test_early_stopping_watches_the_validation_loss(tmp_path: Path) -> None:
    rule = {"metric": "validation_loss", "mode": "min", "target_value": 1e9}
    config = settings("bc", validation_fraction=0.3, eval_interval=50, early_stopping=rule)
    result = train(config, run_dir=tmp_path / "run")
    assert result.stop_reason.startswith("early_stopping: validation_loss reached")
    assert result["step"] == 50.0
    patient = {"metric": "validation_loss", "mode": "min", "patience": 2, "min_delta": 1e6}
    result = train(config | {"early_stopping": patient}, run_dir=tmp_path / "patient")
    assert result["step"] == 150.0
    assert "validation_loss did not improve" in result.stop_reason
    with pytest.raises(UserError, match=r"early_stopping\.metric='validation_loss': no such metric"):
        train(settings("bc", eval_interval=50, early_stopping=rule), run_dir=tmp_path / "without")


def test_one_episode_cannot_be_split() -> None:
    with pytest.raises(UserError, match=r"validation_fraction=0\.5: the dataset has one episode"):
        loop_of("bc", **UNEQUAL, top_return_fraction=0.1, validation_fraction=0.5)


# Where the dataset comes from


def not_a_dataset(info: SpaceInfo) -> int:
    return 3


def no_arguments() -> None:
    """It could not be told the spaces."""


@pytest.mark.parametrize("make", ["reach_dataset", "unequal_dataset"])
def test_a_function_makes_a_dataset_or_the_arrays_of_one(make: str) -> None:
    dataset = _build_offline_dataset(settings("iql", dataset=f"test_offline_loop:{make}", action_units="auto"))
    assert isinstance(dataset, OfflineDataset)
    assert dataset.action.dtype == np.float32
    assert np.abs(dataset.action).max() <= 1.0


@pytest.mark.parametrize(
    ("algo", "changes", "words"),
    [
        ("iql", {"dataset": None}, "dataset: is missing; give a file"),
        ("bc", {"dataset": None}, "dataset: is missing; give a file"),
        ("iql", {"dataset": "no/such/file.npz"}, r"no/such/file\.npz"),
        ("iql", {"dataset": "test_offline_loop:nothing"}, "test_offline_loop:nothing"),
        (
            "iql",
            {"dataset": "test_offline_loop:TINY_DATA"},
            "must name a function or class that makes a dataset; it is a dict",
        ),
        ("iql", {"dataset": "test_offline_loop:no_arguments"}, "is called with .SpaceInfo."),
        ("iql", {"dataset": "test_offline_loop:not_a_dataset"}, "it made a int, not an OfflineDataset"),
        ("iql", {"done_means": None}, "done_means"),
        ("iql", {"dataset": "test_offline_loop:unequal_dataset", "action_units": "meters"}, "action_units='meters'"),
        (
            "iql",
            {**UNEQUAL, "top_return_fraction": 0.1, "reward_scale": "return_range"},
            "reward_scale='return_range': all episodes of the dataset have the same return",
        ),
    ],
    ids=str,
)
def test_a_mistake_is_one_line_and_leaves_no_run_behind(
    algo: str, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words) as complaint:
        train(settings(algo, **changes) | {"output_dir": str(tmp_path)})
    assert "\n" not in str(complaint.value)
    assert list(tmp_path.iterdir()) == []


def test_an_algorithm_of_its_own_experience_has_no_dataset() -> None:
    with pytest.raises(UserError, match="algo='sac': learns from its own experience, not from a dataset"):
        _build_offline_dataset(tiny(algo="sac"))
