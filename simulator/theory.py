"""Predict times in closed form: AdaComm's theorems, DTS, HPSGD and Hybrid.

AdaComm: Wang and Joshi, arXiv 1810.08313. DTS: Zhu, Lu, Lin and Han, Distributed Training Across
the World. Notation: m workers, tau local steps between two averages, D seconds per average.
Seconds per step always mean seconds per *local* step.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from .distributions.distribution import Distribution
from .distributions.empirical import ReplayedTimes
from .distributions.order_statistics import expected_max
from .errors import InputError
from .network.closed_form import ClosedForm, CollectiveCost
from .network.mean_cost import mean_cost, word_cost
from .programs.pieces.schedule import Rate
from .scenario.cluster import Cluster, Group
from .scenario.fields import LEAST, MOST
from .scenario.scenario import Scenario
from .scenario.tables import Bound, LearningCurve

LONGEST = 2**53  # longest period in steps: floats represent all whole numbers up to it
ROUNDING = 1e-12  # relative tolerance for rounding errors in a number of steps

UNKNOWN = (
    "no formula for rounds with different clients, spare clients, a deadline or a server; "
    "`paceline simulate` measures seconds per round and step"
)

LIMITS = {
    "hpsgd": "hpsgd: exact for constant, equal gradients, and for means within the shortest window",
    "hybrid": "hybrid: exact for exponential gradients and a free or never idle server",
}

Workers = Sequence[Sequence[Distribution]]


def seconds_per_step(workers: Workers, D: float, tau: int) -> float:
    """Return expected seconds per local step of periodic averaging (tau 1: SSGD).

    E[T_PAvg] = E[Ybar_m:m] + E[D]/tau: AdaComm, Theorem 1. `workers` as in `expected_max`; `D` is
    the expected duration of one average (seconds).
    """
    return expected_max(workers, tau) + D / tau


@dataclass(frozen=True)
class ErrorBound:
    """AdaComm's Theorem 2: a bound on the least E||grad F||^2 within a time.

    `smoothness` is L, `gradient_variance` sigma^2 of one worker's gradient, `initial_gap`
    F(x1) - Finf; `lr` is a constant learning rate.
    """

    workers: int
    lr: float
    smoothness: float
    gradient_variance: float
    initial_gap: float

    @classmethod
    def of(cls, objective: Bound, workers: int, lr: float) -> "ErrorBound":
        """Return the bound of an objective, for a number of workers and a learning rate."""
        terms = objective.smoothness, objective.gradient_variance, objective.initial_gap
        return cls(workers, lr, *terms)

    def __call__(self, duration: float, seconds_per_step: float, tau: int) -> float:
        """Return the bound after `duration` seconds; it holds only if `valid(tau)`."""
        return 2 * self.initial_gap * seconds_per_step / (self.lr * duration) + self.floor(tau)

    def floor(self, tau: int) -> float:
        """Return the limit of the bound for infinite time."""
        noise = self.lr * self.smoothness * self.gradient_variance / self.workers
        return noise + self.drift * (tau - 1)

    @property
    def drift(self) -> float:
        """Increase of the bound per further local step between averages."""
        return (self.lr * self.smoothness) ** 2 * self.gradient_variance

    def valid(self, tau: int) -> bool:
        """Return whether lr L + lr^2 L^2 tau (tau - 1) <= 1, as the theorem requires."""
        return tau <= self.cap

    @property
    def cap(self) -> int:
        """The largest tau that the theorem covers; 0 if the learning rate is too high.

        With s = lr L, 1 - s - s^2 tau (tau - 1) = (1 - s tau) (1 + s (tau - 1)).
        """
        return math.floor(min(LONGEST, 1 / (self.lr * self.smoothness)) * (1 + ROUNDING))


def tau_star_constant(bound: ErrorBound, D: float, duration: float) -> float:
    """Return the best real tau for constant times: AdaComm, Theorem 3 (eq. 4).

    It is inf for gradients without noise. For exponential compute times it is too low by a factor
    of about 2.
    """
    drift = bound.lr * bound.drift * duration
    return math.sqrt(2 * bound.initial_gap * D / drift) if drift else math.inf


class TauStar(NamedTuple):
    """The integer tau with the least bound, with and without the rate condition."""

    valid: int | None
    unconstrained: int | None


def tau_star_random(
    bound: ErrorBound, seconds_per_step: Callable[[int], float], duration: float
) -> TauStar:
    """Return the best integer tau for random delays, by Theorem 2's bound.

    `seconds_per_step(tau)`: by Theorem 1; assumed convex and decreasing, so the bound has one
    minimum. `valid` is None if the condition allows no tau. `unconstrained` is None without
    gradient noise, because a longer period is then always better.
    """
    if not bound.drift:
        return TauStar(bound.cap or None, None)

    @cache
    def error(tau: int) -> float:
        return bound(duration, seconds_per_step(tau), tau)

    # From `enough` on, the floor alone exceeds the error of tau = 1.
    enough = 1 + math.ceil(min(LONGEST, (error(1) - bound.floor(1)) / bound.drift))
    best = bisect_left(range(enough), True, lo=1, key=lambda tau: error(tau + 1) >= error(tau))
    return TauStar(min(best, bound.cap) or None, best)


def crossing(
    bound: ErrorBound, short: tuple[int, float], long: tuple[int, float]
) -> tuple[float, float] | None:
    """Return the time (s) at which the bounds of two periods cross, and the bound.

    Each period is (tau, seconds per step). Before that time the longer period has the lower bound.
    None if one bound is always lower.
    """
    (tau, seconds), (longer, fewer) = sorted([short, long])
    if fewer >= seconds or not bound.drift:
        return None
    gain = 2 * bound.initial_gap * (seconds - fewer) / bound.lr
    time = gain / (bound.drift * (longer - tau))
    return (time, bound(time, seconds, tau)) if math.isfinite(time) else None


def delayed_seconds_per_step(
    compute: float, transmission: float, latency: float, delay: int, period: int = 1
) -> float:
    """Return seconds per step of DTS: a mean per `period`, `delay` steps late.

    `transmission`: seconds that one mean occupies the link; `latency`: seconds from then to its
    arrival. A mean must arrive before the mean `rounds` periods later starts; `slack` of these
    steps follow its arrival. For period 1 the result is
    max(compute, transmission, (latency + transmission)/delay); for delay <= period it is
    max(transmission/period, compute + max(0, latency + transmission - delay compute)/period).
    """
    rounds = max(1, math.ceil(delay / period))
    slack = rounds * period - delay
    cycle = (latency + transmission + slack * compute) / rounds
    return max(compute, transmission / period, cycle / period)


def _ceil(ratio: float) -> int:
    return math.ceil(ratio * (1 - ROUNDING))  # 6 s / 0.3 s is 20 despite rounding


def steps_to_hide(
    compute: float, transmission: float, latency: float, period: int = 1
) -> int | None:
    """Return the smallest delay (steps) with which DTS never waits; times in seconds.

    None if no delay is enough, because one mean occupies the link for longer than `period` steps.
    Then send less (compression) or less often (`smallest_period`).
    """
    if smallest_period(compute, transmission) > period:
        return None
    return _ceil((latency + transmission) / compute)


def smallest_period(compute: float, transmission: float) -> int:
    """Return the fewest steps between means that the link can sustain; times in s."""
    return max(1, _ceil(transmission / compute))


def window(compute: float, mean: float, shortest: int = 2, agree: float = 0.0) -> int:
    """Return the steps between HPSGD's means, for gradients of equal, constant times.

    Workers poll from step `shortest` of a window on; a poll takes `agree` seconds. Without that
    time, the result is max(shortest, ceil(t_sync/t_train)). `mean`: seconds from its start to its
    arrival.
    """
    return max(shortest, _ceil((mean + shortest * agree) / (compute + agree)))


def seconds_per_update(
    compute: float, workers: int, gradients: int, server: tuple[float, float], *, wait: bool = True
) -> float:
    """Return seconds per update of Hybrid while it waits for K `gradients`.

    The result is the longer of two times. The workers take c (H_m - H_(m-K)), or c K/m if they do
    not `wait` for their update: exact for exponential gradients of mean c and a server that takes
    no time. The server takes K r + a, with (r, a) in `server`: exact if its queue is never empty.
    """
    rates = range(workers - gradients + 1, workers + 1) if wait else [workers] * gradients
    return max(compute * sum(1 / rate for rate in rates), gradients * server[0] + server[1])


def theory(scenario: Scenario) -> dict[str, Any]:
    """Return all predictions for one scenario, as in `paceline theory --json`.

    Without objective "bound", the bound's columns are empty or None; all columns are if `selected`
    returns None. Raises InputError if a time has no expectation, or if all times are zero.
    """
    world = selected(scenario)
    if world is None:
        tables = "periods", "tau_star", "crossings", "hpsgd", "hybrid"
        empty: dict[str, Any] = {key: [] for key in tables}
        return {"sync_seconds_per_step": None} | empty | {"hide": {}, "notes": [UNKNOWN]}
    workers, cost = _laws(world), mean_cost(world)
    D, step = cost.transmission + cost.latency, steps_of(world)
    if not 0 < step(1) < math.inf:
        raise InputError(
            f"{scenario.file}: theory: the expected time of one synchronous step is {step(1):g} s; "
            "give computing or communication a time above zero that has a mean "
            "(a pareto distribution has one for alpha above 1)"
        )
    means = [sum(law.expectation for law in laws) for laws in workers]
    alone = len(means) / world.team.ideal_rate  # seconds per step without waiting
    bound = _bound(scenario, len(workers))
    return {
        "sync_seconds_per_step": step(1),
        "periods": [
            {
                "tau": tau,
                "seconds_per_step": step(tau),
                "speedup": step(1) / step(tau),
                "valid": bound.valid(tau) if bound else None,
                "floor": bound.floor(tau) if bound else None,
                "scalability": alone / step(tau),
            }
            for tau in scenario.theory.periods
        ],
        "tau_star": [
            _best(bound, step, D, duration) for duration in scenario.theory.durations if bound
        ],
        "crossings": _crossings(bound, step, scenario.theory.periods) if bound else [],
        "hpsgd": _hpsgd(world, alone) if max(means) else [],
        "hybrid": _hybrid(world, alone),
        "hide": _hide(scenario, max(means), cost) if max(means) else None,
        "notes": _notes(scenario, bound),
    }


def selected(scenario: Scenario) -> Scenario | None:
    """Return the scenario with a round's clients as workers; None if they differ.

    Without sampling, return the scenario itself. Return None as well if a round waits for the first
    reports, a deadline or a server.
    """
    cluster, network = scenario.cluster, scenario.network
    if cluster.sampling is None:
        return scenario
    first = cluster.sampling.over > 1 or cluster.sampling.deadline is not None
    if first or cluster.group or network.link or network.collective == "server":
        return None
    clients = cluster.model_copy(update={"workers": cluster.participants, "sampling": None})
    return scenario.model_copy(update={"cluster": clients})


def steps_of(scenario: Scenario) -> Callable[[int], float]:
    """Return Theorem 1's seconds per step of a scenario as a function of the period.

    Averages over TCP include slow start after links were idle for a period.
    """
    workers, cost = _laws(scenario), mean_cost(scenario)
    whole = cost.transmission + cost.latency
    network, size = ClosedForm(scenario), scenario.model.bytes

    def of_period(tau: int) -> float:
        woken = network.waking("mean", size, tau * expected_max(workers, tau), 0.0)
        return seconds_per_step(workers, whole + float(woken), tau)

    return cache(of_period)


def bound_of(scenario: Scenario) -> ErrorBound | None:
    """Return the scenario's bound by Theorem 2; None unless that is the objective."""
    world = selected(scenario)
    return _bound(scenario, world.cluster.workers) if world else None


