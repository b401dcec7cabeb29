"""Which settings of a run may change when it is continued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_training.experiment.config import Config
from rl_training.experiment.fields import settings_of, why_without
from rl_training.experiment.references import leads_back
from rl_training.experiment.tasks import in_effect, names_in, part_of_score, spread, without_task
from rl_training.runtime.envs.ids import is_same_id
from rl_training.types import UserError

# A resumed run keeps these settings; its length, its rates and what it writes may change. The best and the latest
# evaluations that it remembers are scores, where its tasks have them.
_FIXED = ("algo", "env_id", "tasks", "env_kwargs", "vectorization", "num_envs", "num_workers", "seed", "score")
# Whoever loads an agent may change these. Its training then goes on with new episodes.
ANEW = ("env_kwargs", "num_envs", "seed")
# These files may have moved; whether their contents are the same is checked when they are read.
_MOVABLE = ("dataset", "start_from")


def lifting(stop_reason: str | None) -> set[str]:
    """The settings whose change lets a run continue that was stopped for this reason."""
    stopped_early = stop_reason is not None and stop_reason.startswith("early_stopping")
    return {"early_stopping"} if stopped_early else {"early_stopping", "total_timesteps"}


def changes(saved: dict[str, Any], config: Config, anew: Sequence[str] = ()) -> dict[str, tuple[Any, Any]]:
    """The settings that differ from those of a saved run, and both values; raises if one of them cannot change.

    Those of `anew`, of the run and of its tasks, may, at the price of new episodes.
    """
    was, order = names_in(saved), names_in(config.flat())
    if order != was:  # their order is that in which they are learned
        kept = f"tasks ({', '.join(was)})" if was else f"env_id ({saved.get('env_id')!r})"
        given = f"[{', '.join(order)}]" if order else "null"
        raise UserError(f"tasks={given}: a resumed run keeps its {kept}; start a new run instead")
    saved, now = spread(saved), spread(config.flat())
    settings = settings_of(config.spec)
    found = {}
    for key in sorted(key for key in saved.keys() | now.keys() if why_without(key, config.spec) is None):
        old, new = in_effect(saved, key), in_effect(now, key)
        if old == new:
            continue
        name = without_task(key)
        setting = settings.get(name)
        unnamed = name in ("env_id", "model") and not leads_back(str(old))
        if unnamed or (name == "env_id" and is_same_id(str(new), old)):
            found[key] = (old, new)  # the same by another name, as far as one can know
            continue
        fixed = (name in _FIXED and name not in anew) or (
            setting is not None
            and (setting.part in ("loop", "model") or setting.static or setting.kind.startswith("bool"))
            and setting.part != "run"
            and name not in _MOVABLE
        )
        if fixed:
            raise cannot_change(*(part_of_score(key, old, new) if name == "score" else (key, old, new)))
        found[key] = (old, new)
    return found


def cannot_change(key: str, old: Any, new: Any) -> UserError:
    """The complaint about a setting that is to change and stays."""
    return UserError(f"{key}={_shown(new)}: a resumed run keeps its {key} ({_shown(old)}); start a new run instead")


def _shown(value: Any) -> str:
    return "null" if value is None else repr(value)
