"""The tokens, days, device-hours and money that runs use.

The scenario's [cost] sets rates and prices; an objective may set `tokens`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf, isfinite
from types import MappingProxyType
from typing import Any

import numpy as np

from ..cluster import prices
from ..cluster.membership import all_day, working
from ..scenario.hardware import FLOPS_PER_PARAMETER
from ..scenario.scenario import Scenario
from ..scenario.tables import Prices
from . import intervals, wording
from .prediction_interval import PACE, TARGET, Errors
from .run import Run
from .statistics import Unit, at, common_unit, crossing, estimated, with_unit

SECONDS_PER_DAY = 86400.0
FASTEST = 2.5e15  # operations per second, the most of any GPU of 2025 (B200, bf16)
RATES = ("tokens_per_second", "mfu")
IDLE = 0.02  # share of a device's peak: only training that is held up computes more slowly
UNITS = {  # words and unit of each
    "tokens_per_second": ("tokens/s", "#"),
    "mfu": ("MFU", "%"),
    "tokens": ("tokens", "#"),
    "days": ("time", "s"),
    "nights": ("nights", ""),
    "rounds": ("rounds", ""),
    "client_bytes": ("bytes/client", "B"),
    "device_hours": ("device-hours", ""),
    "egress_bytes": ("egress", "B"),
    "cost": ("cost", ""),
}
TIMED = {"days", "device_hours", "cost"}  # amounts that grow with the time; traffic does not
COUNTED = {"nights", "rounds", "client_bytes"}  # counts selected clients, as steps do
SPREAD = {"days", "cost", *COUNTED}  # shown with intervals; device-hours go with the days
Used = Mapping[str, float]
Row = Mapping[str, Any]
Cell = Callable[[Row], str]


def tokens_per_step(scenario: Scenario) -> float | None:
    """Return the tokens of a worker's step; None if they are not set."""
    return getattr(scenario.objective, "tokens", None) or scenario.cost.tokens


def _flops(scenario: Scenario) -> float:
    """Return the operations per token."""
    return scenario.cost.flops_per_token or FLOPS_PER_PARAMETER * scenario.model.parameters


def used(scenario: Scenario, run: Run, time: float) -> dict[str, float]:
    """Return the amounts that a run has used by `time` (s); infinite if `time` is.

    The result has the `UNITS` that are set, and `RATES` of the whole run. Rates count whole days
    where workers are available only for some hours.
    """
    cost, many, amounts = scenario.cost, prices.devices(scenario), dict[str, float]()
    tokens, clients = tokens_per_step(scenario), run.gradients is not None and run.rounds
    if not any((tokens, cost.priced, clients)):
        return amounts
    algorithm = next(algorithm for algorithm in scenario.algorithm if algorithm.label == run.label)
    paid = {key: float(np.interp(time, run.curve["time"], run.paid[key])) for key in run.paid}
    if tokens:
        tokens *= run.contributing or scenario.participants(algorithm)
        nights = None if all_day(scenario.cluster) else working(scenario.cluster)(run.duration)
        whole = run.duration if nights is None else nights * SECONDS_PER_DAY
        amounts["tokens_per_second"] = tokens * run.steps / whole if whole else inf
        if cost.flops:
            amounts["mfu"] = amounts["tokens_per_second"] * _flops(scenario) / (many * cost.flops)
        amounts["tokens"] = tokens * at(run, time, "step")
    amounts["days"] = time / SECONDS_PER_DAY
    if clients:
        if not all_day(scenario.cluster):
            amounts["nights"] = working(scenario.cluster)(time)
        amounts["rounds"] = run.rounds * at(run, time, "step") / run.steps
        amounts["client_bytes"] = at(run, time, "bytes") / scenario.cluster.workers
    if cost.node_hour is not None or cost.device_hour is not None:
        amounts["device_hours"] = paid.get("device_seconds", many * time) / prices.SECONDS_PER_HOUR
    if cost.priced:
        amounts["cost"] = at(run, time, "cost")
    if cost.egress_per_gb:  # the rest of the price, for workers present all the time
        nodes = prices.price_per_second(scenario, served=algorithm.served) * time
        rest = max(amounts["cost"] - nodes, 0.0) / cost.egress_per_gb * prices.BYTES_PER_GB
        amounts["egress_bytes"] = paid.get("egress_bytes", rest)
    return amounts | (dict.fromkeys(amounts.keys() - {*RATES}, inf) if time == inf else {})


