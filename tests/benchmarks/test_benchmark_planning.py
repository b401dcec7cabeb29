"""The works of the planning family: what they count, and that both sides do the same."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmark_helpers import BENCHMARKS, load, trainers, works
from rl_training.ops.search import GumbelRule, Leaves, Puct, Roots, Searcher
from rl_training.ops.two_hot import Support, expectation
from rl_training.runtime.train import Run

searches = load("searches")
SEARCHES = [
    name for name, work in works.WORKS.items() if work.unit == trainers.SIMULATIONS and not name.startswith("scalezero")
]
# Searches that both rules answer differently if anything is wrong: with two actions, halving alone sets the visits.
MANY_ACTIONS = {rule: searches.Task(rule, roots=8, simulations=25, actions=6) for rule in ("gumbel", "puct")}


def task_of(name: str) -> Any:
    """The task of a work; all of its sides have the same."""
    first, *others = (side.keywords["task"] for side in works.WORKS[name].sides.values())
    assert others == [first]
    return first


@pytest.mark.parametrize(
    ("name", "rule", "roots", "simulations"),
    [("gumbel_search", "gumbel", 8, 25), ("gumbel_search_large", "gumbel", 32, 50), ("puct_search", "puct", 8, 25)],
)
def test_searches_are_as_large_as_they_say(name: str, rule: str, roots: int, simulations: int) -> None:
    task = task_of(name)
    assert (task.rule, task.roots, task.simulations) == (rule, roots, simulations)
    assert (task.width, task.bins, task.actions) == (64, 21, 2)
    assert f"{roots} roots x {simulations} simulations" in works.WORKS[name].summary
    assert works.WORKS[name].slice_size % (roots * simulations) == 0


def test_every_search_is_looked_at() -> None:
    marks = test_searches_are_as_large_as_they_say.pytestmark  # type: ignore[attr-defined]
    assert [case[0] for case in marks[0].args[1]] == SEARCHES


def test_ours_counts_simulations_of_all_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    search = searches.OurSearch.search
    monkeypatch.setattr(searches.OurSearch, "search", lambda side, noise: made.append(search(side, noise)))
    advance = works.WORKS["gumbel_search"].build("ours", threads=1)
    assert advance(1) == 200  # whole searches
    assert advance(201) == 400
    assert [int(found.visits.sum()) for found in made] == [200, 200, 200]


def test_searches_have_numbers_of_their_own() -> None:
    numbers: list[int] = []
    advance = searches.searching(searches.Task("puct", roots=2, simulations=3), numbers.append)
    assert (advance(7), advance(6)) == (12, 6)
    assert numbers == [0, 1, 2]


class PlainModel:
    """The model of a problem, layer by layer."""

    def __init__(self, task: Any, given: Any) -> None:
        self.task, self.layers, self.support = task, given.layers, Support(task.limit, task.bins)

    def dense(self, name: str, x: np.ndarray) -> np.ndarray:
        weights, bias = self.layers[name]
        return x @ weights + bias

    def step(self, embedding: np.ndarray, action: np.ndarray, simulation: int) -> Leaves:
        entry = np.concatenate([embedding, np.eye(self.task.actions, dtype=np.float32)[action]], axis=1)
        features = np.maximum(self.dense("dynamics", entry), 0.0)
        raw = self.dense("next", features)
        low, high = raw.min(axis=1, keepdims=True), raw.max(axis=1, keepdims=True)
        latent = (raw - low) / (high - low)
        after = np.maximum(self.dense("prediction", latent), 0.0)
        return Leaves(
            expectation(self.dense("reward", features), self.support),
            np.full(len(action), self.task.discount, np.float32),
            latent,
            self.dense("policy", after),
            expectation(self.dense("value", after), self.support),
        )


@pytest.mark.parametrize("rule", ["gumbel", "puct"])
def test_ours_searches_the_model_that_it_was_given(rule: str) -> None:
    task = MANY_ACTIONS[rule]
    given = searches.problem(task)
    side = searches.OurSearch(task, given)
    noise = side.draw()
    found = side.search(noise)
    searcher = Searcher(GumbelRule(16) if rule == "gumbel" else Puct(), task.simulations, task.actions)
    roots = Roots(given.embedding, noise.logits, given.value)
    expected = searcher(PlainModel(task, given), roots, gumbel=noise.gumbel)
    np.testing.assert_array_equal(found.visits, expected.visits)
    np.testing.assert_allclose(found.policy, expected.policy, atol=1e-4)
    np.testing.assert_allclose(found.value, expected.value, atol=1e-4)


def test_noise_differs_from_search_to_search() -> None:
    for rule, task in MANY_ACTIONS.items():
        side = searches.OurSearch(task, searches.problem(task))
        first, second = side.draw(), side.draw()
        assert (first.gumbel is not None) == (rule == "gumbel")
        varying = 1 if rule == "gumbel" else 0
        assert not np.array_equal(first[varying], second[varying])


@pytest.mark.parametrize("task", [*map(task_of, SEARCHES), *MANY_ACTIONS.values()], ids=[*SEARCHES, *MANY_ACTIONS])
def test_mctx_finds_the_same(task: Any) -> None:
    pytest.importorskip("mctx", reason="mctx is not installed: pip install -r benchmarks/requirements.txt")
    task = replace(task, dirichlet_fraction=0.0)  # the noise of PUCT cannot be given to mctx
    given = searches.problem(task)
    mine, theirs = searches.OurSearch(task, given), searches.MctxSearch(task, given)
    for number in range(3):
        noise = mine.draw()
        if task.rule == "gumbel":
            noise = noise._replace(gumbel=theirs.gumbel(number))
        found, expected = mine.search(noise), theirs.search(number)
        assert (found.visits.sum(axis=1) == task.simulations).all()
        np.testing.assert_array_equal(found.visits, expected.visits)
        np.testing.assert_allclose(found.policy, expected.policy, atol=1e-4)
        np.testing.assert_allclose(found.value, expected.value, atol=1e-4)
        if task.rule == "gumbel":
            np.testing.assert_array_equal(found.action, expected.action)


def test_mctx_draws_new_noise_for_every_search() -> None:
    pytest.importorskip("mctx", reason="mctx is not installed: pip install -r benchmarks/requirements.txt")
    task = replace(MANY_ACTIONS["puct"], dirichlet_fraction=0.9)
    theirs = searches.MctxSearch(task, searches.problem(task))
    first, again, second = (theirs.search(number) for number in (1, 1, 2))
    np.testing.assert_array_equal(first.visits, again.visits)
    assert not np.array_equal(first.visits, second.visits)


def test_a_side_loads_its_own_library_only() -> None:
    """What mctx searches is made without torch: its peak memory would not be its own."""
    code = (
        "import sys, searches; searches.problem(searches.Task('gumbel', 2, 2)); "
        "print([name for name in ('torch', 'numba', 'jax') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The runs that are started."""
    started: list[Run] = []
    start = Run.start
    monkeypatch.setattr(Run, "start", lambda run: (start(run), started.append(run)))
    return started


