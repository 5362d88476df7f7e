"""Slow periods in the times of steps: how much slower, how long, how far apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .independence import Series, logs

CLEAR = 0.77  # share of the variance that two speeds must explain: of an even drift, 0.75
SLOWER = 1.15  # the least factor of a slow period that is distinguished from chance
PERIODS = 3  # fewest, to estimate how long they last
WINDOWS = 1, 3, 5, 9  # of moving averages, in steps
NONE = (
    "slow steps follow slow steps more often than chance explains, but not in clear periods of one "
    "speed: perhaps a drift; treated as independent"
)


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
    """Find slow periods in correlated times; None if two speeds do not clearly describe them.

    Moving averages of the logarithms of times, relative to each worker's median, are cut halfway
    between two means. `lasts`: seconds from the beginning of each step to that of the next.
    """
    levels = [times - np.median(times) for times in logs(series)]
    clear, slow = max((_split(levels, window) for window in WINDOWS), key=lambda pair: pair[0])
    begun = [int(np.sum(state[1:] & ~state[:-1])) for state in slow]
    # no period begins or ends in a step whose neighbours share its state
    inside, fast = ([_inner(state == kind) for state in slow] for kind in (True, False))
    pairs = [
        (times[usual].mean(), times[slower].mean(), slower.sum())
        for times, usual, slower in zip(series, fast, inside, strict=True)
        if usual.any() and slower.any()
    ]
    if clear < CLEAR or sum(begun) < PERIODS or max(begun) < 2 or not pairs:
        return None
    usual, slower, weights = np.array(pairs).T
    factor = float(np.average(slower / usual, weights=weights))
    if factor < SLOWER:
        return None
    on = sum(float(seconds[state].sum()) for seconds, state in zip(lasts, slow, strict=True))
    off = float(np.concatenate(lasts).sum()) - on
    count = sum(begun)
    return SlowPeriods(factor, on / count, off / count, count, fast)


def _inner(state: np.ndarray) -> np.ndarray:
    """Return steps whose neighbours share their state."""
    padded = np.pad(state, 1, constant_values=True)
    inner: np.ndarray = state & padded[:-2] & padded[2:]
    return inner


def _split(levels: Series, window: int) -> tuple[float, Sequence[np.ndarray]]:
    """Cut moving averages in two; return the share of their variance between both, and masks."""
    smooth = [
        np.convolve(np.pad(level, window // 2, "edge"), np.full(window, 1 / window), "valid")
        for level in levels
    ]
    every = np.concatenate(smooth)
    cut = 0.5 * float(every.min() + every.max())
    for _ in range(20):
        cut = 0.5 * float(every[every <= cut].mean() + every[every > cut].mean())
    slow = every > cut
    between = slow.mean() * (1 - slow.mean()) * (every[slow].mean() - every[~slow].mean()) ** 2
    return float(between / every.var()), [level > cut for level in smooth]
