"""What a candidate costs if an input is wrong, in words: the rows that `regret.regrets` returns."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...results.intervals import USUAL
from ...results.statistics import human

Row = Mapping[str, Any]
LONGER = 1.35  # times the largest value of any run in the scenario as it is: when runs are cut


def cost(world: Row, label: str, unit: str = "") -> str:
    """Say in percent, followed by `unit`, what a candidate costs in a world, from memory or JSON.

    A cut is ">"; "~" is what may be chance. `notes` says so.
    """
    bound, share = world.get("regret_at_least", {}).get(label), world["regret"].get(label)
    if bound is not None:
        return f"> {100 * bound:.1f}{unit}"
    if share is None or math.isnan(share):
        return "not reached"
    chance = share and label in world.get("not_worse", ())
    return f"{'~' if chance else ''}{100 * share:.1f}{unit}"


def notes(rows: Sequence[Row]) -> list[str]:
    """Say what the marks in a table of costs mean, and when runs were cut."""
    said = [cost(row, label) for row in rows for label in row["values"]]
    found = []
    if any(text.startswith("~") for text in said):
        found.append(f"~: not known at {USUAL} to be worse than the best.")
    if cuts := [row["cut"] for row in rows if row.get("cut")]:
        found.append(f">: cut after {human(cuts[0])}, {LONGER:g} times the slowest run as written.")
    if "not reached" in said:
        found.append("Not reached: with some seed, by the end of the run.")
    return found
