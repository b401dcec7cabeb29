"""Running statistics for normalization; they are saved with the weights, so a policy always has its own scales."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from rl_training.ops.kernels.returns import running_returns_kernel
from rl_training.types import Array

_EXTRA_DEVIATION = 1e-3


class RunningMoments:
    """Running mean and variance, merged batch by batch (Chan et al. 1979)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean = np.zeros(shape)
        self.var = np.ones(shape)
        self.count = 0.0

    def update(self, batch: Array) -> None:
        """Add rows `[N, *shape]` to the statistics."""
        if len(batch) == 0:
            return
        batch = batch.astype(np.float64)
        mean, var, count = batch.mean(axis=0), batch.var(axis=0), float(len(batch))
        total = self.count + count
        delta = mean - self.mean
        self.var = (self.var * self.count + var * count + delta**2 * self.count * count / total) / total
        self.mean = self.mean + delta * count / total
        self.count = total

    def state_dict(self) -> dict[str, Tensor]:
        return {
            "mean": torch.tensor(self.mean, dtype=torch.float64),
            "var": torch.tensor(self.var, dtype=torch.float64),
            "count": torch.tensor(self.count, dtype=torch.float64),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.mean, self.var = state["mean"].numpy().copy(), state["var"].numpy().copy()
        self.count = float(state["count"])


class ObservationNormalizer:
    """Scales observations to zero mean and unit variance, and clips them to [-clip, clip]."""

    def __init__(self, shape: tuple[int, ...], clip: float) -> None:
        self.moments = RunningMoments(shape)
        self.clip = clip
        self._refresh()

    def _refresh(self) -> None:
        self._mean = self.moments.mean.astype(np.float32)
        self._deviation = np.sqrt(self.moments.var + 1e-8).astype(np.float32)

    def update(self, obs: Array) -> None:
        """Add rows `[N, *shape]` to the statistics."""
        self.moments.update(obs)
        self._refresh()

    def fit(self, obs: Array) -> None:
        """Set the scale to that of a whole dataset `[N, *shape]`, a little wider, as in Fujimoto and Gu (2021)."""
        self.moments = RunningMoments(self.moments.mean.shape)
        self.moments.update(obs)
        # A column that hardly varies in the data may vary elsewhere.
        self.moments.var = (np.sqrt(self.moments.var) + _EXTRA_DEVIATION) ** 2
        self._refresh()

    def __call__(self, obs: Array) -> Array:
        scaled: Array = np.clip((obs - self._mean) / self._deviation, -self.clip, self.clip)
        return scaled

    def state_dict(self) -> dict[str, Tensor]:
        return self.moments.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.moments.load_state_dict(state)
        self._refresh()


class RewardNormalizer:
    """Divides rewards by the deviation of the discounted return, which is tracked for each environment."""

    def __init__(self, num_envs: int, clip: float) -> None:
        self.moments = RunningMoments(())
        self.clip = clip
        self.running = np.zeros(num_envs)

    def update(self, reward: Array, done: Array, real: Array, gamma: float, envs: slice | Array = slice(None)) -> None:
        """Add a rollout to the statistics, every array `[T, B]`; `envs` are the environments of its columns."""
        running = self.running[envs].copy()
        self.moments.update(running_returns_kernel(reward, done, real, gamma, running)[real])
        self.running[envs] = running

    def __call__(self, reward: Array) -> Array:
        scaled = np.clip(reward / np.sqrt(self.moments.var + 1e-8), -self.clip, self.clip)
        return scaled.astype(np.float32)

    def state_dict(self) -> dict[str, Tensor]:
        return self.moments.state_dict() | {"running": torch.from_numpy(self.running.copy())}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.moments.load_state_dict(state)
        self.running = state["running"].numpy().copy()


class ReturnScale:
    """The range in which most returns lie: by what DreamerV3 divides advantages (Hafner et al. 2025).

    The 5th and the 95th percentile of every batch move running means, which start at 0. A range below 1 counts as 1, so
    that the noise of returns that are all alike is not blown up. Nothing is centred.
    """

    def __init__(self, decay: float = 0.99, low: float = 5.0, high: float = 95.0, smallest: float = 1.0) -> None:
        self.decay = decay
        self.percentiles = (low, high)
        self.smallest = smallest
        self.bounds = np.zeros(2)

    def update(self, returns: Array) -> None:
        """Add a batch of returns, of any shape."""
        bounds = np.percentile(returns.astype(np.float64), self.percentiles)
        self.bounds = self.decay * self.bounds + (1.0 - self.decay) * bounds

    @property
    def scale(self) -> float:
        """What to divide by."""
        return max(float(self.bounds[1] - self.bounds[0]), self.smallest)

    def state_dict(self) -> dict[str, Tensor]:
        return {"bounds": torch.from_numpy(self.bounds.copy())}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.bounds = state["bounds"].numpy().copy()
