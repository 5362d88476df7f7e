"""Measure the coverage of confidence intervals in simulations with a known truth."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, inf, log, sqrt
from typing import Any

import numpy as np
from scipy.stats import binom

from paceline.simulator.engines import dispatch
from paceline.simulator.load.load import load, parse
from paceline.simulator.results import intervals
from paceline.simulator.results.intervals import CI95, LEVEL, MEAN, difference, positive
from paceline.simulator.results.prediction_interval import intervals as predicted
from paceline.simulator.results.run import Run
from paceline.simulator.results.statistics import crossing, seconds_per_step
from paceline.simulator.results.verdict import Compared, of_runs
from paceline.simulator.scenario.scenario import Scenario, World
from paceline.simulator.theory import theory

TITLE = "Intervals: how often they hold the truth"
HOW = (
    "python -m tests.lab.reliability coverage; "
    "with fewer intervals tests/results/test_interval_coverage.py"
)
SEEDS = 5  # seeds of an interval
WORKERS = 4
LEAST = 400  # intervals
PER_SECOND = 15  # intervals per second, roughly, for all rows together
TARGET = 0.5
REPLICATES = 8
REMARKS = """\
The first six rows: five seeds each, by simulation. The time to the target is a sum of four steps
only, each the slowest of four exponential times, so it is skewed.

The rows by law: a run's value follows the law itself, more skewed than any sum of steps. An
interval is right if it contains its quantity, the mean or the median. Where a law has no
finite variance, as Pareto's up to alpha = 2, the median of four seeds is known with 87.5 % at
best, and the intervals say so."""

Row = dict[str, Any]


def measure(seconds: float) -> list[Row]:
    """Return a row per kind of interval; more `seconds` give more intervals."""
    blocks = max(LEAST, int(PER_SECOND * seconds))
    simulated = [*over_seeds(blocks), *paired(blocks), calibrated(max(100, blocks // 4))]
    return [*simulated, *by_law(blocks)]


def bounds(row: Row, share: float, sure: float = 1e-4) -> tuple[float, float]:
    """Return bounds of the number of rows tried that succeed with probability `share`."""
    low, high = binom.ppf([sure, 1 - sure], row["tried"], share)
    return float(low), float(high)


def figure2(steps: int) -> Scenario:
    """Load AdaComm's figure 2 with fewer steps; Theorem 1 gives its step times."""
    changes = [f"cluster.workers={WORKERS}", f"run.steps={steps}", "run.evaluate_every=10"]
    return load("adacomm/figure2", changes)


def truths(world: Scenario) -> dict[str, float]:
    """Return the expected seconds per step of ssgd and of every period, by theory."""
    expected = theory(world)
    paces = {f"local-sgd tau={row['tau']}": row["seconds_per_step"] for row in expected["periods"]}
    return paces | {"ssgd": expected["sync_seconds_per_step"]}


def run(world: Scenario, index: int, seeds: int) -> list[Run]:
    """Run one of the algorithms with many seeds at once."""
    algorithm = world.algorithm[index]
    return dispatch.run_seeds(world, algorithm, range(seeds), spans=0, engine="batched")


def cut(values: Sequence[float]) -> np.ndarray:
    """Cut values of runs into blocks of `SEEDS`, each like one user's seeds."""
    return np.asarray(values).reshape(-1, SEEDS)


def row(what: str, truth: float, intervals: Sequence[Sequence[float] | None]) -> Row:
    """Count the intervals that contain the truth."""
    held = sum(ends is not None and ends[0] <= truth <= ends[1] for ends in intervals)
    return {"what": what, "tried": len(intervals), "handled": held, "how": HOW}


def over_seeds(blocks: int) -> list[Row]:
    """Return rows for means over seeds: seconds per step, and the time to a target.

    The loss of a quadratic without noise depends only on the step, so the time to a target is a
    fixed number of steps at ssgd's expected step time.
    """
    world = figure2(20)
    runs, pace = run(world, 0, blocks * SEEDS), truths(world)["ssgd"]
    paces = [positive(block, of=MEAN) for block in cut([seconds_per_step(item) for item in runs])]
    actual = [
        row(f"{LEVEL:.0%} of seconds per step", pace, [item.interval for item in paces]),
        row(f"{CI95:.0%} of seconds per step (`ci95`)", pace, [item.ci95 for item in paces]),
    ]
    falling = parse(
        world.table
        | {
            "objective": {"kind": "quadratic", "dimension": 2, "noise": 0.0},
            "optimizer": {"lr": 0.1},
            "run": {"steps": 10, "target_loss": TARGET, "evaluate_every": 1},
            "algorithm": [{"name": "ssgd"}],
        }
    )
    runs = run(falling, 0, blocks * SEEDS)
    losses = runs[0].curve["loss"]
    steps = float(np.interp(-TARGET, [-loss for loss in losses], runs[0].curve["step"]))
    times = cut([crossing(item, TARGET) for item in runs])
    times = [positive(block, of=MEAN).interval for block in times]
    return [*actual, row(f"{LEVEL:.0%} of the time to a target", steps * pace, times)]


