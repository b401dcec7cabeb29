"""Models of Stable-Baselines3, saved by the library itself: what they predict, and what becomes of them here."""

from __future__ import annotations

import json
import logging
import zipfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training import UserError, from_sb3

sb3 = pytest.importorskip("stable_baselines3", reason="compares with Stable-Baselines3")
contrib = pytest.importorskip("sb3_contrib", reason="compares with SB3-Contrib")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Box(gym.Env[Any, Any]):
    """Random observations of any space; actions do nothing."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        # Copies: a space has a generator, and environments must not draw from one another's.
        self.observation_space, self.action_space = deepcopy(observation_space), deepcopy(action_space)
        self._left = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._left = 5
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        return self.observation_space.sample(), 1.0, self._left <= 0, False, {}


def box(*shape: int, low: Any = -1.0, high: Any = 1.0) -> spaces.Box:
    return spaces.Box(np.full(shape, low, np.float32), np.full(shape, high, np.float32), dtype=np.float32)


IMAGE = spaces.Box(0, 255, (40, 44, 3), np.uint8)
NUMBERS, MIXED = box(4, low=-3.0, high=3.0), spaces.Dict({"b": box(3), "a": box(2, 2), "image": IMAGE})
CHOICES, TWO = spaces.Discrete(3), box(2)
UNEVEN = spaces.Box(np.array([-0.5, 0.0, -4.0], np.float32), np.array([0.5, 3.0, 1.0], np.float32))
RELU = {"activation_fn": torch.nn.ReLU, "net_arch": [16]}
SIZES = {"activation_fn": torch.nn.ELU, "net_arch": {"pi": [16, 8], "vf": [12], "qf": [12]}}
BARE: dict[str, Any] = {"net_arch": []}
QUANTILES = {"net_arch": [16], "n_quantiles": 9, "n_critics": 3}
SHORT: dict[str, Any] = {"n_steps": 32}
SMALL: dict[str, Any] = {"buffer_size": 50, "batch_size": 16, "learning_starts": 10}
QUICK: dict[str, Any] = {"eval_episodes": 1, "threads": 1}

# A name, the class, the policy, the spaces, and what the class is given.
CASES: dict[str, tuple[Any, str, Any, Any, dict[str, Any]]] = {
    "ppo": (sb3.PPO, "MlpPolicy", NUMBERS, UNEVEN, {"n_steps": 32}),
    "a2c": (sb3.A2C, "MlpPolicy", NUMBERS, CHOICES, {}),
    "dqn": (sb3.DQN, "MlpPolicy", NUMBERS, CHOICES, SMALL),
    "sac": (sb3.SAC, "MlpPolicy", NUMBERS, UNEVEN, SMALL),
    "td3": (sb3.TD3, "MlpPolicy", NUMBERS, UNEVEN, SMALL),
    "ddpg": (sb3.DDPG, "MlpPolicy", NUMBERS, TWO, SMALL),
    "tqc": (contrib.TQC, "MlpPolicy", NUMBERS, UNEVEN, SMALL),
    "ppo-relu": (sb3.PPO, "MlpPolicy", NUMBERS, spaces.MultiDiscrete([2, 3]), {"policy_kwargs": RELU, "n_steps": 32}),
    "ppo-wide": (sb3.PPO, "MlpPolicy", spaces.Discrete(5), box(2, low=-7.0, high=7.0), {"n_steps": 32}),
    "a2c-sde": (sb3.A2C, "MlpPolicy", NUMBERS, UNEVEN, {"use_sde": True, "n_steps": 32}),
    "ppo-image": (sb3.PPO, "CnnPolicy", IMAGE, CHOICES, {"n_steps": 32}),
    "ppo-raw-image": (sb3.PPO, "CnnPolicy", IMAGE, TWO, {"policy_kwargs": {"normalize_images": False}, "n_steps": 32}),
    "dqn-image": (sb3.DQN, "CnnPolicy", IMAGE, CHOICES, SMALL),
    "sac-image": (sb3.SAC, "CnnPolicy", IMAGE, TWO, {**SMALL, "policy_kwargs": {"net_arch": [16]}}),
    "td3-dict": (sb3.TD3, "MultiInputPolicy", MIXED, TWO, {**SMALL, "policy_kwargs": {"net_arch": [16]}}),
    "a2c-dict": (sb3.A2C, "MultiInputPolicy", MIXED, CHOICES, {}),
    "ppo-apart": (sb3.PPO, "CnnPolicy", IMAGE, TWO, {"policy_kwargs": {"share_features_extractor": False}, **SHORT}),
    "ppo-switches": (sb3.PPO, "MlpPolicy", NUMBERS, spaces.MultiBinary(3), SHORT),
    "ppo-sizes": (sb3.PPO, "MlpPolicy", NUMBERS, UNEVEN, {"policy_kwargs": SIZES, **SHORT}),
    "ppo-heads": (sb3.PPO, "MlpPolicy", NUMBERS, box(2, 2, low=-2.0, high=3.0), {"policy_kwargs": BARE, **SHORT}),
    "sac-critics": (sb3.SAC, "MlpPolicy", NUMBERS, UNEVEN, {**SMALL, "policy_kwargs": {**SIZES, "n_critics": 3}}),
    "tqc-dict": (contrib.TQC, "MultiInputPolicy", MIXED, UNEVEN, {**SMALL, "policy_kwargs": QUANTILES}),
    "ddpg-uneven": (sb3.DDPG, "MlpPolicy", NUMBERS, UNEVEN, {**SMALL, "policy_kwargs": {"net_arch": [16]}}),
}


def made(name: str, folder: Path, **more: Any) -> tuple[Any, Path]:
    """A model whose every weight is random, its target networks' too, and the file that it was saved to."""
    kind, policy, obs, act, given = CASES[name]
    model = kind(policy, Box(obs, act), seed=3, device="cpu", **{**given, **more})
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.policy.parameters():
            spread = 0.5 / max(1.0, parameter[0].numel() ** 0.5) if parameter.dim() > 1 else 0.2
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    file = folder / f"{name}.zip"
    model.save(file)
    return model, file


