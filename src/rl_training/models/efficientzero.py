"""What EfficientZero adds to a model of MuZero (Ye et al. 2021): value prefixes, consistency, moved images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.models.encoders import Observations
from rl_training.models.muzero import MuZeroNetwork, State
from rl_training.ops.images import ImageLayout
from rl_training.ops.two_hot import expected
from rl_training.types import Array, SpaceInfo

_EXTREME_INTENSITY = 2.0


class ValuePrefixNetwork(MuZeroNetwork):
    """A network of MuZero whose dynamics predict the sum of rewards since the last reset, by an LSTM.

    It is hard to say at which of several steps a reward comes, and easier to say what they bring together. Every
    `horizon` steps from where a walk began, the LSTM's state and the sum go back to 0. The memory of a state is the
    LSTM's output and cell, the sum so far, and the number of steps since the reset; it is 0 right after one. So the
    reward of a step is what its sum adds to that of the state before.
    """

    def __init__(self, body: MuZeroNetwork, *, hidden_size: int, horizon: int) -> None:
        """`body` gives its place for a reward layer to the LSTM."""
        if hidden_size < 1 or horizon < 1:
            raise ValueError(f"hidden_size={hidden_size}, horizon={horizon}: both are at least 1")
        super().__init__(body.info, body.latent_shape, body.reward_support, body.value_support)
        assert isinstance(body.reward, nn.Linear)
        self.core = nn.LSTMCell(body.reward.in_features, hidden_size)
        self.reward = nn.Linear(hidden_size, body.reward_support.bins)
        nn.init.zeros_(self.reward.weight)
        nn.init.zeros_(self.reward.bias)
        body.reward = nn.Identity()  # what the body's dynamics return are now the features for the LSTM
        self.body = body
        self.hidden_size, self.horizon = hidden_size, horizon
        self.memory_size = 2 * hidden_size + 2

    def represent(self, obs: Observations) -> Tensor:
        return self.body.represent(obs)

    def dynamics(self, latent: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """The first step of a walk, whose sum is its reward."""
        state, logits = self.step(self.start(latent), action)
        return state.latent, logits

    def predict(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        return self.body.predict(latent)

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor]:
        latent, features = self.body.dynamics(state.latent, action)
        size, count = self.hidden_size, state.memory[:, -1:]
        output, cell = self.core(features, (state.memory[:, :size], state.memory[:, size : 2 * size]))
        logits = self.reward(output)
        total = expected(logits.detach(), self.reward_support)[:, None]
        memory = torch.cat([output, cell, total, count + 1.0], dim=1)
        return State(latent, torch.where(count + 1.0 < self.horizon, memory, 0.0)), logits

    def reward_of(self, before: State, logits: Tensor) -> Tensor:
        return expected(logits, self.reward_support) - before.memory[:, -2]


def prefix_targets(reward: Array, horizon: int) -> Array:
    """What a `ValuePrefixNetwork` learns from rewards `[K, B]`: their sums since the last reset."""
    sums = [np.cumsum(reward[start : start + horizon], axis=0) for start in range(0, len(reward), horizon)]
    return np.concatenate(sums)


class Consistency(nn.Module):
    """The loss that draws the latent of the dynamics towards that of the observation seen there (SimSiam).

    Both are projected; a predictor turns the dynamics' projection into the other, which gets no gradient. Without that
    asymmetry, a constant latent would be a solution. The loss is the negative cosine between the two.
    """

    def __init__(self, latent_shape: tuple[int, ...], *, projection_size: int, hidden_size: int) -> None:
        super().__init__()
        size = int(np.prod(latent_shape))
        self.projector = nn.Sequential(
            nn.Linear(size, projection_size),
            nn.LayerNorm(projection_size),
            nn.ReLU(),
            nn.Linear(projection_size, projection_size),
            nn.LayerNorm(projection_size),
        )
        self.predictor = nn.Sequential(
            nn.Linear(projection_size, hidden_size),
            nn.LayerNorm(hidden_size),
            nn.ReLU(),
            nn.Linear(hidden_size, projection_size),
        )

    def forward(self, latent: Tensor, seen: Tensor, mask: Tensor) -> Tensor:
        """Losses `[...]`, one for every entry of `mask` `[...]`: 0, and without a gradient, where it is not set.

        `latent` and `seen` are `[..., *latent_shape]`: the latents of the dynamics, and those of observations.
        """
        rows = mask.numel()
        predicted = self.predictor(self.projector(latent.reshape(rows, -1)))
        with torch.no_grad():
            wanted = self.projector(seen.reshape(rows, -1))
        cosine = nn.functional.cosine_similarity(predicted, wanted, dim=1).view(mask.shape)
        return torch.where(mask.bool(), -cosine, 0.0)


class Movement(NamedTuple):
    """How the images of N rows are moved and lit: pixels `[N, 2]` down and to the right, and factors `[N]`."""

    shift: Array
    gain: Array


class Augmentation:
    """Moves images by a few pixels and changes their intensity a little; edges are repeated.

    All frames and channels of a row share a movement, as do all images of a Dict observation: what is seen together
    moves together. Vectors stay as they are.
    """

    def __init__(self, info: SpaceInfo, *, pad: int = 4, intensity: float = 0.05) -> None:
        self._layouts = {part.name: ImageLayout(part.shape) for part in info.parts if part.kind == "image"}
        if info.obs_kind == "image":
            self._layouts = {"": ImageLayout(info.input_shape)}
        self._pad, self._intensity = pad, intensity

    def draw(self, rows: int, rng: np.random.Generator) -> Movement:
        """Movements of rows."""
        shift = rng.integers(-self._pad, self._pad, size=(rows, 2), endpoint=True)
        noise = rng.standard_normal(rows).clip(-_EXTREME_INTENSITY, _EXTREME_INTENSITY)
        return Movement(shift, (1.0 + self._intensity * noise).astype(np.float32))

    def __call__(self, obs: Observations, movement: Movement) -> Observations:
        """The observations, as a network sees them, with images as float32 on their old scale of 0 to 255."""
        if isinstance(obs, Mapping):
            return {
                name: self._moved(value, self._layouts[name], movement) if name in self._layouts else value
                for name, value in obs.items()
            }
        return self._moved(obs, self._layouts[""], movement) if self._layouts else obs

    def _moved(self, images: Tensor, layout: ImageLayout, movement: Movement) -> Tensor:
        planes = layout.planes(images).float()
        pad, height, width = self._pad, layout.height, layout.width
        padded = nn.functional.pad(planes, (pad, pad, pad, pad), mode="replicate")
        moved = torch.empty_like(planes)
        for row, (down, right) in enumerate(movement.shift.tolist()):
            top, left = pad - down, pad - right
            moved[row] = padded[row, :, top : top + height, left : left + width]
        moved *= torch.from_numpy(movement.gain).to(moved)[:, None, None, None]
        return layout.images(moved)
