"""Our offline algorithms beside those of d3rlpy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any
from unittest import mock

import d3rlpy
import numpy as np
import torch
from d3rlpy.models.torch.policies import ActionOutput, build_gaussian_distribution
from d3rlpy.torch_utility import TorchMiniBatch
from torch import Tensor

from conformance import CONTINUOUS, DISCRETE, agent
from peers import (
    GAMMA,
    Applied,
    Difference,
    Draws,
    Group,
    Pair,
    Tensors,
    batch_of,
    column,
    named,
    peer_draws,
    renamed,
    replay_sides,
    scale_gradients,
    stacked,
    steps_of,
    when,
)
from rl_training.data.batches import Transitions
from rl_training.types import SpaceInfo

D3RLPY = "d3rlpy"
SIZES = (8, 6)
ROWS, OBSERVATIONS, ACTIONS = 16, 3, 2
RATE, TAU = 1e-2, 0.3


def peer_of(config: Any, info: SpaceInfo) -> Any:
    """What updates the networks of a d3rlpy algorithm, in double precision."""
    made = config.create(device=False)
    made.create_impl((OBSERVATIONS,), info.action_size)
    for part in vars(made.impl.modules).values():
        if isinstance(part, torch.nn.Module):
            part.double()
    return made.impl


def encoders(*names: str) -> dict[str, Any]:
    return {f"{name}encoder_factory": d3rlpy.models.VectorEncoderFactory(hidden_units=list(SIZES)) for name in names}


def ours_of(algo: str, info: SpaceInfo, **settings: Any) -> Any:
    common = {"hidden_sizes": SIZES, "batch_size": ROWS, "learning_rate": RATE, "normalize_obs": False}
    return agent(algo, info, engine="autograd", **common, **settings)


def torch_batch(batch: Transitions) -> TorchMiniBatch:
    action = torch.from_numpy(batch.action).reshape(len(batch), -1)
    obs, next_obs = torch.from_numpy(batch.obs), torch.from_numpy(batch.next_obs)
    nothing = torch.zeros(len(batch), 1)
    return TorchMiniBatch(
        observations=obs,
        actions=action,
        rewards=column(batch.reward),
        next_observations=next_obs,
        next_actions=torch.zeros_like(action),
        returns_to_go=nothing,
        terminals=column(batch.terminated),
        intervals=column(steps_of(batch)),
        device="cpu",
    )


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng([seed, 1]).standard_normal(shape)


# Names and shapes


def mlp(prefix: str = "", head: str = "_fc") -> dict[str, str]:
    """The layers of a network: their names in ours and in the peer."""
    hidden = {f"{prefix}torso.{2 * number}": f"_encoder._layers.{2 * number}" for number in range(len(SIZES))}
    return hidden | ({f"{prefix}head": head} if head else {})


def critic_group(impl: Any, functions: Any, *, trained: bool) -> Group:
    layers = [*(f"_encoder._layers.{2 * number}" for number in range(len(SIZES))), "_fc"]
    members = [[f"{k}.{layer}" for layer in layers] for k in range(len(functions))]
    optimizer = impl.modules.critic_optim.optim if trained else None
    return Group(named(functions), stacked(members, OBSERVATIONS), optimizer)


def critic_groups(impl: Any) -> dict[str, Group]:
    modules = impl.modules
    return {
        "critic": critic_group(impl, modules.q_funcs, trained=True),
        "slow critic": critic_group(impl, modules.targ_q_funcs, trained=False),
    }


def gaussian(tensors: Tensors) -> Tensors:
    """A policy whose deviations do not depend on the observation."""
    return renamed(mlp("network.", head="_mu"))(tensors) | {"log_std": tensors["_logstd"].reshape(-1)}


def plain_deviations(policy: Any) -> None:
    """Make the peer learn log deviations themselves, not what a sigmoid maps to their range."""

    def forward(self: Any, x: Tensor, *_: Any) -> ActionOutput:
        mean = self._mu(self._encoder(x))
        return ActionOutput(mean, mean.tanh(), self._logstd.expand_as(mean))

    policy.forward = MethodType(forward, policy)


# Imitation


def bc(applied: Applied) -> Difference:
    impl = peer_of(d3rlpy.algos.BCConfig(learning_rate=RATE, **encoders("")), CONTINUOUS)
    ours = ours_of("bc", CONTINUOUS, loss="mse")
    return imitated(ours, impl, CONTINUOUS)


def discrete_bc(applied: Applied) -> Difference:
    impl = peer_of(d3rlpy.algos.DiscreteBCConfig(learning_rate=RATE, beta=0.0, **encoders("")), DISCRETE)
    return imitated(ours_of("bc", DISCRETE), impl, DISCRETE)


def imitated(ours: Any, impl: Any, info: SpaceInfo) -> Difference:
    group = Group(named(impl.modules.imitator), renamed(mlp()), impl.modules.optim.optim)
    sides = replay_sides(ours, {"actor": group})
    for seed in range(3):
        batch = batch_of(info, ROWS, seed)
        ours.update(batch)
        impl.update(torch_batch(batch), seed)
    return sides.difference()


# Actors that values improve


def td3_bc(applied: Applied) -> Difference:
    rates = {"actor_learning_rate": RATE, "critic_learning_rate": RATE}
    smoothing = {"target_smoothing_sigma": 0.4, "target_smoothing_clip": 0.5, "update_actor_interval": 2}
    config = d3rlpy.algos.TD3PlusBCConfig(
        gamma=GAMMA, tau=TAU, alpha=1.5, **rates, **smoothing, **encoders("actor_", "critic_")
    )
    impl = peer_of(config, CONTINUOUS)
    ours = ours_of("td3_bc", CONTINUOUS, tau=TAU, alpha=1.5, target_policy_noise=0.4, target_noise_clip=0.5)
    modules = impl.modules
    actors = {
        "actor": Group(named(modules.policy), renamed(mlp()), modules.actor_optim.optim),
        "slow actor": Group(named(modules.targ_policy), renamed(mlp())),
    }
    sides = replay_sides(ours, actors | critic_groups(impl))
    if applied("half"):
        scale_gradients(dict(modules.q_funcs.named_parameters()), 0.5)
    for seed in range(4):
        batch, noise = batch_of(CONTINUOUS, ROWS, seed), normal(seed, ROWS, ACTIONS)
        ours.batch_rng = Draws(noise)
        ours.update(batch)
        with peer_draws(noise):
            impl.update(torch_batch(batch), ours.n_updates)
    return sides.difference()


def iql(applied: Applied) -> Difference:
    rates = {"actor_learning_rate": RATE, "critic_learning_rate": RATE}
    settings = {"expectile": 0.8, "max_weight": 1.05}
    config = d3rlpy.algos.IQLConfig(
        gamma=GAMMA, tau=TAU, weight_temp=2.0, **rates, **settings, **encoders("actor_", "critic_", "value_")
    )
    impl = peer_of(config, CONTINUOUS)
    ours = ours_of("iql", CONTINUOUS, actor_learning_rate=RATE, tau=TAU, beta=2.0, **settings)
    modules = impl.modules
    if applied("sigmoid"):
        plain_deviations(modules.policy)
    if applied("half"):
        scale_gradients(dict(modules.q_funcs.named_parameters()), 0.5)
    networks = {
        "actor": Group(named(modules.policy), gaussian, modules.actor_optim.optim),
        "value": Group(named(modules.value_func), renamed(mlp()), modules.critic_optim.optim),
    }
    sides = replay_sides(ours, networks | critic_groups(impl))
    for seed in range(3):
        batch = batch_of(CONTINUOUS, ROWS, seed)
        with values_before(ours, batch, applied("order")):
            seen = ours.update(batch)
        impl.update(torch_batch(batch), seed)
        assert 0.0 < seen["weight_clip_fraction"] < 1.0
    return sides.difference()


@contextmanager
def values_before(ours: Any, batch: Transitions, applied: bool) -> Iterator[None]:
    """The critics' targets use the values of next states from before the update."""
    outputs, before = ours.values.outputs, ours.values.outputs(batch.next_obs)

    def chosen(rows: np.ndarray) -> np.ndarray:
        return before if applied and np.array_equal(rows, batch.next_obs) else outputs(rows)

    with mock.patch.object(ours.values, "outputs", chosen):
        yield


