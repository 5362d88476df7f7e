"""Start collectives, wait for results, and agree on when they began and ended.

Every payload carries the line of the program that started it, a hash of its kind and sizes, whether
that rank's clock is past the end of the run, and its time of issue. So all ranks can check that
they run the same collective, know when the last rank joined, and stop together.
"""

import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, nan
from threading import Lock
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from paceline.simulator.errors import ProgramError
from paceline.simulator.programs.effects import Encoded, Latest, Payload

from ..host.device import host
from . import packing
from .emulated_network import Accounting
from .packing import EXACT, PARTS, PLACES, Packed
from .transport import DeviceGroup, Pending, tell

# Numbers added before those of a payload: line of the program, hash, whether the time of issue is
# past the end of the run, and that time; all but the last are whole
OWN, WHOLE = 4, 3
BENEATH = (
    "paceline.validate.",
    "paceline.deploy.",
    "paceline.simulator.programs.effects",
    "paceline.simulator.programs.codecs.",
)  # packages whose frames lie between a program and this file
ROUNDED = torch.uint8  # dtype of rounded vectors, the only integers in a mean
HASH = 0xFFFFFF  # bits of a hash that float32 holds exactly


Landed = tuple[Payload, list[list[float]]]
"""The result of a mean, and the numbers of each rank."""


class RealCollective:
    """A collective under way, the handle that `Node.start_mean` returns.

    `step`: the worker's at the start; `begins`, `done` (seconds) and `size` (bytes of a payload):
    set once settled; `chained`: whether another collective averages a function of its result.
    """

    def __init__(
        self, number: int, kind: str, step: int, first: "RealCollective | None" = None
    ) -> None:
        self.number, self.kind, self.step, self.first = number, kind, step, first
        self.chained = self.settled = False
        self.begins = self.done = inf
        self.size = nan
        self.result: Payload = None
        self.pending: list[Pending] = []
        self.packed = Packed(None, [], [], [])
        self.versions: list[int] = []
        self.line = _line()
        self.landed: Landed | None = None
        self.lock = Lock()

    def hold(self, payload: Payload) -> Packed:
        """Take a payload apart, and record its version, which must not change."""
        self.packed = packing.take_apart(payload)
        self.versions = [tensor._version for tensor in self.packed.tensors]
        return self.packed

    @cached_property
    def about(self) -> float:
        """A hash of the parts that are equal on all ranks: kind, dtypes, averaged sizes."""
        sizes = [(str(tensor.dtype), tensor.numel()) for tensor in self.packed.tensors]
        layout = sizes if self.kind == "mean" else packing.head(self.packed)
        return float(crc32(repr((self.kind, layout)).encode()) & HASH)

    def arrived(self) -> None:
        """Wait until the result has arrived, even if it is not due yet."""
        for work in self.pending:
            work.wait()

    def check(self) -> None:
        """Raise ProgramError if the payload was changed meanwhile."""
        if self.versions != [tensor._version for tensor in self.packed.tensors]:
            raise ProgramError(
                f"{self.kind} {self.number}: its payload was changed before its wait; never change "
                "vectors in place"
            )


