"""A world model that is trained on windows of experience, with the policy and the value that learn from its dreams.

The form of the computation is chosen once, when the algorithm is built: `dreams_engine.DREAMERS` has the class of each.
Every form takes the same batch and random numbers, and leaves the gradient of the same loss in the flat buffer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.parts.observer import Observer
from rl_training.models.encoders import Observations
from rl_training.models.flat import FlatLaProp, FlatWeights, Follower, Learner
from rl_training.models.normalizers import ReturnScale
from rl_training.models.rssm import WorldState
from rl_training.models.rssm_heads import NumberHead, pathwise_columns, sample_action
from rl_training.models.world_model import DreamerNetwork
from rl_training.ops.latents import index_of, one_hot
from rl_training.types import Array, Metrics, UserError


@dataclass(frozen=True)
class SequenceBatch:
    """Windows `[T, B]` of rows, with the state and the action before them.

    A row is an observation and what arrived with it. Where `first` is set an episode begins: what is before that row,
    in the window or ahead of it, is none of its own. `last` rows end an episode, `terminal` ones for good.
    """

    obs: Array  # `[T, B, ...]`, scaled
    previous_action: Array  # `[T, B, ...]`: taken before the observation, as it is stored
    reward: Array  # `[T, B]`
    first: Array  # `[T, B]`
    last: Array  # `[T, B]`
    terminal: Array  # `[T, B]`
    deter: Array  # `[B, deter]`: the state before the first row
    stoch: Array  # `[B, stoch]`: uint8 indices of its latent; `classes` stands for none


@dataclass(frozen=True)
class Draws:
    """The random numbers of an update."""

    posterior: Array  # `[T, B, stoch]`, uniform in [0, 1)
    starts: Array  # `[N]`: where dreams start, as indices t * B + b of rows
    prior: Array  # `[H, N, stoch]`, uniform in [0, 1)
    action: Array  # `[H, N, noise_size]`: `action_noise`


@dataclass(frozen=True)
class Outcome:
    """What an update found: its metrics, and the states `[T, B]` of the rows, to be remembered with them."""

    metrics: Metrics
    deter: Array  # `[T, B, deter]`
    stoch: Array  # `[T, B, stoch]`, uint8


class Sequences(NamedTuple):
    """A batch as tensors; `mask` `[T, B, action_size]` says which choices were allowed, where that is known."""

    obs: Observations
    previous_action: Tensor
    reward: Tensor
    first: Tensor
    last: Tensor
    terminal: Tensor
    before: WorldState
    mask: Tensor | None


class Noise(NamedTuple):
    """Random numbers as tensors: see `Draws`."""

    posterior: Tensor
    starts: Tensor
    prior: Tensor
    action: Tensor


class Dream(NamedTuple):
    """Features `[H + 1, N, F]` of imagined states, the actions `[H, N, ...]` between them, and what was allowed."""

    features: Tensor
    action: Tensor
    mask: Tensor | None  # `[H, N, action_size]`


def dream(network: DreamerNetwork, start: WorldState, noise: Noise) -> Dream:
    """Follow the policy in the model from states `[N, ...]` on.

    A gradient, if one is recorded, reaches the policy through the actions alone: it does not see a state's gradient.
    """
    world, state = network.world, start.detached()
    features, actions, masks = [state.features], [], []
    for uniform, chance in zip(noise.prior, noise.action, strict=True):
        seen = features[-1].detach()
        mask = None if world.legal is None else world.legal.mask(world.legal(seen))
        params = network.policy(seen, mask)
        actions.append(sample_action(world.info, params, chance))
        state, _ = world.rssm.imagine(state, pathwise_columns(world.info, params, chance), uniform)
        features.append(state.features)
        masks += [] if mask is None else [mask]
    return Dream(torch.stack(features), torch.stack(actions), torch.stack(masks) if masks else None)


@contextmanager
def frozen(*modules: nn.Module) -> Iterator[None]:
    """What is computed meanwhile has no gradient with respect to the parameters of these modules."""
    held = [p for module in modules for p in module.parameters() if p.requires_grad]
    for parameter in held:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in held:
            parameter.requires_grad_(True)


# The loss of an update, the means of its parts and other figures by name, and the states of the rows.
Loss = Callable[
    [DreamerNetwork, NumberHead, ReturnScale, Sequences, Noise, Any], tuple[Tensor, dict[str, Tensor], WorldState]
]


class TrainedDreamer(ABC):
    """The networks of a policy, their optimiser, the slow value, and the scale of returns."""

    def __init__(self, network: DreamerNetwork, weights: FlatWeights, observer: Observer, cfg: Any, loss: Loss) -> None:
        self.network, self.observer, self.loss = network, observer, loss
        self.learner = Learner(
            network, weights, make=lambda flat, own: FlatLaProp(flat, own.sizes, warmup=cfg.warmup_updates)
        )
        self.slow = Follower(self.learner, network.value)
        self.scale = ReturnScale()

    @abstractmethod
    def differentiate(self, batch: SequenceBatch, draws: Draws, cfg: Any) -> Outcome:
        """Write the gradient of the loss to the flat buffer, and move the scale of returns."""

    def descend(self, cfg: Any) -> float:
        """Take a step of the optimiser, and let the slow value follow; returns the norm of the gradient."""
        norm = float(self.learner.parameters.grad.norm())
        if not np.isfinite(norm):
            raise UserError(
                f"training diverged (the gradient of {self._not_finite()} is not finite); lower learning_rate"
            )
        optimizer = self.learner.optimizer
        assert isinstance(optimizer, FlatLaProp)
        optimizer.clip = cfg.max_grad_ratio
        self.learner.descend(cfg.learning_rate)
        self.slow.follow(cfg.tau)
        return norm

    def _not_finite(self) -> str:
        """The first tensor whose gradient is not finite."""
        names = [name for name, _ in self.network.named_parameters()]
        views = self.learner.weights.views_of(self.learner.parameters.grad)
        bad = [name for name, (_, grad) in zip(names, views, strict=True) if not bool(grad.isfinite().all())]
        return bad[0] if bad else "all tensors together"


class AutogradDreamer(TrainedDreamer):
    """Any network, by autograd."""

    def differentiate(self, batch: SequenceBatch, draws: Draws, cfg: Any) -> Outcome:
        slow = self.slow.module
        assert isinstance(slow, NumberHead)
        self.network.train()
        loss, found, state = self.loss(self.network, slow, self.scale, self.sequences(batch), self.noise(draws), cfg)
        self.learner.differentiate(loss)
        numbers = torch.stack([value.detach() for value in found.values()]).cpu().tolist()
        metrics = dict(zip(found, numbers, strict=True))
        return Outcome(metrics, state.deter.detach().cpu().numpy(), index_of(state.stoch).cpu().numpy())

    def sequences(self, batch: SequenceBatch) -> Sequences:
        """A batch as tensors on the network's device."""
        tensor, shape = self.observer.tensor, batch.reward.shape
        rows = batch.obs.reshape(-1, *batch.obs.shape[2:])
        mask = self.observer.mask(rows)
        obs = self.observer.tensors(rows)
        timed = {name: column.reshape(*shape, *column.shape[1:]) for name, column in _named(obs).items()}
        return Sequences(
            timed if isinstance(obs, dict) else timed[""],
            tensor(batch.previous_action),
            tensor(batch.reward),
            tensor(batch.first),
            tensor(batch.last),
            tensor(batch.terminal),
            WorldState(tensor(batch.deter), one_hot(tensor(batch.stoch), self.network.world.rssm.size.classes)),
            None if mask is None else tensor(mask).reshape(*shape, -1),
        )

    def noise(self, draws: Draws) -> Noise:
        """Random numbers as tensors on the network's device."""
        tensor = self.observer.tensor
        return Noise(tensor(draws.posterior), tensor(draws.starts), tensor(draws.prior), tensor(draws.action))


def _named(obs: Observations) -> Mapping[str, Tensor]:
    return obs if isinstance(obs, Mapping) else {"": obs}
