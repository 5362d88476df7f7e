"""Write the page about all claims, docs/evidence/reproduction.md, and its figures."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...results import store
from ...results.figures import drawing
from ...results.figures.style import style
from ...results.statistics import number
from .. import papers
from .claim import Kind, Paper, Verdict, close, counts, names
from .lab import QUICK, Lab

Row = Mapping[str, Any]

PAGE = "reproduction.md"
GIVEN_BY = {"paper": "", "formula": " (formula)", "notes": " (notes)"}
SEEDS = {"few": f"at most {QUICK} seeds a scenario", "all": "all seeds of the scenarios"}


def write(folder: Path, rows: Sequence[Row], drawn: Sequence[Paper], lab: Lab) -> None:
    """Write the page about all `rows`, and the figures of the papers `drawn` anew.

    Raises InputError where they cannot be written.
    """
    with style():
        files = {
            path(paper, name): drawing.encode(draw(lab), "png")
            for paper in drawn
            for name, (_, draw) in paper.figures.items()
        }
    store.publish(folder, files)
    # after the figures, because it shows all that exist, older ones too
    store.publish(folder, {PAGE: _page(rows, folder).encode()})


def path(paper: Paper, name: str) -> str:
    """The file of a figure, relative to the page."""
    return f"reproduction/{paper.name}-{name}.png"


def _page(rows: Sequence[Row], folder: Path) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415

    made = Environment(  # of Markdown, so that nothing is escaped
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"value": value, "expected": expected, "seeds": SEEDS.get}
    made.tests["wide"] = _wide
    groups = ((name, [row for row in rows if row["paper"] == name]) for name in papers.NAMES)
    found = [(papers.paper(name), own) for name, own in groups if own]
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    text = made.get_template("page.md.j2").render(
        found=found,
        rows=rows,
        there=lambda *figure: (folder / path(*figure)).is_file(),
        path=path,
        today=today,
        verdicts=[*Verdict],
        others=[kind for kind in Kind if kind is not Kind.PRINTED],
        counts=counts,
        shown=shown,
    )
    return text.rstrip("\n") + "\n"


def shown(paper: Paper, rows: Sequence[Row]) -> list[tuple[str, int, int, str]]:
    """Each figure and table of a paper: claims about it, those that hold, and what they leave."""
    table = []
    for name, left in paper.shown.items():
        own = [row["verdict"] for row in rows if names(row["place"], name)]
        table.append((name, len(own), own.count(Verdict.HOLDS), left))
    return table


def _wide(row: Row) -> bool:
    """Return whether a number holds only since our interval is wide."""
    counted = row["verdict"] == Verdict.HOLDS and row["expected"] is not None
    return bool(counted) and not close(row["value"], row["expected"], row["within"])


def value(row: Row) -> str:
    """Our number with its unit, and its interval if it has one."""
    if row["value"] is None:
        return "never"
    found, low, high = (
        None if each is None else _apart(each, row["neutral"])
        for each in (row["value"], *(row["ci95"] or (None, None)))
    )
    between = "" if low is None or high is None else f" ({low} to {high})"
    return f"{found} {row['unit']}".strip() + between


def _apart(value: float, neutral: float | None) -> str:
    """Three significant digits, or as many as tell `value` from the neutral one."""
    text, digits = number(value), 4
    while neutral is not None and float(text) == neutral != value and digits < 8:
        text, digits = f"{value:#.{digits}g}", digits + 1
    return text


def expected(row: Row) -> str:
    """The number claimed, who gives it, and our tolerance; the side that an order or a sign is."""
    said = []
    if row["expected"] is not None:
        number = f"{row['expected']:.4g} {row['unit']}".strip()
        said.append(f"{number} ± {100 * row['within']:.3g} %{GIVEN_BY[row['given_by']]}")
    if row["neutral"] is not None:
        side = "<" if row["below"] else ">"
        said.append(f"{side} {row['neutral']:.4g} {row['unit'] if not said else ''}".strip())
    return "; ".join(said)
