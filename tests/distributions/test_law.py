"""Delay distributions: samples, moments, quantiles and CDF agree; wrong parameters are refused."""

import math
import os
import pickle
import re
import subprocess
import sys
import tomllib
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter
from scipy import integrate, stats

from paceline.simulator.distributions.law import Law
from paceline.simulator.distributions.time_profile import TimeProfile
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


# Profiles of time


STEPS = {"at": ["0 s", "1 h"], "factor": [1.0, 0.5]}


def read(folder=".", **table):
    return TimeProfile.model_validate(table, context={"folder": folder})


@st.composite
def profiles(draw):
    """Steps, periodic or not, whose sums round."""
    spans = draw(st.lists(st.floats(1e-3, 10.0), min_size=1, max_size=5))
    starts = np.concatenate([[0.0], np.cumsum(spans)[:-1]])
    factors = draw(st.lists(st.floats(0, 2), min_size=len(spans), max_size=len(spans)))
    factors[-1] += 0.1  # the last factor is above zero
    table = {"at": [f"{start!r} s" for start in starts.tolist()], "factor": factors}
    if draw(st.booleans()):
        table["period"] = f"{sum(spans) * 1.01!r} s"
    return read(**table)


def test_steps_hold_until_the_next_one_and_the_last_one_stays():
    profile = read(**STEPS)
    assert list(profile.segments()) == [(0, 1.0), (3600, 0.5)]
    assert profile.mean == 0.5


def test_a_period_repeats_them_for_ever():
    profile = read(**STEPS, period="4 h")
    assert list(islice(profile.segments(), 4)) == [(0, 1), (3600, 0.5), (14400, 1), (18000, 0.5)]
    assert profile.mean == pytest.approx((1 + 3 * 0.5) / 4)


@given(profiles())
def test_the_mean_is_that_of_a_long_time(profile):
    if profile.period is None:
        return
    size = sum(1 for start, _ in islice(profile.segments(), 9) if start < profile.period)
    shown = list(islice(profile.segments(), 100 * size + 1))
    area = sum(factor * (end - start) for (start, factor), (end, _) in pairwise(shown))
    assert area / shown[-1][0] == pytest.approx(profile.mean, rel=1e-9, abs=1e-12)


def test_a_file_says_the_same_as_a_table(tmp_path):
    (tmp_path / "load.csv").write_text("time,factor  # of a night\n0, 1.0\n\n1 h, 0.5\n")
    loaded = read(tmp_path, file="load.csv", period="4 h")
    table = read(**STEPS, period="4 h")
    assert list(islice(loaded.segments(), 9)) == list(islice(table.segments(), 9))
    assert pickle.loads(pickle.dumps(loaded)) == loaded


# A law of an installed package: the class on the page that shows how


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "add-a-model.md").read_text("utf-8")
PROGRAM = """
import paceline
compute = {"dist": "weekday", "usual": "100 ms", "busy": "300 ms", "every": 20.0}
table = {
    "model": {"parameters": 10}, "cluster": {"workers": 4, "compute": compute},
    "network": {"latency": compute}, "run": {"steps": 400}, "optimizer": {"lr": 0.1},
    "objective": {"kind": "none"}, "algorithm": [{"name": "psgd"}, {"name": "ssgd"}],
}
paces = []
for engine in ("virtual", "batched"):
    rows = paceline.simulate(paceline.load(table), engine=engine).algorithms
    paces.append([row["seconds_per_step"]["mean"] for row in rows])
assert all(abs(a - b) < 1e-9 for a, b in zip(*paces, strict=True)), paces
assert abs(paces[0][0] - 0.11) < 0.005, paces
try:
    paceline.load(table | {"cluster": {"workers": 4, "compute": compute | {"evry": 1}}})
except paceline.InputError as error:
    print(error)
"""


def installed(folder, value):
    """A folder that looks like an installed package with the page's class."""
    code = re.search(r'```python title="weekday.py"\n(.*?)```', PAGE, re.S)[1]
    (folder / "weekday.py").write_text(code, "utf-8")
    about = folder / "weekday-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: weekday\nVersion: 1.0\n", "utf-8")
    (about / "entry_points.txt").write_text(f"[paceline.laws]\nweekday = {value}\n", "utf-8")
    return os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


def test_a_law_of_a_package_is_used_by_every_engine(tmp_path):
    where = installed(tmp_path, "weekday:Weekday")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=where, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "cluster.compute.evry" in done.stdout


def test_something_else_is_refused(tmp_path):
    where = installed(tmp_path, "weekday:np")
    command = [sys.executable, "-c", "import paceline; paceline.load('quickstart')"]
    done = subprocess.run(command, env=where, capture_output=True, text=True, check=False)
    assert "entry point weekday of paceline.laws (weekday:np): not a law" in done.stderr
