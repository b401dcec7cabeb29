"""TD3+BC (Fujimoto and Gu 2021): TD3 whose actor stays near the data."""

from __future__ import annotations

from functools import partial
from typing import Literal

from rl_training.algorithms.base import AlgorithmSpec, setting
from rl_training.algorithms.off_policy import Minibatch
from rl_training.algorithms.offline import OfflineLoopConfig
from rl_training.algorithms.parts.actors import Anchor
from rl_training.algorithms.parts.deterministic_actor_critic import DeterministicActorCritic, DeterministicModelConfig
from rl_training.algorithms.td3 import TD3Config, smoothed
from rl_training.types import Capabilities


class TD3BCConfig(TD3Config):
    """Critics as in TD3. Actor: maximise lambda Q_1(s, pi(s)) - (pi(s) - a)^2, lambda = alpha / mean |Q_1|."""

    learning_rate: float = setting(3e-4, "Step size of the optimisers.", ge=0.0, report=True)
    alpha: float = setting(
        2.5, "How much values count against staying near the data: 0 is behaviour cloning.", ge=0.0, report=True
    )
    normalize_obs: bool | Literal["auto"] = setting(
        "auto", "Scale observations by the dataset's mean and deviation; `auto`: unless they are images.", probe=False
    )
    noise_std: float = setting(
        0.1,
        "Deviation of the noise on actions that are taken online.",
        ge=0.0,
        report=True,
        live_when={"online": True},
        probe=0.5,
    )


def near_the_data(agent: DeterministicActorCritic, mini: Minibatch) -> Anchor:
    """The actions of the minibatch, and how much more the values count."""
    cfg = agent.cfg
    assert isinstance(cfg, TD3BCConfig)
    return Anchor(mini.action, cfg.alpha)


SPEC = AlgorithmSpec(
    name="td3_bc",
    family="offline",
    summary="TD3 whose actor stays near the data",
    config=TD3BCConfig,
    loop=OfflineLoopConfig,
    model=DeterministicModelConfig,
    build=partial(
        DeterministicActorCritic,
        smooth=smoothed,
        policy_delay=lambda cfg: int(cfg.policy_delay),
        anchor=near_the_data,
    ),
    capabilities=Capabilities(observations=("vector", "image", "dict"), actions=("continuous",), offline=True),
)
