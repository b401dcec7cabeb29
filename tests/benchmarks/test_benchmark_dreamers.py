"""The benchmark of Dreamer's updates: its sizes and its batch, and the peer where it is installed."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
import torch

from benchmark_helpers import load, works
from rl_training.models.rssm import RSSM, SIZES

dreamers = load("dreamers")
TINY = dreamers.Task(dreamers.Size(16, 8, 4, 8, stoch=3, blocks=2), sequences=2, length=5, horizon=3)


@pytest.mark.parametrize("name", ["xxs", "1m"])
def test_sizes_are_ours(name: str) -> None:
    ours = asdict(SIZES[name])
    assert asdict(dreamers.SIZES[name]) == {key: ours[key] for key in ours if key != "depth"}


def test_the_task_is_as_large_as_it_says() -> None:
    task = dreamers.Task(dreamers.SIZES["xxs"])
    assert (task.sequences, task.length, task.horizon) == (16, 64, 15)
    data = dreamers.batch(task, context=1)
    assert {key: value.shape for key, value in data.items()} == {
        "state": (65, 16, 4),
        "actions": (65, 16, 2),
        **dict.fromkeys(("rewards", "terminated", "truncated", "is_first"), (65, 16, 1)),
    }
    assert (data["actions"].sum(-1) == 1).all()
    assert 0 < data["terminated"].sum() < 100
    # An episode begins after one has ended.
    assert (data["is_first"][1:] == data["terminated"][:-1]).all()
    assert data["state"].equal(dreamers.batch(task, context=1)["state"])


def test_sides_are_peers() -> None:
    assert set(dreamers.SIDES) - {"ours"} <= works.PEERS.keys()
    assert {dreamers.package_of(side) for side in works.PEERS if side.startswith("sheeprl")} == {"sheeprl"}
    assert dreamers.package_of("ours") == "rl-training"


def test_it_prints_rates_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    done: list[int] = []
    tasks: list[Any] = []

    def side(task: Any) -> Any:
        tasks.append(task)
        return lambda: done.append(sum(range(1000)))

    monkeypatch.setitem(dreamers.SIDES, "sheeprl", side)
    monkeypatch.setattr(dreamers, "version", lambda package: f"{package} 1")
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    for name in dreamers.THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")
    dreamers.main(["sheeprl", "1m", "--updates", "3", "--rounds", "4"])
    result = json.loads(capsys.readouterr().out)
    assert (result["side"], result["size"], len(result["slices"])) == ("sheeprl", "1m", 4)
    assert len(done) == 3 * 5
    assert tasks == [dreamers.Task(dreamers.SIZES["1m"])]
    assert {piece["count"] for piece in result["slices"]} == {3}
    rates = [piece["count"] / piece["cpu"] for piece in result["slices"]]
    assert result["updates_per_cpu_second"]["highest"] == pytest.approx(max(rates))
    assert result["versions"]["sheeprl"] == "sheeprl 1"


# The peer, where it is installed


@pytest.fixture
def sheeprl() -> None:
    reason = "sheeprl is not installed: pip install -r benchmarks/requirements-sheeprl.txt"
    pytest.importorskip("sheeprl", reason=reason)


@pytest.mark.usefixtures("sheeprl")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("side", ["sheeprl", "sheeprl_2023"])
def test_the_peer_learns(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    networks: list[Any] = []
    agent = dreamers.sheeprl_agent

    def kept(*arguments: Any) -> Any:
        made = agent(*arguments)
        networks.extend(made[-1])
        return made

    monkeypatch.setattr(dreamers, "sheeprl_agent", kept)
    update = dreamers.SIDES[side](TINY)
    before = [[p.detach().clone() for p in network.parameters()] for network in networks]
    for _ in range(3):
        update()
    for network, old in zip(networks, before, strict=True):
        assert any(not p.equal(q) for p, q in zip(network.parameters(), old, strict=True))
        assert all(p.isfinite().all() for p in network.parameters())


@pytest.mark.usefixtures("sheeprl")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["xxs", "1m"])
def test_the_model_of_the_peer_is_as_large_as_ours(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    agent = dreamers.sheeprl_agent
    monkeypatch.setattr(dreamers, "sheeprl_agent", lambda *given: (made.append(agent(*given)), made[0])[1])
    dreamers.SIDES["sheeprl"](dreamers.Task(dreamers.SIZES[name]))
    ours = RSSM(SIZES[name], action_size=2, tokens=SIZES[name].units)
    theirs = made[0][-1][0].rssm
    assert sorted(p.numel() for p in theirs.parameters()) == sorted(p.numel() for p in ours.parameters())
