"""`rl-training play`: a person plays in the terminal, here through a pipe."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from board_games import CONNECT_FOUR, TICTACTOE, TINY_GAME, Countdown, Master, Stubborn, described, game
from rl_training import train
from rl_training.runtime.envs.boards import Game, board_maker
from rl_training.runtime.envs.perfect import tictactoe_best_moves
from rl_training.runtime.play import Table, draw
from run_helpers import Command, Said, tiny


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on TicTacToe; it is only read."""
    run_dir = tmp_path_factory.mktemp("play") / "run"
    train(TINY_GAME | {"total_timesteps": 48}, run_dir=run_dir)
    return run_dir


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """The command with lines at its standard input."""
    monkeypatch.chdir(tmp_path)
    run = Command(monkeypatch, capsys)

    def typed(*arguments: Any, lines: str) -> Said:
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        return run("play", *arguments)

    return typed


def seated(env_id: str, policy: type[Any], lines: list[str]) -> tuple[Table, list[str]]:
    """A table at which these lines are typed, and what is said there."""
    said: list[str] = []
    typed = iter(lines)
    return Table(game(env_id), policy(described(env_id)), ask=lambda _: next(typed, None), say=said.append), said


def test_a_whole_game_through_a_pipe(finished: Path) -> None:
    """In a process of its own: any cell is tried until the game is over; wrong moves are refused in one line each."""
    done = subprocess.run(
        [sys.executable, "-c", "from rl_training.cli import main; main()", "play", str(finished), "--side", "first"],
        input="\n".join("x123456789") + "\n" + "\n".join("123456789") + "\nn\n",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        "You are X and move first. Type the number of a move, or q.\n 1 | 2 | 3\n---+---+---\n"
    )
    assert "'x' is not an allowed move: type one of the numbers, or q to leave\n" in done.stdout
    assert any(f"\n{words}\n" in done.stdout for words in ("You won.", "You lost.", "A draw."))
    assert done.stdout.endswith("lost\n")


def test_the_end_of_the_input_leaves(command: Any, finished: Path) -> None:
    said = command(finished, lines="")
    assert (said.code, said.err) == (0, "")
    assert said.out.endswith(": \nThe game is not finished.\nyou: 0 won, 0 drawn, 0 lost\n")
    assert command(finished, "--side", "second", lines="q\n").out.startswith("You are O and move second.")


def test_an_interruption_leaves(command: Any, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(io.StringIO):
        def readline(self, *arguments: Any) -> str:
            raise KeyboardInterrupt

    monkeypatch.setattr(io, "StringIO", Interrupted)
    said = command(finished, lines="")
    assert said.code == 130
    assert said.err.strip() == "interrupted"


def test_a_run_that_cannot_be_played_is_one_line(command: Any, tmp_path: Path) -> None:
    train(tiny(algo="dqn", total_timesteps=48), run_dir=tmp_path / "run")
    said = command(tmp_path / "run", lines="")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert said.err.endswith("/run': was trained on CartPole-v1, which is no game for two players\n")
    assert command(tmp_path / "nothing", lines="").err.endswith("there is no such run or checkpoint\n")


def test_the_same_seed_is_the_same_game(command: Any, finished: Path) -> None:
    lines = "5\n1\n9\n2\n3\n4\n6\n7\n8\n"
    assert command(finished, "--seed", 3, lines=lines) == command(finished, "--seed", 3, lines=lines)


def test_results_and_sides_of_several_games() -> None:
    """Against the perfect player the best moves are a draw; against a player of illegal moves every game is won."""
    table, said = seated(TICTACTOE, Master, ["5", "1"])
    answers = iter(("y", "no"))

    def ask(question: str) -> str:
        if question.startswith("another game?"):
            return next(answers)
        return str(tictactoe_best_moves(table.game.look()[0])[-1] + 1)

    table._ask = ask
    table.play("alternate")
    assert [line.split(".")[0] for line in said if line.startswith("You are")] == [
        "You are X and move first",
        "You are O and move second",
    ]
    assert said.count("A draw.") == 2
    assert said[-1] == "you: 0 won, 2 drawn, 0 lost"
    stubborn, told = seated(TICTACTOE, Stubborn, ["1", "n"])
    stubborn.play("first")
    assert told[-2:] == ["You won.", "you: 1 won, 0 drawn, 0 lost"]


def test_losing_to_the_policy() -> None:
    table, said = seated(TICTACTOE, Master, ["2", "4", "6", "8", "9", "7", "5", "3", "1"])
    while not table.results:
        table.play("second")
    assert said[-2:] == ["You lost.", "you: 0 won, 0 drawn, 1 lost"]
    assert table.results == [-1.0]


# Drawing


def test_tictactoe_is_drawn_with_the_numbers_of_its_moves() -> None:
    made = game()
    made.reset(0)
    for move in (0, 5):
        made.move(move)
    assert draw(made) == " X | 2 | 3\n---+---+---\n 4 | 5 | O\n---+---+---\n 7 | 8 | 9"
    made.move(8)
    assert draw(made) == " X | 2 | 3\n---+---+---\n 4 | 5 | O\n---+---+---\n 7 | 8 | X", "X moved first, whoever looks"


def test_connect_four_is_drawn_with_its_columns() -> None:
    made = game(CONNECT_FOUR)
    made.reset(0)
    for move in (3, 3, 6):
        made.move(move)
    empty = ". . . . . . .\n" * 4
    assert draw(made) == f"{empty}. . . O . . .\n. . . X . . X\n1 2 3 4 5 6 7"


def test_any_other_game_is_shown_by_its_own_text_or_its_planes() -> None:
    made = Game(Countdown(render_mode="ansi"), "countdown")
    made.reset(0)
    assert draw(made) == "5 coins are left"
    plain = Game(Countdown(), "countdown")
    plain.reset(0)
    assert draw(plain) == str(np.array([5.0, 0.0], np.float32))
    go = Game(board_maker("pettingzoo/go_v5")(board_size=3), "go")
    go.reset(0)
    assert draw(go) == "all planes are empty"
    go.move(4)
    assert draw(go).startswith("plane 0\n[[0 0 0]\n [0 1 0]\n [0 0 0]]")


def test_a_game_with_a_text_of_its_own_is_played_by_the_numbers_of_its_moves(command: Any, tmp_path: Path) -> None:
    train(TINY_GAME | {"env_id": "board_games:CountedFromOne", "total_timesteps": 48}, run_dir=tmp_path / "run")
    said = command(tmp_path / "run", "--side", "first", lines="0\n2\n")
    assert "\n5 coins are left\nyour move (1, 2): '0' is not an allowed move" in said.out
    assert "coins are left\nyour move (1" in said.out.partition("O plays ")[2]
