"""Widths network by network, shared encoders, and activations, in every family."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from rl_training import PPO, evaluate_checkpoint, train
from rl_training.algorithms.layers import FAST, ActivationName
from rl_training.cli import cli
from rl_training.experiment.config import Config, load_config
from rl_training.models.mlp_engine import KINDS
from rl_training.models.phasic import PhasicActorCritic
from rl_training.models.torso import ACTIVATIONS, MLP
from rl_training.runtime.checkpoints.checkpoint import read_checkpoint
from rl_training.runtime.doctor.report import check_machine
from rl_training.runtime.train import Run, build
from rl_training.testing import checkpoint_differences, differences, tiny_config
from rl_training.types import UserError

PPO_CARTPOLE = {"algo": "ppo", "env_id": "CartPole-v1"}
IMAGES = {"observations": "image"}
SHARED = {"share_encoder": True, "hidden_sizes": {"encoder": [5], "policy": [6], "critic": [7]}}

BY_NETWORK: dict[str, dict[str, list[int]]] = {
    "ppo": {"policy": [], "value": [7]},
    "recurrent_ppo": {"policy": [6], "value": [7, 4]},
    "ppg": {"policy": [6, 5], "value": []},
    "sac": {"policy": [6, 5], "critic": [7]},
    "iql": {"policy": [6], "critic": [7, 4], "value": [5]},
    "muzero": {"representation": [6], "dynamics": [], "prediction": [7, 4]},
}


def started(config: Config) -> Run:
    run = build(config)
    run.start()
    return run


def advanced(run: Run, updates: int = 2) -> Run:
    for _ in range(updates):
        run.advance()
    return run


def networks_of(run: Run) -> dict[str, Any]:
    return {name: learner.module for name, learner in run.algorithm.learners.items()}


def hidden(module: nn.Module) -> list[int]:
    """The widths of all but the last layer."""
    return [layer.out_features for layer in module.modules() if isinstance(layer, nn.Linear)][:-1]


def problem_of(algo: str, env: dict[str, Any] | None = None, **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        build(tiny_config(algo, env, **settings))
    line = str(caught.value)
    assert "\n" not in line
    return line.removeprefix("config: ")


# Widths.


def test_policy_and_value_have_widths_of_their_own() -> None:
    run = build(tiny_config("ppo", hidden_sizes={"policy": [6, 5], "value": [7]}))
    network = run.algorithm.network
    assert (hidden(network.policy_torso), network.policy_torso.features) == ([6], 5)
    assert (hidden(network.value_torso), network.value_torso.features) == ([], 7)
    assert run.algorithm.engine == "mlp"
    run.close()


def test_actor_critics_and_value_of_iql_have_widths_of_their_own() -> None:
    run = build(tiny_config("iql", hidden_sizes={"policy": [6], "qf": [7, 4], "vf": [5]}))
    found = networks_of(run)
    assert hidden(found["value"]) == [5]
    assert hidden(found["actor"]) == [6]
    assert [weight.shape[1] for weight in found["critic"].members.weights] == [7, 4, 1]
    run.close()


def test_the_networks_of_a_model_have_widths_of_their_own() -> None:
    run = build(tiny_config("muzero", hidden_sizes=BY_NETWORK["muzero"]))
    network = run.algorithm.policy.network
    assert [torso.features for torso in (network.representation, network.transition, network.prediction)] == [6, 11, 4]
    run.close()
    images = build(tiny_config("muzero", IMAGES, hidden_sizes={"dynamics": [6], "prediction": [7]}))
    network = images.algorithm.policy.network
    assert [part.features for part in (network.reward_features, network.policy_features, network.value_features)] == [
        6,
        7,
        7,
    ]
    images.close()


@pytest.mark.parametrize("algo", BY_NETWORK)
def test_both_forms_agree_on_networks_of_different_widths(algo: str) -> None:
    """Also where one of the networks has no hidden layer, so that only the others know the activation."""
    states = []
    for engine in ("auto", "autograd"):
        config = tiny_config(algo, hidden_sizes=BY_NETWORK[algo], activation="relu", engine=engine)
        run = advanced(started(config), 1)
        assert run.algorithm.engine == ("mlp" if engine == "auto" else "autograd")
        states.append(run.algorithm.policy.policy_state())
        run.close()
    for name, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][name], rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        *((algo, {"hidden_sizes": sizes}) for algo, sizes in BY_NETWORK.items()),
        ("sac", SHARED | {"activation": "gelu"}),
        ("iql", SHARED),
        ("ppo", {"share_encoder": False, "hidden_sizes": {"encoder": [5]}}),
        ("ppg", {"share_encoder": True, "hidden_sizes": {"encoder": [5]}}),
        ("td3", SHARED),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_a_run_resumes_to_the_bit(algo: str, settings: dict[str, Any]) -> None:
    config = tiny_config(algo, **settings)
    straight = advanced(started(config))
    resumed = build(config)
    resumed.load(straight.snapshot())
    found = checkpoint_differences(advanced(straight).snapshot(), advanced(resumed).snapshot())
    straight.close()
    resumed.close()
    assert not found


@pytest.mark.parametrize(
    ("algo", "given", "wanted"),
    [
        ("ppo", {"pi": [6], "vf": [7]}, {"policy": [6], "value": [7]}),
        ("ppo", {"actor": [6], "critic": [7]}, {"policy": [6], "value": [7]}),
        ("ppo", {"shared": [5]}, {"policy": [64, 64], "value": [64, 64], "encoder": [5]}),
        ("sac", {"pi": [6], "qf": [7]}, {"policy": [6], "critic": [7]}),
        ("sac", {"policy": [6], "value": [7]}, {"policy": [6], "critic": [7]}),
        ("td3_bc", {"actor": [6]}, {"policy": [6], "critic": [256, 256]}),
        ("iql", {"pi": [6], "vf": [7]}, {"policy": [6], "critic": [256, 256], "value": [7]}),
    ],
)
def test_names_that_others_use_are_understood(algo: str, given: Any, wanted: Any) -> None:
    config = load_config({"algo": algo, "env_id": "Pendulum-v1", "hidden_sizes": given})
    assert config.flat()["hidden_sizes"] == wanted
    assert load_config(config.flat()) == config


@pytest.mark.parametrize(
    ("below", "override", "wanted"),
    [
        ([32, 32], "hidden_sizes.policy=[8]", {"policy": [8], "value": [32, 32]}),
        ({"policy": [9], "value": [7]}, "hidden_sizes.pi=[8]", {"policy": [8], "value": [7]}),
        ({"policy": [9], "value": [7]}, "hidden_sizes=[8]", [8]),
        ([32], "hidden_sizes={pi: [8], vf: []}", {"policy": [8], "value": []}),
    ],
)
def test_an_override_of_one_network_leaves_the_others(below: Any, override: str, wanted: Any) -> None:
    assert load_config(PPO_CARTPOLE | {"hidden_sizes": below}, [override]).flat()["hidden_sizes"] == wanted


@pytest.mark.parametrize(
    ("algo", "settings", "line"),
    [
        (
            "ppo",
            {"hidden_sizes": {"qf": [6]}},
            "hidden_sizes: there is no network 'qf'; there are policy (or pi, actor), value (or vf, critic), encoder "
            "(or shared)",
        ),
        (
            "muzero",
            {"hidden_sizes": {"policy": [6]}},
            "hidden_sizes: there is no network 'policy'; there are representation, dynamics, prediction",
        ),
        (
            "ppo",
            {"hidden_sizes": {"pi": [6], "policy": [5]}},
            "hidden_sizes: policy and pi are two names of one network; give one of them",
        ),
        ("ppo", {"hidden_sizes": {"pi": 6}}, "hidden_sizes.policy=6: must be a list"),
        ("ppo", {"hidden_sizes": {"pi": [0]}}, "hidden_sizes.policy.0=0: must be above 0"),
        ("ppo", {"hidden_sizes": [0]}, "hidden_sizes.0=0: must be above 0"),
        (
            "dqn",
            {"hidden_sizes": {"qf": [6]}},
            "hidden_sizes: must be a list: there is one network, and no other that could have widths of its own",
        ),
        (
            "cql",
            {"hidden_sizes": {"policy": [6]}, "env": {"actions": "discrete"}},
            "hidden_sizes={'policy': [6], 'critic': [16]}: discrete actions have one network here; give a list",
        ),
        (
            "cql",
            {"share_encoder": True, "env": {"actions": "discrete"}},
            "share_encoder=True: discrete actions have one network here, which has one encoder",
        ),
        ("bc", {"share_encoder": True}, "share_encoder: bc has none: there is one network, which has one encoder"),
        (
            "muzero",
            {"share_encoder": False},
            "share_encoder: muzero has none: policy and value are read off one latent state, so they share all that "
            "makes it",
        ),
        (
            "dreamer",
            {"hidden_sizes": [6]},
            "hidden_sizes: dreamer has none: its layers are those of the paper; size, units and hidden say how wide "
            "they are",
        ),
        (
            "dreamer",
            {"activation": "relu"},
            "activation: dreamer has none: its layers are normalised ones with silu, as in the paper",
        ),
        (
            "sac",
            {"share_encoder": True},
            "share_encoder=True: vectors have no encoder to share; give it hidden layers, as in "
            "hidden_sizes.encoder=[256], or leave share_encoder out",
        ),
        (
            "sac",
            {"share_encoder": True, "model": "rl_training.testing:LinearSoftActorCritic"},
            "share_encoder=True: needs the default network (model=auto), not "
            "'rl_training.testing:LinearSoftActorCritic'",
        ),
        (
            "recurrent_ppo",
            {"share_encoder": False, "shared_core": True, "env": IMAGES},
            "share_encoder=False, shared_core=True: one core reads one encoder; change one of the two",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_what_cannot_hold_is_refused_in_one_line(algo: str, settings: dict[str, Any], line: str) -> None:
    assert problem_of(algo, **settings) == line


def test_a_checkpoint_knows_its_networks(tmp_path: Path) -> None:
    """Training, evaluation, continuing and loading go by the config that is saved with the weights."""
    sizes = {"policy": [6], "value": [7], "encoder": [5]}
    settings = PPO_CARTPOLE | {"num_envs": 1, "n_steps": 8, "batch_size": 8, "hidden_sizes": sizes, "seed": 1}
    small = settings | {"eval_episodes": 1, "activation": "mish", "share_encoder": False}
    train(small | {"total_timesteps": 8}, run_dir=tmp_path / "run")
    assert evaluate_checkpoint(tmp_path / "run", num_episodes=1)["eval_return_mean"] > 0.0
    agent = PPO.load(tmp_path / "run")
    with pytest.raises(UserError, match=r"hidden_sizes=.*start a new run"):
        PPO.load(tmp_path / "run", hidden_sizes={"policy": [16]})
    agent.learn(8)
    straight = PPO("CartPole-v1", **{key: small[key] for key in small.keys() - PPO_CARTPOLE.keys()}).learn(16)
    saved = (read_checkpoint(one.save(tmp_path / name)) for name, one in (("again", agent), ("straight", straight)))
    assert not differences(*(checkpoint.policy for checkpoint in saved))


def test_more_memory_than_there_is_names_the_widest_network() -> None:
    line = problem_of("ppo", hidden_sizes={"policy": [10**6, 10**6], "value": [8]})
    assert line.startswith("hidden_sizes={'policy': [1000000, 1000000], 'value': [8]}: needs at least")


# Encoders.


def test_on_policy_encoders_are_shared_or_not() -> None:
    shared, apart = (build(tiny_config("ppo", IMAGES, share_encoder=share)) for share in (True, False))
    assert shared.algorithm.network.value_encoder is None
    network = apart.algorithm.network
    obs = torch.randint(0, 255, (2, *apart.info.obs_shape), dtype=torch.uint8)
    network(obs)[1].sum().backward()
    touched = {name.split(".")[0] for name, leaf in network.named_parameters() if leaf.grad.abs().sum() > 0}
    assert touched == {"value_encoder", "heads"}
    shared.close()
    apart.close()


@pytest.mark.parametrize("algo", ["sac", "td3", "iql", "awac", "cql"])
def test_critics_train_the_encoder_and_the_actor_reads_it(algo: str) -> None:
    run = started(tiny_config(algo, **SHARED))
    found = networks_of(run)
    actor = getattr(found["actor"], "network", found["actor"])
    readers = [module.encoder for module in (actor, found.get("value")) if module is not None]
    first = [parameter.clone() for parameter in readers[0].parameters()]
    for _ in range(2):
        run.advance()
        for reader in readers:
            for own, learned in zip(reader.parameters(), found["critic"].encoder.parameters(), strict=True):
                assert torch.equal(own, learned)
    assert not torch.equal(first[0], next(readers[0].parameters()))
    run.close()


def test_the_actor_leaves_a_shared_encoder_alone() -> None:
    """Its optimiser has no gradient of it, so that nothing but the critics' step moves it."""
    run = started(tiny_config("sac", **SHARED))
    learner = run.algorithm.learners["actor"]
    advanced(run)
    flat = dict(zip((name for name, _ in learner.module.named_parameters()), learner.weights.sizes, strict=True))
    encoder = sum(size for name, size in flat.items() if name.startswith("encoder."))
    assert encoder == sum(parameter.numel() for parameter in learner.module.encoder.parameters())
    assert learner.optimizer.moment[:encoder].count_nonzero() == 0
    assert learner.optimizer.moment[encoder:].count_nonzero() > 0
    run.close()


