"""The level of a quantity: still where nothing changes, and quick where something does."""

import numpy as np
import pytest

from paceline.deploy.steering.inputs import Level
from tests.helpers.cases import looped


def test_without_a_change_the_mean_settles():
    for seed in range(40):
        rng, level = np.random.default_rng(seed), Level(0.2)
        for tau in rng.integers(1, 32, 200):
            level.add(rng.gamma(20 * tau, 0.1 / 20 / tau), float(tau))
        assert level.mean == pytest.approx(0.1, abs=4 * level.error * 0.1)
        assert level.spread == pytest.approx(20**-0.5, rel=0.5)


@looped("factor", [0.2, 0.5, 2.0, 5.0])
def test_a_step_is_seen_at_once_and_leaves_no_trace(factor):
    rng, level = np.random.default_rng(1), Level(0.2)
    for _ in range(50):
        level.add(rng.gamma(160, 0.1 / 160), 8.0)
    for _ in range(2):
        level.add(factor * rng.gamma(160, 0.1 / 160), 8.0)
    assert level.mean == pytest.approx(0.1 * factor, rel=0.15)


def test_a_slow_drift_is_followed():
    level = Level(0.05)
    for n in range(300):
        level.add(1.01**n)
        if n > 20:
            assert level.mean == pytest.approx(1.01**n, rel=0.15)
