"""A steered run is the run of the same program with the same periods as a schedule, to the bit.

So momenta over averages, means under way and what codecs keep back are what the program makes of
them when its period changes.
"""

import numpy as np
import pytest

from paceline.deploy.steering.attach import Controller, Decision
from paceline.simulator.load.load import parse
from paceline.simulator.programs import catalogue
from paceline.simulator.programs.program import Program
from tests.deploy.steering.worlds import Recorder, SteeredPeriod
from tests.helpers.cases import looped
from tests.helpers.worlds import on_virtual

STEERED = (
    "local-sgd", "easgd", "bmuf", "cocod-sgd", "overlap-local-sgd", "diloco", "delayed-diloco",
    "eager-diloco",
)  # fmt: skip
PLAN = (3, 3, 5, 1, 1, 2, 7)  # periods of rounds; the last stays


class Plan:
    """Changes the period as written, whatever happens."""

    def __init__(self, plan=PLAN):
        self.plan, self.round = plan, 0

    def __call__(self, settings, record):
        self.round += 1
        tau = self.plan[min(self.round, len(self.plan) - 1)]
        now = settings | {"tau": tau}
        return None if now == settings else Decision(record.step, 0.0, settings, now, ("planned",))


def world(table, programs=None, steps=60, **optimizer):
    return parse(
        {
            "model": {"parameters": 1000},
            "objective": {
                "kind": "quadratic", "dimension": 6, "noise": 0.5,
                "heterogeneity": {"share": 0.8, "curvature": 0.5},
            },
            "optimizer": {"lr": 0.05} | optimizer,
            "cluster": {"workers": 4, "compute": "1 s"},
            "network": {"latency": "50 ms"},
            "run": {"steps": steps, "evaluate_every": 1},
            "algorithm": [table],
        },
        programs=programs,
    )  # fmt: skip


def steered(name, policy, tau, steps=60, **parameters):
    """Run a program whose period is steered; return its run, telemetry and periods by round."""
    controller = Controller({"tau": tau}, policy)
    piece, recorder = SteeredPeriod(controller), Recorder(controller)
    program = catalogue()[name]

    async def worker(me):
        given = program.parse({"lr": 0.05, "tau": 1} | parameters) | {"tau": piece}
        await program.start(program.worker, recorder.node(me), given)

    programs = {"mine": Program("mine", worker, "tests", rounds=program.rounds)}
    made = world({"name": "mine"}, programs, steps)
    run = on_virtual(made.algorithm[0], made, 0)
    return run, recorder, piece.rounds


@looped("name", STEERED)
def test_steered_periods_are_those_of_a_schedule(name):
    run, _, taus = steered(name, Plan(), PLAN[0])
    assert len(set(taus)) >= 4
    ends = np.cumsum(taus).tolist()
    tau = {"schedule": "piecewise", "values": [*taus, taus[-1]], "at": ends}
    made = world({"name": name, "tau": tau})
    plain = on_virtual(made.algorithm[0], made, 0)
    assert run.curve["loss"] == plain.curve["loss"]
    assert run.curve["time"] == plain.curve["time"]


def test_a_controller_that_changes_nothing_changes_nothing():
    run, recorder, _ = steered("local-sgd", lambda settings, record: None, 4)
    made = world({"name": "local-sgd", "tau": 4})
    plain = on_virtual(made.algorithm[0], made, 0)
    assert run.curve["loss"] == plain.curve["loss"]
    assert not recorder.controller.log
    assert {record.steps for record in recorder.records} == {4}
    assert all(record.compute == pytest.approx((1.0,) * 4) for record in recorder.records)
    assert all(record.average == pytest.approx(0.3) for record in recorder.records)
