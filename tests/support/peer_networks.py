"""The networks of a peer in our names and shapes. All MLPs here have the same hidden layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from conformance import CONTINUOUS
from peers import Group, Tensors, Translation

SIZES = (8, 6)
(OBSERVATIONS,) = CONTINUOUS.obs_shape
_KINDS = ("weight", "bias")


# Names of layers: ours to the peer's. Both sides number activations too.


def hidden_layers(ours: str, peer: str) -> dict[str, str]:
    return {f"{ours}.{2 * number}": f"{peer}.{2 * number}" for number in range(len(SIZES))}


def mlp(layers: str, head: str, prefix: str = "") -> dict[str, str]:
    """A torso and a head, under these names in the peer."""
    return hidden_layers(f"{prefix}torso", layers) | {f"{prefix}head": head}


# Translations


def renamed(names: Mapping[str, str]) -> Translation:
    """Weights and biases of layers under other names."""

    def translate(tensors: Tensors) -> Tensors:
        found = {}
        for own, other in names.items():
            for name, tensor in tensors.items():
                if f"{name}.".startswith(f"{other}."):
                    found[own + name.removeprefix(other)] = tensor
        return found

    return translate


def two_headed(layers: str, mean: str, log_std: str) -> Translation:
    """A policy whose head returns means and log deviations: one layer of ours, two of the peer."""
    torso = renamed(hidden_layers("torso", layers))

    def translate(tensors: Tensors) -> Tensors:
        head = {kind: torch.cat([tensors[f"{mean}.{kind}"], tensors[f"{log_std}.{kind}"]]) for kind in _KINDS}
        return torso(tensors) | {f"head.{kind}": tensor for kind, tensor in head.items()}

    return translate


def stacked(critics: Sequence[Mapping[str, str]]) -> Translation:
    """Critics that the peer has one by one: the names of each one's layers.

    The inputs of ours are actions, then observations; those of the peers are the other way round.
    """
    members = [list(critic.values()) for critic in critics]

    def translate(tensors: Tensors) -> Tensors:
        found: Tensors = {}
        for number, layer in enumerate(zip(*members, strict=True)):
            weight, bias = (torch.stack([tensors[f"{name}.{kind}"] for name in layer]) for kind in _KINDS)
            if number == 0:
                weight = torch.cat([weight[..., OBSERVATIONS:], weight[..., :OBSERVATIONS]], dim=-1)
            found |= {f"members.weights.{number}": weight, f"members.biases.{number}": bias}
        return found

    return translate


# Groups of weights


def named(module: torch.nn.Module) -> Callable[[], Tensors]:
    return lambda: dict(module.named_parameters())


def with_target(
    name: str,
    trained: torch.nn.Module,
    target: torch.nn.Module,
    translate: Translation,
    optimizer: torch.optim.Optimizer,
) -> dict[str, Group]:
    """A trained network of the peer and its target network."""
    return {name: Group(named(trained), translate, optimizer), f"slow {name}": Group(named(target), translate)}


def logarithm(parameter: Tensor, optimizer: torch.optim.Optimizer) -> Group:
    """A number that is learned by its logarithm."""
    return Group(lambda: {"log": parameter}, lambda tensors: {"log": tensors["log"].reshape(-1)}, optimizer)
