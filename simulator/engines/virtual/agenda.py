"""The agenda of a run: SimPy's events, and the nodes to resume."""

from collections import deque
from collections.abc import Callable
from heapq import heappush
from math import inf
from typing import Any

import simpy
from simpy.events import NORMAL, EventPriority

LAST = EventPriority(2)  # below all others: events exactly at the deadline count


class Agenda:
    """SimPy's events (`env`), the time of the `next` (s), and the nodes to resume with values."""

    __slots__ = ("env", "next", "ready")

    def __init__(self) -> None:
        self.env = simpy.Environment()
        self.next = inf
        self.ready: deque[tuple[Any, Any]] = deque()

    def call_at(
        self,
        time: float,
        callback: Callable[[simpy.Event], None],
        value: Any = None,
        priority: EventPriority = NORMAL,
    ) -> None:
        """Schedule an event of SimPy's at exactly `time`, or now if that is past.

        SimPy itself adds a delay to its clock, which rounds. Nodes have exact clocks, and would be
        behind a fabric that has advanced to the event.
        """
        env, event = self.env, simpy.Event(self.env)
        event._ok, event._value = True, value
        event.callbacks.append(callback)
        heappush(env._queue, (max(time, env.now), priority, next(env._eid), event))
        self.next = min(self.next, time)
