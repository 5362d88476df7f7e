"""Theory against the papers' figures, closed forms, brute force and simulation of the recursion."""

import json
import math
import tomllib
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special

from paceline.simulator import theory
from paceline.simulator.distributions.law import Empirical, Mixture
from paceline.simulator.distributions.parametric import (
    Constant,
    Exponential,
    Gamma,
    LogNormal,
    Normal,
    Pareto,
    ShiftedExponential,
    Uniform,
    Weibull,
)
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import load, parse
from paceline.simulator.reports import terminal
from paceline.simulator.studies import bound
from paceline.simulator.theory import ErrorBound, expected_max, seconds_per_step
from tests.helpers import worlds
from tests.helpers.cases import beside, looped

EXPONENTIAL = Exponential(mean="1 s")
SIXTEEN = [[EXPONENTIAL]] * 16
PAPER = ErrorBound(workers=16, lr=0.08, smoothness=1.0, gradient_variance=1.0, initial_gap=1.0)
TWO_POINTS = Mixture(
    components=[
        {"weight": 9, "dist": "constant", "value": "500 ms"},
        {"weight": 1, "dist": "constant", "value": "10 s"},
    ]
)
NEGLIGIBLE = [Uniform(low="0 s", high="1 us")]  # forces the lattice, and is never the slowest


def harmonic(m):
    return sum(1 / i for i in range(1, m + 1))


def paper_step(tau):
    return seconds_per_step(SIXTEEN, 1.0, tau)


# Expected maximum


@looped("m", [1, 2, 16, 256])
def test_exponential_maximum_is_harmonic(m):
    assert expected_max([[EXPONENTIAL]] * m) == pytest.approx(harmonic(m), rel=1e-12)


@looped("m", [1, 16])
@looped("alpha", [1.001, 1.2, 2.0, 5.0])
def test_pareto_maximum(m, alpha):
    law = Pareto(minimum="2 s", alpha=alpha)
    log = special.gammaln(m + 1) + special.gammaln(1 - 1 / alpha)
    exact = 2 * math.exp(log - special.gammaln(m + 1 - 1 / alpha))
    assert expected_max([[law]] * m) == pytest.approx(exact, rel=1e-10)


def test_other_closed_forms():
    assert expected_max([[Uniform(low="1 s", high="3 s")]] * 9) == pytest.approx(1 + 2 * 0.9)
    weibull = Weibull(scale="1 s", shape=2.0)  # the least of m: scale m^(-1/shape)
    terms = [(-1) ** (i + 1) * math.comb(4, i) / math.sqrt(i) for i in range(1, 5)]
    assert expected_max([[weibull]] * 4) == pytest.approx(math.gamma(1.5) * sum(terms))
    two = [[Normal(mean="9 s", sd="100 ms")]] * 2
    assert expected_max(two) == pytest.approx(9 + 0.1 / math.sqrt(math.pi), rel=1e-10)
    at_least_one_slow = 1 - 0.9**4
    assert expected_max([[TWO_POINTS]] * 4) == pytest.approx(0.5 + 9.5 * at_least_one_slow)


def test_unequal_workers():
    """Exponentials of rates a and b: E[max] = 1/a + 1/b - 1/(a + b)."""
    laws = [[EXPONENTIAL], [Exponential(mean="500 ms")]]
    assert expected_max(laws) == pytest.approx(1 + 0.5 - 1 / 3)
    assert expected_max([[Constant(value="2 s")], [EXPONENTIAL]]) == pytest.approx(2 + math.exp(-2))
    assert expected_max([[Constant(value="2 s")], [Constant(value="3 s")]], 7) == pytest.approx(3)


def test_constants_shift_everything():
    shifted = [[ShiftedExponential(shift="3 s", mean="4 s")]] * 5
    added = [[EXPONENTIAL, Constant(value="3 s")]] * 5
    for tau in (1, 4):
        expected = 3 + expected_max([[EXPONENTIAL]] * 5, tau)
        assert expected_max(shifted, tau) == pytest.approx(expected, rel=1e-12)
        assert expected_max(added, tau) == pytest.approx(expected, rel=1e-12)


