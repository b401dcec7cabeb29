"""Search of small worlds with exact models: a chain of three steps, and TicTacToe for the signs of two players."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from rl_training.ops.search import GumbelRule, Leaves, Puct, Roots, Searcher, SearchResult, gumbel_action
from rl_training.runtime.envs.perfect import tictactoe_best_moves, tictactoe_value
from rl_training.types import Array
from search_reference import World

RULES: list[Puct | GumbelRule] = [
    Puct(),
    Puct(unvisited="mean"),
    Puct(normalization="tree", unvisited="mean"),
    GumbelRule(),
    GumbelRule(considered=4, c_visit=20.0, rescale=False),
    GumbelRule(considered=3, c_scale=1.0),
]


def searched_chain(values: list[float], rule: Puct | GumbelRule, simulations: int) -> SearchResult:
    """Action 1 leads on; action 0 ends the episode, and earns more at first. State 3 is the end."""
    world = World(4, 2)
    world.logits[:], world.value[:] = 0.0, values
    world.after[:] = [[3, 1], [3, 2], [3, 3], [3, 3]]
    world.reward[:] = [[0.15, 0.1], [0.15, 0.2], [0.15, 1.0], [0.0, 0.0]]
    world.discount[:] = [[0.0, 0.9], [0.0, 0.9], [0.0, 0.0], [0.0, 0.0]]
    return Searcher(rule, simulations, 2)(world, world.roots(np.zeros(1, np.int64)))


BEST = 0.1 + 0.9 * (0.2 + 0.9 * 1.0)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("simulations", [16, 17, 32, 64, 128])
def test_a_chain_of_three_steps_with_an_exact_model(rule: Puct | GumbelRule, simulations: int) -> None:
    result = searched_chain([BEST, 0.2 + 0.9 * 1.0, 1.0, 0.0], rule, simulations)
    assert result.policy.argmax() == 1
    assert result.visits[0, 1] >= result.visits[0, 0]
    np.testing.assert_allclose(result.q[0, 0], 0.15, rtol=1e-6)
    assert BEST - 0.25 < result.q[0, 1] < BEST + 1e-6


@pytest.mark.parametrize("rule", [Puct(), Puct(normalization="tree"), GumbelRule(rescale=False)], ids=str)
def test_the_value_of_a_chain_is_found_without_knowing_any(rule: Puct | GumbelRule) -> None:
    errors = []
    for simulations in (32, 128, 512):
        result = searched_chain([0.0] * 4, rule, simulations)
        assert result.policy.argmax() == 1
        errors.append(BEST - float(result.q[0, 1]))
    assert errors == sorted(errors, reverse=True)
    assert 0.0 < errors[-1] < 0.06


class TicTacToe:
    """The rules of the game as a model: own marks and those of the other player; `solved` says what a board is worth.

    Without it, all boards look alike until the game is over.
    """

    lines = np.array([[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]])

    def __init__(self, solved: bool) -> None:
        self.solved = solved

    def step(self, embedding: Array, action: Array, simulation: int) -> Leaves:
        own, other = embedding[:, :9].copy(), embedding[:, 9:]
        own[np.arange(len(own)), action] = 1.0
        won = self.has_line(own)
        board = np.concatenate([other, own], axis=1)
        over = won | (board.sum(axis=1) == 9.0)
        logits = np.where(self.free(board), 0.0, -np.inf)
        return Leaves(np.where(won, 1.0, 0.0), np.where(over, 0.0, -1.0), board, logits, self.values(board))

    def has_line(self, marks: Array) -> Array:
        return marks[:, self.lines].all(axis=2).any(axis=1)

    def free(self, board: Array) -> Array:
        return (board[:, :9] + board[:, 9:]) == 0.0

    def values(self, board: Array) -> Array:
        return np.array([tictactoe_value(seen(row)) if self.solved else 0.0 for row in board])

    def roots(self, board: Array) -> Roots:
        return Roots(board, np.zeros((len(board), 9)), self.values(board), self.free(board))


def seen(board: Array) -> Array:
    """A board as the functions that solve the game see it."""
    return board.reshape(2, 3, 3).transpose(1, 2, 0)


def position(cells: str) -> Array:
    """A board: the mover has x."""
    return np.array([[c == "x" for c in cells] + [c == "o" for c in cells]], np.float32)


@cache
def late_positions(free: int) -> Array:
    """All boards of unfinished games with so many free cells."""
    boards = np.zeros((1, 18), np.float32)
    for _ in range(9 - free):
        after = [TicTacToe(False).step(boards, np.full(len(boards), cell), 0) for cell in range(9)]
        going = [(boards[:, cell] + boards[:, 9 + cell] == 0.0) & (after[cell].discount != 0.0) for cell in range(9)]
        boards = np.unique(np.concatenate([a.embedding[g] for a, g in zip(after, going, strict=True)]), axis=0)
    return boards


PLAYERS = [Puct(), Puct(normalization="tree", unvisited="mean"), GumbelRule(), GumbelRule(rescale=False, c_scale=1.0)]


@pytest.mark.parametrize("solved", [False, True])
@pytest.mark.parametrize("rule", PLAYERS, ids=str)
def test_the_sign_of_values_of_two_players(rule: Puct | GumbelRule, solved: bool) -> None:
    game, searcher = TicTacToe(solved), Searcher(rule, 200, 9)
    won = searcher(game, game.roots(position("xx.oo....")))
    assert won.visits.argmax() == won.policy.argmax() == 2
    assert won.q[0, 2] == 1.0
    # The opponent has two ways to win, and the mover none.
    lost = searcher(game, game.roots(position("oo.xo...x")))
    assert lost.value[0] < -0.8
    assert (lost.q <= 0.0).all()
    # Sequential halving spends visits on worse moves, too.
    assert won.value[0] > (0.85 if isinstance(rule, Puct) else 0.2)


@pytest.mark.parametrize("rule", PLAYERS, ids=str)
def test_late_positions_are_solved(rule: Puct | GumbelRule) -> None:
    boards, game = late_positions(4)[::2], TicTacToe(False)
    result = Searcher(rule, 200, 9)(game, game.roots(boards))
    moves = result.visits.argmax(axis=1)
    if isinstance(rule, GumbelRule):
        moves = gumbel_action(result, np.zeros((len(boards), 9)))
    wrong = [b for b in range(len(boards)) if moves[b] not in tictactoe_best_moves(seen(boards[b]))]
    # Where all values of a node are nearly equal, its own range stretches the differences: some wins take longer.
    assert len(wrong) <= (len(boards) // 100 if rule == Puct() else 0)


@pytest.mark.parametrize("rule", PLAYERS, ids=str)
def test_search_with_a_perfect_model_never_loses(rule: Puct | GumbelRule) -> None:
    games, game, rng = 32, TicTacToe(True), np.random.default_rng(0)
    searcher = Searcher(rule, 20, 9)
    first, perfect = np.arange(games) % 2 == 0, np.arange(games) % 4 < 2
    board, playing = np.zeros((games, 18), np.float32), np.ones(games, np.bool_)
    wins = 0
    for ply in range(9):
        ours = first == (ply % 2 == 0)
        moves = searcher(game, game.roots(board)).policy.argmax(axis=1)
        free = game.free(board)
        for b in np.flatnonzero(~ours & playing):
            moves[b] = rng.choice(tictactoe_best_moves(seen(board[b])) if perfect[b] else np.flatnonzero(free[b]))
        assert free[np.arange(games), moves][playing].all()
        leaves = game.step(board, moves, 0)
        ended = leaves.reward.astype(np.bool_) & playing
        assert not (ended & ~ours).any(), "the search has lost"
        wins += int((ended & ours).sum())
        playing &= leaves.discount != 0.0
        board = leaves.embedding
    assert not playing.any()
    assert wins >= 8, "random play loses"
