"""A scenario with sliders: the settings they move, their values, and predictions.

A slider moves all settings of one meaning, such as the latencies of all links. It shows their value
if they agree, and a factor that multiplies them if they differ.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial, reduce
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ...cluster.prices import HOURLY
from ...distributions.law import BY_NAME
from ...errors import InputError
from ...inputs import paths
from ...inputs.messages import KeyPath
from ...inputs.toml_text import write_toml
from ...inputs.units import to_si
from ...load.document import override
from ...load.load import parse
from ...programs.codecs.codec import CODECS
from ...results.figures import curves, interactive
from ...results.figures.chart import Line, Look, apart
from ...results.statistics import time_unit
from ...scenario.scenario import Scenario
from ...scenario.tables import LearningCurve, NoObjective
from ...studies.result import Result
from ...studies.simulate import simulate
from ...studies.tune import parts

Kind = Literal["time", "bandwidth", "count", "number"]
ELSEWHERE = "# It names files outside its folder: run paceline simulate --allow-paths\n"
RANGE = 100.0  # largest factor by which a slider multiplies or divides a value
PER_DECADE = 20  # values of a slider
WORKERS = 256  # the slider's upper end, unless the scenario has more
OVERLAP = 20  # steps: the slider's upper end, unless the scenario has more
WRITTEN = "as written"  # codecs that differ, or have parameters
SPREAD = 3.0  # largest standard deviation of compute times over their mean
REMEMBERED = 32  # results that stay in memory
UNITS = {
    "time": ((1e-9, "ns"), (1e-6, "us"), (1e-3, "ms"), (1.0, "s")),
    "bandwidth": ((125.0, "kbit/s"), (125e3, "Mbit/s"), (125e6, "Gbit/s")),
}


def write(value: float, kind: Kind, digits: int = 4) -> str:
    """Format a value in SI units with significant `digits` and the largest unit that fits."""
    if kind not in UNITS:
        return str(round(value)) if kind == "count" else f"{value:.{digits}g}"
    fitting = [unit for unit in UNITS[kind] if unit[0] <= value * (1 + 1e-9)]
    size, name = fitting[-1] if fitting else UNITS[kind][value == 0 and -1]
    return f"{value / size:.{digits}g} {name}"


class Setting(NamedTuple):
    """One value of a scenario's table: its path, the value (SI), and a function to write it."""

    path: KeyPath
    own: float
    write: Callable[[float], Any]


@dataclass(frozen=True)
class Control:
    """One slider. `values`: its values in ascending order, by their texts; `own` is the scenario's.

    `factor`: whether its values multiply those of `places`.
    """

    name: str
    label: str
    about: str
    places: tuple[Setting, ...]
    values: Mapping[str, float]
    own: str
    factor: bool = False

    @cached_property
    def texts(self) -> list[str]:
        """The texts of the values, in ascending order."""
        return [*self.values]

    def changes(self, text: str) -> dict[KeyPath, Any]:
        """Return the values to write into the scenario's table, by path."""
        value = self.values[text]
        return {one.path: one.write(value * (one.own if self.factor else 1)) for one in self.places}


def put(table: Any, changes: Mapping[KeyPath, Any]) -> None:
    """Write values into a table, and create missing tables."""
    for path, value in changes.items():
        here = table
        for part in path[:-1]:
            here = here.setdefault(part, {}) if isinstance(part, str) else here[part]
        here[path[-1]] = deepcopy(value)


def changed(scenario: Scenario, changes: Mapping[KeyPath, Any]) -> Scenario:
    """Return the scenario with other values. Raises InputError."""
    table = deepcopy(scenario.table)
    put(table, changes)
    return parse(table, file=scenario.file, folder=Path(scenario.file).parent)


_Row = tuple[str, str, str, Kind, list[Setting], tuple[float, float] | None]
"""Name, label, explanation and kind of a slider, its settings, and its least and largest value."""


def controls(scenario: Scenario) -> tuple[Control, ...]:
    """Return the sliders that have a setting to move in a scenario."""
    cluster, sites = scenario.cluster, [*_sites(scenario)]
    fixed = scenario.network.regions or scenario.network.platform
    least = max(1, sum(group.workers for group in cluster.group))
    workers = [] if sites or fixed else [Setting(("cluster", "workers"), cluster.workers, _count)]
    late = [*_written(scenario, "count", "overlap"), *_late(scenario)]

    def line(key: str, kind: Kind) -> list[Setting]:
        return [] if fixed else [*_written(scenario, kind, key)]

    rates = not isinstance(scenario.objective, NoObjective | LearningCurve)
    described: tuple[_Row, ...] = (
        ("sites", "Sites", "the first sites, at the same global batch", "count",
         sites, (1, parts.count_sites(scenario))),
        ("latency", "Latency", "one way, per hop", "time",
         [] if scenario.network.duration else line("latency", "time"), None),
        ("average", "Average", "the time of one average (D)", "time",
         line("duration", "time"), None),
        ("bandwidth", "Bandwidth", "of each link", "bandwidth",
         line("bandwidth", "bandwidth"), None),
        ("straggling", "Straggling", "standard deviation of compute times over their mean; moving "
         "it makes them gamma distributed", "number", _spreads(scenario), (0.01, SPREAD)),
        ("workers", "Workers", "number of workers that train together", "count",
         workers, (least, max(WORKERS, cluster.workers))),
        ("tau", "Period τ", "local steps between averages", "count",
         [*_written(scenario, "count", "tau", "tau0")], None),
        ("delay", "Delay", "steps until an average is needed", "count",
         [*_written(scenario, "count", "delay")], None),
        ("overlap", "Overlap", "steps that an average may take while workers go on", "count",
         late, (1, max([OVERLAP, *(place.own for place in late)]))),
        ("price", "Price", "of a node or device for an hour", "number",
         [*_written(scenario, "number", *HOURLY)], None),
        ("lr", "Learning rate", "of every step", "number",
         [*_written(scenario, "number", "lr")] if rates else [], None),
    )  # fmt: skip
    sliders = [_control(row) for row in described if row[4]]
    return (*sliders, *_codecs(scenario))


