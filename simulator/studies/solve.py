"""`paceline solve`: the value of a key from which, or up to which, a number meets a condition.

The range is first tried at a few values, a constant ratio apart. Where the condition begins or ends
once there, Brent's method finds where. Where it does so more often, or a number that both rises and
falls meets it at all values or none, no single value answers, and none is given. The number's own
interval, at the same seeds, is followed in the same way: where its ends meet the condition are the
ends of the answer's interval.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import exp, inf, isfinite, log, nan
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..inputs import messages, units
from ..load.document import override
from ..load.explain import value_at
from ..load.load import Programs, load, varied
from ..results import intervals, statistics, store
from ..results.determinism import deterministic
from ..results.figures.chart import Axis, Chart, Line, Look, Panel
from ..results.ownership import Destination
from ..scenario.scenario import Scenario
from . import executors, size
from .display.display import Display, without_tables
from .execution import Execution, Progress, demand_algorithms, opened, seed_range
from .result import Result
from .simulate import Place, run_on
from .sweep.points import value
from .task import settings

TRIED = 7  # values of the range that are tried first
RANGE = 1000.0  # factor below and above the scenario's own value
CLOSE = 1.005  # ratio of two values that are not told apart
STEPS = 5  # simulations that a root takes, about
SHORT = {
    "utilisation": "breakdown.compute",
    "waiting": "breakdown.wait",
    "communicating": "breakdown.communicate",
    "final_loss": "loss.last",
    "final_accuracy": "accuracy.last",
    "time_to_target_s": "time_to_target",
    "total_cost": "used.cost",
}
"""Short names of numbers, beside their own paths in a row of `algorithms`."""
Reading = tuple[float, float, float, float]
"""A number, the ends of its interval, and their level; nan where it has no value."""
_CONDITION = re.compile(r"\s*(\S.*?)\s*(>=|<=)\s*(\S.*?)\s*")
_ALGORITHM = re.compile(r"algorithms?(?:\[(\d+)\]|\.(.+?))\.([a-z_0-9.]+)")
_WRITTEN = re.compile(r"([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S.*)?")


@dataclass(frozen=True)
class Number:
    """A number of `simulate --json`, by its `path` in a row of `algorithms`.

    `only`: the algorithm that its text names, by index or label; None: each one. Errors about the
    number begin with `where`.
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
        """Return the indices of the algorithms that are asked about. Raises InputError."""
        names = [(each.label, each.name, str(at)) for at, each in enumerate(scenario.algorithm)]
        indices = [at for at, own in enumerate(names) if self.only is None or self.only in own]
        if not indices:
            near = messages.nearest(self.only or "", [label for label, *_ in names], "labels")
            raise InputError(f"{self.where}: no algorithm {self.only}; {near}")
        return indices

    def value(self, row: Mapping[str, Any]) -> float:
        """Return the number of a row; nan where it has no value. Raises InputError."""
        entry = self.entry(row)
        if isinstance(entry, Mapping):
            entry = entry["median" if entry.get("estimate") == intervals.MEDIAN else "mean"]
        return nan if entry is None else float(entry)

    def entry(self, row: Mapping[str, Any]) -> Any:
        """Return the number, or the estimate, at the path of a row; None where it has no value.

        Raises InputError where the row has no such number.
        """
        here: Any = row
        for part in self.path.split("."):
            if here is None:
                return None
            if not isinstance(here, Mapping) or part not in here:
                known = [*SHORT, *(key for key, entry in row.items() if entry and _numeric(entry))]
                near = messages.nearest(self.path, known, "numbers")
                raise InputError(f"{self.where}: no number {self.path}; {near}")
            here = here[part]
        if not _numeric(here):
            within = ", ".join(f"{self.path}.{key}" for key in here) if here else "another"
            raise InputError(f"{self.where}: {self.path} is no number; name one: {within}")
        return here


