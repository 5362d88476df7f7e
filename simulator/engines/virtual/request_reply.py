"""A parameter server in a time-only run: workers that ask it, and its answers.

The same as `Simulation`, sum by sum and tie by tie, in two thirds of its time, for programs that do
nothing else: whoever asks stands still until it is answered, and all messages weigh the same. So
the server takes requests by itself, in the order they arrive, and an answer lets its worker go on
at once, up to its next request; SimPy starts the nodes and ends the run. Whatever else a program
does hands the run over to `Simulation`.
"""

import types
from collections.abc import Generator, Iterator
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, Never

from paceline.simulator.engines.unsupported import Unsupported
from paceline.simulator.engines.virtual.node import NEVER, VirtualNode
from paceline.simulator.engines.virtual.simulation import Simulation
from paceline.simulator.network.closed_form import ClosedForm, MessageRoute, Traffic
from paceline.simulator.objectives import build
from paceline.simulator.programs import Program
from paceline.simulator.programs.effects import ANY, NOTHING, Payload, Vector
from paceline.simulator.scenario.scenario import Scenario

Request = tuple[float, int, Any, Payload]
"""When it arrives, its number, the worker that asks, what it sends. The end of the run is in line
with the others, as a request of nobody's (None)."""


def takes(program: Program, scenario: Scenario) -> bool:
    """Whether a run may consist of requests and answers."""
    return (
        program.server is not None
        and build.dimension_of(scenario.objective) is None
        and not scenario.server.bandwidth
    )


class RequestReplyNode(VirtualNode):
    """A node that hands over whatever it is not asked for in an exchange."""

    __slots__ = ()
    _run: "RequestReply"

    def _refuse(self, *_: object, **__: object) -> Never:
        raise Unsupported("its program does more than ask and answer")

    start_mean = start_gather = start_mean_after = finished = wait = _refuse
    start_backward = loss_and_gradient = receive_before = discard = _refuse


class AskingWorker(RequestReplyNode):
    """A worker: whenever the server runs, it waits for an answer.

    `asked`: how often it has; `unheard`: whether its last answer comes after the end; `seen`: the
    server's updates when it answered, -1 while it is to; `seconds_down`: that an answer takes.
    """

    __slots__ = (
        "_down", "_inbox", "_numbers", "_seconds_up", "_up", "asked", "seconds_down", "seen",
        "unheard",
    )  # fmt: skip

    def __init__(self, run: "RequestReply", rank: int) -> None:
        super().__init__(run, rank)
        self._inbox, self._numbers = run.inbox, run.numbers
        self._up = run.traffic.route(rank, self.server)
        self._down = run.traffic.route(self.server, rank)
        self._seconds_up, self.seconds_down = _constant(self._up), _constant(self._down)
        self.sought = self.server
        self.asked = self.seen = 0
        self.unheard = False

    async def gradient(self, x: Vector) -> Vector:
        """One draw of compute time."""
        self.now += next(self._durations)
        return NOTHING

    @types.coroutine
    def request(self, to: int, value: Payload) -> Generator[None, Any, Payload]:
        """Send, and wait for the answer."""
        if (value is not NOTHING and type(value) is not complex) or to != self.server:
            self._refuse()
        now = self.now
        at = now + self._seconds_up
        heappush(self._inbox, (at, next(self._numbers), self, value))
        self.asked += 1
        answered, answer = yield
        begins = answered - self.seconds_down - (at - now)
        if begins < now:  # noqa: PLR1730 - five times as fast
            begins = now
        self.waited += begins - now
        self.communicated += answered - begins
        self.now = self._since = answered  # if that is after the end, because of the network alone
        return answer

    @property
    def answers(self) -> int:
        """Answers to it: to all it has asked, but the last."""
        return self.asked - (self.asked > 0 and not self.unheard)

    def count_bytes(self, whole: float) -> None:
        """Count its messages, of so many bytes."""
        self._up.bytes, self._down.bytes = self.asked * whole, self.answers * whole

    receive = send = mark = RequestReplyNode._refuse


