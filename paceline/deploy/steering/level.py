"""The present level of a quantity: its mean since the last change that its record shows."""

from math import log

import numpy as np

KEPT = 64  # observations; older ones are forgotten
PRIOR = 6.0  # observations that the expected spread counts for
LEAST = 0.01  # relative spread of one observation of any weight: clocks are no better
CLEAR = 5.0  # standard errors between two means that no chance explains
RELEVANT = log(1.05)  # smaller changes are noise to a decision


class Level:
    """Estimates the mean of a positive quantity that may change at any time.

    Each observation is a mean over `weight` draws. A change is the split of the record whose two
    means differ most in standard errors (a generalised likelihood ratio test on the logarithm;
    Basseville and Nikiforov, Detection of Abrupt Changes, section 2.4), if that is `CLEAR`; all
    before it is forgotten. `spread` is the relative standard deviation of one draw, at first as
    expected, then from differences of neighbours, which a change moves once.
    """

    def __init__(self, spread: float) -> None:
        self._variance, self._seen = spread**2, PRIOR
        self._values: list[float] = []
        self._weights: list[float] = []

    def add(self, value: float, weight: float = 1.0) -> bool:
        """Take in an observation; tell whether it shows a change."""
        value = max(value, 1e-12)
        if self._values:
            apart = log(value / self._values[-1]) ** 2 / (1 / weight + 1 / self._weights[-1])
            self._seen = min(self._seen + 1, KEPT)
            self._variance += (min(apart, 9 * self._variance) - self._variance) / self._seen
        self._values = [*self._values[1 - KEPT :], value]
        self._weights = [*self._weights[1 - KEPT :], weight]
        split = self._split()
        if split:
            self._values, self._weights = self._values[split:], self._weights[split:]
        return bool(split)

    def _split(self) -> int:
        """Return the index of the first observation after the latest change; 0 without one."""
        logs, weights = np.log(self._values), np.array(self._weights)
        before, total = np.cumsum(weights)[:-1], np.cumsum(logs * weights)
        after = weights.sum() - before
        apart = np.abs(total[:-1] / before - (total[-1] - total[:-1]) / after)
        errors = np.sqrt(self._variance * (1 / before + 1 / after) + 2 * LEAST**2)
        sure = np.where(apart > RELEVANT, apart / errors, 0.0)
        return int(sure.argmax()) + 1 if sure.size and sure.max() > CLEAR else 0

    @property
    def known(self) -> bool:
        """Whether anything was observed."""
        return bool(self._values)

    @property
    def mean(self) -> float:
        """The mean since the last change, in the quantity's unit."""
        return float(np.average(self._values, weights=self._weights))

    @property
    def spread(self) -> float:
        """Relative standard deviation of one draw."""
        return float(max(self._variance, LEAST**2) ** 0.5)

    @property
    def error(self) -> float:
        """Relative standard error of the mean."""
        return float((self._variance / sum(self._weights) + LEAST**2) ** 0.5)
