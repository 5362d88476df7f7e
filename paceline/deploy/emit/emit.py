"""Write the configuration and the code that run a pick in another framework.

`targets.toml` lists, per program, the parameters with a counterpart and their possible values, so
that training is equal. Any other parameter is an error, so that none is dropped. It also has the
words for differences; `templates` has the code.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from paceline.simulator.cluster.prices import worker_devices
from paceline.simulator.errors import InputError
from paceline.simulator.inputs import untrusted
from paceline.simulator.inputs.messages import nearest, visible
from paceline.simulator.load.load import load, parse
from paceline.simulator.programs import catalogue
from paceline.simulator.programs.pieces.schedule import FixedPeriod
from paceline.simulator.programs.pieces.transform import Nesterov
from paceline.simulator.reports.page import reading
from paceline.simulator.results import store
from paceline.simulator.results.store import free_file
from paceline.simulator.results.verdict import to_run
from paceline.simulator.scenario.scenario import Algorithm, Scenario
from paceline.simulator.scenario.tables import LearningCurve, NoObjective

from . import table_of

TARGETS: dict[str, dict[str, Any]] = {**untrusted.packaged(__file__, "targets.toml")}
OPTIMIZERS, REFUSED, SETTINGS = (TARGETS.pop(key) for key in ("optimizers", "refused", "settings"))


def _merged(parts: Sequence[Any]) -> dict[str, Any]:
    tables = [SETTINGS[part] if isinstance(part, str) else part for part in parts]
    return {key: rule for table in tables for key, rule in table.items()}


PROGRAMS: dict[str, dict[str, dict[str, Any]]] = {
    target: {name: _merged(parts) for name, parts in words["programs"].items()}
    for target, words in TARGETS.items()
}
"""By target and program: the parameters that have a counterpart, and the rule for their values."""


@dataclass(frozen=True)
class Pick:
    """An algorithm to run, its scenario, and `notes` on the choice."""

    scenario: Scenario
    algorithm: Algorithm
    notes: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        """Return the devices of the largest worker."""
        return int(worker_devices(self.scenario).max())


def find(
    where: Path, label: str | None, overrides: Sequence[str] = (), allow_paths: bool = False
) -> Pick:
    """Return the pick of a run directory, or a scenario's algorithm by its label.

    `label`: may name another algorithm of a run directory; a scenario with one algorithm needs
    none. Raises InputError if nothing was picked, or no algorithm has the label.
    """
    if not where.is_dir():
        scenario = load(where, overrides, allow_paths=allow_paths)
        return Pick(scenario, _labelled(scenario, label))
    (run,) = reading.read([where])
    if "pick" not in run.document or "table" not in run.scenario:
        raise InputError(
            f"{where}: picks no algorithm; give a directory of paceline simulate or tune, or a "
            "scenario and --algorithm"
        )
    pick, about = run.document["pick"], run.scenario
    chosen = to_run(run.document, label, f"{where} (--algorithm)")
    if chosen is None:
        raise InputError(f"{where}: nothing was picked ({pick['sentence']}); write --algorithm")
    table = dict(about["table"])
    if run.tune:
        rows = {row["label"]: row for row in run.tune["ranking"]}
        if not isinstance(rows.get(chosen, {}).get("parameters"), dict):
            raise InputError(f"{where}: {chosen} was not tried; tune.json lists the tried ones")
        table["algorithm"] = [table_of(rows[chosen])]
        overrides = [*rows[chosen].get("set", ()), *overrides]
    file = str(about["file"])
    scenario = parse(
        table, file=file, folder=Path(file).parent, overrides=overrides, allow_paths=allow_paths
    )
    notes = () if label or pick.get("decided", True) else (str(pick["sentence"]),)
    algorithm = scenario.algorithm[0] if run.tune else _labelled(scenario, chosen)
    return Pick(scenario, algorithm, notes)


def _labelled(scenario: Scenario, label: str | None) -> Algorithm:
    """Return the algorithm with a label; without one, the only algorithm."""
    algorithms = scenario.algorithm
    fitting = [one for one in algorithms if label in (None, one.label, one.name)]
    if len(fitting) != 1:
        wrong = f"no algorithm {label!r}" if label else "which algorithm?"
        labels = [algorithm.label for algorithm in algorithms]
        raise InputError(
            f"{scenario.file}: {wrong}; write --algorithm with one of: {', '.join(labels)}"
        )
    return fitting[0]


def kind(piece: Any) -> str:
    """Return a transform's or a codec's name; zero momentum counts as none."""
    return "identity" if getattr(piece, "mu", None) == 0 else str(getattr(piece, "kind", piece))


RULES: dict[str, Callable[[Any, Pick], bool]] = {
    "any": lambda value, pick: True,
    "torch": lambda value, pick: kind(value) in OPTIMIZERS,
    "one number": lambda value, pick: isinstance(value, FixedPeriod),
    "divides tau": lambda value, pick: pick.algorithm.parameters["tau"] % value == 0,
    "one in flight": lambda value, pick: (
        value < pick.algorithm.parameters["tau"] // pick.algorithm.parameters["fragments"]
    ),
    "of the model": lambda value, pick: (
        value == pick.scenario.model.buckets
        or ("buckets" not in pick.algorithm.table and pick.scenario.network.library == "nccl")
    ),
}


def _fits(rule: Any, value: Any, pick: Pick) -> bool:
    """Return whether a rule of `PROGRAMS` allows a parameter's value."""
    if isinstance(rule, list):
        return kind(value) in rule or getattr(value, "schedule", "") in rule
    return RULES[rule](value, pick) if isinstance(rule, str) else bool(value == rule)


