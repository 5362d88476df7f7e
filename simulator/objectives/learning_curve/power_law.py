"""Fit loss = floor + scale (tokens + shift)^-exponent to a log, of which a part may not follow it.

A log begins with a warm-up, and may end with a decay of the learning rate or a rise. The law holds
between the points that an information criterion chooses: an independent point that is left out
costs as much as one that is missed by 1.4 standard deviations (Jay & Neil, Phys. Rev. D 103,
114502, 2021). The noise is that of means over the log, so that its correlation counts. Draws come
from importance sampling, repeated around the draws before (Cappé et al., J. Comput. Graph. Stat.
13, 2004).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray

DRAWS, ROUNDS, SEED = 200, 20, 0
MANY = 2000  # candidates for the draws
BINS, FINE = 120, 4000  # medians of neighbouring points for the law, and means for the noise
EXPONENT, SPREAD = 0.4, 0.8  # median, and standard deviation of its logarithm, beforehand
LOW = np.array([math.log(0.03), math.log(0.05), 0.0, -0.5])
HIGH = np.array([math.log(3.0), math.log(1e3), 1.0, 0.5])
"""Bounds of a candidate: logarithms of its exponent, and of shift + first token over the first; the
floor over the least loss; the warm-up's share of the tokens, none if negative."""
STARTS = ((-0.9, 0.0, 0.5, 0.0), (-1.9, 0.0, 0.3, 0.0), (-0.9, 1.0, 0.7, 0.2))
LARGE = 0.02  # relative error, from which a point counts less in the search of the best law
BEGINS, ENDS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5), (1.0, 0.95, 0.9, 0.8, 0.7)
"""Shares of the points, at which the law may begin and end."""
LEFT_OUT, CLEARLY = 2.0, 10.0  # cost of an independent point left out; least gain by doing so
EXACT = 0.002  # relative error, which a law may have that is kept
EFFECTIVE = 20  # candidates for each that counts, at most: else the next round is wider
HEAVY = 5  # degrees of freedom of the draws around the draws before
OUTLIER = 5.0  # median absolute errors, as standard deviations, beyond which a point is none
LEAST = 1e-3  # least share of the log at which its first token is taken to be
FEWEST = 6  # points of a law
INFLATED = 2.5  # noise, of which a fit takes a part; synthetic logs show by how much


@dataclass(frozen=True, eq=False)
class Fitted:
    """Draws of a law, rows of (floor, scale, exponent, shift); the first is typical.

    `begin`, `end`: shares of the points between which it holds; `noise`: variance of a mean of
    losses over the law's, times the number of points in it; `independent`: points that are as good
    as independent, of each; `squares`: of the best law's errors, relative, each point counted.
    """

    rows: Array
    noise: float
    independent: float
    squares: float
    warmup: Array
    begin: float = 0.0
    end: float = 1.0

    def off(self, tokens: Array, loss: Array) -> tuple[float, float]:
        """Return by how much points miss the law, relatively, and in standard deviations."""
        floor, scale, exponent, shift = self.rows[1:].T[:, :, None]
        laws = floor + scale * np.maximum(tokens + shift, 1e-9) ** -exponent
        missed = np.median(loss / laws - 1, axis=1)
        middle = float(np.median(missed))
        # the median of few points varies as one of them
        noise = 1.5 * self.noise / max(len(tokens), 3)
        return middle, middle / math.sqrt(float(np.var(missed)) + noise)


def fit(
    tokens: Array, loss: Array, *, whole: bool = False, window: tuple[float, float] | None = None
) -> Fitted:
    """Fit a law to losses in order of tokens, to the part of them that follows it.

    `whole`: the law holds from the first point on, without a warm-up; `window`: where it begins and
    ends, as shares of the points.
    """
    count = len(tokens)

    def part(begin: float, end: float, *, draw: bool = False) -> Fitted:
        inside = slice(round(begin * count), round(end * count))
        fitted = _sample(tokens[inside], loss[inside], not whole, draw=draw)
        return replace(fitted, begin=begin, end=end)

    def chosen(windows: Sequence[tuple[float, float]]) -> tuple[float, float]:
        """Return the best window; the first one unless another is clearly better."""
        windows = [(a, b) for a, b in windows if round(b * count) - round(a * count) >= FEWEST]
        parts = [part(*window) for window in windows]
        clear = min(parts, key=lambda fitted: fitted.noise)
        noise, lost = max(clear.noise, EXACT**2), LEFT_OUT * clear.independent * count
        costs = [one.squares / noise - lost * (one.end - one.begin) for one in parts]
        best = int(np.argmin(costs))
        return windows[best if costs[best] < costs[0] - CLEARLY else 0]

    if window:
        return part(*window, draw=True)
    end = chosen([(0.0 if whole else 0.25, end) for end in ENDS])[1]
    begin = 0.0 if whole else chosen([(begin, end) for begin in BEGINS])[0]
    return part(begin, end, draw=True)


