"""Divide a log's time into computing and communicating.

An algorithm communicates at known steps, so that two numbers of a log are enough: the mean of the
steps that do not communicate, which is computing, and the pace of all. Where every step
communicates, only the pace is known; several links, or a column, separate the two.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from paceline.simulator.distributions.parametric import Constant
from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.errors import InputError
from paceline.simulator.results.statistics import human
from paceline.simulator.scenario.overhead import Overhead
from paceline.simulator.scenario.scenario import Scenario

from ..calibration import independence
from .jobs import Job
from .tables import ROWS, Log

Array = np.ndarray

LONG = 1000.0  # seconds of a collective beside steps of one, so that none hides behind computing
LENGTHS = 64, 1024, 16384  # steps in which a period is sought, fewer first
HUBER = 3.0  # robust standard deviations, from which a step counts less
CLEAR = 0.5  # of the clearest phase's contrast, from which the usual phase is taken
APART = 0.02  # relative difference of means with and without outliers, from which a note says so
LEAST = 4  # rows of a kind, from which their mean is known
FAR, RARE = 3.0, 0.05  # times as long as almost all steps; share of those that may be so
FEW = 8  # periods, from which they show by how much they differ


@dataclass(frozen=True)
class Pattern:
    """The steps at which an algorithm waits: those whose number, modulo `period`, is in `waits`."""

    period: int
    waits: frozenset[int]

    @cached_property
    def counts(self) -> Array:
        """How many of the first n steps wait, n = 0 .. period."""
        hits = np.isin(np.arange(1, self.period + 1) % self.period, [*self.waits])
        return np.concatenate([[0], np.cumsum(hits)])

    def upto(self, step: Array) -> Array:
        """Return how many of the steps 1 .. `step` wait."""
        laps, rest = np.divmod(step, self.period)
        found: Array = laps * self.counts[-1] + self.counts[rest]
        return found

    @property
    def share(self) -> float:
        """Share of the steps that wait."""
        return len(self.waits) / self.period


@dataclass(frozen=True, eq=False)
class Observed:
    """A job's log in two numbers, means in seconds: of `compute`, nan if unknown, and the `pace`,
    for which outliers count less than for the `mean` step.

    `covariance`: of their logarithms. `times`: by rank, the computing that the log shows step by
    step, else whole steps (`computing` is False). `notes`: in sentences.
    """

    job: Job
    pattern: Pattern
    compute: float
    pace: float
    mean: float
    covariance: Array
    times: list[Array]
    computing: bool
    notes: tuple[str, ...]


def pattern(scenario: Scenario) -> Pattern:
    """Find the steps at which a scenario's algorithm waits, by simulation of a slow network."""
    slow = Overhead.model_construct(collective=LONG)
    constant = Constant.model_construct(value=1.0)
    cluster = scenario.cluster.model_copy(update={"compute": constant})
    for length in LENGTHS:
        run = scenario.run.model_copy(update={"steps": length, "evaluate_every": 1})
        update = {"overhead": (slow,), "cluster": cluster, "run": run}
        (found,) = run_seeds(scenario.model_copy(update=update), scenario.algorithm[0], [0])
        time = np.asarray(found.curve["time"])
        waits = np.diff(time, prepend=0.0)[-length:] > 0.5 * LONG
        later = waits[length // 4 :]
        for period in range(1, length // 3):
            if np.array_equal(later[period:], later[:-period]):
                numbers = np.flatnonzero(later[:period]) + length // 4 + 1
                return Pattern(period, frozenset((numbers % period).tolist()))
    raise InputError(
        f"{scenario.algorithm[0].words}: communicates at no fixed period in {LENGTHS[-1]} steps; "
        "give logs of an algorithm that does"
    )


def observe(job: Job) -> Observed:
    """Reduce a job's log to its means."""
    log, left_out = without_pauses(job.log, job.name)
    every, each = pattern(job.scenario), log.seconds / log.steps
    if len(each) < LEAST:
        raise InputError(f"{log.path}: {len(each)} lines after the warm-up; give {LEAST} or more")
    shift, notes = _phase(every, log.step[log.steps == 1], each[log.steps == 1], job.name)
    waits = every.upto(log.step + shift) - every.upto(log.step + shift - log.steps.astype(int))
    ranks = [np.flatnonzero(log.rank == rank) for rank in np.unique(log.rank)]
    known = not np.isnan(log.compute).any()
    share = waits / log.steps
    design = np.stack([np.ones(len(share)), share - every.share], axis=1)
    fewest = min(int((share < every.share).sum()), int((share > every.share).sum()))
    divided = fewest >= LEAST
    if not divided:
        design = design[:, :1]
    values = (log.seconds - log.compute) / log.steps if known else each
    laps = np.unique((log.step + shift - 1) // every.period, return_inverse=True)[1]
    if laps[-1] < FEW:
        laps = np.unique(log.step, return_inverse=True)[1]
    fitted, covariance = _regression(design, values, log.steps, laps)
    sums = np.bincount(laps, values - design @ fitted).astype(float)
    inflated = independence.inflation([sums])
    covariance = covariance * max(inflated, 1.0)
    if known:
        compute = float(log.compute.sum() / log.steps.sum())
        pace, variance = compute + float(fitted[0]), float(log.compute.var()) / len(each)
        covariance = np.full((2, 2), variance) + np.diag([0.0, float(covariance[0, 0])])
    elif job.compute:
        compute, pace = job.compute, float(fitted[0])
        covariance = np.diag([0.0, float(covariance[0, 0])])
    elif divided:  # the pace, and what a step that does not wait takes
        to = np.array([[1.0, -every.share], [1.0, 0.0]])
        compute, pace = (to @ fitted).tolist()
        covariance = to @ covariance @ to.T
        if compute <= 0:
            raise InputError(
                f"{log.path}: steps without communication take no time ({compute:.3g} s); is it a "
                f"log of {job.scenario.algorithm[0].words}?"
            )
    else:
        compute, pace = math.nan, float(fitted[0])
        covariance = np.diag([1.0, float(covariance[0, 0])])
    mean, said = _mean_step(log, design, pace, job.name)
    if job.compute and compute > pace:
        raise InputError(
            f"{log.path}: its mean step takes {human(pace)}, less than the compute = "
            f"{human(compute)} that was stated; correct one of them"
        )
    scale = np.array([compute if compute > 0 else 1.0, pace])
    alone = (log.steps == 1) & (waits == 0)
    shown = log.compute if known else np.where(alone, log.seconds, math.nan)
    computing = bool((~np.isnan(shown)).sum() >= LEAST)
    if not computing:
        shown = each
    times = [shown[rows][~np.isnan(shown[rows])] for rows in ranks]
    return Observed(
        job, every, compute, pace, mean, covariance / np.outer(scale, scale),
        [own for own in times if len(own)], computing, (*log.notes, *left_out, *notes, *said),
    )  # fmt: skip


def _mean_step(log: Log, design: Array, pace: float, name: str) -> tuple[float, list[str]]:
    """Return the mean step, in which outliers count in full, and say where they matter."""
    each, root = log.seconds / log.steps, np.sqrt(log.steps)
    # plain least squares: a log may end within a period
    mean = float(np.linalg.lstsq(design * root[:, None], each * root, rcond=None)[0][0])
    if abs(mean / pace - 1) <= APART:
        return mean, []
    long = log.step[each > FAR * np.median(each)]
    where = f" ({long.min()} to {long.max()}; were they warm-up?)" if len(long) else ""
    return mean, [
        f"{name}: a few steps{where}, far longer than others of their kind, count less: with them "
        f"its mean step takes {mean / pace - 1:+.1%}"
    ]


def without_pauses(log: Log, name: str) -> tuple[Log, list[str]]:
    """Leave out steps, far longer than all others, that come at one distance: evaluations, saves.

    Slow workers come at any distance, and stay.
    """
    far = log.seconds > FAR * np.quantile(log.seconds, 1 - RARE)
    gaps = np.diff(np.unique(log.step[far]))
    if len(gaps) < 2 or np.ptp(gaps) or far.mean() > RARE:
        return log, []
    kept = {row: getattr(log, row)[~far] for row in ROWS}
    said = f"{name}: a pause every {gaps[0]} steps ({far.sum()} in all) is left out"
    return replace(log, **kept), [said]


def _regression(design: Array, values: Array, weights: Array, laps: Array) -> tuple[Array, Array]:
    """Return coefficients and their covariance, by least squares in which outliers count less.

    Huber's weights, by the spread of steps that wait less than the mean and of those that wait
    more, keep a few delayed collectives from deciding the mean of some dozen. What they leave out
    of the first on average is added again, so that a skewed law of computing keeps its mean. Rows
    of one of the `laps` are not independent: a worker that computes for long waits for less long,
    and ranks share their waits (Liang and Zeger 1986).
    """
    groups = [rows for rows in (design[:, -1] <= 0, design[:, -1] > 0) if rows.any()]
    robust = np.ones(len(values))
    for _ in range(20):
        w = weights * robust
        inverse = np.linalg.inv(design.T @ (w[:, None] * design))
        fitted = inverse @ (design.T @ (w * values))
        missed = values - design @ fitted
        before = robust.copy()
        for rows in groups:
            own = np.abs(missed[rows])
            limit = HUBER * (1.4826 * float(np.median(own)) or float(own.max()))
            robust[rows] = limit / np.maximum(own, limit) if limit else 1.0
        if np.allclose(before, robust, atol=1e-4):
            break
    fitted[0] += np.average(missed[groups[0]], weights=weights[groups[0]])
    score = [np.bincount(laps, column) for column in (design * (weights * missed)[:, None]).T]
    return fitted, inverse @ np.atleast_2d(score @ np.transpose(score)) @ inverse


def _phase(every: Pattern, step: Array, lasted: Array, name: str) -> tuple[int, list[str]]:
    """Return what to add to a log's numbers of steps so that they wait as the algorithm's do.

    Steps are numbered from 1 or from 0; a log may also begin anywhere, or count a wait with the
    step after it. The usual numbers are taken unless others divide the log far more clearly.
    """
    if every.share in (0.0, 1.0) or not len(step):
        return 0, []
    rest = step % every.period
    count = np.bincount(rest, minlength=every.period)
    mean = np.bincount(rest, np.minimum(lasted, 20 * np.median(lasted)), every.period)
    mean = np.divide(mean, count, where=count > 0, out=np.full(every.period, np.nan))
    scores = [_contrast(every, mean, shift) for shift in range(every.period)]
    best, usual = int(np.argmax(scores)), int(scores[1] > scores[0])
    if scores[usual] > 0 and scores[usual] >= CLEAR * scores[best]:
        return usual, []
    if scores[best] <= 0:
        return 0, [
            f"{name}: steps at which its workers wait take no longer than others; does the log "
            "leave communication out?"
        ]
    first = min(n for n in range(every.period) if (n + best) % every.period in every.waits)
    return best, [
        f"{name}: its workers wait at steps {first}, {first + every.period}, ..., as the log shows"
    ]


def _contrast(every: Pattern, mean: Array, shift: int) -> float:
    """Return how much longer the steps that wait take, if `shift` is added to their numbers."""
    waits = np.isin((np.arange(every.period) + shift) % every.period, [*every.waits])
    if np.isnan(mean[waits]).all() or np.isnan(mean[~waits]).all():
        return -math.inf
    return float(np.nanmean(mean[waits]) - np.nanmean(mean[~waits]))
