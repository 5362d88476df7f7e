"""Series: the runs of one algorithm in one RUN, predicted or measured, drawn as one line."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...results import statistics
from ...results.figures.style import COLOURS, DASHES, look
from ...results.run import Run
from .parts import literal
from .reading import FoundRun

MANY = 32  # lines of a figure; with more, each has fewer points, so that the page stays small
EVEN, GEOMETRIC = 240, 120  # points of a line: for a linear axis of time, and for a logarithmic one
WORDS = re.compile(r" (?![^(]*\))")  # the spaces between them, which are not in brackets
Row = dict[str, Any]


@dataclass(frozen=True)
class Series:
    """The runs of one algorithm, one per seed; `row`: their summary.

    `measured`: it is a measurement beside a prediction. The two share `key`, by which the page
    hides them, and `title`; `name` tells them apart.
    """

    key: str
    title: str
    name: str
    label: str
    found: FoundRun
    measured: bool
    colour: str
    dash: str
    symbol: str
    row: Row
    runs: Sequence[Run]


def series(every: Sequence[FoundRun]) -> list[Series]:
    """Return the series of each algorithm in each RUN, predicted and measured.

    An algorithm has one colour and one symbol on the whole page. Dashes tell the algorithms of a
    single RUN apart, too, for readers who cannot tell colours, and the RUNs where there are
    several. Measured lines are dotted, with open symbols. What all labels share is in no title.
    """
    labels = [*dict.fromkeys(k for f in every for run in f.sides.values() for k in run.rows)]
    brief = dict(zip(labels, apart(labels), strict=True))
    found: list[Series] = []
    for number, each in enumerate(every):
        for side, run in each.sides.items():
            for label, row in run.rows.items():
                place = labels.index(label)
                _, dash, symbol = look(place)
                title = brief[label]
                if len(every) > 1:
                    dash = [*DASHES][number % len(DASHES)]
                    title = f"{each.name}: {title}" if len(labels) > 1 else each.name
                found.append(
                    Series(
                        key=f"l{number}-{place}",
                        title=title,
                        name=f"{title}, {side}" if len(each.sides) > 1 else title,
                        label=label,
                        found=each,
                        measured=side == "measured" and len(each.sides) > 1,
                        colour=f"--c{place % len(COLOURS)}",
                        dash=dash,
                        symbol=symbol,
                        row=row,
                        runs=run.runs.get(label, ()),
                    )
                )
    return found


def apart(labels: Sequence[str]) -> list[str]:
    """Return labels without the words that all of them share, unless that leaves one empty."""
    words = [WORDS.split(label) for label in labels]
    shared = set(words[0]).intersection(*words[1:]) if len(words) > 1 else set()
    found = [" ".join(each for each in label if each not in shared) for label in words]
    return found if all(found) and len({*found}) == len({*labels}) else [*labels]


def shared(labels: Sequence[str]) -> str:
    """Return the words that `apart` takes away, in the order of the first label."""
    if not labels or apart(labels) == [*labels]:
        return ""
    rest = WORDS.split(apart(labels)[0])
    return " ".join(each for each in WORDS.split(labels[0]) if each not in rest)


def legend(lines: Sequence[Series]) -> dict[str, Any]:
    """Return the legend for page.js; a prediction and its measurement share an entry."""
    found: dict[str, Any] = {}
    for line in lines:
        entry = {"name": line.title, "label": literal(line.title)}
        look = {"colour": line.colour, "dash": line.dash, "symbol": line.symbol}
        found.setdefault(line.key, entry | look)
    return found


def sampled(runs: Sequence[Run], column: str, lines: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return times (s), shape (points,), and each seed's values then, shape (seeds, points).

    Values are linear between evaluations, except tau, which is constant. Times lie within all
    runs: `EVEN` evenly and `GEOMETRIC` geometrically spaced, fewer with more than `MANY` lines.
    """
    times = [np.array(run.curve["time"]) for run in runs]
    first, last = max(time[0] for time in times), min(time[-1] for time in times)
    soon = min((time[time > 0][:1].min(initial=last) for time in times), default=last)
    even, geometric = (max(16, points * MANY // max(lines, MANY)) for points in (EVEN, GEOMETRIC))
    grid = np.linspace(first, last, even)
    if 0 < soon < last:
        grid = np.union1d(grid, np.geomspace(max(soon, first), last, geometric))
    grid = grid[grid <= last]
    return grid, statistics.sampled(runs, column, grid)


def rounded(values: np.ndarray, digits: int = 5) -> list[float | None]:
    """Round numbers for JSON, which halves its size and shows the same; None for nan."""
    return [float(f"{v:.{digits}g}") if np.isfinite(v) else None for v in values.tolist()]
