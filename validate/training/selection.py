"""Clients that each round of a real run selects: those that the simulator draws."""

from paceline.simulator.engines.sampling import Sampled, samples
from paceline.simulator.network.closed_form import Team
from paceline.simulator.network.mean_cost import download_cost
from paceline.simulator.programs import Program
from paceline.simulator.scenario.scenario import Scenario


class Selection:
    """Whom each round selects. `download`: seconds in which a client selected anew gets the model.

    The others compute nothing, and bring zeros to the round's collective, which do not count.
    """

    def __init__(self, program: Program, scenario: Scenario, seed: int, rank: int) -> None:
        self._rank, settings, self._rule = rank, scenario.cluster.sampling, None
        self.download = 0.0
        if settings is not None and samples(program, settings):
            self._rule = Sampled(scenario.cluster, settings, seed, lambda rank, at: False)
            self.download = sum(download_cost(scenario, program.server is not None)(rank))

    def team(self, index: int) -> Team:
        """Return the workers that a collective takes, in rank order; None: all."""
        rule = self._rule
        if rule is None or rule.wanted == rule.workers:
            return None
        return tuple(sorted(rule.chosen(index, 0.0)))

    def leaves_out(self, team: Team) -> bool:
        """Tell whether this worker is not in a team."""
        return team is not None and self._rank not in team
