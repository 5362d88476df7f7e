"""Arrows between the slices of a timeline: where each begins and ends.

An end of an arrow is tied to the slice in which it lies, so both lie just inside one: in what a
node did up to when it sent something, and in what ended when that was acted on.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from paceline.simulator.results.run import Cause

LEAST = 10  # nanoseconds of a slice that an arrow can be tied to
BEGIN, END = 4, 2  # nanoseconds by which an arrow's ends keep off the end of their slices
PER_MICROSECOND = 1e3

Ends = tuple[np.ndarray, np.ndarray, np.ndarray]


class Slices:
    """The slices of all nodes, from `starts` to `ends` (n,), nanoseconds."""

    def __init__(self, nodes: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> None:
        self._of: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for node in np.unique(nodes).tolist():
            own = np.flatnonzero((nodes == node) & (ends - starts >= LEAST))
            own = own[np.argsort(starts[own], kind="stable")]
            self._of[node] = starts[own], ends[own]

    def around(self, nodes: np.ndarray, times: np.ndarray) -> Ends:
        """The slice in which, or at whose end, each node is at each time: from when to when.

        Also whether there is one. Shapes (n,).
        """
        starts, ends = np.zeros_like(times), np.zeros_like(times)
        there = np.zeros(len(times), dtype=bool)
        for node in np.unique(nodes).tolist():
            begin, end = self._of.get(node, (times[:0], times[:0]))
            if not len(begin):
                continue
            own = np.flatnonzero(nodes == node)
            at = times[own]
            places = np.maximum(np.searchsorted(begin, at, side="left") - 1, 0)
            starts[own], ends[own] = begin[places], end[places]
            # or at the end of one that is too short
            there[own] = (starts[own] <= at) & (at <= ends[own] + LEAST)
        return starts, ends, there


def drawn(
    arrows: np.ndarray, sent: np.ndarray, taken: np.ndarray, slices: Slices
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The ends of all arrows that lead from a slice to a slice, as parts of trace events.

    `arrows`: of dtype `trace.ARROW`; when they were `sent` and `taken`: (n,), nanoseconds.
    """
    starts, ends, there = slices.around(arrows["source"], sent)
    begins = np.maximum(starts, np.minimum(sent, ends) - BEGIN)
    starts, ends, also = slices.around(arrows["target"], taken)
    comes = np.maximum(np.maximum(starts, np.minimum(taken, ends) - END), begins)
    for index in np.flatnonzero(there & also & (comes < ends)).tolist():
        source, target, cause, *_ = arrows[index].tolist()
        name = {"name": Cause(cause).name.lower(), "cat": "between workers"}
        yield (
            {**name, "tid": source, "ts": int(begins[index]) / PER_MICROSECOND},
            {**name, "tid": target, "ts": int(comes[index]) / PER_MICROSECOND},
        )
