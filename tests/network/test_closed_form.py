"""Collectives and messages: seconds and bytes per link by hand, random latencies, what is paid."""

import gc
import weakref
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.simulator.engines.payloads import Meter, cut, join, mean, protect
from paceline.simulator.network.closed_form import ClosedForm, Traffic
from paceline.simulator.network.mean_cost import mean_cost
from paceline.simulator.programs import Program
from tests.helpers.cases import looped
from tests.helpers.worlds import EXPONENTIAL, FREE, QUADRATIC, TIME_ONLY, scenario, simulate

B = 4000.0  # bytes: the model of these scenarios
LAT, RATE = 0.02, 125_000.0  # seconds per hop, bytes per second
LINE = {"latency": "20 ms", "bandwidth": "1 Mbit/s"}


def regions(*names):
    """Groups of a worker each, in its region."""
    named = [{"name": f"{name} {n}", "region": name} for n, name in enumerate(names)]
    return {"group": [{"workers": 1, **group} for group in named]}


def traffic(workers, network, seed=0, **tables):
    world = scenario({"name": "ssgd"}, workers=workers, network=network, **tables)
    return Traffic(ClosedForm(world), seed)


def test_nobody_remembers_a_network():
    network = ClosedForm(scenario({"name": "ssgd"}, network={"collective": "ring", **LINE}))
    assert network.plan("mean", (0, 1, 2)) is network.plan("mean", (0, 1, 2))
    reference = weakref.ref(network)
    del network
    gc.collect()
    assert reference() is None


# Collectives


def named(*hops):
    return [f"worker {a}->worker {b}" for a, b in hops]


PAIRS = [(1, 0), (3, 2), (2, 0), (4, 0)]  # 1 to 0 and 3 to 2; 2 to 0; 4 to 0; and back
SPOKES = [(1, 0), (2, 0), (3, 0)]


@looped(
    ("collective", "workers", "held", "hops", "links", "each"),
    [
        ("ring", 4, 1.5, 6, named((0, 1), (1, 2), (2, 3), (3, 0)), 1.5),
        ("tree", 5, 6, 6, named(*PAIRS, *(pair[::-1] for pair in PAIRS)), 1),
        ("star", 4, 6, 2, named(*SPOKES, *(pair[::-1] for pair in SPOKES)), 1),
    ],
)
def test_collectives_by_hand(collective, workers, held, hops, links, each):
    wire = traffic(workers, {"collective": collective, **LINE})
    assert wire.collective("mean", B) == pytest.approx((held * B / RATE, hops * LAT))
    assert wire.links() == pytest.approx(dict.fromkeys(links, each * B))


def test_a_hierarchy_is_two_rings_and_the_way_back():
    """Regions of 3 and 2 workers, fast inside; the first of each form a ring of two across."""
    network = {
        "collective": "hierarchical", **LINE,
        "link": [
            {"between": ["a", "a"], "latency": "1 ms", "bandwidth": "8 Mbit/s"},
            {"between": ["b", "b"], "latency": "2 ms", "bandwidth": "4 Mbit/s"},
        ],
    }  # fmt: skip
    group = [{"name": name, "workers": n, "region": name} for name, n in (("a", 3), ("b", 2))]
    wire = traffic(5, network, cluster={"group": group})
    inside = max(4 / 3 * B / 1e6, 1.0 * B / 5e5)
    back = max(B / 1e6, B / 5e5)
    seconds, latency = wire.collective("mean", B)
    assert seconds == pytest.approx(inside + B / RATE + back)
    assert latency == pytest.approx(4 * 0.001 + 2 * LAT + 2 * 0.001)  # the way back: 2 of either
    inner = {"a->a": (4 + 2) * B, "b->b": (2 + 1) * B}  # in the ring and on the way back
    assert wire.links() == pytest.approx(inner | {"a->b": B, "b->a": B})


def test_a_gather_brings_every_payload_round_the_ring():
    wire = traffic(4, {"collective": "ring", **LINE})
    assert wire.collective("gather", 100.0) == pytest.approx((3 * 100 / RATE, 3 * LAT))
    assert sum(wire.links().values()) == pytest.approx(4 * 3 * 100)


