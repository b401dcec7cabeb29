"""From the statistics of VecNormalize to those of our normalizers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.runtime.sb3.files import Moments, Statistics
from rl_training.types import SpaceInfo, UserError


def load_statistics(algorithm: Algorithm, statistics: Statistics, info: SpaceInfo, place: str) -> None:
    """Put the scales of VecNormalize into a new algorithm that normalizes."""
    if statistics.obs is not None:
        policy = algorithm.policy.policy_state()
        moments = _in_a_row(statistics.obs, info, place)
        if moments.mean.shape != tuple(policy["obs_normalizer.mean"].shape):
            raise UserError(
                f"{place}: is of observations of the shape {moments.mean.shape}; those of this environment are "
                f"{tuple(policy['obs_normalizer.mean'].shape)}"
            )
        algorithm.policy.load_policy_state(policy | _tensors("obs_normalizer.", statistics, moments))
    training = algorithm.training_state()
    if statistics.returns is not None and "reward_normalizer" in training:
        training["reward_normalizer"] |= _tensors("", statistics, statistics.returns)
        algorithm.load_training_state(training)


def _in_a_row(moments: Moments | dict[str, Moments], info: SpaceInfo, place: str) -> Moments:
    """The moments of an observation's floats: of a Dict those of all entries that are no images, one after another."""
    if isinstance(moments, Moments):
        return moments
    names = [part.name for part in info.parts if part.dtype == "float32"]
    if moments.keys() != set(names):
        raise UserError(
            f"{place}: scales the entries {', '.join(map(repr, moments))} of a Dict (norm_obs_keys); here all that are "
            f"no images are scaled: {', '.join(map(repr, names)) or 'none'}"
        )
    found = [moments[name] for name in names]
    mean, var = (np.concatenate([getattr(one, key).ravel() for one in found]) for key in ("mean", "var"))
    return Moments(mean, var, found[0].samples)


def _tensors(prefix: str, statistics: Statistics, moments: Moments) -> dict[str, Tensor]:
    # Ours add 1e-8 to the variance, which is their epsilon unless somebody changed it.
    var = moments.var + (statistics.epsilon - 1e-8)
    named = {"mean": moments.mean, "var": var, "count": np.float64(moments.samples)}
    return {f"{prefix}{name}": torch.as_tensor(np.asarray(value), dtype=torch.float64) for name, value in named.items()}
