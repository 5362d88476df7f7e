"""What a run has cost, once it is over: seconds by kind, crashes, other jobs, and its timeline."""

from math import inf, nextafter
from typing import Any

import numpy as np

from ...cluster.membership import OUT, all_day, worked, working_seconds
from ...results.run import ROUNDING, Spans
from ..observer import NEVER
from ..sampling import samples
from .simulation import Simulation


def spent(run: Simulation) -> dict[str, list[float]]:
    """Return each worker's seconds by kind of activity, as `Run.workers`."""
    team = run.nodes[: run.workers]
    found = {
        "compute": [node.busy for node in team],
        "wait": [node.waited for node in team],
        "communicate": [node.communicated for node in team],
    }
    if run.outages:
        repairs, again = run.availability.repeated(run.ended)
        outages = run.outages[: run.workers]
        found["stalled"] = [each.stalled for each in outages]
        found["lost"] = [each.lost + again for each in outages]
        found["down"] = [each.down + repairs for each in outages]
        selects = samples(run.program, run.scenario)
        why = {"absent": run.availability.members is not None, "unselected": selects}
        there = [kind for kind, so in why.items() if so]
        if there:
            found |= {kind: [0.0] * run.workers for kind in there}
            found["down"] = [repairs] * run.workers
            kinds = np.array([each.kinds() for each in outages]).T
            for kind, seconds in zip(OUT, kinds, strict=True):
                if kind in found:
                    found[kind] = (np.array(found[kind]) + seconds).tolist()
        if selects and run.program.selects:  # its clients wait to be chosen again
            waited = np.sum([found["wait"], found["unselected"]], axis=0).tolist()
            found["unselected"], found["wait"] = waited, [0.0] * run.workers
    return found


def rounds(run: Simulation, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Return how many rounds have selected clients, their mean seconds, and what clients have
    reported, as in `Run`. `seconds`: what is `spent`.
    """
    cluster, rule = run.scenario.cluster, run.recovery.sampled
    if cluster.sampling is None:
        return {}
    time, step, *_ = (column[-1] for column in run.observer.curve.values())
    found: dict[str, Any] = {"working_seconds": working_seconds(cluster, time)}
    busy = sum(sum(seconds.get(kind, ())) for kind in ("compute", "communicate", "lost"))
    found["at_work"] = busy / (working_seconds(cluster, run.ended) or inf)
    found["nights"] = 0.0 if all_day(cluster) else worked(cluster, time)
    if rule is None:
        at_once = cluster.participants if run.program.selects else run.workers
        return found | {"gradients": at_once * step, "deserted": run.deserted(time)}
    walls = map(run.availability.wall_clock, rule.starts[1:])
    ends = [end for end in walls if end <= run.ended * ROUNDING]
    reports, gradients = [*zip(*rule.taken[: len(ends)], strict=True)] or ((), ())
    shown = sum(end <= time * ROUNDING for end in ends)
    found |= {"reports": sum(reports), "rounds": len(ends)}
    found["gradients"] = float(sum(gradients[:shown]))  # as many as the steps of the curve are of
    if ends:
        found["round_seconds"] = (ends[-1] - run.deserted(ends[-1])) / len(ends)
    return found


def means(seconds: dict[str, list[float]]) -> dict[str, float]:
    """Return the mean seconds of a worker by kind of activity."""
    return {kind: sum(each) / len(each) for kind, each in seconds.items()}


def failures(run: Simulation, mean: dict[str, float]) -> dict[str, Any] | None:
    """Return the cost of crashes, as `Run.failures`; None where nothing can crash.

    `mean`: the `means` of its seconds.
    """
    if not run.outages:
        return None
    crashes, whole = run.availability.crashes, sum(mean.values())
    end = nextafter(run.ended, inf)
    recovery_seconds = run.availability.recovery_seconds(run.outages, end)
    downs = (down for each in crashes[run.workers :] for down in each.during(0.0, run.ended))
    absent = run.availability.absent
    kinds = [absent(rank, at) for rank, each in enumerate(crashes) for at, _ in each.until(end)]
    return {
        "crashes": kinds.count(False),
        "absences": kinds.count(True),
        "recovery_seconds": sum(recovery_seconds) / len(recovery_seconds)
        if recovery_seconds
        else None,
        "lost_seconds": mean["lost"] * run.workers,
        "down_seconds": mean["down"] * run.workers,
        "server_down_seconds": sum(back - crash for crash, back in downs),
        "checkpoint_seconds": _saving(run),
        "goodput": 1 - (mean["lost"] + mean["down"]) / whole if whole else 1.0,
        "dropped": run.recovery.dropped,
        "drop_outs": run.recovery.drop_outs,
        "contributing": run.recovery.taken / run.recovery.means if run.recovery.means else None,
        "stall": run.stall or None,
    }


def _saving(run: Simulation) -> float:
    """Return the seconds for which workers stood still to save: all that they were down, where a
    crash takes all back to a checkpoint.
    """
    saves = run.availability.save_every < NEVER
    return sum(each.down for each in run.outages[: run.workers]) if saves else 0.0


def jobs(run: Simulation) -> list[dict[str, Any]]:
    """Return the progress of each background job, as `Run.jobs`."""
    steps = [job.nodes[-1].step / _gradients_per_step(job) for job in run.background]
    return [
        {
            "job": index,
            "algorithm": job.label,
            "steps": done,
            "seconds_per_step": run.ended / done if done else None,
        }
        for index, (job, done) in enumerate(zip(run.background, steps, strict=True))
    ]


def _gradients_per_step(job: Simulation) -> int:
    """Return what its last node counts for a step: a server all gradients, a worker its own."""
    served = job.program.server is not None
    return job.program.counted(job.workers, job.scenario.cluster.participants) if served else 1


def timeline(run: Simulation, kept: Spans, until: float) -> np.ndarray:
    """Return the spans up to a time, as a timeline shows them, in wall-clock time."""
    spans = kept.array(until)
    if not run.outages or not spans.size:
        return spans
    for rank in range(len(run.nodes)):  # the later of two overlapping spans is true
        own = np.flatnonzero(spans["worker"] == rank)
        later = np.append(np.minimum.accumulate(spans["start"][own][::-1])[::-1][1:], inf)
        spans["end"][own] = np.minimum(spans["end"][own], later)
    spans = spans[spans["end"] > spans["start"]]
    return run.availability.timeline(spans, run.ended, run.workers)
