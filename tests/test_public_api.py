"""Algorithms as objects, in the manner that users of Stable-Baselines3 know, and the functions that train them."""

from __future__ import annotations

import functools
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rl_training
from conformance import chosen, known_settings
from rl_training import (
    A2C,
    APPO,
    AWAC,
    BC,
    CQL,
    DDPG,
    DQN,
    GAIL,
    IMPALA,
    IQL,
    PPG,
    PPO,
    REDQ,
    SAC,
    TD3,
    TD3BC,
    TQC,
    TRPO,
    Callback,
    Dreamer,
    EfficientZero,
    GumbelMuZero,
    MuZero,
    RecurrentPPO,
    ScaleZero,
    UserError,
    evaluate_checkpoint,
    load_config,
    resume_training,
    train,
)
from rl_training.algorithms.parts.actor_critic_policy import build_actor_critic
from rl_training.api import Interrupted
from rl_training.experiment.registry import REGISTRY
from rl_training.runtime.a2c_trainer import train_a2c
from rl_training.runtime.checkpoints.catalogue import find_checkpoint
from rl_training.runtime.checkpoints.checkpoint import read_checkpoint
from rl_training.runtime.evaluations import Evaluation
from rl_training.runtime.ppo_trainer import train_ppo
from run_helpers import Recording, Walk, differences, latest, metrics_rows, tiny, training_differences

SMALL: dict[str, Any] = {
    "num_envs": 2,
    "n_steps": 8,
    "hidden_sizes": [8],
    "eval_episodes": 2,
    "vectorization": "sync",
}
SMALL_PPO = SMALL | {"batch_size": 8, "n_epochs": 2}
SMALL_OFF_POLICY: dict[str, Any] = {
    "num_envs": 2,
    "hidden_sizes": [8],
    "eval_episodes": 2,
    "vectorization": "sync",
    "time_limit": 20,
    "batch_size": 8,
    "buffer_size": 100,
    "learning_starts": 16,
    "train_every": 16,
    "updates_per_step": 0.25,
}
SMALL_OFFLINE: dict[str, Any] = {
    "dataset": "made_up_data:noise",
    "hidden_sizes": [8],
    "eval_episodes": 2,
    "vectorization": "sync",
    "time_limit": 20,
    "batch_size": 8,
    "bc_baseline_updates": 1,
}
SMALL_PLANNING: dict[str, Any] = SMALL_OFF_POLICY | {"num_simulations": 4, "unroll_steps": 2, "latent_size": 8}
SMALL_WORLD: dict[str, Any] = SMALL_OFF_POLICY | {
    "num_simulations": 4,
    "unroll_steps": 2,
    "width": 16,
    "layers": 1,
    "expert_size": 8,
}
SMALL_DREAMS: dict[str, Any] = {
    **{key: value for key, value in SMALL_OFF_POLICY.items() if key != "hidden_sizes"},
    "size": "xxs",
    "batch_length": 4,
    "imagination_horizon": 3,
    "imagination_starts": 8,
    "warmup_updates": 2,
}
# Each class on what it can work with, and how many numbers are seen there.
CLASSES = {
    PPO: SMALL_PPO,
    A2C: SMALL,
    TRPO: SMALL | {"batch_size": 8},
    PPG: SMALL_PPO | {"aux_interval": 2},
    RecurrentPPO: SMALL_PPO | {"rnn_hidden_size": 8},
    GAIL: SMALL_PPO | {"dataset": "made_up_data:noise"},
    IMPALA: SMALL,
    APPO: SMALL_PPO | {"target_update_interval": 2},
    DQN: SMALL_OFF_POLICY | {"target_update_interval": 3, "epsilon": 0.3},
    DDPG: SMALL_OFF_POLICY,
    TD3: SMALL_OFF_POLICY,
    SAC: SMALL_OFF_POLICY,
    REDQ: SMALL_OFF_POLICY | {"policy_delay": 2, "n_critics": 3},
    TQC: SMALL_OFF_POLICY | {"n_quantiles": 5},
    BC: SMALL_OFFLINE,
    AWAC: SMALL_OFFLINE,
    IQL: SMALL_OFFLINE,
    CQL: SMALL_OFFLINE | {"cql_samples": 2},
    TD3BC: SMALL_OFFLINE,
    MuZero: SMALL_PLANNING | {"temperature": 0.5},
    GumbelMuZero: SMALL_PLANNING,
    EfficientZero: SMALL_PLANNING | {"prefix_size": 8, "projection_size": 8, "temperature": 0.5},
    ScaleZero: SMALL_WORLD,
    Dreamer: SMALL_DREAMS,
}
SHOWN = {"CartPole-v1": 4, "Pendulum-v1": 3}
AGENTS = [
    (kind, env_id, settings)
    for kind, settings in CLASSES.items()
    for action, env_id in (("discrete", "CartPole-v1"), ("continuous", "Pendulum-v1"))
    if action in REGISTRY[kind.algo].capabilities.actions
]
assert [kind.algo for kind in CLASSES] == list(REGISTRY)
EVERY_AGENT = pytest.mark.parametrize(("kind", "env_id", "settings"), AGENTS)


