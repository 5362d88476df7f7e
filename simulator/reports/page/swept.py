"""The verdict and the section of a sweep: which algorithm is first at which point."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from ...inputs.messages import toml
from ...results import wording
from ...results.columns import BY_KEY, ResultColumn, estimate_of, ranked_by
from ...results.figures.style import COLOURS, look
from ...results.intervals import USUAL, Estimate
from ...results.pick import any_of, undecided
from ...results.statistics import human, number, time_unit
from ...results.usage import few
from . import parts
from .reading import FoundRun
from .sentences import CHANGE, MARGIN, SURE, RunVerdict
from .series import apart

ROWS, MOST = 60, 1000  # of the table: shown, and with those that are folded
BARS = 3  # times the largest value: the height of an axis that wide intervals would stretch
CHANGES = 6  # most points, or groups of them, at which the page says that another is first
BESIDE = (
    "reports_per_round",
    "clients_at_work",
    "gradients_per_hour",
    "goodput",
    "useful_share",
    "total_cost",
)  # columns that are shown where they are set
Row = Mapping[str, Any]


def verdict(found: FoundRun) -> RunVerdict:
    """Say which algorithm is first at which points, and where that is undecided."""
    sweep = found.sweep
    assert sweep is not None
    column, points = ranked_by(sweep["rows"]), _points(sweep)
    picks = _picks(sweep, points)
    if not picks:
        why = "No algorithm that may be picked has a value at any point."
        return RunVerdict(found.name, "Nothing to deploy", why, [])
    basis = "" if column.key == "seconds_per_step" else sweep.get("loss_basis") or ""
    if len({row["label"] for row in sweep["rows"]}) == 1:
        span = _span(points, column)
        return RunVerdict(found.name, "One algorithm was swept", span, [], basis=basis)
    wins: dict[str, list[str]] = {}
    for name, pick in picks.items():
        wins.setdefault(pick["label"] if pick["decided"] else "", []).append(name)
    unsure = wins.pop("", [])
    ahead = Counter(pick["label"] for pick in picks.values())
    best = max(ahead, key=lambda label: (len(wins.get(label, ())), ahead[label]))
    sure = len(wins.get(best, ())) == len(points)
    said = [f"{label} at {len(names)}" for label, names in wins.items()]
    said += [f"undecided at {len(unsure)}"] if unsure else []
    headline = f"Deploy {best}" if sure else f"It depends: {', '.join(said)}"
    if not wins:
        either = dict.fromkeys(label for pick in picks.values() for label in _open(pick))
        headline = undecided([best, *(label for label in either if label != best)])
    many = few(len(points), "point", "points")
    known = f"Smallest {column.words}, known at {USUAL}: {', '.join(said)} of {many}"
    sentence = f"{known}{wording.with_basis(basis and f'({basis})')}."
    change = [f"At {'; '.join(names)}: {label}." for label, names in wins.items() if label != best]
    change += [f"At {name}: undecided, {any_of(_open(picks[name]))}." for name in unsure]
    none = [f"None of the values of {', '.join(sweep['vary'])} that were tried."]
    facts = [
        *_leads(sweep, [points[name] for name in wins.get(best, ())], best, column),
        (SURE, [f"The first is known at {USUAL} at {len(picks) - len(unsure)} of {many}."]),
        (CHANGE, change[:CHANGES] or none),
    ]
    return RunVerdict(found.name, headline, sentence, facts, best, sure, basis=basis)


def _span(points: Mapping[str, Sequence[Row]], column: ResultColumn) -> str:
    """Say at which points the one algorithm's value is smallest and largest."""
    rows = {name: own[0] for name, own in points.items() if own[0][column.key] is not None}
    found = sorted(rows, key=lambda name: estimate_of(rows[name], column.key).value)
    if not found:
        return f"It has no {column.words} at any point."
    least, most = (
        f"{wording.cell(estimate_of(rows[name], column.key), column.unit)} at {name}"
        for name in (found[0], found[-1])
    )
    return f"{rows[found[0]]['label']}: {column.words} from {least} to {most}."


def _open(pick: Row) -> list[str]:
    """Return the labels of a point's first, and of those not known to be worse."""
    return [pick["label"], *pick["alternatives"]]


def _picks(sweep: Row, points: Iterable[str]) -> dict[str, Row]:
    """Return the verdict at each point that has one."""
    pairs = zip(points, sweep["picks"], strict=False)
    return {name: pick for name, pick in pairs if pick["label"] is not None}


def _leads(
    sweep: Row, points: Sequence[Sequence[Row]], best: str, column: ResultColumn
) -> list[tuple[str, list[str]]]:
    """Say how far the next is behind at the points where `best` is known to be first."""
    leads = []
    for rows in points:
        ranked = _ranked(sweep, rows, column.key)
        found = {str(row["label"]): estimate_of(row, column.key).value for row in ranked}
        own, *behind = found.pop(best, 0), *found.values()
        if own > 0 and behind:
            leads.append(behind[0] / own)
    if not leads:
        return [(MARGIN, ["At no point is a lead over another algorithm known."])]
    low, high = number(min(leads)), number(max(leads))
    times = f"{low} times" if low == high else f"{low} to {high} times"
    return [(MARGIN, [f"Where it is, the next one's {column.words} is {times} as large."])]


