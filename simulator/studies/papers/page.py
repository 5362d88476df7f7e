"""Write what was found of all claims: reproduction.md, the tables beside it, and figures."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...results import store
from ...results.figures import curves, drawing
from ...results.figures.style import style
from .. import papers
from .claim import Kind, Paper, Verdict, close, counts, names
from .measures import QUICK, Lab

Row = Mapping[str, Any]

PAGE, TABLE = "reproduction.md", "reproduction.csv"
EXPERIMENTS, COVERAGE = "reproduction-experiments.csv", "reproduction-coverage.csv"
SEEDS = {"few": f"at most {QUICK} seeds a scenario", "all": "all seeds of the scenarios"}


def write(folder: Path, rows: Sequence[Row], drawn: Sequence[Paper], lab: Lab) -> None:
    """Write the page and its tables about all `rows`, and draw the figures of the papers `drawn`.

    Raises InputError where they cannot be written.
    """
    with style():
        files = {
            path(paper.name, name): drawing.encode(_figure(figure, lab), "png")
            for paper in drawn
            for name, figure in paper.figures.items()
        }
    store.publish(folder, files)
    # after the figures, because the page links all that exist, older ones too
    store.publish(folder, {name: text.encode() for name, text in texts(rows, folder).items()})


def path(paper: str, name: str) -> str:
    """Return the file of a figure, relative to the page."""
    return f"reproduction/{paper}-{name}.png"


def _figure(figure: Row, lab: Lab) -> Any:
    scenario, groups = lab.scenario(figure["of"]["name"]), lab.runs(figure["of"]["name"]).groups
    if figure["draw"] == "tau":
        return curves.tau(groups, title=scenario.title)
    loss = figure["of"].get("loss", "training loss")
    return curves.error(groups, title=scenario.title, target=scenario.run.target_loss, loss=loss)


def texts(rows: Sequence[Row], folder: Path) -> dict[str, str]:
    """Return the page and its tables, by file name."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415

    groups = {name: [row for row in rows if row["paper"] == name] for name in papers.NAMES}
    there = [(papers.paper(name), claims) for name, claims in groups.items() if claims]
    made = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = Path(__file__).with_name("page.md.j2").read_text("utf-8")
    text = made.from_string(template).render(
        papers=there,
        rows=rows,
        wide=sum(_wide(row) for row in rows if row["kind"] == Kind.PRINTED),
        drawn=lambda *figure: (folder / path(*figure)).is_file(),
        path=path,
        today=f"{datetime.now(UTC):%Y-%m-%d}",
        seeds=" or ".join(SEEDS[kind] for kind in dict.fromkeys(row["seeds"] for row in rows)),
        sets=" ".join(dict.fromkeys(" ".join(row["sets"]) for row in rows)).strip(),
        verdicts=[*Verdict],
        others=[kind for kind in Kind if kind is not Kind.PRINTED],
        counts=counts,
    )
    return {
        PAGE: text.rstrip("\n") + "\n",
        TABLE: _csv(_claim(row) for row in rows),
        EXPERIMENTS: _csv(_experiment(row, one) for row in rows for one in row["sensitivity"]),
        COVERAGE: _csv(line for paper, claims in there for line in covered(paper, claims)),
    }


def covered(paper: Paper, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return each figure and table of a paper, with the claims about it and what they leave."""
    table = []
    for name, left in paper.shown.items():
        verdicts = [row["verdict"] for row in rows if names(row["place"], name)]
        held = verdicts.count(Verdict.HOLDS)
        line = {"paper": paper.name, "shown": name, "claims": len(verdicts), "hold": held}
        table.append(line | {"not covered, and why": left})
    return table


def _claim(row: Row) -> dict[str, Any]:
    keys = ("paper", "claim", "kind", "place", "basis", "says", "unit")
    stated = {key: _short(row[key]) for key in ("expected", "within", "neutral")}
    stated |= {"side": "" if row["neutral"] is None else "below" if row["below"] else "above"}
    by = {"given_by": row["given_by"]} | _answer(row)
    why = f"{row['why']} {row['note']}".strip()
    return {key: row[key] for key in keys} | stated | by | {"why": why}


def _experiment(row: Row, assumed: Row) -> dict[str, Any]:
    about = {"paper": row["paper"], "claim": row["claim"], "experiment": assumed["assumption"]}
    return about | {"sets": " ".join(assumed["sets"])} | _answer(assumed)


def _answer(row: Row) -> dict[str, Any]:
    low, high = row["ci95"] or (None, None)
    ours = {"ours": row["value"], "low": low, "high": high}
    return {key: _short(value) for key, value in ours.items()} | {"verdict": row["verdict"]}


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _csv(rows: Iterable[Mapping[str, Any]]) -> str:
    lines = [*rows]
    file = io.StringIO()
    if lines:
        writer = csv.DictWriter(file, [*lines[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return file.getvalue()


def _wide(row: Row) -> bool:
    """Return whether a number holds only since our interval is wide."""
    counted = row["verdict"] == Verdict.HOLDS and row["expected"] is not None
    return bool(counted) and not close(row["value"], row["expected"], row["within"])
