"""What the sides of a benchmark are told, what they count, and the peer that was written for it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from benchmark_helpers import BENCHMARKS, libraries, trainers, works
from rl_training.runtime.train import Run

ON_POLICY = {"ppo_cartpole", "a2c_cartpole", "trpo_cartpole", "recurrent_ppo_cartpole", "ppo_halfcheetah"}
# Its peer is installed in an environment of its own.
ACTOR_LEARNER = {"impala_cartpole"}
# On images; a peer has a network and environments of its own.
ATARI = {"ppo_pong", "dqn_pong"}
# Searches, and what learns from them: test_benchmark_planning.py
PLANNING = {
    "gumbel_search",
    "gumbel_search_large",
    "puct_search",
    "muzero_update",
    "gumbel_cartpole",
}
# test_benchmark_scalezero.py
SCALEZERO = {"scalezero_search", "scalezero_update"}
OFFLINE = {name for name, work in works.WORKS.items() if "plain" in work.sides}
# test_benchmark_dreamers.py
DREAMER = {name for name in works.WORKS if name.startswith("dreamer_")}
OTHERS = ON_POLICY | ACTOR_LEARNER | ATARI | PLANNING | SCALEZERO | OFFLINE | DREAMER
OFF_POLICY = [name for name in works.WORKS if name not in OTHERS]


@pytest.mark.parametrize(
    ("name", "rollout", "resets"),
    [
        ("ppo_cartpole", 1024, True),
        ("a2c_cartpole", 40, True),
        ("impala_cartpole", 256, True),
        ("trpo_cartpole", 1024, True),
        ("ppo_halfcheetah", 2048, False),
    ],
)
def test_ours_does_one_rollout_at_a_time(
    name: str, rollout: int, resets: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CartPole's native form spends some rows on resets, which are not steps."""
    if name == "ppo_halfcheetah":
        pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its log where it is started
    rollouts: list[int] = []
    step = Run.advance
    monkeypatch.setattr(Run, "advance", lambda run: (step(run), rollouts.append(run.steps - run.previous_steps)))
    advance = works.WORKS[name].build("ours", threads=1)
    assert advance(1) == rollouts[0]
    assert rollout // 2 < rollouts[0] <= rollout if resets else rollouts == [rollout]
    # What was done before does not count towards the next slice.
    assert advance(rollout + 1) == sum(rollouts[1:]) > rollout


@pytest.mark.parametrize("name", OFF_POLICY)
def test_ours_learns_from_its_first_slice_on(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = works.WORKS[name]
    if work.needs:
        pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its log where it is started
    runs: list[Run] = []
    start = Run.start
    monkeypatch.setattr(Run, "start", lambda run: (start(run), runs.append(run)))
    advance = work.build("ours", threads=1)
    (run,) = runs
    settings = work.sides["ours"].keywords
    assert (run.steps, run.algorithm.n_updates) == (settings["learning_starts"], 0)
    assert run.config.model.activation == "relu"
    step, per_step = settings["train_every"], settings["updates_per_step"]
    phase = step if work.unit == trainers.STEPS else step * per_step
    assert advance(1) == phase
    assert advance(phase + 1) == 2 * phase  # what was done before does not count
    assert run.steps == settings["learning_starts"] + 3 * step
    assert run.algorithm.n_updates == 3 * step * per_step


class StandIn:
    """In the place of a peer's algorithm: it notes what it is asked for."""

    def __init__(self, policy: str, envs: Any, **settings: Any) -> None:
        self.asked = settings | {"policy": policy, "envs": envs}
        self.num_timesteps = self._n_updates = 0

    def learn(self, count: int, *, reset_num_timesteps: bool) -> None:
        """One step more than it was asked for, with the updates of an off-policy algorithm."""
        assert not reset_num_timesteps
        self.num_timesteps += count + 1
        self._n_updates += (count + 1) * self.asked.get("gradient_steps", 0)


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[StandIn]:
    """The algorithms that were built while all peers were stand-ins; each says where it was found."""
    made: list[StandIn] = []

    def finder(module: str, name: str) -> Any:
        def make(*arguments: Any, **settings: Any) -> StandIn:
            made.append(StandIn(*arguments, **settings, found=f"{module}:{name}"))
            return made[-1]

        return make

    def vector(env_id: str, n_envs: int, seed: int) -> Any:
        return SimpleNamespace(asked=(env_id, n_envs), action_space=SimpleNamespace(shape=(3,)))

    for module in ("stable_baselines3", "sb3_contrib", "sb3_redq", "sbx"):
        names = ("PPO", "A2C", "TRPO", "RecurrentPPO", "DQN", "SAC", "TD3", "TQC", "REDQ")
        algorithms = {name: finder(module, name) for name in names}
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(**algorithms))
    common = "stable_baselines3.common"
    noise = SimpleNamespace(NormalActionNoise=lambda mean, std: (list(mean), list(std)))
    monkeypatch.setitem(sys.modules, common, SimpleNamespace())
    monkeypatch.setitem(sys.modules, f"{common}.env_util", SimpleNamespace(make_vec_env=vector))
    monkeypatch.setitem(sys.modules, f"{common}.noise", noise)
    return made


