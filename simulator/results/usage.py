"""Usage over the seeds of one algorithm: time of workers, lines, phases, failures."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..cluster.membership import worked, working_hours
from ..scenario.cluster import DAY
from ..scenario.scenario import Scenario
from .run import TIMES, Run
from .statistics import human, number

SILENT = 0.001  # of the gradients: a last round that is cut off may add as much
LOSSES = {"unselected": "not selected", "absent": "absent", "lost": "lost", "down": "down"}
WAYS = {"down": "server->worker {}", "up": "worker {}->server"}  # links of one client
OUT = ("down", "absent", "unselected")  # kinds of time in which a client is in no round


def percent(share: float) -> str:
    """Return a share as people say it: "64 %"; shares that round to 0 are "under 1 %"."""
    return "under 1 %" if 0 < share < 0.005 else f"{100 * share:z.0f} %"


def span(run: Run) -> float:
    """Return the duration of a run in seconds; its curve may end earlier."""
    spent = np.array([*run.workers.values()])
    return float(spent.sum(axis=0).max()) if spent.size else run.duration


def workers(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Return each worker's seconds by kind, mean over seeds."""
    return {
        kind: np.mean([run.workers[kind] for run in runs], axis=0).tolist()
        for kind in runs[0].workers
    }


def clients(scenario: Scenario, runs: Sequence[Run]) -> list[dict[str, Any]] | None:
    """Return what each group of sampled clients adds and transfers, mean over seeds; else None.

    `gradients`: its share of those in the model, by the time that clients computed what was used
    over their mean time of a step; bytes are a client's in a day, None where links are not clients'
    own; `absent`, `selected`: shares of their time in which they are not there, or in a round.
    A day has its working hours, of which a shorter run has some.
    """
    steps, days = scenario.team.mean_compute, sum(map(span, runs)) / DAY
    nights = sum(worked(scenario.cluster, span(run)) for run in runs)
    if runs[0].gradients is None or not days or not all(steps):
        return None
    made = np.sum([run.workers["compute"] for run in runs], axis=0) / np.array(steps)
    of = [each.group for each in scenario.team.workers]
    in_rounds = [kind for kind in TIMES if kind not in OUT]
    return [
        {
            "group": group or None,
            "clients": len(ranks),
            "gradients": float(made[ranks].sum() / made.sum()) if made.sum() else None,
            **{f"{way}_bytes_per_day": _sent(runs, way, ranks, nights) for way in WAYS},
            "absent": _seconds(runs, ranks, "absent") / len(ranks) / DAY / days,
            "selected": _seconds(runs, ranks, *in_rounds) / len(ranks) / DAY / days,
        }
        for group in dict.fromkeys(of)
        for ranks in [[rank for rank, each in enumerate(of) if each == group]]
    ]


def _sent(runs: Sequence[Run], way: str, ranks: Sequence[int], days: float) -> float | None:
    """Return the bytes per client and day on the clients' own links in one of `WAYS`."""
    names = [WAYS[way].format(rank) for rank in ranks]
    sizes = [run.links[name] for name in names for run in runs if name in run.links]
    return sum(sizes) / len(ranks) / days if sizes else None


def _seconds(runs: Sequence[Run], ranks: Sequence[int], *kinds: str) -> float:
    """Return the time of some workers in these kinds, over all runs."""
    return float(
        sum(np.take(run.workers[k], ranks).sum() for run in runs for k in kinds if k in run.workers)
    )


def silent(row: Mapping[str, Any]) -> list[str]:
    """Note the groups of sampled clients from which the model learns next to nothing."""
    few_gradients = [
        f"{group['group']} ({group['clients']} clients, in rounds for {percent(group['selected'])})"
        for group in row["clients"] or ()
        if group["group"] and group["gradients"] is not None and group["gradients"] < SILENT
    ]
    return [
        f"{row['label']}: under {100 * SILENT:g} % of the gradients in the model are of groups "
        f"{', '.join(few_gradients)}"
    ] * bool(few_gradients)


def hours(scenario: Scenario) -> list[str]:
    """Note the hours of a day in which no worker is available."""
    specs = scenario.cluster.of_workers("membership")
    there = sum(end - start for start, end in working_hours(scenario.cluster))
    if there >= DAY or not any(spec.windows for spec in specs if spec):
        return []
    return [
        f"no worker is available for {human(DAY - there)} of a day: times per round, gradients/h "
        "and clients at work are those of the other hours, tokens and bytes per day of whole days; "
        "times per step are of the whole run"
    ]


