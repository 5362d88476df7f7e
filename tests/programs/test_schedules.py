"""Schedules by their definitions, and what may stand for a rate and a period."""

import math
from itertools import pairwise

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

import paceline
from paceline.simulator.programs.pieces.schedule import (
    ConstantSchedule,
    Linear,
    Period,
    PeriodOfSteps,
    Piecewise,
    Rate,
    Steps,
    WarmupCosine,
)
from tests.helpers.cases import looped

ADAPTERS = {
    "rate": TypeAdapter(Rate),
    "period": TypeAdapter(PeriodOfSteps),
}
CONSTANT = {"schedule": "constant", "value": 3}
STEPS = {"schedule": "steps", "start": 1, "factor": 2, "at": [3, 8]}
DECAY = {"schedule": "steps", "start": 0.4, "factor": 0.1, "at": [80, 120]}
PIECEWISE = {"schedule": "piecewise", "values": [1, 4, 8], "at": [100, 500]}
LINEAR = {"schedule": "linear", "start": 1, "end": 3, "steps": 8}
COSINE = {"schedule": "warmup-cosine", "peak": 0.4, "warmup": 4, "steps": 12}
HELD = {"schedule": "warmup-cosine", "start": 1, "peak": 4, "end": 4, "warmup": 6, "steps": 9}


def read(kind, value):
    return ADAPTERS[kind].validate_python(value)


levels = st.floats(1, 100).map(lambda value: round(value, 3))
changes = st.lists(st.integers(1, 40), min_size=1, max_size=4, unique=True).map(sorted)


@st.composite
def piecewise(draw):
    at = draw(changes)
    values = draw(st.lists(levels, min_size=len(at) + 1, max_size=len(at) + 1))
    return Piecewise("piecewise", tuple(draw(st.sampled_from([values, sorted(values)]))), tuple(at))


@st.composite
def warmup_cosine(draw):
    start, end, peak = sorted([draw(levels), draw(levels), draw(levels)])
    warmup = draw(st.integers(0, 20))
    steps = warmup + draw(st.integers(1, 20))
    end = draw(st.sampled_from([end, peak]))
    return WarmupCosine("warmup-cosine", peak, steps, warmup, start, end)


cosines = warmup_cosine()
schedules = (
    st.builds(ConstantSchedule, levels)
    | st.builds(
        Steps, st.just("steps"), levels, st.sampled_from([0.1, 0.5, 1, 1.5, 3]), changes.map(tuple)
    )
    | piecewise()
    | st.builds(Linear, st.just("linear"), levels, levels, st.integers(1, 40))
    | cosines
)
FURTHEST = 45  # past every step at which one of them changes


# values


@looped(
    ("table", "values"),
    [
        (PIECEWISE, {0: 1, 1: 1, 100: 1, 101: 4, 500: 4, 501: 8, 10**12: 8}),
        (DECAY, {1: 0.4, 80: 0.4, 81: 0.04, 120: 0.04, 121: 0.004, 10**6: 0.004}),
        (LINEAR, {0: 1, 1: 1.25, 4: 2, 7: 2.75, 8: 3, 9: 3, 10**12: 3}),
        (COSINE, {0: 0, 1: 0.1, 2: 0.2, 4: 0.4, 8: 0.2, 12: 0, 13: 0, 10**12: 0}),
        (COSINE, {6: 0.2 * (1 + math.sqrt(0.5)), 10: 0.2 * (1 - math.sqrt(0.5))}),
        (COSINE | {"start": 0.1, "end": 0.2}, {0: 0.1, 2: 0.25, 4: 0.4, 8: 0.3, 12: 0.2}),
        (COSINE | {"warmup": 0}, {0: 0.4, 3: 0.2 * (1 + math.sqrt(0.5)), 6: 0.2, 12: 0}),
        (HELD, {0: 1, 2: 2, 6: 4, 7: 4, 8: 4, 9: 4}),
    ],
)
def test_values_at_known_points(table, values):
    schedule = read("rate", table)
    assert [schedule(step) for step in values] == pytest.approx([*values.values()], abs=1e-15)


