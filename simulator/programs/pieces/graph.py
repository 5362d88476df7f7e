"""Define communication graphs: the neighbours of each worker, and their weights.

Graphs are undirected and connected. A scenario names a graph.
Its edges depend only on the number of workers, so all workers agree on them.
"""

from collections.abc import Iterable
from functools import cache
from math import fsum, isqrt
from typing import Annotated, Literal

from .piece import Kinds, piece

Ranks = tuple[int, ...]


class Graph:
    """Base of graphs: neighbours and mixing weights; each subclass defines `_joined`."""

    __slots__ = ()

    def neighbours(self, rank: int, workers: int) -> Ranks:
        """Return the other ranks joined to `rank`, ascending, without duplicates.

        Raises ValueError for a rank outside 0 ... workers - 1.
        """
        return _neighbours(self, rank, workers)

    def weights(self, rank: int, workers: int) -> tuple[tuple[int, float], ...]:
        """Return a row of the mixing matrix W: pairs (rank, weight), with `rank` itself.

        Metropolis weights, W_ij = 1 / (1 + max(degree_i, degree_j)) and W_ii = 1 - sum of the rest
        (Xiao, Boyd and Lall, Robust distributed sensor fusion based on average consensus, 2005).
        W is symmetric and doubly stochastic, and only its first eigenvalue has modulus 1. The
        least may be -1/3 or below (an even ring, a torus): a method that needs more, such as D^2,
        mixes with (I + W) / 2.
        """
        degree = len(self.neighbours(rank, workers))
        row = {
            other: 1 / (1 + max(degree, len(self.neighbours(other, workers))))
            for other in self.neighbours(rank, workers)
        }
        row[rank] = 1 - fsum(row.values())
        return tuple(sorted(row.items()))

    def active(self, rank: int, workers: int) -> bool:
        """Return whether a worker starts averages (half of them do) or answers them.

        If both ends of an edge could start, workers could wait for each other in a cycle; with two
        colours they cannot (AD-PSGD, Lian et al., arXiv 1710.06952).
        """
        return rank % 2 == 0

    def partners(self, rank: int, workers: int) -> Ranks:
        """Return neighbours of the other colour, ascending: one or more of two workers.

        Edges within a colour, such as the one that closes an odd ring, are excluded; the others
        still connect all workers. Raises ValueError as `neighbours` does.
        """
        colour = self.active(rank, workers)
        return tuple(
            other
            for other in self.neighbours(rank, workers)
            if self.active(other, workers) is not colour
        )

    def _joined(self, rank: int, workers: int) -> Iterable[int]:
        """Return the ranks joined to `rank`; duplicates and `rank` itself are allowed."""
        raise NotImplementedError


@piece
class Ring(Graph):
    """Each worker has two neighbours: the one before it and the one after it."""

    kind: Literal["ring"] = "ring"

    def _joined(self, rank: int, workers: int) -> Iterable[int]:
        return _around(rank, workers)


@piece
class Torus(Graph):
    """A grid whose rows and columns are rings; a worker has four neighbours.

    The grid is as close to a square as the number of workers allows; a prime number gives a
    single row: a ring.
    """

    kind: Literal["torus"] = "torus"

    def active(self, rank: int, workers: int) -> bool:
        """Return whether row + column is even, as on a chessboard."""
        row, column = divmod(rank, _columns(workers))
        return (row + column) % 2 == 0

    def _joined(self, rank: int, workers: int) -> Iterable[int]:
        columns = _columns(workers)
        row, column = divmod(rank, columns)
        above_and_below = (other * columns + column for other in _around(row, workers // columns))
        return *above_and_below, *(row * columns + other for other in _around(column, columns))


@piece
class Complete(Graph):
    """All workers are neighbours, so a gossip step is the mean of all."""

    kind: Literal["complete"] = "complete"

    def _joined(self, rank: int, workers: int) -> Iterable[int]:
        return range(workers)


def _around(place: int, size: int) -> Ranks:
    return (place - 1) % size, (place + 1) % size


@cache
def _columns(workers: int) -> int:
    """Return the number of columns of the grid that is closest to a square."""
    return workers // max(rows for rows in range(1, isqrt(workers) + 1) if workers % rows == 0)


@cache
def _neighbours(graph: Graph, rank: int, workers: int) -> Ranks:
    if not 0 <= rank < workers:
        raise ValueError(f"no rank {rank} among {workers} workers; choose 0 to {workers - 1}")
    return tuple(sorted({*graph._joined(rank, workers)} - {rank}))


GRAPHS = Kinds(Ring, Torus, Complete)


_ABOUT = "graph of the workers that gossip: its name, or its table"
_read, _schema = GRAPHS.field("graph", "neighbours", _ABOUT, '{ kind = "torus" }')
GraphOf = Annotated[Graph, _read, _schema]
