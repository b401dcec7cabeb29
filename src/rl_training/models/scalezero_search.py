"""The world model as a search asks for it: what came before a root, and one more step below it.

A root is read with the steps before it. In the tree, a node keeps the keys and values of its two tokens, the action
that led to it and its latent, and nothing of what came before: attention goes from a node to its parents, and from the
root to the steps before it. Where a search has more actions than the task, the others get the lowest logit, which no
rule follows.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rl_training.models.encoders import Observations
from rl_training.models.scalezero import ScaleZeroNetwork
from rl_training.models.transformer import Past, TransformerShape
from rl_training.ops.kernels.tree import LOWEST
from rl_training.ops.search import Leaves, Roots
from rl_training.ops.two_hot import expected
from rl_training.types import Array


def with_absent(logits: Array, actions: int) -> Array:
    """A task's logits `[B, A]` for a search of more actions: those that the task does not have get the lowest one."""
    if logits.shape[1] == actions:
        return logits
    wide = np.full((len(logits), actions), LOWEST, np.float32)
    wide[:, : logits.shape[1]] = logits
    return wide


def latents_before(network: ScaleZeroNetwork, task: str, obs: Observations, count: int) -> Array:
    """The latents `[B, C, D]` of `count` roots and the steps before them, from observations of `[B C]` rows."""
    with torch.inference_mode():
        latents: Array = network.encode(task, obs).view(count, -1, network.shape.transformer.width).cpu().numpy()
    return latents


def token_bytes(shape: TransformerShape, simulations: int) -> int:
    """The bytes of the keys and values of one root, the steps before it, and so many nodes below it."""
    return 4 * (2 * shape.context - 1 + 2 * simulations) * 2 * shape.layers * shape.width


class TorchWorldModel:
    """The model of one task by torch, for searches of so many `simulations`; `actions` as many as a search has.

    A node's embedding is its number, by which this object finds its keys and values. Call `roots` before a search.
    """

    def __init__(
        self, network: ScaleZeroNetwork, task: str, discount: float, simulations: int, *, actions: int | None = None
    ) -> None:
        self._network, self._task, self.discount = network.eval(), task, discount
        self._actions = network.tasks[task].action_size if actions is None else actions
        self._simulations = simulations
        self._device = network.actions.device

    def roots(self, latents: Array, actions: Array, absent: Array) -> Roots:
        """Where searches begin: after latents `[B, C, D]`, the last of which are the roots, and actions `[B, C - 1]`.

        The first `absent` `[B]` of these steps are not there.
        """
        network, shape = self._network, self._network.shape.transformer
        given = (torch.from_numpy(array).to(self._device) for array in (latents, actions, absent))
        with torch.inference_mode():
            read = network.read(*given, stage=network.stage_of(self._task))
            predicted = network.heads_of(self._task).predict(read.features[:, -1])
            value = expected(predicted.value, network.shape.value_support)
        count, before = len(latents), read.features.shape[1]
        slots = before + 2 * self._simulations
        # Of keys and of values, for each layer.
        self._kept = torch.zeros(2, shape.layers, count, slots, shape.width, device=self._device)
        for kept, known in zip(self._kept, read.past, strict=True):
            kept[:, :, :before] = torch.stack(known)
        # For every node, the slots of the tokens that its children see, the newest first; -1 where there is none.
        self._seen = torch.full((count, self._simulations + 1, shape.reach), -1, device=self._device)
        line = torch.arange(before - 1, -1, -1, device=self._device).expand(count, -1)
        there = line >= 2 * torch.from_numpy(absent).to(self._device)[:, None]
        self._seen[:, 0, :before] = torch.where(there, line, -1)
        self._before, self._rows = before, torch.arange(count, device=self._device)
        logits = with_absent(predicted.policy.cpu().numpy(), self._actions)
        return Roots(np.zeros((count, 1), np.float32), logits, value.cpu().numpy())

    def bytes_needed(self, roots: int) -> int:
        """The RAM that is kept for so many roots; a GPU has memory of its own."""
        shape = self._network.shape.transformer
        each = token_bytes(shape, self._simulations) + 8 * (self._simulations + 1) * shape.reach
        return roots * each if self._device.type == "cpu" else 0

    def step(self, embedding: Array, action: Array, simulation: int) -> Leaves:
        network, heads, reach = self._network, self._network.heads_of(self._task), self._network.shape.transformer.reach
        with torch.inference_mode():
            parents = torch.from_numpy(embedding[:, 0]).to(self._device).long()
            seen = self._seen[self._rows, parents]
            slot = self._before + 2 * (simulation - 1)
            token = network.actions[torch.from_numpy(action).to(self._device)]
            after = heads.follow(self._token(token, seen[:, : reach - 1], slot))
            seen = torch.cat([torch.full_like(seen[:, :1], slot), seen], dim=1)
            latent = network.normalized(after.latent)
            predicted = heads.predict(self._token(latent, seen[:, : reach - 2], slot + 1))
            seen = torch.cat([torch.full_like(seen[:, :1], slot + 1), seen], dim=1)
            self._seen[:, simulation] = seen[:, :reach]
            reward = expected(after.reward, network.shape.reward_support).cpu().numpy()
            value = expected(predicted.value, network.shape.value_support).cpu().numpy()
        return Leaves(
            reward,
            np.full(len(reward), self.discount, np.float32),
            np.full((len(reward), 1), simulation, np.float32),
            with_absent(predicted.policy.cpu().numpy(), self._actions),
            value,
        )

    def _token(self, token: Tensor, seen: Tensor, slot: int) -> Tensor:
        """The features of one more token of every tree, whose keys and values go to `slot`."""
        index = seen.clamp(min=0)
        keys, values = self._kept[:, :, self._rows[:, None], index]
        stage = self._network.stage_of(self._task)
        features, own = self._network.transformer.step(token, Past(list(keys), list(values)), seen < 0, stage)
        for kept, known in zip(self._kept, own, strict=True):
            kept[:, :, slot] = torch.cat(known, dim=1).transpose(0, 1)
        return features
