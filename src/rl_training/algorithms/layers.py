"""What can be said of hidden layers: their widths, for all networks or for each of them, and their activation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Discriminator, PositiveInt, Tag

Widths = tuple[PositiveInt, ...]
# The names of networks that can have widths of their own, and the other names of each.
NetworkNames = Mapping[str, tuple[str, ...]]

# Layers that policy and value may share, before those of their own.
ENCODER = "encoder"
ACTOR_CRITIC: NetworkNames = {"policy": ("pi", "actor"), "value": ("vf", "critic"), ENCODER: ("shared",)}
ACTOR_CRITICS: NetworkNames = {"policy": ("pi", "actor"), "critic": ("qf", "value", "vf"), ENCODER: ("shared",)}
ACTOR_CRITICS_VALUE: NetworkNames = {
    "policy": ("pi", "actor"),
    "critic": ("qf",),
    "value": ("vf",),
    ENCODER: ("shared",),
}


def _form(value: Any) -> str:
    return "by network" if isinstance(value, Mapping) else "for all"


LayerSizes = Annotated[
    Annotated[Widths, Tag("for all")] | Annotated[dict[str, Widths], Tag("by network")], Discriminator(_form)
]


def renamed(names: NetworkNames, given: Mapping[Any, Any]) -> dict[str, Any]:
    """Widths under the proper names of their networks; a second name of a network that is there stays as it is."""
    proper = {spelling: name for name, others in names.items() for spelling in (name, *others)}
    found = {str(name): widths for name, widths in given.items() if str(name) not in proper or str(name) in names}
    for spelling in (str(name) for name in given if str(name) not in found):
        found[spelling if proper[spelling] in found else proper[spelling]] = given[spelling]
    return found


def completed(names: NetworkNames, given: Mapping[str, Any], below: Any) -> dict[str, Any]:
    """Widths of all networks: those given, and for the rest those of `below`, a list for all or a mapping."""
    others = below if isinstance(below, Mapping) else dict.fromkeys((name for name in names if name != ENCODER), below)
    return {**others, **given}


def checked(names: NetworkNames, value: Any, default: Sequence[int]) -> Any:
    """The value of `hidden_sizes` with widths for all networks; raises a ValueError about names that are wrong."""
    if not isinstance(value, Mapping):
        return value
    if not names:
        raise ValueError("must be a list: there is one network, and no other that could have widths of its own")
    found = renamed(names, value)
    for name in found.keys() - names.keys():
        if any(name in others for others in names.values()):
            twice = next(proper for proper, others in names.items() if name in others)
            raise ValueError(f"{twice} and {name} are two names of one network; give one of them")
        listed = [f"{proper} (or {', '.join(others)})" if others else proper for proper, others in names.items()]
        raise ValueError(f"there is no network {name!r}; there are {', '.join(listed)}")
    return completed(names, found, default)


ActivationName = Literal[
    "tanh",
    "relu",
    "silu",
    "elu",
    "gelu",
    "leaky_relu",
    "mish",
    "selu",
    "celu",
    "softplus",
    "softsign",
    "sigmoid",
    "hardswish",
    "hardtanh",
    "hardsigmoid",
    "relu6",
    "log_sigmoid",
    "tanhshrink",
    "softshrink",
    "hardshrink",
]
_ALSO = {"swish": "silu", "hard_swish": "hardswish"}


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


# By their names in lower case and without underscores.
ACTIVATION_NAMES = {_plain(name): name for name in cast("tuple[str, ...]", ActivationName.__args__)}  # type: ignore[attr-defined]


def proper_activation(value: Any) -> Any:
    """An activation by its own name, from torch's: `nn.LeakyReLU`, or the class."""
    name = value.__name__ if isinstance(value, type) else value
    if not isinstance(name, str):
        return value
    last = name.rpartition(".")[2]
    return ACTIVATION_NAMES.get(_plain(_ALSO.get(last.lower(), last)), name)


Activation = Annotated[ActivationName, BeforeValidator(proper_activation)]

# Those of the fast path, `models/mlp_engine.py`.
FAST = ("tanh", "relu", "silu")
ACTIVATION_HELP = (
    f"Activation of hidden layers. MLPs with {', '.join(FAST)} have a fast path on a CPU; others are computed by "
    "autograd."
)


def widths_help(names: NetworkNames) -> str:
    """The help of `hidden_sizes` for these networks."""
    return f"Widths of the hidden layers: a list, or a mapping with one for each of {', '.join(names)}."
