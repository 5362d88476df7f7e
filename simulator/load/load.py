"""From a TOML file, and overrides from the command line, to a scenario, or one clear InputError."""

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from paceline.simulator.errors import InputError
from paceline.simulator.inputs import messages, paths, untrusted
from paceline.simulator.load.checks.settings import problems
from paceline.simulator.load.extends import extended
from paceline.simulator.load.listing import find, shipped
from paceline.simulator.programs import Program, catalogue
from paceline.simulator.programs.program import Function
from paceline.simulator.scenario.scenario import BackgroundJob, Scenario, json_schema

LARGEST = 10_000_000  # bytes; a scenario has a few thousand
SHOWN = 5  # problems reported at once
DEEPEST = 32  # tables and lists within each other; a scenario has some six
FOREVER = 10**9  # steps of a job beside a run

Programs = Mapping[str, Program | Function] | None
"""By the name that scenarios call them; a coroutine function is what runs on every worker."""


def load(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    programs: Programs = None,
    allow_paths: bool = False,
) -> Scenario:
    """Read a scenario file, or a shipped scenario by its name.

    `overrides` are texts "table.key=value", as `--set` takes. `programs` are those that algorithms
    may name beside the catalogue's. Files that the scenario itself names must lie in its folder,
    unless `allow_paths`. Raises InputError.
    """
    file = find(path)
    return parse(
        read(file),
        file=str(file),
        folder=file.parent,
        overrides=overrides,
        programs=programs,
        allow_paths=allow_paths,
    )


def read(path: str | Path) -> dict[str, Any]:
    """Read a TOML file. Raises InputError for anything that is not one."""
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST + 1)
    except FileNotFoundError:
        names = messages.nearest(str(path), shipped(), "shipped scenarios")
        raise InputError(f"{path}: no such file; check the path; {names}") from None
    except IsADirectoryError:
        raise InputError(f"{path}: a directory; name a scenario file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: cannot be read ({reason}); name another file") from None
    if len(content) > LARGEST:
        raise InputError(f"{path}: above 10 MB; is it really a scenario?")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(f"{path}: line {line} is not UTF-8; save the file as UTF-8 text") from None
    if not text.strip():
        raise InputError(f"{path}: empty; start from one of `paceline list scenarios`")
    try:
        table = untrusted.toml(text, DEEPEST)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InputError(f"{path}: not TOML: {reason}; correct it there") from None
    _demand_flat(table, str(path))
    return table


def parse(  # noqa: PLR0913 - where it comes from, and what it may use
    table: dict[str, Any],
    *,
    file: str = "<scenario>",
    folder: Path = Path(),
    overrides: Sequence[str] = (),
    programs: Programs = None,
    guest: bool = False,
    allow_paths: bool = True,
) -> Scenario:
    """Turn a TOML table into a scenario; files it names are relative to `folder`.

    `guest`: it is a job on another scenario's network. `allow_paths`: files that the table names
    may lie outside `folder`; those of `overrides` may anyway. Raises InputError, whose lines name
    file, key, value and remedy of the first few problems.
    """
    known = known_programs(programs)
    _demand_flat(table, file)
    own = deepcopy(table)
    said = [override(own, text) for text in filter(_EXTENDS.match, overrides)]
    if not allow_paths:
        _demand_inside(own, {*said, ("network",)} if guest else said, file, folder, overrides)
    anywhere = allow_paths or bool(said)
    table, profile = extended(own, file, folder, read, anywhere=anywhere, allow_paths=allow_paths)
    changed = {override(table, text): text for text in overrides if not _EXTENDS.match(text)}
    _demand_flat(table, file)
    _demand_text(table, file)
    context = {"file": file, "folder": folder, "table": table, "programs": known, "guest": guest}
    try:
        scenario = Scenario.model_validate(table, context=context)
        found = problems(scenario, known)
    except ValidationError as error:
        found = _explain(error, table, known)
    if not found:
        for index, job in enumerate(scenario.job):
            where = f"{file}: job[{index}]"
            _read_job(scenario, job, where, folder, programs, allow_paths)
        return scenario
    lines = []
    for path, what in found.items():
        inherited = messages.get(own, path) is None and messages.get(profile, path) is not None
        source = str(folder / own["extends"]) if inherited else file
        lines.append(_line(source, path, what, table, changed))
    if len(lines) > SHOWN:
        lines[SHOWN:] = [f"{file}: {len(lines) - SHOWN} more, shown once these are corrected"]
    raise InputError("\n".join(lines))


def _demand_inside(
    own: dict[str, Any],
    allowed: Iterable[messages.Path],
    file: str,
    folder: Path,
    overrides: Sequence[str],
) -> None:
    """Refuse files elsewhere that a table names itself: neither `allowed` keys nor overrides do."""
    table = deepcopy(own)
    changed = [*allowed]
    for text in overrides:
        if not _EXTENDS.match(text):
            with suppress(InputError):  # it is about a table of the profile; or wrong, as said soon
                changed.append(override(table, text))
    wrong = paths.refusals(table, file, folder)
    lines = [
        line
        for path, line in wrong.items()
        if not any(path[: len(each)] == each for each in changed)
    ]
    if lines:
        raise InputError("\n".join(lines[:SHOWN]))


def _demand_text(table: dict[str, Any], file: str) -> None:
    """Refuse characters that terminals would act upon, wherever names and titles are shown."""
    for path in islice(messages.acting(table), 1):
        value = messages.get(table, path)
        shown = f" = {messages.show(value)}" if isinstance(value, str) else ""
        raise InputError(
            f"{file}: {messages.dotted(path)}{shown}: has control characters; write it without"
        )


