"""CQL beside that of d3rlpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import d3rlpy
import numpy as np
from torch import Tensor

from conformance import CONTINUOUS, DISCRETE
from d3rlpy_pairs import D3RLPY, ENCODER, actor_critic, critics, offline_learner, peer_of, updating
from peer_data import ACTIONS, GAMMA, RATE, ROWS, TAU, batch_of, normal
from peer_networks import logarithm, mlp, named, renamed, two_headed, with_target
from peer_updates import Given, compare_updates, without_noise
from peers import ADAM, Applied, Difference, Group, Pair, scale_gradients, when
from rl_training.data.batches import Transitions

SAMPLES = 4


def cql(applied: Applied) -> Difference:
    return conservative(applied, {"backup_entropy": True}, {"soft_q_backup": True, "alpha_learning_rate": 0.0})


def lagrangian_cql(applied: Applied) -> Difference:
    """Targets without entropy, and a learned weight of the gap. The peer's gap lacks the mean over samples."""
    gap = {"alpha_threshold": 0.5 + math.log(3 * SAMPLES), "alpha_learning_rate": RATE}
    return conservative(applied, {"cql_target_gap": 0.5}, gap)


def conservative(applied: Applied, ours_only: dict[str, Any], peer_only: dict[str, Any]) -> Difference:
    rates = {"actor_learning_rate": RATE / 2, "temp_learning_rate": RATE}
    fixed = {"conservative_weight": 3.0, "initial_temperature": 0.5, "n_action_samples": SAMPLES}
    impl = actor_critic(d3rlpy.algos.CQLConfig, **rates, **fixed, **peer_only)
    settings = {"cql_alpha": 3.0, "cql_samples": SAMPLES, "ent_coef": "auto_0.5", **ours_only}
    ours = offline_learner("cql", CONTINUOUS, tau=TAU, actor_learning_rate=RATE / 2, **settings)
    lagrange = "cql_target_gap" in ours_only
    if applied("half"):
        scale_gradients(impl.modules.q_funcs.parameters(), 0.5)

    def given(seed: int) -> Given:
        following, own = normal(seed, 2, ROWS, ACTIONS)
        here, there = normal(seed + 50, 2, ROWS, SAMPLES, ACTIONS)
        uniform = np.random.default_rng([seed, 2]).uniform(-1.0, 1.0, here.shape)
        if lagrange and applied("mean"):
            following = np.zeros_like(following)  # without noise, the action is the mean
        drawn = [here.swapaxes(0, 1), there.swapaxes(0, 1), uniform.reshape(-1, ACTIONS), own]
        peer = drawn if lagrange else [following, *drawn]
        return Given(batch_of(CONTINUOUS, seed), [following, uniform, here, there, own], peer)

    def update_peer(batch: Transitions) -> None:
        with (
            temperature_afterwards(impl, applied("temperature")),
            factor_afterwards(impl, lagrange and applied("factor")),
        ):
            updating(ours, impl)(batch)

    return compare_updates(ours, networks_of(impl), map(given, range(3)), update_peer)


def networks_of(impl: Any) -> dict[str, Group]:
    modules = impl.modules
    actor = Group(named(modules.policy), two_headed(ENCODER, "_mu", "_logstd"), modules.actor_optim.optim)
    numbers = {"ent_coef": logarithm(modules.log_temp._parameter, modules.temp_optim.optim)}
    if modules.alpha_optim is not None:
        numbers["cql_factor"] = logarithm(modules.log_alpha._parameter, modules.alpha_optim.optim)
    return {"actor": actor} | numbers | critics(impl)


@contextmanager
def temperature_afterwards(impl: Any, applied: bool) -> Iterator[None]:
    """The peer's actor uses the temperature of before its step, which follows the gradient of its logarithm alone."""

    def slope(log_prob: Tensor) -> Tensor:
        return -(log_prob.detach().mean() - impl.action_size)

    with when(applied, step_afterwards(impl, "update_temp", slope, impl.modules.log_temp, impl.modules.temp_optim)):
        yield


@contextmanager
def factor_afterwards(impl: Any, applied: bool) -> Iterator[None]:
    """The peer's critics use the weight of the gap of before its step."""
    factor = impl.modules.log_alpha._parameter

    def slope(excess: Tensor) -> Tensor:
        return -(factor.detach().exp() * excess).mean()

    with when(applied, step_afterwards(impl, "update_alpha", slope, impl.modules.log_alpha, impl.modules.alpha_optim)):
        yield


@contextmanager
def step_afterwards(
    impl: Any, method: str, slope: Callable[[Tensor], Tensor], learned: Any, wrapper: Any
) -> Iterator[None]:
    """Make the step of a learned number after the update in which the peer would make it."""
    seen = []

    def noted(given: Tensor) -> Tensor:
        seen.append(slope(given))
        return seen[-1]

    with mock.patch.object(impl, method, noted):
        yield
    (learned._parameter.grad,) = (found.reshape(1, 1) for found in seen)
    wrapper.step()


def discrete_cql(applied: Applied) -> Difference:
    settings = {"learning_rate": RATE, "gamma": GAMMA, "alpha": 1.5, "target_update_interval": 1}
    impl = peer_of(d3rlpy.algos.DiscreteCQLConfig, DISCRETE, **settings)
    ours, modules = offline_learner("cql", DISCRETE, cql_alpha=3.0, tau=1.0), impl.modules
    layers = renamed(mlp(f"0.{ENCODER}", "0._fc", "layers."))
    networks = with_target("network", modules.q_funcs, modules.targ_q_funcs, layers, modules.optim.optim)
    return compare_updates(ours, networks, without_noise(DISCRETE, 3), updating(ours, impl))


_HALF = (
    f"The critics' loss is half the squared error and half the weighted gap; the peer's is the whole of both. {ADAM}"
)
_TEMPERATURE = (
    "The entropy coefficient is stepped after the actor, by the gradient of its logarithm; the peer steps it before "
    "the actor uses it, by a gradient with the coefficient as a factor."
)

CONSERVATIVE = [
    Pair(
        "CQL",
        D3RLPY,
        "three updates with a learned entropy coefficient",
        cql,
        "`backup_entropy: true` is `soft_q_backup=True`; `cql_alpha` is `conservative_weight`, with "
        "`alpha_learning_rate=0`",
        {
            "half": _HALF,
            "temperature": _TEMPERATURE,
        },
    ),
    Pair(
        "CQL, Lagrange form",
        D3RLPY,
        "three updates with targets without entropy, and a learned weight of the gap",
        lagrangian_cql,
        "`cql_target_gap` is `alpha_threshold - log(3 * n_action_samples)`",
        {
            "half": _HALF,
            "temperature": _TEMPERATURE,
            "mean": "The next action of a target is drawn from the policy, as in the paper's code; the peer takes the "
            "mean.",
            "factor": "The weight of the gap is stepped after the critics; the peer steps it before they use it.",
        },
    ),
    Pair(
        "CQL, discrete actions",
        D3RLPY,
        "three updates",
        discrete_cql,
        "`cql_alpha` is twice `alpha`; `tau: 1` is `target_update_interval=1`",
    ),
]
