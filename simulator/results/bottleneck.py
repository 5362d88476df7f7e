"""The bottleneck sentence: the largest share of an algorithm's time, with evidence of its cause.

The sentence has measured numbers only; it predicts nothing about other conditions.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from ..scenario.scenario import Algorithm, Scenario
from . import saturation, usage
from .run import Run
from .statistics import breakdown, human, number
from .usage import percent

WORTH = 0.1  # of the time: less is not worth a second word
MATTERS = 1.05  # times the mean: a smaller difference is not worth reporting
SLOWER = 1.02  # times the mean, where the scenario says that workers differ
FEW = 3  # names in a list
TAKING_PART = {
    "compute": "compute what is used",
    "lost": "compute in vain",
    "communicate": "transfer",
    "wait": "wait for others",
    "stalled": "stand still for drop-outs",
    "down": "have dropped out",
}  # what selected clients do


def sentence(scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run]) -> str:
    """Name the largest share of the workers' time, and its cause; of a stall, only the deadlock."""
    if stalls := [run.stall for run in runs if run.stall]:
        some = f" with {len(stalls)} of {len(runs)} seeds" if len(stalls) < len(runs) else ""
        return f"{algorithm.label}: stands still for good{some}: {stalls[0]}."
    if not any(any(run.seconds.values()) for run in runs):
        return f"{algorithm.label}: nothing takes time."
    share = breakdown(runs)
    if scenario.cluster.sampling is not None and "unselected" in share:
        return f"{algorithm.label}: {'; '.join(_clients(scenario, runs, share))}."
    vain = share.get("lost", 0.0) + share.get("down", 0.0)
    parts = [
        (share["compute"], "is computing", _computing),
        (share["wait"], "is waiting", _waiting),
        (share["communicate"], "goes to the network", saturation.reasons),
        (share.get("stalled", 0.0), "is standing still for crashes", _crashes),
        (vain, _vain(scenario, runs, share), _crashes),
    ]
    first, second, *_ = sorted(parts, key=lambda part: -part[0])
    said = [f"{algorithm.label}: {percent(first[0])} of the time {first[1]}"]
    said += first[2](scenario, algorithm, runs, share)
    if first is parts[0] and second[0] > WORTH:
        said.append(f"{percent(second[0])} {second[1]}")
        said += second[2](scenario, algorithm, runs, share)
    return "; ".join(said) + "."


def _clients(scenario: Scenario, runs: Sequence[Run], share: dict[str, float]) -> Iterator[str]:
    """Say what clients do while they take part, and what ends a round."""
    there = sum(share.get(kind, 0.0) for kind in TAKING_PART)
    said = [
        f"{words} for {percent(share[kind] / there)}"
        for kind, words in TAKING_PART.items()
        if share.get(kind)
    ]
    yield f"of the time in which they take part, clients {', '.join(said)}"
    closed, rounds = np.sum([run.closed for run in runs], axis=0), sum(run.rounds for run in runs)
    if not closed.size or not rounds:
        return
    names = [each.group and f"group {each.group}" for each in scenario.team.workers]
    last = Counter({name: sum(closed[np.array(names) == name]) for name in {*names}})
    said = [
        f"{percent(count / rounds)} end with the last report wanted, by {name or 'any client'}"
        for name, count in last.most_common(FEW)
        if count
    ]
    due, settings = sum(run.overdue for run in runs), scenario.cluster.sampling
    limit = human(settings.deadline if settings else None)
    for few, why in (
        (due, f"at the deadline of {limit}"),
        (rounds - last.total() - due, "as no more could come"),
    ):
        said += [f"{percent(few / rounds)} end with fewer reports, {why}"] if few else []
    yield f"{usage.few(rounds / len(runs), 'round', 'rounds')}: {', '.join(said)}"


# Each of these returns clauses that explain one share of the time.