def _demand_flat(table: Mapping[str, Any], file: str) -> None:
    """Refuse tables that nest more deeply than one can follow, and than Python can copy."""
    if not untrusted.shallow(table, DEEPEST):
        raise InputError(
            f"{file}: nested too deeply; no scenario has {DEEPEST} tables in each other"
        )


def _read_job(  # noqa: PLR0913, PLR0917
    scenario: Scenario,
    job: BackgroundJob,
    where: str,
    folder: Path,
    programs: Programs,
    allow_paths: bool,
) -> None:
    """Read a job's file: its tables, on the scenario's network, without end."""
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
            guest=True,
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
    """Return the catalogue and a user's `own` programs. Raises InputError for what is none."""
    known = dict(catalogue())
    for name, program in (own or {}).items():
        if isinstance(program, Program):
            known[name] = replace(program)  # without what it caches, which cannot be pickled
        elif inspect.iscoroutinefunction(program):
            known[name] = Program(name, program, "user")
        else:
            raise InputError(
                f"programs[{name!r}]: {program!r} is neither a Program nor a coroutine function; "
                "write `async def`"
            )
    return known


def _explain(
    error: ValidationError, table: dict[str, Any], programs: Mapping[str, Program]
) -> dict[messages.Path, str]:
    """What is wrong, by the path of the key at fault; the first of several members of a union."""
    schema = json_schema(programs)
    found: dict[messages.Path, str] = {}
    faults = error.errors(include_url=False)
    for fault in sorted(faults, key=lambda each: each["type"] not in messages.UNKNOWN):
        path = messages.locate(fault, table)
        kind, value = fault["type"], messages.get(table, path)
        parent = messages.describe(schema, path[:-1], table)
        if kind in messages.UNKNOWN:
            what = messages.unknown(path, parent, schema)
        elif kind in (*messages.MISSING, "union_tag_not_found"):
            what = messages.absent(str(path[-1]), parent, schema)
        else:
            what = messages.sentence(fault, path, value)
        found.setdefault(path, what)
    return found


def _line(
    file: str,
    path: messages.Path,
    what: str,
    table: dict[str, Any],
    changed: Mapping[messages.Path, str],
) -> str:
    by = [f" with --set {text}" for where, text in changed.items() if path[: len(where)] == where]
    value = messages.get(table, path)
    shown = "" if value is None else f" = {messages.show(value)}"
    line = f"{file}{''.join(by[-1:])}: {messages.dotted(path)}{shown}: {what}"
    return line.replace("\n", "\\n").encode("utf-8", "backslashreplace").decode()


_EXTENDS = re.compile(r"\s*extends\s*=")
_KEY = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|\[(\d+)\]|([^\s."'=[]+))\s*([.=]|(?=\[))""")


def override(table: dict[str, Any], text: str) -> messages.Path:
    """Set "table.key=value" in `table`; return the path of what is new: the key, or its table.

    The value is TOML, or else plain text. A list's entries go by number (`algorithm[0].tau`), name
    or label (`algorithm.local-sgd.tau`). Tables that are missing are made. Raises InputError naming
    the text.
    """
    parts, position = [], 0
    while (match := _KEY.match(text, position)) is not None:
        parts.append(next(group for group in match.groups()[:4] if group is not None))
        position = match.end()
        if match[5] == "=":
            break
    if match is None:
        raise InputError(f"--set {text}: not table.key=value; write one such as run.seeds=8")
    if len(parts) > DEEPEST:
        raise InputError(f"--set {text[:80]}: nested too deeply; no key has {DEEPEST} dots")
    path: messages.Path = ()
    new: messages.Path | None = None
    here: Any = table
    value = _value(text[position:].strip(), text)
    _demand_flat({"": value}, f"--set {text[:80]}")
    for depth, part in enumerate(parts):
        if not isinstance(here, dict | list):
            raise InputError(
                f"--set {text}: {messages.dotted(path)} = {messages.show(here)} is not a table, so "
                f"it has no key {part}; set {messages.dotted(path)} as a whole"
            )
        key: Any = (
            _index(here, part, messages.dotted(path), text) if isinstance(here, list) else part
        )
        path = (*path, key)
        last = depth == len(parts) - 1
        if new is None and (last or not messages.holds(here, key)):
            new = path
        if last:
            here[key] = value
        elif isinstance(here, dict):
            here = here.setdefault(key, {})
        else:
            here = here[key]
    return new or path


def _index(entries: list[Any], part: str, where: str, text: str) -> int:
    """Return the position of the entry that `part` numbers, names or labels."""
    names = [
        {str(entry.get(key)) for key in ("name", "label") if key in entry}
        if isinstance(entry, dict)
        else set()
        for entry in entries
    ]
    found = [index for index, each in enumerate(names) if part in each]
    if not found and part.isdecimal() and int(part) < len(entries):
        return int(part)
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(
            f"--set {text}: {len(found)} entries of {where} are called {part}; "
            f"name one by its number: {', '.join(f'{where}.{index}' for index in found)}"
        )
    known = sorted(set().union(*names))
    raise InputError(
        f"--set {text}: {where} has no entry {part}; "
        f"{messages.nearest(part, known, 'names')}, or numbers from 0 to {len(entries) - 1}"
    )


def _value(text: str, whole: str) -> Any:
    if not text:
        raise InputError(f'--set {whole}: no value; write "" for an empty text')
    try:
        table = untrusted.toml(f"value = {text}", DEEPEST)
    except (ValueError, RecursionError) as error:
        if text[0] in "[{\"'":
            raise InputError(f"--set {whole}: the value is not TOML: {error}") from None
        return text  # a shell has eaten the quotes of "20 ms"
    return table["value"] if len(table) == 1 else text
