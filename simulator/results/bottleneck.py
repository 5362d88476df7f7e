"""The bottleneck: the largest share of an algorithm's time, and measured evidence of its cause.

The numbers are measured in the runs; nothing is predicted about other conditions.
"""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ..network.closed_form import ClosedForm
from ..scenario.scenario import Algorithm, Scenario
from . import usage
from .run import Run
from .statistics import breakdown
from .usage import percent

WORTH = 0.1  # of the time: less is not worth a second word
MATTERS = 1.05  # times the mean: a smaller difference is not worth reporting
SLOWER = 1.02  # times the mean, where the scenario says that workers differ
NEARLY = 1.05  # saturated nearly as long
FEW = 3  # names in a list
SERVER = r"server( in| out)?"
CARD = re.compile(rf"worker \d+( in| out)?|{SERVER}")
"""Names of the lines of network cards."""
AWAY = ("absent", "unselected")  # kinds of time in which a client takes no part

SENTENCES = {
    "deadlock": "stands still for good with {seeds} of {of} seeds: {why}",
    "instant": "nothing takes time",
    "compute": "{share} of the time is computing",
    "wait": "{share} of the time is waiting",
    "communicate": "{share} of the time goes to the network",
    "stalled": "{share} of the time is standing still for crashes",
    "failures": "{share} of the time goes to failures: computed in vain {lost}, down {down}",
    "left-out": "{share} of the time is computed in vain, by workers that leave or are left out",
    "crashes": "crashes per run: {crashes}",
    "alike": "all workers are about as fast",
    "slowest": "the slowest ({who}) takes {times} times the mean",
    "collectives": "collectives hold the links for {share} of the time, one after another",
    "all-wait": "all wait for whichever is slowest, {share} to {most} of their time",
    "waited-for": "the others wait for {who}, which waits for {share} of the time; "
    "the mean over workers is {mean}",
    "server": "the server works for {share} of the time; models waiting there at once: {models}",
    "server-card": "the server's network card is saturated for {share} of the time",
    "saturated": "{lines} saturated for {share} of the time",
    "unsaturated": "no line is saturated for more than {share}, so latency or another limit "
    "of single transfers dominates",
    "latency": "the links transmit for only {share} of the time, so latency, or what the library "
    "adds to each message, dominates",
    "transmitting": "transmissions hold a worker's links for {share} of the time",
}
"""A sentence for each reason, by its code."""
SHARES = {"share", "most", "mean", "lost", "down"}  # values that are shares of the time


class Reason(NamedTuple):
    """A cause of the time that runs take: its code in `SENTENCES`, and its numbers."""

    code: str
    values: Mapping[str, Any] = MappingProxyType({})

    def __str__(self) -> str:
        words = dict(self.values)
        for key, value in self.values.items():
            if isinstance(value, float):
                words[key] = percent(value) if key in SHARES else f"{value:.3g}"
        return SENTENCES[self.code].format(**words)


class _Case(NamedTuple):
    scenario: Scenario
    algorithm: Algorithm
    runs: Sequence[Run]
    share: Mapping[str, float]  # of the workers' time, by use

    @property
    def unit(self) -> str:
        return self.runs[0].staleness_unit


def sentence(scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run]) -> str:
    """Return the reasons of an algorithm's time as a sentence."""
    where = "" if scenario.cluster.sampling is None else "while clients take part, "
    parts = map(str, reasons(scenario, algorithm, runs))
    return f"{algorithm.label}: {where}{'; '.join(parts)}."


def reasons(scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run]) -> list[Reason]:
    """Return the largest share of the workers' time and its causes; of a stall, only that.

    Clients that are sampled have no time while they are away, and wait for a round's last.
    """
    if stalls := [run.stall for run in runs if run.stall]:
        return [Reason("deadlock", {"seeds": len(stalls), "of": len(runs), "why": stalls[0]})]
    spent = {kind: share for kind, share in breakdown(runs).items() if kind not in AWAY}
    there = sum(spent.values()) if scenario.cluster.sampling is not None else 1.0
    if not any(any(run.seconds.values()) for run in runs) or not there:
        return [Reason("instant")]
    share = {kind: part / there for kind, part in spent.items()}
    case = _Case(scenario, algorithm, runs, share)
    lost, down = share.get("lost", 0.0), share.get("down", 0.0)
    vain = "failures" if _crashes(case) else "left-out"
    uses = {code: share.get(code, 0.0) for code in ("compute", "wait", "communicate", "stalled")}
    uses[vain] = lost + down
    first, second, *_ = sorted(uses, key=lambda code: -uses[code])
    result = []
    for code in (first, second) if first == "compute" and uses[second] > WORTH else (first,):
        more = {"lost": lost, "down": down} if code == vain else {}
        result.append(Reason(code, {"share": uses[code], **more}))
        if scenario.cluster.sampling is None:
            result += EXPLAIN.get(code, _crashes)(case)
    return result


def _computing(case: _Case) -> list[Reason]:
    recovery = case.scenario.recovery
    if case.unit != "steps":  # a faster worker computes more often, not less
        return []
    if recovery.policy in ("shrink", "quorum") or recovery.backups:
        return []  # workers' counted steps differ in number
    computed = [np.array(run.workers["compute"]) for run in case.runs]
    times = float(np.mean([seconds.max() / seconds.mean() for seconds in computed]))
    unlike = max(case.scenario.team.relative_speeds) > SLOWER  # so that the slowest is no chance
    if times < (SLOWER if unlike else MATTERS):
        return [Reason("alike")]
    return [Reason("slowest", {"who": _slowest(case.scenario, computed)[0], "times": times})]


