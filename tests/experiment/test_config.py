"""From YAML, presets, mappings and overrides to a checked config; and every mistake in plain words."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from pydantic import ValidationError

from rl_training.experiment.config import Config, ConfigError, load_config
from rl_training.experiment.fields import json_schema, settings_of
from rl_training.experiment.presets import preset_names
from rl_training.experiment.registry import REGISTRY, load_spec
from rl_training.types import UserError

PPO = {"algo": "ppo", "env_id": "CartPole-v1"}


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def problems_of(config: dict[str, Any], *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(config, overrides)
    return caught.value.problems


def test_flat_yaml_becomes_four_parts(tmp_path: Path) -> None:
    file = written(
        tmp_path / "mine.yaml",
        "algo: ppo\nenv_id: CartPole-v1\nenv_kwargs: {sutton_barto_reward: true}\nseed: 3\nn_steps: 64\n"
        "hidden_sizes: [32, 16]\nactivation: relu\ngamma: 0.95\nent_coef_schedule: linear\ntags: [first, second]\n",
    )
    for target in (file, str(file)):
        config = load_config(target)
        assert (config.run.env_id, config.run.seed, config.run.tags) == ("CartPole-v1", 3, ("first", "second"))
        assert config.run.env_kwargs == {"sutton_barto_reward": True}
        assert config.loop.n_steps == 64
        assert (config.model.hidden_sizes, config.model.activation) == ((32, 16), "relu")
        assert config.algorithm.gamma == 0.95
        assert set(config.controls) == {"ent_coef"}
        assert config.spec is load_spec("ppo")


def test_numbers_in_scientific_notation_are_numbers(tmp_path: Path) -> None:
    file = written(
        tmp_path / "mine.yaml",
        "algo: ppo\nenv_id: CartPole-v1\ntotal_timesteps: 1e5\neval_interval: 2_000\nlearning_rate: 3e-4\n"
        "ent_coef: 1E-2\nclip_coef_schedule: {type: linear, end: 5e-2}\n",
    )
    config = load_config(file, ["target_kl=2e-2"])
    assert config.run.total_timesteps == 100_000
    assert isinstance(config.run.total_timesteps, int)
    assert config.run.eval_interval == 2000
    assert (config.algorithm.learning_rate, config.algorithm.ent_coef) == (3e-4, 0.01)
    assert config.algorithm.target_kl == 0.02
    assert config.controls["clip_coef"].at(100_000, 100_000) == 0.05


@pytest.mark.parametrize("preset", preset_names())
def test_presets_are_read_by_name(preset: str) -> None:
    config = load_config(preset)
    assert config.run.algo == preset.split("/")[0]


def test_an_algorithms_name_is_a_config_of_defaults() -> None:
    config = load_config("a2c", ["env_id=CartPole-v1"])
    assert config.run.algo == "a2c"
    assert config.algorithm == load_spec("a2c").config()


def test_overrides_come_last_and_keywords_after_them() -> None:
    config = load_config("ppo/cartpole", ["seed=5", "gamma=0.9", "hidden_sizes=[8,8]", "tags=[a]"], seed=6)
    assert config.run.seed == 6
    assert config.algorithm.gamma == 0.9
    assert config.model.hidden_sizes == (8, 8)
    assert config.run.tags == ("a",)
    assert config.run.env_id == "CartPole-v1"


def test_nested_overrides_add_to_what_is_below() -> None:
    base = PPO | {"env_kwargs": {"x": 0, "y": {"z": 1}}}
    config = load_config(base, ["env_kwargs.x=1", "env_kwargs.y.w=[2, 3]", "env_kwargs.name=yes it is"])
    assert config.run.env_kwargs == {"x": 1, "y": {"z": 1, "w": [2, 3]}, "name": "yes it is"}
    config = load_config(PPO, ["ent_coef_schedule.type=cosine", "ent_coef_schedule.end=0.5"])
    assert config.controls["ent_coef"].at(100, 100) == 0.5


def test_a_part_of_a_schedule_can_be_overridden_and_another_type_replaces_it() -> None:
    base = PPO | {"clip_coef_schedule": {"type": "step", "every": 10, "factor": 0.1}}
    assert load_config(base, ["clip_coef_schedule.every=20"]).scheduling["clip_coef_schedule"]["every"] == 20
    replaced = load_config(base, clip_coef_schedule={"type": "linear", "end": 0.1})
    assert replaced.scheduling["clip_coef_schedule"] == {"type": "linear", "end": 0.1}
    assert load_config(base, clip_coef_schedule="linear").controls["clip_coef"].at(100, 100) == 0.0


def test_a_schedule_of_a_lower_layer_can_be_taken_away() -> None:
    assert load_config("ppo/cartpole", ["clip_coef_schedule=null"]).controls.keys() == {"learning_rate"}


def test_algo_kwargs_are_merged() -> None:
    config = load_config(PPO | {"algo_kwargs": {"gamma": 0.9, "clip_range": 0.1, "n_steps": 7}})
    assert (config.algorithm.gamma, config.algorithm.clip_coef, config.loop.n_steps) == (0.9, 0.1, 7)
    assert load_config(PPO | {"algo_kwargs": None}).algorithm == load_spec("ppo").config()
    assert load_config(PPO, ["algo_kwargs.gamma=0.8"]).algorithm.gamma == 0.8
    assert load_config(PPO | {"algo_kwargs": {"gamma": 0.9}}, gamma=0.7).algorithm.gamma == 0.7


def test_algo_kwargs_do_not_hide_mistakes() -> None:
    assert problems_of(PPO | {"gamma": 0.9, "algo_kwargs": {"gamma": 0.8}}) == [
        "gamma: given both by itself and in algo_kwargs"
    ]
    assert problems_of(PPO | {"algo_kwargs": {"gama": 0.8}}) == ["gama: unknown key; did you mean 'gamma'?"]
    assert problems_of(PPO | {"algo_kwargs": [1]}) == ["algo_kwargs=[1]: must be a mapping of settings"]


@pytest.mark.parametrize(("alias", "name"), [("clip_range", "clip_coef"), ("entropy_coef", "ent_coef")])
def test_an_alias_is_its_setting_with_its_suffixes(alias: str, name: str) -> None:
    given_alias = load_config(PPO | {alias: 0.1, f"{alias}_schedule": 0.05, f"{alias}_warmup_steps": 9})
    given_name = load_config(PPO | {name: 0.1, f"{name}_schedule": 0.05, f"{name}_warmup_steps": 9})
    assert given_alias == given_name
    assert given_alias.flat() == given_name.flat()
    assert alias not in given_alias.flat()


def test_an_alias_overrides_the_setting_of_a_lower_layer() -> None:
    assert load_config("ppo/cartpole").algorithm.clip_coef == 0.2
    config = load_config("ppo/cartpole", ["clip_range=0.05"])
    assert config.algorithm.clip_coef == 0.05
    # The preset's schedule now starts from it.
    assert config.controls["clip_coef"].at(0, 100) == 0.05
    config = load_config("ppo/cartpole", ["clip_range_schedule=0.1"], clip_range=0.3)
    assert config.controls["clip_coef"].at(50, 100) == pytest.approx(0.2)


@pytest.mark.parametrize(
    "settings",
    [
        {"clip_coef": 0.1, "clip_range": 0.1},
        {"clip_coef": 0.1, "clip_range_schedule": "linear"},
        {"clip_coef_schedule": "linear", "clip_range_warmup_steps": 5},
        {"clip_coef": 0.1, "algo_kwargs": {"clip_range": 0.1}},
    ],
    ids=str,
)
def test_two_names_of_one_setting_at_once_are_refused(settings: dict[str, Any]) -> None:
    assert problems_of(PPO | settings) == ["clip_coef and clip_range: two names of one setting; give one of them"]
    overrides = [f"{key}={value}" for key, value in settings.items() if key != "algo_kwargs"]
    if len(overrides) == 2:
        assert problems_of(PPO, *overrides) == problems_of(PPO | settings)


def test_all_mistakes_are_reported_at_once() -> None:
    mistakes = {
        "learnin_rate": 1e-3,
        "num_envs": 0,
        "gamma": "high",
        "activation": "rleu",
        "normalize_obs": "perhaps",
        "n_steps": 2.5,
        "clip_coef_schedule": -0.1,
        "gae_lambda_schedule": "liner",
        "adam_eps_schedule": 1.0,
    }
    with pytest.raises(ConfigError) as caught:
        load_config(PPO | mistakes)
    lines = str(caught.value).splitlines()
    assert lines[0] == "config: 9 mistakes"
    assert sorted(line.strip() for line in lines[1:]) == sorted(caught.value.problems)
    for part in (
        "learnin_rate: unknown key; did you mean 'learning_rate'?",
        "num_envs=0: must be at least 1",
        "gamma='high': must be a number",
        "activation='rleu': must be one of tanh, relu, silu, elu, gelu, leaky_relu, ",
        "normalize_obs='perhaps': must be true or false",
        "n_steps=2.5: must be a whole number",
        "clip_coef_schedule=-0.1: it reaches -0.1, but clip_coef must be at least 0",
        "gae_lambda_schedule='liner': 'liner' is not a schedule",
        "adam_eps_schedule: adam_eps takes no schedule: it only matters when the run is built",
    ):
        assert any(problem.startswith(part) for problem in caught.value.problems), part


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("gama", "gamma"),
        ("lerning_rate", "learning_rate"),
        ("total_timestep", "total_timesteps"),
        ("ent_coeff", "ent_coef"),
        ("ent_coeff_schedule", "ent_coef_schedule"),
        ("clip_coef_warmup", "clip_coef_warmup_steps"),
        ("early_stoping", "early_stopping"),
        ("hidden_size", "hidden_sizes"),
    ],
)
def test_a_misspelt_key_gets_the_nearest_right_one(key: str, suggestion: str) -> None:
    assert problems_of(PPO | {key: 1}) == [f"{key}: unknown key; did you mean {suggestion!r}?"]


def test_a_key_like_nothing_else_gets_no_suggestion() -> None:
    assert problems_of(PPO | {"xyzzy": 1}) == ["xyzzy: unknown key"]
    assert problems_of(PPO | {3: 1}) == ["3: unknown key"]


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("gamma", "high", "must be a number"),
        ("gamma", True, "must be a number"),
        ("gamma", None, "must be a number"),
        ("gamma", [0.9], "must be a number"),
        ("gamma", float("nan"), "must be a number"),
        ("gamma", 1.5, "must be at most 1"),
        ("gamma", -0.5, "must be at least 0"),
        ("max_grad_norm", 0.0, "must be above 0"),
        ("seed", -1, "must be at least 0"),
        ("seed", "one", "must be a whole number"),
        ("seed", True, "must be a number"),
        ("total_timesteps", 0, "must be at least 1"),
        ("total_timesteps", 1.5, "must be a whole number"),
        ("keep_checkpoints", 1, "must be at least 2"),
        ("env_id", 5, "must be text"),
        ("env_kwargs", [1], "must be a mapping"),
        ("tags", "one", "must be a list"),
        ("hidden_sizes", 64, "must be a list"),
        ("normalize_obs", "perhaps", "must be true or false"),
        ("vectorization", "sync ", "must be one of auto, native, sync, async; did you mean 'sync'?"),
        ("early_stopping", 3, "must be a list"),
        ("time_limit", 0, "must be at least 1"),
    ],
)
def test_a_wrong_type_or_range_names_the_key_the_value_and_what_is_allowed(
    key: str, value: Any, complaint: str
) -> None:
    assert problems_of(PPO | {key: value}) == [f"{key}={value!r}: {complaint}"]


def test_arguments_of_the_environment_become_plain_values() -> None:
    given = {"on": np.True_, "size": np.int64(3), "grid": np.eye(2), "deep": {"pair": (1, np.float32(0.5))}, "no": None}
    config = load_config(PPO | {"env_kwargs": given})
    plain = {"on": True, "size": 3, "grid": [[1.0, 0.0], [0.0, 1.0]], "deep": {"pair": [1, 0.5]}, "no": None}
    assert config.run.env_kwargs == plain
    assert json.loads(json.dumps(config.flat()))["env_kwargs"] == plain


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (print, "'made' is a builtin_function_or_method"),
        (np.float32, "'made' is a type"),
        ([1, {"a": {2}}], "'made.1.a' is a set"),
        ({1: 2}, "'made' is a dict"),
        (np.array([print]), "'made.0' is a builtin_function_or_method"),
    ],
)
def test_arguments_that_no_config_can_hold_are_refused_by_their_key(value: Any, complaint: str) -> None:
    (problem,) = problems_of(PPO | {"env_kwargs": {"fine": 1, "made": value}})
    assert problem.startswith(f"env_kwargs: {complaint}, which cannot be written to a config")


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ({"patience": 0}, "early_stopping.0.patience=0: must be at least 1"),
        ({"patience": 3, "mode": "maximum"}, "early_stopping.0.mode='maximum': must be one of max, min"),
        ({"patiense": 3}, "early_stopping.0.patiense: unknown key; did you mean 'patience'?"),
        ({}, "early_stopping.0: needs 'patience' or 'target_value'"),
        ({"patience": 3, "sustained": 2}, "early_stopping.0: 'sustained' needs 'target_value'"),
    ],
)
def test_mistakes_in_a_rule_are_named_by_their_place(rule: dict[str, Any], complaint: str) -> None:
    assert complaint in problems_of(PPO | {"eval_interval": 10, "early_stopping": rule})[0]


def test_early_stopping_needs_evaluations() -> None:
    assert problems_of(PPO | {"early_stopping": {"patience": 3}}) == [
        "early_stopping is checked after evaluations: give eval_interval too"
    ]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"ent_coef": 0.1, "ent_coef_schedule": -0.1}, "ent_coef_schedule=-0.1: it reaches -0.1, but ent_coef"),
        ({"gamma_schedule": 1.5}, "gamma_schedule=1.5: it reaches 1.5, but gamma must be at most 1"),
        ({"max_grad_norm_schedule": "linear"}, "it reaches 0, but max_grad_norm must be above 0"),
        (
            {"gamma_schedule": {"type": "piecewise", "points": [[0, 0.9], [5, 1.2], [9, 0.9]]}},
            "it reaches 1.2, but gamma must be at most 1",
        ),
        ({"ent_coef_schedule": {"type": "linear", "start": -0.2}}, "it reaches -0.2, but ent_coef must be at least 0"),
        ({"clip_range_vf_schedule": "linear"}, "clip_range_vf_schedule='linear': has no value to start from"),
        ({"ent_coef_schedule": {"type": "linear", "until": 3}}, "linear does not take 'until'"),
        ({"ent_coef_schedule": True}, "ent_coef_schedule=True: end=True is not a number"),
        ({"ent_coef_warmup_steps": -5}, "ent_coef_warmup_steps=-5: warmup_steps=-5 must be a whole number"),
        ({"ent_coef_warmup_steps": 2.5}, "warmup_steps=2.5 must be a whole number of at least 1"),
    ],
)
def test_a_schedule_is_checked_over_its_whole_curve_when_the_config_is_read(
    settings: dict[str, Any], complaint: str
) -> None:
    (problem,) = problems_of(PPO | settings)
    assert complaint in problem


def test_schedules_within_the_range_are_accepted() -> None:
    config = load_config(
        PPO
        | {
            "gamma_schedule": 1.0,
            "max_grad_norm_schedule": 0.1,
            "max_grad_norm_warmup_steps": 50,
            "clip_range_vf_schedule": {"type": "linear", "start": 0.5, "end": 0.1},
            "target_kl_schedule": {"type": "constant", "start": 0.02},
            "learning_rate_schedule": "cosine",
        }
    )
    assert set(config.controls) == {"gamma", "max_grad_norm", "clip_range_vf", "target_kl", "learning_rate"}


def test_algo_and_env_id_are_needed_and_their_names_checked() -> None:
    assert problems_of({"env_id": "CartPole-v1"})[0].startswith("algo: is missing; name one of ppo, a2c")
    assert problems_of({"algo": "ppo"})[0].startswith("env_id: is missing")
    with pytest.raises(UserError, match=r"algo='ppoo': unknown algorithm; did you mean 'ppo'\?"):
        load_config({"algo": "ppoo", "env_id": "CartPole-v1"})


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("ppo/cartpol", "'ppo/cartpol' is neither a preset, a YAML file nor an algorithm; did you mean 'ppo/cartpole'"),
        ("nothing/there.yaml", "nothing/there.yaml: there is no such file"),
        ("ppoo", "neither a preset, a YAML file nor an algorithm; did you mean 'ppo'"),
    ],
)
def test_a_target_that_does_not_exist(target: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        load_config(target)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"algo: ppo\nenv_id: CartPole-v1\nseed: 1\nseed: 2\n", "duplicate"),
        (b"algo: ppo\nalgo_kwargs:\n  gamma: 0.9\n  gamma: 0.8\n", "duplicate"),
        (b"algo: [ppo\n", "cannot be read"),
        (b"- algo\n- ppo\n", "must hold settings as 'key: value' lines"),
        (b"just words\n", "algo: is missing"),
        (b"12\n", "must hold settings as 'key: value' lines|cannot be read"),
        (b"\x89PNG\r\n\x1a\n\x00\xff\xfe", "this is not a text file|cannot be read"),
        (b"algo: ppo\nenv_id: ${nowhere}\n", "cannot be read"),
        (b"", "algo: is missing"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(content: bytes, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_bytes(content)
    with pytest.raises(UserError, match=complaint) as caught:
        load_config(file)
    assert "broken.yaml" in str(caught.value)


@pytest.mark.parametrize("override", ["gamma", "=0.9", "gamma={a", "env_id=${nowhere}"])
def test_an_override_that_cannot_be_read_is_shown(override: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(PPO, [override])
    assert override in str(caught.value)


def test_a_mistake_names_its_source(tmp_path: Path) -> None:
    file = written(tmp_path / "mine.yaml", "algo: ppo\nenv_id: CartPole-v1\ngama: 1\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml: gama: unknown key"):
        load_config(file)
    with pytest.raises(ConfigError, match=r"^ppo/cartpole: gama: unknown key"):
        load_config("ppo/cartpole", ["gama=1"])


ROUND_TRIPS = [
    PPO,
    PPO | {"seed": 3, "hidden_sizes": [5], "env_kwargs": {"a": {"b": [1, 2]}}, "tags": ["x"], "time_limit": 9},
    PPO | {"clip_range": 0.1, "clip_range_schedule": {"type": "step", "every": 5}, "entropy_coef_warmup_steps": 4},
    PPO | {"eval_interval": 5, "early_stopping": [{"patience": 2}, {"target_value": 3, "mode": "min"}]},
    {"algo": "a2c", "env_id": "Pendulum-v1", "learning_rate_schedule": "cosine"},
]


@pytest.mark.parametrize("settings", ROUND_TRIPS, ids=str)
def test_a_config_survives_its_flat_form_and_yaml(settings: dict[str, Any], tmp_path: Path) -> None:
    config = load_config(settings)
    assert load_config(config.flat()) == config
    file = written(tmp_path / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(config.flat())))
    assert load_config(file) == config


@pytest.mark.parametrize("preset", preset_names())
def test_presets_survive_their_flat_form(preset: str) -> None:
    config = load_config(preset)
    assert load_config(config.flat()) == config


@given(st.floats(0, 1), st.floats(0, 10), st.integers(1, 10**9), st.floats(1e-8, 1.0))
def test_numbers_survive_yaml_to_the_bit(gamma: float, ent_coef: float, steps: int, rate: float) -> None:
    config = load_config(PPO | {"gamma": gamma, "ent_coef": ent_coef, "total_timesteps": steps, "learning_rate": rate})
    text = OmegaConf.to_yaml(OmegaConf.create(config.flat()))
    assert load_config(OmegaConf.to_container(OmegaConf.create(text))) == config  # type: ignore[arg-type]


def test_replace_checks_again_and_leaves_the_original() -> None:
    config = load_config(PPO)
    other = config.replace(gamma=0.5, clip_range=0.1)
    assert (other.algorithm.gamma, other.algorithm.clip_coef) == (0.5, 0.1)
    assert config.algorithm.gamma == 0.99
    with pytest.raises(ConfigError, match=r"gamma=2\.0: must be at most 1"):
        config.replace(gamma=2.0)


def test_a_config_is_frozen() -> None:
    config = load_config(PPO)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.run = None  # type: ignore[misc,assignment]
    for part in (config.run, config.loop, config.model, config.algorithm):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(part, next(iter(type(part).model_fields)), 1)


def test_defaults_are_not_shared_between_configs() -> None:
    first, second = load_config(PPO), load_config(PPO)
    first.run.env_kwargs["leak"] = 1
    assert second.run.env_kwargs == {}
    assert load_config(PPO).run.env_kwargs == {}


def test_reading_a_mapping_does_not_change_it() -> None:
    given_settings: dict[str, Any] = {**PPO, "algo_kwargs": {"gamma": 0.9}, "env_kwargs": {"x": 1}}
    load_config(given_settings, ["env_kwargs.y=2", "seed=4"])
    assert given_settings == {**PPO, "algo_kwargs": {"gamma": 0.9}, "env_kwargs": {"x": 1}}


@pytest.mark.parametrize("algo", REGISTRY)
def test_the_schema_has_every_setting_and_nothing_else(algo: str) -> None:
    spec = load_spec(algo)
    schema, settings = json_schema(spec), settings_of(spec)
    allowed = {"algo_kwargs"}
    for setting in settings.values():
        for name in (setting.name, *setting.aliases):
            suffixes = ("_schedule", "_warmup_steps") if setting.schedulable else ()
            allowed |= {name, *(name + suffix for suffix in suffixes)}
    assert set(schema["properties"]) == allowed
    needed: dict[str, Any] = {"required": ["env_id"]}
    if spec.capabilities.multi_task:
        needed = {"anyOf": [needed, {"required": ["tasks"]}]}
    assert {key: schema.get(key) for key in needed} == needed
    assert schema["additionalProperties"] is False
    names = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
    for setting in settings.values():
        described = schema["properties"][setting.name]
        numbers = [described, *described.get("anyOf", [])]
        for limit, value in setting.limits.items():
            assert any(number.get(names[limit]) == value for number in numbers), setting.name


@pytest.mark.parametrize("algo", REGISTRY)
def test_the_schema_repeats_defaults_and_help(algo: str) -> None:
    spec = load_spec(algo)
    properties = json_schema(spec)["properties"]
    config = load_config({"algo": algo, "env_id": "CartPole-v1"}).flat()
    for name in set(config) - {"algo", "env_id", "early_stopping"}:
        assert properties[name]["default"] == config[name], name
        assert properties[name]["description"], name


def accepts(schema: dict[str, Any], definitions: dict[str, Any], value: Any) -> bool:
    """As much of JSON schema as the config's own uses for the shape of a value."""
    if "$ref" in schema:
        return accepts(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions, value)
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return any(accepts(option, definitions, value) for option in schema[choice])
    kinds = {
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "number": isinstance(value, (int, float)) and not isinstance(value, bool),
        "string": isinstance(value, str),
        "boolean": isinstance(value, bool),
        "array": isinstance(value, list),
        "object": isinstance(value, dict),
        "null": value is None,
    }
    wanted = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return any(kinds[kind] for kind in wanted)


@pytest.mark.parametrize("settings", ROUND_TRIPS, ids=str)
def test_the_schema_accepts_what_the_reader_accepts(settings: dict[str, Any]) -> None:
    schema = json_schema(load_spec(settings["algo"]))
    single_rule = settings | {"eval_interval": 5, "early_stopping": {"patience": 3}}
    for accepted in (settings, load_config(settings).flat(), single_rule):
        load_config(accepted)
        for key, value in accepted.items():
            assert accepts(schema["properties"][key], schema["$defs"], value), key


@pytest.mark.parametrize("algo", REGISTRY)
def test_every_setting_explains_itself(algo: str) -> None:
    for setting in settings_of(load_spec(algo)).values():
        assert setting.help.endswith("."), setting.name
        assert setting.kind, setting.name


def test_a_config_knows_its_type() -> None:
    assert isinstance(load_config(PPO), Config)
    assert issubclass(ConfigError, UserError)


def test_a_value_that_fills_a_page_is_named_by_its_type() -> None:
    with pytest.raises(ConfigError, match=r"dataset=<dict>: must be text$"):
        load_config({"algo": "gail", "env_id": "CartPole-v1", "dataset": {"obs": list(range(1000))}})
