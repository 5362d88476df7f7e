"""Claims of papers, and verdicts on them by our runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from paceline.simulator.results.figures.style import Figure
from paceline.simulator.results.intervals import signed
from paceline.simulator.studies.papers.lab import Lab


class Verdict(StrEnum):
    """The verdict on a claim."""

    HOLDS = "holds"
    IN_SIGN = "holds in sign"
    FAILS = "does not hold"
    INCONSISTENT = "inconsistent in the paper"


@dataclass(frozen=True)
class Finding:
    """The result of our runs: `value`, its 95 % interval over seeds, and a note that explains it.

    Without an interval the value is exact, or from runs without randomness.
    """

    value: float
    ci95: tuple[float, float] | None = None
    note: str = ""


@dataclass(frozen=True)
class Assumption:
    """Another choice for a setting that the paper leaves open: overrides of every scenario."""

    what: str
    sets: tuple[str, ...]


@dataclass(frozen=True)
class Claim:
    """One claim: `says` states it, `measure` checks it by runs, `why` explains it.

    `expected` is the paper's number, None where the paper only gives an order; `within`: the
    relative error up to which ours counts as equal. `neutral` is the value that means "no effect":
    ours must lie above it (or `below` it) for the claim to hold in sign. `inconsistent`: other
    claims of the paper contradict this one. `timing`: it needs no learning and takes seconds.
    """

    name: str
    says: str
    measure: Callable[[Lab], Finding]
    why: str
    expected: float | None = None
    within: float = 0.05
    neutral: float | None = None
    below: bool = False
    inconsistent: bool = False
    timing: bool = False
    unit: str = ""
    assumptions: tuple[Assumption, ...] = ()

    def __post_init__(self) -> None:
        if self.expected is None and self.neutral is None:
            raise ValueError(f"{self.name}: nothing could contradict it; give expected or neutral")

    def verdict(self, found: Finding) -> Verdict:
        """Return the verdict on the claim by `found`.

        A number holds within its tolerance. An order holds where the whole interval lies on its
        side of `neutral`; where only the value does, it holds in sign, as does a number that is
        missed on the right side.
        """
        if self.expected is not None and np.isclose(
            found.value, self.expected, rtol=self.within, atol=0
        ):
            return Verdict.HOLDS
        if self.inconsistent:
            return Verdict.INCONSISTENT
        values = (found.value, *(found.ci95 or ()))
        if self.neutral is None or not self._right(found.value):
            return Verdict.FAILS
        sure = all(map(self._right, values))
        return Verdict.HOLDS if sure and self.expected is None else Verdict.IN_SIGN

    def _right(self, value: float) -> bool:
        assert self.neutral is not None
        return value < self.neutral if self.below else value > self.neutral


@dataclass(frozen=True)
class Paper:
    """A paper: its claims, and its figures redrawn, by file name with their captions.

    `settings`: a paragraph on what we use instead of the paper's networks, data and machines.
    """

    name: str
    title: str
    source: str
    settings: str
    claims: tuple[Claim, ...]
    figures: Mapping[str, tuple[str, Callable[[Lab], Figure]]]


def mean(values: Sequence[float] | np.ndarray, note: str = "") -> Finding:
    """Return the mean of one value per seed, with Student's interval."""
    found = signed(values)
    return Finding(found.value, found.interval, note)
