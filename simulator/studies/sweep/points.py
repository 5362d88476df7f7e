"""Turn the points of a sweep, from `--vary` or Python, into arguments of `--set`.

A point maps keys of a scenario, such as "network.latency", to values as texts, such as "20 ms".
"""

import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from ...errors import InputError
from ...inputs import messages
from ...load.document import override
from ...results.statistics import jsonable

LARGEST = 100_000
REMEDY = "write one such as network.latency=20 ms,40 ms"

Point = Mapping[str, str]
Axes = Mapping[str, Sequence[str]]
"""The values of each key."""

_ASSIGNMENT = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[^"'=])*?)\s*=(.*)""", re.DOTALL)


def axes(texts: Iterable[str]) -> dict[str, list[str]]:
    """Parse texts "table.key=V1,V2". Raises InputError naming the text."""
    values: dict[str, list[str]] = {}
    for text in texts:
        assignment = _ASSIGNMENT.fullmatch(text)
        if assignment is None or not assignment[1]:
            raise InputError(f"--vary {text}: not table.key=V1,V2; {REMEDY}")
        key = assignment[1]
        if key in values:
            raise InputError(f"--vary {text}: {key} is varied twice; name all its values at once")
        values[key] = split(assignment[2], f"--vary {text}")
    return values


def split(text: str, where: str = "") -> list[str]:
    """Split values at the commas outside brackets and quotes.

    A value that begins like a TOML list, table or quoted text continues until that is complete;
    other values end at the next comma. Raises InputError, which begins with `where`.
    """
    values, value = [], ""
    for part in text.split(","):
        value = f"{value},{part}" if value else part.strip()
        fault = _fault(value)
        if not fault:
            values.append(value.strip())
            value = ""
    if value:
        raise InputError(f"{where}: not TOML; close its quotes and brackets: {value} ({fault})")
    if not all(values):
        raise InputError(f'{where}: a value is missing; write "" for an empty text')
    return values


_CLOSES = {"[": "]", "{": "}", '"': '"', "'": "'"}


def _fault(value: str) -> str:
    """Return why a value that begins like TOML is not TOML; "" if it is."""
    closes = _CLOSES.get(value[:1])
    if closes is None:
        return ""
    if not value.rstrip().endswith(closes):  # parsing after every comma takes quadratic time
        return f"no {closes} at its end"
    try:
        tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError) as error:
        return str(error)
    return ""


def grid(values: Axes) -> list[Point]:
    """Return all combinations, the last key varying fastest. Raises InputError."""
    count = math.prod(map(len, values.values()))
    if count > LARGEST:
        raise InputError(f"{count} points: at most {LARGEST} in one sweep; give fewer values")
    return [dict(zip(values, point, strict=True)) for point in product(*values.values())]


def texts(point: Mapping[str, Any]) -> Point:
    """Return a point with its values as texts for `--set`."""
    return {
        key: value if isinstance(value, str) else messages.toml(jsonable(value))
        for key, value in point.items()
    }


def value(text: str) -> Any:
    """Return the TOML value of a text, or else the text itself."""
    table: dict[str, Any] = {}
    override(table, f"value={text}")
    return table["value"]


def check(points: Sequence[Point]) -> None:
    """Raise InputError unless there are points, and all have the same keys."""
    if not points or not points[0]:
        raise InputError(
            "nothing to vary; name keys and values, such as network.latency=20 ms,40 ms"
        )
    if len(points) > LARGEST:
        raise InputError(f"{len(points)} points: at most {LARGEST} in one sweep; give fewer")
    for index, point in enumerate(points):
        if [*point] != [*points[0]]:
            raise InputError(
                f"points[{index}]: its keys are {', '.join(point)}; "
                f"give each point those of the first: {', '.join(points[0])}"
            )
