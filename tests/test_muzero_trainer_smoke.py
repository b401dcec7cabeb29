"""A tiny MuZero run from config to checkpoint, with its schedules at their exact ends."""

from __future__ import annotations

from planning_smoke import SampledSmoke
from rl_training.runtime.muzero_trainer import train_muzero


class TestMuZero(SampledSmoke):
    algo = "muzero"
    train = staticmethod(train_muzero)
    schedules = SampledSmoke.schedules | {"dirichlet_fraction_schedule": "linear", "value_coef_schedule": 1.25}
    scheduled = SampledSmoke.scheduled | {
        "dirichlet_fraction": [0.1875, 0.125, 0.0625, 0.0],
        "value_coef": [0.5, 0.75, 1.0, 1.25],
    }
    reports = SampledSmoke.reports | {"dirichlet_fraction"}
