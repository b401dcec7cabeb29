"""Our online algorithms beside those of Stable-Baselines3 and sb3-contrib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np
import sb3_contrib
import stable_baselines3 as sb3
import torch
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from conformance import CONTINUOUS, DISCRETE, agent
from peers import (
    GAMMA,
    Applied,
    Difference,
    Draws,
    Group,
    Pair,
    Translation,
    batch_of,
    column,
    joined,
    named,
    peer_draws,
    renamed,
    replay_sides,
    scale_gradients,
    stacked,
    steps_of,
)
from rl_training.data.batches import Between, Transitions
from rl_training.types import SpaceInfo

SB3, CONTRIB = "Stable-Baselines3", "sb3-contrib"
SIZES = (8, 6)
ROWS, OBSERVATIONS, ACTIONS = 16, 3, 2
COMMON: dict[str, Any] = {"learning_rate": 1e-2, "gamma": GAMMA, "tau": 0.3}


class Spaces(gym.Env[np.ndarray, Any]):
    """Only its spaces are used."""

    def __init__(self, info: SpaceInfo) -> None:
        self.observation_space = gym.spaces.Box(-1000.0, 1000.0, (OBSERVATIONS,), np.float32)
        box = gym.spaces.Box(-1.0, 1.0, (info.action_size,), np.float32)
        self.action_space = box if info.continuous else gym.spaces.Discrete(info.action_size)


def peer_of(kind: Any, info: SpaceInfo, policy: str = "MlpPolicy", num_envs: int = 1, **settings: Any) -> Any:
    """An agent of the peer, with networks of the same shape as ours, that logs nothing."""
    networks = {"net_arch": list(SIZES)} | settings.pop("policy_kwargs", {})
    env = sb3.common.vec_env.DummyVecEnv([lambda: Spaces(info)] * num_envs)
    made = kind(policy, env, policy_kwargs=networks, device="cpu", seed=0, **settings)
    made.set_logger(Logger(folder=None, output_formats=[]))
    return made


def replayed(peer: Any, batch: Transitions) -> None:
    """One update of an off-policy peer from a given batch."""
    samples = ReplayBufferSamples(
        torch.from_numpy(batch.obs),
        torch.from_numpy(batch.action).reshape(len(batch), -1),
        torch.from_numpy(batch.next_obs),
        column(batch.terminated),
        column(batch.reward),
        column(batch.discount),
    )
    with mock.patch.object(peer.replay_buffer, "sample", return_value=samples):
        peer.train(gradient_steps=1, batch_size=len(batch))


def critics(count: int) -> Translation:
    return stacked([[f"qf{k}.{2 * layer}" for layer in range(len(SIZES) + 1)] for k in range(count)], OBSERVATIONS)


def body(name: str, *, layers: str) -> dict[str, str]:
    """The hidden layers of an MLP: their names in ours and in the peer."""
    return {f"{name}.{2 * number}": f"{layers}.{2 * number}" for number in range(len(SIZES))}


def noise(seed: int, count: int = 2) -> Sequence[np.ndarray]:
    return np.random.default_rng([seed, 1]).standard_normal((count, ROWS, ACTIONS))


# Values of discrete actions


def dqn(applied: Applied) -> Difference:
    settings = COMMON | {"max_grad_norm": 0.5, "target_update_interval": 2}
    peer = peer_of(sb3.DQN, DISCRETE, **settings)
    ours = agent("dqn", DISCRETE, engine="autograd", hidden_sizes=SIZES, batch_size=ROWS, double_q=False, **settings)
    layers = renamed(
        body("layers.torso", layers="q_net") | {"layers.head": f"q_net.{2 * len(SIZES)}"},
    )
    sides = replay_sides(
        ours,
        {
            "network": Group(named(peer.q_net), layers, peer.policy.optimizer),
            "slow network": Group(named(peer.q_net_target), layers),
        },
    )
    for seed in range(3):
        batch = batch_of(DISCRETE, ROWS, seed)
        ours.update(batch)
        replayed(peer, batch)
        peer._on_step()
    return sides.difference()


# Deterministic actors


def deterministic(algo: str, kind: Any, applied: Applied, critic_count: int, **settings: Any) -> Difference:
    peer = peer_of(kind, CONTINUOUS, **COMMON, **settings)
    ours = agent(
        algo,
        CONTINUOUS,
        engine="autograd",
        hidden_sizes=SIZES,
        activation="relu",
        batch_size=ROWS,
        **COMMON,
        **settings,
    )
    layers = renamed(body("torso", layers="mu") | {"head": f"mu.{2 * len(SIZES)}"})
    sides = replay_sides(
        ours,
        {
            "actor": Group(named(peer.actor), layers, peer.actor.optimizer),
            "critic": Group(named(peer.critic), critics(critic_count), peer.critic.optimizer),
            "slow actor": Group(named(peer.actor_target), layers),
            "slow critic": Group(named(peer.critic_target), critics(critic_count)),
        },
    )
    if applied("half"):
        scale_gradients(dict(peer.critic.named_parameters()), 0.5)
    for seed in range(4):
        batch, smoothing = batch_of(CONTINUOUS, ROWS, seed), noise(seed)[0]
        ours.batch_rng = Draws(smoothing)
        ours.update(batch)
        with peer_draws(smoothing):
            replayed(peer, batch)
    return sides.difference()


def ddpg(applied: Applied) -> Difference:
    return deterministic("ddpg", sb3.DDPG, applied, critic_count=1)


def td3(applied: Applied) -> Difference:
    smoothing = {"policy_delay": 2, "target_policy_noise": 0.4, "target_noise_clip": 0.5}
    return deterministic("td3", sb3.TD3, applied, critic_count=2, **smoothing)


# Soft actors


def soft(algo: str, kind: Any, applied: Applied, ours_only: Any = None, **peer_only: Any) -> Difference:
    """Four updates with a learned entropy coefficient."""
    peer = peer_of(kind, CONTINUOUS, ent_coef="auto_0.5", **COMMON, **peer_only)
    settings = COMMON | {"ent_coef": "auto_0.5"} | (ours_only or {})
    ours = agent(algo, CONTINUOUS, engine="autograd", hidden_sizes=SIZES, batch_size=ROWS, **settings)
    actor = joined(renamed(body("torso", layers="latent_pi")), "head", ["mu", "log_std"])
    sides = replay_sides(
        ours,
        {
            "actor": Group(named(peer.actor), actor, peer.actor.optimizer),
            "critic": Group(named(peer.critic), critics(2), peer.critic.optimizer),
            "ent_coef": Group(lambda: {"log": peer.log_ent_coef}, lambda tensors: tensors, peer.ent_coef_optimizer),
            "slow critic": Group(named(peer.critic_target), critics(2)),
        },
    )
    if applied("epsilon"):
        peer.actor.action_dist.epsilon = 0.0
    if algo == "tqc" and applied("sum"):
        scale_gradients(dict(peer.critic.named_parameters()), 2.0)
    for seed in range(4):
        batch, (own, following) = batch_of(CONTINUOUS, ROWS, seed), noise(seed)
        if algo == "sac" and not applied("inside"):
            batch, extra = with_states_inside(batch, seed)
            ours.batch_rng = Draws(following, extra, own)
        else:
            ours.batch_rng = Draws(following, own)
        ours.update(batch)
        with peer_draws(own, following):
            replayed(peer, batch)
    return sides.difference()


def with_states_inside(batch: Transitions, seed: int) -> tuple[Transitions, np.ndarray]:
    """Chains that know the states inside of them, and noise for the policy's actions there."""
    rng = np.random.default_rng([seed, 2])
    step = np.arange(1, 3)[:, None]
    discount = np.where(step < steps_of(batch), GAMMA**step, 0.0)
    between = Between(rng.standard_normal((2, ROWS, OBSERVATIONS)), discount)
    return replace(batch, between=between), rng.standard_normal((2 * ROWS, ACTIONS))


