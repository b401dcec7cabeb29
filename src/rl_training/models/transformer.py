"""A small causal transformer on sequences of two tokens a step: an observation, then an action.

A token sees the tokens of its own step and of the `context - 1` steps before it. How far one is from another, counted
in tokens, adds a learned number to the score of each head; nothing else depends on the place. So the same weights serve
windows of any length, and keys and values that were computed once stay right while the window slides on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rl_training.models.adapters import AdaptedWeight, AdapterShape
from rl_training.models.experts import Experts, Routing


@dataclass(frozen=True)
class TransformerShape:
    """Sizes of a transformer; `hidden` is the width of every expert, `context` is counted in steps."""

    width: int
    layers: int
    heads: int
    context: int
    hidden: int
    experts: int
    adapter: AdapterShape

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width={self.width}: must be a multiple of heads={self.heads}")

    @property
    def reach(self) -> int:
        """How many tokens a token sees at most, itself included: an action sees all of `context` steps."""
        return 2 * self.context


class Past(NamedTuple):
    """Keys and values of tokens, layer by layer."""

    keys: list[Tensor]  # [B, T, D] each
    values: list[Tensor]  # [B, T, D] each


class Read(NamedTuple):
    """What a transformer makes of sequences."""

    features: Tensor  # [B, T, D]
    past: Past
    routing: list[Routing]  # of each layer with experts, for the tokens in the order [B, T]


class Attention(nn.Module):
    """Heads that look back over the tokens of a window."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.heads, self.size = shape.heads, shape.width // shape.heads
        self.into = AdaptedWeight(shape.width, 3 * shape.width, adapter=shape.adapter)
        self.out = AdaptedWeight(shape.width, shape.width, adapter=shape.adapter)
        self.distance = nn.Parameter(torch.zeros(shape.heads, shape.reach))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values `[..., D]` of tokens `[..., D]`."""
        query, key, value = (x @ self.into()).chunk(3, dim=-1)
        return query, key, value

    def forward(self, query: Tensor, key: Tensor, value: Tensor, distance: Tensor, hidden: Tensor) -> Tensor:
        """What queries `[B, T, D]` find among keys and values `[B, S, D]`.

        `distance` are the numbers of tokens from one to the other, and `hidden` says which ones are not seen; both are
        `[T, S]` or `[B, T, S]`.
        """
        q, k, v = (x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2) for x in (query, key, value))
        near = self.distance[:, distance]  # [H, T, S] or [H, B, T, S]
        near = near if near.dim() == 3 else near.transpose(0, 1)
        scores = q @ k.transpose(-1, -2) * self.size**-0.5 + near
        scores = scores.masked_fill(hidden if hidden.dim() == 2 else hidden[:, None], float("-inf"))
        found = scores.softmax(dim=-1) @ v
        return found.transpose(1, 2).flatten(-2) @ self.out()  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Attention, then a feed-forward part of experts; each reads normalised tokens and adds to them."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.first_norm, self.attention = nn.LayerNorm(shape.width), Attention(shape)
        self.second_norm = nn.LayerNorm(shape.width)
        self.experts = Experts(shape.width, shape.hidden, shape.experts, shape.adapter)

    def feed(self, x: Tensor) -> tuple[Tensor, Routing | None]:
        """Tokens `[B, T, D]` after the feed-forward part."""
        out, routing = self.experts(self.second_norm(x).flatten(0, -2))
        return x + out.view_as(x), routing


class Transformer(nn.Module):
    """Layers on tokens `[B, T, D]`: whole sequences, or one token after the other with what is kept of those before."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList([Layer(shape) for _ in range(shape.layers)])
        self.norm = nn.LayerNorm(shape.width)

    def forward(self, tokens: Tensor, absent: Tensor | None = None) -> Read:
        """Read sequences that begin with an observation; the first `absent` `[B]` tokens of a row are not there."""
        distance, hidden = _band(tokens.shape[1], self.shape.reach)
        distance, hidden = distance.to(tokens.device), hidden.to(tokens.device)
        if absent is not None:
            place = torch.arange(tokens.shape[1], device=tokens.device)
            # A token always sees itself, so that what is not there is nowhere nan.
            missing = (place[None, None, :] < absent[:, None, None]) & (place[:, None] != place)
            hidden = hidden | missing
        x, keys, values, routing = tokens, [], [], []
        for layer in self.layers:
            assert isinstance(layer, Layer)
            query, key, value = layer.attention.project(layer.first_norm(x))
            x, sent = layer.feed(x + layer.attention(query, key, value, distance, hidden))
            keys.append(key)
            values.append(value)
            routing += [] if sent is None else [sent]
        return Read(self.norm(x), Past(keys, values), routing)

    def step(self, token: Tensor, past: Past, hidden: Tensor) -> tuple[Tensor, Past]:
        """One token `[B, D]` more, after `S` of which the newest comes first; `hidden` `[B, S]`: what is not seen.

        Returns its features `[B, D]`, and its own keys and values `[B, 1, D]`.
        """
        x, keys, values = token[:, None], [], []
        distance = torch.arange(past.keys[0].shape[1] + 1, device=token.device)[None]
        unseen = torch.cat([hidden.new_zeros(len(hidden), 1), hidden], dim=1)[:, None]
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            query, key, value = layer.attention.project(layer.first_norm(x))
            all_keys = torch.cat([key, past.keys[index]], dim=1)
            all_values = torch.cat([value, past.values[index]], dim=1)
            x, _ = layer.feed(x + layer.attention(query, all_keys, all_values, distance, unseen))
            keys.append(key)
            values.append(value)
        return self.norm(x)[:, 0], Past(keys, values)


@cache
def _band(tokens: int, reach: int) -> tuple[Tensor, Tensor]:
    """Distances and what is hidden `[T, T]` of sequences that begin with an observation.

    An action sees `reach` tokens with itself, an observation one less: whole steps alone.
    """
    place = torch.arange(tokens)
    distance = place[:, None] - place
    sees = reach - 1 + place[:, None] % 2
    hidden = (distance < 0) | (distance >= sees)
    return distance.clamp(0, reach - 1), hidden
