"""Parts of a page: sections with sentences, figures and tables."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...results.figures.chart import Chart, Panel
from ..tables import Columns, Row


@dataclass(frozen=True)
class PageTable:
    """A table whose first `texts` columns are text, and the others right-aligned numbers.

    `folded`: the label of its fold, if it is folded; `strong`: indices of rows in bold.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1
    folded: str = ""
    strong: Collection[int] = ()

    @classmethod
    def of(cls, caption: str, columns: Columns, rows: Sequence[Row], **rest: Any) -> "PageTable":
        """Return the table of `rows` with these columns; `rest`: more fields."""
        heads = [" ".join(re.sub("/\n", "/", heading).split()) for heading in columns]
        heads = [heading.replace(" %", "\N{NO-BREAK SPACE}%") for heading in heads]
        cells = [[cell(row) for cell in columns.values()] for row in rows]
        return cls(caption, heads, cells, **rest)

    def folded_after(self, shown: int, most: int) -> "list[PageTable]":
        """Return a table of the first `shown` rows, and a folded table of others up to `most`."""
        label = f"{len(self.rows) - shown} more"
        rest = replace(self, rows=self.rows[shown:most], folded=label, strong=())
        return [replace(self, rows=self.rows[:shown]), *([rest] if rest.rows else [])]


@dataclass(frozen=True)
class PageFigure:
    """A panel, drawn by figures.js; `label`: a description for screen readers."""

    id: str
    label: str
    panel: Panel

    @classmethod
    def all_of(cls, name: str, label: str, chart: Chart | None) -> "list[PageFigure]":
        """Return the panels of a chart; none if there is nothing to draw."""
        panels = chart.panels if chart else ()
        return [cls(f"{name}-{at}" if at else name, label, one) for at, one in enumerate(panels)]


@dataclass(frozen=True)
class PageSection:
    """A section, whose heading states any finding; folded sections open on demand."""

    id: str
    heading: str
    lead: str = ""
    figures: Sequence[PageFigure] = ()
    tables: Sequence[PageTable] = ()
    folded: bool = False
