"""Simulate transfers that share lines max-min fairly: a flow-level model.

*Flow-level* means that the unit is a transfer, not a packet: a transfer waits for the latency of
its path and then flows over all its lines at once, like water through pipes. Its rate changes only
when a transfer begins or ends, or when a line's capacity changes. There are no packets, queues or
losses; TCP is represented by its window. docs/evidence/simgrid.md compares the same transfers with
SimGrid's, which uses the same model.

A *line* is one direction of a link or network card; a *path* is a set of lines with a latency.
Collectives are plans of messages that wait for one another (`messages.py`). A *ticket* is the
number that `send` or `start` returns, and that `advance` reports at the end; a collective has one.

The caller registers paths, starts transfers at or after `clock`, and calls `advance`, which runs a
compiled loop (`transfers.py`) over the tables of `records.py` until tickets end. It is compiled
because a ring among 256 workers has 130,000 messages. It is local: an event updates only the rates
of flows that it can affect (`sharing.py`), and they equal those of a solution for all flows.

Invariants:
- Time never goes back: callers start nothing before `clock`, and changes apply at `clock`.
- Every rate is max-min fair whenever time passes; all events of an instant are handled before
rates are computed, so their order at that instant does not change the rates.
- Equal inputs give equal bits: ties are ordered by ticket, then by message; sums of rates are
compensated.
- The kernel never allocates. If a table might be too small for the next event, it returns ROOM
first, and is called again with larger tables: never store a reference to a table.
- Plain numbers only: the model imports no other file of Paceline, so it can be tested alone.

After a change: tests/network/test_fabric.py (against a slow reference solver, bit for bit where the
order is the same) and tests/lab/bench/parts.py (microseconds a message).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from . import transfers
from .messages import Messages
from .records import Array, Tables


@dataclass
class _Loaded:
    """A plan in the tables: its first MESSAGE, messages without waits, free RUNs."""

    message: int
    firsts: Array
    workers: int
    free: list[int]


class Fabric:
    """Lines and their transfers, in seconds, bytes and bytes/s; the clock starts at 0.

    `capacities`: bytes/s of each line, inf: unlimited. `per_flow`: lines that give their whole
    capacity to every flow.
    """

    def __init__(self, capacities: Sequence[float], per_flow: Collection[int] = ()) -> None:
        self._tables = Tables(len(capacities))
        self._tables.lines["capacity"] = capacities
        self._tables.lines["per_flow"][list(per_flow)] = 1
        self._clock = self._tables.state["clock"]
        self._plans: dict[Messages, _Loaded] = {}
        self._running: dict[int, tuple[int, _Loaded]] = {}
        self._tickets = 0

    @property
    def clock(self) -> float:
        """Simulated time so far."""
        return float(self._clock[0])

    @property
    def solved(self) -> int:
        """Number of rates computed so far, a measure of the work done."""
        return int(self._tables.state["solved"][0])

    def path(
        self,
        lines: Sequence[int],
        latency: float,
        *,
        limit: float = inf,
        serial: bool = False,
    ) -> int:
        """Register a path over distinct `lines`; return its number.

        A transfer's rate is at most `limit`. On a `serial` path transfers flow one after another,
        as messages of one connection. Raises ValueError for a duplicate line.
        """
        if len(set(lines)) < len(lines):
            raise ValueError("a line occurs twice on a path; name it once")
        number = self._tables.append("paths", 1)
        at = self._tables.append("path_lines", len(lines))
        self._tables.path_lines[at : at + len(lines)] = lines
        row = latency, limit, at, len(lines), -1, serial, -1, -1, -1, 0, 0
        self._tables.paths[number] = row
        self._tables.state["longest"] = max(self._tables.state["longest"][0], len(lines))
        return number

    def send(self, at: float, path: int, size: float, latency: float | None = None) -> int:
        """Start a transfer of `size` bytes at `at`; return its ticket.

        `latency`: the transfer's latency (s); None: the path's latency.
        """
        self._check(at)
        ticket = self._ticket()
        wait = -1.0 if latency is None else latency
        while transfers.send(self._tables.all, at, path, size, wait, ticket) == transfers.ROOM:
            self._tables.more_room()
        return ticket

    def start(
        self, at: float, plan: Messages, sizes: Sequence[float], latencies: Array | None = None
    ) -> int:
        """Start a collective at `at` (s); return its ticket, one for all messages.

        `sizes`: payload of each worker in bytes; `latencies`: latency of each message (s); None:
        the paths' latencies.
        """
        self._check(at)
        loaded = self._plans.get(plan) or self._load(plan)
        number = loaded.free.pop() if loaded.free else self._new_run(plan, loaded)
        run = self._tables.runs[number]
        ticket = self._ticket()
        run["ticket"], run["left"] = ticket, len(plan.path)
        self._tables.waits[run["waits"] :][: len(plan.waits)] = plan.waits
        self._tables.numbers[run["size"] :][: loaded.workers] = sizes[: loaded.workers]
        run["latency"] = -1
        if latencies is not None:
            run["latency"] = run["size"] + loaded.workers
            self._tables.numbers[run["latency"] :][: len(plan.path)] = latencies
        self._running[ticket] = number, loaded
        while transfers.start(self._tables.all, at, number, loaded.firsts) == transfers.ROOM:
            self._tables.more_room()
        return ticket

    def cancel(self, ticket: int) -> None:
        """Remove a ticket's transfers now, even before their start; it is not reported."""
        transfers.cancel(self._tables.all, ticket)
        self._free(ticket)

    def set_capacity(self, line: int, capacity: float) -> None:
        """Change a line's capacity from now on; with capacity 0 its flows stand still."""
        transfers.set_capacity(self._tables.all, line, capacity)

    def advance(self, until: float) -> tuple[float, list[int]] | None:
        """Run until tickets end, or to `until`; return the time (s) and the ended tickets.

        Return None if no ticket ends by then: the clock is at `until`, or unchanged if `until` is
        inf and nothing moves. The next call may return the same time again, because transfers that
        the caller starts at that time may take no time.
        """
        while True:
            status = transfers.advance(self._tables.all, until)
            if status > 0:
                tickets = self._tables.flows["ended"][:status].tolist()
                if self._running:
                    for ticket in tickets:
                        self._free(ticket)
                return self.clock, sorted(tickets)
            if status == transfers.DONE:
                return None
            self._tables.more_room()

    def usage(self) -> tuple[Array, Array]:
        """Return the bytes of each line so far, and its seconds of saturation."""
        flows, hops = self._tables.flows, self._tables.hops[: self._tables.state["hops"][0]]
        carried = flows["size"] - flows["left"] + flows["pace"] * (self.clock - flows["since"])
        carried = np.where(flows["flowing"] > 0, np.minimum(carried, flows["size"]), 0.0)
        carried_by = self._tables.lines["bytes"].copy()
        np.add.at(carried_by, hops["line"], carried[hops["flow"]])
        lines = self._tables.lines
        saturated = lines["saturated"] + lines["full"] * (self.clock - lines["since"])
        return carried_by, saturated

    def _check(self, at: float) -> None:
        if not at >= self._clock[0]:
            raise ValueError(f"{at:g} s is before the clock; give {self.clock:g} s or later")

    def _ticket(self) -> int:
        self._tickets += 1
        return self._tickets - 1

    def _free(self, ticket: int) -> None:
        if ticket in self._running:
            number, loaded = self._running.pop(ticket)
            loaded.free.append(number)

    def _load(self, plan: Messages) -> _Loaded:
        """Write a plan into the tables. Raises ValueError for a plan without messages."""
        if not len(plan.path):
            raise ValueError("a plan without messages never ends; add a message")
        count = len(plan.path)
        first = self._tables.append("messages", count)
        offset = self._tables.append("followers", len(plan.followers))
        self._tables.followers[offset:][: len(plan.followers)] = plan.followers
        rows = self._tables.messages[first : first + count]
        rows["path"], rows["share"], rows["origin"] = plan.path, plan.share, plan.origin
        rows["followers"], rows["first"] = np.diff(plan.offsets), plan.offsets[:-1] + offset
        firsts = np.flatnonzero(plan.waits == 0)
        loaded = self._plans[plan] = _Loaded(first, firsts, int(plan.origin.max()) + 1, [])
        return loaded

    def _new_run(self, plan: Messages, loaded: _Loaded) -> int:
        """Add a RUN of a plan, for one more concurrent collective."""
        count = len(plan.path)
        number = self._tables.append("runs", 1)
        waits = self._tables.append("waits", count)
        size = self._tables.append("numbers", loaded.workers + count)
        self._tables.runs[number] = -1, 0, loaded.message, waits, size, -1
        return number
