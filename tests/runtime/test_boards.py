"""Games for two players: whose turn, whose reward, which side; the opponents; what is refused; exact resume."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from board_games import (
    CONNECT_FOUR,
    TICTACTOE,
    TINY_GAME,
    Countdown,
    Counting,
    Master,
    Stubborn,
    Uniform,
    VariedMaster,
    described,
    game,
    maker,
)
from rl_training import Agent, UserError, evaluate_checkpoint, train
from rl_training.algorithms.base import LoopConfig
from rl_training.data.replay_files import read_info
from rl_training.experiment.config import load_config
from rl_training.experiment.registry import REGISTRY
from rl_training.experiment.settings import RunConfig
from rl_training.ops.exploration import uniform_actions
from rl_training.ops.observations import Unpacker
from rl_training.runtime.actors.collector import Collector
from rl_training.runtime.doctor.env_check import check_environment
from rl_training.runtime.envs.boards import Game, PerfectPlayer, RandomPlayer, SelfPlay, Versus, board_maker, side_of
from rl_training.runtime.envs.journal import Journal
from rl_training.runtime.envs.make import EnvMaker
from rl_training.runtime.envs.perfect import tictactoe_best_moves, tictactoe_value
from rl_training.runtime.evaluate import Evaluator, game_seeds, play_match
from rl_training.runtime.evaluations import Evaluation, Score
from rl_training.runtime.opponents import PolicyPlayer
from rl_training.runtime.train import build
from rl_training.types import SpaceInfo
from run_helpers import Command, cut_and_resume, run_differences, tiny


@pytest.fixture(scope="module")
def info() -> SpaceInfo:
    return described()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on TicTacToe; it is only read."""
    run_dir = tmp_path_factory.mktemp("boards") / "run"
    train(TINY_GAME | {"eval_interval": 120, "eval_episodes": 4}, run_dir=run_dir)
    return run_dir


def played(env: SelfPlay, moves: list[int]) -> list[tuple[Any, ...]]:
    env.reset(seed=0)
    return [env.step(move) for move in moves]


# Self-play


def test_an_observation_is_that_of_the_player_to_move() -> None:
    env = SelfPlay(game())
    obs, info = env.reset(seed=0)
    assert not obs.any()
    assert info["action_mask"].tolist() == [1] * 9
    steps = played(env, [4, 0, 8])
    planes = [np.stack([step[0][..., 0].ravel(), step[0][..., 1].ravel()]) for step in steps]
    assert [np.flatnonzero(own).tolist() for own, _ in planes] == [[], [4], [0]]
    assert [np.flatnonzero(other).tolist() for _, other in planes] == [[4], [0], [4, 8]]
    assert [np.flatnonzero(step[4]["action_mask"]).tolist() for step in steps][2] == [1, 2, 3, 5, 6, 7]


@pytest.mark.parametrize(
    ("moves", "reward"),
    [
        ([0, 3, 1, 4, 2], 1.0),  # the first player completes a line, with the fifth move
        ([0, 3, 1, 4, 8, 5], 1.0),  # the second player does, with the sixth
        ([0, 1, 2, 4, 3, 5, 7, 6, 8], 0.0),  # nobody does
    ],
)
def test_a_reward_is_that_of_the_player_who_moved(moves: list[int], reward: float) -> None:
    """Whoever wins does so with a move of one's own: the reward of the last step is never -1."""
    steps = played(SelfPlay(game()), moves)
    assert [step[1] for step in steps] == [0.0] * (len(moves) - 1) + [reward]
    assert [step[2] for step in steps] == [False] * (len(moves) - 1) + [True]
    assert not any(step[3] for step in steps)
    # After the last move the other player looks at the board: the winner's marks are in the second plane.
    other = (len(moves)) % 2
    assert np.flatnonzero(steps[-1][0][..., 0]).tolist() == sorted(moves[other::2])
    assert np.flatnonzero(steps[-1][0][..., 1]).tolist() == sorted(moves[1 - other :: 2])