def test_a_given_duration_moves_no_known_bytes():
    wire = traffic(4, {"collective": "given", "duration": "2 s"})
    assert wire.collective("mean", B) == (2.0, 0.0)
    assert wire.collective("mean", B / 4) == (0.5, 0.0)
    assert wire.links() == {}


@looped("collective", ["ring", "tree", "star", "hierarchical", "given"])
def test_one_worker_has_nobody_to_talk_to(collective):
    network = {"collective": collective, **LINE}
    if collective == "given":
        network["duration"] = "2 s"
    wire = traffic(1, network, cluster={"region": "a"})
    for kind in ("mean", "gather"):
        assert wire.collective(kind, B) == (0.0, 0.0)
    assert wire.totals() == (0.0, 0.0)


@given(
    st.integers(2, 9), st.sampled_from(["ring", "tree", "star", "hierarchical"]), st.integers(1, 9)
)
def test_a_mean_moves_what_it_must(workers, collective, here):
    """An all-reduce moves 2(m - 1) payloads; that of regions some more, to tell everyone."""
    a, b = min(here, workers), workers - min(here, workers)
    cluster = {"region": "b", "group": [{"name": "g", "workers": a, "region": "a"}]}
    wire = traffic(workers, {"collective": collective, **LINE}, cluster=cluster)
    wire.collective("mean", B)
    moved, crossing = wire.totals()
    if collective == "hierarchical" and b:
        assert moved == pytest.approx((3 * (a - 1) + 3 * (b - 1) + 2) * B)
        assert crossing == pytest.approx(2 * B)
    else:
        assert moved == pytest.approx(2 * (workers - 1) * B)
    cost = wire.network.mean_cost()
    assert (cost.transmission, cost.latency) == pytest.approx(wire.collective("mean", B))


def test_the_slowest_link_of_a_ring_sets_its_pace():
    """Three regions: a transfer crosses every link, the latency is that of the worst way round."""
    network = {
        "collective": "ring", **LINE,
        "link": [
            {"between": ["a", "b"], "latency": "100 ms"},
            {"between": ["b", "c"], "bandwidth": "100 kbit/s"},
        ],
    }  # fmt: skip
    wire = traffic(3, network, cluster=regions("a", "b", "c"))
    seconds, latency = wire.collective("mean", B)
    assert seconds == pytest.approx(4 / 3 * B / 12_500)
    assert latency == pytest.approx(0.1 + LAT + LAT + 0.1)  # four hops from a: over a->b twice


def test_workers_without_a_region_have_links_of_their_own():
    wire = traffic(3, {"collective": "star", **LINE}, cluster=regions("a"))
    wire.collective("mean", B)
    moved, charged = wire.totals()
    assert moved == charged == pytest.approx(4 * B)
    assert set(wire.links()) == {"worker 1->a", "a->worker 1", "worker 2->a", "a->worker 2"}


# Links


@looped(
    ("window", "latency", "rate"),
    [
        ("1 MiB", "277 ms", 2**20 / 0.554),  # window over round trip
        ("1 MiB", "1 us", RATE * 1000),
        ("1 MiB", "0 s", RATE * 1000),
    ],
)
def test_a_window_limits_the_rate_of_a_flow(window, latency, rate):
    network = {"collective": "ring", "bandwidth": "1 Gbit/s", "tcp_window": window}
    seconds, _ = traffic(2, network | {"latency": latency}).collective("mean", B)
    assert seconds == pytest.approx(B / rate)


def test_without_a_bandwidth_only_latency_is_left():
    for network in (FREE, {"latency": "20 ms"}):
        seconds, latency = traffic(3, network | {"collective": "ring"}).collective("mean", B)
        assert (seconds, latency) == (0.0, pytest.approx(4 * LAT if network != FREE else 0))


