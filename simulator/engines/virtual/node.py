"""Run a program's effects in simulated time: a node of the reference engine.

Strategy. Each node carries its own clock (`now`), which runs ahead of SimPy's: computing, working
and sending only add to it, so that a step costs one addition and no event. SimPy orders only what
other nodes can observe:

- a collective is one event, at the time of its result, that resumes all nodes waiting for it;
- messages are a heap in order of arrival, emptied up to SimPy's next event (`Simulation.release`);
- a message to a node that waits for this very sender skips the heap: no other message can overtake
  it, so that its receiver may go on at once.

Invariants. Running ahead is exact: it changes no number. `now` never decreases while the program
runs, except where its `Outages` abandon a step; `finish` cuts it back to the end of the run.
Compute time is not counted but is the rest of `now` (`busy`), so that a worker's seconds always add
up. A coroutine that must never go on yields and is never resumed. `_pause` bounds how far a node
runs ahead of the others.

Reasons. One SimPy event per step would take most of the time: tests/lab/bench/parts.py compares
with models written that way. Without it, most time goes into `gradient`, `wait`, `block`, `send`
and `receive`. They read slots instead of properties, and use `if` instead of `max`; a comment marks
each such place. A node that is always up has no `outages`; without slowdown it has no
`computing`. There is one class for all nodes because CPython reads its slots faster; the branch
costs little.

State of a `VirtualNode` (times in seconds by its clock `now`):

- `step`: gradients computed, or received by the server; `updates`: calls of `mark`; `x`: the
  parameters marked last; `period`: steps between its last two collectives.
- `waited`, `communicated`: blocked on other nodes, and on the network; `busy_since`: end of its
  last wait, where its span of work begins; `_network_since`: when its last wait turned from other
  nodes to the network; `sent_until`: arrival of the message sent last.
- `mailbox`: messages that arrived and are not yet received; `awaited_rank`: the sender it waits
  for; `handle`: the collective it waits for, or the gradient it computes; `wakeup_at`: when SimPy
  next checks that gradient; `_messages_heard`: received since it began, or `NEVER`.
- `_pause_at`, `_paused_at`: steps of its next and last pause; `_mark_at`: step from which a mark
  goes to the observer; `_joined_step`: step at which it last joined a collective.
- `stopped`: its mark has ended the run, or it is down for good; `outages`: its crashes and what
  they cost, None if it is always up; `computing`: durations of work, None: as drawn.

After a change run tests/engines (test_virtual, test_conformance and test_batched
compare engines to the last bit or to 1e-9), then `make bench`.
"""

import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from heapq import heappush
from itertools import islice
from math import inf, nan
from typing import Any

from ...errors import ProgramError
from ...network.closed_form import MessageRoute
from ...objectives.objective import GradientSource
from ...programs.effects import ANY, Handle, Payload, Phase, Pieces, Vector
from ...programs.pieces.transform import Identity
from ...results.run import Kind
from .. import payloads
from ..collective import TIME_TOLERANCE, Collective, GradientPiece, Timer
from ..node import SeededNode, introduce
from ..observer import NEVER
from .outages import Outages

Message = tuple[float, int, MessageRoute, float, int, Payload]
"""Arrival (s), serial number, route, transit (s), the sender's rank, payload.

So tuples sort by time of arrival, and equal times in the order of sending.
"""


