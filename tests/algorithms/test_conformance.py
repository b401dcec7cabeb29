"""Small worlds whose values are known on paper, learned by every algorithm through the real loop.

Each of them tells right from wrong where episodes end: what a truncation bootstraps from, what a termination cuts off,
and which rows a reset produced.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from conformance import (
    DREAMING,
    MODES,
    MULTI_TASK,
    OFF_POLICY,
    OFFLINE,
    ON_POLICY,
    PLANNING,
    REWARDED,
    VALUED,
    AnyNumber,
    Bandit,
    ContinuousBandit,
    CountedSteps,
    CutShort,
    OneState,
    TwoSteps,
    Walk,
    built,
    chosen,
    in_mode,
    known_settings,
    limited,
    playable,
    trained,
    values,
    walking_action,
)
from rl_training.data.rollout import Rollout
from rl_training.experiment.registry import REGISTRY, capable
from rl_training.runtime.actors.collector import Collector
from rl_training.runtime.envs.make import SavableCartPole, describe_spaces
from rl_training.runtime.train import Run
from rl_training.types import ArrayKind, Step

EVERY_VALUED = pytest.mark.parametrize("algo", VALUED)
EVERY_ON_POLICY = pytest.mark.parametrize("algo", ON_POLICY)
EVERY_WITH_A_MEMORY = pytest.mark.parametrize("algo", [algo for algo in VALUED if algo not in ON_POLICY])
EVERY_MODE = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
# Of how environments are reset, a dataset knows only what it was gathered with: one mode is enough. Planning algorithms
# differ in their searches alone: one of them goes through all modes.
ONE_MODE = (*OFFLINE, *PLANNING[1:], *MULTI_TASK)
EVERY_VALUED_IN_EVERY_MODE = pytest.mark.parametrize(
    ("algo", "mode"),
    [(algo, mode) for algo in VALUED for mode in (MODES[1:2] if algo in ONE_MODE else MODES)],
    ids=lambda value: getattr(value, "name", value),
)
GAMMA = 0.9
# A critic that learns quickly and a policy that has nothing to learn; those of a replay are tables.
CRITIC = {
    "on_policy": {"learning_rate": 0.02, "max_grad_norm": 100.0, "n_steps": 16},
    "off_policy": {
        "learning_rate": 0.1,
        "max_grad_norm": 1e9,
        "hidden_sizes": [],
        "batch_size": 16,
        "learning_starts": 20,
        "train_every": 4,
        "updates_per_step": 1.0,
        "tau": 0.2,
        "target_update_interval": 1,
        "ent_coef": 0.0,
        "n_quantiles": 3,
        "top_quantiles_to_drop": 0,
    },
}
# What little conservatism does to values is less than what the tests allow.
CRITIC["offline"] = CRITIC["off_policy"] | {"policy_delay": 1, "cql_alpha": 0.05, "tau": 0.1}
CRITIC["planning"] = CRITIC["off_policy"] | {
    "num_simulations": 2,
    "unroll_steps": 1,
    "n_step": 1,
    "value_coef": 1.0,
    "value_limit": 60.0,
    "value_bins": 31,
}
TINY_TRANSFORMER = {"width": 16, "layers": 1, "heads": 1, "context_length": 1, "expert_size": 8, "experts": 2}
CRITIC["multi_task"] = CRITIC["planning"] | TINY_TRANSFORMER | {"learning_rate": 0.02, "target_tau": 1.0}
CRITIC["actor_learner"] = CRITIC["on_policy"] | {"ent_coef": 0.0}
STEPS = dict.fromkeys(ON_POLICY, 4_000) | {"a2c": 8_000, "impala": 8_000, "appo": 8_000} | dict.fromkeys(OFFLINE, 700)
STEPS |= dict.fromkeys((*OFF_POLICY, *PLANNING, *MULTI_TASK, *DREAMING), 500)


def taught(algo: str, make: Any, mode: AutoresetMode | None = None, **settings: Any) -> Any:
    factory = playable(algo, make) if mode is None else in_mode(playable(algo, make), mode)
    base = {"gamma": GAMMA, "learning_rate_schedule": "linear", "num_envs": 4, "total_timesteps": STEPS[algo]}
    return trained(algo, factory, **(base | known_settings(algo, CRITIC[REGISTRY[algo].family]) | settings))


@EVERY_VALUED_IN_EVERY_MODE
def test_a_time_limit_is_not_the_end_of_the_world(algo: str, mode: AutoresetMode) -> None:
    """Worth 1 / (1 - gamma) = 10 for ever; a truncation that counted as an end would make it 4.1."""
    run = taught(algo, limited(OneState, 5), mode)
    assert values(run, np.ones((1, 1)))[0] == pytest.approx(1 / (1 - GAMMA), rel=0.01)


@EVERY_VALUED
def test_a_time_limit_of_the_config_is_not_the_end_of_the_world(algo: str) -> None:
    run = taught(algo, OneState, time_limit=5)
    assert values(run, np.ones((1, 1)))[0] == pytest.approx(1 / (1 - GAMMA), rel=0.01)
    assert run.eval_metrics["eval_length_mean"] == 5.0
    if run.config.loop.collects:
        assert run.metrics["episode_length_mean"] == 5.0


@EVERY_VALUED
def test_a_termination_is_the_end_of_the_world(algo: str) -> None:
    """With five steps left and then nothing, the value is the finite sum, in every one of the five states."""
    run = taught(algo, CountedSteps)
    left = np.arange(5, 0, -1)
    np.testing.assert_allclose(values(run, np.eye(6)[:5], in_a_row=True), (1 - GAMMA**left) / (1 - GAMMA), atol=0.05)


def assert_bootstrapped_from_the_final_observation(run: Any) -> None:
    first, second, third = values(run, np.eye(4)[:3])
    assert second == pytest.approx(1.0, abs=0.02)
    assert third == pytest.approx(5.0, abs=0.02)
    # 4.5 from the reset observation, 0 from the observation before the action, 0 if it counted as an end. A
    # recurrent policy values B after A in another way than B at first: an episode that goes on from there has no end.
    after = values(run, np.eye(4)[:2], in_a_row=True)[1]
    assert first == pytest.approx(GAMMA * after, abs=0.02)
    assert run.config.spec.capabilities.recurrent is True or after == pytest.approx(second)


@EVERY_VALUED_IN_EVERY_MODE
def test_a_truncation_bootstraps_from_the_final_observation_and_not_from_the_reset_one(
    algo: str, mode: AutoresetMode
) -> None:
    assert_bootstrapped_from_the_final_observation(taught(algo, CutShort, mode))


@EVERY_WITH_A_MEMORY
def test_returns_of_several_steps_have_the_same_values(algo: str) -> None:
    """A chain ends with its episode: by truncation it bootstraps there, with the discount of its real length."""
    endless = taught(algo, limited(OneState, 5), n_step=3)
    assert values(endless, np.ones((1, 1)))[0] == pytest.approx(1 / (1 - GAMMA), rel=0.01)
    assert_bootstrapped_from_the_final_observation(taught(algo, CutShort, AutoresetMode.NEXT_STEP, n_step=3))
    left = np.arange(5, 0, -1)
    ending = values(taught(algo, CountedSteps, n_step=3), np.eye(6)[:5])
    np.testing.assert_allclose(ending, (1 - GAMMA**left) / (1 - GAMMA), atol=0.05)


@pytest.mark.parametrize("algo", [algo for algo in OFFLINE if algo in VALUED])
def test_fresh_experience_beside_a_dataset_has_the_same_values(algo: str) -> None:
    """Minibatches are of both, and the truncations of both bootstrap."""
    online = {"online": True, "offline_fraction": 0.25, "updates_per_step": 1.0}
    endless = taught(algo, limited(OneState, 5), AutoresetMode.NEXT_STEP, **online)
    assert values(endless, np.ones((1, 1)))[0] == pytest.approx(1 / (1 - GAMMA), rel=0.01)
    assert endless.metrics["episode_length_mean"] == 5.0
    assert_bootstrapped_from_the_final_observation(taught(algo, CutShort, AutoresetMode.NEXT_STEP, **online))


@pytest.mark.parametrize(
    "algo", sorted({*VALUED} & {*capable("vector", "discrete")} & {*capable("vector", "continuous")})
)
def test_values_are_the_same_with_continuous_actions(algo: str) -> None:
    assert_bootstrapped_from_the_final_observation(taught(algo, lambda: AnyNumber(CutShort())))


@pytest.mark.parametrize("settings", [{"prioritized": True}, {"dueling": True}, {"double_q": False}], ids=str)
def test_every_form_of_dqn_has_the_same_values(settings: dict[str, Any]) -> None:
    run = taught("dqn", limited(OneState, 5), n_step=3, **settings)
    assert values(run, np.ones((1, 1)))[0] == pytest.approx(1 / (1 - GAMMA), rel=0.01)
    assert_bootstrapped_from_the_final_observation(taught("dqn", CutShort, **settings))


@EVERY_VALUED
def test_the_step_before_a_termination_is_worth_its_discounted_successor(algo: str) -> None:
    """Two steps with lambda 0, so that nothing but the bootstrap can carry the last reward to the first state."""
    run = taught(algo, TwoSteps, **known_settings(algo, {"gae_lambda": 0.0}))
    np.testing.assert_allclose(values(run, np.eye(3)[:2], in_a_row=True), [GAMMA, 1.0], atol=0.02)


@EVERY_ON_POLICY
def test_a_reward_on_the_last_step_of_a_rollout_is_learned(algo: str) -> None:
    """Rollouts of two steps on episodes of two steps: the only reward is always on the last row."""
    run = taught(algo, TwoSteps, n_steps=2, num_envs=16)
    np.testing.assert_allclose(values(run, np.eye(3)[:2], in_a_row=True), [GAMMA, 1.0], atol=0.02)


# Those that repeat actions get the best of them; the others get more than half, whose mean is off the mark.
DATA = {algo: {"top_return_fraction": 0.7 if algo in VALUED else 0.1, "ent_coef": 0.0} for algo in OFFLINE}
TINY_WORLD = {"deter": 32, "hidden": 16, "units": 32, "stoch": 4, "classes": 4, "blocks": 4, "bins": 63}
BANDIT = {
    "on_policy": {"learning_rate": 0.02, "n_steps": 16, "normalize_advantage": True},
    "off_policy": {
        "total_timesteps": 560,
        "seed": 1,
        "hidden_sizes": [16, 16],
        "activation": "silu",
        "learning_rate": 0.01,
        "policy_delay": 1,
        "learning_starts": 400,
        "train_every": 4,
        "updates_per_step": 8.0,
        "batch_size": 32,
        "ent_coef": 0.01,
        "n_quantiles": 5,
        "top_quantiles_to_drop": 0,
        "noise_std": 0.3,
        "tau": 0.2,
    },
}
BANDIT["actor_learner"] = BANDIT["on_policy"] | {"ent_coef": 0.0}
BANDIT["offline"] = BANDIT["off_policy"] | {
    "total_timesteps": 1_000,
    "batch_size": 64,
    "normalize_obs": False,
    "reward_shift": -1.0,  # TD3+BC divides by the mean value, which would come to 0
    "awac_lambda": 0.05,
    "beta": 30.0,
    "actor_learning_rate": 0.01,
    "cql_alpha": 0.01,
    "cql_samples": 2,
    "alpha": 8.0,
}


@pytest.mark.parametrize("algo", [algo for algo in capable("vector", "discrete") if algo in REWARDED])
def test_a_bandit_is_solved(algo: str) -> None:
    settings = {"learning_rate": 0.02, "num_envs": 4, "n_steps": 16, "max_grad_norm": 1.0, "ent_coef": 0.01}
    settings |= {"learning_starts": 100, "train_every": 4, "updates_per_step": 1.0, **DATA.get(algo, {})}
    settings |= {"batch_size": 16} if algo in (*PLANNING, *MULTI_TASK) else {}
    settings |= TINY_TRANSFORMER if algo in MULTI_TASK else {}
    settings |= TINY_WORLD | {"learning_rate": 3e-3, "updates_per_step": 0.5} if algo in DREAMING else {}
    run = trained(algo, Bandit, total_timesteps=STEPS[algo], **known_settings(algo, settings))
    assert chosen(run.algorithm, np.ones((1, 1), np.float32), explore=False).action.tolist() == [2]
    assert run.eval_metrics["eval_return_mean"] == 1.0
    if run.config.loop.collects:
        assert run.metrics["episode_return_mean"] > 0.9


BANDIT["planning"] = BANDIT["off_policy"] | {
    "total_timesteps": 1_000,
    "updates_per_step": 2.0,
    "num_simulations": 32,
    "sampled_actions": 8,  # visits say more of few
    "unroll_steps": 1,
    "reward_limit": 5.0,
    "value_prefix": False,
    "consistency_coef": 0.0,
}
BANDIT["world_model"] = TINY_WORLD | {"total_timesteps": 700, "learning_starts": 200, "updates_per_step": 1.0}
BANDIT["world_model"] |= {"train_every": 4, "learning_rate": 1e-2, "ent_coef": 1e-3, "eval_episodes": 50}
BANDIT["world_model"] |= {"batch_size": 32, "batch_length": 2, "imagination_horizon": 1, "imagination_starts": 64}
DATA["gumbel_muzero"] = {"num_simulations": 16, "sampled_actions": 16, "rescale_values": False}


@pytest.mark.parametrize("algo", [algo for algo in capable("vector", "continuous") if algo in REWARDED])
def test_a_continuous_bandit_is_solved_in_the_environments_own_units(algo: str) -> None:
    base = {"learning_rate_schedule": "linear", "total_timesteps": STEPS[algo]}
    settings = {"num_envs": 4} | BANDIT[REGISTRY[algo].family] | DATA.get(algo, {})
    run = trained(algo, ContinuousBandit, **base | known_settings(algo, settings))
    # 4 in [-2, 6] is 0.5 in [-1, 1]. A search only chooses among samples, so it comes less near.
    action = chosen(run.algorithm, np.ones((1, 1), np.float32), explore=False).action
    near, worst = (0.4, -0.16) if algo in PLANNING else (0.06, -0.004)
    # A Gaussian of the narrowest deviation, 0.1, loses 0.01 by its samples. While it is wide it does best with a mean
    # beyond 4, since samples are clipped: with one of five other seeds it stayed there; the others were within 0.11.
    if algo in DREAMING:
        near, worst = 0.16, -0.05
    assert action[0, 0] == pytest.approx(0.5, abs=near)
    assert run.eval_metrics["eval_return_mean"] > worst


def collector_of(envs: Any) -> Collector:
    info = describe_spaces(envs.single_observation_space, envs.single_action_space, "test")
    collector = Collector(envs, info, np.random.default_rng(0))
    collector.start()
    return collector


def transitions_of(collector: Collector, count: int) -> list[list[tuple[Any, ...]]]:
    """The first `count` real transitions of every environment."""
    found: list[list[tuple[Any, ...]]] = [[] for _ in range(collector.num_envs)]
    while min(map(len, found)) < count:
        step = collector.step(walking_action(collector.obs))
        for b in np.flatnonzero(step.real):
            found[b].append(plain(step, b))
    return [rows[:count] for rows in found]


def plain(step: Step, b: int) -> tuple[Any, ...]:
    numbers = (int(step.action[b]), float(step.reward[b]), bool(step.terminated[b]), bool(step.truncated[b]))
    return (tuple(step.obs[b].tolist()), *numbers, tuple(step.next_obs[b].tolist()))


def played_alone(number: int, count: int) -> list[tuple[Any, ...]]:
    """What one environment gives to a plain loop, without any vector environment around it."""
    env, rows = Walk(number), []
    obs, _ = env.reset()
    for _ in range(count):
        action = int(walking_action(obs[None])[0])
        next_obs, reward, terminated, truncated, _ = env.step(action)
        row = (action, float(np.float32(reward)), terminated, truncated, tuple(next_obs.tolist()))
        rows.append((tuple(obs.tolist()), *row))
        obs = env.reset()[0] if terminated or truncated else next_obs
    return rows


@EVERY_MODE
def test_every_autoreset_mode_gives_the_transitions_of_a_plain_loop(mode: AutoresetMode) -> None:
    collector = collector_of(in_mode(Walk, mode, numbered=True)(3))
    for number, rows in enumerate(transitions_of(collector, 60)):
        assert rows == played_alone(number, 60)


@EVERY_MODE
def test_no_pair_of_a_final_observation_and_a_reset_one_is_real(mode: AutoresetMode) -> None:
    collector = collector_of(in_mode(Walk, mode, numbered=True)(3))
    for _ in range(100):
        step = collector.step(walking_action(collector.obs))
        episode, time = step.obs[:, 1], step.obs[:, 2]
        same_episode = (step.next_obs[:, 1] == episode) & (step.next_obs[:, 2] == time + 1)
        assert same_episode[step.real].all()
        assert not same_episode[~step.real].any()


@EVERY_MODE
def test_the_clock_counts_environment_steps_and_not_resets(mode: AutoresetMode) -> None:
    collector = collector_of(in_mode(Walk, mode, numbered=True)(3))
    ends = 0
    for _ in range(50):
        step = collector.step(walking_action(collector.obs))
        ends += int((step.terminated | step.truncated).sum())
    assert collector.steps == sum(env.steps_taken for env in collector.envs.envs)
    assert collector.metrics()["episodes"] == ends
    rows_of_resets = 150 - collector.steps
    if mode == AutoresetMode.NEXT_STEP:
        # Those of environments that ended in the very last row are still to come.
        assert rows_of_resets == ends - int((step.terminated | step.truncated).sum())
    else:
        assert rows_of_resets == 0


@EVERY_MODE
def test_reported_episodes_are_whole_and_raw(mode: AutoresetMode) -> None:
    collector = collector_of(in_mode(limited(OneState, 5), mode)(2))
    for _ in range(40):
        collector.step(np.zeros(2, np.int64))
    assert collector.metrics()["episode_return_mean"] == 5.0
    assert collector.metrics()["episode_length_mean"] == 5.0


@EVERY_MODE
def test_the_rollout_knows_the_true_successor_of_every_step_in_every_mode(mode: AutoresetMode) -> None:
    collector = collector_of(in_mode(Walk, mode, numbered=True)(3))
    rollout = Rollout(40, 3, collector.info, {"value": ArrayKind((), "float32")})
    successors = np.zeros((40, 3))

    def worth(obs: np.ndarray) -> np.ndarray:
        return (obs @ np.array([1e3, 1e1, 1e0, 1e-1])).astype(np.float32)

    for t in range(40):
        step = collector.step(walking_action(collector.obs), {"value": worth(collector.obs)})
        rollout.add(step)
        successors[t] = worth(step.next_obs)
    found = rollout.next_values(rollout.records["value"], worth(rollout.bootstrap_obs()))
    bootstraps = rollout.real & ~rollout.terminated
    assert (bootstraps & rollout.truncated).any()
    np.testing.assert_allclose(found[bootstraps], successors[bootstraps], rtol=1e-6)


def test_the_native_cart_pole_gives_the_transitions_of_the_single_one() -> None:
    envs = SavableCartPole(num_envs=4, max_episode_steps=30)
    collector = collector_of(envs)
    alone: Any = gym.make("CartPole-v1").unwrapped
    alone.reset(seed=0)
    rng = np.random.default_rng(0)
    checked = truncations = terminations = 0
    lengths = np.zeros(4, np.int64)
    for _ in range(200):
        # One environment is balanced until its time is up; the others fall.
        action = rng.integers(0, 2, 4)
        action[0] = int(collector.obs[0, 2] + 0.3 * collector.obs[0, 3] > 0)
        step = collector.step(action)
        lengths += step.real
        for b in np.flatnonzero(step.real):
            alone.state = tuple(step.obs[b].astype(np.float64))
            alone.steps_beyond_terminated = None
            next_obs, reward, terminated, _, _ = alone.step(int(action[b]))
            np.testing.assert_allclose(step.next_obs[b], next_obs, rtol=1e-4, atol=1e-5)
            assert step.reward[b] == reward
            assert step.terminated[b] == terminated
            assert step.truncated[b] == (lengths[b] == 30)
            checked += 1
        ended = step.terminated | step.truncated
        terminations, truncations = terminations + int(step.terminated.sum()), truncations + int(step.truncated.sum())
        lengths[ended] = 0
    assert checked == collector.steps
    assert truncations > 0
    assert terminations > 0
    collector.close()


def learned_rewards(run: Run) -> np.ndarray:
    """The rewards in the memory of a loop after a step of it."""
    run.advance()
    loop: Any = run.loop
    run.close()
    if hasattr(loop, "rollout"):
        return loop.rollout.reward
    memory = loop.memories[""] if hasattr(loop, "memories") else (loop.data if hasattr(loop, "data") else loop).memory
    replay = memory.replay
    return replay.gather(np.arange(len(replay)), gamma=1.0).reward


@EVERY_VALUED
def test_rewards_reach_learning_as_they_are_unless_a_transform_is_asked_for(algo: str) -> None:
    settings = {"total_timesteps": 1000} | known_settings(algo, {"train_every": 16})
    assert learned_rewards(built(algo, playable(algo, Walk), **settings)).max() > 20.0
    clipped = built(algo, playable(algo, Walk), reward_clip=0.5, **settings)
    assert set(np.unique(learned_rewards(clipped))) == {0.5}
    if clipped.config.loop.collects:
        assert clipped.metrics["episode_return_mean"] > 1.0


@pytest.mark.parametrize(("env_id", "vectorization"), [("CartPole-v1", "native"), ("CartPole-v1", "sync")])
def test_seeds_differ_between_environments_and_repeat_between_runs(env_id: str, vectorization: str) -> None:
    def first_observations(seed: int) -> np.ndarray:
        run = built("ppo", None, env_id=env_id, vectorization=vectorization, num_envs=4, seed=seed)
        shown = run.source.collector.obs.copy()
        run.close()
        return shown

    shown = first_observations(0)
    assert len(np.unique(shown, axis=0)) == 4
    np.testing.assert_array_equal(shown, first_observations(0))
    assert (shown != first_observations(1)).any(axis=1).all()


def test_every_episode_of_an_environment_starts_from_another_seed() -> None:
    run = built("ppo", None, env_id="Pendulum-v1", time_limit=2, num_envs=2, n_steps=20)
    starts = set()
    for _ in range(20):
        step = run.source.collector.step(np.zeros((2, 1), np.float32))
        if step.truncated.any():
            starts |= {tuple(row) for row in run.source.collector.obs.tolist()}
    assert len(starts) == 20
    run.close()


def test_evaluation_uses_environments_and_seeds_of_its_own() -> None:
    run = built("ppo", None, env_id="Pendulum-v1", time_limit=3, num_envs=2, total_timesteps=1000)
    shown = run.source.collector.obs.copy()
    streams = {name: stream.bit_generator.state for name, stream in run.streams.items()}
    first = run.evaluate(4)
    np.testing.assert_array_equal(run.source.collector.obs, shown)
    assert {name: stream.bit_generator.state for name, stream in run.streams.items()} == streams
    run.close()
    other = built("ppo", None, env_id="Pendulum-v1", time_limit=3, num_envs=2, total_timesteps=1000, seed=1)
    other.algorithm.policy.load_policy_state(run.algorithm.policy.policy_state())
    assert other.evaluate(4) == first
    other.close()


@EVERY_ON_POLICY
def test_the_number_of_updates_does_not_depend_on_how_many_environments_share_the_steps(algo: str) -> None:
    counts = set()
    for num_envs, n_steps in ((1, 16), (2, 8), (8, 2)):
        run = trained(algo, Walk, num_envs=num_envs, n_steps=n_steps, total_timesteps=160)
        assert run.steps == 160
        counts.add(run.metrics["n_updates"])
    assert len(counts) == 1


def test_actions_are_scaled_to_the_environments_bounds_once() -> None:
    run = built("ppo", ContinuousBandit, num_envs=3)
    run.source.collector.step(np.array([[-1.0], [0.0], [1.0]], np.float32))
    run.source.collector.step(np.array([[-7.0], [0.5], [7.0]], np.float32))
    received = [env.unwrapped.received for env in run.source.collector.envs.envs]
    assert received == [[-2.0, -2.0], [2.0, 4.0], [6.0, 6.0]]
    run.close()


def test_modes_are_really_different_underneath() -> None:
    """The tests above would prove nothing if all three modes gave the same raw rows."""
    rows = {}
    for mode in MODES:
        envs: SyncVectorEnv = in_mode(Walk, mode, numbered=True)(1)
        envs.reset(seed=0)
        rows[mode] = envs.step(np.zeros(1, np.int64))[0].tolist()  # the first episode is one step long
    assert rows[AutoresetMode.SAME_STEP] == [[0.0, 1.0, 0.0, 0.0]]
    assert rows[AutoresetMode.NEXT_STEP] == rows[AutoresetMode.DISABLED] == [[0.0, 0.0, 1.0, 0.0]]
