"""The sliders of a scenario: which settings each one moves, and the values that it offers.

A slider moves all settings of one meaning, such as the latencies of all links: it shows their value
where they agree, and a factor that multiplies each of them where they differ.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from ...distributions.law import Law
from ...distributions.parametric import Constant
from ...errors import InputError
from ...inputs.messages import KeyPath
from ...load.load import parse
from ...scenario.scenario import Scenario
from ...scenario.tables import LearningCurve, NoObjective
from . import scales, spread
from .scales import Kind

RANGE = 100.0  # largest factor by which a slider multiplies or divides a value
WORKERS = 256  # the slider's upper end, unless the scenario has more


@dataclass(frozen=True)
class Setting:
    """One value of a scenario's table: its path, the value (SI), and how to write another.

    `write` takes the new value and its text, which is empty for a factor.
    """

    path: KeyPath
    own: float
    write: Callable[[float, str], Any]


@dataclass(frozen=True)
class Control:
    """One slider. `texts`: its values, in ascending order; `own` is the scenario's.

    `factor`: its values multiply the value of each of `places`.
    """

    name: str
    label: str
    about: str
    kind: Kind
    places: tuple[Setting, ...]
    texts: tuple[str, ...]
    own: str
    factor: bool

    def read(self, text: str) -> float:
        """Return the value of a text. Raises ValueError where it is out of the slider's range."""
        value = scales.read(text.strip(), self.kind)
        low, high = (scales.read(self.texts[end], self.kind) for end in (0, -1))
        if not low * (1 - 1e-9) <= value <= high * (1 + 1e-9):
            raise ValueError(f"out of range; write {self.texts[0]} to {self.texts[-1]}")
        return value

    def nearest(self, text: str) -> int:
        """Return the index of the slider's value nearest to a text."""
        value = self.read(text)
        steps = [scales.read(each, self.kind) for each in self.texts]
        return min(range(len(steps)), key=lambda index: abs(steps[index] - value))

    def changes(self, text: str) -> dict[KeyPath, Any]:
        """Return the values to write into the scenario's table, by path. Raises ValueError."""
        value = self.read(text)
        if not self.factor:
            return {place.path: place.write(value, text.strip()) for place in self.places}
        moved = [(place, value * place.own) for place in self.places]
        return {place.path: place.write(new, "") for place, new in moved}


def put(table: Any, changes: Mapping[KeyPath, Any]) -> None:
    """Write values into a table, and create missing tables."""
    for path, value in changes.items():
        here = table
        for part in path[:-1]:
            here = here.setdefault(part, {}) if isinstance(part, str) else here[part]
        here[path[-1]] = deepcopy(value)


def changed(scenario: Scenario, changes: Mapping[KeyPath, Any], folder: Any) -> Scenario:
    """Return the scenario with other values. Raises InputError."""
    table = deepcopy(scenario.table)
    put(table, changes)
    return parse(table, file=scenario.file, folder=folder)


def controls(scenario: Scenario, folder: Any) -> tuple[Control, ...]:
    """Return the sliders that have something to move in a scenario."""
    made = (
        *(make(scenario) for make in (_latency, _average, _bandwidth, _straggling, _workers)),
        _steps(scenario, "tau", "Period τ", "local steps between averages", "tau", "tau0"),
        _steps(scenario, "delay", "Delay", "steps until an average is needed", "delay"),
        _lr(scenario),
    )
    found = (_accepted(control, scenario, folder) for control in made if control)
    return tuple(control for control in found if control)


def _accepted(control: Control, scenario: Scenario, folder: Any) -> Control | None:
    """Keep only values that the scenario accepts; None if that leaves a single one."""

    def accepts(text: str) -> bool:
        try:
            changed(scenario, control.changes(text), folder)
        except (InputError, ValueError):
            return False
        return True

    ends = [accepts(control.texts[0]), accepts(control.texts[-1])]
    if all(ends):
        return control
    texts = tuple(text for text in control.texts if text == control.own or accepts(text))
    return replace(control, texts=texts) if len(texts) > 1 else None


class _Named(NamedTuple):
    """What a control is called, what it moves, and the kind of its values."""

    name: str
    label: str
    about: str
    kind: Kind


def _control(
    named: _Named, places: list[Setting], texts: Callable[[float, Kind], list[str]]
) -> Control | None:
    if not places:
        return None
    name, label, about, kind = named
    own = places[0].own
    factor = any(not math.isclose(place.own, own) for place in places)
    if factor:
        kind, own = "number", 1.0
        label, about = f"{label} ×", f"{about}; a factor that multiplies each value"
    own_text = scales.write(own, kind)
    offered = texts(own, kind)
    return Control(name, label, about, kind, tuple(places), tuple(offered), own_text, factor)


def _around(own: float, kind: Kind) -> list[str]:
    if not own:  # only times may be zero
        return ["0 s", *scales.around(1e-3, kind, 1e-4, 10.0)]
    return scales.around(own, kind, own / RANGE, own * RANGE)


