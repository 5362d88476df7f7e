"""Limits that do not bind: lines never saturated, and delays too short to hide; and outages.

Rates are max-min fair: a flow is held back by its own limit (a TCP window, slow start) or by a
saturated line. So more bandwidth on a line that was never saturated changes no rate, and no time.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from math import ceil, inf
from typing import Any

from ..scenario.scenario import Algorithm, Scenario
from . import usage
from .run import Run
from .saturation import CARD, held_share
from .statistics import Groups, breakdown, human, seconds_per_step

LATE = ("overlap", "delay")  # parameters, in steps, by which averages may be late
TELLING = 0.05  # share of the time, waiting for those, from which it is worth a note
SLOWER = 0.01  # than ssgd, from which that is worth a note
BUSY = 0.9  # of the time
FEW = 3  # names in a note
ENDS = re.compile("<?->")


def notes(scenario: Scenario, runs: Sequence[Run]) -> list[str]:
    """Return notes of outages, and of lines that carried nothing or were never saturated.

    `runs`: of all algorithms and seeds. Lines without a limit are left out, as there is nothing to
    widen, and so are lines whose whole bandwidth every flow has, as it does matter.
    """
    if not all(run.lines for run in runs):
        return []
    carried = {line["line"] for run in runs for line in run.lines if line["bytes"]}
    full = {line["line"] for run in runs for line in run.lines if line["saturated_seconds"]}
    shared = [
        line["line"]
        for line in runs[0].lines
        if line["bandwidth"] is not None and line["utilisation"] is not None
    ]
    idle = [says for says, names in _links(scenario, shared).items() if carried.isdisjoint(names)]
    found = _outages(runs)
    if idle:
        found.append(f"carried nothing, so that their bandwidth changes nothing: {_some(idle)}")
    cards = [name for name in shared if CARD.fullmatch(name)]
    slack = [name for name in cards if name not in full]
    free = [name for name in shared if name in carried - full and not CARD.fullmatch(name)]
    said = [_some(free)] if free else []
    if slack:
        some = f"{len(slack)} of {len(cards)} lines of" if len(slack) < len(cards) else "all"
        said.append(f"{some} network cards")
    if said:
        what = "; ".join(said)
        found.append(f"never saturated, so that more bandwidth there changes nothing: {what}")
    return found


def unhidden(scenario: Scenario, groups: Groups) -> list[str]:
    """Say whose averages may be too little late to hide what they take."""
    found = []
    for algorithm in scenario.algorithm:
        runs, given = groups[algorithm.label], algorithm.parameters
        key = next((each for each in LATE if type(given.get(each)) is int), None)
        means = sum(sum(run.staleness.values()) for run in runs)
        if key is None or not means or breakdown(runs)["communicate"] < TELLING:
            continue
        workers, times = scenario.cluster.workers, [run.seconds for run in runs]
        wait = sum(each["communicate"] for each in times) * workers / means
        step = sum(each["compute"] for each in times) / sum(run.steps for run in runs)
        remedy = f"about {key} = {given[key] + ceil(wait / step)} would hide it"
        if (held_share(scenario, algorithm, runs) or 0.0) > BUSY:
            remedy = "nothing hides that, as the links are busy nearly all the time"
        elif min(max(run.workers["compute"]) / run.duration for run in runs) > 1 - TELLING:
            remedy = "nothing hides that, as the slowest worker computes nearly all the time"
        found.append(
            f"{algorithm.label}: {key} = {given[key]} hides {human(given[key] * step)} of each "
            f"average, and workers wait {human(wait)} for the rest; {remedy}"
        )
    return found


def in_pieces(
    scenario: Scenario, groups: Groups, by_size: Callable[[Scenario, Algorithm], dict[int, float]]
) -> list[str]:
    """Say why averages of buckets take longer than one of the whole gradient, where they do, and
    what buckets of other sizes would take, where one saves as much as `TELLING`: `theory.by_size`.
    """
    paces = {label: sum(map(seconds_per_step, runs)) / len(runs) for label, runs in groups.items()}
    raw = [e for e in scenario.algorithm
           if getattr(e.parameters.get("codec"), "kind", "raw") == "raw"]  # fmt: skip
    plain, found = min((paces[e.label] for e in raw if e.name == "ssgd"), default=inf), []
    for each in raw:
        pieces: Any = each.parameters.get("buckets", 1)
        count, pace = pieces if isinstance(pieces, int) else len(pieces), paces[each.label]
        sizes = {size: by * pace for size, by in by_size(scenario, each).items()}
        saves = min(sizes.values(), default=inf) < (1 - TELLING) * pace
        slower = count != 1 and pace > (1 + SLOWER) * plain
        other = ", ".join(f"{human(took)} with {size} MiB" for size, took in sizes.items())
        if slower or saves:
            found.append(
                f"{each.label}: {'slower than ssgd, as ' * slower}each of its {count} buckets is "
                "an average of its own: it pays every latency again and, over NCCL, a launch and "
                "the lower rate of a small message; fewer buckets (a larger bucket_cap_mb of "
                f"DistributedDataParallel) pay less{saves * f', by formulas: {other}'}"
            )
    return found


def _outages(runs: Sequence[Run]) -> list[str]:
    """Say which lines were down the longest, and for what share of the time."""
    whole, down = sum(map(usage.span, runs)), Counter[str]()
    for line in (line for run in runs for line in run.lines):
        down[line["line"]] += line.get("down_seconds", 0.0)
    shares: dict[str, list[str]] = {}
    for name, seconds in down.most_common():
        if seconds > 0:
            shares.setdefault(usage.percent(min(1.0, seconds / whole)), []).append(name)
    said = [
        f"{_some(names)} {'was' if len(names) == 1 else 'were'} down for {share} of the time"
        for share, names in [*shares.items()][:FEW]
    ]
    return ["; ".join(said)] if said else []


def _links(scenario: Scenario, lines: Sequence[str]) -> dict[str, set[str]]:
    """The lines between places, by what a reader of the scenario calls them."""
    found: dict[str, set[str]] = {}
    left = {name: {name} for name in lines if not CARD.fullmatch(name)}
    if scenario.server.region is None:  # then the scenario gives it no link
        left = {name: each for name, each in left.items() if "server" not in ENDS.split(name)}
    for index, link in enumerate(scenario.network.link):
        a, b = link.between
        names = {f"{a}->{b}", f"{b}->{a}", f"{a}<->{b}"} & {*left}
        if names:
            found[f"network.link[{index}] ({a}-{b})"] = names
    known = set().union(*found.values())
    return found | {name: names for name, names in left.items() if name not in known}


def _some(names: Sequence[str]) -> str:
    rest = len(names) - FEW
    return ", ".join(names[:FEW]) + (f" and {rest} more" if rest > 0 else "")
