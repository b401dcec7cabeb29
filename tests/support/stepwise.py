"""A recurrent network on a rollout, one step after the other: what packed sequences are compared with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rl_training.algorithms.on_policy import OnPolicyAlgorithm
from rl_training.data.rollout import Rollout


def step_by_step(learner: OnPolicyAlgorithm, rollout: Rollout, length: int) -> tuple[Tensor, Tensor]:
    """Policy parameters and values of all rows `[T, B]`: one call of the core per row, states reset by hand."""
    network: Any = learner.network
    obs = torch.from_numpy(learner.observer.arrays(learner.observer.scaled(rollout.obs)).copy())
    stored = torch.from_numpy(rollout.records["state"])
    starts = torch.from_numpy(rollout.starts)
    features: list[list[Tensor]] = []
    parts = list(stored[0].chunk(len(network.cores), dim=-1))
    for t, row in enumerate(obs):
        if t % length == 0:
            parts = list(stored[t].chunk(len(network.cores), dim=-1))
        outputs = []
        for k, core in enumerate(network.cores):
            before = torch.where(starts[t][:, None], torch.zeros(()), parts[k])
            if isinstance(core, nn.LSTM):
                out, (hidden, cell) = core(row[None], tuple(half[None].contiguous() for half in before.chunk(2, -1)))
                parts[k] = torch.cat([hidden[0], cell[0]], dim=-1)
            else:
                out, hidden = core(row[None], before[None].contiguous())
                parts[k] = hidden[0]
            outputs.append(out[0])
        features.append(outputs)
    policy, value = (torch.stack([outputs[k] for outputs in features]) for k in (0, -1))
    params = network.heads.policy(policy.flatten(0, 1))[0]
    rows = rollout.obs.reshape(-1, *rollout.obs.shape[2:])
    return learner.policy.allowed(params, rows), network.heads.value(value.flatten(0, 1))
