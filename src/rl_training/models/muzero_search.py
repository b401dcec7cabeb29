"""Models of MuZero as a search asks for them: by torch, for every network, or by the NumPy engine of small MLPs."""

from __future__ import annotations

import numpy as np
import torch

from rl_training.models.muzero import MuZeroNetwork
from rl_training.models.muzero_engine import MuZeroEngine
from rl_training.ops.sampled_policy import sample_logits, sampled_actions
from rl_training.ops.search import Leaves
from rl_training.ops.two_hot import expected
from rl_training.types import Array


class _Answers:
    """The constant discount of all edges; for continuous actions, how the actions of a node are sampled.

    Action j of the node that simulation k makes is tanh(mean + spread[j] * std * noise[b, k, j]); `spread` is `[A]`,
    `noise` is standard normal, `[B, simulations + 1, actions of a node, d]`. The prior of samples is `sample_logits`.
    """

    def __init__(self, discount: float, *, continuous: bool, spread: Array | None, noise: Array | None) -> None:
        if continuous != (spread is not None) or continuous != (noise is not None):
            raise ValueError("a model of continuous actions needs spread and noise, any other takes none")
        self._discount, self._noise = discount, noise
        if spread is not None and noise is not None:
            self._spread = spread[: noise.shape[2]]
            self._prior = sample_logits(self._spread, noise)

    def leaves(self, simulation: int, reward: Array, embedding: Array, params: Array, value: Array) -> Leaves:
        discount = np.full(len(reward), self._discount, np.float32)
        if self._noise is None:
            return Leaves(reward, discount, embedding, params, value)
        actions = sampled_actions(params, self._spread, self._noise[:, simulation])
        return Leaves(reward, discount, embedding, self._prior[:, simulation], value, actions)


class TorchSearchModel:
    """Any network, on any device."""

    def __init__(
        self, network: MuZeroNetwork, discount: float, *, spread: Array | None = None, noise: Array | None = None
    ) -> None:
        self._network = network.eval()
        self._device = next(network.parameters()).device
        self._answers = _Answers(discount, continuous=network.info.continuous, spread=spread, noise=noise)

    def step(self, embedding: Array, action: Array, simulation: int) -> Leaves:
        network = self._network
        with torch.inference_mode():
            before = network.state_of(torch.from_numpy(embedding).to(self._device))
            after, logits = network.step(before, torch.from_numpy(action).to(self._device))
            params, value_logits = network.predict(after.latent)
            results = (
                network.reward_of(before, logits),
                network.embed(after),
                params,
                expected(value_logits, network.value_support),
            )
            reward, there, policy, value = (result.cpu().numpy() for result in results)
        return self._answers.leaves(simulation, reward, there, policy, value)


class EngineSearchModel:
    """A small MLP, by NumPy: faster than the compiled search for very wide layers, see `fastest`."""

    def __init__(
        self, engine: MuZeroEngine, discount: float, *, spread: Array | None = None, noise: Array | None = None
    ) -> None:
        self._engine = engine
        self._answers = _Answers(discount, continuous=engine.network.info.continuous, spread=spread, noise=noise)

    def step(self, embedding: Array, action: Array, simulation: int) -> Leaves:
        there, reward, policy, value = self._engine.step(embedding, action)
        return self._answers.leaves(simulation, reward, there, policy, value)
