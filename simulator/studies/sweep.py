"""`paceline sweep`: run a scenario at many points of its keys, and collect one table."""

import json
import math
import random
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import InputError
from ..inputs import csv_files, messages
from ..inputs.units import SI, to_si
from ..load.document import override
from ..load.load import Programs, loaded
from ..objectives import plugins
from ..results import consumption, intervals, store
from ..results.columns import RESULT_COLUMNS, estimate_columns, estimate_of, ranked_by
from ..results.figures import drawing, style
from ..results.figures.chart import Axis, Chart, Line, Look, Panel, fitted
from ..results.run import diverged
from ..results.statistics import jsonable, time_unit
from ..results.store import Destination
from ..results.verdict import EQUAL_LOSS, Verdict, of_points
from ..scenario.scenario import Scenario
from . import executors, learning, links, size
from .display import Display, even, text
from .execution import Execution, Progress, demand_algorithms, seed_range, settings
from .result import Result
from .solve import moved
from .solve import unit as unit_of

Row = dict[str, Any]
Vary = Mapping[str, Sequence[Any]]
LINES = 21  # more lines are unreadable
DECADE = 8  # ratio of values above which their axis is logarithmic


def chart(rows: Sequence[Row], vary: Vary, target: float | None, title: str) -> Chart | None:
    """Chart a quantity against a key with numbers; None for more than two keys or `LINES` lines."""
    varied = {key: values for key, values in vary.items() if len(values) > 1}
    key = next((key for key, values in varied.items() if numbers(values)), "")
    parsed = numbers(vary[key]) if key else None
    if parsed is None or len(varied) > 2:
        return None
    second = next((name for name in varied if name != key), None)
    lines: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        lines[row["label"] + (f", {text(row[second])}" if second else "")].append(row)
    if len(lines) > LINES:
        return None
    measure, name, size = _measure(rows, vary, target)
    places, unit = parsed
    at = dict(zip(map(text, vary[key]), places, strict=True))
    drawn = list[Line]()
    for index, (label, shown) in enumerate(lines.items()):
        points = sorted((at[text(row[key])], *_ends(row, measure)) for row in shown)
        x, mean, low, high = np.array(points, dtype=float).T
        look, band = Look.at(index), (low / size, high / size)
        drawn.append(Line(label, x, mean / size, look, band, marks="all", key=f"l{index}"))
    means = np.concatenate([np.asarray(line.y) for line in drawn])
    log = min(places) > 0 and max(places) >= DECADE * min(places)
    across = Axis(f"{key} ({unit})" if unit else key, log=log)
    up = fitted(name, means[np.isfinite(means)])
    caption = _caption(rows, measure) + (f"; lines: by {second}" if second else "")
    return Chart(title, caption, [Panel(across, up, drawn)])


