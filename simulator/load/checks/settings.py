"""Check settings that contradict each other, or that cannot be simulated."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ...cluster.prices import HOURLY
from ...errors import InputError
from ...inputs.messages import KeyPath, sentence
from ...objectives.build import dimension_of
from ...objectives.learning_curve.objective import baseline
from ...objectives.plugins import ObjectiveError, plugin_of
from ...programs import Program
from ...programs.codecs.codec import CODECS, Raw
from ...programs.pieces.schedule import ConstantSchedule, FixedPeriod, Period
from ...programs.pieces.transform import Identity
from ...scenario.cluster import Checkpoint
from ...scenario.fields import LEAST, MOST
from ...scenario.redraw import knows
from ...scenario.scenario import Algorithm, Scenario, arguments
from ...scenario.tables import LearningCurve, NoObjective, Optimizer, Range
from .cluster import cluster_problems, recovery_problems
from .network import network_problems
from .refusal import Problem, broken, unknown

SAVING = "recovery.checkpoint.every"  # a key of [tune] that is not a parameter of the program
PLAIN: dict[str, Any] = {
    "lr": ConstantSchedule, "tau": (FixedPeriod, Period), "momentum": Identity,
    "outer": Identity, "block_momentum": Identity, "codec": Raw,
}  # fmt: skip
"""Kinds of parameters for which Theorem 2 holds."""


def problems(scenario: Scenario) -> dict[KeyPath, str]:
    """Return the first problem of each key in a scenario whose tables are well formed."""
    faults = [*_objective(scenario)]
    if faults:
        return dict(faults)
    faults = [
        *cluster_problems(scenario),
        *_prices(scenario),
        *network_problems(scenario),
        *_run(scenario),
        *_algorithms(scenario),
        *recovery_problems(scenario),
        *_multiplier(scenario),
        *_tune(scenario),
        *_calibration(scenario),
        *_programs(("overhead",), scenario.overhead, scenario),
        *_codecs(scenario),
    ]
    first: dict[KeyPath, str] = {}
    for path, fault in faults:
        first.setdefault(path, fault)
    return first


def _objective(scenario: Scenario) -> Iterator[Problem]:
    """Check that an objective's library, model and file exist and are usable."""
    spec = scenario.objective
    try:
        if isinstance(spec, LearningCurve):
            yield from _programs(("objective", "own"), spec.own, scenario)
            baseline(spec)
        if maker := plugin_of(spec):
            maker.check(scenario)
    except ObjectiveError as why:
        yield Problem(why.path, why.what)
    except InputError as why:
        yield Problem(("objective", "curve", "file"), str(why))


def _programs(where: KeyPath, tables: Sequence[Any], scenario: Scenario) -> Iterator[Problem]:
    """Check that the program named by `algorithm` in each table exists."""
    programs = scenario.programs
    for index, table in enumerate(tables):
        yield from unknown((*where, index, "algorithm"), table.algorithm, programs, "program")


def _codecs(scenario: Scenario) -> Iterator[Problem]:
    """Check that measured codecs exist and have one time for each size."""
    used = [getattr(one.parameters.get("codec"), "kind", "raw") for one in scenario.algorithm]
    kinds = [kind for kind in CODECS.kinds if kind != "raw"]
    for index, codec in enumerate(scenario.codec):
        if codec.kind not in used:
            yield from unknown(("codec", index, "kind"), codec.kind, kinds, "codec")
        before = [(earlier.kind, earlier.size) for earlier in scenario.codec[:index]]
        twice = (codec.kind, codec.size) in before
        yield from broken((twice, ("codec", index, "size"), "codec-size-twice"), kind=codec.kind)


def _calibration(scenario: Scenario) -> Iterator[Problem]:
    """Check that every standard error and list of draws belongs to a number."""
    for name in ("sd", "draws"):
        for key, value in getattr(scenario.calibration, name, {}).items():
            path = ("calibration", name, key)
            # an exponent may have either sign
            low = name == "draws" and min(value) <= 0 and not key.endswith("_exponent")
            yield from broken(
                (not knows(scenario, key), path, "calibration-key"),
                (low, path, "draws-not-positive"),
            )


def _prices(scenario: Scenario) -> Iterator[Problem]:
    for index, group in enumerate(scenario.cluster.group):
        for key in HOURLY:
            alone = getattr(group, key) is not None and getattr(scenario.cost, key) is None
            yield from broken((alone, ("cluster", "group", index, key), "price-of-others"), key=key)
    cost, (_, currency) = scenario.cost, scenario.tune.day_worth or (0.0, None)
    yield from broken(
        (currency and not cost.priced, "tune.day_worth", "worth-without-price"),
        (currency not in (None, cost.currency), "tune.day_worth", "other-currency"),
        currency=cost.currency, other=currency,
    )  # fmt: skip