def state_of(agent: Any) -> Any:
    """Everything that the agent is made of, as a checkpoint that later learning does not change."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return read_checkpoint(agent.save(Path(folder) / "state"))


# learn


@EVERY_AGENT
def test_learn(kind: type[Any], env_id: str, settings: dict[str, Any]) -> None:
    agent = kind(env_id, **settings, learning_rate=0.01)
    before = state_of(agent)
    assert agent.learn(96) is agent
    assert agent.num_timesteps == 96
    assert differences(before.policy, state_of(agent).policy)
    assert agent.metrics["learning_rate"] == 0.01
    assert agent.metrics["step"] == 96.0
    assert agent.result.stop_reason == "completed"
    assert agent.result["eval_return_mean"] == agent.metrics["eval_return_mean"]
    agent.close()


def test_learning_without_output_dir_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    agent = PPO("CartPole-v1", **SMALL_PPO).learn(32)
    assert list(tmp_path.iterdir()) == []
    assert agent.result is not None
    assert agent.result.run_dir is None
    assert agent.result.checkpoint is None
    agent.close()


def test_learning_with_output_dir_makes_a_run(tmp_path: Path) -> None:
    agent = PPO("CartPole-v1", **SMALL_PPO, output_dir=str(tmp_path), log_interval=16, seed=2)
    assert list(tmp_path.iterdir()) == []
    agent.learn(64)
    (run_dir,) = tmp_path.iterdir()
    assert agent.result is not None
    assert agent.result.run_dir == run_dir
    agent.learn(64)
    assert list(tmp_path.iterdir()) == [run_dir]
    assert [row["step"] for row in metrics_rows(run_dir)] == [16, 32, 48, 64, 80, 96, 112, 128]
    agent.close()
    # The run goes on by other means too.
    assert resume_training(run_dir, total_timesteps=160)["step"] == 160
    assert evaluate_checkpoint(run_dir)["step"] == 160


@EVERY_AGENT
def test_an_agent_learns_what_train_learns(
    kind: type[Any], env_id: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    agent = kind(env_id, **settings, learning_rate_schedule="linear").learn(96)
    config = settings | {"algo": kind.algo, "env_id": env_id, "total_timesteps": 96}
    train(config | {"learning_rate_schedule": "linear"}, run_dir=tmp_path / "run")
    assert training_differences(state_of(agent), latest(tmp_path / "run")) == []
    assert agent.metrics["learning_rate"] == 0.0
    agent.close()


@EVERY_AGENT
def test_a_second_learn_continues(kind: type[Any], env_id: str, settings: dict[str, Any]) -> None:
    once = kind(env_id, **settings).learn(128)
    twice = kind(env_id, **settings).learn(64).learn(64)
    assert twice.num_timesteps == 128
    assert training_differences(state_of(once), state_of(twice)) == []
    once.close()
    twice.close()


def test_schedules_run_over_the_first_learn_and_hold_their_end() -> None:
    agent = PPO("CartPole-v1", **SMALL_PPO, ent_coef=0.4, ent_coef_schedule=0.2)
    assert agent.learn(64).metrics["ent_coef"] == 0.2
    assert agent.learn(64).metrics["ent_coef"] == 0.2
    agent.close()
    stretched = PPO("CartPole-v1", **SMALL_PPO, ent_coef=0.4, ent_coef_schedule="linear", stretch_schedules=True)
    values: list[float] = []

    class Notes(Callback):
        def on_step(self, run: Any, metrics: dict[str, float]) -> None:
            values.append(metrics["ent_coef"])

    stretched.learn(64).learn(64, callback=Notes())
    assert values == pytest.approx([0.4 * (1 - step / 128) for step in (80, 96, 112, 128)])
    stretched.close()


class Notes(Callback):
    """Does nothing."""


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda agent: agent.learn("100"), "total_timesteps='100': must be a whole number of at least 1"),
        (lambda agent: agent.learn(-5), "total_timesteps=-5: must be a whole number"),
        (lambda agent: agent.learn(True), "total_timesteps=True: must be a whole number"),
        (lambda agent: agent.learn(32, len), "callback=len: must be an instance of a subclass of"),
        (lambda agent: agent.learn(32, Notes), r"callback=Notes: is a class; pass an instance of it: Notes\("),
        (lambda agent: agent.learn(32, [print]), "callback=print: must be an instance"),
        (lambda agent: agent.evaluate(0), "num_episodes=0: must be a whole number of at least 1"),
        (lambda agent: agent.evaluate(-1), "num_episodes=-1: must be"),
        (lambda agent: agent.evaluate(2.5), "num_episodes=2.5: must be"),
        (lambda agent: agent.predict("abc"), r"obs: is a str, not numbers of shape \(4,\)"),
        (lambda agent: agent.predict((np.zeros(4), {})), "obs: is what reset returns.*pass the first"),
        (lambda agent: agent.predict(np.zeros(4), np.zeros((2, 3))), "state: belongs to 2 observations, but 1 are"),
        (lambda agent: agent.predict(np.zeros((2, 4)), (np.zeros((3, 1)), 0)), "state: belongs to 3 observations"),
        (lambda agent: agent.predict(np.zeros(4), action_masks=np.ones(2)), "action_masks: the agent was trained with"),
    ],
)
def test_a_wrong_argument_is_one_message_and_changes_nothing(use: Any, words: str) -> None:
    agent = PPO("CartPole-v1", **SMALL_PPO)
    before = state_of(agent)
    with pytest.raises(UserError, match=f"^{words}"):
        use(agent)
    assert training_differences(before, state_of(agent)) == []
    assert agent.config.run.total_timesteps == before.meta["config"]["total_timesteps"]
    agent.close()


def test_whole_numbers_may_be_written_as_others_do() -> None:
    agent = PPO("CartPole-v1", **SMALL_PPO).learn(3.2e1, None)  # type: ignore[arg-type]
    assert agent.learn(np.int64(16)).num_timesteps == 48  # type: ignore[arg-type]
    assert len(agent.evaluate(np.int32(2)).returns) == 2  # type: ignore[arg-type]
    agent.close()


def test_a_policys_name_in_front_is_refused() -> None:
    with pytest.raises(UserError, match=r"PPO\('MlpPolicy', 'CartPole-v1', \.\.\.\): takes only the environment"):
        PPO("MlpPolicy", "CartPole-v1")


def test_callbacks_are_for_one_learn() -> None:
    agent = PPO("CartPole-v1", **SMALL_PPO, eval_interval=16)
    first, second = Recording(), Recording()
    agent.learn(32, callback=first)
    agent.learn(32, [second])
    assert first.at("step") == [16, 32]
    assert second.at("step") == [48, 64]
    assert first.at("eval") == [16, 32]
    agent.close()


def test_callbacks_of_a_learn_come_before_logging_and_saving() -> None:
    run = PPO("CartPole-v1", **SMALL_PPO)._run
    run.callbacks.append(Notes())  # wherever the run's own stand
    before = list(run.callbacks)

    def kinds() -> list[str]:
        return [type(callback).__name__ for callback in run.callbacks]

    with run.callbacks.joined_by([Recording()]):
        assert kinds() == ["Evaluate", "Notes", "Recording", "Log", "Save"]
    assert run.callbacks == before
    run.close()


def test_a_callback_stops_one_learn_and_the_next_goes_on() -> None:
    class Stops(Callback):
        def on_step(self, run: Any, metrics: dict[str, float]) -> None:
            run.request_stop("enough")

    agent = PPO("CartPole-v1", **SMALL_PPO)
    agent.learn(320, Stops())
    assert agent.num_timesteps == 16
    assert agent.result is not None
    assert agent.result.stop_reason == "enough"
    assert agent.learn(32).num_timesteps == 48
    agent.close()


def test_a_progress_bar_says_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    agent = PPO("CartPole-v1", **SMALL_PPO).learn(32, progress_bar=True)
    assert "step 32: evaluation return" in capsys.readouterr().err
    agent.learn(32)
    assert capsys.readouterr().err == ""
    agent.close()


def test_an_interrupted_learn_can_be_gone_on_with() -> None:
    class Interrupts(Callback):
        def on_step(self, run: Any, metrics: dict[str, float]) -> None:
            signal.raise_signal(signal.SIGINT)

    agent = PPO("CartPole-v1", **SMALL_PPO)
    with pytest.raises(Interrupted) as stop:
        agent.learn(128, Interrupts())
    assert isinstance(stop.value, KeyboardInterrupt)
    assert stop.value.result.stop_reason == "interrupted"
    assert agent.num_timesteps == 16
    agent.learn(112)
    whole = PPO("CartPole-v1", **SMALL_PPO).learn(128)
    assert training_differences(state_of(whole), state_of(agent)) == []
    agent.close()
    whole.close()


# predict and evaluate


@EVERY_AGENT
def test_predict_one_observation_or_a_batch(kind: type[Any], env_id: str, settings: dict[str, Any]) -> None:
    agent, size = kind(env_id, **settings), SHOWN[env_id]
    action, state = agent.predict(np.zeros(size, np.float32))
    actions, _ = agent.predict(np.zeros((7, size)).tolist())
    agent.close()
    # A policy that plans counts the moves of an episode.
    entry = REGISTRY[kind.algo]
    assert (state is None) != (entry.capabilities.recurrent is True or entry.family in ("planning", "multi_task"))
    if env_id == "CartPole-v1":
        assert np.shape(action) == ()
        assert actions.shape == (7,)
        assert {int(action), *actions.tolist()} <= {0, 1}
    else:
        assert action.shape == (1,)
        assert actions.shape == (7, 1)
        assert actions.dtype == np.float32
        assert (np.abs(actions) <= 2.0).all()


class Thermostat(Walk):
    """Takes degrees from 10 to 40."""

    action_space: Any = gym.spaces.Box(10.0, 40.0, (1,), np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        return *super().step(1)[:4], {}  # type: ignore[return-value]


@pytest.mark.parametrize(
    "kind", [kind for kind in CLASSES if REGISTRY[kind.algo].capabilities.actions[0] == "continuous"]
)
def test_predictions_are_in_the_units_of_asymmetric_bounds(kind: type[Any]) -> None:
    agent = kind(Thermostat, **CLASSES[kind])
    obs = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    degrees, _ = agent.predict(obs, deterministic=True)
    policy = chosen(agent._run.algorithm, obs, explore=False).action
    np.testing.assert_allclose(degrees, 25.0 + 15.0 * policy, rtol=1e-5)
    wild = np.concatenate([agent.predict(obs)[0] for _ in range(20)])
    assert wild.min() >= 10.0
    assert wild.max() <= 40.0
    agent.learn(64)
    agent.close()


def test_predictions_are_for_the_environment(tmp_path: Path) -> None:
    """What predict gives is what the environment takes: a whole episode by hand is the evaluation's."""
    agent = PPO("Pendulum-v1", **SMALL_PPO, normalize_obs=True, log_std_init=1.0).learn(64)
    from rl_training.runtime.evaluate import episode_seeds

    env = gym.make("Pendulum-v1")
    obs, _ = env.reset(seed=episode_seeds(1)[0])
    total, over = 0.0, False
    while not over:
        action, _ = agent.predict(obs, deterministic=True)
        obs, reward, terminated, truncated, _ = env.step(action)
        total, over = total + float(reward), terminated or truncated
    env.close()
    assert agent.evaluate(1).returns[0] == pytest.approx(total, rel=1e-9)
    agent.close()


