"""What would change the answer of a run: other links, prices and budgets, from what is saved.

Times scale with the time of a step, of which short simulations without a loss tell how it changes;
the loss by steps stays as it is. What is saved in a RUN is data of unknown origin: no file outside
it is read, and nothing long is run.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from ...cluster import prices
from ...errors import InputError, RunError
from ...load.load import parse
from ...results import wording
from ...results.intervals import stated
from ...results.statistics import format_loss, human
from ...scenario.scenario import Algorithm, Scenario
from ...scenario.tables import LearningCurve
from ...studies import learning, links
from ...studies.tune import regret
from .parts import CHANGES, PageSection, PageTable
from .reading import FoundRun

SHOWN = 3  # algorithms: the pick, the next, data-parallel training, or others as good
TARGET, RUN, STEP = "Time to the target", "Time of the run", "Time per step"
LEAST = 0.02  # share of a time that a change has to change
LONGEST = 4e5  # gradients of all short simulations together
FACTORS = {0.5: "half", 2.0: "twice"}
NO_SECTION = (InputError, RunError, ValueError, KeyError, TypeError, ArithmeticError)


class Known(NamedTuple):
    """What a run of one algorithm takes: time (seconds), cost, what of it is traffic, and loss."""

    seconds: float
    cost: float | None
    traffic: float
    currency: str
    loss: str = ""

    def __str__(self) -> str:
        """Return the amounts in words."""
        cost = ""
        if self.cost is not None:
            cost = f"{wording.cell(stated({'mean': self.cost}), '')} {self.currency}".rstrip()
        return ", ".join(filter(None, [human(self.seconds), cost, self.loss]))

    def scaled(self, times: float, price: float = 1.0) -> "Known":
        """Return what it takes if it takes `times` as long, at `price` times the price of time."""
        cost = self.cost
        if cost is not None:
            cost = (cost - self.traffic) * times * price + self.traffic
        return self._replace(seconds=self.seconds * times, cost=cost)


def section(found: FoundRun, place: int) -> PageSection | None:
    """Tabulate what the leading algorithms would take if something was half or twice as large.

    None of a measurement, and where nothing of it can be told.
    """
    run = found.main
    if run is None or run.is_measured or not found.verdict["pick"]:
        return None
    try:
        origin = {"file": found.scenario["file"], "folder": found.path, "allow_paths": False}
        scenario = parse(dict(run.table), **origin)
        leading = _leading(found)
        measure = _measure(run.rows[leading[0]], scenario)
        known = {label: _known(run.rows[label], scenario, measure) for label in leading}
        rows = {label: amounts for label, amounts in known.items() if amounts}
        every = dict(_changes(found, scenario, rows))
    except NO_SECTION:
        return None
    base = every.pop("as simulated")
    moved = {name: row for name, row in every.items() if _differs(base, row)}
    lead = [_sentence(base, moved)] if len(rows) > 1 else []
    idle = " or ".join(name for name in every if name not in moved)
    lead += [f"{idle.capitalize()} would change hardly anything."] if idle else []
    cells = [
        [name, *(str(amounts) if amounts else "-" for amounts in row.values())]
        for name, row in {"as simulated": base, **moved}.items()
    ]
    caption = f"{measure} where steps take longer or shorter; the loss by steps stays as it is"
    table = PageTable(caption, ("with", *rows), cells)
    text = " ".join(lead)
    return PageSection(f"changes-{place}", CHANGES, text, tables=[table]) if moved else None


Amounts = Mapping[str, Known | None]


def _leading(found: FoundRun) -> list[str]:
    """Return the labels to compare, the pick first."""
    verdict, rows = found.verdict, found.main.rows if found.main else {}
    named = [verdict["pick"], verdict.get("runner_up")]
    named += [row["label"] for row in verdict["reasons"] if row["code"] == "baseline"]
    labels = [*named, *verdict["candidates"], *rows]
    return [label for label in dict.fromkeys(labels) if label in rows][:SHOWN]


def _known(row: Mapping[str, Any], scenario: Scenario, measure: str) -> Known | None:
    """Return what a run takes to the target, as a whole, or for a step, as `measure` says."""
    if measure == STEP:
        return Known(stated(row["seconds_per_step"]).value, None, 0.0, "")
    to_target = measure == TARGET
    if to_target and (row["time_to_target"] or {}).get("mean") is None:
        return None
    seconds = stated(row["time_to_target"]).value if to_target else row["duration"]
    used = row.get("to_target" if to_target else "used") or {}
    cost = (used.get("cost") or {}).get("mean")
    sent = (used.get("egress_bytes") or {}).get("mean") or 0.0
    traffic = sent / prices.BYTES_PER_GB * (scenario.cost.egress_per_gb or 0.0)
    return Known(float(seconds), cost, traffic, row.get("currency") or "")


def _measure(row: Mapping[str, Any], scenario: Scenario) -> str:
    """Return what the pick is judged by: a run that ends by its duration tells of steps alone."""
    if (row["time_to_target"] or {}).get("mean") is not None:
        return TARGET
    return STEP if scenario.run.duration is not None else RUN


def _changes(
    found: FoundRun, scenario: Scenario, rows: Mapping[str, Known]
) -> Iterator[tuple[str, Amounts]]:
    """Yield what the algorithms take, by what changes."""
    algorithms = [one for one in scenario.algorithm if one.label in rows]
    yield "as simulated", dict(rows)
    before = {one.label: _pace(found, scenario, one) for one in algorithms}
    for what in ("bandwidth", "latency"):
        for factor, words in FACTORS.items():
            table = regret.world(scenario.table, what, factor)
            if table != scenario.table:
                other = parse(table, file=scenario.file, folder=found.path, allow_paths=False)
                after = {one.label: _pace(found, other, one) for one in algorithms}
                yield (
                    f"{words} the {what}",
                    {
                        label: known.scaled(now / was) if (now := after[label]) and was else None
                        for label, known in rows.items()
                        for was in [before[label]]
                    },
                )
    if any(known.cost for known in rows.values()):
        yield "twice the price of time", {k: known.scaled(1, 2.0) for k, known in rows.items()}
    whole = scenario.run.target_loss is None and scenario.run.duration is None
    if isinstance(scenario.objective, LearningCurve) and whole:
        by_label = {one.label: one for one in algorithms}
        longer = {k: _longer(found, scenario, by_label[k], known) for k, known in rows.items()}
        yield "twice the steps", longer


def _pace(found: FoundRun, scenario: Scenario, algorithm: Algorithm) -> float | None:
    """Return the seconds per step of a short run; None where only a long one would tell."""
    runs = found.main.runs.get(algorithm.label, ()) if found.main else ()
    return links.short_pace(scenario, algorithm, runs[0], LONGEST) if runs else None


def _longer(
    found: FoundRun, scenario: Scenario, algorithm: Algorithm, known: Known
) -> Known | None:
    """Return what twice the steps take, with the loss that the curve has then."""
    runs = found.main.runs.get(algorithm.label, ()) if found.main else ()
    row = found.main.rows[algorithm.label] if found.main else {}
    if not runs or row["loss"]["last"] is None:
        return None
    curve = learning.expected(scenario, algorithm, runs).parallel
    loss = row["loss"]["last"] * float(curve(2 * row["steps"]) / curve(row["steps"]))
    twice = known.scaled(2.0)._replace(traffic=2 * known.traffic, loss=f"loss {format_loss(loss)}")
    return twice if known.cost is None else twice._replace(cost=2 * known.cost)


def _differs(base: Amounts, row: Amounts) -> bool:
    """Tell whether something takes another time, costs another amount, or has another loss."""
    pairs = [(base[label], now) for label, now in row.items() if now is not None]
    return any(
        was is None
        or now.loss
        or abs(now.seconds - was.seconds) > LEAST * was.seconds
        or abs((now.cost or 0.0) - (was.cost or 0.0)) > LEAST * (was.cost or 0.0)
        for was, now in pairs
    )


def _sentence(base: Amounts, moved: Mapping[str, Amounts]) -> str:
    """Say which algorithm takes the least time, and where that changes."""
    first = _soonest(base)
    others: dict[str, list[str]] = {}
    for name, row in moved.items():
        if (soonest := _soonest(row)) != first:
            others.setdefault(soonest, []).append(name)
    if not others:
        return f"{first} takes the least time in every row."
    parts = (f"with {' or '.join(names)} {label}" for label, names in others.items())
    return f"{first} takes the least time, {', '.join(parts)}."


def _soonest(row: Amounts) -> str:
    there = {label: known.seconds for label, known in row.items() if known is not None}
    return min(there, key=partial(dict.__getitem__, there))
