"""The quadratic with a floor, noise, and workers whose curvatures differ."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.simulator.objectives.build import build
from tests.engines.test_batched import alike, taken
from tests.helpers.cases import looped
from tests.helpers.programs import cases
from tests.helpers.worlds import EXPONENTIAL, on_batched, on_virtual, scenario, simulate

APART = {"share": 0.4, "curvature": 2.0}
RICH = {
    "kind": "quadratic", "dimension": 7, "noise": 0.3, "shift": 0.2, "heterogeneity": APART,
    "initial_gap": 2.0, "floor": 0.25,
}  # fmt: skip
QUIET = {**RICH, "noise": 0.0, "shift": 0.0, "floor": 0.0}


def make(table, workers=4, seed=0):
    world = scenario({"name": "ssgd"}, objective=table, workers=workers)
    return build(world, world.algorithm[0], seed)


def losses(table, *algorithms, lr=0.1, steps=64, workers=4, **options):
    world = scenario(
        *algorithms, objective=table, lr=lr, steps=steps, workers=workers, run=options
    )  # fmt: skip
    runs = [simulate(world, index) for index in range(len(algorithms))]
    return [np.array(run.curve["loss"]) for run in runs]


def test_it_starts_at_its_gap_above_the_floor():
    goal = make(RICH)
    assert goal.dimension == len(goal.start) == 14
    assert goal.evaluate(goal.start, 0).loss == pytest.approx(2.25)
    assert goal.evaluate(0 * goal.start, 0).loss == 0.25
    np.testing.assert_allclose(goal.spectrum, [*(1 / np.arange(1, 8)), *[2.0] * 7])
    assert not goal.start[7:].any()


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 7), st.integers(0, 2**31), st.floats(0, 0.99), st.floats(0.01, 10))
def test_curvatures_are_positive_and_their_mean_is_the_spectrum(workers, seed, share, curvature):
    table = {**QUIET, "heterogeneity": {"share": share, "curvature": curvature}}
    goal = make(table, workers, seed)
    sources = [goal.source(rank) for rank in range(workers)]
    hessians = np.array([[source.gradient(row) for row in np.eye(14)] for source in sources])
    np.testing.assert_allclose(hessians, hessians.swapaxes(1, 2))
    np.testing.assert_allclose(hessians.mean(axis=0), np.diag(goal.spectrum), atol=1e-12)
    assert np.linalg.eigvalsh(hessians).min() > -1e-12


def test_a_gradient_is_that_of_its_loss():
    """Of one worker's loss, and the mean over workers that of the loss which is reported."""
    goal = make({**QUIET, "shift": 0.5, "floor": 0.25})
    x, step = np.random.default_rng(0).standard_normal(14), 1e-6

    def differences(loss):
        return [(loss(x + offset) - loss(x - offset)) / (2 * step) for offset in step * np.eye(14)]

    gradients = []
    for source in map(goal.source, range(4)):
        actual = differences(lambda y, source=source: source.loss_and_gradient(y)[0])
        gradients.append(source.loss_and_gradient(x)[1])
        np.testing.assert_allclose(actual, gradients[-1], rtol=1e-7, atol=1e-8)
        assert np.array_equal(source.gradient(x), gradients[-1])
    reported = differences(lambda y: goal.evaluate(y, 0).loss)
    np.testing.assert_allclose(np.mean(gradients, axis=0), reported, rtol=1e-7, atol=1e-8)


def test_noise_has_the_stated_variance_in_all_coordinates_alike():
    """E||g - grad F_w||^2 = noise^2, wherever the model is."""
    goal = make(RICH)
    source = goal.source(0)
    variances = np.array([source.gradient(goal.start) for _ in range(4000)]).var(axis=0)
    assert variances.sum() == pytest.approx(0.3**2, rel=0.05)
    np.testing.assert_allclose(variances, 0.3**2 / 14, rtol=0.15)


@looped("workers", [2, 4, 8])
def test_local_steps_lose_the_share_in_the_long_run(workers):
    """Within a period the gradient falls by `share` about 1 / (lr k) steps in."""
    share, k, lr, tau = 0.4, 1e5, 1e-6, 32
    table = QUIET | {"dimension": 400, "spectrum": {"exponent": 0.0}}
    table["heterogeneity"] = {"share": share, "curvature": k}
    alone, apart = losses(
        table, {"name": "ssgd"}, {"name": "local-sgd", "tau": tau},
        lr=lr, steps=10 * tau, workers=workers, evaluate_every=10 * tau,
    )  # fmt: skip
    exponent = np.log(apart[-1] / apart[0]) / np.log(alone[-1] / alone[0])
    left = 1 - (1 - lr * k) ** np.arange(tau)
    assert exponent == pytest.approx(1 - share * left.mean(), rel=0.01)


def test_local_steps_cost_nothing_where_curvatures_agree():
    same = {key: value for key, value in QUIET.items() if key != "heterogeneity"}
    one, other = losses(same, {"name": "ssgd"}, {"name": "local-sgd", "tau": 8})
    np.testing.assert_allclose(one[8::8], other[8::8], rtol=1e-9)
    _, slower = losses(QUIET, {"name": "ssgd"}, {"name": "local-sgd", "tau": 8})
    assert slower[-1] > 1.1 * one[-1]


def test_only_one_curvature_for_all_is_noted():
    for table, expected in ((QUIET, []), ({**QUIET, "heterogeneity": None}, ["one curvature"])):
        given = {key: value for key, value in table.items() if value is not None}
        world = scenario({"name": "local-sgd", "tau": 4}, objective=given)
        notes = [note for note in simulate(world).notes if "curvature" in note]
        assert len(notes) == len(expected)


@looped("case", cases())
def test_the_batched_engine_has_the_same_numbers(case):
    if not taken(case, RICH):
        return
    world = scenario(case, objective=RICH, compute=EXPONENTIAL, steps=12, lr=0.05)
    ours = on_batched(world.algorithm[0], world, [0, 3])
    for seed, run in zip([0, 3], ours, strict=True):
        alike(run, on_virtual(world.algorithm[0], world, seed))
