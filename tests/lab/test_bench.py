"""The statistics of the benchmarks: spreads, verdicts, and what counts as disturbed."""

import time

import pytest

from tests.lab.bench import measure
from tests.lab.bench.__main__ import chosen
from tests.lab.bench.measure import MISSED, NO_AIM, OK, UNCLEAR, Aim, Comparison, CpuReading, Spread


def test_spread_is_the_quartiles():
    assert Spread.of([5, 1, 4, 2, 3]) == Spread(2, 3, 4)
    assert Spread.of([1.0, 2.0]) == Spread(1.25, 1.5, 1.75)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)


@pytest.mark.parametrize(
    ("aim", "verdict"),
    [
        (Aim(1.5), OK),
        (Aim(2.0), OK),
        (Aim(2.2), UNCLEAR),
        (Aim(2.5), UNCLEAR),
        (Aim(2.6), MISSED),
        (Aim(most=2.5), OK),
        (Aim(most=1.8), UNCLEAR),
        (Aim(most=1.4), MISSED),
        (NO_AIM, ""),
    ],
)
def test_an_aim_is_missed_only_outside_the_spread(aim, verdict):
    assert aim.verdict(Spread(1.5, 2.0, 2.5)) == verdict


def test_an_aim_is_written_as_its_limit():
    assert [str(Aim(1.5)), str(Aim(most=512)), str(NO_AIM)] == [">= 1.5", "<= 512", ""]


def test_others_use_what_all_use_without_us():
    before = CpuReading(wall=10.0, everybody=100.0, ours=5.0)
    assert measure.others(before, CpuReading(12.0, 103.0, 8.0), cpus=2) == 0.0
    assert measure.others(before, CpuReading(12.0, 104.0, 8.0), cpus=2) == 0.25
    late = CpuReading(12.0, 102.9, 8.0)  # the kernel counts in ticks: ours may seem more than all
    assert measure.others(before, late, cpus=2) == 0.0


def samples(monkeypatch, shares, count):
    """Sample 0, 1, 2, ... while others use these shares of the CPU in turn."""
    left = iter(shares)
    monkeypatch.setattr(measure, "others", lambda *_: next(left))
    values = iter(range(len(shares)))
    found = measure.samples(lambda: next(values), count)
    assert next(values, None) is None, "measured less often than there are shares"
    return found


def test_on_a_quiet_machine_nothing_is_repeated(monkeypatch):
    assert samples(monkeypatch, [0.0, 0.04, 0.05], 3) == ([0, 1, 2], 0)


def test_each_disturbed_measurement_is_repeated(monkeypatch):
    assert samples(monkeypatch, [0.0, 0.2, 0.01, 0.3, 0.02], 3) == ([0, 2, 4], 0)


def test_repeating_ends_and_the_least_disturbed_are_shown(monkeypatch):
    shares = [0.9, 0.8, 0.0, 0.7, 0.6, 0.06]
    assert samples(monkeypatch, shares, 3) == ([2, 5, 4], 2)


def test_readings_count_our_own_cpu_time():
    before, end = CpuReading.now(), time.process_time() + 0.2
    while time.process_time() < end:
        pass
    after = CpuReading.now()
    assert after.ours - before.ours >= 0.1
    assert after.everybody > before.everybody


def test_a_row_shows_medians_pair_by_pair(monkeypatch):
    monkeypatch.setattr(measure, "others", lambda *_: 0.0)
    ours, theirs = iter([0, 2, 4, 6, 8, 10, 12, 14]), iter([1, 1, 1, 2, 2, 2, 2, 7])
    row = Comparison("x", lambda: next(ours), lambda: next(theirs), Aim(3)).measure()
    assert (row.ours, row.theirs, row.ratio) == ("8.00", "2.00", "4.00")
    assert (row.spread, row.verdict, row.remark) == ("2.50 to 4.50", OK, "")


def test_names_choose_parts_and_rows():
    row = "asgd, 25 workers"
    assert chosen("served", row, [])
    assert chosen("served", row, ["served"])
    assert chosen("served", row, ["flows", "ASGD"])
    assert not chosen("served", row, ["serve", "hybrid"])
