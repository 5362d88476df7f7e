"""Slow periods in the times of steps: how much slower, how long, how far apart."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.simulator.distributions.distribution import Array

from .independence import NEARLY, Series, logs

SLOWER = 1.15  # the least factor of a slow period that is distinguished from chance
PERIODS = 3  # fewest, to estimate how long they last
SEEN = 2  # steps above which a slow period is surely detected
MOST = 0.9
ROUNDS = 40  # of EM
STRAY = 0.01  # share of outliers: times within which a slow period begins or ends


@dataclass(frozen=True)
class SlowPeriods:
    """Slow periods: `factor`, mean durations `on` and `off` (seconds), `count` of beginnings.

    `fast`: per worker, a mask of its steps wholly outside slow periods.
    """

    factor: float
    on: float
    off: float
    count: int
    fast: list[np.ndarray]


def find(series: Series, lasts: Series) -> SlowPeriods | None:
    """Find slow periods in correlated times; None if two speeds do not describe them.

    A hidden Markov chain of two states (Rabiner 1989): the logarithm of a time is the worker's own
    level, plus log `factor` in the slow state, plus a deviation whose law is estimated, too.
    `lasts`: seconds from the beginning of each step to that of the next.
    """
    begun_from = (_Chain(series, window) for window in (1, 3, 9, 27))
    found = max(begun_from, key=lambda each: (each.shift > math.log(SLOWER), each.likely))
    for _ in range(ROUNDS):
        found.improve(lambda values, weights: _quantiles(values, weights, [0.5])[0])
    slow = [p > 0.5 for p in found.slow]
    begun = [int(np.sum(each[1:] & ~each[:-1])) for each in slow]
    factor = _factor(series, slow)
    if factor < SLOWER or sum(begun) < PERIODS or max(begun) < 2:
        return None
    fast = [_steady(times, _inner(~each)) for times, each in zip(series, slow, strict=True)]
    if not any(each.any() for each in fast):
        return None
    on = _length(series, lasts, slow)
    share = _share(series, fast, factor)
    return SlowPeriods(factor, on, on * (1 / share - 1), sum(begun), fast)


def _length(series: Series, lasts: Series, slow: Sequence[np.ndarray]) -> float:
    """Return the mean duration of a slow period: of those longer than some steps, the rest.

    Shorter ones may be missed, which does no harm: durations are memoryless.
    """
    found = []
    for seconds, each in zip(lasts, slow, strict=True):
        edges = np.flatnonzero(np.diff(np.pad(each.astype(int), 1)))
        whole = np.append(0.0, np.cumsum(seconds))
        found += (whole[edges[1::2]] - whole[edges[::2]]).tolist()
    seen = SEEN * float(np.median(np.concatenate(series)))
    long = [each - seen for each in found if each > seen]
    return float(np.mean(long if len(long) >= PERIODS else found))


def _share(series: Series, fast: Sequence[np.ndarray], factor: float) -> float:
    """Return the share of time in slow periods, from what steps take beyond their work.

    So a period that ends within a step counts by its share of that step.
    """
    usual = float(np.concatenate([x[each] for x, each in zip(series, fast, strict=True)]).mean())
    over = 0.0
    for times, each in zip(series, fast, strict=True):
        own = float(times[each].mean()) if each.any() else usual
        over += float(np.sum(times[~each] - own))
    share = over * factor / (factor - 1) / float(np.concatenate(series).sum())
    return min(max(share, 1e-3), 0.999)


def _inner(state: np.ndarray) -> np.ndarray:
    """Return steps whose neighbours share their state: no period begins or ends in them."""
    padded = np.pad(state, 1, constant_values=True)
    inner: np.ndarray = state & padded[:-2] & padded[2:]
    return inner


def _steady(times: Array, fast: np.ndarray) -> np.ndarray:
    """If nearly all steps take the same time, keep only those: others contain a slow period."""
    if not fast.any():
        return fast
    usual = float(np.median(times[fast]))
    alike: np.ndarray = fast & (np.abs(times - usual) <= NEARLY * usual)
    return alike if alike.sum() >= MOST * fast.sum() else fast


def _factor(series: Series, slow: Sequence[np.ndarray]) -> float:
    """Return how many times as long slow steps take, over workers that have both kinds."""
    ratios, weights = [], []
    for times, each in zip(series, slow, strict=True):
        inside, outside = times[_inner(each)], times[_inner(~each)]
        if len(inside) and len(outside):
            ratios.append(float(inside.mean() / outside.mean()))
            weights.append(len(inside) * len(outside) / len(times))
    return float(np.average(ratios, weights=weights)) if ratios else 1.0


class _Chain:
    """The hidden chain, by EM. `slow`: each step's probability of the slow state."""

    def __init__(self, series: Series, window: int) -> None:
        """Begin with a moving average over `window` steps, cut halfway between two means."""
        self._logs = logs(series)
        smooth = [
            np.convolve(
                np.pad(log - np.median(log), window // 2, "edge"),
                np.full(window, 1 / window),
                "valid",
            )
            for log in self._logs
        ]
        every = np.concatenate(smooth)
        cut = 0.5 * float(every.min() + every.max())
        for _ in range(20):
            cut = 0.5 * float(every[every <= cut].mean() + every[every > cut].mean())
        self.slow = [np.clip((each > cut).astype(float), 0.02, 0.98) for each in smooth]
        self._leave = [0.05, 0.1]
        self._first = 0.5
        self.likely, self.shift = -math.inf, 0.0
        for _ in range(8):
            # the median could jump to 0 while states are rough
            self.improve(lambda values, weights: float(np.average(values, weights=weights)))

    def improve(self, center: Callable[[Array, Array], float]) -> None:
        """Do one round of EM; `center`: the location of weighted values, compared by state."""
        shift = self._apart(self._logs, center)
        for _ in range(2):
            bases = [
                float(np.median(log - p * shift))
                for log, p in zip(self._logs, self.slow, strict=True)
            ]
            own = [log - base for log, base in zip(self._logs, bases, strict=True)]
            shift = max(self._apart(own, center), 0.001)
        self.shift = shift
        every, p = np.concatenate(own), np.concatenate(self.slow)
        law = _density(np.concatenate([every, every - shift]), np.concatenate([1 - p, p]))
        self._pass([law(each) for each in own], [law(each - shift) for each in own])

    def _apart(self, values: Series, center: Callable[[Array, Array], float]) -> float:
        every, p = np.concatenate(values), np.clip(np.concatenate(self.slow), 1e-9, 1 - 1e-9)
        return center(every, p) - center(every, 1 - p)

    def _pass(self, usual: Series, slower: Series) -> None:
        """Run forward-backward (E step), then update the transition probabilities."""
        likely, moves, stays, first = 0.0, [0.0, 0.0], [0.0, 0.0], []
        for index, (fast, slow) in enumerate(zip(usual, slower, strict=True)):
            p, total, gone, stayed = _smooth(fast, slow, self._leave, self._first)
            self.slow[index] = p
            first.append(p[0])
            likely += total
            for state in (0, 1):
                moves[state] += gone[state]
                stays[state] += stayed[state]
        self._leave = [
            min(max((move + 0.1) / (move + stay + 0.2), 1e-4), 0.9)
            for move, stay in zip(moves, stays, strict=True)
        ]
        self._first = min(max(float(np.mean(first)), 0.02), 0.98)
        self.likely = likely


def _density(values: Array, weights: Array) -> Callable[[Array], Array]:
    """Return a log density: a kernel estimate of weighted values on a grid."""
    low, high = float(values.min()), float(values.max())
    total = float(weights.sum())
    center = float(values @ weights) / total
    spread = math.sqrt(float(weights @ (values - center) ** 2) / total)
    first, third = _quantiles(values, weights, [0.25, 0.75])
    narrow = min(spread, (third - first) / 1.34)
    width = max(0.9 * narrow * total**-0.2, 0.003)  # Silverman (1986), (3.31)
    edges = np.arange(low - 4 * width, high + 5 * width, 0.5 * width)
    counts, _ = np.histogram(values, edges, weights=weights)
    kernel = np.exp(-0.5 * (np.arange(-8, 9) / 2) ** 2)
    smooth = np.convolve(counts, kernel / kernel.sum(), "same") / (0.5 * width * total)
    found = np.log((1 - STRAY) * smooth + STRAY / (high - low + width))
    centers = 0.5 * (edges[1:] + edges[:-1])
    return lambda at: np.interp(at, centers, found)


def _quantiles(values: Array, weights: Array, at: Sequence[float]) -> list[float]:
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    found: list[float] = values[order][np.searchsorted(below, np.array(at) * below[-1])].tolist()
    return found


def _smooth(
    usual: Array, slower: Array, leave: Sequence[float], first: float
) -> tuple[Array, float, list[float], list[float]]:
    """Smooth one worker: P(slow), log-likelihood, each state's expected moves and stays."""
    top = np.maximum(usual, slower)
    a, b = np.exp(usual - top).tolist(), np.exp(slower - top).tolist()
    up, down = leave
    ahead, norms, prior = [], [], first  # P(slow | up to here)
    for x, y in zip(a, b, strict=True):
        joint = prior * y
        norm = joint + (1 - prior) * x
        q = joint / norm
        ahead.append(q)
        norms.append(norm)
        prior = q * (1 - down) + (1 - q) * up
    p = [ahead[-1]]  # P(slow | everything), from the end
    moves, stays = [0.0, 0.0], [0.0, 0.0]
    for q in reversed(ahead[:-1]):
        following = p[-1]
        prior = q * (1 - down) + (1 - q) * up
        both = q * (1 - down) / prior * following
        begun = (1 - q) * up / prior * following
        ended = q * down / (1 - prior) * (1 - following)
        stays[1] += both
        moves[0] += begun
        moves[1] += ended
        stays[0] += 1 - both - begun - ended
        p.append(both + ended)
    total = float(top.sum()) + float(np.log(norms).sum())
    return np.array(p[::-1]), total, moves, stays