def _control(row: _Row) -> Control:
    """Return a slider of round values between `ends`, or a hundredth and 100 times the value."""
    name, label, about, kind, places, ends = row
    own = float(places[0].own)
    if factor := any(not math.isclose(place.own, own) for place in places):
        least = 1 / min(place.own for place in places) if kind == "count" else 1 / RANGE
        kind, own, ends = "number", 1.0, (least, RANGE)
        label, about = f"{label} ×", f"{about}; a factor that multiplies each value"
    elif kind == "count":
        ends = ends or (1.0, max(RANGE, own * 10))
    low, high = ends or ((own / RANGE, own * RANGE) if own else (1e-4, 10.0))
    unit = 125.0 if kind == "bandwidth" else 1.0  # round numbers of bits
    many = 1 + round(PER_DECADE * math.log10(high / low))
    values = [unit * float(f"{x:.2g}") for x in np.geomspace(low / unit, high / unit, many)]
    values = sorted({*values, own, *([0.0] if not own or name == "straggling" else [])})
    texts = dict.fromkeys(write(value, kind) for value in values)
    read = {text: to_si(text, kind) if kind in UNITS else float(text) for text in texts}
    return Control(name, label, about, tuple(places), read, write(own, kind), factor)


def _written(scenario: Scenario, kind: Kind, *keys: str) -> Iterator[Setting]:
    """Yield the positive values under these keys in the scenario's table."""
    homes: dict[KeyPath, Any] = {
        (name,): scenario.table.get(name, {}) for name in ("network", "cost", "optimizer")
    }
    for path in (("network", "link"), ("cluster", "group"), ("algorithm",)):
        tables = reduce(lambda table, key: table.get(key, {}), path, scenario.table)
        homes |= {(*path, at): table for at, table in enumerate(tables)}
    for place, table in homes.items():
        for key in keys:
            setting = _setting((*place, key), table[key], kind) if key in table else None
            if setting and setting.own > 0:
                yield setting


def _setting(path: KeyPath, value: Any, kind: Kind) -> Setting | None:
    """Return the setting of a value, of a random time by its mean; None if it cannot move."""
    if isinstance(value, str) and kind in UNITS:
        return Setting(path, to_si(value, kind), partial(write, kind=kind, digits=12))
    if isinstance(value, Mapping) and kind == "time":
        family = BY_NAME.get(value.get("dist", ""))
        mean = family.model_validate(value).expectation if family else math.inf
        if mean < math.inf:
            return Setting(path, mean, lambda x: parts.scaled(value, x / mean))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return Setting(path, value, _count if kind == "count" else lambda x: float(f"{x:.12g}"))


def _late(scenario: Scenario) -> Iterator[Setting]:
    """Yield the overlap of algorithms that have one by default."""
    for at, algorithm in enumerate(scenario.algorithm):
        value = algorithm.parameters.get("overlap")
        if "overlap" not in algorithm.written and type(value) is int:
            yield Setting(("algorithm", at, "overlap"), value, _count)


def _spreads(scenario: Scenario) -> list[Setting]:
    """Return settings of the compute times' coefficient of variation at the same mean."""
    cluster, settings = scenario.cluster, list[Setting]()
    laws: list[tuple[KeyPath, Any]] = [(("cluster", "compute"), cluster.compute)]
    laws += [(("cluster", "group", at, "compute"), group.compute)
             for at, group in enumerate(cluster.group) if group.compute is not None]  # fmt: skip
    for path, law in laws:
        mean = law.expectation
        if not (0 < mean < math.inf and law.variance < math.inf):
            return []

        def write(value: float, mean: float = mean) -> Any:
            if not value:
                return f"{mean:.12g} s"
            return {"dist": "gamma", "mean": f"{mean:.12g} s", "shape": 1 / value**2}

        settings.append(Setting(path, math.sqrt(law.variance) / mean, write))
    return [one for one in settings if one.own] or settings  # constants stay beside random times


