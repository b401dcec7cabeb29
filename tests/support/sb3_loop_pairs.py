"""The runs of ours that are compared with runs of Stable-Baselines3 and sb3-contrib."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import sb3_contrib
import stable_baselines3 as sb3
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.utils import LinearSchedule

from peer_data import ACTIONS
from peer_loops import CARTPOLE, DRIFT, Drawn
from rl_training.types import Array
from sb3_lockstep import LoopPair, Settings
from sb3_on_policy_pairs import CORE, CORES, env_by_env, on_policy_peer, recurrent_layers, same_trust_region
from sb3_pairs import (
    CONTRIB,
    OUR_QUANTILES,
    PEER_QUANTILES,
    SB3,
    SMOOTHING,
    deterministic_peer,
    dqn_peer,
    soft_peer,
)

RATE = 1e-3

# Rollouts

ENVS, STEPS = 3, 16
ROWS = ENVS * STEPS
ADVANTAGES: dict[str, Any] = {"n_steps": STEPS, "gamma": 0.95, "gae_lambda": 0.9}
LOSS: dict[str, Any] = ADVANTAGES | {"ent_coef": 0.01, "vf_coef": 0.7}
CLIPPED: dict[str, Any] = LOSS | {"n_epochs": 3, "clip_range": 0.05}


def shuffled(tape: Sequence[Drawn], num_envs: int, *, whole: bool = False) -> Iterator[Any]:
    """Numbers for the actions of each step, then an order for each pass over the rollout.

    A peer that learns from the `whole` rollout at once shuffles it for that too.
    """
    acting, orders = ([drawn.array for drawn in tape if drawn.stream == name] for name in ("policy", "batch"))
    yield from (numbers.reshape(num_envs, -1) for numbers in acting)
    if whole:
        yield np.arange(num_envs * len(acting))
    yield from (env_by_env(order, num_envs) for order in orders)


def in_sequence(tape: Sequence[Drawn], num_envs: int) -> Iterator[Any]:
    """As before, but a minibatch has all sequences; the peer begins to read them at a random step: at the first."""
    for drawn in tape:
        yield from [drawn.array.reshape(num_envs, -1)] if drawn.stream == "policy" else [ROWS, 0]


ON_POLICY = [
    LoopPair(
        "PPO",
        SB3,
        "ppo",
        partial(on_policy_peer, sb3.PPO),
        CARTPOLE,
        num_envs=ENVS,
        steps=20 * ROWS,
        updates=20 * 9,
        settings=Settings(CLIPPED | {"batch_size": 16, "learning_rate": RATE}),
        translate=shuffled,
    ),
    LoopPair(
        "PPO with a falling learning rate",
        SB3,
        "ppo",
        partial(on_policy_peer, sb3.PPO),
        DRIFT,
        num_envs=ENVS,
        steps=20 * ROWS,
        updates=20 * 9,
        settings=Settings(
            CLIPPED | {"batch_size": 16},
            {"learning_rate": RATE, "learning_rate_schedule": "linear"},
            {"learning_rate": LinearSchedule(RATE, 0.0, 1.0)},
        ),
        translate=shuffled,
    ),
    LoopPair(
        "A2C",
        SB3,
        "a2c",
        partial(on_policy_peer, sb3.A2C),
        DRIFT,
        num_envs=ENVS,
        steps=60 * ENVS * 5,
        updates=60,
        settings=Settings(LOSS | {"n_steps": 5, "learning_rate": RATE}),
        translate=partial(shuffled, whole=True),
    ),
    LoopPair(
        "TRPO",
        CONTRIB,
        "trpo",
        partial(on_policy_peer, sb3_contrib.TRPO),
        DRIFT,
        num_envs=ENVS,
        steps=20 * ROWS,
        updates=20,
        # More steps of conjugate gradients amplify rounding in single precision.
        settings=Settings(
            ADVANTAGES | {"cg_max_steps": 5, "n_critic_updates": 3, "batch_size": 16, "learning_rate": RATE}
        ),
        translate=partial(shuffled, whole=True),
        during=same_trust_region,
    ),
    LoopPair(
        "Recurrent PPO",
        CONTRIB,
        "recurrent_ppo",
        partial(on_policy_peer, sb3_contrib.RecurrentPPO, names=recurrent_layers(CORES)),
        CARTPOLE,
        num_envs=ENVS,
        steps=20 * ROWS,
        updates=20 * 3,
        settings=Settings(
            CLIPPED | {"batch_size": ROWS, "learning_rate": RATE},
            {"rnn_hidden_size": CORE},
            {"policy": "MlpLstmPolicy", "policy_kwargs": {"lstm_hidden_size": CORE}},
        ),
        translate=in_sequence,
    ),
]


# Replay

BATCH = 32


def replayed(
    tape: Sequence[Drawn],
    num_envs: int,
    *,
    acting: Callable[[Drawn], Iterable[Any]],
    learning: Callable[[Sequence[Array]], Sequence[Array]] = list,
) -> Iterator[Any]:
    """Numbers for actions, then the slots and the noise of every update.

    Ours draws the slots of several updates at once. The peer has a position and an environment instead of a slot.
    `acting` and `learning` (the noise of one update) turn the draws of ours into those of the peer.
    """
    for stream, group in groupby(tape, lambda drawn: drawn.stream):
        if stream == "policy":
            yield from (number for drawn in group for number in acting(drawn))
            continue
        slots, *others = group
        assert slots.below is not None
        parts = slots.array.reshape(-1, BATCH)
        for number, part in enumerate(parts):
            yield from (slots.below // num_envs, part // num_envs, num_envs, part % num_envs)
            size = len(others) // len(parts)
            yield from learning([drawn.array for drawn in others[number * size : (number + 1) * size]])


def one_by_one(drawn: Drawn) -> Iterable[Any]:
    """The peer draws for one environment after the other."""
    return drawn.array


def noisy(drawn: Drawn) -> Iterable[Any]:
    """One by one; the peer adds noise to random actions too, which is 0 here."""
    return [*drawn.array, *np.zeros_like(drawn.array)] if drawn.kind == "uniform" else drawn.array


def together(drawn: Drawn) -> Iterable[Any]:
    """Random actions one by one, those of the policy together."""
    return drawn.array if drawn.kind == "uniform" else [drawn.array]


def policy_first(noise: Sequence[Array]) -> Sequence[Array]:
    """The peer draws for the actor's actions before those of the targets."""
    return noise[::-1]


