"""Load a scenario: from a TOML file and overrides to a checked `Scenario`, or one InputError."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..errors import InputError
from ..inputs import messages, paths
from ..inputs.messages import KeyPath
from ..programs import Program, awaits, catalogue
from ..programs.program import Function
from ..scenario.scenario import BackgroundJob, Scenario, json_schema
from .checks.settings import problems
from .explain import explain, line
from .extends import demand_headers_once, extended
from .listing import find
from .overrides import EXTENDS, one_length, override, without_loss
from .synonyms import amended, named
from .toml_file import demand_shallow, read

SHOWN = 5  # problems reported at once
FOREVER = 10**9  # steps of a background job: it outlasts every run

Programs = Mapping[str, Program | Function] | None
"""Programs of a user by the names that scenarios give; a bare coroutine function is a worker's."""


def load(
    path: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    programs: Programs = None,
    allow_paths: bool = False,
) -> Scenario:
    """Read a scenario file, a shipped scenario by its name, or the table of one.

    `overrides`: texts "table.key=value", as `--set` takes. `programs`: programs that algorithms may
    name beside the catalogue's. Files that a scenario file itself names must lie in its folder,
    unless `allow_paths`; those of a table are relative to the working directory. Raises InputError.
    """
    if isinstance(path, Mapping):
        file, table, allow_paths = Path("scenario"), dict(path), True  # the caller made it
    else:
        file = find(path)
        table = read(file)
    return parse(
        table,
        file=str(file),
        folder=file.parent,
        overrides=overrides,
        programs=programs,
        allow_paths=allow_paths,
    )


def parse(  # noqa: PLR0913 - its origin, and what it may name
    table: dict[str, Any],
    *,
    file: str = "<scenario>",
    folder: Path = Path(),
    overrides: Sequence[str] = (),
    programs: Programs = None,
    background: bool = False,
    allow_paths: bool = True,
) -> Scenario:
    """Turn a TOML table into a scenario; files that it names are relative to `folder`.

    `background`: the scenario is a job on another one's network. `allow_paths`: files that the
    table names may lie outside `folder`; those that `overrides` name always may. Raises InputError,
    whose lines give file, key, value and remedy of the first few problems.
    """
    known = known_programs(programs)
    demand_shallow(table, file)
    own = deepcopy(table)
    named(own)
    said = [override(own, text) for text in filter(EXTENDS.match, overrides)]
    if not allow_paths:
        _demand_inside(own, {*said, ("network",)} if background else said, file, folder, overrides)
    anywhere = allow_paths or bool(said)
    table, profile = extended(own, file, folder, anywhere=anywhere, allow_paths=allow_paths)
    changed = {override(table, text): text for text in overrides if not EXTENDS.match(text)}
    demand_shallow(table, file)
    _demand_text(table, file)
    demand_headers_once(table, profile, file)
    context = {"file": file, "folder": folder, "table": table, "programs": known}
    context |= {"background": background}
    renamed = [text for path, text in changed.items()
               if path[-1] == "tau" and text.partition("=")[0].strip().endswith("H")]  # fmt: skip
    notes = [f"--set {text}: H is read as tau, the steps between averages" for text in renamed]
    notes += without_loss(table, changed)
    one_length(table, changed)
    while True:
        context["notes"] = tuple(filter(None, notes))
        try:
            scenario = Scenario.model_validate(table, context=context)
            found = problems(scenario, known)
        except ValidationError as error:
            found = explain(error, table, json_schema(known))
        if not found or not (more := amended(found, table, json_schema(known))):
            break
        notes += more
    if not found:
        for index, job in enumerate(scenario.job):
            where = f"{file}: job[{index}]"
            _read_job(scenario, job, where, folder, programs, allow_paths)
        return scenario
    lines = []
    for path, what in found.items():
        inherited = messages.get(own, path) is None and messages.get(profile, path) is not None
        source = str(folder / own["extends"]) if inherited else file
        lines.append(line(source, path, what, table, changed))
    if len(lines) > SHOWN:
        lines[SHOWN:] = [f"{file}: {len(lines) - SHOWN} more, shown once these are corrected"]
    raise InputError("\n".join(lines))


