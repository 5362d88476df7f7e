"""`paceline solve`: the value of a key from which, or up to which, a number meets a condition.

The range is first tried at a few values, a constant ratio apart. Where the condition begins or ends
once there, Brent's method finds where. Where it does so more often, or a number that both rises and
falls meets it at all values or none, no single value answers, and none is given. The number's own
interval, at the same seeds, is followed in the same way: where its ends meet the condition are the
ends of the answer's interval.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
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
from .execution import (
    Execution,
    Progress,
    demand_algorithms,
    opened,
    seed_range,
)
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
        found = _ALGORITHM.fullmatch(text)
        path = found[3] if found else text
        return cls(SHORT.get(path, path), found and (found[1] or found[2]), where)

    def chosen(self, scenario: Scenario) -> list[int]:
        """Return the indices of the algorithms that are asked about. Raises InputError."""
        labels = [each.label for each in scenario.algorithm]
        names = [each.name for each in scenario.algorithm]
        found = [
            index
            for index, each in enumerate(zip(labels, names, strict=True))
            if self.only is None or self.only in (*each, str(index))
        ]
        if not found:
            near = messages.nearest(self.only or "", labels, "labels")
            raise InputError(f"{self.where}: no algorithm {self.only}; {near}")
        return found

    def value(self, row: Mapping[str, Any]) -> float:
        """Return the number of a row; nan where it has no value. Raises InputError."""
        found = self.found(row)
        if isinstance(found, Mapping):
            found = found["median" if found.get("estimate") == intervals.MEDIAN else "mean"]
        return nan if found is None else float(found)

    def found(self, row: Mapping[str, Any]) -> Any:
        """Return the number, or the estimate, at the path of a row; None where it has no value.

        Raises InputError where the row has no such number.
        """
        here: Any = row
        for part in self.path.split("."):
            if here is None:
                return None
            if not isinstance(here, Mapping) or part not in here:
                known = [*SHORT, *(key for key, each in row.items() if each and _numeric(each))]
                near = messages.nearest(self.path, known, "numbers")
                raise InputError(f"{self.where}: no number {self.path}; {near}")
            here = here[part]
        if not _numeric(here):
            within = ", ".join(f"{self.path}.{key}" for key in here) if here else "another"
            raise InputError(f"{self.where}: {self.path} is no number; name one: {within}")
        return here


@dataclass(frozen=True)
class Condition:
    """A number that must be at least (or at `most`) a `bound` in SI units, said in a `unit`."""

    text: str
    number: Number
    most: bool
    bound: float
    unit: str = ""

    def said(self, found: float) -> str:
        """Return a number in the unit of the bound."""
        size = quantity(f"1 {self.unit}", self.unit) if self.unit else 1.0
        return f"{statistics.number(found / size)} {self.unit}".rstrip()

    def met(self, found: float) -> bool:
        """Whether a number meets the condition; nan, such as a loss never reached, does not."""
        return found <= self.bound if self.most else found >= self.bound

    def beyond(self, found: float) -> float:
        """Return by how much a number meets the condition, below zero if it does not.

        A logarithm of their ratio if both are positive, so that times and rates are nearly straight
        lines of the logarithm of what is varied.
        """
        if not isfinite(found):
            return 1.0 if self.met(found) else -1.0
        above = log(found / self.bound) if min(found, self.bound) > 0 else found - self.bound
        return -above if self.most else above


def parsed(text: str) -> Condition:
    """Parse "seconds_per_step <= 300 ms". Raises InputError."""
    remedy = 'write one such as "utilisation >= 0.9" or "seconds_per_step <= 300 ms"'
    where = f"--for {text}"
    if (parts := _CONDITION.fullmatch(text)) is None:
        raise InputError(f"{where}: not NUMBER >= VALUE or NUMBER <= VALUE; {remedy}")
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

    def said(self, x: float) -> str:
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

        found = exp(brentq(lambda x: beyond(exp(x)), log(low), log(high), xtol=log(CLOSE)))
        step = CLOSE if rises else 1 / CLOSE
        while beyond(found) < 0:
            found *= step
        return self.snapped(found)


def written(text: str) -> tuple[float, str] | None:
    """Return a text's number and its unit ("" if none); None where it is not of that form."""
    parts = _WRITTEN.fullmatch(text.strip())
    return parts and (float(parts[1]), (parts[2] or "").strip())