def test_values_of_ppg_train_a_shared_encoder_in_auxiliary_phases_only() -> None:
    run = build(tiny_config("ppg", share_encoder=True, hidden_sizes={"encoder": [5], "policy": [6], "value": [6]}))
    network = run.algorithm.network
    assert isinstance(network, PhasicActorCritic)
    obs = torch.ones(3, *run.info.obs_shape)
    leaves = list(network.policy_encoder.parameters())
    (value,) = torch.autograd.grad(network(obs)[1].sum(), leaves[:1], allow_unused=True)
    (taught,) = torch.autograd.grad(network.auxiliary(obs)[1].sum(), leaves[:1])
    assert value is None
    assert taught.count_nonzero() > 0
    run.close()


@pytest.mark.parametrize("algo", ["ppo", "recurrent_ppo", "ppg", "sac"])
def test_encoders_of_images_train_shared_and_apart(algo: str) -> None:
    for share in (True, False):
        run = started(tiny_config(algo, IMAGES, share_encoder=share))
        before = {name: tensor.clone() for name, tensor in run.algorithm.policy.policy_state().items()}
        advanced(run)
        assert differences(before, run.algorithm.policy.policy_state())
        run.close()


# Activations.


def test_every_activation_has_a_name_and_the_fast_ones_are_those_of_the_engine() -> None:
    assert set(get_args(ActivationName)) == set(ACTIVATIONS)
    assert {ACTIVATIONS[name] for name in FAST} == set(KINDS)
    for name, kind in ACTIVATIONS.items():
        layer = MLP(3, [4], name, orthogonal=False)
        assert isinstance(layer[1], kind)
        assert layer(torch.ones(2, 3)).isfinite().all()
        assert not list(kind().parameters())


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("swish", "silu"), ("LeakyReLU", "leaky_relu"), ("torch.nn.GELU", "gelu"), (nn.ELU, "elu"), ("Tanh", "tanh")],
)
def test_activations_go_by_the_names_of_torch_too(given: Any, wanted: str) -> None:
    assert load_config(PPO_CARTPOLE, activation=given).model.activation == wanted


