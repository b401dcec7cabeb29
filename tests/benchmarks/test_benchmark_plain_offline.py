"""The peer that was written for the offline works: that it learns what it says, with all of the work and no more."""

from __future__ import annotations

from collections import Counter
from math import log
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmark_helpers import load

plain = load("plain_offline")
ROWS = 6


class Descent:
    """An optimiser; those of torch take seconds to import."""

    def __init__(self, parameters: Any, learning_rate: float) -> None:
        self.parameters, self.learning_rate = list(parameters), learning_rate

    def zero_grad(self) -> None:
        for tensor in self.parameters:
            tensor.grad = None

    def step(self) -> None:
        for tensor in self.parameters:
            tensor.data -= self.learning_rate * tensor.grad


@pytest.fixture(autouse=True)
def _light_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "adam", Descent)


@pytest.fixture
def batch() -> Any:
    torch.manual_seed(1)
    terminated = torch.zeros(ROWS)
    terminated[2] = 1.0
    return plain.Batch(
        torch.randn(ROWS, 4), torch.rand(ROWS, 2) * 2.0 - 1.0, torch.randn(ROWS), torch.randn(ROWS, 4), terminated
    )


def make(name: str, learning_rate: float = 0.1) -> Any:
    torch.manual_seed(2)
    return plain.LEARNERS[name](plain.Sizes(4, 2, [8, 8]), learning_rate)


def networks(learner: Any) -> dict[str, nn.Sequential]:
    """Every network of a learner by its name; the critics are two."""
    found = {}
    for name, part in vars(learner).items():
        if isinstance(part, plain.Critics):
            found |= {f"{name}.first": part.first, f"{name}.second": part.second}
        elif isinstance(part, nn.Module):
            found[name] = getattr(part, "network", part)
    return found


ONCE = {"critics_target.first": 1, "critics_target.second": 1}
PASSES = {
    "bc": {"actor": 1},
    # Two updates, of which the second moves the actor by the first critic.
    "td3_bc": {"actor": 1, "actor_target": 2, "critics.first": 3, "critics.second": 2} | dict.fromkeys(ONCE, 2),
    # The actor: the next action, one of its own, and the densities. The critics: to learn, and for the advantages.
    "awac": {"actor": 3, "critics.first": 3, "critics.second": 3} | ONCE,
    "iql": {"actor": 1, "value": 2, "critics.first": 1, "critics.second": 1} | ONCE,
    # The actor: its own step, the next action, 10 at s and 10 at s'. The critics: its step, the data, 30 actions.
    "cql": {"actor": 22, "critics.first": 32, "critics.second": 32} | ONCE,
}


@pytest.mark.parametrize("name", list(PASSES))
def test_all_of_the_work_is_done_and_no_more(name: str, batch: Any) -> None:
    """How often a minibatch goes through each network, and that all of them move."""
    learner = make(name)
    rows: Counter[str] = Counter()
    for title, network in networks(learner).items():
        network.register_forward_hook(lambda _, given, __, title=title: rows.update({title: len(given[0])}))
    tensors = [tensor for part in vars(learner).values() if isinstance(part, nn.Module) for tensor in part.parameters()]
    before = [tensor.clone() for tensor in tensors]
    for _ in range(2 if name == "td3_bc" else 1):
        learner.update(batch)
    assert rows == {title: count * ROWS for title, count in PASSES[name].items()}
    assert not any(torch.equal(*pair) for pair in zip(tensors, before, strict=True))


def critic_loss(learner: Any, batch: Any, next_value: Tensor) -> float:
    target = batch.reward + 0.99 * (1.0 - batch.terminated) * next_value
    inputs = torch.cat([batch.obs, batch.action], dim=1)
    errors = [network(inputs)[:, 0] - target for network in (learner.critics.first, learner.critics.second)]
    return sum(float((error**2).mean()) for error in errors)


def least(critics: Any, obs: Tensor, action: Tensor) -> Tensor:
    inputs = torch.cat([obs, action], dim=1)
    return torch.minimum(critics.first(inputs), critics.second(inputs))[:, 0]


