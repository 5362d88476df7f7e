"""The search space of `paceline tune`: algorithms and values of their parameters."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...errors import InputError
from ...load.load import varied
from ...network.mean_cost import mean_cost
from ...objectives import build
from ...programs.program import BOUND
from ...results import consumption
from ...results.verdict import ALONE, DATA_PARALLEL
from ...scenario.scenario import OWN, Algorithm, Scenario
from ...scenario.tables import Bound, LearningCurve, NoObjective, Range
from . import parts
from .parts import Part

Values = tuple[Any, ...] | Range
Point = tuple[str, dict[str, Any]]
"""A family, and the values chosen for its parameters."""
MULTIPLIER = "local_sgd_sync_multiplier"  # an hpsgd table sets it for its scenario's local-sgd

POWERS = (1, 2, 4, 8, 16, 32, 64)
EVALUATIONS = 1000  # rough number per run, if the scenario does not set run.evaluate_every
AROUND = (0.25, 0.5, 1, 2, 4)  # factors of the scenario's learning rate
FRAGMENTS, MORE = 4, 4  # a streaming program's default, and a multiple of it
LEAST = 3  # fewest steps between fragments that leave room for an overlap of two
DEFAULTS: dict[str, tuple[int, ...]] = {
    "tau": POWERS,
    "tau0": POWERS,
    "period": POWERS[:5],
    "delay": (0, *POWERS[:6]),
    "staleness": (0, *POWERS[:6]),
}


@dataclass(frozen=True)
class Candidate:
    """One configuration: its label and its [[algorithm]] table.

    `varied`: the values chosen by the search; `family`: its entry in the space; `part`: the part of
    the cluster, None if all workers train as written; `workers`: how many train.
    """

    label: str
    table: dict[str, Any]
    varied: dict[str, Any] = field(default_factory=dict)
    family: str = ""
    part: Part | None = None
    workers: int = 0

    @property
    def name(self) -> str:
        """The name of its program."""
        return str(self.table["name"])

    def overrides(self, table: Mapping[str, Any]) -> list[str]:
        """Return the arguments of `--set` to train on its part of a scenario's cluster."""
        return self.part.overrides(table) if self.part else []

    @property
    def parameters(self) -> dict[str, Any]:
        """All parameters that its table sets."""
        written = {key: value for key, value in self.table.items() if key not in OWN}
        return written | self.varied


@dataclass(frozen=True)
class Entry:
    """An [[algorithm]] table to start from, and the values to try for parameters.

    `part`: the part of the cluster on which it trains. `late`: steps of overlap that hide a
    fragment's mean; 0: as written. `variant`: the part of its name for changes beyond its table.
    """

    table: dict[str, Any]
    choices: dict[str, Values] = field(default_factory=dict)
    part: Part | None = None
    late: int = 0
    variant: str = ""

    def random(self, key: str, generator: np.random.Generator) -> Any:
        """Return a random value of a parameter; a real number has three digits."""
        values = self.choices[key]
        if not isinstance(values, Range):
            return values[generator.integers(len(values))]
        low, high = values.low, values.high + values.whole  # a whole number is rounded down
        share = generator.random()
        value = low * (high / low) ** share if values.log else low + share * (high - low)
        value = math.floor(value) if values.whole else float(f"{value:.3g}")
        return type(value)(min(max(value, values.low), values.high))


