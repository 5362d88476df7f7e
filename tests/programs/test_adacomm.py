"""AdaComm: its rules for the period, value by value; and its whole loop against one by hand."""

from itertools import groupby, pairwise
from math import ceil, floor, inf, isfinite, nan, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.simulator.objectives.build import build
from paceline.simulator.programs import adaptive
from paceline.simulator.programs.adaptive import PaddleRule, PaperRule, Shared
from tests.helpers.cases import looped
from tests.helpers.worlds import DIGITS, EXPONENTIAL, QUADRATIC, play, scenario, simulate

RATE = 0.4


def paper(tau0=16, interval=60.0, gamma=0.5, slack=0, lr_exponent=1):
    return PaperRule(tau0, interval, gamma, slack, lr_exponent)


def shared(loss, clock, first=None):
    """A round whose every step had the same loss."""
    return Shared(loss if first is None else first, loss, loss, clock)


def after(rule, loss, rate=RATE, tau=None, initial=2.0):
    """The period after one interval that began with one loss and rate and ended with others."""
    tau = rule.tau0 if tau is None else tau
    assert rule(tau, Shared(initial, loss, loss, 1.0), RATE) == tau  # no boundary yet
    return rule(tau, shared(loss, rule.interval + 1), rate)


def test_losses_that_are_no_numbers_or_negative_leave_the_period():
    for rule in (paper(), PaddleRule(16)):
        assert rule(16, shared(nan, 1.0), RATE) == 16
        assert rule(16, shared(2.0, 2.0), RATE) == (16 if isinstance(rule, PaperRule) else 4)
        for clock, loss in ((70.0, nan), (140.0, -1.0), (210.0, inf)):
            assert rule(16, shared(loss, clock), RATE) == 16
        assert rule(16, shared(0.5, 280.0), RATE) < 16  # against the first that is a number


# Equation 6