@looped("tau", [2, 10, 100])
def test_lattice_agrees_with_closed_sums(tau):
    for worker in (
        [EXPONENTIAL],
        [Gamma(mean="1 s", shape=0.3)],
        [EXPONENTIAL, *[Constant(value="3 s")]],
    ):
        exact = expected_max([worker] * 16, tau)
        assert expected_max([worker] * 16 + [NEGLIGIBLE], tau) == pytest.approx(exact, rel=1e-6)


def test_sum_of_two_laws():
    """Two exponentials of unlike rates: hypoexponential, a difference of two exponentials."""
    worker = [EXPONENTIAL, Exponential(mean="500 ms")]
    exact = integrate.quad(lambda t: 1 - (1 - 2 * math.exp(-t) + math.exp(-2 * t)) ** 8, 0, 60)[0]
    assert expected_max([worker] * 8) == pytest.approx(exact, rel=1e-6)


def test_sum_of_uniforms():
    """Irwin-Hall: the mean of three, the largest of five."""
    density = lambda t: (t**3 - 3 * max(t - 1, 0) ** 3 + 3 * max(t - 2, 0) ** 3) / 6  # noqa: E731
    exact = sum(integrate.quad(lambda t: 1 - density(t) ** 5, a, a + 1)[0] for a in range(3)) / 3
    law = Uniform(low="0 s", high="1 s")
    assert expected_max([[law]] * 5, 3) == pytest.approx(exact, rel=1e-7)


@looped(
    "law",
    [
        Pareto(minimum="1 s", alpha=1.3),
        Pareto(minimum="1 s", alpha=2.2),
        LogNormal(mean="1 s", sd="5 s"),
        Weibull(scale="1 s", shape=0.4),
    ],
)
def test_heavy_tailed_sum_of_two_by_nested_quadrature(law):
    """P(S > x) = P(Y > x/2)^2 + 2 E[P(Y > x - Y'); Y' <= x/2]: every term positive."""
    q, weights = np.polynomial.legendre.leggauss(400)

    def sf(x):
        half = float(law.cdf(x / 2))
        y = law.quantile(0.5 * half * (q + 1))
        return float(law.sf(x / 2)) ** 2 + half * float(weights @ law.sf(x - y))

    edges = [0.0, *(2 * float(k) for k in law.knots)]
    edges += [max(edges) + 10.0**e for e in np.arange(-4, 30, 0.5)]
    panels = [
        integrate.quad(lambda t: -math.expm1(6 * math.log1p(-min(sf(t), 1 - 1e-16))), a, b)[0]
        for a, b in pairwise(edges)
    ]
    last = edges[-1]
    slope = math.log2(sf(last) / sf(2 * last)) if sf(last) > 0 else math.inf
    exact = (sum(panels) + (6 * last * sf(last) / (slope - 1) if sf(last) > 0 else 0)) / 2
    assert expected_max([[law]] * 6, 2) == pytest.approx(exact, rel=1e-4)


def test_sums_of_two_points_are_binomial():
    tau, m = 10, 16
    k = np.arange(tau + 1)
    cdf = special.bdtr(k, tau, 0.1)
    values = 0.5 + 9.5 * k / tau
    exact = float(values @ np.diff(cdf**m, prepend=0))
    assert expected_max([[TWO_POINTS]] * m, tau) == pytest.approx(exact, rel=1e-4)


