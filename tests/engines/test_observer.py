"""The observer: how often a run of unknown length is evaluated."""

import numpy as np

from paceline.simulator.engines.observer import POINTS
from tests.helpers.cases import looped
from tests.helpers.worlds import scenario, simulate

CASES = [{"name": "ssgd"}, {"name": "local-sgd", "tau": 7}, {"name": "asgd"}, {"name": "psgd"}]


@looped("case", CASES)
@looped("duration", [30, 390, 1700])
def test_a_run_ended_by_time_is_seen_to_its_end_in_a_few_hundred_points(case, duration):
    world = scenario(case, steps=None, run={"duration": f"{duration} s"})
    curve = simulate(world).curve
    steps = np.diff(curve["step"])
    assert len(set(np.round(steps, 9))) == 1  # evenly
    assert min(POINTS, duration * 0.9) <= len(steps) <= 2 * POINTS * 4  # asgd counts per worker
    assert curve["time"][-1] > duration * (1 - 1.5 / POINTS) - 1


def test_coarser_looks_are_among_finer_ones():
    """Constant compute of 1 s: 1,000 steps are more points than a curve may have."""
    worlds = [
        scenario(CASES[1], steps=None, run={"duration": "1000 s"} | run)
        for run in ({"evaluate_every": 1}, {})
    ]
    every, some = (simulate(world).curve for world in worlds)
    points = dict(zip(every["step"], every["time"], strict=True))
    assert len(some["step"]) < len(points)
    assert all(points[k] == t for k, t in zip(some["step"], some["time"], strict=True))


def test_a_run_without_a_second_point_and_one_that_never_averages_say_so():
    late = scenario(CASES[0], steps=None, run={"duration": "10 s", "evaluate_every": 100})
    assert "no step was evaluated" in simulate(late).notes[0]
    seldom = scenario({"name": "local-sgd", "tau": 100}, steps=50)
    assert any("never averaged" in note for note in simulate(seldom).notes)
    often = scenario({"name": "local-sgd", "tau": 10}, steps=50)
    assert not any("never averaged" in note for note in simulate(often).notes)
