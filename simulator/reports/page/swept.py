"""The verdict and the section of a sweep: which algorithm is first at which point."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from paceline.simulator.inputs.messages import toml
from paceline.simulator.reports.page import parts
from paceline.simulator.reports.page.reading import FoundRun
from paceline.simulator.reports.page.sentences import CHANGE, MARGIN, SURE, RunVerdict
from paceline.simulator.reports.page.series import DASHES, SYMBOLS
from paceline.simulator.results import wording
from paceline.simulator.results.columns import estimate_of, ranked_by
from paceline.simulator.results.figures.style import COLOURS
from paceline.simulator.results.statistics import human, number, time_unit

ROWS = 60
Row = Mapping[str, Any]


def verdict(found: FoundRun) -> RunVerdict:
    """Say which algorithm is first, and where it is not."""
    sweep = found.sweep
    assert sweep is not None
    column = ranked_by(sweep["rows"])
    measure = column.key
    points = _points(sweep)
    firsts = {name: _ranked(rows, measure) for name, rows in points.items()}
    wins: dict[str, list[str]] = {}
    for name, ranked in firsts.items():
        if ranked:
            wins.setdefault(str(ranked[0]["label"]), []).append(name)
    if not wins:
        return RunVerdict(
            found.name, "Nothing to deploy", "No algorithm has a value at any point.", []
        )
    best = max(wins, key=lambda label: len(wins[label]))
    count = len(wins[best])
    sentence = f"{best}: smallest {column.words} at {count} of {len(points)} points."
    leads = [
        estimate_of(ranked[1], measure).value / estimate_of(ranked[0], measure).value
        for ranked in firsts.values()
        if len(ranked) > 1 and ranked[0]["label"] == best and ranked[0][measure] > 0
    ]
    facts = []
    if leads:
        low, high = number(min(leads)), number(max(leads))
        times = f"{low} times" if low == high else f"{low} to {high} times"
        facts.append((MARGIN, [f"There, the next algorithm's {column.words} is {times} as large."]))
    close = [name for name, ranked in firsts.items() if len(ranked) > 1 and _meet(ranked, measure)]
    meeting = "At no point" if not close else f"At {len(close)} of {len(points)} points"
    facts.append((SURE, [f"{meeting} do the intervals of the first two overlap."]))
    others = [f"At {'; '.join(names)}: {label}." for label, names in wins.items() if label != best]
    none = [f"None of the values of {', '.join(sweep['vary'])} that were tried."]
    facts.append((CHANGE, others[:6] or none))
    return RunVerdict(found.name, f"Deploy {best}", sentence, facts, best)


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
    return (
        f"{value:g}"
        if isinstance(value, float)
        else value
        if isinstance(value, str)
        else toml(value)
    )


def _ranked(rows: Sequence[Row], measure: str) -> list[Row]:
    known = (row for row in rows if row.get(measure) is not None)
    return sorted(known, key=lambda row: estimate_of(row, measure).value)


def _meet(ranked: Sequence[Row], measure: str) -> bool:
    """Whether the intervals of the first two overlap, as one seed cannot rule out."""
    if min(row["seeds"] for row in ranked[:2]) < 2:
        return True
    (*_, high), (_, low, _) = (_value_and_ends(row, measure) for row in ranked[:2])
    return low <= high


def _value_and_ends(row: Row, measure: str) -> tuple[float, float, float]:
    """Return a value and the ends of its interval; without one, these are the value."""
    found = estimate_of(row, measure)
    return found.value, *(found.interval or (found.value, found.value))


def section(found: FoundRun, place: int) -> parts.PageSection:
    """Draw and tabulate the sweep."""
    sweep = found.sweep
    assert sweep is not None
    rows, points = sweep["rows"], _points(sweep)
    column = ranked_by(rows)
    measure = column.key
    longest = max((row[measure] for row in rows if row.get(measure) is not None), default=1.0)
    timed = column.unit == "s"
    scale, unit = ((1e-3, "ms") if longest < 1 else time_unit(longest)) if timed else (1.0, "")
    say = column.show
    names = [*points]
    data, legend = [], {}
    for index, label in enumerate(dict.fromkeys(str(row["label"]) for row in rows)):
        own = [
            (name, row)
            for name, each in points.items()
            for row in each
            if str(row["label"]) == label and row.get(measure) is not None
        ]
        colour, dash = f"--c{index % len(COLOURS)}", DASHES[index % len(DASHES)]
        data.append(_trace(own, measure, scale, parts.literal(label), colour, dash, index))
        name = {"name": label, "label": parts.literal(label)}
        legend[f"l{index}"] = name | {"colour": colour, "dash": dash}
    title = f"{column.words} ({unit})" if unit else column.words
    layout: parts.Json = {
        "xaxis": {
            "type": "category",
            "categoryorder": "array",
            "categoryarray": list(map(parts.literal, names)),
            "automargin": True,
        },
        "yaxis": {"title": {"text": title}, "rangemode": "tozero"},
    }
    says = f"{column.words} of each algorithm at each point of the sweep"
    figure = parts.Figure(f"sweep-{place}", says, data, layout, {}, legend)
    best = {name: ranked[0] for name, each in points.items() if (ranked := _ranked(each, measure))}
    columns = ("point", "algorithm", column.words, "95 %", "reached", "time per step")
    cells = [
        (
            name,
            parts.Cell(str(row["label"]), strong=best.get(name) is row),
            "-" if row.get(measure) is None else say(estimate_of(row, measure).value),
            wording.qualified(estimate_of(row, measure), column.unit),
            "-" if row.get("reached") is None else f"{row['reached']:.0f} of {row['seeds']:.0f}",
            human(estimate_of(row, "seconds_per_step").value),
        )
        for name, each in points.items()
        for row in each
    ]
    caption = "Each algorithm at each point; the first is bold"
    tables = [parts.PageTable(caption, columns, cells[:ROWS], texts=2)]
    if len(cells) > ROWS:
        more = f"{len(cells) - ROWS} more rows"
        tables.append(parts.PageTable(caption, columns, cells[ROWS:1000], 2, more))
    heading = f"{len(names)} points of {', '.join(sweep['vary'])}"
    return parts.PageSection(f"sweep-{place}", heading, "", [figure], tables)


def _trace(  # noqa: PLR0913, PLR0917 - the parts of a line
    own: Sequence[tuple[str, Row]],
    measure: str,
    scale: float,
    name: str,
    colour: str,
    dash: str,
    index: int,
) -> parts.Json:
    values = [_value_and_ends(row, measure) for _, row in own]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [parts.literal(point) for point, _ in own],
        "y": [value / scale for value, _, _ in values],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [(high - value) / scale for value, _, high in values],
            "arrayminus": [(value - low) / scale for value, low, _ in values],
            "color": colour,
            "thickness": 1.2,
            "width": 3,
        },
        "line": {"color": colour, "dash": dash, "width": 2},
        "marker": {"symbol": SYMBOLS[index % len(SYMBOLS)], "size": 8},
        "legendgroup": f"l{index}",
        "name": name,
        "hovertemplate": f"{name}: %{{y:.3~g}}<extra>%{{x}}</extra>",
        "meta": "mean",
    }
