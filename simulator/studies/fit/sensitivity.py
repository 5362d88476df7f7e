"""What a fit has determined: intervals of the keys, and the directions that no target fixes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...results.intervals import NORMAL
from .targets import Key

FREE = 0.5  # half width of an interval, as a share of the range, from which nothing is determined
PART = 0.01  # share of a key in free directions from which it is not determined


@dataclass(frozen=True)
class Sensitivity:
    """What is known of the keys at the fit, by their places and the scaled residuals' Jacobian.

    `covariance` is that of the places along directions that the targets determine; `free`: the
    other directions, one a row, of length 1.
    """

    keys: Sequence[Key]
    places: np.ndarray
    covariance: np.ndarray
    free: np.ndarray

    @classmethod
    def of(
        cls, keys: Sequence[Key], places: np.ndarray, jacobian: np.ndarray, noise: np.ndarray,
        widened: float,
    ) -> "Sensitivity":  # fmt: skip
        """Linearise at the fit: residuals have the variance 1, times `widened` squared.

        `noise`: the covariance of the residuals that the seeds of the simulation add.
        """
        _, sizes, directions = np.linalg.svd(jacobian, full_matrices=True)
        sizes = np.pad(sizes, (0, len(directions) - sizes.size))
        known = sizes > NORMAL * widened / FREE
        inverse = np.linalg.pinv(jacobian @ directions[known].T) if known.any() else None
        covariance = np.zeros((len(places), len(places)))
        if inverse is not None:
            back = directions[known].T @ inverse
            covariance = back @ (np.eye(len(jacobian)) * widened**2 + noise) @ back.T
        return cls(keys, places, covariance, directions[~known])

    @property
    def shares(self) -> np.ndarray:
        """The share of each key in the free directions: 0 is determined, 1 is free."""
        return np.asarray((self.free**2).sum(axis=0))

    def interval(self, index: int) -> tuple[float, float] | None:
        """Return the 90 % interval of a key's value, within its range; None: not determined."""
        if self.shares[index] > PART:
            return None
        half = NORMAL * float(np.sqrt(self.covariance[index, index]))
        key, place = self.keys[index], float(self.places[index])
        return key.at(place - half), key.at(place + half)

    @property
    def sentences(self) -> list[str]:
        """A sentence for each key, or group of keys, that the targets do not determine."""
        shares = self.shares
        alone = [i for i, share in enumerate(shares) if share >= 1 - PART]
        mixed = [i for i, share in enumerate(shares) if PART < share < 1 - PART]
        said = [
            f"{self.keys[i].name} is not determined: within the tolerances it may be anywhere in "
            "its range"
            for i in alone
        ]
        if mixed:
            names = " and ".join(self.keys[i].name for i in mixed)
            count = len(self.free) - len(alone)
            said.append(
                f"{names} are not determined apart: the targets leave {count} of "
                f"{len(mixed)} directions free"
            )
        return said
