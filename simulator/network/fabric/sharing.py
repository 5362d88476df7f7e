"""Max-min fair rates of flows that share lines (directions of links), compiled by numba.

Rates are weighted max-min fair with a cap per flow (Bertsekas & Gallager, Data Networks, 6.5.2): a
flow is held back by its cap, or by a saturated line on which no flow has a higher *level* (rate per
weight). Only the flows that an event may concern, the *crew*, are solved anew, by water-filling
with all other rates fixed; a flow for which the condition then fails joins the crew, and the crew
is solved again. In the end the condition holds for all flows, so the rates are exact.
"""

# mypy: allow-untyped-defs
# ruff: noqa: PLR0913, PLR0917 - a kernel takes its tables one by one

import numpy as np
from numba import njit

from .heap import drop, move, put
from .lines import add, bind, join, touch

TINY = 1e-12  # relative tolerance of rates, for the rounding of sums
INSTANT = 1e-15  # relative tolerance of times: a few units in the last place are one instant


@njit
def _cap(state, flow, path):
    """Double a flow's cap as often as slow start has by now; return the cap."""
    while flow.doubles <= state.clock * (1 + INSTANT):
        flow.cap = min(2 * flow.cap, path.limit)
        flow.doubles = flow.doubles + path.rtt if flow.cap < path.limit else np.inf
    return flow.cap


@njit
def _settle(state, flow, weight, lines, hops, levels, count, rate, bound):
    """Set a flow's rate; return the number of levels left."""
    flow.rate, flow.level, flow.open = rate, rate / weight, 0
    bind(lines, flow, bound)
    for place in range(flow.hop, flow.hop + flow.hops):
        number = hops[place].line
        line = lines[number]
        if line.per_flow:
            continue
        add(line, rate)
        line.weight -= weight
        line.open -= 1
        if line.open == 0:
            line.weight = 0.0
            count = drop(levels, count, number)
    return count


@njit
def _fill(state, flows, lines, hops, paths, levels):  # noqa: PLR0912, PLR0915
    """Work out the rates of the crew by water-filling, with all other rates fixed.

    `levels`: a heap of items by level: lines, and, numbered behind them, flows by the level of
    their cap. A line's level only rises while flows are settled, so it is checked again when it
    comes to the top.
    """
    count = 0
    for member in range(state.crew):
        number = flows[member].crew
        flow = flows[number]
        path = paths[flow.path]
        cap = _cap(state, flow, path)
        bind(lines, flow, -1)
        flow.open = 1
        for place in range(flow.hop, flow.hop + flow.hops):
            line = lines[hops[place].line]
            touch(state, lines, hops[place].line)
            if line.per_flow:
                cap = min(cap, line.capacity)
            else:
                add(line, -flow.rate)
                line.weight += path.weight
                line.open += 1
        flow.rate = 0.0
        if cap < np.inf:
            count = move(levels, count, len(lines) + number, cap / path.weight)
    for place in range(state.touched):
        number = lines[place].touched
        line = lines[number]
        if line.open and line.capacity < np.inf:
            count = move(
                levels, count, number, (line.capacity - line.used - line.carry) / line.weight
            )
    while count:
        level, number = levels[0].at, levels[0].item
        if number >= len(lines):
            flow = flows[number - len(lines)]
            count = drop(levels, count, number)
            if flow.open:
                weight = paths[flow.path].weight
                count = _settle(state, flow, weight, lines, hops, levels, count, level * weight, -1)
            continue
        line = lines[number]
        now = (line.capacity - line.used - line.carry) / line.weight
        if now > level:
            put(levels, count, 0, now, number)
            continue
        level = max(level, 0.0)
        place = line.first
        while line.open:
            flow = flows[hops[place].flow]
            place = hops[place].after
            if flow.open:
                weight = paths[flow.path].weight
                rate = level * weight
                count = _settle(state, flow, weight, lines, hops, levels, count, rate, number)
    for member in range(state.crew):
        flow = flows[flows[member].crew]
        if flow.open:  # nothing limits it: it ends at once
            _settle(state, flow, paths[flow.path].weight, lines, hops, levels, count, 0.0, -1)
            flow.left = 0.0
    state.solved += state.crew


@njit
def _enlarge(state, flows, lines, hops):
    """Add to the crew the flows for which fairness fails; return whether there are any."""
    before = state.crew
    for place in range(state.touched):
        number = lines[place].touched
        line = lines[number]
        if line.bound == 0 or line.per_flow:
            continue
        low, high = np.inf, 0.0
        hop = line.first
        while hop >= 0:
            flow = flows[hops[hop].flow]
            high = max(high, flow.level)
            if flow.bound == number:
                low = min(low, flow.level)
            hop = hops[hop].after
        slack = line.used + line.carry < line.capacity * (1 - TINY)
        low *= 1 + TINY
        if not slack and high <= low:
            continue
        hop = line.first
        while hop >= 0:
            flow = flows[hops[hop].flow]
            if flow.bound == number or (not slack and flow.level > low):
                join(state, flows, hops[hop].flow)
            hop = hops[hop].after
    return state.crew > before


@njit
def _schedule(state, flow, number, events):
    """Schedule a flow's next event at its new rate: its end, or the growth of its binding cap."""
    if flow.rate != flow.pace:
        flow.left = max(0.0, flow.left - flow.pace * (state.clock - flow.since))
        flow.pace, flow.since = flow.rate, state.clock
    elif events[number].place >= 0 and flow.doubles == np.inf:
        return
    flow.ends = 1
    at = np.inf
    if flow.left == 0:
        at = state.clock
    elif flow.pace > 0:
        at = flow.since + flow.left / flow.pace
    if flow.doubles < at and flow.rate >= flow.cap * (1 - TINY):
        flow.ends, at = 0, flow.doubles
    if at < np.inf:
        state.events = move(events, state.events, number, at)
    else:
        state.events = drop(events, state.events, number)


@njit
def solve(state, flows, lines, hops, paths, events, levels):
    """Work out all rates that the events of this instant may change."""
    for place in range(state.touched):
        number = lines[place].touched
        hop = lines[number].first if lines[number].bound else -1
        while hop >= 0:
            if flows[hops[hop].flow].bound == number:
                join(state, flows, hops[hop].flow)
            hop = hops[hop].after
    crew = 0
    for member in range(state.crew):  # without those that were cancelled at this instant
        number = flows[member].crew
        if flows[number].flowing:
            flows[crew].crew = number
            crew += 1
    state.crew = crew
    while state.crew:
        _fill(state, flows, lines, hops, paths, levels)
        if not _enlarge(state, flows, lines, hops):
            break
    for member in range(state.crew):
        _schedule(state, flows[flows[member].crew], flows[member].crew, events)
    for place in range(state.touched):
        line = lines[lines[place].touched]
        full = 0
        if (
            line.flows
            and not line.per_flow
            and line.used + line.carry >= line.capacity * (1 - TINY)
        ):
            full = 1
        if full != line.full:
            if line.full:
                line.saturated += state.clock - line.since
            line.full, line.since = full, state.clock
    state.crew = state.touched = 0
    state.stamp += 1
