"""Delay distributions: samples, moments, quantiles and CDF agree; wrong parameters are refused."""

import math
import pickle
import tomllib
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter
from scipy import integrate, stats

from paceline.simulator.distributions.law import Law
from tests.helpers.cases import beside

LAW = TypeAdapter(Law)
TABLES = tomllib.loads(beside(__file__, "laws.toml"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("delays")
    (path / "samples.csv").write_text("seconds\n0.5\n300 ms  # with a unit\n\n2\n0.5\n4e-1\n")
    return path


@pytest.fixture(params=TABLES)
def law(request, folder):
    return LAW.validate_python(TABLES[request.param], context={"folder": folder})


def rng(seed=7):
    return np.random.Generator(np.random.Philox(seed))


def test_samples_follow_the_law(law):
    n = 200_000
    times = law.sample(rng(), n)
    assert times.shape == (n,)
    assert np.all(np.isfinite(times) & (times >= 0))
    assert times.mean() == pytest.approx(
        law.expectation, abs=5 * math.sqrt(law.variance / n) + 1e-12
    )
    spread = times.var()
    error = np.std((times - times.mean()) ** 2) / math.sqrt(n)
    assert spread == pytest.approx(law.variance, abs=6 * error + 1e-12)
    ordered = np.sort(times)
    at, below = np.unique(ordered), np.searchsorted(ordered, np.unique(ordered), side="right") / n
    assert np.max(np.abs(below - law.cdf(at))) < 2.0 / math.sqrt(n)  # KS, p about 1e-3


def test_quantile_is_the_generalised_inverse_of_the_cdf(law):
    q = np.concatenate([np.linspace(0.0005, 0.9995, 301), [1e-6, 1 - 1e-6]])
    t = law.quantile(q)
    assert np.all(law.cdf(t * (1 + 1e-9)) >= q - 1e-9)
    assert np.all(law.cdf(t * (1 - 1e-9) - 1e-15) <= q + 1e-6)
    assert np.all(np.diff(law.quantile(np.sort(q))) >= 0)
    continuous = law.cdf(t) - law.cdf(t * (1 - 1e-9) - 1e-15) < 1e-6
    assert np.allclose(law.cdf(t)[continuous], q[continuous], atol=1e-9)


def test_ends_of_the_range(law):
    with np.errstate(all="raise", under="ignore"):
        low, high = law.quantile([0.0, 1.0])
        assert 0 <= low <= high
        assert law.cdf([-1.0, -1e-300]).tolist() == [0, 0]
        assert law.cdf(high) == pytest.approx(1)
        assert law.sf(np.zeros((2, 3))).shape == (2, 3)
    with pytest.raises(ValueError, match="probability"):
        law.quantile(1.5)


def test_expectation_and_variance_are_integrals_of_the_survival_function(law):
    edges = [0, *law.knots, *law.quantile([0.5, 0.9, 0.999, 1 - 1e-6, 1 - 1e-9, 1 - 1e-12])]
    first = second = 0.0
    for a, b in zip(sorted(set(edges))[:-1], sorted(set(edges))[1:], strict=True):
        first += integrate.quad(lambda t: float(law.sf(t)), a, b)[0]
        second += integrate.quad(lambda t: 2 * t * float(law.sf(t)), a, b)[0]
    assert law.expectation == pytest.approx(first, rel=1e-6)
    assert law.variance == pytest.approx(second - first**2, rel=1e-4, abs=1e-9)


def test_the_residual_time_has_the_equilibrium_law(law):
    """Its CDF is the integral of sf over the expectation."""
    for u in (0.05, 0.5, 0.9, 0.999):
        edges = [0.0, *(t for t in law.knots if t < law.residual(u)), float(law.residual(u))]
        parts = pairwise(edges)
        below = sum(integrate.quad(lambda t: float(law.sf(t)), a, b)[0] for a, b in parts)
        assert below / law.expectation == pytest.approx(u, abs=1e-6)


@pytest.mark.parametrize("cuts", [(1, 2, 3), (256, 256, 256), (0, 1000, 7)])
def test_blocks_of_any_size_give_the_same_numbers(law, cuts):
    one, other = rng(), rng()
    whole = law.sample(one, sum(cuts))
    parts = np.concatenate([law.sample(other, n) for n in cuts])
    assert np.array_equal(whole, parts)
    assert one.random() == other.random()


def test_survives_pickling_and_equals_itself(law, folder):
    again = pickle.loads(pickle.dumps(law))
    assert again == law
    assert Counter([again, law])[law] == 2
    assert np.array_equal(again.sample(rng(), 10), law.sample(rng(), 10))


def test_is_constant(folder):
    constant = {name for name in TABLES if parse(TABLES[name], folder).is_constant}
    assert constant == {"constant"}
    same = {"weight": 1, "dist": "constant", "value": "0.1 s"}
    assert parse({"dist": "mixture", "components": [same] * 3}).is_constant


def parse(table, folder="."):
    return LAW.validate_python(table, context={"folder": folder})


POSITIVE = st.floats(0.05, 20)
SCIPY = {
    "exponential": (["mean"], lambda mean: stats.expon(scale=mean)),
    "gamma": (["mean", "shape"], lambda mean, shape: stats.gamma(shape, scale=mean / shape)),
    "lognormal": (
        ["mean", "sd"],
        lambda mean, sd: stats.lognorm(
            math.sqrt(math.log1p((sd / mean) ** 2)),
            scale=mean / math.sqrt(1 + (sd / mean) ** 2),
        ),
    ),
    "normal": (["mean", "sd"], lambda mean, sd: stats.foldnorm(mean / sd, scale=sd)),
    "pareto": (["minimum", "alpha"], lambda low, alpha: stats.pareto(alpha, scale=low)),
    "weibull": (["scale", "shape"], lambda scale, shape: stats.weibull_min(shape, scale=scale)),
}


@pytest.mark.parametrize("dist", SCIPY)
@given(a=POSITIVE, b=st.floats(0.2, 20))
@settings(max_examples=60, deadline=None)
def test_agrees_with_scipy(dist, a, b):
    keys, frozen = SCIPY[dist]
    values = dict(zip(keys, (a, b), strict=False))
    units = {k: v if k in ("shape", "alpha") else f"{v!r} s" for k, v in values.items()}
    law, reference = parse({"dist": dist, **units}), frozen(*values.values())
    q = np.array([0.001, 0.1, 0.5, 0.9, 0.999])
    assert np.allclose(law.quantile(q), reference.ppf(q), rtol=1e-7)
    assert np.allclose(law.sf(reference.ppf(q)), 1 - q, rtol=1e-7)
    assert law.expectation == pytest.approx(reference.mean(), rel=1e-7)
    if dist == "pareto" and abs(b - 2) < 1e-3:
        return
    # scipy subtracts squares, and so loses digits where the spread is small
    assert law.variance == pytest.approx(reference.var(), rel=1e-6, abs=1e-9 * a * a)


@given(mean=st.just(0.0) | st.floats(1e-30, 5), sd=st.floats(0.1, 5))
@settings(max_examples=60, deadline=None)
def test_clipped_normal_moments(mean, sd):
    law = parse({"dist": "normal", "mean": f"{mean!r} s", "sd": f"{sd!r} s", "negative": "clip"})
    high = mean + 12 * sd
    first = integrate.quad(lambda t: float(law.sf(t)), 0, high)[0]
    second = integrate.quad(lambda t: 2 * t * float(law.sf(t)), 0, high)[0]
    assert law.expectation == pytest.approx(first, rel=1e-6)
    assert law.variance == pytest.approx(second - first**2, rel=1e-5)


def test_moments_that_do_not_exist():
    pareto = {"dist": "pareto", "minimum": "1 s"}
    assert parse(pareto | {"alpha": 2}).variance == math.inf
    assert parse(pareto | {"alpha": 1}).expectation == math.inf
    part = pareto | {"alpha": 0.9, "weight": 1}
    assert parse({"dist": "mixture", "components": [part]}).variance == math.inf


def test_a_bare_quantity_is_a_constant():
    assert parse("300 ms") == parse({"dist": "constant", "value": "300 ms"})


GAMMA = {"dist": "gamma", "mean": "1 s"}


def test_json_schema_accepts_what_the_models_accept():
    schema = LAW.json_schema()
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    for table in [*TABLES.values(), "300 ms"]:
        assert validator.is_valid(table), table
    for table in [300, {"mean": "1 s"}, GAMMA, GAMMA | {"shape": 1, "weight": 1}]:
        assert not validator.is_valid(table), table
    unweighted = {"dist": "mixture", "components": [GAMMA | {"shape": 1}]}
    assert not validator.is_valid(unweighted)
