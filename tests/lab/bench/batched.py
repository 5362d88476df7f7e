"""The batched engine against the random-number generator that limits it, and textbook SimPy."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from paceline.simulator.distributions import random_streams
from paceline.simulator.distributions.random_streams import Purpose
from paceline.simulator.engines.batched import run as batched
from paceline.simulator.engines.batched.compute_times import Draws, share
from paceline.simulator.engines.virtual import run as virtual
from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.studies import execution
from tests.lab.bench import textbook
from tests.lab.bench.engine import TAU, cluster
from tests.lab.bench.measure import Aim, Comparison, Quantity, Rate, rate

TITLE = "The batched engine, 32 seeds"
HEAD = "millions per second", "other"
THREADS = min(2, execution.cores())
SEEDS = range(32)
BLOCK = 5000  # numbers that the generator draws in one call
CALLS = 20  # of each generator
LOCAL = {"name": "local-sgd", "tau": TAU}
WORKERS = 1024
DIMENSION = 100

Make = Callable[[int, Purpose, int], np.random.Generator]


def together(scenario: Scenario, threads: int = THREADS) -> Callable[[], object]:
    """Return the work of running all seeds in one call."""
    return lambda: batched.run(scenario.algorithm[0], scenario, SEEDS, threads=threads)


def one_seed(scenario: Scenario) -> Callable[[], object]:
    """Return the work of running seed 0 by the reference engine."""
    return lambda: virtual.run(scenario.algorithm[0], scenario, 0)


def steps_of(scenario: Scenario) -> int:
    """Return the worker-steps of one seed."""
    return scenario.cluster.workers * (scenario.run.steps or 0)


def generator(make: Make, draw: Callable[[np.random.Generator], Any], each: float = 1.0) -> Rate:
    """Return the rate of generators that draw blocks and do nothing else, `each` units a number."""
    generators = [make(0, Purpose.COMPUTE, rank) for rank in range(256)]

    def block(own: np.random.Generator) -> None:
        for _ in range(CALLS):
            draw(own)

    numbers = len(generators) * CALLS * BLOCK
    return rate(lambda: share(block, generators, THREADS), each * numbers)


def large(steps: int, sampling: str = "keyed") -> Scenario:
    """Return local SGD on 1,024 workers."""
    return cluster(WORKERS, steps, LOCAL, run={"steps": steps, "sampling": sampling})


def drawing(threads: int) -> Rate:
    """Return the rate of drawing compute times: numbers."""
    scenario, legs = cluster(64, 1, LOCAL), [TAU] * 1600
    draws = Draws(scenario, SEEDS, threads)
    return rate(lambda: draws.legs(legs), 64 * sum(legs) * len(SEEDS))


def jumping(tau: int, momentum: float, sampling: str, steps: int) -> Rate:
    """Return the rate of local SGD on a quadratic, by one thread, with a schedule of rates."""
    lr = {"schedule": "warmup-cosine", "peak": 0.01, "steps": steps}
    made = cluster(
        4, steps, LOCAL | {"tau": tau, "momentum": momentum}, optimizer={"lr": lr},
        objective={"kind": "quadratic", "dimension": 48},
        run={"steps": steps, "sampling": sampling},
    )  # fmt: skip
    return rate(
        lambda: batched.run(made.algorithm[0], made, range(8), threads=1), 8 * steps_of(made)
    )


def most_memory(steps: int) -> float:
    """Return the peak resident memory (MiB) of a process that makes one large run, on Linux."""
    command = [sys.executable, "-m", "tests.lab.bench.batched", str(steps)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(found.stdout) / 1024


def rows() -> Iterator[Comparison | Quantity]:
    """Yield the rows to measure."""
    what = f"local SGD, {WORKERS:,} workers"
    units = WORKERS * len(SEEDS)
    yield Comparison(
        f"{what}: worker-steps, against the generator drawing one exponential number for each",
        rate(together(large(100_000)), 100_000 * units),
        generator(random_streams.generator, lambda own: own.exponential(1.0, BLOCK)), Aim(0.6),
    )  # fmt: skip
    yield Comparison(
        f'{what}, sampling = "aggregate": worker-steps, against drawing a gamma for each period',
        rate(together(large(100_000, "aggregate")), 100_000 * units),
        generator(random_streams.quick, lambda own: own.standard_gamma(TAU, BLOCK), TAU), Aim(0.5),
    )  # fmt: skip
    yield Quantity(
        f"{what}, 100,000 steps: most memory, MiB", lambda: most_memory(100_000), Aim(most=512),
        times=1, digits=0,
    )  # fmt: skip
    ours, reference = cluster(16, 100_000, LOCAL), cluster(16, 4000, LOCAL)
    fast = rate(together(ours), steps_of(ours) * len(SEEDS))
    what = "local SGD, 16 workers: worker-steps, against"
    yield Comparison(
        f"{what} textbook SimPy, one seed", fast,
        rate(lambda: textbook.local_sgd(16, TAU, 4000 // TAU, 1.0), 16 * 4000), Aim(100),
    )  # fmt: skip
    slow = rate(one_seed(reference), steps_of(reference))
    yield Comparison(f"{what} `virtual`, one seed", fast, slow)
    noisy = {"objective": {"kind": "quadratic", "dimension": DIMENSION}}
    ours, reference = cluster(16, 2000, LOCAL, **noisy), cluster(16, 400, LOCAL, **noisy)
    fast = rate(together(ours), steps_of(ours) * len(SEEDS))
    what = f"the same on a quadratic of dimension {DIMENSION}, against"
    yield Comparison(
        f"{what} the generator drawing its noise", fast,
        generator(
            random_streams.generator, lambda own: own.standard_normal(BLOCK), 1 / DIMENSION
        ), Aim(0.4),
    )  # fmt: skip
    slow = rate(one_seed(reference), steps_of(reference))
    yield Comparison(f"{what} `virtual`, one seed", fast, slow)
    aim = Aim(20)
    for tau, momentum in ((100, 0.0), (100, 0.9), (1000, 0.9)):
        yield Comparison(
            f"the same on a quadratic of dimension 48, 4 workers, 8 seeds, tau {tau}, momentum "
            f"{momentum:g}: a draw for each period, against steps",
            jumping(tau, momentum, "aggregate", 50_000), jumping(tau, momentum, "keyed", 2000), aim,
        )  # fmt: skip
    two, one = (drawing(threads) for threads in (THREADS, 1))
    yield Comparison(f"drawing compute times, {THREADS} threads against one", two, one)


if __name__ == "__main__":
    together(large(int(sys.argv[1])))()
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    print(re.search(r"VmHWM:\s+(\d+) kB", status)[1])  # ru_maxrss would include the parent's
