"""Calibration of the error model: known quadratics are recovered, and other runs predicted."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import paceline
from paceline.simulator.errors import InputError
from paceline.simulator.objectives import build
from paceline.simulator.programs.pieces.transform import Identity, Momentum, Nesterov
from paceline.validate.calibration import error_model
from paceline.validate.calibration.error_model import Noise, Observation, noise, squared_distances
from paceline.validate.measurement.measure import MeasuredRun, surveys
from paceline.validate.torch_objective import curvature
from tests.helpers.cases import looped
from tests.helpers.worlds import DIGITS, scenario, simulate

GAPS = {"kind": "modes", "curvature": [2.0, 0.2, 0.02], "gap": [1.0, 0.5, 0.25]}
PLAIN = {
    "kind": "quadratic", "dimension": 96, "spectrum": GAPS, "noise": 0.0, "initial_gap": 1.75,
    "floor": 0.1,
}  # fmt: skip
APART = {**PLAIN, "heterogeneity": {"share": 0.4, "curvature": 1.5}}
LOCAL = {"name": "local-sgd", "tau": 8}


def observe(table, algorithm, *, seed=0, workers=4, lr=0.1, steps=400, momentum=0.0):
    """Simulate a run, as an observation."""
    world = scenario(
        {**algorithm, "momentum": momentum}, objective=table, workers=workers, lr=lr, steps=steps,
        run={"evaluate_every": 8},
    )  # fmt: skip
    curve, given = simulate(world, seed=seed).curve, world.algorithm[0].parameters
    return Observation(
        algorithm["name"], workers, np.array(curve["step"]), np.array([curve["loss"]]),
        given["lr"], given["momentum"], given.get("tau"),
    )  # fmt: skip


def survey(table, *, seed=0, workers=4, lr=0.1, steps=400):
    """Make a curvature survey along gradient descent on the workers' mean gradient."""
    world = scenario({"name": "ssgd"}, objective=table, workers=workers, lr=lr)
    make = partial(build.build, world, world.algorithm[0], seed)
    goal = make()
    sources, x = [goal.source(rank) for rank in range(workers)], goal.start
    path = [curvature.Snapshot(0, goal.evaluate(x, 0).loss, x)]
    for step in range(1, steps + 1):
        x = x - lr * np.mean([source.gradient(x) for source in sources], axis=0)
        path.append(curvature.Snapshot(step, goal.evaluate(x, step).loss, x))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curvature, "SECONDS", 1e9)  # or a busy machine affords fewer points
        return curvature.survey(make, path, workers)


# What is expected of a quadratic


@looped("momentum", [Identity(), Momentum(0.9), Nesterov(0.8)])
@looped("algorithm", [{"name": "ssgd"}, LOCAL, {**LOCAL, "tau": 1}])
def test_responses_are_those_of_the_simulator(momentum, algorithm):
    mu = {"kind": momentum.kind, "mu": momentum.mu} if hasattr(momentum, "mu") else 0.0
    decay = {"schedule": "steps", "start": 0.1, "factor": 0.5, "at": [50]}
    seen = observe(APART, algorithm, lr=decay, steps=96, momentum=mu)
    assert seen.momentum == momentum
    expected = squared_distances(seen, np.array(GAPS["curvature"]), 0.4, 1.5) @ GAPS["gap"] + 0.1
    np.testing.assert_allclose(seen.losses[0], expected, rtol=1e-9)


# Curvature surveys


def test_a_survey_without_noise_is_exact():
    """zeta^2 = share k 2 (F - F*), apart = k, and ||grad F||^2 along the way."""
    found = survey(APART)
    assert len(found["points"]) == curvature.POINTS
    json.dumps(found, allow_nan=False)
    for point in found["points"]:
        gap = point["loss"] - 0.1
        assert point["noise"] == pytest.approx(0, abs=1e-12)
        assert point["between"] == pytest.approx(0.4 * 1.5 * 2 * gap, rel=1e-6)
        assert point["apart"] == pytest.approx(1.5, rel=1e-4)
        assert 0.04 * gap <= point["squared_gradient"] <= 4 * gap + 1e-12
        assert 0.02 - 1e-6 <= point["curvature"] <= 2 + 1e-6
    assert found["points"][0]["smoothness"] is None
    assert all(0.02 - 1e-6 <= each["smoothness"] <= 2 + 1e-6 for each in found["points"][1:])


