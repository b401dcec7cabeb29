"""A small causal transformer on sequences of two tokens a step: an observation, then an action.

A token sees the tokens of its own step and of the `context - 1` steps before it. Each head adds a learned relative
position bias to its scores: a number for every distance between two tokens. Nothing else depends on the place. So the
same weights serve windows of any length, and keys and values that were computed once stay right while the window slides
on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rl_training.models.adapters import AdaptedWeight, AdapterShape
from rl_training.models.experts import Experts, Routing
from rl_training.models.transformer_blocks import Norm, attention_block, experts_block, layer_norm
from rl_training.ops.attention import window_attention
from rl_training.ops.fast_path import compiled
from rl_training.types import UserError


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
            raise UserError(f"width={self.width}: must be a multiple of heads={self.heads}")

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
    products: list[Tensor]  # of each layer: queries, keys and values [B, T, 3 D]
    routing: list[Routing]  # of each layer with experts, for the tokens in the order [B, T]

    @property
    def past(self) -> Past:
        """The keys and values of all tokens."""
        pairs = [product.chunk(3, dim=-1)[1:] for product in self.products]
        return Past([key for key, _ in pairs], [value for _, value in pairs])


class Attention(nn.Module):
    """Heads that look back over the tokens of a window.

    `distance` `[heads, reach]` is the learned relative position bias, by distance in tokens.
    """

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.heads, self.size = shape.heads, shape.width // shape.heads
        self.into = AdaptedWeight(shape.width, 3 * shape.width, adapter=shape.adapter)
        self.out = AdaptedWeight(shape.width, shape.width, adapter=shape.adapter)
        self.distance = nn.Parameter(torch.zeros(shape.heads, shape.reach))

    def project(self, x: Tensor, stage: int) -> Tensor:
        """Queries, keys and values `[..., 3 D]` of tokens `[..., D]`."""
        return x @ self.into(stage)  # type: ignore[no-any-return]

    def forward(self, product: Tensor, absent: Tensor | None, stage: int) -> Tensor:
        """What the tokens of whole sequences find: `product` `[B, T, 3 D]` as `project` returns it."""
        return window_attention(product, self.distance, absent) @ self.out(stage)  # type: ignore[no-any-return]

    def look_back(self, query: Tensor, keys: Tensor, values: Tensor, hidden: Tensor, stage: int) -> Tensor:
        """What one query `[B, D]` finds among `[B, S, D]`, its own first and then the newest; `hidden` is `[B, S]`."""
        q, k, v = (x.reshape(len(x), -1, self.heads, self.size).transpose(1, 2) for x in (query, keys, values))
        scores = q @ k.transpose(-1, -2) * self.size**-0.5 + self.distance[:, None, : k.shape[2]]
        found = scores.masked_fill(hidden[:, None, None], float("-inf")).softmax(dim=-1) @ v
        return found.flatten(1) @ self.out(stage)  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Attention, then a feed-forward part of experts; each reads normalised tokens and adds to them."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.first_norm, self.attention = nn.LayerNorm(shape.width), Attention(shape)
        self.second_norm = nn.LayerNorm(shape.width)
        self.experts = Experts(shape.width, shape.hidden, shape.experts, shape.adapter)

    def look(self, x: Tensor, absent: Tensor | None, stage: int, every: int = 1) -> tuple[Tensor, Tensor]:
        """Tokens `[B, T, D]` after attention over whole sequences, and their queries, keys and values `[B, T, 3 D]`.

        Only one in `every` tokens looks, from the first on, and is in the first result.
        """
        attention, norm = self.attention, self.first_norm
        if not compiled(x):
            product = attention.project(norm(x), stage)
            return (x + attention(product, absent, stage))[:, ::every], product
        weights = (attention.into(stage), attention.distance, attention.out(stage))
        return attention_block(x, Norm(norm.weight, norm.bias), *weights, absent, every)

    def feed(self, x: Tensor, stage: int) -> tuple[Tensor, Routing | None]:
        """Tokens `[..., D]` after the feed-forward part."""
        if not compiled(x):
            out, routing = self.experts(self.second_norm(x).flatten(0, -2), stage)
            return x + out.view_as(x), routing
        norm, experts = self.second_norm, self.experts
        given = (experts.shared_in(stage), experts.shared_out(stage), experts.mixture(stage))
        after, probability, choice = experts_block(x.flatten(0, -2), Norm(norm.weight, norm.bias), *given)
        return after.view_as(x), None if probability is None or choice is None else Routing(probability, choice)


class Transformer(nn.Module):
    """Layers on tokens `[B, T, D]`: whole sequences, or one token after the other with what is kept of those before.

    The weights are those of a stage: of a first one, or with the adapters of as many more.
    """

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList([Layer(shape) for _ in range(shape.layers)])
        self.norm = nn.LayerNorm(shape.width)

    def forward(self, tokens: Tensor, absent: Tensor | None = None, stage: int = 0, *, states: bool = False) -> Read:
        """Read sequences that begin with an observation; the first `absent` `[B]` tokens of a row are not there.

        With `states`, features and the last layer's routing are those of observations alone.
        """
        x, products, routing = tokens, [], []
        for number, layer in enumerate(self.layers, start=1):
            assert isinstance(layer, Layer)
            x, product = layer.look(x, absent, stage, 2 if states and number == len(self.layers) else 1)
            x, sent = layer.feed(x, stage)
            products.append(product)
            routing += [] if sent is None else [sent]
        features = layer_norm(x, Norm(self.norm.weight, self.norm.bias)) if compiled(x) else self.norm(x)
        return Read(features, products, routing)

    def step(self, token: Tensor, past: Past, hidden: Tensor, stage: int = 0) -> tuple[Tensor, Past]:
        """One token `[B, D]` more, after `S` of which the newest comes first; `hidden` `[B, S]`: what is not seen.

        Returns its features `[B, D]`, and its own keys and values `[B, 1, D]`.
        """
        x, keys, values = token, [], []
        unseen = torch.cat([hidden.new_zeros(len(hidden), 1), hidden], dim=1)
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            query, key, value = layer.attention.project(layer.first_norm(x), stage).chunk(3, dim=-1)
            all_keys = torch.cat([key[:, None], past.keys[index]], dim=1)
            all_values = torch.cat([value[:, None], past.values[index]], dim=1)
            found = layer.attention.look_back(query, all_keys, all_values, unseen, stage)
            x, _ = layer.feed(x + found, stage)
            keys.append(key[:, None])
            values.append(value[:, None])
        return self.norm(x), Past(keys, values)