@dataclass(frozen=True)
class Condition:
    """A number that must be at least (or at `most`) a `bound` in SI units, shown in a `unit`."""

    text: str
    number: Number
    most: bool
    bound: float
    unit: str = ""

    def show(self, number: float) -> str:
        """Write a number in the unit of the bound."""
        size = quantity(f"1 {self.unit}", self.unit) if self.unit else 1.0
        return f"{statistics.number(number / size)} {self.unit}".rstrip()

    def beyond(self, number: float) -> float:
        """Return by how much a number meets the condition, below zero if it does not.

        A logarithm of their ratio if both are positive, so that times and rates are nearly straight
        lines of the logarithm of what is varied. A loss never reached, nan, does not meet it.
        """
        if not isfinite(number):
            met = number <= self.bound if self.most else number >= self.bound
            return 1.0 if met else -1.0
        above = log(number / self.bound) if min(number, self.bound) > 0 else number - self.bound
        return -above if self.most else above


def parsed(text: str) -> Condition:
    """Parse "seconds_per_step <= 300 ms". Raises InputError."""
    where = f"--for {text}"
    if (parts := _CONDITION.fullmatch(text)) is None:
        raise InputError(
            f"{where}: not NUMBER >= VALUE or NUMBER <= VALUE; write one such as "
            '"utilisation >= 0.9" or "seconds_per_step <= 300 ms"'
        )
    number, sign, stated = parts.groups()
    bound, amount = quantity(stated, where), written(stated)
    unit = amount[1] if amount else ""
    return Condition(text.strip(), Number.parsed(number, where), sign == "<=", bound, unit)


def quantity(written: str, where: str) -> float:
    """Return a number, a share or a quantity in SI units; an error begins with `where`."""
    with suppress(ValueError):
        share = written.endswith("%")
        return float(written.rstrip("% ")) / (100 if share else 1)
    for dimension in units.DIMENSIONS:
        with suppress(ValueError):
            return units.to_si(written, dimension)
    raise InputError(
        f"{where}: {written} is neither a number nor a quantity; write one such as 0.9, 90 % "
        "or 300 ms"
    )


def written(text: str) -> tuple[float, str] | None:
    """Return a text's number and its unit ("" if none); None where it is not of that form."""
    parts = _WRITTEN.fullmatch(text.strip())
    return parts and (float(parts[1]), (parts[2] or "").strip())


def is_whole(text: str, unit: str) -> bool:
    """Return whether a text is a whole number without a unit."""
    return not unit and isinstance(value(text), int)


@dataclass(frozen=True)
class Scale:
    """The values of a key that are tried: numbers from `low` to `high` of one `unit` ("" if none).

    `whole`: only whole numbers are possible.
    """

    low: float
    high: float
    unit: str
    whole: bool

    def text(self, x: float) -> str:
        """Return a value as `--set` takes it."""
        return f"{x:.0f}" if self.whole else f"{x:.6g} {self.unit}".strip()

    def show(self, x: float) -> str:
        """Return a value for reading, without its unit."""
        return self.text(x) if self.whole else statistics.number(x)

    @cached_property
    def first(self) -> list[float]:
        """The values that are tried first, from low to high."""
        return sorted({self.snapped(x) for x in np.geomspace(self.low, self.high, TRIED)})

    def snapped(self, x: float) -> float:
        """Return the value that `text` says, so that values of one text are simulated once."""
        return float(self.text(x).partition(" ")[0])

    def edge(self, beyond: Callable[[float], float], low: float, high: float) -> float:
        """Return the first or last value between two at which `beyond` is zero or above.

        It is so at one of the two alone.
        """
        rises = beyond(high) >= 0
        if self.whole:
            between = range(int(low) + 1, int(high))
            count = bisect_left(between, True, key=lambda x: (beyond(float(x)) >= 0) == rises)
            return low + count + rises
        from scipy.optimize import brentq  # noqa: PLC0415 - slow to import

        root = exp(brentq(lambda x: beyond(exp(x)), log(low), log(high), xtol=log(CLOSE)))
        while beyond(root) < 0:
            root *= CLOSE if rises else 1 / CLOSE
        return self.snapped(root)


