"""The world model of one task for the compiled search: its weights as panels, and the cache of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.models.scalezero import ScaleZeroNetwork
from rl_training.models.scalezero_search import token_bytes
from rl_training.models.transformer import Layer
from rl_training.ops.kernels.dense import FEWEST, LANES, pack
from rl_training.ops.kernels.token_search import read_roots, token_search
from rl_training.ops.kernels.tokens import BLOCK, BUFFERS, TokenModel
from rl_training.ops.kernels.tree import Tree
from rl_training.ops.kernels.tree_rules import Rule
from rl_training.ops.search import CompiledModel, Roots
from rl_training.ops.search_packed import aligned
from rl_training.types import Array

# A matrix `[in, out]` and its bias `[out]`, if it has one.
_Matrix = tuple[Tensor, Tensor | None]


class _Space(NamedTuple):
    """Where the matrices go, and the memory that one layout needs."""

    weights: Array
    moves: Array
    plan: Array
    rows: Array


class CompiledWorldModel(CompiledModel):
    """The model of one task, for searches of so many `simulations`; `actions` as many as a search has.

    Call `roots` before every search: it also copies the weights as they are then.
    """

    def __init__(
        self, network: ScaleZeroNetwork, task: str, discount: float, simulations: int, *, actions: int | None = None
    ) -> None:
        self._network, self._task, self.discount, self._simulations = network, task, discount, simulations
        self._own = network.tasks[task].action_size
        self._actions = self._own if actions is None else actions
        shape = network.shape
        self._points = np.concatenate([shape.reward_support.points, shape.value_support.points])
        self._space: _Space | None = None
        self._cache, self._before = np.empty((0, 0, 0), np.float32), np.empty(0, np.int64)
        reach = shape.transformer.reach
        self._slots, self._numbers = np.zeros((BLOCK, reach), np.int64), np.zeros((4, BLOCK), np.int64)
        self._shares = np.zeros(max(BLOCK, reach), np.float32)
        self._model: TokenModel | None = None

    def roots(self, latents: Array, actions: Array, absent: Array) -> Roots:
        """Where searches begin: after latents `[B, C, D]`, the last of which are the roots, and actions `[B, C - 1]`.

        The first `absent` `[B]` of these steps are not there.
        """
        shape, count = self._network.shape.transformer, len(latents)
        if latents.shape != (count, shape.context, shape.width) or actions.shape != (count, shape.context - 1):
            raise ValueError(f"got latents {latents.shape} and actions {actions.shape} for {shape.context} steps")
        if actions.size and not 0 <= int(actions.min()) <= int(actions.max()) < self._network.n_actions:
            raise ValueError(f"actions must be from 0 to {self._network.n_actions - 1}")
        if absent.shape != (count,) or int(absent.min()) < 0 or int(absent.max()) >= shape.context:
            raise ValueError(f"absent steps must be from 0 to {shape.context - 1}, one number for each root")
        if len(self._cache) < count:
            slots = 2 * shape.context - 1 + 2 * self._simulations
            self._cache = np.zeros((count, slots, 2 * shape.layers * shape.width), np.float32)
            self._before = np.zeros(count, np.int64)
        self._model = self._packed()
        logits, value = np.empty((count, self._actions), np.float32), np.empty(count, np.float32)
        given = (np.ascontiguousarray(latents, np.float32), np.ascontiguousarray(actions, np.int64))
        read_roots(self._model, *given, np.ascontiguousarray(absent, np.int64), logits, value)
        return Roots(np.empty((count, 0), np.float32), logits, value)

    def bytes_needed(self, roots: int) -> int:
        """The RAM that is kept for so many roots."""
        return roots * (self._before.itemsize + token_bytes(self._network.shape.transformer, self._simulations))

    def search(self, tree: Tree, rule: Rule, roots: int) -> None:
        if self._model is None or roots > len(self._before):
            raise ValueError("the roots of a search must be read before it")
        if tree.nodes.shape[1] > self._simulations + 1 or tree.row.size != self._actions:
            raise ValueError(f"the model is made for {self._simulations} simulations and {self._actions} actions")
        token_search(tree, rule, self._model, roots)

    def _packed(self) -> TokenModel:
        """The model with its present weights."""
        network, shape = self._network, self._network.shape
        transformer = network.transformer
        with torch.no_grad():
            lines = _matrices(network, self._task)
            if self._space is None:
                self._space = _space(lines, shape.transformer.width + self._points.size)
            parts = [
                part.detach().reshape(-1) for line in lines for matrix in line for part in matrix if part is not None
            ]
            pack(torch.cat(parts).numpy(), self._space.moves, self._space.weights)
            layers = [layer for layer in transformer.layers if isinstance(layer, Layer)]
            pairs = [norm for layer in layers for norm in (layer.first_norm, layer.second_norm)]
            norms = torch.stack([torch.stack([norm.weight, norm.bias]) for norm in (*pairs, transformer.norm)])
            distance = torch.stack([layer.attention.distance for layer in layers])
        return TokenModel(
            weights=self._space.weights,
            plan=self._space.plan,
            norms=norms.numpy(),
            distance=distance.numpy(),
            actions=network.actions.detach().numpy(),
            points=self._points,
            cache=self._cache,
            before=self._before,
            rows=self._space.rows,
            slots=self._slots,
            seen=self._numbers[0],
            searched=self._numbers[1],
            picked=self._numbers[2:],
            shares=self._shares,
            experts=shape.transformer.experts,
            group=shape.group if shape.latent_norm == "simnorm" else 0,
            rewards=shape.reward_support.bins,
            own=self._own,
            discount=float(self.discount),
        )


def _linear(layer: nn.Linear) -> _Matrix:
    return layer.weight.T, layer.bias


def _matrices(network: ScaleZeroNetwork, task: str) -> list[list[_Matrix]]:
    """All matrices in the order of the plan; those of one line read the same input and lie side by side."""
    lines: list[list[_Matrix]] = []
    stage = network.stage_of(task)
    for layer in network.transformer.layers:
        assert isinstance(layer, Layer)
        experts = layer.experts
        weights = [
            part(stage) for part in (layer.attention.into, layer.attention.out, experts.shared_in, experts.shared_out)
        ]
        if experts.count:
            weights += [experts.router, *experts.expert_in(stage), *experts.expert_out(stage)]
        lines += [[(weight, None)] for weight in weights]
    heads = network.heads_of(task)
    lines += [[_linear(heads.dynamics)], [_linear(heads.latent), _linear(heads.reward)]]
    # The kernel reads the value first.
    return [*lines, [_linear(heads.prediction)], [_linear(heads.value), _linear(heads.policy)]]


def _space(lines: Sequence[Sequence[_Matrix]], widest: int) -> _Space:
    """The plan of these matrices, the copies that it needs, and scratch memory."""
    plan: list[tuple[int, int, int]] = []
    moves: list[tuple[int, ...]] = []
    source = end = 0
    for line in lines:
        inputs, columns = line[0][0].shape[0], sum(weight.shape[1] for weight, _ in line)
        panels = max(-(-columns // LANES), FEWEST)
        size, column = (inputs + 1) * LANES, 0
        plan.append((inputs, panels, end))
        for weight, bias in line:
            outputs = weight.shape[1]
            moves.append((source, inputs, outputs, end, column, LANES, size))
            source += inputs * outputs
            if bias is not None:
                moves.append((source, 1, outputs, end + inputs * LANES, column, LANES, size))
                source += outputs
            column += outputs
        widest = max(widest, inputs, panels * LANES)
        end += panels * size
    rows = aligned(BUFFERS * BLOCK * widest).reshape(BUFFERS, BLOCK * widest)
    return _Space(aligned(end), np.array(moves, np.int64), np.array(plan, np.int64), rows)
