"""The bottleneck: the largest share of an algorithm's time, and measured evidence of its cause.

The numbers are measured in the runs; nothing is predicted about other conditions.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..network.closed_form import ClosedForm
from ..scenario.scenario import Algorithm, Scenario
from . import usage
from .run import Run
from .statistics import breakdown
from .wording import Reason, all_of

WORTH = 0.1  # of the time: less is not worth a second word
MATTERS = 1.05  # times the mean: a smaller difference is not worth reporting
SLOWER = 1.02  # times the mean, where the scenario says that workers differ
NEARLY = 1.05  # saturated nearly as long
SERVER = r"server( in| out)?"
CARD = re.compile(rf"worker \d+( in| out)?|{SERVER}")
"""Names of the lines of network cards."""
AWAY = ("absent", "unselected")  # kinds of time in which a client takes no part


class _Case(NamedTuple):
    scenario: Scenario
    algorithm: Algorithm
    runs: Sequence[Run]
    share: Mapping[str, float]  # of the workers' time, by use
    crashes: float  # of a run
    held: float | None  # share of the time that transmissions hold links
    full: Mapping[str, float]  # share of the time that each line is saturated


def sentence(scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run]) -> str:
    """Return the reasons of an algorithm's time as a sentence."""
    where = "" if scenario.cluster.sampling is None else "while clients take part, "
    parts = map(str, reasons(scenario, algorithm, runs))
    return f"{algorithm.label}: {where}{'; '.join(parts)}."


def reasons(scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run]) -> list[Reason]:
    """Return the largest share of the workers' time and its causes; of a stall, only that.

    Sampled clients have no time while they are away; in a round they wait for the last one.
    """
    if stalls := [run.stall for run in runs if run.stall]:
        return [Reason("deadlock", {"seeds": len(stalls), "of": len(runs), "why": stalls[0]})]
    spent = {kind: share for kind, share in breakdown(runs).items() if kind not in AWAY}
    there = sum(spent.values()) if scenario.cluster.sampling is not None else 1.0
    if not any(any(run.seconds.values()) for run in runs) or not there:
        return [Reason("instant")]
    share = {kind: part / there for kind, part in spent.items()}
    crashes = sum(run.failures["crashes"] for run in runs if run.failures) / len(runs)
    held = held_share(scenario, algorithm, runs)
    case = _Case(scenario, algorithm, runs, share, crashes, held, _saturated(scenario, runs))
    parts = {"lost": share.get("lost", 0.0), "down": share.get("down", 0.0)}
    vain = "failures" if crashes else "left-out"
    uses = {code: share.get(code, 0.0) for code in ("compute", "wait", "communicate")}
    uses |= {"standing": share.get("stalled", 0.0), vain: sum(parts.values())}
    first, second, *_ = sorted(uses, key=lambda code: -uses[code])
    result = []
    for code in (first, second) if first == "compute" and uses[second] > WORTH else (first,):
        result.append(Reason(code, {"share": uses[code]} | (parts if code == vain else {})))
        if scenario.cluster.sampling is None:
            result += EXPLAIN.get(code, _crashing)(case)
    return result


def _crashing(case: _Case) -> list[Reason]:
    return [Reason("crashes", {"crashes": case.crashes})] if case.crashes else []


def _computing(case: _Case) -> list[Reason]:
    recovery = case.scenario.recovery
    if case.runs[0].staleness_unit != "steps":  # a faster worker computes more often, not less
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
    if case.runs[0].staleness_unit == "updates":
        return _served(case)
    if (case.held or 0.0) > case.share["wait"] and case.runs[0].staleness_unit == "steps":
        return [Reason("collectives", {"share": case.held})]
    waits = [np.array(run.workers["wait"]) for run in case.runs]
    whole = sum(map(usage.span, case.runs))
    means, lowest = np.sum(waits, axis=0) / whole, sum(wait.min() for wait in waits) / whole
    if lowest > means.mean() / 2:
        highest = float(means.max())
        return [Reason("all-wait", {"share": float(means.min()), "highest": highest})]
    there = [
        wait / np.maximum(1 - np.array(run.workers.get("absent", 0.0)) / usage.span(run), 1e-9)
        for run, wait in zip(case.runs, waits, strict=True)
        if wait.any()
    ]
    who, ranks = _slowest(case.scenario, [-share for share in there])
    least = float(means[ranks].mean()) if len(ranks) > 1 else lowest
    return [Reason("waited-for", {"who": who, "share": least, "mean": float(means.mean())})]


def _served(case: _Case) -> list[Reason]:
    """Return how busy the server is while workers wait for its answers."""
    server, runs = case.scenario.server, case.runs
    works = [
        server.receive * sum(run.staleness.values()) + server.apply * run.updates for run in runs
    ]
    times = sum(run.duration for run in runs)
    busy = min(1.0, sum(works) / times) if times else 0.0
    card = max((case.full[name] for name in case.full if re.fullmatch(SERVER, name)), default=0.0)
    inbox = max(run.inbox_bytes for run in runs) / case.scenario.model.bytes
    served = Reason("server", {"share": busy, "models": inbox})
    carried = [Reason("server-card", {"share": card})] if card > WORTH else []
    return [served, *carried] if busy >= card or inbox else carried


def _communicating(case: _Case) -> list[Reason]:
    """Return the lines saturated longest, or how long transmissions hold the links."""
    spent, held = case.share["communicate"], case.held
    if case.runs[0].lines:
        top = max(case.full.values(), default=0.0)
        longest = sorted(
            (k for k, share in case.full.items() if share > top / NEARLY), reverse=True
        )
        code = "saturated" if top >= spent / 2 else "unsaturated"
        return [Reason(code, {"lines": _names(longest), "share": top})]
    if held is None:
        return []
    return [Reason("latency" if held < spent / 2 else "transmitting", {"share": held})]


EXPLAIN = {"compute": _computing, "wait": _waiting, "communicate": _communicating}


def held_share(scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run]) -> float | None:
    """Return the share of time that transmissions hold a worker's links, if known."""
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
    """Return the share of time that each line, or the server's card, is saturated."""
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
    if not all(map(CARD.fullmatch, lines)):
        return all_of(lines)
    return f"the network card of {lines[0]}" if len(nodes) == 1 else f"{len(nodes)} network cards"


def _slowest(scenario: Scenario, slowness: Sequence[np.ndarray]) -> tuple[str, list[int]]:
    """Name the slowest workers by `slowness` (workers,); none if seeds differ."""
    groups = [worker.group for worker in scenario.team.workers]
    near = _near(np.sum(slowness, axis=0))
    name, *others = {groups[rank] for rank in near}
    if name and not others and len(near) == groups.count(name) > 1:
        return f"group {name}", near
    ranks = sorted(set.intersection(*(set(_near(times)) for times in slowness)))
    if not {int(times.argmax()) for times in slowness}.issubset(ranks):
        return "another worker with each seed", []
    return all_of([f"worker {rank}" for rank in ranks]), ranks


def _near(slowness: np.ndarray) -> list[int]:
    """Return the ranks of workers about as slow as the slowest."""
    least = slowness.max() - (slowness.max() - slowness.min()) / 4
    return [int(rank) for rank in np.flatnonzero(slowness >= least)]
