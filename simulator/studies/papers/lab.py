"""Runs for claims, each made once however many claims need it, and kept for later calls."""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any

from ... import theory
from ...load.load import load
from ...results.store import KeptRuns
from ...scenario.scenario import Scenario
from .. import size
from ..execution import Execution
from ..result import Result
from ..simulate import Place, run_on

QUICK = 4
"""Seeds of a quick reproduction; a full one uses all seeds of the scenario."""


@dataclass(frozen=True)
class Lab:
    """Makes the runs of claims. `sets`: overrides of every scenario (an assumption's).

    `trained`: overrides of those that train something: the user's data, say. `executor`: of
    `execution`, for all runs, because its processes take longer to start than most runs. `kept`:
    where finished runs are kept; if None, they are made anew.
    """

    full: bool = False
    execution: Execution = field(default_factory=Execution)
    executor: Executor | None = None
    kept: KeptRuns | None = None
    sets: tuple[str, ...] = ()
    trained: tuple[str, ...] = ()
    _results: dict[tuple[str, ...], Result] = field(default_factory=dict)

    def scenario(self, name: str, *sets: str) -> Scenario:
        """Load a shipped scenario with overrides, the assumption's last."""
        scenario = load(name, [*sets, *self.sets])
        if self.trained and scenario.objective.kind in ("softmax", "torch"):
            return load(name, [*self.trained, *sets, *self.sets])
        return scenario

    def runs(self, name: str, *sets: str, labels: Sequence[str] = ()) -> Result:
        """Run the algorithms of a shipped scenario with overrides; `labels`: only these."""
        key = (name, *sets, *self.sets, *labels)
        if key not in self._results:
            scenario = self.scenario(name, *sets)
            if labels:
                chosen = tuple(one for one in scenario.algorithm if one.label in labels)
                scenario = scenario.model_copy(update={"algorithm": chosen})
            seeds = range(scenario.run.seeds if self.full else min(QUICK, scenario.run.seeds))
            size.demand([(scenario, seeds)], self.execution)
            place = Place(self.execution, self.executor, self.kept)
            self._results[key] = run_on(place, scenario, seeds)
        return self._results[key]

    def theory(self, name: str, *sets: str) -> dict[str, Any]:
        """Return the document of `paceline theory` for a shipped scenario with overrides."""
        return theory.theory(self.scenario(name, *sets))

    def but(self, sets: Sequence[str]) -> "Lab":
        """Return a lab with more overrides that shares these runs."""
        return replace(self, sets=(*self.sets, *sets))
