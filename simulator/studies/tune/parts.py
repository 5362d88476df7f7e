"""Parts of the cluster to train on: sites, groups, numbers of workers, one alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...distributions.law import BY_NAME
from ...errors import InputError
from ...inputs.messages import nearest, toml
from ...inputs.units import to_si
from ...load.document import merged
from ...network.closed_form import ClosedForm
from ...results.verdict import ALONE
from ...scenario.scenario import Scenario
from ...scenario.tables import LearningCurve

NOISE = {"noise": 0.5, "gradient_variance": 1.0}
"""Powers of a batch by which the noise of its gradient falls, by keys of an objective."""
Table = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A part of the cluster: some of its workers, or more of a group.

    `counts`: workers of each group, and of none. `longer`, `more`: the factors of a worker's step
    and of the number of steps. `patch`: further changes of the scenario.
    """

    name: str
    counts: tuple[int, ...]
    longer: float = 1.0
    more: float = 1.0
    patch: Mapping[str, Any] = field(default_factory=dict)

    def applied(self, table: Mapping[str, Any]) -> Table:
        """Return the table of a scenario in which these workers train."""
        whole = merged(table, self.patch)
        cluster = whole["cluster"] | {"workers": sum(self.counts)}
        pairs = zip(cluster.get("group", ()), self.counts, strict=False)  # the last are in none
        if groups := [dict(group) | {"workers": count} for group, count in pairs]:
            cluster["group"] = groups
        for nodes in (cluster, *groups):
            if "compute" in nodes and self.longer != 1:
                nodes["compute"] = scaled(nodes["compute"], self.longer)
        return whole | {"cluster": cluster}

    def overrides(self, table: Mapping[str, Any]) -> list[str]:
        """Return the arguments of `--set` that turn a scenario into this part."""
        new = self.applied(table)
        return [f"{key}={toml(new[key])}" for key in new if new[key] != table.get(key)]


def scaled(law: Any, by: float) -> Any:
    """Return a scenario's distribution of times, multiplied by `by`."""
    if isinstance(law, str):
        return f"{to_si(law, 'time') * by!r} s"
    if not isinstance(law, dict):
        return law
    if law["dist"] == "mixture":
        return law | {"components": [scaled(dict(part), by) for part in law["components"]]}
    family = BY_NAME.get(law["dist"])
    times = () if family is None else family.times()
    return law | {key: scaled(law[key], by) for key in times if key in law}


def parts(scenario: Scenario) -> list[Part]:
    """Return the parts of the cluster that [tune] names, without repeats. Raises InputError."""
    tune, places, sizes = scenario.tune, sites(scenario), _sizes(scenario)
    names = [*(group.name for group in scenario.cluster.group), ""]
    made: dict[tuple[int, ...], str] = {}
    for index, count in enumerate(tune.sites):
        if count > len(places):
            raise InputError(
                f"{scenario.file}: tune.sites[{index}] = {count}: the scenario has {len(places)} "
                "(its regions, else its groups, else its workers); write at most that"
            )
        part = first_sites(scenario, count)
        made.setdefault(part.counts, part.name)
    for index, chosen in enumerate(tune.groups):
        if unknown := [name for name in chosen if name not in names[:-1]]:
            remedy = nearest(unknown[0], names[:-1], "groups")
            where = f"{scenario.file}: tune.groups[{index}]"
            raise InputError(f"{where}: no group {unknown[0]}; {remedy}")
        counts = tuple(size * (name in chosen) for name, size in zip(names, sizes, strict=True))
        made.setdefault(counts, " + ".join(chosen))
    for n in tune.workers:
        made.setdefault(_first(scenario, n), f"{n} worker{'s' * (n > 1)}")
    return [_part(scenario, name, counts) for counts, name in made.items()]


def first_sites(scenario: Scenario, count: int) -> Part:
    """Return the first `count` sites."""
    chosen = np.sum([*sites(scenario).values()][:count], axis=0)
    return _part(scenario, f"{count} site{'s' * (count > 1)}", tuple(chosen.tolist()))


def _sizes(scenario: Scenario) -> tuple[int, ...]:
    """Return the workers of each group, and of none."""
    sizes = [group.workers for group in scenario.cluster.group]
    return (*sizes, scenario.cluster.workers - sum(sizes))