def test_rewards_on_the_way_have_the_sign_of_the_mover() -> None:
    made = maker("board_games:SmallRewards")
    env: Any = made.single()
    assert [step[1] for step in played(env, [1, 0, 1])] == [2.0, 1.0, 2.0]
    # The same game from one side: the other one's coins count against it.
    for side, moves, total in ((0, [1, 1], 2.0 - 1.0 + 2.0), (1, [0], -2.0 + 1.0 - 2.0)):
        versus = Versus(made.game(), Scripted([0] if side == 0 else [1, 1]))
        versus.reset(seed=side)
        assert sum(versus.step(move)[1] for move in moves) == total


class Scripted(RandomPlayer):
    def __init__(self, moves: list[int]) -> None:
        self.moves = list(moves)

    def choose(self, game: Game, rng: np.random.Generator) -> int:
        return self.moves.pop(0)


def test_an_illegal_move_loses() -> None:
    env = SelfPlay(game())
    steps = played(env, [4, 4])
    assert [(step[1], step[2]) for step in steps] == [(0.0, False), (-1.0, True)]
    with pytest.raises(ValueError, match="over"):
        env.step(0)
    for move in (-1, 9):
        assert played(env, [move])[0][1:3] == (-1.0, True)


def test_a_time_limit_counts_the_moves_of_both() -> None:
    env: Any = maker(time_limit=3).single()
    assert [(step[2], step[3]) for step in played(env, [0, 1, 2])] == [(False, False), (False, False), (False, True)]
    versus = Versus(game(most_moves=3), Scripted([1]))
    versus.reset(seed=0)
    assert versus.step(0)[3] is False
    assert versus.step(2)[1:4] == (0.0, False, True)


def test_masks_and_spaces_are_those_of_the_package(info: SpaceInfo) -> None:
    assert info.two_player
    assert (info.mask_size, info.action_counts, info.input_shape) == (9, (9,), (3, 3, 2))
    assert info.obs_kind == "vector"
    assert read_info(info.to_dict()) == info
    old = {name: value for name, value in info.to_dict().items() if name != "two_player"}
    assert read_info(old) == replace(info, two_player=False), "a checkpoint of before"
    collector = Collector(maker_with_masks(), info, np.random.default_rng(0))
    collector.start()
    rng, unpack = np.random.default_rng(1), Unpacker(info)
    for _ in range(60):
        mask = unpack.mask(collector.obs)
        assert mask is not None
        board = unpack.inputs(collector.obs)
        assert (mask == (board.sum(-1).reshape(2, 9) == 0)).all()
        step = collector.step(uniform_actions(info, collector.obs, rng))
        assert (step.reward >= 0).all(), "no move was illegal"
    assert collector.metrics()["episodes"] > 10
    collector.close()


def maker_with_masks(num_envs: int = 2) -> Any:
    made = maker()
    return made.masking(made.vector(num_envs))


@pytest.mark.parametrize("name", ["CountedFromOne", "MaskInInfo"])
def test_other_forms_of_a_game(name: str) -> None:
    found = described(f"board_games:{name}")
    assert found.two_player
    assert found.action_starts == ((1,) if name == "CountedFromOne" else (0,))
    match = play_match(Uniform(found), f"board_games:{name}", games=20)
    assert sum(match.total) == 20
    assert match.total.draws == 0
    first = found.action_starts[0]
    env: Any = maker(f"board_games:{name}").single()
    assert [step[1] for step in played(env, [first + 1, first, first + 1])] == [0.0, 0.0, 1.0]


def test_a_game_whose_players_begin_in_turn() -> None:
    class EitherBegins(Countdown):
        def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
            super().reset(seed)
            self.agent_selection = self.agents[(seed or 0) % 2]

    made = Game(EitherBegins(), "either")
    for seed in (0, 1):
        made.reset(seed)
        assert [made.look(player)[0][1] for player in (0, 1)] == [seed, 1 - seed], "player 0 is whoever begins"
        assert [made.move(move) for move in (1, 0, 1)] == [0.0, 0.0, 1.0]


