"""Conditions of the validation matrix: overrides as `--set` takes them, so each is a command.

A calibration run has as many workers and the same kind of network as its condition; all else is
fixed: shifted-exponential steps, 20 ms latency (kernel's links: 10 ms), seeds of its own.
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
"""The only algorithms that a profile is fitted to."""
REPEATED = (
    {"name": "ssgd"},
    {"name": "local-sgd", "tau": 2, "lr": 0.2},
    {"name": "dts", "delay": 4},
    {"name": "asgd", "lr": 0.05},
)
"""The algorithms that are repeated, to measure by how much equal runs differ."""
TOP_K: dict[str, Any] = {"kind": "top-k", "ratio": 0.1}
KINDS: tuple[Mapping[str, Any], ...] = (
    {"name": "d-psgd"},
    {"name": "ad-psgd"},
    {"name": "k-async", "k": 2, "lr": 0.05},
    {"name": "hpsgd", "lr": 0.12},
    *(
        {"name": "ssgd", "codec": codec}
        for codec in (TOP_K, TOP_K | {"kind": "random-k"}, "qsgd", "fp16", "power-sgd")
    ),
    {"name": "ssgd", "codec": TOP_K | {"kind": "dgc"}, "lr": 0.02},
    {"name": "dts", "delay": 4, "codec": TOP_K, "lr": 0.05},
    {"name": "dts", "delay": 4, "codec": "qsgd", "lr": 0.05},
    {"name": "streaming-diloco", "tau": 8, "lr": 0.005, "outer_momentum": 0.5},
)
"""Algorithms with the kinds of communication that the matrix's own have not: gossip, codecs'
gathers and chained means, means of fragments, several in flight; and questions."""
REPEATS = "repeats"
"""Name of the repeated runs: equal ones, and ones that differ in their seed alone."""


@dataclass(frozen=True)
class Condition:
    """One condition. `sets`: overrides "table.key=value" of `FILE`."""

    name: str
    sets: tuple[str, ...]

    def scenario(self, *more: str) -> Scenario:
        """Load the scenario with the overrides and `more`. Raises InputError."""
        return load(FILE, [*self.sets, *more])

    @property
    def seed(self) -> int:
        """Return the seed of its real runs, distinct so that conditions do not share draws."""
        return [each.name for each in CONDITIONS].index(self.name)

    @property
    def group(self) -> tuple[int, str]:
        """Return (workers, kind of network): each such group has a profile of its own."""
        scenario = self.scenario()
        return scenario.cluster.workers, scenario.validation.network

    def command(self, *more: str, verb: str = "validate", options: str = "") -> str:
        """Return the shell command that runs this condition alone."""
        sets = " ".join(f"--set {shlex.quote(text)}" for text in (*self.sets, *more))
        return " ".join(filter(None, (f"paceline {verb} {FILE}", sets, options)))


def _workers(count: int) -> str:
    return f"cluster.workers={count}"


EIGHT = (_workers(8), "algorithm.asgd.lr=0.025", "algorithm.ssp.lr=0.025")
"""Overrides for 8 workers: staleness doubles, so the learning rate for 4 would be unstable."""


def _compute(**law: Any) -> str:
    return f"cluster.compute={toml(law)}"


CONSTANT = _compute(dist="constant", value="50 ms")
EXPONENTIAL = _compute(dist="exponential", mean="50 ms")
PARETO = _compute(dist="pareto", minimum="30 ms", alpha=2.5)  # mean 50 ms
BURSTY = 'cluster.bursts={factor = 4, on = "1 s", off = "4 s"}'
KERNEL = ("validation.network=kernel", "network.collective=ring", "network.library=gloo")
REAL = ("validation.network=real", "network.latency=0 s")


def _latency(text: str) -> str:
    return f"network.latency={text}"


def only(*programs: Mapping[str, Any]) -> str:
    """Return the override that keeps only these algorithms."""
    return f"algorithm={toml(list(programs))}"


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
    *(
        Condition(
            f"kernel-kinds-{name}",
            (*KERNEL, only(*KINDS), _latency(latency), f"network.bandwidth={rate}"),
        )
        for name, latency, rate in (
            ("near", "15 ms", "8 Mbit/s"),
            ("near-slow", "15 ms", "2 Mbit/s"),
            ("far", "60 ms", "8 Mbit/s"),
            ("far-slow", "60 ms", "2 Mbit/s"),
        )
    ),
)
"""The matrix, ordered so that the first few conditions already cover every question."""


def calibration(workers: int, network: str) -> Condition:
    """Return the condition that the profile of `workers` and this kind of network is fitted to."""
    links = {
        "emulated": (_latency("20 ms"),),
        "kernel": (*KERNEL, _latency("10 ms")),
        "real": REAL,
    }
    return Condition(
        f"{workers}-{network}", (_workers(workers), *links[network], only(*CALIBRATED))
    )


def chosen(names: Sequence[str] | None) -> list[str]:
    """Return the names to run, in the matrix's order; None means all. Raises InputError."""
    known = [REPEATS, *(each.name for each in CONDITIONS)]
    for name in names or ():
        if name not in known:
            raise InputError(f"--only {name}: no condition; {nearest(name, known, 'write one of')}")
    return [name for name in known if names is None or name in names]
