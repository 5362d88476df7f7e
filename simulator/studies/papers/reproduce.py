"""Check what papers claim: `paceline reproduce`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...results import store
from ...results.statistics import jsonable
from .. import executors, papers
from ..execution import Execution, Progress, cores
from . import page
from .claim import Claim, Paper, counts
from .measures import Lab

Row = dict[str, Any]
Say = Callable[[str], None]


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
    None) shows the claims of this call. Raises InputError.
    """
    chosen = [papers.paper(name) for name in names]
    jobs = cores() if jobs is None else jobs
    execution = Execution(jobs=jobs)
    with store.KeptRuns(Path(out)) as kept, executors.start(execution) as executor:
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
        kept.replace({}, {"claims": rows})
        if report is not None:
            page.write(Path(report), rows, () if timing else chosen, lab)
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
