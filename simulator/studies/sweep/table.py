"""The table of a sweep: a row for each point and algorithm, and one for each of their runs."""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from typing import Any

from ...inputs import csv_cells, messages
from ...objectives import plugins
from ...objectives.basis import bases
from ...objectives.learning_curve.objective import Expected
from ...results import consumption, divergence, intervals, statistics, wording
from ...results.columns import (
    BY_KEY,
    RESULT_COLUMNS,
    SWEEP,
    Conditions,
    ResultColumn,
    estimate_columns,
    estimate_of,
    to_target,
)
from ...results.figures.chart import Chart
from ...results.prediction_interval import PACE, TARGET, TimeModel
from ...results.run import Run
from ...scenario.scenario import Algorithm, Scenario
from .. import learning, links
from ..display.display import Display, even, shown_columns, text
from ..execution import Execution
from .picks import judged, picked
from .points import Point, value

Row = dict[str, Any]
Record = dict[str, Any]
"""The JSON-able numbers and notes of one algorithm at one point."""

STATED = {"time_to_target_s": TARGET, PACE: PACE, "final_loss": "loss"}
"""Columns of which `simulate` states the interval of one run, by its names of them."""
SHARES = ("compute_share", "wait_share", "communicate_share")
_WORD = re.compile(r"(?:\((?:[^()]|\([^()]*\))*\)|[^\s(])+")


