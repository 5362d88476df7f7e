"""Arrows between the slices of a timeline: where each begins and ends.

A viewer ties each end of an arrow to the slice that contains it. So an arrow begins just inside the
slice in which its source sent a message, and ends just inside the slice after which its target
acted on it.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from paceline.simulator.results.run import Cause

LEAST = 10  # nanoseconds; shorter slices get no arrows
BEGIN, END = 4, 2  # nanoseconds from an arrow's ends to the ends of their slices
PER_MICROSECOND = 1e3  # nanoseconds

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
        """Return start and end of each node's slice at each time, and whether there is one.

        A slice includes its end. Shapes (n,), times in nanoseconds.
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
            # or after one that is too short
            there[own] = (starts[own] <= at) & (at <= ends[own] + LEAST)
        return starts, ends, there


def drawn(
    arrows: np.ndarray, sent: np.ndarray, taken: np.ndarray, slices: Slices
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield both ends of every arrow that leads from a slice to a slice, as parts of trace events.

    `arrows`: of dtype `run.ARROW`; `sent`, `taken`: their times in nanoseconds, (n,).
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
