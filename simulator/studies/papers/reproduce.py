"""Check papers' claims, and write reproduction.md, its tables, and figures.

NAME.toml states the claims of a paper, and the `measures` that test them. The measures run the
scenarios of the same name under scenarios/.

A `[[claim]]` has the fields of `Claim`; `measure` names a `[measure]` table: a function (`how`, by
default the table's name) and its arguments, which `of` fills or adds to. `assumptions` are names of
`[assumption]` tables. `like` names a `[like]` table with fields that several claims share. `each`
lists rows, and makes a claim for every row. Its keys fill the {braces} in texts, or replace fields
of those names. A row that names some of `[rows]` stands for each of them, and adds their keys to
its own.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...inputs import untrusted
from ...inputs.csv_files import Digits, table
from ...inputs.messages import nearest
from ...results import store
from ...results.figures import curves, drawing
from ...results.statistics import jsonable
from .. import executors
from ..execution import Execution, Progress, cores
from ..executors import Place
from . import measures
from .measures import QUICK, Claim, Kind, Lab, Paper, Verdict, close, counts

FIELDS = {"of", *(field.name for field in fields(Claim))}
NAMES = ("adacomm", "dts", "hpsgd", "hybrid")
REAL = "real-data"  # all four on Fashion-MNIST, which only a request for it runs

Table = Mapping[str, Any]


@cache
def paper_of(name: str) -> Paper:
    """Return the paper of that name. Raises InputError."""
    if name not in (names := (*NAMES, REAL)):
        raise InputError(f"reproduce {name}: no such paper; {nearest(name, names, 'write one of')}")
    document = untrusted.packaged(__file__, f"{name}.toml")
    return Paper(
        name,
        **{key: document[key] for key in ("title", "source", "settings")},
        claims=tuple(_claims(document)),
        figures={row["name"]: row for row in document.get("figure", ())},
    )


def _claims(document: Table) -> Iterator[Claim]:
    for written in document["claim"]:
        table = document.get("like", {}).get(written.get("like"), {}) | written
        for row in _rows(document, table.get("each", [{}])):
            fields_ = {key: value for key, value in (table | row).items() if key in FIELDS}
            claim = _filled(fields_, row)
            named = claim.pop("assumptions", ())
            of = document.get("assumption", {})
            yield Claim(
                kind=Kind(claim.pop("kind")),
                measure=_measure(document, claim.pop("measure"), claim.pop("of", {})),
                assumptions=[of[one] if isinstance(one, str) else one for one in named],
                **claim,
            )


def _measure(document: Table, name: str, of: Table) -> Any:
    """Return the function of a measure, bound to its arguments but for the `Lab`."""
    defined = dict(document["measure"].get(name, {}))
    how = defined.pop("how", name)
    used = {key for key in of if f"{{{key}}}" in str(defined)}
    filled = _filled(defined, {**defined, **of})
    arguments = {key: value for key, value in {**filled, **of}.items() if key not in used}
    for key in ("table", "tables"):
        with suppress(KeyError):
            given = arguments[key]
            rows = document["rows"]
            arguments[key] = rows[given] if key == "table" else [rows[entry] for entry in given]
    arguments.pop("workers", None)  # fills an override
    return partial(getattr(measures, how), **arguments)


def _rows(document: Table, rows: Iterable[Table]) -> Iterator[Table]:
    for row in rows:
        inner = document["rows"][row["rows"]] if "rows" in row else [{}]
        yield from ({**row, **more} for more in inner)


def _filled(value: Any, row: Table) -> Any:
    """Fill the keys of a row into texts; a text that is only a key becomes its value."""
    if isinstance(value, dict):
        return {key: _filled(entry, row) for key, entry in value.items()}
    if isinstance(value, list):
        return [_filled(entry, row) for entry in value]
    if not isinstance(value, str) or not row:
        return value
    return row[value[1:-1]] if value[1:-1] in row else value.format_map(row)


Row = Mapping[str, Any]
PAGE, TABLE = "reproduction.md", "reproduction.csv"
EXPERIMENTS = "reproduction-experiments.csv"
TRAINED = ("objective", "model", "optimizer", "run")  # tables that affect a scenario's training
SEEDS = {"few": f"at most {QUICK} seeds a scenario", "all": "all seeds of the scenarios"}


def reproduce(  # noqa: PLR0913 - the options of the command
    names: Sequence[str] = NAMES,
    *,
    full: bool = False,
    timing: bool = False,
    overrides: Sequence[str] = (),
    jobs: int | None = None,
    out: Path | str = Path("runs/reproduce"),
    report: Path | str | None = "",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Check the claims of the papers named, and write the page; return the command's document.

    Uses few seeds, or all seeds of the scenarios (`full`). `timing`: only claims about time, which
    take seconds. `overrides`: texts "table.key=value" for the scenarios that train, to give them
    other data. `out` stores every finished run, from which the same call, or one with more seeds,
    resumes. The page (`reproduction.md`, figures beside it) shows the claims of this call. It goes
    to `report`, by default to `out`, or nowhere if that is None. Raises InputError.
    """
    for text in overrides:
        if (table := re.split(r"[.=]", text)[0].strip()) not in TRAINED:
            raise InputError(
                f"reproduce --set {text}: {table} has no effect on the training; write a key of "
                f"{', '.join(TRAINED)}, or run the scenario with `paceline simulate`"
            )
    chosen = [paper_of(name) for name in names]
    execution = Execution(jobs=cores() if jobs is None else jobs)
    todo = [(one, claim) for one in chosen for claim in one.claims if claim.timing or not timing]
    with store.KeptRuns(Path(out)) as stored, executors.start(execution) as executor:
        lab = Lab(full, Place(execution, executor, stored), trained=tuple(overrides))
        rows = list[Row]()
        for number, (paper, claim) in enumerate(todo, 1):
            rows.append(_row(paper, claim, lab))
            if progress:
                progress(number, len(todo))
        stored.replace({}, {"claims": rows})
        if report is not None:
            write(Path(report or out), rows, () if timing else chosen, lab)
        return {"claims": rows, "summary": counts(rows)}


