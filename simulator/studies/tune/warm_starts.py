"""Warm starts: configurations that a search tries first, from the scenario, theory and papers."""

import math
from collections.abc import Mapping
from typing import Any

from ... import theory
from ...load.load import available_programs
from ...network.mean_cost import mean_cost
from ...scenario.scenario import Scenario
from ...scenario.tables import NoObjective, Range
from ..execution import Execution
from .space import Candidate, Point, Space, Values


def first(space: Space) -> list[Point]:
    """Return the points to begin with: families as written, and delays of dts that hide latency."""
    points = []
    for family, entry in space.entries.items():
        points.append(_point(space, family, entry.table))
        if entry.table["name"] == "dts" and "delay" in entry.choices:
            suggested = _hiding(space.scenario, entry.choices, entry.table)
            points += [_point(space, family, entry.table | delay) for delay in suggested]
    return [point for index, point in enumerate(points) if point not in points[:index]]


def _point(space: Space, family: str, wanted: Mapping[str, Any]) -> Point:
    """Return a family's point: the wanted values, or middle ones where they are not tried."""
    chosen = {
        key: wanted[key] if key in wanted and _tried(values, wanted[key]) else _middle(values)
        for key, values in space.entries[family].choices.items()
    }
    return family, chosen


def _tried(values: Values, value: Any) -> bool:
    if not isinstance(values, Range):
        return value in values
    number = type(value) in (int, float) and values.low <= value <= values.high
    return number and (type(value) is int or not values.whole)


def _middle(values: Values) -> Any:
    if not isinstance(values, Range):
        return values[len(values) // 2]
    low, high = values.low, values.high
    middle = math.sqrt(low * high) if values.log else (low + high) / 2
    return round(middle) if values.whole else middle


def _hiding(
    scenario: Scenario, choices: Mapping[str, Values], table: Mapping[str, Any]
) -> list[dict[str, int]]:
    """Return, for each period tried, the smallest delay tried that nearly hides the mean's latency.

    Theory is for constant times and no compression: simulation decides.
    """
    compute, cost = max(scenario.team.mean_compute), mean_cost(scenario)
    periods = choices.get("period", (table.get("period", 1),))
    if isinstance(periods, Range):
        periods = (theory.smallest_period(compute, cost.transmission),) if compute else ()
    hiding = []
    for period in periods if 0 < compute < math.inf else ():
        delay = theory.steps_to_hide(compute, cost.transmission, cost.latency, period)
        if delay is None:
            continue
        tried = choices["delay"]
        if isinstance(tried, Range):
            nearest = int(min(max(delay, tried.low), tried.high))
        else:
            nearest = min((value for value in tried if value >= delay), default=max(tried))
        hiding.append({"period": period, "delay": nearest})
    return hiding


def samples(space: Space) -> list[Candidate]:
    """Return each algorithm as written, bounds apart; where none is, the middle of each family."""
    tables = [algorithm.table for algorithm in space.scenario.algorithm if not algorithm.bound]
    middle = [_point(space, family, entry.table) for family, entry in space.entries.items()]
    written = [Candidate("", table) for table in tables]
    return written or [space.candidate(*point) for point in middle]


def shortest(space: Space, seed: int, execution: Execution) -> float:
    """Return the shortest duration (seconds) of one run of each of the `samples`."""
    durations = []
    for candidate in samples(space):
        world = space.world(candidate)
        if not available_programs(space.programs)[candidate.name].needs_loss:
            world = world.model_copy(update={"objective": NoObjective(kind="none")})
        (run,) = execution.run(world, world.algorithm[0], [seed])
        durations.append(run.duration)
    return min(durations)
