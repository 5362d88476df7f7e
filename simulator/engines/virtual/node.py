"""The vocabulary in simulated time.

Each node carries its own clock (`now`), ahead of SimPy's: computing, working and sending only move
that clock. Only what others can observe is ordered: collectives by one SimPy event each, messages
by their time of arrival. A message for a node that waits for this very sender needs no order: its
outcome is settled the moment it is sent. All of this is exact.
"""

import sys
import types
from collections import deque
from collections.abc import Coroutine, Generator, Iterator, Sequence
from heapq import heappush
from math import inf, nan
from typing import TYPE_CHECKING, Any

from paceline.simulator.engines import payloads
from paceline.simulator.engines.collective import Collective, GradientPiece
from paceline.simulator.engines.node import EngineNode
from paceline.simulator.errors import ProgramError
from paceline.simulator.network.closed_form import MessageRoute
from paceline.simulator.objectives.objective import GradientSource
from paceline.simulator.programs.effects import ANY, Handle, Payload, Vector
from paceline.simulator.results.run import Kind

if TYPE_CHECKING:
    from paceline.simulator.engines.virtual.simulation import Simulation

Message = tuple[float, int, MessageRoute, float, int, Payload]
"""When it arrives, its number, its route, how long it is on its way, who sent it, what it holds.

In this order messages sort by their time of arrival, then in the order they were sent.
"""

NEVER = sys.maxsize


