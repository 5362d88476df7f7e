"""Sensitivity: the regret of a choice in scenarios that differ a little from the given one."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from ...distributions.law import BY_NAME
from ...inputs.units import to_si
from ...results.intervals import MEDIAN
from ...results.order import MARGIN, Order, order
from .costs import LONGER
from .objective import Score, TuningObjective
from .race import Contender
from .runner import Runner, RunRequest
from .space import Space

STEP = 0.2
INPUTS = ("latency", "bandwidth", "straggling")
Table = dict[str, Any]


def _times(quantity: str, by: float, dimension: str = "time") -> str:
    unit = "s" if dimension == "time" else "B/s"
    return f"{to_si(quantity, dimension) * by!r} {unit}"


def spread(law: Any, by: float) -> Any:
    """Return a distribution, as a scenario writes it, with `by` times its spread."""

    def change(table: Table) -> Table:
        family = BY_NAME.get(table["dist"])
        if family is None or "file" in table:
            return table
        own = {key: table[key] for key in family.model_fields if key in table}
        changed, times = family.model_validate(own).spread(by), family.times()
        return table | {
            key: f"{value!r} s" if key in times else value for key, value in changed.items()
        }

    return _law(law, change)


def scaled(law: Any, by: float) -> Any:
    """Return a distribution, as a scenario writes it, of times `by` times as long."""
    if isinstance(law, str):
        return _times(law, by)

    def change(table: Table) -> Table:
        family = BY_NAME.get(table["dist"])
        times = () if family is None else family.times()
        return table | {key: _times(table[key], by) for key in times if key in table}

    return _law(law, change)


def _law(law: Any, change: Callable[[Table], Table]) -> Any:
    if not isinstance(law, dict):
        return law
    if law["dist"] == "mixture":
        return law | {"components": [change(dict(part)) for part in law["components"]]}
    return change(law)


def world(table: Mapping[str, Any], what: str, by: float) -> Table:
    """Return a scenario's table with `by` times the latency, the bandwidth or the straggling."""
    changed = deepcopy(dict(table))
    network, cluster = changed["network"], changed["cluster"]
    lines = [network, *network.get("link", ())]
    if what == "latency":
        for line in lines:
            _change(line, ("latency", "jitter", "duration"), lambda law: scaled(law, by))
    elif what == "bandwidth":
        for line in [*lines, changed.get("server", {})]:
            _change(line, ("bandwidth",), lambda rate: _times(rate, by, "bandwidth"))
    else:
        for nodes in [cluster, *cluster.get("group", ())]:
            _change(nodes, ("compute",), lambda law: spread(law, by))
            _change(nodes, ("extra",), lambda law: scaled(law, by))
    return changed


def _change(table: Table, keys: Sequence[str], change: Callable[[Any], Any]) -> None:
    table.update({key: change(table[key]) for key in keys if key in table})


def worlds(table: Mapping[str, Any]) -> Iterator[tuple[str, float, Table]]:
    """The scenario as it is, and with each of `INPUTS` 20 % down and up: (what, change, table)."""
    yield "", 0.0, dict(table)
    for what in INPUTS:
        for change in (-STEP, STEP):
            yield what, change, world(table, what, 1 + change)


def regrets(  # noqa: PLR0913, PLR0917 - the parts of a search
    space: Space,
    objective: TuningObjective,
    runner: Runner,
    contenders: Sequence[Contender],
    seeds: Sequence[int],
    verdict: Order,
) -> list[dict[str, Any]]:
    """Return a row for each world, the scenario as it is first: what each contender costs there.

    Runs are cut at the same time in every world, `LONGER` times the slowest as written. A contender
    that was cut may still be first where what is known of it is less than the best value; then it
    runs for as long as the scenario says. `verdict`: the order in the scenario as it is, which also
    knows what was given up early. See `_row` for what a row has; `cut`: the seconds, where runs
    were cut.
    """
    everywhere = list(worlds(space.scenario.table))
    cut = _cut(objective, contenders, space.limit)
    found = [{each.candidate.label: each.scores for each in contenders} for _ in everywhere]
    missing = [
        (place, each)
        for place, (what, *_) in enumerate(everywhere)
        for each in contenders
        if what or not (each.all_reached and len(each.scores) == len(seeds))
    ]
    rows: list[dict[str, Any]] = []
    for duration in (cut, None):
        if rows and not missing:
            break
        jobs = [
            RunRequest(
                space.world(each.candidate.table, duration, everywhere[place][2]), tuple(seeds)
            )
            for place, each in missing
        ]
        for (place, each), scores in zip(missing, runner(jobs), strict=True):
            found[place][each.candidate.label] = scores
        rows = [
            _row(objective, space.limit, scores) | {"input": what or None, "change": change}
            for (what, change, _), scores in zip(everywhere, found, strict=True)
        ]
        missing = [
            (place, each)
            for place, row in enumerate(rows)
            for each in contenders
            if row["regret_at_least"].get(each.candidate.label) == 0
        ]
    rows[0] |= {"not_worse": [label for label in found[0] if label in verdict.open]}
    return [row | {"cut": cut if row["at_least"] else None} for row in rows]


def _cut(objective: TuningObjective, contenders: Sequence[Contender], limit: float) -> float | None:
    """Return the time (seconds) at which runs are cut; None where they may run as long as given."""
    values = [score.value for each in contenders for score in each.scores if score.reached]
    horizon = objective.horizon(LONGER * max(values)) if values else math.inf
    return float(f"{horizon:.3g}") if horizon < limit else None


def _row(
    objective: TuningObjective, limit: float, found: Mapping[str, Sequence[Score]]
) -> dict[str, Any]:
    """Return what each contender, by label, costs in one world.

    `values`, and `regret`, a share of the best value; None where some run missed the target.
    `at_least` and `regret_at_least`: lower bounds of both where that is because it was cut.
    `first`: the best; `not_worse`: those not known to be worse than it at 90 %.
    """
    scores = {label: [score.value for score in each] for label, each in found.items()}
    bounds = {
        label: [math.inf if score.diverged else objective.at_least(score) for score in each]
        for label, each in found.items()
    }
    told = {label: each[0].model for label, each in found.items()}
    models = {label: each for label, each in told.items() if each and each.factors}
    ordered = order(
        scores, bounds, heavy=objective.heavy,
        factors={label: np.array(each.factors) for label, each in models.items()},
        margin=min((each.margin for each in models.values()), default=MARGIN),
    )  # fmt: skip
    values = {label: ordered.value(label) for label in found}
    best = values[ordered.best]
    middle = np.median if ordered.of == MEDIAN else np.mean
    at_least = {
        label: float(middle(bounds[label]))
        for label, each in found.items()
        if any(not score.reached and score.ran < limit for score in each)
        and all(map(math.isfinite, bounds[label]))
    }
    return {
        "values": values,
        "regret": {label: _above(value, best) for label, value in values.items()},
        "at_least": at_least,
        "regret_at_least": {label: max(0.0, _above(v, best)) for label, v in at_least.items()},
        "first": ordered.best if math.isfinite(best) else None,
        "not_worse": [label for label in found if label in ordered.open],
    }


def _above(value: float, best: float) -> float:
    """Return by how much a value is above the best one, as a share of that; nan if unknown."""
    return value / best - 1 if math.isfinite(value) and best > 0 else math.nan
