"""The closed-form network's link between two places, which collectives and messages share."""

from dataclasses import dataclass

import numpy as np

from ..distributions.law import Law


@dataclass(frozen=True)
class RegionPath:
    """One direction between two places, of unlimited concurrent use.

    `name`: "from->to". `laws`: a hop's latency in seconds is the sum of one draw of each.
    `bandwidth`: bytes/s of one transfer, inf: unlimited. `out`, `into`: bytes/s of all that the
    source sends, and the destination receives.
    """

    name: str
    laws: tuple[Law, ...]
    bandwidth: float
    out: float
    into: float

    @property
    def latency(self) -> float:
        """Expected seconds of one hop."""
        return sum(law.expectation for law in self.laws)

    @property
    def is_constant(self) -> bool:
        """Whether every hop takes the same time."""
        return all(law.is_constant for law in self.laws)

    def sample(self, rng: np.random.Generator, hops: int) -> float:
        """Draw the seconds that `hops` hops in a row take."""
        return float(sum(law.sample(rng, hops).sum() for law in self.laws))
