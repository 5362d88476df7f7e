"""Format estimates over seeds: value, kind of estimate, and interval in one unit.

It also words reasons, of a verdict and of the time that runs take.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from ..inputs import untrusted
from ..programs.program import BOUND
from ..scenario.cluster import DAY
from .intervals import LEVEL, MEDIAN, USUAL, Estimate, stated
from .statistics import Unit, number, percent, scale, with_unit

NO_GAIN = "no higher"
NAMED = 2  # most algorithms that a sentence names; the others are counted
SENTENCES = untrusted.packaged(__file__, "reasons.toml")
"""A sentence for each reason, by its code, with the names of its numbers."""


def _gap(numbers: Mapping[str, Any]) -> str:
    """Format an amount of a JSON document."""
    gap = {"mean": numbers["value"], "interval": numbers.get("interval90")}
    return difference(stated(gap), numbers["unit"])


def all_of(labels: Sequence[str], last: str = "and") -> str:
    """Return "a, b and c", or the first few and the number of others."""
    if len(labels) > NAMED + 1:
        labels = [*labels[:NAMED], f"{len(labels) - NAMED} others"]
    first = ", ".join(labels[:-1])
    return f"{first} {last} {labels[-1]}" if first else "".join(labels)


FORMATS: Mapping[str, Callable[[Any], str]] = {
    **dict.fromkeys(("margin", "most"), lambda share: f"{100 * share:.2g} %"),
    **dict.fromkeys(("gap", "worth", "low", "high"), _gap),
    **dict.fromkeys(("share", "lost", "down"), percent),
    **dict.fromkeys(("times", "crashes"), "{:.3g}".format),
    "labels": all_of,
}


class Reason(NamedTuple):
    """A reason for or against an answer: its code in `SENTENCES`, and its numbers."""

    code: str
    numbers: Mapping[str, Any] = MappingProxyType({})

    def __str__(self) -> str:
        """Return the reason in words."""
        words = {
            key: FORMATS[key](value) if key in FORMATS else value
            for key, value in self.numbers.items()
        }
        return str(SENTENCES[self.code]).format(bound=BOUND, **words)

    def json(self) -> dict[str, Any]:
        """Return the code and the numbers."""
        return {"code": self.code, **self.numbers}

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> "Reason":
        """Read a reason from a document."""
        return cls(row["code"], {key: value for key, value in row.items() if key != "code"})


def amount(estimate: Estimate, unit: str) -> str:
    """Format a value with its interval: "1.85 d (90 %: 1.83 to 1.88 d)"."""
    value, ends = with_unit(estimate.value, unit), {with_unit(end, unit) for end in estimate.span}
    if ends == {value}:  # such as the price of a fixed time
        return value
    return f"{value} ({kind(estimate)}: {format_interval(estimate, unit)})"


def above(share: float, interval: Sequence[float] | None) -> str:
    """Format a relative difference in per cent: "+0.35% (-0.06 to +0.74)".

    A gain within the error counts as none: "no higher (-0.41 to +0.25)".
    """
    ends = " to ".join(f"{100 * end:+z.2f}" for end in interval or ())
    gain = bool(interval) and share < 0 < max(interval or (0.0,))
    return (NO_GAIN if gain else f"{share:+z.2%}") + (f" ({ends})" if ends else "")


def above_reference(key: str, ends: str, row: Mapping[str, Any]) -> str:
    """Format the loss above that of data-parallel training, which a row has under `key`."""
    share = row.get(key)
    return above(share["value"], share[ends]) if share else "-"


Judged = tuple[str, str, Callable[[Mapping[str, Any]], Estimate]]


def judged(rows: Sequence[Mapping[str, Any]]) -> Judged | None:
    """Return the measure that ranks a search after equal tokens: words, unit, estimate of a row.

    Return None if the search ranks by its value itself.
    """
    currency = rows[0].get("currency")
    money = f"money and time ({currency})" if currency else "money and time"
    kinds = {"weighed": (money, "", 1.0), "at_equal_loss": ("time at equal loss", "s", DAY)}
    key = next((key for key in kinds if any(row.get(key) for row in rows)), None)
    if key is None:
        return None
    words, unit, times = kinds[key]

    def estimate(row: Mapping[str, Any]) -> Estimate:
        return stated(row.get(key) or {"value": None}, "value").moved(lambda value: times * value)

    return words, unit, estimate


def format_interval(estimate: Estimate, unit: str) -> str:
    """Format the ends of an interval in the unit of its value: "12.0 to 14.2 s"."""
    if estimate.interval is None:
        return "-"
    size, name = scale(estimate.value, unit)
    low, high = (edge / size for edge in estimate.interval)
    if math.isinf(high):
        return f"{number(low)}{name} or more"
    return f"{number(low)} to {number(high)}{name}"


def kind(estimate: Estimate) -> str:
    """Return the kind of an interval for a heading: "90 %", "median, 90 %"."""
    level = f"{100 * (estimate.level or LEVEL):.3g} %"
    return f"{estimate.of}, {level}" if estimate.of == MEDIAN else level


def usual(estimates: Iterable[Estimate]) -> str:
    """Return the kind of a column's intervals; `USUAL` if they differ."""
    kinds = {kind(estimate) for estimate in estimates if estimate.interval}
    return kinds.pop() if len(kinds) == 1 else USUAL if kinds else ""


def cell(estimate: Estimate, unit: Unit, column: str = USUAL) -> str:
    """Format an estimate for a column: "13.1 s (12.0–14.2)".

    The cell names the kind of interval if that differs from `usual`. `unit`: a unit, or the size
    and the name of one that all cells of a column share.
    """
    if not math.isfinite(estimate.value):
        return "-"
    size, name = scale(estimate.value, unit)
    value = f"{number(estimate.value / size)}{name}"
    low, high = (number(edge / size) for edge in estimate.span)
    if f"{low}{name}" == f"{high}{name}" == value:
        return value
    within = f"{low}–{high}" if math.isfinite(estimate.span[1]) else f"> {low}"
    of = "" if kind(estimate) == column else f"{kind(estimate)}: "
    return f"{value} ({of}{within})"


def difference(gap: Estimate, unit: str) -> str:
    """Format a paired difference in one unit: "1.20 s (0.80 to 1.60)"."""
    numbers = gap.value, *gap.span
    size, name = scale(max(map(abs, numbers)), unit)
    middle, low, high = (number(end / size) for end in numbers)
    return f"{middle}{name}" + (f" ({low} to {high})" if {low, high} != {middle} else "")
