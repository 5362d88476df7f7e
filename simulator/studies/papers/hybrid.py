"""Hybrid: its five tables, and measures of the claims of hybrid.toml."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...results.run import Run
from . import reading
from .claim import Finding, mean
from .lab import Lab

POINTS = 1000  # times that accuracy is averaged over


@dataclass(frozen=True)
class TableEntry:
    """One number of a table: the `paper`'s, and the scenario and settings for ours."""

    name: str
    paper: float
    scenario: str
    step_size: int
    sets: tuple[str, ...]


@dataclass(frozen=True)
class PaperTable:
    """Cells in the order of the key by which they differ."""

    name: str
    key: str
    cells: tuple[TableEntry, ...]

    def at(self, name: str) -> TableEntry:
        """The cell of that name."""
        return next(each for each in self.cells if each.name == name)


def _table(name: str, key: str) -> PaperTable:
    cells = (
        TableEntry(
            row["cell"],
            row["number"],
            row["scenario"],
            row.get("step_size", 500),
            tuple(row.get("sets", ())),
        )
        for row in reading.document("hybrid")["rows"][name]
    )
    return PaperTable(name, key, tuple(cells))


KEYS = {
    "MNIST": "(step size, batch)",
    "CIFAR-10": "(step size, batch)",
    "batch": "batch",
    "step size": "step size",
    "delay": "sd",
}
TABLES = {name: _table(name, key) for name, key in KEYS.items()}


def differences(
    lab: Lab,
    where: TableEntry,
    metric: str = "accuracy",
    other: str = "asgd",
    sets: Sequence[str] = (),
) -> np.ndarray:
    """Hybrid's metric minus another algorithm's, averaged over time, one per seed.

    In points for the test accuracy, else in the unit of the loss. `sets`: other timings.
    """
    labels = f"hybrid, s = {where.step_size}", other
    result = lab.runs(where.scenario, *where.sets, *sets, labels=labels)
    until = result.scenario.run.duration
    assert until is not None
    ours, baseline = (
        [averaged(run, until, metric) for run in result.groups[label]] for label in labels
    )
    return (100 if metric == "accuracy" else 1) * np.subtract(ours, baseline)


def averaged(run: Run, until: float, metric: str) -> float:
    """A column of the curve, averaged over the time from 0 to `until` (seconds)."""
    times, known = np.linspace(0, until, POINTS), np.isfinite(run.curve[metric])
    return float(
        np.interp(
            times, np.array(run.curve["time"])[known], np.array(run.curve[metric])[known]
        ).mean()
    )


def _all(lab: Lab, table: str, *which: str) -> np.ndarray:
    """`differences` of each cell of a table, shape (cells, seeds)."""
    return np.array([differences(lab, where, *which) for where in TABLES[table].cells])


def cell(
    lab: Lab, table: str, name: str, metric: str = "accuracy", sets: Sequence[str] = ()
) -> Finding:
    """One number of a table."""
    return mean(differences(lab, TABLES[table].at(name), metric, sets=sets))


def least(lab: Lab, table: str, metric: str = "accuracy", other: str = "asgd") -> Finding:
    """The smallest lead of a table's means over seeds, with its interval."""
    better = 1 if metric == "accuracy" else -1
    found, named = better * _all(lab, table, metric, other), TABLES[table]
    place = int(np.argmin(found.mean(axis=1)))
    return mean(found[place], f"The smallest is at {named.key} {named.cells[place].name}.")


def nearer(lab: Lab, to: str, near: int, far: int) -> Finding:
    """Distance of one step size's accuracy from a baseline's minus that of another, per seed."""
    away = [
        np.abs(differences(lab, TABLES["step size"].at(str(size)), other=to))
        for size in (far, near)
    ]
    return mean(away[0] - away[1], "{:.3g} against {:.3g}.".format(*(each.mean() for each in away)))


def step(lab: Lab, table: str, before: Sequence[int], after: Sequence[int]) -> Finding:
    """Mean of some cells minus that of others, per seed."""
    cells = TABLES[table].cells
    above, under = (
        np.mean([differences(lab, cells[place]) for place in each], axis=0)
        for each in (before, after)
    )
    return mean(above - under, f"{above.mean():.3g} against {under.mean():.3g}.")


def harder(lab: Lab) -> Finding:
    """Mean of CIFAR-10's numbers minus that of MNIST's, per seed."""
    return mean(_all(lab, "CIFAR-10").mean(axis=0) - _all(lab, "MNIST").mean(axis=0))


def trend(lab: Lab, table: str) -> Finding:
    """Spearman's rank correlation of the difference with the table's key, per seed."""
    from scipy.stats import spearmanr  # noqa: PLC0415 - a second

    found = _all(lab, table)
    ranks = [float(spearmanr(range(len(found)), column).statistic) for column in found.T]
    printed = [each.paper for each in TABLES[table].cells]
    paper = spearmanr(range(len(found)), printed).statistic
    return mean(ranks, f"The paper's own row has {paper:.2g}.")


def printed(lab: Lab) -> Finding:
    """Another table's number for the setting of batch 32 in the batch table."""
    other, here = TABLES["step size"].at("500").paper, TABLES["batch"].at("32")
    half = float(np.ptp(differences(lab, here))) / 2
    return Finding(
        other,
        note=f"{here.paper} - {other} = {here.paper - other:.3f} points; the delay table says "
        f"{TABLES['delay'].at('0.25 s').paper}, too. Our seeds differ by ± {half:.2g}, so other "
        f"rounds may explain the difference.",
    )