def failures(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Means over seeds of `Run.failures`; None where nothing can crash. `stall`: the first one."""
    found = [run.failures for run in runs if run.failures is not None]
    if not found:
        return None
    means = {key: _mean(each[key] for each in found) for key in found[0] if key != "stall"}
    return means | {"stall": next((each["stall"] for each in found if each["stall"]), None)}


def lines(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Means over seeds of `Run.lines`. `saturated`, `down`: shares of the time."""
    spans = list(map(span, runs))

    def share(each: Sequence[dict[str, Any]], key: str) -> float | None:
        pairs = zip(each, spans, strict=True)
        return _mean(
            min(1.0, line.get(key, 0.0) / whole) if whole else 0.0 for line, whole in pairs
        )

    return [
        {
            "line": each[0]["line"],
            "bandwidth": each[0]["bandwidth"],
            "bytes": _mean(line["bytes"] for line in each),
            "utilisation": _mean(line["utilisation"] for line in each),
            "saturated": share(each, "saturated_seconds"),
            "down": share(each, "down_seconds"),
        }
        for each in zip(*(run.lines for run in runs), strict=True)
    ]


def phases(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """Means over seeds of `Run.phases`; of transits those of all messages."""
    found: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(name for run in runs for name in run.phases):
        each = [run.phases.get(name, {}) for run in runs]
        keys = dict.fromkeys(key for one in each for key in one)
        phase = {key: sum(one.get(key, 0.0) for one in each) / len(runs) for key in keys}
        if phase.get("messages"):
            total = sum(one["messages"] * one["transit_seconds"] for one in each if one)
            phase["transit_seconds"] = total / (phase["messages"] * len(runs))
        found[name] = phase
    return found


def network(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Return the usage of lines and phases; None where no transfer was simulated."""
    return {"lines": lines(runs), "phases": phases(runs)} if runs[0].lines else None


def jobs(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return means over seeds of `Run.jobs`: the pace of background jobs."""
    return [
        {key: each[0][key] for key in ("job", "algorithm")}
        | {key: _mean(job[key] for job in each) for key in ("steps", "seconds_per_step")}
        for each in zip(*(run.jobs for run in runs), strict=True)
    ]


def of_job(job: dict[str, Any], file: str, label: str) -> str:
    """Say at which pace a background job ran beside an algorithm."""
    pace = f"{human(job['seconds_per_step'])} a step" if job["steps"] else "no step"
    return f"job {job['job']} ({file}, {job['algorithm']}) beside {label}: {pace}."


def of_failures(row: Mapping[str, Any]) -> str:
    """Say in one line what crashes and left-out contributions cost."""
    lost, shares, sampled = row["failures"], row["breakdown"], "unselected" in row["breakdown"]
    counted = {"crash": "crashes"} if lost["crashes"] or not sampled else {}
    counted |= {"absence": "absences"} if "absent" in shares else {}
    counted |= {"drop-out": "drop_outs"} if lost.get("drop_outs") else {}
    parts = [few(lost[key], one, key.replace("_", "-")) for one, key in counted.items()]
    spent = {"lost": 0.0, "down": 0.0, **shares}
    out = [f"{LOSSES[kind]} {percent(spent[kind] or 0.0)}" for kind in LOSSES if kind in spent]
    until = "until it stood still, " if lost.get("stall") else ""
    whole = "all clients'" if sampled else "the"
    parts.append(f"{until}{', '.join(out)} of {whole} time")
    if not sampled:
        parts[-1] += f"; goodput {percent(row['goodput']['mean'])}"
    if lost["recovery_seconds"] is not None:
        parts.append(f"{human(lost['recovery_seconds'])} to recover")
    if lost.get("server_down_seconds"):
        parts.append(f"the server down for {human(lost['server_down_seconds'])}")
    if lost["dropped"] and not sampled:
        parts.append(f"{few(lost['dropped'], 'contribution', 'contributions')} left out")
    return f"{row['label']}: {'; '.join(parts)}."


def few(count: float, one: str, many: str) -> str:
    """Return a count, of which some are means, with its noun: "1 crash", "2.50 crashes"."""
    exact = f"{count:.0f}" if count == round(count) else number(count)
    return f"{exact} {one if count == 1 else many}"


def _mean(values: Iterable[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None