# The perfect player


def test_the_solution_knows_the_values_of_positions() -> None:
    made = game()
    for moves, value in (([], 0), ([4, 1], 1), ([0, 1], 1), ([0, 4], 0), ([0, 3, 1, 4], 1), ([0, 1, 4], -1)):
        made.reset(0)
        for move in moves:
            made.move(move)
        assert tictactoe_value(made.look()[0]) == value, moves
    made.reset(0)
    for move in (0, 3, 1, 4):
        made.move(move)
    assert tictactoe_best_moves(made.look()[0]) == [2], "the winning move"
    made.reset(0)
    for move in (0, 4, 1):
        made.move(move)
    assert tictactoe_best_moves(made.look()[0]) == [2], "the only move that does not lose"


def result(made: Game, players: tuple[Any, Any], rng: np.random.Generator) -> float:
    """The result of a game for the first player."""
    made.reset(0)
    total = 0.0
    while not made.over:
        player = made.turn
        total += made.move(players[player].choose(made, rng)) * (1 if player == 0 else -1)
    return total


def test_the_perfect_player_never_loses_and_always_draws_against_itself() -> None:
    made, rng, perfect, dice = game(), np.random.default_rng(0), PerfectPlayer(), RandomPlayer()
    first = [result(made, (perfect, dice), rng) for _ in range(250)]
    second = [result(made, (dice, perfect), rng) for _ in range(250)]
    assert min(first) == 0.0 or min(first) == 1.0
    assert max(second) <= 0.0
    assert np.mean(first) > 0.9
    assert np.mean(second) < -0.7
    games = set()
    for _ in range(60):
        assert result(made, (perfect, perfect), rng) == 0.0
        games.add(tuple(made.moves))
    assert len(games) > 40, "it does not repeat itself"


# Versus


def test_the_seed_decides_the_side() -> None:
    env = Versus(game(), RandomPlayer())
    for seed in (10, 11, 12, 13):
        obs, info = env.reset(seed=seed)
        assert env.side == side_of(seed) == seed % 2
        assert obs.sum() == seed % 2, "the opponent has moved, or has not"
        assert not obs[..., 0].any()
        assert info["action_mask"].sum() == 9 - seed % 2
    sides = []
    for _ in range(4):
        env.reset()
        sides.append(env.side)
    assert sides == [0, 1, 0, 1]


def test_an_episode_repeats_with_its_seed() -> None:
    def episode(env: Versus, seed: int) -> list[Any]:
        seen: list[Any] = [env.reset(seed=seed)[0].tolist()]
        while not env.game.over:
            seen.append(
                [part.tolist() if hasattr(part, "tolist") else part for part in env.step(env.game.allowed()[0])]
            )
        return [str(item) for item in seen]

    one, other = (Versus(game(), RandomPlayer(), openings=2) for _ in range(2))
    other.reset(seed=99)
    assert [episode(one, seed) for seed in range(8)] == [episode(other, seed) for seed in range(8)]
    assert len({str(episode(one, seed)) for seed in range(8)}) == 8


def test_a_reward_in_a_match_is_that_of_the_policy_whoever_moved_last() -> None:
    lost = Versus(game(), Scripted([3, 4, 5]))
    lost.reset(seed=0)
    steps = [lost.step(move) for move in (0, 1, 8)]
    assert [step[1] for step in steps] == [0.0, 0.0, -1.0]
    assert steps[-1][2]
    assert steps[-1][4]["moves"] == "0 3 1 4 8 5"
    assert np.flatnonzero(steps[-1][0][..., 0]).tolist() == [0, 1, 8], "the policy's own marks"
    won = Versus(game(), Scripted([0, 1, 8]))
    won.reset(seed=1)
    steps = [won.step(move) for move in (3, 4, 5)]
    assert [step[1] for step in steps] == [0.0, 0.0, 1.0]
    assert np.flatnonzero(steps[-1][0][..., 0]).tolist() == [3, 4, 5]
    assert won.game.moves == [0, 3, 1, 4, 8, 5]


