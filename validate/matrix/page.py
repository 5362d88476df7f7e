"""The validation matrix as a page: its aims and whether they were met, and tables of all cells."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.simulator.results import store
from paceline.simulator.results.figures import drawing, style
from paceline.simulator.results.figures.style import Axes, Figure

from ..comparison.quantities import PACE, TARGET
from . import conditions, left_out, statistics
from .cells import Cell, explained
from .results import Matrix

TEMPLATE = Path(__file__).with_name("page.md.j2")
TABLES = {
    "cells": "each cell, predicted and measured, with the command of its condition",
    "conditions": "rank correlations of each condition, and the regret of the pick",
    "coverage": "measured values within 90 % intervals, by network, family and program",
    "noise": "relative standard deviations of equal runs, and of runs that differ in their seed",
    "terms": "the profile's terms against those fitted to each held-out run, in milliseconds",
}
KINDS = {"emulated": "emulated delays", "kernel": "links of the kernel", "real": "no delays"}

Row = Mapping[str, Any]


def write(matrix: Matrix, folder: Path, remade: str = "") -> Path:
    """Write the page, its tables, figure and JSON document to `folder`; return the page's path.

    `remade`: the date, where these are not new measurements. Raises InputError if they cannot be
    written.
    """
    name = file_stem(matrix.machine)
    matrix.cells = left_out.judged(matrix.cells)
    document = matrix.json()
    files = {f"{name}.json": store.dump(document)}
    files |= {f"{name}-{table}.csv": text.encode() for table, text in _tables(document).items()}
    with style.style():
        if figure := _scatter([cell for cell in matrix.cells if cell["counted"]]):
            files[f"{name}-scatter.png"] = drawing.encode(figure, "png")
    files[f"{name}.md"] = _page(matrix, name, document, drawn=figure is not None, remade=remade)
    store.publish(folder, files)
    return folder / f"{name}.md"


def file_stem(machine: dict[str, Any]) -> str:
    """Return the name of a machine's files, without suffix."""
    words = f"{machine.get('gpu') or machine['processor']} {machine['cores']} cores"
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def _page(matrix: Matrix, name: str, document: Row, *, drawn: bool, remade: str) -> bytes:
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415

    made = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters["share"] = lambda counts: (
        f"{100 * counts[0] / counts[1]:.0f} %" if counts[1] else "-"
    )
    versions = [f"{key} {v}" for key, v in matrix.versions.items() if v != "not installed"]
    page = made.from_string(TEMPLATE.read_text("utf-8")).render(
        found=matrix,
        machine=matrix.machine,
        versions=", ".join(versions),
        name=name,
        drawn=drawn,
        remade=remade,
        tables=TABLES,
        aims=statistics.aims(matrix.cells),
        coverage=document["coverage"],
    )
    return f"{page.rstrip()}\n".encode()


def _tables(document: Row) -> dict[str, str]:
    """Return the tables as CSV files, by name."""
    commands = {condition.name: condition.command() for condition in conditions.CONDITIONS}
    cells = []
    for cell in document["cells"]:
        pace, target = cell[PACE], cell[TARGET]
        row = {key: cell[key] for key in ("condition", "workers", "network", "program")}
        row |= {
            f"{key}_seconds_per_step": pace[key] for key in ("nominal", "predicted", "measured")
        }
        row |= {"error": pace["error"], "excess_explained": explained([cell])}
        row |= {f"{key}_time_to_target": target[key] for key in ("predicted", "measured")}
        row |= {"target_error": target["error"]}
        row |= {f"{key}_inside_90": cell["left_out"][key]["inside"] for key in (PACE, TARGET)}
        why = "; ".join(cell["reasons"])
        cells.append(row | {"not_counted": why, "command": commands.get(cell["condition"], "")})
    ordered = [
        {"condition": row["condition"], "counted": row["counted"], "of": row["of"]}
        | {f"kendall_{key}": tau for key, tau in row["kendall"].items()}
        | {key: (row["regret"] or {}).get(key) for key in ("picked", "value", "best", "among")}
        for row in document["conditions"]
    ]
    covered = [
        {"what": row["what"], "which": row["which"]}
        | {f"{key}_{part}": row[key][place] for key in (PACE, TARGET, "both", "same")
           for place, part in enumerate(("inside", "of"))}
        for row in document["coverage"]
    ]  # fmt: skip
    terms = [
        row | {key: 1e3 * row[key] for key in ("profile", "off", "per_step")}
        for row in document["terms"]
    ]
    tables = {"cells": cells, "conditions": ordered, "coverage": covered, "terms": terms}
    return {
        name: table_text(rows) for name, rows in (tables | {"noise": document["noise"]}).items()
    }


def table_text(rows: Iterable[Row]) -> str:
    """Return rows as a CSV file, numbers with four digits."""
    lines = [{key: f"{v:.4g}" if isinstance(v, float) else v for key, v in row.items()}
             for row in rows]  # fmt: skip
    file = io.StringIO()
    writer = csv.DictWriter(file, [*lines[0]] if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


def _scatter(cells: Sequence[Cell]) -> Figure | None:
    """Draw predicted against measured, a panel for each quantity that has both."""
    panels = {
        name: [cell for cell in cells if cell[key]["predicted"] and cell[key]["measured"]]
        for name, key in (("seconds per step", PACE), ("time to target, s", TARGET))
    }
    panels = {name: found for name, found in panels.items() if found}
    if not panels:
        return None
    figure = style.empty(4.4 * len(panels), layout="constrained")
    column = figure.subplots(len(panels), squeeze=False)[:, 0]
    for axes, (name, found) in zip(column, panels.items(), strict=True):
        key = PACE if name == "seconds per step" else TARGET
        for colour, (kind, label) in zip(style.COLOURS, KINDS.items(), strict=False):
            rows = [cell[key] for cell in found if cell["network"] == kind]
            measured = [row["measured"] for row in rows]
            for side, fill in (("predicted", colour), ("nominal", "none")):
                if rows and side in rows[0]:
                    axes.plot(measured, [row[side] for row in rows], "o", ms=4, mfc=fill,
                              color=colour, label=label if fill != "none" else None)  # fmt: skip
        _diagonal(axes)
        axes.set(xlabel=f"measured {name}", ylabel=f"predicted {name}")
    column[0].legend(title="hollow: without the profile", loc="upper left")
    return figure


def _diagonal(axes: Axes) -> None:
    """Draw the diagonal on logarithmic axes with plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    axes.axline((1, 1), slope=1, color="0.6", linewidth=0.8, zorder=0)
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