@dataclass(frozen=True)
class Space:
    """All configurations, by family: a program, or the label of an [[algorithm]] as written.

    `every`: steps between evaluations of the loss, the same in all runs.
    """

    scenario: Scenario
    entries: dict[str, Entry]
    every: int = 1

    @property
    def limit(self) -> float:
        """Return the longest time that a run may take (seconds)."""
        return self.scenario.run.duration or math.inf

    @property
    def size(self) -> float:
        """Return the number of configurations; infinite if a range has real numbers."""
        return sum(
            math.prod(len(each) if (each := _listed(values)) else math.inf for values in choices)
            for choices in (entry.choices.values() for entry in self.entries.values())
        )

    def grid(self) -> Iterator[Point]:
        """Yield every point of a finite space."""
        for family, entry in self.entries.items():
            for chosen in itertools.product(*map(_listed, entry.choices.values())):
                yield family, dict(zip(entry.choices, chosen, strict=True))

    def first(self) -> list[Point]:
        """Return the points to begin with: every family as written, or with middle values."""
        points = []
        for family, entry in self.entries.items():
            written, choices = entry.table, entry.choices.items()
            tried = {key for key, values in choices if _tried(values, written.get(key))}
            chosen = {k: written[k] if k in tried else _middle(values) for k, values in choices}
            points.append((family, chosen))
        return points

    def samples(self) -> list[Candidate]:
        """Return the algorithms as written, without bounds; if none, the `first` points."""
        tables = [algorithm.table for algorithm in self.scenario.algorithm if not algorithm.bound]
        written = [Candidate("", table) for table in tables]
        return written or [self.candidate(*point) for point in self.first()]

    def random(self, generator: np.random.Generator) -> Point:
        """Return a random point: any family, with any values of its parameters."""
        family = str(generator.choice([*self.entries]))
        entry = self.entries[family]
        return family, {key: entry.random(key, generator) for key in entry.choices}

    def candidate(self, family: str, chosen: Mapping[str, Any]) -> Candidate:
        """Return a configuration. Raises InputError for values that are refused together."""
        entry = self.entries[family]
        table = entry.table | {key: value for key, value in chosen.items() if "." not in key}
        for key in chosen.keys() - table.keys():
            table = _with(table, key.split("."), chosen[key])
        if chosen or entry.variant:
            table.pop("label", None)  # all candidates would have the same value
        if entry.late and isinstance(table.get("tau"), int):
            one_in_flight = table["tau"] // table.get("fragments", FRAGMENTS) - 1
            if (late := min(entry.late, one_in_flight)) > 1:
                table["overlap"] = late
        part, draft = entry.part, Candidate("", table, dict(chosen), family, entry.part)
        world = self.world(draft)
        draft = replace(draft, workers=world.cluster.workers)
        algorithm = world.algorithm[0]
        if isinstance(world.objective, Bound):
            for note in build.build(world, algorithm, 0).notes:
                raise InputError(f"{algorithm.label}: {note}")
        if part is None:
            return replace(draft, label=algorithm.label)
        label = ALONE if part.name == ALONE else f"{algorithm.label} on {part.name}"
        return replace(draft, label=label, table=table | {"label": label})

    def world(self, candidate: Candidate, duration: float | None = None) -> Scenario:
        """Return a configuration's scenario, which ends after `duration` seconds."""
        table, part, whole = candidate.table, candidate.part, dict(self.scenario.table)
        whole = part.applied(whole) if part else whole
        beside = [
            algorithm
            for algorithm in whole.get("algorithm", ())
            if MULTIPLIER in algorithm and table["name"] == "local-sgd"
        ]
        whole["algorithm"] = [dict(table), *beside]
        whole.pop("tune", None)
        more = max(1, round(part.more)) if part else 1  # so that all are evaluated equally often
        whole["run"] = whole["run"] | {"evaluate_every": more * self.every}
        if duration is not None:
            whole["run"]["duration"] = f"{duration!r} s"
        return varied(self.scenario, table=whole)

    def until(self, deadline: float | None) -> "Space":
        """Return the same space with runs that end at `deadline` (seconds), else at `run.steps`."""
        gone, ends = {"duration"}, dict[str, str]()
        if deadline is not None:
            gone, ends = {"steps", "tokens"}, {"duration": f"{deadline!r} s"}
        run = {key: value for key, value in self.scenario.table["run"].items() if key not in gone}
        table = self.scenario.table | {"run": run | ends}
        return replace(self, scenario=varied(self.scenario, table=table))


def _with(table: Any, path: Sequence[str], value: Any) -> dict[str, Any]:
    """Return a table with a value at a path, such as recovery.checkpoint.every."""
    first, *rest = path
    inner = table if isinstance(table, dict) else {"policy": table}  # tables of recovery
    return inner | {first: _with(inner.get(first, {}), rest, value) if rest else value}


def _tried(values: Values, value: Any) -> bool:
    if not isinstance(values, Range):
        return value in values
    number = type(value) in (int, float) and values.low <= value <= values.high
    return number and (type(value) is int or not values.whole)


