"""One update of ours beside one of another library: from the same weights, the same batch and the same noise.

Both sides compute in double precision, so that what is left of a difference is a difference of the algorithms. Weights
are copied from the peer to ours, and its gradients and weights are translated to our names and shapes
(`peer_networks`). `peer_data` has what both sides are given, `peer_updates` the loop in which they learn from it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

import rl_training.api  # noqa: F401  all of it, before single precision becomes double in what is loaded

Tensors = dict[str, Tensor]
Translation = Callable[[Tensors], Tensors]
# Whether the test changes one side by a deviation, given its name.
Applied = Callable[[str], bool]

# The packages whose single precision becomes double.
_LIBRARIES = ("rl_training", "stable_baselines3", "sb3_contrib")


class _DoubleNumpy:
    """NumPy, but its single precision is double."""

    def __getattr__(self, name: str) -> Any:
        return np.float64 if name == "float32" else getattr(np, name)


@contextmanager
def double_precision() -> Iterator[None]:
    """Everything that both sides make or cast is float64. Compiled kernels run as the Python that they are made from.

    New numbers are float64 by torch's default. Casts of observations (`x.float()`) and of arrays (`np.float32`) are
    replaced. Kernels would have to be compiled once more for float64.
    """
    double, libraries = _DoubleNumpy(), _loaded()
    with ExitStack() as stack:
        for name in libraries:
            module = sys.modules[name]
            kernels = {key: value.py_func for key, value in vars(module).items() if hasattr(value, "py_func")}
            numpy = {"np": double} if vars(module).get("np") is np and ".kernels" not in name else {}
            if kernels or numpy:
                stack.enter_context(mock.patch.multiple(module, **kernels, **numpy))
        stack.enter_context(mock.patch.object(torch.Tensor, "float", torch.Tensor.double))
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)
        yield
    # A module that was loaded meanwhile would keep what was replaced.
    assert _loaded() == libraries, f"loaded too late: {_loaded() - libraries}"


def _loaded() -> set[str]:
    return {name for name in sys.modules if name.split(".")[0] in _LIBRARIES}


def doubled(array: np.ndarray) -> np.ndarray:
    """An array of real numbers in double precision; others as they are."""
    return array.astype(np.float64) if np.issubdtype(array.dtype, np.floating) else array


# Two sides


@dataclass(frozen=True)
class Group:
    """Weights of the peer that ours has too: a function that returns them, and their names and shapes in ours.

    `optimizer` is the peer's, if they are trained.
    """

    tensors: Callable[[], Tensors]
    translate: Translation
    optimizer: torch.optim.Optimizer | None = None


@dataclass(frozen=True)
class Difference:
    """The largest absolute differences of gradients and of weights; the largest gradient, and how far weights moved."""

    gradient: float
    weight: float
    steepest: float
    movement: float


@dataclass
class Twins:
    """Modules of ours by name, and the weights of the peer that correspond to them. Ours begin as the peer's."""

    ours: Mapping[str, torch.nn.Module]
    peer: Mapping[str, Group]
    start: dict[str, Tensors] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, group in self.peer.items():
            own = dict(self.ours[name].named_parameters())
            given = group.translate(group.tensors())
            assert own.keys() == given.keys(), f"{name}: {sorted(own)} and {sorted(given)}"
            assert _size(own) == _size(group.tensors()), f"{name}: the peer has weights that ours does not have"
            with torch.no_grad():
                for key, parameter in own.items():
                    parameter.copy_(given[key])
            self.start[name] = {key: parameter.detach().clone() for key, parameter in own.items()}

    def apart(self, name: str) -> float:
        """How far the weights of one module are from the peer's."""
        return _distance(self._now(name), self.peer[name].translate(self.peer[name].tensors()))

    def moved(self, name: str) -> float:
        """How far they are from where they began."""
        return _distance(self._now(name), self.start[name])

    def _now(self, name: str) -> Tensors:
        return {key: parameter.detach() for key, parameter in self.ours[name].named_parameters()}