def test_an_illegal_move_of_the_opponent_wins() -> None:
    env = Versus(game(), Scripted([0]))
    env.reset(seed=0)
    assert env.step(0)[1:3] == (1.0, True)


def test_openings_are_drawn_positions() -> None:
    env = Versus(game(), PerfectPlayer(), openings=2)
    openings = set()
    for seed in range(0, 600, 2):
        obs, _ = env.reset(seed=seed)
        assert len(env.game.moves) == 2
        assert tictactoe_value(obs) == 0
        openings.add(tuple(env.game.moves))
    # A corner must be answered in the middle, the middle in a corner, and an edge in the middle, in a corner beside it
    # or on the edge across.
    corners = (0, 2, 6, 8)
    edges = {1: (4, 0, 2, 7), 3: (4, 0, 6, 5), 5: (4, 2, 8, 3), 7: (4, 6, 8, 1)}
    assert openings == {
        *((corner, 4) for corner in corners),
        *((4, corner) for corner in corners),
        *((edge, answer) for edge, answers in edges.items() for answer in answers),
    }
    second = Versus(game(), PerfectPlayer(), openings=2)
    second.reset(seed=1)
    assert len(second.game.moves) == 3, "the opponent has answered"


def test_openings_that_do_not_exist_are_refused() -> None:
    env = Versus(game(), RandomPlayer(), openings=9)
    with pytest.raises(UserError, match=r"openings=9: found no opening of so many moves that is a draw in pettingzoo/"):
        env.reset(seed=0)
    other = Versus(Game(Countdown(), "countdown"), RandomPlayer(), openings=6)
    with pytest.raises(UserError, match=r"openings=6: .* after which the game goes on in countdown"):
        other.reset(seed=0)


# Evaluation


def test_both_sides_are_played_equally_often() -> None:
    assert [side_of(seed) for seed in game_seeds(20)] == [0, 1] * 10
    assert len(set(game_seeds(1000))) == 1000
    assert game_seeds(20)[:7] == game_seeds(7)


def test_the_policy_changes_sides_with_every_game(info: SpaceInfo) -> None:
    """It always takes the first cell: with the first move of a game, then with the second one, and so on."""
    made = maker()
    made.masking(made.vector(1)).close()
    evaluator = Evaluator(made, info, RunConfig(env_id=TICTACTOE))
    games = [played.split() for played in evaluator(Stubborn(info), 40).games]
    evaluator.close()
    assert len(games) == 40
    assert {moves[0] for moves in games[::2]} == {"0"}
    assert {moves[1] for moves in games[1::2]} == {"0"}
    assert {moves[0] for moves in games[1::2]} > {"1", "2"}


def test_a_match_counts_by_side(info: SpaceInfo) -> None:
    match = play_match(Master(info), TICTACTOE, games=60)
    assert (sum(match.first), sum(match.second)) == (30, 30)
    assert match.total.losses == 0
    assert match.first.wins > match.second.wins, "moving first is an advantage"
    assert play_match(Stubborn(info), TICTACTOE, games=10).total == Score(0, 0, 10)
    assert play_match(Uniform(info), TICTACTOE, "perfect", games=20).total.wins == 0


def test_a_perfect_policy_draws_against_the_perfect_player_in_many_different_games(info: SpaceInfo) -> None:
    fixed = play_match(Master(info), TICTACTOE, "perfect", games=60)
    opened = play_match(Master(info), TICTACTOE, "perfect", games=60, openings=2)
    varied = play_match(VariedMaster(info), TICTACTOE, "perfect", games=60)
    for match in (fixed, opened, varied):
        assert match.first == match.second == Score(0, 30, 0)
    assert fixed.different < opened.different
    assert varied.different > 40


