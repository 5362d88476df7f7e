"""The result of a search: its ranking, its ties, and the answer in a sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.simulator.load.load import known_programs
from paceline.simulator.objectives import plugins
from paceline.simulator.results import intervals, statistics, wording
from paceline.simulator.studies.tune import verdict
from paceline.simulator.studies.tune.objective import TuningObjective
from paceline.simulator.studies.tune.race import Contender
from paceline.simulator.studies.tune.space import Space


@dataclass(frozen=True)
class TuneResult:
    """The result of `tune`.

    `ranked`: every configuration tried, the best first; `tied`: those that the seeds do not
    distinguish from it, the simplest first; `regret`: as `regret.regrets` returns it; `runs`:
    simulations that were needed, `resumed` of them kept from before; `notes`: assumptions.
    """

    space: Space
    objective: TuningObjective
    seeds: list[int]
    ranked: list[Contender]
    tied: list[Contender]
    regret: list[dict[str, Any]]
    refused: list[str]
    runs: int
    resumed: int
    notes: list[str]
    wall_seconds: float

    @property
    def best(self) -> Contender:
        """The configuration with the lowest mean value."""
        return self.ranked[0]

    @property
    def simplest(self) -> Contender:
        """The simplest of the best and those tied with it."""
        programs = known_programs(self.space.programs)
        return min(
            [self.best, *self.tied], key=lambda each: verdict.simplicity(each.candidate, programs)
        )

    @property
    def warnings(self) -> list[str]:
        """Warnings to heed before acting on the answer."""
        found = verdict.warnings(self.space, self.objective, self.ranked, self.tied, self.regret)
        if self.refused:
            count = len(self.refused)
            found.append(f"{count} combinations were refused, such as: {self.refused[0]}")
        return found

    @property
    def sentence(self) -> str:
        """The answer in a sentence."""
        best, target = self.best, self.objective.target
        row = verdict.row(best, best, self.objective)
        if not best.all_reached:
            seeds, label = len(self.seeds), best.candidate.label
            if best.diverged or target is None:
                return "Every configuration diverged; try smaller learning rates."
            if not best.reached:
                return f"{label} came closest to loss {target:g}; no seed reached it."
            level = any(each.reached == best.reached for each in self.ranked[1:])
            more = "as many as" if level else "more than"
            reached = f"{best.reached} of {seeds} seeds, {more} any other"
            return f"{label} reached loss {target:g} with {reached}."
        found = intervals.stated(row, "value")
        spread = wording.sentence(found, self.objective.unit, len(self.seeds))
        said = f"{best.candidate.label}: {self.objective.sentence(row['value'])}{spread}"
        if self.simplest is not best:
            return f"{said}; {self.simplest.candidate.label} is simpler and not known to be worse."
        return f"{said}."

    def rows(self, contenders: Sequence[Contender]) -> list[dict[str, Any]]:
        """Configurations as JSON has them, before infinities become null."""
        return [verdict.row(each, self.best, self.objective) for each in contenders]

    def json(self) -> dict[str, Any]:
        """Return the document of `paceline tune --json`."""
        scenario = self.space.scenario
        document = {
            "scenario": {"title": scenario.title, "file": scenario.file},
            "objective": self.objective.name,
            "measure": self.objective.says,
            "seeds": self.seeds,
            "best": self.rows([self.best])[0],
            "ties": self.rows(self.tied),
            "simplest": self.simplest.candidate.label,
            "sentence": self.sentence,
            "ranking": self.rows(self.ranked),
            "regret": self.regret,
            "warnings": self.warnings,
            "notes": self.notes,
            "evaluations": len(self.ranked),
            "runs": self.runs,
            "versions": plugins.versions(scenario.objective),
            "wall_seconds": self.wall_seconds,
        }
        return dict(statistics.jsonable(document))