def most(scenario: Scenario, *, served: bool) -> dict[str, float]:
    """Return the most that a run of limited duration can use."""
    time, cost = scenario.run.duration, scenario.cost
    if time is None:
        return {}
    money = prices.price_per_second(scenario, served=served) * time
    hours = prices.devices(scenario) * time / prices.SECONDS_PER_HOUR
    limits = {"days": time / SECONDS_PER_DAY, "device_hours": hours}
    return limits if cost.egress_per_gb else limits | {"cost": money}


def paces(scenario: Scenario) -> list[str]:
    """Note devices that compute implausibly fast or slowly, and egress without a price."""
    regions = {group.region or scenario.cluster.region for group in scenario.cluster.group}
    free = scenario.cost.priced and scenario.cost.egress_per_gb is None and len(regions) > 1
    unset = "cost.egress_per_gb is not set, so bytes between regions cost nothing; write it"
    return [*_implausible(scenario), *([unset] if free else [])]


def _implausible(scenario: Scenario) -> list[str]:
    cost, many = scenario.cost, prices.devices(scenario)
    rate = (tokens_per_step(scenario) or 0) * _flops(scenario) * scenario.team.ideal_rate / many
    peak = cost.flops or FASTEST
    if not rate or (rate <= peak and (not cost.flops or rate >= IDLE * peak)):
        return []
    where = "cost.flops" if cost.flops else "the fastest GPU in the tables"
    return [
        f"cluster.compute: a device computes {rate / 1e12:.4g} TFLOP/s, {100 * rate / peak:.2g} % "
        f"of {where}; do compute, tokens and parameters describe one worker's step?"
    ]


def summary(
    scenario: Scenario,
    runs: Sequence[Run],
    model: Any = None,
    stated: Mapping[str, Sequence[float] | None] = MappingProxyType({}),
) -> dict[str, Any]:
    """Summarise amounts of whole runs and, under `to_target`, up to the target.

    `model`: the model of the loss, whose error widens the intervals of amounts up to the target.
    `stated`: the intervals of one run's seconds per step and time to the target, which also apply
    to days.
    """
    target, heavy = scenario.run.target_loss, scenario.heavy_tailed
    whole = [used(scenario, run, run.duration) for run in runs]
    pace = stated.get(PACE) if scenario.run.duration is None else None
    steps = sum(run.steps for run in runs) / len(runs)
    within = pace and [end * steps for end in pace]
    amounts = summarise_amounts(whole, scenario.cost, heavy, within=within)
    algorithm = next(one for one in scenario.algorithm if one.label == runs[0].label)
    for key, end in most(scenario, served=algorithm.served).items():
        amount = (amounts["used"] or {}).get(key, {})
        for name in ("interval", "ci95"):
            if ends := amount.get(name):
                amount[name] = [ends[0], min(ends[1], end)]
    if target is None:
        return amounts | {"to_target": None}
    factors = Errors(model).to_target(runs, target) if model else None
    there = [used(scenario, run, crossing(run, target)) for run in runs]
    to_target = _amounts(there, scenario.cost, heavy, factors, stated.get(TARGET))
    return amounts | {"to_target": to_target}


