"""The world model of UniZero and ScaleZero: one transformer for several tasks (arXiv:2406.10667, arXiv:2509.07945).

A step is two tokens: the latent of an observation, and an action. What the transformer makes of an observation's token
says policy and value; what it makes of an action's token says the reward and the next latent, which is the next
observation's token in a search. Each task has its own encoder and heads, and its actions are the first ones of a table
that all tasks share. A single task is a mapping of one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from rl_training.models.adapters import adapted
from rl_training.models.encoders import Observations
from rl_training.models.head_pairs import head_pair
from rl_training.models.torso import MLP, linear
from rl_training.models.transformer import Read, Transformer, TransformerShape
from rl_training.models.transformer_blocks import woven
from rl_training.models.trunk import EncoderShape
from rl_training.ops.divergences import group_softmax
from rl_training.ops.fast_path import compiled
from rl_training.ops.two_hot import Support
from rl_training.types import SpaceInfo, UserError

LatentNorm = Literal["simnorm", "layer_norm"]


@dataclass(frozen=True)
class WorldShape:
    """Sizes of a world model. `group` is the size of a group of SimNorm, which must divide the width."""

    transformer: TransformerShape
    encoder: EncoderShape
    latent_norm: LatentNorm
    group: int
    reward_support: Support
    value_support: Support

    def __post_init__(self) -> None:
        width = self.transformer.width
        if self.latent_norm == "simnorm" and width % self.group:
            raise UserError(f"width={width}: must be a multiple of latent_group={self.group}, as SimNorm has groups")


class Dynamics(NamedTuple):
    """What follows an action: the next latent before it is normalised `[..., D]`, and the reward `[..., bins]`."""

    latent: Tensor
    reward: Tensor


class Prediction(NamedTuple):
    """Logits of the policy over the task's own actions `[..., A]`, and of the value `[..., bins]`."""

    policy: Tensor
    value: Tensor


class TaskEncoder(nn.Module):
    """Observations as latents `[B, D]` before they are normalised: an MLP, behind convolutions for images.

    A layer norm is last. Without it, latents would hardly differ between observations at first: every group of SimNorm
    would be nearly uniform, and a model that predicts the mean would be nearly right.
    """

    def __init__(self, info: SpaceInfo, shape: EncoderShape, width: int) -> None:
        super().__init__()
        body, features = shape.build(info)
        # An MLP without layers flattens vectors.
        self.body = MLP(features, (), shape.activation, orthogonal=False) if body is None else body
        self.latent = nn.Sequential(linear(features, width, gain=None), nn.LayerNorm(width))

    def forward(self, obs: Observations) -> Tensor:
        latent: Tensor = self.latent(self.body(obs))
        return latent


class TaskHeads(nn.Module):
    """What features say in one task; rewards and values are 0 before they are learned."""

    def __init__(self, actions: int, shape: WorldShape) -> None:
        super().__init__()
        width = shape.transformer.width
        self.dynamics, self.prediction = linear(width, width, gain=None), linear(width, width, gain=None)
        self.latent, self.policy = linear(width, width, gain=None), linear(width, actions, gain=None)
        self.reward, self.value = (
            linear(width, shape.reward_support.bins, gain=None),
            linear(width, shape.value_support.bins, gain=None),
        )
        for silent in (self.reward, self.value):
            nn.init.zeros_(silent.weight)
            nn.init.zeros_(silent.bias)

    def follow(self, features: Tensor) -> Dynamics:
        """What features of action tokens say."""
        return Dynamics(*head_pair(features, self.dynamics, self.latent, self.reward))

    def predict(self, features: Tensor) -> Prediction:
        """What features of observation tokens say."""
        return Prediction(*head_pair(features, self.prediction, self.policy, self.value))

    def values(self, features: Tensor) -> Tensor:
        """Of that the value alone."""
        logits: Tensor = self.value(nn.functional.silu(self.prediction(features)))
        return logits


