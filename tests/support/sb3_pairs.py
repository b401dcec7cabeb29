"""Our online algorithms beside those of Stable-Baselines3 and sb3-contrib."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np
import sb3_contrib
import stable_baselines3 as sb3
import torch
from stable_baselines3.common.distributions import DiagGaussianDistribution
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch import Tensor

from conformance import CONTINUOUS, DISCRETE, boxed
from peer_data import ACTIONS, GAMMA, RATE, ROWS, TAU, batch_of, column, normal, steps_of
from peer_networks import OBSERVATIONS, SIZES, logarithm, mlp, named, renamed, stacked, two_headed, with_target
from peer_updates import Given, compare_updates, replay_learner, with_smoothing, without_noise
from peers import ADAM, Applied, Difference, Group, Pair, always, scale_gradients
from rl_training.data.batches import Between, Transitions
from rl_training.types import SpaceInfo

# An agent of the peer, and its networks.
Peer = tuple[Any, dict[str, Group]]
SB3, CONTRIB = "Stable-Baselines3", "sb3-contrib"
COMMON: dict[str, Any] = {"learning_rate": RATE, "gamma": GAMMA, "tau": TAU}


class Spaces(gym.Env[np.ndarray, Any]):
    """Only its spaces are used."""

    def __init__(self, info: SpaceInfo) -> None:
        self.observation_space = boxed(*info.obs_shape)
        self.action_space = boxed(info.action_size, 1.0) if info.continuous else gym.spaces.Discrete(info.action_size)


def spaces(info: SpaceInfo, num_envs: int = 1) -> VecEnv:
    """Environments that are never stepped."""
    return DummyVecEnv([lambda: Spaces(info)] * num_envs)


def peer_of(kind: Any, envs: VecEnv, policy: str = "MlpPolicy", **settings: Any) -> Any:
    """An agent of the peer, with networks of the same shape as ours, that logs nothing."""
    networks = {"net_arch": list(SIZES)} | settings.pop("policy_kwargs", {})
    made = kind(policy, envs, policy_kwargs=networks, device="cpu", seed=0, **settings)
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


def sequential(name: str, prefix: str = "") -> dict[str, str]:
    """An MLP that the peer has as one list of layers."""
    return mlp(name, f"{name}.{2 * len(SIZES)}", prefix)


def critics(peer: Any, count: int) -> dict[str, Group]:
    translate = stacked([sequential(f"qf{number}") for number in range(count)])
    return with_target("critic", peer.critic, peer.critic_target, translate, peer.critic.optimizer)


# Values of discrete actions


def dqn_peer(envs: VecEnv, **settings: Any) -> Peer:
    peer = peer_of(sb3.DQN, envs, **settings)
    layers = renamed(sequential("q_net", "layers."))
    return peer, with_target("network", peer.q_net, peer.q_net_target, layers, peer.policy.optimizer)


def dqn(applied: Applied) -> Difference:
    settings = COMMON | {"max_grad_norm": 0.5, "target_update_interval": 2}
    peer, networks = dqn_peer(spaces(DISCRETE), **settings)
    ours = replay_learner("dqn", DISCRETE, double_q=False, **settings)

    def update_peer(batch: Transitions) -> None:
        replayed(peer, batch)
        peer._on_step()

    return compare_updates(ours, networks, without_noise(DISCRETE, 3), update_peer)


# Deterministic actors


SMOOTHING: dict[str, Any] = {"policy_delay": 2, "target_policy_noise": 0.4, "target_noise_clip": 0.5}


def deterministic_peer(kind: Any, envs: VecEnv, applied: Applied = always, **settings: Any) -> Peer:
    peer = peer_of(kind, envs, **settings)
    actor = with_target("actor", peer.actor, peer.actor_target, renamed(sequential("mu")), peer.actor.optimizer)
    if applied("half"):
        scale_gradients(peer.critic.parameters(), 0.5)
    return peer, actor | critics(peer, peer.critic.n_critics)


def deterministic(algo: str, kind: Any, applied: Applied, **settings: Any) -> Difference:
    peer, networks = deterministic_peer(kind, spaces(CONTINUOUS), applied, **COMMON, **settings)
    ours = replay_learner(algo, CONTINUOUS, activation="relu", **COMMON, **settings)
    return compare_updates(ours, networks, with_smoothing(4), partial(replayed, peer))


def ddpg(applied: Applied) -> Difference:
    return deterministic("ddpg", sb3.DDPG, applied)


def td3(applied: Applied) -> Difference:
    return deterministic("td3", sb3.TD3, applied, **SMOOTHING)


# Soft actors


# The peer's fractions are float32: with a power of two, they are exact.
QUANTILES = {"n_quantiles": 8, "n_critics": 2}
OUR_QUANTILES: dict[str, Any] = QUANTILES | {"top_quantiles_to_drop": 2}
PEER_QUANTILES: dict[str, Any] = {"top_quantiles_to_drop_per_net": 2, "policy_kwargs": QUANTILES}


def exact_density(squashed: Any) -> None:
    """Let a distribution of the peer compute log(1 - tanh(x)^2) as -2 log cosh(x), which also holds in float32."""

    def log_prob(actions: Tensor, gaussian_actions: Tensor) -> Tensor:
        log_cosh = torch.logaddexp(gaussian_actions, -gaussian_actions) - math.log(2.0)
        found: Tensor = DiagGaussianDistribution.log_prob(squashed, gaussian_actions)
        return found + 2.0 * log_cosh.sum(dim=1)

    squashed.log_prob = log_prob


def soft_peer(kind: Any, envs: VecEnv, applied: Applied = always, **settings: Any) -> Peer:
    """With a learned entropy coefficient."""
    peer = peer_of(kind, envs, **settings)
    networks = {
        "actor": Group(named(peer.actor), two_headed("latent_pi", "mu", "log_std"), peer.actor.optimizer),
        "ent_coef": logarithm(peer.log_ent_coef, peer.ent_coef_optimizer),
    }
    if applied("epsilon"):
        exact_density(peer.actor.action_dist)
    if kind is sb3_contrib.TQC and applied("sum"):
        scale_gradients(peer.critic.parameters(), 2.0)
    return peer, networks | critics(peer, 2)


def soft(algo: str, kind: Any, applied: Applied, ours_only: Any = None, **peer_only: Any) -> Difference:
    """Four updates."""
    settings = COMMON | {"ent_coef": "auto_0.5"}
    peer, networks = soft_peer(kind, spaces(CONTINUOUS), applied, **settings, **peer_only)
    ours = replay_learner(algo, CONTINUOUS, **settings, **(ours_only or {}))

    def given(seed: int) -> Given:
        batch, (own, following) = batch_of(CONTINUOUS, seed), normal(seed, 2, ROWS, ACTIONS)
        inside = []
        if algo == "sac" and not applied("inside"):
            batch, extra = with_states_inside(batch, seed)
            inside.append(extra)
        return Given(batch, [following, *inside, own], [own, following])

    return compare_updates(ours, networks, map(given, range(4)), partial(replayed, peer))


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
    return soft("tqc", sb3_contrib.TQC, applied, OUR_QUANTILES, **PEER_QUANTILES)


_HALF = f"The critics' loss is half the squared error, as in SAC; the peer's is the whole. {ADAM}"
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
            f"{ADAM}",
        },
    ),
]
