"""The reference engine against textbook SimPy models of the same clusters."""

from collections.abc import Iterator
from pathlib import Path

from paceline.simulator.engines.virtual import run
from paceline.simulator.load.load import parse
from paceline.simulator.scenario.scenario import Scenario
from tests.lab.bench import textbook
from tests.lab.bench.measure import Aim, Comparison, Rate, rate

TITLE = "The reference engine, `virtual`, one seed: against textbook SimPy"
HEAD = "millions per second", "textbook"
TAU = 10
SERVICE = 0.01  # seconds
STEPS = 4000
UPDATES = 100_000


def cluster(
    workers: int, steps: int, algorithm: dict[str, object], latency: str = "0 s", **tables: object
) -> Scenario:
    """Return a scenario with exponential compute times of mean 1 s; an average takes 1 s."""
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


def local_sgd(workers: int, spans: int = 0) -> Rate:
    """Return the rate of local SGD: worker-steps."""
    scenario = cluster(workers, STEPS, {"name": "local-sgd", "tau": TAU})
    return rate(
        lambda: run.run(scenario.algorithm[0], scenario, 0, spans=spans), workers * STEPS
    )  # fmt: skip


def asgd(workers: int, latency: str) -> Rate:
    """Return the rate of a parameter server: updates."""
    scenario = cluster(workers, UPDATES // workers, {"name": "asgd"}, latency)
    return rate(lambda: run.run(scenario.algorithm[0], scenario, 0), UPDATES)


def rows() -> Iterator[Comparison]:
    """Yield the rows to measure."""
    ours = local_sgd(16)
    yield Comparison(
        "local SGD, 16 workers: worker-steps", ours,
        rate(lambda: textbook.local_sgd(16, TAU, STEPS // TAU, 1.0), 16 * STEPS), Aim(1.5),
    )  # fmt: skip
    what = "local SGD, 16 workers: worker-steps, against"
    yield Comparison(f"{what} 256 workers", ours, local_sgd(256), Aim(most=1.3))
    yield Comparison(f"{what} keeping every span", ours, local_sgd(16, 10**9), Aim(most=1.2))
    for name, latency, transit in (("free", "0 s", 0.0), ("50 ms", "50 ms", 0.05)):
        yield Comparison(
            f"parameter server, 25 workers, transit {name}: updates", asgd(25, latency),
            textbook_server(25, transit), Aim(4),
        )  # fmt: skip


def textbook_server(workers: int, transit: float) -> Rate:
    """Return the textbook's rate on the same parameter server: updates."""
    return rate(
        lambda: textbook.parameter_server(workers, UPDATES // 4, transit, SERVICE), UPDATES // 4
    )  # fmt: skip