def observations(space: Any, count: int) -> Any:
    """A batch of observations."""
    space.seed(1)
    samples = [space.sample() for _ in range(count)]
    if isinstance(space, spaces.Dict):
        return {key: np.stack([sample[key] for sample in samples]) for key in space.spaces}
    return np.stack(samples)


def taken(file: Path, name: str, **settings: Any) -> Any:
    _, _, obs, act, _ = CASES[name]
    return from_sb3(file, env=lambda: Box(obs, act), **QUICK, **settings)


def tensors(model: Any, obs: Any) -> Any:
    return model.policy.obs_to_tensor(obs)[0]


@pytest.mark.parametrize("name", CASES)
def test_predictions_are_equal(name: str, tmp_path: Path) -> None:
    model, file = made(name, tmp_path)
    agent = taken(file, name)
    obs = observations(CASES[name][2], 40)
    theirs, _ = model.predict(obs, deterministic=True)
    ours, _ = agent.predict(obs, deterministic=True)
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    agent.close()


@pytest.mark.parametrize("name", ["ppo", "a2c", "a2c-sde", "ppo-image", "a2c-dict", "ppo-apart", "ppo-sizes"])
def test_values_are_equal(name: str, tmp_path: Path) -> None:
    model, file = made(name, tmp_path)
    agent, obs = taken(file, name), observations(CASES[name][2], 20)
    with torch.no_grad():
        theirs = model.policy.predict_values(tensors(model, obs)).numpy()[:, 0]
    policy = agent._run.algorithm.policy
    network = policy.network(policy.observer.tensors(rows_of(agent, obs)))
    np.testing.assert_allclose(network[1].detach().numpy(), theirs, atol=1e-5)
    agent.close()


