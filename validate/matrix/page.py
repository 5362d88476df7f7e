"""The validation matrix as a Markdown page: its aims, whether they were met, and every cell."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paceline.simulator.results import store
from paceline.simulator.results.statistics import human
from paceline.validate.comparison.quantities import PACE, TARGET
from paceline.validate.matrix import conditions, figures, left_out, statistics
from paceline.validate.matrix.cells import Cell, explained
from paceline.validate.matrix.conditions import CONDITIONS, REPEATED, REPEATS, Condition
from paceline.validate.matrix.results import Matrix

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
    files[f"{name}.md"] = "\n".join(_page(found, name, list(drawn), remade)).encode()
    store.publish(folder, files)
    return folder / f"{name}.md"


def file_stem(machine: dict[str, Any]) -> str:
    """Return the name of a machine's files, without suffix."""
    words = f"{machine.get('gpu') or machine['processor']} {machine['cores']} cores"
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def _page(found: Matrix, name: str, drawn: Sequence[str], remade: str) -> Iterator[str]:
    machine = found.machine
    yield f"# The validation matrix: {machine['processor']}, {machine['cores']} cores\n"
    versions = ", ".join(
        f"{key} {each}" for key, each in found.versions.items() if each != "not installed"
    )
    yield (
        f"{found.date}; {machine['system']}; {versions}. Made by "
        "`paceline validate --matrix`; [how to read it](../matrix.md).\n"
    )
    if remade:
        yield (
            f"What follows from the measurements was worked out again on {remade}, without "
            f"measuring again, by `python -m paceline.validate.matrix.remake {name}.json`.\n"
        )
    counted = sum(cell["counted"] for cell in found.cells)
    yield (
        f"{len(found.cells)} cells (programs under conditions), {counted} of which count as "
        "evidence. Fitted were ssgd and local-sgd with tau = 8 alone, with other seeds, at 20 ms "
        "(links of the kernel: 10 ms) and shifted-exponential steps, for each number of workers "
        "and kind of network; every cell is a program that no profile has seen.\n"
    )
    yield from _aims(found)
    yield from _coverage(found.cells)
    for figure in drawn:
        yield f"![{FIGURES[figure]}]({name}-{figure}.png)\n"
    yield from _conditions(found.cells)
    for condition in CONDITIONS:
        own = [cell for cell in found.cells if cell["condition"] == condition.name]
        if own or condition.name in found.failed:
            yield f"## {condition.name}\n"
            yield f"`{condition.command()}`\n"
        if own:
            yield from _cells(own)
        elif condition.name in found.failed:
            yield f"Left out: {found.failed[condition.name]}\n"
    yield from _noise(found)
    yield from _terms(found.cells)


def _aims(found: Matrix) -> Iterator[str]:
    yield "## Aims\n"
    yield "| | aim | found | | of |\n|---|---|---|---|---|"
    for aim in statistics.aims(found.cells):
        said = {True: "met", False: "**missed**", None: "-"}[aim.met]
        yield f"| {aim.what} | {aim.limits} | {aim.shown} | {said} | {aim.of} |"
    yield ""


def _coverage(cells: Sequence[Cell]) -> Iterator[str]:
    yield "## Intervals of programs that were left out\n"
    yield (
        "How many measured values lie within their 90 % intervals: those of the profile, widened "
        "by the model's error, which was learnt from all other programs, the settings of one "
        "program being left out together. Predicted with independent delays; the last column: with "
        "the same delays, by the model's error alone.\n"
    )
    yield "| | seconds per step | time to target | both | | same delays |"
    yield "|---|--:|--:|--:|--:|--:|"
    for row in left_out.coverage(cells):
        held = ("/".join(map(str, row[key])) for key in (PACE, TARGET, "both"))
        share, same = (_share(row[key]) for key in ("both", "same"))
        title = f"{row['what']}: {row['which']}".removesuffix(": ")
        yield f"| {title} | {' | '.join(held)} | {share} | {same} |"
    yield ""


