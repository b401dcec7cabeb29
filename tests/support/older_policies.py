"""Rollouts of a policy that is older than the learner, and V-trace of them by its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from conformance import played
from rl_training.algorithms.actor_learner import ActorLearnerAlgorithm
from rl_training.data.rollout import Rollout
from rl_training.types import SpaceInfo


def older(
    learner: ActorLearnerAlgorithm, info: SpaceInfo, *, n_steps: int = 7, num_envs: int = 3, seed: int = 0
) -> Rollout:
    """A rollout of the learner's policy, which then moves on; what acting said of values is made useless."""
    rollout = played(learner, info, n_steps=n_steps, num_envs=num_envs, seed=seed)
    rollout.records["value"][:] = np.nan
    move(learner, seed)
    return rollout


def move(learner: ActorLearnerAlgorithm, seed: int = 0) -> None:
    noise = torch.randn(learner.parameters.data.shape, generator=torch.manual_seed(seed))
    learner.parameters.data += 0.3 * noise


def network_says(learner: Any, rollout: Rollout, network: Any = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log-probabilities and values of the rows, and values of their true successors, each `[T, B]`, by torch."""
    shape = rollout.real.shape
    network = learner.network if network is None else network
    rows, action = (column.reshape(-1, *column.shape[2:]) for column in (rollout.obs, rollout.action))
    with torch.no_grad():
        params, value = network(torch.from_numpy(rows))
        log_prob = learner.distribution.log_prob(params, torch.from_numpy(action))
        successors = network(torch.from_numpy(rollout.bootstrap_obs()))[1]
    value = value.numpy().reshape(shape)
    return log_prob.numpy().reshape(shape), value, rollout.next_values(value, successors.numpy())


def plain_vtrace(
    rollout: Rollout, log_prob: np.ndarray, value: np.ndarray, next_value: np.ndarray, cfg: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Targets and advantages by the sums of Espeholt et al. 2018, eq. 1, and not by a recursion."""
    steps, envs = rollout.reward.shape
    ratio = np.exp(log_prob.astype(np.float64) - rollout.records["log_prob"])
    rho, c = np.minimum(cfg.rho_bar, ratio), cfg.vtrace_lambda * np.minimum(cfg.c_bar, ratio)
    following = np.where(rollout.terminated, 0.0, next_value)
    delta = rho * (rollout.reward + cfg.gamma * following - value)
    target, advantage = np.zeros((2, steps, envs))
    for b in range(envs):
        for s in range(steps):
            total, weight = 0.0, 1.0
            for t in range(s, steps):
                total += cfg.gamma ** (t - s) * weight * delta[t, b]
                weight *= c[t, b]
                if rollout.done[t, b]:
                    break
            target[s, b] = value[s, b] + total
        for s in range(steps):
            last = rollout.done[s, b] or s == steps - 1
            successor = following[s, b] if last else target[s + 1, b]
            advantage[s, b] = rollout.reward[s, b] + cfg.gamma * successor - value[s, b]
    return target, advantage
