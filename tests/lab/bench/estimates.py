"""The safety limit's estimate of a run's time against the time that the run takes."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.studies import step_time
from paceline.simulator.studies.execution import Execution
from paceline.simulator.studies.simulate import simulate
from tests.helpers.worlds import DIGITS, EXPONENTIAL, RING, TIME_ONLY, scenario
from tests.lab.bench.measure import Aim, Missing, Row, Spread, remark, samples

TITLE = "Estimates of the safety limit (--force)"
HEAD = "estimated, s", "real, s"
FACTOR = 3.0
TIMES = 3  # pairs
LOCAL: dict[str, Any] = {"name": "local-sgd", "tau": 8}
SERVER: dict[str, Any] = {"name": "asgd"}
BOUND = {"kind": "bound", "initial_gap": 1.0, "smoothness": 1.0, "gradient_variance": 1.0}
FLOWS = RING | {"model": "flows"}
TORCH = {"kind": "torch", "model": "mlp", "data": "digits", "batch": 16}


def quadratic(dimension: int) -> dict[str, Any]:
    """Return a quadratic of some dimension."""
    return {"kind": "quadratic", "dimension": dimension}


@dataclass(frozen=True)
class Estimated:
    """A row: the estimated and the real seconds of one algorithm's runs."""

    what: str
    scenario: Scenario
    engine: str
    seeds: int

    def measure(self) -> Row:
        """Return medians, and median and quartiles of the ratio."""
        pairs, disturbed = samples(self._pair, TIMES)
        ratio = Spread.of([estimated / real for estimated, real in pairs])
        estimated, real = (sorted(side)[TIMES // 2] for side in zip(*pairs, strict=True))
        aim = Aim(1 / FACTOR, FACTOR)
        return Row(
            self.what, f"{estimated:.2f}", f"{real:.2f}", f"{ratio.median:.2f}",
            f"{ratio.low:.2f} to {ratio.high:.2f}", "1/3 to 3", aim.verdict(ratio),
            remark(disturbed, TIMES),
        )  # fmt: skip

    def _pair(self) -> tuple[float, float]:
        execution = Execution(self.engine)
        found = step_time.seconds(self.scenario, self.scenario.algorithm[0], self.seeds, execution)
        began = time.perf_counter()
        simulate(self.scenario, seeds=self.seeds, engine=self.engine)
        return found, time.perf_counter() - began


CASES: tuple[tuple[str, dict[str, Any], str, int, int, dict[str, Any]], ...] = (
    # what, algorithm, engine, steps, seeds, other tables
    ("batched, time only", LOCAL, "batched", 500_000, 32, {"objective": TIME_ONLY}),
    ("batched, bound", LOCAL, "batched", 500_000, 32, {"objective": BOUND}),
    ("batched, quadratic of dimension 100", LOCAL, "batched", 8000, 8,
     {"objective": quadratic(100)}),
    ("batched, quadratic of dimension 1,000,000", LOCAL, "batched", 8, 1,
     {"objective": quadratic(10**6)}),
    ("batched, softmax", LOCAL, "batched", 1500, 8, {"objective": DIGITS}),
    ("batched, softmax evaluated at every step", LOCAL, "batched", 600, 2,
     {"objective": DIGITS, "run": {"evaluate_every": 1}}),
    ("batched, quadratic, until a time", LOCAL, "batched", 10**9, 4,
     {"objective": quadratic(100), "run": {"duration": "4 h"}, "network": RING}),
    ("compiled, time only", SERVER, "batched", 200_000, 8, {"objective": TIME_ONLY}),
    ("virtual, time only", SERVER, "virtual", 30_000, 2, {"objective": TIME_ONLY}),
    ("virtual, quadratic of dimension 100", SERVER, "virtual", 6000, 2,
     {"objective": quadratic(100)}),
    ("virtual, quadratic of dimension 1,000,000", SERVER, "virtual", 8, 1,
     {"objective": quadratic(10**6)}),
    ("virtual, softmax", SERVER, "virtual", 2000, 2, {"objective": DIGITS}),
    ("virtual, flows, time only", LOCAL, "virtual", 20_000, 1,
     {"objective": TIME_ONLY, "network": FLOWS}),
    ("a thousand short runs", LOCAL, "batched", 20, 1000, {"objective": quadratic(100)}),
)  # fmt: skip


def rows() -> Iterator[Estimated | Missing]:
    """Yield the rows to measure."""
    for what, algorithm, engine, steps, seeds, tables in CASES:
        made = scenario(algorithm, workers=16, compute=EXPONENTIAL, steps=steps, **tables)
        yield Estimated(f"{what}, 16 workers, {seeds} seeds", made, engine, seeds)
    for engine in ("batched", "virtual"):
        what = f"{engine}, torch, 4 workers, one seed"
        if find_spec("torch") is None:
            yield Missing(f"{what} (torch is not installed)")
        else:
            made = scenario(
                LOCAL | {"lr": 0.01}, workers=4, compute=EXPONENTIAL, steps=600, objective=TORCH
            )
            yield Estimated(what, made, engine, 1)
