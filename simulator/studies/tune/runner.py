"""Run configurations for `paceline tune`: shared out to processes, each run kept at once."""

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from pydantic import ValidationError

from ...objectives import plugins
from ...results import statistics, store
from ...results.documents import adapter
from ...results.figures.style import FORMATS
from ...results.prediction_interval import NO_ERRORS
from ...results.store import TakenError
from ...scenario.scenario import Scenario
from .. import executors, learning, links
from ..execution import Execution, Progress
from ..task import Task
from .objective import Score, TuningObjective

FIGURES = ("tune", "tune-tradeoffs", "tune-sensitivity")


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


class TuneDirectory(store.RecordDirectory):
    """A directory that a search is writing; the scores of its finished runs are its records.

    Raises InputError where another command wrote it, or where it cannot be written.
    """

    whole, parts, log = "tune.json", ".tune", "runs.jsonl"
    names = (whole, *(f"{name}.{kind}" for name in FIGURES for kind in FORMATS))

    def _demand(self) -> None:
        for name in (store.WHOLE, store.SweepDirectory.whole):
            if (self.path / name).exists():
                raise TakenError(
                    f"{self.path}: has the {name} of another command",
                    "choose another directory with --out",
                )
        super()._demand()

    def score(self, key: str) -> Score | None:
        """Return the valid score stored under `key`, or None."""
        with suppress(KeyError, ValidationError):
            score: Score = adapter(Score).validate_python(self.kept[key])
            return score
        return None


@dataclass
class Runner:
    """Scorer of configurations: runs them on `executor` (None: this process), and counts the runs.

    `done`: runs that were needed; `resumed`: those of them that the `directory` had. `progress` is
    called with how many runs of a call are done, and how many there are.
    """

    objective: TuningObjective
    execution: Execution
    executor: Executor | None = None
    directory: TuneDirectory | None = None
    done: int = 0
    resumed: int = 0
    progress: Progress = lambda done, total: None

    def __call__(self, requests: Sequence[RunRequest]) -> list[list[Score]]:
        """Return the scores of each request, seed by seed; they depend on the request alone."""
        keys = [self._keys(request) for request in requests]
        found = [self._kept(request, key) for request, key in zip(requests, keys, strict=True)]
        todo: dict[int, RunRequest] = {}
        for index, request in enumerate(requests):
            if left := tuple(seed for seed in request.seeds if seed not in found[index]):
                todo[index] = RunRequest(request.scenario, left)
        score_all = partial(
            run_request,
            objective=self.objective,
            execution=self.execution,
            expected=plugins.versions(*(each.scenario.objective for each in requests)),
        )
        work = executors.Work(score_all, _description, lambda request: len(request.seeds))

        def say(under_way: float = 0.0) -> None:
            total = sum(len(each.seeds) for each in requests)
            self.progress(sum(map(len, found)) + under_way, total)

        for index, scores in executors.results(self.executor, work, todo, say):
            for seed, score in zip(todo[index].seeds, scores, strict=True):
                found[index][seed] = score
                if self.directory and keys[index]:
                    self.directory.keep_record(keys[index][seed], statistics.jsonable(score))
            say()
        self.done += sum(map(len, found))
        pairs = zip(requests, found, strict=True)
        return [[scores[seed] for seed in request.seeds] for request, scores in pairs]

    def _kept(self, request: RunRequest, keys: Mapping[int, str]) -> dict[int, Score]:
        """Return a request's stored scores by seed, and count them."""
        found = {}
        for seed in request.seeds if self.directory and keys else ():
            assert self.directory is not None
            if (score := self.directory.score(keys[seed])) is not None:
                found[seed] = score
        self.resumed += len(found)
        return found

    def _keys(self, request: RunRequest) -> dict[int, str]:
        """Hash, by seed, everything that determines a run's score; {} where nothing is kept.

        The code of users' programs has no version, so that their runs are not kept.
        """
        if self.directory is None or self.execution.programs is not None:
            return {}
        objective = repr(self.objective).encode()
        scenario, engine = request.scenario, self.execution.engine
        return {
            seed: hashlib.sha256(
                objective + Task(scenario.algorithm[0], seed, 0, engine).key(scenario).encode()
            ).hexdigest()[:32]
            for seed in request.seeds
        }


def _description(request: RunRequest) -> str:
    return f"{request.scenario.algorithm[0].label} ({statistics.seeds(request.seeds)})"


def run_request(
    request: RunRequest,
    *,
    objective: TuningObjective,
    execution: Execution,
    expected: Mapping[str, str],
) -> list[Score]:
    """Run and score a request in this process; refuse versions but `expected`."""
    store.demand_versions(expected)
    scenario, seeds = request.scenario, request.seeds
    runs = execution.run(scenario, scenario.algorithm[0], seeds)
    groups, label = {scenario.algorithm[0].label: runs}, scenario.algorithm[0].label
    losses = learning.models(scenario, groups, execution.programs)
    missed = links.time_error_models(scenario, groups, execution)
    errors = learning.errors(scenario, groups, losses, missed).get(label, NO_ERRORS)
    return [objective.score(run, scenario, losses.get(label), errors) for run in runs]
