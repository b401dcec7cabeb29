"""What EfficientZero adds to a model: value prefixes and their resets, consistency, and images that move."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rl_training.models.efficientzero import Augmentation, Consistency, Movement, ValuePrefixNetwork, prefix_targets
from rl_training.models.muzero import MuZeroNetwork, muzero_network, unroll
from rl_training.models.muzero_search import TorchSearchModel
from rl_training.ops.search import Puct, Roots, Searcher
from rl_training.ops.two_hot import Support, expectation
from rl_training.types import ObsPart, SpaceInfo

REWARD, VALUE = Support(3.0, 7), Support(10.0, 21)
VECTOR = SpaceInfo((5,), "float32", "discrete", (), 3, (3,), (0,))
IMAGE = SpaceInfo((36, 40, 2), "uint8", "discrete", (), 3, (3,), (0,))
SPACES = {"vector": VECTOR, "image": IMAGE}


def body(info: SpaceInfo) -> MuZeroNetwork:
    return muzero_network(
        info,
        latent_size=9,
        hidden_sizes=(8,),
        activation="relu",
        reward_support=REWARD,
        value_support=VALUE,
        channels=4,
    )


def prefix_network(info: SpaceInfo, horizon: int) -> ValuePrefixNetwork:
    torch.manual_seed(0)
    network = ValuePrefixNetwork(body(info), hidden_size=6, horizon=horizon)
    for parameter in network.parameters():
        nn.init.normal_(parameter, 0.0, 0.4)
    return network


def observations(info: SpaceInfo, batch: int) -> torch.Tensor:
    rng = np.random.default_rng(1)
    if info is IMAGE:
        return torch.from_numpy(rng.integers(0, 256, size=(batch, *info.obs_shape)).astype(np.uint8))
    return torch.from_numpy(rng.normal(size=(batch, 5)).astype(np.float32))


def choices(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(2).integers(3, size=shape))


# Value prefixes


def test_sums_since_the_last_reset_worked_by_hand() -> None:
    reward = np.array([[1.0, 0.5], [2.0, 0.0], [4.0, 0.0], [8.0, -1.0], [16.0, 3.0]])
    wanted = [[1.0, 0.5], [3.0, 0.5], [4.0, 0.0], [12.0, -1.0], [16.0, 3.0]]
    np.testing.assert_array_equal(prefix_targets(reward, 2), wanted)
    np.testing.assert_array_equal(prefix_targets(reward, 1), reward)
    np.testing.assert_array_equal(prefix_targets(reward, 5), np.cumsum(reward, axis=0))
    np.testing.assert_array_equal(prefix_targets(reward, 9), np.cumsum(reward, axis=0))


@pytest.mark.parametrize("horizon", [1, 2, 5, 20])
@pytest.mark.parametrize("name", SPACES)
def test_a_walk_of_the_search_has_the_rewards_whose_sums_the_unroll_predicts(name: str, horizon: int) -> None:
    info = SPACES[name]
    network = prefix_network(info, horizon)
    obs, actions = observations(info, 3), choices(11, 3)
    model = TorchSearchModel(network, 0.9)
    with torch.no_grad():
        out = unroll(network, obs, actions)
        embedding = network.embed(network.start(out.latent[0])).numpy()
    rewards = []
    for step in range(11):
        leaves = model.step(embedding, actions[step].numpy(), step + 1)
        embedding = leaves.embedding
        rewards.append(leaves.reward)
        latent = out.latent[step + 1].flatten(1).numpy()
        np.testing.assert_allclose(embedding[:, : latent.shape[1]], latent, rtol=1e-4, atol=1e-5)
        value = expectation(out.value[step + 1].numpy(), VALUE)
        np.testing.assert_allclose(leaves.value, value, rtol=1e-4, atol=1e-5)
    predicted = expectation(out.reward.numpy(), REWARD)
    np.testing.assert_allclose(prefix_targets(np.stack(rewards), horizon), predicted, rtol=1e-3, atol=1e-4)
    assert np.abs(predicted).max() > 0.05


def test_the_memory_is_zero_after_every_horizon_and_counts_between() -> None:
    network = prefix_network(VECTOR, 3)
    state = network.start(network.represent(observations(VECTOR, 2)))
    counts = []
    for action in choices(7, 2):
        assert state.memory.shape == (2, network.memory_size) == (2, 14)
        before = state
        state, logits = network.step(state, action)
        counts.append(state.memory[:, -1].tolist())
        if counts[-1] == [0.0, 0.0]:
            assert (state.memory == 0.0).all()
        else:
            assert (state.memory[:, :12] != 0.0).any()
            torch.testing.assert_close(
                network.reward_of(before, logits), state.memory[:, -2] - before.memory[:, -2], atol=1e-6, rtol=1e-5
            )
    assert [count[0] for count in counts] == [1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 1.0]


def test_rows_at_different_depths_walk_side_by_side() -> None:
    network = prefix_network(VECTOR, 2)
    latent, actions = network.represent(observations(VECTOR, 1)), choices(4, 1)
    with torch.no_grad():
        states = [network.start(latent)]
        rewards = []
        for action in actions:
            after, logits = network.step(states[-1], action)
            rewards.append(network.reward_of(states[-1], logits))
            states.append(after)
        rows = torch.cat([network.embed(state) for state in states[:-1]])
        together = network.state_of(rows)
        after, logits = network.step(together, actions[:, 0])
        torch.testing.assert_close(network.reward_of(together, logits), torch.cat(rewards))
        torch.testing.assert_close(network.embed(after), torch.cat([network.embed(state) for state in states[1:]]))


def test_a_fresh_walk_after_a_reset_and_no_gradient_across_it() -> None:
    network = prefix_network(VECTOR, 2)
    out = unroll(network, observations(VECTOR, 3), choices(4, 3))
    fresh = network.dynamics(out.latent[2], choices(4, 3)[2])[1]
    torch.testing.assert_close(out.reward[2], fresh)
    fresh = network.dynamics(out.latent[1], choices(4, 3)[1])[1]
    assert (out.reward[1] - fresh).abs().max() > 1e-3

    # The first step reaches the second sum by way of the LSTM, but the third only by way of the latents.
    def reaches(step: int) -> bool:
        latent = network.represent(observations(VECTOR, 3)).detach()
        state, logits = network.step(network.start(latent), choices(3))
        memory = state.memory.detach().requires_grad_()
        state = state._replace(latent=state.latent.detach(), memory=memory)
        for _ in range(step):
            state, logits = network.step(state, choices(3))
            state = state._replace(latent=state.latent.detach())
        (gradient,) = torch.autograd.grad(logits.sum(), memory, allow_unused=True)
        return gradient is not None and bool(gradient.abs().sum() > 0.0)

    assert reaches(1)
    assert not reaches(2)


def test_the_network_has_no_parameter_that_nothing_uses_and_can_be_copied() -> None:
    network = prefix_network(VECTOR, 3)
    out = unroll(network, observations(VECTOR, 3), choices(2, 3))
    (out.policy.square().sum() + out.value.square().sum() + out.reward.square().sum()).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
    twin = copy.deepcopy(network)
    twin.load_state_dict(network.state_dict())
    torch.testing.assert_close(unroll(twin, observations(VECTOR, 3), choices(2, 3)).reward, out.reward)


def test_sums_are_0_before_learning() -> None:
    network = ValuePrefixNetwork(body(VECTOR), hidden_size=6, horizon=2)
    assert (unroll(network, observations(VECTOR, 3), choices(3, 3)).reward == 0.0).all()
    for wrong in ({"hidden_size": 0, "horizon": 2}, {"hidden_size": 2, "horizon": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            ValuePrefixNetwork(body(VECTOR), **wrong)


def test_a_search_runs_with_value_prefixes() -> None:
    network = prefix_network(VECTOR, 2)
    with torch.no_grad():
        latent = network.represent(observations(VECTOR, 4))
        policy, value = network.predict(latent)
        embedding = network.embed(network.start(latent)).numpy()
    roots = Roots(embedding, policy.numpy(), expectation(value.numpy(), VALUE))
    result = Searcher(Puct(), 20, 3)(TorchSearchModel(network, 0.9), roots)
    assert result.visits.sum(axis=1).tolist() == [20] * 4
    assert (result.depth > 2.0).all()
    # The rewards of the root's edges are plain ones.
    action = torch.zeros(4, dtype=torch.int64)
    with torch.no_grad():
        first = expectation(network.dynamics(latent, action)[1].numpy(), REWARD)
    leaves = TorchSearchModel(network, 0.9).step(embedding, action.numpy(), 1)
    np.testing.assert_allclose(leaves.reward, first, rtol=1e-4, atol=1e-5)


# Consistency


@pytest.mark.parametrize("shape", [(9,), (4, 3, 3)])
def test_the_loss_is_the_negative_cosine_and_counts_only_what_is_set(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module = Consistency(shape, projection_size=16, hidden_size=8)
    latent, seen = torch.rand(2, 3, *shape, requires_grad=True), torch.rand(2, 3, *shape, requires_grad=True)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    loss = module(latent, seen, mask)
    assert loss.shape == (2, 3)
    predicted = module.predictor(module.projector(latent.reshape(6, -1)))
    wanted = module.projector(seen.reshape(6, -1))
    cosine = (predicted * wanted).sum(1) / (predicted.norm(dim=1) * wanted.norm(dim=1))
    torch.testing.assert_close(loss, torch.where(mask, -cosine.view(2, 3), 0.0))
    loss.sum().backward()
    assert seen.grad is None
    assert latent.grad is not None
    reached = latent.grad.flatten(2).abs().sum(2) > 0.0
    assert torch.equal(reached, mask)
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_nothing_set_means_no_gradient_at_all() -> None:
    module = Consistency((5,), projection_size=16, hidden_size=8)
    module(torch.rand(3, 5), torch.rand(3, 5), torch.zeros(3)).sum().backward()
    assert all((parameter.grad == 0.0).all() for parameter in module.parameters() if parameter.grad is not None)


def test_descending_draws_predictions_towards_what_is_seen() -> None:
    torch.manual_seed(0)
    module = Consistency((5,), projection_size=16, hidden_size=8)
    latent, seen, mask = torch.rand(20, 5), torch.rand(20, 5), torch.ones(20)
    optimizer = torch.optim.Adam(module.parameters(), 1e-2)
    losses = []
    for _ in range(40):
        loss = module(latent, seen, mask).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1


# Images that move


def still(rows: int) -> Movement:
    return Movement(np.zeros((rows, 2), np.int64), np.ones(rows, np.float32))


def test_a_shift_worked_by_hand() -> None:
    info = SpaceInfo((2, 3, 3), "uint8", "discrete", (), 3, (3,), (0,))
    grey = torch.arange(9, dtype=torch.uint8).reshape(1, 1, 3, 3)
    image = torch.cat([grey, 10 + grey], dim=1)
    # One pixel down, one to the left; what comes in repeats the edge.
    moved = Augmentation(info, pad=1)(image, Movement(np.array([[1, -1]]), np.array([2.0], np.float32)))
    wanted = 2.0 * torch.tensor([[1.0, 2.0, 2.0], [1.0, 2.0, 2.0], [4.0, 5.0, 5.0]])
    assert isinstance(moved, torch.Tensor)
    torch.testing.assert_close(moved, torch.stack([wanted, wanted + 20.0])[None])
    assert image.dtype == torch.uint8


LAYOUTS = {"first": (4, 3, 36, 40), "last": (4, 36, 40, 3), "grey": (4, 36, 40), "plain": (36, 40, 3)}


@pytest.mark.parametrize("name", LAYOUTS)
def test_all_frames_and_channels_of_a_row_move_together_and_rows_apart(name: str) -> None:
    shape = LAYOUTS[name]
    info = SpaceInfo(shape, "uint8", "discrete", (), 3, (3,), (0,))
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, size=(5, *shape)).astype(np.uint8))
    augmentation = Augmentation(info, pad=3)
    movement = augmentation.draw(5, np.random.default_rng(1))
    moved = augmentation(images, movement)
    assert isinstance(moved, torch.Tensor)
    assert moved.shape == images.shape
    down = {"first": -2, "last": -3, "grey": -2, "plain": -3}[name]
    for row in range(5):
        # Edges are repeated: a shifted pixel is the nearest one that there was.
        at = (np.arange(36) - movement.shift[row, 0]).clip(0, 35), (np.arange(40) - movement.shift[row, 1]).clip(0, 39)
        wanted = images[row].float().index_select(down, torch.from_numpy(at[0]))
        wanted = wanted.index_select(down + 1, torch.from_numpy(at[1]))
        torch.testing.assert_close(moved[row], wanted * movement.gain[row])
    assert len({tuple(shift) for shift in movement.shift.tolist()}) > 1
    torch.testing.assert_close(augmentation(images, still(5)), images.float())


def test_draws_stay_in_their_range_and_come_from_the_generator() -> None:
    augmentation = Augmentation(IMAGE, pad=4, intensity=0.05)
    shift, gain = augmentation.draw(4000, np.random.default_rng(0))
    assert shift.min() == -4
    assert shift.max() == 4
    assert (np.abs(shift.mean(axis=0)) < 0.2).all()
    assert abs(np.corrcoef(shift.T)[0, 1]) < 0.1
    assert 0.9 <= gain.min() < 0.91
    assert 1.09 < gain.max() <= 1.1 + 1e-6
    again = augmentation.draw(4000, np.random.default_rng(0))
    np.testing.assert_array_equal(again.shift, shift)
    np.testing.assert_array_equal(again.gain, gain)


def test_images_of_a_dict_move_together_and_vectors_stay() -> None:
    parts = (
        ObsPart("numbers", (3,), "float32"),
        ObsPart("left", (36, 36), "uint8"),
        ObsPart("right", (36, 36, 1), "uint8"),
    )
    info = SpaceInfo((1,), "uint8", "discrete", (), 3, (3,), (0,), parts=parts)
    rng = np.random.default_rng(0)
    view = torch.from_numpy(rng.integers(0, 256, size=(4, 36, 36)).astype(np.uint8))
    obs = {"numbers": torch.rand(4, 3), "left": view, "right": view[..., None]}
    augmentation = Augmentation(info)
    moved: Any = augmentation(obs, augmentation.draw(4, rng))
    assert moved["numbers"] is obs["numbers"]
    torch.testing.assert_close(moved["left"], moved["right"][..., 0])
    assert not torch.equal(moved["left"], view.float())
    vectors = Augmentation(VECTOR)
    assert vectors(obs["numbers"], vectors.draw(4, rng)) is obs["numbers"]


def test_a_network_sees_a_moved_image_on_its_scale() -> None:
    network = body(IMAGE)
    images = observations(IMAGE, 2)
    with torch.no_grad():
        plain = network.represent(images)
        torch.testing.assert_close(network.represent(Augmentation(IMAGE)(images, still(2))), plain)
