"""Gumbel MuZero (Danihelka et al. 2022): a search that improves the policy with any number of simulations."""

from __future__ import annotations

from typing import Any, Literal

from rl_training.algorithms.base import AlgorithmSpec, Context, PolicyContext
from rl_training.algorithms.muzero import MuZero, PuctSearchConfig
from rl_training.algorithms.parts.planning_policy import PlanningPolicy
from rl_training.algorithms.parts.searching import GumbelPlay, Play, PuctPlay
from rl_training.algorithms.planning import (
    PlanningConfig,
    PlanningLoopConfig,
    PlanningModelConfig,
    SampledActionsConfig,
)
from rl_training.algorithms.settings import setting
from rl_training.types import Capabilities

Search = Literal["puct", "gumbel"]

# Where the search can be chosen, these settings act if it is this one.
_GUMBEL = {"search": "gumbel"}


class GumbelSearchConfig(PlanningConfig):
    """The settings of a Gumbel search, for all algorithms that can use it."""

    max_num_considered_actions: int = setting(
        16,
        "Actions of the root that sequential halving starts with; the most likely ones after noise.",
        ge=1,
        live_when=_GUMBEL,
        probe=2,
    )
    temperature_mode: Literal["filter", "gumbel_scale"] = setting(
        "filter",
        "`filter`: the temperature chooses among actions that are no worse than a draw from the policy; "
        "`gumbel_scale`: it scales the noise of the whole search.",
        live_when=_GUMBEL | {"temperature": 3.0},
        probe="gumbel_scale",
    )
    c_visit: float = setting(
        50.0, "sigma(q) = (c_visit + most visits) c_scale q.", ge=0.0, live_when=_GUMBEL, probe=0.0
    )
    c_scale: float = setting(0.1, "Weight of values against logits.", ge=0.0, live_when=_GUMBEL, probe=2.0)
    rescale_values: bool = setting(
        True, "Scale the values of a node's actions to [0, 1] before they are weighed.", live_when=_GUMBEL
    )


def search_setting(default: Search) -> Any:
    """The setting for the search, where it can be chosen."""
    return setting(
        default,
        "`puct`: the search, its noise and the policy targets of MuZero; `gumbel`: those of Gumbel MuZero. "
        "`temperature` means what it means there.",
        probe="puct" if default == "gumbel" else "gumbel",
    )


class EitherSearchConfig(PuctSearchConfig, GumbelSearchConfig):
    """The settings of both searches, and which of the two is used."""

    search: Search = search_setting("puct")


def play_of(cfg: EitherSearchConfig) -> Play:
    """The search that is chosen."""
    return GumbelPlay(cfg.temperature_mode) if cfg.search == "gumbel" else PuctPlay()


class GumbelMuZeroConfig(GumbelSearchConfig, SampledActionsConfig):
    """MuZero's loss; the target policy is softmax(logits + sigma(completed q)) of a search by sequential halving"""

    num_simulations: int = setting(16, "Simulations of every search.", ge=1, probe=3)
    temperature: float = setting(
        1.0, "How far the root's action follows the noise; 1 is the paper's action, 0 is greedy.", ge=0.0, report=True
    )


def gumbel_policy(context: PolicyContext) -> PlanningPolicy:
    """Build only the policy."""
    cfg = context.config
    assert isinstance(cfg, GumbelMuZeroConfig)
    return PlanningPolicy(context, GumbelPlay(cfg.temperature_mode))


def build_gumbel_muzero(context: Context) -> MuZero:
    """MuZero with another search."""
    return MuZero(context, gumbel_policy(context))


SPEC = AlgorithmSpec(
    name="gumbel_muzero",
    family="planning",
    summary="MuZero whose search improves the policy with few simulations",
    config=GumbelMuZeroConfig,
    loop=PlanningLoopConfig,
    model=PlanningModelConfig,
    policy=gumbel_policy,
    build=build_gumbel_muzero,
    capabilities=Capabilities(
        observations=("vector", "image", "dict"), actions=("discrete", "continuous"), two_player=True
    ),
)