def _computing(
    scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run], share: dict[str, float]
) -> list[str]:
    if runs[0].staleness_unit != "steps":  # a faster worker computes more often, not less
        return []
    if scenario.recovery.policy in ("shrink", "quorum") or scenario.recovery.backups:
        return []  # workers' counted steps differ in number
    computed = [np.array(run.workers["compute"]) for run in runs]
    ratio = float(np.mean([each.max() / each.mean() for each in computed]))
    unlike = max(scenario.team.relative_speeds) > SLOWER  # so that the slowest is no chance
    if ratio < (SLOWER if unlike else MATTERS):
        return ["all workers are about as fast"]
    who, ranks = _called(scenario, computed)
    if not ranks:
        return [f"the slowest worker, another one by seed, takes {number(ratio)} times the mean"]
    takes = "take" if len(ranks) > 1 and not who.startswith("group") else "takes"
    return [f"the slowest, {who}, {takes} {number(ratio)} times the mean"]


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
    crashed = share.get("down", 0.0) > 0
    if lowest > means.mean() / 2:
        ends = dict.fromkeys([percent(means.min()), percent(means.max())])
        alike = f"all wait, {' to '.join(ends)} of their time each"
        return [f"{alike}: for whichever is slowest{' or down' if crashed else ''}"]
    shares = [each / _there(run) for run, each in zip(runs, waits, strict=True) if each.any()]
    who, ranks = _called(scenario, [-each for each in shares])
    they = f"the others wait for {who}, which itself waits for {percent(lowest)} of the time"
    if not ranks:
        they = "they wait for the slowest, which is another worker with each seed"
    elif len(ranks) > 1:
        they = (
            f"the others wait for {who}, which wait for {percent(means[ranks].mean())} of the time"
        )
    if crashed and len(ranks) == 1:
        down = sum(run.workers["down"][ranks[0]] for run in runs) / whole
        they += f" and is down for {percent(down)}"
    return [f"{they}; on average a worker waits for {percent(means.mean())}"]


def _there(run: Run) -> np.ndarray:
    """Return the share of its time in which each worker was there, and selected."""
    out = [run.workers[kind] for kind in ("absent", "unselected") if kind in run.workers]
    there: np.ndarray = np.maximum(1 - np.sum(out, axis=0) / (usage.span(run) or 1), 1e-9)
    return there


def _served(scenario: Scenario, runs: Sequence[Run]) -> list[str]:
    """Say how busy the server is, whose answers the workers wait for."""
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
    if max(busy, card) < WORTH and scenario.cluster.sampling is None:
        said.append("so the workers wait for one another, not for the server")
    return said


def _vain(scenario: Scenario, runs: Sequence[Run], share: dict[str, float]) -> str:
    """Say where lost time and down time go."""
    if not _count(runs):
        return "is computed in vain, by workers that leave or are left out"
    saving = " or saving checkpoints" if scenario.recovery.checkpoint is not None else ""
    vain, down = percent(share["lost"]), percent(share["down"])
    return f"goes to failures: computed in vain {vain}, down{saving} {down}"


def _crashes(
    scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run], share: dict[str, float]
) -> list[str]:
    count = _count(runs)
    return [f"{usage.few(count, 'crash', 'crashes')} a run"] if count else []


def _count(runs: Sequence[Run]) -> float:
    counts = [run.failures["crashes"] for run in runs if run.failures is not None]
    return float(sum(counts)) / len(runs)


# Names


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
        return "one worker, another one by seed", []
    if len(ranks) == 1:
        name = groups[ranks[0]]
        return f"worker {ranks[0]} ({name})" if name else f"worker {ranks[0]}", ranks
    if len(ranks) > FEW:
        return f"{len(ranks)} workers", ranks
    *first, last = map(str, ranks)
    return f"workers {', '.join(first)} and {last}", ranks


def _near(slowness: np.ndarray) -> list[int]:
    """Return the ranks of workers about as slow as the slowest."""
    least = slowness.max() - (slowness.max() - slowness.min()) / 4
    return [int(rank) for rank in np.flatnonzero(slowness >= least)]
