"""Fit one law of what links really give to jobs over several links.

A collective of h hops with latencies of l seconds in all, which by its formula occupies links of
B bytes per second for t seconds, takes

    collective + h hop + latency_factor l
    + t (transmission_factor (B / 1 Gbit/s)^-transmission_exponent + B per_byte)

with the keys of [[overhead]]. Buckets of a gradient have a factor of their own, since libraries
send payloads of other sizes by other algorithms, such as a double tree in place of a ring.

The pace is simulated by the algorithm's own text. It is convex in these costs, since a worker waits
for the latest of others, so that the highest of its tangents approximates it. A few jobs cannot
determine all numbers, so each has a prior (`NUMBERS`) that is wide where systems differ. A
bootstrap fits the law again with every residual moved by its error, those of the priors included
(randomize-then-optimize: Bardsley et al., SIAM J. Sci. Comput. 36, 2014). What the jobs leave open
therefore widens the intervals of predictions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import copysign, exp, log
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from paceline.simulator.distributions.random_streams import Purpose, generator
from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.network.closed_form import ClosedForm
from paceline.simulator.results.intervals import NORMAL, TAILS
from paceline.simulator.results.run import Run
from paceline.simulator.results.statistics import with_unit
from paceline.simulator.scenario.overhead import GIGABIT, Overhead, tree
from paceline.simulator.scenario.redraw import scaled
from paceline.simulator.scenario.scenario import Scenario

from ..comparison.quantities import pace as pace_of
from .steps import Observed

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

Array = np.ndarray


class Number(NamedTuple):
    """The prior of a number of the law, or of its logarithm: standard deviations on both sides."""

    median: float
    below: float
    above: float


NUMBERS = {
    "collective": Number(log(3e-4), 1.2, 1.2),
    "hop": Number(log(2e-5), 1.2, 1.2),
    "latency_factor": Number(0.0, 0.5, 0.5),
    # at the jobs' own bandwidth; a stated bandwidth may be nominal, but is rarely exceeded
    "transmission_factor": Number(0.03, 0.1, 0.4),
    "per_byte": Number(log(5e-11), 1.2, 1.2),
    # what GPUs compute longer beside collectives: published ones 0.19 on average, 0.4 at most
    "slowdown": Number(log(0.08), 1.0, 0.8),
    "transmission_exponent": Number(0.0, 0.02, 0.02),
    "bucket_factor": Number(0.0, 0.15, 0.15),
    "bucket_tree": Number(0.5, 0.5, 0.5),  # 0: a ring, 1: a double tree
}
LOGARITHMS = 6  # numbers that are logarithms
SETUP, HOP, LATENCY, FACTOR, PER_BYTE, SLOWDOWN, EXPONENT, BUCKETS, TREE = range(len(NUMBERS))
LAW = len(NUMBERS)  # from here on: logarithms of each condition's computing, of unknown links
COMPUTE_SD, LINK_SD = 0.7, 2.0  # around half of the shortest step; of a link's factor
BUCKETED = "ssgd-bucketed"
# relative sds between equal jobs, whose paces differ by 0.1 to 0.2 % (docs/evidence/validation):
# of the law beyond its numbers (0.1 % in docs/evidence/transport.md), and of computing
LAW_ERROR, LAW_FREEDOM, STEADY = 0.001, 2.0, 0.0015
COPYING = 0.03  # largest share of a transmission that hosts copy for, in the prior's median
LEAST = 1e-5  # an exponent: draws are factors of it, at most a million
LARGEST_FACTOR = 13.0  # logarithm of a draw over the fit: a profile's factors are at most a million
DRAWS, ROUNDS, NEAR = 24, 4, 1e-4
ROBUST = 3.0  # standard errors beyond which residuals count less (soft L1)
FIT_BEND, BEND = 2e-4, 2e-3  # relative errors of tangents, of the fit and of draws
EDGE = 1e-4  # of a pace: rounding of the edges between tangents
SHIFT = 0.02  # relative change of a cost for a tangent's slope
SEEDS, PERIODS, SHORTEST, LONGEST, PIECES = 2, 12, 24, 256, 1024  # of simulations; pieces a step
EVALUATIONS = 20


@dataclass(frozen=True, eq=False)
class Fitted:
    """The law and the computing of each condition: `point`, and `draws` with one row each.

    `paces`: predicted, by job. `reference`: bandwidth at which the factor is fitted. `misfit`: of
    residuals. `unusual`: standard deviations of the priors by which the point is off. `otherwise`:
    draws in which buckets overlap differently from what jobs declare.
    """

    point: Array
    draws: Array
    paces: list[float]
    reference: float
    misfit: float
    unusual: Array
    otherwise: Sequence[bool] = ()

    def conflicts(self) -> tuple[list[str], list[str]]:
        """Describe the numbers below and above what is usual, if the law as a whole is unusual."""
        found: tuple[list[str], list[str]] = [], []
        if np.linalg.norm(self.unusual[:LAW]) <= NORMAL:
            return found
        names = {"collective": "s", "hop": "s", "latency_factor": "", "transmission_factor": ""}
        for index, (name, unit) in enumerate(names.items()):
            median, below, above = NUMBERS[name]
            ends = (exp(median - NORMAL * below), exp(median + NORMAL * above))
            usual = " to ".join(with_unit(end, unit) for end in ends)
            if abs(self.unusual[index]) > 1:
                found[int(self.unusual[index] > 0)].append(
                    f"{name} {with_unit(exp(self.point[index]), unit)}, where {usual} is usual"
                )
        return found

    def computing(self, condition: int) -> tuple[float, float]:
        """Return the ends of the 90 % interval of a condition's computing (seconds)."""
        low, high = np.exp(np.quantile(self.draws[:, LAW + condition], TAILS))
        return float(low), float(high)

    def overhead(self, row: Array, bucketed: bool = False) -> dict[str, float]:
        """Return the keys of [[overhead]] of one row; `bucketed`: of buckets."""
        factor = row[FACTOR] + bucketed * row[BUCKETS]
        table = dict(zip(NUMBERS, np.exp(row[:SLOWDOWN]).tolist(), strict=False))
        table["transmission_factor"] = exp(factor + row[EXPONENT] * log(self.reference / GIGABIT))
        table["transmission_exponent"] = copysign(max(abs(row[EXPONENT]), LEAST), row[EXPONENT])
        table["tree_exponent"] = max(float(row[TREE]), LEAST) if bucketed else LEAST
        return table


