"""Read TARGETS.toml: the keys that may move, within what, and the numbers that they must meet."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import exp, isfinite, log, nan
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...errors import InputError
from ...inputs import messages, paths, units
from ...load.document import read_toml
from ...load.load import load, varied
from ...results.intervals import NORMAL
from ...scenario.scenario import Scenario
from ..solve import Number, is_whole, quantity, written

MOST = 1000  # targets, and keys
_RANGE = re.compile(r"\s*(.+?)\s+to\s+(.+?)\s*")
_TWO = re.compile(r"\s+([-/])\s+")

Quantity = str | int | float


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)


class _Shared(_Table):
    """What a target may state, or the file for all of its targets."""

    number: str | None = None
    tolerance: Quantity | None = None
    standard_error: Quantity | None = None
    scenario: str | None = None
    sets: list[str] = Field(default=[], alias="set")


class _Target(_Shared):
    value: Quantity
    name: str | None = None
    hold_out: bool = False


class _File(_Shared):
    keys: dict[str, str] = Field(min_length=1, max_length=MOST)
    target: list[_Target] = Field(min_length=1, max_length=MOST)
    hold_out: list[str] = []


@dataclass(frozen=True)
class Key:
    """A key that may move from `low` to `high`, in `unit` ("" if none).

    Its place is 0 at one end and 1 at the other, `log`: of the value's logarithm. `whole`: only
    whole numbers are possible.
    """

    name: str
    low: float
    high: float
    unit: str
    whole: bool
    log: bool

    def at(self, place: float) -> float:
        """Return the value of a place, as `text` says it."""
        place = min(max(place, 0.0), 1.0)
        if self.log:
            found = exp(log(self.low) + place * (log(self.high) - log(self.low)))
        else:
            found = self.low + place * (self.high - self.low)
        return float(self.text(found).partition(" ")[0])

    def place(self, x: float) -> float:
        """Return the place of a value."""
        if self.log:
            return (log(x) - log(self.low)) / (log(self.high) - log(self.low))
        return (x - self.low) / (self.high - self.low)

    def text(self, x: float) -> str:
        """Return a value as `--set` takes it."""
        return f"{x:.0f}" if self.whole else f"{x:.9g} {self.unit}".strip()


@dataclass(frozen=True)
class Target:
    """A number that must be `value` to within `tolerance`, both in SI units.

    `label`: its name; `terms`: one number, or two, of which `sign` is "-" or "/". `variant`: the
    scenario of which it is the number. `held`: not used by the fit, which predicts it.
    """

    label: str
    text: str
    value: float
    tolerance: float
    terms: tuple[Number, ...]
    sign: str
    variant: Scenario
    held: bool

    def moved(self, keys: Sequence[Key], values: Sequence[float]) -> Scenario:
        """Return its scenario with values of the keys. Raises InputError."""
        texts = [f"{key.name}={key.text(x)}" for key, x in zip(keys, values, strict=True)]
        with _about(self.terms[0].where, texts):
            return varied(self.variant, texts)

    def labels(self, scenario: Scenario) -> list[str]:
        """Return the algorithm of each term. Raises InputError unless each is one."""
        found = []
        for term in self.terms:
            labels = [scenario.algorithm[index].label for index in term.chosen(scenario)]
            if len(labels) != 1:
                listed = " or ".join(f"algorithm.{each}.{term.path}" for each in labels)
                raise InputError(f"{term.where}: of which algorithm? write {listed}")
            found += labels
        return found

    def of(self, rows: Mapping[str, Mapping[str, Any]], labels: Sequence[str]) -> float:
        """Return the number, from rows of `simulate --json` by label; nan where it has no value."""
        found = [term.value(rows[label]) for term, label in zip(self.terms, labels, strict=True)]
        if self.sign == "/":
            return found[0] / found[1] if found[1] else nan
        return found[0] - (found[1] if self.sign else 0.0)


def read(file: Path, base: Scenario) -> tuple[list[Key], list[Target]]:
    """Return the keys and targets of a file, for a scenario. Raises InputError."""
    stated = _stated(file)
    keys = [_key(file, name, text) for name, text in stated.keys.items()]
    reader = _Reader(file, stated, base, {key.name for key in keys})
    targets = [reader.target(own) for own in stated.target]
    labels = [target.label for target in targets]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise InputError(f"{file}: two targets {twice[0]}; give each a name of its own")
    for pattern in stated.hold_out:
        if not any(fnmatchcase(label, pattern) for label in labels):
            near = messages.nearest(pattern, labels, "targets")
            raise InputError(f"{file}: hold_out: no target is called {pattern}; {near}")
    if all(target.held for target in targets):
        raise InputError(f"{file}: every target is held out; leave some to fit")
    return keys, targets


def _stated(file: Path) -> _File:
    """Return what a file states. Raises InputError."""
    try:
        table = read_toml(file)
        if isinstance(keys := table.get("keys"), dict):
            table["keys"] = dict(_flat(keys))
        return _File.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        path = tuple(part for part in first["loc"] if part not in ("str", "int", "float"))
        what = messages.sentence(first, path, first["input"])
        if first["type"] in messages.UNKNOWN:
            model = _Target if len(path) > 1 else _File
            names = {field.alias or key for key, field in model.model_fields.items()}
            what = f"unknown; {messages.nearest(str(path[-1]), sorted(names), 'keys')}"
        elif first["type"] in (*messages.MISSING, "too_short"):
            what = (
                "missing; name keys that may move under [keys], as "
                '"server.apply" = "1 ms to 100 ms", and each number to meet, with its value, as a '
                "[[target]] table"
            )
        raise InputError(f"{file}: {messages.dotted(path)}: {what}") from None


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield keys by their dotted names, whether or not these are quoted."""
    for name, each in table.items():
        if isinstance(each, dict):
            yield from _flat(each, f"{above}{name}.")
        else:
            yield f"{above}{name}", each


