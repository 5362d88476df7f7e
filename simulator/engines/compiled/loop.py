"""The compiled loop: one seed's workers and server, following the server's script.

Every rule, and every sum in its order, is that of `VirtualNode` and `Simulation`, so that ties fall
alike. The loop returns what it needs next; called again, it goes on where it was.
"""

from functools import cache
from typing import Any

import numpy as np
from numba import cfunc, from_dtype, njit, types

from paceline.simulator.engines.compiled.server_trace import (
    GATE,
    MARK,
    OPERATION,
    RECEIVE,
    SEND,
    WORK,
)
from paceline.simulator.programs.pieces.gate import ALL, GO, Rule

MORE, POINT, DRAW, GROW, STUCK, DONE = range(6)
"""What the loop needs: more script, an observer, numbers for a worker, room for larger staleness;
or it cannot go on, or is done."""

RANK = 16
"""Bits of a rank. A message is an integer: its number, then its sender's rank."""

# A worker, and its messages to the server (up) and back (down): from its iteration `until` on it
# needs new numbers; `work`: seconds that it computes more than a gradient; `size`: bytes of what it
# sends next, `flying`: of what it sent last; `answer`: when its answer comes, `transit`: how long
# that is on its way, `begins`: when the worker began to stand still for that; `version`: the
# updates that it has seen; `pace`: seconds per byte.
WORKER = np.dtype(
    [(name, "f8") for name in ("now", "sent_until", "waited", "communicated")]
    + [(name, "f8") for name in ("answer", "begins", "transit")]
    + [(name, "f8") for name in ("work", "size", "flying", "pace_up", "pace_down", "last_down")]
    + [(name, "f8") for name in ("bytes_up", "bytes_down")]
    + [(name, "i8") for name in ("iterations", "until", "version")]
)

# A mark that is to be shown to the observer: `moved` bytes so far.
SHOWN = np.dtype([("step", "i8"), ("now", "f8"), ("updates", "i8"), ("moved", "f8")])

# The server and the run. `place`: in the script; `pace_in`, `pace_out`: of its network card, and
# `free_in`, `free_out`: when that is free; `flying`: messages to it, and `hole`: whether the top of
# their heap has just left it; `mark_at`: the step of the next mark to be shown, one every `every`,
# up to `limit`; `shown`: marks that wait for the observer; `ready`: workers that have been
# answered; `beyond`: answers that come after the end; `served`: how many times `begun` holds, the
# oldest of them at `oldest`; `held`: workers at the gate.
STATE = np.dtype(
    [(name, "f8") for name in ("now", "deadline", "receive", "whole", "inbox", "moved")]
    + [(name, "f8") for name in ("pace_in", "free_in", "pace_out", "free_out")]
    + [(name, "i8") for name in ("place", "step", "updates", "sent", "flying", "hole")]
    + [(name, "i8") for name in ("mark_at", "every", "limit", "shown")]
    + [(name, "i8") for name in ("ready", "ready_first", "held", "held_first", "beyond")]
    + [(name, "i8") for name in ("stale", "served", "oldest", "stopped")]
)

_RULE = types.int64(types.int64[::1], types.int64)


@cache
def compiled(rule: Rule) -> Any:
    """A gate's rule as the loop calls it."""
    return cfunc(_RULE, cache=True)(rule)


@njit(cache=True, nogil=True)
def _put(when, mail, place, at, letter):  # type: ignore[no-untyped-def]
    """Put a message into a 4-ary heap: at `place`, or where it must go from there."""
    while True:
        least = first = 4 * place + 1
        for other in range(first + 1, first + 4):
            if when[other] < when[least] or (
                when[other] == when[least] and mail[other] < mail[least]
            ):
                least = other
        if at < when[least] or (at == when[least] and letter < mail[least]):
            break
        when[place], mail[place] = when[least], mail[least]
        place = least
    while place > 0:
        above = (place - 1) >> 2
        if when[above] < at or (when[above] == at and mail[above] < letter):
            break
        when[place], mail[place] = when[above], mail[above]
        place = above
    when[place], mail[place] = at, letter


@njit(cache=True, nogil=True)
def _answer(state, team, ready, downs, worker):  # type: ignore[no-untyped-def]
    """Send a worker the parameters."""
    to = team[worker]
    size = state.whole
    transit = downs[worker, (to.iterations - 1) & (downs.shape[1] - 1)] + size * to.pace_down
    leaves = state.now
    if state.pace_out > 0:
        leaves = state.free_out = max(state.free_out, leaves) + size * state.pace_out
    at = max(leaves + transit, to.last_down)
    to.last_down = at
    to.bytes_down += size
    state.moved += size
    to.version = state.updates
    if at <= state.deadline:
        to.answer, to.transit = at, transit
        _append(ready, state.ready_first, state.ready, worker)
        state.ready += 1
    else:
        state.beyond += 1


@njit(cache=True, nogil=True)
def _append(ring, first, count, worker):  # type: ignore[no-untyped-def]
    """Put a worker behind the `count` that a ring holds."""
    place = first + count
    ring[place if place < len(ring) else place - len(ring)] = worker


@njit(cache=True, nogil=True)
def _next(ring, first):  # type: ignore[no-untyped-def]
    """The place after the first one."""
    return first + 1 if first + 1 < len(ring) else 0


