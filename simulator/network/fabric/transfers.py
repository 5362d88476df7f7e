"""Run the fabric's compiled loop: transfers start, flow, end; messages follow."""

# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: PLR0913, PLR0917 - a kernel takes its tables one by one

from typing import Any

import numpy as np
from numba import from_dtype, njit, types

from . import records
from .sharing import INSTANT, drop, join, link, move, solve, touch, unlink

DONE, ROOM, MORE = 0, -1, -2
"""Reasons for the loop's return: the given time is reached, or tables are too small. A positive
value is the number of ended tickets. MORE: the loop continues."""


_TABLES = types.Tuple(
    [types.Array(from_dtype(np.dtype(kind)), 1, "C") for kind in records.TABLES.values()]
)
_SECONDS, _BYTES, _NUMBER = types.float64, types.float64, types.int64
_ADVANCE = _NUMBER(_TABLES, _SECONDS)
_SEND = _NUMBER(_TABLES, _SECONDS, _NUMBER, _BYTES, _SECONDS, _NUMBER)
_START = _NUMBER(_TABLES, _SECONDS, _NUMBER, types.int64[::1])
_CANCEL = types.void(_TABLES, _NUMBER)
_SET_CAPACITY = types.void(_TABLES, _NUMBER, _BYTES)


@njit
def _lacks_room(state, flows, hops, more):
    """Return whether tables may be too small for `more` further transfers."""
    return state.slots + more > len(flows) or state.hops + more * state.longest > len(hops)


@njit
def _transfer(tables, at, number, size, latency, ticket):
    """Start a transfer on a path at `at`; return its FLOW. Tables must have room."""
    run, flows, _, hops, paths, path_lines, events = tables[:7]
    state, path = run[0], paths[number]
    row = path.free
    if row >= 0:
        path.free = flows[row].next
    else:
        row = state.slots
        state.slots += 1
        flow = flows[row]
        flow.path, flow.hop, flow.hops = number, state.hops, path.lines
        for hop in range(path.lines):
            hops[state.hops + hop].line = path_lines[path.line + hop]
            hops[state.hops + hop].flow = row
        state.hops += path.lines
    flow = flows[row]
    flow.size, flow.ticket, flow.run = size, ticket, -1
    state.events = move(events, state.events, row, at + latency)
    return row


@njit
def _message(tables, at, run, number):
    _, flows, _, _, paths, _, _, _, messages, _, runs, _, numbers = tables
    entry = runs[run]
    message = messages[entry.message + number]
    latency = paths[message.path].latency if entry.latency < 0 else numbers[entry.latency + number]
    size = message.share * numbers[entry.size + message.origin]
    row = _transfer(tables, at, message.path, size, latency, entry.ticket)
    flows[row].run, flows[row].message = run, number


@njit
def _begin(state, flows, lines, hops, paths, number):
    """Let a transfer begin to flow after its latency."""
    flow = flows[number]
    flow.flowing, flow.bound = 1, -1
    flow.left, flow.since = flow.size, state.clock
    flow.rate = flow.pace = 0.0
    link(state, flows, lines, hops, number)


@njit
def _comes_first(flows, a, b):
    """Return whether `a` precedes `b`, both queued on a path at the same time."""
    one, other = flows[a], flows[b]
    return one.ticket < other.ticket or (one.ticket == other.ticket and one.message < other.message)


@njit
def _list_path(state, paths, number):
    """List a serial path to start its next transfer at the end of this instant."""
    if not paths[number].listed:
        paths[number].listed = 1
        paths[state.starting].start = number
        state.starting += 1


@njit
def _queue(state, flows, paths, number):
    """Queue a transfer of a serial path after its latency, by time, then ticket."""
    flow = flows[number]
    path = paths[flow.path]
    flow.since = state.clock
    before, after = path.tail, -1
    if before >= 0 and flows[before].since == flow.since and _comes_first(flows, number, before):
        before, after = -1, path.head
        while flows[after].since < flow.since or _comes_first(flows, after, number):
            before, after = after, flows[after].next
    flow.next = after
    if before < 0:
        path.head = number
    else:
        flows[before].next = number
    if after < 0:
        path.tail = number
    _list_path(state, paths, flow.path)


@njit
def _start_queues(state, flows, lines, hops, paths):
    """Start the first transfer of each listed, free path at an instant's end."""
    for place in range(state.starting):
        path = paths[paths[place].start]
        path.listed = 0
        if path.busy < 0 and path.head >= 0:
            path.busy = path.head
            path.head = flows[path.head].next
            if path.head < 0:
                path.tail = -1
            _begin(state, flows, lines, hops, paths, path.busy)
    state.starting = 0


@njit
def _free_path(state, flows, paths, number):
    """Free a serial path whose transfer has flowed."""
    path = paths[flows[number].path]
    if path.serial and path.busy == number:
        path.busy = -1
        _list_path(state, paths, flows[number].path)


