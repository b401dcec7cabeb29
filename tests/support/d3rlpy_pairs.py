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

from conformance import CONTINUOUS, DISCRETE
from peer_data import ACTIONS, GAMMA, RATE, ROWS, TAU, batch_of, column, normal, steps_of
from peer_networks import SIZES, mlp, named, renamed, stacked, with_target
from peer_updates import Given, Update, compare_updates, replay_learner, with_smoothing, without_noise
from peers import ADAM, Applied, Difference, Group, Pair, Tensors, scale_gradients, when
from rl_training.data.batches import Transitions
from rl_training.types import SpaceInfo

D3RLPY = "d3rlpy"
ENCODER = "_encoder._layers"
# A network with one head.
PLAIN = mlp(ENCODER, "_fc")


def peer_of(kind: Any, info: SpaceInfo, *networks: str, **settings: Any) -> Any:
    """What updates the networks of a d3rlpy algorithm, in double precision. `networks` are what has hidden layers."""
    hidden = d3rlpy.models.VectorEncoderFactory(hidden_units=list(SIZES))
    encoders = {f"{name}encoder_factory": hidden for name in networks or [""]}
    made = kind(**encoders, **settings).create(device=False)
    made.create_impl(info.obs_shape, info.action_size)
    for part in vars(made.impl.modules).values():
        if isinstance(part, torch.nn.Module):
            part.double()
    return made.impl


def actor_critic(kind: Any, *more: str, **settings: Any) -> Any:
    """A peer with actor and critics, and `more` networks."""
    common = {"actor_learning_rate": RATE, "critic_learning_rate": RATE, "gamma": GAMMA, "tau": TAU}
    return peer_of(kind, CONTINUOUS, "actor_", "critic_", *more, **(common | settings))


def offline_learner(algo: str, info: SpaceInfo, **settings: Any) -> Any:
    return replay_learner(algo, info, normalize_obs=False, **settings)


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


def updating(ours: Any, impl: Any) -> Update:
    """Updates of the peer, which is told how many ours has made."""
    return lambda batch: impl.update(torch_batch(batch), ours.n_updates)


# Names and shapes


def critics(impl: Any) -> dict[str, Group]:
    modules = impl.modules
    members = [mlp(f"{number}.{ENCODER}", f"{number}._fc") for number in range(len(modules.q_funcs))]
    optimizer = modules.critic_optim.optim
    return with_target("critic", modules.q_funcs, modules.targ_q_funcs, stacked(members), optimizer)


def gaussian(tensors: Tensors) -> Tensors:
    """A policy whose deviations do not depend on the observation."""
    return renamed(mlp(ENCODER, "_mu", "network."))(tensors) | {"log_std": tensors["_logstd"].reshape(-1)}


def plain_deviations(policy: Any) -> None:
    """Make the peer learn log deviations themselves, not what a sigmoid maps to their range."""

    def forward(self: Any, x: Tensor, *_: Any) -> ActionOutput:
        mean = self._mu(self._encoder(x))
        return ActionOutput(mean, mean.tanh(), self._logstd.expand_as(mean))

    policy.forward = MethodType(forward, policy)


# Imitation


def bc(applied: Applied) -> Difference:
    impl = peer_of(d3rlpy.algos.BCConfig, CONTINUOUS, learning_rate=RATE)
    return imitated(offline_learner("bc", CONTINUOUS, loss="mse"), impl, CONTINUOUS)


def discrete_bc(applied: Applied) -> Difference:
    impl = peer_of(d3rlpy.algos.DiscreteBCConfig, DISCRETE, learning_rate=RATE, beta=0.0)
    return imitated(offline_learner("bc", DISCRETE), impl, DISCRETE)


def imitated(ours: Any, impl: Any, info: SpaceInfo) -> Difference:
    actor = Group(named(impl.modules.imitator), renamed(PLAIN), impl.modules.optim.optim)
    return compare_updates(ours, {"actor": actor}, without_noise(info, 3), updating(ours, impl))


# Actors that values improve


def td3_bc(applied: Applied) -> Difference:
    smoothing = {"target_smoothing_sigma": 0.4, "target_smoothing_clip": 0.5, "update_actor_interval": 2}
    impl = actor_critic(d3rlpy.algos.TD3PlusBCConfig, alpha=1.5, **smoothing)
    settings = {"alpha": 1.5, "target_policy_noise": 0.4, "target_noise_clip": 0.5}
    ours = offline_learner("td3_bc", CONTINUOUS, tau=TAU, **settings)
    modules = impl.modules
    actor = with_target("actor", modules.policy, modules.targ_policy, renamed(PLAIN), modules.actor_optim.optim)
    if applied("half"):
        scale_gradients(modules.q_funcs.parameters(), 0.5)
    return compare_updates(ours, actor | critics(impl), with_smoothing(4), updating(ours, impl))


