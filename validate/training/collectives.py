"""Collectives of one run: start them, wait for results, and agree on when they began and ended.

Every payload carries the line of the program that started it, a hash of its kind and sizes, when
each rank issued it, and whether that rank's clock is past the end of the run. So all ranks check
that they run the same collective, know when the last one joined, and stop after the same one.
"""

import sys
from collections import deque
from collections.abc import Callable
from math import inf, nan
from threading import Lock
from zlib import crc32

import torch
from torch import Tensor

from paceline.simulator.errors import ProgramError
from paceline.simulator.programs.effects import Payload
from paceline.validate.training import packing
from paceline.validate.training.clock import Clock
from paceline.validate.training.emulated_network import RealNetwork
from paceline.validate.training.packing import EXACT, PARTS, Packed, TensorMeter
from paceline.validate.training.transport import DeviceGroup, Pending

# Numbers added before those of a payload: line of the program, hash, time of issue, whether that is
# past the end of the run
OWN = 4
BENEATH = (
    "paceline.validate.",
    "paceline.simulator.programs.effects",
    "paceline.simulator.programs.codecs.",
)  # packages whose frames lie between a program and this file
HASH = 0xFFFFFF  # bits of a hash that float32 holds exactly


Landed = tuple[Payload, list[list[float]]]
"""The result of a mean, and the numbers of each rank."""


class RealCollective:
    """A collective under way, the handle that `Node.start_mean` returns.

    `step`: the worker's at the start; `last`: rank that joined last, and when; `begins`, `done`
    (seconds) and `size` (bytes of a payload): known once settled; `chained`: another collective
    averages what is computed from its result.
    """

    def __init__(
        self, number: int, kind: str, step: int, first: "RealCollective | None" = None
    ) -> None:
        self.number, self.kind, self.step, self.first = number, kind, step, first
        self.chained = self.settled = False
        self.begins = self.done = inf
        self.last = 0, -inf
        self.size = nan
        self.result: Payload = None
        self.pending: list[Pending] = []
        self.packed = Packed(None, [], [], [])
        self.versions: list[int] = []
        self.line = _line()
        self.landed: Landed | None = None
        self.lock = Lock()

    def hold(self, payload: Payload) -> Packed:
        """Take a payload apart, and record its version: it must not change until the end."""
        self.packed = packing.take_apart(payload)
        self.versions = [each._version for each in self.packed.tensors]
        return self.packed

    def about(self) -> float:
        """Return a hash of the kind, dtypes and sizes of what is averaged or gathered."""
        sizes = [(str(each.dtype), each.numel()) for each in self.packed.tensors]
        alike = sizes if self.kind == "mean" else ()  # gathered ones may differ in size
        return float(crc32(repr((self.kind, alike)).encode()) & HASH)

    def check(self) -> None:
        """Raise ProgramError if the payload was changed meanwhile."""
        if self.versions != [each._version for each in self.packed.tensors]:
            raise ProgramError(
                f"{self.kind} {self.number}: what is averaged was changed before its wait; vectors "
                "are never changed in place"
            )


