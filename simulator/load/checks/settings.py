"""Check settings that are each possible and together are not, or that cannot be simulated.

Each check yields `Problem`s: the path of the key at fault, the fault and the remedy.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ...cluster.prices import HOURLY
from ...errors import InputError
from ...inputs.messages import KeyPath, nearest, sentence
from ...objectives.learning_curve.objective import baseline
from ...objectives.plugins import ObjectiveError, other
from ...programs import Program
from ...programs.codecs.codec import CODECS, Raw
from ...programs.pieces.schedule import ConstantSchedule, FixedPeriod, Period
from ...programs.pieces.transform import Identity
from ...scenario.cluster import Checkpoint, Cluster, Group
from ...scenario.redraw import knows
from ...scenario.scenario import Algorithm, Scenario, arguments
from ...scenario.table import LEAST, MOST
from ...scenario.tables import LearningCurve, NoObjective, Optimizer, Range
from .combinations import Problem, combinations, multiplier
from .network import network_problems
from .recovery import pacing_problems, recovery_problems

SAVING = "recovery.checkpoint.every"  # the one key of [tune] that is no program's parameter


def problems(scenario: Scenario, programs: Mapping[str, Program]) -> dict[KeyPath, str]:
    """Return the first problem of each key, in a scenario whose tables are each well formed."""
    faults = [*_objective(scenario, programs)]
    if faults:
        return dict(faults)
    faults = [
        *_cluster(scenario),
        *_prices(scenario),
        *pacing_problems(scenario),
        *network_problems(scenario, programs),
        *_run(scenario),
        *_algorithms(scenario, programs),
        *recovery_problems(scenario, programs),
        *_jobs(scenario),
        *multiplier(scenario),
        *_tune(scenario, programs),
        *_calibration(scenario),
        *_named(("overhead",), scenario.overhead, programs),
        *_codecs(scenario),
    ]
    first: dict[KeyPath, str] = {}
    for path, what in faults:
        first.setdefault(path, what)
    return first


def _objective(scenario: Scenario, programs: Mapping[str, Program]) -> Iterator[Problem]:
    """Check an objective whose library, model or file may be missing or of no use."""
    spec = scenario.objective
    try:
        if isinstance(spec, LearningCurve):
            yield from _named(("objective", "own"), spec.own, programs)
            baseline(spec)
        if maker := other(scenario.objective):
            maker.check(scenario)
    except ObjectiveError as why:
        yield Problem(why.path, why.what)
    except InputError as why:
        yield Problem(("objective", "curve", "file"), str(why))


def _named(where: KeyPath, tables: Sequence[Any], known: Collection[str]) -> Iterator[Problem]:
    """Check that the `algorithm` of each table, where it names one, is a program."""
    for index, table in enumerate(tables):
        if table.algorithm is not None and table.algorithm not in known:
            what = f"unknown program; {nearest(table.algorithm, known, 'programs')}"
            yield Problem((*where, index, "algorithm"), what)


def _codecs(scenario: Scenario) -> Iterator[Problem]:
    """Check that measured codecs are known, or used, and have one time for each size."""
    used = {
        getattr(algorithm.parameters.get("codec"), "kind", "raw")
        for algorithm in scenario.algorithm
    }
    kinds = [kind for kind in CODECS.kinds if kind != "raw"]
    for index, codec in enumerate(scenario.codec):
        if codec.kind not in {*kinds, *used}:
            what = f"unknown codec; {nearest(codec.kind, kinds, 'codecs')}"
            yield Problem(("codec", index, "kind"), what)
        if (codec.kind, codec.size) in {
            (earlier.kind, earlier.size) for earlier in scenario.codec[:index]
        }:
            yield Problem(("codec", index, "size"), f"{codec.kind} has times at this size already")


def _calibration(scenario: Scenario) -> Iterator[Problem]:
    """Check that every standard error, and every list of draws, is that of a number."""
    calibration = scenario.calibration
    if calibration is None:
        return
    every = [("sd", key) for key in calibration.sd] + [("draws", key) for key in calibration.draws]
    for table, key in every:
        if not knows(scenario, key):
            yield Problem(
                ("calibration", table, key),
                "no number or time of this scenario is called so; write a dotted key such as "
                "overhead.0.issue or cluster.compute",
            )
    for key, factors in calibration.draws.items():
        if min(factors) <= 0 and not key.endswith("_exponent"):  # which alone may have both signs
            yield Problem(("calibration", "draws", key), "not above zero; calibrate anew")


def _nodes(scenario: Scenario) -> Iterator[tuple[KeyPath, Cluster | Group]]:
    yield ("cluster",), scenario.cluster
    for index, group in enumerate(scenario.cluster.group):
        yield ("cluster", "group", index), group


def _cluster(scenario: Scenario) -> Iterator[Problem]:
    cluster = scenario.cluster
    for where, nodes in _nodes(scenario):
        if nodes.compute is not None and nodes.compute.expectation == 0 and not cluster.allow_zero:
            yield Problem(
                (*where, "compute"),
                'computing takes no time; write a time such as "300 ms", '
                "or cluster.allow_zero = true if zero is meant",
            )
    yield from _extra_delays(scenario)
    names = [group.name for group in cluster.group]
    for index, name in enumerate(names):
        if (first := names.index(name)) < index:
            yield Problem(
                ("cluster", "group", index, "name"),
                f"also the name of cluster.group[{first}]; give each its own",
            )
    total = sum(group.workers for group in cluster.group)
    if total > cluster.workers:
        yield Problem(
            ("cluster", "workers"),
            f"the groups have {total} workers in all; write cluster.workers = {total}, "
            "or make the groups smaller",
        )


def _extra_delays(scenario: Scenario) -> Iterator[Problem]:
    """Check that every extra delay has a share of workers, and every share a delay."""
    cluster, team = scenario.cluster, scenario.team
    counts = {team.workers[ranks[0]].group: count for ranks, count in team.delayed}
    shared = "extra_share" in cluster.model_fields_set
    if cluster.extra is not None and not shared:
        yield Problem(
            ("cluster", "extra"),
            "no worker gets it; set the share of the workers that do, such as "
            "cluster.extra_share = 0.5",
        )
    if shared and all(nodes.extra is None for _, nodes in _nodes(scenario)):
        yield Problem(("cluster", "extra_share"), "a share of no delay; add cluster.extra")
    for index, group in enumerate(cluster.group):
        where = ("cluster", "group", index)
        if group.extra is not None and group.extra_share is None and not shared:
            yield Problem((*where, "extra"), "no worker gets it; add extra_share to the group")
        if group.extra_share is not None and group.extra is None and cluster.extra is None:
            yield Problem((*where, "extra_share"), "a share of no delay; add extra to the group")
        if group.extra_share is not None and not counts.get(group.name, 0):
            yield Problem((*where, "extra_share"), _no_worker(group.workers))
    if shared and not any(counts.values()):
        yield Problem(("cluster", "extra_share"), _no_worker(cluster.workers))


def _prices(scenario: Scenario) -> Iterator[Problem]:
    for index, group in enumerate(scenario.cluster.group):
        for key in HOURLY:
            if getattr(group, key) is not None and getattr(scenario.cost, key) is None:
                yield Problem(
                    ("cluster", "group", index, key),
                    f"others have no such price; write cost.{key}, which is 0 if they are free",
                )


def _no_worker(workers: int) -> str:
    return f"none of {workers} workers; write a share of at least {0.5 / workers:.3g}"


def _run(scenario: Scenario) -> Iterator[Problem]:
    run, learns = scenario.run, not isinstance(scenario.objective, NoObjective)
    if run.steps is None and run.duration is None:
        yield Problem(
            ("run",), 'neither steps nor duration; write run.steps = 2000 or run.duration = "2 h"'
        )
    if run.steps is None and not all(scenario.team.mean_compute):
        yield Problem(
            ("run", "duration"),
            "may never pass, because computing takes no time; add run.steps = 2000",
        )
    if run.target_loss is not None and not learns:
        yield Problem(
            ("run", "target_loss"),
            'objective.kind = "none" has no loss; remove the target, or choose an objective such '
            'as objective.kind = "quadratic"',
        )
    if learns and run.steps is not None and (run.evaluate_every or 0) > run.steps:
        yield Problem(
            ("run", "evaluate_every"),
            f"above run.steps = {run.steps}, so nothing is ever evaluated; write at most that",
        )


def _algorithms(scenario: Scenario, programs: Mapping[str, Program]) -> Iterator[Problem]:
    kind = scenario.objective.kind
    seen: dict[str, int] = {}
    for index, algorithm in enumerate(scenario.algorithm):
        where, program = ("algorithm", index), programs[algorithm.name]
        if algorithm.label in seen:
            yield Problem(
                (*where, "label"),
                f'"{algorithm.label}" is also the label of algorithm[{seen[algorithm.label]}]; '
                "give each its own",
            )
        seen.setdefault(algorithm.label, index)
        if program.needs_loss and kind in ("bound", "none"):
            yield Problem(
                (*where, "name"),
                f'reads the training loss, which objective.kind = "{kind}" does not have; remove '
                'it, or choose objective.kind = "quadratic" or "softmax"',
            )
        elif kind == "bound" and not program.bound_covers:
            covered = ", ".join(
                name for name, covering in programs.items() if covering.bound_covers
            )
            yield Problem(
                (*where, "name"),
                f'objective.kind = "bound" does not cover it, only {covered}; remove it, or '
                'choose objective.kind = "quadratic"',
            )
        elif kind == "bound":
            yield from _beyond_theorem_two(where, algorithm)
        fields = program.parameters.model_fields
        if scenario.optimizer.momentum and program.local_momentum not in fields:
            yield Problem(
                ("optimizer", "momentum"),
                f"{algorithm.name} has none; write momentum in the [[algorithm]] tables that do",
            )
        messages = program.server is not None or program.gossips
        timed = {"latency", "platform"} & scenario.network.model_fields_set
        if messages and not timed:
            yield Problem(
                ("network", "latency"),
                f"missing; {algorithm.name} sends messages, which network.duration does not time; "
                'write network.latency = "80 ms"',
            )
        for key, what in combinations(scenario, program, algorithm):
            yield Problem(_written(where, algorithm, key), what)


def _written(where: KeyPath, algorithm: Algorithm, key: str) -> KeyPath:
    """Return the path at which a scenario sets a parameter of an algorithm."""
    return (*where, key) if key in algorithm.table else ("optimizer", key)


def _beyond_theorem_two(where: KeyPath, algorithm: Algorithm) -> Iterator[Problem]:
    """Check the parameters for which Theorem 2 does not hold."""
    plain: dict[str, Any] = {
        "lr": ConstantSchedule, "tau": (FixedPeriod, Period), "momentum": Identity,
        "outer": Identity, "codec": Raw,
    }  # fmt: skip
    for key, kind in plain.items():
        value = algorithm.parameters.get(key)
        if value is not None and not isinstance(value, kind):
            yield Problem(
                _written(where, algorithm, key),
                'objective.kind = "bound" is for plain SGD with a constant learning rate, '
                "uncompressed, whose workers share a period; remove it, or choose "
                'objective.kind = "quadratic"',
            )
        elif key == "lr" and value is not None and not LEAST <= value(1) <= MOST:
            yield Problem(
                _written(where, algorithm, key),
                f"Theorem 2 is for rates from {LEAST:g} to {MOST:g}; choose another unit",
            )


def _jobs(scenario: Scenario) -> Iterator[Problem]:
    for index, _ in enumerate(scenario.job):
        if scenario.network.model != "flows":
            yield Problem(
                ("job", index), 'has no effect here; write network.model = "flows", or remove it'
            )


def _tune(scenario: Scenario, programs: Mapping[str, Program]) -> Iterator[Problem]:
    for name, choices in scenario.tune.items():
        if name not in programs:
            yield Problem(("tune", name), f"unknown program; {nearest(name, programs, 'programs')}")
            continue
        parameters = programs[name].parameters.model_fields
        for key, choice in choices.items():
            where = ("tune", name, key)
            if key not in parameters and key != SAVING:
                yield Problem(where, f"unknown parameter; {nearest(key, parameters, 'parameters')}")
                continue
            tries: list[tuple[KeyPath, Any]]
            if isinstance(choice, Range):
                tries = [((*where, "low"), choice.low), ((*where, "high"), choice.high)]
                if choice.low >= choice.high:
                    yield Problem((*where, "low"), f"not below high = {choice.high}; swap them")
                elif choice.log and choice.low <= 0:
                    yield Problem((*where, "low"), "log = true needs a range above 0; raise it")
            else:
                tries = [((*where, index), value) for index, value in enumerate(choice)]
            for path, value in tries:
                for fault in _faults(programs[name], key, value, scenario.optimizer):
                    yield Problem(path, sentence(fault, path, value))


def _faults(program: Program, key: str, value: Any, optimizer: Optimizer) -> list[ErrorDetails]:
    """Return the faults of a value of one parameter, or of `SAVING`."""
    try:
        if key == SAVING:
            Checkpoint.model_validate({"every": value})
        else:
            program.parse(arguments(program, {key: value}, optimizer))
    except ValidationError as error:
        last = key.rpartition(".")[2]
        return [fault for fault in error.errors() if fault["loc"][:1] == (last,)]
    return []
