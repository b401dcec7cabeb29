"""The fast path of the off-policy algorithms learns and acts as autograd does; what it does not cover is left to it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from conformance import CONTINUOUS, DISCRETE, ENGINES, OFF_POLICY, agent, built, known_settings
from off_policy_reference import MASKED, acted, transitions, weights_of
from rl_training.algorithms.base import PolicyContext
from rl_training.experiment.config import load_config
from rl_training.experiment.registry import REGISTRY
from rl_training.models.ensemble import CriticEnsemble, StackedMLP
from rl_training.runtime.envs.make import describe_spaces
from rl_training.runtime.rng import make_streams
from rl_training.testing import TinyEnv
from rl_training.types import SpaceInfo

EACH = pytest.mark.parametrize("algo", OFF_POLICY)
# What an algorithm can be told that changes the mathematics of its update.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "dqn": [
        {"double_q": False},
        {"dueling": True, "activation": "tanh"},
        {"target_update_interval": 2, "tau": 0.5, "max_grad_norm": 0.1},
    ],
    "ddpg": [{"n_critics": 2}],
    "td3": [{"policy_delay": 1}, {"policy_delay": 3, "n_critics": 3}, {"target_policy_noise": 1.0}],
    "sac": [{"ent_coef": 0.2}, {"ent_coef": "auto_0.1", "target_entropy": 1.0}, {"n_critics": 1}],
    "redq": [{"policy_delay": 2}, {"subset_size": 1, "policy_delay": 1}, {"n_critics": 4, "subset_size": 4}],
    "tqc": [{"top_quantiles_to_drop": 0}, {"n_quantiles": 3, "top_quantiles_to_drop": 2, "n_critics": 4}],
}
EVERYWHERE: list[dict[str, Any]] = [
    {},
    {"activation": "tanh"},
    {"activation": "silu"},
    {"hidden_sizes": [12, 6, 8]},
    {"hidden_sizes": []},
    {"hidden_sizes": [130, 70]},
    {"normalize_obs": True},
]
CASES = [(algo, option) for algo in OFF_POLICY for option in EVERYWHERE + OPTIONS[algo]]


def space_of(algo: str) -> SpaceInfo:
    return DISCRETE if "discrete" in REGISTRY[algo].capabilities.actions else CONTINUOUS


def small(algo: str, engine: str, info: SpaceInfo, **settings: Any) -> Any:
    return agent(algo, info, engine=engine, **known_settings(algo, {"batch_size": 16, "policy_delay": 2}) | settings)


def taught(algo: str, engine: str, info: SpaceInfo, *, weighted: bool = False, **settings: Any) -> Any:
    """An agent after five updates, of which the last has fewer rows than the others."""
    learner = small(algo, engine, info, **settings)
    if learner.observer.normalizer is not None:
        learner.observer.update(2.0 + 3.0 * transitions(info, 50, 99).obs)
    learner.update(transitions(info, 32, 0, weighted=weighted))
    learner.update(transitions(info, 32 + 7, 1, weighted=weighted))
    assert learner.n_updates == 5
    return learner


def assert_equal_learners(algo: str, info: SpaceInfo, *, weighted: bool = False, **settings: Any) -> None:
    fast, slow = (taught(algo, engine, info, weighted=weighted, **settings) for engine in ("auto", "autograd"))
    assert (fast.engine, slow.engine) == ("mlp", "autograd")
    before, found, expected = (weights_of(learner) for learner in (small(algo, "auto", info, **settings), fast, slow))
    for name in fast.learners:
        assert not torch.equal(before[name], found[name]), f"{name} has not moved"
    for name, weights in expected.items():
        torch.testing.assert_close(found[name], weights, rtol=1e-5, atol=5e-6, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(("algo", "option"), CASES, ids=str)
def test_five_updates_are_the_same_on_both_engines(algo: str, option: dict[str, Any]) -> None:
    assert_equal_learners(algo, space_of(algo), **option)


@pytest.mark.parametrize("option", [{}, {"dueling": True}, {"double_q": False}], ids=str)
@pytest.mark.parametrize(("info", "weighted"), [(MASKED, False), (MASKED, True), (DISCRETE, True)], ids=str)
def test_masks_and_weights_are_the_same_on_both_engines(
    info: SpaceInfo, weighted: bool, option: dict[str, Any]
) -> None:
    assert_equal_learners("dqn", info, weighted=weighted, **option)


@EACH
def test_metrics_are_the_same_on_both_engines(algo: str) -> None:
    info = space_of(algo)
    fast, slow = (agent(algo, info, engine=engine, batch_size=16) for engine in ("auto", "autograd"))
    for seed in range(3):
        batch = transitions(info, 16, seed)
        assert fast.update(batch) == pytest.approx(slow.update(batch), rel=1e-4, abs=1e-5)


@EACH
@pytest.mark.parametrize("rows", [1, 3, 8, 13])
@pytest.mark.parametrize("option", [{}, {"hidden_sizes": [130, 70]}, {"activation": "tanh"}], ids=str)
def test_both_engines_act_alike(algo: str, rows: int, option: dict[str, Any]) -> None:
    info = space_of(algo)
    fast, slow = (agent(algo, info, engine=engine, **option) for engine in ("auto", "autograd"))
    obs = transitions(info, rows, rows).obs
    for explore in (False, True):
        actions = [acted(learner, obs, explore=explore) for learner in (fast, slow)]
        np.testing.assert_allclose(*actions, rtol=1e-4, atol=1e-5)


@EACH
def test_acting_sees_the_weights_as_they_are_now(algo: str) -> None:
    info = space_of(algo)
    learner, other = taught(algo, "auto", info, learning_rate=0.05), small(algo, "autograd", info)
    obs = transitions(info, 20, 5).obs
    first = acted(small(algo, "auto", info), obs, explore=False)
    assert not np.array_equal(acted(learner, obs, explore=False), first)
    other.policy.load_policy_state(learner.policy.policy_state())
    actions = [acted(one, obs, explore=False) for one in (learner, other)]
    np.testing.assert_allclose(*actions, rtol=1e-4, atol=1e-5)
    with torch.no_grad():  # from outside, as loading does
        for parameter in learner.policy.network.parameters():
            parameter.zero_()
    assert not acted(learner, obs, explore=False).any()


@EACH
def test_a_whole_run_is_the_same_on_both_engines(algo: str) -> None:
    """Through the loop, with what the policy itself did in the replay; choices of DQN are masked."""
    able = REGISTRY[algo].capabilities.actions
    kind = {"actions": able[0], "masked": True}
    runs = [built(algo, lambda: TinyEnv(**kind), engine=engine, batch_size=16) for engine in ("auto", "autograd")]
    for run in runs:
        for _ in range(4):
            run.advance()
        run.close()
    fast, slow = (run.algorithm for run in runs)
    assert (fast.engine, slow.engine) == ("mlp", "autograd")
    assert fast.n_updates == slow.n_updates > 10
    for name, expected in weights_of(slow).items():
        torch.testing.assert_close(weights_of(fast)[name], expected, rtol=1e-4, atol=2e-5)


# The policy alone


ALONE: list[tuple[str, SpaceInfo, dict[str, Any]]] = [
    *((algo, space_of(algo), {}) for algo in OFF_POLICY),
    ("dqn", MASKED, {"dueling": True, "normalize_obs": True}),
    *((algo, CONTINUOUS, {}) for algo in ("bc", "awac", "iql", "cql", "td3_bc")),
    ("bc", CONTINUOUS, {"loss": "likelihood"}),
    ("iql", CONTINUOUS, {"policy_head": "deterministic"}),
    *((algo, MASKED, {}) for algo in ("bc", "cql")),
    ("sac", CONTINUOUS, {"hidden_sizes": [], "activation": "elu"}),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("algo", "info", "option"), ALONE, ids=[f"{algo}-{option}" for algo, _, option in ALONE])
def test_a_policy_that_was_built_alone_acts_as_the_learners_does(
    algo: str, info: SpaceInfo, option: dict[str, Any], engine: str
) -> None:
    """With the tensors of the learner's policy; nothing of it is trained, and it starts from the same weights."""
    config = load_config({"algo": algo, "env_id": "none", "hidden_sizes": [8], "engine": engine, **option})
    context = PolicyContext(
        info=info, config=config.algorithm, model=config.model, device=torch.device("cpu"), engine=config.run.engine
    )
    learner = agent(algo, info, engine=engine, **option)
    make_streams(0)  # which also seeds torch, as `agent` did
    policy = config.spec.policy(context)
    assert (type(policy), policy.engine) == (type(learner.policy), learner.engine)
    first, state = policy.policy_state(), learner.policy.policy_state()
    assert list(first) == list(state)
    assert all(torch.equal(first[name], state[name]) for name in state)
    assert all(parameter.grad is None for parameter in policy.network.parameters())
    learner.observer.fit(transitions(info, 50, 99).obs)
    learner.update(transitions(info, 16, 0))
    policy.load_policy_state(learner.policy.policy_state())
    obs = transitions(info, 7, 1).obs
    for explore in (False, True):
        actions = [
            one.act(obs, None, explore=explore, rng=np.random.default_rng(3)) for one in (policy, learner.policy)
        ]
        np.testing.assert_array_equal(actions[0].action, actions[1].action)


