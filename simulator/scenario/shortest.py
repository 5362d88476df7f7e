"""Find shortest paths between named places, by lengths of direct hops."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

Pair = tuple[str, str]


class ShortestPaths:
    """Shortest paths between places over hops of given lengths."""

    def __init__(self, names: Sequence[str], lengths: Mapping[Pair, float]) -> None:
        self._names, self._lengths = names, lengths
        self._number = {name: number for number, name in enumerate(names)}

    def hops(self, source: str, to: str) -> list[Pair]:
        """Return the hops from one place to another; empty if no hops connect them."""
        if source not in self._number or to not in self._number:
            return []
        ends, first, here = [to], self._number[source], self._number[to]
        while here != first:
            here = int(self._before[first, here])
            if here < 0:
                return []
            ends.append(self._names[here])
        return list(pairwise(reversed(ends)))

    @cached_property
    def _before(self) -> np.ndarray:
        """The place before the last on the shortest path of each pair, shape (places, places)."""
        from scipy.sparse.csgraph import floyd_warshall  # noqa: PLC0415 - 0.1 s

        lengths = np.full((len(self._names), len(self._names)), np.inf)
        for (source, to), length in self._lengths.items():
            lengths[self._number[source], self._number[to]] = length
        before: np.ndarray = floyd_warshall(lengths, return_predecessors=True)[1]
        return before
