"""Tolerances within which two times, or a time and the deadline, count as equal."""

from math import inf

from ..scenario.scenario import Scenario

TIME_TOLERANCE = 1e-12
"""Relative difference of times below which they are equal up to rounding."""

DEADLINE_TOLERANCE = 1 + 1e-9
"""A step that ends by `run.duration` times this still counts: a million additions round so much."""


def deadline(scenario: Scenario) -> float:
    """Return the last time that counts (s): the duration, with a tolerance."""
    return (scenario.run.duration or inf) * DEADLINE_TOLERANCE
