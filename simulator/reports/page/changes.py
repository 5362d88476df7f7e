"""Show which other links, prices and budgets would change the answer of a saved run.

Times scale with the step time, whose changes come from short simulations without a loss. The loss
by steps stays the same. A saved RUN is data of unknown origin: files that its scenario names are
read only from the scenario's folder, and only below the working directory; nothing long is run.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from ...cluster import prices
from ...errors import InputError, RunError
from ...load.load import parse
from ...results import wording
from ...results.intervals import stated
from ...results.read import RunDirectory
from ...results.statistics import common_unit, format_loss, human
from ...scenario.scenario import Scenario
from ...scenario.tables import LearningCurve
from ...studies import learning, links
from ..explore.explorer import multiplied, put
from .parts import PageSection, PageTable
from .reading import FoundRun

SHOWN = 3  # algorithms: the pick, the next, data-parallel training, or equally good others
BASE = "as simulated"
LONGEST = 4e5  # gradients of all short simulations together
FACTORS = {0.5: "half", 2.0: "twice"}
NO_SECTION = (InputError, RunError, ValueError, KeyError, TypeError, ArithmeticError)


class Amounts(NamedTuple):
    """The amounts of one algorithm's run: time (s), cost, its part for traffic, and loss."""

    seconds: float
    cost: float | None = None
    traffic: float = 0.0
    currency: str = ""
    loss: str = ""

    def show(self, unit: tuple[float, str] | None) -> str:
        """Format the amounts, with the time in a `unit` that all cells share."""
        cost = ""
        if self.cost is not None:
            cost = f"{wording.cell(stated({'mean': self.cost}), '')} {self.currency}".rstrip()
        return ", ".join(filter(None, [human(self.seconds, unit), cost, self.loss]))

    def scaled(self, times: float, price: float = 1.0) -> "Amounts":
        """Return the amounts of a run `times` as long, with the price of time times `price`."""
        cost = self.cost
        if cost is not None:
            cost = (cost - self.traffic) * times * price + self.traffic
        return self._replace(seconds=self.seconds * times, cost=cost)


Changed = Mapping[str, Amounts | None]
"""Amounts of algorithms under a change, by label; None if only a long run would show them."""


def section(opened: FoundRun, place: int) -> PageSection | None:
    """Tabulate the leading algorithms' amounts for inputs half or twice as large.

    None for a measurement, or if no amount is available.
    """
    run = opened.main
    if run is None or run.is_measured or not opened.verdict["pick"]:
        return None
    try:
        scenario = _parsed(opened, run.table)
        leading = _leading(opened.verdict, run.rows)
        to_target = (run.rows[leading[0]]["time_to_target"] or {}).get("mean") is not None
        if scenario.run.duration is not None and not to_target:
            return None  # only the loss at the end would change
        every = {label: _amounts(run.rows[label], scenario, to_target) for label in leading}
        base = {label: amounts for label, amounts in every.items() if amounts}
        rows: dict[str, Changed] = {BASE: base, **dict(_changes(opened, scenario, base))}
    except NO_SECTION:
        return None
    rows = {name: row for name, row in rows.items() if any(row.values())}
    if len(rows) == 1:
        return None
    measure = "Time to the target" if to_target else "Time of the run"
    caption = f"{measure} if steps take longer or shorter; the loss by steps stays the same"
    table = PageTable(caption, ("with", *base), _cells(rows, [*base]))
    return PageSection(f"changes-{place}", "What would change it", tables=[table])


def _cells(rows: Mapping[str, Changed], labels: Sequence[str]) -> list[list[str]]:
    """Return the cells of a row for each change, with all times in one unit."""
    unit = common_unit(*(one.seconds for row in rows.values() for one in row.values() if one))
    return [
        [name, *(one.show(unit) if (one := row[label]) else "-" for label in labels)]
        for name, row in rows.items()
    ]


