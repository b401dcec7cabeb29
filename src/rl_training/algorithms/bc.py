"""Behaviour cloning: repeat what the data's actors did."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch

from rl_training.algorithms.base import AlgorithmSpec, Context, model_setting, setting
from rl_training.algorithms.off_policy import Minibatch, MinibatchConfig, OffPolicyAlgorithm, OffPolicyModelConfig
from rl_training.algorithms.offline import BehaviorLoopConfig
from rl_training.algorithms.parts.actors import MeanActor, SoftActor
from rl_training.algorithms.parts.imitators import ChoiceActor
from rl_training.algorithms.parts.networks import Networks, check_output
from rl_training.algorithms.parts.observer import Observer
from rl_training.data.replay import Replay
from rl_training.models.heads import MLPNetwork
from rl_training.models.mlp_engine import covered
from rl_training.types import Act, Array, Capabilities, Metrics, Step


class BCModelConfig(OffPolicyModelConfig):
    """A network that gives actions before tanh (and their log deviations), or the logits of choices."""

    model: str = model_setting(probe="rl_training.testing:LinearPolicy")


class BCConfig(MinibatchConfig):
    """minimise (pi(s) - a)^2 or -log pi(a | s)"""

    loss: Literal["mse", "likelihood"] = setting(
        "mse",
        "Of continuous actions: squared error, or the likelihood of a squashed Gaussian, as in SAC.",
        live_when={"actions": "continuous"},
        probe="likelihood",
    )


class BC(OffPolicyAlgorithm):
    """A policy that repeats the data's actions; rewards mean nothing to it."""

    cfg: BCConfig
    policy = "actor"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        kind: type[MeanActor | SoftActor | ChoiceActor] = ChoiceActor
        if self.info.continuous:
            kind = SoftActor if self.cfg.loss == "likelihood" else MeanActor
        outputs = self.info.action_size * (2 if kind is SoftActor else 1)
        self.actor = kind(_build_network(context, self.observer, outputs), self.observer)
        self.learners = {"actor": self.actor.learner}
        self.followers = {}

    @property
    def engine(self) -> str:
        return "mlp" if self.actor.fast else "autograd"

    def gather(self, replay: Replay, index: Array) -> Step:
        return replay.gather(index, gamma=1.0)

    def act(self, obs: Array, carry: Any = None, *, explore: bool) -> Act:
        return Act(self.actor.decide(self.observer.scaled(obs), self.policy_rng if explore else None), carry)

    def learn(self, mini: Minibatch) -> Metrics:
        weight = np.ones(len(mini), np.float32)
        return {"loss": float(np.mean(self.actor.imitate(mini.obs, mini.action, weight, self.cfg.learning_rate)))}

    def judge(self, obs: Array, action: Array) -> float:
        """The loss on what nothing is learned from."""
        return float(self.actor.cost(self.observer.scaled(obs), action).mean())


def _build_network(context: Context, observer: Observer, outputs: int) -> Networks:
    """The default network or a user's own, tried on two observations of zeros."""
    info, model, make = context.info, context.model, context.model_factory
    assert isinstance(model, BCModelConfig)
    network = MLPNetwork(info, outputs, model.hidden_sizes, model.activation) if make is None else make(info, model)
    network = network.to(context.device).eval()
    with torch.inference_mode():
        given = network(observer.tensors(np.zeros((2, *info.obs_shape), info.obs_dtype)))
    check_output(model.model, "it", given, outputs)
    fast = make is None and context.engine == "auto" and covered(network)
    return Networks(network, network, 0, fast=fast)


SPEC = AlgorithmSpec(
    name="bc",
    family="offline",
    summary="Behaviour cloning",
    config=BCConfig,
    loop=BehaviorLoopConfig,
    model=BCModelConfig,
    build=BC,
    capabilities=Capabilities(
        observations=("vector", "image", "dict"), actions=("continuous", "discrete"), offline=True
    ),
)