@dataclass
class Sides(Twins):
    """Our learner and its peer in double precision.

    The gradients of every optimiser step are recorded, and what `note_ours` and `note_peer` are given.
    """

    steps: dict[str, tuple[list[Tensors], list[Tensors]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, group in self.peer.items():
            assert all(tensor.dtype == torch.float64 for tensor in self.start[name].values())
            if group.optimizer is not None:
                group.optimizer.register_step_pre_hook(lambda *_, name=name: self._note_peer_gradient(name))

    def _note_peer_gradient(self, name: str) -> None:
        group = self.peer[name]
        self.note_peer(name, group.translate({key: _gradient(tensor) for key, tensor in group.tensors().items()}))

    def note_peer(self, name: str, gradient: Tensors) -> None:
        self.steps.setdefault(name, ([], []))[1].append(gradient)

    def note_ours(self, name: str, gradient: Tensors | None = None) -> None:
        """Record a gradient of ours: by default, what is in the parameters now."""
        if gradient is None:
            gradient = {key: _gradient(tensor) for key, tensor in self.ours[name].named_parameters()}
        self.steps.setdefault(name, ([], []))[0].append(gradient)

    def watch(self, name: str, optimizer: Any) -> None:
        """Record the gradient before every step of an optimiser of ours."""
        step = optimizer.step

        def noted(learning_rate: float) -> None:
            self.note_ours(name)
            step(learning_rate)

        optimizer.step = noted

    def difference(self) -> Difference:
        """Compare what was recorded, and the weights as they are now."""
        gradient = weight = steepest = movement = 0.0
        for name, (ours, peer) in self.steps.items():
            assert len(ours) == len(peer), f"{name}: {len(ours)} steps of ours, {len(peer)} of the peer"
            gradient = max([gradient, *(_distance(own, other) for own, other in zip(ours, peer, strict=True))])
            steepest = max([steepest, *(float(slope.abs().max()) for own in ours for slope in own.values())])
        for name, group in self.peer.items():
            assert group.optimizer is None or name in self.steps, f"{name}: was not trained"
            weight, movement = max(weight, self.apart(name)), max(movement, self.moved(name))
        return Difference(gradient, weight, steepest, movement)


def _size(tensors: Tensors) -> int:
    return sum(tensor.numel() for tensor in tensors.values())


def _gradient(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad.clone()


def _distance(one: Tensors, other: Tensors) -> float:
    assert one.keys() == other.keys()
    assert all(one[key].dtype == other[key].dtype for key in one)
    apart = torch.stack([(one[key] - other[key].detach()).abs().max() for key in one])
    assert apart.isfinite().all()
    return float(apart.max())


# How one side is changed


def always(name: str) -> bool:
    """Every deviation is applied."""
    return True


# Why a factor of a loss may stay.
ADAM = "Adam steps the same way, up to its epsilon."


def scale_gradients(parameters: Iterable[Tensor], factor: float) -> None:
    """Multiply the gradients of weights of the peer by a factor."""
    for tensor in parameters:
        tensor.register_hook(lambda gradient: factor * gradient)


def when(condition: bool, context: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    return context if condition else nullcontext()


# Pairs


@dataclass(frozen=True)
class Pair:
    """An algorithm in ours and in another library.

    `settings` are the settings that mean the same on both sides but have other names or values. `deviations` say what
    stays different, by a short name; `run` applies those that it is told to one side, and compares.
    """

    algorithm: str
    peer: str
    compared: str
    run: Callable[[Applied], Difference]
    settings: str = ""
    deviations: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.algorithm}, {self.peer}"

    def difference(self, *, without: str | None = None) -> Difference:
        """Compare, with all deviations applied, or without one of them."""

        def applied(name: str) -> bool:
            assert name in self.deviations
            return name != without

        torch.manual_seed(0)
        torch.optim.Adam([torch.zeros(1)])  # loads what optimisers need, before anything is replaced
        with double_precision():
            return self.run(applied)