def numbers(values: Sequence[Any]) -> tuple[list[float], str] | None:
    """Return values in the unit of the first; None if some are not numbers."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return list(map(float, values)), ""
    shown = unit_of(text(values[0]))
    for dimension in SI:
        with suppress(ValueError, TypeError):
            return [to_si(x, dimension) / to_si(f"1 {shown}", dimension) for x in values], shown
    return None


def _measure(rows: Sequence[Row], vary: Vary, target: float | None) -> tuple[str, str, float]:
    """Return the column to draw, the name of its axis, and the size of its unit."""
    column = ranked_by(rows)
    constant = target is not None and "run.target_loss" not in vary
    name = column.words.replace("to target", f"to loss {target:g}" if constant else "to the target")
    if column.unit != "s":
        return column.key, name, 1.0
    values = [row[column.key] for row in rows]
    size, unit = time_unit(max((value for value in values if value is not None), default=1.0))
    return column.key, f"{name} ({unit})", size


def _caption(rows: Sequence[Row], measure: str) -> str:
    kind = " or ".join(sorted({estimate_of(row, measure).of for row in rows}))
    seeds = round(max(row["seeds"] for row in rows))
    caption = f"{kind} of {seeds} seeds, band: its interval" if seeds > 1 else "one seed"
    missing = any(row[measure] is None for row in rows)
    return caption + ("; gap: not reached with every seed" if missing else "")


def _ends(row: Row, measure: str) -> tuple[float, float, float]:
    """Return an estimate and the ends of its interval; nan if missing."""
    estimate = estimate_of(row, measure)
    return (estimate.value, *(estimate.interval or (np.nan, np.nan)))


class SweepTask(NamedTuple):
    """A point, with all its algorithms and seeds."""

    scenario: Scenario
    seeds: range
    point: Mapping[str, str]


Record = dict[str, Any]
"""The JSON-able rows, notes and verdict of one point."""


@dataclass(frozen=True, repr=False)
class SweepResult(Display):
    """The result of `sweep`.

    `points`: the values of every point by key. `rows`: for every point and algorithm its values,
    `label`, `program`, `engine`, `seeds`, and the means of `RESULT_COLUMNS` with 90 % intervals,
    and any estimated medians. None stands for missing values, such as the mean time to a target
    that some seed never reached. `versions`: the versions on which the numbers depend. `bounds`:
    labels of algorithms that are never picked. `resumed` counts the points stored before.
    """

    scenario: Scenario
    points: list[dict[str, Any]]
    outcomes: list[Record]
    versions: Mapping[str, str]
    bounds: list[str]
    resumed: int = 0

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of all points, all with the same columns."""
        pairs = zip(self.points, self.outcomes, strict=True)
        return even([point | row for point, outcome in pairs for row in outcome["rows"]])

    @property
    def picks(self) -> list[Row]:
        """The verdict of `simulate` at every point."""
        return [outcome["pick"] for outcome in self.outcomes]

    @property
    def notes(self) -> list[str]:
        """Warnings and explanations, each once."""
        notes = dict.fromkeys(note for outcome in self.outcomes for note in outcome["notes"])
        return [*self.scenario.notes, *notes]

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
    def verdict(self) -> Verdict:
        """The answer: which algorithm is best, and at how many points."""
        column, measures = ranked_by(self.rows), {pick["measure"] for pick in self.picks}
        if EQUAL_LOSS in measures:
            return of_points(self.picks, "days at equal loss", EQUAL_LOSS)
        words = "loss at the end of the shortest run" if measures == {"loss"} else column.words
        return of_points(self.picks, words, column.key)

    def _chart(self) -> Chart | None:
        target, title = self.scenario.run.target_loss, self.scenario.title
        return chart(self.rows, self.vary, target, title)

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
            "versions": self.versions,
            "notes": self.notes,
        }


def measured(execution: Execution, tasks: Sequence[SweepTask]) -> list[Record]:
    """Simulate the algorithms of one point; return their rows, notes, and its verdict."""
    ((scenario, seeds, _),) = tasks
    groups = {one.label: execution.run(scenario, one, seeds) for one in scenario.algorithm}
    missed: Any = links.time_error_models(scenario, groups, execution)
    runs = [run for same in groups.values() for run in same]
    result = Result(scenario, [*seeds], runs, links=missed)
    notes = list[str]()  # that points may share; the step of divergence differs by run
    for run in runs:
        lost = "diverged with some seeds; try a smaller lr"
        notes += [f"{run.label}: {lost if x.startswith('diverged') else x}" for x in run.notes]
    models = result.loss_models.items()
    notes += [f"{label}: basis of its loss: {learning.rest(model)}" for label, model in models]
    record = {
        "rows": [_row(result, summary) for summary in result.algorithms],
        "notes": [*dict.fromkeys(notes)],
        "pick": result.pick,
    }
    return [dict(jsonable(record))]