def _laws(scenario: Scenario) -> list[list[Distribution]]:
    """Return each worker's laws, whose sum is a step's time including overhead."""
    laws, added = scenario.team.expected_laws, scenario.costs.step
    return [[*worker, added] for worker in laws] if added.expectation else laws


def _bound(scenario: Scenario, workers: int) -> ErrorBound | None:
    objective, lr = scenario.objective, scenario.optimizer.lr
    if objective.kind != "bound" or lr is None:
        return None
    rate = float(TypeAdapter[Rate](Rate).validate_python(lr)(1))
    return ErrorBound.of(objective, workers, rate) if LEAST <= rate <= MOST else None


def _best(
    bound: ErrorBound, step: Callable[[int], float], D: float, duration: float
) -> dict[str, Any]:
    constant = tau_star_constant(bound, D, duration)
    best = tau_star_random(bound, step, duration)
    return {
        "duration": duration,
        "constant_delays": constant if math.isfinite(constant) else None,
        "random_delays": best.valid,
        "cap": bound.cap,
        "unconstrained": best.unconstrained,
    }


def _crossings(
    bound: ErrorBound, step: Callable[[int], float], periods: Sequence[int]
) -> list[dict[str, Any]]:
    rows = []
    for short, long in combinations(sorted(set(periods)), 2):
        if cross := crossing(bound, (short, step(short)), (long, step(long))):
            rows.append({"tau": long, "against": short, "time": cross[0], "bound": cross[1]})
    return rows


