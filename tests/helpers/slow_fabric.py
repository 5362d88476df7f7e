"""A slow reference for the fabric, which recomputes all rates by water-filling per event."""

from dataclasses import dataclass
from math import inf

import numpy as np


@dataclass(eq=False)
class Path:
    lines: list
    latency: float
    limit: float


@dataclass(eq=False)
class Flow:
    ticket: int
    path: Path
    size: float
    begins: float
    message: int = -1
    left: float = -1.0
    rate: float = 0.0

    @property
    def flowing(self):
        return self.left >= 0

    def next_event(self, clock):
        if not self.flowing:
            return self.begins
        return clock + self.left / self.rate if self.rate else inf


class SlowFabric:
    def __init__(self, capacities, per_flow=()):
        self.clock = 0.0
        self.capacity, self.per_flow = list(capacities), set(per_flow)
        self.paths, self.flows, self.runs = [], [], {}
        self.tickets = 0
        self.bytes, self.saturated = np.zeros(len(capacities)), np.zeros(len(capacities))

    def path(self, lines, latency, *, limit=inf):
        self.paths.append(Path(lines, latency, limit))
        return len(self.paths) - 1

    def send(self, at, path, size, latency=None):
        self._transfer(self.tickets, at, self.paths[path], size, latency)
        self.tickets += 1
        return self.tickets - 1

    def start(self, at, plan, sizes, latencies=None):
        ticket, self.tickets = self.tickets, self.tickets + 1
        self.runs[ticket] = plan, sizes, latencies, plan.waits.copy(), set(range(len(plan.path)))
        for message in np.flatnonzero(plan.waits == 0):
            self._message(ticket, at, message)
        return ticket

    def _message(self, ticket, at, message):
        plan, sizes, latencies, *_ = self.runs[ticket]
        size = plan.share[message] * sizes[plan.origin[message]]
        latency = None if latencies is None else latencies[message]
        self._transfer(ticket, at, self.paths[plan.path[message]], size, latency, message)

    def _transfer(self, ticket, at, path, size, latency, message=-1):
        begins = at + (path.latency if latency is None else latency)
        self.flows.append(Flow(ticket, path, size, begins, message))

    def cancel(self, ticket):
        self.flows = [flow for flow in self.flows if flow.ticket != ticket]

    def set_capacity(self, line, capacity):
        self.capacity[line] = capacity

    def usage(self):
        return self.bytes, self.saturated

    def advance(self, until):
        while True:
            ended = set()
            while sum(self._event(flow, ended) for flow in list(self.flows)):
                pass
            if ended:
                return self.clock, sorted(ended)
            self._solve()
            events = [flow.next_event(self.clock) for flow in self.flows]
            then = min([until, *events])
            if then < inf:
                self._flow_until(then)
            if then == until and until not in events:
                return None

    def _event(self, flow, ended):
        """Apply due events; return whether messages may have followed."""
        if not flow.flowing and flow.begins <= self.clock:
            flow.left = flow.size
        if not flow.flowing or flow.left > 1e-13 * flow.size:
            return False
        self.flows.remove(flow)
        if flow.message < 0:
            ended.add(flow.ticket)
            return False
        plan, _, _, waits, left = self.runs[flow.ticket]
        left.remove(flow.message)
        if not left:
            ended.add(flow.ticket)
        for follower in plan.followers[plan.offsets[flow.message] :][
            : plan.offsets[flow.message + 1] - plan.offsets[flow.message]
        ]:
            waits[follower] -= 1
            if waits[follower] == 0:
                self._message(flow.ticket, self.clock, follower)
        return True

    def _flow_until(self, then):
        span = then - self.clock
        for flow in filter(lambda flow: flow.flowing, self.flows):
            ends = self.clock + flow.left / flow.rate if flow.rate else inf
            carried = flow.left if ends <= then else flow.rate * span
            flow.left -= carried
            self.bytes[flow.path.lines] += carried
        self.saturated += span * self.full
        self.clock = then

    def _solve(self):
        """Raise the level of all rates until a cap or a line limits some, which are settled."""
        flows = [flow for flow in self.flows if flow.flowing]
        left = dict(enumerate(self.capacity))
        still = set(flows)
        while still:
            load = {}
            for flow in still:
                for line in set(flow.path.lines) - self.per_flow:
                    load[line] = load.get(line, 0) + 1
            level = {line: max(0.0, left[line]) / flows for line, flows in load.items()}
            limits = {
                flow: min(
                    [
                        flow.path.limit,
                        *(self.capacity[k] for k in flow.path.lines if k in self.per_flow),
                    ]
                )
                for flow in still
            }
            reach = {f: min([limits[f], *(level.get(k, inf) for k in f.path.lines)]) for f in still}
            lowest = min(reach.values())
            for flow in [flow for flow in still if reach[flow] <= lowest]:
                flow.rate = lowest
                still.remove(flow)
                for line in flow.path.lines:
                    left[line] -= flow.rate if flow.rate < inf else 0.0
        used = np.zeros(len(left))
        busy = np.zeros(len(left), bool)
        for flow in flows:
            used[flow.path.lines] += flow.rate
            busy[flow.path.lines] = True
        busy[list(self.per_flow)] = False
        self.full = busy & (used >= np.array(self.capacity) * (1 - 1e-9))
