"""Parameter servers in the compiled loop, against textbook SimPy and the reference engine."""

from collections.abc import Iterator

from paceline.simulator.engines.compiled import run as compiled
from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.programs import catalogue
from paceline.simulator.scenario.scenario import Scenario
from tests.helpers.worlds import EXPONENTIAL, scenario
from tests.lab.bench.batched import SEEDS, THREADS, one_seed, steps_of
from tests.lab.bench.engine import UPDATES, cluster, textbook_server
from tests.lab.bench.measure import Aim, Comparison, Rate, rate

TITLE = "Parameter servers in time-only runs, 32 seeds"
HEAD = "millions of gradients per second", "other"
FEW, MANY = 25, 1000
CASES = (
    {"name": "asgd"},
    {"name": "ssp", "staleness": 3},
    {"name": "k-async", "k": 5},
    {"name": "k-batch-async", "k": 5},
    {"name": "hybrid", "step_size": 500},
)


def served(case: dict[str, object], workers: int, steps: int) -> Scenario:
    """Return a scenario with exponential compute times and a server that takes 1 ms."""
    return scenario(
        case, workers=workers, steps=steps, compute=EXPONENTIAL, server={"apply": "1 ms"}
    )


def all_seeds(made: Scenario) -> Rate:
    """Return the rate of the compiled loop: gradients of all seeds."""
    program = catalogue()[made.algorithm[0].name]
    return rate(
        lambda: compiled.run(program, made.algorithm[0], made, SEEDS, threads=THREADS),
        steps_of(made) * len(SEEDS),
    )  # fmt: skip


def rows() -> Iterator[Comparison]:
    """Yield the rows to measure."""
    server = cluster(25, 2 * UPDATES // 25, {"name": "asgd"})
    what, theirs = "asgd, 25 workers, against textbook SimPy", textbook_server(25, 0.0)
    ours = rate(lambda: run_seeds(server, server.algorithm[0], [0]), 2 * UPDATES)
    yield Comparison(f"{what}, one seed each, as simulate runs it", ours, theirs, Aim(4))
    yield Comparison(f"{what}, one seed of theirs", all_seeds(server), theirs, Aim(40))
    for case in CASES:
        ours, reference = all_seeds(served(case, FEW, 8000)), served(case, FEW, 1000)
        what = f"{case['name']}, {FEW} workers, against"
        yield Comparison(
            f"{what} `virtual`, one seed", ours, rate(one_seed(reference), steps_of(reference))
        )
        many = all_seeds(served(case, MANY, 1000))
        yield Comparison(f"{what} {MANY:,} workers", ours, many, Aim(most=2))
