"""Nodes that crash, and slow ones that nobody waits for.

A crashed worker loses what it has computed since it last shared something. If the others wait, it
does that again; if they go on without it, its program runs on beside theirs, at its pace but has no
weight, so that it has their parameters when it comes back.
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

_DOWN = int(Kind.DOWN)
LATELY = 256  # stretches of standing still, of which none before can be beyond the end


def _nothing(x: Vector) -> Vector:
    """The gradient of a worker that is down."""
    return 0.0 * x


def _no_loss(x: Vector) -> tuple[float, Vector]:
    return nan, 0.0 * x


class CrashingNode(VirtualNode):
    """A node that may crash.

    `calendar`: when; None where nobody crashes, or all go back to a checkpoint. `fell`: since when
    it is down while its program runs on; `gone`: since when it is down for good; `noticed`: whether
    the others know that it is down. `met`: when it last joined a mean; `shared`: seconds that it
    had computed when it last shared something; `speed`: where its own changes with time;
    `recovered`: seconds until it was where it had been, by when it crashed; `stepped`: when it
    began its last step.
    """

    __slots__ = (
        "_attempt", "_computes", "_computes_loss", "_crashed", "_down", "_downs", "_losses",
        "_save_at", "_stood", "calendar", "fell", "gone", "met", "noticed", "recovered", "shared",
        "speed", "stepped",
    )  # fmt: skip
    _run: "FaultTolerantSimulation"

    def __init__(self, run: Any, rank: int) -> None:
        super().__init__(run, rank)
        self.calendar: Calendar | None = run.calendars[rank] if run.calendars else None
        self.speed: Speed | None = None
        self.fell: float | None = None
        self.gone: float | None = None
        self.noticed = True
        self.met = self.stepped = self._crashed = 0.0
        self.shared = self._down = 0.0
        self._attempt = 0.0  # what its last step took when nothing came between any more
        self._downs: list[Down] = []
        self._stood: deque[tuple[bool, float, float]] = deque(maxlen=LATELY)
        self.recovered: dict[float, float] = {}
        self._losses: dict[float, float] = {}  # seconds of computing, by when they were lost
        self._save_at = run.save_every or NEVER

    @property
    def computed(self) -> float:
        """Seconds spent computing, in vain or not."""
        return self.now - self.waited - self.communicated - self._down_until(self.now)

    @property
    def busy(self) -> float:
        """Seconds spent computing what counted."""
        return self.computed - self.lost

    @property
    def lost(self) -> float:
        """Seconds of computing whose result nobody ever had."""
        return sum(self._losses.values())

    @property
    def down(self) -> float:
        """Seconds it was down, or saved a checkpoint."""
        return self._down

    def lose(self, at: float, seconds: float) -> None:
        """Give up what it has computed."""
        if seconds > 0:
            self._losses[at] = self._losses.get(at, 0.0) + seconds

    def _lose_all(self, at: float, seconds: float) -> None:
        """Give up what it has not shared."""
        self.lose(at, seconds)
        self.shared += seconds

    def _down_until(self, time: float) -> float:
        """Seconds that it was down before a time; it may have foreseen more."""
        seconds = self._down
        for start, end in reversed(self._downs):
            if end <= time:
                break
            seconds -= end - max(start, time)
        return seconds

    def _forget(self, time: float) -> None:
        """Give up what it was to do after a time, with the crashes that it foresaw then."""
        self._down = self._down_until(time)
        while self._downs and self._downs[-1][1] > time:
            start, _ = self._downs.pop()
            if start < time:
                self._downs.append((start, time))
        for known in (self._losses, self.recovered):
            for at in [at for at in known if at > time]:
                del known[at]
        self._since = min(self._since, time)
        self.shared = min(self.shared, self.computed)

    # Computing

    async def gradient(self, x: Vector) -> Vector:
        """One draw of compute time, crashes, and the gradient."""
        self.now += await self._step()
        return self._gradient(x)

    async def _step(self) -> float:
        """Count one step; return how long it takes, with all that comes between."""
        if self.step >= self._pause_at:
            await self._pause()
        self.step += 1
        self.stepped = self.now
        work = next(self._durations)
        if self.calendar is None:
            return self._alone(work)
        if self.fell is not None:
            if self.calendar.next(self.now)[0] <= self.now:
                return self._alone(work)
            self._rejoin()
        if not self._run.meets:
            self.shared = self.computed  # it saves every step, as nobody else has a copy
        return await self._endure(work, self.calendar)

    def _alone(self, work: float) -> float:
        """How long `work` seconds at full speed take from now on, if nothing comes between."""
        self._attempt = self._takes(self.now, work)
        return self._attempt

    def _takes(self, start: float, work: float) -> float:
        """How long `work` seconds at full speed take from a time on."""
        return work if self.speed is None else self.speed.after(start, work) - start

    async def _endure(self, work: float, calendar: Calendar) -> float:
        """How long it takes to compute `work` seconds from now on, and what else was lost."""
        begun = start = self.now
        step, unshared = work, self.computed - self.shared
        for _ in range(PATIENCE):
            crash, back = calendar.next(start)
            takes = self._takes(start, work)
            if crash >= start + takes:
                if start == begun:
                    self._attempt = takes
                    return takes
                self._attempt = takes * step / work if work else 0.0
                return start + takes - begun
            since, crash = crash, max(crash, start)
            self._stop(crash)
            if self._run.goes_on_without(self, crash, back):
                self._lose_all(crash, crash - start + unshared)
                self._fall(since, crash)
                self._attempt = 0.0
                return crash - begun
            self._lose_all(crash, crash - start + unshared)
            if back == inf:
                await self._vanish(crash)
            self._rest(crash, back)
            self.recovered[crash] = back - start + unshared
            work, unshared, start = work + unshared, 0.0, back
        self._run.never(f"what {self._run.called(self.rank)} computes")
        await self._vanish(start)
        return inf

    async def start_backward(self, x: Vector, pieces: int) -> Sequence[Handle]:
        """As everywhere; a step that was interrupted frees its pieces when it is done anew."""
        self._forget(self.now)
        started = await super().start_backward(x, pieces)
        end = started[-1].done
        whole = end - self.now
        if end == inf or self._attempt >= whole:
            return started
        anew = self._attempt / whole
        return [GradientPiece(piece.result, end - (end - piece.done) * anew) for piece in started]

    @types.coroutine
    def wait(self, handle: Handle) -> Generator[None, None, Any]:
        """Wait; who is left out gives up what it computes when it hears of the result."""
        result = yield from super().wait(handle)
        done = handle.done
        if type(handle) is Collective and done is not None and done < self.now == self.met:
            if self.fell is not None:
                self.now = max(self.fell, done)
            elif self.rank in handle.late and handle.index == self._collectives - 1:
                self._give_up(max(done, self.stepped))
        return result

    def _give_up(self, done: float) -> None:
        """It has computed up to `done` only, in vain."""
        seconds, computed = self._losses.pop(self.now, 0.0), self.computed
        self._forget(done)
        self.now = done
        self.lose(done, seconds - (computed - self.computed))
        self.shared = self.computed

    def work(self, seconds: float) -> None:
        """Move the clock on; a server that crashes begins anew."""
        calendar = self.calendar
        if calendar is None or self.rank != self.server or self.gone is not None:
            self.now += seconds
            return
        for _ in range(PATIENCE):
            crash, back = calendar.next(self.now)
            if crash > self.now and crash >= self.now + seconds:
                self.now += seconds
                return
            self._stop(max(crash, self.now))
            if back == inf:
                self.gone = max(crash, self.now)
                return
            self._rest(max(crash, self.now), back)
            self.now = back
        self._run.never("an update of the server")
        self.gone = self.now

    def mark(self, x: Vector) -> None:
        """Show the parameters, unless it is down; save a checkpoint when one is due."""
        if self.gone is not None:
            return
        super().mark(None if self.fell is not None else x)
        if self.step >= self._save_at:
            self._save_at += self._run.save_every
            self._stop(self.now)
            done = self.now + self._run.save_cost
            self._rest(self.now, done)
            self.now = done
            self._run.save(self)

    def clock(self) -> float:
        """The clock on the wall."""
        return self._run.wall(self.now)

    # Crashes

    def _fall(self, since: float, crash: float) -> None:
        """Go on without weight. (It may have been down for a while when it comes to matter.)"""
        self.fell, self.noticed = crash, False
        self._crashed = since
        self._computes, self._computes_loss = self._gradient, self._loss_and_gradient
        self._gradient, self._loss_and_gradient = _nothing, _no_loss

    def _rejoin(self) -> None:
        """Be back, with everybody's parameters."""
        assert self.fell is not None
        self.recovered[self._crashed] = self.now - self._crashed
        self._rest(self.fell, self.now)
        self.fell = None
        self._gradient, self._loss_and_gradient = self._computes, self._computes_loss
        self.shared = self.computed

    @types.coroutine
    def _vanish(self, crash: float) -> Generator[None, None, None]:
        """Never come back."""
        self.gone = self.now = crash
        yield

    def _stop(self, at: float) -> None:
        """Note what it did up to a time."""
        if self._spans is not None:
            self._spans.add(self.rank, self._busy, self._since, at, at, at, self.step)
        self._since = at

    def _rest(self, start: float, end: float) -> None:
        """Be down, if that is not known already."""
        if self._downs and end <= self._downs[-1][1]:
            return
        self._down += end - start
        self._downs.append((start, end))
        if self._spans is not None:
            self._spans.add(self.rank, _DOWN, start, end, end, end, self.step)
        self._since = end

    def _stand(self, begins: float, done: float) -> None:
        """Stand still for others and for the network, or be down meanwhile."""
        if self.fell is not None:
            self.now = done
            return
        begins = max(begins, self.now)
        for start, end in self.calendar.during(self.now, done) if self.calendar else ():
            self._stand_until(min(begins, start), start)
            self._rest(start, end)
            self.now = end
            if end < done:
                self.recovered[start] = end - start
        self._stand_until(max(begins, self.now), done)

    def _stand_until(self, begins: float, done: float) -> None:
        """Stand still, and remember it, as the end of the run may turn out to come before."""
        self._stood.extend(((True, self.now, begins), (False, begins, done)))
        super()._stand(begins, done)

    def finish(self, end: float) -> None:
        """Account for the time up to `end`."""
        since = self.gone if self.fell is None else self.fell
        if since is not None and since < end < inf:
            self._rest(since, end)
            self.now = end
        self._forget(end)
        for waiting, start, stop in self._stood:
            beyond = max(0.0, stop - max(start, end))
            if waiting:
                self.waited -= beyond
            else:
                self.communicated -= beyond
        super().finish(end)
        excess = self.lost - self.computed  # of a gradient that was given up before its crash
        for at in sorted(self._losses, reverse=True):
            if excess > 0:
                excess, self._losses[at] = (
                    excess - self._losses[at],
                    max(0.0, self._losses[at] - excess),
                )

    # Messages

    def send(self, to: int, value: Payload) -> None:
        """Send, if it is still there."""
        if self.gone is None:
            self.shared = self.computed
            super().send(to, value)

    @types.coroutine
    def receive(self, source: int = ANY) -> Generator[None, Message, tuple[int, Payload]]:
        """Receive, if it is still there."""
        if self.gone is not None:
            yield
        return (yield from super().receive(source))