def _ahead(u: Any, first: float, warmup: Any) -> Any:
    """Return how far a run is beyond its first point, whose rate has grown over its warm-up."""

    def done(u: Any) -> Any:
        small = np.minimum(u, warmup)
        return u - small + small**2 / np.maximum(2 * warmup, 1e-12)

    return done(u) - done(first)


class _Laws(NamedTuple):
    """Candidates' laws: exponent, reach and floor, warm-up, scale and its weight, and misses."""

    exponent: Array
    reach: Array
    floor: Array
    warmup: Array
    scale: Array
    norm: Array
    missed: Array


def _laws(theta: Array, bins: tuple[Array, Array, Array], kept: Array | float = 1.0) -> _Laws:
    """Return the laws of candidates: the scale of each follows by least squares."""
    u, y, count = bins
    exponent, reach = np.exp(theta[:, 0]), np.exp(theta[:, 1]) * max(u[0], LEAST)
    floor, warmup = theta[:, 2] * y.min(), np.maximum(theta[:, 3], 0.0)
    x = (_ahead(u, u[0], warmup[:, None]) / reach[:, None] + 1) ** -exponent[:, None]
    weight, above = kept * count / y**2, y - floor[:, None]
    norm = (x * x) @ weight
    scale = np.maximum((x * above) @ weight / norm, 0.0)
    missed = (above - scale[:, None] * x) / y
    return _Laws(exponent, reach, floor, warmup, scale, norm, missed)


def _best(bins: tuple[Array, Array, Array], warms: bool) -> tuple[Array, Array, float]:
    """Return the best law, the points that are no outliers of it, and its squared errors."""
    from scipy.optimize import least_squares  # noqa: PLC0415 - takes 0.2 s

    root, kept = np.sqrt(bins[2]), np.ones(len(bins[0]))

    def errors(theta: Array) -> Array:
        inside = np.clip(theta, LOW, HIGH) * [1, 1, 1, warms]
        missed = _laws(inside[None], bins, kept).missed[0]
        huber = np.sqrt(2 * (np.sqrt(1 + (missed / LARGE) ** 2) - 1)) * LARGE
        outside = theta - np.clip(theta, LOW, HIGH)
        return np.append(kept * root * huber * np.sign(missed), outside)

    starts = [start for start in STARTS if warms or not start[3]]
    solved = [least_squares(errors, start, max_nfev=30) for start in starts]
    theta = min(solved, key=lambda one: float(one.cost)).x
    for _ in range(2):
        off = np.abs(_laws(np.clip(theta, LOW, HIGH)[None], bins, kept).missed[0])
        limit = max(OUTLIER * 1.4826 * float(np.median(off)), 1e-9)
        kept = np.where(off > limit, 0.0, 1.0)
        theta = least_squares(errors, theta, max_nfev=30).x
    theta = np.clip(theta, LOW, HIGH) * [1, 1, 1, warms]
    off = np.minimum(np.abs(_laws(theta[None], bins, kept).missed[0]), limit)
    return theta, kept, float(off**2 @ bins[2])


