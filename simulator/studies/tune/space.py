"""The search space of `paceline tune`: algorithms and values of their parameters."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...load.load import Programs, available_programs, varied
from ...objectives import build
from ...programs import Program
from ...programs.program import BOUND
from ...results import consumption
from ...scenario.scenario import OWN, Algorithm, Scenario
from ...scenario.tables import Bound, LearningCurve, NoObjective, Range

if TYPE_CHECKING:  # optuna takes half a second to import
    from optuna import Trial

Values = tuple[Any, ...] | Range
MULTIPLIER = "local_sgd_sync_multiplier"  # an hpsgd table sets it for the local-sgd of its scenario

POWERS = (1, 2, 4, 8, 16, 32, 64)
EVALUATIONS = 1000  # per run, roughly, where the scenario does not set run.evaluate_every
AROUND = (0.25, 0.5, 1, 2, 4)  # factors of the scenario's learning rate
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

    `varied`: the values chosen by the search; `family`: its entry in the space.
    """

    label: str
    table: dict[str, Any]
    varied: dict[str, Any]
    family: str = ""

    @property
    def name(self) -> str:
        """The name of its program."""
        return str(self.table["name"])

    @property
    def parameters(self) -> dict[str, Any]:
        """All parameters that its table sets."""
        own = {key: value for key, value in self.table.items() if key not in OWN}
        return own | self.varied


@dataclass(frozen=True)
class Entry:
    """An [[algorithm]] table to start from, and the values to try for each parameter."""

    table: dict[str, Any]
    choices: dict[str, Values] = field(default_factory=dict)