@dataclass(eq=False)
class Collectives:
    """The collectives of one worker among `ranks`, in order.

    `flags`: a group only for numbers; `deadline`: seconds at which the run ends.
    """

    transport: DeviceGroup
    flags: Any
    rank: int
    ranks: int
    device: torch.device
    deadline: float
    accounting: Accounting

    def __post_init__(self) -> None:
        self._meter, self._network, self._clock = self.accounting
        self._unsettled: deque[RealCollective] = deque()
        self.started = self.settled = 0
        self.ending = False  # whether any rank's clock was past the end of the run

    def mean(self, payload: Payload, step: int) -> RealCollective:
        """Start an average."""
        handle = self._next("mean", step)
        self._network.starts("mean", self._meter(payload))
        self._start_mean(handle, lambda: payload)
        return handle

    def mean_after(
        self, first: RealCollective, value: Callable[[Payload], Payload], step: int
    ) -> RealCollective:
        """Start an average of `value(result)` once the result of `first` has arrived."""
        first.chained = True
        handle = self._next("mean", step, first)
        self._start_mean(handle, lambda: value(self._result(first)[0]), first.arrived)
        return handle

    def gather(self, payload: Payload, step: int) -> RealCollective:
        """Start gathering; ranks exchange lengths first, unless codecs bound them."""
        handle = self._next("gather", step)
        body = packing.body(handle.hold(payload))
        self._network.starts("gather", self._meter(payload))
        numbers = [*self._own(handle), float(len(body))]
        start = torch.tensor(numbers, dtype=torch.float64).view(torch.uint8)
        room = _room(payload)
        lengths = None if room < inf else self.tell(numbers[OWN:])

        def message() -> Tensor:
            longest = lengths.wait().max() if lengths else len(body) + room
            padding = torch.zeros(int(longest) - len(body), dtype=torch.uint8)
            return torch.cat([start, body, padding])

        handle.pending = [self.transport.gather(message, lengths.wait if lengths else None)]
        return handle

    def question(self, handle: RealCollective, step: int) -> RealCollective:
        """Start to poll all ranks whether `handle` is finished there."""
        question = RealCollective(self.started, "question", step, handle)
        self.started += 1
        is_done = float(all(work.done() for work in handle.pending))
        question.pending = [self.tell([*self._own(question), is_done])]
        return question

    def answer(self, question: RealCollective) -> bool:
        """Wait for all ranks to poll; return whether the mean has arrived and is due."""
        handle = question.first
        assert handle is not None
        by_rank = question.pending[0].wait().tolist()
        question.begins = question.done = self._agree(question, by_rank)
        if not all(numbers[OWN] for numbers in by_rank):
            return False
        self.settle(handle)
        return handle.done <= question.done

    def arrived(self, handle: RealCollective) -> bool:
        """Return whether a collective has arrived here, due or not; settle it then."""
        if not handle.settled and all(work.done() for work in handle.pending):
            self.settle(handle)
        return handle.settled

    def most_started(self) -> int:
        """Wait for all ranks; return the most collectives that any has started."""
        return int(self.tell([float(self.started)]).wait().max())

    def tell(self, numbers: Sequence[float]) -> Pending:
        """Start sending numbers to all ranks; the result has one row per rank."""
        return tell(self.flags, numbers, self.transport.finish)

    def _next(self, kind: str, step: int, first: RealCollective | None = None) -> RealCollective:
        handle = RealCollective(self.started, kind, step, first)
        self.started += 1
        self._unsettled.append(handle)
        return handle

    def _own(self, handle: RealCollective) -> list[float]:
        """Return this rank's numbers that describe the collective."""
        now = self._clock.now()
        return [float(handle.line), handle.about, float(now > self.deadline), now]

    def _start_mean(
        self,
        handle: RealCollective,
        payload: Callable[[], Payload],
        after: Callable[[], object] | None = None,
    ) -> None:
        """Start a sum for each dtype; the first dtype holds numbers exactly."""
        if after is None:
            packed = handle.hold(payload())
            dtypes = _dtypes(packed)
        else:  # its payload depends on the first result, and has the same dtypes
            assert handle.first is not None
            dtypes = _dtypes(handle.first.packed)
        for index, dtype in enumerate(dtypes):
            if dtype == ROUNDED:
                handle.pending.append(self._start_rounded(packed))
                continue

            def buffer(index: int = index, dtype: torch.dtype = dtype) -> Tensor:
                if index == 0 and after is not None:
                    handle.hold(payload())
                return self._buffer(handle, dtype, first=index == 0)

            handle.pending.append(self.transport.total(buffer, after if index == 0 else None))

    def _start_rounded(self, packed: Packed) -> Pending:
        """Start the mean of a payload's rounded vectors, in parts of whole blocks."""
        grid = packed.grid
        assert grid is not None
        body = torch.cat(packed.tensors)
        padding = body.new_zeros(-len(body) % (grid.block * self.ranks))
        return self.transport.mean_of_parts(lambda: torch.cat([body, padding]), grid.mean)

    def _buffer(self, handle: RealCollective, dtype: torch.dtype, first: bool) -> Tensor:
        packed = handle.packed
        parts = [tensor.detach().reshape(-1) for tensor in packed.tensors if tensor.dtype == dtype]
        length = self._length(packed) if first else 0
        buffer = torch.empty(length, dtype=dtype, device=self.device)
        if parts:
            buffer = torch.cat([buffer, *parts])
            if (scale := self.scale(dtype)) != 1.0:
                buffer[length:].mul_(scale)
        if first:
            described = self._own(handle)  # called last: it contains the time of issue
            exact, numbers = described[:WHOLE], [*described[WHOLE:], *packed.numbers]
            written = packing.write_numbers(exact, numbers, self.rank, self.ranks, buffer)
            buffer[:length].copy_(written, non_blocking=True)
        return buffer

    def _length(self, packed: Packed) -> int:
        """Return the number of buffer entries for the numbers of all ranks."""
        return self.ranks * (WHOLE + PARTS * (OWN - WHOLE + len(packed.numbers)))

    def scale(self, dtype: torch.dtype) -> float:
        """Return the exact factor for scaling a payload; 1: the sum is divided instead."""
        exact = dtype in EXACT and not self.ranks & (self.ranks - 1)
        return 1 / self.ranks if exact else 1.0

    def _result(self, handle: RealCollective) -> Landed:
        """Return a mean that has arrived, due or not, and all ranks' numbers."""
        with handle.lock:  # a thread that starts a chained collective may also need it
            if handle.landed is None:
                handle.landed = self._land(handle)
            return handle.landed

    def _land(self, handle: RealCollective) -> Landed:
        sums, m = [work.wait() for work in handle.pending], self.ranks
        packed = handle.packed  # set by now, also for chained collectives
        dtypes = _dtypes(packed)
        totals = dict(zip(dtypes, sums, strict=True))
        offsets = dict.fromkeys(totals, 0)
        first = next(iter(totals))
        offsets[first] = length = self._length(packed)
        by_rank = packing.read_numbers(totals[first][:length], m, WHOLE)
        if ROUNDED in totals:
            totals[ROUNDED] = totals[ROUNDED].reshape(-1)
        for dtype, total in totals.items():
            if dtype != ROUNDED and self.scale(dtype) == 1.0 and m > 1:
                # all at once, because a payload may have hundreds of tensors
                total[offsets[dtype] :].div_(m)
        handle.pending = []
        tensors = []
        for one in packed.tensors:
            start = offsets[one.dtype]
            offsets[one.dtype] = end = start + one.numel()
            tensors.append(totals[one.dtype][start:end].reshape(one.shape))
        columns = [*zip(*by_rank, strict=True)][OWN:]
        means = [
            max(column) if isinstance(number, Latest) else sum(column) / m
            for number, column in zip(packed.numbers, columns, strict=True)
        ]
        return packing.put_together(Packed(packed.skeleton, tensors, packed.places, means)), by_rank

    def land(self, handle: RealCollective | None = None) -> None:
        """Wait until `handle`, or all collectives, have arrived."""
        for pending in self._unsettled:
            pending.arrived()
            if pending is handle:
                break

    def settle(self, handle: RealCollective) -> None:
        """Wait for `handle` and all before it, and compute when they are due.

        Raises ProgramError if ranks run different collectives, or a payload was changed.
        """
        while not handle.settled:
            self._settle(self._unsettled.popleft())

    def _settle(self, handle: RealCollective) -> None:
        if handle.kind == "mean":
            handle.result, by_rank = self._result(handle)
            joined = self._agree(handle, by_rank)
            sizes = [self._meter(packing.put_together(handle.packed))]
        else:
            rows = host(handle.pending.pop().wait())
            numbers = rows[:, : 8 * (OWN + 1)].reshape(-1).view(torch.float64)
            by_rank = numbers.reshape(len(rows), -1).tolist()
            joined = self._agree(handle, by_rank)  # first, to check that heads are equal
            payloads = self._gathered(handle, rows, by_rank)
            handle.result = payloads
            sizes = [self._meter(payload) for payload in payloads]
        handle.check()
        if handle.first is not None:
            joined = max(joined, handle.first.done)
            self._network.starts("mean", sizes[0])
        size, largest = sum(sizes) / len(sizes), max(sizes) if len(sizes) > 1 else None
        handle.size = size
        handle.begins, handle.done = self._network.collective(handle.kind, size, largest, joined)
        handle.settled = True
        self.settled += 1

    def _agree(self, handle: RealCollective, by_rank: list[list[float]]) -> float:
        """Return when the last rank joined; note the end. Raises ProgramError if ranks differ."""
        mine = handle.line, handle.about
        for rank, (line, about, past, *_) in enumerate(by_rank):
            self.ending = self.ending or past > 0
            if (line, about) != mine:
                raise ProgramError(
                    f"worker {self.rank} starts {handle.kind} {handle.number} at line "
                    f"{handle.line} of its program, worker {rank} another one, at line {line:.0f}: "
                    "all workers must start the same collectives in the same order"
                )
        return max(numbers[WHOLE] for numbers in by_rank)

    def _gathered(
        self, handle: RealCollective, rows: Tensor, by_rank: list[list[float]]
    ) -> tuple[Payload, ...]:
        head, start = packing.head(handle.packed), 8 * (OWN + 1)
        ends = (start + int(numbers[OWN]) for numbers in by_rank)
        bodies = (row[start:end] for row, end in zip(rows, ends, strict=True))
        return tuple(packing.put_together(packing.read(head, b, self.device)) for b in bodies)


def _room(payload: Payload) -> float:
    """Return how many bytes longer another rank's payload may be, or inf."""
    if isinstance(payload, tuple):
        return sum(map(_room, payload))
    if not isinstance(payload, Encoded) or payload.most is None:
        return inf if isinstance(payload, Encoded | Tensor) else 0.0
    if payload.places is None:
        return 0.0
    (values,) = payload.data
    return float((payload.most - len(values)) * (values.element_size() + PLACES.itemsize))


def _dtypes(packed: Packed) -> list[torch.dtype]:
    """Return the dtypes in which a payload is summed; the first holds numbers exactly."""
    dtypes = sorted(
        {tensor.dtype for tensor in packed.tensors}, key=lambda dtype: dtype not in EXACT
    )
    return dtypes if dtypes and dtypes[0] in EXACT else [torch.float64, *dtypes]


def _line() -> int:
    """Return the line of the program that starts a collective."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(BENEATH):
        frame = frame.f_back
    return frame.f_lineno