class VirtualNode(EngineNode):
    """One node of a `Simulation`.

    One class for workers and the server, because attributes are read faster where code always
    meets the same class. `now`: its clock; `step`: gradients computed (by the server: received);
    `x`: the parameters it marked last; `period`: steps between its last two collectives; `sought`:
    the rank it waits to hear from, if any; `waited` and `communicated`: seconds it stood still for
    others, and for the network; `updates`: its marks.
    """

    __slots__ = (
        "_ages",
        "_begun",
        "_box",
        "_busy",
        "_durations",
        "_gradient",
        "_handle",
        "_heard",
        "_loss_and_gradient",
        "_mark_at",
        "_met_at",
        "_network_since",
        "_pause_at",
        "_paused_at",
        "_receive_seconds",
        "_routes",
        "_sent_until",
        "_since",
        "_spans",
        "_stale",
        "_stopped",
        "alarm",
        "communicated",
        "coroutine",
        "period",
        "resume",
        "sought",
        "updates",
        "waited",
        "x",
    )  # fmt: skip

    def __init__(self, run: "Simulation", rank: int) -> None:
        self._run, self.rank = run, rank
        self.workers = self.server = run.workers
        self.start = self.x = run.objective.start
        self.apply_seconds = run.scenario.server.apply
        self.parameters = run.scenario.model.parameters
        self.bytes_per_parameter = run.scenario.model.bytes_per_parameter
        self.seed(run.seed)
        self.now = self.waited = self.communicated = self._since = self._sent_until = 0.0
        self._network_since = 0.0  # when its last wait turned into communicating
        self.step = self.updates = self._collectives = self._met_at = self._paused_at = 0
        self.period = nan
        self.sought: int | None = None
        self._handle: Handle = None  # the collective it waits in, or the gradient it computes
        self.alarm = inf  # when SimPy will look after its gradient next
        self._heard = NEVER  # messages since it began a gradient that others may average into
        self._stale = 0  # of the gradient received last
        self._ages = run.staleness
        self._begun = deque([0.0], 1)  # when it began to serve its last messages: as many as ever
        # waited at once, and one
        self._box: deque[Message] = deque()
        self._routes: list[Any] = [None] * (run.workers + 1)  # Route, once there is one
        self._spans = run.spans
        self._mark_at = self._pause_at = NEVER
        self._stopped = False  # whether it has seen the run to its end
        self._receive_seconds = 0.0
        self._busy = int(Kind.COMPUTE)

    def compute_with(self, durations: Iterator[float], source: GradientSource) -> None:
        """Make it a worker: give it its compute times and its gradients."""
        self._durations = durations
        self._gradient, self._loss_and_gradient = source.gradient, source.loss_and_gradient

    def serve(self, receive_seconds: float) -> None:
        """Make it the server: a message costs it time."""
        self._receive_seconds = receive_seconds
        self._pause_at = 0  # it has no data
        self._busy = int(Kind.SERVE)
        for rank in range(self.workers):
            self._route(rank)

    def execute(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Give the node its program."""
        self.coroutine, self.resume = coroutine, coroutine.send

    def watch(self, every: int) -> None:
        """Show this node's marks to the observer, from step `every` on.

        A worker then never runs far ahead of others, but where the observer sees every mark.
        """
        self._mark_at = every
        if self._pause_at and every:
            self._pause_at = every

    # Messages

    def send(self, to: int, value: Payload) -> None:
        """Put a message on its way."""
        run = self._run
        route = self._routes[to] or self._route(to)
        transit = route.whole_transit
        if transit is not None and type(value) is complex:
            at = self.now + transit
            route.bytes += run.whole
        else:
            at, transit = route.send(self.now, run.meter(value))
        if at < route.last:  # noqa: PLR1730 - five times as fast; messages keep their order
            at = route.last
        route.last = self._sent_until = at
        route.version = self.updates
        if self._spans is not None:
            self._spans.sent(self.rank, to, self.now)
        node = route.node
        if (
            node.sought == self.rank
            and not route.flying
            and route.arrives is None
            and at <= run.deadline
            and at < inf
        ):
            node.sought = None
            run.ready.append((node, (at, 0, route, transit, self.rank, value)))
        elif at < inf:
            route.flying += 1
            run.sent = number = run.sent + 1
            heappush(run.flights, (at, number, route, transit, self.rank, value))

    def _route(self, to: int) -> MessageRoute:
        run = self._run
        route: MessageRoute = run.traffic.route(self.rank, to)
        self._routes[to] = route
        route.node = run.nodes[to]
        if self.rank == self.server:
            route.leave_through(run.card_out)
        elif to == self.server:
            route.arrives = run.card_in
        return route

    def keep(self, message: Message) -> None:
        """Keep a message that has arrived until it is asked for."""
        self._box.append(message)

    @types.coroutine
    def receive(self, source: int = ANY) -> Generator[None, Message, tuple[int, Payload]]:
        """Take the first message of `source` that has arrived, or wait for it."""
        if self._stopped:
            yield  # for ever
        message = self._pick(source) if self._box else None
        if message is None:
            self.sought = source
            message = yield
        at, _, _, transit, sender, value = message
        serves = self.rank == self.server
        if at > self.now:
            if serves and self._spans is None:
                self.now = at
            else:
                sending = self._sent_until - self.now
                self._stand(at - transit - (sending if sending > 0 else 0), at)
        elif serves and self.now > self._run.deadline:
            self._run.late = True
            yield  # for ever: its turn comes after the end
        if self._spans is not None:
            self._spans.taken(sender, self.rank, self.now)
        if serves:
            begun = self._begun
            begun.append(self.now)
            if at < begun[0]:
                self._lengthen(value)
            self._stale = stale = self.updates - self._routes[sender].version
            self._ages[stale] += 1
            self.step += 1
            self.now += self._receive_seconds
        else:
            self._heard += 1
        return sender, value

    @types.coroutine
    def receive_before(
        self, handle: Handle, source: int = ANY
    ) -> Generator[None, Message | None, tuple[int, Payload] | None]:
        """Compute until a message comes, or the gradient is done; what comes then is too late."""
        if self._heard == NEVER and self._run.nodes[-1].rank != self.server:
            self._heard = 0
        message = self._pick(source) if self._box else None
        if message is None:
            self.sought, self._handle = source, handle
            if handle.done < inf:
                self._run.wake(self, handle)
            message = yield
            self.sought = self._handle = None
        if message is not None and message[0] < handle.done:
            at, _, _, _, sender, value = message
            if at > self.now:  # noqa: PLR1730
                self.now = at
            if self._spans is not None:
                self._spans.taken(sender, self.rank, self.now)
            self._heard += 1
            return sender, value
        if message is not None:
            self._box.appendleft(message)
        return None

    @property
    def gradient_under_way(self) -> GradientPiece | None:
        """What it computes, in `receive_before`."""
        return self._handle if type(self._handle) is GradientPiece else None

    @property
    def gossips(self) -> bool:
        """Whether others' messages reach it while it computes."""
        return self._heard < NEVER

    def discard(self) -> None:
        """Take the gradient received last out of the count."""
        self.step -= 1
        self._ages[self._stale] -= 1

    def _lengthen(self, value: Payload) -> None:
        """Note that one message more than ever before waited at once."""
        run = self._run
        run.inbox_bytes = len(self._begun) * run.meter(value)
        self._begun = deque([*self._begun, 0.0], len(self._begun) + 1)
        self._begun.rotate(1)

    @types.coroutine
    def request(self, to: int, value: Payload) -> Generator[None, Message, Payload]:
        """Send, and wait for the answer."""
        self.send(to, value)
        message = self._pick(to) if self._box else None
        if message is None:
            self.sought = to
            message = yield
        at, _, _, transit, _, answer = message
        if at > self.now:
            self._stand(at - transit - (self._sent_until - self.now), at)
        if self._spans is not None:
            self._spans.taken(to, self.rank, self.now)
        return answer

    def _pick(self, source: int) -> Message | None:
        for message in self._box:
            if source in (ANY, message[4]):
                self._box.remove(message)
                return message
        return None

    # Time

    def work(self, seconds: float) -> None:
        """Move this node's clock on."""
        self.now += seconds

    def clock(self) -> float:
        """This node's clock."""
        return self.now

    def mark(self, x: Vector) -> None:
        """Note the parameters; show them to the observer when an evaluation is due."""
        self.x = x
        self.updates += 1
        if self.step >= self._mark_at:
            self._run.guard.keep(x)
            self._mark_at = self._run.observer.see(self)
            if self._run.observer.complete:
                self._stopped = True
                self._run.stop_at(self.now)

    def _stand(self, begins: float, done: float) -> None:
        """Stand still until `done`: for others up to `begins`, then for the network."""
        now = self.now
        if begins < now:  # noqa: PLR1730 - five times as fast
            begins = now
        self.waited += begins - now
        self.communicated += done - begins
        if self._spans is not None:
            self._spans.add(self.rank, self._busy, self._since, now, begins, done, self.step)
        self.now = self._since = done
        self._network_since = begins

    def finish(self, end: float) -> None:
        """Account for the time up to `end`, where the run was cut off; nothing after it counts."""
        if self.now < end < inf:
            if type(self._handle) is GradientPiece:
                self.now = end
            elif self._handle is not None and not self._handle.missing:
                if self._spans is not None:
                    self._spans.met(self._handle.last, self.rank, self.now)
                self._stand(min(self._handle.begins, end), end)
            elif self._handle is not None or self.sought is not None:
                self._stand(end, end)
        beyond = self._since - end
        if beyond > 0:  # it stood still for an answer that came after the end
            network = min(beyond, self._since - self._network_since)
            self.communicated -= network
            self.waited -= beyond - network
        now = self.now = min(self.now, end)
        if self._spans is not None:
            self._spans.add(self.rank, self._busy, self._since, now, now, now, self.step)

    @property
    def busy(self) -> float:
        """Seconds it did not stand still."""
        return self.now - self.waited - self.communicated

    # Computing

    async def gradient(self, x: Vector) -> Vector:
        """One draw of compute time, and the gradient: the hot path, hence not through `_step`."""
        step = self.step
        if step >= self._pause_at:
            await self._pause()
        self.step = step + 1
        self.now += next(self._durations)
        compute = self._gradient  # CPython 3.11 looks a slot up faster than it calls it
        return compute(x)

    async def loss_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """One draw of compute time, the loss and the gradient."""
        self.now += await self._step()
        return self._loss_and_gradient(x)

    async def start_backward(self, x: Vector, pieces: int) -> Sequence[Handle]:
        """One draw of compute time, over whose backward part the pieces are freed evenly.

        After the last step they never are, so that a node may go on answering others.
        """
        if self._heard < NEVER:
            self._ages[self._heard] += 1
            self._heard = 0
        run = self._run
        if self.step >= run.limit and self.rank != self.server:
            if not (run.program.gossips or any(self._routes)):  # nobody waits for its answers
                await self._pause()
            run.over = True
            return [GradientPiece(None, inf)] * pieces
        duration = await self._step()
        forward = run.scenario.cluster.forward_share
        return [
            GradientPiece(part, self.now + duration * (forward + (1 - forward) * (i + 1) / pieces))
            for i, part in enumerate(payloads.cut(self._gradient(x), pieces))
        ]

    async def _step(self) -> float:
        """Count one step; return how long it takes."""
        if self.step >= self._pause_at:
            await self._pause()
        self.step += 1
        return next(self._durations)

    @types.coroutine
    def _pause(self) -> Generator[None, None, None]:
        """Stop at the end of the run; else, where nothing else does, bound the skew of the nodes.

        A worker that has met the others since the last pause is not far ahead of them; one that
        has not waits for SimPy's clock.
        """
        run = self._run
        if self.rank == self.server:
            raise ProgramError("the server has no data to compute gradients on")
        if self.step >= run.limit:
            run.over = True
            yield  # for ever
        alone = self._met_at <= self._paused_at or self.workers == 1
        self._paused_at = self.step
        self._pause_at = min(self.step + run.observer.every, run.limit)
        if alone:
            run.release_at(self.now, [self])
            yield

    # Collectives

    def _next(self, kind: str) -> Collective:
        """This node's next collective."""
        if self.rank == self.server:
            raise ProgramError("the server takes part in no collective")
        if self.step > self._met_at:
            self.period, self._met_at = self.step - self._met_at, self.step
        return super()._next(kind)

    @types.coroutine
    def wait(self, handle: Handle) -> Generator[None, None, Any]:
        """Wait for the others (wait), then for the network (communicate)."""
        if handle.done is None:
            self._handle = handle
            handle.waiting.append(self)
            yield
            self._handle = None
        if handle.done > self.now:
            if type(handle) is GradientPiece:
                if handle.done == inf:
                    yield  # for ever: the run is over
                self.now = handle.done
            elif handle.done > self._run.deadline or handle.done == inf:
                self._handle = handle
                yield  # for ever
            else:
                if self._spans is not None:
                    self._spans.met(handle.last, self.rank, self.now)
                self._stand(handle.begins, handle.done)
        in_time = self.now <= self._run.deadline
        if type(handle) is Collective and in_time and not handle.chained:
            self._ages[self.step - handle.joined[self.rank]] += 1
        return handle.collect(self.rank)