def is_whole(text: str, unit: str) -> bool:
    """Return whether a text is a whole number without a unit."""
    return not unit and isinstance(value(text), int)


def scale(table: Mapping[str, Any], key: str, between: str | None) -> Scale:
    """Return the scale of a key, from "LOW,HIGH" or else around the scenario's own value.

    Raises InputError.
    """
    where = f"--between {between}" if between else f"--vary {key}"
    remedy = "name a range, such as --between '10 Mbit/s,100 Gbit/s' of a bandwidth"
    texts = between.split(",") if between else [_own(table, key, f"{where}: ", f"; {remedy}")]
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


def _own(table: Mapping[str, Any], key: str, where: str, remedy: str) -> str:
    """Return the text of a scenario's own value. Raises InputError unless it is a quantity."""
    own = value_at(table, override(deepcopy(dict(table)), f"{key}=0"))
    if own is None:
        raise InputError(f"{where}not in the scenario; check its name{remedy}")
    if isinstance(own, dict | list | bool):
        raise InputError(f"{where}not a number there{remedy}")
    return str(own)


@dataclass(frozen=True)
class Solution:
    """What one algorithm needs.

    `holds`: "from" or "up to" the `value`, or "always" or "never" within the range, without one;
    `interval`: where the interval of the number, `number` at the value, begins and ends to meet
    the condition, an end beyond the range being None; None without a value, and where one seed
    leaves the interval unknown; `level`: the probability that it holds the number; `depends`: False
    where the number is the same at both ends and in the middle of the range. Where it holds never,
    `nearest` is the value tried at which `number` is closest to the bound.
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
    _index = ("label",)

    @property
    def sentences(self) -> list[str]:
        """A sentence for each algorithm."""
        return [f"{each.label}: {self._said(each)}." for each in self.solutions]

    def _said(self, found: Solution) -> str:
        say, unit = self.scale.said, f" {self.scale.unit}".rstrip()
        low, high = say(self.scale.low), say(self.scale.high)
        if found.value is None:
            which = "every" if found.holds == "always" else "no"
            beside = "" if found.depends else f"; it does not depend on {self.key}"
            if found.nearest is not None and found.number is not None:
                near = self.condition.said(found.number)
                beside += f"; the nearest is {near}, at {say(found.nearest)}{unit}"
            return f"{self.condition.text} at {which} {self.key} from {low} to {high}{unit}{beside}"
        place = f"{self.condition.text} {found.holds} {self.key} = {say(found.value)}{unit}"
        if found.interval is None:
            return f"{place} (one seed: no interval)"
        ends = [None if each is None else say(each) for each in found.interval]
        if ends[0] == ends[1] is not None:
            return place
        level = f"{100 * found.level:.3g} %: " if found.level else ""
        between = f"{ends[0] or f'below {low}'} to {ends[1] or f'above {high}'}"
        return f"{place} ({level}{between}{unit})"

    @property
    def notes(self) -> list[str]:
        """How keys were understood, and which links do not follow the key that is varied."""
        network, (table, _, key) = self.scenario.network, self.key.rpartition(".")
        keys = {key, "up", "down"} if key == "bandwidth" else {key}
        links = {f"network.link {'-'.join(each.between)}": each for each in network.link}
        groups = {f"group {each.name}": each for each in self.scenario.cluster.group}
        own = [name for name, each in (links | groups).items() if keys & each.model_fields_set]
        rows = network.regions.rows.values() if network.regions else ()
        own += ["network.regions"] * any(getattr(row, key, None) is not None for row in rows)
        if table != "network" or not own:
            return [*self.scenario.notes]
        fixed = f"{self.key} is not that of {', '.join(own)}, with values of their own"
        return [*self.scenario.notes, f"{fixed}: only what has none follows it"]

    def records(self) -> list[dict[str, Any]]:
        """Return a flat row for each algorithm: its value, and the ends of its interval."""
        said = {"key": self.key, "unit": self.scale.unit, "condition": self.condition.text}
        rows = (
            asdict(each) | {"interval": [*(each.interval or (None, None))]}
            for each in self.solutions
        )
        return [without_tables(row) | said for row in rows]

    @property
    def _head(self) -> str:
        return f"{self.condition.text}, by {self.key}; {self.scenario.title}"

    @property
    def _in_words(self) -> str:
        return " ".join(self.sentences)

    def _table(self) -> list[dict[str, str]]:
        asked = self.condition.text
        return [
            {"algorithm": each.label, asked: self._said(each).removeprefix(asked).strip()}
            for each in self.solutions
        ]

    def _chart(self) -> Chart | None:
        """Chart the values for which the condition holds, a bar for each algorithm."""
        low, high = self.scale.low, self.scale.high
        lines = list[Line]()
        for index, solution in enumerate(self.solutions):
            place = [len(self.solutions) - 1 - index] * 2
            edge = {"always": low, "never": nan}.get(solution.holds, solution.value or high)
            ends = [low, edge] if solution.holds == "up to" else [edge, high]
            sure = [edge if end is None else end for end in solution.interval or (edge, edge)]
            wide, thin = Look.at(index)._replace(dash="solid", width=6.0), Look.at(index)
            lines += [
                Line(solution.label, ends, place, wide, marks="none"),
                Line(solution.label, sure, place, thin, marks="all", named=False),
            ]
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
            "notes": self.notes,
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
    asked, tried = parsed(condition), scale(base.table, vary, between)
    indices = asked.number.chosen(base)
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
        kept = directory if programs is None else None  # their code has no version

        def numbers(index: int, x: float) -> Reading:
            """Simulate one algorithm at one value."""
            nonlocal count
            count += 1
            try:
                there = varied(base, [f"{vary}={tried.text(x)}"], programs=programs)
            except InputError as error:
                raise InputError(f"{error}; or narrow the range with --between") from None
            one = there.model_copy(update={"algorithm": there.algorithm[index : index + 1]})
            drawn = seed_range(one, seeds, seed)
            if not force:
                size.demand([(one, drawn)], execution)

            def told(done: float, runs: int) -> None:
                if progress:
                    progress(min(most, count - 1 + done / runs), most)

            result = run_on(Place(execution, executor, kept), one, drawn, progress=told)
            return _reading(result, asked.number)

        solutions = [
            _solution(base.algorithm[index].label, vary, asked, tried, partial(numbers, index))
            for index in indices
        ]
        if len(seed_range(base, seeds, seed)) == 1 and not deterministic(base):
            solutions = [  # those with an interval have it from the error of a model
                replace(each, interval=None) if len({*(each.interval or ())}) == 1 else each
                for each in solutions
            ]
        result = SolveResult(base, vary, asked, tried, solutions, count)
        if directory:
            directory.finish({}, result.json())
    return result


def _reading(result: Result, number: Number) -> Reading:
    """Read the number of a result of one algorithm, and the ends of its interval over seeds."""
    row = result.algorithms[0]
    value, found, ends, level = number.value(row), number.found(row), None, 0.0
    if isinstance(found, Mapping):
        ends, level = found.get("interval90"), intervals.LEVEL
        if not ends:
            ends, level = found.get("interval"), found.get("level") or 0.0
    elif found is not None and len(result.seeds) > 1:
        estimate = intervals.estimate([number.value(one.algorithms[0]) for one in alone(result)])
        ends, level = estimate.interval, estimate.level or 0.0
    low, high = (value, value) if ends is None else ends
    return value, value if low is None else low, inf if high is None else high, level


def alone(result: Result) -> list[Result]:
    """Return a result for each seed of a result."""
    return [
        replace(
            result,
            seeds=[seed],
            runs=[run for run in result.runs if run.seed == seed],
            replicates=[],
        )
        for seed in result.seeds
    ]


def _numeric(entry: Any) -> bool:
    """Whether an entry of a row is a number, absent, or an estimate of one."""
    if isinstance(entry, Mapping):
        return "mean" in entry
    return entry is None or (isinstance(entry, int | float) and not isinstance(entry, bool))


def _solution(
    label: str, key: str, asked: Condition, tried: Scale, numbers: Callable[[float], Reading]
) -> Solution:
    """Solve for one algorithm. Raises InputError where the number moves both ways."""
    known = {x: numbers(x) for x in {*tried.first[:: TRIED // 2], tried.first[-1]}}

    def throughout(depends: bool) -> Solution:
        """Return a solution without a value."""
        if asked.met(known[tried.first[0]][0]):
            return Solution(label, "always", depends=depends)
        there = [x for x in tried.first if x in known and isfinite(known[x][0])]
        near = max(there, key=lambda x: asked.beyond(known[x][0]), default=None)
        number = None if near is None else known[near][0]
        return Solution(label, "never", number=number, depends=depends, nearest=near)

    if len({*known.values()}) == 1:
        return throughout(depends=False)
    known |= {x: numbers(x) for x in tried.first if x not in known}
    _demand_one_edge(label, key, asked, tried, known)

    def edge(end: int) -> float | None:
        """Return where the number (0), or an end of its interval, begins or ends to do."""

        def beyond(x: float) -> float:
            x = tried.snapped(x)
            if x not in known:
                known[x] = numbers(x)
            return asked.beyond(known[x][end])

        places = sorted(known)  # the next root is near the last one
        met = [beyond(x) >= 0 for x in places]
        if met[0] == met[-1]:
            return None
        return tried.edge(beyond, *places[(at := met.index(not met[0])) - 1 : at + 1])

    value, first = edge(0), asked.met(known[tried.first[0]][0])
    if value is None:
        return throughout(depends=True)
    worse, better = (edge(2), edge(1)) if asked.most else (edge(1), edge(2))
    low, high = (worse, better) if first else (better, worse)  # the worse is met by fewer values
    # each edge is found to a tolerance, so that one may come to lie beyond the value
    low, high = low and min(low, value), high and max(high, value)
    number, *_, level = known[value]
    return Solution(label, "up to" if first else "from", value, (low, high), number, level)


def _demand_one_edge(
    label: str, key: str, asked: Condition, tried: Scale, known: Mapping[float, Reading]
) -> None:
    """Raise InputError where the condition begins or ends more than once in the range."""
    points = [(x, known[x]) for x in tried.first]
    pairs = [*pairwise([reading for _, reading in points])]
    turns = len({sign for before, after in pairs if (sign := _moves(before, after))})
    crossed = sum(asked.met(before[0]) != asked.met(after[0]) for before, after in pairs)
    if crossed <= 1 and (turns <= 1 or crossed):
        return
    advice = "narrow the range with --between, or see it whole by `paceline sweep`"
    if not any(asked.met(reading[0]) for _, reading in points):
        near = max(points, key=lambda point: asked.beyond(point[1][0]))
        advice = f"none of these meets it, the nearest at {tried.text(near[0])}"
    said = ", ".join(f"{statistics.number(r[0])} at {tried.text(x)}" for x, r in points)
    raise InputError(
        f"--for {asked.text}: {asked.number.path} of {label} both rises and falls with {key}: "
        f"{said}; {advice}"
    )


def _moves(before: Reading, after: Reading) -> int:
    """Return 1 or -1 if a number rises or falls by more than its interval, else 0."""
    return (after[1] > before[2]) - (after[2] < before[1])