def _waiting(case: _Case) -> list[Reason]:
    if case.unit == "updates":
        return _served(case)
    held = held_share(case.scenario, case.algorithm, case.runs)
    if held is not None and held > case.share["wait"] and case.unit == "steps":
        return [Reason("collectives", {"share": held})]
    waits = [np.array(run.workers["wait"]) for run in case.runs]
    whole = sum(map(usage.span, case.runs))
    means, lowest = np.sum(waits, axis=0) / whole, sum(wait.min() for wait in waits) / whole
    if lowest > means.mean() / 2:
        return [Reason("all-wait", {"share": float(means.min()), "most": float(means.max())})]
    there = [
        wait / np.maximum(1 - np.array(run.workers.get("absent", 0.0)) / usage.span(run), 1e-9)
        for run, wait in zip(case.runs, waits, strict=True)
        if wait.any()
    ]
    who, ranks = _slowest(case.scenario, [-share for share in there])
    least = float(means[ranks].mean()) if len(ranks) > 1 else lowest
    return [Reason("waited-for", {"who": who, "share": least, "mean": float(means.mean())})]


def _served(case: _Case) -> list[Reason]:
    """Return how busy the server is, whose answers the workers wait for."""
    server, runs = case.scenario.server, case.runs
    works = [
        server.receive * sum(run.staleness.values()) + server.apply * run.updates for run in runs
    ]
    times = sum(run.duration for run in runs)
    busy = min(1.0, sum(works) / times) if times else 0.0
    full = _saturated(case.scenario, runs)
    card = max((full[name] for name in full if re.fullmatch(SERVER, name)), default=0.0)
    inbox = max(run.inbox_bytes for run in runs) / case.scenario.model.bytes
    served = Reason("server", {"share": busy, "models": inbox})
    carried = [Reason("server-card", {"share": card})] if card > WORTH else []
    return [served, *carried] if busy >= card or inbox else carried


def _crashes(case: _Case) -> list[Reason]:
    counts = [run.failures["crashes"] for run in case.runs if run.failures is not None]
    return [Reason("crashes", {"crashes": sum(counts) / len(case.runs)})] if sum(counts) else []


def _communicating(case: _Case) -> list[Reason]:
    """Return which lines are saturated the longest, or how long transmissions hold the links."""
    spent = case.share["communicate"]
    if case.runs[0].lines:
        full = _saturated(case.scenario, case.runs)
        top = max(full.values(), default=0.0)
        longest = sorted((line for line in full if full[line] > top / NEARLY), reverse=True)
        code = "saturated" if top >= spent / 2 else "unsaturated"
        return [Reason(code, {"lines": _names(longest), "share": top})]
    held = held_share(case.scenario, case.algorithm, case.runs)
    if held is None:
        return []
    return [Reason("latency" if held < spent / 2 else "transmitting", {"share": held})]


EXPLAIN = {"compute": _computing, "wait": _waiting, "communicate": _communicating}


def held_share(scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run]) -> float | None:
    """Return the share of the time that transmissions hold a worker's links; None: unknown."""
    settings, whole = scenario.network, sum(usage.span(run) for run in runs)
    if runs[0].lines or runs[0].failures is not None or settings.duration is not None or not whole:
        return None
    network, count = ClosedForm(scenario), scenario.cluster.workers
    sizes = {name: sum(run.links.get(name, 0.0) for run in runs) for name in runs[0].links}
    gathers = getattr(algorithm.parameters.get("codec"), "gathers", False)
    plan = network.gather_plan if gathers else network.mean_plan
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


def _saturated(scenario: Scenario, runs: Sequence[Run]) -> dict[str, float]:
    """Return the share of the time that each line, or the server's card, is saturated."""
    if runs[0].lines:
        return {line["line"]: line["saturated"] for line in usage.lines(runs)}
    card, times = scenario.server.bandwidth, sum(run.duration for run in runs)
    if not card or not times:
        return {}
    place = ClosedForm(scenario).places.of(scenario.cluster.workers)
    sizes = {
        line: sum(size for run in runs for link, size in run.links.items() if part in link)
        for line, part in (("server in", f"->{place}"), ("server out", f"{place}->"))
    }
    return {line: min(1.0, size / card / times) for line, size in sizes.items()}


def _names(lines: Sequence[str]) -> str:
    """Name saturated lines: of many the first, or the number of network cards."""
    nodes = dict.fromkeys(re.sub(" (in|out)$", "", line) for line in lines)
    if all(map(CARD.fullmatch, lines)):
        return (
            f"the network card of {lines[0]}" if len(nodes) == 1 else f"{len(nodes)} network cards"
        )
    return ", ".join(lines[:FEW]) + (f" and {len(lines) - FEW} more" if len(lines) > FEW else "")


def _slowest(scenario: Scenario, slowness: Sequence[np.ndarray]) -> tuple[str, list[int]]:
    """Name the slowest by `slowness` (workers,) of each seed, with ranks; none if seeds differ."""
    groups = [worker.group for worker in scenario.team.workers]
    near = _near(np.sum(slowness, axis=0))
    names = {groups[rank] for rank in near}
    name = names.pop()
    if not names and name and len(near) == groups.count(name) > 1:
        return f"group {name}", near
    ranks = sorted(set.intersection(*(set(_near(times)) for times in slowness)))
    if not {int(times.argmax()) for times in slowness}.issubset(ranks):
        return "another worker with each seed", []
    if len(ranks) > FEW:
        return f"{len(ranks)} workers", ranks
    return " and ".join(f"worker {rank}" for rank in ranks), ranks


def _near(slowness: np.ndarray) -> list[int]:
    """Return the ranks of workers about as slow as the slowest."""
    least = slowness.max() - (slowness.max() - slowness.min()) / 4
    return [int(rank) for rank in np.flatnonzero(slowness >= least)]
