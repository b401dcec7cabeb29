"""The presets that come with the package: `ppo/cartpole` is `assets/configs/ppo/cartpole.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

PRESET_FOLDER = Path(__file__).resolve().parent.parent / "assets" / "configs"


def preset_names() -> list[str]:
    """Every preset, as `algorithm/environment`."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in PRESET_FOLDER.glob("*/*.yaml"))


def preset_path(name: str) -> Path | None:
    """The file of a preset, or None if there is none of this name."""
    return PRESET_FOLDER / f"{name}.yaml" if name in preset_names() else None


def read_preset(name: str) -> dict[str, Any]:
    """The settings of a preset as written in its file."""
    import yaml

    path = preset_path(name)
    return dict(yaml.safe_load(path.read_text())) if path is not None else {}


def preset_steps(preset: Mapping[str, Any]) -> int:
    """How long a preset runs, by either name of that setting."""
    return int(preset["total_updates"] if "total_updates" in preset else preset["total_timesteps"])
