"""Usage over the seeds of one algorithm: time of workers, lines, failures."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from ..cluster.membership import worked, working_hours
from ..scenario.cluster import DAY
from ..scenario.scenario import Scenario
from .run import TIMES, Run
from .statistics import human, number, percent

WAYS = {"down": "server->worker {}", "up": "worker {}->server"}  # links of one client
AWAY = ("absent", "unselected")  # kinds of time in which a client takes no part


def span(run: Run) -> float:
    """Return the duration of a run in seconds; its curve may end earlier."""
    spent = np.array([*run.workers.values()])
    return float(spent.sum(axis=0).max()) if spent.size else run.duration


def over_seeds(values: Sequence[Any]) -> Any:
    """Return the mean over seeds of numbers, or of tables and lists of numbers.

    None does not count; of texts the first that is not empty stands.
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
    """Return the seconds that some clients spend in these kinds, in all runs."""
    spent = [run.workers[kind] for run in runs for kind in kinds if kind in run.workers]
    return float(sum(np.take(times, ranks).sum() for times in spent))


def _sent(runs: Sequence[Run], way: str, ranks: Sequence[int], days: float) -> float | None:
    """Return the bytes per client and day on the clients' own links in one of `WAYS`."""
    names = [WAYS[way].format(rank) for rank in ranks]
    sizes = [run.links[name] for name in names for run in runs if name in run.links]
    return sum(sizes) / len(ranks) / days if sizes else None


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
    """Count in one line crashes and what they left out; tables have the shares of time."""
    lost, sampled = row["failures"], "unselected" in row["breakdown"]
    counted = {"crash": "crashes"} if lost["crashes"] or not sampled else {}
    counted |= {"absence": "absences"} if "absent" in row["breakdown"] else {}
    counted |= {"drop-out": "drop_outs"} if lost.get("drop_outs") else {}
    parts = [few(lost[key], one, key.replace("_", "-")) for one, key in counted.items()]
    parts += ["stood still for good"] * bool(lost.get("stall"))
    parts += [f"goodput {percent(row['goodput']['mean'])}"] * (not sampled)
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
