"""Coverage of the intervals of `results.intervals` by the law of a run's value and the seeds.

An interval counts as right if it holds whichever of the mean and the median it says it is of.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from typing import Any

import numpy as np

from paceline.simulator.results import intervals

SEEDS = (4, 8, 32)
HOW = (
    "python -m tests.lab.reliability coverage; "
    "with fewer intervals tests/results/test_interval_coverage.py"
)


@dataclass(frozen=True)
class KnownLaw:
    """A law of times whose mean and median are known; `draw` takes a generator and a shape."""

    name: str
    draw: Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
    mean: float
    median: float

    @property
    def heavy(self) -> bool:
        """Whether its variance is infinite, as scenarios tell by their laws."""
        return self.name.startswith("Pareto")


def normal(cv: float) -> KnownLaw:
    """Return a normal law of mean 1 and standard deviation `cv`, which is below a third."""
    return KnownLaw(f"normal, sd {cv:g} of the mean", lambda r, n: r.normal(1, cv, n), 1, 1)


def lognormal(sigma: float) -> KnownLaw:
    """Return a lognormal law whose logarithm has the standard deviation `sigma`."""
    name = f"lognormal, sd {sqrt(exp(sigma**2) - 1):.2g} of the mean"
    return KnownLaw(name, lambda r, n: r.lognormal(0, sigma, n), exp(sigma**2 / 2), 1)


def pareto(alpha: float) -> KnownLaw:
    """Return a Pareto law of minimum 1."""
    mean = alpha / (alpha - 1) if alpha > 1 else inf
    return KnownLaw(
        f"Pareto, alpha = {alpha:g}", lambda r, n: 1 + r.pareto(alpha, n), mean, 2 ** (1 / alpha)
    )


LAWS = (
    *map(normal, (0.05, 0.3)),
    *map(lognormal, (0.1, 0.5, 1.0, 1.5)),
    KnownLaw("exponential", lambda r, n: r.exponential(1, n), 1, log(2)),
    KnownLaw("gamma, sd 0.5 of the mean", lambda r, n: r.gamma(4, 0.25, n), 1, 0.9180151),
    *map(pareto, (0.8, 1.5, 2.0)),
)


def rows(tries: int) -> Iterator[dict[str, Any]]:
    """Return a row for each law and number of seeds; `level`: the least that an interval claims."""
    for law in LAWS:
        for seeds in SEEDS:
            draws = law.draw(np.random.default_rng(11), (tries, seeds))
            yield row(law, seeds, [intervals.positive(draw, heavy=law.heavy) for draw in draws])


def row(law: KnownLaw, seeds: int, found: list[intervals.Estimate]) -> dict[str, Any]:
    """Count the intervals that hold what they are of."""
    held = 0
    for problem in found:
        assert problem.interval is not None
        truth = law.mean if problem.of == intervals.MEAN else law.median
        held += problem.interval[0] <= truth <= problem.interval[1]
    of = Counter(item.of for item in found)
    level = min(item.level or 0.0 for item in found)
    text = ", ".join(f"{100 * count / len(found):.0f} % {name}s" for name, count in of.items())
    return {
        "what": f"{law.name}; {seeds} seeds",
        "tried": len(found),
        "handled": held,
        "how": HOW,
        "note": f"{100 * held / len(found):.1f} % hold, claimed: {100 * level:.3g} %; {text}",
        "level": level,
        "heavy": law.heavy,
    }
