"""Compute max-min fair rates of flows that share lines, compiled by numba.

Rates are max-min fair with a cap per flow (Bertsekas & Gallager, Data Networks, 6.5.2): a
flow is limited by its cap, or by a saturated line on which no flow has a higher rate. Only the
flows that an event may affect, the *crew*, get new rates, by water-filling with all other rates
fixed. Flows that then violate the condition join the crew, which is solved again. In the end the
condition holds for all flows, so the rates are exact.
"""

# mypy: allow-untyped-defs
# ruff: noqa: PLR0913, PLR0917 - a kernel takes its tables one by one

import numpy as np
from numba import njit

TINY = 1e-12  # relative tolerance of rates, for the rounding of sums
INSTANT = 1e-15  # relative tolerance of times: a few units in the last place are the same instant


# A 4-ary heap with an index: a table of `records.QUEUE`, and a count. The index (`place`) gives an
# item's position in the heap, to move or remove it.


@njit
def put(heap, count, place, at, item):
    """Put an item into a 4-ary heap of `count` items, sifting it from `place`."""
    while True:
        first = 4 * place + 1
        if first >= count:
            break
        least = first
        for other in range(first + 1, min(first + 4, count)):
            if heap[other].at < heap[least].at:
                least = other
        if at <= heap[least].at:
            break
        heap[place].at, heap[place].item = heap[least].at, heap[least].item
        heap[heap[place].item].place = place
        place = least
    while place > 0:
        above = (place - 1) >> 2
        if heap[above].at <= at:
            break
        heap[place].at, heap[place].item = heap[above].at, heap[above].item
        heap[heap[place].item].place = place
        place = above
    heap[place].at, heap[place].item = at, item
    heap[item].place = place


@njit
def move(heap, count, item, at):
    """Insert or move an item; return the count."""
    place = heap[item].place
    if place < 0:
        place = count
        count += 1
    put(heap, count, place, at, item)
    return count


@njit
def drop(heap, count, item):
    """Remove an item, if it is in the heap; return the count."""
    place = heap[item].place
    if place < 0:
        return count
    heap[item].place = -1
    count -= 1
    if place < count:
        put(heap, count, place, heap[count].at, heap[count].item)
    return count


# Flows on lines: add and remove flows, and collect the inputs of the next solution: the lines
# marked by `touch`, and the flows added by `join` (the crew).


@njit
def touch(state, lines, line):
    """Mark a line for the next solution."""
    if lines[line].stamp != state.stamp:
        lines[line].stamp = state.stamp
        lines[state.touched].touched = line
        state.touched += 1


@njit
def join(state, flows, flow):
    """Add a flow to the crew of the next solution."""
    if flows[flow].stamp != state.stamp:
        flows[flow].stamp = state.stamp
        flows[state.crew].crew = flow
        state.crew += 1


@njit
def add(line, rate):
    """Add a rate to a line's sum, with Neumaier's compensation against drift."""
    total = line.used + rate
    if abs(line.used) >= abs(rate):
        line.carry += (line.used - total) + rate
    else:
        line.carry += (rate - total) + line.used
    line.used = total


@njit
def bind(lines, flow, line):
    """Set the line that limits a flow, or -1."""
    if flow.bound >= 0:
        lines[flow.bound].bound -= 1
    flow.bound = line
    if line >= 0:
        lines[line].bound += 1


@njit
def link(state, flows, lines, hops, number):
    """Add a flow to its lines."""
    flow = flows[number]
    for place in range(flow.hop, flow.hop + flow.hops):
        hop, line = hops[place], lines[hops[place].line]
        hop.before, hop.after = -1, line.first
        if line.first >= 0:
            hops[line.first].before = place
        line.first = place
        line.flows += 1
        touch(state, lines, hop.line)
    join(state, flows, number)


@njit
def unlink(state, flows, lines, hops, number, carried):
    """Remove a flow from its lines, which have carried `carried` of its bytes."""
    flow = flows[number]
    bind(lines, flow, -1)
    for place in range(flow.hop, flow.hop + flow.hops):
        hop, line = hops[place], lines[hops[place].line]
        if hop.before >= 0:
            hops[hop.before].after = hop.after
        else:
            line.first = hop.after
        if hop.after >= 0:
            hops[hop.after].before = hop.before
        line.bytes += carried
        line.flows -= 1
        if not line.per_flow:
            add(line, -flow.rate)
        if line.flows == 0:
            line.used = line.carry = 0.0
        touch(state, lines, hop.line)


