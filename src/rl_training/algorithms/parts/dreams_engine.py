"""The update of Dreamer in closed form: `dreamer_loss` of `algorithms.dreamer`, and its gradient, without autograd.

A test checks that both forms find the same gradients and the same metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from rl_training.algorithms.off_policy import Engine
from rl_training.algorithms.parts.dreams import (
    AutogradDreamer,
    Draws,
    Loss,
    Outcome,
    SequenceBatch,
    TrainedDreamer,
)
from rl_training.algorithms.parts.observer import Observer
from rl_training.models.flat import FlatWeights
from rl_training.models.rssm_engine_acting import ActingDreamer
from rl_training.models.rssm_engine_heads import Goals, Said
from rl_training.models.rssm_heads import NumberHead
from rl_training.models.world_model import DreamerNetwork
from rl_training.models.world_model_engine import DreamerEngine, Learned, Lesson, Shape, joined_numbers, within_reach
from rl_training.ops.kernels.returns import lambda_return_kernel
from rl_training.types import Array, Metrics


class Returns(NamedTuple):
    """What is learned about values, and how much its rows count: of dreams `[H, N]`, and of real rows `[T - 1, B]`."""

    dreamt: Array
    weight: Array
    advantage: Array
    real: Array
    stays: Array


class EngineDreamer(TrainedDreamer):
    """Networks for vectors whose policy learns by likelihoods, by the engine."""

    def __init__(self, network: DreamerNetwork, weights: FlatWeights, observer: Observer, cfg: Any, loss: Loss) -> None:
        super().__init__(network, weights, observer, cfg, loss)
        slow = self.slow.module
        assert isinstance(slow, NumberHead)
        self.engine = DreamerEngine(network, slow)

    def differentiate(self, batch: SequenceBatch, draws: Draws, cfg: Any) -> Outcome:
        engine, info = self.engine, self.network.world.info
        rows = batch.obs.reshape(-1, *batch.obs.shape[2:])
        deter, stoch = engine.observe(
            batch.deter,
            batch.stoch,
            batch.previous_action,
            joined_numbers(info, self.observer.arrays(rows)),
            batch.first,
            draws.posterior,
            dreams=draws.action.shape[:2],
        )
        engine.dream(draws.starts, draws.prior, draws.action)
        said = engine.judge()
        returns = self._returns(said, batch, draws.starts, cfg)
        lesson = _lesson(engine.shape, said, returns, batch, self.observer.mask(rows), cfg)
        learned = engine.learn(lesson)
        losses = _losses(engine.shape, returns, learned, cfg)
        metrics = losses | _figures(engine.shape, said, returns, learned) | {"return_scale": self.scale.scale}
        return Outcome(metrics, deter.copy(), stoch)

    def _returns(self, said: Said, batch: SequenceBatch, starts: Array, cfg: Any) -> Returns:
        """`behaviour_losses` and `replay_value_loss`: what policy and value learn."""
        shape = self.engine.shape
        reward, value, discount = (
            numbers[shape.seen :].reshape(-1, shape.starts) for numbers in (said.reward, said.value, said.goes_on)
        )
        trace = np.full_like(value, cfg.return_lambda)
        dreamt = lambda_return_kernel(reward, value, discount, trace)
        self.scale.update(dreamt)
        advantage = (dreamt - value[:-1]) / np.float32(self.scale.scale)
        weight = np.cumprod(discount, axis=0)[:-1]
        bootstrap = said.value[: shape.seen].copy()
        bootstrap[starts] = dreamt[0]
        stays = (~batch.last.astype(np.bool_)).astype(np.float32)
        real = lambda_return_kernel(
            np.ascontiguousarray(batch.reward, np.float32),
            bootstrap.reshape(batch.reward.shape),
            _goes_on(batch, cfg),
            np.float32(cfg.return_lambda) * stays,
        )
        return Returns(dreamt, weight, advantage, real, stays[:-1])


class EngineFollowing:
    """How a policy follows states, by the engine: for networks within its reach."""

    def __init__(self, network: DreamerNetwork, observer: Observer) -> None:
        self._info, self._observer, self._acting = network.world.info, observer, ActingDreamer(network)

    def __call__(
        self, rows: Array, deter: Array, stoch: Array, action: Array, uniform: Array | None
    ) -> tuple[Array, Array, Array]:
        """The state after (scaled) observations `[B, ...]`, and the policy's parameters `[B, P]` there."""
        numbers = joined_numbers(self._info, self._observer.arrays(rows))
        return self._acting.follow(numbers, deter, stoch, action, uniform, self._observer.mask(rows))


