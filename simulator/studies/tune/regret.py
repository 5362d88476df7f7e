"""Sensitivity: the regret of a choice in scenarios that differ a little from the given one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from paceline.simulator.distributions.law import BY_NAME
from paceline.simulator.inputs.units import to_si
from paceline.simulator.studies.tune.objective import TuningObjective
from paceline.simulator.studies.tune.race import Contender
from paceline.simulator.studies.tune.runner import Runner, RunRequest
from paceline.simulator.studies.tune.space import Space

STEP = 0.2
LONGER = 1.35  # times the worst value in the scenario as it is: when a run is cut
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


def regrets(
    space: Space,
    objective: TuningObjective,
    runner: Runner,
    contenders: Sequence[Contender],
    seeds: Sequence[int],
) -> list[dict[str, Any]]:
    """Return, per world, each contender's value and how much worse it is than the best of them.

    `values` and `regret` (a share of the best value) by label; None where not every run got there
    within `LONGER` times the worst value in the scenario as it is.
    """
    found = list(worlds(space.scenario.table))
    finite = [contender.mean() for contender in contenders if contender.all_reached]
    limit = space.scenario.run.duration
    cut = float(f"{objective.horizon(LONGER * max(finite)):.3g}") if finite else np.inf
    duration = None if cut >= (limit or np.inf) else cut
    done = {
        contender: contender.scores
        for contender in contenders
        if contender.all_reached and len(contender.scores) == len(seeds)
    }
    jobs = [
        RunRequest(space.world(contender.candidate.table, duration, table), tuple(seeds))
        for what, _, table in found
        for contender in contenders
        if what or contender not in done
    ]
    fresh = iter(runner(jobs))
    rows = []
    for what, change, _ in found:
        scores = iter(
            [
                next(fresh) if what or contender not in done else done[contender]
                for contender in contenders
            ]
        )
        means = {
            contender.candidate.label: float(np.mean([score.value for score in next(scores)]))
            for contender in contenders
        }
        best = min(means.values())
        rows.append(
            {
                "input": what or None,
                "change": change,
                "values": means,
                "regret": {
                    label: mean / best - 1 if np.isfinite(mean) and best > 0 else np.nan
                    for label, mean in means.items()
                },
            }
        )
    return rows