@pytest.mark.parametrize("name", ["ppo", "ppo-wide", "a2c", "a2c-sde", "ppo-relu", "ppo-switches", "ppo-image"])
def test_distributions_are_equal(name: str, tmp_path: Path) -> None:
    """Not only the most likely action: the probability of every choice, and the deviation of every number."""
    model, file = made(name, tmp_path)
    agent, obs = taken(file, name), observations(CASES[name][2], 20)
    policy, info = agent._run.algorithm.policy, agent._run.info
    with torch.no_grad():
        theirs = model.policy.get_distribution(tensors(model, obs)).distribution
        ours = policy.network(policy.observer.tensors(rows_of(agent, obs)))[0]
    if info.continuous:
        unit = agent.config.model.unit(info)
        reach = (np.array(info.action_high) - np.array(info.action_low)) / 2.0 * (1.0 if unit is None else unit)
        deviation = ours[:, info.action_size :].exp().numpy() * reach
        np.testing.assert_allclose(deviation, theirs.stddev.numpy(), rtol=1e-5)
    else:
        parts = [part.softmax(dim=1) for part in torch.split(ours, info.action_counts, dim=1)]
        wanted = [theirs.probs] if isinstance(theirs, torch.distributions.Categorical) else theirs
        if isinstance(theirs, torch.distributions.Bernoulli):
            parts, wanted = [part[:, 1:] for part in parts], torch.split(theirs.probs, 1, dim=1)
        for part, probabilities in zip(parts, wanted, strict=True):
            torch.testing.assert_close(part, getattr(probabilities, "probs", probabilities), atol=1e-5, rtol=0.0)
    agent.close()


def rows_of(agent: Any, obs: Any) -> Any:
    from rl_training.api.inputs import policy_rows

    return policy_rows(obs, None, agent._run.info)[0]


@pytest.mark.parametrize("name", ["sac", "td3", "ddpg", "tqc", "sac-image", "td3-dict", "sac-critics", "tqc-dict"])
def test_critics_and_their_targets_are_equal(name: str, tmp_path: Path) -> None:
    model, file = made(name, tmp_path)
    agent, obs = taken(file, name), observations(CASES[name][2], 20)
    size = agent._run.info.action_size
    action = torch.rand(20, size, generator=torch.Generator().manual_seed(1)) * 2.0 - 1.0
    algorithm = agent._run.algorithm
    rows = algorithm.observer.tensors(rows_of(agent, obs))
    for theirs, ours in (
        (model.critic, algorithm.learners["critic"].module),
        (model.critic_target, algorithm.followers["critic"].module),
    ):
        with torch.no_grad():
            wanted = theirs(tensors(model, obs), action)
            wanted = torch.stack(wanted) if isinstance(wanted, tuple) else wanted.transpose(0, 1)
            torch.testing.assert_close(ours(rows, action), wanted, atol=1e-5, rtol=1e-5)
    agent.close()


def test_targets_of_q_networks_and_actors(tmp_path: Path) -> None:
    for name, follower in (("dqn", "network"), ("td3", "actor")):
        model, file = made(name, tmp_path)
        agent, obs = taken(file, name), observations(NUMBERS, 20)
        algorithm = agent._run.algorithm
        target = model.q_net_target if name == "dqn" else model.actor_target
        with torch.no_grad():
            ours, theirs = algorithm.followers[follower].module(torch.from_numpy(obs)), target(tensors(model, obs))
        torch.testing.assert_close(ours if name == "dqn" else ours.tanh(), theirs, atol=1e-5, rtol=0.0)
        agent.close()


@pytest.mark.parametrize("name", ["ppo", "ppo-wide", "sac"])
def test_explored_actions_have_the_same_spread(name: str, tmp_path: Path) -> None:
    model, file = made(name, tmp_path)
    agent = taken(file, name)
    obs = np.repeat(observations(CASES[name][2], 1), 4000, axis=0)
    theirs, ours = model.predict(obs)[0], agent.predict(obs)[0]
    np.testing.assert_allclose(ours.mean(axis=0), theirs.mean(axis=0), atol=0.25)
    np.testing.assert_allclose(ours.std(axis=0), theirs.std(axis=0), rtol=0.08)
    agent.close()


