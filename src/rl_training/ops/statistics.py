"""Statistics over several seeds: means, interquartile means, bootstrap intervals, and comparisons of two sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rl_training.types import Array

Statistic = Callable[[Array], Array]


def mean(values: Array) -> Array:
    """The mean over the last axis `[..., N]`."""
    return np.asarray(np.mean(values, axis=-1))


def interquartile_mean(values: Array) -> Array:
    """The mean of the middle half over the last axis `[..., N]` (IQM; Agarwal et al. 2021, section 4.3).

    A quarter of the mass is cut off at each end. If N is not a multiple of 4, values at the border count in part: of 3
    values, the lowest and the highest count a quarter each and the middle one fully, so the IQM differs from the mean.
    """
    ordered = np.sort(np.asarray(values, np.float64), axis=-1)
    count = ordered.shape[-1]
    edges = np.arange(count + 1) / count  # value k fills the mass from edges[k] to edges[k + 1]
    weights = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0.0, None) / 0.5
    return np.asarray(ordered @ weights)


def bootstrap_interval(
    values: Array,
    statistic: Statistic = mean,
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> tuple[Array, Array]:
    """The percentile bootstrap's confidence interval of a statistic over the last axis `[..., N]`, N at least 2.

    The N values are resampled with replacement `resamples` times; the interval holds the middle `level` of the
    statistics of these resamples. `seed` makes the result reproducible. All leading axes use the same resamples, so
    that the points of a curve stay together.
    """
    values = np.asarray(values, np.float64)
    count = values.shape[-1] if values.ndim else 0
    if count < 2:
        raise ValueError("a confidence interval needs at least two values")
    drawn = np.random.default_rng(seed).integers(0, count, (resamples, count))
    statistics = statistic(values[..., drawn])  # [..., resamples]
    low, high = np.quantile(statistics, [(1.0 - level) / 2.0, (1.0 + level) / 2.0], axis=-1)
    return np.asarray(low), np.asarray(high)


def probability_of_improvement(ours: Array, theirs: Array) -> Array:
    """The probability that a value of `ours` `[..., N]` is above one of `theirs` `[..., M]`; a tie counts half.

    Agarwal et al. 2021, section 4.3: the Mann-Whitney statistic, divided by the number of pairs.
    """
    left, right = np.asarray(ours)[..., :, None], np.asarray(theirs)[..., None, :]
    return np.asarray(np.mean((left > right) + 0.5 * (left == right), axis=(-2, -1)))


def stratified_resamples(strata: Sequence[Array], *, resamples: int = 10_000, seed: int = 0) -> list[Array]:
    """Each stratum `[N]` resampled with replacement by itself, as `[resamples, N]`.

    With a stratum for every task, every resample has as many runs of each task as there were (Agarwal et al. 2021).
    """
    rng = np.random.default_rng(seed)
    return [np.asarray(values)[rng.integers(0, len(values), (resamples, len(values)))] for values in strata]
