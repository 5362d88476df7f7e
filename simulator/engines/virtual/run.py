"""Run any scenario with one seed on the reference engine, in simulated time."""

from math import inf, nextafter
from typing import Any

import numpy as np

from ...cluster.membership import OUT, working_seconds
from ...results.run import ROUNDING, Run, Spans
from ...scenario.scenario import World
from ..observer import NEVER
from ..sampling import samples
from .simulation import Simulation


def run_world(world: World, seed: int, *, spans: int = 0) -> Run:
    """Simulate a world with one seed; store up to `spans` spans.

    Raises ProgramError if the program breaks the rules of the effects.
    """
    algorithm, stored = world.algorithm, Spans(spans) if spans else None
    with np.errstate(over="ignore", invalid="ignore"):
        simulation = Simulation(world, seed, stored).run()  # a note reports divergence
    simulation.observer.close(simulation.horizon, simulation.deserted)
    curve = simulation.observer.curve
    shown = None if stored is None else _timeline(simulation, stored, simulation.end)
    seconds = _spent(simulation)
    mean = {kind: sum(column) / len(column) for kind, column in seconds.items()}
    end = simulation.availability.wall_clock(simulation.end) if simulation.lines else 0.0
    stalled = [f"the run did not finish: {simulation.stall}"] if simulation.stall else []
    return Run.of(
        algorithm,
        seed,
        "virtual",
        curve,
        seconds=mean,
        workers=seconds,
        links=simulation.traffic.links(),
        spans=shown,
        notes=[
            *simulation.observer.notes(algorithm, begun=simulation.averages_begun()),
            *stalled,
        ],
        spans_truncated=stored is not None and stored.truncated,
        updates=simulation.observer.updates,
        **_rounds(simulation, seconds),
        staleness=simulation.staleness,
        staleness_unit=simulation.staleness_unit,
        failures=_failures(simulation, mean),
        lines=simulation.lines.traffic.usage(end) if simulation.lines and 0 < end < inf else [],
        stall=simulation.stall,
        paid=simulation.observer.paid,
    )


def _spent(run: Simulation) -> dict[str, list[float]]:
    """Return each worker's seconds by kind of activity, for `Run.workers`."""
    team = run.nodes[: run.workers]
    seconds_ = {
        "compute": [node.busy for node in team],
        "wait": [node.waited for node in team],
        "communicate": [node.communicated for node in team],
    }
    if run.outages:
        repairs, again = run.availability.repeated(run.ended)
        outages = run.outages[: run.workers]
        seconds_["stalled"] = [node_outages.stalled for node_outages in outages]
        seconds_["lost"] = [node_outages.lost + again for node_outages in outages]
        seconds_["down"] = [node_outages.down + repairs for node_outages in outages]
        selects = samples(run.program, run.scenario)
        shown = ["absent"] if run.availability.members is not None else []
        shown += ["unselected"] if selects else []
        if shown:
            seconds_ |= {kind: [0.0] * run.workers for kind in shown}
            seconds_["down"] = [repairs] * run.workers
            kinds = np.array([node_outages.kinds() for node_outages in outages]).T
            for kind, seconds in zip(OUT, kinds, strict=True):
                if kind in seconds_:
                    seconds_[kind] = (np.array(seconds_[kind]) + seconds).tolist()
        if selects and run.program.selects:  # waiting clients count as not selected
            waited = np.sum([seconds_["wait"], seconds_["unselected"]], axis=0).tolist()
            seconds_["unselected"], seconds_["wait"] = waited, [0.0] * run.workers
    return seconds_


def _rounds(run: Simulation, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Return number and mean seconds of rounds, and reports, from `_spent`'s result."""
    cluster, rule = run.scenario.cluster, run.recovery.sampled
    if cluster.sampling is None:
        return {}
    time, step, *_ = (column[-1] for column in run.observer.curve.values())
    result: dict[str, Any] = {"working_seconds": working_seconds(cluster, time)}
    busy = sum(sum(seconds.get(kind, ())) for kind in ("compute", "communicate", "lost"))
    result["at_work"] = busy / (working_seconds(cluster, run.ended) or inf)
    if rule is None:
        at_once = cluster.participants if run.program.selects else run.workers
        return result | {"gradients": at_once * step, "deserted": run.deserted(time)}
    walls = map(run.availability.wall_clock, rule.starts[1:])
    ends = [end for end in walls if end <= run.ended * ROUNDING]
    reports, gradients = [*zip(*rule.taken[: len(ends)], strict=True)] or ((), ())
    shown = sum(end <= time * ROUNDING for end in ends)
    result |= {"reports": sum(reports), "rounds": len(ends)}
    result["gradients"] = float(sum(gradients[:shown]))  # up to the curve's last step
    if ends:
        result["round_seconds"] = (ends[-1] - run.deserted(ends[-1])) / len(ends)
    return result


def _failures(run: Simulation, mean: dict[str, float]) -> dict[str, Any] | None:
    """Return the cost of crashes, from a worker's mean seconds by activity."""
    if not run.outages:
        return None
    crashes, total = run.availability.crashes, sum(mean.values())
    end = nextafter(run.ended, inf)
    recovery_seconds = run.availability.recovery_seconds(run.outages, end)
    downs = (down for times in crashes[run.workers :] for down in times.during(0.0, run.ended))
    absent = run.availability.absent
    saving = sum(outages.down for outages in run.outages[: run.workers])  # with checkpoints
    kinds = [absent(rank, at) for rank, times in enumerate(crashes) for at, _ in times.until(end)]
    return {
        "crashes": kinds.count(False),
        "absences": kinds.count(True),
        "recovery_seconds": sum(recovery_seconds) / len(recovery_seconds)
        if recovery_seconds
        else None,
        "lost_seconds": mean["lost"] * run.workers,
        "down_seconds": mean["down"] * run.workers,
        "server_down_seconds": sum(back - crash for crash, back in downs),
        "checkpoint_seconds": saving if run.availability.save_every < NEVER else 0.0,
        "goodput": 1 - (mean["lost"] + mean["down"]) / total if total else 1.0,
        "dropped": run.recovery.dropped,
        "drop_outs": run.recovery.drop_outs,
        "contributing": run.recovery.taken / run.recovery.means if run.recovery.means else None,
        "stall": run.stall or None,
    }


def _timeline(run: Simulation, stored: Spans, until: float) -> np.ndarray:
    """Return the spans up to a time (s) for a timeline, in wall-clock time."""
    spans = stored.array(until)
    if not run.outages or not spans.size:
        return spans
    for rank in range(len(run.nodes)):  # the later of two overlapping spans is right
        rows = np.flatnonzero(spans["worker"] == rank)
        later = np.append(np.minimum.accumulate(spans["start"][rows][::-1])[::-1][1:], inf)
        spans["end"][rows] = np.minimum(spans["end"][rows], later)
    spans = spans[spans["end"] > spans["start"]]
    return run.availability.timeline(spans, run.ended, run.workers)