def _row(paper: Paper, claim: Claim, lab: Lab) -> Row:
    """Return a claim's row in claims.json, from which the page is written."""
    before = len(lab.changed)
    stated = ("expected", "place", "basis", "says", "why", "unit", "given_by", "neutral")
    return {
        "paper": paper.name,
        "claim": claim.name,
        **{key: getattr(claim, key) for key in (*stated, "stand_in")},
        **_answer(claim, lab),
        "kind": str(claim.kind),
        "within": claim.within if claim.expected is not None else None,
        "below": claim.falling,
        "seeds": "all" if lab.full else "few",
        "sets": [*lab.trained] if len(lab.changed) > before else [],
        "sensitivity": [
            {"assumption": assumed["what"], "sets": assumed["sets"]}
            | _answer(claim, replace(lab, sets=(*lab.sets, *assumed["sets"])))
            for assumed in claim.assumptions
        ],
    }


def _answer(claim: Claim, lab: Lab) -> dict[str, Any]:
    finding = claim.measure(lab)
    answer = {"value": jsonable(finding.value), "ci95": jsonable(finding.ci95)}
    return answer | {"verdict": str(claim.verdict(finding)), "note": finding.note}


def write(folder: Path, rows: Sequence[Row], drawn: Sequence[Paper], lab: Lab) -> None:
    """Write the page and its tables; draw the figures of the papers `drawn`."""
    files = {
        path(paper.name, name): drawing.encode(_figure(figure, lab), "png")
        for paper in drawn
        for name, figure in paper.figures.items()
    }
    store.publish(folder, files)
    # after the figures, because the page links all existing figures
    store.publish(folder, texts(rows, folder))


