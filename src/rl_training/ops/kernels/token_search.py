"""The whole search of a small transformer world model as one compiled call, and what comes before it: reading roots.

The trees of a block of roots grow side by side. A node owns two slots of the cache, for the tokens of its action and of
its latent. What came before is not copied: attention walks from a node to its parents, and from the root to the steps
before it. With C steps of context, slots 0 to 2 C - 2 are the tokens before the root and its own; those of node n begin
at 2 C - 3 + 2 n. So the root's action is the last one before it.
"""

from __future__ import annotations

import numpy as np

from rl_training.ops.kernels import lean
from rl_training.ops.kernels.fused_search import mean_number
from rl_training.ops.kernels.tokens import (
    BLOCK,
    FOLLOW,
    LOGITS,
    PREDICT,
    PRODUCT,
    TOKENS,
    TokenModel,
    ask_heads,
    latent_tokens,
    read_tokens,
)
from rl_training.ops.kernels.tree import ACTION, LOGIT, LOWEST, PARENT, Tree
from rl_training.ops.kernels.tree_rules import Rule
from rl_training.ops.kernels.tree_search import descend, finish, roots_to_search, tree_logit
from rl_training.ops.kernels.vectors import exp32
from rl_training.types import Array


@lean
def _exponentiate(model: TokenModel, k: int, start: int, first: int, last: int) -> None:
    """Unnormalised probabilities of the points from `first` to `last`, to row k of LOGITS, of logits at `start`."""
    bins = model.points.size
    x, out = model.rows[PRODUCT, start : start + last - first], model.rows[LOGITS, k * bins + first : k * bins + last]
    high = x[0]
    for i in range(x.size):
        high = max(high, x[i])
    for i in range(x.size):
        out[i] = exp32(x[i] - high)


@lean
def _put_token(model: TokenModel, k: int, token: Array) -> None:
    x = model.rows[TOKENS, k * token.size : (k + 1) * token.size]
    for i in range(x.size):
        x[i] = token[i]


@lean
def read_roots(model: TokenModel, latents: Array, actions: Array, absent: Array, logits: Array, value: Array) -> None:
    """Fill the cache with the steps before roots, and write the logits `[B, A]` and values `[B]` of these.

    Of the latents `[B, C, D]` and the actions `[B, C - 1]` between them, the first `absent` `[B]` steps are not there.
    """
    reach, tokens, bins = model.slots.shape[1], 2 * latents.shape[1] - 1, model.points.size
    for first in range(0, latents.shape[0], BLOCK):
        last = min(first + BLOCK, latents.shape[0])
        for token in range(tokens):
            count = np.int64(0)
            for b in range(first, last):
                if token < 2 * absent[b]:
                    continue
                model.searched[count] = b
                model.seen[count] = min(reach - 1 + token % 2, token - 2 * absent[b] + 1)
                for j in range(model.seen[count]):
                    model.slots[count, j] = token - j
                step = token // 2
                _put_token(model, count, model.actions[actions[b, step]] if token % 2 == 1 else latents[b, step])
                count += 1
            if count > 0:
                read_tokens(model, count)
        # The last token is there in all rows.
        stride = ask_heads(model, PREDICT, last - first)
        for k in range(last - first):
            b = first + k
            model.before[b] = tokens - 1 - 2 * absent[b]
            _exponentiate(model, k, k * stride, model.rewards, bins)
            value[b] = mean_number(model.rows[LOGITS], k * bins, model.points, model.rewards, bins)
            for a in range(logits.shape[1]):
                logits[b, a] = model.rows[PRODUCT, k * stride + bins - model.rewards + a] if a < model.own else LOWEST


@lean
def _trace(model: TokenModel, tree: Tree, k: int, node: int, latent: int) -> None:
    """Which slots the token of a new node sees: its latent's (1) or its action's (0)."""
    reach, b = model.slots.shape[1], model.searched[k]
    start, limit, line = np.int64(reach - 3), np.int64(reach - latent), model.slots[k]
    line[0] = start + 2 * node + latent
    many = np.int64(1)
    if latent == 1 and many < limit:
        line[many] = start + 2 * node
        many += 1
    here = np.int64(tree.nodes[b, node, PARENT])
    while many < limit:
        line[many] = start + 2 * here + 1
        many += 1
        if here == 0:
            break
        if many < limit:
            line[many] = start + 2 * here
            many += 1
        here = np.int64(tree.nodes[b, here, PARENT])
    for i in range(model.before[b]):
        if many < limit:
            line[many] = start - i
            many += 1
    model.seen[k] = many


@lean
def _simulate(tree: Tree, rule: Rule, model: TokenModel, node: int, count: int) -> None:
    """One simulation of every tree of a block."""
    rewards, bins = model.rewards, model.points.size
    for k in range(count):
        descend(tree, model.searched[k], rule, node)
        _put_token(model, k, model.actions[tree.nodes[model.searched[k], node, ACTION]])
        _trace(model, tree, k, node, np.int64(0))
    read_tokens(model, count)
    stride = ask_heads(model, FOLLOW, count)
    for k in range(count):
        _exponentiate(model, k, k * stride + model.norms.shape[2], np.int64(0), rewards)
    latent_tokens(model, count, stride)
    for k in range(count):
        _trace(model, tree, k, node, np.int64(1))
    read_tokens(model, count)
    stride = ask_heads(model, PREDICT, count)
    for k in range(count):
        b, policy = model.searched[k], k * stride + bins - rewards
        _exponentiate(model, k, k * stride, rewards, bins)
        for a in range(rule.interior):
            logit = model.rows[PRODUCT, policy + a] if a < model.own else np.float32(LOWEST)
            tree.edges[b, node, LOGIT, a] = tree_logit(logit)
        reward = mean_number(model.rows[LOGITS], k * bins, model.points, np.int64(0), rewards)
        value = mean_number(model.rows[LOGITS], k * bins, model.points, rewards, bins)
        finish(tree, b, rule, node, reward, np.float32(model.discount), value)


@lean
def token_search(tree: Tree, rule: Rule, model: TokenModel, roots: int) -> None:
    """All simulations of the first `roots` trees, which are planted, and whose roots were read."""
    for first in range(0, roots, BLOCK):
        count = roots_to_search(tree, first, min(first + BLOCK, roots), model.searched)
        for node in range(1, tree.nodes.shape[1] if count > 0 else 0):
            _simulate(tree, rule, model, np.int64(node), count)
