"""Utilisation of a network's lines, and the cause of its time: bandwidth, or latency."""

import re
from collections.abc import Sequence
from itertools import permutations
from math import ceil

from ..network.closed_form import ClosedForm
from ..network.topology.routes import Topology
from ..scenario.scenario import Algorithm, Scenario
from . import usage
from .run import Run
from .statistics import human
from .usage import percent

SERVER = r"server( in| out)?"
CARD = re.compile(rf"worker \d+( in| out)?|{SERVER}")
"""Names of the lines of network cards."""
REST = 0.1  # of the time, beside transmissions, from which it is named
BESIDE = {
    "ideal": "what [[overhead]] or TCP's packets add",
    "nccl": "what NCCL adds: its own latencies, and lower rates of messages of this size",
    "gloo": "what gloo adds: a second latency for each hop, and pauses between its segments",
}
NEARLY = 1.05  # saturated nearly as long


def reasons(
    scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run], share: dict[str, float]
) -> list[str]:
    """Return clauses that explain the `share` of the time that workers communicate."""
    if runs[0].lines:
        return [_lines(scenario, runs, share["communicate"]), *_phases(runs)]
    held = held_share(scenario, algorithm, runs)
    if held is None:
        return []
    whole = getattr(algorithm.parameters.get("codec"), "kind", "raw") == "raw"
    plain = whole and runs[0].staleness_unit == "steps"
    if held < share["communicate"] / 2:
        little = f"the links transmit for only {percent(held)} of the time"
        cause = _beside(scenario, algorithm) if plain else "latency"
        most = f", so {cause} dominates" if cause == "latency" else f"; most of the rest is {cause}"
        return [little + most]
    said = f"transmissions hold a worker's links for {percent(held)} of the time"
    late = runs[0].staleness_unit == "steps" and any(max(run.staleness, default=0) for run in runs)
    if late or held > 1.01 * share["communicate"]:
        return [said]  # they overlap with computing, for an unknown part of them
    limit = "bandwidth, or TCP's window," if _windows(scenario) else "bandwidth"
    rest = share["communicate"] - held
    if rest < REST or not plain:
        return [f"{said}, so {limit} dominates"]
    beside = f"most of the other {percent(rest)} is {_beside(scenario, algorithm)}"
    return [f"{said}, so {limit} dominates", beside]


def _beside(scenario: Scenario, algorithm: Algorithm) -> str:
    """Name what adds the most to the transmissions of an average."""
    network, pieces = ClosedForm(scenario.under(algorithm)), algorithm.parameters.get("buckets", 1)
    size = scenario.model.bytes / (pieces if isinstance(pieces, int) else len(pieces))
    plan = network.plan(network.way("mean", size, None).key, tuple(range(network.workers)))
    cost = network.mean_cost(size / scenario.model.bytes)
    if 2 * plan.latency > cost.transmission + cost.latency - plan.held * size:
        return "latency"
    return "what [[overhead]] adds" if scenario.overhead else BESIDE[scenario.network.library]


def _lines(scenario: Scenario, runs: Sequence[Run], communicate: float) -> str:
    """Say which line is saturated for how long; without one, transfers do not lack bandwidth."""
    others = _others(scenario, runs)
    full_for = busy(scenario, runs)
    ours = [(full, line) for full, line in full_for if line not in others] or [(0.0, "")]
    theirs = [(full, line) for full, line in full_for if others.get(line)]
    top, (full, name) = max(ours)[0], max(theirs, default=(0.0, ""))
    if top >= communicate / 2 or full <= NEARLY * top:
        return _most(scenario, runs, communicate, ours)
    said = f"{name} is saturated for {percent(full)} (others' flows among it)"
    if top < communicate / 4:
        return said
    return f"{_named(_longest(ours))} for {percent(top)}; {said}"


def _longest(full_for: Sequence[tuple[float, str]]) -> list[str]:
    top = max(full_for)[0]
    return [line for full, line in sorted(full_for, reverse=True) if full > top / NEARLY]


def _most(
    scenario: Scenario,
    runs: Sequence[Run],
    communicate: float,
    full_for: Sequence[tuple[float, str]],
) -> str:
    """Say which lines are saturated for the longest time, and whether that explains it."""
    top = max(full_for)[0]
    if not top:
        return f"no line is ever saturated, so {_else(scenario, runs[0])}"
    if top < communicate / 2 and sum(full for full, _ in full_for) < communicate / 2:
        most = f"{ceil(100 * top)} %"
        return f"no line is saturated for more than {most}, so {_else(scenario, runs[0])}"
    said = f"{_named(_longest(full_for))} for {percent(top)}"
    return said if top >= communicate / 2 else f"{said}, the most of all: lines take turns"