@given(cosines, st.integers(1, FURTHEST))
def test_warmup_cosine_is_what_is_written(schedule, k):
    """The definition, as papers write it; the peak and the end are reached exactly."""
    W, N = schedule.warmup, schedule.steps
    start, peak, end = schedule.start, schedule.peak, schedule.end
    if k <= W:
        expected = start + (peak - start) * k / W
    elif k < N:
        expected = end + (peak - end) * (1 + math.cos(math.pi * (k - W) / (N - W))) / 2
    else:
        expected = end
    assert schedule(k) == pytest.approx(expected, rel=1e-13)
    assert schedule(W) == peak
    assert schedule(N) == end


@given(levels, levels, st.integers(1, 40))
def test_a_line_has_one_slope_and_then_none(start, end, steps):
    line = Linear("linear", start, end, steps)
    assert (line(0), line(steps), line(steps + 7)) == (start, end, end)
    slopes = [after - before for before, after in pairwise(map(line, range(steps + 1)))]
    assert slopes == pytest.approx([(end - start) / steps] * steps, abs=1e-10)


@given(levels, st.sampled_from([0.5, 2.0]), changes, st.integers(0, FURTHEST))
def test_step_decay_is_piecewise(start, factor, at, step):
    values = tuple(start * factor**i for i in range(len(at) + 1))
    decay = Steps("steps", start, factor, tuple(at))
    assert decay(step) == Piecewise("piecewise", values, tuple(at))(step)


def test_a_schedule_piece_is_read_as_its_table_is():
    line = Linear(**LINEAR)
    assert read("period", line) == read("period", LINEAR) == Period(line)
    assert read("rate", line) == read("rate", LINEAR) == line


# rates and periods


@looped("table", [CONSTANT, STEPS, DECAY, PIECEWISE, LINEAR, COSINE, HELD])
def test_every_schedule_may_be_a_rate_or_a_period(table):
    rate, period = read("rate", table), read("period", table)
    assert rate(1) > 0
    for step in (1, 5, 8, 12, 101, 10**6):
        assert type(period(step)) is int
        assert period(step) == max(1, math.ceil(rate(step)))


def test_a_rate_that_warms_up_from_zero_starts_above_it():
    assert read("rate", COSINE)(1) == COSINE["peak"] / COSINE["warmup"]
    assert read("rate", LINEAR | {"start": 0})(1) == LINEAR["end"] / LINEAR["steps"]


def test_a_scenario_may_warm_up_and_let_the_period_grow():
    scenario = paceline.load(
        "scenarios/quickstart.toml",
        [
            "algorithm.local-sgd.lr={schedule='warmup-cosine', peak=0.1, warmup=4, steps=10}",
            "algorithm.local-sgd.tau={schedule='linear', start=1, end=4, steps=30}",
        ],
    )
    (local,) = [item.parameters for item in scenario.algorithm if item.name == "local-sgd"]
    assert [local["lr"](step) for step in (2, 4, 10)] == [0.05, 0.1, 0]
    assert [local["tau"](step) for step in (1, 10, 11, 30)] == [2, 2, 3, 4]


@looped("kind", ADAPTERS)
def test_the_schema_knows_every_schedule(kind):
    validator = jsonschema.Draft202012Validator(ADAPTERS[kind].json_schema())
    for table in (3, CONSTANT, STEPS, PIECEWISE, LINEAR, COSINE, HELD):
        validator.validate(table)
    wrong = (0, "4", {"schedule": "cosine"}, LINEAR | {"end": -1}, COSINE | {"peak": 0})
    for table in (*wrong, PIECEWISE | {"values": []}, HELD | {"warm_up": 4}):
        assert not validator.is_valid(table)
