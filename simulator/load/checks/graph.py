"""Check a scenario against the links and routes of `network.model = "flows"`."""

from collections.abc import Iterator
from itertools import pairwise
from math import inf

from ...errors import InputError
from ...inputs.messages import KeyPath, nearest
from ...network.topology.graph import Hosts, NetworkGraph
from ...scenario.scenario import Scenario
from .combinations import Problem
from .places import nics, regions


def graph_problems(scenario: Scenario) -> Iterator[Problem]:
    """Yield the problems of the graph, for a scenario whose settings are each possible."""
    cluster = scenario.cluster
    if sum(group.workers for group in cluster.group) > cluster.workers:
        return  # refused elsewhere; the places of these workers are unknown
    if scenario.network.platform is not None:
        yield from _platform(scenario)
        return
    graph = NetworkGraph(scenario)
    if not scenario.shares:  # a link may be there for another job
        yield from _links(graph)
        yield from _unused_bandwidth(scenario, graph)
    yield from _outages(graph)
    names = list(dict.fromkeys([*graph.homes, *(end for pair in graph.direct for end in pair)]))
    yield from _background(graph, names)
    nodes = pairwise(dict.fromkeys(graph.sites))  # of nodes without regions, any pair will do
    if graph.network.fairness == "rtt" and not all(
        0 < graph.between(*pair).latency < inf for pair in (*graph.pairs(), *nodes)
    ):
        yield Problem(
            ("network", "fairness"),
            "there are round trips of no time, or without a mean, and no share follows from "
            'them; write latencies with a mean above 0, or "max-min"',
        )


def _links(graph: NetworkGraph) -> Iterator[Problem]:
    idle = graph.idle()
    for index, link in enumerate(graph.network.link):
        where: KeyPath = ("network", "link", index)
        if index in idle:
            strange = [name for name in link.between if name not in graph.homes]
            yield Problem(
                (*where, "between"),
                f"carries nothing: no worker is in {' or '.join(strange) or link.between[0]}, and "
                "no way leads through it; "
                + nearest((strange or link.between)[0], graph.homes, "places"),
            )
        elif graph.places.setting(*link.between, "bandwidth") is None:
            for key in sorted({"sharing", "profile"} & link.model_fields_set):
                yield Problem((*where, key), "of no bandwidth; add bandwidth to the link")


def _outages(graph: NetworkGraph) -> Iterator[Problem]:
    for index, outage in enumerate(graph.network.outage):
        a, b = outage.between
        if (a, b) not in graph.direct and not (a == b and a in graph.homes):
            joined = sorted({" - ".join(sorted(pair)) for pair in graph.direct})
            yield Problem(
                ("network", "outage", index, "between"),
                f"no link joins them; the links are: {', '.join(joined) or 'none'}",
            )


def _unused_bandwidth(scenario: Scenario, graph: NetworkGraph) -> Iterator[Problem]:
    """Find bandwidths without effect: doubling one changes no capacity."""
    network = graph.network
    tries: list[tuple[KeyPath, dict[str, object]]] = []
    if network.bandwidth is not None and not (network.up and network.down):
        tries.append((("network", "bandwidth"), {"bandwidth": 2 * network.bandwidth}))
    for index, link in enumerate(network.link):
        if link.bandwidth is not None and link.between[0] == link.between[1]:
            double = link.model_copy(update={"bandwidth": 2 * link.bandwidth})
            changed = (*network.link[:index], double, *network.link[index + 1 :])
            tries.append((("network", "link", index, "bandwidth"), {"link": changed}))
    for where, update in tries:
        other = scenario.model_copy(update={"network": network.model_copy(update=update)})
        if [line.capacity for line in NetworkGraph(other).lines] == [
            other_line.capacity for other_line in graph.lines
        ]:
            yield Problem(
                where, "changes nothing, as every link and network card has its own; remove it"
            )


def _background(graph: NetworkGraph | Hosts, names: list[str] | None = None) -> Iterator[Problem]:
    """Check the background traffic; `names`: the places there are, None where that was checked."""
    for index, traffic in enumerate(graph.network.background):
        where: KeyPath = ("network", "background", index)
        strange = [name for name in traffic.between if names is not None and name not in names]
        if names is not None and strange:
            what = f"there is no {strange[0]}; {nearest(strange[0], names, 'places')}"
            yield Problem((*where, "between"), what)
            continue
        lines = [graph.lines[number] for number in graph.between(*traffic.between).lines]
        left = [
            line.capacity - sum(rate for rate, _ in line.loads)
            for line in lines
            if not line.per_flow
        ]
        if min(left, default=inf) == inf:
            what = "has no effect, as nothing on its route is shared; remove it, or give that "
            yield Problem((*where, "between"), what + "link a bandwidth")
        elif traffic.rate is not None and min(left) <= 0:
            yield Problem((*where, "rate"), "leaves nothing of the bandwidth there; write less")


def _platform(scenario: Scenario) -> Iterator[Problem]:
    """Check a platform: the places it must have, and keys that it already determines."""
    platform, network = scenario.network.platform, scenario.network
    assert platform is not None
    for key in sorted({"latency", "bandwidth", "link", "regions"} & network.model_fields_set):
        yield Problem(("network", key), f"{platform.file} says it; remove one of them")
    if network.outage:
        yield Problem(("network", "outage"), "not with network.platform; remove one of them")
    for where in nics(scenario):
        yield Problem(where, f"{platform.file} says it, as a link of the host; remove it")
    named = {**regions(scenario), scenario.server.region: ("server", "region")}
    traffic = [
        (("network", "background", index, "between"), name)
        for index, background in enumerate(network.background)
        for name in background.between
    ]
    wanted = [*((where, name) for name, where in named.items() if name), *traffic]
    strange = [(where, name) for where, name in wanted if name not in platform]
    for where, name in strange:
        homes = [home for home in platform.homes if home not in platform.host_links]
        near = nearest(name, [*platform.members, *homes], "hosts and zones")
        yield Problem(where, f"no host of {platform.file}; {near}")
    if not strange:
        yield from _routes(scenario)


def _routes(scenario: Scenario) -> Iterator[Problem]:
    try:
        hosts = Hosts(scenario)
        for source, to in pairwise([*hosts.sites, hosts.sites[0]]):
            hosts.between(source, to)
            hosts.between(to, source)
        yield from _background(hosts)
    except InputError as error:
        yield Problem(("network", "platform"), str(error))
