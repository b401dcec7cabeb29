"""Flat parameters against torch's own modules and optimisers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rl_training.models.flat import (
    FlatAdam,
    FlatGroup,
    FlatLaProp,
    FlatParameters,
    FlatRMSprop,
    FlatWeights,
    Follower,
    Learner,
)

RATES = [1e-2, 1e-2, 3e-3, 0.0, 1e-2, 1e-3, 5e-2, 1e-2, 1e-4, 1e-2]


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


def loss_of(model: nn.Module, step: int) -> Tensor:
    inputs = torch.randn(16, 3, generator=torch.Generator().manual_seed(step))
    return (model(inputs) - inputs[:, :2].sin()).square().mean()


def grown(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def adam(flat: FlatGroup) -> FlatAdam:
    return FlatAdam(flat, eps=1e-5)


def rmsprop(flat: FlatGroup) -> FlatRMSprop:
    return FlatRMSprop(flat, eps=1e-5, alpha=0.99)


def laprop(flat: FlatGroup) -> FlatLaProp:
    return FlatLaProp(flat, [flat.data.numel()], warmup=0)


Make = Callable[[FlatGroup], Any]
OPTIMISERS = pytest.mark.parametrize("make", [adam, rmsprop, laprop])


def descend(model: nn.Module, flat: FlatParameters, optimiser: Any, step: int, rate: float) -> None:
    flat.zero_grad()
    loss_of(model, step).backward()
    optimiser.step(rate)


def test_flattening_leaves_the_weights_as_they_were() -> None:
    model = network()
    before = grown(model).clone()
    flat = FlatParameters(model.parameters())
    torch.testing.assert_close(flat.data, before, rtol=0, atol=0)
    torch.testing.assert_close(grown(model), before, rtol=0, atol=0)


@OPTIMISERS
def test_a_part_is_stepped_apart(make: Make) -> None:
    model = network()
    flat = FlatParameters(model.parameters())
    first, second = flat.split(3 * 8)
    assert torch.equal(torch.cat([first.data, second.data]), flat.data)
    before, optimiser = flat.data.clone(), make(second)
    descend(model, flat, optimiser, 0, 1e-2)
    assert torch.equal(flat.grad[: 3 * 8], first.grad)
    assert first.grad.any()
    moved = flat.data != before
    assert not moved[: 3 * 8].any()
    assert moved[3 * 8 :].all()
    second.zero_grad()
    assert first.grad.any()
    assert not second.grad.any()


def test_parameters_are_views_of_the_flat_tensor() -> None:
    model = network()
    flat = FlatParameters(model.parameters())
    flat.data.fill_(0.5)
    assert all((parameter == 0.5).all() for parameter in model.parameters())
    with torch.no_grad():
        model[0].weight[1, 2] = 7.0
    assert flat.data[1 * 3 + 2].item() == 7.0


def test_gradients_are_views_and_stay_so_after_backward() -> None:
    model = network()
    flat = FlatParameters(model.parameters())
    for step in range(3):
        flat.zero_grad()
        loss_of(model, step).backward()
        gradients = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])
        assert flat.grad.abs().sum() > 0
        torch.testing.assert_close(flat.grad, gradients, rtol=0, atol=0)
    flat.zero_grad()
    assert all((parameter.grad == 0.0).all() for parameter in model.parameters())


def test_loading_weights_into_the_module_reaches_the_flat_tensor() -> None:
    model, other = network(0), network(1)
    flat = FlatParameters(model.parameters())
    model.load_state_dict(other.state_dict())
    torch.testing.assert_close(flat.data, grown(other), rtol=0, atol=0)


def test_flat_adam_equals_torch_adam_over_ten_steps() -> None:
    model, reference = network(), network()
    flat = FlatParameters(model.parameters())
    mine, theirs = adam(flat), torch.optim.Adam(reference.parameters(), eps=1e-5, foreach=False)
    for step, rate in enumerate(RATES):
        descend(model, flat, mine, step, rate)
        theirs.param_groups[0]["lr"] = rate
        theirs.zero_grad()
        loss_of(reference, step).backward()
        theirs.step()
    assert (grown(model) - grown(network())).abs().max() > 1e-2
    torch.testing.assert_close(grown(model), grown(reference), rtol=1e-6, atol=1e-6)


def test_flat_rmsprop_equals_torch_rmsprop_over_ten_steps() -> None:
    model, reference = network(), network()
    flat = FlatParameters(model.parameters())
    mine, theirs = rmsprop(flat), torch.optim.RMSprop(reference.parameters(), eps=1e-5, alpha=0.99, foreach=False)
    for step, rate in enumerate(RATES):
        descend(model, flat, mine, step, rate)
        theirs.param_groups[0]["lr"] = rate
        theirs.zero_grad()
        loss_of(reference, step).backward()
        theirs.step()
    assert (grown(model) - grown(network())).abs().max() > 1e-2
    torch.testing.assert_close(grown(model), grown(reference), rtol=1e-6, atol=1e-6)


@OPTIMISERS
def test_a_learning_rate_of_zero_moves_nothing(make: Make) -> None:
    model = network()
    flat = FlatParameters(model.parameters())
    optimiser = make(flat)
    before = flat.data.clone()
    descend(model, flat, optimiser, 0, 0.0)
    torch.testing.assert_close(flat.data, before, rtol=0, atol=0)


@pytest.mark.parametrize("share", [1e-3, 0.7, 0.99, 1.01, 100.0])
def test_clipping_equals_that_of_torch(share: float) -> None:
    model, reference = network(), network()
    flat = FlatParameters(model.parameters())
    for candidate in (model, reference):
        (50.0 * loss_of(candidate, 0)).backward()
    max_norm = share * float(flat.grad.norm())
    expected = torch.nn.utils.clip_grad_norm_(reference.parameters(), max_norm, foreach=False)
    assert flat.clip_grad_norm(max_norm) == pytest.approx(float(expected), rel=1e-6)
    gradients = torch.cat([parameter.grad.reshape(-1) for parameter in reference.parameters()])
    torch.testing.assert_close(flat.grad, gradients, rtol=1e-6, atol=1e-9)
    assert float(flat.grad.norm()) <= max_norm * (1 + 1e-6)


@OPTIMISERS
def test_a_state_that_is_saved_and_loaded_goes_on_bit_equal(make: Make) -> None:
    model = network()
    flat = FlatParameters(model.parameters())
    optimiser = make(flat)
    for step in range(5):
        descend(model, flat, optimiser, step, 1e-2)
    saved = {name: tensor.clone() for name, tensor in optimiser.state_dict().items()}
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for step in range(5, 10):
        descend(model, flat, optimiser, step, 1e-2)
    again = network(seed=9)
    flat_again = FlatParameters(again.parameters())
    other = make(flat_again)
    again.load_state_dict(weights)
    other.load_state_dict(saved)
    for step in range(5, 10):
        descend(again, flat_again, other, step, 1e-2)
    assert torch.equal(flat.data, flat_again.data)
    for name, tensor in optimiser.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


@OPTIMISERS
def test_the_optimisers_memory_matters(make: Make) -> None:
    """Without its state a resumed optimiser would go elsewhere: the test above would see it missing."""
    model = network()
    flat = FlatParameters(model.parameters())
    optimiser = make(flat)
    for step in range(5):
        descend(model, flat, optimiser, step, 1e-2)
    copy = network()
    copy.load_state_dict(model.state_dict())
    flat_copy = FlatParameters(copy.parameters())
    descend(model, flat, optimiser, 5, 1e-2)
    descend(copy, flat_copy, make(flat_copy), 5, 1e-2)
    assert not torch.allclose(flat.data, flat_copy.data, atol=1e-5)


def test_loading_a_state_keeps_no_tie_to_what_was_loaded() -> None:
    flat = FlatParameters(network().parameters())
    first, second = adam(flat), adam(FlatParameters(network(1).parameters()))
    flat.grad.fill_(1.0)
    first.step(1e-3)
    second.load_state_dict(first.state_dict())
    first.step(1e-3)
    assert float(second.count) == 1.0
    assert float(first.count) == 2.0


def clipped(grads: list[float], weights: list[float], clip: float = 0.3) -> list[float]:
    """Adaptive clipping of one tensor, number by number."""
    norm = math.sqrt(sum(g * g for g in grads))
    largest = clip * max(math.sqrt(sum(w * w for w in weights)), 1e-3)
    return [g * min(1.0, largest / norm) if norm > 0.0 else 0.0 for g in grads]


class ScalarLaProp:
    """LaProp of one tensor, number by number."""

    def __init__(self, weights: list[float], warmup: int) -> None:
        self.weights, self.warmup, self.count = weights, warmup, 0
        self.moment, self.square = [0.0] * len(weights), [0.0] * len(weights)

    def step(self, grads: list[float], learning_rate: float) -> None:
        rate = learning_rate * (min(self.count / self.warmup, 1.0) if self.warmup else 1.0)
        self.count += 1
        for k, g in enumerate(clipped(grads, self.weights)):
            self.square[k] = 0.999 * self.square[k] + 0.001 * g * g
            size = math.sqrt(self.square[k] / (1.0 - 0.999**self.count)) + 1e-20
            self.moment[k] = 0.9 * self.moment[k] + 0.1 * g / size
            self.weights[k] -= rate * self.moment[k] / (1.0 - 0.9**self.count)


@pytest.mark.parametrize("warmup", [0, 4])
def test_flat_laprop_equals_the_scalar_form_for_every_tensor(warmup: int) -> None:
    model = network()
    weights = FlatWeights(model.parameters())
    with torch.no_grad():
        model[2].bias.zero_()  # the norm of its weights is below the smallest
    flat = FlatParameters(weights)
    ours = FlatLaProp(flat, weights.sizes, warmup=warmup)
    scalar = [ScalarLaProp(member.detach().double().reshape(-1).tolist(), warmup) for member in weights.members]
    for step, rate in enumerate(RATES):
        flat.zero_grad()
        (30.0 * loss_of(model, step)).backward()
        grads = [part.double().tolist() for part in flat.grad.split(weights.sizes)]
        for tensor, grad in zip(scalar, grads, strict=True):
            tensor.step(grad, rate)
        before = flat.grad.clone()
        ours.step(rate)
        assert (flat.grad.abs() <= before.abs()).all()
        assert (flat.grad != before).any()
        wanted = torch.tensor([number for tensor in scalar for number in tensor.weights])
        torch.testing.assert_close(flat.data, wanted, rtol=1e-5, atol=1e-5)
        # The scalar form goes on from the same weights, so that rounding does not add up.
        for tensor, part in zip(scalar, flat.data.split(weights.sizes), strict=True):
            tensor.weights = part.double().tolist()


def test_gradients_are_clipped_by_the_norm_of_their_own_tensor() -> None:
    data = torch.tensor([3.0, 4.0, 0.0, 0.0, 30.0, 40.0])
    grad = torch.tensor([6.0, 8.0, 3.0, 4.0, 6.0, 8.0])
    optimiser = FlatLaProp(FlatGroup(data, grad), [2, 2, 2], warmup=0)
    optimiser.clip_gradients()
    # Norms of weights 5, 0 and 50 allow 1.5, 3e-4 and 15: of 10, 5 and 10.
    torch.testing.assert_close(grad, torch.tensor([0.9, 1.2, 1.8e-4, 2.4e-4, 6.0, 8.0]))


def test_the_first_step_of_laprop_is_a_sign_whatever_the_size_of_the_gradient() -> None:
    data = torch.full((5,), 100.0)
    grad = torch.tensor([1e-12, -1e-6, 0.0, 1.0, -20.0])
    FlatLaProp(FlatGroup(data, grad), [5], warmup=0).step(1e-1)
    torch.testing.assert_close(data - 100.0, torch.tensor([-0.1, 0.1, 0.0, -0.1, 0.1]), rtol=1e-4, atol=1e-6)


def test_warm_up_begins_with_a_learning_rate_of_0() -> None:
    data, grad = torch.tensor([10.0]), torch.ones(1)
    optimiser = FlatLaProp(FlatGroup(data, grad), [1], warmup=4)
    moves = []
    for _ in range(7):
        before = data.clone()
        grad.fill_(1.0)
        optimiser.step(1e-2)
        moves.append(float(before - data))
    assert moves == pytest.approx([0.0, 0.25e-2, 0.5e-2, 0.75e-2, 1e-2, 1e-2, 1e-2], rel=1e-3)


def test_tensors_that_do_not_fill_the_group_are_refused() -> None:
    with pytest.raises(ValueError, match="3 weights in all, in a group of 4"):
        FlatLaProp(FlatGroup(torch.zeros(4), torch.zeros(4)), [1, 2], warmup=0)


def test_a_learner_takes_another_optimiser_and_saves_it() -> None:
    def learner(seed: int) -> Learner:
        return Learner(network(seed), make=lambda flat, weights: FlatLaProp(flat, weights.sizes, warmup=2))

    one, other = learner(0), learner(1)
    for step in range(4):
        one.differentiate(loss_of(one.module, step))
        one.descend(1e-2)
    other.load_state_dict(one.state_dict())
    for each in (one, other):
        each.differentiate(loss_of(each.module, 5))
        each.descend(1e-2)
    assert torch.equal(one.weights.data, other.weights.data)
    assert int(other.optimizer.state_dict()["count"]) == 5


@pytest.mark.parametrize("whole", [True, False])
def test_a_follower_moves_every_weight_of_what_it_follows(whole: bool) -> None:
    model = nn.Sequential(network(), network(1), network(2))
    leader = Learner(model)
    part = model if whole else model[1]
    follower = Follower(leader, None if whole else part)
    start = grown(follower.module).clone()
    torch.testing.assert_close(start, grown(part), rtol=0, atol=0)
    leader.weights.data.add_(torch.randn(leader.weights.data.shape, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(grown(follower.module), start)
    follower.follow(0.02)
    torch.testing.assert_close(grown(follower.module), 0.98 * start + 0.02 * grown(part))
    assert (grown(follower.module) != start).all()
    assert not any(parameter.requires_grad for parameter in follower.module.parameters())
    again = Follower(leader, None if whole else part)
    again.load_state_dict(follower.state_dict())
    assert torch.equal(again.weights.data, follower.weights.data)


def test_a_part_that_is_not_in_one_piece_is_refused() -> None:
    model, other = nn.Sequential(network(), network(1), network(2)), network(3)
    weights = FlatWeights(model.parameters())
    for stranger in (other, nn.Sequential(model[0], model[2]), nn.Sequential(model[2], other)):
        with pytest.raises(ValueError, match="not next to each other"):
            weights.part_of(stranger)