class ScaleZeroNetwork(nn.Module):
    """One model of all tasks, which can grow by stages of adapters.

    A task that is not trained any more is read as it was at the end of its last stage: nothing that is learned later
    changes it. The stage, and that of every task, are part of the state. Parameters that a stage froze have no
    gradient; `trained_parameters` are all others. `encoder` makes the encoders of tasks, where they are custom ones.
    `n_actions` is the largest number of actions of any task; the table of actions has so many rows.
    """

    stage_number: Tensor
    task_stage: Tensor

    def __init__(
        self,
        tasks: Mapping[str, SpaceInfo],
        shape: WorldShape,
        encoder: Callable[[SpaceInfo], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        for name, info in tasks.items():
            if info.action_kind != "discrete" or len(info.action_counts) != 1:
                raise UserError(f"task {name}: the actions are {info.action_kind}; the model takes one discrete choice")
        self.tasks, self.shape = dict(tasks), shape
        width = shape.transformer.width
        self.n_actions = max(info.action_size for info in tasks.values())
        make = encoder or (lambda info: TaskEncoder(info, shape.encoder, width))
        self.encoders = nn.ModuleList([make(info) for info in tasks.values()])
        self.heads = nn.ModuleList([TaskHeads(info.action_size, shape) for info in tasks.values()])
        self.actions = nn.Parameter(torch.randn(self.n_actions, width) * width**-0.5)
        self.transformer = Transformer(shape.transformer)
        self.register_buffer("stage_number", torch.zeros((), dtype=torch.int64))
        self.register_buffer("task_stage", torch.zeros(len(tasks), dtype=torch.int64))
        self._numbers = {name: number for number, name in enumerate(tasks)}

    def heads_of(self, task: str) -> TaskHeads:
        heads = self.heads[self._numbers[task]]
        assert isinstance(heads, TaskHeads)
        return heads

    def action_mask(self) -> Tensor:
        """Which actions of the table each task has, bool `[tasks, n_actions]`."""
        counts = torch.tensor([info.action_size for info in self.tasks.values()])
        return torch.arange(self.n_actions) < counts[:, None]

    def normalized(self, latent: Tensor) -> Tensor:
        """Latents as tokens: softmax within groups (SimNorm, arXiv:2204.00616), or of mean 0 and variance 1."""
        if self.shape.latent_norm == "layer_norm":
            return nn.functional.layer_norm(latent, latent.shape[-1:])
        return group_softmax(latent, self.shape.group)

    def encode(self, task: str, obs: Observations) -> Tensor:
        """The latents `[B, D]` of a task's observations, normalised."""
        return self.normalized(self.encoders[self._numbers[task]](obs))

    def read(
        self, latents: Tensor, actions: Tensor, absent: Tensor | None = None, *, stage: int, states: bool = False
    ) -> Read:
        """Sequences of latents `[B, K + 1, D]` and of the actions `[B, K]` between them: 2 K + 1 tokens.

        The first `absent` `[B]` steps of a row are not there. With `states`, features are those of latents alone.
        """
        if compiled(latents):
            tokens = woven(latents, self.actions, actions)
        else:
            tokens = latents.new_empty(len(latents), 2 * latents.shape[1] - 1, latents.shape[2])
            tokens[:, 0::2] = latents
            tokens[:, 1::2] = self.actions[actions]
        read: Read = self.transformer(tokens, None if absent is None else 2 * absent, stage, states=states)
        return read

    @property
    def stage(self) -> int:
        """How many stages have begun after the first."""
        return int(self.stage_number)

    @property
    def last_stage(self) -> int:
        """How many stages can begin after the first: each adds an adapter to every weight that can grow."""
        return self.shape.transformer.adapter.adapters

    def stage_of(self, task: str) -> int:
        """The last stage that trained a task."""
        return int(self.task_stage[self._numbers[task]])

    @property
    def trained_tasks(self) -> tuple[str, ...]:
        """The tasks whose encoders and heads are trained."""
        return tuple(name for name in self.tasks if self.stage_of(name) == self.stage)

    def trained_parameters(self) -> list[nn.Parameter]:
        """What an optimiser may change."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def begin_stage(self, trained: Collection[str]) -> None:
        """Freeze what all tasks share, and all of the tasks that are not `trained` any more; add adapters.

        No output changes, to the bit. From now on adapters and scales are trained, and encoders and heads of `trained`
        tasks.
        """
        if unknown := set(trained) - set(self.trained_tasks):
            raise ValueError(f"tasks {sorted(unknown)} are not among {list(self.trained_tasks)}, which are trained")
        if self.stage == self.last_stage:
            raise ValueError(f"stage {self.stage} is the last one")
        self.stage_number += 1
        for name in trained:
            self.task_stage[self._numbers[name]] = self.stage
        for weight in adapted(self.transformer):
            weight.begin_stage(self.stage)
        self._freeze()

    def _freeze(self) -> None:
        """Let gradients reach what the present stage trains, and nothing else."""
        stage, trained = self.stage, self.trained_tasks
        for part in (self.actions, *self.transformer.parameters()):
            part.requires_grad_(stage == 0)
        for weight in adapted(self.transformer):
            weight.train_in(stage)
        for number, name in enumerate(self.tasks):
            for module in (self.encoders[number], self.heads[number]):
                module.requires_grad_(name in trained)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        found = super().load_state_dict(state_dict, strict, assign)
        self._freeze()
        return found
