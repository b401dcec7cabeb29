"""A tiny DQN run from config to checkpoint, with its schedules at their exact ends."""

from __future__ import annotations

from pathlib import Path

from off_policy_smoke import OffPolicySmoke
from rl_training.runtime.dqn_trainer import train_dqn
from run_helpers import latest


class TestDQN(OffPolicySmoke):
    algo = "dqn"
    train = staticmethod(train_dqn)
    schedules = {
        "epsilon": 1.0,
        "epsilon_schedule": {"type": "linear", "end": 0.04, "steps": 48},
        "prioritized": True,
        "per_beta_schedule": 1.0,
    }
    scheduled = {"epsilon": [0.52, 0.04, 0.04, 0.04], "per_beta": [0.55, 0.7, 0.85, 1.0]}
    reports = {"q_mean", "loss", "grad_norm", "epsilon"}
    other = "sac"
    foreign_setting = "ent_coef"
    foreign_env = ("Pendulum-v1", "continuous")

    def test_every_option_at_once_trains(self, tmp_path: Path) -> None:
        options = {"prioritized": True, "dueling": True, "n_step": 3, "normalize_obs": True, "tau": 0.5}
        result = self.run(tmp_path / "run", **options)
        assert result["n_updates"] == 36.0
        assert latest(tmp_path / "run").meta["engine"] == "mlp"