def gaussian(actor: Any, obs: Tensor) -> Tensor:
    """An action with the noise that comes next; the deviation is 1 at the start."""
    return (torch.tanh(actor.network(obs)) + torch.randn(len(obs), 2)).clamp(-1.0, 1.0)


def density(actor: Any, batch: Any) -> Tensor:
    error = batch.action - torch.tanh(actor.network(batch.obs))
    return (-0.5 * error**2 - 0.5 * log(2.0 * np.pi)).sum(dim=1)


@torch.no_grad()
def expected_bc(learner: Any, batch: Any) -> dict[str, float]:
    return {"actor_loss": float(((torch.tanh(learner.actor.network(batch.obs)) - batch.action) ** 2).mean())}


@torch.no_grad()
def expected_td3_bc(learner: Any, batch: Any) -> dict[str, float]:
    """Of an update with the actor; nothing moves in between."""
    noise = (0.2 * torch.randn(ROWS, 2)).clamp(-0.5, 0.5)
    next_action = (torch.tanh(learner.actor_target.network(batch.next_obs)) + noise).clamp(-1.0, 1.0)
    next_value = least(learner.critics_target, batch.next_obs, next_action)
    action = torch.tanh(learner.actor.network(batch.obs))
    value = learner.critics.first(torch.cat([batch.obs, action], dim=1))[:, 0]
    actor_loss = ((action - batch.action) ** 2).mean() - 2.5 * value.mean() / value.abs().mean()
    return {"critic_loss": critic_loss(learner, batch, next_value), "actor_loss": float(actor_loss)}


@torch.no_grad()
def expected_awac(learner: Any, batch: Any) -> dict[str, float]:
    next_value = least(learner.critics_target, batch.next_obs, gaussian(learner.actor, batch.next_obs))
    own = least(learner.critics, batch.obs, gaussian(learner.actor, batch.obs))
    weight = torch.exp(3.0 * (least(learner.critics, batch.obs, batch.action) - own))
    actor_loss = -(weight * density(learner.actor, batch)).mean()
    return {"critic_loss": critic_loss(learner, batch, next_value), "actor_loss": float(actor_loss)}


@torch.no_grad()
def expected_iql(learner: Any, batch: Any) -> dict[str, float]:
    advantage = least(learner.critics_target, batch.obs, batch.action) - learner.value(batch.obs)[:, 0]
    value_loss = torch.where(advantage > 0.0, 0.7, 0.3) * advantage**2
    actor_loss = -(torch.exp(3.0 * advantage) * density(learner.actor, batch)).mean()
    return {
        "value_loss": float(value_loss.mean()),
        "critic_loss": critic_loss(learner, batch, learner.value(batch.next_obs)[:, 0]),
        "actor_loss": float(actor_loss),
    }


@torch.no_grad()
def expected_cql(learner: Any, batch: Any) -> dict[str, float]:
    """The gap has tests of its own."""
    action, log_prob = learner.actor(batch.obs)
    next_value = least(learner.critics_target, batch.next_obs, learner.actor(batch.next_obs)[0])
    gap = learner.conservative_loss(learner.critics(batch.obs, batch.action), batch)
    return {
        "entropy_loss": 0.0,  # the logarithm of the coefficient is 0
        "actor_loss": float((log_prob - least(learner.critics, batch.obs, action)).mean()),
        "critic_loss": critic_loss(learner, batch, next_value) + 5.0 * float(gap),
    }


@pytest.mark.parametrize("expected", [expected_bc, expected_td3_bc, expected_awac, expected_iql, expected_cql])
def test_losses_of_plain(expected: Any, batch: Any) -> None:
    """With a learning rate of nothing, so that the losses of one update all belong to the same weights."""
    name = expected.__name__.removeprefix("expected_")
    learner = make(name, learning_rate=0.0)
    if name == "td3_bc":
        learner.update(batch)
    torch.manual_seed(3)
    losses = learner.update(batch)
    torch.manual_seed(3)
    assert losses == pytest.approx(expected(learner, batch), rel=1e-5)


