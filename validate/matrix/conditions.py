"""The conditions of the validation matrix: texts as `--set` takes them, so that each is a command.

What is calibrated has as many workers and the same kind of network, and is else always alike:
shifted-exponential steps, 20 ms (kernel's links: 10 ms), seeds of its own.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.simulator.errors import InputError
from paceline.simulator.inputs.messages import nearest, toml
from paceline.simulator.load.load import load
from paceline.simulator.scenario.scenario import Scenario

FILE = "validation/matrix"
"""The shipped scenario that conditions change."""
CALIBRATED = ({"name": "ssgd"}, {"name": "local-sgd", "tau": 8})
"""All that a profile is fitted to."""
REPEATED = (
    {"name": "ssgd"},
    {"name": "local-sgd", "tau": 2, "lr": 0.2},
    {"name": "dts", "delay": 4},
    {"name": "asgd", "lr": 0.05},
)
"""What tells by how much equal runs differ."""
REPEATS = "repeats"
"""Under this name: equal runs, and runs that differ in their seed alone."""


@dataclass(frozen=True)
class Condition:
    """One condition. `sets`: overrides "table.key=value" of `FILE`."""

    name: str
    sets: tuple[str, ...]

    def scenario(self, *more: str) -> Scenario:
        """The scenario, with more overrides. Raises InputError."""
        return load(FILE, [*self.sets, *more])

    @property
    def seed(self) -> int:
        """Of its real runs: its own, so that conditions do not share draws."""
        return [each.name for each in CONDITIONS].index(self.name)

    @property
    def group(self) -> tuple[int, str]:
        """Number of workers, and kind of network: what is calibrated by itself."""
        scenario = self.scenario()
        return scenario.cluster.workers, scenario.validation.network

    def command(self, *more: str, verb: str = "validate", options: str = "") -> str:
        """What a shell takes to run it alone."""
        sets = " ".join(f"--set {shlex.quote(text)}" for text in (*self.sets, *more))
        return " ".join(filter(None, (f"paceline {verb} {FILE}", sets, options)))


def _workers(count: int) -> str:
    return f"cluster.workers={count}"


EIGHT = (_workers(8), "algorithm.asgd.lr=0.025", "algorithm.ssp.lr=0.025")
"""Twice the workers, twice the staleness: at the rate of four the loss rises now and then."""


def _compute(**law: Any) -> str:
    return f"cluster.compute={toml(law)}"


CONSTANT = _compute(dist="constant", value="50 ms")
EXPONENTIAL = _compute(dist="exponential", mean="50 ms")
PARETO = _compute(dist="pareto", minimum="30 ms", alpha=2.5)  # mean 50 ms
BURSTY = 'cluster.bursts={factor = 4, on = "1 s", off = "4 s"}'
KERNEL = ("validation.network=kernel", "network.collective=ring")
REAL = ("validation.network=real", "network.latency=0 s")


def _latency(text: str) -> str:
    return f"network.latency={text}"


CONDITIONS = (
    Condition("exponential", (EXPONENTIAL,)),
    Condition("bursty", (BURSTY,)),
    Condition("constant-8", (*EIGHT, CONSTANT)),
    Condition("slow-link", ("network.bandwidth=4.6 Mbit/s",)),  # a mean holds it for 100 ms
    Condition("kernel", (*KERNEL, _latency("20 ms"))),
    Condition("heavy-tailed", (PARETO,)),
    Condition("distant", (_latency("100 ms"),)),
    Condition("no-delay", REAL),
    Condition("non-iid", ("objective.partition={dirichlet = 0.3, seed = 0}",)),
    Condition("constant-2", (_workers(2), CONSTANT)),
    Condition("exponential-8-distant", (*EIGHT, EXPONENTIAL, _latency("100 ms"))),
    Condition("kernel-slow-link", (*KERNEL, _latency("20 ms"), "network.bandwidth=1.2 Mbit/s")),
    Condition("heavy-tailed-2", (_workers(2), PARETO)),
    Condition("bursty-8", (*EIGHT, BURSTY)),
    Condition("kernel-2-distant", (*KERNEL, _workers(2), _latency("100 ms"))),
    Condition("constant", (CONSTANT,)),
)
"""The matrix, in an order such that its beginning already says something about each question."""


def calibration(workers: int, network: str) -> Condition:
    """What a profile for so many workers and this kind of network is fitted to."""
    links = {
        "emulated": (_latency("20 ms"),),
        "kernel": (*KERNEL, _latency("10 ms")),
        "real": REAL,
    }
    return Condition(
        f"{workers}-{network}", (_workers(workers), *links[network], only(*CALIBRATED))
    )


def only(*programs: Mapping[str, Any]) -> str:
    """The override that leaves these algorithms."""
    return f"algorithm={toml(list(programs))}"


def chosen(names: Sequence[str] | None) -> list[str]:
    """The names of what is to be done, in the matrix's order. Raises InputError."""
    known = [REPEATS, *(each.name for each in CONDITIONS)]
    for name in names or ():
        if name not in known:
            raise InputError(f"--only {name}: no condition; {nearest(name, known, 'write one of')}")
    return [name for name in known if names is None or name in names]
