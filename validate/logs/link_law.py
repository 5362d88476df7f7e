"""Fit one law of real link performance to jobs over several links.

A collective of h hops with a total latency of l seconds, which by its formula occupies links of B
bytes per second for t seconds, takes

    collective + h hop + latency_factor l
    + t (transmission_factor (B / 1 Gbit/s)^-transmission_exponent + B per_byte)

with the keys of [[overhead]]. Buckets of a gradient have a separate factor, because libraries use
other algorithms for other sizes of payloads, such as a double tree instead of a ring.

The step time is simulated with the algorithm's program. It is convex in these costs, because a
worker waits for the latest of others, so the highest of its tangents approximates it. Compute times
in a log are taken as measured. A few jobs cannot determine the other numbers, so each has a prior
(`NUMBERS`), wide if systems differ. A bootstrap repeats the fit with logs and priors moved by their
errors (randomize-then-optimize: Bardsley et al., SIAM J. Sci. Comput. 36, 2014). So numbers that
the jobs leave open widen the intervals of predictions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import copysign, exp, log
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from paceline.simulator.distributions.random_streams import Purpose, generator
from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.network.closed_form import ClosedForm
from paceline.simulator.results.intervals import NORMAL
from paceline.simulator.results.run import Run
from paceline.simulator.scenario.overhead import GIGABIT, Overhead, tree
from paceline.simulator.scenario.redraw import scaled
from paceline.simulator.scenario.scenario import Scenario

from ..comparison.quantities import pace as pace_of
from .steps import Observed

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

Array = np.ndarray


class Number(NamedTuple):
    """The prior of a number or its logarithm, with standard deviations on both sides."""

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
    # relative slowdown of GPUs during collectives; published: 0.19, at most 0.4
    "slowdown": Number(log(0.08), 1.0, 0.8),
    "transmission_exponent": Number(0.0, 0.02, 0.02),
    "bucket_factor": Number(0.0, 0.15, 0.15),
    "bucket_tree": Number(0.5, 0.5, 0.5),  # 0: a ring, 1: a double tree
}
SETUP, HOP, LATENCY, FACTOR, PER_BYTE, SLOWDOWN, EXPONENT, BUCKETS, TREE = range(len(NUMBERS))
LAW = len(NUMBERS)  # from here on: logarithms of each condition's computing, of unknown links
COMPUTE_SD, LINK_SD = 0.7, 2.0  # around half of the shortest step; of a link's factor
BUCKETED = "ssgd-bucketed"
# relative sds between equal jobs, whose paces differ by 0.1 to 0.2 % (docs/evidence/validation):
# of the law beyond its numbers, and of computing
LAW_ERROR, LAW_FREEDOM, STEADY = 0.0015, 2.0, 0.0015
COPYING = 0.03  # largest share of a transmission that hosts copy for, in the prior's median
LEAST = 1e-5  # an exponent: draws are factors of it, at most a million
LARGEST_FACTOR = 13.0  # logarithm of a draw over the fit: a profile's factors are at most a million
DRAWS, ROUNDS, NEAR = 24, 4, 1e-4
ROBUST = 3.0  # standard errors above which residuals count less (soft L1)
FIT_BEND, BEND = 2e-4, 2e-3  # relative errors of tangents, of the fit and of draws
EDGE = 1e-4  # relative rounding of the edges between tangents
SHIFT = 0.02  # relative change of a cost for a tangent's slope
SEEDS, PERIODS, SHORTEST, LONGEST, PIECES = 2, 12, 24, 256, 1024  # of simulations; pieces a step
EVALUATIONS = 20


@dataclass(frozen=True, eq=False)
class Fitted:
    """The fitted law and compute times of conditions: `point`, and `draws` in rows.

    `paces`: predicted step times by job. `reference`: bandwidth at which the factor is fitted.
    `unusual`: whether the law as a whole deviates from its priors (90 %).
    """

    point: Array
    draws: Array
    paces: list[float]
    reference: float
    unusual: bool

    def overhead(self, row: Array, bucketed: bool = False) -> dict[str, float]:
        """Return the keys of [[overhead]] of one row; `bucketed`: those of buckets."""
        factor = row[FACTOR] + bucketed * row[BUCKETS]
        table = dict(zip(NUMBERS, np.exp(row[:SLOWDOWN]).tolist(), strict=False))
        table["transmission_factor"] = exp(factor + row[EXPONENT] * log(self.reference / GIGABIT))
        table["transmission_exponent"] = copysign(max(abs(row[EXPONENT]), LEAST), row[EXPONENT])
        table["tree_exponent"] = max(float(row[TREE]), LEAST) if bucketed else LEAST
        return table


@dataclass
class _Job:
    """A job, with tangents (constant, slopes) of its step time by its costs.

    `compute`, `link`: the numbers of its compute time and, if unknown, of its link. `offset`: the
    logarithm of its bandwidth over the reference; `scale`: the factor that gives simulated compute
    times the mean of the law; `sampling`: the variance of the logarithm of the simulated step time,
    which leaves out the first tenth of few steps.
    """

    observed: Observed
    scenario: Scenario
    compute: int
    link: int | None
    rate: float
    offset: float = 0.0
    scale: float = 1.0
    sampling: float = 0.0
    # a step takes at least its compute time, so that a search ends
    tangents: Array = field(default_factory=lambda: np.array([[0.0, 0.5, *[0.0] * 6]]))

    def __post_init__(self) -> None:
        self.bucketed = self.scenario.algorithm[0].name == BUCKETED
        # ratio of a double tree's time to a ring's; any exponent fits two or three workers
        self.by_tree = log(tree(max(self.scenario.cluster.workers, 4)))
        runs = self._runs(np.array([1.0, 0, 0, 0, 0, 1, 1]))
        self.scale = len(runs) / sum(run.seconds["compute"] / run.steps for run in runs)
        times = np.concatenate(self.observed.times)
        drawn = sum(run.steps for run in runs) * self.scenario.cluster.workers
        self.sampling = float(np.var(times) / np.mean(times) ** 2 / (9 * drawn))
        # the spread of few times, and thus the wait for the slowest worker, also has an error
        waits, computed = (sum(run.seconds[kind] for run in runs) for kind in ("wait", "compute"))
        self.sampling += (waits / computed) ** 2 / (2 * len(times))

    def costs(self, theta: Array, compute: float) -> Array:
        """Return the costs in which the step time is linear.

        These are compute, set-up, hop, latency factor, slowdown, and two transmission factors: for
        means around a ring, and for all others. The second multiplies the slowdown, so that the
        step time is linear in it. `compute`: the logarithm of the compute time.
        """
        added = 0.0
        if self.link is None:
            factor = theta[FACTOR] - theta[EXPONENT] * self.offset + self.bucketed * theta[BUCKETS]
            around = factor + self.bucketed * theta[TREE] * self.by_tree
            added = exp(theta[PER_BYTE]) * self.rate
        else:
            factor = around = theta[self.link]
        costs: Array = np.exp([compute, *theta[:FACTOR], theta[SLOWDOWN], around, factor])
        costs[-2:] += added
        costs[4] *= costs[-1]
        return costs

    def pace(self, costs: Array) -> tuple[float, float]:
        """Return the step time (seconds), and the share that is not computing."""
        values = self.tangents[:, 0] + self.tangents[:, 1:] @ costs
        edge = EDGE * self.observed.pace
        pace = edge * float(np.logaddexp.reduce(values / edge))
        share = 1 - costs[0] * self.tangents[int(np.argmax(values)), 1] / pace
        return pace, min(max(share, 0.0), 1.0)

    def logged(self, pace: float, communicated: float) -> tuple[float, float]:
        """Return the same for the steps in the log, whose share of waiting steps may differ."""
        communicating = communicated * self.observed.waits
        whole = 1 - communicated + communicating
        return pace * whole, communicating / whole

    def refine(self, costs: Array, tolerance: float) -> bool:
        """Add a tangent if the simulated step time was missed; return whether it was."""
        simulated = self.simulate(costs)
        if abs(simulated / self.pace(costs)[0] - 1) <= tolerance:
            return False
        least = np.array([0, 1e-5, 1e-5, 0, 0.05, 0, 0])
        shifts = SHIFT * np.maximum(costs, least)
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
        """Return the simulated seconds per step."""
        return float(np.mean([pace_of(run) for run in self._runs(costs)]))

    def _runs(self, costs: Array) -> Sequence[Run]:
        compute, setup, hop, latency, slowdown, around, factor = costs.tolist()
        scenario = self.scenario
        cluster, network = scenario.cluster, scenario.network
        if self.observed.job.slowed:
            cluster = cluster.model_copy(update={"beside_collectives": 1 + slowdown / factor})
        if self.link is not None:
            # libraries choose by the bandwidth in the profile
            network = network.model_copy(update={"bandwidth": GIGABIT / factor})
            around = factor = 1.0
        overhead = Overhead.model_construct(
            collective=setup, hop=hop, latency_factor=latency, transmission_factor=factor,
            tree_exponent=log(around / factor) / self.by_tree,
        )  # fmt: skip
        update = {"cluster": cluster, "network": network, "overhead": (overhead,)}
        scenario = scenario.model_copy(update=update)
        groups = range(len(cluster.group))
        for key in ["cluster.compute", *(f"cluster.group.{n}.compute" for n in groups)]:
            scenario = scaled(scenario, key, compute * self.scale)
        return run_seeds(scenario, scenario.algorithm[0], range(SEEDS))


class _Law:
    """The law of several jobs: its priors, residuals and fits."""

    def __init__(
        self, observed: Sequence[Observed], scenarios: Sequence[Scenario], conditions: Sequence[int]
    ) -> None:
        self.count = max(conditions) + 1
        unknown = iter(range(LAW + self.count, LAW + self.count + len(observed)))
        self.jobs: list[_Job] = []
        for one, scenario, condition in zip(observed, scenarios, conditions, strict=True):
            link = None if one.job.knows_link else next(unknown)
            shortened = _shortened(scenario, one.pattern.period)
            rate = ClosedForm(shortened).mean_plan.rate
            rate = rate if 0 < rate < np.inf else GIGABIT  # one worker communicates with nobody
            self.jobs.append(_Job(one, shortened, LAW + condition, link, rate))
        rates = [job.rate for job in self.jobs if job.link is None]
        self.reference = float(np.exp(np.mean(np.log(rates)))) if rates else GIGABIT
        for job in self.jobs:
            job.offset = log(job.rate / self.reference)
        # logarithms of every job's compute time and step time, from the logs
        self.shown = np.array([
            (log(one.compute) if one.compute > 0 else np.nan, log(one.pace)) for one in observed
        ])  # fmt: skip
        computing = []
        for condition in range(self.count):
            members = [one for one, n in zip(observed, conditions, strict=True) if n == condition]
            shortest = min(members, key=lambda one: one.pace)
            # if all steps wait, an average may take nearly the whole step
            wider = max(log(max(shortest.waits, 1.0)), 0.0)
            middle = log(shortest.pace / 2) - wider / 2
            computing.append(Number(middle, COMPUTE_SD + wider, COMPUTE_SD + wider))
        links = [Number(0.0, LINK_SD, LINK_SD)] * (len(self.jobs) - len(rates))
        self.median, self.below, self.above = np.array([*NUMBERS.values(), *computing, *links]).T
        if rates:  # hosts that copy for longer would not reach the stated bandwidth
            self.median[PER_BYTE] = min(self.median[PER_BYTE], log(COPYING / max(rates)))
        self.error = LAW_ERROR
        self.free = np.isnan(self.with_measured(np.full(len(self.median), np.nan), self.shown))

    def with_measured(self, theta: Array, shown: Array) -> Array:
        """Return the numbers, with compute times from logs unchanged."""
        theta = theta.copy()
        for number in range(LAW, LAW + self.count):
            jobs = [n for n, job in enumerate(self.jobs) if job.compute == number]
            jobs = [n for n in jobs if not np.isnan(shown[n, 0])]
            if jobs:
                variances = [self.jobs[n].observed.covariance[0, 0] + STEADY**2 for n in jobs]
                theta[number] = np.average(shown[jobs, 0], weights=1 / np.array(variances))
        return theta

    def costs(self, theta: Array, shown: Array) -> list[Array]:
        """Return the costs of every job, with the compute time in its log."""
        measured = shown[:, 0]
        return [
            job.costs(theta, theta[job.compute] if np.isnan(compute) else compute)
            for job, compute in zip(self.jobs, measured, strict=True)
        ]

    def unusual(self, theta: Array) -> Array:
        """Return by how many standard deviations free numbers differ from their priors."""
        off: Array = (theta - self.median) / np.where(theta > self.median, self.above, self.below)
        return np.where(self.free, off, 0.0)

    def missed(self, theta: Array, shown: Array) -> Array:
        """Return by how many standard errors the step time of every job is missed."""
        misfits = []
        for job, costs, pace in zip(self.jobs, self.costs(theta, shown), shown[:, 1], strict=True):
            predicted, communicated = job.logged(*job.pace(costs))
            to = np.array([communicated - 1, 1.0])  # the step time, given the compute time
            variance = to @ job.observed.covariance @ to + self.unseen(job, communicated)
            misfits.append((log(predicted) - pace) / variance**0.5)
        return np.array(misfits)

    def unseen(self, job: _Job, communicated: float) -> float:
        """Return the variance of a step time beyond the error in its log."""
        unsteady = 0.0 if job.observed.compute > 0 else 2**0.5 * STEADY
        more = (self.error * communicated) ** 2 + (unsteady * (1 - communicated)) ** 2
        return float(job.sampling + more + 1e-8)

    def solve(
        self, start: Array, shown: Array, moved_by: Array | float = 0.0
    ) -> tuple[Array, "OptimizeResult"]:
        """Fit by least squares; one of several jobs may disagree with the others."""
        from scipy.optimize import least_squares  # noqa: PLC0415

        theta = self.with_measured(start, shown)

        def residuals(free: Array) -> Array:
            theta[self.free] = free
            off = (self.unusual(theta) + moved_by)[self.free]
            return np.concatenate([self.missed(theta, shown), off])

        loss: Literal["soft_l1", "linear"] = "soft_l1" if len(self.jobs) > 1 else "linear"
        fitted = least_squares(
            residuals, theta[self.free], x_scale=self.below[self.free], loss=loss, f_scale=ROBUST
        )
        theta[self.free] = fitted.x
        return theta, fitted

    def refine(self, theta: Array, shown: Array, tolerance: float) -> bool:
        """Simulate all jobs with these numbers; return whether any step time was missed."""
        pairs = zip(self.jobs, self.costs(theta, shown), strict=True)
        return sum(job.refine(costs, tolerance) for job, costs in pairs) > 0

    def fit(self) -> Array:
        """Fit the point, and the error of the law from its misses of jobs."""
        theta = self.with_measured(self.median, self.shown)
        self.refine(theta, self.shown, 0.0)
        for _ in range(2 * ROUNDS):
            before = theta
            theta, fitted = self.solve(theta, self.shown)
            if (count := len(self.jobs)) > 1:
                missed, slopes = fitted.fun[:count], fitted.jac[:count]
                inverse = np.linalg.inv(fitted.jac.T @ fitted.jac)
                # degrees of freedom that the step times use
                spent = float(np.einsum("ij,jk,ik", slopes, inverse, slopes))
                squares = LAW_FREEDOM * LAW_ERROR**2 + self.error**2 * float(missed @ missed)
                self.error = (squares / (LAW_FREEDOM + count - spent)) ** 0.5
            moved = np.abs(theta - before).max()
            if not self.refine(theta, self.shown, FIT_BEND) and moved < NEAR:
                break
        return theta

    def draw(self, point: Array, normals: Array) -> Array:
        """Repeat the fit with logs and priors moved by their errors."""
        count, theta, shown = len(self.jobs), point, self.shown.copy()
        last, of_jobs, moved_by = np.split(normals, [3, 3 + 3 * count])
        for n, (job, costs) in enumerate(zip(self.jobs, self.costs(point, shown), strict=True)):
            axes, variances, _ = np.linalg.svd(job.observed.covariance)
            *together, alone = of_jobs[3 * n : 3 * n + 3]
            shown[n] += axes @ (np.sqrt(variances) * together)
            communicated = job.logged(*job.pace(costs))[1]
            shown[n, 1] += self.unseen(job, communicated) ** 0.5 * alone
        for _ in range(ROUNDS):
            theta, _ = self.solve(theta, shown, moved_by)
            if not self.refine(theta, shown, BEND):
                break
        # on a new link, and per factor e between its bandwidth and the nearest fitted one
        theta[[FACTOR, EXPONENT]] += self.error * last[:2]
        theta[LAW : LAW + self.count] += 2**0.5 * STEADY * last[2]
        drawn: Array = np.clip(theta, point - LARGEST_FACTOR, point + LARGEST_FACTOR)
        return drawn


def fit(
    observed: Sequence[Observed],
    scenarios: Sequence[Scenario],
    conditions: Sequence[int],
    done: Callable[[int], None] = lambda draws: None,
) -> Fitted:
    """Fit the law to jobs.

    `scenarios`: one per job, with compute times of mean 1 s; `conditions`: equal numbers, from 0,
    for jobs that compute alike. `done` is called with the number of finished draws.
    """
    law = _Law(observed, scenarios, conditions)
    point = law.fit()
    costs = law.costs(point, law.shown)
    paces = [
        float(job.logged(job.simulate(cost), job.pace(cost)[1])[0])
        for job, cost in zip(law.jobs, costs, strict=True)
    ]
    draws = np.empty((DRAWS, len(point)))
    for number, normals in enumerate(_normals(3 + 3 * len(law.jobs) + len(point))):
        draws[number] = law.draw(point, normals)
        done(number + 1)
    unusual = float(np.linalg.norm(law.unusual(point)[:LAW])) > NORMAL
    return Fitted(point, draws, paces, law.reference, unusual)


def _normals(columns: int) -> Array:
    """Return a row of normals per draw; the first columns are exactly standardised."""
    normals = generator(0, Purpose.CALIBRATION, 1).standard_normal((DRAWS, columns))
    exact = normals[:, : DRAWS - 1]
    exact[:] = np.linalg.qr(exact - exact.mean(axis=0))[0] * (DRAWS - 1) ** 0.5
    return normals


def _shortened(scenario: Scenario, period: int) -> Scenario:
    """Return a scenario of whole periods that is quick to simulate."""
    pieces = scenario.algorithm[0].parameters.get("buckets", 1)
    pieces = pieces if isinstance(pieces, int) else len(pieces)
    most = max(SHORTEST, min(LONGEST, PIECES // pieces))
    steps = period * max(PERIODS, -(-most // period))
    often = max(steps // period // EVALUATIONS, 1) * period
    run = scenario.run.model_copy(update={"steps": steps, "evaluate_every": often})
    return scenario.model_copy(update={"run": run})
