"""Whether anything in a scenario is random: if not, one seed tells as much as many."""

from typing import Any

from ..programs import catalogue
from ..scenario.scenario import Scenario, laws

PLAIN = {  # keys by which nothing becomes random, if their times are constant; any other may
    "cluster": {
        *("workers", "compute", "region", "nic", "device", "forward_share", "allow_zero", "group"),
        *("accumulation", "beside_collectives", "crash"),
    },
    "group": {"name", "workers", "compute", "region", "nic", "device"},
    "network": {
        *("model", "collective", "latency", "bandwidth", "jitter", "tcp_window", "duration"),
        *("fairness", "slow_start", "link", "outage", "transport", "mtu", "sockets", "burst"),
    },
    "link": {"between", "latency", "bandwidth", "jitter", "tcp_window", "sharing"},
    "server": {"receive", "apply", "bandwidth", "region"},
}
TABLES = {  # tables that are plain, or examined
    *("title", "model", "objective", "optimizer", "cluster", "network", "server", "run"),
    *("algorithm", "tune", "theory", "validation", "cost"),
}
KINDS = ("none", "bound")  # objectives that draw nothing


def deterministic(scenario: Scenario) -> bool:
    """Tell whether the runs of a scenario are the same with every seed.

    False where that is not certain, as with codecs and with a user's own algorithms.
    """
    table = scenario.table
    programs = catalogue()
    return (
        table.keys() <= TABLES
        and scenario.objective.kind in KINDS
        and all(_plain(name, table.get(name, {})) for name in ("cluster", "network", "server"))
        and all(law.is_constant for law in laws(scenario.cluster, scenario.network))
        and all(
            one.name in programs and not programs[one.name].gossips and "codec" not in one.table
            for one in scenario.algorithm
        )
    )


def _plain(name: str, table: Any) -> bool:
    """Whether a table and its inner tables have plain keys only."""
    inner = [(key, entry) for key in ("group", "link") for entry in table.get(key, ())]
    return table.keys() <= PLAIN[name] and all(_plain(*entry) for entry in inner)
