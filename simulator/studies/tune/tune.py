"""`paceline tune`: choose algorithm and parameters before anything is deployed."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from ...errors import InputError
from ...load.load import Programs, loaded, varied
from ...results import statistics, store
from ...results.figures import style
from ...results.store import Destination
from ...scenario.scenario import Scenario
from ...scenario.tables import NoObjective
from .. import executors, learning, size
from ..execution import Execution, Progress, seed_range, settings
from . import figures
from .objective import TuningObjective, tuning_objective
from .race import Race, TuneDirectory
from .result import TuneResult, judged, notes_of, ordered, sorted_by
from .space import Space, space

TRIALS = 256
FEWEST = 2  # fewest seeds of every configuration


def tune(  # noqa: PLR0913 - the options of the command
    scenario: Scenario | str | Path,
    *,
    objective: str | None = None,
    trials: int = TRIALS,
    seeds: int | None = None,
    seed: int = 0,
    engine: str = "auto",
    jobs: int = 1,
    dask: str | None = None,
    out: str | Path | Destination | None = None,
    overwrite: bool = False,
    programs: Programs = None,
    progress: Progress | None = None,
    force: bool = False,
) -> TuneResult:
    """Search [tune] of `scenario` for the best algorithm and parameters, with paired seeds.

    `objective`: one of `objective.TABLE`; `trials`: the most configurations to try. The numbers are
    the same for any `jobs` or `dask`. With `out`, every run is stored there immediately, so that
    the same call resumes after an interruption. At the end it writes tune.json and figures (over
    those of other settings only if `overwrite`). Runs of `programs`, whose code has no version, are
    not resumed. Raises InputError.
    """
    began = time.perf_counter()
    scenario = loaded(scenario, programs)
    execution = Execution(engine, jobs, dask)
    chosen_seeds = seed_range(scenario, seeds, seed)
    numbers = list(chosen_seeds)
    if trials < 1:
        raise InputError(f"trials {trials}: must be at least 1")
    tried, notes = space(scenario)
    pieces = {entry.part.counts: entry.part for entry in tried.entries.values() if entry.part}
    worlds = [varied(scenario, table=part.applied(scenario.table)) for part in pieces.values()]
    aim = tuning_objective(scenario, objective, worlds)
    if not force:
        worlds = [tried.world(candidate) for candidate in tried.samples()]
        many = -(-int(min(trials, tried.size)) // len(worlds))
        size.demand([(world, chosen_seeds[:FEWEST]) for world in worlds] * many, execution)
    options = settings(
        "tune", scenario, seeds=numbers, engine=engine, objective=aim.name,
        trials=trials,
    )  # fmt: skip
    with executors.study(execution, TuneDirectory, options, out, overwrite) as place:
        tried, aim, ends = _until(tried, aim, numbers[0], execution)
        notes = [*ends, *notes] if aim.deadline else [*notes, *ends]
        search = Race(tried, aim, place, numbers, seed, progress)
        contenders = search.run(trials, tried.first())
        if not contenders:
            reason = next(iter(search.refused.values()))
            raise InputError(f"{scenario.file}: tune: nothing can be tried: {reason}")
        scores = judged(contenders, aim)
        order = ordered(contenders, aim, scores)
        ranked = sorted_by(contenders, order.best, scores)
        models = {rival.label: rival.model for rival in ranked if rival.model}
        based = {label: rival for label, rival in models.items() if rival.basis}
        notes += [*learning.notes(based), *notes_of(tried, ranked[0])]
        refused, took = list(search.refused.values()), time.perf_counter() - began
        ran = search.runs, search.resumed
        result = TuneResult(tried, aim, numbers, ranked, order, refused, *ran, notes, took)
        if place.directory:
            save(result, place.directory)
    return result


def _until(
    tried: Space, aim: TuningObjective, seed: int, execution: Execution
) -> tuple[Space, TuningObjective, list[str]]:
    """Set the end of all runs in the space and the objective; return these and notes."""
    if aim.steps:
        duration, why = tried.scenario.run.duration, f"{aim.name} compares losses after run.steps"
        note = f"run.duration = {statistics.human(duration)} ends no run: {why}"
        return tried.until(None), aim, [note] * (duration is not None)
    if aim.target is not None or not aim.of_loss:
        return tried, aim, []
    notes, deadline = [], aim.deadline
    if deadline is None:
        lengths = []
        for candidate in tried.samples():
            world = tried.world(candidate)
            if not world.programs[candidate.name].needs_loss:
                world = world.model_copy(update={"objective": NoObjective(kind="none")})
            lengths += [run.duration for run in execution.run(world, world.algorithm[0], [seed])]
        deadline = min(lengths)
        notes = [f"every run ends after {statistics.human(deadline)}, like the shortest"]
    return tried.until(deadline), replace(aim, deadline=deadline), notes


def save(result: TuneResult, directory: TuneDirectory) -> None:
    """Write tune.json and the figures. Raises InputError if they cannot be written."""
    document = result.json()
    document["scenario"]["table"] = result.space.scenario.table
    draw, where = partial(figures.figures, document), directory.path
    with store.writing(where, "choose another --out"):
        style.save(draw, lambda drawn: directory.replace(drawn, document), where)