def _row(result: Result, summary: Mapping[str, Any]) -> Row:
    """Return an algorithm's row of means with the intervals of `simulate`."""
    heavy, runs = result.scenario.heavy_tailed, result.groups[summary["label"]]
    (algorithm,) = (one for one in result.scenario.algorithm if one.label == summary["label"])
    singles = [jsonable(result.statistics_of(algorithm, [run])) for run in runs]
    row: Row = {"label": summary["label"], "program": summary["name"]}
    row |= {"engine": summary["engine"], "seeds": len(runs)}
    for column in RESULT_COLUMNS:
        values = [column.of_summary(single | {"cost": None}) for single in singles]
        row[column.key] = column.of_summary(summary)
        row |= estimate_columns(column.key, column.over_seeds(summary, values, heavy))
        if column.key == "time_to_target_s":
            row["reached"] = (summary["time_to_target"] or {}).get("reached")
    row |= {key: summary[key] for key in consumption.RATES if summary[key] is not None}
    for until, ending in (("used", ""), ("to_target", "_to_target")):
        for key, amount in (summary[until] or {}).items():
            row |= {f"{key}{ending}": amount["mean"]}
            row |= estimate_columns(f"{key}{ending}", intervals.stated(amount))
    row |= {f"{kind}_share": share for kind, share in summary["breakdown"].items()}
    return row | {"diverged": sum(map(diverged, runs))}


