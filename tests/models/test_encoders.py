"""Images of any size: where their channels are, and the networks that fit them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from rl_training.models.encoders import IMAGE_ENCODERS, ImageEncoder, NatureCNN, halvings
from rl_training.ops.images import ImageLayout


@pytest.mark.parametrize(
    ("shape", "height", "width", "channels"),
    [
        ((3, 84, 84), 84, 84, 3),
        ((84, 84, 3), 84, 84, 3),
        ((210, 160, 3), 210, 160, 3),
        ((3, 210, 160), 210, 160, 3),
        ((8, 8, 17), 8, 8, 17),  # more channels than pixels each way
        ((17, 8, 8), 8, 8, 17),
        ((4, 84, 84, 3), 84, 84, 12),
        ((28, 28), 28, 28, 1),
        ((7, 7, 7), 7, 7, 7),
    ],
)
def test_channels_are_found_first_or_last(shape: tuple[int, ...], height: int, width: int, channels: int) -> None:
    image = ImageLayout(shape)
    assert (image.height, image.width, image.channels) == (height, width, channels)
    pixels = torch.arange(2 * int(np.prod(shape))).reshape(2, *shape)
    assert torch.equal(image.images(image.planes(pixels)), pixels)


@pytest.mark.parametrize("encoder", IMAGE_ENCODERS.values(), ids=IMAGE_ENCODERS)
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (7, 7, 3), (35, 36), (3, 20, 200), (16, 16, 20)])
def test_every_size_has_a_network(encoder: type[ImageEncoder], shape: tuple[int, ...]) -> None:
    network = encoder(shape, orthogonal=True)
    out = network(torch.randint(0, 256, (2, *shape), dtype=torch.uint8))
    assert out.shape == (2, network.features)


def test_larger_images_have_the_network_of_the_paper() -> None:
    layers = NatureCNN((36, 36), orthogonal=False).layers
    assert [layer.kernel_size for layer in layers if isinstance(layer, nn.Conv2d)] == [(8, 8), (4, 4), (3, 3)]
    assert halvings(84, 36, 4) == ([(2, 2)] * 4, (6, 3))
    assert halvings(7, 3, 4) == ([(2, 1), (1, 1), (1, 1), (1, 1)], (4, 3))