@looped("tau", [1, 5])
def test_agrees_with_sampling(tau, tmp_path):
    """Uneven workers with an extra delay on some, against 200,000 draws of everything."""
    (tmp_path / "s").write_text("0.2\n0.7\n1.5\n")
    workers = [
        [LogNormal(mean="1 s", sd="1 s")],
        [LogNormal(mean="1 s", sd="1 s"), Weibull(scale="1 s", shape=0.7)],
        [Normal(mean="1 s", sd="1 s", negative="clip")],
        [Empirical.model_validate({"file": "s"}, context={"folder": tmp_path})],
        [ShiftedExponential(shift="1 s", mean="1.5 s"), TWO_POINTS],
        [Constant(value="1.2 s")],
    ]
    rng, n = np.random.default_rng(3), 200_000
    means = [sum(law.sample(rng, n * tau) for law in worker) for worker in workers]
    slowest = np.max([mean.reshape(n, tau).mean(axis=1) for mean in means], axis=0)
    error = slowest.std() / math.sqrt(n)
    assert expected_max(workers, tau) == pytest.approx(slowest.mean(), abs=4 * error)


def test_no_expectation_and_no_workers():
    assert expected_max([[Pareto(minimum="1 s", alpha=1.0)]], 3) == math.inf
    assert expected_max([[Constant(value="0 s")]] * 3) == 0
    with pytest.raises(ValueError, match="worker"):
        expected_max([])


@given(
    sd=st.floats(0.05, 5),
    extra=st.floats(0.1, 3),
    m=st.integers(1, 20),
    taus=st.lists(st.integers(1, 60), min_size=2, max_size=2, unique=True).map(sorted),
)
@settings(max_examples=10, deadline=None)
def test_the_maximum_lies_above_the_means_and_falls_with_tau(sd, extra, m, taus):
    law = LogNormal(mean="1 s", sd=f"{sd!r} s")
    workers = [[law]] * m + [[law, Exponential(mean=f"{extra!r} s")]]
    often, seldom = (expected_max(workers, tau) for tau in taus)
    assert 1 + extra <= seldom * (1 + 1e-6)
    assert seldom <= often * (1 + 1e-6)


# AdaComm's theorems


# no two numbers are alike, and none is 1 or 2
UNLIKE = ErrorBound(workers=5, lr=0.03, smoothness=1.7, gradient_variance=0.6, initial_gap=2.6)


def test_theorem_2_by_hand():
    assert UNLIKE.floor(1) == pytest.approx(0.03 * 1.7 * 0.6 / 5)  # 0.00612
    assert UNLIKE.drift == pytest.approx(0.051**2 * 0.6)  # 0.0015606
    assert UNLIKE.floor(4) == pytest.approx(0.00612 + 3 * 0.0015606)
    assert UNLIKE(7.0, 1.3, 4) == pytest.approx(2 * 2.6 * 1.3 / (0.03 * 7) + 0.0108018)
    assert UNLIKE.cap == 19  # 0.051 + 0.002601 tau (tau - 1) <= 1: 342 is below 364.9, 380 above
    time, value = theory.crossing(UNLIKE, (5, 1.2), (2, 3.0))
    assert time == pytest.approx(2 * 2.6 * (3.0 - 1.2) / 0.03 / (3 * 0.0015606))
    assert value == pytest.approx(UNLIKE(time, 1.2, 5))
    best = math.sqrt(2 * 2.6 * 0.9 / (0.03 * 0.0015606 * 70))
    assert theory.tau_star_constant(UNLIKE, 0.9, 70.0) == pytest.approx(best)


@given(lr=st.floats(1e-4, 2), smoothness=st.floats(0.01, 10))
def test_cap_is_the_largest_tau_that_the_condition_allows(lr, smoothness):
    def allowed(tau, rounding):
        step = Fraction(lr) * Fraction(smoothness) * (1 + rounding)
        return step + step**2 * tau * (tau - 1) <= 1

    bound = ErrorBound(4, lr, smoothness, 1.0, 1.0)
    rounding = Fraction(1, 10**11)
    assert bound.cap == 0 or allowed(bound.cap, -rounding)
    assert not allowed(bound.cap + 1, rounding)
    assert bound.valid(bound.cap)
    assert not bound.valid(bound.cap + 1)


