"""A steered run is the run of the same program with the same periods as a schedule, to the bit.

So momenta over averages, means under way and what codecs keep back are what the program makes of
them when its period changes.
"""

import numpy as np
import pytest

from paceline.deploy.steering.controller import Controller, SteeredCodec, SteeredPeriod, codec_of
from paceline.deploy.steering.policies import AdaComm, Decision
from paceline.simulator.engines.virtual import run as virtual
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import parse
from paceline.simulator.programs import catalogue
from paceline.simulator.programs.adaptive import PaperRule
from paceline.simulator.programs.program import Program
from tests.deploy.steering.recorder import Recorder

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
    """Run a program whose period is steered; return its run, and the rounds of the controller."""
    controller = Controller({"tau": tau}, policy)
    piece, recorder = SteeredPeriod(controller), Recorder(controller, lambda step: 0.05)
    known = catalogue()[name]

    async def worker(me):
        given = known.parse({"lr": 0.05, "tau": 1} | parameters) | {"tau": piece}
        await known.start(known.worker, recorder.node(me), given)

    programs = {"mine": Program("mine", worker, "tests", rounds=known.rounds)}
    made = world({"name": "mine"}, programs, steps)
    run = virtual.run(made.algorithm[0], made, 0, programs=programs)
    return run, controller, recorder


@pytest.mark.parametrize("name", STEERED)
def test_steered_periods_are_those_of_a_schedule(name):
    run, controller, _ = steered(name, Plan(), PLAN[0])
    taus = [each["tau"] for each in controller._rounds]
    assert len(set(taus)) >= 4
    ends = np.cumsum(taus).tolist()
    tau = {"schedule": "piecewise", "values": [*taus, taus[-1]], "at": ends}
    made = world({"name": name, "tau": tau})
    plain = virtual.run(made.algorithm[0], made, 0)
    assert run.curve["loss"] == plain.curve["loss"]
    assert run.curve["time"] == plain.curve["time"]


def test_a_controller_that_changes_nothing_changes_nothing():
    run, controller, recorder = steered("local-sgd", lambda settings, record: None, 4)
    made = world({"name": "local-sgd", "tau": 4})
    plain = virtual.run(made.algorithm[0], made, 0)
    assert run.curve["loss"] == plain.curve["loss"]
    assert not controller.log
    assert {record.steps for record in recorder.records} == {4}
    assert all(record.compute == pytest.approx((1.0,) * 4) for record in recorder.records)
    assert all(record.average == pytest.approx(0.3) for record in recorder.records)


def test_the_policy_adacomm_is_the_program_adacomm():
    rule = {"tau0": 8, "interval": 10.0, "gamma": 0.5}
    run, controller, recorder = steered("local-sgd", AdaComm(PaperRule(8, 10.0, 0.5, 0, 1)), 8)
    made = world({"name": "adacomm"} | rule | {"interval": "10 s"})
    plain = virtual.run(made.algorithm[0], made, 0)
    assert run.curve["loss"] == plain.curve["loss"]
    assert len({record.steps for record in recorder.records}) > 2
    assert all("eq. 6" in decision.reasons[0] for decision in controller.log)


class Level:
    """Steers a codec's level: a third of the entries, then one in six, then all."""

    def at(self, number):
        return {"codec": {"kind": "top-k", "ratio": (1 / 3, 1 / 6, 1.0)[min(number // 2, 2)]}}


class Me:
    """A node that averages with no other."""

    start = np.zeros(12)
    workers, parameters, bytes_per_parameter, rank = 1, 12, 4.0, 0

    def work(self, seconds):
        pass

    def start_gather(self, value):
        return (value,)

    async def wait(self, handle):
        return handle


def test_what_a_codec_keeps_back_outlives_a_change_of_its_level():
    channel = SteeredCodec(Level(), codec_of({"kind": "top-k", "ratio": 1 / 3})).open(Me())
    rng, given, came, sizes = np.random.default_rng(0), np.zeros(12), np.zeros(12), []
    for _ in range(5):
        vector = rng.standard_normal(12)
        handle = channel.start_mean(vector)
        sizes.append(len(handle[0].data[0]))
        waiting = channel.wait(handle)
        with pytest.raises(StopIteration) as done:
            waiting.send(None)
        given, came = given + vector, came + done.value.value
    assert sizes == [4, 4, 2, 2, 12]
    np.testing.assert_allclose(came, given, atol=1e-12)


@pytest.mark.parametrize("codec", ["fp16", {"kind": "power-sgd", "rank": 2}, "raw"])
def test_codecs_without_a_level_are_refused(codec):
    with pytest.raises(InputError, match="no level to steer"):
        SteeredCodec(Level(), codec_of(codec))