def scale(table: Mapping[str, Any], key: str, between: str | None) -> Scale:
    """Return the scale of a key, from "LOW,HIGH" or else around the scenario's own value.

    Raises InputError.
    """
    where = f"--between {between}" if between else f"--vary {key}"
    remedy = "name a range, such as --between '10 Mbit/s,100 Gbit/s' of a bandwidth"
    if between:
        texts = between.split(",")
    else:
        own = value_at(table, override(deepcopy(dict(table)), f"{key}=0"))
        if own is None:
            raise InputError(f"{where}: not in the scenario; check its name; {remedy}")
        if isinstance(own, dict | list | bool):
            raise InputError(f"{where}: not a number there; {remedy}")
        texts = [str(own)]
    if len(texts) != (2 if between else 1):
        raise InputError(f"{where}: not LOW,HIGH; {remedy}")
    ends = [end for text in texts if (end := written(text))]
    if len(ends) < len(texts):
        raise InputError(f"{where}: not a number with its unit; {remedy}")
    (low, unit), (high, other) = ends[0], ends[-1]
    if unit != other:
        raise InputError(f"{where}: two units; write both ends in one")
    whole = all(is_whole(text.strip(), unit) for text in texts)
    if not between:
        low, high = max(1.0, low / RANGE) if whole else low / RANGE, high * RANGE
    if not 0 < low < high < inf:
        raise InputError(f"{where}: not from a lower to a higher value above zero; {remedy}")
    return Scale(low, high, unit, whole)


@dataclass(frozen=True)
class Solution:
    """What one algorithm needs.

    `holds`: "from" or "up to" the `value`, or "always" or "never" within the range, without one;
    `interval`: where the interval of the number, `number` at the value, begins and ends to meet
    the condition, an end beyond the range being None; None without a value, and where one seed
    leaves the interval unknown; `level`: the probability that it holds the number; `depends`: False
    where the number is the same at all values tried. Where it holds never, `nearest` is the value
    tried at which `number` is closest to the bound.
    """

    label: str
    holds: str
    value: float | None = None
    interval: tuple[float | None, float | None] | None = None
    number: float | None = None
    level: float | None = None
    depends: bool = True
    nearest: float | None = None


@dataclass(frozen=True, repr=False)
class SolveResult(Display):
    """The solutions of a condition, one for each algorithm; `scale` has the unit of their values.

    `evaluations`: simulations of one algorithm that the answers took.
    """

    scenario: Scenario
    key: str
    condition: Condition
    scale: Scale
    solutions: list[Solution]
    evaluations: int

    @property
    def sentences(self) -> list[str]:
        """A sentence for each algorithm."""
        return [f"{each.label}: {self._answer(each)}." for each in self.solutions]

    def _answer(self, solution: Solution) -> str:
        show, unit = self.scale.show, f" {self.scale.unit}".rstrip()
        low, high = show(self.scale.low), show(self.scale.high)
        if solution.value is None:
            which = "every" if solution.holds == "always" else "no"
            more = "" if solution.depends else f"; it does not depend on {self.key}"
            if solution.nearest is not None and solution.number is not None:
                near = self.condition.show(solution.number)
                more += f"; the nearest is {near}, at {show(solution.nearest)}{unit}"
            return f"{self.condition.text} at {which} {self.key} from {low} to {high}{unit}{more}"
        place = f"{self.condition.text} {solution.holds} {self.key} = {show(solution.value)}{unit}"
        if solution.interval is None:
            return f"{place} (one seed: no interval)"
        first, last = (None if end is None else show(end) for end in solution.interval)
        if first == last is not None:
            return place
        level = f"{100 * solution.level:.3g} %: " if solution.level else ""
        return f"{place} ({level}{first or f'below {low}'} to {last or f'above {high}'}{unit})"

    def records(self) -> list[dict[str, Any]]:
        """Return a flat row for each algorithm: its value, and the ends of its interval."""
        about = {"key": self.key, "unit": self.scale.unit, "condition": self.condition.text}
        rows = (asdict(each) for each in self.solutions)
        return [
            without_tables(row | {"interval": [*(row["interval"] or (None, None))]}) | about
            for row in rows
        ]

    @property
    def _head(self) -> str:
        return f"{self.condition.text}, by {self.key}; {self.scenario.title}"

    @property
    def _in_words(self) -> str:
        return " ".join(self.sentences)

    def _table(self) -> list[dict[str, str]]:
        return [{"algorithm": each.label, self.key: self._answer(each)} for each in self.solutions]

    def _chart(self) -> Chart | None:
        """Chart the values for which the condition holds, a bar for each algorithm."""
        low, high = self.scale.low, self.scale.high
        lines = list[Line]()
        for index, solution in enumerate(self.solutions):
            place, look = [len(self.solutions) - 1 - index] * 2, Look.at(index)
            edge = {"always": low, "never": nan}.get(solution.holds, solution.value or high)
            ends = [low, edge] if solution.holds == "up to" else [edge, high]
            wide = look._replace(dash="solid", width=6.0)
            lines.append(Line(solution.label, ends, place, wide, marks="none"))
        title = f"{self.key} ({self.scale.unit})" if self.scale.unit else self.key
        names = [solution.label for solution in reversed(self.solutions)]
        across = Axis(title, (low, high), True, (low, high))
        panel = Panel(across, Axis(limits=(-0.5, len(names) - 0.5), names=names), lines)
        return Chart(self.scenario.title, f"bar: where {self.condition.text}", [panel])

    def json(self) -> dict[str, Any]:
        """Return the document of `paceline solve --json`; values in `unit`."""
        return {
            "scenario": {"title": self.scenario.title, "file": self.scenario.file},
            "vary": self.key,
            "for": self.condition.text,
            "unit": self.scale.unit,
            "range": [self.scale.low, self.scale.high],
            "evaluations": self.evaluations,
            "solutions": [asdict(each) for each in self.solutions],
            "notes": [*self.scenario.notes],
        }


