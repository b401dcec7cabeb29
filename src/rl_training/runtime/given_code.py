"""Functions and classes of the user's that settings name, or that are given as they are."""

from __future__ import annotations

from collections.abc import Callable

import torch

from rl_training.algorithms.base import ModelConfig
from rl_training.experiment.config import Config
from rl_training.experiment.references import check_maker, name_of, resolve_maker, unfitting_call
from rl_training.types import SpaceInfo, UserError


def model_factory(config: Config) -> Callable[[SpaceInfo, ModelConfig], torch.nn.Module]:
    """A function that makes a network with the user's function or class, and checks the result."""
    reference, given = config.model.model, config.objects.get("model")
    if isinstance(given, torch.nn.Module):
        raise UserError(f"model={type(given).__name__}(...): is a network; give the class or a function that makes it")
    if given is not None:
        check_maker(given, reference, key="model", makes="a network")
    make = resolve_maker(reference, key="model", makes="a network") if given is None else given

    def made(info: SpaceInfo, config: ModelConfig) -> torch.nn.Module:
        problem = unfitting_call(make, info, config)
        if problem is not None:
            raise UserError(f"model={reference!r}: is called with (SpaceInfo, ModelConfig): {problem}")
        network = make(info, config)
        if not isinstance(network, torch.nn.Module):
            raise UserError(f"model={reference!r}: it made a {type(network).__name__}, not a torch.nn.Module")
        return network

    return made


def nameless(config: Config) -> list[str]:
    """What only those can load who have the objects that it was given, one sentence each."""
    return [
        f"{key}={name_of(value)!r}: is defined in a script or notebook, or inside of a function, so only those can "
        f"load the run who pass it again ({key}=); put it into a module, and its name is enough"
        for key, value in config.objects.items()
    ]
