"""Summaries and intervals, on made-up runs."""

import csv
import io
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.simulator.results import statistics
from paceline.simulator.results.run import COLUMNS, Run
from tests.helpers.cases import looped

NAN = math.nan


def make_run(
    loss=(1.0, 0.5, 0.25),
    *,
    time=None,
    step=None,
    label="ssgd",
    seed=0,
    seconds=(3.0, 1.0, 1.0),
    **curve,
):
    n = len(loss)
    time = [float(10 * i) for i in range(n)] if time is None else [float(t) for t in time]
    step = [float(5 * i) for i in range(n)] if step is None else [float(s) for s in step]
    columns = {name: [NAN] * n for name in COLUMNS}
    columns |= {"time": time, "step": step, "loss": [float(x) for x in loss]}
    columns |= {"bytes": [15.0 * s for s in step]}
    columns |= {name: [float(x) for x in values] for name, values in curve.items()}
    return Run(
        label=label,
        name=label.split()[0],
        seed=seed,
        engine="virtual",
        steps=step[-1],
        duration=time[-1],
        curve=columns,
        seconds=dict(zip(("compute", "wait", "communicate"), seconds, strict=True)),
        links={"a->b": 100.0, "b->a": 50.0},
    )


def seeds_reaching(times, label="ssgd", last=100.0):
    """One run per time, whose loss falls from 1 through 0.5 at that time; inf: never."""
    runs = []
    for seed, when in enumerate(times):
        ends = [0.0, when, last] if math.isfinite(when) else [0.0, last / 2, last]
        loss = [1.0, 0.5, 0.1] if math.isfinite(when) else [1.0, 0.9, 0.8]
        runs.append(make_run(loss, time=ends, label=label, seed=seed))
    return runs


def summary(runs, **options):
    defaults = {"target": None, "workers": 2, "ideal_rate": 1.0}
    return statistics.summarise(runs, **(defaults | options))


def test_batch_means_cover_the_pace_of_one_long_run():
    rng = np.random.default_rng(2)
    covered: dict[str, list[bool]] = {"interval": [], "ci95": []}
    for _ in range(600):
        time = np.concatenate([[0.0], np.cumsum(rng.exponential(3.0, 200))])
        run = make_run(np.ones(201), time=time, step=2 * np.arange(201))
        actual = statistics.step_time([run])
        for name, share in covered.items():
            low, high = getattr(actual, name)
            share.append(low <= 1.5 <= high)
            assert low < actual.value < high
        assert actual.value == run.duration / run.steps
    assert 0.87 < np.mean(covered["interval"]) < 0.94
    assert 0.93 < np.mean(covered["ci95"]) < 0.98


@looped("points", [1, 2, 30])
def test_no_batch_means_of_fewer_than_two_intervals_or_of_equal_ones(points):
    actual = statistics.step_time([make_run(np.ones(points))])
    assert (actual.interval, actual.basis) == (None, "one seed")


@given(
    st.lists(st.floats(0.01, 10), min_size=2, max_size=20),
    st.lists(st.floats(0.01, 100), min_size=20, max_size=20),
    st.floats(0.01, 10),
)
def test_crossing_is_the_first_time_at_the_target(loss, gaps, target):
    run = make_run(loss, time=np.cumsum(gaps)[: len(loss)])
    when = statistics.crossing(run, target)
    if math.isinf(when):
        assert min(loss) > target
        return
    time = run.curve["time"]
    if when > time[0]:
        assert statistics.at(run, when) == pytest.approx(target, rel=1e-6)
    assert all(x > target for t, x in zip(time, loss, strict=True) if t < when)


@looped(
    ("loss", "expected"),
    [
        ([0.4, 1.0, 0.1], 0.0),  # there from the start
        ([1.0, 0.5, 0.9], 10.0),  # exactly on an evaluation; what comes later does not matter
        ([1.0, 0.75, 0.25], 15.0),
        ([1.0, 0.25, 1.0, 0.1], pytest.approx(20 / 3)),  # the first of several
        ([NAN, 0.3, 0.1], 10.0),  # nothing to interpolate from
        ([1.0, NAN, 0.1], 20.0),
        ([1.0, math.inf, 0.1], 20.0),
        ([1.0, 0.6], math.inf),
        ([NAN, NAN], math.inf),
    ],
)
def test_crossing_of_one_half(loss, expected):
    assert statistics.crossing(make_run(loss), 0.5) == expected


def test_time_to_target_is_the_mean_only_if_every_seed_reached():
    row = summary(seeds_reaching([10.0, 20.0, 30.0]), target=0.5)["time_to_target"]
    assert (row["mean"], row["median"], row["reached"]) == (20.0, 20.0, 3)
    assert row["ci95"][0] < 20.0 < row["ci95"][1]
    missed = summary(seeds_reaching([10.0, 20.0, math.inf]), target=0.5)["time_to_target"]
    missed = statistics.jsonable(missed)
    assert (missed["mean"], missed["ci95"], missed["reached"]) == (None, None, 2)
    assert (missed["estimate"], missed["median"]) == ("median", 20.0)
    assert (missed["interval"], missed["level"]) == ([10.0, None], 0.75)  # or later
    half = summary(seeds_reaching([10.0, math.inf]), target=0.5)["time_to_target"]
    assert statistics.jsonable(half)["median"] is None
    assert summary(seeds_reaching([10.0]), target=None)["time_to_target"] is None