def dreamer_form(network: nn.Module, cfg: Any) -> Engine:
    """Which form can compute an update: the engine knows default networks for vectors, and learning by likelihoods."""
    return "mlp" if within_reach(network) and cfg.actor_gradient == "reinforce" else "autograd"


def _goes_on(batch: SequenceBatch, cfg: Any) -> Array:
    """With which probability rows are followed by others `[T, B]`; the discount is part of it."""
    goes_on: Array = np.where(batch.terminal, np.float32(0.0), np.float32(cfg.gamma))
    return goes_on


def _lesson(shape: Shape, said: Said, returns: Returns, batch: SequenceBatch, mask: Array | None, cfg: Any) -> Lesson:
    """What is learned, with the weights of single rows: losses are means over their rows."""
    each = 1.0 / shape.seen
    step = np.float32(cfg.policy_coef / returns.dreamt.size) * returns.weight
    return Lesson(
        value=_value_goals(shape, said, returns, cfg),
        reward=batch.reward.astype(np.float32, copy=False).reshape(-1),
        goes_on=_goes_on(batch, cfg).reshape(-1),
        mask=mask,
        d_log_prob=(-step * returns.advantage).reshape(-1),
        d_entropy=(np.float32(-cfg.entropy_coef) * step).reshape(-1),
        free_nats=cfg.free_nats,
        reconstruction_weight=cfg.reconstruction_coef * each,
        reward_weight=cfg.reward_coef * each,
        continue_weight=cfg.continue_coef * each,
        dynamics_weight=cfg.dynamics_coef * each,
        representation_weight=cfg.representation_coef * each,
        through_value=cfg.replay_value_grad,
    )


def _value_goals(shape: Shape, said: Said, returns: Returns, cfg: Any) -> Goals:
    """The returns and the slow values, of real rows, but for the last of a window, and of dreams."""
    learned, real = shape.learned, returns.real.size
    target, weight = np.zeros((2, learned), np.float32), np.zeros((2, learned), np.float32)
    target[0, :real], target[0, shape.seen :] = returns.real.reshape(-1), returns.dreamt.reshape(-1)
    target[1] = said.slow[:learned]
    weight[0, :real] = np.float32(cfg.replay_value_coef / real) * returns.stays.reshape(-1)
    weight[0, shape.seen :] = np.float32(cfg.value_coef / returns.dreamt.size) * returns.weight.reshape(-1)
    weight[1] = np.float32(cfg.slow_value_coef) * weight[0]
    return Goals(target, weight)


def _losses(shape: Shape, returns: Returns, learned: Learned, cfg: Any) -> Metrics:
    """The loss of `dreamer_loss`, and its parts."""
    divergence = np.maximum(learned.divergence, np.float32(cfg.free_nats)).mean()
    gain = learned.log_prob * returns.advantage.reshape(-1) + cfg.entropy_coef * learned.entropy
    value = learned.value[0] + cfg.slow_value_coef * learned.value[1]
    real, weight = returns.stays.reshape(-1), returns.weight.reshape(-1)
    parts = {
        "reconstruction": (cfg.reconstruction_coef, learned.reconstruction.mean()),
        "reward": (cfg.reward_coef, learned.reward.mean()),
        "continue": (cfg.continue_coef, learned.goes_on.mean()),
        "dynamics": (cfg.dynamics_coef, divergence),
        "representation": (cfg.representation_coef, divergence),
        "legal": (cfg.continue_coef, None if learned.legal is None else learned.legal.mean()),
        "policy": (cfg.policy_coef, -(weight * gain).mean()),
        "value": (cfg.value_coef, (weight * value[shape.seen :]).mean()),
        "replay_value": (cfg.replay_value_coef, (real * value[: real.size]).mean()),
    }
    found = {name: (coef, float(mean)) for name, (coef, mean) in parts.items() if mean is not None}
    loss = sum(coef * mean for coef, mean in found.values())
    return {"loss": loss} | {f"{name}_loss": mean for name, (_, mean) in found.items()}


def _figures(shape: Shape, said: Said, returns: Returns, learned: Learned) -> Metrics:
    """What else `dreamer_loss` reports."""
    return {
        "kl": float(learned.divergence.mean()),
        "replayed_return": float(returns.real.mean()),
        "entropy": float(learned.entropy.mean()),
        "imagined_reward": float(said.reward[shape.seen + shape.starts :].mean()),
        "imagined_return": float(returns.dreamt[0].mean()),
        "value": float(said.value[shape.seen :].mean()),
    }


# The class of each form.
DREAMERS: dict[Engine, Callable[[DreamerNetwork, FlatWeights, Observer, Any, Loss], TrainedDreamer]] = {
    "autograd": AutogradDreamer,
    "mlp": EngineDreamer,
}