def _hpsgd(scenario: Scenario, alone: float) -> list[dict[str, Any]]:
    """Return each hpsgd's window and step time; `alone`: step time without waits."""
    rows = []
    for algorithm in scenario.algorithm:
        if algorithm.name != "hpsgd":
            continue
        under, keys = scenario.under(algorithm), algorithm.parameters
        laws, cost, overhead = _laws(under), mean_cost(under), under.costs
        shared, least = keys["decision"] == "shared", keys["shortest_window"]
        agree = overhead.agree + overhead.agree_latencies * word_cost(under) if shared else 0.0
        steps = window(alone, cost.transmission + cost.latency, least, agree)
        polls, compute = steps - least + 1, alone * steps
        if shared:  # all workers wait for the slowest at every poll
            compute = least * expected_max(laws, least) + (polls - 1) * expected_max(laws, 1)
        pace = (compute + polls * agree + overhead.issue + overhead.collect) / steps
        rows.append({"label": algorithm.label, "window": steps, "seconds_per_step": pace})
    return rows


def _hybrid(scenario: Scenario, alone: float) -> list[dict[str, Any]]:
    """Return when each hybrid is synchronous, and its updates per second at both ends."""
    rows, m, costs = [], scenario.cluster.workers, scenario.server
    for algorithm in scenario.algorithm:
        keys, server = algorithm.parameters, (costs.receive, costs.apply)
        if algorithm.name != "hybrid" or keys["threshold"]:
            continue
        wait, size, arrivals = keys["wait"], keys["step_size"], keys["count"] == "arrivals"
        times = [seconds_per_update(alone, m, k, server, wait=wait) for k in range(1, m + 1)]
        switch = sum(size / (k if arrivals else 1) * times[k - 1] for k in range(1, m))
        first, last = (1 / time if time else None for time in (times[0], times[-1]))
        ends = {"first_updates_per_second": first, "last_updates_per_second": last}
        rows.append({"label": algorithm.label, "switch": switch, **ends})
    return rows


