"""Recurrent PPO's update: what acting saw is replayed exactly, and the gradient is that of a plain loop over steps."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor

from conformance import PPO_METRICS, chosen
from rl_training.algorithms.parts.objectives import EngineForm
from rl_training.algorithms.recurrent_ppo import SPEC, RecurrentPPO
from rl_training.data.rollout import Rollout
from rl_training.experiment.config import ConfigError, load_config
from rl_training.ops.policy import clipped_policy_loss, standardize
from rl_training.ops.value import value_loss
from rl_training.runtime.train import Run, build
from rl_training.testing import LinearRecurrentActorCritic, TinyEnv, tiny_config
from rl_training.types import UserError
from stepwise import step_by_step

ENGINES = ["auto", "autograd"]
EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)
EACH_RNN = pytest.mark.parametrize("rnn", ["lstm", "gru"])
WORLDS = pytest.mark.parametrize(
    "env",
    [{"actions": "discrete"}, {"actions": "continuous"}, {"actions": "multi_discrete", "masked": True}],
    ids=["discrete", "continuous", "masked"],
)


def started(env: dict[str, Any] | None = None, env_factory: Any = None, **settings: Any) -> Run:
    settings = {"n_steps": 11, "num_envs": 5, "batch_size": 1000, "ortho_init": False} | settings
    run = build(tiny_config("recurrent_ppo", env, **settings), env_factory=env_factory)
    run.start()
    return run


def gathered(run: Run, rollouts: int = 1) -> Rollout:
    """The latest of some rollouts, from which nothing is learned."""
    run.algorithm.update = lambda batch: {}  # type: ignore[method-assign]
    for _ in range(rollouts):
        run.advance()
    del run.algorithm.update
    run.close()
    rollout: Rollout = run.loop.rollout  # type: ignore[attr-defined]
    return rollout


def learner_of(run: Run) -> RecurrentPPO:
    assert isinstance(run.algorithm, RecurrentPPO)
    assert isinstance(run.algorithm.form, EngineForm) == (run.config.run.engine == "auto")
    return run.algorithm


def replayed(learner: RecurrentPPO, mini: Any) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities and values of a minibatch, as the update computes them."""
    if isinstance(learner.form, EngineForm):
        heads = learner.form.heads(mini)
        return heads.log_prob, heads.value
    with torch.no_grad():
        params, values = learner.policy.network_outputs(mini.obs)
        return learner.distribution.log_prob(params, torch.from_numpy(mini.action)).numpy(), values.numpy()


@EACH_ENGINE
@EACH_RNN
@WORLDS
@pytest.mark.parametrize("sequence_length", [None, 4])
@pytest.mark.parametrize("shared_core", [False, True])
def test_replayed_probabilities_and_values_are_those_of_acting(
    env: dict[str, Any], rnn: str, engine: str, sequence_length: int | None, shared_core: bool
) -> None:
    run = started(env, rnn=rnn, engine=engine, sequence_length=sequence_length, shared_core=shared_core, n_epochs=1)
    rollout = gathered(run, 2)
    learner = learner_of(run)
    assert rollout.starts[1:].any()
    assert rollout.records["state"][0].any()  # the first rows of a second rollout are in the middle of episodes
    seen = 0
    data = learner.prepare(rollout)
    for mini in learner.minibatches(data):
        log_prob, value = replayed(learner, mini)
        np.testing.assert_allclose(log_prob, mini.log_prob, rtol=0, atol=1e-6)
        np.testing.assert_allclose(value, mini.value, rtol=0, atol=1e-6)
        seen += len(mini)
    assert seen == rollout.real.sum() == 55