@pytest.mark.parametrize("name", sorted(ON_POLICY))
def test_on_policy_peer_has_the_same_settings(name: str, models: list[StandIn]) -> None:
    (peer,) = works.WORKS[name].peers
    advance = works.WORKS[name].build(peer, threads=1)
    assert advance(100) == 101
    asked, mine = models[0].asked, dict(works.WORKS[name].sides["ours"].keywords)
    algo, shape = mine.pop("algo"), {"net_arch": mine.pop("hidden_sizes")}
    if algo == "recurrent_ppo":
        algo, shape["lstm_hidden_size"] = "RecurrentPPO", mine.pop("rnn_hidden_size")
        assert asked["policy"] == "MlpLstmPolicy"
    assert asked["found"].lower() == f"{libraries.PEERS[peer].module}:{algo}".lower()
    assert asked["envs"].asked == (mine.pop("env_id"), mine.pop("num_envs"))
    assert asked["policy_kwargs"] == shape
    assert asked["device"] == "cpu"
    assert mine.pop("activation") == "tanh"
    assert mine.items() <= asked.items()


SIZES = {"learning_rate": 3e-4, "buffer_size": 1_000_000, "learning_starts": 200, "batch_size": 256}
ONE_UPDATE = SIZES | {"train_freq": 1, "gradient_steps": 1, "policy_kwargs": {"net_arch": [256, 256]}}
SAC = ONE_UPDATE | {"ent_coef": "auto"}
TD3 = ONE_UPDATE | {"policy_delay": 2, "action_noise": ([0.0] * 3, [0.1] * 3)}
DQN = {
    "learning_rate": 1e-3,
    "buffer_size": 100_000,
    "learning_starts": 1_000,
    "batch_size": 64,
    "train_freq": 4,
    "gradient_steps": 1,
    "policy_kwargs": {"net_arch": [64, 64]},
    "exploration_initial_eps": 0.05,
    "exploration_final_eps": 0.05,
    "tau": 1.0,
    "target_update_interval": 500,  # steps, of which 4 belong to an update
    "max_grad_norm": 10.0,
}
QUANTILES = {"net_arch": [256, 256], "n_critics": 2, "n_quantiles": 25}
TEN = SAC | {"gradient_steps": 20, "policy_kwargs": {"net_arch": [256, 256], "n_critics": 10}}


@pytest.mark.parametrize(
    ("name", "peer", "found", "settings"),
    [
        ("dqn_cartpole", "sb3", "stable_baselines3:DQN", DQN),
        ("sac_hopper", "sb3", "stable_baselines3:SAC", SAC),
        ("sac_hopper", "sbx", "sbx:SAC", SAC),
        (
            "sac_small",
            "sb3",
            "stable_baselines3:SAC",
            SAC | {"batch_size": 64, "policy_kwargs": {"net_arch": [64, 64]}},
        ),
        ("td3_hopper", "sb3", "stable_baselines3:TD3", TD3),
        ("td3_hopper", "sbx", "sbx:TD3", TD3),
        (
            "tqc_hopper",
            "sb3_contrib",
            "sb3_contrib:TQC",
            SAC | {"policy_kwargs": QUANTILES, "top_quantiles_to_drop_per_net": 2},
        ),
        ("redq_hopper", "sb3_like", "sb3_redq:REDQ", TEN),
        ("redq_hopper", "sb3", "stable_baselines3:SAC", TEN),
        ("redq_hopper", "sbx", "sbx:SAC", TEN | {"policy_delay": 20}),
    ],
)
def test_off_policy_peer_has_the_same_settings(
    name: str, peer: str, found: str, settings: dict[str, Any], models: list[StandIn]
) -> None:
    """Every word that it is told, worked by hand from ours: none is missing, none is too many."""
    work = works.WORKS[name]
    advance = work.build(peer, threads=1)
    (model,) = models
    assert model.num_timesteps == settings["learning_starts"] + 1  # the memory is filled before the first slice
    per_step = 1 if work.unit == trainers.STEPS else settings["gradient_steps"]
    assert advance(100) == 100 + per_step
    envs, asked = model.asked.pop("envs").asked, model.asked
    mine = work.sides["ours"].keywords
    assert envs == (mine["env_id"], mine["num_envs"])
    assert asked == settings | {"found": found, "policy": "MlpPolicy", "device": "cpu", "seed": 0}