def test_noise_is_told_from_differences_between_workers():
    noisy = {**APART, "noise": 0.7, "noise_growth": 0.5}
    points = survey(noisy)["points"]
    found = noise(points, 0.1)
    assert found.fixed == pytest.approx(0.49, rel=0.15)
    assert found.growth == pytest.approx(0.5, rel=0.3)
    gaps = [2 * (each["loss"] - 0.1) for each in points]
    np.testing.assert_allclose([each["between"] for each in points], 0.6 * np.array(gaps), atol=0.1)


def test_a_survey_of_one_worker_knows_no_others():
    points = survey(PLAIN, workers=1)["points"]
    assert all(each["apart"] is None and each["between"] == 0 for each in points)
    assert survey({"kind": "none"}, steps=0) is None


def test_long_gradients_are_fewer():
    quick, slow, slowest = (curvature.afford(seconds, 4) for seconds in (1e-5, 3e-3, 1.0))
    assert quick == (16, 8)
    assert 4 <= slow[0] < 16
    assert slow[1] == 8
    assert slowest == (4, 2)


def test_a_real_run_leaves_its_curvature_survey():
    """There is one for each label of ssgd, along snapshots of its first seed."""
    world = scenario({"name": "ssgd"}, {"name": "asgd"}, objective=APART, steps=8)
    runs = []
    for index, seed in ((0, 3), (0, 4), (1, 3)):
        goal = build.build(world, world.algorithm[index], seed)
        path = [curvature.Snapshot(0, goal.evaluate(goal.start, 0).loss, goal.start)]
        run = simulate(world, index, seed)
        runs.append(MeasuredRun(run, [], path=path if run.name == "ssgd" else []))
    found = surveys(world, runs)
    assert list(found) == ["ssgd"]
    assert found["ssgd"]["points"][0]["between"] == pytest.approx(0.4 * 1.5 * 2 * 1.75)


# Calibration


def test_a_known_quadratic_is_found_again():
    seen = [observe(APART, {"name": "ssgd"}), observe(APART, LOCAL)]
    model = error_model.calibrate(seen, survey(APART)["points"])
    table = model.objective
    found = (
        squared_distances(seen[0], np.array(table["spectrum"]["curvature"]))
        @ table["spectrum"]["gap"]
    )
    np.testing.assert_allclose(found[1:] + table["floor"], seen[0].losses[0, 1:], rtol=0.005)
    assert table["heterogeneity"]["share"] == pytest.approx(0.4, abs=0.1)
    assert table["heterogeneity"]["curvature"] == pytest.approx(1.5, rel=0.3)
    assert model.range == pytest.approx((seen[0].losses.min(), 1.85))
    assert model.sd["objective.spectrum.curvature"] < 0.02
    assert set(model.sd) > {"objective.heterogeneity.share", "objective.noise"}


def test_workers_that_are_alike_are_told_to_be():
    alike = {**PLAIN, "noise": 0.3}
    seen = [observe(alike, {"name": "ssgd"}), observe(alike, LOCAL)]
    model = error_model.calibrate(seen, survey(alike)["points"])
    assert "heterogeneity" not in model.objective
    assert any("alike" in note for note in model.notes)