class VirtualNode(SeededNode):
    """One node of a `Simulation`; the module's table describes its state."""

    __slots__ = (
        "_busy_kind", "_gradient", "_in_order", "_joined_step", "_last_sender",
        "_loss_and_gradient", "_mark_at", "_messages_heard", "_network_since", "_pause_at",
        "_paused_at", "_pieces", "_receive_seconds", "_run", "_staleness", "awaited_rank",
        "busy_since", "collectives", "communicated", "computing", "coroutine", "durations",
        "handle", "mailbox", "now", "outages", "period", "resume", "routes", "sent_until", "spans",
        "step", "stopped", "updates", "waited", "wakeup_at", "x",
    )  # fmt: skip
    coroutine: Coroutine[Any, Any, None]
    resume: Callable[[Any], Any]

    def __init__(self, run: Any, rank: int) -> None:
        introduce(self, run.scenario, run.objective.start)
        self.seed(run.seed)
        self._run, self.rank = run, rank
        self.now, self.period = 0.0, nan
        self.step = self.collectives = self._joined_step = 0
        self.x = self.start
        self.waited = self.communicated = self.busy_since = self.sent_until = 0.0
        self._network_since = 0.0
        self.updates = self._paused_at = 0
        self.awaited_rank: int | None = None
        self.handle: Handle = None
        self.wakeup_at = inf
        self._messages_heard = NEVER
        self._last_sender = 0
        self._staleness = run.staleness
        self._in_order = (
            run.program.pooled and not run.program.gossips
        )  # steps end in order of time
        self.mailbox: deque[Message] = deque()
        self.routes: list[Any] = [None] * (run.workers + 1)
        self.spans = run.spans
        self._mark_at = self._pause_at = NEVER
        self.stopped = False
        self.outages: Outages | None = None
        self._pieces: Sequence[GradientPiece] = ()  # of the gradient under way
        self.computing: Any = None  # has `takes`, `backward` and `freed`
        self._receive_seconds = 0.0
        self._busy_kind = int(Kind.COMPUTE)

    def compute_with(self, durations: Iterator[float], source: GradientSource) -> None:
        """Make the node a worker with these compute times (s) and this gradient source."""
        self.durations = durations
        self._gradient, self._loss_and_gradient = source.gradient, source.loss_and_gradient

    def serve(self, receive_seconds: float) -> None:
        """Make the node the server, which spends `receive_seconds` on each message."""
        self._receive_seconds = receive_seconds
        self._pause_at = 0  # a gradient then calls `_pause`, which refuses: the server has no data
        self._busy_kind = int(Kind.SERVE)
        for rank in range(self.workers):
            self._route(rank)

    def replace_source(self, *source: Any) -> tuple[Any, ...]:
        """Replace the functions of its gradient source; return the previous ones."""
        before = self._gradient, self._loss_and_gradient
        self._gradient, self._loss_and_gradient = source
        return before

    def watch(self, every: int) -> None:
        """Report this node's marks to the observer, from step `every` on (0: every mark).

        With an interval a worker also pauses after that many steps, to stay close to others.
        """
        self._mark_at = every
        if self._pause_at and every:
            self._pause_at = every

    # Messages

    def send(self, to: int, value: Payload) -> None:
        """Send a message; the clock does not move."""
        run, outages = self._run, self.outages
        if outages is not None and not outages.send():
            return
        route: Any = self.routes[to] or self._route(to)
        transit = route.whole_transit
        if transit is not None and type(value) is complex:
            at = self.now + transit
            route.bytes += run.whole_bytes
        elif route.shared:
            route.version = self.updates
            route.start(self, value)
            return
        else:
            at, transit = route.send(self.now, run.meter(value))
        if at < route.last:  # noqa: PLR1730 - five times as fast; no message overtakes another
            at = route.last
        route.last = self.sent_until = at
        if outages is not None:
            self.sent_until -= route.delay
            if run.recovery.chosen and self.rank != self.server:
                at, value = self._report(route, at, value)
        route.version = self.updates
        node = route.node
        if (
            node.awaited_rank == self.rank
            and not route.in_flight
            and route.receiving_nic is None
            and at <= run.deadline
            and at < inf
        ):
            node.awaited_rank = None
            run.ready.append((node, (at, 0, route, transit, self.rank, value)))
        elif at < inf:
            route.in_flight += 1
            run.sent = number = run.sent + 1
            heappush(run.undelivered, (at, number, route, transit, self.rank, value))

    def _report(self, route: MessageRoute, arrival: float, value: Payload) -> tuple[float, Payload]:
        """Return arrival (s) and content of a report, empty if the client drops out."""
        run, outages, began = self._run, self.outages, self.now
        assert outages is not None
        fall = outages.drops_out(arrival)
        if fall == inf:
            return arrival, value
        unsent = min(1.0, (arrival - fall) / (arrival - began)) if arrival > began else 1.0
        route.bytes -= round(unsent * run.meter(value))
        self.sent_until = fall
        route.last = fall + run.recovery.timeout
        return route.last, ()

    def _route(self, to: int) -> MessageRoute:
        run = self._run
        route: MessageRoute = run.transport.route(self.rank, to)
        self.routes[to] = route
        route.node = run.nodes[to]
        return route

    @types.coroutine
    def receive(self, source: int = ANY) -> Generator[None, Message, tuple[int, Payload]]:
        """Return sender and payload of the first message of `source`; wait if needed.

        The server then counts a step, and the staleness of the gradient: its updates since its last
        answer to this worker.
        """
        if self.stopped:
            yield  # for ever
        message = self._take_arrived(source) if self.mailbox else None
        if message is None:
            self.awaited_rank = source
            message = yield
        at, _, _, transit, sender, value = message
        now, serves = self.now, self.rank == self.server
        if at > now:
            if serves and self.spans is None:
                self.now = at
            else:
                sending = self.sent_until - now
                self.block(at - transit - (sending if sending > 0 else 0), at, source)
        elif serves and now > self._run.deadline:
            self._run.work_left = True
            yield  # never resumed: it would be served after the end
        if serves:
            self._last_sender, stale = sender, self.updates - self.routes[sender].version
            self._staleness[stale] += 1
            self.step += 1
            self.now += self._receive_seconds
        else:
            self._messages_heard += 1
        return sender, value

    @types.coroutine
    def receive_before(
        self, handle: Handle, source: int = ANY
    ) -> Generator[None, Message | None, tuple[int, Payload] | None]:
        """Return the next message that arrives before `handle` is done; None if none does.

        A message that arrives at the end of the gradient or timer, or later, stays in the mailbox.
        """
        if self.stopped:
            yield  # for ever
        if handle.done is None:
            yield from handle.free()
        if self._messages_heard == NEVER and self._run.nodes[-1].rank != self.server:
            self._messages_heard = 0
        message = self._take_arrived(source) if self.mailbox else None
        if message is None:
            self.awaited_rank, self.handle = source, handle
            if handle.done < inf:
                self._run.wake(self, handle)
            message = yield
            self.awaited_rank = self.handle = None
        if message is not None and message[0] < handle.done and self.rank == self.server:
            self.mailbox.appendleft(message)
            return (yield from self.receive(source))
        if message is not None and message[0] < handle.done:
            at, _, _, _, sender, value = message
            if at > self.now:  # noqa: PLR1730
                self.now = at
            self._messages_heard += 1
            return sender, value
        if message is not None:
            self.mailbox.appendleft(message)
        return None

    @property
    def gossips(self) -> bool:
        """Whether messages can reach this node while it computes."""
        return self._messages_heard < NEVER

    def count(self, gradients: int) -> None:
        """Count the gradients of the last received message; with 0, discard its staleness."""
        self.step += gradients - 1
        if gradients:
            return
        run, sender = self._run, self._last_sender
        self._staleness[self.updates - self.routes[sender].version] -= 1
        if run.program.selects and run.outages:
            run.outages[sender].waste()

    @types.coroutine
    def request(self, to: int, value: Payload) -> Generator[None, Message, Payload]:
        """Send a message and return the answer: `send` and `receive` in one."""
        self.send(to, value)
        message = self._take_arrived(to) if self.mailbox else None
        if message is None:
            self.awaited_rank = to
            message = yield
        at, _, _, transit, _, answer = message
        if at > self.now:
            self.block(at - transit - (self.sent_until - self.now), at, to)
        return answer

    def _take_arrived(self, source: int) -> Message | None:
        mailbox = self.mailbox
        for message in mailbox:
            if source == message[4] or source == ANY:
                mailbox.remove(message)
                return message
        return None

    # Time

    def work(self, seconds: float) -> None:
        """Keep the device busy with work, which delays a gradient under way."""
        for piece in self._pieces if seconds else ():
            if piece.done is None:
                piece.work += seconds
                break
            if piece.done > self.now:
                piece.done += seconds
        self.spend(seconds)

    def spend(self, seconds: float) -> None:
        """Advance this node's clock by `seconds`, while its device keeps computing."""
        if self.outages is None:
            self.now += seconds
        else:
            self.outages.work(seconds)

    def clock(self) -> float:
        """Return the wall-clock time, which includes repeats of lost work."""
        wall_clock: float = self._run.availability.wall_clock(self.now)
        return wall_clock

    def mark(self, x: Vector) -> None:
        """Count an update; report the parameters if an evaluation is due."""
        outages = self.outages
        if outages is not None:
            if outages.gone_since is not None:
                return
            if outages.down_since is not None and self._run.parked is None:
                x = None
        self.x = x
        self.updates += 1
        observer = self._run.observer
        if self.step >= self._mark_at and not (
            observer.by_rounds and self.step > self._joined_step
        ):
            view = self.rank, self.now, self.period, self.updates, x
            payloads.protect(x)
            self._mark_at = observer.see(self.step, view)
            if observer.complete:
                self.stopped = True
                self._run.stop_at(self.now)
        if outages is not None:
            outages.marked()

    def block(self, begins: float, done: float, on: Any = None) -> None:
        """Block until `done`: for other nodes until `begins`, then for the network.

        `on`: the handle or rank that it waits for, whose outages are counted separately.
        """
        if self.outages is not None and on is not None:
            self.outages.block(begins, done, on)
            return
        now = self.now
        if begins < now:  # noqa: PLR1730 - five times as fast
            begins = now
        self.waited += begins - now
        self.communicated += done - begins
        if self.spans is not None:
            self.spans.add(
                self.rank, self._busy_kind, self.busy_since, now, begins, done, self.step
            )
        self.now = self.busy_since = done
        self._network_since = begins

    def finish(self, end: float) -> None:
        """Account for the time up to `end` (s), at which the run is cut off.

        A blocked node has waited, or communicated, up to `end`; if a node's clock is ahead, the
        excess is subtracted from its last activity.
        """
        if self.outages is not None:
            self.outages.cut(end)
        if self.now < end < inf:
            if type(self.handle) is GradientPiece:
                self.now = end
            elif self.handle is not None and not self.handle.missing:
                self.block(min(self.handle.begins, end), end, self.handle)
            elif self.handle is not None or self.awaited_rank is not None:
                sending = min(self.sent_until, end) - self.now if self._run.recovery.chosen else 0.0
                on = self.handle if self.awaited_rank is None else self.awaited_rank
                self.block(end - max(sending, 0.0), end, on)  # the client may never be chosen again
        beyond = self.busy_since - end
        if beyond > 0:  # the node was blocked beyond the end
            network = min(beyond, self.busy_since - self._network_since)
            self.communicated -= network
            self.waited -= beyond - network
        now = self.now = min(self.now, end)
        self.end_busy_span(now)
        if self.outages is not None:
            self.outages.correct()

    def end_busy_span(self, at: float) -> None:
        """End the span of the node's current work at `at` (s)."""
        if self.spans is not None:
            self.spans.add(self.rank, self._busy_kind, self.busy_since, at, at, at, self.step)
        self.busy_since = at

    @property
    def busy(self) -> float:
        """Seconds in which the node was not blocked, without lost work."""
        if self.outages is not None:
            return self.outages.useful
        return self.now - self.waited - self.communicated

    # Computing

    async def gradient(self, x: Vector) -> Vector:
        """Compute for one drawn duration; return the gradient. Inlines `_step` for speed."""
        step = self.step
        if step >= self._pause_at:
            await self._pause()
        self.step = step + 1
        if self.computing is None:
            self.now += next(self.durations)
        else:
            self.now += await self.computing.takes(next(self.durations))
        compute = self._gradient  # CPython 3.11 reads a slot faster than it calls a property
        g = compute(x)
        if self._in_order:
            await self.catch_up()
        return g

    @property
    def resting(self) -> bool:  # type: ignore[override]
        """Whether this node is a client that is down or not in the round."""
        sampled, outages = self._run.recovery.sampled, self.outages
        return sampled is not None and outages is not None and outages.down_since is not None

    def absentees(self) -> set[int]:
        """Return the absent clients, if clients are chosen by availability."""
        ranks: set[int] = self._run.absentees.at(self.now)
        return ranks

    def leap(self, transform: Any) -> Any:
        """Return an effect that takes a phase's steps at once, or None if none can."""
        run, rule = self._run, self._run.recovery.sampled
        if (run.strides and self.computing is self.outages) or run.parked is not None:
            return self._leap
        # Plain steps without gradients leave the parameters of a client that is not selected.
        plain = run.idles and isinstance(transform, Identity)
        idle = plain and rule.sits_out(self.rank, self.collectives, self.now)
        return self._leap if idle else None

    async def _leap(self, x: Vector, state: Any, k: int, phase: Phase) -> tuple[Vector, Any, int]:
        """Take the steps of a phase, stopping at each mark that is due."""
        last = k + phase.until(k) - 1
        while True:
            await self.gradient(x)
            more = min(last - k, self._mark_at - self.step, self._pause_at - self.step)
            if more > 0:
                more = await self._stride(more)
                self.updates += more
                k += more
            if k >= last:
                return x, state, last
            self.mark(x)
            k += 1

    async def _stride(self, most: int) -> int:
        """Take up to `most` steps, or until one may be disturbed; return how many."""
        outages = self.outages
        until = inf if outages is None else outages.undisturbed_until()
        for done, work in enumerate(islice(self.durations, most), 1):
            if outages is not None and self.now + work >= until:
                self.step += done
                self.now += await outages.takes(work)
                return done
            self.now += work
        self.step += most
        return most

    def park(self, collective: Collective) -> None:
        """End the wait for a collective, and take no part in the next ones."""
        outages, done = self.outages, collective.reaches(self.rank)
        assert outages is not None
        if done > self.now:
            self.block(min(collective.begins, done), done, collective)
        outages.collected(collective, self.collectives)
        outages.park()

    def skip_to(self, collective: Collective, step: int) -> None:
        """Adopt the other workers' state at the end of a collective, after missing some."""
        self.handle, collective.joined[self.rank] = collective, step
        self.step = self._joined_step = step
        self.collectives = collective.index + 1

    async def loss_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """Compute for one drawn duration; return the loss and the gradient."""
        self.now += await self._step(backward=False)
        return self._loss_and_gradient(x)

    async def start_backward(self, x: Vector, pieces: Pieces) -> Sequence[Handle]:
        """Start one drawn compute time; its backward part frees the pieces evenly.

        After the last step they are never freed, so that the node can still answer messages.
        """
        if self.outages is not None:
            self.outages.forget_after(self.now)
        if self._messages_heard < NEVER:
            self._staleness[self._messages_heard] += 1
            self._messages_heard = 0
        run = self._run
        if self.step >= run.observer.limit and self.rank != self.server:
            if not (run.program.gossips or any(self.routes)):  # no node waits for its answers
                await self._pause()
            run.over = True
            return [GradientPiece(None, inf)] * len(payloads.progress(pieces)[0])
        duration = await self._step()
        forward, (done, total) = run.scenario.cluster.unfreed_share, payloads.progress(pieces)
        freed = [
            GradientPiece(part, self.now + duration * (forward + (1 - forward) * far / total))
            for far, part in zip(done, payloads.cut(self._gradient(x), pieces), strict=True)
        ]
        self._pieces = freed if self.computing is None else self.computing.freed(freed)
        return self._pieces

    async def _step(self, *, backward: bool = True) -> float:
        """Count one step; return its seconds, or those of its pieces (`backward`)."""
        if self.step >= self._pause_at:
            await self._pause()
        self.step += 1
        work = next(self.durations)
        computing = self.computing
        if computing is None:
            return work
        duration: float = await (computing.backward(work) if backward else computing.takes(work))
        return duration

    @types.coroutine
    def _pause(self) -> Generator[None, None, None]:
        """Stop at the last step; before it, wait for others unless it just met them."""
        run = self._run
        if self.rank == self.server:
            raise ProgramError("the server has no data to compute gradients on")
        if self.step >= run.observer.limit:
            run.over = True
            if run.observer.by_rounds and self.now <= run.deadline:
                run.observer.complete = True  # no round can end without this node
                run.stop_at(self.now)
            yield  # for ever
        alone = self._joined_step <= self._paused_at or self.workers == 1
        # parked clients soon join a mean, and chosen clients soon report
        alone = alone and run.parked is None and not run.recovery.chosen
        self._paused_at = self.step
        self._pause_at = min(self.step + run.observer.every, run.observer.limit)
        if alone:
            run.release_at(self.now, [self])
            yield

    @types.coroutine
    def catch_up(self) -> Generator[None, None, None]:
        """Wait until no other node is behind this one's clock; for ever once the run is over."""
        if self.stopped:
            yield
        if self.now > self._run.agenda.env.now:
            self._run.release_at(self.now, [self])
            yield

    # Collectives

    def start_mean(self, value: Payload) -> Handle:
        """Join the next collective, a mean."""
        return self._start("mean", value)

    def start_gather(self, value: Payload) -> Handle:
        """Join the next collective, a gather."""
        return self._start("gather", value)

    def _start(self, kind: str, value: Payload) -> Collective:
        collective = self._next(kind)
        self._run.enter(collective, self.rank, self.step, value, self.now)
        return collective

    def start_mean_after(self, handle: Handle, value: Callable[[Payload], Payload]) -> Handle:
        """Join the next mean with `value(result)`, as soon as `handle` is done."""
        following = self._next("mean")
        handle.chained = True
        if handle.done is None:
            handle.followers.append((self.rank, self.step, following, value))
        else:
            at = max(self.now, handle.reaches(self.rank))
            self._run.enter(following, self.rank, self.step, value(handle.result), at)
        return following

    async def finished(self, handle: Handle) -> bool:
        """Poll with all workers whether `handle` is done; the last worker's time decides."""
        question = handle.question()
        question.join(self.rank, self.step, self.now, self.now)
        if not question.missing:
            self._run.answer(handle, question)
        return bool(await self.wait(question))

    def timer(self, seconds: float) -> Handle:
        """Start a timer on this node's clock."""
        return Timer(None, self.now + seconds)

    def _next(self, kind: str) -> Collective:
        """Return this node's next collective, of the others' kind; record its period."""
        step, index, run = self.step, self.collectives, self._run
        if self.rank == self.server:
            raise ProgramError("the server starts a collective; only workers may")
        if step > self._joined_step:
            self.period, self._joined_step = step - self._joined_step, step
        self.collectives = index + 1
        collective: Collective | None = run.open_collectives.get(index)
        if collective is None:
            collective = Collective(index, kind, self.workers)
            run.open_collectives[index] = collective
        elif kind != collective.kind:
            raise ProgramError(
                f"worker {self.rank} starts a {kind} where others started a {collective.kind}: "
                "every worker must start the same collectives in the same order"
            )
        return collective

    def cut(self, vector: Vector, pieces: Pieces) -> Sequence[Vector]:
        """Cut a vector into nearly equal pieces, the last entries first."""
        return payloads.cut(vector, pieces)

    def join(self, pieces: Sequence[Vector]) -> Vector:
        """Join pieces that `cut` made."""
        return payloads.join(pieces)

    async def arrived(self, handle: Handle) -> bool:
        """Return whether `handle` is done by this node's clock, once no node is behind."""
        if handle.done is None or self.stopped:
            await self.catch_up()
        return handle.done is not None and handle.reaches(self.rank) <= self.now * (
            1 + TIME_TOLERANCE
        )

    @types.coroutine
    def wait(self, handle: Handle) -> Generator[None, None, Any]:
        """Block until `handle` is done; return its result.

        A handle that is done after the deadline never resumes the node.
        """
        if handle.done is None and type(handle) is GradientPiece:
            yield from handle.free()
        if handle.done is None:
            self.handle = handle
            handle.waiting.append(self)
            yield
            handle, self.handle = self.handle, None  # a later one, if parked meanwhile
        done = handle.done
        if handle.ahead is not None:
            done -= handle.ahead[self.rank]
        if done > self.now:
            if type(handle) is GradientPiece:
                if done == inf:
                    yield  # never resumed: the run is over
                self.now = done
            elif done > self._run.deadline or done == inf:
                self.handle = handle
                yield  # for ever
            else:
                begins = handle.begins
                self.block(begins if begins < done else done, done, handle)
        if type(handle) is Collective:
            if not handle.chained and self.now <= self._run.deadline:
                self._staleness[self.step - handle.joined[self.rank]] += 1
            if self.outages is not None:
                self.outages.collected(handle, self.collectives)
        return handle.result
