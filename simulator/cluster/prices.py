"""What a scenario's nodes cost for as long as they run."""

import numpy as np

from paceline.simulator.scenario.scenario import Scenario

SECONDS_PER_HOUR, BYTES_PER_GB = 3600.0, 1e9


def devices(scenario: Scenario) -> int:
    """Return how many devices the workers have: an island several, any other worker one."""
    more = (group.workers * (group.devices - 1) for group in scenario.cluster.group)
    return scenario.cluster.workers + sum(more)


def worker_prices(scenario: Scenario) -> np.ndarray:
    """Return the price of each worker for a second, in rank order."""
    cluster, cost = scenario.cluster, scenario.cost
    each = np.ones(cluster.workers)
    sizes = [size for group in cluster.group for size in [group.devices] * group.workers]
    each[: len(sizes)] = sizes
    hours: np.ndarray = (cost.node_hour or 0.0) + each * (cost.device_hour or 0.0)
    return hours / SECONDS_PER_HOUR


def price_per_second(scenario: Scenario, *, served: bool) -> float:
    """Return the price of all nodes for a second; `served`: a server is one of them."""
    nodes, cost = scenario.cluster.workers + served, scenario.cost
    hour = nodes * (cost.node_hour or 0.0) + devices(scenario) * (cost.device_hour or 0.0)
    return hour / SECONDS_PER_HOUR
