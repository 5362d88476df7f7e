"""Effects: the closed vocabulary of actions that a program may take, as the class `Node`.

A program is a coroutine that gets a `Node` and nothing else. Each engine (the modules in `engines`,
and real training in `validate`) is one implementation of `Node`; a program cannot tell them apart.
The rule for `await`: exactly where other nodes may act before the program goes on. Instantaneous
effects (starting a mean, sending, reading the clock, marking) are plain calls.
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
"""Content of a message: a vector, a float, an `Encoded` vector, or a tuple of these."""

Handle = Any
"""An operation that was started and not yet awaited."""

Pieces = int | tuple[int, ...]
"""Number of nearly equal pieces of a vector, or their relative sizes, in the order of
`start_backward`."""

NOTHING = 0j
"""The vector of a time-only run. A complex zero does arithmetic at C speed, and no scalar that a
program shares (a loss, a clock) is complex, so that payloads still have the right size."""

ANY = -1
"""As a source: receive from any node."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A vector as a codec sends it.

    `data`: arrays that an average adds up; `places`: indices of their entries in the vector, None
    for all; `share`: of the whole model; `bytes`: its size on the network; `most`: entries
    that no worker's message exceeds, None if unknown; `bits`: that an integer entry has.
    """

    data: tuple[Vector, ...]
    places: Any
    share: float
    bytes: float
    most: int | None = None
    bits: int = 8


class Phase(NamedTuple):
    """Local steps: their learning rate, their transform, and after how many they end.

    The rate and the number are functions of the step.
    """

    lr: Callable[[int], Any]
    transform: Any
    until: Callable[[int], Any]


class Node(ABC):
    """One worker, or the server, as its program sees it.

    Attributes: `rank` (workers 0 to `workers` - 1; the server, if any, is `server`), `workers`,
    `server` (= `workers`), `start` (the initial parameters x1, read-only), `apply_seconds` (time of
    one update on the server), `parameters` and `bytes_per_parameter` (of the model that travels;
    `start` may be a smaller stand-in for it). `samples`: of this worker's data, over the mean of
    all workers; None where all have as many. `pace`: how many steps it takes, by its expected step
    time, while the slowest worker takes one. `participants`: how many of the workers
    [cluster.sampling] wants; without that, all. `resting`: whether it is out of the round, so that
    nothing is taken of what it brings to a mean.
    """

    __slots__ = (
        "apply_seconds", "bytes_per_parameter", "pace", "parameters", "participants", "rank",
        "samples", "server", "start", "workers",
    )  # fmt: skip
    rank: int
    workers: int
    participants: int
    server: int
    start: Vector
    apply_seconds: float
    parameters: int
    bytes_per_parameter: float
    samples: Any
    pace: float
    resting: bool = False

    @abstractmethod
    def gradient(self, x: Vector) -> Awaitable[Vector]:
        """Compute one stochastic mini-batch gradient at `x`: one local step of compute time."""

    @abstractmethod
    def loss_and_gradient(self, x: Vector) -> Awaitable[tuple[float, Vector]]:
        """As `gradient`, with the training loss of the same mini-batch."""

    @abstractmethod
    def start_backward(self, x: Vector, pieces: Pieces) -> Awaitable[Sequence[Handle]]:
        """Start one gradient at `x`; return its `pieces` in the order the backward pass frees them.

        Piece 0 is the end of the vector (the last layers), each piece a contiguous slice. Awaited
        as a gradient is, because a run may end before it. Time passes while its pieces are waited
        for, or in `receive_before`; a gradient that is never waited for is abandoned.
        """

    @abstractmethod
    def cut(self, vector: Vector, pieces: Pieces) -> Sequence[Vector]:
        """Cut a vector into contiguous pieces, in the order of `start_backward`."""

    @abstractmethod
    def join(self, pieces: Sequence[Vector]) -> Vector:
        """Put the pieces of one gradient, in the order of `start_backward`, together again."""

    @abstractmethod
    def start_mean(self, value: Payload) -> Handle:
        """Start the average of `value` over all workers; `value` is read-only from now on."""

    @abstractmethod
    def start_gather(self, value: Payload) -> Handle:
        """Start gathering every worker's `value`; the result is a tuple in rank order."""

    @abstractmethod
    def start_mean_after(self, handle: Handle, value: Callable[[Payload], Payload]) -> Handle:
        """Start the average of `value(result)` as soon as the collective `handle` has its result.

        `value` may be called at any time until the `wait`, so it must change nothing. The order of
        collectives is that of these calls.
        """

    @abstractmethod
    def wait(self, handle: Handle) -> Awaitable[Any]:
        """Wait for a started operation; return its result (read-only: all workers share it)."""

    @abstractmethod
    def finished(self, handle: Handle) -> Awaitable[bool]:
        """Tell whether the collective `handle` has finished on every worker: one answer for all.

        All workers must ask; the answer comes when the last one has asked, so that the control flow
        may depend on it. The flag itself takes no time on the network.
        """

    @abstractmethod
    def send(self, to: int, value: Payload) -> None:
        """Send `value` to node `to` without waiting; messages to one node keep their order."""

    @abstractmethod
    def receive(self, source: int = ANY) -> Awaitable[tuple[int, Payload]]:
        """Wait for the next message of `source`; return (sender, payload)."""

    @abstractmethod
    def receive_before(
        self, handle: Handle, source: int = ANY
    ) -> Awaitable[tuple[int, Payload] | None]:
        """As `receive`, but None if no message comes before `handle`: a gradient, or a timer."""

    @abstractmethod
    def timer(self, seconds: float) -> Handle:
        """Start a timer of `seconds`, for `wait` and `receive_before`."""

    @abstractmethod
    def count(self, gradients: int) -> None:
        """Tell the observer how many gradients the message received last stands for, if not one."""

    def discard(self) -> None:
        """Tell the observer that the gradient received last is not used. Takes no time."""
        self.count(0)

    @abstractmethod
    def generator(self, *, shared: bool = False) -> np.random.Generator:
        """Make a source of random numbers: the n-th of this node's own, or the n-th that all share.

        Keyed by the run's seed, so that the numbers are the same in every engine.
        """

    @abstractmethod
    def work(self, seconds: float) -> None:
        """Be busy for `seconds`, such as the server's processing."""

    def coding(self, kind: str, share: float) -> tuple[float, float]:
        """Return the seconds that a codec which states none takes, as far as measured.

        To compress a `share` of the model, and to decompress one message of it.
        """
        return 0.0, 0.0

    @abstractmethod
    def clock(self) -> float:
        """Return the seconds since the run began, on this node's own clock."""

    @abstractmethod
    def mark(self, x: Vector) -> None:
        """Report this node's parameters after a step to the observer. Takes no time.

        A server marks each update before it sends the new parameters, so that their age is known.
        """

    def resumed(self, **state: Any) -> tuple[Any, ...]:
        """Return the values with which a program's loop begins: these, or those of a checkpoint.

        Called once, right before the loop, with the names of all variables that an iteration leaves
        to the next, so that a checkpoint can be taken while the loop computes a gradient: before
        that, an iteration may change none of them, and it must bear to be begun twice.
        """
        return tuple(state.values())

    def mean(self, value: Payload) -> Awaitable[Any]:
        """Average `value` over all workers and wait for the result."""
        return self.wait(self.start_mean(value))

    def absentees(self) -> Set[int]:
        """Return the clients that are away now, where [cluster.sampling] is by availability."""
        return frozenset()

    def leap(self, transform: Any) -> Any:
        """Return an effect that takes local steps by `transform` at once, as `descend` one by one.

        It takes the parameters, the state, the first step's number and the `Phase`. None where the
        engine takes each step.
        """
        return None

    @abstractmethod
    def request(self, to: int, value: Payload) -> Awaitable[Payload]:
        """Send `value` to node `to` and wait for its answer."""
