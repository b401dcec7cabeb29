"""The contract over the whole registry, with no opt-outs, and the presets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rl_training.experiment.config import load_config
from rl_training.experiment.presets import preset_names
from rl_training.experiment.registry import REGISTRY
from rl_training.runtime.train import build
from rl_training.testing import CHECKS, check_policy_stands_alone, check_settings_are_live


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("engine", ["auto", "autograd"])
@pytest.mark.parametrize("algo", REGISTRY)
def test_contract(algo: str, engine: str, check: Callable[..., None]) -> None:
    check(algo, engine=engine)


def test_the_liveness_check_finds_a_dead_setting() -> None:
    with pytest.raises(AssertionError, match="change nothing: decoration"):
        check_settings_are_live("specs:WITH_A_DEAD_SETTING")


def test_the_liveness_check_finds_a_condition_that_is_no_setting() -> None:
    with pytest.raises(AssertionError, match="live_when of 'decoration' names what is no setting: gae_lamda"):
        check_settings_are_live("specs:WITH_A_MISSPELT_CONDITION")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("WITH_AN_OPTIMIZER", "the policy holds FlatAdam, FlatParameters, which only learning needs"),
        ("WITH_AN_UNDECLARED_DTYPE", "the policy records .*'float32'.*it declares .*'float64'"),
        ("WITH_FORGOTTEN_TENSORS", "alone, the policy"),
        ("WITH_A_LASTING_CARRY", "begin_episodes must return what initial_carry returns"),
    ],
)
def test_the_check_of_policies_finds_what_is_wrong(spec: str, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_policy_stands_alone(f"specs:{spec}", learning_rate=0.1)


@pytest.mark.parametrize("preset", preset_names())
def test_preset_carries_its_evidence_or_claims_none(preset: str) -> None:
    config = load_config(preset)
    expected = config.run.expected
    assert expected is not None
    if expected.long:
        assert (expected.return_, expected.measured) == (None, ())
        return
    assert expected.steps == config.run.total_timesteps
    # What takes an hour, and the last evaluations of a long run, may be of one seed.
    short = expected.measure == "final_policy" and expected.minutes < 60
    assert len(expected.measured) == len(expected.seeds) >= (3 if short else 1)
    assert expected.return_ is not None
    assert sum(expected.measured) / len(expected.measured) >= expected.return_
    assert expected.minutes > 0
    if expected.final_return is not None:
        assert len(expected.final_measured) == len(expected.seeds)
        assert sum(expected.final_measured) / len(expected.final_measured) >= expected.final_return


def test_planning_presets_claim_the_last_evaluations_and_the_final_policy() -> None:
    """Their evaluations swing, so a single one would say little; games are judged by every game of the final policy."""
    for preset in preset_names():
        config = load_config(preset)
        expected = config.run.expected
        assert expected is not None
        if (
            REGISTRY[config.run.algo].family == "planning"
            and not expected.long
            and config.run.eval_opponent == "random"
        ):
            assert expected.measure == "last_5_evaluations", preset
            assert expected.return_ is not None
            assert expected.final_return == expected.return_ - 0.1 * abs(expected.return_), preset


@pytest.mark.parametrize("preset", preset_names())
def test_preset_starts(preset: str) -> None:
    config = load_config(preset)
    if config.run.env_id.startswith("ALE/"):
        pytest.importorskip("ale_py", reason="the extra atari is not installed")
    assert config.run.expected is not None
    unproven = config.run.expected.long
    small = {"buffer_size": 1_000, "learning_starts": 0, "batch_size": 8, "n_steps": 4, "num_envs": 2}
    small = {name: value for name, value in small.items() if name in config.flat()}
    small |= {"num_simulations": 2} if "num_simulations" in config.flat() else {}
    if "batch_length" in config.flat():  # a window must be complete
        small |= {"batch_length": 2, "num_envs": 2, "train_every": 8, "updates_per_step": 0.5, "size": "xxs"}
    run = build(config.replace(**small) if unproven else config)
    try:
        run.start()
        if unproven:
            run.advance()
            assert run.metrics["n_updates"] >= 1.0
    finally:
        run.close()
