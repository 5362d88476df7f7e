"""Make the tables of a sweep: one row per point and algorithm, and one per run."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np

from ...inputs import csv_files, messages
from ...objectives import plugins
from ...objectives.build import bases
from ...results import consumption, intervals, statistics, wording
from ...results.columns import (
    BY_KEY,
    RANKING,
    RESULT_COLUMNS,
    STATED,
    SWEEP,
    ResultColumn,
    estimate_columns,
    estimate_of,
    ranked_by,
)
from ...results.figures.chart import Chart
from ...results.order import MARGIN, Terms, order
from ...results.prediction_interval import PACE
from ...results.run import Run, diverged
from ...results.verdict import (
    EQUAL_LOSS,
    NOTHING_KNOWN,
    Compared,
    Question,
    Verdict,
    conclude,
    of_equal_tokens,
    of_points,
)
from ...scenario.scenario import Scenario
from .. import learning, links
from ..display import Display, even, shown_columns, text
from ..execution import Execution
from ..result import Result, equal_tokens
from .points import Point, value

Row = dict[str, Any]
Record = dict[str, Any]
"""The JSON-able numbers and notes of one algorithm at one point."""

SHARES = ("compute_share", "wait_share", "communicate_share")


@dataclass(frozen=True, repr=False)
class SweepResult(Display):
    """The result of `sweep`.

    `points`: the values of every point by key. `rows`: for every point and algorithm its values,
    `label`, `program`, `engine`, `seeds`, and the means of `RESULT_COLUMNS` with 90 % intervals,
    and any estimated medians. `seed_rows` has the single runs. None stands for missing values, such
    as the mean time to a target that some seed never reached. `versions`: the versions on which the
    numbers depend. `picks`: the verdict at every point, from `judged`; `bounds`: labels of
    algorithms that are never picked. `resumed` counts the runs stored before. `loss_basis`: the
    basis of the loss at all points; None if points differ, or have none.
    """

    scenario: Scenario
    points: list[dict[str, Any]]
    rows: list[Row]
    seed_rows: list[Row]
    notes: list[str]
    versions: dict[str, str]
    picks: list[Row]
    bounds: list[str]
    resumed: int = 0
    loss_basis: str | None = None

    @cached_property
    def vary(self) -> dict[str, list[Any]]:
        """The different values of each key, in order."""
        return {
            key: [*{json.dumps(point[key]): point[key] for point in self.points}.values()]
            for key in self.points[0]
        }

    @property
    def engine(self) -> str:
        """The engines that ran."""
        return ", ".join(sorted({row["engine"] for row in self.rows}))

    def records(self) -> list[Row]:
        """Return one flat dict per point and algorithm: the rows of a data frame."""
        return self.rows

    @property
    def _head(self) -> str:
        points, many = len(self.points), len({row["label"] for row in self.rows})
        return f"{points} points of {', '.join(self.vary)}; {many} algorithms"

    @property
    def verdict(self) -> Verdict:
        """The answer: which algorithm is best, and at how many points."""
        column = ranked_by(self.rows)
        if any(pick["measure"] == EQUAL_LOSS for pick in self.picks):
            return of_points(self.picks, "days at equal loss", EQUAL_LOSS)
        return of_points(self.picks, column.words, column.key)

    def _table(self) -> list[dict[str, str]]:
        columns = shown_columns(self.rows, {key: itemgetter(key) for key in BY_KEY}, SWEEP)
        return [
            {key: text(row[key]) for key in self.vary}
            | {"algorithm": row["label"]}
            | {column.words: _cell_of(row, column) for column in columns}
            for row in self.rows
        ]

    def _chart(self) -> Chart | None:
        from . import figure  # noqa: PLC0415 - it draws this

        target, title = self.scenario.run.target_loss, self.scenario.title
        return figure.chart(self.rows, self.vary, target, title)

    def json(self) -> dict[str, Any]:
        """Return the document of `paceline sweep --json`."""
        return {
            "scenario": {"title": self.scenario.title, "file": self.scenario.file},
            "engine": self.engine,
            "vary": self.vary,
            "points": len(self.points),
            "rows": self.rows,
            "verdict": self.verdict.json(),
            "picks": self.picks,
            "loss_basis": self.loss_basis,
            "versions": self.versions,
            "notes": self.notes,
        }


def _cell_of(row: Row, column: ResultColumn) -> str:
    has_value = row[column.key] is not None
    return wording.cell(estimate_of(row, column.key), column.unit) if has_value else "-"


def measured(scenario: Scenario, runs: Sequence[Run], execution: Execution) -> Record:
    """Return the record of the runs of one algorithm, JSON-able.

    The means are those of `paceline simulate`; missing values are None. `errors`: draws of a
    column's relative error; `margin`: the share of the loss within which others are equivalent.
    """
    (algorithm,) = (one for one in scenario.algorithm if one.label == runs[0].label)
    scenario = scenario.model_copy(update={"algorithm": (algorithm,)})
    missed: Any = links.time_error_models(scenario, {algorithm.label: runs}, execution)
    result = Result(scenario, [run.seed for run in runs], [*runs], links=missed)
    (summary,) = result.algorithms
    stated, target = summary.get("interval90", {}), scenario.run.target_loss
    numbers = [_numbers(result, run) for run in runs]
    notes = dict.fromkeys(note for run in runs for note in run.notes)
    rests = (learning.rest(model) for model in result.loss_models.values())
    record = {
        "engine": summary["engine"],
        "row": _summarised(summary, numbers, scenario.heavy_tailed)
        | {"diverged": sum(map(diverged, runs))},
        "stalled": any(run.stall for run in runs),
        "runs": [{"seed": run.seed, **of} for run, of in zip(runs, numbers, strict=True)],
        # notes that points may share; the step of divergence differs by run
        "notes": [
            *(note for note in notes if not note.startswith("diverged")),
            *(f"basis of its loss: {rest}" for rest in rests),
        ],
        "stated": {name: stated.get(key) for name, key in STATED.items()},
    }
    if errors := result.errors.get(algorithm.label):
        drawn = {
            "final_loss": errors.of_loss(runs, math.inf),
            PACE: errors.times,
        }
        if target is not None:
            drawn["time_to_target_s"] = errors.to_target(runs, target)
        record["errors"] = {
            key: [float(f"{x:.6g}") for x in factors]
            for key, factors in drawn.items()
            if factors is not None
        }
        record["margin"] = errors.worth(runs, math.inf)
    return dict(statistics.jsonable(record))


def _summarised(summary: Mapping[str, Any], numbers: Sequence[Row], heavy: bool) -> Row:
    """Return a row of means with the intervals of `simulate`."""
    row: Row = {}
    for column in RESULT_COLUMNS:
        values = [of_run[column.key] for of_run in numbers]
        row[column.key] = column.of_summary(summary)
        row |= estimate_columns(column.key, column.over_seeds(summary, values, heavy))
        if column.key == "time_to_target_s":
            row["reached"] = (summary["time_to_target"] or {}).get("reached")
    row |= {key: summary[key] for key in consumption.RATES if summary[key] is not None}
    for until, ending in (("used", ""), ("to_target", "_to_target")):
        for key, amount in (summary[until] or {}).items():
            row |= {f"{key}{ending}": amount["mean"]}
            row |= estimate_columns(f"{key}{ending}", intervals.stated(amount))
    return row | {f"{kind}_share": share for kind, share in summary["breakdown"].items()}


def _numbers(result: Result, run: Run) -> Row:
    """Return `RESULT_COLUMNS` and `SHARES` of one run of an algorithm's result."""
    (algorithm,) = result.scenario.algorithm
    summary = statistics.jsonable(result.statistics_of(algorithm, [run]))
    summary["cost"] = consumption.used(result.scenario, run, run.duration).get("cost")
    numbers = {column.key: column.of_summary(summary) for column in RESULT_COLUMNS}
    shares = {f"{kind}_share": share for kind, share in summary["breakdown"].items()}
    return numbers | dict.fromkeys(SHARES) | shares


