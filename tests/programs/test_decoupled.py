"""decoupled-diloco: its syncer by hand, its learners by identities, timers in every engine."""

import numpy as np
import pytest

from paceline.simulator.programs import Program, catalogue, decoupled
from paceline.simulator.programs.effects import ANY
from paceline.simulator.programs.pieces.transform import Identity
from tests.engines.test_learning_curve import ran as learning
from tests.helpers.cases import looped
from tests.helpers.worlds import QUADRATIC, RING, TIME_ONLY, play, scenario, simulate

NOISY = {"kind": "quadratic", "dimension": 6, "shift": 1.0, "noise": 0.3}


class Syncer:
    """The syncer's node, with messages (time, sender, payload) that come at set times."""

    workers, server, start, apply_seconds = 3, 3, np.zeros(4), 0.25

    def __init__(self, *messages):
        self.messages, self.now = sorted(messages, key=lambda entry: entry[:2]), 0.0
        self.marks, self.sent, self.counted = [], [], []

    def cut(self, vector, pieces):
        return np.array_split(vector, pieces)[::-1]

    def join(self, pieces):
        return np.concatenate(pieces[::-1])

    def timer(self, seconds):
        return self.now + seconds

    async def wait(self, done):
        self.now = max(self.now, done)

    async def receive(self, source=ANY):
        if not self.messages:
            raise EOFError
        at, sender, payload = self.messages.pop(0)
        self.now = max(self.now, at)
        return sender, payload

    async def receive_before(self, done, source=ANY):
        if self.messages and self.messages[0][0] < done:
            return await self.receive()
        return None

    def count(self, gradients):
        self.counted.append(gradients)

    def work(self, seconds):
        self.now += seconds

    def mark(self, x):
        self.marks.append((self.now, x))

    def send(self, to, value):
        self.sent.append((self.now, to, value))


def synced(*messages, **parameters):
    me = Syncer(*messages)
    with pytest.raises(EOFError):
        decoupled.syncer(me, **parameters).send(None)
    return me


def test_a_merge_takes_a_quorum_and_who_comes_in_the_window_weighted_by_tokens():
    a, b, c = (np.array(values) for values in ([1.0, 2.0], [5.0, -2.0], [8.0, 0.0]))
    me = synced(
        (1.0, 0, (a, 1.0, 3.0, 3.0)), (2.0, 2, (c, 0.0, 7.0, 7.0)), (4.0, 1, (b, 1.0, 1.0, 4.0)),
        (4.5, 2, (c, 1.0, 2.0, 9.0)),
        fragments=2, quorum=2, grace=0.5, outer_lr=0.5, outer_momentum=0.9,
    )  # fmt: skip
    assert me.counted == [3, 7, 4, 9]
    mean = 2 / 3 * (3 * a + b) / 4  # two of three learners, with three steps and one
    ((at, x),) = me.marks  # worker 2 came at 4.5 s, when the window closed
    assert at == 4.5 + 0.25
    np.testing.assert_allclose(x, [*(-0.5 * 1.9 * mean), 0, 0], rtol=1e-12)
    assert [(at, to, f) for at, to, (_, f) in me.sent] == [(4.75, 0, 1.0), (4.75, 1, 1.0)]
    assert all(np.array_equal(part, x[:2]) for _, _, (part, _) in me.sent)


def test_what_misses_a_merge_is_in_the_next_and_all_together_do_not_wait():
    one = np.ones(4)
    me = synced(
        (1.0, 0, (one, 0.0, 2.0, 2.0)), (1.3, 1, (one, 0.0, 2.0, 2.0)),
        (3.0, 0, (one, 0.0, 2.0, 2.0)), (3.1, 2, (one, 0.0, 2.0, 4.0)),
        fragments=1, quorum=1, grace=9.0, outer_lr=1.0, outer_momentum=0.0,
    )  # fmt: skip
    times, models = zip(*me.marks, strict=True)
    assert times == (3.1 + 0.25,)  # worker 0's newer message replaces its older one
    np.testing.assert_allclose(models[0], -one)
    late = synced(
        (1.0, 0, (one, 0.0, 2.0, 2.0)), (1.5, 1, (one, 0.0, 2.0, 2.0)),
        fragments=1, quorum=1, grace=0.1, outer_lr=1.0, outer_momentum=0.0,
    )  # fmt: skip
    assert [time for time, _ in late.marks] == [1.1 + 0.25, 1.6 + 0.25]
    np.testing.assert_allclose(late.marks[1][1], -2 / 3 * one)


class Learner(Syncer):
    """A learner's node: steps of 1 s with gradients of zero; what it trained at, step by step."""

    def __init__(self, *messages):
        super().__init__(*messages)
        self.trained_at = []

    async def gradient(self, x):
        self.trained_at.append(x)
        if len(self.trained_at) > 9:
            raise EOFError
        self.now += 1.0
        return 0.0 * x

    async def receive_before(self, done, source=ANY):
        return await self.receive() if self.messages and self.messages[0][0] <= done else None


