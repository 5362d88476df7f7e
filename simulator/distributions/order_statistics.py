"""Compute expected maxima over workers of a mean of random times, by quadrature.

E[max] is the integral of 1 - prod F_i, where F_i is the CDF of worker i's sum of `tau` times. It is
exact for families that are closed under sums (constants, exponentials, gammas). Other laws are
discretised on a lattice that preserves their mean, and convolved `tau` times by FFT. Beyond the
lattice, one large term dominates a sum: P(S > x) ~ tau P(Y > x - (tau - 1) E[Y]) (Embrechts,
Klüppelberg and Mikosch, Modelling Extremal Events, section 1.3).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .distribution import Array, Distribution
from .parametric import Constant

LATTICE = 2**16
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
LADDER = 1 / (1 + np.exp(-np.linspace(-28, 28, 57)))  # probabilities, dense at both ends
STRETCH: Array = np.power(1.5, np.arange(400.0))


def expected_max(workers: Sequence[Sequence[Distribution]], tau: int = 1) -> float:
    """Return E[max over workers of the mean of `tau` compute times], in seconds.

    `workers`: the laws of each worker, whose independent sum is one compute time. The result is
    E[Y_m:m] (tau = 1) or E[Ybar_m:m] of AdaComm (Wang and Joshi, 2018), Theorem 1: exact to
    rounding if the sums are closed, else with a relative error below 1e-4; inf if a time has no
    expectation. Raises ValueError without workers or for tau below 1.
    """
    if not workers or tau < 1:
        raise ValueError("the expected maximum needs at least one worker and tau >= 1")
    groups = Counter(tuple(worker) for worker in workers)
    if not all(math.isfinite(law.expectation) for worker in groups for law in worker):
        return math.inf
    sums = [_sum(worker, tau, copies) for worker, copies in groups.items()]
    solve = _by_quadrature if all(total.closed for total in sums) else _on_lattice
    return solve(sums) / tau


@dataclass(frozen=True)
class _Sum:
    """The law of `fixed` seconds plus draws (law, count), for `copies` workers."""

    fixed: float
    terms: tuple[tuple[Distribution, int], ...]
    copies: int

    @property
    def closed(self) -> bool:
        return not self.terms or (len(self.terms) == 1 and self.terms[0][1] == 1)

    @property
    def mean(self) -> float:
        return self.fixed + sum(times * law.expectation for law, times in self.terms)

    def sf(self, t: Array) -> Array:
        """Return P(sum > t): exact if closed, else the probability of one large draw."""
        if not self.terms:
            return np.where(t < self.fixed, 1.0, 0.0)
        mean = self.mean
        parts = (times * law.sf(t - (mean - law.expectation)) for law, times in self.terms)
        return np.minimum(sum(parts, np.zeros(t.shape)), 1.0)

    @property
    def reach(self) -> float:
        """Time (s) beyond which single large draws dominate, so that the lattice may end."""
        # The bound replaces an infinite or huge deviation.
        squares = [
            times * min(law.variance, (10 * law.expectation) ** 2) for law, times in self.terms
        ]
        jumps = [float(law.quantile(1 - 1e-4 / times)) for law, times in self.terms]
        return self.mean + 10 * math.sqrt(sum(squares)) + max(jumps, default=0.0)

    def on_lattice(self, start: float, step: float) -> Array:
        """Return the CDF of the sum at start + step * (0, 1, ..., LATTICE - 1)."""
        fixed = Constant.model_construct(value=self.fixed - start)
        transform = np.ones(LATTICE + 1, dtype=complex)
        for law, times in (*self.terms, (fixed, 1)) if fixed.value else self.terms:
            transform *= _spectrum(law, step) ** times
        return np.clip(np.cumsum(np.fft.irfft(transform)[:LATTICE]), 0.0, 1.0)


def _sum(worker: Sequence[Distribution], tau: int, copies: int) -> _Sum:
    fixed = 0.0
    terms: list[tuple[Distribution, int]] = []
    for law in worker:
        closed = law.closed_sum(tau)
        if closed is None:
            terms.append((law, tau))
            continue
        fixed += closed[0]
        if closed[1] is not None:
            terms.append((closed[1], 1))
    return _Sum(fixed, tuple(terms), copies)


def _by_quadrature(sums: Sequence[_Sum]) -> float:
    edges = [0.0]
    for total in sums:
        edges.append(total.fixed)
        for law, _ in total.terms:
            edges.extend(total.fixed + t for t in (*law.knots, *law.quantile(LADDER).tolist()))
    edges.extend((max(edges) * STRETCH).tolist())
    return _integral(sums, np.array(sorted(set(edges))))


def _on_lattice(sums: Sequence[_Sum]) -> float:
    start = min(total.fixed for total in sums)
    reach = max(total.reach for total in sums) - start
    step = reach / LATTICE
    below = np.ones(LATTICE)
    for total in sums:
        below *= total.on_lattice(start, step) ** total.copies
    body = step * float(np.sum(1.0 - below))
    return start + body + _integral(sums, start + reach * STRETCH)


def _spectrum(law: Distribution, step: float) -> NDArray[np.complex128]:
    """Transform the law on a lattice; every draw is split between two neighbours."""
    lattice = step * np.arange(LATTICE + 1)
    knots = [knot for knot in law.knots if 0 < knot < lattice[-1]]
    edges = np.union1d(lattice, knots)
    half, middle = 0.5 * np.diff(edges), 0.5 * (edges[1:] + edges[:-1])
    node = half / math.sqrt(3)
    areas = half * (law.sf(middle - node) + law.sf(middle + node))
    beyond = np.add.reduceat(areas, np.searchsorted(edges, lattice[:-1])) / step
    return np.fft.rfft(-np.diff(beyond, prepend=1.0), 2 * LATTICE)


def _integral(sums: Sequence[_Sum], edges: Array) -> float:
    """Integrate P(max > t) from edges[0] to infinity, smooth between `edges`."""

    def sf(t: Array) -> Array:
        with np.errstate(divide="ignore"):
            return -np.expm1(sum(total.copies * np.log1p(-total.sf(t)) for total in sums))

    edges = edges[: np.count_nonzero(sf(edges) > 0) + 1]
    half, middle = 0.5 * np.diff(edges), 0.5 * (edges[1:] + edges[:-1])
    panels = sf(middle[:, None] + half[:, None] * NODES) @ WEIGHTS
    last = edges[-1:]
    at_last, at_double = sf(last).item(), sf(2 * last).item()
    if not at_double:
        return float(half @ panels)
    power = math.log2(at_last / at_double)  # only a power law has a tail beyond the last edge
    beyond = float(last[0]) * at_last / (power - 1) if power > 1 else math.inf
    return float(half @ panels) + beyond
