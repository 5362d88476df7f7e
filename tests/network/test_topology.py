"""The network as a graph: places, lines, routes, tables, platforms, and what is refused."""

import copy
import pickle
import re
import tomllib
from itertools import islice, pairwise, permutations
from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.simulator.load.load import load, parse
from paceline.simulator.network.closed_form import ClosedForm
from paceline.simulator.network.topology.graph import Topology
from paceline.simulator.scenario.network import Link
from paceline.simulator.studies.execution import Task
from tests.helpers.cases import beside, looped

SHIPPED = Path(__file__).parents[2] / "scenarios"


def table(network, cluster=None, groups=None, **more):
    """A scenario's table: workers in regions as `groups` says, {region: how many}."""
    groups = {"a": 2, "b": 2} if groups is None else groups
    listed = [{"name": f"in {k}", "workers": n, "region": k} for k, n in groups.items()]
    options = {"workers": sum(groups.values()) or 3, "compute": "1 s", "group": listed}
    net = {"model": "flows", "latency": "1 ms", "bandwidth": "8 Gbit/s"} | network
    return {
        "model": {"parameters": 10},
        "cluster": options | (cluster or {}),
        "network": {key: value for key, value in net.items() if value is not None},
        "run": {"steps": 2},
        "algorithm": [{"name": "ssgd"}],
    } | more


def scenario(network=None, cluster=None, groups=None, folder=".", **more):
    actual = table(network or {}, cluster, groups, **more)
    return parse(actual, file="my.toml", folder=Path(folder))


def topology(*args, **more):
    return Topology(scenario(*args, **more))


def names(graph, ranks):
    return [graph.lines[number].name for number in graph.route(ranks).lines]


def link(*ends, **more):
    return {"between": list(ends)} | more


def latency(route):
    return sum(law.expectation for law in route.laws)


# lines and routes


def test_inside_a_place_a_transfer_passes_two_network_cards():
    graph = topology()
    assert names(graph, (0, 1)) == ["worker 0 out", "worker 1 in"]
    route = graph.route((0, 1))
    assert [graph.lines[number].capacity for number in route.lines] == [1e9, 1e9]
    assert (latency(route), route.limit) == (0.001, inf)


def test_between_regions_it_passes_one_line_that_all_share():
    graph = topology({"link": [link("b", "a", latency="40 ms", bandwidth="800 Mbit/s")]})
    assert names(graph, (0, 2)) == ["worker 0 out", "a->b", "worker 2 in"]
    assert graph.route((0, 2)).lines[1] == graph.route((1, 3)).lines[1]
    assert names(graph, (3, 0)) == ["worker 3 out", "b->a", "worker 0 in"]
    assert graph.lines[graph.route((0, 2)).lines[1]].capacity == 1e8
    assert latency(graph.route((0, 2))) == pytest.approx(0.04)


def test_regions_that_nothing_joins_have_the_line_that_network_describes():
    graph = topology()
    assert names(graph, (0, 2)) == ["worker 0 out", "a->b", "worker 2 in"]
    assert names(graph, (4, 0)) == ["server out", "server->a", "worker 0 in"]
    assert graph.lines[graph.route((4, 0)).lines[0]].capacity == inf


def test_nodes_without_a_region_meet_at_their_cards_and_are_places_of_their_own():
    graph = topology(groups={})
    assert names(graph, (0, 2)) == ["worker 0 out", "worker 2 in"]
    assert names(graph, (1, 3)) == ["worker 1 out", "server in"]


def test_a_pipelined_chain_is_one_flow_over_the_lines_of_all_its_hops():
    graph = topology({"tcp_window": "64 kB", "link": [link("a", "b", latency="9 ms")]})
    first, second, chain = graph.route((0, 1)), graph.route((1, 2)), graph.route((0, 1, 2))
    assert chain.lines == first.lines + second.lines
    assert chain.laws == first.laws + second.laws
    assert chain.limit == min(first.limit, second.limit) == pytest.approx(64e3 / 0.018)
    assert latency(chain) == pytest.approx(0.01)


