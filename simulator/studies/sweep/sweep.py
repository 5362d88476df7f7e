"""`paceline sweep`: run a scenario at many points of its keys, and collect one table."""

import math
import random
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...inputs import messages
from ...load.document import override
from ...load.load import Programs, loaded, varied
from ...objectives import plugins
from ...results import store
from ...results.figures import style
from ...results.statistics import jsonable
from ...results.store import Destination
from ...scenario.scenario import Scenario
from .. import executors, size
from ..execution import (
    Execution,
    Progress,
    demand_algorithms,
    key_of_all,
    seed_range,
    settings,
)
from . import table
from .table import Record, SweepResult

LARGEST = 100_000
REMEDY = "write one such as network.latency=20 ms,40 ms"

Point = Mapping[str, str]
Axes = Mapping[str, Sequence[str]]
"""The values of each key."""

_ASSIGNMENT = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[^"'=])*?)\s*=(.*)""", re.DOTALL)


def axes(texts: Iterable[str]) -> dict[str, list[str]]:
    """Parse texts "table.key=V1,V2". Raises InputError naming the text."""
    values: dict[str, list[str]] = {}
    for text in texts:
        assignment = _ASSIGNMENT.fullmatch(text)
        if assignment is None or not assignment[1]:
            raise InputError(f"--vary {text}: not table.key=V1,V2; {REMEDY}")
        key = assignment[1]
        if key in values:
            raise InputError(f"--vary {text}: {key} is varied twice; name all its values at once")
        values[key] = split(assignment[2], f"--vary {text}")
    return values


def split(text: str, where: str = "") -> list[str]:
    """Split values at the commas outside brackets and quotes.

    A value that begins like a TOML list, table or quoted text continues until that is complete;
    other values end at the next comma. Raises InputError, which begins with `where`.
    """
    values, value = [], ""
    for part in text.split(","):
        value = f"{value},{part}" if value else part.strip()
        if _complete(value):
            values.append(value.strip())
            value = ""
    if value:
        raise InputError(f"{where}: not TOML; close its quotes and brackets: {value}")
    if not all(values):
        raise InputError(f'{where}: a value is missing; write "" for an empty text')
    return values


def _complete(value: str) -> bool:
    """Return whether a value that begins like TOML is TOML."""
    closes = {"[": "]", "{": "}", '"': '"', "'": "'"}.get(value[:1], "")
    if closes and value.rstrip().endswith(closes):  # parsing at every comma takes quadratic time
        with suppress(ValueError, RecursionError):
            tomllib.loads(f"value = {value}")
            return True
    return not closes


def grid(values: Axes) -> list[Point]:
    """Return all combinations, the last key varying fastest. Raises InputError."""
    if not values:
        raise InputError(
            "nothing to vary; name keys and values, such as network.latency=20 ms,40 ms"
        )
    count = math.prod(map(len, values.values()))
    if count > LARGEST:
        raise InputError(f"{count} points: at most {LARGEST} in one sweep; give fewer values")
    return [dict(zip(values, point, strict=True)) for point in product(*values.values())]


def value(text: str) -> Any:
    """Return the TOML value of a text, or else the text itself."""
    table: dict[str, Any] = {}
    override(table, f"value={text}")
    return table["value"]


@dataclass(frozen=True)
class SweepTask:
    """A point, with all its algorithms and seeds."""

    scenario: Scenario
    seeds: range
    point: Point


def sweep(  # noqa: PLR0913 - the options of the command
    scenario: Scenario | str | Path,
    vary: Mapping[str, Sequence[Any]],
    *,
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
) -> SweepResult:
    """Simulate `scenario` at every combination of values.

    Keys and values are those of `--set` ("algorithm.local-sgd.tau", "20 ms"); values may also be
    numbers, lists and dicts. The last key varies fastest. All points are checked before anything
    runs, and equal points are computed once. The other options are those of
    `simulate`. With `out`, everything finished stays there, so that the same call, or one with more
    points, computes only the rest. A table of other settings, or of other points than these, is
    replaced only if `overwrite`. Raises InputError.
    """
    scenario = loaded(scenario, programs)
    chosen = grid(_axes(vary))
    overrides = [[f"{key}={text}" for key, text in point.items()] for point in chosen]
    scenarios = table.labelled([varied(scenario, sets, where="") for sets in overrides])
    execution = Execution(engine, jobs, dask)
    ranges = [seed_range(scenario, seeds, seed) for scenario in scenarios]
    for one in scenarios:
        demand_algorithms(one)
    if not force:
        size.demand(zip(scenarios, ranges, strict=True), execution)
    tasks = [*map(SweepTask, scenarios, ranges, chosen)]
    how = {"seeds": seeds, "seed": seed, "engine": engine}
    stated = settings("sweep", scenario, points=chosen, **how)
    with executors.study(execution, store.SweepDirectory, stated, out, overwrite) as place:
        work = executors.Work(
            partial(run_tasks, execution),
            lambda block: ", ".join(f"{key}={text}" for key, text in block[0].point.items()),
            lambda block: len(block[0].seeds) * len(block[0].scenario.algorithm),
            plugins.versions(*(scenario.objective for scenario in scenarios)),
            lambda task: key_of_all(task.scenario, task.seeds, engine),
            # shuffled, so that the remaining time can be estimated early
            lambda left: [[at] for at in random.Random(0).sample(left, len(left))],
        )
        records, resumed = executors.complete(place, work, tasks, progress)
        values = [{key: value(text) for key, text in point.items()} for point in chosen]
        result = table.collected(scenario, values, scenarios, records, resumed)
        if place.directory:
            save(result, place.directory)
    return result


def _axes(vary: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the values of every key as texts; one text may hold several."""
    return {
        key: split(values, key)
        if isinstance(values, str)
        else [x if isinstance(x, str) else messages.toml(jsonable(x)) for x in values]
        for key, values in vary.items()
    }


def run_tasks(execution: Execution, tasks: Sequence[SweepTask]) -> list[Record]:
    """Run tasks in this process."""
    return [table.measured(task.scenario, task.seeds, execution) for task in tasks]


def save(result: SweepResult, directory: store.SweepDirectory) -> None:
    """Write the table, the figure and sweep.json."""
    document = {
        "scenario": result.json()["scenario"] | {"table": result.scenario.table},
        "vary": result.vary,
        "points": result.points,
        "verdict": result.verdict.json(),
        "picks": result.picks,
        "bounds": result.bounds,
        "engine": result.engine,
        "versions": result.versions,
        "notes": result.notes,
    }
    files = {"sweep.csv": table.csv_table(result.rows)}
    style.save(
        partial(table.figures, result),
        lambda figures: directory.replace({**files, **figures}, document),
        directory.path,
    )
