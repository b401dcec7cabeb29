"""Settings: the fields of a config, and the frozen groups that they are in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field


class ConfigPart(BaseModel):
    """A frozen group of settings. Its fields are the only place that defines a setting's name, default and help."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())
    # The settings that decide how much RAM is needed. A part says how much that is at least (`least_bytes`,
    # `least_weights`, ...); `runtime/memory.py` adds it up before anything is made.
    sizes: ClassVar[tuple[str, ...]] = ()
    # Settings that others have and this one cannot have, and why.
    absent: ClassVar[Mapping[str, str]] = {}
    # What a group inside of a field is called, and how one is written.
    called: ClassVar[str] = "this"
    example: ClassVar[str] = ""


def setting(
    default: Any,
    help: str,
    *,
    aliases: Sequence[str] = (),
    static: bool = False,
    default_schedule: Mapping[str, Any] | None = None,
    report: bool = False,
    live_when: Mapping[str, Any] | None = None,
    probe: Any = None,
    **limits: Any,
) -> Any:
    """A config field.

    `static`: a number that is used only when the run is built, so it takes no schedule. `default_schedule`: a schedule
    that applies if the config gives neither the field, nor its schedule, nor its warm-up. `report`: always among the
    metrics, where it has an effect. `live_when`: other settings under which this one has an effect. `probe`: a value
    that differs enough from the default for a test to see that effect. `limits`: ge, gt, le, lt.
    """
    extra: dict[str, Any] = {
        "aliases": list(aliases),
        "static": static,
        "default_schedule": None if default_schedule is None else dict(default_schedule),
        "report": report,
        "live_when": dict(live_when or {}),
    }
    return Field(default, description=help, json_schema_extra=extra | {"probe": probe}, **limits)


def setting_extra(part: type[ConfigPart], name: str) -> dict[str, Any]:
    """The extra attributes of a field that `setting` stored."""
    extra = part.model_fields[name].json_schema_extra
    return dict(extra) if isinstance(extra, dict) else {}


def reported(config: ConfigPart) -> list[str]:
    """The fields that are always among the metrics, but for those that another choice of this config leaves unused."""
    extras = {name: setting_extra(type(config), name) for name in type(config).model_fields}
    return [name for name, extra in extras.items() if extra.get("report") and _used(config, extra["live_when"])]


def _used(config: ConfigPart, live_when: Mapping[str, Any]) -> bool:
    """Whether the texts that are chosen among others are as a field needs them; conditions of other kinds may vary."""
    return all(getattr(config, name, needed) == needed for name, needed in live_when.items() if isinstance(needed, str))