def problems(target: str, pick: Pick) -> Iterator[str]:
    """Yield the settings of a pick that a target would run differently, or not at all."""
    algorithm, words = pick.algorithm, TARGETS[target]
    name, policy = algorithm.name, pick.scenario.under(algorithm).recovery
    if name not in PROGRAMS[target]:
        differs = words["differs"]
        yield f"{name}: {differs.get(name) or differs[catalogue()[name].family]}"
        return
    if pick.scenario.cluster.sampling is not None:
        yield "cluster.sampling: frameworks draw other clients than Paceline"
    if policy.policy in ("backup", "quorum") or policy.backup:
        yield f'recovery.policy = "{policy.policy}": its means wait for all workers'
    if pick.devices > 1 and target not in ("torchft", "torchtitan"):  # replicas of many devices
        yield (
            f"cluster.group.devices = {pick.devices}: it would start one process per worker, "
            "without averaging among a worker's devices"
        )
    refused = REFUSED | words["refused"]
    for key, value in algorithm.parameters.items():
        rule = PROGRAMS[target][name].get(key)
        if rule is None or not _fits(rule, value, pick):
            why = "has no counterpart" if rule is None else refused[key]
            yield f"{key} = {algorithm.written.get(key, kind(value))}: {why}"


@dataclass(frozen=True)
class Emitted:
    """The `files` that run a pick on one `target`, by name, and `notes`."""

    target: str
    label: str
    files: Mapping[str, str]
    notes: tuple[str, ...]

    def json(self) -> dict[str, Any]:
        """Return the document of `paceline emit --json`."""
        version = {"target": self.target, "version": TARGETS[self.target]["version"]}
        return {**version, "algorithm": self.label, "files": dict(self.files), "notes": self.notes}

    def save(self, folder: Path, overwrite: bool) -> None:
        """Write the files; replace other contents only with `overwrite`."""
        with store.writing(folder, "choose another --out"):
            for test in (True, False):  # test all before the first is written
                for name, text in self.files.items():
                    write = free_file if test else store.write_free
                    data = text.encode(errors="replace")  # file names may contain any bytes
                    write(folder / name, data, given=True, overwrite=overwrite)


def emit(target: str, pick: Pick) -> Emitted:
    """Return the lines that run a pick around the user's loop; refuse unequal training."""
    if target not in TARGETS:
        raise InputError(f"emit {target}: unknown; {nearest(target, TARGETS, 'write one of')}")
    framework, label = TARGETS[target], pick.algorithm.label
    if differences := list(problems(target, pick)):
        others = [other for other in TARGETS if not list(problems(other, pick))]
        remedy = f"choose {' or '.join(others)}" if others else "no target of emit can run it"
        first = f"emit {target}: {label}: differs from {framework['version']}:"
        lines = [first, *differences, remedy]
        raise InputError("\n  ".join(lines))
    values = _values(pick, framework["version"])
    rendered = {name: _render(file, values) for name, file in framework["files"].items()}
    notes = list(pick.notes)
    if values.get("fragments", 1) > 1:
        notes.append("torchft's fragments consist of whole tensors; Paceline simulates equal parts")
    if (parts := pick.scenario.cluster.accumulation) > 1:
        notes.append(
            f"a batch is a whole step of {parts} micro-batches (cluster.accumulation): add their "
            "gradients before optimizer.step()"
        )
    if pick.devices > 1:
        notes.append(
            f"a worker is {pick.devices} devices: shard the model among them (FSDP), or average "
            "their gradients; this code only averages between workers"
        )
    notes.append(framework["unrun"])
    return Emitted(target, label, rendered, tuple(notes))