def iql(applied: Applied) -> Difference:
    settings = {"expectile": 0.8, "max_weight": 1.05}
    impl = actor_critic(d3rlpy.algos.IQLConfig, "value_", weight_temp=2.0, **settings)
    ours = offline_learner("iql", CONTINUOUS, actor_learning_rate=RATE, tau=TAU, beta=2.0, **settings)
    modules = impl.modules
    if applied("sigmoid"):
        plain_deviations(modules.policy)
    if applied("half"):
        scale_gradients(modules.q_funcs.parameters(), 0.5)
    networks = {
        "actor": Group(named(modules.policy), gaussian, modules.actor_optim.optim),
        "value": Group(named(modules.value_func), renamed(PLAIN), modules.critic_optim.optim),
    }

    def update_ours(batch: Transitions) -> None:
        with values_before(ours, batch, applied("order")):
            seen = ours.update(batch)
        assert 0.0 < seen["weight_clip_fraction"] < 1.0

    given = without_noise(CONTINUOUS, 3)
    return compare_updates(ours, networks | critics(impl), given, updating(ours, impl), update_ours)


@contextmanager
def values_before(ours: Any, batch: Transitions, applied: bool) -> Iterator[None]:
    """The critics' targets use the values of next states from before the update."""
    outputs, before = ours.values.outputs, ours.values.outputs(batch.next_obs)

    def chosen(rows: np.ndarray) -> np.ndarray:
        return before if applied and np.array_equal(rows, batch.next_obs) else outputs(rows)

    with mock.patch.object(ours.values, "outputs", chosen):
        yield


def awac(applied: Applied) -> Difference:
    impl = actor_critic(d3rlpy.algos.AWACConfig, lam=0.7)
    settings = {"awac_lambda": 0.7, "weighting": "softmax", "policy_head": "gaussian"}
    ours = offline_learner("awac", CONTINUOUS, tau=TAU, **settings)
    modules = impl.modules
    if applied("sigmoid"):
        plain_deviations(modules.policy)
    if applied("half"):
        scale_gradients(modules.q_funcs.parameters(), 0.5)
    if applied("mean"):
        scale_gradients(modules.policy.parameters(), 1.0 / ROWS)
    if applied("entropy"):
        modules.log_temp._parameter.data.fill_(-math.inf)
    squashed = "d3rlpy.algos.qlearning.torch.sac_impl.build_squashed_gaussian_distribution"
    actor = {"actor": Group(named(modules.policy), gaussian, modules.actor_optim.optim)}
    update = (lambda batch: together(impl, torch_batch(batch))) if applied("order") else updating(ours, impl)

    def given(seed: int) -> Given:
        following, own = normal(seed, 2, ROWS, ACTIONS)
        return Given(batch_of(CONTINUOUS, seed), [following, own], [following, own[None]])

    def update_peer(batch: Transitions) -> None:
        with when(applied("clipped"), mock.patch(squashed, build_gaussian_distribution)):
            update(batch)

    return compare_updates(ours, actor | critics(impl), map(given, range(3)), update_peer)


def together(impl: Any, batch: TorchMiniBatch) -> None:
    """An update of the peer that computes all gradients before it changes a network."""
    impl.compute_critic_grad(batch)
    impl.compute_actor_grad(batch)
    impl.modules.actor_optim.step()
    impl.modules.critic_optim.step()
    impl.update_critic_target()


_HALF = f"The critics' loss is half the squared error; the peer's is the whole. {ADAM}"
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
        {"half": _HALF},
    ),
    Pair(
        "IQL",
        D3RLPY,
        "three updates of values, actor and critics",
        iql,
        "`beta` is `weight_temp`",
        {
            "half": _HALF,
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
            "half": _HALF,
            "sigmoid": _SIGMOID,
            "mean": f"The actor's loss is averaged over the minibatch; the peer's is summed. {ADAM}",
            "entropy": "Targets have no entropy, as in the paper; the peer's have SAC's, with a temperature of 1.",
            "clipped": "The next action of a target is drawn from the policy, a clipped Gaussian; the peer's is drawn "
            "from a Gaussian squashed by tanh.",
            "order": "All gradients are computed before a network changes, as in the paper's code; the peer's actor "
            "uses critics after their step.",
        },
    ),
]