def _sample(tokens: Array, loss: Array, warms: bool, *, draw: bool) -> Fitted:
    """Fit the best law and, if `draw`, draw laws by how well they fit, in several rounds."""
    rng, top = np.random.default_rng(SEED), float(tokens[-1])
    bins = _binned(tokens / top, loss)
    first = float(bins[0][0])
    best, kept, least = _best(bins, warms)
    law = _laws(best[None], bins, kept)
    x = _ahead(tokens / top, first, law.warmup) / law.reach + 1
    noise, independent = _noise(loss / (law.floor + law.scale * x**-law.exponent) - 1)
    free = np.array([1.0, 1.0, 1.0, warms])
    theta, proposed = rng.uniform(LOW, HIGH, (MANY, 4)) * free, np.zeros(MANY)
    theta[0], share = best, np.eye(1, MANY)[0]
    for number in range(ROUNDS if draw else 1):
        law = _laws(theta, bins, kept)
        squares = law.missed**2 @ (kept * bins[2])
        good = ((theta >= LOW) & (theta <= HIGH)).all(axis=1) & np.isfinite(squares)
        prior = ((theta[:, 0] - math.log(EXPONENT)) / SPREAD) ** 2
        logs = -((squares - squares[good].min()) / noise + prior) / 2 - proposed
        share, tempered = _shares(np.where(good, logs, -np.inf))
        if number == ROUNDS - 1 or (number > 3 and not tempered) or not draw:
            break
        theta, proposed = _around(theta, share, rng)
        theta *= free
    scale = law.scale + rng.standard_normal(MANY) * np.sqrt(noise / law.norm)
    scale = np.maximum(scale, 1e-12) * (top * law.reach) ** law.exponent
    shift = law.reach + _ahead(1.0, first, law.warmup) - 1
    rows = np.stack([law.floor, scale, law.exponent, top * shift, top * law.warmup], axis=1)
    places = (np.arange(DRAWS) + rng.uniform()) / DRAWS
    rows = rows[np.minimum(np.searchsorted(np.cumsum(share), places), MANY - 1)]
    return Fitted(_typical(rows[:, :4], top), noise, independent / len(tokens), least, rows[:, 4])


def _around(theta: Array, share: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw candidates around those that fit, with a heavier tail, and logs of their density."""
    mean = share @ theta
    apart = theta - mean
    root = np.linalg.cholesky(1.4 * apart.T @ (apart * share[:, None]) + 1e-14 * np.eye(4))
    away = rng.standard_normal(theta.shape)
    away /= np.sqrt(rng.chisquare(HEAVY, (len(theta), 1)) / HEAVY)
    density = -(HEAVY + 4) / 2 * np.log1p(np.square(away).sum(axis=1) / HEAVY)
    return mean + away @ root.T, density


def _typical(rows: Array, top: float) -> Array:
    """Return the rows, and before them the one whose losses are nearest to the medians ahead."""
    ahead = top * np.array([1.0, 3.0, 10.0])
    losses = np.log(rows[:, :1] + rows[:, 1:2] * (ahead + rows[:, 3:]) ** -rows[:, 2:3])
    off = np.abs(losses - np.median(losses, axis=0)).sum(axis=1)
    return np.vstack([rows[off.argmin()], rows])


def _shares(logs: Array) -> tuple[Array, bool]:
    """Return each candidate's share, and whether they were tempered so that enough count."""
    logs = logs - logs.max()
    low, high, enough = 0.0, 2.0, len(logs) / EFFECTIVE
    for _ in range(30):
        power = min((low + high) / 2, 1.0)
        weights = np.exp(power * logs)
        counting = weights.sum() ** 2 / np.square(weights).sum()
        if counting >= enough and power == 1.0:
            break
        low, high = (power, high) if counting >= enough else (low, power)
    return weights / weights.sum(), power < 1.0


def _binned(u: Array, loss: Array) -> tuple[Array, Array, Array]:
    """Join neighbouring points of a long log, ever more: mean tokens, median loss, and count."""
    place = np.arange(len(u))
    if len(u) > BINS:
        spaced = np.log1p(place * BINS / len(u))
        place = np.unique((spaced / spaced[-1] * BINS).astype(int), return_inverse=True)[1]
    count = np.bincount(place)
    middle = np.array([np.median(part) for part in np.split(loss, np.cumsum(count)[:-1])])
    return np.bincount(place, u) / count, middle, count.astype(float)


def _noise(residuals: Array) -> tuple[float, float]:
    """Return the variance of a mean of residuals times their number, and how many are independent.

    It counts the numbers that were fitted. The correlation is summed over a window three times its
    own sum (Sokal 1989).
    """
    joined = -(-len(residuals) // FINE)
    parts = np.array_split(residuals, len(residuals) // joined)
    means = np.array([part.mean() for part in parts]) * math.sqrt(joined)
    usual = 4 * 1.4826 * float(np.median(np.abs(means)))
    means, count = np.clip(means, -usual, usual), len(parts)
    power = np.abs(np.fft.rfft(means, 2 * count)) ** 2
    correlation = np.fft.irfft(power)[:count] / count
    if not correlation[0] > 0:
        return 1e-14, float(count)
    times = 1.0
    for lag in range(1, count // 3):
        times += 2 * correlation[lag] / correlation[0]
        if lag >= 3 * max(times, 1.0):
            break
    times = max(times, 1.0)
    independent = count / times
    fitted = INFLATED * (1 + 4 / max(independent, 4.0))
    return max(float(correlation[0]) * times * fitted, 1e-14), independent
