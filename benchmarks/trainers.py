"""The trainers of each side: a function builds everything and returns `advance(count) -> done`.

`advance` trains for at least `count` units and returns how many it did. It only trains: no evaluation, no checkpoints,
no files. Everything before the first update is done when it is built. Libraries are imported inside of the functions,
so that a process loads one side only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import import_module
from math import ceil
from typing import Any

Advance = Callable[[int], int]

STEPS = "environment steps"
UPDATES = "updates"
SIMULATIONS = "simulations"


def started(**settings: Any) -> Any:
    """A run that is about to learn: what an off-policy algorithm wants before is gathered."""
    from rl_training.experiment.config import load_config
    from rl_training.runtime.train import build

    run = build(load_config({"device": "cpu"} | settings))
    keep_libraries(run)
    run.start()
    while run.steps < settings.get("learning_starts", 0):
        run.advance()
    return run


def keep_libraries(run: Any) -> None:
    """Let a run have its threads for as long as the process lasts, as runs of older versions do by themselves."""
    if hasattr(run, "libraries"):
        run.libraries.__enter__()


def ours(*, unit: str, **settings: Any) -> Advance:
    """The training loop of a run without the callbacks that evaluate, log and save."""
    run = started(**settings)

    def units() -> int:
        return int(run.algorithm.n_updates if unit == UPDATES else run.steps)

    def advance(count: int) -> int:
        before = units()
        while units() - before < count:
            run.advance()
        return units() - before

    return advance


def our_updates(*, unit: str, **settings: Any) -> Advance:
    """Updates alone, from what was gathered before the first of them: a draw of a minibatch, its targets, a step."""
    run = started(**settings)
    algorithm, memory = run.algorithm, run.loop.memory
    return repeating(lambda: algorithm.learn_from(memory, 1))


def sb3_on_policy(library: str, *, unit: str, algo: str, hidden_sizes: list[int], **settings: Any) -> Advance:
    """PPO, A2C or TRPO of Stable-Baselines3 or of its collection, whose default activation is tanh."""
    return learning(sb3_model(f"{library}:{algo.upper()}", policy_kwargs={"net_arch": hidden_sizes}, **settings))


def sb3_recurrent(*, unit: str, algo: str, hidden_sizes: list[int], rnn_hidden_size: int, **settings: Any) -> Advance:
    """PPO of the collection of Stable-Baselines3 with an LSTM each for policy and value, which is its default."""
    shape = {"net_arch": hidden_sizes, "lstm_hidden_size": rnn_hidden_size}
    return learning(sb3_model("sb3_contrib:RecurrentPPO", policy="MlpLstmPolicy", policy_kwargs=shape, **settings))


def learning(model: Any) -> Advance:
    """Continue the training of a Stable-Baselines3 model for some steps."""

    def advance(count: int) -> int:
        before = model.num_timesteps
        model.learn(count, reset_num_timesteps=False)
        return int(model.num_timesteps - before)

    return advance


def sb3_atari(
    *,
    unit: str,
    threads: int,
    env_id: str,
    num_envs: int,
    frame_stack: int,
    repeat_action_probability: float,
    **settings: Any,
) -> Advance:
    """PPO of Stable-Baselines3 on its preprocessed games, with its convolutions, which are the same as ours."""
    import ale_py
    import gymnasium as gym
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    torch.set_num_threads(threads)
    gym.register_envs(ale_py)
    emulator = {"frameskip": 1, "repeat_action_probability": repeat_action_probability}
    envs = VecFrameStack(make_atari_env(env_id, num_envs, seed=0, env_kwargs=emulator), frame_stack)
    return learning(PPO("CnnPolicy", envs, device="cpu", seed=0, **settings))


def sb3_off_policy(
    trainer: str, *, unit: str, learning_starts: int, updates_per_step: float, **settings: Any
) -> Advance:
    """`module:Class` of Stable-Baselines3, or of a library with its interface; the default activation is relu."""
    settings = sb3_names(updates_per_step=updates_per_step, **settings)
    model = sb3_model(trainer, learning_starts=learning_starts, **settings)
    model.learn(learning_starts, reset_num_timesteps=False)

    def units() -> int:
        return int(model._n_updates if unit == UPDATES else model.num_timesteps)

    def advance(count: int) -> int:
        before = units()
        model.learn(ceil(count / updates_per_step) if unit == UPDATES else count, reset_num_timesteps=False)
        return units() - before

    return advance


def sb3_names(hidden_sizes: list[int], train_every: int, updates_per_step: float, **settings: Any) -> dict[str, Any]:
    """Our off-policy settings under the names of Stable-Baselines3; most are the same."""
    policy = {"net_arch": hidden_sizes}
    theirs = {"policy_kwargs": policy, "train_freq": train_every}
    theirs["gradient_steps"] = round(train_every * updates_per_step)
    for name, value in settings.items():
        if name in ("n_critics", "n_quantiles"):
            policy[name] = value
        elif name == "epsilon":
            theirs["exploration_initial_eps"] = theirs["exploration_final_eps"] = value
        elif name == "target_update_interval":  # Stable-Baselines3 counts steps
            theirs[name] = round(value / updates_per_step)
        elif name == "top_quantiles_to_drop":
            theirs["top_quantiles_to_drop_per_net"] = value
        else:
            theirs[name] = value
    return theirs


def sb3_model(
    trainer: str,
    env_id: str | Callable[..., Any],
    num_envs: int,
    threads: int,
    noise_std: float | None = None,
    policy: str = "MlpPolicy",
    seed: int = 0,
    **settings: Any,
) -> Any:
    """An algorithm of Stable-Baselines3, or of a library with its interface, on its own vector environment."""
    import numpy as np
    import torch
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.noise import NormalActionNoise

    torch.set_num_threads(threads)
    envs = make_vec_env(env_id, n_envs=num_envs, seed=seed)
    if noise_std is not None:
        zeros = np.zeros(envs.action_space.shape)
        settings["action_noise"] = NormalActionNoise(zeros, zeros + noise_std)
    return named(trainer)(policy, envs, device="cpu", seed=seed, **settings)


def d3rlpy_offline(trainer: str, *, unit: str, threads: int, dataset: str, **settings: Any) -> Advance:
    """An algorithm of d3rlpy, by the class of its config."""
    import torch

    torch.set_num_threads(threads)
    _, update = d3rlpy_algo(trainer, named(dataset)(), **settings)
    return repeating(update)


def d3rlpy_algo(
    trainer: str, arrays: Mapping[str, Any], *, hidden_sizes: list[int], learning_rate: float, **settings: Any
) -> tuple[Any, Callable[[], object]]:
    """An algorithm of d3rlpy, and its update: its own draw from its own memory, then a step."""
    from d3rlpy import algos
    from d3rlpy.dataset import MDPDataset
    from d3rlpy.models.encoders import VectorEncoderFactory

    memory = MDPDataset(*(arrays[name] for name in ("observations", "actions", "rewards", "terminals", "timeouts")))
    config = getattr(algos, trainer)
    for name in (field.name for field in fields(config)):  # each network has an encoder and a learning rate
        if name.endswith("encoder_factory"):
            settings[name] = VectorEncoderFactory(hidden_units=hidden_sizes)
        elif name.endswith("learning_rate"):
            settings.setdefault(name, learning_rate)
    algo = config(**settings).create(device="cpu:0")
    algo.build_with_dataset(memory)
    return algo, lambda: algo.update(memory.sample_transition_batch(algo.batch_size))


def plain(
    *,
    unit: str,
    threads: int,
    algo: str,
    dataset: str,
    hidden_sizes: list[int],
    learning_rate: float,
    batch_size: int,
) -> Advance:
    """A class of plain_offline.py."""
    import torch
    from plain_offline import LEARNERS, Memory, Sizes

    torch.set_num_threads(threads)
    arrays = named(dataset)()
    memory = Memory(arrays)
    sizes = Sizes(arrays["observations"].shape[1], arrays["actions"].shape[1], hidden_sizes)
    learner = LEARNERS[algo](sizes, learning_rate)
    return repeating(lambda: learner.update(memory.sample(batch_size)))


def repeating(update: Callable[[], object]) -> Advance:
    """One unit is one update."""

    def advance(count: int) -> int:
        for _ in range(count):
            update()
        return count

    return advance


def named(reference: str) -> Any:
    """The object that `module:name` refers to."""
    module, name = reference.split(":")
    return getattr(import_module(module), name)
