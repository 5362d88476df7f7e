"""Assemble a scenario's table from its file, those it extends, and overrides."""

import os.path
import re
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..inputs import messages, paths, untrusted
from ..inputs.messages import KeyPath, dotted, has_key, nearest, show, value_at
from .explain import line

LONGEST = 8  # most files that extend one another
LENGTHS = {"steps": "tokens", "tokens": "steps"}  # of a run; a scenario has one
DEEPEST = 32  # levels of tables and lists; a scenario has about six
SHOWN = 5  # most problems in one report
_EXTENDS = re.compile(r"\s*extends\s*=")
"""Matches an override of the key `extends`, which is applied before the profile is read."""
_KEY = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|\[(\d+)\]|([^\s."'=[]+))\s*([.=]|(?=\[))""")


@dataclass(frozen=True)
class Origin:
    """The source of a scenario's table, its overrides, and the files that it may name.

    File names are relative to `folder`.
    """

    file: str = "<scenario>"
    folder: Path = Path()
    overrides: Sequence[str] = ()
    allow_paths: bool = True


@dataclass
class Document:
    """A scenario's table, and the files and overrides that it was assembled from.

    `layers`: files and their tables as written; every file extends the next one. `changed`:
    overrides by the paths that they set; `notes`: keys that overrides dropped.
    """

    table: dict[str, Any]
    layers: list[tuple[str, dict[str, Any]]]
    origin: Origin
    changed: dict[KeyPath, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def refusal(self, faults: Mapping[KeyPath, str]) -> str:
        """Write the table's first faults, one per line."""
        file, lines = self.origin.file, []
        for path, problem in faults.items():
            sources = (name for name, table in self.layers if value_at(table, path) is not None)
            lines.append(line(next(sources, file), path, problem, self.table, self.changed))
        if len(lines) > SHOWN:
            lines[SHOWN:] = [f"{file}: {len(lines) - SHOWN} more, shown once these are corrected"]
        return "\n".join(lines)


def find(scenario: str | Path) -> Path:
    """Return the file of a scenario, given its path or the name of a shipped one."""
    path = Path(scenario)
    if os.path.exists(path):  # unlike Path.exists, it accepts any text
        return path
    return shipped().get(str(scenario), path)


def shipped() -> dict[str, Path]:
    """Return the files of shipped scenarios by name ("adacomm/figure2").

    Files NAME.targets.toml, targets of `paceline fit`, are left out.
    """
    package = find_spec("paceline.scenarios")
    assert package is not None
    assert package.origin is not None
    folder = Path(package.origin).resolve().parent
    return {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for path in sorted(folder.rglob("*.toml"))
        if not path.name.endswith(".targets.toml")
    }


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file. Raises InputError if it is not one."""
    with untrusted.refused(path, "name another file"):
        try:
            text = untrusted.text(path)
        except FileNotFoundError:
            names = nearest(Path(path).stem, shipped(), "shipped scenarios", 3)
            remedy = f"check the path; {names} (paceline list scenarios)"
            raise InputError(f"{path}: no such file; {remedy}") from None
        except IsADirectoryError:
            raise InputError(f"{path}: a directory; name a scenario file in it") from None
        except UnicodeDecodeError as error:
            why = untrusted.reason(error)
            raise InputError(f"{path}: {why}; save the file as UTF-8 text") from None
    if not text.strip():
        raise InputError(f"{path}: empty; start from one of `paceline list scenarios`")
    with untrusted.refused(path, "correct it there", "not TOML"):
        table = untrusted.toml(text, DEEPEST)
    _demand_shallow(table, str(path))
    return table


def _demand_shallow(table: Mapping[str, Any], where: str) -> None:
    """Refuse a table that is nested too deeply to copy or to read."""
    if not untrusted.shallow(table, DEEPEST):
        raise InputError(f"{where}: nested too deeply; use fewer than {DEEPEST} levels of tables")


def assembled(table: dict[str, Any], origin: Origin) -> Document:
    """Merge a table into those it extends; apply overrides. Raises InputError."""
    _demand_shallow(table, origin.file)
    written = deepcopy(table)
    early = [text for text in origin.overrides if _EXTENDS.match(text)]
    late = [text for text in origin.overrides if not _EXTENDS.match(text)]
    wrong = {} if origin.allow_paths else paths.refusals(written, origin.file, origin.folder)
    if wrong:
        raise InputError("\n".join([*wrong.values()][:SHOWN]))
    for text in early:
        override(written, text)
    document = _extended(written, origin, anywhere=origin.allow_paths or bool(early))
    table = document.table
    changed = document.changed = {override(table, text): text for text in late}
    _demand_shallow(table, origin.file)
    for path in islice(messages.with_control_characters(table), 1):
        value = value_at(table, path)
        shown = f" = {show(value)}" if isinstance(value, str) else ""
        problem = "has control characters; remove them"  # they would reach terminals and figures
        raise InputError(f"{origin.file}: {dotted(path)}{shown}: {problem}")
    _demand_headers_once(document, origin.file)
    document.notes = _without_loss(table, changed)
    _keep_one_length(table, {key[1] for key in changed if key[0] == "run" and len(key) == 2})
    return document


def _keep_one_length(table: Mapping[str, Any], keys: Collection[str | int]) -> None:
    """Let overridden `keys` of [run] replace the other key for the length of a run."""
    run = table.get("run")
    for key, other in LENGTHS.items():
        if isinstance(run, dict) and key in keys and other not in keys:
            run.pop(other, None)


def _extended(written: dict[str, Any], origin: Origin, *, anywhere: bool) -> Document:
    """Merge a scenario's table into the files that it extends, directly or indirectly."""
    # a name is relative to its file, or to the working directory if the first may be `anywhere`
    layers, folder, visited = [(origin.file, written)], origin.folder, [Path(origin.file).resolve()]
    while isinstance(name := layers[-1][1].get("extends"), str) and name:
        path, where = folder / name, f"{layers[-1][0]}: extends = {show(name)}"
        if not os.path.exists(path):
            from_shell = (
                anywhere and len(layers) == 1 and os.path.exists(name)
            )  # on the command line
            path = Path(name) if from_shell else shipped().get(name, path)
        table = read_toml(path)
        if path.resolve() in visited:
            raise InputError(f"{where}: extends itself; name another file")
        if len(layers) > LONGEST:
            raise InputError(f"{where}: more than {LONGEST} files extend one another; merge some")
        if not origin.allow_paths and (wrong := paths.refusals(table, str(path), path.parent)):
            raise InputError("\n".join(wrong.values()))
        for key, file_name in paths.named(table):
            if key != ("extends",):
                value_at(table, key[:-1])[key[-1]] = str((path.parent / file_name).absolute())
        layers.append((str(path), table))
        folder = path.parent
        visited.append(path.resolve())
    result = dict[str, Any]()
    for place, (_, layer) in enumerate(reversed(layers)):
        aside = ("extends",) * bool(place) + ("probe",) * (layer is not written)
        above = {key: value for key, value in layer.items() if key not in aside}
        result = merged(result, above)
        run = above.get("run")
        _keep_one_length(result, run if isinstance(run, dict) else ())
        if place:
            _drop_errors(result, above)
    return Document(result, layers, origin)


def _drop_errors(result: dict[str, Any], above: Mapping[str, Any]) -> None:
    """Drop a profile's standard errors of numbers that the scenario sets or lacks."""
    for kind in ("sd", "draws"):
        errors = value_at(result, ("calibration", kind))
        for key in [*errors] if isinstance(errors, dict) else ():
            number = tuple(int(part) if part.isdecimal() else part for part in key.split("."))
            if value_at(result, number) is None or value_at(above, number) is not None:
                del errors[key]


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables by key; `above` wins, and replaces tables of another kind whole."""
    if any(below.get(key) != above.get(key) for key in messages.TAGS if key in above):
        return dict(above)
    result = deepcopy(dict(below))
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


def _demand_headers_once(document: Document, file: str) -> None:
    """Refuse to subtract TCP's headers from a profile's bandwidth of payloads."""
    profile, bandwidth = document.layers[-1][1], ("network", "bandwidth")
    costs, speed = profile.get("overhead"), value_at(profile, bandwidth)
    tcp = value_at(document.table, ("network", "transport")) == "tcp"
    measured = value_at(profile, ("calibration", "transport")) == "tcp"
    # costs of any type: the validation comes later and refuses wrong ones
    factors = isinstance(costs, list) and any(has_key(one, "transmission_factor") for one in costs)
    same = speed is not None and speed == value_at(document.table, bandwidth)
    same &= len(document.layers) > 1 and bool(profile.keys() & {"overhead", "calibration"})
    if tcp and same and not measured and not factors:
        raise InputError(
            f'{file}: network.transport = "tcp": the profile\'s network.bandwidth = {speed!r} is '
            "the speed of payloads, which excludes headers already; remove "
            "network.transport, or write the link's own bandwidth"
        )


def override(table: dict[str, Any], text: str) -> KeyPath:
    """Set "table.key=value"; return the path of the key, or of the first new table.

    The value is TOML, or else plain text; an empty value removes the key. A list's entries are
    named by number (`algorithm[0].tau`), name or label (`algorithm.local-sgd.tau`). Missing
    tables are created. Raises InputError naming the text.
    """
    parts, written = _split(text)
    value = _value(written, text) if written else None
    _demand_shallow({"": value}, f"--set {text[:80]}")
    path: KeyPath = ()
    new: KeyPath = ()
    node: Any = table
    for part in parts[:-1]:
        key = _key(node, part, path, text)
        path = (*path, key)
        if not has_key(node, key):
            new = new or path
        node = node.setdefault(key, {}) if isinstance(node, dict) else node[key]
    key = _key(node, parts[-1], path, text)
    path = (*path, key)
    if written:
        node[key] = value
    elif has_key(node, key):
        del node[key]
    else:
        raise InputError(
            f'--set {text}: {dotted(path)} is not set; write a value, or "" for an empty text'
        )
    return new or path


def _split(text: str) -> tuple[list[str], str]:
    """Return the parts of an override's key, and its value as written."""
    parts, position = [], 0
    while (match := _KEY.match(text, position)) is not None:
        parts.append(next(group for group in match.groups()[:4] if group is not None))
        position = match.end()
        if match[5] == "=":
            break
    if match is None:
        raise InputError(f"--set {text}: not table.key=value; write one such as run.seeds=8")
    if len(parts) > DEEPEST:
        raise InputError(f"--set {text[:80]}: nested too deeply; use fewer than {DEEPEST} dots")
    return parts, text[position:].strip()


def _key(node: Any, part: str, path: KeyPath, text: str) -> Any:
    """Return the key that `part` means in the table or list at `path`."""
    if isinstance(node, dict):
        return part
    where = dotted(path)
    if not isinstance(node, list):
        why = f"{where} = {show(node)} is not a table, so it has no key {part}"
        raise InputError(f"--set {text}: {why}; set {where} as a whole")
    names = [
        {str(entry.get(key)) for key in ("name", "label") if has_key(entry, key)} for entry in node
    ]
    alike = [index for index, aliases in enumerate(names) if part in aliases]
    if not alike and part.isdecimal() and int(part) < len(node):
        return int(part)
    if len(alike) == 1:
        return alike[0]
    if alike:
        numbers = ", ".join(f"{where}.{index}" for index in alike)
        raise InputError(
            f"--set {text}: {len(alike)} entries of {where} are called {part}; choose one by "
            f"number: {numbers}"
        )
    near = nearest(part, sorted(set().union(*names)), "names")
    raise InputError(
        f"--set {text}: {where} has no entry {part}; {near}, or numbers from 0 to {len(node) - 1}"
    )


def _value(text: str, override_text: str) -> Any:
    try:
        table = untrusted.toml(f"value = {text}", DEEPEST)
    except (ValueError, RecursionError) as error:
        if text[0] in "[{\"'":
            raise InputError(f"--set {override_text}: the value is not TOML: {error}") from None
        return text  # the shell has removed the quotes of "20 ms"
    return table["value"] if len(table) == 1 else text


def _without_loss(table: dict[str, Any], changed: Mapping[KeyPath, str]) -> list[str]:
    """Drop the keys of a loss if an override removes the loss; return a note of that."""
    kind = ("objective", "kind")
    text = changed.get(kind) or changed.get(kind[:1])
    if text is None or value_at(table, kind) != "none":
        return []
    paths = [("objective", key) for key in table["objective"] if kind in changed and key != "kind"]
    paths.append(("run", "target_loss"))
    dropped = [path for path in paths if path not in changed and value_at(table, path) is not None]
    for where, key in dropped:
        del table[where][key]
    names = ", ".join(map(dotted, dropped))
    return [f"--set {text}: ignored without a loss: {names}"] if dropped else []
