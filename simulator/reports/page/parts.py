"""Parts of a page: sections with sentences, figures and tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...results.figures import interactive
from ...results.figures.chart import Panel


@dataclass(frozen=True)
class Cell:
    """A table's cell. `bar`: a share from 0 to 1, drawn behind the text."""

    text: str
    bar: float | None = None
    strong: bool = False


Row = Sequence[Cell | str]


@dataclass(frozen=True)
class PageTable:
    """A table: the first `texts` columns hold text, the rest numbers, which are right-aligned."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Row]
    texts: int = 1
    folded: str = ""  # the label of the fold, if the table is folded

    def folded_after(self, shown: int, most: int) -> "list[PageTable]":
        """Return a table of the first `shown` rows, and a folded one of the others up to `most`."""
        rows, count = self.rows, len(self.rows) - shown
        tables = [PageTable(self.caption, self.columns, rows[:shown], self.texts)]
        if count > 0:
            rest = PageTable(
                self.caption, self.columns, rows[shown:most], self.texts, f"{count} more"
            )
            tables.append(rest)
        return tables


@dataclass(frozen=True)
class PageFigure:
    """A figure, drawn by figures.js.

    `label`: a description for screen readers. `panels`: one, or several to choose from by name;
    `choose` says what these name.
    """

    id: str
    label: str
    panels: Mapping[str, Panel]
    choose: str = "algorithm"

    @property
    def height(self) -> int:
        """The height of the largest panel, in pixels."""
        return max(panel.height for panel in self.panels.values())

    def spec(self) -> dict[str, Any]:
        """Return the JSON for figures.js."""
        specs = {name: interactive.spec(panel) for name, panel in self.panels.items()}
        if len(specs) == 1:
            return next(iter(specs.values())) | {"choices": {}}
        for spec in specs.values():
            spec["layout"]["showlegend"] = bool(spec.pop("lines")) or "barmode" in spec["layout"]
        empty: dict[str, Any] = {"data": [], "layout": {}, "ranges": {}, "lines": {}}
        return empty | {"choices": specs, "choose": self.choose, "height": self.height}


@dataclass(frozen=True)
class PageSection:
    """A section, whose heading states the finding if there is one."""

    id: str
    heading: str
    lead: str = ""
    figures: Sequence[PageFigure] = ()
    tables: Sequence[PageTable] = ()
    points: Sequence[str] = ()  # a list after `lead`
    folded: bool = False  # shown on demand


def percent(share: float | None, digits: int = 0) -> str:
    """Write a share in percent; "-" for None."""
    return "-" if share is None else f"{100 * share:z.{digits}f} %"
