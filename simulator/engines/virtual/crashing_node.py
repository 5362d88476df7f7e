"""Nodes that crash, and backup workers, whose late contributions are dropped.

A crashed worker loses what it has computed since it last shared something (`shared`). If the
others wait for it, it computes that again. If they go on without it (`policy = "shrink"`), its
program runs on with gradients of zero and without weight in any mean, so that it has the others'
parameters when it comes back.

Clocks run ahead, so that a node foresees crashes of its calendar before the others come that far.
What it books beyond a time (`_lost_compute`, `recovery_seconds`, `_outages`, `_recent_waits`) is
therefore taken back by `_forget_after` where that time turns out to be the end, or the step to be
abandoned. Invariant: computed + waited + stalled + communicated + down == `now`; lost time is part
of computed. It is `stalled` while it waits for what stands still for a crash.
After a change run tests/engines/test_crashes.py.
"""

import types
from collections import deque
from collections.abc import Generator, Sequence
from math import inf, nan
from typing import TYPE_CHECKING, Any

from paceline.simulator.cluster.failures import PATIENCE, Calendar, Down
from paceline.simulator.cluster.speed import Speed
from paceline.simulator.engines.collective import Collective, GradientPiece
from paceline.simulator.engines.virtual.node import NEVER, Message, VirtualNode
from paceline.simulator.programs.effects import ANY, Handle, Payload, Vector
from paceline.simulator.results.run import Kind

if TYPE_CHECKING:
    from paceline.simulator.engines.virtual.fault_tolerance import FaultTolerantSimulation

_DOWN, _STALLED = int(Kind.DOWN), int(Kind.STALLED)
RECENT_WAITS = 256  # spans of waiting to remember; none before them can lie beyond the end


def _zero_gradient(x: Vector) -> Vector:
    """Return the gradient of a worker that is down."""
    return 0.0 * x


def _zero_loss_and_gradient(x: Vector) -> tuple[float, Vector]:
    return nan, 0.0 * x


