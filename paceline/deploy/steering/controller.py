"""The controller of a deployed run: telemetry in, settings of the next rounds out."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from paceline.deploy.steering.policies import Decision, Policy
from paceline.deploy.steering.telemetry import Settings, Telemetry
from paceline.deploy.steering.watch import Watch
from paceline.simulator.programs.effects import Node
from paceline.simulator.programs.pieces.schedule import FixedPeriod, OwnPeriod


class Controller:
    """Steers one run, and watches it.

    `observe` takes in each round once all ranks have agreed on its record. `at(n)` is what round n
    (0, 1, ...) runs with: settled when first asked for, hence the same for every worker, and a
    change never touches a round under way. Where each rank is a process of its own, rank 0 decides
    and the session passes its `settings` on with the next record.
    """

    def __init__(self, settings: Settings, policy: Policy, watch: Watch | None = None) -> None:
        self.settings, self.policy, self.watch = settings, policy, watch
        self.log: list[Decision] = []
        self.said: list[str] = []
        self._rounds: list[Settings] = []

    def observe(self, record: Telemetry) -> list[str]:
        """Take in a round; return what is to be said of it now, and only now."""
        decision = self.policy(self.settings, record)
        if decision:
            self.log.append(decision)
            self.settings = decision.now
        news = self.watch(record, self.settings) if self.watch else []
        self.said += news
        return news

    def at(self, number: int) -> Settings:
        """Return the settings of a round."""
        while len(self._rounds) <= number:
            self._rounds.append(self.settings)
        return self._rounds[number]


class SteeredPeriod(OwnPeriod):
    """A communication period that a controller sets, at the start of each round.

    Means under way are those of finished rounds, with the steps that these had: programs that act
    on them a round later (cocod-sgd, overlap-local-sgd, delayed- and eager-diloco) do so at the
    end of the new round. Momenta over averages and what codecs have kept back stay as they are, as
    both are per round.
    """

    __slots__ = ("_controller", "_rounds")

    def __init__(self, controller: Controller) -> None:
        self._controller, self._rounds = controller, Counter[int]()

    def phase(self, me: Node) -> Callable[[int], float]:
        """Return the period of the worker's next round."""
        number = self._rounds[me.rank]
        self._rounds[me.rank] += 1
        return FixedPeriod(int(self._controller.at(number)["tau"]))

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"rounds": dict(self._rounds)}
