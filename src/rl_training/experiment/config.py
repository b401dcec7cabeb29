"""Reads a preset, a file or a mapping, with `key=value` overrides, into a checked config.

A config is flat on disk and has four frozen parts once it is read. All mistakes are reported at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from yaml import YAMLError

from rl_training.algorithms.base import AlgorithmConfig, AlgorithmSpec, LoopConfig, NetworkConfig
from rl_training.algorithms.settings import ConfigPart
from rl_training.data.checked_files import damaged
from rl_training.experiment.curves import Curves
from rl_training.experiment.fields import SUFFIXES, Setting, explain, settings_of, why_without
from rl_training.experiment.fields import ConfigError as ConfigError
from rl_training.experiment.manager import RunFolder
from rl_training.experiment.other_words import unknown_key
from rl_training.experiment.overrides import LIKE_AN_ENVIRONMENT, override_layers
from rl_training.experiment.presets import preset_names, preset_path
from rl_training.experiment.references import by_name, is_reference
from rl_training.experiment.registry import REGISTRY, load_spec, proper_name, suggest
from rl_training.experiment.schedules import Control, Schedule, ScheduleError, parse_control
from rl_training.experiment.settings import RunConfig, TaskConfig
from rl_training.experiment.tasks import named, written_out
from rl_training.experiment.trust import SCHEDULES, TRAINING, Gate, code_in, names_code, owner_of, run_around
from rl_training.types import UserError


@dataclass(frozen=True)
class Config:
    """A checked config: run, loop, model and algorithm settings, and the schedules of the last.

    `objects` are the functions and classes that were given where their names lead nobody back to them.
    """

    spec: AlgorithmSpec
    run: RunConfig
    loop: LoopConfig
    model: NetworkConfig
    algorithm: AlgorithmConfig
    scheduling: Mapping[str, Any] = field(default_factory=dict)
    controls: Mapping[str, Control] = field(default_factory=dict)
    objects: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    def flat(self) -> dict[str, Any]:
        """Every setting with its value, as plain data: what is written to the run and read back from it."""
        merged: dict[str, Any] = {}
        for part in (self.run, self.loop, self.model, self.algorithm):
            merged |= part.model_dump(mode="json", by_alias=True)
        known = settings_of(self.spec)
        return {name: value for name, value in merged.items() if name in known} | dict(self.scheduling)

    def given(self) -> dict[str, Any]:
        """The same as `load_config` takes it, with objects where names would not lead back to them."""
        return self.flat() | dict(self.objects)

    def holding(self, objects: Mapping[str, Callable[..., Any]]) -> Config:
        """The same config with further objects."""
        return replace(self, objects={**self.objects, **objects})

    def replace(self, **values: Any) -> Config:
        """The same config with other values, checked again."""
        return load_config(self.given(), **values)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks; a run in one environment has one task without a name."""
        return ("",) if self.run.tasks is None else tuple(self.run.tasks)

    def for_task(self, name: str) -> Config:
        """The config of one task as that of a run in one environment."""
        if self.run.tasks is None:
            return self
        task = self.run.tasks[name]
        own = task.given("env_id", "env_packages", "env_kwargs", "num_envs")
        loop = task.given(*({"time_limit", "frame_stack", "reward_clip"} & type(self.loop).model_fields.keys()))
        run = self.run.model_copy(update={**own, "tasks": None})
        return replace(self, run=run, loop=self.loop.model_copy(update=loop))


def load_config(
    target: str | Path | Mapping[str, Any], overrides: Iterable[str] = (), *, trust: bool = False, **values: Any
) -> Config:
    """Read a preset's name, a YAML file, an algorithm's name or a mapping, then apply `key=value` and keywords.

    Code that a file in a run's folder names must be given, noted, or trusted.
    """
    source, base, run = _read_target(target)
    (base, *given), objects = by_name([base, *override_layers(overrides), values])
    gate = None if run is None else Gate.before(run, RunFolder(run).run_id, given, trust=trust)
    return _load(source, [base, *given], gate).holding(objects)