def solve(  # noqa: PLR0913 - the options of the command
    scenario: Scenario | str | Path,
    vary: str,
    condition: str,
    *,
    between: str | None = None,
    seeds: int | None = None,
    seed: int = 0,
    engine: str = "auto",
    jobs: int = 1,
    dask: str | None = None,
    out: str | Path | Destination | None = None,
    overwrite: bool = False,
    programs: Programs = None,
    progress: Progress | None = None,
    force: bool = False,
) -> SolveResult:
    """Find from which, or up to which, value of the key `vary` a number meets a condition.

    `condition`: "NUMBER >= VALUE" or "NUMBER <= VALUE", the number one of `simulate --json`, by its
    path or a short name; `between`: "LOW,HIGH", by default a thousandth to a thousand times the
    scenario's own value. The other options are `simulate`'s; with `out`, finished runs are kept
    there until all are. Raises InputError, also where the number both rises and falls with the
    key, so that no single value answers.
    """
    base = scenario if isinstance(scenario, Scenario) else load(scenario, programs=programs)
    wanted, values = parsed(condition), scale(base.table, vary, between)
    indices = wanted.number.chosen(base)
    count, most = 0, len(indices) * (TRIED + 2 * STEPS)  # a root, and the two ends near it
    own = settings(
        "solve", base, programs, vary=vary, condition=condition, between=between, seeds=seeds,
        seed=seed, engine=engine,
    )  # fmt: skip
    execution = Execution(engine, jobs, dask, programs=programs)
    demand_algorithms(base, programs)
    with (
        opened(out, overwrite, store.SolveDirectory, own) as directory,
        executors.start(execution) as executor,
    ):
        place = Place(execution, executor, directory if programs is None else None)

        def read(index: int, x: float) -> Reading:
            """Simulate one algorithm at one value."""
            nonlocal count
            count += 1
            try:
                there = varied(base, [f"{vary}={values.text(x)}"], programs=programs)
            except InputError as error:
                raise InputError(f"{error}; or narrow the range with --between") from None
            one = there.model_copy(update={"algorithm": there.algorithm[index : index + 1]})
            drawn = seed_range(one, seeds, seed)
            if not force:
                size.demand([(one, drawn)], execution)

            def tell(done: float, runs: int) -> None:
                if progress:
                    progress(min(most, count - 1 + done / runs), most)

            return _reading(run_on(place, one, drawn, progress=tell), wanted.number)

        solutions = [_Search(base, index, vary, wanted, values, read).solution for index in indices]
        if len(seed_range(base, seeds, seed)) == 1 and not deterministic(base):
            solutions = [  # those with an interval have it from the error of a model
                replace(each, interval=None) if len({*(each.interval or ())}) == 1 else each
                for each in solutions
            ]
        result = SolveResult(base, vary, wanted, values, solutions, count)
        if directory:
            directory.finish({}, result.json())
    return result