def test_the_atari_peer_has_the_same_settings(models: list[StandIn], monkeypatch: pytest.MonkeyPatch) -> None:
    def games(env_id: str, num_envs: int, seed: int, env_kwargs: dict[str, Any]) -> Any:
        return SimpleNamespace(asked=(env_id, num_envs), env_kwargs=env_kwargs)

    common = "stable_baselines3.common"
    monkeypatch.setitem(sys.modules, f"{common}.env_util", SimpleNamespace(make_atari_env=games))
    stacked = SimpleNamespace(VecFrameStack=lambda envs, count: SimpleNamespace(envs=envs, count=count))
    monkeypatch.setitem(sys.modules, f"{common}.vec_env", stacked)
    monkeypatch.setitem(sys.modules, "ale_py", SimpleNamespace())
    monkeypatch.setattr("gymnasium.register_envs", lambda module: None)
    assert works.WORKS["ppo_pong"].build("sb3", threads=1)(100) == 101
    asked, mine = models[0].asked, dict(works.WORKS["ppo_pong"].sides["ours"].keywords)
    assert (asked["found"], asked["policy"]) == ("stable_baselines3:PPO", "CnnPolicy")
    assert mine.pop("algo") == "ppo"
    assert asked["envs"].count == mine.pop("frame_stack")
    assert asked["envs"].envs.asked == (mine.pop("env_id"), mine.pop("num_envs"))
    assert asked["envs"].envs.env_kwargs == mine.pop("env_kwargs") | {"frameskip": 1}
    # Theirs clips rewards at 1, and puts policy and value right behind the convolutions.
    assert (mine.pop("reward_clip"), mine.pop("hidden_sizes")) == (1.0, [])
    assert mine.items() <= asked.items()


def test_every_peer_of_an_off_policy_work_is_looked_at() -> None:
    marks = test_off_policy_peer_has_the_same_settings.pytestmark  # type: ignore[attr-defined]
    looked_at = {case[:2] for case in marks[0].args[1]}
    assert looked_at == {(name, peer) for name in OFF_POLICY for peer in works.WORKS[name].peers}


