"""Working hours: by what a time grows where the work done by then grows."""

import numpy as np
import pytest

from paceline.simulator.cluster.membership import stretched, working_hours
from tests.helpers.worlds import scenario

HOUR = 3600.0


def cluster(*daily):
    return scenario({"name": "ssgd"}, cluster={"membership": {"daily": [*daily]}}).cluster


def test_more_work_than_fits_into_a_night_is_done_in_the_next_ones():
    """There from 20:00 to 06:00: 5.5 h of work by 05:30; twice that is 5 h after 20:00."""
    nights = cluster("20:00-06:00")
    factors = np.array([0.5, 1.0, 2.0, 4.0, np.inf])
    found = stretched(nights, 5.5 * HOUR, factors) * 5.5
    assert found == pytest.approx([2.75, 5.5, 25.0, 50.0, np.inf], rel=1e-6)


def test_workers_without_hours_are_always_there():
    always = scenario({"name": "ssgd"}).cluster
    assert stretched(always, 5.0, np.array([3.0])) == 3.0
    assert working_hours(cluster("20:00-24:00", "00:00-20:00")) == [(0.0, 24 * HOUR)]
