"""Whoever comes from another library is told the right word: of settings, of commands, of what is not there."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from rl_training import PPO, UserError, load_config, resume_training, train
from rl_training.experiment.fields import settings_of
from rl_training.experiment.other_words import _EXPLAINED, _EXPLAINED_BY, _OURS, in_our_words
from rl_training.experiment.registry import REGISTRY, load_spec, proper_name
from run_helpers import Command, Said, as_overrides, tiny

EVERY_SETTING = {name for algo in REGISTRY for name in settings_of(load_spec(algo))}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(monkeypatch, capsys)


def refused(said: Said, *words: str) -> None:
    assert said.code == 2, said
    assert len(said.err.splitlines()) == 1, said.err
    assert said.err.startswith("error: ")
    for word in words:
        assert word in said.err, said.err


def complaint(algo: str, **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        load_config({"algo": algo, "env_id": "CartPole-v1", **settings})
    return str(caught.value)


# Settings


@pytest.mark.parametrize(
    ("algo", "key", "words"),
    [
        ("ppo", "lr", "here it is 'learning_rate'"),
        ("ppo", "lr_schedule", "here it is 'learning_rate_schedule'"),
        ("ppo", "n_envs", "here it is 'num_envs'"),
        ("ppo", "num_steps", "here it is 'n_steps'"),
        ("ppo", "n_step", "here it is 'n_steps'"),
        ("dqn", "n_steps", "here it is 'n_step'"),
        ("ppo", "batch", "here it is 'batch_size'"),
        ("sac", "policy_lr", "here it is 'learning_rate'"),
        ("iql", "policy_lr", "here it is 'actor_learning_rate'"),
        ("ppo", "clip_param", "here it is 'clip_coef'"),
        ("ppo", "entropy_coeff", "here it is 'ent_coef'"),
        ("dreamer", "entropy_coeff", "here it is 'entropy_coef'"),
        ("ppo", "policy_kwargs", "net_arch is hidden_sizes"),
        ("ppo", "policy_kwargs", "activation_fn is activation"),
        ("ppo", "net_arch", "here it is 'hidden_sizes'"),
        ("ppo", "activation_fn", "here it is 'activation'"),
        ("ppo", "verbose", "progress_bar=True"),
        ("ppo", "tensorboard_log", "loggers=[tensorboard]"),
        ("dqn", "gradient_steps", "give updates_per_step"),
        ("ppo", "train_freq", "after every rollout of n_steps"),
        ("dqn", "exploration_fraction", "epsilon_schedule={type: linear, start: 1.0"),
        ("dqn", "start_e", "epsilon_schedule={type: linear, start: 1.0"),
        ("sac", "target_update_interval", "by tau"),
        ("td3", "polyak", "1 - polyak"),
        ("td3", "action_noise", "give noise_std"),
        ("sac", "autotune", "ent_coef=auto"),
        ("cql", "conservative_weight", "here it is 'cql_alpha'"),
        ("iql", "weight_temp", "here it is 'beta'"),
        ("tqc", "top_quantiles_to_drop_per_net", "here it is 'top_quantiles_to_drop'"),
        ("a2c", "rms_prop_eps", "here it is 'rms_eps'"),
        ("ppo", "eval_freq", "here it is 'eval_interval'"),
        ("ppo", "Learning_Rate", "did you mean 'learning_rate'?"),
        ("ppo", "hidden_dim", "here it is 'hidden_sizes'"),
        ("dreamer", "hidden_dim", "here it is 'units'"),
        ("scalezero", "num_unroll_steps", "here it is 'unroll_steps'"),
        ("muzero", "td_steps", "here it is 'n_step'"),
        ("scalezero", "infer_context_length", "here it is 'context_length'"),
        ("scalezero", "embed_dim", "here it is 'width'"),
        ("scalezero", "num_layers", "here it is 'layers'"),
        ("scalezero", "num_heads", "here it is 'heads'"),
        ("scalezero", "num_experts_of_moe_in_transformer", "here it is 'experts'"),
        ("scalezero", "lora_r", "here it is 'adapter_rank'"),
        ("scalezero", "lora_alpha", "here it is 'adapter_alpha'"),
        ("scalezero", "lora_dropout", "adapters have no dropout"),
        ("scalezero", "curriculum_stage_num", "here it is 'stages'"),
        ("scalezero", "min_stage0_iters", "here it is 'first_stage_updates'"),
        ("scalezero", "max_stage_iters", "here it is 'stage_updates'"),
        ("efficientzero", "use_priority", "here it is 'prioritized'"),
        ("scalezero", "policy_entropy_weight", "here it is 'ent_coef'"),
        ("muzero", "fixed_temperature_value", "here it is 'temperature'"),
        ("muzero", "manual_temperature_decay", "give temperature_schedule"),
        ("muzero", "collector_env_num", "here it is 'num_envs'"),
        ("muzero", "train_start_after_envsteps", "here it is 'learning_starts'"),
        ("scalezero", "env_id_list", "here it is 'tasks'"),
        ("scalezero", "discount_factor", "here it is 'gamma'"),
        ("muzero", "root_dirichlet_alpha", "here it is 'dirichlet_alpha'"),
        ("muzero", "root_noise_weight", "here it is 'dirichlet_fraction'"),
        ("scalezero", "target_update_theta", "here it is 'target_tau'"),
        ("sac", "target_update_theta", "here it is 'tau'"),
        ("muzero", "grad_clip_value", "here it is 'max_grad_norm'"),
        ("muzero", "support_scale", "give value_limit and reward_limit"),
        ("efficientzero", "ssl_loss_weight", "here it is 'consistency_coef'"),
    ],
)
def test_a_name_of_another_library_is_answered_with_ours(algo: str, key: str, words: str) -> None:
    said = complaint(algo, **{key: 1})
    assert f"{key}: unknown key; " in said
    assert words in said


def test_no_name_of_ours_is_taken_for_that_of_others() -> None:
    """Every right word is a setting, and no advice stands in the way of a setting of every algorithm."""
    for ours in _OURS:
        assert any(name in EVERY_SETTING for name in ours), ours
    assert _EXPLAINED_BY.keys() <= EVERY_SETTING
    theirs = [name for others in _OURS.values() for name in others]
    assert len(theirs) == len(set(theirs))
    assert all(in_our_words(name) for name in (*theirs, *_EXPLAINED))


ALGORITHMS = {
    **{algo: ("stable_baselines3", algo.upper()) for algo in ("ppo", "a2c", "dqn", "ddpg", "td3", "sac")},
    **{
        "tqc": ("sb3_contrib", "TQC"),
        "trpo": ("sb3_contrib", "TRPO"),
        "recurrent_ppo": ("sb3_contrib", "RecurrentPPO"),
    },
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_argument_of_stable_baselines_is_taken_or_answered(algo: str) -> None:
    module, name = ALGORITHMS[algo]
    theirs = getattr(pytest.importorskip(module, reason="reads the arguments of Stable-Baselines3"), name)
    settings = settings_of(load_spec(algo)).values()
    known = {name for setting in settings for name in (setting.name, *setting.aliases)}
    arguments = set(inspect.signature(theirs).parameters) - known
    assert [name for name in sorted(arguments) if in_our_words(name, known) is None] == []


@pytest.mark.parametrize(
    ("name", "proper"),
    [
        ("PPO", "ppo"),
        ("RecurrentPPO", "recurrent_ppo"),
        ("TD3+BC", "td3_bc"),
        ("TD3BC", "td3_bc"),
        ("nothing", "nothing"),
    ],
)
def test_algorithms_in_other_letters(name: str, proper: str) -> None:
    assert proper_name(name) == proper
    if proper in REGISTRY:
        assert load_config({"algo": name, "env_id": "CartPole-v1"}).run.algo == proper
        assert load_config(name, env_id="CartPole-v1").run.algo == proper


# What an algorithm has no use for


@pytest.mark.parametrize("algo", REGISTRY)
def test_describe_shows_what_an_algorithm_has(algo: str, command: Command) -> None:
    learns_from_data = "dataset" in load_spec(algo).loop.model_fields
    words = command("describe", algo).out.split()
    assert ("bc_baseline_updates" in words) == learns_from_data
    assert ("eval_opponent" in words) == (algo in ("muzero", "gumbel_muzero", "efficientzero"))
    assert ("num_workers" in words) == ("num_envs" in words) == (algo != "bc")
    config = load_config({"algo": algo, "env_id": "CartPole-v1"})
    assert ("bc_baseline_updates" in config.flat()) == learns_from_data


@pytest.mark.parametrize(
    ("algo", "settings", "words"),
    [
        ("ppo", {"bc_baseline_updates": 3}, "ppo has none: it is for algorithms that learn from a dataset"),
        ("sac", {"eval_opponent": "perfect"}, "sac has none: it is for algorithms that play games for two players"),
        ("bc", {"num_envs": 3}, "bc has none: it gathers nothing itself"),
        ("bc", {"actors": "process"}, "bc has none: it gathers nothing itself"),
    ],
)
def test_a_setting_without_meaning_is_refused(algo: str, settings: dict[str, Any], words: str) -> None:
    assert words in complaint(algo, **settings)


def test_configs_that_have_it_from_before_are_read(tmp_path: Path) -> None:
    train(tiny(total_timesteps=24), run_dir=tmp_path / "run")
    file = tmp_path / "run" / "config.yaml"
    settings = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump(settings | {"bc_baseline_updates": 5_000, "eval_opponent": "random"}))
    assert load_config(file).flat() == settings
    file.write_text(yaml.safe_dump(settings | {"bc_baseline_updates": 7}))
    assert load_config(file).flat() == settings  # it had no effect, so that of a run is passed over


# Commands

QUICK = [
    *(item for item in as_overrides(tiny(total_timesteps=24)) if not item.startswith(("algo=", "env_id=", "total")))
]


@pytest.mark.parametrize(
    "form",
    [
        ["PPO", "env_id=CartPole-v1", "total_timesteps=24"],
        ["ppo", "CartPole-v1", "total_timesteps=24"],
        ["PPO", "CartPole-v1", "-n", "24"],
        ["--algo", "ppo", "--env", "CartPole-v1", "-n", "24"],
        ["--algo", "PPO", "--env", "CartPole-v1", "--total-timesteps", "24"],
        ["ppo", "--env", "CartPole-v1", "-n", "24"],
    ],
    ids=" ".join,
)
def test_train_takes_the_usual_forms(form: list[str], command: Command) -> None:
    said = command("train", *form, *QUICK, "--quiet")
    assert said.code == 0, said.err
    assert "steps       24" in said.out
    assert "ppo__CartPole-v1__seed0" in said.out


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (["train"], "give a preset, a YAML file or an algorithm, for example: train ppo env_id=CartPole-v1"),
        (["train", "CartPole-v1"], "train an algorithm on it: ppo env_id=CartPole-v1"),
        (["train", "ppo/cartpole", "Acrobot-v1"], "for example env_id=Acrobot-v1"),
        (["train", "PPO/CartPol"], "did you mean 'ppo/cartpole'?"),
        (["train", "ppo", "--algo", "ppo"], "both say what is trained"),
        (["train", "ppo", "CartPole-v1", "--env", "Acrobot-v1"], "two environments"),
        (["train", "ppo", "CartPole-v1", "env_id=Acrobot-v1"], "env_id is given twice"),
        (["train", "ppo", "env_id=CartPole-v1", "seed=1", "seed=2"], "seed=1 and seed=2: seed is given twice"),
        (["train", "ppo", "--seed", "1"], "--seed: there is no such option; settings are given as key=value: seed=..."),
        (["train", "ppo", "--lr", "1"], "key=value: learning_rate=..."),
        (["train", "ppo", "--n-timesteps", "1"], "key=value: total_timesteps=..."),
        (["train", "ppo", "--verbose", "1"], "--verbose: there is no such option; a class shows nothing"),
        (["verify", "ppo"], "verify one of its presets: ppo/acrobot, "),
        (["verify", "PPO"], "ppo/cartpole"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_other_forms_are_answered(form: list[str], words: str, command: Command, tmp_path: Path) -> None:
    refused(command(*form), words)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_is_not_there(command: Command, tmp_path: Path) -> None:
    train(tiny(total_timesteps=24), run_dir=tmp_path / "runs" / "one")
    for verb in ("eval", "resume"):
        words = ("has no checkpoint 'step_9'; it has latest, best, step_24, step_0",)
        refused(command(verb, "runs/one", "--checkpoint", "step_9"), *words)
        own = "runs/one/checkpoints/step_24"
        refused(command(verb, own, "--checkpoint", "step_0"), "is one checkpoint", "'step_0'")
    assert command("eval", "runs/one/checkpoints/step_24", "--checkpoint", "step_24", "--episodes", "1").code == 0


def test_a_folder_of_runs_lists_them(command: Command, tmp_path: Path) -> None:
    for name in ("one", "more/two"):
        train(tiny(total_timesteps=24), run_dir=tmp_path / "runs" / name)
    for verb in ("eval", "resume"):
        refused(command(verb, "runs"), "'runs': holds 2 runs; name one: runs/more/two, runs/one")
    with pytest.raises(UserError, match="holds 2 runs"):
        resume_training(tmp_path / "runs")


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_predict_refuses_what_is_no_number(wrong: float) -> None:
    agent = PPO("CartPole-v1", **{key: value for key, value in tiny().items() if key not in ("algo", "env_id")})
    with pytest.raises(UserError, match="obs: has numbers that are not finite"):
        agent.predict(np.array([0.0, wrong, 0.0, 0.0]))
    with pytest.raises(UserError, match="obs: has numbers that are not finite"):
        agent.predict(np.array([[0.0] * 4, [0.0, 0.0, wrong, 0.0]]))