def test_what_noise_adds_is_no_floor():
    """A run in balance with its noise: its loss is floor + lr sigma^2 / (4 workers)."""
    noisy = {**PLAIN, "noise": 1.0}
    seen = [observe(noisy, {"name": "ssgd"}, steps=3000)]
    model = error_model.calibrate(seen, survey(noisy, steps=3000)["points"])
    excess = Noise(1.0).excess(seen[0], np.zeros(1))[0]
    assert excess == pytest.approx(0.1 / 16)
    last = seen[0].losses[0, -100:].mean()
    assert last == pytest.approx(0.1 + excess, rel=0.02)
    assert model.objective["floor"] == pytest.approx(0.1, rel=0.02)


def test_steps_vary_as_seeds_do():
    one = observe(PLAIN, {"name": "ssgd"})
    faster = replace(one, steps=1.0 * one.steps, losses=one.losses)
    slower = replace(one, losses=np.interp(one.steps / 1.2, one.steps, one.losses[0])[None])
    both = replace(one, losses=np.concatenate([faster.losses, slower.losses]))
    spread = error_model.calibrate([both]).sd["objective.spectrum.curvature"]
    assert spread == pytest.approx(np.log(1.2) / 2, rel=0.35)


# Directories, and what has not been seen


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Softmax on skewed digits, short: ssgd and one local-sgd, with a curvature survey."""
    table = {**DIGITS, "partition": {"dirichlet": 0.3}}
    world = scenario(
        {"name": "ssgd"}, LOCAL, {"name": "asgd"}, objective=table, steps=400,
        run={"evaluate_every": 8},
    )  # fmt: skip
    out = tmp_path_factory.mktemp("measured") / "run"
    paceline.simulate(world, out=out)
    found = {"ssgd": survey(table, steps=400)}
    (out / error_model.SURVEYS).write_text(json.dumps(found))
    return out, table


@looped(
    ("algorithm", "workers"),
    [
        ({"name": "local-sgd", "tau": 32}, 4),
        ({"name": "dts", "delay": 4}, 8),
        ({"name": "asgd"}, 4),
    ],
)
def test_others_are_predicted(measured, algorithm, workers):
    out, table = measured
    model = error_model.fit([out])
    assert model.objective["heterogeneity"]["share"] > 0.2
    steps = []
    for each in (table, model.objective):
        world = scenario(
            algorithm, objective=each, workers=workers, steps=400, run={"evaluate_every": 8}
        )
        curve = simulate(world, seed=5).curve
        targets = np.geomspace(1.2, 1.2 * model.range[0], 4)
        steps.append(np.interp(-targets, -np.array(curve["loss"]), curve["step"]))
    np.testing.assert_allclose(steps[1], steps[0], rtol=0.2)


def test_several_runs_are_fitted_together(measured):
    out, _ = measured
    once, twice = error_model.fit([out]), error_model.fit([out, out])
    assert twice.objective["spectrum"] == once.objective["spectrum"]
    assert twice.range == once.range
    share = "objective.heterogeneity.share"
    assert twice.sd[share] < once.sd[share]


def test_without_a_curvature_survey_it_says_so(measured, tmp_path):
    out, _ = measured
    for path in out.iterdir():
        if path.name != error_model.SURVEYS:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    model = error_model.fit([tmp_path])
    assert model.objective["noise"] == 0
    assert any("no curvature survey" in note for note in model.notes)
    (tmp_path / error_model.SURVEYS).write_text("[1]")
    with pytest.raises(InputError, match="repeat the run"):
        error_model.fit([tmp_path])


def test_runs_that_tell_nothing_are_refused(tmp_path):
    for name, algorithm, table in (
        ("no losses", {"name": "ssgd"}, {"kind": "none"}),
        ("no losses", {"name": "asgd"}, PLAIN),
        ("no ssgd", LOCAL, PLAIN),
    ):
        out = tmp_path / algorithm["name"] / table["kind"]
        paceline.simulate(scenario(algorithm, objective=table), out=out)
        with pytest.raises(InputError, match=name):
            error_model.fit([out])
    with pytest.raises(InputError, match="not a run directory"):
        error_model.fit([tmp_path])
