"""The compiled loop: one seed's workers and parameter server, following the server's trace.

The trace (`trace`) lists the server's operations, the same for all seeds; the loop plays
them against the workers' own compute times and latencies and finds who sends which gradient when.
Numba runs that at tens of nanoseconds a gradient, without the GIL, so that seeds run in parallel
threads.

How it works: a worker whose answer has been sent is `ready`. Before each RECEIVE the loop lets all
ready workers compute and send their next gradient, which enters a tournament by time of arrival;
then the server takes the first. Numbers are drawn in Python (`seed_run`) into rings, one per
worker, indexed by the worker's iteration modulo the ring's length.

Invariants:
- Every rule, and the order of every floating-point sum, is that of `virtual.node.VirtualNode` and
  `virtual.simulation.Simulation`: times are equal and ties fall alike. Change both or neither.
- Equal times of arrival go in the order of sending: a message is the integer
  (its number << RANK) | its sender, and the tree compares (time, message).
- After DRAW or GROW the loop enters the operation at `state.place` anew. What the operation has
  done so far must be safe to meet again: workers that have sent are no longer ready, and a hole
  that was closed is none.
- `hole`: the tree's first message has been taken and not yet replaced, by its sender's next or by
  none. The former usually follows at once, which saves half of the tree's work.
- Codes of operations and of gate rules are compiled into cached code: never renumber them.

After a change: tests/engines/test_compiled.py (every count equal to the reference engine, every
time to rounding) and tests/lab/bench/parts.py (rates).
"""

from functools import cache
from typing import Any

import numpy as np
from numba import cfunc, from_dtype, njit, types

from ...programs.pieces.gate import ALL, GO, Rule
from .trace import OPERATION, Code

MORE, POINT, DRAW, GROW, STUCK, DONE = range(6)
"""Why the loop returned: it needs more of the trace, an evaluation, numbers for a worker, or room
for a larger staleness; or all workers wait for each other (STUCK); or the run is DONE."""

RANK = 16
"""Bits of a rank. A message is an integer: its number, then its sender's rank."""

NEVER = 2**62  # later than every message, iteration

# A worker, and its messages to the server (up) and back (down); seconds and bytes. `until`: the
# iteration from which on it needs new numbers; `work`: computation beside a gradient; `size`: of
# its next message, `flying`: of its last; `answer`: arrival of its answer, `transit`: of that
# answer, `begins`: when the wait for the answer became one for the network; `version`: number of
# the update that it has received; `pace`: seconds per byte; `iterations`: messages sent.
WORKER = np.dtype(
    [(name, "f8") for name in ("now", "sent_until", "waited", "communicated")]
    + [(name, "f8") for name in ("answer", "begins", "transit")]
    + [(name, "f8") for name in ("work", "size", "flying", "pace_up", "pace_down", "last_down")]
    + [(name, "i8") for name in ("bytes_up", "bytes_down", "iterations", "until", "version")]
)

# A mark that the observer has not seen yet; `moved`: whole bytes sent up to it.
SHOWN = np.dtype([("step", "i8"), ("now", "f8"), ("updates", "i8"), ("moved", "i8")])

# The server and the run. `place`: index into the trace; `pace_in`, `pace_out`: seconds per byte of
# its network card, free from `free_in`, `free_out` on; `hole`: see above, the sender's rank plus 1,
# or 0; `mark_at`: step of the next evaluation, one every `every` steps, the last at `limit`;
# `shown`: marks that wait for the observer; `ready`: workers that have been answered, of whom
# `started` have sent again; `beyond`: answers that arrive after the end; `served`: number of times
# in `begun`, the oldest at `oldest`; `held`: workers at the gate; `stale`: staleness of the
# gradient received last; `inbox`: most bytes that ever waited; `stopped`: by the observer.
STATE = np.dtype(
    [(name, "f8") for name in ("now", "deadline", "receive", "whole", "inbox")]
    + [(name, "f8") for name in ("pace_in", "free_in", "pace_out", "free_out")]
    + [(name, "i8") for name in ("place", "step", "updates", "sent", "moved", "hole")]
    + [(name, "i8") for name in ("mark_at", "every", "limit", "shown", "served", "oldest")]
    + [(name, "i8") for name in ("ready", "started", "held", "beyond", "stale", "stopped")]
)

