"""The details of runs, folded: time per step, periods, staleness, and links."""

from collections.abc import Iterator, Sequence

from ...results.figures import curves
from ...results.figures.style import PARTS
from ...results.statistics import percent, with_unit
from .parts import PageFigure, PageSection, PageTable
from .series import Series

SAMPLING = (
    f"Curves are drawn at {curves.EVEN} even and {curves.GEOMETRIC} geometric times (fewer where "
    f"there are more than {curves.MANY} lines), linear between evaluations."
)
LINKS, MOST = 24, 600  # rows of the table of links that are not folded, and of both tables
BOTTLENECKS = 6  # that are listed, at most


def sections(lines: Sequence[Series]) -> Iterator[PageSection]:
    """Yield the sections on details of the runs."""
    yield breakdown(lines)
    drawn = [line.curves for line in lines]
    if changing := curves.changing(drawn):
        panel = curves.over_time(changing, "tau", "tau (local steps per average)")
        figure = PageFigure("tau", "the communication period against time", panel)
        yield PageSection("tau", "Local steps between averages", figures=[figure], folded=True)
    late = [(line, line.row["staleness"]) for line in drawn if line.row.get("staleness")]
    if any(len(row["distribution"]) > 1 for _, row in late):  # a constant needs no figure
        shares = [
            (line, row["unit"], {int(age): share for age, share in row["distribution"].items()})
            for line, row in late
        ]
        figures = [
            PageFigure(f"staleness-{at}", f"share of contributions by {panel.x.title}", panel)
            for at, panel in enumerate(curves.staleness_panels(shares))
        ]
        yield PageSection("staleness", "Age of contributions", "", figures, folded=True)
    if carried := [row for line in lines for row in links(line)]:
        heads = ("algorithm", "link", "sent", "mean rate", "bandwidth", "saturated", "utilisation")
        table = PageTable("Links, mean over seeds", heads, carried, 2).unvaried()
        tables = table.folded_after(LINKS, MOST)
        yield PageSection("links", "Bytes sent over each link", tables=tables, folded=True)


def breakdown(lines: Sequence[Series]) -> PageSection:
    """Draw seconds per local step by part, and list the bottleneck of each algorithm."""
    seconds = {
        line.name: {
            kind: share * line.row["seconds_per_step"]["mean"]
            for kind in PARTS
            if (share := line.row["breakdown"].get(kind))
        }
        for line in lines
        if line.row["seconds_per_step"]["mean"]
    }
    several = len({line.found.name for line in lines}) > 1
    points = dict.fromkeys(
        f"{line.found.name}: " * several + line.row["bottleneck"]
        for line in lines
        if line.row.get("bottleneck") and not line.measured
    )
    heading = "Where the time goes"
    figures = [PageFigure("breakdown", heading, curves.breakdown_panel(seconds))]
    listed = [*points][:BOTTLENECKS]
    return PageSection("breakdown", heading, "", figures, points=listed, folded=True)


def links(line: Series) -> list[Sequence[str]]:
    """Return a row for each link; where transfers share links, with their utilisation."""
    duration = line.row["duration"] or 1
    shared = (line.row.get("network") or {}).get("lines", ())
    sent = line.row.get("links") or {}
    every = shared or [{"line": link, "bytes": size} for link, size in sent.items()]
    return [
        (
            line.name,
            row["line"].replace("->", " → "),
            with_unit(row["bytes"], "B"),
            with_unit(row["bytes"] / duration, "B/s"),
            with_unit(row.get("bandwidth"), "B/s"),
            percent(row.get("saturated")),
            percent(row.get("utilisation"), 1),
        )
        for row in sorted(every, key=lambda row: -row.get("utilisation", 0.0))
    ]
