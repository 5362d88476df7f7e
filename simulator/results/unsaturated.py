"""Unsaturated lines of the network, whose bandwidth cannot change the answer; and outages.

Rates are max-min fair: a flow is held back by its own limit (a TCP window, slow start) or by a
saturated line. So more bandwidth on a line that was never saturated changes no rate, and no time.
"""

import re
from collections import Counter
from collections.abc import Sequence

from paceline.simulator.results import usage
from paceline.simulator.results.run import Run
from paceline.simulator.results.saturation import CARD
from paceline.simulator.scenario.scenario import Scenario

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