def test_a_learner_takes_in_the_fragment_that_is_due_whichever_comes_first():
    """Fragment 0, the last entries, goes at step 2, 1 at step 4, to be taken in 3 steps later.

    The merge of 1 is there first, at 4.1 s, but due at step 7; that of 0 is due at 5, there at 5.5.
    """
    one = np.ones(2)
    me = Learner((4.1, 3, (one, 1.0)), (5.5, 3, (2 * one, 0.0)))
    with pytest.raises(EOFError):
        decoupled.learner(
            me, lr=lambda k: 0.1, inner=Identity(), tau=4, fragments=2, overlap=3, alpha=0.0
        ).send(None)
    seen = [tuple(x[::2]) for x in me.trained_at]
    assert seen == [(0, 0)] * 6 + [(0, 2)] + [(1, 2)] * 3


def test_a_quorum_of_all_at_equal_speeds_is_streaming_diloco():
    """Where workers keep nothing of their own, their parameters are then the syncer's."""
    tau, steps = 5, 40
    common = {"tau": tau, "fragments": 1, "overlap": 1, "alpha": 0.0, "lr": 0.02}
    world = scenario(
        {"name": "streaming-diloco", **common},
        {"name": "decoupled-diloco", **common, "quorum": 4, "grace": "1 s"},
        steps=steps, objective=NOISY, run={"evaluate_every": 1},
    )  # fmt: skip
    streaming, ours = play(world, 0).marks[0], play(world, 1).marks[-1]
    assert len(ours) == steps // tau
    for number, z in enumerate(ours[:-1], 1):
        np.testing.assert_allclose(z, streaming[number * tau], rtol=1e-12, atol=1e-14)


@looped(("seconds", "taken"), [(0.5, 1), (1.0, 1), (1.5, 2), (7.5, 8)])
def test_a_timer_runs_out_at_its_time(seconds, taken):
    """Worker 0 sends every second; what comes exactly when the timer runs out is too late."""

    async def worker(me, *, lr: float):
        for _ in range(12):
            await me.gradient(me.start)
            me.send(me.server, 1.0)
        await me.receive()

    async def server(me, *, lr: float):
        await me.receive()
        window, count = me.timer(seconds), 1
        while await me.receive_before(window) is not None:
            count += 1
        await me.wait(window)
        taken_in.append((count, me.clock()))
        while True:
            me.mark(me.start)
            await me.receive()

    taken_in = []
    programs = {**catalogue(), "timed": Program("timed", worker, "none", server=server)}
    world = scenario({"name": "timed"}, workers=1, steps=12, objective=QUADRATIC, programs=programs)
    play(world)
    assert taken_in == [(taken, 1 + seconds)]


def test_learners_never_wait_and_a_slow_one_keeps_none():
    group = {"name": "slow", "workers": 1, "compute": "3 s"}
    tables = {
        "objective": TIME_ONLY, "workers": 4, "steps": 300, "network": RING,
        "cluster": {"workers": 4, "compute": "1 s", "group": [group]},
    }  # fmt: skip
    ours = {"name": "decoupled-diloco", "tau": 10}
    for more in ({}, {"quorum": 2, "grace": "2 s"}, {"quorum": 4}):
        run = simulate(scenario({**ours, **more}, **tables))
        assert run.seconds["wait"] == run.seconds["communicate"] == 0
        assert run.duration == pytest.approx(300 * 4 / (3 + 1 / 3), rel=0.05)
    waits = simulate(scenario({"name": "diloco", "tau": 10}, **tables))
    assert waits.duration >= 900


def test_merges_of_single_learners_are_stable():
    """Of late models, in which a learner has kept half of its own: 544,252 once, where it sent
    what it had kept again, and after 6,000 steps of eight learners 3e74.
    """
    run, _ = learning({"name": "decoupled-diloco", "tau": 24, "lr": 0.01}, steps=3000)
    losses = np.array(run.curve["loss"])
    assert losses.max() <= 1.01 * losses[0]
    assert losses[-1] == losses.min()


def test_a_curve_has_a_basis_and_falls():
    """The mechanism: 1 % of loss for twenty steps apart, and a wider interval for late models."""
    case = {"name": "decoupled-diloco", "tau": 20, "quorum": 2, "grace": "2 s", "lr": 0.01}
    run, errors = learning(case, steps=1000)
    assert errors.basis == "mechanism"
    assert "decoupled-diloco by the mechanism" in errors.sentence
    losses = run.curve["loss"]
    assert np.isfinite(losses).all()
    assert 1 <= losses[-1] / float(errors.parallel(run.steps)) < 1.1 < losses[0] / losses[-1]
