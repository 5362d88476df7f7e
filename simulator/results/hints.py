"""Hints at settings that bind nothing: lines never saturated, delays too short; and outages.

Rates are max-min fair: a flow is held back by its own limit (a TCP window, slow start) or by a
saturated line. So more bandwidth on a line that was never saturated changes no rate, and no time.
"""

from collections import Counter
from collections.abc import Sequence
from math import ceil

from ..scenario.scenario import Scenario
from . import usage
from .bottleneck import CARD, held_share
from .run import Run
from .statistics import Groups, breakdown, human

LATE = ("overlap", "delay")  # parameters, in steps, by which averages may be late
TELLING = 0.05  # share of the time, waiting for those, from which it is worth a note
BUSY = 0.9  # of the time
FEW = 3  # names in a note


def notes(scenario: Scenario, runs: Sequence[Run]) -> list[str]:
    """Return notes of outages, and of lines that carried nothing or were never saturated.

    `runs`: of all algorithms and seeds. Left out are lines without a limit, and lines whose whole
    bandwidth every flow has, as it does matter.
    """
    if not all(run.lines for run in runs):
        return []
    carried, full = _lines_with(runs, "bytes"), _lines_with(runs, "saturated_seconds")
    cards, others = _shared(scenario, runs[0])
    found = _outages(runs)
    if idle := [name for name in others if name not in carried]:
        found.append(f"carried nothing, so that their bandwidth changes nothing: {_some(idle)}")
    slack = [name for name in cards if name not in full]
    free = [name for name in others if name in carried - full]
    what = [_some(free)] if free else []
    if slack:
        what.append(f"{len(slack)} of {len(cards)} lines of network cards")
    if what:
        never = "never saturated, so that more bandwidth there changes nothing"
        found.append(f"{never}: {'; '.join(what)}")
    return found


def _lines_with(runs: Sequence[Run], key: str) -> set[str]:
    """Return the lines of which some run has more than 0 of this."""
    return {line["line"] for run in runs for line in run.lines if line[key]}


def _shared(scenario: Scenario, run: Run) -> tuple[list[str], list[str]]:
    """Return the lines that flows share: those of network cards, and all others."""
    linked = scenario.server.region is not None  # else the scenario gives the server no link
    limited = [
        line["line"]
        for line in run.lines
        if line["bandwidth"] is not None and line["utilisation"] is not None
    ]
    cards = [name for name in limited if CARD.fullmatch(name)]
    others = [name for name in limited if name not in cards and (linked or "server" not in name)]
    return cards, others


def unhidden(scenario: Scenario, groups: Groups) -> list[str]:
    """Say whose averages would have to be later to hide what they take."""
    found = []
    for algorithm in scenario.algorithm:
        runs, given = groups[algorithm.label], algorithm.parameters
        key = next((name for name in LATE if type(given.get(name)) is int), None)
        means = sum(sum(run.staleness.values()) for run in runs)
        if key is None or not means or breakdown(runs)["communicate"] < TELLING:
            continue
        if (held_share(scenario, algorithm, runs) or 0.0) > BUSY:
            continue  # nothing hides it
        if min(max(run.workers["compute"]) / run.duration for run in runs) > 1 - TELLING:
            continue
        workers, times = scenario.cluster.workers, [run.seconds for run in runs]
        wait = sum(spent["communicate"] for spent in times) * workers / means
        step = sum(spent["compute"] for spent in times) / sum(run.steps for run in runs)
        found.append(
            f"{algorithm.label}: {key} = {given[key]} hides {human(given[key] * step)} of an "
            f"average, and workers wait {human(wait)} for the rest; about {key} = "
            f"{given[key] + ceil(wait / step)} would hide it"
        )
    return found


def _outages(runs: Sequence[Run]) -> list[str]:
    """Say which lines were down the longest, and for what share of the time."""
    whole, down = sum(map(usage.span, runs)), Counter[str]()
    for line in (line for run in runs for line in run.lines):
        down[line["line"]] += line.get("down_seconds", 0.0)
    longest = max(down.values(), default=0.0)
    if not longest:
        return []
    names = [name for name, seconds in down.items() if seconds == longest]
    return [f"down for {usage.percent(min(1.0, longest / whole))} of the time: {_some(names)}"]


def _some(names: Sequence[str]) -> str:
    rest = len(names) - FEW
    return ", ".join(names[:FEW]) + (f" and {rest} more" if rest > 0 else "")
