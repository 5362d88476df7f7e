"""What a page is made of: sections with sentences, figures and tables."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.simulator.results.statistics import number

Json = dict[str, Any]
BYTES = ("B", "kB", "MB", "GB", "TB", "PB")


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
    folded: str = ""  # the words to unfold it with


@dataclass(frozen=True)
class Figure:
    """A figure for plotly, and what page.js does with it.

    `says`: what it shows, for those who cannot see it. `choices`: figures to choose from, by name;
    otherwise `data` and `layout` are the one. Strings such as "--c0" or "--c0/0.2" stand for
    colours of the page's style. `ranges`: by axis, its range on a linear and a logarithmic scale;
    such an axis has a switch. `lines`: name, colour and dash of each line that may be
    hidden, by key, which traces have as legendgroup; one whose meta is "mean" is named at its end.
    """

    id: str
    says: str
    data: list[Json] = field(default_factory=list)
    layout: Json = field(default_factory=dict)
    ranges: Json = field(default_factory=dict)
    lines: Json = field(default_factory=dict)
    choices: Json = field(default_factory=dict)
    height: int = 380

    def spec(self) -> Json:
        """What page.js needs."""
        return {
            "data": self.data,
            "layout": self.layout,
            "ranges": self.ranges,
            "lines": self.lines,
            "choices": self.choices,
            "height": self.height,
        }


@dataclass(frozen=True)
class PageSection:
    """A section: its heading states a finding, where there is one."""

    id: str
    heading: str
    lead: str = ""
    figures: Sequence[Figure] = ()
    tables: Sequence[PageTable] = ()
    points: Sequence[str] = ()  # a list after `lead`


def literal(text: str) -> str:
    """Return `text` such that plotly shows just that: it takes <b>, &lt; and %{x} for markup."""
    for letter, code in (("&", "&#38;"), ("<", "&#60;"), (">", "&#62;"), ("%{", "%&#123;")):
        text = text.replace(letter, code)
    return text


def percent(share: float | None, digits: int = 0) -> str:
    """Return a share in percent; "-" for none."""
    return "-" if share is None else f"{100 * share:z.{digits}f} %"


def size(count: float | None) -> str:
    """Return bytes as people say them, in powers of 1000; "-" for none."""
    if count is None:
        return "-"
    power = 0
    while abs(count) >= 999.5 and power < len(BYTES) - 1:
        count /= 1000
        power += 1
    unit = BYTES[power]
    return f"{count:.0f} {unit}" if not power else f"{number(count)} {unit}"
