"""Coverage of confidence intervals, by simulation where the truth is known."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import binom

from paceline.simulator.engines import dispatch
from paceline.simulator.load.load import load, parse
from paceline.simulator.results.intervals import CI95, LEVEL, MEAN, difference, positive
from paceline.simulator.results.prediction_interval import intervals as predicted
from paceline.simulator.results.run import Run
from paceline.simulator.results.statistics import crossing, seconds_per_step
from paceline.simulator.results.verdict import Compared, of_runs
from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.theory import theory
from tests.lab.reliability import laws
from tests.lab.reliability.laws import HOW

TITLE = "Intervals: how often they hold the truth"
SEEDS = 5  # of an interval
WORKERS = 4
LEAST = 400  # intervals
PER_SECOND = 15  # of these, about, for all rows together
TARGET = 0.5
REPLICATES = 8
REMARKS = """\
The first six rows: five seeds each, by simulation. The time to the target is a sum of four steps
only, each the slowest of four exponential times, and so skewed.

The rows by law: a run's value follows the law itself, more skewed than any sum of steps. An
interval is right if it holds what it says it is of, the mean or the median. Where a law has no
finite variance, as Pareto's up to alpha = 2, the median of four seeds is known with 87.5 % at
best, and the intervals say so."""

Row = dict[str, Any]


def measure(seconds: float) -> list[Row]:
    """Return a row for each kind of interval; `seconds` buy more of them."""
    blocks = max(LEAST, int(PER_SECOND * seconds))
    simulated = [*over_seeds(blocks), *paired(blocks), calibrated(max(100, blocks // 4))]
    return [*simulated, *laws.rows(blocks)]


def bounds(row: Row, share: float, sure: float = 1e-4) -> tuple[float, float]:
    """Return bounds of the number of intervals that hold the truth, if each does with `share`."""
    low, high = binom.ppf([sure, 1 - sure], row["tried"], share)
    return float(low), float(high)


def figure2(steps: int) -> Scenario:
    """Load AdaComm's figure 2, whose paces Theorem 1 gives, with fewer steps."""
    changes = [f"cluster.workers={WORKERS}", f"run.steps={steps}", "run.evaluate_every=10"]
    return load("adacomm/figure2", changes)


def truths(world: Scenario) -> dict[str, float]:
    """Return expected seconds per step of ssgd and of each period, by theory."""
    found = theory(world)
    paces = {f"local-sgd tau={row['tau']}": row["seconds_per_step"] for row in found["periods"]}
    return paces | {"ssgd": found["sync_seconds_per_step"]}


def run(world: Scenario, index: int, seeds: int) -> list[Run]:
    """Run one of the algorithms with many seeds at once."""
    algorithm = world.algorithm[index]
    return dispatch.run_seeds(world, algorithm, range(seeds), spans=0, engine="batched")


def cut(values: Sequence[float]) -> np.ndarray:
    """Cut values of runs into blocks of `SEEDS`: each is what one user would have run."""
    return np.asarray(values).reshape(-1, SEEDS)


def row(what: str, truth: float, intervals: Sequence[Sequence[float] | None]) -> Row:
    """Count the intervals that hold the truth."""
    held = sum(found is not None and found[0] <= truth <= found[1] for found in intervals)
    return {"what": what, "tried": len(intervals), "handled": held, "how": HOW}


def over_seeds(blocks: int) -> list[Row]:
    """Intervals of a mean over seeds: seconds per step, and the time to a target.

    The loss of a quadratic without noise depends on the step alone, so that the time to a target
    is as many steps as that takes, at ssgd's expected pace.
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
    """Intervals of differences between algorithms that meet the same delays, seed by seed.

    As `simulate` picks (and does not separate two whose truths are equal), and as `tune` ranks.
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
    """Two algorithms of the same pace in truth: the pick is undecided.

    They are two groups of seeds of one algorithm. Which one leads is chance, so the interval's one
    end, 5 %, errs on both sides: it is undecided with 90 %.
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
    """90 % intervals of what a real run takes, predicted from numbers that were measured.

    In truth a step takes 1 s times each run's own factor; a profile's number is off by its standard
    error, and says so, and runs differ by `run_to_run`.
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
        written = dispatch.written(world, algorithm)
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