def _run(scenario: Scenario) -> Iterator[Problem]:
    run, learns = scenario.run, not isinstance(scenario.objective, NoObjective)
    late = learns and run.steps is not None and (run.evaluate_every or 0) > run.steps
    idle = run.steps is None and not all(scenario.team.mean_compute)
    yield from broken(
        (run.steps is None and run.duration is None, "run", "no-length"),
        (idle, "run.duration", "endless"),
        (run.target_loss is not None and not learns, "run.target_loss", "target-without-loss"),
        (late, "run.evaluate_every", "never-evaluated"),
        steps=run.steps,
    )


def _algorithms(scenario: Scenario) -> Iterator[Problem]:
    kind, labels = scenario.objective.kind, [algorithm.label for algorithm in scenario.algorithm]
    programs = scenario.programs
    covered = ", ".join(
        name for name, program in programs.items() if program.bound_covers or program.needs_loss
    )
    timed = {"latency", "platform"} & scenario.network.model_fields_set
    for index, algorithm in enumerate(scenario.algorithm):
        where, program = ("algorithm", index), programs[algorithm.name]
        first, fields = labels.index(algorithm.label), program.parameters.model_fields
        blind = program.needs_loss and kind == "none"
        beyond = kind == "bound" and not (program.bound_covers or program.needs_loss)
        needs_momentum = scenario.optimizer.momentum and program.local_momentum not in fields
        talks = program.server is not None or program.gossips
        values = {"kind": kind, "covered": covered, "name": algorithm.name}
        yield from broken(
            (first < index, (*where, "label"), "label-twice"),
            (blind, (*where, "name"), "needs-loss"),
            (beyond, (*where, "name"), "bound-covers"),
            **values,
            label=algorithm.label,
            first=first,
        )
        if kind == "bound" and not beyond:
            yield from _beyond_theorem_two(where, algorithm)
        yield from broken(
            (needs_momentum, "optimizer.momentum", "no-momentum"),
            (talks and not timed, "network.latency", "untimed-messages"),
            **values,
        )
        yield from _parameters(where, scenario, program, algorithm)


def _written(where: KeyPath, algorithm: Algorithm, key: str) -> KeyPath:
    """Return the path at which a scenario sets a parameter of an algorithm."""
    return (*where, key) if key in algorithm.table else ("optimizer", key)


def _beyond_theorem_two(where: KeyPath, algorithm: Algorithm) -> Iterator[Problem]:
    """Check the parameters for which Theorem 2 does not hold."""
    for key, kind in PLAIN.items():
        value, path = algorithm.parameters.get(key), _written(where, algorithm, key)
        wrong_kind = value is not None and not isinstance(value, kind)
        rate = value(1) if key == "lr" and value is not None and not wrong_kind else LEAST
        yield from broken(
            (wrong_kind, path, "bound-plain"),
            (not LEAST <= rate <= MOST, path, "bound-rate"),
            least=LEAST,
            most=MOST,
        )


def _parameters(
    where: KeyPath, scenario: Scenario, program: Program, algorithm: Algorithm
) -> Iterator[Problem]:
    """Check the parameters of one algorithm against each other and the cluster."""
    given, table, workers = algorithm.parameters, algorithm.table, scenario.cluster.workers
    at = partial(_written, where, algorithm)
    crowded = program.server is not None and (given.get("k") or 0) > workers
    replaced = table.keys() if given.get("inner") is not None else ()
    overlap, tau = given.get("overlap"), given.get("tau", 0)
    yield from _codec(where, scenario, program, algorithm)
    yield from broken(
        (crowded, at("k"), "k-too-large"),
        (given.get("epoch") and given.get("decision") == "each", at("epoch"), "epoch-each"),
        ("epoch_flush" in table and not given.get("epoch"), at("epoch_flush"), "no-epoch"),
        (given.get("threshold") and "step_size" in table, at("step_size"), "two-thresholds"),
        ("momentum" in replaced, at("momentum"), "beside-inner"),
        ("compensation" in replaced, at("compensation"), "beside-inner"),
        (type(overlap) is int and overlap >= tau, at("overlap"), "overlap-too-long"),
        workers=workers,
        tau=tau,
    )


