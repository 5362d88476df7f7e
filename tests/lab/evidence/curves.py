"""Store trained curves as a file of rows, and compute times and orders from them."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from paceline.validate.logs import loss

SHOWN = ("step", "seconds", "loss")
CLOSE = 0.02  # relative difference of times or losses below which they count as equal
LEVELS = 6  # losses at which times are compared

Curve = np.ndarray
"""Columns step, seconds, loss."""


def read(file: Path) -> dict[tuple[str, ...], Curve]:
    """Read the curves of a file by the texts of their other columns."""
    results: dict[tuple[str, ...], list[list[float]]] = {}
    rows = csv.reader(file.read_text("utf-8").splitlines()[1:] if file.exists() else ())
    for row in rows:
        results.setdefault(tuple(row[:-3]), []).append([float(value) for value in row[-3:]])
    return {key: np.array(values) for key, values in results.items()}


def append(file: Path, names: Sequence[str], key: Sequence[object], curve: Curve) -> None:
    """Add a curve to a file."""
    with file.open("a", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerows([(*names, *SHOWN)] if not stream.tell() else [])
        writer.writerows((*key, f"{a:.0f}", f"{b:.6g}", f"{c:.6g}") for a, b, c in curve)


def stacked(curve: dict[str, Any]) -> Curve:
    """Return a simulated curve as columns."""
    return np.column_stack([np.ravel(curve[key]) for key in ("step", "time", "loss")])


def seconds(curve: Curve, level: float) -> float:
    """Return the time to a loss; inf if it is not reached."""
    first = int(np.argmax(curve[:, 2] <= level))
    if curve[first, 2] > level:
        return float("inf")
    between = curve[max(first - 1, 0) : first + 1]
    return float(np.interp(-np.log(level), -np.log(between[:, 2]), between[:, 1]))


def agreement(real: Sequence[float], predicted: Sequence[float]) -> Iterator[float]:
    """Yield 1 for every pair that reality separates if the order is right, else -1.

    Their mean is Kendall's tau. Two infinite predictions are a tie.
    """
    for a, b in combinations(range(len(real)), 2):
        if max(real[a], real[b]) > (1 + CLOSE) * min(real[a], real[b]):
            order = int(predicted[a] > predicted[b]) - int(predicted[a] < predicted[b])
            yield float(order if real[a] > real[b] else -order)


def objective(runs: Iterable[Curve], folder: Path, **given: Any) -> tuple[dict[str, Any], Any]:
    """Fit an objective to losses of runs like `paceline fit-loss`; return it and remarks.

    Args:
        runs: Logs of a loop: of the baseline, a local run and so on.
        folder: The folder for the logs and the fitted curve.
        given: Fields of `loss.Given`.
    """
    paths = []
    for place, curve in enumerate(runs):
        paths.append(folder / f"{place}.csv")
        rows = curve[curve[:, 0] > 0][:, ::2]
        np.savetxt(paths[-1], rows, "%.8g", ",", header="step,loss", comments="")
    fitted = loss.fit(paths, loss.Given(**given))
    for name, content in fitted.profile.files.items():
        (folder / name).write_bytes(content)
    table = dict(fitted.profile.tables["objective"])
    table["curve"] = {**table["curve"], "file": str(folder / table["curve"]["file"])}
    return table, fitted.sentences
