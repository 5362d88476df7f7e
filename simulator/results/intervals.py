"""Estimates over seeds: of the mean or the median, with an interval.

Every interval over seeds that a command prints or writes comes from here. Coverage by law and
number of seeds: docs/evidence/reliability.md, by tests/lab/reliability/coverage.py.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

LEVEL = 0.90
"""The level of every interval that is said, and of whatever is known; `ci95` in JSON has `CI95`."""
USUAL = f"{100 * LEVEL:.3g} %"
TAILS = (1 - LEVEL) / 2, (1 + LEVEL) / 2
NORMAL = NormalDist().inv_cdf(TAILS[1])  # standard deviations from the middle to an end
CI95 = 0.95
FACTOR = 10.0  # a mean that is not known to within this factor gives way to the median
VAST = 1e9  # an interval that spans such a factor says nothing, and is not given
ROUNDING = 1e-9  # relative differences up to this are floating-point error
MEAN, MEDIAN = "mean", "median"
BEST = "best estimate"  # the mean over seeds by a model as it is, not that of all it may be
ONE_SEED, SAME, NEVER = "one seed", "same with every seed", "no value with some seed"
"""Bases of estimates without an interval."""
MODEL = "the model"  # in the basis of an interval that holds the error of a model of the loss, too
HEAVY = (
    "some random times have no finite variance, so that a few runs do not bound their mean: times "
    "are medians over seeds"
)
STUDENT, LOGARITHMS, ORDER = "Student", "logarithms", "order statistics"

Values = Sequence[float] | np.ndarray
Ends = tuple[float, float]
OPEN: Ends = -math.inf, math.inf


@dataclass(frozen=True)
class Estimate:
    """An estimate over seeds, in the unit of the values.

    `of`: "mean", "median" or, of a model that may err, "best estimate"; `interval` holds it with
    probability `level`, `LEVEL` unless too few seeds attain that; its upper end is infinite where a
    seed that never got there may be beyond. None where no interval can be had, or every seed has
    the same value; `basis` says which, or how the interval was computed. `ci95`: the interval of
    the mean with `CI95`, also where a median is estimated; None where there is none.
    """

    value: float
    of: str
    interval: Ends | None
    level: float | None
    basis: str
    ci95: Ends | None = None

    @property
    def span(self) -> Ends:
        """The ends of the interval; without one, the value twice."""
        return self.interval or (self.value, self.value)

    @property
    def narrow(self) -> bool:
        """Whether the interval is within 1 %: too narrow to be shown."""
        low, high = self.span
        return high - low <= 0.01 * abs(self.value)

    @property
    def exact(self) -> bool:
        """Whether every seed has this value, so that no interval is needed."""
        return self.basis == SAME

    @property
    def certain(self) -> bool:
        """Whether the interval attains `LEVEL`; the median's does from five seeds on."""
        return self.interval is not None and (self.level or 0.0) >= LEVEL

    def above(self, bound: float) -> bool:
        """Whether the estimated quantity is known, at `LEVEL`, to be above `bound`."""
        return (self.exact or self.certain) and self.span[0] > bound

    def below(self, bound: float) -> bool:
        """Whether the estimated quantity is known, at `LEVEL`, to be below `bound`."""
        return (self.exact or self.certain) and self.span[1] < bound

    def within(self, low: float, high: float) -> "Estimate":
        """Cut the intervals at `low` and `high`, between which the quantity always is."""
        least, most = min(low, self.value), max(high, self.value)
        return self.moved(lambda end: min(max(end, least), most))

    def moved(self, by: Callable[[float], float]) -> "Estimate":
        """Return the estimate of an increasing function of the quantity."""
        interval, ci95 = (
            ends and (by(ends[0]), by(ends[1])) for ends in (self.interval, self.ci95)
        )
        return replace(self, value=by(self.value), interval=interval, ci95=ci95)

    def by_model(self, low: float, high: float) -> "Estimate":
        """Return the estimate with an interval that contains a model's error."""
        of, basis = self.of if self.of == MEDIAN else BEST, self.basis
        basis = basis if basis.endswith(MODEL) else MODEL
        return replace(self, of=of, interval=(low, high), level=LEVEL, basis=basis, ci95=None)

    def beside_mean(self) -> dict[str, Any]:
        """Return the keys that stand beside "mean": "ci95" is its interval with 95 %."""
        return self._keys(self.ci95)

    def beside_value(self) -> dict[str, Any]:
        """Return the keys that stand beside "value": "ci95" is its interval with 95 %."""
        attained = self.interval if (self.level or 0.0) >= CI95 else None
        return self._keys(self.ci95 if self.of == MEAN else attained)

    def _keys(self, ci95: Ends | None) -> dict[str, Any]:
        return {
            "ci95": ci95 and [*ci95],
            "estimate": self.of,
            "interval": self.interval and [*self.interval],
            "level": self.level,
            "basis": self.basis,
        }