def test_the_scores_and_metrics_of_an_evaluation() -> None:
    made = Evaluation((1.0, -1.0, 0.0, 1.0, 2.5), (1, 1, 1, 1, 1), ("0", "1", "2", "0", "4"))
    assert made.match is not None
    assert (made.match.first, made.match.second, made.match.different) == (Score(2, 1, 0), Score(1, 0, 1), 4)
    assert made.match.total == Score(3, 1, 1)
    metrics = made.metrics()
    assert (metrics["eval_win_rate"], metrics["eval_draw_rate"], metrics["eval_loss_rate"]) == (0.6, 0.2, 0.2)
    plain = Evaluation((1.0,), (1,))
    assert plain.match is None
    assert "eval_win_rate" not in plain.metrics()


def test_evaluations_repeat_and_leave_training_alone(finished: Path) -> None:
    agent = Agent.load(finished)
    once = agent.evaluate(20)
    assert once.games
    assert len(once.games) == 20
    agent.evaluate(7, opponent="perfect", openings=2)
    assert agent.evaluate(20) == once
    # Whatever the number of environments is that are stepped together.
    assert agent.evaluate(40).games[:4] == once.games[:4]
    assert evaluate_checkpoint(finished, num_episodes=20) == {"step": 240.0} | once.metrics()
    assert evaluate_checkpoint(finished, num_episodes=20, opponent="random") == {"step": 240.0} | once.metrics()
    perfect = agent.evaluate(20, opponent="perfect")
    assert perfect.metrics()["eval_win_rate"] == 0.0
    assert evaluate_checkpoint(finished, num_episodes=20, opponent="perfect") == {"step": 240.0} | perfect.metrics()
    agent.close()


def test_the_opponent_of_a_run_is_a_setting(finished: Path) -> None:
    one, other = (build(load_config(TINY_GAME | {"eval_opponent": name})) for name in ("random", "perfect"))
    results = [run.evaluate(30).metrics() for run in (one, other)]
    for run in (one, other):
        run.close()
    assert results[0]["eval_win_rate"] > 0.0 == results[1]["eval_win_rate"]
    assert evaluate_checkpoint(finished)["eval_episodes"] == 4.0


def test_the_policy_of_a_checkpoint_is_an_opponent(finished: Path) -> None:
    agent = Agent.load(finished)
    own = agent.evaluate(6, opponent=finished)
    assert own.match is not None
    assert own.match.different == 1, "both play greedily: the same policy plays the same game on both sides"
    assert own.returns[0] == -own.returns[1]
    for other in (str(finished), finished / "checkpoints" / "step_240"):
        assert agent.evaluate(6, opponent=other) == own
    # It plays as it would play itself.
    player, policy = PolicyPlayer(agent._run.algorithm.policy), agent._run.algorithm.policy
    made, rng = game(), np.random.default_rng(0)
    made.reset(0)
    player.begin()
    while not made.over:
        obs, mask = made.look()
        row, _ = agent.predict(obs, deterministic=True, action_masks=mask)
        assert player.choose(made, rng) == row
        made.move(int(row))
    assert policy.info.two_player
    assert " ".join(map(str, made.moves)) == own.games[0]
    agent.close()


def test_an_opponent_keeps_its_carry_within_a_game(info: SpaceInfo) -> None:
    player, made, rng = PolicyPlayer(Counting(info)), game(), np.random.default_rng(0)
    for _ in range(2):
        made.reset(0)
        player.begin()
        for move in range(3):
            assert player.choose(made, rng) == move
            made.move(move)


def test_a_match_in_a_run_against_another_run(finished: Path, tmp_path: Path) -> None:
    result = train(TINY_GAME | {"eval_opponent": str(finished), "seed": 5}, run_dir=tmp_path / "run")
    assert result["eval_episodes"] == 2.0
    assert evaluate_checkpoint(tmp_path / "run")["eval_return_mean"] == result["eval_return_mean"]