@dataclass
class _Job:
    """A job, with tangents of its pace as a function of costs: constants, then slopes.

    `compute`, `link`: the numbers of its computing and, if its link is unknown, of its link.
    `offset`: the logarithm of its bandwidth over the reference; `scale`: what simulated computing
    times are multiplied by so that their mean is that of the law; `sampling`: the variance of the
    logarithm of the pace that is left, as a pace leaves the first tenth of the steps out.
    """

    observed: Observed
    scenario: Scenario
    compute: int
    link: int | None
    rate: float
    offset: float = 0.0
    scale: float = 1.0
    sampling: float = 0.0
    # a step takes at least what it computes: searches that go astray find back
    tangents: Array = field(default_factory=lambda: np.array([[0.0, 0.5, *[0.0] * 6]]))

    def __post_init__(self) -> None:
        runs = self._runs(np.array([1.0, 0, 0, 0, 0, 1, 1]))
        self.scale = len(runs) / sum(run.seconds["compute"] / run.steps for run in runs)
        times = np.concatenate(self.observed.times)
        drawn = sum(run.steps for run in runs) * self.scenario.cluster.workers
        self.sampling = float(np.var(times) / np.mean(times) ** 2 / (9 * drawn))

    @property
    def bucketed(self) -> bool:
        return self.scenario.algorithm[0].name == BUCKETED

    @property
    def by_tree(self) -> float:
        """Logarithm of a double tree's time over a ring's; of two or three workers, any."""
        return log(tree(max(self.scenario.cluster.workers, 4)))

    def costs(self, theta: Array) -> Array:
        """Return compute, set-up, hop, latency factor, slowdown, and two transmission factors.

        The factors are of means around a ring, and of all else, which multiplies the slowdown, so
        that the pace is linear in it.
        """
        added = 0.0
        if self.link is None:
            factor = theta[FACTOR] - theta[EXPONENT] * self.offset + self.bucketed * theta[BUCKETS]
            around = factor + self.bucketed * theta[TREE] * self.by_tree
            added = exp(theta[PER_BYTE]) * self.rate
        else:
            factor = around = theta[self.link]
        logs = [*theta[:FACTOR], theta[SLOWDOWN], around, factor]
        costs: Array = np.exp([theta[self.compute], *logs])
        costs[-2:] += added
        costs[4] *= costs[-1]
        return costs

    def pace(self, costs: Array) -> tuple[float, float]:
        """Return the pace (seconds per step), and the share of it that is not computing."""
        values = self.tangents[:, 0] + self.tangents[:, 1:] @ costs
        edge = EDGE * self.observed.pace
        pace = edge * float(np.logaddexp.reduce(values / edge))
        share = 1 - costs[0] * self.tangents[int(np.argmax(values)), 1] / pace
        return pace, min(max(share, 0.0), 1.0)

    def refine(self, costs: Array, tolerance: float) -> bool:
        """Add a tangent unless the tangents meet the simulated pace; return whether it did."""
        simulated = self.simulate(costs)
        if abs(simulated / self.pace(costs)[0] - 1) <= tolerance:
            return False
        shifts = SHIFT * np.maximum(
            costs, [0, 1e-5, 1e-5, 0, 0.05 * self.observed.job.slowed, 0, 0]
        )
        shifts[4] *= self.observed.job.slowed
        slopes = np.array([
            (self.simulate(costs + shift) - simulated) / shift.sum() if shift.any() else 0.0
            for shift in np.diag(shifts)
        ])  # fmt: skip
        below = self.tangents[:, 0] + self.tangents[:, 1:] @ costs <= (1 + EDGE) * simulated
        tangent = np.r_[simulated - slopes @ costs, slopes]
        self.tangents = np.vstack([self.tangents[below], tangent])
        return True

    def simulate(self, costs: Array) -> float:
        """Return the simulated pace, in seconds per step."""
        return float(np.mean([pace_of(run) for run in self._runs(costs)]))

    def _runs(self, costs: Array) -> Sequence[Run]:
        compute, setup, hop, latency, slowdown, around, factor = costs.tolist()
        scenario = self.scenario
        if self.observed.job.slowed:
            update = {"beside_collectives": 1 + slowdown / factor}
            cluster = scenario.cluster.model_copy(update=update)
            scenario = scenario.model_copy(update={"cluster": cluster})
        if self.link is not None:
            # a library chooses by the bandwidth that the profile will state
            network = scenario.network.model_copy(update={"bandwidth": GIGABIT / factor})
            scenario = scenario.model_copy(update={"network": network})
            around = factor = 1.0
        overhead = Overhead.model_construct(
            collective=setup, hop=hop, latency_factor=latency, transmission_factor=factor,
            tree_exponent=log(around / factor) / self.by_tree,
        )  # fmt: skip
        groups = range(len(scenario.cluster.group))
        for key in ["cluster.compute", *(f"cluster.group.{n}.compute" for n in groups)]:
            scenario = scaled(scenario, key, compute * self.scale)
        scenario = scenario.model_copy(update={"overhead": (overhead,)})
        return run_seeds(scenario, scenario.algorithm[0], range(SEEDS))