def test_a_learned_entropy_coefficient_is_kept(tmp_path: Path) -> None:
    model, _ = made("sac", tmp_path)
    with torch.no_grad():
        model.log_ent_coef.fill_(-2.0)
    model.save(tmp_path / "cool.zip")
    agent = taken(tmp_path / "cool.zip", "sac")
    assert agent._run.algorithm.current("ent_coef") == pytest.approx(np.exp(-2.0))
    agent.close()


@pytest.mark.parametrize("name", ["ppo", "a2c", "dqn", "sac", "td3", "ddpg", "tqc"])
def test_it_trains_saves_and_loads(name: str, tmp_path: Path) -> None:
    """What was saved after some training goes on as the agent itself does, to the bit."""
    _, file = made(name, tmp_path)
    _, _, space, actions, _ = CASES[name]
    agent = taken(file, name)
    before = agent._run.algorithm.policy.policy_state()
    before = {key: tensor.clone() for key, tensor in before.items()}
    agent.learn(64)
    assert agent.num_timesteps in (64, 65)  # a rollout of A2C has 5 steps
    after = agent._run.algorithm.policy.policy_state()
    assert any(not torch.equal(before[key], tensor) for key, tensor in after.items())
    assert np.isfinite(agent.evaluate(2).mean)
    saved = agent.save(tmp_path / "ours")
    again = type(agent).load(saved, env=lambda: Box(space, actions))
    states = [one.learn(64)._run.algorithm.policy.policy_state() for one in (agent, again)]
    for key, tensor in states[0].items():
        assert torch.equal(tensor, states[1][key]), key
    for one in (agent, again):
        one.close()


def test_settings_are_taken_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from stable_baselines3.common.noise import NormalActionNoise
    from stable_baselines3.common.utils import LinearSchedule

    given = {"learning_rate": LinearSchedule(1e-3, 1e-4, 0.5), "clip_range": 0.3, "gamma": 0.9, "batch_size": 16}
    agent = taken(made("ppo", tmp_path, **given)[1], "ppo")
    config = agent.config.flat()
    assert config["learning_rate_schedule"] == {"type": "linear", "start": 1e-3, "end": 1e-4, "fraction": 0.5}
    assert (config["clip_coef"], config["gamma"], config["batch_size"], config["n_steps"]) == (0.3, 0.9, 16, 32)
    agent.close()
    agent = taken(made("ppo", tmp_path, **given)[1], "ppo", learning_rate=0.1, clip_range=0.5)
    assert "learning_rate_schedule" not in agent.config.flat()
    assert (agent.config.flat()["learning_rate"], agent.config.flat()["clip_coef"]) == (0.1, 0.5)
    agent.close()
    agent = taken(made("td3", tmp_path, action_noise=NormalActionNoise(np.zeros(3), np.full(3, 0.3)))[1], "td3")
    assert agent.config.flat()["noise_std"] == 0.3
    agent.close()
    caplog.clear()
    file = made("dqn", tmp_path, exploration_fraction=0.4, exploration_final_eps=0.2, target_update_interval=80)[1]
    agent = taken(file, "dqn")
    config = agent.config.flat()
    assert config["epsilon_schedule"] == {"type": "linear", "start": 1.0, "end": 0.2, "fraction": 0.4}
    assert (config["double_q"], config["target_update_interval"], config["train_every"]) == (False, 20, 4)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    for word in ("optimisers", "replay buffer", "train_freq", "number of steps"):
        assert word in line
    agent.close()


