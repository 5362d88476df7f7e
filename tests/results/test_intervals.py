"""Estimates over seeds: what they are of, their intervals, and how these are said."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import paceline
from paceline.simulator.load.load import parse
from paceline.simulator.reports import terminal
from paceline.simulator.results import intervals, wording
from paceline.simulator.results.intervals import MEAN, MEDIAN, positive, stated
from paceline.simulator.results.statistics import jsonable
from tests.helpers.cases import looped

INF = math.inf
TIMES = st.lists(st.floats(1e-3, 1e6), min_size=2, max_size=12)
HEAVY = {"dist": "pareto", "minimum": "1 s", "alpha": 2}
LIGHT = {"dist": "pareto", "minimum": "1 s", "alpha": 2.1}


@given(TIMES, st.booleans(), st.sampled_from([None, MEAN, MEDIAN]))
def test_an_interval_of_times_is_positive_and_holds_its_value(times, heavy, of):
    actual = positive(times, heavy=heavy, of=of)
    if actual.interval is None:
        assert actual.exact
        assert np.ptp(times) <= 1e-9 * max(times)
        return
    low, high = actual.interval
    assert 0 < low <= actual.value * (1 + 1e-12)
    assert actual.value <= high * (1 + 1e-12)
    assert actual.value == pytest.approx(np.mean(times) if actual.of == MEAN else np.median(times))
    assert actual.of == (MEDIAN if heavy else of or actual.of)
    if actual.of == MEAN and of is None:
        assert high <= 10 * low


@given(TIMES, st.floats(1e-3, 1e3), st.booleans())
def test_an_interval_does_not_depend_on_the_unit_or_the_order(times, unit, heavy):
    here, there = positive(times, heavy=heavy), positive(np.array(times[::-1]) * unit, heavy=heavy)
    if here.of == there.of and here.interval and math.isfinite(here.interval[1]):  # by rounding
        assert there.interval == pytest.approx([unit * end for end in here.interval], rel=1e-6)
        assert (there.level, there.basis) == (here.level, here.basis)


@looped(
    ("seeds", "level", "places"),
    [(2, 0.5, (0, 1)), (4, 0.875, (0, 3)), (6, 0.96875, (0, 5)), (8, 1 - 18 / 256, (1, 6)),
     (9, 1 - 20 / 512, (1, 7)), (12, 1 - 158 / 4096, (2, 9))],
)  # fmt: skip
def test_medians_lie_between_order_statistics_at_the_level_that_these_attain(seeds, level, places):
    times = np.random.default_rng(seeds).permutation(2.0 ** np.arange(seeds))
    actual = positive(times, heavy=True)
    assert actual.interval == tuple(2.0**place for place in places)
    assert actual.level == pytest.approx(level, rel=1e-12)
    assert actual.certain == (seeds > 4)
    assert actual.ci95 is None


def test_means_of_times_that_hardly_vary_have_students_interval():
    """To the third digit, but for the scale; Student's is what a textbook gives."""
    times = [99.0, 100.0, 101.0, 100.5]
    actual, textbook = positive(times), intervals.signed(times)
    assert actual.interval == pytest.approx(textbook.interval, rel=1e-3)
    assert textbook.interval == pytest.approx([99.1202, 101.1298], abs=1e-4)


def test_the_mean_of_lognormal_times_has_the_published_interval():
    """Zou, Taleban and Huo (2009), worked by hand with Student's limits, where it is the wider."""
    y = np.array([-1.0, 0.0, 0.5, 1.0, 2.0, -0.3])
    mean, variance = y.mean(), y.var(ddof=1)
    half = 2.0150484 * math.sqrt(variance / 6)  # t, 5 degrees of freedom
    up = math.hypot(half, variance / 2 * (5 / 1.1454762 - 1))  # chi-squared, at 5 %
    actual = positive(np.exp(y), of=MEAN)
    assert actual.interval[1] == pytest.approx(math.exp(mean + variance / 2 + up), rel=1e-6)


