"""Run configurations for `paceline tune`: shared out to processes, each run kept at once."""

import hashlib
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paceline.simulator.engines.bootstrap import run_replicates
from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.errors import InputError
from paceline.simulator.inputs import untrusted
from paceline.simulator.load.load import Programs
from paceline.simulator.objectives import plugins
from paceline.simulator.results import statistics, store
from paceline.simulator.results.figures.style import FORMATS
from paceline.simulator.results.ownership import TakenError
from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.studies import executors
from paceline.simulator.studies.execution import Execution
from paceline.simulator.studies.task import Task
from paceline.simulator.studies.tune.objective import Score, TuningObjective

JOURNAL = "journal"
FIGURES = ("tune", "tune-sensitivity")
LOCKED = 5  # seconds after which a lock is taken to be a killed command's


@contextmanager
def quiet() -> Iterator[None]:
    """Silence optuna's messages and warnings inside the block."""
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
    """A directory that a search is writing; its finished runs stay there, for other searches.

    Raises InputError where another command wrote it, or where it cannot be written.
    """

    whole = "tune.json"
    names = (whole, *(f"{name}.{kind}" for name in FIGURES for kind in FORMATS))
    parts, lasting = ".tune", True

    def _demand(self) -> None:
        for name in (store.WHOLE, store.SweepDirectory.whole):
            if (self.path / name).exists():
                raise TakenError(
                    f"{self.path}: has the {name} of another command",
                    "choose another directory with --out",
                )
        super()._demand()

    @property
    def journal(self) -> Path:
        """The file of finished runs."""
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
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path}: cannot be written ({untrusted.reason(error)}); choose another --out"
            ) from None
        try:
            lock = journal.JournalFileOpenLock(str(path), LOCKED)
            backend = journal.JournalFileBackend(str(path), lock)
            self.storage = optuna.storages.JournalStorage(backend)
            self._study = optuna.create_study(
                storage=self.storage, study_name="runs", load_if_exists=True
            )
            self.kept: dict[str, Any] = self._study.user_attrs
        except Exception:  # optuna raises all kinds on a damaged journal
            raise InputError(f"{path}: not a journal of tune; choose another --out") from None

    def keep(self, key: str, score: Score) -> None:
        """Append the score of one run."""
        self._study.set_user_attr(key, statistics.jsonable(score))

    def score(self, key: str) -> Score | None:
        """Return the score kept under `key`; None where there is none, or no valid one."""
        try:
            value, gap, ran, notes = self.kept[key]
            value, ran = (math.inf if each is None else float(each) for each in (value, ran))
            return Score(value, float(gap), ran, tuple(map(str, notes)))
        except (KeyError, TypeError, ValueError):
            return None


def _mend(path: Path) -> None:
    """Create the journal if it is missing; drop a last line that a kill cut short."""
    with path.open("a+b"):
        whole = untrusted.data(path, untrusted.LARGEST_WRITTEN).rfind(b"\n") + 1
    os.truncate(path, whole)


@dataclass
class Runner:
    """Scores configurations: runs them on `executor` (None: this process), and counts the runs.

    `done`: runs that were needed; `resumed`: those of them that the journal had.
    """

    objective: TuningObjective
    execution: Execution
    programs: Programs = None
    executor: Executor | None = None
    journal: Journal | None = None
    done: int = 0
    resumed: int = 0

    def __call__(self, requests: Sequence[RunRequest]) -> list[list[Score]]:
        """Return the scores of each request, seed by seed; they depend on the request alone."""
        keys = [self._keys(request) for request in requests]
        found = [self._kept(request, key) for request, key in zip(requests, keys, strict=True)]
        todo: dict[int, RunRequest] = {}
        for index, request in enumerate(requests):
            if left := tuple(seed for seed in request.seeds if seed not in found[index]):
                todo[index] = RunRequest(request.scenario, left)
        work = partial(
            run_request,
            objective=self.objective,
            execution=self.execution,
            programs=self.programs,
            expected=plugins.versions(*(each.scenario.objective for each in requests)),
        )
        for index, scores in executors.results(self.executor, work, todo, _description):
            for seed, score in zip(todo[index].seeds, scores, strict=True):
                found[index][seed] = score
                if self.journal and keys[index]:
                    self.journal.keep(keys[index][seed], score)
        self.done += sum(map(len, found))
        pairs = zip(requests, found, strict=True)
        return [[scores[seed] for seed in request.seeds] for request, scores in pairs]

    def _kept(self, request: RunRequest, keys: Mapping[int, str]) -> dict[int, Score]:
        """Return the scores that the journal has of a request, by seed, and count them."""
        found = {}
        for seed in request.seeds if self.journal and keys else ():
            assert self.journal is not None
            if (score := self.journal.score(keys[seed])) is not None:
                found[seed] = score
        self.resumed += len(found)
        return found

    def _keys(self, request: RunRequest) -> dict[int, str]:
        """Hash, by seed, everything that determines a run's score; {} where nothing is kept.

        The code of users' programs has no version, so that their runs are not kept.
        """
        if self.journal is None or self.programs is not None:
            return {}
        objective = store.dump(astuple(self.objective))
        scenario, engine = request.scenario, self.execution.engine
        return {
            seed: hashlib.sha256(
                objective + Task(scenario.algorithm[0], seed, 0, engine).key(scenario).encode()
            ).hexdigest()[:32]
            for seed in request.seeds
        }


def _description(request: RunRequest) -> str:
    """Name a request in a message about its failure."""
    return f"{request.scenario.algorithm[0].label} ({statistics.seeds(request.seeds)})"


def run_request(
    request: RunRequest,
    *,
    objective: TuningObjective,
    execution: Execution,
    programs: Programs,
    expected: Mapping[str, str],
) -> list[Score]:
    """Run and score a request in this process; refuse versions other than those `expected`.

    Where numbers come from a profile, each seed uses the bootstrap replicate of the same number.
    """
    store.demand_versions(expected)
    scenario = request.scenario
    algorithm, seeds = scenario.algorithm[0], request.seeds
    engine, threads = execution.engine, execution.threads
    if scenario.calibration is None:
        runs = run_seeds(
            scenario, algorithm, seeds, engine=engine, threads=threads, programs=programs
        )
    else:
        runs = run_replicates(
            scenario, algorithm, seeds, seeds, engine=engine, threads=threads, programs=programs
        )
    return [objective.score(run, scenario) for run in runs]
