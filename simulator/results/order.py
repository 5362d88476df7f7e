"""Order alternatives by scores paired seed by seed, and find which is surely best.

`simulate`, `tune`, `sweep`, reports and `explore` use it. Two alternatives are compared at 90 % by
`intervals.exceeds`. "The best beats every other" is one claim that all comparisons must support, so
it is wrong with at most 10 % for any number of alternatives (docs/evidence/reliability.md, by
tests/lab/reliability/decisions.py).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from . import intervals

MARGIN = 0.05  # surely smaller differences of times, prices or tokens count as none
POWER = 0.9  # probability with which the estimated number of seeds settles a comparison
MOST = 1000  # most seeds to ask for; nobody would simulate more
FEWEST_BY_ORDER = 5  # fewest seeds with which the sign test can reach `LEVEL`

Scores = Mapping[str, np.ndarray]
Values = Sequence[float] | np.ndarray


@dataclass(frozen=True)
class Order:
    """The order of alternatives, as far as seeds show; smaller scores are better.

    `best`: the label with the lowest of `estimates` or, if no alternative has a score with every
    seed, the label with the most scores. `worse`: labels that are worse at 90 %; `equivalent`:
    labels within `margin` of the best at 90 %, worse or not; `unsettled`: all other labels. `of`:
    whether the mean or the median is estimated. `seeds`: about how many seeds would settle the
    unsettled labels; None if none are unsettled, if it cannot be estimated, or if above `MOST`.
    `model`: whether only the error of a loss model leaves some labels unsettled. `counts`: the
    number of seeds with a score and of all seeds, if no alternative has a score with every seed.
    """

    best: str
    of: str
    estimates: Mapping[str, intervals.Estimate]
    worse: list[str]
    equivalent: list[str]
    unsettled: list[str]
    seeds: int | None
    model: bool = False
    margin: float = MARGIN
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def stating(self, label: str, ends: Sequence[float | None] | None) -> "Order":
        """Return the order with the interval `ends` of `label`, in which None means infinity."""
        if not ends or label not in self.estimates:
            return self
        low, high = (math.inf if end is None else end for end in ends)
        mean = self.estimates[label]
        if mean.interval == (low, high):
            return self
        stated = replace(mean, interval=(low, high), ci95=None)
        stated = stated if mean.interval else mean.by_model(low, high)  # one seed had none
        return replace(self, estimates={**self.estimates, label: stated})

    def as_in(self, table: Mapping[str, intervals.Estimate]) -> "Order":
        """Return the order with a table's estimates, if one is a mean and the other a median."""
        # The order compares medians if one alternative needs that; tables decide for each.
        own, median = self.estimates, intervals.MEDIAN
        there = {k: table[k] for k in own.keys() & table.keys() if math.isfinite(table[k].value)}
        other = {k: one for k, one in there.items() if (one.of == median) != (own[k].of == median)}
        return replace(self, estimates={**own, **other})

    @property
    def open(self) -> list[str]:
        """The alternatives that may be as good as the best."""
        either = dict.fromkeys([*self.equivalent, *self.unsettled])
        return [label for label in either if label not in self.worse]

    @property
    def decided(self) -> bool:
        """Whether the best is surely better than every other; if alone, whether it has a score."""
        return not self.open and bool(self.worse or self.estimates)

    def value(self, label: str) -> float:
        """Return the estimate of an alternative; infinite if a seed has no score."""
        return self.estimates[label].value if label in self.estimates else math.inf


NO_ORDER = Order("", intervals.MEAN, {}, [], [], [], None)


class Terms(NamedTuple):
    """Properties of all scores, and the margin within which they are equivalent.

    `exact`: nothing is random, so one seed is enough. `heavy`: the variance may be infinite; see
    `intervals`. `margin`: relative difference up to which scores are equivalent.
    """

    exact: bool = False
    heavy: bool = False
    margin: float = MARGIN


NO_TERMS = Terms()