@dataclass(frozen=True, repr=False)
class SweepResult(Display):
    """The result of `sweep`.

    `points`: each point's values by key. `rows`: of each point and algorithm the values, `label`,
    `program`, `engine`, `seeds`, and the mean of each of `RESULT_COLUMNS` with its 90 % interval,
    also the median where that is estimated; `seed_rows` has the single runs.
    None stands for what cannot be had, such as the mean time to a target that some seed never
    reached. `versions`: of all that the numbers depend on. `picks`:
    the verdict at each point, as `picks.picked` returns it; `bounds`: labels of the algorithms
    that are never picked. `resumed` counts the runs kept from before. `loss_basis`: what
    the loss of every point is the loss of; None where points differ, or have none.
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
        """One flat dict per point and algorithm: rows of a data frame."""
        return self.rows

    def seed_records(self) -> list[Row]:
        """One flat dict per run."""
        return self.seed_rows

    @property
    def _index(self) -> list[str]:
        return [*self.vary, "label"]

    @property
    def _head(self) -> str:
        points, many = len(self.points), len({row["label"] for row in self.rows})
        return f"{points} points of {', '.join(self.vary)}; {many} algorithms"

    @property
    def _in_words(self) -> str:
        best = Counter(each["label"] for each in self.picks if each["label"]).most_common()
        said = ", ".join(f"{label} at {count}" for label, count in best)
        return f"Best of {len(self.points)} points: {said or 'none'}."

    def _table(self) -> list[dict[str, str]]:
        columns = shown_columns(self.rows, {key: itemgetter(key) for key in BY_KEY}, SWEEP)
        until = to_target(self.rows)
        columns = [until if each.key == "time_to_target_s" else each for each in columns]
        return [
            {key: text(row[key]) for key in self.vary}
            | {"algorithm": row["label"]}
            | {each.words: _cell_of(row, each) for each in columns}
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
            "picks": self.picks,
            "loss_basis": self.loss_basis,
            "versions": self.versions,
            "notes": self.notes,
        }


def _cell_of(row: Row, column: ResultColumn) -> str:
    known = row[column.key] is not None
    return wording.cell(estimate_of(row, column.key), column.unit) if known else "-"


def measured(scenario: Scenario, runs: Sequence[Run], execution: Execution) -> Record:
    """Return all that a sweep keeps of the runs of one algorithm, JSON-able.

    The means are those of `paceline simulate`; missing values are None. `errors`, by column: draws
    of what it may be wrong by; `margin`: the share of the loss up to which others are equivalent.
    """
    algorithm = next(each for each in scenario.algorithm if each.label == runs[0].label)
    ideal, workers = scenario.team.ideal_rate, scenario.participants(algorithm)
    given = Conditions(
        target=scenario.run.target_loss,
        step_alone=workers / ideal if ideal else 0,
        priced=scenario.cost.priced,
    )
    heavy = scenario.heavy_tailed
    summary = statistics.summarise(
        runs, target=given.target, workers=workers, ideal_rate=ideal, heavy=heavy
    )
    groups, label = {algorithm.label: [*runs]}, algorithm.label
    losses = learning.models(scenario, groups, execution.programs)
    missed = links.time_error_models(scenario, groups, execution)
    stated = learning.stated(scenario, runs, losses.get(label), missed.get(label))
    summary |= consumption.summary(scenario, runs, losses.get(label), stated)
    each = [_numbers(run, given) for run in runs]
    row: Row = {}
    for column in RESULT_COLUMNS:
        name, values = column.key, [run[column.key] for run in each]
        row[name] = column.of_summary(summary)
        over_seeds = None if None in values else column.estimate(values, heavy)
        if name == "seconds_per_step":  # of one seed, too
            over_seeds = statistics.mean_pace(runs, heavy)
        if name == "total_cost" and over_seeds:
            limits = consumption.most(scenario, served=algorithm.served)
            over_seeds = over_seeds.within(0.0, limits.get("cost", math.inf))
            spent = (summary["used"] or {}).get("cost", {})
            over_seeds = intervals.stated(spent) if "interval90" in spent else over_seeds
        one = stated.get(STATED.get(name, ""))
        if one and over_seeds and math.isfinite(over_seeds.value):
            ends = one[0], one[1]
            over_seeds = replace(over_seeds, interval=ends, of_mean=ends, level=intervals.LEVEL)
        row |= estimate_columns(name, over_seeds)
        if name == "time_to_target_s":
            reached = summary["time_to_target"]
            row["reached"] = reached and reached["reached"]
    row |= {key: summary[key] for key in consumption.RATES if summary[key] is not None}
    for until, ending in (("used", ""), ("to_target", "_to_target")):
        for key, found in (summary[until] or {}).items():
            row |= {f"{key}{ending}": found["mean"]}
            row |= estimate_columns(f"{key}{ending}", intervals.stated(found))
    row |= {f"{kind}_share": share for kind, share in summary["breakdown"].items()}
    told = dict.fromkeys(note for run in runs for note in run.notes)
    found = {
        "engine": summary["engine"],
        "row": row | {"diverged": sum(map(divergence.diverged, runs))},
        "stalled": any(run.stall for run in runs),
        "runs": [{"seed": run.seed, **one} for run, one in zip(runs, each, strict=True)],
        # those that points may share: the step at which a run diverged is its own
        "notes": [
            *(note for note in told if not note.startswith("diverged")),
            *(f"what its loss rests on: {learning.rest(each)}" for each in losses.values()),
        ],
        **_errors(scenario, runs, losses, missed),
        "stated": {name: stated.get(key) for name, key in STATED.items()},
    }
    return dict(statistics.jsonable(found))


def _errors(
    scenario: Scenario,
    runs: Sequence[Run],
    losses: Mapping[str, Expected],
    missed: Mapping[str, TimeModel],
) -> Row:
    """Return the draws that `paceline simulate` compares its algorithms by, to six digits."""
    label, target = runs[0].label, scenario.run.target_loss
    known = learning.errors(scenario, {label: [*runs]}, losses, missed).get(label)
    if known is None:
        return {}
    drawn = {"final_loss": known.of_loss(runs, math.inf)}
    if target is not None:
        drawn["time_to_target_s"] = known.to_target(runs, target)
    if known.times is not None:
        drawn[PACE] = known.times
    rounded = {key: [float(f"{x:.6g}") for x in each] for key, each in drawn.items()}
    return {"errors": rounded, "margin": known.worth(runs, math.inf)}


def _numbers(run: Run, given: Conditions) -> Row:
    """Return `RESULT_COLUMNS` and `SHARES` of one run."""
    total = sum(run.seconds.values())
    shares = {f"{kind}_share": spent / total for kind, spent in run.seconds.items() if total}
    numbers = {column.key: column.of_run(run, given) for column in RESULT_COLUMNS}
    return numbers | dict.fromkeys(SHARES) | shares


def collected(
    base: Scenario,
    points: Sequence[Point],
    scenarios: Sequence[Scenario],
    records: Iterable[Record],
    resumed: int,
) -> SweepResult:
    """Put the records, in the order of points and algorithms, into tables."""
    values = [{key: value(text) for key, text in point.items()} for point in points]
    rows, seed_rows, outcomes, picks = [], [], [], []
    told: Counter[tuple[str, str]] = Counter()
    left, bounds, kept = iter(records), set[str](), dict[str, list[Record]]()
    for point, scenario, names in zip(values, scenarios, labels(scenarios), strict=True):
        own = [next(left) for _ in names]
        outcomes.append(json.dumps(own))
        for label, algorithm, record in zip(names, scenario.algorithm, own, strict=True):
            head = {"label": label, "program": algorithm.name, "engine": record["engine"]}
            rows.append(point | head | {"seeds": len(record["runs"])} | record["row"])
            seed_rows += [point | head | run for run in record["runs"]]
            told.update((label, note) for note in record["notes"])
            kept.setdefault(label, []).append(record)
            bounds |= {label} if algorithm.bound else set()
        named = dict(zip(names, own, strict=True))
        picks.append(dict(statistics.jsonable(picked(scenario, named))))
    told_of = [
        *base.notes,
        *learning.of_unit(scenarios[0]),
        *notes(without_effect(points, outcomes), rows, told),
    ]
    told_of += unordered(scenarios[0], values, kept)
    versions = plugins.versions(*(each.objective for each in scenarios))
    said = {basis for each in scenarios for basis in bases(each).values()}
    return SweepResult(
        base, values, even(rows), even(seed_rows), told_of, versions, picks, sorted(bounds),
        resumed, said.pop() if len(said) == 1 else None,
    )  # fmt: skip


def labels(scenarios: Sequence[Scenario]) -> list[list[str]]:
    """Return labels of each point's algorithms, the same at every point where possible.

    Of labels that name a varied value ("local-sgd tau=4") only the common words ("local-sgd").
    """
    if len({tuple(each.name for each in scenario.algorithm) for scenario in scenarios}) > 1:
        return [[each.label for each in scenario.algorithm] for scenario in scenarios]
    columns = zip(*(scenario.algorithm for scenario in scenarios), strict=True)
    common = list(map(_common, columns))
    names = [
        f"{name} [{index}]" if common.count(name) > 1 else name for index, name in enumerate(common)
    ]
    return [names for _ in scenarios]


def _common(algorithms: Sequence[Algorithm]) -> str:
    """Return the words of the first label that all labels share, or else the program's name."""
    words = [_WORD.findall(label) for label in dict.fromkeys(each.label for each in algorithms)]
    if len(words) == 1:
        return algorithms[0].label
    return " ".join(word for word in words[0] if all(word in each for each in words)) or (
        algorithms[0].name
    )


