"""The reference engine against textbook SimPy models of the same clusters."""

from collections.abc import Callable, Iterator
from pathlib import Path

from paceline.simulator.engines.virtual import run
from paceline.simulator.load.load import parse
from paceline.simulator.scenario.scenario import Scenario
from tests.bench import textbook
from tests.bench.measure import Row, compared, rates

TITLE = "The reference engine, `virtual`, one seed: against textbook SimPy"
HEAD = "millions per second", "textbook"
TAU = 10
SERVICE = 0.01


def cluster(
    workers: int, steps: int, algorithm: dict[str, object], latency: str = "0 s", **tables: object
) -> Scenario:
    """Exponential compute times of a second; an average takes a second."""
    collective = {"collective": "given", "duration": "1 s"}
    table = {
        "model": {"parameters": 1_000_000},
        "objective": {"kind": "none"},
        "optimizer": {"lr": 0.1},
        "cluster": {"workers": workers, "compute": {"dist": "exponential", "mean": "1 s"}},
        "network": collective | {"latency": latency},
        "server": {"apply": f"{SERVICE} s"},
        "run": {"steps": steps},
        "algorithm": [algorithm],
    }
    return parse(table | tables, file="benchmark", folder=Path())


def local_sgd(workers: int, steps: int, spans: int = 0) -> Callable[[], object]:
    scenario = cluster(workers, steps, {"name": "local-sgd", "tau": TAU})
    return lambda: run.run(scenario.algorithm[0], scenario, 0, spans=spans)


def asgd(workers: int, steps: int, latency: str) -> Callable[[], object]:
    scenario = cluster(workers, steps, {"name": "asgd"}, latency)
    return lambda: run.run(scenario.algorithm[0], scenario, 0)


def rows() -> Iterator[Row]:
    """What there is to report."""
    steps = 4000
    ours = local_sgd(16, steps)
    found = rates(
        ours, 16 * steps, lambda: textbook.local_sgd(16, TAU, steps // TAU, 1.0), 16 * steps
    )
    yield compared("local SGD, 16 workers: worker-steps", found, least=1.5)
    found = rates(ours, 16 * steps, local_sgd(256, steps), 256 * steps)
    yield compared("local SGD, 16 workers, against 256: per worker-step", found, most=1.3)
    found = rates(ours, 16 * steps, local_sgd(16, steps, spans=10**9), 16 * steps)
    yield compared("local SGD, 16 workers, against every span kept", found, most=1.2)
    updates = 100_000
    for name, latency, transit in (("free", "0 s", 0.0), ("50 ms", "50 ms", 0.05)):
        found = rates(
            asgd(25, updates // 25, latency), updates,
            lambda transit=transit: textbook.parameter_server(25, updates, transit, SERVICE),
            updates,
        )  # fmt: skip
        yield compared(f"parameter server, 25 workers, transit {name}: updates", found, least=4)