class CrashingNode(VirtualNode):
    """A node that may crash.

    `calendar`: when it is down; None where nothing crashes, or all go back to a checkpoint.
    `down_since`: since when it is down while its program runs on; `gone_since`: since when it is
    down for good; `joined_at`: when it last joined a collective; `shared`: seconds that it had
    computed when it last shared something; `speed`: its own, where that changes with time;
    `recovery_seconds`: by time of crash, until it had regained its work; `step_began`: when its
    last step began.
    """

    __slots__ = (
        "_awaited",
        "_crashed",
        "_down_seconds",
        "_final_attempt",
        "_lost_compute",
        "_outages",
        "_own_gradient",
        "_own_loss_and_gradient",
        "_recent_waits",
        "_save_at",
        "calendar",
        "down_since",
        "gone_since",
        "joined_at",
        "recovery_seconds",
        "shared",
        "speed",
        "stalled",
        "step_began",
    )  # fmt: skip
    _run: "FaultTolerantSimulation"

    def __init__(self, run: Any, rank: int) -> None:
        super().__init__(run, rank)
        self.calendar: Calendar | None = run.calendars[rank] if run.calendars else None
        self.speed: Speed | None = None
        self.down_since: float | None = None
        self.gone_since: float | None = None
        self.joined_at = self.step_began = self._crashed = 0.0
        self.shared = self._down_seconds = 0.0
        self._final_attempt = 0.0  # seconds of its last step since the last crash in it
        self._outages: list[Down] = []
        self.stalled = 0.0
        self._awaited: Any = None  # handle or rank that it waits for
        self._recent_waits: deque[tuple[Kind, Sequence[Down]]] = deque(maxlen=RECENT_WAITS)
        self.recovery_seconds: dict[float, float] = {}
        self._lost_compute: dict[float, float] = {}  # seconds of computing, by when they were lost
        self._save_at = run.save_every or NEVER

    @property
    def computed(self) -> float:
        """Seconds spent computing, lost or not."""
        up = self.now - self.waited - self.communicated
        return up - self.stalled - self._down_until(self.now)

    @property
    def busy(self) -> float:
        """Seconds spent computing what was not lost."""
        return self.computed - self.lost

    @property
    def lost(self) -> float:
        """Seconds of computing whose result was lost before it was shared."""
        return sum(self._lost_compute.values())

    @property
    def down(self) -> float:
        """Seconds that the node was down, or saved a checkpoint."""
        return self._down_seconds

    def lose(self, at: float, seconds: float) -> None:
        """Count seconds of computing as lost, by a crash at `at`."""
        if seconds > 0:
            self._lost_compute[at] = self._lost_compute.get(at, 0.0) + seconds

    def _lose_unshared(self, at: float, seconds: float) -> None:
        """Count all that it has not shared as lost."""
        self.lose(at, seconds)
        self.shared += seconds

    def _down_until(self, time: float) -> float:
        """Return the downtime before `time` (seconds); later outages may already be booked."""
        seconds = self._down_seconds
        for start, end in reversed(self._outages):
            if end <= time:
                break
            seconds -= end - max(start, time)
        return seconds

    def _forget_after(self, time: float) -> None:
        """Take back what was booked beyond a time: outages, losses and recoveries."""
        self._down_seconds = self._down_until(time)
        while self._outages and self._outages[-1][1] > time:
            start, _ = self._outages.pop()
            if start < time:
                self._outages.append((start, time))
        for known in (self._lost_compute, self.recovery_seconds):
            for at in [at for at in known if at > time]:
                del known[at]
        self._busy_since = min(self._busy_since, time)
        self.shared = min(self.shared, self.computed)

    # Computing

    async def gradient(self, x: Vector) -> Vector:
        """Compute for one drawn duration, through crashes; return the gradient."""
        self.now += await self._step()
        return self._gradient(x)

    async def _step(self) -> float:
        """Count one step; return its duration in seconds, outages and repeated work included."""
        if self.step >= self._pause_at:
            await self._pause()
        self.step += 1
        self.step_began = self.now
        work = next(self._durations)
        if self.calendar is None:
            return self._uninterrupted(work)
        if self.down_since is not None:
            if self.calendar.next(self.now)[0] <= self.now:
                return self._uninterrupted(work)
            self._rejoin()
        if not self._run.averages:
            self.shared = self.computed  # it saves every step, as no other node has a copy
        return await self._compute_through_crashes(work, self.calendar)

    def _uninterrupted(self, work: float) -> float:
        """Return the seconds that `work` seconds at full speed take from now on, crashes aside."""
        self._final_attempt = self._seconds_for(self.now, work)
        return self._final_attempt

    def _seconds_for(self, start: float, work: float) -> float:
        """Return the seconds that `work` seconds at full speed take from a time on."""
        return work if self.speed is None else self.speed.after(start, work) - start

    async def _compute_through_crashes(self, work: float, calendar: Calendar) -> float:
        """Return the seconds until `work` seconds are computed, with all that crashes undo."""
        begun = start = self.now
        step, unshared = work, self.computed - self.shared
        for _ in range(PATIENCE):
            crash, back = calendar.next(start)
            takes = self._seconds_for(start, work)
            if crash >= start + takes:
                if start == begun:
                    self._final_attempt = takes
                    return takes
                self._final_attempt = takes * step / work if work else 0.0
                return start + takes - begun
            since, crash = crash, max(crash, start)
            self._end_busy_span(crash)
            if self._run.goes_on_without(self, crash, back):
                self._lose_unshared(crash, crash - start + unshared)
                self._go_down(since, crash)
                self._final_attempt = 0.0
                return crash - begun
            self._lose_unshared(crash, crash - start + unshared)
            if back == inf:
                await self._go_down_for_good(crash)
            self._be_down(crash, back)
            self.recovery_seconds[crash] = back - start + unshared
            work, unshared, start = work + unshared, 0.0, back
        self._run.never(f"what {self._run.name_of(self.rank)} computes")
        await self._go_down_for_good(start)
        return inf

    async def start_backward(self, x: Vector, pieces: int) -> Sequence[Handle]:
        """Start a step; if a crash interrupts it, pieces are freed when it is computed anew."""
        self._forget_after(self.now)
        started = await super().start_backward(x, pieces)
        end = started[-1].done
        whole = end - self.now
        if end == inf or self._final_attempt >= whole:
            return started
        anew = self._final_attempt / whole
        return [GradientPiece(piece.result, end - (end - piece.done) * anew) for piece in started]

    @types.coroutine
    def wait(self, handle: Handle) -> Generator[None, None, Any]:
        """Wait; a worker that is left out abandons its step when the result is there."""
        self._awaited = handle
        result = yield from super().wait(handle)
        done = handle.done
        if type(handle) is Collective and done is not None and done < self.now == self.joined_at:
            if self.down_since is not None:
                self.now = max(self.down_since, done)
            elif self.rank in handle.left_out and handle.index == self._collectives - 1:
                self._abandon_step(max(done, self.step_began))
        return result

    def _abandon_step(self, done: float) -> None:
        """Abandon the step at `done`: what it computed up to then is lost."""
        seconds, computed = self._lost_compute.pop(self.now, 0.0), self.computed
        self._forget_after(done)
        self.now = done
        self.lose(done, seconds - (computed - self.computed))
        self.shared = self.computed

    def work(self, seconds: float) -> None:
        """Advance the clock by `seconds` of work; a server that crashes meanwhile begins anew."""
        calendar = self.calendar
        if calendar is None or self.rank != self.server or self.gone_since is not None:
            self.now += seconds
            return
        for _ in range(PATIENCE):
            crash, back = calendar.next(self.now)
            if crash > self.now and crash >= self.now + seconds:
                self.now += seconds
                return
            self._end_busy_span(max(crash, self.now))
            if back == inf:
                self.gone_since = max(crash, self.now)
                return
            self._be_down(max(crash, self.now), back)
            self.now = back
        self._run.never("an update of the server")
        self.gone_since = self.now

    def mark(self, x: Vector) -> None:
        """Show the parameters, unless it is down; save a checkpoint when one is due."""
        if self.gone_since is not None:
            return
        super().mark(None if self.down_since is not None else x)
        if self.step >= self._save_at:
            self._save_at += self._run.save_every
            self._end_busy_span(self.now)
            done = self.now + self._run.save_cost
            self._be_down(self.now, done)
            self.now = done
            self._run.save(self)

    def clock(self) -> float:
        """Return the wall-clock time, which also passes while the cluster repeats lost work."""
        return self._run.wall_clock(self.now)

    # Crashes

    def _go_down(self, since: float, crash: float) -> None:
        """Go on without weight from `crash` on; `since`: when it went down, maybe long before."""
        self.down_since = crash
        self._crashed = since
        self._own_gradient, self._own_loss_and_gradient = self._gradient, self._loss_and_gradient
        self._gradient, self._loss_and_gradient = _zero_gradient, _zero_loss_and_gradient

    def _rejoin(self) -> None:
        """Come back, with the parameters of the others."""
        assert self.down_since is not None
        self.recovery_seconds[self._crashed] = self.now - self._crashed
        self._be_down(self.down_since, self.now)
        self.down_since = None
        self._gradient, self._loss_and_gradient = self._own_gradient, self._own_loss_and_gradient
        self.shared = self.computed

    @types.coroutine
    def _go_down_for_good(self, crash: float) -> Generator[None, None, None]:
        """Go down at `crash`, and never come back."""
        self.gone_since = self.now = crash
        yield

    def _end_busy_span(self, at: float) -> None:
        """End the span of what it did, at `at`."""
        if self._spans is not None:
            self._spans.add(self.rank, self._busy_kind, self._busy_since, at, at, at, self.step)
        self._busy_since = at

    def _be_down(self, start: float, end: float) -> None:
        """Book an outage, unless it is booked already."""
        if self._outages and end <= self._outages[-1][1]:
            return
        self._down_seconds += end - start
        self._outages.append((start, end))
        if self._spans is not None:
            self._spans.add(self.rank, _DOWN, start, end, end, end, self.step)
        self._busy_since = end

    def _block(self, begins: float, done: float) -> None:
        """Block as in the base class; outages meanwhile count as down."""
        if self.down_since is not None:
            self.now = done
            return
        begins = max(begins, self.now)
        stalls = self._run.stalls(self._awaited, self.now, begins) if self.calendar else ()
        for start, end in self.calendar.during(self.now, done) if self.calendar else ():
            self._block_until(min(begins, start), start, stalls)
            self._be_down(start, end)
            self.now = end
            if end < done:
                self.recovery_seconds[start] = end - start
        self._block_until(max(begins, self.now), done, stalls)

    def _block_until(self, begins: float, done: float, stalls: Sequence[Down]) -> None:
        """Block, and record all parts: the run may turn out to end before they do."""
        waits, stood = [], []
        for start, end in stalls:
            since, until = max(start, self.now), min(end, begins)
            if since < until:
                waits.append((self.now, since))
                stood.append((since, until))
                super()._block(since, since)
                self._stall(until)
        waits.append((self.now, begins))
        self._recent_waits.append((Kind.WAIT, waits))
        self._recent_waits.append((Kind.COMMUNICATE, [(begins, done)]))
        if stood:
            self._recent_waits.append((Kind.STALLED, stood))
        super()._block(begins, done)

    def _stall(self, until: float) -> None:
        """Stand still for others' crashes."""
        self.stalled += until - self.now
        if self._spans is not None:
            self._spans.add(self.rank, _STALLED, self.now, until, until, until, self.step)
        self.now = self._busy_since = until

    def finish(self, end: float) -> None:
        """Account for the time up to `end`."""
        since = self.gone_since if self.down_since is None else self.down_since
        if since is not None and since < end < inf:
            self._be_down(since, end)
            self.now = end
        self._forget_after(end)
        for kind, spans in self._recent_waits:
            beyond = sum(max(0.0, stop - max(start, end)) for start, stop in spans)
            if kind == Kind.WAIT:
                self.waited -= beyond
            elif kind == Kind.STALLED:
                self.stalled -= beyond
            else:
                self.communicated -= beyond
        if self.awaited_rank is not None:
            self._awaited = self.awaited_rank
        super().finish(end)
        excess = self.lost - self.computed  # of a step abandoned before its crash
        for at in sorted(self._lost_compute, reverse=True):
            if excess > 0:
                excess, self._lost_compute[at] = (
                    excess - self._lost_compute[at],
                    max(0.0, self._lost_compute[at] - excess),
                )

    @property
    def meets(self) -> bool:
        """Whether it waits in a collective."""
        return isinstance(self._handle, Collective)

    def was_down(self, since: float) -> bool:
        """Whether it has been down after a time, so far."""
        return bool(self._outages) and self._outages[-1][1] > since

    # Messages

    def send(self, to: int, value: Payload) -> None:
        """Send a message, unless down for good."""
        if self.gone_since is None:
            self.shared = self.computed
            super().send(to, value)
            if self.calendar is not None:
                self._sent_until -= self._routes[to].delay

    @types.coroutine
    def receive(self, source: int = ANY) -> Generator[None, Message, tuple[int, Payload]]:
        """Receive a message, unless down for good."""
        if self.gone_since is not None:
            yield
        self._awaited = source
        return (yield from super().receive(source))

    @types.coroutine
    def request(self, to: int, value: Payload) -> Generator[None, Message, Payload]:
        """Send a message and return the answer."""
        self._awaited = to
        return (yield from super().request(to, value))
