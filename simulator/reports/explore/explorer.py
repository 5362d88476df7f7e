"""A scenario with sliders: the settings they move, their values, and predictions.

Most sliders multiply all settings of one meaning, such as the latencies of all links, by a factor.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...cluster.prices import HOURLY
from ...errors import InputError
from ...inputs import paths
from ...inputs.messages import KeyPath
from ...inputs.toml_text import write_toml
from ...inputs.units import to_si
from ...load.document import override
from ...load.load import parse
from ...programs.codecs.codec import CODECS
from ...results.figures import curves, interactive
from ...results.figures.chart import apart
from ...scenario.scenario import Scenario
from ...scenario.tables import LearningCurve, NoObjective
from ...studies.result import Result
from ...studies.simulate import simulate
from ...studies.tune import parts

ELSEWHERE = "# It names files outside its folder: run paceline simulate --allow-paths\n"
FACTORS = [f"{factor:.2g}" for factor in np.geomspace(0.01, 100.0, 81)]
TIMES = ("latency", "jitter", "duration")
COUNTS = ("tau", "tau0", "delay")  # whole steps
WORKERS = 256  # the slider's upper end, unless the scenario has more
OVERLAP = 20  # steps: the slider's upper end, unless the scenario has more
WRITTEN = "as written"  # values of algorithms that differ
REMEMBERED = 32  # results that stay in memory


class Control(NamedTuple):
    """One slider: the texts of its values in ascending order; `own` is the scenario's.

    `changes` returns the values to write into the scenario's table for a text, by path.
    """

    name: str
    label: str
    about: str
    texts: Sequence[str]
    own: str
    changes: Callable[[str], Mapping[KeyPath, Any]]


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


def multiplied(scenario: Scenario, by: float, *keys: str) -> dict[KeyPath, Any]:
    """Return the values under these keys in the scenario's table, times `by`, by path.

    Values that cannot grow, such as zero, are left out.
    """
    homes: dict[KeyPath, Any] = {
        (name,): scenario.table.get(name, {}) for name in ("network", "server", "cost", "optimizer")
    }
    for path in (("network", "link"), ("cluster", "group"), ("algorithm",)):
        tables = reduce(lambda table, key: table.get(key, {}), path, scenario.table)
        homes |= {(*path, at): table for at, table in enumerate(tables)}
    return {
        (*place, key): _times(key, table[key], by)
        for place, table in homes.items()
        for key in keys
        if key in table and _times(key, table[key], 2.0) != _times(key, table[key], 1.0)
    }


def _times(key: str, value: Any, by: float) -> Any:
    """Return a value of a scenario's table, times `by`; anything but a number or time as it is."""
    if isinstance(value, int | float):
        count = key in COUNTS and value and not isinstance(value, bool)
        return max(1, round(value * by)) if count else float(f"{value * by:.12g}")
    if key == "bandwidth":
        return f"{to_si(value, key) * by!r} B/s"
    return parts.scaled(value, by) if key in TIMES else value


def controls(scenario: Scenario) -> dict[str, Control]:
    """Return the sliders that have a setting to move in a scenario, by name."""
    fixed = scenario.network.regions or scenario.network.platform
    rates = not isinstance(scenario.objective, NoObjective | LearningCurve)
    factors: tuple[tuple[str, str, str, Any, Sequence[str]], ...] = (
        ("latency", "Latency", "one way, per hop", not fixed and not scenario.network.duration,
         ["latency"]),
        ("average", "Average", "the time of one average (D)", not fixed, ["duration"]),
        ("bandwidth", "Bandwidth", "of each link", not fixed, ["bandwidth"]),
        ("tau", "Period τ", "local steps between averages", True, ["tau", "tau0"]),
        ("delay", "Delay", "steps until an average is needed", True, ["delay"]),
        ("price", "Price", "of a node or device for an hour", True, HOURLY),
        ("lr", "Learning rate", "of every step", rates, ["lr"]),
    )  # fmt: skip
    every = [*_sites(scenario), *_workers(scenario), *_overlaps(scenario), *_codecs(scenario)]
    for name, label, words, there, keys in factors:
        if there and multiplied(scenario, 1.0, *keys):

            def changes(text: str, keys: Sequence[str] = keys) -> dict[KeyPath, Any]:
                return multiplied(scenario, float(text), *keys)

            about = f"{words}; a factor that multiplies each value"
            every.append(Control(name, f"{label} ×", about, FACTORS, "1", changes))
    return {control.name: control for control in every}


