"""Check the settings of [network] against each other, the cluster and the network model."""

from collections.abc import Iterator, Mapping
from itertools import permutations
from math import inf

from ...inputs.messages import KeyPath, dotted, nearest
from ...network.collectives import COLLECTIVES
from ...programs import Program
from ...scenario.network import Link, Network
from ...scenario.scenario import Scenario
from .combinations import Problem
from .places import nics, regions

REMEDY = 'only network.model = "flows" simulates it; write that, or remove it'
LINK_KEYS = ("sharing", "profile", "outages")


def network_problems(scenario: Scenario, programs: Mapping[str, Program]) -> Iterator[Problem]:
    """Yield the problems of [network], and of the places that groups and the server name."""
    problems = [*_settings(scenario), *_places(scenario), *_table(scenario, programs)]
    model = scenario.network.model
    problems += {"closed-form": _closed_form, "flows": _flows}[model](scenario)
    yield from problems
    if model == "flows" and not problems:
        from .graph import (  # noqa: PLC0415 - only with flows
            graph_problems,
        )

        yield from graph_problems(scenario)


def _settings(scenario: Scenario) -> Iterator[Problem]:
    network = scenario.network
    given = network.collective == "given"
    if given and network.duration is None:
        yield Problem(
            ("network", "collective"),
            'the duration of a mean must be given; add network.duration = "1 s"',
        )
    if not given and network.duration is not None:
        yield Problem(
            ("network", "duration"),
            f'contradicts network.collective = "{network.collective}", which works the duration '
            'out; remove it, or write network.collective = "given"',
        )
    if not given and "duration_grows" in network.model_fields_set:
        yield Problem(
            ("network", "duration_grows"),
            'only a given duration has it; write network.collective = "given", or remove it',
        )
    yield from _library(scenario)
    yield from _lines(scenario)
    yield from _windows(network)
    if network.transport == "ideal":
        for key in ("mtu", "sockets", "burst"):
            if key in network.model_fields_set:
                yield Problem(
                    ("network", key),
                    'only TCP has it; write network.transport = "tcp", or remove it',
                )
    elif given:
        yield Problem(
            ("network", "transport"),
            'contradicts network.collective = "given", whose duration is all; remove one of them',
        )
    if not given and "latency" not in network.model_fields_set and network.platform is None:
        yield Problem(("network", "latency"), 'missing; write network.latency = "80 ms"')


def _library(scenario: Scenario) -> Iterator[Problem]:
    """Check that a library may choose how to carry collectives out, and has what it needs."""
    network, library = scenario.network, scenario.network.library
    if library == "ideal":
        return
    if network.collective != "ring":
        yield Problem(
            ("network", "collective"),
            f'contradicts network.library = "{library}", which chooses the algorithm; remove one',
        )
    if network.platform is not None:
        yield Problem(
            ("network", "library"),
            "not with network.platform, whose links it does not know; remove one of them",
        )
    calibration = scenario.calibration
    beside = calibration is not None and calibration.library == "gloo"
    if library == "gloo" and not beside and scenario.costs.latency_factor != 1:
        yield Problem(
            ("network", "library"),
            "counts two latencies a hop, and so does overhead.latency_factor = "
            f'{scenario.costs.latency_factor:g}; remove that, or write network.library = "ideal"',
        )


def _lines(scenario: Scenario) -> Iterator[Problem]:
    """Check uplinks and downlinks, and the devices of workers, against the keys beside them."""
    cluster, network = scenario.cluster, scenario.network
    for index, group in enumerate(cluster.group):
        where: KeyPath = ("cluster", "group", index)
        if (group.up or group.down) and group.nic:
            yield Problem((*where, "nic"), "says it both ways; remove it, or up and down")
        if group.devices == 1 and group.inner is not None:
            yield Problem((*where, "inner"), "joins devices; write devices = 8, or remove it")
    for index, link in enumerate(network.link):
        if link.sharing == "half-duplex" and (link.up or link.down):
            yield Problem(
                ("network", "link", index, "sharing"),
                "both directions share one bandwidth; write that, and remove up and down",
            )


def _windows(network: Network) -> Iterator[Problem]:
    """Check that a TCP window sets a rate, which takes a round trip with a mean."""
    links = [(("network", "link", index), link) for index, link in enumerate(network.link)]
    lines: list[tuple[KeyPath, Network | Link]] = [(("network",), network), *links]
    for where, line in lines:
        keys = line.model_fields_set & {"tcp_window", "latency", "jitter"}
        laws = (getattr(line, key) or getattr(network, key) for key in ("latency", "jitter"))
        endless = any(law is not None and law.expectation == inf for law in laws)
        if keys and endless and (line.tcp_window or network.tcp_window):
            yield Problem(
                (*where, max(keys)),
                f"no rate follows from a TCP window, because {dotted(where)}.latency has no mean; "
                "remove the window, or choose another distribution",
            )


