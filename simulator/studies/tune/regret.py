"""Compute the regret of a choice in scenarios that differ a little from the given one."""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from ...distributions.law import BY_NAME
from ...inputs.units import to_si
from ...results.intervals import MEDIAN, USUAL
from ...results.order import Order
from ...results.statistics import human
from .objective import Score, TuningObjective
from .parts import scaled
from .race import Contender, Race
from .ranking import lower_bounds, order_of
from .runner import RunRequest

STEP = 0.2
INPUTS = ("latency", "bandwidth", "straggling")
CHANGES = [("", 0.0), *((what, by) for what in INPUTS for by in (-STEP, STEP))]
LONGER = 1.35  # times the largest value of any run in the scenario itself: when runs are cut
Table = dict[str, Any]
Row = Mapping[str, Any]


def world(table: Mapping[str, Any], what: str, by: float) -> Table:
    """Return a scenario's table with `by` times the latency, the bandwidth or the straggling."""
    changed = deepcopy(dict(table))
    if not what:
        return changed
    lines = [changed["network"], *changed["network"].get("link", ())]
    nodes = [changed["cluster"], *changed["cluster"].get("group", ())]
    changes: dict[str, list[tuple[list[Table], tuple[str, ...], Callable[[Any], Any]]]] = {
        "latency": [(lines, ("latency", "jitter", "duration"), lambda law: scaled(law, by))],
        "bandwidth": [
            (
                [*lines, changed.get("server", {})],
                ("bandwidth",),
                lambda rate: f"{to_si(rate, 'bandwidth') * by!r} B/s",
            )
        ],
        "straggling": [
            (nodes, ("compute",), lambda law: _spread(law, by)),
            (nodes, ("extra",), lambda law: scaled(law, by)),
        ],
    }
    for tables, keys, change in changes[what]:
        for part in tables:
            part.update({key: change(part[key]) for key in keys if key in part})
    return changed


def _spread(law: Any, by: float) -> Any:
    """Return a scenario's distribution with its spread multiplied by `by`."""
    if not isinstance(law, dict):
        return law
    if law["dist"] == "mixture":
        return law | {"components": [_spread(dict(part), by) for part in law["components"]]}
    family = BY_NAME.get(law["dist"])
    if family is None or "file" in law:
        return law
    parameters = {key: law[key] for key in family.model_fields if key in law}
    spread, times = family.model_validate(parameters).spread(by), family.times()
    return law | {key: f"{x!r} s" if key in times else x for key, x in spread.items()}


def regrets(race: Race, contenders: Sequence[Contender], order: Order) -> list[dict[str, Any]]:
    """Return the cost of every contender in every world; the scenario itself comes first.

    In other worlds one of `INPUTS` is 20 % lower or higher. Runs are cut at the same time in every
    world, `LONGER` times the slowest run as written. `order`: the order in the scenario itself,
    which includes configurations given up early. `_row` describes a row.
    """
    worlds = [world(race.space.scenario.table, what, 1 + by) for what, by in CHANGES]
    values = [score.value for rival in contenders for score in rival.scores if score.reached]
    horizon = race.objective.horizon(LONGER * max(values)) if values else math.inf
    cut = float(f"{horizon:.3g}") if horizon < race.space.limit else None
    made = _scores(race, contenders, worlds, cut)
    rows = []
    for place, (what, by) in enumerate(CHANGES):
        of_world = {
            rival.label: made.get((place, rival)) or made.get((0, rival), rival.scores)
            for rival in contenders  # as in the first world if there is nothing to change
        }
        row = _row(race.objective, race.space.limit, of_world, cut)
        rows.append(row | {"input": what or None, "change": by})
    rows[0] |= {"not_worse": [rival.label for rival in contenders if rival.label in order.open]}
    return rows


def _scores(
    race: Race, contenders: Sequence[Contender], worlds: Sequence[Table], cut: float | None
) -> dict[tuple[int, Contender], list[Score]]:
    """Return the scores, by world index, that the race lacks."""
    seeds = tuple(race.seeds)
    whole = [one for one in contenders if one.all_reached and len(one.scores) == len(seeds)]
    pairs = [
        (place, rival)
        for place, changed in enumerate(worlds)
        for rival in contenders
        if (changed != worlds[0] if place else rival not in whole)
    ]
    scores = race.runner([
        RunRequest(race.space.world(rival.candidate, cut, worlds[place]), seeds)
        for place, rival in pairs
    ])  # fmt: skip
    return dict(zip(pairs, scores, strict=True))


def _row(
    objective: TuningObjective, limit: float, scores: Mapping[str, Sequence[Score]],
    cut: float | None,
) -> dict[str, Any]:  # fmt: skip
    """Return the cost of every contender in one world, by label.

    `regret` is a share of the best of `values`; None if some run missed the target.
    `regret_at_least`: its lower bound if runs were cut, after `cut` seconds. `first`: the best;
    `not_worse`: labels that are not worse than it at 90 %.
    """
    order, least = order_of(scores, objective), lower_bounds(scores, objective)
    values = {label: order.value(label) for label in scores}
    best = values[order.best]
    middle = np.median if order.of == MEDIAN else np.mean

    def above(value: float) -> float:
        return value / best - 1 if math.isfinite(value) and best > 0 else math.nan

    bounds = {
        label: max(0.0, above(float(middle(least[label]))))
        for label, runs in scores.items()
        if any(not score.reached and score.ran < limit for score in runs)
        and np.isfinite(least[label]).all()
    }
    return {
        "values": values,
        "regret": {label: above(value) for label, value in values.items()},
        "regret_at_least": bounds,
        "first": order.best if math.isfinite(best) else None,
        "not_worse": [label for label in scores if label in order.open],
        "cut": cut if bounds else None,
    }


def cost(row: Row, label: str, unit: str = "") -> str:
    """Format a candidate's regret in a row in per cent, followed by `unit`.

    ">" marks a cut run, "~" a regret that may be chance; `notes` explains both.
    """
    bound, share = row.get("regret_at_least", {}).get(label), row["regret"].get(label)
    if bound is not None:
        return f"> {100 * bound:.1f}{unit}"
    if share is None or math.isnan(share):
        return "not reached"
    chance = share and label in row.get("not_worse", ())
    return f"{'~' if chance else ''}{100 * share:.1f}{unit}"


def notes(rows: Sequence[Row]) -> list[str]:
    """Explain the marks in a table of costs, and when runs were cut."""
    texts = [cost(row, label) for row in rows for label in row["values"]]
    cut = next((row["cut"] for row in rows if row.get("cut")), None)
    marks = []
    if any(text.startswith("~") for text in texts):
        marks.append(f"~: may be as good as the best at {USUAL}.")
    if cut:
        marks.append(f">: cut after {human(cut)}, {LONGER:g} times the slowest run as written.")
    if "not reached" in texts:
        marks.append("Not reached: some seed missed the target by the end of the run.")
    return marks