def test_objects_in_the_data_are_never_decoded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A function as learning rate is named in the list; a pickle that would run code is left alone."""
    _, file = made("ppo", tmp_path, learning_rate=lambda progress: 1e-3 * progress)
    poisoned = tmp_path / "poisoned.zip"
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(poisoned, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "data":
                data = json.loads(content)
                for entry in data.values():
                    if isinstance(entry, dict) and ":serialized:" in entry:
                        entry[":serialized:"] = "Y29zCnN5c3RlbQooUydmYWxzZScKdFIu"
                content = json.dumps(data).encode()
            new.writestr(name, content)
    agent = taken(poisoned, "ppo")
    assert "learning_rate: an object in the file" in caplog.text
    assert agent.config.flat()["learning_rate"] == 3e-4
    agent.close()


def normalized(folder: Path, **settings: Any) -> tuple[Any, Path]:
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    envs = VecNormalize(DummyVecEnv([lambda: Box(NUMBERS, UNEVEN)]), **settings)
    envs.reset()
    for _ in range(30):
        envs.step(np.zeros((1, 3), np.float32))
    envs.save(str(folder / "vecnormalize.pkl"))
    return envs, folder / "vecnormalize.pkl"


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_statistics_of_vec_normalize(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    envs, statistics = normalized(tmp_path, clip_obs=1.5, epsilon=1e-2)
    model, file = made(name, tmp_path)
    agent, obs = taken(file, name, vec_normalize=statistics), observations(NUMBERS, 40)
    theirs, _ = model.predict(envs.normalize_obs(obs), deterministic=True)
    np.testing.assert_allclose(agent.predict(obs, deterministic=True)[0], theirs, atol=1e-5)
    config = agent.config.flat()
    assert (config["normalize_obs"], config["obs_clip"]) == (True, 1.5)
    if name == "ppo":
        scale = agent._run.algorithm.reward_normalizer
        assert scale(np.ones(1, np.float32))[0] == pytest.approx(envs.normalize_reward(np.ones(1))[0], rel=1e-5)
        before = float(agent._run.algorithm.observer.normalizer.moments.count)
        agent.learn(32)
        assert agent._run.algorithm.observer.normalizer.moments.count == pytest.approx(before + 32)
    else:
        assert "scale of rewards" in caplog.text
    agent.close()


def test_only_rewards_are_normalized(tmp_path: Path) -> None:
    _, statistics = normalized(tmp_path, norm_obs=False)
    agent = taken(made("ppo", tmp_path)[1], "ppo", vec_normalize=statistics)
    assert (agent.config.flat()["normalize_obs"], agent.config.flat()["normalize_reward"]) == (False, True)
    agent.close()


def test_statistics_of_a_dict(tmp_path: Path) -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    space = spaces.Dict({"b": box(3), "a": box(2, low=-9.0, high=9.0)})
    envs = VecNormalize(DummyVecEnv([lambda: Box(space, UNEVEN)]))
    model = sb3.PPO("MultiInputPolicy", envs, n_steps=32, seed=1).learn(32)
    model.save(tmp_path / "model")
    envs.save(str(tmp_path / "vecnormalize.pkl"))
    given: dict[str, Any] = {"env": lambda: Box(space, UNEVEN), "vec_normalize": tmp_path / "vecnormalize.pkl", **QUICK}
    agent, obs = from_sb3(tmp_path / "model", **given), observations(space, 20)
    theirs, _ = model.predict(envs.normalize_obs(obs), deterministic=True)
    np.testing.assert_allclose(agent.predict(obs, deterministic=True)[0], theirs, atol=1e-5)
    agent.close()
    envs = VecNormalize(DummyVecEnv([lambda: Box(space, UNEVEN)]), norm_obs_keys=["a"])
    envs.reset()
    envs.save(str(tmp_path / "vecnormalize.pkl"))
    message = refusal(tmp_path / "model", **given)
    assert "scales the entries 'a' of a Dict (norm_obs_keys)" in message
    assert "all that are no images are scaled: 'a', 'b'" in message


def refusal(*given: Any, **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        from_sb3(*given, **(QUICK | settings))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_what_does_not_fit_is_one_line(tmp_path: Path) -> None:
    _, file = made("ppo", tmp_path)
    assert "does not fit env='CartPole-v1'" in refusal(file, env="CartPole-v1")
    _, statistics = normalized(tmp_path)
    pendulum = sb3.PPO("MlpPolicy", "Pendulum-v1")
    pendulum.save(tmp_path / "pendulum")
    message = refusal(tmp_path / "pendulum", env="Pendulum-v1", vec_normalize=statistics)
    assert "observations of the shape (4,); those of this environment are (3,)" in message
    assert "is missing" in refusal(tmp_path / "nothing.zip", env="CartPole-v1")
    assert "path=None: must be the name of a file" in refusal(None, env="CartPole-v1")
    assert "vec_normalize=3: must be the name of a file" in refusal(file, env="CartPole-v1", vec_normalize=3)
    assert "env_id='CartPol-v1': unknown environment" in refusal(file, env="CartPol-v1")
    assert "learnin_rate: unknown key" in refusal(file, env="CartPole-v1", learnin_rate=1.0)
    assert "does not hold a VecNormalize" in refusal(
        tmp_path / "pendulum", env="Pendulum-v1", vec_normalize=pickled(tmp_path)
    )
    _, file = made("ppo", tmp_path, policy_kwargs={"activation_fn": torch.nn.RReLU})
    assert "activation_fn" in refusal(file, env="CartPole-v1")
    agent = taken(file, "ppo", activation="silu")
    assert agent.config.flat()["activation"] == "silu"
    agent.close()
    _, file = made("ppo", tmp_path, policy_kwargs={"activation_fn": torch.nn.LeakyReLU})
    agent = taken(file, "ppo")
    assert agent.config.flat()["activation"] == "leaky_relu"
    agent.close()


def pickled(folder: Path) -> Path:
    import pickle

    file = folder / "other.pkl"
    file.write_bytes(pickle.dumps({"obs_rms": 1}))
    return file


def test_models_of_other_algorithms_are_refused(tmp_path: Path) -> None:
    for kind, env, given in (
        (contrib.ARS, "CartPole-v1", {}),
        (contrib.QRDQN, "CartPole-v1", SMALL),
        (contrib.RecurrentPPO, "CartPole-v1", {}),
        (contrib.CrossQ, "Pendulum-v1", SMALL),
    ):
        policy = "MlpLstmPolicy" if kind is contrib.RecurrentPPO else "MlpPolicy"
        kind(policy, env, **given).save(tmp_path / "other")
        message = refusal(tmp_path / "other", env=env)
        assert f"{str(tmp_path / 'other.zip')!r}: is a model of {kind.__name__}; those of PPO, A2C" in message
    contrib.TRPO("MlpPolicy", "CartPole-v1").save(tmp_path / "other")
    assert "is not a model that is read; those of PPO" in refusal(tmp_path / "other", env="CartPole-v1")
    sb3.SAC("MlpPolicy", "Pendulum-v1", use_sde=True, **SMALL).save(tmp_path / "other")
    assert "use_sde" in refusal(tmp_path / "other", env="Pendulum-v1")
    _, file = made("ppo", tmp_path, policy_kwargs={"squash_output": True}, use_sde=True)
    assert "squash_output" in refusal(file, env="CartPole-v1")
    sb3.PPO("MlpPolicy", Box(IMAGE, CHOICES), n_steps=32).save(tmp_path / "flat")
    message = refusal(tmp_path / "flat", env=lambda: Box(IMAGE, CHOICES))
    assert "are only here; images are read as by CnnPolicy" in message


class Masked(Box):
    """Tells masks in both ways: theirs and ours."""

    def __init__(self) -> None:
        super().__init__(NUMBERS, CHOICES)

    def action_masks(self) -> Any:
        return np.array([False, True, True])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed)[0], {"action_mask": self.action_masks()}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"action_mask": self.action_masks()}


def test_a_model_with_masks_is_a_ppo(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = contrib.MaskablePPO("MlpPolicy", Masked(), n_steps=32, seed=1).learn(32)
    model.save(tmp_path / "masked")
    agent, obs = from_sb3(tmp_path / "masked", env=Masked, **QUICK), observations(NUMBERS, 20)
    masks = np.random.default_rng(0).random((20, 3)) < 0.5
    masks[:, 0] |= ~masks.any(axis=1)
    theirs, _ = model.predict(obs, deterministic=True, action_masks=masks)
    np.testing.assert_array_equal(agent.predict(obs, deterministic=True, action_masks=masks)[0], theirs)
    assert "action_masks() of the environment" in caplog.text
    agent.close()
