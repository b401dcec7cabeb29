"""For those who come from Stable-Baselines3: agents from its models, and its function that evaluates."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal, overload

from rl_training.api.algorithms import A2C, DDPG, DQN, PPO, SAC, TD3, TQC, Agent
from rl_training.runtime.capabilities import refuse_for_tasks
from rl_training.runtime.envs.given import Env
from rl_training.runtime.evaluations import Evaluation
from rl_training.runtime.sb3.files import Model, Statistics, read_model, read_statistics
from rl_training.runtime.sb3.settings import Kind, activation_of, kind_of, scales_images, settings_of
from rl_training.runtime.sb3.statistics import load_statistics
from rl_training.runtime.sb3.weights import Networks, load_networks, read_networks
from rl_training.types import UserError

_LOG = logging.getLogger("rl_training")
_AGENTS: dict[str, type[Agent]] = {kind.algo: kind for kind in (PPO, A2C, DQN, SAC, TD3, DDPG, TQC)}


def from_sb3(
    path: str | Path,
    env: Env,
    *,
    vec_normalize: str | Path | None = None,
    activation: str | None = None,
    **settings: Any,
) -> Agent:
    """An agent with the networks and settings of a model that Stable-Baselines3 or SB3-Contrib saved.

    It predicts what the model predicts, and can be evaluated, trained further and saved like any other. `env` is the
    environment that the model was trained in. `vec_normalize` is the file that `VecNormalize.save` wrote. `activation`
    is that of the hidden layers, if it is not what the file says. Other settings replace those of the file.

    One line lists what could not be taken over. Nothing in the files is unpickled or run.
    """
    model = read_model(path)
    kind, place = kind_of(model), repr(str(model.path))
    networks = read_networks(kind.algo, model)
    statistics = None if vec_normalize is None else read_statistics(vec_normalize)
    given, missing = settings_of(model, kind)
    given |= networks.settings() | _scales(statistics, kind, missing)
    given["activation"] = activation or activation_of(model, kind)
    try:
        agent = _AGENTS[kind.algo](env, **_joined(given, settings))
    except UserError as error:
        raise UserError(f"{place}: {error}") from None
    try:
        _load(agent, model, networks)
        if statistics is not None:
            load_statistics(agent._run.algorithm, statistics, agent._run.info, repr(str(vec_normalize)))
    except UserError:
        agent.close()
        raise
    run = agent._run
    run.source.publish(run.algorithm.policy.policy_state, run.algorithm.policy.values, run.algorithm.n_updates)
    steps = model.data.get("num_timesteps")
    _LOG.warning("%s: not taken over: %s", place, "; ".join([*_always(kind, steps), *missing]))
    return agent


def _joined(given: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The settings of a file, and those of the caller; a number of the caller's ends a schedule of the file's."""
    aliases = {"clip_range": "clip_coef", "entropy_coef": "ent_coef", "train_freq": "train_every"}
    names = {aliases.get(name, name) for name in own}
    return {key: value for key, value in given.items() if key.removesuffix("_schedule") not in names} | own


def _scales(statistics: Statistics | None, kind: Kind, missing: list[str]) -> dict[str, Any]:
    """The settings under which the scales of VecNormalize are used."""
    if statistics is None:
        return {}
    scales: dict[str, Any] = {}
    if statistics.obs is not None:
        scales |= {"normalize_obs": True, "obs_clip": statistics.obs_clip}
    if statistics.returns is not None and kind.on_policy:
        scales |= {"normalize_reward": True, "reward_scale_clip": statistics.reward_clip}
    elif statistics.returns is not None:
        missing.append(f"the scale of rewards: {kind.algo} learns from rewards as they are here")
    return scales


def _load(agent: Agent, model: Model, networks: Networks) -> None:
    run = agent._run
    scale = 1.0 if scales_images(model) else 255.0
    states = networks.states(run.config, run.info, scale)
    load_networks(run.algorithm, states, repr(str(model.path)), str(run.config.run.env_id))


def _always(kind: Kind, steps: Any) -> list[str]:
    trained = f" (the model has {steps})" if isinstance(steps, int) else ""
    left = ["the state of the optimisers", f"the number of steps{trained}, so schedules start anew"]
    return left if kind.on_policy else [*left, "the replay buffer"]


@overload
def evaluate_policy(
    model: Agent,
    env: Env | None = None,
    n_eval_episodes: int = 10,
    deterministic: bool = True,
    *,
    return_episode_rewards: Literal[False] = False,
) -> tuple[float, float]: ...


@overload
def evaluate_policy(
    model: Agent,
    env: Env | None = None,
    n_eval_episodes: int = 10,
    deterministic: bool = True,
    *,
    return_episode_rewards: Literal[True],
) -> tuple[list[float], list[int]]: ...


def evaluate_policy(
    model: Agent,
    env: Env | None = None,
    n_eval_episodes: int = 10,
    deterministic: bool = True,
    *,
    return_episode_rewards: bool = False,
) -> tuple[float, float] | tuple[list[float], list[int]]:
    """Return mean and standard deviation of the returns of some episodes, or the returns and lengths of all of them.

    This is `model.evaluate` under the name and with the arguments that Stable-Baselines3 has for it.
    """
    if not isinstance(model, Agent):
        raise UserError(f"model={model!r:.80}: must be an agent, such as PPO('CartPole-v1')")
    refuse_for_tasks(model.config, "evaluate_policy")
    found = model.evaluate(n_eval_episodes, deterministic=deterministic, env=env)
    assert isinstance(found, Evaluation)
    if return_episode_rewards:
        return list(found.returns), list(found.lengths)
    return found.mean, found.std
