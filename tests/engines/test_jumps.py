"""Many local steps as one draw: the same law as steps one by one, and only where nothing looks."""

import tomllib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from paceline.simulator.engines.batched import jumps
from paceline.simulator.engines.batched import run as batched
from paceline.simulator.engines.batched.arrays import Stack
from paceline.simulator.engines.batched.gradients import QuadraticGradients
from paceline.simulator.engines.dispatch import run_seeds
from paceline.simulator.objectives.quadratic import NoisyQuadratic
from paceline.simulator.programs.pieces.transform import Identity, Momentum, Nesterov
from paceline.simulator.results.run import COLUMNS
from paceline.simulator.scenario.tables import Quadratic
from tests.helpers.cases import beside, looped
from tests.helpers.worlds import EXPONENTIAL, scenario

TRANSFORMS = st.sampled_from([Identity(), Momentum(0.7), Momentum(0.0), Nesterov(0.9)])
RATES = st.lists(st.one_of(st.just(0.1), st.floats(0.0, 1.5)), min_size=1, max_size=40)
WORLD = {"kind": "quadratic", "dimension": 5, "shift": 2.0, "noise": 0.8}
MODES = WORLD | {"spectrum": {"kind": "modes", "curvature": [1.0, 0.1], "gap": [1, 2]}}


def moments(transform, rates, h, noise=1.0):
    """Follow mean map and covariance of (y, u) through steps one by one."""
    mean, covariance = np.eye(2), np.zeros((2, 2))
    for rate in rates:
        rows = []
        for y, u in np.eye(2):
            direction, buffer = transform.update(h * y, u, y)
            rows.append((y - rate * direction, buffer))
        shove, kick = transform.update(noise, 0.0, 0.0)
        step, push = np.array(rows).T, np.array([-rate * shove, kick])
        mean, covariance = step @ mean, step @ covariance @ step.T + np.outer(push, push)
    return mean, covariance


@settings(max_examples=60, deadline=None)
@given(TRANSFORMS, RATES, st.lists(st.floats(0.001, 1.2), min_size=1, max_size=4))
def test_mean_and_covariance_are_those_of_the_steps(transform, rates, curvature):
    P, root = jumps.law(transform, tuple(rates), tuple(curvature))
    size = len(P)
    for i, h in enumerate(curvature):
        mean, covariance = moments(transform, rates, h)
        np.testing.assert_allclose(P[..., i], mean[:size, :size], rtol=1e-9, atol=1e-12)
        found = root[..., i] @ root[..., i].T
        np.testing.assert_allclose(found, covariance[:size, :size], rtol=1e-7, atol=1e-12)


def test_plain_steps_have_the_closed_form():
    """y shrinks by a = 1 - r h a step; its variance is r^2 (1 - a^2n) / (1 - a^2)."""
    n, r, h = 1000, 0.05, np.array([1.0, 0.3, 1e-4])
    a = 1 - r * h
    P, root = jumps.law(Identity(), (r,) * n, tuple(h))
    np.testing.assert_allclose(P[0, 0], a**n, rtol=1e-12)
    np.testing.assert_allclose(root[0, 0] ** 2, r**2 * (1 - a ** (2 * n)) / (1 - a**2), rtol=1e-9)


def test_without_a_rate_nothing_moves_but_the_buffer():
    P, root = jumps.law(Momentum(0.5), (0.0, 0.0), (1.0,))
    np.testing.assert_allclose(P[..., 0], [[1, 0], [1.5, 0.25]])
    np.testing.assert_allclose(root[..., 0], [[0, 0], [0, np.sqrt(1.25)]])


