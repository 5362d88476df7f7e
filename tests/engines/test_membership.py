"""Workers that come and go, quorums, and recovery by algorithm: closed forms and conservation."""

import tomllib
from math import comb, exp, inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.simulator.cluster.membership import Members
from paceline.simulator.cluster.prices import least_per_second
from paceline.simulator.load.load import parse
from paceline.simulator.network.mean_cost import download_cost
from paceline.simulator.results import consumption, statistics, store
from paceline.simulator.studies.tune.objective import Score, tuning_objective
from paceline.simulator.studies.tune.tune import tune
from tests.helpers.cases import beside, looped
from tests.helpers.programs import varied
from tests.helpers.worlds import FREE, QUADRATIC, RING, TIME_ONLY, scenario, simulate


def one_that_leaves(spec, case, **world):
    """Run four workers with steps of 1 s, of which the last comes and goes."""
    groups = [
        {"name": "there", "workers": 3},
        {"name": "away", "workers": 1, "membership": spec},
    ]
    return simulate(scenario(case, **{"steps": 12} | world, cluster={"group": groups}))


def test_a_mean_is_of_those_who_are_there_and_no_one_waits():
    """It leaves at 2.5 s, half a step lost, and is back at 6.5 s for the step from 7 s on."""
    spec = {"present": "2.5 s", "absent": "4 s"}
    result = one_that_leaves(spec, {"name": "ssgd"}, steps=8)
    assert result.duration == 8
    assert result.workers["absent"] == [0, 0, 0, 4]
    assert result.workers["lost"] == [0, 0, 0, 0.5]
    assert result.workers["wait"] == [0, 0, 0, 0.5]
    assert result.failures["absences"] == 1
    assert result.failures["crashes"] == 0
    assert result.failures["dropped"] == 5


@looped(("notice", "lost", "absent"), [("0 s", 1.5, 4), ("3 s", 0, 5.5)])
def test_notice_lets_a_worker_share_its_work_and_leave(notice, lost, absent):
    """Means at 3, 6, ... s, an absence from 7.5 s: with notice from 4.5 s it leaves at 6 s."""
    spec = {"present": "7.5 s", "absent": "4 s", "notice": notice}
    result = one_that_leaves(spec, {"name": "local-sgd", "tau": 3})
    assert result.workers["lost"][3] == lost
    assert result.workers["absent"][3] == absent


def test_notice_that_does_not_suffice_is_a_crash():
    """Notice at 7 s, in a phase that ends at 9 s: gone at 7.5 s."""
    spec = {"present": "7.5 s", "absent": "4 s", "notice": "500 ms"}
    result = one_that_leaves(spec, {"name": "local-sgd", "tau": 3})
    assert result.workers["lost"][3] == 1.5


def test_who_joins_pays_for_the_model_and_for_starting():
    """4000 bytes at 1 Mbit/s take 32 ms, and 20 ms of latency; reload and warm-up come before."""
    spec = {"present": "2.5 s", "absent": "4 s"}
    costs = {"recovery": {"reload": "500 ms"}, "network": RING}
    result = one_that_leaves(spec, {"name": "local-sgd", "tau": 100}, steps=8, **costs)
    assert result.workers["down"][3] == pytest.approx(0.5)
    assert result.workers["communicate"][3] == pytest.approx(0.052)


