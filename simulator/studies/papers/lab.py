"""Runs for claims: each is done once, whichever claims ask for it, and kept for the next time."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.simulator import theory
from paceline.simulator.load.load import load
from paceline.simulator.results.store import KeptRuns
from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.studies.simulate import Result, simulate

QUICK = 3
"""Seeds of a quick reproduction; a full one has those of the scenario."""


@dataclass(frozen=True)
class Lab:
    """Where claims are measured. `sets`: overrides of every scenario (an assumption's).

    `kept`: where finished runs stay; without, they are made anew.
    """

    full: bool = False
    jobs: int = 1
    kept: KeptRuns | None = None
    sets: tuple[str, ...] = ()
    _known: dict[tuple[str, ...], Result] = field(default_factory=dict)

    def scenario(self, name: str, *sets: str) -> Scenario:
        """A shipped scenario with overrides, those of the assumption last."""
        return load(name, [*sets, *self.sets])

    def runs(self, name: str, *sets: str) -> Result:
        """Every algorithm of a shipped scenario with overrides, with as many seeds as are asked."""
        key = (name, *sets, *self.sets)
        if key not in self._known:
            scenario = self.scenario(name, *sets)
            seeds = scenario.run.seeds if self.full else min(QUICK, scenario.run.seeds)
            self._known[key] = simulate(scenario, seeds=seeds, jobs=self.jobs, kept=self.kept)
        return self._known[key]

    def theory(self, name: str, *sets: str) -> dict[str, Any]:
        """What `paceline theory` says of a shipped scenario with overrides."""
        return theory.tabulate(self.scenario(name, *sets))

    def but(self, sets: Sequence[str]) -> "Lab":
        """The same with more overrides."""
        return replace(self, sets=(*self.sets, *sets))