def paired(blocks: int) -> list[Row]:
    """Return rows for differences between algorithms with equal delays, seed by seed.

    One row follows the pick of `simulate` (which must not separate equals), one the ranking of
    `tune`.
    """
    world = figure2(20)
    truth = truths(world)
    gap = truth["ssgd"] - truth["local-sgd tau=10"]
    slow, quick = run(world, 0, blocks * SEEDS), run(world, 2, blocks * SEEDS)
    paces = [cut([seconds_per_step(item) for item in runs]) for runs in (slow, quick)]
    picked = [difference(*pair).interval for pair in zip(*paces, strict=True)]
    ranked = [
        Compared({"slow": one, "quick": other}).behind("slow", "quick", heavy=False).interval
        for one, other in zip(*paces, strict=True)
    ]
    return [
        row(f"{LEVEL:.0%} of the difference between two algorithms (pick)", gap, picked),
        row(f"{LEVEL:.0%} of how far one is behind the best (tune)", gap, ranked),
        _no_better(blocks),
    ]


def _no_better(blocks: int) -> Row:
    """Return a row for two truly equal algorithms, between which the pick is undecided.

    They are two groups of seeds of one algorithm. Chance decides which one leads, so one end of the
    interval, 5 %, errs on both sides: 90 % are undecided.
    """
    runs = run(figure2(20), 0, 2 * blocks * SEEDS)
    half = len(runs) // 2
    undecided = 0
    for start in range(0, half, SEEDS):
        groups = {"one": runs[start : start + SEEDS]}
        groups["two"] = runs[half + start : half + start + SEEDS]
        undecided += not of_runs(groups, None).decided
    what = f"undecided ({LEVEL:.0%}) between equals, by the pick"
    return {"what": what, "tried": blocks, "handled": undecided, "how": HOW}


def calibrated(blocks: int) -> Row:
    """Return rows for 90 % intervals of a real run's time, predicted from measured numbers.

    A true step takes 1 s times a factor of the run; a profile's number is wrong by its stated
    standard error, and runs differ by `run_to_run`.
    """
    error, spread = 0.05, 0.03
    random = np.random.default_rng(5)
    intervals, measured = [], []
    for block in range(blocks):
        off = float(np.exp(error * random.standard_normal()))
        world = _profiled(off, error, spread)
        numbers = range(block * REPLICATES, (block + 1) * REPLICATES)
        options: Row = {"spans": 0, "engine": "batched"}
        algorithm = world.algorithm[0]
        runs = dispatch.run_seeds(world, algorithm, range(4), **options)
        written = World(world, algorithm)
        seeds = [number % 4 for number in range(REPLICATES)]
        others = dispatch.run_replicates(written, seeds, numbers, **options)
        prediction = predicted(runs, others, target=None, paired=False)
        intervals.append(prediction["seconds_per_step"])
        (real,) = dispatch.run_seeds(_profiled(1.0, 0, 0), algorithm, [1000 + block], **options)
        measured.append(seconds_per_step(real) * float(np.exp(spread * random.standard_normal())))
    held = sum(
        interval is not None and interval[0] <= value <= interval[1]
        for interval, value in zip(intervals, measured, strict=True)
    )
    what = f"{LEVEL:.0%} of a real run's seconds per step (replicates of a profile)"
    return {"what": what, "tried": blocks, "handled": held, "how": HOW}


def _profiled(step: float, error: float, spread: float) -> Scenario:
    sd = {"cluster.compute": error} if error else {}
    law = {"dist": "gamma", "mean": f"{step} s", "shape": 9}
    return parse(
        {
            "model": {"parameters": 1000},
            "cluster": {"workers": 2, "compute": law},
            "network": {"collective": "given", "duration": "0 s"},
            "run": {"steps": 20},
            "algorithm": [{"name": "ssgd"}],
            "calibration": {"sd": sd, "run_to_run": spread, "replicates": REPLICATES},
        }
    )


# By the law of a run's value and the number of seeds


@dataclass(frozen=True)
class KnownLaw:
    """A law of times whose mean and median are known; `draw` takes a generator and a shape."""

    name: str
    draw: Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
    mean: float
    median: float

    @property
    def heavy(self) -> bool:
        """Return whether its variance is infinite, as determined for scenarios."""
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


def by_law(tries: int) -> Iterator[dict[str, Any]]:
    """Yield a row per law and number of seeds; `level`: the lowest claimed level."""
    for law in LAWS:
        for seeds in (4, 8, 32):
            draws = law.draw(np.random.default_rng(11), (tries, seeds))
            yield law_row(law, seeds, [intervals.positive(draw, heavy=law.heavy) for draw in draws])


def law_row(law: KnownLaw, seeds: int, estimates: list[intervals.Estimate]) -> dict[str, Any]:
    """Count the intervals that contain the estimated quantity."""
    held = 0
    for problem in estimates:
        assert problem.interval is not None
        truth = law.mean if problem.of == intervals.MEAN else law.median
        held += problem.interval[0] <= truth <= problem.interval[1]
    of = Counter(item.of for item in estimates)
    level = min(item.level or 0.0 for item in estimates)
    text = ", ".join(f"{100 * count / len(estimates):.0f} % {name}s" for name, count in of.items())
    return {
        "what": f"{law.name}; {seeds} seeds",
        "tried": len(estimates),
        "handled": held,
        "how": HOW,
        "note": f"{100 * held / len(estimates):.1f} % hold, claimed: {100 * level:.3g} %; {text}",
        "level": level,
        "heavy": law.heavy,
    }
