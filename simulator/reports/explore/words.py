"""Say what theory predicts for the scenario on the page: time per step, tau*, the bound."""

from collections.abc import Callable
from functools import cache
from typing import Any

from ... import theory
from ...errors import InputError
from ...network.mean_cost import mean_cost
from ...programs import catalogue
from ...programs.pieces import schedule
from ...results.statistics import human, number
from ...results.usage import few
from ...scenario.scenario import Algorithm, Bound, Scenario
from ...scenario.tables import Theory

Covered = list[tuple[int, theory.ErrorBound, float, int]]
"""Index of an algorithm, its bound, its expected seconds per step, and its tau."""


def _pace(scenario: Scenario) -> Callable[[int], float]:
    """Return Theorem 1: expected seconds per step by tau."""
    workers, cost = scenario.team.expected_laws, mean_cost(scenario)
    return cache(
        lambda tau: theory.seconds_per_step(workers, cost.transmission + cost.latency, tau)
    )


def _constant(value: Any) -> float | None:
    fixed = isinstance(value, schedule.ConstantSchedule | schedule.FixedPeriod)
    return float(value.value) if fixed else None


def _period(algorithm: Algorithm) -> int | None:
    """Return an algorithm's communication period (steps); None where it changes."""
    if "tau" not in algorithm.parameters:
        return 1
    period = _constant(algorithm.parameters["tau"])
    return None if period is None else round(period)


def theorem(scenario: Scenario) -> Covered:
    """Return the algorithms that Theorem 2 covers: with constant tau and learning rate."""
    objective, world = scenario.objective, theory.selected(scenario)
    if not isinstance(objective, Bound) or world is None:
        return []
    pace, found = _pace(world), []
    for index, algorithm in enumerate(scenario.algorithm):
        tau, lr = _period(algorithm), _constant(algorithm.parameters.get("lr"))
        program = catalogue().get(algorithm.name)
        if program and program.bound_covers and tau and lr:
            bound = theory.ErrorBound.of(objective, scenario.cluster.workers, lr)
            if bound.valid(tau):
                found.append((index, bound, pace(tau), tau))
    return found


def theory_rows(scenario: Scenario, until: float) -> list[tuple[str, str]]:
    """Return pairs of a term and its value; tau* and the bound are those after `until` seconds."""
    taus = sorted({1, *(tau for each in scenario.algorithm if (tau := _period(each)))})
    durations = [f"{until!r} s"] if until > 0 else []
    settings = Theory.model_validate({"periods": taus, "durations": durations})
    try:
        document = theory.theory(scenario.model_copy(update={"theory": settings}))
    except InputError as error:
        return [("Theory", str(error))]
    rows = [
        (f"Seconds per step, τ = {row['tau']}", human(row["seconds_per_step"]))
        for row in document["periods"]
    ]
    rows += [
        (f"τ* after {human(row['duration'])}", str(row["random_delays"] or "none: lr is too high"))
        for row in document["tau_star"]
    ]
    for index, bound, seconds, tau in theorem(scenario):
        label = scenario.algorithm[index].label
        value = f"{number(bound(until, seconds, tau))} after {human(until)}"
        rows.append((f"Bound, {label}", f"{value}, {number(bound.floor(tau))} in the limit"))
    if hide := document["hide"]:
        text = "none" if hide["delay"] is None else few(hide["delay"], "step", "steps")
        rows.append(("Delay that hides the network (DTS)", text))
    return rows
