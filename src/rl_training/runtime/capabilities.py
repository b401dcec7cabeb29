"""What an algorithm can do with given spaces and settings: whether it works, and whether by its fast path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rl_training.algorithms.base import Algorithm, ModelConfig
from rl_training.algorithms.layers import ENCODER, FAST
from rl_training.experiment.config import Config
from rl_training.experiment.registry import REGISTRY, capable
from rl_training.types import SpaceInfo, UserError


def refuse_for_tasks(config: Config, what: str) -> None:
    """Raise a UserError about something that means one environment, if a run has several tasks."""
    if config.run.tasks is not None:
        raise UserError(f"{what}: means one environment, and this run has the tasks {', '.join(config.tasks)}")


def check_capabilities(config: Config, info: SpaceInfo, *, of_several: bool = False) -> None:
    """Raise a UserError, which names algorithms that can, if this one cannot work with these spaces.

    `of_several`: they are those of one of several tasks.
    """
    able = config.spec.capabilities
    if info.two_player and not able.two_player:
        others = capable(info.obs_kind, info.action_kind, two_player=True)
        raise UserError(
            f"algo={config.run.algo!r}: cannot learn {config.run.env_id}, a game for two players, by self-play"
            f"{_advice(others)}"
        )
    for what, kind, allowed in (
        ("observations", info.obs_kind, able.observations),
        ("actions", info.action_kind, able.actions),
    ):
        if kind not in allowed:
            # Suggest offline algorithms for offline runs only, and no imitation, which needs demonstrations.
            others = [
                name
                for name in capable(info.obs_kind, info.action_kind, two_player=info.two_player)
                if name != config.spec.name
                and REGISTRY[name].capabilities.offline == able.offline
                and REGISTRY[name].family != "imitation"
                and (REGISTRY[name].capabilities.multi_task or not of_several)
            ]
            raise UserError(
                f"algo={config.run.algo!r}: cannot work with the {kind} {what} of {config.run.env_id}, only with "
                f"{_any_of(allowed)} ones{_advice(others)}"
            )


def _advice(others: Sequence[str]) -> str:
    return f"; {_any_of(others)} can" if others else ""


def _any_of(names: Sequence[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def notes_on_speed(config: Config, info: SpaceInfo, algorithm: Algorithm) -> Iterator[str]:
    """What keeps an algorithm from the fast path that it would have otherwise, if that is a setting of its layers."""
    model = config.model
    if algorithm.engine != "autograd" or config.run.engine != "auto" or config.run.device not in ("auto", "cpu"):
        return
    if info.obs_kind != "vector" or model.model != "auto" or not isinstance(model, ModelConfig):
        return
    slower = "is computed by autograd, which is slower for small networks on a CPU"
    if model.activation not in FAST:
        yield f"activation={model.activation}: {slower}; {', '.join(FAST)} have a fast path"
    if model.sizes_of(ENCODER):
        yield f"hidden_sizes.encoder={list(model.sizes_of(ENCODER))}: {slower}; without it there is a fast path"
