"""`paceline solve`: find the value of a key at which a number begins to meet a condition.

First a few values of the range are tried, a constant ratio apart. If the condition begins or ends
once between them, Brent's method finds the value. If it does so more often, or if a number that
both rises and falls meets it at all values or none, no single value is the answer, and none is
given. The ends of the number's interval, at the same seeds, are solved in the same way, and give
the answer's interval.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import pairwise
from math import exp, inf, isfinite, log, nan
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..inputs import messages, units
from ..inputs.messages import value_at
from ..load.document import override
from ..load.load import Programs, loaded, varied
from ..results import intervals, statistics, store
from ..results.figures.chart import Axis, Chart, Line, Look, Panel
from ..results.store import Destination
from ..scenario.scenario import Scenario
from . import executors, size
from .display import Display, without_tables
from .execution import Execution, Progress, demand_algorithms, seed_range, settings
from .result import Result
from .simulate import run_on

SHORT = {
    "utilisation": "breakdown.compute",
    "waiting": "breakdown.wait",
    "communicating": "breakdown.communicate",
    "final_loss": "loss.last",
    "final_accuracy": "accuracy.last",
    "time_to_target_s": "time_to_target",
    "total_cost": "used.cost",
}
"""Short names of numbers, beside their paths in a row of `algorithms`."""
_ALGORITHM = re.compile(r"algorithms?(?:\[(\d+)\]|\.(.+?))\.([a-z_0-9.]+)")
_QUANTITY = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S.*?)?\s*")


@dataclass(frozen=True)
class Number:
    """A number of `simulate --json`, by its `path` in a row of `algorithms`.

    `only`: the algorithm that its text names, by index or label; None: all. Errors about the number
    begin with `where`.
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
        """Return the indices of the algorithms of this number. Raises InputError."""
        names = [(one.label, one.name, str(at)) for at, one in enumerate(scenario.algorithm)]
        indices = [at for at, of in enumerate(names) if self.only is None or self.only in of]
        if not indices:
            near = messages.nearest(self.only or "", [label for label, *_ in names], "labels")
            raise InputError(f"{self.where}: no algorithm {self.only}; {near}")
        return indices

    def value(self, row: Mapping[str, Any]) -> float:
        """Return the number of a row; nan without a value. Raises InputError."""
        entry = self.entry(row)
        if isinstance(entry, Mapping):
            entry = entry["median" if entry.get("estimate") == intervals.MEDIAN else "mean"]
        return nan if entry is None else float(entry)

    def entry(self, row: Mapping[str, Any]) -> Any:
        """Return the number or estimate at the path of a row; None without a value."""
        here: Any = row
        for part in self.path.split("."):
            if here is None:
                return None
            if not isinstance(here, Mapping) or part not in here:
                numbers = [key for key, entry in row.items() if entry and _is_number(entry)]
                near = messages.nearest(self.path, [*SHORT, *numbers], "numbers")
                raise InputError(f"{self.where}: no number {self.path}; {near}")
            here = here[part]
        if not _is_number(here):
            within = ", ".join(f"{self.path}.{key}" for key in here) if here else "another"
            raise InputError(f"{self.where}: {self.path} is not a number; name one: {within}")
        return here


def _is_number(entry: Any) -> bool:
    """Whether an entry of a row is a number, absent, or an estimate of one."""
    if isinstance(entry, Mapping):
        return "mean" in entry
    return entry is None or (isinstance(entry, int | float) and not isinstance(entry, bool))


def moved(scenario: Scenario, overrides: Sequence[str], where: str = "") -> Scenario:
    """Load a scenario with overrides that the user did not write as --set. Raises InputError."""
    try:
        return varied(scenario, overrides)
    except InputError as error:
        message = str(error)
        for text in overrides:
            message = message.replace(f"--set {text}", text)
        raise InputError(f"{where}: {message}" if where else message) from None


def unit(text: str) -> str:
    """Return the unit of a quantity; "" without one."""
    parts = _QUANTITY.fullmatch(text)
    return parts[2] or "" if parts else ""


def quantity(text: str, where: str) -> float:
    """Return a number, a share or a quantity in SI units; an error begins with `where`."""
    with suppress(ValueError):
        return float(text.rstrip("% ")) / (100 if text.endswith("%") else 1)
    for dimension in units.SI:
        with suppress(ValueError):
            return units.to_si(text, dimension)
    raise InputError(
        f"{where}: {text} is neither a number nor a quantity; write one such as 0.9, 90 % or 300 ms"
    )