def labelled(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """Return scenarios with the same labels, or else programs' names, where possible."""
    if len({tuple(one.name for one in scenario.algorithm) for scenario in scenarios}) > 1:
        return [*scenarios]
    columns = zip(*(scenario.algorithm for scenario in scenarios), strict=True)
    common = [
        column[0].label if len({cell.label for cell in column}) == 1 else column[0].name
        for column in columns
    ]
    twice = {name for name in common if common.count(name) > 1}
    names = [f"{name} [{at}]" if name in twice else name for at, name in enumerate(common)]
    pairs = [zip(scenario.algorithm, names, strict=True) for scenario in scenarios]
    renamed = [tuple(one.model_copy(update={"label": k}) for one, k in pair) for pair in pairs]
    return [
        scenario.model_copy(update={"algorithm": algorithms})
        for scenario, algorithms in zip(scenarios, renamed, strict=True)
    ]


def csv_table(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return rows as CSV: exact digits, tables as TOML, empty for None."""
    return csv_files.table([*rows[0]], (map(_cell, row.values()) for row in rows))


def _cell(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    written = messages.toml(value)
    return csv_files.Digits(written) if isinstance(value, int | float) else written


LARGEST = 100_000  # points
REMEDY = "write one such as network.latency=20 ms,40 ms"
_ASSIGNMENT = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[^"'=])*?)\s*=(.*)""", re.DOTALL)


def axes(texts: Iterable[str]) -> dict[str, list[str]]:
    """Parse texts "table.key=V1,V2". Raises InputError naming the text."""
    values: dict[str, list[str]] = {}
    for given in texts:
        assignment = _ASSIGNMENT.fullmatch(given)
        if assignment is None or not assignment[1]:
            raise InputError(f"--vary {given}: not table.key=V1,V2; {REMEDY}")
        key = assignment[1]
        if key in values:
            raise InputError(f"--vary {given}: {key} is varied twice; name all its values at once")
        values[key] = split(assignment[2], f"--vary {given}")
    return values


def split(text: str, where: str = "") -> list[str]:
    """Split values at the commas outside brackets and quotes.

    A value that begins like a TOML list, table or quoted text continues until that is complete;
    other values end at the next comma. Raises InputError, which begins with `where`.
    """
    values, value = [], ""
    for part in text.split(","):
        value = f"{value},{part}" if value else part.strip()
        if _complete(value):
            values.append(value.strip())
            value = ""
    if value:
        raise InputError(f"{where}: not TOML; close its quotes and brackets: {value}")
    if not all(values):
        raise InputError(f'{where}: a value is missing; write "" for an empty text')
    return values


def _complete(value: str) -> bool:
    """Return whether a value that begins like TOML is TOML."""
    closes = {"[": "]", "{": "}", '"': '"', "'": "'"}.get(value[:1], "")
    if closes and value.rstrip().endswith(closes):  # parsing at every comma takes quadratic time
        with suppress(ValueError, RecursionError):
            tomllib.loads(f"value = {value}")
            return True
    return not closes


def grid(values: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Return all combinations, the last key varying fastest. Raises InputError."""
    if not values:
        raise InputError(
            "nothing to vary; name keys and values, such as network.latency=20 ms,40 ms"
        )
    count = math.prod(map(len, values.values()))
    if count > LARGEST:
        raise InputError(f"{count} points: at most {LARGEST} in one sweep; give fewer values")
    return [dict(zip(values, point, strict=True)) for point in product(*values.values())]


def value(text: str) -> Any:
    """Return the TOML value of a text, or else the text itself."""
    table: dict[str, Any] = {}
    override(table, f"value={text}")
    return table["value"]


def sweep(  # noqa: PLR0913 - the options of the command
    scenario: Scenario | str | Path,
    vary: Mapping[str, Sequence[Any]],
    *,
    seeds: int | None = None,
    seed: int = 0,
    engine: str = "auto",
    jobs: int = 1,
    dask: str | None = None,
    out: str | Path | Destination | None = None,
    overwrite: bool = False,
    programs: Programs = None,
    progress: Progress | None = None,
    force: bool = False,
) -> SweepResult:
    """Simulate `scenario` at every combination of values.

    Keys and values are those of `--set` ("algorithm.local-sgd.tau", "20 ms"); values may also be
    numbers, lists and dicts. The last key varies fastest. All points are checked before anything
    runs, and equal points are computed once. The other options are those of `simulate`. With `out`,
    everything finished stays there, so that the same call, or one with more points, computes only
    the rest. Other tables are replaced only if `overwrite`. Raises InputError.
    """
    scenario = loaded(scenario, programs)
    chosen = grid(_axes(vary))
    overrides = [[f"{key}={text}" for key, text in point.items()] for point in chosen]
    scenarios = labelled([moved(scenario, sets) for sets in overrides])
    execution = Execution(engine, jobs, dask)
    ranges = [seed_range(scenario, seeds, seed) for scenario in scenarios]
    for one in scenarios:
        demand_algorithms(one)
    if not force:
        size.demand(zip(scenarios, ranges, strict=True), execution)
    tasks = [*map(SweepTask, scenarios, ranges, chosen)]
    how = {"seeds": seeds, "seed": seed, "engine": engine}
    stated = settings("sweep", scenario, points=chosen, **how)
    with executors.study(execution, store.SweepDirectory, stated, out, overwrite) as place:
        work = executors.Work(
            partial(measured, execution),
            lambda block: ", ".join(f"{key}={text}" for key, text in block[0].point.items()),
            lambda block: len(block[0].seeds) * len(block[0].scenario.algorithm),
            plugins.versions(*(scenario.objective for scenario in scenarios)),
            lambda task: execution.key(task.scenario, task.seeds),
            # shuffled, so that the remaining time can be estimated early
            lambda left: [[at] for at in random.Random(0).sample(left, len(left))],
        )
        records, resumed = executors.complete(place, work, tasks, progress)
        points = [{key: value(text) for key, text in point.items()} for point in chosen]
        bounds = sorted({one.label for at in scenarios for one in at.algorithm if one.bound})
        result = SweepResult(scenario, points, records, work.versions, bounds, resumed)
        if place.directory:
            save(result, place.directory)
    return result


def _axes(vary: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the values of every key as texts; one text may hold several."""
    return {
        key: split(values, key)
        if isinstance(values, str)
        else [x if isinstance(x, str) else messages.toml(jsonable(x)) for x in values]
        for key, values in vary.items()
    }


def save(result: SweepResult, directory: store.SweepDirectory) -> None:
    """Write the table, the figure and sweep.json."""
    document = result.json() | {"points": result.points, "bounds": result.bounds}
    document["scenario"]["table"] = result.scenario.table
    files = {"sweep.csv": csv_table(result.rows)}
    style.save(
        lambda: drawing.files({"sweep": result._chart()}),
        lambda figures: directory.replace({**files, **figures}, document),
        directory.path,
    )