def test_an_unknown_activation_is_refused() -> None:
    for given, shown in (("rrelu", "'rrelu'"), (nn.RReLU, "'RReLU'"), (3, "3"), (nn.ReLU(), "ReLU()")):
        assert problem_of("ppo", activation=given).startswith(f"activation={shown}: must be one of tanh, relu, silu")


@pytest.mark.parametrize("algo", ["ppo", "recurrent_ppo", "dqn", "sac", "bc", "muzero"])
def test_an_activation_without_a_fast_path_is_trained_by_autograd_and_said(
    algo: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for activation, engine in (("gelu", "autograd"), ("silu", "mlp")):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="rl_training"):
            config = tiny_config(algo, activation=activation, total_timesteps=12)
            train(config, run_dir=tmp_path / activation)
        said = [line for line in caplog.messages if "autograd" in line]
        assert build(config).algorithm.engine == engine
        assert said == (
            []
            if engine == "mlp"
            else [
                "activation=gelu: is computed by autograd, which is slower for small networks on a CPU; tanh, relu, "
                "silu have a fast path"
            ]
        )


def test_layers_that_are_shared_are_said_to_be_slower(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="rl_training"):
        train(tiny_config("ppo", hidden_sizes={"encoder": [5]}, total_timesteps=12), run_dir=tmp_path / "run")
    assert [line.split(":")[0] for line in caplog.messages if "autograd" in line] == ["hidden_sizes.encoder=[5]"]


def test_describe_and_doctor_tell_of_the_fast_path() -> None:
    shown = CliRunner().invoke(cli, ["describe", "ppo"]).output
    assert "MLPs with tanh, relu, silu have a fast path on a CPU; others are computed by autograd" in shown
    assert "share_encoder" in shown
    assert "a mapping with one for each of policy, value, encoder" in shown
    assert any(finding.subject == "fast path" for finding in check_machine())
