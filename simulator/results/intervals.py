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
"""The level of every stated interval and of every decision; `ci95` in JSON has `CI95`."""
USUAL = f"{100 * LEVEL:.3g} %"
TAILS = (1 - LEVEL) / 2, (1 + LEVEL) / 2
NORMAL = NormalDist().inv_cdf(TAILS[1])  # standard deviations from the middle to an end
CI95 = 0.95
BATCHES = 20  # most batches of a run's steps
FACTOR = 10.0  # if the interval of the mean is wider, the median is estimated instead
VAST = 1e9  # an interval this wide says nothing, and is left out
ROUNDING = 1e-9  # relative differences up to this are floating-point error
MEAN, MEDIAN = "mean", "median"
BEST = "best estimate"  # the mean over seeds by the best estimate of a model
ONE_SEED, SAME, NEVER = "one seed", "same with every seed", "some seed has no value"
"""Bases of estimates without an interval."""
MODEL = "the model"  # part of the basis of an interval that also contains the error of a loss model
HEAVY = (
    "some random times have infinite variance, so a few runs cannot bound their mean: times "
    "are medians over seeds"
)
STUDENT, LOGARITHMS, ORDER = "Student", "logarithms", "order statistics"

Values = Sequence[float] | np.ndarray
Ends = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """An estimate over seeds, in the unit of the values.

    `of`: "mean", "median" or, for a model that may err, "best estimate". `interval` contains it
    with probability `level`, which is `LEVEL` unless there are too few seeds. Its upper end is
    infinite if some seed never reached the target. It is None if no interval can be computed, or if
    all seeds have the same value; `basis` gives the reason or the method. `ci95`: the interval of
    the mean at `CI95`, even if a median is estimated; None without one.
    """

    value: float
    of: str
    interval: Ends | None
    level: float | None
    basis: str
    ci95: Ends | None = None

    @property
    def span(self) -> Ends:
        """The ends of the interval; the value twice without an interval."""
        return self.interval or (self.value, self.value)

    @property
    def narrow(self) -> bool:
        """Whether the interval is narrower than 1 %, too narrow to be shown."""
        low, high = self.span
        return high - low <= 0.01 * abs(self.value)

    @property
    def exact(self) -> bool:
        """Whether all seeds have this value, so that no interval is needed."""
        return self.basis == SAME

    @property
    def certain(self) -> bool:
        """Whether the interval attains `LEVEL`, as a median's does from five seeds on."""
        return self.interval is not None and (self.level or 0.0) >= LEVEL

    def above(self, bound: float) -> bool:
        """Return whether the quantity is above `bound`, at confidence `LEVEL`."""
        return (self.exact or self.certain) and self.span[0] > bound

    def below(self, bound: float) -> bool:
        """Return whether the quantity is below `bound`, at confidence `LEVEL`."""
        return (self.exact or self.certain) and self.span[1] < bound

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
        """Return the keys beside "mean" in a document; "ci95" is its 95 % interval."""
        return self._keys(self.ci95)

    def beside_value(self) -> dict[str, Any]:
        """Return the keys beside "value" in a document; "ci95" is its 95 % interval."""
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
    """Read an estimate from a document; `key` holds the mean, beside `beside_mean`'s keys.

    `one_run`: use the interval of one run, `interval90`, if the document has it.
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

    Estimates the mean, unless its interval spans more than `FACTOR`, which few skewed values cause;
    then the median. `heavy`: the variance may be infinite, so that no interval bounds the mean; the
    median is estimated, without assumptions on the values. `of`: "mean" or "median" to fix the
    choice.
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


def batch_means(seconds: np.ndarray, steps: np.ndarray, mean: float) -> Estimate:
    """Estimate the seconds per step of one long run, whose `mean` is known, by batch means.

    `seconds` and `steps` of its evaluation intervals are grouped into at most `BATCHES` batches,
    long enough to be nearly independent. There is no interval if there is one batch, or all take
    equally long.
    """
    batches = np.array_split(np.array([seconds, steps]), min(BATCHES, steps.size) or 1, axis=1)
    sums = [batch.sum(axis=1) for batch in batches]
    result = positive([time / count if count else math.nan for time, count in sums], of=MEAN)
    if result.interval is None or result.ci95 is None:
        return Estimate(mean, MEAN, None, None, ONE_SEED)
    size = mean / result.value  # batches differ in length
    ends, wide = ((size * low, size * high) for low, high in (result.interval, result.ci95))
    return Estimate(mean, MEAN, ends, result.level, "batch means", wide)


def estimate(values: Values, *, heavy: bool = False, of: str | None = None) -> Estimate:
    """Estimate by `positive` if no value is negative, else by `signed`."""
    if np.less(values, 0).any():
        return signed(values, heavy=heavy or of == MEDIAN)
    return positive(values, heavy=heavy, of=of)


def widened(chance: Estimate, drawn: Values | None) -> Estimate:
    """Add a model's error, given by draws, to an estimate's interval in quadrature.

    Logarithms are used if all values are positive. None: the model has no error. One seed gives no
    interval. A widened interval is no longer that of a mean over seeds, so it has no `ci95`.
    """
    value = chance.value
    if drawn is None or not (chance.interval or chance.exact) or not math.isfinite(value):
        return chance
    finite = np.where(np.isnan(drawn), value, drawn)  # infinite minus infinite is unknown
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
    """Return whether `one` exceeds `other` at `LEVEL` in its mean or median (`of`).

    Both are paired seed by seed. Medians are compared by the logarithms of their ratios, which have
    no heavy tails; `heavy`: from five seeds on by the sign test, which assumes nothing. `errors`:
    draws of the error of the ratio's logarithm, nan where nothing is compared; they add to the
    uncertainty from seeds.
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
    """Estimate a quantity of either sign by its mean, or by its median if `heavy`.

    `scale`: the size of the numbers whose differences are `values`, to recognise rounding.
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
    return signed(values).moved(lambda end: min(max(end, 0.0), 1.0))


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
    """Return an interval for the mean of values between normal and lognormal.

    It spans two intervals. Student's, on the scale of the mean's logarithm, is right for normal
    values and for many values. The other is right for lognormal values, exp(mu + sigma^2/2): Zou,
    Taleban and Huo (Comput. Stat. Data Anal. 53, 2009), with Student's limits for mu.
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