def test_sides_of_the_update_differ_in_the_engine_alone(runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    work = works.WORKS["muzero_update"]
    mine, theirs = (dict(side.keywords) for side in work.sides.values())
    assert theirs == mine | {"engine": "autograd"}
    assert (mine["unroll_steps"], mine["batch_size"], mine["hidden_sizes"], mine["latent_size"]) == (5, 128, [64], 64)
    losses = {}
    for side, engine in (("ours", "mlp"), ("autograd", "autograd")):
        advance = work.build(side, threads=1)
        run = runs[-1]
        assert run.algorithm.policy.engine == engine
        found: list[Any] = []
        learn = run.algorithm.learn_from
        monkeypatch.setattr(
            run.algorithm, "learn_from", lambda *given, learn=learn, found=found: found.append(learn(*given))
        )
        before = (run.algorithm.n_updates, len(run.loop.memory), run.steps)
        assert advance(3) == 3
        assert (run.algorithm.n_updates, len(run.loop.memory), run.steps) == (before[0] + 3, *before[1:])
        losses[side] = [metrics["loss"] for metrics in found]
    # The same windows and the same targets: a search with the other engine differs by rounding.
    np.testing.assert_allclose(losses["ours"], losses["autograd"], rtol=1e-3)
    assert len(set(losses["ours"])) == 3


def test_the_whole_loop_counts_steps_and_learns_as_often_as_it_should(runs: list[Run]) -> None:
    work = works.WORKS["gumbel_cartpole"]
    assert (work.unit, work.peers) == (trainers.STEPS, [])
    settings = work.sides["ours"].keywords
    assert (settings["num_simulations"], settings["batch_size"], settings["num_envs"]) == (16, 128, 8)
    advance = work.build("ours", threads=1)
    (run,) = runs
    start, done = run.steps, run.algorithm.n_updates
    assert start >= settings["learning_starts"]
    assert done == (start - settings["learning_starts"]) // 4
    assert run.algorithm.policy.engine == "mlp"
    made = advance(20)
    assert made == run.steps - start >= 20
    assert run.algorithm.n_updates == (run.steps - settings["learning_starts"]) // 4