@pytest.mark.parametrize(("name", "peer"), [("a2c_cartpole", "sb3"), ("dqn_cartpole", "sb3"), ("sac_hopper", "sbx")])
def test_threads_reach_the_libraries(
    name: str, peer: str, models: list[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    works.WORKS[name].build(peer, threads=2)
    assert told == [2]
    works.WORKS["a2c_cartpole"].build("ours", threads=3)
    assert (told[0], set(told[1:])) == (2, {3})


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A layer that counts its calls."""
    layer = nn.Linear(inputs, outputs)
    layer.calls = 0
    layer.register_forward_hook(lambda layer, *_: setattr(layer, "calls", layer.calls + 1))
    return layer


class Descent:
    """An optimiser; those of torch take seconds to import."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self.parameters = list(parameters)

    def zero_grad(self) -> None:
        for tensor in self.parameters:
            tensor.grad = None

    def step(self) -> None:
        for tensor in self.parameters:
            tensor.data -= 0.1 * tensor.grad


class Critics(nn.Module):
    """Of the shape that the library's have: single networks in a list, and an extractor of features before them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.q_networks = nn.ModuleList(linear(5, 1) for _ in range(count))
        self.features_extractor = None
        self.optimizer = Descent(self.parameters())

    def extract_features(self, obs: torch.Tensor, extractor: None) -> torch.Tensor:
        return obs.float()

    def forward(self, obs: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs = torch.cat([self.extract_features(obs, None), action], dim=1)
        return tuple(network(inputs) for network in self.q_networks)


class Library:
    """What the loop takes from the library's SAC."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.critic, self.critic_target, self.layer = Critics(4), Critics(4), linear(3, 2)
        self.actor = SimpleNamespace(optimizer=Descent(self.layer.parameters()), action_log_prob=self.act)
        self.log_ent_coef = torch.tensor([-1.0], requires_grad=True)
        self.ent_coef_optimizer = Descent([self.log_ent_coef])
        self.policy = SimpleNamespace(set_training_mode=lambda mode: None)
        self.logger = SimpleNamespace(record=lambda name, value: None)
        self.tau, self.gamma, self.target_entropy, self._n_updates = 0.5, 0.9, -2.0, 0
        obs = torch.arange(24, dtype=torch.float64).reshape(2, 4, 3) / 24  # doubles, as Hopper's are
        self.batch = SimpleNamespace(
            observations=obs[0],
            next_observations=obs[1],
            actions=torch.ones(4, 2) / 4,
            rewards=torch.arange(4.0)[:, None],
            dones=torch.tensor([0.0, 1.0, 0.0, 0.0])[:, None],
        )
        self.replay_buffer = SimpleNamespace(sample=lambda size: self.batch)

    def act(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        action = self.layer(obs.float())
        return action, action.sum(dim=1)

    def _update_learning_rate(self, optimizers: list[Any]) -> None:
        assert len(optimizers) == 3


@pytest.fixture
def redq(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The loop of the benchmark on stand-ins for what it takes from Stable-Baselines3."""

    def polyak_update(sources: Any, targets: Any, tau: float) -> None:
        for source, target in zip(sources, targets, strict=True):
            target.data.lerp_(source.data, tau)

    monkeypatch.setitem(sys.modules, "stable_baselines3", SimpleNamespace(SAC=Library))
    monkeypatch.setitem(sys.modules, "stable_baselines3.common", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.utils", SimpleNamespace(polyak_update=polyak_update))
    spec = spec_from_file_location("sb3_redq_on_stand_ins", BENCHMARKS / "sb3_redq.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.REDQ()


def test_redq_does_all_of_the_work_and_no_more(redq: Any) -> None:
    modules = (redq.critic, redq.critic_target, redq.layer)
    before = [[tensor.clone() for tensor in module.parameters()] for module in modules]
    redq.train(gradient_steps=3, batch_size=4)
    for module, tensors in zip(modules, before, strict=True):
        assert not any(torch.equal(*pair) for pair in zip(module.parameters(), tensors, strict=True))
    assert redq._n_updates == 3
    assert [network.calls for network in redq.critic.q_networks] == [4, 4, 4, 4]  # 3 updates, and the actor's
    assert sum(network.calls for network in redq.critic_target.q_networks) == 6  # 2 of them in each update
    assert redq.layer.calls == 4


def test_redq_learns_from_the_least_of_two_targets(redq: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np.random, "choice", lambda count, size, replace: [1, 3])
    batch, target = redq.batch, redq.critic_target
    with torch.no_grad():
        action, log_prob = redq.act(batch.next_observations)
        values = target(batch.next_observations, action)
        value = torch.minimum(values[1], values[3])[:, 0] - np.exp(-1.0) * log_prob
        goal = torch.arange(4.0) + torch.tensor([0.9, 0.0, 0.9, 0.9]) * value
        errors = [guess[:, 0] - goal for guess in redq.critic(batch.observations, batch.actions)]
    expected = sum(float((error**2).mean()) for error in errors) / 2
    assert redq._improve_critics(batch) == pytest.approx(expected)


def test_redq_moves_its_actor_by_the_mean_of_all_critics(redq: Any) -> None:
    batch, weights = redq.batch, redq.layer.weight.detach().clone()
    action, log_prob = redq.act(batch.observations)
    value = torch.stack(redq.critic(batch.observations, action)).mean(dim=0)[:, 0]
    (gradient,) = torch.autograd.grad((np.exp(-1.0) * log_prob - value).mean(), redq.layer.weight)
    redq._improve_actor(batch)
    torch.testing.assert_close(redq.layer.weight, weights - 0.1 * gradient)
    # The coefficient falls where the entropy, minus log_prob, is above its target.
    expected = -1.0 + 0.1 * (log_prob.detach() - 2.0).mean().item()
    assert redq.log_ent_coef.item() == pytest.approx(expected)
