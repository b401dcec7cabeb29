"""One task's part of an update of ScaleZero, worked out window by window and step by step.

Networks are read one window at a time and, but for their encoders, in float64: so by torch alone.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import torch

from rl_training.data.batches import Windows
from rl_training.models.scalezero import Dynamics, Prediction, ScaleZeroNetwork
from rl_training.types import Array
from scalezero_runs import SMALL

CONTEXT, STEPS, N_STEP, BATCH, GAMMA, CLIP = 3, 3, 2, 24, 0.9, 1.5
COEFS = {"policy_coef": 2.0, "value_coef": 3.0, "reward_coef": 5.0, "latent_coef": 7.0, "ent_coef": 0.5}
GROUP, VALUE_LIMIT, VALUE_BINS, REWARD_LIMIT, REWARD_BINS = 4, 20.0, 11, 5.0, 7
SETTINGS: dict[str, Any] = {
    **(SMALL | COEFS),
    **{"context_length": CONTEXT, "unroll_steps": STEPS, "n_step": N_STEP, "batch_size": BATCH, "gamma": GAMMA},
    **{"normalize_obs": True, "obs_clip": CLIP, "num_simulations": 5, "hidden_sizes": [8], "latent_group": GROUP},
    **{"value_limit": VALUE_LIMIT, "value_bins": VALUE_BINS, "reward_limit": REWARD_LIMIT, "reward_bins": REWARD_BINS},
    **{"balance_coef": 0.0, "max_num_considered_actions": 2, "learning_starts": 30, "updates_per_step": 0.1},
    "output_dir": "unused",
}


def stored(memory: Any) -> Array:
    """The slots of all transitions."""
    return np.concatenate(memory.replay.histories())


# Numbers and distributions


def compressed(x: Any) -> Any:
    return np.sign(x) * (np.sqrt(np.abs(x) + 1.0) - 1.0) + 0.001 * x


def expanded(y: float) -> float:
    """The inverse of `compressed`, as Pohlen et al. (2018) write it."""
    root = (np.sqrt(1.0 + 0.004 * (abs(y) + 1.001)) - 1.0) / 0.002
    return float(np.sign(y) * (root**2 - 1.0))


def points(limit: float, bins: int) -> Array:
    return np.linspace(-compressed(limit), compressed(limit), bins)


def shares(x: float, limit: float, bins: int) -> Array:
    """A number as a distribution: every point gets less the further it is away, and beyond its neighbours nothing."""
    at = points(limit, bins)
    apart = np.abs(np.clip(compressed(np.float64(x)), at[0], at[-1]) - at)
    return np.maximum(1.0 - apart / (at[1] - at[0]), 0.0)


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def number(logits: Array) -> float:
    """The value that logits stand for."""
    return expanded(float(softmax(logits) @ points(VALUE_LIMIT, VALUE_BINS)))


def kl(wanted: Array, logits: Array) -> float:
    share, there = softmax(logits), wanted > 0.0
    return float((wanted[there] * np.log(wanted[there] / share[there])).sum())


# What a network says of one window at a time


class Reader:
    """Reads what was seen in a task with copies of a network as it is now, latents in float64."""

    def __init__(self, network: ScaleZeroNetwork, task: str, memory: Any) -> None:
        self.encoding, self.network, self.task = copy.deepcopy(network), copy.deepcopy(network).double(), task
        seen = memory.replay.gather(stored(memory), gamma=1.0).obs.astype(np.float64)
        self.mean, self.deviation = seen.mean(axis=0), np.sqrt(seen.var(axis=0) + 1e-8)

    def __call__(self, obs: Array, actions: Array) -> tuple[Array, Prediction, Dynamics]:
        """The latents of states, what is predicted of each, and what follows each action between them."""
        scaled = np.clip((obs - self.mean) / self.deviation, -CLIP, CLIP)
        with torch.no_grad():
            latents = self.encoding.encode(self.task, torch.from_numpy(scaled).float()).double()
            features = self.network.read(latents[None], torch.from_numpy(actions)[None], stage=0).features[0]
            heads = self.network.heads_of(self.task)
            found = heads.predict(features[0::2]), heads.follow(features[1::2])
        prediction, dynamics = ([part.numpy() for part in parts] for parts in found)
        return latents.numpy(), Prediction(*prediction), Dynamics(*dynamics)


class Told(NamedTuple):
    """What an update says of a task, and the errors `[B]` of the first values."""

    metrics: dict[str, float]
    loss: float
    errors: Array


def told(online: Reader, target: Reader, windows: Windows, actions: Array, old: Array) -> Told:
    """The terms of one task's loss, window after window; targets of `old` ones `[B]` are the values of searches."""
    parts = dict.fromkeys(("policy_kl", "value_kl", "reward_kl", "latent_loss", "entropy"), 0.0)
    errors, firsts = np.zeros(BATCH), np.zeros(BATCH)
    for b in range(BATCH):
        real, reward = windows.real[:, b], windows.reward[:, b].astype(np.float64)
        obs = [windows.obs[0, b]]
        for row in range(STEPS + N_STEP):
            obs.append(windows.next_obs[row, b] if real[row] else obs[-1])
        states = np.stack(obs).astype(np.float64)
        _, says, follows = online(states[: STEPS + 1], actions[:STEPS, b])
        latents, ahead, _ = target(states, actions[:, b])
        over = windows.terminated[: int(real.sum()), b].any()
        weight = 1.0 if windows.weight is None else float(windows.weight[b])
        for k in range(STEPS + 1):
            share, value = weight / (BATCH * (STEPS + 1)), 0.0
            if real[k] and old[b]:
                value = float(windows.records["search_value"][k, b])
            elif real[k]:
                for row in range(k, k + N_STEP):
                    value += GAMMA ** (row - k) * reward[row]
                    if windows.terminated[row, b]:
                        break
                    if row == k + N_STEP - 1 or not real[row + 1]:
                        value += GAMMA ** (row + 1 - k) * number(ahead.value[row + 1])
                        break
            if k == 0:
                firsts[b], errors[b] = value, abs(number(says.value[0]) - value)
            if real[k]:
                own = softmax(says.policy[k])
                parts["policy_kl"] += share * kl(windows.records["policy"][k, b], says.policy[k])
                parts["entropy"] -= share * float((own * np.log(own)).sum())
            if real[k] or over:
                parts["value_kl"] += share * kl(shares(value, VALUE_LIMIT, VALUE_BINS), says.value[k])
            if k < STEPS and (real[k] or over):
                share = weight / (BATCH * STEPS)
                paid = shares(reward[k] if real[k] else 0.0, REWARD_LIMIT, REWARD_BINS)
                groups = zip(latents[k + 1].reshape(-1, GROUP), follows.latent[k].reshape(-1, GROUP), strict=True)
                parts["reward_kl"] += share * kl(paid, follows.reward[k])
                parts["latent_loss"] += share * np.mean([kl(wanted, given) for wanted, given in groups])
    entropy = parts.pop("entropy")
    loss = sum(coef * term for coef, term in zip(COEFS.values(), (*parts.values(), -entropy), strict=True))
    return Told(parts | {"value_error": errors.mean(), "value_target_mean": firsts.mean()}, loss, errors)