def collected(
    base: Scenario,
    points: Sequence[Point],
    scenarios: Sequence[Scenario],
    records: Iterable[Record],
    resumed: int,
) -> SweepResult:
    """Make tables of the records, in the order of points and algorithms."""
    values = [{key: value(text) for key, text in point.items()} for point in points]
    rows, seed_rows, picks = list[Row](), list[Row](), list[Row]()
    count: Counter[tuple[str, str]] = Counter()
    left, bounds = iter(records), set[str]()
    for point, scenario, names in zip(values, scenarios, labels(scenarios), strict=True):
        by_label = {name: next(left) for name in names}
        for (label, record), algorithm in zip(by_label.items(), scenario.algorithm, strict=True):
            head = {"label": label, "program": algorithm.name, "engine": record["engine"]}
            rows.append(point | head | {"seeds": len(record["runs"])} | record["row"])
            seed_rows += [point | head | run for run in record["runs"]]
            count.update((label, note) for note in record["notes"])
            bounds |= {label} if algorithm.bound else set()
        pairs = zip(by_label.items(), scenario.algorithm, strict=True)
        trained = {label: record for (label, record), one in pairs if not one.bound}
        picks.append(dict(statistics.jsonable(judged(scenario, trained))))
    warnings = [*base.notes, *notes(rows, count)]
    versions = plugins.versions(*(scenario.objective for scenario in scenarios))
    based = {basis for scenario in scenarios for basis in bases(scenario).values()}
    return SweepResult(
        base, values, even(rows), even(seed_rows), warnings, versions, picks, sorted(bounds),
        resumed, based.pop() if len(based) == 1 else None,
    )  # fmt: skip


