"""Run a program's effects on torch.distributed, in wall-clock time.

A node is a process, and every effect blocks until it is done: a program's coroutine is never
suspended, and `execute` resumes it exactly once.

- Computing: a real gradient, then sleep until the drawn duration has passed (`stretch`). Pieces of
  a backward pass come from a thread, each with a time at which it is due.
- Collectives run on torch.distributed as soon as they are started. `wait` first waits for the real
  result, then sleeps until it is due by the emulated network.
- Messages are received by threads (`messages.Mailbox`) and become visible when they are due.
- The end: past the deadline, a node that others may wait for continues with zero gradients
  (`_coast`) until a collective tells all ranks to stop; other nodes stop at once.
- Records: `events` for calibration, spans for the timeline, and `outcomes`: every result that
  depends on time (which sender came first, whether a mean had arrived), in order, so that a replay
    can repeat the run without a clock.
"""

from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from math import inf, nan
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.simulator.engines import payloads
from paceline.simulator.engines.node import SeededNode, introduce
from paceline.simulator.errors import ProgramError
from paceline.simulator.programs.effects import ANY, Handle, Payload, Pieces, Vector
from paceline.simulator.results.run import Kind, Spans
from paceline.simulator.scenario.scenario import Scenario

from ..host import device as devices
from . import events
from .collectives import Collectives
from .messages import Mailbox, Message
from .rendezvous import Connections


class RunOver(BaseException):
    """Raised to end the program when the run is over; programs do not catch it."""


@dataclass
class Limits:
    """When a run is over: at a node's `step`, or at `deadline` seconds by its clock.

    `meets`: other nodes wait for this one in collectives, so that it stops where all agree to, and
    within `patience` seconds. `pooled`: workers' steps are counted together; `enough()`: whether
    the workers have made all steps; `completes`: these then join the collectives that others have
    begun. `served`: gradients are useless once the server has finished.
    """

    step: float = inf
    deadline: float = inf
    meets: bool = False
    patience: float = inf
    pooled: bool = False
    completes: bool = False
    served: bool = False
    enough: Callable[[], bool] = lambda: False


class Role(NamedTuple):
    """A node's part of a `scenario`, starting from the parameters `start`.

    `learner`: source of its gradients; None for a server. `spans`: its timeline; `see`, `learned`:
    functions to call after marks and gradients.
    """

    scenario: Scenario
    seed: int
    start: Tensor
    learner: Any
    spans: Spans
    see: Callable[["RealNode", Tensor], None]
    learned: Callable[["RealNode"], None]


class PieceUnderWay:
    """A piece of a gradient under way: visible at `due` seconds, once it is computed."""

    def __init__(self, due: float) -> None:
        self.due, self.computed = due, Future[Tensor]()


class TensorNode(SeededNode):
    """A node as its program sees it, whose vectors are tensors."""

    def cut(self, vector: Vector, pieces: Pieces) -> Sequence[Vector]:
        """Cut a vector into pieces, the last entries first."""
        return torch.tensor_split(vector, payloads.splits(pieces, len(vector)))[::-1]

    def join(self, pieces: Sequence[Vector]) -> Vector:
        """Join the pieces that `cut` made."""
        return torch.cat(list(pieces)[::-1])


