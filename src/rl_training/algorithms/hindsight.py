"""The settings of hindsight experience replay, for algorithms that learn from single transitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, get_args

from pydantic import BeforeValidator

from rl_training.algorithms.off_policy import OffPolicyLoopConfig
from rl_training.algorithms.settings import ConfigPart, setting
from rl_training.data.goal_replay import Strategy


class Hindsight(ConfigPart):
    """Which goals take the place of others."""

    strategy: Strategy = setting("future", "A goal achieved later in the episode, at its end, or anywhere in it.")
    n_sampled_goal: int = setting(4, "How many transitions get such a goal for each one that keeps its own.", ge=1)


def _from_short_form(value: Any) -> Any:
    """The mapping that `true` or the name of a strategy stands for."""
    if isinstance(value, bool):
        return {} if value else None
    if isinstance(value, str):
        return {"strategy": value}
    if value is not None and not isinstance(value, (Mapping, Hindsight)):
        raise ValueError(f"{value!r} is neither true nor one of {', '.join(get_args(Strategy))} nor a mapping of both")
    return value


class HindsightLoopConfig(OffPolicyLoopConfig):
    """The off-policy loop, with goals that can be replaced by what was achieved."""

    her: Annotated[
        Hindsight | None, BeforeValidator(_from_short_form, json_schema_input_type=bool | Strategy | Hindsight | None)
    ] = setting(
        None,
        "Hindsight experience replay in goal environments: true, a strategy (future, final or episode), or "
        "`{strategy, n_sampled_goal}`.",
        live_when={"env_id": "rl_training.testing:TinyGoalEnv"},
        probe="future",
    )

    absent: ClassVar[Mapping[str, str]] = {}