def varied(
    scenario: Scenario,
    overrides: Sequence[str] = (),
    *,
    table: dict[str, Any] | None = None,
    programs: Programs = None,
) -> Scenario:
    """Load a scenario again with `overrides`, or with another `table`. Raises InputError."""
    return parse(
        scenario.table if table is None else table,
        file=scenario.file,
        folder=Path(scenario.file).parent,
        overrides=overrides,
        programs=programs,
    )


def _demand_inside(
    own: dict[str, Any],
    allowed: Iterable[KeyPath],
    file: str,
    folder: Path,
    overrides: Sequence[str],
) -> None:
    """Refuse files outside `folder`, except those of `allowed` keys and of `overrides`."""
    table = deepcopy(own)
    changed = [*allowed]
    for text in overrides:
        if not EXTENDS.match(text):
            with suppress(InputError):  # about a table of the profile; or wrong, which `parse` says
                changed.append(override(table, text))
    wrong = paths.refusals(table, file, folder)
    lines = [
        each for path, each in wrong.items() if not any(path[: len(key)] == key for key in changed)
    ]
    if lines:
        raise InputError("\n".join(lines[:SHOWN]))


def _demand_text(table: dict[str, Any], file: str) -> None:
    """Refuse control characters anywhere: names and titles reach terminals and figures."""
    for path in islice(messages.with_control_characters(table), 1):
        value = messages.get(table, path)
        shown = f" = {messages.show(value)}" if isinstance(value, str) else ""
        raise InputError(
            f"{file}: {messages.dotted(path)}{shown}: has control characters; write it without"
        )


def _read_job(  # noqa: PLR0913, PLR0917
    scenario: Scenario,
    job: BackgroundJob,
    where: str,
    folder: Path,
    programs: Programs,
    allow_paths: bool,
) -> None:
    """Read a background job's file into `job`: its tables on the scenario's network, endless."""
    file = folder / job.file
    table = read(file)
    network = dict(scenario.table["network"])
    for key in {"regions", "platform"} & network.keys():
        network[key] = str((folder / network[key]).absolute())
    own = table.get("network")
    collective = own.get("collective") if isinstance(own, dict) else None
    network["collective"] = collective or "ring"
    whole = {key: table[key] for key in table.keys() - {"job", "tune", "theory", "cost", "title"}}
    whole |= {"network": network, "run": {"steps": FOREVER, "evaluate_every": 100}}
    try:
        found = parse(
            whole,
            file=str(file),
            folder=file.parent,
            programs=programs,
            background=True,
            allow_paths=allow_paths,
        )
    except InputError as error:
        raise InputError(f"{where}, on the network of this scenario: {error}") from None
    labels = [each.label for each in found.algorithm]
    if not labels or job.label not in (None, *labels):
        wanted = "label" if labels else "file"
        what = messages.nearest(str(job.label), labels, "its labels") if labels else "no algorithm"
        raise InputError(f"{where}.{wanted}: not in {file}: {what}")
    job.read(found)


def known_programs(own: Programs) -> Mapping[str, Program]:
    """Return the catalogue with a user's `own` programs. Raises InputError for other objects."""
    known = dict(catalogue())
    for name, program in (own or {}).items():
        if isinstance(program, Program):
            known[name] = replace(program)  # a copy without cached models, which cannot be pickled
        elif inspect.iscoroutinefunction(program):
            known[name] = Program(name, program, "user")
        else:
            raise InputError(
                f"programs[{name!r}]: {program!r} is neither a Program nor a coroutine function; "
                "write `async def`"
            )
        awaits.demand(known[name])
    return known
