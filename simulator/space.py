"""What `paceline tune` may try: algorithms and values of their parameters."""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator import cluster, objective
from simulator.errors import InputError
from simulator.load import Programs, known_programs, parse
from simulator.scenario import Bound, Scenario
from simulator.sections import Range

if TYPE_CHECKING:  # optuna takes half a second to import
    from optuna import Trial

Values = tuple[Any, ...] | Range
OWN = ("name", "label")  # keys of an [[algorithm]] table that are no parameters
MULTIPLIER = "local_sgd_sync_multiplier"  # what an hpsgd says of the local-sgd beside it

POWERS = (1, 2, 4, 8, 16, 32, 64)
LOOKS = 200
AROUND = (0.25, 0.5, 1, 2, 4)  # times the learning rate that is written
DEFAULTS: dict[str, tuple[int, ...]] = {
    "tau": POWERS,
    "tau0": POWERS,
    "period": POWERS[:5],
    "delay": (0, *POWERS[:6]),
    "staleness": (0, *POWERS[:6]),
}


@dataclass(frozen=True)
class Candidate:
    """One configuration: its label and its [[algorithm]] table; `varied`: what was chosen in it."""

    label: str
    table: dict[str, Any]
    varied: dict[str, Any]

    @property
    def name(self) -> str:
        """The program."""
        return str(self.table["name"])

    @property
    def parameters(self) -> dict[str, Any]:
        """All that its table sets."""
        return {key: value for key, value in self.table.items() if key not in OWN}


@dataclass(frozen=True)
class Entry:
    """An [[algorithm]] table to start from, and the values of each parameter to try."""

    table: dict[str, Any]
    choices: dict[str, Values] = field(default_factory=dict)