def test_deterministic_predictions_repeat_and_others_vary() -> None:
    agent = PPO("Pendulum-v1", **SMALL_PPO)
    obs = np.ones(3, np.float32)
    certain = {float(agent.predict(obs, deterministic=True)[0][0]) for _ in range(5)}
    varied = {float(agent.predict(obs)[0][0]) for _ in range(5)}
    assert len(certain) == 1
    assert len(varied) == 5
    agent.close()


@EVERY_AGENT
def test_predicting_and_judging_do_not_disturb_training(kind: type[Any], env_id: str, settings: dict[str, Any]) -> None:
    quiet = kind(env_id, **settings, normalize_obs=True).learn(64)
    busy = kind(env_id, **settings, normalize_obs=True)

    class Predicts(Callback):
        def on_step(self, run: Any, metrics: dict[str, float]) -> None:
            busy.predict(np.ones(SHOWN[env_id]))
            busy.evaluate(3)

    for _ in range(3):
        busy.predict(np.ones((4, SHOWN[env_id])))
    busy.evaluate(5)
    busy.learn(64, Predicts())
    assert training_differences(state_of(quiet), state_of(busy)) == []
    quiet.close()
    busy.close()


@pytest.mark.parametrize("shape", [(3,), (4, 1), (2, 3, 4), (), (2, 5)])
def test_an_observation_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    agent = PPO("CartPole-v1", **SMALL_PPO)
    with pytest.raises(UserError, match=r"obs: has shape .*; must be \(4,\), or a batch"):
        agent.predict(np.zeros(shape))
    agent.close()