def _share(counts: Sequence[int]) -> str:
    held, of = counts
    return f"{100 * held / of:.0f} %" if of else "-"


def _conditions(cells: Sequence[Cell]) -> Iterator[str]:
    yield "## Order and pick\n"
    yield (
        "Kendall's tau over times to target: with real gradients and the same delays, with "
        "independent ones, with the calibrated quadratic. The pick is the predicted first of "
        "independent draws; its regret is measured.\n"
    )
    yield "| condition | cells that count | same | independent | quadratic | pick | regret | best |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in statistics.conditions(cells):
        taus = (row["kendall"][key] for key in ("paired", "independent", "quadratic"))
        shown = ["-" if each is None else f"{each:.2f}" for each in taus]
        cost = row["regret"]
        picked, regret, best = "-", "-", "-"
        if cost is not None:
            picked = cost["picked"]
            regret = "never" if cost["value"] is None else f"{100 * cost['value']:.1f} %"
            best = cost["best"] + ("" if cost["among"] else " (not among ties or first two)")
        counts = f"{row['counted']} of {row['of']}"
        yield f"| {' | '.join((row['condition'], counts, *shown, picked, regret, best))} |"
    yield ""


def _cells(cells: Sequence[Cell]) -> Iterator[str]:
    yield (
        "| | nominal | predicted | measured | error | excess explained | to target: predicted | "
        "measured | error | inside 90 % |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    for cell in cells:
        pace, target = cell[PACE], cell[TARGET]
        share = explained([cell])
        inside = (cell["left_out"][each]["inside"] for each in (PACE, TARGET))
        row = (
            cell["program"],
            *(human(pace[key]) for key in ("nominal", "predicted", "measured")),
            _error(pace["error"]),
            "-" if share is None else f"{100 * share:.0f} %",
            human(target["predicted"]),
            human(target["measured"]),
            _error(target["error"]),
            "/".join({True: "yes", False: "no", None: "-"}[each] for each in inside),
        )
        yield f"| {' | '.join(row)} |"
    yield ""
    for cell in cells:
        if not cell["counted"]:
            yield f"Not counted: {cell['program']}: {'; '.join(cell['reasons'])}.\n"
    middle = explained([cell for cell in cells if cell["counted"]])
    if middle is not None:
        yield f"Of all that the real system added, {100 * middle:.0f} % is explained.\n"


def _error(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f} %"


def _noise(found: Matrix) -> Iterator[str]:
    if not found.noise:
        return
    yield "## The noise floor\n"
    command = Condition(REPEATS, (conditions.only(*REPEATED),)).command()
    yield (
        "Relative standard deviation of runs that are equal in everything, and of runs that differ "
        f"in their seed alone: `{command}`\n"
    )
    yield "| program | | equal | seeds |\n|---|---|---|---|"
    for row in found.noise:
        spread = (row[each] for each in ("equal", "seeds"))
        shown = ["-" if each is None else f"{100 * each:.2f} %" for each in spread]
        yield f"| {row['program']} | {row['quantity'].replace('_', ' ')} | {' | '.join(shown)} |"
    yield ""


def _terms(cells: Sequence[Cell]) -> Iterator[str]:
    rows = statistics.by_term(cells)
    if not rows:
        return
    yield "## Which term is off\n"
    yield (
        "The same terms fitted to each held-out run itself, against the profile's: medians, "
        "milliseconds; how much that makes of a step, whether or not others waited for it; and in "
        "how many cells it makes most.\n"
    )
    yield "| network | term | profile | off by | of a step | largest in |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        times = (f"{1e3 * row[key]:.3f}" for key in ("profile", "off", "per_step"))
        shown = f"{' | '.join(times)} | {row['largest']} of {row['cells']}"
        yield f"| {row['network']} | {row['term']} | {shown} |"
    yield ""
