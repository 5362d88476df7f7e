"""What one mean of the whole model costs, on either kind of network."""

from math import inf

from paceline.simulator.network.closed_form import ClosedForm, CollectiveCost
from paceline.simulator.scenario.scenario import Scenario


def mean_cost(scenario: Scenario) -> CollectiveCost:
    """Expected cost of averaging the whole model, with nobody else on the network.

    Where every transfer is simulated, so is this one, at the start of a run and with the expected
    latencies.
    """
    if scenario.network.model == "closed-form" or scenario.cluster.workers == 1:
        return ClosedForm(scenario).mean_cost()
    from paceline.simulator.network.flow_network import FlowNetwork, SharedNetwork  # noqa: PLC0415 - they load numba
    from paceline.simulator.network.topology.routes import Topology  # noqa: PLC0415

    workers = scenario.cluster.workers
    ends = []
    for size in (0.0, scenario.model.bytes):
        topology = Topology(scenario)
        ground = SharedNetwork(topology, seed=0, devices=0)
        carrier = FlowNetwork(scenario, topology, ground.fabric, seed=0)
        plan = carrier.prepared("mean", tuple(range(workers))).plan
        ground.fabric.start(0.0, plan, [size] * workers)
        found = ground.fabric.advance(inf)
        ends.append(inf if found is None else found[0])
    return CollectiveCost(ends[1] - ends[0] if ends[0] < inf else inf, ends[0])
