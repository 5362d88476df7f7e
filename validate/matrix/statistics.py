"""Statistics of the validation matrix: aims and whether they were met, ranks, noise, terms."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..calibration.overheads import TERMS
from ..comparison.quantities import PACE, TARGET, median
from . import cells, left_out
from .cells import Cell, explained

LOW, HIGH = 0.80, 0.98  # acceptable coverage of 90 % intervals
REGRET = 0.05
OFTEN = 0.9  # required share of the conditions with a good pick

Row = dict[str, Any]


@dataclass(frozen=True)
class Aim:
    """A number with a required range, `least` to `most`; `of`: the values that it summarizes."""

    what: str
    value: float | None
    of: str
    least: float = -math.inf
    most: float = math.inf
    percent: bool = True

    @property
    def met(self) -> bool | None:
        """Whether the value is in its range; None without a value."""
        return None if self.value is None else self.least <= self.value <= self.most

    @property
    def limits(self) -> str:
        """Return the range in words."""
        low, high = (self._text(each) for each in (self.least, self.most))
        if low and high:
            return f"{low} to {high}"
        return f"at least {low}" if low else f"at most {high}"

    @property
    def shown(self) -> str:
        """Return the value in words."""
        return "-" if self.value is None else self._text(self.value)

    def _text(self, value: float) -> str:
        if not math.isfinite(value):
            return ""
        return f"{100 * value:.3g} %" if self.percent else f"{value:.2f}"

    def json(self) -> Row:
        """Return its row of the document."""
        limits = [each if math.isfinite(each) else None for each in (self.least, self.most)]
        stated = {"what": self.what, "value": self.value, "of": self.of}
        return stated | {"limits": limits, "met": self.met}


def conditions(found: Sequence[Cell]) -> list[Row]:
    """Return one row per condition: rank correlations of its algorithms, and regret of the pick.

    `kendall`: of the paired prediction, the independent one, and the one with the quadratic.
    """
    rows = []
    for name in dict.fromkeys(cell["condition"] for cell in found):
        own = [cell for cell in found if cell["condition"] == name]
        cost = cells.regret(own)
        rows.append(
            {
                "condition": name,
                "counted": sum(cell["counted"] for cell in own),
                "of": len(own),
                "kendall": {
                    "paired": cells.kendall(own, TARGET),
                    "independent": cells.kendall(own, "independent", TARGET),
                    "quadratic": cells.kendall(own, "quadratic"),
                },
                "regret": cost,
                "good": cost
                and bool(cost["among"] and cost["value"] is not None and cost["value"] <= REGRET),
            }
        )
    return rows


def aims(found: Sequence[Cell]) -> list[Aim]:
    """Return every aim, over the cells that count."""
    counted = [cell for cell in found if cell["counted"]]
    near = [cell for cell in counted if cell["network"] != "kernel"]
    kernel = [cell for cell in counted if cell["network"] == "kernel"]
    independent = [cell["independent"] for cell in near]
    pace = "seconds per step"
    rows = conditions(found)
    picks = [row["good"] for row in rows if row["good"] is not None]
    return [
        _middle(f"{pace}, same delays: median", near, PACE, 0.007),
        _tail(f"{pace}, same delays: 95th percentile", near, PACE, 0.02),
        _middle(f"{pace}, independent draws: median", independent, PACE, 0.02),
        _middle(f"{pace}, kernel's links: median", kernel, PACE, 0.02),
        _explained("excess over nominal explained", near),
        _explained("excess over nominal explained, kernel's links", kernel),
        *_times("time to target, real gradients", near),
        *_times("time to target, kernel's links", kernel),
        *_coverages(counted),
        _middle("time to target, quadratic: median", counted, "quadratic", 0.15),
        _tau("Kendall's tau, real gradients: median", rows, "paired", 0.95),
        _tau("Kendall's tau, quadratic: median", rows, "quadratic", 0.85),
        Aim(
            f"regret at most {REGRET:.0%}, best among ties or first two",
            sum(picks) / len(picks) if picks else None,
            f"{len(picks)} conditions",
            least=OFTEN,
        ),
    ]


def _times(what: str, found: Sequence[Cell]) -> list[Aim]:
    """Return the aims for times to target with real gradients and the same delays."""
    alike = [cell for cell in found if not cell["asynchronous"]]
    others = [cell for cell in found if cell["asynchronous"]]
    return [
        _middle(f"{what}, synchronous: median", alike, TARGET, 0.01),
        _tail(f"{what}, synchronous: 95th percentile", alike, TARGET, 0.02),
        _middle(f"{what}, asynchronous: median", others, TARGET, 0.03),
        _tail(f"{what}, asynchronous: 95th percentile", others, TARGET, 0.06),
    ]


def errors(found: Sequence[Row], key: str) -> list[float]:
    """Return the absolute relative errors under `key`, leaving out cells without one."""
    return [abs(row[key]["error"]) for row in found if row[key]["error"] is not None]


def _middle(what: str, found: Sequence[Row], key: str, most: float) -> Aim:
    values = errors(found, key)
    return Aim(what, median(values), f"{len(values)} cells", most=most)


def _tail(what: str, found: Sequence[Row], key: str, most: float) -> Aim:
    values = errors(found, key)
    value = float(np.quantile(values, 0.95)) if values else None
    return Aim(what, value, f"{len(values)} cells", most=most)


def _explained(what: str, found: Sequence[Cell]) -> Aim:
    return Aim(what, explained(found), f"{len(found)} cells", least=0.8)


def _coverages(found: Sequence[Cell]) -> list[Aim]:
    """Return the aims for 90 % intervals of programs that were left out."""
    rows = left_out.coverage(found)
    wanted = {
        f"90 % intervals cover {key.replace('_', ' ')}": (rows[0], key) for key in (PACE, TARGET)
    }
    for row in rows:
        if row["what"] in ("network", "family"):
            wanted[f"90 % intervals cover both, {row['what']} {row['which']}"] = row, "both"
    found_aims = []
    for what, (row, key) in wanted.items():
        held, of = row[key]
        value = held / of if of else None
        found_aims.append(Aim(what, value, f"{of} values", least=LOW, most=HIGH))
    return found_aims


def _tau(what: str, rows: Sequence[Row], key: str, least: float) -> Aim:
    values = [row["kendall"][key] for row in rows if row["kendall"][key] is not None]
    return Aim(what, median(values), f"{len(values)} conditions", least=least, percent=False)


def by_term(found: Sequence[Cell]) -> list[Row]:
    """Return, by kind of network and term, the profile's error on held-out runs.

    `off`: median difference, seconds per event; `per_step`: median absolute seconds per worker's
    step; `largest`: in how many cells this term has the largest error.
    """
    rows = []
    counted = [cell for cell in found if cell["counted"]]
    for network in dict.fromkeys(cell["network"] for cell in counted):
        own = [cell for cell in counted if cell["network"] == network]
        most = [cells.attribution(cell) for cell in own]
        for name in ("step", *TERMS):
            terms = [cell["terms"][name] for cell in own if name in cell["terms"]]
            if terms:
                rows.append(
                    {
                        "network": network,
                        "term": name,
                        "cells": len(terms),
                        "profile": median([each["profile"] for each in terms]),
                        "off": median([each["measured"] - each["profile"] for each in terms]),
                        "per_step": median([abs(each["per_step"]) for each in terms]),
                        "largest": most.count(name),
                    }
                )
    return rows


def noise(equal: Sequence[Row], apart: Sequence[Row]) -> list[Row]:
    """Return relative standard deviations of equal runs, and of runs that differ in their seed.

    Each row of the arguments: `program`, `quantity`, `value` of one run. If any run lacks a value,
    the deviation is None.
    """
    rows = []
    for program, quantity in dict.fromkeys((row["program"], row["quantity"]) for row in equal):
        spread = {}
        for name, every in (("equal", equal), ("seeds", apart)):
            values = [
                row["value"]
                for row in every
                if (row["program"], row["quantity"]) == (program, quantity)
            ]
            known = len(values) > 1 and all(each is not None for each in values)
            spread[name] = float(np.std(values, ddof=1) / np.mean(values)) if known else None
            spread[f"{name}_runs"] = len(values)
        rows.append({"program": program, "quantity": quantity, **spread})
    return rows