def test_summary_of_known_runs():
    slow = make_run(time=[0, 40, 60], accuracy=[0.1, 0.5, 0.9], cost=[0, 1, 2])
    fast = make_run(time=[0, 20, 30], accuracy=[0.1, 0.7, 0.7], cost=[0, 1, 4], seed=1)
    row = summary([slow, fast], workers=2, ideal_rate=2.0)
    assert row["seconds_per_step"]["mean"] == pytest.approx(4.5)  # 60/10 and 30/10
    assert row["seconds_per_step"]["p95"] == pytest.approx(np.quantile([8, 4, 4, 2], 0.95))
    assert (row["steps"], row["duration"]) == (10.0, 45.0)
    assert (row["loss"]["first"], row["loss"]["last"]) == (1.0, 0.25)
    assert row["accuracy"]["last"] == pytest.approx(0.8)
    assert row["bytes_per_step"] == pytest.approx(15.0)
    assert row["links"] == {"a->b": 100.0, "b->a": 50.0}
    # 2 workers, 10 steps in 60 s and in 30 s: 1/3 and 2/3 gradients a second
    assert row["scalability"] == pytest.approx(0.5 / 2.0)
    assert row["breakdown"] == pytest.approx({"compute": 0.6, "wait": 0.2, "communicate": 0.2})
    assert row["curve"]["time"] == [0.0, 30.0, 45.0]
    assert row["curve"]["step"] == [0.0, 5.0, 10.0]


def test_seeds_are_compared_at_the_steps_they_share():
    fine = make_run([4, 3, 2, 1], step=[0, 1, 2, 3])
    coarse = make_run([8, 4], step=[0, 2], seed=1)
    actual = statistics.aligned([fine, coarse])
    assert actual["step"].tolist() == [[0, 2], [0, 2]]
    assert actual["loss"].tolist() == [[4, 2], [8, 4]]
    assert summary([fine, coarse])["curve"]["loss"] == [6, 3]


@looped("runs", [[make_run([1.0])], [make_run([NAN, NAN]), make_run([NAN, NAN])]])
def test_what_cannot_be_had_is_null(runs):
    document = statistics.jsonable(summary(runs, target=0.1, ideal_rate=math.inf))
    json.dumps(document, allow_nan=False)
    assert document["accuracy"]["last"] is None


def test_time_that_nobody_spent_has_no_breakdown():
    shares = summary([make_run(seconds=(0.0, 0.0, 0.0))])["breakdown"]
    assert set(statistics.jsonable(shares).values()) == {None}


def test_notes_of_runs_are_said_once():
    runs = [make_run(seed=s) for s in range(3)]
    for run in runs:
        run.notes.append("outside Theorem 2")
    assert statistics.notes({"ssgd": runs}) == ["ssgd: outside Theorem 2"]
    groups = {"one": runs, "two": runs[:1]}
    assert statistics.notes(groups) == ["every algorithm: outside Theorem 2"]
    groups["three"] = [make_run()]
    assert statistics.notes(groups) == ["one, two: outside Theorem 2"]


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=20))
def test_csv_gives_back_every_bit(values):
    run = make_run(values, label='with, "quotes"')
    rows = list(csv.DictReader(io.StringIO(statistics.csv_table([run]).decode())))
    assert [row["label"] for row in rows] == [run.label] * len(values)
    read = [float(row["loss"]) if row["loss"] else NAN for row in rows]
    assert np.array_equal(read, values, equal_nan=True)


def test_records_are_flat_rows():
    records = statistics.records([make_run([1.0, 0.5]), make_run([1.0], seed=1)])
    assert [(r["seed"], r["step"], r["loss"]) for r in records] == [
        (0, 0.0, 1.0),
        (0, 5.0, 0.5),
        (1, 0.0, 1.0),
    ]
    assert list(records[0]) == ["label", "seed", *COLUMNS]


@looped(
    ("seconds", "expected"),
    [
        (0.0, "0.00 s"),
        (1e-3, "1.00 ms"),
        (0.99949, "999 ms"),
        (1.0, "1.00 s"),
        (119.0, "119 s"),
        (120.0, "2.00 min"),
        (7200.0, "2.00 h"),
        (86400.0 * 2000, "2000 d"),
        (None, "-"),
        (math.inf, "-"),
    ],
)
def test_durations_as_people_say_them(seconds, expected):
    assert statistics.human(seconds) == expected


@given(st.recursive(st.floats() | st.integers(), lambda inner: st.lists(inner) | st.tuples(inner)))
def test_jsonable_is_strict_json(value):
    json.dumps(statistics.jsonable({"x": value, "y": np.float64(NAN)}), allow_nan=False)
