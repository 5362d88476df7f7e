"""What most of an algorithm's time goes to, in one sentence of measured numbers.

Nothing is said of what would happen if anything were different: nobody has simulated that.
"""

import re
from collections.abc import Sequence

import numpy as np

from simulator import cluster, saturation, usage
from simulator.report import number
from simulator.scenario import Algorithm, Scenario
from simulator.trace import Run
from simulator.usage import percent

WORTH = 0.1  # of the time: less is not worth a second word
MATTERS = 1.05  # times the mean: less than that is no difference worth a word


def sentence(scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run]) -> str:
    """Say what most of the workers' time goes to, and what shows why."""
    spent = {kind: sum(run.seconds[kind] for run in runs) for kind in runs[0].seconds}
    whole = sum(spent.values())
    if not whole:
        return f"{algorithm.label}: nothing takes time."
    share = {kind: seconds / whole for kind, seconds in spent.items()}
    vain = share.get("lost", 0.0) + share.get("down", 0.0)
    parts = [
        (share["compute"], "is computing", _computing),
        (share["wait"], "is waiting", _waiting),
        (share["communicate"], "goes to the network", saturation.reasons),
        (vain, "is lost", _failures),
    ]
    first, second, *_ = sorted(parts, key=lambda part: -part[0])
    said = [f"{algorithm.label}: {percent(first[0])} of the time {first[1]}"]
    said += first[2](scenario, algorithm, runs, share)
    if first is parts[0] and second[0] > WORTH:
        said.append(f"{percent(second[0])} {second[1]}")
        said += second[2](scenario, algorithm, runs, share)
    return "; ".join(said) + "."


# Each of these: why that much time goes to one thing.


def _computing(
    scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run], share: dict[str, float]
) -> list[str]:
    if runs[0].staleness_unit != "steps":  # a faster worker does not compute less, but more often
        return []
    if scenario.recovery.policy == "shrink" or scenario.recovery.backup:
        return []  # workers' steps are not as many that count
    computed = [np.array(run.workers["compute"]) for run in runs]
    slowest = {int(each.argmax()) for each in computed}
    ratio = float(np.mean([each.max() / each.mean() for each in computed]))
    if ratio < MATTERS:
        return ["all workers are about as fast"]
    who = _called(scenario, slowest, np.sum(computed, axis=0))
    if who is None:
        return [f"the slowest worker, another one by seed, takes {number(ratio)} times the mean"]
    return [f"the slowest, {who}, takes {number(ratio)} times the mean"]


def _waiting(
    scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run], share: dict[str, float]
) -> list[str]:
    unit = runs[0].staleness_unit
    if unit == "updates":
        return _served(scenario, runs)
    held = saturation.held_share(scenario, algorithm, runs)
    if held is not None and held > share["wait"] and unit == "steps":
        return [f"collectives hold the links for {percent(held)} of the time, one after another"]
    waits = [np.array(run.workers["wait"]) for run in runs]
    whole = sum(map(usage.span, runs))
    means, lowest = np.sum(waits, axis=0) / whole, sum(each.min() for each in waits) / whole
    least = {int(each.argmin()) for each in waits if each.any()}
    crashed = share.get("down", 0.0) > 0
    if lowest > means.mean() / 2:
        alike = f"all wait, {percent(means.min())} to {percent(means.max())} of their time each"
        return [f"{alike}: for whoever happens to be the slowest{' or down' if crashed else ''}"]
    who = _called(scenario, least, -means) or "one worker, another one by seed"
    said = f"the others wait for {who}: it waits for {percent(lowest)}"
    if crashed and len(least) == 1:
        down = sum(run.workers["down"][min(least)] for run in runs) / whole
        said += f" and is down for {percent(down)}"
    return [f"{said}, the mean is {percent(means.mean())}"]


def _served(scenario: Scenario, runs: Sequence[Run]) -> list[str]:
    """What the server, whose answers the workers wait for, is busy with."""
    server = scenario.server
    works = [
        server.receive * sum(run.staleness.values()) + server.apply * run.updates for run in runs
    ]
    times = sum(run.duration for run in runs)
    busy = min(1.0, sum(works) / times) if times else 0.0
    lines = saturation.busy(scenario, runs)
    card = max((full for full, name in lines if re.fullmatch(saturation.SERVER, name)), default=0.0)
    said = [f"the server works for {percent(busy)} of the time"] if busy >= card else []
    if card > WORTH:
        said.append(f"the server's network card is saturated for {percent(card)}")
    inbox = max(run.inbox_bytes for run in runs)
    if inbox:
        models = inbox / scenario.model.bytes
        said.append(f"up to {models:.3g} models wait there at once")
    if max(busy, card) < WORTH:
        said.append("so it is other workers that are waited for")
    return said


def _failures(
    scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run], share: dict[str, float]
) -> list[str]:
    crashes = sum(run.failures["crashes"] for run in runs if run.failures is not None)
    said = [f"computed in vain {percent(share['lost'])}, down {percent(share['down'])}"]
    return said + ([f"{number(crashes / len(runs))} crashes a run"] if crashes else [])


# Names


def _called(scenario: Scenario, ranks: set[int], slowness: np.ndarray) -> str | None:
    """The slowest worker, or its group if all of that are nearly as slow; None: one or another.

    `ranks`: the slowest with each seed; `slowness`: of every worker.
    """
    groups = [worker.group for worker in cluster.workers(scenario)]
    names = {groups[rank] for rank in ranks}
    name = names.pop()
    if not names and name:
        mates = [rank for rank, group in enumerate(groups) if group == name]
        near = slowness.max() - (slowness.max() - slowness.min()) / 4
        if len(mates) > 1 and (slowness[mates] > near).all():
            return f"group {name}"
    if len(ranks) > 1:
        return None
    return f"worker {min(ranks)} ({name})" if name else f"worker {min(ranks)}"
