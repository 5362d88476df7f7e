"""Claims of papers, and verdicts on them by our runs."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import numpy as np

from ...results.intervals import signed


class Verdict(StrEnum):
    """The verdict on a claim."""

    HOLDS = "holds"
    IN_SIGN = "holds in sign"
    FAILS = "does not hold"
    UNDECIDED = "undecided"
    INCONSISTENT = "inconsistent in the paper"


class Kind(StrEnum):
    """The source of a claim's number; only printed numbers test a prediction."""

    PRINTED = "printed"  # the paper prints this number or order, and nothing was fitted to it
    FITTED = "fitted"  # a free parameter was fitted to it, or to its sign or order
    DERIVED = "derived"  # it follows from the paper's stated setting or results
    DEFINITION = "definition"  # true by construction
    NOTES = "notes"  # only course notes state it, which nobody can check here
    ADDED = "added"  # the paper omits the claim or its setting; the basis says why we ask


@dataclass(frozen=True)
class Finding:
    """The result of our runs: a value, its 95 % interval over seeds, and a note.

    Without an interval the value is exact, or from runs without randomness.
    """

    value: float
    ci95: tuple[float, float] | None = None
    note: str = ""


@dataclass(frozen=True)
class Claim:
    """One claim: `says` states it, `measure` checks it by runs, `why` explains it.

    `place`: its place in the paper, such as "figure 5a; section 5". `basis`: the free parameter of
    a fitted claim, the formula of a derived one, the reason why a definition is true, the source of
    an added one. `expected` is the claimed number, None if the paper only gives an order.
    `given_by`: its source, which is the paper, a formula, or the notes named by `basis`. `within`:
    the relative error up to which our number counts as equal. `neutral` is the value that means "no
    effect": an order holds if our number is above it (or `below` it), and a sign holds if both
    numbers are on the same side. `inconsistent`: in our judgement the paper contradicts the claim.
    `timing`: the claim needs no learning and takes seconds. `assumptions`: other choices where the
    paper leaves one open, with `what` and the `sets` of overrides. `stand_in`: for a claim on real
    data, the same claim on a stand-in, as "paper: claim".
    """

    name: str
    says: str
    measure: Callable[[Any], Finding]
    why: str
    kind: Kind = Kind.PRINTED
    place: str = ""
    basis: str = ""
    expected: float | None = None
    given_by: Literal["paper", "formula", "notes"] = "paper"
    within: float = 0.05
    neutral: float | None = None
    below: bool = False
    inconsistent: bool = False
    timing: bool = False
    unit: str = ""
    assumptions: Sequence[Mapping[str, Any]] = ()
    stand_in: str = ""

    def verdict(self, finding: Finding) -> Verdict:
        """Return the verdict on the claim by `finding`.

        A number holds if it lies in our interval, or if our number lies within its tolerance.
        Otherwise the whole interval decides. If all of it lies on the claimed side of `neutral`, an
        order holds, and a missed number holds in sign; if none of it does, neither holds. An
        interval with parts on both sides leaves the claim undecided. (The claimed side of a number
        without `neutral` is its tolerance.)
        """
        low, high = finding.ci95 or (finding.value, finding.value)
        if self.expected is not None and (
            low <= self.expected <= high or close(finding.value, self.expected, self.within)
        ):
            return Verdict.HOLDS
        sides = {self._right(value) for value in (low, finding.value, high)}
        if sides == {True}:
            return Verdict.HOLDS if self.expected is None else Verdict.IN_SIGN
        if self.inconsistent:
            return Verdict.INCONSISTENT
        return Verdict.FAILS if sides == {False} else Verdict.UNDECIDED

    @property
    def falling(self) -> bool:
        """Whether the claimed side of `neutral` lies below."""
        if self.expected is None or self.neutral is None:
            return self.below
        return self.expected < self.neutral

    def _right(self, value: float) -> bool:
        if self.neutral is not None:
            return value < self.neutral if self.falling else value > self.neutral
        return self.expected is not None and close(value, self.expected, self.within)


@dataclass(frozen=True)
class Paper:
    """A paper and its claims.

    `settings`: a paragraph on our substitutes for the paper's networks, data and machines.
    `figures`: figures to draw from a scenario's runs, by file name.
    """

    name: str
    title: str
    source: str
    settings: str
    claims: tuple[Claim, ...]
    figures: Mapping[str, Mapping[str, Any]]


def counts(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Count the claims by kind and verdict; `rows` are those of claims.json."""
    count = Counter((row["kind"], row["verdict"]) for row in rows)
    return {kind: {verdict: count[kind, verdict] for verdict in Verdict} for kind in Kind}


def close(value: float, expected: float, within: float) -> bool:
    """Return whether our number equals the paper's within a relative error."""
    return bool(np.isclose(value, expected, rtol=within, atol=0))


def mean(values: Sequence[float] | np.ndarray, note: str = "") -> Finding:
    """Return the mean of one value per seed, with Student's interval."""
    estimate = signed(values)
    return Finding(round(estimate.value, 9), estimate.ci95, note)  # without rounding errors