def _counts(low: int, high: int, own: int) -> list[str]:
    """Return the texts of some counts from `low` to `high`, among them the scenario's `own`."""
    spaced = np.geomspace(low, max(high, own), len(FACTORS)).round().astype(int).tolist()
    return [*map(str, sorted({*spaced, own}))]


def _sites(scenario: Scenario) -> Iterator[Control]:
    """Yield the slider of the number of sites, if there are several."""
    apart = scenario.network.regions or isinstance(scenario.objective, LearningCurve)
    many = len(parts.sites(scenario)) if scenario.cluster.group and apart else 1

    def changes(text: str) -> dict[KeyPath, Any]:
        table = parts.first_sites(scenario, int(text)).applied(scenario.table)
        return {(key,): table[key] for key in ("cluster", "objective", "cost") if key in table}

    if many > 1:
        about, texts = "the first sites, at the same global batch", [*map(str, range(1, many + 1))]
        yield Control("sites", "Sites", about, texts, str(many), changes)


def _workers(scenario: Scenario) -> Iterator[Control]:
    """Yield the slider of the number of workers, unless places define it."""
    cluster, network = scenario.cluster, scenario.network
    if not (network.regions or network.platform or [*_sites(scenario)]):
        least, own = max(1, sum(group.workers for group in cluster.group)), cluster.workers
        about, texts = "number of workers that train together", _counts(least, WORKERS, own)

        def changes(text: str) -> dict[KeyPath, Any]:
            return {("cluster", "workers"): int(text)}

        yield Control("workers", "Workers", about, texts, str(own), changes)


def _overlaps(scenario: Scenario) -> Iterator[Control]:
    """Yield the slider of the overlap of all algorithms that have one."""
    every = [one.parameters.get("overlap") for one in scenario.algorithm]
    there = {at: value for at, value in enumerate(every) if type(value) is int and value > 0}

    def changes(text: str) -> dict[KeyPath, Any]:
        return {("algorithm", at, "overlap"): int(text) for at in there}

    if there:
        about, own = "steps that an average may take while workers go on", min(there.values())
        yield Control("overlap", "Overlap", about, _counts(1, OVERLAP, own), str(own), changes)


def _codecs(scenario: Scenario) -> Iterator[Control]:
    """Yield the slider of codecs by name that suit all algorithms with a codec."""
    indices = [at for at, one in enumerate(scenario.algorithm) if "codec" in one.parameters]
    written = [scenario.algorithm[at].written.get("codec", "raw") for at in indices]

    def changes(name: str) -> dict[KeyPath, Any]:
        return {("algorithm", at, "codec"): name for at in indices}

    names = list[str]()
    for name in CODECS.names if indices else ():
        with suppress(InputError):
            changed(scenario, changes(name))
            names.append(name)
    same = next((name for name in names if all(name == codec for codec in written)), None)
    default = same or WRITTEN
    texts = [*dict.fromkeys([default, *names])]
    if len(texts) > 1:
        about = "the codec of messages, if an algorithm has one"
        yield Control("codec", "Codec", about, texts, default, changes)


class Explorer:
    """A scenario, its sliders, and the results computed so far.

    A state maps slider names to the texts of values that differ from the scenario's.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.controls = scenario, controls(scenario)
        self._simulated = lru_cache(REMEMBERED)(
            lambda *state: simulate(self.apply(dict(state)) if state else scenario)
        )

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


def figures(result: Result) -> dict[str, Any]:
    """Return the page's figure of the error against time, for figures.js."""
    scenario, names = result.scenario, apart([*result.groups])
    groups = dict(zip(names, result.groups.values(), strict=True))
    rows = [row | {"label": name} for name, row in zip(names, result.algorithms, strict=True)]
    loss = curves.LOSS_NAMES.get(scenario.objective.kind, "loss")
    panel = curves.error_panel(curves.of_groups(groups, rows), scenario.run.target_loss, loss)
    return {"error": interactive.spec(replace(panel, height=440))}


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