def stated(row: Mapping[str, Any], key: str = "mean", *, one_run: bool = False) -> Estimate:
    """Read an estimate from a document: `key` is the mean, beside the keys of `beside_mean`.

    `one_run`: with the interval of one run, `interval90`, where the document has that.
    """
    of, level = row.get("estimate", MEAN), row.get("level")
    value = row.get("median", row[key]) if of == MEDIAN else row[key]
    ends = row.get("interval")
    if one_run and value is not None and row.get("interval90"):
        ends, level = row["interval90"], LEVEL
    low, high = ends or (None, None)
    interval = None if low is None else (low, math.inf if high is None else high)
    value = math.nan if value is None else value
    return Estimate(value, of, interval, level, row.get("basis", ""))


def positive(values: Values, *, heavy: bool = False, of: str | None = None) -> Estimate:
    """Estimate a quantity that is never negative from independent `values`.

    The mean, unless its interval spans more than `FACTOR`, as it does where few values are skewed:
    then the median. `heavy`: no variance is known to exist, so that no interval holds a mean; the
    median is estimated, and nothing assumed of the values. `of`: what to estimate, "mean" or
    "median", if that is decided.
    """
    x = np.asarray(values, dtype=float)
    median = heavy or of == MEDIAN
    if without := _without_interval(x, MEDIAN if median else MEAN):
        return without
    if not np.isfinite(x).all() or heavy:
        return _by_order(x)
    ends, wide = _mean_of_positive(x, LEVEL), _mean_of_positive(x, CI95)
    ci95 = wide if wide[1] <= VAST * wide[0] else None
    if not median and (of == MEAN or ends[1] <= FACTOR * ends[0]):
        return Estimate(float(x.mean()), MEAN, ends, LEVEL, LOGARITHMS, ci95)
    result = replace(_by_order(x), ci95=ci95)
    if result.certain or not (x > 0).all():
        return result
    y = np.log(x)  # nearly symmetric
    with np.errstate(over="ignore"):
        low, high = np.exp(y.mean() + np.array([-1, 1]) * _half(y, LEVEL)).tolist()
    if high > VAST * low:
        return result
    return replace(result, interval=(low, high), level=LEVEL, basis=LOGARITHMS)


def estimate(values: Values, *, heavy: bool = False, of: str | None = None) -> Estimate:
    """Estimate by `positive` if no value is negative, else by `signed`."""
    if np.less(values, 0).any():
        return signed(values, heavy=heavy or of == MEDIAN)
    return positive(values, heavy=heavy, of=of)


def widened(chance: Estimate, drawn: Values | None) -> Estimate:
    """Add the draws of a model to an estimate's interval, in quadrature.

    Of logarithms, where all is positive. None: only chance errs. Of one seed there is no interval.
    The interval is then none of a mean over seeds, and so there is no `ci95`.
    """
    value = chance.value
    if drawn is None or not (chance.interval or chance.exact) or not math.isfinite(value):
        return chance
    finite = np.where(np.isnan(drawn), value, drawn)  # infinite less infinite: nothing is known
    ends = np.array([chance.span, np.quantile(finite, TAILS, method="inverted_cdf")])
    logs = value > 0 and bool((ends > 0).all())
    away = np.log(ends / value) if logs else ends - value
    down, up = np.hypot(*np.maximum(away * [-1, 1], 0.0)).tolist()
    whole = value - down, value + up
    if logs:
        whole = value * math.exp(-down), value * float(np.exp(up))
    basis = MODEL if chance.exact else f"{chance.basis} and {MODEL}"
    of = MEDIAN if chance.of == MEDIAN else BEST
    return Estimate(value, of, whole, chance.level or LEVEL, basis)


