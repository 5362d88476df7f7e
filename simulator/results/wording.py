"""Estimates over seeds in words: the value, what is estimated, and its interval in one unit."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .intervals import LEVEL, MEDIAN, USUAL, Estimate, stated
from .statistics import PREFIXED, number, prefixed, time_unit, with_unit

NO_GAIN = "no higher"


def amount(estimate: Estimate, unit: str, size: float = 1.0) -> str:
    """Format a value times `size`: "1.85 d (90 %: 1.83 to 1.88 d)"."""
    whole = replace(estimate, value=estimate.value * size)
    if estimate.interval is None:
        return with_unit(whole.value, unit)
    low, high = (end * size for end in estimate.interval)
    value, within = (
        with_unit(whole.value, unit),
        format_interval(replace(whole, interval=(low, high)), unit),
    )
    same = with_unit(low, unit) == with_unit(high, unit) == value  # such as a price of a fixed time
    return value if same else f"{value} ({kind(estimate)}: {within})"


def of_one(row: Mapping[str, Any], quantity: str) -> Estimate:
    """Return an estimate of a row, with the interval of one run if there is one."""
    estimate, ends = stated(row[quantity]), (row.get("interval90") or {}).get(quantity)
    return estimate.by_model(*span(ends)) if ends and ends[0] is not None else estimate


def above(share: float, interval: Sequence[float] | None) -> str:
    """Format a relative difference in per cent: "+0.35% (-0.06 to +0.74)".

    A gain within the error is none: "no higher (-0.41 to +0.25)".
    """
    ends = " to ".join(f"{100 * end:+z.2f}" for end in interval or ())
    gain = bool(interval) and share < 0 < max(interval or (0.0,))
    return (NO_GAIN if gain else f"{share:+z.2%}") + (f" ({ends})" if ends else "")


def level(estimate: Estimate) -> str:
    """Return the level that an interval attains: "90 %", "87.5 %"."""
    return f"{100 * (estimate.level or LEVEL):.3g} %"


def format_interval(estimate: Estimate, unit: str) -> str:
    """Format the ends of an interval in the unit of its value: "12.0 to 14.2 s"."""
    if estimate.interval is None:
        return "-"
    size, name = _scale(estimate.value, unit)
    low, high = (edge / size for edge in estimate.interval)
    if math.isinf(high):
        return f"{number(low)}{name} or more"
    return f"{number(low)} to {number(high)}{name}"


def span(interval: Sequence[float | None]) -> tuple[float, float]:
    """Return the ends of an interval as JSON has it, where an infinite one is None."""
    low, high = (math.inf if end is None else end for end in interval)
    return low, high


def kind(estimate: Estimate) -> str:
    """Return the kind of an interval for a heading: "90 %", "median, 90 %"."""
    return f"{estimate.of}, {level(estimate)}" if estimate.of == MEDIAN else level(estimate)


def usual(estimates: Iterable[Estimate]) -> str:
    """Return the kind of a column's intervals; `USUAL` if they differ."""
    kinds = {kind(estimate) for estimate in estimates if estimate.interval}
    return kinds.pop() if len(kinds) == 1 else USUAL if kinds else ""


def cell(estimate: Estimate, unit: str, column: str = USUAL) -> str:
    """Format an estimate for a column: "13.1 s (12.0–14.2)".

    An interval of another kind says which.
    """
    if not math.isfinite(estimate.value):
        return "-"
    size, name = _scale(estimate.value, unit)
    value = f"{number(estimate.value / size)}{name}"
    if estimate.interval is None:
        return value
    low, high = (edge / size for edge in estimate.interval)
    within = f"{number(low)}–{number(high)}" if math.isfinite(high) else f"> {number(low)}"
    of = "" if kind(estimate) == column else f"{kind(estimate)}: "
    return f"{value} ({of}{within})"


def qualified(estimate: Estimate, unit: str, column: str = USUAL) -> str:
    """Format an interval for a column, with its kind if that is another."""
    ends = format_interval(estimate, unit)
    return f"{ends} ({kind(estimate)})" if estimate.interval and kind(estimate) != column else ends


def difference(gap: Estimate, unit: str) -> str:
    """Format a paired difference in one unit: "1.20 s (0.80 to 1.60)"."""
    size, name = _scale(max(map(abs, [gap.value, *(gap.interval or ())])), unit)
    value = f"{number(gap.value / size)}{name}"
    if gap.interval is None:
        return value
    low, high = (number(end / size) for end in gap.interval)
    return f"{value} ({low} to {high})"


def _scale(value: float, unit: str) -> tuple[float, str]:
    """Return the unit to show a number in: its size, and its name after a space."""
    if unit in PREFIXED:
        size, prefix = prefixed(value)
        return size, f" {prefix}{unit}"
    if unit != "s":
        return (1e3, " k") if not unit and value >= 1e5 else (1.0, f" {unit}".rstrip())
    size, name = time_unit(value)
    return size, f" {name}"
