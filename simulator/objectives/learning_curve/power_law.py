"""Fit loss = floor + scale (tokens + shift)^-exponent to a part of a log.

A log begins with a warm-up, and may end with a decay of the learning rate or a rise. An information
criterion weighs the points between which the law may hold: excluding an independent point costs as
much as an error of 1.4 standard deviations (Jay & Neil, Phys. Rev. D 103, 114502, 2021). Laws of
each likely beginning are drawn as often as it weighs. The noise is estimated from means over parts
of the log, so its correlation counts. Laws are drawn from their posterior by an ensemble of walkers
(Goodman & Weare, CAMCoS 5, 65, 2010).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray
Bins = tuple[Array, Array, Array]
"""Bins of neighbouring points: tokens over the last point's, median loss, number of points."""

DRAWS, MOVES, SEED = 200, 150, 0
BINS = 120
EXPONENT, SPREAD = 0.4, 0.8  # prior median, and standard deviation of the logarithm
LOW = np.array([math.log(0.03), math.log(0.05), 0.0, -0.5])
HIGH = np.array([math.log(3.0), math.log(1e3), 1.0, 0.5])
"""Bounds of a law: log of the exponent; log of (shift + first token) over the first token; floor
over the least loss; the warm-up's share of the tokens (negative: no warm-up)."""
STARTS = ((-0.9, 0.0, 0.5, -0.1), (-1.9, 0.0, 0.3, -0.1), (-0.9, 1.0, 0.7, 0.2))
LARGE = 0.02  # relative error above which a point counts less in the search for the best law
BEGINS, ENDS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5), (1.0, 0.95, 0.9, 0.8, 0.7)
"""Shares of the points at which the law may begin and end."""
LEFT_OUT, CLEARLY = 2.0, 10.0  # cost of an excluded independent point; least gain of an exclusion
EXACT = 0.002  # tolerated relative error of a law
OUTLIER = 5.0  # standard deviations of an outlier
LEAST = 1e-3  # least position of the first token, as a share of the log
LIKELY = 0.05  # least weight of a part from which laws are drawn, of the best one's
FEW, FEWEST = 40, 6  # points of a short log, and of a law
INFLATED = 3.0  # factor for noise that a fit absorbs, from synthetic logs


@dataclass(frozen=True, eq=False)
class Fitted:
    """Draws of a law, rows of (floor, scale, exponent, shift); the first is typical.

    `begin`, `end`: range of points in which the law holds; `noise`: variance of a mean of relative
    errors times the number of its points; `independent`: share of effectively independent points;
    `squares`: sum of the best law's squared relative errors; `warmup`: draws of the tokens over
    which the learning rate rose.
    """

    rows: Array
    warmup: Array
    noise: float
    independent: float
    squares: float
    begin: int = 0
    end: int = 0

    def off(self, tokens: Array, loss: Array) -> tuple[float, float]:
        """Return the points' median departure, relative and in standard deviations."""
        missed = np.median(loss / losses(self.rows[1:], tokens) - 1, axis=1)
        middle = float(np.median(missed))
        # The median of few points varies as much as a single point.
        noise = 1.5 * self.noise / max(len(tokens), 3)
        return middle, middle / math.sqrt(float(np.var(missed)) + noise)


def losses(rows: Array, tokens: Array) -> Array:
    """Return the losses of laws after `tokens`, shape (laws, tokens)."""
    floor, scale, exponent, shift = rows.T[:, :, None]
    result: Array = floor + scale * np.maximum(tokens + shift, 1e-9) ** -exponent
    return result