@looped("model", ["closed-form", "flows"])
@looped(
    ("present", "absent", "end", "bytes_"),
    [("2.5 s", "4 s", 6.0, 0), ("2.5 s", "4 s", 13.0, 4000), ("2.5 s", "4 s", 14.0, 8000),
     ("8 ms", "4 s", 5.0, 1000)],
)  # fmt: skip
def test_the_bytes_of_joining_are_counted_and_charged(present, absent, end, bytes_, model):
    """Back at 6.5 s and at 13 s; the model takes 32 ms. There for 8 ms, it gets a quarter."""
    spec = {"present": present, "absent": absent}
    groups = [{"name": "there", "workers": 3, "region": "a"},
              {"name": "away", "workers": 1, "region": "b", "membership": spec}]  # fmt: skip
    table: dict[str, Any] = {
        "steps": None, "run": {"duration": f"{end} s"}, "network": RING | {"model": model},
        "cluster": {"group": groups}, "cost": {"egress_per_gb": 5.0},
    }  # fmt: skip
    world = scenario({"name": "local-sgd", "tau": 1000}, **table)
    run = simulate(world)
    assert run.links.get("a->b", 0) == run.curve["bytes"][-1] == bytes_
    assert consumption.used(world, run, end)["egress_bytes"] == pytest.approx(bytes_)
    served = simulate(scenario({"name": "asgd"}, **table, server={"region": "a"}))
    gradients = served.links.get("b->a", 0)  # each is answered, the last one maybe after the end
    assert served.links["a->b"] - gradients in {bytes_, bytes_ - 4000}


def test_who_leaves_again_cancels_its_download():
    """There for 1 s: 0.9 s suffice to join, 1.1 s do not."""

    def absences(transfer, present="1 s", absent="1 s"):
        membership = {"membership": {"present": present, "absent": absent}}
        world = scenario({"name": "ssgd"}, workers=2, cluster=membership)
        return Members(world, 0, lambda rank: transfer)

    joins = absences((0.8, 0.1))
    assert np.allclose(joins.calendars[0].during(0.0, 6.0), [(1, 2.9), (3, 4.9), (5, 6)])
    assert [*joins.sent(4.8)] == [(0, 1.0), (0, 1.0), (1, 1.0), (1, 1.0)]
    never = absences((1.1, 0.1))
    assert never.calendars[1].during(0.0, 6.0) == [(1, 6)]
    assert [share for _, share in never.sent(3.0)] == pytest.approx([1 / 1.1, 1 / 1.1])
    late = absences((2.0, 0.5), "5 s", "2 s")
    assert [a.joined for a, _ in zip(late.of(0), range(2), strict=False)] == [9.5, 16.5]


@looped(
    "daily",
    ["00:00-24:00", "9:00-9:00", ["06:00-18:00", "18:00-06:00"], ["3:00-24:00", "0:00-9:00"]],
)
def test_a_calendar_of_the_whole_day_has_no_absence(daily):
    (calendar, *_) = Members(elastic({"daily": daily}), 0, lambda rank: (1.0, 0.0)).calendars
    assert calendar.during(0.0, 1e6) == []


@looped("collective", ["ring", "server"])
def test_joining_and_being_selected_again_cost_the_same(collective):
    """Through the server's card of 0.5 Mbit/s, 64 ms and 20 of latency; without server 52 ms."""
    network = RING | {"collective": collective}
    world = {"network": network, "server": {"bandwidth": "0.5 Mbit/s"}}
    spec, case = {"present": "2.5 s", "absent": "4 s"}, {"name": "local-sgd", "tau": 100}
    result = one_that_leaves(spec, case, steps=8, **world)
    cost = download_cost(scenario({"name": "ssgd"}, **world), False)
    assert sum(cost(3)) == pytest.approx(0.084 if collective == "server" else 0.052)
    assert result.workers["communicate"][3] == pytest.approx(sum(cost(3)))


def test_a_server_gets_nothing_from_the_absent_and_gives_them_its_parameters():
    spec = {"present": "2.5 s", "absent": "4 s", "notice": "0 s"}
    result = one_that_leaves(spec, {"name": "asgd"}, objective=QUADRATIC)
    assert result.workers["absent"][3] == pytest.approx(8.0)  # from 2.5 s and from 9 s on
    assert max(result.staleness) == 3  # updates in a step of its own, not in the 4 s before
    assert sum(result.seconds.values()) == pytest.approx(result.duration)


def realised(world, seed, end, workers):
    """Return how many workers are up at 400,000 times, by their calendars."""
    from paceline.simulator.cluster.failures import calendars

    up = np.full(400_000, workers)
    grid = (np.arange(400_000) + 0.5) * end / 400_000
    for calendar in calendars(world, seed)[:workers]:
        for start, back in calendar.during(0.0, end):
            up[np.searchsorted(grid, start) : np.searchsorted(grid, back)] -= 1
    return up