def _key(file: Path, name: str, text: str) -> Key:
    """Read a key's range, such as "100 ms to 2 s". Raises InputError."""
    where = f'{file}: keys."{name}" = {messages.show(text)}'
    remedy = 'write one such as "100 ms to 2 s"'
    match = _RANGE.fullmatch(text)
    ends = [written(end) for end in match.groups()] if match else [None]
    if match is None or None in ends:
        raise InputError(f"{where}: not LOW to HIGH; {remedy}")
    (low, unit), (high, other) = (end for end in ends if end)
    if unit != other:
        for dimension in units.DIMENSIONS:
            with suppress(ValueError):
                high *= units.to_si(f"1 {other}", dimension) / units.to_si(f"1 {unit}", dimension)
                break
        else:
            raise InputError(f"{where}: its ends are not of one kind; {remedy}")
    if not low < high or not isfinite(high - low):
        raise InputError(f"{where}: not from a lower to a higher value; {remedy}")
    whole = all(is_whole(end, unit) for end in match.groups())
    return Key(name, low, high, unit, whole, low > 0)


@dataclass
class _Reader:
    """Reads targets; those of one variant of the scenario share it, to be simulated together."""

    file: Path
    shared: _File
    base: Scenario
    moving: set[str]
    variants: dict[tuple[str, ...], Scenario] = field(default_factory=dict)

    def target(self, own: _Target) -> Target:
        """Read a target, with what the file states for all. Raises InputError."""
        text = own.number or self.shared.number
        label = own.name or text
        where = f"{self.file}: target {label or messages.show(own.value)}"
        if text is None or label is None:
            raise InputError(
                f"{where}: which number? write number = ..., here or above all targets"
            )
        parts = _TWO.split(text.strip())
        if len(parts) not in (1, 3):
            raise InputError(f"{where}: {text}: more than two numbers; write one, A - B or A / B")
        return Target(
            label,
            text,
            _si(own.value, where),
            self._tolerance(own, where),
            tuple(Number.parsed(part, where) for part in parts[::2]),
            parts[1] if len(parts) == 3 else "",
            self._variant(own, where),
            own.hold_out or any(fnmatchcase(label, each) for each in self.shared.hold_out),
        )

    def _tolerance(self, own: _Target, where: str) -> float:
        stated = (own.tolerance, own.standard_error)
        if stated == (None, None):
            stated = (self.shared.tolerance, self.shared.standard_error)
        if stated.count(None) != 1:
            raise InputError(f"{where}: write either a tolerance or a standard_error")
        tolerance, error = stated
        found = NORMAL * _si(error, where) if tolerance is None else _si(tolerance, where)
        if found <= 0:
            raise InputError(f"{where}: a tolerance or standard_error must be above zero")
        return found

    def _variant(self, own: _Target, where: str) -> Scenario:
        sets = [*self.shared.sets, *own.sets]
        for name in {text.partition("=")[0].strip() for text in sets} & self.moving:
            raise InputError(f"{where}: sets {name}, which moves; leave it out here or there")
        scenario = own.scenario or self.shared.scenario or ""
        if (made := (scenario, *sets)) not in self.variants:
            beside = self.file.parent / scenario
            if scenario and paths.leaves(scenario, self.file.parent):
                raise InputError(
                    f"{where}: scenario {scenario}: outside that folder; move it there"
                )
            origin = load(beside if beside.is_file() else scenario) if scenario else self.base
            with _about(where, sets):
                self.variants[made] = varied(origin, sets)
        return self.variants[made]


@contextmanager
def _about(where: str, sets: Sequence[str] = ()) -> Iterator[None]:
    """Begin an InputError with `where`; what it says of `sets` was not said by --set."""
    try:
        yield
    except InputError as error:
        said = str(error)
        for text in sets:
            said = said.replace(f"--set {text}", text)
        raise InputError(f"{where}: {said}") from None


def _si(written: Quantity | None, where: str) -> float:
    found = quantity(written, where) if isinstance(written, str) else float(written or 0)
    if not isfinite(found):
        raise InputError(f"{where}: {written} is not finite; write a finite number")
    return found