@looped("collective", ["ring", "tree", "star"])
def test_random_latencies_have_the_mean_that_theory_uses(collective):
    jitter = {"dist": "gamma", "mean": "30 ms", "shape": 2}
    wire = traffic(5, {"collective": collective, "latency": "20 ms", "jitter": jitter})
    draws = np.array([wire.collective("mean", B)[1] for _ in range(4000)])
    expected = wire.network.mean_cost().latency
    assert draws.min() > expected * LAT / 0.05
    assert np.mean(draws) == pytest.approx(expected, abs=4 * np.std(draws) / np.sqrt(len(draws)))
    again = traffic(5, {"collective": collective, "latency": "20 ms", "jitter": jitter})
    assert [again.collective("mean", B)[1] for _ in range(50)] == draws[:50].tolist()
    other = traffic(5, {"collective": collective, "latency": "20 ms", "jitter": jitter}, seed=1)
    assert other.collective("mean", B)[1] != draws[0]


def test_messages_pay_latency_and_transmission_and_keep_their_order():
    async def worker(me, *, lr: float):
        await me.gradient(me.start)
        if me.rank == 0:
            for _ in range(500):
                me.send(1, me.start)
        else:
            for _ in range(500):
                await me.receive(0)
                me.mark(me.start)
                arrivals.append(me.clock())

    arrivals: list[float] = []
    programs = {"mine": Program("mine", worker, "here")}
    network = LINE | {"latency": EXPONENTIAL}
    world = scenario({"name": "mine"}, workers=2, steps=1, network=network, programs=programs)
    simulate(world)
    assert all(a <= b for a, b in pairwise(arrivals))
    assert min(arrivals) > 1 + B / RATE
    # the last to arrive is the slowest of 500
    assert 1 + B / RATE + 3 < arrivals[-1] < 1 + B / RATE + 15


# Bytes and money


def test_links_and_curves_count_every_byte():
    world = scenario(
        {"name": "ssgd"}, {"name": "local-sgd", "tau": 5}, {"name": "ssgd-bucketed"},
        {"name": "psgd"}, {"name": "asgd"}, {"name": "adacomm", "tau0": 5, "interval": "1 h"},
        workers=4, objective=QUADRATIC, network={"collective": "ring", **LINE}, steps=20,
    )  # fmt: skip
    runs = [simulate(world, index) for index in range(len(world.algorithm))]
    moved = [run.curve["bytes"][-1] for run in runs]
    assert moved[:4] == pytest.approx([20 * 6 * B, 4 * 6 * B, 20 * 6 * B, 0])
    # sent and answered; and with the last answers the workers compute on
    assert 2 * 20 * 4 * B <= moved[4] <= (2 * 20 * 4 + 4) * B
    assert moved[5] == pytest.approx(4 * 6 * (B + 4 * 8))  # three losses and a clock travel along
    for run, total in zip(runs, moved, strict=True):
        if run.name != "asgd":
            assert sum(run.links.values()) == pytest.approx(total)
        assert all(a <= b for a, b in pairwise(run.curve["bytes"]))
    ways = "worker {}->server", "server->worker {}"
    assert set(runs[4].links) == {way.format(worker) for way in ways for worker in range(4)}


def test_only_what_leaves_a_region_is_charged_as_egress():
    """A ring over two workers in a and one in b; node hours for workers, and the server if any."""
    network = {"collective": "ring", **LINE}
    tables = {
        "workers": 3, "steps": 10, "network": network, "run": {"evaluate_every": 10},
        "cluster": regions("a", "a", "b"), "cost": {"egress_per_gb": 1e6, "node_hour": 3.6},
    }  # fmt: skip
    run = simulate(scenario({"name": "ssgd"}, **tables))
    assert run.links == pytest.approx(dict.fromkeys(["a->a", "a->b", "b->a"], 10 * 4 / 3 * B))
    egress = 2 * 10 * 4 / 3 * B * 1e6 / 1e9
    assert run.curve["cost"][-1] == pytest.approx(egress + 3 * run.duration * 3.6 / 3600)
    served = simulate(scenario({"name": "asgd"}, **tables))
    assert served.curve["cost"][-1] == pytest.approx(
        served.curve["bytes"][-1] * 1e6 / 1e9 + 4 * served.duration * 3.6 / 3600
    )