def _middle(values: Values) -> Any:
    if not isinstance(values, Range):
        return values[len(values) // 2]
    low, high = values.low, values.high
    middle = math.sqrt(low * high) if values.log else (low + high) / 2
    return round(middle) if values.whole else middle


def _listed(values: Values) -> Sequence[Any]:
    """Return all values; none of a range of real numbers."""
    if not isinstance(values, Range):
        return values
    return range(int(values.low), int(values.high) + 1) if values.whole else ()


def space(scenario: Scenario) -> tuple[Space, list[str]]:
    """Return the search space of a scenario, from [tune] or else a default, and notes.

    A program of [tune] starts from the first [[algorithm]] of its name, or from its defaults; every
    other [[algorithm]] takes part as written, but no bounds. Raises InputError if nothing is left.
    """
    tuned = scenario.tune.programs
    notes = [*scenario.notes, *consumption.paces(scenario)]
    named = dict.fromkeys([algorithm.name for algorithm in scenario.algorithm] + [*tuned])
    bounds = [name for name in named if scenario.programs[name].bound]
    if bounds:
        notes.append(f"left out: {', '.join(bounds)}, whose {BOUND}")
    entries = _in_parts(scenario, _entries(scenario))
    if not entries:
        raise InputError(
            f"{scenario.file}: nothing to tune{''.join(f' ({note})' for note in notes)}; add an "
            "[[algorithm]] table, or list values to try in [tune], such as "
            "local-sgd = { tau = [1, 2, 4, 8] }"
        )
    if not tuned:
        notes.append(f"no [tune] in {scenario.file}, so the default values are searched")
    every, run = scenario.run.evaluate_every, scenario.run
    if every is None:
        step = min(scenario.team.mean_compute)
        ends = run.duration / step if run.duration and step else math.inf
        steps = min(ends, run.steps or math.inf)
        every = max(1, round(steps / EVALUATIONS)) if math.isfinite(steps) else 1
        often = "at every step" if every == 1 else f"every {every} steps"
        if not isinstance(scenario.objective, NoObjective):
            notes.append(f"the loss is evaluated {often}; run.evaluate_every sets this")
    return Space(scenario, entries, every), notes


def _entries(scenario: Scenario) -> dict[str, Entry]:
    """Return the families to try: those of [tune], then other algorithms without bounds."""
    entries: dict[str, Entry] = {}
    rest = [algorithm for algorithm in scenario.algorithm if not algorithm.bound]
    for name, choices in scenario.tune.programs.items():
        if not scenario.programs[name].bound:
            first = next((algorithm for algorithm in rest if algorithm.name == name), None)
            entries[name] = Entry(dict(first.table) if first else {"name": name}, dict(choices))
            rest = [algorithm for algorithm in rest if algorithm is not first]
    for algorithm in rest:
        choices_of = {} if scenario.tune.programs else _default(scenario, algorithm)
        family = algorithm.name if choices_of and algorithm.name not in entries else algorithm.label
        while family in entries:  # a label may be another program's name
            family += "'"
        entries[family] = Entry(dict(algorithm.table), choices_of)
    return entries


def _in_parts(scenario: Scenario, entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the families on each part of the cluster; one worker alone is data-parallel."""
    pieces: list[Part | None] = [*parts.parts(scenario)] or [None]
    one = parts.alone(scenario)
    if one and one.counts not in [piece.counts for piece in pieces if piece]:
        pieces.append(one)
    alone = {"ssgd": Entry({"name": "ssgd"})}
    plain = {
        family: entry for family, entry in entries.items() if entry.table["name"] in DATA_PARALLEL
    }
    expanded = dict[str, Entry]()
    for part in pieces if entries else ():
        families = entries if part is None or sum(part.counts) > 1 else plain or alone
        for family, entry in (alone if part is one and one else families).items():
            for variant in _streamed(scenario, replace(entry, part=part)):
                where = f" on {part.name}" if part else ""
                expanded[family + variant.variant + where] = variant
    return expanded


def _streamed(scenario: Scenario, entry: Entry) -> Iterator[Entry]:
    """Yield a family, and variants whose overlap or fragments hide the average it waits for."""
    yield entry
    written = entry.table.keys() | entry.choices.keys()
    fields = scenario.programs[entry.table["name"]].parameters.model_fields
    if not {"overlap", "fragments"} <= fields.keys() or written & {"overlap", "codec"}:
        return
    tau: Values = entry.choices.get("tau", (entry.table.get("tau"),))
    tried: Values = entry.choices.get("fragments", (entry.table.get("fragments", FRAGMENTS),))
    few = FRAGMENTS if isinstance(tried, Range) or len(tried) > 1 else int(tried[0])
    late = _steps_of_mean(scenario, entry.part, few)
    variants: list[tuple[str, dict[str, int], int]] = [("overlap", {}, late)]
    if "fragments" not in written:
        variants.append(("fragments", {"fragments": MORE * few}, 0))
    for name, keys, steps in variants if late > 1 else ():
        values = tau
        if isinstance(tau, tuple):
            whole = [x for x in tau if isinstance(x, int)]
            even = [x for x in whole if x % (MORE * few) == 0]
            values = tuple([x for x in whole if x >= LEAST * few] if steps else even)
        if values:
            choices = entry.choices | ({"tau": values} if "tau" in entry.choices else {})
            table = entry.table | keys
            yield replace(entry, table=table, choices=choices, late=steps, variant=f" ({name})")


def _steps_of_mean(scenario: Scenario, part: Part | None, fragments: int) -> int:
    """Return how many steps a fragment's mean takes on a part of the cluster; 0: unknown."""
    table = part and part.applied(scenario.table)
    world = varied(scenario, table=table) if table else scenario
    compute = max(world.team.mean_compute)
    if world.cluster.workers == 1 or not 0 < compute < math.inf:
        return 0
    cost = mean_cost(world)
    seconds = cost.transmission / fragments + cost.latency
    return math.ceil(seconds / compute) if seconds < math.inf else 0


def _default(scenario: Scenario, algorithm: Algorithm) -> dict[str, Values]:
    """Return the default values to try, including those that the scenario sets."""
    fields = scenario.programs[algorithm.name].parameters.model_fields
    written, workers = algorithm.written, scenario.cluster.workers
    choices: dict[str, tuple[float, ...]] = {
        key: values for key, values in DEFAULTS.items() if key in fields
    }
    lr = written.get("lr")
    if isinstance(lr, int | float) and not isinstance(scenario.objective, Bound | LearningCurve):
        choices["lr"] = tuple(float(lr * factor) for factor in AROUND)
    for key in ("k", "quorum"):
        if key in fields:
            choices[key] = (*(k for k in POWERS if k < workers), workers)
    return {
        key: tuple(sorted({*values, written.get(key, values[0])}))
        for key, values in choices.items()
        if isinstance(written.get(key, values[0]), int | float)
    }
