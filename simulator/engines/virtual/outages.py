"""Account for one node's outages: the cost of crashes, and of missed means.

A crashed worker loses its computing since it last shared a result (`shared`). If the others wait
for it, it computes that again. If they go on without it (`goes_on_without` in `recovery`), or a
rule excludes it (`sits_out`), its program continues with zero gradients and without weight in any
mean. So it has the others' parameters when it returns.

Clocks run ahead, so a node handles the crashes of its calendar before the others reach their time.
If the run then ends earlier, or the step is abandoned, `forget_after` removes later entries of
`_lost_compute`, `recovery_seconds`, `_booked` and `_recent_waits`. Invariant: computed + waited +
stalled + communicated + down == `node.now`; lost time is part of computed. A node is `stalled`
while it waits for something that a crash stopped. After a change run tests/engines/test_crashes.py.
"""

import types
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from itertools import pairwise, repeat
from math import inf, nan
from typing import Any

import numpy as np

from ...cluster.failures import PATIENCE, Calendar, Down
from ...cluster.membership import OUT
from ...cluster.speed import Speed
from ...programs.effects import Vector
from ...results.run import Kind
from ..collective import Collective, GradientPiece, Why

_DOWN, _STALLED = int(Kind.DOWN), int(Kind.STALLED)
KINDS: dict[Why | None, str] = {None: "down", Why.ABSENT: "absent", Why.UNSELECTED: "unselected"}
RECENT_WAITS = 256  # waits to store; earlier waits cannot lie beyond the end


def _zero_gradient(x: Vector) -> Vector:
    """Return the gradient of a worker that is down."""
    return 0.0 * x


def _zero_loss_and_gradient(x: Vector) -> tuple[float, Vector]:
    return nan, 0.0 * x


