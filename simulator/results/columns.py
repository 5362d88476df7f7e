"""Result columns: the numbers of an algorithm's runs that tables, sweeps and reports show.

To add one, compute it in `statistics.summarise` and append a `ResultColumn` to `RESULT_COLUMNS`,
with `of_summary` and `of_run`. It is then in sweep.csv, sweep-seeds.csv and the sweep's JSON (the
mean over seeds, or the median, and its interval), in the terminal's tables of `paceline simulate`
and `paceline sweep`, and in the report page's table of results; `shown_in` names fewer of these.
Outputs that show more than the number (an interval, "diverged") have a cell of their own for it;
staleness and shares of time are such cells, in `reports/terminal.py` and `reports/page/`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite, nan
from typing import Any

from . import divergence, intervals, statistics
from .run import Run

Summary = Mapping[str, Any]
SIMULATE, SWEEP, PAGE = "simulate", "sweep", "page"  # outputs that show columns
MEDIAN_PARTS = ("median", "median_low", "median_high", "median_level")  # of a column in a row


@dataclass(frozen=True)
class Conditions:
    """Numbers of the scenario that columns depend on.

    `target`: run.target_loss; `step_alone`: seconds per step if all workers computed, never
    waited, and made as many gradients as a step takes;
    `priced`: whether the scenario has prices.
    """

    target: float | None
    step_alone: float
    priced: bool


def _untimed(values: intervals.Values, _: bool) -> intervals.Estimate:
    return intervals.estimate(values)


@dataclass(frozen=True, kw_only=True)
class ResultColumn:
    """A number of one run, and its estimate over seeds.

    `key`: its name in sweep.csv; `heading`: on the terminal, where {target} stands for the loss to
    reach and {kind} for that of the intervals; `words`: in prose and on the report page; `unit`:
    as in `statistics.with_unit`.
    `of_summary` finds the mean in what `statistics.summarise` returns. Both functions return None,
    or no finite number, where there is no value. `estimate` makes an estimate over seeds, where
    some random time has no finite variance ("heavy") or not.
    """

    key: str
    heading: str
    words: str
    unit: str = ""
    of_summary: Callable[[Summary], float | None]
    of_run: Callable[[Run, Conditions], float | None]
    shown_in: tuple[str, ...] = (SIMULATE, SWEEP, PAGE)
    estimate: Callable[[intervals.Values, bool], intervals.Estimate] = (
        lambda values, heavy: intervals.positive(values, heavy=heavy)  # tails are those of times
    )

    @property
    def show(self) -> Callable[[float | None], str]:
        """The function that formats a value for reading."""
        of_loss = self.key == "final_loss"
        return statistics.format_loss if of_loss else partial(statistics.with_unit, unit=self.unit)


def _last(run: Run, column: str) -> float | None:
    values = run.curve[column]
    return values[-1] if values else None


def _scalability(run: Run, given: Conditions) -> float | None:
    per_step = statistics.seconds_per_step(run)
    return given.step_alone / per_step if per_step else None


def _sampled(run: Run, number: Callable[[Run], float]) -> float | None:
    """Return a number of a run whose clients are sampled, else None."""
    return None if run.gradients is None else number(run)


def _rate(row: Summary) -> float | None:
    return (row.get("gradients_per_hour") or {}).get("mean")


def estimate_columns(name: str, found: intervals.Estimate | None) -> dict[str, Any]:
    """Return the interval of a column's mean in a row; if its median is estimated, that as well."""
    low, high = (found and found.of_mean) or (None, None)
    row: dict[str, Any] = {f"{name}_low": low, f"{name}_high": high}
    if found and found.of == intervals.MEDIAN and found.interval and isfinite(found.interval[1]):
        values = (found.value, *found.interval, found.level)
        row |= dict(zip((f"{name}_{part}" for part in MEDIAN_PARTS), values, strict=True))
    return row


def estimate_of(row: Mapping[str, Any], name: str) -> intervals.Estimate:
    """Return the estimate that `estimate_columns` has put into a row."""
    value, low, high, level = (row.get(f"{name}_{part}") for part in MEDIAN_PARTS)
    if value is not None:
        median = {"value": value, "estimate": intervals.MEDIAN, "level": level}
        return intervals.stated(median | {"interval": (low, high)}, "value")
    ends = row.get(f"{name}_low"), row.get(f"{name}_high")
    return intervals.stated({"mean": row[name], "interval": ends, "level": intervals.LEVEL})