def test_noise_of_plain_is_clipped(batch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "randn_like", lambda action: torch.full_like(action, 10.0))
    learner = make("td3_bc", learning_rate=0.0)
    found = learner.update(batch)["critic_loss"]
    with torch.no_grad():
        next_action = (torch.tanh(learner.actor_target.network(batch.next_obs)) + 0.5).clamp(-1.0, 1.0)
        next_value = least(learner.critics_target, batch.next_obs, next_action)
        assert found == pytest.approx(critic_loss(learner, batch, next_value), rel=1e-6)


def test_weights_of_plain_are_clipped(batch: Any) -> None:
    learner = make("iql", learning_rate=0.0)
    nn.init.constant_(learner.value[-1].bias, -10.0)  # advantages near 10: exponentials near 1e13
    expected = -100.0 * density(learner.actor, batch).mean()
    assert learner.update(batch)["actor_loss"] == pytest.approx(float(expected.detach()), rel=1e-5)


def test_conservative_loss_of_plain_knows_the_density_of_each_action(batch: Any) -> None:
    """Where Q is 7 everywhere, each of 30 samples stands for exp 7 times the volume 2 * 2, on average."""
    learner = make("cql")
    for network in (learner.critics.first, learner.critics.second):
        nn.init.zeros_(network[-1].weight)
        nn.init.constant_(network[-1].bias, 7.0)
    many = plain.Batch(*(column.repeat_interleave(200, dim=0) for column in vars(batch).values()))
    values = learner.critics(many.obs, many.action)
    found = float(learner.conservative_loss(values, many).detach())
    assert found == pytest.approx(2.0 * log(30 * 4.0), abs=0.3)
    # A gap is what the values of the data lack: raising these by one lowers it by one, for each critic.
    raised = learner.conservative_loss([value + 1.0 for value in values], many)
    assert float(raised.detach()) == pytest.approx(found - 2.0, abs=0.1)


def test_conservative_loss_of_plain_pushes_values_down(batch: Any) -> None:
    learner = make("cql")
    values = learner.critics(batch.obs, batch.action)
    learner.conservative_loss([value.detach() for value in values], batch).backward()
    gradient = learner.critics.second[-1].bias.grad
    assert float(gradient) == pytest.approx(1.0, rel=1e-5)  # the weights of the samples sum up to one
    assert all(tensor.grad is None for tensor in learner.actor.parameters())


def test_conservative_loss_of_plain_has_actions_of_three_kinds_at_every_state(batch: Any) -> None:
    learner = make("cql")
    asked: list[Tensor] = []
    judged: list[Tensor] = []
    learner.actor.network.register_forward_hook(lambda _, given, __: asked.append(given[0]))
    learner.critics.first.register_forward_hook(lambda _, given, __: judged.append(given[0][:, :4]))
    learner.conservative_loss([torch.zeros(ROWS)] * 2, batch)
    obs, next_obs = (column.repeat_interleave(10, dim=0) for column in (batch.obs, batch.next_obs))
    for found, expected in ((asked, [obs, next_obs]), (judged, [obs, obs, obs])):
        torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0)


def test_cql_of_plain_learns_its_entropy_coefficient(batch: Any) -> None:
    """It falls while the entropy is above -2, its target, and rises below."""
    learner = make("cql")
    torch.manual_seed(3)
    with torch.no_grad():
        _, log_prob = learner.actor(batch.obs)
    torch.manual_seed(3)
    learner.update(batch)
    assert float(learner.log_ent_coef.detach()) == pytest.approx(0.1 * float((log_prob - 2.0).mean()), rel=1e-5)


def test_memory_of_plain_keeps_rows_together() -> None:
    count = np.arange(50, dtype=np.float32)
    columns = {"observations": 11, "actions": 3, "next_observations": 11}
    arrays = {name: np.repeat(count[:, None], size, axis=1) for name, size in columns.items()}
    drawn = plain.Memory(arrays | {"rewards": count, "terminals": count % 2 == 1}).sample(400)
    assert drawn.obs.shape == (400, 11)
    for column in (drawn.obs, drawn.action, drawn.next_obs):
        assert torch.equal(column, drawn.reward[:, None].expand_as(column))
    assert torch.equal(drawn.terminated, drawn.reward % 2)
    assert len(set(drawn.reward.tolist())) > 45  # any row may come
