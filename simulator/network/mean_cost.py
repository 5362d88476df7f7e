"""Compute the cost of a mean, and of a message, with either network model."""

from collections.abc import Callable
from functools import cache
from math import inf

from ..scenario.scenario import Scenario
from . import tcp
from .closed_form import ClosedForm, CollectiveCost


def mean_cost(scenario: Scenario) -> CollectiveCost:
    """Return the expected cost of averaging the whole model without other traffic.

    With `model = "flows"` the mean is simulated at time 0 with the expected latencies: once
    without bytes, for the latency alone, and once with them.
    """
    if scenario.network.closed_form or scenario.cluster.workers == 1:
        return ClosedForm(scenario).mean_cost()
    from .flow_network import FlowNetwork  # noqa: PLC0415 - it loads numba

    workers, sizes = scenario.cluster.workers, [0.0, scenario.model.bytes]
    network = scenario.network.model_copy(update={"setup": 0})
    bare = scenario.model_copy(update={"network": network})
    ends = []
    # a library's choice depends on size, and its overhead is neither latency nor transmission
    for size in sizes if scenario.network.library == "ideal" else sizes[1:]:
        flows = FlowNetwork(bare, seed=0)
        flows.start(0.0, "mean", tuple(range(workers)), [size] * workers, drawn=False)
        ended = flows.fabric.advance(inf)
        ends.append(inf if ended is None else ended[0])
    first = 0.0 if len(ends) == 1 else ends[0]
    return CollectiveCost(ends[-1] - first if first < inf else inf, first)


def message_cost(scenario: Scenario) -> Callable[[int, int], CollectiveCost]:
    """Return a function (source, to) of the expected cost of sending the model."""
    size = scenario.model.bytes
    if scenario.network.closed_form:
        network = ClosedForm(scenario)

        def formula(source: int, to: int) -> CollectiveCost:
            link = network.message_link(source, to)
            return CollectiveCost(size / link.bandwidth, link.latency)

        return formula
    from .topology.graph import Topology  # noqa: PLC0415 - only with flows

    topology = Topology(scenario)

    def on_graph(source: int, to: int) -> CollectiveCost:
        route = topology.route((source, to))
        rate = min(route.limit, *(topology.lines[line].capacity for line in route.lines))
        return CollectiveCost(size / rate, sum(law.expectation for law in route.laws))

    return on_graph


def download_source(scenario: Scenario, served: bool) -> Callable[[int], int | None]:
    """Return a function from a rank to the rank that sends the model to it, or None.

    The server sends it if it has the model (`served`) or computes the means. Otherwise worker 0
    does, and worker 1 sends it to worker 0.
    """
    workers = scenario.cluster.workers
    if served or scenario.network.collective == "server":
        return lambda rank: workers
    return lambda rank: int(rank == 0) if workers > 1 else None


def download_cost(scenario: Scenario, served: bool) -> Callable[[int], tuple[float, float]]:
    """Return a function from a rank to its download's transmission and latency (s).

    The transmission is on the link from its `download_source`. A server's messages also pass its
    network card.
    """
    workers, cost = scenario.cluster.workers, message_cost(scenario)
    source = download_source(scenario, served)
    passing = scenario.model.bytes / (scenario.server.bandwidth or inf)

    @cache
    def of(rank: int) -> tuple[float, float]:
        sender = source(rank)
        if sender is None:
            return 0.0, 0.0
        sent = cost(sender, rank)
        return max(sent.transmission, passing if sender == workers else 0.0), sent.latency

    return of


def word_cost(scenario: Scenario) -> float:
    """Return the expected seconds of `ClosedForm.word`, with either network model."""
    workers = scenario.cluster.workers
    if scenario.network.closed_form or workers == 1:
        return ClosedForm(scenario).word
    cost, share = message_cost(scenario), tcp.costs(scenario).hop_bytes / 2 / scenario.model.bytes
    around = (cost((rank - 1) % workers, rank) for rank in range(workers))
    return max(hop.latency + share * hop.transmission for hop in around)