@dataclass(frozen=True)
class Range:
    """The values of a key from `low` to `high`, in one `unit` ("" if none).

    The place of a value is 0 at the low end and 1 at the high one, of its logarithm if both are
    above zero. `whole`: only whole numbers are possible.
    """

    low: float
    high: float
    unit: str
    whole: bool

    @property
    def log(self) -> bool:
        """Whether places are on a logarithmic scale."""
        return self.low > 0

    def at(self, place: float) -> float:
        """Return the value of a place, as `text` writes it."""
        place = min(max(place, 0.0), 1.0)
        if self.log:
            return self.snapped(exp(log(self.low) + place * log(self.high / self.low)))
        return self.snapped(self.low + place * (self.high - self.low))

    def place(self, value: float) -> float:
        """Return the place of a value."""
        if self.log:
            return log(value / self.low) / log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def text(self, value: float) -> str:
        """Format a value for `--set`."""
        return f"{value:.0f}" if self.whole else f"{value:.9g} {self.unit}".strip()

    def snapped(self, value: float) -> float:
        """Return the value of the text for `value`, so that equal texts are simulated once."""
        return float(self.text(value).partition(" ")[0])


def read_range(ends: Sequence[str], where: str, remedy: str, around: float = 1.0) -> Range:
    """Read a range, in the unit of its first end, from its ends or a value and a factor."""
    parts = [match for end in ends if (match := _QUANTITY.fullmatch(end))]
    if len(parts) < len(ends) or not parts:
        raise InputError(f"{where}: not a number with its unit; {remedy}")
    (low, name), (high, other) = [(float(p[1]), p[2] or "") for p in (parts[0], parts[-1])]
    if name != other:
        for dimension in units.SI:
            with suppress(ValueError):
                high *= units.to_si(f"1 {other}", dimension) / units.to_si(f"1 {name}", dimension)
                break
        else:
            raise InputError(f"{where}: its ends have different kinds; {remedy}")
    whole = not name and all(re.fullmatch(r"[+-]?\d[\d_]*", part[1]) for part in parts)
    low, high = max(low / around, 1.0 if whole and around > 1 else -inf), high * around
    if not low < high or not isfinite(high - low):
        raise InputError(f"{where}: not from a lower to a higher value; {remedy}")
    return Range(low, high, name, whole)


TRIED = 7  # values of the range to try first
AROUND = 1000.0  # the default range: the scenario's value divided and multiplied by this
CLOSE = 1.005  # ratio of two values that count as equal
STEPS = 5  # approximate number of simulations to find a root
Reading = tuple[float, float, float, float]
"""A number, the ends of its interval, and their level; nan without a value."""
_CONDITION = re.compile(r"\s*(\S.*?)\s*(>=|<=)\s*(\S.*?)\s*")


@dataclass(frozen=True)
class Condition:
    """A number that must be at least (or at `most`) a `bound`, in SI units."""

    text: str
    number: Number
    most: bool
    bound: float

    @classmethod
    def parsed(cls, text: str) -> "Condition":
        """Parse "seconds_per_step <= 300 ms". Raises InputError."""
        where = f"--for {text}"
        if (parts := _CONDITION.fullmatch(text)) is None:
            raise InputError(
                f"{where}: not NUMBER >= VALUE or NUMBER <= VALUE; write one such as "
                '"utilisation >= 0.9" or "seconds_per_step <= 300 ms"'
            )
        number, sign, bound = parts.groups()
        parsed = Number.parsed(number, where)
        return cls(text.strip(), parsed, sign == "<=", quantity(bound, where))

    def beyond(self, number: float) -> float:
        """Return by how much a number meets the condition; negative if it fails, as nan does."""
        # Logarithms of times and rates are nearly linear in that of the varied key.
        if not isfinite(number):
            meets = number <= self.bound if self.most else number >= self.bound
            return 1.0 if meets else -1.0
        above = log(number / self.bound) if min(number, self.bound) > 0 else number - self.bound
        return -above if self.most else above


