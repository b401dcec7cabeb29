"""The opponents of evaluations in games for two players: random, perfect, or the policy of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rl_training.algorithms.base import Policy
from rl_training.experiment.registry import suggest
from rl_training.experiment.settings import RunConfig
from rl_training.experiment.trust import POLICY
from rl_training.ops.observations import pack
from rl_training.runtime.envs.boards import Game, PerfectPlayer, Player, RandomPlayer
from rl_training.runtime.envs.perfect import SOLVED
from rl_training.runtime.envs.spaces import ActionScaler, actions_in_words, observations_in_words
from rl_training.types import Carry, SpaceInfo, UserError

RANDOM, PERFECT = "random", "perfect"


@dataclass(frozen=True)
class Opposition:
    """What an evaluation of a game asks for: an opponent (None: that of the config), and random moves at the start.

    `trust` lets in the code that an opponent's checkpoint names.
    """

    opponent: str | None = None
    openings: int = 0
    trust: bool = False


NOTHING_ASKED = Opposition()


class PolicyPlayer:
    """A policy that plays one side, with greedy actions."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._scale = ActionScaler(policy.info, np.int64)
        self._carry: Carry = None

    def begin(self) -> None:
        self._carry = self.policy.initial_carry(1)

    def choose(self, game: Game, rng: np.random.Generator) -> int:
        obs, mask = game.look()
        info = self.policy.info
        row = pack(obs, mask, info.parts, info.mask_size)
        act = self.policy.act(row[None], self._carry, explore=False, rng=rng)
        self._carry = act.carry
        return int(self._scale(act.action)[0])


def find_opponent(
    asked: Opposition, settings: RunConfig, info: SpaceInfo, game_name: str | None
) -> Callable[[], Player] | None:
    """The function that makes the opponent of an evaluation, or None where the environment is no game for two.

    `settings` are those of the run that is evaluated, and `info` describes its environment.
    """
    explicit = asked.opponent
    name, key = (settings.eval_opponent, "eval_opponent") if explicit is None else (explicit, "opponent")
    if not info.two_player:
        if explicit is None and not asked.openings and name == RANDOM:
            return None
        said = f"openings={asked.openings}" if explicit is None and asked.openings else f"{key}={name!r}"
        raise UserError(f"{said}: {settings.env_id} is no game for two players")
    if name == RANDOM:
        return RandomPlayer
    if name == PERFECT:
        if game_name not in SOLVED:
            raise UserError(
                f"{key}={name!r}: no perfect player is known for {settings.env_id}, only for {', '.join(SOLVED)}"
            )
        return PerfectPlayer
    policy = _load_policy(name, key, settings, info, trust=asked.trust)
    return lambda: PolicyPlayer(policy)


def _load_policy(path: str, key: str, settings: RunConfig, info: SpaceInfo, *, trust: bool) -> Policy:
    """The policy of a run or a checkpoint, which must have been trained on the same spaces."""
    from rl_training.runtime.saved_policy import load_policy

    if not Path(path).exists():
        known = f"{RANDOM}, {PERFECT}, or the path of a run or a checkpoint"
        near = suggest(path, [RANDOM, PERFECT]) or " (there is none)"
        raise UserError(f"{key}={path!r}: must be {known}{near}")
    # Its environment is not made: what it names for that is not asked about.
    saved = load_policy(path, trust=trust, uses=POLICY, device=settings.device, threads=settings.threads)
    its = saved.info
    for what, words in (("observations", observations_in_words), ("actions", actions_in_words)):
        if words(its) != words(info):
            raise UserError(
                f"{key}={path!r}: its {what} are {words(its)}; those of {settings.env_id} are {words(info)}"
            )
    return saved.policy