def _codec(
    where: KeyPath, scenario: Scenario, program: Program, algorithm: Algorithm
) -> Iterator[Problem]:
    given = algorithm.parameters
    codec: Any = given.get("codec")
    momentum, key = given.get(program.local_momentum), program.local_momentum
    twice = getattr(codec, "needs_collective", False)
    corrects = getattr(codec, "carries_momentum", False) and codec.momentum
    displaced = not program.sends_gradients or given.get("inner") is not None
    doubled = momentum and not isinstance(momentum, Identity) and not displaced
    path, late = _written(where, algorithm, "codec"), getattr(codec, "feeds_back", False)
    yield from broken(
        (twice and program.server is not None, path, "codec-no-mean"),
        (twice and given.get("epoch_flush") == "paper", path, "codec-no-mean-twice"),
        (twice and program.rounds and scenario.cluster.sampling, path, "codec-sampling"),
        (corrects and displaced, path, "codec-displacements"),
        (program.sends_distances and late, path, "codec-distances"),
        (corrects and doubled, _written(where, algorithm, key), "momentum-twice"),
        kind=getattr(codec, "kind", "raw"),
        name=program.name,
    )
    yield from _entries(where, scenario, algorithm, getattr(codec, "ratio", 1.0))


def _entries(
    where: KeyPath, scenario: Scenario, algorithm: Algorithm, ratio: float
) -> Iterator[Problem]:
    """Check that pieces of a vector have entries, and that a sparse codec sends one."""
    given, entries = algorithm.parameters, dimension_of(scenario.objective)
    if entries is None:
        return
    pieces = next((key for key in ("buckets", "fragments") if key in given), "")
    coded = getattr(given.get("codec"), "kind", "raw") != "raw"
    parts, whose = given.get(pieces), "of this objective"
    sizes = (1,) * parts if isinstance(parts, int) else parts or ()
    if len(sizes) > entries and (coded or not isinstance(parts, int)):
        path = _written(where, algorithm, pieces)
        yield from broken((True, path, "too-many-pieces"), pieces=len(sizes), entries=entries)
        return
    if pieces and coded:
        entries, whose = max(1, entries * min(sizes) // sum(sizes)), "of a piece"
    if ratio * entries < 1:
        larger = ", or a larger objective.dimension" * (scenario.objective.kind == "quadratic")
        values = {"entries": entries, "whose": whose, "least": 1 / entries, "larger": larger}
        path = _written(where, algorithm, "codec")
        yield from broken((True, path, "codec-keeps-nothing"), **values)


def _multiplier(scenario: Scenario) -> Iterator[Problem]:
    """Check that all hpsgd tables set the same cost of averaging a model."""
    key = "local_sgd_sync_multiplier"
    algorithms = scenario.algorithm
    stated = [(n, one.parameters[key]) for n, one in enumerate(algorithms) if key in one.table]
    has_local_sgd = any(one.name == "local-sgd" and "codec" not in one.table for one in algorithms)
    for index, times in stated:
        first, cost = stated[0]
        yield from broken(
            (not has_local_sgd and index == first, ("algorithm", index, key), "multiplier-unused"),
            (times != cost, ("algorithm", index, key), "multiplier-twice"),
            first=first,
            times=cost,
        )


def _tune(scenario: Scenario) -> Iterator[Problem]:
    programs = scenario.programs
    for name, choices in scenario.tune.programs.items():
        yield from unknown(("tune", name), name, programs, "program")
        fields = programs[name].parameters.model_fields if name in programs else {}
        for key, choice in choices.items() if name in programs else ():
            where = ("tune", name, key)
            if key not in fields and key != SAVING:
                yield from unknown(where, key, fields, "parameter")
                continue
            if isinstance(choice, Range):
                down = choice.low >= choice.high
                yield from broken(
                    (down, (*where, "low"), "range-upside-down"),
                    (choice.log and choice.low <= 0 and not down, (*where, "low"), "log-range"),
                    high=choice.high,
                )
                tries: dict[str | int, Any] = {"low": choice.low, "high": choice.high}
            else:
                tries = dict(enumerate(choice))
            for last, value in tries.items():
                for fault in _faults(programs[name], key, value, scenario.optimizer):
                    yield Problem((*where, last), sentence(fault, (*where, last), value))


def _faults(program: Program, key: str, value: Any, optimizer: Optimizer) -> list[ErrorDetails]:
    """Return the faults of a value of one parameter, or of a key in `SAVING`."""
    try:
        if key == SAVING:
            Checkpoint.model_validate({"every": value})
        else:
            program.parse(arguments(program, {key: value}, optimizer))
    except ValidationError as error:
        last = key.rpartition(".")[2]
        return [fault for fault in error.errors() if fault["loc"][:1] == (last,)]
    return []