def sites(scenario: Scenario) -> dict[Any, np.ndarray]:
    """Return the workers of each group, and of none, by site in the scenario's order."""
    cluster, sizes = scenario.cluster, _sizes(scenario)
    regions = [group.region or cluster.region for group in (*cluster.group, cluster)]
    keys: list[Any] = [region or place for place, region in enumerate(regions)]
    places: dict[Any, np.ndarray] = {}
    for place, size in enumerate(sizes):
        if size:
            one = np.eye(len(sizes), dtype=int)[place]
            places[keys[place]] = places.get(keys[place], 0 * one) + size * one
    if len(places) == 1 and not any(regions):
        ((one,),) = (np.sign([*places.values()]),)
        return dict.fromkeys(range(cluster.workers), one)
    return places


def _first(scenario: Scenario, workers: int) -> tuple[int, ...]:
    """Return how many of the first `workers` are in each group, and in none."""
    sizes = [*_sizes(scenario)]
    filled = [place for place, size in enumerate(sizes) if size]
    if workers > sum(sizes):
        if len(filled) > 1:
            raise InputError(
                f"{scenario.file}: tune.workers = {workers}: the scenario has {sum(sizes)}; "
                "to try more, give a group more workers"
            )
        sizes[filled[0]] = workers
    return tuple(np.diff(np.minimum(np.cumsum([0, *sizes]), workers)).tolist())


def alone(scenario: Scenario) -> Part | None:
    """Return the part with only the fastest worker; None for clients, one box or other losses."""
    spec, workers = scenario.objective, scenario.cluster.workers
    if not isinstance(spec, LearningCurve) or scenario.cluster.sampling or workers == 1:
        return None
    if len(ClosedForm(scenario).hosts(range(workers))) == 1:
        return None
    rank, sizes = int(np.argmin(scenario.team.mean_compute)), _sizes(scenario)
    ends = np.cumsum(sizes)
    counts = np.eye(len(sizes), dtype=int)[int(np.searchsorted(ends, rank, side="right"))]
    constant = scenario.tune.parts and scenario.tune.global_batch == "constant"
    return _part(scenario, ALONE, tuple(counts.tolist()), constant=constant)


def _part(
    scenario: Scenario, name: str, counts: tuple[int, ...], constant: bool | None = None
) -> Part:
    """Return a part whose steps, or whole run, use as many tokens as before."""
    cluster = scenario.cluster
    workers = cluster.model_copy(update={"workers": sum(counts)}).participants
    times = cluster.participants / workers if workers else 1.0
    if times == 1:
        return Part(name, counts)
    if constant is None:
        constant = scenario.tune.global_batch == "constant"
    if constant:
        return Part(name, counts, times, 1.0, _larger(scenario, name, times))
    steps, run = scenario.run.steps, dict[str, Any]()
    if steps and "tokens" not in scenario.table["run"]:
        run["steps"] = math.ceil(steps * times - 1e-9)
    if name == ALONE:  # its steps are summed, because no communication comes between them
        run["sampling"] = "aggregate"
    return Part(name, counts, 1.0, times, {"run": run} if run else {})


def _larger(scenario: Scenario, name: str, times: float) -> Table:
    """Return the changes that make a worker's batch `times` as large. Raises InputError."""
    spec, cost = scenario.objective, scenario.cost
    objective, remedy = dict[str, Any](), 'write tune.global_batch = "per worker"'
    if isinstance(spec, LearningCurve):
        objective["tokens"] = spec.tokens * times
        key = "batch" if hasattr(spec.curve, "batch") else "tokens"
        if getattr(spec.curve, key) is None:  # the batch of a worker's step as written
            objective["curve"] = {key: spec.tokens}
    batch = getattr(spec, "batch", None)
    if batch:
        if not (batch * times).is_integer():
            raise InputError(
                f"{scenario.file}: tune: {name}: objective.batch = {batch} times "
                f"{times:.4g} is not a whole number; choose another, or {remedy}"
            )
        objective["batch"] = int(batch * times)
    for key, power in NOISE.items():
        if value := getattr(spec, key, None):
            objective[key] = value / times**power
    for nodes in (scenario.table["cluster"], *scenario.table["cluster"].get("group", ())):
        if "file =" in toml(nodes.get("compute", "")):
            raise InputError(
                f"{scenario.file}: tune: {name}: times in a file (cluster.compute) are for one "
                f"batch size; {remedy}"
            )
    patch: Table = {"objective": objective} if objective else {}
    return patch | ({"cost": {"tokens": cost.tokens * times}} if cost.tokens else {})
