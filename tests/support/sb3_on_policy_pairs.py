"""Our on-policy algorithms beside those of Stable-Baselines3 and sb3-contrib: from the rollout to the new weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import sb3_contrib
import stable_baselines3 as sb3
import torch
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from sb3_contrib.common.utils import conjugate_gradient_solver
from stable_baselines3.common.distributions import kl_divergence
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from conformance import CONTINUOUS, DISCRETE, algorithm
from peer_data import GAMMA, RATE, Draws
from peer_networks import hidden_layers, named, renamed
from peer_updates import OURS
from peers import ADAM, Applied, Difference, Group, Pair, Sides, always, doubled, scale_gradients, when
from rl_training.algorithms.on_policy import OnPolicyAlgorithm
from rl_training.data.rollout import Rollout
from rl_training.ops.trust_region import conjugate_gradient
from rl_training.types import Array, SpaceInfo, Step
from sb3_pairs import CONTRIB, SB3, Peer, peer_of, spaces

STEPS, ENVS, CORE = 8, 2, 5
ROLLOUT: dict[str, Any] = {"learning_rate": RATE, "gamma": GAMMA, "gae_lambda": 0.8}
MLPS = {
    **hidden_layers("policy_torso", "mlp_extractor.policy_net"),
    **hidden_layers("value_torso", "mlp_extractor.value_net"),
    "policy_head": "action_net",
    "value_head": "value_net",
    "log_std": "log_std",
}


def on_policy_peer(kind: Any, envs: VecEnv, names: Mapping[str, str] = MLPS, **settings: Any) -> Peer:
    """`names` are those of layers, ours to the peer's."""
    peer = peer_of(kind, envs, **settings)
    return peer, {"network": Group(named(peer.policy), renamed(names), peer.policy.optimizer)}


@dataclass(frozen=True)
class Learners:
    """An algorithm of ours and of the peer, with the same settings and weights."""

    ours: OnPolicyAlgorithm
    peer: Any
    sides: Sides


def learners_of(
    algo: str,
    kind: Any,
    info: SpaceInfo,
    settings: Mapping[str, Any],
    *,
    names: Mapping[str, str] = MLPS,
    ours_only: Mapping[str, Any] | None = None,
    peer_only: Mapping[str, Any] | None = None,
) -> Learners:
    """Both sides with shared settings and those of one side only."""
    shared = ROLLOUT | dict(settings)
    peer, networks = on_policy_peer(kind, spaces(info, ENVS), names, n_steps=STEPS, **shared, **(peer_only or {}))
    ours = algorithm(algo, info, num_envs=ENVS, **(OURS | shared), **(ours_only or {}))
    sides = Sides({"network": ours.network}, networks)
    sides.watch("network", ours.optimizer)
    return Learners(ours, peer, sides)


def rollout_of(ours: OnPolicyAlgorithm, info: SpaceInfo, seed: int = 0) -> Rollout:
    """A rollout of our policy in double precision; some of its episodes are terminated, some truncated."""
    rng, policy = np.random.default_rng(seed), ours.policy
    records = {name: kind._replace(dtype="float64") for name, kind in policy.records(info).items()}
    rollout = Rollout(STEPS, ENVS, info, records)
    for name in ("obs", "action", "reward", "last_obs"):
        setattr(rollout, name, doubled(getattr(rollout, name)))
    obs, carry = rng.standard_normal((ENVS, *info.obs_shape)), policy.initial_carry(ENVS)
    if carry is not None:  # the middle of an episode
        carry = 0.5 * rng.standard_normal(carry.shape)
    for _ in range(STEPS):
        act = policy.act(obs, carry, explore=True, rng=rng)
        next_obs, reward = rng.standard_normal(obs.shape), rng.standard_normal(ENVS)
        end = rng.random(ENVS)
        terminated, truncated = end < 0.2, end > 0.8
        rollout.add(
            Step(obs, act.action, reward, next_obs, terminated, truncated, np.ones(ENVS, np.bool_), act.records)
        )
        carry = policy.begin_episodes(act.carry, terminated | truncated)
        obs = np.where((terminated | truncated)[:, None], rng.standard_normal(obs.shape), next_obs)
    assert rollout.terminated.any()
    assert rollout.truncated.any()
    return rollout