def test_cards_are_as_fast_as_nic_says_or_the_link_inside_their_place():
    groups = [
        {"name": "fast", "workers": 1, "region": "a", "nic": "80 Gbit/s"},
        {"name": "slow", "workers": 1, "region": "a"},
        {"name": "far", "workers": 1, "region": "b"},
    ]
    inner = [link("a", "a", bandwidth="16 Gbit/s")]
    graph = topology({"link": inner}, {"workers": 3, "group": groups})
    cards = {line.name: line.capacity for line in graph.lines}
    assert [cards[f"worker {rank} out"] for rank in range(3)] == [1e10, 2e9, 1e9]
    assert [cards[f"worker {rank} in"] for rank in range(3)] == [1e10, 2e9, 1e9]


def test_a_line_per_flow_is_shared_by_none():
    graph = topology({"link": [link("a", "b"), link("b", "b", sharing="per-flow")]})
    shared = {line.name: line.per_flow for line in graph.lines}
    assert shared["worker 2 out"]
    assert not shared["a->b"]


def test_jitter_adds_to_every_hop_and_halves_the_rate_of_a_window():
    graph = topology({"jitter": {"dist": "exponential", "mean": "1 ms"}, "tcp_window": "1 MB"})
    route = graph.route((0, 1))
    assert len(route.laws) == 2
    assert latency(route) == pytest.approx(0.002)
    assert route.limit == pytest.approx(1e6 / 0.004)


def test_a_router_joins_places_and_a_link_of_their_own_comes_first():
    star = [link(end, "hub", latency="5 ms") for end in ("a", "b", "c")]
    graph = topology({"link": star}, groups={"a": 1, "b": 1, "c": 1})
    assert names(graph, (0, 2)) == ["worker 0 out", "a->hub", "hub->c", "worker 2 in"]
    assert latency(graph.route((0, 2))) == pytest.approx(0.01)
    links = [*star, link("a", "c", latency="30 ms")]
    graph = topology({"link": links}, groups={"a": 1, "b": 1, "c": 1})
    assert names(graph, (0, 2)) == ["worker 0 out", "a->c", "worker 2 in"]
    assert names(graph, (0, 1)) == ["worker 0 out", "a->hub", "hub->b", "worker 1 in"]


