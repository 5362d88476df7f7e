"""How fast parameter servers are in compiled time, against the reference engine.

Both are run in turn and the ratio is taken pair by pair, because machines drift. `python -m
tests.bench.served` prints millions of updates per second, all seeds together, beside the figures
that the project holds itself to, and exits 1 if one is missed.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from simulator.engines import served, virtual
from simulator.programs import catalogue
from simulator.scenario import Scenario
from tests.worlds import EXPONENTIAL, scenario

SEEDS = 32
REPEATS = 3
FEW, MANY = 25, 1000
CASES = (
    {"name": "asgd"},
    {"name": "ssp", "staleness": 3},
    {"name": "k-async", "k": 5},
    {"name": "k-batch-async", "k": 5},
    {"name": "hybrid", "step_size": 500},
)


class Rates(NamedTuple):
    """Millions of gradients per second: ours with 25 workers and with 1,000, and the reference's;
    and medians of ratios taken pair by pair."""

    few: float
    many: float
    reference: float
    ratio: float
    growth: float


def world(case: dict[str, object], workers: int, steps: int) -> Scenario:
    """Exponential compute times, a server that takes 1 ms."""
    return scenario(
        case, workers=workers, steps=steps, compute=EXPONENTIAL, server={"apply": "1 ms"}
    )


def rate(work: Callable[[], object], gradients: int) -> float:
    """Millions per second."""
    begin = time.perf_counter()
    work()
    return gradients / (time.perf_counter() - begin) / 1e6


def measure(
    case: dict[str, object], *, threads: int = 1, steps: int = 8000, repeats: int = REPEATS
) -> Rates:
    """Rates of one program; with 1,000 workers over an eighth of the steps."""
    few, many = world(case, FEW, steps), world(case, MANY, steps // 8)
    small = world(case, FEW, min(steps, 1000))
    program = catalogue()[few.algorithm[0].name]

    def ours(scenario: Scenario) -> float:
        gradients = SEEDS * scenario.cluster.workers * (scenario.run.steps or 0)
        return rate(
            lambda: served.run(
                program, scenario.algorithm[0], scenario, range(SEEDS), threads=threads
            ),
            gradients,
        )

    def theirs() -> float:
        gradients = FEW * (small.run.steps or 0)
        return rate(lambda: virtual.run(small.algorithm[0], small, 0), gradients)

    served.run(program, few.algorithm[0], world(case, FEW, 2), [0])  # the loop is compiled once
    found = [(ours(few), ours(many), theirs()) for _ in range(repeats)]
    return Rates(
        *(statistics.median(column) for column in zip(*found, strict=True)),
        statistics.median(few / reference for few, _, reference in found),
        statistics.median(few / many for few, many, _ in found),
    )


def main() -> int:
    """Print the table."""
    missed = 0
    threads = min(2, os.cpu_count() or 1)
    print(f"{SEEDS} seeds, {threads} threads; millions of gradients per second")
    print(f"{'':16}{'25':>8}{'1,000':>8}{'virtual':>9}{'ratio':>8}{'growth':>8}   aim")
    for case in CASES:
        found = measure(case, threads=threads)
        held = found.ratio >= 20 and found.growth <= 2
        missed += not held
        print(
            f"{case['name']!s:16}{found.few:8.2f}{found.many:8.2f}{found.reference:9.3f}"
            f"{found.ratio:8.1f}{found.growth:8.2f}   >= 20, <= 2: {'ok' if held else 'MISSED'}"
        )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
