"""Check devices, profiles and bursts against each other."""

from collections.abc import Iterator

from paceline.simulator.inputs.messages import KeyPath, nearest
from paceline.simulator.load.checks.combinations import Problem
from paceline.simulator.scenario.cluster import Cluster, Group
from paceline.simulator.scenario.scenario import Scenario


def pacing_problems(scenario: Scenario) -> Iterator[Problem]:
    """Yield the problems of the workers' speeds."""
    cluster = scenario.cluster
    for index, group in enumerate(cluster.group):
        if cluster.devices:
            yield from _device(("cluster", "group", index), group, cluster)
    used = {group.device for group in cluster.group}
    seen: dict[str, int] = {}
    for index, device in enumerate(cluster.described):
        name, path = device.name, ("cluster", "device", index, "name")
        if name in seen:
            yield Problem(path, f"also the name of cluster.device[{seen[name]}]; give each its own")
        elif name not in used:
            yield Problem(
                path, f'no group computes on it; write device = "{name}" in a [[cluster.group]]'
            )
        seen.setdefault(name, index)


def _device(where: KeyPath, group: Group, cluster: Cluster) -> Iterator[Problem]:
    if group.device is None:
        return
    device, names = cluster.devices.get(group.device), [each.name for each in cluster.described]
    if device is None:
        yield Problem((*where, "device"), f"unknown; {nearest(group.device, names, 'devices')}")
    elif device.shared_by > 1:
        for key in ("profile", "bursts", "failures"):
            own, all_have = getattr(group, key), getattr(cluster, key)
            if own is not None or all_have is not None:
                path = (*where, key) if own is not None else ("cluster", key)
                yield Problem(
                    path,
                    f"{group.name}'s workers share a device, and are as fast as that lets them; "
                    f"write {key} in groups with devices of their own",
                )
