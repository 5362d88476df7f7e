"""The result columns that tables, sweeps and reports show.

To add one, compute it in `statistics.summarise` and append it to columns.toml. It then appears in
sweep.csv and the sweep's JSON (the mean or median over seeds, and its interval),
and in the tables of `paceline simulate` and `paceline sweep`, on the terminal and on a page.
`shown_in` limits these.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite, nan
from typing import Any

from ..inputs import untrusted
from . import intervals, statistics, wording

Summary = Mapping[str, Any]
SIMULATE, SWEEP = EVERYWHERE = ("simulate", "sweep")  # outputs that show columns
MEDIAN_PARTS = ("median", "median_low", "median_high", "median_level")  # parts of a column in a row

STATED = {
    "seconds_per_step": "seconds_per_step",
    "time_to_target_s": "time_to_target",
    "final_loss": "loss",
}
"""Quantities that may have an interval of one run, by the key of their column."""


@dataclass(frozen=True)
class ResultColumn:
    """A number of one run, and its estimate over seeds.

    `key`: its name in sweep.csv; `heading`: its name on the terminal, where {target} stands for the
    loss to reach; `words`: its name in prose and on the
    report page; `unit`: see `statistics.with_unit`; `place`: the path of its mean in the result of
    `statistics.summarise`.
    """

    key: str
    heading: str
    words: str
    unit: str
    place: str
    shown_in: Sequence[str] = EVERYWHERE

    def of_summary(self, row: Summary) -> float | None:
        """Return the mean over seeds, or None."""
        if self.key == "goodput" and row.get("gradients_per_hour"):
            return None  # clients are mostly away by design, not lost
        value: Any = row
        for key in self.place.split("."):
            value = (value or {}).get(key)
        if self.key == "seconds_per_gradient":
            return 3600 / value if value else None
        result: float | None = value
        return result

    def over_seeds(
        self, row: Summary, values: Sequence[Any], heavy: bool
    ) -> intervals.Estimate | None:
        """Return the estimate in a summary, else one of `values` per seed; None without values."""
        place, _, leaf = self.place.rpartition(".")
        if self.key == "total_cost":
            place, leaf = "cost", "mean"
            row = row["used"] or {}
        stated = {} if self.key == "seconds_per_gradient" else row.get(place)
        if isinstance(stated, Mapping) and stated.get("estimate"):
            return intervals.stated(stated, leaf, one_run=True)
        return None if None in values else intervals.estimate(values, heavy=heavy)

    def cell(self, row: Summary, usual: str = intervals.USUAL, digits: int = 4) -> str:
        """Return the value with its interval (of one run if available), or why it is missing.

        `row` is a summary with the number of `seeds`. `usual` is the kind of interval that needs no
        name, and `digits` the number of digits of losses above 1.
        """
        quantity = STATED.get(self.key)
        if quantity is None:
            of_clients = self.key == "final_accuracy" and row.get("gradients_per_hour")
            estimate = intervals.stated(row["accuracy"], "last") if of_clients else None
            return wording.cell(estimate, "") if estimate else self.show(self.of_summary(row))
        of_run = (row.get("interval90") or {}).get(quantity)
        if quantity == "loss":
            if lost := row.get("diverged"):
                seeds, of = lost["seeds"], lost["of"]
                return "diverged" if seeds == of else f"{seeds} of {of} diverged"
            ends = f" ({'–'.join(map(statistics.number, of_run))})" if of_run else ""
            return statistics.loss_in_table(row["loss"]["last"], digits) + ends
        times = row[quantity] or {"reached": 0}
        reached, seeds = times.get("reached"), row["seeds"]
        if quantity == "time_to_target" and reached < seeds:
            return f"{reached} of {seeds} seeds" if reached else "not reached"
        if row["stall"]:
            return "stalled"
        estimate = intervals.stated(times, one_run=True)
        shown = of_run or quantity == "time_to_target"
        return wording.cell(estimate if shown else replace(estimate, interval=None), "s", usual)

    @property
    def show(self) -> Callable[[float | None], str]:
        """The function that formats a value for reading."""
        of_loss = self.key == "final_loss"
        return statistics.format_loss if of_loss else partial(statistics.with_unit, unit=self.unit)


PACES = ("seconds_per_step", "seconds_per_gradient")
IN_QUESTION = {"loss": "final_loss"} | {pace: pace for pace in PACES}
"""Columns that show the values that a verdict compares, by the verdict's measure."""


def in_question(verdict: Summary) -> tuple[str, str, Mapping[str, str]]:
    """Return key, heading and cells of the column that shows a verdict's values; key "" if none."""
    measure, rows = verdict.get("measure", ""), verdict.get("estimates") or {}
    what = "" if measure != "loss" else verdict["question"].removeprefix("lowest ")
    return IN_QUESTION.get(measure, ""), what, {k: _compared(rows[k], what) for k in rows}


def _compared(row: Summary, of_loss: str) -> str:
    """Format a time with its interval, or a loss with its interval if there is one."""
    estimate = intervals.stated(row, "value")
    if not of_loss:
        return wording.cell(estimate, "s")
    ends = "–".join(map(statistics.number, estimate.interval or ()))
    return statistics.format_loss(estimate.value) + f" ({ends})" * bool(ends)


def estimate_columns(name: str, estimate: intervals.Estimate | None) -> dict[str, Any]:
    """Return the keys of a row that hold a column's interval and any estimated median."""
    low, high = (estimate and estimate.interval) or (None, None)
    if estimate is None or estimate.of != intervals.MEDIAN:
        return {f"{name}_low": low, f"{name}_high": high}
    row: dict[str, Any] = {f"{name}_low": None, f"{name}_high": None}
    if isfinite(nan if high is None else high):
        values = (estimate.value, *estimate.span, estimate.level)
        row |= dict(zip((f"{name}_{part}" for part in MEDIAN_PARTS), values, strict=True))
    return row


def estimate_of(row: Mapping[str, Any], name: str) -> intervals.Estimate:
    """Return the estimate that `estimate_columns` put into a row."""
    value, low, high, level = (row.get(f"{name}_{part}") for part in MEDIAN_PARTS)
    if value is not None:
        median = {"value": value, "estimate": intervals.MEDIAN, "level": level}
        return intervals.stated(median | {"interval": (low, high)}, "value")
    ends = row.get(f"{name}_low"), row.get(f"{name}_high")
    return intervals.stated({"mean": row[name], "interval": ends, "level": intervals.LEVEL})


RESULT_COLUMNS = tuple(
    ResultColumn(**column) for column in untrusted.packaged(__file__, "columns.toml")["column"]
)
BY_KEY = {column.key: column for column in RESULT_COLUMNS}
RANKING = ("time_to_target_s", "final_loss", "seconds_per_gradient", "seconds_per_step")
"""Keys of the columns for ranking algorithms; the first with a value counts."""


def ranked_by(rows: Sequence[Mapping[str, Any]]) -> ResultColumn:
    """Return the column of `RANKING` by which rows of a sweep are compared."""
    given = {key for row in rows for key in RANKING if row.get(key) is not None}
    return BY_KEY[next((key for key in RANKING if key in given), RANKING[-1])]