def _reading(result: Result, number: Number) -> Reading:
    """Read the number of a result of one algorithm, and the ends of its interval over seeds."""
    row = result.algorithms[0]
    value, entry, ends, level = number.value(row), number.entry(row), None, 0.0
    if isinstance(entry, Mapping):
        ends, level = entry.get("interval90"), intervals.LEVEL
        if not ends:
            ends, level = entry.get("interval"), entry.get("level") or 0.0
    elif entry is not None and len(result.seeds) > 1:
        estimate = intervals.estimate([number.value(one.algorithms[0]) for one in alone(result)])
        ends, level = estimate.interval, estimate.level or 0.0
    low, high = (value, value) if ends is None else ends
    return value, value if low is None else low, inf if high is None else high, level


def alone(result: Result) -> list[Result]:
    """Return a result for each seed of a result."""
    by_seed = {seed: [run for run in result.runs if run.seed == seed] for seed in result.seeds}
    return [
        replace(result, seeds=[seed], runs=runs, replicates=[]) for seed, runs in by_seed.items()
    ]


def _numeric(entry: Any) -> bool:
    """Whether an entry of a row is a number, absent, or an estimate of one."""
    if isinstance(entry, Mapping):
        return "mean" in entry
    return entry is None or (isinstance(entry, int | float) and not isinstance(entry, bool))


@dataclass
class _Search:
    """The search for one algorithm; `read` simulates it at a value."""

    base: Scenario
    index: int
    key: str
    condition: Condition
    scale: Scale
    read: Callable[[int, float], Reading]

    @cached_property
    def known(self) -> dict[float, Reading]:
        """The readings so far, by value."""
        return {x: self.read(self.index, x) for x in self.scale.first}

    @property
    def solution(self) -> Solution:
        """The answer. Raises InputError where the number moves both ways."""
        label, first = self.base.algorithm[self.index].label, self.scale.first
        beyond = {x: self.condition.beyond(self.known[x][0]) for x in first}
        self._demand_one_edge(label, beyond)
        depends, from_low = len({*self.known.values()}) > 1, beyond[first[0]] >= 0
        if (value := self._edge(0)) is None:
            if from_low:
                return Solution(label, "always", depends=depends)
            there = [x for x in first if isfinite(self.known[x][0])]
            near = max(there, key=lambda x: beyond[x], default=None)
            number = None if near is None else self.known[near][0]
            return Solution(label, "never", number=number, depends=depends, nearest=near)
        better, worse = (1, 2) if self.condition.most else (2, 1)
        low, high = (worse, better) if from_low else (better, worse)
        # Each edge is found to a tolerance, so that one may come to lie beyond the value.
        start, end = self._edge(low), self._edge(high)
        start, end = start and min(start, value), end and max(end, value)
        number, *_, level = self.known[value]
        holds = "up to" if from_low else "from"
        return Solution(label, holds, value, (start, end), number, level)

    def _edge(self, end: int) -> float | None:
        """Return where the number (0), or an end of its interval, begins or ends to do."""

        def beyond(x: float) -> float:
            x = self.scale.snapped(x)
            if x not in self.known:
                self.known[x] = self.read(self.index, x)
            return self.condition.beyond(self.known[x][end])

        places = sorted(self.known)  # the next root is near the last one
        met = [beyond(x) >= 0 for x in places]
        if met[0] == met[-1]:
            return None
        return self.scale.edge(beyond, *places[(at := met.index(not met[0])) - 1 : at + 1])

    def _demand_one_edge(self, label: str, beyond: Mapping[float, float]) -> None:
        """Raise InputError where the condition begins or ends more than once in the range."""
        readings: Sequence[tuple[float, Reading]] = [*self.known.items()]
        moves = {  # beyond their intervals
            (after[1] > before[2]) - (after[2] < before[1])
            for (_, before), (_, after) in pairwise(readings)
        }
        crossed = sum((a >= 0) != (b >= 0) for a, b in pairwise(beyond.values()))
        if crossed == 1 or (not crossed and not {1, -1} <= moves):
            return
        advice = "narrow the range with --between, or see it whole by `paceline sweep`"
        if max(beyond.values()) < 0:
            near = max(beyond, key=lambda x: beyond[x])
            advice = f"none of these meets it, the nearest at {self.scale.text(near)}"
        listed = ", ".join(
            f"{statistics.number(reading[0])} at {self.scale.text(x)}" for x, reading in readings
        )
        raise InputError(
            f"--for {self.condition.text}: {self.condition.number.path} of {label} both rises and "
            f"falls with {self.key}: {listed}; {advice}"
        )
