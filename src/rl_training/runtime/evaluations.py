"""What evaluations find: returns and lengths of episodes, matches, successes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rl_training.types import Array, Metrics

# Further metrics of games for two players.
GAME_METRICS = ("eval_win_rate", "eval_draw_rate", "eval_loss_rate")
# A further metric of environments that say at the end of an episode whether it was a success.
SUCCESS_METRIC = "eval_success_rate"


class Score(NamedTuple):
    """How some games ended for the policy."""

    wins: int
    draws: int
    losses: int

    @classmethod
    def of(cls, returns: Sequence[float]) -> Score:
        """A game is won if its return is above 0, and lost below."""
        signs = np.sign(returns)
        return cls(*(int((signs == sign).sum()) for sign in (1, 0, -1)))

    def __str__(self) -> str:
        return f"{self.wins} won, {self.draws} drawn, {self.losses} lost"


@dataclass(frozen=True)
class Match:
    """The scores of a policy that moved first in some games and second in others, and how many games were different."""

    first: Score
    second: Score
    different: int

    @property
    def total(self) -> Score:
        return Score(*(a + b for a, b in zip(self.first, self.second, strict=True)))


@dataclass(frozen=True)
class Evaluation:
    """The raw returns and lengths of some episodes.

    An episode of a game for two players also has its moves, of both sides, in `games`: as numbers with spaces between
    them. The policy moves first in the first of these games, second in the next, and so on. `successes` says which
    episodes ended in success, if the environment says so of all. `frames` are the pictures of every episode,
    `[T + 1, height, width, 3]`, if it was rendered as `rgb_array`.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    games: tuple[str, ...] = ()
    successes: tuple[bool, ...] = ()
    frames: tuple[Array, ...] = field(default=(), compare=False, repr=False)

    @property
    def by_task(self) -> Mapping[str, Evaluation]:
        """The evaluation of every task: there is one, which has no name."""
        return {"": self}

    @property
    def score(self) -> float | None:
        """The mean of normalised scores, which only tasks have."""
        return None

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        return float(np.std(self.returns))

    @property
    def match(self) -> Match | None:
        """The result as a match; None if the environment is no game for two players."""
        if not self.games:
            return None
        return Match(Score.of(self.returns[::2]), Score.of(self.returns[1::2]), len(set(self.games)))

    def metrics(self) -> Metrics:
        success = {SUCCESS_METRIC: float(np.mean(self.successes))} if self.successes else {}
        return self._return_metrics() | self._game_metrics() | success

    def _game_metrics(self) -> Metrics:
        match = self.match
        if match is None:
            return {}
        return {name: count / len(self.returns) for name, count in zip(GAME_METRICS, match.total, strict=True)}

    def _return_metrics(self) -> Metrics:
        return {
            "eval_return_mean": self.mean,
            "eval_return_std": self.std,
            "eval_return_min": float(np.min(self.returns)),
            "eval_return_max": float(np.max(self.returns)),
            "eval_length_mean": float(np.mean(self.lengths)),
            "eval_episodes": float(len(self.returns)),
        }