RESULT_COLUMNS = (
    ResultColumn(
        key="seconds_per_step",
        heading="s/step",
        words="time per step",
        unit="s",
        of_summary=lambda row: row["seconds_per_step"]["mean"],
        of_run=lambda run, _: statistics.seconds_per_step(run),
    ),
    ResultColumn(
        key="rounds",
        heading="rounds",
        words="rounds",
        unit="#",
        of_summary=lambda row: row.get("rounds"),
        of_run=lambda run, _: run.rounds or None,
    ),
    ResultColumn(
        key="seconds_per_round",
        heading="s/round",
        words="time per round",
        unit="s",
        of_summary=lambda row: (row.get("seconds_per_round") or {}).get("mean"),
        of_run=lambda run, _: run.round_seconds if run.rounds else None,
    ),
    ResultColumn(
        key="rounds_per_night",
        heading="rounds\n/night",
        words="rounds per night",
        unit="#",
        of_summary=lambda row: row.get("rounds_per_night"),
        of_run=lambda run, _: run.rounds / run.nights if run.rounds and run.nights else None,
    ),
    ResultColumn(
        key="reports_per_round",
        heading="reports\n/round",
        words="reports per round",
        of_summary=lambda row: row.get("reports_per_round"),
        of_run=lambda run, _: run.reports / run.rounds if run.reports else None,
    ),
    ResultColumn(
        key="clients_at_work",
        heading="at\nwork",
        words="clients at work at a time",
        of_summary=lambda row: (row.get("clients_at_work") or {}).get("mean"),
        of_run=lambda run, _: None if run.gradients is None else run.at_work,
        estimate=_untimed,
    ),
    ResultColumn(
        key="gradients_per_hour",
        heading="gradients\n/h",
        words="useful gradients per hour",
        unit="#",
        of_summary=_rate,
        of_run=lambda run, _: _sampled(
            run, lambda one: 3600 / statistics.seconds_per_gradient(one)
        ),
    ),
    ResultColumn(
        key="seconds_per_gradient",
        heading="s/gradient",
        words="time per useful gradient",
        unit="s",
        of_summary=lambda row: 3600 / rate if (rate := _rate(row)) else None,
        of_run=lambda run, _: _sampled(run, statistics.seconds_per_gradient),
        shown_in=(),
    ),
    ResultColumn(
        key="duration_s",
        heading="duration",
        words="duration",
        unit="s",
        of_summary=lambda row: row["duration"],
        of_run=lambda run, _: run.duration,
        shown_in=(),
    ),
    ResultColumn(
        key="time_to_target_s",
        heading="to {target}\n({kind})",
        words="time to target",
        unit="s",
        of_summary=lambda row: row["time_to_target"] and row["time_to_target"]["mean"],
        of_run=lambda run, on: None if on.target is None else statistics.crossing(run, on.target),
    ),
    ResultColumn(
        key="final_loss",
        heading="final\nloss",
        words="final loss",
        of_summary=lambda row: row["loss"]["last"],
        of_run=lambda run, _: nan if divergence.diverged(run) else _last(run, "loss"),
        estimate=_untimed,
    ),
    ResultColumn(
        key="final_accuracy",
        heading="accuracy",
        words="final accuracy",
        of_summary=lambda row: row["accuracy"]["last"],
        of_run=lambda run, _: _last(run, "accuracy"),
        estimate=lambda values, _: intervals.share(values),
    ),
    ResultColumn(
        key="goodput",
        heading="goodput",
        words="goodput",
        unit="%",
        of_summary=lambda row: (
            None if row.get("gradients_per_hour") else row.get("goodput") and row["goodput"]["mean"]
        ),
        of_run=lambda run, _: (  # of clients who are mostly away it says nothing
            None if run.failures is None or run.gradients is not None else statistics.goodput(run)
        ),
        estimate=lambda values, _: intervals.share(values),
    ),
    ResultColumn(
        key="useful_share",
        heading="useful",
        words="useful share of what clients compute",
        unit="%",
        of_summary=lambda row: (row.get("useful_share") or {}).get("mean"),
        of_run=lambda run, _: _sampled(run, statistics.useful_share),
        estimate=lambda values, _: intervals.share(values),
    ),
    ResultColumn(
        key="bytes_per_step",
        heading="bytes/step",
        words="bytes per step",
        of_summary=lambda row: row["bytes_per_step"],
        of_run=lambda run, _: run.curve["bytes"][-1] / run.steps if run.steps else None,
        shown_in=(),
        estimate=_untimed,
    ),
    ResultColumn(
        key="total_cost",
        heading="cost",
        words="cost",
        of_summary=lambda row: row["cost"],
        of_run=lambda run, given: _last(run, "cost") if given.priced else None,
        shown_in=(SWEEP,),
    ),
    ResultColumn(
        key="scalability",
        heading="scalability",
        words="scalability",
        of_summary=lambda row: row["scalability"],
        of_run=_scalability,
        shown_in=(),
    ),
)
BY_KEY = {column.key: column for column in RESULT_COLUMNS}
RANKING = ("time_to_target_s", "final_loss", "seconds_per_gradient", "seconds_per_step")
"""Keys of the columns that algorithms are ranked by: the first that has a value."""


NIGHTS = replace(
    BY_KEY["time_to_target_s"],
    key="nights_to_target",
    heading="nights\nto {target}\n({kind})",
    words="nights to target",
    unit="",
)


def to_target(rows: Iterable[Mapping[str, Any]]) -> ResultColumn:
    """Return the column of what a target takes: nights, if days without clients lie between."""
    reached = [row for row in rows if row.get("time_to_target_s") is not None]
    nights = reached and all(row.get(NIGHTS.key) is not None for row in reached)
    return NIGHTS if nights else BY_KEY["time_to_target_s"]


def ranked_by(rows: Sequence[Mapping[str, Any]]) -> ResultColumn:
    """Return the column of `RANKING` that rows of a sweep are compared by; see `to_target`."""
    known = {key for row in rows for key in RANKING if row.get(key) is not None}
    key = next((key for key in RANKING if key in known), RANKING[-1])
    return to_target(rows) if key == "time_to_target_s" else BY_KEY[key]