@dataclass(frozen=True)
class Space:
    """All configurations, by family: a program, or the label of an [[algorithm]] as written.

    `every`: steps between evaluations of the loss, the same in all runs.
    """

    scenario: Scenario
    entries: dict[str, Entry]
    programs: Programs = None
    every: int = 1

    @property
    def limit(self) -> float:
        """Return the longest time a run may take (seconds)."""
        return self.scenario.run.duration or math.inf

    @property
    def size(self) -> int | None:
        """Return the number of configurations; None if a range of real numbers is among them."""
        total = 0
        for entry in self.entries.values():
            sizes = [_count(values) for values in entry.choices.values()]
            if None in sizes:
                return None
            total += math.prod(size for size in sizes if size is not None)
        return total

    def grid(self) -> Iterator[dict[str, Any]]:
        """Yield every point of a finite space, as the parameters of an optuna trial."""
        for family, entry in self.entries.items():
            ranges = [range(_count(values) or 0) for values in entry.choices.values()]
            for indices in itertools.product(*ranges):
                chosen = zip(entry.choices.items(), indices, strict=True)
                yield {"algorithm": family} | {
                    f"{family}.{key}": index + values.low if isinstance(values, Range) else index
                    for (key, values), index in chosen
                }

    def point(self, family: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Return the trial parameters of a family's `chosen` values, each one of its choices."""
        return {"algorithm": family} | {
            f"{family}.{key}": value if isinstance(values, Range) else values.index(value)
            for key, values in self.entries[family].choices.items()
            for value in (chosen[key],)
        }

    def chosen(self, point: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the family and the values that a trial's parameters stand for."""
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
                if all(type(value) in (int, float) for value in values):  # ordered
                    trial.suggest_int(name, 0, len(values) - 1)
                else:
                    trial.suggest_categorical(name, list(range(len(values))))
            elif values.whole:
                trial.suggest_int(name, int(values.low), int(values.high), log=values.log)
            else:
                trial.suggest_float(name, values.low, values.high, log=values.log)
        return self.chosen(trial.params)

    def candidate(self, family: str, chosen: Mapping[str, Any]) -> Candidate:
        """Return a configuration. Raises InputError for values that are refused together."""
        entry = self.entries[family]
        table = entry.table | {key: value for key, value in chosen.items() if "." not in key}
        for key in chosen.keys() - table.keys():
            table = _with(table, key.split("."), chosen[key])
        if chosen:
            table.pop("label", None)  # all candidates would have the same one
        world = self.world(table)
        algorithm = world.algorithm[0]
        if isinstance(world.objective, Bound):
            for note in build.build(world, algorithm, 0).notes:
                raise InputError(f"{algorithm.label}: {note}")
        return Candidate(algorithm.label, table, dict(chosen), family)

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
        whole["run"] = whole["run"] | {"evaluate_every": self.every}
        if duration is not None:
            whole["run"]["duration"] = f"{duration!r} s"
        return varied(self.scenario, table=whole, programs=self.programs)

    def until(self, deadline: float | None) -> "Space":
        """Return the same space with runs that end at `deadline` (seconds), not at `run.steps`.

        None: that end at `run.steps` alone.
        """
        gone, ends = {"duration"}, dict[str, str]()
        if deadline is not None:
            gone, ends = {"steps", "tokens"}, {"duration": f"{deadline!r} s"}
        run = {key: value for key, value in self.scenario.table["run"].items() if key not in gone}
        table = self.scenario.table | {"run": run | ends}
        return replace(self, scenario=varied(self.scenario, table=table, programs=self.programs))


def _with(table: Any, path: Sequence[str], value: Any) -> dict[str, Any]:
    """Return a table with a value at a path, such as recovery.checkpoint.every."""
    first, *rest = path
    inner = table if isinstance(table, dict) else {"policy": table}  # of recovery
    return inner | {first: _with(inner.get(first, {}), rest, value) if rest else value}


def _count(values: Values) -> int | None:
    if not isinstance(values, Range):
        return len(values)
    return int(values.high - values.low) + 1 if values.whole else None


def space(scenario: Scenario, programs: Programs = None) -> tuple[Space, list[str]]:
    """Return the search space of a scenario, from [tune] or else a default, and notes.

    A program of [tune] starts from the first [[algorithm]] of its name, or its own defaults; every
    other [[algorithm]] takes part as written. By default each is a family of its own. Bounds are
    left out, as the fastest of them would end every other run. Raises InputError where there is
    nothing to try.
    """
    known = available_programs(programs)
    notes = [*scenario.notes, *consumption.notes(scenario)]
    named = dict.fromkeys([algorithm.name for algorithm in scenario.algorithm] + [*scenario.tune])
    bounds = [name for name in named if known[name].bound]
    if bounds:
        notes.append(f"left out: {', '.join(bounds)}, whose {BOUND}")
    entries = _entries(scenario, known)
    if not entries:
        raise InputError(
            f"{scenario.file}: nothing to tune{''.join(f' ({note})' for note in notes)}; add an "
            "[[algorithm]] table, or say what to try in [tune], such as "
            "local-sgd = { tau = [1, 2, 4, 8] }"
        )
    if not scenario.tune:
        tried = "; ".join(
            f"{family}: {', '.join(f'{key} {_list(own)}' for key, own in entry.choices.items())}"
            for family, entry in entries.items()
            if entry.choices
        )
        notes.append(f"no [tune] in {scenario.file}, so a default is searched: {tried}")
    every, run = scenario.run.evaluate_every, scenario.run
    if every is None:
        step = min(scenario.team.mean_compute)
        ends = run.duration / step if run.duration and step else math.inf
        steps = min(ends, run.steps or math.inf)
        every = max(1, round(steps / EVALUATIONS)) if math.isfinite(steps) else 1
        often = "at every step" if every == 1 else f"every {every} steps"
        if not isinstance(scenario.objective, NoObjective):
            notes.append(f"the loss is evaluated {often}; run.evaluate_every sets this")
    return Space(scenario, entries, programs, every), notes


def _entries(scenario: Scenario, known: Mapping[str, Program]) -> dict[str, Entry]:
    """Return the families to try: of [tune], then the other algorithms; no bounds."""
    entries: dict[str, Entry] = {}
    rest = [algorithm for algorithm in scenario.algorithm if not algorithm.bound]
    for name, choices in scenario.tune.items():
        if not known[name].bound:
            first = next((algorithm for algorithm in rest if algorithm.name == name), None)
            entries[name] = Entry(dict(first.table) if first else {"name": name}, dict(choices))
            rest = [algorithm for algorithm in rest if algorithm is not first]
    for algorithm in rest:
        own = {} if scenario.tune else _default(scenario, algorithm, known)
        family = algorithm.name if own and algorithm.name not in entries else algorithm.label
        while family in entries:  # a label may be another program's name
            family += "'"
        entries[family] = Entry(dict(algorithm.table), own)
    return entries


def _list(values: Values) -> str:
    return "/".join(map(str, values)) if isinstance(values, tuple) else str(values)


def _default(
    scenario: Scenario, algorithm: Algorithm, known: Mapping[str, Program]
) -> dict[str, Values]:
    """Return the default values to try, including those that the scenario sets."""
    fields = known[algorithm.name].parameters.model_fields
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
