"""A game against a policy in the terminal: the board as text, and the moves of a person."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.algorithms.base import Policy
from rl_training.experiment.config import Config
from rl_training.experiment.registry import REGISTRY
from rl_training.experiment.settings import RunConfig
from rl_training.runtime.envs.boards import Game
from rl_training.runtime.envs.make import EnvMaker
from rl_training.runtime.evaluations import Score
from rl_training.runtime.libraries import Threads
from rl_training.runtime.opponents import PolicyPlayer
from rl_training.runtime.rng import seeded
from rl_training.runtime.saved_policy import load_policy, tasks_of
from rl_training.types import Array, UserError

MARKS = "XO"
_WIDTH = 100


def open_game(
    path: str | Path, *, which: str = "latest", device: str = "auto", trust: bool = False
) -> tuple[Game, Policy]:
    """The game that a run was trained on, and its policy; `trust` lets in the code that it names."""
    if tasks := tasks_of(path, which):
        able = ", ".join(name for name, entry in REGISTRY.items() if entry.capabilities.two_player)
        raise UserError(
            f"{str(path)!r}: learned the tasks {', '.join(tasks)}, which nobody can play; what can be played is a game "
            f"for two players, against a run of one of {able}"
        )
    saved = load_policy(path, which=which, trust=trust, device=device)
    if not saved.info.two_player:
        raise UserError(f"{str(path)!r}: was trained on {saved.config.run.env_id}, which is no game for two players")
    return EnvMaker(drawable(saved.config), saved.config.loop).game(), saved.policy


def drawable(config: Config) -> RunConfig:
    """The settings of a run with which its game can be drawn as text, if it can."""
    with closing(EnvMaker(config.run, config.loop).game()) as game:
        modes = getattr(game.env, "metadata", {}).get("render_modes", ())
        if game.name in _DRAWINGS or "ansi" not in modes:
            return config.run
    return config.run.model_copy(update={"env_kwargs": config.run.env_kwargs | {"render_mode": "ansi"}})


def numbers_from(game: Game) -> int:
    """What is added to the number of a move to show it: boards count from 1, PettingZoo from 0."""
    return 1 if game.name in _DRAWINGS else 0


class Table:
    """Games between a person and a policy.

    `ask` shows a question and returns the line that was typed, or None at the end of the input; `say` shows a text.
    """

    def __init__(
        self, game: Game, policy: Policy, *, ask: Callable[[str], str | None], say: Callable[[str], Any], seed: int = 0
    ) -> None:
        self.game = game
        self.player = PolicyPlayer(policy)
        self.results: list[float] = []
        self._ask, self._say = ask, say
        self._rng = np.random.Generator(np.random.PCG64(seeded(seed, "play")))
        self._offset = numbers_from(game)

    def play(self, side: str) -> None:
        """Play until the person leaves; `side` is the person's: first, second or alternate."""
        try:
            while True:
                person = len(self.results) % 2 if side == "alternate" else ("first", "second").index(side)
                if not self._play_one(person):
                    break
                again = self._ask("another game? (y/n) ")
                if again is None or again.lower() not in ("y", "yes"):
                    break
            self._say(f"you: {Score.of(self.results)}")
        finally:
            self.game.close()

    def _play_one(self, person: int) -> bool:
        """Play a game; returns whether it was played to its end."""
        game, total = self.game, 0.0
        game.reset(int(self._rng.integers(2**31 - 1)))
        self.player.begin()
        self._say(f"You are {MARKS[person]} and move {('first', 'second')[person]}. Type the number of a move, or q.")
        while not game.over:
            if game.turn == person:
                self._say(draw(game))
                move = self._read_move()
                if move is None:
                    self._say("The game is not finished.")
                    return False
                total += game.move(move)
            else:
                with Threads(1):
                    move = self.player.choose(game, self._rng)
                self._say(f"{MARKS[1 - person]} plays {move + self._offset}")
                total -= game.move(move)
        self._say(draw(game))
        self.results.append(total)
        self._say("You won." if total > 0 else "You lost." if total < 0 else "A draw.")
        return True

    def _read_move(self) -> int | None:
        """The move that the person types, or None if the person leaves."""
        allowed = {str(move + self._offset): move for move in self.game.allowed()}
        listed = ", ".join(allowed)
        while True:
            typed = self._ask(textwrap.fill(f"your move ({listed}): ", _WIDTH, drop_whitespace=False))
            if typed is None:
                self._say("")  # the question had no line end
                return None
            if typed.lower() in ("q", "quit"):
                return None
            if typed in allowed:
                return allowed[typed]
            self._say(f"{typed!r} is not an allowed move: type one of the numbers, or q to leave")


def draw(game: Game) -> str:
    """The position as text."""
    drawing = _DRAWINGS.get(game.name)
    if drawing is not None:
        return drawing(_cells(game))
    if getattr(game.env, "render_mode", None) == "ansi":
        return str(game.env.render())
    return _planes(game.look()[0])


def _cells(game: Game) -> Array:
    """The marks of both players, X moving first, and spaces."""
    obs = game.look(0)[0]
    return np.where(obs[..., 0] == 1, MARKS[0], np.where(obs[..., 1] == 1, MARKS[1], " "))


def _draw_tictactoe(cells: Array) -> str:
    """A free cell shows the number of the move that takes it."""
    shown = [mark if mark != " " else str(number) for number, mark in enumerate(cells.ravel(), start=1)]
    rows = [f" {' | '.join(shown[start : start + 3])}" for start in (0, 3, 6)]
    return "\n---+---+---\n".join(rows)


def _draw_connect_four(cells: Array) -> str:
    rows = [" ".join("." if mark == " " else mark for mark in row) for row in cells]
    return "\n".join([*rows, " ".join(str(column + 1) for column in range(cells.shape[1]))])


def _planes(obs: Array) -> str:
    """An observation of any game: its planes one below the other, the last axis counting them."""
    if obs.ndim < 3:
        return str(obs)
    planes = [obs[..., plane].astype(np.int64) for plane in range(obs.shape[-1])]
    shown = [f"plane {number}\n{plane}" for number, plane in enumerate(planes) if plane.any()]
    return "\n".join(shown) or "all planes are empty"


_DRAWINGS: dict[str, Callable[[Array], str]] = {
    "tictactoe_v3": _draw_tictactoe,
    "connect_four_v3": _draw_connect_four,
}
