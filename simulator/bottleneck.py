"""What most of an algorithm's time goes to, in one sentence of measured numbers.

Nothing is said of what would happen if anything were different: nobody has simulated that.
"""

import re
from collections.abc import Sequence

import numpy as np

from simulator import cluster, usage
from simulator.network import Network
from simulator.report import human, number
from simulator.scenario import Algorithm, Scenario
from simulator.trace import Run
from simulator.usage import percent

CARD = re.compile(r"(worker \d+|server)( in| out)?")
"""Names of the lines of network cards."""
MATTERS = 1.05  # times the mean: less than that is no difference worth a word


def sentence(scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run]) -> str:
    """Say what most of the workers' time goes to, and what shows why."""
    spent = {kind: sum(run.seconds[kind] for run in runs) for kind in runs[0].seconds}
    whole = sum(spent.values())
    if not whole:
        return f"{algorithm.label}: nothing takes time."
    share = {kind: seconds / whole for kind, seconds in spent.items()}
    vain = share.get("lost", 0.0) + share.get("down", 0.0)
    most = max(
        (share["compute"], "is computing", _computing),
        (share["wait"], "is waiting", _waiting),
        (share["communicate"], "goes to the network", _network),
        (vain, "is lost to failures", _failures),
        key=lambda each: each[0],
    )
    of_time, says, why = most
    reasons = why(scenario, algorithm, runs, share)
    return "; ".join([f"{algorithm.label}: {percent(of_time)} of the time {says}", *reasons]) + "."


# Each of these: why that much time goes to one thing.


def _computing(
    scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run], share: dict[str, float]
) -> list[str]:
    if runs[0].staleness_unit != "steps":  # a faster worker does not compute less, but more often
        return []
    computed = [np.array(run.workers["compute"]) for run in runs]
    slowest = {int(each.argmax()) for each in computed}
    ratio = float(np.mean([each.max() / each.mean() for each in computed]))
    if ratio < MATTERS:
        return ["all workers are about as fast"]
    waits = f"waiting takes {percent(share['wait'])}"
    if len(slowest) > 1:
        return [f"the slowest worker takes {_times(ratio)} the mean (it differs by seed); {waits}"]
    who = _called(scenario, slowest.pop(), sum(computed))
    return [f"the slowest, {who}, takes {_times(ratio)} the mean; {waits}"]


def _waiting(
    scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run], share: dict[str, float]
) -> list[str]:
    unit = runs[0].staleness_unit
    if unit == "updates":
        return _served(scenario, runs)
    held = _held(scenario, algorithm, runs)
    if held is not None and held > share["wait"] and unit == "steps":
        return [f"collectives hold the links for {percent(held)} of the time, one after another"]
    waits = [np.array(run.workers["wait"]) for run in runs]
    means = np.mean([each / usage.span(run) for each, run in zip(waits, runs, strict=True)], axis=0)
    least = {int(each.argmin()) for each in waits}
    if np.mean([each.min() / each.mean() for each in waits]) > 0.5:
        alike = f"all wait, {percent(means.min())} to {percent(means.max())} of their time each"
        return [f"{alike}: for whoever happens to be the slowest"]
    if len(least) > 1:
        return ["one worker waits less than half as long as the mean, another one by seed"]
    rank = least.pop()
    others = percent(float(np.delete(means, rank).mean()))
    who = _called(scenario, rank, -sum(waits))
    return [f"it is {who} that the others wait for: {percent(means[rank])}, against their {others}"]


def _served(scenario: Scenario, runs: Sequence[Run]) -> list[str]:
    """What the server, whose answers the workers wait for, is busy with."""
    server = scenario.server
    works = [
        server.receive * sum(run.staleness.values()) + server.apply * run.updates for run in runs
    ]
    times = sum(run.duration for run in runs)
    busy = min(1.0, sum(works) / times) if times else 0.0
    said = [f"the server works for {percent(busy)} of it"]
    card = max((each for each in _busy_lines(scenario, runs) if "server" in each[1]), default=None)
    if card is not None and card[0] > 0.005:
        said.append(f"its network card is full for {percent(card[0])}")
    inbox = max(run.inbox_bytes for run in runs)
    if inbox:
        models = inbox / scenario.model.bytes
        said.append(f"up to {number(models)} models wait there at once")
    if busy < 0.5 and (card is None or card[0] < 0.5):
        said.append("so it is mostly other workers that are waited for")
    return said


def _busy_lines(scenario: Scenario, runs: Sequence[Run]) -> list[tuple[float, str]]:
    """How much of the time lines are full; in closed form, the server's card."""
    if runs[0].lines:
        return [(line["saturated"], line["line"]) for line in usage.lines(runs)]
    card, found = scenario.server.bandwidth, []
    place = Network(scenario).places.of(scenario.cluster.workers)
    for says, name in (("server in", f"->{place}"), ("server out", f"{place}->")):
        sizes = [
            sum(size for link, size in run.links.items() if name in link) for run in runs
        ]
        times = sum(run.duration for run in runs)
        if card and times:
            found.append((min(1.0, sum(sizes) / card / times), says))
    return found


