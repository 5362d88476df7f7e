"""Uplinks, downlinks, shared lines, and islands: in formulas and in flows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.simulator.network.mean_cost import mean_cost
from tests.helpers.cases import looped
from tests.helpers.worlds import scenario, simulate

MODELS = ("closed-form", "flows")
NAMES = ["ring", "tree", "star", "recursive-doubling", "halving-doubling", "double-tree"]


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


@looped(("sharding", "passes"), [("none", 2), ("fsdp", 3)])
def test_an_islands_devices_communicate_in_every_step(sharding, passes):
    inner = {"bandwidth": "1 Mbit/s", "latency": "5 ms", "sharding": sharding}
    group = [{"name": "i", "workers": 2, "devices": 8, "inner": inner}]
    step = 1 + passes * 7 * (0.005 + 4000 / 8 / 125_000)
    for case in ({"name": "local-sgd", "tau": 5}, {"name": "psgd"}):
        world = scenario(case, workers=2, cluster={"group": group}, steps=5)
        assert simulate(world).duration == pytest.approx(5 * step)
    measured = [{"name": "i", "workers": 2, "devices": 8}]  # compute contains what joins them
    world = scenario({"name": "psgd"}, workers=2, cluster={"group": measured}, steps=5)
    assert simulate(world).duration == pytest.approx(5)
    bare = scenario({"name": "ssgd"}, workers=2, steps=5)
    with_islands = scenario({"name": "ssgd"}, workers=2, cluster={"group": group}, steps=5)
    moved = [simulate(each).curve["bytes"][-1] for each in (bare, with_islands)]
    assert moved[0] == moved[1]
