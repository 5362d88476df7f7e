"""Parameter servers by the compiled loop, against the reference engine."""

from collections.abc import Callable, Iterator

from paceline.simulator.engines.compiled import run as compiled
from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.engines.virtual import run as virtual
from paceline.simulator.programs import catalogue
from paceline.simulator.scenario.scenario import Scenario
from tests.bench import textbook
from tests.bench.batched import SEEDS, THREADS
from tests.bench.engine import SERVICE, cluster
from tests.bench.measure import Row, compared, rates
from tests.helpers.worlds import EXPONENTIAL, scenario

TITLE = "Parameter servers in time-only runs, 32 seeds"
HEAD = "millions of gradients per second", "other"
FEW, MANY, STEPS = 25, 1000, 8000
CASES = (
    {"name": "asgd"},
    {"name": "ssp", "staleness": 3},
    {"name": "k-async", "k": 5},
    {"name": "k-batch-async", "k": 5},
    {"name": "hybrid", "step_size": 500},
)


def world(case: dict[str, object], workers: int, steps: int) -> Scenario:
    """Exponential compute times, a server that takes 1 ms."""
    return scenario(
        case, workers=workers, steps=steps, compute=EXPONENTIAL, server={"apply": "1 ms"}
    )


def ours(made: Scenario) -> Callable[[], object]:
    program = catalogue()[made.algorithm[0].name]
    return lambda: compiled.run(program, made.algorithm[0], made, SEEDS, threads=THREADS)


def rows() -> Iterator[Row]:
    """What there is to report."""
    updates = 200_000
    alone = cluster(25, updates // 25, {"name": "asgd"})
    run_seeds(alone, alone.algorithm[0], [0])  # the loop is compiled once
    found = rates(
        lambda: run_seeds(alone, alone.algorithm[0], [0]), updates,
        lambda: textbook.parameter_server(25, updates // 4, 0.0, SERVICE), updates // 4, repeats=5,
    )  # fmt: skip
    yield compared(
        "asgd, 25 workers, one seed as simulate runs it, against textbook", found, least=4
    )
    for case in CASES:
        few, many, small = (
            world(case, FEW, STEPS),
            world(case, MANY, STEPS // 8),
            world(case, FEW, 1000),
        )
        ours(world(case, FEW, 2))()  # the loop is compiled once
        size = FEW * STEPS * len(SEEDS)
        found = rates(
            ours(few), size,
            lambda small=small: virtual.run(small.algorithm[0], small, 0), FEW * 1000, repeats=3,
        )  # fmt: skip
        yield compared(f"{case['name']}, {FEW} workers, against virtual", found, least=20)
        found = rates(ours(few), size, ours(many), MANY * STEPS // 8 * len(SEEDS), repeats=3)
        what = f"{case['name']}, {FEW} workers, against {MANY:,}: per gradient"
        yield compared(what, found, most=2)
