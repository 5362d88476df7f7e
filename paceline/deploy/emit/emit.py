"""Write the configuration and the code that run a pick in another framework."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from paceline.simulator.errors import InputError
from paceline.simulator.inputs.escaping import visible
from paceline.simulator.inputs.messages import nearest
from paceline.simulator.programs.pieces.schedule import FixedPeriod
from paceline.simulator.programs.pieces.transform import Nesterov
from paceline.simulator.results import store
from paceline.simulator.results.ownership import free_file
from paceline.simulator.scenario.tables import LearningCurve, NoObjective

from .picked import Pick
from .targets import OPTIMIZERS, PROGRAMS, RATES, TARGETS, kind, problems

YOURS = "YOUR_LEARNING_RATE"  # no name of the code: it stops there, rather than train at any rate


@dataclass(frozen=True)
class Emitted:
    """What runs a pick: `files` by name, for one `target`, and `notes`."""

    target: str
    label: str
    files: Mapping[str, str]
    notes: tuple[str, ...]

    def json(self) -> dict[str, Any]:
        """Return the document of `paceline emit --json`."""
        known = {"target": self.target, "version": TARGETS[self.target]["version"]}
        return {**known, "algorithm": self.label, "files": dict(self.files), "notes": self.notes}

    def save(self, folder: Path, overwrite: bool) -> None:
        """Write the files; raise TakenError where one holds something else, unless `overwrite`."""
        with store.writing(folder, "choose another --out"):
            for test in (True, False):  # all are free before the first is written
                for name, text in self.files.items():
                    write = free_file if test else store.write_free
                    write(folder / name, text.encode(), given=True, overwrite=overwrite)


def emit(target: str, pick: Pick) -> Emitted:
    """Return what runs a pick there. Raises InputError where it would train otherwise than here."""
    if target not in TARGETS:
        raise InputError(f"emit {target}: unknown; {nearest(target, TARGETS, 'write one of')}")
    framework, label = TARGETS[target], pick.algorithm.label
    if found := list(problems(target, pick)):
        others = [each for each in TARGETS if not list(problems(each, pick))]
        remedy = f"choose {' or '.join(others)}" if others else "no target of emit runs it"
        lines = [f"emit {target}: {label}: differs from {framework['version']}:", *found, remedy]
        raise InputError("\n  ".join(lines))
    values = _values(pick, OPTIMIZERS[framework["optimizers"]], framework["version"])
    rendered = {name: _render(file, values) for name, file in framework["files"].items()}
    notes = list(pick.notes)
    if values.get("fragments", 1) > 1:
        notes.append("fragments hold whole tensors; Paceline's are equal to one number")
    if (parts := pick.scenario.cluster.accumulation) > 1:
        notes.append(
            f"a batch is a whole step, of {parts} micro-batches here (cluster.accumulation): sum "
            "up their gradients before optimizer.step()"
        )
    if pick.devices > 1:
        notes.append(
            f"a worker is {pick.devices} devices: shard the model among them (FSDP), or average "
            "their gradients; this code averages between workers alone"
        )
    if _rateless(pick):
        notes.append(f"the scenario sets no learning rate: write yours in place of {YOURS}")
    return Emitted(target, label, rendered, tuple(notes))


def unlike(picks: Iterable[Pick]) -> Iterator[str]:
    """Say of each pick that no framework runs as it is what differs in the nearest that has it."""
    for pick in picks:
        own = [each for each in TARGETS if pick.algorithm.name in PROGRAMS[each]]
        wrong = {target: list(problems(target, pick)) for target in own}
        target = min(own, key=lambda each: len(wrong[each]), default="")
        if target and wrong[target]:
            label = pick.algorithm.label
            yield f"{label}: paceline emit {target} refuses it: {'; '.join(wrong[target])}"


def _rateless(pick: Pick) -> bool:
    """Whether the learning rate is the user's to know."""
    alone = isinstance(pick.scenario.objective, NoObjective | LearningCurve)
    return alone and "lr" not in pick.algorithm.written


def _values(pick: Pick, optimizers: Mapping[str, str], version: str) -> dict[str, Any]:
    """Return what templates ask for: the parameters, as Python code where they are not numbers."""
    known = pick.algorithm.parameters
    rate = known["lr"]
    own = {
        key: value.value if isinstance(value, FixedPeriod) else value
        for key, value in known.items()
    }
    inner = known.get("inner", known.get("momentum"))
    outer = known.get("outer")
    if "outer_momentum" in known:
        outer = Nesterov(known["outer_momentum"])
    constant = rate.schedule == "constant"
    always = YOURS if _rateless(pick) else rate.value if constant else "rate(1)"
    return own | {
        "label": _comment(pick.algorithm.label),
        "title": _comment(pick.scenario.title or pick.scenario.file),
        "program": pick.algorithm.name,
        "version": version,
        "rounds": (pick.scenario.run.steps or 0) // own.get("tau", 1) or 100,
        "workers": pick.scenario.cluster.workers,
        "devices": pick.devices,
        "accumulation": pick.scenario.cluster.accumulation,
        "optimizer": _constructor(optimizers, inner, always),
        "rate": "" if constant else RATES[rate.schedule].format(**_numbers(rate)),
        "stateful": kind(inner) != "identity",
        "outer_kind": kind(outer),
        "outer_mu": getattr(outer, "mu", 0.0),
        "outer": _constructor(optimizers, outer, known.get("outer_lr", 1.0), "parameters"),
    }


def _constructor(
    optimizers: Mapping[str, str], transform: Any, lr: Any, of: str = "model.parameters()"
) -> str:
    """Return the call that makes a transform's optimizer; empty where there is none."""
    found = optimizers.get(kind(transform), "")
    return found.format(of=of, lr=lr, **_numbers(transform))


def _comment(text: str) -> str:
    """Return text that stays on its line, so that none of it becomes code."""
    return visible(" ".join(text.split()))


def _numbers(piece: Any) -> dict[str, Any]:
    return asdict(piece) if is_dataclass(piece) and not isinstance(piece, type) else {}


def _render(name: str, values: Mapping[str, Any]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(  # of code, so that nothing is escaped
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return re.sub(r"\n{4,}", "\n\n\n", made.get_template(name).render(values))
