"""Describe a figure as data: panels of lines, bands and marks between two axes.

`drawing` draws a chart with matplotlib, and `interactive` with Plotly.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from . import style

WORDS = re.compile(r"(?<! on) (?!sites?\b|workers?\b)(?![^(]*\))")
"""Spaces between words, except in brackets or in "on 3 sites"."""
Values = Sequence[float] | np.ndarray
Ends = tuple[Values, Values]
"""Lower and upper ends of intervals, one per point."""
DECADE = 10  # ratio of the largest to the smallest value, above which an axis is logarithmic


class Look(NamedTuple):
    """The look of a line; `hollow`: symbols mark measured values beside a prediction."""

    colour: str
    dash: str = "solid"
    symbol: str = "circle"
    width: float = 1.5
    hollow: bool = False

    @classmethod
    def at(cls, index: int) -> "Look":
        """Return the look of the n-th line of a figure."""
        return cls(*style.look(index))


@dataclass(frozen=True)
class Axis:
    """One axis. `names`: categories of a y axis at 0, 1, ..."""

    title: str = ""
    limits: tuple[float, float] | None = None
    log: bool = False
    names: Sequence[str] = ()


@dataclass(frozen=True)
class Line:
    """A line, its band, and its marks.

    `band`: the ends of a band around the line, in y. `x_bars`: intervals of marks.
    `marks`: "few" (spaced on a long line), "all" (at every point) or "none". `named`: whether the
    legend shows the line. `steps`: values are constant until the next point. `labels`: texts beside
    the points; `texts`: their descriptions on a page. A page hides lines of one `key` together.
    """

    name: str
    x: Values
    y: Values
    look: Look
    band: Ends | None = None
    x_bars: Ends | None = None
    joined: bool = True
    marks: str = "few"
    named: bool = True
    steps: bool = False
    texts: Sequence[str] = ()
    labels: Sequence[str] = ()
    key: str = ""


@dataclass(frozen=True)
class Panel:
    """Lines between two axes; `level`: the target, a line across; `height`: pixels on a page."""

    x: Axis
    y: Axis
    lines: Sequence[Line] = ()
    level: float | None = None
    over_time: bool = False
    height: int = 350


@dataclass(frozen=True)
class Chart:
    """A column of panels with a title and a caption."""

    title: str
    caption: str
    panels: Sequence[Panel]


def apart(labels: Sequence[str]) -> list[str]:
    """Return labels without the words that all labels share, unless one would be empty."""
    words = [WORDS.split(label) for label in labels]
    common = set(words[0]).intersection(*words[1:]) if len(words) > 1 else set()
    brief = [" ".join(word for word in label if word not in common) for label in words]
    return brief if all(brief) and len({*brief}) == len({*labels}) else [*labels]


def fitted(title: str, shown: Values, log: bool = True, *, zero: bool = False) -> Axis:
    """Return an axis that fits the values `shown`; with `log` it may be logarithmic.

    `zero`: a linear axis begins at zero if the values come close to it.
    """
    values = np.asarray(shown, dtype=float)
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    if log and wide(low, high):
        return Axis(title, (low / 1.2, 1.2 * high), log=True)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    floor = 0.0 if zero and 0 <= low < high / 3 else low - margin
    return Axis(title, (floor, high + margin))


def wide(low: float, high: float) -> bool:
    """Return whether a linear axis would hide the smallest value."""
    return bool(0 < DECADE * low < high)
