"""Tests of whether steps are independent draws of one law: correlation, lastingly slow workers.

Workers are compared by logarithms, so that a heavy tail does not mask differences.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from paceline.simulator.distributions.distribution import Array

Series = Sequence[Array]

LAGS = 1, 4, 16
CORRELATED = 3.4  # standard errors of the sum of so many autocorrelations: p = 0.001 in all
LEAST = 40  # fewest steps in which slow periods are sought
NEARLY = 0.002  # relative sd below which times count as constant
DIFFERENT = 0.01  # p-value below which workers differ
RELEVANT = 0.005  # relative difference below which workers count as alike


def logs(series: Series) -> list[Array]:
    """Return the logarithms of each worker's times, clipped at a thousandth of the mean."""
    floor = 1e-3 * float(np.mean(np.concatenate(series)))
    return [np.log(np.maximum(times, floor)) for times in series]


def autocorrelation(series: Series, lags: int) -> Array:
    """Return the pooled autocorrelation of deviations from each worker's mean, lags 1, 2, ..."""
    deviations = [
        worker_times - worker_times.mean() for worker_times in series if len(worker_times) > 1
    ]
    whole = sum(float(deviation @ deviation) for deviation in deviations)
    if whole == 0:
        return np.zeros(lags)
    return np.array(
        [sum(float(z[:-k] @ z[k:]) for z in deviations) / whole for k in range(1, lags + 1)]
    )


def inflation(series: Series) -> float:
    """Return how many times larger correlation makes the variance of a mean."""
    n = sum(map(len, series))
    found = autocorrelation(series, 50)
    enough = 2 / math.sqrt(n)
    first = int(np.argmax(found < enough)) if np.any(found < enough) else len(found)
    return 1 + 2 * float(found[:first].sum())


def correlated(series: Series) -> bool:
    """Whether slow steps follow slow steps more often than chance explains.

    Tested on ranks within each worker, which tails do not disturb, over few lags and many.
    """
    n = sum(map(len, series))
    if n < LEAST or max(float(each.std()) for each in logs(series) if len(each)) <= NEARLY:
        return False
    found = np.cumsum(autocorrelation([_ranks(worker_times) for worker_times in series], max(LAGS)))
    return any(found[lags - 1] > CORRELATED * math.sqrt(lags / n) for lags in LAGS)


def _ranks(times: Array) -> Array:
    """Return twice the ranks; ties share their mean rank."""
    ordered = np.sort(times)
    before = np.searchsorted(ordered, times, "left")
    return (before + np.searchsorted(ordered, times, "right")).astype(float)


def alike(series: Series) -> list[list[int]]:
    """Group workers by the mean logarithm of their times: only significant differences separate.

    Welch's test over all workers (1951), its variances inflated by the autocorrelation; then
    neighbours in the order of their means are merged until all differ. Workers with fewer than 5
    steps are in no group.
    """
    ranks = [rank for rank, times in enumerate(series) if len(times) >= 5]
    if len(ranks) < 2:
        return [ranks]
    values = logs([series[rank] for rank in ranks])
    inflated = inflation(values)
    means = np.array([item.mean() for item in values])
    variances = np.array([each.var(ddof=1) * inflated / len(each) for each in values])
    variances = np.maximum(variances, 1e-14)
    if _welch(means, variances, np.array([len(each) / inflated for each in values])) > DIFFERENT:
        return [ranks]
    return _merged(ranks, means, variances)


def _welch(means: Array, variances: Array, sizes: Array) -> float:
    """Return the p-value of equal means with unequal variances."""
    from scipy.special import fdtrc  # noqa: PLC0415

    k, weights = len(means), 1 / variances
    center = np.average(means, weights=weights)
    loose = float(np.sum((1 - weights / weights.sum()) ** 2 / np.maximum(sizes - 1, 1)))
    between = float(weights @ (means - center) ** 2) / (k - 1)
    statistic = between / (1 + 2 * (k - 2) / (k * k - 1) * loose)
    return float(fdtrc(k - 1, (k * k - 1) / (3 * loose), statistic))


def _merged(ranks: Sequence[int], means: Array, variances: Array) -> list[list[int]]:
    from scipy.special import ndtri  # noqa: PLC0415

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
        mean = (m1 / v1 + m2 / v2) / (1 / v1 + 1 / v2)
        clusters[nearest : nearest + 2] = [(one + two, mean, 1 / (1 / v1 + 1 / v2))]
    return [sorted(each) for each, _, _ in clusters]