Successors = Callable[[Any, Rollout], Tensor]


def plain_successors(peer: Any, rollout: Rollout) -> Tensor:
    """The peer's values of the observations that it bootstraps from."""
    values: Tensor = peer.policy.predict_values(torch.from_numpy(rollout.bootstrap_obs()))
    return values


def fill(peer: Any, rollout: Rollout, successors: Successors = plain_successors) -> None:
    """Put a rollout into the peer's buffer, as its loop does: the value of a truncated state is part of the reward."""
    buffer, reward = peer.rollout_buffer, rollout.reward.copy()
    buffer.reset()
    buffer.observations = doubled(buffer.observations)
    buffer.actions = buffer.actions.astype(rollout.action.dtype)
    with torch.no_grad():
        value = successors(peer, rollout).numpy().ravel()
    places = list(zip(*rollout.bootstrap_places(), strict=True))
    for place, successor in zip(places[ENVS:], value[ENVS:], strict=True):
        reward[place] += peer.gamma * successor
    for row in range(STEPS):
        records = (torch.from_numpy(rollout.records[name][row]) for name in ("value", "log_prob"))
        more = {"lstm_states": states_at(rollout, row)} if "state" in rollout.records else {}
        buffer.add(rollout.obs[row], rollout.action[row], reward[row], rollout.starts[row], *records, **more)
    buffer.compute_returns_and_advantage(torch.from_numpy(value[:ENVS]), rollout.done[-1])


