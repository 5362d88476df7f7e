"""`Display`, the base of every result, which shows a sentence and a figure."""

import base64
import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..inputs import messages
from ..results.figures import drawing
from ..results.figures.chart import Chart

if TYPE_CHECKING:  # an optional package; matplotlib takes half a second to import
    import pandas as pd
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
LINE, LINES = 96, 2  # characters per line of a repr, and lines after its first


class Display:
    """A result with a short repr, a figure for notebooks, and data frames."""

    scenario: Any
    verdict: Any

    def records(self) -> list[dict[str, Any]]:
        """Return the rows of a data frame, without nested values."""
        raise NotImplementedError

    @property
    def _head(self) -> str:
        return str(self.scenario.title or self.scenario.file)

    @property
    def _in_words(self) -> str:
        """The answer in a sentence or two."""
        return str(self.verdict.sentence)

    def _chart(self) -> Chart | None:
        """Return the figure, or None if there is nothing to draw."""
        raise NotImplementedError

    def __repr__(self) -> str:
        lines = textwrap.wrap(self._in_words, LINE, max_lines=LINES, placeholder=" ...")
        return "\n".join([f"<{type(self).__name__}: {self._head}>", *lines])

    def _repr_html_(self) -> str:
        """Return the answer and the figure as HTML for a notebook."""
        chart, words, figure = self._chart(), escape(self._in_words), ""
        if chart:
            image = base64.b64encode(drawing.encode(chart, "svg")).decode()
            style = "display:block;width:100%;max-width:660px;background:white"
            source = f"data:image/svg+xml;base64,{image}"
            figure = f'<img style="{style}" alt="Figure. {words}" src="{source}">'
        return f"<div><p>{words}</p>{figure}</div>"

    def plot(self, *, size: tuple[float, float] | None = None, band: bool = True) -> "Axes":
        """Draw the figure.

        Args:
            size: width and height in inches, such as (3.3, 2.4) for a column of a paper.
            band: whether to draw the intervals around lines.

        Returns:
            The (first) matplotlib Axes.

        Raises:
            InputError: if there is nothing to draw.
        """
        from matplotlib import pyplot  # noqa: PLC0415

        chart = self._chart()
        if chart is None:
            raise InputError(f"{self._head}: nothing to plot; records() has the numbers")
        # Names stand beside the axes. Unless the figure is cropped to them, the axes make room.
        return drawing.draw(chart, size, pyplot.figure(layout="constrained"), band=band).axes[0]

    def to_pandas(self) -> "pd.DataFrame":
        """Return `records` as a pandas DataFrame; needs paceline[pandas]."""
        try:
            import pandas as pd  # noqa: PLC0415 - an optional package
        except ImportError:
            raise InputError('pandas is not installed; pip install "paceline[pandas]"') from None
        return pd.DataFrame(self.records())


def text(value: Any) -> str:
    """Return a value as a scenario states it, without a text's quotes."""
    return value if isinstance(value, str) else messages.toml(value)


def without_tables(row: Row) -> dict[str, Any]:
    """Return a row without tables and intervals: "behind.value" and "behind.ci95.low"."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        inner = value
        if isinstance(value, list) and len(value) == 2 and key.startswith(("ci95", "interval")):
            inner = dict(zip(("low", "high"), value, strict=True))
        if isinstance(inner, Mapping):
            flat |= {f"{key}.{name}": entry for name, entry in without_tables(inner).items()}
        else:
            flat[key] = value
    return flat


def even(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Give all rows the same columns, because programs have different parameters."""
    columns = dict.fromkeys(key for row in rows for key in row)
    return [{**dict.fromkeys(columns), **row} for row in rows]
