"""The details of runs: time per step, periods, staleness, and links."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...results.figures import curves
from ...results.figures.style import PARTS
from ...results.statistics import human, number, with_unit
from .parts import Cell, PageFigure, PageSection, PageTable, Row, percent
from .series import Series

SAMPLING = (
    f"Curves are drawn at {curves.EVEN} even and {curves.GEOMETRIC} geometric times (fewer where "
    f"there are more than {curves.MANY} lines), linear between evaluations."
)
LINKS, MOST = 24, 600  # rows of the table of links that are not folded, and of both tables
BOTTLENECKS = 6  # that are listed, at most


def sections(lines: Sequence[Series]) -> list[PageSection | None]:
    """Return the details of runs, folded."""
    periods = tau([line.curves for line in lines])
    details = [breakdown(lines), periods, staleness(lines), links(lines)]
    return [section and replace(section, folded=True) for section in details]


def tau(lines: Sequence[curves.Curves]) -> PageSection | None:
    """Draw the communication period of algorithms that change it."""
    changing = curves.changing(lines)
    if not changing:
        return None
    first = changing[0]
    taus = [tau for tau in first.runs[0].curve["tau"] if np.isfinite(tau)]
    heading = f"{first.name} goes from tau = {taus[0]:g} to {taus[-1]:g}"
    panel = curves.over_time(changing, "tau", "tau (local steps per average)")
    figure = PageFigure("tau", "the communication period against time", panel)
    return PageSection("tau", heading, "Local steps between averages, over time.", [figure])


def staleness(lines: Sequence[Series]) -> PageSection | None:
    """Draw the distribution functions of staleness, a figure for each of its units."""
    late = [line for line in lines if (line.row.get("staleness") or {"max": 0})["max"]]
    if not late:
        return None
    rows = [line.row["staleness"] for line in late]
    if all(len(row["distribution"]) < 2 for row in rows):  # a constant needs no figure
        return None
    shares = [{int(age): share for age, share in row["distribution"].items()} for row in rows]
    units = [row["unit"] for row in rows]
    every = zip((line.curves for line in late), units, shares, strict=True)
    panels = curves.staleness_panels([*every])
    worst = max(late, key=lambda line: line.row["staleness"]["mean"])
    row = worst.row["staleness"]
    heading = (
        f"{worst.name} is the stalest: {number(row['mean'])} {row['unit']} on average, "
        f"at most {row['max']}"
    )
    figures = [
        PageFigure(f"staleness-{i}", f"share of contributions by {panel.x.title}", panel)
        for i, panel in enumerate(panels)
    ]
    lead = "How old contributions are when the server or a worker uses them."
    return PageSection("staleness", heading, lead, figures)


def breakdown(lines: Sequence[Series]) -> PageSection:
    """Draw and tabulate seconds per local step by part."""
    lines = [line for line in lines if line.row["seconds_per_step"]["mean"]]
    totals = [line.row["seconds_per_step"]["mean"] for line in lines]
    kinds = [part for part in PARTS if any(line.row["breakdown"].get(part) for line in lines)]
    seconds = {
        line.name: {kind: (line.row["breakdown"].get(kind) or 0.0) * total for kind in kinds}
        for line, total in zip(lines, totals, strict=True)
    }
    predicted = [line for line in lines if not line.measured]
    sampled = any("unselected" in line.row["breakdown"] for line in predicted)
    heading = _busiest(
        {line.title: computing(line.row["breakdown"]) for line in predicted}, sampled
    )
    figures = [PageFigure("breakdown", heading, curves.breakdown_panel(seconds))]
    whole = "of all clients' time, " * sampled
    rows = [
        (line.name, human(total), *(percent(line.row["breakdown"].get(kind)) for kind in kinds))
        for line, total in zip(lines, totals, strict=True)
    ]
    caption = f"Time per local step and its shares, {whole}mean over workers and seeds"
    heads = ("algorithm", "time per step", *kinds)
    tables = [PageTable(caption, heads, rows, folded="The numbers")]
    several = len({line.found.name for line in lines}) > 1
    points = dict.fromkeys(
        f"{line.found.name}: " * several + line.row["bottleneck"]
        for line in predicted
        if line.row.get("bottleneck")
    )
    return PageSection("breakdown", heading, "", figures, tables, [*points][:BOTTLENECKS])


def _busiest(busy: Mapping[str, float], sampled: bool) -> str:
    """Say which algorithm computes for the smallest, and which for the largest, share of time."""
    if not busy:
        return "Where the time goes"
    worst, best = min(busy, key=lambda k: busy[k]), max(busy, key=lambda k: busy[k])
    there = " in which clients take part" * sampled
    heading = f"{worst} computes {percent(busy[worst])} of the time{there}"
    return heading + (f", {best} {percent(busy[best])}" if worst != best else "")


def computing(shares: Mapping[str, float | None]) -> float:
    """Return the share that computing has of the time; of clients, while they are selected."""
    kinds = ("absent", "unselected") if "unselected" in shares else ()
    away = sum(shares.get(kind) or 0.0 for kind in kinds)
    return (shares.get("compute") or 0.0) / (1.0 - away or 1.0)


def links(lines: Sequence[Series]) -> PageSection | None:
    """Tabulate bytes over each link and, where transfers share links, the link's utilisation."""
    rows = [row for line in lines for row in _shared(line) or _carried(line)]
    if not rows:
        return None
    columns = ("algorithm", "link", "sent", "mean rate", "bandwidth", "saturated", "utilisation")
    heading = "Bytes sent over each link"
    if any(isinstance(row[-1], Cell) for row in rows):
        rows.sort(key=lambda row: -(row[-1].bar or 0.0) if isinstance(row[-1], Cell) else 0.0)
        by, link, used = (getattr(rows[0][at], "text", rows[0][at]) for at in (0, 1, -1))
        heading = f"The busiest link, {link}, is {used} utilised, by {by}"
    table = PageTable("Links, mean over seeds; busiest first", columns, rows, texts=2)
    return PageSection("links", heading, tables=table.unvaried().folded_after(LINKS, MOST))


def _shared(line: Series) -> list[Row]:
    duration = line.row["duration"] or 1
    return [
        (
            line.name,
            _arrow(row["line"]),
            with_unit(row["bytes"], "B"),
            with_unit(row["bytes"] / duration, "B/s"),
            "no limit" if row["bandwidth"] is None else with_unit(row["bandwidth"], "B/s"),
            percent(row["saturated"]),
            Cell(percent(row["utilisation"], 1), row["utilisation"]),
        )
        for row in (line.row.get("network") or {}).get("lines", ())
    ]


def _carried(line: Series) -> list[Row]:
    """Return rows of links that nothing shares, which have no utilisation."""
    duration = line.row["duration"] or 1
    return [
        (line.name, _arrow(link), with_unit(sent, "B"), with_unit(sent / duration, "B/s"),
         "-", "-", "-")
        for link, sent in (line.row.get("links") or {}).items()
    ]  # fmt: skip


def _arrow(link: str) -> str:
    return link.replace("->", " → ")
