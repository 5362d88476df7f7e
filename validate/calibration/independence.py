"""Test whether steps are independent draws; if not, correct errors of means.

Workers are compared by logarithms, so that a heavy tail does not mask differences.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from paceline.simulator.distributions.distribution import Array

Series = Sequence[Array]

NEARLY = 0.002  # relative sd below which times count as constant
DIFFERENT = 0.01  # p-value below which workers differ
RELEVANT = 0.005  # relative difference below which workers count as equal
BLOCKS = 50  # of successive rows, whose means are nearly independent, unlike the rows


def jackknife(estimate: Callable[[np.ndarray], np.ndarray], groups: np.ndarray) -> np.ndarray:
    """Return an estimate's covariance by leaving out blocks (Miller 1974).

    Args:
        estimate: Returns the estimated numbers from a mask of the rows that count.
        groups: Number of each row's group, from 0; a block has whole, successive groups.
    """
    size = int(groups.max()) + 1
    count = min(BLOCKS, size)
    blocks = groups * count // size
    parts = np.array([estimate(blocks != block) for block in range(count)]) if count > 1 else 0.0
    deviations = np.atleast_2d(parts - np.mean(parts, axis=0))
    covariance: np.ndarray = (count - 1) / count * deviations.T @ deviations
    return covariance


def logs(series: Series) -> list[Array]:
    """Return the logarithms of times, clipped below at a thousandth of their mean."""
    floor = 1e-3 * float(np.mean(np.concatenate(series)))
    return [np.log(np.maximum(times, floor)) for times in series]


def autocorrelation(series: Series, lags: int) -> Array:
    """Return the pooled autocorrelation of deviations, at lags 1, 2, ..."""
    deviations = [times - times.mean() for times in series if len(times) > 1]
    total = sum(float(deviation @ deviation) for deviation in deviations)
    if total == 0:
        return np.zeros(lags)
    return np.array(
        [sum(float(z[:-k] @ z[k:]) for z in deviations) / total for k in range(1, lags + 1)]
    )


def inflation(series: Series) -> float:
    """Return the factor by which correlation increases the variance of a mean."""
    enough = 2 / math.sqrt(sum(map(len, series)))
    correlations = autocorrelation(series, 50)
    below = np.flatnonzero(correlations < enough)
    return 1 + 2 * float(correlations[: below[0] if len(below) else None].sum())


def alike(series: Series) -> list[list[int]]:
    """Group workers by the mean logarithm of their times.

    Welch's test over all workers (1951), with variances inflated by the autocorrelation, decides
    whether they differ; then neighbours in the order of their means are merged until all differ.
    Workers with fewer than 5 steps are in no group.
    """
    from scipy.special import ndtri  # noqa: PLC0415

    ranks = [rank for rank, times in enumerate(series) if len(times) >= 5]
    if len(ranks) < 2:
        return [ranks]
    values = logs([series[rank] for rank in ranks])
    inflated = inflation(values)
    means = np.array([times.mean() for times in values])
    variances = [max(times.var(ddof=1) * inflated / len(times), 1e-14) for times in values]
    if _welch(means, np.array(variances), np.array([len(times) / inflated for times in values])):
        return [ranks]
    order = np.argsort(means, kind="stable")
    clusters = [([ranks[i]], float(means[i]), float(variances[i])) for i in order]
    far = -float(ndtri(DIFFERENT / 2 / (len(ranks) - 1)))
    while len(clusters) > 1:
        gaps = [b[1] - a[1] for a, b in pairwise(clusters)]
        scores = [
            gap / math.sqrt(a[2] + b[2]) if gap >= RELEVANT else 0.0
            for gap, (a, b) in zip(gaps, pairwise(clusters), strict=True)
        ]
        nearest = int(np.argmin(scores))
        if scores[nearest] > far or (len(clusters) == 2 and gaps[0] >= RELEVANT):
            break
        (one, m1, v1), (two, m2, v2) = clusters[nearest : nearest + 2]
        weight = 1 / v1 + 1 / v2
        clusters[nearest : nearest + 2] = [(one + two, (m1 / v1 + m2 / v2) / weight, 1 / weight)]
    return [sorted(members) for members, _, _ in clusters]


def _welch(means: Array, variances: Array, sizes: Array) -> bool:
    """Return whether means with unequal variances may be equal."""
    from scipy.special import fdtrc  # noqa: PLC0415

    k, weights = len(means), 1 / variances
    center = np.average(means, weights=weights)
    loose = float(np.sum((1 - weights / weights.sum()) ** 2 / np.maximum(sizes - 1, 1)))
    between = float(weights @ (means - center) ** 2) / (k - 1)
    statistic = between / (1 + 2 * (k - 2) / (k * k - 1) * loose)
    return float(fdtrc(k - 1, (k * k - 1) / (3 * loose), statistic)) > DIFFERENT
