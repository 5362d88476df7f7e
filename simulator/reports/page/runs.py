"""Show the algorithms of RUNs: their loss curves, a table, and folded details."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...results import consumption
from ...results.columns import in_question
from ...results.figures import curves
from ...results.figures.chart import Look, apart
from ...results.figures.style import DASHES
from ...results.intervals import MEDIAN, stated
from .. import tables
from .parts import PageFigure, PageSection, PageTable
from .reading import FoundRun

BOTTLENECKS = 6  # most entries listed


@dataclass(frozen=True)
class Series:
    """The predicted or measured runs of one algorithm in one RUN, drawn as the line `curves`.

    `name`: its label, with the RUN and the side if there are several.
    """

    label: str
    name: str
    found: FoundRun
    curves: curves.Curves

    @property
    def row(self) -> Mapping[str, Any]:
        """The summary of the runs."""
        return self.curves.row


def series(every: Sequence[FoundRun]) -> list[Series]:
    """Return the series of every algorithm in every RUN, predicted and measured.

    An algorithm has one colour and one symbol on the whole page. Dashes distinguish the algorithms
    of a single RUN, or several RUNs. Measured lines are dotted, with open symbols, and hidden with
    the predicted ones. Lines leave out words that all labels share.
    """
    labels = [*dict.fromkeys(k for f in every for run in f.sides.values() for k in run.rows)]
    brief = dict(zip(labels, apart(labels), strict=True))
    lines: list[Series] = []
    for number, one in enumerate(every):
        before = f"{one.name}: " * (len(every) > 1)
        for side, run in one.sides.items():
            after = f", {side}" * (len(one.sides) > 1)
            measured = bool(after) and side == "measured"
            for label, row in run.rows.items():
                place, title = labels.index(label), f"{before}{brief[label]}"
                look = Look.at(place)._replace(width=2.0)
                if before:
                    look = look._replace(dash=[*DASHES][number % len(DASHES)])
                    title = title if len(labels) > 1 else one.name
                if measured:
                    look, title = look._replace(dash="dot", width=1.4, hollow=True), title + after
                same, key = run.runs.get(label, ()), f"l{number}-{place}"
                line = curves.Curves(title, same, look, key, measured, row)
                lines.append(Series(label, f"{before}{label}{after}", one, line))
    return lines


def loss_curves(
    every: Sequence[FoundRun], lines: Sequence[Series], drawn: Sequence[Series]
) -> PageSection:
    """Draw the curves of the loss against time, and tabulate the results."""
    targets = {run.target for run in every if run.main}
    target = targets.pop() if len(targets) == 1 else None
    picked = {(run.name, run.verdict["pick"]) for run in every}
    kinds = {str((f.scenario.get("table") or {}).get("objective", {}).get("kind")) for f in every}
    name = curves.LOSS_NAMES.get(kinds.pop(), "loss") if len(kinds) == 1 else "loss"
    lost = all(line.row["loss"]["last"] is None for line in drawn)
    heading = "Local steps against time" if lost else "Error against time"
    shown = [line.curves for line in drawn]
    panel = curves.error_panel(shown, target, name)
    lead = f"{curves.bands(shown).capitalize()}."
    if len({line.curves.apart for line in drawn}) > 1:
        lead += " Dotted lines with open symbols: measured in real training."
    if target is not None:
        lead += " Marks on the target line: when the target is reached, with intervals."
    label = f"{panel.y.title} against wall-clock time, one line per algorithm: {heading}"
    figures = [PageFigure("error", label, panel)]
    return PageSection("error", heading, lead, figures, [results(lines, target, picked)])


def results(
    lines: Sequence[Series], target: float | None, picks: set[tuple[str, str]]
) -> PageTable:
    """Tabulate every algorithm's time to target, other columns, and amounts."""
    several = len({line.found.name for line in lines}) > 1
    question = ("", "", {}) if several else in_question(lines[0].found.verdict)
    rows = [
        {**line.row, "label": line.name if line.curves.apart else line.label}
        | {"shown": line.name, "seeds": len(line.curves.runs)}
        for line in lines  # what the verdict compares is not about measured lines
    ]
    columns = tables.of_runs(rows, target, question)
    what, amounts = consumption.cells(rows, target)
    medians = any(stated(row["seconds_per_step"]).of == MEDIAN for row in rows)
    caption = f"Each algorithm, {'median' if medians else 'mean'} over seeds"
    caption += f"; amounts {what}" if amounts else ""
    strong = [at for at, line in enumerate(lines) if (line.found.name, line.label) in picks]
    caption += "; the pick is bold"
    return PageTable.of(caption, columns | amounts, rows, strong=strong)


def details(lines: Sequence[Series]) -> Iterator[PageSection]:
    """Yield folded sections on what takes time, and on periods."""
    drawn = [line.curves for line in lines]
    several = len({line.found.name for line in lines}) > 1
    points = dict.fromkeys(
        f"{line.found.name}: " * several + line.row["bottleneck"]
        for line in lines
        if line.row.get("bottleneck") and not line.curves.apart
    )
    listed = [*points][:BOTTLENECKS]
    if listed:
        yield PageSection("breakdown", "Where the time goes", points=listed, folded=True)
    if chart := curves.tau(drawn, title=""):
        figures = PageFigure.all_of("tau", "the communication period against time", chart)
        yield PageSection("tau", "Local steps between averages", "", figures, folded=True)