def _network(
    scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run], share: dict[str, float]
) -> list[str]:
    if runs[0].lines:
        return [_lines(scenario, runs, share["communicate"]), *_phases(runs)]
    held = _held(scenario, algorithm, runs)
    if held is None:
        return []
    said = f"transmissions hold a worker's links for {percent(held)} of the time"
    if held < share["communicate"] / 2:
        return [f"{said}, so it is mostly latency"]
    return [f"{said}, so it is mostly bandwidth" if held <= 1 else said]


def _lines(scenario: Scenario, runs: Sequence[Run], communicate: float) -> str:
    """Which line is full for how long. When none is, transfers do not lack bandwidth."""
    busy = sorted(_busy_lines(scenario, runs), reverse=True)
    top, name = busy[0]
    if not top:
        return f"no line is ever saturated, so it is {_else(scenario)}"
    alike = [line for full, line in busy if full > top / MATTERS]
    who = name if len(alike) == 1 else f"{name} and {len(alike) - 1} more lines"
    if len(alike) > 1 and all(map(CARD.fullmatch, alike)):
        who = f"{len(alike)} network cards"
    are = f"{who} {'is' if len(alike) == 1 else 'are'} saturated for {percent(top)}"
    if top >= communicate / 2:
        return are
    if sum(full for full, _ in busy) < communicate / 2:
        return f"{are}, the most of all, so it is mostly {_else(scenario)}"
    return f"{are}, the most of all: lines take turns"


def _else(scenario: Scenario) -> str:
    """What takes time where no line is full."""
    settings = scenario.network
    windows = [settings.tcp_window, *(link.tcp_window for link in settings.link)]
    limited = settings.slow_start is not None or any(each is not None for each in windows)
    return "latency, or what TCP lets a single transfer take" if limited else "latency"


def _phases(runs: Sequence[Run]) -> list[str]:
    """The longest stage of the collectives; else how long messages are on their way."""
    phases = usage.phases(runs)
    stages = {name: phase["seconds"] for name, phase in phases.items() if "seconds" in phase}
    whole = sum(stages.values())
    if len(stages) > 1 and whole:
        longest = max(stages, key=lambda name: stages[name])
        return [f"{percent(stages[longest] / whole)} of its collectives' time is {longest}"]
    sent = {name: each for name, each in phases.items() if each.get("messages")}
    transits = [f"{human(each['transit_seconds'])} {name}" for name, each in sent.items()]
    return [f"a message takes {', '.join(transits)}"] if transits else []


def _failures(
    scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run], share: dict[str, float]
) -> list[str]:
    counts = [run.failures["crashes"] for run in runs if run.failures is not None]
    parts = f"computed in vain {percent(share['lost'])}, down {percent(share['down'])}"
    return [f"{parts}, by {number(sum(counts) / len(counts))} crashes a run" if counts else parts]


def _held(scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run]) -> float | None:
    """For what share of the time transmissions hold the links of a worker; None: not known."""
    settings, whole = scenario.network, sum(usage.span(run) for run in runs)
    if runs[0].lines or runs[0].failures is not None or settings.collective == "given" or not whole:
        return None
    network, workers = Network(scenario), scenario.cluster.workers
    sizes = {name: sum(run.links.get(name, 0.0) for run in runs) for name in runs[0].links}
    gathers = getattr(algorithm.parameters.get("codec"), "gathers", False)
    plan = network.gather_plan if gathers else network.mean_plan
    if runs[0].staleness_unit == "steps" and {*sizes} == {*plan.moved}:
        return plan.held * sum(sizes.values()) / sum(plan.moved.values()) / whole
    ranks = {network.places.of(rank): rank for rank in range(workers + 1)}
    seconds = 0.0
    for name, size in sizes.items():
        ends = name.split("->")
        if len(ends) != 2:
            return None
        seconds += size / network.link(*(ranks[end] for end in ends)).bandwidth
    return seconds / workers / whole


# Names


def _times(ratio: float) -> str:
    return f"{number(ratio)} times"


def _called(scenario: Scenario, rank: int, slowness: np.ndarray) -> str:
    """A worker, or its group if all of that are nearly as slow."""
    groups = [worker.group for worker in cluster.workers(scenario)]
    mates = [other for other, group in enumerate(groups) if group == groups[rank]]
    if not groups[rank]:
        return f"worker {rank}"
    spread = float(slowness.max() - slowness.min())
    if len(mates) > 1 and slowness[mates].min() > slowness[rank] - spread / 4:
        return f"group {groups[rank]}"
    return f"worker {rank} ({groups[rank]})"
