"""One seed of one side of a pair: it trains, and evaluates on the way. As a program: `learners.py PAIR SIDE SEED FILE`.

Every side is evaluated by the same code: deterministic actions in the same episodes of separate environments, after the
same numbers of steps. The seconds of training are CPU time without the evaluations.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from libraries import OURS, PEERS
from numpy.typing import NDArray
from pair_parts import Pair
from pairs import PAIRS
from seed_files import Curve, data_file, fingerprint, own_code
from trainers import d3rlpy_algo, named, sb3_model, sb3_names

Array = NDArray[Any]
After = Callable[[int], None]
Predict = Callable[[Array, Any, Array], tuple[Array, Any]]

FIRST_EPISODE = 1_000_000  # seeds of evaluation episodes, far from those of training


class Learner(NamedTuple):
    """A side that was built.

    `learn(total, after)` trains, and calls `after(steps)` whenever the updates that belong to so many steps are done.
    `predict(obs, state, starts)` returns deterministic actions for some observations, and the next state.
    """

    learn: Callable[[int, After], object]
    predict: Predict


def make_env(pair: Pair) -> gym.Env[Any, Any]:
    task = pair.task
    if ":" in task.env_id:
        made: gym.Env[Any, Any] = named(task.env_id)(**task.env_kwargs)
        return made
    return gym.make(task.env_id, **task.env_kwargs)


class Judge:
    """Plays the same episodes in every evaluation, side by side, with one call of the policy for all of them."""

    def __init__(self, pair: Pair) -> None:
        self._envs = [make_env(pair) for _ in range(pair.episodes)]

    def __call__(self, predict: Predict) -> float:
        """The mean return."""
        returns, over = np.zeros(len(self._envs)), np.zeros(len(self._envs), bool)
        obs = np.stack([env.reset(seed=FIRST_EPISODE + k)[0] for k, env in enumerate(self._envs)])
        state, starts = None, np.ones(len(obs), bool)
        while not over.all():
            actions, state = predict(obs, state, starts)
            obs, starts = obs.copy(), np.zeros(len(obs), bool)
            for k in np.flatnonzero(~over):
                obs[k], reward, terminated, truncated, _ = self._envs[k].step(actions[k])
                returns[k] += float(reward)
                over[k] = terminated or truncated
        return float(returns.mean())


class Recorder:
    """Evaluates whenever a side has made another `every` steps, and stops the clock meanwhile."""

    def __init__(self, pair: Pair, predict: Predict) -> None:
        self.steps: list[int] = []
        self.returns: list[float] = []
        self.cpu_seconds = 0.0
        self._pair, self._predict, self._judge = pair, predict, Judge(pair)
        self._since = time.process_time()

    def after(self, steps: int) -> None:
        every = self._pair.every
        if steps // every == len(self.steps):
            return
        if steps % every:
            raise ValueError(f"every={every}: must be a multiple of the steps between two updates; this is {steps}")
        self.cpu_seconds += time.process_time() - self._since
        self.steps.append(steps)
        self.returns.append(self._judge(self._predict))
        self._since = time.process_time()


def ours(pair: Pair, seed: int) -> Learner:
    """An agent of this package, by its public interface."""
    from rl_training import Callback
    from rl_training.api import algorithms

    class Watch(Callback):
        def __init__(self, after: After) -> None:
            self.after = after

        def on_step(self, run: Any, metrics: Any) -> None:
            self.after(run.steps)

    kind = next(found for found in vars(algorithms).values() if getattr(found, "algo", None) == pair.algo)
    settings = {**pair.our_settings, "seed": seed, "device": "cpu", "eval_episodes": 1}
    if pair.dataset is not None:
        settings["dataset"] = str(data_file(pair.dataset))
    agent = kind(pair.task.env_id, env_kwargs=dict(pair.task.env_kwargs), **settings)

    def predict(obs: Array, state: Any, starts: Array) -> tuple[Array, Any]:
        found: tuple[Array, Any] = agent.predict(obs, state, starts, deterministic=True)
        return found

    return Learner(lambda total, after: agent.learn(total, Watch(after)), predict)


def sb3(pair: Pair, seed: int) -> Learner:
    """An algorithm of Stable-Baselines3 or of its collection."""
    from stable_baselines3.common.callbacks import BaseCallback

    class Watch(BaseCallback):  # type: ignore[misc]
        """A rollout starts when the updates of the one before are done."""

        def __init__(self, after: After) -> None:
            super().__init__()
            self.after = after

        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            self.after(self.num_timesteps)

        def _on_training_end(self) -> None:
            self.after(self.num_timesteps)

    env_id = partial(make_env, pair) if ":" in pair.task.env_id else pair.task.env_id
    model = sb3_model(env_id=env_id, threads=1, seed=seed, **{**sb3_settings(pair), **pair.theirs})

    def predict(obs: Array, state: Any, starts: Array) -> tuple[Array, Any]:
        found: tuple[Array, Any] = model.predict(obs, state=state, episode_start=starts, deterministic=True)
        return found

    return Learner(lambda total, after: model.learn(total, callback=Watch(after)), predict)


def sb3_settings(pair: Pair) -> dict[str, Any]:
    """The settings of both sides under the names of Stable-Baselines3."""
    settings = dict(pair.settings)
    if "train_every" in settings:
        return sb3_names(**settings)
    policy = {"net_arch": settings.pop("hidden_sizes")}
    if "rnn_hidden_size" in settings:
        policy["lstm_hidden_size"] = settings.pop("rnn_hidden_size")
    return {**settings, "policy_kwargs": policy}


def d3rlpy(pair: Pair, seed: int) -> Learner:
    """An algorithm of d3rlpy."""
    import d3rlpy
    import torch
    from d3rlpy.preprocessing import MinMaxActionScaler, MultiplyRewardScaler

    torch.set_num_threads(1)
    d3rlpy.seed(seed)
    assert pair.dataset is not None
    space = make_env(pair).action_space
    assert isinstance(space, gym.spaces.Box)
    settings: dict[str, Any] = {**pair.settings, **pair.theirs}
    settings["action_scaler"] = MinMaxActionScaler(minimum=space.low, maximum=space.high)
    if "reward_scale" in settings:
        settings["reward_scaler"] = MultiplyRewardScaler(multiplier=settings.pop("reward_scale"))
    algo, update = d3rlpy_algo(arrays=dict(np.load(data_file(pair.dataset))), **settings)

    def learn(total: int, after: After) -> None:
        for step in range(1, total + 1):
            update()
            after(step)

    return Learner(learn, lambda obs, state, starts: (algo.predict(obs), None))


def imitation(pair: Pair, seed: int) -> Learner:
    """GAIL of imitation, around PPO of Stable-Baselines3."""
    from imitation.algorithms.adversarial.gail import GAIL
    from imitation.data.types import Transitions
    from imitation.rewards.reward_nets import BasicRewardNet
    from imitation.util.networks import RunningNorm
    from torch import nn

    names = {"disc_updates": "n_disc_updates_per_round", "disc_batch_size": "demo_batch_size"}
    settings = sb3_settings(pair)
    own = {theirs: settings.pop(name) for name, theirs in names.items()}
    rate, hidden = {"lr": settings.pop("disc_learning_rate")}, settings.pop("disc_hidden_sizes")
    shown = named(pair.theirs["demonstrations"])()
    over = shown.terminated
    actions, infos = shown.action.reshape(len(over)), np.array([{}] * len(over))
    demonstrations = Transitions(shown.obs, actions, infos, shown.next_obs, over)
    model = sb3_model("stable_baselines3:PPO", pair.task.env_id, threads=1, seed=seed, **settings)
    space = model.observation_space, model.action_space
    network = BasicRewardNet(*space, hid_sizes=hidden, activation=nn.Tanh, normalize_input_layer=RunningNorm)
    trainer = GAIL(
        demonstrations=demonstrations,
        venv=model.get_env(),
        gen_algo=model,
        reward_net=network,
        disc_opt_kwargs=rate,
        allow_variable_horizon=True,
        **own,
    )
    rollout = settings["num_envs"] * settings["n_steps"]

    def predict(obs: Array, state: Any, starts: Array) -> tuple[Array, Any]:
        found: tuple[Array, Any] = model.predict(obs, deterministic=True)
        return found

    return Learner(lambda total, after: trainer.train(total, lambda turn: after((turn + 1) * rollout)), predict)


def plain(pair: Pair, seed: int) -> Learner:
    """A class of this folder, written from a paper."""
    import torch

    torch.set_num_threads(1)
    settings = {**pair.settings, **pair.theirs}
    learner = named(settings.pop("trainer"))(partial(make_env, pair), seed, **settings)
    return Learner(learner.learn, lambda obs, state, starts: (learner.predict(obs), None))


LEARNERS: dict[str, Callable[[Pair, int], Learner]] = {
    "sb3": sb3,
    "d3rlpy": d3rlpy,
    "imitation": imitation,
    "plain": plain,
}


def train(name: str, side: str, seed: int) -> Curve:
    """Train one seed of one side."""
    pair = PAIRS[name]
    code = own_code() if side == OURS else ""
    learner = ours(pair, seed) if side == OURS else LEARNERS[pair.learner](pair, seed)
    recorder = Recorder(pair, learner.predict)
    learner.learn(pair.total, recorder.after)
    expected = list(range(pair.every, pair.total + 1, pair.every))
    if recorder.steps != expected:
        raise ValueError(f"evaluated after {recorder.steps} steps, not after every {pair.every} of {pair.total}")
    seconds = round(recorder.cpu_seconds, 2)
    settings, found = fingerprint(pair, side), versions(side)
    return Curve(name, side, seed, settings, recorder.steps, recorder.returns, seconds, found, code)


def versions(side: str) -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for package in ("rl-training" if side == OURS else PEERS[side].package, "torch", "numpy", "gymnasium"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def main(name: str, side: str, seed: str, file: str) -> None:
    train(name, side, int(seed)).save(Path(file))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:  # the terminal tells the parent too
        sys.exit(130)