def key_range(table: Mapping[str, Any], key: str, between: str | None) -> Range:
    """Return the range of a key, from "LOW,HIGH" or else around the scenario's value."""
    where = f"--between {between}" if between else f"--vary {key}"
    remedy = "name a range, such as --between '10 Mbit/s,100 Gbit/s' of a bandwidth"
    if between:
        ends = between.split(",")
        if len(ends) != 2:
            raise InputError(f"{where}: not LOW,HIGH; {remedy}")
        values = read_range(ends, where, remedy)
    else:
        value = value_at(table, override(deepcopy(dict(table)), f"{key}=0"))
        if value is None:
            raise InputError(f"{where}: not in the scenario; check its name; {remedy}")
        if isinstance(value, dict | list | bool):
            raise InputError(f"{where}: not a number there; {remedy}")
        values = read_range([str(value)], where, remedy, AROUND)
    if not values.log:
        raise InputError(f"{where}: not above zero; {remedy}")
    return values


@dataclass(frozen=True)
class Solution:
    """The solution for one algorithm.

    `holds`: "from" or "up to" the `value`; without a value "always" or "never" within the range.
    `number`: the number at the value. `interval`: the values at which the ends of its interval of
    probability `level` meet the condition, None for an end beyond the range, or if unknown.
    `depends`: False if the number is the same at all tried values.
    """

    label: str
    holds: str
    value: float | None = None
    interval: tuple[float | None, float | None] | None = None
    number: float | None = None
    level: float | None = None
    depends: bool = True


@dataclass(frozen=True, repr=False)
class SolveResult(Display):
    """The solutions of a condition, one per algorithm; `scale` has the unit of their values.

    `evaluations`: how many simulations of one algorithm the answers took.
    """

    scenario: Scenario
    key: str
    condition: Condition
    scale: Range
    solutions: list[Solution]
    evaluations: int

    @property
    def sentences(self) -> list[str]:
        """One sentence per algorithm."""
        return [f"{solution.label}: {self._answer(solution)}." for solution in self.solutions]

    def _answer(self, solution: Solution) -> str:
        condition, unit = self.condition.text, f" {self.scale.unit}".rstrip()
        low, high = self._show(self.scale.low), self._show(self.scale.high)
        if solution.value is None:
            which = "every" if solution.holds == "always" else "no"
            more = "" if solution.depends else f"; it does not depend on {self.key}"
            return f"{condition} at {which} {self.key} from {low} to {high}{unit}{more}"
        place = f"{condition} {solution.holds} {self.key} = {self._show(solution.value)}{unit}"
        if solution.interval is None:
            return f"{place} (one seed: no interval)"
        first, last = (end and self._show(end) for end in solution.interval)
        if first == last is not None:
            return place
        level = f"{100 * solution.level:.3g} %: " if solution.level else ""
        return f"{place} ({level}{first or f'below {low}'} to {last or f'above {high}'}{unit})"

    def _show(self, value: float) -> str:
        return self.scale.text(value) if self.scale.whole else statistics.number(value)

    def records(self) -> list[dict[str, Any]]:
        """Return a flat row per algorithm: its value, and the ends of its interval."""
        about = {"key": self.key, "unit": self.scale.unit, "condition": self.condition.text}
        rows = [
            asdict(one) | {"interval": [*(one.interval or (None, None))]} for one in self.solutions
        ]
        return [without_tables(row) | about for row in rows]

    @property
    def _in_words(self) -> str:
        return " ".join(self.sentences)

    def _chart(self) -> Chart | None:
        """Chart the values for which the condition holds, as one bar per algorithm."""
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
        across = Axis(title, (low, high), True)
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
            "solutions": [asdict(solution) for solution in self.solutions],
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
    """Find the value of the key `vary` from which, or up to which, a number meets a condition.

    `condition`: "NUMBER >= VALUE" or "NUMBER <= VALUE" for a number of `simulate --json`, by its
    path or a short name. `between`: "LOW,HIGH", by default a thousandth to a thousand times the
    scenario's value. The other options are those of `simulate`; with `out`, finished runs are
    stored there until all are finished. Raises InputError, also if the number both rises and falls
    with the key, so that no single value is the answer.
    """
    base = loaded(scenario, programs)
    wanted, values = Condition.parsed(condition), key_range(base.table, vary, between)
    indices = wanted.number.chosen(base)
    count, most = 0, len(indices) * (TRIED + 2 * STEPS)  # a root, and two ends near it
    how = {"seeds": seeds, "seed": seed, "engine": engine}
    stated = settings("solve", base, vary=vary, condition=condition, between=between, **how)
    execution = Execution(engine, jobs, dask)
    demand_algorithms(base)
    with executors.study(execution, store.SolveDirectory, stated, out, overwrite) as place:

        def read(index: int, x: float) -> Reading:
            """Simulate one algorithm at one value."""
            nonlocal count
            count += 1
            try:
                there = varied(base, [f"{vary}={values.text(x)}"])
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

        solutions = []
        unknown = len(seed_range(base, seeds, seed)) == 1 and not base.deterministic
        for index in indices:
            label = base.algorithm[index].label
            solution = _Search(label, vary, wanted, values, partial(read, index)).solution()
            # One seed has an interval only from the error of a model.
            if unknown and len({*(solution.interval or ())}) == 1:
                solution = replace(solution, interval=None)
            solutions.append(solution)
        result = SolveResult(base, vary, wanted, values, solutions, count)
        if place.directory:
            place.directory.finish({}, result.json())
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
    """Split a result into one result per seed."""
    by_seed = {seed: [run for run in result.runs if run.seed == seed] for seed in result.seeds}
    return [
        replace(result, seeds=[seed], runs=runs, replicates=[]) for seed, runs in by_seed.items()
    ]