class _Law:
    """The law of several jobs: its priors, residuals and fits."""

    def __init__(
        self, observed: Sequence[Observed], scenarios: Sequence[Scenario], conditions: Sequence[int]
    ) -> None:
        count, unknown = max(conditions) + 1, 0
        self.jobs: list[_Job] = []
        for seen, scenario, condition in zip(observed, scenarios, conditions, strict=True):
            link = None if seen.job.knows_link else LAW + count + unknown
            unknown += link is not None
            shortened = _shortened(scenario, seen.pattern.period)
            rate = ClosedForm(shortened).mean_plan.rate
            rate = rate if 0 < rate < np.inf else GIGABIT  # one worker communicates with nobody
            self.jobs.append(_Job(seen, shortened, LAW + condition, link, rate))
        rates = [job.rate for job in self.jobs if job.link is None]
        self.reference = float(np.exp(np.mean(np.log(rates)))) if rates else GIGABIT
        for job in self.jobs:
            job.offset = log(job.rate / self.reference)
        shortest = [
            min(seen.pace for seen, own in zip(observed, conditions, strict=True) if own == n)
            for n in range(count)
        ]
        computing = [Number(log(pace / 2), COMPUTE_SD, COMPUTE_SD) for pace in shortest]
        links = [Number(0.0, LINK_SD, LINK_SD)] * unknown
        self.median, self.below, self.above = np.array([*NUMBERS.values(), *computing, *links]).T
        if rates:  # hosts that copy for longer would not reach the bandwidth that was stated
            self.median[PER_BYTE] = min(self.median[PER_BYTE], log(COPYING / max(rates)))
        self.error = LAW_ERROR

    def unusual(self, theta: Array) -> Array:
        """Return by how many standard deviations of their priors numbers are off."""
        off: Array = (theta - self.median) / np.where(theta > self.median, self.above, self.below)
        return off

    def residuals(self, theta: Array, moved_by: Array | float = 0.0) -> Array:
        """Return what is missed in standard errors: each job's pace and computing, then priors."""
        paces, computing = [], []
        for job in self.jobs:
            seen, costs = job.observed, job.costs(theta)
            pace, communicated = job.pace(costs)
            missed, variance = log(pace / seen.pace), seen.covariance[1, 1] + job.sampling
            if seen.compute > 0:  # the pace, given the computing
                own, both = seen.covariance[0, 0] + STEADY**2, seen.covariance[0, 1]
                off = log(costs[0] / seen.compute)
                computing.append(off / own**0.5)
                missed, variance = missed - both / own * off, variance - both**2 / own
            # the law errs on what is communicated
            paces.append(missed / (variance + (self.error * communicated) ** 2 + 1e-8) ** 0.5)
        found: Array = np.r_[paces, computing, self.unusual(theta)] + moved_by
        return found

    def solve(self, start: Array, moved_by: Array | float = 0.0) -> "OptimizeResult":
        """Fit by least squares; one of several jobs may be at odds with all others."""
        from scipy.optimize import least_squares  # noqa: PLC0415

        loss: Literal["soft_l1", "linear"] = "soft_l1" if len(self.jobs) > 1 else "linear"
        return least_squares(
            self.residuals, start, x_scale=self.below, loss=loss, f_scale=ROBUST, args=(moved_by,)
        )

    def refine(self, theta: Array, tolerance: float) -> bool:
        """Simulate all jobs at these numbers; return whether any pace was missed."""
        refined = [job.refine(job.costs(theta), tolerance) for job in self.jobs]
        return any(refined)

    def fit(self) -> "OptimizeResult":
        """Fit the point, with the error of the law as jobs show it."""
        theta = self.median.copy()
        for job in self.jobs:
            if job.observed.compute > 0:
                theta[job.compute] = log(job.observed.compute)
        self.refine(theta, 0.0)
        for _ in range(2 * ROUNDS):
            found = self.solve(theta)
            moved, theta = np.abs(found.x - theta).max(), found.x
            if (count := len(self.jobs)) > 1:
                missed, slopes = found.fun[:count], found.jac[:count]
                inverse = np.linalg.inv(found.jac.T @ found.jac)
                # degrees of freedom that the paces have spent
                spent = float(np.einsum("ij,jk,ik", slopes, inverse, slopes))
                squares = LAW_FREEDOM * LAW_ERROR**2 + self.error**2 * float(missed @ missed)
                self.error = (squares / (LAW_FREEDOM + count - spent)) ** 0.5
            if not self.refine(theta, FIT_BEND) and moved < NEAR:
                break
        return found

    def draw(self, found: "OptimizeResult", rng: np.random.Generator) -> Array:
        """Fit again with every residual moved by its error."""
        theta: Array = found.x
        moved_by = rng.standard_normal(len(found.fun))
        for _ in range(ROUNDS):
            theta = self.solve(theta, moved_by).x
            if not self.refine(theta, BEND):
                break
        theta = np.clip(theta, found.x - LARGEST_FACTOR, found.x + LARGEST_FACTOR)
        return theta


