"""Parse quantities with units ("300 ms", "34 Mbit/s") into floats in SI units.

The registry is small on purpose: pint's default registry calls a bit dimensionless, so it would
accept "34 MHz" as a bandwidth, and it takes a third of a second to load.
"""

import re
from functools import cache, lru_cache, partial
from math import inf, isfinite
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, PlainValidator, WithJsonSchema
from pydantic.fields import FieldInfo

from . import untrusted
from .csv_files import number

if TYPE_CHECKING:
    from pint import UnitRegistry

# Stricter than pint, which evaluates "9**9**9**9 s" and never returns.
WRITTEN = re.compile(
    r"\s*[+-]?(\d[\d_]*\.?[\d_]*|\.\d+)([eE][+-]?\d+)?\s*([A-Za-zµμ]+(\s*(/|\*|per)\s*[A-Za-zµμ]+)*)?\s*"
)
AMOUNT = re.compile(r"\s*\+?(\d[\d_]*\.?\d*)\s*([^\s\d.+-]{1,16})\s*")
EXAMPLES = {
    "time": ["300 ms", "2 h"],
    "size": ["97.5 MiB", "64 kB"],
    "bandwidth": ["34 Mbit/s", "10 Gbit/s"],
    "computing speed": ["312 TFLOP/s", "1 PFLOP/s"],
}
SI = {"time": "s", "size": "B", "bandwidth": "B/s", "computing speed": "FLOP/s"}
LEAST = 1e-30  # products, quotients and sums over all steps then neither overflow nor become zero
MOST = dict.fromkeys(SI, 1e30) | {"time": 1e18}  # in SI units; 1e18 s are 30 billion years


@cache
def registry() -> "UnitRegistry[float]":
    """Make the registry of the units that a scenario may use."""
    from pint import UnitRegistry  # noqa: PLC0415 - 60 ms, not needed for --help

    units: UnitRegistry[float] = UnitRegistry(None)
    for line in untrusted.packaged(__file__, "units.toml")["definitions"]:
        units.define(line)
    return units


def to_si(value: Any, dimension: str) -> float:
    """Return `value` ("300 ms") in SI units (seconds, bytes, bytes/s).

    Raises ValueError, with an example of a right value, for anything else.
    """
    remedy = f'write a {dimension} with its unit, such as "{EXAMPLES[dimension][0]}"'
    if not isinstance(value, str):
        raise ValueError(f"a number without a unit; {remedy}")
    return _parsed(value, dimension, remedy)


@lru_cache(1000)  # a parameter search parses the same quantities many times
def _parsed(value: str, dimension: str, remedy: str) -> float:
    from pint.errors import PintError  # noqa: PLC0415

    if not WRITTEN.fullmatch(value):
        raise ValueError(f"not a quantity; {remedy}")
    try:
        quantity: Any = registry().Quantity(value)
        right = quantity.dimensionality == registry().Quantity(SI[dimension]).dimensionality
        magnitude = float(quantity.to_base_units().magnitude)
    except (PintError, ValueError, TypeError, ArithmeticError, AttributeError):
        raise ValueError(f"not a quantity; {remedy}") from None
    except Exception as error:  # pint's tokenizer raises errors of its own types
        if type(error).__module__.split(".")[0] not in ("tokenize", "pint", "flexparser"):
            raise
        raise ValueError(f"not a quantity; {remedy}") from None
    if not right:
        raise ValueError(f"not a {dimension}; {remedy}")
    if not isfinite(magnitude):
        raise ValueError(f"not finite; {remedy}")
    if magnitude < 0:
        raise ValueError(f"negative; {remedy}")
    demand_within(magnitude, dimension)
    return magnitude


def money(value: Any) -> tuple[float, str]:
    """Parse an amount and its currency ("2000 USD"). Raises ValueError."""
    match = AMOUNT.fullmatch(value) if isinstance(value, str) else None
    amount = float(match[1].replace("_", "")) if match else 0.0
    if match is None or match[2] == "%" or not LEAST <= amount <= MOST["size"]:
        raise ValueError('not an amount above 0 with its currency; write one such as "2000 USD"')
    return amount, match[2]


def percent(value: Any) -> float:
    """Parse a tolerance ("+0.5 %") as a fraction. Raises ValueError."""
    match = AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] != "%":
        raise ValueError('not a tolerance of 0 % or more; write one such as "+0.5 %"')
    return float(match[1].replace("_", "")) / 100


def seconds(text: str) -> float:
    """Read a time: a number of seconds, or a quantity ("300 ms"). Raises ValueError."""
    value = number(text)
    if value is None:
        return to_si(text, "time")
    if not 0 <= value < inf:
        raise ValueError("not a time; write a finite number of seconds, 0 or more")
    demand_within(value, "time")
    return value


def factor(text: str) -> float:
    """Read a factor. Raises ValueError for anything but a finite number, 0 or more."""
    value = number(text)
    if value is None or not 0 <= value < inf:
        raise ValueError("not a factor; write a finite number, 0 or more")
    if value and not LEAST <= value <= 1 / LEAST:
        raise ValueError(f"not a factor; write 0, or one from {LEAST:g} to {1 / LEAST:g}")
    return value


def demand_within(value: float, dimension: str) -> None:
    """Raise ValueError for an SI value so large or small that results would overflow."""
    unit = SI[dimension]
    if value > MOST[dimension]:
        raise ValueError(f"too large; write {MOST[dimension]:g} {unit} or less")
    if 0 < value < LEAST:
        raise ValueError(f"too close to zero; write {LEAST:g} {unit} or more, or 0 {unit}")


def _quantity(dimension: str) -> Any:
    schema = {"type": "string", "description": f"a {dimension}", "examples": EXAMPLES[dimension]}
    return BeforeValidator(partial(to_si, dimension=dimension)), WithJsonSchema(schema)


_parse_time, _schema = _quantity("time")
Seconds = Annotated[float, _parse_time, _schema]
_parse, _schema = _quantity("size")
Bytes = Annotated[float, _parse, _schema]
_parse, _schema = _quantity("bandwidth")
BytesPerSecond = Annotated[float, _parse, _schema]
_parse, _schema = _quantity("computing speed")
FlopsPerSecond = Annotated[float, _parse, _schema]


def _texts(*examples: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "examples": [*examples]})


Money = Annotated[tuple[float, str], PlainValidator(money), _texts("2000 USD")]
Tolerance = Annotated[float, PlainValidator(percent), _texts("+0.5 %")]


def is_time(field: FieldInfo) -> bool:
    """Return whether a model's field is a time: `Seconds` or a narrower type."""
    return _parse_time in field.metadata
