"""Run sections; store their figures in docs/evidence/reliability.json, and write the page."""

import argparse
import importlib
import json
import pkgutil
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paceline.simulator.results import store
from paceline.simulator.studies.execution import cores
from tests.lab import reliability, tables

DOCS = Path(__file__).parents[3] / "docs" / "evidence"
KEPT = DOCS / "reliability.json"
PAGE = DOCS / "reliability.md"
LONG = ("mutants",)  # sections that run only on request
PREFACE = """# How much is handled

Faults and inputs thrown at Paceline, and how many it handled, at the last run of each section.
`make reliability` runs them, except `make mutants`, an hour. `tests/lab/reliability` has them;
commit 80f3567f also has programs removed since. Small versions of the same functions are tests.
"""


def sections() -> dict[str, Any]:
    """Return the measuring modules of this package by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(reliability.__path__))
    modules = {
        name: importlib.import_module(f"tests.lab.reliability.{name}")
        for name in names
        if name != "__main__"
    }
    return {name: module for name, module in modules.items() if hasattr(module, "measure")}


def measured(name: str, module: Any, seconds: float) -> dict[str, Any]:
    """Run a section; return its rows with date, machine and versions."""
    begin = datetime.now(UTC)
    rows = module.measure(seconds)
    return {
        "title": module.TITLE,
        "date": begin.date().isoformat(),
        "seconds": round((datetime.now(UTC) - begin).total_seconds()),
        "command": f"python -m tests.lab.reliability {name} --seconds {seconds:g}",
        "machine": f"{cores()} cores, {platform.system()}",
        "versions": store.versions(),
        "remarks": getattr(module, "REMARKS", ""),
        "rows": rows,
    }


def page(known: dict[str, dict[str, Any]]) -> str:
    """Return the page, whose numbers all come from docs/evidence/reliability.json."""
    parts = [PREFACE, "| section | tried | handled | on |\n|---|--:|--:|---|"]
    for result in known.values():
        tried, handled = (sum(row[key] for row in result["rows"]) for key in ("tried", "handled"))
        parts.append(f"| {result['title']} | {tried:,} | {handled:,} | {result['date']} |")
    return "\n".join([*parts, *map(_section, known.values()), ""])


def _section(known: dict[str, Any]) -> str:
    rows = known["rows"]
    name = known["command"].split()[3]
    cells = [
        (row["what"], row["tried"], row["handled"], row.get("note", ""), row["how"]) for row in rows
    ]
    head = ("what", "tried", "handled", "measured", "how")
    link = tables.write(DOCS / f"reliability-{name}.csv", head, cells)
    lines = [
        f"\n## {known['title']}\n",
        f"`{known['command']}` on {known['date']}: {known['seconds']} s, {known['machine']}, "
        + ", ".join(f"{name} {number}" for name, number in known["versions"].items())
        + ".\n",
        link,
    ]
    if missed := [(row["what"], case) for row in rows for case in row.get("missed", ())]:
        missed = [(what, " ".join(case.split())) for what, case in missed]
        link = tables.write(DOCS / f"reliability-{name}-missed.csv", ("what", "case"), missed)
        lines.append(f"\nNot handled: {link}")
    if remarks := known.get("remarks"):
        lines.append(f"\n{remarks}")
    return "\n".join(lines)


def main() -> None:
    """Run the command line."""
    every = sections()
    parser = argparse.ArgumentParser(prog="python -m tests.lab.reliability", description=__doc__)
    parser.add_argument("section", nargs="*", metavar="SECTION", help=", ".join(every))
    parser.add_argument("--seconds", type=float, default=120.0, help="for each section")
    options = parser.parse_args()
    if unknown := [item for item in options.section if item not in every]:
        parser.error(f"{', '.join(unknown)}: unknown; choose from {', '.join(every)}")
    for name in options.section or [section for section in every if section not in LONG]:
        actual = measured(name, every[name], options.seconds)
        earlier = json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else {}
        earlier = dict(sorted({**earlier, name: actual}.items()))
        store.write(KEPT, store.dump(earlier))
        store.write(PAGE, page(earlier).encode())
        for row in actual["rows"]:
            print(f"{row['handled']:>7} of {row['tried']:<7} {row['what']} {row.get('note', '')}")
            for text in row.get("missed", ()):
                print(f"    missed: {text}")


if __name__ == "__main__":
    main()