@EACH_ENGINE
@EACH_RNN
@WORLDS
@pytest.mark.parametrize(("sequence_length", "shared_core"), [(None, False), (4, False), (4, True)])
def test_the_gradient_is_that_of_a_plain_loop_over_steps(
    env: dict[str, Any], rnn: str, engine: str, sequence_length: int | None, shared_core: bool
) -> None:
    settings = {"ent_coef": 0.05, "clip_coef": 0.1, "max_grad_norm": 1e9, "n_epochs": 1, "normalize_obs": True}
    run = started(env, rnn=rnn, engine=engine, sequence_length=sequence_length, shared_core=shared_core, **settings)
    rollout = gathered(run, 2)
    learner = learner_of(run)
    learner.parameters.data += 0.1 * torch.randn(learner.parameters.data.shape, generator=torch.manual_seed(0))
    params, value = step_by_step(learner, rollout, sequence_length or 11)
    real = torch.from_numpy(rollout.real).flatten()
    (mini,) = learner.minibatches(data := learner.prepare(rollout))
    columns = [torch.from_numpy(np.asarray(getattr(data, name))) for name in ("action", "log_prob", "advantage")]
    action, old, advantage = columns
    log_ratio = learner.distribution.log_prob(params[real], action) - old
    policy = clipped_policy_loss(log_ratio, standardize(advantage), 0.1)
    entropy = learner.distribution.entropy(params[real]).mean()
    error = value_loss(value[real], torch.from_numpy(data.target))
    learner.parameters.zero_grad()
    (policy + learner.cfg.vf_coef * error - 0.05 * entropy).backward()
    expected = learner.parameters.grad.clone()
    seen = learner.gradient(mini)
    assert seen[:3] == pytest.approx([policy.item(), error.item(), entropy.item()], abs=1e-5)
    assert 0.0 < seen[4] < 1.0  # some ratios are outside of the interval
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(learner.parameters.grad, expected, rtol=1e-3, atol=3e-6)


def in_next_step_mode(num_envs: int, actions: str) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: TinyEnv(actions)] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)


@EACH_ENGINE
def test_rows_that_a_reset_made_are_not_learned_from(engine: str) -> None:
    run = started(env_factory=in_next_step_mode, engine=engine, n_epochs=1)
    rollout = gathered(run, 2)
    learner = learner_of(run)
    unreal = ~rollout.real
    assert 4 < unreal.sum() < 20
    # Neither they nor the rows that follow them remember anything.
    assert not rollout.records["state"][unreal].any()
    assert not rollout.records["state"][1:][unreal[:-1]].any()
    mini = next(learner.minibatches(learner.prepare(rollout)))
    np.testing.assert_allclose(replayed(learner, mini)[0], mini.log_prob, rtol=0, atol=1e-6)
    learner.gradient(mini)
    clean = learner.parameters.grad.clone()
    for column in (rollout.obs, rollout.records["state"], rollout.records["log_prob"]):
        column[unreal] = np.nan
    mini = next(learner.minibatches(learner.prepare(rollout)))
    assert len(mini) == rollout.real.sum()
    learner.gradient(mini)
    torch.testing.assert_close(learner.parameters.grad, clean, rtol=1e-5, atol=1e-7)


@EACH_RNN
def test_an_episode_knows_nothing_of_the_one_before(rnn: str) -> None:
    run = started(rnn=rnn, engine="autograd", num_envs=1, n_steps=12, n_epochs=1)
    rollout = gathered(run)
    learner = learner_of(run)
    assert rollout.starts.any()
    begin = int(np.argmax(rollout.starts[:, 0]))
    steps = next(learner.minibatches(learner.prepare(rollout))).obs
    rows = torch.from_numpy(steps.rows).requires_grad_()
    where = [int(np.flatnonzero((steps.rows == row).all(axis=1))[0]) for row in rollout.obs[:, 0]]
    _, value, _ = learner.network(rows, torch.from_numpy(steps.sizes), torch.from_numpy(steps.state))
    (pull,) = torch.autograd.grad(value[where[begin]], rows, retain_graph=True)
    assert pull[where[begin]].abs().max() > 0.0
    assert not pull[[where[t] for t in range(begin)]].any()
    (pull,) = torch.autograd.grad(value[where[begin - 1]], rows)
    assert pull[[where[t] for t in range(begin)]].any(dim=1).all()


