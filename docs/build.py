"""Update the generated parts of docs/: `make docs`.

    python docs/build.py [NAME ...]           parameters, results and figures (all: minutes)
    python docs/build.py --check [NAME ...]   report what is out of date, without simulation

Without names, docs/reference/scenario.md (every key of a scenario) is also written or checked.

A page, docs/programs/NAME.md, is written by hand, with equations in the code's notation and the
headings of the others. Text between <!-- parameters --> or <!-- results --> and <!-- end --> is
replaced, from the catalogue and from `paceline simulate programs/NAME`. NAME.png is the run's
figure.png, NAME-tau.png its tau.png and so on; only figures that a page shows are made. Runs are
stored in runs/NAME, and repeated only after a change. In equations no backslash may precede
punctuation, because Markdown would remove it.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, get_args, get_origin

import paceline
from paceline.simulator.inputs.messages import toml
from paceline.simulator.programs import Program, catalogue
from paceline.simulator.reports import terminal

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent)]  # docs/ is not installed

from docs import generated  # noqa: E402

KEYS = DOCS / "reference" / "scenario.md"
PAGES = DOCS / "programs"
Rows = Iterable[Sequence[str]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if something is out of date."""
    parser = argparse.ArgumentParser(description="Bring docs/programs/ up to date.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs; default: all")
    parser.add_argument("--check", action="store_true", help="change nothing, simulate nothing")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in catalogue():
            parser.error(f"{name}: no such program; `paceline list algorithms` names them")
    stale = 0 if options.names else keys(options.check)
    for name in options.names or catalogue():
        page = PAGES / f"{name}.md"
        old = page.read_text("utf-8")
        new = filled(old, "parameters", parameters(catalogue()[name]))
        if not options.check:
            new = filled(new, "results", simulated(name, new))
            page.write_text(new, "utf-8")
        elif new != old:
            stale = 1
            say(f"{page.name}: its parameters are out of date; run `make docs`")
    return stale


def keys(check: bool) -> int:
    """Write the reference of keys or, with `check`, return 1 if it is out of date."""
    new = generated.scenario() + "\n"
    stale = check and KEYS.read_text("utf-8") != new
    if stale:
        say(f"{KEYS.name} is out of date; run `make docs`")
    elif not check:
        KEYS.write_text(new, "utf-8")
    return int(stale)


def filled(page: str, mark: str, text: str) -> str:
    """Return the page with `text` between `<!-- mark -->` and the next `<!-- end -->`."""
    between = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- end -->)", re.DOTALL)
    return between.sub(lambda marks: f"{marks[1]}{text}\n{marks[2]}", page)


def parameters(program: Program) -> str:
    """Return the table of a program's parameters, and a line on its recovery policies."""
    rows = []
    for key, about in program.describe().items():
        field, value = program.parameters.model_fields[key], about["default"]
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        listed = ", ".join(f"`{toml(choice)}`" for choice in choices)
        meaning = f"{field.description}: {listed}" if choices else field.description or ""
        default = (value or "") if field.default is None else f"`{toml(value)}`"
        default = "required" if field.is_required() else default
        rows.append((f"`{key}`", default, about["unit"], meaning))
    policies = ", ".join(f"`{policy}`" for policy in program.recovers)
    crash = f"When a worker crashes, [`recovery.policy`](../failures.md) may be {policies}."
    return f"{table(('parameter', 'default', 'unit', 'meaning'), rows)}\n\n{crash}"


def figures(page: str, name: str) -> dict[str, str]:
    """Return the figures of a page: file of the run directory -> file beside the page."""
    shown = re.findall(rf"\(({re.escape(name)}(?:-(\w+))?\.png)\)", page)
    return {f"{kind or 'figure'}.png": file for file, kind in shown}


def simulated(name: str, page: str) -> str:
    """Simulate a page's scenario, copy its figures; return its table of results."""
    say(f"{name} ...")
    directory = DOCS.parent / "runs" / name
    result = paceline.simulate(f"programs/{name}", out=directory)
    for source, file in figures(page, name).items():
        (PAGES / file).write_bytes((directory / source).read_bytes())
    rows, columns = terminal.results(result)
    header = [" ".join(heading.split()).replace("/ ", "/") for heading in columns]
    return table(header, ([cell(row) for cell in columns.values()] for row in rows))


def table(header: Sequence[str], rows: Rows) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def say(line: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