def test_early_stopping_may_watch_the_games(tmp_path: Path) -> None:
    rule = {"metric": "eval_loss_rate", "mode": "min", "target_value": 1.0}
    settings = {"eval_interval": 24, "early_stopping": rule}
    stopped = train(TINY_GAME | settings, run_dir=tmp_path / "run")
    assert stopped.stop_reason.startswith("early_stopping: eval_loss_rate reached")
    with pytest.raises(UserError, match=r"early_stopping.metric='eval_loss_rate': no such metric"):
        train(tiny(algo="dqn", **settings), run_dir=tmp_path / "other")


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env_id": "pettingzoo/tictacto_v3"}, "unknown game; did you mean 'pettingzoo/tictactoe_v3'?"),
        ({"env_id": "pettingzoo/connect_four_v2"}, "unknown game; did you mean 'pettingzoo/connect_four_v3'?"),
        ({"env_id": "tictactoe_v3"}, "unknown environment; did you mean 'pettingzoo/tictactoe_v3'?"),
        ({"env_id": "pettingzoo/TicTacToe"}, "unknown game; did you mean 'pettingzoo/tictactoe_v3'?"),
        ({"env_id": "pettingzoo/halma"}, "unknown game (known: pettingzoo/tictactoe_v3, pettingzoo/connect_four_v3, "),
        ({"env_id": "pettingzoo/rps_v2"}, "has no action masks: neither its observations nor its infos have an"),
        ({"env_id": "board_games:ThreePlayers"}, "is a game for 3 players; only games for two are supported"),
        ({"env_id": "board_games:NoMasks"}, "has no action masks"),
        ({"env_id": "board_games:BothWin"}, "is not zero-sum: a move gave the players 1 and 1; one must lose what the"),
        ({"env_id": "board_games:TwiceInARow"}, "does not alternate: ann moves twice in a row, after move 1"),
        ({"env_id": "board_games:TwoKinds"}, "its two players have different spaces"),
        ({"env_id": "board_games:Numbers"}, "its moves are Box; they must be Discrete"),
        ({"env_id": "board_games:always_the_same"}, "its function returned the same environment twice"),
        ({"env_kwargs": {"rows": 4}}, "env_kwargs={'rows': 4}: raw_env.__init__() got an unexpected keyword argument"),
        ({"frame_stack": 2}, "frame_stack=2: games for two players are not stacked"),
        ({"vectorization": "native"}, "has no native vector environment"),
        ({"eval_opponent": "perfekt"}, "a run or a checkpoint; did you mean 'perfect'?"),
        (
            {"eval_opponent": "runs/none"},
            "eval_opponent='runs/none': must be random, perfect, or the path of a run or a",
        ),
        (
            {"env_id": CONNECT_FOUR, "eval_opponent": "perfect"},
            "eval_opponent='perfect': no perfect player is known for pettingzoo/connect_four_v3, only for tictactoe_v3",
        ),
        (
            {"env_id": "CartPole-v1", "eval_opponent": "perfect"},
            "eval_opponent='perfect': CartPole-v1 is no game for two players",
        ),
    ],
)
def test_mistakes_are_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        build(load_config(TINY_GAME | changes))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    (key,) = set(changes) - {"env_id"} or {"env_id"}
    if key in ("env_id", "eval_opponent"):
        assert str(error.value).startswith(f"{key}={changes[key]!r}: ")


@pytest.mark.parametrize("name", list(REGISTRY))
def test_an_algorithm_plays_if_it_says_so(name: str) -> None:
    config = load_config(tiny(algo=name, env_id=TICTACTOE, time_limit=None))
    if REGISTRY[name].capabilities.two_player:
        run = build(config)
        assert run.algorithm.policy.info.two_player
        run.close()
        return
    able = "muzero, gumbel_muzero or efficientzero can$"
    with pytest.raises(UserError, match=f"a game for two players, by self-play; {able}"):
        build(config)


