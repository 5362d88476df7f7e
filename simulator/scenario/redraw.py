"""Redraw measured numbers within their standard errors (parametric bootstrap)."""

from collections.abc import Sequence
from math import exp
from typing import Any, cast

from pydantic import BaseModel

from ..distributions.distribution import Distribution
from ..distributions.random_streams import Purpose, generator
from .scenario import Scenario


def redrawn(scenario: Scenario, replicate: int) -> Scenario:
    """Return the scenario with the numbers of one replicate of the bootstrap."""
    calibration = scenario.calibration
    if calibration is None:
        return scenario
    for index, (key, sd) in enumerate(sorted(calibration.sd.items())):
        scale = factor(replicate, index + 1, sd)
        scenario = scaled(scenario, key, scale)
    for key, factors in calibration.draws.items():
        scenario = scaled(scenario, key, factors[replicate % len(factors)])
    return scenario


def factor(replicate: int, index: int, sd: float) -> float:
    """Draw a lognormal factor of mean 1 and relative standard deviation about `sd`."""
    stream = generator(replicate, Purpose.CALIBRATION, index)
    return exp(sd * float(stream.standard_normal()) - sd * sd / 2)


def scaled(scenario: Scenario, key: str, factor: float) -> Scenario:
    """Return the scenario with the number or law at a key multiplied by `factor`.

    Raises KeyError if the key has neither.
    """
    return cast(Scenario, _scaled(scenario, key.split("."), factor))


def _scaled(value: Any, path: Sequence[str], factor: float) -> Any:
    """Return `value` with the number or law at `path` multiplied, or raise KeyError."""
    if not path:
        if isinstance(value, Distribution):
            return value.scaled(factor)
        if isinstance(value, tuple):
            return tuple(number * factor for number in value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise KeyError(path)
        return value * factor
    head, *rest = path
    if isinstance(value, tuple) and head.isdecimal() and int(head) < len(value):
        index = int(head)
        return *value[:index], _scaled(value[index], rest, factor), *value[index + 1 :]
    if not isinstance(value, BaseModel) or head not in type(value).model_fields:
        raise KeyError(head)
    return value.model_copy(update={head: _scaled(getattr(value, head), rest, factor)})


def knows(scenario: Scenario, key: str) -> bool:
    """Return whether a scenario has a number or a law of times at a dotted key."""
    try:
        scaled(scenario, key, 1.0)
    except KeyError:
        return False
    return True
