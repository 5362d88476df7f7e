"""Test that the committed curves are complete, and the statistics of scores right."""

import math

import numpy as np
import pytest

from tests.lab.evidence import curves, gpt

CURVES = gpt.known()


def test_every_committed_curve_is_of_a_cell_and_whole():
    assert {*CURVES} <= {*gpt.cells()}
    assert gpt.FILE.stat().st_size < 300_000
    for cell, curve in CURVES.items():
        step, seconds, loss = curve.T
        assert step.tolist() == [*range(0, gpt.STEPS + 1, gpt.EVERY)], cell
        assert (np.diff(seconds) > 0).all()
        assert loss[0] == pytest.approx(math.log(128), rel=0.02)  # a guess among 128 characters
        assert loss[-1] < 0.55 * loss[0]


def test_programs_of_a_seed_begin_alike_and_seeds_differ():
    starts = {seed: {c[0, 2] for cell, c in CURVES.items() if cell.seed == seed} for seed in (0, 1)}
    assert all(len(start) == 1 for start in starts.values())
    assert starts[0] != starts[1]


def test_orders_and_times_by_hand():
    inf = math.inf
    real = [1.0, 1.01, 2.0, inf]
    # 1 and 1.01 count as equal, and 2 is predicted to come before 1.01
    assert [*curves.agreement(real, [1.0, 1.5, 1.2, inf])] == [1, 1, -1, 1, 1]
    assert [*curves.agreement([inf, 3.0], [inf, inf])] == [0]
    curve = np.array([[0, 0, 4.0], [1, 10, 2.0], [2, 20, 2.5], [3, 30, 1.0]])
    assert curves.seconds(curve, 2.0) == pytest.approx(10)
    assert curves.seconds(curve, math.sqrt(2.5)) == pytest.approx(25)
    assert curves.seconds(curve, 0.9) == inf
