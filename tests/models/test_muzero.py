"""The networks of MuZero: shapes for every kind of spaces, scaled latents, silent heads, and the walk through them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rl_training.models.muzero import (
    ConvMuZero,
    ImageLayout,
    MLPMuZero,
    MuZeroNetwork,
    half_gradient,
    min_max,
    muzero_network,
    unroll,
)
from rl_training.models.muzero_search import TorchSearchModel
from rl_training.ops.observations import Unpacker, layout, pack, row_bytes
from rl_training.ops.two_hot import Support, expectation
from rl_training.types import ObsPart, SpaceInfo

REWARD, VALUE = Support(3.0, 7), Support(10.0, 21)
IMAGES = {
    "channels first": (3, 40, 37),
    "channels last": (40, 37, 3),
    "one channel": (96, 96),
    "stacked": (4, 3, 36, 48),
    "stacked, channels last": (4, 36, 48, 3),
    "stacked, one channel": (4, 84, 84),
}


def space(shape: tuple[int, ...], dtype: str = "float32", *, continuous: bool = False, **more: Any) -> SpaceInfo:
    if continuous:
        return SpaceInfo(shape, dtype, "continuous", (2,), 2, (), (), (-1.0, -1.0), (1.0, 1.0), **more)
    return SpaceInfo(shape, dtype, "discrete", (), 3, (3,), (0,), **more)


PARTS = (ObsPart("numbers", (2, 3), "float32"), ObsPart("a.view", (36, 36, 1), "uint8"))
DICT = space((row_bytes(layout(PARTS), 0),), "uint8", parts=layout(PARTS))


def network_for(info: SpaceInfo, **settings: Any) -> MuZeroNetwork:
    torch.manual_seed(0)
    common: dict[str, Any] = {"latent_size": 10, "hidden_sizes": (8,), "activation": "relu", "channels": 6, "blocks": 1}
    return muzero_network(info, reward_support=REWARD, value_support=VALUE, **(common | settings))


def observations(info: SpaceInfo, batch: int) -> Any:
    rng = np.random.default_rng(1)
    if info.obs_kind == "dict":
        rows = np.stack(
            [
                pack(
                    {
                        part.name: rng.integers(0, 256, size=part.shape)
                        if part.kind == "image"
                        else rng.normal(size=part.shape)
                        for part in info.parts
                    },
                    None,
                    info.parts,
                    0,
                )
                for _ in range(batch)
            ]
        )
        return {name: torch.from_numpy(np.array(array)) for name, array in Unpacker(info).inputs(rows).items()}
    if info.obs_kind == "image":
        return torch.from_numpy(rng.integers(0, 256, size=(batch, *info.input_shape)).astype(np.uint8))
    return torch.from_numpy(rng.normal(size=(batch, *info.input_shape)).astype(np.float32))


def actions_for(info: SpaceInfo, *shape: int) -> torch.Tensor:
    rng = np.random.default_rng(2)
    if info.continuous:
        return torch.from_numpy(rng.uniform(-1.0, 1.0, size=(*shape, 2)).astype(np.float32))
    return torch.from_numpy(rng.integers(3, size=shape))


SPACES = {
    "vector": space((2, 3)),
    "vector, continuous": space((5,), continuous=True),
    "masked": space((24,), "uint8", parts=(ObsPart("", (5,), "float32"),), mask_size=3),
    "dict": DICT,
    "image": space((40, 37, 3), "uint8"),
    "image, continuous": space((40, 37, 3), "uint8", continuous=True),
}


@pytest.mark.parametrize("name", SPACES)
def test_shapes_ranges_and_gradients_for_every_kind_of_spaces(name: str) -> None:
    info = SPACES[name]
    network = network_for(info)
    assert type(network) is (ConvMuZero if info.obs_kind == "image" else MLPMuZero)
    for parameter in network.parameters():  # heads that say nothing have no gradient to pass on
        nn.init.normal_(parameter, 0.0, 0.2)
    out = unroll(network, observations(info, 4), actions_for(info, 3, 4))
    assert out.policy.shape == (4, 4, 4 if info.continuous else 3)
    assert out.value.shape == (4, 4, 21)
    assert out.reward.shape == (3, 4, 7)
    assert out.latent.shape == (4, 4, *network.latent_shape)
    rows = out.latent.detach().flatten(0, 1).flatten(1)
    torch.testing.assert_close(rows.amin(1), torch.zeros(16))
    torch.testing.assert_close(rows.amax(1), torch.ones(16))
    (out.policy.square().sum() + out.value.square().sum() + out.reward.square().sum()).backward()
    for title, parameter in network.named_parameters():
        assert parameter.grad is not None, title
        assert parameter.grad.abs().sum() > 0.0, title


@pytest.mark.parametrize("name", SPACES)
def test_rewards_and_values_are_0_before_learning(name: str) -> None:
    info = SPACES[name]
    out = unroll(network_for(info), observations(info, 4), actions_for(info, 2, 4))
    assert (out.value == 0.0).all()
    assert (out.reward == 0.0).all()
    assert (expectation(out.value.detach().numpy(), VALUE) == 0.0).all()
    assert out.policy.abs().sum() > 0.0


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_images_of_every_layout(name: str, activation: str) -> None:
    info = space(IMAGES[name], "uint8")
    network = network_for(info, activation=activation, hidden_sizes=(), blocks=2)
    layout = ImageLayout(info.input_shape)
    assert network.latent_shape == (6, -(-layout.height // 16), -(-layout.width // 16))
    out = unroll(network, observations(info, 2), actions_for(info, 1, 2))
    assert out.latent.shape == (2, 2, *network.latent_shape)


def test_a_channel_is_the_same_wherever_the_shape_has_it() -> None:
    frames = torch.arange(2 * 4 * 3 * 36 * 40).reshape(2, 4, 3, 36, 40)
    first = ImageLayout((4, 3, 36, 40))
    last = ImageLayout((4, 36, 40, 3))
    assert (first.channels, first.height, first.width) == (last.channels, last.height, last.width) == (12, 36, 40)
    planes = first.planes(frames)
    torch.testing.assert_close(planes[1, 5], frames[1, 1, 2])
    moved = frames.movedim(2, -1)
    torch.testing.assert_close(last.planes(moved), planes)
    torch.testing.assert_close(first.images(planes), frames)
    torch.testing.assert_close(last.images(planes), moved)
    single = ImageLayout((36, 40))
    torch.testing.assert_close(single.images(single.planes(frames[:, 0, 0])), frames[:, 0, 0])


@pytest.mark.parametrize("name", ["dict", "image"])
def test_a_row_does_not_depend_on_the_batch_around_it(name: str) -> None:
    info = SPACES[name]
    network = network_for(info)
    obs, actions = observations(info, 4), actions_for(info, 4)
    alone = {k: v[2:3] for k, v in obs.items()} if isinstance(obs, dict) else obs[2:3]
    with torch.no_grad():
        latent = network.represent(obs)
        torch.testing.assert_close(network.represent(alone), latent[2:3])
        torch.testing.assert_close(
            network.dynamics(latent[2:3], actions[2:3])[0], network.dynamics(latent, actions)[0][2:3]
        )


@pytest.mark.parametrize("shape", [(36, 36), (36, 36, 3), (3, 36, 36)])
def test_images_of_bytes_and_of_floats_are_the_same_and_stay_as_they_are(shape: tuple[int, ...]) -> None:
    info = space(shape, "uint8")
    network = network_for(info)
    obs = observations(info, 2)
    floats = obs.float()
    with torch.no_grad():
        torch.testing.assert_close(network.represent(floats), network.represent(obs))
    torch.testing.assert_close(floats, obs.float())


@pytest.mark.parametrize("name", ["vector", "vector, continuous", "image", "image, continuous"])
def test_actions_matter(name: str) -> None:
    info = SPACES[name]
    network = network_for(info)
    latent = network.represent(observations(info, 1)).expand(2, *network.latent_shape)
    action = torch.tensor([[0.5, 0.0], [0.0, 0.5]]) if info.continuous else torch.tensor([0, 2])
    after, _ = network.dynamics(latent, action)
    assert (after[0] - after[1]).abs().max() > 1e-3


def test_an_action_is_a_plane_of_its_own() -> None:
    info = SPACES["image"]
    network = network_for(info)
    assert isinstance(network, ConvMuZero)
    seen: list[torch.Tensor] = []
    network.entry.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    latent = network.represent(observations(info, 2))
    network.dynamics(latent, torch.tensor([2, 0]))
    torch.testing.assert_close(seen[0][:, :6], latent)
    wanted = torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])[:, :, None, None].expand(2, 3, 3, 3)
    torch.testing.assert_close(seen[0][:, 6:], wanted)


def test_other_actions_are_refused() -> None:
    with pytest.raises(ValueError, match="multi_discrete"):
        network_for(SpaceInfo((3,), "float32", "multi_discrete", (2,), 5, (3, 2), (0, 0)))


def test_min_max_worked_by_hand() -> None:
    x = torch.tensor([[2.0, 4.0, 3.0], [5.0, 5.0, 5.0], [0.0, 5e-6, 0.0]])
    torch.testing.assert_close(min_max(x), torch.tensor([[0.0, 1.0, 0.5], [0.0, 0.0, 0.0], [0.0, 1.0 / 3.0, 0.0]]))
    torch.testing.assert_close(min_max(x.reshape(1, 3, 3))[0, 0], torch.tensor([0.4, 0.8, 0.6]))


def test_half_gradient_changes_no_number() -> None:
    x = torch.randn(1000, requires_grad=True)
    y = half_gradient(x)
    assert torch.equal(y, x)
    y.sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert (x.grad == 0.5).all()


@pytest.mark.parametrize("name", SPACES)
def test_search_and_unroll_see_the_same_model(name: str) -> None:
    info = SPACES[name]
    network = network_for(info)
    for parameter in network.parameters():
        nn.init.normal_(parameter, 0.0, 0.2)
    obs, actions = observations(info, 3), actions_for(info, 4, 3)
    noise = {"spread": np.ones(1, np.float32), "noise": np.zeros((3, 5, 1, 2), np.float32)} if info.continuous else {}
    model = TorchSearchModel(network, 0.9, **noise)
    with torch.no_grad():
        out = unroll(network, obs, actions)
        embedding = network.embed(network.start(out.latent[0])).numpy()
    assert embedding.shape == (3, network.latent_size)
    rewards, values = (expectation(t.numpy(), s) for t, s in ((out.reward, REWARD), (out.value, VALUE)))
    for step in range(4):
        leaves = model.step(embedding, actions[step].numpy(), step + 1)
        embedding = leaves.embedding
        np.testing.assert_allclose(leaves.reward, rewards[step], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(leaves.value, values[step + 1], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(embedding, out.latent[step + 1].flatten(1).numpy(), rtol=1e-4, atol=1e-5)
        if not info.continuous:
            np.testing.assert_allclose(leaves.logits, out.policy[step + 1].numpy(), rtol=1e-4, atol=1e-5)
        assert leaves.discount.tolist() == pytest.approx([0.9] * 3)
