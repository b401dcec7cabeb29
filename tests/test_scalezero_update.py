"""ScaleZero's loss along windows against numbers worked out by hand, its targets, its gradients, and its carry."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms.muzero import divergence
from rl_training.algorithms.parts.history import absent_steps, forget, no_history, remember, with_present
from rl_training.algorithms.parts.task_windows import (
    TaskOutputs,
    loads_of,
    observed,
    read_windows,
    sequence_batch,
    target_outputs,
    value_targets,
)
from rl_training.algorithms.parts.unroll_batch import Goals, goals_of
from rl_training.algorithms.scalezero import (
    Terms,
    latent_divergence,
    task_loss,
    task_mean,
    total_loss,
    world_terms,
)
from rl_training.algorithms.scalezero_settings import ScaleZeroConfig, ScaleZeroModelConfig
from rl_training.data.batches import TERMINATED, TRUNCATED, Windows
from rl_training.models.experts import Routing
from rl_training.models.flat import Learner
from rl_training.models.scalezero import Dynamics, Prediction, ScaleZeroNetwork
from rl_training.types import Array
from scalezero_worlds import TASKS, vector_task, world

LENGTH, COUNT = 5, 3


def windows(actions: int = 2, size: int = 3) -> Windows:
    """Window 0 goes on; window 1 terminates at its second step; window 2 is truncated at its third."""
    rng = np.random.default_rng(0)
    shape = (LENGTH, COUNT)
    obs = rng.standard_normal((LENGTH + 1, COUNT, size)).astype(np.float32)
    made = Windows(
        obs=obs[:-1].copy(),
        action=rng.integers(0, actions, shape),
        reward=rng.standard_normal(shape).astype(np.float32),
        next_obs=obs[1:].copy(),
        terminated=np.zeros(shape, np.bool_),
        truncated=np.zeros(shape, np.bool_),
        first=np.zeros(shape, np.bool_),
        real=np.ones(shape, np.bool_),
        past=np.zeros(shape, np.uint8),
        weight=None,
        index=np.arange(LENGTH * COUNT).reshape(shape),
        records={"policy": np.full((*shape, actions), 1.0 / actions, np.float32)},
    )
    for window, last, kind in ((1, 1, TERMINATED), (2, 2, TRUNCATED)):
        (made.terminated if kind == TERMINATED else made.truncated)[last:, window] = True
        made.real[last + 1 :, window] = False
        made.past[last + 1 :, window] = kind
        for column in (made.obs, made.next_obs, made.reward, made.action):
            column[last + 1 :, window] = column[last, window]
    return made


def test_past_its_end_an_episode_stays_in_its_last_state() -> None:
    drawn = windows()
    seen = observed(drawn, 4)
    np.testing.assert_array_equal(seen[0], drawn.obs[0])
    np.testing.assert_array_equal(seen[1:, 0], drawn.obs[1:5, 0])
    np.testing.assert_array_equal(seen[2:, 1], np.repeat(drawn.next_obs[1, 1][None], 3, axis=0))


def test_a_batch_weighs_what_is_known_equally() -> None:
    drawn, steps = windows(), 3
    value = np.arange(12, dtype=np.float32).reshape(4, 3)
    batch = sequence_batch(drawn, observed(drawn, steps), drawn.action[:steps], value)
    each = 1.0 / (4 * COUNT)
    np.testing.assert_allclose(batch.policy_weight, each * np.array([[1, 1, 1], [1, 1, 1], [1, 0, 1], [1, 0, 0]]))
    # A terminated episode has values and rewards of 0 from then on; of a truncated one nothing more is known.
    np.testing.assert_allclose(batch.value_weight, each * np.array([[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 0]]))
    np.testing.assert_allclose(batch.reward_weight, np.array([[1, 1, 1], [1, 1, 1], [1, 1, 1]]) / (3 * COUNT))
    assert batch.reward[2, 1] == 0.0
    assert batch.reward[2, 2] == drawn.reward[2, 2]
    drawn.weight = np.array([1.0, 2.0, 0.5], np.float32)
    weighed = sequence_batch(drawn, observed(drawn, steps), drawn.action[:steps], value)
    np.testing.assert_allclose(weighed.value_weight, batch.value_weight * drawn.weight)


def test_value_targets_bootstrap_from_the_state_after_the_last_reward() -> None:
    drawn, n_step, gamma = windows(), 2, 0.9
    values = np.arange(18, dtype=np.float32).reshape(6, 3)
    found = value_targets(drawn, values, n_step, 3, gamma)
    reward = drawn.reward
    assert found[0, 0] == pytest.approx(reward[0, 0] + gamma * reward[1, 0] + gamma**2 * values[2, 0], rel=1e-5)
    # Terminated at its second step, and nothing after it.
    assert found[0, 1] == pytest.approx(reward[0, 1] + gamma * reward[1, 1], rel=1e-5)
    assert found[1, 1] == pytest.approx(reward[1, 1], rel=1e-5)
    assert found[2, 1] == found[3, 1] == 0.0
    # Truncated at its third step: the value of the state that it ended in.
    assert found[2, 2] == pytest.approx(reward[2, 2] + gamma * values[3, 2], rel=1e-5)


def test_latent_losses_by_hand() -> None:
    target = torch.tensor([[0.25, 0.75, 1.0, 0.0]])
    predicted = torch.tensor([[0.0, 0.0, 3.0, 3.0]])
    first = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    one = torch.ones(1)
    assert float(latent_divergence(predicted, target, one, "simnorm", 2)) == pytest.approx((first + math.log(2.0)) / 2)
    even = torch.tensor([[1.0, -1.0]])
    apart = float(latent_divergence(torch.tensor([[5.0, 3.0]]), -even, one, "layer_norm", 2))
    assert apart == pytest.approx(4.0, rel=1e-4)
    same = float(latent_divergence(torch.tensor([[5.0, 3.0]]), even, one, "layer_norm", 2))
    assert same == pytest.approx(0.0, abs=1e-6)


def made_up(
    steps: int = 2, count: int = 3, actions: int = 2, bins: int = 5
) -> tuple[TaskOutputs, Goals[torch.Tensor], torch.Tensor]:
    """What a model says of windows, their goals, and the next latents."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    def share(*shape: int) -> torch.Tensor:
        return normal(*shape).softmax(dim=-1)

    heads = TaskOutputs(
        Prediction(normal(steps + 1, count, actions), normal(steps + 1, count, bins)),
        Dynamics(normal(steps, count, 4), normal(steps, count, bins)),
    )
    latent = share(steps, count, 2, 2).flatten(-2)
    goals = Goals(
        share(steps + 1, count, actions),
        share(steps + 1, count, bins),
        share(steps, count, bins),
        *(torch.rand(steps + more, count, generator=generator) for more in (1, 1, 0)),
    )
    return heads, goals, latent