def _settings(pick: Pick) -> dict[str, Any]:
    """Return the optimizer's settings by torch's names; none if the user's recipe decides."""
    parameters, rate = pick.algorithm.parameters, pick.algorithm.parameters["lr"]
    stated = not isinstance(pick.scenario.objective, NoObjective | LearningCurve)
    constant = rate.schedule == "constant" and (stated or "lr" in pick.algorithm.written)
    settings: dict[str, Any] = {"lr": rate.value} if constant else {}
    numbers = _numbers(inner := parameters.get("inner", parameters.get("momentum")))
    if stated and kind(inner) == "adamw":
        settings["betas"] = numbers["beta1"], numbers["beta2"]
        settings |= {"eps": numbers["epsilon"], "weight_decay": numbers["weight_decay"]}
    elif stated:
        momentum, nesterov = numbers.get("mu", 0.0), kind(inner) == "nesterov"
        settings |= {"momentum": momentum, "nesterov": nesterov, "weight_decay": 0.0}
    return settings


def _recipe(pick: Pick) -> list[str]:
    """Return the demands on the user's recipe, a line of a comment for each part."""
    objective, algorithm = pick.scenario.objective, pick.algorithm
    if isinstance(objective, NoObjective):
        return ["any optimizer, rate and clipping: only times are predicted"]
    lines = [f"{key} = {_comment(str(value))}" for key, value in _settings(pick).items()]
    if isinstance(objective, LearningCurve):
        return [*lines, "the optimizer, schedule, batch and clipping of the run with these losses"]
    if "lr" not in _settings(pick):
        lines.append(f"lr: {_comment(str(algorithm.written.get('lr', 'as in [optimizer]')))}")
    if batch := getattr(objective, "batch", None):
        lines.append(f"{batch} samples in a batch of one worker")
    return [*lines, "gradients that are not clipped"]


def _values(pick: Pick, version: str) -> dict[str, Any]:
    """Return values for the templates: parameters as Python code or numbers."""
    parameters = pick.algorithm.parameters
    plain = {
        key: value.value if isinstance(value, FixedPeriod) else value
        for key, value in parameters.items()
    }
    outer = parameters.get("outer")
    if "outer_momentum" in parameters:
        outer = Nesterov(parameters["outer_momentum"])
    return plain | {
        "label": _comment(pick.algorithm.label),
        "title": _comment(pick.scenario.title or pick.scenario.file),
        "program": pick.algorithm.name,
        "version": version,
        "rounds": (pick.scenario.run.steps or 0) // plain.get("tau", 1) or 100,
        "workers": pick.scenario.cluster.workers,
        "devices": pick.devices,
        "accumulation": pick.scenario.cluster.accumulation,
        "settings": _settings(pick),
        "recipe": _recipe(pick),
        "stateful": kind(parameters.get("inner", parameters.get("momentum"))) != "identity",
        "outer_kind": kind(outer),
        "outer_mu": getattr(outer, "mu", 0.0),
        "outer": OPTIMIZERS.get(kind(outer), "").format(
            of="parameters", lr=parameters.get("outer_lr", 1.0), **_numbers(outer)
        ),
    }


def _comment(text: str) -> str:
    """Return text on a single line, so that none of it becomes code."""
    return visible(" ".join(text.split()))


def _numbers(piece: Any) -> dict[str, Any]:
    return asdict(piece) if is_dataclass(piece) and not isinstance(piece, type) else {}


def _render(name: str, values: Mapping[str, Any]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(  # the templates are code, so nothing is escaped
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return re.sub(r"\n{4,}", "\n\n\n", environment.get_template(name).render(values))