def _places(scenario: Scenario) -> Iterator[Problem]:
    network, homes = scenario.network, regions(scenario)
    if COLLECTIVES[network.collective].needs_regions and None in homes:
        yield Problem(
            ("network", "collective"),
            "needs every worker in a region; add cluster.region, or region to each "
            "[[cluster.group]]",
        )
    if "server" in homes:
        yield Problem(homes["server"], "the parameter server's own place; choose another name")
    places = sorted({scenario.server.region or "server", *filter(None, homes)})
    seen: dict[frozenset[str], int] = {}
    for index, link in enumerate(network.link):
        for end, name in enumerate(link.between):
            if network.closed_form and name not in places:
                yield Problem(
                    ("network", "link", index, "between", end),
                    f"no worker is in this region; {nearest(name, places, 'places')}; or set "
                    "cluster.region, or region in a [[cluster.group]]; routers need "
                    'network.model = "flows"',
                )
        pair = frozenset(link.between)
        if pair in seen:
            yield Problem(
                ("network", "link", index, "between"),
                f"network.link[{seen[pair]}] joins the same two; keep one of them",
            )
        seen.setdefault(pair, index)


def _table(scenario: Scenario, programs: Mapping[str, Program]) -> Iterator[Problem]:
    """Check that the table has every pair of regions, and that no link contradicts it."""
    table, homes = scenario.network.regions, regions(scenario)
    if table is None or scenario.network.platform is not None:
        return
    places = {**homes}
    if any(programs[algorithm.name].server is not None for algorithm in scenario.algorithm):
        places.setdefault(scenario.server.region or "server", ("server", "region"))
    for place, where in places.items():
        if place is None:
            yield Problem(where, f"missing; write a region of {table.file} for every worker")
        elif place not in table.regions:
            yield Problem(
                where,
                f"{place} is not in {table.file}; {nearest(place, table.regions, 'regions')}",
            )
    named = [place for place in places if place in table.regions]
    for pair in permutations(named, 2):
        joined = any({*link.between} == {*pair} for link in scenario.network.link)
        if table.row(*pair) is None and not joined:
            yield Problem(
                ("network", "regions"), f"has no line from {pair[0]} to {pair[1]}; add one"
            )
            break
    for index, link in enumerate(scenario.network.link):
        row = table.row(*link.between)
        for key in ("latency", "bandwidth"):
            if row and getattr(link, key) is not None and getattr(row, key) is not None:
                yield Problem(
                    ("network", "link", index, key),
                    f"{table.file} says it too; remove one of them",
                )


def _closed_form(scenario: Scenario) -> Iterator[Problem]:
    """Refuse the settings that only the flow model simulates."""
    network = scenario.network
    slow_start = () if network.transport == "tcp" else ("slow_start",)
    for key in ("fairness", *slow_start, "platform", "background", "outage"):
        if key in network.model_fields_set:
            yield Problem(("network", key), REMEDY)
    for index, link in enumerate(network.link):
        for key in LINK_KEYS:
            if key in link.model_fields_set:
                yield Problem(("network", "link", index, key), REMEDY)
    yield from (Problem(where, REMEDY) for where in nics(scenario))


def _flows(scenario: Scenario) -> Iterator[Problem]:
    network = scenario.network
    if network.burst is not None:
        yield Problem(
            ("network", "burst"),
            'only network.model = "closed-form" has it; write that, or remove it',
        )
    if COLLECTIVES[network.collective].messages is None:
        yield Problem(
            ("network", "collective"),
            "has no transfers to simulate; choose a collective such as "
            '"ring", or write network.model = "closed-form"',
        )
    for index, traffic in enumerate(network.background):
        where: KeyPath = ("network", "background", index)
        if (traffic.rate is None) == (traffic.flows is None):
            yield Problem(where, 'write either rate = "200 Mbit/s" or flows = 3')
        if (traffic.on is None) != (traffic.off is None):
            missing = "off" if traffic.off is None else "on"
            yield Problem(where, f'{missing} is missing; write {missing} = "1 s", say')
        for key in ("on", "off"):
            law = getattr(traffic, key)
            if law is not None and law.expectation == 0:
                yield Problem((*where, key), 'takes no time; write a time such as "1 s"')
        if traffic.between[0] == traffic.between[1]:
            yield Problem((*where, "between"), "goes nowhere; name two different places")
