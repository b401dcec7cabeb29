"""The model of a network as a search asks for it: by torch, or by the engine of small MLPs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_training.algorithms.base import PolicyContext
from rl_training.algorithms.off_policy import Engine
from rl_training.algorithms.parts.networks import two_observations
from rl_training.algorithms.parts.observer import Observer
from rl_training.algorithms.planning import PlanningModelConfig
from rl_training.models.muzero import MuZeroNetwork, muzero_network
from rl_training.models.muzero_search import EngineSearchModel, TorchSearchModel
from rl_training.models.prefix_engine import engine_of, within_reach
from rl_training.ops.sampled_policy import sample_logits, sampled_actions
from rl_training.ops.search import PackedModel, Roots, SearchModel, fastest
from rl_training.ops.two_hot import expected
from rl_training.types import Array, UserError


@dataclass(frozen=True)
class Candidates:
    """How the actions of nodes are sampled: deviations `[A]` in multiples of the policy's, and standard normal noise.

    `root` is `[B, A, D]`, `nodes` `[B, N + 1, interior, D]`.
    """

    spread: Array
    root: Array
    nodes: Array


class Inference(ABC):
    """What a network says of observations, and its model for a search that begins there."""

    @abstractmethod
    def evaluate(self, rows: Array) -> tuple[Array, Array, Array]:
        """Embeddings `[B, D]`, policy parameters `[B, P]` and values `[B]` of scaled observations."""

    @abstractmethod
    def model(self, discount: float, candidates: Candidates | None, roots: int) -> SearchModel | PackedModel:
        """The model for a search of this many roots."""

    def values(self, rows: Array) -> Array:
        """The values `[B]` of scaled observations."""
        return self.evaluate(rows)[2]

    def roots(self, rows: Array, candidates: Candidates | None) -> Roots:
        """Where a search from scaled observations begins."""
        embedding, params, value = self.evaluate(rows)
        if candidates is None:
            return Roots(embedding, params, value)
        actions = sampled_actions(params, candidates.spread, candidates.root)
        return Roots(embedding, sample_logits(candidates.spread, candidates.root), value, actions=actions)


class TorchInference(Inference):
    """Any network on any device."""

    def __init__(self, network: MuZeroNetwork, observer: Observer) -> None:
        self._network, self._observer = network, observer

    def evaluate(self, rows: Array) -> tuple[Array, Array, Array]:
        network = self._network.eval()
        with torch.inference_mode():
            latent = network.represent(self._observer.tensors(rows))
            params, value = network.predict(latent)
            outputs: tuple[Tensor, ...] = (network.embed(network.start(latent)), params)
            embedding, parameters = (tensor.cpu().numpy() for tensor in outputs)
            return embedding, parameters, expected(value, network.value_support).cpu().numpy()

    def model(self, discount: float, candidates: Candidates | None, roots: int) -> SearchModel:
        spread, noise = (None, None) if candidates is None else (candidates.spread, candidates.nodes)
        return TorchSearchModel(self._network, discount, spread=spread, noise=noise)


class EngineInference(Inference):
    """A small MLP on a CPU; what its dynamics remember besides the latent keeps it from the compiled search."""

    def __init__(self, network: MuZeroNetwork, observer: Observer) -> None:
        self._engine, self._observer = engine_of(network, trained=False), observer
        body = self._engine.network
        self._width = max(body.latent_size, body.transition.features, body.prediction.features)

    def evaluate(self, rows: Array) -> tuple[Array, Array, Array]:
        return self._engine.initial(self._observer.matrix(rows))

    def values(self, rows: Array) -> Array:
        return self._engine.values(self._observer.matrix(rows))

    def model(self, discount: float, candidates: Candidates | None, roots: int) -> SearchModel | PackedModel:
        spread, noise = (None, None) if candidates is None else (candidates.spread, candidates.nodes)
        if not self._engine.memory_size and fastest(self._width, roots) == "fused":
            return self._engine.packed(discount, spread)
        return EngineSearchModel(self._engine, discount, spread=spread, noise=noise)


def inference_of(network: MuZeroNetwork, observer: Observer, engine: Engine) -> Inference:
    """How a network is computed for searches."""
    if engine == "mlp":
        return EngineInference(network, observer)
    return TorchInference(network, observer)


def planning_network(
    context: PolicyContext, wrap: Callable[[MuZeroNetwork], MuZeroNetwork] | None
) -> tuple[MuZeroNetwork, Engine]:
    """The network of a policy, the default or a custom one, and the engine that computes it."""
    model, make = context.model, context.model_factory
    assert isinstance(model, PlanningModelConfig)
    if make is None:
        network: MuZeroNetwork = muzero_network(
            context.info,
            latent_size=model.latent_size,
            hidden_sizes=model.hidden_sizes,
            activation=model.activation,
            reward_support=model.reward_support,
            value_support=model.value_support,
            channels=model.channels,
            blocks=model.blocks,
        )
    else:
        custom = make(context.info, model)
        if not isinstance(custom, MuZeroNetwork):
            raise UserError(f"model={model.model!r}: must be a rl_training.models.muzero.MuZeroNetwork")
        network = custom
    network = (network if wrap is None else wrap(network)).to(context.device)
    _check(network, context)
    engine: Engine = "mlp" if make is None and context.engine == "auto" and within_reach(network) else "autograd"
    return network, engine


def _check(network: MuZeroNetwork, context: PolicyContext) -> None:
    """Raise a UserError unless a network's outputs for two observations of zeros fit the actions and supports."""
    info = context.info
    network.eval()
    with torch.inference_mode():
        latent = network.represent(two_observations(context))
        _check_shape("latents", latent, network.latent_shape, context)
        action = torch.zeros((2, info.action_size) if info.continuous else 2, device=context.device)
        after, reward = network.step(network.start(latent), action if info.continuous else action.long())
        _check_shape("latents of the dynamics", after.latent, network.latent_shape, context)
        params, value = network.predict(after.latent)
    _check_shape("policy parameters", params, (network.policy_size,), context)
    _check_shape("value logits", value, (network.value_support.bins,), context)
    _check_shape("reward logits", reward, (network.reward_support.bins,), context)


def _check_shape(name: str, output: Tensor, shape: tuple[int, ...], context: PolicyContext) -> None:
    if tuple(output.shape) != (2, *shape):
        raise UserError(
            f"model={context.model.model!r}: must return {name} [B, {', '.join(map(str, shape))}]; for a batch of 2 it "
            f"returned {tuple(output.shape)}"
        )
