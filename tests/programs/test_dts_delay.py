"""What a delay costs DTS in accuracy, by compensation, and what it buys in seconds per step."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import paceline
from paceline.simulator.network.closed_form import ClosedForm
from paceline.simulator.results.intervals import signed
from paceline.simulator.theory import delayed_seconds_per_step
from tests.helpers.cases import looped
from tests.helpers.worlds import DIGITS, play, scenario, simulate

DELAYS = (5, 10, 15, 20)
KINDS = ("none", "displacement", "lecture", "exact")


def losses_of_accuracy(world, seeds):
    """By how many points each algorithm's final accuracy is below ssgd's, seed by seed."""
    groups = paceline.simulate(world, seeds=seeds).groups
    ends = {
        label: np.array([100 * run.curve["accuracy"][-1] for run in runs])
        for label, runs in groups.items()
    }
    return {label: ends["ssgd"] - end for label, end in ends.items() if label != "ssgd"}


def test_uncompensated_delay_costs_accuracy_and_compensated_delay_does_not():
    """Early in training, at a rate that suits ssgd: points lost, with 95 % confidence."""
    delayed = [
        {"name": "dts", "label": f"{kind} {D}", "delay": D, "compensation": kind}
        for kind in ("none", "exact")
        for D in DELAYS
    ]
    world = scenario(
        {"name": "ssgd"}, *delayed, objective=DIGITS | {"batch": 16},
        steps=120, run={"evaluate_every": 120}, optimizer={"lr": 0.02, "momentum": 0.9},
    )  # fmt: skip
    worse = losses_of_accuracy(world, seeds=16)
    for D in DELAYS:
        assert signed(worse[f"none {D}"]).interval[0] > (1 if D == 5 else 20)
        low, high = signed(worse[f"exact {D}"]).interval
        assert low <= 0 <= high < 1


@pytest.mark.slow
@looped(("rate", "delays"), [(1 / 8, DELAYS[:3]), (1 / 16, DELAYS[1:])])
def test_the_table_of_the_docs(rate, delays):
    """At the best rate for ssgd, and half of it; four seeds."""
    world = paceline.load("dts/compensation", [f"optimizer.lr.peak={rate}"])
    chosen = [
        item for item in world.algorithm if item.label.split()[0] in {"ssgd", "none", "exact"}
    ]
    worse = losses_of_accuracy(world.model_copy(update={"algorithm": tuple(chosen)}), seeds=4)
    for D in delays:
        assert worse[f"none {D}"].mean() > 0.5
        assert worse[f"exact {D}"].mean() < 0.4


def modes(kind, D, mu, a):
    """Characteristic polynomial of x on a quadratic, with a = learning rate x curvature, period 1.

    For "none" it is the workers' mean that is unstable first, for the others (whose mean moves as
    ssgd's) what each is away from it.
    """
    if kind == "none":  # x(n+1) - x(n) = mu (x(n) - x(n-1)) - a x(n-D)
        return np.array([1, -1 - mu, mu, *[0] * (D - 2), a])
    if kind == "displacement":  # as below, but what u holds is never made up for
        return np.array([1, a - 1 - mu, mu, *[0] * (D - 2), -a, a * mu])
    if kind == "lecture":  # the same with x(n) - x(n-D) for x(n-D); its root 1 divided out
        return np.array([1, a - mu, *[a] * (D - 1)])
    # x(n) = -a sum of (1 + mu + ... + mu^(k-1)) x(n-k), over k = 1 ... D
    return np.array([1, *a * np.cumsum(mu ** np.arange(D))])


def limit(kind, D, mu):
    """Learning rate x curvature, to 0.5 %, from which on some mode grows."""
    for a in np.geomspace(1e-3, 4, 1660):
        if np.abs(np.roots(modes(kind, D, mu, a))).max() > 1 + 1e-6:
            return float(a)
    return np.inf


@looped("kind", KINDS)
@looped("D", [5, 20])
def test_largest_stable_rate(kind, D):
    """On a quadratic of curvature 1 oscillations die out 5 % below the limit, and grow above it."""

    def growth(lr, steps=1500):
        world = scenario(
            {"name": "dts", "delay": D, "compensation": kind}, steps=steps, workers=2,
            objective={"kind": "quadratic", "dimension": 1, "noise": 0.0, "shift": 1.0},
            optimizer={"lr": lr, "momentum": 0.9},
        )  # fmt: skip
        one, other = (np.ravel(mark) for mark in play(world).marks if mark)
        swing = one + other if kind == "none" else one - other
        return np.ptp(swing[-200:]) / np.ptp(swing[steps // 2 : steps // 2 + 200])

    edge = limit(kind, D, 0.9)
    assert growth(0.95 * edge) < 0.7
    assert growth(1.05 * edge) > 1.5


def settled(compute, transmission, hop, D, p, momentum=0.0):
    """Simulated seconds per step once all repeats; two workers on a ring, whole seconds."""
    repeat = p * max(1, math.ceil(D / p))
    world = scenario(
        {"name": "dts", "delay": D, "period": p}, workers=2, compute=f"{compute} s",
        steps=repeat * (3000 // repeat), run={"evaluate_every": repeat},
        model={"parameters": transmission}, optimizer={"momentum": momentum},
        network={"collective": "ring", "latency": f"{hop} s", "bandwidth": "32 bit/s"},
    )  # fmt: skip
    cost = ClosedForm(world).mean_cost()
    assert (cost.transmission, cost.latency) == (transmission, 2 * hop)
    time = simulate(world).curve["time"]
    return (time[-1] - time[-2]) / repeat


compute = st.integers(1, 4)
transmission = st.integers(1, 12)
hop = st.integers(0, 10)
delay = st.integers(0, 20)
period = st.integers(1, 8)


@given(compute, transmission, hop, delay, period)
@settings(max_examples=30, deadline=None)
def test_steady_state_is_the_formulas(compute, transmission, hop, D, p):
    predicted = delayed_seconds_per_step(compute, transmission, 2 * hop, D, p)
    assert settled(compute, transmission, hop, D, p) == pytest.approx(predicted, rel=1e-9)


def test_with_momentum_exact_compensation_sends_two_vectors():
    assert settled(1, 6, 1, 3, 2, momentum=0.9) == delayed_seconds_per_step(1, 12, 2, 3, 2)


@given(compute, transmission, hop, delay, period)
def test_closed_forms(Tc, X, hop, D, p):
    """The two of the notes, and what the first is worth for D > p > 1: exact only if p divides D.

    Else a bound: the step that ends the wait is not yet the one that starts a mean.
    """
    Lat = 2 * hop
    actual = delayed_seconds_per_step(Tc, X, Lat, D, p)
    if p > D:
        expected = max(X / p, Tc + max(0, Lat + X - D * Tc) / p)
        assert actual == pytest.approx(expected)
    else:
        bound = max(Tc, X / p, (Lat + X) / D)
        assert actual <= bound * (1 + 1e-12)
        if D % p == 0:
            assert actual == pytest.approx(bound)
