"""The world of a run: a scenario, one of its algorithms, and the program that this names."""

from dataclasses import dataclass, replace
from typing import Any, Self

from ..programs import Program
from .scenario import Algorithm, Scenario


@dataclass(frozen=True)
class World:
    """All inputs of a run except its seed."""

    scenario: Scenario
    algorithm: Algorithm

    @property
    def program(self) -> Program:
        """The program of the algorithm."""
        return self.scenario.programs[self.algorithm.name]

    def under(self) -> Self:
        """Return the world under the recovery and the overheads that hold for the algorithm."""
        return replace(self, scenario=self.scenario.under(self.algorithm))

    def changed(self, **update: Any) -> Self:
        """Return the world with some of its scenario's tables replaced."""
        return replace(self, scenario=self.scenario.model_copy(update=update))

    @property
    def workers(self) -> int:
        """The workers that train at a time: fewer where clients are sampled."""
        return self.scenario.participants(self.algorithm)
