"""Games for two players from PettingZoo. A policy plays both sides (`SelfPlay`), or one side (`Versus`)."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from rl_training.runtime.envs.perfect import SOLVED, Solution
from rl_training.runtime.extras import import_extra, missing
from rl_training.types import Array, UserError

PREFIX = "pettingzoo/"
# The names that are suggested even if PettingZoo is not installed.
KNOWN_GAMES = (f"{PREFIX}tictactoe_v3", f"{PREFIX}connect_four_v3")

_NAMESPACE = "classic/"
# What the extra installs; some games need more.
_IN_THE_EXTRA = ("pettingzoo", "pygame")
# PettingZoo's wrappers that check what `Game` checks too. They take most of the time of a move.
_CHECKING_WRAPPERS = ("TerminateIllegalWrapper", "AssertOutOfBoundsWrapper", "OrderEnforcingWrapper")
_REHEARSED_MOVES = 100
_MOST_TRIES = 300


def is_board(env_id: str) -> bool:
    """Whether an id names a game of PettingZoo."""
    return env_id.startswith(PREFIX)


def is_game(env: Any) -> bool:
    """Whether this is an environment of PettingZoo in which players act in turn."""
    return isinstance(env, game_kinds())


def game_kinds() -> tuple[type, ...]:
    """The class of such environments, if PettingZoo is there."""
    zoo: Any = sys.modules.get("pettingzoo")
    return () if zoo is None else (zoo.AECEnv,)


def board_maker(env_id: str) -> Callable[..., Any]:
    """The function that makes the game of an id such as `pettingzoo/tictactoe_v3`."""
    zoo = import_extra("pettingzoo", "boards", asked_by=f"env_id={env_id!r}")
    name = env_id.removeprefix(PREFIX)
    key = re.sub(r"_v(?=\d+$)", "-v", name if "/" in name else _NAMESPACE + name)
    if key not in zoo.aec_registry:
        known = [re.sub(r"-v(?=\d+$)", "_v", id).removeprefix(_NAMESPACE) for id in zoo.aec_registry]
        near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)  # of the name: all ids begin the same
        words = f"; did you mean {PREFIX + near[0]!r}?" if near else f" (known: {', '.join(KNOWN_GAMES)}, and others)"
        raise UserError(f"env_id={env_id!r}: unknown game{words}")

    def make(**options: Any) -> Any:
        try:
            return zoo.make("aec", key, **options)
        except Exception as error:
            absent = error.__cause__ if isinstance(error.__cause__, ImportError) else error
            if not isinstance(absent, ImportError):
                raise
            if absent.name in _IN_THE_EXTRA:
                raise UserError(f"env_id={env_id!r}: {missing('boards', absent)}") from error
            group = key.partition("/")[0]
            raise UserError(
                f"env_id={env_id!r}: needs more of PettingZoo's packages: pip install 'pettingzoo[{group}]' ({absent})"
            ) from error

    return make


class Game:
    """A game of two players who take turns, in which one wins what the other loses.

    Players are numbered: 0 moves first. An illegal move loses the game, with a reward of -1. A game of `most_moves` is
    truncated.
    """

    def __init__(self, env: Any, env_id: str, most_moves: int | None = None) -> None:
        self.env = _without_checks(env)
        self.env_id = env_id
        self.name = str(getattr(env, "metadata", {}).get("name", env_id))
        self.moves: list[int] = []
        self.terminated = self.truncated = False
        self._most_moves = most_moves
        self._view: tuple[Array, Array] | None = None  # of the player to move
        self._agents: tuple[Any, Any] = self._two_players()
        self._mask_in_info = False
        self.observation_space, self.action_space = self._spaces()
        self._start = int(self.action_space.start)

    @property
    def turn(self) -> int:
        """The player to move."""
        return len(self.moves) % 2

    @property
    def over(self) -> bool:
        return self.terminated or self.truncated

    @property
    def solution(self) -> Solution | None:
        """The solution of this game, if it is known."""
        return SOLVED.get(self.name)

    def reset(self, seed: int) -> None:
        """Begin a game."""
        self.env.reset(seed=seed)
        first = self.env.agent_selection
        self._agents = (first, next(agent for agent in self._agents if agent != first))
        self.moves, self._view = [], None
        self.terminated = self.truncated = False

    def look(self, player: int | None = None) -> tuple[Array, Array]:
        """What a player sees, and the mask of the allowed moves; without a number the player to move."""
        if player is not None and player != self.turn:
            return self._view_of(self._agents[player])
        if self._view is None:
            self._view = self._view_of(self._agents[self.turn])
        return self._view

    def _view_of(self, agent: Any) -> tuple[Array, Array]:
        seen = self.env.observe(agent)
        if self._mask_in_info:
            return np.asarray(seen), np.asarray(self.env.infos[agent]["action_mask"])
        return np.asarray(seen["observation"]), np.asarray(seen["action_mask"])

    def allowed(self) -> list[int]:
        """The moves that are allowed now."""
        moves = [int(move) + self._start for move in np.flatnonzero(self.look()[1])]
        if not (moves or self.over):
            raise self._unfit(f"its action mask allows no move, after move {len(self.moves)}")
        return moves

    def move(self, action: int) -> float:
        """Make a move for the player whose turn it is; returns that player's reward for it."""
        if self.over:
            raise ValueError("the game is over: reset it first")
        env, mover, mask = self.env, self._agents[self.turn], self.look()[1]
        index = action - self._start
        legal = 0 <= index < mask.size and bool(mask[index])
        self.moves.append(action)
        self._view = None
        if not legal:
            self.terminated = True
            return -1.0
        env.step(action)
        rewards = {agent: float(env.rewards.get(agent, 0.0)) for agent in self._agents}
        if abs(sum(rewards.values())) > 1e-6:
            raise self._unfit(
                "is not zero-sum: a move gave the players "
                f"{' and '.join(f'{reward:g}' for reward in rewards.values())}; one must lose what the other wins"
            )
        self.terminated = any(env.terminations.values())
        self.truncated = not self.terminated and (any(env.truncations.values()) or len(self.moves) == self._most_moves)
        if not self.over and env.agent_selection != self._agents[self.turn]:
            raise self._unfit(f"does not alternate: {mover} moves twice in a row, after move {len(self.moves)}")
        return rewards[mover]

    def rehearse(self, rng: np.random.Generator) -> None:
        """Play some random moves, so that a game that does not fit is found before anything is learned from it."""
        self.reset(0)
        for _ in range(_REHEARSED_MOVES):
            self.move(int(rng.choice(self.allowed())))
            if self.over:
                self.reset(0)

    def close(self) -> None:
        self.env.close()

    def _unfit(self, words: str) -> UserError:
        return UserError(f"env_id={self.env_id!r}: {words}")

    def _two_players(self) -> tuple[Any, Any]:
        agents = list(self.env.possible_agents)
        if len(agents) != 2:
            raise self._unfit(f"is a game for {len(agents)} players; only games for two are supported")
        return agents[0], agents[1]

    def _spaces(self) -> tuple[gym.Space[Any], gym.spaces.Discrete]:
        (seen, other), (action, others) = (
            [space(agent) for agent in self._agents] for space in (self.env.observation_space, self.env.action_space)
        )
        if seen != other or action != others:
            raise self._unfit("its two players have different spaces; a policy that plays both needs the same")
        if not isinstance(action, gym.spaces.Discrete):
            raise self._unfit(f"its moves are {type(action).__name__}; they must be Discrete")
        if isinstance(seen, gym.spaces.Dict) and {"observation", "action_mask"} <= seen.spaces.keys():
            return seen["observation"], action
        self.env.reset(seed=0)
        if "action_mask" not in self.env.infos[self.env.agent_selection]:
            raise self._unfit("has no action masks: neither its observations nor its infos have an 'action_mask'")
        self._mask_in_info = True
        return seen, action


