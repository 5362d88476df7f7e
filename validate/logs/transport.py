"""One law of what links really give, fitted to jobs over several of them.

A collective of h hops with latencies of l seconds in all, which holds links of B bytes per second
for t seconds by its formula, takes

    set-up + h hop + f l + t (g (B / 1 Gbit/s)^-e + B p)

where f, g, e and p are the latency factor, the transmission factor, its exponent, and the seconds
per byte of any link: keys of [[overhead]]. Buckets of a gradient have a g of their own: libraries
carry out payloads of other sizes by other algorithms. Where a ring is declared it may be a double
tree, whose g depends on the number of workers: each is as likely as its prior and the jobs make it,
as payloads hardly travel faster than their link. A bandwidth that is stated is what payloads get,
or a nominal figure that they come nowhere near. The pace that follows is simulated by the
algorithm's own text. Few jobs do not determine nine numbers, so each has a prior, wide where
systems differ; what the jobs leave open then shows in the draws from the posterior, and so in
intervals that widen with the distance from what was measured
(randomize-then-optimize: Bardsley et al., SIAM J. Sci. Comput. 36, 2014).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import copysign, exp, inf, log
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from paceline.simulator.distributions.random_streams import Purpose, generator
from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.network.closed_form import ClosedForm
from paceline.simulator.results.intervals import NORMAL, TAILS
from paceline.simulator.results.statistics import with_unit
from paceline.simulator.scenario.overhead import GIGABIT, Overhead, tree
from paceline.simulator.scenario.redraw import scaled
from paceline.simulator.scenario.scenario import Scenario
from paceline.simulator.studies.execution import Progress

from ..comparison.quantities import pace
from .steps import Observed

Array = np.ndarray

# medians and standard deviations of ln set-up (s), ln hop (s), ln f, ln g at the jobs' own
# bandwidth, e, ln p (s/B; less over faster links), ln of the buckets' g over that of others (as
# g's own), powers of a tree's time over a ring's, as WAYS says, and ln of what GPUs compute longer
# beside collectives: published ones 0.19 on average, 0.4 at most (docs/transport.md)
CENTRE = np.array([log(3e-4), log(2e-5), 0.0, 0.03, 0.0, log(5e-11), 0.0, 0.0, 0.0, log(0.08)])
WIDTH = np.array([1.2, 1.2, 0.5, 0.1, 0.02, 1.2, 0.1, 1e-3, 1e-3, 1.0])
# probabilities of a ring (0) and a tree (1) of whole means, which NCCL sends around a ring unless
# its settings differ, and of buckets
WAYS = {(0.0, 0.0): 0.45, (0.0, 1.0): 0.45, (1.0, 0.0): 0.05, (1.0, 1.0): 0.05}
# probability that a stated bandwidth is nominal, and median and standard deviation of ln g then:
# half of it, as of a card that hosts cannot fill, or a rate between two where all share the host
NOMINAL, NOMINALLY = 0.1, (0.7, 0.25)
SETUP, HOP, LATENCY, FACTOR, EXPONENT, PER_BYTE, BUCKETS, TREE = range(8)
BESIDE, LAW = 9, 10  # TREE of whole means, then of buckets
UNSLOWED = log(1e-9), 1e-3  # median and standard deviation of BESIDE without such GPUs
SPREAD, SPREAD_WIDTH = 0.7, 0.7  # a worker's own spread over that of whole steps; of its logarithm
BUCKETED = "ssgd-bucketed"
KEYS = ("collective", "hop", "latency_factor", "transmission_factor", "transmission_exponent",
        "per_byte")  # fmt: skip
COMPUTE_WIDTH, LINK_WIDTH = 0.7, 2.0  # of ln compute around half the shortest step; of ln factor
# relative sds between equal jobs, whose paces differ by 0.1 to 0.2 % (docs/evidence/validation):
# of links beside the law (0.1 % in docs/transport.md), as so many links show it, and of computing
ERROR, ERROR_FREEDOM, STEADY = 0.001, 2.0, 0.0015
COPYING = 0.03  # most of a transmission's time in the prior's median that hosts copy for
LEAST = 1e-5  # an exponent: draws are factors of it, a million at most
DRAWS, TRIES = 24, 96
LIKELY = 0.999  # probability, beyond which a draw is none of the posterior
# of logarithms of computing and of transmissions, within which paces are taken for straight lines;
# relative, what a line may miss further away
STRAIGHT, BEND = 0.25, 0.002
EDGE = 1e-4  # of a pace, what edges between lines are rounded by
FAR = 13.0  # most of a logarithm from the point's: a profile's factors are a million at most
# of the simulations, and most pieces of gradients that cost no steps
STEPS, SHORTEST, PERIODS, SEEDS, PIECES = 256, 24, 12, 2, 1024
EVALUATED = 20  # times in them, which has its price
ROBUST = 3.0  # standard errors from which a job counts less (soft L1)
FREE = 0.7, 3.0  # median and standard deviation of a logarithm of which nothing is known: far,
# as a little of what collectives slow shows only where computing ends last
UNUSUAL = 3.0  # standard deviations of a usual number, from which a note names it
ROUNDS, NEAR = 4, 1e-4
SHIFT = 0.02  # relative, of a number whose effect on the pace is simulated
SEED = 0


@dataclass(frozen=True, eq=False)
class Fitted:
    """The law and every condition's computing, as `point` and as `draws`, one row each.

    Columns: the law's ten numbers, the logarithms of each condition's seconds of computing, and
    of the factor of each unknown link. `paces`: predicted, by job. `spreads`: of each draw, what
    part of whole steps' spread a worker's own computing has. `misfit`: squares of what jobs and
    priors miss. `unusual`: standard deviations of the usual prior by which the law is off.
    `otherwise`: draws in which buckets overlap as no job declares.
    """

    point: Array
    draws: Array
    paces: list[float]
    reference: float
    spreads: Array
    misfit: float
    unusual: Array
    otherwise: Sequence[bool] = ()

    def conflicts(self) -> tuple[list[str], list[str]]:
        """Say which numbers of the law are far below what is usual, and which above."""
        ends = np.exp(CENTRE + np.multiply.outer([-1, 1], NORMAL * WIDTH))
        found: tuple[list[str], list[str]] = [], []
        for n, unit in (SETUP, "s"), (HOP, "s"), (LATENCY, ""), (FACTOR, ""):
            if abs(self.unusual[n]) > UNUSUAL:
                usual = " to ".join(with_unit(end, unit) for end in ends[:, n])
                found[int(self.unusual[n] > 0)].append(
                    f"{KEYS[n]} {with_unit(exp(self.point[n]), unit)}, where {usual} is usual"
                )
        return found

    def given(self, rate: float) -> float:
        """Return the bytes per second that buckets get of a link of `rate`."""
        law = self.overhead(self.point, bucketed=True)
        slower = (rate / GIGABIT) ** -law["transmission_exponent"] * law["transmission_factor"]
        return float(rate / (slower + rate * law["per_byte"]))

    def range_of(self, condition: int) -> tuple[float, float]:
        """Return the ends of the 90 % interval of a condition's computing (seconds)."""
        low, high = np.exp(np.quantile(self.draws[:, LAW + condition], TAILS))
        return float(low), float(high)

    def overhead(self, row: Array, bucketed: bool = False) -> dict[str, float]:
        """Return the keys of [[overhead]] of one row; `bucketed`: of buckets."""
        law = np.exp(row[:BUCKETS])
        law[EXPONENT] = copysign(max(abs(row[EXPONENT]), LEAST), row[EXPONENT])
        law[FACTOR] *= (self.reference / GIGABIT) ** row[EXPONENT] * exp(bucketed * row[BUCKETS])
        found = dict(zip(KEYS, law.tolist(), strict=True))
        return found | {"tree_exponent": max(float(row[TREE + bucketed]), LEAST)}


