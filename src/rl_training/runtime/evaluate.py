"""Evaluates a policy in separate environments, with fixed episode seeds, without any effect on training.

This is the one place that steps environments to evaluate.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from rl_training.algorithms.base import LoopConfig, Policy
from rl_training.experiment.config import Config
from rl_training.experiment.settings import RunConfig
from rl_training.runtime.envs.boards import BoardEnv, Game, RandomPlayer, side_of
from rl_training.runtime.envs.camera import Camera
from rl_training.runtime.envs.given import Env, parse_env
from rl_training.runtime.envs.goals import success_of
from rl_training.runtime.envs.lives import lives_lost
from rl_training.runtime.envs.make import EnvMaker, reset_each
from rl_training.runtime.envs.spaces import ActionScaler, actions_in_words, observations_in_words
from rl_training.runtime.evaluations import Evaluation, Match
from rl_training.runtime.libraries import Libraries
from rl_training.runtime.opponents import NOTHING_ASKED, Opposition, find_opponent
from rl_training.runtime.rng import seeded
from rl_training.types import Array, Carry, SpaceInfo, UserError

_LOG = logging.getLogger("rl_training")

# Where an evaluation cuts off an episode, unless the environment has a longer time limit.
LONGEST_EPISODE = 100_000
# Every run is evaluated on the same episodes, so that results can be compared.
_EVALUATION_SEED = 20_260_312
_MOST_ENVS = 16


def episode_seeds(episodes: int) -> list[int]:
    """The seed of every evaluation episode, the same in every run."""
    return [int(seed) for seed in seeded(_EVALUATION_SEED, "evaluation").generate_state(episodes) % (2**31 - 1)]


def game_seeds(episodes: int) -> list[int]:
    """The same for games for two players: even and odd in turn, so that the policy changes sides with every game."""
    return [seed - side_of(seed) + side_of(number) for number, seed in enumerate(episode_seeds(episodes))]


@dataclass(frozen=True)
class Moment:
    """A moment of an episode: what the policy sees (one row) and carries, and the game, if it is one for two."""

    obs: Array
    carry: Carry
    game: Game | None


@dataclass(frozen=True)
class Walk:
    """The first steps of an episode: what the policy saw `[N + 1, ...]`, did `[N, ...]` and got `[N]`.

    `carry` is what it has after them.
    """

    obs: Array
    action: Array
    reward: Array
    terminated: bool
    truncated: bool
    carry: Carry


class Evaluator:
    """Runs evaluations; its environments are made at the first use and kept.

    A game for two players is played against the opponent that is asked for, or that of the settings.
    """

    def __init__(
        self,
        maker: EnvMaker,
        info: SpaceInfo,
        settings: RunConfig,
        asked: Opposition = NOTHING_ASKED,
        render: str | None = None,
    ) -> None:
        self._camera = None if render is None else Camera(render, maker.env_id)
        self.maker = maker if self._camera is None else maker.seen_by(self._camera)
        self._info, self._settings = info, settings
        self._opponent = find_opponent(asked, settings, info, maker.game_name)
        self._openings = asked.openings
        self._envs: VectorEnv[Any, Any, Any] | None = None
        self._width = 0
        self._said_cut_off = False

    @property
    def by_task(self) -> Mapping[str, Evaluator]:
        """The evaluator of every task: there is one, which has no name."""
        return {"": self}

    def again(self, asked: Opposition, render: str | None = None) -> Evaluator:
        """Another evaluator in the same environment, for another opponent or to be looked at."""
        return Evaluator(self.maker, self._info, self._settings, asked, render)

    @property
    def unable(self) -> str | None:
        """Why there can be no evaluation now, in a sentence; None if there can."""
        lender = self.maker.lender
        if lender is None or lender.can_be_evaluated:
            return None
        return (
            f"env: copies of the given {lender.name} cannot be made, so it is trained in alone, and evaluations need "
            f"another (agent.evaluate(env=...)); to have both, {lender.better}"
        )

    def warnings(self, *, kept: bool = False) -> list[str]:
        """What is amiss with the environment: it shows no end of episodes, or a run that is kept cannot name it."""
        found = self.maker.warnings() if kept else []
        if self.unable is not None:
            found.append(self.unable)
        if not self.maker.shows_no_time_limit:
            return found
        return [
            *found,
            f"env_id={self.maker.env_id!r}: shows no time limit; give one with time_limit if episodes may not end "
            f"(evaluations cut off episodes after {LONGEST_EPISODE:,} steps)",
        ]

    def __call__(
        self,
        policy: Policy,
        episodes: int,
        *,
        deterministic: bool | None = None,
        heed: Callable[[], None] = lambda: None,
    ) -> Evaluation:
        """Play this many episodes with greedy actions, or with those of the behaviour policy.

        None means what the policy is judged by: greedy actions, unless it says otherwise.
        Whatever the policy draws comes from a random stream that is the same in every evaluation.
        `heed` is called before every step; it may raise.
        """
        with Libraries(self._settings.threads):
            # The size of a batch can change the last bits of its rows, so it depends on `episodes` only.
            envs = self._environments(1 if self.maker.one_at_a_time else min(episodes, _MOST_ENVS))
            seeds = game_seeds(episodes) if self._info.two_player else episode_seeds(episodes)
            explore = policy.judged_by_samples if deterministic is None else not deterministic
            try:
                found = self._play(envs, policy, seeds, explore=explore, heed=heed)
            finally:
                if self.maker.lender is not None:
                    self.close()  # it is given back
        return found if self._camera is None else replace(found, frames=self._camera.pictures(episodes))

    def moment(self, policy: Policy, seed: int, steps: int) -> Moment:
        """What there is to decide after some greedy steps of the episode with this seed."""
        walk = self._walk(policy, seed, steps, explore=False)
        if walk.terminated or walk.truncated:
            raise UserError(f"step={steps}: the episode with seed {seed} is over after {len(walk.reward)} steps")
        board = getattr(getattr(self._envs, "envs", (None,))[0], "unwrapped", None)
        return Moment(walk.obs[-1:], walk.carry, board.game if isinstance(board, BoardEnv) else None)

    def walk(self, policy: Policy, seed: int, steps: int) -> Walk:
        """Play the episode with this seed for some steps, or to its end, as an evaluation does."""
        return self._walk(policy, seed, steps, explore=policy.judged_by_samples)

    def _walk(self, policy: Policy, seed: int, steps: int, *, explore: bool) -> Walk:
        with Libraries(self._settings.threads):
            envs = self._environments(1)
            scale, rng = ActionScaler(self._info, envs.single_action_space.dtype), _policy_stream()
            obs, carry = [self._row(self._reset(envs, [seed], np.zeros(1, np.int64), None))], policy.initial_carry(1)
            actions, rewards = list[Array](), list[Array]()
            terminated = truncated = False
            while len(actions) < steps and not (terminated or truncated):
                act = policy.act(obs[-1], carry, explore=explore, rng=rng)
                raw, reward, (terminated,), (truncated,), _ = envs.step(scale(act.action))
                carry = act.carry
                obs.append(self._row(raw))
                actions.append(act.action[0])
                rewards.append(reward[0])
            ends = bool(terminated), bool(truncated)
            return Walk(np.concatenate(obs), np.array(actions), np.array(rewards), *ends, carry)

    def _environments(self, width: int) -> VectorEnv[Any, Any, Any]:
        if self._envs is None or self._width != width:
            self.close()
            opponent = RandomPlayer if self._opponent is None else self._opponent
            self._envs = self.maker.for_evaluation(width, opponent, self._openings)
            self._width = width
        return self._envs

    def _row(self, raw: Any) -> Array:
        """A copy of observations, which an environment may change, as the policy sees them."""
        return np.array(raw, dtype=self._info.obs_dtype)

    def _play(
        self,
        envs: VectorEnv[Any, Any, Any],
        policy: Policy,
        seeds: list[int],
        *,
        explore: bool,
        heed: Callable[[], None],
    ) -> Evaluation:
        scale = ActionScaler(self._info, envs.single_action_space.dtype)
        returns, lengths = np.zeros(len(seeds)), np.zeros(len(seeds), np.int64)
        games: dict[int, str] = {}
        successes: dict[int, bool] = {}
        longest = max(LONGEST_EPISODE, self.maker.time_limit or 0)
        playing = np.arange(envs.num_envs)  # which episode each environment plays
        upcoming = envs.num_envs
        raw = self._reset(envs, seeds, playing, None)
        carry = policy.initial_carry(envs.num_envs)
        rng = _policy_stream()
        while (playing < len(seeds)).any():
            heed()
            decided = policy.act(self._row(raw), carry, explore=explore, rng=rng)
            carry = decided.carry
            raw, reward, terminated, truncated, infos = envs.step(scale(decided.action))
            live = playing < len(seeds)
            np.add.at(returns, playing[live], reward[live])
            np.add.at(lengths, playing[live], 1)
            ended = terminated | truncated
            endless = live & ~ended & (lengths[np.minimum(playing, len(seeds) - 1)] >= longest)
            done = ended | endless
            if endless.any():
                self._say_cut_off(int(playing[endless][0]), longest)
            if done.any():
                for b in np.flatnonzero(done).tolist():
                    success = success_of(infos, b) if live[b] else None
                    if success is not None:
                        successes[int(playing[b])] = success
                    if self._info.two_player and live[b]:
                        games[int(playing[b])] = infos["moves"][b] if ended[b] else ""
                    playing[b], upcoming = upcoming, upcoming + 1
                raw = self._reset(envs, seeds, playing, done)
            lost = lives_lost(infos, envs.num_envs)
            carry = policy.begin_episodes(carry, done if lost is None else done | lost)
            if explore and policy.carry_per_rollout and done.any():
                carry = policy.initial_carry(envs.num_envs)  # gSDE's noise would stay the same in all episodes
        moves = tuple(games[number] for number in sorted(games))
        told = tuple(successes[number] for number in sorted(successes)) if len(successes) == len(seeds) else ()
        return Evaluation(tuple(returns.tolist()), tuple(lengths.tolist()), moves, told)

    def _say_cut_off(self, number: int, longest: int) -> None:
        if not self._said_cut_off:
            _LOG.warning(
                f"evaluation episode {number + 1} did not end in {longest:,} steps and was cut off there; its return "
                "counts as it was by then (time_limit ends episodes earlier, in training too)"
            )
        self._said_cut_off = True

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


def _policy_stream() -> np.random.Generator:
    """What policies draw from in evaluations."""
    return np.random.Generator(np.random.PCG64(seeded(_EVALUATION_SEED, "policy")))


def in_its_own(settings: RunConfig, loop: LoopConfig, info: SpaceInfo, *, trust: bool = False) -> Evaluator:
    """An evaluator in the environment that settings name, for policies of the spaces `info`."""
    maker = EnvMaker(settings, loop)
    return Evaluator(maker, _fitting_spaces(maker, info), settings, Opposition(trust=trust))


def elsewhere(
    env: Env, config: Config, info: SpaceInfo, asked: Opposition = NOTHING_ASKED, render: str | None = None
) -> Evaluator:
    """An evaluator in another environment than that of the config, for policies of the spaces `info`.

    The environment has its own arguments and time limit. The config's `frame_stack` stays, since the policy needs it.
    """
    given, factory = parse_env(env)
    limit = given.pop("time_limit", None)
    run = config.run.model_copy(update={"env_kwargs": {}, "env_packages": (), "vectorization": "sync"} | given)
    maker = EnvMaker(run, config.loop.model_copy(update={"time_limit": limit}), factory)
    return Evaluator(maker, _fitting_spaces(maker, info), run, asked, render)


def _fitting_spaces(maker: EnvMaker, info: SpaceInfo) -> SpaceInfo:
    """The spaces of another environment, checked to suit policies of the spaces `info`."""
    envs = maker.masking(maker.vector(1))
    try:
        found = maker.describe(envs)
    finally:
        envs.close()
    for what, words in (("observations", observations_in_words), ("actions", actions_in_words)):
        if words(found) != words(info):
            raise UserError(
                f"env={maker.env_id!r}: its {what} are {words(found)}; the policy was trained on {words(info)}"
            )
    return found


def play_match(
    policy: Policy,
    env: Env,
    opponent: str = "random",
    *,
    games: int = 100,
    openings: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    trust: bool = False,
) -> Match:
    """Let a policy play a game for two players against an opponent, with greedy actions; it changes sides every game.

    `opponent` is `random`, `perfect`, or the path of a run or a checkpoint. Games begin with `openings` random moves;
    if the game is solved, only with such as lead to a draw under perfect play. `trust` lets in code that the opponent's
    checkpoint names.
    """
    given, factory = parse_env(env)
    settings = RunConfig(**{"env_kwargs": dict(env_kwargs or {}), "vectorization": "sync"} | given)
    maker = EnvMaker(settings, LoopConfig(), factory)
    spaces = _fitting_spaces(maker, policy.info)
    with closing(Evaluator(maker, spaces, settings, Opposition(opponent, openings, trust))) as evaluator:
        match = evaluator(policy, games).match
    assert match is not None
    return match
