"""MuZero's update against plain loops, numbers by hand and autograd; its acting, priorities and reanalysis."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance import CONTINUOUS, DISCRETE, ENGINES, boxed, built
from memory_model import World
from off_policy_reference import MASKED
from planning import (
    ALGORITHMS,
    PLAIN,
    SMALL,
    Events,
    Remembering,
    acted,
    assert_forms_agree,
    batch_of,
    disturb,
    entropy_of,
    history,
    learner_of,
    memory_of,
    observations,
    same_root,
    windows_from,
)
from replay_feed import Transition, event_rows
from rl_training.algorithms.muzero import MuZero, MuZeroConfig, muzero_gradient, muzero_loss
from rl_training.algorithms.parts import model_inference
from rl_training.algorithms.parts.unroll_batch import Goals, known, returns_to, step_weights, targets_from
from rl_training.data.batches import TERMINATED, Windows
from rl_training.data.samplers import PrioritizedSampler
from rl_training.experiment.config import ConfigError, load_config
from rl_training.models.muzero import Unrolled
from rl_training.ops.observations import Unpacker
from rl_training.ops.sampled_policy import density_gradient, log_density
from rl_training.ops.two_hot import expected
from rl_training.runtime.train import build
from rl_training.testing import check_resumes
from rl_training.testing.contract import tiny_config
from rl_training.types import UserError

EACH_ENGINE = pytest.mark.parametrize("engine", ENGINES)
EACH_KIND = pytest.mark.parametrize("info", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
METRICS = {
    "loss",
    "policy_kl",
    "value_kl",
    "reward_kl",
    "value_error",
    "value_target_mean",
    "reanalyzed",
    "grad_norm",
}


# Targets


def worth(obs: np.ndarray) -> np.ndarray:
    """What the target network is made to say of observations `[..., 2]`."""
    return (0.1 * obs[..., 0] - 0.03 * obs[..., 1]).astype(np.float32)


def wanted_return(stored: list[Transition], number: int, ahead: int, n_step: int, discount: float) -> float | None:
    """The target of the state that is `ahead` steps after a row, by walking the list; None past the episode's end."""
    for _ in range(ahead):
        if stored[number].last or number + 1 == len(stored):
            return None
        number += 1
    total, factor = 0.0, 1.0
    for row in stored[number : number + n_step]:
        total, factor, after = total + factor * row.reward, factor * discount, row.next_obs
        if row.terminated:
            return total
        if row.last:
            break
    return total + factor * float(worth(after))


@given(
    event_rows(),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from([0.9, 1.0, -0.9, -1.0, 0.0]),
    st.integers(3, 14),
)
def test_value_targets_are_those_of_a_plain_loop(
    rows: list[list[str]], longest: int, steps: int, discount: float, positions: int
) -> None:
    """Episodes that terminate, are truncated, cut or go on; returns of different lengths; one player and two."""
    world, rng = World("vector", len(rows[0]), positions), np.random.default_rng(0)
    for events in rows:
        world.play(events)
    starts = world.slots()
    slots = rng.permutation(sorted(starts))
    windows = world.memory.replay.gather_windows(slots, steps + longest, across_episodes=False)
    n_step = rng.integers(1, longest + 1, len(slots))
    ends = targets_from(windows, n_step, steps)
    bootstrap = worth(windows.next_obs[ends, np.arange(len(slots))])
    targets = returns_to(windows, ends, bootstrap, discount)
    acted_at, settled, paid = known(windows, steps)
    for b, slot in enumerate(slots):
        env, number = starts[slot]
        for k in range(steps + 1):
            wanted = wanted_return(world.feed.stored[env], number, k, int(n_step[b]), discount)
            assert targets[k, b] == pytest.approx(0.0 if wanted is None else wanted, rel=1e-5, abs=1e-4)
            absorbed = windows.past[k, b] == TERMINATED
            assert acted_at[k, b] == (wanted is not None)
            assert settled[k, b] == (wanted is not None or absorbed)
            if k < steps:
                assert paid[k, b] == settled[k, b], "a reward is known where its step begins in a known state"


