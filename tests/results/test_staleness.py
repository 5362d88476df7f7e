"""Staleness: its summary, its figure, and that both survive being kept."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.simulator.results import intervals, statistics, store
from paceline.simulator.results.figures import curves
from tests.helpers.cases import looped
from tests.results.test_statistics import make_run, summary

COUNTS = st.dictionaries(st.integers(0, 300), st.integers(1, 99), min_size=1, max_size=20)


def stale(*counts, label="asgd", unit="updates"):
    """One run per mapping from staleness to how many contributions were so stale."""
    runs = [make_run(label=label, seed=seed) for seed in range(len(counts))]
    for run, counted in zip(runs, counts, strict=True):
        run.staleness, run.staleness_unit = counted, unit
    return runs


def lines(groups):
    rows = [statistics.jsonable(summary(runs) | {"label": k}) for k, runs in groups.items()]
    return curves.of_groups(groups, rows)


def expanded(counts):
    """One entry per contribution."""
    return np.repeat(list(counts), list(counts.values()))


@given(st.lists(COUNTS, min_size=1, max_size=4))
def test_the_summary_is_that_of_all_contributions(seeds):
    row = summary(stale(*seeds))["staleness"]
    every = np.concatenate(list(map(expanded, seeds)))
    means = [expanded(counts).mean() for counts in seeds]
    assert (row["unit"], row["max"]) == ("updates", every.max())
    assert row["p95"] == np.quantile(every, 0.95, method="inverted_cdf")
    assert row["mean"] == pytest.approx(np.mean(means))
    expected = intervals.positive(means).beside_mean()
    assert {key: row[key] for key in expected} == expected
    values, counts = np.unique(every, return_counts=True)
    assert list(row["distribution"]) == values.tolist()  # in ascending order
    assert list(row["distribution"].values()) == pytest.approx(counts / every.size)
    assert sum(row["distribution"].values()) == pytest.approx(1)


@looped(("late", "p95"), [(4, 0), (5, 0), (6, 7)])
def test_p95_is_not_passed_by_rounding(late, p95):
    assert summary(stale({0: 100 - late, 7: late}))["staleness"]["p95"] == p95


@looped("counts", [{}, {3: 0}])
def test_nothing_counted_is_null_and_not_zero(counts):
    assert summary(stale(counts, counts))["staleness"] is None
    row = summary(stale(counts, {3: 2}))["staleness"]  # a seed without any says nothing
    assert (row["mean"], row["ci95"], row["distribution"]) == (3.0, None, {3: 1.0})


def test_the_document_names_staleness_by_text_in_numeric_order():
    actual = statistics.jsonable(summary(stale({10: 1, 2: 3})))["staleness"]
    assert json.loads(store.dump(actual))["distribution"] == {"2": 0.75, "10": 0.25}
    assert list(actual["distribution"]) == ["2", "10"]


def test_updates_and_their_pace():
    runs = [make_run(), make_run(seed=1)]  # 20 s each
    runs[0].updates, runs[1].updates = 10, 40
    row = summary(runs)
    assert row["updates"] == 25
    expected = {"mean": 1.25, "median": 1.25, **intervals.positive([2.0, 0.5]).beside_mean()}
    assert row["seconds_per_update"] == expected
    runs[1].updates = 0
    row = statistics.jsonable(summary(runs))["seconds_per_update"]
    assert (row["mean"], row["interval"], row["basis"]) == (None, None, intervals.NEVER)


@given(st.dictionaries(st.integers(0, 2**60), st.integers(0, 2**60), max_size=9), st.integers(0))
def test_counts_survive_as_the_integers_they_are(counts, updates):
    (run,) = stale(counts)
    run.updates = updates
    again = store.decode(store.encode(run))
    assert list(again.staleness.items()) == list(counts.items())
    assert {type(part) for pair in again.staleness.items() for part in pair} <= {int}
    assert (again.updates, again.staleness_unit) == (updates, "updates")