def test_a_game_that_breaks_its_word_later_is_found_when_it_does() -> None:
    class Late(Countdown):
        coins = 9
        games = 0

        def payoff(self, winner: str) -> dict[str, float]:
            type(self).games += 1
            return super().payoff(winner) if self.games < 100 else dict.fromkeys(self.agents, 1.0)

    made = EnvMaker(RunConfig(env_id="late"), LoopConfig(), Late)
    env: Any = made.single()
    with pytest.raises(UserError, match="env_id='late': is not zero-sum"):  # noqa: PT012
        while True:
            env.reset(seed=0)
            while not env.game.over:
                env.step(0)


def test_a_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pettingzoo", None)  # type: ignore[arg-type]
    with pytest.raises(UserError) as error:
        maker()
    assert str(error.value).startswith(
        "env_id='pettingzoo/tictactoe_v3': needs an extra that is not installed: pip install 'rl-training[boards]' ("
    )


@pytest.mark.parametrize(
    ("absent", "advice"),
    [("pygame", "pip install 'rl-training[boards]'"), ("chess", "pip install 'pettingzoo[classic]'")],
)
def test_a_missing_package_of_a_game_is_one_line(monkeypatch: pytest.MonkeyPatch, absent: str, advice: str) -> None:
    import pettingzoo

    def make(*arguments: Any) -> Any:
        raise RuntimeError("Failed to import entry point") from ModuleNotFoundError(f"No {absent!r}", name=absent)

    monkeypatch.setattr(pettingzoo, "make", make)
    with pytest.raises(UserError) as error:
        maker().single()
    assert advice in str(error.value)
    assert f"No {absent!r}" in str(error.value)
    assert "\n" not in str(error.value)


def test_other_mistakes_of_a_game_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    import pettingzoo

    def make(*arguments: Any) -> Any:
        raise RuntimeError("of its own")

    monkeypatch.setattr(pettingzoo, "make", make)
    with pytest.raises(RuntimeError, match="of its own"):
        maker().single()


def test_an_opponent_of_another_game_is_refused(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"its observations are float32 \(3, 3, 2\) .*; those of pettingzoo/connect_four"
    ):
        build(load_config(TINY_GAME | {"env_id": CONNECT_FOUR, "eval_opponent": str(finished)}))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no latest checkpoint"):
        build(load_config(TINY_GAME | {"eval_opponent": str(tmp_path / "empty")}))


def test_an_opponent_needs_a_game(tmp_path: Path) -> None:
    train(tiny(algo="dqn", total_timesteps=48), run_dir=tmp_path / "run")
    for arguments, words in (
        ({"opponent": "random"}, "opponent='random'"),
        ({"opponent": "perfect"}, "opponent='perfect'"),
        ({"openings": 2}, "openings=2"),
    ):
        agent = Agent.load(tmp_path / "run")
        with pytest.raises(UserError, match=f"^{words}: CartPole-v1 is no game for two players$"):
            agent.evaluate(1, **arguments)
        agent.close()
    with pytest.raises(UserError, match="is no game for two players"):
        evaluate_checkpoint(tmp_path / "run", opponent="random")


def test_a_game_that_is_an_object_is_refused() -> None:
    with pytest.raises(UserError, match="pass its id, such as 'pettingzoo/tictactoe_v3', or a function that makes it"):
        Agent(board_maker(TICTACTOE)())


def test_a_function_of_ones_own_makes_a_game() -> None:
    agent = Agent(Countdown, **{key: value for key, value in TINY_GAME.items() if key != "env_id"})
    match = agent.learn(48).evaluate(4, opponent="random").match
    assert match is not None
    assert sum(match.total) == 4
    agent.close()


# Exact resume


def test_a_run_by_self_play_resumes_exactly(tmp_path: Path) -> None:
    settings = TINY_GAME | {"eval_interval": 60, "eval_opponent": "perfect"}
    train(settings, run_dir=tmp_path / "straight")
    cut_and_resume(settings, tmp_path / "cut", after=120)
    assert run_differences(tmp_path / "straight", tmp_path / "cut") == []


