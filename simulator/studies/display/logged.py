"""Results logged as runs of MLflow or Weights & Biases."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ...errors import InputError

TRACKERS = ("mlflow", "wandb")
PARAMETER, BATCH = 500, 1000  # characters of a value, and metrics at once, that MLflow takes


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
    there, send = library(tracker), _to_mlflow if tracker == "mlflow" else _to_wandb
    for run in runs:
        send(there, run, options)


def _to_mlflow(mlflow: Any, run: LoggedRun, options: Mapping[str, Any]) -> None:
    """Log a run in few requests; its clock is that of the run, in ms from zero."""
    metrics = [
        mlflow.entities.Metric(_plain(key), value, round(1000 * point.get("time", 0)), step)
        for step, point in run.points
        for key, value in point.items()
    ]
    with mlflow.start_run(run_name=run.name, **options) as opened:
        mlflow.log_params({_plain(k): str(v)[:PARAMETER] for k, v in run.parameters.items()})
        for start in range(0, len(metrics), BATCH):
            part = metrics[start : start + BATCH]
            mlflow.MlflowClient().log_batch(opened.info.run_id, metrics=part)


def _to_wandb(wandb: Any, run: LoggedRun, options: Mapping[str, Any]) -> None:
    with wandb.init(name=run.name, config=run.parameters, **options) as opened:
        for step, metrics in run.points:
            opened.log(metrics, step=step)


def _plain(name: str) -> str:
    """Return a name without what MLflow refuses in one."""
    return "".join(letter if letter.isalnum() or letter in "_-. /" else "_" for letter in name)