def order(
    scores: Mapping[str, Values],
    at_least: Mapping[str, Values] | None = None,
    *,
    terms: Terms = NO_TERMS,
    best: str | None = None,
    factors: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> Order:
    """Return the order of alternatives by their `scores` with the same seeds.

    A score is infinite where a seed has none, such as a time to a target that was never reached;
    `at_least` then bounds it from below. `best`: the first alternative, if already chosen.
    `factors`: draws of the scores' relative errors, joint over alternatives. Alternatives other
    than the best may have scores of only the first few seeds.
    """
    heavy, exact = terms.heavy, terms.exact
    values = {label: _twice(row, exact) for label, row in scores.items()}
    whole = {label: row for label, row in values.items() if np.isfinite(row).all()}
    if not whole or (best is not None and best not in whole):
        return _by_count(values, best)
    full = max(row.size for row in whole.values())
    samples = (x for x in whole.values() if x.size == full)
    skewed = heavy or any(intervals.estimate(x).of == intervals.MEDIAN for x in samples)
    of = intervals.MEDIAN if skewed else intervals.MEAN
    means = {label: intervals.estimate(row, heavy=heavy, of=of) for label, row in whole.items()}
    best = best or min(means, key=lambda label: means[label].value)
    for label in factors.keys() & means.keys():
        means[label] = intervals.widened(means[label], means[label].value * factors[label])
    bounds = {label: _twice(row, exact) for label, row in (at_least or {}).items()}
    unordered = Order(best, of, means, [], [], [], None, margin=terms.margin)
    return _compare_all(unordered, values, bounds, factors, heavy)


def _compare_all(
    means: Order, values: Scores, bounds: Scores, factors: Scores, heavy: bool
) -> Order:
    """Compare all others with the best; `means` has the best and the estimates."""
    best, of, whole = means.best, means.of, means.estimates
    exceeds = partial(intervals.exceeds, heavy=heavy, of=of)

    def compared(
        one: np.ndarray, other: np.ndarray, errors: np.ndarray | None
    ) -> tuple[bool, bool]:
        """Return whether the other is surely larger, and whether it is surely within the margin."""
        larger, wide = exceeds(other, one, errors=errors), 1 + means.margin
        if np.array_equal(one, other):
            one = other = np.ones_like(one)
        opposite = None if errors is None else -errors
        near = exceeds(wide * one, other, errors=opposite)
        return larger, near and exceeds(wide * other, one, errors=errors)

    worse, equivalent, unsettled, needed, model = [], [], [], [], False
    for label in (label for label in values if label != best):
        size = min(values[best].size, values[label].size)  # seeds that both ran with
        first, scores = values[best][:size], values[label][:size]
        wrong = None
        if {label, best} <= factors.keys():  # nan if neither has a score
            with np.errstate(divide="ignore", invalid="ignore"):
                wrong = np.log(factors[label]) - np.log(factors[best])
        other = _filled(scores, bounds.get(label, first)[:size], first)
        beyond, near = compared(first, other, wrong)
        if beyond or np.isinf(other).any():  # it has no score with some seed
            worse.append(label)
        if label in whole and near:
            equivalent.append(label)
        elif label not in worse:
            unsettled.append(label)
            model |= wrong is not None and any(compared(first, other, None))
            needed.append(_needed(first, other, heavy, of) if label in whole else None)
    settle = None if None in needed or model else max(filter(None, needed), default=None)
    return replace(
        means, worse=worse, equivalent=equivalent, unsettled=unsettled, seeds=settle, model=model
    )


def _filled(values: np.ndarray, bounds: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return values or their bounds, set to those of `first` where they differ by rounding."""
    other = np.where(np.isfinite(values), values, bounds)
    return np.where(np.abs(other - first) <= intervals.ROUNDING * np.abs(first), first, other)


def _twice(values: Values, exact: bool) -> np.ndarray:
    """Return values as an array; repeat a single exact one, because all seeds agree."""
    array = np.asarray(values, dtype=float)
    return np.repeat(array, 2) if exact and array.size == 1 else array


def _by_count(values: Scores, best: str | None) -> Order:
    """Order by the number of seeds with a score, then by the median (McNemar's exact test)."""
    from scipy.special import bdtr  # noqa: PLC0415 - 0.2 s

    counts = {label: int(np.isfinite(scores).sum()) for label, scores in values.items()}
    best = best or min(values, key=lambda label: (-counts[label], float(np.median(values[label]))))
    there, worse = np.isfinite(values[best]), []
    others = [label for label in values if label != best]
    for label in others:
        other = np.isfinite(values[label])
        more, fewer = int((there & ~other).sum()), int((other & ~there).sum())
        if more > fewer and 2 * bdtr(fewer, more + fewer, 0.5) <= 1 - intervals.LEVEL:
            worse.append(label)
    unsettled = [label for label in others if label not in worse]
    tally = {label: (counts[label], values[label].size) for label in values}
    return Order(best, intervals.MEDIAN, {}, worse, [], unsettled, None, counts=tally)


def _needed(one: np.ndarray, other: np.ndarray, heavy: bool, of: str) -> int | None:
    """Return about how many seeds settle whether `other` is worse or equivalent; None: unknown."""
    from scipy.special import stdtr, stdtrit  # noqa: PLC0415

    mean, seeds = float(np.mean(one)), one.size
    if seeds < 2 or mean <= 0:
        return None
    ratio = (of == intervals.MEDIAN or heavy) and bool((one > 0).all() and (other > 0).all())
    gaps = np.log(other / one) if ratio else (other - one) / mean
    gap, spread = float(gaps.mean()), float(gaps.std(ddof=1))
    if not spread:
        return None
    n = np.arange(max(seeds + 1, FEWEST_BY_ORDER if heavy else 0), MOST + 1)
    half = stdtrit(n - 1, intervals.TAILS[1]) * spread / np.sqrt(n)
    deviation = spread * np.sqrt(1 / seeds - 1 / n)

    def below(edge: np.ndarray) -> np.ndarray:
        return np.asarray(stdtr(seeds - 1, (edge - gap) / deviation))

    high, low = half, np.maximum(MARGIN - half, 0.0)
    open_ = below(high) - below(low) + below(-low) - below(-high)
    enough = np.flatnonzero((open_ <= 1 - POWER) | (low >= high))
    return int(n[enough[0]]) if enough.size else None
