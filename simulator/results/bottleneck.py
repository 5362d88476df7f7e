"""The bottleneck: the largest share of an algorithm's time, and measured evidence of its cause.

The numbers are measured in the runs; nothing is predicted about other conditions.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ..network.closed_form import ClosedForm
from ..network.topology.routes import Topology
from ..scenario.scenario import Algorithm, Scenario
from . import usage
from .run import Run
from .statistics import breakdown, human
from .usage import percent

WORTH = 0.1  # of the time: less is not worth a second word
MATTERS = 1.05  # times the mean: a smaller difference is not worth reporting
SLOWER = 1.02  # times the mean, where the scenario says that workers differ
NEARLY = 1.05  # saturated nearly as long
FEW = 3  # names in a list
SERVER = r"server( in| out)?"
CARD = re.compile(rf"worker \d+( in| out)?|{SERVER}")
"""Names of the lines of network cards."""
TAKING_PART = ("compute", "lost", "communicate", "wait", "stalled", "down")  # of selected clients

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
    "one-another": "the workers wait for one another, not for the server",
    "saturated": "{lines} saturated for {share} of the time",
    "turns": "{lines} saturated for {share} of the time, the most of all: lines take turns",
    "filled": "{lines} saturated for {share} of the time, by others' flows among them",
    "unsaturated": "no line is saturated for more than {share}, so latency or another limit "
    "of single transfers dominates",
    "latency": "the links transmit for only {share} of the time, so latency, or what the library "
    "adds to each message, dominates",
    "transmitting": "transmissions hold a worker's links for {share} of the time",
    "bandwidth": "transmissions hold a worker's links for {share} of the time, so bandwidth "
    "dominates",
    "window": "transmissions hold a worker's links for {share} of the time, so bandwidth, or TCP's "
    "window, dominates",
    "rest": "the other {share} are latency and what the library adds to each message",
    "stage": "{share} of its collectives' time is {stage}",
    "messages": "mean time of a message: {seconds}",
    "clients": "clients that take part: {shares}",
    "rounds": "rounds per run: {rounds}; they end {shares}",
}
"""A sentence for each reason, by its code."""


def _listed(show: Callable[[float], str]) -> Callable[[Mapping[str, float]], str]:
    return lambda values: ", ".join(f"{name} {show(value)}" for name, value in values.items())


FORMATS: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(("share", "most", "mean", "lost", "down"), percent),
    **dict.fromkeys(("times", "crashes", "models", "rounds"), lambda value: f"{value:.3g}"),
    "shares": _listed(percent),
    "seconds": _listed(human),
}


class Reason(NamedTuple):
    """A cause of the time that runs take: its code in `SENTENCES`, and its numbers."""

    code: str
    values: Mapping[str, Any] = MappingProxyType({})

    def __str__(self) -> str:
        words = {key: FORMATS.get(key, str)(value) for key, value in self.values.items()}
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
    return f"{algorithm.label}: {'; '.join(map(str, reasons(scenario, algorithm, runs)))}."


def reasons(scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run]) -> list[Reason]:
    """Return the largest share of the workers' time and its causes; of a stall, only that."""
    if stalls := [run.stall for run in runs if run.stall]:
        return [Reason("deadlock", {"seeds": len(stalls), "of": len(runs), "why": stalls[0]})]
    if not any(any(run.seconds.values()) for run in runs):
        return [Reason("instant")]
    share = breakdown(runs)
    case = _Case(scenario, algorithm, runs, share)
    if scenario.cluster.sampling is not None and "unselected" in share:
        return _clients(case)
    lost, down = share.get("lost", 0.0), share.get("down", 0.0)
    vain = "failures" if _crashes(case) else "left-out"
    uses = {code: share.get(code, 0.0) for code in ("compute", "wait", "communicate", "stalled")}
    uses[vain] = lost + down
    first, second, *_ = sorted(uses, key=lambda code: -uses[code])
    named = (first, second) if first == "compute" and uses[second] > WORTH else (first,)
    found = []
    for code in named:
        more = {"lost": lost, "down": down} if code == vain else {}
        found.append(Reason(code, {"share": uses[code], **more}))
        found += EXPLAIN.get(code, _crashes)(case)
    return found