def clipped_to_nothing(noise: Sequence[Array]) -> Sequence[Array]:
    """The peer's DDPG is a TD3 whose noise on target actions is clipped to 0."""
    return [np.zeros((BATCH, ACTIONS))]


def every_step(both: dict[str, Any], ours: Any = None, peer: Any = None) -> Settings:
    """As many updates as steps, from a memory in which old transitions are overwritten."""
    return Settings(
        {"learning_starts": 50, "learning_rate": RATE, "gamma": 0.95, "tau": 0.05, "batch_size": BATCH} | both,
        {"buffer_size": 150, "train_every": 1, "updates_per_step": 1.0} | (ours or {}),
        {"buffer_size": 150, "train_freq": 1, "gradient_steps": -1} | (peer or {}),
    )


_NOISE = ({"noise_std": 0.2}, {"action_noise": NormalActionNoise(np.zeros(ACTIONS), np.full(ACTIONS, 0.2))})
_LEARNED = {"ent_coef": "auto_0.5"}

OFF_POLICY = [
    LoopPair(
        "DQN",
        SB3,
        "dqn",
        dqn_peer,
        CARTPOLE,
        num_envs=1,
        steps=36 + 4 * 142,
        updates=142,
        # The target network follows between the fifth and the sixth update, and so on, on both sides.
        settings=every_step(
            {"learning_starts": 36, "max_grad_norm": 0.5},
            {
                "train_every": 4,
                "updates_per_step": 0.25,
                "target_update_interval": 5,
                "double_q": False,
                "epsilon": 0.3,
            },
            {"train_freq": 4, "gradient_steps": 1, "target_update_interval": 20}
            | {"exploration_initial_eps": 0.3, "exploration_final_eps": 0.3},
        ),
        translate=partial(replayed, acting=one_by_one),
    ),
    LoopPair(
        "DDPG",
        SB3,
        "ddpg",
        partial(deterministic_peer, sb3.DDPG),
        DRIFT,
        num_envs=1,
        steps=250,
        updates=200,
        settings=every_step({}, _NOISE[0] | {"n_critics": 1}, _NOISE[1]),
        translate=partial(replayed, acting=noisy, learning=clipped_to_nothing),
    ),
    LoopPair(
        "TD3",
        SB3,
        "td3",
        partial(deterministic_peer, sb3.TD3),
        DRIFT,
        num_envs=2,
        steps=250,
        updates=200,
        settings=every_step(SMOOTHING, *_NOISE),
        translate=partial(replayed, acting=noisy),
    ),
    LoopPair(
        "SAC",
        SB3,
        "sac",
        partial(soft_peer, sb3.SAC),
        DRIFT,
        num_envs=2,
        steps=250,
        updates=200,
        settings=every_step(_LEARNED),
        translate=partial(replayed, acting=together, learning=policy_first),
    ),
    LoopPair(
        "TQC",
        CONTRIB,
        "tqc",
        partial(soft_peer, sb3_contrib.TQC),
        DRIFT,
        num_envs=2,
        steps=250,
        updates=200,
        settings=every_step(_LEARNED, OUR_QUANTILES, PEER_QUANTILES),
        translate=partial(replayed, acting=together, learning=policy_first),
    ),
]

LOOPS = [*ON_POLICY, *OFF_POLICY]