def _parsed(opened: FoundRun, table: Mapping[str, Any]) -> Scenario:
    """Return the scenario of a RUN with a `table`, whose files are in the scenario's folder."""
    file = Path(opened.scenario["file"])
    trusted = file.resolve().is_relative_to(Path.cwd())
    folder = file.parent if trusted else opened.path
    return parse(dict(table), file=str(file), folder=folder, allow_paths=False)


def _leading(verdict: Mapping[str, Any], rows: Mapping[str, Any]) -> list[str]:
    """Return the labels to compare, the pick first."""
    named = [verdict["pick"], verdict.get("runner_up")]
    named += [row["label"] for row in verdict["reasons"] if row["code"] == "baseline"]
    labels = [*named, *verdict["candidates"], *rows]
    return [label for label in dict.fromkeys(labels) if label in rows][:SHOWN]


def _amounts(row: Mapping[str, Any], scenario: Scenario, to_target: bool) -> Amounts | None:
    """Return a run's amounts, up to the target or overall; None if some seed missed it."""
    if to_target and (row["time_to_target"] or {}).get("mean") is None:
        return None
    seconds = stated(row["time_to_target"]).value if to_target else row["duration"]
    used = row.get("to_target" if to_target else "used") or {}
    cost = (used.get("cost") or {}).get("mean")
    sent = (used.get("egress_bytes") or {}).get("mean") or 0.0
    traffic = sent * prices.price_per_byte(scenario.cost)
    return Amounts(float(seconds), cost, traffic, row.get("currency") or "")


def _changes(
    opened: FoundRun, scenario: Scenario, base: Mapping[str, Amounts]
) -> Iterator[tuple[str, Changed]]:
    """Yield the algorithms' amounts by changed input."""
    run = opened.main
    assert run is not None
    before = _paces(run, scenario, base)
    for what in ("bandwidth", "latency"):
        for factor, words in FACTORS.items():
            # whatever delays an average: its hops, their spread, or its stated time
            keys = [what] if what == "bandwidth" else ["latency", "jitter", "duration"]
            table = deepcopy(scenario.table)
            put(table, multiplied(scenario, factor, *keys))
            if table != scenario.table:
                after = _paces(run, _parsed(opened, table), base)
                pairs = {label: (after[label], before[label]) for label in base}
                yield (
                    f"{words} the {what}",
                    {
                        k: base[k].scaled(now / was) if now and was else None
                        for k, (now, was) in pairs.items()
                    },
                )
    if any(amounts.cost for amounts in base.values()):
        yield "twice the price of time", {k: amounts.scaled(1, 2.0) for k, amounts in base.items()}
    whole = scenario.run.target_loss is None and scenario.run.duration is None
    if isinstance(scenario.objective, LearningCurve) and whole:
        yield "twice the steps", {k: _longer(run, scenario, k, one) for k, one in base.items()}


def _paces(
    run: RunDirectory, scenario: Scenario, labels: Mapping[str, Any]
) -> dict[str, float | None]:
    """Return the seconds per step of short runs by label; None if long runs are needed."""
    return {
        one.label: links.short_pace(scenario, one, run.runs[one.label][0], LONGEST)
        if run.runs.get(one.label)
        else None
        for one in scenario.algorithm
        if one.label in labels
    }


def _longer(run: RunDirectory, scenario: Scenario, label: str, amounts: Amounts) -> Amounts | None:
    """Return the amounts of twice the steps, with the loss of the curve there."""
    row, runs = run.rows[label], run.runs.get(label, ())
    if not runs or row["loss"]["last"] is None:
        return None
    (algorithm,) = (algorithm for algorithm in scenario.algorithm if algorithm.label == label)
    curve = learning.expected(scenario, algorithm, runs).parallel
    loss = row["loss"]["last"] * float(curve(2 * row["steps"]) / curve(row["steps"]))
    cost = amounts.cost and 2 * amounts.cost
    words = f"loss {format_loss(loss)}"
    return amounts._replace(seconds=2 * amounts.seconds, cost=cost, loss=words)