class _Prior(NamedTuple):
    """Medians and standard deviations of all numbers, where links are of one kind, as `likely`."""

    centre: Array
    width: Array
    likely: float


def _priors(centre: Array, width: Array, nominal: bool) -> list[_Prior]:
    """Return the prior of each way, the usual ones first; `nominal`: bandwidths that may be so."""
    found = []
    for powers, likely in WAYS.items():
        own = np.r_[centre[:TREE], powers, centre[BESIDE:]]
        found.append(_Prior(own, width, likely * (1 - NOMINAL * nominal)))
    for own, _, likely in [*found] if nominal else ():
        medians, spreads = own.copy(), width.copy()
        medians[FACTOR], spreads[FACTOR] = NOMINALLY
        found.append(_Prior(medians, spreads, likely * NOMINAL / (1 - NOMINAL)))
    return found


@dataclass
class _Linear:
    """A job's pace near some numbers: `base` seconds, and `slopes` by its costs; and the `lines` of
    all numbers that were tried, each its value without costs, then slopes. The highest counts, as
    who waits for the last of several ends with that.

    `hidden`: no log of its condition shows what a worker's computing varies by; `slowed`: it may
    compute beside collectives, on GPUs.
    """

    observed: Observed
    scenario: Scenario
    condition: int
    link: int | None
    rate: float
    hidden: bool
    slowed: bool
    base: float = 0.0
    at: Array = field(default_factory=lambda: np.zeros(8))
    slopes: Array = field(default_factory=lambda: np.zeros(8))
    lines: Array = field(default_factory=lambda: np.zeros((0, 9)))

    @property
    def by_tree(self) -> float:
        """Logarithm of a double tree's time over a ring's; of two or three workers, any."""
        return log(tree(max(self.scenario.cluster.workers, 4)))

    def costs(
        self, theta: Array, conditions: int, reference: float, spread: float = SPREAD
    ) -> Array:
        """Return compute, set-up, hop, latency factor, what computing takes longer beside
        collectives, factors on transmissions, and spread.

        The factors are of means around a ring, and of all else.
        """
        if self.link is None:
            law = theta[..., FACTOR] - theta[..., EXPONENT] * log(self.rate / reference)
            bucketed = self.scenario.algorithm[0].name == BUCKETED
            law = law + bucketed * theta[..., BUCKETS]
            laws = law + theta[..., TREE + bucketed] * self.by_tree, law
            factors = [np.exp(each) + np.exp(theta[..., PER_BYTE]) * self.rate for each in laws]
        else:
            factors = [np.exp(theta[..., LAW + conditions + self.link])] * 2
        compute = np.exp(theta[..., LAW + self.condition])
        spreads = np.full_like(compute, spread)
        added = np.exp(theta[..., [*range(FACTOR), BESIDE]]).T
        return np.stack([compute, *added, *factors, spreads], axis=-1)

    def pace(self, costs: Array) -> Array:
        """Return the pace (seconds per step) with these costs, positive however far they are."""
        floor, edge = 0.1 * self.base, EDGE * self.base
        each = self.lines[:, 0] + costs @ self.lines[:, 1:].T
        lines = edge * np.logaddexp.reduce(each / edge, axis=-1)
        # it falls everywhere, so that a search finds back
        found: Array = np.where(
            lines > floor, lines, floor * np.exp(np.minimum(lines / floor, 1) - 1)
        )
        return found

    def simulated(self, costs: Array, base: float | None = None) -> "_Linear":
        """Return the job with its pace at `costs`, with each a little larger, and little spread.

        `base`: the pace at `costs`, if that is known.
        """
        base = base or _simulated(self, costs)
        shifts = SHIFT * np.maximum(costs, [0, 1e-5, 1e-5, 0, 0.05, 0, 0, 0])
        shifts[4] *= self.slowed
        shifts[-1] = -0.9 * costs[-1] * self.hidden  # far, as other numbers are drawn
        slopes = [
            (_simulated(self, costs + shift) - base) / shift.sum() if shift.any() else 0.0
            for shift in np.diag(shifts)
        ]
        kept = [own for own in self.lines if own[0] + costs @ own[1:] < (1 + EDGE) * base]
        line = [base - costs @ slopes, *slopes]
        lines = np.array([*kept, line])
        found = replace(self, at=costs, base=base, slopes=np.array(slopes), lines=lines)
        lines[:, 0] -= found.pace(costs) - base  # what edges add
        return found

    def near(self, costs: Array) -> "_Linear":
        """Return the job as it is if its line meets the pace with `costs`, else simulated there."""
        apart = np.abs(np.log(costs[[0, -2]] / self.at[[0, -2]])).max()
        if apart < STRAIGHT and not self.slowed:  # which bends where buckets are hidden no longer
            return self
        pace = _simulated(self, costs)
        return self if abs(pace / self.pace(costs) - 1) <= BEND else self.simulated(costs, pace)


