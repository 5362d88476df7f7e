"""Units of the trade: what runs use in tokens, days, device-hours and money, where these are set.

What they follow from is in [cost]; an objective may have its own `tokens`.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from paceline.simulator.results import intervals
from paceline.simulator.results.run import Run
from paceline.simulator.results.statistics import at, crossing, estimated
from paceline.simulator.scenario.scenario import Scenario

SECONDS_PER_HOUR, SECONDS_PER_DAY = 3600.0, 86400.0
BYTES_PER_GB = 1e9
FLOPS_PER_PARAMETER = 6.0  # and token: two forwards, four backwards (arXiv 2001.08361, section 2.1)
RATES = ("tokens_per_second", "mfu")
Used = Mapping[str, float]


def tokens_per_step(scenario: Scenario) -> float | None:
    """Return the tokens of one step of all workers; None where they are not known."""
    each = getattr(scenario.objective, "tokens", None) or scenario.cost.tokens
    return each and float(each * scenario.cluster.workers)


def devices(scenario: Scenario) -> int:
    """Return how many devices the workers have: an island several, any other worker one."""
    more = (group.workers * (group.devices - 1) for group in scenario.cluster.group)
    return scenario.cluster.workers + sum(more)


def price_per_second(scenario: Scenario, *, served: bool) -> float:
    """Return the price of all nodes for a second; `served`: a server is one of them."""
    nodes, cost = scenario.cluster.workers + served, scenario.cost
    hour = nodes * (cost.node_hour or 0.0) + devices(scenario) * (cost.device_hour or 0.0)
    return hour / SECONDS_PER_HOUR


def used(scenario: Scenario, run: Run, time: float) -> dict[str, float]:
    """Return what a run of `scenario` has used by `time`, in seconds; all of it if that is never.

    `tokens`, `days`, `device_hours`, `egress_bytes` and `cost`, as far as they are set; of the
    whole run `tokens_per_second` and `mfu`, the share of the devices' peak that training needs.
    """
    cost, found, tokens = scenario.cost, dict[str, float](), tokens_per_step(scenario)
    if tokens:
        found["tokens_per_second"] = tokens * run.steps / run.duration if run.duration else inf
        found["tokens"] = tokens * at(run, time, "step")
    if tokens and cost.flops:
        each = cost.flops_per_token or FLOPS_PER_PARAMETER * scenario.model.parameters
        found["mfu"] = found["tokens_per_second"] * each / (devices(scenario) * cost.flops)
    if tokens or cost.priced:
        found["days"] = time / SECONDS_PER_DAY
    if cost.node_hour is not None or cost.device_hour is not None:
        found["device_hours"] = devices(scenario) * time / SECONDS_PER_HOUR
    if cost.priced:
        found["cost"] = at(run, time, "cost")
    if cost.egress_per_gb:  # the rest of the price
        served = next(each.served for each in scenario.algorithm if each.label == run.label)
        nodes = price_per_second(scenario, served=served) * time
        found["egress_bytes"] = max(found["cost"] - nodes, 0.0) / cost.egress_per_gb * BYTES_PER_GB
    if time == inf:  # never
        found |= dict.fromkeys(found.keys() - {*RATES}, inf)
    return found


def summary(scenario: Scenario, runs: Sequence[Run]) -> dict[str, Any]:
    """Return what the runs of an algorithm use, one per seed.

    Means over seeds of `cost` and of each of `RATES`, None where they are not set; estimates of
    what was `used` in the whole run and, with a target, up to there: `to_target`.
    """
    target, ends = scenario.run.target_loss, [used(scenario, run, run.duration) for run in runs]
    there = [] if target is None else [used(scenario, run, crossing(run, target)) for run in runs]
    heavy = scenario.heavy_tailed
    return rates(ends) | {
        "used": amounts(ends, heavy=heavy) or None,
        "to_target": amounts(there, heavy=heavy) or None,
    }


def rates(seeds: Sequence[Used]) -> dict[str, float | None]:
    """Return the mean over seeds of `cost` and of each of `RATES`; None where one is not set."""
    return {
        key: float(np.mean([each[key] for each in seeds])) if key in seeds[0] else None
        for key in (*RATES, "cost")
    }


def amounts(seeds: Sequence[Used], *, heavy: bool) -> dict[str, dict[str, Any]]:
    """Return estimates over seeds of all that is used, of `heavy` tails or not."""
    found: dict[str, dict[str, Any]] = {}
    for key in [each for each in seeds[0] if each not in RATES] if seeds else ():
        values = [each[key] for each in seeds]
        found[key] = estimated(values, intervals.positive(values, heavy=heavy))
    return found
