"""Datasets that need environments or checkpoints: a run's replay buffer, and transitions collected by policies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from rl_training.algorithms.base import AlgorithmConfig, LoopConfig, ModelConfig, Policy, PolicyContext
from rl_training.data.datasets.arrays import fit_dataset, from_replay
from rl_training.data.datasets.columns import place_of
from rl_training.data.datasets.dataset import OfflineDataset
from rl_training.data.datasets.files import read_dataset
from rl_training.data.datasets.minari_layout import datasets_folder, from_episodes, write_minari
from rl_training.data.replay import replay_like
from rl_training.data.replay_files import read_info
from rl_training.experiment.config import Config, saved_config
from rl_training.experiment.settings import RunConfig
from rl_training.experiment.trust import EPISODES, PACKAGES, names_code
from rl_training.runtime.actors.actor import Actor
from rl_training.runtime.actors.collector import Collector
from rl_training.runtime.arguments import whole_number
from rl_training.runtime.capabilities import refuse_for_tasks
from rl_training.runtime.checkpoints.catalogue import find_checkpoint
from rl_training.runtime.checkpoints.checkpoint import Checkpoint, fitting_policy, read_checkpoint, way_out
from rl_training.runtime.checkpoints.chunk_files import load_arrays
from rl_training.runtime.checkpoints.fitting import loading
from rl_training.runtime.envs.make import EnvMaker, RebuiltPerEpisode
from rl_training.runtime.envs.spaces import ActionScaler
from rl_training.runtime.libraries import Libraries
from rl_training.runtime.rng import actor_streams, seed_global_generators, seeded
from rl_training.runtime.schedules import restore_acting_values
from rl_training.runtime.train import build_policy
from rl_training.types import Act, Array, Carry, SpaceInfo, UserError


@dataclass(frozen=True)
class EnvSettings:
    """The settings that determine an environment and its observations."""

    env_id: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    time_limit: int | None = None
    frame_stack: int = 1
    env_packages: Sequence[str] = ()

    def __str__(self) -> str:
        shown = {name: value for name, value in asdict(self).items() if name != PACKAGES or value}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())

    @classmethod
    def named_in(cls, plain: Mapping[str, Any]) -> EnvSettings:
        """The settings that a config, or the source of a dataset, names."""
        return cls(**{name: plain[name] for name in cls.__dataclass_fields__ if name in plain})

    @classmethod
    def of_file(cls, dataset: OfflineDataset) -> EnvSettings | None:
        """The settings that a dataset names, if it does; code is not resolved for what a file says."""
        if dataset.source.get("env_id") is None:
            return None
        settings = cls.named_in(dataset.source)
        named = [("env_id", settings.env_id), ("env_kwargs.env_id", settings.env_kwargs.get("env_id"))]
        for key, value in (*named, *((PACKAGES, package) for package in settings.env_packages)):
            if names_code(key, value):
                asked = f"{value}:{settings.env_id}" if key == PACKAGES else settings.env_id
                raise UserError(
                    f"{place_of(dataset.source)}: its {key}={value!r} names code, which is not imported for what a "
                    f"dataset says; to allow it, give --env {asked} yourself"
                )
        return settings

    def maker(self) -> EnvMaker:
        """A maker of environments as a run with these settings has them."""
        packages = tuple(self.env_packages)
        run = RunConfig(
            env_id=self.env_id, env_kwargs=dict(self.env_kwargs), env_packages=packages, vectorization="sync"
        )
        maker = EnvMaker(run, LoopConfig(time_limit=self.time_limit, frame_stack=self.frame_stack))
        if maker.makes_vectors:
            raise UserError(f"env_id={self.env_id!r}: a dataset needs a function that makes single environments")
        return maker


def _one_row(settings: EnvSettings) -> tuple[VectorEnv[Any, Any, Any], SpaceInfo]:
    """A vector of one environment, and its spaces."""
    maker = settings.maker()
    envs = maker.masking(maker.vector(1))
    info = maker.describe(envs)
    if info.packed:
        envs.close()
        raise UserError(f"env_id={settings.env_id!r}: datasets of Dict observations or masks are not supported")
    return envs, info


@contextmanager
def one_environment(settings: EnvSettings) -> Iterator[tuple[gym.Env[Any, Any], SpaceInfo]]:
    """A single environment as a run with these settings has it, and its spaces."""
    envs, info = _one_row(settings)
    envs.close()
    env = settings.maker().single()
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
    """The replay buffer of a run's latest checkpoint as a dataset, with the policy's actions."""
    found = find_checkpoint(path)
    checkpoint = read_checkpoint(found)
    config, state = checkpoint.meta["config"], checkpoint.state["parts"].get("replay")
    if config.get("tasks") is not None:
        raise UserError(f"{str(path)!r}: has the replays of several tasks, which are no dataset of one environment")
    if state is None:
        raise UserError(f"{str(path)!r}: is a run of {config['algo']}, which keeps no replay")
    with way_out(found, "resume"), loading(found, "state.json", "replay"):
        info = read_info(checkpoint.meta["spaces"])
        replay = replay_like(info, state, config["frame_stack"])
        arrays = {f"replay.{name}": array for name, array in replay.arrays.items()}
        load_arrays(arrays, {name: array for name, array in checkpoint.arrays.items() if name.startswith("replay.")})
        replay.load_state_dict(state)
    clip = config.get("reward_clip")
    notes = () if clip is None else (f"rewards were clipped to +-{clip:g}",)
    source = asdict(EnvSettings.named_in(config)) | {"format": "replay", "path": str(path), "notes": notes}
    dataset = from_replay(replay, source)
    scale = checkpoint.state["parts"].get("rewards")
    if scale is None:
        return dataset
    # A run that continued from a dataset stores scaled rewards: undo the scaling.
    return replace(dataset, reward=((dataset.reward - scale["shift"]) / scale["factor"]).astype(np.float32))


def save_minari(dataset: OfflineDataset, dataset_id: str, settings: EnvSettings, *, action_units: str = "auto") -> Path:
    """Write a dataset where Minari looks for it, with a description of its environment."""
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
    if np.allclose(action, given, rtol=1e-5, atol=1e-6 * np.abs(action).max()):  # scaling changed rounding only
        action = given
    return replace(dataset, action=action, source={**fitted.source, "action_units": "environment"})


def _spec_of(env: gym.Env[Any, Any]) -> str | None:
    """The JSON from which Gymnasium can make the environment again, if it can."""
    if env.spec is None:
        return None
    spec = deepcopy(env.spec)
    # This wrapper only controls when the environment is rebuilt, and Gymnasium cannot make it.
    spec.additional_wrappers = tuple(
        wrapper for wrapper in spec.additional_wrappers if wrapper.name != RebuiltPerEpisode.__name__
    )
    try:
        return spec.to_json()
    except (TypeError, ValueError):  # its arguments are not plain data
        return None


@dataclass(frozen=True)
class Behaviour:
    """A behaviour policy: that of a run or a checkpoint, or random actions (None); and its weight in the mixture."""

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
    trust: bool = False,
) -> OfflineDataset:
    """Collect steps or episodes with behaviour policies, each by its weight; the same call returns the same data.

    Episodes are whole, except for the last one if `steps` is given. Runs name their environment: `env_id` and
    `env_kwargs` are needed only if all actions are random. Policies explore as in training, unless `deterministic`.
    `trust` lets in the code that the runs name, if you did not train them yourself.
    """
    if (steps is None) == (episodes is None):
        raise UserError(f"steps={steps!r}, episodes={episodes!r}: give one of them")
    goal = whole_number("episodes", episodes) if steps is None else whole_number("steps", steps)
    seed = whole_number("seed", seed, least=0)
    _check_sources(sources)
    saved = [None if one.run is None else _Saved.read(one.run, env_id, trust=trust) for one in sources]
    settings = _common_environment(sources, saved, env_id, env_kwargs)
    threads = max((one.config.run.threads for one in saved if one is not None), default=1)
    with Libraries(threads), closing(_collector(settings, seed)) as collector:
        actors = [
            _actor(one, collector, _seed_of(seed, number), explore=not deterministic)
            for number, one in enumerate(saved)
        ]
        weights = [behaviour.weight for behaviour in sources]
        seed_global_generators(seed)
        played = list(_play_in_turn(actors, weights, goal, by_steps=steps is not None))
    shares = [f"{behaviour}: {sum(turn == n for turn, _, _ in played)} episodes" for n, behaviour in enumerate(sources)]
    source = asdict(settings) | {
        "format": "collected",
        "action_units": "environment",
        "episode_seeds": [episode_seed for _, episode_seed, _ in played],
        "ref_min_score": ref_min_score,
        "ref_max_score": ref_max_score,
        "notes": (f"collected with seed {seed} from {'; '.join(shares)}",),
    }
    return from_episodes([episode for _, _, episode in played], source)


@dataclass(frozen=True)
class _Saved:
    """A checkpoint whose policy acts, and its config."""

    path: Path
    checkpoint: Checkpoint
    config: Config

    @classmethod
    def read(cls, run: str | Path, env_id: str | None, *, trust: bool) -> _Saved:
        path = find_checkpoint(run)
        checkpoint = read_checkpoint(path)
        config = saved_config(
            path, checkpoint.meta, trust=trust, uses=EPISODES, given=[env_id], options={"env_id": "--env "}
        )
        refuse_for_tasks(config, str(run))
        return cls(path, checkpoint, config)


def _check_sources(sources: Sequence[Behaviour]) -> None:
    if not sources:
        raise UserError("there is no policy to act: name a run, or ask for random actions")
    for behaviour in sources:
        if not 0.0 < behaviour.weight < math.inf:
            raise UserError(f"{behaviour}={behaviour.weight:g}: the weight must be a number above 0")


def _common_environment(
    sources: Sequence[Behaviour],
    saved: Sequence[_Saved | None],
    env_id: str | None,
    env_kwargs: Mapping[str, Any] | None,
) -> EnvSettings:
    """The environment of all runs, which must equal the requested one."""
    runs = {
        str(behaviour): EnvSettings.named_in(one.config.flat())
        for behaviour, one in zip(sources, saved, strict=True)
        if one is not None
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


class UniformPolicy(Policy):
    """Samples an action space, as Gymnasium does."""

    def __init__(self, info: SpaceInfo, space: gym.Space[Any], seed: int) -> None:
        config, model = AlgorithmConfig(), ModelConfig()
        super().__init__(PolicyContext(info=info, config=config, model=model, device=torch.device("cpu")))
        self._space = deepcopy(space)  # the environment may draw from its own
        self._space.seed(seed)
        self._scale = ActionScaler(info, space.dtype)

    def act(self, obs: Array, carry: Carry, *, explore: bool, rng: np.random.Generator) -> Act:
        return Act(self._scale.inverse(np.stack([self._space.sample() for _ in obs])), carry)

    def policy_state(self) -> dict[str, Tensor]:
        return {}

    def load_policy_state(self, state: Mapping[str, Tensor]) -> None:
        """It has no tensors."""


def _seed_of(seed: int, number: int) -> int:
    return int(seeded(seed, f"policy {number}").generate_state(1)[0])


def _collector(settings: EnvSettings, seed: int) -> Collector:
    """One environment with observations in its own dtype and with random episode seeds."""
    envs, info = _one_row(settings)
    own = replace(info, obs_dtype=str(envs.single_observation_space.dtype))
    return Collector(envs, own, np.random.Generator(np.random.PCG64(seeded(seed, "episodes"))))


def _actor(saved: _Saved | None, collector: Collector, seed: int, *, explore: bool) -> Actor:
    """An actor for one behaviour policy, or for random actions, with its own random stream."""
    if saved is None:
        policy: Policy = _uniform(collector.info, collector.envs.single_action_space, seed)
    else:
        policy = _load_policy(saved, seed)
    return Actor(policy, collector, actor_streams(seed, 0)[1], explore=explore)


def _uniform(info: SpaceInfo, space: gym.Space[Any], seed: int) -> Policy:
    return UniformPolicy(info, space, seed)


def _load_policy(saved: _Saved, seed: int) -> Policy:
    """The policy of a checkpoint, which explores as it did when it was saved."""
    config, checkpoint = saved.config.replace(seed=seed, vectorization="sync"), saved.checkpoint
    policy, _ = build_policy(config)
    policy.load_policy_state(fitting_policy(checkpoint.policy, policy, saved.path))
    with loading(checkpoint.path, "state.json", "trainer"):
        restore_acting_values(config, policy, checkpoint.state["trainer"], checkpoint.meta["step"])
    return policy


def _play_in_turn(
    actors: Sequence[Actor], weights: Sequence[float], goal: int, *, by_steps: bool
) -> Iterator[tuple[int, int, dict[str, Array]]]:
    """Yield the actor, the seed and the data of each episode. The actor most behind its share plays the next one."""
    collector = actors[0].collector
    order, given = collector.rng.permutation(len(actors)), np.zeros(len(actors))
    collector.start()
    scale = ActionScaler(collector.info, collector.envs.single_action_space.dtype)
    while given.sum() < goal:
        turn = int(order[np.argmin((given / weights)[order])])
        episode_seed = int(collector.seeds[0])
        steps = actors[turn].play(int(goal - given.sum()) if by_steps else None)
        given[turn] += len(steps) if by_steps else 1
        within = [False] * (len(steps) - 1)  # a lost life does not end an episode: only the last step can
        yield (
            turn,
            episode_seed,
            {
                "observations": np.concatenate([*(step.obs for step in steps), steps[-1].next_obs]),
                "actions": np.concatenate([scale(step.action) for step in steps]),
                "rewards": np.concatenate([step.reward for step in steps]),
                "terminations": np.array([*within, bool(collector.terminated[0])]),
                "truncations": np.array([*within, bool(collector.truncated[0])]),
            },
        )