def test_the_journal_restores_games_that_began_at_different_times(info: SpaceInfo) -> None:
    """Its replay sends moves of former games to environments whose game began later; they may be illegal there."""
    straight = Collector(maker_with_masks(5), info, np.random.default_rng(0))
    assert isinstance(straight._keeper, Journal)
    straight.start()
    rng = np.random.default_rng(1)
    for _ in range(43):
        straight.step(uniform_actions(info, straight.obs, rng))
    assert len(set(straight._keeper._starts[-1].tolist())) > 2
    saved = straight.state_dict()
    resumed = Collector(maker_with_masks(5), info, np.random.default_rng(0))
    resumed.load_state_dict(saved)
    assert (resumed.restarts, resumed.lost) == (0, None)
    resumed.rng.bit_generator.state = straight.rng.bit_generator.state
    for _ in range(30):
        action = uniform_actions(info, straight.obs, rng)
        one, other = straight.step(action), resumed.step(action)
        for name in ("obs", "reward", "next_obs", "terminated", "truncated"):
            assert (getattr(one, name) == getattr(other, name)).all()
    straight.close()
    resumed.close()


def test_games_in_processes_of_their_own_are_the_same(info: SpaceInfo) -> None:
    made = EnvMaker(RunConfig(env_id=TICTACTOE, vectorization="async"), LoopConfig())
    there = Collector(made.masking(made.vector(2)), info, np.random.default_rng(0))
    here = Collector(maker_with_masks(2), info, np.random.default_rng(0))
    try:
        assert made.describe(there.envs) == info
        rng = np.random.default_rng(1)
        here.start()
        there.start()
        for _ in range(25):
            action = uniform_actions(info, here.obs, rng)
            assert (here.step(action).next_obs == there.step(action).next_obs).all()
    finally:
        here.close()
        there.close()


# The commands


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(monkeypatch, capsys)


def test_eval_prints_the_scores_by_side(command: Command, finished: Path) -> None:
    said = command("eval", finished, "--opponent", "perfect", "--openings", 2, "--episodes", 10)
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].startswith("against       perfect: ")
    assert lines[0].endswith(" different games of 10")
    for line, words in zip(lines[1:3], ("moved first   0 won, ", "moved second  0 won, "), strict=True):
        assert line.startswith(words)
        assert line.endswith(" lost")
    assert lines[3].startswith("return -")
    own = command("eval", finished, "--episodes", 2)
    assert own.out.startswith("against       random: 2 different games of 2\n")
    wrong = command("eval", finished, "--opponent", "nobody")
    assert (wrong.code, wrong.out) == (2, "")
    assert wrong.err.startswith("error: opponent='nobody': must be random, perfect, or the path of a run")


def test_train_prints_the_games(command: Command) -> None:
    said = command(
        "train", "gumbel_muzero", f"env_id={TICTACTOE}", "total_timesteps=20", "num_simulations=2", "--quiet"
    )
    assert said.code == 0
    (line,) = [line for line in said.out.splitlines() if line.startswith("games ")]
    assert line.endswith("% lost")


def test_datasets_of_games_are_refused(command: Command, finished: Path) -> None:
    for source in (["--env", TICTACTOE, "--random"], ["--from", finished]):
        said = command("dataset", "collect", "x.npz", *source, "--steps", 5)
        assert (said.code, said.err.count("\n")) == (2, 1)
        assert "masks are not supported" in said.err


def test_the_doctor_examines_games() -> None:
    for env_id in (TICTACTOE, "board_games:Countdown"):
        findings = list(check_environment(env_id, {}, steps=600))
        assert [str(found) for found in findings if found.level == "PROBLEM"] == []
        assert {"determinism", "autoreset", "resume"} <= {found.subject for found in findings if found.level == "ok"}