def fit(
    observed: Sequence[Observed],
    scenarios: Sequence[Scenario],
    conditions: Sequence[int],
    most: float = np.inf,
    done: Callable[[int], None] = lambda draws: None,
) -> Fitted:
    """Fit the law to jobs; without draws if the misfit is `most` or more.

    `scenarios`: of each job, with computing times of mean 1 s; `conditions`: which jobs compute
    alike, numbered from 0. `done` is called with the number of draws that are made.
    """
    law = _Law(observed, scenarios, conditions)
    found = law.fit()
    point, jobs = found.x, law.jobs
    fitted = Fitted(
        point, np.empty((0, len(point))), [job.simulate(job.costs(point)) for job in jobs],
        law.reference, 2 * found.cost, law.unusual(point),
    )  # fmt: skip
    if fitted.misfit >= most:
        return fitted
    rng, draws = generator(0, Purpose.CALIBRATION, 1), np.empty((DRAWS, len(point)))
    for number in range(DRAWS):
        draws[number] = law.draw(found, rng)
        done(number + 1)
    # on a link that the law has not seen, and by each factor e of bandwidth from those it has
    draws[:, [FACTOR, EXPONENT]] += law.error * rng.standard_normal((DRAWS, 2))
    draws[:, LAW : LAW + max(conditions) + 1] += STEADY * rng.standard_normal((DRAWS, 1))
    return replace(fitted, draws=draws)


def _shortened(scenario: Scenario, period: int) -> Scenario:
    """Return a scenario of whole periods that is quick to simulate."""
    pieces = scenario.algorithm[0].parameters.get("buckets", 1)
    pieces = pieces if isinstance(pieces, int) else len(pieces)
    most = max(SHORTEST, min(LONGEST, PIECES // pieces))
    steps = period * max(PERIODS, -(-most // period))
    often = max(steps // period // EVALUATIONS, 1) * period
    run = scenario.run.model_copy(update={"steps": steps, "evaluate_every": often})
    return scenario.model_copy(update={"run": run})