def without_effect(points: Sequence[Point], outcomes: Sequence[Hashable]) -> list[str]:
    """Return the keys whose values make no difference to any outcome, all else being equal."""
    found = []
    for key in points[0]:
        groups = defaultdict(set)
        values = defaultdict(set)
        for point, outcome in zip(points, outcomes, strict=True):
            others = tuple(text for name, text in point.items() if name != key)
            groups[others].add(outcome)
            values[others].add(point[key])
        varied = any(len(each) > 1 for each in values.values())
        if varied and all(len(each) == 1 for each in groups.values()):
            found.append(key)
    return found


def notes(idle: Iterable[str], rows: Sequence[Row], told: Counter[tuple[str, str]]) -> list[str]:
    """Return warnings for readers of the table; `told` counts each (label, note) of the runs."""
    found = [f"nothing depends on {key}: its values give the same numbers" for key in idle]
    size = Counter(row["label"] for row in rows)
    lost = Counter(row["label"] for row in rows if row["diverged"])
    told = told + Counter(
        {(k, "diverged with some seeds; try a smaller lr"): lost[k] for k in lost}
    )
    about: dict[tuple[str, str], list[str]] = {}
    for (label, note), count in told.items():
        where = "" if count == size[label] else f" (at {count} of {size[label]} points)"
        about.setdefault((note, where), []).append(label)
    everyone = max(len(size), 2)
    return found + [
        f"{'every algorithm' if len(who) == everyone else ', '.join(who)}: {note}{where}"
        for (note, where), who in about.items()
    ]


def unordered(
    scenario: Scenario, points: Sequence[Mapping[str, Any]], records: Mapping[str, list[Record]]
) -> list[str]:
    """Say whether the best point is known, where the errors of models leave that open or seem to.

    They seem to where intervals overlap, though points share most of what a model may miss.
    """
    found, words = [], ", ".join(points[0])
    names = [", ".join(map(text, point.values())) for point in points]
    for label, own in records.items():
        at = dict(zip(names, own, strict=False))
        uneven = len(at) < len(points) or len({len(each["runs"]) for each in own}) > 1
        if uneven or "run.target_loss" in points[0]:
            continue  # some points are without it, or have other seeds or another target
        verdict = judged(scenario, at)
        best, measure, others = (verdict[key] for key in ("label", "measure", "alternatives"))
        if measure not in own[0].get("errors", {}):
            continue
        rows = [record["row"] for name, record in at.items() if name != best]
        _, high = verdict.get("interval") or (math.inf, -math.inf)
        many = f"{len(others)} other{'s' * (len(others) > 1)} may be as good as {best}"
        if others:
            seldom = "value" not in verdict
            why = "none reaches it with every seed" if seldom else "by what the model may miss"
            said = f"which {words} is best is undecided: {why}, {many}"
        elif any(estimate_of(row, measure).span[0] < high for row in rows):
            said = (
                f"the best {words} is {best}, at 90 %, though intervals overlap: most of what the "
                "model may miss is the same at all points"
            )
        else:
            continue
        found.append(f"{label}: by {BY_KEY[measure].words} {said}")
    return found


def csv_table(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return rows as CSV: digits that read back exactly, tables as TOML, empty for None."""
    return csv_cells.table([*rows[0]], (map(_cell, row.values()) for row in rows))


def _cell(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    said = messages.toml(value)
    return csv_cells.Digits(said) if isinstance(value, int | float) else said