class MaskedWalk(Walk):
    """Three choices, of which the last is forbidden."""

    action_space: Any = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed)[0], {"action_mask": np.array([1, 1, 0])}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return *super().step(action)[:4], {"action_mask": np.array([1, 1, 0])}  # type: ignore[return-value]


def test_masks_of_a_prediction_are_checked() -> None:
    agent = PPO(MaskedWalk, **SMALL_PPO)
    both = np.zeros((2, 2))
    for only in range(3):
        assert agent.predict(np.zeros(2), action_masks=np.eye(3)[only])[0] == only
    assert agent.predict(both, action_masks=np.eye(3)[1:])[0].tolist() == [1, 2]
    for masks, words in (
        (np.ones(3), "has 1, 1, 1 entries; must have 3 for each of 2 observations"),
        (np.ones((2, 4)), "has 4, 4 entries; must have 3"),
        (np.ones((1, 3)), "has 3 entries; must have 3 for each of 2"),
        (np.array([[1, 0, 0], [0, 0, 0]]), "allows no action at all"),
    ):
        with pytest.raises(UserError, match=f"^action_masks: {words}"):
            agent.predict(both, action_masks=masks)
    with pytest.raises(UserError, match="has 2 entries; must have 3 entries"):
        agent.predict(np.zeros(2), action_masks=np.ones(2))
    agent.close()