def _without_checks(env: Any) -> Any:
    """The environment without PettingZoo's wrappers that only check the caller."""
    while type(env).__name__ in _CHECKING_WRAPPERS and type(env).__module__.startswith("pettingzoo."):
        env = env.env
    return env


class Player(Protocol):
    """Plays one side of a game."""

    def begin(self) -> None:
        """A new game begins."""

    def choose(self, game: Game, rng: np.random.Generator) -> int:
        """The move to make now."""


class RandomPlayer:
    """Any allowed move."""

    def begin(self) -> None:
        """It remembers nothing."""

    def choose(self, game: Game, rng: np.random.Generator) -> int:
        return int(rng.choice(game.allowed()))


class PerfectPlayer(RandomPlayer):
    """Any of the best moves of a solved game."""

    def choose(self, game: Game, rng: np.random.Generator) -> int:
        assert game.solution is not None
        return int(rng.choice(game.solution.best_moves(game.look()[0])))


class BoardEnv(gym.Env[Any, Any]):
    """An environment in which a game is played."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self.observation_space = game.observation_space
        self.action_space = game.action_space

    def close(self) -> None:
        self.game.close()

    def _seed(self, seed: int | None) -> int:
        return int(self.np_random.integers(2**31 - 1)) if seed is None else seed


class SelfPlay(BoardEnv):
    """Both sides of a game: a step is one move of the player whose turn it is.

    An observation is what the player to move sees, and `info["action_mask"]` what this player may do. The reward is
    that of the player who has just moved. So observations and rewards change sides with every step; after the last move
    the observation is that of the player who would have moved next.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.game.reset(self._seed(seed))
        return self._seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = self.game.move(int(action))
        obs, info = self._seen()
        return obs, reward, self.game.terminated, self.game.truncated, info

    def _seen(self) -> tuple[Array, dict[str, Any]]:
        obs, mask = self.game.look()
        return obs, {"action_mask": mask}


