"""Datasets that need environments or checkpoints: a run's replay, and what policies do when they are let act."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.algorithms.base import Algorithm, LoopConfig
from rl_training.data.datasets.arrays import fit_dataset, from_replay
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.data.datasets.files import read_dataset
from rl_training.data.datasets.minari_layout import datasets_folder, from_episodes, write_minari
from rl_training.data.replay import make_replay
from rl_training.data.replay_files import read_info
from rl_training.experiment.config import load_config
from rl_training.experiment.settings import RunConfig
from rl_training.runtime.arguments import whole_number
from rl_training.runtime.checkpoints.checkpoint import Checkpoint, find_checkpoint, fitting_policy, read_checkpoint
from rl_training.runtime.checkpoints.chunk_files import load_memory
from rl_training.runtime.envs.lives import life_lost
from rl_training.runtime.envs.make import EnvMaker, RebuiltPerEpisode
from rl_training.runtime.envs.spaces import ActionScaler
from rl_training.runtime.rng import seeded, untouched
from rl_training.runtime.schedules import ScheduleSet
from rl_training.runtime.train import build_policy
from rl_training.types import Array, SpaceInfo, UserError

# Longer than any episode that is meant to end.
_MOST_STEPS = 1_000_000

# From an observation, and what it remembers of the episode, to what the environment gets, and what it remembers then.
Player = Callable[[Array, Any], tuple[Any, Any]]


@dataclass(frozen=True)
class EnvSettings:
    """What decides an environment, and what a policy sees of it."""

    env_id: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    time_limit: int | None = None
    frame_stack: int = 1

    def __str__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in asdict(self).items())

    @classmethod
    def named_in(cls, plain: Mapping[str, Any]) -> EnvSettings:
        """Those that a config, or the source of a dataset, names."""
        return cls(**{name: plain[name] for name in cls.__dataclass_fields__ if name in plain})


@contextmanager
def one_environment(settings: EnvSettings) -> Iterator[tuple[gym.Env[Any, Any], SpaceInfo]]:
    """A single environment as a run with these settings has it, and its spaces."""
    run = RunConfig(env_id=settings.env_id, env_kwargs=dict(settings.env_kwargs))
    maker = EnvMaker(run, LoopConfig(time_limit=settings.time_limit, frame_stack=settings.frame_stack))
    if maker.makes_vectors:
        raise UserError(f"env_id={settings.env_id!r}: a dataset needs a function that makes single environments")
    envs: Any = maker.masking(maker.vector(1))
    info = maker.describe(envs)
    envs.close()
    if info.packed:
        raise UserError(f"env_id={settings.env_id!r}: datasets of Dict observations or masks are not supported")
    env = maker.single()
    try:
        yield env, info
    finally:
        env.close()


def look_at(settings: EnvSettings) -> tuple[SpaceInfo, int | None]:
    """The spaces of an environment, and its time limit if it has one."""
    with one_environment(settings) as (env, info):
        return info, settings.time_limit if env.spec is None else env.spec.max_episode_steps


def open_dataset(
    name: str, *, done_means: str | None = None, time_limit: int | None = None, rewards_needed: bool = True
) -> OfflineDataset:
    """The dataset in a file or folder, of a Minari id, or in the replay of a run."""
    path = Path(name)
    if (path / "checkpoints").is_dir() or (path / "meta.json").is_file():
        return read_run_replay(path)
    return read_dataset(name, done_means=done_means, time_limit=time_limit, rewards_needed=rewards_needed)


def read_run_replay(path: str | Path) -> OfflineDataset:
    """What the latest checkpoint of a run remembers of its environments, as its policy acted."""
    found = find_checkpoint(path)
    checkpoint = read_checkpoint(found)
    config, state = checkpoint.meta["config"], checkpoint.state["parts"].get("replay")
    if state is None:
        raise UserError(f"{str(path)!r}: is a run of {config['algo']}, which keeps no replay")
    try:
        info = read_info(checkpoint.meta["spaces"])
        replay = make_replay(info, state["num_envs"], state["buffer_size"], config["frame_stack"])
        arrays = {f"replay.{name}": array for name, array in replay.memory.items()}
        load_memory(arrays, {name: array for name, array in checkpoint.memory.items() if name.startswith("replay.")})
        replay.load_state_dict(state)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{str(found)!r}: its replay is damaged or foreign ({error!r})") from None
    clip = config.get("reward_clip")
    notes = () if clip is None else (f"rewards were clipped to +-{clip:g}",)
    source = asdict(EnvSettings.named_in(config)) | {"format": "replay", "path": str(path), "notes": notes}
    dataset = from_replay(replay, source)
    scale = checkpoint.state["parts"].get("rewards")
    if scale is None:
        return dataset
    # A run that went on from a dataset remembers rewards as it learned from them.
    return replace(dataset, reward=((dataset.reward - scale["shift"]) / scale["factor"]).astype(np.float32))


def save_minari(dataset: OfflineDataset, dataset_id: str, settings: EnvSettings, *, action_units: str = "auto") -> Path:
    """Write a dataset where Minari looks for it, with what there is to say of its environment."""
    with one_environment(settings) as (env, info):
        return write_minari(
            datasets_folder(),
            _in_environment_units(dataset, info, env.action_space.dtype, action_units),
            dataset_id=dataset_id,
            observation_space=env.observation_space,
            action_space=env.action_space,
            env_spec=_spec_of(env),
            seeds=dataset.source.get("episode_seeds"),
            description="; ".join(dataset.source.get("notes", ())) or None,
        )


def _in_environment_units(dataset: OfflineDataset, info: SpaceInfo, dtype: Any, action_units: str) -> OfflineDataset:
    fitted = fit_dataset(dataset, info, action_units)
    action = ActionScaler(info, dtype)(fitted.action)
    given = dataset.action.reshape(action.shape)
    if np.allclose(action, given, rtol=1e-5, atol=1e-6 * np.abs(action).max()):  # scaling cost nothing but last bits
        action = given
    return replace(dataset, action=action, source={**fitted.source, "action_units": "environment"})


def _spec_of(env: gym.Env[Any, Any]) -> str | None:
    """How Gymnasium makes the environment again, in JSON, if it can."""
    if env.spec is None:
        return None
    spec = deepcopy(env.spec)
    # It only says when the environment is made anew, and Gymnasium cannot make it.
    spec.additional_wrappers = tuple(
        wrapper for wrapper in spec.additional_wrappers if wrapper.name != RebuiltPerEpisode.__name__
    )
    try:
        return spec.to_json()
    except (TypeError, ValueError):  # its arguments are no plain data
        return None


@dataclass(frozen=True)
class Behaviour:
    """Who acts: the policy of a run or a checkpoint, or nobody (random actions); and its share, against the others."""

    run: str | Path | None = None
    weight: float = 1.0

    def __str__(self) -> str:
        return "random actions" if self.run is None else str(self.run)


def collect(
    env_id: str | None,
    sources: Sequence[Behaviour],
    *,
    steps: int | None = None,
    episodes: int | None = None,
    seed: int = 0,
    deterministic: bool = False,
    env_kwargs: Mapping[str, Any] | None = None,
    ref_min_score: float | None = None,
    ref_max_score: float | None = None,
) -> OfflineDataset:
    """Let policies act for so many steps or episodes, each for its share of them; the same call gives the same data.

    Episodes are whole, except for the last one of `steps`. Runs bring their environment with them: `env_id` and
    `env_kwargs` are needed for random actions alone. Policies explore as they did in training, unless `deterministic`.
    """
    if (steps is None) == (episodes is None):
        raise UserError(f"steps={steps!r}, episodes={episodes!r}: give one of them")
    goal = whole_number("episodes", episodes) if steps is None else whole_number("steps", steps)
    seed = whole_number("seed", seed, least=0)
    _check_sources(sources)
    checkpoints = [None if who.run is None else read_checkpoint(find_checkpoint(who.run)) for who in sources]
    settings = _common_environment(sources, checkpoints, env_id, env_kwargs)
    with untouched(), one_environment(settings) as (env, info):
        players = []
        for number, (who, checkpoint) in enumerate(zip(sources, checkpoints, strict=True)):
            own_seed = int(seeded(seed, f"policy {number}").generate_state(1)[0])
            if who.run is None or checkpoint is None:
                players.append(_random_player(env.action_space, own_seed))
            else:
                policy = _load_policy(who.run, checkpoint, own_seed)
                players.append(_policy_player(policy, info, env.action_space.dtype, explore=not deterministic))
        weights = [who.weight for who in sources]
        played = list(_play_in_turn(env, players, weights, goal, seed, by_steps=steps is not None))
    shares = [f"{who}: {sum(turn == n for turn, _, _ in played)} episodes" for n, who in enumerate(sources)]
    source = asdict(settings) | {
        "format": "collected",
        "action_units": "environment",
        "episode_seeds": [episode_seed for _, episode_seed, _ in played],
        "ref_min_score": ref_min_score,
        "ref_max_score": ref_max_score,
        "notes": (f"collected with seed {seed} from {'; '.join(shares)}",),
    }
    return from_episodes([episode for _, _, episode in played], source)


def _check_sources(sources: Sequence[Behaviour]) -> None:
    if not sources:
        raise UserError("nobody acts: name a run, or ask for random actions")
    for who in sources:
        if not 0.0 < who.weight < math.inf:
            raise UserError(f"{who}={who.weight:g}: the weight must be a number above 0")


def _common_environment(
    sources: Sequence[Behaviour],
    checkpoints: Sequence[Checkpoint | None],
    env_id: str | None,
    env_kwargs: Mapping[str, Any] | None,
) -> EnvSettings:
    """The environment of all runs, which must be the one that is asked for too."""
    runs = {
        str(who): EnvSettings.named_in(checkpoint.meta["config"])
        for who, checkpoint in zip(sources, checkpoints, strict=True)
        if checkpoint is not None
    }
    if not runs:
        if env_id is None:
            raise UserError("env_id: is missing; random actions need an environment")
        return EnvSettings(env_id, dict(env_kwargs or {}))
    (first, common), *others = runs.items()
    for name, other in others:
        if other != common:
            raise UserError(f"{name!r}: was trained on {other}, but {first!r} on {common}; it must be the same")
    asked = replace(common, env_id=env_id or common.env_id)
    asked = asked if env_kwargs is None else replace(asked, env_kwargs=dict(env_kwargs))
    if asked != common:
        raise UserError(f"{first!r}: was trained on {common}, not on {asked}")
    return common


def _load_policy(run: str | Path, checkpoint: Checkpoint, seed: int) -> Algorithm:
    """The policy of a checkpoint, exploring as it did then, but with randomness of its own."""
    config = load_config(checkpoint.meta["config"], seed=seed, vectorization="sync")
    policy = build_policy(config)
    policy.close()  # it acts in an environment that is made for all
    trainer = checkpoint.state["trainer"]
    scheduled = ScheduleSet(config.controls, trainer["horizon"]).values(checkpoint.meta["step"])
    policy.algorithm.load_policy_state(fitting_policy(checkpoint.policy, policy.algorithm, Path(run)))
    policy.algorithm.set_hyperparameters(**scheduled, **trainer.get("hyperparameters", {}))
    return policy.algorithm


def _policy_player(policy: Algorithm, info: SpaceInfo, dtype: Any, *, explore: bool) -> Player:
    scale = ActionScaler(info, dtype)

    def act(obs: Array, carry: Any) -> tuple[Any, Any]:
        decided = policy.act(np.array(obs[None], info.obs_dtype), carry, explore=explore)
        return scale(decided.action)[0], decided.carry

    return act


def _random_player(space: gym.Space[Any], seed: int) -> Player:
    space = deepcopy(space)  # the environment may draw from its own
    space.seed(seed)
    return lambda obs, carry: (space.sample(), None)


def _play_in_turn(
    env: gym.Env[Any, Any],
    players: Sequence[Player],
    weights: Sequence[float],
    goal: int,
    seed: int,
    *,
    by_steps: bool,
) -> Iterator[tuple[int, int, dict[str, Array]]]:
    """Whose turn it was, the seed and the data of each episode; the next turn is his who is most behind his share."""
    rng = np.random.Generator(np.random.PCG64(seeded(seed, "episodes")))
    order, given = rng.permutation(len(players)), np.zeros(len(players))
    while given.sum() < goal:
        turn = int(order[np.argmin((given / weights)[order])])
        episode_seed = int(rng.integers(0, 2**31 - 1))
        episode = _play(env, players[turn], episode_seed, int(goal - given.sum()) if by_steps else None)
        given[turn] += len(episode["rewards"]) if by_steps else 1
        yield turn, episode_seed, episode


def _play(env: gym.Env[Any, Any], act: Player, seed: int, most: int | None) -> dict[str, Array]:
    """One episode, of `most` steps at most."""
    dtype = env.observation_space.dtype
    shown = [np.array(env.reset(seed=seed)[0], dtype)]
    actions: list[Any] = []
    rewards: list[float] = []
    terminations: list[bool] = []
    truncations: list[bool] = []
    carry, over = None, False
    while not over and len(rewards) != most:
        action, carry = act(shown[-1], carry)
        obs, reward, terminated, truncated, facts = env.step(action)
        carry = None if life_lost(facts) else carry
        shown.append(np.array(obs, dtype))
        actions.append(action)
        rewards.append(float(reward))
        terminations.append(bool(terminated))
        truncations.append(bool(truncated))
        over = terminations[-1] or truncations[-1]
        if len(rewards) == _MOST_STEPS and most is None:
            raise UserError(f"an episode did not end in {_MOST_STEPS:,} steps; give steps instead of episodes")
    return {
        "observations": np.stack(shown),
        "actions": np.stack(actions),
        "rewards": np.array(rewards),
        "terminations": np.array(terminations),
        "truncations": np.array(truncations),
    }
