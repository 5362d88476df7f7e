"""Crashes: exact accounts of small cases, and properties of every program at any crash time."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engines import simulation as simulations
from simulator.engines import virtual
from simulator.failures import Calendar, calendars
from simulator.programs import catalogue
from simulator.trace import Run
from tests.programs import ROWS, called, cases
from tests.worlds import QUADRATIC, RING, TIME_ONLY, scenario, simulate

CRASH = {"worker": 1, "at": "2.5 s", "lasts": "10 s"}


def run(
    case: dict[str, Any], *crashes: dict[str, Any], recovery: Any = (), seed: int = 0, **world: Any
) -> Run:
    tables = {"cluster": {"crash": list(crashes)}, "recovery": dict(recovery)}
    return simulate(scenario(case, **{"steps": 5} | world, **tables), seed=seed)


def times(result: Run) -> list[float]:
    return [round(time, 9) for time in result.curve["time"]]


def test_who_waits_for_a_crashed_worker_and_what_it_does_again() -> None:
    """Steps of 1 s: worker 1 crashes half a second into its third one, and is back at 12.5 s."""
    result = run({"name": "ssgd"}, CRASH)
    assert times(result) == [0, 1, 2, 13.5, 14.5, 15.5]
    assert result.failures is not None
    assert result.failures["crashes"] == 1
    assert result.failures["lost_seconds"] == pytest.approx(0.5)
    assert result.failures["down_seconds"] == pytest.approx(10)
    assert result.failures["recovery_seconds"] == pytest.approx(10.5)
    assert result.failures["goodput"] == pytest.approx(1 - 10.5 / (4 * 15.5))
    assert sum(result.seconds.values()) == pytest.approx(15.5)


def test_a_local_phase_is_lost_as_a_whole() -> None:
    """Nobody else has what it did since the last average: two steps and a half."""
    result = run({"name": "local-sgd", "tau": 5}, CRASH)
    assert times(result)[-1] == 12.5 + 5
    assert result.failures is not None
    assert result.failures["lost_seconds"] == pytest.approx(2.5)


def test_others_go_on_without_it_and_it_comes_back() -> None:
    """Noticed after 1 s; back at 12.5 s, it joins the mean that begins next."""
    recovery = {"policy": "shrink", "timeout": "1 s"}
    result = run({"name": "ssgd"}, CRASH, recovery=recovery, steps=14)
    assert times(result) == [0, 1, 2, 3.5, *(3.5 + n for n in range(1, 12))]
    assert result.failures is not None
    assert result.failures["dropped"] == 10  # means that end at 3.5, 4.5, ... 12.5
    assert result.failures["recovery_seconds"] == pytest.approx(10)
    assert result.failures["lost_seconds"] == pytest.approx(0.5)
    assert result.seconds["down"] == pytest.approx(10 / 4)


def test_a_mean_under_way_begins_again_without_who_crashed() -> None:
    """A ring of 4 has 6 hops of 20 ms, and 1.5 payloads of 32 ms; one of 3 has 4 and 4/3."""
    whole, less = 1 + 6 * 0.02 + 1.5 * 0.032, 4 * 0.02 + 4 / 3 * 0.032
    crash = {"worker": 3, "at": "1.1 s", "lasts": "1 h"}
    waits = run({"name": "ssgd"}, crash, network=RING, steps=1)
    assert times(waits) == [0, pytest.approx(3601.1 + whole - 1)]
    shrinks = run({"name": "ssgd"}, crash, network=RING, steps=1, recovery={"policy": "shrink"})
    assert times(shrinks) == [0, pytest.approx(1.1 + less)]
    assert shrinks.curve["bytes"][-1] == pytest.approx(4000 * (4 * 1.5 + 3 * 4 / 3))


def test_all_go_back_to_a_checkpoint() -> None:
    """Checkpoints of 0.25 s after steps 2 and 4; a crash at 4.0 s costs what followed the first."""
    recovery = {
        "policy": "restart", "timeout": "1 s", "reload": "2 s",
        "checkpoint": {"every": 2, "cost": "250 ms"},
    }  # fmt: skip
    crash = {"worker": 0, "at": "4 s", "lasts": "10 s"}
    result = run({"name": "ssgd"}, crash, recovery=recovery, steps=6)
    again = 4 - 2.25  # since the checkpoint
    stood = 10 + 2 + again
    plain = [0, 1, 2, 3.25, 4.25, 5.5, 6.5]
    assert times(result) == [time + (stood if time > 4 else 0) for time in plain]
    assert result.failures is not None
    assert result.failures["recovery_seconds"] == pytest.approx(stood)
    assert result.failures["lost_seconds"] == pytest.approx(4 * again)
    assert result.seconds["down"] == pytest.approx(12 + 0.5)
    assert sum(result.seconds.values()) == pytest.approx(times(result)[-1])


def test_a_crash_while_all_is_done_again_begins_that_anew() -> None:
    recovery = {"policy": "restart", "checkpoint": {"every": 2}}
    first = {"worker": 0, "at": "3.5 s", "lasts": "1 s"}
    second = {"worker": 2, "at": "5 s", "lasts": "1 s"}  # half a second into the second attempt
    result = run({"name": "ssgd"}, first, second, recovery=recovery, steps=4)
    assert times(result) == [0, 1, 2, 3, pytest.approx(6 + 1.5 + 0.5)]


def test_backup_workers_are_not_waited_for() -> None:
    """The slowest of four is left out: the mean begins with the third, and nobody is late for it."""
    slow = {"cluster": {"group": [{"name": "slow", "workers": 1, "compute": "1 h"}]}}
    table = {"steps": 3, "network": RING, **slow}
    result = simulate(scenario({"name": "ssgd"}, recovery={"backup": 1}, **table))
    step = 1 + 4 * 0.02 + 4 / 3 * 0.032
    assert times(result) == [0, *(pytest.approx(n * step) for n in (1, 2, 3))]
    assert result.failures is not None
    assert result.failures["dropped"] == 3
    assert result.seconds["lost"] == pytest.approx(3 * step / 4)  # until it heard of the result


def test_backup_workers_are_order_statistics() -> None:
    """Two of eight left out: a step takes the 6th of 8 exponential times, 1/8 + ... + 1/3."""
    world = scenario(
        {"name": "ssgd"}, workers=8, compute={"dist": "exponential", "mean": "1 s"},
        steps=4000, recovery={"backup": 2},
    )  # fmt: skip
    expected = sum(1 / n for n in range(3, 9))
    result = simulate(world)
    assert result.duration / 4000 == pytest.approx(expected, rel=0.03)


def test_a_worker_that_never_comes_back_stops_those_who_wait_and_says_so() -> None:
    gone = {"worker": 2, "at": "2.5 s"}
    result = run({"name": "ssgd"}, gone)
    assert times(result) == [0, 1, 2]
    assert result.failures is not None
    stall = result.failures["stall"]
    assert "workers [0, 1, 3] wait in mean 2 for workers [2]" in stall
    assert "worker 2 is down for good since 2.5 s" in stall
    assert any(stall in note for note in result.notes)
    shrunk = run({"name": "ssgd"}, gone, recovery={"policy": "shrink"})
    assert shrunk.steps == 5
    assert shrunk.failures is not None
    assert shrunk.failures["stall"] is None


def test_a_server_that_crashes_answers_when_it_is_back() -> None:
    crash = {"worker": "server", "at": "1.5 s", "lasts": "10 s"}
    result = run({"name": "asgd"}, crash, workers=1, steps=3)
    assert times(result) == [0, 1, 11.5, 12.5]
    result = run({"name": "asgd"}, {"worker": "server", "at": "1.5 s"}, workers=2, steps=3)
    assert result.failures is not None
    assert "worker 0 waits for the server" in result.failures["stall"]


def test_random_crashes_have_the_availability_that_they_should() -> None:
    """Down for repair / (between + repair) of the time, whoever asks in which order."""
    world = scenario(
        {"name": "psgd"}, cluster={"failures": {"between": "90 s", "repair": "10 s"}}, steps=10
    )
    end = 2e5
    shares = []
    for calendar in calendars(world, 3)[:4]:
        down = sum(b - a for a, b in calendar.during(0.0, end))
        shares.append(down / end)
    assert np.mean(shares) == pytest.approx(0.1, rel=0.05)
    first, again = calendars(world, 3)[0], calendars(world, 3)[0]
    again.next(1e5)
    assert first.next(500.0) == again.next(500.0)


def test_a_calendar_joins_crashes_that_overlap() -> None:
    calendar = Calendar(iter([(1.0, 3.0), (2.0, 5.0), (7.0, 8.0)]))
    assert calendar.next(0.0) == calendar.next(4.9) == (1.0, 5.0)
    assert calendar.next(5.0) == (7.0, 8.0)
    assert calendar.during(4.0, 7.5) == [(4.0, 5.0), (7.0, 7.5)]


class OneHot:
    """Gradients that can be told apart: the k-th of worker w is 1 at a place of its own."""

    def __init__(self, rank: int, dimension: int) -> None:
        self._next, self._dimension = rank * STEPS, dimension

    def gradient(self, x: Any) -> Any:
        g = np.zeros(self._dimension)
        g[self._next] = 1.0
        self._next += 1
        return g

    def loss_and_gradient(self, x: Any) -> tuple[float, Any]:
        return 1.0, self.gradient(x)


STEPS = 64
WORKERS = 3
seconds = st.floats(0.05, 9.0)


@st.composite
def crash_lists(draw: st.DrawFn) -> list[dict[str, Any]]:
    return [
        {
            "worker": draw(st.integers(0, WORKERS - 1)),
            "at": f"{draw(seconds)} s",
            "lasts": f"{draw(seconds)} s",
        }
        for _ in range(draw(st.integers(1, 3)))
    ]


@pytest.mark.parametrize("case", cases(), ids=called)
@settings(max_examples=12, deadline=None)
@given(
    crashes=crash_lists(),
    policy=st.sampled_from(["wait", "shrink", "restart"]),
    networked=st.booleans(),
    served=st.booleans(),
    seed=st.integers(0, 3),
)
def test_every_program_survives(
    case: dict[str, Any], crashes: list[dict[str, Any]], policy: str, networked: bool,
    served: bool, seed: int,
) -> None:  # fmt: skip
    """It comes to its last step, accounts for all time, and loses no more than it should."""
    program = catalogue()[case["name"]]
    row = next(row for row in ROWS if row.name == case["name"])
    if policy not in program.recovers:
        policy = "wait"
    if served and program.server:
        crashes = [*crashes[1:], crashes[0] | {"worker": "server"}]
    recovery: dict[str, Any] = {"policy": policy, "reload": "300 ms"}
    if policy == "restart":
        recovery |= {"checkpoint": {"every": 3, "cost": "100 ms" if row.timeless else "0 s"}}
    network = RING if networked else {"collective": "star", "latency": "0 s"}
    table = {"workers": WORKERS, "steps": 9, "objective": QUADRATIC, "network": network}
    table["compute"] = {"dist": "exponential", "mean": "1 s"}
    result = simulate(
        scenario(case, **table, cluster={"crash": crashes}, recovery=recovery), seed=seed
    )
    assert result.steps >= 9
    assert result.failures is not None
    assert result.failures["stall"] is None
    assert (np.diff(result.curve["time"]) >= 0).all()
    assert min(result.seconds.values()) >= -1e-9, result.seconds
    assert sum(result.seconds.values()) <= result.duration * (1 + 1e-9)
    if policy == "restart" or (policy == "wait" and row.timeless):
        plain = simulate(scenario(case, **table), seed=seed)
        assert result.curve["loss"] == plain.curve["loss"]  # the same numbers, only later
        assert result.duration >= plain.duration - 1e-9


PLAIN_SUMS = (
    "ssgd",
    "ssgd-bucketed",
    "asgd",
    "ssp",
    "k-sync",
    "k-async",
    "k-batch-async",
    "hybrid",
)


@pytest.mark.parametrize("name", PLAIN_SUMS)
@settings(max_examples=20, deadline=None)
@given(crashes=crash_lists(), shrinks=st.booleans(), backup=st.booleans())
def test_no_gradient_is_applied_twice(
    name: str, crashes: list[dict[str, Any]], shrinks: bool, backup: bool
) -> None:
    """With learning rate 1 and sums, each gradient's own coordinate is 0 or what one step makes."""
    program = catalogue()[name]
    case: dict[str, Any] = {"name": name}
    case |= {"staleness": 1} if name == "ssp" else {"k": 1} if name.startswith("k-") else {}
    case |= {"step_size": 4} if name == "hybrid" else {}
    shrinks = shrinks and "shrink" in program.recovers
    recovery: dict[str, Any] = {"policy": "shrink" if shrinks else "wait"}
    if shrinks and backup:
        recovery["backup"] = 1
    dimension = WORKERS * STEPS
    world = scenario(
        case, workers=WORKERS, steps=8, lr=1.0, recovery=recovery, network=RING,
        objective={"kind": "quadratic", "dimension": dimension},
        compute={"dist": "exponential", "mean": "1 s"}, cluster={"crash": crashes},
    )  # fmt: skip
    made = virtual.kind(world)(program, world.algorithm[0], world, 0)
    for node in made.nodes[:WORKERS]:
        hot = OneHot(node.rank, dimension)
        node._gradient, node._loss_and_gradient = hot.gradient, hot.loss_and_gradient
    made.run()
    last = made.nodes[WORKERS if program.server else 0].x
    if last is None:  # it is down at the end
        last = next(node.x for node in made.nodes if node.x is not None)
    used = Counter(np.round(made.objective.start - last, 9).tolist())
    allowed = {1.0} if program.server else {round(1 / n, 9) for n in range(1, WORKERS + 1)}
    assert set(used) <= {0.0, *allowed}
    assert isinstance(made, simulations.Simulation)


def test_time_only_runs_take_as_long() -> None:
    for case in cases():
        if case["name"] in ("adacomm",) or catalogue()[case["name"]].pooled:
            continue
        durations = [
            simulate(
                scenario(
                    case, objective=kind, cluster={"crash": [CRASH]}, network=RING, steps=6,
                    model={"parameters": 6},
                )
            ).duration
            for kind in (TIME_ONLY, QUADRATIC)
        ]  # fmt: skip
        assert durations[0] == pytest.approx(durations[1], rel=1e-4), called(case)