def awac(applied: Applied) -> Difference:
    rates = {"actor_learning_rate": RATE, "critic_learning_rate": RATE}
    config = d3rlpy.algos.AWACConfig(gamma=GAMMA, tau=TAU, lam=0.7, **rates, **encoders("actor_", "critic_"))
    impl = peer_of(config, CONTINUOUS)
    ours = ours_of("awac", CONTINUOUS, tau=TAU, awac_lambda=0.7, weighting="softmax", policy_head="gaussian")
    modules = impl.modules
    if applied("sigmoid"):
        plain_deviations(modules.policy)
    if applied("half"):
        scale_gradients(dict(modules.q_funcs.named_parameters()), 0.5)
    if applied("mean"):
        scale_gradients(dict(modules.policy.named_parameters()), 1.0 / ROWS)
    if applied("entropy"):
        modules.log_temp._parameter.data.fill_(-math.inf)
    squashed = "d3rlpy.algos.qlearning.torch.sac_impl.build_squashed_gaussian_distribution"
    actor = Group(named(modules.policy), gaussian, modules.actor_optim.optim)
    sides = replay_sides(ours, {"actor": actor} | critic_groups(impl))
    for seed in range(3):
        batch, (following, own) = batch_of(CONTINUOUS, ROWS, seed), normal(seed, 2, ROWS, ACTIONS)
        ours.batch_rng = Draws(following, own)
        ours.update(batch)
        with (
            when(applied("clipped"), mock.patch(squashed, build_gaussian_distribution)),
            peer_draws(following, own[None]),
        ):
            if applied("order"):
                together(impl, torch_batch(batch))
            else:
                impl.update(torch_batch(batch), seed)
    return sides.difference()