# Payloads


def test_bytes_follow_from_the_payload():
    meter = Meter(model_bytes=400.0, dimension=10)
    vector = np.zeros(10)
    assert meter(vector) == 400
    assert meter(vector[:3]) == pytest.approx(120)
    assert meter(1.5) == meter(np.float64(1.5)) == 8
    assert meter((vector, 1.0, (2.0, vector[:1]))) == pytest.approx(400 + 16 + 40)
    nothing = scenario({"name": "ssgd"}, objective=TIME_ONLY)
    assert nothing.model.bytes == B
    assert meter(0j) == 400
    assert [meter(part) for part in cut(0j, 5)] == pytest.approx([80] * 5)


@given(st.integers(1, 40), st.integers(1, 12))
def test_a_cut_vector_can_be_joined(size, pieces):
    vector = np.arange(float(size))
    parts = cut(vector, pieces)
    assert len(parts) == pieces
    assert np.array_equal(join(parts), vector)
    assert np.array_equal(join(parts[:1]), vector[size - len(parts[0]) :])  # last entries first
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_mean_goes_entry_by_entry_in_rank_order():
    tenth = [0.1, 0.2, 0.3]
    assert mean(tenth) == (0.1 + 0.2 + 0.3) / 3 != (0.3 + 0.2 + 0.1) / 3
    vectors = [np.array([w, 1.0]) for w in tenth]
    vector, number = mean([(v, w) for v, w in zip(vectors, tenth, strict=True)])
    assert np.array_equal(vector, [mean(tenth), 1.0])
    assert number == mean(tenth)
    assert mean([0j, 0j]) == 0j
    protect((vectors[0], 1.0, (vectors[1],)))
    assert [v.flags.writeable for v in vectors] == [False, False, True]


# Uplinks and downlinks


MODELS = ("closed-form", "flows")
NAMES = ["ring", "tree", "star", "double-tree"]


def times(case, network, **tables):
    return [
        simulate(scenario(case, network=network | {"model": model}, **tables)).curve["time"]
        for model in MODELS
    ]


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([{"name": "ssgd"}, {"name": "asgd"}, {"name": "d-psgd"}]),
    st.sampled_from(NAMES), st.sampled_from(["3 Mbit/s", "77 kbit/s"]), st.integers(2, 6),
)  # fmt: skip
def test_equal_uplinks_and_downlinks_are_a_bandwidth_to_the_last_bit(case, name, rate, workers):
    network = {"collective": name, "latency": "7 ms"}
    same = times(case, network | {"bandwidth": rate}, workers=workers, steps=6)
    assert times(case, network | {"up": rate, "down": rate}, workers=workers, steps=6) == same
    group = {"group": [{"name": "g", "workers": workers, "up": rate, "down": rate}]}
    if "asgd" not in case.values():  # a server's card has the bandwidth of [network]
        assert times(case, network, workers=workers, steps=6, cluster=group) == same


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(NAMES), st.integers(1, 9),
    st.sampled_from([("1 Mbit/s", "10 Mbit/s"), ("10 Mbit/s", "1 Mbit/s")]),
    st.sampled_from([{}, {"transport": "tcp"}]),
)  # fmt: skip
def test_formulas_and_flows_agree_on_unequal_ones(name, workers, rates, transport):
    up, down = rates
    network = {"collective": name, "latency": "7 ms", "up": up, "down": down, **transport}
    costs = [
        mean_cost(scenario({"name": "ssgd"}, workers=workers, network=network | {"model": model}))
        for model in MODELS
    ]
    assert costs[0].transmission == pytest.approx(costs[1].transmission, rel=1e-9)
    assert costs[0].latency == pytest.approx(costs[1].latency, rel=1e-9)