class RealNode(TensorNode):
    """One process of a real run, as its program sees it.

    `step`: gradients computed (by the server: received); `updates`: marks; `waited` and
    `communicated`: seconds of waiting for other nodes, and for the network; `outcomes`: results
    that depended on time, in order; `events`: rows of `training.events.EVENT`.
    """

    def __init__(self, role: Role, limits: Limits, links: Connections) -> None:
        scenario, seed, start, self._learner, self._spans, self._see, self._learned = role
        introduce(self, scenario, start)
        self.rank = links.rank
        self.seed(seed)
        self._receive_seconds = scenario.server.receive
        self._unfreed_share = scenario.cluster.unfreed_share
        self._limits = limits
        self._meter, self._network, self._clock = links.meter, links.network, links.clock
        self._collectives, self._mailbox = links.collectives, links.mailbox
        self._device = devices.of(start.device)
        self._backward = ThreadPoolExecutor(1, thread_name_prefix="backward")
        self._durations: Iterator[float] | None = None
        self.step = self.updates = self._met_at = 0
        self.period = nan
        self.waited = self.communicated = self._since = 0.0
        self.outcomes: list[Any] = []
        self.staleness: Counter[int] = Counter()
        self.events: list[tuple[Any, ...]] = []
        self.late = 0
        self._versions = [0] * (self.workers + 1)
        self._stale = 0
        self._sent = [0.0] * (self.workers + 1)  # when the last message to each node left
        self._heard: int | None = None  # messages received since the current gradient began
        self._stopped = False
        self._coasting = False  # past the end the node only completes collectives
        self._last_begun = 0  # collectives that the workers have begun by their end

    @property
    def now(self) -> float:
        """Return seconds since the run began."""
        return self._clock.now()

    def stretch(self, durations: Iterator[float]) -> None:
        """Stretch steps to these durations (seconds)."""
        self._durations = durations

    def execute(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a program until it returns, or the run is over for this node."""
        with suppress(StopIteration, RunOver):
            coroutine.send(None)
            raise ProgramError("a program may await only methods of its node (`me`)")
        coroutine.close()
        self._show(self.now, self.now, self.now)  # the last span

    def end(self) -> None:
        """Complete the collectives and messages begun here, which other nodes may need."""
        self._backward.shutdown()
        if self._collectives is not None:
            self._collectives.land()
        if self._mailbox is not None:
            self._mailbox.end()
            self._mailbox.close(self._limits.patience)

    # Computing

    def _begin(self) -> tuple[float, float]:
        """Count a step; return when it begins, and its duration (0 if not stretched)."""
        if self._learner is None:
            raise ProgramError("the server has no data to compute gradients on")
        limits = self._limits
        begins = self.now
        past = begins > limits.deadline
        if past and limits.meets:
            self._coast(begins)
            return begins, 0.0
        over = self._stopped or self.step >= limits.step or past or self._has_enough()
        if (over or self._coasting) and limits.completes:
            self._complete(self._team())
            return begins, 0.0
        if over:
            raise RunOver
        self.step += 1
        duration = 0.0 if self._durations is None else next(self._durations)
        return begins, duration

    def _note(
        self, kind: int, start: float, due: tuple[float, float] = (nan, nan), size: float = nan
    ) -> None:
        """Add an event that ends now; `due`: when all had joined, and its planned end (s)."""
        self.events.append((self.rank, kind, self.step, start, self.now, *due, size))

    def _coast(self, now: float) -> None:
        """After the end, go on without computing to a collective in which others may wait."""
        self._coasting = True
        if now > self._limits.deadline + self._limits.patience:
            raise ProgramError(
                "no average followed the end of the run: the communication period is longer than "
                "the run; write a shorter period, or run.steps"
            )

    def _complete(self, team: Collectives) -> None:
        """Go on without computing to the last collective that another worker has begun."""
        if not self._coasting:
            self._coasting, self._last_begun = True, team.most_started()
        if team.started >= self._last_begun:
            raise RunOver

    def _has_enough(self) -> bool:
        limits = self._limits
        if (limits.pooled or limits.served) and self._mailbox and self._mailbox.ended:
            return True
        return limits.pooled and limits.enough()

    def _due(self, begins: float, duration: float) -> float:
        """Return the planned end of a step (s); nan if steps are not stretched."""
        return nan if self._durations is None else begins + duration

    async def gradient(self, x: Vector) -> Vector:
        """Compute a real gradient, as `loss_and_gradient` does."""
        _, gradient = await self.loss_and_gradient(x)
        return gradient

    async def loss_and_gradient(self, x: Vector) -> tuple[float, Vector]:
        """Compute a loss and a real gradient, stretched to their drawn duration."""
        begins, duration = self._begin()
        if self._coasting:
            return 0.0, torch.zeros_like(x)
        loss, gradient = self._learner.tensors(x)
        self._learned(self)
        value = float(devices.host(loss))  # available after the gradient
        self._clock.sleep_until(begins + duration)
        self._note(events.STEP, begins, (nan, self._due(begins, duration)))
        return value, gradient

    async def start_backward(self, x: Vector, pieces: Pieces) -> Sequence[Handle]:
        """Begin a gradient on a thread; its backward pass frees the pieces one by one."""
        begins, duration = self._begin()
        if self._heard is not None:
            self.staleness[self._heard] += 1
            self._heard = 0
        share = self._unfreed_share
        done, total = payloads.progress(pieces)
        parts = [share + (1 - share) * far / total for far in done]
        handles = [PieceUnderWay(begins + duration * part) for part in parts]
        sizes = [piece.numel() for piece in self.cut(x, pieces)]

        def computed(number: int, piece: Tensor) -> None:
            if number == len(done) - 1:
                end = max(self.now, begins + duration)
                due = self._due(begins, duration)
                self.events.append((self.rank, events.STEP, self.step, begins, end, nan, due, nan))
            # .data: autograd still writes the other pieces of the vector behind this view
            handles[number].computed.set_result(piece.data)
            if self._mailbox is not None:
                self._mailbox.wake()

        def freed(number: int, piece: Tensor) -> None:
            # the backward pass issues more work meanwhile
            waits.append(self._device.then(lambda: computed(number, piece)))

        waits: list[Future[Any] | None] = []
        ready = self._device.mark()

        def compute() -> None:
            try:
                with self._device.branch(ready):
                    self._learner.backward(x, sizes, freed)
                    self._learned(self)
                for wait in filter(None, waits):
                    wait.result()
            except BaseException as error:
                for handle in handles:
                    if not handle.computed.done():
                        handle.computed.set_exception(error)
                raise

        self._backward.submit(compute)
        return handles

    # Collectives

    def _team(self) -> Collectives:
        if self._collectives is None:
            raise ProgramError("the server starts a collective; only workers may")
        if self.step > self._met_at:
            self.period, self._met_at = self.step - self._met_at, self.step
        return self._collectives

    def start_mean(self, value: Payload) -> Handle:
        """Start an all-reduce."""
        return self._issued(self.now, self._team().mean(value, self.step))

    def start_gather(self, value: Payload) -> Handle:
        """Start an all-gather."""
        return self._issued(self.now, self._team().gather(value, self.step))

    def start_mean_after(self, handle: Handle, value: Callable[[Payload], Payload]) -> Handle:
        """Start an all-reduce on a thread, once the first one has arrived."""
        return self._issued(self.now, self._team().mean_after(handle, value, self.step))

    def _issued(self, begin: float, handle: Handle) -> Handle:
        self._note(events.ISSUE, begin)
        return handle

    async def wait(self, handle: Handle) -> Any:
        """Wait until a result has arrived and is due."""
        begin = self.now
        if isinstance(handle, PieceUnderWay):
            piece = self._device.adopt(handle.computed.result())
            self._clock.sleep_until(handle.due)
            return piece
        team = self._team()
        there = handle.settled or all(work.done() for work in handle.pending)
        if not handle.settled:
            team.land(handle)
            landed = self.now
            team.settle(handle)
            self._note(events.COLLECT, landed, size=handle.size)
        emulated = handle.done > handle.begins
        if emulated and not there and self.now > handle.done:
            self.late += 1
        self._clock.sleep_until(handle.done)
        self._note(events.WAIT, begin, (handle.begins, handle.done), handle.size)
        if not there or begin < handle.done:
            self._account_idle(begin, handle.begins)
        if not handle.chained:
            self.staleness[self.step - handle.step] += 1
        if team.ending:
            raise RunOver
        return handle.result

    async def finished(self, handle: Handle) -> bool:
        """Poll whether a mean is finished on all ranks; every rank sends a flag."""
        begin, team = self.now, self._team()
        question = team.question(handle, self.step)
        answer = team.answer(question)
        self._note(events.AGREE, begin, (question.done, question.done))
        self._account_idle(begin, question.done)
        if team.ending:
            raise RunOver
        self.outcomes.append(answer)
        return answer

    async def arrived(self, handle: Handle) -> bool:
        """Return whether a mean has arrived here and is due; at the end, wait for it."""
        team = self._team()
        if self._coasting:
            team.land(handle)
        answer = team.arrived(handle) and (self._coasting or handle.done <= self.now)
        self.outcomes.append(answer)
        return answer

    # Messages

    def _declared_mailbox(self) -> Mailbox:
        if self._mailbox is None:
            raise ProgramError(
                "the program sends messages without declaring it: set Program.gossips, by "
                "which workers exchange them"
            )
        return self._mailbox

    def send(self, to: int, value: Payload) -> None:
        """Pass a message to gloo, without waiting."""
        mailbox, size = self._declared_mailbox(), self._meter(value)
        begin = self.now
        self._sent[to], transit = self._network.sends(to, size, begin)
        mailbox.send(to, value, size, self._sent[to], transit)
        self._note(events.SEND, begin, size=size)
        self._versions[to] = self.updates

    async def receive(self, source: int = ANY) -> tuple[int, Payload]:
        """Wait for the first message of `source`."""
        if self._stopped:
            raise RunOver
        begin = self.now
        until = self._limits.deadline if self.rank == self.server else inf
        message = self._take(source, until)
        self._account_wait(message, begin)
        return self._accept(message)

    def _accept(self, message: Message) -> tuple[int, Payload]:
        """Account for a received message, and return its sender and content."""
        if self.rank == self.server:
            self._network.hears(message.sender, message.size)
            self._stale = self.updates - self._versions[message.sender]
            self.staleness[self._stale] += 1
            self.step += 1
            self.work(self._receive_seconds)
        elif self._heard is not None:
            self._heard += 1
        self.outcomes.append(message.sender)
        return message.sender, message.payload

    def _take(self, source: int, until: float) -> Message:
        begin = self.now
        message = self._declared_mailbox().take(source, until, lambda: True, self._limits.patience)
        if message is None:
            self._account_idle(begin, self.now)
            raise RunOver
        return message

    async def receive_before(self, handle: Handle, source: int = ANY) -> tuple[int, Payload] | None:
        """Wait for a message that arrives before a gradient's piece or a timer."""
        if self._stopped:
            raise RunOver
        if self._heard is None and self._limits.pooled:
            self._heard = 0
        message = self._declared_mailbox().take(source, handle.due, handle.computed.done)
        if message is None and not (handle.computed.done() and self.now >= handle.due):
            raise RunOver  # no remaining peer could send one
        if message is None:
            self.outcomes.append(None)
            return None
        return self._accept(message)

    def timer(self, seconds: float) -> Handle:
        """Start a timer: an empty piece that is due after `seconds`."""
        piece = PieceUnderWay(self.now + seconds)
        piece.computed.set_result(self.start[:0])
        return piece

    async def request(self, to: int, value: Payload) -> Payload:
        """Send a message, and wait for the answer."""
        self.send(to, value)
        begin = self.now
        message = self._take(to, inf)
        self._account_wait(message, begin)
        return message.payload

    def _account_wait(self, message: Message, begin: float) -> None:
        """Count the wait since `begin`; transit both ways counts as communication."""
        sent = message.due - message.transit
        self._note(events.TAKE, begin, (sent, message.due), message.size)
        there = max(0.0, self._sent[message.sender] + message.there - begin)
        self._account_idle(begin, sent - there)

    def count(self, gradients: int) -> None:
        """Count the gradients of the last received message."""
        self.step += gradients - 1
        if not gradients:
            self.staleness[self._stale] -= 1

    # Time

    def work(self, seconds: float) -> None:
        """Stay busy for `seconds`."""
        begin = self.now
        self._clock.sleep_until(begin + seconds)
        if seconds:
            self._note(events.SERVE, begin, (nan, begin + seconds))

    def clock(self) -> float:
        """Return this process's clock (seconds)."""
        self.outcomes.append(self.now)
        return float(self.outcomes[-1])

    def mark(self, x: Vector) -> None:
        """Report the parameters `x` to the observer."""
        if self._coasting:
            return
        self.updates += 1
        self._see(self, x)
        if self.rank == self.server and self.step >= self._limits.step:
            self._stopped = True

    def _account_idle(self, begin: float, joined: float) -> None:
        """Count a wait as one for other nodes up to `joined` (s), then as one for the network."""
        now = self.now
        joined = min(max(joined, begin), now)
        self.waited += joined - begin
        self.communicated += now - joined
        self._show(begin, joined, now)

    def _show(self, begin: float, joined: float, now: float) -> None:
        """Add spans to the timeline: work since the last span, then waiting."""
        busy = Kind.SERVE if self.rank == self.server else Kind.COMPUTE
        self._spans.add(self.rank, int(busy), self._since, begin, joined, now, self.step)
        self._since = now