def _clients(case: _Case) -> list[Reason]:
    """Return what clients do while they take part, and what ends a round."""
    spent = {kind: case.share[kind] for kind in TAKING_PART if case.share.get(kind)}
    there = sum(spent.values())
    found = [Reason("clients", {"shares": {kind: part / there for kind, part in spent.items()}})]
    runs, sampling = case.runs, case.scenario.cluster.sampling
    closed, rounds = np.sum([run.closed for run in runs], axis=0), sum(run.rounds for run in runs)
    if not closed.size or not rounds:
        return found
    names = np.array([worker.group or "any client" for worker in case.scenario.team.workers])
    last = Counter({name: int(closed[names == name].sum()) for name in {*names.tolist()}})
    due = sum(run.overdue for run in runs)
    ends = {
        **{
            f"by the last report, of {name or 'any client'}": n for name, n in last.most_common(FEW)
        },
        f"at the deadline of {human(sampling.deadline if sampling else None)}": due,
        "as no more could come": rounds - last.total() - due,
    }
    shares = {why: count / rounds for why, count in ends.items() if count}
    return [*found, Reason("rounds", {"rounds": rounds / len(runs), "shares": shares})]


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
    return [Reason("slowest", {"who": _called(case.scenario, computed)[0], "times": times})]


def _waiting(case: _Case) -> list[Reason]:
    if case.unit == "updates":
        return _served(case)
    held = held_share(case.scenario, case.algorithm, case.runs)
    if held is not None and held > case.share["wait"] and case.unit == "steps":
        return [Reason("collectives", {"share": held})]
    waits = [np.array(run.workers["wait"]) for run in case.runs]
    whole = sum(map(usage.span, case.runs))
    means, lowest = np.sum(waits, axis=0) / whole, sum(each.min() for each in waits) / whole
    if lowest > means.mean() / 2:
        return [Reason("all-wait", {"share": float(means.min()), "most": float(means.max())})]
    shares = [own / _there(run) for run, own in zip(case.runs, waits, strict=True) if own.any()]
    who, ranks = _called(case.scenario, [-own for own in shares])
    own = float(means[ranks].mean()) if len(ranks) > 1 else lowest
    return [Reason("waited-for", {"who": who, "share": own, "mean": float(means.mean())})]


def _there(run: Run) -> np.ndarray:
    """Return the share of its time in which each worker was there, and selected."""
    out = [run.workers[kind] for kind in ("absent", "unselected") if kind in run.workers]
    there: np.ndarray = np.maximum(1 - np.sum(out, axis=0) / (usage.span(run) or 1), 1e-9)
    return there


def _served(case: _Case) -> list[Reason]:
    """Return how busy the server is, whose answers the workers wait for."""
    server, runs = case.scenario.server, case.runs
    works = [
        server.receive * sum(run.staleness.values()) + server.apply * run.updates for run in runs
    ]
    times = sum(run.duration for run in runs)
    busy = min(1.0, sum(works) / times) if times else 0.0
    full = saturated(case.scenario, runs)
    card = max((full[name] for name in full if re.fullmatch(SERVER, name)), default=0.0)
    inbox = max(run.inbox_bytes for run in runs) / case.scenario.model.bytes
    found = []
    if busy >= card or inbox:
        found.append(Reason("server", {"share": busy, "models": inbox}))
    if card > WORTH:
        found.append(Reason("server-card", {"share": card}))
    if max(busy, card) < WORTH and case.scenario.cluster.sampling is None:
        found.append(Reason("one-another"))
    return found


def _crashes(case: _Case) -> list[Reason]:
    counts = [run.failures["crashes"] for run in case.runs if run.failures is not None]
    return [Reason("crashes", {"crashes": sum(counts) / len(case.runs)})] if sum(counts) else []


def _communicating(case: _Case) -> list[Reason]:
    if case.runs[0].lines:
        return [_lines(case), *_phases(case.runs)]
    held = held_share(case.scenario, case.algorithm, case.runs)
    if held is None:
        return []
    if held < case.share["communicate"] / 2:
        return [Reason("latency", {"share": held})]
    late = case.unit == "steps" and any(max(run.staleness, default=0) for run in case.runs)
    rest = case.share["communicate"] - held
    if late or held > 1.01 * case.share["communicate"]:  # they overlap with computing
        return [Reason("transmitting", {"share": held})]
    network = case.scenario.network
    windows = (link.tcp_window for link in (network, *network.link))
    tcp = network.transport == "tcp" or any(window is not None for window in windows)
    found = [Reason("window" if tcp else "bandwidth", {"share": held})]
    return [*found, Reason("rest", {"share": rest})] if rest > WORTH else found


