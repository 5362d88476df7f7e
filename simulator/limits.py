"""What cannot change the answer: lines of the network that held no transfer back.

Rates are max-min fair: a flow is held back by its own limit (a TCP window, slow start) or by a
saturated line. So more bandwidth on a line that was never saturated changes no rate, and no time.
"""

from collections.abc import Iterable, Sequence

from simulator.bottleneck import CARD
from simulator.scenario import Scenario
from simulator.trace import Run

FEW = 3  # names in a note


def notes(scenario: Scenario, runs: Sequence[Run]) -> list[str]:
    """What a reader need not try: which lines no algorithm uses, and which none ever fills."""
    if not all(run.lines for run in runs):
        return []
    lines = {line["line"]: line for line in runs[0].lines}
    carried = {line["line"] for run in runs for line in run.lines if line["bytes"]}
    full = {line["line"] for run in runs for line in run.lines if line["saturated_seconds"]}
    finite = [
        name for name, line in lines.items()
        if line["bandwidth"] is not None and line["utilisation"] is not None
    ]  # fmt: skip
    found = []
    links = _links(scenario, set(lines))
    idle = [
        says for says, names in links.items() if carried.isdisjoint(names)
    ]
    if idle:
        their = "its" if len(idle) == 1 else "their"
        found.append(f"{_some(idle)} carried nothing: {their} bandwidth changes nothing here")
    wires = [name for name in finite if not CARD.fullmatch(name)]
    free = [name for name in wires if name in carried - full]
    cards = [name for name in finite if CARD.fullmatch(name)]
    slack = [name for name in cards if name not in full]
    said = [_some(free)] if free else []
    if cards and len(slack) == len(cards):
        said.append("the network cards")
    elif slack:
        said.append(f"{len(slack)} of {len(cards)} network card lines" if len(slack) > FEW else _some(slack))
    if said:
        found.append(f"more bandwidth on {' and '.join(said)} changes nothing: never saturated")
    return found


def _links(scenario: Scenario, lines: set[str]) -> dict[str, set[str]]:
    """The lines between places, by what a reader of the scenario calls them."""
    found: dict[str, set[str]] = {}
    for index, link in enumerate(scenario.network.link):
        a, b = link.between
        names = {f"{a}->{b}", f"{b}->{a}", f"{a}<->{b}"} & lines
        if names:
            found[f"network.link[{index}] ({a}-{b})"] = names
    known = set().union(*found.values())
    others = (name for name in sorted(lines - known) if not CARD.fullmatch(name))
    return found | {name: {name} for name in others}


def _some(names: Sequence[str]) -> str:
    """The first few of many names."""
    shown, rest = [*names[:FEW]], len(names) - FEW
    if rest > 0:
        return f"{', '.join(shown)} and {rest} more"
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))
