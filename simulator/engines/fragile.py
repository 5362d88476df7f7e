"""Nodes that crash, and slow ones that nobody waits for.

A crashed worker loses what it has computed since it last shared something. If the others wait, it
does that again; if they go on without it, its program runs on beside theirs, at its pace but has no
weight, so that it has their parameters when it comes back.
"""

import types
from collections.abc import Generator
from math import inf, nan
from typing import TYPE_CHECKING, Any

from simulator.effects import ANY, Handle, Payload, Vector
from simulator.engines.collective import Collective
from simulator.engines.node import NEVER, Message, VirtualNode
from simulator.failures import Calendar, Down
from simulator.speed import Speed
from simulator.trace import Kind

if TYPE_CHECKING:
    from simulator.engines.recovering import RecoveringSimulation

_DOWN = int(Kind.DOWN)


def _nothing(x: Vector) -> Vector:
    """The gradient of a worker that is down."""
    return 0.0 * x


def _no_loss(x: Vector) -> tuple[float, Vector]:
    return nan, 0.0 * x


class FragileNode(VirtualNode):
    """A node that may crash.

    `calendar`: when; None where nobody crashes, or all go back to a checkpoint. `fell`: since when
    it is down while its program runs on; `gone`: since when it is down for good; `noticed`: whether
    the others know that it is down. `met`: when it last joined a mean; `shared`: seconds that it
    had computed when it last shared something; `speed`: where its own changes with time.
    """

    __slots__ = (
        "_computes", "_computes_loss", "_crashed", "_down", "_downs", "_losses", "_save_at",
        "_stood", "calendar", "fell", "gone", "met", "noticed", "shared", "speed",
    )  # fmt: skip
    _run: "RecoveringSimulation"

    def __init__(self, run: Any, rank: int) -> None:
        super().__init__(run, rank)
        self.calendar: Calendar | None = run.calendars[rank] if run.calendars else None
        self.speed: Speed | None = None
        self.fell: float | None = None
        self.gone: float | None = None
        self.noticed = True
        self.met = self._crashed = 0.0
        self.shared = self._down = self._stood = 0.0
        self._downs: list[Down] = []
        self._losses: dict[float, float] = {}  # seconds of computing, by when they were lost
        self._save_at = run.save_every or NEVER

    @property
    def computed(self) -> float:
        """Seconds spent computing, in vain or not."""
        return self.now - self.waited - self.communicated - self._down

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
            self._losses[at] = seconds  # a crash may come up twice, if a gradient is given up

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
        work = next(self._durations)
        if self.calendar is None:
            return self._takes(self.now, work)
        if self.fell is not None:
            if self.calendar.next(self.now)[0] <= self.now:
                return self._takes(self.now, work)
            self._rejoin()
        if not self._run.meets:
            self.shared = self.computed  # it saves every step, as nobody else has a copy
        return await self._endure(work, self.calendar)

    def _takes(self, start: float, work: float) -> float:
        """How long `work` seconds at full speed take from a time on."""
        return work if self.speed is None else self.speed.after(start, work) - start

    async def _endure(self, work: float, calendar: Calendar) -> float:
        """How long it takes to compute `work` seconds from now on, and what else was lost."""
        begun = start = self.now
        unshared = self.computed - self.shared
        while True:
            crash, back = calendar.next(start)
            takes = self._takes(start, work)
            if crash >= start + takes:
                return takes if start == begun else start + takes - begun
            since, crash = crash, max(crash, start)
            self._stop(crash)
            if self._run.goes_on_without(self, crash, back):
                self.lose(crash, crash - start + unshared)
                self._fall(since, crash)
                return crash - begun
            self.lose(crash, crash - start + unshared)
            if back == inf:
                await self._vanish(crash)
            self._rest(crash, back)
            self._run.recovered.append(back - crash + crash - start + unshared)
            work, unshared, start = work + unshared, 0.0, back

    @types.coroutine
    def wait(self, handle: Handle) -> Generator[None, None, Any]:
        """Wait; who is left out gives up what it computes when it hears of the result."""
        result = yield from super().wait(handle)
        done = handle.done
        if type(handle) is Collective and done is not None and done < self.now == self.met:
            if self.fell is not None:
                self.now = max(self.fell, done)
            elif self.rank in handle.late:
                self._give_up(done)
        return result

    def _give_up(self, done: float) -> None:
        """It has computed up to `done` only, in vain."""
        _, seconds = self._losses.popitem()
        self.lose(done, seconds - (self.now - done))
        self.now, self._since = done, min(self._since, done)
        self.shared = self.computed

    def work(self, seconds: float) -> None:
        """Move the clock on; a server that crashes begins anew."""
        calendar = self.calendar
        if calendar is None or self.rank != self.server or self.gone is not None:
            self.now += seconds
            return
        while True:
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
        self._run.recovered.append(self.now - self._crashed)
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
        now = self.now
        super()._stand(begins, done)
        self._stood = done
        if self.calendar is None:
            return
        begins = max(begins, now)
        for start, end in self.calendar.during(now, done):
            before = max(0.0, min(end, begins) - start)
            self.waited -= before
            self.communicated -= end - start - before
            self._rest(start, end)
            if end < done:
                self._run.recovered.append(end - start)
        self._since = done

    def finish(self, end: float) -> None:
        """Account for the time up to `end`."""
        since = self.gone if self.fell is None else self.fell
        if since is not None and since < end < inf:
            self._rest(since, end)
            self.now = end
        self._since = min(self._since, max(end, self._stood))  # up to then it stood still
        stood, network = self._since, max(end, self._network_since)
        super().finish(end)
        for start, back in self._downs:  # not as standing still, and beyond the end not at all
            self.waited += max(0.0, min(back, network) - max(start, end))
            self.communicated += max(0.0, min(back, stood) - max(start, network))
        self._down = sum(max(0.0, min(b, end) - a) for a, b in self._downs)
        self._losses = {at: seconds for at, seconds in self._losses.items() if at <= end}

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
