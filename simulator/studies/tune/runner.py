"""Runs of configurations for `paceline tune`: shared out to processes, and each kept at once."""

import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import Programs
from paceline.simulator.objectives import plugins
from paceline.simulator.results import statistics, store
from paceline.simulator.results.figures.style import FORMATS
from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.studies import executors
from paceline.simulator.studies.bootstrap import run_replicates
from paceline.simulator.studies.simulate import Task
from paceline.simulator.studies.tune.objective import Goal, Score

JOURNAL = "journal"
FIGURES = ("tune", "tune-sensitivity")
LOCKED = 5  # seconds after which a lock is a killed command's


@contextmanager
def quiet() -> Iterator[None]:
    """Let optuna say nothing meanwhile."""
    import optuna  # noqa: PLC0415 - half a second

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)


@dataclass(frozen=True)
class RunRequest:
    """A scenario whose first algorithm is to run with each of `seeds`."""

    scenario: Scenario
    seeds: tuple[int, ...]


class TuneDirectory(store.Directory):
    """A directory that a search is writing; what it has run stays, for other searches.

    Raises InputError where it is somebody else's, or cannot be written.
    """

    whole = "tune.json"
    names = (whole, *(f"{name}.{kind}" for name in FIGURES for kind in FORMATS))
    parts = ".tune"

    def __init__(self, path: Path) -> None:
        for name in (store.WHOLE, store.SweepDirectory.whole):
            if (path / name).exists():
                raise InputError(
                    f"{path}: has the {name} of another command; choose another directory with "
                    "--out"
                )
        super().__init__(path)

    @property
    def journal(self) -> Path:
        """Where finished runs are written down."""
        return self._parts / JOURNAL


class Journal:
    """Finished runs by their key, in optuna's journal: a killed command keeps them all.

    Raises InputError where the file cannot be written or read.
    """

    def __init__(self, path: Path) -> None:
        import optuna  # noqa: PLC0415
        from optuna.storages import journal  # noqa: PLC0415

        try:
            _mend(path)
        except OSError as error:
            raise InputError(
                f"{path}: cannot be written ({error.strerror}); choose another --out"
            ) from None
        try:
            lock = journal.JournalFileOpenLock(str(path), LOCKED)
            backend = journal.JournalFileBackend(str(path), lock)
            self.storage = optuna.storages.JournalStorage(backend)
            self._study = optuna.create_study(
                storage=self.storage, study_name="runs", load_if_exists=True
            )
            self.kept: dict[str, Any] = self._study.user_attrs
        except Exception:  # whatever optuna makes of what is no journal
            raise InputError(f"{path}: not a journal of tune; choose another --out") from None

    def keep(self, key: str, score: Score) -> None:
        """Write one run down."""
        self._study.set_user_attr(key, statistics.jsonable(score))

    def score(self, key: str) -> Score | None:
        """Return a run that was kept before; None where there is none, or something else."""
        try:
            value, gap, ran, notes = self.kept[key]
            value, ran = (math.inf if each is None else float(each) for each in (value, ran))
            return Score(value, float(gap), ran, tuple(map(str, notes)))
        except (KeyError, TypeError, ValueError):
            return None


def _mend(path: Path) -> None:
    """Make sure that there is a journal, and drop a last line that a kill cut short."""
    with path.open("a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


@dataclass
class Runner:
    """Does jobs, on `executor` (None: this process), and counts them.

    `done`: runs that were needed; `resumed`: those of them that the journal had.
    """

    goal: Goal
    engine: str = "auto"
    programs: Programs = None
    executor: Executor | None = None
    journal: Journal | None = None
    done: int = 0
    resumed: int = 0

    def __call__(self, jobs: Sequence[RunRequest]) -> list[list[Score]]:
        """Return each job's scores, seed by seed; they depend on nothing but the job."""
        found: list[dict[int, Score]] = [{} for _ in jobs]
        keys: list[dict[int, str]] = [self._keys(job) for job in jobs]
        todo: dict[int, RunRequest] = {}
        for index, (job, key) in enumerate(zip(jobs, keys, strict=True)):
            for seed in job.seeds if self.journal and key else ():
                assert self.journal is not None
                if (score := self.journal.score(key[seed])) is not None:
                    found[index][seed] = score
            self.resumed += len(found[index])
            if left := tuple(seed for seed in job.seeds if seed not in found[index]):
                todo[index] = RunRequest(job.scenario, left)
        work = partial(
            run_job,
            goal=self.goal,
            engine=self.engine,
            programs=self.programs,
            expected=plugins.versions(*(job.scenario.objective for job in jobs)),
        )
        for index, scores in executors.results(self.executor, work, todo, _called):
            for seed, score in zip(todo[index].seeds, scores, strict=True):
                found[index][seed] = score
                if self.journal and keys[index]:
                    self.journal.keep(keys[index][seed], score)
        self.done += sum(map(len, found))
        pairs = zip(jobs, found, strict=True)
        return [[scores[seed] for seed in job.seeds] for job, scores in pairs]

    def _keys(self, job: RunRequest) -> dict[int, str]:
        """Hash, by seed, of everything that determines a run's score; none for code of the user."""
        if self.journal is None or self.programs is not None:
            return {}
        goal = store.dump(astuple(self.goal))
        algorithm = job.scenario.algorithm[0]
        return {
            seed: hashlib.sha256(
                goal + Task(algorithm, seed, 0, self.engine).key(job.scenario).encode()
            ).hexdigest()[:32]
            for seed in job.seeds
        }


def _called(job: RunRequest) -> str:
    """What a job is, for whoever reads that it failed."""
    return f"{job.scenario.algorithm[0].label} ({statistics.seeds(job.seeds)})"


def run_job(
    job: RunRequest, *, goal: Goal, engine: str, programs: Programs, expected: Mapping[str, str]
) -> list[Score]:
    """Run a job, wherever that is; refuse versions other than those `expected`."""
    store.demand_versions(expected)
    scenario = job.scenario
    algorithm, seeds = scenario.algorithm[0], job.seeds
    if scenario.calibration is None:
        runs = run_seeds(scenario, algorithm, seeds, engine=engine, programs=programs)
    else:  # each with measured numbers that may as well be true
        runs = run_replicates(scenario, algorithm, seeds, seeds, engine=engine, programs=programs)
    return [goal.score(run, scenario) for run in runs]