def saved_config(
    checkpoint: Path,
    meta: Mapping[str, Any],
    overrides: Iterable[str] = (),
    *,
    trust: bool = False,
    uses: Iterable[str] = TRAINING,
    given: Iterable[str | None] = (),
    options: Mapping[str, str] | None = None,
    **values: Any,
) -> Config:
    """The config in a checkpoint's `meta`, with changes. This is the one place that reads it to resolve what it names.

    Of the code that it names, what `uses` asks for must be given, noted, or trusted; the rest is never imported.
    """
    saved = meta["config"]
    if not isinstance(saved, Mapping):
        raise UserError(f"{str(checkpoint)!r}: is damaged or foreign (its config is a {type(saved).__name__})")
    layers, objects = by_name([*override_layers(overrides), values])
    place, gives = owner_of(checkpoint), [*layers, *given]
    gate = Gate.before(place, meta.get("run_id"), gives, trust=trust, options=options)
    plain = {str(key): value for key, value in saved.items()}
    try:
        return _load("config", [plain, *layers], gate, uses).holding(objects)
    except ConfigError:
        try:
            _load("config", [plain], gate, uses)
        except ConfigError as own:  # it is wrong without the changes too
            raise damaged(checkpoint, f"its config: {'; '.join(own.problems)}") from None
        raise


def _load(
    source: str, layers: Sequence[Mapping[str, Any]], gate: Gate | None, uses: Iterable[str] = TRAINING
) -> Config:
    algo = next((proper_name(str(layer["algo"])) for layer in reversed(layers) if "algo" in layer), None)
    if algo is None:
        raise ConfigError(source, [f"algo: is missing; name one of {', '.join(REGISTRY)}, or module:SPEC"])
    if gate is not None:
        gate.admit([("algo", algo)] if names_code("algo", algo) else [])  # its SPEC is imported next
    spec = load_spec(algo)
    settings = settings_of(spec)
    problems: list[str] = []
    merged: dict[str, Any] = {}
    uses = tuple(uses)
    curves = Curves(gate, checked=SCHEDULES in uses)
    unused: dict[str, Any] = {}
    for layer in layers:
        above = curves.take(_canonical(layer, settings, problems))
        without = {name for name in above if name in RunConfig.model_fields and why_without(name, spec)}
        unused |= {name: above[name] for name in without}
        above = {name: value for name, value in above.items() if name not in without}
        if layer is layers[0] and gate is not None:  # of a run, which may be older than a setting's limits
            unused = {name: value for name, value in unused.items() if name == "tasks"}
        above = _with_tasks(named, above, source, problems)
        merged = _merge(_without_defaults(merged, above, settings), spec.model.on_top(above, merged))
        merged = _with_tasks(written_out, merged, source, problems)
    problems += _without_meaning(unused, spec)
    if unused.get("tasks") is not None:
        raise ConfigError(source, problems)  # env_id is not missed too
    curves.admit(merged)
    merged["algo"] = algo
    config = _check(source, spec, settings, _with_default_schedules(merged, settings), problems, curves)
    if gate is not None:
        gate.admit(code_in(config, uses))
    return config


def _with_tasks(
    form: Callable[[Any], Any], layer: dict[str, Any], source: str, problems: Sequence[str]
) -> dict[str, Any]:
    """A layer with its tasks in another form, if it has any."""
    try:
        return layer | {"tasks": form(layer["tasks"])} if "tasks" in layer else layer
    except ValueError as error:
        raise ConfigError(source, [*problems, f"tasks: {error}"]) from None


def _without_meaning(unused: Mapping[str, Any], spec: AlgorithmSpec) -> Iterator[str]:
    """What is wrong with settings of runs that an algorithm has no use for; only their defaults may be given."""
    for name, value in unused.items():
        if value != RunConfig.model_fields[name].default:
            given = name if name == "tasks" else f"{name}={value!r}"
            yield f"{given}: {spec.name} has none: {why_without(name, spec)}"


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two layers; mappings are merged too, except a schedule with a type, which replaces the one below."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        another_curve = both and key.endswith("_schedule") and "type" in value
        merged[key] = _merge(merged[key], value) if both and not another_curve else value
    return merged


