"""Check the settings about workers: their speeds, devices, crashes and absences."""

from collections.abc import Iterator, Sequence
from typing import Any

from ...inputs.messages import KeyPath
from ...scenario.cluster import Cluster, Group, Recovery
from ...scenario.scenario import Scenario
from ...scenario.tables import Softmax, Torch
from .refusal import Problem, broken


def nodes(scenario: Scenario) -> Iterator[tuple[KeyPath, Cluster | Group]]:
    """Yield the tables that describe workers, with their key paths."""
    yield ("cluster",), scenario.cluster
    for index, group in enumerate(scenario.cluster.group):
        yield ("cluster", "group", index), group


def regions(scenario: Scenario) -> dict[str | None, KeyPath]:
    """Return the key path that first names each region of workers; None: no region."""
    cluster = scenario.cluster
    paths: dict[str | None, KeyPath] = {}
    for index, group in enumerate(cluster.group):
        where: KeyPath = ("cluster", "group", index) if group.region else ("cluster",)
        paths.setdefault(group.region or cluster.region, (*where, "region"))
    if cluster.workers > sum(group.workers for group in cluster.group):
        paths.setdefault(cluster.region, ("cluster", "region"))
    return paths


def nics(scenario: Scenario) -> list[KeyPath]:
    """Return the key paths at which bandwidths of network cards are set."""
    return [(*where, "nic") for where, table in nodes(scenario) if table.nic is not None]


def cluster_problems(scenario: Scenario) -> Iterator[Problem]:
    """Yield the problems of the workers' numbers, names and compute times."""
    cluster = scenario.cluster
    for where, table in nodes(scenario):
        law = table.compute
        zero = law is not None and law.expectation == 0 and not cluster.allow_zero
        yield from broken((zero, (*where, "compute"), "compute-zero"))
    yield from _extra_delays(scenario)
    given, data = cluster.samples_of_workers, isinstance(scenario.objective, Softmax | Torch)
    some = ((*where, "samples") for where, table in nodes(scenario) if table.samples)
    for path in some if not data or len(given) < cluster.workers else ():
        reason = "samples-of-some" if data else "samples-without-data"
        yield from broken((True, path, reason), kind=scenario.objective.kind)
    names = [group.name for group in cluster.group]
    for index, name in enumerate(names):
        first, path = names.index(name), ("cluster", "group", index, "name")
        yield from broken((first < index, path, "group-name-twice"), first=first)
    total = sum(group.workers for group in cluster.group)
    yield from broken((total > cluster.workers, "cluster.workers", "groups-too-large"), total=total)


def _extra_delays(scenario: Scenario) -> Iterator[Problem]:
    """Check that every extra delay has a share of workers, and the reverse."""
    cluster, team = scenario.cluster, scenario.team
    counts = {team.workers[ranks[0]].group: count for ranks, count in team.delayed}
    shared = "extra_share" in cluster.model_fields_set
    delays = any(table.extra is not None for _, table in nodes(scenario))
    for where, table in nodes(scenario):
        of_cluster = isinstance(table, Cluster)
        share, count = shared if of_cluster else table.extra_share is not None, table.workers
        of_group = "" if of_cluster else "group-"
        unshared = table.extra is not None and not share and not shared
        vain = share and not (delays if of_cluster else table.extra or cluster.extra)
        reached = any(counts.values()) if isinstance(table, Cluster) else counts.get(table.name)
        yield from broken(
            (unshared, (*where, "extra"), f"{of_group}extra-of-nobody"),
            (vain, (*where, "extra_share"), f"{of_group}share-of-no-delay"),
            (share and not reached, (*where, "extra_share"), "share-of-no-worker"),
            workers=count,
            least=0.5 / max(count, 1),
        )


