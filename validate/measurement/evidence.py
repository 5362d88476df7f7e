"""Decide whether a real run counts as evidence: a busy machine distorts its times.

The limits come from runs with known delays: below them seconds per step repeat within 1 %; if the
run itself uses more than 50 % of the CPU, errors reach 31 %. If other programs used a little of the
machine, a run counts, but its times may be that much too long.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from paceline.simulator.scenario.scenario import Scenario

from ..training.events import STEP
from ..training.records import Account
from .measure import MeasuredRun

OWN, FOREIGN = 0.40, 0.03  # shares of the machine's cores
DISTURBED = 0.15  # largest share of cores or GPUs that other programs may use in a run that counts
SHORTEST = 0.010  # seconds of a mean step
OBSERVING = 0.03  # share of the time for snapshots
LATE = 0.05  # share of collectives and messages that took longer than emulated


def evidence(
    runs: Sequence[MeasuredRun], scenario: Scenario, foreign_gpu: float = 0.0
) -> dict[str, Any]:
    """Return the machine's load during runs, and whether the runs count as evidence.

    `own_cpu`, `foreign_cpu`: shares of the cores used by the run and by other programs; `late`:
    share of collectives and messages that took longer than emulated; `observing`: share of the time
    for snapshots; `foreign_gpu`: share of the GPUs' time that other programs used before or after;
    `disturbed`: share by which times may be too long; `admitted`: whether the runs count, and if
    not the `reasons`.
    """
    loads = [_of_run(run) for run in runs]
    load = {key: max(one[key] for one in loads) for key in loads[0]}
    load["step"] = min(one["step"] for one in loads)
    load["foreign_gpu"] = foreign_gpu
    others = max(load["foreign_cpu"], foreign_gpu)
    load["disturbed"] = others if others > FOREIGN else 0.0
    reasons = [*_reasons(load, scenario)]
    if not all(run.whole for run in runs):
        reasons.append("cut short")
    return {"admitted": not reasons, "reasons": reasons, **load}


def _reasons(load: dict[str, float], scenario: Scenario) -> Iterator[str]:
    settings = scenario.validation
    for name, share in (("CPU", load["foreign_cpu"]), ("GPUs", load["foreign_gpu"])):
        if share > DISTURBED:
            yield f"others used {share:.0%} of the {name} (at most {DISTURBED:.0%})"
    if settings.compute == "stretched":
        if load["own_cpu"] > OWN:
            yield f"own CPU use {load['own_cpu']:.0%} (at most {OWN:.0%})"
        if 0 < load["step"] < SHORTEST:
            yield f"steps of {load['step'] * 1e3:.3g} ms (at least {SHORTEST * 1e3:.0f} ms)"
    if load["observing"] > OBSERVING:
        yield (
            f"snapshots took {load['observing']:.0%} of the time (at most {OBSERVING:.0%}); write "
            "a longer run.evaluate_every"
        )
    if settings.network == "emulated" and load["late"] > LATE:
        yield (
            f"{load['late']:.0%} of the collectives and messages took longer than on the "
            f"emulated network (at most {LATE:.0%})"
        )


def _of_run(run: MeasuredRun) -> dict[str, float]:
    accounts = [record.account or Account() for record in run.records]
    hosts: dict[str, list[Account]] = {}
    for account in accounts:
        hosts.setdefault(account.machine.get("host", ""), []).append(account)
    shares = [_shares(team) for team in hosts.values()]
    events = np.concatenate([record.events for record in run.records])
    steps = events[events["kind"] == STEP]
    collectives = sum(account.collectives for account in accounts)
    duration = max(account.duration for account in accounts)
    return {
        "own_cpu": max(ours for ours, _ in shares),
        "foreign_cpu": max(foreign for _, foreign in shares),
        "step": float((steps["end"] - steps["start"]).mean()) if len(steps) else 0.0,
        "late": sum(account.late for account in accounts) / collectives if collectives else 0.0,
        "observing": max(account.observing for account in accounts) / (duration or 1.0),
    }


def _shares(team: Sequence[Account]) -> tuple[float, float]:
    """Return the CPU shares of a run's processes on a machine, and of other programs."""
    available = max(
        member.machine.get("elapsed", 0.0) * member.machine.get("cores", 1) for member in team
    )
    relay = max(member.machine.get("relay", 0.0) for member in team)  # all report the same relay
    ours = sum(member.busy for member in team) + relay
    busy = max(member.machine.get("busy", 0.0) for member in team)
    return (ours / available, max(0.0, busy - ours) / available) if available else (0.0, 0.0)