@njit(cache=True, nogil=True)
def _lengthen(state, begun, size):  # type: ignore[no-untyped-def]
    """Note that one message more than ever before waited at once."""
    served, oldest = state.served, state.oldest
    state.inbox = served * size
    begun[1 : served + 1] = np.concatenate((begun[oldest:served], begun[:oldest]))
    begun[0] = 0.0
    state.served, state.oldest = served + 1, 0


_ranks, _times, _numbers = types.int64[::1], types.float64[::1], types.float64[:, ::1]
_FOLLOW = types.int64(
    from_dtype(STATE)[::1], types.Array(from_dtype(OPERATION), 1, "C", readonly=True),
    from_dtype(WORKER)[::1], _numbers, _numbers, _numbers, _times, _ranks, _ranks, _ranks,
    _times, _ranks, _ranks, _ranks, from_dtype(SHOWN)[::1], types.FunctionType(_RULE),
)  # fmt: skip


@njit(_FOLLOW, cache=True, nogil=True)
def _follow(  # type: ignore[no-untyped-def]  # noqa: PLR0911, PLR0912, PLR0913, PLR0915, PLR0917
    run, script, team, times, ups, downs, when, mail, ready, slots, begun, ages, held, gate,
    marks, rule,
):  # fmt: skip
    """Go on with one seed; return what it needs next.

    Shapes: `times`, `ups` and `downs` (workers, a power of two): rings of what each worker's
    computing and the latencies take, by its iterations; `when`, `mail`: the heap of
    messages to the server (4 workers + 1,); `ready`, `slots`, `held`: ranks (workers,); `begun`
    (workers + 2,): when the server began to serve its last messages; `ages`: the histogram of
    staleness; `gate`: the state of the gate's rule; `marks`: those to be shown, up to where there
    is room for no more.
    """
    state = run[0]
    for place in range(state.place, len(script)):
        state.place = place
        code = script[place].code
        if code == RECEIVE:
            while state.ready > 0:
                worker = ready[state.ready_first]
                me = team[worker]
                iteration = me.iterations
                if iteration >= me.until:
                    return DRAW
                now, answer = me.now, me.answer
                if answer > now:
                    begins = max(now, answer - me.transit - (me.sent_until - now))
                    me.waited += begins - now
                    me.communicated += answer - begins
                    me.begins = begins
                    now = answer
                now = now + times[worker, iteration & (times.shape[1] - 1)] + me.work
                size = me.size
                transit = ups[worker, iteration & (ups.shape[1] - 1)] + size * me.pace_up
                at = max(now + transit, me.sent_until)
                me.now = now
                me.sent_until = at
                me.flying = size
                me.bytes_up += size
                state.moved += size
                me.iterations = iteration + 1
                state.sent += 1
                letter = state.sent << RANK | worker
                if state.hole:
                    state.hole = 0
                    _put(when, mail, 0, at, letter)
                else:
                    _put(when, mail, state.flying, at, letter)
                    state.flying += 1
                state.ready -= 1
                state.ready_first = _next(ready, state.ready_first)
            if state.stopped:
                return DONE
            if state.hole:
                state.hole = 0
                last = state.flying = state.flying - 1
                at, letter = when[last], mail[last]
                when[last] = np.inf
                if last:
                    _put(when, mail, 0, at, letter)
            if state.flying == 0:
                return DONE if state.beyond else STUCK
            at, worker = when[0], mail[0] & ((1 << RANK) - 1)
            if at > state.deadline:
                return DONE
            stale = state.updates - team[worker].version
            if stale >= len(ages):
                return GROW
            state.hole = 1
            size = team[worker].flying
            if state.pace_in > 0:
                at = state.free_in = max(state.free_in, at) + size * state.pace_in
            now = state.now
            if at > now:
                now = at
            elif now > state.deadline:
                return DONE
            begun[state.oldest] = now
            state.oldest += 1
            if state.oldest == state.served:
                state.oldest = 0
            if at < begun[state.oldest]:
                _lengthen(state, begun, size)
            state.stale = stale
            ages[stale] += 1
            state.step += 1
            state.now = now + state.receive
            slots[script[place].slot] = worker
        elif code == WORK:
            state.now += script[place].seconds
        elif code == SEND:
            _answer(state, team, ready, downs, slots[script[place].slot])
        elif code == MARK:
            state.updates += 1
            step = state.step
            if step >= state.mark_at:
                mark = marks[state.shown]
                mark.step, mark.now, mark.updates = step, state.now, state.updates
                mark.moved = state.moved
                state.shown += 1
                state.mark_at = min((step // state.every + 1) * state.every, state.limit)
                if state.shown == len(marks) or step >= state.limit:
                    state.place += 1
                    return POINT
        elif code == GATE:
            worker = slots[script[place].slot]
            follows = rule(gate, worker)
            if follows == GO:
                _answer(state, team, ready, downs, worker)
            else:
                _append(held, state.held_first, state.held, worker)
                state.held += 1
                while follows == ALL and state.held:
                    _answer(state, team, ready, downs, held[state.held_first])
                    state.held -= 1
                    state.held_first = _next(held, state.held_first)
        else:
            state.step -= 1
            ages[state.stale] -= 1
    return MORE


follow: Any = _follow.get_overload(_FOLLOW)  # past the types' dispatch, four times as long