class TwiceMaskedWalk(MaskedWalk):
    """Two choices at once, with a mask for each."""

    action_space: Any = gym.spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed)[0], {"action_mask": (np.ones(2), np.ones(3))}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return *super().step(action[0])[:4], {"action_mask": (np.ones(2), np.ones(3))}  # type: ignore[return-value]


def test_masks_of_a_prediction_may_be_given_as_the_environment_gives_them() -> None:
    agent = PPO(TwiceMaskedWalk, **SMALL_PPO)
    last, first = (np.array([0, 1]), np.array([0, 0, 1])), (np.array([1, 0]), np.array([1, 0, 0]))
    assert agent.predict(np.zeros(2), action_masks=last)[0].tolist() == [1, 2]
    assert agent.predict(np.zeros((2, 2)), action_masks=[last, first])[0].tolist() == [[1, 2], [0, 0]]
    with pytest.raises(UserError, match="allows no action at all"):
        agent.predict(np.zeros(2), action_masks=(np.ones(2), np.zeros(3)))
    agent.close()


def test_a_prediction_that_fails_leaves_training_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = PPO("CartPole-v1", **SMALL_PPO).learn(32)
    failing = PPO("CartPole-v1", **SMALL_PPO)
    act = failing._run.algorithm.policy.act

    def fails(*arguments: Any, **keywords: Any) -> Any:
        act(*arguments, **keywords)
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(failing._run.algorithm.policy, "act", fails)
        with pytest.raises(ZeroDivisionError):
            failing.predict(np.zeros(4))
    assert training_differences(state_of(quiet), state_of(failing.learn(32))) == []
    quiet.close()
    failing.close()


def drawing_network(info: Any, config: Any) -> torch.nn.Module:
    """A network that draws from torch's global generator whenever it is asked."""
    network = build_actor_critic(info, config)
    network.register_forward_hook(lambda *_: drawn.append(float(torch.rand(1))))
    return network


drawn: list[float] = []


def test_a_network_that_draws_leaves_the_global_generators_as_they_were_when_it_predicts() -> None:
    agent = PPO("CartPole-v1", **SMALL_PPO, model="test_public_api:drawing_network", engine="autograd")
    drawn.clear()
    before = torch.get_rng_state()
    agent.predict(np.zeros(4))
    assert len(drawn) == 1
    assert torch.equal(torch.get_rng_state(), before)
    agent.close()


def test_evaluate_gives_returns_and_lengths() -> None:
    agent = PPO("CartPole-v1", **SMALL_PPO).learn(64)
    judged = agent.evaluate(20)
    assert isinstance(judged, Evaluation)
    assert len(judged.returns) == len(judged.lengths) == 20
    assert judged.mean == pytest.approx(np.mean(judged.returns))
    assert judged.std == pytest.approx(np.std(judged.returns))
    assert judged.returns == tuple(float(length) for length in judged.lengths), "CartPole gives 1 for every step"
    assert agent.evaluate(20) == judged
    assert agent.evaluate(3).returns == judged.returns[:3], "the same episodes, however many are asked for"
    assert len(agent.evaluate().returns) == 100
    agent.close()


# save and load


