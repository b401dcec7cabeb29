"""DQN's update: its target and loss by hand on tables, and its steps against a plain reference in torch."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conformance import DISCRETE, ENGINES, agent, boxed
from off_policy_reference import (
    MASKED,
    PARTS,
    acted,
    adam,
    assert_same_weights,
    bootstrapped,
    flat,
    follow,
    rows_of,
    tensor,
    transitions,
    weights_of,
)
from rl_training.algorithms.dqn import SPEC, DQNConfig
from rl_training.algorithms.off_policy import Minibatch
from rl_training.algorithms.parts.discrete_q import dqn_loss, dqn_target
from rl_training.data.batches import Transitions
from rl_training.data.memory import ReplayMemory
from rl_training.data.replay import make_replay
from rl_training.data.samplers import PrioritizedSampler
from rl_training.experiment.config import ConfigError, load_config
from rl_training.models.mlp_q import MLPQNetwork
from rl_training.ops.observations import Unpacker, pack
from rl_training.ops.value import dueling_values
from rl_training.runtime.envs.make import describe_spaces
from rl_training.types import SpaceInfo, Step

EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)
TABLE = describe_spaces(boxed(3), gym.spaces.Discrete(3), "table")
ONLINE = [[1.0, 2.0, 0.0], [0.0, 5.0, 4.0], [7.0, 6.0, 8.0]]  # the value of each action in states 0, 1 and 2
SLOW = [[0.5, 0.6, 0.7], [30.0, 10.0, 20.0], [3.0, 2.0, 1.0]]


def dqn(info: SpaceInfo = DISCRETE, **settings: Any) -> Any:
    return agent("dqn", info, **({"learning_rate": 1e-2, "batch_size": 16} | settings))


def table(values: Any, module: nn.Module) -> None:
    """Make a network without hidden layers give these values for one-hot observations."""
    with torch.no_grad():
        module.layers.head.weight.copy_(torch.tensor(values).T)
        module.layers.head.bias.zero_()


def tabular(engine: str, **settings: Any) -> Any:
    learner = dqn(TABLE, hidden_sizes=[], engine=engine, **({"learning_rate": 0.0} | settings))
    table(ONLINE, learner.learners["network"].module)
    table(SLOW, learner.followers["network"].module)
    return learner


def one_hot(*states: int) -> np.ndarray:
    return np.eye(3, dtype=np.float32)[list(states)]


def steps(
    states: list[int], actions: list[int], rewards: list[float], successors: list[int], **changes: Any
) -> Transitions:
    rows = len(states)
    flags = {"terminated": np.zeros(rows, np.bool_), "truncated": np.zeros(rows, np.bool_)} | {
        name: np.array(changes[name]) for name in ("terminated", "truncated") if name in changes
    }
    return Transitions(
        one_hot(*states),
        np.array(actions),
        np.array(rewards, np.float32),
        one_hot(*successors),
        discount=np.array(changes.get("discount", [0.9] * rows), np.float32),
        weight=np.array(changes["weight"], np.float32) if "weight" in changes else None,
        **flags,
    )


# By hand


def test_the_loss_is_huber_of_the_chosen_values() -> None:
    values = torch.tensor([[1.0, 9.0], [9.0, 2.0], [3.0, 9.0]])
    target = torch.tensor([1.5, 5.0, 1.0])
    weight = torch.tensor([1.0, 0.5, 2.0])
    # Errors of 0.5, 3 and 2: squared up to 1, linear beyond.
    loss = dqn_loss(values, torch.tensor([0, 1, 0]), target, weight)
    assert loss.item() == pytest.approx((1.0 * 0.125 + 0.5 * 2.5 + 2.0 * 1.5) / 3)


def test_the_target_bootstraps_from_truncated_but_not_from_terminated_steps() -> None:
    zeros = np.zeros(3, np.float32)
    mini = Minibatch(
        zeros,
        zeros,
        np.array([1.0, 2.0, 3.0], np.float32),
        zeros,
        np.array([False, True, False]),
        np.array([0.9, 0.9, 0.9**3], np.float32),
        None,
    )
    judged = np.array([[10.0, 0.0], [10.0, 0.0], [0.0, 20.0]], np.float32)
    target = dqn_target(mini, judged, np.array([0, 0, 1]))
    np.testing.assert_allclose(target, [1 + 0.9 * 10, 2.0, 3 + 0.9**3 * 20], rtol=1e-6)
    assert target.dtype == np.float32


@EACH_ENGINE
@pytest.mark.parametrize(("double_q", "judged"), [(True, 10.0), (False, 30.0)])
def test_the_online_network_chooses_what_the_slow_one_judges(engine: str, double_q: bool, judged: float) -> None:
    """In state 1 the online network prefers action 1, which the slow one values at 10; its own best is worth 30."""
    learner = tabular(engine, double_q=double_q)
    learner.update(steps([0], [1], [3.0], [1]))
    np.testing.assert_allclose(learner.td_errors, [2.0 - (3.0 + 0.9 * judged)], rtol=1e-6)


@EACH_ENGINE
@pytest.mark.parametrize(("double_q", "judged"), [(True, 20.0), (False, 30.0)])
def test_a_forbidden_choice_is_neither_chosen_nor_judged(engine: str, double_q: bool, judged: float) -> None:
    """Action 1, which the online network would choose, is forbidden: its next best is action 2."""
    info = SpaceInfo((16,), "uint8", "discrete", (), 3, (3,), (0,), parts=PARTS, mask_size=3)
    learner = agent("dqn", info, hidden_sizes=[], engine=engine, learning_rate=0.0, double_q=double_q)
    table(ONLINE, learner.learners["network"].module)
    table(SLOW, learner.followers["network"].module)
    step = steps([0], [1], [3.0], [1])
    masked = [pack(row, mask, PARTS, 3)[None] for row, mask in ((step.obs[0], None), (step.next_obs[0], [1, 0, 1]))]
    learner.update(replace(step, obs=masked[0], next_obs=masked[1]))
    np.testing.assert_allclose(learner.td_errors, [2.0 - (3.0 + 0.9 * judged)], rtol=1e-6)
    assert acted(learner, masked[1], explore=False).tolist() == [2]


@EACH_ENGINE
def test_errors_and_loss_of_an_update_by_hand(engine: str) -> None:
    learner = tabular(engine)
    batch = steps(
        [0, 1, 2, 0],
        [0, 2, 1, 2],
        [0.5, 1.0, 2.0, 0.0],
        [1, 2, 0, 2],
        terminated=[False, True, False, False],
        truncated=[False, False, True, False],
        discount=[0.9, 0.9, 0.9, 0.81],
        weight=[1.0, 0.5, 0.25, 1.0],
    )
    metrics = learner.update(batch)
    # Values 1, 4, 6, 0; the online choices 1, 2, 1, 2 are judged 10, 1, 0.6, 1.
    errors = [1.0 - (0.5 + 9.0), 4.0 - 1.0, 6.0 - (2.0 + 0.54), 0.0 - 0.81]
    np.testing.assert_allclose(learner.td_errors, errors, rtol=1e-5)
    huber = [8.0, 2.5, 2.96, 0.5 * 0.81**2]
    assert metrics["loss"] == pytest.approx((huber[0] + 0.5 * huber[1] + 0.25 * huber[2] + huber[3]) / 4)
    assert metrics["q_mean"] == pytest.approx((1 + 4 + 6 + 0) / 4)


@EACH_ENGINE
def test_the_gradient_reaches_only_the_chosen_value_and_is_weighted_and_clipped(engine: str) -> None:
    learner = tabular(engine, max_grad_norm=1e9)
    learner.update(steps([0, 1], [0, 2], [1.75, 0.0], [2, 2], terminated=[True, True], weight=[0.5, 1.0]))
    # Errors of -0.75 and 4, of which the latter counts as 1; each is averaged over two rows.
    expected = np.zeros((3, 3))
    expected[0, 0], expected[2, 1] = 0.5 * -0.75 / 2, 1.0 / 2
    gradient = learner.learners["network"].module.layers.head.weight.grad
    np.testing.assert_allclose(gradient.numpy(), expected, atol=1e-6)


def test_dueling_values_by_hand() -> None:
    outputs = torch.tensor([[10.0, 1.0, 2.0, 6.0], [0.0, -1.0, 1.0, 0.0]])
    expected = torch.tensor([[8.0, 9.0, 13.0], [-1.0, 1.0, 0.0]])
    torch.testing.assert_close(dueling_values(outputs), expected)
    network = MLPQNetwork(TABLE, [4], "relu", dueling=True)
    assert network.layers.head.out_features == 4
    values = network(torch.randn(5, 3))
    value = network.layers(torch.zeros(5, 3))[:, 0]
    assert values.shape == (5, 3)
    torch.testing.assert_close(network(torch.zeros(5, 3)).mean(dim=-1), value, atol=1e-6, rtol=1e-5)


# Against plain torch


class Reference:
    """Double Q-learning as in the papers, with everything that is optional."""

    def __init__(self, learner: Any, *, dueling: bool) -> None:
        self.cfg, self.dueling, self.count = learner.cfg, dueling, 0
        self.inputs = Unpacker(learner.info)
        self.network = copy.deepcopy(learner.learners["network"].module)
        self.slow = copy.deepcopy(self.network)
        self.optimiser = adam(self.network, self.cfg.learning_rate)

    def values(self, network: nn.Module, rows: np.ndarray) -> Tensor:
        out: Tensor = network.layers(tensor(self.inputs.inputs(rows)))
        return out[:, :1] + out[:, 1:] - out[:, 1:].mean(dim=1, keepdim=True) if self.dueling else out

    def update(self, step: Transitions) -> float:
        self.count += 1
        mask = self.inputs.mask(step.next_obs)
        forbidden = ~tensor(mask) if mask is not None else torch.zeros(len(step.reward), 4, dtype=torch.bool)
        with torch.no_grad():
            judged = self.values(self.slow, step.next_obs)
            choosing = self.values(self.network, step.next_obs) if self.cfg.double_q else judged
            chosen = choosing.masked_fill(forbidden, -torch.inf).argmax(dim=1)
            target = bootstrapped(step, judged[torch.arange(len(chosen)), chosen])
        value = self.values(self.network, step.obs)[torch.arange(len(chosen)), tensor(step.action)]
        error = value - target
        huber = torch.where(error.abs() <= 1, 0.5 * error**2, error.abs() - 0.5)
        weight = np.ones(len(chosen), np.float32) if step.weight is None else step.weight
        loss = (tensor(weight) * huber).mean()
        self.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), self.cfg.max_grad_norm, foreach=False)
        self.optimiser.step()
        if self.count % self.cfg.target_update_interval == 0:
            follow(self.slow, self.network, self.cfg.tau)
        return loss.item()


@EACH_ENGINE
@pytest.mark.parametrize("info", [DISCRETE, MASKED], ids=["free", "masked"])
@pytest.mark.parametrize(
    ("dueling", "weighted", "settings"),
    [
        (False, False, {}),
        (True, True, {"max_grad_norm": 0.1}),
        (False, True, {"double_q": False, "tau": 0.3, "target_update_interval": 1}),
        (True, False, {"target_update_interval": 2, "activation": "silu"}),
    ],
    ids=str,
)
def test_updates_equal_a_plain_reference_in_torch(
    info: SpaceInfo, engine: str, dueling: bool, weighted: bool, settings: dict[str, Any]
) -> None:
    learner = dqn(info, engine=engine, dueling=dueling, **({"target_update_interval": 2, "tau": 0.5} | settings))
    assert learner.engine == ("mlp" if engine == "auto" else "autograd")
    reference = Reference(learner, dueling=dueling)
    before = weights_of(learner)["network"]
    for seed in range(4):
        batch = transitions(info, 16, seed, weighted=weighted)
        loss = reference.update(batch)
        assert learner.update(batch)["loss"] == pytest.approx(loss, rel=1e-3)
    assert (weights_of(learner)["network"] - before).abs().max() > 1e-2
    assert_same_weights(weights_of(learner), {"network": flat(reference.network), "slow network": flat(reference.slow)})


# Targets, minibatches, exploration


@EACH_ENGINE
def test_the_target_network_moves_once_in_its_interval(engine: str) -> None:
    learner = dqn(engine=engine, target_update_interval=3)
    slow, moved = learner.followers["network"].weights.data, []
    for seed in range(7):
        before = slow.clone()
        learner.update(transitions(DISCRETE, 16, seed))
        moved.append(not torch.equal(slow, before))
        if moved[-1]:
            assert torch.equal(slow, learner.learners["network"].parameters.data)
    assert moved == [False, False, True, False, False, True, False]


@EACH_ENGINE
def test_minibatches_drawn_together_are_learned_from_in_order(engine: str) -> None:
    together, apart = dqn(engine=engine), dqn(engine=engine)
    batch = transitions(DISCRETE, 48)
    metrics = together.update(batch)
    losses = []
    for start in range(0, 48, 16):
        losses.append(apart.update(rows_of(batch, slice(start, start + 16)))["loss"])
    assert together.n_updates == apart.n_updates == 3
    assert metrics["loss"] == pytest.approx(np.mean(losses))
    assert torch.equal(weights_of(together)["network"], weights_of(apart)["network"])


@EACH_ENGINE
def test_the_metric_names_are_stable(engine: str) -> None:
    assert set(dqn(engine=engine).update(transitions(DISCRETE, 16))) == {"loss", "q_mean", "grad_norm"}


@EACH_ENGINE
@pytest.mark.parametrize("epsilon", [0.0, 0.25, 1.0])
def test_epsilon_is_the_share_of_random_actions(engine: str, epsilon: float) -> None:
    learner = tabular(engine, epsilon=epsilon)
    obs = one_hot(*[0] * 4000)
    shares = np.bincount(acted(learner, obs, explore=True), minlength=3) / 4000
    others = epsilon / 3
    np.testing.assert_allclose(shares, [others, 1 - 2 * others, others], atol=0.03)
    assert (acted(learner, obs, explore=False) == 1).all()


@EACH_ENGINE
def test_random_actions_keep_to_what_is_allowed(engine: str) -> None:
    learner = dqn(MASKED, engine=engine, epsilon=0.5)
    rows = np.repeat(pack(np.zeros(3), np.array([0, 1, 0, 1]), PARTS, 4)[None], 400, axis=0)
    random = learner.policy.act_randomly(rows, None, rng=np.random.default_rng(1)).action
    for action in (acted(learner, rows, explore=True), random):
        assert set(action.tolist()) == {1, 3}
    assert np.bincount(random)[1] == pytest.approx(200, abs=50)


def stored(state: int, **changes: Any) -> Step:
    """A step of one environment that terminates."""
    one = steps([state], [0], [1.0], [2], terminated=[True], **changes)
    return Step(one.obs, one.action, one.reward, one.next_obs, one.terminated, one.truncated, np.ones(1, np.bool_))


@EACH_ENGINE
def test_errors_become_priorities_and_priorities_weights(engine: str) -> None:
    """The replay's four transitions are drawn with weights (N P)^-beta, and get new priorities by their new errors."""
    learner = tabular(engine, prioritized=True, per_alpha=0.5, per_beta=0.7, batch_size=4)
    assert learner.prioritized
    replay = make_replay(TABLE, 1, 4, 1)
    memory = ReplayMemory(replay, PrioritizedSampler(replay))
    assert memory.at_once == 1
    for state in (0, 1, 2, 0):
        memory.add(stored(state))
    first = memory.transitions(64, np.random.default_rng(0), gamma=0.9)
    numbers = np.unique(first.index)  # of the four rows
    errors = np.array([3.0, 1.0, 0.5, 2.0], np.float32)
    memory.note(numbers, errors=errors, alpha=0.5)
    drawn, noted = [], []
    transitions, note = memory.transitions, memory.note
    memory.transitions = lambda *given, **more: drawn.append(transitions(*given, **more)) or drawn[-1]
    memory.note = lambda *given, **more: noted.append((given, more)) or note(*given, **more)
    learner.learn_from(memory, 1)
    (batch,) = drawn
    priority = np.sqrt(errors + 1e-6)
    expected = ((4 * priority / priority.sum()) ** -0.7)[np.searchsorted(numbers, batch.index)]
    np.testing.assert_allclose(batch.weight, expected / expected.max(), rtol=1e-5)
    ((index,), more) = noted[0]
    assert index is batch.index
    assert (more["alpha"], len(noted)) == (0.5, 1)
    # All of them terminate with a reward of 1.
    values = np.array(ONLINE)[batch.obs.argmax(axis=1), 0]
    np.testing.assert_allclose(more["errors"], values - 1.0, rtol=1e-6)
    np.testing.assert_array_equal(more["errors"], learner.td_errors)


