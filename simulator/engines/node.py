"""Share behaviour among nodes: generators, collectives, cutting and joining vectors."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..distributions import random_streams
from ..distributions.random_streams import Purpose
from ..objectives.objective import Objective, relative
from ..programs.effects import Node, Vector
from ..programs.pieces.schedule import OfSlowest
from ..scenario.scenario import Scenario


def introduce(node: Node, scenario: Scenario, start: Vector) -> None:
    """Set the attributes of a node that follow from the scenario."""
    node.workers = node.server = scenario.cluster.workers
    node.participants = scenario.cluster.participants
    node.samples, node.pace = None, 1.0
    node.start, node.apply_seconds = start, scenario.server.apply
    node.parameters = scenario.model.parameters
    node.bytes_per_parameter = scenario.model.bytes_per_parameter
    node.tensors = scenario.model.sizes


def compare(
    nodes: Iterable[Node], scenario: Scenario, objective: Objective, parameters: Mapping[str, Any]
) -> None:
    """Set nodes' samples and speed relative to other workers, if a program uses them."""
    samples = relative(objective)
    uses = any(isinstance(parameter, OfSlowest) for parameter in parameters.values())
    pace = scenario.team.relative_speeds if uses else None
    for node in nodes:
        if node.rank < node.workers:
            node.samples = samples and samples[node.rank]
            node.pace = pace[node.rank] if pace else 1.0


class SeededNode(Node):
    """A node whose random numbers depend on the seed, never on the order of events."""

    __slots__ = ("_generators", "_seed")

    def seed(self, seed: int) -> None:
        """Set the seed of the program's random numbers."""
        self._seed = seed
        self._generators = {True: 0, False: 0}

    def generator(self, *, shared: bool = False) -> np.random.Generator:
        """Return the node's next generator, or the next one that all nodes share."""
        number = self._generators[shared]
        self._generators[shared] = number + 1
        if shared:
            return random_streams.generator(self._seed, Purpose.SHARED, number)
        return random_streams.generator(self._seed, Purpose.PROGRAM, self.rank, number)