@EVERY_AGENT
def test_a_loaded_agent_learns_as_if_it_had_never_been_saved(
    kind: type[Any], env_id: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    active = {"normalize_obs": True, "normalize_reward": True, "n_step": 2, "prioritized": True}
    settings = settings | known_settings(kind.algo, active) | {"learning_rate_schedule": "linear"}
    stayed = kind(env_id, **settings).learn(64)
    path = stayed.save(tmp_path / "agent")
    assert path == tmp_path / "agent"
    loaded = kind.load(path)
    assert loaded.num_timesteps == 64
    assert loaded.config == stayed.config
    obs = np.ones((3, SHOWN[env_id]))
    np.testing.assert_array_equal(
        loaded.predict(obs, deterministic=True)[0], stayed.predict(obs, deterministic=True)[0]
    )
    assert training_differences(state_of(stayed.learn(64)), state_of(loaded.learn(64))) == []
    assert loaded.metrics["learning_rate"] == stayed.metrics["learning_rate"]
    stayed.close()
    loaded.close()


def test_a_loaded_agent_explores_as_it_did_when_it_was_saved(tmp_path: Path) -> None:
    """Its schedule has ended: no action is random any more, though the config begins with nothing but random ones."""
    small = {"hidden_sizes": [8], "learning_starts": 8, "buffer_size": 99, "batch_size": 32}
    schedule = {"type": "linear", "end": 0.0, "steps": 40}
    agent = DQN("CartPole-v1", epsilon=1.0, epsilon_schedule=schedule, **small).learn(60)
    loaded = DQN.load(agent.save(tmp_path / "agent"))
    obs = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    np.testing.assert_array_equal(loaded.predict(obs)[0], loaded.predict(obs, deterministic=True)[0])
    agent.close()
    loaded.close()


def test_an_agent_saved_before_it_learned_loads_as_fresh(tmp_path: Path) -> None:
    stayed = PPO("CartPole-v1", **SMALL_PPO, learning_rate_schedule="linear")
    loaded = PPO.load(stayed.save(tmp_path / "agent"))
    stayed.learn(64)
    loaded.learn(64)
    assert stayed.metrics["learning_rate"] == loaded.metrics["learning_rate"] == 0.0
    assert training_differences(state_of(stayed), state_of(loaded)) == []
    stayed.close()
    loaded.close()


def test_saving_over_an_agent_and_not_over_anything_else(tmp_path: Path) -> None:
    agent = PPO("CartPole-v1", **SMALL_PPO)
    agent.save(tmp_path / "agent")
    agent.learn(32).save(tmp_path / "agent")
    loaded = PPO.load(tmp_path / "agent")
    assert loaded.num_timesteps == 32
    loaded.close()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("mine")
    with pytest.raises(UserError, match="exists and is not a checkpoint"):
        agent.save(tmp_path / "precious")
    assert (tmp_path / "precious" / "file").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agent", "precious"]
    agent.close()


def test_loading_by_the_wrong_class_is_refused(tmp_path: Path) -> None:
    agent = A2C("CartPole-v1", **SMALL)
    agent.save(tmp_path / "agent")
    agent.close()
    with pytest.raises(UserError, match="was trained by a2c, not by ppo"):
        PPO.load(tmp_path / "agent")
    loaded = rl_training.Agent.load(tmp_path / "agent")
    assert loaded.config.run.algo == "a2c"
    loaded.close()


def test_loading_from_a_runs_folder_and_with_other_settings(tmp_path: Path) -> None:
    train(tiny(), run_dir=tmp_path / "run")
    loaded = PPO.load(tmp_path / "run", learning_rate=0.5)
    assert loaded.num_timesteps == latest(tmp_path / "run").meta["step"]
    assert loaded.learn(24).metrics["learning_rate"] == 0.5
    assert loaded.result is not None
    assert loaded.result.run_dir is None, "nothing is written to the run that it came from"
    assert find_checkpoint(tmp_path / "run").name == f"step_{latest(tmp_path / 'run').meta['step']}"
    loaded.close()
    with pytest.raises(UserError, match=r"hidden_sizes=.*start a new run"):
        PPO.load(tmp_path / "run", hidden_sizes=[16])
    with pytest.raises(UserError, match="did you mean 'learning_rate'"):
        PPO.load(tmp_path / "run", learning_rat=0.5)


def test_a_loaded_agent_writes_a_run_of_its_own_where_it_is_told_to(tmp_path: Path) -> None:
    train(tiny(vectorization="sync"), run_dir=tmp_path / "run")
    loaded = PPO.load(tmp_path / "run", output_dir=str(tmp_path / "runs"))
    loaded.learn(48)
    loaded.close()
    (new,) = (tmp_path / "runs").iterdir()
    assert latest(new).meta["step"] == 288
    assert latest(tmp_path / "run").meta["step"] == 240


# The environment


def named_walk(noise: float = 0.2) -> gym.Env[Any, Any]:
    return gym.wrappers.TimeLimit(Walk(noise), 7)


def test_an_environment_is_an_id_a_function_or_an_instance(tmp_path: Path) -> None:
    by_id = PPO("CartPole-v1", **SMALL_PPO).learn(32)
    instance = gym.make("CartPole-v1")
    by_instance = PPO(instance, **SMALL_PPO).learn(32)
    assert by_instance.config.run.env_id == "CartPole-v1"
    assert training_differences(state_of(by_id), state_of(by_instance)) == []
    by_function = PPO(lambda: gym.make("CartPole-v1"), **SMALL_PPO).learn(32)
    assert training_differences(state_of(by_id), state_of(by_function)) == []
    for agent in (by_id, by_instance, by_function):
        agent.close()
    instance.close()


def test_a_named_function_is_found_again_at_loading(tmp_path: Path) -> None:
    agent = PPO(named_walk, **SMALL_PPO, env_kwargs={"noise": 0.1}).learn(32)
    assert agent.config.run.env_id == "test_public_api:named_walk"
    loaded = PPO.load(agent.save(tmp_path / "agent"))
    assert training_differences(state_of(agent.learn(32)), state_of(loaded.learn(32))) == []
    agent.close()
    loaded.close()


def test_an_unnamed_function_is_given_again_at_loading(tmp_path: Path) -> None:
    agent = PPO(lambda: named_walk(0.3), **SMALL_PPO).learn(32)
    agent.save(tmp_path / "agent")
    with pytest.raises(UserError, match=r"env_id='custom .*<lambda>'"):
        PPO.load(tmp_path / "agent")
    loaded = PPO.load(tmp_path / "agent", env=lambda: named_walk(0.3))
    assert training_differences(state_of(agent.learn(32)), state_of(loaded.learn(32))) == []
    agent.close()
    loaded.close()


class Maker:
    def make(self) -> gym.Env[Any, Any]:
        return named_walk(0.3)

    def __call__(self) -> gym.Env[Any, Any]:
        return named_walk(0.3)


def shadowed() -> gym.Env[Any, Any]:
    return named_walk(0.3)


hidden = shadowed


def shadowed() -> gym.Env[Any, Any]:  # type: ignore[no-redef]
    return named_walk(0.9)


@pytest.mark.parametrize(
    "env",
    [functools.partial(named_walk, 0.3), Maker().make, Maker(), hidden],
    ids=["partial", "method", "object", "old"],
)
def test_a_name_that_would_not_lead_back_is_not_taken(env: Any, tmp_path: Path) -> None:
    agent = PPO(env, **SMALL_PPO).learn(32)
    assert agent.config.run.env_id.startswith("custom ")
    agent.save(tmp_path / "agent")
    with pytest.raises(UserError, match=r"env_id='custom .*pass it again \(env=\)"):
        PPO.load(tmp_path / "agent")
    loaded = PPO.load(tmp_path / "agent", env=env)
    assert loaded.evaluate(2) == agent.evaluate(2)
    agent.close()
    loaded.close()


def test_arguments_and_limits_of_an_instance_are_kept(tmp_path: Path) -> None:
    instance = gym.make("CartPole-v1", max_episode_steps=6, sutton_barto_reward=True)
    agent = PPO(instance, **SMALL_PPO).learn(64)
    instance.close()
    assert agent.metrics["episode_length_mean"] == 6.0
    assert agent.metrics["eval_return_mean"] == 0.0
    loaded = PPO.load(agent.save(tmp_path / "agent"))
    assert loaded.evaluate(2).lengths == (6, 6)
    agent.close()
    loaded.close()


def test_the_wrappers_of_an_instance_are_kept_and_never_lost_silently(tmp_path: Path) -> None:
    def wrapped() -> gym.Env[Any, Any]:
        return gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda reward: 10.0 * float(reward))

    instance = wrapped()
    agent = PPO(instance, **SMALL_PPO).learn(32)
    judged = agent.evaluate(2)
    assert judged.returns == tuple(10.0 * length for length in judged.lengths)
    agent.save(tmp_path / "agent")
    with pytest.raises(UserError, match=r"env_id='custom CartPole-v1': was given as an object"):
        PPO.load(tmp_path / "agent")
    loaded = PPO.load(tmp_path / "agent", env=instance)
    assert loaded.evaluate(2) == judged
    for each in (agent, loaded, instance):
        each.close()


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(UserError, match="must be a Gymnasium id, a function that makes an environment"):
        PPO(5, **SMALL_PPO)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="has no observation_space; pass an id, or a function that makes it"):
        PPO(gym.Env(), **SMALL_PPO)
    with pytest.raises(UserError, match="did you mean 'CartPole-v1'"):
        PPO("CartPoel-v1", **SMALL_PPO)
    with pytest.raises(UserError, match="did you mean 'ent_coef'"):
        PPO("CartPole-v1", ent_coeff=0.1)


