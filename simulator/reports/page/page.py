"""`paceline report`: the results of RUNs as one self-contained HTML file."""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...inputs.toml_text import write_toml
from ...results import store
from ...results.figures import interactive
from . import reading
from .reading import FoundRun
from .sections import sections, series

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


FILE = "report.html"
ASSETS = Path(__file__).parent.parent / "assets"


def report(
    runs: Sequence[Path | str], out: Path | str | None = None, overwrite: bool = False
) -> Path:
    """Write the page about RUNs and return its path.

    `runs`: directories that simulate, tune, sweep, validate or compare wrote; several are shown
    side by side. `out`: the file, which is replaced only if `overwrite`; default: report.html in
    the first directory, or the next free name. Raises InputError if one of `runs` is not such a
    directory, or the file cannot be written.
    """
    if not runs:
        raise InputError("report: no RUN; give a directory that paceline simulate wrote")
    every = reading.read([Path(run) for run in runs])
    path = Path(out) if out is not None else every[0].path / FILE
    if path.is_dir():
        raise InputError(f"{path}: a directory; give the file to write, such as {path / FILE}")
    data = html(every).encode(errors="replace")  # file names may contain any bytes
    with store.writing(path, "choose another file with -o"):
        given = out is not None
        return store.write_free(path, data, given=given, overwrite=overwrite)


def html(every: Sequence[FoundRun]) -> str:
    """Return the page as HTML."""
    lines = series(every)
    parts = sections(every, lines)
    from plotly.offline import get_plotlyjs  # noqa: PLC0415

    scripts = {"plotly": str(get_plotlyjs()), "page": _file("figures.js")}
    # with their hashes, the page's content security policy lets these scripts run
    digests = (hashlib.sha256(text.encode(errors="replace")).digest() for text in scripts.values())
    template = _environment().get_template("page.html.j2")
    return template.render(
        title=", ".join(dict.fromkeys(str(run.scenario["title"]) for run in every)),
        every=every,
        sections=parts,
        figures={
            figure.id: interactive.spec(figure.panel)
            for section in parts
            for figure in section.figures
        },
        style=_file("figures.css") + _file("page.css"),
        scripts=scripts,
        hashes=" ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests),
        origins=[_origin(run) for run in every],
    )


def _origin(opened: FoundRun) -> dict[str, Any]:
    """Return the origin of a RUN's numbers: scenario, seeds, versions, machine, notes."""
    document, table = opened.document, opened.scenario.get("table")
    seeds, notes = document.get("seeds"), [*document.get("notes", ())]
    for side, run in opened.sides.items():
        if run is not opened.main:
            notes += [f"{side}: {note}" for note in run.summary["notes"]]
    if opened.comparison and opened.main:
        notes += opened.comparison["notes"]
    machines = (run.summary.get("machine", {}).items() for run in opened.sides.values())
    return {
        "run": opened,
        "toml": write_toml(table) if table else "",
        "seeds": json.dumps(seeds).strip("{}[]") if seeds else "",
        "machine": dict(fact for machine in machines for fact in machine),
        "notes": [*dict.fromkeys(notes)],
    }


def _file(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415

    made = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    made.filters["prose"] = _prose
    return made


def _prose(text: str) -> "Markup":
    """Convert text to HTML: backticks become code, and numbers stay with their units."""
    from markupsafe import Markup, escape  # noqa: PLC0415

    whole = re.sub(r"(?<=\d) (?=(ms|s|min|h|d|%)\b|%)", "\N{NO-BREAK SPACE}", str(escape(text)))
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", whole))