class Collectives:
    """The collectives of one worker, in order."""

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        transport: DeviceGroup,
        network: RealNetwork,
        meter: TensorMeter,
        rank: int,
        ranks: int,
        clock: Clock,
        device: torch.device,
        deadline: float,
    ) -> None:
        self._transport, self._network, self._meter = transport, network, meter
        self._rank, self._ranks, self._clock, self._device = rank, ranks, clock, device
        self._deadline = deadline
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
        """Start an average of `value(result of first)` as soon as that result is there."""
        first.chained = True
        handle = self._next("mean", step, first)
        self._start_mean(handle, lambda: value(self._result(first)[0]), lambda: self._wait(first))
        return handle

    def gather(self, payload: Payload, step: int) -> RealCollective:
        """Start gathering. Sizes can differ, so ranks exchange their sizes first."""
        handle = self._next("gather", step)
        message = packing.to_bytes(handle.hold(payload))
        self._network.starts("gather", self._meter(payload))
        lengths = self._transport.total(
            lambda: self._own(handle, [float(len(message))], torch.empty(0, dtype=torch.float64))
        )

        def padded() -> Tensor:
            longest = int(max(each[OWN] for each in self._read(lengths)))
            whole = torch.zeros(longest, dtype=torch.uint8)
            whole[: len(message)] = message
            return whole

        handle.pending = [lengths, self._transport.gather(padded, after=lambda: _wait(lengths))]
        return handle

    def question(self, handle: RealCollective, step: int) -> RealCollective:
        """Start asking all ranks whether `handle` is finished there."""
        asked = RealCollective(self.started, "question", step, handle)
        self.started += 1
        known = float(all(each.done() for each in handle.pending))
        like = torch.empty(0, dtype=torch.float64)
        asked.pending = [self._transport.total(lambda: self._own(asked, [known], like))]
        return asked

    def answer(self, asked: RealCollective) -> bool:
        """Wait until all ranks have asked; return whether it was then finished, and due, on all."""
        handle = asked.first
        assert handle is not None
        by_rank = self._read(asked.pending[0])
        asked.begins = asked.done = self._agree(asked, by_rank)
        if not all(own[OWN] for own in by_rank):
            return False
        self.settle(handle)
        return handle.done <= asked.done

    def _next(self, kind: str, step: int, first: RealCollective | None = None) -> RealCollective:
        handle = RealCollective(self.started, kind, step, first)
        self.started += 1
        self._unsettled.append(handle)
        return handle

    def _own(self, handle: RealCollective, numbers: list[float], like: Tensor) -> Tensor:
        """Write this rank's `numbers`, preceded by those that describe the collective."""
        now = self._clock.now()
        own = [float(handle.line), handle.about(), now, float(now > self._deadline), *numbers]
        return packing.write_numbers(own, self._rank, self._ranks, like)

    def _start_mean(
        self,
        handle: RealCollective,
        payload: Callable[[], Payload],
        after: Callable[[], None] | None = None,
    ) -> None:
        """Start one sum for each dtype; numbers travel in the first that holds them exactly."""
        if after is None:
            packed = handle.hold(payload())
            dtypes = _dtypes(packed)
        else:  # its payload depends on the first result, and has the same dtypes
            assert handle.first is not None
            dtypes = _dtypes(handle.first.packed)
        for index, dtype in enumerate(dtypes):

            def buffer(index: int = index, dtype: torch.dtype = dtype) -> Tensor:
                if index == 0 and after is not None:
                    handle.hold(payload())
                return self._buffer(handle, dtype, first=index == 0)

            handle.pending.append(self._transport.total(buffer, after if index == 0 else None))

    def _buffer(self, handle: RealCollective, dtype: torch.dtype, first: bool) -> Tensor:
        packed = handle.packed
        parts = [each.detach().reshape(-1) for each in packed.tensors if each.dtype == dtype]
        if not first:
            return torch.cat(parts)
        length = self._length(packed)
        parts.insert(0, torch.empty(length, dtype=dtype, device=self._device))
        buffer = torch.cat(parts)
        buffer[:length] = self._own(
            handle, packed.numbers, buffer
        )  # written last, as it holds the time of issue
        return buffer

    def _length(self, packed: Packed) -> int:
        """Return the entries that the numbers of all ranks take."""
        return self._ranks * PARTS * (OWN + len(packed.numbers))

    def _wait(self, handle: RealCollective) -> None:
        for each in handle.pending:
            each.wait()

    def _result(self, handle: RealCollective) -> Landed:
        """Return a mean that has arrived, perhaps not due yet, and the numbers of all ranks."""
        with handle.lock:  # a thread that starts a chained collective may need it, too
            if handle.landed is None:
                handle.landed = self._land(handle)
            return handle.landed

    def _land(self, handle: RealCollective) -> Landed:
        found, m = [each.wait() for each in handle.pending], self._ranks
        packed = handle.packed  # known by now, also for chained collectives
        totals = dict(zip(_dtypes(packed), found, strict=True))
        offsets = dict.fromkeys(totals, 0)
        first = next(iter(totals))
        offsets[first] = length = self._length(packed)
        by_rank = packing.read_numbers(totals[first][:length], m)
        tensors = []
        for one in packed.tensors:
            start = offsets[one.dtype]
            offsets[one.dtype] = end = start + one.numel()
            tensors.append(totals[one.dtype][start:end].div_(m).reshape(one.shape))
        own = [sum(column) / m for column in zip(*by_rank, strict=True)][OWN:]
        return packing.put_together(Packed(packed.skeleton, tensors, packed.places, own)), by_rank

    def _read(self, pending: Pending) -> list[list[float]]:
        return packing.read_numbers(pending.wait(), self._ranks)

    def land(self, handle: RealCollective) -> None:
        """Wait until `handle` and all before it have arrived."""
        for each in self._unsettled:
            self._wait(each)
            if each is handle:
                break

    def settle(self, handle: RealCollective) -> None:
        """Wait until `handle` and all before it have arrived, and compute when they are due.

        Raises ProgramError if ranks run different collectives, or a payload was changed.
        """
        while not handle.settled:
            self._settle(self._unsettled.popleft())

    def _settle(self, handle: RealCollective) -> None:
        if handle.kind == "mean":
            handle.result, by_rank = self._result(handle)
            sizes = [self._meter(packing.put_together(handle.packed))]
        else:
            by_rank = self._read(handle.pending[0])
            handle.result = self._gathered(handle, by_rank)
            sizes = [self._meter(each) for each in handle.result]
        joined = self._agree(handle, by_rank)
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
        """Return when the last rank joined; record which, and whether any is past the run's end.

        Raises ProgramError if the ranks run different collectives.
        """
        mine = handle.line, handle.about()
        for rank, (line, about, _, past, *_) in enumerate(by_rank):
            self.ending = self.ending or past > 0
            if (line, about) != mine:
                raise ProgramError(
                    f"worker {self._rank} starts {handle.kind} {handle.number} at line "
                    f"{handle.line} of its program, worker {rank} another one, at line {line:.0f}: "
                    "all workers must start the same ones in one order"
                )
        at, rank = max((issued, rank) for rank, (_, _, issued, *_) in enumerate(by_rank))
        handle.last = rank, at
        return at

    def _gathered(self, handle: RealCollective, by_rank: list[list[float]]) -> Payload:
        rows = handle.pending[1].wait().cpu()
        return tuple(
            packing.put_together(packing.from_bytes(row[: int(own[OWN])], self._device))
            for row, own in zip(rows, by_rank, strict=True)
        )

    def drain(self) -> None:
        """Wait until every collective started has ended, as other ranks need them."""
        for handle in self._unsettled:
            self._wait(handle)


def _dtypes(packed: Packed) -> list[torch.dtype]:
    """Return the dtypes of a payload's sums, first one that holds numbers exactly."""
    found = sorted({each.dtype for each in packed.tensors}, key=lambda each: each not in EXACT)
    return found if found and found[0] in EXACT else [torch.float64, *found]


def _line() -> int:
    """Return the line of the program that starts a collective."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(BENEATH):
        frame = frame.f_back
    return frame.f_lineno


def _wait(pending: Pending) -> None:
    pending.wait()