@dataclass
class _Search:
    """The search for one algorithm, which `read` simulates at a value."""

    label: str
    key: str
    condition: Condition
    values: Range
    read: Callable[[float], Reading]
    readings: dict[float, Reading] = field(default_factory=dict)

    def beyond(self, value: float, end: int = 0) -> float:
        """Return by how much the number (0), or an end of its interval, meets the condition."""
        value = self.values.snapped(value)
        if value not in self.readings:
            self.readings[value] = self.read(value)
        return self.condition.beyond(self.readings[value][end])

    def solution(self) -> Solution:
        """Return the answer. Raises InputError if the number both rises and falls."""
        spread = np.geomspace(self.values.low, self.values.high, TRIED)
        beyond = {x: self.beyond(x) for x in sorted({*map(self.values.snapped, spread)})}
        self._demand_one_edge(beyond)
        depends, from_low = len({*self.readings.values()}) > 1, next(iter(beyond.values())) >= 0
        if (value := self._edge(0)) is None:
            return Solution(self.label, "always" if from_low else "never", depends=depends)
        better, worse = (1, 2) if self.condition.most else (2, 1)
        low, high = (worse, better) if from_low else (better, worse)
        # Edges have a tolerance, so that one may lie beyond the value.
        start, end = self._edge(low), self._edge(high)
        start, end = start and min(start, value), end and max(end, value)
        number, *_, level = self.readings[value]
        holds = "up to" if from_low else "from"
        return Solution(self.label, holds, value, (start, end), number, level)

    def _edge(self, end: int) -> float | None:
        """Return the value from which, or up to which, the number or an end meets the condition."""
        places = sorted(self.readings)  # the next root is near the last one
        meets = [self.beyond(value, end) >= 0 for value in places]
        if meets[0] == meets[-1]:
            return None
        at = meets.index(not meets[0])
        low, high, rises = places[at - 1], places[at], meets[at]
        if self.values.whole:
            between = range(int(low) + 1, int(high))
            count = bisect_left(between, True, key=lambda x: (self.beyond(x, end) >= 0) == rises)
            return low + count + rises
        from scipy.optimize import brentq  # noqa: PLC0415 - slow to import

        ends = log(low), log(high)
        root = exp(brentq(lambda x: self.beyond(exp(x), end), *ends, xtol=log(CLOSE)))
        while self.beyond(root, end) < 0:
            root *= CLOSE if rises else 1 / CLOSE
        return self.values.snapped(root)

    def _demand_one_edge(self, beyond: Mapping[float, float]) -> None:
        """Raise InputError if the condition begins or ends more than once in the range."""
        readings = [*self.readings.items()]
        moves = {  # differences beyond their intervals
            (after[1] > before[2]) - (after[2] < before[1])
            for (_, before), (_, after) in pairwise(readings)
        }
        crossed = sum((a >= 0) != (b >= 0) for a, b in pairwise(beyond.values()))
        if crossed == 1 or (not crossed and not {1, -1} <= moves):
            return
        listed = ", ".join(
            f"{statistics.number(reading[0])} at {self.values.text(x)}" for x, reading in readings
        )
        raise InputError(
            f"--for {self.condition.text}: {self.condition.number.path} of {self.label} both rises "
            f"and falls with {self.key}: {listed}; narrow the range with --between, or show the "
            "whole range with `paceline sweep`"
        )