@EACH_ENGINE
def test_without_priorities_minibatches_are_drawn_together_and_nothing_is_noted(engine: str) -> None:
    learner = tabular(engine, batch_size=4)
    assert not learner.prioritized
    memory = ReplayMemory(make_replay(TABLE, 1, 4, 1))
    for state in (0, 1, 2, 0):
        memory.add(stored(state))
    counts = []
    transitions = memory.transitions
    memory.transitions = lambda count, *given, **more: counts.append(count) or transitions(count, *given, **more)
    memory.note = None
    metrics = learner.learn_from(memory, memory.at_once + 3)
    assert counts == [4 * memory.at_once, 4 * 3]
    assert learner.n_updates == memory.at_once + 3
    assert metrics["q_mean"] > 0.0


# Mistakes


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("learning_rate", -1e-3),
        ("gamma", 1.5),
        ("batch_size", 0),
        ("tau", 2),
        ("n_step", 0),
        ("epsilon", 1.5),
        ("epsilon", -0.1),
        ("target_update_interval", 0),
        ("per_alpha", 1.1),
        ("per_beta", -0.4),
        ("max_grad_norm", 0.0),
        ("buffer_size", 0),
        ("learning_starts", -1),
        ("train_every", 0),
        ("updates_per_step", 0.0),
        ("dueling", "perhaps"),
    ],
)
def test_an_invalid_hyperparameter_fails_before_anything_is_built(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{key}={value!r}: must be"):
        load_config({"algo": "dqn", "env_id": "none", key: value})


@pytest.mark.parametrize("key", ["ent_coef", "noise_std", "n_critics", "policy_delay", "n_steps"])
def test_what_dqn_does_not_have_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: unknown key"):
        load_config({"algo": "dqn", "env_id": "none", key: 1})


def test_a_schedule_of_epsilon_stays_a_probability() -> None:
    with pytest.raises(ConfigError, match=r"epsilon_schedule=1\.5: it reaches 1\.5, but epsilon must be"):
        load_config({"algo": "dqn", "env_id": "none", "epsilon_schedule": 1.5, "total_timesteps": 10})


def test_the_spec_says_what_dqn_is() -> None:
    assert SPEC.name == "dqn"
    assert SPEC.config is DQNConfig
    assert SPEC.capabilities.actions == ("discrete",)