def fit(tokens: Array, loss: Array, *, whole: bool = False, window: Sequence[int] = ()) -> Fitted:
    """Fit a law to the part of a log that follows it; losses are in order of tokens.

    `whole`: whether the law holds from the first point on, without a warm-up; `window`: range of
    points in which it holds, chosen if empty.
    """
    count = len(tokens)

    def part(begin: int, end: int, *, draw: bool = False) -> Fitted:
        inside = slice(begin, end)
        fitted = _fit(tokens[inside], loss[inside], not whole, draw=draw)
        return replace(fitted, begin=begin, end=end)

    def weighed(begins: Sequence[float], ends: Sequence[float]) -> dict[tuple[int, int], float]:
        """Return the weights of parts of the log, 1 for the best; the first is preferred."""
        windows = [(round(a * count), round(b * count)) for a in begins for b in ends]
        parts = {one: part(*one) for one in dict.fromkeys(windows) if one[1] - one[0] >= FEWEST}
        clear = min(parts.values(), key=lambda law: law.noise)
        noise, price = max(clear.noise, EXACT**2), LEFT_OUT * clear.independent
        costs = np.array(
            [law.squares / noise - price * (law.end - law.begin) for law in parts.values()]
        )
        costs[1:] += CLEARLY
        return dict(zip(parts, np.exp((costs.min() - costs) / 2).tolist(), strict=True))

    if window:
        return part(*window, draw=True)
    ends = weighed((0.0 if whole or count < FEW else 0.25,), ENDS)
    _, end = max(ends, key=ends.__getitem__)
    begins = weighed((0.0,) if whole else BEGINS, (end / count,))
    likely = {one: weight for one, weight in begins.items() if weight >= LIKELY}
    laws = {one: part(*one, draw=True) for one in likely}
    weights = np.array([*likely.values()])
    chosen = np.random.default_rng(SEED).choice(len(laws), DRAWS, p=weights / weights.sum())
    places = chosen, np.arange(DRAWS)
    rows = np.stack([law.rows[1:] for law in laws.values()])[places]
    warmup = np.stack([np.broadcast_to(law.warmup, DRAWS) for law in laws.values()])[places]
    best = laws[max(likely, key=likely.__getitem__)]
    return replace(best, rows=_typical(rows, float(tokens[-1])), warmup=warmup)


def _ahead(u: Any, first: float, warmup: Any) -> Any:
    """Return progress since the first point, which is slower during the warm-up."""

    def done(u: Any) -> Any:
        small = np.minimum(u, warmup)
        return u - small + small**2 / np.maximum(2 * warmup, 1e-12)

    return done(u) - done(first)


def _laws(theta: Array, bins: Bins, inlier: Array) -> tuple[Array, Array, Array]:
    """Return candidate laws (shifts from the first point; warm-ups), precisions and errors."""
    u, y, count = bins
    exponent, reach = np.exp(theta[:, 0]), np.exp(theta[:, 1]) * max(u[0], LEAST)
    floor, warmup = theta[:, 2] * y.min(), np.maximum(theta[:, 3], 0.0)
    x = (_ahead(u, u[0], warmup[:, None]) / reach[:, None] + 1) ** -exponent[:, None]
    weight, above = inlier * count / y**2, y - floor[:, None]
    norm = (x * x) @ weight
    scale = np.maximum((x * above) @ weight / norm, 0.0)
    missed = (above - scale[:, None] * x) / y
    return np.stack([floor, scale, exponent, reach, warmup], axis=1), norm, missed


