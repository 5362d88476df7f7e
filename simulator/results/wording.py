"""Estimates over seeds in words: the value, what is estimated, and its interval in one unit."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .intervals import LEVEL, MEDIAN, USUAL, Estimate, stated
from .statistics import PREFIXED, number, prefixed, time_unit, with_unit


def amount(found: Estimate, unit: str, size: float = 1.0) -> str:
    """Return a value times `size` with its interval: "1.85 d (90 %: 1.83 to 1.88 d)"."""
    whole = replace(found, value=found.value * size)
    if found.interval is None:
        return with_unit(whole.value, unit)
    low, high = (end * size for end in found.interval)
    value, within = (
        with_unit(whole.value, unit),
        format_interval(replace(whole, interval=(low, high)), unit),
    )
    same = with_unit(low, unit) == with_unit(high, unit) == value  # such as a price of a fixed time
    return value if same else f"{value} ({kind(found)}: {within})"


def of_one(row: Mapping[str, Any], quantity: str) -> Estimate:
    """Return an estimate in a row of `simulate`, with the interval of one run if it has that."""
    found, known = stated(row[quantity]), (row.get("interval90") or {}).get(quantity)
    return found.by_model(*span(known)) if known and known[0] is not None else found


def above(share: float, interval: Sequence[float] | None) -> str:
    """Return a share above another, with its interval in per cent: "+0.35% (-0.06 to +0.74)".

    A gain within the error is none: "no higher (-0.41 to +0.25)".
    """
    ends = " to ".join(f"{100 * end:+z.2f}" for end in interval or ())
    gain = bool(interval) and share < 0 < max(interval or (0.0,))
    return ("no higher" if gain else f"{share:+z.2%}") + (f" ({ends})" if ends else "")


def level(found: Estimate) -> str:
    """Return the level that an interval attains: "90 %", "87.5 %"."""
    return f"{100 * (found.level or LEVEL):.3g} %"


def format_interval(found: Estimate, unit: str) -> str:
    """Return the ends of an estimate's interval in the unit of its value: "12.0 to 14.2 s"."""
    if found.interval is None:
        return "-"
    size, name = _scale(found.value, unit)
    low, high = (edge / size for edge in found.interval)
    if math.isinf(high):
        return f"{number(low)}{name} or more"
    return f"{number(low)} to {number(high)}{name}"


def span(interval: Sequence[float | None]) -> tuple[float, float]:
    """Return the ends of an interval as JSON has it, where an infinite one is None."""
    low, high = (math.inf if end is None else end for end in interval)
    return low, high


def kind(found: Estimate) -> str:
    """Return what an interval is, for the heading of a column: "90 %" of a mean, or in full."""
    return f"{found.of}, {level(found)}" if found.of == MEDIAN else level(found)


def usual(every: Iterable[Estimate]) -> str:
    """Return the kind of all intervals of a column, `USUAL` if they differ, "" without any."""
    kinds = {kind(each) for each in every if each.interval}
    return kinds.pop() if len(kinds) == 1 else USUAL if kinds else ""


def cell(found: Estimate, unit: str, column: str = USUAL) -> str:
    """Return an estimate for a column of intervals of the kind `column`: "13.1 s (12.0–14.2)".

    An interval of another kind says which.
    """
    if not math.isfinite(found.value):
        return "-"
    size, name = _scale(found.value, unit)
    said = f"{number(found.value / size)}{name}"
    if found.interval is None:
        return said
    low, high = (edge / size for edge in found.interval)
    within = f"{number(low)}–{number(high)}" if math.isfinite(high) else f"> {number(low)}"
    return f"{said} ({within})" if kind(found) == column else f"{said} ({kind(found)}: {within})"


def qualified(found: Estimate, unit: str, column: str = USUAL) -> str:
    """Return the interval for a column of the kind `column`, and its own kind if that differs."""
    said = format_interval(found, unit)
    return f"{said} ({kind(found)})" if found.interval and kind(found) != column else said


def difference(found: Estimate, unit: str) -> str:
    """Return a paired difference with its interval, in one unit: "1.20 s (0.80 to 1.60)"."""
    size, name = _scale(max(map(abs, [found.value, *(found.interval or ())])), unit)
    value = f"{number(found.value / size)}{name}"
    if found.interval is None:
        return value
    low, high = (number(end / size) for end in found.interval)
    return f"{value} ({low} to {high})"


def _scale(value: float, unit: str) -> tuple[float, str]:
    """Return the unit in which a number is said, as (its size, its name after a space)."""
    if unit in PREFIXED:
        size, prefix = prefixed(value)
        return size, f" {prefix}{unit}"
    if unit != "s":
        return (1e3, " k") if not unit and value >= 1e5 else (1.0, f" {unit}".rstrip())
    size, name = time_unit(value)
    return size, f" {name}"
