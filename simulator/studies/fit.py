"""`paceline fit`: move keys of a scenario until its numbers meet targets.

A few points spread over the ranges come first; from the best of them, least squares (SciPy's trust
region) follow central differences. Every simulation has the same seeds, so a number is nearly a
smooth function of the keys.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import ceil, isfinite, log2, nan
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import InputError
from ..inputs import messages, paths, untrusted
from ..load.document import read_toml
from ..load.explain import explain, line
from ..load.load import load, loaded
from ..results import statistics, store
from ..results.intervals import NORMAL
from ..results.store import Destination
from ..scenario.scenario import Scenario
from . import executors, size
from .execution import Execution, Progress, demand_algorithms, seed_range, settings
from .simulate import run_on
from .solve import Number, Range, alone, moved, quantity, read_range

LARGEST = 1000  # targets, and keys
_TWO = re.compile(r"\s+([-/])\s+")

Quantity = str | int | float
Keys = Mapping[str, Range]
"""The ranges of keys that may move, by key."""


class _Target(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    number: str
    value: Quantity
    tolerance: Quantity | None = None
    name: str | None = None
    scenario: str | None = None
    sets: list[str] = Field(default=[], alias="set")
    hold_out: bool = False


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    keys: dict[str, str] = Field(
        max_length=LARGEST,
        description='ranges of the keys that may move, as "server.apply" = "1 ms to 100 ms"',
    )
    target: list[_Target] = Field(
        max_length=LARGEST, description="a [[target]] table for each number to meet, with its value"
    )
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
        return moved(self.variant, texts, self.terms[0].where)

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


def read_targets(file: Path, base: Scenario) -> tuple[Keys, list[Target]]:
    """Return the keys and targets of a file, for a scenario. Raises InputError."""
    stated, variants = _stated(file), dict[Any, Scenario]()
    keys = dict[str, Range]()
    for name, text in stated.keys.items():
        where, ends = f'{file}: keys."{name}" = {messages.show(text)}', re.split(r"\s+to\s+", text)
        remedy = 'write one such as "100 ms to 2 s"'
        if len(ends) != 2:
            raise InputError(f"{where}: not LOW to HIGH; {remedy}")
        keys[name] = read_range(ends, where, remedy)
    targets = [_target(file, stated, target, base, variants) for target in stated.target]
    labels = [target.label for target in targets]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise InputError(f"{file}: two targets are called {twice[0]}; give each a different name")
    if all(target.held for target in targets):
        raise InputError(f"{file}: every target is held out; leave some to fit")
    return keys, targets


def _stated(file: Path) -> _File:
    """Return the contents of a file. Raises InputError."""
    table = {key: value for key, value in read_toml(file).items() if value not in ({}, [])}
    if isinstance(keys := table.get("keys"), dict):
        table["keys"] = dict(_flat(keys))
    try:
        return _File.model_validate(table)
    except ValidationError as error:
        faults = explain(error, table, _File.model_json_schema())
        path, sentence = next(iter(faults.items()))
        raise InputError(line(str(file), path, sentence, table, {})) from None


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield keys by their dotted names, quoted or not."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


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
        variants[variant] = moved(origin, stated.sets, where)
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
    return load(folder / name if (folder / name).is_file() else name)


def _si(written: Quantity, where: str) -> float:
    value = quantity(written, where) if isinstance(written, str) else float(written)
    if not isfinite(value):
        raise InputError(f"{where}: {written} is not finite; write a finite number")
    return value


MOST = 24  # steps of least squares
STEP = 0.05  # share of a range to either side: wide enough for differences to exceed chance
FINE = 0.001  # the same share if nothing is random
SETTLED = 1e-4  # step (share of the range) and relative gain below which a search ends
ABSENT = 1e3  # residual of a number without a value, such as a loss that is never reached
EDGE = 0.005  # share of a range: if closer to an end, the fit may lie beyond it
FREE = 0.5  # a key whose interval is this wide (half width, share of range) is undetermined
FLAT = 1e-3  # least derivative in a direction, so that its interval is finite

Reading = list[float]
"""A number over all seeds, then for every seed."""


@dataclass(frozen=True)
class FitResult:
    """The fitted values of keys, and the result for every target; see `json`."""

    scenario: Scenario
    file: str
    keys: list[dict[str, Any]]
    fitted: list[dict[str, Any]]
    held_out: list[dict[str, Any]]
    undetermined: list[str]
    unexplained: dict[str, Any]
    evaluations: int
    seeds: list[int]

    @property
    def sets(self) -> list[str]:
        """The fitted values as arguments of `--set`."""
        return [f"{row['key']}={row['text']}" for row in self.keys]

    @property
    def sentences(self) -> list[str]:
        """Sentences on keys and targets that the fit leaves open."""
        ends = [row["key"] for row in self.keys if row["at_end"]]
        free, anywhere = " and ".join(self.undetermined), "the targets allow half the range or more"
        are = "are" if len(self.undetermined) > 1 else "is"
        return [
            *([f"{free} {are} not determined: {anywhere}."] if free else []),
            *(f"{key} is at an end of its range: widen it, or question the model." for key in ends),
            self.unexplained["sentence"],
        ]

    def json(self) -> dict[str, Any]:
        """Return the document of `paceline fit --json`: docs/how-to/fit-a-scenario.md."""
        document = {key: value for key, value in vars(self).items() if key != "scenario"}
        about = {"title": self.scenario.title, "file": self.scenario.file}
        document |= {"scenario": about, "targets": document.pop("file"), "sets": self.sets}
        return dict(statistics.jsonable(document))


def fit(  # noqa: PLR0913 - the options of the command
    scenario: Scenario | str | Path,
    targets: str | Path,
    *,
    seeds: int | None = None,
    seed: int = 0,
    engine: str = "auto",
    jobs: int = 1,
    dask: str | None = None,
    out: str | Path | Destination | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    force: bool = False,
) -> FitResult:
    """Find the values of keys with which a scenario's numbers meet targets.

    `targets`: a TOML file of keys with ranges and of numbers with tolerances; see
    docs/how-to/fit-a-scenario.md. Targets held out are only predicted. The other options are those
    of `simulate`. With `out`, the results of simulations stay there, so that the same call resumes.
    Raises InputError, also if no key moves some target.
    """
    base = loaded(scenario)
    file = Path(targets)
    keys, wanted = read_targets(file, base)
    numbers = seed_range(base, seeds, seed)
    execution = Execution(engine, jobs, dask)
    ends = _ends(keys, wanted)
    if not force:
        size.demand([(end, numbers) for end in ends], execution)
    how = {"seeds": seeds, "seed": seed, "engine": engine}
    stated = settings("fit", base, targets=untrusted.text(file), **how)
    with executors.study(execution, store.FitDirectory, stated, out, overwrite) as place:
        result = _Search(keys, wanted, numbers, place, progress, file).result(base)
        if place.directory:
            place.directory.replace({}, result.json())
    return result


def _ends(keys: Keys, targets: Sequence[Target]) -> list[Scenario]:
    """Return the scenarios at both ends of the ranges; refuse targets that they cannot have."""
    ends = list[Scenario]()
    for place in (0.0, 1.0):
        for target in targets:
            end = target.moved(keys, [limits.at(place) for limits in keys.values()])
            demand_algorithms(end)
            target.labels(end)
            ends.append(end)
    return ends


def _spread(keys: Keys) -> int:
    """Return the number of points to try first."""
    return 1 << max(3, ceil(log2(4 * len(keys))))


@dataclass
class _Search:
    """The search for positions of the keys, with `readings` by values and target."""

    keys: Keys
    targets: Sequence[Target]
    seeds: range
    place: executors.Place
    progress: Progress | None
    file: Path
    readings: dict[tuple[Any, ...], Reading] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        self.limits = [*self.keys.values()]
        self.used = [target for target in self.targets if not target.held]
        self.held = [target for target in self.targets if target.held]
        self.certain = all(target.variant.deterministic for target in self.used)

    def at(self, targets: Sequence[Target], places: Iterable[np.ndarray]) -> np.ndarray:
        """Return readings, shape (places, targets, 1 + seeds)."""
        pairs = [zip(self.limits, place.tolist(), strict=True) for place in places]
        points = [tuple(limits.at(z) for limits, z in pair) for pair in pairs]
        missing: dict[tuple[Any, ...], list[Target]] = {}
        for point in dict.fromkeys(points):
            for target in targets:
                if (point, target.label) not in self.readings:
                    missing.setdefault((point, id(target.variant)), []).append(target)
        for (point, _), wanted in missing.items():
            readings = self._readings(wanted[0].moved(self.keys, point), wanted)
            self.readings |= {
                (point, at.label): row for at, row in zip(wanted, readings, strict=True)
            }
        return np.array([[self.readings[p, target.label] for target in targets] for p in points])

    def _readings(self, scenario: Scenario, targets: Sequence[Target]) -> list[Reading]:
        """Simulate the algorithms that targets name, and read the number of every target."""
        variants = len({id(target.variant) for target in self.targets})
        most = variants * (_spread(self.keys) + MOST * (1 + 2 * len(self.keys)))
        if self.progress:
            self.progress(min(self.count, most), most)
        labels = [target.labels(scenario) for target in targets]
        named = tuple(one for one in scenario.algorithm if one.label in chain(*labels))
        scenario = scenario.model_copy(update={"algorithm": named})
        # The first runs may show that a target's number does not exist: then no file stays.
        place = self.place if self.readings else self.place._replace(directory=None)
        whole = run_on(place, scenario, self.seeds)
        self.count += 1
        results = [whole, *(alone(whole) if len(self.seeds) > 1 else [whole])]
        rows = [{row["label"]: row for row in result.algorithms} for result in results]
        pairs = zip(targets, labels, strict=True)
        return [[target.of(row, at) for row in rows] for target, at in pairs]

    def residuals(self, targets: Sequence[Target], places: Iterable[np.ndarray]) -> np.ndarray:
        """Return by how many standard errors targets are missed, shape (places, targets)."""
        missed = self.at(targets, places)[..., 0] - [target.value for target in targets]
        missed = missed / np.array([target.tolerance / NORMAL for target in targets])
        return np.asarray(np.where(np.isfinite(missed), missed, ABSENT))

    def jacobian(self, targets: Sequence[Target], place: np.ndarray) -> np.ndarray:
        """Return the residuals' derivatives by the keys' positions, shape (targets, keys)."""
        least = [1 / (limits.high - limits.low) if limits.whole else 0.0 for limits in self.limits]
        steps = np.diag(np.maximum(FINE if self.certain else STEP, least))
        ends = np.clip([place - steps, place + steps], 0, 1)
        there = self.residuals(targets, [*ends[0], *ends[1]]).reshape(2, len(self.limits), -1)
        apart = np.where((there == ABSENT).any(axis=0), 0.0, there[1] - there[0])
        pairs = [zip(self.limits, end.diagonal().tolist(), strict=True) for end in ends]
        low, high = (np.array([one.place(one.at(z)) for one, z in pair]) for pair in pairs)
        wide = np.where(high > low, high - low, np.inf)  # between the values that are simulated
        return np.asarray((apart / wide[:, None]).T)

    def best(self) -> np.ndarray:
        """Return the best position. Raises InputError for a number that never changes."""
        from scipy.optimize import least_squares  # noqa: PLC0415 - slow to import
        from scipy.stats import qmc  # noqa: PLC0415

        spread = qmc.Sobol(len(self.limits), seed=0).random(_spread(self.keys))
        for target, column in zip(self.used, self.at(self.used, spread)[..., 0].T, strict=True):
            about = f"{self.file}: target {target.label}: {target.text}"
            if not np.isfinite(column).any():
                raise InputError(f"{about} has no value at any tried point")
            if np.isfinite(column).all() and np.ptp(column) <= 1e-12 * np.abs(column).max():
                raise InputError(
                    f"{about} is {column[0]:.6g} at all values of the keys; name a key on "
                    "which it depends, or hold the target out"
                )

        def missed(place: np.ndarray) -> np.ndarray:
            return np.asarray(self.residuals(self.used, [place])[0])

        first = min(spread, key=lambda place: sum(missed(place) ** 2))
        close = SETTLED**2 if self.certain else SETTLED
        how: dict[str, Any] = {"xtol": close, "ftol": close, "gtol": None, "max_nfev": MOST}
        inside, slope = np.clip(first, SETTLED, 1 - SETTLED), partial(self.jacobian, self.used)
        end = least_squares(missed, inside, slope, bounds=(0, 1), **how).x
        return min(first, end, key=lambda place: sum(missed(place) ** 2))

    def result(self, base: Scenario) -> FitResult:
        """Search, and return the values."""
        best = self.best()
        residuals, freedom = self.residuals(self.used, [best])[0], len(self.used) - len(best)
        reduced = float(residuals @ residuals) / freedom if freedom > 0 else nan
        widened = float(np.fmax(1.0, reduced**0.5))
        covariance = self._covariance(best, widened)
        pairs = zip(self.keys, best, covariance.diagonal(), strict=True)
        keys = [self._key_row(name, float(x), float(variance)) for name, x, variance in pairs]
        fitted = [self._row(target, best) for target in self.used]
        missed = [row for row in fitted if row["verdict"] != "met"]
        missed.sort(key=lambda row: -abs(row["residual"]))
        sentence = "Every target is met within its tolerance."
        if missed:
            most, by = missed[0]["target"], abs(missed[0]["residual"])
            sentence = f"{len(missed)} of {len(fitted)} targets are missed, most of all {most}, "
            wider = f"; intervals are therefore {widened:.1f} times as wide" * (widened > 1)
            sentence += f"by {by:.1f} tolerances{wider}."
        return FitResult(
            base,
            str(self.file),
            keys,
            fitted,
            [self._predicted(target, best, covariance) for target in self.held],
            [row["key"] for row in keys if row["interval"] is None],
            {
                "targets": [row["target"] for row in missed],
                "reduced_chi2": reduced,
                "widened": widened,
                "sentence": sentence,
            },
            self.count,
            list(self.seeds),
        )

    def _covariance(self, best: np.ndarray, widened: float) -> np.ndarray:
        """Return the covariance of positions, huge in directions that no target determines."""
        jacobian = self.jacobian(self.used, best)
        jacobian = np.pad(jacobian, ((0, max(0, len(best) - len(jacobian))), (0, 0)))
        scale = np.array([target.tolerance / NORMAL for target in self.used])
        by_seed = self.at(self.used, [best])[0, :, 1:] / scale[:, None]
        variance = np.eye(len(jacobian)) * widened**2
        if (several := by_seed.shape[1]) > 1:
            noise = np.atleast_2d(np.cov(by_seed)) / several
            variance[: len(scale), : len(scale)] += np.nan_to_num(noise)
        left, sizes, directions = np.linalg.svd(jacobian, full_matrices=False)
        back = (directions.T / np.maximum(sizes, FLAT)) @ left.T
        return np.asarray(back @ variance @ back.T)

    def _row(self, target: Target, best: np.ndarray) -> dict[str, Any]:
        """Return the result for a target."""
        value, *seeds = self.at([target], [best])[0, 0]
        error = float(np.std(seeds, ddof=1) / len(seeds) ** 0.5) if len(seeds) > 1 else None
        off = (value - target.value) / target.tolerance
        row = {"target": target.label, "number": target.text, "value": target.value}
        row |= {"tolerance": target.tolerance, "found": value, "standard_error": error}
        return row | {"residual": off, "verdict": "met" if abs(off) <= 1 else "missed"}

    def _predicted(
        self, target: Target, best: np.ndarray, covariance: np.ndarray
    ) -> dict[str, Any]:
        """Return the result for a held-out target, with an interval."""
        row = self._row(target, best)
        slope = self.jacobian([target], best)[0] * target.tolerance / NORMAL
        half = NORMAL * np.hypot((slope @ covariance @ slope) ** 0.5, row["standard_error"] or 0.0)
        return row | {"interval": [row["found"] - half, row["found"] + half]}

    def _key_row(self, name: str, place: float, variance: float) -> dict[str, Any]:
        limits = self.keys[name]
        value, half = limits.at(place), NORMAL * variance**0.5
        return {
            "key": name,
            "value": value,
            "unit": limits.unit,
            "text": limits.text(value),
            "interval": [*map(limits.at, (place - half, place + half))] if half < FREE else None,
            "range": [limits.low, limits.high],
            "at_end": min(place, 1 - place) < EDGE,
        }
