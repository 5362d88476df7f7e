"""Measure two pieces of work in turn, and compare the ratio of their rates to an aim."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

Rate = Callable[[], float]
"""Function that measures once: millions of units per second of wall-clock time."""

PAIRS = 7
SHORTEST = 0.3  # least seconds of one side of a pair
QUARTILES = (0.25, 0.5, 0.75)
OK, UNCLEAR, MISSED = "ok", "unclear", "MISSED"


def rate(work: Callable[[], object], units: float) -> Rate:
    """Return a measurement that calls `work`, of `units`, until `SHORTEST` has passed."""

    def measured() -> float:
        calls, begin = 0, time.perf_counter()
        while (took := time.perf_counter() - begin) < SHORTEST:
            work()
            calls += 1
        return calls * units / took / 1e6

    return measured


@dataclass(frozen=True)
class Aim:
    """The range in which a figure should lie; without limits it is only shown."""

    least: float = -inf
    most: float = inf

    def verdict(self, low: float, median: float, high: float) -> str:
        """Return MISSED only if all quartiles lie on the wrong side of the aim.

        It is UNCLEAR if only the median does, and empty without an aim.
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
    """A row to measure: our figure, any peer's figure, and the aim of their ratio.

    Without `theirs` the aim applies to our figure.
    """

    what: str
    ours: Rate
    theirs: Rate | None = None
    aim: Aim = NO_AIM
    times: int = PAIRS

    def measure(self) -> list[str]:
        """Return the cells: medians, the median and quartiles over pairs, and the verdict."""
        if self.theirs is None:
            figures = np.quantile([self.ours() for _ in range(self.times)], QUARTILES)
            shown, ratio = [f"{figures[1]:.3g}", ""], ""
        else:
            self.ours(), self.theirs()  # compiles code and fills caches
            pairs = [(self.ours(), self.theirs()) for _ in range(self.times)]
            figures = np.quantile([ours / theirs for ours, theirs in pairs], QUARTILES)
            shown = [f"{statistics.median(side):.2f}" for side in zip(*pairs, strict=True)]
            ratio = f"{figures[1]:.2f}"
        spread = f"{figures[0]:.3g} to {figures[2]:.3g}" if self.times > 1 else ""
        return [self.what, *shown, ratio, spread, str(self.aim), self.aim.verdict(*figures)]
