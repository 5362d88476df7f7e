"""Confidence intervals contain the truth as often as they claim, where the truth is known."""

import pytest

from tests.reliability import coverage


@pytest.mark.parametrize("kind", [coverage.student, coverage.paired])
def test_95_of_100_intervals_of_95_percent_hold_the_truth(kind):
    for row in kind(300):
        low, high = coverage.bounds(row, 0.95)
        assert low <= row["handled"] <= high, row


def test_90_of_100_intervals_of_90_percent_hold_a_real_run():
    row = coverage.calibrated(40)
    low, high = coverage.bounds(row, 0.9)
    assert low <= row["handled"] <= high, row