# Rates


@njit
def _settle(flow, lines, hops, levels, count, rate, bound):
    """Set a flow's rate; return the number of levels left."""
    flow.rate, flow.open = rate, 0
    bind(lines, flow, bound)
    for place in range(flow.hop, flow.hop + flow.hops):
        number = hops[place].line
        line = lines[number]
        if line.per_flow:
            continue
        add(line, rate)
        line.open -= 1
        if line.open == 0:
            count = drop(levels, count, number)
    return count


@njit
def _fill(state, flows, lines, hops, paths, levels):  # noqa: PLR0912
    """Compute the rates of the crew by water-filling, with all other rates fixed.

    `levels`: a heap of items by the rate that they allow: lines, and then flows, by their cap. A
    line's level only rises as flows are settled, so it is checked again when it reaches the top.
    """
    count = 0
    for member in range(state.crew):
        number = flows[member].crew
        flow = flows[number]
        cap = paths[flow.path].limit
        bind(lines, flow, -1)
        flow.open = 1
        for place in range(flow.hop, flow.hop + flow.hops):
            line = lines[hops[place].line]
            touch(state, lines, hops[place].line)
            if line.per_flow:
                cap = min(cap, line.capacity)
            else:
                add(line, -flow.rate)
                line.open += 1
        flow.rate = 0.0
        if cap < np.inf:
            count = move(levels, count, len(lines) + number, cap)
    for place in range(state.touched):
        number = lines[place].touched
        line = lines[number]
        if line.open and line.capacity < np.inf:
            count = move(
                levels, count, number, (line.capacity - line.used - line.carry) / line.open
            )
    while count:
        level, number = levels[0].at, levels[0].item
        if number >= len(lines):
            flow = flows[number - len(lines)]
            count = drop(levels, count, number)
            if flow.open:
                count = _settle(flow, lines, hops, levels, count, level, -1)
            continue
        line = lines[number]
        now = (line.capacity - line.used - line.carry) / line.open
        if now > level:
            put(levels, count, 0, now, number)
            continue
        level = max(level, 0.0)
        place = line.first
        while line.open:
            flow = flows[hops[place].flow]
            place = hops[place].after
            if flow.open:
                count = _settle(flow, lines, hops, levels, count, level, number)
    for member in range(state.crew):
        flow = flows[flows[member].crew]
        if flow.open:  # an unlimited flow ends immediately
            _settle(flow, lines, hops, levels, count, 0.0, -1)
            flow.left = 0.0
    state.solved += state.crew


@njit
def _enlarge(state, flows, lines, hops):
    """Add unfairly treated flows to the crew; return whether there are any."""
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
            high = max(high, flow.rate)
            if flow.bound == number:
                low = min(low, flow.rate)
            hop = hops[hop].after
        slack = line.used + line.carry < line.capacity * (1 - TINY)
        low *= 1 + TINY
        if not slack and high <= low:
            continue
        hop = line.first
        while hop >= 0:
            flow = flows[hops[hop].flow]
            if flow.bound == number or (not slack and flow.rate > low):
                join(state, flows, hops[hop].flow)
            hop = hops[hop].after
    return state.crew > before


@njit
def _schedule(state, flow, number, events):
    """Schedule the end of a flow."""
    if flow.rate != flow.pace:
        flow.left = max(0.0, flow.left - flow.pace * (state.clock - flow.since))
        flow.pace, flow.since = flow.rate, state.clock
    elif events[number].place >= 0:
        return
    at = np.inf
    if flow.left == 0:
        at = state.clock
    elif flow.pace > 0:
        at = flow.since + flow.left / flow.pace
    if at < np.inf:
        state.events = move(events, state.events, number, at)
    else:
        state.events = drop(events, state.events, number)


@njit
def solve(state, flows, lines, hops, paths, events, levels):
    """Compute all rates that the events of this instant may change."""
    for place in range(state.touched):
        number = lines[place].touched
        hop = lines[number].first if lines[number].bound else -1
        while hop >= 0:
            if flows[hops[hop].flow].bound == number:
                join(state, flows, hops[hop].flow)
            hop = hops[hop].after
    crew = 0
    for member in range(state.crew):  # drop flows cancelled at this instant
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
