"""Results logged as runs of MLflow or Weights & Biases."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from paceline.simulator.errors import InputError

TRACKERS = ("mlflow", "wandb")
PARAMETER = 500  # characters of a value that MLflow takes


class LoggedRun(NamedTuple):
    """A run as trackers know it: `points` are (step, metrics), the last one the summary."""

    name: str
    parameters: dict[str, Any]
    points: list[tuple[int, dict[str, float]]]


def of_rows(rows: Sequence[Mapping[str, Any]], index: Sequence[str]) -> list[LoggedRun]:
    """Return a run for each row: its finite numbers are metrics, all else parameters."""
    found = []
    for row in rows:
        metrics = {key: float(each) for key, each in row.items() if _measured(key, each, index)}
        others = {key: each for key, each in row.items() if key not in metrics and each is not None}
        name = " ".join(str(row[key]) for key in index)
        found.append(LoggedRun(name, others, [(0, metrics)]))
    return found


def _measured(key: str, value: Any, index: Sequence[str]) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return key not in index and number and math.isfinite(value)


def log(
    tracker: str,
    runs: Sequence[LoggedRun],
    library: Callable[[str], Any],
    options: Mapping[str, Any],
) -> None:
    """Log runs. Raises InputError for an unknown tracker, or one that is not installed."""
    if tracker not in TRACKERS:
        raise InputError(f"log_to {tracker!r}: unknown; choose one of: {', '.join(TRACKERS)}")
    there = library(tracker)
    for run in runs:
        if tracker == "mlflow":
            with there.start_run(run_name=run.name, **options):
                there.log_params({_plain(k): str(v)[:PARAMETER] for k, v in run.parameters.items()})
                for step, metrics in run.points:
                    there.log_metrics({_plain(k): v for k, v in metrics.items()}, step=step)
        else:
            with there.init(name=run.name, config=run.parameters, **options) as opened:
                for step, metrics in run.points:
                    opened.log(metrics, step=step)


def _plain(name: str) -> str:
    """Return a name without what MLflow refuses in one."""
    return "".join(letter if letter.isalnum() or letter in "_-. /" else "_" for letter in name)
