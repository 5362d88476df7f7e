"""Check the settings about crashes, slow workers and devices, alone and with each algorithm."""

from collections.abc import Iterator, Mapping
from typing import Any

from ...inputs.messages import KeyPath, nearest
from ...programs import Program
from ...scenario.cluster import Cluster, Group, Recovery
from ...scenario.scenario import Scenario
from .combinations import Problem


def recovery_problems(scenario: Scenario, programs: Mapping[str, Program]) -> Iterator[Problem]:
    """Yield the problems of [recovery], of algorithms' own, [[cluster.crash]] and failures."""
    yield from _crashes(scenario, programs)
    yield from _membership(scenario)
    cluster = scenario.cluster
    if cluster.sampling and (cluster.sampling.clients or 0) > cluster.workers:
        yield Problem(
            ("cluster", "sampling", "clients"),
            f"more than the {cluster.workers} workers; write {cluster.workers} or less",
        )
    if cluster.drops:
        yield from _drop(scenario, programs)
    seen: dict[KeyPath, Recovery] = {}
    for index, algorithm in enumerate(scenario.algorithm):
        own = algorithm.table.get("recovery")
        path: KeyPath = ("recovery",) if own is None else ("algorithm", index, "recovery")
        if own is None and algorithm.recovery is not None:
            continue  # it has no effect on this one: a note says so
        seen[path] = scenario.under(algorithm).recovery
    if not scenario.algorithm:
        seen[("recovery",)] = scenario.recovery
    for path, recovery in seen.items():
        own = _own(scenario, path)
        for key, what in _policy(scenario, recovery):
            if key in own:
                yield Problem((*path, key), what)
            elif path == ("recovery",) or key in ("policy", "backup"):  # others are inherited
                yield Problem(path if path[0] == "algorithm" else (*path, key), what)


def _drop(scenario: Scenario, programs: Mapping[str, Program]) -> Iterator[Problem]:
    groups = scenario.cluster.group
    where = next((("group", i) for i, group in enumerate(groups) if group.drop), ())
    path: KeyPath = ("cluster", *(() if scenario.cluster.drop else where), "drop")
    if scenario.cluster.sampling is None:
        yield Problem(
            path, "no client is selected; write cluster.sampling = { clients = 10 }, or remove it"
        )
    elif not scenario.network.closed_form and any(
        programs[algorithm.name].selects for algorithm in scenario.algorithm
    ):
        yield Problem(
            path,
            "a report over shared links is not cut off amid its way; write network.model = "
            '"closed-form"',
        )


def _own(scenario: Scenario, path: KeyPath) -> Mapping[str, Any]:
    """Return the keys of an algorithm's own recovery; none where it is a policy alone."""
    table = scenario.algorithm[int(path[1])].table["recovery"] if path[0] == "algorithm" else {}
    return table if isinstance(table, dict) else {}


def _policy(scenario: Scenario, recovery: Recovery) -> Iterator[tuple[str, str]]:
    """Yield the keys of one recovery that contradict its policy; those without effect are noted."""
    workers, policy = scenario.cluster.workers, recovery.policy
    if policy == "wait" and recovery.backup and scenario.unstable:
        yield (
            "backup",
            "a mean that leaves out the slowest does not wait for a crashed worker; write "
            'recovery.policy = "shrink", or remove it',
        )
    if policy in ("restart", "quorum") and recovery.backup:
        yield "backup", f'not with policy = "{policy}"; remove one of them'
    if scenario.cluster.sampling is not None and (recovery.backups or policy == "quorum"):
        yield (
            "backup" if recovery.backups else "policy",
            "leaves out the slowest beside cluster.sampling, which does so itself; write its over "
            "and deadline, and remove it",
        )
    if policy == "restart" and recovery.checkpoint is None:
        yield (
            "policy",
            "there is no checkpoint to restart from; add "
            'recovery.checkpoint = { every = 100, cost = "5 s" }, in steps',
        )
    if policy == "quorum" and isinstance(recovery.quorum, int) and recovery.quorum > workers:
        yield "quorum", f"more than all {workers} workers; write {workers} or less"
    if recovery.backups >= workers:
        yield "backup", f"leaves out all {workers} workers; write {workers - 1} or less"
    if (recovery.backups or policy == "quorum") and scenario.team.shares_devices:
        yield (
            "backup" if recovery.backups else "policy",
            "a worker that shares a device cannot be left out; remove it, or cluster.device",
        )


def _membership(scenario: Scenario) -> Iterator[Problem]:
    cluster, shared = scenario.cluster, scenario.team.devices
    tables: list[tuple[KeyPath, Cluster | Group]] = [(("cluster",), cluster)]
    tables += [(("cluster", "group", index), group) for index, group in enumerate(cluster.group)]
    for where, table in tables:
        path, spec = (*where, "membership"), table.membership
        if spec is not None and max(spec.trace, default=0) >= cluster.workers:
            yield Problem(
                path,
                f"says when worker {max(spec.trace)} is there, and there is none; write ranks from "
                f"0 to {cluster.workers - 1}, or raise cluster.workers",
            )
        elif spec is not None and any(name is not None for name in shared):
            yield Problem(path, "not where workers share devices; remove it, or cluster.device")
    restarts = [
        scenario.under(algorithm).recovery.policy == "restart" for algorithm in scenario.algorithm
    ]
    if cluster.elastic and any(restarts):
        yield Problem(
            ("cluster", "membership"),
            'not with policy = "restart", by which the same workers repeat all since a checkpoint; '
            'write failures = { between = "6 h", repair = "20 min" } in its place, '
            'or recovery.policy = "shrink"',
        )


def _crashes(scenario: Scenario, programs: Mapping[str, Program]) -> Iterator[Problem]:
    workers, shared = scenario.cluster.workers, scenario.team.devices
    served = any(programs[algorithm.name].server for algorithm in scenario.algorithm)
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
        if crash.lasts is None and any(
            scenario.under(algorithm).recovery.policy == "restart"
            for algorithm in scenario.algorithm
        ):
            yield Problem(
                ("cluster", "crash", index),
                'no restart can go on without this worker; write lasts = "10 min", say',
            )
    if scenario.server.failures and scenario.algorithm and not served:
        yield Problem(("server", "failures"), "no algorithm here has a server; remove it")


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
    device, names = (
        cluster.devices.get(group.device),
        [described.name for described in cluster.described],
    )
    if device is None:
        yield Problem((*where, "device"), f"unknown; {nearest(group.device, names, 'devices')}")
    elif device.shared_by > 1:
        for key in ("profile", "bursts", "failures"):
            of_group, all_have = getattr(group, key), getattr(cluster, key)
            if of_group is not None or all_have is not None:
                path = (*where, key) if of_group is not None else ("cluster", key)
                yield Problem(
                    path,
                    f"{group.name}'s workers share a device, and are as fast as that lets them; "
                    f"write {key} in groups with devices of their own",
                )
