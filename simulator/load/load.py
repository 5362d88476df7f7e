"""Load a scenario from a TOML file and overrides, or raise one InputError."""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..errors import InputError
from ..programs import Program, catalogue
from ..programs.program import Function
from ..scenario.scenario import Scenario, json_schema
from .checks.settings import problems
from .document import Origin, assembled, find, read_toml
from .explain import convert_whole_floats, explain

Programs = Mapping[str, Program | Function] | None
"""A user's programs by their names in scenarios; a bare coroutine function runs on the workers."""


def load(
    path: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    programs: Programs = None,
    allow_paths: bool = False,
) -> Scenario:
    """Load a scenario from a file, a table, or the name of a shipped scenario.

    `overrides`: texts "table.key=value", as for `--set`. `programs`: programs that algorithms may
    name in addition to the catalogue's. Files that a scenario file names must lie in its folder,
    unless `allow_paths`; those of a table are relative to the working directory. Raises InputError.
    """
    if isinstance(path, Mapping):  # the caller wrote the table
        return parse(dict(path), file="scenario", overrides=overrides, programs=programs)
    file = find(path)
    origin = Origin(str(file), file.parent, overrides, allow_paths)
    return _parsed(read_toml(file), origin, programs)


def parse(  # noqa: PLR0913 - its origin, and what it may name
    table: dict[str, Any],
    *,
    file: str = "<scenario>",
    folder: Path = Path(),
    overrides: Sequence[str] = (),
    programs: Programs = None,
    allow_paths: bool = True,
) -> Scenario:
    """Turn a TOML table into a scenario; file names are relative to `folder`.

    `allow_paths`: files of the table may lie outside it; files of `overrides` always may. Raises
    InputError, whose lines give file, key, value and remedy of the first problems.
    """
    return _parsed(table, Origin(file, folder, overrides, allow_paths), programs)


def _parsed(table: dict[str, Any], origin: Origin, programs: Programs) -> Scenario:
    """Turn a table into a checked scenario. Raises InputError."""
    added, document = added_programs(programs), assembled(table, origin)
    available = {**catalogue(), **added}
    while True:
        context = {
            "file": origin.file, "folder": origin.folder, "table": document.table,
            "programs": available, "added": added, "notes": document.notes,
        }  # fmt: skip
        try:
            scenario = Scenario.model_validate(document.table, context=context)
            faults = problems(scenario)
        except ValidationError as error:
            faults = explain(error, document.table, json_schema(available))
        if not faults:
            return scenario
        if not convert_whole_floats(faults, document.table):
            raise InputError(document.refusal(faults))


def loaded(scenario: Scenario | str | Path, programs: Programs = None) -> Scenario:
    """Return a scenario with `programs` beside its own; load it if necessary."""
    if not isinstance(scenario, Scenario):
        return load(scenario, programs=programs)
    return scenario.with_programs(added_programs(programs)) if programs else scenario


def varied(
    scenario: Scenario, overrides: Sequence[str] = (), *, table: dict[str, Any] | None = None
) -> Scenario:
    """Load a scenario again with `overrides` or another `table`. Raises InputError."""
    return parse(
        scenario.table if table is None else table,
        file=scenario.file,
        folder=Path(scenario.file).parent,
        overrides=overrides,
        programs=scenario.added,
    )


def added_programs(programs: Programs) -> Mapping[str, Program]:
    """Return the programs of a user by name. Raises InputError for other objects."""
    added = dict[str, Program]()
    for name, program in (programs or {}).items():
        if isinstance(program, Program):
            added[name] = program
        elif inspect.iscoroutinefunction(program):
            added[name] = Program(name, program, "user")
        else:
            raise InputError(
                f"programs[{name!r}]: {program!r} is neither a Program nor a coroutine function; "
                "write `async def`"
            )
    return {name: program for name, program in added.items() if catalogue().get(name) != program}
