"""DreamerV3 (Hafner et al. 2025): a world model learned from experience; policy and value learn from its dreams."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import AlgorithmSpec, Context
from rl_training.algorithms.off_policy import ReplayAlgorithm
from rl_training.algorithms.parts.dreaming_policy import DreamerPolicy
from rl_training.algorithms.parts.dreams import (
    Draws,
    Dream,
    Noise,
    SequenceBatch,
    Sequences,
    dream,
    frozen,
)
from rl_training.algorithms.parts.dreams_engine import DREAMERS
from rl_training.algorithms.world import DreamerConfig, WorldLoopConfig, WorldModelConfig
from rl_training.data.batches import Windows
from rl_training.data.memory import Memory
from rl_training.models.normalizers import ReturnScale
from rl_training.models.rssm import Observed, WorldState
from rl_training.models.rssm_heads import NumberHead, action_noise
from rl_training.models.world_model import DreamerNetwork, WorldModel
from rl_training.ops.distributions import action_distribution
from rl_training.ops.latents import kl_losses
from rl_training.ops.returns import lambda_return
from rl_training.types import Capabilities, Metrics, mean_metrics

Losses = dict[str, Tensor]


def world_losses(world: WorldModel, seen: Observed, rows: Sequences, cfg: DreamerConfig) -> tuple[Losses, Tensor]:
    """The losses `[T, B]` of the model by name, and the divergence of posterior and prior (eq. 4 and 5).

    The discount is part of what the continuation learns, so that dreams need no other.
    """
    features = seen.state.features
    dynamics, representation, divergence = kl_losses(seen.posterior, world.rssm.prior(seen.state.deter), cfg.free_nats)
    errors = world.decoder.losses(world.decoder(seen.state), rows.obs)
    losses = {
        "reconstruction": torch.stack(list(errors.values())).sum(dim=0),
        "reward": world.reward.loss(world.reward(features), rows.reward),
        "continue": world.continues.loss(world.continues(features), cfg.gamma * (~rows.terminal).float()),
        "dynamics": dynamics,
        "representation": representation,
    }
    if world.legal is not None and rows.mask is not None:
        losses["legal"] = world.legal.loss(world.legal(features), rows.mask)
    return losses, divergence


def behaviour_losses(
    network: DreamerNetwork, slow: NumberHead, scale: ReturnScale, start: WorldState, noise: Noise, cfg: DreamerConfig
) -> tuple[Losses, Losses]:
    """The losses `[H, N]` of policy and value on dreams from states `[N, ...]`, and figures of them (eq. 7 to 11).

    Nothing here teaches the model. A dream counts as much as the model believes that it goes on, from its start.
    """
    world, head = network.world, network.value
    with _outside(network, cfg):
        dreamt = dream(network, start, noise)
        reward = world.reward.mean(world.reward(dreamt.features))
        discount = torch.sigmoid(world.continues(dreamt.features))
    features = dreamt.features.detach()
    logits = head(features)
    with _outside(network, cfg):
        value = head.mean(logits if cfg.actor_gradient == "reinforce" else head(dreamt.features))
        returns = lambda_return(reward, value, discount, cfg.return_lambda)
    scale.update(returns.detach().cpu().numpy())
    policy, entropy = policy_loss(network, dreamt, (returns - value[:-1]) / scale.scale, returns / scale.scale, cfg)
    weight = discount.detach().cumprod(dim=0)[:-1]
    losses = {
        "policy": weight * policy,
        "value": weight * value_loss(head, logits[:-1], returns, slow, features[:-1], cfg),
    }
    figures = {"entropy": entropy, "imagined_reward": reward[1:], "imagined_return": returns[0], "value": value}
    return losses, {name: figure.detach() for name, figure in figures.items()}


def _outside(network: DreamerNetwork, cfg: DreamerConfig) -> AbstractContextManager[None]:
    """How dreams are computed: without a gradient, or with one that reaches the policy alone."""
    if cfg.actor_gradient == "reinforce":
        return torch.no_grad()
    return frozen(network.world, network.value)


def policy_loss(
    network: DreamerNetwork, dreamt: Dream, advantage: Tensor, returns: Tensor, cfg: DreamerConfig
) -> tuple[Tensor, Tensor]:
    """The losses and the entropies `[H, N]`: what was done counts by its advantage, or returns are differentiated."""
    distribution = action_distribution(network.world.info)
    params = network.policy(dreamt.features[:-1].detach(), dreamt.mask)
    entropy = distribution.entropy(params)
    gain = returns
    if cfg.actor_gradient == "reinforce":
        gain = distribution.log_prob(params, dreamt.action) * advantage.detach()
    return -(gain + cfg.entropy_coef * entropy), entropy


def value_loss(
    head: NumberHead, logits: Tensor, target: Tensor, slow: NumberHead, features: Tensor, cfg: DreamerConfig
) -> Tensor:
    """The losses `[...]` of values with their targets, and with what the slow value says of the same states."""
    with torch.no_grad():
        slow_value = slow.mean(slow(features))
    return head.loss(logits, target.detach()) + cfg.slow_value_coef * head.loss(logits, slow_value)


def replay_value_loss(
    network: DreamerNetwork,
    slow: NumberHead,
    features: Tensor,
    rows: Sequences,
    starts: Tensor,
    imagined: Tensor,
    cfg: DreamerConfig,
) -> tuple[Tensor, Tensor]:
    """The losses and the returns `[T - 1, B]` of the values of real states with features `[T, B, F]`.

    Real rewards, and beyond them the returns `imagined` `[N]` of the rows where a dream started; where none did, the
    value. A last row has no successor in its episode: a return stops there, and nothing is learned about it.
    """
    features = features if cfg.replay_value_grad else features.detach()
    logits = network.value(features)
    bootstrap = network.value.mean(logits.detach())
    bootstrap.view(-1)[starts] = imagined
    goes_on, stays = (~rows.terminal).float(), (~rows.last).float()
    returns = lambda_return(rows.reward, bootstrap, cfg.gamma * goes_on, cfg.return_lambda * stays)
    return stays[:-1] * value_loss(network.value, logits[:-1], returns, slow, features[:-1], cfg), returns


def dreamer_loss(
    network: DreamerNetwork,
    slow: NumberHead,
    scale: ReturnScale,
    rows: Sequences,
    noise: Noise,
    cfg: DreamerConfig,
) -> tuple[Tensor, dict[str, Tensor], WorldState]:
    """The loss of one update of everything, its parts and other figures, and the states of the rows `[T, B]`."""
    world = network.world
    seen = world.observe(rows.before, rows.previous_action, rows.obs, rows.first, noise.posterior)
    losses, divergence = world_losses(world, seen, rows, cfg)
    start = WorldState(*(part.flatten(0, 1)[noise.starts] for part in seen.state.detached()))
    learned, figures = behaviour_losses(network, slow, scale, start, noise, cfg)
    imagined = figures["imagined_return"]
    replay, returns = replay_value_loss(network, slow, seen.state.features, rows, noise.starts, imagined, cfg)
    means = {name: values.mean() for name, values in {**losses, **learned, "replay_value": replay}.items()}
    weights = {
        "reconstruction": cfg.reconstruction_coef,
        "reward": cfg.reward_coef,
        "continue": cfg.continue_coef,
        "legal": cfg.continue_coef,
        "dynamics": cfg.dynamics_coef,
        "representation": cfg.representation_coef,
        "policy": cfg.policy_coef,
        "value": cfg.value_coef,
        "replay_value": cfg.replay_value_coef,
    }
    loss = torch.stack([weights[name] * mean for name, mean in means.items()]).sum()
    found = {"loss": loss} | {f"{name}_loss": mean for name, mean in means.items()}
    found |= {"kl": divergence.mean(), "replayed_return": returns.mean()}
    found |= {name: figure.mean() for name, figure in figures.items()}
    return loss, found | {"return_scale": loss.new_tensor(scale.scale)}, seen.state


class Dreamer(ReplayAlgorithm):
    """Learns from windows of a memory of rows, and remembers with them the states that the model saw in them."""

    cfg: DreamerConfig
    policy: DreamerPolicy

    def __init__(self, context: Context) -> None:
        policy = DreamerPolicy(context)
        model = DREAMERS[policy.engine](policy.network, policy.weights, policy.observer, context.config, dreamer_loss)
        super().__init__(context, policy, {policy.name: model.learner}, {"slow_value": model.slow})
        self.model = model

    def learn_from(self, memory: Memory, updates: int) -> Metrics:
        return mean_metrics(self.update(memory) for _ in range(updates))

    def update(self, memory: Memory) -> Metrics:
        cfg = self.cfg
        windows = memory.windows(cfg.batch_size, self.batch_rng, length=cfg.batch_length + 1, across_episodes=True)
        outcome = self.model.differentiate(self.sequences(windows), self.draws(), cfg)
        norm = self.model.descend(cfg)
        memory.note(windows.index[1:], columns={"deter": outcome.deter, "stoch": outcome.stoch})
        self.n_updates += 1
        return outcome.metrics | {"grad_norm": norm}

    def sequences(self, windows: Windows) -> SequenceBatch:
        """Windows of T + 1 rows as T rows to learn from; the first is their context, and says what was done before."""
        return SequenceBatch(
            self.observer.scaled(windows.obs[1:]),
            windows.action[:-1],
            windows.reward[1:],
            windows.first[1:],
            windows.terminated[1:] | windows.truncated[1:],
            windows.terminated[1:],
            windows.records["deter"][0],
            windows.records["stoch"][0],
        )

    def draws(self) -> Draws:
        """The random numbers of the next update."""
        cfg, rng, stoch = self.cfg, self.batch_rng, self.policy.size.stoch
        rows, horizon = cfg.batch_length * cfg.batch_size, cfg.imagination_horizon
        posterior = rng.random((cfg.batch_length, cfg.batch_size, stoch), dtype=np.float32)
        starts = np.arange(rows)
        if cfg.imagination_starts is not None and cfg.imagination_starts < rows:
            starts = np.sort(rng.permutation(rows)[: cfg.imagination_starts])
        prior = rng.random((horizon, len(starts), stoch), dtype=np.float32)
        return Draws(posterior, starts, prior, action_noise(self.info, (horizon, len(starts)), rng))

    def training_state(self) -> dict[str, Any]:
        return super().training_state() | {"return_scale": self.model.scale.state_dict()}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        super().load_training_state(state)
        self.model.scale.load_state_dict(state["return_scale"])


SPEC = AlgorithmSpec(
    name="dreamer",
    family="world_model",
    summary="A world model, whose dreams a policy learns from",
    config=DreamerConfig,
    loop=WorldLoopConfig,
    model=WorldModelConfig,
    policy=DreamerPolicy,
    build=Dreamer,
    capabilities=Capabilities(
        observations=("vector", "image", "dict"),
        actions=("discrete", "multi_discrete", "multi_binary", "continuous"),
        recurrent=True,
    ),
)