def test_cap_whose_condition_is_met_exactly():
    for steps in range(1, 100):  # of 10, floats say that 0.1 + 0.01 * 90 > 1
        assert ErrorBound(4, 1 / steps, 1.0, 1.0, 1.0).cap == steps


def test_bounds_that_never_cross():
    assert theory.crossing(PAPER, (1, 1.0), (10, 1.0)) is None
    quiet = ErrorBound(4, 0.1, 1.0, 0.0, 1.0)
    assert theory.crossing(quiet, (1, 2.0), (10, 1.0)) is None
    hushed = ErrorBound(4, 0.1, 1.0, 1e-320, 1.0)
    assert theory.crossing(hushed, (1, 2.0), (10, 1.0)) is None  # in no time that a float holds


@looped(
    ("duration", "constant", "best", "valid"),
    [(60, 8.07, 19, 12), (100, 6.25, 14, 12), (500, 2.80, 5, 5), (1000, 1.98, 4, 4)],
)
def test_theorem_3_and_its_random_counterpart(duration, constant, best, valid):
    actual = theory.tau_star_constant(PAPER, 1.0, duration)
    assert actual == pytest.approx(constant, abs=0.005)
    assert theory.tau_star_random(PAPER, paper_step, duration) == (valid, best)


def test_random_minimiser_with_constant_times_is_theorem_3_rounded():
    step = lambda tau: seconds_per_step([[Constant(value="1 s")]] * 16, 1.0, tau)  # noqa: E731
    for duration in (10.0, 60.0, 500.0, 5000.0):
        best = theory.tau_star_constant(PAPER, 1.0, duration)
        actual = theory.tau_star_random(PAPER, step, duration).unconstrained
        assert abs(actual - max(best, 1)) < 1


@looped("law", [TWO_POINTS, Pareto(minimum="500 ms", alpha=1.8), Uniform(low="0 s", high="2 s")])
def test_random_minimiser_is_what_trying_every_tau_finds(law):
    steps = {tau: seconds_per_step([[law]] * 8, 0.5, tau) for tau in range(1, 41)}
    for duration in (200, 1000):
        tried = min(steps, key=lambda tau: PAPER(duration, steps[tau], tau))
        assert tried < 40
        step = lambda tau: seconds_per_step([[law]] * 8, 0.5, tau)  # noqa: E731
        assert theory.tau_star_random(PAPER, step, duration).unconstrained == tried


def test_minimiser_at_the_edges():
    assert theory.tau_star_random(ErrorBound(4, 2.0, 1.0, 1.0, 1.0), paper_step, 60.0).valid is None
    quiet = ErrorBound(4, 0.1, 1.0, 0.0, 1.0)
    assert theory.tau_star_random(quiet, paper_step, 60.0) == (quiet.cap, None)
    assert theory.tau_star_constant(quiet, 1.0, 60.0) == math.inf
    assert theory.tau_star_random(PAPER, lambda tau: 1.0, 60.0) == (1, 1)


# DTS


def test_calibration_of_the_dts_paper():
    ring = 2 * 3 / 4 * 25_557_032 * 4 * 8 / 34e6
    slow = theory.delayed_seconds_per_step(0.3, ring, 0.479, delay=0)
    assert 0.3 / slow == pytest.approx(0.008, abs=5e-4)
    compressed = theory.delayed_seconds_per_step(0.3, (37.5 - 0.779) / 31, 0.479, 4, period=4)
    assert 0.3 / compressed == pytest.approx(0.72, abs=5e-3)
    alone = theory.delayed_seconds_per_step(0.3, 36.72, 0.479, 40, period=20)
    assert 0.3 / alone == pytest.approx(0.163, abs=5e-4)
    assert theory.steps_to_hide(0.3, 0.0, 6.0) == 20
    assert theory.smallest_period(0.3, 0.1 + 0.2) == 1  # their ratio is 1 + 2^-52
    assert theory.steps_to_hide(0.3, 0.1 + 0.2, 0.0) == 1
    assert theory.window(1.0, 0.5) == 2


