"""Check what papers claim: `paceline reproduce`."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from typing_extensions import TypedDict  # typing's own is not enough for pydantic before 3.12

from ...errors import InputError
from ...results import store
from ...results.documents import Number, Pair, demand_shape
from ...results.statistics import jsonable
from .. import executors, papers
from ..execution import Execution, Progress, cores
from . import page
from .claim import Claim, Paper, counts
from .lab import Lab

Row = dict[str, Any]
Say = Callable[[str], None]


class Answer(TypedDict):
    """The result of measuring a claim."""

    value: Number
    ci95: Pair
    verdict: str
    note: str


class Assumed(Answer):
    """The result under another assumption."""

    assumption: str
    sets: list[str]


class Claimed(Answer):
    """A claim that was checked."""

    paper: str
    claim: str
    kind: Literal["printed", "fitted", "derived", "definition", "added"]
    place: str
    basis: str
    says: str
    why: str
    unit: str
    expected: Number
    given_by: Literal["paper", "formula", "notes"]
    within: Number
    neutral: Number
    below: bool
    seeds: Literal["all", "few"]
    sets: list[str]
    sensitivity: list[Assumed]


class Checked(TypedDict):
    """The shape of claims.json."""

    claims: list[Claimed]


def reproduce(  # noqa: PLR0913 - the options of the command
    names: Sequence[str] = papers.NAMES,
    *,
    full: bool = False,
    timing: bool = False,
    overrides: Sequence[str] = (),
    jobs: int | None = None,
    out: Path | str = Path("runs/reproduce"),
    report: Path | str | None = Path("docs/evidence"),
    progress: Progress | None = None,
    say: Say | None = None,
) -> dict[str, Any]:
    """Check the claims of the papers named, and write the page; return the command's document.

    With few seeds, or all that the scenarios ask for (`full`); `timing`: only claims about time,
    which take seconds. `overrides`: texts "table.key=value" for the scenarios that train, to give
    them other data. `out` keeps every finished run: the same call resumes, and one of more
    seeds begins with those. The page (`reproduction.md`, figures beside it; none if `report` is
    None) shows what is known of all papers, from this call and those before. Raises InputError.
    """
    chosen = [papers.paper(name) for name in names]
    jobs = cores() if jobs is None else jobs
    execution = Execution(jobs=jobs)
    with store.KeptRuns(Path(out)) as kept, executors.start(execution) as executor:
        before = _before(kept)
        lab = Lab(full, execution, executor, kept, trained=tuple(overrides))
        todo = [
            (paper, claim)
            for paper in chosen
            for claim in paper.claims
            if claim.timing or not timing
        ]
        rows: list[Row] = []
        for number, (paper, claim) in enumerate(todo):
            if progress:
                progress(number, len(todo))
            if say:
                say(f"{paper.name}: {claim.name}")
            rows.append(_row(paper, claim, lab))
        if progress:
            progress(len(todo), len(todo))
        document = {"claims": _merged(before, rows, partly=timing)}
        kept.replace({}, document)
        if report is not None:
            page.write(Path(report), document["claims"], () if timing else chosen, lab)
        return {"claims": rows, "summary": counts(rows)}


def _row(paper: Paper, claim: Claim, lab: Lab) -> Row:
    """Return a claim's row in claims.json, which the page is written from."""
    return {
        "paper": paper.name,
        "claim": claim.name,
        "expected": claim.expected,
        **_answer(claim, lab),
        "kind": str(claim.kind),
        "place": claim.place,
        "basis": claim.basis,
        "says": claim.says,
        "why": claim.why,
        "unit": claim.unit,
        "given_by": claim.given_by,
        "within": claim.within if claim.expected is not None else None,
        "neutral": claim.neutral,
        "below": claim.falling,
        "seeds": "all" if lab.full else "few",
        "sets": [*lab.trained],
        "sensitivity": [
            {"assumption": assumed.what, "sets": [*assumed.sets]}
            | _answer(claim, lab.but(assumed.sets))
            for assumed in claim.assumptions
        ],
    }


def _answer(claim: Claim, lab: Lab) -> Row:
    finding = claim.measure(lab)
    return {
        "value": jsonable(finding.value),
        "ci95": jsonable(finding.ci95),
        "verdict": str(claim.verdict(finding)),
        "note": finding.note,
    }


def _before(kept: store.KeptRuns) -> list[Row]:
    """Return the rows of earlier calls. Raises InputError where claims.json cannot be read."""
    file = kept.path / kept.whole
    if not file.exists():
        return []
    document = store.read(kept.path, kept.whole)
    try:
        demand_shape(Checked, document)
    except ValueError as error:
        raise InputError(
            f"{file}: not written by Paceline ({error}); remove it, or choose another --out"
        ) from None
    return list(document["claims"])


def _merged(before: Iterable[Row], rows: Sequence[Row], *, partly: bool) -> list[Row]:
    """Merge rows into those `before`, by paper; `partly`: keep other rows of the same paper."""
    fresh = {(row["paper"], row["claim"]) for row in rows}
    anew = set() if partly else {row["paper"] for row in rows}
    old = [
        row
        for row in before
        if row["paper"] not in anew and (row["paper"], row["claim"]) not in fresh
    ]
    order = {name: place for place, name in enumerate(papers.NAMES)}
    return sorted([*old, *rows], key=lambda row: order.get(row["paper"], len(order)))
