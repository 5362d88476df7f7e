"""The policy `model` in virtual worlds, and ranks that agree."""

import math
import threading
from collections import deque
from dataclasses import dataclass

import numpy as np
import pytest

import paceline
from paceline.deploy.emit.emit import find
from paceline.deploy.steering import inputs as inputs_module
from paceline.deploy.steering.attach import EVERY, Controller, Decision, Steering, controller
from paceline.deploy.steering.inputs import Inputs, Level
from paceline.deploy.steering.telemetry import StepRecord, Telemetry
from paceline.simulator.errors import InputError
from paceline.simulator.load.load import parse
from paceline.simulator.results.statistics import crossing
from paceline.simulator.studies.learning import expected
from paceline.simulator.studies.simulate import simulate
from paceline.simulator.studies.tune.tune import tune
from tests.deploy.steering.worlds import TARGET, Schedule, model, scenario, steered
from tests.helpers.cases import looped

SLOWER = {"at": ["0 s", "30 s"], "factor": [1.0, 0.06]}


@looped("seed", [0, 1, 2])
def test_an_unchanging_world_is_left_alone_after_the_first_decision(seed):
    run, controller, _ = steered(Schedule("none", 100.0, None, None), model(100.0), seed, tau=64)
    assert crossing(run, TARGET) < math.inf
    assert len(controller.log) == 1
    assert controller.log[0].now["tau"] in {16, 32}


def test_what_was_decided_by_has_an_error_of_its_own():
    """Three short rounds know a worker's mean less well than the whole run does later."""
    inputs = Inputs(scenario(None, None, 100.0))
    for record in rounds(3, compute=(0.095,) * 4):
        inputs.add(record)
    since = inputs.state()
    for record in rounds(40, compute=(0.101,) * 4):
        inputs.add(record)
    now = inputs.state()
    apart = now[0][0] - since[0][0]
    assert max(0.05, 3 * now[0][1]) < apart < 3 * math.hypot(now[0][1], since[0][1])
    assert not inputs.left(since)
    for record in rounds(40, compute=(0.2,) * 4):
        inputs.add(record)
    assert inputs.left(since)


def test_a_slower_link_is_noticed_explained_and_answered():
    _, controller, recorder = steered(Schedule("step", 600.0, SLOWER, None), model(600.0), 0, tau=8)
    (decision, *_) = controller.log
    assert 30 < decision.clock < 45
    assert decision.now["tau"] > 8
    assert "the link" in decision.reasons[0]
    low, high = decision.interval
    assert 0 < low < decision.gain < high <= 1
    slow = max(record.average for record in recorder.records)
    ratio = float(decision.reasons[0].split(" times")[0].rsplit(" ", 1)[1])
    assert ratio == pytest.approx(slow / recorder.records[0].average, rel=0.1)


def rounds(count, compute=(0.1,) * 4, average=0.25, loss=1.0, steps=8, start=0):
    """Make records of rounds that are all alike."""
    length = steps * max(compute) + average
    for n in range(start, start + count):
        yield Telemetry(steps * (n + 1), steps, n * length, tuple(compute), average, 4e6, loss)


def test_a_period_is_computed_once_in_a_round_however_it_is_scaled(monkeypatch):
    """All ranks wait while rank 0 decides, and the slowest worker's time is a quadrature."""
    seen, solve = [], inputs_module.expected_max

    def counted(workers, tau):
        seen.append(tau)
        return solve(workers, tau)

    monkeypatch.setattr(inputs_module, "expected_max", counted)
    inputs = Inputs(scenario(None, None, 100.0))
    for round_ in range(2):
        seconds = (0.1, 0.11, 0.12, 0.1 + 0.05 * round_)
        inputs.add(Telemetry(8, 8, 1.0, seconds, 0.3, 4e6, 1.0))
        for tau in (8, 16, 8):
            plain, slower = (
                inputs.step_time("blocking", {"tau": tau}, 4e6, compute=factor)
                for factor in (1.0, 1.3)
            )
            computing = plain - inputs.averages.mean / tau
            assert computing > max(level.mean for level in inputs.compute)
            assert slower - plain == pytest.approx(0.3 * computing)
    assert seen == [8, 16] * 2


