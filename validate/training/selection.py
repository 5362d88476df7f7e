"""Clients that each round of a real run selects: those that the simulator draws."""

from paceline.simulator.engines.sampling import Sampled
from paceline.simulator.network.closed_form import Team
from paceline.simulator.network.mean_cost import download_cost, download_source
from paceline.simulator.programs import Program
from paceline.simulator.scenario.scenario import Scenario


class Selection:
    """Whom each round selects. `download`: seconds in which a client selected anew gets the model
    from the node `source` (None: from none).

    The others compute nothing, and bring zeros to the round's collective, which do not count.
    """

    def __init__(
        self,
        rank: int,
        rule: Sampled | None = None,
        download: float = 0.0,
        source: int | None = None,
    ) -> None:
        self._rank, self._rule, self.download, self.source = rank, rule, download, source

    def team(self, index: int) -> Team:
        """Return the workers that a collective takes, in rank order; None: all."""
        rule = self._rule
        if rule is None or rule.wanted == rule.workers:
            return None
        return tuple(sorted(rule.chosen(index, 0.0)))

    def leaves_out(self, team: Team) -> bool:
        """Tell whether this worker is not in a team."""
        return team is not None and self._rank not in team


def selection(program: Program, scenario: Scenario, seed: int, rank: int) -> Selection:
    """Return the selection of a scenario, as worker `rank` needs it."""
    settings = scenario.cluster.sampling
    if settings is None or not program.rounds:
        return Selection(rank)
    rule = Sampled(scenario.cluster, settings, seed, lambda rank, at: False)
    served = program.server is not None
    seconds = sum(download_cost(scenario, served)(rank))
    return Selection(rank, rule, seconds, download_source(scenario, served)(rank))
