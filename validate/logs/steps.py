"""Divide a log's time into computing and communicating.

An algorithm communicates at known steps, so two numbers of a log are enough: the mean of steps
without communication, which is the compute time, and the mean of all steps. If every step
communicates, only the second is known; several links, or a column, separate the two.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from paceline.simulator.distributions.parametric import Constant
from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.errors import InputError
from paceline.simulator.results.statistics import human
from paceline.simulator.scenario.overhead import Overhead
from paceline.simulator.scenario.scenario import Scenario

from ..calibration.independence import jackknife
from .jobs import Job
from .tables import ROWS, Log

Array = np.ndarray

LONG = 1000.0  # seconds of a collective, which does not hide behind steps of 1 s
LENGTHS = 64, 1024, 16384  # numbers of steps in which to look for a period
CLEAR = 0.5  # share of the clearest phase's contrast above which the usual phase holds
LEAST = 4  # fewest rows of a kind that give a mean
FAR, RARE = 3.0, 0.05  # a pause is this many times as long as usual; largest share of pauses
NOTABLE = 0.1  # share of the time in slow lines from which a note names them
CLEARLY = 0.02  # relative excess over the stated compute time above which a step communicates
FEW = 8  # fewest periods that show their spread


@dataclass(frozen=True, eq=False)
class Pattern:
    """The steps at which an algorithm waits: `waits[step % period]`."""

    waits: Array

    @property
    def period(self) -> int:
        """Return the number of steps after which the pattern repeats."""
        return len(self.waits)

    @property
    def share(self) -> float:
        """Return the share of the steps that wait for communication."""
        return float(self.waits.mean())

    def upto(self, step: Array) -> Array:
        """Return how many of the steps 1 to `step` wait for communication."""
        counts = np.append(0, np.cumsum(np.roll(self.waits, -1)))
        periods, rest = np.divmod(step, self.period)
        return np.asarray(periods * counts[-1] + counts[rest])


@dataclass(frozen=True, eq=False)
class Observed:
    """A job's log as means in seconds: `compute`, nan if unknown, and `pace` per step.

    `pace`: the mean of the log's steps, of which `waits` times the usual share wait. `covariance`:
    of the logarithms of compute and pace. `times`: by rank, compute times step by step or, if
    `computing` is False, whole steps.
    """

    job: Job
    pattern: Pattern
    compute: float
    pace: float
    covariance: Array
    times: list[Array]
    computing: bool
    notes: tuple[str, ...]
    waits: float = 1.0


def pattern(scenario: Scenario) -> Pattern:
    """Return the steps at which an algorithm waits, on a slow network."""
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
                return Pattern(np.roll(later[:period], length // 4 + 1))
    raise InputError(
        f"{scenario.algorithm[0].words}: has no fixed period within {LENGTHS[-1]} steps; give logs "
        "of an algorithm that has one"
    )


def observe(job: Job) -> Observed:
    """Reduce a job's log to its means. Raises InputError."""
    log, notes = without_pauses(job.log, job.name)
    waiting, lasted = pattern(job.scenario), log.seconds / log.steps
    if len(lasted) < LEAST:
        raise InputError(f"{log.path}: {len(lasted)} lines after the warm-up; give {LEAST} or more")
    single = log.steps == 1
    shift, of_phase = _phase(waiting, log.step[single], lasted[single], job)
    waits = waiting.upto(log.step + shift) - waiting.upto(log.step + shift - log.steps.astype(int))
    excess = waits / log.steps - waiting.share
    divided = min(int((excess < 0).sum()), int((excess > 0).sum())) >= LEAST
    share = waits.sum() / log.steps.sum()
    times_as_often = 1.0 if divided or not waiting.share else float(share / waiting.share)
    measured = not np.isnan(log.compute).any()
    root = np.sqrt(log.steps)
    design = np.stack([root, root * excess], axis=1)[:, : 1 + divided]

    def means(rows: Array) -> Array:
        """Return the mean compute time, nan if unknown, and the mean step time."""
        pace, *wait = np.linalg.lstsq(design[rows], (root * lasted)[rows], rcond=None)[0]
        if measured:
            return np.array([log.compute[rows].sum() / log.steps[rows].sum(), pace])
        compute = job.compute
        if not compute and (divided or not times_as_often):
            compute = pace - waiting.share * (wait[0] if divided else 0.0)
        return np.array([compute or math.nan, pace])

    # Rows of one period are not independent: a worker that computes longer waits less.
    periods = np.unique((log.step + shift - 1) // waiting.period, return_inverse=True)[1]
    if periods[-1] < FEW:
        periods = np.unique(log.step, return_inverse=True)[1]
    compute, pace = means(np.ones(len(lasted), bool))
    scale = np.array([compute, pace])
    covariance = np.nan_to_num(jackknife(means, periods) / np.outer(scale, scale))
    if compute <= 0:
        raise InputError(
            f"{log.path}: steps without communication take no time ({compute:.3g} s); is it a log "
            f"of {job.scenario.algorithm[0].words}?"
        )
    if job.compute and compute > pace:
        raise InputError(
            f"{log.path}: its mean step takes {human(pace)}, less than the compute = "
            f"{human(compute)} that was stated; correct one of them"
        )
    shown = log.compute if measured else np.where(single & (waits == 0), log.seconds, math.nan)
    computing = bool((~np.isnan(shown)).sum() >= LEAST)
    shown = shown if computing else lasted
    ranks = [shown[(log.rank == rank) & ~np.isnan(shown)] for rank in np.unique(log.rank)]
    times, all_notes = [part for part in ranks if len(part)], (*log.notes, *notes, *of_phase)
    numbers = float(compute), float(pace), covariance
    return Observed(job, waiting, *numbers, times, computing, all_notes, times_as_often)


def without_pauses(log: Log, name: str) -> tuple[Log, list[str]]:
    """Leave out regular pauses, such as evaluations and saves.

    Slow steps at irregular intervals stay in the log.
    """
    far = log.seconds > FAR * np.quantile(log.seconds, 1 - RARE)
    gaps = np.diff(np.unique(log.step[far]))
    if len(gaps) < 2 or np.ptp(gaps) or far.mean() > RARE:
        share = log.seconds[far].sum() / log.seconds.sum()
        note = f"{name}: {far.sum()} far slower lines have {share:.0%} of the time, and count; "
        return log, [note + "leave out pauses and jumps of a clock"] * bool(share > NOTABLE)
    rest = {row: getattr(log, row)[~far] for row in ROWS}
    note = f"{name}: a pause every {gaps[0]} steps ({far.sum()} in all) is left out"
    return replace(log, **rest), [note]


def _phase(pattern: Pattern, step: Array, lasted: Array, job: Job) -> tuple[int, list[str]]:
    """Return the shift of waiting steps: numbers from 1 or 0, unless another is clearer."""
    if pattern.share in (0.0, 1.0) or not len(step):
        return 0, []
    waiting = pattern.waits[(step + np.arange(pattern.period)[:, None]) % pattern.period]
    both = np.asarray(waiting.any(axis=1) & ~waiting.all(axis=1))
    if not both.any():
        return _one_phase(waiting[:2, 0], step, lasted, job)
    usual_most = np.minimum(lasted, 20 * np.median(lasted))
    scores = [  # seconds by which waiting steps are longer, for each shift
        usual_most[row].mean() - usual_most[~row].mean() if mixed else -math.inf
        for row, mixed in zip(waiting, both, strict=True)
    ]
    best, usual = int(np.argmax(scores)), int(scores[1] > scores[0])
    if scores[usual] > 0 and scores[usual] >= CLEAR * scores[best]:
        return usual, []
    if scores[best] <= 0:
        return 0, [
            f"{job.name}: steps at which its workers wait take no longer than others; does the log "
            "omit communication?"
        ]
    first = int(np.argmax(np.roll(pattern.waits, -best)))
    more = f"{first + pattern.period}, ..., as the log shows"
    return best, [f"{job.name}: its workers wait at steps {first}, {more}"]


def _one_phase(waits: Array, step: Array, lasted: Array, job: Job) -> tuple[int, list[str]]:
    """Return the shift of a log of every k-th step, of which all or none wait."""
    every = int(np.diff(np.unique(step)).min(initial=step.max()))
    shift = 0
    if waits[0] != waits[1]:
        from_one, from_zero = step[0] % every == 0, (step[0] + 1) % every == 0
        if job.compute:
            shift = int(waits[1] == (lasted.mean() > (1 + CLEARLY) * job.compute))
        elif waits[0] and not job.from_zero:
            shift = 0
        elif from_zero and not from_one:
            shift = 1
        else:
            raise InputError(
                f"{job.log.path}: whether its steps {step[0]}, {step[0] + every}, ... average "
                "depends on whether steps count from 0 or 1; log every step, or write "
                'compute = "..." into the [[job]]'
            )
    what = "averages" if waits[shift] else "computes alone"
    return shift, [
        f"{job.name}: has only every {every}th step, which {what}; the law of the links "
        "gives the mean of all steps"
    ]
