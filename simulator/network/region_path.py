"""The closed-form network's link between two places, which collectives and messages share."""

from dataclasses import dataclass

import numpy as np

from paceline.simulator.distributions.law import Law


@dataclass(frozen=True)
class RegionPath:
    """One direction between two places, of unlimited concurrent use.

    `name`: "from->to". `laws`: a hop's latency in seconds is the sum of one draw of each.
    `bandwidth`: bytes/s of one transfer, inf where nothing limits it. `sender`, `receiver`: of all
    that the one end sends, and the other receives, where they are more; None: the bandwidth.
    """

    name: str
    laws: tuple[Law, ...]
    bandwidth: float
    sender: float | None = None
    receiver: float | None = None

    @property
    def out(self) -> float:
        """Bytes per second that the sending end may send to all others."""
        return self.sender or self.bandwidth

    @property
    def into(self) -> float:
        """Bytes per second that the receiving end may take in from all others."""
        return self.receiver or self.bandwidth

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