def test_of_ways_of_one_latency_the_one_with_fewer_hops_is_taken():
    chain = [link(*ends, latency="1 ms") for ends in (("a", "x"), ("x", "y"), ("y", "b"))]
    short = [link("a", "z", latency="2 ms"), link("z", "b", latency="1 ms")]
    for links in (chain + short, short + chain):
        graph = topology({"link": links}, groups=dict.fromkeys("abxy", 1))
        assert names(graph, (0, 1))[1:-1] == ["a->z", "z->b"]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_routes_are_as_short_as_any(data):
    """Against relaxing every link until nothing improves."""
    places = "abcdef"
    pairs = data.draw(
        st.lists(st.sampled_from([p for p in permutations(places, 2) if p[0] < p[1]]), unique=True)
    )
    links = [link(*p, latency=f"{data.draw(st.integers(0, 9))} ms") for p in pairs]
    plain = scenario(groups={"a": 1, "b": 1, "c": 1})
    read = tuple(map(Link.model_validate, links))  # past the check that all of them lead somewhere
    network = plain.network.model_copy(update={"link": read})
    graph = Topology(plain.model_copy(update={"network": network}))
    direct = {frozenset(line["between"]): float(line["latency"][:-3]) / 1e3 for line in links}
    best = {(a, b): inf for a in places for b in places} | {(a, a): 0.0 for a in places}
    for _ in places:
        for pair, seconds in direct.items():
            for a, b in permutations(pair):
                for end in places:
                    best[end, b] = min(best[end, b], best[end, a] + seconds)
    for source, to in permutations(range(3), 2):
        ends = places[source], places[to]
        expected = direct.get(frozenset(ends), best[ends])
        route = graph.route((source, to))
        assert latency(route) == pytest.approx(0.001 if expected == inf else expected, abs=1e-9)
        hops = [name.split("->") for name in names(graph, (source, to))[1:-1]]
        assert hops[0][0] == ends[0]
        assert hops[-1][1] == ends[1]
        assert all(before[1] == after[0] for before, after in pairwise(hops))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_each_way_costs_what_its_link_does_in_closed_form(data):
    """Where nothing is shared both models must be the same."""
    regions = ["a", "b", "c", "server"]
    links = []
    for pair in [*((x, y) for x in regions for y in regions if x < y), ("a", "a"), ("b", "b")]:
        if data.draw(st.booleans()):
            keys = data.draw(st.sets(st.sampled_from(["latency", "bandwidth", "tcp_window"])))
            units = {"latency": "ms", "bandwidth": "Mbit/s", "tcp_window": "kB"}
            more = {key: f"{data.draw(st.integers(1, 99))} {units[key]}" for key in keys}
            links.append(link(*pair, **more))
    joined = {frozenset(line["between"]) for line in links}
    for pair in permutations(regions, 2):  # no path leads through a third place
        if frozenset(pair) not in joined:
            joined.add(frozenset(pair))
            links.append(link(*pair))
    text = table({"link": links, "bandwidth": None}, groups={"a": 2, "b": 2, "c": 1})
    graph = Topology(parse(text))
    closed = copy.deepcopy(text)
    closed["network"]["model"] = "closed-form"
    network = ClosedForm(parse(closed))
    for source, to in permutations(range(6), 2):
        route, one = graph.route((source, to)), network.link(source, to)
        inside = [number for number in route.lines if "->" in graph.lines[number].name]
        lines = inside if one.name in network.charged else route.lines
        rate = min([route.limit, *(graph.lines[number].capacity for number in lines)])
        assert (latency(route), rate) == (one.latency, one.bandwidth)


# what changes over time

PROFILE = {"at": ["0 s", "3 s"], "factor": [1.0, 0.5], "period": "7 s"}


def test_capacity_follows_the_profile_of_a_link_in_both_directions():
    graph = topology({"link": [link("a", "b", bandwidth="800 Mbit/s", profile=PROFILE)]})
    changing = [line for line in graph.lines if line.profile]
    assert [line.name for line in changing] == ["a->b", "b->a"]
    expected = [(0.0, 1e8), (3.0, 5e7), (7.0, 1e8), (10.0, 5e7)]
    for line in changing:
        assert list(islice(line.capacities(), 4)) == expected


# tables of regions

CSV = beside(__file__, "clouds.csv")


def from_csv(folder, text=CSV, network=None, **more):
    (folder / "clouds.csv").write_text(text, encoding="utf-8")
    more = {"groups": {"a": 1, "b": 1, "c": 1}} | more
    return scenario({"regions": "clouds.csv"} | (network or {}), folder=folder, **more)


def test_a_table_gives_each_direction_its_own_and_no_detours(tmp_path):
    graph = Topology(from_csv(tmp_path))
    assert names(graph, (0, 1)) == ["worker 0 out", "a->b", "worker 1 in"]
    assert [latency(graph.route(route)) for route in permutations(range(3), 2)] == [
        0.02, 0.01, 0.03, 0.005, 0.01, 0.005,
    ]  # fmt: skip
    capacity = {line.name: line.capacity for line in graph.lines}
    assert (capacity["a->b"], capacity["b->a"], capacity["c->a"]) == (1e8, 1e9, 1e7)
    assert not [name for name in capacity if "d" in name.split("->")]


def test_a_table_is_read_in_closed_form_too(tmp_path):
    network = ClosedForm(from_csv(tmp_path, network={"model": "closed-form"}))
    assert (network.link(0, 1).latency, network.link(1, 0).latency) == (0.02, 0.03)
    assert (network.link(0, 1).bandwidth, network.link(2, 0).bandwidth) == (1e8, 1e7)


