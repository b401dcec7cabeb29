"""The offline works: what they learn from, and what their sides are told."""

from __future__ import annotations

import sys
from dataclasses import make_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmark_helpers import BENCHMARKS, load, works
from rl_training.runtime.run import Run

plain, hopper_data = load("plain_offline"), load("hopper_data")
NAMES = ["bc", "td3_bc", "awac", "iql", "cql"]


@pytest.fixture(autouse=True)
def _benchmarks_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A side is told of the data by the name of its module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_data_are_whole_episodes() -> None:
    arrays = hopper_data.random_transitions()
    assert {name: array.shape for name, array in arrays.items()} == {
        "observations": (100_000, 11),
        "actions": (100_000, 3),
        "rewards": (100_000,),
        "next_observations": (100_000, 11),
        "terminals": (100_000,),
        "timeouts": (100_000,),
    }
    ends = np.flatnonzero(arrays["timeouts"])
    assert list(ends) == list(range(999, 100_000, 1_000))
    follows = (arrays["next_observations"][:-1] == arrays["observations"][1:]).all(axis=1)
    assert list(np.flatnonzero(~follows)) == list(ends[:-1])
    assert -1.0 <= arrays["actions"].min() < -0.99
    assert 0.99 < arrays["actions"].max() <= 1.0
    assert not arrays["terminals"].any()


def test_every_offline_work_is_looked_at() -> None:
    assert [name for name, work in works.WORKS.items() if "plain" in work.sides] == NAMES == list(plain.LEARNERS)


@pytest.mark.parametrize("name", NAMES)
def test_ours_makes_as_many_updates_as_it_is_asked_for(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its log where it is started
    monkeypatch.setattr(hopper_data, "EPISODES", 1)
    monkeypatch.setattr(hopper_data, "LENGTH", 100)
    runs: list[Run] = []
    start = Run.start
    monkeypatch.setattr(Run, "start", lambda run: (start(run), runs.append(run)))
    work = works.WORKS[name]
    advance = work.build("ours", threads=1)
    (run,) = runs
    assert (run.config.run.algo, run.algorithm.engine, run.algorithm.n_updates) == (name, "mlp", 0)
    told = hopper_data.random_transitions()
    stored = run.loop.data.memory.replay.gather(np.arange(100), gamma=1.0)
    np.testing.assert_allclose(stored.obs, told["observations"])
    np.testing.assert_allclose(stored.action, told["actions"], atol=1e-6)
    assert advance(2) == run.algorithm.n_updates == 2
    assert run.config.model.hidden_sizes == (256, 256)
    assert run.config.model.activation == "relu"


# What d3rlpy calls the networks of each algorithm and what it is told beside their sizes.
BOTH = ("actor_", "critic_")
D3RLPY = {
    "bc": ("BCConfig", ("",), {"policy_type": "deterministic"}),
    "td3_bc": ("TD3PlusBCConfig", BOTH, {"n_critics": 2, "update_actor_interval": 2}),
    "awac": ("AWACConfig", BOTH, {"n_critics": 2, "n_action_samples": 1}),
    "iql": ("IQLConfig", (*BOTH, "value_"), {"n_critics": 2}),
    "cql": ("CQLConfig", BOTH, {"n_critics": 2, "n_action_samples": 10, "alpha_learning_rate": 0.0}),
}


class StandIn:
    """In the place of d3rlpy's algorithm and its memory: they note what they are asked for."""

    def __init__(self, *arrays: Any) -> None:
        self.arrays, self.drawn, self.learned = arrays, [], []

    def sample_transition_batch(self, count: int) -> str:
        self.drawn.append(count)
        return f"batch {len(self.drawn)}"

    def build_with_dataset(self, memory: StandIn) -> None:
        self.memory = memory

    def update(self, batch: str) -> None:
        self.learned.append(batch)


@pytest.fixture
def d3rlpy(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The algorithms that were made while d3rlpy was a stand-in."""
    made: list[Any] = []

    def create(config: Any, device: str) -> StandIn:
        algo = StandIn()
        algo.asked, algo.batch_size = (
            vars(config) | {"found": type(config).__name__, "device": device},
            config.batch_size,
        )
        made.append(algo)
        return algo

    configs = {}
    for name, networks, settings in D3RLPY.values():
        names = [f"{network}{what}" for network in networks for what in ("encoder_factory", "learning_rate")]
        fields = dict.fromkeys([*names, "batch_size", *settings])
        defaults = [(field, Any, None) for field in fields]
        configs[name] = make_dataclass(name, defaults, namespace={"create": create})
    encoders = SimpleNamespace(VectorEncoderFactory=lambda hidden_units: ("encoder", hidden_units))
    for module, contents in {
        "d3rlpy": SimpleNamespace(algos=SimpleNamespace(**configs)),
        "d3rlpy.dataset": SimpleNamespace(MDPDataset=StandIn),
        "d3rlpy.models": SimpleNamespace(),
        "d3rlpy.models.encoders": encoders,
    }.items():
        monkeypatch.setitem(sys.modules, module, contents)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_d3rlpy_has_the_same_settings(name: str, d3rlpy: list[Any]) -> None:
    """Every word that it is told, worked by hand: none is missing, none is too many."""
    advance = works.WORKS[name].build("d3rlpy", threads=1)
    (algo,) = d3rlpy
    found, networks, settings = D3RLPY[name]
    expected = {"found": found, "device": "cpu:0", "batch_size": 256} | settings
    for network in networks:
        expected |= {f"{network}encoder_factory": ("encoder", [256, 256]), f"{network}learning_rate": 3e-4}
    assert algo.asked == expected
    told = hopper_data.random_transitions()
    names = ["observations", "actions", "rewards", "terminals", "timeouts"]
    for array, wanted in zip(algo.memory.arrays, names, strict=True):
        np.testing.assert_array_equal(array, told[wanted])
    assert advance(3) == 3
    assert (algo.memory.drawn, algo.learned) == ([256] * 3, ["batch 1", "batch 2", "batch 3"])


@pytest.mark.parametrize("side", ["d3rlpy", "plain"])
def test_threads_reach_the_peers(side: str, d3rlpy: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    works.WORKS["bc"].build(side, threads=2)
    assert told == [2]


def test_plain_has_the_sizes_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, float]] = []
    drawn: list[int] = []

    def learner(sizes: Any, learning_rate: float) -> Any:
        made.append((sizes, learning_rate))
        return SimpleNamespace(update=lambda batch: drawn.append(len(batch.reward)))

    for name in NAMES:
        monkeypatch.setattr(plain, "LEARNERS", {name: learner})
        assert works.WORKS[name].build("plain", threads=1)(2) == 2
    assert made == 5 * [(plain.Sizes(11, 3, [256, 256]), 3e-4)]
    assert drawn == 10 * [256]