@looped("heavy", [False, True])
def test_a_seed_that_never_gets_there_leaves_the_interval_open(heavy):
    found = positive([10.0, 30.0, 20.0, INF], heavy=heavy)
    assert (found.of, found.value, found.interval, found.level) == (MEDIAN, 25.0, (10, INF), 0.875)
    assert wording.format_interval(found, "s") == "10.0 s or more"
    most = positive([10.0, INF, INF], heavy=heavy)
    assert (most.value, most.interval, most.basis) == (INF, None, intervals.NEVER)


@looped("heavy", [False, True])
def test_no_interval_without_chance(heavy):
    """No width of 1e-15, either."""
    for times in ([3.0] * 4, [0.1 + 0.2, 0.3, 0.3], [0.0, 0.0]):
        actual = positive(times, heavy=heavy)
        assert (actual.interval, actual.ci95, actual.exact) == (None, None, True)
        assert wording.amount(actual, "s").count("%") == 0
    single = positive([3.0], heavy=heavy)
    assert (single.interval, single.basis) == (None, intervals.ONE_SEED)
    rounded = intervals.difference([10.1, 20.2], [10.0 + 1e-14, 20.1])
    assert rounded.exact
    assert rounded.above(0)
    alike = intervals.difference([10.0, 20.0], [10.0 + 1e-14, 20.0])
    assert (alike.value, alike.above(0), alike.below(0)) == (0, False, False)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9))
def test_shares_stay_between_0_and_1(values):
    actual = intervals.share(values)
    assert actual.interval is None or 0 <= actual.interval[0] <= actual.interval[1] <= 1


@given(TIMES, st.booleans())
def test_documents_give_estimates_back(times, heavy):
    actual = positive([*times, INF] if heavy else times, heavy=heavy)
    mean = jsonable({"mean": np.mean(times), "median": np.median(times), **actual.beside_mean()})
    value = jsonable({"value": actual.value, **actual.beside_value()})
    for read in (stated(mean), stated(value, "value")):
        assert (read.of, read.interval, read.level) == (actual.of, actual.interval, actual.level)


def test_comparisons_are_paired_and_say_no_more_than_is_known():
    best = np.array([10.0, 30.0, 90.0, 20.0])
    for heavy in (False, True):
        for of in (MEAN, MEDIAN):
            assert intervals.exceeds(best + 1, best, heavy=heavy, of=of)  # with every seed alike
            longer = intervals.exceeds(best * [2.0, 2.1, 2.2, 1.9], best, heavy=heavy, of=of)
            assert longer == (heavy or of == MEDIAN)  # means are not yet known apart
            assert not intervals.exceeds(best[::-1], best, heavy=heavy, of=of)
            assert not intervals.exceeds(best, best, heavy=heavy, of=of)
            assert not intervals.exceeds([2.0], [1.0], heavy=heavy, of=of)


@looped("heavy", [False, True])
def test_equals_are_seldom_told_apart(heavy):
    """At 5 % on each side, of lognormal times and of ones without a variance."""
    rng = np.random.default_rng(4)
    draws = rng.pareto(1.5, (2, 2000, 5)) + 1 if heavy else rng.lognormal(0, 1, (2, 2000, 5))
    apart = [
        intervals.exceeds(one, other, heavy=heavy, of=MEDIAN)
        for one, other in zip(*draws, strict=True)
    ]
    assert np.mean(apart) < 0.05 + 3 * math.sqrt(0.05 / 2000)


@looped(
    ("times", "expected"),
    [
        ([1500.0, 1518.0, 1530.0, 1542.0], "25.4 min (25.0–25.7)"),
        ([0.9, 1.0, 1.1, 1.05], "1.01 s (0.916–1.13)"),
        ([0.4, 0.402, 0.398, 0.4], "400 ms (398–402)"),
        ([60.0, 600.0, 1200.0, 3600.0], "15.0 min (median, 90 %: 1.37–80.2)"),
    ],
)
def test_one_unit_within_an_interval(times, expected):
    found = positive(times)
    assert wording.cell(found, "s") == expected
    unit, low, high = re.search(r" (\w+) \((?:.*: )?(.+)–(.+)\)", expected).groups()
    assert wording.amount(found, "s").endswith(f" ({wording.kind(found)}: {low} to {high} {unit})")


