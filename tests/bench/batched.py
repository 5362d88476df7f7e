"""All seeds and workers at once, against the generator of random numbers and the reference."""

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from paceline.simulator.distributions import random_streams
from paceline.simulator.distributions.random_streams import Purpose
from paceline.simulator.engines.batched import run as batched
from paceline.simulator.engines.batched.compute_times import Draws, share
from paceline.simulator.engines.virtual import run as virtual
from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.studies import executors
from tests.bench.engine import TAU, cluster
from tests.bench.measure import Row, compared, rates, seconds

TITLE = "The batched engine, 32 seeds"
HEAD = "millions per second", "other"
THREADS = min(2, executors.cores())
SEEDS = range(32)
BLOCK = 5000  # numbers that the generator alone draws at a time
LOCAL = {"name": "local-sgd", "tau": TAU}


def together(scenario: Scenario, threads: int = THREADS) -> Callable[[], object]:
    return lambda: batched.run(scenario.algorithm[0], scenario, SEEDS, threads=threads)


def one_seed(scenario: Scenario) -> Callable[[], object]:
    return lambda: virtual.run(scenario.algorithm[0], scenario, 0)


def alone(threads: int) -> tuple[Callable[[], object], int]:
    """The generator, drawing exponential numbers and nothing else; and how many."""
    generators = [random_streams.generator(0, Purpose.COMPUTE, rank) for rank in range(2000)]

    def draw(generator: Any) -> None:
        for _ in range(20):
            generator.exponential(1.0, BLOCK)

    return lambda: share(draw, generators, threads), len(generators) * 20 * BLOCK


def whole(sampling: str, workers: int, steps: int) -> dict[str, float]:
    """One run in this process, between two of the generator alone: seconds, memory, rates."""
    scenario = cluster(workers, steps, LOCAL, run={"steps": steps, "sampling": sampling})
    draw, numbers = alone(THREADS)
    before = seconds(draw)
    took = seconds(together(scenario))
    after = seconds(draw)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "seconds": took,
        "rate": workers * steps * len(SEEDS) / took / 1e6,
        "alone": 2 * numbers / (before + after) / 1e6,
        "mebibytes": peak,
    }


def measured(*arguments: object) -> dict[str, float]:
    """`whole`, in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.batched", *map(str, arguments)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(found.stdout))


def rows() -> Iterator[Row]:
    """What there is to report."""
    big = 1024, 100_000
    what = "local SGD, 1,024 workers, 100,000 steps"
    keyed = measured("keyed", *big)
    rate, other = keyed["rate"], keyed["alone"]
    yield compared(
        f"{what}: worker-steps, against the generator alone", (rate, other, rate / other), least=0.6
    )
    memory = keyed["mebibytes"]
    yield Row(f"{what}: most memory, MiB", f"{memory:.0f}", aim="< 512", held=memory < 512)
    took = measured("aggregate", *big)["seconds"]
    yield Row(f'{what}, sampling = "aggregate": seconds', f"{took:.1f}", aim="< 5", held=took < 5)
    steps = 100_000
    scenario = cluster(16, steps, LOCAL)
    small = one_seed(cluster(16, 4000, LOCAL))
    found = rates(together(scenario), 16 * steps * len(SEEDS), small, 16 * 4000, repeats=5)
    yield compared("local SGD, 16 workers: worker-steps, against virtual", found, least=100)
    noisy = {"objective": {"kind": "quadratic", "dimension": 100}}
    scenario, small = cluster(16, 3000, LOCAL, **noisy), one_seed(cluster(16, 400, LOCAL, **noisy))
    ours, theirs, ratio = rates(
        together(scenario), 16 * 3000 * len(SEEDS), small, 16 * 400, repeats=5
    )
    yield Row(
        "the same on a quadratic of dimension 100, against virtual", f"{ours:.2f}",
        f"{theirs:.2f}", f"{ratio:.1f}", ">= 0.7 M", ours >= 0.7,
    )  # fmt: skip
    scenario = cluster(64, 1, LOCAL)
    draws = [Draws(scenario, SEEDS, threads) for threads in (THREADS, 1)]
    two, one = (lambda each=each: each.legs([TAU] * 1600) for each in draws)
    found = rates(two, 64 * 1600 * TAU * len(SEEDS), one, 64 * 1600 * TAU * len(SEEDS), repeats=5)
    yield compared("drawing compute times, two threads against one", found, least=1.8)


if __name__ == "__main__":
    print(json.dumps(whole(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
