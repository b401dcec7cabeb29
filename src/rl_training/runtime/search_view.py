"""One search of a trained policy at a chosen state, with everything that a picture of it shows."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.parts.searching import Searching
from rl_training.algorithms.planning import PlanningConfig
from rl_training.experiment.config import saved_config
from rl_training.experiment.registry import REGISTRY, load_spec
from rl_training.experiment.trust import EPISODES
from rl_training.ops.images import ImageLayout
from rl_training.ops.kernels.tree import LOWEST
from rl_training.ops.observations import Unpacker
from rl_training.ops.search_tree import SearchTree
from rl_training.runtime.checkpoints.catalogue import find_checkpoint
from rl_training.runtime.checkpoints.checkpoint import read_meta
from rl_training.runtime.envs.boards import Game
from rl_training.runtime.envs.spaces import ActionScaler
from rl_training.runtime.evaluate import Moment, in_its_own
from rl_training.runtime.libraries import Threads
from rl_training.runtime.play import MARKS, draw, drawable, numbers_from
from rl_training.runtime.saved_policy import SavedPolicy, load_policy
from rl_training.types import Array, SpaceInfo, UserError

_NUMBERS_IN_A_LINE = 4
_MOST_NUMBERS = 24


@dataclass(frozen=True)
class RootAction:
    """An action of the root: its prior, what the search found of it, and its share in the policy that is learned."""

    index: int
    label: str
    prior: float
    visits: int
    value: float
    target: float
    chosen: bool


@dataclass(frozen=True)
class SearchView:
    """A search: where it was made, its tree, the action that leads to every node, and the allowed root actions.

    `values` are those of the nodes, in a game for two from the side of the player who moves at the root. `state` is
    the state as a text, or as an image.
    """

    checkpoint: Path
    algo: str
    env_id: str
    place: str
    two_player: bool
    tree: SearchTree
    values: Array  # [N]
    labels: tuple[str, ...]  # [N]
    actions: tuple[RootAction, ...]
    state: str | Array

    @property
    def chosen(self) -> RootAction:
        return next(action for action in self.actions if action.chosen)


def view_search(
    path: str | Path,
    *,
    which: str = "latest",
    seed: int = 0,
    step: int = 0,
    task: str | None = None,
    simulations: int | None = None,
    device: str = "auto",
    trust: bool = False,
) -> SearchView:
    """Search as an evaluation does, after `step` greedy steps of the episode with this seed.

    Of a run with several tasks, `task` says in which.
    """
    found = find_checkpoint(path, which)
    config = saved_config(found, read_meta(found), trust=trust, uses=EPISODES, options={})
    if not isinstance(config.algorithm, PlanningConfig):
        planning = ", ".join(name for name in REGISTRY if issubclass(load_spec(name).config, PlanningConfig))
        raise UserError(f"{str(path)!r}: {config.run.algo} does not search; runs of {planning} do")
    changes: dict[str, Any] = {} if simulations is None else {"num_simulations": simulations}
    saved = load_policy(found, trust=trust, task=task, device=device, **changes)
    policy = saved.policy
    if not isinstance(policy, Searching):
        raise UserError(
            f"{str(path)!r}: the policy of {config.run.algo} shows no search; it needs a method search_from"
        )
    settings = drawable(saved.config) if saved.info.two_player else saved.config.run
    made = in_its_own(settings, saved.config.loop, saved.info, trust=trust)
    with Threads(settings.threads), closing(made) as evaluator:
        moment = evaluator.moment(policy, seed, step)
        where = f" in {policy.task}" if policy.task else ""
        mover = "" if moment.game is None else f", {MARKS[moment.game.turn]} to move"
        return _view(saved, policy, moment, f"step {step} of the episode with seed {seed}{where}{mover}")


def _view(saved: SavedPolicy, policy: Searching, moment: Moment, place: str) -> SearchView:
    run = saved.config.run
    result, tree, chosen = policy.search_from(moment.obs, moment.carry)
    allowed = np.flatnonzero(result.logits[0] > LOWEST)
    names = _labels(allowed if result.actions is None else result.actions[0, allowed], saved.info, moment.game)
    edges = tree.actions if result.actions is None else tree.vectors
    return SearchView(
        checkpoint=saved.path,
        algo=run.algo,
        env_id=run.env_id,
        place=place,
        two_player=saved.info.two_player,
        tree=tree,
        values=tree.values * _sides(tree),
        labels=("", *_labels(edges[1:], saved.info, moment.game)),
        actions=tuple(
            RootAction(
                int(a),
                name,
                float(tree.child_priors[0, a]),
                int(result.visits[0, a]),
                float(result.q[0, a]),
                float(result.policy[0, a]),
                bool(a == chosen),
            )
            for a, name in zip(allowed, names, strict=True)
        ),
        state=_state(saved.info, moment),
    )


def _labels(choices: Array, info: SpaceInfo, game: Game | None) -> tuple[str, ...]:
    """Actions as the environment numbers them, or in its units; moves as the board shows them."""
    if not len(choices):
        return ()
    actions = ActionScaler(info, np.float32 if info.continuous else np.int64)(choices)
    if info.continuous:
        rows = [[f"{number:.2g}" for number in row.ravel()] for row in actions]
        return tuple(row[0] if len(row) == 1 else f"({', '.join(row)})" for row in rows)
    offset = 0 if game is None else numbers_from(game)
    return tuple(str(int(action) + offset) for action in actions)


def _sides(tree: SearchTree) -> Array:
    """1 where the player of the root moves, -1 where the opponent does."""
    sides = np.ones(len(tree.parents))
    for node in range(1, len(sides)):
        sides[node] = sides[tree.parents[node]] * (-1.0 if tree.discounts[node] < 0.0 else 1.0)
    return sides


def _state(info: SpaceInfo, moment: Moment) -> str | Array:
    """The board, the image (the last of stacked ones) or the numbers that the policy sees."""
    if moment.game is not None:
        return draw(moment.game)
    inputs = Unpacker(info).inputs(moment.obs)
    parts = inputs if isinstance(inputs, dict) else {"": inputs}
    for part in info.arrays:
        if part.kind == "image":
            return picture_of(parts[part.name].astype(np.uint8))
    return "\n".join(
        line for name, array in parts.items() for line in ([f"{name}:"] if name else []) + _lines(array.ravel())
    )


def picture_of(images: Array) -> Array:
    """An image `[1, ...]` as it is drawn: three channels are colours, of others the last one is shown in grey."""
    planes: Array = ImageLayout(images.shape[1:]).planes(torch.from_numpy(images))[0].numpy()
    return np.moveaxis(planes, 0, -1) if len(planes) == 3 else planes[-1]


def _lines(numbers: Iterable[float]) -> list[str]:
    words = [f"{number:8.3g}" for number in numbers]
    more = [f"... {len(words)} numbers"] if len(words) > _MOST_NUMBERS else []
    words = words[:_MOST_NUMBERS]
    return [
        " ".join(words[first : first + _NUMBERS_IN_A_LINE]) for first in range(0, len(words), _NUMBERS_IN_A_LINE)
    ] + more
