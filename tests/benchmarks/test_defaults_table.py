"""The table of defaults is what the fields say, and what it says of other libraries is what these have."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from typing import Any

import pytest

from benchmark_helpers import load
from rl_training.experiment.fields import settings_of
from rl_training.experiment.registry import REGISTRY, load_spec

defaults = load("defaults")
PEERS = defaults.read_peers()

# Their names of our settings.
SB3_NAMES = {
    "clip_coef": "clip_range",
    "train_every": "train_freq",
    "rms_eps": "rms_prop_eps",
    "top_quantiles_to_drop": "top_quantiles_to_drop_per_net",
}
D3RLPY_NAMES = {
    "beta": "weight_temp",
    "awac_lambda": "lam",
    "policy_delay": "update_actor_interval",
    "target_policy_noise": "target_smoothing_sigma",
    "target_noise_clip": "target_smoothing_clip",
    "cql_alpha": "conservative_weight",
    "cql_target_gap": "alpha_threshold",
    "cql_samples": "n_action_samples",
    "backup_entropy": "soft_q_backup",
}
SB3_CLASSES = {
    "ppo": "stable_baselines3:PPO",
    "a2c": "stable_baselines3:A2C",
    "dqn": "stable_baselines3:DQN",
    "ddpg": "stable_baselines3:DDPG",
    "td3": "stable_baselines3:TD3",
    "sac": "stable_baselines3:SAC",
    "trpo": "sb3_contrib:TRPO",
    "tqc": "sb3_contrib:TQC",
    "recurrent_ppo": "sb3_contrib:RecurrentPPO",
}
D3RLPY_CLASSES = {
    "dqn": "DoubleDQNConfig",
    "ddpg": "DDPGConfig",
    "td3": "TD3Config",
    "sac": "SACConfig",
    "bc": "BCConfig",
    "awac": "AWACConfig",
    "iql": "IQLConfig",
    "cql": "CQLConfig",
    "td3_bc": "TD3PlusBCConfig",
}


MCTX_NAMES = {"c_visit": "maxvisit_init", "c_scale": "value_scale"}
MCTX_FUNCTIONS = {
    "muzero": ["muzero_policy"],
    "gumbel_muzero": ["gumbel_muzero_policy", "qtransform_completed_by_mix_value"],
}


def test_the_document_is_up_to_date() -> None:
    assert defaults.FILE.read_text() == defaults.write_document(), "run `python benchmarks/defaults.py`"
    assert defaults.main(["--check"]) == 0


@pytest.mark.parametrize("algo", REGISTRY)
def test_every_setting_of_every_algorithm_is_there(algo: str) -> None:
    section = defaults.FILE.read_text().partition(f"\n## {algo}\n")[2].partition("\n## ")[0]
    for setting in settings_of(load_spec(algo)).values():
        assert setting.part == "run" or f"`{setting.name}` " in section, setting.name


@pytest.mark.parametrize("algo", PEERS)
def test_the_other_defaults_are_of_settings_that_there_are(algo: str) -> None:
    known = settings_of(load_spec(algo))
    for column in (*PEERS[algo]["columns"].values(), PEERS[algo]["reasons"]):
        assert column.keys() <= known.keys()


def test_a_difference_needs_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever changes a default is told what to write, and where."""
    changed = defaults.read_peers()
    changed["sac"]["columns"]["paper"]["tau"] = 0.01
    monkeypatch.setattr(defaults, "read_peers", lambda: changed)
    with pytest.raises(SystemExit, match=r"sac\.tau is 0\.005, but 0\.01 in paper; say why in peer_defaults\.yaml"):
        defaults.write_document()


def test_a_file_that_is_out_of_date_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(defaults, "FILE", tmp_path / "defaults.md")
    assert defaults.main(["--check"]) == 1
    assert defaults.main([]) == 0
    assert defaults.main(["--check"]) == 0


def agreeing(said: Any, found: dict[str, Any], names: dict[str, str]) -> int:
    """How many numbers of a column are those of a library; no other may be there."""
    count = 0
    for name, value in said.items():
        theirs = names.get(name, name)
        if theirs in found and not isinstance(value, str):
            assert found[theirs] == value, name
            count += 1
    return count


@pytest.mark.parametrize("algo", SB3_CLASSES)
def test_stable_baselines3_has_these_defaults(algo: str) -> None:
    module, _, name = SB3_CLASSES[algo].partition(":")
    kind = getattr(pytest.importorskip(module), name)
    found = {key: parameter.default for key, parameter in inspect.signature(kind.__init__).parameters.items()}
    column = "sb3-contrib" if module == "sb3_contrib" else "Stable-Baselines3"
    off_policy = {"n_step": "n_steps"} if "buffer_size" in found else {}
    assert agreeing(PEERS[algo]["columns"][column], found, SB3_NAMES | off_policy) >= 8


@pytest.mark.parametrize("algo", D3RLPY_CLASSES)
def test_d3rlpy_has_these_defaults(algo: str) -> None:
    pytest.importorskip("d3rlpy")
    kind = getattr(importlib.import_module("d3rlpy.algos"), D3RLPY_CLASSES[algo])
    found = {field.name: getattr(kind(), field.name) for field in dataclasses.fields(kind)}
    found.setdefault("learning_rate", found.get("critic_learning_rate"))
    assert agreeing(PEERS[algo]["columns"]["d3rlpy"], found, D3RLPY_NAMES) >= 2


@pytest.mark.parametrize("algo", MCTX_FUNCTIONS)
def test_mctx_has_these_defaults(algo: str) -> None:
    mctx = pytest.importorskip("mctx")
    signatures = [inspect.signature(getattr(mctx, name)).parameters for name in MCTX_FUNCTIONS[algo]]
    found = {key: parameter.default for parameters in signatures for key, parameter in parameters.items()}
    assert agreeing(PEERS[algo]["columns"]["mctx"], found, MCTX_NAMES) >= 4