def test_a_shared_line_costs_more_than_the_formula_of_private_ones_says():
    """A star of 1 + 3 in two regions: 3 payloads of 32 ms at 1 Mbit/s, either way."""
    slow = {"between": ["a", "b"], "bandwidth": "1 Mbit/s"}
    network = {"collective": "star", "latency": "20 ms", "bandwidth": "1 Gbit/s", "link": [slow]}
    cluster = {"region": "a", "group": [{"name": "hub", "workers": 1, "region": "b"}]}
    tables = {"cluster": cluster, "network": {"model": "flows", **network}}
    cost = mean_cost(scenario({"name": "ssgd"}, workers=4, **tables))
    assert cost.latency == pytest.approx(0.04)
    assert cost.transmission == pytest.approx(6 * 0.032)


def test_a_worker_sends_up_and_receives_down():
    """To the server and back: 4 kB up at 1 Mbit/s, down at 8."""
    network = {"latency": "10 ms", "up": "1 Mbit/s", "down": "8 Mbit/s"}
    for curve in times({"name": "asgd"}, network, workers=1, steps=2):
        assert curve[1] == pytest.approx(1 + 0.01 + 0.032)
        assert curve[2] - curve[1] == pytest.approx(0.01 + 0.004 + 1 + 0.01 + 0.032)


def test_a_link_is_slower_one_way():
    group = [{"name": name, "workers": 1, "region": name} for name in "ab"]
    for way, seconds in (("up", 0.32), ("down", 0.32), ("bandwidth", 0.32)):
        link = {"between": ["a", "b"], "bandwidth": "1 Gbit/s"} | {way: "100 kbit/s"}
        network = {"latency": "0 s", "collective": "ring", "link": [link]}
        for curve in times({"name": "ssgd"}, network, workers=2, steps=1, cluster={"group": group}):
            assert curve[1] == pytest.approx(1 + seconds, rel=1e-3)
    # one way a message is slow, the other it is not
    link = {"between": ["a", "server"], "up": "100 kbit/s", "down": "1 Gbit/s"}
    network = {"latency": "0 s", "link": [link]}
    for curve in times({"name": "asgd"}, network, workers=1, steps=2, cluster={"region": "a"}):
        assert curve[2] - curve[1] == pytest.approx(1 + 0.32, rel=1e-3)


ONCE = 7 * (0.005 + 4000 / 8 / 125_000)  # seconds of the n - 1 steps of a pass around 8 devices
VISIBLE = {  # of an all-reduce in one bucket, and of FSDP, whose passes take 1/3 and 2/3 s
    ("none", 1): 2 * ONCE,
    ("fsdp", 1): 3 * ONCE / 32,
    ("none", 10): 20 * ONCE,  # longer than what is computed meanwhile
    ("fsdp", 10): (10 * ONCE - 1 / 3) + (20 * ONCE - 2 / 3),
    ("none", 0.1): 0.2 * ONCE,
}


@looped(("sharding", "times"), [*VISIBLE])
def test_an_islands_devices_communicate_behind_its_passes(sharding, times):
    bandwidth, latency = f"{1 / times} Mbit/s", f"{5 * times} ms"
    inner = {"bandwidth": bandwidth, "latency": latency, "sharding": sharding}
    group = [{"name": "i", "workers": 2, "devices": 8, "inner": inner}]
    seen = VISIBLE[sharding, times]
    step = 1 + (seen if sharding == "fsdp" or times < 10 else max(seen, seen - 2 / 3))
    for case in ({"name": "local-sgd", "tau": 5}, {"name": "psgd"}):
        world = scenario(case, workers=2, cluster={"group": group}, steps=5)
        assert simulate(world).duration == pytest.approx(5 * step)
    measured = [{"name": "i", "workers": 2, "devices": 8}]  # compute contains what joins them
    world = scenario({"name": "psgd"}, workers=2, cluster={"group": measured}, steps=5)
    assert simulate(world).duration == pytest.approx(5)
    bare = scenario({"name": "ssgd"}, workers=2, steps=5)
    with_islands = scenario({"name": "ssgd"}, workers=2, cluster={"group": group}, steps=5)
    moved = [simulate(item).curve["bytes"][-1] for item in (bare, with_islands)]
    assert moved[0] == moved[1]