def recovery_problems(scenario: Scenario) -> Iterator[Problem]:
    """Yield the problems of crashes, absences, sampled clients and recoveries."""
    cluster, algorithms = scenario.cluster, scenario.algorithm
    policies = [scenario.under(algorithm).recovery for algorithm in algorithms]
    restarts = any(recovery.policy == "restart" for recovery in policies)
    yield from _crashes(scenario, restarts=restarts)
    yield from _membership(scenario, restarts=restarts)
    clients = cluster.sampling.clients if cluster.sampling else None
    crowded = (clients or 0) > cluster.workers
    yield from broken(
        (crowded, "cluster.sampling.clients", "sampling-too-many"), workers=cluster.workers
    )
    if cluster.drops:
        owners = [where for where, table in nodes(scenario) if table.drop]
        flows = not scenario.network.closed_form
        selects = any(scenario.programs[algorithm.name].selects for algorithm in algorithms)
        yield from broken(
            (cluster.sampling is None, (*owners[0], "drop"), "drop-of-nobody"),
            (cluster.sampling and flows and selects, (*owners[0], "drop"), "drop-of-flows"),
        )
    yield from _policies(scenario, policies)


def _policies(scenario: Scenario, policies: Sequence[Recovery]) -> Iterator[Problem]:
    """Yield the problems of each algorithm's policy for crashes and absences."""
    algorithms = scenario.algorithm
    general, tables = ("recovery",), dict[KeyPath, tuple[Recovery, Any]]()
    if not algorithms:
        tables[general] = scenario.recovery, {}
    for index, (algorithm, recovery) in enumerate(zip(algorithms, policies, strict=True)):
        table = algorithm.table.get("recovery")
        if table is not None:
            keys = table if isinstance(table, dict) else {}
            tables["algorithm", index, "recovery"] = recovery, keys
        elif algorithm.recovery is None:  # otherwise a note says that the policy has no effect
            tables[general] = recovery, {}
    for path, (recovery, keys) in tables.items():
        for (key,), sentence in _policy(scenario, recovery):
            if path == general or key in keys:
                yield Problem((*path, key), sentence)
            elif key in ("policy", "backup"):  # the general recovery is checked above
                yield Problem(path, sentence)


def _policy(scenario: Scenario, recovery: Recovery) -> Iterator[Problem]:
    """Yield the problems of a recovery's keys that contradict its policy."""
    workers, policy, backups = scenario.cluster.workers, recovery.policy, recovery.backups
    leaves_out, key = backups or policy == "quorum", "backup" if backups else "policy"
    of_all = policy == "quorum" and isinstance(recovery.quorum, int) and recovery.quorum > workers
    waits = policy == "wait" and recovery.backup and scenario.unstable
    yield from broken(
        (waits, "backup", "backup-waits"),
        (policy in ("restart", "quorum") and recovery.backup, "backup", "backup-policy"),
        (scenario.cluster.sampling and leaves_out, key, "slowest-twice"),
        (policy == "restart" and recovery.checkpoint is None, "policy", "no-checkpoint"),
        (of_all, "quorum", "quorum-too-large"),
        (backups >= workers, "backup", "backup-of-all"),
        policy=policy,
        workers=workers,
        last=workers - 1,
    )


def _membership(scenario: Scenario, *, restarts: bool) -> Iterator[Problem]:
    cluster = scenario.cluster
    for where, table in nodes(scenario):
        rank = max(table.membership.trace, default=0) if table.membership else 0
        rule = rank >= cluster.workers, (*where, "membership"), "membership-rank"
        yield from broken(rule, rank=rank, last=cluster.workers - 1)
    yield from broken((cluster.elastic and restarts, "cluster.membership", "membership-restart"))


def _crashes(scenario: Scenario, *, restarts: bool) -> Iterator[Problem]:
    workers = scenario.cluster.workers
    unserved = scenario.algorithm and not any(algorithm.served for algorithm in scenario.algorithm)
    for index, crash in enumerate(scenario.cluster.crash):
        where, rank = ("cluster", "crash", index), crash.worker
        beyond = rank != "server" and rank >= workers
        yield from broken(
            (rank == "server" and unserved, (*where, "worker"), "no-server"),
            (beyond, (*where, "worker"), "crash-rank"),
            (crash.lasts is None and restarts, where, "crash-for-good"),
            last=workers - 1,
        )
    yield from broken((scenario.server.failures and unserved, "server.failures", "no-server"))
