"""The peers that were written from papers for the learning benchmark: REDQ and PPG do what their papers say."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from benchmark_helpers import load

plain_offline, redq, ppg = map(load, ("plain_offline", "plain_redq", "plain_ppg"))


class Descent:
    """An optimiser; those of torch take seconds to import. It notes whose gradients it was given."""

    def __init__(self, parameters: Any, lr: float, eps: float = 0.0) -> None:
        self.parameters, self.lr, self.steps = list(parameters), lr, 0

    def zero_grad(self) -> None:
        for tensor in self.parameters:
            tensor.grad = None

    def step(self) -> None:
        self.steps += 1
        for tensor in self.parameters:
            if tensor.grad is not None:
                tensor.data -= self.lr * tensor.grad


@pytest.fixture(autouse=True)
def _light_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redq, "adam", Descent)
    monkeypatch.setattr(ppg.PPG, "_adam", lambda self, network, rate: Descent(network.parameters(), rate))


def make_redq(**changes: Any) -> Any:
    settings = {
        "hidden_sizes": [8],
        "n_critics": 5,
        "learning_rate": 0.1,
        "buffer_size": 100,
        "learning_starts": 5,
        "batch_size": 4,
        "tau": 0.25,
        "gamma": 0.9,
        "updates_per_step": 3,
        "subset_size": 2,
        "policy_delay": 3,
    }
    return redq.REDQ(partial(gym.make, "Pendulum-v1"), 0, **(settings | changes))


def redq_batch() -> Any:
    torch.manual_seed(1)
    ended = torch.tensor([0.0, 1.0, 0.0])
    return plain_offline.Batch(torch.randn(3, 3), torch.rand(3, 1), torch.randn(3), torch.randn(3, 3), ended)


def test_target_of_redq_is_the_least_value_of_a_drawn_subset_less_the_entropy_cost() -> None:
    agent, batch = make_redq(), redq_batch()
    agent.log_ent_coef.data.fill_(-1.0)
    for k, target in enumerate(agent.targets):
        torch.nn.init.zeros_(target[-1].weight)
        torch.nn.init.constant_(target[-1].bias, 10.0 + k)  # critic k values everything at 10 + k
    torch.manual_seed(2)
    _, log_prob = agent.actor(batch.next_obs)
    least = set()
    for _ in range(60):
        torch.manual_seed(2)
        found = (agent._target(batch) - batch.reward) / 0.9 + np.exp(-1.0) * log_prob.detach()
        assert float(agent._target(batch)[1]) == pytest.approx(float(batch.reward[1]))
        least.add(round(float(found[0]), 3))
    assert least == {10.0, 11.0, 12.0, 13.0}  # the least of two different ones is never the fifth


def test_redq_updates_all_critics_and_at_every_delay_the_actor() -> None:
    agent, batch = make_redq(), redq_batch()
    before = [critic[-1].bias.detach().clone() for critic in agent.critics]
    slow = agent.targets[0][-1].bias.detach().clone()
    agent.update(batch)
    assert all(not torch.equal(critic[-1].bias, old) for critic, old in zip(agent.critics, before, strict=True))
    assert torch.allclose(agent.targets[0][-1].bias, torch.lerp(slow, agent.critics[0][-1].bias, 0.25))
    assert agent._actor_optimizer.steps == 0
    agent.update(batch)
    agent.update(batch)
    assert (agent._actor_optimizer.steps, agent._entropy_optimizer.steps) == (1, 1)


def test_actor_of_redq_maximises_the_mean_of_all_critics(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, batch = make_redq(), redq_batch()
    seen: list[Tensor] = []
    monkeypatch.setattr(redq, "descend", lambda optimizer, loss: seen.append(loss.detach()))
    torch.manual_seed(3)
    agent._improve_actor(batch)
    torch.manual_seed(3)
    action, log_prob = agent.actor(batch.obs)
    values = torch.stack([plain_offline.ask(critic, batch.obs, action) for critic in agent.critics])
    expected = (agent.log_ent_coef.exp() * log_prob - values.mean(dim=0)).mean().detach()
    assert float(seen[0]) == pytest.approx(float(expected), rel=1e-5)


def test_redq_learns_after_the_random_steps_and_acts_within_the_bounds() -> None:
    agent, seen = make_redq(learning_rate=0.0), []
    agent.learn(8, seen.append)
    assert seen == list(range(1, 9))
    assert agent._updates == 3 * 3  # the steps 6, 7 and 8
    assert agent._memory._count == 8
    actions = agent.predict(100.0 * np.ones((4, 3)))
    assert actions.shape == (4, 1)
    assert np.abs(actions).max() <= 2.0


def make_ppg(**changes: Any) -> Any:
    settings = {
        "num_envs": 2,
        "hidden_sizes": [8, 8],
        "n_steps": 6,
        "batch_size": 4,
        "n_epochs": 2,
        "learning_rate": 0.05,
        "gamma": 0.9,
        "gae_lambda": 0.8,
        "clip_coef": 0.2,
        "ent_coef": 0.1,
        "adam_eps": 1e-8,
        "aux_interval": 2,
        "n_aux_epochs": 3,
        "aux_batch_size": 8,
        "aux_learning_rate": 0.05,
        "beta_clone": 2.0,
    }
    return ppg.PPG(partial(gym.make, "CartPole-v1", max_episode_steps=4), 0, **(settings | changes))


def test_ppg_has_an_auxiliary_phase_after_so_many_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, seen, phases = make_ppg(), [], []
    monkeypatch.setattr(agent, "auxiliary_phase", lambda obs, target: phases.append((len(obs), len(target))))
    agent.learn(60, seen.append)
    assert seen == [12, 24, 36, 48, 60]
    assert phases == [(24, 24), (24, 24)]
    assert [optimizer.steps for optimizer in agent._optimizers] == [5 * 2 * 3] * 2


def test_advantages_of_ppg_bootstrap_where_an_episode_is_truncated() -> None:
    """Every episode of four steps is truncated: the last has the value of the state that it led to."""
    agent = make_ppg(num_envs=1, n_steps=4, gae_lambda=1.0)
    torch.nn.init.zeros_(agent.value[1].weight)
    torch.nn.init.constant_(agent.value[1].bias, 7.0)  # every state is worth 7
    rollout = agent._collect()
    expected = [1.0 + 0.9 * 7.0]
    for _ in range(3):
        expected.insert(0, 1.0 + 0.9 * expected[0])
    assert rollout.target.tolist() == pytest.approx(expected)
    assert rollout.advantage.tolist() == pytest.approx([value - 7.0 for value in expected], rel=1e-5)


def test_losses_of_ppg() -> None:
    agent = make_ppg()
    rollout = agent._collect()
    auxiliary = agent.policy(rollout.obs)[1]
    probabilities = torch.softmax(agent.policy.logits(agent.policy.torso(rollout.obs)), dim=-1)
    old_logits = torch.randn(12, 2)
    old = torch.softmax(old_logits, dim=-1)
    distance = (old * (old.log() - probabilities.log())).sum(dim=-1).mean()
    errors = [((value - rollout.target) ** 2).mean() / 2.0 for value in (auxiliary, agent.value(rollout.obs))]
    found = agent.auxiliary_loss(rollout.obs, rollout.target, old_logits)
    assert float(found.detach()) == pytest.approx(float((errors[0] + 2.0 * distance + errors[1]).detach()), rel=1e-5)
    # At the policy that acted all ratios are 1, so the surrogate is the mean of standardised advantages, which is 0.
    entropy = -(probabilities * probabilities.log()).sum(dim=-1).mean()
    assert float(agent.policy_loss(rollout).detach()) == pytest.approx(-0.1 * float(entropy.detach()), abs=1e-6)
    shifted = ppg.Rollout(*vars(rollout).values())
    shifted.log_prob = rollout.log_prob - np.log(1.5)  # all ratios are 1.5, above the clip of 1.2
    advantage = (rollout.advantage - rollout.advantage.mean()) / (rollout.advantage.std() + 1e-8)
    surrogate = torch.min(1.5 * advantage, 1.2 * advantage).mean()
    expected = -float(surrogate) - 0.1 * float(entropy.detach())
    assert float(agent.policy_loss(shifted).detach()) == pytest.approx(expected, rel=1e-5)


def test_auxiliary_phase_of_ppg_keeps_the_policy_of_its_beginning_as_the_goal(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_ppg()
    rollout = agent._collect()
    before = agent.policy(rollout.obs)[0].logits.detach()
    goals: list[Tensor] = []
    loss = agent.auxiliary_loss

    def noted(obs: Tensor, target: Tensor, old: Tensor) -> Tensor:
        goals.append(old)
        found: Tensor = loss(obs, target, old)
        return found

    monkeypatch.setattr(agent, "auxiliary_loss", noted)
    agent.auxiliary_phase(rollout.obs, rollout.target)
    assert [len(goal) for goal in goals] == [8, 4] * 3
    for k in range(0, 6, 2):
        epoch = torch.cat(goals[k : k + 2])
        assert torch.equal(epoch[epoch[:, 0].argsort()], before[before[:, 0].argsort()])
    assert agent._auxiliary_optimizer.steps == 6
    assert agent.predict(np.zeros((3, 4))).shape == (3,)
