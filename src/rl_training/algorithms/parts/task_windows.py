"""Windows of several tasks as a sequence model reads them: what was seen, what is to be learned, what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.parts.unroll_batch import UnrollBatch, returns_to, targets_along, targets_from
from rl_training.algorithms.parts.world_policy import Moments
from rl_training.data.batches import Windows
from rl_training.models.encoders import Observations
from rl_training.models.experts import Routing, expert_loads
from rl_training.models.scalezero import Dynamics, Prediction, ScaleZeroNetwork
from rl_training.models.transformer import Read
from rl_training.models.transformer_blocks import unwoven
from rl_training.ops.two_hot import expected
from rl_training.types import Array


class TaskOutputs(NamedTuple):
    """What the heads of a task return for its windows."""

    prediction: Prediction  # policy [K + 1, B, A], value [K + 1, B, bins]
    dynamics: Dynamics  # latent [K, B, D] before it is normalised, reward [K, B, bins]


def observed(windows: Windows, steps: int) -> Array:
    """What was seen at `steps` + 1 states in a row, `[steps + 1, B, ...]`; past the end of an episode, its last state.

    So a terminated episode goes on for ever in the state that it ended in, without any reward.
    """
    # Rows past the end repeat the last transition.
    seen: Array = np.concatenate([windows.obs[:1], windows.next_obs[:steps]])
    return seen


def sequence_batch(windows: Windows, obs: Array, action: Array, value: Array) -> UnrollBatch:
    """Targets along windows whose states `obs` `[K + 1, B, ...]` are all read; weights of all steps are equal.

    A term's weights sum to 1 over K + 1 states (or K steps) and B windows where everything is known.
    """
    steps, count = len(action), np.float32(len(windows))
    weight = (np.ones(len(windows), np.float32) if windows.weight is None else windows.weight) / count
    weights = weight / np.float32(steps + 1), weight / np.float32(steps)
    return targets_along(windows, obs[0], action, value, weights)


class Outputs(NamedTuple):
    """What the model returns for the windows of all tasks, and how their tokens were sent to experts."""

    of_task: dict[str, TaskOutputs]
    routing: list[Routing]  # of each layer with experts
    tokens: dict[str, slice]  # the tokens of each task in the routing


def read_windows(network: ScaleZeroNetwork, obs: Mapping[str, Observations], actions: Mapping[str, Tensor]) -> Outputs:
    """Read the windows of tasks that are trained, all at once.

    Observations are `[(K + 1) B]` rows, time first, and actions `[K, B]`.
    """
    read = _read(network, _latents(network, obs, actions), actions)
    length, found, tokens = read.features.shape[1], {}, {}
    for task, (start, end) in _spans(actions).items():
        (states, acts), of_task = unwoven(read.features[start:end]), network.heads_of(task)
        found[task] = TaskOutputs(of_task.predict(states), of_task.follow(acts))
        tokens[task] = slice(start * length, end * length)
    return Outputs(found, read.routing, tokens)


class TargetOutputs(NamedTuple):
    """What a target network returns for one task's windows."""

    latent: Tensor  # [T + 1, B, D]
    value: Tensor  # [T + 1, B]


def target_outputs(
    target: ScaleZeroNetwork, obs: Mapping[str, Observations], actions: Mapping[str, Tensor]
) -> dict[str, TargetOutputs]:
    """Latents and values by a target network: observations of `[(T + 1) B]` rows, time first, and actions `[T, B]`."""
    with torch.no_grad():
        latents = _latents(target, obs, actions)
        features = _read(target, latents, actions, states=True).features
        found = {}
        for task, (start, end) in _spans(actions).items():
            logits = target.heads_of(task).values(features[start:end])
            found[task] = TargetOutputs(latents[task], expected(logits, target.shape.value_support).T)
    return found


def _spans(actions: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """Which rows of a batch of all tasks are those of each."""
    ends = np.cumsum([action.shape[1] for action in actions.values()]).tolist()
    return {task: (end - action.shape[1], end) for (task, action), end in zip(actions.items(), ends, strict=True)}


def _latents(
    network: ScaleZeroNetwork, obs: Mapping[str, Observations], actions: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The latents `[T + 1, B, D]` of each task's windows."""
    return {
        task: network.encode(task, obs[task]).view(len(action) + 1, action.shape[1], -1)
        for task, action in actions.items()
    }


def _read(
    network: ScaleZeroNetwork, latents: Mapping[str, Tensor], actions: Mapping[str, Tensor], *, states: bool = False
) -> Read:
    """Read the windows of all tasks at once."""
    return network.read(
        torch.cat([latents[task].transpose(0, 1) for task in actions]),
        torch.cat([action.T for action in actions.values()]),
        stage=network.stage,
        states=states,
    )


def value_targets(windows: Windows, values: Array, n_step: int, steps: int, discount: float) -> Array:
    """Returns `[K + 1, B]` of `n_step` rewards and the values `[K + n_step + 1, B]` of the states after them."""
    rows = targets_from(windows, np.full(len(windows), n_step, np.int64), steps)
    return returns_to(windows, rows, values[rows + 1, np.arange(len(windows))], discount)


def moments_in(windows: Windows, mask: Array, context: int) -> Moments:
    """The states of windows that a mask `[T, B]` chooses, each with the steps before it in its window."""
    row, window = np.nonzero(mask)
    rows, windows_of = np.maximum(row[:, None] + np.arange(1 - context, 1), 0), window[:, None]
    return Moments(
        windows.obs[rows, windows_of],
        windows.action[rows[:, :-1], windows_of],
        np.maximum(context - 1 - row, 0),
    )


def seen_whole(windows: Windows, steps: int, context: int) -> Array:
    """The states `[steps + 1, B]` of windows that have as many steps before them as acting had, up to `context`."""
    seen: Array = (np.arange(steps + 1)[:, None] >= context - 1) | windows.first[0]
    return seen


def loads_of(outputs: Outputs, task: str) -> dict[str, float]:
    """The share of a task's tokens that went to each expert, the mean over layers, as `expert_0` and so on."""
    if not outputs.routing:
        return {}
    loads = torch.stack([expert_loads(sent, outputs.tokens[task]) for sent in outputs.routing]).mean(dim=0).tolist()
    return {f"expert_{number}": load for number, load in enumerate(loads)}
