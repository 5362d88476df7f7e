"""Measure two pieces of work in turn and judge the ratio of their rates against an aim."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

Rate = Callable[[], float]
"""Measures once: millions of units per second of wall-clock time."""

PAIRS = 7
SHORTEST = 0.3  # seconds that one side of a pair takes at least
QUARTILES = (0.25, 0.5, 0.75)
OK, UNCLEAR, MISSED = "ok", "unclear", "MISSED"


def rate(work: Callable[[], object], units: float) -> Rate:
    """Return a measurement that calls `work`, of so many units, until `SHORTEST` has passed."""

    def measured() -> float:
        calls, begin = 0, time.perf_counter()
        while (took := time.perf_counter() - begin) < SHORTEST:
            work()
            calls += 1
        return calls * units / took / 1e6

    return measured


@dataclass(frozen=True)
class Aim:
    """The range that a figure should lie in; without limits it is only shown."""

    least: float = -inf
    most: float = inf

    def verdict(self, low: float, median: float, high: float) -> str:
        """Return MISSED only where all quartiles lie on the wrong side of the aim.

        UNCLEAR where the median does and the others do not; nothing where there is no aim.
        """
        if self == NO_AIM:
            return ""
        if high < self.least or low > self.most:
            return MISSED
        return OK if self.least <= median <= self.most else UNCLEAR

    def __str__(self) -> str:
        if -inf < self.least and self.most < inf:
            return f"{self.least:.3g} to {self.most:g}"
        above = f">= {self.least:g}" if self.least > -inf else ""
        return above + (f"<= {self.most:g}" if self.most < inf else "")


NO_AIM = Aim()


@dataclass(frozen=True)
class Row:
    """A row to measure: our figure, theirs if there is one, and what their ratio should be.

    Without `theirs` the aim is that of our figure.
    """

    what: str
    ours: Rate
    theirs: Rate | None = None
    aim: Aim = NO_AIM
    times: int = PAIRS

    def measure(self) -> list[str]:
        """Return the cells: medians, the median and quartiles pair by pair, and the verdict."""
        if self.theirs is None:
            figures = np.quantile([self.ours() for _ in range(self.times)], QUARTILES)
            shown, ratio = [f"{figures[1]:.3g}", ""], ""
        else:
            self.ours(), self.theirs()  # compiles what must be compiled, and fills caches
            pairs = [(self.ours(), self.theirs()) for _ in range(self.times)]
            figures = np.quantile([ours / theirs for ours, theirs in pairs], QUARTILES)
            shown = [f"{statistics.median(side):.2f}" for side in zip(*pairs, strict=True)]
            ratio = f"{figures[1]:.2f}"
        spread = f"{figures[0]:.3g} to {figures[2]:.3g}" if self.times > 1 else ""
        return [self.what, *shown, ratio, spread, str(self.aim), self.aim.verdict(*figures)]
