"""Choose algorithm and parameters before anything is deployed: `paceline tune`."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simulator import executors, makers, presets, report, size, tune_figures, verdict
from simulator.errors import InputError
from simulator.goals import Goal, goal
from simulator.load import Programs, known_programs, load
from simulator.race import Contender, Race
from simulator.regret import regrets
from simulator.runner import Journal, Runner, TuneDirectory, quiet
from simulator.scenario import Scenario
from simulator.search import Search
from simulator.simulate import Progress, check_options
from simulator.space import Space, space

TRIALS = 256
CANDIDATES = 5  # whose regret is worked out: the best, those tied with it, the next few


@dataclass(frozen=True)
class TuneResult:
    """What `tune` returns.

    `ranked`: every configuration tried, the best first; `tied`: those that the data cannot separate
    from it, the simplest first; `regret`: as `regret.regrets` returns it; `runs`: simulations that
    were needed, `resumed` of them kept from before; `notes`: what was assumed.
    """

    space: Space
    goal: Goal
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
        """What whoever acts on the answer should know."""
        found = verdict.warnings(self.space, self.goal, self.ranked, self.tied, self.regret)
        if self.refused:
            count = len(self.refused)
            found.append(f"{count} combinations were refused, such as: {self.refused[0]}")
        return found

    @property
    def sentence(self) -> str:
        """The answer in a sentence."""
        best, show = self.best, self.goal.show
        row = verdict.row(best, best, self.goal)
        if not best.all_reached:
            seeds, label = len(self.seeds), best.candidate.label
            if best.diverged or self.goal.target is None:
                return "Every configuration diverged; try smaller learning rates."
            if not best.reached:
                return f"{label} came closest to loss {self.goal.target:g}; no seed reached it."
            level = any(each.reached == best.reached for each in self.ranked[1:])
            more = "as many as" if level else "more than"
            reached = f"{best.reached} of {seeds} seeds, {more} any other"
            return f"{label} reached loss {self.goal.target:g} with {reached}."
        spread = ""
        if row["ci95"]:
            low, high = row["ci95"]
            spread = f" (95 %: {show(low)} to {show(high)}, {len(self.seeds)} seeds)"
        said = f"{best.candidate.label}: {self.goal.sentence(row['value'])}{spread}"
        if self.simplest is not best:
            return f"{said}; {self.simplest.candidate.label} is simpler and not known to be worse."
        return f"{said}."

    def rows(self, contenders: Sequence[Contender]) -> list[dict[str, Any]]:
        """Configurations as JSON has them, before infinities become null."""
        return [verdict.row(each, self.best, self.goal) for each in contenders]

    def json(self) -> dict[str, Any]:
        """Return the document of `paceline tune --json`."""
        scenario = self.space.scenario
        document = {
            "scenario": {"title": scenario.title, "file": scenario.file},
            "objective": self.goal.name,
            "measure": self.goal.says,
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
            "versions": makers.versions(scenario.objective),
            "wall_seconds": self.wall_seconds,
        }
        return dict(report.jsonable(document))


def tune(  # noqa: PLR0913 - the options of the command
    scenario: Scenario | str | Path,
    *,
    objective: str | None = None,
    trials: int = TRIALS,
    preset: str | None = None,
    seeds: int | None = None,
    seed: int = 0,
    engine: str = "auto",
    jobs: int = 1,
    dask: str | None = None,
    out: str | Path | None = None,
    programs: Programs = None,
    progress: Progress | None = None,
    force: bool = False,
) -> TuneResult:
    """Search [tune] of `scenario` for the best algorithm and parameters, with paired seeds.

    `objective`: one of `goals.GOALS`; `trials`: configurations tried at most; `preset`: one of
    `presets.PRESETS`, which brings its own space. The numbers are the same for any `jobs` or
    `dask`. With `out`, each run is kept there at once, so that the same call resumes after an
    interruption, and tune.json and figures are written in the end; runs of `programs`, whose code
    has no version, are not resumed. Raises InputError.
    """
    began = time.perf_counter()
    if not isinstance(scenario, Scenario):
        scenario = load(scenario, programs=programs)
    seeds = scenario.run.seeds if seeds is None else seeds
    check_options(seeds, seed, engine, jobs)
    if not force:
        size.demand([(scenario, seeds)], engine, jobs)
    if trials < 1:
        raise InputError(f"trials {trials}: must be at least 1")
    if preset is not None and preset not in presets.PRESETS:
        raise InputError(f"preset {preset!r}: unknown; choose one of: {', '.join(presets.PRESETS)}")
    notes: list[str] = []
    if preset:
        scenario, objective, said = presets.adacomm_tau0(scenario, objective, programs)
        notes.append(said)
    aim = goal(scenario, objective)
    tried, said_of_space = space(scenario, programs)
    directory = TuneDirectory(Path(out)) if out is not None else None
    numbers = list(range(seed, seed + seeds))
    if aim.target is None:
        if aim.deadline is None:
            aim = replace(aim, deadline=presets.shortest(tried, numbers[0], engine))
            notes.append(f"every run ends after {report.human(aim.deadline)}, as the shortest does")
        assert aim.deadline is not None
        tried = tried.until(aim.deadline)
    with quiet(), executors.start(jobs, dask) as executor:
        journal = Journal(directory.journal) if directory else None
        runner = Runner(aim, engine, programs, executor, journal)
        search = Search(Race(tried, aim, runner, numbers), seed, progress)
        contenders = search.run(trials, presets.first(tried))
        if not contenders:
            reason = next(iter(search.refused.values()))
            raise InputError(f"{scenario.file}: tune: nothing can be tried: {reason}")
        ranked = verdict.ranking(contenders)
        tied = verdict.ties(ranked, known_programs(programs))
        close = [ranked[0], *tied[: CANDIDATES - 2]]
        close += [each for each in ranked if each not in close][: CANDIDATES - len(close)]
        several = len(close) > 1 and not ranked[0].diverged
        regret = regrets(tried, aim, runner, close, numbers) if several else []
    result = TuneResult(
        tried,
        aim,
        numbers,
        ranked,
        tied,
        regret,
        list(search.refused.values()),
        runner.done,
        runner.resumed,
        [*notes, *said_of_space],
        time.perf_counter() - began,
    )
    if directory:
        save(result, directory)
    return result


def save(result: TuneResult, directory: TuneDirectory) -> None:
    """Write tune.json and the figures. Raises InputError where that cannot be."""
    document = result.json()
    document["scenario"]["table"] = result.space.scenario.table
    try:
        directory.replace(tune_figures.figures(result), document)
    except OSError as error:
        raise InputError(
            f"{directory.path}: cannot write here ({error.strerror}); choose another --out"
        ) from None