def together(impl: Any, batch: TorchMiniBatch) -> None:
    """An update of the peer that computes all gradients before it changes a network."""
    impl.compute_critic_grad(batch)
    impl.compute_actor_grad(batch)
    impl.modules.actor_optim.step()
    impl.modules.critic_optim.step()
    impl.update_critic_target()


HALF = (
    "The critics' loss is half the squared error; the peer's is the whole. Adam steps the same way, up to its epsilon."
)
_SIGMOID = (
    "The log deviations of the policy are learned themselves and kept within their range; the peer learns numbers that "
    "a sigmoid maps to the range."
)

OFFLINE = [
    Pair("BC", D3RLPY, "three updates of the squared error, continuous actions", bc, "`loss: mse`"),
    Pair("BC, discrete actions", D3RLPY, "three updates", discrete_bc, "`beta=0` there: no penalty on logits"),
    Pair(
        "TD3+BC",
        D3RLPY,
        "four updates, two of the actor and the target networks",
        td3_bc,
        "the peer counts updates from 0, so its actor starts one update earlier",
        {"half": HALF},
    ),
    Pair(
        "IQL",
        D3RLPY,
        "three updates of values, actor and critics",
        iql,
        "`beta` is `weight_temp`",
        {
            "half": HALF,
            "sigmoid": _SIGMOID,
            "order": "The critics' targets use V after its step, as the paper's code does; the peer's use V before it.",
        },
    ),
    Pair(
        "AWAC",
        D3RLPY,
        "three updates",
        awac,
        "`weighting: softmax`; `awac_lambda` is `lam`",
        {
            "half": HALF,
            "sigmoid": _SIGMOID,
            "mean": "The actor's loss is averaged over the minibatch; the peer's is summed. Adam steps the same way, "
            "up to its epsilon.",
            "entropy": "Targets have no entropy, as in the paper; the peer's have SAC's, with a temperature of 1.",
            "clipped": "The next action of a target is drawn from the policy, a clipped Gaussian; the peer's is drawn "
            "from a Gaussian squashed by tanh.",
            "order": "All gradients are computed before a network changes, as in the paper's code; the peer's actor "
            "uses critics after their step.",
        },
    ),
]
