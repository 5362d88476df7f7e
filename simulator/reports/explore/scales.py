"""Round values for sliders, as texts that a scenario may contain ("22.4 ms")."""

import math
from collections.abc import Sequence
from typing import Literal

from ...inputs.units import to_si

Kind = Literal["time", "bandwidth", "count", "number"]
"""The kind of a value; times and bandwidths have units."""

RENARD = (
    1.0, 1.12, 1.25, 1.4, 1.6, 1.8, 2.0, 2.24, 2.5, 2.8,
    3.15, 3.55, 4.0, 4.5, 5.0, 5.6, 6.3, 7.1, 8.0, 9.0,
)  # fmt: skip
"""Twenty round numbers to a decade (ISO 3, R'20)."""
UNITS = {
    "time": ((1e-9, "ns"), (1e-6, "us"), (1e-3, "ms"), (1.0, "s")),
    "bandwidth": ((125.0, "kbit/s"), (125e3, "Mbit/s"), (125e6, "Gbit/s")),
}


def read(text: str, kind: Kind) -> float:
    """Return the value in SI units. Raises ValueError, whose message says what to write."""
    if kind not in {"count", "number"}:
        try:
            return to_si(text, kind)
        except AssertionError:  # pint's, of a text such as "\0"
            raise ValueError(f"not a quantity; write a {kind} with its unit") from None
    try:
        value = float(text)
    except ValueError:
        raise ValueError("not a number; write one, without unit") from None
    if not math.isfinite(value):
        raise ValueError("not finite; write a finite number")
    if kind == "count" and value != int(value):
        raise ValueError("not a whole number; write one, without unit or decimal point")
    return value


def write(value: float, kind: Kind) -> str:
    """Write a value in SI units with four significant digits and its unit."""
    if kind == "count":
        return str(round(value))
    if kind == "number" or not value:
        return f"{value:.4g}" if kind == "number" else {"time": "0 s", "bandwidth": "0 bit/s"}[kind]
    fitting = [unit for unit in UNITS[kind] if unit[0] <= value * (1 + 1e-9)]
    size, name = fitting[-1] if fitting else UNITS[kind][0]
    return f"{value / size:.4g} {name}"


def around(own: float, kind: Kind, low: float, high: float) -> list[str]:
    """Return round values from `low` to `high`, evenly spaced in the logarithm, and `own`."""
    unit = 125.0 if kind == "bandwidth" else 1.0  # round numbers of bits
    first, last = math.floor(math.log10(low / unit)), math.ceil(math.log10(high / unit))
    decades = range(first, last + 1)
    scaled = [unit * float(f"{base}e{decade}") for decade in decades for base in RENARD]
    if kind == "count":
        scaled = [float(round(value)) for value in scaled if value >= 0.95]
    inside = [value for value in scaled if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
    return texts([*inside, own], kind)


def evenly(own: float, high: float, parts: int) -> list[str]:
    """Return evenly spaced values from zero to `high`, and `own`."""
    return texts([*(high * part / parts for part in range(parts + 1)), own], "number")


def texts(values: Sequence[float], kind: Kind) -> list[str]:
    """Write values in ascending order, without duplicates."""
    return list(dict.fromkeys(write(value, kind) for value in sorted(values)))
