"""Summarise over seeds how an algorithm uses workers' time and lines."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from ..network.closed_form import ClosedForm
from ..scenario.scenario import Algorithm, Scenario
from .run import Run
from .statistics import breakdown
from .wording import Reason, all_of

MATTERS = 1.05  # times the mean: a smaller difference is not worth reporting
SLOWER = 1.02  # times the mean, where the scenario says that workers differ
AWAY = ("absent", "unselected")  # kinds of time in which a client takes no part


def span(run: Run) -> float:
    """Return the duration of a run in seconds; its curve may end earlier."""
    spent = np.array([*run.workers.values()])
    return float(spent.sum(axis=0).max()) if spent.size else run.duration


def over_seeds(values: Sequence[Any]) -> Any:
    """Return the mean over seeds of numbers, or of tables and lists of numbers.

    None does not count; of several texts the first that is not empty is returned.
    """
    there = [value for value in values if value is not None and value != ""]
    if not there:
        return None
    if isinstance(there[0], Mapping):
        return {key: over_seeds([table[key] for table in there]) for key in there[0]}
    if isinstance(there[0], list):
        return [over_seeds(column) for column in zip(*there, strict=True)]
    return there[0] if isinstance(there[0], str) else sum(there) / len(there)


def lines(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return means over seeds of `Run.lines`. `saturated`, `down`: shares of the time."""
    shares = ("saturated", "down")
    every = [
        [
            {key: line[key] for key in ("line", "bytes", "utilisation")}
            | {
                key: min(1.0, line.get(f"{key}_seconds", 0.0) / (span(run) or inf))
                for key in shares
            }
            for line in run.lines
        ]
        for run in runs
    ]
    means = zip(over_seeds(every) or [], runs[0].lines, strict=True)
    return [mean | {"bandwidth": line["bandwidth"]} for mean, line in means]


def bottleneck(scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run]) -> str:
    """Return the reasons for an algorithm's time as a sentence."""
    where = "" if scenario.cluster.sampling is None else "while clients take part, "
    return f"{algorithm.label}: {where}{'; '.join(map(str, reasons(scenario, algorithm, runs)))}."


def reasons(scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run]) -> list[Reason]:
    """Return where most of the workers' time goes, and why; or only the stall.

    Sampled clients have no time while they are away; in a round they wait for the last client.
    """
    if stalls := [run.stall for run in runs if run.stall]:
        return [Reason("deadlock", {"seeds": len(stalls), "of": len(runs), "why": stalls[0]})]
    sampled = scenario.cluster.sampling is not None
    share = _shares(runs, sampled)
    if not share:
        return [Reason("instant")]
    crashes = sum(run.failures["crashes"] for run in runs if run.failures) / len(runs)
    parts = {kind: share.get(kind, 0.0) for kind in ("lost", "down")}
    vain = "failures" if crashes else "left-out"
    uses = {code: share.get(code, 0.0) for code in ("compute", "wait", "communicate")}
    uses |= {"standing": share.get("stalled", 0.0), vain: sum(parts.values())}
    code = max(uses, key=lambda code: uses[code])
    result = [Reason(code, {"share": uses[code]} | (parts if code == vain else {}))]
    if sampled:
        return result
    unequal = scenario.recovery.policy in ("shrink", "quorum") or scenario.recovery.backups
    if code in ("standing", vain):
        result += [Reason("crashes", {"crashes": crashes})] * bool(crashes)
    elif code == "communicate":
        result += _full_lines(runs, uses[code])
    elif not (unequal or runs[0].staleness_unit == "updates"):
        result.append(_slowest(scenario, runs))
    return result


def _shares(runs: Sequence[Run], sampled: bool) -> dict[str, float]:
    """Return the shares of the time in which workers take part, by use; {} without any."""
    spent = {kind: share for kind, share in breakdown(runs).items() if kind not in AWAY}
    whole = sum(spent.values()) if sampled else 1.0
    if not whole or not any(any(run.seconds.values()) for run in runs):
        return {}
    return {kind: part / whole for kind, part in spent.items()}


def _slowest(scenario: Scenario, runs: Sequence[Run]) -> Reason:
    """Name the slowest worker, or its group if that is slow as a whole."""
    computed = np.array([run.workers["compute"] for run in runs])  # (seeds, workers)
    times = float(np.mean(computed.max(axis=1) / computed.mean(axis=1)))
    unlike = max(scenario.team.relative_speeds) > SLOWER  # not by chance
    if times < (SLOWER if unlike else MATTERS):
        return Reason("alike")
    ranks, total = {*computed.argmax(axis=1).tolist()}, computed.sum(axis=0)
    groups = np.array([worker.group for worker in scenario.team.workers])
    group = groups[total.argmax()]
    who = f"worker {ranks.pop()}" if len(ranks) == 1 else "a different worker with each seed"
    if group and total[groups == group].mean() > (total.max() + total.mean()) / 2:
        who = f"group {group}"
    return Reason("slowest", {"who": who, "times": times})


def _full_lines(runs: Sequence[Run], spent: float) -> list[Reason]:
    """Return the lines saturated longest, if lines are simulated."""
    if not runs[0].lines:
        return []
    full = {line["line"]: line["saturated"] for line in lines(runs)}
    top = max(full.values())
    longest = sorted((k for k, share in full.items() if share > top / MATTERS), reverse=True)
    code = "saturated" if top >= spent / 2 else "unsaturated"
    return [Reason(code, {"lines": all_of(longest), "share": top})]


def held_share(scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run]) -> float | None:
    """Return the share of time that transmissions keep a worker's links busy, if known."""
    settings, whole = scenario.network, sum(span(run) for run in runs)
    if runs[0].lines or runs[0].failures is not None or settings.duration is not None or not whole:
        return None
    network, count = ClosedForm(scenario), scenario.cluster.workers
    sizes = {name: sum(run.links.get(name, 0.0) for run in runs) for name in runs[0].links}
    gathers = getattr(algorithm.parameters.get("codec"), "gathers", False)
    plan = network.plan("gather" if gathers else "mean", network.everyone)
    if runs[0].staleness_unit == "steps" and sizes and {*sizes} == {*plan.moved}:
        return min(1.0, plan.held * sum(sizes.values()) / sum(plan.moved.values()) / whole)
    ranks = {network.places.of(rank): rank for rank in range(count + 1)}
    seconds = 0.0
    for name, size in sizes.items():
        ends = name.split("->")
        if len(ends) != 2:
            return None
        seconds += size / network.link(*(ranks[end] for end in ends)).bandwidth
    return min(1.0, seconds / count / whole)
