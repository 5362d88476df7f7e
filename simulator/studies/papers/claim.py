"""What a paper claims, and what became of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from paceline.simulator.results.statistics import interval
from paceline.simulator.studies.papers.lab import Lab

if TYPE_CHECKING:  # matplotlib takes half a second to import
    from matplotlib.figure import Figure


class Verdict(StrEnum):
    """What is said of a claim."""

    HOLDS = "holds"
    IN_SIGN = "holds in sign"
    FAILS = "does not hold"
    INCONSISTENT = "inconsistent in the paper"


@dataclass(frozen=True)
class Finding:
    """What our runs say: `value`, its 95 % interval over seeds, and numbers that explain it.

    Without an interval the value is exact, or of runs that know no chance.
    """

    value: float
    ci95: tuple[float, float] | None = None
    note: str = ""


@dataclass(frozen=True)
class Assumption:
    """Something that a paper leaves open, chosen otherwise: overrides of every scenario."""

    what: str
    sets: tuple[str, ...]


@dataclass(frozen=True)
class Claim:
    """One claim: `says` what the paper says, `measure` how it is checked, `why` what is behind it.

    `expected` is the paper's number, None where the paper orders and does not count; `within`: the
    relative error up to which ours is the same. `neutral` is the value that would mean "no effect":
    ours must lie above it (or `below` it) for the claim to hold in sign. `inconsistent`: other
    claims of the paper contradict it, as the arithmetic of what is found shows. `timing`: it takes
    no learning, and seconds.
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
            raise ValueError(f"{self.name}: what would contradict it? give expected, or neutral")

    def verdict(self, found: Finding) -> Verdict:
        """What `found` says of the claim.

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
    """A paper: its claims, and figures redrawn, each by its file's name with a caption.

    `settings`: what stands for the paper's networks, data and machines, in a paragraph.
    """

    name: str
    title: str
    source: str
    settings: str
    claims: tuple[Claim, ...]
    figures: Mapping[str, tuple[str, Callable[[Lab], "Figure"]]]


def mean(values: Sequence[float] | np.ndarray, note: str = "") -> Finding:
    """The mean of one value per seed, with Student's interval."""
    found = interval(values)
    return Finding(float(np.mean(values)), (found[0], found[1]) if found else None, note)
