"""Summarise over seeds how an algorithm uses workers' time and lines."""

import re
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np

from ..cluster.membership import worked, working_hours
from ..network.closed_form import ClosedForm
from ..scenario.cluster import DAY
from ..scenario.scenario import Algorithm, Scenario
from .run import TIMES, Run
from .statistics import breakdown, human, number, percent
from .wording import Reason, all_of

WAYS = {"down": "server->worker {}", "up": "worker {}->server"}  # links of one client
WORTH = 0.1  # share of the time: less is not worth a second reason
MATTERS = 1.05  # times the mean: a smaller difference is not worth reporting
SLOWER = 1.02  # times the mean, where the scenario says that workers differ
CARD = re.compile(r"(worker \d+|server)( in| out)?")
"""Names of the lines of network cards."""
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


def clients(scenario: Scenario, runs: Sequence[Run]) -> list[dict[str, Any]] | None:
    """Return a row for each group of sampled clients; None without sampling.

    `gradients`: the group's share of the model's gradients, estimated from its used computing time
    and mean step time. Bytes are per client and day, None unless clients have their own links.
    `absent`, `selected`: shares of time when clients are unavailable, or in a round. A day is its
    working hours; a shorter run has a part of one.
    """
    steps, days = scenario.team.mean_compute, sum(map(span, runs)) / DAY
    nights = sum(worked(scenario.cluster, span(run)) for run in runs)
    if runs[0].gradients is None or not days or not all(steps):
        return None
    made = np.sum([run.workers["compute"] for run in runs], axis=0) / np.array(steps)
    groups = [worker.group for worker in scenario.team.workers]
    at_work = [kind for kind in TIMES if kind not in ("down", *AWAY)]
    rows = []
    for group in dict.fromkeys(groups):
        ranks = [rank for rank, name in enumerate(groups) if name == group]
        row = {
            "group": group or None,
            "clients": len(ranks),
            "gradients": float(made[ranks].sum() / made.sum()) if made.sum() else None,
            **{f"{way}_bytes_per_day": _sent(runs, way, ranks, nights) for way in WAYS},
            "absent": _seconds(runs, ranks, ["absent"]) / len(ranks) / DAY / days,
            "selected": _seconds(runs, ranks, at_work) / len(ranks) / DAY / days,
        }
        rows.append(row)
    return rows


def _seconds(runs: Sequence[Run], ranks: Sequence[int], kinds: Sequence[str]) -> float:
    """Sum the seconds that some clients spend on these kinds of time, over all runs."""
    spent = [run.workers[kind] for run in runs for kind in kinds if kind in run.workers]
    return float(sum(np.take(times, ranks).sum() for times in spent))


def _sent(runs: Sequence[Run], way: str, ranks: Sequence[int], days: float) -> float | None:
    """Return the bytes per client and day on clients' own links in one of `WAYS`."""
    names = [WAYS[way].format(rank) for rank in ranks]
    sizes = [run.links[name] for name in names for run in runs if name in run.links]
    return sum(sizes) / len(ranks) / days if sizes else None


def hours(scenario: Scenario) -> list[str]:
    """Note how many hours of a day no worker is available."""
    specs = scenario.cluster.of_workers("membership")
    there = sum(end - start for start, end in working_hours(scenario.cluster))
    if there >= DAY or not any(spec.windows for spec in specs if spec):
        return []
    return [
        f"no worker is available for {human(DAY - there)} of a day: times per round, gradients/h "
        "and clients at work leave these hours out; tokens and bytes per day include them, and so "
        "do times per step"
    ]


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


def of_failures(row: Mapping[str, Any]) -> str:
    """Return a line that counts crashes and their consequences; tables show shares of time."""
    lost, sampled = row["failures"], "unselected" in row["breakdown"]
    counted = {"crash": "crashes"} if lost["crashes"] or not sampled else {}
    counted |= {"absence": "absences"} if "absent" in row["breakdown"] else {}
    counted |= {"drop-out": "drop_outs"} if lost.get("drop_outs") else {}
    parts = [few(lost[key], one, key.replace("_", "-")) for one, key in counted.items()]
    parts += ["stalled for good"] * bool(lost.get("stall"))
    parts += [f"goodput {percent(row['goodput']['mean'])}"] * (not sampled)
    if lost["recovery_seconds"] is not None:
        parts.append(f"{human(lost['recovery_seconds'])} to recover")
    if lost.get("server_down_seconds"):
        parts.append(f"the server down for {human(lost['server_down_seconds'])}")
    if lost["dropped"] and not sampled:
        parts.append(f"{few(lost['dropped'], 'contribution', 'contributions')} left out")
    return f"{row['label']}: {'; '.join(parts)}."


def few(count: float, one: str, many: str) -> str:
    """Return a count or mean count with its noun: "1 crash", "2.50 crashes"."""
    exact = f"{count:.0f}" if count == round(count) else number(count)
    return f"{exact} {one if count == 1 else many}"


class _Case(NamedTuple):
    """Runs of one algorithm, shares of time by use, and how long links are busy, if known."""

    scenario: Scenario
    runs: Sequence[Run]
    share: Mapping[str, float]
    held: float | None


