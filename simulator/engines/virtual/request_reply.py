"""The request-reply fast path: a parameter server in a time-only run, in two thirds of the time.

Strategy. In these programs a worker blocks on each request until the server replies, and every
message carries the whole model. Then SimPy has nothing to order: the server takes requests itself
from one heap (`inbox`) by time of arrival, and `send` resumes the worker at once, up to its next
request. SimPy only starts the nodes and ends the run.

Invariants. The result equals that of `Simulation` to the last bit, ties included:
- each worker has at most one request in flight, or one reply (`version` < 0: the server owes one);
- equal times of arrival are served in the order of sending, by serial number;
- sums of times are formed from the same terms in the same order as in `VirtualNode`;
- bytes are counted in whole numbers: counting messages first and multiplying later is exact;
- a sentinel request (sender None) at the deadline marks the end of the run. It has the highest
  number, so that requests which arrive exactly then are still served.

All else raises `Unsupported`, at any time, even inside a program; `run._simulated` then starts anew
with `Simulation`. So no method here repeats a rule of the general engine, errors included: a
program that fails, ends or deadlocks is run again there, and that run reports it.

After a change: tests/engines/test_request_reply.py (bit for bit against `Simulation`, by
hypothesis), test_compiled.py, and the rows "parameter server" of `make bench`.
"""

import types
from collections.abc import Generator, Iterator
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, Never, Self

from ...network.closed_form import ClosedForm, MessageRoute, Traffic
from ...objectives import build
from ...programs import Program
from ...programs.effects import ANY, NOTHING, Payload, Vector
from ...scenario.scenario import Scenario
from ..observer import NEVER
from ..unsupported import Unsupported
from .node import VirtualNode
from .simulation import Simulation

Request = tuple[float, int, Any, Payload]
"""Arrival (s), serial number, the worker, payload. A sentinel (worker None) marks the deadline."""


def supports(program: Program, scenario: Scenario) -> bool:
    """Whether a run may consist of requests and replies only, as far as is known beforehand."""
    return (
        program.server is not None
        and build.dimension_of(scenario.objective) is None
        and scenario.network.closed_form
        and not (scenario.server.bandwidth or scenario.troubled or scenario.team.shares_devices)
    )


class RequestReplyNode(VirtualNode):
    """A node that raises `Unsupported` for every effect but those of requests and replies."""

    __slots__ = ()
    _run: "RequestReply"

    def _refuse(self, *_: object, **__: object) -> Never:
        raise Unsupported("its program does more than ask and answer")

    start_mean = start_gather = start_mean_after = finished = wait = _refuse
    start_backward = loss_and_gradient = receive_before = timer = count = _refuse


class AskingWorker(RequestReplyNode):
    """A worker, which waits for a reply whenever the server runs.

    `requests`: how many it has sent; `reply_is_late`: whether the last reply arrives after the
    deadline; `version`: the server's updates when it last replied, -1 while it owes a reply;
    `downlink_seconds`: transit of a reply.
    """

    __slots__ = (
        "_downlink", "_inbox", "_numbers", "_uplink", "_uplink_seconds", "downlink_seconds",
        "reply_is_late", "requests", "version",
    )  # fmt: skip

    def __init__(self, run: "RequestReply", rank: int) -> None:
        super().__init__(run, rank)
        self._inbox, self._numbers = run.inbox, run.numbers
        self._uplink = run.traffic.route(rank, self.server)
        self._downlink = run.traffic.route(self.server, rank)
        self._uplink_seconds = _constant(self._uplink)
        self.downlink_seconds = _constant(self._downlink)
        self.awaited_rank = self.server
        self.requests = self.version = 0
        self.reply_is_late = False

    async def gradient(self, x: Vector) -> Vector:
        """Compute for one drawn duration; return no values, as the run is time-only."""
        self.now += next(self._durations)
        return NOTHING

    @types.coroutine
    def request(self, to: int, value: Payload) -> Generator[None, Any, Payload]:
        """Send a request and return the reply."""
        if (value is not NOTHING and type(value) is not complex) or to != self.server:
            self._refuse()
        now = self.now
        at = now + self._uplink_seconds
        heappush(self._inbox, (at, next(self._numbers), self, value))
        self.requests += 1
        answered, answer = yield
        begins = answered - self.downlink_seconds - (at - now)
        if begins < now:  # noqa: PLR1730 - five times as fast
            begins = now
        self.waited += begins - now
        self.communicated += answered - begins
        self.now = self.busy_since = answered
        return answer

    def count_bytes(self) -> None:
        """Count the bytes of its requests, and of replies: to all, or all but the last."""
        replies = self.requests - (self.requests > 0 and not self.reply_is_late)
        self._uplink.bytes = self.requests * self._run.whole_bytes
        self._downlink.bytes = replies * self._run.whole_bytes

    receive = send = mark = RequestReplyNode._refuse