def _with_default_schedules(given: Mapping[str, Any], settings: Mapping[str, Setting]) -> dict[str, Any]:
    """The default schedules are added for settings that are not given at all.

    Where only the schedule of such a setting is given, it begins where the default one does.
    """
    merged = dict(given)
    for name, curve in _default_curves(settings):
        if not any(name + suffix in given for suffix in ("", *SUFFIXES)):
            merged[name + "_schedule"] = dict(settings[name].default_schedule or {})
        elif given.get(name + "_schedule") is not None:
            merged.setdefault(name, curve.start)
    return merged


def _without_defaults(
    below: dict[str, Any], above: Mapping[str, Any], settings: Mapping[str, Setting]
) -> dict[str, Any]:
    """The layer below without the default schedules of settings that the layer above gives.

    A resolved config contains default schedules. A value that is given on top of it replaces them, as it would have
    done in the config itself.
    """
    replaced = [
        key
        for name, _ in _default_curves(settings)
        if (below.get(name), below.get(name + "_schedule")) == (settings[name].default, settings[name].default_schedule)
        and any(name + suffix in above for suffix in ("", *SUFFIXES))
        for key in (name, name + "_schedule")
    ]
    return {key: value for key, value in below.items() if key not in replaced}


def _default_curves(settings: Mapping[str, Setting]) -> list[tuple[str, Schedule]]:
    return [(name, curve) for name, setting in settings.items() if (curve := setting.default_curve) is not None]


def _read_target(target: str | Path | Mapping[str, Any]) -> tuple[str, dict[str, Any], Path | None]:
    """What errors call it, its settings, and the folder of the run that it is in."""
    if isinstance(target, Mapping):
        return "config", {str(key): value for key, value in target.items()}, None
    name = proper_name(str(target))
    preset = preset_path(name)
    if preset is not None:
        return name, _read_yaml(preset), None
    if Path(name).is_file():
        return name, _read_yaml(Path(name)), run_around(Path(name))
    if name in REGISTRY or is_reference(name):
        return name, {"algo": name}, None
    if name.endswith((".yaml", ".yml")):
        raise UserError(f"{name}: there is no such file")
    known = [*preset_names(), *REGISTRY]
    hint = (
        f"; train an algorithm on it: ppo env_id={name}" if LIKE_AN_ENVIRONMENT.search(name) else suggest(name, known)
    )
    raise UserError(f"{name!r} is neither a preset, a YAML file nor an algorithm{hint}")


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except UnicodeDecodeError:
        raise UserError(f"{path}: this is not a text file") from None
    except (YAMLError, OmegaConfBaseException, OSError) as error:
        raise UserError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: must hold settings as 'key: value' lines")
    return {str(key): value for key, value in content.items()}


def _canonical(layer: Mapping[str, Any], settings: Mapping[str, Setting], problems: list[str]) -> dict[str, Any]:
    """Merge `algo_kwargs` and replace every alias by its setting's name; a layer may use only one name of each."""
    flat = dict(layer)
    nested = flat.pop("algo_kwargs", None) or {}
    if not isinstance(nested, Mapping):
        problems.append(f"algo_kwargs={nested!r}: must be a mapping of settings")
        nested = {}
    for key, value in ((str(key), value) for key, value in nested.items()):
        if key in flat:
            problems.append(f"{key}: given both by itself and in algo_kwargs")
        flat[key] = value
    spellings = {
        spelling + suffix: (setting.name, spelling, suffix)
        for setting in settings.values()
        for spelling in (setting.name, *setting.aliases)
        for suffix in ("", *SUFFIXES)
    }
    canonical: dict[str, Any] = {}
    given: dict[str, str] = {}
    for key, value in flat.items():
        name, spelling, suffix = spellings.get(key, (key, key, ""))
        if given.setdefault(name, spelling) != spelling:
            problems.append(f"{given[name]} and {spelling}: two names of one setting; give one of them")
        canonical[name + suffix] = value
    return canonical


