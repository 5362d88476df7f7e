"""Run configurations for `paceline tune` in processes, and store every run immediately."""

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from pydantic import ValidationError

from ...objectives import plugins
from ...results import statistics, store
from ...results.documents import adapter
from ...results.figures.style import FORMATS
from ...results.prediction_interval import NO_ERRORS
from ...results.store import TakenError
from ...scenario.scenario import Scenario
from .. import executors, learning, links
from ..execution import Execution, Progress, Task
from ..executors import Place
from .objective import Score, TuningObjective

Run = tuple[Scenario, int]
"""A scenario, whose first algorithm is run, and the seed."""
FIGURES = ("tune", "tune-tradeoffs")


@contextmanager
def quiet() -> Iterator[None]:
    """Silence optuna's messages and warnings inside the block."""
    import optuna  # noqa: PLC0415 - half a second

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            warnings.filterwarnings("ignore", "Choices for a categorical")  # tables, for a codec
            yield
    finally:
        optuna.logging.set_verbosity(level)


class TuneDirectory(store.RecordDirectory):
    """A directory that a search is writing, with the scores of finished runs as records.

    Raises InputError if another command wrote it, or if it cannot be written.
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

    def find(self, key: str) -> Score | None:
        """Return the valid score stored under `key`, or None."""
        with suppress(KeyError, ValidationError):
            score: Score = adapter(Score).validate_python(self.kept[key])
            return score
        return None

    def keep(self, key: str, result: Any) -> None:
        """Store a score."""
        super().keep(key, statistics.jsonable(result))


@dataclass
class Runner:
    """A scorer of configurations, which runs them at a `place`, and counts the runs.

    `done`: runs that were needed; `resumed`: how many of them the directory had. `progress` is
    called with the finished runs of a call, and with their total.
    """

    objective: TuningObjective
    place: Place
    done: int = 0
    resumed: int = 0
    progress: Progress = lambda done, total: None

    def __call__(self, tasks: Sequence[Run]) -> list[Score]:
        """Return the score of every run; it depends only on the run."""

        def blocks(left: list[int]) -> list[list[int]]:
            return [[*block] for _, block in groupby(left, lambda index: id(tasks[index][0]))]

        work = executors.Work(
            partial(run_block, self.objective, self.place.execution),
            _description,
            len,
            plugins.versions(*(scenario.objective for scenario, _ in tasks)),
            self._key if self.place.kept else None,
            blocks,
        )
        scores, stored = executors.complete(self.place, work, tasks, self.progress)
        self.done, self.resumed = self.done + len(scores), self.resumed + stored
        return scores

    def _key(self, task: Run) -> str:
        """Hash everything that determines a run's score."""
        scenario, seed = task
        of_run = Task(scenario.algorithm[0], seed, 0, self.place.execution.engine).key(scenario)
        return hashlib.sha256(f"{self.objective!r}{of_run}".encode()).hexdigest()[:32]


def _description(tasks: Sequence[Run]) -> str:
    return f"{tasks[0][0].algorithm[0].label} ({statistics.seeds(seed for _, seed in tasks)})"


def run_block(
    objective: TuningObjective, execution: Execution, tasks: Sequence[Run]
) -> list[Score]:
    """Run and score seeds of one scenario in this process."""
    scenario = tasks[0][0]
    (algorithm,) = scenario.algorithm[:1]
    runs = execution.run(scenario, algorithm, [seed for _, seed in tasks])
    groups = {algorithm.label: runs}
    losses = learning.models(scenario, groups)
    missed = links.time_error_models(scenario, groups, execution)
    errors = learning.errors(scenario, groups, losses, missed).get(algorithm.label, NO_ERRORS)
    model = losses.get(algorithm.label)
    return [objective.score(run, scenario, model, errors) for run in runs]
