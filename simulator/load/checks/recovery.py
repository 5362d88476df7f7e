"""Check the settings about crashes, slow workers and devices, alone and with each algorithm."""

from collections.abc import Iterator, Mapping

from paceline.simulator.cluster.failures import any_in
from paceline.simulator.cluster.workers import devices, shares_devices
from paceline.simulator.inputs.messages import KeyPath, nearest
from paceline.simulator.load.checks.combinations import Problem
from paceline.simulator.programs import Program
from paceline.simulator.scenario.cluster import Cluster, Group, Recovery
from paceline.simulator.scenario.scenario import Scenario


def recovery_problems(scenario: Scenario, programs: Mapping[str, Program]) -> Iterator[Problem]:
    """Yield the problems of [recovery], [[cluster.crash]] and failures."""
    written = scenario.recovery.model_fields_set
    yield from _crashes(scenario, programs)
    if not any_in(scenario):
        for key in sorted(written - {"backup"}):
            yield Problem(
                ("recovery", key),
                "nothing ever crashes; add [[cluster.crash]] or cluster.failures, or remove it",
            )
    else:
        yield from _policy(scenario.recovery)
    yield from _algorithms(scenario, programs)


def _policy(recovery: Recovery) -> Iterator[Problem]:
    if recovery.policy == "wait" and recovery.backup:
        yield Problem(
            ("recovery", "backup"),
            "a mean that leaves out the slowest does not wait for a crashed worker; write "
            'recovery.policy = "shrink", or remove it',
        )
    if recovery.policy == "restart" and recovery.backup:
        yield Problem(("recovery", "backup"), 'not with policy = "restart"; remove one of them')
    if recovery.policy == "restart" and recovery.checkpoint is None:
        yield Problem(
            ("recovery", "policy"),
            "there is no checkpoint to restart from; add "
            'recovery.checkpoint = { every = 100, cost = "5 s" }, in steps',
        )
    if recovery.policy != "restart" and recovery.checkpoint is not None:
        yield Problem(
            ("recovery", "checkpoint"),
            'has no effect; write recovery.policy = "restart", or remove it',
        )
    if recovery.policy == "wait" and recovery.timeout:
        yield Problem(
            ("recovery", "timeout"),
            'contradicts waiting; write recovery.policy = "shrink" or "restart", or remove it',
        )


def _crashes(scenario: Scenario, programs: Mapping[str, Program]) -> Iterator[Problem]:
    workers, shared = scenario.cluster.workers, devices(scenario)
    served = any(programs[each.name].server for each in scenario.algorithm)
    for index, crash in enumerate(scenario.cluster.crash):
        path = ("cluster", "crash", index, "worker")
        if crash.worker == "server":
            if scenario.algorithm and not served:
                yield Problem(path, "no algorithm here has a server; remove it")
        elif crash.worker >= workers:
            yield Problem(path, f"there is none; write a rank from 0 to {workers - 1}")
        elif shared[crash.worker] is not None:
            yield Problem(
                path,
                "shares a device, and is as fast as that lets it; write a worker that has its own",
            )
        if crash.lasts is None and scenario.recovery.policy == "restart":
            yield Problem(
                ("cluster", "crash", index),
                'no restart can go on without this worker; write lasts = "10 min", say',
            )
    if scenario.server.failures and scenario.algorithm and not served:
        yield Problem(("server", "failures"), "no algorithm here has a server; remove it")


def _algorithms(scenario: Scenario, programs: Mapping[str, Program]) -> Iterator[Problem]:
    recovery, workers = scenario.recovery, scenario.cluster.workers
    if recovery.backup >= workers:
        yield Problem(
            ("recovery", "backup"), f"leaves out all {workers} workers; write {workers - 1} or less"
        )
    if recovery.backup and shares_devices(scenario):
        yield Problem(
            ("recovery", "backup"),
            "a worker that shares a device cannot be left out; remove it, or cluster.device",
        )
    for algorithm in scenario.algorithm:
        program = programs[algorithm.name]
        if recovery.policy not in program.recovers and any_in(scenario):
            choices = " or ".join(f'"{each}"' for each in program.recovers)
            yield Problem(
                ("recovery", "policy"),
                f"{algorithm.name} cannot; write {choices}, or remove that algorithm",
            )
        elif recovery.backup and "shrink" not in program.recovers:
            yield Problem(
                ("recovery", "backup"),
                f"{algorithm.name} has no means over all workers; remove one of them",
            )


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
