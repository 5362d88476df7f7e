"""Check the settings of [network] against each other and the cluster."""

from collections.abc import Iterator
from itertools import pairwise, permutations
from math import inf

from ...errors import InputError
from ...inputs.messages import KeyPath, dotted, nearest
from ...network.collectives import COLLECTIVES
from ...network.topology.graph import Hosts, NetworkGraph
from ...scenario.network import Link, Network
from ...scenario.scenario import Scenario
from .cluster import nics, regions
from .refusal import Problem, broken

TCP_KEYS = ("mtu", "sockets", "burst", "slow_start")
LINK_KEYS = ("sharing", "profile")


def network_problems(scenario: Scenario) -> Iterator[Problem]:
    """Yield the problems of [network], and of the regions of groups and the server."""
    problems = [*_settings(scenario), *_places(scenario), *_table(scenario)]
    if scenario.network.closed_form:
        problems += _closed_form(scenario)
    else:
        problems += _flows(scenario)
    yield from problems
    if not scenario.network.closed_form and not problems:
        yield from _graph(scenario)


def _settings(scenario: Scenario) -> Iterator[Problem]:
    network, keys = scenario.network, scenario.network.model_fields_set
    given, library = network.collective == "given", network.library
    fixed = library != "ideal" and network.collective != "ring"
    factor, calibration = scenario.costs.latency_factor, scenario.calibration
    of_gloo = calibration is not None and calibration.library == "gloo"
    timed = given or "latency" in keys or network.platform is not None
    yield from broken(
        (given and network.duration is None, "network.collective", "needs-duration"),
        (not given and network.duration, "network.duration", "duration-of-collective"),
        (fixed, "network.collective", "library-chooses"),
        (library != "ideal" and network.platform, "network.library", "library-of-platform"),
        (library == "gloo" and not of_gloo and factor != 1, "network.library", "latency-twice"),
        (given and network.transport == "tcp", "network.transport", "tcp-of-given"),
        (not timed, "network.latency", "no-latency"),
        collective=network.collective,
        library=library,
        factor=factor,
    )
    for key in TCP_KEYS if network.transport == "ideal" else ():
        yield from broken((key in keys, f"network.{key}", "only-tcp"))
    inner = any(group.inner is not None for group in scenario.cluster.group)
    programs = scenario.programs
    local = [one.name for one in scenario.algorithm if not programs[one.name].sends_gradients]
    by_step = library == "byteps" and inner and local
    yield from broken((by_step, "network.library", "by-step"), names=", ".join(local))
    yield from _bandwidths(scenario)
    yield from _windows(network)


def _bandwidths(scenario: Scenario) -> Iterator[Problem]:
    """Check that each line has one bandwidth."""
    for index, group in enumerate(scenario.cluster.group):
        where: KeyPath = ("cluster", "group", index)
        alone = group.devices == 1 and group.inner
        yield from broken(
            ((group.up or group.down) and group.nic, (*where, "nic"), "nic-twice"),
            (alone, (*where, "inner"), "inner-of-one"),
        )


def _windows(network: Network) -> Iterator[Problem]:
    """Check that the round trip of every TCP window has a mean, which sets its rate."""
    lines: list[tuple[KeyPath, Network | Link]] = [(("network",), network)]
    lines += [(("network", "link", index), link) for index, link in enumerate(network.link)]
    for where, line in lines:
        keys = line.model_fields_set & {"tcp_window", "latency", "jitter"}
        laws = (getattr(line, key) or getattr(network, key) for key in ("latency", "jitter"))
        endless = any(law is not None and law.expectation == inf for law in laws)
        if keys and endless and (line.tcp_window or network.tcp_window):
            path = (*where, max(keys))
            yield from broken((True, path, "window-without-mean"), line=dotted(where))


def _places(scenario: Scenario) -> Iterator[Problem]:
    network, homes = scenario.network, regions(scenario)
    homeless = COLLECTIVES[network.collective].needs_regions and None in homes
    yield from broken(
        (homeless, "network.collective", "needs-regions"),
        ("server" in homes, homes.get("server", ()), "server-region"),
    )
    places = sorted({scenario.server.region or "server", *filter(None, homes)})
    pairs = [{*link.between} for link in network.link]
    for index, link in enumerate(network.link):
        where = ("network", "link", index, "between")
        for end, name in enumerate(link.between):
            if network.closed_form and name not in places:
                near = nearest(name, places, "places")
                yield from broken((True, (*where, end), "region-without-worker"), near=near)
        first = pairs.index({*link.between})
        yield from broken((first < index, where, "link-twice"), first=first)


def _table(scenario: Scenario) -> Iterator[Problem]:
    """Check that the table of regions has every pair, and that no link contradicts it."""
    table, links = scenario.network.regions, scenario.network.link
    if table is None or scenario.network.platform is not None:
        return
    places, file = regions(scenario), table.file
    if any(algorithm.served for algorithm in scenario.algorithm):
        places.setdefault(scenario.server.region or "server", ("server", "region"))
    for place, where in places.items():
        strange = place is not None and place not in table.regions
        near = nearest(str(place), table.regions, "regions") if strange else ""
        yield from broken(
            (place is None, where, "region-missing"),
            (strange, where, "region-unknown"),
            place=place,
            file=file,
            near=near,
        )
    joined = [{*link.between} for link in links]
    named = [place for place in places if place in table.regions]
    gaps = (
        pair for pair in permutations(named, 2) if {*pair} not in joined and not table.row(*pair)
    )
    for source, to in [*gaps][:1]:
        yield from broken((True, "network.regions", "pair-missing"), source=source, to=to)
    for index, link in enumerate(links):
        row = table.row(*link.between)
        for key in ("latency", "bandwidth"):
            twice = row and getattr(link, key) is not None and getattr(row, key) is not None
            yield from broken((twice, ("network", "link", index, key), "table-says-it"), file=file)


def _closed_form(scenario: Scenario) -> Iterator[Problem]:
    """Refuse the settings that only the flow model simulates."""
    network, keys = scenario.network, scenario.network.model_fields_set
    paths: list[KeyPath] = [("network", "platform")] if "platform" in keys else []
    for index, link in enumerate(network.link):
        beyond = [key for key in LINK_KEYS if key in link.model_fields_set]
        paths += [("network", "link", index, key) for key in beyond]
    for path in [*paths, *nics(scenario)]:
        yield from broken((True, path, "only-flows"))


def _flows(scenario: Scenario) -> Iterator[Problem]:
    network = scenario.network
    sends = COLLECTIVES[network.collective].messages is not None
    yield from broken(
        (network.burst is not None, "network.burst", "only-closed-form"),
        (not sends, "network.collective", "no-transfers"),
        (network.library == "byteps", "network.library", "only-closed-form"),
    )


def _graph(scenario: Scenario) -> Iterator[Problem]:
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
