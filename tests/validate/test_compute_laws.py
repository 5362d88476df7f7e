"""Compute-time laws from samples: families, slow workers, and no false positives."""

import math
from itertools import cycle, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from paceline.simulator.distributions.order_statistics import expected_max
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
from paceline.simulator.distributions.random_streams import Purpose, generator
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import parse
from paceline.validate.calibration import compute_laws, independence
from paceline.validate.calibration.compute_laws import fit
from tests.helpers.cases import looped

LAWS = [
    Constant.model_construct(value=0.03),
    Exponential.model_construct(mean=0.02),
    ShiftedExponential.model_construct(shift=0.25, mean=0.3),
    Uniform.model_construct(low=0.01, high=0.03),
    Normal.model_construct(mean=0.05, sd=0.01),
    Normal.model_construct(mean=0.01, sd=0.02),  # folded
    LogNormal.model_construct(mean=0.05, sd=0.04),
    Gamma.model_construct(mean=0.02, shape=3.0),
    Weibull.model_construct(scale=0.02, shape=0.7),
    Weibull.model_construct(scale=0.02, shape=3.0),
    Pareto.model_construct(minimum=0.02, alpha=3.0),
]


def draw(law, seed=0, team=4, n=300):
    return [law.sample(generator(seed, Purpose.COMPUTE, w), n) for w in range(team)]


def told(fitted, team, folder):
    """Return the laws of a scenario that contains the fitted tables."""
    for file, times in fitted.samples.items():
        np.savetxt(folder / file, times)
    scenario = parse(
        {
            "model": {"parameters": 10},
            "objective": {"kind": "none"},
            "cluster": {"workers": team, **fitted.tables},
            "network": {"latency": "1 ms", "bandwidth": "1 Gbit/s"},
            "run": {"steps": 10},
            "algorithm": [{"name": "ssgd"}],
        },
        folder=folder,
    )
    return [worker.compute for worker in scenario.team.workers]


@looped(("law", "seed"), zip(LAWS, cycle([0, 1])))
def test_the_family_is_found(law, seed, tmp_path):
    fitted = fit(draw(law, seed))
    assert fitted.compute["dist"] == law.dist
    assert not fitted.group
    sampled = compute_laws.slowest_of(np.concatenate(draw(law, seed)), 4)
    found = expected_max([(each,) for each in told(fitted, 4, tmp_path)])
    assert found == pytest.approx(sampled, rel=0.05)
    if not law.is_constant:
        truth = math.sqrt(law.variance / 1200) / law.expectation
        assert fitted.sd == pytest.approx(truth, rel=0.35)
        assert fitted.fits[0]["p"] > 0.005


@looped("law", LAWS[1:])
def test_likelihoods_are_the_largest_there_are(law):
    """Each is that of the law, by the density of the simulator's CDF, and at its maximum."""
    x = law.sample(generator(1, Purpose.COMPUTE), 200)
    families = {family.fit(x)[0].dist: family for family in compute_laws.FAMILIES}
    for fitted in compute_laws.candidates(x, 2, np.random.default_rng(0)):
        if (family := families[fitted.law.dist]).ended:
            continue  # their end points are moved off the samples, to be unbiased
        values = fitted.law.model_dump()
        numbers = [key for key, value in values.items() if isinstance(value, float)]
        density = log_density(fitted.law, x)
        if np.all(density > np.log(1e-3)):  # else differences of a CDF near 1 are rounding
            bic = family.charge * np.log(len(x)) - 2 * density.sum()
            assert fitted.bic == pytest.approx(bic, abs=0.1)
            for key, by in product(numbers, (0.98, 1.02)):
                other = fitted.law.model_copy(update={key: values[key] * by})
                assert log_density(other, x).sum() < density.sum() + 1e-3, (values, key)
        assert fitted.ks == pytest.approx(stats.kstest(x, fitted.law.cdf).statistic, abs=1e-12)


def log_density(law, x):
    h = 1e-6 * x
    with np.errstate(divide="ignore"):
        return np.log((law.cdf(x + h) - law.cdf(x - h)) / (2 * h))


@given(st.sampled_from(LAWS[1:]), st.integers(0, 50), st.floats(1e-3, 1e3))
@settings(max_examples=4, deadline=None)
def test_the_unit_of_time_does_not_matter(law, seed, by):
    x = draw(law, seed, n=100)
    one, other = fit(x), fit([by * each for each in x])
    assert one.compute["dist"] == other.compute["dist"]
    assert one.sd == pytest.approx(other.sd, rel=1e-6)
    shapes = [
        {k: v for k, v in each.compute.items() if k in ("shape", "alpha")} for each in (one, other)
    ]
    assert shapes[0] == pytest.approx(shapes[1], rel=1e-4)


