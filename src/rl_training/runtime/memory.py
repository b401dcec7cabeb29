"""How much RAM a run needs at least, said before anything of it is made.

Every part of a config says what its `sizes` need. The sum is a lower bound: a run that is refused could not have been
trained. What a replay buffer takes with a policy's records is checked again, exactly, when it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch

from rl_training.algorithms.settings import ConfigPart
from rl_training.data import ram
from rl_training.experiment.config import Config
from rl_training.runtime.envs.make import EnvFactory, EnvMaker
from rl_training.runtime.rng import untouched
from rl_training.types import SpaceInfo, UserError

Settings = TypeVar("Settings", bound=ConfigPart)

# From this many environments, or frames of observations, on, one more environment is made first, to see the spaces.
_MANY = 1_000
# The bytes of a weight, and with its gradient and what an optimiser remembers of it.
_WEIGHT, _LEARNED_WEIGHT = 4, 12
# Two observations of every environment are kept: that which was acted on, and its successor.
_KEPT = 2


def check_memory(
    config: Config, info: SpaceInfo, maker: EnvMaker | None = None, num_envs: int = 0, *, learns: bool = False
) -> None:
    """Raise a UserError if a run, or a policy that does not learn, needs more RAM than is available.

    It names the setting that needs most, and the largest value of it that fits.
    """
    weight, kept = _weight_bytes(config, learns=learns), _Kept(config, info, maker, learns)

    def needed(sizes: Mapping[str, Any]) -> int:
        return kept.bytes(sizes) + kept.update_bytes(sizes) + weight * kept.weights(sizes)

    _check(needed, {"num_envs": num_envs, **_sizes_of(config.loop, config.model, config.algorithm)})


def check_memory_of_tasks(tasks: Sequence[tuple[Config, SpaceInfo, EnvMaker]], *, learns: bool) -> None:
    """`check_memory` for several tasks together, of which each fits by itself. Weights and updates may be shared."""
    if len(tasks) == 1 or not learns:
        return
    first = tasks[0][0]
    weight, kept = _weight_bytes(first, learns=learns), [_Kept(*task, learns) for task in tasks]

    def needed(sizes: Mapping[str, Any]) -> int:
        each = [(one, {"num_envs": one.config.run.num_envs, **sizes}) for one in kept]
        weights = max(one.weights(its) for one, its in each)
        updates = max(one.update_bytes(its) for one, its in each)
        return weight * weights + updates + sum(one.bytes(its) for one, its in each)

    sizes = _sizes_of(first.loop, first.model, first.algorithm)
    _check(needed, {name: value for name, value in sizes.items() if name != "frame_stack"})  # tasks may have their own


def _weight_bytes(config: Config, *, learns: bool) -> int:
    on_cpu = config.run.device == "cpu" or not torch.cuda.is_available()
    return _LEARNED_WEIGHT if learns and on_cpu else _WEIGHT


class _Kept(NamedTuple):
    """What a run needs."""

    config: Config
    info: SpaceInfo
    maker: EnvMaker | None
    learns: bool

    def seen(self, sizes: Mapping[str, Any]) -> SpaceInfo:
        """The spaces with these sizes."""
        stack = self.config.loop.frame_stack
        return _restacked(self.info, stack, _with(self.config.loop, sizes).frame_stack)

    def weights(self, sizes: Mapping[str, Any]) -> int:
        """How many weights there are."""
        model = _with(self.config.model, sizes)
        return model.least_weights(self.seen(sizes)) + _with(self.config.algorithm, sizes).more_weights(model)

    def bytes(self, sizes: Mapping[str, Any]) -> int:
        """Those of environments and memory."""
        seen, envs = self.seen(sizes), int(sizes["num_envs"])
        each = _KEPT * seen.obs_bytes + _with(self.config.model, sizes).carry_bytes(seen)
        acting = envs * each + (0 if self.maker is None else self.maker.least_bytes(envs))
        return acting + (_with(self.config.loop, sizes).least_bytes(seen, envs) if self.learns else 0)

    def update_bytes(self, sizes: Mapping[str, Any]) -> int:
        """Those of an update."""
        config = self.config
        loop, model, algorithm = _with(config.loop, sizes), _with(config.model, sizes), _with(config.algorithm, sizes)
        return algorithm.least_bytes(self.seen(sizes), model, loop, int(sizes["num_envs"])) if self.learns else 0


def check_before_environments(
    config: Config, factory: EnvFactory | None, maker: EnvMaker, num_envs: int, *, learns: bool
) -> None:
    """`check_memory` before the environments are made, if there will be many: with the spaces of a single one."""
    stack = config.loop.frame_stack
    if num_envs * stack <= _MANY:
        return
    single = EnvMaker(
        config.run.model_copy(update={"vectorization": "sync"}),
        config.loop.model_copy(update={"frame_stack": 1}),
        factory,
    )
    with untouched():
        envs = single.masking(single.vector(1))
        info = single.describe(envs)
        envs.close()
    stacked = info if stack == 1 else replace(info, obs_shape=(stack, *info.obs_shape))
    check_memory(config, stacked, maker, num_envs, learns=learns)


def _restacked(info: SpaceInfo, stack: int, other: int) -> SpaceInfo:
    """The spaces with another number of stacked observations."""
    if stack == other or info.obs_shape[:1] != (stack,):
        return info
    return replace(info, obs_shape=(other, *info.obs_shape[1:]))


def _sizes_of(*parts: ConfigPart) -> dict[str, Any]:
    """The settings that decide how much RAM is needed, as far as they are given."""
    named = {name: getattr(part, name) for part in parts for name in part.sizes}
    return {name: value for name, value in named.items() if value is not None}


def _with(part: Settings, sizes: Mapping[str, Any]) -> Settings:
    """The settings with other sizes."""
    return part.model_copy(update={name: sizes[name] for name in part.sizes if name in sizes})


def _check(needed: Callable[[Mapping[str, Any]], int], sizes: Mapping[str, Any]) -> None:
    """Raise a UserError if these sizes need more RAM than is available."""
    total, available = needed(sizes), ram.available_memory()
    if available is None or total <= available:
        return
    # The largest part is that of the setting without which the least would be needed. Where several are multiplied, the
    # largest of them is it.
    without = {name: needed({**sizes, name: _at_most(value, 1)}) for name, value in sizes.items()}
    about = min(without.values()) + total // 100
    name = max((name for name in sizes if without[name] <= about), key=lambda name: _widest(sizes[name]))
    fits = _largest(sizes[name], lambda value: needed({**sizes, name: value}) <= available)
    rest = f" beside {ram.readable(without[name])} for the rest" if without[name] > available // 10 else ""
    advice = f"; at most {_shown(fits)} fit" if needed({**sizes, name: fits}) <= available else ""
    raise UserError(
        f"{name}={_shown(sizes[name])}: needs at least {ram.readable(total - without[name])} of RAM{rest}, and "
        f"{ram.readable(available)} are available{advice}"
    )


def _at_most(value: Any, most: int) -> Any:
    """A size, or the sizes of several layers, of at most this."""
    if isinstance(value, Mapping):
        return {name: _at_most(widths, most) for name, widths in value.items()}
    return tuple(min(width, most) for width in value) if isinstance(value, tuple) else min(value, most)


def _largest(value: Any, fits: Callable[[Any], bool]) -> Any:
    """The largest size below a value that fits, or 1."""
    low, high = 1, _widest(value)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(_at_most(value, middle)) else (low, middle)
    return _at_most(value, low)


def _widest(value: Any) -> int:
    if isinstance(value, Mapping):
        return max(map(_widest, value.values()))
    return max(value, default=1) if isinstance(value, tuple) else int(value)


def _shown(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: list(widths) for name, widths in value.items()}
    return list(value) if isinstance(value, tuple) else value