def judged(scenario: Scenario, records: Mapping[str, Record]) -> Row:
    """Return the verdict on records by label: the keys of `pick`.

    The measure is the first of `columns.RANKING` that some record has with every seed, or with most
    seeds. After equal tokens it is the time at equal loss instead of the loss, as in `simulate`.
    Stalled records are left out; `label` is None if none is left.
    """
    left = {label: record for label, record in records.items() if not record.get("stalled")}

    def column(key: str, where: str = "") -> dict[str, list[float]]:
        """Return a column by label; infinite if it, or `where`, is missing."""
        return {
            label: [math.inf if run[where or key] is None else run[key] for run in record["runs"]]
            for label, record in left.items()
        }

    measures = (key for key in RANKING if np.isfinite([*chain(*column(key).values())]).any())
    if (measure := next(measures, None)) is None:
        return {"label": None, "decided": False, "alternatives": [], "ties": [], "measure": None}
    scores = at_least = column(measure)
    if measure == "time_to_target_s":
        at_least = column("duration_s", "final_loss")
    compared, of_loss = Compared(scores, _drawn(left, measure)), measure == "final_loss"
    margins = [record.get("margin", MARGIN) for record in left.values() if of_loss]
    terms = Terms(
        scenario.deterministic, scenario.heavy_tailed and not of_loss, min(margins, default=MARGIN)
    )
    known = NOTHING_KNOWN._replace(exact=terms.exact, heavy=scenario.heavy_tailed)
    if of_loss and equal_tokens(scenario) and _ended(scores):
        trained = (algorithm.name for algorithm in scenario.algorithm if not algorithm.bound)
        known = known._replace(names=dict(zip(records, trained, strict=False)))
        times = Compared(column("duration_s"), _drawn(left, PACE))
        return of_equal_tokens(compared, times, margins, known).keys
    ranking = order(scores, at_least, terms=terms, factors=compared.factors)
    ranking = ranking.as_in({k: estimate_of(one["row"], measure) for k, one in left.items()})
    ranking = ranking.stating(ranking.best, left[ranking.best].get("stated", {}).get(measure))
    column_ = BY_KEY[measure]
    question = Question(measure, f"least {column_.words}", f"{column_.words} {{}}", column_.unit)
    return conclude(question, ranking, compared, known._replace(heavy=terms.heavy)).keys


def _drawn(records: Mapping[str, Record], key: str) -> dict[str, np.ndarray]:
    """Return draws of a column's relative error by label, for records that have an error."""
    errors = {label: record.get("errors", {}).get(key) for label, record in records.items()}
    return {
        label: np.array([math.inf if factor is None else factor for factor in drawn])
        for label, drawn in errors.items()
        if drawn
    }


def _ended(losses: Mapping[str, Sequence[float]]) -> bool:
    """Return whether some algorithm ended every run with a finite loss."""
    return any(np.isfinite(values).all() for values in losses.values())


def labels(scenarios: Sequence[Scenario]) -> list[list[str]]:
    """Return the labels of every point's algorithms, the same where possible.

    An algorithm whose label names a varied value ("local-sgd tau=4") has its program's name.
    """
    if len({tuple(one.name for one in scenario.algorithm) for scenario in scenarios}) > 1:
        return [[algorithm.label for algorithm in scenario.algorithm] for scenario in scenarios]
    columns = zip(*(scenario.algorithm for scenario in scenarios), strict=True)
    common = [
        column[0].label if len({cell.label for cell in column}) == 1 else column[0].name
        for column in columns
    ]
    twice = {name for name in common if common.count(name) > 1}
    names = [f"{name} [{at}]" if name in twice else name for at, name in enumerate(common)]
    return [names for _ in scenarios]


def notes(rows: Sequence[Row], count: Counter[tuple[str, str]]) -> list[str]:
    """Return warnings; `count`: how often each (label, note) occurs in runs."""
    size = Counter(row["label"] for row in rows)
    lost = Counter(row["label"] for row in rows if row["diverged"])
    diverged = "diverged with some seeds; try a smaller lr"
    count += Counter({(label, diverged): points for label, points in lost.items()})
    return [
        f"{label}: {note}" + f" (at {points} of {size[label]} points)" * (points < size[label])
        for (label, note), points in count.items()
    ]


def csv_table(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return rows as CSV: exact digits, tables as TOML, empty for None."""
    return csv_files.table([*rows[0]], (map(_cell, row.values()) for row in rows))


def _cell(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    written = messages.toml(value)
    return csv_files.Digits(written) if isinstance(value, int | float) else written
