"""A tiny EfficientZero run from config to checkpoint, with its schedules at their exact ends."""

from __future__ import annotations

from pathlib import Path

from planning_smoke import SampledSmoke
from rl_training.runtime.efficientzero_trainer import train_efficientzero
from run_helpers import latest


class TestEfficientZero(SampledSmoke):
    algo = "efficientzero"
    train = staticmethod(train_efficientzero)
    schedules = SampledSmoke.schedules | {"dirichlet_fraction_schedule": 0.05, "consistency_coef_schedule": "linear"}
    scheduled = SampledSmoke.scheduled | {
        "dirichlet_fraction": [0.2, 0.15, 0.1, 0.05],
        "consistency_coef": [1.5, 1.0, 0.5, 0.0],
    }
    reports = SampledSmoke.reports | {"dirichlet_fraction", "consistency_loss"}

    def test_every_part_of_it_at_once_trains_and_each_is_a_switch(self, tmp_path: Path) -> None:
        fresh = {"horizon_age": 20, "search_value_age": 40, "prefix_horizon": 2}
        assert self.run(tmp_path / "all", **fresh)["n_updates"] == 36.0
        self.run(tmp_path / "none", value_prefix=False, consistency_coef=0.0)
        for parts in ("all", "none"):
            assert latest(tmp_path / parts).meta["engine"] == "mlp"