class AnsweringServer(RequestReplyNode):
    """The server: it receives requests, updates, and replies."""

    __slots__ = ("_deadline", "_inbox", "_last_reply_step", "_requesters")

    def __init__(self, run: "RequestReply") -> None:
        super().__init__(run, run.workers)
        self._inbox, self._requesters = run.inbox, dict(enumerate(run.team))
        self._staleness = run.staleness = {}  # a plain dict, faster here than a defaultdict
        self._deadline = run.deadline
        self._last_reply_step = NEVER  # its step when it last replied
        heappush(self._inbox, (run.deadline, NEVER, None, NOTHING))

    @types.coroutine
    def receive(self, source: int = ANY) -> Generator[None, Any, tuple[int, Payload]]:
        """Return the sender and payload of the first request to arrive."""
        if source != ANY:
            self._refuse()
        at, _, sender, value = heappop(self._inbox)
        if sender is None:
            self._run.note_pending()
            yield  # for ever
        now = self.now
        if at > now:
            now = at  # idle, so that no request waited: no service start to note
        else:
            if now > self._deadline:
                self._run.work_left = True
                yield  # for ever: it would be served after the end
            self._service_starts.append(now)
            if at < self._service_starts[0]:
                self._note_longer_queue(value)
        stale = self.updates - sender.version
        sender.version = -1
        try:
            self._staleness[stale] += 1
        except KeyError:
            self._staleness[stale] = 1
        self.step += 1
        self.now = now + self._receive_seconds
        return sender.rank, value

    def send(self, to: int, value: Payload) -> None:
        """Reply to a request; its worker goes on at once, up to its next request."""
        try:
            worker = self._requesters[to]
        except KeyError:
            self._refuse()
        if worker.version >= 0 or type(value) is not complex:
            self._refuse()
        worker.version = self.updates
        self._last_reply_step = self.step
        at = self.now + worker.downlink_seconds
        if at > self._deadline:
            worker.reply_is_late = True
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
        if self._last_reply_step == self.step:  # `Simulation` resumes the worker after this mark
            self._refuse()
        super().mark(x)
        if self.stopped:
            self._deadline = self._run.deadline
            heappush(self._inbox, (-inf, 0, None, NOTHING))

    gradient = request = RequestReplyNode._refuse


class MessageCounts(Traffic):
    """Traffic counted by the workers (`team`), as numbers of messages."""

    team: "list[AskingWorker]"

    def links(self) -> dict[str, float]:
        """Return the bytes so far over each link, by "from->to"."""
        self._count()
        return super().links()

    def totals(self) -> tuple[float, float]:
        """Return the bytes so far over all links, and over those that are charged as egress."""
        self._count()
        return super().totals()

    def _count(self) -> None:
        for worker in self.team:
            worker.count_bytes()


class RequestReply(Simulation):
    """One algorithm with one seed. Raises Unsupported, at any time, where `Simulation` is needed.

    `inbox`: a heap of the requests in flight; `team`: the workers.
    """

    def connect(self) -> None:
        """Make the network, and the heap of requests."""
        super().connect()
        self.team: list[AskingWorker] = []
        counts = self.transport.traffic = MessageCounts(ClosedForm(self.scenario), self.seed)
        counts.team = self.team
        self.inbox: list[Request] = []
        self.numbers: Iterator[int] = count()
        self._pending_at_end = False

    def make(self, rank: int) -> RequestReplyNode:
        """Make a worker, or the server, which comes last."""
        if rank == self.workers:
            return AnsweringServer(self)
        self.team.append(AskingWorker(self, rank))
        return self.team[-1]

    def run(self) -> Self:
        """Run to the end of the steps, or of the time."""
        super().run()
        if not all(worker.requests for worker in self.team):
            raise Unsupported("a worker's program ends")
        return self

    def note_pending(self) -> None:
        """Record whether requests or replies remain after the deadline."""
        self._pending_at_end = bool(self.inbox) or any(worker.reply_is_late for worker in self.team)

    def has_pending(self) -> bool:
        """Whether requests or replies were pending when the run ended."""
        return self._pending_at_end

    def report_stall(self, nodes: list[str]) -> None:
        """Leave it to `Simulation` to report which nodes wait for which."""
        raise Unsupported("its nodes wait for each other")


def _constant(route: MessageRoute) -> float:
    """Return the transit of every message on a route, in seconds."""
    if route.whole_transit is None or route.whole_transit == inf:
        raise Unsupported("its messages are not equally long on their way")
    return route.whole_transit