@pytest.mark.long
@pytest.mark.parametrize(
    ("workers", "share", "least"),
    [
        (6, 0.8, 4),
        pytest.param(10, 0.95, 7, marks=pytest.mark.slow),
        pytest.param(4, 0.9, 3, marks=pytest.mark.slow),
    ],
)
def test_goodput_of_alternating_renewal_is_the_closed_form(workers, share, least):
    """All workers are up (A^m), or each of them (A), or each while so many are up.

    Calendars of 100,000 cycles follow the binomial law within 1 %, and the run its own calendars.
    """

    def world(policy):
        recovery = {"policy": policy} | ({"quorum": least} if policy == "quorum" else {})
        failures = {"between": f"{1000 * share} s", "repair": f"{1000 * (1 - share)} s"}
        return scenario(
            {"name": "ssgd", "recovery": recovery}, workers=workers, compute="1 s", steps=None,
            run={"duration": "100000 s", "evaluate_every": 5000}, cluster={"failures": failures},
        )  # fmt: skip

    law = [comb(workers, n) * share**n * (1 - share) ** (workers - n) for n in range(workers + 1)]
    long, short = (realised(world("wait"), 0, end, workers) for end in (1e8, 1e5))
    for policy, enough in ("wait", workers), ("shrink", 1), ("quorum", least):
        theory = sum(n * p for n, p in enumerate(law) if n >= enough) / workers
        seen, table = (float(np.mean(up * (up >= enough))) / workers for up in (long, short))
        assert seen == pytest.approx(theory, rel=0.01)
        assert statistics.goodput(simulate(world(policy))) == pytest.approx(table, rel=0.005)


LAWS = [
    ("3 s", "1 s"),
    ({"dist": "uniform", "low": "1 s", "high": "5 s"}, "1 s"),
    ({"dist": "lognormal", "mean": "3 s", "sd": "3 s"}, {"dist": "exponential", "mean": "1 s"}),
]


@looped("laws", LAWS)
def test_a_stationary_start_has_the_same_availability_at_all_times(laws):
    """Of 1600 workers 3 / (3 + 1) are there: sd 1.1 %."""
    spec = {"present": laws[0], "absent": laws[1], "start": "stationary"}
    world = scenario({"name": "ssgd"}, workers=1600, cluster={"membership": spec})
    members = Members(world, 0, lambda rank: (0.0, 0.0))
    for time in (1e-9, 0.3, 0.99, 2.0, 3.7, 11.1):
        there = [not members.absent(rank, time) for rank in range(1600)]
        assert np.mean(there) == pytest.approx(0.75, abs=0.044), time


@pytest.mark.long
@looped(("policy", "least"), [("shrink", 1), ("quorum", 4)])
def test_goodput_of_a_stationary_start_is_the_closed_form_from_the_first_second(policy, least):
    """In 40 s of cycles of 1000 s; all there at first would give nearly 1."""
    spec = {"present": "800 s", "absent": "200 s", "start": "stationary"}
    table = {"name": "ssgd", "recovery": {"policy": policy} | ({"quorum": 4} if least > 1 else {})}
    world = scenario(table, workers=6, compute="1 s", steps=None, run={"duration": "40 s"},
                     cluster={"membership": spec})  # fmt: skip
    actual = [statistics.goodput(simulate(world, seed=seed)) for seed in range(400)]
    law = [comb(6, n) * 0.8**n * 0.2 ** (6 - n) for n in range(7)]
    theory = sum(n * p for n, p in enumerate(law) if n >= least) / 6
    assert np.mean(actual) == pytest.approx(theory, abs=3 * np.std(actual) / 20)