def _hide(scenario: Scenario, compute: float, cost: CollectiveCost) -> dict[str, Any]:
    if scenario.cluster.sampling:  # a round waits for reports, not for an average
        return {}
    period = smallest_period(compute, cost.transmission)
    return {
        "delay": steps_to_hide(compute, cost.transmission, cost.latency),
        "smallest_period": period,
        "delay_at_smallest_period": steps_to_hide(compute, cost.transmission, cost.latency, period),
    }


def _notes(scenario: Scenario, bound: ErrorBound | None) -> list[str]:
    notes = []
    if bound is None and not isinstance(scenario.objective, LearningCurve):
        needed = f'objective.kind = "bound" and optimizer.lr (from {LEAST:g} to {MOST:g})'
        notes.append(f"tau_star and crossings need {needed}")
    elif bound and not bound.cap:
        notes.append("the learning rate is too high for Theorem 2: lr times smoothness exceeds 1")
    names = {algorithm.name for algorithm in scenario.algorithm}
    notes += [note for name, note in LIMITS.items() if name in names]
    cluster, network = scenario.cluster, scenario.network
    parts: list[Cluster | Group] = [cluster, *cluster.group]
    if any(part.bursts or part.profile for part in parts):
        notes.append("profiles and bursts count by their mean speed")
    if any(isinstance(part.compute, ReplayedTimes) for part in parts):
        notes.append("the times of a trace are drawn at random: Theorem 1 ignores their order")
    if any(part.failures or part.membership for part in parts):
        notes.append("failures and absences are ignored")
    if cluster.sampling:
        notes.append(f"steps count only the {cluster.participants} clients of a round")
    if any(link.profile for link in network.link):
        notes.append("the network stays as at the start")
    return notes