def sac(applied: Applied) -> Difference:
    return soft("sac", sb3.SAC, applied)


def tqc(applied: Applied) -> Difference:
    # The peer's fractions are float32: with a power of two, they are exact.
    critics = {"n_quantiles": 8, "n_critics": 2}
    return soft(
        "tqc",
        sb3_contrib.TQC,
        applied,
        {**critics, "top_quantiles_to_drop": 2},
        top_quantiles_to_drop_per_net=2,
        policy_kwargs=critics,
    )


_HALF = (
    "The critics' loss is half the squared error, as in SAC; the peer's is the whole. Adam steps the same way, up to "
    "its epsilon."
)
_EPSILON = "The density of a squashed action is exact; the peer adds 1e-6 to 1 - a^2 before it takes the logarithm."

OFF_POLICY = [
    Pair(
        "DQN",
        SB3,
        "three updates of a Huber loss with clipped gradients; the target network after the second",
        dqn,
        "`double_q: false`; `target_update_interval` counts updates here, steps there",
    ),
    Pair("DDPG", SB3, "four updates", ddpg, deviations={"half": _HALF}),
    Pair("TD3", SB3, "four updates, two of the actor and the target networks", td3, deviations={"half": _HALF}),
    Pair(
        "SAC",
        SB3,
        "four updates with a learned entropy coefficient",
        sac,
        deviations={
            "epsilon": _EPSILON,
            "inside": "With `n_step` above 1, a target has the entropy of every state of its chain; the peer's has "
            "that of the last one alone.",
        },
    ),
    Pair(
        "TQC",
        CONTRIB,
        "four updates with a learned entropy coefficient",
        tqc,
        "`top_quantiles_to_drop` is `top_quantiles_to_drop_per_net`",
        {
            "epsilon": _EPSILON,
            "sum": "The critics' losses are summed, as every critic has its own in the paper; the peer averages them. "
            "Adam steps the same way, up to its epsilon.",
        },
    ),
]
