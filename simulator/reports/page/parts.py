"""Parts of a page: sections with sentences, figures and tables."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...results.intervals import Estimate

Json = dict[str, Any]
FAR = 1e3  # times a value: where a bar is cut


@dataclass(frozen=True)
class Cell:
    """A table's cell. `bar`: a share from 0 to 1, drawn behind the text."""

    text: str
    bar: float | None = None
    strong: bool = False


@dataclass(frozen=True)
class PageTable:
    """A table: the first `texts` columns hold text, the rest numbers, which are right-aligned."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    texts: int = 1
    folded: str = ""  # the label of the fold, if the table is folded


@dataclass(frozen=True)
class Figure:
    """A figure for plotly, drawn by page.js.

    `says`: a description for screen readers. `choices`: figures to choose from, by name (`choose`
    says what these name); otherwise there is one of `data` and `layout`. Strings such as "--c0" or
    "--c0/0.2" stand for colours of page.css, with opacity. `ranges`: by axis, its linear and its
    logarithmic range, between which
    the reader can switch. `lines`: name, colour and dash of each line that the reader can
    hide, by the key that its traces have as legendgroup; a trace whose meta is "mean" is named at
    its end.
    """

    id: str
    says: str
    data: list[Json] = field(default_factory=list)
    layout: Json = field(default_factory=dict)
    ranges: Json = field(default_factory=dict)
    lines: Json = field(default_factory=dict)
    choices: Json = field(default_factory=dict)
    choose: str = "algorithm"
    height: int = 380

    def spec(self) -> Json:
        """Return the JSON for page.js."""
        return {key: each for key, each in vars(self).items() if key not in ("id", "says")}


@dataclass(frozen=True)
class PageSection:
    """A section, whose heading states the finding if there is one."""

    id: str
    heading: str
    lead: str = ""
    figures: Sequence[Figure] = ()
    tables: Sequence[PageTable] = ()
    points: Sequence[str] = ()  # a list after `lead`


def folded(  # noqa: PLR0913 - a table, and how much of it is seen
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell | str]],
    *,
    texts: int,
    shown: int,
    most: int,
    what: str = "more",
) -> list[PageTable]:
    """Return a table of the first `shown` rows, and a folded one of the others, up to `most`."""
    tables = [PageTable(caption, columns, rows[:shown], texts)]
    if len(rows) > shown:
        more = f"{len(rows) - shown} {what}"
        tables.append(PageTable(caption, columns, rows[shown:most], texts, more))
    return tables


def error_bars(every: Iterable[Estimate | None], scale: float, **look: Any) -> Json:
    """Return the intervals of estimates, in units of `scale`, as error bars of a trace.

    One without an upper end goes far beyond the value, as JSON has no infinite numbers.
    """
    known = [each and (each.value, *each.span) for each in every]
    return {
        "type": "data",
        "symmetric": False,
        "array": [
            each and min(each[2] - each[0], FAR * (abs(each[0]) + scale)) / scale for each in known
        ],
        "arrayminus": [each and (each[0] - each[1]) / scale for each in known],
        **look,
    }


def categories(names: Iterable[str]) -> Json:
    """Return an axis with a place for each of `names`, in this order."""
    return {
        "categoryorder": "array",
        "categoryarray": list(map(literal, names)),
        "automargin": True,
    }


def literal(text: str) -> str:
    """Escape `text` for plotly, which takes <b>, &lt; and %{x} for markup."""
    for letter, code in (("&", "&#38;"), ("<", "&#60;"), (">", "&#62;"), ("%{", "%&#123;")):
        text = text.replace(letter, code)
    return text


def percent(share: float | None, digits: int = 0) -> str:
    """Write a share in percent; "-" for None."""
    return "-" if share is None else f"{100 * share:z.{digits}f} %"
