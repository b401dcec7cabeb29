"""Which names of code out of a checkpoint or a run's folder may be resolved: the gate that all of them pass.

A name of code is `module:name`, or a module that registers environments. It passes if the caller gives the same name
now, if the caller trusts the run, or if this user gave it to train this very run. Gymnasium's ids and what comes with
this package are free. The address of a Ray cluster is such a name: what the cluster sends is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.experiment.notes import Name, recall
from rl_training.experiment.references import current_folder, import_apart, is_nameless, is_reference, name_of
from rl_training.experiment.tasks import task_key, without_task
from rl_training.types import UserError

if TYPE_CHECKING:
    from rl_training.experiment.config import Config

# The settings that name code, and which of them are resolved for what. An address names no module.
ADDRESS = "ray_address"
PACKAGES = "env_packages"
SCHEDULES = "schedules"  # any setting of this kind: `learning_rate_schedule` and its like
POLICY = ("algo", "model")
ENVIRONMENT = ("env_id", "env_kwargs.env_id")
EPISODES_ELSEWHERE = (*POLICY, PACKAGES)  # in an environment that the caller's function makes
EPISODES = (*EPISODES_ELSEWHERE, *ENVIRONMENT)
ELSEWHERE = (*EPISODES_ELSEWHERE, "callbacks", "dataset", SCHEDULES, ADDRESS)  # training, as above
TRAINING = (*ELSEWHERE, *ENVIRONMENT)

# What a folder has in it if it is a run's, or a checkpoint.
_SIGNS = ("metrics.jsonl", "checkpoints/step_*", "model.safetensors")

_PACKAGED = {
    "env_id": (
        "rl_training.runtime.no_velocity:NoVelocity",
        "rl_training.runtime.cartpole_pixels:cartpole_pixels",
        "rl_training.runtime.goal_worlds:bit_flipping",
        "rl_training.runtime.goal_worlds:point_goal",
    ),
    "dataset": tuple(
        f"rl_training.data.packaged:{name}" for name in ("pendulum_medium", "pendulum_expert", "cartpole_expert")
    ),
}


def names_code(key: str, value: Any) -> bool:
    """Whether the value of a setting names code that does not come with this package or with Gymnasium."""
    key = without_task(key)
    if not isinstance(value, str) or value in _PACKAGED.get(key, ()):
        return False
    if key in (ADDRESS, PACKAGES):
        return True
    if key in ENVIRONMENT:  # Gymnasium imports the module of `module:Env-v0`
        return ":" in value and not is_nameless(value)
    return is_reference(value) and not (key == "dataset" and Path(value).exists())


def code_in(config: Config, uses: Iterable[str] = TRAINING) -> Iterator[Name]:
    """The code that some settings of a config name, those of its tasks included."""
    uses = tuple(uses)
    values: dict[str, Sequence[Any]] = {
        "algo": [config.run.algo],
        "model": [config.model.model],
        PACKAGES: config.run.env_packages,
        "env_id": [config.run.env_id],
        "env_kwargs.env_id": [config.run.env_kwargs.get("env_id")],
        "callbacks": config.run.callbacks,
        "dataset": [getattr(config.loop, "dataset", None)],
        ADDRESS: [config.run.ray_address],
    }
    for key in uses:
        if key == SCHEDULES:
            yield from curves_in(config.scheduling)
        else:
            yield from ((key, value) for value in values[key] if names_code(key, value))
    for name, task in (config.run.tasks or {}).items():
        arguments = task.env_kwargs or {}
        its: dict[str, Sequence[Any]] = {
            PACKAGES: task.env_packages or (),
            "env_id": [task.env_id],
            "env_kwargs.env_id": [arguments.get("env_id")],
        }
        for key in (key for key in its if key in uses):
            yield from ((task_key(name, key), value) for value in its[key] if names_code(key, value))


def curves_in(settings: Mapping[str, Any]) -> Iterator[Name]:
    """The functions that the schedules among some settings name."""
    for key, value in settings.items():
        if key.endswith("_schedule") and names_code(key, value):
            yield key, value


@dataclass(frozen=True)
class Gate:
    """Lets code in that a run's folder names, by what the caller says and what is noted about this user's own runs.

    `place` is the run's folder, or a checkpoint outside of one. `given` is what the caller gives now. `options` says
    how a setting is given where that is not `key=value`; a setting that it leaves out cannot be given.
    """

    place: Path
    run_id: Any = None
    trust: bool = False
    given: frozenset[str] = frozenset()
    options: Mapping[str, str] | None = None

    @classmethod
    def before(
        cls,
        place: Path,
        run_id: Any,
        given: Iterable[Any],
        *,
        trust: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> Gate:
        """The gate before a run; what the caller gives is any text in these values."""
        return cls(place, run_id, trust, frozenset(_texts_in(list(given))), options)

    @cached_property
    def _noted(self) -> dict[Name, str | None]:
        return recall(self.place, self.run_id)

    def admit(self, names: Iterable[Name]) -> None:
        """Import the modules of these names, or raise. The current folder is searched for what the caller gives."""
        for key, name in names:
            # Who gives `my_envs:Walk-v0` gives the module too.
            package = without_task(key) == PACKAGES
            given = name in self.given or (package and any(text.startswith(f"{name}:") for text in self.given))
            folder = current_folder() if given else self._noted.get((key, name))
            if not (self.trust or given or (key, name) in self._noted):
                raise UserError(self._refusal(key, name))
            if key == ADDRESS:
                continue
            import_apart(name, key=key, folder=folder, barred=[self.place])

    def _refusal(self, key: str, name: str) -> str:
        option = f"{key}=" if self.options is None else self.options.get(key)
        again = "" if option is None else f"give {option}{name} yourself, or "
        does = "let that cluster run code here" if key == ADDRESS else f"import {name.partition(':')[0]!r}"
        return (
            f"{str(self.place)!r}: its {key}={name!r} would {does}, and you did not give that to train this run; to "
            f"allow it, {again}say --trust (trust=True in Python)"
        )


def owner_of(checkpoint: Path) -> Path:
    """The folder of the run that a checkpoint belongs to, or the checkpoint itself if it is in none."""
    real = checkpoint.resolve()
    return real.parent.parent if real.parent.name == "checkpoints" else real


def run_around(file: Path) -> Path | None:
    """The folder of a run, or the checkpoint, that a file is in."""
    return next((folder for folder in file.resolve().parents if any(any(folder.glob(sign)) for sign in _SIGNS)), None)


def _texts_in(value: Any) -> Iterator[str]:
    """Every text in nested data, and the name of every function."""
    if isinstance(value, str):
        yield value
    elif callable(value):
        yield name_of(value)
    elif isinstance(value, Mapping):
        yield from _texts_in(list(value.values()))
    elif isinstance(value, Sequence):
        for item in value:
            yield from _texts_in(item)
