"""Communication graphs: which workers gossip with each other, and with what weights.

Graphs are undirected and connected. A scenario writes a graph by name, or as a table with its
settings; its edges follow from the number of workers, the same on every worker.
"""

from collections.abc import Iterable
from functools import cache
from hashlib import blake2b
from math import fsum, isqrt
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from .piece import Kinds, piece

Ranks = tuple[int, ...]


class Graph:
    """Base of graphs: neighbours and mixing weights; each subclass defines `_beside`."""

    __slots__ = ()

    def neighbours(self, rank: int, workers: int) -> Ranks:
        """Return the ranks that `rank` is joined to, ascending, each once, without `rank`.

        Raises ValueError for a rank outside 0 ... workers - 1.
        """
        return _neighbours(self, rank, workers)

    def weights(self, rank: int, workers: int) -> tuple[tuple[int, float], ...]:
        """Return a row of the mixing matrix W: pairs (rank, weight), with `rank` itself.

        Metropolis weights, W_ij = 1 / (1 + max(degree_i, degree_j)) and W_ii = 1 - sum of the rest
        (Xiao, Boyd and Lall, Robust distributed sensor fusion based on average consensus, 2005).
        W is symmetric and doubly stochastic, and of its eigenvalues only the first, 1, has modulus
        1. The least may be -1/3 or below (an even ring, a torus): a method that needs more, as D^2
        does, mixes with (I + W) / 2.
        """
        degree = len(self.neighbours(rank, workers))
        row = {
            other: 1 / (1 + max(degree, len(self.neighbours(other, workers))))
            for other in self.neighbours(rank, workers)
        }
        row[rank] = 1 - fsum(row.values())
        return tuple(sorted(row.items()))

    def active(self, rank: int, workers: int) -> bool:
        """Return whether a worker starts averagings, as half of them do, or answers.

        If both ends of an edge could start, workers could wait for each other in a circle; with two
        colours they cannot (AD-PSGD, Lian et al., arXiv 1710.06952).
        """
        return rank % 2 == 0

    def partners(self, rank: int, workers: int) -> Ranks:
        """Return the neighbours of the other colour, ascending: one or more if not alone.

        Edges within a colour, such as the one that closes an odd ring, are left out; the rest still
        joins all workers. Raises ValueError as `neighbours` does.
        """
        mine = self.active(rank, workers)
        return tuple(
            other
            for other in self.neighbours(rank, workers)
            if self.active(other, workers) is not mine
        )

    def _beside(self, rank: int, workers: int) -> Iterable[int]:
        """Return the ranks joined to `rank`; duplicates and `rank` itself are allowed."""
        raise NotImplementedError


@piece
class Ring(Graph):
    """Each worker has two neighbours: the one before it and the one after it."""

    kind: Literal["ring"] = "ring"

    def _beside(self, rank: int, workers: int) -> Iterable[int]:
        return _around(rank, workers)


@piece
class Torus(Graph):
    """A grid closed at both ends, filled row by row: neighbours above, below, left and right.

    The grid is as near to a square as the number of workers allows; for a prime number it is one
    row: a ring.
    """

    kind: Literal["torus"] = "torus"

    def active(self, rank: int, workers: int) -> bool:
        """Return whether row + column is even, as on a chessboard."""
        row, column = divmod(rank, _columns(workers))
        return (row + column) % 2 == 0

    def _beside(self, rank: int, workers: int) -> Iterable[int]:
        columns = _columns(workers)
        row, column = divmod(rank, columns)
        above_and_below = (other * columns + column for other in _around(row, workers // columns))
        return *above_and_below, *(row * columns + other for other in _around(column, columns))


@piece
class Complete(Graph):
    """Every worker is a neighbour of every other: a gossip step is the mean of all."""

    kind: Literal["complete"] = "complete"

    def _beside(self, rank: int, workers: int) -> Iterable[int]:
        return range(workers)


@piece
class Random(Graph):
    """A ring and `degree` - 2 random matchings, each of which joins the workers in pairs.

    No worker has more than `degree` neighbours; it has fewer where matchings repeat an edge, and
    where the number of workers is odd, as a matching then leaves one out. Long-range edges make
    the diameter logarithmic (Bollobas and Chung, The diameter of a cycle plus a random matching,
    1988).
    """

    degree: Annotated[
        int, Field(ge=2, strict=True, description="most neighbours a worker has; 2 is the ring")
    ] = 4
    seed: Annotated[int, Field(ge=0, strict=True, description="draws another graph")] = 0
    kind: Literal["random"] = "random"

    def _beside(self, rank: int, workers: int) -> Iterable[int]:
        return *_around(rank, workers), *(pairs[rank] for pairs in _matchings(self, workers))


def _around(place: int, size: int) -> Ranks:
    return (place - 1) % size, (place + 1) % size


@cache
def _columns(workers: int) -> int:
    """Return the columns of the grid that is nearest to a square."""
    return workers // max(rows for rows in range(1, isqrt(workers) + 1) if workers % rows == 0)


@cache
def _neighbours(graph: Graph, rank: int, workers: int) -> Ranks:
    if not 0 <= rank < workers:
        raise ValueError(f"no rank {rank} among {workers} workers; choose 0 to {workers - 1}")
    return tuple(sorted({*graph._beside(rank, workers)} - {rank}))


@cache
def _matchings(graph: Random, workers: int) -> tuple[Ranks, ...]:
    """Return each worker's partner, per matching; itself if it is left out.

    Workers are shuffled by a hash of (seed, matching, rank), which is the same everywhere and in
    every version, and paired with their successors.
    """
    matchings = []
    for number in range(min(graph.degree, workers - 1) - 2):
        keys = (blake2b(f"{graph.seed} {number} {rank}".encode()) for rank in range(workers))
        shuffled = [rank for _, rank in sorted((key.digest(), r) for r, key in enumerate(keys))]
        pairs = list(range(workers))
        for one, other in zip(shuffled[::2], shuffled[1::2], strict=False):
            pairs[one], pairs[other] = other, one
        matchings.append(tuple(pairs))
    return tuple(matchings)


GRAPHS = Kinds(Ring, Torus, Complete, Random)


def _graph(value: Any) -> Graph:
    graph: Graph | None = value if isinstance(value, Graph) else GRAPHS.read(value)
    if graph is None:
        raise ValueError(
            f"not a graph; write one of: {GRAPHS}; "
            'or a table such as { kind = "random", degree = 4 }'
        )
    return graph


GraphOf = Annotated[
    Graph,
    PlainValidator(_graph),
    WithJsonSchema(
        {
            "anyOf": [{"enum": GRAPHS.names}, {"anyOf": GRAPHS.schemas}],
            "description": "graph of the workers that gossip: its name, or its table",
        }
    ),
]
