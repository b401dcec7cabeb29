"""One root's search tree as flat arrays or nested plain data, for a picture of a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.ops.kernels.tree import (
    ACTION,
    DEPTH,
    DISCOUNT,
    MEAN,
    PARENT,
    PRIOR,
    RAW,
    REWARD,
    VISITS,
    Tree,
)
from rl_training.types import Array


@dataclass(frozen=True)
class SearchTree:
    """The nodes of a tree in the order in which simulations made them; node 0 is the root, a parent comes first."""

    parents: Array  # int32 [N], -1 for the root
    actions: Array  # int32 [N]: which of the parent's actions leads here, -1 for the root
    depth: Array  # int32 [N]
    visits: Array  # int32 [N], the node's own evaluation included
    values: Array  # float64 [N]: the mean over the visits
    raw_values: Array  # float64 [N]: what the model said
    rewards: Array  # float64 [N], of the edge that leads here
    discounts: Array  # float64 [N], of the edge that leads here
    priors: Array  # float32 [N]: of the action that leads here, 1 for the root
    child_priors: Array  # float32 [N, A]: of all actions of the node
    vectors: Array  # float32 [N, d]: the sampled action that leads here; d is 0 if an action is its index

    @classmethod
    def of(cls, tree: Tree, root: int) -> SearchTree:
        """Copy the tree of one root."""
        count = int(tree.nodes[root, 0, VISITS])
        nodes, values = tree.nodes[root, :count].copy(), tree.values[root, :count].copy()
        parents, actions = nodes[:, PARENT], nodes[:, ACTION]
        child_priors = tree.edges[root, :count, PRIOR].copy()
        priors = np.ones(count, np.float32)
        priors[1:] = child_priors[parents[1:], actions[1:]]
        vectors = np.zeros((count, tree.actions.shape[3]), np.float32)
        vectors[1:] = tree.actions[root, parents[1:], actions[1:]]
        return cls(
            parents=parents,
            actions=actions,
            depth=nodes[:, DEPTH],
            visits=nodes[:, VISITS],
            values=values[:, MEAN],
            raw_values=values[:, RAW],
            rewards=values[:, REWARD],
            discounts=values[:, DISCOUNT],
            priors=priors,
            child_priors=child_priors,
            vectors=vectors,
        )

    def nested(self) -> dict[str, Any]:
        """Plain data that JSON can hold: every node with its numbers and the list of its `children` by action."""
        nodes: list[dict[str, Any]] = []
        for k in range(self.parents.size):
            node: dict[str, Any] = {
                "node": k,
                "action": int(self.actions[k]),
                "prior": float(self.priors[k]),
                "visits": int(self.visits[k]),
                "value": float(self.values[k]),
                "raw_value": float(self.raw_values[k]),
                "reward": float(self.rewards[k]),
                "discount": float(self.discounts[k]),
                "depth": int(self.depth[k]),
                "children": [],
            }
            nodes.append(node)
            if k > 0:
                nodes[self.parents[k]]["children"].append(node)
        for node in nodes:
            node["children"].sort(key=lambda child: child["action"])
        return nodes[0]
