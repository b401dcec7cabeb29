"""The fast path of the offline algorithms learns, judges and acts as autograd does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from conformance import CONTINUOUS, DISCRETE, agent, built
from off_policy_reference import MASKED, acted, transitions, weights_of
from rl_training.algorithms.iql import ExpectileRegression
from rl_training.algorithms.parts.autograd import FIRST, DrawnActions
from rl_training.algorithms.td3_bc import AnchoredActorLoss
from rl_training.experiment.registry import REGISTRY
from rl_training.testing import TinyEnv
from rl_training.types import SpaceInfo

OFFLINE = [name for name, entry in REGISTRY.items() if entry.family == "offline"]
# What an algorithm can be told that changes the mathematics of its update, with the spaces that it is told on.
OPTIONS: dict[str, list[tuple[SpaceInfo, dict[str, Any]]]] = {
    "bc": [
        (CONTINUOUS, {"loss": "mse"}),
        (CONTINUOUS, {"loss": "likelihood"}),
        (CONTINUOUS, {"loss": "likelihood", "policy_head": "squashed"}),
        (DISCRETE, {}),
        (MASKED, {"normalize_obs": True}),
    ],
    "awac": [
        (CONTINUOUS, {"awac_lambda": 0.1, "max_weight": 2.0}),
        (CONTINUOUS, {"policy_head": "squashed"}),
        (CONTINUOUS, {"weighting": "softmax", "awac_lambda": 0.05}),
        (CONTINUOUS, {"n_critics": 3}),
    ],
    "iql": [
        (CONTINUOUS, {"expectile": 0.9, "beta": 10.0, "max_weight": 3.0}),
        (CONTINUOUS, {"policy_head": "deterministic"}),
        (CONTINUOUS, {"beta": 0.0, "n_critics": 1}),
    ],
    "cql": [
        (CONTINUOUS, {"cql_samples": 1, "cql_alpha": 20.0}),
        (CONTINUOUS, {"cql_target_gap": 0.1, "backup_entropy": True, "ent_coef": 0.2}),
        (CONTINUOUS, {"cql_alpha": 0.0}),
        (DISCRETE, {}),
        (DISCRETE, {"cql_target_gap": 0.1}),
        (DISCRETE, {"cql_alpha": 0.0}),
        (MASKED, {}),
    ],
    "td3_bc": [
        (CONTINUOUS, {"alpha": 0.0, "policy_delay": 1}),
        (CONTINUOUS, {"alpha": 20.0, "policy_delay": 1, "n_critics": 3}),
    ],
}
EVERYWHERE: list[dict[str, Any]] = [
    {},
    {"activation": "tanh"},
    {"activation": "silu"},
    {"hidden_sizes": [12, 6]},
    {"hidden_sizes": []},
    {"hidden_sizes": [130, 70]},
    {"normalize_obs": True},
]
CASES = [(algo, CONTINUOUS, option) for algo in OFFLINE for option in EVERYWHERE]
CASES += [(algo, info, option) for algo, options in OPTIONS.items() for info, option in options]
EACH_CASE = pytest.mark.parametrize(
    ("algo", "info", "option"), CASES, ids=[f"{algo}-{info.action_kind}-{option}" for algo, info, option in CASES]
)


def small(algo: str, engine: str, info: SpaceInfo, **option: Any) -> Any:
    settings = {"batch_size": 16, "learning_rate": 1e-3, **option}
    learner = agent(algo, info, engine=engine, **settings)
    learner.observer.fit(transitions(info, 50, 99).obs)
    return learner


def assert_close(found: Any, expected: Any, what: str = "") -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=2e-4, atol=2e-5, err_msg=what)


@EACH_CASE
def test_updates_and_their_metrics_are_the_same_on_both_engines(
    algo: str, info: SpaceInfo, option: dict[str, Any]
) -> None:
    """Five updates; the last minibatch is smaller than the others."""
    fast, slow = (small(algo, engine, info, **option) for engine in ("auto", "autograd"))
    assert (fast.engine, slow.engine) == ("mlp", "autograd")
    before = weights_of(fast)
    for seed, rows in enumerate((16, 16, 32 + 7)):
        batch = allowed_transitions(info, rows, seed)
        metrics, expected = fast.update(batch), slow.update(batch)
        assert metrics == pytest.approx(expected, rel=2e-4, abs=2e-5)
    assert fast.n_updates == 5
    after, wanted = weights_of(fast), weights_of(slow)
    still = {"cql_factor"} if option.get("cql_alpha") == 0.0 else set()
    for name, weights in wanted.items():
        assert name in still or not torch.equal(before[name], after[name]), f"{name} has not moved"
        torch.testing.assert_close(after[name], weights, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def allowed_transitions(info: SpaceInfo, rows: int, seed: int) -> Any:
    """Transitions whose choices are allowed where they were made, as those of any dataset are."""
    batch = transitions(info, rows, seed)
    if info.mask_size:
        masks = batch.obs[:, -info.mask_size :].astype(bool)
        batch.action[:] = masks.argmax(axis=1)
    return batch


# The parts, each on its own gradient: what Adam makes of it hides a wrong factor


def both(algo: str, info: SpaceInfo = CONTINUOUS, **option: Any) -> list[Any]:
    return [small(algo, engine, info, **option) for engine in ("auto", "autograd")]


@pytest.mark.parametrize(
    ("algo", "info", "option"),
    [
        ("awac", CONTINUOUS, {"policy_head": "squashed"}),
        ("awac", CONTINUOUS, {}),
        ("bc", CONTINUOUS, {"loss": "mse"}),
        ("iql", CONTINUOUS, {"policy_head": "deterministic"}),
        ("bc", CONTINUOUS, {"loss": "likelihood", "policy_head": "squashed"}),
        ("bc", CONTINUOUS, {"loss": "likelihood"}),
        ("iql", CONTINUOUS, {}),
        ("bc", DISCRETE, {}),
        ("bc", MASKED, {}),
    ],
    ids=[
        "soft",
        "gaussian of awac",
        "mean",
        "mean of iql",
        "soft of bc",
        "gaussian of bc",
        "gaussian",
        "choice",
        "masked choice",
    ],
)
@pytest.mark.parametrize("rows", [1, 13])
def test_regression_has_one_gradient_and_one_loss(
    algo: str, info: SpaceInfo, option: dict[str, Any], rows: int
) -> None:
    batch = allowed_transitions(info, rows, 3)
    weight = np.random.default_rng(0).uniform(0.0, 5.0, rows).astype(np.float32)
    found, gradients = [], []
    for learner in both(algo, info, **option):
        regression = learner.regression
        columns = [batch.action, weight] + ([] if info.continuous else [learner.observer.mask(batch.obs)])
        report = learner.actor.fit(batch.obs, regression, *columns, learning_rate=0.0)
        found.append(regression.costs(report, batch.action))
        gradients.append(learner.actor.learner.parameters.grad.clone())
    assert_close(*found)
    assert gradients[0].abs().max() > 1e-2
    assert_close(*gradients)


@pytest.mark.parametrize("rows", [1, 13])
@pytest.mark.parametrize("alpha", [0.0, 2.5])
def test_an_anchored_step_of_the_actor_has_one_gradient_and_one_loss(alpha: float, rows: int) -> None:
    batch = transitions(CONTINUOUS, rows, 3)
    found, gradients = [], []
    for learner in both("td3_bc", alpha=alpha):
        loss = learner._variant.actor_loss(learner.cfg)
        assert loss == AnchoredActorLoss(alpha)
        found.append(learner.improvement.deterministic(batch.obs, batch.action, FIRST, loss))
        gradients.append(learner.actor.learner.parameters.grad.clone())
    assert_close(*found)
    assert_close(*gradients)


@pytest.mark.parametrize("expectile", [0.1, 0.5, 0.9])
def test_state_values_have_one_gradient_and_one_loss(expectile: float) -> None:
    batch = transitions(CONTINUOUS, 13, 3)
    found, gradients, values = [], [], []
    for learner in both("iql"):
        values.append(np.array(learner.values.outputs(batch.obs)))
        regression = ExpectileRegression(expectile)
        found.append(learner.values.fit(batch.obs, regression, batch.reward, learning_rate=0.0))
        gradients.append(learner.values.learner.parameters.grad.clone())
    assert_close(*values)
    assert_close(*found)
    assert_close(*gradients)


@pytest.mark.parametrize("rows", [1, 31, 32, 33, 64, 100])
@pytest.mark.parametrize(("samples", "weight"), [(1, 0.5), (7, 3.0)])
def test_conservative_critics_have_one_gradient_however_many_states_there_are(
    rows: int, samples: int, weight: float
) -> None:
    """The engine goes through the states in blocks of 32."""
    batch, rng = transitions(CONTINUOUS, rows, 3), np.random.default_rng(5)
    actions = rng.uniform(-1.0, 1.0, (rows, samples, 2)).astype(np.float32)
    drawn = DrawnActions(actions, rng.normal(-1.0, 2.0, (rows, samples)).astype(np.float32))
    found, gradients = [], []
    for learner in both("cql"):
        found.append(learner.critics.fit_conservatively(batch.obs, batch.action, batch.reward, drawn, weight, 0.0))
        gradients.append(learner.critics.learner.parameters.grad.clone())
    assert_close(*found)
    assert_close(*gradients)


@pytest.mark.parametrize("info", [DISCRETE, MASKED], ids=["all allowed", "masked"])
@pytest.mark.parametrize("conservatism", [0.0, 4.0])
def test_discrete_q_values_have_one_gradient_and_one_outcome(info: SpaceInfo, conservatism: float) -> None:
    batch = allowed_transitions(info, 13, 3)
    outcomes, gradients = [], []
    for learner in both("cql", info):
        ones = np.ones(13, np.float32)
        outcomes.append(learner.q.differentiate(batch.obs, batch.action, batch.reward, ones, conservatism))
        gradients.append(learner.q.learner.parameters.grad.clone())
    for name in ("loss", "value", "td_error", "gap"):
        assert_close(*(getattr(outcome, name) for outcome in outcomes), name)
    assert_close(*gradients)


# Acting and judging


@pytest.mark.parametrize(
    ("algo", "info", "option"),
    [
        *((algo, CONTINUOUS, {"hidden_sizes": [130, 70]}) for algo in OFFLINE),
        *((algo, *option) for algo, options in OPTIONS.items() for option in options),
    ],
    ids=str,
)
def test_both_engines_act_alike(algo: str, info: SpaceInfo, option: dict[str, Any]) -> None:
    fast, slow = both(algo, info, **option)
    batch = allowed_transitions(info, 16, 0)
    for learner in (fast, slow):
        learner.update(batch)
    for rows in (1, 5):
        obs = transitions(info, rows, rows).obs
        for explore in (False, True):
            assert_close(*(acted(learner, obs, explore=explore) for learner in (fast, slow)))


@pytest.mark.parametrize(("info", "loss"), [(CONTINUOUS, "mse"), (CONTINUOUS, "likelihood"), (DISCRETE, "mse")])
def test_the_validation_loss_is_the_same_on_both_engines(info: SpaceInfo, loss: str) -> None:
    batch = transitions(info, 20, 7)
    losses = [learner.validation_loss(batch.obs, batch.action) for learner in both("bc", info, loss=loss)]
    assert_close(*losses)


@pytest.mark.parametrize(
    ("algo", "actions", "online"),
    [
        (algo, kind, online)
        for algo in OFFLINE
        for kind in REGISTRY[algo].capabilities.actions
        for online in (False, True)
        if not (algo == "bc" and online)  # it never acts to learn
    ],
)
def test_a_whole_run_is_the_same_on_both_engines(algo: str, actions: str, online: bool) -> None:
    fast, slow = (taught(algo, engine, actions, online) for engine in ("auto", "autograd"))
    assert (fast.engine, slow.engine) == ("mlp", "autograd")
    assert fast.n_updates == slow.n_updates > 8
    for name, expected in weights_of(slow).items():
        torch.testing.assert_close(weights_of(fast)[name], expected, rtol=1e-3, atol=1e-4)


def taught(algo: str, engine: str, actions: str, online: bool) -> Any:
    """Through the real loop; choices are masked."""
    source: dict[str, Any] = {"dataset": "rl_training.testing:tiny_dataset"}
    if algo != "bc":
        source |= {"done_means": "terminal", "online": online}
    run = built(
        algo, lambda: TinyEnv(actions=actions, masked=True), engine=engine, batch_size=16, learning_rate=1e-3, **source
    )
    for _ in range(4 if online else 10):
        run.advance()
    run.close()
    return run.algorithm


@pytest.mark.parametrize("algo", OFFLINE)
def test_what_the_engine_does_not_know_is_left_to_autograd(algo: str) -> None:
    assert small(algo, "auto", CONTINUOUS, activation="elu").engine == "autograd"
    run = built(
        algo,
        lambda: TinyEnv(actions="continuous", observations="image"),
        dataset="rl_training.testing:tiny_dataset",
        **({} if algo == "bc" else {"done_means": "terminal"}),
    )
    run.close()
    assert run.algorithm.engine == "autograd"