def bottleneck(scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run]) -> str:
    """Return the reasons for an algorithm's time as a sentence."""
    where = "" if scenario.cluster.sampling is None else "while clients take part, "
    return f"{algorithm.label}: {where}{'; '.join(map(str, reasons(scenario, algorithm, runs)))}."


def reasons(scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run]) -> list[Reason]:
    """Return reasons: where most of the workers' time goes, and why, or only the stall.

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
    first, second, *_ = sorted(uses, key=lambda code: -uses[code])
    case, result = _Case(scenario, runs, share, held_share(scenario, algorithm, runs)), []
    for code in (first, second) if first == "compute" and uses[second] > WORTH else (first,):
        result.append(Reason(code, {"share": uses[code]} | (parts if code == vain else {})))
        result += [] if sampled else _causes(code, case, crashes)
    return result


def _shares(runs: Sequence[Run], sampled: bool) -> dict[str, float]:
    """Return the shares of the time in which workers take part, by use; {} without any."""
    spent = {kind: share for kind, share in breakdown(runs).items() if kind not in AWAY}
    whole = sum(spent.values()) if sampled else 1.0
    if not whole or not any(any(run.seconds.values()) for run in runs):
        return {}
    return {kind: part / whole for kind, part in spent.items()}


def _causes(code: str, case: _Case, crashes: float) -> list[Reason]:
    """Return the causes of a share of the time, for workers that are not sampled."""
    if code in EXPLAIN:
        return EXPLAIN[code](case)
    return [Reason("crashes", {"crashes": crashes})] if crashes else []


def _computing(case: _Case) -> list[Reason]:
    """Return the slowest worker, if all workers compute the same number of steps."""
    recovery = case.scenario.recovery
    unequal = recovery.policy in ("shrink", "quorum") or recovery.backups
    if case.runs[0].staleness_unit != "steps" or unequal:
        return []
    computed = [np.array(run.workers["compute"]) for run in case.runs]
    times = float(np.mean([seconds.max() / seconds.mean() for seconds in computed]))
    unlike = max(case.scenario.team.relative_speeds) > SLOWER  # not by chance
    if times < (SLOWER if unlike else MATTERS):
        return [Reason("alike")]
    return [Reason("slowest", {"who": _slowest(case.scenario, computed)[0], "times": times})]


def _waiting(case: _Case) -> list[Reason]:
    """Return what the workers wait for: the server, collectives, or other workers."""
    runs = case.runs
    if runs[0].staleness_unit == "updates":
        return _served(case)
    if (case.held or 0.0) > case.share["wait"] and runs[0].staleness_unit == "steps":
        return [Reason("collectives", {"share": case.held})]
    waits = [np.array(run.workers["wait"]) for run in runs]
    means = np.sum(waits, axis=0) / sum(map(span, runs))
    lowest, highest, mean = float(means.min()), float(means.max()), float(means.mean())
    if sum(wait.min() for wait in waits) / sum(map(span, runs)) > mean / 2:
        return [Reason("all-wait", {"share": lowest, "highest": highest})]
    who, ranks = _slowest(case.scenario, [-wait for wait in waits if wait.any()])
    least = float(means[ranks].mean()) if ranks else lowest
    return [Reason("waited-for", {"who": who, "share": least, "mean": mean})]


def _served(case: _Case) -> list[Reason]:
    """Return how busy the server is while workers wait for its answers."""
    server, runs = case.scenario.server, case.runs
    works = (server.receive * sum(r.staleness.values()) + server.apply * r.updates for r in runs)
    busy = min(1.0, sum(works) / (sum(run.duration for run in runs) or 1.0))
    models = max(run.inbox_bytes for run in runs) / case.scenario.model.bytes
    return [Reason("server", {"share": busy, "models": models})]


def _communicating(case: _Case) -> list[Reason]:
    """Return the lines saturated longest, or how long transmissions keep links busy."""
    spent, held = case.share["communicate"], case.held
    if case.runs[0].lines:
        full = {line["line"]: line["saturated"] for line in lines(case.runs)}
        top = max(full.values())
        longest = sorted((k for k, share in full.items() if share > top / MATTERS), reverse=True)
        code = "saturated" if top >= spent / 2 else "unsaturated"
        return [Reason(code, {"lines": _names(longest), "share": top})]
    if held is None:
        return []
    return [Reason("latency" if held < spent / 2 else "transmitting", {"share": held})]


EXPLAIN = {"compute": _computing, "wait": _waiting, "communicate": _communicating}


def held_share(scenario: Scenario, algorithm: Algorithm, runs: Sequence[Run]) -> float | None:
    """Return the share of time that transmissions keep a worker's links busy, if known."""
    settings, whole = scenario.network, sum(span(run) for run in runs)
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


def _names(lines: Sequence[str]) -> str:
    """Name saturated lines; if there are many, the first or the number of network cards."""
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
        return "a different worker with each seed", []
    return all_of([f"worker {rank}" for rank in ranks]), ranks


def _near(slowness: np.ndarray) -> list[int]:
    """Return the ranks of workers about as slow as the slowest."""
    return np.flatnonzero(slowness >= slowness.max() - np.ptp(slowness) / 4).tolist()
