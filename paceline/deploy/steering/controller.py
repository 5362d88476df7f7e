"""The controller of a deployed run: telemetry in, settings of the next rounds out."""

from math import isfinite
from typing import ClassVar

from .policies import Decision, Policy
from .telemetry import Settings, Telemetry
from .watch import Watch


class Controller:
    """Steers one run, and watches it.

    `observe` takes in each round once all ranks have agreed on its record; the `settings` wanted
    then are for the session to tell all ranks. Without `steers` the `log` is advice.
    """

    KEPT: ClassVar = ("settings", "policy", "watch", "log")

    def __init__(
        self, settings: Settings, policy: Policy, watch: Watch | None = None, *, steers: bool = True
    ) -> None:
        self.settings, self.policy, self.watch, self._steers = settings, policy, watch, steers
        self.log: list[Decision] = []

    def observe(self, record: Telemetry) -> list[str]:
        """Take in a round; return what is to be said of it now, and only now."""
        if not all(map(isfinite, record.compute)):  # something came between all steps of a rank
            return []
        decision = self.policy(self.settings, record)
        if decision:
            self.log.append(decision)
            if self._steers:
                self.settings = decision.now
        best = self.log[-1].now if self.log else self.settings
        return self.watch(record, best if self.policy.knows else None) if self.watch else []
