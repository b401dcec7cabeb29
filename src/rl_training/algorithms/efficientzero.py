"""EfficientZero (Ye et al. 2021): MuZero that learns from less, by consistency, value prefixes and fresher targets.

Every part is a switch over MuZero, so an ablation is a config. Of EfficientZero V2 (Wang et al. 2024): the search may
be that of Gumbel MuZero, and (in the whole family) the values of old windows those of their search.
"""

from __future__ import annotations

import numpy as np
from torch import nn

from rl_training.algorithms.base import AlgorithmSpec, Context, PolicyContext
from rl_training.algorithms.gumbel_muzero import EitherSearchConfig, play_of
from rl_training.algorithms.muzero import MuZero, MuZeroConfig, all_rewards
from rl_training.algorithms.parts.planning_policy import PlanningPolicy
from rl_training.algorithms.parts.unrolled import Extras, TrainedConsistency
from rl_training.algorithms.planning import PlanningConfig, PlanningLoopConfig, PlanningModelConfig
from rl_training.algorithms.settings import setting
from rl_training.models.efficientzero import Augmentation, Consistency, ValuePrefixNetwork
from rl_training.models.muzero import MuZeroNetwork
from rl_training.types import Array, Capabilities, UserError


class EfficientZeroModelConfig(PlanningModelConfig):
    """MuZero's network; its rewards may be value prefixes."""

    value_prefix: bool = setting(True, "Predict sums of rewards with an LSTM instead of single rewards.")
    prefix_horizon: int = setting(
        5, "Steps after which such a sum starts again.", ge=1, live_when={"value_prefix": True}, probe=1
    )
    prefix_size: int = setting(64, "Size of the LSTM.", ge=1, live_when={"value_prefix": True}, probe=8)
    projection_size: int = setting(64, "Size of the projections that consistency compares.", ge=1, probe=8)


class EfficientZeroConfig(MuZeroConfig, EitherSearchConfig):
    """MuZero's loss, and the consistency of latents with what was really seen"""

    consistency_coef: float = setting(2.0, "Weight of the consistency loss.", ge=0.0, probe=0.0)
    horizon_age: int | None = setting(
        None,
        "Value targets use one reward less for every so many steps that a window is old; null: always n_step.",
        ge=1,
        probe=1,
    )
    augment: bool = setting(
        True, "Move images by a few pixels and change their intensity.", live_when={"observations": "image"}
    )


def shorter_when_old(cfg: PlanningConfig, ages: Array) -> Array:
    """Fewer rewards `[B]` for old windows, since their actions are those of an old policy."""
    assert isinstance(cfg, EfficientZeroConfig)
    if cfg.horizon_age is None:
        return all_rewards(cfg, ages)
    shorter: Array = np.clip(cfg.n_step - ages // cfg.horizon_age, 1, cfg.n_step)
    return shorter


def efficientzero_policy(context: PolicyContext) -> PlanningPolicy:
    """Build only the policy."""
    cfg, model = context.config, context.model
    assert isinstance(cfg, EfficientZeroConfig)
    assert isinstance(model, EfficientZeroModelConfig)
    play = play_of(cfg)
    if not model.value_prefix:
        return PlanningPolicy(context, play)
    size, horizon = model.prefix_size, model.prefix_horizon

    def with_prefixes(body: MuZeroNetwork) -> MuZeroNetwork:
        if not isinstance(getattr(body, "reward", None), nn.Linear):
            raise UserError(
                f"model={model.model!r}: value_prefix replaces the layer `reward`, which must be a torch.nn.Linear; "
                "set value_prefix to false to keep the network as it is"
            )
        return ValuePrefixNetwork(body, hidden_size=size, horizon=horizon)

    return PlanningPolicy(context, play, with_prefixes)


def build_efficientzero(context: Context) -> MuZero:
    """MuZero with everything that the settings switch on."""
    cfg, model, policy = context.config, context.model, efficientzero_policy(context)
    assert isinstance(cfg, EfficientZeroConfig)
    assert isinstance(model, EfficientZeroModelConfig)
    size, rng = model.projection_size, context.streams["batch"]
    # Made even if its weight is 0, since a schedule may raise it.
    module = Consistency(policy.network.latent_shape, projection_size=size, hidden_size=max(size // 2, 1))
    augmentation = Augmentation(context.info) if cfg.augment and context.info.obs_kind != "vector" else None
    extras = Extras(
        TrainedConsistency(module.to(context.device)),
        horizon=model.prefix_horizon if model.value_prefix else None,
        augment=None if augmentation is None else lambda obs, rows: augmentation(obs, augmentation.draw(rows, rng)),
    )
    return MuZero(context, policy, extras, shorter_when_old)


SPEC = AlgorithmSpec(
    name="efficientzero",
    family="planning",
    summary="MuZero with consistency, value prefixes and fresher targets",
    config=EfficientZeroConfig,
    loop=PlanningLoopConfig,
    model=EfficientZeroModelConfig,
    policy=efficientzero_policy,
    build=build_efficientzero,
    capabilities=Capabilities(
        observations=("vector", "image", "dict"), actions=("discrete", "continuous"), two_player=True
    ),
)