def test_a_quorum_goes_on_after_its_grace():
    """Steps of 1, 1, 1.2 and 3 s: two have come at 1 s, a third within 300 ms, the fourth not."""
    groups = [{"name": "b", "workers": 1, "compute": "1.2 s"},
              {"name": "c", "workers": 1, "compute": "3 s"}]  # fmt: skip

    def runs(**recovery):
        case = {"name": "ssgd", "recovery": {"policy": "quorum", **recovery}}
        return simulate(scenario(case, steps=10, cluster={"group": groups}))

    assert runs(quorum=2).duration == pytest.approx(10)
    assert runs(quorum=0.75).duration == pytest.approx(12)
    assert runs(quorum=2, grace="300 ms").duration == pytest.approx(13)
    assert runs(quorum=2, grace="10 s").duration == pytest.approx(30)
    late = simulate(
        scenario(
            {"name": "local-sgd", "tau": 5, "recovery": {"policy": "quorum", "quorum": 3}},
            steps=20, cluster={"group": groups[1:]},
        )
    )  # fmt: skip
    assert late.duration == pytest.approx(20)
    assert late.workers["lost"][0] == pytest.approx(late.duration)  # it never ends a phase in time
    assert sum(late.seconds.values()) == pytest.approx(20)


@looped("network", [FREE, RING, RING | {"model": "flows"}])
@looped("recovery", [{"policy": "quorum", "quorum": 2}, {"policy": "backup"}])
def test_a_crash_after_a_mean_began_without_the_slowest_changes_nothing(recovery, network):
    """The mean of the two others begins at 1 s; the slowest would come after that crash."""
    slow = {"name": "slow", "workers": 1, "compute": "10 s"}
    crash = {"worker": 1, "at": "3.8 s", "lasts": "50 s"}
    world = scenario(
        {"name": "ssgd", "recovery": recovery}, workers=3, steps=3,
        network=network, cluster={"group": [slow], "crash": [crash]},
    )  # fmt: skip
    assert simulate(world).duration == pytest.approx(3, abs=0.6)


def test_algorithms_recover_by_their_own_policies():
    crash = {"worker": 1, "at": "2.5 s", "lasts": "10 s"}
    world = scenario(
        {"name": "local-sgd", "tau": 2, "recovery": "shrink"},
        {"name": "ssgd", "recovery": {"policy": "restart", "checkpoint": {"every": 2}}},
        {"name": "ssgd", "label": "general"},
        {"name": "asgd", "recovery": "shrink"},
        cluster={"crash": [crash]}, steps=6,
    )  # fmt: skip
    ends = [simulate(world, index).duration for index in range(4)]
    assert ends[:3] == pytest.approx([6, 6 + 10 + 0.5, 6 + 10 + 0.5])
    assert "no means over all workers" in world.algorithm[3].notes[0]


CRASH = {"crash": [{"worker": 1, "at": "2 s", "lasts": "1 s"}]}


@looped("case", tomllib.loads(beside(__file__, "without_effect.toml"))["case"])
def test_a_setting_without_effect_is_a_note(case):
    """Those without a note change the run, those with one do not."""
    plain: dict[str, Any] = {"name": "local-sgd", "tau": 2}
    tables = {"compute": {"dist": "exponential", "mean": "1 s"}, "cluster": case["cluster"]}
    mine = plain | ({"recovery": case["own"]} if "own" in case else {})
    world = scenario(mine, recovery=case["general"], **tables)
    assert [*world.algorithm[0].notes] == case["notes"]
    changed = simulate(world).curve["time"] != simulate(scenario(plain, **tables)).curve["time"]
    assert changed == (not case["notes"])


def test_an_algorithm_that_does_not_restart_ignores_checkpoints():
    saved = {"policy": "restart", "checkpoint": {"every": 2, "cost": "1 s"}}
    case = {"name": "ssgd", "recovery": "shrink"}
    result = simulate(scenario(case, cluster=CRASH, recovery=saved, steps=6))
    assert result.duration == simulate(scenario(case, cluster=CRASH, steps=6)).duration == 6


def elastic(spec, folder=None, **tables):
    """Parse a world of four workers with this membership."""
    table = {
        "model": {"parameters": 1000}, "objective": TIME_ONLY, "optimizer": {"lr": 0.1},
        "cluster": {"workers": 4, "compute": "1 s", "membership": spec},
        "network": FREE, "run": {"steps": 20}, "algorithm": [{"name": "ssgd"}], **tables,
    }  # fmt: skip
    return parse(table, **({"folder": folder} if folder else {}))