@EACH_ENGINE
@EACH_RNN
def test_a_truncated_episode_is_worth_what_its_memory_says(rnn: str, engine: str) -> None:
    run = started(rnn=rnn, engine=engine, time_limit=3, n_epochs=1)
    rollout = gathered(run)
    learner: Any = learner_of(run)
    rows, envs = rollout.bootstrap_places()
    obs = rollout.bootstrap_obs()
    assert len(obs) == len(rows) > 5 + 5
    expected = []
    for t, b, successor in zip(rows, envs, obs, strict=True):
        carry = None
        for row in range(t + 1):  # the whole episode again, from its beginning
            carry = None if rollout.starts[row, b] else carry
            carry = chosen(learner, rollout.obs[row, b][None], carry, explore=False).carry
        expected.append(chosen(learner, successor[None], carry).records["value"][0])
    found = learner.bootstrap_values(rollout)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    fresh = chosen(learner, obs).records["value"]
    assert np.abs(found - fresh).min() > 1e-4
    truncated = rollout.truncated[rows, envs]
    value = rollout.records["value"]
    assert (rollout.next_values(value, found)[rows[truncated], envs[truncated]] == found[truncated]).all()


@pytest.mark.parametrize(("batch_size", "expected"), [(1, 15), (4, 15), (8, 8), (12, 5), (1000, 1)])
def test_minibatches_are_whole_sequences(batch_size: int, expected: int) -> None:
    run = started(batch_size=batch_size, sequence_length=4, n_epochs=2)
    rollout = gathered(run)
    learner = learner_of(run)
    minis = list(learner.minibatches(learner.prepare(rollout)))
    assert len(minis) == 2 * expected
    for epoch in (minis[:expected], minis[expected:]):
        assert sum(len(mini) for mini in epoch) == 55
        drawn = np.concatenate([mini.log_prob for mini in epoch])
        assert sorted(drawn) == sorted(rollout.records["log_prob"].flatten())
    assert max(len(mini) for mini in minis) <= max(batch_size, 4)


def test_the_names_of_the_metrics_are_those_of_ppo() -> None:
    run = started(n_epochs=2, batch_size=11)
    run.advance()
    run.close()
    assert set(run.metrics) >= PPO_METRICS
    assert run.metrics["minibatch_updates"] == run.metrics["n_updates"] == 10.0


def test_an_update_ends_before_it_leaves_the_trust_region() -> None:
    run = started(n_epochs=5, target_kl=1e-9, learning_rate=0.1)
    run.advance()
    run.close()
    assert run.metrics["minibatch_updates"] == 1.0


class Cue(gym.Env[np.ndarray, int]):
    """One of two signs is shown at first, and pays if it is repeated after two steps that show nothing."""

    observation_space: Any = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space: Any = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.sign, self.time = int(self.np_random.integers(2)), 0
        return np.array([2.0 * self.sign - 1.0, 0.0], np.float32), {}

    def step(self, action: int) -> Any:
        self.time += 1
        over = self.time == 3
        return np.array([0.0, 1.0], np.float32), float(over and action == self.sign), over, False, {}


@pytest.mark.parametrize(("algo", "low", "high"), [("recurrent_ppo", 0.99, 1.0), ("ppo", 0.0, 0.75)])
@EACH_RNN
def test_only_a_recurrent_policy_can_repeat_what_was_shown(algo: str, low: float, high: float, rnn: str) -> None:
    memory = {"rnn": rnn, "rnn_hidden_size": 16} if algo == "recurrent_ppo" else {}
    settings = {"num_envs": 8, "n_steps": 24, "batch_size": 96, "n_epochs": 6, "learning_rate": 0.01, "gamma": 0.9}
    config = load_config({"algo": algo, "env_id": "the cue", "hidden_sizes": [16], **settings, **memory})
    run = build(config, env_factory=Cue)
    run.start()
    for _ in range(15):
        run.advance()
    judged = run.evaluate(64)
    run.close()
    assert low <= judged.mean <= high


class NoState(LinearRecurrentActorCritic):
    def __init__(self, info: Any, config: Any) -> None:
        super().__init__(info, config)
        del self.state_size


