"""Find the keys at which a scenario names regions and network cards."""

from collections.abc import Iterator

from ...inputs.messages import KeyPath
from ...scenario.scenario import Scenario


def regions(scenario: Scenario) -> dict[str | None, KeyPath]:
    """Return the key path at which each region of workers is first named; None: no region."""
    cluster = scenario.cluster
    paths: dict[str | None, KeyPath] = {}
    for index, group in enumerate(cluster.group):
        where: KeyPath = ("cluster", "group", index) if group.region else ("cluster",)
        paths.setdefault(group.region or cluster.region, (*where, "region"))
    if cluster.workers > sum(group.workers for group in cluster.group):
        paths.setdefault(cluster.region, ("cluster", "region"))
    return paths


def nics(scenario: Scenario) -> Iterator[KeyPath]:
    """Yield the key paths at which bandwidths of network cards are set."""
    if scenario.cluster.nic is not None:
        yield ("cluster", "nic")
    for index, group in enumerate(scenario.cluster.group):
        if group.nic is not None:
            yield ("cluster", "group", index, "nic")