class Outages:
    """The outages of one node, which its `VirtualNode` consults whenever time passes.

    `calendar`: when it is down; never, if all nodes go back to a checkpoint. `speed`: its speed, if
    that changes with time. `down_since`: since when it is down while its program runs on, `why`
    (None: a crash), and whether that was `abrupt`, without notice to the others; `gone_since`:
    since when it is down for good; `joined_at`: when it last joined a collective; `shared`: seconds
    that it had computed when it last shared a result; `recovery_seconds`: until it had regained its
    work, by time of crash; `_step_began`: when its last step began.
    """

    def __init__(self, run: Any, node: Any, calendar: Calendar, speed: Speed | None) -> None:
        self._run, self._node = run, node
        self.calendar, self._speed = calendar, speed
        self.down_since: float | None = None
        self.gone_since: float | None = None
        self.why: Why | None = None
        self.abrupt = True
        # its compute times while it is not selected, after one that is drawn already, if any
        self._idle: tuple[float | None, Iterator[float]] | None = None
        self._round = -1  # collectives joined when it last began a step
        self._sources: tuple[Any, ...] = ()  # its real gradients, in a round it drops out of
        self._reports = 0  # reports sent or missed, if a server chooses the client
        self._sat_out: dict[float, Why | None] = {}  # by start; None: a crash
        self._passed_over = False  # whether it is not selected, in the outage under way
        self.joined_at = self._step_began = self._crashed = 0.0
        self.shared = self.down = 0.0  # seconds that the node was down, or saved a checkpoint
        self._sent = 0.0  # seconds of computing in its last message
        self._booked: list[Down] = []
        self.stalled = 0.0
        self._recent_waits: deque[tuple[Kind, Sequence[Down]]] = deque(maxlen=RECENT_WAITS)
        self.recovery_seconds: dict[float, float] = {}
        self._lost_compute: dict[float, float] = {}  # seconds of computing, by when they were lost
        self._save_at = run.availability.save_every

    @property
    def computed(self) -> float:
        """Seconds spent computing, lost or not."""
        node = self._node
        up: float = node.now - node.waited - node.communicated
        return up - self.stalled - self._down_until(node.now)

    @property
    def useful(self) -> float:
        """Seconds of computing that were not lost."""
        return self.computed - self.lost

    @property
    def lost(self) -> float:
        """Seconds of computing whose result was lost before the node shared it."""
        return sum(self._lost_compute.values())

    def lose(self, at: float, seconds: float) -> None:
        """Count seconds of computing as lost, by a crash at `at`."""
        if seconds > 0:
            self._lost_compute[at] = self._lost_compute.get(at, 0.0) + seconds

    def waste(self) -> None:
        """Count the computing in its last message as lost."""
        self.lose(self._node.now, self._sent)

    def _down_until(self, time: float) -> float:
        """Return the seconds down before `time`, ignoring recorded outages after it."""
        seconds = self.down
        for start, end in reversed(self._booked):
            if end <= time:
                break
            seconds -= end - max(start, time)
        return seconds

    def forget_after(self, time: float) -> None:
        """Remove the entries beyond a time (s): outages, losses and recoveries."""
        self.down = self._down_until(time)
        while self._booked and self._booked[-1][1] > time:
            start, _ = self._booked.pop()
            if start < time:
                self._booked.append((start, time))
        for record in (self._lost_compute, self.recovery_seconds):
            for at in [at for at in record if at > time]:
                del record[at]
        self._node.busy_since = min(self._node.busy_since, time)
        self.shared = min(self.shared, self.computed)

    # Computing

    async def takes(self, work: float) -> float:
        """Return the duration (s) of `work` s at full speed, with outages and repeats."""
        now = self._step_began = self._node.now
        sampled = self._run.recovery.sampled is not None
        # a client that drops out of a round misses all its steps
        resumed = sampled and self._round == self._node.collectives
        why = self._sits_out(now)
        if self.down_since is not None:
            if why and not resumed and self._idle is None and sampled:
                self._rest(work)
            if why or resumed or self.away(now):
                return self._stay_out(work, why)
            work = self._rejoin(work)
        elif self._run.recovery.by_server and not (resumed or why) and self._node.collectives:
            self._download(now)
        if not self._run.program.averages:
            self.shared = self.computed  # every step is saved, because no other node has a copy
        late: float = self._node.now - now  # time to download the model
        if sampled and not (resumed or why):
            self._skip_unused()
        return late + await self._through_crashes(work, why)

    backward = takes

    def _stay_out(self, work: float, why: Why | None) -> float:
        """Stay out for one more step; return the seconds that it takes."""
        now = self._node.now
        passed_over = why is Why.UNSELECTED or self._unselected()
        if passed_over != self._passed_over:
            self._sit_out(now, Why.UNSELECTED if passed_over else why)
        return self._seconds_for(now, work)

    def _skip_unused(self) -> None:
        """Skip the gradients of a round from which the client drops out: none is used."""
        node = self._node
        if self._sources:
            node.replace_source(*self._sources)
        unused = self._run.recovery.part(node.rank, node.collectives) < 1
        zero = _zero_gradient, _zero_loss_and_gradient
        self._sources = node.replace_source(*zero) if unused else ()

    def undisturbed_until(self) -> float:
        """Return the time (s) until which steps take their drawn durations.

        This holds under a server, and within a round of its clients, also of those at rest.
        """
        node, members = self._node, self._run.availability.members
        sampled = self._run.recovery.sampled is not None and self._round == node.collectives
        if self._speed is not None or self.down_since is not None:
            return inf if sampled and self._speed is None else 0.0
        crash = self.calendar.next(node.now)[0]
        return crash if members is None else min(crash, members.notice_time(node.rank, node.now))

    def away(self, now: float) -> bool:
        """Return whether the node stays out of a round that begins."""
        return self.down_since is not None and self.calendar.next(now)[0] <= now

    def _sits_out(self, now: float) -> Why | None:
        """Return why a rule excludes the node from its next collective, if it is at rest."""
        node, recovery = self._node, self._run.recovery
        begun, self._round = self._round, node.collectives
        midway = begun == self._round and self.down_since is None and recovery.can_shrink
        if midway:
            return None
        why: Why | None = recovery.sits_out(node.rank, node.collectives, now)
        return why

    def _unselected(self) -> bool:
        node, rule = self._node, self._run.recovery.sampled
        return rule is not None and rule.sits_out(node.rank, node.collectives, node.now)

    def _sit_out(self, at: float, why: Why | None) -> None:
        """Record why the node is out from a time on (s), which ends a crash's recovery."""
        self._sat_out[at], self._passed_over = why, why == Why.UNSELECTED
        if self.down_since is not None and self.why is None:
            self.recovery_seconds.setdefault(self._crashed, at - self._crashed)

    def _seconds_for(self, start: float, work: float) -> float:
        """Return the duration (s) of `work` seconds at full speed from `start` on."""
        return work if self._speed is None else self._speed.after(start, work) - start

    async def _through_crashes(self, work: float, why: Why | None) -> float:
        """Return the seconds to compute `work` s with repeats; `why`: why it sits out."""
        run = self._run
        begun: float = self._node.now
        start = begun
        unshared = self.computed - self.shared
        for _ in range(PATIENCE):
            crash, back = self.calendar.next(start)
            takes = self._seconds_for(start, work)
            abrupt = why is None
            if not abrupt:
                crash = start
                if why == Why.ABSENT:
                    back = run.availability.members.calendars[self._node.rank].next(start)[1]
            if crash >= start + takes:
                return start + takes - begun if start > begun else takes
            since, crash = crash, max(crash, start)
            if abrupt and run.availability.absent(self._node.rank, crash):
                why = Why.ABSENT
            self._node.end_busy_span(crash)
            self.lose(crash, crash - start + unshared)
            self.shared += crash - start + unshared
            if why is not None:
                self._sit_out(crash, Why.UNSELECTED if not abrupt and self._unselected() else why)
            if run.recovery.goes_on_without(self._node, crash, back, why):
                self._go_down(since, crash, why, abrupt)
                if not abrupt and run.recovery.sampled is not None:
                    self._rest(work)
                return crash - begun
            if back == inf:
                await self._go_down_for_good(crash)
            self._be_down(crash, back)
            if why == Why.ABSENT and run.program.server and run.availability.members.pay:
                await self._fetch(back)
            if why is None:
                self.recovery_seconds[crash] = back - start + unshared
            work, unshared, start, why = work + unshared, 0.0, back, None
        run.never(f"a computation of {run.name_of(self._node.rank)}")
        await self._go_down_for_good(start)
        return inf

    @types.coroutine
    def _fetch(self, back: float) -> Generator[None, None, None]:
        """Come back at `back` with the server's parameters, for the gradient under way."""
        run, node = self._run, self._node
        node.now = back
        run.release_at(back, [node])
        yield
        server = run.nodes[-1]
        server.routes[node.rank].version = server.updates  # it has the parameters
        sources, fresh = node.replace_source(None, None), server.x

        def once(index: int) -> Any:
            node.replace_source(*sources)
            return sources[index](fresh)

        node.replace_source(lambda x: once(0), lambda x: once(1))

    def freed(self, pieces: Sequence[GradientPiece]) -> Sequence[GradientPiece]:
        """Return a gradient's pieces, freed evenly over its time, crashes included."""
        return pieces

    def work(self, seconds: float) -> None:
        """Advance the clock by `seconds` of work; a server's crash restarts the work."""
        node = self._node
        if node.rank != node.server or self.gone_since is not None:
            node.now += seconds
            return
        for _ in range(PATIENCE):
            crash, back = self.calendar.next(node.now)
            if crash > node.now and crash >= node.now + seconds:
                node.now += seconds
                return
            crash = max(crash, node.now)
            node.end_busy_span(crash)
            if back == inf:
                self._gone(crash)
                return
            self._be_down(crash, back)
            node.now = back
        self._run.never("an update of the server")
        self._gone(node.now)

    # Collectives

    def joined(self, collective: Collective, at: float) -> float:
        """Record a join; return the time (s) that counts: 0 if the node is down."""
        self.joined_at = at
        if self.down_since is not None:
            return 0.0
        collective.arrivals[self._node.rank] = at
        collective.computed[self._node.rank] = self.computed
        return at

    def settle(self, collective: Collective, left_out: bool) -> None:
        """Count the node's contribution to a collective as shared, or lost if left out."""
        computed = collective.computed[self._node.rank]
        if left_out:
            self.lose(collective.arrivals[self._node.rank], computed - self.shared)
        self.shared = max(self.shared, computed)

    def collected(self, handle: Collective, collectives: int) -> None:
        """Return to the time of a result, if the node's clock is ahead of it.

        A worker that was left out abandons its step then. Under a quorum or sampling it abandons
        all work since its last wait, unless it has joined other collectives since.
        """
        node, done = self._node, handle.done
        if done is None or self._falls(handle, done):
            return
        if done < node.now == self.joined_at:
            if self.down_since is not None:
                node.now = max(self.down_since, done)
            elif handle.index == collectives - 1 and node.rank in handle.left_out:
                phase = self._run.recovery.abandons_phases
                self._abandon(max(done, node.busy_since if phase else self._step_began))

    def _falls(self, handle: Any, done: float) -> bool:
        """Apply a client's drop-out from a round that ends at `done`, if it dropped out."""
        node, fall = self._node, handle.falls.get(self._node.rank, inf)
        if fall >= done or self.down_since is not None or node.now != self.joined_at:
            return False
        if fall < node.now:
            self._abandon(fall)
        self._block(node.now, fall, ())
        if node.now < done:
            self._be_down(node.now, done)
            node.now = done
        return True

    def _abandon(self, done: float) -> None:
        """Abandon all work since `done` (s); the unshared computing before it is lost."""
        seconds, computed = self._lost_compute.pop(self._node.now, 0.0), self.computed
        self.forget_after(done)
        self._node.now = done
        self.lose(done, seconds - (computed - self.computed))
        self.shared = self.computed

    # Messages and marks

    def drops_out(self, arrival: float) -> float:
        """Return when the client drops out of a report due at `arrival` (s), or inf.

        The client's clock goes back to that time.
        """
        node, self._reports = self._node, self._reports + 1
        fall: float = self._run.recovery.falls(node.rank, self._reports, arrival)
        self._run.recovery.drop_outs += fall <= self._run.deadline
        if fall < node.now:
            self._sent -= node.now - fall
            self._abandon(fall)
        return fall

    def send(self) -> bool:
        """Record that the node shares its work; return False if it is down for good."""
        if self.gone_since is None:
            self._sent, self.shared = self.computed - self.shared, self.computed
        return self.gone_since is None

    def marked(self) -> None:
        """Save a checkpoint when one is due."""
        node, availability = self._node, self._run.availability
        if node.step >= self._save_at:
            self._save_at += availability.save_every
            node.end_busy_span(node.now)
            done = node.now + availability.save_cost
            self._be_down(node.now, done)
            node.now = done
            availability.save(node)

    # Crashes

    def _go_down(self, since: float, crash: float, why: Why | None, abrupt: bool) -> None:
        """Go on without weight from `crash` on; `since`: when it went down."""
        self.down_since, self.why, self.abrupt = crash, why, abrupt
        self._passed_over = self._sat_out.get(crash) == Why.UNSELECTED
        self._crashed = since
        self._own_source = self._node.replace_source(_zero_gradient, _zero_loss_and_gradient)

    def park(self) -> None:
        """Take no part from now on, because the client is not selected."""
        if self.down_since is None:
            self._go_down(self._node.now, self._node.now, Why.UNSELECTED, False)
        if not self._passed_over:
            self._sit_out(self._node.now, Why.UNSELECTED)
        if self._idle is None:
            self._idle, self._node.durations = (None, self._node.durations), repeat(0.0)

    def _rest(self, work: float) -> None:
        """Draw no compute times until the client is selected; `work`: already drawn (s)."""
        node, usual = self._node, self._run.scenario.team.mean_compute[self._node.rank]
        self._idle = work, node.durations
        node.durations = repeat(usual if 0 < usual < inf else work)

    def _rejoin(self, work: float) -> float:
        """Come back with the others' parameters; return the work of the new step (s)."""
        assert self.down_since is not None
        now = self._node.now
        if self.why is None:
            self.recovery_seconds.setdefault(self._crashed, now - self._crashed)
        self._be_down(self.down_since, now)
        self.down_since = None
        self._node.replace_source(*self._own_source)
        idle, self._idle = self._idle, None
        if idle is not None:
            drawn, self._node.durations = idle
            work = next(self._node.durations) if drawn is None else drawn
        if idle is not None or self._run.recovery.by_server:
            self._download(now)
        self.shared = self.computed
        return work

    def _download(self, now: float) -> None:
        """Download the model as a selected client."""
        self._block_until(now, now + self._run.recovery.download(self._node.rank), ())

    def _gone(self, crash: float) -> None:
        self.gone_since = crash
        self._node.stopped = True

    @types.coroutine
    def _go_down_for_good(self, crash: float) -> Generator[None, None, None]:
        """Go down at `crash` (s) for good."""
        self._node.now = crash
        self._gone(crash)
        yield

    def _be_down(self, start: float, end: float) -> None:
        """Record an outage, unless it is recorded already."""
        if self._booked and end <= self._booked[-1][1]:
            return
        node = self._node
        self.down += end - start
        self._booked.append((start, end))
        if node.spans is not None:
            node.spans.add(node.rank, _DOWN, start, end, end, end, node.step)
        node.busy_since = end

    # Waiting

    def block(self, begins: float, done: float, on: Any) -> None:
        """Block the node as `VirtualNode.block` does, through all outages.

        If a server receives each report separately, the node first sends its report, then waits.
        """
        node, run = self._node, self._run
        if self.down_since is not None:
            node.now = done
            return
        begins = max(begins, node.now)
        if type(on) is Collective and self._falls(on, done):
            return
        stalls = run.recovery.stalls(on, node.now, begins) if run.calendars else ()
        if type(on) is Collective and on.reports:
            self._block(node.now, min(max(on.reports[node.rank], node.now), done), ())
            begins = done
        self._block(begins, done, stalls)

    def _block(self, begins: float, done: float, stalls: Sequence[Down]) -> None:
        """Block through the node's outages."""
        node, run = self._node, self._run
        unselected = node.rank != node.server and run.recovery.chosen
        for start, end in self.calendar.during(node.now, done):
            self._block_until(min(begins, start), start, stalls)
            self._be_down(start, end)
            node.now = end
            if unselected and start < begins:  # until it has the model, it counts as not selected
                self._sat_out |= {start: Why.UNSELECTED, begins: None}
            elif end < done and not run.availability.absent(node.rank, start):
                self.recovery_seconds[start] = end - start
        self._block_until(max(begins, node.now), done, stalls)

    def _block_until(self, begins: float, done: float, stalls: Sequence[Down]) -> None:
        """Block, and record every part, because the run may end before the last."""
        node = self._node
        waits, stops = [], []
        for start, end in stalls:
            since, until = max(start, node.now), min(end, begins)
            if since < until:
                waits.append((node.now, since))
                stops.append((since, until))
                node.block(since, since)
                self._stall(until)
        waits.append((node.now, begins))
        self._recent_waits.append((Kind.WAIT, waits))
        self._recent_waits.append((Kind.COMMUNICATE, [(begins, done)]))
        if stops:
            self._recent_waits.append((Kind.STALLED, stops))
        node.block(begins, done)

    def _stall(self, until: float) -> None:
        """Stop until a time (s) because of other nodes' crashes."""
        node = self._node
        self.stalled += until - node.now
        if node.spans is not None:
            node.spans.add(node.rank, _STALLED, node.now, until, until, until, node.step)
        node.now = node.busy_since = until

    def kinds(self) -> np.ndarray:
        """Return the seconds of its outages by kind, in the order of `membership.OUT`."""
        seconds, members = np.zeros(len(OUT)), self._run.availability.members
        times = sorted(self._sat_out)
        for start, end in self._booked:
            why: Why | None = None
            inner = times[bisect_right(times, start) : bisect_left(times, end)]
            for since, until in pairwise((start, *inner, end)):
                why = self._sat_out.get(since, why)
                kind = KINDS[why]
                if members is None:
                    seconds[OUT.index(kind)] += until - since
                else:
                    seconds += members.split(self._node.rank, since, until, kind)
        return seconds

    def was_down(self, since: float) -> bool:
        """Return whether the node has been down after a time (s), so far."""
        return bool(self._booked) and self._booked[-1][1] > since

    def cut(self, end: float) -> None:
        """Remove the entries beyond the end of the run (s)."""
        node = self._node
        since = self.gone_since if self.down_since is None else self.down_since
        if since is not None and since < end < inf:
            self._be_down(since, end)
            node.now = end
        self.forget_after(end)
        for kind, spans in self._recent_waits:
            beyond = sum(max(0.0, stop - max(start, end)) for start, stop in spans)
            if kind == Kind.WAIT:
                node.waited -= beyond
            elif kind == Kind.STALLED:
                self.stalled -= beyond
            else:
                node.communicated -= beyond

    def correct(self) -> None:
        """Remove losses beyond the computing done: a step was abandoned before its crash."""
        excess = self.lost - self.computed
        for at in sorted(self._lost_compute, reverse=True):
            if excess > 0:
                excess, self._lost_compute[at] = (
                    excess - self._lost_compute[at],
                    max(0.0, self._lost_compute[at] - excess),
                )
