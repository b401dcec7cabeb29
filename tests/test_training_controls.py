"""The control surface: three resolvers, the callbacks that a config asks for, and the value that every update uses."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance import OFF_POLICY, Walk, built, known_settings, playable, trained
from rl_training.algorithms.settings import reported, setting_extra
from rl_training.experiment.config import ConfigError, load_config
from rl_training.experiment.fields import settings_of
from rl_training.experiment.registry import REGISTRY, load_spec
from rl_training.runtime import controls
from rl_training.runtime.callbacks import Callback, EarlyStopping, Evaluate
from rl_training.runtime.checkpoints.snapshots import training_state
from rl_training.runtime.controls import (
    build_control_callbacks,
    resolve_clip_coefficient,
    resolve_entropy_coefficient,
    resolve_temperature,
)
from rl_training.runtime.train import Run, build, train
from rl_training.runtime.workflows import resume_training
from rl_training.types import UserError


@dataclass(frozen=True)
class Resolver:
    """A resolver, the names that it reads and what it falls back to."""

    resolve: Callable[..., float]
    names: tuple[str, ...]
    default: float

    def __call__(self, config: Any, step: int = 0, **options: Any) -> float:
        return self.resolve(config, step=step, **options)


RESOLVERS = {
    "entropy": Resolver(resolve_entropy_coefficient, ("ent_coef", "entropy_coef"), 0.0),
    "clip": Resolver(resolve_clip_coefficient, ("clip_coef", "clip_range"), 0.2),
    "temperature": Resolver(resolve_temperature, ("temperature",), 1.0),
}
EACH_NAME = pytest.mark.parametrize(
    ("resolver", "name"), [(resolver, name) for resolver in RESOLVERS.values() for name in resolver.names]
)
EACH = pytest.mark.parametrize("resolver", RESOLVERS.values(), ids=RESOLVERS)
EVERY_ALGORITHM = pytest.mark.parametrize("algo", REGISTRY)
WITH_ALIAS = pytest.mark.parametrize("resolver", [RESOLVERS["entropy"], RESOLVERS["clip"]], ids=["entropy", "clip"])


def test_the_clip_range_is_halved_halfway() -> None:
    config = {"clip_coef": 0.2, "clip_coef_schedule": "linear", "total_timesteps": 100}
    assert resolve_clip_coefficient(config, step=50) == pytest.approx(0.1)


def test_the_entropy_bonus_is_warmed_up_in_four_steps() -> None:
    config = {"ent_coef": 0.2, "ent_coef_warmup_steps": 4}
    assert resolve_entropy_coefficient(config, step=0) == pytest.approx(0.05)
    assert resolve_entropy_coefficient(config, step=3) == pytest.approx(0.2)


@EACH
def test_nothing_given_is_the_default(resolver: Resolver) -> None:
    assert resolver({}) == resolver.default
    assert resolver({"total_timesteps": 10}, 5) == resolver.default
    assert resolver({}, default=0.7) == 0.7
    assert resolver({resolver.names[0]: None}, default=0.7) == 0.7


@EACH_NAME
def test_a_fixed_value_is_the_same_at_every_step(resolver: Resolver, name: str) -> None:
    assert [resolver({name: 0.3}, step) for step in (0, 10, 10**9)] == [0.3, 0.3, 0.3]
    assert resolver({name: 1}) == 1.0


@EACH_NAME
def test_a_schedule_goes_from_the_fixed_value_to_its_end(resolver: Resolver, name: str) -> None:
    config = {name: 0.4, f"{name}_schedule": 0.2, "total_timesteps": 100}
    assert [resolver(config, step) for step in (0, 50, 100, 500)] == pytest.approx([0.4, 0.3, 0.2, 0.2])
    assert resolver(config, 100) == 0.2
    config = {name: 0.4, f"{name}_schedule": {"type": "cosine", "start": 0.8, "end": 0.1}, "total_timesteps": 100}
    assert [resolver(config, step) for step in (0, 50, 100)] == pytest.approx([0.8, 0.45, 0.1])


@EACH_NAME
def test_a_schedule_without_a_fixed_value_starts_from_the_default(resolver: Resolver, name: str) -> None:
    config = {f"{name}_schedule": 3.0, "total_timesteps": 10}
    assert resolver(config, 0) == resolver.default
    assert resolver(config, 5) == pytest.approx((resolver.default + 3.0) / 2)
    assert resolver(config, 5, default=1.0) == pytest.approx(2.0)


@EACH_NAME
def test_a_warm_up_needs_no_schedule(resolver: Resolver, name: str) -> None:
    config = {name: 0.8, f"{name}_warmup_steps": 4}
    assert [resolver(config, step) for step in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])


@EACH_NAME
def test_a_warm_up_multiplies_a_schedule_and_does_not_shift_it(resolver: Resolver, name: str) -> None:
    config = {name: 1.0, f"{name}_schedule": "linear", f"{name}_warmup_steps": 10, "total_timesteps": 100}
    expected = [1.0 * 0.1, 0.96 * 0.5, 0.5, 0.0]
    assert [resolver(config, step) for step in (0, 4, 50, 100)] == pytest.approx(expected)


@WITH_ALIAS
def test_both_names_at_once_are_refused(resolver: Resolver) -> None:
    first, second = resolver.names
    for config in (
        {first: 0.1, second: 0.1},
        {first: 0.1, f"{second}_schedule": "linear", "total_timesteps": 10},
        {f"{first}_warmup_steps": 3, second: 0.1},
    ):
        with pytest.raises(UserError, match=f"{first} and {second}: two names of one setting"):
            resolver(config)


@EACH_NAME
def test_a_negative_result_is_refused_by_name(resolver: Resolver, name: str) -> None:
    with pytest.raises(UserError, match=rf"{name}: is -0\.1 at step 0; must be at least 0"):
        resolver({name: -0.1})
    falling = {name: 0.1, f"{name}_schedule": -0.1, "total_timesteps": 100}
    assert resolver(falling, 50) == pytest.approx(0.0, abs=1e-12)
    with pytest.raises(UserError, match=rf"{name}: is -0\.05 at step 75"):
        resolver(falling, 75)
    with pytest.raises(UserError, match=f"{name}: is -0.05"):
        resolver({name: -0.1, f"{name}_warmup_steps": 2}, 0)


@EACH_NAME
@pytest.mark.parametrize("value", ["auto", True, float("nan"), float("inf"), [0.1]], ids=str)
def test_what_is_not_a_number_is_refused_by_name(resolver: Resolver, name: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"^{name}: .* is not a number"):
        resolver({name: value})


@EACH_NAME
def test_a_broken_schedule_is_refused_by_name(resolver: Resolver, name: str) -> None:
    for broken in ("liner", {"type": "liner"}, {"type": "linear", "steps": 0}):
        with pytest.raises(UserError, match=f"^{name}: "):
            resolver({name: 0.1, f"{name}_schedule": broken, "total_timesteps": 10})
    for horizon in ({}, {"total_timesteps": 0}, {"total_timesteps": "many"}):
        with pytest.raises(UserError, match=f"^{name}: "):
            resolver({name: 0.1, f"{name}_schedule": "linear", **horizon})
    with pytest.raises(UserError, match=f"^{name}: warmup_steps=-1"):
        resolver({name: 0.1, f"{name}_warmup_steps": -1})


@EACH_NAME
def test_settings_may_stand_in_algo_kwargs(resolver: Resolver, name: str) -> None:
    nested = {"total_timesteps": 100, "algo_kwargs": {name: 0.4, f"{name}_schedule": 0.2}}
    assert [resolver(nested, step) for step in (0, 50, 100)] == pytest.approx([0.4, 0.3, 0.2])
    assert resolver({"algo_kwargs": None, name: 0.3}) == 0.3


@EACH_NAME
def test_algo_kwargs_do_not_win_silently(resolver: Resolver, name: str) -> None:
    with pytest.raises(UserError, match=f"^{name}: given both by itself and in algo_kwargs"):
        resolver({name: 0.3, "algo_kwargs": {name: 0.4}})
    with pytest.raises(UserError, match="algo_kwargs=5: must be a mapping"):
        resolver({"algo_kwargs": 5})


def test_the_aliases_of_the_resolvers_are_those_of_the_fields() -> None:
    """They stand in two places, because a plain mapping names no algorithm whose fields could be asked."""
    of_fields = {
        frozenset((setting.name, *setting.aliases))
        for algo in REGISTRY
        for setting in settings_of(load_spec(algo)).values()
        if setting.part == "algorithm" and setting.schedulable and setting.aliases
    }
    assert {frozenset(group) for group in controls._ALIASES if len(group) > 1} == of_fields


def test_the_entropy_resolver_takes_the_key_that_it_is_told() -> None:
    assert resolve_entropy_coefficient({"entropy_coef": 0.3}, step=0, coefficient_key="entropy_coef") == 0.3
    assert resolve_entropy_coefficient({"ent_coef": 0.3}, step=0, coefficient_key="entropy_coef") == 0.3
    other = {"exploration_bonus": 0.4, "exploration_bonus_schedule": 0.0, "total_timesteps": 10}
    assert resolve_entropy_coefficient(other, step=5, coefficient_key="exploration_bonus") == pytest.approx(0.2)


def test_a_checked_config_gives_what_its_mapping_gives() -> None:
    flat = {
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "total_timesteps": 1000,
        "entropy_coef": 0.1,
        "entropy_coef_schedule": {"type": "exponential", "end": 0.001},
        "clip_range": 0.3,
        "clip_range_schedule": "cosine",
        "clip_range_warmup_steps": 100,
    }
    config = load_config(flat)
    for step in (0, 99, 500, 1000, 2000):
        assert resolve_entropy_coefficient(config, step=step) == resolve_entropy_coefficient(flat, step=step)
        assert resolve_clip_coefficient(config, step=step) == resolve_clip_coefficient(flat, step=step)
    assert resolve_temperature(config, step=0) == 1.0
    plain = load_config({"algo": "ppo", "env_id": "CartPole-v1"})
    assert resolve_clip_coefficient(plain, step=0, default=0.9) == 0.2  # the field's own default comes first
    assert resolve_entropy_coefficient(plain, step=0, default=0.9) == 0.0


def test_the_resolvers_agree_with_what_a_run_sets() -> None:
    settings = {
        "ent_coef": 0.2,
        "ent_coef_schedule": {"type": "polynomial", "end": 0.05},
        "ent_coef_warmup_steps": 40,
        "clip_coef": 0.3,
        "clip_coef_schedule": 0.1,
        "total_timesteps": 96,
    }
    run = built("ppo", Walk, **settings)
    for _ in range(6):
        run.advance()
        assert run.metrics["ent_coef"] == resolve_entropy_coefficient(run.config, step=run.steps)
        assert run.metrics["clip_coef"] == resolve_clip_coefficient(run.config, step=run.steps)
    run.close()


def control_callbacks(**settings: Any) -> list[Callback]:
    return build_control_callbacks(load_config({"algo": "ppo", "env_id": "CartPole-v1", **settings}))


def test_control_callbacks_evaluate_at_their_cadence_and_then_look_at_the_rules() -> None:
    rules = [{"patience": 3, "min_delta": 0.5}, {"target_value": 400, "sustained": 2}]
    first, second, third = control_callbacks(eval_interval=500, eval_episodes=7, early_stopping=rules)
    assert isinstance(first, Evaluate)
    assert (first.interval, first.episodes) == (500, 7)
    assert isinstance(second, EarlyStopping)
    assert (second.rule.patience, second.rule.min_delta, second.rule.target_value) == (3, 0.5, None)
    assert isinstance(third, EarlyStopping)
    assert (third.rule.target_value, third.rule.sustained) == (400.0, 2)


def test_one_early_stopping_rule_needs_no_list_and_none_leaves_only_the_evaluation() -> None:
    (only,) = control_callbacks()
    assert isinstance(only, Evaluate)
    assert only.interval is None
    _, rule = control_callbacks(eval_interval=10, early_stopping={"patience": 2})
    assert isinstance(rule, EarlyStopping)
    assert rule.rule.patience == 2


def test_control_callbacks_of_a_plain_mapping() -> None:
    rule = {"patience": 3, "min_delta": 0.5}
    settings = {"eval_interval": 50, "eval_episodes": 4, "early_stopping": rule}
    for mapping in (settings, {"eval_interval": 50, "eval_episodes": 4, "algo_kwargs": {"early_stopping": [rule]}}):
        evaluate, stopping = build_control_callbacks(mapping)
        assert isinstance(evaluate, Evaluate)
        assert (evaluate.interval, evaluate.episodes) == (50, 4)
        assert isinstance(stopping, EarlyStopping)
        assert (stopping.rule.patience, stopping.rule.min_delta, stopping.rule.mode) == (3, 0.5, "max")
    assert len(build_control_callbacks({"ent_coef": 0.1})) == 1
    for wrong, words in (
        ({"eval_interval": True}, "eval_interval=True: must be a number"),
        ({"eval_episodes": 0}, "eval_episodes=0: must be at least 1"),
        ({"early_stopping": {"patience": 2}}, "give eval_interval too"),
        ({"eval_interval": 5, "early_stopping": {"metric": "eval_men", "patience": 2}}, "no such metric"),
    ):
        with pytest.raises(UserError, match=words):
            build_control_callbacks(wrong)


@EVERY_ALGORITHM
def test_control_callbacks_stop_a_real_run(algo: str) -> None:
    rule = {"metric": "eval_length_mean", "target_value": 0.5}
    run = trained(algo, playable(algo, Walk), total_timesteps=1000, eval_interval=32, early_stopping=rule)
    assert run.steps == 32
    assert run.stop_reason == "early_stopping: eval_length_mean reached 1"
    trainer = training_state(run)["trainer"]
    assert (trainer["should_stop"], trainer["stop_reason"]) == (True, run.stop_reason)


@pytest.mark.parametrize("algo", OFF_POLICY)
def test_a_loss_stops_a_real_run_although_it_comes_late(algo: str) -> None:
    """Evaluations come every 8 steps, the first update after 25; the metric is there from step 32 on."""
    rule = {"metric": "q_mean", "mode": "min", "target_value": 1e9}
    settings = {"learning_starts": 24, "eval_interval": 8, "early_stopping": rule, "train_every": 8}
    run = trained(algo, playable(algo, Walk), total_timesteps=1000, **settings)
    assert run.steps == 32
    assert (run.stop_reason or "").startswith("early_stopping: q_mean reached")


def schedulable() -> list[tuple[str, str]]:
    return [(algo, name) for algo in REGISTRY for name, s in settings_of(load_spec(algo)).items() if s.schedulable]


def curve_for(algo: str, name: str) -> dict[str, Any]:
    """A curve inside the field's range, whose every value differs from the field's default."""
    limits = settings_of(load_spec(algo))[name].limits
    low = 0.11 if "ge" not in limits else limits["ge"] + 0.11
    return {"type": "linear", "start": low, "end": low + 0.62}


def stride(algo: str) -> int:
    """By how much the clock moves from one update to the next in `few_updates`."""
    return 16 if load_spec(algo).loop().collects else 1


def few_updates(algo: str, **settings: Any) -> dict[str, Any]:
    """A run with one update after every 16 steps, or 64 from a dataset; every entropy coefficient is a number."""
    base = {
        "env_id": "rl_training.testing:TinyEnv",
        "env_kwargs": {"actions": REGISTRY[algo].capabilities.actions[0]},
        "num_envs": 2,
        "total_timesteps": 64,
        "log_interval": 1,
        "eval_episodes": 1,
        "hidden_sizes": [8],
        "n_steps": 8,
        "buffer_size": 1000,
        "learning_starts": 0,
        "train_every": 16,
        "updates_per_step": 1 / 16,
        "policy_delay": 1,
        "ent_coef": 0.05,
        "cql_samples": 2,
        "num_simulations": 2,
        "unroll_steps": 2,
        "latent_size": 8,
        "size": "xxs",
        "batch_length": 2,
        "imagination_horizon": 2,
        "warmup_updates": 0,
        "dataset": "made_up_data:noise",
        "bc_baseline_updates": 1,
    }
    if REGISTRY[algo].family == "world_model":  # the first window is complete after three steps of an environment
        base |= {"num_envs": 1, "updates_per_step": 0.08}
    return {"algo": algo} | known_settings(algo, base) | settings


def started(config: dict[str, Any]) -> Run:
    run = build(load_config(config))
    run.start()
    return run


@pytest.mark.parametrize(("algo", "name"), schedulable())
def test_every_real_number_of_every_algorithm_is_scheduled_set_used_and_reported(
    algo: str, name: str, tmp_path: Path
) -> None:
    curve = curve_for(algo, name)
    used: list[float] = []
    seen: list[tuple[int, float]] = []

    class Watch(Callback):
        def on_start(self, run: Any) -> None:
            update = run.algorithm.update

            def watched(batch: Any) -> Any:
                used.append(getattr(run.algorithm, name))
                return update(batch)

            run.algorithm.update = watched

        def on_step(self, run: Any, metrics: Mapping[str, float]) -> None:
            seen.append((run.steps, used.pop()))

    config = few_updates(algo, **{f"{name}_schedule": curve})
    result = train(config, run_dir=tmp_path / "run", callbacks=[Watch()])
    clock = range(stride(algo), 64, stride(algo))
    expected = {step: curve["start"] + 0.62 * step / 64 for step in clock} | {64: curve["end"]}
    assert dict(seen) == pytest.approx(expected)
    assert seen[-1] == (64, curve["end"])
    assert used == [], "one update a step"
    assert result[name] == curve["end"]
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {row["step"]: row[name] for row in logged} == pytest.approx(expected)


def coefficients(algo: str) -> list[str]:
    """The numbers of an algorithm that are always among its metrics, but for the learning rate."""
    config = load_spec(algo).config
    return [name for name in config.model_fields if setting_extra(config, name)["report"] and name != "learning_rate"]


@EVERY_ALGORITHM
def test_a_fixed_coefficient_is_among_the_metrics_too(algo: str) -> None:
    given = dict.fromkeys(coefficients(algo), 0.07) | {"learning_rate": 0.002}
    run = started(few_updates(algo, **given))
    run.advance()
    run.close()
    # The default search of ScaleZero has no use for the share of MuZero's noise.
    shown = [*reported(run.algorithm.cfg), "learning_rate"]
    assert set(given) - set(shown) == ({"dirichlet_fraction"} if algo == "scalezero" else set())
    assert {name: run.metrics[name] for name in shown} == {name: given[name] for name in shown}


@EVERY_ALGORITHM
def test_coefficients_read_and_write_through_to_the_algorithms_config(algo: str) -> None:
    names = coefficients(algo)
    run = started(few_updates(algo, **dict.fromkeys(names, 0.07)))
    for name in names:
        setattr(run.algorithm, name, 0.25)
        assert getattr(run.algorithm.cfg, name) == getattr(run.algorithm, name) == run.algorithm.current(name) == 0.25
    others = known_settings(algo, {"learning_rate": 0.5, "gamma": 0.1})
    run.algorithm.set_hyperparameters(**others)
    assert {name: getattr(run.algorithm, name) for name in others} == others
    assert all(getattr(run.algorithm, name) == 0.25 for name in names)
    run.close()


def policy_of(run: Any) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in run.algorithm.policy.policy_state().values()])


def weights_of(algo: str, **settings: Any) -> torch.Tensor:
    return policy_of(trained(algo, playable(algo, Walk), total_timesteps=64, **settings))


@EVERY_ALGORITHM
def test_a_learning_rate_schedule_changes_the_weights(algo: str) -> None:
    fixed = weights_of(algo, learning_rate=0.01)
    assert torch.equal(fixed, weights_of(algo, learning_rate=0.01))
    constant = {"type": "constant"}
    assert torch.equal(fixed, weights_of(algo, learning_rate=0.01, learning_rate_schedule=constant))
    assert not torch.equal(fixed, weights_of(algo, learning_rate=0.01, learning_rate_schedule="linear"))
    assert not torch.equal(fixed, weights_of(algo, learning_rate=0.01, learning_rate_warmup_steps=64))


@EVERY_ALGORITHM
def test_a_learning_rate_that_has_come_to_zero_moves_nothing_more(algo: str) -> None:
    rates = [name for name in settings_of(load_spec(algo)) if name.endswith("learning_rate")]
    rates += ["target_kl"] if algo == "trpo" else []  # the length of its policy's steps
    schedule = {"type": "linear", "start": 0.01, "end": 0.0, "steps": 2 * stride(algo)}
    run = started(few_updates(algo, **{f"{name}_schedule": schedule for name in rates}))
    before = policy_of(run)
    run.advance()
    after_first = policy_of(run)
    assert not torch.equal(before, after_first)
    run.advance()
    assert torch.equal(policy_of(run), after_first)
    assert run.metrics["n_updates"] >= 2
    assert run.metrics["learning_rate"] == 0.0
    run.close()


@pytest.mark.parametrize(
    ("algo", "name", "reason"),
    [
        ("ppo", "n_steps", "a whole number"),
        ("ppo", "batch_size", "a whole number"),
        ("ppo", "n_epochs", "a whole number"),
        ("ppo", "num_envs", "a whole number"),
        ("ppo", "adam_eps", "it only matters when the run is built"),
        ("ppo", "obs_clip", "it only matters when the run is built"),
        ("ppo", "log_std_init", "it only matters when the run is built"),
        ("ppo", "reward_clip", "it only matters when the run is built"),
        ("ppo", "normalize_obs", "true or false"),
        ("ppo", "activation", "tanh"),
        ("a2c", "rms_eps", "it only matters when the run is built"),
        ("a2c", "n_steps", "a whole number"),
        ("dqn", "buffer_size", "a whole number"),
        ("dqn", "n_step", "a whole number"),
        ("dqn", "prioritized", "true or false"),
        ("td3", "policy_delay", "a whole number"),
        ("sac", "updates_per_step", "it only matters when the run is built"),
        ("sac", "target_entropy", "it only matters when the run is built"),
        ("tqc", "n_quantiles", "a whole number"),
    ],
)
@pytest.mark.parametrize("suffix", ["_schedule", "_warmup_steps"])
def test_what_cannot_change_during_a_run_takes_no_schedule(algo: str, name: str, reason: str, suffix: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}{suffix}: {name} takes no schedule: .*{reason}"):
        load_config({"algo": algo, "env_id": "CartPole-v1", name + suffix: 5})


def learning_rates(path: Path) -> list[tuple[int, float]]:
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["learning_rate"]) for row in rows]


def test_a_resumed_run_continues_the_curve_and_an_extended_one_holds_its_end(tmp_path: Path) -> None:
    class StopHalfway(Callback):
        def on_step(self, run: Any, metrics: Mapping[str, float]) -> None:
            if run.steps == 48:
                run.request_stop("halfway")

    config = {
        "algo": "ppo",
        "env_id": "rl_training.testing:TinyEnv",
        "n_steps": 8,
        "num_envs": 2,
        "hidden_sizes": [8],
        "total_timesteps": 96,
        "log_interval": 1,
        "learning_rate": 0.01,
        "learning_rate_schedule": 0.001,
        "eval_episodes": 1,
    }
    train(config, run_dir=tmp_path / "straight")
    train(config, run_dir=tmp_path / "halted", callbacks=[StopHalfway()])
    assert len(learning_rates(tmp_path / "halted")) == 3
    # Saying early_stopping anew lets a run that was stopped go on.
    rule = {"patience": 1000}
    resume_training(tmp_path / "halted", eval_interval=1000, early_stopping=rule)
    assert learning_rates(tmp_path / "halted") == learning_rates(tmp_path / "straight")
    extended = resume_training(tmp_path / "halted", total_timesteps=160)
    assert extended["learning_rate"] == 0.001
    assert [rate for step, rate in learning_rates(tmp_path / "halted") if step >= 96] == [0.001] * 5