@dataclass(frozen=True)
class Space:
    """All configurations, by what the search calls their family: program, or label as written."""

    scenario: Scenario
    entries: dict[str, Entry]
    programs: Programs = None

    @property
    def size(self) -> int | None:
        """How many configurations there are; None where a range of real numbers has no end."""
        total = 0
        for entry in self.entries.values():
            sizes = [_count(values) for values in entry.choices.values()]
            if None in sizes:
                return None
            total += math.prod(size for size in sizes if size is not None)
        return total

    def grid(self) -> Iterator[dict[str, Any]]:
        """Every point of a finite space, as the parameters of a trial."""
        for family, entry in self.entries.items():
            ranges = [range(_count(values) or 0) for values in entry.choices.values()]
            for indices in itertools.product(*ranges):
                chosen = zip(entry.choices.items(), indices, strict=True)
                yield {"algorithm": family} | {
                    f"{family}.{key}": index + values.low if isinstance(values, Range) else index
                    for (key, values), index in chosen
                }

    def point(self, family: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """A trial's parameters for chosen values of a family, each of which it may try."""
        return {"algorithm": family} | {
            f"{family}.{key}": value if isinstance(values, Range) else values.index(value)
            for key, values in self.entries[family].choices.items()
            for value in (chosen[key],)
        }

    def chosen(self, point: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The family and the values that a trial's parameters stand for."""
        family = point["algorithm"]
        found = {}
        for key, values in self.entries[family].choices.items():
            value = point[f"{family}.{key}"]
            if not isinstance(values, Range):
                value = values[value]
            elif not values.whole:
                value = min(max(float(f"{value:.3g}"), values.low), values.high)
            found[key] = value
        return family, found

    def suggest(self, trial: "Trial") -> tuple[str, dict[str, Any]]:
        """Let the search choose: a family, and values of its parameters."""
        family = trial.suggest_categorical("algorithm", list(self.entries))
        for key, values in self.entries[family].choices.items():
            name = f"{family}.{key}"
            if not isinstance(values, Range):
                last = len(values) - 1
                if all(type(value) in (int, float) for value in values):  # they have an order
                    trial.suggest_int(name, 0, last)
                else:
                    trial.suggest_categorical(name, list(range(last + 1)))
            elif values.whole:
                trial.suggest_int(name, int(values.low), int(values.high), log=values.log)
            else:
                trial.suggest_float(name, values.low, values.high, log=values.log)
        return self.chosen(trial.params)

    def candidate(self, family: str, chosen: Mapping[str, Any]) -> Candidate:
        """Return a configuration. Raises InputError for values that are refused together."""
        entry = self.entries[family]
        table = entry.table | dict(chosen)
        if chosen:
            table.pop("label", None)  # it would name them all alike
        world = self.world(table)
        algorithm = world.algorithm[0]
        if isinstance(world.objective, Bound):
            for note in objective.build(world, algorithm, 0).notes:
                raise InputError(f"{algorithm.label}: {note}")
        return Candidate(algorithm.label, table, dict(chosen))

    def world(
        self,
        table: Mapping[str, Any],
        duration: float | None = None,
        changed: Mapping[str, Any] | None = None,
    ) -> Scenario:
        """Return a scenario of one [[algorithm]] `table`, ended after `duration` seconds.

        `changed`: the whole scenario's table instead of the one written. Raises InputError.
        """
        whole = dict(self.scenario.table if changed is None else changed)
        beside = [
            each
            for each in whole.get("algorithm", ())
            if MULTIPLIER in each and table["name"] == "local-sgd"
        ]
        whole["algorithm"] = [dict(table), *beside]
        whole.pop("tune", None)
        if duration is not None:
            looks = {"evaluate_every": self._every(duration)}
            whole["run"] = looks | whole["run"] | {"duration": f"{duration!r} s"}
        file = self.scenario.file
        return parse(whole, file=file, folder=Path(file).parent, programs=self.programs)

    def _every(self, duration: float) -> int:
        """How many steps between looks at a run so long: `LOOKS` in all, if it never had to wait.

        A power of two, so that runs about as long are looked at alike.
        """
        step = min(cluster.mean_compute(self.scenario))
        steps = min(duration / step if step else math.inf, self.scenario.run.steps or math.inf)
        return 1 << round(math.log2(max(1.0, steps / LOOKS)))


def _count(values: Values) -> int | None:
    if not isinstance(values, Range):
        return len(values)
    return int(values.high - values.low) + 1 if values.whole else None


def space(scenario: Scenario, programs: Programs = None) -> tuple[Space, list[str]]:
    """Return what a scenario lets the search try, and notes: [tune], or else a default.

    A program of [tune] starts from the first [[algorithm]] of its name, or its own defaults; an
    [[algorithm]] without [tune] entry takes part as written. Raises InputError where nothing does.
    """
    notes = []
    tables = [dict(algorithm.table) for algorithm in scenario.algorithm]
    if scenario.tune:
        tuned: dict[str, dict[str, Values]] = {
            name: dict(choices) for name, choices in scenario.tune.items()
        }
    else:
        tuned = {}
        for algorithm in scenario.algorithm:
            tuned.setdefault(algorithm.name, _default(scenario, algorithm.name, programs))
        if tables:
            tried = "; ".join(
                f"{name}: {', '.join(f'{key} {_list(each)}' for key, each in choices.items())}"
                for name, choices in tuned.items()
                if choices
            )
            notes.append(f"no [tune] in {scenario.file}, so a default is searched: {tried}")
    entries: dict[str, Entry] = {}
    for name, choices in tuned.items():
        base = next((table for table in tables if table["name"] == name), {"name": name})
        if choices or base not in tables:
            entries[name] = Entry(base, choices)
    for algorithm, table in zip(scenario.algorithm, tables, strict=True):
        if algorithm.name not in entries:
            entries[algorithm.label] = Entry(table)
    if not entries:
        raise InputError(
            f"{scenario.file}: nothing to tune; add an [[algorithm]] table, or say what to try in "
            "[tune], such as local-sgd = { tau = [1, 2, 4, 8] }"
        )
    return Space(scenario, entries, programs), notes


def _list(values: Values) -> str:
    return "/".join(map(str, values)) if isinstance(values, tuple) else str(values)


def _default(scenario: Scenario, name: str, programs: Programs) -> dict[str, Values]:
    """Values to try for a program, where the scenario says nothing: of each parameter it knows."""
    fields = known_programs(programs)[name].parameters.model_fields
    written = next(each for each in scenario.algorithm if each.name == name).written
    choices: dict[str, Values] = {key: each for key, each in DEFAULTS.items() if key in fields}
    lr = written.get("lr")
    if isinstance(lr, int | float) and not isinstance(scenario.objective, Bound):
        choices["lr"] = tuple(float(lr * factor) for factor in AROUND)
    if "k" in fields:
        workers = scenario.cluster.workers
        choices["k"] = tuple(sorted({*(k for k in POWERS if k < workers), workers}))
    return {key: each for key, each in choices.items() if not isinstance(written.get(key), dict)}