class OtherState(LinearRecurrentActorCritic):
    def forward(self, obs: Tensor, sizes: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        params, value, after = super().forward(obs, sizes, state)
        return params, value, after[:, :1]


class OnlyObservations(LinearRecurrentActorCritic):
    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        out = self.layer(obs)
        return out[:, :-1], out[:, -1]


class WithoutState(LinearRecurrentActorCritic):
    def forward(self, obs: Tensor, sizes: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(obs, sizes, state)[:2]


class OneStepOnly(LinearRecurrentActorCritic):
    """Knows nothing of sizes: all rows are first steps."""

    def forward(self, obs: Tensor, sizes: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        after = 0.5 * (state + obs)
        out = self.layer(after)
        return out[:, :-1], out[:, -1], after


class NeverPassesOn(LinearRecurrentActorCritic):
    """Every step of a part starts from the state of its first one."""

    def forward(self, obs: Tensor, sizes: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        means = [0.5 * (state[: len(rows)] + rows) for rows in torch.split(obs, sizes.tolist())]
        out = self.layer(torch.cat(means))
        return out[:, :-1], out[:, -1], torch.cat([means[-1], means[0][len(means[-1]) :]])


class PartAfterPart(LinearRecurrentActorCritic):
    """Takes the rows of a part for neighbours, and remembers nothing but the latest of them."""

    def forward(self, obs: Tensor, sizes: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        out = self.layer(obs)
        lengths = [int((sizes > part).sum()) for part in range(int(sizes[0]))]
        return out[:, :-1], out[:, -1], torch.stack([rows[-1] for rows in torch.split(obs, lengths)])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NoState", "needs state_size, .*whole number from 1.*not None"),
        ("OtherState", r"must return .*the state after \[B, 3\]; for a batch of 2 it returned .*\(2, 1\)"),
        ("OnlyObservations", r"forward\(obs, sizes, state\) of OnlyObservations fails for sizes \[2\]: TypeError"),
        ("WithoutState", r"must return .*the state after \[B, 3\]; for a batch of 2 it returned \[\(2, 3\), \(2,\)\]"),
        ("OneStepOnly", r"forward\(obs, sizes, state\) of OneStepOnly fails for sizes \[2, 1\]: RuntimeError"),
        ("NeverPassesOn", r"packed by sizes \[2, 1\] what it returns for them one after the other"),
        ("PartAfterPart", r"packed by sizes \[2, 1\] what it returns for them one after the other"),
    ],
)
def test_a_network_of_ones_own_that_does_not_fit_is_refused(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        build(tiny_config("recurrent_ppo", model=f"tests.test_recurrent_ppo_update:{name}"))


def test_a_network_of_ones_own_is_replayed_as_it_acted() -> None:
    run = started(model="rl_training.testing:LinearRecurrentActorCritic", n_epochs=1)
    rollout = gathered(run, 2)
    learner = run.algorithm
    assert isinstance(learner, RecurrentPPO)
    (mini,) = learner.minibatches(learner.prepare(rollout))
    for found, expected in zip(replayed(learner, mini), (mini.log_prob, mini.value), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sequence_length": 0}, "sequence_length=0"),
        ({"rnn": "elman"}, "rnn='elman'"),
        ({"rnn_hidden_size": 0}, "rnn_hidden_size=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"use_sde": True}, "use_sde: unknown key"),
        ({"clip_coef": -0.1}, "clip_coef=-0.1"),
    ],
)
def test_invalid_hyperparameters_fail_fast(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config({"algo": "recurrent_ppo", "env_id": "CartPole-v1", **changes})


def test_the_width_of_the_core_may_be_called_that_of_an_lstm() -> None:
    config = load_config({"algo": "recurrent_ppo", "env_id": "CartPole-v1", "lstm_hidden_size": 24})
    assert config.model.rnn_hidden_size == 24  # type: ignore[attr-defined]


def test_a_policy_that_diverged_is_called_that() -> None:
    """It carries a state that is no number, which is not the caller's fault."""
    run = started({"actions": "discrete"})
    run.algorithm.parameters.data.fill_(float("nan"))  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="training diverged"):
        run.advance()
    run.close()


def test_the_spec_says_that_it_remembers() -> None:
    assert SPEC.capabilities.recurrent
    assert not RecurrentPPO.policy_type.carry_per_rollout