def _fit(tokens: Array, loss: Array, warms: bool, *, draw: bool) -> Fitted:
    """Fit the best law without outliers; if `draw`, draw laws around it."""
    from scipy.optimize import least_squares  # noqa: PLC0415 - takes 0.2 s

    top, high = float(tokens[-1]), np.where(warms, HIGH, HIGH * [1, 1, 1, 0])
    u, bins = tokens / top, _binned(tokens / top, loss)
    root, inlier = np.sqrt(bins[2]), np.ones(len(bins[0]))

    def errors(theta: Array, inlier: Array = inlier) -> Array:
        misses: Array = inlier * root * _laws(theta[None], bins, inlier)[2][0]
        return misses

    def solve(start: Array, *inlier: Array) -> Any:
        options: Any = {"loss": "soft_l1", "f_scale": LARGE, "max_nfev": 30, "args": inlier}
        return least_squares(errors, start, bounds=(LOW, high), **options)

    starts = (np.minimum(start, high) for start in STARTS)
    solved = min(map(solve, starts), key=lambda one: float(one.cost))
    for _ in range(2):
        off = np.abs(errors(solved.x))
        limit = max(OUTLIER * 1.4826 * float(np.median(off)), 1e-9)
        inlier = np.where(off > limit, 0.0, 1.0)
        solved = solve(solved.x, inlier)
    rows, _, missed = _laws(solved.x[None], bins, inlier)
    floor, scale, exponent, reach, warmup = rows[0]
    x = _ahead(u, bins[0][0], warmup) / reach + 1
    noise, independent = _noise(loss / (floor + scale * x**-exponent) - 1)
    squares = float(np.square(np.minimum(np.abs(root * missed[0]), limit)).sum())
    if not draw:
        return Fitted(rows, warmup, noise, independent, squares)

    def log_density(theta: Array) -> Array:
        inside = ((theta >= LOW) & (theta <= high)).all(axis=1)
        missed = _laws(np.clip(theta, LOW, high), bins, inlier)[2]
        prior = ((theta[:, 0] - math.log(EXPONENT)) / SPREAD) ** 2
        return np.where(inside, -(missed**2 @ (inlier * bins[2]) / noise + prior) / 2, -np.inf)

    rng = np.random.default_rng(SEED)
    slopes = np.vstack([solved.jac / math.sqrt(noise), np.diag(4 / (HIGH - LOW))])
    away = np.linalg.solve(np.linalg.cholesky(slopes.T @ slopes).T, rng.standard_normal((4, DRAWS)))
    theta = _walked(log_density, np.clip(solved.x + away.T, LOW, high), rng)
    rows, norm, _ = _laws(theta, bins, inlier)
    floor, scale, exponent, reach, warmup = rows.T
    scale = np.maximum(scale + rng.standard_normal(DRAWS) * np.sqrt(noise / norm), 1e-12)
    shift = reach + _ahead(np.ones(DRAWS), bins[0][0], warmup) - 1
    rows = np.stack([floor, scale * (top * reach) ** exponent, exponent, top * shift], axis=1)
    return Fitted(_typical(rows, top), top * warmup, noise, independent, squares)


def _walked(density: Callable[[Array], Array], walkers: Array, rng: np.random.Generator) -> Array:
    """Move walkers by stretch moves until they sample a density, given by its log."""
    half, logs = len(walkers) // 2, density(walkers)
    for turn in range(2 * MOVES):
        moved, others = np.roll(np.arange(len(walkers)).reshape(2, half), turn, axis=0)
        stretch = (rng.uniform(size=half) + 1) ** 2 / 2
        partners = walkers[rng.permutation(others)]
        new = partners + stretch[:, None] * (walkers[moved] - partners)
        log = density(new)
        gain = (walkers.shape[1] - 1) * np.log(stretch) + log - logs[moved]
        taken = moved[(gain > np.log(rng.uniform(size=half))) & np.isfinite(log)]
        new, log = new[taken - moved[0]], log[taken - moved[0]]
        walkers[taken], logs[taken] = new, log
    return walkers


def _typical(rows: Array, top: float) -> Array:
    """Return the rows, preceded by the one with future losses closest to the medians."""
    ahead = np.log(losses(rows, top * np.array([1.0, 3.0, 10.0])))
    off = np.abs(ahead - np.median(ahead, axis=0)).sum(axis=1)
    return np.vstack([rows[off.argmin()], rows])


def _binned(u: Array, loss: Array) -> Bins:
    """Join neighbouring points of a long log, in bins of growing size."""
    place = np.arange(len(u))
    if len(u) > BINS:
        spaced = np.log1p(place * BINS / len(u))
        place = np.unique((spaced / spaced[-1] * BINS).astype(int), return_inverse=True)[1]
    count = np.bincount(place)
    middle = np.array([np.median(part) for part in np.split(loss, np.cumsum(count)[:-1])])
    return np.bincount(place, u) / count, middle, count.astype(float)


def _noise(errors: Array) -> tuple[float, float]:
    """Return a mean error's variance times its number, and the independent share."""
    # Errors are correlated if means over sqrt(n) parts vary more than independent errors would.
    usual = 4 * 1.4826 * float(np.median(np.abs(errors)))
    errors, count = np.clip(errors, -usual, usual), len(errors)
    parts = np.array_split(errors, math.ceil(math.sqrt(count)))
    alone = max(float(np.mean(errors**2)), 1e-14)
    together = float(np.mean([part.sum() ** 2 / len(part) for part in parts]))
    times = max(together / alone, 1.0)
    return alone * times * INFLATED * (1 + 4 * times / count), 1 / times
