"""Updates of DreamerV3 on the same batch, by us and by SheepRL, with models of the same sizes; and our acting.

The batch has CartPole's shape and does not change: drawing from a memory and writing latents back is not part of it.
Libraries are imported inside of the functions, so that a process loads one side only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from math import ceil
from typing import Any

from trainers import Advance, keep_libraries, repeating


@dataclass(frozen=True)
class Size:
    """How large a model is; the numbers are those of `rl_training.models.rssm:SIZES`."""

    deter: int
    hidden: int
    classes: int
    units: int
    stoch: int = 32
    blocks: int = 8


SIZES = {
    "xxs": Size(256, 64, 8, 64, stoch=16),
    "1m": Size(512, 64, 4, 64),
}


@dataclass(frozen=True)
class Task:
    """What an update learns from: sequences of vectors, and imagined ones that start at their states, all or some."""

    size: Size
    sequences: int = 16
    length: int = 64
    horizon: int = 15
    starts: int | None = None  # peers know all of them only
    observations: int = 4
    actions: int = 2


# The layers of the paper's networks, for the settings of SheepRL that have their own default.
LAYERS = {
    "world_model.encoder": 3,
    "world_model.observation_model": 3,
    "world_model.reward_model": 1,
    "world_model.discount_model": 1,
    "actor": 3,
    "critic": 3,
}


def batch(task: Task, context: int = 0, seed: int = 0) -> dict[str, Any]:
    """Random sequences `[T, B, ...]` of CartPole's shape, some of which contain the end of an episode."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    shape = (task.length + context, task.sequences)
    choices = torch.randint(task.actions, shape, generator=generator)
    ends = torch.rand((*shape, 1), generator=generator) < 0.02
    return {
        "state": torch.randn((*shape, task.observations), generator=generator),
        "actions": torch.nn.functional.one_hot(choices, task.actions).float(),
        "rewards": torch.ones((*shape, 1)),
        "terminated": ends.float(),
        "truncated": torch.zeros((*shape, 1)),
        "is_first": ends.roll(1, dims=0).float(),
    }


def latents(task: Task) -> dict[str, Any]:
    """The latents that a memory keeps beside a batch, in the types of SheepRL."""
    import torch

    shape = (task.length + 1, task.sequences)
    return {
        "deter": torch.zeros((*shape, task.size.deter), dtype=torch.float16),
        "stoch": torch.zeros((*shape, task.size.stoch), dtype=torch.uint8),
    }


def overrides(task: Task) -> list[str]:
    """The settings that both versions of SheepRL share."""
    size = task.size
    settings = {
        "world_model.recurrent_model.recurrent_state_size": size.deter,
        "world_model.stochastic_size": size.stoch,
        "world_model.discrete_size": size.classes,
        "world_model.transition_model.hidden_size": size.hidden,
        "world_model.representation_model.hidden_size": size.hidden,
        "dense_units": size.units,
        "horizon": task.horizon,
        "per_rank_batch_size": task.sequences,
        "per_rank_sequence_length": task.length,
        "cnn_keys.encoder": "[]",
        "cnn_keys.decoder": "[]",
        "mlp_keys.encoder": "[state]",
        "mlp_keys.decoder": "[state]",
    }
    return [
        "env=gym",
        "env.id=CartPole-v1",
        "metric.log_level=0",
        *(f"algo.{key}={value}" for key, value in settings.items()),
        *(f"algo.{network}.mlp_layers={layers}" for network, layers in LAYERS.items()),
    ]


def sheeprl_config(experiment: str, settings: list[str]) -> Any:
    """The settings of an experiment of SheepRL, as its own program composes them."""
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf
    from sheeprl.utils.utils import dotdict

    with initialize_config_module("sheeprl.configs", version_base="1.3"):
        config = compose("config", [f"exp={experiment}", *settings])
    return dotdict(OmegaConf.to_container(config, resolve=True))


def sheeprl_agent(name: str, task: Task, settings: list[str]) -> tuple[Any, Any, Any, Any, tuple[Any, ...]]:
    """The module of an algorithm, its settings, Fabric, the measure of returns, and the four networks that it made."""
    import gymnasium as gym
    import numpy as np
    from lightning.fabric import Fabric
    from sheeprl.utils.metric import MetricAggregator
    from torch.distributions import Distribution

    algorithm = import_module(f"sheeprl.algos.{name}.{name}")
    config = sheeprl_config(name, overrides(task) + settings)
    # As its program does: nothing is checked in distributions, and no metric is gathered.
    Distribution.set_default_validate_args(config.distribution.validate_args)
    MetricAggregator.disabled = True
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.seed_everything(0, verbose=False)
    seen = gym.spaces.Dict({"state": gym.spaces.Box(-np.inf, np.inf, (task.observations,), np.float32)})
    *networks, _ = algorithm.build_agent(fabric, (task.actions,), False, config, seen)
    kept = config.algo.actor.moments
    moments = algorithm.Moments(kept.decay, kept.max, kept.percentile.low, kept.percentile.high)
    return algorithm, config, fabric, moments, tuple(networks)