@njit
def _leave_queue(flows, paths, number):
    """Remove a transfer from the queue of its path, if it is there."""
    path = paths[flows[number].path]
    before, here = -1, path.head
    while here >= 0 and here != number:
        before, here = here, flows[here].next
    if here < 0:
        return
    if before < 0:
        path.head = flows[number].next
    else:
        flows[before].next = flows[number].next
    if path.tail == number:
        path.tail = before


@njit
def _release(flows, paths, number):
    flow = flows[number]
    flow.flowing, flow.ticket = 0, -1
    flow.next = paths[flow.path].free
    paths[flow.path].free = number


@njit
def _move_clock(state, events, until):
    """Move the clock to the next event (MORE), or to `until` (DONE)."""
    at = events[0].at if state.events else np.inf
    if at <= until and at < np.inf:
        state.clock = max(state.clock, at)
        return MORE
    if until < np.inf:
        state.clock = max(state.clock, until)
    return DONE


@njit(_ADVANCE, cache=True, nogil=True)
def _advance(tables, until):  # noqa: PLR0912
    """Run to `until`, or until tickets end.

    Rates are computed once per instant, after all its events, and not before the next event is
    needed, so they include transfers that the caller starts at the same instant.
    """
    run, flows, lines, hops, paths, _, events, levels = tables[:8]
    messages, followers, runs, waits = tables[8:12]
    state = run[0]
    while True:
        instant = state.clock * (1 + INSTANT)
        while state.events and events[0].at <= instant:
            number = events[0].item
            flow = flows[number]
            first, last = 0, 0
            if flow.run >= 0:
                message = messages[runs[flow.run].message + flow.message]
                first, last = message.first, message.first + message.followers
                if _lacks_room(state, flows, hops, last - first):
                    return ROOM
            state.events = drop(events, state.events, number)
            if not flow.flowing and flow.size > 0:
                if paths[flow.path].serial:
                    _queue(state, flows, paths, number)
                else:
                    _begin(state, flows, lines, hops, paths, number)
                continue
            if flow.flowing:
                unlink(state, flows, lines, hops, number, flow.size)
                _free_path(state, flows, paths, number)
            ticket, collective = flow.ticket, flow.run
            _release(flows, paths, number)
            if collective >= 0:
                progress = runs[collective]
                progress.left -= 1
                for place in range(first, last):
                    follower = followers[place]
                    waits[progress.waits + follower] -= 1
                    if waits[progress.waits + follower] == 0:
                        _message(tables, state.clock, collective, follower)
                if progress.left:
                    continue
            flows[state.ended].ended = ticket
            state.ended += 1
        if state.ended:
            count, state.ended = state.ended, 0
            return count
        _start_queues(state, flows, lines, hops, paths)
        if state.crew or state.touched:
            solve(state, flows, lines, hops, paths, events, levels)
            continue
        if _move_clock(state, events, until) != MORE:
            return DONE


@njit(_SEND, cache=True, nogil=True)
def _send(tables, at, path, size, latency, ticket):
    """Start one transfer at `at`; a negative latency means the path's latency."""
    if _lacks_room(tables[0][0], tables[1], tables[3], 1):
        return ROOM
    if latency < 0:
        latency = tables[4][path].latency
    _transfer(tables, at, path, size, latency, ticket)
    return DONE


@njit(_START, cache=True, nogil=True)
def _start(tables, at, run, firsts):
    """Start the first messages of a collective at `at`."""
    if _lacks_room(tables[0][0], tables[1], tables[3], len(firsts)):
        return ROOM
    for message in firsts:
        _message(tables, at, run, message)
    return DONE


@njit(_CANCEL, cache=True, nogil=True)
def _cancel(tables, ticket):
    """Remove the transfers of a ticket now; the bytes moved so far stay counted."""
    run, flows, lines, hops, paths, _, events = tables[:7]
    state = run[0]
    for number in range(state.slots):
        flow = flows[number]
        if flow.ticket == ticket:
            state.events = drop(events, state.events, number)
            if flow.flowing:
                carried = flow.size - flow.left + flow.pace * (state.clock - flow.since)
                unlink(state, flows, lines, hops, number, min(carried, flow.size))
                _free_path(state, flows, paths, number)
            else:
                _leave_queue(flows, paths, number)
            _release(flows, paths, number)


@njit(_SET_CAPACITY, cache=True, nogil=True)
def _set_capacity(tables, number, capacity):
    """Change a line's capacity now. Its flows join the crew if they no longer fit."""
    run, flows, lines, hops = tables[:4]
    state, line = run[0], lines[number]
    line.capacity = capacity
    touch(state, lines, number)
    if line.per_flow or line.used + line.carry > capacity:
        hop = line.first
        while hop >= 0:
            join(state, flows, hops[hop].flow)
            hop = hops[hop].after


# calls without numba's type dispatch are twice as fast
advance: Any = _advance.get_overload(_ADVANCE)
send: Any = _send.get_overload(_SEND)
start: Any = _start.get_overload(_START)
cancel: Any = _cancel.get_overload(_CANCEL)
set_capacity: Any = _set_capacity.get_overload(_SET_CAPACITY)
