"""Read the plan to deploy, a program with its parameters, and check that it can be."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from math import nan
from os import PathLike
from pathlib import Path
from typing import Any

from paceline.simulator.errors import InputError
from paceline.simulator.inputs import untrusted
from paceline.simulator.inputs.messages import visible
from paceline.simulator.load.load import parse
from paceline.simulator.programs import Program, catalogue
from paceline.simulator.programs.codecs.codec import Raw
from paceline.simulator.programs.pieces.schedule import OwnPeriod
from paceline.simulator.programs.pieces.transform import Identity
from paceline.simulator.programs.program import BOUND
from paceline.simulator.results import store
from paceline.simulator.results.verdict import to_run

from .emit import table_of
from .steering.telemetry import settings

Source = str | PathLike[str] | Mapping[str, Any]
ENTRYWISE = [
    "ssgd",
    "local-sgd",
    "post-local-sgd",
    "bmuf",
    "diloco",
    "streaming-diloco",
    "delayed-diloco",
    "eager-diloco",
    "dts",
]
"""Programs that treat every entry of a vector alone."""
VECTORS = untrusted.packaged(__file__, "plan.toml")
LARGEST = 10**7  # entries of a scenario's quadratic
WORLD = {"optimizer": {"lr": 1.0}, "network": {"latency": "0 s"}, "run": {"steps": 1}}
"""Tables of a scenario that an [[algorithm]] table needs around it to be checked as one."""


@dataclass(frozen=True)
class Plan:
    """A program to deploy.

    `parameters`: the typed result of `Program.parse` for `table`. `local`: the parameter with the
    transform of local steps, which any user's optimizer replaces; None if the program computes with
    gradients, as if steps were SGD's.
    """

    program: Program
    parameters: dict[str, Any]
    table: dict[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings that may change, as written in a scenario."""
        return settings(self.parameters)

    @property
    def local(self) -> str | None:
        """Return the parameter that the user's optimizer replaces."""
        keys = ("inner", self.program.local_momentum)
        return next((key for key in keys if hasattr(self.parameters.get(key), "update")), None)

    @property
    def sgd(self) -> str:
        """Return why the optimizer must be SGD with momentum; "" if any optimizer works."""
        if getattr(self.parameters.get("codec"), "carries_momentum", False):
            return "its codec's messages include the momentum of SGD"
        if self.local is None:
            return "it computes with gradients and their sums, as if each step were SGD's"
        return self.program.needs_sgd

    @property
    def strict(self) -> bool:
        """Return whether the program computes SGD's steps without further options."""
        return self.local is None or self.sgd != self.program.needs_sgd

    def differing(self, other: "Plan") -> list[str]:
        """Return the parameters that differ in another plan of the program.

        Parameters that the user's optimizer replaces are left out.
        """
        mine, theirs = self.parameters, other.parameters
        users = "lr", self.local, self.program.local_momentum
        return [key for key in mine if key not in users and mine[key] != theirs[key]]

    @property
    def built_in(self) -> bool:
        """Return whether the program is one of Paceline's, whose vectors are known."""
        return self.program.worker.__module__.startswith("paceline.simulator.programs.")

    @property
    def vectors(self) -> tuple[float, float, int]:
        """Return the vectors held between steps, those at a step's peak, and those under way.

        They are upper limits; nan for a user's own program.
        """
        name, given = self.program.name, self.parameters
        labels = {f"{name} {key}" for key in given if given[key] not in (None, Identity(), 0.0)}
        rows = [row for label, row in VECTORS.items() if label in {name, *labels}]
        held, peak, more = rows[-1] if rows else (nan, nan, nan)
        late, every = given.get("delay", 0), given.get("period", 1)
        if parts := given.get("fragments", 0):
            late, every = given["overlap"] * parts, given["tau"]
        means = -(-late // every)
        return held + more * means, peak + more * means, 1 if parts else max(means, 1)

    @property
    def keeps(self) -> bool:
        """Return whether the parameters before a step must stay."""
        return not self.built_in or "compensation" in self.parameters


def read(
    plan: Source,
    parameters: Mapping[str, Any],
    workers: int,
    entries: int,
    *,
    islands: bool = False,
) -> Plan:
    """Read a plan: a name with `parameters`, an [[algorithm]] table or a run folder.

    In a run folder the parameter `label` chooses another algorithm than the pick. `entries`: the
    length of the trained vector; `islands`: whether a worker is several processes. Raises
    InputError with the reason if the program cannot be attached to a training loop.
    """
    chosen = parameters.get("label")
    given = {**(plan if isinstance(plan, Mapping) else _named(plan, chosen, workers)), **parameters}
    table = {key: given[key] for key in given if key not in ("label", "recovery")}
    program = catalogue().get(str(table.get("name")))
    if program is not None and (why := refusal(program, table)):
        raise InputError(f"plan: {program.name} cannot be attached to a training loop: {why}")
    scenario = parse(WORLD | {
        "model": {"parameters": entries},
        "objective": {"kind": "quadratic", "dimension": min(entries, LARGEST)},
        "cluster": {"workers": workers, "compute": "1 s"},
        "algorithm": [table],
    }, file="plan")  # fmt: skip
    assert program is not None
    settings = scenario.algorithm[0].parameters
    if islands and (why := _island_refusal(program, settings)):
        raise InputError(f"plan: {program.name} cannot run with mesh=: {why}")
    return Plan(program, settings, table)


def _island_refusal(program: Program, parameters: Mapping[str, Any]) -> str:
    """Return why processes that hold parts of a model cannot run a program on their own parts."""
    if program.name not in ENTRYWISE:
        return f"it is not among {', '.join(ENTRYWISE)}, which treat every entry alone"
    if program.name == "dts" and parameters.get("inner") is None:
        return 'it needs your optimizer; write inner = "adamw", which your optimizer replaces'
    if isinstance(parameters.get("tau"), OwnPeriod):
        return "processes of an island have different clocks; write tau in steps"
    coded = parameters.get("codec", Raw()) != Raw()
    return "a codec needs all of a worker's entries at once; leave out codec" if coded else ""


def _named(plan: Any, chosen: str | None, workers: int) -> dict[str, Any]:
    if str(plan) in catalogue():
        return {"name": str(plan)}
    if not isinstance(plan, str | PathLike):
        kind = type(plan).__name__
        raise InputError(f"plan: {kind}; give a run folder, an [[algorithm]] table or a name")
    folder, why = Path(plan), f"{chosen!r} was not tried" if chosen else "it picks nothing"
    try:
        tuned = (folder / "tune.json").is_file()
        document = store.read(folder, "tune.json" if tuned else store.WHOLE)
        cluster = {} if tuned else document["scenario"]["table"]["cluster"]
        if (predicted := cluster.get("workers", workers)) != workers:
            logging.getLogger("paceline").warning(
                f"plan: {folder} predicts {predicted} workers, but there are {workers} processes; "
                f"start {predicted}, or simulate with cluster.workers = {workers}"
            )
        document = document if tuned else document["summary"]
        label = to_run(document, chosen, f"{folder} (label)")
        for row in document["ranking" if tuned else "algorithms"]:
            if row["label"] == label and isinstance(row.get("parameters"), dict):
                return table_of(row)
    except (AttributeError, LookupError, OSError, TypeError) as error:
        why = f"not an unchanged run folder ({type(error).__name__}: {error})"
    raise InputError(
        f"{visible(str(folder))}: {why}; give an [[algorithm]] table or a name instead"
    )


def refusal(program: Program, table: Mapping[str, Any]) -> str:
    """Return why a program with these parameters cannot be attached; "" if it can."""
    tau = table.get("tau")
    backward = program.sends_gradients and "buckets" in program.parameters.model_fields
    reasons = {
        "it has a server, which answers at any time and has no training loop":
            program.server is not None,
        BOUND: program.bound,
        "its workers send messages to each other, but a session has only means; choose local-sgd":
            program.gossips or program.pooled,
        "DistributedDataParallel does the same: keep your loop with it, or write overlap = false":
            backward and table.get("overlap", True),
        "the user's code sets the learning rate; leave out gate_lr_until_tau_is_1":
            table.get("gate_lr_until_tau_is_1"),
        "it needs every worker's expected speed; write tau in steps, or { every = ... }":
            isinstance(tau, Mapping) and "slowest" in tau,
    }  # fmt: skip
    return next((reason for reason, holds in reasons.items() if holds), "")