def test_crashes_of_a_worker_that_is_gone_for_good_are_not_looked_for(tmp_path):
    """Down until 5 s; down at 7 s; from 10 s on no crash can find it."""
    (tmp_path / "trace.csv").write_text("worker,start,end\n0, 5 s, 10 s\n")
    members = Members(elastic("trace.csv", folder=tmp_path), 0, None)
    crashes = iter([(at, at + 0.5) for at in (1.0, 7.0, 11.0, 12.0)])
    assert [*members.down(0, crashes)] == [(0.0, 5.0), (7.0, 7.5), (10.0, inf)]
    assert next(crashes) == (12.0, 12.5)


def test_a_trace_and_a_calendar_say_who_is_there(tmp_path):
    """Worker 3 is there from 5 s to 10 s, worker 2 from 2 s on; others always."""
    (tmp_path / "trace.csv").write_text("worker,start,end\n3, 5, 10 s\n2, 2 s,\n")
    result = simulate(elastic("trace.csv", folder=tmp_path))
    assert result.workers["absent"] == [0, 0, 2, 15]
    (tmp_path / "trace.csv").write_text("3, 7, 10 s\n3, 5, 7\n2, 2 s,\n")  # rows may touch
    assert simulate(elastic("trace.csv", folder=tmp_path)).workers == result.workers
    world = elastic({"daily": ["22:00-06:00", "12:00-13:00"]})
    (calendar, *_) = Members(world, 0, lambda rank: (0.0, 0.0)).calendars
    hours = [(a / 3600, b / 3600) for a, b in calendar.during(0.0, 86_400.0)]
    assert hours == [(6, 12), (13, 22)]
    world = elastic({"daily": "22:00-06:00", "present": "2 h", "absent": "1 h"})
    (calendar, *_) = Members(world, 0, lambda rank: (0.0, 0.0)).calendars
    hours = [(a / 3600, b / 3600) for a, b in calendar.during(0.0, 100_800.0)]
    assert hours == [(2, 3), (5, 22), (23, 24), (26, 27)]


def test_absent_workers_cost_nothing_and_crashed_ones_do():
    """Four workers at 3600 an hour, one a second, of which one is away for 4 of 12 s."""
    cost = {"node_hour": 3600.0}
    away = {"present": "2 s", "absent": "4 s"}
    groups = [{"name": "there", "workers": 3}, {"name": "away", "workers": 1, "membership": away}]
    world = scenario({"name": "ssgd"}, steps=6, cost=cost, cluster={"group": groups})
    assert simulate(world).curve["cost"][-1] == pytest.approx(4 * 6 - 4)
    assert least_per_second(world) == 3  # of those who never leave
    for spec, second in ((away, 0.0), (None, 4.0)):
        table = elastic(spec, cost=cost).table | {"objective": QUADRATIC}
        table["run"] = {"steps": 20, "target_loss": 0.2}
        aim = tuning_objective(parse(table), "cost-to-loss")
        assert aim.second == second
        cut = Score(inf, 0.5, 10.0)
        assert aim.at_least(cut) == (40.0 if second else 0.0)
    crash = [{"worker": 3, "at": "2 s", "lasts": "4 s"}]
    world = scenario({"name": "ssgd"}, steps=6, cost=cost, cluster={"crash": crash},
                     recovery={"policy": "shrink"})  # fmt: skip
    assert simulate(world).curve["cost"][-1] == pytest.approx(4 * 6)


