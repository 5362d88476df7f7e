"""Slow periods in the times of steps: how much slower, how long, how far apart."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.simulator.distributions.distribution import Array

from .independence import Series, logs

SLOWER = 1.15  # the least factor of a slow period that is distinguished from chance
PERIODS = 3  # fewest, to estimate how long they last
SEEN = 2  # steps above which a slow period is surely detected
ROUNDS = 30  # of EM
NARROWEST = 0.02  # sd of the logarithm of times in one state
NONE = (
    "slow steps follow slow steps more often than chance explains, but not in periods of one "
    "speed: perhaps a drift; treated as independent"
)
WINDOWS = 1, 3, 9, 27  # of moving averages, from which EM begins


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

    @property
    def table(self) -> dict[str, Any]:
        """Return [cluster.bursts]."""
        factor = float(f"{self.factor:.4g}")
        return {"factor": factor, "on": quantity(self.on), "off": quantity(self.off)}

    @property
    def note(self) -> str:
        """Describe the periods."""
        return (
            f"{self.count} slow periods: steps take {self.factor:.3g} times as long in them; "
            f"{quantity(self.on)} each, {quantity(self.off)} apart"
        )


def quantity(seconds: float) -> str:
    """Return a time with its unit."""
    return f"{seconds * 1e3:.6g} ms"


def find(series: Series, lasts: Series) -> SlowPeriods | None:
    """Find slow periods in correlated times; None if two speeds do not describe them.

    A hidden Markov chain of two states (Rabiner 1989): the logarithm of a time is the worker's own
    level, plus that of `factor` in the slow state, plus a normal deviation. `lasts`: seconds from
    the beginning of each step to that of the next.
    """
    levels = [times - np.median(times) for times in logs(series)]
    _, probable = max((_chain(levels, window) for window in WINDOWS), key=lambda pair: pair[0])
    slow = [p > 0.5 for p in probable]
    begun = [int(np.sum(state[1:] & ~state[:-1])) for state in slow]
    # no period begins or ends in a step whose neighbours share its state
    inside, fast = ([_inner(state == kind) for state in slow] for kind in (True, False))
    pairs = [
        (times[fast_steps].mean(), times[slow_steps].mean(), slow_steps.sum())
        for times, fast_steps, slow_steps in zip(series, fast, inside, strict=True)
        if fast_steps.any() and slow_steps.any()
    ]
    if sum(begun) < PERIODS or max(begun) < 2 or not pairs:
        return None
    usual, slower, weights = np.array(pairs).T
    factor = float(np.average(slower / usual, weights=weights))
    if factor < SLOWER:
        return None
    # of the time beyond the work of usual steps, so that a part of a step counts as one
    every, work = np.concatenate(series), float(np.average(usual, weights=weights))
    over = float(np.sum(np.concatenate([x[m] for x, m in zip(series, slow, strict=True)]) - work))
    share = min(max(over * factor / (factor - 1) / float(every.sum()), 1e-3), 0.999)
    on = _length(slow, lasts, SEEN * float(np.median(every)))
    return SlowPeriods(factor, on, on * (1 / share - 1), sum(begun), fast)


def _length(slow: Sequence[np.ndarray], lasts: Series, seen: float) -> float:
    """Return the mean duration of a slow period: what is left of those longer than `seen`.

    Shorter ones may be missed, which does no harm: durations are memoryless.
    """
    periods = np.concatenate([
        np.diff(np.append(0.0, np.cumsum(seconds))[np.flatnonzero(np.diff(np.pad(state, 1)))])[::2]
        for seconds, state in zip(lasts, slow, strict=True)
    ])  # fmt: skip
    long = periods[periods > seen]
    return float((long - seen if len(long) >= PERIODS else periods).mean())


def _inner(state: np.ndarray) -> np.ndarray:
    """Return steps whose neighbours share their state."""
    padded = np.pad(state, 1, constant_values=True)
    inner: np.ndarray = state & padded[:-2] & padded[2:]
    return inner


def _chain(levels: Series, window: int) -> tuple[float, list[Array]]:
    """Fit the chain by EM; return its log-likelihood, and each step's probability of slowness.

    Begins with a moving average over `window` steps, cut halfway between two means.
    """
    smooth = [
        np.convolve(np.pad(level, window // 2, "edge"), np.full(window, 1 / window), "valid")
        for level in levels
    ]
    every, values = np.concatenate(smooth), np.concatenate(levels)
    cut = 0.5 * float(every.min() + every.max())
    for _ in range(20):
        cut = 0.5 * float(every[every <= cut].mean() + every[every > cut].mean())
    slow = [np.clip((level > cut).astype(float), 0.02, 0.98) for level in smooth]
    leave, likely = np.array([0.05, 0.1]), -math.inf
    for _ in range(ROUNDS):
        weights = [1 - np.concatenate(slow), np.concatenate(slow)]
        means = [float(np.average(values, weights=p)) for p in weights]
        bases = [
            float(np.mean(level - means[0] - p * (means[1] - means[0])))
            for level, p in zip(levels, slow, strict=True)
        ]
        levelled = [level - base for level, base in zip(levels, bases, strict=True)]
        squares = [(np.concatenate(levelled) - mean) ** 2 for mean in means]
        sds = [
            max(float(np.average(square, weights=p)) ** 0.5, NARROWEST)
            for square, p in zip(squares, weights, strict=True)
        ]
        likely, counts, slow = 0.0, np.full((2, 2), 0.1), []
        for level in levelled:
            density = [
                -0.5 * ((level - mean) / sd) ** 2 - math.log(sd)
                for mean, sd in zip(means, sds, strict=True)
            ]
            p, total, moves = _smooth(np.array(density), leave)
            slow.append(p)
            likely += total
            counts += moves
        leave = np.clip(counts[[0, 1], [1, 0]] / counts.sum(axis=1), 1e-4, 0.9)
    return likely, slow


def _smooth(density: Array, leave: Array) -> tuple[Array, float, Array]:
    """Smooth one worker: P(slow), log-likelihood, expected moves from one state to another."""
    (up, down), total = leave.tolist(), float(density[0].sum())
    ahead, prior = [], 0.5  # P(slow | up to here)
    for ratio in np.exp(np.clip(density[1] - density[0], -500, 500)).tolist():
        norm = 1 - prior + prior * ratio
        total += math.log(norm)
        ahead.append(prior * ratio / norm)
        prior = ahead[-1] * (1 - down) + (1 - ahead[-1]) * up
    p, begun, ended, stayed = [ahead[-1]], 0.0, 0.0, 0.0  # P(slow | everything), from the end
    for q in reversed(ahead[:-1]):
        prior = q * (1 - down) + (1 - q) * up
        both, end = q * (1 - down) / prior * p[-1], q * down / (1 - prior) * (1 - p[-1])
        begun, ended, stayed = begun + (1 - q) * up / prior * p[-1], ended + end, stayed + both
        p.append(both + end)
    moves = np.array([[len(p) - 1 - begun - ended - stayed, begun], [ended, stayed]])
    return np.array(p[::-1]), total, moves
