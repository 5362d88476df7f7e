"""Compute the regret of a choice in scenarios that differ a little from the given one."""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from ...inputs.units import to_si
from ...results.intervals import USUAL
from ...results.order import Order
from .objective import Score, TuningObjective
from .parts import scaled
from .race import Contender, Race
from .ranking import order_of

STEP = 0.2
INPUTS = ("latency", "bandwidth")
CHANGES = [("", 0.0), *((what, by) for what in INPUTS for by in (-STEP, STEP))]
Table = dict[str, Any]
Row = Mapping[str, Any]


def world(table: Mapping[str, Any], what: str, by: float) -> Table:
    """Return a scenario's table with `by` times the latency or the bandwidth."""
    changed = deepcopy(dict(table))
    lines = [changed["network"], *changed["network"].get("link", ())]
    if what == "latency":
        for line in lines:
            keys = line.keys() & {"latency", "jitter", "duration"}
            line.update({key: scaled(line[key], by) for key in keys})
    elif what == "bandwidth":
        for line in (one for one in [*lines, changed.get("server", {})] if "bandwidth" in one):
            line["bandwidth"] = f"{to_si(line['bandwidth'], 'bandwidth') * by!r} B/s"
    return changed


def regrets(race: Race, contenders: Sequence[Contender], order: Order) -> list[dict[str, Any]]:
    """Return the cost of every contender in every world; the scenario itself comes first.

    In other worlds one of `INPUTS` is 20 % lower or higher. `order`: the order in the scenario
    itself, which has more configurations. `_row` describes a row.
    """
    table = race.space.scenario.table
    worlds = [world(table, what, 1 + by) for what, by in CHANGES]
    # Without an effect of the change, a world has the scores of the scenario itself.
    pairs = [
        (place, rival)
        for place, changed in enumerate(worlds)
        if changed != table
        for rival in contenders
    ]
    changed_worlds = [race.space.world(one.candidate, changed=worlds[at]) for at, one in pairs]
    scores = race.runner([(one, seed) for one in changed_worlds for seed in race.seeds])
    count = len(race.seeds)
    made = {pair: scores[at * count : (at + 1) * count] for at, pair in enumerate(pairs)}
    rows = []
    for place, (what, by) in enumerate(CHANGES):
        of_world = {one.label: made.get((place, one), one.scores) for one in contenders}
        rows.append(_row(race.objective, of_world) | {"input": what or None, "change": by})
    rows[0] |= {"not_worse": [rival.label for rival in contenders if rival.label in order.open]}
    return rows


def _row(objective: TuningObjective, scores: Mapping[str, Sequence[Score]]) -> dict[str, Any]:
    """Return the cost of every contender in one world, by label.

    `regret` is a share of the best of `values`; nan if some run missed the target. `first`: the
    best; `not_worse`: labels that are not worse than it at 90 %.
    """
    order = order_of(scores, objective)
    values = {label: order.value(label) for label in scores}
    best = values[order.best]
    some = math.isfinite(best) and best > 0
    regret = {k: x / best - 1 if some and math.isfinite(x) else math.nan for k, x in values.items()}
    return {
        "values": values,
        "regret": regret,
        "first": order.best if math.isfinite(best) else None,
        "not_worse": [label for label in scores if label in order.open],
    }


def cost(row: Row, label: str, unit: str = "") -> str:
    """Format a candidate's regret in a row in per cent, followed by `unit`.

    "~" marks a regret that may be chance; `notes` explains this.
    """
    share = row["regret"].get(label)
    if share is None or math.isnan(share):
        return "not reached"
    chance = share and label in row.get("not_worse", ())
    return f"{'~' if chance else ''}{100 * share:.1f}{unit}"


def notes(rows: Sequence[Row]) -> list[str]:
    """Explain the marks in a table of costs."""
    texts = [cost(row, label) for row in rows for label in row["values"]]
    marks = []
    if any(text.startswith("~") for text in texts):
        marks.append(f"~: may be as good as the best at {USUAL}.")
    if "not reached" in texts:
        marks.append("Not reached: some seed missed the target by the end of the run.")
    return marks