def test_terms_and_loss_by_hand() -> None:
    heads, goals, target = made_up()
    terms = world_terms(heads, goals, target, "simnorm", 2)
    policy = heads.prediction.policy.softmax(dim=-1)
    kl = (goals.policy * (goals.policy / policy).log()).sum(dim=-1)
    assert float(terms.policy) == pytest.approx(float((goals.policy_weight * kl).sum()), rel=1e-5)
    entropy = -(policy * policy.log()).sum(dim=-1)
    assert float(terms.entropy) == pytest.approx(float((goals.policy_weight * entropy).sum()), rel=1e-5)
    value = divergence(heads.prediction.value.log_softmax(dim=-1), goals.value, goals.value_weight)
    assert float(terms.value) == pytest.approx(float(value), rel=1e-5)
    share, predicted = (x.view(2, 3, 2, 2) for x in (target, heads.dynamics.latent))
    latent = (share * (share.log() - predicted.log_softmax(dim=-1))).sum(dim=-1).mean(dim=-1)
    assert float(terms.latent) == pytest.approx(float((goals.reward_weight * latent).sum()), rel=1e-5)
    cfg = ScaleZeroConfig(policy_coef=2.0, value_coef=3.0, reward_coef=5.0, latent_coef=7.0, ent_coef=0.5)
    parts = [float(term) for term in terms]
    wanted = 2.0 * parts[0] + 3.0 * parts[1] + 5.0 * parts[2] + 7.0 * parts[3] - 0.5 * parts[4]
    assert float(task_loss(terms, cfg)) == pytest.approx(wanted, rel=1e-6)