def sheeprl(task: Task) -> Callable[[], Any]:
    """The version of the paper of 2025: a block GRU, one optimiser, and a value loss on the memory, as ours has."""
    import hydra

    recurrent = "algo.world_model.recurrent_model"
    sizes = [f"{recurrent}.hidden_size={task.size.hidden}", f"{recurrent}.blocks={task.size.blocks}"]
    algorithm, config, fabric, moments, networks = sheeprl_agent("dreamer_v3_5", task, sizes)
    _, _, critic, slow_critic = networks
    parameters = [p for network in networks[:3] for p in network.parameters()]
    optimizer = fabric.setup_optimizers(
        hydra.utils.instantiate(config.algo.optimizer, params=parameters, _convert_="all")
    )
    data = batch(task, context=config.algo.replay_context) | latents(task)

    def update() -> None:
        algorithm.train(fabric, config, *networks, optimizer, moments, dict(data), None, (task.actions,))
        algorithm.update_target_critic(critic, slow_critic, config.algo.critic.tau)

    return update


def sheeprl_2023(task: Task) -> Callable[[], Any]:
    """The version of the preprint of 2023: a dense GRU, three optimisers, and no value loss on the memory."""
    import hydra

    algorithm, config, fabric, moments, networks = sheeprl_agent(
        "dreamer_v3", task, [f"algo.world_model.recurrent_model.dense_units={task.size.hidden}"]
    )
    world, actor, critic, slow_critic = networks
    parts = ((config.algo.world_model, world), (config.algo.actor, actor), (config.algo.critic, critic))
    optimizers = fabric.setup_optimizers(
        *(hydra.utils.instantiate(part.optimizer, params=net.parameters(), _convert_="all") for part, net in parts)
    )
    data, tau = batch(task), config.algo.critic.tau

    def update() -> None:
        for new, slow in zip(critic.module.parameters(), slow_critic.parameters(), strict=True):
            slow.data.copy_(tau * new.data + (1 - tau) * slow.data)
        algorithm.train(fabric, *networks, *optimizers, dict(data), None, config, False, (task.actions,), moments)

    return update


def ours(task: Task, engine: str = "auto") -> Callable[[], Any]:
    """Our update, by the engine or by autograd, on the rows of the same batch."""
    import torch

    from rl_training.algorithms.parts.dreams import SequenceBatch

    algorithm, data, size = our_algorithm(task, engine), batch(task), task.size
    ends = data["terminated"].squeeze(-1).bool().numpy()
    rows = SequenceBatch(
        obs=data["state"].numpy(),
        previous_action=data["actions"].argmax(dim=-1).numpy(),
        reward=data["rewards"].squeeze(-1).numpy(),
        first=data["is_first"].squeeze(-1).bool().numpy(),
        last=ends,
        terminal=ends,
        deter=torch.zeros(task.sequences, size.deter).numpy(),
        stoch=torch.full((task.sequences, size.stoch), size.classes, dtype=torch.uint8).numpy(),
    )

    def update() -> None:
        algorithm.model.differentiate(rows, algorithm.draws(), algorithm.cfg)
        algorithm.model.descend(algorithm.cfg)

    return update


def our_algorithm(task: Task, engine: str) -> Any:
    """Dreamer for CartPole, with a model of this size."""
    from rl_training.experiment.config import load_config
    from rl_training.runtime.train import build

    settings = {
        "algo": "dreamer",
        "env_id": "CartPole-v1",
        "device": "cpu",
        "engine": engine,
        "buffer_size": 10_000,
        "batch_size": task.sequences,
        "batch_length": task.length,
        "imagination_horizon": task.horizon,
        "imagination_starts": task.starts,
    }
    run = build(load_config(settings | asdict(task.size)))
    keep_libraries(run)
    run.close()
    return run.algorithm


# Who makes an update of a task.
SIDES: dict[str, Callable[[Task], Callable[[], Any]]] = {
    "ours": ours,
    "autograd": partial(ours, engine="autograd"),
    "sheeprl": sheeprl,
    "sheeprl_2023": sheeprl_2023,
}


def dreamer_updates(side: str, size: str, *, unit: str, threads: int, starts: int | None = None) -> Advance:
    """A side of a work: it makes updates of a model of this size."""
    import torch

    torch.set_num_threads(threads)
    return repeating(SIDES[side](Task(SIZES[size], starts=starts)))


def dreamer_acting(side: str, size: str, *, unit: str, threads: int, num_envs: int) -> Advance:
    """A side of a work: our policy follows environments and acts, by the engine or by torch. A step is one action."""
    import numpy as np
    import torch

    torch.set_num_threads(threads)
    policy = our_algorithm(Task(SIZES[size]), "auto" if side == "ours" else "autograd").policy
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((num_envs, Task.observations)).astype(np.float32)
    carry = policy.initial_carry(num_envs)

    def advance(count: int) -> int:
        nonlocal carry
        turns = ceil(count / num_envs)
        for _ in range(turns):
            carry = policy.act(obs, carry, explore=True, rng=rng).carry
        return turns * num_envs

    return advance
