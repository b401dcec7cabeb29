"""The benchmarks of Dreamer: sizes and batch, both of our forms, and the peer where it is installed."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from benchmark_helpers import dreamers, libraries, works
from rl_training.models.rssm import RSSM, SIZES

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


def test_the_sides_of_a_work() -> None:
    assert dreamers.SIDES.keys() - {"ours"} <= libraries.PEERS.keys()
    for name, size, starts in (("", "xxs", None), ("_1m", "1m", None), ("_128", "xxs", 128)):
        work = works.WORKS[f"dreamer_update{name}"]
        assert work.sides.keys() <= dreamers.SIDES.keys()
        for side, build in work.sides.items():
            assert (build.args, build.keywords) == ((side, size), {"starts": starts})
    # A peer dreams from every state.
    assert works.WORKS["dreamer_update_128"].peers == ["autograd"]


def test_both_of_our_forms_learn_from_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    build = dreamers.our_algorithm
    monkeypatch.setattr(dreamers, "our_algorithm", lambda *given: made.append(build(*given)) or made[-1])
    for side in ("ours", "autograd"):
        update = dreamers.SIDES[side](TINY)
        before = made[-1].model.learner.parameters.data.clone()
        for _ in range(2):
            update()
        assert not made[-1].model.learner.parameters.data.equal(before)
    engine, autograd = (algorithm.model for algorithm in made)
    assert (type(engine).__name__, type(autograd).__name__) == ("EngineDreamer", "AutogradDreamer")
    assert made[0].draws().prior.shape == (TINY.horizon, TINY.sequences * TINY.length, TINY.size.stoch)
    assert dreamers.our_algorithm(replace(TINY, starts=4), "auto").draws().prior.shape[1] == 4
    # The same numbers are drawn, so the same is learned.
    torch.testing.assert_close(engine.learner.parameters.data, autograd.learner.parameters.data, rtol=1e-3, atol=1e-5)


def test_updates_and_actions_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    monkeypatch.setitem(dreamers.SIDES, "sheeprl", lambda task: lambda: done.append(task))
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    assert dreamers.dreamer_updates("sheeprl", "1m", unit="updates", threads=1)(3) == 3
    assert done == [dreamers.Task(dreamers.SIZES["1m"])] * 3
    monkeypatch.setitem(dreamers.SIZES, "xxs", TINY.size)
    for side, build in works.WORKS["dreamer_acting"].sides.items():
        assert build.args == (side, "xxs")
        assert build(unit="environment steps", threads=1)(9) == 16


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
