"""The validation matrix as a Markdown page: its aims, whether they were met, and every cell."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.simulator.results import store
from paceline.simulator.results.statistics import human

from . import conditions, figures, left_out, statistics
from .cells import explained
from .results import Matrix

TEMPLATE = Path(__file__).with_name("page.md.j2")
FIGURES = {
    "scatter": "Predicted against measured seconds per step, and times to target",
    "errors": "Errors by program",
    "excess": "What real systems add: predicted against measured",
}


def write(found: Matrix, folder: Path, remade: str = "") -> Path:
    """Write the page, its figures and its JSON document to `folder`; return the page's path.

    `remade`: the date, where these are not new measurements. Raises InputError if they cannot be
    written.
    """
    name = file_stem(found.machine)
    found.cells = left_out.judged(found.cells)
    files = {f"{name}.json": store.dump(found.json())}
    drawn = figures.figures(found.cells)
    files |= {f"{name}-{figure}.png": data for figure, data in drawn.items()}
    files[f"{name}.md"] = _page(found, name, list(drawn), remade).encode()
    store.publish(folder, files)
    return folder / f"{name}.md"


def file_stem(machine: dict[str, Any]) -> str:
    """Return the name of a machine's files, without suffix."""
    words = f"{machine.get('gpu') or machine['processor']} {machine['cores']} cores"
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def _page(found: Matrix, name: str, drawn: Sequence[str], remade: str) -> str:
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415

    made = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"human": human, "percent": _percent, "share": _share}
    known = {key: each for key, each in found.versions.items() if each != "not installed"}
    page = made.from_string(TEMPLATE.read_text("utf-8")).render(
        found=found,
        machine=found.machine,
        versions=", ".join(f"{key} {each}" for key, each in known.items()),
        name=name,
        drawn=drawn,
        remade=remade,
        figures=FIGURES,
        statistics=statistics,
        left_out=left_out,
        explained=explained,
        conditions=conditions.CONDITIONS,
        inside={True: "yes", False: "no", None: "-"},
        repeats=conditions.repeats(),
        terms=statistics.by_term(found.cells),
    )
    return page.rstrip() + "\n"


def _percent(share: float | None, digits: str) -> str:
    return "-" if share is None else f"{100 * share:{digits}} %"


def _share(counts: Sequence[int]) -> str:
    held, of = counts
    return _percent(held / of if of else None, ".0f")