def test_differences_are_said_in_one_unit():
    actual = intervals.signed([-75.0, 30.0, 9000.0, 4000.0])
    assert wording.difference(actual, "s") == "0.900 h (-0.500 to 2.30)"


def world(compute, **run):
    return {
        "model": {"parameters": 1000},
        "objective": {"kind": "quadratic", "dimension": 2, "noise": 0.0},
        "optimizer": {"lr": 0.1},
        "cluster": {"workers": 2, "compute": compute},
        "network": {"collective": "given", "duration": "0.1 s"},
        "run": {"steps": 20, "target_loss": 0.5, "evaluate_every": 1} | run,
        "algorithm": [{"name": "ssgd"}, {"name": "local-sgd", "tau": 2}],
    }


@looped(
    ("compute", "heavy"),
    [
        ("1 s", False),
        (HEAVY, True),
        (LIGHT, False),
        ({"dist": "weibull", "scale": "1 s", "shape": 0.3}, False),
        ({"dist": "mixture", "components": [{"weight": 9, "dist": "constant", "value": "1 s"},
                                            {"weight": 1, **HEAVY}]}, True),
    ],
)  # fmt: skip
def test_a_scenario_knows_whether_its_times_have_a_variance(compute, heavy):
    assert parse(world(compute)).heavy_tailed == heavy
    elsewhere = world("1 s")
    elsewhere["network"]["duration"] = compute
    assert parse(elsewhere).heavy_tailed == heavy
    elsewhere = world("1 s")
    elsewhere["cluster"]["group"] = [{"name": "some", "workers": 1, "compute": compute}]
    assert parse(elsewhere).heavy_tailed == heavy


def test_times_without_a_variance_are_estimated_by_their_median_everywhere():
    result = paceline.simulate(parse(world(HEAVY)), seeds=4)
    for row in result.algorithms:
        for name in ("seconds_per_step", "seconds_per_update", "time_to_target"):
            actual = row[name]
            assert (actual["estimate"], actual["level"], actual["ci95"]) == (MEDIAN, 0.875, None)
            assert actual["interval"][0] < actual["median"] < actual["interval"][1]
    assert (result.pick["estimate"], result.pick["level"]) == (MEDIAN, 0.875)
    assert "(median, 87.5 %: " in result.pick["sentence"]
    assert intervals.HEAVY in result.notes
    heading = terminal.summary(result).columns[2].header
    assert heading == "to loss 0.5\n(median, 87.5 %)"
    swept = paceline.sweep(parse(world(HEAVY)), {"cluster.workers": [2]}, seeds=8)
    row = swept.records()[0]
    assert row["time_to_target_s_median_level"] == pytest.approx(0.9296875)
    assert row["time_to_target_s_low"] is None
    assert "(median, 93 %)" in str([column.header for column in terminal.sweep(swept).columns])


def test_a_deterministic_run_has_no_interval_anywhere():
    result = paceline.simulate(parse(world("1 s")), seeds=4)
    for row in result.algorithms:
        for name in ("seconds_per_step", "seconds_per_update", "time_to_target", "loss"):
            assert (row[name]["ci95"], row[name]["interval"]) == (None, None)
            assert row[name]["basis"] == intervals.SAME
    assert (result.pick["ci95"], result.pick["decided"]) == (None, True)
    cells = [cell for column in terminal.summary(result).columns for cell in column.cells]
    assert not [cell for cell in cells if "±" in cell or "–" in cell]
    assert " %:" not in result.pick["sentence"]
    single = paceline.simulate(parse(world("1 s")), seeds=1).algorithms[0]
    assert single["seconds_per_step"]["interval"] is None  # of batch means, either