def env_by_env(order: Array, num_envs: int) -> Array:
    """An order of the steps of a rollout as the peer numbers them: ours are numbered row by row."""
    return (order % num_envs) * (len(order) // num_envs) + order // num_envs


@contextmanager
def shuffled(ours: Any, orders: Sequence[Array], *, first: Sequence[Array] = ()) -> Iterator[None]:
    """Both sides shuffle in the same way; the peer shuffles `first` too."""
    ours.batch_rng = Draws(*orders)
    theirs = Draws(*(env_by_env(order, ENVS) for order in (*first, *orders)))
    with mock.patch("numpy.random.permutation", theirs.permutation):
        yield
    assert not theirs.left


def orders(count: int) -> list[Array]:
    rng = np.random.default_rng(3)
    return [rng.permutation(STEPS * ENVS) for _ in range(count)]


def learned(
    both: Learners, info: SpaceInfo, *, seed: int = 0, successors: Successors = plain_successors
) -> Mapping[str, float]:
    """One update of both sides from the same rollout, and what ours reports of it."""
    rollout = rollout_of(both.ours, info, seed)
    fill(both.peer, rollout, successors)
    seen = both.ours.update(rollout)
    both.peer.train()
    return seen


# One loss for policy and value


def ppo(info: SpaceInfo, updates: int = 4, **settings: Any) -> Difference:
    """Two epochs of two minibatches, so that ratios are clipped, of which `updates` are learned from."""
    settings = {"batch_size": 8, "n_epochs": 2, "ent_coef": 0.02, "vf_coef": 0.7, "clip_range": 0.05} | settings
    both = learners_of("ppo", sb3.PPO, info, settings)
    with shuffled(both.ours, orders(2)):
        seen = learned(both, info)
    assert seen["clip_fraction"] > 0.0
    assert seen["minibatch_updates"] == updates
    return both.sides.difference()


def ppo_discrete(applied: Applied) -> Difference:
    return ppo(DISCRETE)


def stopped_ppo(applied: Applied) -> Difference:
    return ppo(DISCRETE, updates=2, target_kl=1e-3)


def ppo_continuous(applied: Applied) -> Difference:
    """With clipped values."""

    def only_clipped(value: Tensor, old_value: Tensor, target: Tensor, clip: float) -> Tensor:
        return torch.nn.functional.mse_loss(old_value + (value - old_value).clamp(-clip, clip), target)

    with when(applied("larger"), mock.patch("rl_training.algorithms.ppo.clipped_value_loss", only_clipped)):
        return ppo(CONTINUOUS, clip_range_vf=0.01)


def a2c(applied: Applied) -> Difference:
    settings = {"ent_coef": 0.02, "vf_coef": 0.7, "normalize_advantage": True}
    both = learners_of("a2c", sb3.A2C, CONTINUOUS, settings)
    for seed in range(3):
        learned(both, CONTINUOUS, seed=seed)
    return both.sides.difference()


# The trust region


@contextmanager
def natural_gradients(sides: Sides) -> Iterator[None]:
    """Record the gradient of the policy and the direction of its step, which are no optimiser's."""

    def own(product: Any, goal: Array, steps: int) -> tuple[Array, Array]:
        found, residual = conjugate_gradient(product, goal, steps)
        sides.note_ours("policy", {"gradient": torch.from_numpy(goal), "direction": torch.from_numpy(found)})
        return found, residual

    def other(product: Any, goal: Tensor, max_iter: int) -> Tensor:
        found: Tensor = conjugate_gradient_solver(product, goal, max_iter)
        sides.note_peer("policy", {"gradient": goal.clone(), "direction": found.clone()})
        return found

    with (
        mock.patch("rl_training.algorithms.trpo.conjugate_gradient", own),
        mock.patch("sb3_contrib.trpo.trpo.conjugate_gradient_solver", other),
    ):
        yield


@contextmanager
def same_trust_region(peer: Any, applied: Applied = always) -> Iterator[None]:
    """The peer's TRPO with the trust region and the critic's loss of ours."""

    def kl(new: Any, old: Any) -> Tensor:
        found: Tensor = kl_divergence(old, new) if applied("direction") else kl_divergence(new, old)
        return found.sum(dim=-1) if applied("dimensions") else found

    if applied("half"):
        scale_gradients((tensor for name, tensor in peer.policy.named_parameters() if "value" in name), 0.5)
    with (
        when(applied("start"), mock.patch("torch.randn_like", torch.zeros_like)),
        mock.patch("sb3_contrib.trpo.trpo.kl_divergence", kl),
    ):
        yield


def trpo(applied: Applied) -> Difference:
    """One policy step and two passes of the critic. The line search shortens the step."""
    settings = {"n_critic_updates": 2, "batch_size": 8, "target_kl": 2.0, "cg_max_steps": 5}
    both = learners_of("trpo", sb3_contrib.TRPO, CONTINUOUS, settings)
    with (
        natural_gradients(both.sides),
        same_trust_region(both.peer, applied),
        shuffled(both.ours, orders(2), first=[np.arange(STEPS * ENVS)]),
    ):
        seen = learned(both, CONTINUOUS)
    assert 0.0 < seen["step_fraction"] < 1.0
    return both.sides.difference()


# Sequences


def states_at(rollout: Rollout, row: int) -> RNNStates:
    """The recurrent states before a row: output and cell of the policy's core, then of the value's if it has one."""
    state = rollout.records["state"][row][None]
    parts = [torch.from_numpy(part.copy()) for part in np.split(state, state.shape[-1] // CORE, axis=-1)]
    return RNNStates(tuple(parts[:2]), tuple(parts[-2:]))


def recurrent_successors(peer: Any, rollout: Rollout) -> Tensor:
    """As the plain ones, with the state after the step that led to each."""
    found = []
    for row, env, obs in zip(*rollout.bootstrap_places(), rollout.bootstrap_obs(), strict=True):
        starts = torch.from_numpy(rollout.starts[row].astype(np.float64))
        after = peer.policy.forward(torch.from_numpy(rollout.obs[row]), states_at(rollout, row), starts)[-1]
        state = tuple(part[:, env : env + 1].contiguous() for part in after.vf)
        found.append(peer.policy.predict_values(torch.from_numpy(obs[None]), state, torch.zeros(1)))
    return torch.cat(found)


def recurrent_layers(cores: Mapping[str, str]) -> dict[str, str]:
    return {f"heads.{own}": other for own, other in MLPS.items() if own != "log_std"} | dict(cores)


CORES = {"cores.0": "lstm_actor", "cores.1": "lstm_critic"}


def recurrent_ppo(applied: Applied) -> Difference:
    return recurrent(CORES, nullcontext)


def shared_recurrent_ppo(applied: Applied) -> Difference:
    """The value's MLP reads the policy's core."""

    def detached(heads: Any) -> AbstractContextManager[Any]:
        value = heads.value
        return when(applied("both"), mock.patch.object(heads, "value", lambda features: value(features.detach())))

    return recurrent({"cores.0": "lstm_actor"}, detached)


def recurrent(cores: dict[str, str], change: Callable[[Any], AbstractContextManager[Any]]) -> Difference:
    """Three epochs of one minibatch: all sequences of the rollout, from states that are not 0.

    `change` is applied to the MLPs of ours.
    """
    shared = len(cores) == 1
    settings = {"n_epochs": 3, "ent_coef": 0.02, "vf_coef": 0.7, "clip_range": 0.02, "batch_size": STEPS * ENVS}
    core = {"lstm_hidden_size": CORE, "shared_lstm": shared, "enable_critic_lstm": not shared}
    both = learners_of(
        "recurrent_ppo",
        sb3_contrib.RecurrentPPO,
        DISCRETE,
        settings,
        names=recurrent_layers(cores),
        ours_only={"rnn_hidden_size": CORE, "shared_core": shared},
        peer_only={"policy": "MlpLstmPolicy", "policy_kwargs": core},
    )
    # The peer begins to read the rollout at a random place: here, at the first.
    with change(both.ours.network.heads), mock.patch("numpy.random.randint", return_value=0):
        seen = learned(both, DISCRETE, successors=recurrent_successors)
    assert seen["clip_fraction"] > 0.0
    return both.sides.difference()


ON_POLICY = [
    Pair("PPO", SB3, "two epochs of two minibatches, discrete actions", ppo_discrete),
    Pair("PPO with `target_kl`", SB3, "as before; both stop at the third minibatch", stopped_ppo),
    Pair(
        "PPO with clipped values",
        SB3,
        "two epochs of two minibatches, continuous actions",
        ppo_continuous,
        deviations={
            "larger": "With `clip_range_vf`, the value loss is the larger of the clipped and the plain error, as in "
            "OpenAI's code; the peer's is the clipped error, which has no gradient outside the range."
        },
    ),
    Pair("A2C", SB3, "three updates, continuous actions", a2c),
    Pair(
        "TRPO",
        CONTRIB,
        "gradient, natural gradient, line search and two passes of the critic, continuous actions",
        trpo,
        deviations={
            "start": "Conjugate gradients start from 0; the peer's start from Gaussian noise of deviation 1e-4.",
            "dimensions": "The KL of several continuous actions is summed over them, which is the KL of their joint "
            "distribution; the peer averages over them, so that its steps are longer for the same `target_kl`.",
            "direction": "The line search measures KL(old, new), as the paper's constraint does; the peer measures "
            "KL(new, old).",
            "half": f"The critic's loss is half the squared error; the peer's is the whole. {ADAM}",
        },
    ),
    Pair(
        "Recurrent PPO",
        CONTRIB,
        "three epochs of one minibatch of sequences, LSTMs, discrete actions",
        recurrent_ppo,
        "a minibatch is made of whole sequences here, and begins and ends at any step there: one minibatch is the same",
    ),
    Pair(
        "Recurrent PPO, shared core",
        CONTRIB,
        "three epochs of one minibatch of sequences, LSTMs, discrete actions",
        shared_recurrent_ppo,
        "`shared_core: true` is `shared_lstm=True, enable_critic_lstm=False`",
        {"both": "A shared core learns from policy and value; the peer's learns from the policy alone."},
    ),
]
