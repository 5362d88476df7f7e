"""Compute the price of a scenario's nodes per second."""

import numpy as np

from ..scenario.scenario import Scenario
from ..scenario.tables import Prices

SECONDS_PER_HOUR, BYTES_PER_GB = 3600.0, 1e9
HOURLY = "node_hour", "device_hour"  # prices that a group may override


def devices(scenario: Scenario) -> int:
    """Return the number of devices: an island has several, any other worker one."""
    return int(worker_devices(scenario).sum())


def worker_devices(scenario: Scenario) -> np.ndarray:
    """Return the devices of each worker, in rank order."""
    groups, counts = scenario.cluster.group, np.ones(scenario.cluster.workers)
    sizes = [size for group in groups for size in [group.devices] * group.workers]
    counts[: len(sizes)] = sizes
    return counts


def worker_prices(scenario: Scenario) -> np.ndarray:
    """Return each worker's price per second: its group's, or else the scenario's."""
    cost, devices = scenario.cost, worker_devices(scenario)
    hours: np.ndarray = (cost.node_hour or 0.0) + devices * (cost.device_hour or 0.0)
    first = 0
    for group in scenario.cluster.group:
        node, device = (
            getattr(cost if getattr(group, key) is None else group, key) or 0.0 for key in HOURLY
        )
        last = first + group.workers
        hours[first:last], first = node + devices[first:last] * device, last
    return hours / SECONDS_PER_HOUR


def least_per_second(scenario: Scenario) -> float:
    """Return a lower bound on the price per second; absent workers cost nothing."""
    if not scenario.cluster.elastic:
        return price_per_second(scenario, served=False)
    stays = [worker is None for worker in scenario.cluster.of_workers("membership")]
    return float(worker_prices(scenario)[stays].sum())


def price_per_second(scenario: Scenario, *, served: bool) -> float:
    """Return the price per second of all nodes; `served`: including a server."""
    nodes, cost = scenario.cluster.workers + served, scenario.cost
    if any(getattr(group, key) is not None for group in scenario.cluster.group for key in HOURLY):
        server = served * (cost.node_hour or 0.0) / SECONDS_PER_HOUR
        return float(worker_prices(scenario).sum()) + server
    hour = nodes * (cost.node_hour or 0.0) + devices(scenario) * (cost.device_hour or 0.0)
    return hour / SECONDS_PER_HOUR


def price_per_byte(cost: Prices) -> float:
    """Return the price of a byte of egress: one that leaves its region."""
    return (cost.egress_per_gb or 0.0) / BYTES_PER_GB
