"""Send messages without waiting, and store received ones.

A thread per peer always has several receives posted, because gloo sends a message only after its
receiver is ready, a latency after the receive was posted. Each message carries the time at which it
is due, set by the emulated network; the program does not get it before then. The last message of
every node announces its end.
"""

import pickle
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf, isnan
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.simulator.errors import ProgramError
from paceline.simulator.programs.effects import ANY, Payload

from . import packing
from .clock import Clock

# Doubles before a message: the bytes of its head (0: the receiver has it), the number of its head,
# the bytes of its body, when it was sent, its transit time (nan: the real one), the bytes that it
# stands for, the transit time of the last one from the receiver
START = 7
SKELETON = 64 * 1024  # bytes for the parts of a message that are not tensors
POSTED = 2, 16  # least and most receives posted for a peer
ROOM = 64 * 2**20  # most bytes of all buffers, if these allow the least number of receives


class Message(NamedTuple):
    """A message that has arrived, ordered by `due` (seconds), then `number`.

    `transit`: seconds in transit; `there`: seconds in transit of this node's last message to the
    sender; `size`: bytes that the message represents.
    """

    due: float
    number: int
    transit: float
    there: float
    sender: int
    size: float
    payload: Payload


@dataclass(eq=False)
class Mailbox:
    """One node's messages to and from its peers; `ended`: peers that have finished.

    `capacity`: bytes of the longest message; `receives`: maps (size, due) to the time at which a
    message has passed this node's network card (s).
    """

    group: Any
    rank: int
    peers: frozenset[int]
    capacity: int
    device: torch.device
    receives: Callable[[float, float], float]
    clock: Clock

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._arriving: list[Message] = []  # a heap, by arrival at this node's network card
        self._come: list[Message] = []
        self.received = self.late = 0  # received messages, and how many of them gloo delivered late
        self._number = 0
        self._transits: dict[int, float] = {}  # of each peer's last message, seconds
        self._sent: deque[tuple[Any, Tensor]] = deque()
        self.failure: Exception | None = None
        self.ended: set[int] = set()
        self._heads: dict[int, dict[bytes, int]] = defaultdict(dict)  # heads that peers have
        self._threads = [
            threading.Thread(target=self._listen, args=(peer,), daemon=True)
            for peer in sorted(self.peers)
        ]
        for thread in self._threads:
            thread.start()

    def send(self, to: int, payload: Payload, size: float, sent: float, transit: float) -> None:
        """Send a payload that represents `size` bytes.

        `transit`: its seconds from `sent` on; nan: real time.
        """
        if to not in self.peers:
            raise ProgramError(
                f"node {self.rank} sends to {to}: only programs with a server, or declared to "
                "gossip (Program.gossips), exchange messages"
            )
        packed = packing.take_apart(payload)
        head, body = pickle.dumps(packing.head(packed)), packing.body(packed)
        numbers = self._heads[to]
        length = 0 if head in numbers else len(head)
        number = numbers.setdefault(head, len(numbers))
        start = [length, number, len(body), sent, transit, size, self._transits.get(to, 0.0)]
        self._send(to, start, body, head[:length])

    def _send(self, to: int, start: list[float], body: Tensor, head: bytes = b"") -> None:
        numbers = torch.tensor(start, dtype=torch.float64).view(torch.uint8)
        message = torch.cat([numbers, torch.tensor(list(head), dtype=torch.uint8), body])
        if len(message) > self.capacity:
            raise ProgramError(
                f"a message of {len(message)} bytes: more than two vectors; send several messages"
            )
        while self._sent and self._sent[0][0].is_completed():
            self._sent.popleft()
        self._sent.append((self.group.send([message], to, 0), message))

    def _listen(self, peer: int) -> None:
        least, most = POSTED
        posted = deque[tuple[Any, Tensor]]()
        for _ in range(max(least, min(most, ROOM // self.capacity))):
            self._post(peer, torch.empty(self.capacity, dtype=torch.uint8), posted)
        heads: list[packing.Head] = []
        while True:
            try:
                work, buffer = posted.popleft()
                work.wait()
                start = buffer[: 8 * START].view(torch.float64).tolist()
                length, number, size_of_body, sent, transit, size, there = start
                if length < 0:
                    break
                begin = 8 * START + int(length)
                if length:
                    heads.append(pickle.loads(buffer[8 * START : begin].numpy().tobytes()))
                body = buffer[begin : begin + int(size_of_body)]
                packed = packing.read(heads[int(number)], body, self.device)
                self._post(peer, buffer, posted)
                payload = packing.put_together(packed)
            except Exception as error:  # raised again when the program waits for a message
                self.failure = error
                break
            self.clock.begun.wait()  # a message received before the start would have a wrong time
            with self._changed:
                if isnan(transit):
                    transit = max(0.0, self.clock.now() - sent)
                elif self.clock.now() > sent + transit:
                    self.late += 1
                self._transits[peer] = transit
                at = sent + transit
                heappush(
                    self._arriving, Message(at, self._number, transit, there, peer, size, payload)
                )
                self.received += 1
                self._number += 1
                self._changed.notify_all()
        with self._changed:
            self.ended.add(peer)
            self._changed.notify_all()

    def _post(self, peer: int, buffer: Tensor, posted: deque[tuple[Any, Tensor]]) -> None:
        posted.append((self.group.recv([buffer], peer, 0), buffer))

    def take(
        self, source: int, until: float, computed: Callable[[], bool], patience: float = inf
    ) -> Message | None:
        """Wait for the first message of `source` that is due, and return it.

        None once `until` (seconds) has passed and `computed()` holds, or if `source` has finished.
        `wake` makes it check again. Raises the error of a listening thread, and
        TimeoutError if no message is in transit for `patience` seconds.
        """
        given_up = self.clock.now() + patience
        with self._changed:
            while True:
                if self.failure is not None:
                    raise self.failure
                now = self.clock.now()
                self._let_through(now)
                first = min(
                    (message for message in self._come if source in (ANY, message.sender)),
                    default=None,
                )
                if first is not None and first.due <= min(now, until):
                    self._come.remove(first)
                    return first
                if now >= until and computed():
                    return None
                if first is None and self._is_over(source):
                    return None
                at = min(until if now < until else inf, inf if first is None else first.due)
                at = min(at, self._arriving[0].due if self._arriving else inf)
                if first is None and not self._arriving:
                    if now >= given_up:
                        sender = "any node" if source == ANY else f"node {source}"
                        raise TimeoutError(f"no message from {sender} within {patience:g} s")
                    at = min(at, given_up)
                self._changed.wait(None if at == inf else max(at - now, 0.0))

    def _is_over(self, source: int) -> bool:
        """Return whether no message of `source` is in transit and none will follow."""
        coming = any(source in (ANY, message.sender) for message in self._arriving)
        over = self.ended == self.peers if source == ANY else source in self.ended
        return over and not coming

    def _let_through(self, now: float) -> None:
        """Pass messages through the network card, in order of arrival."""
        while self._arriving and self._arriving[0].due <= now:
            message = heappop(self._arriving)
            passed = self.receives(message.size, message.due)
            self._come.append(message._replace(due=passed))

    def wake(self) -> None:
        """Make `take` check its conditions again, because a result has been computed."""
        with self._changed:
            self._changed.notify_all()

    def end(self) -> None:
        """Tell all peers that this node has finished."""
        for peer in self.peers:
            self._send(peer, [-1.0] + [0.0] * (START - 1), torch.empty(0, dtype=torch.uint8))

    def close(self, patience: float) -> None:
        """Wait until all peers have finished, and all messages sent have arrived.

        Raises TimeoutError if a peer takes longer than `patience` seconds.
        """
        given_up = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(given_up - time.monotonic(), 0.0))
        if late := sorted(self.peers - self.ended):
            raise TimeoutError(f"node {late[0]} has not finished within {patience:g} s")
        for work, _ in self._sent:
            work.wait()