def _points(sweep: Row) -> dict[str, list[Row]]:
    """Return rows by point, which is named by the keys that differ between points."""
    keys = [key for key, values in sweep["vary"].items() if len(values) > 1] or [*sweep["vary"]]
    short = {key: key.rpartition(".")[2] for key in keys}
    if len({*short.values()}) < len(keys):
        short = {key: key for key in keys}

    def name(row: Row) -> str:
        said = {short[key]: _value(row[key]) for key in keys}
        return ", ".join(f"{key} = {value}" for key, value in said.items())

    return {key: list(rows) for key, rows in groupby(sweep["rows"], name)}


def _value(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:g}" if isinstance(value, float) else toml(value)


def _ranked(sweep: Row, rows: Sequence[Row], measure: str) -> list[Row]:
    """Sort the rows that have a value and may be picked, best first."""
    bounds = sweep["bounds"]
    there = (r for r in rows if r.get(measure) is not None and r["label"] not in bounds)
    return sorted(there, key=lambda row: estimate_of(row, measure).value)


def section(found: FoundRun, place: int) -> parts.PageSection:
    """Draw and tabulate the sweep."""
    sweep = found.sweep
    assert sweep is not None
    rows, points = sweep["rows"], _points(sweep)
    column = ranked_by(rows)
    measure = column.key
    longest = max((row[measure] for row in rows if row.get(measure) is not None), default=1.0)
    scale, unit = time_unit(longest) if column.unit == "s" else (1.0, "")
    say = column.show
    names = [*points]
    data, legend, known = [], {}, list[Estimate]()
    labels = [*dict.fromkeys(str(row["label"]) for row in rows)]
    for index, (label, brief) in enumerate(zip(labels, apart(labels), strict=True)):
        own = {
            name: estimate_of(row, measure)
            for name, each in points.items()
            for row in each
            if str(row["label"]) == label and row.get(measure) is not None
        }
        known += own.values()
        (_, dash, symbol), colour = look(index), f"--c{index % len(COLOURS)}"
        values, named = [*map(own.get, names)], parts.literal(brief)  # None breaks the line
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": [*map(parts.literal, names)],
                "y": [each and each.value / scale for each in values],
                "error_y": parts.error_bars(values, scale, color=colour, thickness=1.2, width=3),
                "line": {"color": colour, "dash": dash, "width": 2},
                "marker": {"symbol": symbol, "size": 8},
                "legendgroup": f"l{index}",
                "name": named,
                "hovertemplate": f"{named}: %{{y:.3~g}}<extra>%{{x}}</extra>",
                "meta": "mean",
            }
        )
        entry = {"name": brief, "label": named, "colour": colour, "dash": dash}
        legend[f"l{index}"] = entry | {"symbol": symbol}
    title = f"{column.words} ({unit})" if unit else column.words
    across: parts.Json = {"type": "category", **parts.categories(names)}
    across |= {"range": [-0.3, len(names) - 0.7]}
    ticks = [parts.literal(name).replace(", ", "<br>") for name in names]
    if all(" = " in name and "," not in name for name in names):  # one key, which is the title
        ticks = [parts.literal(name.partition(" = ")[2]) for name in names]
        across |= {"title": {"text": parts.literal(", ".join(sweep["vary"]))}}
    across |= {"tickvals": across["categoryarray"], "ticktext": ticks}
    up: parts.Json = {"title": {"text": title}, "rangemode": "tozero"}
    lead, most = "", BARS * max((each.value for each in known), default=0.0)
    if most > 0 and any(each.span[1] > most for each in known):
        lead = f"Bars that end above {BARS} times the largest value are cut; the table has them."
        up |= {"range": [min([0.0, *(each.span[0] for each in known)]) / scale, most / scale]}
    layout: parts.Json = {"xaxis": across, "yaxis": up}
    says = f"{column.words} of each algorithm at each point of the sweep"
    figure = parts.Figure(f"sweep-{place}", says, data, layout, {}, legend)
    best = {name: pick["label"] for name, pick in _picks(sweep, points).items()}
    bounds = sweep["bounds"]
    beside = [each for key, each in BY_KEY.items() if key in BESIDE
              if any(row.get(key) is not None for row in rows)]  # fmt: skip
    used = [each.words for each in beside]
    columns = ("point", "algorithm", column.words, USUAL, "reached", "time per step", *used)
    cells: list[tuple[parts.Cell | str, ...]] = [
        (
            name,
            parts.Cell(
                f"{row['label']} (a bound)" if row["label"] in bounds else str(row["label"]),
                strong=best.get(name) == str(row["label"]),
            ),
            "-" if row.get(measure) is None else say(row[measure]),
            wording.qualified(estimate_of(row, measure), column.unit),
            "-" if row.get("reached") is None else f"{row['reached']:.0f} of {row['seeds']:.0f}",
            human(estimate_of(row, "seconds_per_step").value),
            *(each.show(row.get(each.key)) for each in beside),
        )
        for name, each in points.items()
        for row in each
    ]
    caption = "Each algorithm at each point; the first is bold"
    tables = parts.folded(caption, columns, cells, texts=2, shown=ROWS, most=MOST, what="more rows")
    heading = f"{len(names)} points of {', '.join(sweep['vary'])}"
    return parts.PageSection(f"sweep-{place}", heading, lead, [figure], tables)
