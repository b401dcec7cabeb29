"""What a world model imagines of an episode, beside what really happened."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.parts.dreaming_policy import DreamerPolicy
from rl_training.algorithms.world import DreamerConfig
from rl_training.experiment.config import saved_config
from rl_training.experiment.registry import REGISTRY
from rl_training.experiment.trust import EPISODES
from rl_training.models.rssm import WorldState
from rl_training.models.rssm_heads import action_columns
from rl_training.models.world_model import DreamerNetwork
from rl_training.runtime.checkpoints.catalogue import find_checkpoint
from rl_training.runtime.checkpoints.checkpoint import read_meta
from rl_training.runtime.evaluate import Walk, in_its_own
from rl_training.runtime.libraries import Threads
from rl_training.runtime.saved_policy import load_policy
from rl_training.types import Array, UserError

_DREAMS = 32
_SEED = 20_260_312  # of the latents that are drawn


class Course(NamedTuple):
    """What is observed, by the names of an observation's parts, and what is said of the same states.

    The heads are `reward`, `value` and `continuation`: the reward that arrived with an observation, the value of the
    state, and the probability that the episode goes on.
    """

    parts: Mapping[str, Array]
    heads: Mapping[str, Array]


@dataclass(frozen=True)
class ImaginationView:
    """An episode of N steps, and dreams of all but its first `context` steps in which the same is done.

    `real` is `[N + 1, ...]`, a row for every observation; `dreamt` is `[dreams, N - context, ...]`. A real value is
    that of the state which the model sees in the real observations.
    """

    checkpoint: Path
    algo: str
    env_id: str
    place: str
    context: int
    images: tuple[str, ...]
    real: Course
    dreamt: Course

    @property
    def steps(self) -> int:
        return len(self.real.heads["reward"]) - 1


def view_imagination(
    path: str | Path,
    *,
    which: str = "latest",
    seed: int = 0,
    step: int = 5,
    horizon: int | None = None,
    device: str = "auto",
    trust: bool = False,
) -> ImaginationView:
    """Play the episode with this seed, and imagine what follows its step number `step`, for `horizon` steps."""
    found = find_checkpoint(path, which)
    config = saved_config(found, read_meta(found), trust=trust, uses=EPISODES, options={})
    if config.spec.family != "world_model":
        dreaming = ", ".join(name for name, entry in REGISTRY.items() if entry.family == "world_model")
        raise UserError(f"{str(path)!r}: {config.run.algo} has no world model; runs of {dreaming} have one")
    saved = load_policy(found, trust=trust, device=device)
    policy, run = saved.policy, saved.config.run
    assert isinstance(policy, DreamerPolicy)
    assert isinstance(saved.config.algorithm, DreamerConfig)
    horizon = saved.config.algorithm.imagination_horizon if horizon is None else horizon
    with closing(in_its_own(run, saved.config.loop, saved.info, trust=trust)) as evaluator:
        walk = evaluator.walk(policy, seed, step + horizon)
    if len(walk.action) <= step:
        raise UserError(f"step={step}: the episode with seed {seed} is over after {len(walk.action)} steps")
    with Threads(run.threads):
        real, dreamt = _compared(policy, walk, step, saved.config.algorithm.gamma)
    return ImaginationView(
        checkpoint=saved.path,
        algo=run.algo,
        env_id=run.env_id,
        place=f"from step {step} of the episode with seed {seed}",
        context=step,
        images=tuple(part.name for part in saved.info.arrays if part.kind == "image"),
        real=real,
        dreamt=dreamt,
    )


def _compared(policy: DreamerPolicy, walk: Walk, context: int, gamma: float) -> tuple[Course, Course]:
    """What is real, and what is dreamt."""
    network, observer = policy.network.eval(), policy.observer
    rng, world = np.random.default_rng(_SEED), network.world
    rows = observer.tensors(observer.scaled(walk.obs))
    columns = action_columns(world.info, observer.tensor(walk.action))

    def uniform(*shape: int) -> Tensor:
        return observer.tensor(rng.random((*shape, policy.size.stoch), dtype=np.float32))

    with torch.inference_mode():
        tokens = world.encoder(rows)[:, None]
        previous = torch.cat([torch.zeros_like(columns[:1]), columns])[:, None]
        first = torch.arange(len(tokens), device=tokens.device)[:, None] == 0
        seen = world.rssm.observe(world.rssm.initial(1), previous, tokens, first, uniform(len(tokens), 1)).state
        state = WorldState(*(part[context].expand(_DREAMS, *part.shape[2:]) for part in seen))
        states = []
        for action in columns[context:]:
            state, _ = world.rssm.imagine(state, action.expand(_DREAMS, -1), uniform(_DREAMS))
            states.append(state)
        dreams = WorldState(*(torch.stack(parts, dim=1) for parts in zip(*states, strict=True)))
        dreamt = Course(_arrays(world.decoder.observations(world.decoder(dreams))), _said(network, dreams, gamma))
        value = network.value.mean(network.value(seen.features))[:, 0]
    parts = {}
    for part in world.info.arrays:
        shown = rows[part.name] if isinstance(rows, Mapping) else rows
        parts[part.name] = shown.to(torch.uint8) if part.kind == "image" else shown
    goes_on = np.ones(len(walk.obs), np.float32)
    goes_on[-1] = not walk.terminated
    reward = np.concatenate([[0.0], walk.reward]).astype(np.float32)
    real = Course(_arrays(parts), {"reward": reward, "value": value.cpu().numpy(), "continuation": goes_on})
    return real, dreamt


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}


def _said(network: DreamerNetwork, states: WorldState, gamma: float) -> dict[str, Array]:
    """What the heads say of states. The discount is a part of what the continuation learned, and is taken out."""
    world, features = network.world, states.features
    said = {
        "reward": world.reward.mean(world.reward(features)),
        "value": network.value.mean(network.value(features)),
        "continuation": (torch.sigmoid(world.continues(features)) / max(gamma, 1e-6)).clamp(max=1.0),
    }
    return _arrays(said)