def exceeds(
    one: Values,
    other: Values,
    *,
    heavy: bool = False,
    of: str = MEAN,
    errors: np.ndarray | None = None,
) -> bool:
    """Whether `one` exceeds `other` at `LEVEL` in its mean or median (`of`).

    Both are paired seed by seed. Medians are compared by the logarithms of their ratios, which
    have no heavy tails; `heavy`: from five seeds on by the sign test, which assumes nothing.
    `errors`: draws of the logarithm of what their ratio may be wrong by, nan where nothing is
    compared; they add to what seeds leave open.
    """
    x, y = np.asarray(one, dtype=float), np.asarray(other, dtype=float)
    all_positive = bool((np.minimum(x, y) > 0).all())
    if errors is not None:
        compared = errors[~np.isnan(errors)]
        if 2 * compared.size < errors.size or not all_positive:
            return False
        gap = signed(np.log(x) - np.log(y), scale=1.0)
        down = max(-float(np.quantile(compared, TAILS[0], method="inverted_cdf")), 0.0)
        if gap.value <= math.hypot(gap.value - gap.span[0], down):
            return False
    by_sign = difference(x, y, heavy=True)
    if by_sign.exact or (heavy and by_sign.certain):
        return by_sign.above(0.0)
    if (heavy or of == MEDIAN) and all_positive:
        return signed(np.log(x) - np.log(y), scale=1.0).above(0.0)
    return difference(x, y, heavy=heavy).above(0.0)


def signed(values: Values, *, heavy: bool = False, scale: float = 0.0) -> Estimate:
    """Estimate a quantity of either sign: its mean, or if `heavy` its median.

    `scale`: the size of the numbers of which `values` are differences, to recognise rounding.
    """
    x = np.asarray(values, dtype=float)
    if without := _without_interval(x, MEDIAN if heavy else MEAN, scale):
        return without
    if heavy or not np.isfinite(x).all():
        return _by_order(x)
    mean = float(x.mean())
    ends, wide = ((mean - half, mean + half) for half in (_half(x, LEVEL), _half(x, CI95)))
    return Estimate(mean, MEAN, ends, LEVEL, STUDENT, wide)


def share(values: Values) -> Estimate:
    """Estimate the mean of a quantity between 0 and 1."""
    return signed(values).within(0.0, 1.0)


def difference(one: Values, other: Values, *, heavy: bool = False) -> Estimate:
    """Estimate by how much `one` exceeds `other`, paired seed by seed."""
    scale = float(max(np.abs(one).max(initial=0.0), np.abs(other).max(initial=0.0)))
    return signed(np.subtract(one, other), heavy=heavy, scale=scale)


def _without_interval(x: np.ndarray, of: str, scale: float = 0.0) -> Estimate | None:
    """Return the estimate without an interval if `x` permits none, else None."""
    value = math.nan if not x.size else float(np.median(x) if of == MEDIAN else x.mean())
    if x.size < 2:
        return Estimate(value, of, None, None, ONE_SEED)
    if not math.isfinite(np.median(x)):
        return Estimate(value, of, None, None, NEVER)
    if np.isfinite(x).all() and np.ptp(x) <= ROUNDING * max(scale, float(np.abs(x).max())):
        return Estimate(value if abs(value) > ROUNDING * scale else 0.0, of, None, None, SAME)
    return None


def _half(x: np.ndarray, level: float) -> float:
    """Return half the width of Student's interval for a mean."""
    from scipy.special import stdtrit  # noqa: PLC0415 - 0.2 s

    return float(stdtrit(x.size - 1, (1 + level) / 2) * x.std(ddof=1) / math.sqrt(x.size))


def _mean_of_positive(x: np.ndarray, level: float) -> Ends:
    """Return an interval for the mean of normal to lognormal values.

    It spans two: Student's, on the scale of the logarithm of the mean, which holds that of normal
    values and, if there are many, of any; and the one for lognormal values, exp(mu + sigma^2/2),
    of Zou, Taleban and Huo (Comput. Stat. Data Anal. 53, 2009), with Student's limits for mu.
    """
    from scipy.special import chdtri  # noqa: PLC0415

    mean = float(x.mean())
    spread = math.exp(_half(x, level) / mean)
    low, high = mean / spread, mean * spread
    if not (x > 0).all():
        return low, high
    y, freedom = np.log(x), x.size - 1
    half, variance = _half(y, level), float(y.var(ddof=1))
    centre = float(y.mean()) + variance / 2
    down, up = (
        math.hypot(half, variance / 2 * (freedom / chdtri(freedom, tail) - 1))
        for tail in ((1 - level) / 2, (1 + level) / 2)
    )
    with np.errstate(over="ignore"):
        return min(low, float(np.exp(centre - down))), max(high, float(np.exp(centre + up)))


def _by_order(x: np.ndarray) -> Estimate:
    """Estimate the median between two order statistics, by the sign test."""
    from scipy.special import bdtr  # noqa: PLC0415

    outside = 2 * bdtr(np.arange(x.size // 2), x.size, 0.5)
    place = max(int(np.count_nonzero(outside <= 1 - LEVEL)), 1) - 1
    ordered = np.sort(x)
    ends = float(ordered[place]), float(ordered[-1 - place])
    return Estimate(float(np.median(x)), MEDIAN, ends, float(1 - outside[place]), ORDER)