def path(paper: str, name: str) -> str:
    """Return the file of a figure, relative to the page."""
    return f"reproduction/{paper}-{name}.png"


def _figure(figure: Row, lab: Lab) -> Any:
    scenario, runs = lab.scenario(figure["of"]["name"]), lab.runs(figure["of"]["name"])
    lines = curves.of_groups(runs.groups)
    if figure["draw"] == "tau":
        return curves.tau(lines, title=scenario.title)
    loss = figure["of"].get("loss", "training loss")
    return curves.error(lines, title=scenario.title, target=scenario.run.target_loss, loss=loss)


def texts(rows: Sequence[Row], folder: Path) -> dict[str, bytes]:
    """Return the page and its tables as bytes, by file name."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415

    names = [*dict.fromkeys(row["paper"] for row in rows)]
    papers = [(paper_of(name), [row for row in rows if row["paper"] == name]) for name in names]
    real = names == [REAL]
    page = (PAGE, f"{REAL}.md")[real]
    loader = FileSystemLoader(Path(__file__).parent)
    made = Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = made.get_template(f"{page}.j2").render(
        papers=papers,
        rows=rows,
        wide=sum(_holds_by_width(row) for row in rows if row["kind"] == Kind.PRINTED),
        drawn=lambda *figure: (folder / path(*figure)).is_file(),
        path=path,
        today=f"{datetime.now(UTC):%Y-%m-%d}",
        seeds=" or ".join(SEEDS[kind] for kind in dict.fromkeys(row["seeds"] for row in rows)),
        sets=" ".join(dict.fromkeys(" ".join(row["sets"]) for row in rows)).strip(),
        verdicts=[*Verdict],
        others=[kind for kind in Kind if kind is not Kind.PRINTED],
        counts=counts,
        short=_short,
        stand_ins=_verdicts(folder / TABLE),
        versions=store.versions("torch"),
    )
    experiments = [
        {"paper": row["paper"], "claim": row["claim"], "experiment": assumed["assumption"]}
        | {"sets": " ".join(assumed["sets"]), **_ours(assumed)}
        for row in rows
        for assumed in row["sensitivity"]
    ]
    tables = {page.replace(".md", ".csv"): [*map(_claim, rows)]}
    tables |= {} if real else {EXPERIMENTS: experiments}
    return {page: (text.rstrip("\n") + "\n").encode()} | {
        name: table([*lines[0]], (line.values() for line in lines)) if lines else b""
        for name, lines in tables.items()
    }


def _verdicts(file: Path) -> dict[str, str]:
    """Return the verdicts of a page's table by "paper: claim"; none without the file."""
    lines = untrusted.text(file).splitlines() if file.is_file() else []
    return {f"{row['paper']}: {row['claim']}": row["verdict"] for row in csv.DictReader(lines)}


def _claim(row: Row) -> dict[str, Any]:
    return {
        **{key: row[key] for key in ("paper", "claim", "kind", "place", "basis", "says", "unit")},
        **{key: _short(row[key]) for key in ("expected", "within", "neutral")},
        "side": "" if row["neutral"] is None else "below" if row["below"] else "above",
        "given_by": row["given_by"],
        **_ours(row),
        "why": f"{row['why']} {row['note']}".strip(),
    }


def _ours(row: Row) -> dict[str, Any]:
    low, high = row["ci95"] or (None, None)
    ours = {"ours": _short(row["value"]), "low": _short(low), "high": _short(high)}
    return ours | {"verdict": row["verdict"]}


def _short(value: float | None) -> str:
    return Digits("" if value is None else f"{value:.4g}")


def _holds_by_width(row: Row) -> bool:
    """Return whether a number holds only because our interval is wide."""
    counted = row["verdict"] == Verdict.HOLDS and row["expected"] is not None
    return bool(counted) and not close(row["value"], row["expected"], row["within"])
