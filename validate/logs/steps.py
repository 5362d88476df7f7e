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
OUTLIERS = 0.02  # relative difference of means with and without outliers that a note reports
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
        """Number of waits in the first n steps, n = 0 .. period."""
        hits = np.isin(np.arange(1, self.period + 1) % self.period, [*self.waits])
        return np.concatenate([[0], np.cumsum(hits)])

    def upto(self, step: Array) -> Array:
        """Return how many of the steps 1 .. `step` wait."""
        laps, rest = np.divmod(step, self.period)
        waits: Array = laps * self.counts[-1] + self.counts[rest]
        return waits

    @property
    def share(self) -> float:
        """Share of the steps that wait."""
        return len(self.waits) / self.period


@dataclass(frozen=True, eq=False)
class Observed:
    """A job's log as means in seconds: of `compute`, nan if unknown, and the `pace`.

    Outliers count less for the pace than for the `mean` step. `covariance`: of the logarithms of
    compute and pace. `times`: by rank, the computing that the log shows step by step, else whole
    steps (`computing` is False).
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
        (done,) = run_seeds(scenario.model_copy(update=update), scenario.algorithm[0], [0])
        time = np.asarray(done.curve["time"])
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
    """Reduce a job's log to its means. Raises InputError."""
    log, pauses = without_pauses(job.log, job.name)
    every, lasted = pattern(job.scenario), log.seconds / log.steps
    if len(lasted) < LEAST:
        raise InputError(f"{log.path}: {len(lasted)} lines after the warm-up; give {LEAST} or more")
    single = log.steps == 1
    shift, notes = _phase(every, log.step[single], lasted[single], job.name)
    waits = every.upto(log.step + shift) - every.upto(log.step + shift - log.steps.astype(int))
    excess = waits / log.steps - every.share
    design = np.stack([np.ones(len(excess)), excess], axis=1)
    divided = min(int((excess < 0).sum()), int((excess > 0).sum())) >= LEAST
    design = design if divided else design[:, :1]
    known = not np.isnan(log.compute).any()
    values = (log.seconds - log.compute) / log.steps if known else lasted
    laps = np.unique((log.step + shift - 1) // every.period, return_inverse=True)[1]
    if laps[-1] < FEW:
        laps = np.unique(log.step, return_inverse=True)[1]
    fitted, errors = _regression(design, values, log.steps, laps)
    compute, pace, covariance = job.compute or math.nan, float(fitted[0]), np.zeros((2, 2))
    covariance[1, 1] = errors[0, 0]
    if known:
        compute = float(log.compute.sum() / log.steps.sum())
        pace += compute
        covariance += float(log.compute.var()) / len(lasted)
    elif divided and not job.compute:  # what a step takes that does not wait, and the pace
        to = np.array([[1.0, -every.share], [1.0, 0.0]])
        compute, covariance = float(to[0] @ fitted), to @ errors @ to.T
        if compute <= 0:
            raise InputError(
                f"{log.path}: steps without communication take no time ({compute:.3g} s); is it a "
                f"log of {job.scenario.algorithm[0].words}?"
            )
    if job.compute and compute > pace:
        raise InputError(
            f"{log.path}: its mean step takes {human(pace)}, less than the compute = "
            f"{human(compute)} that was stated; correct one of them"
        )
    mean, outliers = _mean_step(log, design, pace, job.name)
    scale = np.array([compute if compute > 0 else 1.0, pace])
    shown = log.compute if known else np.where(single & (waits == 0), log.seconds, math.nan)
    computing = bool((~np.isnan(shown)).sum() >= LEAST)
    shown = shown if computing else lasted
    ranks = [shown[(log.rank == rank) & ~np.isnan(shown)] for rank in np.unique(log.rank)]
    return Observed(
        job, every, compute, pace, mean, covariance / np.outer(scale, scale),
        [times for times in ranks if len(times)], computing,
        (*log.notes, *pauses, *notes, *outliers),
    )  # fmt: skip


def _mean_step(log: Log, design: Array, pace: float, name: str) -> tuple[float, list[str]]:
    """Return the mean step, in which outliers count in full, and say where they matter."""
    lasted, root = log.seconds / log.steps, np.sqrt(log.steps)
    # plain least squares: a log may end within a period
    mean = float(np.linalg.lstsq(design * root[:, None], lasted * root, rcond=None)[0][0])
    if abs(mean / pace - 1) <= OUTLIERS:
        return mean, []
    long = log.step[lasted > FAR * np.median(lasted)]
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
    rest = {row: getattr(log, row)[~far] for row in ROWS}
    note = f"{name}: a pause every {gaps[0]} steps ({far.sum()} in all) is left out"
    return replace(log, **rest), [note]


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
            size = np.abs(missed[rows])
            limit = HUBER * (1.4826 * float(np.median(size)) or float(size.max()))
            robust[rows] = limit / np.maximum(size, limit) if limit else 1.0
        if np.allclose(before, robust, atol=1e-4):
            break
    fitted[0] += np.average(missed[groups[0]], weights=weights[groups[0]])
    score = [np.bincount(laps, column) for column in (design * (weights * missed)[:, None]).T]
    covariance = inverse @ np.atleast_2d(score @ np.transpose(score)) @ inverse
    sums = np.bincount(laps, values - design @ fitted).astype(float)
    correlation = independence.inflation([sums])
    return fitted, covariance * max(correlation, 1.0)


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
    waits = np.isin(np.arange(every.period), [*every.waits])
    scores = []  # by how much longer the steps that wait take with each shift
    for shift in range(every.period):
        long, short = (mean[np.roll(kind, -shift)] for kind in (waits, ~waits))
        clear = not (np.isnan(long).all() or np.isnan(short).all())
        scores.append(float(np.nanmean(long) - np.nanmean(short)) if clear else -math.inf)
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
