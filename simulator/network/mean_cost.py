"""Cost of one mean of the whole model, with either network model."""

from math import inf

from paceline.simulator.network.closed_form import ClosedForm, CollectiveCost
from paceline.simulator.scenario.scenario import Scenario


def mean_cost(scenario: Scenario) -> CollectiveCost:
    """Return the expected cost of averaging the whole model, with no other traffic.

    With `model = "flows"` the mean is simulated, at time 0 and with the expected latencies: once
    without bytes, which leaves the latency, and once with them.
    """
    if scenario.network.model == "closed-form" or scenario.cluster.workers == 1:
        return ClosedForm(scenario).mean_cost()
    from paceline.simulator.network.flow_network import FlowNetwork, SharedNetwork  # noqa: PLC0415 - they load numba
    from paceline.simulator.network.topology.routes import Topology  # noqa: PLC0415

    workers = scenario.cluster.workers
    ends = []
    for size in (0.0, scenario.model.bytes):
        topology = Topology(scenario)
        shared = SharedNetwork(topology, seed=0, devices=0)
        flows = FlowNetwork(scenario, topology, shared.fabric, seed=0)
        plan = flows.prepared("mean", tuple(range(workers))).plan
        shared.fabric.start(0.0, plan, [size] * workers)
        found = shared.fabric.advance(inf)
        ends.append(inf if found is None else found[0])
    return CollectiveCost(ends[1] - ends[0] if ends[0] < inf else inf, ends[0])
