"""Define `Node`: the effects, which are all actions that a program may take.

A program is a coroutine that receives a `Node` and its parameters. Each engine (the modules in
`engines`, and real training in `validate`) implements `Node`; a program cannot tell them apart.
The rule for `await`: a program awaits an effect exactly if other nodes may act during it.
Instantaneous effects (starting a mean, sending, reading the clock, marking) are plain calls.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Vector = Any
"""A vector of parameters: a NumPy array, a torch tensor, or `NOTHING` in time-only runs. Programs
use +, -, * and / on vectors and never change one in place."""

Payload = Any
"""Content of a message: a vector, a float, a `Latest` clock, an `Encoded` vector, or a tuple."""

Handle = Any
"""A started operation that the program has not awaited yet."""

Pieces = int | tuple[int, ...]
"""Number of nearly equal pieces of a vector, or their relative sizes, in the order of
`start_backward`."""

NOTHING = 0j
"""The vector of a time-only run. A complex zero does arithmetic at C speed, and no scalar that a
program shares (a loss, a clock) is complex, so that payloads still have the right size."""

ANY = -1
"""As a source: receive from any node."""


class Latest(float):
    """A worker's clock; an average of clocks is the latest one instead of the mean."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A vector encoded by a codec.

    `data`: arrays that an average sums. `places`: indices of their entries in the vector, None
    for all. `share`: the vector's share of the whole model. `bytes`: size on the network. `most`:
    largest number of entries in any worker's message, None if unknown. `bits`: bits of an integer.
    `grid`: codec whose numbers are the only ones in the data, which then need only its bits, or "".
    """

    data: tuple[Vector, ...]
    places: Any
    share: float
    bytes: float
    most: int | None = None
    bits: int = 8
    grid: str = ""


class Phase(NamedTuple):
    """A phase of local steps: their rate, their transform, and their number.

    Rate and number are functions of the step.
    """

    lr: Callable[[int], Any]
    transform: Any
    until: Callable[[int], Any]


class Node(ABC):
    """One worker, or the server, from the view of its program.

    Attributes: `rank` (workers 0 to `workers` - 1; the server, if any, is `server`), `workers`,
    `server` (= `workers`), `start` (the initial parameters x1, read-only), `apply_seconds` (time of
    one update on the server), `parameters`, `bytes_per_parameter` and `tensors` (of the model on
    the network; `start` may be a smaller stand-in; no sizes of tensors: unknown). `samples`: this
    worker's number of samples over the mean of all workers; None if all are equal. `pace`: expected
    number of this worker's steps during a step of the slowest. `participants`: the number of
    workers that [cluster.sampling] selects; without it, all. `resting`: whether the worker is
    outside the round, so that means ignore its part.
    """

    __slots__ = (
        "apply_seconds", "bytes_per_parameter", "pace", "parameters", "participants", "rank",
        "samples", "server", "start", "tensors", "workers",
    )  # fmt: skip
    rank: int
    workers: int
    participants: int
    server: int
    start: Vector
    apply_seconds: float
    parameters: int
    bytes_per_parameter: float
    tensors: Sequence[int]
    samples: Any
    pace: float
    resting: bool = False

    @abstractmethod
    def gradient(self, x: Vector) -> Awaitable[Vector]:
        """Compute a stochastic mini-batch gradient at `x`: one local step's time."""

    @abstractmethod
    def loss_and_gradient(self, x: Vector) -> Awaitable[tuple[float, Vector]]:
        """Compute a gradient as `gradient` does, with the training loss of the mini-batch."""

    @abstractmethod
    def start_backward(self, x: Vector, pieces: Pieces) -> Awaitable[Sequence[Handle]]:
        """Start a gradient at `x`; return its pieces in the order of the backward pass.

        Pieces are contiguous slices; piece 0 is the end of the vector (the last layers). The call
        is awaited like a gradient, because a run may end before it. Time passes in waits for
        pieces, or in `receive_before`; a gradient without a wait is abandoned.
        """

    @abstractmethod
    def cut(self, vector: Vector, pieces: Pieces) -> Sequence[Vector]:
        """Cut a vector into contiguous pieces, in the order of `start_backward`."""

    @abstractmethod
    def join(self, pieces: Sequence[Vector]) -> Vector:
        """Join the pieces of a gradient, in the order of `start_backward`, into a vector."""

    @abstractmethod
    def start_mean(self, value: Payload) -> Handle:
        """Start the mean of `value` over all workers; `value` is read-only from then on."""

    @abstractmethod
    def start_gather(self, value: Payload) -> Handle:
        """Start gathering every worker's `value`; the result is a tuple in rank order."""

    @abstractmethod
    def start_mean_after(self, handle: Handle, value: Callable[[Payload], Payload]) -> Handle:
        """Start the average of `value(result)` once the collective `handle` is done.

        `value` may be called at any time before the `wait`, so it must have no side effects.
        Collectives are ordered by these calls.
        """

    @abstractmethod
    def wait(self, handle: Handle) -> Awaitable[Any]:
        """Wait for a started operation; return its result, shared and read-only."""

    @abstractmethod
    def finished(self, handle: Handle) -> Awaitable[bool]:
        """Return whether the collective `handle` has finished on every worker.

        All workers must call this; the answer comes once the last has called, so the control flow
        may depend on it. The answer takes no time on the network.
        """

    @abstractmethod
    def arrived(self, handle: Handle) -> Awaitable[bool]:
        """Return whether this worker has the result of the collective `handle` by now.

        It asks no other worker, so answers differ between workers. A program that acts on them sets
        `Program.pooled_with`, because its workers no longer take their steps together.
        """

    @abstractmethod
    def send(self, to: int, value: Payload) -> None:
        """Send `value` to node `to` without waiting; messages to a node keep their order."""

    @abstractmethod
    def receive(self, source: int = ANY) -> Awaitable[tuple[int, Payload]]:
        """Wait for the next message of `source`; return (sender, payload)."""

    @abstractmethod
    def receive_before(
        self, handle: Handle, source: int = ANY
    ) -> Awaitable[tuple[int, Payload] | None]:
        """Receive as `receive` does; None if `handle` (a gradient or timer) is done first."""

    @abstractmethod
    def timer(self, seconds: float) -> Handle:
        """Start a timer of `seconds`, for `wait` and `receive_before`."""

    @abstractmethod
    def count(self, gradients: int) -> None:
        """Report the number of gradients in the last received message, if not one."""

    def discard(self) -> None:
        """Report that the program does not use the last received gradient. Takes no time."""
        self.count(0)

    @abstractmethod
    def generator(self, *, shared: bool = False) -> np.random.Generator:
        """Make a source of random numbers: the next of this node, or the next shared one.

        It is keyed by the run's seed, so the numbers are the same in every engine.
        """

    @abstractmethod
    def work(self, seconds: float) -> None:
        """Be busy for `seconds`, such as the server's processing."""

    def coding(self, kind: str, share: float) -> tuple[float, float]:
        """Return the measured times (s) of a codec that states none; 0 if not measured.

        The first is to compress a `share` of the model, the second to decompress a message of it.
        """
        return 0.0, 0.0

    @abstractmethod
    def clock(self) -> float:
        """Return the seconds since the start of the run, on this node's clock."""

    def arrival(self) -> Any:
        """Return the clock as an entry of an average, whose result is the latest clock."""
        return Latest(self.clock())

    @abstractmethod
    def mark(self, x: Vector) -> None:
        """Report this node's parameters after a step to the observer. Takes no time.

        A server marks every update before it sends the new parameters, so their age is defined.
        """

    def resumed(self, **state: Any) -> tuple[Any, ...]:
        """Return a loop's initial values: the arguments, or those of a checkpoint.

        Call it once, right before the loop, with all variables that one iteration passes to the
        next. A checkpoint is taken while the loop computes a gradient: before that, an iteration
        must not change these variables, and it may run twice.
        """
        return tuple(state.values())

    def mean(self, value: Payload) -> Awaitable[Any]:
        """Average `value` over all workers and wait for the result."""
        return self.wait(self.start_mean(value))

    def absentees(self) -> Set[int]:
        """Return the clients absent now if [cluster.sampling] is by availability."""
        return frozenset()

    def leap(self, transform: Any) -> Any:
        """Return an effect that takes many steps of `descend` at once, or None.

        Its arguments: the parameters, the transform's state, the number of the first step, and
        the `Phase`.
        """
        return None

    @abstractmethod
    def request(self, to: int, value: Payload) -> Awaitable[Payload]:
        """Send `value` to node `to` and wait for its answer."""