@looped("transform", [Identity(), Momentum(0.8), Nesterov(0.8)])
@looped("spec", [WORLD, MODES])
def test_draws_and_steps_have_one_law(transform, spec):
    """Both, freed of the exact mean and covariance, are independent standard normal numbers."""
    seeds, workers = 300, 3
    goals = [NoisyQuadratic(Quadratic(**spec), workers, seed) for seed in range(seeds)]
    rates = [0.3, 0.25, 0.2, 0.2, 0.1, 0.4, 0.3, 0.3]
    x = Stack(np.broadcast_to(goals[0].start, (seeds, workers, 5)).copy())
    P, root = jumps.law(transform, tuple(rates), tuple(goals[0].spectrum))
    optima = np.stack([goal.shifts for goal in goals])
    deviation = goals[0].noise / goals[0].spread

    def whitened(end, buffer):
        z = [end.of - optima] + ([] if buffer is None else [buffer.of])
        start = x.of - optima
        first = (z[0] - P[0, 0] * start) / (deviation * root[0, 0])
        if buffer is None:
            return first[..., None]
        second = (z[1] - P[1, 0] * start) / deviation - root[1, 0] * first
        return np.stack([first, second / root[1, 1]], axis=-1)

    stepping, jumping = (QuadraticGradients(goals, workers, 1) for _ in range(2))
    at, buffer = x, transform.init(x)
    for rate in rates:
        direction, buffer = transform.update(stepping.gradient(at), buffer, at)
        at = at - rate * direction
    jumped = jumping.jump(x, transform.init(x), transform, rates)
    for found in (whitened(at, buffer), whitened(*jumped)):
        assert stats.kstest(found.ravel(), "norm").pvalue > 1e-3
        flat = found.reshape(seeds, -1)  # of one seed: workers, coordinates, and y and u
        # squares of correlations of all pairs, and of neighbouring seeds, sum to chi-squared
        pairs = np.corrcoef(flat.T)[np.triu_indices(flat.shape[1], 1)]
        later = [np.corrcoef(each[:-1], each[1:])[0, 1] for each in flat.T]
        for correlations in (pairs, later):
            total = seeds * float(np.square(correlations).sum())
            assert 1e-3 < stats.chi2.sf(total, len(correlations)) < 1 - 1e-3


JUMPING, STEPPING = tomllib.loads(beside(__file__, "jumps.toml")).values()


def world(case, sampling, objective=WORLD, **run):
    run = {"steps": 60, "evaluate_every": 11, "sampling": sampling} | run
    return scenario(case, workers=3, compute="1 s", objective=objective, run=run)


def curves(made, seeds):
    return run_seeds(made, made.algorithm[0], range(seeds), engine="batched")


@looped("case", JUMPING)
def test_a_run_that_jumps_has_the_losses_of_one_that_steps(case):
    seeds = 200
    stepped, jumped = (
        np.array([run.curve["loss"] for run in curves(world(case, sampling), seeds)])
        for sampling in ("keyed", "aggregate")
    )
    for later, (ours, theirs) in enumerate(zip(jumped.T, stepped.T, strict=True)):
        if later:  # at the start all are alike
            assert stats.ks_2samp(ours, theirs).pvalue > 1e-4
    of_two = [curves(world(case, sampling), 1)[0] for sampling in ("keyed", "aggregate")]
    for name in ("time", "step", "tau", "bytes"):
        np.testing.assert_array_equal(of_two[0].curve[name], of_two[1].curve[name])
    assert of_two[0].updates == of_two[1].updates
    assert any("joint normal law" in note for note in of_two[1].notes)


@looped(("case", "more"), STEPPING)
def test_what_must_step_keeps_its_numbers(case, more):
    found = curves(world(case, "aggregate", WORLD | more), 2)
    assert not any("joint normal law" in note for note in found[0].notes)
    for ours, theirs in zip(found, curves(world(case, "keyed", WORLD | more), 2), strict=True):
        for name in COLUMNS:
            np.testing.assert_array_equal(ours.curve[name], theirs.curve[name], name)


def test_a_run_evaluated_at_every_step_steps():
    case = JUMPING[1]
    ours, theirs = (curves(world(case, s, evaluate_every=1), 1)[0] for s in ("aggregate", "keyed"))
    np.testing.assert_array_equal(ours.curve["loss"], theirs.curve["loss"])


def test_numbers_depend_on_neither_the_other_seeds_nor_threads():
    made = world(JUMPING[1], "aggregate")
    together = batched.run(made.algorithm[0], made, range(5), threads=2)
    alone = batched.run(made.algorithm[0], made, [3])[0]
    np.testing.assert_array_equal(together[3].curve["loss"], alone.curve["loss"])


def test_a_jump_stops_at_the_deadline_and_at_the_longest():
    run = {"duration": "5000 s", "sampling": "aggregate"}
    made = scenario(
        {"name": "local-sgd", "tau": 10**9}, workers=2, compute=EXPONENTIAL, steps=None,
        objective=WORLD, run=run,
    )  # fmt: skip
    found = batched.run(made.algorithm[0], made, [0, 1])[0]
    assert 200 <= len(found.curve["step"]) <= 401
    assert 4900 < found.curve["step"][-1] < 5200
