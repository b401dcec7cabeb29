"""Tree search: public trees node for node, a brute-force reference, rules worked by hand, masks."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from offline_data import public_file
from rl_training.ops.kernels.tree import Start, new_tree, plant
from rl_training.ops.kernels.tree_rules import complete
from rl_training.ops.search import (
    GumbelRule,
    Leaves,
    Puct,
    Roots,
    Searcher,
    SearchResult,
    considered_visits,
)
from rl_training.types import Array
from search_reference import Reference, World, bandit, mean, q_of, visits_of

RULES: list[Puct | GumbelRule] = [
    Puct(),
    Puct(unvisited="mean"),
    Puct(normalization="tree", unvisited="mean"),
    Puct(c_init=0.7, c_base=20.0, normalization="tree", value_floor=0.5),
    GumbelRule(),
    GumbelRule(considered=4, c_visit=20.0, rescale=False),
    GumbelRule(considered=3, c_scale=1.0),
]
BOTH: list[Puct | GumbelRule] = [Puct(), GumbelRule()]


def searched(
    world: World, rule: Puct | GumbelRule, simulations: int, rows: int = 1, *, mask: Array | None = None, **given: Any
) -> SearchResult:
    """Search state 0 `rows` times."""
    searcher = Searcher(rule, simulations, world.reward.shape[1])
    return searcher(world, world.roots(np.zeros(rows, np.int64), mask), **given)


def assert_same(a: SearchResult, b: SearchResult, atol: float = 0.0) -> None:
    np.testing.assert_array_equal(a.visits, b.visits)
    for name in ("q", "value", "policy", "depth"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=0.0, atol=atol, err_msg=name)


# Public trees


class Replayed:
    """A stored tree as a model: the embedding of a node is the simulation that made it."""

    def __init__(self, tree: dict[str, Any], discount: float) -> None:
        self.nodes: dict[int, dict[str, Any]] = {}
        self.discount = discount
        self.collect(tree)

    def collect(self, node: dict[str, Any]) -> None:
        self.nodes[node["evaluation_index"]] = node
        for child in node["child_stats"]:
            if "evaluation_index" in child:
                self.collect(child)

    def logits(self, index: int) -> Array:
        children = sorted(self.nodes[index]["child_stats"], key=lambda child: int(child["action"]))
        return np.log(np.array([child["prior"] for child in children], np.float32))

    def step(self, embedding: Array, action: Array, simulation: int) -> Leaves:
        children = self.nodes[int(embedding[0, 0])]["child_stats"]
        child = next(child for child in children if child["action"] == action[0])
        assert child.get("evaluation_index") == simulation, "the stored search made another node"
        reward, discount, value = (
            np.array([x], np.float32) for x in (child["reward"], self.discount, child["raw_value_view"])
        )
        return Leaves(reward, discount, np.full((1, 1), simulation, np.float32), self.logits(simulation)[None], value)


def rule_of(stored: dict[str, Any]) -> Puct | GumbelRule:
    config = stored["algorithm_config"]
    if stored["algorithm"] == "muzero":
        return Puct(config["pb_c_init"], config["pb_c_base"])
    sigma = config["qtransform_kwargs"]
    considered = config["max_num_considered_actions"]
    return GumbelRule(considered, sigma["maxvisit_init"], sigma["value_scale"], sigma["rescale_values"])


@pytest.mark.parametrize("name", ["gumbel_muzero_reward_tree", "muzero_qtransform_tree"])
def test_a_public_tree_is_reproduced_node_for_node(name: str) -> None:
    with open(public_file(f"search_trees/{name}.json"), encoding="utf-8") as file:
        stored = json.load(file)
    model = Replayed(stored["tree"], stored["env_config"]["discount"])
    simulations = len(model.nodes) - 1
    raw = np.array([stored["tree"]["raw_value_view"]], np.float32)
    roots = Roots(np.zeros((1, 1), np.float32), model.logits(0)[None], raw)
    searcher = Searcher(rule_of(stored), simulations, roots.logits.shape[1])
    result = searcher(model, roots)
    tree = searcher.tree()
    assert simulations == 50
    assert tree.visits.tolist() == [model.nodes[k]["visit"] for k in range(simulations + 1)]
    assert tree.actions[1:].tolist() == [model.nodes[k]["action"] for k in range(1, simulations + 1)]
    values = [model.nodes[k]["value_view"] for k in range(simulations + 1)]
    np.testing.assert_allclose(tree.values, values, rtol=0.0, atol=1e-6)
    np.testing.assert_allclose(result.value, values[:1], rtol=0.0, atol=1e-6)
    priors = [[child["prior"] for child in model.nodes[k]["child_stats"]] for k in range(simulations + 1)]
    np.testing.assert_allclose(tree.child_priors, priors, rtol=0.0, atol=1e-6)


# The brute-force reference


@given(
    seed=st.integers(0, 2**32 - 1),
    rule=st.sampled_from(RULES),
    actions=st.integers(1, 7),
    simulations=st.integers(1, 40),
    sharpness=st.sampled_from([0.0, 0.5, 3.0]),
    masked=st.booleans(),
    narrow=st.booleans(),
)
def test_any_search_equals_brute_force(
    seed: int,
    rule: Puct | GumbelRule,
    actions: int,
    simulations: int,
    sharpness: float,
    masked: bool,
    narrow: bool,
) -> None:
    rng = np.random.default_rng(seed)
    # Exactly equal logits are ties, which rounding decides.
    world = World(12, actions, seed, sharpness=sharpness + 0.1)
    mask = rng.random(actions) < (0.6 if masked else 2.0)
    mask[rng.integers(actions)] = True
    noise = rng.gumbel(size=(1, actions)).astype(np.float32)
    interior = (actions + 1) // 2 if narrow else actions
    reference = Reference(world, rule, allowed=mask, gumbel=noise[0], interior=interior)
    root = reference.run(3, simulations)
    assume(reference.margin > 1e-5)
    searcher = Searcher(rule, simulations, actions, interior=interior)
    result = searcher(world, world.roots(np.array([3]), mask[None]), gumbel=noise)

    assert result.visits[0].tolist() == [visits_of(root, a) for a in range(actions)]
    tree = searcher.tree()
    assert tree.visits.tolist() == [len(node["returns"]) for node in reference.made]
    np.testing.assert_allclose(tree.values, [mean(node) for node in reference.made], atol=1e-5)
    np.testing.assert_allclose(result.value, mean(root), atol=1e-5)
    np.testing.assert_allclose(result.q[0], [q_of(root).get(a, 0.0) for a in range(actions)], atol=1e-5)
    np.testing.assert_allclose(result.depth, tree.depth[1:].mean(), rtol=1e-6)
    if isinstance(rule, GumbelRule):
        improved = np.where(mask, np.clip(reference.improved(root), -1e30, None), -np.inf)
        target = np.exp(improved - improved.max())
        np.testing.assert_allclose(result.improved[0][mask], improved[mask], rtol=1e-4, atol=1e-4)
    else:
        target = result.visits[0].astype(np.float64)
    np.testing.assert_allclose(result.policy[0], target / target.sum(), atol=1e-4)


# Rules worked by hand


@pytest.mark.parametrize(
    ("considered", "simulations", "wanted"),
    [
        # Three rounds of 8, 4 and 2 actions with 1, 2 and 4 visits each.
        (8, 24, [0] * 8 + [1] * 4 + [2] * 4 + [3] * 2 + [4] * 2 + [5] * 2 + [6] * 2),
        # 7, 3 and 2 actions with 1, 2 and 4 visits are 21; three more for the last two.
        (7, 24, [0] * 7 + [1] * 3 + [2] * 3 + [3] * 2 + [4] * 2 + [5] * 2 + [6] * 2 + [7] * 2 + [8]),
        (2, 5, [0, 0, 1, 1, 2]),
        (1, 4, [0, 1, 2, 3]),
        (0, 4, [0, 1, 2, 3]),
        (16, 5, [0] * 5),
        (4, 6, [0, 0, 0, 0, 1, 1]),
    ],
)
def test_visits_of_sequential_halving(considered: int, simulations: int, wanted: list[int]) -> None:
    assert considered_visits(considered, simulations) == wanted


def test_sequential_halving_at_the_root() -> None:
    # The noise ranks the actions 3, 2, 1, 0 and sigma is 0, so two of four get one more visit, and again.
    world = bandit(np.zeros(6), np.zeros(6))
    noise = np.array([[1, 2, 3, 4, -1, -1]], np.float32)
    result = searched(world, GumbelRule(considered=4), 8, gumbel=noise)
    assert result.visits.tolist() == [[1, 1, 3, 3, 0, 0]]


# sigma(q) is (10 + visits) * 0.5 * q.
PLAIN = GumbelRule(considered=1, c_visit=10.0, c_scale=0.5, rescale=False)


def test_completed_q_with_one_visited_action() -> None:
    world = bandit(np.array([0.6, 5.0, 5.0]), np.log([0.5, 0.3, 0.2]), value=1.0)
    result = searched(world, PLAIN, 4)
    assert result.visits.tolist() == [[4, 0, 0]]
    # The mixed value is (1 + 4 * 0.6) / 5 = 0.68, and the scale is (10 + 4) * 0.5 = 7.
    improved = np.log([0.5, 0.3, 0.2]) + 7.0 * np.array([0.6, 0.68, 0.68])
    np.testing.assert_allclose(result.improved[0], improved, rtol=1e-6)
    np.testing.assert_allclose(result.policy[0], np.exp(improved) / np.exp(improved).sum(), rtol=1e-5)
    np.testing.assert_allclose(result.value, 0.68, rtol=1e-6)


def test_the_mixed_value_weights_visited_actions_by_the_prior_not_by_visits() -> None:
    world = bandit(np.array([1.0, 0.2, 9.0]), np.log([0.3, 0.6, 0.1]), value=-0.5)
    rule = GumbelRule(considered=2, c_visit=10.0, c_scale=0.5, rescale=False)
    result = searched(world, rule, 3, gumbel=np.array([[50.0, 50.0, 0.0]]))
    assert result.visits.tolist() == [[2, 1, 0]]
    # (0.3 * 1 + 0.6 * 0.2) / 0.9 = 0.46667, mixed with -0.5 as 3 to 1; sigma multiplies by (10 + 2) * 0.5 = 6.
    mixed = (-0.5 + 3 * 0.42 / 0.9) / 4
    improved = np.log([0.3, 0.6, 0.1]) + 6.0 * np.array([1.0, 0.2, mixed])
    np.testing.assert_allclose(result.improved[0], improved, rtol=1e-5)


def test_completed_q_is_rescaled_to_the_range_from_0_to_1() -> None:
    world = bandit(np.array([100.0, -300.0]), np.zeros(2), value=0.0)
    result = searched(world, GumbelRule(c_visit=10.0, c_scale=0.5), 2)
    assert result.visits.tolist() == [[1, 1]]
    np.testing.assert_allclose(result.improved, [[5.5, 0.0]], rtol=1e-6)


def test_completed_q_of_a_visited_action_whose_probability_is_0() -> None:
    world = bandit(np.array([0.6, 5.0]), np.array([-300.0, 0.0]), value=1.0)
    result = searched(world, PLAIN, 4, gumbel=np.array([[1000.0, 0.0]]))
    assert result.visits.tolist() == [[4, 0]]
    np.testing.assert_allclose(result.improved, [[-300.0 + 7 * 0.6, 7 * 0.68]], rtol=1e-5)


def completed_without_visits(rescale: float) -> Array:
    tree = new_tree(1, 2, 3, 1, 0)
    tree.roots[:, 1] = 1.0
    logits = np.array([[0.5, -1.0, 2.0]], np.float32)
    plant(tree, Start(np.zeros((1, 1), np.float32), logits, np.full(1, 0.25, np.float32), np.zeros((1, 3, 0), "f4")))
    assert complete(tree, np.int64(0), np.array([0, 0, 0, 0, 0, 10.0, 0.5, rescale]), np.int64(0), 3) == 0
    added: Array = tree.row - logits[0]
    return added


def test_completed_q_without_visits_is_the_raw_value() -> None:
    np.testing.assert_allclose(completed_without_visits(0.0), 5.0 * 0.25, rtol=1e-6)
    np.testing.assert_array_equal(completed_without_visits(1.0), 0.0)


def test_completed_q_that_are_all_equal() -> None:
    world = bandit(np.full(3, 0.7, np.float32), np.log([0.5, 0.3, 0.2]), value=0.7)
    result = searched(world, GumbelRule(), 6)
    np.testing.assert_allclose(result.policy, [[0.5, 0.3, 0.2]], atol=1e-4)


def test_an_unvisited_action_counts_as_the_lowest_or_as_the_mean() -> None:
    # After one visit of the first: the node's value is 0.5 and q is 0. With sqrt(2) * 1.25 = 1.77, the first action has
    # 0.62, and the second 0.53 above the lowest; at the mean of 0.5 and 0, which is half of the range, it has 1.03.
    world = bandit(np.array([0.0, 0.0]), np.log([0.7, 0.3]), value=1.0)
    assert searched(world, Puct(), 2).visits.tolist() == [[2, 0]]
    assert searched(world, Puct(unvisited="mean"), 2).visits.tolist() == [[1, 1]]


def test_a_small_range_of_values_counts_as_the_floor() -> None:
    # In the third simulation the prior speaks for the first action by 0.22, and q for the second: by 0.001 / 0.01 with
    # the floor, by 1 without it.
    world = bandit(np.array([0.0, 0.001]), np.log([0.6, 0.4]))
    assert searched(world, Puct(normalization="tree"), 3).visits.tolist() == [[2, 1]]
    assert searched(world, Puct(normalization="tree", value_floor=1e-6), 3).visits.tolist() == [[1, 2]]
    assert searched(world, Puct(), 3).visits.tolist() == [[1, 2]]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("value", [0.0, 3.0, -1e6])
def test_equal_values_leave_the_choice_to_the_prior(rule: Puct | GumbelRule, value: float) -> None:
    world = bandit(np.full(3, value), np.log([0.5, 0.3, 0.2]), value=value)
    result = searched(world, rule, 40)
    visits = result.visits[0]
    if isinstance(rule, Puct):
        np.testing.assert_allclose(visits / 40, [0.5, 0.3, 0.2], atol=0.03)
    else:
        assert visits[0] >= visits[1] >= visits[2]
    np.testing.assert_allclose(result.value, value, rtol=1e-6)
    assert np.isfinite(result.policy).all()


# What must not matter


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_logits_shifted_by_a_constant_change_nothing(rule: Puct | GumbelRule) -> None:
    world, shifted = World(30, 5, 1), World(30, 5, 1)
    shifted.logits += np.float32(11.0)
    states = np.arange(8)
    noise = np.random.default_rng(0).gumbel(size=(8, 5))
    plain, moved = (Searcher(rule, 30, 5)(w, w.roots(states), gumbel=noise) for w in (world, shifted))
    assert_same(plain, moved, atol=1e-4)
    # Probabilities in the place of logits are another search.
    world.logits = np.exp(world.logits) / np.exp(world.logits).sum(axis=1, keepdims=True)
    other = Searcher(rule, 30, 5)(world, world.roots(states), gumbel=noise)
    assert (other.policy != plain.policy).any()


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_many_roots_at_once_equal_one_after_the_other(rule: Puct | GumbelRule) -> None:
    world, rng = World(30, 5, 2), np.random.default_rng(3)
    mask, noise = rng.random((7, 5)) < 0.7, rng.gumbel(size=(7, 5))
    mask[:, 2] = True
    mask[4] = False
    together = Searcher(rule, 20, 5)(world, world.roots(np.arange(7), mask), gumbel=noise)
    searcher = Searcher(rule, 20, 5)
    for b in range(7):
        alone = searcher(world, world.roots(np.array([b]), mask[b : b + 1]), gumbel=noise[b : b + 1])
        for name in ("visits", "q", "value", "policy", "improved", "logits", "depth"):
            np.testing.assert_array_equal(getattr(alone, name)[0], getattr(together, name)[b], err_msg=name)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_searcher_forgets_its_last_search(rule: Puct | GumbelRule) -> None:
    world, used = World(30, 5, 2), Searcher(rule, 20, 5)
    used(world, world.roots(np.arange(9)), gumbel=np.random.default_rng(0).gumbel(size=(9, 5)))
    states = np.array([5, 6])
    assert_same(used(world, world.roots(states)), Searcher(rule, 20, 5)(world, world.roots(states)))


# Masks and sizes


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_forbidden_actions_are_never_tried_nor_learned(rule: Puct | GumbelRule) -> None:
    world, rng = World(30, 6, 4, sharpness=3.0), np.random.default_rng(1)
    mask = rng.random((30, 6)) < 0.5
    mask[np.arange(30), rng.integers(0, 6, 30)] = True
    searcher = Searcher(rule, 12, 6)
    result = searcher(world, world.roots(np.arange(30), mask), gumbel=rng.gumbel(size=(30, 6)))
    assert (result.visits[~mask] == 0).all()
    assert (result.policy[~mask] == 0.0).all()
    assert (result.visits.sum(axis=1) == 12).all()
    np.testing.assert_allclose(result.policy.sum(axis=1), 1.0, rtol=1e-5)
    below = [searcher.tree(b) for b in range(30)]
    tried = {(b, int(a)) for b, tree in enumerate(below) for a in tree.actions[tree.depth > 1]}
    assert any(not mask[edge] for edge in tried), "only the root is masked"


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_row_without_allowed_actions_is_not_searched(rule: Puct | GumbelRule) -> None:
    world, mask = World(30, 4, 4), np.array([[True] * 4, [False] * 4])
    searcher = Searcher(rule, 12, 4)
    result = searcher(world, world.roots(np.array([1, 2]), mask))
    for name in ("q", "value", "policy", "improved", "logits", "depth"):
        assert np.isfinite(getattr(result, name)).all(), name
    assert result.visits.sum(axis=1).tolist() == [12, 0]
    assert result.policy[1].tolist() == [0.0] * 4
    assert result.value[1] == world.value[2]
    assert searcher.tree(1).nested()["children"] == []


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_one_action(rule: Puct | GumbelRule) -> None:
    result = searched(World(10, 1, 3), rule, 9)
    assert result.visits.tolist() == [[9]]
    assert result.policy.tolist() == [[1.0]]
    assert result.depth[0] == 5.0


@pytest.mark.parametrize("rule", BOTH, ids=str)
def test_a_thousand_actions(rule: Puct | GumbelRule) -> None:
    result = searched(World(10, 1000, 3), rule, 50, rows=2)
    assert result.visits.sum(axis=1).tolist() == [50, 50]
    np.testing.assert_allclose(result.policy.sum(axis=1), 1.0, rtol=1e-4)
    if isinstance(rule, GumbelRule):
        assert (result.visits > 0).sum() == 2 * 16


def test_logits_of_minus_infinity_are_the_lowest_number() -> None:
    world = World(10, 3, 3)
    world.logits[:, 1] = -np.inf
    for rule in RULES:
        result = searched(world, rule, 20)
        assert np.isfinite(result.policy).all()
        assert result.policy[0, 1] == 0.0


# What is refused


def test_bad_requests_are_refused() -> None:
    world = World(5, 3)
    roots = world.roots(np.arange(2))
    for bad in ({"simulations": 0, "actions": 3}, {"simulations": 1, "actions": 0}):
        with pytest.raises(ValueError, match="simulations"):
            Searcher(Puct(), **bad)
    with pytest.raises(ValueError, match="in other nodes"):
        Searcher(Puct(), 2, 3, interior=4)
    with pytest.raises(ValueError, match="normalization"):
        Puct(normalization="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="considered"):
        GumbelRule(considered=0)
    with pytest.raises(ValueError, match="4 logits"):
        Searcher(Puct(), 2, 4)(world, roots)
    with pytest.raises(ValueError, match="sampled actions"):
        Searcher(Puct(), 2, 3, action_size=1)(world, roots)
    with pytest.raises(ValueError, match="noise"):
        Searcher(Puct(), 2, 3)(world, roots, noise=np.zeros(1))
    searcher = Searcher(Puct(), 2, 3)
    searcher(world, roots)
    with pytest.raises(ValueError, match="no root 2"):
        searcher.tree(2)
