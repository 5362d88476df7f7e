"""Runs over shared links: equal to the closed form where no transfers compete."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.simulator.engines.overheads import EffectCosts
from paceline.simulator.load.load import parse
from paceline.simulator.programs import catalogue
from tests.helpers.cases import looped, named
from tests.helpers.compute_times import OVERHEAD
from tests.helpers.programs import ROWS, cases
from tests.helpers.worlds import QUADRATIC, RING, TIME_ONLY, scenario, simulate

COLLECTIVES = ("ring", "tree", "star", "hierarchical")
BLOCKING = [
    case for case in cases()
    if not (catalogue()[case["name"]].gossips or case["name"] in ("dts", "ssgd-bucketed"))
]  # fmt: skip
SHORT = OVERHEAD | {"message": "7 ms"}  # so that no answer is in flight when a run ends


def both(case, network, **world):
    """Return the same run in closed form, and with every transfer simulated."""
    made = [
        scenario(case, network=network | {"model": model}, **world)
        for model in ("closed-form", "flows")
    ]
    return simulate(made[0], seed=1), simulate(made[1], seed=1)


@looped("collective", COLLECTIVES)
@looped("workers", [2, 3, 4, 5, 6, 8, 13])
@looped("overhead", [[], [OVERHEAD]])
def test_a_network_without_competition_is_as_its_formula_says(collective, workers, overhead):
    network = RING | {"collective": collective}
    compute = {"dist": "exponential", "mean": "100 ms"}
    formula, flows = both(
        {"name": "local-sgd", "tau": 2}, network, workers=workers, compute=compute,
        cluster={"region": "here"}, overhead=overhead,
    )  # fmt: skip
    np.testing.assert_allclose(flows.curve["time"], formula.curve["time"], rtol=1e-12)
    np.testing.assert_allclose(flows.curve["bytes"], formula.curve["bytes"], rtol=1e-12)
    for kind, spent in formula.seconds.items():
        assert flows.seconds[kind] == pytest.approx(spent, rel=1e-11, abs=1e-12)


@looped("case", BLOCKING)
@looped("overhead", [[], [SHORT]])
def test_every_program_takes_as_long_without_competition(case, overhead):
    """Values are equal to the last bit, times up to rounding."""
    compute = {"dist": "uniform", "low": "100 ms", "high": "900 ms"}
    formula, flows = both(
        case, RING, objective=QUADRATIC, compute=compute, steps=12, overhead=overhead
    )
    np.testing.assert_allclose(flows.curve["time"], formula.curve["time"], rtol=1e-11)
    assert flows.curve["loss"] == pytest.approx(formula.curve["loss"], rel=1e-9)
    if next(row for row in ROWS if row.name == case["name"]).timeless:
        assert flows.curve["loss"] == formula.curve["loss"]
    assert flows.staleness == formula.staleness
    if not catalogue()[case["name"]].server:  # whose workers' next messages may count or not
        np.testing.assert_allclose(flows.curve["bytes"], formula.curve["bytes"], rtol=1e-12)
    for seconds in (flows.seconds, formula.seconds) if case["name"] == "fedbuff" else ():
        # its last update comes while other answers travel: how long they still would is unknown
        seconds["communicate"] += seconds.pop("wait")
    for kind, spent in formula.seconds.items():
        assert flows.seconds[kind] == pytest.approx(spent, rel=1e-9, abs=1e-9)


def test_a_crash_during_what_a_real_system_adds_begins_the_mean_again():
    """The first mean would last from 1 s to 5.072 s; worker 1 is down from 4.5 s to 6 s."""
    formula, flows = both(
        {"name": "ssgd"}, RING, workers=2, steps=2, overhead=[{"collective": "4 s"}],
        cluster={"crash": [{"worker": 1, "at": "4500 ms", "lasts": "1500 ms"}]},
    )  # fmt: skip
    assert flows.curve["time"] == pytest.approx([0, 6 + 4.072, 6 + 2 * 4.072 + 1])
    for kind, spent in formula.workers.items():
        assert flows.workers[kind] == pytest.approx(spent)


def test_asking_costs_what_words_take_on_the_route():
    """Routers are between the workers: 3 ms and 4 ms, and 25 B in 2 ms, whatever [network] says of
    other pairs.
    """
    group = [{"name": place, "workers": 1, "region": place} for place in ("a", "b")]
    links = [
        {"between": ["a", "router"], "latency": "3 ms"},
        {"between": ["router", "b"], "latency": "4 ms", "bandwidth": "100 kbit/s"},
    ]
    world = scenario(
        {"name": "hpsgd"}, workers=2, network=RING | {"model": "flows", "link": links},
        cluster={"group": group}, overhead=[{"agree_latencies": 2.0, "hop_bytes": "50 B"}],
    )  # fmt: skip
    assert EffectCosts(world).agree == pytest.approx(0.018)


@looped("model", ["closed-form", "flows"])
def test_asking_takes_as_long_as_the_farthest_neighbours_need(model):
    group = [{"name": place, "workers": 2, "region": place} for place in ("a", "b", "c")]
    links = [
        {"between": ["a", "b"], "latency": "30 ms"},
        {"between": ["b", "c"], "latency": "30 ms"},
        {"between": ["c", "a"], "latency": "20 ms", "bandwidth": "10 kbit/s"},
    ]
    world = scenario(
        {"name": "hpsgd"}, workers=6, network=RING | {"model": model, "link": links},
        cluster={"group": group}, overhead=[{"agree_latencies": 1.5, "hop_bytes": "50 B"}],
    )  # fmt: skip
    assert EffectCosts(world).agree == pytest.approx(1.5 * (0.020 + 25 / 1250))


@looped("case", cases())
def test_what_overlaps_comes_to_the_same_values(case):
    if not next(row for row in ROWS if row.name == case["name"]).timeless:
        return
    formula, flows = both(case, RING, objective=QUADRATIC, steps=12)
    assert flows.curve["loss"] == formula.curve["loss"]


@looped("case", cases())
@looped("seconds", ["2 s", "3.3 s"])
def test_a_run_may_end_in_the_midst_of_transfers(case, seconds):
    """End a run by time: transfers in flight then are no deadlock."""
    network = RING | {"model": "flows", "bandwidth": "100 kbit/s"}
    tables = {"network": network, "objective": QUADRATIC, "run": {"duration": seconds}}
    run = simulate(scenario(case, steps=None, **tables))
    assert run.duration <= float(seconds[:-2])
    assert sum(run.seconds.values()) == pytest.approx(float(seconds[:-2]), rel=1e-9)


PLACES = ("a", "b", "c")


def placed(case, network, **world):
    """Make a scenario with a worker in each place, and the server in the first."""
    group = [{"name": place, "workers": 1, "region": place} for place in PLACES]
    cluster = {"group": group} | world.pop("cluster", {})
    return scenario(
        case, workers=3, network=network, cluster=cluster, server={"region": "a"}, **world
    )


def stormy(number, steps):
    """Draw a scenario: where workers are, how fast, what crashes, and what the network is like."""
    draw, names = random.Random(number), [*catalogue()]
    turn, place = divmod(number, len(names))  # every program in turn, in each of its variants
    variants = [case for case in cases() if case["name"] == names[place]]
    case, program = variants[turn % len(variants)], catalogue()[names[place]]
    workers = draw.randint(3, 6)
    groups = [
        {"name": place, "workers": workers // 3 + (index < workers % 3), "region": place}
        for index, place in enumerate(PLACES)
    ]
    cluster, recovery = {"group": groups}, {}
    if draw.random() < 0.3:
        groups[1]["compute"] = drawn_law(draw, 1.0)
    trouble = draw.random()
    if trouble < 0.5:
        cluster["failures"] = {"between": "200 s", "repair": "3 s"}
        recovery = {"policy": draw.choice(program.recovers)}
        if recovery["policy"] == "restart":
            recovery["checkpoint"] = {"every": 20, "cost": "100 ms"}
        elif recovery["policy"] == "shrink":
            recovery |= {"timeout": draw.choice(["0 s", "200 ms"]), "backup": draw.choice([0, 1])}
    elif trouble < 0.6 and "shrink" in program.recovers:
        recovery = {"backup": 1}
    server = {"region": draw.choice(PLACES), "apply": draw.choice(["0 s", "3 ms"])}
    if "failures" in cluster and program.server and draw.random() < 0.5:
        server["failures"] = {"between": "300 s", "repair": "2 s"}
    return scenario(
        case, workers=workers, steps=steps, compute=drawn_law(draw, 0.5), cluster=cluster,
        network=drawn_network(draw), recovery=recovery, lr=0.01, server=server,
        objective=QUADRATIC if program.needs_loss or draw.random() < 0.5 else TIME_ONLY,
        run={"evaluate_every": 1},
    )  # fmt: skip


def drawn_law(draw, mean):
    laws = [
        f"{mean} s",
        f"{mean / 3} s",
        {"dist": "exponential", "mean": f"{mean} s"},
        {"dist": "uniform", "low": f"{mean / 2} s", "high": f"{2 * mean} s"},
        {"dist": "pareto", "minimum": f"{mean / 3} s", "alpha": 1.5},
    ]
    return draw.choice(laws)


def drawn_network(draw):
    """Draw three places in a row, "b" in the middle, and what disturbs the links between."""
    links = []
    for between in (["a", "b"], ["b", "c"]):
        link = {
            "between": between,
            "bandwidth": draw.choice(["100 kbit/s", "700 kbit/s", "2 Mbit/s"]),
            "latency": draw.choice(["0 s", "5 ms", "33 ms"]),
        }
        if draw.random() < 0.2:
            low = draw.choice([0, 0.3])
            link["profile"] = {"at": ["0 s", "20 s", "40 s"], "factor": [1, low, 1]}
        if draw.random() < 0.3:
            link["jitter"] = {"dist": "exponential", "mean": "3 ms"}
        links.append(link)
    made = {
        "model": "flows", "collective": draw.choice(COLLECTIVES), "link": links,
        "latency": draw.choice(["0 s", "1 ms"]),
        "bandwidth": draw.choice(["300 kbit/s", "1 Mbit/s", "1 Gbit/s"]),
    }  # fmt: skip
    return made


def ends_and_accounts(number, steps):
    """Run a scenario twice; demand that it ends, the same way, and that its accounts add up."""
    world = stormy(number, steps)
    result, again = (simulate(world, seed=number) for _ in range(2))
    assert result.workers == again.workers
    np.testing.assert_equal(result.curve, again.curve)
    assert result.steps >= steps, result.notes
    assert np.diff(result.curve["time"]).min() >= 0
    spent = np.array([*result.workers.values()])
    assert spent.min() >= -1e-9 * result.duration
    assert spent.sum(axis=0).max() <= result.duration * (1 + 1e-9)


@looped("number", range(4 * len(catalogue())))
def test_whatever_happens_to_the_network_a_run_ends_and_accounts(number):
    """Every program in up to four variants."""
    ends_and_accounts(number, steps=12)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(100, 600, 50))
def test_longer_runs_end_and_account(first):
    for number in range(first, first + 50):
        with named(number):
            ends_and_accounts(number, steps=60)


@looped("name", ["ssgd", "local-sgd", "post-local-sgd", "easgd", "bmuf", "diloco", "d2", "d-psgd"])
@looped("number", range(4))
def test_competition_makes_no_run_faster(name, number):
    network = drawn_network(random.Random(number))
    links = [
        {key: link[key] for key in ("between", "latency", "bandwidth")} | {"sharing": "per-flow"}
        for link in network["link"]
    ]
    free = {key: network[key] for key in ("model", "collective", "latency", "bandwidth")}
    case = next(case for case in reversed(cases()) if case["name"] == name)
    actual, alone = (
        simulate(placed(case, table, steps=6, objective=QUADRATIC), seed=number)
        for table in (network, free | {"link": links})
    )
    assert np.subtract(actual.curve["time"], alone.curve["time"]).min() >= -1e-9


def test_messages_that_arrive_together_share_the_servers_card():
    """m gradients of 4 kB over its card of 8 kB/s: all arrive after m / 2 s; answers one by one.

    The server answers all at the same time: their m answers share its card again.
    """
    for workers in (1, 2, 4):
        network = {"model": "flows", "latency": "10 ms", "bandwidth": "1 GB/s"}
        world = scenario(
            {"name": "k-async", "k": workers}, workers=workers, steps=2, network=network,
            server={"bandwidth": "8 kB/s"},
        )  # fmt: skip
        result = simulate(world)
        there = 1 + 0.01 + workers / 2
        again = there + 0.01 + workers / 2 + there
        assert result.curve["time"][1:] == pytest.approx([there, again], rel=1e-9)


def test_a_window_limits_a_flow():
    """Round trips of 0.2 s: 1 kB windows carry 5 kB/s, so that 4 kB take 0.8 s."""
    base = {"model": "flows", "latency": "100 ms", "bandwidth": "1 GB/s", "tcp_window": "1 kB"}
    one = {"workers": 1, "steps": 1}
    there = simulate(scenario({"name": "asgd"}, network=base, **one)).curve["time"][-1]
    assert there == pytest.approx(1 + 0.1 + 0.8)


@looped("case", [{"name": "k-sync", "k": 2}, {"name": "ad-psgd"}])
def test_an_alarm_rings_at_the_very_time_that_a_gradient_is_done(case):
    """Some are done while messages are under way, long after SimPy's last event.

    A delay added to SimPy's clock would round up, and the fabric get ahead of the node by that.
    """
    network = {"model": "flows", "latency": "1 ms", "bandwidth": "100 kbit/s"}
    compute = {"dist": "exponential", "mean": "1 s"}
    world = scenario(case, workers=5, steps=5, compute=compute, network=network)
    for seed in (16, 42, 44, 49, 68, 100):
        assert simulate(world, seed=seed).steps >= 5


def test_a_link_that_changes_with_time():
    """4 kB at 2 kB/s until 2 s, at nothing until 5 s, then at 1 kB/s: begun at 1 s, 7 s."""
    link = {
        "between": ["a", "server"], "latency": "0 s", "bandwidth": "2 kB/s",
        "profile": {"at": ["0 s", "2 s", "5 s"], "factor": [1, 0, 0.5]},
    }  # fmt: skip
    network = {"model": "flows", "latency": "0 s", "bandwidth": "1 GB/s", "link": [link]}
    world = scenario({"name": "asgd"}, workers=1, steps=1, network=network, cluster={"region": "a"})
    assert simulate(world).curve["time"] == pytest.approx([0, 7])


def test_who_is_left_alone_by_a_crash_needs_no_network():
    """Two of two average for 1.5 s from 1 s on; one crashes at 2 s, and 0.5 s later all go on."""
    network = {"model": "flows", "latency": "0 s", "bandwidth": "4 kB/s"}
    world = scenario(
        {"name": "ssgd"}, workers=2, steps=2, network=network,
        cluster={"crash": [{"worker": 1, "at": "1500 ms", "lasts": "1 h"}]},
        recovery={"policy": "shrink", "timeout": "500 ms"},
    )  # fmt: skip
    assert simulate(world).curve["time"] == pytest.approx([0, 2, 3])


def test_another_algorithm_changes_nothing():
    """Crashes, jitter and network events are the same beside it."""
    jitter = {"dist": "exponential", "mean": "10 ms"}
    links = [
        {"between": ["a", "b"], "profile": {"at": ["0 s", "3 s"], "factor": [1, 0.5]}},
        {"between": ["b", "c"], "jitter": jitter},
    ]
    network = RING | {"model": "flows", "link": links}
    world = {"cluster": {"failures": {"between": "9 s", "repair": "1 s"}}, "steps": 12}
    group = [{"name": place, "workers": 1, "region": place} for place in PLACES]
    world["cluster"] |= {"group": group}  # type: ignore[operator]
    tables: dict[str, Any] = {"workers": 3, "network": network, **world}
    case = {"name": "local-sgd", "tau": 2}
    beside = simulate(scenario({"name": "ssgd"}, case, **tables), index=1, seed=2)
    alone = simulate(scenario(case, **tables), seed=2)
    assert beside.curve["time"] == alone.curve["time"]
    assert beside.workers == alone.workers
    assert beside.lines == alone.lines


@looped("collective", ["ring", "tree", "star"])
def test_links_of_differing_latency_cost_what_the_formula_says(collective):
    """Each part of a ring pays the long way when it takes it, not at every step."""
    tables = {
        "cluster": {
            "group": [
                {"name": place, "workers": 4, "region": place} for place in ("tokyo", "oregon")
            ]
        },
    }
    network = {
        "collective": collective, "latency": "50 us", "bandwidth": "1 Gbit/s",
        "link": [{"between": ["tokyo", "oregon"], "latency": "48 ms", "bandwidth": "1 Tbit/s"}],
    }  # fmt: skip
    formula, flows = both({"name": "ssgd"}, network, workers=8, steps=3, **tables)
    assert flows.duration == pytest.approx(formula.duration, rel=1e-3)


@looped("name", ["asgd", "d-psgd", "ssgd"])
def test_every_kind_of_program_runs_on_a_platform(name):
    folder = Path(__file__).parents[2] / "scenarios"
    table = {
        "model": {"parameters": 1000}, "optimizer": {"lr": 0.1}, "run": {"steps": 3},
        "cluster": {"workers": 4, "compute": "1 s"}, "algorithm": [{"name": name}],
        "network": {"model": "flows", "platform": "networks/two-sites.xml"},
    }  # fmt: skip
    assert simulate(parse(table, folder=folder)).steps >= 3


@looped(
    ("name", "collective"), [("ssgd", "ring"), ("ssgd", "tree"), ("ssgd", "star"), ("asgd", "ring")]
)
def test_pauses_slow_connections_down_as_in_closed_form(name: str, collective: str) -> None:
    """Steps of a second let the windows of idle connections halve: 0.1 to 1.1 s for each mean."""
    network = {"latency": "50 ms", "bandwidth": "80 Mbit/s", "transport": "tcp"}
    pace = {}
    for model in ("closed-form", "flows"):
        links = network | {"collective": collective, "model": model}
        made = scenario({"name": name}, network=links, model={"parameters": 100_000})
        pace[model] = simulate(made).curve["time"][-1] / 20
    assert pace["flows"] == pytest.approx(pace["closed-form"], rel=0.02)