def side_of(seed: int) -> int:
    """The side of the policy in a game with this seed: first (0) if the seed is even, second (1) if it is odd."""
    return seed % 2


class Versus(BoardEnv):
    """One side of a game: a step is a move of the policy and the opponent's answer; rewards are the policy's.

    The seed of an episode decides the side (`side_of`) and the opponent's random numbers; without a seed the sides
    alternate. A game begins with `openings` random moves. If the game is solved, they are drawn again until the
    position is a draw under perfect play. At the end `info["moves"]` has the moves of both sides.
    """

    def __init__(self, game: Game, opponent: Player, openings: int = 0) -> None:
        super().__init__(game)
        self.opponent = opponent
        self.openings = openings
        self.side = 1
        self._owed = 0.0  # the policy's reward for the opponent's moves before its own first one

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.side = 1 - self.side if seed is None else side_of(seed)
        game_seed = self._seed(seed)
        for _ in range(_MOST_TRIES):
            if self._begin(game_seed):
                return self._seen()
        kind = "that is a draw" if self.game.solution is not None else "after which the game goes on"
        raise UserError(f"openings={self.openings}: found no opening of so many moves {kind} in {self.game.env_id}")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, self._owed = self._owed + self.game.move(int(action)), 0.0
        if not self.game.over:
            reward -= self._answer()
        obs, info = self._seen()
        if self.game.over:
            info["moves"] = " ".join(map(str, self.game.moves))
        return obs, reward, self.game.terminated, self.game.truncated, info

    def _begin(self, seed: int) -> bool:
        """Begin a game and play its opening; returns whether it is the policy's turn now, in a game that goes on."""
        game = self.game
        game.reset(seed)
        self.opponent.begin()
        for _ in range(self.openings):
            game.move(int(self.np_random.choice(game.allowed())))
            if game.over:
                return False
        if self.openings and game.solution is not None and game.solution.value(game.look()[0]) != 0:
            return False
        self._owed = -self._answer() if game.turn != self.side else 0.0
        return not game.over

    def _answer(self) -> float:
        """Make the opponent's move; returns the opponent's reward."""
        return self.game.move(self.opponent.choose(self.game, self.np_random))

    def _seen(self) -> tuple[Array, dict[str, Any]]:
        obs, mask = self.game.look(self.side)
        return obs, {"action_mask": mask}
