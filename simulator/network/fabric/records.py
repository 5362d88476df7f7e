"""Define the tables of the fabric for its compiled loop (`transfers.py`)."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_F, _I = "f8", "i8"

# numba's cache on disk detects a change in a compiled function's file, but not in the files of its
# callees. So the type of STATE, an argument of all functions, contains a checksum of all kernel
# files: a change in any file recompiles all.
_KERNEL = ("sharing", "transfers")
_SOURCES = crc32(b"".join(Path(__file__).with_name(f"{n}.py").read_bytes() for n in _KERNEL))

STATE = np.dtype(
    [("clock", _F)]
    + [(name, _I) for name in ("solved", "slots", "hops", "events", "touched", "crew", "ended")]
    + [("stamp", _I), ("longest", _I), ("starting", _I), (f"sources_{_SOURCES:08x}", _I)]
)
"""Used rows of each table, and counts. The next solution covers `touched` lines and `crew` flows,
both marked by `stamp`; `ended`: tickets to report; `longest`: number of lines on the longest path;
`starting`: serial paths that may start a transfer at the end of the instant.
"""

LINE = np.dtype(
    [(name, _F) for name in ("capacity", "used", "carry", "bytes", "saturated", "since")]
    + [(name, _I) for name in ("first", "flows", "bound", "per_flow", "open", "full", "stamp")]
    + [("touched", _I)]
)
"""A line. `used` + `carry`: the compensated sum of its flows' rates (Neumaier); `first`: the HOP of
its first flow; `bound`: number of flows that this line limits; `full`: saturated from `since` on;
`open`: number of its flows without a rate during a solution. `touched[i]`: the i-th touched
line."""

FLOW = np.dtype(
    [(name, _F) for name in ("size", "left", "rate", "pace", "since")]
    + [(name, _I) for name in ("path", "hop", "hops", "next", "ticket", "run", "message")]
    + [(name, _I) for name in ("flowing", "bound", "open", "stamp", "crew", "ended")]
)
"""A reusable row for one transfer on one path; `next`: the next free or waiting row of the path;
`hop`, `hops`: its rows of HOP. At `since`, `left` bytes remained, at the rate `pace`; `rate`: the
latest solution, `bound`: the line that limits it, -1 for its path's limit.
`crew[i]`, `ended[i]`: the i-th flow of the crew, the i-th ended ticket."""

HOP = np.dtype([(name, _I) for name in ("line", "flow", "before", "after")])
"""An entry of a line's list of flows."""

PATH = np.dtype(
    [(name, _F) for name in ("latency", "limit")]
    + [(name, _I) for name in ("line", "lines", "free", "serial", "busy", "head", "tail")]
    + [("start", _I), ("listed", _I)]
)
"""A path; `line`, `lines`: its part of `path_lines`; `free`: a FLOW or -1. `serial`: whether its
transfers flow one after another; `busy`: the FLOW under way, `head` to `tail`: its queue (FLOWs or
-1). `start[i]`: the i-th path whose queue may advance; `listed`: whether this path is in it."""

QUEUE = np.dtype([("at", _F), ("item", _I), ("place", _I)])
"""A heap with an index: `heap[item].place` is the item's position in the heap, -1 if absent."""

MESSAGE = np.dtype(
    [("share", _F)] + [(name, "i4") for name in ("path", "origin", "followers")] + [("first", _I)]
)
"""A message of a plan; `first`, `followers`: index of its first follower in the table of followers,
and their number."""

RUN = np.dtype([(name, _I) for name in ("ticket", "left", "message", "waits", "size", "latency")])
"""A collective under way. `left`: number of messages in flight or waiting; `message`: the first row
of its plan. `waits`: index of its messages' numbers of pending predecessors. Indices into
`numbers`: `size`: its payloads, `latency`: its latencies (-1: the paths' latencies)."""

TABLES: dict[str, Any] = {
    "state": STATE, "flows": FLOW, "lines": LINE, "hops": HOP, "paths": PATH, "path_lines": _I,
    "events": QUEUE, "levels": QUEUE, "messages": MESSAGE, "followers": _I, "runs": RUN,
    "waits": _I, "numbers": _F,
}  # fmt: skip
"""All tables in the order of the kernel's arguments. `path_lines`: the lines of all paths;
`events`: FLOWs by the time of their next event; `levels`: see `sharing._fill`; `followers`: of all
messages; `waits`, `numbers`: tables that RUNs index."""


class Tables(SimpleNamespace):
    """The growing tables of one fabric, by name. `all`: the tuple for the kernel."""

    def __init__(self, lines: int) -> None:
        self._used: Counter[str] = Counter()
        for name, kind in TABLES.items():
            setattr(self, name, np.zeros(0, kind))
        self.state, self.lines = np.zeros(1, STATE), np.zeros(lines, LINE)
        self.state["stamp"], self.lines["first"] = 1, -1
        self.more_room()

    def append(self, name: str, rows: int) -> int:
        """Use `rows` more rows of a table; return the index of the first."""
        table: Array = getattr(self, name)
        first = self._used[name]
        self._used[name] = first + rows
        if first + rows > len(table):
            setattr(self, name, _longer(table, max(first + rows, 2 * len(table))))
            self._gather()
        return first

    def more_room(self) -> None:
        """Make room for twice as many concurrent transfers."""
        old = len(self.flows)
        flows, hops = max(16, 2 * old), max(64, 2 * len(self.hops))
        levels = len(self.lines) + flows
        rows = {"flows": flows, "hops": hops, "events": flows, "levels": levels}
        for name, count in rows.items():
            setattr(self, name, _longer(getattr(self, name), count))
        self.flows["ticket"][old:] = -1
        self.events["place"][old:] = self.levels["place"] = -1
        self._gather()

    def _gather(self) -> None:
        self.all = tuple(getattr(self, name) for name in TABLES)


def _longer(table: Array, rows: int) -> Array:
    longer = np.zeros(rows, table.dtype)
    longer[: len(table)] = table
    return longer