def test_a_little_of_the_machine_does_no_harm(tmp_path):
    rng = np.random.default_rng(5)
    nominal = draw(LAWS[1])
    x = [each + 3e-4 + 3e-5 * rng.standard_normal(len(each)) for each in nominal]
    found = expected_max([(law,) for law in told(fit(x), 4, tmp_path)])
    sampled = compute_laws.slowest_of(np.concatenate(nominal), 4) + 3e-4
    assert found == pytest.approx(sampled, rel=0.02)


def test_nearly_constant_is_constant():
    x = [0.05 + 5e-5 * np.random.default_rng(w).standard_normal(100) for w in range(2)]
    fitted = fit(x)
    assert fitted.compute["dist"] == "constant"
    assert fitted.notes == []


def test_two_humps_are_empirical(tmp_path):
    rng = np.random.default_rng(7)
    x = [
        np.where(rng.random(300) < 0.3, rng.normal(0.06, 0.003, 300), rng.normal(0.03, 0.002, 300))
        for _ in range(4)
    ]
    fitted = fit(x)
    assert fitted.compute == {"dist": "empirical", "file": "compute.csv"}
    assert np.array_equal(np.sort(fitted.samples["compute.csv"]), np.sort(np.concatenate(x)))
    assert any("no family" in note for note in fitted.notes)
    law, *_ = told(fitted, 4, tmp_path)
    assert law.expectation == pytest.approx(np.mean(x))


@looped("law", [LAWS[1], LAWS[2], LAWS[6]])
def test_chance_makes_no_groups(law):
    trials = [draw(law, seed, n=100) for seed in range(40)]
    assert sum(len(independence.alike(x)) > 1 for x in trials) <= 2


@looped("law", [LAWS[1], LAWS[2], LAWS[4]])
def test_slow_workers_are_told_apart(law, tmp_path):
    x = [times * (1.5 if w in (2, 5) else 1) for w, times in enumerate(draw(law, 1, 8))]
    fitted = fit(x)
    assert fitted.group[0]["workers"] == 2
    slow, *_, usual = told(fitted, 8, tmp_path)
    assert slow.expectation / usual.expectation == pytest.approx(1.5, rel=0.12)
    assert any(note.startswith("workers 2, 5 take 1.") for note in fitted.notes)


def test_fast_workers_and_constants_too():
    x = [np.full(50, each) for each in (0.03, 0.03, 0.02, 0.03, 0.05)]
    fitted = fit(x)
    assert [note.partition(" takes")[0] for note in fitted.notes] == ["worker 2", "worker 4"]
    assert [each["compute"]["value"] for each in fitted.group] == ["20 ms", "50 ms"]


@looped("n", [1, 2, 5, 12])
def test_few_steps_say_little(n):
    fitted = fit([np.random.default_rng(n).exponential(0.02, n)])
    assert fitted.notes[0].startswith(f"only {n} step")
    assert fitted.compute["dist"] not in ("empirical", "pareto", "shifted-exponential", "uniform")
    assert (fitted.sd == math.inf) == (n == 1)


def test_what_are_no_times_is_refused():
    with pytest.raises(InputError, match="no steps were measured"):
        fit([np.empty(0)])
    with pytest.raises(
        InputError, match=r"worker 1: a step of -1.0 s; times are finite, 0 or more"
    ):
        fit([np.ones(3), -np.ones(3)])
    with pytest.raises(InputError, match="worker 0: a step of nan s"):
        fit([np.full(3, np.nan)])


@pytest.mark.filterwarnings("error")
@looped("n", [3, 100])
def test_odd_times_do_no_harm(n, tmp_path):
    """Clocks that tick, hiccups, tails without a mean, and numbers over tens of magnitudes."""
    rng = np.random.default_rng(n)
    for x in (
        np.round(rng.exponential(0.02, n), 3),
        rng.choice([0.02, 0.03], n),
        np.append(np.full(n - 1, 0.03), 3.0),
        1e-3 * rng.random(n) ** -1.5,
        np.maximum(rng.random(n) ** 40, 1e-30),
        1e-6 * rng.exponential(1.0, n),
        1e4 * rng.gamma(2.0, 1.0, n),
    ):
        fitted = fit([x, x])
        assert math.isfinite(told(fitted, 2, tmp_path)[0].expectation)
        assert fitted.fits[0]["family"] == fitted.compute["dist"]


def test_zeros_are_times():
    x = np.random.default_rng(2).exponential(0.02, 100)
    x[3] = 0.0
    assert fit([x]).compute["dist"] in ("exponential", "shifted-exponential", "normal")
    assert fit([np.zeros(10)]).compute == {"dist": "constant", "value": "0 ms"}
