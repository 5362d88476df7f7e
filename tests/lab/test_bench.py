"""Test the statistics of the benchmarks: verdicts, and the choice of rows."""

from tests.helpers.cases import looped
from tests.lab.bench.__main__ import chosen
from tests.lab.bench.measure import MISSED, NO_AIM, OK, UNCLEAR, Aim, Row


@looped(
    "aim, verdict",
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
    assert aim.verdict(1.5, 2.0, 2.5) == verdict


def test_an_aim_is_written_as_its_limits():
    aims = Aim(1.5), Aim(most=512), Aim(1 / 3, 3), NO_AIM
    assert [*map(str, aims)] == [">= 1.5", "<= 512", "0.333 to 3", ""]


def test_a_row_shows_medians_pair_by_pair():
    ours, theirs = iter([0, 2, 4, 6, 8, 10, 12, 14]), iter([1, 1, 1, 2, 2, 2, 2, 7])
    row = Row("x", lambda: next(ours), lambda: next(theirs), Aim(3))
    assert row.measure() == ["x", "8.00", "2.00", "4.00", "2.5 to 4.5", ">= 3", OK]
    alone = Row("x", iter([3.0, 5.0, 4.0]).__next__, aim=Aim(most=4), times=3)
    assert alone.measure() == ["x", "4", "", "", "3.5 to 4.5", "<= 4", OK]


def test_names_choose_parts_and_rows():
    row = "asgd, 25 workers"
    assert chosen("served", row, [])
    assert chosen("served", row, ["served"])
    assert chosen("served", row, ["flows", "ASGD"])
    assert not chosen("served", row, ["serve", "hybrid"])
