"""Games for two players, good and bad ones, and policies that play them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from pettingzoo import AECEnv
from torch import Tensor

from rl_training.algorithms.base import AlgorithmConfig, LoopConfig, ModelConfig, Policy, PolicyContext
from rl_training.experiment.settings import RunConfig
from rl_training.ops.exploration import uniform_actions
from rl_training.ops.observations import Unpacker
from rl_training.runtime.envs.boards import Game, board_maker
from rl_training.runtime.envs.make import EnvMaker
from rl_training.runtime.envs.perfect import tictactoe_best_moves
from rl_training.types import Act, Array, Carry, SpaceInfo
from run_helpers import tiny

TICTACTOE, CONNECT_FOUR = "pettingzoo/tictactoe_v3", "pettingzoo/connect_four_v3"
# A run that takes a fraction of a second.
TINY_GAME = tiny(algo="gumbel_muzero", env_id=TICTACTOE)


def game(env_id: str = TICTACTOE, **options: Any) -> Game:
    return Game(board_maker(env_id)(), env_id, **options)


def maker(env_id: str = TICTACTOE, **loop: Any) -> EnvMaker:
    return EnvMaker(RunConfig(env_id=env_id, vectorization="sync"), LoopConfig(**loop))


def described(env_id: str = TICTACTOE) -> SpaceInfo:
    made = maker(env_id)
    envs = made.masking(made.vector(1))
    envs.close()
    return made.describe(envs)


class Countdown(AECEnv):  # type: ignore[misc]
    """Players take one or two of the coins that are left; who takes the last one wins.

    An observation is the number of coins. With 5 coins the first player wins by taking two.
    """

    metadata = {"name": "countdown_v0", "render_modes": ["ansi"]}
    players = ("ann", "bob")
    coins = 5
    start = 0

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.possible_agents = list(self.players)
        self.render_mode = render_mode

    def observation_space(self, agent: str) -> Any:
        seen = spaces.Box(0, 9, (2,), np.float32)
        return spaces.Dict({"observation": seen, "action_mask": spaces.Box(0, 1, (2,), np.int8)})

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2, start=self.start)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.agents = list(self.possible_agents)
        self.left = self.coins
        self.agent_selection = self.agents[0]
        self.rewards = dict.fromkeys(self.agents, 0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}

    def mask(self) -> Any:
        return np.array([self.left >= 1, self.left >= 2], np.int8)

    def observe(self, agent: str) -> Any:
        seen = np.array([self.left, self.possible_agents.index(agent)], np.float32)
        return {"observation": seen, "action_mask": self.mask()}

    def next_player(self) -> str:
        return self.agents[(self.agents.index(self.agent_selection) + 1) % len(self.agents)]

    def payoff(self, winner: str) -> dict[str, float]:
        return {agent: 1.0 if agent == winner else -1.0 for agent in self.agents}

    def step(self, action: int) -> None:
        self.left -= action - self.start + 1
        if self.left <= 0:
            self.rewards = self.payoff(self.agent_selection)
            self.terminations = dict.fromkeys(self.agents, True)
        self.agent_selection = self.next_player()

    def render(self) -> str:
        return f"{self.left} coins are left"

    def close(self) -> None:
        pass


class CountedFromOne(Countdown):
    """Its moves are 1 and 2."""

    start = 1


class MaskInInfo(Countdown):
    """The other place where PettingZoo's games put a mask."""

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 9, (2,), np.float32)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        super().reset(seed)
        self.infos = {agent: {"action_mask": self.mask()} for agent in self.agents}

    def observe(self, agent: str) -> Any:
        return super().observe(agent)["observation"]

    def step(self, action: int) -> None:
        super().step(action)
        self.infos = {agent: {"action_mask": self.mask()} for agent in self.agents}


class SmallRewards(Countdown):
    """Every coin is worth something at once, and the last one nothing more."""

    def step(self, action: int) -> None:
        mover = self.agent_selection
        super().step(action)
        self.rewards = {agent: (action + 1.0) * (1 if agent == mover else -1) for agent in self.agents}


class ThreePlayers(Countdown):
    players = ("ann", "bob", "eve")


class NoMasks(Countdown):
    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 9, (2,), np.float32)

    def observe(self, agent: str) -> Any:
        return super().observe(agent)["observation"]


class BothWin(Countdown):
    def payoff(self, winner: str) -> dict[str, float]:
        return dict.fromkeys(self.agents, 1.0)


class TwiceInARow(Countdown):
    def next_player(self) -> str:
        return self.agent_selection if self.left == 3 else super().next_player()


class TwoKinds(Countdown):
    """The second player has more moves."""

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2 if agent == self.players[0] else 3)


class Numbers(Countdown):
    """Moves that are no choices."""

    def action_space(self, agent: str) -> Any:
        return spaces.Box(-1.0, 1.0, (1,), np.float32)


_ONE = Countdown()


def always_the_same() -> Any:
    return _ONE


class Uniform(Policy):
    """Any allowed move."""

    def __init__(self, info: SpaceInfo) -> None:
        context = PolicyContext(info=info, config=AlgorithmConfig(), model=ModelConfig(), device=torch.device("cpu"))
        super().__init__(context)

    def act(self, obs: Array, carry: Carry, *, explore: bool, rng: np.random.Generator) -> Act:
        return Act(uniform_actions(self.info, obs, rng), carry)

    def policy_state(self) -> dict[str, Tensor]:
        return {}

    def load_policy_state(self, state: Mapping[str, Tensor]) -> None:
        """It has no tensors."""


class Master(Uniform):
    """The first of the best moves of TicTacToe."""

    def act(self, obs: Array, carry: Carry, *, explore: bool, rng: np.random.Generator) -> Act:
        boards = Unpacker(self.info).inputs(obs)
        return Act(np.array([self.pick(tictactoe_best_moves(board), rng) for board in boards]), carry)

    def pick(self, moves: list[int], rng: np.random.Generator) -> int:
        return moves[0]


class VariedMaster(Master):
    """Any of the best moves of TicTacToe."""

    def pick(self, moves: list[int], rng: np.random.Generator) -> int:
        return int(rng.choice(moves))


class Stubborn(Uniform):
    """Always the first cell, allowed or not."""

    def act(self, obs: Array, carry: Carry, *, explore: bool, rng: np.random.Generator) -> Act:
        return Act(np.zeros(len(obs), np.int64), carry)


class Counting(Uniform):
    """Takes the cells in order: its carry is how many moves it has made in the game."""

    def initial_carry(self, count: int) -> Carry:
        return np.zeros(count, np.int64)

    def act(self, obs: Array, carry: Carry, *, explore: bool, rng: np.random.Generator) -> Act:
        return Act(carry.copy(), carry + 1)
