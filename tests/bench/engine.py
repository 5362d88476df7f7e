"""How fast the virtual engine is, against textbook SimPy models of the same clusters.

Both are run in turn in one process and the ratio is taken pair by pair, because machines drift.
Run by `make bench`; it prints each ratio beside the figure that the project holds itself to, and
exits 1 if one is missed.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from simulator.engines import virtual
from simulator.load import parse
from simulator.scenario import Scenario
from tests.bench import textbook

TAU = 10
REPEATS = 7
SERVICE = 0.01


def cluster(workers: int, steps: int, algorithm: dict[str, object], latency: str) -> Scenario:
    table = {
        "model": {"parameters": 1_000_000},
        "objective": {"kind": "none"},
        "optimizer": {"lr": 0.1},
        "cluster": {"workers": workers, "compute": {"dist": "exponential", "mean": "1 s"}},
        "network": {"collective": "given", "duration": "1 s"}
        if algorithm["name"] == "local-sgd"
        else {"collective": "star", "latency": latency},
        "server": {"apply": f"{SERVICE} s"},
        "run": {"steps": steps},
        "algorithm": [algorithm],
    }
    return parse(table, file="benchmark", folder=Path())


def local_sgd(workers: int, steps: int, spans: int = 0) -> Callable[[], object]:
    scenario = cluster(workers, steps, {"name": "local-sgd", "tau": TAU}, "0 s")
    return lambda: virtual.run(scenario.algorithm[0], scenario, 0, spans=spans)


def asgd(workers: int, steps: int, latency: str) -> Callable[[], object]:
    scenario = cluster(workers, steps, {"name": "asgd"}, latency)
    return lambda: virtual.run(scenario.algorithm[0], scenario, 0)


def rates(
    first: Callable[[], object], size: int, second: Callable[[], object], other: int
) -> tuple[float, float, float]:
    """Median rates (units per second) of the two, and the median of their ratio pair by pair."""
    pairs = []
    for _ in range(REPEATS):
        pair = []
        for run, units in ((first, size), (second, other)):
            begin = time.perf_counter()
            run()
            pair.append(units / (time.perf_counter() - begin))
        pairs.append(pair)
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(a / b for a, b in pairs),
    )


def main() -> int:
    missed = 0

    def report(what: str, ours: float, theirs: float, ratio: float, held: bool, aim: str) -> None:
        nonlocal missed
        missed += not held
        verdict = "ok" if held else "MISSED"
        print(f"{what:58} {ours / 1e6:6.2f} {theirs / 1e6:6.2f} {ratio:6.2f}  {aim:8} {verdict}")

    print(f"{'':58} {'ours':>6} {'other':>6} {'ratio':>6}  aim       (millions per second)")
    steps = 4000
    a, b, ratio = rates(
        local_sgd(16, steps), 16 * steps,
        lambda: textbook.local_sgd(16, TAU, steps // TAU, 1.0), 16 * steps,
    )  # fmt: skip
    report(
        "local SGD, 16 workers: worker-steps, textbook SimPy", a, b, ratio, ratio >= 1.5, ">= 1.5"
    )
    a, b, ratio = rates(local_sgd(16, steps), 16 * steps, local_sgd(256, steps), 256 * steps)
    report("local SGD, 16 workers against 256, per step", a, b, ratio, ratio <= 1.3, "<= 1.3")
    a, b, ratio = rates(
        local_sgd(16, steps), 16 * steps, local_sgd(16, steps, spans=10**9), 16 * steps
    )
    report(
        "local SGD, 16 workers, against with every span kept", a, b, ratio, ratio <= 1.2, "<= 1.2"
    )
    updates = 100_000
    for name, latency, transit in (("transit free", "0 s", 0.0), ("transit 50 ms", "50 ms", 0.05)):
        a, b, ratio = rates(
            asgd(25, updates // 25, latency), updates,
            lambda transit=transit: textbook.parameter_server(25, updates, transit, SERVICE),
            updates,
        )  # fmt: skip
        what = f"parameter server, 25 workers, {name}: updates, textbook"
        report(what, a, b, ratio, ratio >= 4, ">= 4")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