def test_a_link_adds_to_a_table_what_it_does_not_say(tmp_path):
    wifi = {"link": [link("a", "c", sharing="per-flow", tcp_window="64 kB")]}
    graph = Topology(from_csv(tmp_path, network=wifi))
    assert names(graph, (0, 2)) == ["worker 0 out", "a->c", "worker 2 in"]
    assert graph.route((0, 2)).limit == 64e3 / 0.02


def test_a_run_is_resumed_only_while_the_files_are_the_same(tmp_path):
    text = table({"regions": "clouds.csv"}, groups={"a": 1, "b": 1})
    keys = []
    for content in (CSV, CSV, CSV.replace("20 ms", "21 ms")):
        (tmp_path / "clouds.csv").write_text(content)
        read = parse(text, file=str(tmp_path / "my.toml"), folder=tmp_path)
        keys.append(Task(read.algorithm[0], 0, 0, "auto").key(read))
    assert keys[0] == keys[1] != keys[2]


@looped("name", ["azure", "gcp-us"])
def test_the_shipped_tables_join_all_their_regions(name):
    rows = scenario({"regions": f"networks/{name}.csv"}, folder=SHIPPED, groups={}, cluster={
        "region": {"azure": "east-us", "gcp-us": "us-east1"}[name]}).network.regions  # fmt: skip
    for pair in permutations(rows.regions, 2):
        assert pair in rows.rows
        there, back = rows.rows[pair].latency.value, rows.rows[pair[::-1]].latency.value
        assert there == pytest.approx(back, rel=0.2)
        assert 0.001 < there < 0.2


def test_the_shipped_scenario_has_a_line_for_each_pair():
    graph = Topology(load("clouds"))
    assert len([line for line in graph.lines if "->" in line.name]) == 30


# platforms, with the routes that SimGrid 3.32 gives

PLATFORM = beside(__file__, "cluster.xml")
ROUTES = {
    ("e0", "e2"): ["l01", "l12_UP"],
    ("e2", "e0"): ["l12_DOWN", "l01"],
    ("e0", "e0"): ["l2r"],
    ("u-0", "u-5"): ["us_link_0_UP", "us_backbone", "us_link_5_DOWN"],
    ("a-0", "a-1"): ["as_link_0", "as_link_1"],
    ("a-1", "a-1"): [],
    ("u-1", "e1"): ["us_link_1_UP", "us_backbone", "sea_DOWN", "l2r", "l12_DOWN"],
    ("e1", "a-0"): ["l12_UP", "l2r", "sea_UP", "sea2", "as_link_0"],
    ("a-0", "u-0"): ["as_link_0", "sea2", "us_backbone", "us_link_0_DOWN"],
}


def from_xml(folder, text=PLATFORM, network=None, **more):
    (folder / "cluster.xml").write_text(text, encoding="utf-8")
    options = {"platform": "cluster.xml", "latency": None, "bandwidth": None} | (network or {})
    return scenario(options, folder=folder, **{"groups": {}} | more)


def test_routes_are_those_of_simgrid(tmp_path):
    platform = from_xml(tmp_path).network.platform
    for ends, links in ROUTES.items():
        assert [platform.wires[link].name for link in platform.route(*ends)] == links
    wires = {wire.name: wire for wire in platform.wires}
    assert wires["l01"].capacity == 1.25e8
    assert (wires["sea_UP"].latency, wires["sea2"].latency) == (0.04, 0.04)
    assert [name for name, wire in wires.items() if wire.per_flow] == ["l2r", "us_backbone"]