def _check(
    source: str,
    spec: AlgorithmSpec,
    settings: Mapping[str, Setting],
    merged: dict[str, Any],
    problems: list[str],
    curves: Curves,
) -> Config:
    scheduling = {key: value for key, value in merged.items() if key not in settings and key.endswith(SUFFIXES)}
    known = [*settings, *(name + suffix for name, s in settings.items() if s.schedulable for suffix in SUFFIXES)]
    for key in merged:
        if key not in settings and key not in scheduling:
            why = {**spec.model.absent, **spec.loop.absent}.get(key)
            of_tasks = "tasks" in settings and key in TaskConfig.model_fields
            words = f"{key}: is a setting of a task: tasks.NAME.{key}" if of_tasks else unknown_key(key, known)
            problems.append(f"{key}: {spec.name} has none: {why}" if why else words)
    for key in [key for key, value in merged.items() if callable(value) and key in settings]:
        if settings[key].schedulable:
            merged.pop(key)
            problems.append(
                f"{key}: a function is given as {key}_schedule, and is called with the progress of the run, from 0 to "
                "1 (in Stable-Baselines3 with what remains, from 1 to 0)"
            )
    parts: dict[str, ConfigPart] = {}
    for part, kind in (("run", RunConfig), ("loop", spec.loop), ("model", spec.model), ("algorithm", spec.config)):
        given = {name: merged[name] for name in merged if name in settings and settings[name].part == part}
        parts[part] = _check_part(kind, given, problems, settings)
    algorithm = parts["algorithm"]
    horizon = getattr(parts["run"], "total_timesteps", None)
    controls = dict(_check_scheduling(scheduling, settings, algorithm, horizon, known, problems, curves))
    if problems:
        raise ConfigError(source, problems)
    scheduling = {key: value for key, value in scheduling.items() if value is not None}
    return Config(spec, scheduling=scheduling, controls=controls, objects=curves.objects, **parts)  # type: ignore[arg-type]


def _check_part(
    kind: type[ConfigPart], given: dict[str, Any], problems: list[str], settings: Mapping[str, Setting]
) -> ConfigPart:
    errors: Sequence[Mapping[str, Any]] = ()
    try:
        part = kind.model_validate(given)
    except ValidationError as error:
        errors = error.errors()
        # Used only for the schedules' base values, so that mistakes in schedules are reported along with these.
        wrong = {details["loc"][0] for details in errors if details["loc"]}
        part = kind.model_construct(**{key: value for key, value in given.items() if key not in wrong})
    problems += explain(kind, given, errors, settings)
    return part


def _check_scheduling(
    scheduling: Mapping[str, Any],
    settings: Mapping[str, Setting],
    algorithm: ConfigPart,
    horizon: int | None,
    known: Sequence[str],
    problems: list[str],
    curves: Curves,
) -> Iterator[tuple[str, Control]]:
    bases = dict.fromkeys(key[: -len(suffix)] for key in scheduling for suffix in SUFFIXES if key.endswith(suffix))
    for name in bases:
        given = [name + suffix for suffix in SUFFIXES if name + suffix in scheduling]
        if name not in settings:
            problems += [unknown_key(key, known) for key in given]
            continue
        if not settings[name].schedulable:
            problems += [f"{key}: {name} takes no schedule: {settings[name].why_not_schedulable}" for key in given]
            continue
        schedule, warmup = scheduling.get(name + "_schedule"), scheduling.get(name + "_warmup_steps")
        if schedule is None and warmup is None:
            continue
        base = getattr(algorithm, name, None)
        if isinstance(base, str):
            learned = f"{name}={base!r} is learned; give a number to schedule"
            problems.append(f"{given[0]}={scheduling[given[0]]!r}: {learned}")
            continue
        curve = curves.curve_of(settings[name], schedule)
        try:
            control = parse_control(base, curve, warmup)
            if callable(curve) and not curves.checked:
                yield name, control
                continue
            control.at(0, horizon)
            low, high = control.extremes()
        except ScheduleError as error:
            problem = f"{given[0]}={scheduling[given[0]]!r}: {error}"
            if callable(curve) and curves.gate is not None:  # the function is to blame, and not the file that names it
                raise UserError(problem) from None
            problems.append(problem)
            continue
        for value in (low, high):
            complaint = settings[name].out_of_range(value)
            if complaint:
                problems.append(f"{given[0]}={scheduling[given[0]]!r}: it reaches {value:g}, but {name} {complaint}")
                break
        yield name, control
