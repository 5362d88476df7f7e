"""Learn what a program will communicate, before its run, by running it alone for a moment.

One gradient serves all its steps, and whatever it averages or gathers comes back as if all workers
had given the same; its messages come back as their receivers' own. So its collectives have the
sizes and dtypes of the run's.
"""

from collections.abc import Callable
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from .collectives import Collectives, RealCollective
from .learner import OnHost
from .transport import Make, Pending

Asked = dict[tuple[str, int, str], None]
"""Method of `DeviceGroup`, entries and dtype of each rank's buffer; in order, each once."""


class Echo:
    """Stands in for a group of `size` ranks that all give what this one gives; notes it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.asked: Asked = {}

    def size(self) -> int:
        """Return the number of ranks."""
        return self._size

    def total(self, buffer: Make, after: Callable[[], object] | None = None) -> Pending:
        """Return the sum."""
        made = self._note("total", buffer, after).mul_(self._size)
        return Pending([], lambda: made)

    def gather(self, buffer: Make, after: Callable[[], object] | None = None) -> Pending:
        """Return a row for each rank."""
        made = self._note("gather", buffer, after)
        return Pending([], lambda: made.expand(self._size, -1))

    def alltoall_base(self, theirs: Tensor, mine: Tensor, *_: object) -> Any:
        """Give all ranks' flags."""
        return Pending([], lambda: theirs.copy_(mine))

    def _note(self, kind: str, buffer: Make, after: Callable[[], object] | None) -> Tensor:
        if after is not None:
            after()
        made = buffer()
        self.asked[kind, made.numel(), str(made.dtype).removeprefix("torch.")] = None
        return made


class Post:
    """Stands in for a group of `size` nodes that send back whatever they are sent."""

    def __init__(self, size: int) -> None:
        self._sent = [SimpleQueue[Tensor]() for _ in range(size)]

    def send(self, tensors: list[Tensor], to: int, tag: int) -> Any:
        """Send at once."""
        self._sent[to].put(tensors[0])
        return SimpleNamespace(is_completed=lambda: True, wait=lambda: None)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> Any:
        """Receive into a buffer, perhaps longer than the message."""

        def arrive() -> None:
            message = self._sent[source].get()
            tensors[0][: len(message)] = message

        return SimpleNamespace(wait=arrive)


class Alone(Collectives):
    """The collectives of a worker whose peers are an `Echo`."""

    def _agree(self, handle: RealCollective, by_rank: list[list[float]]) -> float:
        """Return the present time: the others have no numbers of their own."""
        return self._clock.now()


class OneGradient(OnHost):
    """A worker whose mini-batches all have the loss and the gradient `found`."""

    def __init__(self, gradient: tuple[Tensor, Tensor]) -> None:
        super().__init__(None)
        self._gradient = gradient

    def tensors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return them."""
        return self._gradient