def _law(path: KeyPath, law: Law) -> Setting | None:
    """A random time, moved by its mean; its shape stays."""
    mean = law.expectation
    if isinstance(law, Constant):
        return Setting(path, mean, lambda value, text: text or f"{value:.12g} s")
    if not 0 < mean < math.inf or not spread.known(law):
        return None
    return Setting(path, mean, lambda value, _: spread.table(law.scaled(value / mean)))


def _lines(scenario: Scenario) -> Iterator[tuple[KeyPath, Any]]:
    yield ("network",), scenario.network
    for index, link in enumerate(scenario.network.link):
        yield ("network", "link", index), link


def _latency(scenario: Scenario) -> Control | None:
    network = scenario.network
    if network.duration is not None or network.regions or network.platform:
        return None
    laws = [
        _law((*path, "latency"), line.latency)
        for path, line in _lines(scenario)
        if line.latency is not None and (len(path) == 1 or "latency" in line.model_fields_set)
    ]
    places = [place for place in laws if place]
    return _control(_Named("latency", "Latency", "one way, per hop", "time"), places, _around)


def _average(scenario: Scenario) -> Control | None:
    law = scenario.network.duration
    place = _law(("network", "duration"), law) if law is not None else None
    about = "the time that one average takes (D)"
    return _control(_Named("average", "Average", about, "time"), [place] if place else [], _around)


def _bandwidth(scenario: Scenario) -> Control | None:
    if scenario.network.regions or scenario.network.platform:
        return None

    def rate(value: float, text: str) -> str:
        return text or f"{8 * value:.12g} bit/s"

    places = [
        Setting((*path, "bandwidth"), line.bandwidth, rate)
        for path, line in _lines(scenario)
        if line.bandwidth is not None
    ]
    named = _Named("bandwidth", "Bandwidth", "of each link", "bandwidth")
    return _control(named, places, _around)


def _straggling(scenario: Scenario) -> Control | None:
    cluster = scenario.cluster
    laws: list[tuple[KeyPath, Any]] = [(("cluster", "compute"), cluster.compute)]
    for index, group in enumerate(cluster.group):
        if group.compute is not None:
            laws.append((("cluster", "group", index, "compute"), group.compute))
    if any(spread.of(law) is None for _, law in laws):
        return None
    moved = [(path, law) for path, law in laws if spread.of(law)] or laws  # constants stay constant
    places = [
        Setting(path, spread.of(law) or 0.0, partial(_spread, law=law)) for path, law in moved
    ]
    alike = all(math.isclose(place.own, places[0].own) for place in places)
    high = min(
        spread.limit(law) / (1.0 if alike else place.own)
        for place, (_, law) in zip(places, moved, strict=True)
    )
    about = "standard deviation of compute times over their mean, which stays the same"
    return _control(
        _Named("straggling", "Straggling", about, "number"),
        places,
        lambda own, _: scales.evenly(own, math.floor(high * 20) / 20, 40),
    )


def _spread(value: float, _: str, law: Any) -> dict[str, Any]:
    return spread.table(spread.widened(law, value))


def _workers(scenario: Scenario) -> Control | None:
    cluster = scenario.cluster
    least = max(1, sum(group.workers for group in cluster.group))
    most = max(WORKERS, cluster.workers)
    place = Setting(("cluster", "workers"), float(cluster.workers), _count)
    return _control(
        _Named("workers", "Workers", "number of workers that train together", "count"),
        [place],
        lambda own, kind: scales.around(own, kind, least, most),
    )


def _count(value: float, _: str) -> int:
    return max(1, round(value))


def _numbers(scenario: Scenario, *keys: str) -> list[tuple[KeyPath, float]]:
    """Paths and values of plain numbers under these keys, the algorithms' own or by default."""
    found: dict[KeyPath, float] = {}
    for index, algorithm in enumerate(scenario.algorithm):
        for key in keys:
            written = algorithm.written.get(key)
            if key in algorithm.written and isinstance(written, int | float):
                shared = key not in algorithm.table
                path: KeyPath = ("optimizer", key) if shared else ("algorithm", index, key)
                found[path] = float(written)
    return list(found.items())


def _steps(scenario: Scenario, name: str, label: str, about: str, *keys: str) -> Control | None:
    places = [Setting(path, own, _count) for path, own in _numbers(scenario, *keys) if own >= 1]
    least = min((place.own for place in places), default=1.0)

    def texts(own: float, kind: Kind) -> list[str]:
        if kind == "count":
            return scales.around(own, kind, 1.0, max(RANGE, own * 10))
        return scales.around(own, kind, 1 / least, RANGE)

    return _control(_Named(name, label, about, "count"), places, texts)


def _lr(scenario: Scenario) -> Control | None:
    if isinstance(scenario.objective, NoObjective | LearningCurve):  # no rate changes anything
        return None
    places = [
        Setting(path, own, lambda value, _: float(f"{value:.12g}"))
        for path, own in _numbers(scenario, "lr")
        if own > 0
    ]
    return _control(_Named("lr", "Learning rate", "of every step", "number"), places, _around)