def _simulated(job: _Linear, costs: Array) -> float:
    compute, setup, hop, latency, slower, around, factor, spread = costs.tolist()
    cluster = job.scenario.cluster.model_copy(
        update={"beside_collectives": 1 + slower * job.slowed}
    )
    scenario = job.scenario.model_copy(update={"cluster": cluster})
    if job.link is not None:  # a library chooses by the bandwidth that the profile will state
        network = scenario.network.model_copy(update={"bandwidth": GIGABIT / factor})
        scenario, around, factor = scenario.model_copy(update={"network": network}), 1.0, 1.0
    overhead = Overhead.model_construct(
        collective=setup, hop=hop, latency_factor=latency, transmission_factor=factor,
        tree_exponent=log(around / factor) / job.by_tree,
    )  # fmt: skip
    for key in [
        "cluster.compute",
        *(f"cluster.group.{n}.compute" for n in range(len(scenario.cluster.group))),
    ]:
        scenario = scaled(scenario, key, compute)
    if job.hidden:  # a spread in seconds, however long steps are
        scenario = scaled(scenario, "cluster.compute.shape", (compute / spread) ** 2)
    found = run_seeds(
        scenario.model_copy(update={"overhead": (overhead,)}), scenario.algorithm[0], range(SEEDS)
    )
    return sum(map(pace, found)) / SEEDS