def test_egress_and_device_hours_are_what_was_charged():
    """A day of which two of four workers are there for the first half, and no more."""
    halves = {"name": "half", "workers": 2, "region": "b", "devices": 8,
              "inner": {"bandwidth": "100 Gbit/s"},
              "membership": {"present": "10 s", "absent": "1000 s"}}  # fmt: skip
    groups = [{"name": "all", "workers": 2, "region": "a"}, halves]
    cost = {"node_hour": 36.0, "device_hour": 3.6, "egress_per_gb": 5.0}
    world = scenario({"name": "ssgd"}, steps=20, cost=cost, cluster={"group": groups}, network=RING,
                     recovery={"policy": "shrink"})  # fmt: skip
    run = store.decode(store.encode(simulate(world)))
    used, end = consumption.used(world, run, run.duration), run.duration
    between = sum(size for link, size in run.links.items() if len({*link.split("->")}) == 2)
    assert used["egress_bytes"] == pytest.approx(between)
    assert used["egress_bytes"] > 0
    devices = 2 * end + 16 * 10
    assert used["device_hours"] == pytest.approx(devices / 3600)
    price = (2 * end + 2 * 10) * 0.01 + devices * 0.001 + between * 5e-9
    assert used["cost"] == pytest.approx(price)


spans = st.floats(0.3, 8.0).map(lambda seconds: f"{seconds} s")
memberships = st.one_of(
    st.none(),
    st.fixed_dictionaries({
        "present": st.one_of(spans, spans.map(lambda mean: {"dist": "exponential", "mean": mean})),
        "absent": spans,
        "notice": st.sampled_from(["0 s", "1 s", "5 s"]),
    }),
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("case", varied())
@settings(max_examples=6, deadline=None)
@given(
    spec=memberships,
    failing=st.one_of(st.none(), st.tuples(spans, spans)),
    recovery=st.sampled_from(
        ["wait", "shrink", {"policy": "shrink", "timeout": "200 ms"}, "backup",
         {"policy": "quorum", "quorum": 2, "grace": "300 ms"}, "quorum"]
    ),
    networked=st.booleans(),
    model=st.sampled_from(["closed-form", "flows"]),
    seed=st.integers(0, 3),
)  # fmt: skip
def test_every_second_of_every_worker_is_in_one_kind(
    case, spec, failing, recovery, networked, model, seed
):
    cluster: dict[str, Any] = {} if spec is None else {"membership": spec}
    if failing is not None:
        cluster["failures"] = {"between": failing[0], "repair": failing[1]}
    network = RING if networked else FREE
    options = case | {"recovery": recovery}
    table = {"workers": 3, "steps": None, "network": network | {"model": model}}
    general = {"reload": "150 ms"} if spec or failing else {}
    world = scenario(options, **table, objective=QUADRATIC, cluster=cluster,
                     recovery=general, run={"duration": "25 s"})  # fmt: skip
    result = simulate(world, seed=seed)
    spent = np.array([*result.workers.values()])
    assert (spent > -1e-9).all(), result.workers
    assert spent.sum(axis=0) == pytest.approx(25.0)
    if result.failures is not None:
        assert 0 <= statistics.goodput(result) <= 1


@pytest.mark.slow
def test_tune_finds_daly_s_interval_between_checkpoints():
    """Crashes every hour, saves of 200 s, steps of a minute: Daly's exact optimum is 17.8 steps.

    The time per step is (M / n) (exp((n step + cost) / M) - 1), up to a factor: Daly (2006), eq. 9.
    """
    mean, cost, step = 3600.0, 200.0, 60.0
    best = min(np.arange(5.0, 60.0, 0.01), key=lambda n: (exp((n * step + cost) / mean) - 1) / n)
    world = scenario(
        {"name": "ssgd"}, workers=1, compute="60 s", steps=None,
        run={"duration": "1000 h", "evaluate_every": 20_000, "cap": {"tau": 10**6, "delay": 0}},
        cluster={"failures": {"between": "1 h", "repair": "1 s"}},
        recovery={"policy": "restart", "checkpoint": {"every": 100, "cost": "200 s"}},
        tune={"ssgd": {"recovery.checkpoint.every": [8, 12, 15, 18, 22, 27, 40]}},
    )  # fmt: skip
    result = tune(world, objective="seconds-per-step", trials=7, seeds=2, jobs=1)
    assert result.best.candidate.varied["recovery.checkpoint.every"] == pytest.approx(best, rel=0.1)
