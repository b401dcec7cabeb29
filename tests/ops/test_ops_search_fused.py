"""The compiled search of an MLP model equals the search that calls the same model in NumPy; trees as plain data."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from rl_training.ops.kernels.acting import RELU, SILU, TANH
from rl_training.ops.kernels.exponentials import exponentiate
from rl_training.ops.sampled_policy import sample_logits
from rl_training.ops.search import GumbelRule, Leaves, PackedModel, Puct, Roots, Searcher, SearchResult, fastest
from rl_training.ops.two_hot import Support, inverse_h
from rl_training.types import Array

REWARDS, VALUES = Support(3.0, 7), Support(5.0, 12)
RULES: list[Puct | GumbelRule] = [
    Puct(),
    Puct(normalization="tree", unvisited="mean"),
    GumbelRule(),
    GumbelRule(considered=3, rescale=False),
]


def mlp(
    sizes: tuple[list[int], list[int]] = ([16], [16]),
    *,
    latent: int = 8,
    actions: int = 4,
    action_size: int = 0,
    kind: int = TANH,
    discount: float = 0.97,
    supports: tuple[Support, Support] = (REWARDS, VALUES),
    seed: int = 0,
) -> PackedModel:
    """A random model with hidden layers of these sizes, for the dynamics and for the prediction."""
    rng = np.random.default_rng(seed)
    dynamics, prediction = sizes
    first = [latent + (action_size or actions), *dynamics]
    second = [latent, *prediction]
    shapes = [
        *zip(first, dynamics, strict=False),
        (first[-1], latent),
        (first[-1], supports[0].bins),
        *zip(second, prediction, strict=False),
        (second[-1], 2 * action_size or actions),
        (second[-1], supports[1].bins),
    ]
    parts, layers, offset = [], [], 0
    for inputs, outputs in shapes:
        parts += [2.0 * rng.normal(size=inputs * outputs) / np.sqrt(inputs), 0.3 * rng.normal(size=outputs)]
        layers.append((inputs, outputs, offset))
        offset += (inputs + 1) * outputs
    spread = np.linspace(0.5, 3.0, actions).astype(np.float32) if action_size else None
    return PackedModel(
        np.concatenate(parts).astype(np.float32),
        np.array(layers, np.int64),
        (len(dynamics), len(prediction)),
        kind,
        latent,
        action_size,
        *supports,
        discount,
        spread,
    )


class Plain:
    """The same model in NumPy, in float64."""

    def __init__(self, packed: PackedModel, actions: int, noise: Array | None = None) -> None:
        self.packed, self.actions, self.noise = packed, actions, noise
        self.layers = []
        for inputs, outputs, start in packed.layers.tolist():
            end = start + inputs * outputs
            weights = packed.weights[start:end].reshape(inputs, outputs).astype(np.float64)
            self.layers.append((weights, packed.weights[end : end + outputs].astype(np.float64)))

    def activation(self, x: Array) -> Array:
        forms = {TANH: np.tanh(x), RELU: np.maximum(x, 0.0), SILU: x / (1.0 + np.exp(-x))}
        return forms[self.packed.kind]

    def network(self, x: Array, first: int, hidden: int) -> tuple[Array, Array]:
        for weights, bias in self.layers[first : first + hidden]:
            x = self.activation(x @ weights + bias)
        one, two = self.layers[first + hidden : first + hidden + 2]
        return x @ one[0] + one[1], x @ two[0] + two[1]

    def predict(self, latent: Array, simulation: int) -> tuple[Array, Array, Array | None]:
        """Logits, values and sampled actions."""
        dynamics, prediction = self.packed.hidden
        policy, value = self.network(latent, dynamics + 2, prediction)
        numbers = mean_of(value, self.packed.value_support)
        size = self.packed.action_size
        if size == 0:
            return policy, numbers, None
        assert self.noise is not None
        assert self.packed.spread is not None
        mean, std = policy[:, None, :size], np.exp(np.clip(policy[:, None, size:], -5.0, 2.0))
        noise = self.noise[: len(latent), simulation]
        spread = self.packed.spread[: noise.shape[1]]
        sampled = np.tanh(mean + spread[:, None] * std * noise)
        return sample_logits(spread, noise), numbers, sampled

    def step(self, embedding: Array, action: Array, simulation: int) -> Leaves:
        inputs = action if self.packed.action_size else np.eye(self.actions)[action]
        x = np.concatenate([embedding, inputs], axis=1).astype(np.float64)
        after, reward = self.network(x, 0, self.packed.hidden[0])
        after -= after.min(axis=1, keepdims=True)
        scale = after.max(axis=1, keepdims=True)
        after /= np.where(scale < 1e-5, scale + 1e-5, scale)
        logits, value, sampled = self.predict(after, simulation)
        discount = np.full(len(value), self.packed.discount)
        return Leaves(mean_of(reward, self.packed.reward_support), discount, after, logits, value, sampled)


def mean_of(logits: Array, support: Support) -> Array:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return inverse_h((weights * support.points).sum(axis=1) / weights.sum(axis=1))


def both_ways(
    packed: PackedModel,
    rule: Puct | GumbelRule,
    *,
    actions: int = 4,
    interior: int | None = None,
    simulations: int = 24,
    rows: int = 5,
    masked: bool = False,
) -> tuple[SearchResult, SearchResult, list[Searcher]]:
    """The compiled search and the search by calls."""
    rng, size = np.random.default_rng(7), packed.action_size
    noise = rng.normal(size=(rows, simulations + 1, interior or actions, size)).astype(np.float32) if size else None
    plain = Plain(packed, actions, noise)
    embedding = rng.random((rows, packed.latent)).astype(np.float32)
    logits, value, _ = plain.predict(embedding.astype(np.float64), 0)
    sampled = None
    if size:
        logits, sampled = np.zeros((rows, actions)), rng.uniform(-1, 1, (rows, actions, size)).astype(np.float32)
    mask = None
    if masked:
        mask = rng.random((rows, actions)) < 0.5
        mask[:, 1] = True
    roots = Roots(embedding, logits.astype(np.float32), value.astype(np.float32), mask, sampled)
    gumbel = rng.gumbel(size=(rows, actions)).astype(np.float32)
    searchers = [Searcher(rule, simulations, actions, action_size=size, interior=interior) for _ in range(2)]
    compiled = searchers[0](packed, roots, gumbel=gumbel, noise=noise)
    return compiled, searchers[1](plain, roots, gumbel=gumbel), searchers


def assert_both_ways_agree(packed: PackedModel, rule: Puct | GumbelRule, **asked: Any) -> None:
    compiled, called, searchers = both_ways(packed, rule, **asked)
    np.testing.assert_array_equal(compiled.visits, called.visits)
    assert (compiled.visits.sum(axis=1) == asked.get("simulations", 24)).all()
    for name in ("q", "value", "depth"):
        np.testing.assert_allclose(getattr(compiled, name), getattr(called, name), atol=1e-5, rtol=1e-5, err_msg=name)
    # sigma multiplies small differences of q; a node's range may be small, too.
    np.testing.assert_allclose(compiled.policy, called.policy, atol=1e-3)
    for b in range(len(compiled.value)):
        one, two = (searcher.tree(b) for searcher in searchers)
        np.testing.assert_array_equal(one.parents, two.parents)
        np.testing.assert_array_equal(one.actions, two.actions)
        np.testing.assert_allclose(one.raw_values, two.raw_values, atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(one.rewards, two.rewards, atol=1e-5, rtol=1e-5)
        assert np.ptp(two.rewards[1:]) > 0.05 < np.ptp(two.raw_values), "the model says the same everywhere"


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("kind", [TANH, RELU, SILU])
@pytest.mark.parametrize("masked", [False, True])
def test_activations_rules_and_masks(rule: Puct | GumbelRule, kind: int, masked: bool) -> None:
    assert_both_ways_agree(mlp(kind=kind, seed=kind), rule, masked=masked)


SHAPES: list[tuple[list[int], list[int], int]] = [
    ([], [], 4),
    ([5], [], 3),
    ([], [9, 6], 5),
    ([64], [64], 64),
    ([33, 17], [20, 31, 10], 11),
    ([128, 128], [128], 32),
]


@pytest.mark.parametrize("rule", [Puct(), GumbelRule()], ids=["puct", "gumbel"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", [TANH, SILU])
def test_widths_and_numbers_of_layers(
    rule: Puct | GumbelRule, shape: tuple[list[int], list[int], int], kind: int
) -> None:
    dynamics, prediction, latent = shape
    assert_both_ways_agree(mlp((dynamics, prediction), latent=latent, kind=kind, seed=4), rule)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("discount", [-1.0, 0.0])
def test_discounts(rule: Puct | GumbelRule, discount: float) -> None:
    assert_both_ways_agree(mlp(discount=discount, seed=3), rule)


@pytest.mark.parametrize("actions", [1, 2, 19])
def test_numbers_of_actions(actions: int) -> None:
    for rule in RULES:
        assert_both_ways_agree(mlp(actions=actions, seed=2), rule, actions=actions, masked=actions > 2)


@pytest.mark.parametrize("supports", [(Support(1.0, 2), Support(2.0, 3)), (Support(20.0, 41), Support(30.0, 61))])
def test_supports(supports: tuple[Support, Support]) -> None:
    for rule in RULES:
        assert_both_ways_agree(mlp(supports=supports, seed=6), rule)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize(("size", "interior"), [(1, None), (1, 3), (3, 4), (2, 1)])
def test_sampled_actions(rule: Puct | GumbelRule, size: int, interior: int | None) -> None:
    packed = mlp(action_size=size, actions=6, seed=size)
    assert_both_ways_agree(packed, rule, actions=6, interior=interior)


def test_one_searcher_takes_models_of_different_layouts_and_weights() -> None:
    searcher, rng = Searcher(Puct(), 12, 4), np.random.default_rng(0)
    roots = Roots(*(rng.random(shape).astype(np.float32) for shape in [(3, 8), (3, 4), (3,)]))
    models = [mlp(seed=1), mlp(seed=2), mlp(([7, 6], [3]), seed=1), mlp(seed=1)]
    for packed in models:
        result, fresh = searcher(packed, roots), Searcher(Puct(), 12, 4)(packed, roots)
        np.testing.assert_array_equal(result.visits, fresh.visits)
        np.testing.assert_array_equal(result.q, fresh.q)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("kind", [TANH, RELU, SILU])
@pytest.mark.parametrize("bins", [3, 21])
def test_what_a_root_finds_does_not_depend_on_the_others(rule: Puct | GumbelRule, kind: int, bins: int) -> None:
    packed = mlp(([40], [24]), kind=kind, supports=(Support(2.0, bins), Support(4.0, bins)), seed=kind)
    rng, rows = np.random.default_rng(1), 39
    embedding, logits, value = (rng.random(shape).astype(np.float32) for shape in [(rows, 8), (rows, 4), (rows,)])
    mask, gumbel = rng.random((rows, 4)) < 0.6, rng.gumbel(size=(rows, 4)).astype(np.float32)
    together, alone = Searcher(rule, 17, 4), Searcher(rule, 17, 4)
    found = together(packed, Roots(embedding, logits, value, mask), gumbel=gumbel)
    for b in range(rows):
        one = slice(b, b + 1)
        single = alone(packed, Roots(embedding[one], logits[one], value[one], mask[one]), gumbel=gumbel[one])
        for name in ("visits", "q", "value", "policy", "improved"):
            np.testing.assert_array_equal(getattr(found, name)[b], getattr(single, name)[0], err_msg=name)
        if mask[b].any():
            np.testing.assert_array_equal(together.tree(b).raw_values, alone.tree().raw_values)


def test_a_row_without_allowed_actions_is_left_out() -> None:
    rng = np.random.default_rng(0)
    mask = np.array([[True] * 4, [False] * 4, [True] * 4])
    embedding, logits, value = (rng.random(shape).astype(np.float32) for shape in [(3, 8), (3, 4), (3,)])
    result = Searcher(GumbelRule(), 12, 4)(mlp(), Roots(embedding, logits, value, mask))
    assert result.visits.sum(axis=1).tolist() == [12, 0, 12]
    assert result.value[1] == value[1]
    assert result.policy[1].tolist() == [0.0] * 4
    assert np.isfinite(result.q).all()
    assert np.isfinite(result.improved).all()


def test_equal_logits_are_exactly_zero_rewards_and_values() -> None:
    packed = mlp()
    packed.weights[:] = 0.0
    searcher = Searcher(Puct(), 8, 4)
    result = searcher(packed, Roots(np.zeros((1, 8)), np.zeros((1, 4)), np.zeros(1)))
    assert result.visits.tolist() == [[2, 2, 2, 2]]
    assert result.value[0] == 0.0
    assert (searcher.tree().raw_values == 0.0).all()
    assert (searcher.tree().rewards == 0.0).all()


# What is refused


def bad_models() -> list[tuple[str, PackedModel]]:
    good = mlp()
    wider, past = good.layers.copy(), good.layers.copy()
    wider[0, 1] += 1
    past[-1, 2] += 1
    return [
        ("hidden", good._replace(hidden=(2, 1))),
        ("int64", good._replace(layers=good.layers.astype(np.int32))),
        ("int64", good._replace(layers=np.asfortranarray(good.layers))),
        ("fit each other", good._replace(layers=wider)),
        ("past the end", good._replace(layers=past)),
        ("past the end", good._replace(weights=good.weights[:-1])),
        ("float32", good._replace(weights=good.weights.astype(np.float64))),
        ("fit each other", good._replace(latent=7)),
        ("fit each other", good._replace(value_support=Support(5.0, 13))),
        ("fit each other", good._replace(reward_support=VALUES)),
        ("fit each other", good._replace(action_size=1)),
        ("latents of 9", mlp(latent=9)),
    ]


@pytest.mark.parametrize(("words", "packed"), bad_models())
def test_a_bad_layout_is_refused(words: str, packed: PackedModel) -> None:
    roots = Roots(np.zeros((1, 8)), np.zeros((1, 4)), np.zeros(1))
    with pytest.raises(ValueError, match=words):
        Searcher(Puct(), 4, 4)(packed, roots)


def test_missing_noise_and_spread_are_refused() -> None:
    packed, searcher = mlp(action_size=2), Searcher(Puct(), 4, 4, action_size=2)
    roots = Roots(np.zeros((1, 8)), np.zeros((1, 4)), np.zeros(1), actions=np.zeros((1, 4, 2)))
    noise = np.zeros((1, 5, 4, 2), np.float32)
    searcher(packed, roots, noise=noise)
    for bad in (None, noise[:, :4], noise[..., :1], noise[:, :, :3]):
        with pytest.raises(ValueError, match="noise must have"):
            searcher(packed, roots, noise=bad)
    with pytest.raises(ValueError, match="spread"):
        searcher(packed._replace(spread=None), roots, noise=noise)
    plain = Roots(np.zeros((1, 8)), np.zeros((1, 4)), np.zeros(1))
    with pytest.raises(ValueError, match="noise is for"):
        Searcher(Puct(), 4, 4)(mlp(), plain, noise=noise)


def test_a_model_of_fewer_actions_is_refused() -> None:
    roots = Roots(np.zeros((1, 8)), np.zeros((1, 4)), np.zeros(1))
    with pytest.raises(ValueError, match="actions"):
        Searcher(Puct(), 4, 4)(mlp(actions=3), roots)


# Parts


@pytest.mark.parametrize("size", [1, 15, 16, 17, 100_003])
def test_exponentials(size: int) -> None:
    x = np.random.default_rng(size).uniform(-87.0, 88.0, size).astype(np.float32)
    x[: min(size, 4)] = np.array([0.0, -87.0, 88.0, 1e-8], np.float32)[: min(size, 4)]
    wanted = np.exp(x.astype(np.float64))
    spare = np.empty(size, np.float32)
    exponentiate(x, x.view(np.int32), spare, spare.view(np.int32))
    np.testing.assert_allclose(x, wanted, rtol=3e-7)


def test_exponentials_beyond_the_range() -> None:
    x = np.repeat(np.array([-1e30, -100.0, np.nan, 0.0], np.float32), 8)
    spare = np.empty_like(x)
    exponentiate(x, x.view(np.int32), spare, spare.view(np.int32))
    assert (x[:16] < 2e-38).all()
    assert (x[:16] >= 0.0).all()
    assert np.isnan(x[16:24]).all()
    assert (x[24:] == 1.0).all()


def test_the_faster_way_depends_on_width_and_roots() -> None:
    assert fastest(64, 1) == fastest(256, 1000) == fastest(1024, 8) == "fused"
    assert fastest(1024, 1) == fastest(1024, 1000) == "numpy"


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_tree_as_plain_data_is_consistent(rule: Puct | GumbelRule) -> None:
    compiled, _, searchers = both_ways(mlp(), rule, simulations=30, rows=2)
    for b in range(2):
        root = json.loads(json.dumps(searchers[0].tree(b).nested()))
        assert (root["node"], root["action"], root["depth"], root["prior"]) == (0, -1, 0, 1.0)
        assert root["value"] == pytest.approx(float(compiled.value[b]), rel=1e-6)
        visits = {child["action"]: child["visits"] for child in root["children"]}
        assert [visits.get(a, 0) for a in range(4)] == compiled.visits[b].tolist()
        for child in root["children"]:
            q = child["reward"] + child["discount"] * child["value"]
            assert q == pytest.approx(float(compiled.q[b, child["action"]]), rel=1e-5, abs=1e-6)
        made = sorted(node["node"] for node in walk(root))
        assert made == list(range(31))
        deep = [node["depth"] for node in walk(root)]
        assert sum(deep) / 30 == pytest.approx(float(compiled.depth[b]), rel=1e-6)


def walk(node: dict[str, Any]) -> list[dict[str, Any]]:
    """All nodes below and with this one, each checked against its children."""
    children = node["children"]
    assert [child["action"] for child in children] == sorted({child["action"] for child in children})
    assert node["visits"] == 1 + sum(child["visits"] for child in children)
    assert all(child["depth"] == node["depth"] + 1 and child["node"] > node["node"] for child in children)
    assert 0.0 < sum(child["prior"] for child in children) < 1.0 + 1e-5 or not children
    returns = [child["visits"] * (child["reward"] + child["discount"] * child["value"]) for child in children]
    assert node["value"] == pytest.approx((node["raw_value"] + sum(returns)) / node["visits"], rel=1e-5, abs=1e-6)
    return [node, *(below for child in children for below in walk(child))]
