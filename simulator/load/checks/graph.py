"""Check a scenario against the links and routes of `network.model = "flows"`."""

from collections.abc import Iterator
from itertools import pairwise

from ...errors import InputError
from ...inputs.messages import KeyPath, nearest
from ...network.topology.graph import Hosts, NetworkGraph
from ...scenario.scenario import Scenario
from .cluster import nics, regions
from .refusal import Problem, broken


def graph_problems(scenario: Scenario) -> Iterator[Problem]:
    """Yield the problems of the graph, if each setting is valid alone."""
    cluster = scenario.cluster
    if sum(group.workers for group in cluster.group) > cluster.workers:
        return  # refused elsewhere; these workers have no definite place
    if scenario.network.platform is not None:
        yield from _platform(scenario)
        return
    graph = NetworkGraph(scenario)
    yield from _links(graph)
    yield from _unused_bandwidth(scenario, graph)


def _links(graph: NetworkGraph) -> Iterator[Problem]:
    for index in graph.idle():
        link = graph.network.link[index]
        strange = [name for name in link.between if name not in graph.homes] or [link.between[0]]
        near = nearest(strange[0], graph.homes, "places")
        path: KeyPath = ("network", "link", index, "between")
        yield from broken((True, path, "carries-nothing"), places=" or ".join(strange), near=near)
    for index, link in enumerate(graph.network.link):
        if (
            graph.places.setting(*link.between, "bandwidth") is None
            and "profile" in link.model_fields_set
        ):
            yield from broken((True, ("network", "link", index, "profile"), "no-bandwidth"))


def _unused_bandwidth(scenario: Scenario, graph: NetworkGraph) -> Iterator[Problem]:
    """Refuse bandwidths without effect: those that change no capacity when doubled."""
    network, capacities = graph.network, [line.capacity for line in graph.lines]
    tries: dict[KeyPath, dict[str, object]] = {}
    if network.bandwidth is not None and not (network.up and network.down):
        tries["network", "bandwidth"] = {"bandwidth": 2 * network.bandwidth}
    for index, link in enumerate(network.link):
        if link.bandwidth is not None and link.between[0] == link.between[1]:
            double = link.model_copy(update={"bandwidth": 2 * link.bandwidth})
            changed = (*network.link[:index], double, *network.link[index + 1 :])
            tries["network", "link", index, "bandwidth"] = {"link": changed}
    for where, update in tries.items():
        doubled = scenario.model_copy(update={"network": network.model_copy(update=update)})
        same = [line.capacity for line in NetworkGraph(doubled).lines] == capacities
        yield from broken((same, where, "bandwidth-unused"))


def _platform(scenario: Scenario) -> Iterator[Problem]:
    """Check that a platform has all named places, and sets no key a second time."""
    platform, network = scenario.network.platform, scenario.network
    assert platform is not None
    file = platform.file
    for key in sorted({"latency", "bandwidth", "link", "regions"} & network.model_fields_set):
        yield from broken((True, f"network.{key}", "platform-says-it"), file=file)
    for where in nics(scenario):
        yield from broken((True, where, "platform-nic"), file=file)
    named = {**regions(scenario), scenario.server.region: ("server", "region")}
    wanted: list[tuple[KeyPath, str]] = [(where, name) for name, where in named.items() if name]
    strange = [(where, name) for where, name in wanted if name not in platform]
    for where, name in strange:
        places = (place for place in platform.members if place not in platform.host_links)
        near = nearest(name, places, "hosts and zones")
        yield from broken((True, where, "no-host"), file=file, near=near)
    if strange:
        return
    try:
        hosts = Hosts(scenario)
        for source, to in pairwise([*hosts.sites, hosts.sites[0]]):
            hosts.between(source, to)
            hosts.between(to, source)
    except InputError as error:
        yield Problem(("network", "platform"), str(error))