@pytest.mark.parametrize(("algo", "name"), [("dqn", "epsilon"), ("td3", "noise_std")])
def test_a_policy_acts_by_the_latest_value_of_its_settings(algo: str, name: str) -> None:
    learner = agent(algo, space_of(algo), **{name: 0.0})
    obs = transitions(space_of(algo), 50, 1).obs
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    greedy = learner.policy.act(obs, None, explore=True, rng=rng).action
    np.testing.assert_array_equal(greedy, acted(learner, obs, explore=False))
    assert rng.bit_generator.state == before, "nothing is drawn where nothing is random"
    learner.set_hyperparameters(**{name: 0.9})
    assert learner.policy.values == {name: 0.9}
    assert not np.array_equal(learner.policy.act(obs, None, explore=True, rng=rng).action, greedy)


# What is left to autograd


@EACH
def test_an_activation_that_the_engine_does_not_know_is_left_to_autograd(algo: str) -> None:
    assert agent(algo, space_of(algo), activation="elu").engine == "autograd"
    assert agent(algo, space_of(algo)).engine == "mlp"
    assert agent(algo, space_of(algo), engine="autograd").engine == "autograd"


@EACH
@pytest.mark.parametrize("observations", ["image", "dict"])
def test_images_and_dicts_are_left_to_autograd(algo: str, observations: str) -> None:
    able = REGISTRY[algo].capabilities.actions
    run = built(algo, lambda: TinyEnv(actions=able[0], observations=observations))
    run.close()
    assert run.algorithm.engine == "autograd"


