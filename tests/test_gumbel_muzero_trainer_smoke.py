"""A tiny Gumbel MuZero run from config to checkpoint, with its schedules at their exact ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from planning_smoke import SampledSmoke
from rl_training.runtime.gumbel_muzero_trainer import train_gumbel_muzero


class TestGumbelMuZero(SampledSmoke):
    algo = "gumbel_muzero"
    train = staticmethod(train_gumbel_muzero)
    schedules = SampledSmoke.schedules | {"c_scale_schedule": 0.5, "reward_coef_schedule": "linear"}
    scheduled = SampledSmoke.scheduled | {"c_scale": [0.2, 0.3, 0.4, 0.5], "reward_coef": [0.75, 0.5, 0.25, 0.0]}
    foreign_setting = "dirichlet_fraction"

    @pytest.mark.parametrize("mode", ["filter", "gumbel_scale"])
    def test_both_meanings_of_the_temperature_train(self, mode: str, tmp_path: Path) -> None:
        result = self.run(tmp_path / "run", temperature_mode=mode, temperature=2.0, temperature_schedule=0.0)
        assert result["temperature"] == 0.0
        assert result["root_entropy"] >= 0.0
