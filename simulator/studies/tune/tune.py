"""Choose algorithm and parameters before anything is deployed: `paceline tune`."""

import time
from dataclasses import replace
from pathlib import Path

from paceline.simulator.errors import InputError
from paceline.simulator.load.load import Programs, known_programs, load
from paceline.simulator.results import statistics
from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.studies import executors, size
from paceline.simulator.studies.simulate import Progress, check_options
from paceline.simulator.studies.tune import figures, verdict, warm_starts
from paceline.simulator.studies.tune.objective import goal
from paceline.simulator.studies.tune.race import Race
from paceline.simulator.studies.tune.regret import regrets
from paceline.simulator.studies.tune.result import TuneResult
from paceline.simulator.studies.tune.runner import Journal, Runner, TuneDirectory, quiet
from paceline.simulator.studies.tune.search import Search
from paceline.simulator.studies.tune.space import space

TRIALS = 256
CANDIDATES = 5  # whose regret is worked out: the best, those tied with it, the next few


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

    `objective`: one of `objective.GOALS`; `trials`: configurations tried at most; `preset`: one of
    `warm_starts.PRESETS`, which brings its own space. The numbers are the same for any `jobs` or
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
    if preset is not None and preset not in warm_starts.PRESETS:
        raise InputError(
            f"preset {preset!r}: unknown; choose one of: {', '.join(warm_starts.PRESETS)}"
        )
    notes: list[str] = []
    if preset:
        scenario, objective, said = warm_starts.adacomm_tau0(scenario, objective, programs)
        notes.append(said)
    aim = goal(scenario, objective)
    tried, said_of_space = space(scenario, programs)
    directory = TuneDirectory(Path(out)) if out is not None else None
    numbers = list(range(seed, seed + seeds))
    if aim.target is None:
        if aim.deadline is None:
            aim = replace(aim, deadline=warm_starts.shortest(tried, numbers[0], engine))
            notes.append(
                f"every run ends after {statistics.human(aim.deadline)}, as the shortest does"
            )
        assert aim.deadline is not None
        tried = tried.until(aim.deadline)
    with quiet(), executors.start(jobs, dask) as executor:
        journal = Journal(directory.journal) if directory else None
        runner = Runner(aim, engine, programs, executor, journal)
        search = Search(Race(tried, aim, runner, numbers), seed, progress)
        contenders = search.run(trials, warm_starts.first(tried))
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
        directory.replace(figures.figures(result), document)
    except OSError as error:
        raise InputError(
            f"{directory.path}: cannot write here ({error.strerror}); choose another --out"
        ) from None
