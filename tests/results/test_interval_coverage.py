"""Confidence intervals contain the truth as often as they claim, where the truth is known."""

from tests.helpers.cases import looped
from tests.lab.reliability import coverage


@looped("kind", [coverage.over_seeds, coverage.paired])
def test_intervals_hold_the_truth_as_often_as_they_claim(kind):
    for row in kind(160):
        claimed = 0.95 if "ci95" in row["what"] else 0.9
        low, _ = coverage.bounds(row, claimed)
        _, high = coverage.bounds(row, claimed + 0.03)  # of normal and lognormal values, both hold
        assert low <= row["handled"] <= high, row


def test_intervals_hold_what_they_say_as_often_as_they_say_by_law_and_seeds():
    """Of normal and lognormal times, and more skewed ones, and where there is no variance."""
    for row in coverage.by_law(400):
        low, high = coverage.bounds(row, row["level"])
        assert low <= row["handled"], row
        assert row["level"] >= 0.9 or row["heavy"], row
        if row["heavy"]:
            assert row["handled"] <= high, row


def test_90_of_100_intervals_of_90_percent_hold_a_real_run():
    row = coverage.calibrated(40)
    low, high = coverage.bounds(row, 0.9)
    assert low <= row["handled"] <= high, row