def summarise_amounts(
    seeds: Sequence[Used],
    cost: Prices,
    heavy: bool,
    factors: np.ndarray | None = None,
    within: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Return means of `cost` and `RATES`, and estimates of all amounts in `used`.

    `heavy`: the variance may be infinite; `factors`: draws of the relative error of steps;
    `within`: the interval of one run's seconds. Amounts that depend on either get the interval of
    one run, also as `interval90`. `ci95` belongs to the mean, and is absent with factors.
    """
    means = {
        key: float(np.mean([amounts[key] for amounts in seeds])) if key in seeds[0] else None
        for key in (*RATES, "cost")
    }
    return means | {
        "currency": cost.currency,
        "used": _amounts(seeds, cost, heavy, factors, within),
    }


def _amounts(
    seeds: Sequence[Used],
    cost: Prices,
    heavy: bool,
    factors: np.ndarray | None,
    within: Sequence[float] | None,
) -> dict[str, Any] | None:
    every = {key: [amounts[key] for amounts in seeds] for key in seeds[0] if key not in RATES}
    each_byte = prices.price_per_byte(cost)
    traffic = each_byte * float(np.mean(every.get("egress_bytes", 0.0)))
    seconds = SECONDS_PER_DAY * float(np.mean(every.get("days", 0.0)))

    def amount(key: str, values: Sequence[float]) -> dict[str, Any]:
        estimate = intervals.positive(values, heavy=heavy)
        if factors is not None and isfinite(estimate.value):
            estimate = intervals.widened(estimate, estimate.value * factors)
        if within and key in TIMED and seconds:
            fixed = traffic if key == "cost" and factors is None else 0.0  # bytes of the steps
            low, high = (fixed + (estimate.value - fixed) * end / seconds for end in within)
        elif factors is not None and key in COUNTED and isfinite(estimate.value):
            low, high = (estimate.value * np.quantile(factors, intervals.TAILS)).tolist()
        else:
            return estimated(values, estimate)
        estimate = replace(estimate, interval=(low, high), level=intervals.LEVEL)
        estimate = estimate if factors is None else estimate.by_model(low, high)
        of_one_run = replace(estimate, basis=f"{estimate.basis}, of one run")
        return estimated(values, of_one_run) | {"interval90": [low, high]}

    return {key: amount(key, values) for key, values in every.items()} or None


def cells(rows: Sequence[Row], target: float | None = None) -> tuple[str, dict[str, Cell]]:
    """Return what the amounts cover, in words, and formatters of cells by heading.

    They cover the run up to the `target`, if there is one and some row reached it.
    """
    means = [amount["mean"] for row in rows for amount in (row.get("to_target") or {}).values()]
    reached = target and any(mean is not None and isfinite(mean) for mean in means)
    until, columns = "to_target" if reached else "used", dict[str, Cell]()
    for key, (words, unit) in UNITS.items():
        there = [estimate for row in rows if (estimate := _shown(row, until, key))]
        if there:
            currency = rows[0].get("currency") if key == "cost" else None
            about = ", ".join(filter(None, [currency, wording.usual(there)]))
            shared = common_unit(*(estimate.value for estimate in there if estimate.value))
            one_unit = shared if shared and unit == "s" else unit
            heading = f"{words} ({about})" if about else words
            columns[heading] = partial(_cell, key, one_unit, until)
    return f"to loss {target:g}" if reached else "in the whole run", columns


def _shown(row: Row, until: str, key: str) -> intervals.Estimate | None:
    """Return an amount in the unit of `UNITS`, with its interval if that is worth showing."""
    rate = {"mean": row[key]} if key in RATES and row.get(key) is not None else None
    amount = (row.get(until) or {}).get(key, rate)
    if amount is None:
        return None
    times = SECONDS_PER_DAY if key == "days" else 1.0
    estimate = intervals.stated(amount).moved(lambda value: times * value)
    worth = key in SPREAD and not estimate.narrow
    return estimate if worth else replace(estimate, interval=None)


def _cell(key: str, unit: Unit, until: str, row: Row) -> str:
    estimate = _shown(row, until, key)
    if estimate is None:
        return "-"
    return wording.cell(estimate, unit) if estimate.interval else with_unit(estimate.value, unit)