class _Way(NamedTuple):
    """A prior, its fit, and the jobs near that with the law's relative error."""

    prior: _Prior
    fit: Any
    near: list[_Linear]
    error: float

    def evidence(self) -> float:
        """Return how likely it is after its fit: the logarithm, by Laplace's approximation."""
        curved = np.linalg.slogdet(self.fit.jac.T @ self.fit.jac)[1]
        widths = np.log(self.prior.width).sum()
        return float(log(self.prior.likely) - self.fit.cost - widths - curved / 2)


def fit(  # noqa: PLR0913, PLR0915, PLR0917
    jobs: Sequence[Observed], scenarios: Sequence[Scenario], conditions: Sequence[int],
    most: float = inf, told: Progress = lambda done, steps: None, only: int | None = None,
) -> Fitted:  # fmt: skip
    """Fit the law to jobs; without draws where their misfit is `most` or more.

    `scenarios`: of each job, with computing times of mean 1 s; `conditions`: which jobs compute
    alike, numbered from 0. `told` is called with the steps that are done: paces, then draws.
    `only`: the number of the law that may be unusual, as all others are what is usual.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415

    unknown = [n for n, each in enumerate(jobs) if not each.job.knows_link]
    shown = {c for each, c in zip(jobs, conditions, strict=True) if each.computing}
    linear = [
        _linear(each, scenario, c, unknown.index(n) if n in unknown else None, c not in shown)
        for n, (each, scenario, c) in enumerate(zip(jobs, scenarios, conditions, strict=True))
    ]
    count = max(conditions) + 1
    rates = [each.rate for each in linear if each.link is None]
    reference = float(np.exp(np.mean(np.log(rates)))) if rates else GIGABIT
    halves = [
        log(min(each.pace for each, c in zip(jobs, conditions, strict=True) if c == n) / 2)
        for n in range(count)
    ]
    centre = np.concatenate([CENTRE, halves, np.zeros(len(unknown))])
    if rates:  # hosts that copy for longer would not reach the bandwidth that was stated
        centre[PER_BYTE] = min(centre[PER_BYTE], log(COPYING / max(rates)))
    width = np.concatenate([WIDTH, [COMPUTE_WIDTH] * count, [LINK_WIDTH] * len(unknown)])
    if not any(each.slowed for each in linear):
        centre[BESIDE], width[BESIDE] = UNSLOWED
    if only is not None:
        width[:LAW] *= 1e-3
        centre[only], width[only] = FREE

    residuals = partial(_residuals, count=count, reference=reference)

    def settled(ways: Sequence[_Prior], begun: int) -> list[_Way]:
        """Fit each of some ways, with paces as they are near the likeliest of them."""
        theta, near, error = ways[0].centre.copy(), linear, ERROR
        for each in linear:
            if each.observed.compute > 0:
                theta[LAW + each.condition] = log(each.observed.compute)
        for number in range(begun, begun + ROUNDS):
            before, now = theta, []
            for n, each in enumerate(near, number * len(near)):
                told(n, steps + DRAWS)
                now.append(each.simulated(each.costs(theta, count, reference)))
            near = now
            args = [(near, own, SPREAD, error) for own in ways]
            fits = [least_squares(residuals, theta, x_scale=width, args=own) for own in args]
            tried = [_Way(own, each, near, error) for own, each in zip(ways, fits, strict=True)]
            found = max(tried, key=_Way.evidence).fit
            theta, slopes = found.x, np.asarray(found.jac)
            inverse = np.linalg.inv(slopes.T @ slopes)
            # of paces: what logs show of computing varies by itself
            seen, missed = slopes[1 : 2 * len(near) : 2], found.fun[1 : 2 * len(near) : 2]
            spent = float(np.einsum("ij,jk,ik", seen, inverse, seen))  # what they have determined
            squares = ERROR_FREEDOM * ERROR**2 + error**2 * float(missed @ missed)
            if len(near) > 1:
                error = float(np.sqrt(squares / (ERROR_FREEDOM + len(near) - spent)))
            if np.abs(theta - before).max() < NEAR:
                break
        return [each._replace(error=error) for each in tried]

    priors = _priors(centre, width, nominal=bool(rates) and only is None)
    steps = 2 * ROUNDS * len(linear)
    ways = settled(priors, 0)
    best = max(ways, key=_Way.evidence)
    off = (best.fit.x - priors[0].centre)[: FACTOR + 1] / priors[0].width[: FACTOR + 1]
    # lines through a usual law say nothing of slow links
    if priors[len(WAYS) :] and np.abs(off).max() > UNUSUAL:
        ways = [*ways[: len(WAYS)], *settled(priors[len(WAYS) :], ROUNDS)]
        best = max(ways, key=_Way.evidence)
    theta, linear, error = best.fit.x, best.near, best.error

    missed = residuals(theta, linear, best.prior)
    misfit = float(missed @ missed) - 2 * log(best.prior.likely)
    unusual = (theta - priors[0].centre) / priors[0].width
    paces = [_simulated(each, each.costs(theta, count, reference)) for each in linear]
    fitted = Fitted(theta, theta[:0], paces, reference, theta[:0], misfit, unusual)
    if misfit >= most:
        return fitted

    def bent(theta: Array, near: Sequence[_Linear], drawn: int) -> list[_Linear]:
        """Return the jobs near `theta`, of which those whose lines miss it are simulated there."""
        found = []
        for each in near:
            told(steps + drawn, steps + DRAWS)
            found.append(each.near(each.costs(theta, count, reference)))
        return found

    draws, spreads = _posterior(residuals, bent, ways)
    rng = generator(SEED, Purpose.CALIBRATION, 1)
    # the law, on a link that it has not seen, and by each factor e in bandwidth from those it has
    draws[:, [FACTOR, EXPONENT]] += error * rng.standard_normal((len(draws), 2))
    draws[:, LAW : LAW + count] += STEADY * rng.standard_normal((len(draws), 1))
    return replace(fitted, draws=draws, spreads=spreads)


def _linear(
    observed: Observed, scenario: Scenario, condition: int, link: int | None, hidden: bool
) -> _Linear:
    period = observed.pattern.period
    pieces = scenario.algorithm[0].parameters.get("buckets", 1)
    most = max(SHORTEST, min(STEPS, PIECES // (pieces if isinstance(pieces, int) else len(pieces))))
    steps = period * max(PERIODS, -(-most // period))
    often = max(steps // period // EVALUATED, 1) * period
    run = scenario.run.model_copy(update={"steps": steps, "evaluate_every": often})
    scenario = scenario.model_copy(update={"run": run})
    rate = ClosedForm(scenario).mean_plan.rate
    slowed = scenario.network.library == "nccl" and observed.job.family == "overlapped"
    return _Linear(observed, scenario, condition, link, rate, hidden, slowed)


def _residuals(  # noqa: PLR0913
    theta: Array, jobs: Sequence[_Linear], prior: _Prior, spread: float = SPREAD,
    error: float = ERROR, *, count: int, reference: float,
) -> Array:  # fmt: skip
    """Return, over the last axis, what the law misses in standard errors: two of a job, priors."""
    found = []
    for job in jobs:
        seen, costs = job.observed, job.costs(theta, count, reference, spread)
        pace = job.pace(costs)
        missed = np.log(pace / seen.pace)
        # the law errs on what is communicated, equal jobs differ in what they compute
        shared = np.clip(1 - costs[..., 0] * job.slopes[0] / pace, 0.0, 1.0) * error
        covariance = seen.covariance
        if seen.compute > 0:
            first, both, second = covariance[0, 0] + STEADY**2, covariance[0, 1], covariance[1, 1]
            computed = np.log(costs[..., 0] / seen.compute)
            found.append(computed / np.sqrt(first))
            missed = missed - both / first * computed
            second = second - both**2 / first
        else:
            second = covariance[1, 1]
            found.append(np.zeros_like(missed))
        found.append(missed / np.sqrt(second + shared**2 + 1e-8))
    far = np.stack(found, axis=-1)
    if len(jobs) > 1:  # soft L1: one of several may be at odds with the others
        far = far * np.sqrt(2 / (1 + np.sqrt(1 + (far / ROBUST) ** 2)))
    return np.concatenate([far, (theta - prior.centre) / prior.width], axis=-1)


def _posterior(
    residuals: Callable[..., Array], bent: Callable[..., list[_Linear]], ways: Sequence[_Way],
) -> tuple[Array, Array]:  # fmt: skip
    """Draw from the posterior: the fit to what jobs show and priors say, each moved by its error.

    So draws follow where several numbers explain the jobs together, however bent their range is;
    one that ends where it is far less likely than that takes no part. Each takes one of the `ways`,
    as likely as its fit makes it; `bent` says what jobs do where it ends. Returns the spreads, too.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415
    from scipy.stats import chi2  # noqa: PLC0415

    rng, other = (generator(SEED, Purpose.CALIBRATION, n) for n in (0, 2))
    evidence = np.array([each.evidence() for each in ways])
    likely = np.exp(evidence - evidence.max())
    tries = SPREAD * np.exp(SPREAD_WIDTH * other.standard_normal(TRIES))
    likely /= likely.sum()
    order = np.argsort(likely)
    likely[order[np.cumsum(likely[order]) < TAILS[0]]] = 0.0  # what a 90 % interval need not hold
    chosen = other.choice(len(ways), TRIES, p=likely / likely.sum())
    centre = ways[int(evidence.argmax())].fit.x
    further = chi2.ppf(LIKELY, len(centre))
    draws: list[Array] = []
    spreads: list[float] = []

    def moved(at: Array, *own: Any) -> Array:
        found: Array = residuals(at, *own[:-1]) + own[-1]
        return found

    for left, spread, number in zip(range(TRIES, 0, -1), tries, chosen, strict=True):
        prior, fitted, near, error = ways[number]
        by = rng.standard_normal(len(fitted.fun))
        at = fitted.x
        for _ in range(ROUNDS):
            own = near, prior, spread, error, by
            at = least_squares(moved, at, x_scale=prior.width, args=own).x
            before, near = near, bent(at, near, len(draws))
            if all(map(is_, before, near)):
                break
        far = residuals(at, near, prior, spread, error)
        if far @ far <= 2 * fitted.cost + further or left <= DRAWS - len(draws):
            draws.append(at)
            spreads.append(spread)
        if len(draws) == DRAWS:
            break
    found: Array = np.clip(draws, centre - FAR, centre + FAR)
    return found, np.array(spreads)
