"""What each framework runs as Paceline does; the words for what it does not are in targets.toml.

`PROGRAMS` is the one table: per program, the parameters that have a counterpart, and the values
that these may have. A parameter that it does not list is refused, so that none is ever dropped.
"""

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from paceline.simulator.programs import catalogue
from paceline.simulator.programs.pieces.schedule import FixedPeriod

from .picked import Pick

TARGETS: dict[str, dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "targets.toml").read_text("utf-8")
)
RATES, OPTIMIZERS, REFUSED = (TARGETS.pop(key) for key in ("rates", "optimizers", "refused"))

Fits = Callable[[Any, Pick], bool]


def kind(piece: Any) -> str:
    """Return a transform's or a codec's name; momentum of zero is none."""
    return "identity" if getattr(piece, "mu", None) == 0 else str(getattr(piece, "kind", piece))


def _one_of(*kinds: str) -> Fits:
    return lambda value, _: kind(value) in kinds


def _is(wanted: Any) -> Fits:
    return lambda value, _: bool(value == wanted)


def _schedule(*names: str) -> Fits:
    return lambda value, _: getattr(value, "schedule", "") in names


def _divides_tau(value: Any, pick: Pick) -> bool:
    return bool(pick.algorithm.parameters["tau"] % value == 0)


def _one_in_flight(value: Any, pick: Pick) -> bool:
    known = pick.algorithm.parameters
    return bool(value < known["tau"] // known["fragments"])


def _any(value: Any, pick: Pick) -> bool:
    return True


RAW, PLAIN, LOOP = _one_of("raw"), _one_of("identity"), _one_of(*OPTIMIZERS["torch"])
SGD = {"lr": _schedule(*RATES), "momentum": LOOP, "codec": RAW}
BUCKETS = {
    "overlap": _is(True),
    "buckets": lambda value, pick: (
        value == pick.scenario.model.buckets
        or ("buckets" not in pick.algorithm.table and pick.scenario.network.library == "nccl")
    ),
}
ROUNDS: dict[str, Fits] = SGD | {"tau": lambda value, _: isinstance(value, FixedPeriod)}
MEAN = ROUNDS | {"outer": PLAIN, "outer_lr": _is(1.0)}
POST = ROUNDS | {"switch_step": _any}
DILOCO = {key: ROUNDS[key] for key in ("lr", "tau", "codec")} | {
    "inner": LOOP,
    "outer_lr": _any,
    "outer_momentum": _any,
}
STREAMING = DILOCO | {
    "tau": _any,
    "fragments": _divides_tau,
    "overlap": _one_in_flight,
    "alpha": _any,
}
TITAN = {
    "lr": _schedule("constant"),
    "inner": _one_of(*OPTIMIZERS["titan"]),
    "outer_lr": _is(0.7),
    "outer_momentum": _is(0.9),
}
FEDERATED = ROUNDS | {"outer": _one_of("identity", "momentum"), "outer_lr": _any}

PROGRAMS: dict[str, dict[str, dict[str, Fits]]] = {
    "torchft": {
        "ssgd": SGD,
        "local-sgd": ROUNDS | {"outer": LOOP, "outer_lr": _any},
        "post-local-sgd": POST,
        "diloco": DILOCO,
        "streaming-diloco": STREAMING,
    },
    "torchtitan": {
        "diloco": DILOCO | TITAN,
        "streaming-diloco": STREAMING | TITAN | {"overlap": _is(0)},
    },
    "accelerate": {
        "ssgd": SGD,
        "ssgd-bucketed": SGD | BUCKETS,
        "local-sgd": MEAN,
        "post-local-sgd": POST,
    },
    "paddle": {"ssgd": SGD, "local-sgd": MEAN, "post-local-sgd": POST},
    "flower": {"local-sgd": FEDERATED, "fedavg": FEDERATED | {"mu": _any}},
}


def problems(target: str, pick: Pick) -> Iterator[str]:
    """Say what of a pick a target would run otherwise than Paceline, or not at all."""
    algorithm, words = pick.algorithm, TARGETS[target]
    name, policy = algorithm.name, pick.scenario.under(algorithm).recovery
    if name not in PROGRAMS[target]:
        differs = words["differs"]
        yield f"{name}: {differs.get(name) or differs[catalogue()[name].family]}"
        return
    if pick.scenario.cluster.sampling is not None:
        yield "cluster.sampling: a framework draws other clients than Paceline"
    if policy.policy in ("backup", "quorum") or policy.backup:
        yield f'recovery.policy = "{policy.policy}": its means wait for all workers'
    if pick.devices > 1 and target not in ("torchft", "torchtitan"):  # replicas of many devices
        yield (
            f"cluster.group.devices = {pick.devices}: it would start one process for each worker, "
            "and average nothing among a worker's devices"
        )
    refused = REFUSED | words["refused"]
    for key, value in algorithm.parameters.items():
        fits = PROGRAMS[target][name].get(key)
        if fits is None or not fits(value, pick):
            why = refused[key] if fits else "has no counterpart"
            yield f"{key} = {algorithm.written.get(key, kind(value))}: {why}"
