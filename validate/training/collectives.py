"""Collectives of one run: payloads in, results out, and when they began and were done.

With every payload travel the line of the program that started it, a hash of its kind and sizes,
when each rank issued it, and whether its clock is past the end of the run: so all ranks see that
they mean the same collective, know when the last one joined, and stop after the same one.
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

# Numbers of our own before those of a payload: at which line of the program, a hash of what, when
# it was issued, whether that is past the end of the run
OWN = 4
BENEATH = (
    "paceline.validate.",
    "paceline.simulator.programs.effects",
    "paceline.simulator.programs.codecs.",
)  # a program
HASH = 0xFFFFFF  # bits of a hash that float32 holds


Landed = tuple[Payload, list[list[float]]]
"""The result of a mean, and the numbers of every rank."""


class Collective:
    """A collective under way, as `Node.start_mean` returns it.

    `step`: the worker's when it started; `last`: who joined last, and when; `begins`, `done`:
    seconds, and `size`: bytes of a payload, once it is settled; `chained`: others follow from it.
    """

    def __init__(
        self, number: int, kind: str, step: int, first: "Collective | None" = None
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
        """Take a payload apart, and note its state: it must not change until the end."""
        self.packed = packing.take_apart(payload)
        self.versions = [each._version for each in self.packed.tensors]
        return self.packed

    def about(self) -> float:
        """A hash of what is averaged or gathered."""
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
        self._unsettled: deque[Collective] = deque()
        self.started = self.settled = 0
        self.ending = False  # whether somebody's clock was past the end of the run

    def mean(self, payload: Payload, step: int) -> Collective:
        """Start an average."""
        handle = self._next("mean", step)
        self._network.starts("mean", self._meter(payload))
        self._start_mean(handle, lambda: payload)
        return handle

    def mean_after(
        self, first: Collective, value: Callable[[Payload], Payload], step: int
    ) -> Collective:
        """Start an average of what `value` makes of a result, as soon as that is there."""
        first.chained = True
        handle = self._next("mean", step, first)
        self._start_mean(handle, lambda: value(self._result(first)[0]), lambda: self._wait(first))
        return handle

    def gather(self, payload: Payload, step: int) -> Collective:
        """Start gathering. Sizes may differ, so everyone says its own first."""
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

    def question(self, handle: Collective, step: int) -> Collective:
        """Start asking everyone whether `handle` is finished there."""
        asked = Collective(self.started, "question", step, handle)
        self.started += 1
        known = float(all(each.done() for each in handle.pending))
        like = torch.empty(0, dtype=torch.float64)
        asked.pending = [self._transport.total(lambda: self._own(asked, [known], like))]
        return asked

    def answer(self, asked: Collective) -> bool:
        """Wait until everybody has asked; whether it was finished, and due, on every rank then."""
        handle = asked.first
        assert handle is not None
        everyone = self._read(asked.pending[0])
        asked.begins = asked.done = self._agree(asked, everyone)
        if not all(own[OWN] for own in everyone):
            return False
        self.settle(handle)
        return handle.done <= asked.done

    def _next(self, kind: str, step: int, first: Collective | None = None) -> Collective:
        handle = Collective(self.started, kind, step, first)
        self.started += 1
        self._unsettled.append(handle)
        return handle

    def _own(self, handle: Collective, numbers: list[float], like: Tensor) -> Tensor:
        """This rank's numbers, and its word on the collective itself."""
        now = self._clock.now()
        own = [float(handle.line), handle.about(), now, float(now > self._deadline), *numbers]
        return packing.write_numbers(own, self._rank, self._ranks, like)

    def _start_mean(
        self,
        handle: Collective,
        payload: Callable[[], Payload],
        after: Callable[[], None] | None = None,
    ) -> None:
        """One sum for each dtype; our numbers travel in the first that holds them exactly."""
        if after is None:
            packed = handle.hold(payload())
            dtypes = _dtypes(packed)
        else:  # known once the first result is there: of the same dtypes as that one
            assert handle.first is not None
            dtypes = _dtypes(handle.first.packed)
        for index, dtype in enumerate(dtypes):

            def buffer(index: int = index, dtype: torch.dtype = dtype) -> Tensor:
                if index == 0 and after is not None:
                    handle.hold(payload())
                return self._buffer(handle, dtype, first=index == 0)

            handle.pending.append(self._transport.total(buffer, after if index == 0 else None))

    def _buffer(self, handle: Collective, dtype: torch.dtype, first: bool) -> Tensor:
        packed = handle.packed
        parts = [each.detach().reshape(-1) for each in packed.tensors if each.dtype == dtype]
        if not first:
            return torch.cat(parts)
        length = self._length(packed)
        parts.insert(0, torch.empty(length, dtype=dtype, device=self._device))
        buffer = torch.cat(parts)
        buffer[:length] = self._own(handle, packed.numbers, buffer)  # last: it says when
        return buffer

    def _length(self, packed: Packed) -> int:
        """Entries that everybody's numbers take."""
        return self._ranks * PARTS * (OWN + len(packed.numbers))

    def _wait(self, handle: Collective) -> None:
        for each in handle.pending:
            each.wait()

    def _result(self, handle: Collective) -> Landed:
        """A mean that is really there, though it may not be due yet; and everyone's numbers."""
        with handle.lock:  # a thread may ask for it, too, to start what follows from it
            if handle.landed is None:
                handle.landed = self._land(handle)
            return handle.landed

    def _land(self, handle: Collective) -> Landed:
        found, m = [each.wait() for each in handle.pending], self._ranks
        packed = handle.packed  # known by now, also of what had to wait for another result
        totals = dict(zip(_dtypes(packed), found, strict=True))
        offsets = dict.fromkeys(totals, 0)
        first = next(iter(totals))
        offsets[first] = length = self._length(packed)
        everyone = packing.read_numbers(totals[first][:length], m)
        tensors = []
        for one in packed.tensors:
            start = offsets[one.dtype]
            offsets[one.dtype] = end = start + one.numel()
            tensors.append(totals[one.dtype][start:end].div_(m).reshape(one.shape))
        own = [sum(column) / m for column in zip(*everyone, strict=True)][OWN:]
        return packing.put_together(Packed(packed.skeleton, tensors, packed.places, own)), everyone

    def _read(self, pending: Pending) -> list[list[float]]:
        return packing.read_numbers(pending.wait(), self._ranks)

    def land(self, handle: Collective) -> None:
        """Wait until `handle`, and all before it, are really there."""
        for each in self._unsettled:
            self._wait(each)
            if each is handle:
                break

    def settle(self, handle: Collective) -> None:
        """Wait until `handle`, and all before it, are really there; find out when they are due.

        Raises ProgramError when ranks mean different collectives, or a payload was changed.
        """
        while not handle.settled:
            self._settle(self._unsettled.popleft())

    def _settle(self, handle: Collective) -> None:
        if handle.kind == "mean":
            handle.result, everyone = self._result(handle)
            sizes = [self._meter(packing.put_together(handle.packed))]
        else:
            everyone = self._read(handle.pending[0])
            handle.result = self._gathered(handle, everyone)
            sizes = [self._meter(each) for each in handle.result]
        joined = self._agree(handle, everyone)
        handle.check()
        if handle.first is not None:
            joined = max(joined, handle.first.done)
            self._network.starts("mean", sizes[0])
        size, largest = sum(sizes) / len(sizes), max(sizes) if len(sizes) > 1 else None
        handle.size = size
        handle.begins, handle.done = self._network.collective(handle.kind, size, largest, joined)
        handle.settled = True
        self.settled += 1

    def _agree(self, handle: Collective, everyone: list[list[float]]) -> float:
        """When the last rank joined. Raises ProgramError if the ranks mean different collectives.

        Also notes who that was, and that somebody is past the end of the run.
        """
        mine = handle.line, handle.about()
        for rank, (line, about, _, past, *_) in enumerate(everyone):
            self.ending = self.ending or past > 0
            if (line, about) != mine:
                raise ProgramError(
                    f"worker {self._rank} starts {handle.kind} {handle.number} at line "
                    f"{handle.line} of its program, worker {rank} another one, at line {line:.0f}: "
                    "all workers must start the same ones in one order"
                )
        at, rank = max((issued, rank) for rank, (_, _, issued, *_) in enumerate(everyone))
        handle.last = rank, at
        return at

    def _gathered(self, handle: Collective, everyone: list[list[float]]) -> Payload:
        rows = handle.pending[1].wait().cpu()
        return tuple(
            packing.put_together(packing.from_bytes(row[: int(own[OWN])], self._device))
            for row, own in zip(rows, everyone, strict=True)
        )

    def drain(self) -> None:
        """Wait until all that was started has really ended: others wait for it."""
        for handle in self._unsettled:
            self._wait(handle)


def _dtypes(packed: Packed) -> list[torch.dtype]:
    """The dtypes of a payload's sums, one that holds numbers exactly first."""
    found = sorted({each.dtype for each in packed.tensors}, key=lambda each: each not in EXACT)
    return found if found and found[0] in EXACT else [torch.float64, *found]


def _line() -> int:
    """The line of the program that starts a collective."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(BENEATH):
        frame = frame.f_back
    return frame.f_lineno


def _wait(pending: Pending) -> None:
    pending.wait()