class AnsweringServer(RequestReplyNode):
    """The server: it takes requests, updates, and answers them."""

    __slots__ = ("_answered", "_deadline", "_inbox", "_team")

    def __init__(self, run: "RequestReply") -> None:
        super().__init__(run, run.workers)
        self._inbox, self._team = run.inbox, dict(enumerate(run.team))
        self._ages = run.staleness = {}  # plain: CPython is quicker with it
        self._deadline = run.deadline
        self._answered = NEVER  # its step when it answered last
        heappush(self._inbox, (run.deadline, NEVER, None, NOTHING))

    @types.coroutine
    def receive(self, source: int = ANY) -> Generator[None, Any, tuple[int, Payload]]:
        """Take the first request to arrive."""
        if source != ANY:
            self._refuse()
        at, _, sender, value = heappop(self._inbox)
        if sender is None:
            self._run.close()
            yield  # for ever
        now = self.now
        if at > now:
            now = at  # idle: nobody who comes later waits behind those before
        else:
            if now > self._deadline:
                self._run.late = True
                yield  # for ever: its turn comes after the end
            self._begun.append(now)
            if at < self._begun[0]:
                self._lengthen(value)
        stale = self.updates - sender.seen
        sender.seen = -1
        try:
            self._ages[stale] += 1
        except KeyError:
            self._ages[stale] = 1
        self.step += 1
        self.now = now + self._receive_seconds
        return sender.rank, value

    def send(self, to: int, value: Payload) -> None:
        """Answer a request; its worker goes on, up to its next one."""
        try:
            worker = self._team[to]
        except KeyError:
            self._refuse()
        if worker.seen >= 0 or type(value) is not complex:
            self._refuse()
        worker.seen = self.updates
        self._answered = self.step
        at = self.now + worker.seconds_down
        if at > self._deadline:
            worker.unheard = True
            return
        resume = worker.resume  # looked up faster than called
        try:
            resume((at, value))
        except StopIteration:
            raise Unsupported("a worker's program ends") from None
        except Exception as error:
            raise Unsupported("a worker's program fails") from error

    def mark(self, x: Vector) -> None:
        """Count an update; show it when an evaluation is due."""
        if self.step >= self._mark_at:
            self._show(x)
        else:
            self.updates += 1

    def _show(self, x: Vector) -> None:
        if self._answered == self.step:  # in `Simulation`, who is answered has not gone on yet
            self._refuse()
        super().mark(x)
        if self._stopped:
            self._deadline = self._run.deadline
            heappush(self._inbox, (-inf, 0, None, NOTHING))

    gradient = request = RequestReplyNode._refuse


class MessageCounts(Traffic):
    """What is sent: as many messages, all of one size, as the workers count."""

    def __init__(self, network: ClosedForm, seed: int, whole: float) -> None:
        super().__init__(network, seed)
        self.team: list[AskingWorker] = []
        self._whole = whole

    def links(self) -> dict[str, float]:
        """Bytes so far over each link, by "from->to"."""
        for worker in self.team:
            worker.count_bytes(self._whole)
        return super().links()

    def totals(self) -> tuple[float, float]:
        """Bytes so far over all links, and over those that are charged as egress."""
        if self.network.charged:
            return super().totals()
        return sum(worker.asked + worker.answers for worker in self.team) * self._whole, 0.0


class RequestReply(Simulation):
    """One algorithm with one seed. Raises Unsupported, at any time, where `Simulation` is needed.

    `inbox`: a heap of the requests under way; `team`: the workers.
    """

    def prepare(self) -> None:
        """Make the network, and the way to the server."""
        if not self.whole.is_integer():
            raise Unsupported("sums of its bytes depend on their order")
        self.traffic = MessageCounts(ClosedForm(self.scenario), self.seed, self.whole)
        self.team = self.traffic.team
        self.inbox: list[Request] = []
        self.numbers: Iterator[int] = count()
        self._goes_on = False

    def make(self, rank: int) -> RequestReplyNode:
        """Make a worker, or the server after them."""
        if rank == self.workers:
            return AnsweringServer(self)
        self.team.append(AskingWorker(self, rank))
        return self.team[-1]

    def run(self) -> None:
        """Run to the end of the steps, or of the time."""
        super().run()
        if not all(worker.asked for worker in self.team):
            raise Unsupported("a worker's program ends")

    def close(self) -> None:
        """Note that no request is left up to the end."""
        self._goes_on = bool(self.inbox) or any(worker.unheard for worker in self.team)

    def expects(self) -> bool:
        """Whether something was still to come when the run ended."""
        return self._goes_on

    def stalled(self, nodes: list[str]) -> None:
        """Let `Simulation` say who waits for whom."""
        raise Unsupported("its nodes wait for each other")


def _constant(route: MessageRoute) -> float:
    """Seconds that every message is on its way."""
    if route.whole_transit is None or route.whole_transit == inf:
        raise Unsupported("its messages are not equally long on their way")
    return route.whole_transit
