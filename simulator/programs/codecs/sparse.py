"""Define codecs that send some entries, and store the others as a residual."""

from functools import cache
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from array_api_compat import array_namespace, device
from pydantic import Field

from ..effects import Node, Vector
from ..pieces.piece import Number, piece
from .channel import Random
from .dense import BITS
from .message_codec import Data, MessageCodec, State

PLACE = 4  # bytes of an entry's index in the vector
SEED = 8  # bytes of the common seed of the places
Ratio = Annotated[Number, Field(gt=0, le=1, description="share of entries to send")]


@piece
class Sparse(MessageCodec):
    """Some entries, with error feedback: the others are added to the next vector.

    Stich et al., arXiv 1809.07599, algorithm 1.
    """

    ratio: Ratio = 0.01
    feeds_back: ClassVar[bool] = True

    def init(self, vector: Vector, random: Random) -> State:
        """Start with a zero residual."""
        return 0.0 * vector, random

    def encode(self, vector: Vector, state: State, number: int) -> tuple[Data, Any, State]:
        """Send some entries of vector plus residual; the others are the next residual."""
        residual, random = state
        total = vector + residual
        places = self.choose(total, self.layout(total.shape[-1], number)[0], random)
        entries = of_rows(total, places)
        values = total[entries]
        total[entries] = 0.0
        return (values,), places, (total, random)

    def choose(self, vector: Vector, count: int, random: Random) -> Any:
        """Choose the distinct places of the `count` entries to send."""
        raise NotImplementedError

    def add(self, total: Vector, data: Data, places: Any) -> Vector:
        """Add the sent entries; the others are zero."""
        total[of_rows(total, places)] += data[0]
        return total

    def size(self, parameters: float, width: float, number: int, share: float | None) -> float:
        """Return the bytes of the sent entries and of their places."""
        return self.ratio * parameters * (width + PLACE)

    def layout(self, entries: int, number: int) -> tuple[int, int]:
        """Return the fixed number of sent entries, and the bits of an int8."""
        return max(1, round(self.ratio * entries)), BITS


@piece
class TopK(Sparse):
    """The largest entries. Workers send different places, so messages are gathered."""

    kind: Literal["top-k"] = "top-k"
    gathers: ClassVar[bool] = True
    rowwise: ClassVar[bool] = True

    def choose(self, vector: Vector, count: int, random: Random) -> Any:
        """Choose the largest by absolute value."""
        return largest(abs(vector), count)


@piece
class RandomK(Sparse):
    """Random entries, the same on all workers, so messages can be summed in transit.

    Places are not sent, because all workers draw them from the same random numbers.
    """

    kind: Literal["random-k"] = "random-k"
    rowwise: ClassVar[bool] = True

    def generator(self, me: Node) -> Random:
        """Make the generator that all workers share."""
        return me.generator(shared=True)

    def choose(self, vector: Vector, count: int, random: Random) -> Any:
        """Choose uniformly at random."""
        places = random.choice(vector.shape[-1], size=count, replace=False, shuffle=False)
        return array_namespace(vector).asarray(places, device=device(vector))

    def size(self, parameters: float, width: float, number: int, share: float | None) -> float:
        """Return the bytes of the sent entries, and of a seed."""
        return self.ratio * parameters * width + SEED


def of_rows(vector: Vector, places: Any) -> Any:
    """Return an index of the entries at `places[row]` of the last axis, for each row."""
    if vector.ndim == 1:
        return places
    return (*_rows(vector.shape[:-1]), places)


@cache
def _rows(shape: tuple[int, ...]) -> list[Any]:
    return [row[..., None] for row in np.ogrid[tuple(map(slice, shape))]]


def largest(sizes: Vector, count: int) -> Any:
    """Return the places of the `count` largest sizes, ascending; nan is largest.

    Among equal sizes the first win, so the choice does not depend on the library.
    """
    xp = array_namespace(sizes)
    if sizes.ndim > 1:
        falling = xp.argsort(xp.where(xp.isnan(sizes), -xp.inf, -sizes), axis=-1, stable=True)
        return xp.sort(falling[..., :count], axis=-1)
    if hasattr(sizes, "topk"):  # torch
        least = sizes.topk(count).values[-1]
    else:
        least = xp.partition(sizes, len(sizes) - count)[len(sizes) - count]
    above = xp.nonzero(~(sizes <= least))[0][:count]
    level = xp.nonzero(sizes == least)[0][: count - len(above)]
    return xp.sort(xp.concat([above, level]))
