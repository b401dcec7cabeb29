"""The works: what is trained, in which unit it is counted, and which sides take part. A new work is an entry of WORKS.

This file loads no library: each side does so in its own process.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from libraries import OURS, PEERS, Sides, Work
from model_works import MODEL_WORKS
from sample_factories import sample_factory_appo
from trainers import (
    UPDATES,
    d3rlpy_offline,
    ours,
    plain,
    sb3_atari,
    sb3_off_policy,
    sb3_on_policy,
    sb3_recurrent,
)

MUJOCO = {"mujoco": "pip install 'rl-training[mujoco]'"}


def on_policy(peer: str = "sb3", **settings: Any) -> Sides:
    """Both sides with the same settings: their names are the same in both libraries, and so are the other defaults."""
    theirs = partial(sb3_on_policy, PEERS[peer].module, **settings)
    return {OURS: partial(ours, activation="tanh", **settings), peer: theirs}


def one_pass(algo: str, **settings: Any) -> Sides:
    """One pass over every rollout, by us and by Sample Factory."""
    mine = partial(ours, algo=algo, env_id="CartPole-v1", activation="tanh", **settings)
    return {OURS: mine, "sample_factory": partial(sample_factory_appo, **settings)}


def recurrent(**settings: Any) -> Sides:
    """Both sides with the same settings: an LSTM of this width before the MLP of the policy, another for the value."""
    return {OURS: partial(ours, activation="tanh", **settings), "sb3_contrib": partial(sb3_recurrent, **settings)}


def atari(**settings: Any) -> Sides:
    """Both sides with the same settings, four frames a stack, and no sticky actions."""
    game: dict[str, Any] = {"env_id": "ALE/Pong-v5", "frame_stack": 4}
    mine: dict[str, Any] = {"env_kwargs": {"repeat_action_probability": 0.0}, "reward_clip": 1.0, "hidden_sizes": []}
    return {
        OURS: partial(ours, algo="ppo", **mine, **game, **settings),
        "sb3": partial(sb3_atari, repeat_action_probability=0.0, **game, **settings),
    }


def off_policy(own: Mapping[str, Mapping[str, Any]], **settings: Any) -> Sides:
    """Every side with the same settings, by our names, and with some that only it has."""
    return {side: partial(ours if side == OURS else sb3_off_policy, **mine, **settings) for side, mine in own.items()}


def hopper(own: Mapping[str, Mapping[str, Any]], **changes: Any) -> Sides:
    """The common settings of the works on Hopper-v5: one environment, and an update of 256 rows for every step."""
    common = {
        "env_id": "Hopper-v5",
        "num_envs": 1,
        "hidden_sizes": [256, 256],
        "learning_rate": 3e-4,
        "buffer_size": 1_000_000,
        "learning_starts": 200,
        "batch_size": 256,
        "train_every": 1,
        "updates_per_step": 1,
    }
    return off_policy(own, **(common | changes))


def offline(algo: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Sides:
    """The common settings of the offline works: updates of 256 rows out of 100,000, and nothing between them."""
    common: dict[str, Any] = {
        "dataset": "hopper_data:random_transitions",
        "hidden_sizes": [256, 256],
        "learning_rate": 3e-4,
        "batch_size": 256,
    }
    return {
        OURS: partial(ours, algo=algo, env_id="Hopper-v5", **mine, **common),
        "d3rlpy": partial(d3rlpy_offline, **theirs, **common),
        "plain": partial(plain, algo=algo, **common),
    }


OFFLINE = "on 100,000 random transitions of Hopper's shape: updates of 256 rows, 256-256 relu"
SB3_SAC, SBX_SAC = {"trainer": "stable_baselines3:SAC"}, {"trainer": "sbx:SAC"}

WORKS = {
    "ppo_cartpole": Work(
        "PPO on CartPole-v1: 8 environments x 128 steps, 4 epochs of 4 minibatches, 64-64 tanh",
        32_768,
        on_policy(
            algo="ppo",
            env_id="CartPole-v1",
            num_envs=8,
            hidden_sizes=[64, 64],
            n_steps=128,
            n_epochs=4,
            batch_size=256,
        ),
    ),
    "a2c_cartpole": Work(
        "A2C on CartPole-v1: 8 environments x 5 steps, 64-64 tanh",
        24_000,
        on_policy(algo="a2c", env_id="CartPole-v1", num_envs=8, hidden_sizes=[64, 64], n_steps=5),
    ),
    "impala_cartpole": Work(
        "IMPALA on CartPole-v1: 8 environments x 32 steps, one pass over each rollout, 64-64 tanh",
        10_240,
        one_pass("impala", num_envs=8, n_steps=32, hidden_sizes=[64, 64]),
        note="the peer is Sample Factory's APPO with one pass, in one process",
    ),
    "trpo_cartpole": Work(
        "TRPO on CartPole-v1: 2 environments x 512 steps, 15 steps of conjugate gradient, the critic 20 times in "
        "minibatches of 512, 64-64 tanh",
        10_240,
        on_policy(
            "sb3_contrib",
            algo="trpo",
            env_id="CartPole-v1",
            num_envs=2,
            hidden_sizes=[64, 64],
            n_steps=512,
            batch_size=512,
            cg_max_steps=15,
            n_critic_updates=20,
        ),
    ),
    "recurrent_ppo_cartpole": Work(
        "Recurrent PPO on CartPole-v1: 8 environments x 128 steps, 10 epochs of 8 minibatches of 128 steps in a row, "
        "LSTMs of 256 for policy and value, 64-64 tanh",
        2_048,
        recurrent(
            algo="recurrent_ppo",
            env_id="CartPole-v1",
            num_envs=8,
            rnn_hidden_size=256,
            hidden_sizes=[64, 64],
            n_steps=128,
            n_epochs=10,
            batch_size=128,
        ),
    ),
    "ppo_halfcheetah": Work(
        "PPO on HalfCheetah-v5: 4 environments x 512 steps, 10 epochs in minibatches of 64, 64-64 tanh",
        12_288,
        on_policy(
            algo="ppo",
            env_id="HalfCheetah-v5",
            num_envs=4,
            hidden_sizes=[64, 64],
            n_steps=512,
            n_epochs=10,
            batch_size=64,
        ),
        needs=MUJOCO,
    ),
    "ppo_pong": Work(
        "PPO on ALE/Pong-v5: 8 environments x 128 steps, 4 epochs of 4 minibatches, the convolutions of DQN",
        2_048,
        atari(num_envs=8, n_steps=128, n_epochs=4, batch_size=256, ent_coef=0.01, learning_rate=2.5e-4),
        needs={"ale_py": "pip install 'rl-training[atari]'", "cv2": "pip install opencv-python-headless"},
    ),
    "dqn_pong": Work(
        "DQN on ALE/Pong-v5: an update of 32 stacks of 4 frames after every 4 steps, the convolutions of DQN",
        200,
        {
            OURS: partial(
                ours,
                algo="dqn",
                env_id="ALE/Pong-v5",
                num_envs=1,
                frame_stack=4,
                buffer_size=5_000,
                learning_starts=100,
                batch_size=32,
                train_every=4,
                updates_per_step=0.25,
            )
        },
        needs={"ale_py": "pip install 'rl-training[atari]'"},
    ),
    "dqn_cartpole": Work(
        "DQN on CartPole-v1: an update of 64 rows after every 4 steps, 64-64 relu",
        8_000,
        off_policy(
            {
                OURS: {"algo": "dqn", "double_q": False, "dueling": False, "prioritized": False},
                "sb3": {"trainer": "stable_baselines3:DQN"},
            },
            env_id="CartPole-v1",
            num_envs=1,
            hidden_sizes=[64, 64],
            learning_rate=1e-3,
            buffer_size=100_000,
            learning_starts=1_000,
            batch_size=64,
            train_every=4,
            updates_per_step=0.25,
            epsilon=0.05,
            tau=1.0,
            target_update_interval=125,
            max_grad_norm=10.0,
        ),
    ),
    "sac_hopper": Work(
        "SAC on Hopper-v5: an update of 256 rows after every step, 256-256 relu, learned entropy coefficient",
        250,
        hopper({OURS: {"algo": "sac"}, "sb3": SB3_SAC, "sbx": SBX_SAC}, ent_coef="auto"),
        unit=UPDATES,
        needs=MUJOCO,
    ),
    "sac_small": Work(
        "SAC on Hopper-v5: an update of 64 rows after every step, 64-64 relu, learned entropy coefficient",
        800,
        hopper({OURS: {"algo": "sac"}, "sb3": SB3_SAC}, ent_coef="auto", hidden_sizes=[64, 64], batch_size=64),
        unit=UPDATES,
        needs=MUJOCO,
    ),
    "td3_hopper": Work(
        "TD3 on Hopper-v5: an update of 256 rows after every step, 256-256 relu, the actor every second time",
        400,
        hopper(
            {
                OURS: {"algo": "td3"},
                "sb3": {"trainer": "stable_baselines3:TD3"},
                "sbx": {"trainer": "sbx:TD3"},
            },
            policy_delay=2,
            noise_std=0.1,
        ),
        unit=UPDATES,
        needs=MUJOCO,
        note="Target networks follow when the actor moves; those of sbx in every update",
    ),
    "tqc_hopper": Work(
        "TQC on Hopper-v5: an update of 256 rows after every step, 2 critics of 25 quantiles, 2 dropped of each, "
        "256-256 relu",
        150,
        hopper(
            {OURS: {"algo": "tqc"}, "sb3_contrib": {"trainer": "sb3_contrib:TQC"}},
            ent_coef="auto",
            n_critics=2,
            n_quantiles=25,
            top_quantiles_to_drop=2,
        ),
        unit=UPDATES,
        needs=MUJOCO,
    ),
    "redq_hopper": Work(
        "REDQ on Hopper-v5: 20 updates of 256 rows after every step, 10 critics, targets from 2 of them, 256-256 relu, "
        "the actor once for every step",
        100,
        hopper(
            {
                OURS: {"algo": "redq", "subset_size": 2, "policy_delay": 20},
                "sb3_like": {"trainer": "sb3_redq:REDQ"},
                "sb3": SB3_SAC,
                "sbx": SBX_SAC | {"policy_delay": 20},
            },
            ent_coef="auto",
            n_critics=10,
            updates_per_step=20,
        ),
        unit=UPDATES,
        needs=MUJOCO,
        note="sb3 and sbx have no REDQ: they train SAC with 10 critics and targets from all of them, sb3 the actor in "
        "every update; sb3_like is REDQ made of sb3's parts",
    ),
    "bc": Work(
        f"BC {OFFLINE}, mean squared error",
        600,
        offline("bc", {"loss": "mse"}, {"trainer": "BCConfig", "policy_type": "deterministic"}),
        unit=UPDATES,
        needs=MUJOCO,
    ),
    "td3_bc": Work(
        f"TD3+BC {OFFLINE}, 2 critics, the actor every second time",
        200,
        offline(
            "td3_bc",
            {"n_critics": 2, "policy_delay": 2},
            {"trainer": "TD3PlusBCConfig", "n_critics": 2, "update_actor_interval": 2},
        ),
        unit=UPDATES,
        needs=MUJOCO,
        note="The actor of d3rlpy asks both critics, not the first alone",
    ),
    "awac": Work(
        f"AWAC {OFFLINE}, 2 critics, one action of the policy for each advantage",
        150,
        offline("awac", {"n_critics": 2}, {"trainer": "AWACConfig", "n_critics": 2, "n_action_samples": 1}),
        unit=UPDATES,
        needs=MUJOCO,
        note="d3rlpy weighs actions by a softmax over the batch, the others by a clipped exponential",
    ),
    "iql": Work(
        f"IQL {OFFLINE}, 2 critics, a Gaussian policy",
        150,
        offline("iql", {"n_critics": 2, "policy_head": "gaussian"}, {"trainer": "IQLConfig", "n_critics": 2}),
        unit=UPDATES,
        needs=MUJOCO,
        note="d3rlpy asks its target critics twice, for the value and for the policy",
    ),
    "cql": Work(
        f"CQL(H) {OFFLINE}, 2 critics, 10 uniform actions and 10 of the policy at each of s and s'",
        25,
        offline(
            "cql",
            {"n_critics": 2, "cql_samples": 10},
            {"trainer": "CQLConfig", "n_critics": 2, "n_action_samples": 10, "alpha_learning_rate": 0.0},
        ),
        unit=UPDATES,
        needs=MUJOCO,
        note="plain asks the policy anew for each of its actions, the others once for all 10",
    ),
}
WORKS |= MODEL_WORKS