@looped(
    ("loss", "period"), [(0.5, 8), (0.5001, 9), (1e-2, 2), (1e-4, 1), (1e-300, 1), (1.9, 16 // 2)]
)
def test_the_period_follows_the_root_of_the_loss(loss, period):
    """ceil(sqrt(F/F0) tau0) with F0 = 2; the last one has not shrunk, so the period is halved."""
    assert after(paper(), loss) == period


@looped(("exponent", "loss", "period"), [(1, 0.25, 8), (1, 1.0, 16), (3, 0.25, 16), (3, 1.0, 32)])
def test_a_lower_rate_lengthens_the_period(exponent, loss, period):
    """Half the rate: F/F0 counts 2 or 8 times. What has not changed gives tau0 back."""
    assert after(paper(lr_exponent=exponent), loss, rate=RATE / 2) == period


def test_the_loss_is_the_mean_over_all_steps_since_the_last_boundary():
    rule = paper(tau0=10)
    assert rule(10, Shared(4.0, 3.0, 2.0, 20.0), RATE) == 10
    assert rule(10, Shared(2.0, 2.0, 2.0, 40.0), RATE) == 10
    assert rule(10, Shared(1.0, 1.0, 1.0, 60.0), RATE) == ceil(sqrt(2.0 / 4) * 10) == 8
    assert rule(8, Shared(1.0, 1.0, 1.0, 119.0), RATE) == 8
    # from here on only what came after the first boundary: 8 steps at 1, 8 at 0.3
    assert rule(8, Shared(0.3, 0.3, 0.3, 120.0), RATE) == ceil(sqrt(0.65 / 4) * 10) == 5


@given(
    st.lists(st.tuples(st.floats(0.1, 4.0), st.floats(0.0, 900.0)), min_size=1),
    st.sampled_from([1.0, 60.0]),
)
def test_boundaries_that_pass_between_two_averages_make_one_decision(rounds, interval):
    """Rounds may be longer than the interval, as in an outage: none is made up for afterwards."""
    rule, tau, clock, level, since = paper(tau0=32, interval=interval), 32, 0.0, 0, []
    for loss, elapsed in rounds:
        clock += elapsed
        since += [loss] * tau
        following = tau
        if floor(clock / interval) > level:
            level = floor(clock / interval)
            following = ceil(sqrt(sum(since) / len(since) / rounds[0][0]) * 32)
            following = ceil(tau / 2) if following >= tau else following
            since = []
        assert abs(rule(tau, shared(loss, clock), RATE) - following) <= (following > 32)
        tau = following


@pytest.mark.parametrize(
    ("compute", "outage", "interval"),
    [("500 ms", "10 min", 60.0), ("500 ms", "1 s", 3.3)],
    ids=["an outage", "rounds longer than the interval"],
)
def test_the_period_does_not_collapse_after_a_gap(compute, outage, interval, monkeypatch):
    decided = []  # of worker 0: the clock and the next period of each average

    class Seen(PaperRule):
        def __call__(self, tau, now, rate):
            following = super().__call__(tau, now, rate)
            decided.append((now.clock, tau, following))
            return following

    monkeypatch.setattr(adaptive, "PaperRule", Seen)
    world = scenario(
        {"name": "adacomm", "tau0": 40, "interval": f"{interval} s"}, workers=4, steps=1400,
        objective=QUADRATIC, lr=0.001, compute=compute, network={"latency": "1 ms"},
        cluster={"crash": [{"worker": 1, "at": "50 s", "lasts": outage}]},
    )  # fmt: skip
    simulate(world)
    mine = decided[::4]
    levels = [0, *(int(clock // interval) for clock, _, _ in mine)]
    changed = [following != tau for _, tau, following in mine]
    passed = [later > level for level, later in pairwise(levels)]
    assert sum(passed) < levels[-1]
    waited = [clock for (clock, *_), now in zip(mine, passed, strict=True) if now and clock < 700]
    assert interval < 60 or waited == [pytest.approx(650 + 20)]  # the latest worker's clock, once
    assert all(one <= other for one, other in zip(changed, passed, strict=True))


@looped("gamma", [0.5, 0.9])
def test_a_plateau_shortens_the_period_down_to_one(gamma):
    rule, tau, periods = paper(tau0=20, gamma=gamma), 20, []
    for interval in range(1, 40):
        tau = rule(tau, shared(2.0, 60.0 * interval), RATE)
        periods.append(tau)
    expected = [20]
    for _ in periods:
        expected.append(max(1, ceil(gamma * expected[-1])))
    assert periods == expected[1:]
    assert gamma > 0.5 or periods[-1] == 1


@looped(("slack", "period"), [(0, 14), (1, 14), (2, 8), (20, 8)])
def test_slack_is_how_much_the_period_must_shrink(slack, period):
    """Eq. 6 gives 14 where the period was 16."""
    assert after(paper(slack=slack), 2.0 * (13.9 / 16) ** 2) == period


def test_a_change_of_the_rate_is_no_plateau():
    assert after(paper(), 2.0, rate=RATE / 4) == 32


@looped("loss", [nan, inf])
@looped("rule", [paper(), PaddleRule(16)])
def test_a_diverged_loss_leaves_the_period_alone(rule, loss):
    rule(16, shared(2.0, 1.0), RATE)
    assert rule(16, shared(loss, 61.0), RATE) == 16


def test_the_loss_may_be_that_of_the_last_step_before_the_boundary():
    rule = PaperRule(10, 60.0, 0.5, 0, 1, at_boundary=True)
    assert rule(10, Shared(4.0, 3.0, 2.0, 20.0), RATE) == 10
    assert rule(10, Shared(1.0, 1.0, 0.81, 61.0), RATE) == ceil(sqrt(0.81 / 4) * 10) == 5


# The variant of Paddle


@looped(
    ("tau0", "loss", "rate", "period"),
    [
        (16, 2.0, RATE, 4),  # tau0 inside the root
        (16, 0.5, RATE, 2),
        (16, 0.51, RATE, 3),
        (16, 1e-9, RATE, 1),
        (16, 2.0, RATE / 4, 8),
        (16, 1e9, RATE, 16),
        (1000, 2.0, RATE, 16),
    ],
)
def test_paddles_rule(tau0, loss, rate, period):
    rule = PaddleRule(tau0)
    rule(4, Shared(2.0, 7.0, 7.0, 0.0), RATE)
    assert rule(4, Shared(5.0, 5.0, loss, 0.0), rate) == period


positive = st.floats(1e-9, 1e9)
rounds = st.lists(st.tuples(positive, positive, positive, st.floats(1e-4, 10), st.floats(0, 200)))


@given(
    st.integers(1, 1000), st.floats(0.01, 0.99), st.integers(0, 50), st.sampled_from([1, 3]), rounds
)
def test_the_period_is_a_whole_number_of_steps_from_one_up(tau0, gamma, slack, exponent, rounds):
    rules = [paper(tau0, 60.0, gamma, slack, exponent), PaddleRule(tau0)]
    periods, clock = [tau0, tau0], 0.0
    for first, mean, last, rate, elapsed in rounds:
        clock += elapsed
        now = Shared(first, mean, last, clock)
        periods = [rule(tau, now, rate) for rule, tau in zip(rules, periods, strict=True)]
        assert all(type(tau) is int and tau >= 1 for tau in periods)
        assert periods[1] <= 16


# The whole algorithm


def by_hand(world, seed, *, variant, tau0, interval, mu, beta, D):
    """The paper's section 4 in a loop of its own: each step's parameters, and the periods."""
    m, goal = world.cluster.workers, build(world, world.algorithm[0], seed)
    streams = [goal.source(rank) for rank in range(m)]
    lr0, at, factor = 0.2, 30, 0.25
    z, U, clock, tau, level = goal.start, 0.0, 0.0, tau0, 0
    F0, last_lr, since, k, path, periods = None, lr0, [], 0, [], []
    while k + tau <= world.run.steps:
        x, u, losses = np.tile(z, (m, 1)), 0.0, []
        for _ in range(tau):
            k += 1
            lr = lr0 if k <= at else lr0 * factor
            seen = [s.loss_and_gradient(x[w]) for w, s in enumerate(streams)]
            losses.append(np.mean([loss for loss, _ in seen]))
            u = mu * u + np.array([g for _, g in seen])
            x = x - lr * u
            path.append(x)
        periods.append(tau)
        xbar = x.mean(axis=0)
        G = (z - xbar) / lr
        U = beta * U + lr * G  # a displacement, for lr changes
        path[-1] = np.tile(z := z - U if beta else xbar, (m, 1))
        F0, since, clock = losses[0] if F0 is None else F0, since + losses, clock + tau
        if variant == "paddle":
            tau = min(16, max(1, ceil(sqrt(lr0 / lr * losses[-1] / F0 * tau0))))
        elif clock // interval > level:
            level, F, since = clock // interval, np.mean(since), []
            c = ceil(sqrt(lr0 / lr * F / F0) * tau0)
            tau = max(1, ceil(tau / 2)) if lr == last_lr and c >= tau else c
            last_lr = lr
        clock += D
    return np.array(path), periods


@looped("variant", ["paper", "paddle"])
@looped(("mu", "beta"), [(0.0, 0.0), (0.9, 0.3)])
@looped("objective", [QUADRATIC, DIGITS])
def test_adacomm_by_hand(variant, mu, beta, objective):
    """Constant times, so that the clock at each average is known: tau computes, D between them."""
    choice = {"tau0": 12, "interval": "16.5 s", "block_momentum": beta, "variant": variant}
    world = scenario(
        {"name": "adacomm", "momentum": mu, **choice}, workers=3, steps=60, objective=objective,
        lr={"schedule": "steps", "start": 0.2, "factor": 0.25, "at": [30]},
        network={"collective": "given", "duration": "2 s"}, run={"evaluate_every": 1},
    )  # fmt: skip
    path, periods = by_hand(
        world, 5, variant=variant, tau0=12, interval=16.5, mu=mu, beta=beta, D=2.0
    )
    actual = np.swapaxes(play(world, seed=5).marks, 0, 1)[: len(path)]
    np.testing.assert_allclose(actual, path, rtol=1e-10, atol=1e-13)
    assert len(set(periods)) > 1
    shown = simulate(world, seed=5).curve["tau"][sum(periods) :: -1]
    assert [tau for tau, _ in groupby(shown) if isfinite(tau)] == [
        tau for tau, _ in groupby(periods[::-1])
    ]


def rates(**choice):
    """Each step's learning rate, read off a noiseless parabola, and its round's period."""
    world = scenario(
        {"name": "adacomm", "tau0": 8, "interval": "20 s", **choice}, workers=1, steps=250,
        objective={"kind": "quadratic", "dimension": 1, "noise": 0.0},
        lr={"schedule": "steps", "start": 0.01, "factor": 0.5, "at": [5, 30, 110]},
    )  # fmt: skip
    recording = play(world)
    path = np.concatenate([build(world, world.algorithm[0], 0).start, *recording.marks[0]])
    periods, steps = [], 0
    for name, *_ in recording.effects[0]:
        steps += name == "loss_and_gradient"
        if name == "start":
            periods += [steps] * steps
            steps = 0
    return 1 - path[1:] / path[:-1], periods


SCHEDULED = np.array([0.01] * 5 + [0.005] * 25 + [0.0025] * 80 + [0.00125] * 140)


def test_the_rate_can_be_held_until_the_period_is_one():
    """A lower rate lengthens the period (eq. 6); the next one waits for it to be 1 again.

    One decay at a time, though all their epochs may have passed.
    """
    actual, periods = rates(gate_lr_until_tau_is_1=True)
    held = [(rate, period) for rate, period in zip(np.round(actual, 9), periods, strict=False)]
    changes = [(*one, *two) for one, two in pairwise(held) if one[0] != two[0]]
    assert [two[0] for two in pairwise([0.01, *(change[2] for change in changes)])] == [
        0.01 / 2**number for number in range(len(changes))
    ]
    assert all(change[2] == change[0] / 2 and change[3] == 1 for change in changes)
    assert len(changes) > 1
    lengthened = [period for period, _ in groupby(period for _, period in held)]
    assert lengthened.count(1) > 1


def test_the_rate_is_not_held_otherwise():
    np.testing.assert_allclose(rates()[0], SCHEDULED, rtol=1e-9)


@settings(max_examples=25, deadline=None)
@given(
    tau0=st.integers(1, 30),
    interval=st.sampled_from(["1 s", "9 s", "60 s"]),
    slack=st.integers(0, 3),
    variant=st.sampled_from(["paper", "paddle"]),
    gate=st.booleans(),
    workers=st.integers(2, 6),
)
def test_all_workers_always_agree_on_the_period(tau0, interval, slack, variant, gate, workers):
    """However late some of them are: no deadlock, and the same effects in the same order."""
    world = scenario(
        {
            "name": "adacomm", "tau0": tau0, "interval": interval, "slack": slack,
            "variant": variant, "gate_lr_until_tau_is_1": gate,
        },
        workers=workers, steps=60, objective=QUADRATIC,
        compute={"dist": "pareto", "minimum": "100 ms", "alpha": 1.2},
        network={"latency": EXPONENTIAL},
    )  # fmt: skip
    effects = play(world).effects
    assert all(effect == effects[0] for effect in effects)
