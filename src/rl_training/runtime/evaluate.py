"""Evaluates a policy in separate environments, with fixed episode seeds, without any effect on training.

This is the one place that steps environments to evaluate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from rl_training.algorithms.base import Policy
from rl_training.experiment.config import Config
from rl_training.runtime.actors.actor import MOST_STEPS
from rl_training.runtime.envs.given import Env, parse_env
from rl_training.runtime.envs.lives import lives_lost
from rl_training.runtime.envs.make import EnvMaker, reset_each
from rl_training.runtime.envs.spaces import ActionScaler
from rl_training.runtime.rng import seeded, untouched
from rl_training.types import Array, Metrics, SpaceInfo, UserError

# Every run is evaluated on the same episodes, so that results can be compared.
_EVALUATION_SEED = 20_260_312
_MOST_ENVS = 16


@dataclass(frozen=True)
class Evaluation:
    """The raw returns and lengths of some episodes."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        return float(np.std(self.returns))

    def metrics(self) -> Metrics:
        return {
            "eval_return_mean": self.mean,
            "eval_return_std": self.std,
            "eval_return_min": float(np.min(self.returns)),
            "eval_return_max": float(np.max(self.returns)),
            "eval_length_mean": float(np.mean(self.lengths)),
            "eval_episodes": float(len(self.returns)),
        }


def episode_seeds(episodes: int) -> list[int]:
    """The seed of every evaluation episode, the same in every run."""
    return [int(seed) for seed in seeded(_EVALUATION_SEED, "evaluation").generate_state(episodes) % (2**31 - 1)]


class Evaluator:
    """Runs evaluations; its environments are made at the first use and kept."""

    def __init__(self, make: Callable[[int], VectorEnv[Any, Any, Any]], info: SpaceInfo) -> None:
        self._make = make
        self._info = info
        self._envs: VectorEnv[Any, Any, Any] | None = None
        self._width = 0

    def __call__(self, policy: Policy, episodes: int, *, deterministic: bool = True) -> Evaluation:
        """Play this many episodes with greedy actions, or with those of the behaviour policy.

        Whatever the policy draws comes from a random stream that is the same in every evaluation.
        """
        with untouched():
            # The size of a batch can change the last bits of its rows, so it depends on `episodes` only.
            width = min(episodes, _MOST_ENVS)
            if self._envs is None or self._width != width:
                self.close()
                self._envs, self._width = self._make(width), width
            return self._play(self._envs, policy, episode_seeds(episodes), explore=not deterministic)

    def _play(self, envs: VectorEnv[Any, Any, Any], policy: Policy, seeds: list[int], *, explore: bool) -> Evaluation:
        scale = ActionScaler(self._info, envs.single_action_space.dtype)
        returns, lengths = np.zeros(len(seeds)), np.zeros(len(seeds), np.int64)
        playing = np.arange(envs.num_envs)  # which episode each environment plays
        upcoming = envs.num_envs
        raw = self._reset(envs, seeds, playing, None)
        carry = policy.initial_carry(envs.num_envs)
        rng = np.random.Generator(np.random.PCG64(seeded(_EVALUATION_SEED, "policy")))
        while (playing < len(seeds)).any():
            decided = policy.act(np.array(raw, dtype=self._info.obs_dtype), carry, explore=explore, rng=rng)
            carry = decided.carry
            raw, reward, terminated, truncated, infos = envs.step(scale(decided.action))
            live = playing < len(seeds)
            np.add.at(returns, playing[live], reward[live])
            np.add.at(lengths, playing[live], 1)
            done = terminated | truncated
            if (lengths[playing[live & ~done]] >= MOST_STEPS).any():
                raise UserError(
                    f"an evaluation episode did not end in {MOST_STEPS:,} steps; give a time_limit to truncate it"
                )
            if done.any():
                for b in np.flatnonzero(done):
                    playing[b], upcoming = upcoming, upcoming + 1
                raw = self._reset(envs, seeds, playing, done)
            lost = lives_lost(infos, envs.num_envs)
            carry = policy.begin_episodes(carry, done if lost is None else done | lost)
            if explore and policy.carry_per_rollout and done.any():
                carry = policy.initial_carry(envs.num_envs)  # gSDE's noise would stay the same in all episodes
        return Evaluation(tuple(returns.tolist()), tuple(lengths.tolist()))

    @staticmethod
    def _reset(envs: VectorEnv[Any, Any, Any], seeds: list[int], playing: Array, mask: Array | None) -> Array:
        # An environment that has no episode left keeps running, and its episodes do not count.
        fresh = [seeds[min(int(k), len(seeds) - 1)] for k in playing]
        if envs.metadata["autoreset_mode"] != AutoresetMode.DISABLED:
            return np.asarray(envs.reset(seed=fresh[0])[0])  # there is only one: see EnvMaker.for_evaluation
        return reset_each(envs, fresh, mask)

    def close(self) -> None:
        if self._envs is not None:
            self._envs.close()
            self._envs = None


def elsewhere(env: Env, config: Config, info: SpaceInfo) -> Evaluator:
    """An evaluator in another environment than that of the config, for policies of the spaces `info`.

    The environment has its own arguments and time limit. The config's `frame_stack` stays, since the policy needs it.
    """
    given, factory = parse_env(env)
    limit = given.pop("time_limit", None)
    run = config.run.model_copy(update={"env_kwargs": {}, "vectorization": "sync"} | given)
    maker = EnvMaker(run, config.loop.model_copy(update={"time_limit": limit}), factory)
    envs = maker.masking(maker.vector(1))
    try:
        found = maker.describe(envs)
    finally:
        envs.close()
    for what, there, here in (
        ("observations", _observations(found), _observations(info)),
        ("actions", _actions(found), _actions(info)),
    ):
        if there != here:
            raise UserError(f"env={run.env_id!r}: its {what} are {there}; the policy was trained on {here}")
    return Evaluator(maker.for_evaluation, found)


def _observations(info: SpaceInfo) -> str:
    """What a policy must see, in words."""
    parts = [f"{part.name!r} {part.dtype} {part.shape}".removeprefix("'' ") for part in info.parts]
    mask = f" with a mask of {info.mask_size} actions" if info.mask_size else ""
    return (", ".join(parts) or f"{info.obs_dtype} {info.obs_shape}") + mask


def _actions(info: SpaceInfo) -> str:
    """What a policy must return, in words. The bounds do not matter, since actions are scaled to them."""
    return f"{info.action_kind} of {info.action_size if info.continuous else list(info.action_counts)}"
