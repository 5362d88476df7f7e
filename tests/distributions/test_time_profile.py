"""Factors over time: what a table or a file says, and the same wherever one looks."""

import math
import pickle
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from paceline.simulator.distributions.time_profile import ProfileOf

PROFILE = TypeAdapter(ProfileOf)
DAILY = {"kind": "daily", "low": 0.6, "high": 1.0, "peak": "14 h"}
STEPS = {"at": ["0 s", "1 h"], "factor": [1.0, 0.5]}


def read(folder=".", **table):
    return PROFILE.validate_python(table, context={"folder": folder})


@st.composite
def profiles(draw):
    """Steps, periodic or not, whose sums round."""
    spans = draw(st.lists(st.floats(1e-3, 10.0), min_size=1, max_size=5))
    starts = np.concatenate([[0.0], np.cumsum(spans)[:-1]])
    factors = draw(st.lists(st.floats(0, 2), min_size=len(spans), max_size=len(spans)))
    factors[-1] += 0.1  # not zero for good
    table = {"at": [f"{start!r} s" for start in starts.tolist()], "factor": factors}
    if draw(st.booleans()):
        table["period"] = f"{sum(spans) * 1.01!r} s"
    return read(**table)


def test_steps_hold_until_the_next_one_and_the_last_one_stays():
    profile = read(**STEPS)
    assert list(profile.segments()) == [(0, 1.0), (3600, 0.5)]
    assert [profile.at(t) for t in (0, 3599.9, 3600, 1e9)] == [1.0, 1.0, 0.5, 0.5]
    assert profile.mean == 0.5


def test_a_period_repeats_them_for_ever():
    profile = read(**STEPS, period="4 h")
    assert list(islice(profile.segments(), 4)) == [(0, 1), (3600, 0.5), (14400, 1), (18000, 0.5)]
    assert [profile.at(t) for t in (14399, 14400, 18000)] == [0.5, 1.0, 0.5]
    assert profile.mean == pytest.approx((1 + 3 * 0.5) / 4)


def test_a_day_is_a_cosine_around_its_mean():
    profile = read(**DAILY)
    times = [start for start, _ in islice(profile.segments(), 97)]
    np.testing.assert_allclose(np.diff(times), 900)
    assert profile.mean == pytest.approx(0.8, rel=1e-12)
    values = [profile.at(hour * 3600) for hour in range(24)]
    assert max(values) == values[14] == pytest.approx(1.0, abs=1e-3)
    assert min(values) == values[2] == pytest.approx(0.6, abs=1e-3)
    for hour, value in enumerate(values):
        middle = (hour + 0.125) * 3600  # of the step that begins at the full hour
        assert value == pytest.approx(0.8 + 0.2 * math.cos(2 * math.pi * (middle / 86400 - 7 / 12)))


@given(profiles(), st.floats(0, 1e4))
def test_looking_at_a_time_agrees_with_the_segments(profile, time):
    """Also at the boundaries themselves, whatever their rounding."""
    shown = list(islice(profile.segments(), 200))
    for start, factor in shown:
        assert profile.at(start) == factor
        assert profile.at(math.nextafter(start, math.inf)) == factor
    for (start, factor), (end, _) in pairwise(shown):
        assert start < end
        if start <= time < end:
            assert profile.at(time) == factor


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
    assert pickle.loads(pickle.dumps(loaded)).at(14400) == 1.0