_RULE = types.int64(types.int64[::1], types.int64)


@cache
def compiled(rule: Rule) -> Any:
    """Return a gate's rule, compiled so that the loop can call it."""
    return cfunc(_RULE, cache=True)(rule)


@njit(cache=True, nogil=True)
def _enter(when, messages, worker, at, message):  # type: ignore[no-untyped-def]
    """Put a worker's message into the tree, each node of which holds the first of two below."""
    place = (len(when) >> 1) + worker
    when[place], messages[place] = at, message
    while place > 1:  # selecting, without a branch that would be guessed wrong half of the time
        other, place = place ^ 1, place >> 1
        before, number = when[other], messages[other]
        first = (before < at) | ((before == at) & (number < message))
        at, message = before if first else at, number if first else message
        when[place], messages[place] = at, message


@njit(cache=True, nogil=True)
def _answer(state, workers, ready, downs, worker):  # type: ignore[no-untyped-def]
    to = workers[worker]
    size = state.whole
    transit = downs[worker, (to.iterations - 1) & (downs.shape[1] - 1)] + size * to.pace_down
    leaves = state.now
    if state.pace_out > 0:
        leaves = state.free_out = max(state.free_out, leaves) + size * state.pace_out
    at = max(leaves + transit, to.last_down)
    to.last_down = at
    whole = np.int64(np.rint(size))
    to.bytes_down += whole
    state.moved += whole
    to.version = state.updates
    if at <= state.deadline:
        to.answer, to.transit = at, transit
        ready[state.ready] = worker
        state.ready += 1
    else:
        state.beyond += 1


@njit(cache=True, nogil=True)
def _lengthen(state, begun, size):  # type: ignore[no-untyped-def]
    """Record that one message more than ever before waits at once."""
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
    run, trace, workers, times, ups, downs, when, messages, ready, slots, begun, ages, held, gate,
    marks, rule,
):  # fmt: skip
    """Go on with one seed; return the reason why Python must act (MORE to DONE).

    `times`, `ups`, `downs` (workers, a power of two): rings of seconds, by iteration, of computing
    and of the latencies to and from the server. `when`, `messages` (a power of two): the tree of
    messages to the server, the first at 1, the workers' in the second half. `ready`, `slots`,
    `held` (workers,): ranks. `begun` (workers + 2,): service start times of the last k + 1
    messages, k being the longest queue so far. `ages`: the histogram of staleness. `gate`: the
    state of the gate's `rule`. `marks`: room for marks.
    """
    state = run[0]
    for place in range(state.place, len(trace)):
        state.place = place
        code = trace[place].code
        if code == Code.RECEIVE:
            while state.started < state.ready:
                worker = ready[state.started]
                me = workers[worker]
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
                whole = np.int64(np.rint(size))
                me.bytes_up += whole
                state.moved += whole
                me.iterations = iteration + 1
                state.sent += 1
                _enter(when, messages, worker, at, state.sent << RANK | worker)
                if state.hole == worker + 1:
                    state.hole = 0
                state.started += 1
            state.ready = state.started = 0
            if state.stopped:
                return DONE
            if state.hole:
                _enter(when, messages, state.hole - 1, np.inf, np.int64(NEVER))
                state.hole = 0
            at, worker = when[1], messages[1] & ((1 << RANK) - 1)
            if at == np.inf:
                return DONE if state.beyond else STUCK
            if at > state.deadline:
                return DONE
            stale = state.updates - workers[worker].version
            if stale >= len(ages):
                return GROW
            state.hole = worker + 1
            size = workers[worker].flying
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
            slots[trace[place].slot] = worker
        elif code == Code.WORK:
            state.now += trace[place].seconds
        elif code == Code.SEND:
            _answer(state, workers, ready, downs, slots[trace[place].slot])
        elif code == Code.MARK:
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
        elif code == Code.GATE:
            worker = slots[trace[place].slot]
            follows = rule(gate, worker)
            held[state.held] = worker
            first = 0 if follows == ALL else state.held + (follows != GO)
            for each in range(first, state.held + 1):
                _answer(state, workers, ready, downs, held[each])
            state.held = first
        else:  # DISCARD
            state.step -= 1
            ages[state.stale] -= 1
    return MORE


# without numba's dispatch on types, which takes four times as long
follow: Any = _follow.get_overload(_FOLLOW)