def _others(scenario: Scenario, runs: Sequence[Run]) -> dict[str, bool]:
    """Return lines saturated by endless background flows, and whether transfers pass them, too."""
    if not any(each.flows for each in scenario.network.background):
        return {}
    topology, nodes = Topology(scenario), range(scenario.cluster.workers + 1)
    used = {name for run in runs for name in run.links}
    ways = {topology.hop(*ends): ends for ends in permutations(nodes, 2)}
    passed = {line for name in used & {*ways} for line in topology.route(ways[name]).lines}
    full = {line for greedy in topology.greedy() for line in greedy.route.lines}
    return {topology.lines[line].name: line in passed for line in full}


def _else(scenario: Scenario, run: Run) -> str:
    """Name the causes of the time where no line is saturated."""
    causes = ["latency"]
    if scenario.network.slow_start is not None or _windows(scenario):
        causes.append("TCP's limit on a single transfer")
    if any(line["bytes"] and line["utilisation"] is None for line in run.lines):
        causes.append("links that transfers do not share")
    if run.failures is not None:
        causes.append("nodes that are down")
    return f"{', or '.join(causes)}{',' if len(causes) > 1 else ''} dominates"


def _windows(scenario: Scenario) -> bool:
    settings = scenario.network
    windows = (each.tcp_window for each in (settings, *settings.link))
    return settings.transport == "tcp" or any(window is not None for window in windows)


def _phases(runs: Sequence[Run]) -> list[str]:
    """Name the longest stage of the collectives; else the mean transit times of messages."""
    phases = usage.phases(runs)
    stages = {name: phase["seconds"] for name, phase in phases.items() if "seconds" in phase}
    whole = sum(stages.values())
    longest = max(stages, key=lambda name: stages[name], default="")
    if len(stages) > 1 and whole and stages[longest] > 1.2 * whole / len(stages):
        return [f"{percent(stages[longest] / whole)} of its collectives' time is {longest}"]
    sent = {name: each for name, each in phases.items() if each.get("messages")}
    transits = [f"{human(each['transit_seconds'])} {name}" for name, each in sent.items()]
    return [f"a message takes {', '.join(transits)}"] if transits else []


def held_share(scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run]) -> float | None:
    """Return the share of the time that transmissions hold a worker's links; None: unknown."""
    settings, whole = scenario.network, sum(usage.span(run) for run in runs)
    if runs[0].lines or runs[0].failures is not None or settings.duration is not None or not whole:
        return None
    network, workers = ClosedForm(scenario), scenario.cluster.workers
    sizes = {name: sum(run.links.get(name, 0.0) for run in runs) for name in runs[0].links}
    gathers = getattr(algorithm.parameters.get("codec"), "gathers", False)
    plan = network.gather_plan if gathers else network.mean_plan
    if runs[0].staleness_unit == "steps" and sizes and {*sizes} == {*plan.moved}:
        return min(1.0, plan.held * sum(sizes.values()) / sum(plan.moved.values()) / whole)
    ranks = {network.places.of(rank): rank for rank in range(workers + 1)}
    seconds = 0.0
    for name, size in sizes.items():
        ends = name.split("->")
        if len(ends) != 2:
            return None
        seconds += size / network.link(*(ranks[end] for end in ends)).bandwidth
    return min(1.0, seconds / workers / whole)


def busy(scenario: Scenario, runs: Sequence[Run]) -> list[tuple[float, str]]:
    """Return the share of the time that each line, or the server's card, is saturated."""
    if runs[0].lines:
        return [(line["saturated"], line["line"]) for line in usage.lines(runs)]
    card, found = scenario.server.bandwidth, []
    place = ClosedForm(scenario).places.of(scenario.cluster.workers)
    for says, name in (("server in", f"->{place}"), ("server out", f"{place}->")):
        sizes = [sum(size for link, size in run.links.items() if name in link) for run in runs]
        times = sum(run.duration for run in runs)
        if card and times:
            found.append((min(1.0, sum(sizes) / card / times), says))
    return found


def _named(lines: Sequence[str]) -> str:
    """Name saturated lines: of many the first, or the number of network cards."""
    nodes = list(dict.fromkeys(re.sub(" (in|out)$", "", line) for line in lines))
    if all(map(CARD.fullmatch, lines)):
        if len(nodes) == 1:
            return f"the network card of {nodes[0].replace('server', 'the server')} is saturated"
        return f"{len(nodes)} network cards are saturated"
    if len(lines) == 1:
        return f"{lines[0]} is saturated"
    second = lines[1] if len(lines) == 2 else f"{len(lines) - 1} more lines"
    return f"{lines[0]} and {second} are saturated"