EXPLAIN = {"compute": _computing, "wait": _waiting, "communicate": _communicating}


def _lines(case: _Case) -> Reason:
    """Return which lines are saturated the longest; without one, transfers lack no bandwidth."""
    others, communicate = _others(case.scenario, case.runs), case.share["communicate"]
    full = saturated(case.scenario, case.runs)
    ours = {line: share for line, share in full.items() if line not in others}
    theirs = {line: share for line, share in full.items() if others.get(line)}
    top, code = max(ours.values(), default=0.0), "saturated"
    if top < communicate / 2 and max(theirs.values(), default=0.0) > NEARLY * top:
        ours, top, code = theirs, max(theirs.values()), "filled"
    elif top < communicate / 2:
        code = "turns" if sum(ours.values()) >= communicate / 2 else "unsaturated"
    longest = sorted((line for line in ours if ours[line] > top / NEARLY), reverse=True)
    return Reason(code, {"lines": _named(longest), "share": top})


def _others(scenario: Scenario, runs: Sequence[Run]) -> dict[str, bool]:
    """Return lines that endless background flows fill, and whether transfers pass them, too."""
    if not any(each.flows for each in scenario.network.background):
        return {}
    topology, nodes = Topology(scenario), range(scenario.cluster.workers + 1)
    used = {name for run in runs for name in run.links}
    ways = {topology.hop(*ends): ends for ends in permutations(nodes, 2)}
    passed = {line for name in used & {*ways} for line in topology.route(ways[name]).lines}
    full = {line for greedy in topology.greedy() for line in greedy.route.lines}
    return {topology.lines[line].name: line in passed for line in full}


def _phases(runs: Sequence[Run]) -> list[Reason]:
    """Return the longest stage of the collectives; else the mean transit times of messages."""
    phases = usage.phases(runs)
    stages = {name: phase["seconds"] for name, phase in phases.items() if "seconds" in phase}
    whole = sum(stages.values())
    longest = max(stages, key=lambda name: stages[name], default="")
    if len(stages) > 1 and whole and stages[longest] > 1.2 * whole / len(stages):
        return [Reason("stage", {"share": stages[longest] / whole, "stage": longest})]
    transits = {
        name: phase["transit_seconds"] for name, phase in phases.items() if phase.get("messages")
    }
    return [Reason("messages", {"seconds": transits})] if transits else []


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


def saturated(scenario: Scenario, runs: Sequence[Run]) -> dict[str, float]:
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


def _named(lines: Sequence[str]) -> str:
    """Name saturated lines: of many the first, or the number of network cards."""
    nodes = dict.fromkeys(re.sub(" (in|out)$", "", line) for line in lines)
    if all(map(CARD.fullmatch, lines)):
        return (
            f"the network card of {lines[0]}" if len(nodes) == 1 else f"{len(nodes)} network cards"
        )
    return ", ".join(lines[:FEW]) + (f" and {len(lines) - FEW} more" if len(lines) > FEW else "")


def _called(scenario: Scenario, slowness: Sequence[np.ndarray]) -> tuple[str, list[int]]:
    """Name the slowest by `slowness` (workers,) of each seed, with ranks; none if seeds differ."""
    groups = [worker.group for worker in scenario.team.workers]
    near = _near(np.sum(slowness, axis=0))
    names = {groups[rank] for rank in near}
    name = names.pop()
    if not names and name and len(near) == groups.count(name) > 1:
        return f"group {name}", near
    ranks = sorted(set.intersection(*(set(_near(each)) for each in slowness)))
    if not {int(each.argmax()) for each in slowness}.issubset(ranks):
        return "another worker with each seed", []
    if len(ranks) > FEW:
        return f"{len(ranks)} workers", ranks
    return " and ".join(f"worker {rank}" for rank in ranks), ranks


def _near(slowness: np.ndarray) -> list[int]:
    """Return the ranks of workers about as slow as the slowest."""
    least = slowness.max() - (slowness.max() - slowness.min()) / 4
    return [int(rank) for rank in np.flatnonzero(slowness >= least)]
