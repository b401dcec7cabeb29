"""`key=value` overrides: their form, their values, and the layers of settings that they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rl_training.experiment.tasks import stands_for_tasks
from rl_training.types import UserError

LIKE_AN_ENVIRONMENT = re.compile(r"-v[0-9]+$")


def parse_overrides(overrides: Iterable[str]) -> dict[str, Any]:
    """Parse `key=value` overrides; values are read as YAML."""
    return _read(_checked(overrides))


def override_layers(overrides: Iterable[str]) -> list[dict[str, Any]]:
    """The same as layers of settings: with `tasks=`, then with `tasks.NAME=`, then with what is further inside.

    So tasks in a short form, such as `tasks=[CartPole-v1]`, are written out before `tasks.cartpole.num_envs=2` changes
    one of them, and they replace those of a preset.
    """
    layers: list[list[str]] = [[], [], []]
    for override in _checked(overrides):
        key = _key(override)
        layers[min(key.count("."), 2) if key.startswith("tasks.") else 0].append(override)
    return [_read(layer) for layer in layers if layer]


def _key(override: str) -> str:
    return override.partition("=")[0]


def _checked(overrides: Iterable[str]) -> list[str]:
    """Overrides of which each has the right form, and none contradicts another."""
    overrides = list(overrides)
    for override in overrides:
        if "=" not in override or override.startswith("="):
            what = f"env_id={override}" if LIKE_AN_ENVIRONMENT.search(override) else "seed=1"
            raise UserError(f"{override!r}: overrides are given as key=value, for example {what}")
    keys = [_key(override) for override in overrides]
    for key in (key for place, key in enumerate(keys) if key in keys[:place]):
        given = " and ".join(override for override, own in zip(overrides, keys, strict=True) if own == key)
        raise UserError(f"{given}: {key} is given twice; give it once")
    _check_prefixes(overrides)
    return overrides


def _check_prefixes(overrides: Sequence[str]) -> None:
    """Raise a UserError if one override is about the inside of another, which has none."""
    by_key = {_key(override): override for override in overrides}
    for key, override in by_key.items():
        parts = key.split(".")
        for outer in (".".join(parts[:count]) for count in range(1, len(parts))):
            if outer not in by_key:
                continue
            value = _read([f"value={by_key[outer].partition('=')[2]}"])["value"]
            indexed = isinstance(value, list) and parts[outer.count(".") + 1].isdigit()
            if not (isinstance(value, Mapping) or indexed or stands_for_tasks(outer, value)):
                raise UserError(f"{by_key[outer]} and {override}: {outer} is no mapping then; give one of the two")


def _read(overrides: Sequence[str]) -> dict[str, Any]:
    try:
        parsed = OmegaConf.to_container(OmegaConf.from_dotlist(list(overrides)), resolve=True)
    except (YAMLError, OmegaConfBaseException, LookupError, TypeError, ValueError) as error:
        raise UserError(f"{' '.join(overrides)}: cannot be read: {' '.join(str(error).split())}") from None
    return {str(key): value for key, value in parsed.items()}