@dataclass
class Ranks:
    """Sessions of some ranks, each on a thread, which talk through a barrier."""

    count: int

    def __post_init__(self):
        self.barrier = threading.Barrier(self.count, timeout=20)
        self.told = [None] * self.count

    def share(self, rank, numbers):
        self.told[rank] = list(numbers)
        self.barrier.wait()
        actual = list(self.told)
        self.barrier.wait()
        return actual


class FakeSession:
    def __init__(self, ranks, rank):
        self.ranks, self.rank, self.telemetry = ranks, rank, deque(maxlen=8)
        self.changes, self.tau = [], 4

    @property
    def settings(self):
        return {"tau": self.tau}

    def share(self, numbers):
        return self.ranks.share(self.rank, numbers)

    def change(self, *, tau):
        self.changes.append((self.telemetry[-1].step, tau))
        self.tau = tau


def test_all_ranks_change_between_the_same_two_steps():
    ranks, seen = Ranks(3), []

    def double(settings, record):
        seen.append(record)
        now = {"tau": 2 * settings["tau"]}
        return Decision(record.step, record.clock, settings, now, ("planned",))

    sessions = [FakeSession(ranks, rank) for rank in range(3)]

    def own_time(step):
        return math.nan if step == 1 else 0.1

    def train(session):
        controller = None if session.rank else Controller({"tau": 4}, double)
        steering = Steering(controller)
        since = 0
        for step in range(1, 120):
            since += 1
            met = since == session.tau
            since = 0 if met else since
            wait = (0.3 if session.rank else 0.2) if met else 0.0
            took = (wait,) if met else ()
            session.telemetry.append(
                StepRecord(step, own_time(step) + session.rank, wait, 4e3 * met, 1 / step, took)
            )
            steering.after(session)

    threads = [threading.Thread(target=train, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sessions[0].changes == sessions[1].changes == sessions[2].changes
    assert [tau for _, tau in sessions[0].changes] == [8, 16, 32, 64]
    assert seen[0].compute == pytest.approx((0.1, 1.1, 2.1))
    assert seen[0].average == pytest.approx(0.2)
    assert sessions[0].changes[0][0] == seen[0].step == EVERY
    assert (seen[0].step, seen[0].steps) == (16, 16)
    assert seen[0].loss == 1.0


def alone(policy, computing=lambda step: 0.1):
    """Train 60 steps by a policy, with a mean each 4; return what is said and the session."""
    session, messages = FakeSession(Ranks(1), 0), []
    steering = Steering(Controller({"tau": 4}, policy))
    for step in range(1, 61):
        moved = 4e3 * (step % 4 == 0)
        session.telemetry.append(StepRecord(step, computing(step), 0.0, moved, 1.0, ()))
        messages += steering.after(session)
    return messages, session


def test_training_goes_on_without_a_controller_that_fails():
    def fail(settings, record):
        raise EOFError("ended")

    messages, session = alone(fail)
    assert messages == ["adapt: the controller failed and is now off: EOFError('ended')"]
    assert not session.changes


def test_a_pause_of_the_loop_is_not_computing():
    """What the user does between two steps, such as to evaluate; a slow step is one."""
    seen = []
    slow = {20: 5.0, 40: 1.0}
    alone(lambda settings, record: seen.append(record), lambda step: slow.get(step, 0.1))
    slow_step = (15 * 0.1 + 1.0) / 16
    assert [record.compute[0] for record in seen] == pytest.approx([0.1, 0.1, slow_step])
    assert seen[-1].clock == pytest.approx(46 * 0.1 + 5.0 + 1.0)


def test_a_run_folder_makes_a_controller(tmp_path):
    algorithms = [{"name": "local-sgd", "tau": 16}, {"name": "ssgd"}]
    made = scenario(None, None, 100.0, algorithms=algorithms, steps=400, target_loss=0.3)
    simulate(made, seeds=2, out=tmp_path / "run")
    steers = controller(tmp_path / "run")
    messages = [
        news
        for record in rounds(20, average=1.5, loss=math.nan, steps=16)
        for news in steers.observe(record)
    ]
    (decision,) = steers.log
    assert messages == [decision.sentence]
    first = f"tau = 16 becomes tau = {steers.settings['tau']}: an average over the link takes"
    assert messages[0].startswith(first)
    with pytest.raises(InputError, match=r"4 workers, but there are 2 .* cluster.workers = 2"):
        controller(tmp_path / "run", workers=2)


def on_a_law(folder):
    """Simulate two programs on a published law, which needs no learning rate."""
    table = {
        "model": {"parameters": 10**9},
        "objective": {"kind": "learning-curve", "tokens": 65536,
                      "curve": {"law": "chinchilla", "parameters": 10**9}},
        "cluster": {"workers": 4, "compute": "1 s"},
        "network": {"latency": "50 ms", "bandwidth": "10 Gbit/s"},
        "run": {"steps": 2000, "evaluate_every": 500},
        "algorithm": [{"name": "diloco", "tau": 32, "label": "a"},
                      {"name": "diloco", "tau": 4, "label": "b"}],
    }  # fmt: skip
    simulate(parse(table), seeds=2, out=folder)
    return {"a": {"tau": 32}, "b": {"tau": 4}}


def test_a_label_has_its_own_settings_and_a_law_its_loss_at_every_step(tmp_path):
    for label, its in on_a_law(tmp_path / "run").items():
        steers = controller(tmp_path / "run", 4, label)
        assert steers.settings == its
        prediction = paceline.watch(tmp_path / "run", label=label).prediction
        (step, low, high), *_ = (row for row in prediction.losses if row[0] > 100)
        pick = find(tmp_path / "run", label)
        law = expected(pick.scenario, pick.algorithm)
        assert low < float(law.parallel(step) * law.ratio(step)) < high < 7.5
        assert 10.37 / 1.3 < prediction.losses[0][1] < 10.37
    assert steers.settings == steers.policy.outlook.candidates[0]
    steers.settings = {"tau": 5}
    assert not [news for record in rounds(9, (3.0,) * 4, 4.0) for news in steers.observe(record)]


def test_without_a_loss_the_curves_say_where_the_run_is():
    policy = model(600.0)
    logged = []
    settings = {"tau": 8}
    for record in rounds(12, average=0.08, loss=math.nan):
        logged.append(policy(settings, record))
    for record in rounds(12, average=1.2, loss=math.nan, start=12):
        if decision := policy(settings, record):
            settings = decision.now
            logged.append(decision)
    assert settings["tau"] > 8


def test_a_period_that_the_user_has_set_is_left_to_the_user():
    policy = model(600.0)
    assert [policy({"tau": 5}, record) for record in rounds(8, average=5.0)] == [None] * 8


def test_the_pick_of_tune_makes_a_controller(tmp_path):
    made = scenario(None, None, 100.0, steps=200, target_loss=0.3).table | {
        "tune": {"local-sgd": {"tau": [2, 8]}}
    }
    tune(parse({key: value for key, value in made.items() if key != "algorithm"}),
         seeds=2, out=tmp_path / "tuned")  # fmt: skip
    steers = controller(tmp_path / "tuned", workers=4)
    tried = steers.policy.outlook.candidates
    assert tried[0] == steers.settings
    assert {candidate["tau"] for candidate in tried} >= {1, 2, 4, 8}
    low, high = paceline.watch(tmp_path / "tuned").prediction.step_time[1:]
    assert 0.1 < low < high


LATE = {
    "dts": ({"period": 2, "delay": 4}, "delay"),
    "streaming-diloco": ({"tau": 32, "overlap": 2, "outer_lr": 1.0}, "overlap"),
}


@looped("name", LATE)
def test_late_averages_are_given_more_time_where_the_link_is_slower(name, tmp_path):
    """Bandwidth enough for every mean, and a latency of ten steps: the delay has to grow."""
    given, key = LATE[name]
    inner = {"inner": 0.0} if name == "streaming-diloco" else {}
    simulate(
        scenario(None, None, 1e4, algorithms=[{"name": name, **given, **inner}], steps=400),
        seeds=2, out=tmp_path / "run",
    )  # fmt: skip
    steers = controller(tmp_path / "run")
    usual = steers.policy.inputs.average
    for record in rounds(8, average=usual, loss=math.nan, steps=16):
        steers.observe(record)
    before, decided = steers.settings, len(steers.log)  # the pick may not be the best
    for record in rounds(12, average=1.0, loss=math.nan, steps=16, start=8):
        steers.observe(record)
    decision = steers.log[decided]
    assert before.keys() == steers.settings.keys()
    assert steers.settings[key] > before[key]
    assert "the link" in decision.reasons[0]
    assert 0 < decision.interval[0] <= decision.gain


# The level of a quantity


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