@EACH_ENGINE
@pytest.mark.parametrize("players", [1, 2])
def test_an_update_bootstraps_from_the_target_network_with_the_sign_of_the_mover(engine: str, players: int) -> None:
    info = replace(DISCRETE, two_player=players == 2)
    learner = learner_of("muzero", info, engine=engine, gamma=0.5, unroll_steps=3, n_step=2)
    memory = history(learner, "ggggt")
    windows = windows_from(memory, learner, [1])
    slow = learner.model.follower.module
    with torch.no_grad():
        after = torch.from_numpy(windows.next_obs[:, 0].copy())
        value = expected(slow.predict(slow.represent(after))[1], learner.model.value_support).numpy()
    assert np.ptp(value) > 0.1
    sign, reward = (1.0 if players == 1 else -1.0), windows.reward[:, 0]
    wanted = [
        reward[0] + sign * 0.5 * reward[1] + 0.25 * value[1],
        reward[1] + sign * 0.5 * reward[2] + 0.25 * value[2],  # an odd index: the other player's side
        reward[2] + sign * 0.5 * reward[3],  # which terminates
        reward[3],
    ]
    batch = batch_of(memory, learner, [1])
    np.testing.assert_allclose(batch.value[:, 0], wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(batch.reward[:, 0], reward[:3])


@pytest.mark.parametrize(
    ("letters", "values", "rewards"),
    [("gt", 5, 4), ("go", 2, 2), ("gc", 2, 2), ("gg", 2, 2)],
    ids=["terminated", "truncated", "cut", "newest"],
)
def test_what_is_learned_past_the_end(letters: str, values: int, rewards: int) -> None:
    """Rewards and values of 0 after a termination, nothing where nobody knows."""
    learner = learner_of("efficientzero", unroll_steps=4, value_prefix=False)
    batch = batch_of(history(learner, letters), learner, [0])
    share = np.array([1.0, 0.25, 0.25, 0.25, 0.25], np.float32)
    np.testing.assert_array_equal(batch.policy_weight[:, 0], share * (np.arange(5) < 2))
    np.testing.assert_array_equal(batch.later_weight()[:, 0], share[1:] * (np.arange(1, 5) < 2))
    np.testing.assert_array_equal(batch.value_weight[:, 0], share * (np.arange(5) < values))
    np.testing.assert_array_equal(batch.reward_weight[:, 0], share[1:] * (np.arange(4) < rewards))
    assert not batch.value[2:].any()
    assert not batch.reward[2:].any()
    assert batch.value[:2].all()
    assert batch.reward[:2].all()


def test_the_shares_of_the_steps() -> None:
    weight = step_weights(4, np.array([1.0, 0.5], np.float32), 2)
    np.testing.assert_array_equal(weight, [[0.5, 0.25]] + [[0.125, 0.0625]] * 4)
    np.testing.assert_array_equal(step_weights(1, None, 4), np.full((2, 4), 0.25))
    learner = learner_of("muzero")
    memory = history(learner, "ggggg")
    plain, importance = windows_from(memory, learner, [0, 1]), np.array([1.0, 0.25], np.float32)
    batches = [learner.unroll_batch(replace(plain, weight=w), np.zeros((4, 2))) for w in (None, importance)]
    for name in ("policy_weight", "value_weight", "reward_weight"):
        np.testing.assert_array_equal(getattr(batches[1], name), importance * getattr(batches[0], name))


@EACH_KIND
def test_actions_past_the_end_are_any(info: Any) -> None:
    """An absorbing state must be one whatever is done there; the actions before are those that were taken."""
    learner = learner_of("muzero", info)
    memory = history(learner, "gt")
    batch = batch_of(memory, learner, [0] * 200)
    taken = windows_from(memory, learner, [0]).action[:2]
    np.testing.assert_array_equal(batch.action[:2], np.repeat(taken, 200, axis=1))
    beyond = batch.action[2]
    if info.continuous:
        assert np.abs(beyond).max() <= 1.0
        np.testing.assert_allclose(beyond.std(axis=0), 1.0 / np.sqrt(3.0), atol=0.08)
    else:
        assert np.bincount(beyond, minlength=4).min() > 25


def gradient_of(learner: MuZero, batch: Any) -> torch.Tensor:
    learner.model.differentiate(batch, learner.cfg)
    return torch.cat([part.parameters.grad.clone() for part in learner.learners.values()])


@EACH_ENGINE
@EACH_KIND
@pytest.mark.parametrize("value_prefix", [False, True], ids=["rewards", "prefixes"])
def test_steps_that_are_masked_have_no_gradient(engine: str, info: Any, value_prefix: bool) -> None:
    """Whatever stands where the weight is 0, even the actions that lead there, the gradient is the same to the bit."""
    settings = {"value_prefix": value_prefix, "unroll_steps": 4, "ent_coef": 0.1}
    learner = learner_of("efficientzero", info, engine=engine, **settings)
    disturb(learner.learners["consistency"].weights.data, 3)
    memory, rng = history(learner, "ggogct"), np.random.default_rng(0)
    batch = batch_of(memory, learner, [1, 4, 5])
    assert batch.later_obs is not None
    names = ("policy", "value", "reward", "later_obs", "action")
    other = {name: getattr(batch, name).copy() for name in names}
    unseen, unsettled, unpaid = (
        weight == 0.0 for weight in (batch.policy_weight, batch.value_weight, batch.reward_weight)
    )
    assert unseen[2:].all()
    assert unpaid[2:, :2].all()
    assert not unpaid[:, 2].any(), "the last window ends in a termination"
    other["policy"][unseen] = rng.dirichlet(np.ones(batch.policy.shape[-1]), unseen.sum())
    other["value"][unsettled] += 7.0
    other["reward"][unpaid] -= 3.0
    other["later_obs"][unseen[1:]] += 1.0
    other["action"][unpaid] = -other["action"][unpaid] if info.continuous else 3 - other["action"][unpaid]
    if batch.sampled is not None:
        other["sampled"] = batch.sampled.copy()
        other["sampled"][unseen] *= -0.5
    first, second = (gradient_of(learner, part) for part in (batch, replace(batch, **other)))
    assert torch.equal(first, second)
    assert first.abs().max() > 1e-3
    nothing = {name: np.zeros_like(getattr(batch, name)) for name in ("policy_weight", "value_weight", "reward_weight")}
    assert not gradient_of(learner, replace(batch, **nothing)).any()


class Clock(gym.Env[np.ndarray, int]):
    """Shows the time; the reward of a step is ten times the time when it begins, plus the action."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = boxed(2), gym.spaces.Discrete(3)
        self.time = self.latest = 0

    def show(self) -> np.ndarray:
        return np.array([self.time, self.latest], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.time = self.latest = 0
        return self.show(), {}

    def step(self, action: int) -> Any:
        reward = 10.0 * self.time + action
        self.time, self.latest = self.time + 1, int(action)
        return self.show(), reward, self.time == 6, False, {}


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_reward_belongs_to_the_step_into_its_state(algo: str) -> None:
    """Through the real loop: reward k is that of action k at time k, and leads to the observation k + 1."""
    small = {"unroll_steps": 3, "n_step": 2, "num_simulations": 3, "latent_size": 4, "reward_limit": 60.0}
    prefix = {"value_prefix": False} if algo == "efficientzero" else {}
    run = built(algo, Clock, total_timesteps=64, batch_size=16, learning_starts=1000, **small, **prefix)
    for _ in range(6):
        run.advance()
    learner: Any = run.algorithm
    memory: Any = run.loop.memory
    windows = memory.windows(64, np.random.default_rng(0), length=5, across_episodes=False)
    batch = learner.unroll_batch(windows, learner.returns(windows, np.full(64, 2)))
    run.close()
    time = batch.obs[:, 0] + np.arange(3)[:, None]
    within = time < 6
    known_there = batch.reward_weight > 0.0
    ten_times = 10.0 * time + batch.action
    np.testing.assert_array_equal(batch.reward[within & known_there], ten_times[within & known_there])
    assert not batch.reward[~within].any()
    assert known_there[~within].all()
    if algo == "efficientzero":
        there = batch.later_weight() > 0.0
        np.testing.assert_array_equal(batch.later_obs[..., 0][there], (time + 1)[there])
        np.testing.assert_array_equal(batch.later_obs[..., 1][there], batch.action[there])


def test_the_model_learns_rewards_that_follow_from_actions() -> None:
    """With an action or a reward one step off, the divergence could not fall below that of a guess."""
    learner = learner_of("muzero", noise=0.0, learning_rate=1e-2, reward_bins=5, value_coef=0.0)
    memory = history(learner, "ggggggggt" * 5)
    store = memory.replay._store
    store["reward"][:] = store["action"] - 1.5
    found = [learner.update(memory)["reward_kl"] for _ in range(100)]
    assert found[0] > 0.5
    assert np.mean(found[-10:]) < 0.1


# The loss


def test_the_loss_by_hand() -> None:
    """One window, one step, two actions, three bins; every divergence is a sum of p log(p / q)."""
    logs = torch.log(torch.tensor([0.25, 0.75]))
    out = Unrolled(
        torch.zeros(2, 1, 1),
        torch.stack([logs, torch.zeros(2)]).view(2, 1, 2),
        torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6]])).view(2, 1, 3),
        torch.log(torch.tensor([0.1, 0.1, 0.8])).view(1, 1, 3),
    )
    goals = Goals(
        policy=torch.tensor([[0.5, 0.5], [1.0, 0.0]]).view(2, 1, 2),
        value=torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.5, 0.0]]).view(2, 1, 3),
        reward=torch.tensor([0.0, 0.0, 1.0]).view(1, 1, 3),
        policy_weight=torch.tensor([[1.0], [0.5]]),
        value_weight=torch.tensor([[1.0], [0.25]]),
        reward_weight=torch.tensor([[0.125]]),
        sampled=None,
    )
    cfg = MuZeroConfig(policy_coef=2.0, value_coef=0.5, reward_coef=4.0, ent_coef=0.1)
    loss, parts = muzero_loss(out, goals, cfg)
    policy = 0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75) + 0.5 * np.log(1.0 / 0.5)
    value = np.log(1.0 / 0.25) + 0.25 * np.log(0.5 / 0.2)
    reward = 0.125 * np.log(1.0 / 0.8)
    entropy = -0.25 * np.log(0.25) - 0.75 * np.log(0.75) + 0.5 * np.log(2.0)
    assert [float(part) for part in parts] == pytest.approx([policy, value, reward], rel=1e-5)
    assert loss.item() == pytest.approx(2.0 * policy + 0.5 * value + 4.0 * reward - 0.1 * entropy, rel=1e-5)


def made_up(steps: int, rows: int, sampled: bool) -> tuple[Unrolled[np.ndarray], Goals[np.ndarray]]:
    """Outputs and targets in float64; some weights and some targets are 0."""
    rng = np.random.default_rng(3)
    params, choices = (4, 6) if sampled else (3, 3)
    out = Unrolled(
        np.zeros((steps + 1, rows, 1)),
        3.0 * rng.standard_normal((steps + 1, rows, params)),
        2.0 * rng.standard_normal((steps + 1, rows, 7)),
        2.0 * rng.standard_normal((steps, rows, 5)),
    )
    shares = [
        rng.dirichlet(np.full(size, 0.3), (count, rows)) for count, size in ((steps + 1, choices), (steps + 1, 7))
    ]
    shares[0][0, 0] = np.eye(choices)[0]
    weights = [rng.random((count, rows)) * (rng.random((count, rows)) < 0.7) for count in (steps + 1, steps + 1, steps)]
    actions = rng.uniform(-1.0, 1.0, (steps + 1, rows, choices, 2)) if sampled else None
    return out, Goals(*shares, rng.dirichlet(np.ones(5), (steps, rows)), *weights, actions)


@pytest.mark.parametrize("sampled", [False, True], ids=["discrete", "sampled"])
@pytest.mark.parametrize("ent_coef", [0.0, 0.125])
def test_the_closed_form_is_the_gradient_of_the_loss(sampled: bool, ent_coef: float) -> None:
    out, goals = made_up(3, 5, sampled)
    cfg = MuZeroConfig(policy_coef=1.5, value_coef=0.25, reward_coef=0.5, ent_coef=ent_coef)
    loss, slopes, parts = muzero_gradient(out, goals, cfg)
    leaves = [torch.from_numpy(part).requires_grad_() for part in (out.policy, out.value, out.reward)]
    wanted, wanted_parts = muzero_loss(Unrolled(torch.zeros(0), *leaves), goals.map(torch.from_numpy), cfg)
    wanted.backward()
    assert loss == pytest.approx(wanted.item(), rel=1e-10)
    assert list(parts) == pytest.approx([part.item() for part in wanted_parts], rel=1e-10)
    for slope, leaf in zip(slopes, leaves, strict=True):
        np.testing.assert_allclose(slope, leaf.grad.numpy(), rtol=1e-10, atol=1e-10)
    if sampled:
        outside = np.abs(out.policy[..., 2:] + 1.5) > 3.5
        assert outside.any()
        assert not slopes.policy[..., 2:][outside].any()


def test_densities_of_sampled_actions_are_those_of_a_gaussian_before_tanh() -> None:
    out, goals = made_up(1, 4, sampled=True)
    assert goals.sampled is not None
    params, actions = torch.from_numpy(out.policy), torch.from_numpy(goals.sampled)
    density, entropy = log_density(params, actions)
    mean, log_std = params[..., None, :2], params[..., None, 2:].clamp(-5.0, 2.0)
    gaussian = torch.distributions.Normal(mean, log_std.exp())
    torch.testing.assert_close(density, gaussian.log_prob(torch.atanh(actions)).sum(dim=-1), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(entropy, gaussian.entropy().sum(dim=-1)[..., 0], rtol=1e-10, atol=1e-10)
    weight = goals.policy_weight
    _, divergence, spread = density_gradient(out.policy, goals.sampled, goals.policy, weight, 1.0, 0.0)
    own = torch.xlogy(torch.from_numpy(goals.policy), torch.from_numpy(goals.policy)).sum(dim=-1).numpy()
    cross = (goals.policy * density.numpy()).sum(axis=-1)
    assert divergence == pytest.approx((weight * (own - cross)).sum(), rel=1e-10)
    assert spread == pytest.approx((weight * entropy.numpy()).sum(), rel=1e-10)
    ends, _ = log_density(torch.zeros(1, 2), torch.tensor([[[1.0], [-1.0]]]))
    assert torch.isfinite(ends).all(), "float32 rounds actions to 1"


@pytest.mark.parametrize(
    "settings", [{}, {"ent_coef": 0.1, "policy_coef": 0.5, "reward_coef": 2.0}], ids=["", "weights"]
)
@EACH_KIND
def test_both_forms_learn_the_same(info: Any, settings: dict[str, float]) -> None:
    assert_forms_agree("muzero", info, **settings)


# Priorities and reanalysis


@EACH_ENGINE
def test_priorities_are_the_errors_of_the_first_values(engine: str) -> None:
    learner = learner_of("muzero", engine=engine, prioritized=True, learning_rate=0.0, per_alpha=0.7)
    memory = memory_of(learner, kind=Remembering, sampler=PrioritizedSampler)
    metrics = learner.update(memory)
    (windows,), ((index, noted),) = memory.drawn, memory.notes
    np.testing.assert_array_equal(index, windows.index[0])
    network = learner.policy.network
    with torch.no_grad():
        logits = network.predict(network.represent(torch.from_numpy(windows.obs[0])))[1]
    error = np.abs(expected(logits, network.value_support).numpy() - learner.returns(windows, np.full(12, 2))[0])
    np.testing.assert_allclose(noted["errors"], error, rtol=1e-4, atol=1e-5)
    assert metrics["value_error"] == pytest.approx(error.mean(), rel=1e-4)
    slots, priorities = memory.replay.slots_of(index), memory.sampler.arrays["priorities"].data
    np.testing.assert_allclose(priorities[slots], (error + 1e-6) ** 0.7, rtol=1e-4)
    untouched = np.setdiff1d(np.arange(memory.replay.capacity), slots)
    np.testing.assert_array_equal(priorities[untouched], 1.0)


class Overwritten(Remembering):
    """Half of its rows are replaced between a draw and the notes about it."""

    def windows(self, count: int, rng: np.random.Generator, **asked: Any) -> Windows:
        super().windows(count, rng, **asked)
        found, rows = self.drawn[-1], self.replay.capacity // 4
        for _ in range(rows):
            self.add(self.fresh.step("gg"))  # type: ignore[attr-defined]
        return found


def test_rows_that_are_gone_get_neither_priorities_nor_policies() -> None:
    learner = learner_of("muzero", prioritized=True, reanalyze_ratio=1.0, per_alpha=1.0)
    memory = memory_of(learner, kind=Overwritten, sampler=PrioritizedSampler)
    memory.fresh = Events(learner, 2, seed=9)  # type: ignore[attr-defined]
    learner.update(memory)
    new = np.arange(memory.replay.capacity // 2)
    priorities = memory.sampler.arrays["priorities"].data
    assert set(priorities[new]) == {1.0}, "new rows have the largest priority so far"
    windows = memory.drawn[0]
    gone = memory.replay.slots_of(windows.index[0]) < 0
    assert 0 < gone.sum() < len(gone)
    assert (priorities[memory.replay.slots_of(windows.index[0][~gone])] != 1.0).all()
    again = Events(learner, 2, seed=9)
    policies = np.concatenate([again.step("gg").records["policy"] for _ in range(len(new) // 2)])
    np.testing.assert_array_equal(memory.replay._records._store["policy"][new], policies)


@EACH_ENGINE
@EACH_KIND
@pytest.mark.parametrize("algo", ["muzero", "gumbel_muzero"])
def test_reanalysis_searches_a_share_of_the_windows_with_the_target_network(algo: str, info: Any, engine: str) -> None:
    learner = learner_of(algo, info, engine=engine, reanalyze_ratio=0.25)
    memory = memory_of(learner, kind=Remembering)
    learned: list[Any] = []
    differentiate = learner.model.differentiate
    learner.model.differentiate = lambda batch, cfg: differentiate(learned.append(batch) or batch, cfg)  # type: ignore
    stream = copy.deepcopy(learner.batch_rng)
    fast, slow = learner.model.learner.weights.data.clone(), learner.model.follower.weights.data.clone()
    assert learner.update(memory)["reanalyzed"] == 0.25

    # The same once more by hand: the same draw, a quarter of the windows, and a search by a policy of the slow network.
    (windows,), ((index, noted),) = memory.drawn, memory.notes
    again = memory_of(learner).windows(12, stream, length=5, across_episodes=False)
    np.testing.assert_array_equal(again.index, windows.index)
    chosen = np.zeros(windows.real[:4].shape, np.bool_)
    picked = stream.permutation(12)[:3]
    chosen[:, picked] = windows.real[:4, picked]
    twin = learner_of(algo, info, engine=engine)
    twin.model.learner.weights.data.copy_(slow)
    plan = twin.policy.planner.search(windows.obs[:4][chosen], stream)
    np.testing.assert_array_equal(index, windows.index[:4][chosen])
    assert noted["columns"].keys() == learner.policy.records(info).keys()
    for name, column in twin.policy.recorded(plan).items():
        np.testing.assert_array_equal(noted["columns"][name], column)
        used = {"policy": learned[0].policy, "actions": learned[0].sampled}.get(name)
        if used is not None:
            np.testing.assert_array_equal(used[chosen], column)
            np.testing.assert_array_equal(used[~chosen], windows.records[name][:4][~chosen])
    # Of several values for one row, the last one is kept.
    kept = dict(zip(index.tolist(), noted["columns"]["policy"].tolist(), strict=True))
    stored = memory.replay._records._store["policy"][memory.replay.slots_of(np.array(list(kept)))]
    np.testing.assert_array_equal(stored, list(kept.values()))

    # The online network has no part in it.
    twin.model.learner.weights.data.copy_(fast)
    other = twin.policy.planner.search(windows.obs[:4][chosen], np.random.default_rng(0))
    assert not np.array_equal(other.result.policy, plan.result.policy)


def test_reanalysis_resumes_to_the_bit_and_leaves_evaluations_alone() -> None:
    check_resumes("gumbel_muzero", reanalyze_ratio=0.5, prioritized=True, temperature_moves=2)
    learner = learner_of("muzero", reanalyze_ratio=1.0)
    memory, obs = memory_of(learner), observations(DISCRETE, 6, np.random.default_rng(1))
    before = acted(learner, obs, explore=False)
    learner.reanalyze(memory, windows_from(memory, learner, [0, 3, 5]))
    after = acted(learner, obs, explore=False)
    np.testing.assert_array_equal(before.action, after.action)
    for name, column in before.records.items():
        np.testing.assert_array_equal(column, after.records[name])


# Acting


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
def test_actions_are_drawn_by_visits_and_temperature(temperature: float) -> None:
    learner, rows = learner_of("muzero", noise=0.1, dirichlet_fraction=0.0, num_simulations=20), 3000
    act = acted(learner, same_root(learner, rows), temperature=temperature)
    visits = 20.0 * act.records["policy"][0].astype(np.float64)
    assert (act.records["policy"] == act.records["policy"][0]).all(), "without noise all searches are the same"
    powers = visits ** (1.0 / temperature) if temperature else visits == visits.max()
    shares = powers / powers.sum()
    assert (visits > 0).sum() >= 3
    np.testing.assert_allclose(np.bincount(act.action, minlength=4) / rows, shares, atol=0.04)
    wanted = -(shares[shares > 0] * np.log(shares[shares > 0])).sum()
    assert act.metrics["root_entropy"] == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("algo", ALGORITHMS)
@EACH_KIND
def test_targets_do_not_depend_on_the_temperature(algo: str, info: Any) -> None:
    learner = learner_of(algo, info)
    obs = observations(info, 30, np.random.default_rng(1))
    acts = [acted(learner, obs, temperature=temperature) for temperature in (0.0, 0.25, 1.0, 2.0)]
    for act in acts[1:]:
        for name, column in acts[0].records.items():
            assert column.tobytes() == act.records[name].tobytes(), name
    assert len({act.action.tobytes() for act in acts}) > 1


@pytest.mark.parametrize("algo", ALGORITHMS)
@EACH_KIND
@EACH_ENGINE
def test_evaluation_has_no_noise_and_exploration_has(algo: str, info: Any, engine: str) -> None:
    learner = learner_of(algo, info, engine=engine, noise=0.1)
    obs = observations(info, 8, np.random.default_rng(1))
    greedy = [acted(learner, obs, explore=False, seed=seed) for seed in range(2)]
    alone = np.concatenate([acted(learner, row[None], explore=False).action for row in obs])
    np.testing.assert_allclose(greedy[0].action, alone, atol=1e-5)
    np.testing.assert_array_equal(greedy[0].action, greedy[1].action)
    for name, column in greedy[0].records.items():
        np.testing.assert_array_equal(column, greedy[1].records[name])
    if algo != "gumbel_muzero":
        learner.set_hyperparameters(dirichlet_fraction=0.9)
        np.testing.assert_array_equal(greedy[0].action, acted(learner, obs, explore=False).action)
    noisy = [acted(learner, np.repeat(obs[:1], 12, axis=0), seed=seed).records for seed in range(2)]
    kept = "actions" if info.continuous else "search_value"
    assert not np.array_equal(noisy[0][kept], noisy[1][kept]), "two searches of one root differ"
    assert len(np.unique(noisy[0][kept], axis=0)) > 1, "also side by side"


@EACH_ENGINE
def test_greedy_candidates_include_the_mean_of_the_policy(engine: str) -> None:
    learner = learner_of("gumbel_muzero", CONTINUOUS, engine=engine)
    obs = observations(CONTINUOUS, 6, np.random.default_rng(1))
    policy = learner.policy
    network, rows = policy.network, policy.observer.tensors(policy.observer.scaled(obs))
    with torch.no_grad():
        params, _ = network.predict(network.represent(rows))
    mean = np.tanh(params[:, : CONTINUOUS.action_size].numpy())
    greedy = acted(learner, obs, explore=False).records["actions"]
    np.testing.assert_allclose(greedy[:, 0], mean, atol=1e-5)
    assert not np.isclose(acted(learner, obs).records["actions"][:, 0], mean, atol=1e-5).any()


def test_the_prior_of_wide_samples_is_lower_far_from_the_mean() -> None:
    learner = learner_of("gumbel_muzero", CONTINUOUS, c_scale=0.0, wide_share=0.5, wide_scale=4.0)
    act = acted(learner, same_root(learner, 400))
    wide = round(0.5 * learner.cfg.sampled_actions)
    shares = act.records["policy"]
    assert shares[:, -wide:].sum(axis=1).mean() < 0.3, "few of the policy's own samples lie where wide ones do"


def test_late_moves_are_greedy_and_the_carry_counts_them() -> None:
    learner, rows = learner_of("muzero", noise=0.1, temperature_moves=3, temperature=1.0), 300
    obs = same_root(learner, rows)
    early, late = (acted(learner, obs, moves=moves) for moves in (2, 3))
    np.testing.assert_array_equal(late.action, late.records["policy"].argmax(axis=1))
    assert (early.action != early.records["policy"].argmax(axis=1)).mean() > 0.2
    assert early.records["policy"].tobytes() == late.records["policy"].tobytes()
    policy = learner.policy
    assert early.carry.tolist() == [3] * rows
    assert policy.begin_episodes(np.array([4, 5]), np.array([True, False])).tolist() == [0, 5]
    assert policy.initial_carry(2).tolist() == [0, 0]
    assert late.metrics["root_entropy"] == 0.0


def test_executed_actions_vary_more_at_higher_temperatures() -> None:
    learner = learner_of("muzero", noise=0.1, num_simulations=20)
    obs = same_root(learner, 1500)
    found = [entropy_of(acted(learner, obs, temperature=heat).action, 4) for heat in (0.0, 0.5, 1.0, 2.0, 4.0)]
    assert found == sorted(found)
    assert np.diff(found).min() > 0.02


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("explore", [True, False])
def test_forbidden_actions_are_neither_played_nor_learned(algo: str, explore: bool) -> None:
    learner = learner_of(algo, MASKED, num_simulations=12)
    obs = observations(MASKED, 200, np.random.default_rng(2))
    act = acted(learner, obs, explore=explore, temperature=2.0)
    allowed = Unpacker(MASKED).mask(obs)
    assert allowed is not None
    assert allowed[np.arange(200), act.action].all()
    assert not act.records["policy"][~allowed].any()
    np.testing.assert_allclose(act.records["policy"].sum(axis=1), 1.0, rtol=1e-5)
    single = allowed.sum(axis=1) == 1
    assert single.sum() > 5
    np.testing.assert_array_equal(act.records["policy"][single], allowed[single].astype(np.float32))
    assert np.isfinite(act.metrics["root_entropy"])


@pytest.mark.parametrize(("algo", "prefix"), [(algo, False) for algo in ALGORITHMS] + [("efficientzero", True)])
@pytest.mark.parametrize("info", [DISCRETE, CONTINUOUS, MASKED], ids=["discrete", "continuous", "masked"])
def test_all_ways_to_search_find_the_same(algo: str, prefix: bool, info: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the compiled search, by NumPy and by torch; value prefixes are always by one of the latter two."""
    plain = PLAIN | {"value_prefix": prefix} if algo == "efficientzero" else {}
    obs = observations(info, 20, np.random.default_rng(1))
    ways: dict[str, Any] = {}
    for way, engine in (("fused", "auto"), ("numpy", "auto"), ("torch", "autograd")):
        monkeypatch.setattr(model_inference, "fastest", lambda width, roots, way=way: way)
        ways[way] = [
            acted(learner_of(algo, info, engine=engine, **plain), obs, explore=explore) for explore in (True, False)
        ]
    for way in ("numpy", "torch"):
        for ours, theirs in zip(ways["fused"], ways[way], strict=True):
            np.testing.assert_allclose(ours.action, theirs.action, atol=1e-5)
            for name, column in ours.records.items():
                np.testing.assert_allclose(column, theirs.records[name], rtol=1e-4, atol=2e-4, err_msg=f"{way} {name}")


# Settings, metrics, networks


@pytest.mark.parametrize("algo", ALGORITHMS)
@EACH_ENGINE
def test_the_names_of_the_metrics(algo: str, engine: str) -> None:
    learner = learner_of(algo, engine=engine)
    names = METRICS | ({"consistency_loss"} if algo == "efficientzero" else set())
    memory = memory_of(learner)
    assert learner.learn_from(memory, 2).keys() == names
    assert learner.learn_from(memory, 0) == {}
    assert learner.n_updates == 2
    act = acted(learner, observations(DISCRETE, 2, np.random.default_rng(0)))
    assert act.metrics.keys() == {"root_entropy", "target_entropy", "search_depth", "simulations_per_second"}


def test_a_run_reports_its_temperature_and_what_searches_found() -> None:
    run = built(
        "muzero",
        Clock,
        total_timesteps=200,
        temperature=0.75,
        temperature_schedule="linear",
        **{name: SMALL[name] for name in ("batch_size", "num_simulations", "latent_size")},
    )
    run.advance()
    first = dict(run.metrics)
    run.advance()
    assert 0.0 < run.metrics["temperature"] < first["temperature"] < 0.75
    assert run.algorithm.policy.values["temperature"] == run.algorithm.cfg.temperature
    assert {"root_entropy", "target_entropy", "search_depth"} <= first.keys() <= run.metrics.keys()
    assert "root_entropy" not in run.source.metrics(), "they were read by the loop"
    run.close()


@pytest.mark.parametrize(
    ("algo", "setting", "value"),
    [
        *(("muzero", name, -1.0) for name in ("temperature", "pb_c_init", "value_coef", "dirichlet_fraction")),
        *(("gumbel_muzero", name, 0) for name in ("num_simulations", "unroll_steps", "n_step", "latent_size")),
        ("gumbel_muzero", "temperature_mode", "hot"),
        ("gumbel_muzero", "max_num_considered_actions", 0),
        ("muzero", "value_normalization", "none"),
        ("muzero", "reanalyze_ratio", 1.5),
        ("muzero", "reanalyze_ratio_schedule", "linear"),
        ("gumbel_muzero", "sampled_actions_schedule", "linear"),
        ("muzero", "value_bins", 1),
        ("muzero", "reward_limit", 0.0),
        ("muzero", "gamma", 1.01),
        ("muzero", "sampled_actions", 1),
        ("efficientzero", "prefix_horizon", 0),
        ("efficientzero", "horizon_age", 0),
        ("efficientzero", "consistency_coef", -0.1),
    ],
)
def test_invalid_settings_are_refused_in_one_line(algo: str, setting: str, value: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config({"algo": algo, "env_id": "CartPole-v1", setting: value})
    assert setting in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("NoMuZero", "must be a rl_training.models.muzero.MuZeroNetwork"),
        ("WrongValue", r"value logits \[B, 7\]; for a batch of 2 it returned \(2, 6\)"),
        ("WrongPolicy", r"policy parameters \[B, 3\]; for a batch of 2 it returned \(2, 2\)"),
        ("WrongReward", r"reward logits \[B, 5\]; for a batch of 2 it returned \(2, 1\)"),
        ("WrongLatent", r"latents \[B, 4\]; for a batch of 2 it returned \(2, 3\)"),
        ("WrongNextLatent", r"latents of the dynamics \[B, 4\]; for a batch of 2 it returned \(2, 8\)"),
    ],
)
def test_a_network_that_does_not_fit_is_refused_in_one_line(model: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        build(tiny_config("muzero", model=f"planning:{model}"))
    assert f"model='planning:{model}'" in str(refused.value)
    assert "\n" not in str(refused.value)