# Functions


def test_train_ppo_takes_a_mapping_a_preset_a_file_or_a_config(tmp_path: Path) -> None:
    unnamed = {key: value for key, value in tiny(tmp_path / "a").items() if key != "algo"}
    result = train_ppo(unnamed)
    assert result.stop_reason == "completed"
    assert result.run_dir is not None
    assert result.run_dir.name.startswith("ppo__")
    config = load_config("ppo/cartpole", SMALL_OVERRIDES, output_dir=str(tmp_path / "b"))
    by_config = train_ppo(config)
    assert by_config.checkpoint is not None
    assert by_config.checkpoint.parent.parent.parent == tmp_path / "b"
    from omegaconf import OmegaConf

    OmegaConf.save(OmegaConf.create(tiny()), tmp_path / "mine.yaml")
    by_file = train_ppo(tmp_path / "mine.yaml", run_dir=tmp_path / "c")
    assert training_differences(latest(result.run_dir), latest(tmp_path / "c")) == []
    assert by_file.run_dir == tmp_path / "c"


SMALL_OVERRIDES = ["num_envs=2", "n_steps=8", "batch_size=8", "hidden_sizes=[8]", "total_timesteps=32", "n_epochs=1"]


def test_train_by_the_name_of_a_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The preset as it is, ended after its first step."""

    class Stops(Callback):
        def on_step(self, run: Any, metrics: dict[str, float]) -> None:
            run.request_stop("one step is enough")

    class NoEvaluation(Callback):
        def on_start(self, run: Any) -> None:
            run.evaluate = lambda episodes: Evaluation((0.0,), (1,))

    monkeypatch.chdir(tmp_path)
    for function, preset in ((train_ppo, "ppo/cartpole"), (train_a2c, "a2c/cartpole")):
        result = function(preset, callbacks=[NoEvaluation(), Stops()])
        assert result.stop_reason == "one step is enough"
        assert result.run_dir is not None
        assert result.run_dir.parent == Path("runs")


def test_train_a2c(tmp_path: Path) -> None:
    result = train_a2c(tiny(tmp_path, algo="a2c", ent_coef=0.01))
    assert result.run_dir is not None
    assert result.run_dir.name.startswith("a2c__")
    assert result["ent_coef"] == 0.01


def test_the_result_is_a_mapping_of_final_metrics(tmp_path: Path) -> None:
    result = train_ppo(tiny(tmp_path))
    assert isinstance(result, dict)
    assert {"step", "eval_return_mean", "eval_return_std", "episode_return_mean", "ent_coef", "clip_coef"} <= set(
        result
    )
    assert all(isinstance(value, float) for value in result.values())
    assert result.checkpoint is not None
    assert (result.checkpoint / "meta.json").is_file()


def test_a_function_trains_its_own_algorithm_only(tmp_path: Path) -> None:
    for config in (tiny(tmp_path, algo="a2c"), load_config(tiny(tmp_path, algo="a2c")), "a2c/cartpole"):
        with pytest.raises(UserError, match=r"algo='a2c': this trains ppo; use train\(\) or train_a2c\(\)"):
            train_ppo(config)
    assert list(tmp_path.iterdir()) == []


def test_resume_by_the_training_function(tmp_path: Path) -> None:
    train_ppo(tiny(ent_coef_schedule="linear", ent_coef=0.1), run_dir=tmp_path / "run")
    config = tiny(total_timesteps=480, ent_coef=0.5, callbacks=["run_helpers:Recording"])
    result = train_ppo(config, resume=tmp_path / "run")
    assert result.run_dir == tmp_path / "run"
    assert result["step"] >= 480
    assert result["ent_coef"] == 0.5, "the whole config is the one that is given: its schedules are gone"
    with pytest.raises(UserError, match=r"algo='a2c'.*start a new run"):
        train_a2c(tiny(algo="a2c", total_timesteps=960), resume=tmp_path / "run")


def test_callbacks_reach_the_training_functions(tmp_path: Path) -> None:
    recording = Recording()
    train_a2c(tiny(algo="a2c", vectorization="sync"), run_dir=tmp_path / "run", callbacks=[recording])
    assert recording.at("step") == list(range(24, 264, 24))


def test_callbacks_of_a_training_function_are_a_list_of_callbacks(tmp_path: Path) -> None:
    for wrong, words in (
        (Notes(), r"callbacks: must be a list of callbacks; write \[Notes\("),
        ([Notes], "callbacks=Notes: is a class; pass an instance"),
        (Notes, "callbacks=Notes: is a class; pass an instance"),
        ([print], "callbacks=print: must be an instance"),
    ):
        with pytest.raises(UserError, match=words):
            train_ppo(tiny(), run_dir=tmp_path / "run", callbacks=wrong)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("episodes", [0, -1, "3"])
def test_a_checkpoint_is_judged_on_at_least_one_episode(episodes: Any, tmp_path: Path) -> None:
    agent = PPO("CartPole-v1", **SMALL_PPO)
    path = agent.save(tmp_path / "agent")
    agent.close()
    with pytest.raises(UserError, match=f"num_episodes={episodes!r}: must be a whole number of at least 1"):
        evaluate_checkpoint(path, num_episodes=episodes)


def test_an_interrupted_training_raises_interrupted_with_its_result(tmp_path: Path) -> None:
    class Interrupts(Callback):
        def on_step(self, run: Any, metrics: dict[str, float]) -> None:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted) as stop:
        train_ppo(tiny(), run_dir=tmp_path / "run", callbacks=[Interrupts()])
    assert stop.value.result.run_dir == tmp_path / "run"
    assert stop.value.result.checkpoint == find_checkpoint(tmp_path / "run")


def test_two_agents_do_not_disturb_each_other() -> None:
    alone = PPO("Pendulum-v1", **SMALL_PPO).learn(64)
    first = PPO("Pendulum-v1", **SMALL_PPO)
    second = PPO("CartPole-v1", **SMALL_PPO, seed=9)
    first.learn(32)
    second.learn(32)
    first.learn(32)
    left, right = state_of(alone), state_of(first)
    # The global generators belong to no agent; the agents' own streams are untouched by each other.
    for state in (left, right):
        state.state["rng"] = state.state["rng"]["streams"]
    assert training_differences(left, right) == []
    for agent in (alone, first, second):
        agent.close()


def test_predict_takes_the_numbers_of_a_discrete_observation_space() -> None:
    agent = PPO("FrozenLake-v1", num_envs=1, n_steps=8, hidden_sizes=[8])
    one = agent.predict(5, deterministic=True)[0]
    one_hot = np.eye(16)[5]
    assert one == agent.predict(one_hot, deterministic=True)[0]
    batch = agent.predict(np.array([5, 0, 5]), deterministic=True)[0]
    assert batch.shape == (3,)
    assert batch[0] == batch[2] == one
    with pytest.raises(UserError, match="from 0 to 15"):
        agent.predict(16)