def test_tasks_count_equally_unless_they_are_weighed() -> None:
    losses = {"small": torch.tensor(1.0), "large": torch.tensor(4.0)}
    mean = task_mean(losses, {"small": 1.0, "large": 1.0})
    assert float(mean) == 2.5
    assert float(task_mean(losses, {"small": 3.0, "large": 1.0})) == pytest.approx(7.0 / 4.0)
    routing = [Routing(torch.full((4, 2), 0.5), torch.zeros(4, dtype=torch.int64))]
    assert float(total_loss(mean, routing, ScaleZeroConfig(balance_coef=0.5))) == 3.0
    assert float(total_loss(mean, [], ScaleZeroConfig(balance_coef=0.5))) == 2.5


def batch_of(
    network: ScaleZeroNetwork, tasks: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Observations, actions and goals of the made-up windows for each task."""
    obs, actions, goals = {}, {}, {}
    for task in tasks:
        info = network.tasks[task]
        drawn = windows(info.action_size, *info.obs_shape)
        seen = observed(drawn, 3)
        obs[task], actions[task] = torch.from_numpy(seen).flatten(0, 1), torch.from_numpy(drawn.action[:3])
        batch = sequence_batch(drawn, seen, drawn.action[:3], np.ones((4, COUNT), np.float32))
        made = goals_of(batch, network.shape.reward_support, network.shape.value_support).map(torch.from_numpy)
        goals[task] = made, network.encode(task, obs[task]).detach().view(4, COUNT, -1)[1:]
    return obs, actions, goals


def terms_of(network: ScaleZeroNetwork, tasks: tuple[str, ...]) -> dict[str, Terms]:
    obs, actions, goals = batch_of(network, tasks)
    said = read_windows(network, obs, actions)
    shape = network.shape
    return {task: world_terms(said.of_task[task], *goals[task], shape.latent_norm, shape.group) for task in tasks}


def test_a_task_in_a_batch_of_several_gets_what_it_gets_alone() -> None:
    network = world()
    together = terms_of(network, ("small", "large"))
    for task in ("small", "large"):
        torch.testing.assert_close(together[task], terms_of(network, (task,))[task], rtol=1e-5, atol=1e-6)


def test_loads_are_those_of_each_task() -> None:
    network = world()
    obs, actions, _ = batch_of(network, ("small", "large"))
    together = loads_of(read_windows(network, obs, actions), "large")
    assert sorted(together) == [f"expert_{e}" for e in range(3)]
    alone = loads_of(read_windows(network, {"large": obs["large"]}, {"large": actions["large"]}), "large")
    for name, load in alone.items():
        assert together[name] == pytest.approx(load)
    assert sum(alone.values()) == pytest.approx(1.0)
    assert loads_of(read_windows(world(experts=0), obs, actions), "large") == {}


def test_the_gradient_reaches_everything_but_other_tasks() -> None:
    network = world(stages=1)
    learner = Learner(network)
    terms = terms_of(network, ("large",))["large"]
    learner.differentiate(task_loss(terms, ScaleZeroConfig()))
    slopes = {name: float(parameter.grad.norm()) for name, parameter in network.named_parameters()}
    silent = {name for name, slope in slopes.items() if slope == 0.0}
    assert all(name.startswith(("encoders.0.", "heads.0.")) for name in silent if ".expert_" not in name)
    assert {name for name in slopes if name.startswith(("encoders.0.", "heads.0."))} <= silent
    assert slopes["transformer.layers.0.experts.router"] > 0.0


def test_what_is_not_known_has_no_gradient() -> None:
    """Policy and value of the states past a truncated episode, and actions past any end."""
    network = world({"one": vector_task(3, 2)})
    obs, actions, goals = batch_of(network, ("one",))

    def gradient(observations: torch.Tensor) -> torch.Tensor:
        network.zero_grad()
        said = read_windows(network, {"one": observations}, actions)
        terms = world_terms(said.of_task["one"], *goals["one"], "simnorm", 4)
        task_loss(terms, ScaleZeroConfig(ent_coef=0.1)).backward()  # type: ignore[no-untyped-call]
        return torch.cat([parameter.grad.flatten() for parameter in network.parameters() if parameter.grad is not None])

    other = obs["one"].clone().view(4, COUNT, 3)
    other[3, 2] += 1.0  # the state that a truncated window ended in: no target is there, and no later token
    torch.testing.assert_close(gradient(obs["one"]), gradient(other.flatten(0, 1)))
    other[2, 2] += 1.0
    assert not torch.allclose(gradient(obs["one"]), gradient(other.flatten(0, 1)))


def test_a_target_network_looks_ahead_along_whole_windows() -> None:
    network = world()
    obs, actions, _ = batch_of(network, ("small", "large"))
    found = target_outputs(network, obs, actions)
    assert found["large"].latent.shape == (4, COUNT, 16)
    assert not found["large"].latent.requires_grad
    torch.testing.assert_close(found["small"].latent.flatten(0, 1), network.encode("small", obs["small"]).detach())
    first = target_outputs(network, {"small": obs["small"][:COUNT]}, {"small": actions["small"][:0]})
    torch.testing.assert_close(first["small"].value[0], found["small"].value[0])


def test_updates_learn_a_fixed_batch() -> None:
    network = world({"one": vector_task(3, 2)}, experts=2)
    learner, first = Learner(network), terms_of(network, ("one",))["one"]
    for _ in range(60):
        learner.differentiate(task_loss(terms_of(network, ("one",))["one"], ScaleZeroConfig()))
        learner.descend(3e-3)
    for before, after in list(zip(first, terms_of(network, ("one",))["one"], strict=True))[:4]:
        assert float(after.detach()) < 0.5 * float(before.detach())


# What is carried while acting


def test_a_history_keeps_the_last_steps_and_is_cleared_where_episodes_begin() -> None:
    info, steps = vector_task(2, 3), 2
    history = no_history(info, 2, steps)
    np.testing.assert_array_equal(absent_steps(history), [2, 2])

    def seen(number: int) -> Array:
        return np.full((2, 2), number, np.float32)

    for number in (1, 2, 3):
        history = remember(history, seen(number), np.array([number % 3, 0]))
    np.testing.assert_array_equal(history["obs"][0, :, 0], [2.0, 3.0])
    np.testing.assert_array_equal(history["action"][0], [2, 0])
    np.testing.assert_array_equal(absent_steps(history), [0, 0])
    np.testing.assert_array_equal(with_present(history, seen(4))[1, :, 0], [2.0, 3.0, 4.0])
    history = forget(history, np.array([False, True]))
    np.testing.assert_array_equal(absent_steps(history), [0, 2])
    assert not history["obs"][1].any()
    assert history["obs"][0].all()
    history = remember(history, seen(5), np.array([1, 2]))
    np.testing.assert_array_equal(absent_steps(history), [0, 1])
    none = remember(no_history(info, 2, 0), seen(1), np.array([0, 1]))
    np.testing.assert_array_equal(absent_steps(none), [0, 0])
    assert with_present(none, seen(6)).shape == (2, 1, 2)


def test_a_model_config_says_its_sizes() -> None:
    config = ScaleZeroModelConfig()
    network = ScaleZeroNetwork(TASKS, config.shape())
    total = sum(parameter.numel() for parameter in network.parameters())
    assert 0.5 * total < config.least_weights(TASKS["small"]) <= total
    grown = sum(parameter.numel() for parameter in ScaleZeroNetwork(TASKS, config.shape(stages=4)).parameters())
    assert grown - total == config.adapter_weights(3) == ScaleZeroConfig(stages=4).more_weights(config)
