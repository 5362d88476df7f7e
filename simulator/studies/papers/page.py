"""Write the page about all claims, docs/reproduction.md, and its figures."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paceline.simulator.results import store
from paceline.simulator.results.figures import curves
from paceline.simulator.results.figures.style import style
from paceline.simulator.results.statistics import number
from paceline.simulator.studies import papers
from paceline.simulator.studies.papers.claim import Paper, Verdict
from paceline.simulator.studies.papers.lab import QUICK, Lab

Row = Mapping[str, Any]

PAGE, FOLDER = "reproduction.md", "reproduction"
SEEDS = {"few": f"at most {QUICK} seeds a scenario", "all": "all seeds of the scenarios"}


def write(folder: Path, rows: Sequence[Row], drawn: Sequence[Paper], lab: Lab) -> None:
    """Write the page about all `rows`, and the figures of the papers `drawn` anew.

    Raises InputError where they cannot be written.
    """
    files = {
        f"{FOLDER}/{paper.name}-{name}.png": _drawn(draw, lab)
        for paper in drawn
        for name, (_, draw) in paper.figures.items()
    }
    store.publish(folder, files)
    # after the figures, because it shows all that exist, older ones too
    store.publish(folder, {PAGE: "\n".join(_page(rows, folder)).encode()})


def _drawn(draw: Any, lab: Lab) -> bytes:
    with style():
        return curves.encode(draw(lab), "png")


def _page(rows: Sequence[Row], folder: Path) -> Iterator[str]:
    yield "# Four papers, claim by claim\n"
    yield (
        f"Made by `paceline reproduce` on {datetime.now(UTC):%Y-%m-%d}; every number comes from "
        "runs of the scenarios named (`--full`: with all their seeds). A number holds within the "
        "tolerance beside it, an order where its whole 95 % interval over seeds does; *in sign* "
        "says that only the direction is right. A setting that a paper leaves open is a key of a "
        "scenario, and the rows in italics show the claim with another choice of it.\n"
    )
    groups = ((name, [row for row in rows if row["paper"] == name]) for name in papers.NAMES)
    found = {name: own for name, own in groups if own}
    yield "| paper | " + " | ".join(Verdict) + " | runs |\n|---|" + "---:|" * len(Verdict) + "---|"
    for name, own in found.items():
        counts = [sum(row["verdict"] == verdict for row in own) for verdict in Verdict]
        seeds = " or ".join(dict.fromkeys(SEEDS[row["seeds"]] for row in own))
        title = papers.paper(name).title
        yield f"| [{title}](#{name}) | {' | '.join(map(str, counts))} | {seeds} |"
    yield ""
    for name, own in found.items():
        yield from _section(papers.paper(name), own, folder)


def _section(paper: Paper, rows: Sequence[Row], folder: Path) -> Iterator[str]:
    yield f"## {paper.name}\n"
    yield f"*{paper.title}*, {paper.source}. {paper.settings}\n"
    yield "| claim | paper | ours | 95 % interval | verdict | why |\n|---|---:|---:|---|---|---|"
    for row in rows:
        why = " ".join(filter(None, (row["why"], row["note"])))
        claim = f"**{row['claim']}**: {row['says']}"
        yield f"| {claim} | {expected(row)} | {' | '.join((*_found(row), why))} |"
        for each in row["sensitivity"]:
            shown = _found(each | {"unit": row["unit"]})
            sets = " ".join(f"`{text}`" for text in each["sets"])
            said = f"*{each['assumption']}* ({sets})"
            yield f"| {said} | | {' | '.join((*shown, each['note']))} |"
    yield ""
    for name, (caption, _) in paper.figures.items():
        if (folder / FOLDER / f"{paper.name}-{name}.png").is_file():
            yield f"![{caption}]({FOLDER}/{paper.name}-{name}.png)\n\n{caption}\n"


def _found(row: Row) -> tuple[str, str, str]:
    """Value, interval and verdict, as cells."""
    low, high = row["ci95"] or (None, None)
    between = "" if low is None or high is None else f"{number(low)} to {number(high)}"
    return value(row), between, row["verdict"]


def value(row: Row) -> str:
    """Our number, with its unit."""
    return "never" if row["value"] is None else f"{number(row['value'])} {row['unit']}".strip()


def expected(row: Row) -> str:
    """The paper's number and the tolerance for ours; empty if it has none."""
    if row["expected"] is None:
        return ""
    return f"{row['expected']:.6g} {row['unit']} ± {100 * row['within']:.3g} %".replace("  ", " ")
