"""Parse numbers of `simulate --json`, quantities, and ranges of keys."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import exp, inf, isfinite, log, nan
from typing import Any

from ..errors import InputError
from ..inputs import messages, units
from ..results import intervals
from ..scenario.scenario import Scenario

SHORT = {
    "utilisation": "breakdown.compute",
    "waiting": "breakdown.wait",
    "communicating": "breakdown.communicate",
    "final_loss": "loss.last",
    "final_accuracy": "accuracy.last",
    "time_to_target_s": "time_to_target",
    "total_cost": "used.cost",
}
"""Short names of numbers, beside their paths in a row of `algorithms`."""
_ALGORITHM = re.compile(r"algorithms?(?:\[(\d+)\]|\.(.+?))\.([a-z_0-9.]+)")
_QUANTITY = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S.*?)?\s*")


@dataclass(frozen=True)
class Number:
    """A number of `simulate --json`, by its `path` in a row of `algorithms`.

    `only`: the algorithm that its text names, by index or label; None: all. Errors about the number
    begin with `where`.
    """

    path: str
    only: str | None
    where: str

    @classmethod
    def parsed(cls, text: str, where: str) -> "Number":
        """Parse "algorithm.LABEL.PATH", or a path or short name alone."""
        match = _ALGORITHM.fullmatch(text)
        path = match[3] if match else text
        return cls(SHORT.get(path, path), match and (match[1] or match[2]), where)

    def chosen(self, scenario: Scenario) -> list[int]:
        """Return the indices of the algorithms of this number. Raises InputError."""
        names = [(one.label, one.name, str(at)) for at, one in enumerate(scenario.algorithm)]
        indices = [at for at, of in enumerate(names) if self.only is None or self.only in of]
        if not indices:
            near = messages.nearest(self.only or "", [label for label, *_ in names], "labels")
            raise InputError(f"{self.where}: no algorithm {self.only}; {near}")
        return indices

    def value(self, row: Mapping[str, Any]) -> float:
        """Return the number of a row; nan without a value. Raises InputError."""
        entry = self.entry(row)
        if isinstance(entry, Mapping):
            entry = entry["median" if entry.get("estimate") == intervals.MEDIAN else "mean"]
        return nan if entry is None else float(entry)

    def entry(self, row: Mapping[str, Any]) -> Any:
        """Return the number or estimate at the path of a row; None without a value."""
        here: Any = row
        for part in self.path.split("."):
            if here is None:
                return None
            if not isinstance(here, Mapping) or part not in here:
                numbers = [key for key, entry in row.items() if entry and _is_number(entry)]
                near = messages.nearest(self.path, [*SHORT, *numbers], "numbers")
                raise InputError(f"{self.where}: no number {self.path}; {near}")
            here = here[part]
        if not _is_number(here):
            within = ", ".join(f"{self.path}.{key}" for key in here) if here else "another"
            raise InputError(f"{self.where}: {self.path} is not a number; name one: {within}")
        return here


def _is_number(entry: Any) -> bool:
    """Whether an entry of a row is a number, absent, or an estimate of one."""
    if isinstance(entry, Mapping):
        return "mean" in entry
    return entry is None or (isinstance(entry, int | float) and not isinstance(entry, bool))


def unit(text: str) -> str:
    """Return the unit of a quantity; "" without one."""
    parts = _QUANTITY.fullmatch(text)
    return parts[2] or "" if parts else ""


def quantity(text: str, where: str) -> float:
    """Return a number, a share or a quantity in SI units; an error begins with `where`."""
    with suppress(ValueError):
        return float(text.rstrip("% ")) / (100 if text.endswith("%") else 1)
    for dimension in units.SI:
        with suppress(ValueError):
            return units.to_si(text, dimension)
    raise InputError(
        f"{where}: {text} is neither a number nor a quantity; write one such as 0.9, 90 % or 300 ms"
    )


@dataclass(frozen=True)
class Range:
    """The values of a key from `low` to `high`, in one `unit` ("" if none).

    The place of a value is 0 at the low end and 1 at the high one, of its logarithm if both are
    above zero. `whole`: only whole numbers are possible.
    """

    low: float
    high: float
    unit: str
    whole: bool

    @property
    def log(self) -> bool:
        """Whether places are on a logarithmic scale."""
        return self.low > 0

    def at(self, place: float) -> float:
        """Return the value of a place, as `text` writes it."""
        place = min(max(place, 0.0), 1.0)
        if self.log:
            return self.snapped(exp(log(self.low) + place * log(self.high / self.low)))
        return self.snapped(self.low + place * (self.high - self.low))

    def place(self, value: float) -> float:
        """Return the place of a value."""
        if self.log:
            return log(value / self.low) / log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def text(self, value: float) -> str:
        """Format a value for `--set`."""
        return f"{value:.0f}" if self.whole else f"{value:.9g} {self.unit}".strip()

    def snapped(self, value: float) -> float:
        """Return the value of the text for `value`, so that equal texts are simulated once."""
        return float(self.text(value).partition(" ")[0])


def read_range(ends: Sequence[str], where: str, remedy: str, around: float = 1.0) -> Range:
    """Read a range, in the unit of its first end, from its ends or a value and a factor."""
    parts = [match for end in ends if (match := _QUANTITY.fullmatch(end))]
    if len(parts) < len(ends) or not parts:
        raise InputError(f"{where}: not a number with its unit; {remedy}")
    (low, name), (high, other) = [(float(p[1]), p[2] or "") for p in (parts[0], parts[-1])]
    if name != other:
        for dimension in units.SI:
            with suppress(ValueError):
                high *= units.to_si(f"1 {other}", dimension) / units.to_si(f"1 {name}", dimension)
                break
        else:
            raise InputError(f"{where}: its ends have different kinds; {remedy}")
    whole = not name and all(re.fullmatch(r"[+-]?\d[\d_]*", part[1]) for part in parts)
    low, high = max(low / around, 1.0 if whole and around > 1 else -inf), high * around
    if not low < high or not isfinite(high - low):
        raise InputError(f"{where}: not from a lower to a higher value; {remedy}")
    return Range(low, high, name, whole)