@pytest.mark.parametrize("shape", [(2, 3), (4, 1, 2)])
@EACH
def test_observations_of_several_axes_are_flattened_alike(algo: str, shape: tuple[int, ...]) -> None:
    space = gym.spaces.Box(-5.0, 5.0, shape, np.float32)
    discrete = "discrete" in REGISTRY[algo].capabilities.actions
    action = gym.spaces.Discrete(3) if discrete else gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    info = describe_spaces(space, action, "axes")
    fast, slow = (agent(algo, info, engine=engine) for engine in ("auto", "autograd"))
    assert fast.engine == "mlp"
    obs = np.random.default_rng(0).standard_normal((5, *shape)).astype(np.float32)
    actions = [acted(learner, obs, explore=False) for learner in (fast, slow)]
    np.testing.assert_allclose(*actions, rtol=1e-4, atol=1e-5)


# The stacked networks themselves


@pytest.mark.parametrize("activation", ["tanh", "relu", "silu", "elu"])
def test_a_stack_is_so_many_networks_side_by_side(activation: str) -> None:
    torch.manual_seed(0)
    stack = StackedMLP(3, 4, [8, 6], 2, activation)
    x = torch.randn(7, 4)
    kind = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU, "elu": nn.ELU}[activation]
    values = stack(x)
    assert values.shape == (3, 7, 2)
    for member in range(3):
        alone = nn.Sequential(nn.Linear(4, 8), kind(), nn.Linear(8, 6), kind(), nn.Linear(6, 2))
        with torch.no_grad():
            for layer, weight, bias in zip(alone[::2], stack.weights, stack.biases, strict=True):
                layer.weight.copy_(weight[member])
                layer.bias.copy_(bias[member])
        torch.testing.assert_close(values[member], alone(x), rtol=1e-5, atol=1e-6)


def test_members_start_apart_and_as_torch_starts_a_layer() -> None:
    torch.manual_seed(0)
    stack = StackedMLP(2, 100, [50], 1, "relu")
    first = stack.weights[0].detach()
    assert not torch.equal(first[0], first[1])
    assert 0.09 < first.abs().max() <= 0.1  # 1 / sqrt(100)
    assert first.mean().abs() < 2e-3


def test_critics_see_the_action_and_then_the_observation() -> None:
    torch.manual_seed(0)
    ensemble = CriticEnsemble(None, StackedMLP(2, 5, [], 1, "relu"))
    obs, action = torch.randn(6, 3), torch.randn(6, 2)
    weight, bias = ensemble.members.weights[0], ensemble.members.biases[0]
    expected = action @ weight[0, 0, :2] + obs @ weight[0, 0, 2:] + bias[0, 0]
    torch.testing.assert_close(ensemble(obs, action)[0, :, 0], expected)
