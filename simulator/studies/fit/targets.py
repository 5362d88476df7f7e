"""Read TARGETS.toml: keys with ranges, and numbers that they must meet."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...errors import InputError
from ...inputs import messages, paths
from ...load.document import read_toml
from ...load.load import load, varied
from ...scenario.scenario import Scenario
from ..numbers import Number, Range, quantity, read_range

MOST = 1000  # targets, and keys
_TWO = re.compile(r"\s+([-/])\s+")

Quantity = str | int | float
Keys = Mapping[str, Range]
"""The ranges of keys that may move, by key."""


class _Target(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)

    number: str
    value: Quantity
    tolerance: Quantity | None = None
    name: str | None = None
    scenario: str | None = None
    sets: list[str] = Field(default=[], alias="set")
    hold_out: bool = False


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    keys: dict[str, str] = Field(min_length=1, max_length=MOST)
    target: list[_Target] = Field(min_length=1, max_length=MOST)
    tolerance: Quantity | None = None


@dataclass(frozen=True)
class Target:
    """A number that must be `value` to within `tolerance`, both in SI units.

    `label`: its name; `terms`: one number, or two combined by `sign` ("-" or "/"). `variant`: the
    scenario that it describes. `held`: whether the fit only predicts it.
    """

    label: str
    text: str
    value: float
    tolerance: float
    terms: tuple[Number, ...]
    sign: str
    variant: Scenario
    held: bool

    def moved(self, keys: Keys, values: Sequence[float]) -> Scenario:
        """Return the target's scenario with values of the keys. Raises InputError."""
        texts = [
            f"{key}={limits.text(x)}" for (key, limits), x in zip(keys.items(), values, strict=True)
        ]
        with _about(self.terms[0].where, texts):
            return varied(self.variant, texts)

    def labels(self, scenario: Scenario) -> list[str]:
        """Return the algorithm of every term. Raises InputError unless each names one."""
        labels = list[str]()
        for term in self.terms:
            chosen = [scenario.algorithm[index].label for index in term.chosen(scenario)]
            if len(chosen) != 1:
                listed = " or ".join(f"algorithm.{label}.{term.path}" for label in chosen)
                raise InputError(f"{term.where}: names no algorithm; write {listed}")
            labels += chosen
        return labels

    def of(self, rows: Mapping[str, Mapping[str, Any]], labels: Sequence[str]) -> float:
        """Return the number, from rows of `simulate --json` by label; nan without a value."""
        one, *others = (term.value(rows[at]) for term, at in zip(self.terms, labels, strict=True))
        if self.sign == "/":
            return one / others[0] if others[0] else float("nan")
        return one - sum(others)


def read(file: Path, base: Scenario) -> tuple[Keys, list[Target]]:
    """Return the keys and targets of a file, for a scenario. Raises InputError."""
    stated, variants = _stated(file), dict[Any, Scenario]()
    keys = {name: _range(file, name, text) for name, text in stated.keys.items()}
    targets = [_target(file, stated, target, base, variants) for target in stated.target]
    labels = [target.label for target in targets]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise InputError(f"{file}: two targets are called {twice[0]}; give each a different name")
    if all(target.held for target in targets):
        raise InputError(f"{file}: every target is held out; leave some to fit")
    return keys, targets


def _stated(file: Path) -> _File:
    """Return the contents of a file. Raises InputError."""
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
    """Yield keys by their dotted names, quoted or not."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _range(file: Path, name: str, text: str) -> Range:
    """Read a key's range, such as "100 ms to 2 s". Raises InputError."""
    where = f'{file}: keys."{name}" = {messages.show(text)}'
    remedy = 'write one such as "100 ms to 2 s"'
    ends = re.split(r"\s+to\s+", text)
    if len(ends) != 2:
        raise InputError(f"{where}: not LOW to HIGH; {remedy}")
    return read_range(ends, where, remedy)


def _target(
    file: Path, whole: _File, stated: _Target, base: Scenario, variants: dict[Any, Scenario]
) -> Target:
    """Read a target; those of one variant of the scenario share it, to simulate it once."""
    label = stated.name or stated.number
    where = f"{file}: target {label}"
    parts = _TWO.split(stated.number.strip())
    if len(parts) not in (1, 3):
        raise InputError(
            f"{where}: {stated.number}: more than two numbers; write one, A - B or A / B"
        )
    for name in {set_.partition("=")[0].strip() for set_ in stated.sets} & {*whole.keys}:
        raise InputError(f"{where}: sets {name}, which [keys] varies; leave it out here or there")
    if (variant := (stated.scenario, *stated.sets)) not in variants:
        origin = _scenario(file.parent, stated.scenario, where) if stated.scenario else base
        with _about(where, stated.sets):
            variants[variant] = varied(origin, stated.sets)
    tolerance = whole.tolerance if stated.tolerance is None else stated.tolerance
    if tolerance is None or (allowed := _si(tolerance, where)) <= 0:
        raise InputError(f"{where}: needs a tolerance above zero, here or above all targets")
    return Target(
        label,
        stated.number,
        _si(stated.value, where),
        allowed,
        tuple(Number.parsed(part, where) for part in parts[::2]),
        "".join(parts[1:2]),
        variants[variant],
        stated.hold_out,
    )


def _scenario(folder: Path, name: str, where: str) -> Scenario:
    if paths.leaves(name, folder):
        raise InputError(f"{where}: scenario {name}: outside that folder; move it there")
    beside = folder / name
    return load(beside if beside.is_file() else name)


@contextmanager
def _about(where: str, sets: Sequence[str] = ()) -> Iterator[None]:
    """Begin an InputError with `where` instead of --set, which the user did not write."""
    try:
        yield
    except InputError as error:
        message = str(error)
        for text in sets:
            message = message.replace(f"--set {text}", text)
        raise InputError(f"{where}: {message}") from None


def _si(written: Quantity, where: str) -> float:
    value = quantity(written, where) if isinstance(written, str) else float(written)
    if not isfinite(value):
        raise InputError(f"{where}: {written} is not finite; write a finite number")
    return value
