"""When the nodes of a run are up, and how the wall clock relates to their clocks.

- `Crashes`: nodes crash one by one, by their calendars; none does where there are no calendars;
- `Checkpoints`, in a module of its own: when one crashes, all go back to the last checkpoint.

After a change run tests/engines/test_crashes.py.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from paceline.simulator.cluster.failures import Calendar, any_in, calendars
from paceline.simulator.engines.observer import NEVER
from paceline.simulator.engines.virtual.checkpoints import Checkpoints
from paceline.simulator.engines.virtual.node import VirtualNode
from paceline.simulator.engines.virtual.outages import Outages
from paceline.simulator.programs import Program
from paceline.simulator.scenario.scenario import Scenario


class Availability(Protocol):
    """The availability of a run's nodes.

    `crashes`: of each node of the run; `calendars`: the same where nodes are down one by one, else
    empty. `save_every`, `save_cost`: steps between checkpoints, and seconds that one takes.
    """

    crashes: Sequence[Calendar]
    calendars: Sequence[Calendar]
    save_every: int
    save_cost: float

    def start(self, run: Any) -> None:
        """Schedule the crashes that move the end of the run."""

    def save(self, node: VirtualNode) -> None:
        """Note that a node has saved its state."""

    def wall_clock(self, time: float) -> float:
        """Return the wall-clock time when the nodes' clocks show `time`."""

    def node_clock(self, wall_clock: float) -> float:
        """Return the nodes' clocks at a past wall-clock time."""

    def repeated(self, end: float) -> tuple[float, float]:
        """Return the seconds up to `end` in which all were down, and repeated lost work."""

    def recovery_seconds(self, outages: Sequence[Outages], end: float) -> list[float]:
        """Return the seconds that each crash took to recover from, of those done before `end`."""

    def stall(self) -> str:
        """Return why the run makes no progress any more; empty if it does."""

    def timeline(
        self, spans: np.ndarray, arrows: np.ndarray, end: float, workers: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return spans and arrows, given by the nodes' clocks, in wall-clock time up to `end`."""


class Crashes:
    """Nodes that crash one by one, by their calendars: the wall clock is theirs."""

    save_every, save_cost = NEVER, 0.0

    def __init__(self, crashes: Sequence[Calendar]) -> None:
        self.crashes = self.calendars = crashes

    def start(self, run: Any) -> None:
        """Schedule nothing: nodes foresee their crashes."""

    def save(self, node: VirtualNode) -> None:
        """Note nothing: each node saves by itself."""

    def wall_clock(self, time: float) -> float:
        """Return the time."""
        return time

    def node_clock(self, wall_clock: float) -> float:
        """Return the time."""
        return wall_clock

    def repeated(self, end: float) -> tuple[float, float]:
        """Return zero: nodes count their own."""
        return 0.0, 0.0

    def recovery_seconds(self, outages: Sequence[Outages], end: float) -> list[float]:
        """Return what the nodes have counted."""
        return [seconds for each in outages for seconds in each.recovery_seconds.values()]

    def stall(self) -> str:
        """Return nothing: nodes that wait for each other are noticed otherwise."""
        return ""

    def timeline(
        self, spans: np.ndarray, arrows: np.ndarray, end: float, workers: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return them as they are."""
        return spans, arrows


def of(program: Program, scenario: Scenario, seed: int) -> Availability:
    """Return the availability of the nodes in one run of a program."""
    crashes = calendars(scenario, seed) if any_in(scenario) else []
    if not program.server:
        crashes = crashes[: scenario.cluster.workers]
    if crashes and scenario.recovery.checkpoint is not None:
        return Checkpoints(crashes, scenario, 1 if program.server else scenario.cluster.workers)
    return Crashes(crashes)
