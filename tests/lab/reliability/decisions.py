"""Count right and wrong decisions of the pick in simulations with a known truth."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.simulator.results.order import Order, order

TITLE = "Decisions: how often they are right"
LEAST = 400  # decisions of each kind
PER_SECOND = 30  # decisions per second, roughly, for all rows together
SHARED = 0.5  # share of the variance that a seed's effect on all algorithms has
REMARKS = """\
Times of algorithms are lognormal, half of their variance shared by seed. Between equals nothing can
be decided: a decision is an error, and the first of many is a little lucky. The estimated number of
seeds settles a comparison: one algorithm is surely better, or both are surely equivalent."""
HOW = (
    "python -m tests.lab.reliability decisions; with fewer decisions tests/results/test_verdict.py"
)

Row = dict[str, Any]


def measure(seconds: float) -> list[Row]:
    """Return a row per kind of decision; more `seconds` give more decisions."""
    tried = max(LEAST, int(PER_SECOND * seconds))
    return [*errors(tried), power(tried), estimates(tried // 4)]


def drawn(
    rng: np.random.Generator, gaps: Sequence[float], seeds: int, spread: float
) -> dict[str, np.ndarray]:
    """Draw the times of algorithms whose means are 1 + gap, seed by seed."""
    shared = rng.standard_normal(seeds)
    noise = rng.standard_normal((len(gaps), seeds))
    deviates = np.sqrt(SHARED) * shared + np.sqrt(1 - SHARED) * noise
    times = np.exp(spread * deviates - spread**2 / 2)
    return {
        f"a{i}": (1 + gap) * time for i, (gap, time) in enumerate(zip(gaps, times, strict=True))
    }


def errors(tried: int) -> list[Row]:
    """Return rows for equal algorithms, alone or far ahead of others: none is best."""
    rng = np.random.default_rng(1)
    results = []
    for gaps, seeds in [
        ((0.0, 0.0), 4),
        ((0.0, 0.0), 16),
        ((0.0,) * 6, 4),
        ((0.0, 0.0, *[1.0] * 6), 8),
    ]:
        right = sum(not order(drawn(rng, gaps, seeds, 0.15)).decided for _ in range(tried))
        others = f" of {len(gaps)}" if 1.0 in gaps else ""
        what = f"undecided between {gaps.count(0.0)} equals{others} ({seeds} seeds)"
        results.append({"what": what, "tried": tried, "handled": right, "how": HOW})
    return results


def power(tried: int) -> Row:
    """Return a row for a true gap of 10 % with noise of 2 % and four seeds."""
    rng = np.random.default_rng(2)
    orders = (order(drawn(rng, (0.0, 0.1, 0.15), 4, 0.02)) for _ in range(tried))
    right = sum(actual.decided and actual.best == "a0" for actual in orders)
    return {"what": "decided at a gap of 10 %, noise 2 %", "tried": tried, "handled": right} | {
        "how": HOW
    }


def estimates(tried: int) -> Row:
    """Return a row for seeds added up to the estimated number, at gaps of 0 to 20 %."""
    rng = np.random.default_rng(3)
    right = counted = 0
    for index in range(tried):
        gaps = (0.0, (0.0, 0.02, 0.05, 0.1, 0.2)[index % 5])
        first = drawn(rng, gaps, 4, 0.1)
        actual: Order = order(first)
        if not actual.unsettled:
            continue
        counted += 1
        if actual.seeds is not None:
            more = drawn(rng, gaps, actual.seeds - 4, 0.1)
            whole = {label: np.append(values, more[label]) for label, values in first.items()}
            right += not order(whole).unsettled
    what = "settled with the estimated number of seeds (from four, gaps of 0 to 20 %)"
    return {"what": what, "tried": counted, "handled": right, "how": HOW}
