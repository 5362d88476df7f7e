"""When the nodes of a run are up, and how the wall clock relates to their clocks.

`Availability` itself: nodes crash one by one, by their calendars; none does where there are none.
`checkpoints` has the other kind: when one crashes, all go back to the last checkpoint.

After a change run tests/engines/test_crashes.py.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...cluster.failures import Calendar
from ...cluster.membership import Members
from ..observer import NEVER
from .node import VirtualNode
from .outages import Outages


class Availability:
    """The availability of a run's nodes; where they crash one by one, the wall clock is theirs.

    `crashes`: of each node of the run; `calendars`: the same where nodes are down one by one, else
    empty. `members`: when workers are members, where they come and go. `save_every`, `save_cost`:
    steps between checkpoints, and seconds that one takes.
    """

    save_every, save_cost = NEVER, 0.0

    def __init__(self, crashes: Sequence[Calendar], members: Members | None = None) -> None:
        self.crashes = self.calendars = crashes
        self.members = members

    def start(self, run: Any) -> None:
        """Schedule the crashes that move the end of the run; nodes foresee all others."""

    def absent(self, rank: int, time: float) -> bool:
        """Whether a worker is down at a time because it is not a member then."""
        return self.members is not None and self.members.absent(rank, time)

    def save(self, node: VirtualNode) -> None:
        """Note that a node has saved its state."""

    def wall_clock(self, time: float) -> float:
        """Return the wall-clock time when the nodes' clocks show `time`."""
        return time

    def node_clock(self, wall_clock: float) -> float:
        """Return the nodes' clocks at a past wall-clock time."""
        return wall_clock

    def repeated(self, end: float) -> tuple[float, float]:
        """Return the seconds up to `end` in which all were down, and repeated lost work."""
        return 0.0, 0.0

    def recovery_seconds(self, outages: Sequence[Outages], end: float) -> list[float]:
        """Return the seconds that each crash took to recover from, of those done before `end`."""
        return [seconds for each in outages for seconds in each.recovery_seconds.values()]

    def stall(self) -> str:
        """Return why no node makes progress any more; empty if one does."""
        return ""

    def timeline(
        self, spans: np.ndarray, arrows: np.ndarray, end: float, workers: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return spans and arrows, given by the nodes' clocks, in wall-clock time up to `end`."""
        return spans, arrows