@given(
    transmission=st.floats(0, 8),
    latency=st.floats(0, 20),
    delay=st.integers(0, 9),
    period=st.integers(1, 4),
)
@settings(max_examples=100, deadline=None)
def test_steady_state_is_that_of_the_recursion(transmission, latency, delay, period):
    """Step by step: wait for the mean that is due, then start the next on the serial link."""
    clock = link = 0.0
    arrival: dict[int, float] = {}
    steps = 4000
    half = 0.0
    for n in range(1, steps + 1):
        clock += 1.0
        if delay:
            clock = max(clock, arrival.get(n - delay, 0.0))
        if n % period == 0:
            link = max(link, clock) + transmission
            arrival[n] = link + latency
        if not delay:
            clock = max(clock, arrival.get(n, 0.0))
        if n == steps // 2:
            half = clock
    actual = theory.delayed_seconds_per_step(1.0, transmission, latency, delay, period)
    assert (clock - half) / (steps // 2) == pytest.approx(actual, rel=0.02)


@given(compute=st.floats(0.01, 1), transmission=st.floats(0, 5), latency=st.floats(0, 10))
def test_the_delay_that_hides_a_latency(compute, transmission, latency):
    period = theory.smallest_period(compute, transmission)
    delay = theory.steps_to_hide(compute, transmission, latency, period)
    rate = theory.delayed_seconds_per_step
    assert rate(compute, transmission, latency, delay, period) == pytest.approx(compute)
    assert theory.steps_to_hide(compute, transmission, latency, period + 3) == delay
    if delay:
        assert rate(compute, transmission, latency, delay - 1, period) > compute * (1 - 1e-9)
    if period > 1:
        assert theory.steps_to_hide(compute, transmission, latency) is None
        assert rate(compute, transmission, latency, 10**6, period - 1) > compute


# The table


def figure3(*overrides):
    """Return the table of the paper's figure, whose shipped scenario has its numbers."""
    table = theory.theory(load("adacomm/figure3", overrides))
    assert table == json.loads(json.dumps(table, allow_nan=False))
    return table


def test_table_of_figure_3():
    table = figure3('theory.durations=["60 s", "1000 s"]')
    assert table["sync_seconds_per_step"] == pytest.approx(4.3807, abs=5e-4)
    once, ten = table["periods"]
    assert (once["tau"], once["speedup"], once["valid"]) == (1, 1.0, True)
    assert ten["seconds_per_step"] == pytest.approx(1.7337, abs=5e-4)
    assert ten["speedup"] == pytest.approx(2.527, abs=1e-3)
    assert ten["floor"] == pytest.approx(0.0626)
    (crossing,) = table["crossings"]
    assert (crossing["tau"], crossing["against"]) == (10, 1)
    assert crossing["time"] == pytest.approx(1148.9, abs=0.1)
    assert crossing["bound"] == pytest.approx(0.1003, abs=1e-4)
    constant = [row["constant_delays"] for row in table["tau_star"]]
    assert constant == pytest.approx([8.07, 1.98], abs=0.01)
    keys = "duration", "random_delays", "cap", "unconstrained"
    assert [[row[key] for key in keys] for row in table["tau_star"]] == [
        [60.0, 12, 12, 19], [1000.0, 4, 12, 4],
    ]  # fmt: skip
    assert table["hide"] == {"delay": 1, "smallest_period": 1, "delay_at_smallest_period": 1}
    assert table["notes"] == []


def test_hpsgds_window_and_pace_are_those_of_simulation():
    """Exactly for equal gradients; to sampling error for exponential ones, if means are short."""
    overhead = [{"agree": "40 ms", "agree_latencies": 3.0, "issue": "20 ms", "collect": "10 ms"}]
    tables = [
        {
            "name": "hpsgd",
            "label": f"{choice} {least}",
            "decision": choice,
            "shortest_window": least,
        }
        for choice in ("each", "shared")
        for least in (1, 2)
    ]
    for kilobits in (1000, 20, 5):
        network = {"collective": "ring", "latency": "30 ms", "bandwidth": f"{kilobits} kbit/s"}
        made = worlds.scenario(
            *tables, compute="1.5 s", steps=600, network=network, overhead=overhead
        )
        table = theory.theory(made)["hpsgd"]
        assert [row["label"] for row in table] == [choice["label"] for choice in tables]
        for index, row in enumerate(table):
            run = worlds.simulate(made, index)
            settled = np.polyfit(run.curve["step"][20:], run.curve["time"][20:], 1)[0]
            assert row["seconds_per_step"] == pytest.approx(settled, rel=0.005), row
            means = np.diff(run.curve["bytes"])[20:].mean() / np.diff(run.curve["step"])[20:].mean()
            assert means * row["window"] == pytest.approx(2 * (4 - 1) * 4000, rel=0.02), row
    brief = {"collective": "given", "duration": "1 ms"}
    made = worlds.scenario(
        *tables, workers=16, compute=worlds.EXPONENTIAL, steps=4000, network=brief
    )
    for index, row in enumerate(theory.theory(made)["hpsgd"]):
        run = worlds.simulate(made, index)
        assert row["seconds_per_step"] == pytest.approx(run.duration / 4000, rel=0.01)


@looped(
    ("wait", "count", "server", "compute"),
    [
        (True, "arrivals", {}, worlds.EXPONENTIAL),
        (False, "arrivals", {}, worlds.EXPONENTIAL),
        (True, "updates", {}, worlds.EXPONENTIAL),
        (True, "arrivals", {"receive": "20 ms", "apply": "300 ms"}, "1 ms"),
    ],
)
def test_hybrids_switch_is_that_of_simulation(wait, count, server, compute):
    """With exponential gradients and a free server, or with a server that is never idle."""
    size, gradients = (400, 5 * 400) if count == "arrivals" else (150, 150 * (1 + 2 + 3 + 4 + 5))
    case = {"name": "hybrid", "step_size": size, "wait": wait, "count": count}
    run = {"evaluate_every": 1}
    made = worlds.scenario(
        case, workers=6, compute=compute, steps=500, server=server, network=worlds.FREE, run=run
    )
    (row,) = theory.theory(made)["hybrid"]
    curve = worlds.simulate(made, seed=1).curve
    switch, first, late = np.interp([gradients / 6, size / 6, 450], curve["step"], curve["time"])
    assert row["switch"] == pytest.approx(switch, rel=0.03)
    assert row["first_updates_per_second"] == pytest.approx(size / first, rel=0.1)
    updates = (500 - 450) / (curve["time"][-1] - late)  # of 6 gradients, one of each worker
    assert row["last_updates_per_second"] == pytest.approx(updates, rel=0.1)


def test_the_figure_marks_the_best_periods_on_their_curves():
    scenario = load("adacomm/figure3", ['theory.durations=["60 s", "1000 s"]'])
    (panel,) = bound.chart(scenario, {}).panels
    *curves, stars = panel.lines
    assert stars.labels == ["tau* = 12", "tau* = 4"]
    assert [curve.name for curve in curves] == ["tau = 1", "tau = 10"]
    assert stars.y[-1] <= min(curve.y[-1] for curve in curves)
    assert bound.chart(load("quickstart"), {}) is None


def test_table_without_a_bound():
    table = figure3('objective={kind="none"}')
    assert table["tau_star"] == table["crossings"] == []
    assert [row["valid"] for row in table["periods"]] == [None, None]
    assert "bound" in table["notes"][0]


def test_table_takes_the_first_learning_rate_of_a_schedule():
    falling = 'optimizer.lr={schedule="linear", start=0.12, end=0.04, steps=2}'
    algorithms = 'algorithm=[{name="ssgd", lr=0.08}]'
    assert figure3(falling, algorithms)["tau_star"][0]["cap"] == 12


def test_what_theory_cannot_say():
    table = figure3("optimizer.lr=2.0")
    assert table["tau_star"][0]["random_delays"] is None
    assert "too high" in table["notes"][0]
    bursts = 'cluster.bursts={factor=2, on="1 s", off="9 s"}'
    crashes = 'cluster.failures={between="1 h", repair="1 min"}'
    notes = figure3(bursts, crashes)["notes"]
    assert "bursts" in notes[0]
    assert "failures" in notes[1]
    with pytest.raises(InputError, match="alpha above 1"):
        figure3('cluster.compute={dist="pareto", minimum="1 s", alpha=0.9}')
    idle = {"workers": 2, "compute": "0 s", "allow_zero": True}
    with pytest.raises(InputError, match="is 0 s"):
        theory.theory(unlike(cluster=idle, network=worlds.FREE))


def unlike(**more):
    """Two workers, of 1 s and 3 s a step; an average takes 0.4 s."""
    return parse(tomllib.loads(beside(__file__, "unlike.toml")) | more)


def test_the_table_of_unlike_workers():
    table = theory.theory(unlike())
    (row,) = table["periods"]
    assert row["seconds_per_step"] == pytest.approx(3.1)
    assert row["speedup"] == pytest.approx(3.4 / 3.1)
    alone = 2 / (1 + 1 / 3)  # seconds a step, if nobody waited for anybody
    assert row["scalability"] == pytest.approx(alone / 3.1)
    assert row["floor"] == pytest.approx(0.0153 + 3 * 0.0015606)
    (best,) = table["tau_star"]
    step = lambda tau: 3 + 0.4 / tau  # noqa: E731
    bound = replace(UNLIKE, workers=2)
    tried = min(range(1, 60), key=lambda tau: bound(70.0, step(tau), tau))
    assert (best["unconstrained"], best["cap"]) == (tried, 19)
    # 0.4 s of an average in steps of 3 s
    assert table["hide"] == {"delay": 1, "smallest_period": 1, "delay_at_smallest_period": 1}


def test_what_hides_an_average_that_takes_longer_than_steps():
    table = theory.theory(unlike(network={"collective": "given", "duration": "30 s"}))
    assert table["hide"] == {"delay": None, "smallest_period": 10, "delay_at_smallest_period": 10}


def test_no_delay_is_advised_where_clients_are_sampled():
    fleet = unlike(cluster={"workers": 2, "compute": "1 s", "sampling": {"clients": 1}})
    assert theory.theory(fleet)["hide"] == {}
    assert terminal.theory(theory.theory(fleet))[0].startswith("No delay is advised: a round of")


def test_steps_of_sampled_clients_are_those_of_a_round():
    """Three of forty that are alike; of others, or of the first to come, no formula for rounds."""
    law = {"dist": "exponential", "mean": "1 s"}
    cluster = {"workers": 40, "compute": law, "sampling": {"clients": 3}}
    for network in ({"collective": "given", "duration": "400 ms"}, worlds.FREE):
        three = theory.theory(unlike(cluster={"workers": 3, "compute": law}, network=network))
        few = theory.theory(unlike(cluster=cluster, network=network))
        for key in ("sync_seconds_per_step", "periods", "tau_star"):
            assert few[key] == three[key]
    assert "steps count only the 3 clients of a round" in few["notes"]
    for more in ({"sampling": {"clients": 3, "over": 2}}, {"group": [{"name": "a", "workers": 4}]}):
        predictions = theory.theory(unlike(cluster=cluster | more))
        assert (predictions["periods"], predictions["notes"]) == ([], [theory.UNKNOWN])
        assert terminal.theory(predictions) == [terminal.theory(few)[0]]


def test_a_rate_beyond_floats_that_no_algorithm_takes_has_no_bound():
    algorithm = [{"name": "ssgd", "lr": 0.03}]
    for lr in (1e-200, 1e200):
        table = theory.theory(unlike(optimizer={"lr": lr}, algorithm=algorithm))
        assert (table["tau_star"], table["crossings"]) == ([], [])
        assert "from 1e-30" in table["notes"][0]


extremes = st.sampled_from([1e-30, 1e-9, 0.3, 7.0, 1e9, 1e30])


@given(
    lr=extremes, smoothness=extremes, variance=extremes | st.just(0.0), gap=extremes,
    duration=st.sampled_from(["1 us", "1 s", "1e15 s"]),
)  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_extreme_numbers_stay_numbers(lr, smoothness, variance, gap, duration):
    objective = {
        "kind": "bound", "initial_gap": gap, "smoothness": smoothness, "gradient_variance": variance
    }  # fmt: skip
    durations = {"periods": [1, 4], "durations": [duration]}
    made = unlike(objective=objective, optimizer={"lr": lr}, theory=durations)
    table = theory.theory(made)
    json.dumps(table, allow_nan=False)
    assert len(table["tau_star"]) == 1


def test_theory_has_the_overheads_that_a_simulation_has():
    made = worlds.scenario(
        {"name": "ssgd"}, workers=8, compute="300 ms",
        steps=3, model={"parameters": 10_000_000, "bytes_per_parameter": 4},
        network={"latency": "10 us", "bandwidth": "1 GB/s"},
        overhead=[
            {"transmission_factor": 2.5, "hop": "1 ms", "step": "7 ms", "hop_bytes": "1 MB"},
        ],
    )  # fmt: skip
    predictions = theory.theory(made)
    whole = worlds.simulate(made).duration / 3
    assert predictions["sync_seconds_per_step"] == pytest.approx(whole, rel=1e-9)


def test_over_tcp_without_a_profile_a_step_takes_what_simulate_says():
    """Cards of 100 Gbit/s, of which NCCL's sockets leave a third; slow start after five steps."""
    made = worlds.scenario(
        {"name": "ssgd"}, workers=2, compute="650 ms", steps=20,
        model={"parameters": 350_000_000, "bytes_per_parameter": 2},
        network={
            "bandwidth": "100 Gbit/s", "latency": "50 us", "library": "nccl", "transport": "tcp"
        },
    )  # fmt: skip
    run = worlds.simulate(made)
    simulated = run.duration / run.steps
    assert simulated > 0.8
    assert theory.theory(made)["sync_seconds_per_step"] == pytest.approx(simulated, rel=0.01)
    network = {"bandwidth": "1 Gbit/s", "latency": "50 ms", "transport": "tcp"}
    plan = {"network": network, "model": {"parameters": 5_000_000}, "theory": {"periods": [5]}}
    program, worker = {"name": "local-sgd", "tau": 5}, {"compute": "100 ms"}
    few, made = (worlds.scenario(program, steps=n, **worker, **plan) for n in (20, 40))
    later = (worlds.simulate(made).duration - worlds.simulate(few).duration) / 20
    assert theory.theory(made)["periods"][0]["seconds_per_step"] == pytest.approx(later, rel=1e-9)
    # A pause begins when gloo's last segment has arrived, not when the links have sent it.
    network |= {"library": "gloo"}
    plan = {"network": network, "model": {"parameters": 10_000_000}, "theory": {"periods": [1]}}
    worker = {"workers": 2, "compute": "1 s"}
    one, many = (worlds.scenario({"name": "ssgd"}, steps=n, **worker, **plan) for n in (1, 11))
    (row,) = theory.theory(one)["periods"]
    later = (worlds.simulate(many).duration - worlds.simulate(one).duration) / 10
    assert row["seconds_per_step"] == pytest.approx(later, rel=1e-9)
