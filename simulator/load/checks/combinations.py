"""Check parameters of algorithms against each other, the cluster and the objective."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from ...inputs.messages import KeyPath
from ...objectives.build import dimension_of
from ...programs import Program
from ...programs.pieces.transform import Identity
from ...scenario.scenario import Algorithm, Scenario

Fault = tuple[str, str]
"""A parameter, and its fault with the remedy."""
INSTEAD = 'write codec = { kind = "top-k", ratio = 0.01 }'


class Problem(NamedTuple):
    """A key, and its fault with the remedy."""

    path: KeyPath
    what: str


def combinations(scenario: Scenario, program: Program, algorithm: Algorithm) -> Iterator[Fault]:
    """Yield the contradictions in the parameters of one algorithm."""
    yield from _codec(scenario, program, algorithm)
    yield from _cluster(scenario, program, algorithm)
    given, table = algorithm.parameters, algorithm.table
    if "epoch_flush" in table and not given.get("epoch"):
        yield "epoch_flush", "has no effect without epochs; write epoch = 100 too, or remove it"
    if given.get("threshold") is not None and "step_size" in table:
        yield "step_size", "contradicts threshold, which replaces it; remove one of them"
    if given.get("inner") is not None:
        for key in ("momentum", "compensation"):
            if key in table:
                yield key, "has no effect beside inner, which replaces it; remove one of them"
    if type(given.get("overlap")) is int and given["overlap"] >= given.get("tau", 0):
        yield "overlap", f"not below tau = {given['tau']}; write less, so that a mean ends in time"


def _codec(scenario: Scenario, program: Program, algorithm: Algorithm) -> Iterator[Fault]:
    codec: Any = algorithm.parameters.get("codec")
    momentum = algorithm.parameters.get(program.local_momentum)
    if getattr(codec, "needs_collective", False):
        if program.server is not None:
            reason = f"is two averages, one after the other, and {program.name} has none"
            yield "codec", f"{codec.kind} {reason}; {INSTEAD}"
        if algorithm.parameters.get("epoch_flush") == "paper":
            yield "codec", f'{codec.kind} gives no mean twice; write epoch_flush = "exact"'
        if program.rounds and scenario.cluster.sampling is not None:
            reason = "is two averages, and cluster.sampling draws clients for each"
            yield "codec", f"{codec.kind} {reason}; {INSTEAD}"
    if getattr(codec, "carries_momentum", False) and codec.momentum:
        if not program.sends_gradients or algorithm.parameters.get("inner") is not None:
            reason = f"corrects the momentum of gradients, and {program.name} sends displacements"
            yield "codec", f"{codec.kind} {reason}; {INSTEAD}"
        elif momentum and not isinstance(momentum, Identity):
            yield (
                program.local_momentum,
                f"would be applied twice, as codec {codec.kind} has a momentum of its own; write 0",
            )
    yield from _entries(scenario, algorithm, getattr(codec, "ratio", 1.0))


def _entries(scenario: Scenario, algorithm: Algorithm, ratio: float) -> Iterator[Fault]:
    """Check that every piece of a vector has entries, and that a sparse codec can keep one."""
    given, entries = algorithm.parameters, dimension_of(scenario.objective)
    if entries is None:
        return
    pieces = next((key for key in ("buckets", "fragments") if key in given), None)
    coded = getattr(given.get("codec"), "kind", "raw") != "raw"
    parts = given.get(pieces or "")
    sizes = (1,) * parts if isinstance(parts, int) else parts or ()
    if len(sizes) > entries and (coded or not isinstance(parts, int)):
        yield (
            pieces or "buckets",
            f"{len(sizes)} pieces of a gradient with the {entries} entries of this objective; "
            "write fewer",
        )
        return
    whose = "of this objective"
    if pieces is not None and coded:
        entries, whose = entries * min(sizes) // sum(sizes), "of a piece"
    if ratio * entries < 1:
        larger = scenario.objective.kind == "quadratic"
        yield (
            "codec",
            f"keeps less than one of the {entries} entries {whose}; write a ratio of "
            f"{1 / entries:.2g} or more{', or a larger objective.dimension' if larger else ''}",
        )


def _cluster(scenario: Scenario, program: Program, algorithm: Algorithm) -> Iterator[Fault]:
    given, workers = algorithm.parameters, scenario.cluster.workers
    if given.get("k") is not None and program.server is not None and given["k"] > workers:
        yield "k", f"more than cluster.workers = {workers}; write at most that"


def multiplier(scenario: Scenario) -> Iterator[Problem]:
    """Check that all hpsgd tables set the same cost of averaging a model."""
    key = "local_sgd_sync_multiplier"
    stated = [(i, a.parameters[key]) for i, a in enumerate(scenario.algorithm) if key in a.table]
    beside = [a for a in scenario.algorithm if a.name == "local-sgd" and "codec" not in a.table]
    if stated and not beside:
        yield Problem(
            ("algorithm", stated[0][0], key),
            "has no effect, as no local-sgd without a codec is beside it; add one, or remove it",
        )
    for index, value in stated:
        if value != stated[0][1]:
            yield Problem(
                ("algorithm", index, key),
                f"algorithm[{stated[0][0]}] says {stated[0][1]:g}, and local-sgd can cost one of "
                "them; write the same in both",
            )
