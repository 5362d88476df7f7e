"""Define the matrix's conditions: overrides for `--set`, so each is a command.

A calibration run has as many workers and the same kind of network as its condition; all else is
fixed: shifted-exponential steps, 20 ms latency (kernel's links: 10 ms), separate seeds.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.simulator.errors import InputError
from paceline.simulator.inputs import untrusted
from paceline.simulator.inputs.messages import nearest, toml
from paceline.simulator.load.load import load
from paceline.simulator.scenario.scenario import Scenario

FILE = "validation/matrix"  # the shipped scenario that conditions change
DESIGN = untrusted.packaged(__file__, "design.toml")
ALGORITHMS = DESIGN["algorithms"]
"""Those that a profile is fitted to ("calibrated"), and other "kinds"."""


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
        """Return the seed of its real runs, unique among conditions."""
        return [condition.name for condition in CONDITIONS].index(self.name)

    @property
    def group(self) -> tuple[int, str]:
        """Return (workers, kind of network): conditions with one profile."""
        scenario = self.scenario()
        return scenario.cluster.workers, scenario.validation.network

    def command(self) -> str:
        """Return the shell command that runs only this condition."""
        sets = " ".join(f"--set {shlex.quote(text)}" for text in self.sets)
        return f"paceline validate {FILE} {sets}"


def _sets(names: Sequence[str]) -> tuple[str, ...]:
    """Return overrides, with names of parts replaced by their overrides."""
    parts = DESIGN["parts"] | {
        key: [f"algorithm={toml(tables)}"] for key, tables in ALGORITHMS.items()
    }
    return tuple(override for name in names for override in parts.get(name, [name]))


CONDITIONS = tuple(Condition(name, _sets(sets)) for name, sets in DESIGN["conditions"].items())
"""The matrix, ordered so that the first few conditions already cover every question."""


def calibration(workers: int, network: str) -> Condition:
    """Return the condition from which a group's profile is fitted."""
    sets = f"cluster.workers={workers}", *_sets([*DESIGN["calibration"][network], "calibrated"])
    return Condition(f"{workers}-{network}", sets)


def chosen(names: Sequence[str] | None) -> list[Condition]:
    """Return the conditions to run, in order; None: all. Raises InputError."""
    every = [condition.name for condition in CONDITIONS]
    for name in {*(names or ())} - {*every}:
        raise InputError(f"--only {name}: no condition; {nearest(name, every, 'write one of')}")
    return [condition for condition in CONDITIONS if names is None or condition.name in names]
