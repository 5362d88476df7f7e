"""The lines that the transfers of a run share.

The fabric (`network.fabric`) is a flow-level max-min model of the lines. Transports start transfers
there by number, with a callback for a transfer's end.

Three sources of events advance together, in `Simulation.release` and `advance`: SimPy and messages
(up to `until`), the fabric (when a transfer ends next), and changes (profiles, crashes). Invariant:
the fabric's clock never passes the earliest of the others, because it cannot go back. Events of
equal times come in the order fabric, changes, messages, SimPy. Changes pass only while a transfer
is in flight, so that endless ones keep no run alive. After a change run tests/engines/test_flows.py
and tests/network.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any

from ...network.flow_network import SharedNetwork
from ...network.topology.graph import Topology

Change = Callable[[float], None]


class SharedLines:
    """The lines of a run.

    `topology`: the network's graph. `transfers`: by number of those in flight, the functions to
    call at their ends.
    """

    def __init__(self, run: Any) -> None:
        self._agenda = run.agenda
        self.transfers: dict[int, Change] = {}
        self.topology = Topology(run.scenario)
        self.network = SharedNetwork(self.topology)
        self.fabric = self.network.fabric
        self._changes: list[tuple[float, int, Change]] = []
        self._count = 0
        for line in self.network.changing:
            self._change_next(line)

    def at(self, time: float, change: Change) -> None:
        """Schedule a change at `time`; changes of equal times keep their order."""
        if time < inf:
            self._count += 1
            heappush(self._changes, (time, self._count, change))

    def _change_next(self, line: int) -> None:
        """Schedule the next change of a line's capacity."""
        time, capacity = self.network.next_change(line)

        def change(at: float) -> None:
            self.network.change(at, line, capacity)
            self._change_next(line)

        self.at(time, change)

    def cancel(self, number: int, at: float) -> bool:
        """Cancel a transfer; return whether it was still in flight."""
        if self.transfers.pop(number, None) is None:
            return False
        self.fabric.cancel(at, number)
        return True

    def advance(self, until: float) -> bool:
        """Advance the fabric until transfers end, or to `until`, through network events.

        Calls the functions of ended transfers. Returns whether nodes may have become ready.
        """
        ready, ended_at = self._agenda.ready, None
        while self.transfers:
            change_at = self._changes[0][0] if self._changes else inf
            if change_at > until or change_at == inf:
                ended_at = self.fabric.advance(until)
                break
            ended_at = self.fabric.advance(change_at)
            if ended_at is not None:
                break
            time, _, change = heappop(self._changes)
            change(time)
            if ready:  # a crash left a single worker, which needs no network
                break
        if ended_at is None:
            return bool(ready)
        at, ended = ended_at
        for number in ended:
            self.transfers.pop(number)(at)
        return True