def test_of_a_cluster_only_the_links_in_use_are_lines(tmp_path):
    large = PLATFORM.replace('radical="0-1,5"', 'radical="0-1,5,7-9999"')
    read = from_xml(tmp_path, large, groups={"us": 4}, server={"region": "u-1234"})
    platform, graph = read.network.platform, Topology(read)
    assert platform.host("us", 3) == "u-7"
    assert "u-6" not in platform
    assert "u-007" not in platform
    lines = [line.name for line in graph.lines if line.name.startswith("us_link")]
    assert lines == [f"us_link_{host}_{way}" for host in (0, 1, 5, 7, 1234)
                   for way in ("UP", "DOWN")]  # fmt: skip
    assert names(graph, (3, 4)) == ["us_link_7_UP", "us_backbone", "us_link_1234_DOWN"]
    assert names(graph, (0, 2)) == ROUTES["u-0", "u-5"]
    everyone = Topology(from_xml(tmp_path, groups={"us": 3, "as": 2, "eu": 3}))
    assert [line.name for line in everyone.lines] == [wire.name for wire in from_xml(
        tmp_path).network.platform.wires]  # fmt: skip


def test_workers_take_the_hosts_of_their_region_in_turn(tmp_path):
    graph = Topology(from_xml(tmp_path, cluster={"workers": 3}))
    assert names(graph, (0, 2)) == ROUTES["e0", "e2"]
    assert latency(graph.route((0, 3))) == pytest.approx(0.04365)
    groups = {"as": 3, "e1": 1}
    graph = Topology(from_xml(tmp_path, groups=groups, server={"region": "us"}))
    assert names(graph, (0, 1)) == ROUTES["a-0", "a-1"]
    assert names(graph, (0, 2)) == []
    assert names(graph, (3, 0)) == ROUTES["e1", "a-0"]
    assert names(graph, (0, 4)) == ROUTES["a-0", "u-0"]


def test_a_platform_takes_a_window_jitter_and_a_servers_card(tmp_path):
    options = {
        "tcp_window": "1 MB",
        "jitter": {"dist": "exponential", "mean": "1 ms"},
    }
    graph = Topology(from_xml(tmp_path, network=options, server={"bandwidth": "8 Gbit/s"}))
    assert names(graph, (0, 3)) == ["l01", "l12_UP", "l2r", "sea_UP", "us_backbone",
                                    "us_link_0_DOWN", "server in"]  # fmt: skip
    assert graph.route((0, 1)).limit == pytest.approx(1e6 / 0.004)


def test_the_shipped_platform_is_read():
    options = {"platform": "networks/two-sites.xml", "latency": None, "bandwidth": None}
    graph = topology(options, groups={"lyon": 8, "nancy": 4}, folder=SHIPPED)
    way = ["lyon_link_0_UP", "lyon_backbone", "leased_UP", "nancy_link_0_DOWN"]
    assert names(graph, (0, 8)) == way
    assert pickle.loads(pickle.dumps(graph)).route((8, 1)) == graph.route((8, 1))


CLOSED = {"model": "closed-form"}


def test_a_server_may_stand_in_a_region_in_both_models():
    far = {"link": [link("a", "b", latency="40 ms")]}
    flows, formula = (scenario(far | item, server={"region": "b"}) for item in ({}, CLOSED))
    assert [latency(Topology(flows).route((rank, 4))) for rank in (0, 2)] == [0.04, 0.001]
    assert [ClosedForm(formula).link(rank, 4).latency for rank in (0, 2)] == [0.04, 0.001]


def test_many_workers_without_regions_are_no_many_pairs():
    graph = topology(groups={}, cluster={"workers": 20_000})
    assert len(graph.lines) == 40_002


def test_the_examples_of_the_page_are_accepted():
    page = (SHIPPED.parent / "docs" / "network.md").read_text("utf-8")
    examples = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert len(examples) > 5
    for text in examples:
        example = tomllib.loads(text)
        network = example.get("network", {})
        places = ("us-east1", "us-west1") if "regions" in network else ("tokyo", "oregon")
        unless = ("latency", "bandwidth") if "platform" in network else ()
        parse(
            table(
                dict.fromkeys(unless) | network,
                example.get("cluster", {}),
                {} if "cluster" in example or "platform" in network else dict.fromkeys(places, 1),
            ),
            folder=SHIPPED,
        )