def _sites(scenario: Scenario) -> Iterator[Setting]:
    """Yield the setting of the number of sites, if there are several."""
    apart = scenario.network.regions or isinstance(scenario.objective, LearningCurve)
    many = parts.count_sites(scenario) if scenario.cluster.group and apart else 1
    for key in ("cluster", "objective", "cost") if many > 1 else ():
        if key in scenario.table:

            def write(value: float, key: str = key) -> Any:
                return parts.first_sites(scenario, round(value)).applied(scenario.table)[key]

            yield Setting((key,), float(many), write)


def _codecs(scenario: Scenario) -> Iterator[Control]:
    """Yield the slider of codecs by name that suit all algorithms with a codec."""
    indices = [at for at, one in enumerate(scenario.algorithm) if "codec" in one.parameters]
    written = [scenario.algorithm[at].written.get("codec", "raw") for at in indices]
    names = list[str]()
    for name in CODECS.names if indices else ():
        with suppress(InputError):
            changed(scenario, {("algorithm", at, "codec"): name for at in indices})
            names.append(name)
    same = next((name for name in names if all(name == codec for codec in written)), None)
    default = same or WRITTEN
    texts = [*dict.fromkeys([default, *names])]
    named = [Setting(("algorithm", at, "codec"), 0.0, lambda at: texts[int(at)]) for at in indices]
    if len(texts) > 1:
        about, values = "the codec of messages, if an algorithm has one", enumerate(texts)
        places = {text: float(at) for at, text in values}
        yield Control("codec", "Codec", about, tuple(named), places, default)


def _count(value: float) -> int:
    return max(1, round(value))


class Explorer:
    """A scenario, its sliders, and the results computed so far.

    A state maps slider names to the texts of values that differ from the scenario's.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self._simulated = lru_cache(REMEMBERED)(
            lambda *state: simulate(self.apply(dict(state)) if state else scenario)
        )

    @cached_property
    def controls(self) -> dict[str, Control]:
        """The sliders by name."""
        return {control.name: control for control in controls(self.scenario)}

    def changes(self, state: Mapping[str, str]) -> dict[KeyPath, Any]:
        """Return the values that a state writes into the scenario's table, by path."""
        every = self.controls.items()
        moved = (control.changes(state[name]) for name, control in every if name in state)
        return {path: value for changes in moved for path, value in changes.items()}

    def apply(self, state: Mapping[str, str]) -> Scenario:
        """Return the scenario with a state's values. Raises InputError if they clash."""
        return changed(self.scenario, self.changes(state))

    def result(self, state: Mapping[str, str]) -> Result:
        """Simulate a state like `paceline simulate`. Raises InputError."""
        return self._simulated(*state.items())


def figures(result: Result, loaded: Result | None) -> dict[str, Any]:
    """Return the page's figure of the error against time, for figures.js.

    `loaded`: the result of the scenario as loaded, drawn as thin lines.
    """
    scenario, names = result.scenario, apart([*result.groups])
    groups = dict(zip(names, result.groups.values(), strict=True))
    rows = [row | {"label": name} for name, row in zip(names, result.algorithms, strict=True)]
    drawn, longest = curves.of_groups(groups, rows), max(run.duration for run in result.runs)
    size, _ = time_unit(longest)
    column = "loss" if curves.has_loss(drawn) else "step"
    loss = curves.LOSS_NAMES.get(scenario.objective.kind, "loss")
    panel = curves.error_panel(drawn, scenario.run.target_loss, loss)
    before = list[Line]()
    for index, runs in enumerate(loaded.groups.values() if loaded else ()):
        times, values = curves.on_a_grid(runs, column)
        look = Look.at(index)._replace(width=1.2, opacity=0.45)
        mean = values.mean(axis=0)
        before.append(Line("as loaded", times / size, mean, look, marks="none", named=False))
    figure = replace(panel, lines=[*before, *panel.lines], height=440)
    return {"error": interactive.spec(figure)}


def exported(explorer: Explorer, state: Mapping[str, str]) -> str:
    """Return the text of the scenario with the sliders' values."""
    moved = ", ".join(f"{name} = {value}" for name, value in state.items()) or "unchanged"
    table = deepcopy(explorer.scenario.table)
    put(table, explorer.changes(state))
    return _as_text(explorer.scenario, table, f"paceline explore: {moved}")


def fitted(scenario: Scenario, sets: Sequence[str]) -> str:
    """Return the text of the scenario with the fitted values, given as for `--set`."""
    table = deepcopy(scenario.table)
    for assignment in sets:
        override(table, assignment)
    return _as_text(scenario, table, f"paceline fit: {', '.join(sets)}")


def _as_text(scenario: Scenario, table: dict[str, Any], what: str) -> str:
    """Write a scenario's changed table as TOML, with whole paths; `what` heads the text."""
    file = Path(scenario.file).absolute()
    named = {path: str(file.parent / name) for path, name in paths.named(table)}
    put(table, named)
    return f"# From {file.name} by {what}.\n{ELSEWHERE if named else ''}\n{write_toml(table)}"
