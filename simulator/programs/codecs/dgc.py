"""Define deep gradient compression: top-k of a step of momentum SGD."""

from math import ceil, floor
from typing import Annotated, Any, ClassVar, Literal, Self

from array_api_compat import array_namespace
from pydantic import Field, model_validator

from ..effects import Node, Vector
from ..pieces.piece import Number, piece
from .channel import Random
from .dense import BITS
from .message_codec import Data, State
from .sparse import PLACE, Ratio, Sparse, largest

SAMPLED = 0.01  # share of the entries in the sample for the threshold
FEWEST = 1000  # fewest entries of the sample: with fewer, a small stand-in would send too many
LEAST, MOST = 0.8, 1.3  # accepted range of entries above the threshold, over the wanted number
LOWERINGS = 10  # most reductions of a threshold


@piece
class DGC(Sparse):
    """The largest entries of momentum SGD's displacement since they were last sent.

    u = mu u + g, v = v + u; the largest of |v| are sent, and u and v are set to zero there
    (Lin et al., arXiv 1712.01887, algorithm 1 with momentum factor masking). The k largest are
    estimated by a threshold: the corresponding quantile of a sample of evenly spaced entries, of
    size 1 % of all, 2 / ratio or 1000, whichever is largest. If more than 1.3 k entries pass it,
    exactly the k largest are sent. While fewer than 0.8 k pass it, it is multiplied by 0.8, up to
    ten times. If the vector is hardly larger than its sample, exactly the k largest are sent.
    """

    kind: Literal["dgc"] = "dgc"
    ratio: Ratio = 0.001
    momentum: Annotated[
        Number, Field(ge=0, lt=1, description="momentum, instead of the program's")
    ] = 0.9
    warmup: Annotated[
        int, Field(ge=0, strict=True, description="number of messages over which the ratio falls")
    ] = 0
    warmup_ratio: Annotated[
        Number, Field(gt=0, le=1, description="ratio of the warm-up's first message")
    ] = 0.25
    gathers: ClassVar[bool] = True
    carries_momentum: ClassVar[bool] = True

    @model_validator(mode="after")
    def _falls(self) -> Self:
        if self.warmup and self.warmup_ratio < self.ratio:
            raise ValueError("`warmup_ratio` is below `ratio`; write one above it")
        return self

    def ratio_of(self, number: int) -> float:
        """Return the target share of entries in message `number` (0, 1, ...).

        During a warm-up of W messages it falls exponentially: warmup_ratio (ratio /
        warmup_ratio)^(number / W).
        """
        if number >= self.warmup:
            return self.ratio
        return float(self.warmup_ratio * (self.ratio / self.warmup_ratio) ** (number / self.warmup))

    def generator(self, me: Node) -> Random:
        """Make a generator for this node: it draws where samples begin."""
        return me.generator()

    def init(self, vector: Vector, random: Random) -> State:
        """Start with zero momentum and zero residual."""
        return 0.0 * vector, 0.0 * vector, random

    def encode(self, vector: Vector, state: State, number: int) -> tuple[Data, Any, State]:
        """Accumulate the gradient, send its largest entries, and clear them."""
        u, v, random = state
        u = self.momentum * u + vector
        v = v + u
        places = about_largest(abs(v), self.ratio_of(number), random)
        values = v[places]
        u[places] = v[places] = 0.0
        return (values,), places, (u, v, random)

    def size(self, parameters: float, width: float, number: int, share: float | None) -> float:
        """Return the bytes of the entries that passed the threshold, and of their places."""
        share = self.ratio_of(number) if share is None else share
        return share * parameters * (width + PLACE)

    def layout(self, entries: int, number: int) -> tuple[int, int]:
        """Return the largest number of entries in a message, and the bits of an int8."""
        ratio = self.ratio_of(number)
        count = ceil(ratio * entries)
        return (count if stride(entries, ratio) <= 1 else floor(MOST * count)), BITS


def stride(n: int, ratio: float) -> int:
    """Return the distance between sampled entries of `n`: odd, as layers are even."""
    return (n // max(ceil(SAMPLED * n), ceil(2 / ratio), FEWEST) - 1) | 1


def about_largest(sizes: Vector, ratio: float, random: Random) -> Any:
    """Return the places of roughly the `ratio` largest of `sizes`, in ascending order."""
    n = len(sizes)
    count = ceil(ratio * n)
    apart = stride(n, ratio)
    if apart <= 1:
        return largest(sizes, count)
    sample = sizes[int(random.integers(apart)) :: apart]
    threshold = sample[largest(sample, ceil(ratio * len(sample)))].min()
    places = _passing(sizes, threshold)
    for _ in range(LOWERINGS):
        if len(places) >= LEAST * count:
            break
        threshold = LEAST * threshold
        places = _passing(sizes, threshold)
    if len(places) > MOST * count:
        return places[largest(sizes[places], count)]
    return places


def _passing(sizes: Vector, threshold: Vector) -> Any:
    """Return the places of sizes at or above the threshold; nan passes."""
    return array_namespace(sizes).nonzero(~(sizes < threshold))[0]
